"""tool and model: a function in, a recovering function out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from mulligan.capture.drive import Attempts, aplay, play
from mulligan.capture.kit import Kit, Source
from mulligan.capture.signature import Signature
from mulligan.capture.stream import Opening, astream, stream
from mulligan.capture.tracer import ActiveRun
from mulligan.failure import AgentError, SettingsError
from mulligan.records import Effects, StepType
from mulligan.recover import schema as schemas
from mulligan.recover.plan import Mode, Tool
from mulligan.recover.policy import Policy

TYPES = ("tool", "model", "retrieval")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """What the developer says of a function."""

    name: str = ""
    type: StepType = "tool"
    effects: Effects = "once"
    mode: Mode | None = None
    schema: Mapping[str, Any] | None = None
    privileged: frozenset[str] = frozenset()
    released: frozenset[str] = frozenset()
    policy: Policy | None = None

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("effects", self.effects, get_args(Effects)),
            ("type", self.type, TYPES),
            ("mode", self.mode or "repair", get_args(Mode)),
        ):
            if value not in choices:
                raise SettingsError(f"{name} is {', '.join(choices[:-1])} or {choices[-1]}, got {value!r}.")
        if self.schema is not None and not isinstance(self.schema, Mapping):
            raise SettingsError(f"schema is a JSON schema as a dictionary, got {type(self.schema).__name__}.")


class Wrapped:
    """A function and what recovery must know of it. The recovering function has it as `__mulligan__`."""

    def __init__(self, function: Callable[..., Any], source: Source, options: ToolOptions) -> None:
        self.function = function
        self.source = source
        self.options = options
        self.name = options.name or getattr(function, "__name__", "") or function.__class__.__name__
        self.signature = Signature(function)
        self.is_async = inspect.iscoroutinefunction(_code_of(function))
        self._tools: dict[Mode, Tool] = {}

    def schema(self) -> Mapping[str, Any] | None:
        return self.options.schema if self.options.schema is not None else self.signature.schema()

    def tool(self, mode: Mode) -> Tool:
        tool = self._tools.get(mode)
        if tool is None:
            tool = self._tools[mode] = Tool(
                name=self.name,
                effects=self.options.effects,
                mode=mode,
                schema=self.schema,
                privileged=self.options.privileged,
                released=self.options.released,
            )
        return tool

    def attempts(
        self,
        kit: Kit,
        run: ActiveRun,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        opening: Callable[..., Any] | None = None,
        is_checked: bool = False,
    ) -> Attempts:
        """A call ready to be played. `opening` stands in for the function where the result is a stream."""
        arguments = self.signature.bind(args, kwargs)
        function = opening or self.function
        check = is_checked or self.options.schema is not None

        def made(given: Mapping[str, Any]) -> Any:
            if check:
                self.check(given)
            if given is arguments:
                return function(*args, **kwargs)  # exactly as the caller made it
            positional, named = self.signature.spread(given, args)
            return function(*positional, **named)

        mode: Mode = "observe" if kit.is_recovering.get() else self.options.mode or kit.mode
        return Attempts(kit, run, self.tool(mode), arguments, made, type=self.options.type, policy=self.options.policy)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuses, before anything has happened, arguments that break the schema."""
        schema = self.schema()
        faults = schemas.faults(arguments, schema) if schema else []
        if faults:
            told = "; ".join(
                f"{'.'.join(map(str, fault.path))}: {fault.message}" if fault.path else fault.message
                for fault in faults[:5]
            )
            raise AgentError(f"The arguments do not fit: {told}.")

    def recovering(self) -> Callable[..., Any]:
        """The function to put in the place of the one that was wrapped."""
        code = _code_of(self.function)
        if inspect.isasyncgenfunction(code):
            made: Callable[..., Any] = self._astreaming()
        elif inspect.isgeneratorfunction(code):
            made = self._streaming()
        elif self.is_async:
            made = self._awaiting()
        else:
            made = self._calling()
        functools.update_wrapper(made, self.function)
        made.__mulligan__ = self  # type: ignore[attr-defined]
        return made

    def _calling(self) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            kit = self.source()
            if kit is None:
                return self.function(*args, **kwargs)
            run = kit.run.get()
            if run is not None:
                return play(self.attempts(kit, run, args, kwargs))
            with ActiveRun(kit) as run:
                return play(self.attempts(kit, run, args, kwargs))

        return call

    def _awaiting(self) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            kit = self.source()
            if kit is None:
                return await self.function(*args, **kwargs)
            run = kit.run.get()
            if run is not None:
                return await aplay(self.attempts(kit, run, args, kwargs))
            with ActiveRun(kit) as run:
                return await aplay(self.attempts(kit, run, args, kwargs))

        return call

    def _streaming(self) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            kit = self.source()
            if kit is None:
                return (yield from self.function(*args, **kwargs))
            return (yield from stream(self.opening(kit, args, kwargs)))

        return call

    def _astreaming(self) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            kit = self.source()
            if kit is None:
                passed: AsyncGenerator[Any, Any] = self.function(*args, **kwargs)
                return passed
            return astream(self.opening(kit, args, kwargs))

        return call

    def opening(self, kit: Kit, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Opening:
        return lambda run, function: self.attempts(kit, run, args, kwargs, function), self.function, kit


def _code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose flags say what a call gives: behind a partial, or an object's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def wrap(function: Any, source: Source, options: ToolOptions) -> Any:
    """The recovering form of a function, static method or class method."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(wrap(function.__func__, source, options))
    if not callable(function):
        raise SettingsError(f"only something that can be called can be wrapped, got {type(function).__name__}.")
    return Wrapped(function, source, options).recovering()
