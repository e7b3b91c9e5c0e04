"""Log records for the setting `log`, and lines of text for `mulligan tail`.

Each failure, retry, repair, recovery and stop is one record: a word and its fields as `name=value`, and the same fields
in `record.mulligan`. Events are redacted before they come here.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TextIO

from mulligan.core.events import (
    AnyEvent,
    ContextCompacted,
    FailureRecorded,
    LessonLearned,
    RecoveryPlanned,
    RunEnded,
    RunStarted,
    StepEnded,
    StepStarted,
)
from mulligan.core.failure import Failure
from mulligan.core.records import WAIT_METADATA, Recovery, Run, Step
from mulligan.report.call_text import OUTCOME_MARKS, describe_changes, describe_compression, describe_wait
from mulligan.report.tables import escape_hidden, format_duration, to_line

MAX_MESSAGE_CHARS = 200
"""Maximum length of an error message."""
MAX_TARGET_CHARS = 60
LINE_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
"""Format of lines on standard error, if the program has not configured `logging`."""
LEVELS = {"warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
CAPTURE, RECOVER, LEARN = "mulligan.capture", "mulligan.recover", "mulligan.learn"

_package_logger = logging.getLogger("mulligan")


class LogLine(NamedTuple):
    logger: str
    level: int
    word: str
    """What happened: failed, retry, repair, recovered, stopped, or the name of the event."""
    fields: dict[str, Any]


class EventLog:
    """Writes the records of each event to the loggers of mulligan's packages, from this level on.

    The records reach the handlers that the program has configured. Without any, they are printed to standard error.
    """

    def __init__(self, level: str) -> None:
        self._level = LEVELS[level]
        if not any(isinstance(handler, FallbackHandler) for handler in _package_logger.handlers):
            _package_logger.addHandler(FallbackHandler())
        # Respect a level that the program has set, unless it was set here for another instance.
        if _package_logger.level == logging.NOTSET or _package_logger.level in _own_levels:
            _own_levels.add(self._level)
            _package_logger.setLevel(min(_own_levels))

    def __call__(self, event: AnyEvent) -> None:
        for record in iter_records(event):
            logger = logging.getLogger(record.logger)
            if record.level >= self._level and logger.isEnabledFor(record.level):
                record_fields = {name: value for name, value in record.fields.items() if value not in (None, "")}
                text = f"{record.word} {format_fields(record_fields)}"
                extra = {"mulligan": {"event": record.word, **record_fields}}
                # Passed as an argument: a percent sign in a message must not be parsed as a placeholder.
                logger.log(record.level, "%s", text, extra=extra)


_own_levels: set[int] = set()
"""Levels that were set on the logger `mulligan` by the setting `log`."""


class FallbackHandler(logging.StreamHandler[TextIO]):
    """Prints records to standard error, unless another handler receives them."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter(LINE_FORMAT, "%H:%M:%S"))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The current standard error, which a program may replace."""
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        # Decided for each record: the program may configure logging after mulligan.
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        super().emit(record)


def iter_records(event: AnyEvent) -> Iterator[LogLine]:
    """Yield the log records of an event: none for some, two for a failed attempt after which recovery stops."""
    match event:
        case StepEnded(step):
            yield from _iter_step_records(step)
        case FailureRecorded(run_id, seq, failure):
            yield LogLine(CAPTURE, logging.WARNING, "failed", _failure_fields(failure) | {"run": run_id, "step": seq})
        case RecoveryPlanned(step, recovery):
            waiting = (step.metadata or {}).get(WAIT_METADATA)
            fields = {"tool": step.name, "attempt": step.attempt + 1} | _recovery_fields(recovery)
            if isinstance(waiting, dict):
                target = to_line(waiting.get("target"), MAX_TARGET_CHARS)
                fields |= {"waiting_for": target, "next_probe_seconds": waiting.get("next_probe_seconds")}
            fields |= _step_ids(step)
            yield LogLine(RECOVER, logging.INFO, recovery.remedy.value, fields)
        case ContextCompacted(compaction):
            names = ("reason", "chars_before", "chars_after", "tokens_before", "tokens_after", "session", "run")
            fields = {name: getattr(compaction, name) for name in names}
            counts = Counter[str]()
            for action in compaction.actions:
                counts[action.action] += action.messages
            yield LogLine(LEARN, logging.INFO, event.name, fields | counts)
        case LessonLearned(lesson):
            fields = {"lesson": lesson.id, "tool": lesson.tool, "state": lesson.state}
            yield LogLine(LEARN, logging.INFO, event.name, fields)
        case RunStarted(run) | RunEnded(run):
            yield LogLine(CAPTURE, logging.DEBUG, event.name, _run_fields(run))
        case StepStarted(step):
            fields = {"tool": step.name, "attempt": step.attempt} | _step_ids(step)
            yield LogLine(CAPTURE, logging.DEBUG, event.name, fields)


