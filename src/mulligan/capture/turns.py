"""Bounded agent loops, and tool calls whose failures are returned to the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mulligan.capture.call_execution import Attempts, Mended
from mulligan.capture.context import Kit
from mulligan.capture.player import aexecute_plan, execute_plan
from mulligan.capture.run import ActiveRun, scope
from mulligan.capture.signature import name_of
from mulligan.capture.wrap import ToolOptions, WrappedFunction
from mulligan.classify.kinds import TOOL_INVALID_ARGUMENTS, TOOL_UNKNOWN_TOOL
from mulligan.core import calls
from mulligan.core.failure import AgentError, InfraError, Remedy, SettingsError
from mulligan.core.records import Change, Recovery
from mulligan.prompt import CallReport, last_turn_notice
from mulligan.recover import names
from mulligan.recover.confidence import lowest_confidence
from mulligan.recover.tool import Tool

Tools = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
NOTE_KEY = "mulligan"
"""The key under which mulligan adds notes to a tool's result."""
CallFunction = Callable[[Mapping[str, Any]], Any]


class Turns:
    """`for turn in mulligan.turns(limit=10):` ends after `limit` turns.

    Outside a run, the loop is a run of its own with all its tool and model calls.
    """

    def __init__(self, source: Callable[[], Kit], limit: int = 10) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise SettingsError(f"Invalid limit {limit!r}. Use a whole number of turns.")
        if limit < 1:
            raise SettingsError(f"Invalid limit {limit}. Use 1 or more turns.")
        self.limit = limit
        self.calls: list[Attempts] = []
        """The tool calls of all turns."""
        self._source = source

    def __iter__(self) -> Iterator[Turn]:
        kit = self._source()
        self.calls = []
        with scope(kit) as run:
            run.is_implicit = False
            for number in range(1, self.limit + 1):
                yield Turn(kit, run, number, self)

    def report(self) -> str:
        """Return which calls succeeded and which failed, for the final answer."""
        recovered_calls: set[tuple[str, int]] = set()
        for run in {call.run.id: call.run for call in self.calls}.values():
            recovered_calls |= {(run.id, link.failed_call) for link in run.links()}
        return self._source().prompt.report([self._report_call(call, recovered_calls) for call in self.calls])

    @staticmethod
    def _report_call(call: Attempts, recovered_calls: set[tuple[str, int]]) -> CallReport:
        failure = call.given_up.failure if call.given_up is not None else call.failure
        return CallReport(
            tool=call.tool.name,
            failure=failure,
            note=call.note,
            has_effects=not call.tool.is_retry_safe,
            is_recovered=failure is not None and (call.run.id, call.number) in recovered_calls,
            arguments=call.given,
        )


class Turn:
    """One model response and its tool calls."""

    def __init__(self, kit: Kit, run: ActiveRun, number: int, turns: Turns) -> None:
        self.number = number
        self.is_last = number == turns.limit
        self._kit = kit
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
        request = ToolRequest(self._kit, tools, name, arguments)
        if request.is_async:
            raise SettingsError(f"{request.name} is async: use `await turn.acall(...)`.")
        # Use the run of the loop: a worker thread has no current run.
        with scope(self._kit, self._run) as run:
            call = self._register_call(request.prepare_call(run))
            try:
                result = execute_plan(call)
            except InfraError:
                raise
            except Exception:  # noqa: BLE001 - classified and recorded; returned to the model
                return request.failure_answer(call)
        if inspect.iscoroutine(result):
            result.close()
            raise SettingsError(f"{request.name} returned a coroutine: use `await turn.acall(...)`.")
        return request.to_answer(result, call)

    async def acall(self, tools: Tools, name: str, arguments: Any = None) -> Any:
        """Execute a call of an async tool, or of a sync tool in a thread. Otherwise like `call`."""
        request = ToolRequest(self._kit, tools, name, arguments)
        with scope(self._kit, self._run) as run:
            call = self._register_call(request.prepare_call(run, _make_async if request.is_async else _make_threaded))
            try:
                result = await aexecute_plan(call)
            except InfraError:
                raise
            except Exception:  # noqa: BLE001 - classified and recorded; returned to the model
                return request.failure_answer(call)
        return request.to_answer(result, call)

    def _register_call(self, call: Attempts) -> Attempts:
        if not self._has_calls:
            self._has_calls = True
            self._kit.answered(self._run.id)
        call.is_answered = True
        call.turn = (id(self._turns), self.number)
        call.is_answered = call.guarding.can_block = True
        self._turns.calls.append(call)
        return call


