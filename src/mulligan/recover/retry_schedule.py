"""When a failed call is retried: the backoff, its limits, and the wait for a target that is down. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import msgspec

from mulligan.core.failure import Failure, describe_wait
from mulligan.core.records import Recovery
from mulligan.recover.policy import Arguments, Policy, RetryLimits
from mulligan.recover.target_state import NO_TOKENS, RetryTurn, is_limited


class BackoffMove(msgspec.Struct, frozen=True):
    """Move that announces a recovery and waits for its backoff. There is no reply."""

    recovery: Recovery
    seconds: float | None = None
    """Seconds to sleep now, if the call has to ask again then: it waits for a target that is down."""
    waits_for: str = ""
    """The name of that target."""
    probe_seconds: float = 0.0
    """Seconds until its next probe."""

    @property
    def sleep_seconds(self) -> float:
        return self.recovery.backoff_seconds if self.seconds is None else self.seconds


class WaitMove(msgspec.Struct, frozen=True):
    """Move that continues to wait for a target. There is no reply."""

    seconds: float


class RetryQueries(msgspec.Struct, frozen=True, kw_only=True):
    """What a retry depends on: the time, the caller and the state of the target. All answers are in memory."""

    limits: RetryLimits = msgspec.field(default_factory=lambda: Policy().limit_retries())
    elapsed: Callable[[], float] = lambda: 0.0
    """Returns the seconds since the call began, or since the call around it began that answers a model."""
    random: Callable[[], float] = lambda: 0.0
    can_wait: Callable[[], bool] = lambda: True
    """Returns whether the call may sleep. A sync call on the thread of an event loop may not."""
    seconds_left: Callable[[], float | None] = lambda: None
    """Seconds until the deadline."""
    is_target_down: Callable[..., bool] = lambda *attempt: False
    """Returns whether the target of an attempt is down, by its arguments and function."""
    has_token: Callable[[], bool] = lambda: True
    """Returns whether the target of the last attempt has a token left for a retry."""
    describe_target: Callable[[], str] = str
    """Returns the name of the target of the last attempt."""
    take_turn: Callable[..., RetryTurn] = lambda *attempt, **options: RetryTurn()
    """Returns what a call does whose backoff has passed, by the arguments and the function of its next attempt."""


ON_EVENT_LOOP = "a sync call on the thread of an event loop is retried once, without a backoff"
DEADLINE_BEFORE_ATTEMPT = "the deadline would pass before the next attempt"


class RetrySchedule:
    """The retries of one call: how many there were, and when the next one follows."""

    def __init__(self, policy: Policy, queries: RetryQueries) -> None:
        self._policy = policy
        self._queries = queries
        self.limits = queries.limits
        self.attempt_count = 1
        """Attempts so far, without probes and those at an unreliable target."""
        self._retry_count = 0
        self._backoff_count = 0
        """Retries that followed a backoff: all but probes."""

    def plan_retry(self, failure: Failure, *, max_attempts: int | None = None) -> float | str:
        """Return the backoff in seconds before a retry, or why there is none. `max_attempts` is a lower limit.

        The backoff is 0 if the target is down: the call waits for it instead.
        """
        limits, queries = self.limits, self._queries
        is_limit, stated_seconds = is_limited(failure), find_stated_wait(failure)
        is_stated = stated_seconds is not None
        if max_attempts is not None and self.attempt_count >= max_attempts:
            return describe_attempts(self.attempt_count)
        are_all_counted = limits.are_attempts_explicit or limits.is_awaited or not is_stated
        if self.attempt_count >= limits.attempts and are_all_counted:
            return describe_attempts(limits.attempts)
        if not is_limit and not queries.has_token():
            return NO_TOKENS
        if not queries.can_wait():
            return 0.0 if not self._retry_count and not is_limit else ON_EVENT_LOOP
        elapsed, attempt = queries.elapsed(), self._backoff_count + 2
        if is_stated:
            seconds = self._policy.compute_backoff(attempt, stated_seconds, queries.random(), elapsed)
            if seconds is None:
                return describe_retry_after(failure, self._policy)
        elif not is_limit and queries.is_target_down():
            return 0.0
        else:
            seconds = self._policy.compute_backoff(attempt, None, queries.random()) or 0.0
            if failure.retry_after is not None and failure.retry_after > self._policy.max_backoff:
                return describe_retry_after(failure, self._policy)
            if failure.retry_after is not None and failure.retry_after > seconds:
                seconds = failure.retry_after
            window = limits.retry_seconds - elapsed
            if seconds > window and self._retry_count >= limits.guaranteed_retries:
                # Share of a backoff that must remain until the limit of time: the last retry then starts at the
                # limit
                if window < seconds * 0.5 or (failure.retry_after or 0.0) > window:
                    return f"the limit of {limits.retry_seconds:g} s for retries is reached"
                seconds = window
        remaining = queries.seconds_left()
        is_too_late = remaining is not None and seconds >= remaining
        return DEADLINE_BEFORE_ATTEMPT + describe_end(failure) if is_too_late else seconds

    def can_await_quota(self, failure: Failure) -> bool:
        """Return whether a quota is used up only for so short a time that the call may wait."""
        seconds = find_stated_wait(failure) if failure.kind.is_used_up else None
        return seconds is not None and seconds <= self._policy.max_backoff - self._queries.elapsed()

    def await_turn(
        self,
        failure: Failure,
        recovery: Recovery,
        arguments: Arguments | None = None,
        function: Callable[..., Any] | None = None,
    ) -> Generator[BackoffMove | WaitMove, Any, tuple[Recovery, str]]:
        """Wait for the backoff, then until the target may be called. Return the recovery with the time it took, and why
        there is no retry after all.
        """
        queries = self._queries
        attempt = () if arguments is None else (arguments, function)
        if recovery.backoff_seconds or not queries.is_target_down(*attempt):
            yield BackoffMove(recovery)
        waited, has_announced_wait = 0.0, False
        while True:
            turn = queries.take_turn(
                *attempt,
                outage_seconds=self._find_outage_limit(),
                can_wait=queries.can_wait(),
                needs_token=not is_limited(failure),
            )
            if turn.reason or not turn.seconds:
                break
            if turn.probe_seconds is not None and not has_announced_wait:
                has_announced_wait = True
                yield BackoffMove(recovery, turn.seconds, queries.describe_target(), turn.probe_seconds)
            else:
                yield WaitMove(turn.seconds)
            waited += turn.seconds
        if not turn.reason:
            self._retry_count += 1
            self._backoff_count += not turn.is_probe
            is_counted = not turn.is_probe and not turn.is_target_unreliable
            self.attempt_count += self.limits.are_attempts_explicit or is_counted
        seconds = recovery.backoff_seconds + waited
        return msgspec.structs.replace(recovery, backoff_seconds=seconds), turn.reason

    def _find_outage_limit(self) -> float:
        """Return when the call stops waiting for a target, in seconds since it began."""
        limits = self.limits
        if self._retry_count < limits.guaranteed_retries:
            return max(limits.outage_seconds, self._queries.elapsed() + self._policy.initial_backoff * 2)
        return limits.outage_seconds

    def restart(self) -> None:
        """Count the attempts of another model from the beginning."""
        self.attempt_count = 1
        self._backoff_count = 0


def find_stated_wait(failure: Failure) -> float | None:
    """Return the seconds after which a rate limit or a quota ends, if the service states them."""
    seconds = failure.clears_after if failure.retry_after is None else failure.retry_after
    return seconds if seconds is not None and seconds >= 0 and is_limited(failure) else None


def describe_attempts(number: int) -> str:
    """Return the stop reason for reaching the maximum number of attempts."""
    return "the limit of 1 attempt is reached" if number == 1 else f"the limit of {number} attempts is reached"


def describe_retry_after(failure: Failure, policy: Policy) -> str:
    """Return the stop reason for a delay that the server requested and the policy does not allow."""
    seconds = find_stated_wait(failure) if failure.retry_after is None else failure.retry_after
    obstacle = f"above the maximum backoff of {policy.max_backoff:g} s"
    if seconds is not None and seconds <= policy.max_backoff:
        obstacle = f"more than what remains of {policy.max_backoff:g} s"
    return f"Retry-After is {seconds:g} s, {obstacle}{describe_end(failure)}"


def describe_end(failure: Failure) -> str:
    """Return when a limit or a quota ends, to be added to a stop reason, or an empty string."""
    return f": it clears in {describe_wait(failure.clears_after)}" if failure.clears_after is not None else ""
