"""Tool calls of a proxy connection. The first attempt is forwarded unchanged; failures go through recovery."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextvars import Context
from typing import Any, NamedTuple

import msgspec

from mulligan.build import Components
from mulligan.capture.attempt import CallForm
from mulligan.capture.call import prepare_call, recover_call
from mulligan.capture.call_errors import SchemaMismatchError
from mulligan.capture.call_execution import CallExecution
from mulligan.capture.call_scope import CallScope
from mulligan.capture.context import CaptureContext
from mulligan.capture.first_attempt import FirstAttempt
from mulligan.capture.loop import ToolRequest
from mulligan.capture.lost_call import find_lost_answer
from mulligan.capture.player import aexecute_plan
from mulligan.capture.run import ActiveRun, scope
from mulligan.capture.wrap import begin_call, continue_call
from mulligan.core.failure import Failure
from mulligan.core.kinds import TOOL_PERMISSION_DENIED
from mulligan.hooks import session_files
from mulligan.proxy import messages
from mulligan.proxy.messages import (
    Envelope,
    Id,
    InvalidAnswerError,
    LooseEnvelope,
    ProtocolResponseError,
    ToolCall,
    to_function_result,
)
from mulligan.proxy.relay import PendingRequest, Relay
from mulligan.proxy.tools import RemoteTool, ServerTools
from mulligan.recover import names as names_module
from mulligan.recover.repair import suggest

UNSET = msgspec.UNSET
MAX_ANNOUNCED_TOOLS = 1000

current_call: contextvars.ContextVar[ToolCallRequest] = contextvars.ContextVar("calling")
"""Client call that the current attempt belongs to."""


class ToolCallRelay:
    def __init__(self, relay: Relay, components: Components) -> None:
        self.relay = relay
        self.capture: CaptureContext = components.capture
        self.options = relay.options
        self.tools = ServerTools(relay, components, build_remote_function)
        self.active_calls: dict[Id, ToolCallRequest] = {}
        self.run: ActiveRun | None = None
        self._client = messages.ClientInfo()
        self._session = self._user_request = ""
        self._announced_tools: set[str] = set()
        """Tools of this run whose calls hooks leave to the proxy."""
        self._base = Context()
        self._last_used = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def set_client(self, params: msgspec.Raw) -> None:
        """Store the client's name and version from its first message."""
        self._client = messages.decode_params(params).client

    def build_list_handler(self, params: msgspec.Raw) -> Callable[[Envelope, bytes], None]:
        return self.tools.build_answer_handler(params)

    def find_schema(self, tool: str) -> Any:
        return self.tools.find_schema(tool)

    def begin(self, envelope: Envelope, line: bytes) -> bool:
        """Start handling a tool call. Return False if the request must be forwarded unchanged."""
        id = None if envelope.id is UNSET else envelope.id
        with self.capture.guard("starting a tool call"):  # Otherwise it is forwarded without a record.
            tool_call = messages.decode_tool_call(envelope.params)
            if tool_call is None:
                return False
            # A message that cannot be encoded again as it was is forwarded unchanged.
            tool = self.tools.get_tool(tool_call.name, is_verbatim=isinstance(envelope, LooseEnvelope))
            call = ToolCallRequest(self, id, tool_call, tool, line, self.prepare_context(tool_call))
            self.active_calls[id] = call
            call.begin()
            return True
        self.active_calls.pop(id, None)
        return False

    def cancel(self, id: Id, line: bytes) -> bool:
        """Cancel a client's call. Return False if the client's message must be forwarded."""
        call = self.active_calls.get(id)
        return call is not None and call.cancel(line)

    def prepare_context(self, tool_call: ToolCall) -> Context:
        """Return a context for one call, inside the run of the connection."""
        now = self.relay.loop.time()
        # Idle time after which the next call starts a new run: some connections last for days
        if (
            self.run is None
            or (now - self._last_used > 1800.0 and not self.active_calls)
            or (not self.options.session and self._session != messages.find_session_id(tool_call))
        ):
            self._begin_run(tool_call)
        if (request := messages.find_user_request_id(tool_call)) != self._user_request and self.run is not None:
            self._user_request = request
            self.run.begin_user_request()
        is_announced = tool_call.name in self._announced_tools or len(self._announced_tools) >= MAX_ANNOUNCED_TOOLS
        if not is_announced and self.capture.record != "off":
            self._announced_tools.add(tool_call.name)
            with self.capture.guard("announcing the proxy to hooks"):
                session_files.add_proxied_tool(self._session, self.options.name, tool_call.name)
        self._last_used = now
        return self._base.copy()

    def _begin_run(self, tool_call: ToolCall) -> None:
        self.end_run()
        client = self._client
        client_info = (tool_call.meta or {}).get(messages.CLIENT_INFO_KEY)
        if not client.name and isinstance(client_info, dict):
            names = {key: client_info.get(key) for key in ("name", "version")}
            client = msgspec.convert(names, messages.ClientInfo, strict=False)
        self._session = self.options.session or messages.find_session_id(tool_call)
        self._announced_tools.clear()
        metadata = {"door": "mcp", "server": self.options.name}
        self.run = ActiveRun(
            self.capture, client.name or "", is_standalone=True, version=client.version,
            session=self._session or None, metadata=metadata,
        )  # fmt: skip
        self.run.judge.is_logged = True
        self.run.start()
        self._base = Context()
        run_scope = CallScope(self.run, None, None, is_retrying=False, is_in_progress=False)
        self._base.run(self.capture.current_scope.set, run_scope)

    def end_run(self) -> None:
        if self.run is not None:
            self.run.finish(None)
            self.run = None

    def start_task(self, coroutine: Any, context: Context) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.relay.loop.create_task(coroutine, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, seconds: float) -> None:
        """Give running recoveries this long to finish, then cancel them and end the run."""
        if self._tasks and seconds:
            await asyncio.wait(tuple(self._tasks), timeout=seconds)
        if self.run is not None:
            self.run.is_open = False  # what is cancelled now was not cut off: the client is gone
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=1.0)
        for call in tuple(self.active_calls.values()):
            call.abandon(GeneratorExit())
        await self.tools.close()
        self.end_run()


