"""mulligan suggest, through the real command; and mulligan.suggest."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from mulligan import Mulligan
from mulligan.core.failure import SettingsError

SCHEMA = {"type": "dict", "properties": {"query": {"type": "string"}, "top_k": {"type": "integer", "maximum": 10}}}

CALL = {"query": "x", "topK": "50"}


def suggest(*lines: Any) -> list[dict[str, Any]]:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", "suggest", "--json"],
        input=text.encode(), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_empty_input_is_an_error_that_shows_an_example(types):
    code, out, err = types("suggest", "/dev/null")
    assert (code, out) == (2, "")
    assert 'The input is empty. Pipe one failed call per line in, such as {"tool": "search"' in err


@pytest.mark.slow
def test_each_line_is_answered_in_order_and_one_that_cannot_be_read_gets_an_error():
    first, second, third, fourth, fifth, sixth = suggest(
        {
            "id": "a",
            "tool": "search",
            "arguments": CALL,
            "error": "unexpected argument 'topK'",
            "schema": SCHEMA,
            "effects": "none",
        },
        "{not json",
        {"id": 3, "tool": "search", "arguments": [1], "error": "bad"},
        {"id": 4, "tool": "search()", "arguments": "{}", "error": "No such tool", "tools": {"search": SCHEMA}},
        {"tool": "search", "arguments": {}, "error": "429 Too Many Requests"},
        {"id": 6, "tool": "search", "arguments": {}, "error": "bad", "mode": "sometimes"},
    )
    (suggestion,) = first.pop("suggestions")
    assert first.pop("kind").startswith("tool/")
    assert first == {"id": "a", "abstained": False, "reason": "", "facts": []}
    assert suggestion["tool"] == "search"
    assert suggestion["arguments"] == {"query": "x", "top_k": 10}
    assert suggestion["prerequisites"] == []
    assert suggestion["automatic"] is True
    assert suggestion["source"] == "schema"
    assert 0.8 < suggestion["confidence"] <= 1
    assert suggestion["evidence"]
    assert suggestion["changes"] == [
        {"path": "topK", "operation": "rename", "before": "topK", "after": "top_k", "source": "call"},
        {"path": "top_k", "operation": "clamp", "before": "50", "after": 10, "source": "schema"},
    ]
    assert second["id"] is None
    assert "line 2" in second["error"]
    assert third == {"id": 3, "error": 'line 3: "arguments" must be an object'}
    assert fourth["suggestions"][0]["tool"] == "search"
    assert (fifth["suggestions"], fifth["abstained"], fifth["kind"]) == ([], True, "tool/rate_limit")
    assert fifth["reason"]
    assert "mode must be" in sixth["error"]


@pytest.mark.slow
def test_the_history_of_the_run_the_effects_and_what_is_privileged_count():
    history = [{"tool": "find", "arguments": {}, "outcome": "success", "result": '{"order_id": "#W1"}'}]
    call = {"tool": "get", "arguments": {"order_id": "W1"}, "error": "order not found", "history": history}
    free, bound, kept = suggest(
        {**call, "effects": "none"},
        {**call, "effects": "once"},
        {**call, "effects": "none", "privileged": ["order_id"]},
    )
    assert free["suggestions"][0]["arguments"] == {"order_id": "#W1"}
    assert free["suggestions"][0]["automatic"] is True
    assert bound["suggestions"][0]["automatic"] is False
    assert kept["suggestions"][0]["automatic"] is False
    assert kept["reason"]


@pytest.mark.slow
def test_released_arguments_are_changed_automatically():
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    call = {"tool": "pay", "arguments": {"amount": "7"}, "error": "amount must be an integer", "schema": schema}
    held, released = suggest({**call, "effects": "none"}, {**call, "effects": "none", "unprivileged": ["amount"]})
    assert held["suggestions"][0]["automatic"] is False
    assert released["suggestions"][0]["automatic"] is True


@pytest.mark.slow
def test_a_person_is_told_what_to_type():
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", "suggest", "/nowhere/failed.jsonl"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"Cannot read" in done.stderr


@pytest.mark.slow
def test_any_line_is_answered():
    lines = ['{"tool": "x", "arguments": {"a": "\\ud800"}, "error": "bad \\ud800"}', "[]", "null", '"x"', "1e999", ""]
    lines += [
        "[" * 100_000,
        json.dumps({"tool": "x", "arguments": {}, "error": {"deep": [[[]]]}, "schema": {"$ref": "#"}}),
    ]
    assert len(suggest(*lines)) == len(lines)


@pytest.mark.slow
def test_where_no_line_can_be_read_the_command_says_so_to_scripts():
    command = [sys.executable, "-m", "mulligan", "suggest", "--json"]
    done = subprocess.run(command, input=b"not json\n[]\n", capture_output=True, timeout=60, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 2)


# mulligan.suggest


def test_a_wrapped_function_brings_its_own_schema_and_rules():
    mine = Mulligan(store="memory:")

    @mine.tool(privileged=["days"])
    def forecast(city: str, days: int = 3, limit: int = 5) -> None: ...

    advice = mine.suggest(forecast, {"city": "Rome", "limit": "7"}, "limit is no integer")
    assert advice.suggestions[0].arguments == {"city": "Rome", "limit": 7}
    assert advice.suggestions[0].automatic
    advice = mine.suggest(forecast, {"city": "Rome", "days": "7"}, "days is no integer")
    assert not advice.suggestions[0].automatic
    assert "days" in advice.reason


def test_an_exception_is_an_error_too():
    advice = Mulligan(store="memory:").suggest("f", {"k": 50}, ValueError("k must be at most 10"), effects="none")
    assert advice.suggestions[0].arguments == {"k": 10}


def test_abstaining_says_why():
    advice = Mulligan(store="memory:").suggest("f", {"k": 5}, "something odd")
    assert advice.abstained
    assert advice.reason


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(SettingsError):
        Mulligan(store="memory:").suggest("f", {}, "x", run=["not a call"])