class ToolRequest:
    """A tool call requested by a model: a tool name, and arguments of any form."""

    def __init__(self, kit: Kit, tools: Tools, name: str, arguments: Any) -> None:
        self.kit = kit
        self.tools = tools_by_name(tools)
        self.requested_name = name if isinstance(name, str) else str(name)
        self.name = self.requested_name
        self._strategies: list[str] = []
        """The repair strategies used, for the confidence."""
        if (
            isinstance(name, str)
            and name not in self.tools
            and (match := names.match_tool_name(name, list(self.tools)))
        ):
            self.name = match.name
            self._strategies.append(f"tool {match.method}")
        from mulligan.recover import model_json  # lazy: imports json, needed only in agent loops

        self.raw_arguments = arguments
        self.parsed_arguments = model_json.parse_arguments(arguments)
        if self.parsed_arguments.defect:
            self._strategies.append("parse")
        function = self.tools.get(self.name)
        # A method that was wrapped in its class is wrapped as a function, so pass `self` explicitly.
        self._args = (function.__self__,) if inspect.ismethod(function) and wrapped_of(function) else ()
        self.wrapped = _wrap_tool(function, self.name, kit) if function is not None else None
        self.is_async = self.wrapped is not None and self.wrapped.is_async

    def prepare_call(self, run: ActiveRun, through: Callable[[CallFunction], CallFunction] | None = None) -> Attempts:
        wrapped, arguments = self.wrapped, self.parsed_arguments.value
        error = self._find_error()
        if wrapped is None or arguments is None or (error is not None and not self.can_repair(wrapped, run)):
            if wrapped is not None and self.name != self.requested_name:
                wrapped = self.wrapped = None  # the name was corrected, but repairs are not allowed
            refuse = _make_rejecting(error or self._unknown_tool_error())
            tool = Tool(name=self.requested_name if wrapped is None else wrapped.name, mode="observe")
            return Attempts(
                run.kit, run, tool, self._displayed_arguments(), refuse if through is None else through(refuse)
            )
        positional, keywords = wrapped.signature.split_arguments(arguments, self._args)
        reading = list if wrapped.is_stream else _collect_stream if wrapped.is_async_stream else None
        return wrapped.prepare_call(
            self.kit,
            run,
            tuple(positional),
            keywords,
            open_stream=reading,
            adapt=through,
            should_check=True,
            repaired_request=None if error is None else self._build_repair(error, wrapped),
        )

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
        policy = wrapped.options.policy or self.kit.policy
        return (
            wrapped.rules(self.kit, run.limits).mode == "repair"
            and policy.attempts > 1
            and self._confidence > policy.min_confidence
        )

    @property
    def _confidence(self) -> float:
        return lowest_confidence(self._strategies)

    def _build_repair(self, error: AgentError, wrapped: WrappedFunction) -> Mended:
        changes = []
        if self.name != self.requested_name:
            changes.append(
                Change(
                    path=calls.TOOL_NAME_PATH,
                    operation="rename",
                    before=self.requested_name,
                    after=self.name,
                    source="call",
                )
            )
        if self.parsed_arguments.defect:
            changes.append(
                Change(
                    path="",
                    operation="parse",
                    before=self.raw_arguments,
                    after=self.parsed_arguments.value,
                    source="call",
                )
            )
        policy = wrapped.options.policy or self.kit.policy
        recovery = Recovery(
            remedy=Remedy.REPAIR,
            backoff_seconds=policy.compute_backoff(2, None, self.kit.chance()) or 0.0,
            changes=tuple(changes),
            source="call",
            confidence=self._confidence,
        )
        failure = self.kit.failure(
            error, source="tool", tool=self.requested_name, arguments=self._displayed_arguments()
        )
        return Mended(self.requested_name, self._displayed_arguments(), failure, recovery)

    def _displayed_arguments(self) -> Mapping[str, Any]:
        value = self.parsed_arguments.value
        return value if value is not None and not self.parsed_arguments.defect else {"arguments": self.raw_arguments}

    def failure_answer(self, call: Attempts) -> dict[str, Any]:
        """Return the failure as an answer for the model. Never raises."""
        try:
            return self._build_answer(call)
        except Exception:  # noqa: BLE001 - the loop must continue
            self.kit.fault("Building an answer for the model")
            return {"error": "tool/unknown", "code": "unknown", "message": "The call failed.", "recoverable": True}

    def to_answer(self, result: Any, call: Attempts) -> Any:
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

    def _build_answer(self, call: Attempts) -> dict[str, Any]:
        given_up = call.given_up
        failure = given_up.failure if given_up else call.failure
        assert failure is not None
        return call.words.answer(
            failure,
            tool=self.requested_name if self.wrapped is None else self.name,
            precedents=given_up.precedents[:3] if given_up else (),
            names=names.nearest_tool_names(self.requested_name, list(self.tools)) if self.wrapped is None else (),
            shareable=self.wrapped.shareable_texts() if self.wrapped else (),
            has_effects=not call.tool.is_retry_safe,
            suggested=call.ending.suggestions if call.ending is not None else (),
            spiral=call.ending.spiral if call.ending is not None else "",
            repeat_note=call.guarding.repeat_note,
        )


