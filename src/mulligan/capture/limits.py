"""Admission: whether an attempt may be made. Deadline, target, repairs of the run, repeated calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.capture.attempt import PreparedCall
from mulligan.capture.call_errors import CallBlockedError
from mulligan.capture.context import CaptureContext
from mulligan.capture.run import ActiveRun
from mulligan.capture.wrapped_function import Target
from mulligan.core import fork_safety
from mulligan.core.failure import Failure, Kind, TookEffect
from mulligan.core.kinds import (
    MODEL_UNAVAILABLE,
    ORCHESTRATION_LOOP_DETECTED,
    TOOL_UNAVAILABLE,
    TOOL_WRONG_APPROACH,
)
from mulligan.recover.plan import BLOCKED
from mulligan.recover.policy import Policy, RetryLimits
from mulligan.recover.retry_schedule import RetryQueries
from mulligan.recover.target_state import RetryTurn, TargetCall, Targets

if TYPE_CHECKING:
    from mulligan.recover.lost_answers import LostAnswer


DEADLINE_EXCEEDED = "the deadline has passed"


class CallLimits(msgspec.Struct):
    """The limits of one call. They do not apply inside a scope that retries, nor in observe mode."""

    prepared: PreparedCall
    deadline: float | None = None
    """When the call must have ended, by the context's timer."""
    retry_limits: RetryLimits = msgspec.field(default_factory=lambda: Policy().limit_retries())
    started_at: float = 0.0
    """When this call began; if a call around it answers a model, when that one began."""
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

    @property
    def _capture(self) -> CaptureContext:
        return self.prepared.call.capture

    @property
    def _run(self) -> ActiveRun:
        return self.prepared.call.run

    @property
    def _targets(self) -> Targets:
        return self.prepared.call.rules.targets

    @property
    def is_active(self) -> bool:
        """Whether the limits apply. The mode of a call inside a scope that retries is observe."""
        return self.prepared.tool.mode != "observe"

    def begin(self) -> None:
        """Begin with the call. Its deadline is its own, or that of an enclosing call if it is earlier."""
        call, options = self.prepared.call, self.prepared.call.wrapped.options
        deadline = None if options.timeout is None else call.start_time + options.timeout
        deadlines = [time for time in (deadline, self._capture.deadline.get()) if time is not None]
        self.deadline = min(deadlines) if deadlines else None

    def build_queries(self, can_wait: Callable[[], bool]) -> RetryQueries:
        """Return what a plan asks about retries. Called when it starts: only then is known who gets the answer."""
        prepared = self.prepared
        waiting_call = prepared.call.find_waiting_call()
        self.started_at = (waiting_call or prepared.call).start_time
        self.retry_limits = prepared.policy.limit_retries(
            answers_model=waiting_call is not None,
            has_timeout=prepared.call.wrapped.options.timeout is not None,
            client_retries=getattr(prepared.call.wrapped.function, "client_retries", 0),
        )
        return RetryQueries(
            limits=self.retry_limits,
            elapsed=self.elapsed,
            random=self._capture.random,
            can_wait=can_wait,
            seconds_left=self.seconds_left,
            is_target_down=self.is_target_down,
            has_token=self.has_token,
            describe_target=self.describe_target,
            take_turn=self.take_turn,
        )

    def with_timeout(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return an async function that ends at the deadline of the call, if it has a timeout."""
        wrapped = self.prepared.call.wrapped
        timeout = wrapped.options.timeout
        if timeout is None or not wrapped.is_async:
            return function

        async def call(*args: Any, **kwargs: Any) -> Any:
            import asyncio  # lazy: sync programs do not need it

            message = f"{wrapped.name} did not answer in {timeout:g} s."
            seconds = self.seconds_left()
            if seconds is not None and seconds <= 0:
                raise TimeoutError(message)
            try:
                async with asyncio.timeout(seconds) as clock:
                    return await function(*args, **kwargs)
            except TimeoutError:
                if clock.expired():
                    raise TimeoutError(message) from None
                raise

        return call

    def seconds_left(self) -> float | None:
        return None if self.deadline is None else self.deadline - self._capture.timer()

    def admit_first(
        self, arguments: Mapping[str, Any], has_substitute: Callable[[Failure], bool] | None = None
    ) -> Failure | None:
        """Return the failure of a first attempt that must not be made, or None.

        `has_substitute` says whether a fallback answers instead.
        """
        if not self.is_active:
            return None
        now = self._capture.timer()
        if self.can_block and (failure := self._loop_failure(arguments, now)) is not None:
            return failure
        if self._targets.states and (self.prepared.tool.circuit_breaker or has_substitute is not None):
            self._target = self._find_target(arguments, None)
            self._target_call.started_at = self.started_at
            if seconds := self._targets.admit_first(self._target.key, self._target_call, now):
                kind = MODEL_UNAVAILABLE if self.prepared.call.wrapped.options.type == "model" else TOOL_UNAVAILABLE
                message = self._capture.prompt.target_down(self.prepared.tool.name, seconds)
                failure = _blocked_failure(kind, message, retry_after=round(seconds, 1))
                if self.prepared.tool.circuit_breaker or (has_substitute and has_substitute(failure)):
                    return failure
        return None

    def _loop_failure(self, arguments: Mapping[str, Any], now: float) -> Failure | None:
        """Return the failure of a call that, like similar ones, has failed too often in this run."""
        detector, prompt = self._run.loop_detector, self._capture.prompt
        if detector is None:
            return None
        streak = detector.find_blocking_failure(
            self.prepared.tool.key, self._call_key(arguments), now, self.prepared.policy.max_identical_failures
        )
        if streak is not None:
            count = streak.count_repetitions(self.prepared.policy.max_identical_failures)
            message = prompt.identical_failure(self.prepared.tool.name, streak.failure, count)
            failure = _blocked_failure(ORCHESTRATION_LOOP_DETECTED, message, recoverable=False)
            return msgspec.structs.replace(failure, fingerprint=streak.failure.fingerprint)
        if self.prepared.policy.on_spiral == "block" and (
            spiral := detector.find_spiral(self.prepared.tool.name, arguments)
        ):
            return _blocked_failure(TOOL_WRONG_APPROACH, prompt.spiral(spiral.tools, spiral.kind, spiral.count))
        return None

    def refuse_repetition(self) -> None:
        """Raise `CallBlockedError` if the same call may have executed before, and a model in our own loop asks for it.

        Every other call is made: its answer has a note.
        """
        if self.lost_answer is not None and self.can_block:
            message, hint = self._capture.prompt.repeated_call(self.prepared.tool.name)
            failure = _blocked_failure(ORCHESTRATION_LOOP_DETECTED, message, hint=hint, recoverable=False)
            # A `verify` function may settle what is unknown.
            raise CallBlockedError(msgspec.structs.replace(failure, took_effect=TookEffect.UNKNOWN))

    def _call_key(self, arguments: Mapping[str, Any]) -> Hashable:
        with fork_safety.import_lock:
            from mulligan.recover.loop_detection import call_key  # lazy: needed after a failure only
        return call_key(arguments, self.prepared.call.owner)

    def mark_executed(self) -> None:
        """Note that the function itself was called: what follows is a retry."""
        self._has_executed = self.was_executed = True

    def take_repair(self) -> str:
        """Count a repair of the run. Return why it is denied."""
        if not self._has_executed or self._run.take_repair(self.prepared.policy.max_run_retries):
            return ""  # our own check rejected a call that was not executed: it caused no load
        limit = self.prepared.policy.max_run_retries
        return f"the limit of {limit} {'repair' if limit == 1 else 'repairs'} per run is reached"

    def elapsed(self) -> float:
        """Return the seconds since the call began whose caller waits."""
        return self._capture.timer() - self.started_at

    def find_obstacle(self) -> str:
        """Return why no attempt may follow any more, or an empty string."""
        if self._capture.is_exiting():
            return "the process exits"
        seconds = self.seconds_left()
        return DEADLINE_EXCEEDED if seconds is not None and seconds <= 0 else ""

    def is_target_down(
        self, arguments: Mapping[str, Any] | None = None, function: Callable[..., Any] | None = None
    ) -> bool:
        """Return whether the target of an attempt is down, by default that of the last one."""
        if not self._targets.states:
            return False
        target = self._target if arguments is None else self._find_target(arguments, function)
        return target is not None and self._targets.is_down(target.key)

    def has_token(self) -> bool:
        """Return whether the target of the last attempt has a token left for a retry."""
        return self._target is None or self._targets.has_token(self._target.key, self.prepared.policy)

    def describe_target(self) -> str:
        """Return the name of the target of the last attempt, or of the one that waits.

        If no values are recorded, it is that of the tool: values of arguments name a target.
        """
        if self.prepared.call.rules.value_recorder.is_shape:
            return self.prepared.tool.name
        return "" if self._target is None else self._target.label

    def _find_target(self, arguments: Mapping[str, Any], function: Callable[..., Any] | None) -> Target:
        call = self.prepared.call
        return call.wrapped.find_target(arguments, call.args, function)

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
            self._target = self._find_target(arguments, function)
        if self._target is None:
            return RetryTurn()
        call, now = self._target_call, self._capture.timer()
        call.started_at = self.started_at
        call.limit = self.started_at + outage_seconds if can_wait and not self.prepared.tool.circuit_breaker else now
        if self.deadline is not None:
            call.limit = min(call.limit, self.deadline)
        return self._targets.take_turn(
            self._target.key,
            call,
            now,
            policy=self.prepared.policy,
            random=self._capture.random,
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
        if failure is None and not self._targets.states:
            return
        self._target = self._find_target(arguments, function)
        self._targets.record(
            self._target.key,
            self._target_call,
            failure,
            self._capture.timer(),
            policy=self.prepared.policy,
            random=self._capture.random,
            seconds=seconds,
            is_retry=is_retry,
        )

    def leave_target(self) -> None:
        """Stop waiting for the target, or probing it."""
        if self._target is not None:
            self._targets.leave(self._target.key, self._target_call)

    def record_unrecovered(self, arguments: Mapping[str, Any], failure: Failure) -> str:
        """Count an unrecovered call, and set `identical_failures`. Return the note about the spiral it is part of."""
        if not self.is_active or self._run.is_implicit or not failure.is_failure or BLOCKED in failure.evidence:
            return ""
        detector, prompt = self._run.ensure_loop_detector(), self._capture.prompt
        limit = self.prepared.policy.max_identical_failures
        key, now = self._call_key(arguments), self._capture.timer()
        count = detector.record_unrecovered(self.prepared.tool.key, key, failure, now, limit)
        spiral = (
            None
            if self.prepared.call.wrapped.options.type == "model"
            else detector.record_strategy_failure(self.prepared.tool.name, arguments, failure)
        )
        if limit and count > limit:
            self.identical_failures = count
            self.is_note_new = count == limit + 1
        return "" if spiral is None else prompt.spiral(spiral.tools, spiral.kind, spiral.count)


def _blocked_failure(kind: Kind, message: str, **fields: Any) -> Failure:
    return Failure.of(kind, message, took_effect=TookEffect.NO, evidence=(BLOCKED,), **fields)
