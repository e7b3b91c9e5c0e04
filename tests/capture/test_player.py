"""Recovery through a real wrapped function: how often it is executed, and what comes out (SAFETY 2)."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
from msgspec.structs import force_setattr

import mulligan
from mulligan import AgentError, InfraError
from mulligan.core.failure import TookEffect
from mulligan.testing import Sandbox, sandbox


class AtMost:
    """A bound, as annotated-types would say it."""

    def __init__(self, le: int) -> None:
        self.le = le


class Scripted:
    """A tool that goes through what it was told: an exception is raised, anything else is answered."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        now = self.script.pop(0)
        if isinstance(now, BaseException):
            raise now
        return now


class RateLimited(Exception):
    def __init__(self, retry_after: float) -> None:
        super().__init__("429 Too Many Requests")
        self.status_code = 429
        self.headers = {"retry-after": str(retry_after)}


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


# When a call may be repeated


@pytest.mark.parametrize("lost", [TimeoutError("no answer"), ConnectionResetError("reset by peer")])
def test_a_once_tool_that_executes_and_loses_its_reply_is_executed_exactly_once(
    played: Sandbox, lost: Exception
) -> None:
    payments: list[int] = []

    @mulligan.tool
    def pay(cents: int) -> str:
        payments.append(cents)
        raise lost

    with pytest.raises(type(lost)) as left:
        pay(100)
    assert left.value is lost
    assert payments == [100]
    assert played.steps[0].failure is not None
    assert played.steps[0].failure.took_effect is TookEffect.UNKNOWN


def test_an_async_once_tool_that_loses_its_reply_is_executed_exactly_once(played: Sandbox) -> None:
    payments: list[int] = []

    @mulligan.tool
    async def pay(cents: int) -> str:
        payments.append(cents)
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        asyncio.run(pay(100))
    assert payments == [100]


@pytest.mark.parametrize("effects", ["none", "idempotent"])
def test_a_tool_that_may_be_repeated_is_called_again_after_the_time_it_asked_for(played: Sandbox, effects: Any) -> None:
    tool = Scripted(RateLimited(2.0), "ok")
    assert mulligan.tool(effects=effects)(tool)() == "ok"
    assert played.backoffs == [2.0]
    assert [step.outcome for step in played.steps] == ["failure", "success"]


def test_a_model_that_is_rate_limited_is_called_again_after_the_time_it_asked_for(played: Sandbox) -> None:
    tool = Scripted(RateLimited(1.5), "hello")
    assert mulligan.model(tool)() == "hello"
    assert played.backoffs == [1.5]
    assert {step.type for step in played.steps} == {"model"}


def test_a_longer_wait_than_the_policy_allows_ends_recovery_without_waiting(played: Sandbox) -> None:
    tool = Scripted(RateLimited(3600))
    with pytest.raises(RateLimited) as left:
        mulligan.tool(effects="none")(tool)()
    assert played.backoffs == []
    assert "3600 s" in notes(left.value)


def test_a_call_is_made_eight_times_at_most_and_twice_to_probe_its_target(played: Sandbox) -> None:
    errors = [ConnectionError(str(n)) for n in range(12)]
    tool = Scripted(*errors)
    with pytest.raises(ConnectionError) as left:
        mulligan.tool(effects="none")(tool)()
    assert len(tool.calls) == 10
    assert left.value is errors[9]
    assert sum(played.backoffs) < 45


def test_a_policy_of_one_attempt_turns_recovery_off(played: Sandbox) -> None:
    tool = Scripted(ConnectionError("reset"))
    with pytest.raises(ConnectionError):
        mulligan.tool(effects="none", policy=mulligan.Policy(attempts=1))(tool)()
    assert len(tool.calls) == 1


def test_an_agent_error_is_repaired_and_the_repair_is_announced(played: Sandbox) -> None:
    @mulligan.tool(clamp=["top_k"])
    def search(query: str, top_k: int = 5) -> int:
        if top_k > 10:
            raise AgentError(f"top_k must be 10 or less, got {top_k}.", hint="Ask for 10.")
        return top_k

    with mulligan.run("agent") as run:
        assert search("fish", top_k=50) == 10
        (note,) = mulligan.drain_notes()
        assert "top_k 50 -> 10" in note
        assert mulligan.drain_notes() == []
    assert run.status == "recovered"
    assert [step.arguments for step in played.steps] == [
        {"query": "fish", "top_k": 50},
        {"query": "fish", "top_k": 10},
    ]


