"""The events, and the stream that carries them: one of the two exits of the process, and guarded like the other."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from mulligan.failure import Kind
from mulligan.records import Change, Compaction, Ending, Lesson, Recovery, Run, Step, StepType, encode
from mulligan.redaction import Redactor, plain
from mulligan.redaction.detect import might_hold

log = logging.getLogger("mulligan")

NAME = 200
"""Characters of a name or an id that are kept."""
SHORT = 4000
"""Characters of a whole call that are looked at once; longer texts may have to be cut."""
NAMES = 10_000
"""Names of arguments whose redaction is remembered."""
CLOSED = frozenset({int, float, bool, type(None)})
"""Values that belong to no secret, unless their name says so."""


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


class Success(msgspec.Struct, frozen=True, gc=False):
    """A call that worked at once, in the few facts its events can be made of later, by another thread.

    Most calls are of this sort, and nobody waits for their events. Its values are still as they were given.
    """

    run: str
    seq: int
    parent: int | None
    type: StepType
    name: str
    started: int
    seconds: float
    arguments: dict[str, Any]
    result: Any
    alone: Run | None
    """Its run, where it was outside any: that began and ended with it."""
    tokens: dict[str, int] | None = None

    def events(self) -> list[AnyEvent]:
        return self.with_values(self.name, self.arguments, thawed(self.result), self.alone)

    def with_values(self, name: str, arguments: Any, result: Any, alone: Run | None) -> list[AnyEvent]:
        step = Step(
            run=self.run,
            seq=self.seq,
            call=self.seq,
            parent=self.parent,
            type=self.type,
            name=name,
            arguments=arguments,
            result=result,
            started=self.started,
            seconds=self.seconds,
            tokens=self.tokens,
        )
        if alone is None:
            return [StepEnded(step)]
        ended = self.started + int(self.seconds * 1000)
        return [StepEnded(step), RunEnded(msgspec.structs.replace(alone, ended=ended, end="finished"))]


FLAT = frozenset({str, int, float, bool, type(None)})
"""What cannot change, and needs no copy."""
FEW = 200
"""Members of a collection, and thousands of characters of a text, that are copied without a second thought."""
_freeze = msgspec.json.Encoder().encode


def frozen(value: Any) -> Any:
    """A value as it is now, whatever becomes of it; cheaply. `thawed` gives it back."""
    if type(value) in FLAT:
        return value
    if type(value) in (dict, list, tuple) and len(value) <= FEW:
        for each in value.values() if type(value) is dict else value:
            kind = type(each)
            if (kind is str and len(each) > FEW * 1000) or (kind in (dict, list, tuple) and len(each) > FEW):
                break
        else:
            try:
                return msgspec.Raw(_freeze(value))
            except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
                pass  # not of JSON: described below, one by one
    return plain(value)


def thawed(value: Any) -> Any:
    return msgspec.json.decode(value) if type(value) is msgspec.Raw else value


class Carrier(Protocol):
    """Who keeps events: the recorder."""

    def __call__(self, event: AnyEvent) -> None:
        """Keeps an event that has passed redaction."""

    def keep(self, success: Success) -> None:
        """Keeps a call that worked, redacting it on a thread of its own."""


class Stream:
    """Carries each event once to everybody who listens.

    What it carries has passed redaction: no listener, and so no disk, sees more than may leave the process.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._in_caller: list[Listener] = []
        self._on_recorder: list[Listener] = []
        self._broken: set[int] = set()
        self._names: dict[str, tuple[str, bool, bool]] = {}
        # At level shared every value is hidden, and users' own patterns are not in what one look can see.
        self._looks_once = redactor.level == "local" and not redactor._patterns
        self._carrier: Carrier | None = None

    def listen(self, listener: Listener, when: When = "recorder") -> Callable[[], None]:
        """Calls `listener` with every event, on the recorder's thread or at once in the caller's.

        Answers with a function that ends it.
        """
        listeners = self._in_caller if when == "caller" else self._on_recorder
        listeners.append(listener)

        def end() -> None:
            if listener in listeners:
                listeners.remove(listener)
                self._broken.discard(id(listener))  # another object may come to have the same

        return end

    def carry(self, carrier: Carrier) -> None:
        """Names the recorder, which keeps each event and then calls `deliver` from its own thread."""
        self._carrier = carrier

    def finds(self, text: str) -> bool:
        """Whether there is anything in a text that must not be kept."""
        return self._redactor.text(text) != text

    def is_watched(self) -> bool:
        """Whether anybody but the recorder listens, and so wants to hear of every beginning, or at once."""
        return bool(self._in_caller or self._on_recorder)

    def succeed(self, success: Success) -> None:
        """Publishes a call that worked at once; cheaply, where nobody wants to hear of it in the caller's time."""
        if self._carrier is not None and not self._in_caller:
            self._carrier.keep(success)
        else:
            for event in success.events():
                self.publish(event)

    def in_short(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What can be told of arguments without searching them: numbers and the like, else a type and a length."""
        short: dict[str, Any] = {}
        names = self._names
        for name, value in arguments.items():
            kind = type(value)
            kept, hides_numbers, _ = names.get(name) or self._named(name)
            if kind is str:
                short[kept] = {"$str": len(value)}
            elif kind in CLOSED and not hides_numbers:
                short[kept] = value
            elif kind is dict and len(value) == 1 and type(value.get("$str")) is int:
                short[kept] = value  # short already
            else:
                short[kept] = {"$type": kind.__name__}
        return short

    def _named(self, name: str) -> tuple[str, bool, bool]:
        """A name as it may be kept, and whether it hides numbers and texts. The same few come again and again."""
        ((kept, number),) = self._redactor.value({plain(name): 1}).items()
        ((_, text),) = self._redactor.value({plain(name): "x"}).items()
        known = (kept, number != 1, text != "x")
        if len(self._names) < NAMES:
            self._names[name] = known
        return known

    def _is_harmless(self, arguments: dict[str, Any], result: Any) -> bool:
        """Whether one look at everything shows that there is nothing to hide: most calls are small and have nothing."""
        texts: list[str] = []
        if not self._looks_once or not self._gather(arguments, texts):
            return False
        if type(result) is str:
            texts.append(result)
        elif type(result) is dict:
            if not self._gather(result, texts):
                return False
        elif type(result) not in CLOSED:
            return False
        text = "\n".join(texts)
        return len(text) < SHORT and text.isascii() and not might_hold(text)

    def _gather(self, values: dict[str, Any], texts: list[str]) -> bool:
        """The texts of a flat dictionary; whether it is one, and none of its names hides anything."""
        for name, value in values.items():
            kept, hides_numbers, hides_texts = self._names.get(name) or self._named(name)
            if hides_numbers or hides_texts or kept != name:
                return False
            if type(value) is str:
                texts.append(value)
            elif type(value) not in CLOSED or type(value) is float or (type(value) is int and abs(value) > 2**53):
                return False  # a number too may have to be described
        return True

    def redacted(self, success: Success) -> list[AnyEvent]:
        """The events of a success as they may be kept."""
        arguments, result, alone = success.arguments, thawed(success.result), success.alone
        if not self._is_harmless(arguments, result):
            arguments, result = self._redactor.record(plain(arguments), plain(result))
        return success.with_values(
            _name(success.name, self._redactor),
            arguments,
            result,
            None if alone is None else _run(alone, self._redactor),
        )

    def publish(self, event: AnyEvent) -> None:
        if isinstance(event, StepStarted) and not self.is_watched():
            return  # nobody keeps a beginning
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

    def _tell(self, listener: Callable[[Any], object], event: AnyEvent | Success) -> None:
        try:
            listener(event)
        except Exception:
            if id(listener) not in self._broken:  # once a listener: a broken one would otherwise fill the log
                self._broken.add(id(listener))
                log.exception("a listener failed on %s; its further faults are not logged", event.name)


def redacted(event: AnyEvent, redactor: Redactor) -> AnyEvent:
    """The event with everything a stranger wrote made plain, bounded and free of secrets.

    Each field comes out as what its record says it is, whatever was given: one odd value would make a run unreadable.
    """
    match event:
        case StepStarted() | StepEnded():
            return type(event)(_step(event.step, redactor)[0])
        case RecoveryPlanned():
            step, recovery = _step(event.step, redactor, event.recovery)
            return RecoveryPlanned(step, recovery or event.recovery)
        case RunStarted() | RunEnded():
            return type(event)(_run(event.run, redactor))
        case ContextCompacted(compaction):
            (reason,) = redactor.record(_text(compaction.reason))
            return ContextCompacted(msgspec.structs.replace(compaction, reason=reason))
        case LessonLearned(lesson):
            mistake, correction = redactor.record(_text(lesson.mistake), _text(lesson.correction))
            return LessonLearned(msgspec.structs.replace(lesson, mistake=mistake, correction=correction))


def _run(run: Run, redactor: Redactor) -> Run:
    names = (run.version, run.environment)
    ids = (run.id, run.session, run.parent)
    if (
        run.context is None
        and run.metadata is None
        and _kept_as_is(run.agent, redactor)
        and all(each is None or _kept_as_is(each, redactor) for each in names)
        and all(each is None or _id(each) is each for each in ids)
    ):
        return run  # as most are: nothing of it is anybody's text
    context, metadata = redactor.record(_maybe(run.context), _fields(run.metadata))
    return msgspec.structs.replace(
        run,
        id=_id(run.id),
        agent=_name(run.agent, redactor),
        version=_maybe_name(run.version, redactor),
        environment=_maybe_name(run.environment, redactor),
        session=None if run.session is None else _id(run.session),
        parent=None if run.parent is None else _id(run.parent),
        context=context,
        metadata=metadata,
    )


def _step(step: Step, redactor: Redactor, next: Recovery | None = None) -> tuple[Step, Recovery | None]:
    """A step, and what is planned after it."""
    failure = step.failure
    # One record: a secret found in the arguments is also removed from the message that quotes it.
    texts = (failure.message, failure.detail, failure.hint, failure.code) if failure else ()
    offered = step.ending.offered if step.ending is not None else ()
    arguments, result, metadata, led, planned, left, *told = redactor.record(
        plain(step.arguments),
        plain(step.result),
        _fields(step.metadata),
        _values(step.after),
        _values(next),
        [_values(each) for each in offered],
        *map(_text, texts),
    )
    if failure is not None:
        message, detail, hint, code = told
        failure = msgspec.structs.replace(
            failure,
            kind=_kind(failure.kind, redactor),
            message=message,
            detail=detail,
            hint=hint,
            code=code,
            status=failure.status if type(failure.status) is int else None,
            retry_after=_seconds(failure.retry_after),
            evidence=tuple(_name(each, redactor) for each in failure.evidence),
            confidence=_seconds(failure.confidence) or 0.0,
            fingerprint=_id(failure.fingerprint),
            recoverable=bool(failure.recoverable),
        )
    step = msgspec.structs.replace(
        step,
        run=_id(step.run),
        name=_name(step.name, redactor),
        server=_maybe_name(step.server, redactor),
        arguments=arguments,
        result=result,
        metadata=metadata,
        failure=failure,
        after=_with_values(step.after, led),
        ending=_ending(step.ending, left, redactor),
    )
    return step, _with_values(next, planned)


def _ending(ending: Ending | None, values: list[list[dict[str, Any]]], redactor: Redactor) -> Ending | None:
    if ending is None:
        return None
    offered = tuple(_with_values(each, held) or each for each, held in zip(ending.offered, values, strict=True))
    return Ending(why=redactor.text(ending.why), offered=offered, spiral=redactor.text(ending.spiral))


def _text(value: Any) -> str:
    value = plain(value)
    return value if isinstance(value, str) else "" if value is None else encode(value).decode()


def _maybe(value: Any) -> str | None:
    return None if value is None else _text(value)


def _fields(value: Any) -> dict[str, Any] | None:
    value = plain(value)
    return value if value is None or isinstance(value, dict) else {"": value}


def _seconds(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _name(name: Any, redactor: Redactor) -> str:
    """A name as it is kept: models and strangers choose names too. The same few come again and again."""
    return _kept(name, redactor) if type(name) is str else _kept(_text(name), redactor)


def _kept_as_is(name: Any, redactor: Redactor) -> bool:
    return type(name) is str and _kept(name, redactor) == name


def _maybe_name(name: Any, redactor: Redactor) -> str | None:
    return None if name is None else _name(name, redactor)


@functools.lru_cache(maxsize=1024)
def _kept(name: str, redactor: Redactor) -> str:
    return redactor.text(plain(name))[:NAME]


def _id(id: Any) -> str:
    # Not searched for secrets: made of chance, it may look like one, and two that were hidden would be the same.
    return id if type(id) is str and len(id) <= NAME and id.isascii() else _text(id)[:NAME]


def _kind(kind: Kind, redactor: Redactor) -> Kind:
    if kind.isascii() and len(kind) <= NAME:
        return kind
    return Kind(_name(kind.type, redactor), _name(kind.code, redactor), kind.remedy, kind.ran, kind.hint)


def _values(recovery: Recovery | None) -> list[dict[str, Any]]:
    """Before and after of each change, under the argument's own name, which may say that it is a secret."""
    if recovery is None:
        return []
    return [_under(change, side) for change in recovery.changes for side in (change.before, change.after)]


def _under(change: Change, value: Any) -> dict[str, Any]:
    held = {"": plain(value)}
    if change.how == "rename":
        return held  # it is a name itself
    for name in reversed(change.path.split(".")):  # any part of the path may say it: credentials.user is one
        held = {name: held}
    return held


def _with_values(recovery: Recovery | None, values: list[dict[str, Any]]) -> Recovery | None:
    if recovery is None or not recovery.changes:
        return recovery
    changes = []
    for change, before, after in zip(recovery.changes, values[::2], values[1::2], strict=True):
        names = 0 if change.how == "rename" else change.path.count(".") + 1
        path, old = _held(before, names)
        _, new = _held(after, names)
        if change.how == "rename":
            path = plain(change.path)
        changes.append(msgspec.structs.replace(change, path=path, before=old, after=new))
    return msgspec.structs.replace(recovery, changes=tuple(changes))


def _held(value: Any, names: int) -> tuple[str, Any]:
    """The path and the value of what `_under` made. The names on the path may have been redacted too."""
    path: list[str] = []
    for _ in range(names):
        ((name, value),) = value.items()
        path.append(name)
    return ".".join(path), value[""]
