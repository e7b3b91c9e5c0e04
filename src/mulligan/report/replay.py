"""Counts and text rendering of replays: what current memory and rules would do about recorded failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from mulligan.records import Replayed
from mulligan.report.tables import columns, count, duration, line, share

SURE = 0.95
"""Minimum ratio of repairs equal to the recovering call for automatic repair to be worthwhile."""
ROWS = 15
"""Maximum number of tools and of kinds in the output."""
Worth = Literal["yes", "no", "unknown", "nothing"]


class Sum(msgspec.Struct, omit_defaults=False):
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
    waited_else: int = 0
    """Retries where it did not."""
    suggested: int = 0
    suggested_right: int = 0
    """Suggestions where one of the first three equals the recovering call."""
    suggested_open: int = 0
    nothing: int = 0
    seconds: float = 0.0
    saved: float = 0.0
    calls: int = 0
    tokens: int = 0

    def add(self, one: Replayed) -> None:
        self.failures += 1
        self.overcome += one.overcome
        match one.move:
            case "repair":
                self.repaired += one.agrees is True
                self.unlike += one.agrees is False
                self.open += one.agrees is None
                self.expected += one.confidence if one.agrees is None else 0.0
            case "wait":
                self.waited += one.agrees is True
                self.waited_else += one.agrees is not True
            case "suggest":
                self.suggested += 1
                self.suggested_right += one.agrees is True
                self.suggested_open += one.agrees is None
            case _:
                self.nothing += 1
        if one.move in ("repair", "wait"):
            self.seconds += one.seconds
            self.saved += one.saved
            self.calls += one.calls
            self.tokens += one.tokens

    @property
    def repairs(self) -> int:
        return self.repaired + self.unlike + self.open

    @property
    def would(self) -> int:
        """Number of failures that would recover automatically, as far as the recording can confirm."""
        return self.repaired + self.waited

    @property
    def worth(self) -> Worth:
        """Whether automatic repair is worthwhile."""
        if not self.repairs:
            return "nothing"
        if not self.repaired + self.unlike:
            return "unknown"
        return "yes" if self.repaired >= SURE * (self.repaired + self.unlike) else "no"

    def facts(self) -> dict[str, Any]:
        told: dict[str, Any] = msgspec.to_builtins(self)
        return {**told, "expected": round(self.expected, 2), "seconds": round(self.seconds, 3),
                "saved": round(self.saved, 3), "worth": self.worth}  # fmt: skip


class Summary:
    """Counts of all replayed failures, in total and by tool, kind and source."""

    def __init__(self) -> None:
        self.whole = Sum()
        self.tools: dict[str, Sum] = {}
        self.kinds: dict[str, Sum] = {}
        self.sources: dict[str, Sum] = {}
        self.runs = 0

    def add(self, replayed: Iterable[Replayed]) -> None:
        self.runs += 1
        for one in replayed:
            self.whole.add(one)
            self.tools.setdefault(one.tool, Sum()).add(one)
            self.kinds.setdefault(one.kind, Sum()).add(one)
            if one.source:
                self.sources.setdefault(one.source, Sum()).add(one)

    def facts(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            **self.whole.facts(),
            "verdict": verdict(self),
            "tools": [{"tool": name, **each.facts()} for name, each in _ordered(self.tools)],
            "kinds": [{"kind": name, **each.facts()} for name, each in _ordered(self.kinds)],
            "sources": [{"source": name, **each.facts()} for name, each in _ordered(self.sources)],
        }


def _ordered(sums: Mapping[str, Sum]) -> list[tuple[str, Sum]]:
    return sorted(sums.items(), key=lambda item: (-item[1].would, -item[1].failures, item[0]))


def verdict(summary: Summary) -> str:
    """Describe whether `mode=repair` is worthwhile, and for which tools."""
    groups: dict[Worth, list[str]] = {"yes": [], "no": [], "unknown": [], "nothing": []}
    for name, each in _ordered(summary.tools):
        groups[each.worth].append(name)
    told = []
    if groups["yes"]:
        sums = [summary.tools[name] for name in groups["yes"]]
        right, failures = sum(each.repaired for each in sums), sum(each.failures for each in sums)
        unlike = sum(each.unlike for each in sums)
        told.append(
            f"mode=repair is worth it for {_listed(groups['yes'])}: {right} of {count(failures, 'failure')} would have "
            f"been repaired as they then were, {unlike or 'none'} otherwise."
        )
    else:
        told.append("mode=repair would not have made a difference that the record can show.")
    if groups["no"]:
        sums = [summary.tools[name] for name in groups["no"]]
        unlike, tried = sum(each.unlike for each in sums), sum(each.repaired + each.unlike for each in sums)
        told.append(
            f"Leave it at mode=suggest for {_listed(groups['no'])}: {unlike} of {count(tried, 'repair')} "
            f"{'is' if unlike == 1 else 'are'} another call than the one that then worked."
        )
    if groups["unknown"]:
        told.append(f"Nothing tells yet for {_listed(groups['unknown'])}: what they would repair was never overcome.")
    return " ".join(told)


def _listed(names: list[str]) -> str:
    shown = [line(name, 40) for name in names[:6]]
    more = [f"{len(names) - 6} more"] if len(names) > 6 else []
    *first, last = [*shown, *more]
    return f"{', '.join(first)} and {last}" if first else last


def told(summary: Summary, width: int | None) -> Iterator[str]:
    whole = summary.whole
    if not whole.failures:
        yield f"No tool call failed in {count(summary.runs, 'run')}: there is nothing to replay."
        return
    yield (
        f"{whole.would} of {count(whole.failures, 'recorded failure')} ({share(whole.would, whole.failures)}) would be "
        f"overcome today without asking anybody; {whole.overcome:,} were overcome in the end."
    )
    yield ""
    rest = whole.suggested - whole.suggested_open
    rows = [
        ("repaired at once", whole.repaired, "by the call that then worked"),
        ("repaired otherwise", whole.unlike, "by another call than the one that then worked"),
        ("repaired, open", whole.open, f"nothing overcame them in the record; about {whole.expected:.0f} would work"),
        ("waited for", whole.waited, f"and {whole.waited_else} more in vain, or nothing tells"),
        ("told the model", whole.suggested, f"what then worked is among 3 for {whole.suggested_right} of {rest}"),
        ("nothing known", whole.nothing, ""),
    ]
    for name, number, note in rows:
        yield f"  {name:<19}{number:>7,}   {note}".rstrip()
    moves = whole.repairs + whole.waited + whole.waited_else
    if moves:
        yield ""
        tokens = f" and {count(whole.tokens, 'token')}" if whole.tokens else ""
        yield (
            f"  That takes {count(moves, 'more call')} and {duration(whole.seconds)}. It saves the "
            f"{count(whole.calls, 'call')}{tokens}, {duration(whole.saved)}, after which they were overcome."
        )
    for heading, sums in (("tool", summary.tools), ("kind", summary.kinds)):
        yield ""
        titles = ("failures", "repaired", "unlike", "open", "waited", "told right", heading)
        rows_of = [_row(name, each) for name, each in _ordered(sums)[:ROWS]]
        yield from columns([titles, *rows_of], right=range(6), width=width)
        if len(sums) > ROWS:
            yield f"  and {count(len(sums) - ROWS, heading)} more: --json has them all."
    yield ""
    yield verdict(summary)


def _row(name: str, each: Sum) -> tuple[str, ...]:
    told = f"{each.suggested_right} of {each.suggested - each.suggested_open}" if each.suggested else "-"
    numbers = (each.failures, each.repaired, each.unlike, each.open, each.waited)
    return (*(f"{number:,}" for number in numbers), told, line(name, 60))