def test_a_repair_that_then_had_to_wait_is_announced_too(played: Sandbox) -> None:
    tries: list[int] = []

    @mulligan.tool(effects="none", clamp=["top_k"])
    def search(top_k: Annotated[int, AtMost(le=10)]) -> int:
        tries.append(top_k)
        if top_k > 10:
            raise AgentError("top_k must be 10 or less.")
        if len(tries) == 2:
            raise ConnectionError("reset")
        return top_k

    with mulligan.run("agent"):
        assert search(50) == 10
        assert "top_k 50 -> 10" in mulligan.drain_notes()[0]
    assert tries == [50, 10, 10]


def test_a_repaired_argument_stays_where_the_caller_put_it(played: Sandbox) -> None:
    @mulligan.tool(clamp=["top_k"])
    def search(query: str, top_k: int, /, **more: Any) -> Any:
        if top_k > 10:
            raise AgentError("top_k must be 10 or less.")
        return query, top_k, more

    assert search("fish", 50, query="other") == ("fish", 10, {"query": "other"})


def test_an_agent_error_that_says_it_cannot_be_recovered_is_told_and_not_retried(played: Sandbox) -> None:
    tool = Scripted(AgentError("top_k must be 10 or less.", recoverable=False))
    with pytest.raises(AgentError) as left:
        mulligan.tool(effects="none")(tool)(top_k=50)
    assert len(tool.calls) == 1
    assert "declared unrecoverable" in notes(left.value)


def test_an_infra_error_is_never_retried(played: Sandbox) -> None:
    tool = Scripted(InfraError("the database is down"))
    with pytest.raises(InfraError):
        mulligan.tool(effects="none")(tool)()
    assert len(tool.calls) == 1
    assert played.backoffs == []


def test_a_type_error_of_the_call_itself_proves_that_nothing_happened(played: Sandbox) -> None:
    ran: list[int] = []

    @mulligan.tool
    def pay(cents: int) -> None:
        ran.append(cents)

    with pytest.raises(TypeError):
        pay(cents=1, currency="EUR")  # type: ignore[call-arg]
    failure = played.steps[0].failure
    assert failure is not None
    assert (str(failure.kind), failure.took_effect) == ("tool/invalid_arguments", TookEffect.NO)
    assert ran == []


def test_a_type_error_of_the_call_of_a_stream_or_coroutine_proves_it_too(played: Sandbox) -> None:
    @mulligan.tool
    def stream(n: int) -> Iterator[int]:
        yield n

    @mulligan.tool
    async def fetch(n: int) -> int:
        return n

    with pytest.raises(TypeError):
        list(stream(m=1))  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        asyncio.run(fetch(m=1))  # type: ignore[call-arg]
    assert [(str(step.failure.kind), step.failure.took_effect) for step in played.steps if step.failure] == [
        ("tool/invalid_arguments", TookEffect.NO)
    ] * 2


def test_a_type_error_from_inside_the_function_proves_nothing(played: Sandbox) -> None:
    @mulligan.tool
    def pay(cents: int) -> Any:
        return cents + "EUR"  # type: ignore[operator]

    with pytest.raises(TypeError):
        pay(1)
    assert played.steps[0].failure is not None
    assert played.steps[0].failure.took_effect is not TookEffect.NO


def test_a_type_error_from_inside_a_function_of_c_proves_nothing(played: Sandbox) -> None:
    with pytest.raises(TypeError):
        mulligan.tool(len)(3)  # type: ignore[arg-type]
    assert played.steps[0].failure is not None
    assert played.steps[0].failure.took_effect is not TookEffect.NO


def test_a_schema_is_checked_before_the_call_is_made(played: Sandbox) -> None:
    tool = Scripted("ok")
    schema = {"type": "object", "properties": {"days": {"type": "integer", "maximum": 7}}}
    assert mulligan.tool(schema=schema, effects="none")(tool)(days="7") == "ok"
    assert tool.calls == [((), {"days": 7})]


# What is told of it


def test_the_note_on_an_exception_says_what_was_tried(played: Sandbox) -> None:
    with pytest.raises(ConnectionError) as left:
        mulligan.tool(effects="none", policy=mulligan.Policy(attempts=3))(
            Scripted(*(ConnectionError("reset") for _ in range(3)))
        )()
    (note,) = getattr(left.value, "__notes__", [])
    assert note.startswith("mulligan: tool/connection_error after 3 attempts (")
    assert f"mulligan show {played.steps[0].run[:12]}" in note


