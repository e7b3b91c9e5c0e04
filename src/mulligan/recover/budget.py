"""Stops retry storms: a shared allowance of retries, and a circuit for a tool whose other side is down.

Nothing here reads a clock: the time, in seconds of any clock that does not go back, comes in as an argument.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from mulligan import forks
from mulligan.failure import Failure, Remedy
from mulligan.recover.policy import Policy

WINDOW = 30.0
"""Seconds in which the results of a tool are counted."""
RESULTS = 5
"""Results that there must be before they say anything."""
SHARE = 0.5
"""The share of infrastructure failures at which a circuit opens."""
OPEN = 5.0
"""Seconds that a circuit stays open; it doubles with each probe that fails."""
LONGEST_OPEN = 10.0
TOOLS = 1000
"""Tools that are counted one by one; any more share one count."""
TARGETS = 100
"""Targets of one tool whose circuits are remembered."""
KEPT = 2000
"""Results of a target that are remembered; of more, the window begins later."""

_lock = threading.Lock()
"""One for all, held for a few comparisons; a forked child is given a new one."""


def _renew() -> None:
    global _lock  # a thread that held it is not in the child to let go of it
    _lock = threading.Lock()


forks.renew(_renew)


class Bucket:
    """An allowance: a share of a token comes in with each first attempt, each retry takes one.

    In any window no more can be taken than could be saved up before it and came in within it.
    """

    __slots__ = ("_burst", "_counted", "_ratio", "_tokens")

    def __init__(self, burst: float, ratio: float) -> None:
        self._burst = burst
        self._ratio = ratio
        self._tokens = float(burst)
        self._counted = 0

    def has_one(self, firsts: int) -> bool:
        """Whether there is a token, now that so many first attempts were made since the beginning."""
        # Counted when asked: in between nothing is taken, so what comes in together is cut off as if one by one.
        self._tokens = min(self._burst, self._tokens + self._ratio * (firsts - self._counted))
        self._counted = firsts
        return self._tokens >= 1

    def take(self) -> None:
        self._tokens -= 1


class Circuit:
    """The results of one tool at one target, and whether it is left alone for a while."""

    __slots__ = ("failures", "made", "noted", "probe", "until", "wait")

    def __init__(self, made: int) -> None:
        self.made = made
        """First attempts of the tool before it was first heard of."""
        self.failures: deque[float] = deque(maxlen=KEPT)
        self.noted: deque[float] = deque(maxlen=KEPT)
        """When each result came that was counted one by one."""
        self.until: float | None = None
        """When it may be tried again; None while it is closed."""
        self.wait = OPEN
        self.probe: float | None = None
        """When the one call was let through that decides."""

    def forget(self, before: float) -> None:
        for times in (self.failures, self.noted):
            while times and times[0] < before:
                times.popleft()


class Guard:
    """What one tool may still do: its first attempts are counted here, its retries and its circuits are kept.

    `made`, `tick` and `is_careful` are read and written by every call, without a lock: two threads may lose a count
    between them, and then a little less is allowed.
    """

    __slots__ = (
        "_bucket",
        "_circuits",
        "_retries",
        "_seconds",
        "breaks",
        "is_careful",
        "made",
        "tick",
    )

    def __init__(self, policy: Policy) -> None:
        self.made = 0
        """First attempts since the beginning."""
        self.tick = 0.0
        """When the next note of the count is due: one a second says how many there were in any window."""
        self.is_careful = False
        """Whether a call must be looked at before it is made."""
        self.breaks = policy.breaker
        self._seconds: deque[tuple[float, int]] = deque(maxlen=int(WINDOW) + 10)
        self._retries: deque[float] = deque(maxlen=KEPT)
        self._circuits: dict[str, Circuit] = {}
        self._bucket = Bucket(policy.retry_burst, policy.retry_ratio)

    def ticked(self, now: float) -> None:
        """A second has passed since the count was last noted, or more."""
        self._seconds.append((now, self.made))
        self.tick = now + 1.0

    def began(self, now: float) -> None:
        """A first attempt begins that was not counted on its way."""
        self.made += 1
        if now >= self.tick:
            self._seconds.append((now, self.made - 1))
            self.tick = now + 1.0

    def _made_before(self, time: float) -> int:
        """How many first attempts were begun before a time, to the second; rather too few."""
        noted = list(self._seconds)
        before = next(((when, made) for when, made in reversed(noted) if when <= time), None)
        if before is None:
            return 0
        # Those counted after a note were begun within a second of it: the first one later makes the next note.
        if time < before[0] + 1.0:
            return before[1]
        return next((made for when, made in noted if when > time), self.made)

    def is_open(self, target: str, then: float) -> bool:
        """Whether calls will still be kept out then, as far as is known now."""
        with _lock:
            circuit = self._circuits.get(target)
            return circuit is not None and circuit.until is not None and then < circuit.until

    def admit(self, target: str, now: float) -> tuple[float, bool]:
        """Seconds until a call may be made, 0 where it may now; and whether it is the one that decides."""
        with _lock:
            circuit = self._circuits.get(target)
            if circuit is None or circuit.until is None:
                return 0.0, False
            if now < circuit.until:
                return circuit.until - now, False
            # A probe that is never heard of again must not keep everybody out.
            if circuit.probe is not None and now < circuit.probe + LONGEST_OPEN:
                return circuit.probe + LONGEST_OPEN - now, False
            circuit.probe = now
            return 0.0, True

    def result(self, target: str, is_bad: bool, now: float, *, is_retry: bool = False, is_probe: bool = False) -> None:
        """An attempt has ended; `is_bad` where the infrastructure failed it."""
        if not self.breaks:
            return
        with _lock:
            circuit = self._circuits.get(target)
            if is_retry:
                self._retries.append(now)
            if circuit is None:
                if not is_bad:
                    return
                if len(self._circuits) >= TARGETS:
                    self._circuits.pop(next(iter(self._circuits)))
                circuit = self._circuits[target] = Circuit(self.made - 1)
            if is_probe:
                self._probed(target, circuit, is_bad, now)
            elif circuit.until is None:
                circuit.noted.append(now)
                if is_bad:
                    circuit.failures.append(now)
                    self._judge(target, circuit, now)
        self.relax(now)

    def let_go(self, target: str, now: float) -> None:
        """The call that was to decide was cancelled: the next one decides."""
        with _lock:
            circuit = self._circuits.get(target)
            if circuit is not None:
                circuit.probe = None

    def _probed(self, target: str, circuit: Circuit, is_bad: bool, now: float) -> None:
        circuit.probe = None
        if is_bad:
            circuit.wait = min(LONGEST_OPEN, circuit.wait * 2)
            circuit.until = now + circuit.wait
        else:
            del self._circuits[target]

    def _judge(self, target: str, circuit: Circuit, now: float) -> None:
        start = now - WINDOW
        circuit.forget(start)
        if target:
            # Of the time before nobody knows to which target calls went: each may have been to this one.
            results = len(circuit.noted) + max(0, circuit.made - self._made_before(start))
        else:
            results = self.made - self._made_before(start) + sum(time >= start for time in self._retries)
        results = max(results, len(circuit.failures))
        if results >= RESULTS and len(circuit.failures) >= SHARE * results:
            circuit.until = now + circuit.wait
            circuit.failures.clear()
            circuit.noted.clear()

    def relax(self, now: float) -> None:
        """Calls need not be looked at any longer, once nothing is left to look for."""
        with _lock:
            for target, circuit in list(self._circuits.items()):
                if circuit.until is None:
                    circuit.forget(now - WINDOW)
                    if not circuit.failures:
                        del self._circuits[target]
            self.is_careful = any(target or circuit.until is not None for target, circuit in self._circuits.items())


class Budget:
    """The retries of a process: of each tool and of all together."""

    def __init__(self, policy: Policy | None = None) -> None:
        policy = policy or Policy()
        self._bucket = Bucket(policy.retry_burst, policy.retry_ratio)
        self._guards: dict[str, Guard] = {}

    def guard(self, name: str, policy: Policy) -> Guard:
        """The guard of a tool, by its name."""
        guard = self._guards.get(name)
        if guard is None:
            with _lock:
                if len(self._guards) >= TOOLS:
                    name = ""
                guard = self._guards.setdefault(name, Guard(policy))
        return guard

    def spend(self, guard: Guard) -> str:
        """Takes one retry, of the tool and of the process; empty, or whose allowance is used up."""
        with _lock:
            if not guard._bucket.has_one(guard.made):
                return "its budget of retries is used up"
            if not self._bucket.has_one(sum(each.made for each in self._guards.values())):
                return "the budget of retries of this process is used up"
            guard._bucket.take()
            self._bucket.take()
        return ""


def is_infrastructure(failure: Failure | None) -> bool:
    """Whether the other side failed. A model's mistake does not count; a rate limit says itself when to come back."""
    if failure is None or not failure.counts or failure.kind.code == "rate_limit":
        return False
    return failure.remedy is Remedy.WAIT or "InfraError" in failure.evidence


_TARGETS = ("url", "uri", "endpoint", "base_url", "api_base", "host", "hostname", "server")


def target_of(arguments: Mapping[str, Any]) -> str:
    """Where a call goes, if its arguments say so: the host of a `url`, the `server`. Else the tool is the target."""
    for name in _TARGETS:
        value = arguments.get(name)
        if isinstance(value, str) and value:
            host = value[:500].partition("://")[2] or value[:500]
            return host.partition("/")[0].rpartition("@")[2].lower()[:200] or "-"
    return ""


def target_of_model(arguments: Mapping[str, Any], endpoint: str, model: object) -> str:
    """Which model is called and where: one that is down says nothing of the others."""
    return f"{target_of(arguments) or target_of({'url': endpoint})} {model or '-'}"[:200]
