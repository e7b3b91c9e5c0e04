"""run, step and record_failure."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import gc
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, cast
from weakref import WeakValueDictionary

import pytest
from recounting import rebuild

import mulligan
from mulligan.capture.run import ActiveRun
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.failure import SettingsError
from mulligan.core.records import Status
from mulligan.report.run_text import status_of
from mulligan.testing import Sandbox, sandbox


@pytest.fixture
def played() -> Iterator[Sandbox]:
    with sandbox(agent="default-agent", environment="test") as played:
        yield played


def test_a_run_says_who_did_what_and_where(played: Sandbox) -> None:
    with mulligan.run("weather-agent", version="2", context="rain in Oslo", metadata={"user": 7}):
        pass
    run = played.runs[0].run
    assert (run.agent, run.version, run.environment) == ("weather-agent", "2", "test")
    assert (run.context, run.metadata, run.end_reason) == ("rain in Oslo", {"user": 7}, "finished")


def test_a_run_without_a_name_is_that_of_the_agent_in_the_settings(played: Sandbox) -> None:
    with mulligan.run(environment="production"):
        pass
    assert (played.runs[0].run.agent, played.runs[0].run.environment) == ("default-agent", "production")


def test_steps_say_inside_which_step_they_happened(played: Sandbox) -> None:
    search = mulligan.tool(name="search")(lambda: 1)
    with mulligan.run("agent") as run:
        with run.step("plan", "outer"):
            with run.step("custom", "inner"):
                search()
            search()
        search()
    steps = {step.seq: step for step in played.steps}
    assert [(steps[n].name, steps[n].parent) for n in sorted(steps)] == [
        ("outer", None),
        ("inner", 1),
        ("search", 2),
        ("search", 1),
        ("search", None),
    ]


def test_a_step_keeps_what_is_known_about_it(played: Sandbox) -> None:
    with mulligan.run("agent") as run, run.step("respond", "write", tone="kind") as step:
        step.metadata["words"] = 12
    assert played.steps[0].metadata == {"tone": "kind", "words": 12}
    assert played.steps[0].type == "respond"
    assert played.steps[0].duration_seconds > 0


@pytest.mark.parametrize("type", ["run", "thought", ""])
def test_a_step_of_no_known_type_is_refused(played: Sandbox, type: str) -> None:
    with mulligan.run("agent") as run, pytest.raises(SettingsError, match="plan, tool, model, retrieval"):
        run.step(type)  # type: ignore[arg-type]


# Status


def test_a_run_in_which_nothing_failed_is_a_success(played: Sandbox) -> None:
    with mulligan.run("agent") as run, run.step("plan"):
        pass
    assert run.status == "success"


def test_a_run_whose_failed_call_was_overcome_is_recovered(played: Sandbox) -> None:
    errors = [ConnectionError("reset")]

    @mulligan.tool(effects="none")
    def fetch() -> int:
        if errors:
            raise errors.pop()
        return 1

    with mulligan.run("agent") as run:
        fetch()
        assert run.status == "recovered"
    assert run.status == "recovered"


def test_a_run_that_finished_though_a_call_was_given_up_is_partial(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        with run.step("tool", "fetch"):
            pass
        with pytest.raises(ValueError, match="no"), run.step("tool", "search"):
            raise ValueError("no")
        assert run.status == "partial"
    assert run.status == "partial"


def test_a_run_in_which_no_call_succeeded_is_a_failure_whatever_was_planned_and_said(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        with run.step("plan", "think"):
            pass
        with pytest.raises(ValueError, match="no"), run.step("tool", "search"):
            raise ValueError("no")
        with run.step("respond", "say sorry"):
            pass
    assert run.status == "failure"


def test_a_run_that_an_exception_left_has_failed(played: Sandbox) -> None:
    error = ValueError("outside any step")
    with pytest.raises(ValueError, match="outside") as left, mulligan.run("agent") as run:
        raise error
    assert left.value is error
    assert run.status == "failure"
    (step,) = played.steps
    assert (step.type, step.name) == ("run", "agent")
    assert step.failure is not None
    assert step.failure.kind == "orchestration/uncaught_exception"
    assert played.runs[0].run.end_reason == "raised"


def test_an_exception_that_a_step_tells_of_is_not_told_again_by_its_run(played: Sandbox) -> None:
    @mulligan.tool
    def search() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), mulligan.run("agent") as run:
        search()
    assert [step.type for step in played.steps] == ["tool"]
    assert run.status == "failure"


def test_an_exception_that_leaves_two_runs_is_told_by_both(played: Sandbox) -> None:
    with pytest.raises(ValueError, match="no"), mulligan.run("parent"), mulligan.run("child"):
        raise ValueError("no")
    assert [(step.type, step.name) for step in played.steps] == [("run", "child"), ("run", "parent")]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit(1), SystemExit("no key")])
def test_a_run_that_was_cut_short_is_abandoned_and_its_steps_have_not_failed(
    played: Sandbox, error: BaseException
) -> None:
    with pytest.raises(type(error)), mulligan.run("agent") as run, run.step("plan"):
        raise error
    assert run.status == "failure"
    assert played.runs[0].run.end_reason == "abandoned"
    assert [(step.outcome, step.failure) for step in played.steps] == [("cancelled", None)]


@pytest.mark.parametrize("timeout", [None, 30.0], ids=["short", "long"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_call_outside_any_run_that_was_cut_short_is_cancelled_and_no_failure(
    played: Sandbox, error: BaseException, timeout: float | None
) -> None:
    @mulligan.tool(timeout=timeout)
    def wait() -> None:
        raise error

    @mulligan.tool
    def items() -> Iterator[int]:
        yield 1
        raise error

    with pytest.raises(type(error)):
        wait()
    with pytest.raises(type(error)):
        list(items())
    assert [each.run.end_reason for each in played.runs] == ["finished", "finished"]
    assert [step.outcome for step in played.steps] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("error", [GeneratorExit(), SystemExit(), SystemExit(0)])
def test_a_run_that_is_left_in_order_has_finished(played: Sandbox, error: BaseException) -> None:
    with pytest.raises(type(error)), mulligan.run("agent") as run:
        raise error
    assert run.status == "success"
    assert played.runs[0].run.end_reason == "finished"


def test_a_generator_that_is_closed_ends_its_run_in_order(played: Sandbox) -> None:
    def items() -> Iterator[int]:
        with mulligan.run("agent"):
            yield from range(9)

    reading = items()
    assert next(reading) == 0
    reading.close()  # type: ignore[attr-defined]
    assert played.runs[0].run.end_reason == "finished"


def test_a_run_whose_task_is_cancelled_is_abandoned(played: Sandbox) -> None:
    async def work() -> None:
        async with mulligan.run("agent"):
            await asyncio.Event().wait()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(), 0.01)

    asyncio.run(main())
    assert [(history.run.end_reason, history.steps) for history in played.runs] == [("abandoned", ())]


# Calls that are cut off


@mulligan.tool(effects="none")
async def fetch(page: str, *, should_answer: bool = False) -> str:
    await asyncio.sleep(0 if should_answer else 60)
    return page


@mulligan.tool(effects="none", timeout=30.0)
async def fetch_by_deadline(page: str) -> str:
    return str(await fetch.__wrapped__(page))  # type: ignore[attr-defined]


async def cut_off_by_wait_for(call: Callable[[], Any]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call(), 0.01)


async def cut_off_by_timeout(call: Callable[[], Any]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await call()


async def cut_off_by_cancel(call: Callable[[], Any]) -> None:
    task = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


async def cut_off_by_sibling(call: Callable[[], Any]) -> None:
    async def fail() -> None:
        raise LookupError("no page")

    with contextlib.suppress(LookupError, ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(call())
            await asyncio.sleep(0)
            group.create_task(fail())


CUT_OFFS = [cut_off_by_wait_for, cut_off_by_timeout, cut_off_by_cancel, cut_off_by_sibling]


def play_run(work: Callable[[ActiveRun], Any], **options: Any) -> ActiveRun:
    async def main() -> ActiveRun:
        async with mulligan.run("agent", **options) as run:
            await work(run)
        return run

    return asyncio.run(main())


def assert_status(played: Sandbox, run: ActiveRun, status: Status) -> None:
    """Assert the status of the only run: live, as derived from the records, as stored, and after a rebuild."""
    (history,) = played.runs
    assert (run.status, status_of(history)) == (status, status)
    for _ in range(2):
        assert played.store.runs(DEFAULT_TENANT, RunQuery(status=status))
        rebuild(played.store, DEFAULT_TENANT)


@pytest.mark.parametrize("record", ["full", "shape"])
@pytest.mark.parametrize("tool", [fetch, fetch_by_deadline], ids=["first attempt", "planned attempt"])
@pytest.mark.parametrize("cut_off", CUT_OFFS)
def test_run_whose_call_was_cut_off_is_partial(played: Sandbox, cut_off: Any, tool: Any, record: Any) -> None:
    run = play_run(lambda run: cut_off(lambda: tool("a")), record=record)
    assert [(step.outcome, step.failure) for step in played.steps] == [("cancelled", None)]
    assert played.runs[0].run.cut_off == (1,)
    assert_status(played, run, "partial")


@pytest.mark.parametrize("record", ["full", "shape"])
@pytest.mark.parametrize(("page", "status"), [("a", "success"), ("b", "partial")])
def test_call_that_was_cut_off_is_settled_by_a_later_success_with_the_same_arguments(
    played: Sandbox, page: str, status: Status, record: Any
) -> None:
    pages = iter([60.0, 0.0])

    @mulligan.tool(effects="none")
    async def read(page: str) -> str:
        await asyncio.sleep(next(pages))
        return page

    async def work(run: ActiveRun) -> None:
        await cut_off_by_wait_for(lambda: read("a"))
        assert run.status == "partial"
        assert await read(page) == page

    assert_status(played, play_run(work, record=record), status)


def test_earlier_success_does_not_settle_a_call_that_was_cut_off(played: Sandbox) -> None:
    answers = iter([0.0, 60.0])

    @mulligan.tool(effects="none")
    async def poll(job: str) -> str:
        await asyncio.sleep(next(answers))
        return "running"

    async def work(run: ActiveRun) -> None:
        await poll("j1")
        await cut_off_by_wait_for(lambda: poll("j1"))

    assert_status(played, play_run(work), "partial")


@pytest.mark.parametrize(("second", "status"), [("a", "success"), ("b", "partial")])
@pytest.mark.parametrize("timeout", [None, 30.0], ids=["first attempt", "planned attempt"])
def test_loser_of_a_race_was_cut_off_unless_it_has_the_same_arguments(
    played: Sandbox, timeout: float | None, second: str, status: Status
) -> None:
    seconds = iter([0.01, 60.0])

    @mulligan.tool(effects="none", timeout=timeout)
    async def ask(question: str) -> str:
        await asyncio.sleep(next(seconds))
        return question

    async def work(run: ActiveRun) -> None:
        racers = [asyncio.ensure_future(ask(question)) for question in ("a", second)]
        _, pending = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)

    run = play_run(work)
    assert sorted(step.outcome for step in played.runs[0].steps) == ["cancelled", "success"]
    assert_status(played, run, status)


def test_call_inside_a_call_is_cut_off_with_it(played: Sandbox) -> None:
    pages = iter(["old", "new"])

    @mulligan.tool(effects="none")
    async def summarize(topic: str) -> str:
        page = next(pages)
        return str(await fetch(page, should_answer=page == "new"))

    async def work(run: ActiveRun) -> None:
        await cut_off_by_wait_for(lambda: summarize("rain"))
        await summarize("rain")

    assert_status(played, play_run(work), "success")


def test_step_of_ones_own_that_is_cut_off_leaves_the_run_partial(played: Sandbox) -> None:
    async def work(run: ActiveRun) -> None:
        async def ship() -> None:
            async with run.step("tool", "ship"):
                await asyncio.sleep(60)

        await cut_off_by_wait_for(ship)

    assert_status(played, play_run(work), "partial")


def test_stage_around_a_call_that_was_cut_off_needs_no_second_stage(played: Sandbox) -> None:
    async def work(run: ActiveRun) -> None:
        async def collect() -> None:
            async with run.step("custom", "collect"):
                await fetch("a", should_answer=len(played.steps) > 0)

        await cut_off_by_wait_for(collect)
        assert run.status == "partial"

    assert_status(played, play_run(work), "partial")
    assert played.runs[0].run.cut_off == (2,)


def test_model_call_that_was_cut_off_is_settled_by_another_model_with_the_same_conversation(played: Sandbox) -> None:
    @mulligan.model
    async def ask(messages: list[dict[str, str]], model: str) -> str:
        await asyncio.sleep(60 if model == "large" else 0)
        return "Oslo"

    async def work(run: ActiveRun) -> None:
        messages = [{"role": "user", "content": "What is the capital of Norway?"}]
        await cut_off_by_wait_for(lambda: ask(messages, "large"))
        assert run.status == "partial"
        await ask(messages, "small")

    assert_status(played, play_run(work), "success")


def test_recovered_run_with_a_call_that_was_cut_off_is_partial(played: Sandbox) -> None:
    errors = [ConnectionResetError("reset")]

    @mulligan.tool(effects="none")
    def look(page: str) -> str:
        if errors:
            raise errors.pop()
        return page

    async def work(run: ActiveRun) -> None:
        look("a")
        assert run.status == "recovered"
        await cut_off_by_wait_for(lambda: fetch("a"))

    assert_status(played, play_run(work), "partial")


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit], ids=["Ctrl-C", "closed"])
def test_call_that_a_person_or_its_reader_ends_is_cancelled_and_not_cut_off(
    played: Sandbox, error: type[BaseException]
) -> None:
    @mulligan.tool
    def wait() -> None:
        raise error

    with mulligan.run("agent") as run, pytest.raises(error):
        wait()
    assert played.steps[0].outcome == "cancelled"
    assert_status(played, run, "success")


def test_call_that_is_cancelled_with_its_run_was_not_cut_off(played: Sandbox) -> None:
    async def serve() -> None:
        async with mulligan.run("agent"):
            await fetch("a")

    asyncio.run(cut_off_by_cancel(serve))
    (history,) = played.runs
    assert (history.run.end_reason, history.run.cut_off) == ("abandoned", ())
    assert [step.outcome for step in history.steps] == ["cancelled"]


# record_failure


def test_a_failure_recorded_without_a_step_is_the_runs_own(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        failure = run.record_failure("orchestration", "invalid_state", "two answers")
    assert failure.kind == "orchestration/invalid_state"
    assert run.status == "failure"
    assert played.steps[0].type == "run"


def test_a_failure_recorded_on_a_step_is_that_steps(played: Sandbox) -> None:
    with mulligan.run("agent") as run, run.step("tool", "search") as step:
        step.record_failure("tool", "timeout", "30 s", status=504)
    (kept,) = played.steps
    assert kept.outcome == "failure"
    assert kept.failure is not None
    assert (kept.failure.kind, kept.failure.message, kept.failure.status) == ("tool/timeout", "30 s", 504)
    assert run.status == "failure"


def test_a_second_failure_of_a_step_adds_to_its_first_one(played: Sandbox) -> None:
    with mulligan.run("agent") as run, run.step("tool", "search") as step:
        step.record_failure("tool", "timeout", "no answer", status=504)
        run.record_failure("tool", "unavailable", step=step)
    (kept,) = played.runs[0].steps
    assert kept.failure is not None
    assert (kept.failure.kind, kept.failure.message, kept.failure.status) == ("tool/unavailable", "no answer", 504)


def test_a_failure_recorded_inside_a_step_that_raises_decides_the_kind_of_its_one_failure(played: Sandbox) -> None:
    def work() -> None:
        with mulligan.run("agent") as run, run.step("tool", "search") as step:
            try:
                raise TimeoutError("no answer in 30 s")
            except TimeoutError:
                step.record_failure("tool", "rate_limit", hint="Wait a minute.")
                raise

    with pytest.raises(TimeoutError):
        work()
    (step,) = played.steps
    assert step.failure is not None
    assert (step.failure.kind, step.failure.message) == ("tool/rate_limit", "no answer in 30 s")
    assert (step.failure.hint, step.failure.remedy.value) == ("Wait a minute.", "retry")


def test_a_failure_recorded_after_a_step_raised_is_that_steps_failure(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        try:
            with run.step("tool", "search") as step:
                raise TimeoutError("no answer in 30 s")
        except TimeoutError as error:
            failure = run.record_failure("tool", "rate_limit", str(error), step=step)
        assert failure.kind == "tool/rate_limit"
        assert run.record_failure("tool", "rate_limit", step_id=step.step_id) == failure
    assert [step.failure for step in played.steps] == [failure]
    assert [step.failure for step in played.runs[0].steps] == [failure]
    assert [event.name for event in played.events].count("failure.recorded") == 1


def test_a_failure_recorded_by_the_number_of_a_step_that_nobody_holds_is_that_steps(played: Sandbox) -> None:
    def search(run: ActiveRun, error: Exception | None) -> int | None:
        try:
            with run.step("tool", "search") as step:
                if error is not None:
                    raise error
        except TimeoutError:
            pass
        return step.step_id

    with mulligan.run("agent") as run:
        raised, succeeded = search(run, TimeoutError("30 s")), search(run, None)
        gc.collect()
        run.record_failure("tool", "rate_limit", step_id=raised)
        run.record_failure("retrieval", "no_results", step_id=succeeded)
    steps = played.runs[0].steps
    assert [(step.name, step.parent, step.failure and step.failure.kind) for step in steps] == [
        ("search", None, "tool/rate_limit"), ("search", None, "retrieval/no_results"),
    ]  # fmt: skip


def test_a_failure_recorded_while_the_exception_of_a_step_is_handled_is_that_steps(played: Sandbox) -> None:
    @mulligan.tool
    def fetch() -> str:
        raise ConnectionError("reset")

    with mulligan.run("agent") as run:
        try:
            with run.step("tool", "search"):
                raise TimeoutError("30 s")
        except TimeoutError as error:
            run.record_failure("tool", "rate_limit", str(error))
            run.record_failure("orchestration", "max_retries_exceeded", "3 attempts")
        try:
            fetch()
        except ConnectionError as error:
            run.record_failure("tool", "timeout", str(error))
        with run.step("tool", "search"):
            pass
        run.record_failure("tool", "timeout", "of the run")
    kinds = [(step.name, step.failure and step.failure.kind) for step in played.runs[0].steps]
    assert kinds == [
        ("search", "tool/rate_limit"), ("agent", "orchestration/max_retries_exceeded"),
        ("fetch", "tool/connection_error"), ("search", None), ("agent", "tool/timeout"),
    ]  # fmt: skip


def test_the_step_of_a_handled_exception_is_the_innermost_and_latest_one(played: Sandbox) -> None:
    error = TimeoutError("30 s")
    with mulligan.run("agent") as run:
        for code in ("rate_limit", "unavailable"):
            try:
                with run.step("plan", "outer"), run.step("tool", "inner"):
                    raise error
            except TimeoutError:
                run.record_failure("tool", code)
    kinds = [step.failure and step.failure.kind for step in played.runs[0].steps if step.name == "inner"]
    assert kinds == ["tool/rate_limit", "tool/unavailable"]


def test_a_failure_recorded_by_the_number_of_a_failed_call_is_that_calls(played: Sandbox) -> None:
    @mulligan.tool
    def search() -> str:
        raise TimeoutError("no answer in 30 s")

    with mulligan.run("agent") as run:
        with pytest.raises(TimeoutError):
            search()
        failure = run.record_failure("tool", "timeout", step_id=1)
        other = run.record_failure("tool", "conflict", "nobody knows this step", step_id=77)
    assert [(step.failure, step.parent) for step in played.steps] == [(failure, None), (other, 77)]


def test_a_failure_of_the_run_recorded_while_its_exception_is_handled_is_the_only_one(played: Sandbox) -> None:
    def work() -> None:
        with mulligan.run("agent") as run:
            try:
                raise LookupError("no plan")
            except LookupError as error:
                run.record_failure("orchestration", "precondition", str(error))
                raise

    with pytest.raises(LookupError):
        work()
    assert [step.failure.kind for step in played.steps if step.failure] == ["orchestration/precondition"]
    assert played.runs[0].run.end_reason == "raised"


def test_type_code_and_step_have_a_second_name(played: Sandbox) -> None:
    with mulligan.run("agent") as run, run.step("tool", "search") as step:
        assert step.step_id == step.number
        failure = run.record_failure(failure_type="tool", failure_code="timeout", message="30 s", step_id=step.step_id)
    (kept,) = played.steps
    assert (kept.name, kept.failure) == ("search", failure)
    assert failure.kind == "tool/timeout"


def test_type_and_code_may_be_members_of_an_enum(played: Sandbox) -> None:
    class Type(enum.Enum):
        TOOL = "TOOL"

    class Code(enum.Enum):
        TIMEOUT = 7

    with mulligan.run("agent") as run:
        assert run.record_failure(Type.TOOL, Code.TIMEOUT).kind == "tool/timeout"


@pytest.mark.parametrize(
    ("type", "code", "kind", "reason"),
    [
        ("tol", "timeout", "tol/timeout", "Unknown failure type 'tol'. Did you mean 'tool'?"),
        ("billing", "card_declined", "billing/card_declined", "Unknown failure type 'billing'. Use one of tool, "),
        ("tool", "timout", "tool/timout", "Did you mean 'tool/timeout'? Declare "),
        ("tool", "no_results", "tool/no_results", "Did you mean 'retrieval/no_results'?"),
        ("tool", "card_declined", "tool/card_declined", "Declare a kind of your own in mulligan.toml: "),
    ],
)
def test_a_kind_that_nobody_declared_is_stored_as_it_is_and_logged_once(
    played: Sandbox, caplog: pytest.LogCaptureFixture, type: str, code: str, kind: str, reason: str
) -> None:
    with mulligan.run("agent") as run:
        for _ in range(2):
            try:
                raise KeyError("ticket")
            except KeyError:
                failure = run.record_failure(type, code, "locked")
        assert failure.kind == kind
    assert [step.failure.kind for step in played.runs[0].steps if step.failure] == [kind, kind]
    (warning,) = [record.getMessage() for record in caplog.records if reason in record.getMessage()]
    assert f"stored as '{kind}'" in warning


@pytest.mark.parametrize(("type", "code"), [("", ""), ("model", ""), (None, 7), (object(), b"timeout")])
def test_a_failure_without_a_code_is_classified_by_its_message(played: Sandbox, type: Any, code: Any) -> None:
    with mulligan.run("agent") as run:
        assert run.record_failure(type, code, "429 Too Many Requests").kind.code == "rate_limit"


def test_what_is_no_fact_of_a_failure_is_left_out_and_named(played: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    facts: dict[str, Any] = {"severity": "high", "status": "504", "retry_after": "soon", "remedy": "stop"}
    with mulligan.run("agent") as run:
        failure = run.record_failure("tool", "timeout", "no answer", step="no step", **facts)
    assert (failure.status, failure.retry_after, failure.remedy.value) == (504, None, "retry")
    assert played.runs[0].steps[0].failure == failure
    for name in ("severity", "retry_after", "remedy"):
        assert f"Ignored '{name}' of a recorded failure" in caplog.text


def test_while_mulligan_is_off_no_kind_is_refused() -> None:
    off = mulligan.Mulligan(enabled=False)
    with off.run("agent") as run:
        declined = run.record_failure("billing", "card_declined")
        assert declined.kind == "billing/card_declined"
        assert declined.hint


def test_a_failure_recorded_when_its_step_is_over_is_that_steps(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        with run.step("retrieval", "search") as step:
            pass
        for _ in range(2):
            step.record_failure("retrieval", "no_results", "0 results")
        assert run.status == "failure"
        with run.step("tool", "answer"):
            pass
        assert run.status == "partial"
    (search, answer) = played.runs[0].steps
    assert (search.outcome, search.failure and search.failure.kind) == ("failure", "retrieval/no_results")
    assert answer.outcome == "success"
    assert [(step.name, step.outcome) for step in played.steps] == [("search", "failure"), ("answer", "success")]
    assert played.store.stats(DEFAULT_TENANT, StatsQuery(now=0, since=None)).total.calls == 2


def test_a_failure_recorded_for_a_successful_call_is_recovered_by_the_same_call_after_it(played: Sandbox) -> None:
    @mulligan.tool
    def search(query: str) -> str:
        return "" if query == "x" else "found"

    with mulligan.run("agent") as run:
        for query in ("x", "x", "y"):
            search(query)
        run.record_failure("retrieval", "no_results", "0 results", step_id=1)
        assert run.status == "recovered"
        run.record_failure("retrieval", "no_results", "0 results", step_id=3)
        assert run.status == "partial"
    (history,) = played.runs
    assert [(step.name, step.outcome) for step in history.steps] == [
        ("search", "failure"), ("search", "success"), ("search", "failure"),
    ]  # fmt: skip
    assert [(link.failed_call, link.recovering_call) for link in history.links] == [(1, 2)]


def test_a_failure_of_a_step_that_the_run_no_longer_holds_is_that_steps(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        for number in range(100):
            with run.step("tool", f"tool {number}"):
                pass
        gc.collect()
        run.record_failure("tool", "timeout", "no answer", step_id=2)
        assert run.status == "partial"
    failed = [step for step in played.runs[0].steps if step.has_failed]
    assert [(step.seq, step.name, step.failure and step.failure.kind) for step in failed] == [
        (2, "tool 1", "tool/timeout")
    ]


def test_correcting_the_exception_of_a_step_recovers_it(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        try:
            with run.step("tool", "search"):
                raise TimeoutError("30 s")
        except TimeoutError as error:
            with mulligan.correcting(error), run.step("tool", "search"):
                pass
    assert run.status == "recovered"
    assert [link.evidence for link in played.runs[0].links] == [("explicit",)]


def test_a_declared_kind_of_ones_own_can_be_recorded() -> None:
    kinds = {"billing/card_declined": {"remedy": "stop"}, "tool/out_of_stock": {"hint": "Offer another article."}}
    with sandbox(kinds=kinds), mulligan.run("agent") as run:
        declined = run.record_failure("billing", "card_declined")
        assert (declined.kind, declined.remedy.value) == ("billing/card_declined", "stop")
        assert declined.hint == "A retry cannot help. Report the failure: a person must act."
        assert run.record_failure("tool", "out_of_stock").hint == "Offer another article."


def test_the_message_of_a_recorded_failure_may_be_an_exception(played: Sandbox) -> None:
    with mulligan.run("agent") as run:
        assert run.record_failure("tool", "timeout", TimeoutError("30 s")).message == "30 s"  # type: ignore[arg-type]


def test_an_exception_that_cannot_be_printed_is_recorded_by_its_class(played: Sandbox) -> None:
    class OrderError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    with mulligan.run("agent") as run:
        assert run.record_failure("tool", "timeout", OrderError()).message == "OrderError"  # type: ignore[arg-type]


# Where it is current


def test_a_run_inside_a_run_names_its_parent_and_keeps_the_session(played: Sandbox) -> None:
    with mulligan.run("parent", session="s1") as parent, mulligan.run("child") as child:
        pass
    assert child.record.parent == parent.id
    assert child.record.session == "s1"
    assert parent.record.parent is None


def test_run_and_step_work_in_async_code(played: Sandbox) -> None:
    async def main() -> None:
        async with mulligan.run("agent") as run, run.step("plan"):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert [step.type for step in played.steps] == ["plan"]


def test_runs_in_tasks_do_not_mix(played: Sandbox) -> None:
    @mulligan.tool
    async def search(name: str) -> str:
        await asyncio.sleep(0)
        return name

    async def agent(name: str) -> None:
        async with mulligan.run(name) as run:
            for _ in range(3):
                with run.step("plan", name):
                    await search(name)

    async def main() -> None:
        await asyncio.gather(*(agent(f"a{n}") for n in range(10)))

    asyncio.run(main())
    assert len(played.runs) == 10
    for history in played.runs:
        assert [step.seq for step in history.steps] == [1, 2, 3, 4, 5, 6]
        for step in history.steps:
            assert (step.arguments or {"name": step.name})["name"] == history.run.agent
            assert step.parent == (None if step.type == "plan" else step.seq - 1)


def test_runs_in_threads_do_not_mix(played: Sandbox) -> None:
    search = mulligan.tool(name="search")(lambda name: name)

    def agent(name: str) -> None:
        with mulligan.run(name):
            for _ in range(5):
                search(name)

    threads = [threading.Thread(target=agent, args=(f"a{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(played.runs) == 8
    for history in played.runs:
        assert [step.arguments["name"] for step in history.steps] == [history.run.agent] * 5


def test_threads_that_share_a_run_share_no_number(played: Sandbox) -> None:
    with mulligan.run("agent") as run:

        def work() -> None:
            for _ in range(50):
                with run.step("custom"):
                    run.record_failure("tool", "timeout")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    numbers = [step.seq for step in played.steps]
    assert sorted(numbers) == list(range(1, 401))


def start_threads(count: int, work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_calls_of_threads_that_share_a_run_with_items_are_all_recorded(played: Sandbox) -> None:
    search = mulligan.tool(name="search")(lambda number: number)
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with mulligan.run("agent") as run:

            def work() -> None:
                for number in range(1000):
                    with run.item(number):
                        search(number)

            start_threads(4, mulligan.carry_run(work))
    finally:
        sys.setswitchinterval(switch_interval)
    assert len(played.steps) == 4000


def test_run_that_two_threads_leave_at_once_ends_once(played: Sandbox) -> None:
    ended: list[object] = []
    mulligan.add_listener(lambda event: ended.append(event) if event.name == "run.ended" else None, thread="caller")
    lines, first_line = inspect.getsourcelines(ActiveRun.__exit__)
    check_line = first_line + next(index for index, line in enumerate(lines) if "self.finish" in line) - 1
    both_entered, both_left = threading.Barrier(2), threading.Barrier(2)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not ActiveRun.__exit__.__code__:
            return None
        if event == "line" and frame.f_lineno == check_line:  # each thread has left, and now checks if it was the last
            both_left.wait(10)
        return trace

    def work() -> None:
        with run:
            both_entered.wait(10)

    run = mulligan.run("agent")
    threading.settrace(trace)
    try:
        start_threads(2, work)
    finally:
        threading.settrace(cast("Any", None))
    assert len(ended) == 1


def test_steps_that_two_threads_begin_first_are_both_known(played: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    both_first = threading.Barrier(2)

    class SlowDictionary(WeakValueDictionary[int, Any]):
        """A dictionary whose creation another thread may interrupt."""

        def __init__(self) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                both_first.wait(0.2)
            super().__init__()

    monkeypatch.setattr("mulligan.capture.run_steps.WeakValueDictionary", SlowDictionary)
    both_begun = threading.Barrier(2)
    with mulligan.run("agent") as run:

        def work() -> None:
            with run.step("custom", "fetch") as step:
                both_begun.wait(10)
                run.record_failure("tool", "timeout", step_id=step.step_id)

        start_threads(2, work)
    assert [(step.name, step.outcome) for step in played.steps] == [("fetch", "failure")] * 2


def test_a_task_that_a_run_left_behind_adds_nothing_to_it(played: Sandbox) -> None:
    search = mulligan.tool(name="search")(lambda: 1)

    async def main() -> str:
        async with mulligan.run("agent") as run:

            async def later() -> None:
                await asyncio.sleep(0)
                search()

            task = asyncio.create_task(later())
        await task
        return run.id

    ended = asyncio.run(main())
    (step,) = played.steps
    assert step.run != ended
    assert next(history.run.parent for history in played.runs if history.run.id == step.run) == ended


def test_a_run_that_is_left_in_another_context_is_left_without_a_sound(played: Sandbox) -> None:
    import contextvars

    run = mulligan.run("agent")
    contextvars.copy_context().run(run.__enter__)
    step = run.step("plan")
    contextvars.copy_context().run(step.__enter__)
    step.__exit__(None, None, None)
    run.__exit__(None, None, None)
    assert played.runs[0].run.end_reason == "finished"


def test_notes_are_those_of_the_current_run_and_are_told_once(played: Sandbox) -> None:
    @mulligan.tool(clamp=["top_k"])
    def search(top_k: int) -> int:
        if top_k > 10:
            raise mulligan.AgentError("top_k must be 10 or less.")
        return top_k

    assert mulligan.drain_notes() == []
    with mulligan.run("outer"):
        search(50)
        with mulligan.run("inner"):
            assert mulligan.drain_notes() == []
        assert len(mulligan.drain_notes()) == 1
        assert mulligan.drain_notes() == []


def test_a_run_may_be_entered_again_while_it_is_open_by_any_thread(played: Sandbox) -> None:
    @mulligan.tool
    def double(number: int) -> int:
        return 2 * number

    def elsewhere() -> None:
        with run:
            double(3)

    with mulligan.run("agent") as run:
        with run:
            double(1)
        assert run.is_open
        double(2)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert run.is_open
        double(4)
    double(5)

    assert [len(history.steps) for history in played.runs] == [4, 1]
    assert [history.run.end_reason for history in played.runs] == ["finished", "finished"]