def _iter_step_records(step: Step) -> Iterator[LogLine]:
    tool = {"tool": step.name, "attempt": step.attempt}
    seconds = {"duration_seconds": round(step.duration_seconds, 6)}
    if step.has_failed:
        failure_fields = _failure_fields(step.failure) if step.failure is not None else {}
        yield LogLine(CAPTURE, logging.WARNING, "failed", tool | seconds | failure_fields | _step_ids(step))
    elif step.outcome == "success" and step.recovery is not None and not step.is_summary:
        yield LogLine(RECOVER, logging.INFO, "recovered", tool | _recovery_method(step.recovery) | _step_ids(step))
    elif step.outcome != "blocked":
        yield LogLine(
            CAPTURE, logging.DEBUG, "step.ended", tool | {"outcome": step.outcome} | seconds | _step_ids(step)
        )
    for link in step.links if step.outcome == "success" else ():  # others lead to a re-issue that failed too
        if link.failed_call != step.call:
            by_step = {"tool": step.name, "by": f"step {step.seq}", "changes": describe_changes(link.changes)}
            ids = {"run": step.run, "step": link.failed_call} | ({"provisional": True} if link.provisional else {})
            yield LogLine(RECOVER, logging.INFO, "recovered", by_step | ids)
    if step.stop is not None:
        word = "blocked" if step.outcome == "blocked" else "stopped"
        fields: dict[str, Any] = {"reason": to_line(step.stop.reason, MAX_MESSAGE_CHARS)}
        if step.stop.suggestions:
            fields["suggestions"] = len(step.stop.suggestions)
        yield LogLine(RECOVER, logging.WARNING, word, tool | fields | _step_ids(step))


def _step_ids(step: Step) -> dict[str, Any]:
    return {"run": step.run, "step": step.seq}


def _failure_fields(failure: Failure) -> dict[str, Any]:
    return {
        "kind": str(failure.kind),
        "took_effect": failure.took_effect.value,
        "message": to_line(failure.message, MAX_MESSAGE_CHARS),
        "fingerprint": failure.fingerprint,
    }


def _recovery_fields(recovery: Recovery) -> dict[str, Any]:
    fields: dict[str, Any] = {"backoff_seconds": round(recovery.backoff_seconds, 3)}
    if recovery.changes:
        fields |= {"changes": describe_changes(recovery.changes), "confidence": round(recovery.confidence, 2)}
    return fields | {"source": recovery.source}


def _recovery_method(recovery: Recovery) -> dict[str, Any]:
    return {"by": recovery.remedy.value, "source": recovery.source}


def _run_fields(run: Run) -> dict[str, Any]:
    seconds = (run.ended_at - run.started_at) / 1000 if run.ended_at is not None else None
    names = ("agent", "version", "environment", "session", "end_reason")
    return {name: getattr(run, name) for name in names} | {"duration_seconds": seconds, "run": run.id}


def format_fields(event_fields: Mapping[str, Any]) -> str:
    """Format fields as `name=value` on one line. Values are quoted where needed."""
    return " ".join(f"{name}={_quote_value(value)}" for name, value in event_fields.items())


def _quote_value(value: Any) -> str:
    text = escape_hidden(str(value)[: 2 * MAX_MESSAGE_CHARS])
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
    if compression := describe_compression(step):
        text += f", compressed {compression[0]}"
    if step.failure is not None:
        text += f", {step.failure.kind}: {to_line(step.failure.message, MAX_MESSAGE_CHARS)}"
    elif step.outcome != "success":
        text += f", {step.outcome}"
    if wait := describe_wait(step):
        text += f"; {wait}"
    if step.stop is not None:
        text += f" (unrecovered: {to_line(step.stop.reason, 80)})"
    return f"{_format_clock(timestamp)}  {step.run[:12]}  {_format_agent(agent)}  {text}"


def _format_clock(millis: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(millis / 1000))


def _format_agent(name: str) -> str:
    return f"{to_line(name or '-', 16):16}"
