"""Rehearsals, for users' tests."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import api
from mulligan.core.events import ContextCompacted
from mulligan.core.failure import SettingsError
from mulligan.testing import Sandbox, assert_sanitized, sandbox

script: list[Exception] = []


class RateLimited(Exception):
    status_code = 429
    headers = {"retry-after": "20"}  # noqa: RUF012 - as HTTP clients have it


@mulligan.tool(effects="none")
def weather(city: str) -> str:
    """Decorated when this module was imported, long before any rehearsal."""
    if script:
        raise script.pop(0)
    return f"rain in {city}"


@mulligan.tool(effects="none")
async def async_weather(city: str) -> str:
    return weather.__wrapped__(city)  # type: ignore[attr-defined,no-any-return]


@pytest.fixture(autouse=True)
def a_default_nobody_has_used(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(api.default, "_components", None)
    monkeypatch.setattr(api.default, "_is_off", False)
    script.clear()
    yield
    api.default.close()


def test_a_wait_is_recorded_and_takes_no_time() -> None:
    script.append(RateLimited())
    with sandbox() as played:
        assert weather("Oslo") == "rain in Oslo"
    assert played.backoffs == [20.0]


def test_an_async_wait_is_recorded_and_takes_no_time() -> None:
    script.append(RateLimited())
    with sandbox() as played:
        assert asyncio.run(async_weather("Oslo")) == "rain in Oslo"
    assert played.backoffs == [20.0]


def test_every_event_step_call_and_run_can_be_looked_at() -> None:
    script.append(RateLimited())
    with sandbox() as played, mulligan.run("agent"):
        weather("Oslo")
    assert [event.name for event in played.events] == [
        "run.started",
        "step.started",
        "step.ended",
        "recovery.planned",
        "step.started",
        "step.ended",
        "run.ended",
    ]
    assert [step.outcome for step in played.steps] == ["failure", "success"]
    assert [call.outcome_label for call in played.calls] == ["recovered by retry"]
    assert [history.run.agent for history in played.runs] == ["agent"]


def test_runs_can_be_looked_at_in_the_middle_and_come_in_order() -> None:
    with sandbox() as played:
        for n in range(3):
            with mulligan.run(f"agent-{n}"):
                weather("Oslo")
            assert [history.run.agent for history in played.runs] == [f"agent-{each}" for each in range(n + 1)]


def test_nothing_of_the_machine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mulligan.toml").write_text("this is not toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MULLIGAN", "off")
    monkeypatch.setenv("MULLIGAN_ATTEMPTS", "1")
    script.append(RateLimited())
    with sandbox() as played:
        assert weather("Oslo") == "rain in Oslo"
    assert len(played.steps) == 2


def test_settings_are_those_that_are_given() -> None:
    script.append(RateLimited())
    with sandbox(attempts=1, agent="mine") as played, pytest.raises(RateLimited):
        weather("Oslo")
    assert played.runs[0].run.agent == "mine"
    with pytest.raises(SettingsError):
        Sandbox(attmepts=1)


def test_being_off_can_be_rehearsed() -> None:
    with sandbox(enabled=False) as played:
        assert weather("Oslo") == "rain in Oslo"
    assert played.events == []


def test_the_default_is_as_it_was_afterwards_even_after_an_error() -> None:
    before = api.default._components, api.default._is_off
    with sandbox():
        weather("Oslo")
    assert (api.default._components, api.default._is_off) == before
    with pytest.raises(KeyError), sandbox():
        raise KeyError
    assert (api.default._components, api.default._is_off) == before


def test_rehearsals_can_be_nested_and_do_not_hear_each_other() -> None:
    with sandbox() as outer:
        weather("Oslo")
        with sandbox() as inner:
            weather("Rome")
        weather("Bonn")
    assert [step.arguments["city"] for step in outer.steps] == ["Oslo", "Bonn"]
    assert [step.arguments["city"] for step in inner.steps] == ["Rome"]


def test_a_rehearsal_has_a_mulligan_of_its_own() -> None:
    played = Sandbox()
    assert played.mulligan.tool(lambda: 1)() == 1
    assert len(played.steps) == 1
    assert api.default._components is None


def test_code_that_configures_itself_can_be_rehearsed() -> None:
    with sandbox() as played:
        mulligan.configure(store="/somewhere/in/production.db")
        weather("Oslo")
    assert len(played.runs) == 1
    mulligan.configure(store="memory:")  # and afterwards it is as if it had not been


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\x00b", "\u202egnp.exe"])
def test_text_that_may_not_be_shown_to_a_model_is_named(text: Any) -> None:
    assert_sanitized("Ask for 10, then page with offset.")
    with pytest.raises(AssertionError, match="unsafe text"):
        assert_sanitized(text)


# Scripted failures


class Shop:
    @mulligan.tool(effects="none")
    def order(self, item: str) -> str:
        return f"{item} ordered"

    @staticmethod
    @mulligan.tool(effects="none")
    def prices() -> str:
        return "prices"

    @classmethod
    @mulligan.tool(effects="none")
    def open_shop(cls) -> str:
        return cls.__name__


@mulligan.tool(effects="none")
def count_up(limit: int) -> Iterator[int]:
    yield from range(limit)


@mulligan.tool(effects="none")
async def count_slowly(limit: int) -> AsyncIterator[int]:
    for number in range(limit):
        yield number


@mulligan.model
def answer(messages: list[dict[str, str]]) -> str:
    return f"an answer to {messages[-1]['content']}"


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return outer


@logged
@mulligan.tool(effects="none")
def search(query: str) -> list[str]:
    return [query]


async def collect_slowly(limit: int) -> list[int]:
    return [number async for number in count_slowly(limit)]


@pytest.mark.parametrize(
    ("tool", "call", "result"),
    [
        (weather, lambda: weather("Oslo"), "rain in Oslo"),
        (async_weather, lambda: asyncio.run(async_weather("Oslo")), "rain in Oslo"),
        (Shop.order, lambda: Shop().order("tea"), "tea ordered"),
        (Shop().order, lambda: Shop().order("tea"), "tea ordered"),
        (Shop.prices, Shop.prices, "prices"),
        (Shop.open_shop, Shop.open_shop, "Shop"),
        (count_up, lambda: list(count_up(2)), [0, 1]),
        (count_slowly, lambda: asyncio.run(collect_slowly(2)), [0, 1]),
        (answer, lambda: answer([{"role": "user", "content": "hello"}]), "an answer to hello"),
        (search, lambda: search("fish"), ["fish"]),
    ],
    ids=["function", "async", "method", "bound method", "static", "class", "stream", "async stream", "model", "outer"],
)
def test_script_fails_the_first_attempts_of_any_wrapped_function(tool: Any, call: Any, result: Any) -> None:
    with sandbox() as played:
        played.script(tool, fail_with=[TimeoutError(), ConnectionResetError()])
        assert call() == result
        assert [step.outcome for step in played.steps] == ["failure", "failure", "success"]
        assert len(played.backoffs) == 2
    with sandbox() as later:
        assert call() == result
    assert [step.outcome for step in later.steps] == ["success"]


def test_script_counts_attempts_over_all_calls_and_none_executes_the_function() -> None:
    with sandbox() as played:
        played.script(weather, fail_with=[None, TimeoutError, None, None])
        assert [weather(city) for city in ("Oslo", "Rome", "Bonn")] == ["rain in Oslo", "rain in Rome", "rain in Bonn"]
        assert [(step.arguments["city"], step.outcome) for step in played.steps] == [
            ("Oslo", "success"),
            ("Rome", "failure"),
            ("Rome", "success"),
            ("Bonn", "success"),
        ]


def test_script_returns_error_responses_and_a_result_in_place_of_the_function() -> None:
    with sandbox() as played:
        played.script(weather, fail_with=[{"success": False, "error": "rate limit exceeded"}], result="sun")
        assert weather("Oslo") == "sun"
        assert weather("Rome") == "sun"
        played.assert_failed("tool/rate_limit", weather)
        played.script(async_weather, fail_with=[{"error": "rate limit exceeded"}], result="sun")
        assert asyncio.run(async_weather("Oslo")) == "sun"
        played.assert_recovered(async_weather)
        played.script(count_up, fail_with=ConnectionError(), result=[7, 8])
        assert list(count_up(2)) == [7, 8]
        played.script(count_slowly, result=[7, 8])
        assert asyncio.run(collect_slowly(2)) == [7, 8]


def test_script_replaces_the_requests_of_a_wrapped_client() -> None:
    class Completions:
        def create(self, **request: Any) -> dict[str, Any]:
            raise AssertionError("a test must not reach the provider")

    class Chat:
        completions = Completions()

    class Client:
        chat = Chat()

    reply = {"choices": [{"message": {"role": "assistant", "content": "hello"}}]}
    with sandbox() as played:
        client = mulligan.wrap_client(Client())
        played.script(client.chat.completions.create, fail_with=RateLimited(), result=reply)
        assert client.chat.completions.create(model="small", messages=[]) == reply
        assert played.backoffs == [20.0]
        played.assert_failed("model/rate_limit")


def test_script_can_fail_every_attempt() -> None:
    with sandbox() as played:
        played.script(weather, fail_with=itertools.repeat(TimeoutError))
        with pytest.raises(TimeoutError):
            weather("Oslo")
    assert len(played.steps) == 8


def test_later_script_plays_first_and_all_end_with_the_sandbox() -> None:
    with sandbox() as played:
        played.script(weather, fail_with=KeyError("first"))
        played.script(weather, fail_with=TimeoutError())
        with pytest.raises(KeyError, match="first"):
            weather("Oslo")
        assert [step.failure.exception for step in played.steps if step.failure] == ["TimeoutError", "KeyError"]
    with sandbox():
        assert weather("Oslo") == "rain in Oslo"


def test_script_refuses_a_function_that_is_not_wrapped() -> None:
    with sandbox() as played, pytest.raises(SettingsError, match=r"<lambda> is not wrapped. Decorate it"):
        played.script(lambda: 1, fail_with=TimeoutError())


# Declarations of the program


class PauseError(Exception):
    """Steers the program."""


@pytest.fixture
def configured_program() -> Iterator[None]:
    mulligan.configure(control_flow=[PauseError], mode="observe")
    yield
    mulligan.configure(control_flow=[], mode="repair")


@pytest.mark.usefixtures("configured_program")
def test_what_the_program_declares_about_its_code_applies_in_a_sandbox() -> None:
    with sandbox() as played:
        played.script(weather, fail_with=[PauseError(), TimeoutError()])
        with pytest.raises(PauseError):
            weather("Oslo")
        assert weather("Oslo") == "rain in Oslo"  # retried: the mode is no declaration
        assert [step.outcome for step in played.steps] == ["cancelled", "failure", "success"]
    with sandbox(control_flow=[]) as played:
        played.script(weather, fail_with=PauseError())
        with pytest.raises(PauseError):
            weather("Oslo")
        played.assert_unrecovered(tool=weather)


# The clock


def test_advance_lets_time_pass_for_probes_and_records() -> None:
    with sandbox(attempts=1) as played:
        guarded = mulligan.tool(effects="none", circuit_breaker=True)(lambda: "up")
        played.script(guarded, fail_with=[ConnectionError()] * 5)
        for _ in range(5):
            with pytest.raises(ConnectionError):
                guarded()
        with pytest.raises(mulligan.AgentError, match="target is down"):
            guarded()
        played.advance(60)
        assert guarded() == "up"
        started = [step.started_at for step in played.steps]
        assert started[-1] - started[0] > 60_000
        with pytest.raises(SettingsError, match=r"Invalid seconds -1. Time advances by 0 or more."):
            played.advance(-1)


def test_compactions_of_a_session_have_the_time_of_the_sandbox() -> None:
    with sandbox() as played:
        with mulligan.session() as session:
            session.mark_compacted()
            played.advance(3600)
            session.mark_compacted()
        first, second = [event.compaction.at for event in played.events if isinstance(event, ContextCompacted)]
    assert 3_600_000 <= second - first < 3_601_000


# Assertions


def test_assert_recovered_needs_a_failure_and_the_recovery_of_all() -> None:
    with sandbox() as played:
        weather("Oslo")
        with pytest.raises(AssertionError, match="No call failed, so none recovered"):
            played.assert_recovered()
        played.script(weather, fail_with=TimeoutError())
        weather("Oslo")
        played.assert_recovered()
        played.assert_recovered(weather)
        played.assert_recovered("weather")
        with pytest.raises(AssertionError, match="No call of search failed"):
            played.assert_recovered(search)
        played.script(search, fail_with=PermissionError("forbidden"))
        with pytest.raises(PermissionError):
            search("fish")
        with pytest.raises(AssertionError, match=r"1 call did not recover: search \(tool/permission_denied\)"):
            played.assert_recovered()
        played.assert_recovered(weather)


def test_assert_recovered_counts_a_later_call_that_corrected_the_failed_one() -> None:
    with sandbox() as played, mulligan.run("agent"):
        played.script(search, fail_with=ValueError("no such index"))
        try:
            search("fish")
        except ValueError as error:
            with mulligan.correcting(error):
                search("fish")
    played.assert_recovered(search)


def test_assert_failed_and_assert_unrecovered_tell_kinds_and_tools_apart() -> None:
    with sandbox() as played:
        with pytest.raises(AssertionError, match=r"No attempt failed with the kind 'tool/timeout'\. No call failed\."):
            played.assert_failed("tool/timeout")
        played.script(weather, fail_with=TimeoutError())
        weather("Oslo")
        played.assert_failed("tool/timeout")
        played.assert_failed(tool=weather)
        expected = r"No attempt failed with the kind 'tool/rate_limit'\. Failed calls: weather \(tool/timeout\)\."
        with pytest.raises(AssertionError, match=expected):
            played.assert_failed("tool/rate_limit")
        with pytest.raises(AssertionError, match="No call stayed unrecovered"):
            played.assert_unrecovered()
        played.script(weather, fail_with=PermissionError("forbidden"))
        with pytest.raises(PermissionError):
            weather("Oslo")
        played.assert_unrecovered("tool/permission_denied", weather)
        with pytest.raises(AssertionError, match="No call of search stayed unrecovered"):
            played.assert_unrecovered(tool="search")


def test_failed_assertion_shows_the_run_like_mulligan_show() -> None:
    with sandbox() as played, mulligan.run("travel-agent"):
        played.script(weather, fail_with=PermissionError("no access to Oslo"))
        with pytest.raises(PermissionError):
            weather("Oslo")
    with pytest.raises(AssertionError) as error:
        played.assert_recovered()
    text = str(error.value)
    assert "1 call in 1 attempt, 0 of 1 failed calls recovered" in text
    assert "travel-agent" in text
    assert "no access to Oslo" in text


def test_no_new_patterns_without_a_baseline_means_no_failure() -> None:
    with sandbox() as played:
        weather("Oslo")
        played.assert_no_new_patterns()
        played.script(weather, fail_with=TimeoutError("no answer in 5 s"))
        weather("Oslo")
        with pytest.raises(AssertionError, match=r"New failure patterns:\n  pat_\w+ weather tool/timeout no answer"):
            played.assert_no_new_patterns()


def test_no_new_patterns_accepts_those_of_the_baseline_and_updates_it(tmp_path: Path) -> None:
    baseline = tmp_path / "baselines" / "weather.txt"

    def play(*errors: Exception, update: bool = False) -> None:
        with sandbox() as played:
            played.should_update_baselines = update
            played.script(weather, fail_with=errors)
            weather("Oslo")
            played.assert_no_new_patterns(baseline)

    with pytest.raises(AssertionError, match=r"weather\.txt: pytest --mulligan-update-baselines"):
        play(TimeoutError("no answer in 5 s"))
    play(TimeoutError("no answer in 5 s"), update=True)
    play(TimeoutError("no answer in 9 s"))
    play()
    with pytest.raises(AssertionError, match="connection refused"):
        play(TimeoutError("no answer in 9 s"), ConnectionRefusedError("connection refused"))
    play(ConnectionRefusedError("connection refused"), update=True)
    play(TimeoutError("no answer in 9 s"), ConnectionRefusedError("connection refused"))
    assert len(baseline.read_text().splitlines()) == 2
