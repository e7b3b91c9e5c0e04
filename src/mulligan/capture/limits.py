"""Admission: whether an attempt may be made. Deadline, budgets, circuit breaker, repeated calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mulligan.capture.context import CaptureContext
from mulligan.capture.run import ActiveRun
from mulligan.classify.declared_errors import AgentError
from mulligan.classify.kinds import (
    MODEL_UNAVAILABLE,
    ORCHESTRATION_LOOP_DETECTED,
    TOOL_UNAVAILABLE,
    TOOL_WRONG_APPROACH,
)
from mulligan.core import fork_safety
from mulligan.core.failure import Failure, Kind, TookEffect
from mulligan.core.records import StepType
from mulligan.recover.budget import ToolLimits, is_infrastructure, target_of
from mulligan.recover.plan import BLOCKED
from mulligan.recover.policy import Policy, Tool

if TYPE_CHECKING:
    from mulligan.recover.lost_answers import LostAnswer

TargetResolver = Callable[[Mapping[str, Any], Callable[..., Any] | None], str]
"""Returns the target of an attempt, by its arguments and by the function that replaces the wrapped one."""
DEADLINE_EXCEEDED = "the deadline has passed"
CIRCUIT_OPEN = "its circuit breaker is open"
CIRCUIT_OPEN_REASON = f"{CIRCUIT_OPEN} after repeated failures (setting circuit_breaker)"


class CallBlockedError(AgentError):
    """A call that was answered without being made, with the failure that says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, failure.kind.code, failure.hint, recoverable=failure.recoverable)
        self.failure = failure


class Violation(NamedTuple):
    """One argument, or part of one, that a schema or a type rejects."""

    path: tuple[str | int, ...]
    message: str
    error: Exception | None = None
    """What a validator or constructor of the type raised."""


class SchemaMismatchError(AgentError):
    """Arguments that our own check rejected before the function was called."""

    causes: tuple[Exception, ...] = ()
    """What validators and constructors of the annotated types raised."""


