"""Retry budgets and circuit breakers, which limit retries to failing tools.

Nothing here reads a clock: callers pass the time in seconds of any monotonic clock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mulligan.core import fork_safety
from mulligan.core.failure import INFRA_ERROR, Failure, Remedy
from mulligan.recover.policy import Policy

CIRCUIT_WINDOW_SECONDS = 30.0
"""Length of the sliding window in which results of a tool count."""
MIN_CIRCUIT_RESULTS = 5
"""Results required in the window before a circuit breaker can open."""
CIRCUIT_FAILURE_RATIO = 0.5
"""Share of infrastructure failures at which a circuit breaker opens."""
CIRCUIT_OPEN_SECONDS = 5.0
"""How long a circuit breaker stays open. It doubles with each failed probe."""
MAX_CIRCUIT_OPEN_SECONDS = 10.0
MAX_TRACKED_TOOLS = 1000
"""Tools with their own limits. Further tools share one retry budget and have no circuit breaker."""
MAX_TRACKED_TARGETS = 100
"""Targets of one tool with their own circuit breaker."""
MAX_WINDOW_ENTRIES = 2000
"""Entries in a result window. Results that arrive faster share an entry."""
MAX_SUCCESS_MARKS = int(CIRCUIT_WINDOW_SECONDS) + 10
"""Marks of a tool's successes: one per second, for longer than a window."""
BUDGET_SETTINGS = "(settings retry_budget_burst and retry_budget_ratio)"
TOOL_BUDGET_EXHAUSTED = f"the retry budget of the tool is used up {BUDGET_SETTINGS}"
PROCESS_BUDGET_EXHAUSTED = f"the retry budget of the process is used up {BUDGET_SETTINGS}"
CLOCK_SLACK_SECONDS = 0.25
"""How much later than its own timestamp a thread may count a success."""

_lock = threading.Lock()
"""One lock for all limits, held for a few comparisons. A forked child gets a new one."""


def _reset_lock_in_child() -> None:
    global _lock  # the thread that held the lock does not exist in the child
    _lock = threading.Lock()


fork_safety.run_in_child(_reset_lock_in_child)


class TokenBucket:
    """Token bucket: each first attempt adds a fraction of a token, each retry takes one.

    In any window, retries are bounded by the burst plus the tokens added within the window.
    """

    __slots__ = ("_burst", "_counted_first_attempts", "_ratio", "_tokens")

    def __init__(self, burst: float, ratio: float) -> None:
        self._burst = burst
        self._ratio = ratio
        self._tokens = float(burst)
        self._counted_first_attempts = 0

    def has_token(self, first_attempts: int) -> bool:
        """Return whether a token is available, given the total number of first attempts so far."""
        # Refill lazily. No token is taken in between, so capping the sum equals capping each refill.
        self._tokens = min(self._burst, self._tokens + self._ratio * (first_attempts - self._counted_first_attempts))
        self._counted_first_attempts = first_attempts
        return self._tokens >= 1

    def take(self) -> None:
        self._tokens -= 1


class CircuitBreaker:
    """Circuit breaker of one tool at one target, with its results in a sliding window.

    Results within `CIRCUIT_WINDOW_SECONDS / MAX_WINDOW_ENTRIES` seconds share an entry, which bounds memory at any
    load. If the window begins inside such an entry, its failures do not count, so that in doubt the circuit breaker
    stays closed.
    """

    __slots__ = ("bad", "earlier_successes", "entries", "good", "open_seconds", "probe", "since", "until")

    def __init__(self) -> None:
        self.entries: deque[_WindowEntry] = deque()
        self.good = self.bad = 0
        """Results in the window: infrastructure failures are bad, all others good."""
        self.since = float("-inf")
        """When it last opened or closed. Earlier results do not count."""
        self.earlier_successes = 0
        """Earlier ones in marks that later successes share, or may seem to."""
        self.until: float | None = None
        """When a probe is allowed, or None while closed."""
        self.open_seconds = CIRCUIT_OPEN_SECONDS
        self.probe: float | None = None
        """When the probe was admitted, or None."""

    def restart(self, now: float, open_seconds: float | None = None) -> None:
        """Open for this many seconds, or close if it is None. Counting restarts in both cases."""
        self.entries.clear()
        self.good = self.bad = 0
        self.since, self.probe = now, None
        self.until = None if open_seconds is None else now + open_seconds
        self.open_seconds = open_seconds or CIRCUIT_OPEN_SECONDS

    def add_result(self, is_bad: bool, now: float) -> None:
        """Count a result at its time."""
        if not self.entries or now - self.entries[-1].first_at >= CIRCUIT_WINDOW_SECONDS / MAX_WINDOW_ENTRIES:
            self.entries.append(_WindowEntry(now, now))
        entry = self.entries[-1]
        entry.first_at, entry.last_at = min(entry.first_at, now), max(entry.last_at, now)
        entry.bad += is_bad
        entry.good += not is_bad
        self.bad += is_bad
        self.good += not is_bad

    def remove_failure(self, at: float) -> None:
        """Remove a counted failure of this time, if it is still in the window."""
        for entry in reversed(self.entries):
            if entry.first_at <= at <= entry.last_at and entry.bad:
                entry.bad -= 1
                self.bad -= 1
                return

    def drop_before(self, start: float) -> None:
        """Drop entries that are older than the start of the window."""
        while self.entries and self.entries[0].last_at < start:
            entry = self.entries.popleft()
            self.good -= entry.good
            self.bad -= entry.bad


