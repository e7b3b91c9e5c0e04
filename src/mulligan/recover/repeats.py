"""Loop detection: identical failures of one call, and spirals of one strategy with varied arguments.

Pure: callers pass the time. Each run has one detector, created at its first unrecovered call.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from mulligan.failure import Failure, Remedy
from mulligan.recover.budget import WINDOW
from mulligan.recover.cost import ENDLESS, extent_of

FAILED = 12
"""Unrecovered calls that are searched for a spiral."""
SPIRAL = 4
"""Unrecovered calls of one strategy that make a spiral."""
ALIKE = 0.6
"""Minimum word overlap of two calls of one strategy."""
WORDS = 40
"""Words of a call that are compared."""
READ = 2000
"""Characters of a text in which words are searched."""
VISITED = 1000
"""Values of a call in which words are searched."""

_encoder = msgspec.json.Encoder(order="sorted")


def key_of(arguments: Mapping[str, Any], owner: object = None) -> Hashable | None:
    """Return a key that is equal for equal calls, or None if an argument is not plain data.

    `owner` is the object whose method is called.
    """
    try:
        if extent_of(arguments)[1] > ENDLESS:
            return None
        data = _encoder.encode(arguments)
    except Exception:  # noqa: BLE001 - foreign object, which may have changed since the call
        return None
    return len(data), hash(data), 0 if owner is None else id(owner)


@dataclass(slots=True)
class Streak:
    """A call that failed the same way several times in a row."""

    key: Hashable
    failure: Failure
    count: int
    at: float


@dataclass(frozen=True, slots=True)
class Spiral:
    """Calls with varied arguments that failed for the same reason."""

    kind: str
    tools: tuple[str, ...]
    count: int


class Repeats:
    """Detector of identical failures and spirals in one run."""

    __slots__ = ("_failed", "_streaks")

    def __init__(self) -> None:
        self._streaks: dict[str, Streak] = {}
        self._failed: deque[tuple[str, str, frozenset[str]]] = deque(maxlen=FAILED)

    def given_up(self, tool: str, key: Hashable | None, failure: Failure, now: float) -> int:
        """Record an unrecovered call. Return how many times in a row it failed the same way with the same arguments.

        `tool` is the tool's key: two tools with one name are counted separately.
        """
        before = self._streaks.pop(tool, None)
        if key is None:
            return 0
        is_same = (
            before is not None
            and before.key == key
            and bool(failure.fingerprint)
            and before.failure.fingerprint == failure.fingerprint
            and not _is_over(before, now)
        )
        count = before.count + 1 if before is not None and is_same else 1
        self._streaks[tool] = Streak(key, failure, count, now)
        return count

    def blocking(self, tool: str, key: Hashable | None, now: float, limit: int) -> Streak | None:
        """Return the identical failure that blocks this call, or None.

        `tool` is the tool's key.
        """
        streak = self._streaks.get(tool)
        if streak is None:
            return None
        if streak.key != key or _is_over(streak, now):
            del self._streaks[tool]  # other arguments, or enough time has passed
            return None
        return streak if limit and streak.count >= limit else None

    def succeeded(self) -> None:
        """Reset identical failures: after another success the same call may succeed."""
        self._streaks.clear()

    def failed_again(self, tool: str, arguments: Mapping[str, Any], failure: Failure) -> Spiral | None:
        """Record a failed strategy. Return the spiral that it belongs to, if any.

        `tool` is the tool's name, which shares words with those of sibling tools.
        """
        if failure.remedy is Remedy.WAIT or not failure.counts:
            return None  # the service failed, not the strategy
        self._failed.append((tool, str(failure.kind), words_of(arguments)))
        return self.spiral(tool, arguments, str(failure.kind))

    def spiral(self, tool: str, arguments: Mapping[str, Any], kind: str = "") -> Spiral | None:
        """Return the spiral of similar calls to the same or a sibling tool with one kind of failure, or None."""
        words = words_of(arguments)
        for reason in dict.fromkeys([kind] if kind else [each[1] for each in self._failed]):
            alike = [
                name
                for name, why, others in self._failed
                if why == reason and are_siblings(name, tool) and _overlap(words, others) >= ALIKE
            ]
            if len(alike) >= SPIRAL:
                return Spiral(reason, tuple(dict.fromkeys(alike)), len(alike))
        return None


def _is_over(streak: Streak, now: float) -> bool:
    """Return whether a retryable failure is older than the circuit breaker's window."""
    return streak.failure.remedy is Remedy.WAIT and now - streak.at >= WINDOW


_WORD = re.compile(r"\w+")
_NAME = re.compile(r"[a-z]+|[A-Z][a-z]*")


def words_of(arguments: Mapping[str, Any]) -> frozenset[str]:
    """Return the words of a call's values, without numbers, case and order."""
    found: list[str] = []
    waiting = [arguments]
    for _ in range(VISITED):  # values may contain each other without any word
        if not waiting or len(found) >= WORDS:
            break
        value: Any = waiting.pop()
        if isinstance(value, Mapping):
            waiting.extend(list(value.values())[:WORDS])
        elif isinstance(value, list | tuple):
            waiting.extend(value[:WORDS])
        elif isinstance(value, str):
            found.extend(word for word in _WORD.findall(value[:READ].casefold()) if not word.isdigit())
    return frozenset(found[:WORDS])


def are_siblings(one: str, other: str) -> bool:
    """Return whether two tools are equal or share a word of their names: `search_web`, `webSearch`."""
    if one == other:
        return True
    mine, theirs = ({word.casefold() for word in _NAME.findall(name[:200])} for name in (one, other))
    return any(len(word) > 2 for word in mine & theirs)


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 0.0
