"""A bounded agent loop whose tool calls answer the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from mulligan import prompt
from mulligan.calls import similarity
from mulligan.capture.drive import Attempts, aplay, play
from mulligan.capture.kit import Kit
from mulligan.capture.signature import name_of
from mulligan.capture.tracer import ActiveRun, scope
from mulligan.capture.wrap import ToolOptions, Wrapped
from mulligan.classify.taxonomy import TOOL_INVALID_ARGUMENTS, TOOL_UNKNOWN_TOOL
from mulligan.failure import AgentError, InfraError, SettingsError
from mulligan.recover.tool import Tool

Tools = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
OURS = "mulligan"
"""The key under which we add to a tool's own answer."""
Made = Callable[[Mapping[str, Any]], Any]


class Turns:
    """`for turn in mulligan.turns(limit=10):` ends after `limit` turns, whatever the model does.

    Outside a run the loop is one: its tool and model calls belong together.
    """

    def __init__(self, source: Callable[[], Kit], limit: int = 10) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise SettingsError(f"limit is a whole number of turns, got {limit!r}.")
        if limit < 1:
            raise SettingsError(f"limit must be at least 1, got {limit}.")
        self.limit = limit
        self._source = source

    def __iter__(self) -> Iterator[Turn]:
        kit = self._source()
        with scope(kit) as run:
            for number in range(1, self.limit + 1):
                yield Turn(kit, run, number, self.limit)


class Turn:
    """One answer of the model, and the tool calls it asked for."""

    def __init__(self, kit: Kit, run: ActiveRun, number: int, limit: int) -> None:
        self.number = number
        self.is_last = number == limit
        self._kit = kit
        self._run = run

    @property
    def notice(self) -> str:
        """What to tell the model before its last turn; empty before that."""
        return "This is your last turn: answer now, with what you have." if self.is_last else ""

    def call(self, tools: Tools, name: str, arguments: Any = None) -> Any:
        """The tool's result, or the failure in the model's words. An `InfraError` leaves."""
        asked = _Asked(self._kit, tools, name, arguments)
        if asked.is_async:
            raise SettingsError(f"{asked.name} is async: use `await turn.acall(...)`.")
        # The loop's run, also in a thread, which knows of no current one.
        with scope(self._kit, self._run) as run:
            call = asked.attempts(run)
            try:
                result = play(call)
            except InfraError:
                raise
            except Exception:  # noqa: BLE001 - it was classified and recorded; now the model is told
                return asked.answer(call)
        if inspect.iscoroutine(result):
            result.close()
            raise SettingsError(f"{asked.name} answers with a coroutine: use `await turn.acall(...)`.")
        return asked.told(result, call)

    async def acall(self, tools: Tools, name: str, arguments: Any = None) -> Any:
        """The same for async tools, and for others too, which are called in a thread."""
        asked = _Asked(self._kit, tools, name, arguments)
        with scope(self._kit, self._run) as run:
            call = asked.attempts(run, _awaited if asked.is_async else _threaded)
            try:
                result = await aplay(call)
            except InfraError:
                raise
            except Exception:  # noqa: BLE001 - it was classified and recorded; now the model is told
                return asked.answer(call)
        return asked.told(result, call)


