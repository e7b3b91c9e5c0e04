"""What stands between a call and its attempts: circuit, budgets, deadline, and the same call once too often."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import msgspec

from mulligan.capture.context import Kit
from mulligan.capture.run import ActiveRun
from mulligan.classify.kinds import (
    MODEL_UNAVAILABLE,
    ORCHESTRATION_LOOP_DETECTED,
    TOOL_UNAVAILABLE,
    TOOL_WRONG_APPROACH,
)
from mulligan.core.failure import AgentError, Failure, Kind, TookEffect
from mulligan.core.records import StepType
from mulligan.recover.budget import ToolLimits, is_infrastructure, target_of
from mulligan.recover.loop_detection import call_key
from mulligan.recover.plan import BLOCKED
from mulligan.recover.policy import Policy
from mulligan.recover.tool import Tool

Aim = Callable[[Mapping[str, Any], Callable[..., Any] | None], str]
"""Where an attempt goes, by its arguments and by the function that is called in place of the call's own."""
OVER = "the deadline has passed"
CIRCUIT_OPEN = "its circuit breaker is open"
LEFT_ALONE = f"{CIRCUIT_OPEN} after repeated failures"


class NotMade(AgentError):
    """A call that was answered without being made, and the failure that says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, failure.kind.code, failure.hint, recoverable=failure.recoverable)
        self.failure = failure


class Unfit(AgentError):
    """Arguments that were turned away by our own check, before the function was reached."""


class Guarding:
    """The limits of one call. Inside a layer that retries, and where a tool is only observed, there are none."""

    __slots__ = (
        "_aim",
        "_guard",
        "_has_breaker",
        "_has_executed",
        "_is_let_through",
        "_is_probe",
        "_key",
        "_kit",
        "_owner",
        "_policy",
        "_run",
        "_target",
        "_tool",
        "_type",
        "can_block",
        "deadline",
        "is_active",
        "is_note_new",
        "repeat_note",
    )

    def __init__(
        self,
        kit: Kit,
        run: ActiveRun,
        tool: Tool,
        policy: Policy,
        guard: ToolLimits | None,
        *,
        type: StepType = "tool",
        owner: object = None,
        aim: Aim | None = None,
    ) -> None:
        self._kit = kit
        self._run = run
        self._tool = tool
        self._policy = policy
        self._guard = guard
        self._type: StepType = type
        self._owner = owner
        self._aim = aim
        self.deadline: float | None = None
        """When the call must be over, by the kit's timer."""
        self._target = ""
        self._key: Hashable | None = None
        self._has_breaker = policy.circuit_breaker and guard is not None and guard.has_circuit_breaker
        self._is_probe = False
        self._is_let_through = False
        """Whether the attempt is made although the circuit is open."""
        self._has_executed = False
        self.is_active = guard is not None and tool.mode != "observe" and kit.layer() is None
        self.can_block = False
        """Whether the call may be answered without being made. It is set before the first attempt, and only for calls
        that answer a model in a loop of ours, or that we make ourselves: a program's own calls are always made."""
        self.repeat_note = ""
        """What to say of a call that failed the same way once too often, and was made all the same."""
        self.is_note_new = False
        """Whether this is the first note of its streak."""

    def bound(self, deadline: float | None) -> None:
        """The time at which the call must be over: its own, or that of a call around it."""
        outer = self._kit.deadline.get()
        known = [each for each in (deadline, outer) if each is not None]
        self.deadline = min(known) if known else None

    def remaining(self) -> float | None:
        """Seconds until the deadline."""
        return None if self.deadline is None else self.deadline - self._kit.timer()

    def admit(self, arguments: Mapping[str, Any], has_substitute: Callable[[Failure], bool] | None = None) -> None:
        """Before the first attempt: raises `NotMade` where it must not be made.

        `has_substitute` says whether something else answers in its place.
        """
        if not self.is_active or self._guard is None:
            return
        now = self._kit.timer()
        if self.can_block:
            self._block_repeat(arguments, now)
        self._guard.expire_circuits(now)
        if self._guard.needs_admission_check and self._has_breaker:
            self._target = self._target_of(arguments)
            seconds, self._is_probe = self._guard.admit(self._target, now)
            if seconds:
                failure = _out_of_order(self._kit, self._tool.name, self._type, seconds)
                if self.can_block or self._tool.circuit_breaker or (has_substitute and has_substitute(failure)):
                    raise NotMade(failure)
                self._is_let_through = True  # a program's own first attempt is always made
        if self._policy.attempts > 1:
            self._guard.count_first_attempt()

    def _block_repeat(self, arguments: Mapping[str, Any], now: float) -> None:
        """Raise `NotMade` where the same call, or one much like it, has failed too often in this run."""
        repeats = self._run.loop_detector
        if repeats is None:
            return
        streak = repeats.find_blocking_failure(
            self._tool.key, call_key(arguments, self._owner), now, self._policy.max_identical_failures
        )
        if streak is not None:
            streak.count += 1
            raise NotMade(_repeated(self._kit, self._tool.name, streak.failure, streak.count - 1))
        if self._policy.on_spiral == "block" and (spiral := repeats.find_spiral(self._tool.name, arguments)):
            told = self._kit.prompt.spiral(spiral.tools, spiral.kind, spiral.count)
            raise NotMade(_refusal(TOOL_WRONG_APPROACH, told))

    def executed(self) -> None:
        """The function itself was reached: what comes next is a retry."""
        self._has_executed = True

    def spend(self, failure: Failure, is_repair: bool = False) -> str:
        """Takes one retry of every budget; why there is none left."""
        if self._guard is None or not self._has_executed:
            return ""  # turned away by ourselves: nobody else was asked for anything yet
        # A repair after a proven rejection is a new call, which no storm is made of.
        is_free = is_repair and failure.took_effect is TookEffect.NO
        why = "" if is_free else self._kit.budget.take_retry(self._guard)
        if not why and not self._run.take_retry(self._policy.max_run_retries):
            made = self._policy.max_run_retries
            return f"the limit of {made} {'retry' if made == 1 else 'retries'} per run is reached"
        return why

    def is_circuit_open(self) -> bool:
        """Whether the circuit of the last attempt is open now."""
        return self._has_breaker and self._guard is not None and self._guard.is_open(self._target, self._kit.timer())

    def _target_of(self, arguments: Mapping[str, Any], function: Callable[..., Any] | None = None) -> str:
        return target_of(arguments) if self._aim is None else self._aim(arguments, function)

    def halted(
        self, ahead: float, arguments: Mapping[str, Any] | None = None, function: Callable[..., Any] | None = None
    ) -> str:
        """Why an attempt may not be made so many seconds from now: to wait for nothing helps nobody.

        `arguments` and `function` are those of the attempt, where it may go elsewhere than the one before.
        """
        if self._is_over():
            return OVER
        if self._guard is None or not self._has_breaker:
            return ""
        target = self._target if arguments is None else self._target_of(arguments, function)
        return LEFT_ALONE if self._guard.is_open(target, self._kit.timer() + ahead) else ""

    def turned_away(
        self, arguments: Mapping[str, Any] | None = None, function: Callable[..., Any] | None = None
    ) -> str:
        """Why the attempt that is about to be made may not be; it may be the one that decides about the circuit."""
        if self._is_over():
            return OVER
        if self._guard is None or not self._has_breaker:
            return ""
        if arguments is not None:
            self._target = self._target_of(arguments, function)
        seconds, self._is_probe = self._guard.admit(self._target, self._kit.timer())
        return LEFT_ALONE if seconds else ""

    def _is_over(self) -> bool:
        remaining = self.remaining()
        return remaining is not None and remaining <= 0

    def ended(
        self,
        arguments: Mapping[str, Any],
        failure: Failure | None,
        function: Callable[..., Any] | None = None,
    ) -> None:
        """An attempt has ended, of this function where it was not the call's own."""
        if not self.is_active or not self._has_breaker or self._guard is None:
            return
        if failure is not None and BLOCKED in failure.evidence:
            return
        is_probe, self._is_probe = self._is_probe, False
        is_let_through, self._is_let_through = self._is_let_through, False
        self._target = self._target_of(arguments, function)
        is_bad = is_infrastructure(failure)
        self._guard.record_result(
            self._target, is_bad, self._kit.timer(), is_probe=is_probe, is_let_through=is_let_through
        )

    def cancelled(self) -> None:
        if self._is_probe and self._guard is not None:
            self._is_probe = False
            self._guard.release_probe(self._target, self._kit.timer())

    def given_up(self, arguments: Mapping[str, Any], failure: Failure) -> str:
        """The call is given up; the spiral that it is part of, in the model's words. `repeat_note` may be set, too."""
        run = self._run
        if not self.is_active or run.is_implicit or not failure.is_failure or BLOCKED in failure.evidence:
            return ""
        repeats = run.ensure_loop_detector()
        now = self._kit.timer()
        count = repeats.record_unrecovered(self._tool.key, call_key(arguments, self._owner), failure, now)
        spiral = None if self._type == "model" else repeats.record_strategy_failure(self._tool.name, arguments, failure)
        limit = self._policy.max_identical_failures
        if limit and count > limit:
            self.repeat_note = self._kit.prompt.identical_failure_note(count)
            self.is_note_new = count == limit + 1
        return "" if spiral is None else self._kit.prompt.spiral(spiral.tools, spiral.kind, spiral.count)


def _refusal(kind: Kind, message: str, **fields: Any) -> Failure:
    return Failure.of(kind, message, took_effect=TookEffect.NO, evidence=(BLOCKED,), **fields)


def _repeated(kit: Kit, tool: str, failure: Failure, count: int) -> Failure:
    told = _refusal(ORCHESTRATION_LOOP_DETECTED, kit.prompt.identical_failure(tool, failure, count), recoverable=False)
    return msgspec.structs.replace(told, fingerprint=failure.fingerprint)


def _out_of_order(kit: Kit, tool: str, type: StepType, seconds: float) -> Failure:
    kind = MODEL_UNAVAILABLE if type == "model" else TOOL_UNAVAILABLE
    return _refusal(kind, kit.prompt.circuit_open(tool, seconds), retry_after=round(seconds, 1))
