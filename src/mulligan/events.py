"""Events and the event stream. Every event is redacted before it is published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from mulligan.gate import Gate as Gate
from mulligan.gate import steps_of as steps_of
from mulligan.records import Compaction, Lesson, Recovery, Run, Step
from mulligan.redaction import Redactor
from mulligan.success import Form, Success, thawed


def _complain(told: str, *about: object) -> None:
    """Log the exception being handled."""
    import logging  # lazy: hooks are short-lived and rarely log

    logging.getLogger("mulligan").exception(told, *about)


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Base class of events. `name` is a noun and a past participle, such as `run.ended`."""

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)


class RunStarted(Event, frozen=True, tag="run.started"):
    run: Run


class RunEnded(Event, frozen=True, tag="run.ended"):
    run: Run


class StepStarted(Event, frozen=True, tag="step.started"):
    step: Step


class StepEnded(Event, frozen=True, gc=False, tag="step.ended"):
    step: Step


class RecoveryPlanned(Event, frozen=True, tag="recovery.planned"):
    step: Step
    """The failed attempt."""
    recovery: Recovery
    """The recovery before the next attempt."""


class ContextCompacted(Event, frozen=True, tag="context.compacted"):
    compaction: Compaction


class LessonLearned(Event, frozen=True, tag="lesson.learned"):
    lesson: Lesson


AnyEvent = RunStarted | RunEnded | StepStarted | StepEnded | RecoveryPlanned | ContextCompacted | LessonLearned
EVENTS: dict[str, type[Event]] = {
    str(event.__struct_config__.tag): event
    for event in (RunStarted, RunEnded, StepStarted, StepEnded, RecoveryPlanned, ContextCompacted, LessonLearned)
}


class Kept(Sequence[AnyEvent]):
    """Redacted events to store. Events of successful calls are built only when read."""

    def __init__(self, records: Sequence[AnyEvent | Success]) -> None:
        self.records = records
        """Events, or success records that need no redaction."""

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: Any) -> Any:
        some = self.records[place]
        return list(map(_event, some)) if isinstance(place, slice) else _event(some)

    def __iter__(self) -> Iterator[AnyEvent]:
        return map(_event, self.records)


def _event(record: AnyEvent | Success) -> AnyEvent:
    return StepEnded(*steps_of([record])) if isinstance(record, Success) else record


Listener = Callable[[AnyEvent], object]
When = Literal["caller", "recorder"]


class Carrier(Protocol):
    """The consumer that stores events: the recorder."""

    def __call__(self, event: AnyEvent) -> None:
        """Store a redacted event."""

    def keep(self, success: Success) -> None:
        """Store a successful call. It is redacted on the recorder's thread."""


