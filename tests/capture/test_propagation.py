"""The current run in other threads: which ways carry it, and the one warning for those that do not."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import mulligan
from mulligan.capture import propagation
from mulligan.core.failure import SettingsError
from mulligan.testing import Sandbox


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a process that has not warned yet."""
    fresh = propagation.LostRunWatch()
    for name in ("first_attempt", "run", "stream"):
        monkeypatch.setattr(f"mulligan.capture.{name}.lost_run_watch", fresh)


@mulligan.tool(effects="none")
def double(number: int) -> int:
    return 2 * number


def in_thread(function: Callable[..., Any], *arguments: Any) -> None:
    thread = threading.Thread(target=function, args=arguments, name="helper")
    thread.start()
    thread.join()


def in_pool(function: Callable[..., Any], *arguments: Any) -> None:
    with ThreadPoolExecutor() as pool:
        pool.submit(function, *arguments).result()


def in_executor(function: Callable[..., Any], *arguments: Any) -> None:
    async def main() -> None:
        await asyncio.get_running_loop().run_in_executor(None, function, *arguments)

    asyncio.run(main())


def by_to_thread(function: Callable[..., Any], *arguments: Any) -> None:
    asyncio.run(asyncio.to_thread(function, *arguments))


EVERYWHERE = pytest.mark.parametrize("start", [in_thread, in_pool, in_executor, by_to_thread])


@EVERYWHERE
def test_a_carried_function_belongs_to_the_run_in_every_thread(start: Callable[..., None], played: Sandbox) -> None:
    with mulligan.run("shop") as run, run.step("plan", "think"):
        start(mulligan.carry_run(double), 4)
    (history,) = played.runs
    assert [(step.name, step.parent) for step in history.steps] == [("think", None), ("double", 1)]


@pytest.mark.parametrize("start", [in_thread, in_pool, in_executor])
def test_a_copied_context_belongs_to_the_run_too(start: Callable[..., None], played: Sandbox) -> None:
    with mulligan.run("shop"):
        start(contextvars.copy_context().run, double, 4)
    assert len(played.runs) == 1


def test_asyncio_carries_the_run_by_itself(played: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    with mulligan.run("shop"):
        by_to_thread(double, 4)
    assert len(played.runs) == 1
    assert not caplog.records


def test_many_threads_call_one_carried_function_at_once(played: Sandbox) -> None:
    gate = threading.Barrier(4)

    @mulligan.tool
    def meet(number: int) -> int:
        gate.wait(10)
        return number

    with mulligan.run("shop"), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(mulligan.carry_run(meet), range(4))) == [0, 1, 2, 3]
    assert len(played.runs) == 1
    assert len(played.steps) == 4


def test_a_carried_function_keeps_its_name_and_raises_its_own_error(played: Sandbox) -> None:
    def fails() -> None:
        """Fail."""
        raise LookupError("no")

    with mulligan.run("shop"):
        carried = mulligan.carry_run(fails)
    assert (carried.__name__, carried.__doc__) == ("fails", "Fail.")
    with pytest.raises(LookupError):
        carried()


def test_outside_a_run_a_function_stays_as_it_is(played: Sandbox) -> None:
    assert mulligan.carry_run(double) is double


def test_an_async_function_is_refused_with_the_way_to_go(played: Sandbox) -> None:
    async def work() -> None: ...

    with mulligan.run("shop"), pytest.raises(SettingsError, match="tasks inherit the run"):
        mulligan.carry_run(work)


def test_a_call_in_a_thread_after_the_run_has_ended_is_a_run_of_its_own(played: Sandbox) -> None:
    with mulligan.run("shop"):
        carried = mulligan.carry_run(double)
    in_thread(carried, 4)
    first, second = played.runs
    assert (first.steps, second.run.parent) == ((), first.run.id)


# The warning


@pytest.mark.parametrize("start", [in_thread, in_pool, in_executor])
def test_a_call_that_lost_its_run_is_warned_about_once_with_the_way_to_go(
    start: Callable[..., None], played: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with mulligan.run("shop"):
        start(double, 4)
        start(double, 5)
    assert len(played.runs) == 3
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("mulligan.capture.propagation", logging.WARNING)
    said = record.getMessage()
    assert "'double' was called in thread" in said
    assert "mulligan.carry_run(function)" in said
    assert "contextvars.copy_context().run" in said


def test_a_tool_of_a_loop_that_starts_a_thread_is_warned_about(
    played: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    def search() -> str:
        in_thread(double, 4)
        return "found"

    for turn in mulligan.turns(limit=1):
        turn.call([search], "search")
    assert len(caplog.records) == 1


def test_a_stream_that_lost_its_run_is_warned_about(played: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    @mulligan.tool
    def words() -> Iterator[str]:
        yield "a"

    with mulligan.run("shop"):
        in_thread(lambda: list(words()))
    assert len(caplog.records) == 1


def test_calls_that_have_lost_nothing_are_not_warned_about(played: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    def work(number: int) -> None:
        with mulligan.run("worker"):
            double(number)

    double(1)  # no run anywhere
    in_thread(double, 2)
    with mulligan.run("shop") as run:
        double(3)
        in_thread(work, 4)  # a run of its own
        in_thread(mulligan.carry_run(double), 5)

        def enter() -> None:
            with run:
                double(6)

        in_thread(enter)
    in_thread(double, 7)  # no run is open any more
    assert not caplog.records


def test_a_call_of_the_main_thread_beside_the_run_of_another_thread_is_not_warned_about(
    played: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    is_open, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with mulligan.run("worker"):
            is_open.set()
            may_end.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert is_open.wait(10)
    double(1)
    may_end.set()
    thread.join()
    assert not caplog.records


def test_a_call_beside_the_run_of_another_task_of_its_thread_is_not_warned_about(
    played: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    async def with_run() -> None:
        async with mulligan.run("worker"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def without_run() -> None:
        await asyncio.sleep(0)
        double(1)

    async def main() -> None:
        await asyncio.gather(with_run(), without_run())

    in_thread(lambda: asyncio.run(main()))
    assert not caplog.records
