"""Events and the event stream. Every event is redacted before it is published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from mulligan.core import fork_safety
from mulligan.core.failure import Failure
from mulligan.core.log import get_logger
from mulligan.core.records import Compaction, Lesson, RecordedMessage, Recovery, Run, Step

if TYPE_CHECKING:
    from mulligan.core.record_redaction import RecordRedactor
    from mulligan.redaction import Redactor

log = get_logger(__name__)


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Base class of events. `name` is a noun and a past participle, such as `run.ended`."""

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)


class RunStarted(Event, frozen=True, omit_defaults=True, tag="run.started"):
    run: Run
    sent_fields: tuple[str, ...] | None = None
    """Fields that another program sent. Only these change a run that is stored already. None: all fields are known."""


class RunEnded(Event, frozen=True, omit_defaults=True, tag="run.ended"):
    run: Run
    sent_fields: tuple[str, ...] | None = None
    """As in `RunStarted`."""


class StepStarted(Event, frozen=True, tag="step.started"):
    step: Step


class StepEnded(Event, frozen=True, gc=False, omit_defaults=True, tag="step.ended"):
    step: Step
    messages: tuple[RecordedMessage, ...] = ()
    """Messages of the run that no earlier step has brought. In the same event as a step that refers to them, so that
    neither is stored without the other."""


class FailureRecorded(Event, frozen=True, tag="failure.recorded"):
    run: str
    seq: int
    """The number of a step that has ended already."""
    failure: Failure
    """Replaces the failure of the step. One that had succeeded has failed."""


class RecoveryPlanned(Event, frozen=True, tag="recovery.planned"):
    step: Step
    """The failed attempt."""
    recovery: Recovery
    """The recovery before the next attempt."""


class ContextCompacted(Event, frozen=True, tag="context.compacted"):
    compaction: Compaction


class LessonLearned(Event, frozen=True, tag="lesson.learned"):
    lesson: Lesson


AnyEvent = (
    RunStarted
    | RunEnded
    | StepStarted
    | StepEnded
    | FailureRecorded
    | RecoveryPlanned
    | ContextCompacted
    | LessonLearned
)
EVENTS: dict[str, type[Event]] = {str(event.__struct_config__.tag): event for event in get_args(AnyEvent)}


Listener = Callable[[AnyEvent], object]
ListenerThread = Literal["caller", "recorder"]


class EventStream:
    """Publishes each event once to every listener.

    Events are redacted first, so that no listener and no disk receives unredacted data.
    """

    def __init__(self, redactor: Redactor) -> None:
        with fork_safety.import_lock:
            from mulligan.core.record_redaction import RecordRedactor  # lazy: needed from the first call on
        self.record_redactor = RecordRedactor(redactor)
        self.caller_listeners: list[Listener] = []
        self._recorder_listeners: list[Listener] = []
        self.listeners: list[Listener] = []
        """All listeners, on either thread. Without any, start events are not published."""
        self._failed_listeners: set[int] = set()
        self._sink: Listener | None = None
        self._log: Listener | None = None

    def add_listener(self, listener: Listener, thread: ListenerThread = "recorder") -> Callable[[], None]:
        """Call `listener` with every event, on the recorder's thread or in the caller's thread.

        Return a function that removes it.
        """
        thread_listeners = self.caller_listeners if thread == "caller" else self._recorder_listeners
        thread_listeners.append(listener)
        self.listeners.append(listener)

        def remove() -> None:
            if listener in thread_listeners:
                thread_listeners.remove(listener)
                self.listeners.remove(listener)
                self._failed_listeners.discard(id(listener))  # the id of a deleted object can be reused

        return remove

    def set_sink(self, sink: Listener) -> None:
        """Set the recorder, which stores each event and then calls `deliver` on its own thread."""
        self._sink = sink

    def set_log(self, log: Listener, is_verbose: bool) -> None:
        """Call `log` in the caller's thread, with every event if `is_verbose`.

        Otherwise it does not receive successful first attempts and start events, so that these cost no more than
        without a log.
        """
        if is_verbose:
            self.add_listener(log, thread="caller")
        else:
            self._log = log

    def redact_session_id(self, id: str) -> str:
        """Return the session id in a form that may be stored."""
        return self.record_redactor.redact_session_id(id)

    def publish(self, event: AnyEvent) -> None:
        if isinstance(event, StepStarted) and not self.listeners:
            return  # start events are not stored
        try:
            event = _redact_event(self.record_redactor, event)
        except Exception:
            log.exception("Redaction failed, event not recorded: %s", event.name)
            return
        for listener in tuple(self.caller_listeners):
            self._call_listener(listener, event)
        if self._log is not None:
            self._call_listener(self._log, event)
        if self._sink is not None:
            self._call_listener(self._sink, event)
        else:
            self.deliver(event)

    def deliver(self, event: AnyEvent) -> None:
        """Call the listeners that run on the recorder's thread."""
        for listener in tuple(self._recorder_listeners):
            self._call_listener(listener, event)

    def _call_listener(self, listener: Callable[[Any], object], event: AnyEvent) -> None:
        try:
            listener(event)
        except Exception:
            if id(listener) not in self._failed_listeners:  # log once per listener, to keep the log readable
                self._failed_listeners.add(id(listener))
                log.exception("A listener failed on %s; its further errors are not logged", event.name)


