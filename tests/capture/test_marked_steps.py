"""Steps that a program marks itself: attempts of one call, values, nested steps, decorated functions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import mulligan
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DEFAULT_TENANT, PatternQuery
from mulligan.core.attempts import SENT_NAME
from mulligan.core.failure import Remedy, SettingsError
from mulligan.core.records import Step
from mulligan.testing import Sandbox


def read_steps(played: Sandbox) -> list[Step]:
    (history,) = played.runs
    return list(history.steps)


# Attempts


def try_thrice(run: Any, successes: tuple[bool, ...], start: Any) -> None:
    """Make attempts until one succeeds: `start` marks the step of an attempt."""
    for number, is_success in enumerate(successes, start=1):
        try:
            with start(run, number):
                if not is_success:
                    raise TimeoutError("no answer in 30 s")
            return
        except TimeoutError:
            pass


STARTS: dict[str, Any] = {
    "suffix": lambda run, number: run.step("tool", f"fetch_attempt_{number}"),
    "suffix from 0": lambda run, number: run.step("tool", f"fetch_attempt_{number - 1}"),
    "retry suffix": lambda run, number: run.step("tool", "fetch" if number == 1 else f"fetch (retry {number - 1})"),
    "attempt": lambda run, number: run.step("tool", "fetch", attempt=number),
    "attempt from 0": lambda run, number: run.step("tool", "fetch", attempt=number - 1),
    "call": lambda run, number: run.step("tool", "fetch", call=None if number == 1 else 1),
}


@pytest.mark.parametrize("way", STARTS)
def test_attempts_that_a_program_numbers_are_one_call(played: Sandbox, way: str) -> None:
    with mulligan.run("agent") as run:
        try_thrice(run, (False, False, True), STARTS[way])
        assert run.status == "recovered"
    steps = read_steps(played)
    assert [(step.name, step.call, step.attempt) for step in steps] == [
        ("fetch", 1, 1),
        ("fetch", 1, 2),
        ("fetch", 1, 3),
    ]
    assert [step.recovery and step.recovery.remedy for step in steps] == [None, Remedy.RETRY, Remedy.RETRY]
    total = played.store.stats(DEFAULT_TENANT, StatsQuery(now=0)).total
    assert (total.calls, total.recovered, total.attempts) == (1, 1, 3)
    (pattern,) = played.store.patterns(DEFAULT_TENANT, PatternQuery())
    assert (pattern.tool, pattern.occurrences, pattern.recovered) == ("fetch", 2, 2)


@pytest.mark.parametrize("way", STARTS)
def test_call_of_which_all_attempts_fail_is_one_unrecovered_call(played: Sandbox, way: str) -> None:
    with mulligan.run("agent") as run:
        try_thrice(run, (False, False, False), STARTS[way])
        assert run.status == "failure"
        with run.step("tool", "send"):
            pass
        assert run.status == "partial"
    assert [call.has_succeeded for call in played.calls] == [False, True]
    total = played.store.stats(DEFAULT_TENANT, StatsQuery(now=0)).total
    assert (total.calls, total.unrecovered) == (2, 1)


def test_step_of_an_earlier_attempt_names_the_call(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        first = run.step("tool", "fetch")
        with pytest.raises(TimeoutError), first:
            raise TimeoutError("30 s")
        second = run.step("tool", "fetch", call=first)
        with pytest.raises(TimeoutError), second:
            raise TimeoutError("30 s")
        with run.step("tool", "fetch", call=second):
            pass
    assert run.status == "recovered"
    assert [(step.call, step.attempt) for step in read_steps(played)] == [(1, 1), (1, 2), (1, 3)]


def test_failure_recorded_after_an_attempt_is_recovered_by_the_next_one(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        with run.step("tool", "fetch_attempt_1") as step:
            pass
        run.record_failure("tool", "invalid_response", "empty", step=step)
        with run.step("tool", "fetch_attempt_2"):
            pass
        assert run.status == "recovered"
    (call,) = played.calls
    assert [step.outcome for step in call.steps] == ["failure", "success"]


def test_equal_steps_without_arguments_are_calls_of_their_own(played: Sandbox) -> None:
    """Nothing tells whether the second one works on the same item."""
    with mulligan.run("agent") as run:
        try_thrice(run, (False, True), lambda run, number: run.step("tool", "fetch"))
    assert run.status == "partial"
    assert [step.call for step in read_steps(played)] == [1, 2]


@pytest.mark.parametrize("record", ["full", "shape"])
@pytest.mark.parametrize(("pages", "status"), [((3, 3), "recovered"), (("abc", "xyz"), "partial")])
def test_equal_arguments_link_a_failed_step_to_the_one_that_recovered_it(
    played: Sandbox, pages: tuple[Any, Any], status: str, record: Any
) -> None:
    with mulligan.run("agent", record=record) as run:
        start = lambda run, number: run.step("tool", "fetch", arguments={"page": pages[number - 1]})  # noqa: E731
        try_thrice(run, (False, True), start)
    assert run.status == status
    assert [step.call for step in read_steps(played)] == [1, 2]


def test_sent_name_stays_in_the_metadata(played: Sandbox) -> None:
    with mulligan.run("agent") as run, run.step("tool", "fetch_attempt_1", page=3):
        pass
    (step,) = read_steps(played)
    assert (step.name, step.metadata) == ("fetch", {"page": 3, SENT_NAME: "fetch_attempt_1"})


@pytest.mark.parametrize("attempt", [-1, 10**9, "second", None, 2.5])
def test_attempt_that_is_no_number_is_metadata(played: Sandbox, attempt: Any) -> None:
    with mulligan.run("agent") as run, run.step("tool", "fetch", attempt=attempt):
        pass
    (step,) = read_steps(played)
    assert (step.attempt, (step.metadata or {}).get("attempt")) == (1, attempt)


# Values


def test_step_has_the_metadata_result_and_usage_that_were_set_in_it(played: Sandbox) -> None:
    with mulligan.run("agent") as run, run.step("model", "chat", temperature=0) as step:
        step.add_metadata({"rows": 3}, source="cache")
        step.set_result({"answer": "yes"})
        step.set_usage({"prompt_tokens": 900, "completion_tokens": 20}, model="small-1", cost=0.002)
    (kept,) = read_steps(played)
    assert kept.metadata == {"temperature": 0, "rows": 3, "source": "cache", "model": "small-1", "cost": 0.002}
    assert kept.result == {"answer": "yes"}
    assert (kept.tokens, kept.cost_nanos) == ({"input": 900, "output": 20}, 2_000_000)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input": 9, "output": 2, "reasoning": 1}, {"input": 9, "output": 2, "reasoning": 1}),
        ({"usage": {"input_tokens": 9, "output_tokens": 2}}, {"input": 9, "output": 2}),
        ({"input": -1, "output": "many"}, None),
        (object(), None),
        ("9 tokens", None),
        (None, None),
    ],
)
def test_usage_of_any_form_is_read_and_anything_else_left_out(played: Sandbox, usage: Any, tokens: Any) -> None:
    with mulligan.run("agent") as run, run.step("model", "chat") as step:
        step.set_usage(usage)
    assert read_steps(played)[0].tokens == tokens


def test_counts_may_be_passed_by_name(played: Sandbox) -> None:
    with mulligan.run("agent") as run, run.step("model", "chat") as step:
        step.set_usage(input=900, output=20)
    assert read_steps(played)[0].tokens == {"input": 900, "output": 20}


def test_values_are_copied_when_they_are_set(played: Sandbox) -> None:
    arguments, result = {"rows": [1]}, [1]
    with mulligan.run("agent") as run, run.step("tool", "fetch", arguments=arguments) as step:
        step.set_result(result)
        arguments["rows"].append(2)
        result.append(2)
    (kept,) = read_steps(played)
    assert (kept.arguments, kept.result) == ({"rows": [1]}, [1])


def test_in_shape_no_text_of_a_step_is_recorded(played: Sandbox) -> None:
    with mulligan.run("agent", record="shape") as run:
        run.metadata["customer"] = "Ada Lovelace"
        with run.step("tool", "fetch", arguments={"name": "Ada Lovelace"}) as step:
            step.set_result("Ada Lovelace")
            step.add_metadata(who="Ada Lovelace")
    assert "Ada" not in str(played.runs)


def test_what_is_set_after_the_end_of_a_step_changes_nothing_and_is_logged(
    played: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with mulligan.run("agent") as run:
        with run.step("tool", "fetch") as step:
            pass
        step.set_result(1)
        step.add_metadata(rows=3)
    (kept,) = read_steps(played)
    assert (kept.result, kept.metadata) == (None, None)
    assert "set_result of the step 'fetch' was called after its end" in caplog.text


def test_status_of_a_run_or_step_cannot_be_set_and_says_what_to_do(played: Sandbox) -> None:
    with mulligan.run("agent") as run, run.step("tool", "fetch") as step:
        for target in (run, step):
            with pytest.raises(AttributeError, match="Call record_failure"):
                target.status = "failure"  # type: ignore[assignment]
        assert step.status is None
    assert (run.status, step.status) == ("success", "success")


# Nested, asynchronous and decorated steps


def test_step_inside_a_step_names_its_parent_in_any_thread(played: Sandbox) -> None:
    def fetch(step: Any) -> None:
        with step.step("tool", "inner"):
            pass

    with mulligan.run("agent") as run, run.step("plan", "outer") as step:
        thread = threading.Thread(target=fetch, args=(step,))
        thread.start()
        thread.join()
    assert {kept.name: kept.parent for kept in read_steps(played)} == {"outer": None, "inner": 1}


def test_attempts_of_async_steps_are_one_call(played: Sandbox) -> None:
    async def work() -> None:
        async with mulligan.run("agent") as run:
            for number in (1, 2):
                try:
                    async with run.step("tool", f"fetch-attempt-{number}") as step:
                        await asyncio.sleep(0)
                        step.set_result(number)
                        if number == 1:
                            raise TimeoutError("30 s")
                except TimeoutError:
                    pass

    asyncio.run(work())
    (call,) = played.calls
    assert [(step.attempt, step.outcome, step.result) for step in call.steps] == [(1, "failure", 1), (2, "success", 2)]


def test_decorated_function_is_a_step_in_each_call(played: Sandbox) -> None:
    with mulligan.run("agent") as run:

        @run.step("tool", "double")
        def double(number: int) -> int:
            """Double a number."""
            if number < 0:
                raise ValueError("negative")
            return 2 * number

        @run.step("plan", "think")
        async def think(about: str) -> str:
            return about

        assert (double(3), double(number=4), asyncio.run(think("it"))) == (6, 8, "it")
        with pytest.raises(ValueError, match="negative"):
            double(-1)
        with pytest.raises(TypeError):
            double()  # type: ignore[call-arg]
        assert double.__doc__ == "Double a number."
    steps = read_steps(played)
    assert [(step.name, step.arguments, step.result, step.outcome) for step in steps] == [
        ("double", {"number": 3}, 6, "success"), ("double", {"number": 4}, 8, "success"),
        ("think", {"about": "it"}, "it", "success"), ("double", {"number": -1}, None, "failure"),
        ("double", None, None, "failure"),
    ]  # fmt: skip


def test_generator_cannot_be_a_step(played: Sandbox) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with mulligan.run("agent") as run, pytest.raises(SettingsError, match="inside it"):
        run.step("tool", "numbers")(numbers)


# Runs


def test_metadata_tags_and_user_of_a_run_may_be_set_until_it_ends(played: Sandbox) -> None:
    with mulligan.run("agent", metadata={"team": "a"}, user="u-1", tags=["nightly"]) as run:
        assert (run.user, run.tags) == ("u-1", ["nightly"])
        run.metadata["order"] = 7
        run.add_metadata({"team": "b"}, shop="Oslo")
        run.user = "u-2"
        run.tags = [*run.tags, "eu"]
    (history,) = played.runs
    assert history.run.metadata == {
        "team": "b", "order": 7, "shop": "Oslo", "user": "u-2", "tags": ["nightly", "eu"],
    }  # fmt: skip
    assert json.dumps(history.run.metadata)


def test_metadata_of_a_run_may_be_replaced(played: Sandbox) -> None:
    with mulligan.run("agent", metadata={"team": "a"}) as run:
        run.metadata = {"order": object}
        run.user = None
        assert run.tags == []
    assert set(played.runs[0].run.metadata or {}) == {"order"}


# Failures recorded after the end of their step


def try_call(run: Any, outcomes: str, call: int | None = None) -> int:
    """Record the attempts of one call, `x` for a failed one, and return its number."""
    for outcome in outcomes:
        with contextlib.suppress(TimeoutError), run.step("tool", "search", arguments={"id": 1}, call=call) as step:
            call = call or step.step_id
            if outcome == "x":
                raise TimeoutError("Read timed out")
    assert call is not None
    return call


@pytest.mark.parametrize("attempts", [".", "x.", "xx."])
def test_attempts_recover_the_calls_that_their_first_attempt_repeated(played: Sandbox, attempts: str) -> None:
    with mulligan.run("agent") as run:
        first = try_call(run, "x.")
        run.record_failure("tool", "no_results", step_id=first + 1)
        second = try_call(run, "x")
        third = try_call(run, attempts)
        assert run.status == "recovered"
    (history,) = played.runs
    links = [(link.failed_call, link.recovering_call) for link in history.links if link.failed_call != third]
    assert links == [(first, third), (second, third)]


def test_failure_recorded_at_the_end_of_a_run_is_recovered_by_the_calls_after_its_step(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        first, second = try_call(run, "."), try_call(run, "x.")
        run.record_failure("tool", "no_results", step_id=first)
        assert run.status == "recovered"
    (history,) = played.runs
    assert [(link.failed_call, link.recovering_call) for link in history.links] == [(first, second), (second, second)]
