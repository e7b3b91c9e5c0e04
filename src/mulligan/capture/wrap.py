"""tool and model: a function in, a recovering function out."""

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
    """What the developer says of a function."""

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
            # A text is iterable too: taken letter by letter, it would protect nothing.
            given = getattr(self, name)
            names = None if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
            if names is None or not all(isinstance(each, str) for each in names):
                raise SettingsError(f"{name} is a list of argument names, such as ['amount'], got {given!r}.")
            object.__setattr__(self, name, names)


class Rules:
    """What holds for the calls of one function, in one sort of run."""

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
        """Whether all of a call is kept, as it was given."""
        self.limits = limits
        """Those of a run that has only this call in it."""
        self.mode: Mode = mode
        self.learn: Learn = "tell"
        self.is_retried = is_retried
        self.is_single = False
        """Whether a call has one attempt and is guarded all the same."""
        self.guard = guard
        self.keeping: Keeping | None = None
        self.judge: Judge | None = None
        self.items: tuple[str, ...] = ()
        """Arguments that the developer declared to name items."""
        self.privileged: tuple[str, ...] = ()
        """Arguments that the developer declared as privileged."""
        self.is_destructive = False
        self.is_empty_fine = True
        self.form = form
        self.alone = None if kit is None else Alone.of(Run(id="", agent=kit.agent, environment=kit.environment))
        """What a call outside any run says of its own."""


