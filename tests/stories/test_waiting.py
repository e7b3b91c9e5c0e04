"""When mulligan waits: not before a repair of a call that was never made, and not silently on the event loop."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

import mulligan
from mulligan import Policy
from mulligan.testing import sandbox

# Repairs


@mulligan.tool
def search(query: str, top_k: int = 5) -> str:
    return f"{query} {top_k}"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("functions.search", {"query": "fish"}),  # junk in the name
        ("search", '{"query": "fish",}'),  # malformed arguments
        ("search", {"query": "fish", "top_k": "5"}),  # refused by our own check
        ("search", {"query": "fish", "topK": 5}),
    ],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["call", "acall"])
def test_a_call_that_was_never_made_is_repaired_without_a_backoff(played, name, arguments, is_async) -> None:
    turn = next(iter(mulligan.turns()))
    answer = asyncio.run(turn.acall([search], name, arguments)) if is_async else turn.call([search], name, arguments)

    assert answer.value == "fish 5"
    assert played.backoffs == []
    assert [step.outcome for step in played.steps] == ["failure", "success"]


def test_a_program_that_passes_a_wrong_name_does_not_wait_either(played) -> None:
    assert search(query="fish", topK=7) == "fish 7"  # type: ignore[call-arg]
    assert played.backoffs == []


def test_a_call_that_the_tool_itself_rejected_is_repaired_after_a_backoff(played) -> None:
    @mulligan.tool(clamp=["top_k"])
    def find(top_k: int) -> int:
        if top_k > 10:
            raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
        return top_k

    assert find(50) == 10
    assert len(played.backoffs) == 1


def test_repairs_after_a_rejection_need_no_token_and_end_after_twenty_in_a_run() -> None:
    executed: list[int] = []

    @mulligan.tool(clamp=["top_k"])
    def find(top_k: int) -> int:
        executed.append(top_k)
        if top_k > 10:
            raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
        return top_k

    with sandbox(retry_tokens=0), mulligan.run("agent"):
        results = [find(50 + number) for number in range(20)]
        with pytest.raises(mulligan.AgentError) as caught:
            find(99)

    assert results == [10] * 20
    assert len(executed) == 20 * 2 + 1
    assert "the limit of 20 repairs per run is reached" in caught.value.__notes__[0]


def test_a_repair_counts_as_an_attempt() -> None:
    executed: list[int] = []

    @mulligan.tool(clamp=["top_k"], policy=Policy(attempts=2))
    def find(top_k: int) -> int:
        executed.append(top_k)
        limit = 10 if top_k > 10 else 5
        raise mulligan.AgentError(f"top_k must be {limit} or less, got {top_k}.")

    with sandbox(), pytest.raises(mulligan.AgentError):
        find(50)

    assert executed == [50, 10]


# The event loop


def failing_once() -> Callable[[], str]:
    answers = iter([ConnectionError("reset"), "rain"])

    def weather() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    return weather


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name.startswith("mulligan.")]


def test_a_sync_tool_on_the_event_loop_is_retried_once_at_once_and_warns_once(played, caplog) -> None:
    outcomes = iter([ConnectionError(), "rain", ConnectionError(), "snow"])

    @mulligan.tool(effects="none")
    def weather() -> Any:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def work() -> list[Any]:
        return [weather(), weather()]

    with caplog.at_level(logging.WARNING, "mulligan"):
        assert asyncio.run(work()) == ["rain", "snow"]

    assert played.backoffs == []
    assert warnings_of(caplog) == [
        "weather is not async and was called on the event loop, which a backoff would block. It is retried once, at "
        "once. Define it with `async def`, or call it with `await asyncio.to_thread(weather, ...)` or "
        "`await turn.acall(...)`. This warning appears once per tool."
    ]


@pytest.mark.parametrize(("status", "executed"), [(500, 2), (429, 1)])
def test_a_sync_tool_on_the_event_loop_makes_no_third_attempt_and_waits_for_no_limit(played, status, executed) -> None:
    class Refused(Exception):
        status_code = status

    attempts: list[int] = []

    @mulligan.tool(effects="none")
    def weather() -> None:
        attempts.append(1)
        raise Refused

    async def work() -> None:
        weather()

    with pytest.raises(Refused) as caught:
        asyncio.run(work())
    assert len(attempts) == executed
    assert played.backoffs == []
    assert "on the thread of an event loop" in caught.value.__notes__[0]


async def call_in_a_thread(tool: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(tool)


async def call_by_a_turn(tool: Callable[[], Any]) -> Any:
    return (await next(iter(mulligan.turns())).acall({"weather": tool}, "weather")).value


@pytest.mark.parametrize("call", [call_in_a_thread, call_by_a_turn])
def test_the_ways_that_the_warning_names_do_not_block_the_loop(played, caplog, call) -> None:
    weather = mulligan.tool(effects="none")(failing_once())
    with caplog.at_level(logging.WARNING, "mulligan"):
        assert asyncio.run(call(weather)) == "rain"

    assert len(played.backoffs) == 1
    assert warnings_of(caplog) == []


def test_a_plain_function_as_a_tool_warns_once_too(played, caplog) -> None:
    def find(name: str) -> str:
        if name != name.strip():
            raise mulligan.AgentError(f"name has spaces around it: {name!r}")
        return name

    async def work() -> None:
        turn = next(iter(mulligan.turns()))
        turn.call([find], "find", {"name": " ann "})
        turn.call([find], "find", {"name": " ben "})

    with caplog.at_level(logging.WARNING, "mulligan"):
        asyncio.run(work())

    assert played.backoffs == []
    assert len(warnings_of(caplog)) == 1


def test_a_sync_tool_without_an_event_loop_does_not_warn(played, caplog) -> None:
    assert mulligan.tool(effects="none")(failing_once())() == "rain"
    assert warnings_of(caplog) == []


# Retry tokens


def test_the_doctor_shows_the_retry_tokens_and_which_tools_used_theirs_up(tmp_path, types) -> None:
    store = str(tmp_path / "failures.db")
    program = mulligan.Mulligan()
    program.configure(store=store, policy=Policy(initial_backoff=0, retry_tokens=1))

    @program.tool(effects="none")
    def fetch() -> None:
        raise ConnectionError("reset")

    for _ in range(3):
        with pytest.raises(ConnectionError):
            fetch()
    program.close()

    facts = json.loads(types("doctor", "--store", store, "--json")[1])
    assert (facts["retry_tokens"], facts["down_after"], facts["max_run_retries"]) == (20, 5, 20)
    assert facts["retry_tokens_exhausted"] == [{"tool": "fetch", "calls": 3}]
    code, text, _ = types("doctor", "--store", store)
    assert code == 0, "used-up tokens are no problem of the store"
    assert "20 tokens per target, which is down after 5 failures in a row; 20 repairs per run" in text
    assert "fetch 3 calls" in text


# Limits that say when they clear


class LimitError(Exception):
    status_code = 429


def test_a_limit_that_clears_late_is_not_waited_for_and_the_note_says_when_it_does(played) -> None:
    @mulligan.tool(effects="none")
    def lookup(name: str) -> str:
        raise LimitError("Too many requests, try again in 8h44m")

    with pytest.raises(LimitError) as raised:
        lookup("a")
    assert len(played.steps) == 1
    assert ": it clears in 8 h 44 min" in raised.value.__notes__[0]


def test_a_used_up_quota_says_when_it_clears(played) -> None:
    @mulligan.tool(effects="none")
    def lookup(name: str) -> str:
        raise LimitError("Daily quota exceeded. It resets in 8h44m.")

    with pytest.raises(LimitError) as raised:
        lookup("a")
    assert len(played.steps) == 1
    assert "a person must act: it clears in 8 h 44 min" in raised.value.__notes__[0]


def test_a_quota_that_clears_soon_is_waited_for(played) -> None:
    attempts: list[str] = []

    @mulligan.tool(effects="none")
    def lookup(name: str) -> str:
        attempts.append(name)
        if len(attempts) < 2:
            raise LimitError("You have exhausted your capacity. Your quota will reset after 7s.")
        return name

    assert lookup("a") == "a"
    assert played.backoffs[0] >= 7.0


class UsedUpError(Exception):
    status_code = 402

    def __init__(self, seconds: int) -> None:
        super().__init__("Monthly quota exceeded.")
        self.headers = {"Retry-After": str(seconds)}


@pytest.mark.parametrize(("is_model", "seconds"), [(False, 20), (True, 80)])
def test_a_used_up_quota_whose_response_states_a_short_wait_is_waited_for(played, is_model, seconds) -> None:
    attempts: list[str] = []

    def lookup(name: str) -> str:
        attempts.append(name)
        if len(attempts) < 2:
            raise UsedUpError(seconds)
        return name

    wrapped = mulligan.model(lookup) if is_model else mulligan.tool(effects="none")(lookup)
    assert wrapped("a") == "a"
    assert seconds <= played.backoffs[0] <= (90 if is_model else 30)


@pytest.mark.parametrize(("is_model", "seconds"), [(False, 40), (True, 100)])
def test_a_used_up_quota_whose_wait_is_too_long_says_when_it_clears(played, is_model, seconds) -> None:
    def lookup(name: str) -> str:
        raise UsedUpError(seconds)

    wrapped = mulligan.model(lookup) if is_model else mulligan.tool(effects="none")(lookup)
    with pytest.raises(UsedUpError) as raised:
        wrapped("a")
    assert len(played.steps) == 1
    assert f"it clears in {'40 s' if seconds == 40 else '1 min 40 s'}" in raised.value.__notes__[0]


def test_a_used_up_quota_is_not_waited_for_beyond_the_deadline(played) -> None:
    @mulligan.tool(effects="none", timeout=10)
    def lookup(name: str) -> str:
        raise UsedUpError(20)

    with pytest.raises(UsedUpError) as raised:
        lookup("a")
    assert played.backoffs == []
    assert "it clears in 20 s" in raised.value.__notes__[0]


def test_a_model_reads_what_the_schema_of_a_tool_requires(played) -> None:
    @mulligan.tool(effects="none")
    def book(room: str, hours: int) -> str:
        raise ValueError("invalid argument")

    answer = next(iter(mulligan.turns())).call([book], "book", {"room": "A", "length": 2})
    hint = json.loads(str(answer))["hint"]
    assert hint == "Required are room and hours; missing is hours; unknown is length."
