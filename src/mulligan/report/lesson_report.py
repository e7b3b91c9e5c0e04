"""Text rendering of lessons: correction, evidence and effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mulligan.core.records import Lesson, PatternPeriod, to_builtins
from mulligan.report.tables import (
    TableColumn,
    format_age,
    format_count,
    format_share,
    render_pairs,
    render_table,
    style_heading,
    to_line,
)

SHOWN_ID_CHARS = 12
"""Characters of an id in a list: short enough to type, long enough to be unique."""


def to_facts(lesson: Lesson) -> dict[str, Any]:
    fact_values: dict[str, Any] = to_builtins(lesson)
    names = (
        "trials",
        "successes",
        "confidence",
        "occurrences",
        "helped_runs",
        "unhelped_runs",
        "state",
        "stale",
        "source",
        "active_since",
        "last_tried_at",
    )
    return {**{name: getattr(lesson, name) for name in names}, **fact_values}


def render_list(lessons: Sequence[Lesson], now: int, width: int | None) -> Iterator[str]:
    active_count = sum(lesson.state == "active" for lesson in lessons)
    yield f"{format_count(len(lessons), 'lesson')}, {active_count} active."
    yield ""
    yield from render_table(_columns(now), [to_facts(lesson) for lesson in lessons], width)


def _columns(now: int) -> tuple[TableColumn, ...]:
    return (
        TableColumn("lesson", lambda fact: fact["id"][:SHOWN_ID_CHARS], priority=9, needs_full_width=True),
        TableColumn(
            "state", lambda fact: "stale" if fact["stale"] else fact["state"], priority=8, needs_full_width=True
        ),
        TableColumn("successes", lambda fact: _format_successes(fact), priority=6, needs_full_width=True),
        TableColumn("occurrences", lambda fact: f"{fact['occurrences']:,}", True, 4),
        TableColumn("helped", lambda fact: _format_helped(fact), priority=3, needs_full_width=True),
        TableColumn("last trial", lambda fact: format_age(fact["last_tried_at"], now), True, 2),
        TableColumn("tool", lambda fact: to_line(fact["tool"] or "any", 30), priority=7),
        TableColumn("correction", lambda fact: to_line(fact["correction"], 160), priority=9),
    )


def _format_successes(fact: dict[str, Any] | Any) -> str:
    if not fact["trials"]:
        return "seed" if fact["source"] == "seed" else "-"
    return f"{fact['successes']:,} of {fact['trials']:,}"


def _format_helped(fact: dict[str, Any] | Any) -> str:
    affected_runs = fact["helped_runs"] + fact["unhelped_runs"]
    return f"{fact['helped_runs']:,} of {affected_runs:,}" if affected_runs else "-"


def render_detail(lesson: Lesson, now: int, width: int | None) -> Iterator[str]:
    """Render one lesson: texts, evidence and effect."""
    tool, kind = to_line(lesson.tool or "any tool", 60), to_line(lesson.kind or "any failure", 60)
    yield f"{lesson.id} {lesson.state}: {tool}, {kind}"
    yield ""
    yield from render_pairs(_text_rows(lesson), width)
    yield ""
    yield style_heading("Evidence", width)
    yield from render_pairs(_evidence_rows(lesson, now), width)
    if lesson.active_since:
        yield ""
        yield style_heading("Effect", width)
        yield from render_pairs(_effect_rows(lesson, now), width)


def _text_rows(lesson: Lesson) -> Iterator[tuple[str, str]]:
    yield "mistake", to_line(lesson.mistake, 900)
    yield "correction", to_line(lesson.correction, 900)
    for name, text in (("error", lesson.error), ("fails", lesson.failing_example), ("works", lesson.working_example)):
        if text:
            yield name, to_line(text, 900)


def _evidence_rows(lesson: Lesson, now: int) -> Iterator[tuple[str, str]]:
    if lesson.trials:
        yield (
            "successes",
            f"{lesson.successes:,} of {format_count(lesson.trials, 'run')}, "
            f"success rate at least {100 * lesson.confidence:.0f} % (lower 90 % bound), "
            f"last trial {format_age(lesson.last_tried_at, now)}",
        )
    else:
        yield "successes", "no trials yet"
    if lesson.occurrences:
        yield "occurrences", f"{lesson.occurrences:,}"
    if lesson.agents:
        agents_by_count = sorted(lesson.agents.items(), key=lambda item: (-item[1], item[0]))
        yield "agents", ", ".join(f"{to_line(name or '(no name)', 40)} {number:,}" for name, number in agents_by_count)
    yield "state", lesson.state + (f": {to_line(lesson.reason, 200)}" if lesson.reason else "")
    author_text = "written by a person" if lesson.edited else "generated from a template"
    origin = f", from {to_line(lesson.origin, 200)}" if lesson.origin else ""
    source = {"learned": "learned here", "file": "imported from a file", "seed": "seed lesson"}[lesson.source]
    yield "text", f"{author_text}; {source}{origin}"
    if lesson.fix_id:
        yield "fix", f"mulligan fixes show {to_line(lesson.fix_id, 30)}"
    if lesson.pattern:
        yield "pattern", f"mulligan patterns show {to_line(lesson.pattern, 30)}"


def _effect_rows(lesson: Lesson, now: int) -> Iterator[tuple[str, str]]:
    yield "activated", format_age(lesson.active_since, now)
    affected_runs = lesson.helped_runs + lesson.unhelped_runs
    helped_text = (
        f"recovered in {lesson.helped_runs:,} of {format_count(affected_runs, 'run')} with this failure "
        "since activation"
        if affected_runs
        else "no occurrences since activation"
    )
    yield "runs helped", helped_text
    yield "before", _format_period(lesson.stats_before)
    yield "after", _format_period(lesson.stats_after)


def _format_period(period: PatternPeriod) -> str:
    if not period.days:
        return "no full day yet"
    daily = f"{period.occurrences / period.days:.1f} per day"
    recovered_share = format_share(period.recovered, period.occurrences)
    occurrences = format_count(period.occurrences, "occurrence")
    return f"{occurrences} in {format_count(period.days, 'day')} ({daily}), {recovered_share} recovered"
