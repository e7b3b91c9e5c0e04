"""What an agent is answered that asks about failures: the logic, without the extra."""

from __future__ import annotations

import subprocess
import sys

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mulligan.classify.classifier import classify
from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Run, Step
from mulligan.learn import seeds
from mulligan.mcp.knowledge import TOOLS, InvalidToolCallError, Knowledge
from mulligan.prompt import Prompt
from mulligan.redaction.text_sanitizer import find_unsafe_text
from mulligan.store.sqlite import MemoryStore

NOW = 100 * DAY
INVALID = Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO)


def failing(message: str = "k is 10 at most, got 50", fingerprint: str = "f-k", **fields: str) -> Failure:
    return Failure.of(INVALID, message, fingerprint=fingerprint, **fields)


def asking(store: MemoryStore | None, session: str = "mcp_1") -> Knowledge:
    return Knowledge(lambda: store, Prompt(), classify, now=lambda: NOW, session=session)


def filled(failure: Failure | None = None, tool: str = "search", runs: int = 3) -> MemoryStore:
    store = MemoryStore(lambda: NOW)
    for number in range(runs):
        at = NOW - (number + 1) * 60_000
        run = Run(id=f"run_{number}", agent="helper", started_at=at, ended_at=at, end_reason="finished")
        shared = {"run": run.id, "name": tool, "started_at": at}
        failed, corrected = ({"q": f"cats {number}", "k": k} for k in (50, 10))
        steps = [
            Step(seq=1, call=1, arguments=failed, outcome="failure", failure=failure or failing(), **shared),
            Step(seq=2, call=2, arguments=corrected, **shared),
        ]
        store.append(DEFAULT_TENANT, [*map(StepEnded, steps), RunEnded(run)], f"journal_{number}", 1, "ann")
    return store


def test_a_pattern_is_told_with_what_helped():
    told = asking(filled()).call("known_failures", {"tool": "search"})
    assert "3 occurrences, 3 recovered" in told
    assert "k=10" in told
    assert "fix_" in told


def test_what_was_recorded_with_its_exception_is_found_by_its_words_alone():
    words = "Range too wide."
    kept = classify(ValueError(words), source="tool", tool="search", arguments={"k": 50})
    assert str(kept.kind) != str(classify(source="tool", tool="search", text=words, is_error=True).kind)
    knowledge = asking(filled(kept))
    told = knowledge.call("suggest_fix", {"tool": "search", "error": words, "arguments": {"k": 50}})
    assert told.startswith("search failed with tool/invalid_arguments. Compare the arguments with the tool's schema")
    assert "k=10" in told
    assert "fix_" in told
    for other in ({"tool": "other", "error": words}, {"tool": "search", "error": "This range is not known."}):
        assert "No further suggestions" in knowledge.call("suggest_fix", other)


def test_suggest_fix_states_what_successful_calls_had_in_common():
    store = MemoryStore(lambda: NOW)
    for number in range(20):
        step = Step(run=f"run_{number}", seq=1, call=1, name="search", arguments={"k": 10}, started_at=NOW)
        events = [RunStarted(Run(id=step.run, started_at=NOW)), StepEnded(step)]
        store.append(DEFAULT_TENANT, events, f"journal_{number}", 1, "ann")
    failed_call = {"tool": "search", "error": "Invalid value for k.", "arguments": {"k": 50}}

    assert "In 20 successful calls, k was always 10." in asking(store).call("suggest_fix", failed_call)


def test_nothing_is_a_good_answer():
    assert asking(None).call("known_failures", {"tool": "other"}) == "No matching failures of other are known."
    assert "No further suggestions" in asking(None).call("suggest_fix", {"tool": "x", "error": "it broke"})
    assert "No failed calls recorded in the last 24h." in asking(None).call("recent_failures", {})


