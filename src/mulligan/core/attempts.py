"""Attempts that a program recorded as steps of their own: which of them are one call.

A step continues a call if it names the call, or if its attempt number or the end of its name (`fetch_attempt_2`,
`fetch-retry-1`, `fetch (retry 1)`) says that it is a later attempt. Equal arguments alone make no call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from mulligan.core.calls import diff_arguments
from mulligan.core.failure import Remedy
from mulligan.core.records import PROGRAM, Recovery, Step
from mulligan.redaction.regex import LazyRegex

SENT_NAME = "sent_name"
"""The key in a step's metadata of the name that it was sent with, if that has a suffix."""
SENT_RANK = "sent_attempt"
"""The key in a step's metadata of the number of its attempt as text, if it was sent without its call."""
_SUFFIX_ENDS = frozenset("0123456789)]")
_SUFFIX = LazyRegex(r"[\s_.:/-]+[(\[]?(attempt|retry)[\s_.:#-]*(\d{1,3})[)\]]?\Z", re.ASCII | re.IGNORECASE)


class AttemptName(NamedTuple):
    """A step's name without the suffix that numbers its attempt."""

    name: str
    rank: int
    """Position among the attempts: higher than that of the attempt before. A first one may be 0 or 1."""

    @property
    def number(self) -> int:
        return max(self.rank, 1)


def parse_attempt_name(name: str) -> AttemptName | None:
    """Return the parts of a name such as `fetch_attempt_2`; None if it has no such suffix."""
    if name[-1:] not in _SUFFIX_ENDS:
        return None
    match = _SUFFIX.search(name, max(0, len(name) - 24))
    if match is None or match.start() == 0:
        return None
    is_retry = match[1].lower() == "retry"  # the first retry is the second attempt
    return AttemptName(name[: match.start()], int(match[2]) + is_retry)


def mark_attempt(step: Step, rank: int | None = None) -> Step:
    """Return a step that was sent without its call with the name of its call, and with the rank of its attempt.

    The rank stays in the metadata: an attempt may arrive before the one that it continues.
    """
    parsed = parse_attempt_name(step.name)
    metadata = dict(step.metadata or {})
    if parsed is not None:
        metadata[SENT_NAME] = step.name
        rank = parsed.rank if rank is None else rank
        step = replace(step, name=parsed.name)
    if rank is not None and step.call == step.seq:
        metadata[SENT_RANK] = str(rank)
        step = replace(step, attempt=max(rank, 1))
    return replace(step, metadata=metadata) if metadata else step


def sent_name(step: Step) -> str:
    """Return the name with which a step was sent."""
    name = (step.metadata or {}).get(SENT_NAME)
    return name if isinstance(name, str) else step.name


def is_marked(step: Step) -> bool:
    """Return whether a step was sent as an attempt without its call."""
    return bool(step.metadata) and SENT_RANK in (step.metadata or {})


def without_marks(metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the metadata that a sender set."""
    return {name: value for name, value in (metadata or {}).items() if name not in (SENT_NAME, SENT_RANK)} or None


def continue_call(step: Step, before: Step) -> Step:
    """Return a step as a later attempt of the call whose latest attempt is `before`.

    The program made this attempt itself, unless the step has a recovery by mulligan.
    """
    recovery = step.recovery
    if recovery is None or recovery.source == PROGRAM:
        changes = diff_arguments(before.arguments, step.arguments)
        remedy = Remedy.REPAIR if changes else Remedy.RETRY
        seconds = max(0.0, (step.started_at - before.started_at) / 1000 - before.duration_seconds)
        # Whether `before` has failed may be recorded later.
        recovery = Recovery(remedy=remedy, backoff_seconds=round(seconds, 6), changes=changes, source=PROGRAM)
    # A number that was sent stays, unless it cannot be right.
    attempt = step.attempt if step.attempt > before.attempt else before.attempt + 1
    return replace(step, call=before.call, attempt=attempt, recovery=recovery)


class AttemptTracker:
    """Finds the call that a step continues, among the steps before it."""

    def __init__(self, max_calls: int | None = None) -> None:
        self._max_calls = max_calls
        """How many calls are remembered, the latest; None for all."""
        self._latest: dict[tuple[object, ...], tuple[Step, int]] = {}
        """By parent, type and tool: the latest attempt of any call, and its rank."""
        self._by_call: dict[int, Step] = {}
        self._calls: dict[int, int] = {}
        """The calls of attempts after the first one, by number."""

    def add(self, step: Step, rank: int | None = None) -> Step:
        """Return the step as an attempt of its call. Add the steps in their order.

        `rank` is the attempt number that a program counts, if it may count from 0.
        """
        key = step.parent, step.type, step.server, step.name
        rank = _read_sent_rank(step) if rank is None else rank
        if step.call != step.seq:
            before = self._by_call.get(self._calls.get(step.call, step.call))
        else:
            before, before_rank = self._latest.get(key, (None, 0))
            before = before if rank is not None and rank > before_rank else None
        if before is not None:
            step = continue_call(step, before)
            self._calls[step.seq] = step.call
        self._latest.pop(key, None)  # the order of the dictionary is that of the latest attempts
        self._by_call.pop(step.call, None)
        self._latest[key] = step, 1 if rank is None else rank
        self.note(step)
        return step

    def note(self, step: Step) -> None:
        """Note how an attempt has ended that was added before."""
        self._by_call[step.call] = step
        key = step.parent, step.type, step.server, step.name
        latest, rank = self._latest.get(key, (None, 1))
        if latest is not None and latest.seq == step.seq:
            self._latest[key] = step, rank
        if self._max_calls is not None:
            while len(self._latest) > self._max_calls:
                del self._latest[next(iter(self._latest))]
            while len(self._by_call) > self._max_calls:
                del self._by_call[next(iter(self._by_call))]
            while len(self._calls) > self._max_calls:
                del self._calls[next(iter(self._calls))]


def join_attempts(steps: Iterable[Step]) -> list[Step]:
    """Return the steps in order, each with the call that it belongs to. All that were sent without it find it again."""
    tracker = AttemptTracker()
    joined_steps: list[Step] = []
    for step in sorted(steps, key=lambda step: step.seq):
        rank = _read_sent_rank(step)
        if rank is not None:
            step = replace(step, call=step.seq, attempt=max(rank, 1), recovery=None)
        joined_steps.append(tracker.add(step))
    return joined_steps


def says_attempt(step: Step) -> bool:
    """Return whether a step says that it is an attempt of a call among others."""
    return step.attempt > 1 or step.call != step.seq or is_marked(step)


def find_rank(step: Step) -> int | None:
    """Return the position that the sender gave an attempt: in its name, or as its number; None if it gave none."""
    parsed = parse_attempt_name(sent_name(step))
    return parsed.rank if parsed is not None else _read_sent_rank(step)


def _read_sent_rank(step: Step) -> int | None:
    rank = (step.metadata or {}).get(SENT_RANK)
    return int(rank) if isinstance(rank, str) and rank.isdecimal() and len(rank) <= 4 else None
