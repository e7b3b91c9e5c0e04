"""Agent loops: bounded turns whose failures are returned to the model, and a complete loop around a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.capture.call import CallExecution, prepare_call
from mulligan.capture.call_record import RepairedRequest
from mulligan.capture.context import CaptureContext
from mulligan.capture.player import aexecute_plan, execute_plan, run_in_thread, run_sync
from mulligan.capture.run import ActiveRun, scope
from mulligan.capture.signature import Signature, code_of
from mulligan.capture.value_recording import summarize_arguments
from mulligan.capture.wrap import wrap
from mulligan.capture.wrapped_function import ToolOptions, WrappedFunction, tool_name, wrapped_of
from mulligan.classify.kinds import TOOL_INVALID_ARGUMENTS, TOOL_UNKNOWN_TOOL
from mulligan.core import calls
from mulligan.core.conversation import (
    MessageFormat,
    ModelReply,
    choose_message_format,
    parse_reply,
    prepend_lessons,
)
from mulligan.core.failure import AgentError, Failure, InfraError, Remedy, SettingsError
from mulligan.core.records import Change, Recovery, Status
from mulligan.prompt import CallReport, last_turn_notice
from mulligan.recover import model_output, names
from mulligan.recover.policy import Tool
from mulligan.recover.repair import lowest_confidence

Tools = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
Adapter = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Changes how a function is called, for example in a thread."""
NOTE_KEY = "mulligan"
"""The key under which mulligan adds notes to a tool's result."""


class Turns:
    """`for turn in mulligan.turns(limit=10):` ends after `limit` turns.

    Outside a run, the loop is a run of its own with all its tool and model calls.
    """

    def __init__(self, source: Callable[[], CaptureContext], limit: int = 10) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise SettingsError(f"Invalid limit {limit!r}. Use a whole number of turns.")
        if limit < 1:
            raise SettingsError(f"Invalid limit {limit}. Use 1 or more turns.")
        self.limit = limit
        self.calls: list[CallExecution] = []
        """The tool calls of all turns."""
        self._source = source

    def __iter__(self) -> Iterator[Turn]:
        capture = self._source()
        self.calls = []
        with scope(capture) as run:
            run.is_implicit = False
            for number in range(1, self.limit + 1):
                yield Turn(capture, run, number, self)

    def report(self) -> str:
        """Return which calls succeeded and which failed, for the final answer."""
        runs = {call.run.id: call.run for call in self.calls}
        recovered_calls = {(run.id, link.failed_call) for run in runs.values() for link in run.links()}
        return self._source().prompt.report(
            [
                CallReport(
                    tool=call.tool.name,
                    failure=call.final_failure,
                    note=call.note,
                    has_effects=not call.tool.is_retry_safe,
                    is_recovered=call.final_failure is not None and (call.run.id, call.number or 0) in recovered_calls,
                    arguments=call.all_arguments,
                )
                for call in self.calls
            ]
        )


class Turn:
    """One model response and its tool calls."""

    def __init__(self, capture: CaptureContext, run: ActiveRun, number: int, turns: Turns) -> None:
        self.number = number
        self.is_last = number == turns.limit
        self._capture = capture
        self._run = run
        self._turns = turns
        self._has_calls = False

    def __repr__(self) -> str:
        return f"<turn {self.number} of {self._turns.limit}>"

    @property
    def notice(self) -> str:
        """The note for the model in its last turn; otherwise empty."""
        return last_turn_notice() if self.is_last else ""

    def call(self, tools: Tools, name: str, arguments: Any = None) -> Any:
        """Execute a tool call. Return its result, or the failure as an answer for the model. Raises `InfraError`."""
        request = ToolRequest(self._capture, tools, name, arguments)
        if request.is_async:
            raise SettingsError(f"{request.name} is async: use `await turn.acall(...)`.")
        return run_sync(self._call(request, is_async=False))

    async def acall(self, tools: Tools, name: str, arguments: Any = None) -> Any:
        """Execute a call of an async tool, or of a sync tool in a thread. Otherwise like `call`."""
        request = ToolRequest(self._capture, tools, name, arguments)
        return await self._call(request, is_async=True)

    async def _call(self, request: ToolRequest, *, is_async: bool) -> Any:
        # Use the run of the loop: a worker thread has no current run.
        with scope(self._capture, self._run) as run:
            adapt = _make_threaded if is_async and not request.is_async else None
            call = self._register_call(request.prepare_call(run, adapt))
            try:
                result = await aexecute_plan(call) if is_async else execute_plan(call)
            except InfraError:
                raise
            except Exception:  # noqa: BLE001 - classified and recorded; returned to the model
                return request.failure_answer(call)
        if not is_async and inspect.iscoroutine(result):
            result.close()
            raise SettingsError(f"{request.name} returned a coroutine: use `await turn.acall(...)`.")
        return request.to_answer(result, call)

    def _register_call(self, call: CallExecution) -> CallExecution:
        if not self._has_calls:
            self._has_calls = True
            self._capture.on_model_turn(self._run.id)
        call.turn = (id(self._turns), self.number)
        call.answers_model = call.limits.can_block = True
        self._turns.calls.append(call)
        return call


