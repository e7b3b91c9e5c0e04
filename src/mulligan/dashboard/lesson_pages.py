"""Lessons page: corrections in words, with evidence, effect and the operator's decision."""

from __future__ import annotations

from typing import Any, get_args

from mulligan.core.failure import SettingsError
from mulligan.core.records import Fix, Lesson, LessonSource, LessonState, LessonVerdict, Pattern, PatternPeriod
from mulligan.dashboard import charts, formatting, timeline
from mulligan.dashboard.page_query import PageQuery
from mulligan.prompt import Prompt
from mulligan.store.base import LessonQuery, Store

MAX_SHOWN_LESSONS = 100
STATE_DESCRIPTIONS: dict[str, str] = {
    "proposed": "neither promoted nor approved: not shown to models",
    "active": "promoted, or approved by a person: shown to models",
    "disabled": "disabled by a person",
    "expired": "not used for too long",
}
SEED_DESCRIPTION = "shown to models after active lessons, as general advice not yet seen here"
SOURCE_DESCRIPTIONS: dict[str, str] = {
    "learned": "learned from recovered failures",
    "file": "written by a person",
    "seed": "ships with mulligan; not seen here, not counted as evidence",
}
PROMPT = Prompt()


def lessons(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    state, source = (page_query.other_parameters.get(name) for name in ("state", "source"))
    for name, value, choices in (("state", state, get_args(LessonState)), ("source", source, get_args(LessonSource))):
        if value is not None and value not in choices:
            raise SettingsError(f"Invalid {name} {value[:40]!r}. Use one of: {', '.join(choices)}.")
    kind = page_query.filters.get("kind")
    query = LessonQuery(
        tool=page_query.filters.get("tool"),
        kind=f"{kind}/" if kind and "/" not in kind else kind,
        text=page_query.other_parameters.get("q", ""),
        state=state,  # type: ignore[arg-type]
        source=source,  # type: ignore[arg-type]
        now=page_query.now,
        limit=MAX_SHOWN_LESSONS,
    )
    matches = store.lessons(tenant, query)
    return {
        "rows": [build_lesson_row(lesson) for lesson in matches],
        "active": sum(lesson.state == "active" for lesson in matches),
        "seeds": sum(lesson.source == "seed" for lesson in matches),
        "state": state,
        "states": STATE_DESCRIPTIONS,
        "source": source,
        "sources": SOURCE_DESCRIPTIONS,
        "is_narrow": bool(state or source or page_query.filters or query.text),
        "is_cut": len(matches) == MAX_SHOWN_LESSONS,
    }


def build_lesson_row(lesson: Lesson) -> dict[str, Any]:
    """Build the row of a lesson in a list."""
    return {
        "lesson": lesson,
        "means": SEED_DESCRIPTION
        if lesson.is_seed and lesson.state == "proposed"
        else STATE_DESCRIPTIONS[lesson.state],
        "mistake": formatting.line(lesson.mistake or lesson.error or "(no message)", 200),
        "correction": formatting.line(lesson.correction or "(no correction)", 200),
        "effect": compare_periods(lesson),
    }


def compare_periods(lesson: Lesson) -> dict[str, Any] | None:
    """Compare the daily occurrences of the pattern before and after activation. Return `None` without data for both."""
    before, after = lesson.stats_before, lesson.stats_after
    if not before.days or not after.days:
        return None
    rate_before, rate_after = before.occurrences / before.days, after.occurrences / after.days
    return {
        "was": _format_rate(rate_before),
        "now": _format_rate(rate_after),
        # An increase is not marked as bad, because the number of calls is unknown here.
        "look": "good" if rate_after < rate_before else "",
        "change": "less often"
        if rate_after < rate_before
        else "as often"
        if rate_after == rate_before
        else "more often",
        "recovered": [
            formatting.percent(period.recovered, period.occurrences) if period.occurrences else formatting.NONE
            for period in (before, after)
        ],
    }


def _format_rate(daily_rate: float) -> str:
    return f"{daily_rate:.1f}" if daily_rate < 10 else f"{daily_rate:,.0f}"


def lesson(store: Store, tenant: str, page_query: PageQuery, id: str) -> dict[str, Any] | None:
    stored_lesson = store.lesson(tenant, id, page_query.now)
    if stored_lesson is None:
        return None
    spans = [
        (name, span, _daily_rate(span))
        for name, span in (("before", stored_lesson.stats_before), ("after", stored_lesson.stats_after))
    ]
    highest_rate = max(daily for *_, daily in spans)
    return {
        **build_lesson_row(stored_lesson),
        "pattern": store.pattern(tenant, stored_lesson.pattern) if stored_lesson.pattern else None,
        "changes": [timeline.describe_change(change, is_learned=True) for change in stored_lesson.changes],
        "sentence": formatting.text(PROMPT.lesson_sentence(stored_lesson)),
        "evidence": store.evidence(tenant, stored_lesson.fix_id) if stored_lesson.fix_id else [],
        "spans": [
            {
                "name": name,
                "span": span,
                "rate": _format_rate(daily),
                "bar": charts.render_bar(daily / highest_rate if highest_rate else 0),
            }
            for name, span, daily in spans
        ],
        "states": STATE_DESCRIPTIONS,
        "sources": SOURCE_DESCRIPTIONS,
    }


def _daily_rate(span: PatternPeriod) -> float:
    return span.occurrences / span.days if span.days else 0.0


def lesson_rows_for_tool(store: Store, tenant: str, tool: str, now: int, limit: int = 10) -> list[dict[str, Any]]:
    return [build_lesson_row(lesson) for lesson in store.lessons(tenant, LessonQuery(tool=tool, now=now, limit=limit))]


def lesson_rows_for_pattern(store: Store, tenant: str, pattern: Pattern, now: int) -> list[dict[str, Any]]:
    query = LessonQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=now)
    return [build_lesson_row(lesson) for lesson in store.lessons(tenant, query)]


def lesson_row_for_fix(store: Store, tenant: str, fix: Fix, now: int) -> dict[str, Any] | None:
    """Return the row of the lesson that is based on a fix."""
    query = LessonQuery(tool=fix.tool, fingerprint=fix.fingerprint, now=now, limit=MAX_SHOWN_LESSONS)
    return next((build_lesson_row(lesson) for lesson in store.lessons(tenant, query) if lesson.fix_id == fix.id), None)


def decide(store: Store, tenant: str, now: int, id: str, form: dict[str, str]) -> Lesson | None:
    """Apply an operator's decision from the lesson's form."""
    verdict = form.get("action", "")
    if verdict not in get_args(LessonVerdict):
        raise SettingsError(f"Invalid decision {verdict[:40]!r}. Use one of: {', '.join(get_args(LessonVerdict))}.")
    return store.decide_lesson(tenant, id, verdict, now)  # type: ignore[arg-type]
