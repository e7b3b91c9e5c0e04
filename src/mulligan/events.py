"""The events, and the stream that carries them: one of the two exits of the process, and guarded like the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from mulligan.records import Compaction, Lesson, Recovery, Run, Step
from mulligan.redaction import Redactor, plain

log = logging.getLogger("mulligan")


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Something that happened. `name` is a noun and a past participle."""

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)


class RunStarted(Event, frozen=True, tag="run.started"):
    run: Run


class RunEnded(Event, frozen=True, tag="run.ended"):
    run: Run


class StepStarted(Event, frozen=True, tag="step.started"):
    step: Step


class StepEnded(Event, frozen=True, tag="step.ended"):
    step: Step


class RecoveryPlanned(Event, frozen=True, tag="recovery.planned"):
    step: Step
    """The attempt that failed."""
    recovery: Recovery
    """What will be done before the next."""


class ContextCompacted(Event, frozen=True, tag="context.compacted"):
    compaction: Compaction


class LessonLearned(Event, frozen=True, tag="lesson.learned"):
    lesson: Lesson


AnyEvent = RunStarted | RunEnded | StepStarted | StepEnded | RecoveryPlanned | ContextCompacted | LessonLearned
EVENTS: dict[str, type[Event]] = {
    str(event.__struct_config__.tag): event
    for event in (RunStarted, RunEnded, StepStarted, StepEnded, RecoveryPlanned, ContextCompacted, LessonLearned)
}

Listener = Callable[[AnyEvent], object]
When = Literal["caller", "recorder"]


class Stream:
    """Carries each event once to everybody who listens.

    What it carries has passed redaction: no listener, and so no disk, sees more than may leave the process.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._in_caller: list[Listener] = []
        self._on_recorder: list[Listener] = []
        self._broken: set[int] = set()
        self._carrier: Listener | None = None

    def listen(self, listener: Listener, when: When = "recorder") -> Callable[[], None]:
        """Calls `listener` with every event, on the recorder's thread or at once in the caller's.

        Answers with a function that ends it.
        """
        listeners = self._in_caller if when == "caller" else self._on_recorder
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    def carry(self, carrier: Listener) -> None:
        """Names the recorder, which keeps each event and then calls `deliver` from its own thread."""
        self._carrier = carrier

    def publish(self, event: AnyEvent) -> None:
        try:
            event = redacted(event, self._redactor)
        except Exception:
            log.exception("%s could not be redacted and was not recorded", event.name)
            return
        for listener in tuple(self._in_caller):
            self._tell(listener, event)
        if self._carrier is not None:
            self._tell(self._carrier, event)
        else:
            self.deliver(event)

    def deliver(self, event: AnyEvent) -> None:
        """Tells the listeners that need not be told in the caller's time."""
        for listener in tuple(self._on_recorder):
            self._tell(listener, event)

    def _tell(self, listener: Listener, event: AnyEvent) -> None:
        try:
            listener(event)
        except Exception:
            if id(listener) not in self._broken:  # once a listener: a broken one would otherwise fill the log
                self._broken.add(id(listener))
                log.exception("a listener failed on %s; its further faults are not logged", event.name)


def redacted(event: AnyEvent, redactor: Redactor) -> AnyEvent:
    """The event with everything a stranger wrote made plain, bounded and free of secrets."""
    match event:
        case StepStarted() | StepEnded():
            return type(event)(_step(event.step, redactor))
        case RecoveryPlanned():
            step = _step(event.step, redactor)
            return RecoveryPlanned(step, _recovery(event.recovery, redactor))
        case RunStarted() | RunEnded():
            return type(event)(_run(event.run, redactor))
        case _:
            return event


def _run(run: Run, redactor: Redactor) -> Run:
    context, metadata = redactor.record(plain(run.context), plain(run.metadata))
    return msgspec.structs.replace(run, context=context, metadata=metadata)


def _step(step: Step, redactor: Redactor) -> Step:
    failure = step.failure
    # One record: a secret found in the arguments is also removed from the message that quotes it.
    arguments, result, metadata, message, detail, hint, changed = redactor.record(
        plain(step.arguments),
        plain(step.result),
        plain(step.metadata),
        plain(failure.message) if failure else "",
        plain(failure.detail) if failure else "",
        plain(failure.hint) if failure else "",
        _values(step.after),
    )
    if failure is not None:
        failure = msgspec.structs.replace(failure, message=message, detail=detail, hint=hint)
    return msgspec.structs.replace(
        step,
        arguments=arguments,
        result=result,
        metadata=metadata,
        failure=failure,
        after=_with_values(step.after, changed),
    )


def _recovery(recovery: Recovery, redactor: Redactor) -> Recovery:
    (changed,) = redactor.record(_values(recovery))
    return _with_values(recovery, changed) or recovery


def _values(recovery: Recovery | None) -> list[dict[str, Any]]:
    """Before and after of each change, under the argument's own name, which may say that it is a secret."""
    if recovery is None:
        return []
    return [
        side
        for change in recovery.changes
        for side in ({change.path: plain(change.before)}, {change.path: plain(change.after)})
    ]


def _with_values(recovery: Recovery | None, values: list[dict[str, Any]]) -> Recovery | None:
    if recovery is None or not recovery.changes:
        return recovery
    changed = tuple(
        msgspec.structs.replace(change, before=before[change.path], after=after[change.path])
        for change, before, after in zip(recovery.changes, values[::2], values[1::2], strict=True)
    )
    return msgspec.structs.replace(recovery, changes=changed)
