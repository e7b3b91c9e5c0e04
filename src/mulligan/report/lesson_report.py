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
    names = ("tried", "worked", "confidence", "seen", "helped", "unhelped", "state", "stale", "source", "since", "last")
    return {**{name: getattr(lesson, name) for name in names}, **fact_values}


def render_list(lessons: Sequence[Lesson], now: int, width: int | None) -> Iterator[str]:
    active_count = sum(lesson.state == "active" for lesson in lessons)
    yield f"{format_count(len(lessons), 'lesson')}, {active_count} of them in force."
    yield ""
    yield from render_table(_columns(now), [to_facts(lesson) for lesson in lessons], width)


def _columns(now: int) -> tuple[TableColumn, ...]:
    return (
        TableColumn("lesson", lambda fact: fact["id"][:SHOWN_ID_CHARS], priority=9, needs_full_width=True),
        TableColumn(
            "state", lambda fact: "stale" if fact["stale"] else fact["state"], priority=8, needs_full_width=True
        ),
        TableColumn("worked", lambda fact: _format_successes(fact), priority=6, needs_full_width=True),
        TableColumn("met", lambda fact: f"{fact['seen']:,}", True, 4),
        TableColumn("helped", lambda fact: _format_helped(fact), priority=3, needs_full_width=True),
        TableColumn("last", lambda fact: format_age(fact["last"], now), True, 2),
        TableColumn("tool", lambda fact: to_line(fact["tool"] or "any", 30), priority=7),
        TableColumn("what to do", lambda fact: to_line(fact["correction"], 160), priority=9),
    )


def _format_successes(fact: dict[str, Any] | Any) -> str:
    if not fact["tried"]:
        return "a seed" if fact["source"] == "seed" else "-"
    return f"{fact['worked']:,} of {fact['tried']:,}"


def _format_helped(fact: dict[str, Any] | Any) -> str:
    affected_runs = fact["helped"] + fact["unhelped"]
    return f"{fact['helped']:,} of {affected_runs:,}" if affected_runs else "-"


def render_detail(lesson: Lesson, now: int, width: int | None) -> Iterator[str]:
    """Render one lesson: texts, evidence and effect."""
    tool, kind = to_line(lesson.tool or "any tool", 60), to_line(lesson.kind or "any failure", 60)
    yield f"{lesson.id} {lesson.state}: {tool}, {kind}"
    yield ""
    yield from render_pairs(_text_rows(lesson), width)
    yield ""
    yield style_heading("How well it is proven", width)
    yield from render_pairs(_evidence_rows(lesson, now), width)
    if lesson.since:
        yield ""
        yield style_heading("What followed", width)
        yield from render_pairs(_effect_rows(lesson, now), width)


def _text_rows(lesson: Lesson) -> Iterator[tuple[str, str]]:
    yield "mistake", to_line(lesson.mistake, 900)
    yield "do instead", to_line(lesson.correction, 900)
    for name, text in (("it says", lesson.error), ("failed", lesson.failed), ("works", lesson.works)):
        if text:
            yield name, to_line(text, 900)


def _evidence_rows(lesson: Lesson, now: int) -> Iterator[tuple[str, str]]:
    if lesson.tried:
        confidence_text = f"; {100 * lesson.confidence:.0f} % sure at least"
        yield (
            "worked",
            f"in {lesson.worked:,} of {format_count(lesson.tried, 'run')}{confidence_text}, "
            f"last {format_age(lesson.last, now)}",
        )
    else:
        yield "worked", "nothing is known of that here"
    if lesson.seen:
        yield "met", format_count(lesson.seen, "time")
    if lesson.agents:
        agents_by_count = sorted(lesson.agents.items(), key=lambda item: (-item[1], item[0]))
        yield "agents", ", ".join(f"{to_line(name or '(no name)', 40)} {number:,}" for name, number in agents_by_count)
    yield "state", lesson.state + (f": {to_line(lesson.why, 200)}" if lesson.why else "")
    author_text = "by a person" if lesson.edited else "by templates"
    origin = f", from {to_line(lesson.origin, 200)}" if lesson.origin else ""
    source = {"learned": "learned here", "file": "read from a file", "seed": "a seed"}[lesson.source]
    yield "words", f"{author_text}; {source}{origin}"
    if lesson.fix:
        yield "rests on", f"mulligan fixes show {to_line(lesson.fix, 30)}"
    if lesson.pattern:
        yield "pattern", f"mulligan patterns show {to_line(lesson.pattern, 30)}"


def _effect_rows(lesson: Lesson, now: int) -> Iterator[tuple[str, str]]:
    yield "in force", f"since {format_age(lesson.since, now)}"
    affected_runs = lesson.helped + lesson.unhelped
    helped_text = (
        f"overcome by it in {lesson.helped:,} of {format_count(affected_runs, 'run')} that met it since"
        if affected_runs
        else "not met since"
    )
    yield "helped", helped_text
    yield "before", _format_period(lesson.before)
    yield "after", _format_period(lesson.after)


def _format_period(period: PatternPeriod) -> str:
    if not period.days:
        return "no whole day yet"
    daily = f"{period.met / period.days:.1f} a day"
    recovered_share = format_share(period.overcome, period.met)
    return f"met {period.met:,} times in {format_count(period.days, 'day')} ({daily}), {recovered_share} overcome"
