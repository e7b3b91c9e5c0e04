"""Wraps a tool or model function in a recovering function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from mulligan.capture.answers import Empty, Errors, Judge
from mulligan.capture.attempts import Attempts, Mended
from mulligan.capture.drive import aplay, play
from mulligan.capture.first import First, begin
from mulligan.capture.guarding import Unfit
from mulligan.capture.keeping import Keeping
from mulligan.capture.kit import LEARNS, MODES, NO_LIMITS, RECORDINGS, Kit, Limits, Recording, Source, log, strictest
from mulligan.capture.run_judge import find_receiver
from mulligan.capture.signature import Signature, code_of, name_of, qualified_name_of
from mulligan.capture.stream import astreaming, streaming
from mulligan.capture.tracer import ActiveRun, scope
from mulligan.failure import SettingsError, one_of
from mulligan.links import Receiver
from mulligan.records import Effects, Run, StepType
from mulligan.recover import schema as schemas
from mulligan.recover.budget import TARGET_ARGUMENTS, Guard
from mulligan.recover.policy import Policy
from mulligan.recover.tool import Learn, Mode, Tool, make_tool_key
from mulligan.success import Alone, Form

if TYPE_CHECKING:
    from mulligan.capture.model import ModelCalls, ModelOptions

TYPES = ("tool", "model", "retrieval")
NO_GUARD = Guard(Policy())


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """The options of a wrapped function."""

    name: str = ""
    server: str | None = None
    type: StepType = "tool"
    effects: Effects = "once"
    mode: Mode | None = None
    record: Recording | None = None
    errors: Errors = "auto"
    empty: Empty = "success"
    schema: Mapping[str, Any] | None = None
    privileged: Iterable[str] = ()
    released: Iterable[str] = ()
    destructive: bool = False
    verify: Callable[..., Any] | None = None
    rejects: Iterable[int] = ()
    timeout: float | None = None
    policy: Policy | None = None
    items: Iterable[str] = ()
    learn: Learn | None = None
    circuit_breaker: bool = False
    model: ModelOptions | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SettingsError(f"name is a text, got {self.name!r}.")
        for name, value, choices in (
            ("effects", self.effects, get_args(Effects)),
            ("type", self.type, TYPES),
            ("mode", "repair" if self.mode is None else self.mode, get_args(Mode)),
            ("record", "full" if self.record is None else self.record, get_args(Recording)),
            ("learn", "tell" if self.learn is None else self.learn, get_args(Learn)),
            ("errors", self.errors, get_args(Errors)),
            ("empty", self.empty, get_args(Empty)),
        ):
            one_of(name, value, choices)
        if self.empty == "failure" and self.type != "retrieval":
            raise SettingsError(f'empty="failure" is for type="retrieval", got type={self.type!r}.')
        if self.schema is not None and not isinstance(self.schema, Mapping):
            raise SettingsError(f"schema is a JSON schema as a dictionary, got {type(self.schema).__name__}.")
        if self.policy is not None and not isinstance(self.policy, Policy):
            raise SettingsError(f"policy is a mulligan.Policy, got {type(self.policy).__name__}.")
        if not isinstance(self.circuit_breaker, bool):
            raise SettingsError(f"circuit_breaker is true or false, got {self.circuit_breaker!r}.")
        if self.verify is not None and not callable(self.verify):
            raise SettingsError(f"verify is a function that takes the tool's arguments, got {self.verify!r}.")
        if self.timeout is not None and (
            isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not 0 < self.timeout < 1e9
        ):
            raise SettingsError(f"timeout is a number of seconds above 0, got {self.timeout!r}.")
        given = self.rejects
        statuses = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (None,)
        if not all(type(each) is int and 100 <= each <= 599 for each in statuses):
            raise SettingsError(f"rejects is a set of HTTP statuses, such as {{422}}, got {given!r}.")
        object.__setattr__(self, "rejects", frozenset(statuses))
        for name in ("privileged", "released", "items"):
            # Reject a text: iterated by character, it would protect nothing.
            given = getattr(self, name)
            names = None if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
            if names is None or not all(isinstance(each, str) for each in names):
                raise SettingsError(f"{name} is a list of argument names, such as ['amount'], got {given!r}.")
            object.__setattr__(self, name, names)


class Rules:
    """The effective rules for the calls of one function in runs with the same options."""

    __slots__ = (
        "alone",
        "form",
        "guard",
        "is_destructive",
        "is_empty_fine",
        "is_off",
        "is_plain",
        "is_retried",
        "is_single",
        "items",
        "judge",
        "keeping",
        "kit",
        "learn",
        "limits",
        "mode",
        "privileged",
    )

    def __init__(self, kit: Kit | None, limits: Limits, mode: Mode, is_retried: bool, guard: Guard, form: Form) -> None:
        self.kit: Kit = kit  # type: ignore[assignment] # none only in those that hold nowhere
        self.is_off = kit is not None and kit.is_silent
        self.is_plain = not self.is_off
        """Whether calls are recorded in full, with unchanged values."""
        self.limits = limits
        """The options of a run for one standalone call."""
        self.mode: Mode = mode
        self.learn: Learn = "tell"
        self.is_retried = is_retried
        self.is_single = False
        """Whether a call has only one attempt but is still checked by the circuit breaker."""
        self.guard = guard
        self.keeping: Keeping | None = None
        self.judge: Judge | None = None
        self.items: tuple[str, ...] = ()
        """Arguments that are declared to name items."""
        self.privileged: tuple[str, ...] = ()
        """Arguments that are declared privileged."""
        self.is_destructive = False
        self.is_empty_fine = True
        self.form = form
        self.alone = None if kit is None else Alone.of(Run(id="", agent=kit.agent, environment=kit.environment))
        """The shared run fields of standalone calls."""


class Wrapped:
    """A function with the data for its recovery. Available as `__mulligan__` of the recovering function."""

    def __init__(self, function: Callable[..., Any], source: Source, options: ToolOptions) -> None:
        code = code_of(function)
        self.function = function
        self.source = source
        self.options = options
        self.name = options.name or name_of(function)
        self.key = self._make_key()
        """The identity of the tool: see `Tool.key`."""
        self.signature = Signature(function)
        self.is_method = self.signature.is_method
        self._refuse_unknown("privileged", options.privileged)
        self._refuse_unknown("released", options.released)
        self._refuse_unknown("items", options.items)
        self.is_stream = inspect.isgeneratorfunction(code)
        self.is_async_stream = inspect.isasyncgenfunction(code)
        self.is_async = self.is_async_stream or inspect.iscoroutinefunction(code)
        self._tools: dict[Mode, Tool] = {}
        self.is_looked_at = options.schema is not None or options.timeout is not None
        """Whether each call needs a check before it is made: a schema or a timeout."""
        self.verify = self._verifying()
        self.usual = Rules(None, NO_LIMITS, "observe", is_retried=False, guard=NO_GUARD, form=self._form())
        """The rules of a call that needs no precheck, in a run without options of its own."""
        self._rules: tuple[Kit | None, dict[Limits | None, Rules]] = (None, {})
        self._judge = Judge(options.type, self.name, options.errors, options.empty)
        self.model: ModelCalls | None = None
        if options.model is not None:
            from mulligan.capture.model import ModelCalls, ModelJudge  # lazy: needed only for models

            self.model, self._judge = ModelCalls(self, options.model), ModelJudge(self.name)
        self._closed: frozenset[str] | None = None
        self._is_told = False
        """Whether the warning about an unusable schema was logged."""

    def _make_key(self) -> str:
        """Return the tool key. Functions wrapped several times are one tool."""
        inner = getattr(self.function, "__mulligan__", None)
        if isinstance(inner, Wrapped):
            return inner.key
        server = self.options.server
        function = "" if server else qualified_name_of(self.function)
        # Local functions of one factory share a qualified name, so add the tool name.
        if "<locals>" in function and function.rpartition(".")[2] != self.name:
            function = f"{function} {self.name}"
        return make_tool_key(self.name, server, function)

    def _refuse_unknown(self, option: str, names: Iterable[str]) -> None:
        """Raise `SettingsError` for unknown argument names: a misspelled one would silently protect nothing."""
        given = self.options.schema or {}
        known = (*self.signature.names, *(given.get("properties") or {}))
        for name in names:
            if not self.signature.is_open and name.partition(".")[0] not in known:
                raise SettingsError(
                    f"{option}: {self.name} has no argument {name!r}. Its arguments are {', '.join(known) or 'none'}."
                )

    def _verifying(self) -> Callable[..., Any] | None:
        """Return the `verify` function. Raises `SettingsError` if it is async and the tool is not."""
        verify = self.options.verify
        if verify is not None and inspect.iscoroutinefunction(code_of(verify)) and not self.is_async:
            raise SettingsError(f"verify is async and {self.name} is not. Give a function that needs no await.")
        return verify

    def schema(self) -> Mapping[str, Any] | None:
        return self.options.schema if self.options.schema is not None else self.signature.schema()

    def tool(self, mode: Mode) -> Tool:
        tool = self._tools.get(mode)
        if tool is None:
            tool = self._tools[mode] = Tool(
                name=self.name,
                server=self.options.server,
                key=self.key,
                effects=self.options.effects,
                mode=mode,
                schema=self.schema,
                privileged=frozenset(self.options.privileged),
                released=frozenset(self.options.released),
                destructive=self.options.destructive,
                items=frozenset(self.options.items),
                circuit_breaker=self.options.circuit_breaker,
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
        mended: Mended | None = None,
    ) -> Attempts:
        """Build the execution of one call.

        `open_stream` converts the function's return value, if it is a stream. `adapt` changes how the function is
        called, for example in a thread. `should_check` validates the arguments against the signature first. `first` is
        a failed first attempt. `repaired_request` is a rejected request with its repair.
        """
        arguments = self.signature.bind(args, kwargs)
        rules = self.rules(kit, run.limits)
        mode: Mode = "observe" if kit.layer() is not None else rules.mode
        check = self.options.schema is not None or (is_checked and mode != "observe")
        last: tuple[tuple[Any, ...], Mapping[str, Any]] = (args, kwargs)

        def made(given: Mapping[str, Any]) -> Any:
            nonlocal last
            if check:
                self.check(given)
            if given is not arguments:  # otherwise the call stays exactly as the caller made it
                positional, named = self.signature.spread(given, args)
                last = tuple(positional), named
            answer = (call.instead or self.function)(*last[0], **last[1])
            return answer if opening is None else opening(answer)

        def has_begun(error: Exception) -> bool:
            return not (_is_raised_here(error) and self.signature.refuses(*last))

        async def timed(given: Mapping[str, Any]) -> Any:
            return await within(made(given), call.guarding.remaining(), self.name, timeout or 0)

        timeout = self.options.timeout
        making = timed if timeout is not None and self.is_async else made
        tool = self.tool(mode)
        learn = rules.learn if rules.learn != "repair" or not kit.preparing.get() else "tell"
        if learn != tool.learn:
            tool = replace(tool, learn=learn)
        call = Attempts(
            rules.kit,
            run,
            tool,
            arguments,
            making if through is None else through(making),
            type=self.options.type,
            policy=self.options.policy,
            has_begun=has_begun,
            judge=rules.judge,
            keeping=rules.keeping,
            first=first,
            guard=rules.guard,
            owner=args[0] if self.signature.is_method and args else None,
            receiver=self.receiver(args),
            timeout=timeout,
            rejects=frozenset(self.options.rejects),
            check=self._checking(args),
            mended=mended,
            planning=None if self.model is None else self.model.recovery,
            is_async=self.is_async,
            aim=None if self.model is None else self.model.aim,
            item_arguments=rules.items,
        )
        return call

    def receiver(self, args: tuple[Any, ...]) -> Receiver | None:
        """Return what a call with these arguments depends on besides them."""
        return find_receiver(self.function, args[0] if self.is_method and args else None)

    def _checking(self, args: tuple[Any, ...]) -> Callable[[Mapping[str, Any]], Any] | None:
        """Bind `verify` to one call. It receives the arguments in the form of the original call."""
        verify = self.verify
        if verify is None:
            return None

        def check(given: Mapping[str, Any]) -> Any:
            positional, named = self.signature.spread(given, args)
            return verify(*positional, **named)

        async def acheck(given: Mapping[str, Any]) -> Any:
            return await check(given)

        return acheck if inspect.iscoroutinefunction(code_of(verify)) else check

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise `SchemaMismatchError`, before execution, if arguments violate the schema."""
        try:
            schema = self.schema()
            named = {name: value for name, value in arguments.items() if not name.startswith("*")}
            faults = schemas.judged(named, schema) if schema else []
            if faults is None and self.options.schema is not None and not self._is_told:
                self._is_told = True
                if why := schemas.pinned(self.options.schema).unusable():
                    log.warning("the schema of %s cannot be used, and nothing is checked by it: %s", self.name, why)
        except Exception:  # noqa: BLE001 - arguments that cannot be checked are accepted
            return
        if faults:
            told = "; ".join(
                f"{'.'.join(map(str, fault.path))}: {fault.message}" if fault.path else fault.message
                for fault in faults[:5]
            )
            raise Unfit(f"The arguments do not fit: {told}.")

    def _form(self) -> Form:
        """Build the call template. One per capture context, because redaction settings differ."""
        places, nameable = self.signature.places, self.signature.nameable
        return Form(self.options.type, self.name, places, nameable, self.options.server, self._recorded_key())

    def _recorded_key(self) -> str | None:
        return self.key if self.key != self.name else None

    def rules(self, kit: Kit, limits: Limits | None) -> Rules:
        """Return the rules for a call in a run with these options; None stands for a call outside any run."""
        known = self._rules
        if known[0] is not kit:
            known = self._rules = (kit, {})
        return known[1].get(limits) or self._ruled(kit, limits, known[1])

    def _ruled(self, kit: Kit, limits: Limits | None, known: dict[Limits | None, Rules]) -> Rules:
        options = self.options
        if limits is None:
            record = options.record or kit.record
        else:  # the stricter one wins, and a step never records more than its run
            record = strictest(RECORDINGS, options.record, limits.record or kit.record) or kit.record
        mode = strictest(MODES, options.mode, None if limits is None else limits.mode) or kit.mode
        policy = options.policy or kit.policy
        own = NO_LIMITS if record == kit.record else Limits(record=record)
        is_aimed = self.signature.takes_any_name or any(name in TARGET_ARGUMENTS for name in self.signature.names)
        guard = kit.budget.guard(self.key, policy, has_targets=self.model is not None or is_aimed)
        is_retried = mode != "observe" and policy.attempts > 1
        rules = Rules(kit.recording(record), own, mode, is_retried, guard, self._form())
        rules.is_single = mode != "observe" and policy.attempts == 1
        if record == "shape" or options.type == "model":
            rules.is_plain, rules.form.is_reduced = False, True
            rules.keeping = Keeping(
                is_shape=record == "shape",
                is_model=options.type == "model",
                closed=self.closed,
                model=self.signature.default("model"),
            )
        learn = strictest(LEARNS, options.learn, None if limits is None else limits.learn) or kit.learn
        rules.learn = "off" if mode == "observe" else learn  # observe mode must not use memory
        rules.privileged, rules.is_destructive = tuple(options.privileged), options.destructive
        if options.items:
            rules.items, rules.is_plain = tuple(options.items), False
        rules.judge = self._judge if self._judge.is_needed else None
        rules.is_empty_fine = options.empty == "success" and self.model is None
        if (limits is None or limits is NO_LIMITS) and options.record in (None, kit.record) and not self.is_looked_at:
            self.usual = rules
        known[limits] = rules
        return rules

    def closed(self) -> Collection[str]:
        """Return the shareable texts of the schema: the members of its enums."""
        if self._closed is None:
            try:
                self._closed = frozenset(members(self.schema()))
            except Exception:  # noqa: BLE001 - a schema may be any object
                self._closed = frozenset()
        return self._closed

    def recovering(self) -> Callable[..., Any]:
        """Build the recovering function that replaces the wrapped one."""
        if self.is_async_stream:
            made: Callable[..., Any] = astreaming(self)
        elif self.is_stream:
            made = streaming(self)
        elif self.is_async:
            made = self._awaiting() if self.model is None else self._awaiting_either()
        else:
            made = self._calling() if self.model is None else self._calling_either()
        made.__name__ = made.__qualname__ = self.name  # for callables without a name
        functools.update_wrapper(made, self.function)
        made.__mulligan__ = self  # type: ignore[attr-defined]
        return made

    def _calling(self) -> Callable[..., Any]:
        function, source = self.function, self.source

        def call(*args: Any, **kwargs: Any) -> Any:
            kit = source()
            if kit is None:
                return function(*args, **kwargs)
            first = begin(self, kit, args, kwargs)
            if first is None:
                with scope(kit, limits=self.rules(kit, None).limits) as run:
                    return play(self.attempts(kit, run, args, kwargs))
            token, timer = kit.here.set(first), kit.timer
            began = timer()
            try:
                result = function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
                # recovered below, outside this handler, so that later errors do not get this one as context
                first.failed(error, began, token)
            except BaseException as error:
                first.cancelled(error, began, token)
                raise
            else:
                if first.succeeded(result, began, token):
                    return result
            with first.scope() as run:
                return play(self.attempts(kit, run, args, kwargs, first=first))

        return call

    def _calling_either(self) -> Callable[..., Any]:
        """Build the wrapper for a model that may return a stream or a complete answer."""
        from mulligan.capture.tokens import is_asked_for, opened  # lazy: needed only for models

        plainly = self._calling()

        def call(*args: Any, **kwargs: Any) -> Any:
            return opened(self, args, kwargs) if is_asked_for(kwargs) else plainly(*args, **kwargs)

        return call

    def _awaiting_either(self) -> Callable[..., Any]:
        from mulligan.capture.tokens import aopened, is_asked_for  # lazy: needed only for models

        plainly = self._awaiting()

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await (aopened(self, args, kwargs) if is_asked_for(kwargs) else plainly(*args, **kwargs))

        return call

    def _awaiting(self) -> Callable[..., Any]:
        function, source = self.function, self.source

        async def call(*args: Any, **kwargs: Any) -> Any:
            kit = source()
            if kit is None:
                return await function(*args, **kwargs)
            first = begin(self, kit, args, kwargs)
            if first is None:
                with scope(kit, limits=self.rules(kit, None).limits) as run:
                    return await aplay(self.attempts(kit, run, args, kwargs))
            token, timer = kit.here.set(first), kit.timer
            began = timer()
            try:
                result = await function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
                # recovered below, outside this handler, so that later errors do not get this one as context
                first.failed(error, began, token)
            except BaseException as error:
                first.cancelled(error, began, token)
                raise
            else:
                if first.succeeded(result, began, token):
                    return result
            with first.scope() as run:
                return await aplay(self.attempts(kit, run, args, kwargs, first=first))

        return call


