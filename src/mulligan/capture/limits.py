"""Admission: whether an attempt may be made. Deadline, target, repairs of the run, repeated calls."""

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
from mulligan.core.holdout import is_held_out
from mulligan.core.records import StepType
from mulligan.recover.plan import BLOCKED
from mulligan.recover.policy import Policy, RetryLimits, Tool
from mulligan.recover.target_state import RetryTurn, TargetCall, Targets

if TYPE_CHECKING:
    from mulligan.recover.lost_answers import LostAnswer


class Target(NamedTuple):
    """What one outage affects."""

    key: Hashable
    label: str
    """The target as a person reads it."""


TargetResolver = Callable[[Mapping[str, Any], Callable[..., Any] | None], Target]
"""Returns the target of an attempt, by its arguments and by the function that replaces the wrapped one."""
DEADLINE_EXCEEDED = "the deadline has passed"
PROCESS_EXITS = "the process exits"


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


REPAIR_HELD_OUT = "the repair is held out, to measure the effect of repairs"


class CallLimits(msgspec.Struct):
    """The limits of one call. They do not apply inside a scope that retries, nor in observe mode."""

    capture: CaptureContext
    run: ActiveRun
    tool: Tool
    policy: Policy
    targets: Targets
    type: StepType
    target_resolver: TargetResolver
    owner: object = None
    """The object whose method is called: the same arguments of another object are another call."""
    deadline: float | None = None
    """When the call must have ended, by the context's timer."""
    retry_limits: RetryLimits = msgspec.field(default_factory=lambda: Policy().limit_retries())
    started_at: float = 0.0
    """When the call began whose caller waits: this one, or one around it that answers a model."""
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
    _target: Target | None = None
    """The target of the last attempt, or of the one that waits."""
    _target_call: TargetCall = msgspec.field(default_factory=lambda: TargetCall(0.0, 0.0))
    was_executed: bool = False
    """Whether the last attempt called the function."""
    has_executed_failure: bool = False
    """Whether an attempt that called the function failed. Otherwise nothing but our own check rejected the call."""
    _has_executed: bool = False
    """Whether any attempt called the function."""
    repair_holdout: float = 0.0
    """The share of runs in which the tool's calls are not repaired."""
    is_repair_held_out: bool = False
    """Whether a repair was held out."""

    @property
    def is_active(self) -> bool:
        """Whether the limits apply. The mode of a call inside a scope that retries is observe."""
        return self.tool.mode != "observe"

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
        if self.targets.states and (self.tool.circuit_breaker or has_substitute is not None):
            self._target = self.target_resolver(arguments, None)
            self._target_call.started_at = self.started_at
            if seconds := self.targets.admit_first(self._target.key, self._target_call, now):
                kind = MODEL_UNAVAILABLE if self.type == "model" else TOOL_UNAVAILABLE
                message = self.capture.prompt.target_down(self.tool.name, seconds)
                failure = _blocked_failure(kind, message, retry_after=round(seconds, 1))
                if self.tool.circuit_breaker or (has_substitute and has_substitute(failure)):
                    return failure
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
            count = streak.count_repetitions(self.policy.max_identical_failures)
            message = prompt.identical_failure(self.tool.name, streak.failure, count)
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

    def take_repair(self) -> str:
        """Count a repair of the run. Return why it is denied."""
        if is_held_out(self.repair_holdout, self.run.trace_id, self.tool.key):
            self.is_repair_held_out = True
            return REPAIR_HELD_OUT
        if not self._has_executed or self.run.take_repair(self.policy.max_run_retries):
            return ""  # our own check rejected a call that was not executed: it caused no load
        limit = self.policy.max_run_retries
        return f"the limit of {limit} {'repair' if limit == 1 else 'repairs'} per run is reached"

    def elapsed(self) -> float:
        """Return the seconds since the call began whose caller waits."""
        return self.capture.timer() - self.started_at

    def find_obstacle(self) -> str:
        """Return why no attempt may follow any more, or an empty string."""
        if self.capture.is_exiting():
            return PROCESS_EXITS
        seconds = self.seconds_left()
        return DEADLINE_EXCEEDED if seconds is not None and seconds <= 0 else ""

    def is_target_down(
        self, arguments: Mapping[str, Any] | None = None, function: Callable[..., Any] | None = None
    ) -> bool:
        """Return whether the target of an attempt is down, by default that of the last one."""
        if not self.targets.states:
            return False
        target = self._target if arguments is None else self.target_resolver(arguments, function)
        return target is not None and self.targets.is_down(target.key)

    def has_token(self) -> bool:
        """Return whether the target of the last attempt has a token left for a retry."""
        return self._target is None or self.targets.has_token(self._target.key, self.policy)

    def describe_target(self) -> str:
        """Return the name of the target of the last attempt, or of the one that waits."""
        return "" if self._target is None else self._target.label

    def take_turn(
        self,
        arguments: Mapping[str, Any] | None = None,
        function: Callable[..., Any] | None = None,
        *,
        outage_seconds: float,
        can_wait: bool = True,
        needs_token: bool = True,
    ) -> RetryTurn:
        """Return what a call does whose backoff has passed: go, wait for its target, or stop."""
        if reason := self.find_obstacle():
            self.leave_target()
            return RetryTurn(reason=reason)
        if arguments is not None:
            self._target = self.target_resolver(arguments, function)
        if self._target is None:
            return RetryTurn()
        call, now = self._target_call, self.capture.timer()
        call.started_at = self.started_at
        call.limit = self.started_at + outage_seconds if can_wait and not self.tool.circuit_breaker else now
        if self.deadline is not None:
            call.limit = min(call.limit, self.deadline)
        return self.targets.take_turn(
            self._target.key,
            call,
            now,
            policy=self.policy,
            random=self.capture.random,
            needs_token=needs_token,
        )

    def record_result(
        self,
        arguments: Mapping[str, Any],
        failure: Failure | None,
        function: Callable[..., Any] | None = None,
        *,
        seconds: float = 0.0,
        is_retry: bool = False,
    ) -> None:
        """Record the end of an attempt at its target. `function` replaced the wrapped one."""
        if not self.is_active or (failure is not None and not self.was_executed):
            self.leave_target()
            return
        if failure is None and not self.targets.states:
            return
        self._target = self.target_resolver(arguments, function)
        self.targets.record(
            self._target.key,
            self._target_call,
            failure,
            self.capture.timer(),
            policy=self.policy,
            random=self.capture.random,
            seconds=seconds,
            is_retry=is_retry,
        )

    def leave_target(self) -> None:
        """Stop waiting for the target, or probing it."""
        if self._target is not None:
            self.targets.leave(self._target.key, self._target_call)

    def record_unrecovered(self, arguments: Mapping[str, Any], failure: Failure) -> str:
        """Count an unrecovered call, and set `identical_failures`. Return the note about the spiral it is part of."""
        if not self.is_active or self.run.is_implicit or not failure.is_failure or BLOCKED in failure.evidence:
            return ""
        detector, prompt = self.run.ensure_loop_detector(), self.capture.prompt
        limit = self.policy.max_identical_failures
        key, now = self._call_key(arguments), self.capture.timer()
        count = detector.record_unrecovered(self.tool.key, key, failure, now, limit)
        spiral = None if self.type == "model" else detector.record_strategy_failure(self.tool.name, arguments, failure)
        if limit and count > limit:
            self.identical_failures = count
            self.is_note_new = count == limit + 1
        return "" if spiral is None else prompt.spiral(spiral.tools, spiral.kind, spiral.count)


def _blocked_failure(kind: Kind, message: str, **fields: Any) -> Failure:
    return Failure.of(kind, message, took_effect=TookEffect.NO, evidence=(BLOCKED,), **fields)
