"""Agent loops: bounded turns whose failures are returned to the model, and a complete loop around a model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.capture.attempt import CallForm, RepairedRequest
from mulligan.capture.call import prepare_call
from mulligan.capture.call_execution import CallExecution
from mulligan.capture.call_scope import ContextValue
from mulligan.capture.context import CaptureContext
from mulligan.capture.player import aexecute_plan, execute_plan, run_in_thread, run_sync
from mulligan.capture.run import ActiveRun, current_run, scope
from mulligan.capture.signature import Signature, code_of
from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.capture.value_recording import find_user_texts, summarize_arguments
from mulligan.capture.wrap import wrap
from mulligan.capture.wrapped_function import ToolOptions, WrappedFunction, tool_name, wrapped_of
from mulligan.classify.declared_errors import AgentError, InfraError
from mulligan.core import calls
from mulligan.core.conversation import (
    MessageFormat,
    ModelReply,
    choose_message_format,
    parse_reply,
    prepend_lessons,
)
from mulligan.core.failure import Failure, Remedy, SettingsError
from mulligan.core.kinds import TOOL_INVALID_ARGUMENTS, TOOL_UNKNOWN, TOOL_UNKNOWN_TOOL
from mulligan.core.records import Change, Recovery, Status
from mulligan.prompt import CallReport, last_turn_notice
from mulligan.recover import model_output, names
from mulligan.recover.policy import Tool
from mulligan.recover.repair import LOW_CONFIDENCE, lowest_confidence
from mulligan.recover.retry_schedule import describe_attempts

Tools = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
Adapter = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Changes how a function is called, for example in a thread."""