def redact_event(event: AnyEvent, redactor: Redactor) -> AnyEvent:
    """Return the event with untrusted text as plain data, bounded and without secrets."""
    with fork_safety.import_lock:
        from mulligan.core.record_redaction import RecordRedactor  # lazy, as above
    return _redact_event(RecordRedactor(redactor), event)


def redact_all(events: Sequence[AnyEvent], record_redactor: RecordRedactor) -> list[AnyEvent]:
    """Redact many events. Faster than one by one: a reused `RecordRedactor` caches names and scans in batches."""
    step_events = [event for event in events if isinstance(event, StepEnded)]
    # Before the steps: the secrets of messages are removed from these too.
    messages = iter([record_redactor.redact_messages(event.step.run, event.messages) for event in step_events])
    steps = iter(record_redactor.redact_steps([event.step for event in step_events]))
    return [
        StepEnded(next(steps), next(messages))
        if isinstance(event, StepEnded)
        else _redact_event(record_redactor, event)
        for event in events
    ]


def _redact_event(record_redactor: RecordRedactor, event: AnyEvent) -> AnyEvent:
    match event:
        case StepStarted():
            return StepStarted(record_redactor.redact_step(event.step)[0])
        case StepEnded(step, messages):
            messages = record_redactor.redact_messages(step.run, messages)  # first: their secrets are those of the step
            return StepEnded(record_redactor.redact_step(step)[0], messages)
        case FailureRecorded(run, seq, failure):
            step = record_redactor.redact_step(Step(run=run, seq=seq, call=seq, failure=failure))[0]
            return FailureRecorded(step.run, seq, step.failure or failure)
        case RecoveryPlanned():
            step, recovery = record_redactor.redact_step(event.step, event.recovery)
            return RecoveryPlanned(step, recovery or event.recovery)
        case RunStarted() | RunEnded():
            return type(event)(record_redactor.redact_run(event.run), event.sent_fields)
        case ContextCompacted(compaction):
            reason, *tools = record_redactor.redact_texts(
                compaction.reason, *(action.tool for action in compaction.actions)
            )
            actions = tuple(
                msgspec.structs.replace(action, tool=tool)
                for action, tool in zip(compaction.actions, tools, strict=True)
            )
            return ContextCompacted(msgspec.structs.replace(compaction, reason=reason, actions=actions))
        case LessonLearned(lesson):
            names = ("mistake", "correction", "error", "failing_example", "working_example", "origin")
            texts = record_redactor.redact_texts(*(getattr(lesson, name) for name in names))
            return LessonLearned(msgspec.structs.replace(lesson, **dict(zip(names, texts, strict=True))))
