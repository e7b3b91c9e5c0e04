"""Counts and text rendering of replays: what current memory and rules would do about recorded failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

import msgspec

from mulligan.core.records import ReplayResult
from mulligan.report.tables import format_count, format_duration, format_share, render_columns, to_line

MAX_ROWS = 15
"""Maximum number of tools and of kinds in the output."""
RepairWorth = Literal["yes", "no", "unknown", "nothing"]


class ReplayCounts(msgspec.Struct, omit_defaults=False):
    """Replayed failures of one tool, one kind, or all, by the action that would be taken."""

    failures: int = 0
    recovered: int = 0
    """Failures that recovered in the recording."""
    repaired: int = 0
    """Automatic repairs equal to the recorded recovering call."""
    repaired_differently: int = 0
    """Automatic repairs that differ from the recorded recovering call."""
    repaired_unverified: int = 0
    """Automatic repairs of unrecovered failures: the recording cannot confirm them."""
    expected: float = 0.0
    """Expected successes among the unconfirmed repairs, by their confidence."""
    retried: int = 0
    """Retries where the same call succeeded later in the recording."""
    retried_without_success: int = 0
    """Retries where it did not."""
    suggested: int = 0
    suggested_correctly: int = 0
    """Suggestions where one of the first three equals the recovering call."""
    suggested_unverified: int = 0
    no_action: int = 0
    seconds: float = 0.0
    saved_seconds: float = 0.0
    calls: int = 0
    tokens: int = 0

    def add(self, result: ReplayResult) -> None:
        self.failures += 1
        self.recovered += result.recovered
        match result.move:
            case "repair":
                self.repaired += result.agrees is True
                self.repaired_differently += result.agrees is False
                self.repaired_unverified += result.agrees is None
                self.expected += result.confidence if result.agrees is None else 0.0
            case "retry":
                self.retried += result.agrees is True
                self.retried_without_success += result.agrees is not True
            case "suggest":
                self.suggested += 1
                self.suggested_correctly += result.agrees is True
                self.suggested_unverified += result.agrees is None
            case _:
                self.no_action += 1
        if result.move in ("repair", "retry"):
            for name in ("seconds", "saved_seconds", "calls", "tokens"):
                setattr(self, name, getattr(self, name) + getattr(result, name))

    @property
    def repairs(self) -> int:
        return self.repaired + self.repaired_differently + self.repaired_unverified

    @property
    def recoverable(self) -> int:
        """Number of failures that would recover automatically, as far as the recording can confirm."""
        return self.repaired + self.retried

    @property
    def worth(self) -> RepairWorth:
        """Whether automatic repair is worthwhile."""
        if not self.repairs:
            return "nothing"
        if not self.repaired + self.repaired_differently:
            return "unknown"
        # Minimum ratio of repairs equal to the recovering call for automatic repair to be worthwhile
        return "yes" if self.repaired >= 0.95 * (self.repaired + self.repaired_differently) else "no"

    def to_facts(self) -> dict[str, Any]:
        times = {"seconds": round(self.seconds, 3), "saved_seconds": round(self.saved_seconds, 3)}
        return {**msgspec.to_builtins(self), "expected": round(self.expected, 2), **times, "worth": self.worth}


class ReplaySummary:
    """Counts of all replayed failures, in total and by tool, kind and source."""

    def __init__(self) -> None:
        self.total = ReplayCounts()
        self.groups: dict[str, dict[str, ReplayCounts]] = {"tool": {}, "kind": {}, "source": {}}
        self.runs = 0

    def add(self, replayed: Iterable[ReplayResult]) -> None:
        self.runs += 1
        for result in replayed:
            self.total.add(result)
            for dimension, groups in self.groups.items():
                if name := getattr(result, dimension):
                    groups.setdefault(name, ReplayCounts()).add(result)

    def rank(self, dimension: str) -> list[tuple[str, ReplayCounts]]:
        """Return the counts of a dimension, the most recoverable failures first."""
        groups = self.groups[dimension]
        return sorted(groups.items(), key=lambda item: (-item[1].recoverable, -item[1].failures, item[0]))

    def to_facts(self) -> dict[str, Any]:
        groups = {
            f"{dimension}s": [{dimension: name, **counts.to_facts()} for name, counts in self.rank(dimension)]
            for dimension in self.groups
        }
        return {"runs": self.runs, **self.total.to_facts(), "verdict": describe_verdict(self), **groups}


def describe_verdict(summary: ReplaySummary) -> str:
    """Describe whether `mode=repair` is worthwhile, and for which tools."""
    totals: dict[RepairWorth, ReplayCounts] = {worth: ReplayCounts() for worth in get_args(RepairWorth)}
    names: dict[RepairWorth, list[str]] = {worth: [] for worth in totals}
    for name, counts in summary.rank("tool"):
        names[counts.worth].append(name)
        for field in ("failures", "repaired", "repaired_differently"):
            total = totals[counts.worth]
            setattr(total, field, getattr(total, field) + getattr(counts, field))
    sentences = ["The recording shows no benefit of mode=repair."]
    if names["yes"]:
        total = totals["yes"]
        sentences = [
            f"Use mode=repair for {_join_names(names['yes'])}: {total.repaired} of "
            f"{format_count(total.failures, 'failure')} would be repaired like the recorded recovery, "
            f"{total.repaired_differently or 'none'} differently."
        ]
    if names["no"]:
        total = totals["no"]
        repairs = format_count(total.repaired + total.repaired_differently, "repair")
        sentences.append(
            f"Keep mode=suggest for {_join_names(names['no'])}: {total.repaired_differently} of {repairs} "
            f"{'differs' if total.repaired_differently == 1 else 'differ'} from the recorded recovery."
        )
    if names["unknown"]:
        tool_names = _join_names(names["unknown"])
        sentences.append(f"No verdict for {tool_names}: the failures that would be repaired never recovered.")
    return " ".join(sentences)


def _join_names(names: list[str]) -> str:
    shown_names = [to_line(name, 40) for name in names[:6]]
    more = [f"{len(names) - 6} more"] if len(names) > 6 else []
    *first, last = [*shown_names, *more]
    return f"{', '.join(first)} and {last}" if first else last


def render_summary(summary: ReplaySummary, width: int | None) -> Iterator[str]:
    total = summary.total
    if not total.failures:
        yield f"No failed tool calls in {format_count(summary.runs, 'run')}: nothing to replay."
        return
    yield (
        f"{total.recoverable} of {format_count(total.failures, 'recorded failure')} "
        f"({format_share(total.recoverable, total.failures)}) would recover automatically today; "
        f"{total.recovered:,} recovered in the recording."
    )
    yield ""
    verifiable_count = total.suggested - total.suggested_unverified
    expectation_note = f"no recorded recovery; about {total.expected:.0f} expected to succeed"
    retry_note = f"same call succeeded later; {total.retried_without_success} more failed or unconfirmed"
    suggestion_note = f"recorded recovery among the first 3 for {total.suggested_correctly} of {verifiable_count}"
    for name, number, note in (
        ("repaired", total.repaired, "same call as the recorded recovery"),
        ("repaired differently", total.repaired_differently, "differs from the recorded recovery"),
        ("repaired, unconfirmed", total.repaired_unverified, expectation_note),
        ("retried", total.retried, retry_note),
        ("suggested to the model", total.suggested, suggestion_note),
        ("no remedy", total.no_action, ""),
    ):
        yield f"  {name:<22}{number:>7,}   {note}".rstrip()
    moves = total.repairs + total.retried + total.retried_without_success
    if moves:
        yield ""
        tokens = f", {format_count(total.tokens, 'token')}" if total.tokens else ""
        yield (
            f"  Cost: {format_count(moves, 'call')}, {format_duration(total.seconds)}. "
            f"Saved until the recorded recovery: {format_count(total.calls, 'call')}{tokens}, "
            f"{format_duration(total.saved_seconds)}."
        )
    for heading in ("tool", "kind"):
        yield ""
        titles = ("failures", "repaired", "different", "unconfirmed", "retried", "suggested", heading)
        ranked = summary.rank(heading)
        rows = [titles, *(_build_row(name, counts) for name, counts in ranked[:MAX_ROWS])]
        yield from render_columns(rows, right=range(6), width=width)
        if len(ranked) > MAX_ROWS:
            yield f"  and {format_count(len(ranked) - MAX_ROWS, heading)} more: use --json for all."
    yield ""
    yield describe_verdict(summary)


def _build_row(name: str, counts: ReplayCounts) -> tuple[str, ...]:
    verified_count = counts.suggested - counts.suggested_unverified
    suggested_text = f"{counts.suggested_correctly} of {verified_count}" if counts.suggested else "-"
    fields = ("failures", "repaired", "repaired_differently", "repaired_unverified", "retried")
    return (*(f"{getattr(counts, field):,}" for field in fields), suggested_text, to_line(name, 60))
