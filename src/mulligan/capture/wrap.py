"""tool and model: a function in, a recovering function out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from mulligan.capture.drive import Attempts, aplay, play
from mulligan.capture.first import First
from mulligan.capture.kit import Kit, Source
from mulligan.capture.signature import Signature, code_of, name_of
from mulligan.capture.stream import astreaming, streaming
from mulligan.capture.tracer import ActiveRun, scope
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
    privileged: Iterable[str] = ()
    released: Iterable[str] = ()
    policy: Policy | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SettingsError(f"name is a text, got {self.name!r}.")
        for name, value, choices in (
            ("effects", self.effects, get_args(Effects)),
            ("type", self.type, TYPES),
            ("mode", "repair" if self.mode is None else self.mode, get_args(Mode)),
        ):
            if value not in choices:
                raise SettingsError(f"{name} is {', '.join(choices[:-1])} or {choices[-1]}, got {value!r}.")
        if self.schema is not None and not isinstance(self.schema, Mapping):
            raise SettingsError(f"schema is a JSON schema as a dictionary, got {type(self.schema).__name__}.")
        if self.policy is not None and not isinstance(self.policy, Policy):
            raise SettingsError(f"policy is a mulligan.Policy, got {type(self.policy).__name__}.")
        for name in ("privileged", "released"):
            # A text is iterable too: taken letter by letter, it would protect nothing.
            given = getattr(self, name)
            names = None if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
            if names is None or not all(isinstance(each, str) for each in names):
                raise SettingsError(f"{name} is a list of argument names, such as ['amount'], got {given!r}.")
            object.__setattr__(self, name, names)


class Wrapped:
    """A function and what recovery must know of it. The recovering function has it as `__mulligan__`."""

    def __init__(self, function: Callable[..., Any], source: Source, options: ToolOptions) -> None:
        code = code_of(function)
        self.function = function
        self.source = source
        self.options = options
        self.name = options.name or name_of(function)
        self.signature = Signature(function)
        self.is_stream = inspect.isgeneratorfunction(code)
        self.is_async_stream = inspect.isasyncgenfunction(code)
        self.is_async = self.is_async_stream or inspect.iscoroutinefunction(code)
        self._tools: dict[Mode, Tool] = {}
        self._retries: tuple[Kit | None, bool] = (None, False)

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
                privileged=frozenset(self.options.privileged),
                released=frozenset(self.options.released),
            )
        return tool

    def attempts(
        self,
        kit: Kit,
        run: ActiveRun,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        opening: Callable[[Any], Any] | None = None,
        through: Callable[[Callable[[Mapping[str, Any]], Any]], Callable[[Mapping[str, Any]], Any]] | None = None,
        is_checked: bool = False,
        first: First | None = None,
    ) -> Attempts:
        """A call ready to be played.

        `opening` makes the answer of what the function gave, where that is a stream. `through` changes how the
        function is called: in a thread, say. `is_checked` holds the arguments against the signature first. `first` is
        an attempt that was made and failed.
        """
        arguments = self.signature.bind(args, kwargs)
        mode: Mode = "observe" if kit.layer() is not None else self.options.mode or kit.mode
        check = self.options.schema is not None or (is_checked and mode != "observe")
        last: tuple[tuple[Any, ...], Mapping[str, Any]] = (args, kwargs)

        def made(given: Mapping[str, Any]) -> Any:
            nonlocal last
            if check:
                self.check(given)
            if given is not arguments:  # else exactly as the caller made it
                positional, named = self.signature.spread(given, args)
                last = tuple(positional), named
            answer = self.function(*last[0], **last[1])
            return answer if opening is None else opening(answer)

        def has_begun(error: Exception) -> bool:
            return not (_is_raised_here(error) and self.signature.refuses(*last))

        return Attempts(
            kit,
            run,
            self.tool(mode),
            arguments,
            made if through is None else through(made),
            type=self.options.type,
            policy=self.options.policy,
            has_begun=has_begun,
            first=first,
        )

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuses, before anything has happened, arguments that break the schema."""
        try:
            schema = self.schema()
            named = {name: value for name, value in arguments.items() if not name.startswith("*")}
            faults = schemas.faults(named, schema) if schema else []
        except Exception:  # noqa: BLE001 - what cannot be checked is not refused
            return
        if faults:
            told = "; ".join(
                f"{'.'.join(map(str, fault.path))}: {fault.message}" if fault.path else fault.message
                for fault in faults[:5]
            )
            raise AgentError(f"The arguments do not fit: {told}.")

    def first(self, kit: Kit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> First | None:
        """The first attempt, begun; None where the arguments must be checked before it."""
        if self.options.schema is not None:
            return None
        try:
            return First(self, kit, args, kwargs)
        except Exception:  # noqa: BLE001 - the longer way round has its own guards
            kit.fault("beginning a call")
            return None

    def retries(self, kit: Kit) -> bool:
        """Whether a call of it would be tried again."""
        if self._retries[0] is not kit:
            policy = self.options.policy or kit.policy
            self._retries = (kit, (self.options.mode or kit.mode) != "observe" and policy.attempts > 1)
        return self._retries[1]

    def recovering(self) -> Callable[..., Any]:
        """The function to put in the place of the one that was wrapped."""
        if self.is_async_stream:
            made: Callable[..., Any] = astreaming(self)
        elif self.is_stream:
            made = streaming(self)
        elif self.is_async:
            made = self._awaiting()
        else:
            made = self._calling()
        made.__name__ = made.__qualname__ = self.name  # where the function has no name of its own to take over
        functools.update_wrapper(made, self.function)
        made.__mulligan__ = self  # type: ignore[attr-defined]
        return made

    def _calling(self) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            kit = self.source()
            if kit is None:
                return self.function(*args, **kwargs)
            first = self.first(kit, args, kwargs)
            if first is None:
                with scope(kit) as run:
                    return play(self.attempts(kit, run, args, kwargs))
            try:
                result = self.function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are here for
                first.error = error  # recovered below: what comes next is not a consequence of handling it
            except BaseException as error:
                first.cancelled(error)
                raise
            else:
                first.succeeded(result)
                return result
            with first.scope() as run:
                return play(self.attempts(kit, run, args, kwargs, first=first))

        return call

    def _awaiting(self) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            kit = self.source()
            if kit is None:
                return await self.function(*args, **kwargs)
            first = self.first(kit, args, kwargs)
            if first is None:
                with scope(kit) as run:
                    return await aplay(self.attempts(kit, run, args, kwargs))
            try:
                result = await self.function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are here for
                first.error = error  # recovered below: what comes next is not a consequence of handling it
            except BaseException as error:
                first.cancelled(error)
                raise
            else:
                first.succeeded(result)
                return result
            with first.scope() as run:
                return await aplay(self.attempts(kit, run, args, kwargs, first=first))

        return call


def _is_raised_here(error: Exception) -> bool:
    """Whether a TypeError was raised by a call in this very file, and not further in."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return isinstance(error, TypeError) and last is not None and last.tb_frame.f_globals is globals()


def wrap(function: Any, source: Source, options: ToolOptions) -> Any:
    """The recovering form of a function, static method or class method."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(wrap(function.__func__, source, options))
    if isinstance(function, type):
        raise SettingsError(f"{function.__name__} is a class, which would cease to be one. Wrap one of its methods.")
    if isinstance(function, str):
        raise SettingsError(f"a name is given as name={function!r}: @mulligan.tool(name={function!r}).")
    if not callable(function):
        raise SettingsError(f"only something that can be called can be wrapped, got {type(function).__name__}.")
    return Wrapped(function, source, options).recovering()
