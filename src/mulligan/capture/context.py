"""`CaptureContext`: the functions of other packages that capture calls. `build.py` builds it for every wrapper."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from mulligan.capture import framework_classes
from mulligan.classify.declared_errors import UNKNOWN_CODE
from mulligan.core import fork_safety
from mulligan.core.events import AnyEvent
from mulligan.core.failure import Failure, Kind
from mulligan.core.holdout import HoldOutLessons
from mulligan.core.kinds import KINDS, TOOL_UNKNOWN
from mulligan.core.log import get_logger
from mulligan.core.records import Fix, Precedent, ValueProfile
from mulligan.prompt import Prompt
from mulligan.recover.policy import Learn, Mode, Policy
from mulligan.recover.target_state import Targets

if TYPE_CHECKING:
    from mulligan.recover.lost_answers import LostAnswer

log = get_logger(__name__)

T = TypeVar("T")


Recording = Literal["full", "shape", "off"]
"""How much of a call is recorded: everything after redaction, no texts, or nothing."""
RECORDINGS: tuple[Recording, ...] = ("off", "shape", "full")
MODES: tuple[Mode, ...] = ("observe", "suggest", "repair")
LEARNS: tuple[Learn, ...] = ("off", "tell", "repair")


def strictest(order: tuple[T, ...], *values: T | None) -> T | None:
    """Return the value that comes first in this order, or None if all are None."""
    return next((choice for choice in order if choice in values), None)


class RunOptions(NamedTuple):
    """The options of a run, which apply to every call in it."""

    mode: Mode | None = None
    record: Recording | None = None
    learn: Learn | None = None
    holdout: bool = True
    """Whether help may be held out."""

    def within(self, outer: RunOptions) -> RunOptions:
        if outer is NO_OPTIONS:
            return self
        return RunOptions(
            strictest(MODES, self.mode, outer.mode),
            strictest(RECORDINGS, self.record, outer.record),
            strictest(LEARNS, self.learn, outer.learn),
            self.holdout and outer.holdout,
        )


NO_OPTIONS = RunOptions()
DELEGATED_OPTIONS = RunOptions("observe", "off")
"""The options of a wrapped function inside a call that an adapter records and recovers: it adds nothing to it."""
delegated_tool: ContextVar[Any] = ContextVar("mulligan_delegated_tool", default=None)
"""The `WrappedFunction` behind the tool of a framework, while its adapter makes an attempt."""


def _no_precedents(tool: str, key: str, failure: Failure, arguments: Mapping[str, Any]) -> Sequence[Precedent]:
    return ()


def is_exiting() -> bool:
    """Return whether the process exits: its threads should end what they wait for."""
    return bool(getattr(threading, "_SHUTTING_DOWN", False)) or not threading.main_thread().is_alive()


def _sleep(seconds: float) -> None:
    """Sleep in a thread. The exit of the process ends it soon."""
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0 and not is_exiting():
        time.sleep(min(remaining, 0.5))  # look twice a second whether the process exits


async def _async_sleep(seconds: float) -> None:
    import asyncio  # lazy: takes 30 ms, and async callers have loaded it

    await asyncio.sleep(seconds)


class ErrorGuard:
    """Suppresses an internal error and logs it once for each part: the caller's work continues without that part."""

    __slots__ = ("_context", "_part")

    def __init__(self, context: CaptureContext, part: str) -> None:
        self._context, self._part = context, part

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self._context.log_internal_error(self._part, error)
        return True


def _random() -> float:
    with fork_safety.import_lock:
        import random  # lazy: needed for backoffs only

    return random.random()