class ToolRequest:
    """A tool call requested by a model: a tool name, and arguments of any form."""

    def __init__(self, capture: CaptureContext, tools: Tools, name: str, arguments: Any) -> None:
        self.capture = capture
        self.tools = tools_by_name(tools)
        self.requested_name = self.name = str(name)
        self._strategies: list[str] = []
        """The repair strategies used, for the confidence."""
        match = names.match_tool_name(name, list(self.tools)) if isinstance(name, str) else None
        if match is not None and name not in self.tools:
            self.name = match.name
            self._strategies.append(f"tool {match.method}")
        self.raw_arguments = arguments
        self.parsed_arguments = model_output.parse_arguments(arguments)
        if self.parsed_arguments.defect:
            self._strategies.append("parse")
        function = self.tools.get(self.name)
        # A method that was wrapped in its class is wrapped as a function, so pass `self` explicitly.
        self._args = (function.__self__,) if inspect.ismethod(function) and wrapped_of(function) else ()
        self.wrapped = _wrap_tool(function, self.name, capture) if function is not None else None
        self.is_async = self.wrapped is not None and self.wrapped.is_async

    def prepare_call(self, run: ActiveRun, adapt: Adapter | None = None) -> CallExecution:
        wrapped, arguments = self.wrapped, self.parsed_arguments.value
        error = self._find_error()
        if wrapped is None or arguments is None or (error is not None and not self.can_repair(wrapped, run)):
            if wrapped is not None and self.name != self.requested_name:
                wrapped = self.wrapped = None  # the name was corrected, but repairs are not allowed
            rejecting = self._build_rejecting(error or self._unknown_tool_error(), wrapped)
            call = prepare_call(rejecting, run.capture, run, (), self._displayed_arguments(), adapt=adapt)
            call.tool = Tool(name=rejecting.name, mode="observe")  # memory may know what the model meant
            return call
        positional, keywords = wrapped.signature.split_arguments(arguments, self._args)
        return prepare_call(
            wrapped,
            self.capture,
            run,
            tuple(positional),
            keywords,
            open_stream=list if wrapped.is_stream else _collect_stream if wrapped.is_async_stream else None,
            adapt=adapt,
            must_check=True,
            repaired_request=None if error is None else self._build_repair(error, wrapped),
        )

    def _build_rejecting(self, error: AgentError, wrapped: WrappedFunction | None) -> WrappedFunction:
        """Build a function in place of a tool that cannot be called."""

        def reject(**arguments: Any) -> Any:
            raise error

        rejecting = WrappedFunction(reject, lambda: self.capture, ToolOptions(mode="observe"))
        rejecting.name = rejecting.key = self.requested_name if wrapped is None else wrapped.name
        return rejecting

    def _find_error(self) -> AgentError | None:
        """Return the error of the call as requested, if any."""
        if self.name != self.requested_name or self.wrapped is None:
            return self._unknown_tool_error()
        if self.parsed_arguments.value is None:
            return AgentError(self.parsed_arguments.error, code=TOOL_INVALID_ARGUMENTS.code)
        if self.parsed_arguments.defect:
            message = f"The arguments are not a plain JSON object: {self.parsed_arguments.defect}."
            return AgentError(message, code=TOOL_INVALID_ARGUMENTS.code)
        return None

    def _unknown_tool_error(self) -> AgentError:
        return AgentError(f"There is no tool {self.requested_name!r}.", code=TOOL_UNKNOWN_TOOL.code)

    def can_repair(self, wrapped: WrappedFunction, run: ActiveRun) -> bool:
        """Return whether a malformed request may be repaired and executed."""
        policy = wrapped.options.policy or self.capture.policy
        return (
            wrapped.rules(self.capture, run.options).mode == "repair"
            and policy.attempts > 1
            and self._confidence > policy.min_confidence
        )

    @property
    def _confidence(self) -> float:
        return lowest_confidence(self._strategies)

    def _build_repair(self, error: AgentError, wrapped: WrappedFunction) -> RepairedRequest:
        changes = []
        if (name := self.name) != (before := self.requested_name):
            changes.append(
                Change(path=calls.TOOL_NAME_PATH, operation="rename", before=before, after=name, source="call")
            )
        if self.parsed_arguments.defect:
            parsed = self.parsed_arguments.value
            changes.append(Change(path="", operation="parse", before=self.raw_arguments, after=parsed, source="call"))
        policy = wrapped.options.policy or self.capture.policy
        recovery = Recovery(
            remedy=Remedy.REPAIR,
            backoff_seconds=policy.compute_backoff(2, None, self.capture.random()) or 0.0,
            changes=tuple(changes),
            source="call",
            confidence=self._confidence,
        )
        failure = self.capture.classify_safely(
            error, source="tool", tool=self.requested_name, arguments=self._displayed_arguments()
        )
        return RepairedRequest(self.requested_name, self._displayed_arguments(), failure, recovery)

    def _displayed_arguments(self) -> Mapping[str, Any]:
        value = self.parsed_arguments.value
        return value if value is not None and not self.parsed_arguments.defect else {"arguments": self.raw_arguments}

    def failure_answer(self, call: CallExecution) -> dict[str, Any]:
        """Return the failure as an answer for the model. Never raises."""
        with self.capture.guard("Building an answer for the model"):
            if self.wrapped is None:
                near_names = names.nearest_tool_names(self.requested_name, list(self.tools))
                return call.failure_answer(self.requested_name, names=near_names)
            return call.failure_answer(self.name, shareable=self.wrapped.shareable_texts())
        return {"error": "tool/unknown", "code": "unknown", "message": "The call failed.", "recoverable": True}

    def to_answer(self, result: Any, call: CallExecution) -> Any:
        """Return the result, with a note block if the call failed or was repaired."""
        if call.failure is None and not call.note:
            return result
        if call.failure is None:
            block: dict[str, Any] = {"note": call.note}
        else:
            # The result contains the tool's own message, so it is not quoted again.
            block = {name: value for name, value in self.failure_answer(call).items() if name != "message"}
        if isinstance(result, dict) and NOTE_KEY not in result:
            return {**result, NOTE_KEY: block}
        return {"result": result, NOTE_KEY: block}


