"""A wrapped function: its options, its signature, and the rules for its calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, get_args

import msgspec
from msgspec.structs import force_setattr

from mulligan.capture.call_errors import SchemaMismatchError, Violation
from mulligan.capture.call_origin import find_receiver
from mulligan.capture.context import (
    DELEGATED_OPTIONS,
    LEARNS,
    MODES,
    NO_OPTIONS,
    RECORDINGS,
    CaptureContext,
    CaptureSource,
    Recording,
    RunOptions,
    strictest,
)
from mulligan.capture.framework_classes import INJECTED_TYPES
from mulligan.capture.result_checks import Empty, ResultChecker
from mulligan.capture.signature import Signature, code_of, name_of, qualified_name_of, without_partial
from mulligan.capture.value_recording import ValueRecorder
from mulligan.classify.tool_category import find_category
from mulligan.core import fork_safety
from mulligan.core.call_facts import Receiver
from mulligan.core.failure import DetectErrors, Returns, SettingsError, ToolCategory, require_choice
from mulligan.core.fast_path import CallTemplate, StandaloneRun
from mulligan.core.log import get_logger
from mulligan.core.records import Effects, Run, StepType
from mulligan.recover.plan import RecoveryMoves
from mulligan.recover.policy import Learn, Mode, Policy, Tool, make_tool_key
from mulligan.recover.target_state import MAX_TARGET_CHARS, Targets, describe_target, target_of
from mulligan.redaction.lazy_property import lazy_property

log = get_logger(__name__)

TOOL_TYPES = ("tool", "model", "retrieval")


class Target(msgspec.Struct, frozen=True):
    """What one outage affects."""

    key: Hashable
    label: str
    """The target as a person reads it."""


TargetResolver = Callable[[Mapping[str, Any], Callable[..., Any] | None], Target]
"""Returns the target of an attempt, by its arguments and by the function that replaces the wrapped one."""
NO_TARGETS = Targets()
"""The targets of tools in observe mode: they are never retried."""
Planner = Callable[..., RecoveryMoves]
"""Plans the recovery of a model call: see `ModelCalls.plan`."""


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a wrapped function."""

    name: str = ""
    server: str | None = None
    type: StepType = "tool"
    effects: Effects = "once"
    mode: Mode | None = None
    record: Recording | None = None
    category: ToolCategory | None = None
    returns: Returns | None = None
    detect_errors: DetectErrors = True
    empty_result: Empty = "success"
    schema: Mapping[str, Any] | None = None
    privileged: Iterable[str] = ()
    unprivileged: Iterable[str] = ()
    clamp: Iterable[str] = ()
    destructive: bool = False
    verify: Callable[..., Any] | None = None
    rejection_statuses: Iterable[int] = ()
    timeout: float | None = None
    policy: Policy | None = None
    items: Iterable[str] = ()
    exclude: Iterable[str] = ()
    learn: Learn | None = None
    holdout: bool = True
    circuit_breaker: bool = False
    target: Any = None
    """Names of the arguments that name the target, or a function of the arguments."""
    fresh_arguments: bool = False
    model: Any = None

    def __post_init__(self) -> None:
        for name, choices in (
            ("effects", get_args(Effects)),
            ("type", TOOL_TYPES),
            ("mode", get_args(Mode)),
            ("record", get_args(Recording)),
            ("learn", get_args(Learn)),
            ("empty_result", get_args(Empty)),
            ("category", get_args(ToolCategory)),
            ("returns", get_args(Returns)),
        ):
            value = getattr(self, name)
            if value is not None or name not in ("mode", "record", "learn", "category", "returns"):
                require_choice(name, value, choices)
        if self.empty_result == "failure" and self.type != "retrieval":
            raise SettingsError(
                f'Invalid empty_result="failure" with type={self.type!r}. Use it with type="retrieval".'
            )
        for name, is_valid, advice in (
            ("name", isinstance(self.name, str), "Use a string."),
            (
                "detect_errors",
                isinstance(self.detect_errors, bool) or self.detect_errors == "text",
                'Use True, False or "text".',
            ),
            ("circuit_breaker", isinstance(self.circuit_breaker, bool), "Use True or False."),
            ("fresh_arguments", isinstance(self.fresh_arguments, bool), "Use True or False."),
            (
                "verify",
                self.verify is None or callable(self.verify),
                "Use a function that takes the tool's arguments.",
            ),
            ("timeout", self.timeout is None or _is_timeout(self.timeout), "Use a number of seconds above 0."),
        ):
            if not is_valid:
                raise SettingsError(f"Invalid {name} {getattr(self, name)!r}. {advice}")
        for name, kind, advice in (
            ("schema", Mapping, "Use a JSON schema as a dictionary."),
            ("policy", Policy, "Use a mulligan.Policy."),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise SettingsError(f"Invalid {name} of type {type(value).__name__}. {advice}")
        statuses = _to_tuple(self.rejection_statuses)
        if statuses is None or not all(type(status) is int and 100 <= status <= 599 for status in statuses):
            raise SettingsError(
                f"Invalid rejection_statuses {self.rejection_statuses!r}. "
                "Use a set of HTTP statuses, for example {422}."
            )
        force_setattr(self, "rejection_statuses", frozenset(statuses))
        if self.target is not None and not callable(self.target):
            names = _to_tuple([self.target] if isinstance(self.target, str) else self.target)
            if not names or not all(isinstance(argument, str) for argument in names):
                raise SettingsError(
                    f"Invalid target {self.target!r}. Use the name of an argument, a list of names, or a function that "
                    "takes the tool's arguments and returns the target."
                )
            force_setattr(self, "target", names)
        for name in ("privileged", "unprivileged", "clamp", "items", "exclude"):
            names = _to_tuple(getattr(self, name))
            if names is None or not all(isinstance(argument, str) for argument in names):
                raise SettingsError(
                    f"Invalid {name} {getattr(self, name)!r}. Use a list of argument names, for example ['amount']."
                )
            force_setattr(self, name, names)


def _mismatch_error(violations: Collection[Violation]) -> SchemaMismatchError:
    summary = "; ".join(
        f"{'.'.join(map(str, violation.path))}: {violation.message}" if violation.path else violation.message
        for violation in list(violations)[:5]
    )
    mismatch = SchemaMismatchError(f"The arguments do not match the schema: {summary}.")
    mismatch.causes = tuple(violation.error for violation in violations if violation.error is not None)
    return mismatch


def _to_tuple(values: Any) -> tuple[Any, ...] | None:
    """Return the members of an option. None for a text: iterated by character, it would protect nothing."""
    return None if isinstance(values, str | bytes) or not isinstance(values, Iterable) else tuple(values)


def _is_timeout(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9


def _ask_target(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """Return the target that the user's function reads from the arguments; empty if it cannot."""
    try:
        target = function(**{name: value for name, value in arguments.items() if not name.startswith("*")})
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything, and the call must not fail
        log.warning("target raised %s; the call counts for the whole tool", type(error).__name__)
        return ""
    return "" if target is None else str(target)[:MAX_TARGET_CHARS]


def _injected_types(get_capture: CaptureSource) -> Collection[str]:
    capture = get_capture()
    return INJECTED_TYPES if capture is None else capture.injected_types


class CallRules(msgspec.Struct, eq=False):
    """The effective rules for the calls of one function in runs with the same options."""

    capture: CaptureContext
    template: CallTemplate
    standalone_run: StandaloneRun
    """The shared run fields of standalone calls."""
    targets: Targets
    value_recorder: ValueRecorder
    run_options: RunOptions = NO_OPTIONS
    mode: Mode = "observe"
    learn: Learn = "tell"
    is_off: bool = False
    is_recorded_in_full: bool = True
    """Whether calls are recorded in full, with unchanged values."""
    is_retried: bool = False
    is_once: bool = False
    """Whether the function has effects="once": its calls never hold the scope that retries."""
    has_effects: bool = False
    """Whether a call forbids to repeat the attempts around it. A delegated call does not: its adapter's call does."""
    is_single: bool = False
    """Whether calls hold no scope that retries but still tell whether their target answers."""
    can_be_refused: bool = False
    """Whether first attempts may be refused while their target is down."""
    result_checker: ResultChecker | None = None
    items: tuple[str, ...] = ()
    """Arguments that are declared to name items."""


class WrappedFunction:
    """A function with the data for its recovery. Available as `__mulligan__` of the recovering function."""

    is_listed = False
    """Whether a server lists the tool. An unknown method is then not the name of the tool."""

    def __init__(self, function: Callable[..., Any], get_capture: CaptureSource, options: ToolOptions) -> None:
        code = code_of(function)
        self.function = function
        self.get_capture = get_capture
        self.options = options
        self.name = options.name or name_of(function)
        self.key = self._make_key()
        """The identity of the tool: see `Tool.key`."""
        self._schema_names = tuple((options.schema or {}).get("properties") or ())
        # Not a method: a tool in a reference cycle would outlive its last use.
        injected_types = functools.partial(_injected_types, get_capture)
        self.signature = Signature(function, options.exclude, injected_types, self._schema_names)
        self.is_method = self.signature.is_method
        for option in ("privileged", "unprivileged", "clamp", "items", "exclude"):
            self._reject_unknown(option, getattr(options, option))
        if isinstance(options.target, tuple):
            self._reject_unknown("target", options.target)
        self.is_stream = inspect.isgeneratorfunction(code)
        self.is_async_stream = inspect.isasyncgenfunction(code)
        self.is_async = self.is_async_stream or inspect.iscoroutinefunction(code)
        self.needs_precheck = options.schema is not None or options.timeout is not None or options.fresh_arguments
        """Whether each call needs preparation before it is made: a schema, a timeout or copies of its arguments."""
        self.verify = options.verify
        if self.verify is not None and inspect.iscoroutinefunction(code_of(self.verify)) and not self.is_async:
            raise SettingsError(f"verify is async and {self.name} is not. Use a function that is not async.")
        self.planner: Planner | None = None
        """Plans the recovery instead of `plan_recovery`: that of a model."""
        self.target_resolver: TargetResolver | None = None
        self.category: ToolCategory = options.category or find_category(
            self.name, (*self.signature.names, *self._schema_names), type=options.type
        )
        """What the tool is, declared or found. Found once: results are judged by it."""
        self.result_checker = self.build_result_checker(ResultChecker)
        self.default_rules: CallRules | None = None
        """The rules of a call that needs no precheck, in a run without options of its own."""
        self._rules: tuple[CaptureContext | None, dict[RunOptions | None, CallRules]] = (None, {})
        self._tools: dict[tuple[Mode, Learn], Tool] = {}
        self._converter: Any = None
        """Converts JSON arguments to the annotated types: an `ArgumentConverter`, from the first use on."""
        self._has_warned = False
        """Whether the warning about an unusable schema was logged."""

    def _make_key(self) -> str:
        """Return the tool key. Functions wrapped several times are one tool."""
        if inner := wrapped_of(self.function):
            return inner.key
        server = self.options.server
        function = "" if server else qualified_name_of(self.function)
        # Local functions of one factory share a qualified name, so add the tool name.
        if "<locals>" in function and function.rpartition(".")[2] != self.name:
            function = f"{function} {self.name}"
        return make_tool_key(self.name, server, function)

    def build_result_checker(self, checker_class: type[ResultChecker]) -> ResultChecker:
        options = self.options
        return checker_class(
            options.type,
            self.name,
            options.detect_errors,
            options.empty_result,
            options.effects,
            self.category,
            options.returns,
        )

    def _reject_unknown(self, option: str, names: Iterable[str]) -> None:
        """Raise `SettingsError` for unknown argument names: a misspelled one would silently protect nothing."""
        argument_names = dict.fromkeys((*self.signature.names, *self._schema_names))
        for name in names:
            if option == "exclude" and name in self._schema_names:
                raise SettingsError(f"exclude: schema declares {name!r} as an argument. Remove it from one of the two.")
            if not self.signature.is_unrestricted and name.partition(".")[0] not in argument_names:
                import difflib  # lazy: needed only for errors

                near = difflib.get_close_matches(name, argument_names, n=1)
                suggestion = f"Did you mean {near[0]!r}? " if near else ""
                raise SettingsError(
                    f"{option}: {self.name} has no argument {name!r}. {suggestion}"
                    f"Its arguments are {', '.join(argument_names) or 'none'}."
                )

    def bind_partial(self, partial: functools.partial[Any]) -> WrappedFunction:
        """Return the same tool with the values that a partial of its recovering function supplies."""
        # A method that was wrapped in its class is wrapped as a function, so pass `self` explicitly.
        owner = (partial.func.__self__,) if inspect.ismethod(partial.func) else ()
        function = functools.partial(self.function, *owner, *partial.args, **partial.keywords)
        verify = self.verify and functools.partial(self.verify, *owner, *partial.args, **partial.keywords)
        names = Signature(function).names
        options: dict[str, Any] = {
            option: [name for name in getattr(self.options, option) if name.partition(".")[0] in names]
            for option in ("privileged", "unprivileged", "clamp", "items", "exclude")
        }
        options |= {"name": self.name, "verify": verify}
        return WrappedFunction(function, self.get_capture, msgspec.structs.replace(self.options, **options))

    def schema(self) -> Mapping[str, Any] | None:
        return self.options.schema if self.options.schema is not None else self.signature.schema()

    def tool(self, mode: Mode, learn: Learn = "tell") -> Tool:
        """Return the tool as recovery sees it."""
        tool = self._tools.get((mode, learn))
        if tool is None:
            tool = self._tools[mode, learn] = Tool(
                name=self.name,
                server=self.options.server,
                key=self.key,
                effects=self.options.effects,
                mode=mode,
                learn=learn,
                schema=self.schema,
                privileged=frozenset(self.options.privileged),
                unprivileged=frozenset(self.options.unprivileged),
                clamp=frozenset(self.options.clamp),
                destructive=self.options.destructive,
                items=frozenset(self.options.items),
                circuit_breaker=self.options.circuit_breaker,
            )
        return tool

    def complete_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, with the defaults of those that are left out."""
        properties = (self.schema() or {}).get("properties") or {}
        declared = {
            name: declared_property["default"]
            for name, declared_property in properties.items()
            if isinstance(declared_property, Mapping) and "default" in declared_property
        }
        return {**declared, **self.signature.defaults, **arguments}

    def receiver(self, args: tuple[Any, ...]) -> Receiver | None:
        """Return what a call with these arguments depends on besides them."""
        return find_receiver(self.function, self.owner(args))

    def owner(self, args: tuple[Any, ...]) -> Any:
        """Return the object whose method is called, or None."""
        return args[0] if self.is_method and args else None

    def find_target(
        self, arguments: Mapping[str, Any], args: tuple[Any, ...], function: Callable[..., Any] | None
    ) -> Target:
        """Return what an outage of a call affects: its model, the target that its arguments name, or its object.

        `function` replaces the wrapped one.
        """
        declared = self.options.target
        if self.target_resolver is not None and (declared is None or function is not None):
            return self.target_resolver(arguments, function)
        name = _ask_target(declared, arguments) if callable(declared) else target_of(arguments, declared)
        owner = self.owner(args)
        if name or owner is None:
            return Target((self.key, name), describe_target(name, self.name))
        return Target((self.key, id(owner)), describe_target(type(owner).__name__, self.name))

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise `SchemaMismatchError`, before execution, if arguments violate the schema."""
        try:
            with fork_safety.import_lock:
                from mulligan.recover import schema as schemas  # lazy: few calls are checked before they are made
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
            # A schema only says that a value fits no member of a union. Its type says which part does not fit.
            exact = [violation for violation in violations if violation.rule not in ("anyOf", "oneOf")]
            details = self._convert(arguments)[1] if len(exact) < len(violations) else ()
            exact_paths = {violation.path for violation in exact}
            raise _mismatch_error(
                [
                    *(Violation(violation.path, violation.message) for violation in (exact if details else violations)),
                    *(detail for detail in details if detail.path not in exact_paths),
                ]
            )

    def convert(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return JSON arguments in the annotated types. Raise `SchemaMismatchError` if a type rejects its value."""
        converted_arguments, violations = self._convert(arguments)
        if violations:
            raise _mismatch_error(violations)
        return converted_arguments

    def _convert(self, arguments: Mapping[str, Any]) -> tuple[Mapping[str, Any], Collection[Violation]]:
        with fork_safety.import_lock:
            from mulligan.capture.argument_conversion import ArgumentConverter, ConversionError  # lazy: for loops only
        try:
            if self._converter is None:
                self._converter = ArgumentConverter(self.signature)
            return self._converter.convert(arguments) if self._converter.is_needed else arguments, ()
        except ConversionError as error:
            return arguments, error.violations
        except Exception:  # noqa: BLE001 - annotations may be arbitrary code
            return arguments, ()

    def rules(self, capture: CaptureContext, run_options: RunOptions | None) -> CallRules:
        """Return the rules for a call in a run with these options; None stands for a call outside any run."""
        cached = self._rules
        if cached[0] is not capture:
            cached = self._rules = (capture, {})
        return cached[1].get(run_options) or self._build_rules(capture, run_options, cached[1])

    def _build_rules(
        self, capture: CaptureContext, run_options: RunOptions | None, cache: dict[RunOptions | None, CallRules]
    ) -> CallRules:
        options, outer = self.options, run_options or NO_OPTIONS
        if run_options is None:
            record = options.record or capture.record
        else:  # the stricter one wins, and a step never records more than its run
            record = strictest(RECORDINGS, options.record, outer.record or capture.record) or capture.record
        mode = strictest(MODES, options.mode, outer.mode) or capture.mode
        learn = strictest(LEARNS, options.learn, outer.learn) or capture.learn
        policy = options.policy or capture.policy
        is_model, is_shape, is_off = options.type == "model", record == "shape", record == "off"
        template = CallTemplate(  # one per context, because redaction settings differ
            options.type,
            self.name,
            self.signature.positional_names,
            frozenset(self.signature.keyword_names),
            options.server,
            self.key if self.key != self.name else None,
        )
        template.is_reduced = is_shape or is_model
        if self.result_checker.detect_errors is True and not is_off:
            template.suspect = functools.partial(self.result_checker.suspect, capture)
        value_recorder = ValueRecorder(
            is_shape=is_shape,
            is_model=is_model,
            shareable_texts=self.shareable_texts,
            model=self.signature.default("model"),
            has_messages=is_model and record == options.record == "full",  # by default, models record summaries
        )
        rules = CallRules(
            capture.recording(record),
            template,
            StandaloneRun.from_run(Run(id="", agent=capture.agent, environment=capture.environment)),
            NO_TARGETS if mode == "observe" else capture.targets,
            value_recorder,
            run_options=NO_OPTIONS if record == capture.record else RunOptions(record=record),
            mode=mode,
            learn="off" if mode == "observe" else learn,  # observe mode must not use memory
            is_off=is_off,
            is_recorded_in_full=not (is_off or template.is_reduced or options.items),
            is_retried=mode != "observe" and policy.allows_recovery,
            is_once=options.effects == "once",
            has_effects=options.effects == "once" and run_options is not DELEGATED_OPTIONS,
            is_single=mode != "observe" and (not policy.allows_recovery or options.effects == "once"),
            can_be_refused=options.circuit_breaker or (options.model is not None and options.model.has_fallback),
            result_checker=self.result_checker if self.result_checker.is_needed else None,
            items=tuple(options.items),
        )
        if run_options in (None, NO_OPTIONS) and options.record in (None, capture.record) and not self.needs_precheck:
            self.default_rules = rules
        cache[run_options] = rules
        return rules

    def shareable_texts(self) -> Collection[str]:
        """Return the shareable texts of the schema: the members of its enums."""
        return self._shareable_texts

    @lazy_property
    def _shareable_texts(self) -> frozenset[str]:
        try:
            properties = (self.schema() or {}).get("properties", {})
            members = [
                member
                for property_schema in properties.values()
                if isinstance(property_schema, Mapping)
                for member in property_schema.get("enum", ())
            ]
            return frozenset(member for member in members if isinstance(member, str))
        except Exception:  # noqa: BLE001 - a schema may be any object
            return frozenset()


def wrapped_of(function: object) -> WrappedFunction | None:
    wrapped = getattr(function, "__mulligan__", None)
    return wrapped if isinstance(wrapped, WrappedFunction) else None


def tool_name(tool: Callable[..., Any]) -> str:
    """Return the name under which mulligan knows a tool, wrapped or not."""
    return wrapped.name if (wrapped := wrapped_of(without_partial(tool))) else name_of(tool)
