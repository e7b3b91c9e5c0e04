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
    overcome: int = 0
    """Failures that recovered in the recording."""
    repaired: int = 0
    """Automatic repairs equal to the recorded recovering call."""
    unlike: int = 0
    """Automatic repairs that differ from the recorded recovering call."""
    open: int = 0
    """Automatic repairs of unrecovered failures: the recording cannot confirm them."""
    expected: float = 0.0
    """Expected successes among the unconfirmed repairs, by their confidence."""
    waited: int = 0
    """Retries where the same call succeeded later in the recording."""
    retried_in_vain: int = 0
    """Retries where it did not."""
    suggested: int = 0
    suggested_correctly: int = 0
    """Suggestions where one of the first three equals the recovering call."""
    suggested_unverified: int = 0
    nothing: int = 0
    seconds: float = 0.0
    saved: float = 0.0
    calls: int = 0
    tokens: int = 0

    def add(self, result: ReplayResult) -> None:
        self.failures += 1
        self.overcome += result.overcome
        match result.move:
            case "repair":
                self.repaired += result.agrees is True
                self.unlike += result.agrees is False
                self.open += result.agrees is None
                self.expected += result.confidence if result.agrees is None else 0.0
            case "wait":
                self.waited += result.agrees is True
                self.retried_in_vain += result.agrees is not True
            case "suggest":
                self.suggested += 1
                self.suggested_correctly += result.agrees is True
                self.suggested_unverified += result.agrees is None
            case _:
                self.nothing += 1
        if result.move in ("repair", "wait"):
            self.seconds += result.seconds
            self.saved += result.saved
            self.calls += result.calls
            self.tokens += result.tokens

    @property
    def repairs(self) -> int:
        return self.repaired + self.unlike + self.open

    @property
    def recoverable(self) -> int:
        """Number of failures that would recover automatically, as far as the recording can confirm."""
        return self.repaired + self.waited

    @property
    def worth(self) -> RepairWorth:
        """Whether automatic repair is worthwhile."""
        if not self.repairs:
            return "nothing"
        if not self.repaired + self.unlike:
            return "unknown"
        return "yes" if self.repaired >= MIN_AGREEMENT_RATIO * (self.repaired + self.unlike) else "no"

    def to_facts(self) -> dict[str, Any]:
        fact_values: dict[str, Any] = msgspec.to_builtins(self)
        return {**fact_values, "expected": round(self.expected, 2), "seconds": round(self.seconds, 3),
                "saved": round(self.saved, 3), "worth": self.worth}  # fmt: skip


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
        different_count = sum(counts.unlike for counts in group_counts)
        sentences.append(
            f"mode=repair is worth it for {_join_names(groups['yes'])}: {correct_count} of "
            f"{format_count(failures, 'failure')} would have been repaired as they then were, "
            f"{different_count or 'none'} otherwise."
        )
    else:
        sentences.append("mode=repair would not have made a difference that the record can show.")
    if groups["no"]:
        group_counts = [summary.tools[name] for name in groups["no"]]
        different_count, repair_count = (
            sum(counts.unlike for counts in group_counts),
            sum(counts.repaired + counts.unlike for counts in group_counts),
        )
        sentences.append(
            f"Leave it at mode=suggest for {_join_names(groups['no'])}: {different_count} of "
            f"{format_count(repair_count, 'repair')} {'is' if different_count == 1 else 'are'} "
            "another call than the one that then worked."
        )
    if groups["unknown"]:
        sentences.append(
            f"Nothing tells yet for {_join_names(groups['unknown'])}: what they would repair was never overcome."
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
        yield f"No tool call failed in {format_count(summary.runs, 'run')}: there is nothing to replay."
        return
    yield (
        f"{total.recoverable} of {format_count(total.failures, 'recorded failure')} "
        f"({format_share(total.recoverable, total.failures)}) would be overcome today without asking anybody; "
        f"{total.overcome:,} were overcome in the end."
    )
    yield ""
    verifiable_count = total.suggested - total.suggested_unverified
    rows = [
        ("repaired at once", total.repaired, "by the call that then worked"),
        ("repaired otherwise", total.unlike, "by another call than the one that then worked"),
        ("repaired, open", total.open, f"nothing overcame them in the record; about {total.expected:.0f} would work"),
        ("waited for", total.waited, f"and {total.retried_in_vain} more in vain, or nothing tells"),
        (
            "told the model",
            total.suggested,
            f"what then worked is among 3 for {total.suggested_correctly} of {verifiable_count}",
        ),
        ("nothing known", total.nothing, ""),
    ]
    for name, number, note in rows:
        yield f"  {name:<19}{number:>7,}   {note}".rstrip()
    moves = total.repairs + total.waited + total.retried_in_vain
    if moves:
        yield ""
        tokens = f" and {format_count(total.tokens, 'token')}" if total.tokens else ""
        yield (
            f"  That takes {format_count(moves, 'more call')} and {format_duration(total.seconds)}. It saves the "
            f"{format_count(total.calls, 'call')}{tokens}, {format_duration(total.saved)}, "
            "after which they were overcome."
        )
    for heading, counts_by_name in (("tool", summary.tools), ("kind", summary.kinds)):
        yield ""
        titles = ("failures", "repaired", "unlike", "open", "waited", "told right", heading)
        table_rows = [_build_row(name, counts) for name, counts in _rank_counts(counts_by_name)[:MAX_ROWS]]
        yield from render_columns([titles, *table_rows], right=range(6), width=width)
        if len(counts_by_name) > MAX_ROWS:
            yield f"  and {format_count(len(counts_by_name) - MAX_ROWS, heading)} more: --json has them all."
    yield ""
    yield describe_verdict(summary)


def _build_row(name: str, counts: ReplayCounts) -> tuple[str, ...]:
    suggested_text = (
        f"{counts.suggested_correctly} of {counts.suggested - counts.suggested_unverified}" if counts.suggested else "-"
    )
    numbers = (counts.failures, counts.repaired, counts.unlike, counts.open, counts.waited)
    return (*(f"{number:,}" for number in numbers), suggested_text, to_line(name, 60))
