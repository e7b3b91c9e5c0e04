"""Wraps a tool or model function in a recovering function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from mulligan.capture.call_execution import Attempts, Mended
from mulligan.capture.call_guard import Unfit
from mulligan.capture.context import (
    LEARNS,
    MODES,
    NO_LIMITS,
    RECORDINGS,
    Kit,
    Limits,
    Recording,
    Source,
    log,
    strictest,
)
from mulligan.capture.first_attempt import First, begin
from mulligan.capture.player import aexecute_plan, execute_plan
from mulligan.capture.result_checks import Empty, Judge
from mulligan.capture.run import ActiveRun, scope
from mulligan.capture.run_judge import find_receiver
from mulligan.capture.signature import Signature, code_of, name_of, qualified_name_of
from mulligan.capture.stream import astreaming, streaming
from mulligan.capture.value_recording import Keeping
from mulligan.core.failure import SettingsError, require_choice
from mulligan.core.fast_path import CallTemplate, StandaloneRun
from mulligan.core.links import Receiver
from mulligan.core.records import Effects, Run, StepType
from mulligan.recover import schema as schemas
from mulligan.recover.budget import TARGET_ARGUMENTS, ToolLimits
from mulligan.recover.policy import Policy
from mulligan.recover.tool import Learn, Mode, Tool, make_tool_key

if TYPE_CHECKING:
    from mulligan.capture.model_calls import ModelCalls, ModelOptions

TOOL_TYPES = ("tool", "model", "retrieval")
NO_GUARD = ToolLimits(Policy())


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """The options of a wrapped function."""

    name: str = ""
    server: str | None = None
    type: StepType = "tool"
    effects: Effects = "once"
    mode: Mode | None = None
    record: Recording | None = None
    detect_errors: bool = True
    empty_result: Empty = "success"
    schema: Mapping[str, Any] | None = None
    privileged: Iterable[str] = ()
    unprivileged: Iterable[str] = ()
    destructive: bool = False
    verify: Callable[..., Any] | None = None
    rejection_statuses: Iterable[int] = ()
    timeout: float | None = None
    policy: Policy | None = None
    items: Iterable[str] = ()
    learn: Learn | None = None
    circuit_breaker: bool = False
    model: ModelOptions | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SettingsError(f"Invalid name {self.name!r}. Use a string.")
        for name, value, choices in (
            ("effects", self.effects, get_args(Effects)),
            ("type", self.type, TOOL_TYPES),
            ("mode", "repair" if self.mode is None else self.mode, get_args(Mode)),
            ("record", "full" if self.record is None else self.record, get_args(Recording)),
            ("learn", "tell" if self.learn is None else self.learn, get_args(Learn)),
            ("empty_result", self.empty_result, get_args(Empty)),
        ):
            require_choice(name, value, choices)
        if self.empty_result == "failure" and self.type != "retrieval":
            raise SettingsError(
                f'Invalid empty_result="failure" with type={self.type!r}. Use it with type="retrieval".'
            )
        if self.schema is not None and not isinstance(self.schema, Mapping):
            raise SettingsError(
                f"Invalid schema of type {type(self.schema).__name__}. Use a JSON schema as a dictionary."
            )
        if self.policy is not None and not isinstance(self.policy, Policy):
            raise SettingsError(f"Invalid policy of type {type(self.policy).__name__}. Use a mulligan.Policy.")
        if not isinstance(self.detect_errors, bool):
            raise SettingsError(f"Invalid detect_errors {self.detect_errors!r}. Use True or False.")
        if not isinstance(self.circuit_breaker, bool):
            raise SettingsError(f"Invalid circuit_breaker {self.circuit_breaker!r}. Use True or False.")
        if self.verify is not None and not callable(self.verify):
            raise SettingsError(f"Invalid verify {self.verify!r}. Use a function that takes the tool's arguments.")
        if self.timeout is not None and (
            isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not 0 < self.timeout < 1e9
        ):
            raise SettingsError(f"Invalid timeout {self.timeout!r}. Use a number of seconds above 0.")
        raw_option = self.rejection_statuses
        statuses = (
            tuple(raw_option)
            if isinstance(raw_option, Iterable) and not isinstance(raw_option, str | bytes)
            else (None,)
        )
        if not all(type(status) is int and 100 <= status <= 599 for status in statuses):
            raise SettingsError(
                f"Invalid rejection_statuses {raw_option!r}. Use a set of HTTP statuses, for example {{422}}."
            )
        object.__setattr__(self, "rejection_statuses", frozenset(statuses))
        for name in ("privileged", "unprivileged", "items"):
            # Reject a text: iterated by character, it would protect nothing.
            raw_option = getattr(self, name)
            names = None if isinstance(raw_option, str) or not isinstance(raw_option, Iterable) else tuple(raw_option)
            if names is None or not all(isinstance(argument, str) for argument in names):
                raise SettingsError(
                    f"Invalid {name} {raw_option!r}. Use a list of argument names, for example ['amount']."
                )
            object.__setattr__(self, name, names)


class CallRules:
    """The effective rules for the calls of one function in runs with the same options."""

    __slots__ = (
        "guard",
        "is_destructive",
        "is_empty_fine",
        "is_off",
        "is_recorded_in_full",
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
        "standalone_run",
        "template",
    )

    def __init__(
        self, kit: Kit | None, limits: Limits, mode: Mode, is_retried: bool, guard: ToolLimits, template: CallTemplate
    ) -> None:
        self.kit: Kit = kit  # type: ignore[assignment] # none only in those that hold nowhere
        self.is_off = kit is not None and kit.is_silent
        self.is_recorded_in_full = not self.is_off
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
        self.template = template
        self.standalone_run = (
            None if kit is None else StandaloneRun.from_run(Run(id="", agent=kit.agent, environment=kit.environment))
        )
        """The shared run fields of standalone calls."""


class WrappedFunction:
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
        self._reject_unknown("privileged", options.privileged)
        self._reject_unknown("unprivileged", options.unprivileged)
        self._reject_unknown("items", options.items)
        self.is_stream = inspect.isgeneratorfunction(code)
        self.is_async_stream = inspect.isasyncgenfunction(code)
        self.is_async = self.is_async_stream or inspect.iscoroutinefunction(code)
        self._tools: dict[Mode, Tool] = {}
        self.needs_precheck = options.schema is not None or options.timeout is not None
        """Whether each call needs a check before it is made: a schema or a timeout."""
        self.verify = self._check_verify()
        self.default_rules = CallRules(
            None, NO_LIMITS, "observe", is_retried=False, guard=NO_GUARD, template=self._build_template()
        )
        """The rules of a call that needs no precheck, in a run without options of its own."""
        self._rules: tuple[Kit | None, dict[Limits | None, CallRules]] = (None, {})
        self._judge = Judge(options.type, self.name, options.detect_errors, options.empty_result)
        self.model: ModelCalls | None = None
        if options.model is not None:
            from mulligan.capture.model_calls import ModelCalls, ModelJudge  # lazy: needed only for models

            self.model, self._judge = ModelCalls(self, options.model), ModelJudge(self.name)
        self._shareable_texts: frozenset[str] | None = None
        self._has_warned = False
        """Whether the warning about an unusable schema was logged."""

    def _make_key(self) -> str:
        """Return the tool key. Functions wrapped several times are one tool."""
        inner = getattr(self.function, "__mulligan__", None)
        if isinstance(inner, WrappedFunction):
            return inner.key
        server = self.options.server
        function = "" if server else qualified_name_of(self.function)
        # Local functions of one factory share a qualified name, so add the tool name.
        if "<locals>" in function and function.rpartition(".")[2] != self.name:
            function = f"{function} {self.name}"
        return make_tool_key(self.name, server, function)

    def _reject_unknown(self, option: str, names: Iterable[str]) -> None:
        """Raise `SettingsError` for unknown argument names: a misspelled one would silently protect nothing."""
        schema = self.options.schema or {}
        argument_names = (*self.signature.names, *(schema.get("properties") or {}))
        for name in names:
            if not self.signature.is_unrestricted and name.partition(".")[0] not in argument_names:
                raise SettingsError(
                    f"{option}: {self.name} has no argument {name!r}. "
                    f"Its arguments are {', '.join(argument_names) or 'none'}."
                )

    def _check_verify(self) -> Callable[..., Any] | None:
        """Return the `verify` function. Raises `SettingsError` if it is async and the tool is not."""
        verify = self.options.verify
        if verify is not None and inspect.iscoroutinefunction(code_of(verify)) and not self.is_async:
            raise SettingsError(f"verify is async and {self.name} is not. Use a function that is not async.")
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
                unprivileged=frozenset(self.options.unprivileged),
                destructive=self.options.destructive,
                items=frozenset(self.options.items),
                circuit_breaker=self.options.circuit_breaker,
            )
        return tool

    def prepare_call(
        self,
        kit: Kit,
        run: ActiveRun,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        open_stream: Callable[[Any], Any] | None = None,
        adapt: Callable[[Callable[[Mapping[str, Any]], Any]], Callable[[Mapping[str, Any]], Any]] | None = None,
        should_check: bool = False,
        first: First | None = None,
        repaired_request: Mended | None = None,
    ) -> Attempts:
        """Build the execution of one call.

        `open_stream` converts the function's return value, if it is a stream. `adapt` changes how the function is
        called, for example in a thread. `should_check` validates the arguments against the signature first. `first` is
        a failed first attempt. `repaired_request` is a rejected request with its repair.
        """
        arguments = self.signature.bind(args, kwargs)
        rules = self.rules(kit, run.limits)
        mode: Mode = "observe" if kit.layer() is not None else rules.mode
        check = self.options.schema is not None or (should_check and mode != "observe")
        last: tuple[tuple[Any, ...], Mapping[str, Any]] = (args, kwargs)

        def call_function(call_arguments: Mapping[str, Any]) -> Any:
            nonlocal last
            if check:
                self.check(call_arguments)
            if call_arguments is not arguments:  # otherwise the call stays exactly as the caller made it
                positional, keywords = self.signature.split_arguments(call_arguments, args)
                last = tuple(positional), keywords
            answer = (call.instead or self.function)(*last[0], **last[1])
            return answer if open_stream is None else open_stream(answer)

        def has_begun(error: Exception) -> bool:
            return not (_is_raised_here(error) and self.signature.rejects_call(*last))

        async def timed(call_arguments: Mapping[str, Any]) -> Any:
            return await await_with_timeout(
                call_function(call_arguments), call.guarding.remaining(), self.name, timeout or 0
            )

        timeout = self.options.timeout
        call_once = timed if timeout is not None and self.is_async else call_function
        tool = self.tool(mode)
        learn = rules.learn if rules.learn != "repair" or not kit.preparing.get() else "tell"
        if learn != tool.learn:
            tool = replace(tool, learn=learn)
        call = Attempts(
            rules.kit,
            run,
            tool,
            arguments,
            call_once if adapt is None else adapt(call_once),
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
            rejects=frozenset(self.options.rejection_statuses),
            check=self._bind_verify(args),
            mended=repaired_request,
            planning=None if self.model is None else self.model.recovery,
            is_async=self.is_async,
            aim=None if self.model is None else self.model.aim,
            item_arguments=rules.items,
        )
        return call

    def receiver(self, args: tuple[Any, ...]) -> Receiver | None:
        """Return what a call with these arguments depends on besides them."""
        return find_receiver(self.function, args[0] if self.is_method and args else None)

    def _bind_verify(self, args: tuple[Any, ...]) -> Callable[[Mapping[str, Any]], Any] | None:
        """Bind `verify` to one call. It receives the arguments in the form of the original call."""
        verify = self.verify
        if verify is None:
            return None

        def check(arguments: Mapping[str, Any]) -> Any:
            positional, keywords = self.signature.split_arguments(arguments, args)
            return verify(*positional, **keywords)

        async def acheck(arguments: Mapping[str, Any]) -> Any:
            return await check(arguments)

        return acheck if inspect.iscoroutinefunction(code_of(verify)) else check

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise `SchemaMismatchError`, before execution, if arguments violate the schema."""
        try:
            schema = self.schema()
            named_arguments = {name: value for name, value in arguments.items() if not name.startswith("*")}
            violations = schemas.validate_or_none(named_arguments, schema) if schema else []
            if violations is None and self.options.schema is not None and not self._has_warned:
                self._has_warned = True
                if reason := schemas.compile_schema(self.options.schema).unusable_reason():
                    log.warning("The schema of %s is unusable, so arguments are not checked: %s", self.name, reason)
        except Exception:  # noqa: BLE001 - arguments that cannot be checked are accepted
            return
        if violations:
            summary = "; ".join(
                f"{'.'.join(map(str, fault.path))}: {fault.message}" if fault.path else fault.message
                for fault in violations[:5]
            )
            raise Unfit(f"The arguments do not match the schema: {summary}.")

    def _build_template(self) -> CallTemplate:
        """Build the call template. One per capture context, because redaction settings differ."""
        positional_names, nameable = self.signature.positional_names, self.signature.keyword_names
        return CallTemplate(
            self.options.type, self.name, positional_names, nameable, self.options.server, self._recorded_key()
        )

    def _recorded_key(self) -> str | None:
        return self.key if self.key != self.name else None

    def rules(self, kit: Kit, limits: Limits | None) -> CallRules:
        """Return the rules for a call in a run with these options; None stands for a call outside any run."""
        cached = self._rules
        if cached[0] is not kit:
            cached = self._rules = (kit, {})
        return cached[1].get(limits) or self._build_rules(kit, limits, cached[1])

    def _build_rules(
        self, kit: Kit, limits: Limits | None, rules_by_limits: dict[Limits | None, CallRules]
    ) -> CallRules:
        options = self.options
        if limits is None:
            record = options.record or kit.record
        else:  # the stricter one wins, and a step never records more than its run
            record = strictest(RECORDINGS, options.record, limits.record or kit.record) or kit.record
        mode = strictest(MODES, options.mode, None if limits is None else limits.mode) or kit.mode
        policy = options.policy or kit.policy
        standalone_limits = NO_LIMITS if record == kit.record else Limits(record=record)
        is_aimed = self.signature.takes_any_name or any(name in TARGET_ARGUMENTS for name in self.signature.names)
        guard = kit.budget.limits_for(self.key, policy, has_targets=self.model is not None or is_aimed)
        is_retried = mode != "observe" and policy.attempts > 1
        rules = CallRules(kit.recording(record), standalone_limits, mode, is_retried, guard, self._build_template())
        rules.is_single = mode != "observe" and policy.attempts == 1
        if record == "shape" or options.type == "model":
            rules.is_recorded_in_full, rules.template.is_reduced = False, True
            rules.keeping = Keeping(
                is_shape=record == "shape",
                is_model=options.type == "model",
                closed=self.shareable_texts,
                model=self.signature.default("model"),
            )
        learn = strictest(LEARNS, options.learn, None if limits is None else limits.learn) or kit.learn
        rules.learn = "off" if mode == "observe" else learn  # observe mode must not use memory
        rules.privileged, rules.is_destructive = tuple(options.privileged), options.destructive
        if options.items:
            rules.items, rules.is_recorded_in_full = tuple(options.items), False
        rules.judge = self._judge if self._judge.is_needed else None
        rules.is_empty_fine = options.empty_result == "success" and self.model is None
        if (limits is None or limits is NO_LIMITS) and options.record in (None, kit.record) and not self.needs_precheck:
            self.default_rules = rules
        rules_by_limits[limits] = rules
        return rules

    def shareable_texts(self) -> Collection[str]:
        """Return the shareable texts of the schema: the members of its enums."""
        if self._shareable_texts is None:
            try:
                self._shareable_texts = frozenset(enum_members(self.schema()))
            except Exception:  # noqa: BLE001 - a schema may be any object
                self._shareable_texts = frozenset()
        return self._shareable_texts

    def build_wrapper(self) -> Callable[..., Any]:
        """Build the recovering function that replaces the wrapped one."""
        if self.is_async_stream:
            wrapper: Callable[..., Any] = astreaming(self)
        elif self.is_stream:
            wrapper = streaming(self)
        elif self.is_async:
            wrapper = self._build_async_wrapper() if self.model is None else self._build_async_model_wrapper()
        else:
            wrapper = self._build_sync_wrapper() if self.model is None else self._build_sync_model_wrapper()
        wrapper.__name__ = wrapper.__qualname__ = self.name  # for callables without a name
        functools.update_wrapper(wrapper, self.function)
        wrapper.__mulligan__ = self  # type: ignore[attr-defined]
        return wrapper

    def _build_sync_wrapper(self) -> Callable[..., Any]:
        function, source = self.function, self.source

        def call(*args: Any, **kwargs: Any) -> Any:
            kit = source()
            if kit is None:
                return function(*args, **kwargs)
            first = begin(self, kit, args, kwargs)
            if first is None:
                with scope(kit, limits=self.rules(kit, None).limits) as run:
                    return execute_plan(self.prepare_call(kit, run, args, kwargs))
            token, timer = kit.here.set(first), kit.timer
            start_time = timer()
            try:
                result = function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
                # recovered below, outside this handler, so that later errors do not get this one as context
                first.failed(error, start_time, token)
            except BaseException as error:
                first.cancelled(error, start_time, token)
                raise
            else:
                if first.succeeded(result, start_time, token):
                    return result
            with first.scope() as run:
                return execute_plan(self.prepare_call(kit, run, args, kwargs, first=first))

        return call

    def _build_sync_model_wrapper(self) -> Callable[..., Any]:
        """Build the wrapper for a model that may return a stream or a complete answer."""
        from mulligan.capture.model_stream import is_asked_for, opened  # lazy: needed only for models

        call_directly = self._build_sync_wrapper()

        def call(*args: Any, **kwargs: Any) -> Any:
            return opened(self, args, kwargs) if is_asked_for(kwargs) else call_directly(*args, **kwargs)

        return call

    def _build_async_model_wrapper(self) -> Callable[..., Any]:
        from mulligan.capture.model_stream import aopened, is_asked_for  # lazy: needed only for models

        call_directly = self._build_async_wrapper()

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await (aopened(self, args, kwargs) if is_asked_for(kwargs) else call_directly(*args, **kwargs))

        return call

    def _build_async_wrapper(self) -> Callable[..., Any]:
        function, source = self.function, self.source

        async def call(*args: Any, **kwargs: Any) -> Any:
            kit = source()
            if kit is None:
                return await function(*args, **kwargs)
            first = begin(self, kit, args, kwargs)
            if first is None:
                with scope(kit, limits=self.rules(kit, None).limits) as run:
                    return await aexecute_plan(self.prepare_call(kit, run, args, kwargs))
            token, timer = kit.here.set(first), kit.timer
            start_time = timer()
            try:
                result = await function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - any error of the call is classified and recovered
                # recovered below, outside this handler, so that later errors do not get this one as context
                first.failed(error, start_time, token)
            except BaseException as error:
                first.cancelled(error, start_time, token)
                raise
            else:
                if first.succeeded(result, start_time, token):
                    return result
            with first.scope() as run:
                return await aexecute_plan(self.prepare_call(kit, run, args, kwargs, first=first))

        return call


