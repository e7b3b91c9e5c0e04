"""Log lines for events: `name=value` or JSON for `logging`, and text for `mulligan tail`."""

from __future__ import annotations

import logging
import time
from typing import Any, Literal

from mulligan.core.events import (
    AnyEvent,
    ContextCompacted,
    LessonLearned,
    RecoveryPlanned,
    RunEnded,
    RunStarted,
    StepEnded,
    StepStarted,
)
from mulligan.core.records import Recovery, Run, Step, encode
from mulligan.report.tables import format_duration, to_line

MAX_MESSAGE_CHARS = 200
"""Maximum length of an error message."""
OUTCOME_MARKS = {"success": "+", "failure": "x", "cancelled": "-", "blocked": "-"}


class Log:
    """Listener that writes each event to a logger: failures as warnings, other events as information.

        mulligan.add_listener(Log())

    `step.started` events are skipped: `step.ended` has the same fields and more.
    """

    def __init__(self, logger: logging.Logger | None = None, form: Literal["text", "json"] = "text") -> None:
        if form not in ("text", "json"):
            raise ValueError(f"form must be text or json, got {form!r}.")
        self._logger = logger or logging.getLogger("mulligan.events")
        self._form = form

    def __call__(self, event: AnyEvent) -> None:
        if isinstance(event, StepStarted):
            return
        level = logging.WARNING if isinstance(event, StepEnded) and event.step.has_failed else logging.INFO
        if self._logger.isEnabledFor(level):
            event_fields = to_fields(event)
            # Passed as an argument: a percent sign in a message must not be parsed as a placeholder.
            self._logger.log(
                level, "%s", encode(event_fields).decode() if self._form == "json" else format_fields(event_fields)
            )


def to_fields(event: AnyEvent) -> dict[str, Any]:
    """Return the fields of an event for one log line. Empty fields are omitted."""
    event_fields: dict[str, Any] = {"event": event.name}
    match event:
        case RunStarted(run) | RunEnded(run):
            event_fields |= _run_fields(run)
        case StepEnded(step) | StepStarted(step):
            event_fields |= _step_fields(step)
        case RecoveryPlanned(step, recovery):
            event_fields |= {
                "run": step.run,
                "seq": step.seq,
                "name": step.name,
                "attempt": step.attempt,
            } | _recovery_fields(recovery)
        case ContextCompacted(compaction):
            event_fields |= {
                "run": compaction.run,
                "session": compaction.session,
                "reason": compaction.reason,
                "chars_before": compaction.chars_before,
                "chars_after": compaction.chars_after,
            }
        case LessonLearned(lesson):
            event_fields |= {
                "lesson": lesson.id,
                "tool": lesson.tool,
                "fingerprint": lesson.fingerprint,
                "state": lesson.state,
            }
    return {name: value for name, value in event_fields.items() if value is not None and value != ""}


def _run_fields(run: Run) -> dict[str, Any]:
    seconds = (run.ended_at - run.started_at) / 1000 if run.ended_at is not None else None
    return {
        "run": run.id,
        "agent": run.agent,
        "version": run.version,
        "environment": run.environment,
        "session": run.session,
        "end_reason": run.end_reason,
        "duration_seconds": seconds,
    }


def _step_fields(step: Step) -> dict[str, Any]:
    step_fields: dict[str, Any] = {
        "run": step.run,
        "seq": step.seq,
        "call": step.call,
        "attempt": step.attempt,
        "type": step.type,
        "name": step.name,
        "outcome": step.outcome,
        "duration_seconds": round(step.duration_seconds, 6),
    }
    if step.failure is not None:
        step_fields |= {
            "kind": str(step.failure.kind),
            "remedy": step.failure.remedy.value,
            "took_effect": step.failure.took_effect.value,
            "fingerprint": step.failure.fingerprint,
            "message": to_line(step.failure.message, MAX_MESSAGE_CHARS),
        }
    if step.stop is not None:
        step_fields["stop_reason"] = to_line(step.stop.reason, MAX_MESSAGE_CHARS)
    return step_fields


def _recovery_fields(recovery: Recovery) -> dict[str, Any]:
    return {
        "remedy": recovery.remedy.value,
        "backoff_seconds": round(recovery.backoff_seconds, 3),
        "source": recovery.source,
        "changes": ",".join(f"{to_line(change.path, 60)}:{change.operation}" for change in recovery.changes),
        "confidence": recovery.confidence if recovery.changes else None,
    }


def format_fields(event_fields: dict[str, Any]) -> str:
    """Format fields as `name=value` on one line. Values are quoted where needed."""
    return " ".join(f"{name}={_quote_value(value)}" for name, value in event_fields.items())


def _quote_value(value: Any) -> str:
    text = to_line(value, 2 * MAX_MESSAGE_CHARS)
    if text and not any(character in text for character in ' ="\\'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def format_event(event: StepEnded | RunEnded, agent: str = "") -> str:
    """Format an event as one line for `mulligan tail`."""
    if isinstance(event, RunEnded):
        run = event.run
        timestamp = run.ended_at if run.ended_at is not None else run.started_at
        duration_text = f" after {format_duration((timestamp - run.started_at) / 1000)}"
        text = f". run {run.end_reason or 'running'}{duration_text}"
        return f"{_format_clock(timestamp)}  {run.id[:12]}  {_format_agent(run.agent)}  {text}"
    step = event.step
    timestamp = step.started_at + int(step.duration_seconds * 1000)
    text = f"{OUTCOME_MARKS[step.outcome]} {to_line(step.name or step.type, 40)}"
    if step.attempt > 1:
        text += f", attempt {step.attempt}"
    text += f", {format_duration(step.duration_seconds)}"
    if step.recovery is not None and step.recovery.changes:
        text += f", changed {', '.join(to_line(change.path, 30) for change in step.recovery.changes[:3])}"
    if step.failure is not None:
        text += f", {step.failure.kind}: {to_line(step.failure.message, MAX_MESSAGE_CHARS)}"
    elif step.outcome != "success":
        text += f", {step.outcome}"
    if step.stop is not None:
        text += f" (unrecovered: {to_line(step.stop.reason, 80)})"
    return f"{_format_clock(timestamp)}  {step.run[:12]}  {_format_agent(agent)}  {text}"


def _format_clock(millis: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(millis / 1000))


def _format_agent(name: str) -> str:
    return f"{to_line(name or '-', 16):16}"