def _make_rejecting(error: AgentError) -> CallFunction:
    def refuse(arguments: Mapping[str, Any]) -> Any:
        raise error

    return refuse


def _make_async(function: CallFunction) -> CallFunction:
    async def awaited(arguments: Mapping[str, Any]) -> Any:
        return await function(arguments)

    return awaited


def _make_threaded(function: CallFunction) -> CallFunction:
    """Make a sync function awaitable by a thread, so that it does not block the event loop."""

    async def threaded(arguments: Mapping[str, Any]) -> Any:
        import asyncio  # lazy: loaded by async callers

        result = await asyncio.to_thread(function, arguments)
        return await result if inspect.isawaitable(result) else result

    return threaded


async def _collect_stream(stream: Any) -> list[Any]:
    return [item async for item in stream]


def tools_by_name(tools: Tools) -> dict[str, Callable[..., Any]]:
    """Return the tools by the names that the model uses."""
    pairs = tools.items() if isinstance(tools, Mapping) else ((_tool_name(tool), tool) for tool in tools)
    functions: dict[str, Callable[..., Any]] = {}
    for name, tool in pairs:
        if not callable(tool):
            raise SettingsError(f"Invalid tool {tool!r}. Use a function.")
        if name in functions and functions[name] != tool:
            raise SettingsError(f"Two tools are named {name!r}. Rename one: @mulligan.tool(name=...).")
        functions[name] = tool
    return functions


def _tool_name(tool: Callable[..., Any]) -> str:
    return wrapped.name if (wrapped := wrapped_of(tool)) else name_of(tool)


def wrapped_of(function: Callable[..., Any]) -> WrappedFunction | None:
    """Return the `WrappedFunction` of a wrapped function, or None."""
    wrapped = getattr(function, "__mulligan__", None)
    return wrapped if isinstance(wrapped, WrappedFunction) else None


def _wrap_tool(function: Callable[..., Any], name: str, kit: Kit) -> WrappedFunction:
    return wrapped_of(function) or WrappedFunction(function, lambda: kit, ToolOptions(name=name))
