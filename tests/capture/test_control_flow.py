"""Exceptions with which a framework steers pass through unchanged, at once, and are no failures.

The classes here stand in for those of the frameworks, under their names. `tests/frameworks` has the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import mulligan
from mulligan.capture.framework_classes import CONTROL_FLOW
from mulligan.testing import Sandbox, ScriptedModel, call, sandbox

LIBRARY_NAMES = sorted(name for name in CONTROL_FLOW if not name.startswith(("builtins:", "asyncio.", "bdb:")))


def stand_in(name: str, *bases: type[BaseException]) -> type[Any]:
    """Build an exception class with the qualified name of another library's class."""
    module, _, class_name = name.partition(":")
    return type(class_name, bases or (Exception,), {"__module__": module})


GraphInterrupt = stand_in("langgraph.errors:GraphInterrupt", stand_in("langgraph.errors:GraphBubbleUp"))
ApprovalRequired = stand_in("pydantic_ai.exceptions:ApprovalRequired")


class Pause(Exception):
    """An exception of the user's own program."""


def assert_no_failure(played: Sandbox, outcomes: list[str]) -> None:
    assert [step.outcome for step in played.steps] == outcomes
    assert [step.failure for step in played.steps] == [None] * len(outcomes)
    assert played.backoffs == []
    assert [history.run.end_reason for history in played.runs] == ["finished"] * len(played.runs)


def assert_unchanged(left: BaseException, raised: BaseException) -> None:
    assert left is raised
    assert not hasattr(left, "__notes__")
    assert (left.__cause__, left.__context__) == (None, None)


@pytest.mark.parametrize("options", [{}, {"timeout": 5.0}], ids=["plain", "checked"])
@pytest.mark.parametrize("name", [*LIBRARY_NAMES, "builtins:StopIteration", "builtins:StopAsyncIteration"])
def test_a_tool_that_raises_control_flow_is_called_once_and_its_exception_leaves_unchanged(
    played: Sandbox, name: str, options: dict[str, Any]
) -> None:
    base = {"builtins:StopIteration": StopIteration, "builtins:StopAsyncIteration": StopAsyncIteration}.get(name)
    raised = base() if base else stand_in(f"{name}OfMine", stand_in(name))("wait for a person")
    calls = []

    @mulligan.tool(effects="none", **options)
    def ask(question: str) -> str:
        calls.append(question)
        raise raised

    with pytest.raises(type(raised)) as left:
        ask("May I?")
    assert_unchanged(left.value, raised)
    assert calls == ["May I?"]
    assert_no_failure(played, ["cancelled"])


@pytest.mark.parametrize("name", ["pydantic_ai.exceptions:ToolFailed", "agno.exceptions:AgnoError"])
def test_errors_of_the_same_frameworks_are_failures(played: Sandbox, name: str) -> None:
    @mulligan.tool
    def ask() -> str:
        raise stand_in(name)("it is broken")

    with pytest.raises(Exception, match="it is broken"):
        ask()
    assert [step.outcome for step in played.steps] == ["failure"]


def test_a_timeout_is_a_failure_even_if_its_base_is_control_flow(played: Sandbox) -> None:
    timed_out = stand_in(
        "pydantic_ai.exceptions:RunTimedOut", stand_in("pydantic_ai.exceptions:RunCancelled"), TimeoutError
    )

    @mulligan.tool
    def ask() -> str:
        raise timed_out("too slow")

    with pytest.raises(TimeoutError):
        ask()
    assert [step.failure.kind for step in played.steps if step.failure] == ["tool/timeout"]


def test_an_async_tool_passes_control_flow(played: Sandbox) -> None:
    raised = GraphInterrupt()

    @mulligan.tool(effects="none")
    async def ask() -> str:
        raise raised

    with pytest.raises(GraphInterrupt) as left:
        asyncio.run(ask())
    assert left.value is raised
    assert_no_failure(played, ["cancelled"])


def test_a_retry_that_raises_control_flow_ends_the_call(played: Sandbox) -> None:
    script = [ConnectionError("reset"), GraphInterrupt()]

    @mulligan.tool(effects="none")
    def ask() -> str:
        raise script.pop(0)

    with pytest.raises(GraphInterrupt):
        ask()
    assert [step.outcome for step in played.steps] == ["failure", "cancelled"]


def test_a_model_passes_control_flow_without_its_fallbacks(played: Sandbox) -> None:
    @mulligan.model(fallback=lambda failure: "made up", fallback_models=["other"])
    def chat(messages: list[str], model: str = "first") -> str:
        raise GraphInterrupt

    with pytest.raises(GraphInterrupt):
        chat(["hello"])
    assert_no_failure(played, ["cancelled"])


@pytest.mark.parametrize("items", [0, 2])
def test_streams_pass_control_flow_before_and_after_the_first_item(played: Sandbox, items: int) -> None:
    @mulligan.tool(effects="none")
    def sync() -> Iterator[int]:
        yield from range(items)
        raise GraphInterrupt

    @mulligan.tool(effects="none")
    async def coroutine() -> AsyncIterator[int]:
        for item in range(items):
            yield item
        raise GraphInterrupt

    @mulligan.model
    def chat(messages: Any, stream: bool = False) -> Any:
        return sync.__wrapped__()  # type: ignore[attr-defined]

    async def read() -> None:
        async for _ in coroutine():
            pass

    for stream in (lambda: list(sync()), lambda: asyncio.run(read()), lambda: list(chat([], stream=True))):
        with pytest.raises(GraphInterrupt):
            stream()
    assert_no_failure(played, ["cancelled", "cancelled", "cancelled"])