class Stream:
    """Publishes each event once to every listener.

    Events are redacted first, so that no listener and no disk receives unredacted data.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._gate = Gate(redactor)
        self._in_caller: list[Listener] = []
        self._on_recorder: list[Listener] = []
        self.watchers: list[Listener] = []
        """All listeners, on either thread. Without any, start events are not published."""
        self._broken: set[int] = set()
        self._carrier: Carrier | None = None

    def listen(self, listener: Listener, when: When = "recorder") -> Callable[[], None]:
        """Call `listener` with every event, on the recorder's thread or in the caller's thread.

        Return a function that removes it.
        """
        listeners = self._in_caller if when == "caller" else self._on_recorder
        listeners.append(listener)
        self.watchers.append(listener)

        def end() -> None:
            if listener in listeners:
                listeners.remove(listener)
                self.watchers.remove(listener)
                self._broken.discard(id(listener))  # the id of a deleted object can be reused

        return end

    def carry(self, carrier: Carrier) -> None:
        """Set the recorder, which stores each event and then calls `deliver` on its own thread."""
        self._carrier = carrier

    def nameable(self, id: str) -> str:
        """Return the session id in a form that may be stored."""
        return self._gate.nameable(id)

    def succeed(self, success: Success) -> None:
        """Publish a successful first attempt. Without listeners in the caller's thread, the recorder builds the
        event."""
        if self._carrier is not None and not self._in_caller:
            self._carrier.keep(success)
        else:
            step = success.step(success.form.name, success.arguments, thawed(success.result))
            self.publish(StepEnded(step))
            if success.alone is not None:
                self.publish(RunEnded(success.whole_run(success.alone.run)))

    def known(self, form: Form) -> Form:
        """Return a call template with its journal prefixes."""
        return self._gate.known(form)

    def kept(self, records: Sequence[AnyEvent | Success]) -> Kept:
        """Redact queued records, in order. Success records without sensitive data stay as they are."""
        steps, runs = self._gate.successes([record for record in records if type(record) is Success])
        if not steps and not runs:
            return Kept(records)
        kept: list[AnyEvent | Success] = []
        place = 0
        for record in records:
            if type(record) is not Success:
                kept.append(record)
                continue
            kept.append(StepEnded(steps[place]) if place in steps else record)
            if place in runs:
                kept.append(RunEnded(runs[place]))
            place += 1
        return Kept(kept)

    def publish(self, event: AnyEvent) -> None:
        if isinstance(event, StepStarted) and not self.watchers:
            return  # start events are not stored
        try:
            event = _through(self._gate, event)
        except Exception:  # noqa: BLE001 - publishing must not fail the caller
            _complain("%s could not be redacted and was not recorded", event.name)
            return
        for listener in tuple(self._in_caller):
            self._tell(listener, event)
        if self._carrier is not None:
            self._tell(self._carrier, event)
        else:
            self.deliver(event)

    def deliver(self, event: AnyEvent) -> None:
        """Call the listeners that run on the recorder's thread."""
        for listener in tuple(self._on_recorder):
            self._tell(listener, event)

    def _tell(self, listener: Callable[[Any], object], event: AnyEvent) -> None:
        try:
            listener(event)
        except Exception:  # noqa: BLE001 - publishing must not fail the caller
            if id(listener) not in self._broken:  # log once per listener, to keep the log readable
                self._broken.add(id(listener))
                _complain("a listener failed on %s; its further faults are not logged", event.name)


def redacted(event: AnyEvent, redactor: Redactor) -> AnyEvent:
    """Return the event with untrusted text as plain data, bounded and without secrets."""
    return _through(Gate(redactor), event)


def all_redacted(events: Sequence[AnyEvent], gate: Gate) -> list[AnyEvent]:
    """Redact many events. Faster than one by one: a reused `RecordRedactor` caches names and scans in batches."""
    given = [event.step for event in events if isinstance(event, StepEnded)]
    steps = {id(step): kept for step, kept in zip(given, gate.steps(given), strict=True) if kept is not step}
    return [
        (event if id(event.step) not in steps else StepEnded(steps[id(event.step)]))
        if isinstance(event, StepEnded)
        else _through(gate, event)
        for event in events
    ]


def _through(gate: Gate, event: AnyEvent) -> AnyEvent:
    match event:
        case StepStarted() | StepEnded():
            return type(event)(gate.step(event.step)[0])
        case RecoveryPlanned():
            step, recovery = gate.step(event.step, event.recovery)
            return RecoveryPlanned(step, recovery or event.recovery)
        case RunStarted() | RunEnded():
            return type(event)(gate.run(event.run))
        case ContextCompacted(compaction):
            (reason,) = gate.texts(compaction.reason)
            return ContextCompacted(msgspec.structs.replace(compaction, reason=reason))
        case LessonLearned(lesson):
            names = ("mistake", "correction", "error", "failed", "works", "origin")
            texts = gate.texts(*(getattr(lesson, name) for name in names))
            return LessonLearned(msgspec.structs.replace(lesson, **dict(zip(names, texts, strict=True))))