class _WindowEntry(msgspec.Struct):
    """Results that arrived within a few milliseconds."""

    first_at: float
    last_at: float
    good: int = 0
    bad: int = 0


class _SuccessMark(msgspec.Struct):
    """Successes within a second of the first one, whose targets were not resolved."""

    at: float
    count: int = 0


class ToolLimits:
    """Limits of one tool: its count of first attempts, its retry tokens and its circuit breakers.

    Every call reads and writes `first_attempts`, `last_mark` and `needs_admission_check` without a lock. With the GIL,
    adding to an attribute is not interrupted here; without it, concurrent threads may lose a count.

    Most successes are only counted, second by second. All other results are recorded with their target. A circuit
    breaker opens only if both together leave no doubt.
    """

    __slots__ = (
        "circuits",
        "first_attempts",
        "has_circuit_breaker",
        "has_targets",
        "last_mark",
        "needs_admission_check",
        "retry_tokens",
        "success_marks",
    )

    def __init__(self, policy: Policy) -> None:
        self.first_attempts = 0
        """First attempts since the start."""
        self.last_mark = _SuccessMark(float("-inf"))
        self.success_marks: deque[_SuccessMark] = deque(maxlen=MAX_SUCCESS_MARKS)
        self.needs_admission_check = False
        """Whether a call must be admitted before it is made."""
        self.has_circuit_breaker = policy.circuit_breaker
        self.has_targets = False
        """Whether calls may go to several targets. A success that was only counted then has no known target."""
        self.circuits: dict[str, CircuitBreaker] = {}
        self.retry_tokens = TokenBucket(policy.retry_budget_burst, policy.retry_budget_ratio)

    def count_success(self, now: float, count: int = 1) -> None:
        """Count a success without its target."""
        if now >= self.last_mark.at + 1.0:
            self.last_mark = _SuccessMark(now)
            self.success_marks.append(self.last_mark)
        self.last_mark.count += count

    def count_first_attempt(self) -> None:
        """Count a first attempt that was not counted inline."""
        self.first_attempts += 1

    def is_open(self, target: str, then: float) -> bool:
        """Return whether the circuit breaker will still be open at a time, as far as is known now."""
        with _lock:
            circuit = self.circuits.get(target)
            return circuit is not None and circuit.until is not None and then < circuit.until

    def admit(self, target: str, now: float) -> tuple[float, bool]:
        """Return the seconds until a call is allowed, 0 if it is now, and whether the call is the probe."""
        with _lock:
            circuit = self.circuits.get(target)
            if circuit is None or circuit.until is None:
                return 0.0, False
            # A probe that never reports must not block calls forever.
            probe_end = circuit.until if circuit.probe is None else circuit.probe + MAX_CIRCUIT_OPEN_SECONDS
            if now < probe_end:
                return probe_end - now, False
            circuit.probe = now
            return 0.0, True

    def record_result(
        self,
        target: str,
        is_bad: bool,
        now: float,
        *,
        is_probe: bool = False,
        is_let_through: bool = False,
        recovered_failures: Iterable[float] = (),
    ) -> None:
        """Record the result of an attempt. `is_bad` means an infrastructure failure.

        `is_let_through` means that the attempt was made although the circuit breaker was open. Its success closes the
        circuit breaker like that of a probe. Its failure changes nothing: the next probe decides.

        `recovered_failures` are the times of earlier failures of the same call, which this result recovered. They no
        longer count: a target that answers retries is not down.
        """
        if not self.has_circuit_breaker:
            return
        with _lock:
            circuit = self._find_circuit(target, now)
            if circuit.until is None:
                for at in recovered_failures:
                    circuit.remove_failure(at)
                circuit.add_result(is_bad, now)
                if is_bad and self._is_failing(circuit, now):
                    circuit.restart(now, circuit.open_seconds)
            elif (is_probe or is_let_through) and not is_bad:
                circuit.restart(now)
            elif is_probe:
                circuit.restart(now, min(MAX_CIRCUIT_OPEN_SECONDS, circuit.open_seconds * 2))
            if circuit.since == now:
                circuit.earlier_successes = self._count_possible_successes(now)
        self.expire_circuits(now)

    def release_probe(self, target: str) -> None:
        """Release the probe slot of a cancelled call, so that the next call becomes the probe."""
        with _lock:
            circuit = self.circuits.get(target)
            if circuit is not None:
                circuit.probe = None

    def _find_circuit(self, target: str, now: float) -> CircuitBreaker:
        self.has_targets = self.has_targets or bool(target)
        if target not in self.circuits:
            if len(self.circuits) >= MAX_TRACKED_TARGETS:
                # Drop a closed one without failures, else the oldest. Its successes stay, without a target.
                spare = (name for name, circuit in self.circuits.items() if circuit.until is None and not circuit.bad)
                dropped_circuit = self.circuits.pop(next(spare, next(iter(self.circuits))))
                if dropped_circuit.good:
                    self.count_success(now, dropped_circuit.good)
            self.circuits[target] = CircuitBreaker()
        return self.circuits[target]

    def _is_failing(self, circuit: CircuitBreaker, now: float) -> bool:
        """Return whether enough results in the window are certain, and enough of all possible ones are failures.

        The limits are `MIN_CIRCUIT_RESULTS` and `CIRCUIT_FAILURE_RATIO`. A success without a known target may belong to
        this one, so it counts only against the ratio.
        """
        start = now - CIRCUIT_WINDOW_SECONDS
        circuit.drop_before(start)
        good, bad = circuit.good, circuit.bad
        first_entry = circuit.entries[0] if circuit.entries else None
        if first_entry is not None and first_entry.first_at < start:  # the window begins inside of it
            good, bad = good - first_entry.good, bad - first_entry.bad
        marks, begin = self.success_marks.copy(), max(start, circuit.since)
        min_successes = sum(mark.count for mark in marks if mark.at >= start and mark.at > circuit.since)
        max_successes = self._count_possible_successes(begin)
        if begin == circuit.since:
            max_successes = max(0, max_successes - circuit.earlier_successes)
        results = good + bad + (0 if self.has_targets else min_successes)
        all_results = bad + circuit.good + max_successes
        return results >= MIN_CIRCUIT_RESULTS and bad >= CIRCUIT_FAILURE_RATIO * all_results

    def _count_possible_successes(self, begin: float) -> int:
        """Return how many successes without a known target there were since a time at most."""
        return sum(mark.count for mark in self.success_marks.copy() if mark.at + 1.0 + CLOCK_SLACK_SECONDS >= begin)

    def expire_circuits(self, now: float) -> None:
        """Drop idle circuit breakers, and skip the admission check once none is open or failing."""
        with _lock:
            start = now - CIRCUIT_WINDOW_SECONDS
            needs_admission_check = False
            for target, circuit in list(self.circuits.items()):
                circuit.drop_before(start)
                if circuit.until is not None or (target and circuit.bad):
                    needs_admission_check = True
                elif not circuit.good and not circuit.bad and circuit.since < start:
                    del self.circuits[target]
            self.needs_admission_check = needs_admission_check


