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
"""Tools that are counted one by one; any more share one retry budget, and have no circuit."""
TARGETS = 100
"""Targets of one tool whose circuits are remembered."""
MAX_TALLY_ENTRIES = 2000
"""Entries of one tally in a window. Results that come faster share an entry."""
MAX_NOTES = int(WINDOW) + 10
"""Notes of a guard's success count: one a second, for longer than a window."""
CLOCK_SLACK_SECONDS = 0.25
"""How much later than its own time a thread may count a success."""

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


class Tally:
    """Counts the results of one target in a sliding window.

    Results within `WINDOW / MAX_TALLY_ENTRIES` seconds share an entry, so that memory is bounded at any load. Where the
    window begins within such an entry, its failures do not count: in doubt a circuit stays closed.
    """

    __slots__ = ("_entries", "bad", "good")

    def __init__(self) -> None:
        self._entries: deque[TallyEntry] = deque()
        self.good = 0
        """Other results than infrastructure failures."""
        self.bad = 0
        """Infrastructure failures."""

    def add_result(self, is_bad: bool, now: float) -> None:
        """Count a result at its time."""
        entry = self._entries[-1] if self._entries else None
        if entry is None or now - entry.first_at >= WINDOW / MAX_TALLY_ENTRIES:
            entry = TallyEntry(now)
            self._entries.append(entry)
        entry.first_at, entry.last_at = min(entry.first_at, now), max(entry.last_at, now)
        if is_bad:
            entry.bad += 1
            self.bad += 1
        else:
            entry.good += 1
            self.good += 1

    def drop_before(self, start: float) -> None:
        """Forget what is older than a window that begins then."""
        while self._entries and self._entries[0].last_at < start:
            entry = self._entries.popleft()
            self.good -= entry.good
            self.bad -= entry.bad

    def count_surely_within(self, start: float) -> tuple[int, int]:
        """Count good and bad results that surely lie in a window that begins then. Call `drop_before` first."""
        entry = self._entries[0] if self._entries else None
        if entry is None or entry.first_at >= start:
            return self.good, self.bad
        return self.good - entry.good, self.bad - entry.bad

    def clear(self) -> None:
        """Forget all results."""
        self._entries.clear()
        self.good = self.bad = 0


class TallyEntry:
    """Results that came within a few milliseconds."""

    __slots__ = ("bad", "first_at", "good", "last_at")

    def __init__(self, now: float) -> None:
        self.first_at = self.last_at = now
        self.good = self.bad = 0


class Circuit:
    """The results of one tool at one target, and whether it is left alone for a while."""

    __slots__ = ("probe", "since", "successes_before", "tally", "until", "wait")

    def __init__(self) -> None:
        self.tally = Tally()
        self.since = float("-inf")
        """When it last opened or closed: earlier results do not count any more."""
        self.successes_before = 0
        """Successes of its guard before that, known by number alone."""
        self.until: float | None = None
        """When it may be tried again; None while it is closed."""
        self.wait = OPEN
        self.probe: float | None = None
        """When the one call was let through that decides."""

    def open(self, now: float, successes_before: int) -> None:
        """Open it for as long as `wait` says."""
        self._restart(now, successes_before)
        self.until = now + self.wait

    def close(self, now: float, successes_before: int) -> None:
        """Close it: from now on results count anew."""
        self._restart(now, successes_before)
        self.until, self.wait = None, OPEN

    def _restart(self, now: float, successes_before: int) -> None:
        self.tally.clear()
        self.since, self.successes_before, self.probe = now, successes_before, None


