"""Text about what was learned: patterns, fixes and lessons. Untrusted text is sanitized."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mulligan.contract.counters import DAY
from mulligan.contract.store import DEFAULT_TENANT, TrialReport
from mulligan.core.calls import TOOL_NAME_PATH
from mulligan.core.holdout import REMINDER, REPAIR, is_lesson_id
from mulligan.core.privileged_arguments import is_privileged
from mulligan.core.records import (
    HIDDEN_VALUE,
    LAST_PATH_SEGMENT,
    REQUOTED,
    RUN_SPECIFIC,
    Change,
    Fix,
    Lesson,
    Pattern,
    PatternPeriod,
    Precedent,
    Prerequisite,
    Run,
    to_builtins,
)
from mulligan.core.transformations import describe_transformation
from mulligan.redaction import sanitize
from mulligan.report.tables import (
    SHOWN_ID_CHARS,
    format_age,
    format_count,
    format_share,
    render_columns,
    render_pairs,
    style_heading,
    to_facts,
    to_line,
)

MAX_BAR_CHARS = 30
MAX_SHOWN_TRIALS = 20
"""Latest trials of a fix that are listed, and whose runs are read to explain it."""
LESSON_SOURCES = {"learned": "learned here", "file": "imported from a file", "seed": "seed lesson"}


def _format_agents(agents: Mapping[str, int]) -> str:
    ranked = sorted(agents.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{to_line(name or '(no name)', 40)} {number:,}" for name, number in ranked)


# Patterns


def pattern_facts(pattern: Pattern) -> dict[str, Any]:
    names = "occurrences recovered unrecovered runs first_seen_at last_seen_at state reopened status owner"
    return dict(to_builtins(pattern)) | {name: getattr(pattern, name) for name in names.split()}


def render_pattern(pattern: Pattern, precedents: Sequence[Precedent], now: int, width: int | None) -> Iterator[str]:
    """Render one pattern: summary, message template, occurrences by day, recoveries and example runs."""
    yield (
        f"{pattern.id} {pattern.status}: {to_line(pattern.kind, 60)} in {to_line(pattern.tool or 'no tool', 60)}, "
        f"{format_count(pattern.occurrences, 'failure')} in {format_count(pattern.runs, 'run')}, "
        f"{pattern.recovered:,} recovered, {pattern.unrecovered:,} unrecovered."
    )
    yield ""
    yield from render_pairs(_pattern_rows(pattern, now), width)
    days = _count_by_day(pattern, now)
    if len(days) > 1:
        yield ""
        yield style_heading("Occurrences by day", width)
        highest = max(1, *(number for _, number in days))
        bars = ("#" * max(round(MAX_BAR_CHARS * number / highest), int(number > 0)) for _, number in days)
        rows = [(day, f"{number:,}", bar) for (day, number), bar in zip(days, bars, strict=True)]
        yield from render_columns(rows, right=(1,), width=width)
    yield ""
    yield style_heading("What recovered it", width)
    if not precedents:
        yield "  nothing yet"
    else:
        from mulligan.prompt import Prompt  # only for details: lists start faster without it

        yield from render_pairs(
            [("-", Prompt().precedent(precedent, for_person=True)) for precedent in precedents], width
        )
    if pattern.history:
        yield ""
        yield style_heading("History", width)
        for event in pattern.history:
            text = f": {to_line(event.text, 200)}" if event.text else ""
            yield f"  {_format_time(event.at)}  {to_line(event.by, 40)}  {event.action}{text}"
    if pattern.examples:
        yield ""
        yield style_heading("Example runs", width)
        for example in pattern.examples:
            age = format_age(example.started_at, now)
            yield f"  mulligan show {example.run[:SHOWN_ID_CHARS]}  {age}"


def _pattern_rows(pattern: Pattern, now: int) -> Iterator[tuple[str, str]]:
    for name, text in (("first message", pattern.message), ("message template", pattern.template)):
        if text:
            yield name, to_line(text, 400)
    yield "first seen", format_age(pattern.first_seen_at, now)
    yield "last seen", format_age(pattern.last_seen_at, now)
    if pattern.agents:
        yield "agents", _format_agents(pattern.agents)
    if pattern.server:
        yield "server", to_line(pattern.server, 80)
    if pattern.reopened:
        yield "reopened", f"{format_count(pattern.reopened, 'time')} after it was resolved"
    for name, text in describe_work(pattern):
        yield name, text
    if pattern.note:
        yield "note", to_line(pattern.note, 400)
    if pattern.merged:
        yield "merged patterns", ", ".join(pattern.merged)


def describe_work(pattern: Pattern) -> Iterator[tuple[str, str]]:
    """Yield what people decided about a pattern, by name."""
    if pattern.owner:
        yield "owner", to_line(pattern.owner, 80)
    if pattern.link:
        yield "issue", to_line(pattern.link, 500)
    if pattern.resolved_version:
        yield "resolved in", to_line(pattern.resolved_version, 80)
    if pattern.regressed_at:
        version = to_line(pattern.regressed_version, 80) or "a run without a version"
        yield "regressed in", f"{version}, {_format_time(pattern.regressed_at)}"
    if pattern.muted_until is not None:
        yield "muted until", _format_time(pattern.muted_until)
    if pattern.muted_max_per_day is not None:
        yield "muted up to", f"{format_count(pattern.muted_max_per_day, 'occurrence')} per day"


def _format_time(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_ms / 1000))


def _count_by_day(pattern: Pattern, now: int) -> list[tuple[str, int]]:
    """Return the occurrences of each day, from the first day with one, for at most two weeks."""
    today = now // DAY * DAY
    first = max(min(filter(None, pattern.days), default=today), today - 13 * DAY)
    return [
        (time.strftime("%Y-%m-%d", time.gmtime(day / 1000)), pattern.days.get(day, 0))
        for day in range(first, today + 1, DAY)
    ]


# Fixes


def fix_facts(fix: Fix) -> dict[str, Any]:
    names = "trials successes followed passed_over imported state type"
    return to_facts(fix, *names.split()) | {"action": describe_action(fix)}


def describe_action(fix: Fix) -> str:
    """Describe the action of a fix in a few words."""
    if fix.type == "retry":
        return "retry the same call later"
    if fix.type == "prerequisite":
        sequence = f"first call {', then '.join(map(_format_call, fix.prerequisites))}"
        names = ", ".join(sanitize(change.path, 40) for change in fix.changes)
        return f"{sequence}, then use its {names}" if names else sequence
    return ", ".join(map(_describe_change, fix.changes))


def _format_call(call: Prerequisite) -> str:
    texts = [f"{name}={_format_value(value)}" for name, value in call.arguments.items()]
    texts += [f"{name}=..." for name in call.variable_arguments]
    return f"{sanitize(call.tool, 60)}({sanitize(', '.join(texts), 120)})"


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _describe_change(change: Change) -> str:
    path, after = sanitize(change.path, 40), sanitize(str(change.after), 40)
    if change.path == TOOL_NAME_PATH:
        return f"call {after} instead"
    match change.operation:
        case "rename":
            return f"rename {path} to {after}"
        case "drop":
            return f"omit {path}"
        case "cast":
            return f"cast {path} to {sanitize(str(change.after), 20)}"
        case "parse" | "wrap":
            return f"{change.operation} {path}"
        case "trim":
            return f"trim {path} to its last segment" if change.after == LAST_PATH_SEGMENT else f"trim {path}"
    if change.form:
        return f"pass {path} {sanitize(describe_transformation(change.form), 60)}"
    if change.after == RUN_SPECIFIC:  # a missing argument that was added, or another value
        return f"set {path} to a value of its run"
    if change.after == HIDDEN_VALUE:
        return f"use a different {path}"
    value = sanitize(_format_value(change.after), 40)
    return f"{path} of {change.bound} {value}" if change.bound else f"{path}={value}"


def not_automatic_reason(fix: Fix) -> str:
    """Return why a fix can never be applied automatically; empty if only its state decides."""
    if fix.type == "prerequisite":
        if fix.changes:
            return "only the caller can read the value from the tool result"
        return 'prerequisites are called automatically only with learn = "repair"'
    if fix.type == "retry":
        return "the kind and the tool's effects decide whether a call is retried"
    if any(change.after == RUN_SPECIFIC for change in fix.changes):
        return "the value was specific to one run and is not stored"
    if any(change.after == HIDDEN_VALUE for change in fix.changes):
        return "the value is hidden at redaction level shared"
    privileged = [change.path for change in fix.changes if change.path != TOOL_NAME_PATH and is_privileged(change.path)]
    if privileged:
        return f"{sanitize(privileged[0], 40)} is a privileged argument"
    if fix.state != "approved" and any(map(_sets_value, fix.changes)):
        return "a remembered value needs approval by a person"
    return ""


def _sets_value(change: Change) -> bool:
    """Return whether a change sets a remembered value instead of converting the value of the call."""
    converted = (RUN_SPECIFIC, HIDDEN_VALUE, LAST_PATH_SEGMENT, REQUOTED)
    return change.operation in ("substitute", "clamp", "default") and change.after not in converted


def is_automatic(fix: Fix) -> bool:
    """Return whether a fix is applied automatically. Safety checks can still prevent it for a single call."""
    return fix.state in ("promoted", "approved") and not not_automatic_reason(fix)


def allow_command(path: str, tenant: str) -> str:
    """Return the command that makes redaction level shared store the values of an argument."""
    name = shlex.quote(f"+{sanitize(path.rpartition('.')[2], 40)}")
    return f"mulligan tenant set {tenant} --unredacted-arguments {name}"


def describe_advice(run: Run, actions: Mapping[str, str]) -> dict[int, list[str]]:
    """Return what a model was told after each failed call, or why not. `actions` describe fixes by id."""
    sentences: dict[int, list[str]] = {}
    for advised_fix in run.advice:
        text = f"{actions[advised_fix.fix]} ({advised_fix.fix})" if advised_fix.fix in actions else advised_fix.fix
        label = "not told: held out, " if advised_fix.held_out else "told: "
        if advised_fix.fix == REPAIR:
            label, text = "not repaired: held out, ", "to measure the effect of repairs"
        if advised_fix.fix != REMINDER and not is_lesson_id(advised_fix.fix):  # these belong to no call
            sentences.setdefault(advised_fix.call, []).append(f"{label}{to_line(text, 160)}")
    return sentences


def describe_use(fix: Fix, tenant: str = DEFAULT_TENANT) -> Iterator[tuple[str, str]]:
    """Yield label and text rows: whether a fix is applied automatically and shown to models, or why not."""
    reason = not_automatic_reason(fix) or f"state is {fix.state}"
    yield "applied", "automatically" if is_automatic(fix) else f"no: {reason}"
    hidden_reason = sanitize(fix.hidden_reason or "not shown to models", 120)
    partly = hidden_reason.removeprefix("shown ") if fix.is_partly_shown else f"no: {hidden_reason}"
    yield "shown", "to models" if fix.showable else partly
    if fix.followed or fix.passed_over:
        read = f"followed in {format_count(fix.followed, 'run')}, passed over in {fix.passed_over:,}"
        yield "advice", f"{read}; succeeded without it in {fix.successes - fix.followed:,}"
    for change in fix.changes:
        if change.after == HIDDEN_VALUE:
            yield "allow", f"{allow_command(change.path, tenant)} (on the server; for values stored from then on)"


def render_fix(
    fix: Fix, evidence: Sequence[TrialReport], reasons: Mapping[str, str], now: int, width: int | None
) -> Iterator[str]:
    """Render a fix with its latest trials. `reasons` explain, by run, why its calls are linked."""
    yield f"{sanitize(fix.tool, 60)}: {describe_action(fix)}"
    yield ""
    sources = f"confirmed by {format_count(fix.principals, 'source')} on {format_count(fix.days, 'day')}"
    imported = f"; {format_count(fix.imported, 'trial')} imported" if fix.imported else ""
    yield f"  trials   {fix.successes} of {fix.trials} succeeded; {sources}{imported}"
    yield f"  state    {fix.state}" + (f": {sanitize(fix.reason, 120)}" if fix.reason else "")
    for name, use in describe_use(fix):
        yield f"  {name:<7}  {use}"
    yield ""
    trials_by_run: dict[tuple[Any, ...], list[TrialReport]] = {}
    for trial in evidence:
        key = trial.run, trial.successful, trial.automatic, trial.principal, trial.agent
        trials_by_run.setdefault(key, []).append(trial)
    rows = [("run", "trials", "outcome", "applied", "principal", "agent", "time", "linked because")]
    rows += [
        (
            sanitize(trial.run, 30),
            f"{len(others) + 1:,}",
            "success" if trial.successful else "failure",
            "automatically" if trial.automatic else "",
            sanitize(trial.principal, 20),
            sanitize(trial.agent, 30),
            format_age(trial.at, now),
            reasons.get(trial.run, ""),
        )
        for trial, *others in list(trials_by_run.values())[:MAX_SHOWN_TRIALS]
    ]
    yield from render_columns(rows, width=width)
    if (hidden_count := len(trials_by_run) - MAX_SHOWN_TRIALS) > 0:
        yield f"  {format_count(hidden_count, 'older run')} with --json"


# Lessons


def lesson_facts(lesson: Lesson) -> dict[str, Any]:
    names = "trials successes followed confidence occurrences helped_runs unhelped_runs state stale source"
    return to_facts(lesson, *names.split(), "active_since", "last_tried_at")


def render_lesson(lesson: Lesson, now: int, width: int | None) -> Iterator[str]:
    """Render one lesson: texts, evidence and effect."""
    tool, kind = to_line(lesson.tool or "any tool", 60), to_line(lesson.kind or "any failure", 60)
    yield f"{lesson.id} {lesson.state}{' (stale)' if lesson.stale else ''}: {tool}, {kind}"
    yield ""
    texts = {name: getattr(lesson, name) for name in ("mistake", "correction", "error")}
    texts |= {"fails": lesson.failing_example, "works": lesson.working_example}
    yield from render_pairs(
        [(name, to_line(text, 900)) for name, text in texts.items() if text or name in ("mistake", "correction")], width
    )
    yield ""
    yield style_heading("Evidence", width)
    yield from render_pairs(_evidence_rows(lesson, now), width)
    if lesson.active_since:
        yield ""
        yield style_heading("Effect", width)
        yield from render_pairs(_effect_rows(lesson, now), width)


def _evidence_rows(lesson: Lesson, now: int) -> Iterator[tuple[str, str]]:
    successes = (
        f"{lesson.successes:,} of {format_count(lesson.trials, 'run')}, "
        f"success rate at least {100 * lesson.confidence:.0f} % (lower 90 % bound), "
        f"last trial {format_age(lesson.last_tried_at, now)}"
    )
    yield "successes", successes if lesson.trials else "no trials yet"
    if lesson.occurrences:
        yield "occurrences", f"{lesson.occurrences:,}"
    if lesson.agents:
        yield "agents", _format_agents(lesson.agents)
    yield "state", lesson.state + (f": {to_line(lesson.reason, 200)}" if lesson.reason else "")
    author = "written by a person" if lesson.edited else "generated from a template"
    origin = f", from {to_line(lesson.origin, 200)}" if lesson.origin else ""
    yield "text", f"{author}; {LESSON_SOURCES[lesson.source]}{origin}"
    if lesson.fix_id:
        yield "fix", f"mulligan fixes show {to_line(lesson.fix_id, 30)}"
    if lesson.pattern:
        yield "pattern", f"mulligan patterns show {to_line(lesson.pattern, 30)}"


def _effect_rows(lesson: Lesson, now: int) -> Iterator[tuple[str, str]]:
    yield "activated", format_age(lesson.active_since, now)
    affected_runs = lesson.helped_runs + lesson.unhelped_runs
    helped = f"recovered in {lesson.helped_runs:,} of {format_count(affected_runs, 'run')} with this failure"
    yield "runs helped", f"{helped} since activation" if affected_runs else "no occurrences since activation"
    yield "before", _format_period(lesson.stats_before)
    yield "after", _format_period(lesson.stats_after)


def _format_period(period: PatternPeriod) -> str:
    if not period.days:
        return "no full day yet"
    occurrences = f"{format_count(period.occurrences, 'occurrence')} in {format_count(period.days, 'day')}"
    recovered = format_share(period.recovered, period.occurrences)
    return f"{occurrences} ({period.occurrences / period.days:.1f} per day), {recovered} recovered"
