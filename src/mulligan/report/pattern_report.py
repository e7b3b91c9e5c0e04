"""Text rendering of failure patterns and their recoveries."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from mulligan.core.records import Pattern, Precedent, to_builtins
from mulligan.prompt import Prompt
from mulligan.report.tables import (
    TableColumn,
    format_age,
    format_count,
    format_share,
    render_columns,
    render_pairs,
    render_table,
    style_heading,
    to_line,
)
from mulligan.store.counters import DAY

SHOWN_ID_CHARS = 12
"""Characters of an id in a list: short enough to type, long enough to be unique."""
MAX_DAYS = 14
MAX_BAR_CHARS = 30


def to_facts(pattern: Pattern) -> dict[str, Any]:
    return dict(to_builtins(pattern)) | {
        "occurrences": pattern.occurrences,
        "recovered": pattern.recovered,
        "unrecovered": pattern.unrecovered,
        "runs": pattern.runs,
        "first_seen_at": pattern.first_seen_at,
        "last_seen_at": pattern.last_seen_at,
        "state": pattern.state,
        "reopened": pattern.reopened,
    }


CSV_COLUMNS = (
    "id",
    "tool",
    "kind",
    "state",
    "occurrences",
    "recovered",
    "unrecovered",
    "runs",
    "first_seen_at",
    "last_seen_at",
    "message",
    "template",
)


def render_list(patterns: Sequence[Pattern], now: int, width: int | None) -> Iterator[str]:
    """Render a summary and one row per pattern."""
    occurrence_count = sum(pattern.occurrences for pattern in patterns)
    recovered_count = sum(pattern.recovered for pattern in patterns)
    recovered_share = format_share(recovered_count, occurrence_count)
    yield (
        f"{format_count(len(patterns), 'pattern')}, {format_count(occurrence_count, 'failure')}, "
        f"{recovered_share} recovered."
    )
    yield ""
    yield from render_table(_columns(now), [to_facts(pattern) for pattern in patterns], width)


def _columns(now: int) -> tuple[TableColumn, ...]:
    return (
        TableColumn("pattern", lambda fact: fact["id"][:SHOWN_ID_CHARS], priority=9, needs_full_width=True),
        TableColumn("occurrences", lambda fact: f"{fact['occurrences']:,}", True, 9),
        TableColumn("unrecovered", lambda fact: f"{fact['unrecovered']:,}", True, 6),
        TableColumn("last seen", lambda fact: format_age(fact["last_seen_at"], now), True, 5),
        TableColumn(
            "state",
            lambda fact: fact["state"] + (" (reopened)" if fact["reopened"] else ""),
            priority=4,
            needs_full_width=True,
        ),
        TableColumn("tool", lambda fact: to_line(fact["tool"] or "-", 40), priority=8),
        TableColumn("kind", lambda fact: to_line(fact["kind"], 60), priority=7),
        TableColumn("message", lambda fact: to_line(fact.get("message") or "-", 80), priority=3),
    )


def render_detail(pattern: Pattern, precedents: Sequence[Precedent], now: int, width: int | None) -> Iterator[str]:
    """Render one pattern: summary, message template, occurrences by day, recoveries and example runs."""
    yield (
        f"{pattern.id} {pattern.state}: {to_line(pattern.kind, 60)} in {to_line(pattern.tool or 'no tool', 60)}, "
        f"{format_count(pattern.occurrences, 'failure')} in {format_count(pattern.runs, 'run')}, "
        f"{pattern.recovered:,} recovered, {pattern.unrecovered:,} unrecovered."
    )
    yield ""
    yield from render_pairs(_detail_rows(pattern, now), width)
    days = _count_by_day(pattern, now)
    if len(days) > 1:
        yield ""
        yield style_heading("Occurrences by day", width)
        max_count = max(number for _, number in days)
        rows = [
            (
                time.strftime("%Y-%m-%d", time.gmtime(day / 1000)),
                f"{number:,}",
                "#" * max(round(MAX_BAR_CHARS * number / max_count) if max_count else 0, int(number > 0)),
            )
            for day, number in days
        ]
        yield from render_columns(rows, right=(1,), width=width)
    yield ""
    yield style_heading("What recovered it", width)
    if not precedents:
        yield "  nothing yet"
    for precedent in precedents:
        yield from render_pairs([("-", Prompt().precedent(precedent))], width)
    if pattern.examples:
        yield ""
        yield style_heading("Example runs", width)
        for example in pattern.examples:
            age = format_age(example.started_at, now)
            yield f"  mulligan show {example.run[:SHOWN_ID_CHARS]}  step {example.seq}, {age}"


def _detail_rows(pattern: Pattern, now: int) -> Iterator[tuple[str, str]]:
    if pattern.message:
        yield "first message", to_line(pattern.message, 400)
    if pattern.template:
        yield "message template", to_line(pattern.template, 400)
    yield "first seen", format_age(pattern.first_seen_at, now)
    yield "last seen", format_age(pattern.last_seen_at, now)
    if pattern.agents:
        agents_by_count = sorted(pattern.agents.items(), key=lambda item: (-item[1], item[0]))
        yield "agents", ", ".join(f"{to_line(name or '(no name)', 40)} {number:,}" for name, number in agents_by_count)
    if pattern.server:
        yield "server", to_line(pattern.server, 80)
    if pattern.reopened:
        yield "reopened", f"{format_count(pattern.reopened, 'time')} after it was resolved"
    if pattern.merged:
        yield "merged patterns", ", ".join(pattern.merged)


def _count_by_day(pattern: Pattern, now: int) -> list[tuple[int, int]]:
    """Return the occurrences of each day, from the first day with one, for at most two weeks."""
    today = now // DAY * DAY
    first = max(min(filter(None, pattern.days), default=today), today - (MAX_DAYS - 1) * DAY)
    return [(day, pattern.days.get(day, 0)) for day in range(first, today + 1, DAY)]
