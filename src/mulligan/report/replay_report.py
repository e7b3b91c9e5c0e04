"""Counts and text rendering of replays: what current memory and rules would do about recorded failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from mulligan.core.records import ReplayResult
from mulligan.report.tables import format_count, format_duration, format_share, render_columns, to_line

MIN_AGREEMENT_RATIO = 0.95
"""Minimum ratio of repairs equal to the recovering call for automatic repair to be worthwhile."""
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
            self.seconds += result.seconds
            self.saved_seconds += result.saved_seconds
            self.calls += result.calls
            self.tokens += result.tokens

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
        return "yes" if self.repaired >= MIN_AGREEMENT_RATIO * (self.repaired + self.repaired_differently) else "no"

    def to_facts(self) -> dict[str, Any]:
        fact_values: dict[str, Any] = msgspec.to_builtins(self)
        return {**fact_values, "expected": round(self.expected, 2), "seconds": round(self.seconds, 3),
                "saved_seconds": round(self.saved_seconds, 3), "worth": self.worth}  # fmt: skip


class ReplaySummary:
    """Counts of all replayed failures, in total and by tool, kind and source."""

    def __init__(self) -> None:
        self.total = ReplayCounts()
        self.tools: dict[str, ReplayCounts] = {}
        self.kinds: dict[str, ReplayCounts] = {}
        self.sources: dict[str, ReplayCounts] = {}
        self.runs = 0

    def add(self, replayed: Iterable[ReplayResult]) -> None:
        self.runs += 1
        for result in replayed:
            self.total.add(result)
            self.tools.setdefault(result.tool, ReplayCounts()).add(result)
            self.kinds.setdefault(result.kind, ReplayCounts()).add(result)
            if result.source:
                self.sources.setdefault(result.source, ReplayCounts()).add(result)

    def to_facts(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            **self.total.to_facts(),
            "verdict": describe_verdict(self),
            "tools": [{"tool": name, **counts.to_facts()} for name, counts in _rank_counts(self.tools)],
            "kinds": [{"kind": name, **counts.to_facts()} for name, counts in _rank_counts(self.kinds)],
            "sources": [{"source": name, **counts.to_facts()} for name, counts in _rank_counts(self.sources)],
        }


def _rank_counts(sums: Mapping[str, ReplayCounts]) -> list[tuple[str, ReplayCounts]]:
    return sorted(sums.items(), key=lambda item: (-item[1].recoverable, -item[1].failures, item[0]))


def describe_verdict(summary: ReplaySummary) -> str:
    """Describe whether `mode=repair` is worthwhile, and for which tools."""
    groups: dict[RepairWorth, list[str]] = {"yes": [], "no": [], "unknown": [], "nothing": []}
    for name, counts in _rank_counts(summary.tools):
        groups[counts.worth].append(name)
    sentences = []
    if groups["yes"]:
        group_counts = [summary.tools[name] for name in groups["yes"]]
        correct_count, failures = (
            sum(counts.repaired for counts in group_counts),
            sum(counts.failures for counts in group_counts),
        )
        different_count = sum(counts.repaired_differently for counts in group_counts)
        sentences.append(
            f"Use mode=repair for {_join_names(groups['yes'])}: {correct_count} of {format_count(failures, 'failure')} "
            f"would be repaired like the recorded recovery, {different_count or 'none'} differently."
        )
    else:
        sentences.append("The recording shows no benefit of mode=repair.")
    if groups["no"]:
        group_counts = [summary.tools[name] for name in groups["no"]]
        different_count, repair_count = (
            sum(counts.repaired_differently for counts in group_counts),
            sum(counts.repaired + counts.repaired_differently for counts in group_counts),
        )
        sentences.append(
            f"Keep mode=suggest for {_join_names(groups['no'])}: {different_count} of "
            f"{format_count(repair_count, 'repair')} {'differs' if different_count == 1 else 'differ'} "
            "from the recorded recovery."
        )
    if groups["unknown"]:
        sentences.append(
            f"No verdict for {_join_names(groups['unknown'])}: the failures that would be repaired never recovered."
        )
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
    rows = [
        ("repaired", total.repaired, "same call as the recorded recovery"),
        ("repaired differently", total.repaired_differently, "differs from the recorded recovery"),
        (
            "repaired, unconfirmed",
            total.repaired_unverified,
            f"no recorded recovery; about {total.expected:.0f} expected to succeed",
        ),
        (
            "retried",
            total.retried,
            f"same call succeeded later; {total.retried_without_success} more failed or unconfirmed",
        ),
        (
            "suggested to the model",
            total.suggested,
            f"recorded recovery among the first 3 for {total.suggested_correctly} of {verifiable_count}",
        ),
        ("no remedy", total.no_action, ""),
    ]
    for name, number, note in rows:
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
    for heading, counts_by_name in (("tool", summary.tools), ("kind", summary.kinds)):
        yield ""
        titles = ("failures", "repaired", "different", "unconfirmed", "retried", "suggested", heading)
        table_rows = [_build_row(name, counts) for name, counts in _rank_counts(counts_by_name)[:MAX_ROWS]]
        yield from render_columns([titles, *table_rows], right=range(6), width=width)
        if len(counts_by_name) > MAX_ROWS:
            yield f"  and {format_count(len(counts_by_name) - MAX_ROWS, heading)} more: use --json for all."
    yield ""
    yield describe_verdict(summary)


def _build_row(name: str, counts: ReplayCounts) -> tuple[str, ...]:
    suggested_text = (
        f"{counts.suggested_correctly} of {counts.suggested - counts.suggested_unverified}" if counts.suggested else "-"
    )
    numbers = (
        counts.failures,
        counts.repaired,
        counts.repaired_differently,
        counts.repaired_unverified,
        counts.retried,
    )
    return (*(f"{number:,}" for number in numbers), suggested_text, to_line(name, 60))