class Turns:
    """`for turn in mulligan.turns(limit=10):` ends after `limit` turns.

    Outside a run, the loop is a run of its own with all its tool and model calls.
    """

    def __init__(self, source: Callable[[], CaptureContext], limit: int = 10, *, block_loops: bool = True) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise SettingsError(f"Invalid limit {limit!r}. Use a whole number of turns.")
        if limit < 1:
            raise SettingsError(f"Invalid limit {limit}. Use 1 or more turns.")
        self.limit = limit
        self.block_loops = block_loops
        """Whether identical failures block the next identical call. Otherwise it is made, and its answer has a note."""
        self.calls: list[CallExecution] = []
        self.is_limit_reached = False
        """Whether all turns were used, and the last one still called tools."""
        self._source = source

    def __iter__(self) -> Iterator[Turn]:
        capture = self._source()
        self.calls, self.is_limit_reached = [], False
        # The current run is that of now. At the first turn it may be the run of another loop that is stepped in turn.
        return self._iterate(capture, scope(capture))

    def _iterate(self, capture: CaptureContext, run_scope: ActiveRun | ContextValue) -> Iterator[Turn]:
        current = current_run(capture)
        if isinstance(run_scope, ActiveRun) and current is not None and not current.has_loop:
            run_scope = scope(capture)  # a run that began between the loop and its first turn
        with run_scope as run:
            run.make_explicit()
            run.begin_loop()
            for number in range(1, self.limit + 1):
                turn = Turn(capture, run, number, self)
                with run.as_current():
                    yield turn
            self.is_limit_reached = turn.has_calls

    @property
    def limit_notice(self) -> str:
        return f"the limit of {self.limit} {'turn' if self.limit == 1 else 'turns'} is reached"

    def report(self) -> str:
        """Return whether the limit is reached, which calls succeeded and which failed, for the final answer."""
        runs = {call.run.id: call.run for call in self.calls}
        recovered_calls = {(run.id, link.failed_call) for run in runs.values() for link in run.links()}
        notice = f"{self.limit_notice.capitalize()}.\n" if self.is_limit_reached else ""
        return notice + self._source().prompt.report(
            [
                CallReport(
                    tool=call.tool.name,
                    failure=call.stop.failure,
                    note=call.answer.note,
                    has_effects=not call.tool.is_retry_safe,
                    is_recovered=call.stop.failure is not None and (call.run.id, call.number or 0) in recovered_calls,
                    arguments=call.answer.all_arguments,
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
        self.has_calls = False

    def __repr__(self) -> str:
        return f"<turn {self.number} of {self._turns.limit}>"

    @property
    def notice(self) -> str:
        """The note for the model in its last turn; otherwise empty."""
        return last_turn_notice() if self.is_last else ""

    def call(self, tools: Tools, name: str, arguments: Any = None) -> ToolOutcome:
        """Execute a tool call and return its outcome. JSON arguments are converted to the annotated types.

        A failure is part of the outcome, not an exception. Only `InfraError` and control flow are raised.
        """
        request = ToolRequest(self._capture, tools, name, arguments)
        if request.is_async:
            raise SettingsError(f"{request.name} is async: use `await turn.acall(...)`.")
        return run_sync(self._call(request, is_async=False))

    async def acall(self, tools: Tools, name: str, arguments: Any = None) -> ToolOutcome:
        """Execute a call of an async tool, or of a sync tool in a thread. Otherwise like `call`."""
        request = ToolRequest(self._capture, tools, name, arguments)
        return await self._call(request, is_async=True)

    async def _call(self, request: ToolRequest, *, is_async: bool) -> ToolOutcome:
        # A worker thread has no current run, and loops that are stepped in turn replace each other's.
        current = current_run(self._capture)
        has_other_loop = current is not None and current is not self._run and current.has_loop and self._run.is_open
        with self._run.as_current() if has_other_loop else scope(self._capture, self._run) as run:
            return await request.execute(run, self._register_call, is_async=is_async)

    def _register_call(self, execution: CallExecution) -> None:
        if not self.has_calls:
            self.has_calls = True
            self._capture.on_model_turn(self._run.id)
            self._run.awaits_user_messages = False
        execution.prepared.turn = (id(self._turns), self.number)
        execution.call.answers_model, execution.limits.can_block = True, self._turns.block_loops
        self._turns.calls.append(execution)


class ToolRequest:
    """A tool call requested by a model: a tool name, and arguments of any form."""

    def __init__(
        self, capture: CaptureContext, tools: Tools, name: str, arguments: Any, *, can_rename: bool = True
    ) -> None:
        self.capture = capture
        self.tools = tools_by_name(tools)
        self._can_rename = can_rename
        """Whether a similar tool may be called. Otherwise the model reads its name."""
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
        injected = self.wrapped.signature.injected if self.wrapped is not None else ()
        self._injected_names = [name for name in self.parsed_arguments.value or () if name in injected]
        """Injected parameters for which the model has made up a value."""
        if self._injected_names:
            self._strategies.append("drop unknown")

    async def execute(
        self, run: ActiveRun, register_call: Callable[[CallExecution], None], *, is_async: bool
    ) -> ToolOutcome:
        """Make the call in the current run. `register_call` receives it before its first attempt."""
        adapt = _make_threaded if is_async and not self.is_async else None
        call = self.prepare_call(run, adapt)
        call.prepared.tool_names = self.tools
        call.limits.requested_name = self.name
        register_call(call)
        try:
            result = await aexecute_plan(call) if is_async else execute_plan(call)
        except Exception as error:
            if isinstance(error, InfraError) or self.capture.is_control_flow(error):
                raise
            return self.build_outcome(call, None, has_raised=True)  # classified and recorded
        if not is_async and inspect.iscoroutine(result):
            result.close()
            raise SettingsError(f"{self.name} returned a coroutine: use `await turn.acall(...)`.")
        return self.build_outcome(call, result)

    def prepare_call(self, run: ActiveRun, adapt: Adapter | None = None) -> CallExecution:
        wrapped, arguments = self.wrapped, self.parsed_arguments.value
        error = self._find_error()
        if wrapped is None or arguments is None or (error is not None and not self.can_repair(wrapped, run)):
            reason = self._describe_rejection(wrapped, run)
            if wrapped is not None and self.name != self.requested_name:
                wrapped = self.wrapped = None  # the name was corrected, but repairs are not allowed
            rejecting = self._build_rejecting(error or self._unknown_tool_error(), wrapped)
            call = prepare_call(rejecting, run.capture, run, (), self._displayed_arguments(), CallForm(adapt=adapt))
            # Memory may know what the model meant.
            call.prepared.tool = Tool(name=rejecting.name, mode="observe", observe_reason=reason)
            return call
        arguments = {name: value for name, value in arguments.items() if name not in self._injected_names}
        positional, keywords = wrapped.signature.split_arguments(arguments, self._args)
        return prepare_call(
            wrapped,
            self.capture,
            run,
            tuple(positional),
            keywords,
            CallForm(
                open_stream=list if wrapped.is_stream else _collect_stream if wrapped.is_async_stream else None,
                adapt=adapt,
                must_check=True,
                has_json_arguments=True,
                repaired_request=None if error is None else self._build_repair(error),
            ),
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
        if self._injected_names:
            message = f"{self.name} has no argument {self._injected_names[0]!r}."
            return AgentError(message, code=TOOL_INVALID_ARGUMENTS.code)
        return None

    def _unknown_tool_error(self) -> AgentError:
        return AgentError(f"There is no tool {self.requested_name!r}.", code=TOOL_UNKNOWN_TOOL.code)

    def can_repair(self, wrapped: WrappedFunction, run: ActiveRun) -> bool:
        """Return whether a malformed request may be repaired and executed."""
        policy = wrapped.options.policy or self.capture.policy
        return (
            (self._can_rename or self.name == self.requested_name)
            and wrapped.rules(self.capture, run.options).mode == "repair"
            and policy.allows_recovery
            and self._confidence > policy.min_confidence
        )

    def _describe_rejection(self, wrapped: WrappedFunction | None, run: ActiveRun) -> str:
        """Return the stop reason of a request that is not executed."""
        near_names = self._find_near_names()
        question = f'; the model is asked: "Did you mean {" or ".join(near_names)}?"' if near_names else ""
        if wrapped is None or (not self._can_rename and self.name != self.requested_name):
            return f"no tool has this name{question}"
        if self.parsed_arguments.value is None:
            return "the arguments cannot be parsed"
        policy = wrapped.options.policy or self.capture.policy
        if (mode := wrapped.rules(self.capture, run.options).mode) != "repair":
            return f'the mode is "{mode}"'
        return f"{LOW_CONFIDENCE if policy.allows_recovery else describe_attempts(1)}{question}"

    def _find_near_names(self) -> list[str]:
        """Return the tools that the model may have intended, if none has the requested name."""
        if self.requested_name in self.tools:
            return []
        return names.nearest_tool_names(self.requested_name, list(self.tools))

    @property
    def _confidence(self) -> float:
        return lowest_confidence(self._strategies)

    def _build_repair(self, error: AgentError) -> RepairedRequest:
        changes = []
        if (name := self.name) != (before := self.requested_name):
            changes.append(
                Change(path=calls.TOOL_NAME_PATH, operation="rename", before=before, after=name, source="call")
            )
        if self.parsed_arguments.defect:
            parsed = self.parsed_arguments.value
            changes.append(Change(path="", operation="parse", before=self.raw_arguments, after=parsed, source="call"))
        for injected_name in self._injected_names:
            before = (self.parsed_arguments.value or {})[injected_name]
            changes.append(Change(path=injected_name, operation="drop", before=before, source="call"))
        # No backoff: nothing was called yet.
        recovery = Recovery(remedy=Remedy.REPAIR, changes=tuple(changes), source="call", confidence=self._confidence)
        failure = self.capture.classify_safely(
            error, source="tool", tool=self.requested_name, arguments=self._displayed_arguments()
        )
        return RepairedRequest(self.requested_name, self._displayed_arguments(), failure, recovery)

    def _displayed_arguments(self) -> Mapping[str, Any]:
        value = self.parsed_arguments.value
        return value if value is not None and not self.parsed_arguments.defect else {"arguments": self.raw_arguments}

    def build_outcome(self, call: CallExecution, value: Any, *, has_raised: bool = False) -> ToolOutcome:
        """Build the outcome of a call that raised, or that returned this value. Never raises."""
        if call.attempt.failure is None and not has_raised:
            return ToolOutcome(ok=True, value=value, notes=(call.answer.note,) if call.answer.note else ())
        unknown = Failure.of(TOOL_UNKNOWN, "The call failed.")
        answer: dict[str, Any] = {}
        with self.capture.guard("Building an answer for the model"):
            if self.wrapped is None:
                near_names = self._find_near_names()
                all_names = () if near_names else tuple(self.tools)
                answer = call.answer.describe_failure(
                    self.requested_name, names=near_names, all_names=all_names, author="mulligan"
                )
            else:
                answer = call.answer.describe_failure(self.name, shareable=self.wrapped.shareable_texts())
        return ToolOutcome(
            ok=False,
            value=value,
            failure=call.stop.failure or unknown,
            notes=tuple(answer.get("suggestions", ())),
            answer=answer or unknown.to_tool_response(),
            is_returned_error=not has_raised,
        )


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
    if not isinstance(tools, Iterable):
        raise SettingsError(f"Invalid tools {tools!r}. Use a list of functions, or a dict with their names.")
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
    wrapped = wrapped_of(function)
    if wrapped is None and isinstance(function, functools.partial) and (inner := wrapped_of(function.func)):
        wrapped = inner.bind_partial(function)
    if wrapped is None:
        wrapped = WrappedFunction(function, lambda: capture, ToolOptions(name=name))
    if names := wrapped.signature.unbound:
        raise SettingsError(
            f"{name} needs {names[0]!r}, which a model does not supply. "
            f"Pass functools.partial({wrapped.name}, {names[0]}=...) as the tool, or give it a default."
        )
    return wrapped


Model = Callable[..., Any]
Messages = Sequence[Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """The result of a loop: the last text, the status, and why it ended."""

    text: str
    """The last text of the model. At the turn limit, the report follows it."""
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
            run.make_explicit()
            user_texts: tuple[str, ...] = ()
            with self.capture.guard("Reading a conversation"):
                user_texts = find_user_texts({"messages": self._messages})
            if self._max_lesson_tokens and (text := await self._render_lessons(run)):
                # set the context before adding lessons: it is the user's text
                run.set_context_if_unset(summarize_arguments({"messages": self._messages})[1])
                self._messages = prepend_lessons(self._messages, text)
            for turn in self.turns:
                if turn.number == 1:
                    run.note_user_messages(user_texts, starts_loop=True)
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
            self.turns.is_limit_reached = True
            return self._finish(run, turn, reply.text, self.turns.limit_notice)

    async def _render_lessons(self, run: ActiveRun) -> str:
        query = [tool.name for tool in self._wrapped_tools.values()], self._max_lesson_tokens, run.hold_out_lessons
        if not self.is_async:
            return self.capture.render_lessons(*query)
        return await run_in_thread(self.capture.render_lessons, *query)

    async def _answer_calls(self, turn: Turn, reply: ModelReply) -> None:
        answers = []
        for call in reply.calls:
            request = self.tools, call.name, call.value
            outcome = await turn.acall(*request) if self.is_async else turn.call(*request)
            answers.append((call.id, outcome.to_message(), not outcome.ok))
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
        recovered_calls = {link.failed_call for link in run.links()}
        for call in self.turns.calls:
            failure = call.stop.failure
            if failure is not None and failure.is_failure and (call.number or 0) not in recovered_calls:
                return call, failure
        return None

    def _finish(self, run: ActiveRun, turn: Turn, text: str, summary: str) -> LoopResult:
        is_limit_reached, report = self.turns.is_limit_reached, self.turns.report()
        unrecovered = self._first_unrecovered(run)
        reason, cause = summary, None
        if unrecovered is not None:
            call, cause = unrecovered
            reason += f"{';' if is_limit_reached else ', although'} {call.answer.prompt.cause(call.tool.name, cause)}"
        if is_limit_reached:
            run.record_failure("orchestration", "max_retries_exceeded", reason)
            text = f"{text}\n\n{report}" if text else report
        return LoopResult(
            text=text,
            status=run.status,
            end_reason=reason,
            cause=cause,
            turns=turn.number,
            report=report,
            run=run.id,
            messages=self._messages,
        )
