"""Text rendering of runs and their attempts.

Untrusted text is sanitized, because terminals execute escape sequences.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args

from mulligan.core import calls
from mulligan.core.failure import Remedy
from mulligan.core.links import derive_status
from mulligan.core.records import VERIFY, Change, EndReason, History, Link, Recovery, RecoveryStop, Run, Status, Step
from mulligan.report.link_evidence import describe_evidence
from mulligan.report.tables import TableColumn, render_pairs, render_table, wrap_text
from mulligan.report.tables import format_age as format_age
from mulligan.report.tables import format_count as format_count
from mulligan.report.tables import format_duration as format_duration
from mulligan.report.tables import render_columns as render_columns
from mulligan.report.tables import to_line as to_line
from mulligan.store import counters
from mulligan.store.counters import Cell

OUTCOME_MARKS = {"success": "+", "failure": "x", "cancelled": "-", "blocked": "-"}


def render_runs(histories: Sequence[History], now: int, width: int | None = None) -> Iterator[str]:
    """Render a summary and one line per run."""
    totals = counters.stats(histories).total
    status_counts = ", ".join(
        f"{totals.runs[status]} {status}" for status in get_args(Status) if totals.runs.get(status)
    )
    failed = _count_failed_calls(totals)
    recovered_text = f" {totals.recovered} of {format_count(failed, 'failed call')} recovered." if failed else ""
    yield f"{format_count(len(histories), 'run')}: {status_counts}.{recovered_text}"
    yield ""
    yield from render_table(_columns(now), map(to_facts, histories), width)


CSV_COLUMNS = ("id", "status", "running", "agent", "version", "environment", "calls", "attempts", "started_at", "worst")


def to_facts(history: History) -> dict[str, Any]:
    """Return the fields of a run for lists, CSV and JSON."""
    run_calls = [call for call in calls.group_attempts(history.steps) if call.first.type != "run"]
    return {
        "id": history.run.id,
        "status": derive_status(history.run, history.steps, history.links),
        "running": history.run.end_reason is None,
        "end_reason": history.run.end_reason,
        "agent": history.run.agent,
        "version": history.run.version,
        "environment": history.run.environment,
        "calls": len(run_calls),
        "attempts": sum(len(call.steps) for call in run_calls),
        "started_at": history.run.started_at,
        "worst": _worst_failure(history),
    }


def to_summary(history: History) -> dict[str, Any]:
    """Return the JSON summary of a run with the outcome of each call."""
    run_calls = [call for call in calls.group_attempts(history.steps) if call.first.type != "run"]
    recovered_ids = {link.failed_call for link in history.links}
    return {
        "id": history.run.id,
        "status": derive_status(history.run, history.steps, history.links),
        "agent": history.run.agent,
        "started_at": history.run.started_at,
        "ended_at": history.run.ended_at,
        "end_reason": history.run.end_reason,
        "calls": [
            {
                "number": number,
                "call": call.id,
                "name": call.name,
                "type": call.first.type,
                "attempts": len(call.steps),
                "outcome": call.outcome_label,
                "kind": str(call.failure.kind) if call.failure else None,
                "recovered": call.has_succeeded or call.id in recovered_ids if call.has_failed else None,
                "stop_reason": call.last.stop.reason if call.last.stop else None,
            }
            for number, call in enumerate(run_calls, start=1)
        ],
    }


def _columns(now: int) -> tuple[TableColumn, ...]:
    return (
        TableColumn("run", lambda fact: fact["id"][:12], priority=9, needs_full_width=True),
        TableColumn("status", lambda fact: fact["status"] + _end_suffix(fact["end_reason"]), priority=8),
        TableColumn("calls", lambda fact: str(fact["calls"]), True, 4),
        TableColumn("attempts", lambda fact: str(fact["attempts"]), True, 2),
        TableColumn("when", lambda fact: format_age(fact["started_at"], now), priority=6),
        TableColumn("agent", lambda fact: to_line(fact["agent"] or "-", 24), priority=5),
        TableColumn("worst failure", lambda fact: to_line(fact["worst"] or "-", 60), priority=7),
    )


def _count_failed_calls(totals: Cell) -> int:
    return totals.recovered + totals.given_up


def format_status(history: History) -> str:
    status = derive_status(history.run, history.steps, history.links)
    return status + _end_suffix(history.run.end_reason)


def _end_suffix(end: EndReason | None) -> str:
    """Return the status suffix of a run that is running or abandoned."""
    return ", running" if end is None else ", abandoned" if end == "abandoned" else ""


def _worst_failure(history: History) -> str | None:
    """Describe the failure to look at first: the first unrecovered one, else the first one."""
    recovered_ids = {link.failed_call for link in history.links}
    failed_calls = [call for call in calls.group_attempts(history.steps) if call.has_failed]
    unrecovered_first = sorted(failed_calls, key=lambda call: call.has_succeeded or call.id in recovered_ids)
    if not unrecovered_first or unrecovered_first[0].failure is None:
        return None
    kind, name = unrecovered_first[0].failure.kind, unrecovered_first[0].name
    return f"{kind} in {name}" if name else str(kind)  # the failure of a run without an agent has no name


def render_run(history: History, now: int, width: int | None = None) -> Iterator[str]:
    """Render one run: result, details and the timeline of all attempts."""
    run_record = history.run
    all_calls = calls.group_attempts(history.steps)
    run_calls = [call for call in all_calls if call.first.type != "run"]
    failed_calls = [call for call in run_calls if call.has_failed]
    link_by_call = {link.failed_call: link for link in history.links}
    recovered_count = sum(call.has_succeeded or call.id in link_by_call for call in failed_calls)
    backoff_seconds = sum(call.backoff_seconds for call in run_calls)
    result = _describe_result(run_calls, failed_calls, recovered_count, backoff_seconds)
    yield from wrap_text(f"{run_record.id} {format_status(history)}: {result}", width, "")
    yield ""
    yield from render_pairs(_detail_rows(run_record, now), width)
    yield ""
    begin = run_record.started_at
    end = max(
        [run_record.ended_at or begin, *(step.started_at + int(step.duration_seconds * 1000) for step in history.steps)]
    )
    # Numbered consecutively: call ids are the step numbers of first attempts and have gaps.
    numbers = {call.id: number for number, call in enumerate(run_calls, start=1)}
    frame = TimelineFrame(begin, end, MAX_BAR_CHARS if width is None else min(MAX_BAR_CHARS, max(6, width * 3 // 10)))
    for call in all_calls:
        for text in _render_call(call, numbers, link_by_call.get(call.id), frame):
            yield from wrap_text(text, width, "", " " * (frame.indent + 2))


def _describe_result(
    run_calls: list[calls.Call], failed_calls: list[calls.Call], recovered_count: int, backoff_seconds: float
) -> str:
    attempt_count = sum(not step.is_skipped for call in run_calls for step in call.steps)
    text = f"{format_count(len(run_calls), 'call')} in {format_count(attempt_count, 'attempt')}"
    if failed_calls:
        text += f", {recovered_count} of {len(failed_calls)} failed calls recovered"
    return f"{text}, {format_duration(backoff_seconds)} backoff." if backoff_seconds else f"{text}."


def _detail_rows(run_record: Run, now: int) -> Iterator[tuple[str, str]]:
    yield "agent", to_line(run_record.agent or "-")
    if run_record.version:
        yield "version", to_line(run_record.version)
    if run_record.environment:
        yield "environment", to_line(run_record.environment)
    if run_record.context:
        yield "context", to_line(run_record.context)
    if run_record.parent:
        yield "parent", to_line(run_record.parent)
    if run_record.traceparent:
        yield "trace", to_line(run_record.traceparent)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run_record.started_at / 1000))
    lasted = (
        f", lasted {format_duration((run_record.ended_at - run_record.started_at) / 1000)}"
        if run_record.ended_at
        else ""
    )
    yield "started", f"{when} ({format_age(run_record.started_at, now)}){lasted}"


MAX_BAR_CHARS = 30


class TimelineFrame(NamedTuple):
    """Time range of a run and the width of its timeline bar."""

    begin: int
    end: int
    bar_width: int

    @property
    def indent(self) -> int:
        """Column where the text of an attempt starts, after the bar."""
        return self.bar_width + 9

    def indent_text(self, text: str) -> str:
        return " " * self.indent + text


def _render_call(call: calls.Call, numbers: dict[int, int], link: Link | None, frame: TimelineFrame) -> Iterator[str]:
    is_recovered = link is not None and link.failed_call != link.recovering_call
    recovering_number = numbers.get(link.recovering_call, link.recovering_call) if link is not None else 0
    ending = (
        _describe_recovering_call(link, recovering_number) if link is not None and is_recovered else call.outcome_label
    )
    if call.last.stop is not None and not is_recovered:
        # The stop reason is the most important fact, so it is part of the first line.
        ending = f"unrecovered: {to_line(call.last.stop.reason, 160)}"
        ending += ", with suggestions" if call.last.stop.suggestions else ""
    number = numbers.get(call.id, "")
    if call.first.type == "run":
        ending = "failure of the run itself"
    call_text = f"{to_line(call.name or '-', 40)} ({call.first.type}), {ending}"
    if len(call.steps) == 1 and call.first.outcome == "success":
        duration = format_duration(call.first.duration_seconds)
        yield f"{number:>5}  {_render_bar(call.first, frame)}  {call_text}, {duration}"
        return
    yield f"{number:>5}  {'':{frame.bar_width}}  {call_text}"
    for step in call.steps:
        if step.recovery is not None:
            yield frame.indent_text(f"> {_describe_recovery(step.recovery)}")
        attempt = _describe_attempt(step, step is call.last)
        yield f"{'':5}  {_render_bar(step, frame)}  {OUTCOME_MARKS[step.outcome]} {attempt}"
        if step.failure is not None and step.failure.message:
            yield frame.indent_text(f"  {to_line(step.failure.message, 160)}")
    if call.last.stop is not None:
        yield from _render_stop(call.last.stop, frame, is_recovered)
    if link is not None and is_recovered and link.changes:
        yield frame.indent_text(f"> changed: {_describe_changes(link.changes)}")
    elif link is not None and is_recovered and link.intermediate_tools:
        yield frame.indent_text(f"> calls in between: {to_line(', '.join(link.intermediate_tools))}")
    if link is not None and is_recovered:
        yield frame.indent_text(f"> linked because: {describe_evidence(link)}")


def _describe_recovering_call(link: Link, recovering_number: int) -> str:
    """Describe which later call recovered an unrecovered call, and whether the model made it."""
    return (
        f"recovered by the model in call {recovering_number}"
        if link.method == "agent"
        else f"recovered by call {recovering_number}"
    )


def _render_stop(stop: RecoveryStop, frame: TimelineFrame, is_recovered: bool) -> Iterator[str]:
    """Yield the stop reason if the first line lacks it, the spiral, and the remaining suggestions."""
    if is_recovered:
        yield frame.indent_text(f"> recovery stopped: {to_line(stop.reason, 160)}")
    if stop.spiral:
        yield frame.indent_text(f"> {to_line(stop.spiral, 160)}")
    for suggestion in stop.suggestions:
        if suggestion.changes:
            yield frame.indent_text(
                f"> suggestion: {_describe_changes(suggestion.changes)} "
                f"(source: {suggestion.source}, {suggestion.confidence:.0%} confidence)"
            )


def _render_bar(step: Step, frame: TimelineFrame) -> str:
    """Render the time range of an attempt within the run as a text bar."""
    span = max(1, frame.end - frame.begin)
    offset = min(frame.bar_width - 1, (step.started_at - frame.begin) * frame.bar_width // span)
    length = max(1, min(frame.bar_width - offset, round(step.duration_seconds * 1000 * frame.bar_width / span)))
    mark = "#" if step.has_failed else "=" if step.outcome == "success" else "-"
    return "." * offset + mark * length + "." * (frame.bar_width - offset - length)


def _describe_attempt(step: Step, is_last: bool) -> str:
    duration_text = format_duration(step.duration_seconds)
    if step.is_skipped:
        return "not executed"
    if step.failure is None:
        return duration_text if step.outcome == "success" else f"{duration_text}  {step.outcome}"
    execution_text = {"no": "not executed", "yes": "executed", "unknown": "may have executed"}[
        step.failure.took_effect.value
    ]
    # Omit retry and repair after the last attempt: they would read as if they had been done.
    remedy = "" if is_last and step.failure.remedy in (Remedy.RETRY, Remedy.REPAIR) else step.failure.remedy.value
    return f"{duration_text}  {step.failure.kind}, {execution_text}" + (f", remedy: {remedy}" if remedy else "")


def _describe_recovery(recovery: Recovery) -> str:
    if recovery.source == VERIFY:
        return "verified whether the call had executed"
    phrases = [f"backoff {format_duration(recovery.backoff_seconds)}"] if recovery.backoff_seconds else []
    if recovery.changes:
        phrases.append(
            f"repair: {_describe_changes(recovery.changes)} "
            f"(source: {recovery.source}, {recovery.confidence:.0%} confidence)"
        )
    return ", ".join(phrases) or recovery.remedy.value


def _describe_changes(changes: Sequence[Change]) -> str:
    return ", ".join(_describe_change(change) for change in changes)


def _describe_change(change: Change) -> str:
    before, after = to_line(repr(change.before), 40), to_line(repr(change.after), 40)
    if change.operation == "drop":
        return f"{to_line(change.path, 40)} dropped"
    if change.operation == "rename" and change.path != calls.TOOL_NAME_PATH:
        return f"{to_line(change.before, 40)} renamed to {to_line(change.after, 40)}"
    if change.before is None and change.after is not None:  # the argument was missing
        return f"{to_line(change.path, 40)}={after}"
    return f"{to_line(change.path, 40)} {before} -> {after}"
