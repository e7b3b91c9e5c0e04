"""Text rendering of runs and their attempts.

Untrusted text is sanitized, because terminals execute escape sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from mulligan.core import calls
from mulligan.core.failure import Remedy
from mulligan.core.links import derive_status
from mulligan.core.records import (
    VERIFY,
    Change,
    EndReason,
    Fix,
    History,
    Link,
    LinkEvidence,
    Recovery,
    RecoveryStop,
    Run,
    Step,
)
from mulligan.report.tables import (
    format_age,
    format_count,
    format_duration,
    format_timestamp,
    render_pairs,
    to_line,
    wrap_text,
)
from mulligan.store.base import Store, TrialReport

MAX_EXPLAINED_RUNS = 20
"""Latest runs of a fix that are read to explain it."""
PROVISIONAL = "provisional until the run ends"
EVIDENCE_TEXTS: dict[LinkEvidence, str] = {
    "same_arguments": "same arguments",
    "same_values": "same values in another form",
    "missing_arguments": "the error names the missing argument",
    "conversation": "same conversation continued",
    "attempt": "another attempt at the same call",
    "handler": "made in the error handler",
    "model_turn": "the model's next turn",
    "next_call": "the tool's next call in the log",
    "stated_limit": "the error states the limit",
    "tool_result": "the value came from a tool result",
    "same_text": "corrected text",
    "explicit": "marked by the program",
}
EXECUTION_TEXTS = {"no": "not executed", "yes": "executed", "unknown": "may have executed"}
OUTCOME_MARKS = {"success": "+", "failure": "x", "cancelled": "-", "blocked": "-"}


def to_facts(history: History) -> dict[str, Any]:
    """Return the fields of a run for lists, CSV and JSON."""
    run, run_calls = history.run, _group_calls(history)
    return {
        "id": run.id,
        "status": derive_status(run, history.steps, history.links),
        "running": run.end_reason is None,
        **{name: getattr(run, name) for name in ("end_reason", "agent", "version", "environment")},
        "calls": len(run_calls),
        "attempts": sum(len(call.steps) for call in run_calls),
        "started_at": run.started_at,
        "worst": _worst_failure(history),
    }


def to_summary(history: History) -> dict[str, Any]:
    """Return the JSON summary of a run with the outcome of each call."""
    run = history.run
    recovered_ids = {link.failed_call for link in history.links}
    return {
        "id": run.id,
        "status": derive_status(run, history.steps, history.links),
        **{name: getattr(run, name) for name in ("agent", "started_at", "ended_at", "end_reason")},
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
            for number, call in enumerate(_group_calls(history), start=1)
        ],
    }


def _group_calls(history: History) -> list[calls.Call]:
    """Return the calls of a run, without the failure of the run itself."""
    return [call for call in calls.group_attempts(history.steps) if call.first.type != "run"]


def end_suffix(end: EndReason | None) -> str:
    """Return the status suffix of a run that is running or abandoned."""
    return ", running" if end is None else ", abandoned" if end == "abandoned" else ""


def _worst_failure(history: History) -> str | None:
    """Describe the failure to look at first: the first unrecovered one, else the first one."""
    recovered_ids = {link.failed_call for link in history.links}
    failed_calls = [call for call in calls.group_attempts(history.steps) if call.has_failed]
    worst = min(failed_calls, key=lambda call: call.has_succeeded or call.id in recovered_ids, default=None)
    if worst is None or worst.failure is None:
        return None
    kind = str(worst.failure.kind)
    return f"{kind} in {worst.name}" if worst.name else kind  # the failure of a run without an agent has no name


def render_run(history: History, now: int, width: int | None = None) -> Iterator[str]:
    """Render one run: result, details and the timeline of all attempts."""
    run, run_calls = history.run, _group_calls(history)
    link_by_call = {link.failed_call: link for link in history.links}
    status = derive_status(run, history.steps, history.links) + end_suffix(run.end_reason)
    yield from wrap_text(f"{run.id} {status}: {_describe_result(run_calls, link_by_call)}", width, "")
    yield ""
    yield from render_pairs(_detail_rows(run, now), width)
    yield ""
    ends = (step.started_at + int(step.duration_seconds * 1000) for step in history.steps)
    # Numbered consecutively: call ids are the step numbers of first attempts and have gaps.
    numbers = {call.id: number for number, call in enumerate(run_calls, start=1)}
    bar_width = MAX_BAR_CHARS if width is None else min(MAX_BAR_CHARS, max(6, width * 3 // 10))
    frame = TimelineFrame(run.started_at, max([run.ended_at or run.started_at, *ends]), bar_width)
    for call in calls.group_attempts(history.steps):
        for text in _render_call(call, numbers, link_by_call.get(call.id), frame):
            yield from wrap_text(text, width, "", " " * (frame.indent + 2))


def _describe_result(run_calls: list[calls.Call], link_by_call: dict[int, Link]) -> str:
    failed_calls = [call for call in run_calls if call.has_failed]
    recovered_count = sum(call.has_succeeded or call.id in link_by_call for call in failed_calls)
    backoff_seconds = sum(call.backoff_seconds for call in run_calls)
    attempt_count = sum(not step.is_skipped for call in run_calls for step in call.steps)
    text = f"{format_count(len(run_calls), 'call')} in {format_count(attempt_count, 'attempt')}"
    if failed_calls:
        text += f", {recovered_count} of {len(failed_calls)} failed calls recovered"
    return f"{text}, {format_duration(backoff_seconds)} backoff." if backoff_seconds else f"{text}."


def _detail_rows(run: Run, now: int) -> Iterator[tuple[str, str]]:
    yield "agent", to_line(run.agent or "-")
    for name in ("version", "environment", "context", "parent", "traceparent"):
        if value := getattr(run, name):
            yield "trace" if name == "traceparent" else name, to_line(value)
    lasted = f", lasted {format_duration((run.ended_at - run.started_at) / 1000)}" if run.ended_at else ""
    yield "started", f"{format_timestamp(run.started_at)} UTC ({format_age(run.started_at, now)}){lasted}"


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


def _render_call(call: calls.Call, numbers: dict[int, int], link: Link | None, frame: TimelineFrame) -> Iterator[str]:
    if link is not None and link.failed_call == link.recovering_call:
        link = None  # another attempt recovered it
    stop, ending = call.last.stop, call.outcome_label
    if call.first.type == "run":
        ending = "failure of the run itself"
    elif link is not None:
        recovering_number = numbers.get(link.recovering_call, link.recovering_call)
        ending = f"recovered by {'the model in ' if link.method == 'agent' else ''}call {recovering_number}"
    elif stop is not None:
        # The stop reason is the most important fact, so it is part of the first line.
        ending = f"unrecovered: {to_line(stop.reason, 160)}{', with suggestions' if stop.suggestions else ''}"
    number, call_text = numbers.get(call.id, ""), f"{to_line(call.name or '-', 40)} ({call.first.type}), {ending}"
    if len(call.steps) == 1 and call.first.outcome == "success":
        duration = format_duration(call.first.duration_seconds)
        yield f"{number:>5}  {_render_bar(call.first, frame)}  {call_text}, {duration}"
        return
    yield f"{number:>5}  {'':{frame.bar_width}}  {call_text}"
    indent = " " * frame.indent
    for step in call.steps:
        if step.recovery is not None:
            yield f"{indent}> {_describe_recovery(step.recovery)}"
        attempt = _describe_attempt(step, step is call.last)
        yield f"{'':5}  {_render_bar(step, frame)}  {OUTCOME_MARKS[step.outcome]} {attempt}"
        if step.failure is not None and step.failure.message:
            yield f"{indent}  {to_line(step.failure.message, 160)}"
    yield from (f"{indent}> {note}" for note in _iter_notes(stop, link))


def _iter_notes(stop: RecoveryStop | None, link: Link | None) -> Iterator[str]:
    """Yield the stop reason if the first line lacks it, the spiral, the suggestions, and what recovered the call."""
    if stop is not None:
        if link is not None:
            yield f"recovery stopped: {to_line(stop.reason, 160)}"
        if stop.spiral:
            yield to_line(stop.spiral, 160)
        for suggestion in stop.suggestions:
            if suggestion.changes:
                yield f"suggestion: {_describe_repair(suggestion)}"
    if link is not None:
        if link.changes:
            yield f"changed: {_describe_changes(link.changes)}"
        elif link.intermediate_tools:
            yield f"calls in between: {to_line(', '.join(link.intermediate_tools))}"
        yield f"linked because: {describe_evidence(link)}"


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
    execution_text = EXECUTION_TEXTS[step.failure.took_effect.value]
    # Omit retry and repair after the last attempt: they would read as if they had been done.
    remedy = "" if is_last and step.failure.remedy in (Remedy.RETRY, Remedy.REPAIR) else step.failure.remedy.value
    return f"{duration_text}  {step.failure.kind}, {execution_text}" + (f", remedy: {remedy}" if remedy else "")


def _describe_recovery(recovery: Recovery) -> str:
    if recovery.source == VERIFY:
        return "verified whether the call had executed"
    phrases = [f"backoff {format_duration(recovery.backoff_seconds)}"] if recovery.backoff_seconds else []
    if recovery.changes:
        phrases.append(f"repair: {_describe_repair(recovery)}")
    return ", ".join(phrases) or recovery.remedy.value


def _describe_repair(repair: Recovery) -> str:
    return f"{_describe_changes(repair.changes)} (source: {repair.source}, {repair.confidence:.0%} confidence)"


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


# Evidence of recovery links


def describe_evidence(link: Link) -> str:
    """Describe why both calls of a recovery link have the same intent."""
    reasons = [EVIDENCE_TEXTS[evidence] for evidence in link.evidence] or ["not recorded"]
    if link.provisional:
        reasons.append(PROVISIONAL)
    return ", ".join(reasons)


def explain_trials(store: Store, tenant: str, fix: Fix, trials: Iterable[TrialReport]) -> dict[str, str]:
    """Return the evidence of the links behind a fix, by run. Only the latest runs are read."""
    reasons: dict[str, str] = {}
    for trial in islice(trials, MAX_EXPLAINED_RUNS):
        history = store.run(tenant, trial.run)
        if history is not None and (links := _links_of(history, fix)):
            reasons[trial.run] = "; ".join(dict.fromkeys(map(describe_evidence, links)))
    return reasons


def _links_of(history: History, fix: Fix) -> list[Link]:
    """Return the links whose failed call has the tool and fingerprint of a fix."""
    failed_calls = {
        call.id
        for call in calls.group_attempts(history.steps)
        if call.name == fix.tool
        and any(step.failure is not None and step.failure.fingerprint == fix.fingerprint for step in call.steps)
    }
    return [link for link in history.links if link.failed_call in failed_calls]