def build_remote_function(name: str) -> Callable[..., Any]:
    """Build a function for a server's tool. Each call of it is an attempt for the current client call."""

    async def call(**arguments: Any) -> Any:
        return await current_call.get().attempt(name, arguments)

    return call


class Answer(NamedTuple):
    """Answer of the server to one attempt, with the raw line."""

    id: Id
    envelope: Envelope
    line: bytes


def read_result(envelope: Envelope) -> Any:
    """Return the result of a tool as a function's value, or raise the error that the server answered."""
    if envelope.error != messages.EMPTY_RAW:
        raise ProtocolResponseError(envelope.error)
    return to_function_result(envelope.result)


class ToolCallRequest:
    """Tool call of the client. It receives the answer to its first attempt directly."""

    def __init__(
        self, calls: ToolCallRelay, id: Id, tool_call: ToolCall, tool: RemoteTool, line: bytes, context: Context
    ) -> None:
        self._calls, self._relay = calls, calls.relay
        self._id, self._line, self._context = id, line, context
        self._first: FirstAttempt | None = None
        self._is_repeated = False
        """Whether the answer of the same call was lost, and its outcome is unknown."""
        self._attempt_start: tuple[float, Any] = (0.0, None)
        """Start time of the first attempt and the token that restores its scope."""
        self._last: Answer | None = None
        self._task: asyncio.Task[None] | None = None
        self._in_flight: Id = None
        self._was_sent = False
        self._was_cancelled = False
        token = (tool_call.meta or {}).get("progressToken")
        self._token: Id = token if isinstance(token, int | str) else None
        self.tool_call = tool_call
        self.tool = tool
        self.timeout = tool.timeout if tool.options.mode != "observe" else 0.0

    @property
    def _arguments(self) -> dict[str, Any]:
        arguments = self.tool_call.arguments
        return arguments if type(arguments) is dict else {} if arguments is None else {"arguments": arguments}

    def begin(self) -> None:
        tool_call, tool, calls = self.tool_call, self.tool, self._calls
        if tool.is_blocked:
            self._task = calls.start_task(self._answer_blocked_tool(), contextvars.copy_context())
            return
        has_non_object_arguments = not (tool_call.arguments is None or type(tool_call.arguments) is dict)
        if tool.options.mode == "repair":
            if has_non_object_arguments or (tool.definition is None and calls.tools.names):
                functions, run = calls.tools.recovering_functions(), calls.run
                request = ToolRequest(calls.capture, functions, tool_call.name, tool_call.arguments)
                if request.wrapped is not None and run is not None and request.can_repair(request.wrapped, run):
                    self._task = calls.start_task(self._recover(tool_request=request), self._context)
                    return
            elif self._needs_repair_first():
                self._task = calls.start_task(self._recover(is_checked=True), self._context)
                return
        if has_non_object_arguments:
            tool = self.tool = calls.tools.get_tool(tool_call.name, is_verbatim=True)
        first = self._context.run(begin_call, tool, calls.capture, (), {**self._arguments})
        if first is None:
            call = self._context.run(continue_call, None, tool, calls.capture, (), {**self._arguments})
            self._task = calls.start_task(self._recover(call), self._context)
            return
        self._first = first
        self._is_repeated = find_lost_answer(first.call, ((), self._arguments)) is not None
        self._attempt_start = calls.capture.timer(), self._context.run(calls.capture.current_scope.set, first.call)
        self._was_sent = True
        entry = PendingRequest(self._handle_first_answer, self._handle_no_first_answer, self.timeout, self._token)
        self._relay.expect(self._id, entry)
        self._relay.send(self._line, entry)

    def _needs_repair_first(self) -> bool:
        """Return whether a call with effects="once" violates its schema and an automatic repair is known.

        Only a call that was never sent has certainly not executed. Without a repair, the server decides.
        """
        tool, capture, run, arguments = self.tool, self._calls.capture, self._calls.run, self._arguments
        if tool.options.effects != "once" or run is None:
            return False
        try:
            tool.check(arguments)
        except SchemaMismatchError as error:
            failure = capture.classify_safely(
                error, source="tool", tool=tool.name, arguments=arguments, category=tool.category
            )
            min_confidence = capture.policy.min_confidence
            suggestions = suggest(
                arguments, failure, tool.tool("repair"), run.earlier_calls(), min_confidence=min_confidence
            )
            return any(suggestion.automatic for suggestion in suggestions)
        return False

    # The first attempt

    def _handle_first_answer(self, envelope: Envelope, line: bytes) -> None:
        first = self._first
        assert first is not None
        self._last = Answer(self._id, envelope, line)
        with self._calls.capture.guard("reading an answer"):  # Otherwise it is forwarded without a record.
            try:
                result = read_result(envelope)
            except (ProtocolResponseError, InvalidAnswerError) as error:
                self._context.run(first.keep_failure, error, *self._attempt_start)
            else:
                if self._context.run(first.record_success, result, *self._attempt_start):
                    del self._calls.active_calls[self._id]
                    prompt, name = self._calls.capture.prompt, self.tool.tool_name
                    notes = [prompt.repeated_call_note(name)] if self._is_repeated else []
                    self._relay.client.write(self._render_success(self._last, notes, {}))
                    return
            self._task = self._calls.start_task(self._recover(recover_call(first)), self._context)
            return
        self._calls.active_calls.pop(self._id, None)
        self._relay.client.write(line)

    def _handle_no_first_answer(self, error: Exception) -> None:
        first = self._first
        assert first is not None
        if isinstance(error, TimeoutError):
            self._relay.cancel_request(self._id, "timed out")
            error = TimeoutError(f"{self.tool.tool_name} did not answer in {self.timeout:g} s.")
        self._context.run(first.keep_failure, error, *self._attempt_start)
        self._task = self._calls.start_task(self._recover(recover_call(first)), self._context)

    def cancel(self, line: bytes) -> bool:
        """Cancel the call. Return False if the client's message must be forwarded to the server."""
        self._was_cancelled = True
        if self._task is not None:
            self._task.cancel()
            if self._in_flight == self._id:
                return False
            if self._in_flight is not None:
                self._relay.cancel_request(self._in_flight, "cancelled by the client")
            return True
        self.abandon(GeneratorExit() if messages.HUNG_UP.encode() in line else asyncio.CancelledError())
        self._relay.stop_waiting(self._id)
        self._relay.forward_late_answer(self._id)
        return False

    def abandon(self, reason: BaseException) -> None:
        """Record the call as cancelled: the client no longer waits, and was cut off or is gone."""
        self._calls.active_calls.pop(self._id, None)
        if self._first is not None and self._task is None:
            self._context.run(self._first.record_cancelled, reason, *self._attempt_start)

    # Recovery

    async def _recover(
        self, call: CallExecution | None = None, *, is_checked: bool = False, tool_request: ToolRequest | None = None
    ) -> None:
        current_call.set(self)
        capture = self._calls.capture
        attempts: CallExecution | None = None
        error: Exception | None = None
        try:
            with call.run_scope() if call is not None else scope(capture, self._calls.run) as run:
                if call is not None:
                    attempts = call
                elif tool_request is not None:
                    attempts = tool_request.prepare_call(run)
                else:
                    attempts = prepare_call(
                        self.tool, capture, run, (), self._arguments, CallForm(must_check=is_checked)
                    )
                attempts.call.answers_model, attempts.prepared.tool_names = True, self._calls.tools.names
                try:
                    await aexecute_plan(attempts)
                except Exception as raised:  # noqa: BLE001 - recorded already; rendered for the model below
                    error = raised
        except asyncio.CancelledError:
            if self._was_cancelled:
                return
            error = ConnectionResetError("the connection closed")
        finally:
            self._calls.active_calls.pop(self._id, None)
        answer = messages.build_error(self._id, f"{self.tool.tool_name} failed.")
        if self._last is not None and self._last.id == self._id:
            answer = self._last.line
        with capture.guard("rendering an answer"):
            answer = self._render_answer(attempts, error)
        self._relay.client.write(answer)

    async def attempt(self, name: str, arguments: dict[str, Any]) -> Any:
        """Send one attempt, with the original or repaired arguments, and return the server's answer."""
        relay = self._relay
        await relay.wait_until_ready()
        id, line = self._id, self._line
        if self._was_sent or name != self.tool_call.name or arguments != self._arguments:
            id = relay.new_id()
            params = messages.decode_members(messages.decode_envelope(self._line).params)
            changed_params = {**params, "name": name, "arguments": arguments}
            line = messages.build_message(id=id, method="tools/call", params=changed_params)
        self._was_sent = True
        answer: asyncio.Future[tuple[Envelope, bytes]] = relay.loop.create_future()
        entry = PendingRequest(
            lambda envelope, line: None if answer.done() else answer.set_result((envelope, line)),
            lambda error: None if answer.done() else answer.set_exception(error),
            self.timeout,
            self._token,
        )
        self._last, self._in_flight = None, id
        relay.expect(id, entry)
        relay.send(line, entry)
        try:
            envelope, line = await answer
        except TimeoutError:
            relay.cancel_request(id, "timed out")
            raise TimeoutError(f"{name} did not answer in {self.timeout:g} s.") from None
        except asyncio.CancelledError:
            if self._was_cancelled and id == self._id:
                relay.forward_late_answer(id)
            else:
                relay.stop_waiting(id)
            raise
        finally:
            self._in_flight = None
        self._last = Answer(id, envelope, line)
        return read_result(envelope)

    async def _answer_blocked_tool(self) -> None:
        """Block a call of a tool that must be accepted first, unless it was accepted in the meantime."""
        await self._calls.tools.refresh()
        self.tool = self._calls.tools.get_tool(self.tool_call.name)
        if not self.tool.is_blocked:
            self._task = None
            self.begin()
            return
        message = self._calls.capture.prompt.definition_changed(self.tool.tool_name, self._calls.options.name)
        failure = Failure.of(TOOL_PERMISSION_DENIED, message, hint="Continue without this tool.", recoverable=False)
        run = self._calls.run
        if run is not None:
            run.record_child_failure("tool", self.tool.name, failure)
        self._calls.active_calls.pop(self._id, None)
        block = self._calls.capture.prompt.answer(failure, tool=self.tool.tool_name)
        self._relay.client.write(self._build_failure_answer(block, {}))

    # Answers to the client

    def _ignored_arguments_note(self) -> str:
        tool, names, arguments = self.tool, self.tool.argument_names, self.tool_call.arguments
        if tool.options.mode == "observe" or names is None or type(arguments) is not dict:
            return ""
        unknown = [] if names.issuperset(arguments) else self._calls.tools.find_unknown_arguments(tool, arguments)
        if not unknown:
            return ""
        free = [name for name in names if name not in arguments]
        matches = {name: names_module.match_name(name, free) for name in unknown}
        likely_names = {name: match.name for name, match in matches.items() if match is not None}
        return self._calls.capture.prompt.ignored_arguments(tool.tool_name, unknown, likely_names)

    def _render_answer(self, attempts: CallExecution | None, error: Exception | None) -> bytes:
        last = self._last
        failure = attempts.attempt.failure if attempts is not None else None
        metadata = {}
        if attempts is not None:
            metadata = {"run": attempts.run.id, "call": attempts.number, "attempts": attempts.attempt.number}
        if attempts is None or failure is None:
            if last is None:
                return messages.build_error(self._id, f"{self.tool.tool_name} failed: {error}")
            notes = []
            if attempts is not None and attempts.answer.changes:
                notes = [attempts.answer.repair_note(self.tool.tool_name)]
            if attempts is not None and (repeated := attempts.answer.repeated_call_note(self.tool.tool_name)):
                notes.append(repeated)
            return self._render_success(last, notes, metadata)
        if isinstance(error, InvalidAnswerError) and last is not None:
            return self._with_original_id(last)  # a result of another form: only the client can read it, if any
        is_verbatim = attempts.tool.mode == "observe" or not failure.is_failure
        block = self._build_failure_block(attempts)
        if error is None and last is not None:
            if is_verbatim:
                return self._with_original_id(last)
            return messages.add_failure_block(self._id, last.envelope.result, block, metadata)
        if isinstance(error, ProtocolResponseError) and last is not None:
            if is_verbatim and last.id == self._id:
                return last.line
            return messages.add_block_to_error(self._id, last.envelope.error, block, metadata)
        return self._build_failure_answer(block, metadata)

    def _render_success(self, last: Answer, notes: list[str], metadata: dict[str, Any]) -> bytes:
        """Return the server's answer unchanged, or with notes about repaired or ignored arguments."""
        notes = notes or list(filter(None, [self._ignored_arguments_note()]))
        if not notes:
            return self._with_original_id(last)
        return messages.add_notes(self._id, last.envelope.result, notes, metadata)

    def _with_original_id(self, last: Answer) -> bytes:
        if last.id == self._id:
            return last.line
        return messages.build_message(id=self._id, result=last.envelope.result)

    def _build_failure_answer(self, block: dict[str, Any], metadata: dict[str, Any]) -> bytes:
        is_stateless = messages.PROTOCOL_VERSION_KEY in (self.tool_call.meta or {})
        return messages.build_failure_answer(self._id, block, metadata, is_stateless)

    def _build_failure_block(self, attempts: CallExecution) -> dict[str, Any]:
        """Build the description of the failure for the model, as after any other call."""
        tool_names = self._calls.tools.names
        is_unknown = bool(tool_names) and self.tool_call.name not in tool_names
        near_names = names_module.nearest_tool_names(self.tool_call.name, tool_names) if is_unknown else ()
        return attempts.answer.describe_failure(
            self.tool.tool_name, names=near_names, shareable=self.tool.shareable_texts()
        )
