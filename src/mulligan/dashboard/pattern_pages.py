"""Patterns page: repeated failures, what recovered them, and the operator's decisions."""

from __future__ import annotations

from typing import Any, get_args

from mulligan.core import calls
from mulligan.core.calls import Call
from mulligan.core.failure import SettingsError
from mulligan.core.links import derive_status
from mulligan.core.records import Fix, History, Pattern, PatternState, pattern_id
from mulligan.dashboard import charts, formatting, lesson_pages, timeline
from mulligan.dashboard.overview_page import build_pattern_row, empty_state
from mulligan.dashboard.page_query import PageQuery
from mulligan.prompt import Prompt
from mulligan.report.fix_report import describe_action
from mulligan.store.base import DAY, FixQuery, PatternCommand, RecallQuery, RunQuery, Store

MAX_SHOWN_PATTERNS = 50
MAX_EXAMPLE_RUNS = 20
"""Newest runs of a pattern that are read for examples, recovery times and versions."""
TREND_DAYS = 30
"""Length of the trend chart in days."""
ORDERS = {
    "unrecovered": "most unrecovered first",
    "occurrences": "most frequent first",
    "last_seen": "latest occurrence first",
    "first_seen": "newest pattern first",
}
COMMANDS = ("mute", "unmute", "resolve", "reopen", "merge", "split")


