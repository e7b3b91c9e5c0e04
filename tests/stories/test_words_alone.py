"""A call is not repeated because of words that may mean something else. The model gets the failure instead."""

from __future__ import annotations

from typing import Any

import pytest

import mulligan
from mulligan.classify.classifier import classify
from mulligan.recover.plan import GUESS_REASONS
from mulligan.testing import Sandbox

CLEAR = [
    "connection reset by peer",
    "Service temporarily unavailable",
    "429 Too Many Requests",
    "Rate limit exceeded",
    "Internal Server Error",
    "zu viele Anfragen",
    "You are doing that too often. Try again in 9 seconds.",  # a stated delay says that waiting helps
]
UNCLEAR = ["The archive room is very busy", "We lost contact with the depot", "The printer is out of order"]


def call_failing(message: str, **options: Any) -> tuple[int, BaseException]:
    """Call a tool that raises this message. Return its attempts and what reached the caller."""
    attempts = []

    @mulligan.tool(**options)
    def look_up(code: str) -> str:
        attempts.append(code)
        raise RuntimeError(message)

    with pytest.raises(RuntimeError) as raised:
        look_up("a1")
    return len(attempts), raised.value


@pytest.mark.parametrize("message", CLEAR)
def test_a_read_is_repeated_if_its_words_mean_one_thing(played: Sandbox, message: str) -> None:
    assert call_failing(message, effects="none")[0] > 1


@pytest.mark.parametrize("message", UNCLEAR)
def test_a_read_is_not_repeated_if_its_words_may_mean_something_else(played: Sandbox, message: str) -> None:
    attempts, error = call_failing(message, effects="none")
    assert attempts == 1
    assert played.steps[0].failure is not None
    assert played.steps[0].failure.remedy.value == "retry", "the kind is recorded; only the retry is not made"
    assert GUESS_REASONS[played.steps[0].failure.remedy] in "\n".join(error.__notes__)


def test_a_status_or_a_class_beside_the_same_words_is_enough(played: Sandbox) -> None:
    class BusyError(ConnectionError):
        status_code = 503

    attempts = []

    @mulligan.tool(effects="none")
    def look_up() -> str:
        attempts.append(1)
        raise BusyError(UNCLEAR[0])

    with pytest.raises(BusyError):
        look_up()
    assert len(attempts) > 1


def test_verify_still_settles_whether_such_a_call_executed(played: Sandbox) -> None:
    attempts = []

    @mulligan.tool(verify=lambda: False)
    def send() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError(UNCLEAR[0])
        return "sent"

    assert send() == "sent"


def test_a_guess_does_not_tell_a_model_to_give_up(played: Sandbox) -> None:
    for message, is_recoverable in (("no valid credentials on file", True), ("401 Unauthorized", False)):
        failure = classify(text=message, tool="look_up")
        assert failure.remedy.value == "stop"
        assert failure.to_tool_response()["recoverable"] is is_recoverable


def test_another_model_may_answer_although_a_retry_is_doubtful(played: Sandbox) -> None:
    models = []

    @mulligan.model(fallback_models=["other"])
    def ask(model: str, messages: list[dict[str, str]]) -> str:
        models.append(model)
        if model == "first":
            raise RuntimeError("The engine went away")
        return "answer"

    assert ask("first", [{"role": "user", "content": "hello"}]) == "answer"
    assert models == ["first", "other"]