def test_failures_are_found_by_their_words():
    store = filled()
    assert "3 occurrences" in asking(store).call("known_failures", {"text": "k is 10 at most"})
    assert "No matching failures" in asking(store).call("known_failures", {"text": "something else entirely"})
    assert "No matching failures" in asking(store).call("known_failures", {"kind": "model"})
    assert "3 occurrences" in asking(store).call("known_failures", {"kind": "tool/invalid_arguments"})


def test_a_seed_is_told_as_what_it_is_and_not_where_it_was_removed():
    asked = {"tool": "Bash", "error": "Exit code 1\nerror: src refspec master does not match any"}
    store = MemoryStore()
    told = asking(store).call("suggest_fix", asked)
    assert "git push -u origin HEAD" in told
    assert "(general advice)" in told
    seeds.remove_seeds(store, DEFAULT_TENANT)
    assert "origin HEAD" not in asking(store).call("suggest_fix", asked)


def test_what_a_provider_said_is_known_where_no_tool_is_named():
    said = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."
    assert "Shorten the largest old tool results" in asking(None).call("known_failures", {"text": said})
    assert "No matching failures" in asking(None).call("known_failures", {"text": said, "tool": "Bash"})


def test_a_suggestion_comes_from_the_schema_and_nothing_is_called():
    schema = {"type": "object", "properties": {"k": {"type": "integer"}}}
    asked = {"tool": "find", "error": "k is not of type integer", "arguments": {"k": "5"}, "schema": schema}
    assert "k as the number 5" in asking(None).call("suggest_fix", asked)


def test_who_asks_is_told_how_sure_a_guess_is_and_of_none_that_is_less_than_half_sure():
    question = {"tool": "search", "error": "k is 10 at most, got 50", "arguments": {"q": "dogs", "k": 50}}
    failure = classify(source="tool", tool="search", text=question["error"], arguments=question["arguments"])
    answers = [asking(filled(failure, runs=runs)).call("suggest_fix", question) for runs in (1, 2)]
    assert "k=10" not in answers[0]
    assert "In earlier runs this recovered the call: k=10 (2 of 2 runs)" in answers[1]
    guess = {"tool": "fetch", "error": "not found", "arguments": {"name": "drawer/lamp"}}
    assert "lamp" not in asking(None).call("suggest_fix", guess), "a quarter sure is not sure enough"


@pytest.mark.parametrize(
    ("error", "is_unknown"),
    [("Request timed out after 30 s", True), ("'to' is a required property", False), ("ENOENT: no such file", False)],
)
def test_an_answer_warns_of_a_repetition_as_the_proxy_does(error, is_unknown):
    answer = asking(None).call("suggest_fix", {"tool": "pay", "error": error})
    assert ("The outcome is unknown: the call may have executed." in answer) is is_unknown


def test_nobody_is_told_to_do_twice_what_may_have_happened():
    words = "Request timed out after 30 s"
    kept = classify(source="tool", tool="pay", text=words, arguments={"invoice": "INV-1"}, is_error=True)
    store = MemoryStore(lambda: NOW)
    for number in range(3):
        run = Run(id=f"run_{number}", agent="till", started_at=NOW - 60_000, ended_at=NOW, end_reason="finished")
        shared = {"run": run.id, "name": "pay", "arguments": {"invoice": "INV-1"}, "started_at": NOW - 60_000}
        steps = [Step(seq=1, call=1, outcome="failure", failure=kept, **shared), Step(seq=2, call=2, **shared)]
        store.append(DEFAULT_TENANT, [*map(StepEnded, steps), RunEnded(run)], f"journal_{number}", 1, "ann")
    assert [fix.type for fix in store.fixes(DEFAULT_TENANT, FixQuery())] == ["retry"]
    told = asking(store).call("suggest_fix", {"tool": "pay", "error": words, "arguments": {"invoice": "INV-1"}})
    assert "In earlier runs" not in told