class CaptureContext(msgspec.Struct, frozen=True, kw_only=True):
    """The event stream, the classifier, memory, the policy, and a clock that tests can replace."""

    publish: Callable[[AnyEvent], None]
    put_success: Callable[..., None]
    """Records a first attempt that succeeded, by the fast path."""
    classify: Callable[..., Failure]
    kinds: Mapping[str, Kind] | None = None
    """The kinds that may be recorded by hand, by name; None permits every name."""
    listeners: Sequence[object] = ()
    """The listeners of the event stream. Without any, start events are not published."""
    prompt: Prompt = msgspec.field(default_factory=Prompt)
    """Builds the texts for a model, redacted by the settings."""
    policy: Policy = msgspec.field(default_factory=Policy)
    mode: Mode = "repair"
    record: Recording = "full"
    agent: str = ""
    environment: str | None = None
    show_run: str = "mulligan show "
    """What shows a run, followed by its id: a command, or the address of a server's dashboard."""
    lookup_precedents: Callable[[str, str, Failure, Mapping[str, Any]], Sequence[Precedent]] = _no_precedents
    lookup_facts: Callable[[str, str, Failure, Mapping[str, Any]], Sequence[ValueProfile]] | None = None
    """Facts about successful calls that a failed call contradicts; None without a memory."""
    lookup_profiles: Callable[[str, str], Sequence[ValueProfile]] | None = None
    """What successful calls of a tool had in common, by its name and key; None without a memory."""
    lookup_fixes: LookupFixes | None = None
    """Fixes from memory; None without a memory."""
    reflector: Any = None
    render_lessons: Callable[[Sequence[str], int, HoldOutLessons], str] = lambda tools, max_tokens, hold_out: ""
    """The lessons about these tools, within a token limit, without those that are held out from a run."""
    on_model_turn: Callable[[str], None] = lambda run: None
    """Called with a run whose model requests tools: the session counts its turns."""
    learn: Learn = "tell"
    prompt_fixes: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """By tool: the fixes that prompts of this process tell. A success that follows one is no evidence for it."""
    holdout: float = 0.0
    """The share of runs in which a fix that models follow is not told."""
    holdout_repairs: float = 0.0
    """The share of runs in which the calls of a tool are not repaired."""
    control_flow: frozenset[str] = framework_classes.CONTROL_FLOW
    """Names of exception classes that are no failures."""
    injected_types: frozenset[str] = framework_classes.INJECTED_TYPES
    """Names of types whose parameters are not arguments."""
    find_tool: Callable[[str], Any] | None = None
    """Returns the `WrappedFunction` with this name, if there is exactly one."""
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = _sleep
    async_sleep: Callable[[float], Awaitable[None]] = _async_sleep
    random: Callable[[], float] = _random
    is_exiting: Callable[[], bool] = is_exiting
    """Whether the process exits."""
    current_scope: ContextVar[Any] = msgspec.field(default_factory=lambda: ContextVar("mulligan_scope", default=None))
    """The `CallScope` of this context, or None. `capture/run.py` reads it."""
    deadline: ContextVar[float | None] = msgspec.field(
        default_factory=lambda: ContextVar("mulligan_deadline", default=None)
    )
    """The deadline of the enclosing calls, by `timer`."""
    in_prerequisite: ContextVar[bool] = msgspec.field(
        default_factory=lambda: ContextVar("mulligan_prerequisite", default=False)
    )
    """Whether the current call is a prerequisite. Such a call has no prerequisites of its own."""
    item_arguments: Callable[[str], Collection[str]] = lambda tool: ()
    """Arguments of a tool, by its key, that named items in earlier runs."""
    published_items: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """Tools and arguments that this process has published as items already."""
    lost_answers: dict[str, tuple[LostAnswer, ...]] = msgspec.field(default_factory=dict)
    """By session, or by run without one: calls with effects="once" whose answer was lost and is not settled."""
    targets: Targets = msgspec.field(default_factory=Targets)
    logged_errors: set[str] = msgspec.field(default_factory=set)
    """The parts with an internal error: each is logged once."""
    logged_warnings: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """Tools and topics of the warnings that were logged: each is logged once."""
    by_record_level: dict[Recording, CaptureContext] = msgspec.field(default_factory=dict)
    """The same context for calls of which more or less is recorded."""

    def recording(self, record: Recording) -> CaptureContext:
        """Return the same context with another record level."""
        if record == self.record:
            return self
        if record not in self.by_record_level:
            self.by_record_level[record] = msgspec.structs.replace(self, record=record)
        return self.by_record_level[record]

    def new_items(self, items: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]] | None:
        """Return the item arguments that this process has not published yet, or None."""
        unpublished_items: dict[str, tuple[str, ...]] = {}
        for tool, arguments in items.items():
            if unpublished := tuple(name for name in arguments if (tool, name) not in self.published_items):
                self.published_items.update((tool, name) for name in unpublished)
                unpublished_items[tool] = unpublished
        return unpublished_items or None

    @property
    def is_recording_off(self) -> bool:
        return self.record == "off"

    def now(self) -> int:
        """Return the time in UTC milliseconds."""
        return int(self.clock() * 1000)

    def is_control_flow(self, error: BaseException) -> bool:
        """Return whether an exception steers the program and is no failure: it passes unchanged."""
        return framework_classes.is_control_flow(error, self.control_flow)

    def cuts_call_off(self, error: BaseException) -> bool:
        """Return whether an exception cancels a call while its run may go on."""
        return framework_classes.cuts_call_off(error, self.control_flow)

    def guard(self, part: str) -> ErrorGuard:
        """Return a context manager that logs and suppresses an internal error of this part."""
        return ErrorGuard(self, part)

    def publish_safely(self, event: AnyEvent) -> None:
        """Publish an event. Never raises."""
        if self.record != "off":
            with self.guard("Publishing an event"):
                self.publish(event)

    def classify_safely(self, error: object = None, *, source: str, **evidence: Any) -> Failure:
        """Classify an error. Of an exception, add its class and its stack trace for the record. Never raises."""
        failure = Failure.of(KINDS.get(f"{source}/unknown", TOOL_UNKNOWN), type(error).__name__)
        with self.guard("Classification"):
            failure = self.classify(error, source=source, **evidence)
        if UNKNOWN_CODE in failure.evidence:
            self.warn_once(
                failure.code,
                UNKNOWN_CODE,
                "Unknown code %.80r of an AgentError: it does not say that nothing was executed. "
                'Use a code of docs/kinds.md, or declare yours in mulligan.toml as [kinds."tool/..."].',
                failure.code,
            )
        if isinstance(error, BaseException) and self.record != "off":
            with self.guard("Reading a stack trace"):
                with fork_safety.import_lock:
                    from mulligan.capture.stack_trace import describe_exception  # lazy: needed after a failure only
                name, trace = describe_exception(error, has_messages=self.record == "full")
                failure = msgspec.structs.replace(failure, exception=name, trace=trace)
        return failure

    def warn_once(self, tool_key: str, topic: str, message: str, *values: object) -> None:
        """Log a warning, once for each tool and topic."""
        # A limit, because a program may create tools without end.
        if (tool_key, topic) not in self.logged_warnings and len(self.logged_warnings) < 1000:
            self.logged_warnings.add((tool_key, topic))
            log.warning(message, *values)

    def log_internal_error(self, part: str, error: Exception | None = None) -> None:
        """Log an internal error, by default the exception being handled, once for each part."""
        if part not in self.logged_errors:
            self.logged_errors.add(part)
            log.error("%s failed; the call continues without it (logged once)", part, exc_info=error or True)


LookupFixes = Callable[[str, str, Failure, Mapping[str, Any], str], Sequence[Fix]]
"""Takes the name and key of a tool, its failure, the arguments and the digest of its schema ("" for none)."""
CaptureSource = Callable[[], CaptureContext | None]
"""Returns the context of a call, or None while mulligan is off."""


def reset(variable: ContextVar[T], token: Token[T]) -> None:
    """Reset a context variable. A discarded coroutine or generator is closed in another context, which never set it."""
    try:  # noqa: SIM105 - contextlib.suppress takes longer than the rest of a call's end
        variable.reset(token)
    except ValueError:
        pass
