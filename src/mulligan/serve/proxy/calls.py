"""Tool calls of a proxy connection. The first attempt is forwarded unchanged; failures go through recovery."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import msgspec

from mulligan.calls import TOOL
from mulligan.capture.attempts import Attempts
from mulligan.capture.drive import aplay
from mulligan.capture.first import First, begin
from mulligan.capture.guarding import Unfit
from mulligan.capture.kit import Here, Kit
from mulligan.capture.tracer import ActiveRun, scope
from mulligan.capture.turns import Asked
from mulligan.classify.taxonomy import TOOL_PERMISSION_DENIED
from mulligan.failure import Failure
from mulligan.parts import Parts
from mulligan.recover import near
from mulligan.recover.repair import suggest
from mulligan.serve.proxy import messages, wording
from mulligan.serve.proxy.answers import Answer, Refused, error_in, told
from mulligan.serve.proxy.listing import Listing
from mulligan.serve.proxy.messages import CLIENT, VERSION, Envelope, Id, Loose, ToolCall
from mulligan.serve.proxy.pump import Entry, Pump
from mulligan.serve.proxy.rules import Options
from mulligan.serve.proxy.tools import Known, Tools

UNSET = msgspec.UNSET
IDLE = 1800.0
"""Idle time after which the next call starts a new run: some connections last for days."""
REMEMBERED = 200
"""Number of steps that the connection's run remembers."""

calling: contextvars.ContextVar[Call] = contextvars.ContextVar("calling")
"""Client call that the current attempt belongs to."""


class Calls:
    """Tool calls of one connection."""

    def __init__(self, pump: Pump, parts: Parts, options: Options) -> None:
        self.pump = pump
        self.kit: Kit = parts.kit
        self.options = options
        self.tools = Tools(options, self.kit, remote)
        self.under_way: dict[Id, Call] = {}
        self.run: ActiveRun | None = None
        self._listing = Listing(pump, parts, self.tools)
        self._client = messages.Client()
        self._base = contextvars.Context()
        self._used = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def met(self, params: msgspec.Raw) -> None:
        """Store the client's name and version from its first message."""
        self._client = messages.read(messages.Initialize, params).client

    def listing(self, params: msgspec.Raw) -> Callable[[Envelope, bytes], None]:
        return self._listing.asked(params)

    def begin(self, said: Envelope, line: bytes) -> bool:
        """Start handling a tool call. Return False if the request must be forwarded unchanged."""
        id = None if said.id is UNSET else said.id
        try:
            asked = messages.tool_call(said.params)
            if asked is None:
                return False
            # A message that cannot be encoded again as it was is forwarded unchanged.
            tool = self.tools.named(asked.name, as_it_came=isinstance(said, Loose))
            call = Call(self, id, asked, tool, line, self.context(asked))
        except Exception:  # noqa: BLE001 - the call is forwarded without a record
            self.kit.fault("looking at a tool call")
            return False
        self.under_way[id] = call
        try:
            call.begin()
        except Exception:  # noqa: BLE001 - the call is forwarded without a record
            self.kit.fault("beginning a tool call")
            self.under_way.pop(id, None)
            return False
        return True

    def cancel(self, id: Id, line: bytes) -> bool:
        """Cancel a client's call. Return False if the client's message must be forwarded."""
        call = self.under_way.get(id)
        return call is not None and call.cancel(line)

    def context(self, asked: ToolCall) -> contextvars.Context:
        """Return a context for one call, inside the run of the connection."""
        now = self.pump.loop.time()
        if self.run is None or (now - self._used > IDLE and not self.under_way):
            self._begin_run(asked)
        self._used = now
        return self._base.copy()

    def _begin_run(self, asked: ToolCall) -> None:
        self.end()
        client = self._client
        told = (asked.meta or {}).get(CLIENT)
        if not client.name and isinstance(told, dict):
            client = msgspec.convert({key: told.get(key) for key in ("name", "version")}, messages.Client, strict=False)
        self.run = ActiveRun(
            self.kit,
            client.name or "",
            is_outside=True,
            version=client.version,
            session=self.options.session,
            metadata={"door": "mcp", "server": self.options.name},
        )
        self.run.is_logged = True
        self.run.begin()
        self._base = contextvars.Context()
        self._base.run(self.kit.here.set, Here(self.run, None, None, is_open=False))

    def end(self) -> None:
        if self.run is not None:
            self.run.finish(None)
            self.run = None

    def start(self, work: Any, context: contextvars.Context) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.pump.loop.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, seconds: float) -> None:
        """Give running recoveries this long to finish, then cancel them and end the run."""
        if self._tasks and seconds:
            await asyncio.wait(tuple(self._tasks), timeout=seconds)
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=1.0)
        for call in tuple(self.under_way.values()):
            call.abandoned()
        await self._listing.close()
        self.end()


