"""Sync and async tools do the same; the two streams and the two first attempts differ only where they await."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan import AgentError, InfraError
from mulligan.capture import stream, wrap
from mulligan.core.failure import TookEffect
from mulligan.recover.policy import Policy
from mulligan.testing import Sandbox

SYNC_NAMES = {
    "aexecute_plan": "execute_plan",
    "aopen": "open",
    "anext": "next",
    "asend": "send",
    "athrow": "throw",
    "aclose": "close",
    "astreaming": "streaming",
    "build_async_wrapper": "build_sync_wrapper",
    "AsyncGenerator": "Generator",
    "StopAsyncIteration": "StopIteration",
}


class AsIfSync(ast.NodeTransformer):
    """Takes the async out of a function, so that what is left can be compared."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        fields = {name: getattr(node, name) for name in node._fields}
        return self.visit_FunctionDef(ast.copy_location(ast.FunctionDef(**fields), node))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.name = SYNC_NAMES.get(node.name, node.name)
        node.returns = None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        # An async generator has no value to return.
        node.body = [each for each in node.body if ast.unparse(each) != "return state.value"]
        return self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> Any:
        return self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> Any:
        node.id = SYNC_NAMES.get(node.id, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        node.attr = SYNC_NAMES.get(node.attr, node.attr)
        return self.generic_visit(node)


def as_if_sync(function: Callable[..., Any]) -> str:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return ast.unparse(AsIfSync().visit(tree))


@pytest.mark.parametrize(
    ("sync", "async_"),
    [
        (stream.streaming, stream.astreaming),
        (wrap.build_sync_wrapper, wrap.build_async_wrapper),
    ],
    ids=["streams", "first attempts"],
)
def test_the_source_of_the_two_differs_only_where_one_awaits(
    sync: Callable[..., Any], async_: Callable[..., Any]
) -> None:
    assert as_if_sync(async_) == as_if_sync(sync)
    assert "await" in inspect.getsource(async_)
    assert "await" not in inspect.getsource(sync)


class RateLimited(Exception):
    def __init__(self, retry_after: str) -> None:
        super().__init__("429 Too Many Requests")
        self.status_code = 429
        self.headers = {"retry-after": retry_after}


class Bug(Exception):
    pass


HAPPENINGS: list[Callable[[], BaseException | None]] = [
    lambda: None,
    lambda: ConnectionError("reset"),
    lambda: TimeoutError("no answer"),
    lambda: RateLimited("2"),
    lambda: RateLimited("3600"),
    lambda: AgentError("n must be 10 or less."),
    lambda: AgentError("no", recoverable=False),
    lambda: InfraError("down"),
    lambda: Bug("a mistake"),
    lambda: KeyboardInterrupt(),
]
Script = list[Callable[[], BaseException | None]]


class Options(NamedTuple):
    """What a developer may say of a tool."""

    effects: Any = "none"
    attempts: int = 3
    verify: tuple[Any, ...] = ()
    """What the developer's check answers: nothing for none, an error to raise, or whether it had happened."""
    rejects: tuple[int, ...] = ()
    timeout: float | None = None


OPTIONS = st.builds(
    Options,
    effects=st.sampled_from(["none", "idempotent", "once"]),
    attempts=st.integers(1, 4),
    verify=st.sampled_from([(), (None,), (False,), ("it is there",), (Bug("the check is broken"),)]),
    rejects=st.sampled_from([(), (429,), (422, 429)]),
    timeout=st.sampled_from([None, 0.4, 2.5, 60.0]),
)


class Play:
    """The same tool, played once: what happened, and what it came to."""

    def __init__(self, script: Script, options: Options, shape: str) -> None:
        self.script = list(script)
        self.options = options
        self.checked: list[int] = []
        self.rehearsal = Sandbox(policy=Policy(attempts=options.attempts))
        made: Callable[..., Any] = getattr(self, shape)
        check = self.check if shape in ("sync", "generator") else self.acheck
        tool = self.rehearsal.mulligan.tool(
            effects=options.effects,
            name="tool",
            verify=check if options.verify else None,
            rejection_statuses=options.rejects,
            timeout=options.timeout,
        )(made)
        try:
            self.came_to: Any = self.read(shape, tool)
        except BaseException as error:  # noqa: BLE001 - compared with what comes out of the other
            self.came_to = type(error), str(error), [note.partition("Details")[0] for note in _notes(error)]

    def happens(self, n: int) -> int:
        error = self.script.pop(0)() if self.script else None
        if error is not None:
            raise error
        return n

    def check(self, n: int) -> Any:
        self.checked.append(n)
        (answer,) = self.options.verify
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def acheck(self, n: int) -> Any:
        return self.check(n)

    def sync(self, n: int) -> int:
        return self.happens(n)

    async def coroutine(self, n: int) -> int:
        return self.happens(n)

    def generator(self, n: int) -> Iterator[int]:
        yield self.happens(n)
        yield self.happens(n)

    async def async_generator(self, n: int) -> AsyncIterator[int]:
        yield self.happens(n)
        yield self.happens(n)

    @staticmethod
    def read(shape: str, tool: Callable[..., Any]) -> Any:
        """Without an event loop, which has its own mind about interrupts: nothing here really waits."""
        if shape == "sync":
            return tool(50)
        if shape == "generator":
            return list(tool(50))

        async def read() -> Any:
            return [item async for item in tool(50)] if shape == "async_generator" else await tool(50)

        return asyncio.run(read())

    @property
    def told(self) -> Any:
        steps = [
            (step.seq, step.call, step.attempt, step.arguments, step.outcome, step.result, step.recovery, step.stop)
            for step in self.rehearsal.steps
        ]
        failures = [step.failure and (step.failure.kind, step.failure.took_effect) for step in self.rehearsal.steps]
        events = [event.name for event in self.rehearsal.events]
        return self.came_to, self.checked, self.rehearsal.backoffs, steps, failures, events


def _notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


@pytest.mark.parametrize(("sync", "async_"), [("sync", "coroutine"), ("generator", "async_generator")])
@given(script=st.lists(st.sampled_from(HAPPENINGS), max_size=6), options=OPTIONS)
def test_both_players_make_the_same_moves_whatever_happens(
    sync: str, async_: str, script: Script, options: Options
) -> None:
    assert Play(script, options, sync).told == Play(script, options, async_).told


@given(script=st.lists(st.sampled_from(HAPPENINGS), max_size=6), options=OPTIONS)
def test_a_call_is_repeated_only_where_that_is_safe_whatever_happens(script: Script, options: Options) -> None:
    # A check may settle that nothing had happened, and a step may be its answer: here nobody checks.
    options = options._replace(verify=())
    steps = [step for step in Play(script, options, "sync").rehearsal.steps if not step.is_skipped]
    assert 1 <= len(steps) <= options.attempts
    for before, step in itertools.pairwise(steps):
        assert before.failure is not None
        assert before.failure.recoverable
        if options.effects == "once":
            assert before.failure.took_effect is TookEffect.NO
            assert step.recovery is not None
            assert step.recovery.changes, "the same call of a once tool is never made twice"


@given(depth=st.integers(1, 5), attempts=st.integers(1, 4))
def test_however_deep_wrapped_calls_are_nested_one_layer_retries(depth: int, attempts: int) -> None:
    rehearsal = Sandbox(policy=Policy(attempts=attempts))
    executed: list[int] = []

    def innermost() -> None:
        executed.append(1)
        raise ConnectionError("reset")

    layer: Callable[[], Any] = innermost
    for _ in range(depth):
        layer = rehearsal.mulligan.tool(effects="none")(lambda inner=layer: inner())
    with pytest.raises(ConnectionError):
        layer()
    assert len(executed) == attempts
