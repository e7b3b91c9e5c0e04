"""Bounded agent loops, and tool calls whose failures are returned to the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mulligan import calls
from mulligan.capture.attempts import Attempts, Mended
from mulligan.capture.drive import aplay, play
from mulligan.capture.kit import Kit
from mulligan.capture.signature import name_of
from mulligan.capture.tracer import ActiveRun, scope
from mulligan.capture.wrap import ToolOptions, Wrapped
from mulligan.classify.taxonomy import TOOL_INVALID_ARGUMENTS, TOOL_UNKNOWN_TOOL
from mulligan.failure import AgentError, InfraError, Remedy, SettingsError
from mulligan.prompt import Told, last_turn
from mulligan.records import Change, Recovery
from mulligan.recover import near
from mulligan.recover.confidence import sureness
from mulligan.recover.tool import Tool

Tools = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
OURS = "mulligan"
"""The key under which mulligan adds notes to a tool's result."""
Made = Callable[[Mapping[str, Any]], Any]


class Turns:
    """`for turn in mulligan.turns(limit=10):` ends after `limit` turns.

    Outside a run, the loop is a run of its own with all its tool and model calls.
    """

    def __init__(self, source: Callable[[], Kit], limit: int = 10) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise SettingsError(f"limit is a whole number of turns, got {limit!r}.")
        if limit < 1:
            raise SettingsError(f"limit must be at least 1, got {limit}.")
        self.limit = limit
        self.made: list[Attempts] = []
        """The tool calls of all turns."""
        self._source = source

    def __iter__(self) -> Iterator[Turn]:
        kit = self._source()
        self.made = []
        with scope(kit) as run:
            run.is_alone = False
            for number in range(1, self.limit + 1):
                yield Turn(kit, run, number, self)

    def report(self) -> str:
        """Return which calls succeeded and which failed, for the final answer."""
        overcome: set[tuple[str, int]] = set()
        for run in {call.run.id: call.run for call in self.made}.values():
            overcome |= {(run.id, link.failed) for link in run.links()}
        return self._source().prompt.report([self._outcome(call, overcome) for call in self.made])

    @staticmethod
    def _outcome(call: Attempts, overcome: set[tuple[str, int]]) -> Told:
        failure = call.given_up.failure if call.given_up is not None else call.failure
        return Told(
            tool=call.tool.name,
            failure=failure,
            note=call.note,
            has_effects=not call.tool.is_repeatable,
            is_overcome=failure is not None and (call.run.id, call.number) in overcome,
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
        self._has_asked = False

    def __repr__(self) -> str:
        return f"<turn {self.number} of {self._turns.limit}>"

    @property
    def notice(self) -> str:
        """The note for the model in its last turn; otherwise empty."""
        return last_turn() if self.is_last else ""

    def call(self, tools: Tools, name: str, arguments: Any = None) -> Any:
        """Execute a tool call. Return its result, or the failure as an answer for the model. Raises `InfraError`."""
        asked = Asked(self._kit, tools, name, arguments)
        if asked.is_async:
            raise SettingsError(f"{asked.name} is async: use `await turn.acall(...)`.")
        # Use the run of the loop: a worker thread has no current run.
        with scope(self._kit, self._run) as run:
            call = self._begun(asked.attempts(run))
            try:
                result = play(call)
            except InfraError:
                raise
            except Exception:  # noqa: BLE001 - classified and recorded; returned to the model
                return asked.answer(call)
        if inspect.iscoroutine(result):
            result.close()
            raise SettingsError(f"{asked.name} answers with a coroutine: use `await turn.acall(...)`.")
        return asked.told(result, call)

    async def acall(self, tools: Tools, name: str, arguments: Any = None) -> Any:
        """Execute a call of an async tool, or of a sync tool in a thread. Otherwise like `call`."""
        asked = Asked(self._kit, tools, name, arguments)
        with scope(self._kit, self._run) as run:
            call = self._begun(asked.attempts(run, _awaited if asked.is_async else _threaded))
            try:
                result = await aplay(call)
            except InfraError:
                raise
            except Exception:  # noqa: BLE001 - classified and recorded; returned to the model
                return asked.answer(call)
        return asked.told(result, call)

    def _begun(self, call: Attempts) -> Attempts:
        if not self._has_asked:
            self._has_asked = True
            self._kit.answered(self._run.id)
        call.is_answered = True
        call.turn = (id(self._turns), self.number)
        call.is_answered = call.guarding.can_block = True
        self._turns.made.append(call)
        return call


class Asked:
    """A tool call requested by a model: a tool name, and arguments of any form."""

    def __init__(self, kit: Kit, tools: Tools, name: str, arguments: Any) -> None:
        self.kit = kit
        self.tools = named(tools)
        self.called = name if isinstance(name, str) else str(name)
        self.name = self.called
        self._families: list[str] = []
        """The repair strategies used, for the confidence."""
        if isinstance(name, str) and name not in self.tools and (match := near.named(name, list(self.tools))):
            self.name = match.name
            self._families.append(f"tool {match.how}")
        from mulligan.recover import written  # lazy: imports json, needed only in agent loops

        self.given = arguments
        self.written = written.read(arguments)
        if self.written.mended:
            self._families.append("parse")
        function = self.tools.get(self.name)
        # A method that was wrapped in its class is wrapped as a function, so pass `self` explicitly.
        self._args = (function.__self__,) if inspect.ismethod(function) and known_as(function) else ()
        self.wrapped = _wrapped(function, self.name, kit) if function is not None else None
        self.is_async = self.wrapped is not None and self.wrapped.is_async

    def attempts(self, run: ActiveRun, through: Callable[[Made], Made] | None = None) -> Attempts:
        wrapped, arguments = self.wrapped, self.written.value
        fault = self._fault()
        if wrapped is None or arguments is None or (fault is not None and not self.may_mend(wrapped, run)):
            if wrapped is not None and self.name != self.called:
                wrapped = self.wrapped = None  # the name was corrected, but repairs are not allowed
            refuse = _refusing(fault or self._unknown())
            tool = Tool(name=self.called if wrapped is None else wrapped.name, mode="observe")
            return Attempts(run.kit, run, tool, self._shown(), refuse if through is None else through(refuse))
        positional, keywords = wrapped.signature.spread(arguments, self._args)
        reading = list if wrapped.is_stream else _collected if wrapped.is_async_stream else None
        return wrapped.attempts(
            self.kit,
            run,
            tuple(positional),
            keywords,
            opening=reading,
            through=through,
            is_checked=True,
            mended=None if fault is None else self._mended(fault, wrapped),
        )

    def _fault(self) -> AgentError | None:
        """Return the error of the call as requested, if any."""
        if self.name != self.called or self.wrapped is None:
            return self._unknown()
        if self.written.value is None:
            return AgentError(self.written.why, code=TOOL_INVALID_ARGUMENTS.code)
        if self.written.mended:
            told = f"The arguments are not a JSON object as it should be: {self.written.mended}."
            return AgentError(told, code=TOOL_INVALID_ARGUMENTS.code)
        return None

    def _unknown(self) -> AgentError:
        return AgentError(f"There is no tool {self.called!r}.", code=TOOL_UNKNOWN_TOOL.code)

    def may_mend(self, wrapped: Wrapped, run: ActiveRun) -> bool:
        """Return whether a malformed request may be repaired and executed."""
        policy = wrapped.options.policy or self.kit.policy
        return (
            wrapped.rules(self.kit, run.limits).mode == "repair"
            and policy.attempts > 1
            and self._sure > policy.confidence
        )

    @property
    def _sure(self) -> float:
        return sureness(self._families)

    def _mended(self, fault: AgentError, wrapped: Wrapped) -> Mended:
        changes = []
        if self.name != self.called:
            changes.append(Change(path=calls.TOOL, how="rename", before=self.called, after=self.name, from_="call"))
        if self.written.mended:
            changes.append(Change(path="", how="parse", before=self.given, after=self.written.value, from_="call"))
        policy = wrapped.options.policy or self.kit.policy
        recovery = Recovery(
            remedy=Remedy.REPAIR,
            seconds=policy.wait(2, None, self.kit.chance()) or 0.0,
            changes=tuple(changes),
            source="call",
            confidence=self._sure,
        )
        failure = self.kit.failure(fault, source="tool", tool=self.called, arguments=self._shown())
        return Mended(self.called, self._shown(), failure, recovery)

    def _shown(self) -> Mapping[str, Any]:
        value = self.written.value
        return value if value is not None and not self.written.mended else {"arguments": self.given}

    def answer(self, call: Attempts) -> dict[str, Any]:
        """Return the failure as an answer for the model. Never raises."""
        try:
            return self._worded(call)
        except Exception:  # noqa: BLE001 - the loop must continue
            self.kit.fault("wording an answer for the model")
            return {"error": "tool/unknown", "code": "unknown", "message": "The call failed.", "recoverable": True}

    def told(self, result: Any, call: Attempts) -> Any:
        """Return the result, with a note block if the call failed or was repaired."""
        if call.failure is None and not call.note:
            return result
        if call.failure is None:
            block: dict[str, Any] = {"note": call.note}
        else:
            # The result contains the tool's own message, so it is not quoted again.
            block = {name: value for name, value in self.answer(call).items() if name != "message"}
        if isinstance(result, dict) and OURS not in result:
            return {**result, OURS: block}
        return {"result": result, OURS: block}

    def _worded(self, call: Attempts) -> dict[str, Any]:
        given_up = call.given_up
        failure = given_up.failure if given_up else call.failure
        assert failure is not None
        return call.words.answer(
            failure,
            tool=self.called if self.wrapped is None else self.name,
            precedents=given_up.precedents[:3] if given_up else (),
            names=near.nearest(self.called, list(self.tools)) if self.wrapped is None else (),
            closed=self.wrapped.closed() if self.wrapped else (),
            has_effects=not call.tool.is_repeatable,
            offered=call.ending.offered if call.ending is not None else (),
            spiral=call.ending.spiral if call.ending is not None else "",
            repeat_note=call.guarding.repeat_note,
        )


def _refusing(error: AgentError) -> Made:
    def refuse(given: Mapping[str, Any]) -> Any:
        raise error

    return refuse


def _awaited(made: Made) -> Made:
    async def awaited(given: Mapping[str, Any]) -> Any:
        return await made(given)

    return awaited


def _threaded(made: Made) -> Made:
    """Make a sync function awaitable by a thread, so that it does not block the event loop."""

    async def threaded(given: Mapping[str, Any]) -> Any:
        import asyncio  # lazy: loaded by async callers

        result = await asyncio.to_thread(made, given)
        return await result if inspect.isawaitable(result) else result

    return threaded


async def _collected(stream: Any) -> list[Any]:
    return [item async for item in stream]


def named(tools: Tools) -> dict[str, Callable[..., Any]]:
    """Return the tools by the names that the model uses."""
    pairs = tools.items() if isinstance(tools, Mapping) else ((_called(tool), tool) for tool in tools)
    found: dict[str, Callable[..., Any]] = {}
    for name, tool in pairs:
        if not callable(tool):
            raise SettingsError(f"tools are functions, got {tool!r}.")
        if name in found and found[name] != tool:
            raise SettingsError(f"two tools are called {name!r}. Give one another name: @mulligan.tool(name=...).")
        found[name] = tool
    return found


def _called(tool: Callable[..., Any]) -> str:
    return known.name if (known := known_as(tool)) else name_of(tool)


def known_as(function: Callable[..., Any]) -> Wrapped | None:
    """Return the `WrappedFunction` of a wrapped function, or None."""
    known = getattr(function, "__mulligan__", None)
    return known if isinstance(known, Wrapped) else None


def _wrapped(function: Callable[..., Any], name: str, kit: Kit) -> Wrapped:
    return known_as(function) or Wrapped(function, lambda: kit, ToolOptions(name=name))
