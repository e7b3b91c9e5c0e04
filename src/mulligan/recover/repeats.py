"""The same again: a call that was given up the same way before, and a strategy that fails in ever other words.

Plain data in, a verdict out; the time comes in as an argument. One object a run, made by its first call given up.
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
"""Calls given up that a strategy is looked for in."""
SPIRAL = 4
"""Calls given up of one strategy that make a spiral."""
ALIKE = 0.6
"""How much of the words of two calls must be the same before they are one strategy."""
WORDS = 40
"""Words of a call that are compared."""
READ = 2000
"""Characters of a call in which its words are looked for."""
VISITED = 1000
"""Values of a call in which its words are looked for."""

_encoder = msgspec.json.Encoder(order="sorted")


def key_of(arguments: Mapping[str, Any], owner: object = None) -> Hashable | None:
    """Equal for equal calls; None where nobody can say, because an argument is not plain data.

    `owner` is the object whose method it is.
    """
    try:
        if extent_of(arguments)[1] > ENDLESS:
            return None
        data = _encoder.encode(arguments)
    except Exception:  # noqa: BLE001 - an object of any class: what it is made of may have changed since
        return None
    return len(data), hash(data), 0 if owner is None else id(owner)


@dataclass(slots=True)
class Streak:
    """One call of a tool, given up the same way again and again."""

    key: Hashable
    failure: Failure
    count: int
    at: float


@dataclass(frozen=True, slots=True)
class Spiral:
    """Calls in other words that failed for the same reason."""

    kind: str
    tools: tuple[str, ...]
    count: int


class Repeats:
    """The calls of one run that were given up."""

    __slots__ = ("_failed", "_streaks")

    def __init__(self) -> None:
        self._streaks: dict[str, Streak] = {}
        self._failed: deque[tuple[str, str, frozenset[str]]] = deque(maxlen=FAILED)

    def given_up(self, tool: str, key: Hashable | None, failure: Failure, now: float) -> int:
        """A call of a tool was given up; how often in a row, with the same arguments and in the same way.

        `tool` is the tool's key: two tools of one name have each their own streak.
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
        """What stands against making this call: that it was given up so often, in the same way, and nothing since.

        `tool` is the tool's key.
        """
        streak = self._streaks.get(tool)
        if streak is None:
            return None
        if streak.key != key or _is_over(streak, now):
            del self._streaks[tool]  # other arguments, or time enough: it begins anew
            return None
        return streak if limit and streak.count >= limit else None

    def succeeded(self) -> None:
        """Another call of the run has worked: what failed before may work now."""
        self._streaks.clear()

    def failed_again(self, tool: str, arguments: Mapping[str, Any], failure: Failure) -> Spiral | None:
        """Notes a strategy that has failed; the spiral it is part of, if it is one.

        `tool` is the tool's name: those of sibling tools have words in common.
        """
        if failure.remedy is Remedy.WAIT or not failure.counts:
            return None  # the other side was at fault, and not the strategy
        self._failed.append((tool, str(failure.kind), words_of(arguments)))
        return self.spiral(tool, arguments, str(failure.kind))

    def spiral(self, tool: str, arguments: Mapping[str, Any], kind: str = "") -> Spiral | None:
        """The calls of the same or a sibling tool that were nearly this one and failed for one reason, if many."""
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
    """Where waiting helps, it begins anew after the time in which a circuit counts."""
    return streak.failure.remedy is Remedy.WAIT and now - streak.at >= WINDOW


_WORD = re.compile(r"\w+")
_NAME = re.compile(r"[a-z]+|[A-Z][a-z]*")


def words_of(arguments: Mapping[str, Any]) -> frozenset[str]:
    """The words of a call's values, without what varies from one try to the next: numbers, case, order."""
    found: list[str] = []
    waiting = [arguments]
    for _ in range(VISITED):  # values may hold each other, and no word at all
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
    """Whether two tools are one, or have a word of their names in common: `search_web`, `webSearch`."""
    if one == other:
        return True
    mine, theirs = ({word.casefold() for word in _NAME.findall(name[:200])} for name in (one, other))
    return any(len(word) > 2 for word in mine & theirs)


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 0.0