class CallLimits(msgspec.Struct):
    """The limits of one call. They do not apply inside a scope that retries, nor in observe mode."""

    capture: CaptureContext
    run: ActiveRun
    tool: Tool
    policy: Policy
    tool_limits: ToolLimits
    type: StepType
    owner: object = None
    """The object whose method is called: the same arguments of another object are another call."""
    target_resolver: TargetResolver | None = None
    deadline: float | None = None
    """When the call must have ended, by the context's timer."""
    can_block: bool = False
    """Whether the first attempt may be blocked. Set before it, only for calls that answer a model in our own loop or
    that we make ourselves. Calls of a program, of a framework's agent and of a proxy's client are always made: they may
    have repaired the cause by means that we do not see."""
    identical_failures: int = 0
    """How often the call failed identically in this run, if that is too often and it was made anyway."""
    is_note_new: bool = False
    """Whether this is the first note about these identical failures."""
    requested_name: str = ""
    """The name by which a model requested the call; empty for a call of the program."""
    lost_answer: LostAnswer | None = None
    """The same call of the session, made before, whose answer was lost."""
    _target: str = ""
    _is_probe: bool = False
    _is_let_through: bool = False
    """Whether the attempt is made although the circuit breaker is open."""
    _failure_times: dict[str, list[float]] = msgspec.field(default_factory=dict)
    """When attempts of this call failed, by target. A successful retry removes them from the window of its target."""
    was_executed: bool = False
    """Whether the last attempt called the function."""
    has_executed_failure: bool = False
    """Whether an attempt that called the function failed. Otherwise nothing but our own check rejected the call."""
    _has_executed: bool = False
    """Whether any attempt called the function."""

    @property
    def is_active(self) -> bool:
        """Whether the limits apply. The mode of a call inside a scope that retries is observe."""
        return self.tool.mode != "observe"

    @property
    def _has_breaker(self) -> bool:
        return self.policy.circuit_breaker and self.tool_limits.has_circuit_breaker

    def set_deadline(self, deadline: float | None) -> None:
        """Set the deadline: the call's own, or that of an enclosing call if it is earlier."""
        deadlines = [time for time in (deadline, self.capture.deadline.get()) if time is not None]
        self.deadline = min(deadlines) if deadlines else None

    def seconds_left(self) -> float | None:
        """Return the seconds until the deadline."""
        return None if self.deadline is None else self.deadline - self.capture.timer()

    def admit_first(
        self, arguments: Mapping[str, Any], has_substitute: Callable[[Failure], bool] | None = None
    ) -> Failure | None:
        """Return the failure of a first attempt that must not be made, or None.

        `has_substitute` says whether a fallback answers instead.
        """
        if not self.is_active:
            return None
        now = self.capture.timer()
        if self.can_block and (failure := self._loop_failure(arguments, now)) is not None:
            return failure
        self.tool_limits.expire_circuits(now)
        if self.tool_limits.needs_admission_check and self._has_breaker:
            self._target = self._resolve_target(arguments)
            seconds, self._is_probe = self.tool_limits.admit(self._target, now)
            if seconds:
                kind = MODEL_UNAVAILABLE if self.type == "model" else TOOL_UNAVAILABLE
                message = self.capture.prompt.circuit_open(self.tool.name, seconds)
                failure = _blocked_failure(kind, message, retry_after=round(seconds, 1))
                if self.can_block or self.tool.circuit_breaker or (has_substitute and has_substitute(failure)):
                    return failure
                self._is_let_through = True  # a program's own first attempt is always made
        if self.policy.attempts > 1:
            self.tool_limits.count_first_attempt()
        return None

    def _loop_failure(self, arguments: Mapping[str, Any], now: float) -> Failure | None:
        """Return the failure of a call that, like similar ones, has failed too often in this run."""
        detector, prompt = self.run.loop_detector, self.capture.prompt
        if detector is None:
            return None
        streak = detector.find_blocking_failure(
            self.tool.key, self._call_key(arguments), now, self.policy.max_identical_failures
        )
        if streak is not None:
            message = prompt.identical_failure(self.tool.name, streak.failure, streak.count)
            failure = _blocked_failure(ORCHESTRATION_LOOP_DETECTED, message, recoverable=False)
            return msgspec.structs.replace(failure, fingerprint=streak.failure.fingerprint)
        if self.policy.on_spiral == "block" and (spiral := detector.find_spiral(self.tool.name, arguments)):
            return _blocked_failure(TOOL_WRONG_APPROACH, prompt.spiral(spiral.tools, spiral.kind, spiral.count))
        return None

    def refuse_repetition(self) -> None:
        """Raise `CallBlockedError` if the same call may have executed before, and a model in our own loop asks for it.

        Every other call is made: its answer has a note.
        """
        if self.lost_answer is not None and self.can_block:
            message, hint = self.capture.prompt.repeated_call(self.tool.name)
            failure = _blocked_failure(ORCHESTRATION_LOOP_DETECTED, message, hint=hint, recoverable=False)
            # A `verify` function may settle what is unknown.
            raise CallBlockedError(msgspec.structs.replace(failure, took_effect=TookEffect.UNKNOWN))

    def _call_key(self, arguments: Mapping[str, Any]) -> Hashable:
        with fork_safety.import_lock:
            from mulligan.recover.loop_detection import call_key  # lazy: needed after a failure only
        return call_key(arguments, self.owner)

    def mark_executed(self) -> None:
        """Note that the function itself was called: what follows is a retry."""
        self._has_executed = self.was_executed = True

    def take_retry_budget(self, failure: Failure, is_repair: bool = False) -> str:
        """Take one retry from every budget. Return why it is denied."""
        if not self._has_executed:
            return ""  # our own check rejected the call: it caused no load
        # A repair after a proven rejection is a new call, which cannot cause a retry storm.
        is_free = is_repair and failure.took_effect is TookEffect.NO
        reason = "" if is_free else self.capture.budget.take_retry(self.tool_limits)
        if not reason and not self.run.take_retry(self.policy.max_run_retries):
            limit = self.policy.max_run_retries
            return f"the limit of {limit} {'retry' if limit == 1 else 'retries'} per run is reached"
        return reason

    def is_circuit_open(self) -> bool:
        """Return whether the circuit breaker of the last attempt is open now."""
        return self._has_breaker and self.tool_limits.is_open(self._target, self.capture.timer())

    def _resolve_target(self, arguments: Mapping[str, Any], function: Callable[..., Any] | None = None) -> str:
        return target_of(arguments) if self.target_resolver is None else self.target_resolver(arguments, function)

    def blocking_reason(
        self, seconds: float, arguments: Mapping[str, Any] | None = None, function: Callable[..., Any] | None = None
    ) -> str:
        """Return why an attempt would be blocked in so many seconds, so that no backoff is wasted.

        `arguments` and `function` are those of the attempt, if it may have another target than the last one.
        """
        if self._is_deadline_exceeded():
            return DEADLINE_EXCEEDED
        target = self._target if arguments is None else self._resolve_target(arguments, function)
        is_open = self._has_breaker and self.tool_limits.is_open(target, self.capture.timer() + seconds)
        return CIRCUIT_OPEN_REASON if is_open else ""

    def admit_retry(
        self, arguments: Mapping[str, Any] | None = None, function: Callable[..., Any] | None = None
    ) -> str:
        """Return why the next attempt must not be made. It may be the probe of the circuit breaker."""
        if self._is_deadline_exceeded():
            return DEADLINE_EXCEEDED
        if not self._has_breaker:
            return ""
        if arguments is not None:
            self._target = self._resolve_target(arguments, function)
        seconds, self._is_probe = self.tool_limits.admit(self._target, self.capture.timer())
        return CIRCUIT_OPEN_REASON if seconds else ""

    def _is_deadline_exceeded(self) -> bool:
        seconds = self.seconds_left()
        return seconds is not None and seconds <= 0

    def record_result(
        self, arguments: Mapping[str, Any], failure: Failure | None, function: Callable[..., Any] | None = None
    ) -> None:
        """Count the result of an attempt. `function` replaced the wrapped one."""
        if not self.is_active or not self._has_breaker or (failure is not None and BLOCKED in failure.evidence):
            return
        is_probe, self._is_probe = self._is_probe, False
        is_let_through, self._is_let_through = self._is_let_through, False
        self._target = target = self._resolve_target(arguments, function)
        now, is_bad = self.capture.timer(), is_infrastructure(failure)
        self.tool_limits.record_result(
            target,
            is_bad,
            now,
            is_probe=is_probe,
            is_let_through=is_let_through,
            recovered_failures=self._failure_times.get(target, ()) if failure is None else (),
        )
        if is_bad:
            self._failure_times.setdefault(target, []).append(now)

    def release_probe(self) -> None:
        """Release the probe of the circuit breaker after a cancelled attempt."""
        if self._is_probe:
            self._is_probe = False
            self.tool_limits.release_probe(self._target)

    def record_unrecovered(self, arguments: Mapping[str, Any], failure: Failure) -> str:
        """Count an unrecovered call, and set `identical_failures`. Return the note about the spiral it is part of."""
        if not self.is_active or self.run.is_implicit or not failure.is_failure or BLOCKED in failure.evidence:
            return ""
        detector, prompt = self.run.ensure_loop_detector(), self.capture.prompt
        count = detector.record_unrecovered(self.tool.key, self._call_key(arguments), failure, self.capture.timer())
        spiral = None if self.type == "model" else detector.record_strategy_failure(self.tool.name, arguments, failure)
        limit = self.policy.max_identical_failures
        if limit and count > limit:
            self.identical_failures = count
            self.is_note_new = count == limit + 1
        return "" if spiral is None else prompt.spiral(spiral.tools, spiral.kind, spiral.count)


def _blocked_failure(kind: Kind, message: str, **fields: Any) -> Failure:
    return Failure.of(kind, message, took_effect=TookEffect.NO, evidence=(BLOCKED,), **fields)