def test_nested_calls_steps_and_runs_pass_control_flow(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    def inner() -> str:
        raise GraphInterrupt

    @mulligan.tool(effects="none")
    def outer() -> str:
        return inner()

    with pytest.raises(GraphInterrupt), mulligan.run("asker") as run, run.step("plan", "ask"):
        outer()
    assert run.status == "success"
    assert_no_failure(played, ["cancelled", "cancelled", "cancelled"])


def run_turn(tools: list[Any]) -> None:
    for turn in mulligan.turns(limit=2):
        turn.call(tools, "ask", {})


def run_async_turn(tools: list[Any]) -> None:
    async def main() -> None:
        for turn in mulligan.turns(limit=2):
            await turn.acall(tools, "ask", {})

    asyncio.run(main())


def run_loop(tools: list[Any]) -> None:
    mulligan.loop(ScriptedModel(call("ask"), "done"), tools, "Ask.")


@pytest.mark.parametrize("drive", [run_turn, run_async_turn, run_loop])
def test_an_agent_loop_raises_control_flow_instead_of_answering_the_model(
    played: Sandbox, drive: Callable[..., Any]
) -> None:
    raised = ApprovalRequired("wait for a person")

    @mulligan.tool
    def ask() -> str:
        raise raised

    with pytest.raises(ApprovalRequired) as left:
        drive([ask])
    assert left.value is raised
    assert {step.outcome for step in played.steps if step.type == "tool"} == {"cancelled"}
    assert [step.failure for step in played.steps if step.failure] == []


@pytest.mark.parametrize(
    ("error", "leaving"), [(GraphInterrupt, GraphInterrupt), (StopIteration, TimeoutError), (KeyError, TimeoutError)]
)
def test_verify_may_interrupt_to_ask_a_person_but_its_own_errors_replace_nothing(
    played: Sandbox, error: type[Exception], leaving: type[Exception]
) -> None:
    def verify(amount: int) -> None:
        raise error

    @mulligan.tool(verify=verify)
    def pay(amount: int) -> str:
        raise TimeoutError("no answer")

    with pytest.raises(leaving):
        pay(5)
    assert [step.outcome for step in played.steps] == ["failure"]


def test_a_group_of_control_flow_is_control_flow_and_a_mixed_one_a_failure(played: Sandbox) -> None:
    def group(*members: Exception) -> ExceptionGroup[Exception]:
        return ExceptionGroup("tasks", [ExceptionGroup("inner", list(members))])

    @mulligan.tool
    def ask(error: str) -> str:
        raise group(GraphInterrupt(), *([ValueError("broken")] if error else []))

    for error in ("", "mixed"):
        with pytest.raises(ExceptionGroup):
            ask(error)
    assert [step.outcome for step in played.steps] == ["cancelled", "failure"]


@pytest.mark.parametrize("entry", [Pause, f"{Pause.__module__}:Pause"], ids=["class", "name"])
def test_settings_add_exceptions_of_the_program(entry: Any) -> None:
    class Later(Pause):
        pass

    def ask() -> str:
        raise Later("not now")

    for settings, expected in ((dict[str, Any](), "failure"), ({"control_flow": [entry]}, "cancelled")):
        with sandbox(**settings) as played:
            with pytest.raises(Later):
                mulligan.tool(effects="none")(ask)()
            assert [step.outcome for step in played.steps] == [expected]


def test_a_run_left_by_control_flow_has_finished_and_an_interrupted_one_is_abandoned(played: Sandbox) -> None:
    expected = {
        GraphInterrupt: "finished",
        stand_in("google.adk.workflow._errors:NodeInterruptedError", BaseException): "finished",
        StopIteration: "finished",
        pytest.skip.Exception: "finished",
        stand_in("agents.exceptions:_Cancelled", asyncio.CancelledError, Exception): "abandoned",
        KeyboardInterrupt: "abandoned",
        ValueError: "raised",
    }
    for kind in expected:
        with pytest.raises(kind), mulligan.run("asker"):
            raise kind
    assert [history.run.end_reason for history in played.runs] == list(expected.values())


def test_what_recovered_before_is_not_linked_to_control_flow(played: Sandbox) -> None:
    """A call that paused says nothing about the failure before it."""
    script: list[Exception] = [ValueError("no"), GraphInterrupt()]

    @mulligan.tool
    def ask(question: str) -> str:
        raise script.pop(0)

    with mulligan.run("asker") as run:
        for kind in (ValueError, GraphInterrupt):
            with pytest.raises(kind):
                ask("May I?")
    assert run.links() == []
    assert run.status == "failure"


@pytest.mark.parametrize("attribute", ["__module__", "__qualname__"])
def test_a_class_whose_name_cannot_be_read_is_a_failure(played: Sandbox, attribute: str) -> None:
    class Hostile(type):
        def __getattribute__(cls, name: str) -> Any:
            if name == attribute:
                raise RuntimeError("unreadable")
            return super().__getattribute__(name)

    class Odd(Exception, metaclass=Hostile):
        pass

    @mulligan.tool
    def ask() -> str:
        raise Odd("broken")

    with pytest.raises(Odd):
        ask()
    assert [step.outcome for step in played.steps] == ["failure"]