class RetryBudget:
    """Retry budget of a process: one per tool and one for all tools together."""

    def __init__(self, policy: Policy | None = None) -> None:
        policy = policy or Policy()
        self._bucket = TokenBucket(policy.retry_budget_burst, policy.retry_budget_ratio)
        self._limits: dict[str, ToolLimits] = {}

    def limits_for(self, key: str, policy: Policy, *, has_targets: bool = False) -> ToolLimits:
        """Return the limits of a tool by its key. `has_targets` means that its calls may go to several targets."""
        limits = self._limits.get(key)
        if limits is None:
            with _lock:
                is_shared = len(self._limits) >= MAX_TRACKED_TOOLS
                limits = self._limits.setdefault("" if is_shared else key, ToolLimits(policy))
                if is_shared:
                    limits.has_circuit_breaker = False  # shared limits: one failing tool would block the others
        limits.has_targets = limits.has_targets or has_targets
        limits.has_circuit_breaker = limits.has_circuit_breaker or (
            policy.circuit_breaker and limits is not self._limits.get("")
        )
        return limits

    def take_retry(self, tool_limits: ToolLimits) -> str:
        """Take one retry from the budgets of the tool and the process. Return why it is denied, or an empty string."""
        with _lock:
            if not tool_limits.retry_tokens.has_token(tool_limits.first_attempts):
                return TOOL_BUDGET_EXHAUSTED
            if not self._bucket.has_token(sum(limits.first_attempts for limits in self._limits.values())):
                return PROCESS_BUDGET_EXHAUSTED
            tool_limits.retry_tokens.take()
            self._bucket.take()
        return ""


def is_infrastructure(failure: Failure | None) -> bool:
    """Return whether the service failed. Wrong arguments do not count, nor rate limits, which state their own delay."""
    if failure is None or not failure.is_failure or failure.kind.is_limit:
        return False
    return failure.remedy is Remedy.RETRY or INFRA_ERROR in failure.evidence


TARGET_ARGUMENTS = ("url", "uri", "endpoint", "base_url", "api_base", "host", "hostname", "server")


def target_of(arguments: Mapping[str, Any]) -> str:
    """Return the target of a call from its arguments, such as the host of a `url`, or an empty string."""
    for name in TARGET_ARGUMENTS:
        value = arguments.get(name)
        if isinstance(value, str) and value:
            host = value[:500].partition("://")[2] or value[:500]
            return host.partition("/")[0].rpartition("@")[2].lower()[:200] or "-"
    return ""


def target_of_model(arguments: Mapping[str, Any], endpoint: str, model: object) -> str:
    """Return the target of a model call: endpoint and model. An outage of one model says nothing about others."""
    return f"{target_of(arguments) or target_of({'url': endpoint})} {model or '-'}"[:200]
