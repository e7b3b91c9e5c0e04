"""Loop detection: identical failures of one call, and spirals of one strategy with varied arguments.

Pure: callers pass the time. Each run has one detector, created at its first unrecovered call.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from mulligan.core.argument_comparison import scalars
from mulligan.core.failure import Failure, Remedy
from mulligan.recover.schema import MAX_CALL_VALUES, measure_extent

MAX_POLLS = 20
"""Failures that time may cure, or of a poller, which differ in their numbers, before the call is blocked."""
MIN_POLL_SECONDS = 30.0
"""Identical calls that are as far apart are no loop."""
MIN_SPIRAL_FAILURES = 4
"""Unrecovered calls of one strategy that make a spiral."""
MAX_WORD_SOURCE_CHARS = 2000
"""Characters of a text in which words are searched."""

_encoder = msgspec.json.Encoder(order="sorted")


def call_key(arguments: Mapping[str, Any], owner: object = None) -> Hashable | None:
    """Return a key that is equal for equal calls, or None if an argument is not plain data.

    `owner` is the object whose method is called.
    """
    try:
        if measure_extent(arguments)[1] > MAX_CALL_VALUES:
            return None
        data = _encoder.encode(arguments)
    except Exception:  # noqa: BLE001 - foreign object, which may have changed since the call
        return None
    return len(data), hash(data), 0 if owner is None else id(owner)


@dataclass(slots=True)
class IdenticalFailure:
    """A call that failed the same way several times in a row."""

    key: Hashable
    failure: Failure
    count: int
    """Failures with equal texts, except for ids, times and durations."""
    poll_count: int
    """Failures with texts that may differ in their numbers."""
    at: float

    def count_repetitions(self, limit: int) -> int:
        """Return how often the call was repeated in vain, or 0 if the same call may succeed later."""
        if self.poll_count >= max(limit, MAX_POLLS):
            return self.poll_count
        return 0 if self.poll_count > self.count or _may_clear(self.failure) else self.count


@dataclass(frozen=True, slots=True)
class Spiral:
    """Calls with varied arguments that failed for the same reason."""

    kind: str
    tools: tuple[str, ...]
    count: int


class LoopDetector:
    """Detector of identical failures and spirals in one run."""

    __slots__ = ("_failed", "_streaks")

    def __init__(self) -> None:
        self._streaks: dict[str, IdenticalFailure] = {}
        # Unrecovered calls that are searched for a spiral.
        self._failed: deque[tuple[str, str, frozenset[str]]] = deque(maxlen=12)

    def record_unrecovered(self, tool: str, key: Hashable | None, failure: Failure, now: float, limit: int = 0) -> int:
        """Record an unrecovered call. Return how many times in a row it failed the same way with the same arguments.

        `tool` is the tool's key: two tools with one name are counted separately.
        """
        previous = self._streaks.pop(tool, None)
        if key is None:
            return 0
        count = poll_count = 1
        is_recent = previous is not None and previous.key == key and now - previous.at < MIN_POLL_SECONDS
        if previous is not None and is_recent and previous.failure.fingerprint == failure.fingerprint != "":
            poll_count = previous.poll_count + 1
            count = previous.count + 1 if _has_equal_text(previous.failure, failure) else 1
        streak = self._streaks[tool] = IdenticalFailure(key, failure, count, poll_count, now)
        return streak.count_repetitions(limit)

    def find_blocking_failure(self, tool: str, key: Hashable | None, now: float, limit: int) -> IdenticalFailure | None:
        """Return the identical failure that blocks this call, or None. `tool` is the tool's key."""
        streak = self._streaks.get(tool)
        if streak is None:
            return None
        if streak.key != key or now - streak.at >= MIN_POLL_SECONDS:
            self._streaks.pop(tool, None)  # other arguments, or enough time has passed
            return None
        return streak if limit and streak.count_repetitions(limit) >= limit else None

    def record_success(self) -> None:
        """Reset identical failures: after another success the same call may succeed."""
        self._streaks.clear()

    def record_strategy_failure(self, tool: str, arguments: Mapping[str, Any], failure: Failure) -> Spiral | None:
        """Record a failed strategy. Return the spiral that it belongs to, if any.

        `tool` is the tool's name, which shares words with those of sibling tools.
        """
        if failure.remedy is Remedy.RETRY or not failure.is_failure:
            return None  # the service failed, not the strategy
        self._failed.append((tool, str(failure.kind), extract_words(arguments)))
        return self.find_spiral(tool, arguments, str(failure.kind))

    def find_spiral(self, tool: str, arguments: Mapping[str, Any], kind: str = "") -> Spiral | None:
        """Return the spiral of similar calls to the same or a sibling tool with one kind of failure, or None."""
        words = extract_words(arguments)
        failed_calls = tuple(self._failed)  # other threads of the run add to it
        for reason in dict.fromkeys([kind] if kind else [failed_call[1] for failed_call in failed_calls]):
            # Minimum word overlap of two calls of one strategy.
            similar_tools = [
                name
                for name, failed_kind, others in failed_calls
                if failed_kind == reason
                and are_siblings(name, tool)
                and len(words & others) >= 0.6 * max(len(words | others), 1)
            ]
            if len(similar_tools) >= MIN_SPIRAL_FAILURES:
                return Spiral(reason, tuple(dict.fromkeys(similar_tools)), len(similar_tools))
        return None


