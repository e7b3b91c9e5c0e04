"""Log lines for events: `name=value` or JSON for `logging`, and text for `mulligan tail`."""

from __future__ import annotations

import logging
import time
from typing import Any, Literal

from mulligan.events import (
    AnyEvent,
    ContextCompacted,
    LessonLearned,
    RecoveryPlanned,
    RunEnded,
    RunStarted,
    StepEnded,
    StepStarted,
)
from mulligan.records import Recovery, Run, Step, encode
from mulligan.report.tables import duration, line

MESSAGE = 200
"""Maximum length of an error message."""
MARKS = {"success": "+", "failure": "x", "cancelled": "-", "refused": "-"}


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
            told = fields(event)
            # Passed as an argument: a percent sign in a message must not be parsed as a placeholder.
            self._logger.log(level, "%s", encode(told).decode() if self._form == "json" else as_text(told))


def fields(event: AnyEvent) -> dict[str, Any]:
    """Return the fields of an event for one log line. Empty fields are omitted."""
    told: dict[str, Any] = {"event": event.name}
    match event:
        case RunStarted(run) | RunEnded(run):
            told |= _run(run)
        case StepEnded(step) | StepStarted(step):
            told |= _step(step)
        case RecoveryPlanned(step, recovery):
            told |= {"run": step.run, "seq": step.seq, "name": step.name, "attempt": step.attempt} | _recovery(recovery)
        case ContextCompacted(compaction):
            told |= {
                "run": compaction.run,
                "session": compaction.session,
                "reason": compaction.reason,
                "chars_before": compaction.chars_before,
                "chars_after": compaction.chars_after,
            }
        case LessonLearned(lesson):
            told |= {"lesson": lesson.id, "tool": lesson.tool, "fingerprint": lesson.fingerprint, "state": lesson.state}
    return {name: value for name, value in told.items() if value is not None and value != ""}


def _run(run: Run) -> dict[str, Any]:
    seconds = (run.ended - run.started) / 1000 if run.ended is not None else None
    return {
        "run": run.id,
        "agent": run.agent,
        "version": run.version,
        "environment": run.environment,
        "session": run.session,
        "end": run.end,
        "seconds": seconds,
    }


def _step(step: Step) -> dict[str, Any]:
    told: dict[str, Any] = {
        "run": step.run,
        "seq": step.seq,
        "call": step.call,
        "attempt": step.attempt,
        "type": step.type,
        "name": step.name,
        "outcome": step.outcome,
        "seconds": round(step.seconds, 6),
    }
    if step.failure is not None:
        told |= {
            "kind": str(step.failure.kind),
            "remedy": step.failure.remedy.value,
            "ran": step.failure.ran.value,
            "fingerprint": step.failure.fingerprint,
            "message": line(step.failure.message, MESSAGE),
        }
    if step.ending is not None:
        told["given_up"] = line(step.ending.why, MESSAGE)
    return told


def _recovery(recovery: Recovery) -> dict[str, Any]:
    return {
        "remedy": recovery.remedy.value,
        "wait": round(recovery.seconds, 3),
        "source": recovery.source,
        "changes": ",".join(f"{line(change.path, 60)}:{change.how}" for change in recovery.changes),
        "confidence": recovery.confidence if recovery.changes else None,
    }


def as_text(told: dict[str, Any]) -> str:
    """Format fields as `name=value` on one line. Values are quoted where needed."""
    return " ".join(f"{name}={_quoted(value)}" for name, value in told.items())


def _quoted(value: Any) -> str:
    text = line(value, 2 * MESSAGE)
    if text and not any(each in text for each in ' ="\\'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def spoken(event: StepEnded | RunEnded, agent: str = "") -> str:
    """Format an event as one line for `mulligan tail`."""
    if isinstance(event, RunEnded):
        run = event.run
        at = run.ended if run.ended is not None else run.started
        lasted = f" after {duration((at - run.started) / 1000)}"
        return f"{_clock(at)}  {run.id[:12]}  {_agent(run.agent)}  . run {run.end or 'goes on'}{lasted}"
    step = event.step
    at = step.started + int(step.seconds * 1000)
    told = f"{MARKS[step.outcome]} {line(step.name or step.type, 40)}"
    if step.attempt > 1:
        told += f", attempt {step.attempt}"
    told += f", {duration(step.seconds)}"
    if step.after is not None and step.after.changes:
        told += f", changed {', '.join(line(change.path, 30) for change in step.after.changes[:3])}"
    if step.failure is not None:
        told += f", {step.failure.kind}: {line(step.failure.message, MESSAGE)}"
    elif step.outcome != "success":
        told += f", {step.outcome}"
    if step.ending is not None:
        told += f" (given up: {line(step.ending.why, 80)})"
    return f"{_clock(at)}  {step.run[:12]}  {_agent(agent)}  {told}"


def _clock(millis: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(millis / 1000))


def _agent(name: str) -> str:
    return f"{line(name or '-', 16):16}"