class Wrapped:
    """A function and what recovery must know of it. The recovering function has it as `__mulligan__`."""

    def __init__(self, function: Callable[..., Any], source: Source, options: ToolOptions) -> None:
        code = code_of(function)
        self.function = function
        self.source = source
        self.options = options
        self.name = options.name or name_of(function)
        self.key = self._make_key()
        """Which tool it is: see `Tool.key`."""
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
        """Whether there is more to do before each call than to make it."""
        self.verify = self._verifying()
        self.usual = Rules(None, NO_LIMITS, "observe", is_retried=False, guard=NO_GUARD, form=self._form())
        """Those of a call that need not be looked at, and about which neither its run nor its function says anything
        that the settings do not."""
        self._rules: tuple[Kit | None, dict[Limits | None, Rules]] = (None, {})
        self._judge = Judge(options.type, self.name, options.errors, options.empty)
        self.model: ModelCalls | None = None
        if options.model is not None:
            from mulligan.capture.model import ModelCalls, ModelJudge  # not needed by those who have tools alone

            self.model, self._judge = ModelCalls(self, options.model), ModelJudge(self.name)
        self._closed: frozenset[str] | None = None
        self._is_told = False
        """Whether it was said that its schema is none, if it is."""

    def _make_key(self) -> str:
        """Several wrappings of one function are one tool."""
        inner = getattr(self.function, "__mulligan__", None)
        if isinstance(inner, Wrapped):
            return inner.key
        server = self.options.server
        function = "" if server else qualified_name_of(self.function)
        # Local functions of one factory have one qualified name: they are told apart by the names they were given.
        if "<locals>" in function and function.rpartition(".")[2] != self.name:
            function = f"{function} {self.name}"
        return make_tool_key(self.name, server, function)

    def _refuse_unknown(self, option: str, names: Iterable[str]) -> None:
        """A misspelt name would protect nothing, and nobody would notice."""
        given = self.options.schema or {}
        known = (*self.signature.names, *(given.get("properties") or {}))
        for name in names:
            if not self.signature.is_open and name.partition(".")[0] not in known:
                raise SettingsError(
                    f"{option}: {self.name} has no argument {name!r}. Its arguments are {', '.join(known) or 'none'}."
                )

    def _verifying(self) -> Callable[..., Any] | None:
        """The developer's check, which a function that is not async cannot await."""
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
        """A call ready to be played.

        `opening` makes the answer of what the function gave, where that is a stream. `through` changes how the
        function is called: in a thread, say. `is_checked` holds the arguments against the signature first. `first` is
        an attempt that was made and failed; `mended` one that was turned away, and how it was put right.
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
            if given is not arguments:  # else exactly as the caller made it
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
        """What a call with these arguments works on beside them."""
        return find_receiver(self.function, args[0] if self.is_method and args else None)

    def _checking(self, args: tuple[Any, ...]) -> Callable[[Mapping[str, Any]], Any] | None:
        """The developer's check of one call: given its arguments in the form in which the function was."""
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
        """Refuses, before anything has happened, arguments that break the schema."""
        try:
            schema = self.schema()
            named = {name: value for name, value in arguments.items() if not name.startswith("*")}
            faults = schemas.judged(named, schema) if schema else []
            if faults is None and self.options.schema is not None and not self._is_told:
                self._is_told = True
                if why := schemas.pinned(self.options.schema).unusable():
                    log.warning("the schema of %s cannot be used, and nothing is checked by it: %s", self.name, why)
        except Exception:  # noqa: BLE001 - what cannot be checked is not refused
            return
        if faults:
            told = "; ".join(
                f"{'.'.join(map(str, fault.path))}: {fault.message}" if fault.path else fault.message
                for fault in faults[:5]
            )
            raise Unfit(f"The arguments do not fit: {told}.")

    def _form(self) -> Form:
        """What all its calls have in common. Each kit has its own: what may be told of them is for its gate to say."""
        places, nameable = self.signature.places, self.signature.nameable
        return Form(self.options.type, self.name, places, nameable, self.options.server, self._recorded_key())

    def _recorded_key(self) -> str | None:
        return self.key if self.key != self.name else None

    def rules(self, kit: Kit, limits: Limits | None) -> Rules:
        """What holds for a call in a run with these limits; None stands for a call outside any run."""
        known = self._rules
        if known[0] is not kit:
            known = self._rules = (kit, {})
        return known[1].get(limits) or self._ruled(kit, limits, known[1])

    def _ruled(self, kit: Kit, limits: Limits | None, known: dict[Limits | None, Rules]) -> Rules:
        options = self.options
        if limits is None:
            record = options.record or kit.record
        else:  # the stricter of the two, and more than its run is nothing kept of
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
        rules.learn = "off" if mode == "observe" else learn  # who only observes tells nothing
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
        """Texts that belong to the function's schema, and so to nobody: the members of its enums."""
        if self._closed is None:
            try:
                self._closed = frozenset(members(self.schema()))
            except Exception:  # noqa: BLE001 - a stranger's schema
                self._closed = frozenset()
        return self._closed

    def recovering(self) -> Callable[..., Any]:
        """The function to put in the place of the one that was wrapped."""
        if self.is_async_stream:
            made: Callable[..., Any] = astreaming(self)
        elif self.is_stream:
            made = streaming(self)
        elif self.is_async:
            made = self._awaiting() if self.model is None else self._awaiting_either()
        else:
            made = self._calling() if self.model is None else self._calling_either()
        made.__name__ = made.__qualname__ = self.name  # where the function has no name of its own to take over
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
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are here for
                first.failed(error, began, token)  # recovered below: what comes next is no consequence of handling it
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
        """For a model, which answers at once or token by token, as it is asked to."""
        from mulligan.capture.tokens import is_asked_for, opened  # not needed by those who have tools alone

        plainly = self._calling()

        def call(*args: Any, **kwargs: Any) -> Any:
            return opened(self, args, kwargs) if is_asked_for(kwargs) else plainly(*args, **kwargs)

        return call

    def _awaiting_either(self) -> Callable[..., Any]:
        from mulligan.capture.tokens import aopened, is_asked_for  # not needed by those who have tools alone

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
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are here for
                first.failed(error, began, token)  # recovered below: what comes next is no consequence of handling it
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
    """Texts that belong to a tool's schema."""
    properties = (schema or {}).get("properties", {})
    return {
        member
        for each in properties.values()
        if isinstance(each, Mapping)
        for member in each.get("enum", ())
        if isinstance(member, str)
    }


async def within(answer: Any, seconds: float | None, name: str, timeout: float) -> Any:
    """What an awaitable comes to, if it does in time."""
    import asyncio  # loaded by whoever awaits us

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