def remote(name: str) -> Callable[..., Any]:
    """Build a function for a server's tool. Each call of it is an attempt for the current client call."""

    async def call(**arguments: Any) -> Any:
        return await calling.get().attempt(name, arguments)

    return call


class Call(Entry):
    """Tool call of the client. It receives the answer to its first attempt directly."""

    __slots__ = ("_calls", "_context", "_first", "_id", "_in_flight", "_inside", "_last", "_line", "_pump", "_task",
                 "_token", "_was_cancelled", "_was_sent", "asked", "tool")  # fmt: skip

    def __init__(
        self, calls: Calls, id: Id, asked: ToolCall, tool: Known, line: bytes, context: contextvars.Context
    ) -> None:
        super().__init__()
        self._calls = calls
        self._pump = calls.pump
        self._id = id
        self._line = line
        self._context = context
        self._first: First | None = None
        self._inside: tuple[float, Any] = (0.0, None)
        """Start time of the first attempt and the token that restores its scope."""
        self._last: Answer | None = None
        self._task: asyncio.Task[None] | None = None
        self._in_flight: Id = None
        self._was_sent = False
        self._was_cancelled = False
        token = (asked.meta or {}).get("progressToken")
        self._token: Id = token if isinstance(token, int | str) else None
        self.asked = asked
        self.tool = tool
        self.timeout = tool.timeout if tool.wrapped.options.mode != "observe" else 0.0

    @property
    def _arguments(self) -> dict[str, Any]:
        given = self.asked.arguments
        return given if type(given) is dict else {} if given is None else {"arguments": given}

    def begin(self) -> None:
        asked, tool, calls = self.asked, self.tool, self._calls
        if tool.is_held:
            self._task = calls.start(self._held(), contextvars.copy_context())
            return
        is_odd = not (asked.arguments is None or type(asked.arguments) is dict)
        if tool.wrapped.options.mode == "repair":
            if is_odd or (tool.definition is None and calls.tools.names):
                mendable = Asked(calls.kit, calls.tools.functions(), asked.name, asked.arguments)
                run = calls.run
                if mendable.wrapped is not None and run is not None and mendable.may_mend(mendable.wrapped, run):
                    self._task = calls.start(self._recover(asked=mendable), self._context)
                    return
            elif not is_odd and self._is_repaired_first():
                self._task = calls.start(self._recover(is_checked=True), self._context)
                return
        if is_odd:
            tool = self.tool = calls.tools.named(asked.name, as_it_came=True)
        first = self._context.run(begin, tool.wrapped, calls.kit, (), {**self._arguments})
        if first is None:
            self._task = calls.start(self._recover(), self._context)
            return
        self._first = first
        self._inside = calls.kit.timer(), self._context.run(calls.kit.here.set, first)
        self._was_sent = True
        self._pump.expect(self._id, self, self._token)
        self._pump.send(self._line, self)

    def _is_repaired_first(self) -> bool:
        """Return whether a call with effects="once" violates its schema and an automatic repair is known.

        Only a call that was never sent has certainly not executed. Without a repair, the server decides.
        """
        wrapped, kit, run = self.tool.wrapped, self._calls.kit, self._calls.run
        if wrapped.options.effects != "once" or run is None:
            return False
        try:
            wrapped.check(self._arguments)
        except Unfit as error:
            failure = kit.failure(error, source="tool", tool=wrapped.name, arguments=self._arguments)
            tool = wrapped.tool("repair")
            found = suggest(self._arguments, failure, tool, run.seen(), confidence=kit.policy.confidence)
            return any(each.automatic for each in found)
        return False

    # The first attempt

    def answered(self, said: Envelope, line: bytes) -> None:
        first = self._first
        assert first is not None
        self._last = Answer(self._id, said, line)
        self._pump.settle(self._id, self._token)
        try:
            if said.error != messages.NOTHING:
                self._context.run(first.failed, Refused(error_in(said.error)), *self._inside)
            elif self._context.run(first.succeeded, told(said.result), *self._inside):
                del self._calls.under_way[self._id]
                self._pump.client.write(self._passed_on())
                return
        except Exception:  # noqa: BLE001 - the answer is forwarded without a record
            self._calls.kit.fault("reading an answer")
            self._calls.under_way.pop(self._id, None)
            self._pump.client.write(line)
            return
        self._task = self._calls.start(self._recover(first), self._context)

    def lost(self, error: Exception) -> None:
        first = self._first
        assert first is not None
        self._pump.settle(self._id, self._token)
        if isinstance(error, TimeoutError):
            self._pump.cancel(self._id, "it took too long")
            error = TimeoutError(f"{self.tool.name} did not answer in {self.timeout:g} s.")
        self._context.run(first.failed, error, *self._inside)
        self._task = self._calls.start(self._recover(first), self._context)

    def cancel(self, line: bytes) -> bool:
        """Cancel the call. Return False if the client's message must be forwarded to the server."""
        self._was_cancelled = True
        if self._task is not None:
            self._task.cancel()
            if self._in_flight == self._id:
                return False
            if self._in_flight is not None:
                self._pump.cancel(self._in_flight, "the client cancelled it")
            return True
        self.abandoned()
        self._pump.settle(self._id, self._token)
        self._pump.let_pass(self._id)
        return False

    def abandoned(self) -> None:
        """Record the call as cancelled: the client no longer waits."""
        self._calls.under_way.pop(self._id, None)
        if self._first is not None and self._task is None:
            self._context.run(self._first.cancelled, asyncio.CancelledError(), *self._inside)

    # Recovery

    async def _recover(
        self, first: First | None = None, *, is_checked: bool = False, asked: Asked | None = None
    ) -> None:
        calling.set(self)
        kit, wrapped = self._calls.kit, self.tool.wrapped
        attempts: Attempts | None = None
        error: Exception | None = None
        try:
            with first.scope() if first is not None else scope(kit, self._calls.run) as run:
                if asked is not None:
                    attempts = asked.attempts(run)
                else:
                    attempts = wrapped.attempts(kit, run, (), self._arguments, first=first, is_checked=is_checked)
                attempts.is_answered = True
                try:
                    await aplay(attempts)
                except Exception as raised:  # noqa: BLE001 - recorded already; rendered for the model below
                    error = raised
        except asyncio.CancelledError:
            if self._was_cancelled:
                return
            error = ConnectionResetError("the connection ended")
        finally:
            self._calls.under_way.pop(self._id, None)
        self._pump.client.write(self._worded(attempts, error))

    async def attempt(self, name: str, arguments: dict[str, Any]) -> Any:
        """Send one attempt, with the original or repaired arguments, and return the server's answer."""
        pump = self._pump
        await pump.available()
        id, line = self._id, self._line
        if self._was_sent or name != self.asked.name or arguments != self._arguments:
            id = pump.new_id()
            params = {**messages.members(messages.envelope(self._line).params), "name": name, "arguments": arguments}
            line = messages.request(id, "tools/call", params)
        self._was_sent = True
        entry = Attempt(pump.loop.create_future())
        entry.timeout = self.timeout
        self._last, self._in_flight = None, id
        pump.expect(id, entry, self._token)
        pump.send(line, entry)
        try:
            said, line = await entry.future
        except TimeoutError:
            pump.cancel(id, "it took too long")
            raise TimeoutError(f"{name} did not answer in {self.timeout:g} s.") from None
        except asyncio.CancelledError:
            if id == self._id:
                pump.let_pass(id)
            raise
        finally:
            self._in_flight = None
            if not self._was_cancelled or id != self._id:
                pump.settle(id, self._token)
        self._last = Answer(id, said, line)
        if said.error != messages.NOTHING:
            raise Refused(error_in(said.error))
        return told(said.result)

    async def _held(self) -> None:
        """Block a call of a tool that must be accepted first, unless it was accepted in the meantime."""
        await self._calls._listing.refresh()
        self.tool = self._calls.tools.named(self.asked.name)
        if not self.tool.is_held:
            self._task = None
            self.begin()
            return
        said = self._calls.kit.prompt.held_back(self.tool.name, self._calls.options.name)
        failure = Failure.of(TOOL_PERMISSION_DENIED, said, hint="Go on without it.", recoverable=False)
        run = self._calls.run
        if run is not None:
            run.ended(run.aside("tool", self.tool.wrapped.name, failure))
        self._calls.under_way.pop(self._id, None)
        block = self._calls.kit.prompt.answer(failure, tool=self.tool.name)
        self._pump.client.write(wording.instead(self._id, block, {}, self._is_stateless))

    # Answers to the client

    @property
    def _is_stateless(self) -> bool:
        return VERSION in (self.asked.meta or {})

    def _passed_on(self) -> bytes:
        """Return the server's answer unchanged, or with a note about ignored arguments."""
        assert self._last is not None
        note = self._ignored()
        return self._last.line if not note else wording.noted(self._id, self._last.said.result, [note], {})

    def _ignored(self) -> str:
        names = self.tool.arguments
        given = self.asked.arguments
        if names is None or type(given) is not dict or names.issuperset(given):
            return ""
        if self.tool.wrapped.options.mode == "observe":
            return ""
        strangers = self._calls.tools.strangers(self.tool, given)
        if not strangers:
            return ""
        free = [name for name in names if name not in given]
        found = {name: match.name for name in strangers if (match := near.meant(name, free)) is not None}
        return self._calls.kit.prompt.ignored(self.tool.name, strangers, found)

    def _worded(self, attempts: Attempts | None, error: Exception | None) -> bytes:
        try:
            return self._told(attempts, error)
        except Exception:  # noqa: BLE001 - the client must get an answer
            self._calls.kit.fault("wording an answer")
        if self._last is not None and self._last.id == self._id:
            return self._last.line
        return messages.refusal(self._id, messages.GONE, f"{self.tool.name} failed.")

    def _told(self, attempts: Attempts | None, error: Exception | None) -> bytes:
        last = self._last
        failure = attempts.failure if attempts is not None else None
        if attempts is None or failure is None:
            if last is None:
                return messages.refusal(self._id, messages.GONE, f"{self.tool.name} failed: {error}")
            notes = [attempts.words.note(self.tool.name, attempts.changes)] if attempts and attempts.changes else []
            if not notes:
                note = self._ignored()
                notes = [note] if note else []
            if notes:
                return wording.noted(self._id, last.said.result, notes, self._about(attempts))
            return last.line if last.id == self._id else messages.answer(self._id, last.said.result)
        is_verbatim = attempts.tool.mode == "observe" or not failure.counts
        block = self._block(attempts, failure)
        if error is None and last is not None:
            if is_verbatim:
                return last.line if last.id == self._id else messages.answer(self._id, last.said.result)
            return wording.explained(self._id, last.said.result, block, self._about(attempts))
        if isinstance(error, Refused) and last is not None:
            if is_verbatim and last.id == self._id:
                return last.line
            return wording.refused(self._id, last.said.error, block, self._about(attempts))
        return wording.instead(self._id, block, self._about(attempts), self._is_stateless)

    def _about(self, attempts: Attempts | None) -> dict[str, Any]:
        if attempts is None:
            return {}
        return {"run": attempts.run.id, "call": attempts.number, "attempts": attempts.made}

    def _block(self, attempts: Attempts, failure: Failure) -> dict[str, Any]:
        """Build the description of the failure for the model, as after any other call."""
        given_up = attempts.given_up
        known = self._calls.tools.names
        offered = attempts.ending.offered if attempts.ending is not None else ()
        is_unknown = bool(known) and self.asked.name not in known
        return attempts.words.answer(
            failure,
            tool=self.tool.name,
            precedents=given_up.precedents[:3] if given_up else (),
            names=near.nearest(self.asked.name, known) if is_unknown else (),
            closed=self.tool.wrapped.closed(),
            has_effects=not attempts.tool.is_repeatable,
            offered=[each for each in offered if all(change.path != TOOL for change in each.changes)],  # in `names`
            spiral=attempts.ending.spiral if attempts.ending is not None else "",
            repeat_note=attempts.guarding.repeat_note,
        )


class Attempt(Entry):
    """Attempt of a recovery. Its future receives the answer."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[tuple[Envelope, bytes]]) -> None:
        super().__init__()
        self.future = future

    def answered(self, said: Envelope, line: bytes) -> None:
        if not self.future.done():
            self.future.set_result((said, line))

    def lost(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
