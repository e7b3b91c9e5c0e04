"""Options of tools behind the proxy, and their lists: with --inject-lessons, descriptions say what proved to help."""

from __future__ import annotations

import functools
import time

import mcp_client
import msgspec
import pytest
import taught

from mulligan import settings
from mulligan.contract.store import DEFAULT_TENANT, FixQuery
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Run, Step
from mulligan.prompt import Prompt, estimate_prompt_tokens
from mulligan.proxy.relay import ProxyOptions
from mulligan.proxy.tools import MAX_SERVER_TOKENS, MAX_TOOL_TOKENS, DescriptionBudget, build_tool_options
from mulligan.store.urls import open_store

proxied = functools.partial(mcp_client.proxied, program=mcp_client.PATIENT_LISTS)

REJECTED = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "b is 100 at most", fingerprint="f-b"
)


@pytest.fixture
def proven():
    """A store in which somebody has approved what helped."""
    store = open_store(settings.load_settings().store_url)
    at = int(time.time() * 1000) - 1000
    shared = {"run": "run_1", "name": "fake.add", "server": "fake", "started_at": at}
    steps = [
        Step(seq=1, call=1, arguments={"a": 1, "b": 500}, outcome="failure", failure=REJECTED, **shared),
        Step(seq=2, call=2, arguments={"a": 1, "b": 100}, **shared),
    ]
    run = Run(id="run_1", agent="tester", started_at=at, ended_at=at, end_reason="finished")
    store.append(DEFAULT_TENANT, [*map(StepEnded, steps), RunEnded(run)], "journal", 1, "ann")
    (fix,) = store.fixes(DEFAULT_TENANT, FixQuery(tool="fake.add", now=at))
    yield lambda: store.decide(DEFAULT_TENANT, fix.id, approved=True, at=int(time.time() * 1000))
    store.close()


def listed(*options):
    with proxied(options=options) as client:
        client.open()
        return client.tools()


def test_what_is_only_proposed_is_not_taught(proven):
    assert listed("--inject-lessons") == listed()


def test_what_is_proven_is_at_the_end_of_the_tools_description_and_nothing_else_is_changed(proven):
    proven()
    plain, taught = listed(), listed("--inject-lessons")
    changed = [(old, new) for old, new in zip(plain, taught, strict=True) if old != new]
    ((old, new),) = changed
    assert new["description"] == (
        "The tool add.\n\nEarlier failures of this tool and their fixes: b=100 (1 run). [note by mulligan]"
    )
    assert {**new, "description": old["description"]} == old


def test_lessons_in_force_are_taught_and_the_fix_beneath_one_is_not_told_twice():
    store = open_store(settings.load_settings().store_url)
    now = int(time.time() * 1000)
    learned = taught.prove(store, now, "fake.echo")
    store.save_lesson(
        DEFAULT_TENANT, taught.written(tool="fake.echo", mistake="<b>Empty</b> texts.", correction="Say `x`.")
    )
    store.save_lesson(
        DEFAULT_TENANT, taught.written(taught.PROPOSED, tool="fake.echo", mistake="Nobody", correction="knows")
    )
    store.decide_lesson(DEFAULT_TENANT, taught.WRITTEN, "approve", now)
    store.close()

    (description,) = [each["description"] for each in listed("--inject-lessons") if each["name"] == "echo"]

    assert learned.fix_id
    assert description.endswith(
        "Earlier failures of this tool and their fixes: Calling fake.echo with a rejected value for k "
        "fails with tool/invalid_arguments. Try: use k=10 (succeeded in 8 of 8 runs). "
        "\u2039b\u203aEmpty\u2039/b\u203a texts. Try: Say 'x' (approved by a person). [note by mulligan]"
    )


def test_a_store_that_is_broken_costs_what_it_knows_and_never_the_list(monkeypatch, tmp_path):
    plain = listed()
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where it is kept instead: not where all tests of this machine may
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database" * 1000)
    monkeypatch.setenv("MULLIGAN_STORE", str(broken))
    assert listed("--inject-lessons") == plain
    monkeypatch.setenv("MULLIGAN_STORE", "http://127.0.0.1:9")
    assert listed("--inject-lessons") == plain


def test_the_next_connection_is_not_told_that_we_changed_the_description(proven):
    proven()
    listed("--inject-lessons")
    with proxied(options=["--inject-lessons", "--pin"]) as client:
        client.open()
        assert len(client.tools()) == 28
        client.close()
        assert "changed" not in "".join(client.complaints)


def test_no_more_is_added_than_the_budget_allows():
    budget = DescriptionBudget(Prompt())
    definition = {"name": msgspec.Raw(b'"x"'), "description": msgspec.Raw(b'"Short."')}
    lessons = [f"{'a word and ' * 20}{number}" for number in range(10)]
    added = 0
    for _ in range(100):
        told = budget.add_lessons(definition, lessons)
        if told is None:
            break
        text = told["description"]
        assert estimate_prompt_tokens(text) <= MAX_TOOL_TOKENS + 60
        added += estimate_prompt_tokens(text)
    else:
        raise AssertionError("there is no end to it")
    assert added <= MAX_SERVER_TOKENS + 60 * MAX_SERVER_TOKENS // MAX_TOOL_TOKENS


def test_category_of_a_tool_comes_from_its_rule_or_its_definition() -> None:
    options = ProxyOptions(name="files", rules={"files.handle": {"category": "file", "detect_errors": "text"}})
    handle = build_tool_options(options, "handle", {}, is_pinned=True)
    assert (handle.category, handle.detect_errors) == ("file", "text")
    hint = {"readOnlyHint": True}
    assert build_tool_options(options, "show", hint, is_pinned=True, arguments=["url"]).category == "fetch"
    assert build_tool_options(options, "read_file", {}, is_pinned=True).category == "file"
    assert build_tool_options(options, "pay", {}, is_pinned=True).category == "action"


def test_rule_of_a_tool_sets_how_its_memory_is_used() -> None:
    options = ProxyOptions(
        name="files", mode="repair", rules={"files.*": {"learn": "off"}, "files.read": {"learn": "tell"}}
    )
    learned = {tool: build_tool_options(options, tool, {}, is_pinned=True).learn for tool in ("read", "write")}
    assert learned == {"read": "tell", "write": "off"}
