"""Patterns page: repeated failures, what recovered them, and the operator's decisions."""

from __future__ import annotations

from typing import Any, get_args

from mulligan import calls
from mulligan.calls import Call
from mulligan.failure import SettingsError
from mulligan.links import derive_status
from mulligan.prompt import Prompt
from mulligan.records import Fix, History, Pattern, PatternState, pattern_id
from mulligan.remember.store import DAY, Command, FixQuery, Question, RunQuery, Store
from mulligan.report.fixes import does
from mulligan.serve.dashboard import charts, lessons, shown, timeline
from mulligan.serve.dashboard.asked import Asked
from mulligan.serve.dashboard.overview import emptiness, row

SHOWN = 50
EXAMPLES = 20
"""Newest runs of a pattern that are read for examples, recovery times and versions."""
TREND = 30
"""Length of the trend chart in days."""
ORDERS = {"given_up": "worst unrecovered first", "count": "most frequent first", "last": "latest first",
          "first": "newest first"}  # fmt: skip
COMMANDS = ("mute", "unmute", "resolve", "reopen", "merge", "split")


def patterns(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    order, state = asked.rest.get("order", "given_up"), asked.rest.get("state")
    if order not in ORDERS:
        raise SettingsError(f"order takes {', '.join(ORDERS)}, got {order!r}.")
    if state is not None and state not in get_args(PatternState):
        raise SettingsError(f"state takes {', '.join(get_args(PatternState))}, got {state!r}.")
    query = asked.patterns(order=order, state=state, text=asked.rest.get("q"), limit=SHOWN)
    found = store.patterns(tenant, query)
    return {
        "empty": emptiness(store, tenant, asked) if not found else None,
        "rows": [row(store, tenant, asked, pattern) for pattern in found],
        "failures": sum(pattern.count for pattern in found),
        "order": order,
        "orders": ORDERS,
        "state": state,
        "states": get_args(PatternState),
        "is_cut": len(found) == SHOWN,
    }


def pattern(store: Store, tenant: str, asked: Asked, id: str) -> dict[str, Any] | None:
    found = store.pattern(tenant, id)
    if found is None:
        return None
    newest = store.runs(tenant, RunQuery(pattern=found.id, limit=EXAMPLES))
    met = [(history, call) for history in newest for call in _met(history, found)]
    took = sorted(filter(None, (_took(history, call) for history, call in met)))
    today = asked.now // DAY * DAY
    days = [found.days.get(today - (TREND - 1 - place) * DAY, 0) for place in range(TREND)]
    starts = range(today - (TREND - 1) * DAY, today + 1, DAY)
    known = store.fixes(tenant, FixQuery(tool=found.tool, fingerprint=found.fingerprint, now=asked.now, limit=20))
    return {
        "pattern": found,
        "overcome": shown.percent(found.overcome, found.count),
        "half": took[len(took) // 2] if took else None,
        "p95": took[int(len(took) * 0.95)] if len(took) >= 20 else None,
        "of": len(took),
        "trend": charts.stacked(
            "trend",
            f"Failures by day, the last {TREND} days",
            [
                charts.Bucket(str(shown.day(start)), shown.date(start), [count])
                for start, count in zip(starts, days, strict=True)
            ],
            [charts.Part("failures", "failures", "ok")],
            "failures",
        ),
        "recent": sum(days),
        "fixes": [fix(each) for each in known],
        "lessons": lessons.of_pattern(store, tenant, found, asked.now),
        "precedents": [
            shown.text(Prompt().precedent(each))
            for each in store.recall(tenant, Question(tool=found.tool, fingerprint=found.fingerprint))
        ]
        if not known
        else [],
        "differences": _differences(met),
        "examples": [_example(history, found) for history in newest],
        "versions": _counted(history.run.version or "(no version)" for history in newest),
        "environments": _counted(history.run.environment or "(no environment)" for history in newest),
        "variables": _variables(found, met),
        "others": [
            each
            for each in store.patterns(tenant, asked.patterns(tool=found.tool, kind=None, since=None, limit=SHOWN))
            if each.id != found.id
        ],
    }


def fix(each: Fix) -> dict[str, Any]:
    """Build the row of a fix."""
    return {
        "fix": each,
        "does": shown.line(does(each), 300),
        "changes": [timeline.change(change, is_learned=True) for change in each.changes],
        "confidence": calls.wilson(each.worked, each.tried),
    }


def _met(history: History, pattern: Pattern) -> list[Call]:
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


def _took(history: History, call: Call) -> float | None:
    """Return the seconds from the first attempt to the success, by an attempt or a later call."""
    ended: Call | None = call
    if not call.has_succeeded:
        link = next((link for link in history.links if link.failed == call.id), None)
        by = {each.id: each for each in calls.group_attempts(history.steps)} if link is not None else {}
        ended = by.get(link.overcame) if link is not None else None
    if ended is None:
        return None
    return (ended.last.started - call.first.started) / 1000 + ended.last.seconds


def _differences(met: list[tuple[History, Call]]) -> list[dict[str, Any]]:
    """Return the argument changes of the newest recovered call, followed by unchanged arguments."""
    for history, call in met:
        link = next((link for link in history.links if link.failed == call.id), None)
        changes = call.changes or (link.changes if link is not None else ())
        if changes:
            same = set(call.first.arguments or ()) if isinstance(call.first.arguments, dict) else set()
            same -= {change.path for change in changes}
            return [timeline.change(change) for change in changes] + [
                {"name": name, "how": "", "before": None, "after": None, "is_same": True} for name in sorted(same)[:8]
            ]
    return []


def _example(history: History, pattern: Pattern) -> dict[str, Any]:
    met = _met(history, pattern)
    ids = {pattern.id, *pattern.merged}
    failed = [
        step for call in met for step in call.steps
        if step.failure is not None and pattern_id(step.name, step.failure.fingerprint) in ids
    ]  # fmt: skip
    return {
        "run": history.run,
        "status": derive_status(history.run, history.steps, history.links),
        "failed": len(failed),
        "message": failed[-1].failure.message if failed and failed[-1].failure else "",
        "at": failed[0].started if failed else history.run.started,
        "call": f"call-{met[0].id}" if met else "",
    }


def _variables(pattern: Pattern, met: list[tuple[History, Call]]) -> list[str]:
    """Return sample messages that share the pattern's template."""
    said = {step.failure.message for _, call in met for step in call.steps if step.failure is not None}
    return sorted(said)[:5] if len(said) > 1 else []


def _counted(names: Any) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def change(store: Store, tenant: str, now: int, id: str, form: dict[str, str]) -> Pattern | None:
    """Apply an operator's command from the pattern's form."""
    do = form.get("do", "")
    if do not in COMMANDS:
        raise SettingsError(f"do takes {', '.join(COMMANDS)}, got {do[:40]!r}.")
    about = form.get("part") or id if do == "split" else id
    into = form.get("into") or None
    if do == "merge":
        other, own = store.pattern(tenant, into) if into else None, store.pattern(tenant, id)
        if other is None:
            raise SettingsError("choose the pattern to count it with: there is none of that id.")
        if own is not None and other.id == own.id:
            raise SettingsError("these two are one pattern already.")
    command = Command(do=do, pattern=about, into=into, at=now)  # type: ignore[arg-type]
    return store.change(tenant, command)