_IN_PROGRESS = (  # compiled on first use
    r"\bnot (?:yet )?(?:been )?(?:ready|finished|complete|completed|done)\b|\b(?:is|are) (?:not )?(?:yet )?pending\b"
    r"|\bstill (?:\w{1,20} )?(?:running|processing|pending|working|building|loading|queued|starting|in progress)\b"
    r"|\bin progress\b|\bbeing (?:prepared|processed|generated|created|built|indexed|uploaded)\b"
)


def _may_clear(failure: Failure) -> bool:
    """Return whether the same call may succeed later: the service is down or busy, or says that it is under way."""
    if failure.remedy is Remedy.RETRY and failure.kind.is_cured_by_time:
        return True
    return re.search(_IN_PROGRESS, failure.message[:MAX_WORD_SOURCE_CHARS], re.IGNORECASE) is not None


_ACCIDENTAL = (  # compiled on first use: what differs between two equal failures
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b(?=[a-z0-9]{0,40}[a-f])(?=[a-z0-9]{0,40}\d)[0-9a-f]{8,64}\b"
    r"|\d{4}-\d\d-\d\d[T ][\d:.Z+]{1,40}|\b\d{1,20}\.\d{1,20} ?m?s(?:econds)?\b|\b0x[0-9a-f]{1,32}\b"
)


def _has_equal_text(left: Failure, right: Failure) -> bool:
    """Return whether two failures have equal texts except for ids, times and durations."""
    if left.message == right.message:
        return True
    texts = [
        re.sub(_ACCIDENTAL, "#", failure.message[:MAX_WORD_SOURCE_CHARS], flags=re.IGNORECASE)
        for failure in (left, right)
    ]
    return texts[0] == texts[1]


_WORD = re.compile(r"\w+")
_NAME = re.compile(r"[a-z]+|[A-Z][a-z]*")


def extract_words(arguments: Mapping[str, Any]) -> frozenset[str]:
    """Return the words of a call's values, without numbers, case and order."""
    texts = (text[:MAX_WORD_SOURCE_CHARS].casefold() for text in scalars(arguments))
    words = (word for text in texts for word in _WORD.findall(text) if not word.isdigit())
    # Words of a call that are compared.
    return frozenset(islice(words, 40))


def are_siblings(one: str, other: str) -> bool:
    """Return whether two tools are equal or share a word of their names: `search_web`, `webSearch`."""
    if one == other:
        return True
    own_words, other_words = ({word.casefold() for word in _NAME.findall(name[:200])} for name in (one, other))
    return any(len(word) > 2 for word in own_words & other_words)
