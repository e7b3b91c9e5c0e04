"""A bounded agent loop whose tool calls answer the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from mulligan import prompt
from mulligan.calls import similarity
from mulligan.capture.drive import Attempts, aplay, play
from mulligan.capture.kit import Kit, Source
from mulligan.capture.tracer import ActiveRun
from mulligan.capture.wrap import ToolOptions, Wrapped
from mulligan.classify.taxonomy import TOOL_INVALID_ARGUMENTS, TOOL_UNKNOWN_TOOL
from mulligan.failure import AgentError, InfraError, SettingsError
from mulligan.recover.plan import Tool

Tools = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]


class Turns:
    """`for turn in mulligan.turns(limit=10):` ends after `limit` turns, whatever the model does."""

    def __init__(self, source: Source, limit: int = 10) -> None:
        if limit < 1:
            raise SettingsError(f"limit must be at least 1, got {limit}.")
        self.limit = limit
        self._source = source

    def __iter__(self) -> Iterator[Turn]:
        for number in range(1, self.limit + 1):
            yield Turn(self._source, number, self.limit)


class Turn:
    """One answer of the model, and the tool calls it asked for."""

    def __init__(self, source: Source, number: int, limit: int) -> None:
        self.number = number
        self.is_last = number == limit
        self._source = source

    @property
    def notice(self) -> str:
        """What to tell the model before its last turn; empty before that."""
        return "This is your last turn: answer now, with what you have." if self.is_last else ""

    def call(self, tools: Tools, name: str, arguments: Any = None) -> Any:
        """The tool's result, or the failure in the model's words. An `InfraError` leaves."""
        asked = _Asked(self._source, tools, name, arguments)
        if asked.is_async:
            raise SettingsError(f"{name} is async: use `await turn.acall(...)`.")
        if asked.kit is None:
            return asked.plainly()
        with asked.run_for(asked.kit) as run:
            call = asked.attempts(asked.kit, run)
            try:
                return play(call)
            except InfraError:
                raise
            except Exception:  # noqa: BLE001 - it was classified and recorded; now the model is told
                return asked.answer(call)

    async def acall(self, tools: Tools, name: str, arguments: Any = None) -> Any:
        """The same for async tools, and for others too."""
        asked = _Asked(self._source, tools, name, arguments)
        if not asked.is_async:
            import asyncio  # loaded by whoever awaits us

            return await asyncio.to_thread(self.call, tools, name, arguments)
        if asked.kit is None:
            return await asked.plainly()
        with asked.run_for(asked.kit) as run:
            call = asked.attempts(asked.kit, run)
            try:
                return await aplay(call)
            except InfraError:
                raise
            except Exception:  # noqa: BLE001 - it was classified and recorded; now the model is told
                return asked.answer(call)


class _Asked:
    """A tool call as a model asks for it: by name, with arguments that may be anything."""

    def __init__(self, source: Source, tools: Tools, name: str, arguments: Any) -> None:
        self.tools = named(tools)
        self.name = name
        self.kit = source()
        function = self.tools.get(name)
        self.wrapped = _wrapped(function, name, source) if function is not None else None
        self.arguments = _parsed(arguments)
        self.is_async = self.wrapped is not None and self.wrapped.is_async

    def plainly(self) -> Any:
        """The call with nothing of ours around it."""
        if self.wrapped is None:
            raise KeyError(self.name)
        return self.wrapped.function(**self.arguments)

    def run_for(self, kit: Kit) -> Any:
        run = kit.run.get()
        return ActiveRun(kit) if run is None else run.inside()

    def attempts(self, kit: Kit, run: ActiveRun) -> Attempts:
        if self.wrapped is None:
            tool = Tool(name=self.name, mode="observe")
            return Attempts(kit, run, tool, _shown(self.arguments), self._refuse_name)
        if not isinstance(self.arguments, dict):
            tool = Tool(name=self.name, mode="observe")
            return Attempts(kit, run, tool, _shown(self.arguments), self._refuse_arguments)
        return self.wrapped.attempts(kit, run, (), self.arguments, is_checked=True)

    def _refuse_name(self, arguments: Any) -> Any:
        raise AgentError(f"There is no tool {self.name!r}.", code=TOOL_UNKNOWN_TOOL.code)

    def _refuse_arguments(self, arguments: Any) -> Any:
        raise AgentError("The arguments are not a JSON object.", code=TOOL_INVALID_ARGUMENTS.code)

    def answer(self, call: Attempts) -> dict[str, Any]:
        given_up = call.given_up
        failure = given_up.failure if given_up else call.failure
        assert failure is not None
        return prompt.answer(
            failure,
            tool=self.name,
            precedents=given_up.precedents[:3] if given_up else (),
            names=nearest(self.name, self.tools) if self.wrapped is None else (),
            closed=_members(self.wrapped.schema() if self.wrapped else None),
            has_effects=not call.tool.is_repeatable,
        )


def named(tools: Tools) -> dict[str, Callable[..., Any]]:
    if isinstance(tools, Mapping):
        return dict(tools)
    return {getattr(getattr(tool, "__mulligan__", None), "name", None) or tool.__name__: tool for tool in tools}


def nearest(name: str, names: Iterable[str], limit: int = 3) -> list[str]:
    """Known names that may have been meant, the likeliest first."""
    ranked = sorted(((similarity(name, known), known) for known in names), reverse=True)
    return [known for likeness, known in ranked if likeness >= 0.6][:limit]


def _wrapped(function: Callable[..., Any], name: str, source: Source) -> Wrapped:
    known = getattr(function, "__mulligan__", None)
    return known if isinstance(known, Wrapped) else Wrapped(function, source, ToolOptions(name=name))


def _parsed(arguments: Any) -> Any:
    if arguments is None:
        return {}
    if isinstance(arguments, str | bytes):
        try:
            return msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return arguments
    return dict(arguments) if isinstance(arguments, Mapping) else arguments


def _shown(arguments: Any) -> dict[str, Any]:
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def _members(schema: Mapping[str, Any] | None) -> set[str]:
    """Texts that belong to the tool's schema."""
    properties = (schema or {}).get("properties", {})
    return {
        member
        for each in properties.values()
        if isinstance(each, Mapping)
        for member in each.get("enum", ())
        if isinstance(member, str)
    }
