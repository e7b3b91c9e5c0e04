"""The state of targets: which are down, who probes and who waits, and how many retries may still fail.

A target is what one outage affects: a tool with its host, tenant or database, or a model at its endpoint. Nothing here
reads a clock or waits. Callers pass the time in seconds of any monotonic clock, and sleep for as long as they are told.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import msgspec

from mulligan.core import fork_safety
from mulligan.core.failure import HTTP_REQUEST_TIMEOUT, INFRA_ERROR, Failure
from mulligan.recover.policy import Policy

MAX_TARGETS = 1000
"""Targets with a state. Beyond, the one that was idle longest is forgotten."""
MAX_IDLE_SECONDS = 600.0
"""How long a target keeps its state without a call."""
TIMEOUT_TOKENS = 3
"""Tokens that a retry costs which timed out: it has occupied the target for as long as possible."""
SUCCESS_TOKENS = 3
"""Tokens that a success returns. A call retried until it succeeds has p²/(1-p) failed retries where a share p of the
attempts fails: with 1, a target that fails 62 % would soon have no tokens, with 3 one that fails 79 %. With 4, a server
that sheds half of its load may take two minutes to recover (`evals/overload`)."""
RATIO_WEIGHT = 0.05
"""Weight of one attempt in the failure ratio of its target: it describes about the last 20."""
UNRELIABLE_STREAK_FACTOR = 4
"""How many times as many failures in a row take an unreliable target down: a few in a row are no sign of an outage."""
MIN_PROBE_SECONDS = 0.5
MIN_POLL_SECONDS = 0.05
NO_TOKENS = "too many retries of this target have failed (setting retry_tokens)"
TARGET_DOWN = "its target is down"
NO_PROBE_IN_TIME = f"{TARGET_DOWN}, and the next probe is after the time that the call may take"
OUTAGE_LIMIT = f"{TARGET_DOWN}, and the call has waited as long as it may"

_lock = threading.Lock()
"""One lock for all targets, held for a few comparisons. A forked child gets a new one."""


def _reset_lock_in_child() -> None:
    global _lock  # the thread that held the lock does not exist in the child
    _lock = threading.Lock()


fork_safety.run_in_child(_reset_lock_in_child)


class RetryTurn(msgspec.Struct, frozen=True):
    """What a call that wants to be retried does next."""

    seconds: float = 0.0
    """Sleep so long, then ask again; 0 means that the retry is made now."""
    reason: str = ""
    """Why no retry is made."""
    probe_seconds: float | None = None
    """Seconds until the next probe of a target that is down; 0 while one runs."""
    is_probe: bool = False
    """Whether the retry probes a target that is down."""
    is_target_unreliable: bool = False
    """Whether the target fails at least half of its attempts."""


class TargetCall:
    """One call at a target: it may wait there, and probe it."""

    __slots__ = ("is_waiting", "limit", "release_at", "started_at")

    def __init__(self, started_at: float, limit: float) -> None:
        self.started_at = started_at
        self.limit = limit
        """When it must have started its last attempt."""
        self.release_at: float | None = None
        """When it may go, once the target has answered."""
        self.is_waiting = False

    def __lt__(self, other: TargetCall) -> bool:
        return self.started_at < other.started_at


class TargetState:
    __slots__ = (
        "down_since",
        "failure_ratio",
        "failures",
        "is_down",
        "last_seconds",
        "max_failures",
        "next_probe",
        "probe",
        "probe_started_at",
        "tokens",
        "used_at",
        "waiting",
    )

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.failures = 0
        """Failures in a row without an answer."""
        self.failure_ratio = 0.0
        """Share of the attempts without an answer, while the target was not down."""
        self.max_failures = 0
        """How many failures in a row take it down."""
        self.is_down = False
        self.down_since = 0.0
        """When the first of these failures ended."""
        self.next_probe = 0.0
        self.probe: TargetCall | None = None
        self.probe_started_at = 0.0
        self.last_seconds = 0.0
        """How long the last failed attempt took."""
        self.waiting: list[TargetCall] = []
        """Calls that wait until the target answers, the oldest first."""
        self.used_at = 0.0

    def is_healthy(self, max_tokens: int) -> bool:
        """Return whether nothing needs to be remembered."""
        is_idle = not self.failures and not self.is_down and self.probe is None
        # Failure ratio of a target that is forgotten: five successes after a single failure
        return is_idle and self.tokens >= max_tokens and self.failure_ratio < 0.04

    @property
    def is_unreliable(self) -> bool:
        # Failure ratio from which on a target is unreliable: a failure says nothing about the call, so it does not
        # count as an attempt
        return self.failure_ratio >= 0.5

    # Results

    def record_answer(self, call: TargetCall, now: float, random_value: float) -> None:
        """Record that the target answered: a success, or a failure of its own such as a rejection."""
        self._end_probe(call)
        self.failures = 0
        self.failure_ratio *= 1 - RATIO_WEIGHT
        self._release(now, random_value)

    def return_tokens(self, max_tokens: int) -> None:
        self.tokens = min(max(self.tokens, max_tokens), self.tokens + SUCCESS_TOKENS)

    def take_tokens(self, count: int) -> None:
        """Take tokens for a retry that failed."""
        self.tokens = max(0, self.tokens - count)

    def record_failure(
        self,
        call: TargetCall,
        now: float,
        random_value: float,
        *,
        seconds: float = 0.0,
        retry_after: float | None = None,
        down_after: int = 5,
    ) -> None:
        """Record an attempt that got no answer."""
        was_probe = self._end_probe(call)
        self.last_seconds = seconds
        if not self.failures:
            self.down_since = now
            self.max_failures = down_after * (UNRELIABLE_STREAK_FACTOR if self.is_unreliable else 1)
        self.failures += 1
        if not self.is_down:
            self.failure_ratio += RATIO_WEIGHT * (1 - self.failure_ratio)
        if was_probe or (not self.is_down and down_after and self.failures >= self.max_failures):
            self.is_down = True
            # Delay of the next probe, as a share of the time that the target has been down
            downtime = 0.5 * (now - self.down_since)
            self.next_probe = now + max(MIN_PROBE_SECONDS, downtime) * (0.75 + 0.5 * random_value)
            self.next_probe = max(self.next_probe, now + MIN_PROBE_SECONDS, now + (retry_after or 0.0))

    def _end_probe(self, call: TargetCall) -> bool:
        if self.probe is not call:
            return False
        self.probe = None
        return True

    def _release(self, now: float, random_value: float) -> None:
        """Let the waiting calls follow, the oldest first, spread over as long as the oldest has waited.

        Each goes within its own limit.
        """
        self.is_down = False
        calls, self.waiting = self.waiting, []
        for index, call in enumerate(calls):
            call.is_waiting = False
            spread = min(now - calls[0].started_at, max(0.0, call.limit - now))
            call.release_at = now + spread * (index + random_value) / len(calls)

    # Calls that want to be retried

    def take_turn(self, call: TargetCall, now: float, random_value: float, *, needs_token: bool = True) -> RetryTurn:
        """Return what a call does that wants to be retried. If it may go now, it no longer waits."""
        if self.is_down and self._is_probe_slow(now):
            self.probe = None
            self.failures = 0
            self._release(now, random_value)
        if not self.is_down and call.release_at is not None and now < call.release_at:
            return RetryTurn(call.release_at - now)
        call.release_at = None
        turn = self._find_turn(call, now, needs_token)
        if not turn.seconds:
            self._remove(call)
        elif not call.is_waiting:
            call.is_waiting = True
            insort(self.waiting, call)
        return turn

    def _find_turn(self, call: TargetCall, now: float, needs_token: bool) -> RetryTurn:
        if self.tokens < 1 and needs_token:
            return RetryTurn(reason=NO_TOKENS)
        if not self.is_down:
            return RetryTurn(is_target_unreliable=self.is_unreliable)
        if self.probe is None and max(now, self.next_probe) > call.limit:
            return RetryTurn(reason=NO_PROBE_IN_TIME)
        if now >= call.limit:
            return RetryTurn(reason=OUTAGE_LIMIT)
        if self.probe is None and now >= self.next_probe:
            is_oldest = not self.waiting or self.waiting[0] is call or call < self.waiting[0]
            # How long the oldest waiting call may be late for its probe before another one makes it
            if is_oldest or now >= self.next_probe + 2.0:
                self.probe, self.probe_started_at = call, now
                return RetryTurn(is_probe=True)
        probe_seconds = max(0.0, self.next_probe - now) if self.probe is None else 0.0
        seconds = probe_seconds or 0.1 * (now - self.down_since)
        seconds = min(1.0, max(MIN_POLL_SECONDS if not probe_seconds else 0.0, seconds))
        # Also for a limit that is only a rounding error away, the call sleeps before it asks again.
        return RetryTurn(max(0.001, min(seconds, call.limit - now)), probe_seconds=probe_seconds)

    def _is_probe_slow(self, now: float) -> bool:
        """Return whether the probe runs so long that the target seems to work."""
        # A probe that runs longer, and twice as long as the failures took, is not failing like them.
        seconds = max(1.0, 2 * self.last_seconds)
        return self.probe is not None and now - self.probe_started_at >= seconds

    def admit_first(self, call: TargetCall, now: float) -> float:
        """Return 0 if a first attempt may be made that could be refused, else the seconds until the next probe.

        While the target is down, it is made only as the probe.
        """
        if not self.is_down:
            return 0.0
        if self.probe is None and now >= self.next_probe:
            self.probe, self.probe_started_at = call, now
            return 0.0
        return max(MIN_PROBE_SECONDS, self.next_probe - now)

    def leave(self, call: TargetCall) -> None:
        """Forget a call that was cancelled or stopped."""
        self._end_probe(call)
        self._remove(call)

    def _remove(self, call: TargetCall) -> None:
        call.release_at = None
        if call.is_waiting:
            call.is_waiting = False
            self.waiting.remove(call)


class Targets:
    """The targets of a process whose calls failed lately. Threads and tasks share it."""

    def __init__(self) -> None:
        self.states: dict[Hashable, TargetState] = {}
        """Empty while every target works. Every successful call reads it, without the lock."""

    def record(
        self,
        target: Hashable,
        call: TargetCall,
        failure: Failure | None,
        now: float,
        *,
        policy: Policy,
        random: Callable[[], float],
        seconds: float = 0.0,
        is_retry: bool = False,
    ) -> None:
        """Record the end of an attempt. `is_retry` means that it repeated a failed one: its failure costs a token."""
        is_unanswered = is_without_answer(failure)
        if target not in self.states and not is_unanswered and not (is_retry and failure is not None):
            return
        random_value = random()
        with _lock:
            state = self._ensure(target, policy, now)
            if is_retry and failure is not None and failure.is_failure and not is_limited(failure):
                state.take_tokens(TIMEOUT_TOKENS if failure.kind.is_timeout else 1)
            if is_unanswered and failure is not None:
                state.record_failure(
                    call, now, random_value,
                    seconds=seconds, retry_after=failure.retry_after, down_after=policy.down_after,
                )  # fmt: skip
                return
            state.record_answer(call, now, random_value)
            if failure is None:
                state.return_tokens(policy.retry_tokens)
            if state.is_healthy(policy.retry_tokens):
                del self.states[target]

    def take_turn(
        self,
        target: Hashable,
        call: TargetCall,
        now: float,
        *,
        policy: Policy,
        random: Callable[[], float],
        needs_token: bool = True,
    ) -> RetryTurn:
        """Return what a call does that wants to be retried. `needs_token` is false after a rate limit."""
        random_value = random()
        with _lock:
            state = self.states.get(target)
            if state is None:
                release_at, call.release_at = call.release_at, None
                if release_at is not None and now < release_at:  # the target works again, and its state is gone
                    call.release_at = release_at
                    return RetryTurn(release_at - now)
                return RetryTurn() if policy.retry_tokens or not needs_token else RetryTurn(reason=NO_TOKENS)
            state.used_at = now
            return state.take_turn(call, now, random_value, needs_token=needs_token)

    def admit_first(self, target: Hashable, call: TargetCall, now: float) -> float:
        """Return 0 if a first attempt may be made that could be refused, else the seconds until the next probe."""
        with _lock:
            state = self.states.get(target)
            return 0.0 if state is None else state.admit_first(call, now)

    def is_down(self, target: Hashable) -> bool:
        with _lock:
            state = self.states.get(target)
            return state is not None and state.is_down

    def has_token(self, target: Hashable, policy: Policy) -> bool:
        """Return whether a retry may be planned. Whether it is made, `take_turn` decides after its backoff."""
        with _lock:
            state = self.states.get(target)
            return (policy.retry_tokens if state is None else state.tokens) >= 1

    def leave(self, target: Hashable, call: TargetCall) -> None:
        """Forget a call that was cancelled or stopped, so that another one becomes the probe."""
        with _lock:
            state = self.states.get(target)
            if state is not None:
                state.leave(call)

    def _ensure(self, target: Hashable, policy: Policy, now: float) -> TargetState:
        state = self.states.get(target)
        if state is None or self._is_idle(state, now):
            self._forget_idle(now)
            state = self.states[target] = TargetState(policy.retry_tokens)
        state.used_at = now
        return state

    def _forget_idle(self, now: float) -> None:
        """Forget targets without calls, and the one idle longest if there are too many."""
        for target, state in list(self.states.items()):
            if self._is_idle(state, now):
                del self.states[target]
        if len(self.states) >= MAX_TARGETS:
            states = self.states
            del states[min(states, key=lambda target: (bool(states[target].waiting), states[target].used_at))]

    def _is_idle(self, state: TargetState, now: float) -> bool:
        return now - state.used_at > MAX_IDLE_SECONDS and not state.waiting and state.probe is None


def is_limited(failure: Failure) -> bool:
    """Return whether a rate limit or a quota rejected the call: the target works, and a retry costs no token."""
    return failure.kind.is_limit or failure.kind.is_used_up


def is_without_answer(failure: Failure | None) -> bool:
    """Return whether a target gave no answer: no connection, a reset, a timeout or a 5xx.

    A rate limit, a used-up quota and a rejection are answers.
    """
    if failure is None or not failure.is_failure or is_limited(failure):
        return False
    if INFRA_ERROR in failure.evidence:
        return True
    if failure.status is not None:
        return failure.status >= 500 or failure.status == HTTP_REQUEST_TIMEOUT
    return failure.kind.loses_answer


# Which target a call has

HOST_ARGUMENTS = ("url", "uri", "endpoint", "base_url", "api_base", "host", "hostname", "server")
TARGET_ARGUMENTS = (
    *HOST_ARGUMENTS, "dsn", "database", "db", "tenant", "account", "project", "workspace", "region", "bucket",
)  # fmt: skip
"""Arguments that name a target, also with `_id` or `_name` appended."""
_NAME_SUFFIXES = ("_id", "_name")
MAX_TARGET_CHARS = 200
MAX_LABEL_CHARS = 60


def list_target_arguments(names: Mapping[str, Any] | tuple[str, ...]) -> list[str]:
    """Return the arguments that name a target, in the order of `TARGET_ARGUMENTS`."""
    return [
        name
        for argument in TARGET_ARGUMENTS
        for name in (argument, *(f"{argument}{suffix}" for suffix in _NAME_SUFFIXES))
        if name in names
    ]


def target_of(arguments: Mapping[str, Any], names: tuple[str, ...] | None = None) -> str:
    """Return the target of a call from its arguments, such as the host of a `url`, or an empty string.

    `names` are the arguments that the developer declared.
    """
    parts = [
        text
        for name in (list_target_arguments(arguments) if names is None else names)
        if (text := _to_target(name, arguments.get(name)))
    ]
    return " ".join(parts)[:MAX_TARGET_CHARS]


def _to_target(name: str, value: Any) -> str:
    is_name = isinstance(value, str) or (type(value) is int and name not in HOST_ARGUMENTS)
    if not is_name or value == "":
        return ""
    text = str(value)[:500] if isinstance(value, str) else str(value % 10**18)
    if name not in HOST_ARGUMENTS and "://" not in text:
        return text
    host = text.partition("://")[2] or text
    path = "" if name in HOST_ARGUMENTS else host.partition("?")[0].partition("/")[2]  # a DSN: its database too
    host = host.partition("/")[0].rpartition("@")[2].lower() or "-"
    return f"{host}/{path}" if path else host


def describe_target(target: str, name: str) -> str:
    """Return the target of a call as a person reads it: what its arguments name, else the tool."""
    return (target or name)[:MAX_LABEL_CHARS]
