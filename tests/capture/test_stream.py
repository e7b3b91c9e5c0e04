"""Generators and async generators: recovered before the first item, recorded to the last, and otherwise untouched."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

import pytest

import mulligan
from mulligan.testing import Sandbox, sandbox


def outcomes(played: Sandbox) -> list[str]:
    return [step.outcome for step in played.steps]


async def collected(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


def fails_before(*errors: Exception) -> Any:
    script = list(errors)

    @mulligan.tool(effects="none")
    def words() -> Iterator[str]:
        if script:
            raise script.pop(0)
        yield "a"
        yield "b"

    return words


# Recovery


def test_a_stream_that_fails_before_its_first_item_is_started_again(played: Sandbox) -> None:
    assert list(fails_before(ConnectionError("reset"))()) == ["a", "b"]
    assert outcomes(played) == ["failure", "success"]
    assert len(played.backoffs) == 1


def test_an_async_stream_that_fails_before_its_first_item_is_started_again(played: Sandbox) -> None:
    script = [ConnectionError("reset")]

    @mulligan.tool(effects="none")
    async def words() -> AsyncIterator[str]:
        if script:
            raise script.pop()
        yield "a"
        yield "b"

    assert asyncio.run(collected(words())) == ["a", "b"]
    assert outcomes(played) == ["failure", "success"]


def test_a_stream_that_fails_after_its_first_item_is_not_started_again(played: Sandbox) -> None:
    started: list[int] = []
    error = ConnectionError("reset")

    @mulligan.tool(effects="none")
    def words() -> Iterator[str]:
        started.append(1)
        yield "a"
        raise error

    seen: list[str] = []

    def read() -> None:
        for word in words():
            seen.append(word)  # noqa: PERF402 - what was read before the error is the point

    with pytest.raises(ConnectionError) as left:
        read()
    assert left.value is error
    assert seen == ["a"]
    assert started == [1]
    assert "the first items of the stream were already delivered" in left.value.__notes__[0]
    assert outcomes(played) == ["failure"]


def test_an_async_stream_that_fails_after_its_first_item_is_not_started_again(played: Sandbox) -> None:
    started: list[int] = []

    @mulligan.tool(effects="none")
    async def words() -> AsyncIterator[str]:
        started.append(1)
        yield "a"
        raise ConnectionError("reset")

    with pytest.raises(ConnectionError):
        asyncio.run(collected(words()))
    assert started == [1]
    assert outcomes(played) == ["failure"]


def test_a_stream_that_never_starts_is_given_up_with_its_own_error(played: Sandbox) -> None:
    errors = [ConnectionError(str(n)) for n in range(12)]
    with pytest.raises(ConnectionError) as left:
        list(fails_before(*errors)())
    assert left.value is errors[9]
    assert outcomes(played) == ["failure"] * 10
    assert [history.run.end_reason for history in played.runs] == ["raised"]


def test_a_repaired_stream_is_announced(played: Sandbox) -> None:
    @mulligan.tool(clamp=["limit"])
    def words(limit: int) -> Iterator[int]:
        if limit > 10:
            raise mulligan.AgentError("limit must be 10 or less.")
        yield limit

    with mulligan.run("agent"):
        assert list(words(50)) == [10]
        assert "limit 50 -> 10" in mulligan.drain_notes()[0]


# As it was before


def test_an_empty_stream_is_a_success(played: Sandbox) -> None:
    @mulligan.tool
    def nothing() -> Iterator[int]:
        return
        yield

    @mulligan.tool
    async def async_nothing() -> AsyncIterator[int]:
        return
        yield

    assert list(nothing()) == []
    assert asyncio.run(collected(async_nothing())) == []
    assert outcomes(played) == ["success", "success"]


@pytest.mark.parametrize("items", [0, 3])
def test_the_return_value_of_a_generator_comes_out(played: Sandbox, items: int) -> None:
    @mulligan.tool
    def count() -> Generator[int, None, str]:
        yield from range(items)
        return "done"

    def reader() -> Generator[int, None, str]:
        return (yield from count())

    reading = reader()
    seen = [next(reading) for _ in range(items)]
    with pytest.raises(StopIteration) as stop:
        next(reading)
    assert stop.value.value == "done"
    assert seen == list(range(items))


def test_what_is_sent_arrives(played: Sandbox) -> None:
    @mulligan.tool
    def echo() -> Generator[Any, Any, None]:
        got = yield "ready"
        while True:
            got = yield got

    stream = echo()
    assert next(stream) == "ready"
    assert [stream.send(n) for n in (1, None, 2)] == [1, None, 2]
    stream.close()


def test_what_is_sent_to_an_async_stream_arrives(played: Sandbox) -> None:
    @mulligan.tool
    async def echo() -> AsyncGenerator[Any, Any]:
        got = yield "ready"
        while True:
            got = yield got

    async def main() -> list[Any]:
        stream = echo()
        first = await anext(stream)
        rest = [await stream.asend(n) for n in (1, 2)]
        await stream.aclose()
        return [first, *rest]

    assert asyncio.run(main()) == ["ready", 1, 2]
    assert outcomes(played) == ["cancelled"]


def test_what_is_thrown_can_be_caught_by_the_stream(played: Sandbox) -> None:
    @mulligan.tool
    def patient() -> Generator[str, None, None]:
        try:
            yield "first"
        except ValueError as error:
            yield f"caught {error}"

    stream = patient()
    next(stream)
    assert stream.throw(ValueError("it")) == "caught it"
    assert list(stream) == []
    assert outcomes(played) == ["success"]


def test_what_is_thrown_and_not_caught_comes_back_as_it_is(played: Sandbox) -> None:
    @mulligan.tool
    def words() -> Iterator[str]:
        yield "a"

    stream = words()
    next(stream)
    error = KeyError("mine")
    with pytest.raises(KeyError) as left:
        stream.throw(error)  # type: ignore[attr-defined]
    assert left.value is error


def test_what_is_thrown_at_an_async_stream_can_be_caught_by_it(played: Sandbox) -> None:
    @mulligan.tool
    async def patient() -> AsyncGenerator[str, None]:
        try:
            yield "first"
        except ValueError:
            yield "caught"

    async def main() -> str:
        stream = patient()
        await anext(stream)
        caught = await stream.athrow(ValueError())
        await stream.aclose()
        return caught

    assert asyncio.run(main()) == "caught"


def test_closing_a_stream_closes_what_is_behind_it_and_is_no_failure(played: Sandbox) -> None:
    closed: list[str] = []

    @mulligan.tool
    def words() -> Iterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            closed.append("sync")

    @mulligan.tool
    async def async_words() -> AsyncIterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            await asyncio.sleep(0)
            closed.append("async")

    async def read_one() -> None:
        stream = async_words()
        assert await anext(stream) == "a"
        await stream.aclose()  # type: ignore[attr-defined]

    for word in words():
        assert word == "a"
        break
    gc.collect()
    asyncio.run(read_one())
    assert closed == ["sync", "async"]
    assert outcomes(played) == ["cancelled", "cancelled"]
    assert [history.run.end_reason for history in played.runs] == ["finished", "finished"]


def test_a_stream_that_is_never_read_is_never_called(played: Sandbox) -> None:
    called: list[int] = []

    @mulligan.tool
    def words() -> Iterator[int]:
        called.append(1)
        yield 1

    words().close()  # type: ignore[attr-defined]
    assert called == []
    assert played.steps == []


# Context


def test_what_the_reader_does_between_two_items_is_not_part_of_the_stream(played: Sandbox) -> None:
    other = mulligan.tool(name="other")(lambda: 1)

    @mulligan.tool
    def words() -> Iterator[int]:
        yield from range(3)

    for _ in words():
        other()
    runs = {step.name: step.run for step in played.steps}
    assert len(played.runs) == 4
    assert runs["other"] != runs["words"]
    assert all(step.parent is None for step in played.steps)


def test_what_the_stream_itself_calls_is_part_of_it(played: Sandbox) -> None:
    other = mulligan.tool(name="other")(lambda: 1)

    @mulligan.tool
    def words() -> Iterator[int]:
        for _ in range(3):
            yield other()

    assert list(words()) == [1, 1, 1]
    assert len(played.runs) == 1


def test_a_stream_inside_a_run_is_a_step_of_it(played: Sandbox) -> None:
    @mulligan.tool
    def words() -> Iterator[int]:
        yield 1

    with mulligan.run("agent") as run:
        list(words())
    assert [step.run for step in played.steps] == [run.id]


def test_two_streams_read_in_turns_do_not_mix(played: Sandbox) -> None:
    @mulligan.tool
    def words(name: str) -> Iterator[str]:
        for n in range(3):
            yield f"{name}{n}"

    pairs = list(zip(words("a"), words("b"), strict=True))
    assert pairs == [("a0", "b0"), ("a1", "b1"), ("a2", "b2")]
    assert len({step.run for step in played.steps}) == 2


def test_a_stream_that_is_thrown_away_in_another_context_is_closed_without_a_sound(played: Sandbox) -> None:
    @mulligan.tool
    def words() -> Iterator[int]:
        yield 1
        yield 2

    stream = words()
    assert contextvars.copy_context().run(next, stream) == 1
    del stream
    gc.collect()
    assert outcomes(played) == ["cancelled"]


def test_a_step_says_how_many_items_there_were(played: Sandbox) -> None:
    @mulligan.tool
    def words() -> Iterator[int]:
        yield from range(5)

    list(words())
    assert played.steps[0].result == {"$stream": 5}


def test_cancelling_the_reader_of_an_async_stream_is_no_failure(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    async def words() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    async def main() -> None:
        read = asyncio.Event()

        async def reader() -> None:
            async for _ in words():
                read.set()

        task = asyncio.create_task(reader())
        await read.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert outcomes(played) == ["cancelled"]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_model_that_raises_stop_iteration_instead_of_a_stream_raises_it(is_enabled: bool) -> None:
    raised = StopIteration("no more answers")

    with sandbox(enabled=is_enabled) as played:

        @mulligan.model
        def complete(messages: Any, stream: bool = False) -> Any:
            raise raised

        with pytest.raises(StopIteration) as left:
            complete([], stream=True)
    assert left.value is raised
    assert outcomes(played) == (["cancelled"] if is_enabled else [])


def test_a_model_stream_returns_the_value_of_its_generator_once(played: Sandbox) -> None:
    @mulligan.model
    def complete(messages: Any, stream: bool = False) -> Any:
        def events() -> Generator[str, None, str]:
            yield "a token"
            return "usage"

        return events()

    stream = complete([], stream=True)
    assert next(stream) == "a token"
    values = []
    for _ in range(2):
        with pytest.raises(StopIteration) as stop:
            next(stream)
        values.append(stop.value.value)
    assert values == ["usage", None]