def enum_members(schema: Mapping[str, Any] | None) -> set[str]:
    """Return the enum members of a tool's schema."""
    properties = (schema or {}).get("properties", {})
    return {
        member
        for property_schema in properties.values()
        if isinstance(property_schema, Mapping)
        for member in property_schema.get("enum", ())
        if isinstance(member, str)
    }


async def await_with_timeout(answer: Any, seconds: float | None, name: str, timeout: float) -> Any:
    """Await a result for at most these seconds, or raise TimeoutError."""
    import asyncio  # lazy: loaded by async callers

    timeout_message = f"{name} did not answer in {timeout:g} s."
    if seconds is not None and seconds <= 0:
        answer.close()
        raise TimeoutError(timeout_message)
    try:
        async with asyncio.timeout(seconds) as clock:
            return await answer
    except TimeoutError:
        if clock.expired():
            raise TimeoutError(timeout_message) from None
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
        raise SettingsError(f"{function.__name__} is a class. Wrap one of its methods instead.")
    if isinstance(function, str):
        raise SettingsError(f"Pass the name as a keyword: @mulligan.tool(name={function!r}).")
    if not callable(function):
        raise SettingsError(f"Cannot wrap an object of type {type(function).__name__}. Pass a function.")
    return WrappedFunction(function, source, options).build_wrapper()