def members(schema: Mapping[str, Any] | None) -> set[str]:
    """Return the enum members of a tool's schema."""
    properties = (schema or {}).get("properties", {})
    return {
        member
        for each in properties.values()
        if isinstance(each, Mapping)
        for member in each.get("enum", ())
        if isinstance(member, str)
    }


async def within(answer: Any, seconds: float | None, name: str, timeout: float) -> Any:
    """Await a result for at most these seconds, or raise TimeoutError."""
    import asyncio  # lazy: loaded by async callers

    late = f"{name} did not answer in {timeout:g} s."
    if seconds is not None and seconds <= 0:
        answer.close()
        raise TimeoutError(late)
    try:
        async with asyncio.timeout(seconds) as clock:
            return await answer
    except TimeoutError:
        if clock.expired():
            raise TimeoutError(late) from None
        raise


def _is_raised_here(error: Exception) -> bool:
    """Return whether a TypeError was raised by a call in this module, not deeper."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return isinstance(error, TypeError) and last is not None and last.tb_frame.f_globals is globals()


def wrap(function: Any, source: Source, options: ToolOptions) -> Any:
    """Return the recovering form of a function, static method or class method."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(wrap(function.__func__, source, options))
    if isinstance(function, type):
        raise SettingsError(f"{function.__name__} is a class, which would cease to be one. Wrap one of its methods.")
    if isinstance(function, str):
        raise SettingsError(f"a name is given as name={function!r}: @mulligan.tool(name={function!r}).")
    if not callable(function):
        raise SettingsError(f"only something that can be called can be wrapped, got {type(function).__name__}.")
    return Wrapped(function, source, options).recovering()