class Guard:
    """What one tool may still do: its first attempts are counted here, its retries and its circuits are kept.

    `made`, `successes`, `tick` and `is_careful` are read and written by every call, without a lock. Python adds to an
    attribute without letting another thread in; where it has no global lock, two threads may lose a count.

    Most successes are counted by number alone, and once a second a note says how many there were. All other results
    come one by one, with their target. A circuit opens only where both together leave no doubt.
    """

    __slots__ = (
        "_bucket",
        "_circuits",
        "_notes",
        "breaks",
        "has_targets",
        "is_careful",
        "made",
        "successes",
        "tick",
    )

    def __init__(self, policy: Policy) -> None:
        self.made = 0
        """First attempts since the beginning."""
        self.successes = 0
        """Successes since the beginning whose target nobody looked at."""
        self.tick = float("-inf")
        """When the next note of these is due."""
        self.is_careful = False
        """Whether a call must be looked at before it is made."""
        self.breaks = policy.breaker
        self.has_targets = False
        """Whether calls may go to several targets: then nobody knows to which one a success belongs that is only a
        number."""
        self._notes: deque[tuple[float, int]] = deque(maxlen=MAX_NOTES)
        self._circuits: dict[str, Circuit] = {}
        self._bucket = Bucket(policy.retry_burst, policy.retry_ratio)

    def note_successes(self, now: float) -> None:
        """Note how many successes there were before one that comes now, a second or more after the last note."""
        self.tick = now + 1.0
        self._notes.append((now, self.successes))

    def count_success(self, now: float) -> None:
        """Count a success by number alone. The way of every first attempt does the same in place."""
        if now >= self.tick:
            self.note_successes(now)
        self.successes += 1

    def count_first_attempt(self) -> None:
        """Count a first attempt that was not counted on its way."""
        self.made += 1

    def _count_noted_successes(self, start: float) -> tuple[int, int]:
        """Count the successes since a time that are known by number alone: at least, and at most."""
        successes = self.successes  # before the notes: a success is noted, then counted
        notes = self._notes.copy()
        first_within = next((count for at, count in notes if at >= start), successes)
        surely_before = self._count_surely_before(start - CLOCK_SLACK_SECONDS, successes, notes)
        return max(0, successes - first_within), max(0, successes - surely_before)

    @staticmethod
    def _count_surely_before(start: float, successes: int, notes: deque[tuple[float, int]]) -> int:
        earlier = later = None
        for note in notes:
            if note[0] > start:
                later = note
                break
            earlier = note
        if earlier is None:
            return 0  # the first success of all makes a note, so there is none before; or notes were dropped
        # Successes after a note came within a second of it: the first one later makes the next note.
        if start < earlier[0] + 1.0:
            return earlier[1]
        return successes if later is None else later[1]

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

    def result(
        self, target: str, is_bad: bool, now: float, *, is_probe: bool = False, is_let_through: bool = False
    ) -> None:
        """An attempt has ended; `is_bad` where the infrastructure failed it.

        `is_let_through` says that it was begun although the circuit was open. Its success closes the circuit like that
        of a probe. Its failure changes nothing: when the circuit may be tried again, the probe decides.
        """
        if not self.breaks:
            return
        with _lock:
            circuit = self._find_circuit(target, now)
            if circuit.until is None:
                circuit.tally.add_result(is_bad, now)
                if is_bad:
                    self._open_if_failing(circuit, now)
            elif (is_probe or is_let_through) and not is_bad:
                circuit.close(now, self.successes)
            elif is_probe:
                circuit.wait = min(LONGEST_OPEN, circuit.wait * 2)
                circuit.open(now, self.successes)
        self.relax(now)

    def let_go(self, target: str, now: float) -> None:
        """The call that was to decide was cancelled: the next one decides."""
        with _lock:
            circuit = self._circuits.get(target)
            if circuit is not None:
                circuit.probe = None

    def _find_circuit(self, target: str, now: float) -> Circuit:
        self.has_targets = self.has_targets or bool(target)
        circuit = self._circuits.get(target)
        if circuit is None:
            if len(self._circuits) >= TARGETS:
                self._drop_circuit(now)
            circuit = self._circuits[target] = Circuit()
        return circuit

    def _drop_circuit(self, now: float) -> None:
        """Make room for another target: one goes that never failed, else the oldest."""
        spare = (
            target for target, circuit in self._circuits.items() if circuit.until is None and not circuit.tally.bad
        )
        circuit = self._circuits.pop(next(spare, next(iter(self._circuits))))
        # Its successes stay, as those of which nobody knows the target.
        if circuit.tally.good:
            self.count_success(now)
            self.successes += circuit.tally.good - 1

    def _open_if_failing(self, circuit: Circuit, now: float) -> None:
        """Open a circuit where surely at least `RESULTS` results came and surely at least `SHARE` of them are bad.

        A success of which nobody knows the target may have been at this one, or not: so it counts for the share alone.
        """
        start = now - WINDOW
        circuit.tally.drop_before(start)
        good, bad = circuit.tally.count_surely_within(start)
        since_restart = self.successes - circuit.successes_before
        least, most = (min(count, since_restart) for count in self._count_noted_successes(start))
        results = good + bad + (0 if self.has_targets else least)
        if results >= RESULTS and bad >= SHARE * (bad + circuit.tally.good + most):
            circuit.open(now, self.successes)

    def relax(self, now: float) -> None:
        """Calls need not be looked at any longer, once nothing is left to look for."""
        with _lock:
            start = now - WINDOW
            is_careful = False
            for target, circuit in list(self._circuits.items()):
                circuit.tally.drop_before(start)
                if circuit.until is not None or (target and circuit.tally.bad):
                    is_careful = True
                elif not circuit.tally.good and not circuit.tally.bad and circuit.since < start:
                    del self._circuits[target]
            self.is_careful = is_careful


class Budget:
    """The retries of a process: of each tool and of all together."""

    def __init__(self, policy: Policy | None = None) -> None:
        policy = policy or Policy()
        self._bucket = Bucket(policy.retry_burst, policy.retry_ratio)
        self._guards: dict[str, Guard] = {}

    def guard(self, key: str, policy: Policy, *, has_targets: bool = False) -> Guard:
        """The guard of a tool, by its key. `has_targets` says that its calls may go to several targets."""
        guard = self._guards.get(key)
        if guard is None:
            with _lock:
                is_shared = len(self._guards) >= TOOLS
                guard = self._guards.setdefault("" if is_shared else key, Guard(policy))
                if is_shared:
                    guard.breaks = False  # a tool that is down would block others
        guard.has_targets = guard.has_targets or has_targets
        guard.breaks = guard.breaks or (policy.breaker and guard is not self._guards.get(""))
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


TARGET_ARGUMENTS = ("url", "uri", "endpoint", "base_url", "api_base", "host", "hostname", "server")


def target_of(arguments: Mapping[str, Any]) -> str:
    """Where a call goes, if its arguments say so: the host of a `url`, the `server`. Else the tool is the target."""
    for name in TARGET_ARGUMENTS:
        value = arguments.get(name)
        if isinstance(value, str) and value:
            host = value[:500].partition("://")[2] or value[:500]
            return host.partition("/")[0].rpartition("@")[2].lower()[:200] or "-"
    return ""


def target_of_model(arguments: Mapping[str, Any], endpoint: str, model: object) -> str:
    """Which model is called and where: one that is down says nothing of the others."""
    return f"{target_of(arguments) or target_of({'url': endpoint})} {model or '-'}"[:200]