def test_the_note_comes_from_the_layer_that_retried(played: Sandbox) -> None:
    inner = mulligan.tool(effects="none", name="inner")(Scripted(*(ConnectionError("reset") for _ in range(3))))
    outer = mulligan.tool(effects="none", name="outer", policy=mulligan.Policy(attempts=3))(lambda: inner())
    with pytest.raises(ConnectionError) as left:
        outer()
    assert notes(left.value).count("mulligan:") == 1
    assert "3 attempts" in notes(left.value)


def test_an_exception_that_is_raised_again_and_again_has_one_note(played: Sandbox) -> None:
    error = ValueError("the same object each time")
    error.add_note("from its author")
    for _ in range(3):
        with pytest.raises(ValueError, match="the same object"):
            mulligan.tool(Scripted(error))()
    assert len(error.__notes__) == 2
    assert error.__notes__[0] == "from its author"


def test_cause_and_context_of_an_exception_stay_as_they_were(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    def fetch() -> None:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ConnectionError("outer") from inner

    with pytest.raises(ConnectionError) as left:
        fetch()
    assert isinstance(left.value.__cause__, KeyError)
    assert left.value.__cause__.__context__ is None


def test_an_exception_that_refuses_every_look_at_it_leaves_as_itself(played: Sandbox) -> None:
    class Closed(Exception):
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("__"):
                return super().__getattribute__(name)
            raise RuntimeError(name)

        def __str__(self) -> str:
            raise RuntimeError("str")

        __repr__ = __str__

    @mulligan.tool(effects="none")
    def closed() -> None:
        raise Closed

    with pytest.raises(Closed):
        closed()
    assert [step.outcome for step in played.steps] == ["failure"]


def test_a_call_with_arguments_that_hold_each_other_fails_as_it_would_without_us(played: Sandbox) -> None:
    parent: dict[str, Any] = {"children": []}
    parent["children"] += [{"parent": parent, "root": parent} for _ in range(3)]

    @mulligan.tool(effects="none")
    def draw(node: dict[str, Any], width: int) -> None:
        raise ValueError("width must be at most 10")

    with mulligan.run("agent"):
        for _ in range(2):
            with pytest.raises(ValueError, match="at most 10"):
                draw(parent, "wide")
    assert {step.outcome for step in played.steps} == {"failure"}


def test_an_exception_that_leaves_is_not_kept_alive(played: Sandbox) -> None:
    import gc
    import weakref

    class Mine(Exception):
        pass

    with mulligan.run("agent"):
        tool = mulligan.tool(Scripted(Mine("gone")))
        try:
            tool()
        except Mine as error:
            watched = weakref.ref(error)
        gc.collect()
        assert watched() is None


# Cancellation


@pytest.mark.parametrize("shape", ["sync", "async"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_is_no_failure_passes_straight_through_and_is_recorded_as_cancelled(
    played: Sandbox, kind: type[BaseException], shape: str
) -> None:
    error = kind()

    @mulligan.tool(effects="none")
    def sync() -> None:
        raise error

    @mulligan.tool(effects="none")
    async def coroutine() -> None:
        raise error

    def drive() -> None:
        if shape == "sync":
            sync()
        else:
            coroutine().send(None)  # no loop between us, which has its own mind about some of these

    with pytest.raises(kind) as left:
        drive()
    assert left.value is error
    assert [step.outcome for step in played.steps] == ["cancelled"]
    assert played.runs[0].run.end_reason == "finished"


def test_cancellation_during_a_wait_passes() -> None:
    with sandbox() as played:
        waiting = asyncio.Event()

        async def long(seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        force_setattr(played.components.capture, "async_sleep", long)
        tool = Scripted(ConnectionError("reset"), "never")

        @mulligan.tool(effects="none")
        async def fetch() -> Any:
            return tool()

        async def main() -> None:
            task = asyncio.create_task(fetch())
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert len(tool.calls) == 1


def test_an_interrupt_during_a_wait_passes() -> None:
    with sandbox() as played:

        def interrupted(seconds: float) -> None:
            raise KeyboardInterrupt

        force_setattr(played.components.capture, "sleep", interrupted)
        tool = Scripted(ConnectionError("reset"), "never")
        with pytest.raises(KeyboardInterrupt):
            mulligan.tool(effects="none")(tool)()
        assert len(tool.calls) == 1


def test_a_coroutine_that_is_thrown_away_in_another_context_is_closed_without_a_sound(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    async def fetch() -> None:
        await asyncio.Event().wait()

    coroutine = fetch()

    async def begin() -> None:
        contextvars.copy_context().run(coroutine.send, None)

    asyncio.run(begin())
    coroutine.close()  # in a context that never saw it begin
    assert [step.outcome for step in played.steps] == ["cancelled"]


def test_a_user_who_refuses_is_not_a_failure(played: Sandbox) -> None:
    class UserRejected(Exception):
        pass

    tool = Scripted(UserRejected("The user doesn't want to proceed with this tool use. The tool use was rejected"))
    with pytest.raises(UserRejected):
        mulligan.tool(effects="none")(tool)()
    assert [step.outcome for step in played.steps] == ["blocked"]
    assert len(tool.calls) == 1


def test_async_waits_are_recorded_and_take_no_time(played: Sandbox) -> None:
    tool = Scripted(RateLimited(20.0), "ok")

    @mulligan.tool(effects="none")
    async def fetch() -> Any:
        return tool()

    assert asyncio.run(fetch()) == "ok"
    assert played.backoffs == [20.0]


def test_what_worked_before_is_in_the_note(played: Sandbox) -> None:
    @mulligan.tool
    def book(days: int, hotel: str) -> str:
        if days > 7:
            raise AgentError("too long", recoverable=False)
        return "ok"

    texts = []
    for hotel in ("Plaza", "Ritz", "Savoy"):
        with mulligan.run(hotel):
            try:
                book(9, hotel)
            except AgentError as error:
                texts.append(notes(error))
                book(5, hotel)
    assert ["days=5" in text for text in texts] == [False, False, True]


def test_that_question_is_asked_by_async_callers_too(played: Sandbox) -> None:
    asked: list[Callable[..., Any]] = []
    force_setattr(played.components.capture, "lookup_precedents", lambda *about: asked.append(about[0]) or ())

    @mulligan.tool
    async def book() -> None:
        raise AgentError("no", recoverable=False)

    with pytest.raises(AgentError):
        asyncio.run(book())
    assert asked == ["book"]


@pytest.mark.parametrize(("effects", "is_told"), [("once", False), ("idempotent", True)])
def test_nobody_is_told_to_do_twice_what_may_have_happened(effects: Any, is_told: bool) -> None:
    is_lost = True

    @mulligan.tool(effects=effects)
    def pay(invoice: str) -> str:
        if is_lost:
            raise TimeoutError("the answer was lost")
        return "paid"

    with sandbox(attempts=1):
        for _ in range(3):  # what worked in two runs is told in the third
            with mulligan.run("till"):
                is_lost = True
                with pytest.raises(TimeoutError) as left:
                    pay("INV-1")
                is_lost = False
                assert pay("INV-1") == "paid"

    assert ("In earlier runs a later retry" in "".join(left.value.__notes__)) is is_told


@pytest.mark.parametrize("is_async", [False, True])
def test_the_time_of_a_failed_attempt_is_that_of_the_function_and_not_of_what_we_make_of_it(
    played: Sandbox, is_async: bool
) -> None:
    class SlowToSay(TimeoutError):
        def __str__(self) -> str:
            for _ in range(1000):
                played._now()  # a second goes by for each look at the text
            return "timed out"

    @mulligan.tool(effects="none")
    def search(query: str) -> str:
        raise SlowToSay

    @mulligan.tool(effects="none")
    async def asearch(query: str) -> str:
        raise SlowToSay

    with pytest.raises(SlowToSay):
        asyncio.run(asearch("fish")) if is_async else search("fish")

    assert len(played.steps) > 3
    assert all(step.duration_seconds < 0.1 for step in played.steps), [step.duration_seconds for step in played.steps]


@pytest.mark.parametrize("schema", [None, {"type": "object", "properties": {}}])
def test_what_a_failed_call_held_is_free_once_its_exception_is_handled(played: Sandbox, schema: Any) -> None:
    class Connection:
        pass

    held: list[weakref.ref[Connection]] = []

    @mulligan.tool(schema=schema)
    def fetch() -> None:
        connection = Connection()
        held.append(weakref.ref(connection))
        raise ValueError("no such page")

    gc.disable()  # a cycle would wait for the collector
    try:
        with contextlib.suppress(ValueError):
            fetch()
        assert [reference() for reference in held] == [None]
    finally:
        gc.enable()
