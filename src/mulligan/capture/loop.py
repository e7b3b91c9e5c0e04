"""An agent loop: ask the model, execute its calls, return the results, until it makes no more calls.

`Loop.conversation` yields the moves; two short drivers, sync and async, execute them.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from mulligan.capture.call_execution import Attempts
from mulligan.capture.context import Kit
from mulligan.capture.message_formats import (
    MessageFormat,
    ModelReply,
    choose_message_format,
    parse_reply,
    prepend_lessons,
)
from mulligan.capture.message_summary import summarize_arguments
from mulligan.capture.run import ActiveRun, scope
from mulligan.capture.signature import code_of
from mulligan.capture.turns import NOTE_KEY, Tools, Turn, Turns, tools_by_name, wrapped_of
from mulligan.capture.wrap import ToolOptions, WrappedFunction, wrap
from mulligan.core.failure import Failure, SettingsError
from mulligan.core.records import Status

Model = Callable[..., Any]
Messages = Sequence[Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """The result of a loop: the last text, the status, and why it ended."""

    text: str
    status: Status
    end_reason: str
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
class AskModel:
    """Move: ask the model. The driver sends back its reply."""

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoadLessons:
    """Move: load the lessons about the tools, within a token limit. The driver sends back a text."""

    tools: Sequence[str]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class CallTool:
    """Move: execute a call that the model requested. The driver sends back the answer for the model."""

    turn: Turn
    name: str
    arguments: Any


Conversation = Generator[LoadLessons | AskModel | CallTool, Any, LoopResult]


class Loop:
    """The state of one loop: model, tools and conversation."""

    def __init__(
        self,
        kit: Kit,
        model: Model,
        tools: Tools,
        messages: Messages,
        limit: int,
        style: str | None,
        max_lesson_tokens: int = 0,
    ) -> None:
        if not callable(model):
            raise SettingsError(
                f"Invalid model of type {type(model).__name__}. Use a function that takes messages and returns a reply."
            )
        self.kit = kit
        self.tools = tools_by_name(tools)
        self.turns = Turns(lambda: kit, limit)
        wrapped = wrapped_of(model)
        self.is_async = wrapped.is_async if wrapped else inspect.iscoroutinefunction(code_of(model))
        options = ToolOptions(name=getattr(model, "__name__", "") or "model", type="model", effects="none")
        self.model = model if wrapped else wrap(model, lambda: kit, options)
        self._reject_async_tools()
        self._takes_tools = _takes_tools(model)
        if not isinstance(messages, Sequence):
            raise SettingsError(
                f"Invalid messages of type {type(messages).__name__}. Use a string or a list of messages."
            )
        self._messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        self._style = style
        self._message_format: MessageFormat = choose_message_format(style, self._messages)
        self._max_lesson_tokens = max_lesson_tokens

    def _reject_async_tools(self) -> None:
        for name, tool in self.tools.items():
            wrapped = wrapped_of(tool)
            if not self.is_async and (wrapped.is_async if wrapped else inspect.iscoroutinefunction(code_of(tool))):
                raise SettingsError(f"{name} is async and the model is not. Use an async model and await the loop.")

    def scope(self) -> AbstractContextManager[ActiveRun]:
        return scope(self.kit)

    def conversation(self, run: ActiveRun) -> Conversation:
        """Yield the moves of the loop. Return its result."""
        run.is_implicit = False
        if self._max_lesson_tokens:
            names = [wrapped.name if (wrapped := wrapped_of(tool)) else name for name, tool in self.tools.items()]
            if text := (yield LoadLessons(names, self._max_lesson_tokens)):
                # set the context before adding lessons: it is the user's text
                run.set_context_if_unset(summarize_arguments({"messages": self._messages})[1])
                self._messages = prepend_lessons(self._messages, text)
        for turn in self.turns:
            if turn.notice:
                self._message_format.add_notice(self._messages, turn.notice)
            reply = parse_reply(
                (yield AskModel((list(self._messages),), self._tool_arguments(turn))), self._message_format
            )
            self._message_format = reply.message_format
            self._messages.append(reply.message)
            if not reply.calls:
                return self._build_result(run, turn, reply.text, self._describe_end(run, reply))
            if not turn.is_last:
                yield from self._answer_calls(turn, reply)
        cause = self._first_unrecovered(run)
        text = f"the limit of {self.turns.limit} turns is reached"
        end_reason = f"{text}; {_describe_cause(cause)}" if cause else text
        run.record_failure("orchestration", "max_retries_exceeded", end_reason)
        return self._build_result(run, turn, reply.text, end_reason)

    def load_lessons(self, request: LoadLessons) -> str:
        return self.kit.pitfalls(request.tools, request.max_tokens)

    async def aload_lessons(self, request: LoadLessons) -> str:
        import asyncio  # lazy: only for async callers, which have loaded it

        return await asyncio.to_thread(self.load_lessons, request)

    def _answer_calls(self, turn: Turn, reply: ModelReply) -> Generator[CallTool, Any, None]:
        answers = []
        for call in reply.calls:
            answer = yield CallTool(turn, call.name, call.arguments)
            is_error = isinstance(answer, dict) and ("recoverable" in answer or "recoverable" in _note_block(answer))
            answers.append((call.id, answer, is_error))
        self._message_format.add_results(self._messages, answers)

    def _tool_arguments(self, turn: Turn) -> dict[str, Any]:
        """Return the `tools` argument for a model that accepts it; no tools in the last turn."""
        if not self._takes_tools:
            return {}
        tools = {} if turn.is_last else {name: _wrap_tool(tool, name, self.kit) for name, tool in self.tools.items()}
        definitions = [(name, tool.signature.description, tool.schema() or {}) for name, tool in tools.items()]
        return {"tools": [self._message_format.format_tool(*definition) for definition in definitions]}

    def _describe_end(self, run: ActiveRun, reply: ModelReply) -> str:
        summary = "the model answered" if reply.text else "the model returned an empty answer"
        cause = self._first_unrecovered(run)
        return f"{summary}, although {_describe_cause(cause)}" if cause else summary

    def _first_unrecovered(self, run: ActiveRun) -> tuple[Attempts, Failure] | None:
        """Return the first unrecovered call with its failure."""
        recovered_calls = {link.failed_call for link in run.links()}
        for call in self.turns.calls:
            failure = call.given_up.failure if call.given_up is not None else call.failure
            if failure is not None and failure.is_failure and call.number not in recovered_calls:
                return call, failure
        return None

    def _build_result(self, run: ActiveRun, turn: Turn, text: str, end_reason: str) -> LoopResult:
        cause = self._first_unrecovered(run)
        return LoopResult(
            text=text,
            status=run.status,
            end_reason=end_reason,
            cause=cause[1] if cause else None,
            turns=turn.number,
            report=self.turns.report(),
            run=run.id,
            messages=self._messages,
        )


def run_loop(loop: Loop) -> LoopResult:
    """Run a loop in this thread."""
    with loop.scope() as run:
        moves, answer = loop.conversation(run), None
        while True:
            try:
                move = moves.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            match move:
                case AskModel():
                    answer = loop.model(*move.arguments, **move.keywords)
                case LoadLessons():
                    answer = loop.load_lessons(move)
                case CallTool():
                    answer = move.turn.call(loop.tools, move.name, move.arguments)


async def arun_loop(loop: Loop) -> LoopResult:
    """Run a loop in this task."""
    with loop.scope() as run:
        moves, answer = loop.conversation(run), None
        while True:
            try:
                move = moves.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            match move:
                case AskModel():
                    answer = await loop.model(*move.arguments, **move.keywords)
                case LoadLessons():
                    answer = await loop.aload_lessons(move)
                case CallTool():
                    answer = await move.turn.acall(loop.tools, move.name, move.arguments)


def start_loop(
    kit: Kit, model: Model, tools: Tools, messages: Messages, limit: int, style: str | None, max_lesson_tokens: int = 0
) -> LoopResult | Awaitable[LoopResult]:
    """Run a loop to its end. With an async model, return an awaitable."""
    loop = Loop(kit, model, tools, messages, limit, style, max_lesson_tokens)
    return arun_loop(loop) if loop.is_async else run_loop(loop)


def _describe_cause(cause: tuple[Attempts, Failure]) -> str:
    call, failure = cause
    return call.words.cause(call.tool.name, failure)


def _note_block(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    block = answer.get(NOTE_KEY)
    return block if isinstance(block, Mapping) else {}


def _wrap_tool(function: Callable[..., Any], name: str, kit: Kit) -> WrappedFunction:
    return wrapped_of(function) or WrappedFunction(function, lambda: kit, ToolOptions(name=name))


def _takes_tools(model: Model) -> bool:
    try:
        return "tools" in inspect.signature(model).parameters
    except (TypeError, ValueError):
        return False
