"""Text rendering of lessons: correction, evidence and effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mulligan.records import Lesson, Span, builtins
from mulligan.report.tables import Column, ago, count, heading, line, pairs, share, table

ID = 12
"""Characters of an id in a list: short enough to type, long enough to be unique."""


def facts(lesson: Lesson) -> dict[str, Any]:
    told: dict[str, Any] = builtins(lesson)
    names = ("tried", "worked", "confidence", "seen", "helped", "unhelped", "state", "stale", "source", "since", "last")
    return {**{name: getattr(lesson, name) for name in names}, **told}


def listed(found: Sequence[Lesson], now: int, width: int | None) -> Iterator[str]:
    active = sum(lesson.state == "active" for lesson in found)
    yield f"{count(len(found), 'lesson')}, {active} of them in force."
    yield ""
    yield from table(_columns(now), [facts(lesson) for lesson in found], width)


def _columns(now: int) -> tuple[Column, ...]:
    return (
        Column("lesson", lambda fact: fact["id"][:ID], keep=9, is_whole=True),
        Column("state", lambda fact: "stale" if fact["stale"] else fact["state"], keep=8, is_whole=True),
        Column("worked", lambda fact: _worked(fact), keep=6, is_whole=True),
        Column("met", lambda fact: f"{fact['seen']:,}", True, 4),
        Column("helped", lambda fact: _helped(fact), keep=3, is_whole=True),
        Column("last", lambda fact: ago(fact["last"], now), True, 2),
        Column("tool", lambda fact: line(fact["tool"] or "any", 30), keep=7),
        Column("what to do", lambda fact: line(fact["correction"], 160), keep=9),
    )


def _worked(fact: dict[str, Any] | Any) -> str:
    if not fact["tried"]:
        return "a seed" if fact["source"] == "seed" else "-"
    return f"{fact['worked']:,} of {fact['tried']:,}"


def _helped(fact: dict[str, Any] | Any) -> str:
    met = fact["helped"] + fact["unhelped"]
    return f"{fact['helped']:,} of {met:,}" if met else "-"


def shown(lesson: Lesson, now: int, width: int | None) -> Iterator[str]:
    """Render one lesson: texts, evidence and effect."""
    yield f"{lesson.id} {lesson.state}: {line(lesson.tool or 'any tool', 60)}, {line(lesson.kind or 'any failure', 60)}"
    yield ""
    yield from pairs(_words(lesson), width)
    yield ""
    yield heading("How well it is proven", width)
    yield from pairs(_evidence(lesson, now), width)
    if lesson.since:
        yield ""
        yield heading("What followed", width)
        yield from pairs(_effect(lesson, now), width)


def _words(lesson: Lesson) -> Iterator[tuple[str, str]]:
    yield "mistake", line(lesson.mistake, 900)
    yield "do instead", line(lesson.correction, 900)
    for name, text in (("it says", lesson.error), ("failed", lesson.failed), ("works", lesson.works)):
        if text:
            yield name, line(text, 900)


def _evidence(lesson: Lesson, now: int) -> Iterator[tuple[str, str]]:
    if lesson.tried:
        sure = f"; {100 * lesson.confidence:.0f} % sure at least"
        yield "worked", f"in {lesson.worked:,} of {count(lesson.tried, 'run')}{sure}, last {ago(lesson.last, now)}"
    else:
        yield "worked", "nothing is known of that here"
    if lesson.seen:
        yield "met", count(lesson.seen, "time")
    if lesson.agents:
        most = sorted(lesson.agents.items(), key=lambda item: (-item[1], item[0]))
        yield "agents", ", ".join(f"{line(name or '(no name)', 40)} {number:,}" for name, number in most)
    yield "state", lesson.state + (f": {line(lesson.why, 200)}" if lesson.why else "")
    words = "by a person" if lesson.edited else "by templates"
    origin = f", from {line(lesson.origin, 200)}" if lesson.origin else ""
    source = {"learned": "learned here", "file": "read from a file", "seed": "a seed"}[lesson.source]
    yield "words", f"{words}; {source}{origin}"
    if lesson.fix:
        yield "rests on", f"mulligan fixes show {line(lesson.fix, 30)}"
    if lesson.pattern:
        yield "pattern", f"mulligan patterns show {line(lesson.pattern, 30)}"


def _effect(lesson: Lesson, now: int) -> Iterator[tuple[str, str]]:
    yield "in force", f"since {ago(lesson.since, now)}"
    met = lesson.helped + lesson.unhelped
    helped = f"overcome by it in {lesson.helped:,} of {count(met, 'run')} that met it since" if met else "not met since"
    yield "helped", helped
    yield "before", _span(lesson.before)
    yield "after", _span(lesson.after)


def _span(span: Span) -> str:
    if not span.days:
        return "no whole day yet"
    daily = f"{span.met / span.days:.1f} a day"
    return f"met {span.met:,} times in {count(span.days, 'day')} ({daily}), {share(span.overcome, span.met)} overcome"