class _Asked:
    """A tool call as a model asks for it: by name, with arguments that may be anything."""

    def __init__(self, kit: Kit, tools: Tools, name: str, arguments: Any) -> None:
        self.kit = kit
        self.tools = named(tools)
        self.name = name if isinstance(name, str) else str(name)
        self.arguments = _parsed(arguments)
        function = self.tools.get(self.name)
        # A method that was wrapped in its class is known there as a function, and `self` is for us to give.
        self._args = (function.__self__,) if inspect.ismethod(function) and _known(function) else ()
        self.wrapped = _wrapped(function, self.name, kit) if function is not None else None
        self.is_async = self.wrapped is not None and self.wrapped.is_async

    def attempts(self, run: ActiveRun, through: Callable[[Made], Made] | None = None) -> Attempts:
        wrapped = self.wrapped
        if wrapped is None or not isinstance(self.arguments, dict):
            refuse = self._refuse_name if wrapped is None else self._refuse_arguments
            shown = self.arguments if isinstance(self.arguments, dict) else {"arguments": self.arguments}
            tool = Tool(name=self.name if wrapped is None else wrapped.name, mode="observe")
            return Attempts(run.kit, run, tool, shown, refuse if through is None else through(refuse))
        positional, keywords = wrapped.signature.spread(self.arguments, self._args)
        reading = list if wrapped.is_stream else _collected if wrapped.is_async_stream else None
        return wrapped.attempts(
            self.kit, run, tuple(positional), keywords, opening=reading, through=through, is_checked=True
        )

    def _refuse_name(self, arguments: Any) -> Any:
        raise AgentError(f"There is no tool {self.name!r}.", code=TOOL_UNKNOWN_TOOL.code)

    def _refuse_arguments(self, arguments: Any) -> Any:
        raise AgentError("The arguments are not a JSON object.", code=TOOL_INVALID_ARGUMENTS.code)

    def answer(self, call: Attempts) -> dict[str, Any]:
        """The failure in the model's words; if even that fails, that there was one."""
        try:
            return self._worded(call)
        except Exception:  # noqa: BLE001 - the loop goes on
            self.kit.fault("wording an answer for the model")
            return {"error": "tool/unknown", "code": "unknown", "message": "The call failed.", "recoverable": True}

    def told(self, result: Any, call: Attempts) -> Any:
        """The result; where it is a failure, with what we know of it beside it, under a key of our own."""
        if call.failure is None:
            return result
        # What the tool itself said is passed on whole, and so it need not be quoted again.
        block = {name: value for name, value in self.answer(call).items() if name != "message"}
        if isinstance(result, dict) and OURS not in result:
            return {**result, OURS: block}
        return {"result": result, OURS: block}

    def _worded(self, call: Attempts) -> dict[str, Any]:
        given_up = call.given_up
        failure = given_up.failure if given_up else call.failure
        assert failure is not None
        return prompt.answer(
            failure,
            tool=self.name,
            precedents=given_up.precedents[:3] if given_up else (),
            names=nearest(self.name, self.tools) if self.wrapped is None else (),
            closed=self.wrapped.closed() if self.wrapped else (),
            has_effects=not call.tool.is_repeatable,
        )


def _awaited(made: Made) -> Made:
    async def awaited(given: Mapping[str, Any]) -> Any:
        return await made(given)

    return awaited


def _threaded(made: Made) -> Made:
    """A sync tool that may be awaited: in a thread, so that it does not hold up the loop."""

    async def threaded(given: Mapping[str, Any]) -> Any:
        import asyncio  # loaded by whoever awaits us

        result = await asyncio.to_thread(made, given)
        return await result if inspect.isawaitable(result) else result

    return threaded


async def _collected(stream: Any) -> list[Any]:
    return [item async for item in stream]


def named(tools: Tools) -> dict[str, Callable[..., Any]]:
    """Tools by the names the model knows them by."""
    if isinstance(tools, Mapping):
        return dict(tools)
    return {known.name if (known := _known(tool)) else name_of(tool): tool for tool in tools}


def nearest(name: str, names: Iterable[str], limit: int = 3) -> list[str]:
    """Known names that may have been meant, the likeliest first."""
    ranked = sorted(((similarity(name, known), known) for known in names), reverse=True)
    return [known for likeness, known in ranked if likeness >= 0.6][:limit]


def _known(function: Callable[..., Any]) -> Wrapped | None:
    known = getattr(function, "__mulligan__", None)
    return known if isinstance(known, Wrapped) else None


def _wrapped(function: Callable[..., Any], name: str, kit: Kit) -> Wrapped:
    return _known(function) or Wrapped(function, lambda: kit, ToolOptions(name=name))


def _parsed(arguments: Any) -> Any:
    if isinstance(arguments, str | bytes):
        if not arguments.strip():
            return {}  # how some models say that there are none
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return arguments
    if arguments is None:
        return {}
    return dict(arguments) if isinstance(arguments, Mapping) else arguments
