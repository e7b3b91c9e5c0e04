"""Lessons page: corrections in words, with evidence, effect and the operator's decision."""

from __future__ import annotations

from typing import Any, get_args

from mulligan.failure import SettingsError
from mulligan.prompt import Prompt
from mulligan.records import Fix, Lesson, LessonSource, LessonState, LessonVerdict, Pattern, Span
from mulligan.remember.store import LessonQuery, Store
from mulligan.serve.dashboard import charts, shown, timeline
from mulligan.serve.dashboard.asked import Asked

SHOWN = 100
STATES: dict[str, str] = {
    "proposed": "neither proven nor approved: models are not told of it",
    "active": "in force, proven or approved by a person: models are told of it",
    "disabled": "switched off by a person",
    "expired": "not used for so long that it proves nothing any more",
}
SEEDED = "models are told of it as known of this program and not seen here, after what is in force"
SOURCES: dict[str, str] = {
    "learned": "from what overcame failures here",
    "file": "written down by a person",
    "seed": "came with mulligan; not seen here, and never counted as evidence",
}
WORDS = Prompt()


def lessons(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    state, source = (asked.rest.get(name) for name in ("state", "source"))
    for name, given, known in (("state", state, get_args(LessonState)), ("source", source, get_args(LessonSource))):
        if given is not None and given not in known:
            raise SettingsError(f"{name} takes {', '.join(known)}, got {given!r}.")
    kind = asked.filters.get("kind")
    query = LessonQuery(
        tool=asked.filters.get("tool"),
        kind=f"{kind}/" if kind and "/" not in kind else kind,
        text=asked.rest.get("q", ""),
        state=state,  # type: ignore[arg-type]
        source=source,  # type: ignore[arg-type]
        now=asked.now,
        limit=SHOWN,
    )
    found = store.lessons(tenant, query)
    return {
        "rows": [row(each) for each in found],
        "active": sum(each.state == "active" for each in found),
        "seeds": sum(each.source == "seed" for each in found),
        "state": state,
        "states": STATES,
        "source": source,
        "sources": SOURCES,
        "is_narrow": bool(state or source or asked.filters or query.text),
        "is_cut": len(found) == SHOWN,
    }


def row(lesson: Lesson) -> dict[str, Any]:
    """Build the row of a lesson in a list."""
    return {
        "lesson": lesson,
        "means": SEEDED if lesson.is_seed and lesson.state == "proposed" else STATES[lesson.state],
        "mistake": shown.line(lesson.mistake or lesson.error or "(nothing was said)", 200),
        "correction": shown.line(lesson.correction or "(nothing)", 200),
        "effect": effect(lesson),
    }


def effect(lesson: Lesson) -> dict[str, Any] | None:
    """Compare the daily occurrences of the pattern before and after activation. Return `None` without data for both."""
    before, after = lesson.before, lesson.after
    if not before.days or not after.days:
        return None
    was, now = before.met / before.days, after.met / after.days
    return {
        "was": _rate(was),
        "now": _rate(now),
        # An increase is not marked as bad, because the number of calls is unknown here.
        "look": "good" if now < was else "",
        "told": "less often" if now < was else "as often" if now == was else "more often",
        "overcome": [shown.percent(each.overcome, each.met) if each.met else shown.NONE for each in (before, after)],
    }


def _rate(a_day: float) -> str:
    return f"{a_day:.1f}" if a_day < 10 else f"{a_day:,.0f}"


def lesson(store: Store, tenant: str, asked: Asked, id: str) -> dict[str, Any] | None:
    found = store.lesson(tenant, id, asked.now)
    if found is None:
        return None
    spans = [(name, span, _daily(span)) for name, span in (("before", found.before), ("since", found.after))]
    most = max(daily for *_, daily in spans)
    return {
        **row(found),
        "pattern": store.pattern(tenant, found.pattern) if found.pattern else None,
        "changes": [timeline.change(each, is_learned=True) for each in found.changes],
        "said": shown.text(WORDS.lesson(found)),
        "evidence": store.evidence(tenant, found.fix) if found.fix else [],
        "spans": [
            {"name": name, "span": span, "rate": _rate(daily), "bar": charts.bar(daily / most if most else 0)}
            for name, span, daily in spans
        ],
        "states": STATES,
        "sources": SOURCES,
    }


def _daily(span: Span) -> float:
    return span.met / span.days if span.days else 0.0


def of_tool(store: Store, tenant: str, tool: str, now: int, limit: int = 10) -> list[dict[str, Any]]:
    return [row(each) for each in store.lessons(tenant, LessonQuery(tool=tool, now=now, limit=limit))]


def of_pattern(store: Store, tenant: str, pattern: Pattern, now: int) -> list[dict[str, Any]]:
    query = LessonQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=now)
    return [row(each) for each in store.lessons(tenant, query)]


def of_fix(store: Store, tenant: str, fix: Fix, now: int) -> dict[str, Any] | None:
    """Return the row of the lesson that is based on a fix."""
    query = LessonQuery(tool=fix.tool, fingerprint=fix.fingerprint, now=now, limit=SHOWN)
    return next((row(each) for each in store.lessons(tenant, query) if each.fix == fix.id), None)


def decide(store: Store, tenant: str, now: int, id: str, form: dict[str, str]) -> Lesson | None:
    """Apply an operator's decision from the lesson's form."""
    verdict = form.get("do", "")
    if verdict not in get_args(LessonVerdict):
        raise SettingsError(f"do takes {', '.join(get_args(LessonVerdict))}, got {verdict[:40]!r}.")
    return store.decide_lesson(tenant, id, verdict, now)  # type: ignore[arg-type]