def patterns(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    order, state = page_query.other_parameters.get("order", "unrecovered"), page_query.other_parameters.get("state")
    if order not in ORDERS:
        raise SettingsError(f"Invalid order {order[:40]!r}. Use one of: {', '.join(ORDERS)}.")
    if state is not None and state not in get_args(PatternState):
        raise SettingsError(f"Invalid state {state[:40]!r}. Use one of: {', '.join(get_args(PatternState))}.")
    query = page_query.pattern_query(
        order=order, state=state, text=page_query.other_parameters.get("q"), limit=MAX_SHOWN_PATTERNS
    )
    matches = store.patterns(tenant, query)
    return {
        "empty": empty_state(store, tenant, page_query) if not matches else None,
        "rows": [build_pattern_row(store, tenant, page_query, pattern) for pattern in matches],
        "failures": sum(pattern.occurrences for pattern in matches),
        "order": order,
        "orders": ORDERS,
        "state": state,
        "states": get_args(PatternState),
        "is_cut": len(matches) == MAX_SHOWN_PATTERNS,
    }


def pattern(store: Store, tenant: str, page_query: PageQuery, id: str) -> dict[str, Any] | None:
    stored_pattern = store.pattern(tenant, id)
    if stored_pattern is None:
        return None
    newest = store.runs(tenant, RunQuery(pattern=stored_pattern.id, limit=MAX_EXAMPLE_RUNS))
    occurrences = [(history, call) for history in newest for call in _find_matching_calls(history, stored_pattern)]
    recovery_times = sorted(filter(None, (_recovery_seconds(history, call) for history, call in occurrences)))
    today = page_query.now // DAY * DAY
    days = [stored_pattern.days.get(today - (TREND_DAYS - 1 - offset) * DAY, 0) for offset in range(TREND_DAYS)]
    starts = range(today - (TREND_DAYS - 1) * DAY, today + 1, DAY)
    stored_fixes = store.fixes(
        tenant, FixQuery(tool=stored_pattern.tool, fingerprint=stored_pattern.fingerprint, now=page_query.now, limit=20)
    )
    return {
        "pattern": stored_pattern,
        "recovered": formatting.percent(stored_pattern.recovered, stored_pattern.occurrences),
        "p50": recovery_times[len(recovery_times) // 2] if recovery_times else None,
        "p95": recovery_times[int(len(recovery_times) * 0.95)] if len(recovery_times) >= 20 else None,
        "sample_size": len(recovery_times),
        "trend": charts.render_stacked_bars(
            "trend",
            f"Occurrences by day, last {TREND_DAYS} days",
            [
                charts.Bucket(str(formatting.day(start)), formatting.date(start), [count])
                for start, count in zip(starts, days, strict=True)
            ],
            [charts.ChartSeries("failures", "occurrences", "ok")],
            "occurrences",
        ),
        "recent": sum(days),
        "fixes": [build_fix_row(stored_fix) for stored_fix in stored_fixes],
        "lessons": lesson_pages.lesson_rows_for_pattern(store, tenant, stored_pattern, page_query.now),
        "precedents": [
            formatting.text(Prompt().precedent(precedent))
            for precedent in store.recall(
                tenant, RecallQuery(tool=stored_pattern.tool, fingerprint=stored_pattern.fingerprint)
            )
        ]
        if not stored_fixes
        else [],
        "differences": _differences(occurrences),
        "examples": [_example(history, stored_pattern) for history in newest],
        "versions": _count_names(history.run.version or "(no version)" for history in newest),
        "environments": _count_names(history.run.environment or "(no environment)" for history in newest),
        "variables": _variables(stored_pattern, occurrences),
        "others": [
            other_pattern
            for other_pattern in store.patterns(
                tenant,
                page_query.pattern_query(tool=stored_pattern.tool, kind=None, since=None, limit=MAX_SHOWN_PATTERNS),
            )
            if other_pattern.id != stored_pattern.id
        ],
    }


def build_fix_row(fix: Fix) -> dict[str, Any]:
    """Build the row of a fix."""
    return {
        "fix": fix,
        "action": formatting.line(describe_action(fix), 300),
        "changes": [timeline.describe_change(change, is_learned=True) for change in fix.changes],
        "confidence": calls.wilson_lower_bound(fix.successes, fix.trials),
    }


def _find_matching_calls(history: History, pattern: Pattern) -> list[Call]:
    """Return the calls of a run that failed with this pattern."""
    ids = {pattern.id, *pattern.merged}
    return [
        call
        for call in calls.group_attempts(history.steps)
        if any(
            step.has_failed and step.failure is not None and pattern_id(step.name, step.failure.fingerprint) in ids
            for step in call.steps
        )
    ]


def _recovery_seconds(history: History, call: Call) -> float | None:
    """Return the seconds from the first attempt to the success, by an attempt or a later call."""
    successful_call: Call | None = call
    if not call.has_succeeded:
        link = next((link for link in history.links if link.failed_call == call.id), None)
        calls_by_id = (
            {later_call.id: later_call for later_call in calls.group_attempts(history.steps)}
            if link is not None
            else {}
        )
        successful_call = calls_by_id.get(link.recovering_call) if link is not None else None
    if successful_call is None:
        return None
    return (successful_call.last.started_at - call.first.started_at) / 1000 + successful_call.last.duration_seconds


def _differences(occurrences: list[tuple[History, Call]]) -> list[dict[str, Any]]:
    """Return the argument changes of the newest recovered call, followed by unchanged arguments."""
    for history, call in occurrences:
        link = next((link for link in history.links if link.failed_call == call.id), None)
        changes = call.changes or (link.changes if link is not None else ())
        if changes:
            same = set(call.first.arguments or ()) if isinstance(call.first.arguments, dict) else set()
            same -= {change.path for change in changes}
            return [timeline.describe_change(change) for change in changes] + [
                {"name": name, "operation": "", "before": None, "after": None, "is_same": True}
                for name in sorted(same)[:8]
            ]
    return []


def _example(history: History, pattern: Pattern) -> dict[str, Any]:
    matching_calls = _find_matching_calls(history, pattern)
    ids = {pattern.id, *pattern.merged}
    failed = [
        step for call in matching_calls for step in call.steps
        if step.failure is not None and pattern_id(step.name, step.failure.fingerprint) in ids
    ]  # fmt: skip
    return {
        "run": history.run,
        "status": derive_status(history.run, history.steps, history.links),
        "failed": len(failed),
        "message": failed[-1].failure.message if failed and failed[-1].failure else "",
        "at": failed[0].started_at if failed else history.run.started_at,
        "call": f"call-{matching_calls[0].id}" if matching_calls else "",
    }


def _variables(pattern: Pattern, occurrences: list[tuple[History, Call]]) -> list[str]:
    """Return sample messages that share the pattern's template."""
    messages = {step.failure.message for _, call in occurrences for step in call.steps if step.failure is not None}
    return sorted(messages)[:5] if len(messages) > 1 else []


def _count_names(names: Any) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def apply_command(store: Store, tenant: str, now: int, id: str, form: dict[str, str]) -> Pattern | None:
    """Apply an operator's command from the pattern's form."""
    do = form.get("action", "")
    if do not in COMMANDS:
        raise SettingsError(f"Invalid command {do[:40]!r}. Use one of: {', '.join(COMMANDS)}.")
    target_id = form.get("part") or id if do == "split" else id
    into = form.get("into") or None
    if do == "merge":
        target_pattern, current_pattern = store.pattern(tenant, into) if into else None, store.pattern(tenant, id)
        if target_pattern is None:
            raise SettingsError(f"Pattern {(into or '')[:40]!r} not found. Choose the pattern to merge into.")
        if current_pattern is not None and target_pattern.id == current_pattern.id:
            raise SettingsError(f"{id[:40]!r} and {(into or '')[:40]!r} are already one pattern. Choose another one.")
    command = PatternCommand(action=do, pattern=target_id, into=into, at=now)  # type: ignore[arg-type]
    return store.update_pattern(tenant, command)
