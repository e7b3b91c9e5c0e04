"""Pages of what was learned: patterns, fixes and lessons, with evidence and the operator's decisions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import msgspec

from mulligan.contract.store import (
    DAY,
    OWN_NAME,
    FixQuery,
    LessonQuery,
    PatternAction,
    PatternCommand,
    RecallQuery,
    RunQuery,
    Store,
    find_new_start,
)
from mulligan.core import calls
from mulligan.core.calls import Call
from mulligan.core.failure import SettingsError
from mulligan.core.records import (
    Fix,
    FixState,
    History,
    Lesson,
    LessonVerdict,
    Pattern,
    PatternStatus,
    Step,
    pattern_id,
)
from mulligan.dashboard import charts, formatting, run_pages
from mulligan.dashboard.metric_cards import empty_state
from mulligan.dashboard.page_query import PageQuery
from mulligan.prompt import Prompt
from mulligan.report.memory_text import describe_action, describe_use, describe_work, not_automatic_reason
from mulligan.report.resources import LESSON_SPEC, PATTERN_SPEC
from mulligan.report.run_text import explain_trials, status_of

MAX_SHOWN_PATTERNS = 50
MAX_SHOWN_FIXES = 25
MAX_SEARCHED_FIXES = 100_000
MAX_SHOWN_LESSONS = 50
SPARK_DAYS, TREND_DAYS = 7, 30
"""Days of the small chart in a list, and of the trend chart."""
ORDERS = {
    "unrecovered": "most unrecovered first",
    "occurrences": "most frequent first",
    "last_seen": "latest occurrence first",
    "first_seen": "newest pattern first",
}
MAX_MUTED_DAYS = 3650
BULK_ACTIONS = {
    "acknowledge": "Acknowledge", "assign": "Assign to me", "resolve": "Mark resolved", "reopen": "Reopen",
    "mute": "Mute", "unmute": "Unmute",
}  # fmt: skip
FIX_STATES: dict[FixState, str] = {
    "proposed": "succeeded in some runs; not promoted yet",
    "promoted": "promoted after enough successful runs",
    "approved": "approved by a person",
    "demoted": "failed twice in a row",
    "expired": "not used for 30 days",
    "paused": "used or failing unusually often; a person should check it",
    "revoked": "revoked by a person",
}
SHOWN_FIRST: tuple[FixState, ...] = ("approved", "promoted", "proposed", "paused", "demoted", "expired", "revoked")
"""Order in which a fix of a pattern is shown: applied automatically first."""
LESSON_STATES = {
    "proposed": "neither promoted nor approved: not shown to models",
    "active": "promoted, or approved by a person: shown to models",
    "disabled": "disabled by a person",
    "expired": "not used for too long",
}
SEED_DESCRIPTION = "shown to models after active lessons, as general advice"
LESSON_SOURCES = {
    "learned": "learned from recovered failures",
    "file": "written by a person",
    "seed": "ships with mulligan; not counted as evidence",
}


# Patterns


def patterns(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    order = page_query.find_order(ORDERS, "unrecovered")
    overrides: dict[str, Any] = {"order": order}
    if page_query.filters.get("state") == "new":  # as on the overview, not the state of the API
        overrides |= {"state": None, "new_since": find_new_start(page_query.since, page_query.now)}
    matches, pages = page_query.read_page(store, tenant, PATTERN_SPEC, MAX_SHOWN_PATTERNS, **overrides)
    return {
        "empty": empty_state(store, tenant, page_query) if not matches else None,
        "rows": build_pattern_rows(store, tenant, page_query, matches),
        "order": order,
        "order_label": ORDERS[order],
        "pattern_start": page_query.pattern_start,
        "states": get_args(PatternStatus),
        "actions": BULK_ACTIONS,
        "pages": pages,
    }


def build_pattern_rows(
    store: Store, tenant: str, page_query: PageQuery, patterns: Iterable[Pattern]
) -> list[dict[str, Any]]:
    """Build the rows of patterns in a list, each with its recent trend and best fix."""
    rows = []
    for pattern in patterns:
        query = FixQuery(tool=pattern.tool, fingerprint=pattern.fingerprint, now=page_query.now, limit=3)
        fixes = sorted(
            store.fixes(tenant, query), key=lambda fix: (SHOWN_FIRST.index(fix.state), -fix.successes, fix.id)
        )
        counts = [count for _, count in _daily_occurrences(pattern, page_query.now, SPARK_DAYS)]
        spark = charts.render_sparkline(counts, f"Occurrences by day, last {SPARK_DAYS} days")
        recovered = formatting.percent(pattern.recovered, pattern.occurrences)
        rows.append({"pattern": pattern, "spark": spark, "recovered": recovered, "fix": fixes[0] if fixes else None})
    return rows


def _daily_occurrences(pattern: Pattern, now: int, day_count: int) -> list[tuple[int, int]]:
    """Return the last days, including today, with their occurrences."""
    today = now // DAY * DAY
    return [(day, pattern.days.get(day, 0)) for day in range(today - (day_count - 1) * DAY, today + 1, DAY)]


def pattern(store: Store, tenant: str, page_query: PageQuery, id: str) -> dict[str, Any] | None:
    stored_pattern = store.pattern(tenant, id)
    if stored_pattern is None:
        return None
    tool, fingerprint, now = stored_pattern.tool, stored_pattern.fingerprint, page_query.now
    # Newest runs of a pattern that are read for examples, recovery times and versions.
    newest = store.runs(tenant, RunQuery(pattern=stored_pattern.id, limit=20))
    occurrences = [(history, call) for history in newest for call in _find_matching_calls(history, stored_pattern)]
    recovery_times = sorted(filter(None, (_recovery_seconds(history, call) for history, call in occurrences)))
    days = _daily_occurrences(stored_pattern, now, TREND_DAYS)
    buckets = [charts.Bucket(str(formatting.day(day)), formatting.date(day), [count]) for day, count in days]
    series = [charts.ChartSeries("failures", "occurrences", "ok")]
    title = f"Occurrences by day, last {TREND_DAYS} days"
    stored_fixes = store.fixes(tenant, FixQuery(tool=tool, fingerprint=fingerprint, now=now, limit=20))
    precedents = store.recall(tenant, RecallQuery(tool=tool, fingerprint=fingerprint)) if not stored_fixes else []
    other_query = page_query.query(
        PATTERN_SPEC, tool=tool, kind=None, since=None, state=None, text=None, new_since=None, limit=MAX_SHOWN_PATTERNS
    )
    messages = sorted({step.failure.message for _, call in occurrences for step in call.steps if step.failure})
    return {
        "pattern": stored_pattern,
        "work": [(name, text) for name, text in describe_work(stored_pattern) if name != "issue"],
        "recovered": formatting.percent(stored_pattern.recovered, stored_pattern.occurrences),
        "p50": recovery_times[len(recovery_times) // 2] if recovery_times else None,
        "p95": recovery_times[int(len(recovery_times) * 0.95)] if len(recovery_times) >= 20 else None,
        "sample_size": len(recovery_times),
        "trend": charts.render_stacked_bars("trend", title, buckets, series, "occurrences"),
        "recent": sum(count for _, count in days),
        "fixes": list(map(build_fix_row, stored_fixes)),
        "lessons": lesson_rows(store, tenant, LessonQuery(tool=tool, fingerprint=fingerprint, now=now)),
        "precedents": [formatting.text(Prompt().precedent(precedent, for_person=True)) for precedent in precedents],
        "differences": _differences(occurrences),
        "examples": [_example(history, stored_pattern) for history in newest],
        "versions": _count_names(history.run.version or "(no version)" for history in newest),
        "environments": _count_names(history.run.environment or "(no environment)" for history in newest),
        "variables": messages[:5] if len(messages) > 1 else [],
        "others": [other for other in store.patterns(tenant, other_query) if other.id != stored_pattern.id],
    }


def _failed_steps(call: Call, pattern: Pattern) -> list[Step]:
    """Return the attempts of a call that failed with this pattern."""
    ids = (pattern.id, *pattern.merged)
    return [step for step in call.steps if step.failure and pattern_id(step.name, step.failure.fingerprint) in ids]


def _find_matching_calls(history: History, pattern: Pattern) -> list[Call]:
    """Return the calls of a run that failed with this pattern."""
    return [
        call
        for call in calls.group_attempts(history.steps)
        if any(step.has_failed for step in _failed_steps(call, pattern))
    ]


def _recovery_seconds(history: History, call: Call) -> float | None:
    """Return the seconds from the first attempt to the success, by an attempt or a later call."""
    successful_call: Call | None = call
    if not call.has_succeeded:
        ids = [link.recovering_call for link in history.links if link.failed_call == call.id][:1]
        successful_call = next((later for later in calls.group_attempts(history.steps) if later.id in ids), None)
    return run_pages.seconds_to_success(call, successful_call)


def _differences(occurrences: list[tuple[History, Call]]) -> list[dict[str, Any]]:
    """Return the argument changes of the newest recovered call, followed by unchanged arguments."""
    for history, call in occurrences:
        changes = call.changes or next((link.changes for link in history.links if link.failed_call == call.id), ())
        if changes:
            arguments = call.first.arguments if isinstance(call.first.arguments, dict) else {}
            unchanged = sorted(set(arguments) - {change.path for change in changes})
            return [
                *map(run_pages.describe_change, changes),
                *({"name": name, "is_same": True} for name in unchanged[:8]),
            ]
    return []


def _example(history: History, pattern: Pattern) -> dict[str, Any]:
    matching_calls = _find_matching_calls(history, pattern)
    failed = [step for call in matching_calls for step in _failed_steps(call, pattern)]
    return {
        "run": history.run,
        "status": status_of(history),
        "failed": len(failed),
        "message": failed[-1].failure.message if failed and failed[-1].failure else "",
        "at": failed[0].started_at if failed else history.run.started_at,
        "call": f"call-{matching_calls[0].id}" if matching_calls else "",
    }


def _count_names(names: Iterable[str]) -> list[tuple[str, int]]:
    return sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))


def apply_command(store: Store, tenant: str, now: int, id: str, form: dict[str, str]) -> Pattern | None:
    action = _read_action(form, "command", get_args(PatternAction))
    target_id = form.get("part") or id if action == "split" else id
    into = form.get("into") or None
    if action == "merge":
        target_pattern, current_pattern = store.pattern(tenant, into) if into else None, store.pattern(tenant, id)
        if target_pattern is None:
            raise SettingsError(f"Pattern {(into or '')[:40]!r} not found. Choose the pattern to merge into.")
        if current_pattern is not None and target_pattern.id == current_pattern.id:
            raise SettingsError(f"{id[:40]!r} and {(into or '')[:40]!r} are already one pattern. Choose another one.")
    days, max_per_day = (_read_number(form, name) for name in ("days", "max_per_day"))
    command = PatternCommand(
        action=action, pattern=target_id, into=into, note=form.get("note", ""), at=now, text=form.get("text", ""),
        until=now + min(days, MAX_MUTED_DAYS) * DAY if days else None, max_per_day=max_per_day,
    )  # fmt: skip
    return store.update_pattern(tenant, command)


def apply_to_chosen(store: Store, tenant: str, now: int, _: str, form: dict[str, str]) -> list[Pattern | None]:
    """Apply a command to the patterns that are checked in the list."""
    ids = [name.removeprefix("pick ") for name in form if name.startswith("pick ")]
    if not ids:
        raise SettingsError("No pattern is selected. Check some in the list.")
    _read_action(form, "command", tuple(BULK_ACTIONS))
    fields = {"action": form["action"]} | ({"text": OWN_NAME} if form["action"] == "assign" else {})
    return [apply_command(store, tenant, now, id, fields) for id in ids]


def _read_number(form: dict[str, str], name: str) -> int | None:
    text = form.get(name, "").strip()
    if text and not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise SettingsError(f"Invalid number {text[:40]!r}. Use a whole number, or leave it empty.")
    return int(text) if text else None


# Fixes


def learned(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Return the lessons, each with the state of its fix, and the fixes that have no lesson."""
    lessons, pages = page_query.read_page(store, tenant, LESSON_SPEC, MAX_SHOWN_LESSONS)
    tool, text = page_query.filters.get("tool"), page_query.filters.get("text", "").casefold()
    all_fixes = store.fixes(tenant, FixQuery(tool=tool, now=page_query.now, limit=MAX_SEARCHED_FIXES))
    fix_states = {fix.id: fix.state for fix in all_fixes}
    learned_lessons = LessonQuery(tool=tool, source="learned", now=page_query.now, limit=MAX_SEARCHED_FIXES)
    fixes_with_lesson = {lesson.fix_id for lesson in store.lessons(tenant, learned_lessons)}
    fix_rows = [
        row
        for row in map(build_fix_row, (fix for fix in all_fixes if fix.id not in fixes_with_lesson))
        if text in f"{row['fix'].tool} {row['action'].unescape()}".casefold()
    ]
    start = page_query.page_index * MAX_SHOWN_FIXES
    # The other filters are about lessons only.
    has_fixes = page_query.filters.keys() <= {"tool", "text"}
    return {
        "rows": [build_lesson_row(lesson) | {"fix_state": fix_states.get(lesson.fix_id)} for lesson in lessons],
        "pages": pages,
        "fixes": fix_rows[start : start + MAX_SHOWN_FIXES] if has_fixes else [],
        "fix_count": len(fix_rows),
        "page_number": page_query.page_index + 1,
        "page_count": -(-len(fix_rows) // MAX_SHOWN_FIXES),
        "states": LESSON_STATES,
        "sources": LESSON_SOURCES,
    }


def build_fix_row(fix: Fix) -> dict[str, Any]:
    return {
        "fix": fix,
        "action": formatting.line(describe_action(fix), 300),
        "changes": [run_pages.describe_change(change, is_learned=True) for change in fix.changes],
        "confidence": calls.wilson_lower_bound(fix.successes, fix.trials),
        "pattern": pattern_id(fix.tool, fix.fingerprint),
        "standing": _describe_state(fix),
    }


def _describe_state(fix: Fix) -> str:
    """Describe the state of a fix: whether it is applied automatically, and if not, the reason."""
    if fix.state not in ("promoted", "approved"):
        return FIX_STATES[fix.state]
    reason = not_automatic_reason(fix)
    return f"{FIX_STATES[fix.state]}: {f'not applied automatically: {reason}' if reason else 'applied automatically'}"


def fix(store: Store, tenant: str, page_query: PageQuery, id: str) -> dict[str, Any] | None:
    all_fixes = store.fixes(tenant, FixQuery(now=page_query.now, limit=MAX_SEARCHED_FIXES))
    matches = [candidate for candidate in all_fixes if candidate.id == id] or [
        candidate for candidate in all_fixes if candidate.id.startswith(id)
    ]
    if len(matches) != 1:
        return None
    (stored_fix,) = matches
    evidence = store.evidence(tenant, stored_fix.id)
    query = LessonQuery(
        tool=stored_fix.tool, fingerprint=stored_fix.fingerprint, now=page_query.now, limit=MAX_SHOWN_LESSONS
    )
    return build_fix_row(stored_fix) | {
        "pattern": store.pattern(tenant, pattern_id(stored_fix.tool, stored_fix.fingerprint)),
        "evidence": evidence,
        "reasons": explain_trials(store, tenant, stored_fix, evidence),
        "lesson": next(
            (row for row in lesson_rows(store, tenant, query) if row["lesson"].fix_id == stored_fix.id), None
        ),
        "uses": list(describe_use(stored_fix, tenant)),
        "unapplied": _unapplied_reason(stored_fix),
    }


def _unapplied_reason(fix: Fix) -> str:
    """Return why the fix would not be applied automatically even if it is approved; empty if it would be."""
    return not_automatic_reason(msgspec.structs.replace(fix, state="approved"))


def decide_fix(store: Store, tenant: str, now: int, id: str, form: dict[str, str]) -> bool:
    action = form.get("action", "")
    if action not in ("approve", "revoke"):
        raise SettingsError(f"Invalid decision {action[:40]!r}. Use approve or revoke.")
    return store.decide(tenant, id, approved=action == "approve", at=now)


# Lessons


def build_lesson_row(lesson: Lesson) -> dict[str, Any]:
    is_new_seed = lesson.is_seed and lesson.state == "proposed"
    return {
        "lesson": lesson,
        "means": SEED_DESCRIPTION if is_new_seed else LESSON_STATES[lesson.state],
        "mistake": formatting.line(lesson.mistake or lesson.error or "(no message)", 200),
        "correction": formatting.line(lesson.correction or "(no correction)", 200),
        "effect": _compare_periods(lesson),
    }


def lesson_rows(store: Store, tenant: str, query: LessonQuery) -> list[dict[str, Any]]:
    return list(map(build_lesson_row, store.lessons(tenant, query)))


def _compare_periods(lesson: Lesson) -> dict[str, Any] | None:
    """Compare the daily occurrences of the pattern before and after activation. Return `None` without data for both."""
    periods = {"before": lesson.stats_before, "after": lesson.stats_after}
    if not all(period.days for period in periods.values()):
        return None
    before, after = (period.occurrences / period.days for period in periods.values())
    rates = [f"{rate:.1f}" if rate < 10 else f"{rate:,.0f}" for rate in (before, after)]
    return {
        "was": rates[0],
        "now": rates[1],
        # An increase is not marked as bad, because the number of calls is unknown here.
        "look": "good" if after < before else "",
        "change": f"{'less' if after < before else 'as' if after == before else 'more'} often",
        "spans": [
            {
                "name": name,
                "span": period,
                "rate": rate,
                "bar": charts.render_bar(period.occurrences / period.days / (max(before, after) or 1.0)),
                "recovered": formatting.percent(period.recovered, period.occurrences)
                if period.occurrences
                else formatting.NONE,
            }
            for (name, period), rate in zip(periods.items(), rates, strict=True)
        ],
    }


def lesson(store: Store, tenant: str, page_query: PageQuery, id: str) -> dict[str, Any] | None:
    stored_lesson = store.lesson(tenant, id, page_query.now)
    if stored_lesson is None:
        return None
    query = FixQuery(tool=stored_lesson.tool, now=page_query.now, limit=MAX_SEARCHED_FIXES)
    fixes = store.fixes(tenant, query) if stored_lesson.fix_id else []
    stored_fix = next((fix for fix in fixes if fix.id == stored_lesson.fix_id), None)
    return {
        **build_lesson_row(stored_lesson),
        "fix": stored_fix,
        "uses": list(describe_use(stored_fix, tenant)) if stored_fix else [],
        "unapplied": _unapplied_reason(stored_fix) if stored_fix else "",
        "pattern": store.pattern(tenant, stored_lesson.pattern) if stored_lesson.pattern else None,
        "changes": [run_pages.describe_change(change, is_learned=True) for change in stored_lesson.changes],
        "sentence": formatting.text(Prompt().lesson_sentence(stored_lesson)),
        "evidence": store.evidence(tenant, stored_lesson.fix_id) if stored_lesson.fix_id else [],
        "states": LESSON_STATES,
        "sources": LESSON_SOURCES,
    }


def decide_lesson(store: Store, tenant: str, now: int, id: str, form: dict[str, str]) -> Lesson | None:
    """Apply an operator's decision from the lesson's form."""
    return store.decide_lesson(tenant, id, _read_action(form, "decision", get_args(LessonVerdict)), now)


def _read_action(form: dict[str, str], noun: str, actions: Sequence[str]) -> Any:
    action = form.get("action", "")
    if action not in actions:
        raise SettingsError(f"Invalid {noun} {action[:40]!r}. Use one of: {', '.join(actions)}.")
    return action
