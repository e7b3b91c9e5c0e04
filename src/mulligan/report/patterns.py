"""Text rendering of failure patterns and their recoveries."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from mulligan.figures import DAY
from mulligan.prompt import Prompt
from mulligan.records import Pattern, Precedent, builtins
from mulligan.report.tables import Column, ago, columns, count, heading, line, pairs, share, table

ID = 12
"""Characters of an id in a list: short enough to type, long enough to be unique."""
DAYS = 14
BAR = 30


def facts(pattern: Pattern) -> dict[str, Any]:
    return dict(builtins(pattern)) | {
        "count": pattern.count,
        "overcome": pattern.overcome,
        "given_up": pattern.given_up,
        "runs": pattern.runs,
        "first": pattern.first,
        "last": pattern.last,
        "state": pattern.state,
        "reopened": pattern.reopened,
    }


CSV = ("id", "tool", "kind", "state", "count", "overcome", "given_up", "runs", "first", "last", "message", "template")


def listed(patterns: Sequence[Pattern], now: int, width: int | None) -> Iterator[str]:
    """Render a summary and one row per pattern."""
    met = sum(pattern.count for pattern in patterns)
    overcome = sum(pattern.overcome for pattern in patterns)
    yield f"{count(len(patterns), 'pattern')}, {count(met, 'failure')}, {share(overcome, met)} overcome."
    yield ""
    yield from table(_columns(now), [facts(pattern) for pattern in patterns], width)


def _columns(now: int) -> tuple[Column, ...]:
    return (
        Column("pattern", lambda fact: fact["id"][:ID], keep=9, is_whole=True),
        Column("count", lambda fact: f"{fact['count']:,}", True, 9),
        Column("given up", lambda fact: f"{fact['given_up']:,}", True, 6),
        Column("last", lambda fact: ago(fact["last"], now), True, 5),
        Column("state", lambda fact: fact["state"] + (" again" if fact["reopened"] else ""), keep=4, is_whole=True),
        Column("tool", lambda fact: line(fact["tool"] or "-", 40), keep=8),
        Column("kind", lambda fact: line(fact["kind"], 60), keep=7),
        Column("what it says", lambda fact: line(fact.get("message") or "-", 80), keep=3),
    )


def shown(pattern: Pattern, known: Sequence[Precedent], now: int, width: int | None) -> Iterator[str]:
    """Render one pattern: summary, message template, occurrences by day, recoveries and example runs."""
    yield (
        f"{pattern.id} {pattern.state}: {line(pattern.kind, 60)} in {line(pattern.tool or 'no tool', 60)}, "
        f"{count(pattern.count, 'failure')} in {count(pattern.runs, 'run')}, "
        f"{pattern.overcome:,} overcome, {pattern.given_up:,} given up."
    )
    yield ""
    yield from pairs(_about(pattern, now), width)
    days = _by_day(pattern, now)
    if len(days) > 1:
        yield ""
        yield heading("How often", width)
        most = max(number for _, number in days)
        rows = [
            (
                time.strftime("%Y-%m-%d", time.gmtime(day / 1000)),
                f"{number:,}",
                "#" * max(round(BAR * number / most) if most else 0, int(number > 0)),
            )
            for day, number in days
        ]
        yield from columns(rows, right=(1,), width=width)
    yield ""
    yield heading("What overcame it", width)
    if not known:
        yield "  nothing that is known"
    for each in known:
        yield from pairs([("-", Prompt().precedent(each))], width)
    if pattern.examples:
        yield ""
        yield heading("Where to look", width)
        for example in pattern.examples:
            yield f"  mulligan show {example.run[:ID]}  step {example.seq}, {ago(example.started, now)}"


def _about(pattern: Pattern, now: int) -> Iterator[tuple[str, str]]:
    if pattern.message:
        yield "what it says", line(pattern.message, 400)
    if pattern.template:
        yield "why these are one", line(pattern.template, 400)
    yield "first seen", ago(pattern.first, now)
    yield "last seen", ago(pattern.last, now)
    if pattern.agents:
        most = sorted(pattern.agents.items(), key=lambda item: (-item[1], item[0]))
        yield "agents", ", ".join(f"{line(name or '(no name)', 40)} {number:,}" for name, number in most)
    if pattern.server:
        yield "server", line(pattern.server, 80)
    if pattern.reopened:
        yield "came back", f"{pattern.reopened:,} times after it was resolved" if pattern.reopened > 1 else "once"
    if pattern.merged:
        yield "merged into it", ", ".join(pattern.merged)


def _by_day(pattern: Pattern, now: int) -> list[tuple[int, int]]:
    """Return the occurrences of each day, from the first day with one, for at most two weeks."""
    today = now // DAY * DAY
    first = max(min(filter(None, pattern.days), default=today), today - (DAYS - 1) * DAY)
    return [(day, pattern.days.get(day, 0)) for day in range(first, today + 1, DAY)]
