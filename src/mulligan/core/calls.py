"""Call history: groups attempts into calls, compares arguments and counts precedents.

Pure functions of records, so that the store, reports and tests derive the same results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.core.failure import Failure, Remedy
from mulligan.core.records import (
    PROGRAM,
    VERIFY,
    Change,
    ChangeOperation,
    Link,
    Precedent,
    Record,
    Recovery,
    Step,
    encode,
    sort_steps,
)

TOOL_NAME_PATH = "(tool)"
"""The path of a change to the tool name itself."""


class Call(Record, frozen=True):
    """One call: its attempts, in order."""

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
        """Whether any attempt failed, regardless of the final outcome."""
        return self.steps[0].has_failed or (len(self.steps) > 1 and any(step.has_failed for step in self.steps))

    @property
    def has_succeeded(self) -> bool:
        return self.last.outcome == "success"

    def is_recovered(self, link: Link | None) -> bool:
        """Return whether the call failed and then succeeded: itself, or as the later call that its link names."""
        return self.has_failed and (self.has_succeeded or link is not None)

    @property
    def is_repeated_by_program(self) -> bool:
        """Whether the recorded program made the last attempt itself."""
        return self.last.recovery is not None and self.last.recovery.source == PROGRAM

    @property
    def failure(self) -> Failure | None:
        """The failure of the last failed attempt."""
        return next((step.failure for step in reversed(self.steps) if step.has_failed), None)

    @property
    def has_lost_answer(self) -> bool:
        """Whether an attempt of a tool with effects="once" may have executed, and its answer never arrived."""
        return any(
            step.effects == "once" and step.failure is not None and step.failure.has_lost_answer for step in self.steps
        )

    @property
    def changes(self) -> tuple[Change, ...]:
        """The argument changes that recovery made."""
        return tuple(change for step in self.steps if step.recovery for change in step.recovery.changes)

    @property
    def backoff_seconds(self) -> float:
        return sum(step.recovery.backoff_seconds for step in self.steps if step.recovery)

    @property
    def repairs(self) -> int:
        """The number of attempts with changed arguments."""
        return sum(bool(step.recovery and step.recovery.changes) for step in self.steps)

    @property
    def recovery_seconds(self) -> float:
        """The time spent on recovery: backoffs, every attempt after the first, and planning between attempts."""
        later_attempts = sum(step.duration_seconds for step in self.steps[1:])
        return self.backoff_seconds + later_attempts + self.planning_seconds

    @property
    def planning_seconds(self) -> float:
        """The time between attempts that is no backoff: classification, planning, and their first imports."""
        if len(self.steps) < 2:
            return 0.0
        first, last = self.steps[0], self.steps[-1]
        elapsed = (last.started_at - first.started_at) / 1000
        seconds = elapsed - self.backoff_seconds - sum(step.duration_seconds for step in self.steps[:-1])
        # Shorter times between attempts are within the precision of their timestamps.
        return seconds if seconds >= 0.005 else 0.0

    @property
    def outcome_label(self) -> str:
        if not self.has_succeeded:
            if not self.has_failed:
                return self.last.outcome
            return "unrecovered, with suggestions" if self.last.stop and self.last.stop.suggestions else "unrecovered"
        if not self.has_failed:
            return "first attempt"
        if self.last.recovery is not None and self.last.recovery.source == VERIFY:
            return "confirmed by verify"
        if self.repairs:
            if self.repairs == 2:
                return "repaired by the second repair"  # the first suggestion had failed
            return "repaired" if len(self.steps) == 2 else "repaired on a later attempt"
        has_backoff = any(step.recovery and step.recovery.remedy is Remedy.RETRY for step in self.steps)
        return "recovered by retry" if has_backoff else "recovered"


def group_attempts(steps: Iterable[Step]) -> list[Call]:
    """Group steps into calls, in the order of their first attempts."""
    attempts: dict[int, list[Step]] = {}
    for step in sort_steps(list(steps)):
        attempts.setdefault(step.call, []).append(step)
    return [Call(steps=tuple(sorted(attempts[id], key=lambda step: step.attempt))) for id in sorted(attempts)]


def rank_precedents(links: Iterable[tuple[int, Link]], run_count: int, limit: int | None = None) -> list[Precedent]:
    """Rank distinct links by the number of runs. Each entry is that number and a link."""
    # Exclude links without changes that a model cannot repeat: recovery compressed the conversation, or it continued.
    counted_links = [entry for entry in links if entry[1].changes or entry[1].method not in ("repair", "agent")]
    if limit is not None and 0 < limit < len(counted_links):
        min_count = sorted([count for count, _ in counted_links])[-limit]
        counted_links = [entry for entry in counted_links if entry[0] >= min_count]
    counted_links.sort(key=lambda entry: (-entry[0], _sort_key(entry[1])))
    return [
        Precedent(
            method=link.method,
            changes=link.changes,
            intermediate_tools=link.intermediate_tools,
            successes=count,
            occurrences=max(run_count, 1),
        )
        for count, link in counted_links[:limit]
    ]


def precedent_key(link: Link) -> object:
    """Return the key that makes two links one precedent."""
    return (link.method, link.intermediate_tools, tuple([_change_identity(change) for change in link.changes]))


def _change_identity(change: Change) -> object:
    """Return the identity of a change: path, operation and new value, ignoring source and old value."""
    after = change.after
    # Compare the type too: 1, 1.0 and True are equal in Python. Other values may be unhashable, so encode them.
    is_scalar = type(after) is str or type(after) is int
    return (change.path, change.operation, type(after), after if is_scalar else encode(after))


def _sort_key(link: Link) -> bytes:
    changes = [(change.path, change.operation, change.after) for change in link.changes]
    return encode((link.method, changes, link.intermediate_tools))


def wilson_lower_bound(successes: int, trials: int, z: float = 1.28) -> float:
    """Return the lower bound of a success rate (Wilson score interval): 7 of 7 gives 0.81."""
    if trials <= 0:
        return 0.0
    share = min(max(successes / trials, 0.0), 1.0)  # counts may come from another program
    middle = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return (middle - spread) / (1 + z * z / trials)


def is_retry(recovery: Recovery | None) -> bool:
    """Return whether an attempt repeated the same call after a backoff.

    It did not if recovery compressed the conversation, added a note, refreshed a key, or took the answer from a check
    or a fallback.
    """
    if recovery is None:
        return True
    return (
        recovery.remedy is Remedy.RETRY
        and recovery.source != VERIFY
        and not (recovery.changes or recovery.prerequisites)
    )


def is_same_json(first: Any, second: Any) -> bool:
    """Return whether two values are equal as JSON. Python treats 1, 1.0 and True as equal; JSON does not."""
    try:
        return bool(first == second) and _sorted_encoder.encode(first) == _sorted_encoder.encode(second)
    except Exception:  # noqa: BLE001 - live runs compare objects of any class, and comparing may raise
        return False


_sorted_encoder = msgspec.json.Encoder(enc_hook=str, order="sorted")


def has_changes(arguments: Mapping[str, Any], changes: Sequence[Change]) -> bool:
    """Return whether a call already has all that these changes would set: they would not change it."""
    return bool(changes) and all(_has_change(arguments, change) for change in changes)


def is_changed_call(call: Mapping[str, Any], original: Mapping[str, Any], changes: Sequence[Change]) -> bool:
    """Return whether a call is the original one with these changes: all its other arguments are equal."""
    names = {change.path.partition(".")[0] for change in changes}
    names |= {change.after for change in changes if change.operation == "rename"}
    unchanged, original_unchanged = (
        {name: value for name, value in arguments.items() if name not in names} for arguments in (call, original)
    )
    return has_changes(call, changes) and is_same_json(unchanged, original_unchanged)


def _has_change(arguments: Mapping[str, Any], change: Change) -> bool:
    if change.operation == "rename":
        return change.path not in arguments and change.after in arguments
    value: Any = arguments
    for name in (change.path,) if change.path in arguments else change.path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return change.operation == "drop"
        value = value[name]
    return change.operation != "drop" and is_same_json(value, change.after)


def similarity(first: str, second: str) -> float:
    """Return the similarity of two texts, 0 to 1. Only the first 200 characters are compared, to bound the cost."""
    from difflib import SequenceMatcher  # lazy: needed for unknown tools only

    return SequenceMatcher(None, first[:200].casefold(), second[:200].casefold(), autojunk=False).ratio()


def diff_arguments(before: Any, after: Any) -> tuple[Change, ...]:
    """Return the changes that turn the first arguments into the second."""
    if is_same_json(before, after):
        return ()
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return (Change(path="", operation=classify_change(before, after), before=before, after=after),)
    return tuple(_diff_mappings(before, after, ""))


def _diff_mappings(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[Change]:
    removed_keys = [key for key in before if key not in after]
    added_keys = [key for key in after if key not in before]
    for key in removed_keys:
        twin = next((other for other in added_keys if is_same_json(after[other], before[key])), None)
        if twin is None:
            yield Change(path=prefix + key, operation="drop", before=before[key])
        else:
            added_keys.remove(twin)
            yield Change(path=prefix + key, operation="rename", before=key, after=twin)
    for key in before:
        if key in after and not is_same_json(before[key], after[key]):
            if isinstance(before[key], Mapping) and isinstance(after[key], Mapping):
                yield from _diff_mappings(before[key], after[key], f"{prefix}{key}.")
            else:
                yield Change(
                    path=prefix + key,
                    operation=classify_change(before[key], after[key]),
                    before=before[key],
                    after=after[key],
                )
    for key in added_keys:
        yield Change(path=prefix + key, operation="substitute", after=after[key])


def classify_change(before: Any, after: Any) -> ChangeOperation:
    """Return how a value was changed: in form, or to another value."""
    if isinstance(before, str):
        if isinstance(after, str):
            if before.strip() == after.strip():
                return "trim"
            return "enum" if before.casefold() == after.casefold() else "substitute"
        if isinstance(after, Mapping | list) and is_same_json(parse_json(before), after):
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


def parse_json(text: str) -> Any:
    """Parse a text as JSON. Return None if it is not valid."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