def test_failures_of_late_are_told_the_latest_first():
    lines = asking(filled()).call("recent_failures", {"limit": 2, "tool": "search"}).splitlines()
    assert lines[0] == "Failed calls in the last 24h, latest first:"
    assert [line.split(":")[0] for line in lines[1:]] == ["- 1 min ago", "- 2 min ago"]
    assert ", recovered: " in lines[1]
    assert "No failed calls" in asking(filled()).call("recent_failures", {"since": "1m", "agent": "other"})


def test_the_word_of_a_model_counts_once_a_session_and_never_proves():
    store = filled(runs=4)
    (fix,) = store.fixes(DEFAULT_TENANT, FixQuery(now=NOW))
    for session in ("mcp_1", "mcp_1", "mcp_2", "mcp_3", "mcp_4", "mcp_5", "mcp_6", "mcp_7", "mcp_8"):
        asking(store, session).call("record_outcome", {"id": fix.id, "successful": True})
    (after,) = store.fixes(DEFAULT_TENANT, FixQuery(now=NOW))
    assert after.trials == 12
    assert after.imported == 8
    assert after.state == "proposed"


def test_no_number_of_words_of_models_promotes_what_nobody_else_saw():
    store = filled(runs=1)
    (fix,) = store.fixes(DEFAULT_TENANT, FixQuery(now=NOW))
    for session in range(200):
        asking(store, f"mcp_{session}").call("record_outcome", {"id": fix.id, "successful": True})
    (after,) = store.fixes(DEFAULT_TENANT, FixQuery(now=NOW))
    assert after.state == "proposed"


def test_seeds_keep_no_record():
    seed = seeds.load_seeds()["git-src-refspec"]
    assert "Nothing recorded" in asking(MemoryStore()).call("record_outcome", {"id": seed.id, "successful": True})
    assert asking(None).read_resource(f"mulligan://lessons/{seed.id}")


@pytest.mark.parametrize(
    "uri", ["mulligan://other", "file:///etc/passwd", "mulligan://patterns/pat_0", "", "mulligan:"]
)
def test_what_is_not_there_cannot_be_read(uri):
    assert asking(filled()).read_resource(uri) is None


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_says_what_it_takes(name):
    spec = TOOLS[name]
    assert spec.schema["additionalProperties"] is False
    assert all("description" in each for each in spec.properties.values())
    for argument, bad in (("unheard_of", 1), *((each, ["\ud800"]) for each in spec.properties)):
        with pytest.raises(InvalidToolCallError):
            spec.check_arguments({"tool": "x", "error": "y", "id": "fix_0000", "successful": True} | {argument: bad})


@settings(max_examples=60, deadline=None)
@given(message=st.text(max_size=2000), tool=st.text(min_size=1, max_size=300), error=st.text(min_size=1, max_size=3000))
def test_whatever_is_kept_and_asked_the_answer_may_be_shown_to_a_model(message, tool, error):
    trace = "  zq_raised/pay.py:2 in pay\ncaused by zq_raised.Cause: zq_raised"
    store = filled(failing(message, "f-x", exception="zq_raised.Error", trace=trace), tool=tool, runs=1)
    knowledge = asking(store)
    told = [
        knowledge.call("known_failures", {}),
        knowledge.call("recent_failures", {}),
        knowledge.call("suggest_fix", {"tool": tool[:200], "error": error, "arguments": {"a": message}}),
        *(str(knowledge.read_resource(uri)) for uri, _, _ in knowledge.list_resources()),
    ]
    for text in told:
        assert find_unsafe_text(text) == []
        assert "zq_raised" not in text


@pytest.mark.slow
def test_without_the_extra_one_sentence_says_what_to_install():
    start = (
        "import sys; sys.modules['mcp_types'] = sys.modules['mcp'] = None; sys.argv = ['mulligan', 'mcp']\n"
        "from mulligan.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert (
        done.stderr == "error: mulligan mcp needs the mcp package, version 2. "
        "In a checkout of mulligan, run: pip install '.[mcp]'\n"
    )
