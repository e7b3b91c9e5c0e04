"""Calls: their attempts, what changed between two of them, and precedents.

Everything here is a plain function of records, so that a store, a report and a test cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from mulligan.failure import Failure, Remedy
from mulligan.records import (
    VERIFY,
    Change,
    How,
    Link,
    Precedent,
    Record,
    Recovery,
    Step,
    encode,
    ordered,
)

TOOL = "(tool)"
"""The path of a change to the name of the tool itself."""


class Call(Record, frozen=True):
    """What the user asked for: one or more attempts at the same thing, in order."""

    steps: tuple[Step, ...]

    @property
    def id(self) -> int:
        return self.first.call

    @property
    def first(self) -> Step:
        return self.steps[0]

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def name(self) -> str:
        return self.first.name

    @property
    def has_failed(self) -> bool:
        """Whether any attempt failed, however it ended."""
        return self.steps[0].has_failed or (len(self.steps) > 1 and any(step.has_failed for step in self.steps))

    @property
    def has_succeeded(self) -> bool:
        return self.last.outcome == "success"

    @property
    def failure(self) -> Failure | None:
        """The last thing that went wrong."""
        return next((step.failure for step in reversed(self.steps) if step.has_failed), None)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What recovery changed on the way."""
        return tuple(change for step in self.steps if step.after for change in step.after.changes)

    @property
    def waited(self) -> float:
        return sum(step.after.seconds for step in self.steps if step.after)

    @property
    def repairs(self) -> int:
        """How many attempts were made with other arguments."""
        return sum(bool(step.after and step.after.changes) for step in self.steps)

    @property
    def recovery_seconds(self) -> float:
        """What recovery took: the waits, and every attempt but the first."""
        return self.waited + sum(step.seconds for step in self.steps[1:])

    @property
    def recovery_tokens(self) -> int:
        """The tokens of every attempt but the last, where they are known."""
        return sum(sum((step.tokens or {}).values()) for step in self.steps[:-1])

    @property
    def ending(self) -> str:
        """How it came out, in the words people see."""
        if not self.has_succeeded:
            if not self.has_failed:
                return self.last.outcome
            return "given up with suggestions" if self.last.ending and self.last.ending.offered else "given up"
        if not self.has_failed:
            return "first try"
        if self.last.after is not None and self.last.after.source == VERIFY:
            return "confirmed by a check"
        if self.repairs:
            if self.repairs == 2:
                return "repaired on the second try"  # the second suggestion, after the first had failed
            return "repaired" if len(self.steps) == 2 else "repaired on a later try"
        waited = any(step.after and step.after.remedy is Remedy.WAIT for step in self.steps)
        return "recovered by waiting" if waited else "recovered"


def group_attempts(steps: Iterable[Step]) -> list[Call]:
    """The calls these steps were attempts at, in the order of their first attempts."""
    attempts: dict[int, list[Step]] = {}
    for step in ordered(list(steps)):
        made = attempts.get(step.call)
        if made is None:
            attempts[step.call] = [step]
        else:
            made.append(step)
    return [Call(steps=_in_order(attempts[id])) for id in sorted(attempts)]


def _in_order(attempts: list[Step]) -> tuple[Step, ...]:
    return (attempts[0],) if len(attempts) == 1 else tuple(sorted(attempts, key=lambda step: step.attempt))


def precedents(links: Iterable[Link], seen: int) -> list[Precedent]:
    """What overcame a failure before, the most often first; the same change in several runs is one precedent."""
    runs: dict[object, set[str]] = {}
    first: dict[object, Link] = {}
    for link in links:
        shape = shape_of(link)
        runs.setdefault(shape, set()).add(link.run)
        # The same one, in whichever order they come: two stores that know the same give the same answer.
        first[shape] = min(first.get(shape, link), link, key=lambda each: (each.run, each.failed))
    return ranked([(len(runs[shape]), link) for shape, link in first.items()], seen)


def ranked(links: Iterable[tuple[int, Link]], seen: int, limit: int | None = None) -> list[Precedent]:
    """The most frequent of links that have nothing in common, each with the number of runs that it stands for."""
    # What recovery did is no move of the model's, and a conversation that went on is no correction.
    met = [each for each in links if each[1].changes or each[1].how not in ("repair", "agent")]
    if limit is not None and 0 < limit < len(met):
        least = sorted([count for count, _ in met])[-limit]
        met = [each for each in met if each[0] >= least]
    met.sort(key=lambda each: (-each[0], _shape(each[1])))
    return [
        Precedent(how=link.how, changes=link.changes, between=link.between, worked=count, seen=max(seen, 1))
        for count, link in met[:limit]
    ]


def shape_of(link: Link) -> object:
    """What two links have in common that are one precedent."""
    return (link.how, link.between, tuple([_told(change) for change in link.changes]))