def _make_threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a sync function awaitable by a thread, so that it does not block the event loop."""

    async def threaded(*args: Any, **kwargs: Any) -> Any:
        result = await run_in_thread(function, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    return threaded


async def _collect_stream(stream: Any) -> list[Any]:
    return [item async for item in stream]


def tools_by_name(tools: Tools) -> dict[str, Callable[..., Any]]:
    """Return the tools by the names that the model uses."""
    pairs = tools.items() if isinstance(tools, Mapping) else ((tool_name(tool), tool) for tool in tools)
    functions: dict[str, Callable[..., Any]] = {}
    for name, tool in pairs:
        if not callable(tool):
            raise SettingsError(f"Invalid tool {tool!r}. Use a function.")
        if name in functions and functions[name] != tool:
            raise SettingsError(f"Two tools are named {name!r}. Rename one: @mulligan.tool(name=...).")
        functions[name] = tool
    return functions


def _wrap_tool(function: Callable[..., Any], name: str, capture: CaptureContext) -> WrappedFunction:
    return wrapped_of(function) or WrappedFunction(function, lambda: capture, ToolOptions(name=name))


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


class Loop:
    """The state of one loop: model, tools and conversation."""

    def __init__(
        self,
        capture: CaptureContext,
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
        self.capture = capture
        self.tools = tools_by_name(tools)
        self.turns = Turns(lambda: capture, limit)
        wrapped = wrapped_of(model)
        self.is_async = wrapped.is_async if wrapped else inspect.iscoroutinefunction(code_of(model))
        options = ToolOptions(name=getattr(model, "__name__", "") or "model", type="model", effects="none")
        self.model = model if wrapped else wrap(model, lambda: capture, options)
        self._wrapped_tools = {name: _wrap_tool(tool, name, capture) for name, tool in self.tools.items()}
        for name, tool in self._wrapped_tools.items():
            if tool.is_async and not self.is_async:
                raise SettingsError(f"{name} is async and the model is not. Use an async model and await the loop.")
        self._takes_tools = "tools" in Signature(model).names
        if not isinstance(messages, Sequence):
            raise SettingsError(
                f"Invalid messages of type {type(messages).__name__}. Use a string or a list of messages."
            )
        self._messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        self._style = style
        self._message_format: MessageFormat = choose_message_format(style, self._messages)
        self._max_lesson_tokens = max_lesson_tokens

    async def play(self) -> LoopResult:
        """Run the loop to its end. With a sync model it never waits."""
        with scope(self.capture) as run:
            run.is_implicit = False
            if self._max_lesson_tokens and (text := await self._render_lessons()):
                # set the context before adding lessons: it is the user's text
                run.set_context_if_unset(summarize_arguments({"messages": self._messages})[1])
                self._messages = prepend_lessons(self._messages, text)
            for turn in self.turns:
                if turn.notice:
                    self._message_format.add_notice(self._messages, turn.notice)
                answer = self.model(list(self._messages), **self._tool_arguments(turn))
                reply = parse_reply(await answer if self.is_async else answer, self._message_format)
                self._message_format = reply.message_format
                self._messages.append(reply.message)
                if not reply.calls:
                    summary = "the model answered" if reply.text else "the model returned an empty answer"
                    return self._finish(run, turn, reply.text, summary)
                if not turn.is_last:
                    await self._answer_calls(turn, reply)
            summary = f"the limit of {self.turns.limit} turns is reached"
            return self._finish(run, turn, reply.text, summary, is_limit_reached=True)

    async def _render_lessons(self) -> str:
        query = [tool.name for tool in self._wrapped_tools.values()], self._max_lesson_tokens
        if not self.is_async:
            return self.capture.render_lessons(*query)
        return await run_in_thread(self.capture.render_lessons, *query)

    async def _answer_calls(self, turn: Turn, reply: ModelReply) -> None:
        answers = []
        for call in reply.calls:
            request = self.tools, call.name, call.value
            answer = await turn.acall(*request) if self.is_async else turn.call(*request)
            note = answer.get(NOTE_KEY) if isinstance(answer, dict) else None
            is_error = any(isinstance(block, dict) and "recoverable" in block for block in (answer, note))
            answers.append((call.id, answer, is_error))
        self._message_format.add_results(self._messages, answers)

    def _tool_arguments(self, turn: Turn) -> dict[str, Any]:
        """Return the `tools` argument for a model that accepts it; no tools in the last turn."""
        if not self._takes_tools:
            return {}
        tools = {} if turn.is_last else self._wrapped_tools
        format_tool = self._message_format.format_tool
        return {
            "tools": [
                format_tool(name, tool.signature.description, tool.schema() or {}) for name, tool in tools.items()
            ]
        }

    def _first_unrecovered(self, run: ActiveRun) -> tuple[CallExecution, Failure] | None:
        """Return the first unrecovered call with its failure."""
        recovered_calls = {link.failed_call for link in run.links()}
        for call in self.turns.calls:
            failure = call.final_failure
            if failure is not None and failure.is_failure and (call.number or 0) not in recovered_calls:
                return call, failure
        return None

    def _finish(
        self, run: ActiveRun, turn: Turn, text: str, summary: str, *, is_limit_reached: bool = False
    ) -> LoopResult:
        unrecovered = self._first_unrecovered(run)
        reason, cause = summary, None
        if unrecovered is not None:
            call, cause = unrecovered
            reason += f"{';' if is_limit_reached else ', although'} {call.prompt.cause(call.tool.name, cause)}"
        if is_limit_reached:
            run.record_failure("orchestration", "max_retries_exceeded", reason)
        return LoopResult(
            text=text,
            status=run.status,
            end_reason=reason,
            cause=cause,
            turns=turn.number,
            report=self.turns.report(),
            run=run.id,
            messages=self._messages,
        )
