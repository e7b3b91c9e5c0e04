"""The outcome of a tool call in a turn: value, failure, notes, and the message for the model."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

import mulligan
from mulligan import AgentError, Policy, ToolOutcome
from mulligan.testing import Sandbox


def call(tool: Callable[..., Any], /, **arguments: Any) -> ToolOutcome:
    (outcome,) = [turn.call({"fetch": tool}, "fetch", arguments) for turn in mulligan.turns(limit=1)]
    return outcome


@dataclass
class Order:
    number: int
    day: date


class Price(BaseModel):
    cents: int


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("rain", "rain"),
        ("", ""),
        ('{"a": 1}', '{"a": 1}'),
        (None, "null"),
        ({"error": None, "rows": []}, '{"error":null,"rows":[]}'),
        ([1, 2.5, True], "[1,2.5,true]"),
        (Order(7, date(2026, 1, 2)), '{"number":7,"day":"2026-01-02"}'),
        ([Price(cents=5)], '[{"cents":5}]'),
    ],
    ids=repr,
)
def test_value_of_a_success_is_the_tools_own_and_its_message_is_text_or_json(
    played: Sandbox, value: Any, message: str
) -> None:
    outcome = call(lambda: value)
    assert outcome.ok
    assert outcome.value is value
    assert (outcome.failure, outcome.notes, outcome.answer) == (None, (), None)
    assert outcome.to_message() == str(outcome) == message


def test_result_that_looks_like_an_answer_of_mulligan_is_no_failure(played: Sandbox) -> None:
    lookalike = {"recoverable": True, "hint": "none", "mulligan": {"note": "mine"}}
    outcome = call(lambda: lookalike)
    assert outcome.ok
    assert outcome.value is lookalike


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("rain", {"result": "rain"}),
        ({"days": 7}, {"days": 7}),
        ({"mulligan": "mine"}, {"result": {"mulligan": "mine"}}),
    ],
    ids=repr,
)
def test_repaired_call_has_its_value_and_a_note(played: Sandbox, value: Any, message: dict[str, Any]) -> None:
    @mulligan.tool(clamp=["days"])
    def forecast(days: int) -> Any:
        if days > 7:
            raise AgentError(f"days must be 7 or less, got {days}.")
        return value

    outcome = call(forecast, days=30)
    assert outcome.ok
    assert outcome.value is value
    (note,) = outcome.notes
    assert "days 30 -> 7" in note
    assert json.loads(outcome.to_message()) == {**message, "mulligan": {"note": note}}


def test_failure_has_its_kind_no_value_and_its_answer_as_message(played: Sandbox) -> None:
    def pay() -> None:
        raise TimeoutError("no answer in 30 s")

    outcome = call(pay)
    assert not outcome.ok
    assert outcome.value is None
    assert outcome.failure is not None
    assert outcome.failure.kind == "tool/timeout"
    assert outcome.answer == outcome.failure.to_tool_response("fetch")
    assert json.loads(outcome.to_message()) == outcome.answer


def test_returned_error_is_a_failure_with_the_tools_own_value(played: Sandbox) -> None:
    result = {"error": True, "message": "There is no order 7."}
    (turn,) = mulligan.turns(limit=1)
    outcome = turn.call({"order": lambda: result}, "order", {})
    assert not outcome.ok
    assert outcome.value is result
    assert outcome.failure is not None
    message = json.loads(outcome.to_message())
    block = message.pop("mulligan")
    assert message == result
    assert block["error"] == outcome.failure.kind
    assert "message" not in block


def test_notes_of_a_failure_are_its_suggestions(played: Sandbox) -> None:
    (outcome,) = [turn.call({"search": len}, "serch", {}) for turn in mulligan.turns(limit=1)]
    assert outcome.notes == ("Did you mean search?",)
    assert outcome.answer is not None
    assert outcome.answer["suggestions"] == ["Did you mean search?"]


@pytest.mark.parametrize("value", [None, 0, "", [], False])
def test_outcome_is_true_if_the_call_succeeded_whatever_its_value(played: Sandbox, value: Any) -> None:
    assert call(lambda: value)


def test_outcome_is_false_if_the_call_failed(played: Sandbox) -> None:
    assert not call(mulligan.tool(policy=Policy(attempts=1))(len))


def test_retried_call_is_ok_without_a_note(played: Sandbox) -> None:
    errors = [ConnectionError("reset")]

    @mulligan.tool(effects="none")
    def fetch() -> str:
        if errors:
            raise errors.pop()
        return "ok"

    assert call(fetch) == ToolOutcome(ok=True, value="ok")


def test_async_turn_returns_the_same_outcome(played: Sandbox) -> None:
    async def search(query: str) -> list[str]:
        return [query]

    async def main() -> ToolOutcome:
        (turn,) = mulligan.turns(limit=1)
        return await turn.acall([search], "search", {"query": "fish"})

    assert asyncio.run(main()) == ToolOutcome(ok=True, value=["fish"])


def test_value_of_an_odd_class_becomes_its_text(played: Sandbox) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    assert call(Odd).to_message() == '"odd"'


@pytest.mark.parametrize("value", ["object", "integer", "list"])
def test_value_without_a_text_still_becomes_a_message(played: Sandbox, value: str) -> None:
    class Silent:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    values: dict[str, Any] = {"object": Silent(), "integer": 10**5000, "list": []}
    for _ in range(sys.getrecursionlimit() * 2):
        values["list"] = [values["list"]]
    outcome = call(lambda: values[value])
    assert outcome.ok
    assert "which has no text" in outcome.to_message()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("no receipt"), "unknown"),
        (ValueError("could not parse the receipt"), "unknown"),  # may be about a response
        (ValueError("amount must be 100 or less, got 120"), ""),  # words of a refusal
    ],
)
def test_model_reads_that_a_call_with_side_effects_may_have_executed_unless_the_error_rejects_it(
    played: Sandbox, error: Exception, outcome: str
) -> None:
    def pay(amount: int) -> str:
        raise error

    answer = json.loads(call(mulligan.tool(pay), amount=120).to_message())
    assert answer.get("outcome", "").partition(":")[0] == outcome
    assert "outcome" not in json.loads(call(mulligan.tool(effects="none")(pay), amount=120).to_message())


def test_model_reads_the_class_of_a_bare_key_and_the_errors_of_a_group(played: Sandbox) -> None:
    def fail_with(error: Exception) -> dict[str, Any]:
        @mulligan.tool
        def look_up(city: str) -> str:
            raise error

        answer: dict[str, Any] = json.loads(call(look_up, city="Oslo").to_message())
        return answer

    assert "KeyError: 'user_id'" in fail_with(KeyError("user_id"))["message"]
    group = ExceptionGroup("both failed", [ValueError("no such day"), RuntimeError("it broke")])
    message = fail_with(group)["message"]
    assert all(text in message for text in ("both failed (2 sub-exceptions)", "no such day", "it broke"))


@pytest.mark.parametrize(
    ("error", "kind", "is_recoverable"),
    [
        (RuntimeError("401 invalid key"), "tool/auth_error", False),
        (KeyError("user_id"), "orchestration/uncaught_exception", False),  # a bug of the tool
        (KeyError("Oslo"), "tool/not_found", True),  # the value that the model asked for
    ],
)
def test_failure_that_a_person_must_fix_is_not_recoverable_for_the_model(
    played: Sandbox, error: Exception, kind: str, is_recoverable: bool
) -> None:
    @mulligan.tool
    def look_up(city: str) -> str:
        raise error

    answer = json.loads(call(look_up, city="Oslo").to_message())
    assert (answer["error"], answer["recoverable"]) == (kind, is_recoverable)