def _told(change: Change) -> object:
    """What says whether two changes are the same: not where they come from, nor what was there before."""
    after = change.after
    # What is equal may still be another thing: 1, 1.0 and True. And what is neither text nor number may hold anything.
    is_plain = type(after) is str or type(after) is int
    return (change.path, change.how, type(after), after) if is_plain else encode((change.path, change.how, after))


def _shape(link: Link) -> bytes:
    return encode((link.how, [(change.path, change.how, change.after) for change in link.changes], link.between))


def wilson(worked: int, tried: int, z: float = 1.28) -> float:
    """The lower end of what a share may be, by its record: 7 of 7 give 0.81."""
    if tried <= 0:
        return 0.0
    share = min(max(worked / tried, 0.0), 1.0)  # the record may be that of another program
    middle = share + z * z / (2 * tried)
    spread = z * math.sqrt(share * (1 - share) / tried + z * z / (4 * tried * tried))
    return (middle - spread) / (1 + z * z / tried)


def is_retry(recovery: Recovery | None) -> bool:
    """Return whether an attempt repeated the very same call after a backoff.

    It did not where the conversation was shortened, the model was told something, a key was renewed, or the answer
    came from a check or a fallback.
    """
    if recovery is None:
        return True
    return recovery.remedy is Remedy.WAIT and recovery.source != VERIFY and not (recovery.changes or recovery.first)


def is_same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same to a tool: to Python 1, 1.0 and True are equal, to JSON they are three."""
    try:
        return bool(one == other) and _sorted.encode(one) == _sorted.encode(other)
    except Exception:  # noqa: BLE001 - a run that is still going compares objects of any class, and some cannot be
        return False


_sorted = msgspec.json.Encoder(enc_hook=str, order="sorted")


def similarity(one: str, other: str) -> float:
    """From 0 to 1. Long texts are compared by their beginnings, so that no argument can make this slow."""
    one, other = one[:200].casefold(), other[:200].casefold()
    return 2 * _matched(one, other) / (len(one) + len(other)) if one or other else 1.0


def _matched(one: str, other: str) -> int:
    """How many characters two texts share in order: the longest piece that is in both, then left and right of it.

    As difflib's SequenceMatcher counts them, ten times faster: what is in a text is searched for in C.
    """
    total = 0
    parts = [(one, other)]
    while parts:
        one, other = parts.pop()
        size = len(one)
        at = start = 0
        piece = ""
        end = 1  # of what would be longer than the piece
        while end <= size:
            longer = one[start:end]
            if longer in other:
                at, piece = start, longer
                end += 1
            else:
                start += 1
                end = start + len(piece) + 1
        if piece:
            place = other.find(piece)
            total += len(piece)
            after, behind = one[at + len(piece) :], other[place + len(piece) :]
            if at and place:
                parts.append((one[:at], other[:place]))
            if after and behind:
                parts.append((after, behind))
    return total


def changes(before: Any, after: Any) -> tuple[Change, ...]:
    """What one would have to do to the first arguments to get the second."""
    if is_same_json(before, after):
        return ()
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return (Change(path="", how=_how(before, after), before=before, after=after),)
    return tuple(_changes(before, after, ""))


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[Change]:
    gone = [key for key in before if key not in after]
    new = [key for key in after if key not in before]
    for key in gone:
        twin = next((other for other in new if is_same_json(after[other], before[key])), None)
        if twin is None:
            yield Change(path=prefix + key, how="drop", before=before[key])
        else:
            new.remove(twin)
            yield Change(path=prefix + key, how="rename", before=key, after=twin)
    for key in before:
        if key in after and not is_same_json(before[key], after[key]):
            if isinstance(before[key], Mapping) and isinstance(after[key], Mapping):
                yield from _changes(before[key], after[key], f"{prefix}{key}.")
            else:
                yield Change(path=prefix + key, how=_how(before[key], after[key]), before=before[key], after=after[key])
    for key in new:
        yield Change(path=prefix + key, how="substitute", after=after[key])


def _how(before: Any, after: Any) -> How:
    if isinstance(before, str):
        if isinstance(after, str):
            if before.strip() == after.strip():
                return "trim"
            return "enum" if before.casefold() == after.casefold() else "substitute"
        if isinstance(after, Mapping | list) and is_same_json(_parsed(before), after):
            return "parse"
        if isinstance(after, int | float) and before.strip().casefold() == str(after).casefold():
            return "cast"
    if isinstance(after, list) and is_same_json(after, [before]):
        return "wrap"
    if isinstance(after, str) and isinstance(before, int | float) and after == str(before):
        return "cast"
    if isinstance(before, int | float) and isinstance(after, int | float) and before == after:
        return "cast"
    return "substitute"


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
