"""An agent loop: ask the model, execute its calls, return the results, until it makes no more calls.

`Loop.conversation` yields the moves; two short drivers, sync and async, execute them.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from mulligan.capture.attempts import Attempts
from mulligan.capture.dialects import Dialect, Said, dialect_of, said, taught
from mulligan.capture.kit import Kit
from mulligan.capture.messages import condensed
from mulligan.capture.signature import code_of
from mulligan.capture.tracer import ActiveRun, scope
from mulligan.capture.turns import OURS, Tools, Turn, Turns, known_as, named
from mulligan.capture.wrap import ToolOptions, Wrapped, wrap
from mulligan.failure import Failure, SettingsError
from mulligan.records import Status

Model = Callable[..., Any]
Messages = Sequence[Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The result of a loop: the last text, the status, and why it ended."""

    text: str
    status: Status
    why: str
    """Why it ended, including the first unrecovered call, if any."""
    cause: Failure | None = None
    """The root cause: the first unrecovered failure."""
    turns: int = 0
    report: str = ""
    """Which calls succeeded and which failed, as text."""
    run: str = ""
    messages: list[Any] = field(default_factory=list, repr=False)
    """The whole conversation, in the model's format."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Say:
    """Move: ask the model. The driver sends back its reply."""

    arguments: tuple[Any, ...]
    named: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Know:
    """Move: load the lessons about the tools, within a token limit. The driver sends back a text."""

    tools: Sequence[str]
    budget: int


@dataclass(frozen=True, slots=True)
class Call:
    """Move: execute a call that the model requested. The driver sends back the answer for the model."""

    turn: Turn
    name: str
    arguments: Any


Conversation = Generator[Know | Say | Call, Any, Finished]


class Loop:
    """The state of one loop: model, tools and conversation."""

    def __init__(
        self, kit: Kit, model: Model, tools: Tools, messages: Messages, limit: int, style: str | None, teach: int = 0
    ) -> None:
        if not callable(model):
            raise SettingsError(f"model is a function that takes messages and answers, got {type(model).__name__}.")
        self.kit = kit
        self.tools = named(tools)
        self.turns = Turns(lambda: kit, limit)
        known = known_as(model)
        self.is_async = known.is_async if known else inspect.iscoroutinefunction(code_of(model))
        options = ToolOptions(name=getattr(model, "__name__", "") or "model", type="model", effects="none")
        self.model = model if known else wrap(model, lambda: kit, options)
        self._refuse_async_tools()
        self._takes_tools = _takes_tools(model)
        if not isinstance(messages, Sequence):
            raise SettingsError(f"messages is a text, or a list of messages, got {type(messages).__name__}.")
        self._messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        self._style = style
        self._dialect: Dialect = dialect_of(style, self._messages)
        self._teach = teach

    def _refuse_async_tools(self) -> None:
        for name, tool in self.tools.items():
            known = known_as(tool)
            if not self.is_async and (known.is_async if known else inspect.iscoroutinefunction(code_of(tool))):
                raise SettingsError(f"{name} is async and the model is not. Give an async model, and await the loop.")

    def scope(self) -> AbstractContextManager[ActiveRun]:
        return scope(self.kit)

    def conversation(self, run: ActiveRun) -> Conversation:
        """Yield the moves of the loop. Return its result."""
        run.is_alone = False
        if self._teach:
            names = [known.name if (known := known_as(tool)) else name for name, tool in self.tools.items()]
            if told := (yield Know(names, self._teach)):
                # set the context before adding lessons: it is the user's text
                run.hear(condensed({"messages": self._messages})[1])
                self._messages = taught(self._messages, told)
        for turn in self.turns:
            if turn.notice:
                self._dialect.tell(self._messages, turn.notice)
            reply = said((yield Say((list(self._messages),), self._offer(turn))), self._dialect)
            self._dialect = reply.dialect
            self._messages.append(reply.message)
            if not reply.calls:
                return self._finished(run, turn, reply.text, self._why(run, reply))
            if not turn.is_last:
                yield from self._answers(turn, reply)
        cause = self._cause(run)
        told = f"{self.turns.limit} turns were used up"
        why = f"{told}; {_told(cause)}" if cause else told
        run.record_failure("orchestration", "max_retries_exceeded", why)
        return self._finished(run, turn, reply.text, why)

    def known(self, asked: Know) -> str:
        return self.kit.pitfalls(asked.tools, asked.budget)

    async def aknown(self, asked: Know) -> str:
        import asyncio  # lazy: only for async callers, which have loaded it

        return await asyncio.to_thread(self.known, asked)

    def _answers(self, turn: Turn, reply: Said) -> Generator[Call, Any, None]:
        answers = []
        for call in reply.calls:
            answer = yield Call(turn, call.name, call.arguments)
            is_error = isinstance(answer, dict) and ("recoverable" in answer or "recoverable" in _block(answer))
            answers.append((call.id, answer, is_error))
        self._dialect.answer(self._messages, answers)

    def _offer(self, turn: Turn) -> dict[str, Any]:
        """Return the `tools` argument for a model that accepts it; no tools in the last turn."""
        if not self._takes_tools:
            return {}
        tools = {} if turn.is_last else {name: _wrapped(tool, name, self.kit) for name, tool in self.tools.items()}
        offered = [(name, tool.signature.description, tool.schema() or {}) for name, tool in tools.items()]
        return {"tools": [self._dialect.tool(*each) for each in offered]}

    def _why(self, run: ActiveRun, reply: Said) -> str:
        told = "the model answered" if reply.text else "the model had nothing more to say"
        cause = self._cause(run)
        return f"{told}, although {_told(cause)}" if cause else told

    def _cause(self, run: ActiveRun) -> tuple[Attempts, Failure] | None:
        """Return the first unrecovered call with its failure."""
        overcome = {link.failed for link in run.links()}
        for call in self.turns.made:
            failure = call.given_up.failure if call.given_up is not None else call.failure
            if failure is not None and failure.counts and call.number not in overcome:
                return call, failure
        return None

    def _finished(self, run: ActiveRun, turn: Turn, text: str, why: str) -> Finished:
        cause = self._cause(run)
        return Finished(
            text=text,
            status=run.status,
            why=why,
            cause=cause[1] if cause else None,
            turns=turn.number,
            report=self.turns.report(),
            run=run.id,
            messages=self._messages,
        )


def play(loop: Loop) -> Finished:
    """Run a loop in this thread."""
    with loop.scope() as run:
        moves, answer = loop.conversation(run), None
        while True:
            try:
                move = moves.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            match move:
                case Say():
                    answer = loop.model(*move.arguments, **move.named)
                case Know():
                    answer = loop.known(move)
                case Call():
                    answer = move.turn.call(loop.tools, move.name, move.arguments)


async def aplay(loop: Loop) -> Finished:
    """Run a loop in this task."""
    with loop.scope() as run:
        moves, answer = loop.conversation(run), None
        while True:
            try:
                move = moves.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            match move:
                case Say():
                    answer = await loop.model(*move.arguments, **move.named)
                case Know():
                    answer = await loop.aknown(move)
                case Call():
                    answer = await move.turn.acall(loop.tools, move.name, move.arguments)


def started(
    kit: Kit, model: Model, tools: Tools, messages: Messages, limit: int, style: str | None, teach: int = 0
) -> Finished | Awaitable[Finished]:
    """Run a loop to its end. With an async model, return an awaitable."""
    loop = Loop(kit, model, tools, messages, limit, style, teach)
    return aplay(loop) if loop.is_async else play(loop)


def _told(cause: tuple[Attempts, Failure]) -> str:
    call, failure = cause
    return call.words.cause(call.tool.name, failure)


def _block(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    block = answer.get(OURS)
    return block if isinstance(block, Mapping) else {}


def _wrapped(function: Callable[..., Any], name: str, kit: Kit) -> Wrapped:
    return known_as(function) or Wrapped(function, lambda: kit, ToolOptions(name=name))


def _takes_tools(model: Model) -> bool:
    try:
        return "tools" in inspect.signature(model).parameters
    except (TypeError, ValueError):
        return False
