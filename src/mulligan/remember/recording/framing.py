"""Encoding of records as journal frames, and decoding.

A successful call has a compact encoding without texts, because it is written before the call returns.
"""

from __future__ import annotations

import functools
import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import msgspec

from mulligan.events import AnyEvent, Kept, RunEnded, RunStarted
from mulligan.records import Run, StepType, decode, encode
from mulligan.remember.recording.journal import HEAD, MARK, Frame, framed
from mulligan.success import Form, Success, telling

log = logging.getLogger("mulligan")

EVENT, SUCCESS = 1, 4
"""Frame types: an event as JSON, and a call that succeeded at the first attempt, in the compact encoding."""
FORMS = 1000
"""Call templates and run descriptions cached while frames are decoded."""

_pack = msgspec.msgpack.Encoder().encode
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Seconds = Annotated[float, msgspec.Meta(gt=-(2**43), lt=2**43)]
"""Range that every store supports; it excludes NaN."""
_facts = msgspec.msgpack.Decoder(  # the fields that `success_frame` packs
    tuple[msgspec.Raw, str, _Number, _Number | None, _Seconds, _Seconds, msgspec.Raw, list[Any]]
).decode
_prefix = msgspec.msgpack.Decoder(tuple[StepType, str, list[str]]).decode
_THREE = _pack((0, 0, 0))[0]
_prefix_of = msgspec.msgpack.Decoder(tuple[StepType, str, list[str], str | None]).decode
_alone = msgspec.msgpack.Decoder(tuple[str | None, str | None, str | None, str | None] | None).decode
_head = HEAD.pack
_checksum = zlib.crc32


def event_frame(event: AnyEvent) -> bytes:
    return framed(EVENT, encode(event))


def success_frame(success: Success, told: Sequence[Any] | None = None) -> bytes:
    """Encode a success without its texts: a prefix shared by all calls of its template, then the fields of this call.

    `journal_form` is the result of `journal_values` if the caller has already computed it.
    """
    form, alone = success.form, success.alone
    if told is None:
        told = telling(form, success.named, success.given)
    facts = (
        form.prefixes[len(success.given)],  # type: ignore[index] # None raises: the caller prepares the template
        success.run,
        success.seq,
        success.parent,
        success.started,
        success.seconds,
        None if alone is None else alone.told,
        told,
    )
    try:
        payload = _pack(facts)
    except (OverflowError, TypeError):  # a number too large for the format is replaced by its type name
        payload = _pack((*facts[:-1], [_small(value) for value in told or ()]))
    return _head(MARK, SUCCESS, len(payload), _checksum(payload, SUCCESS)) + payload


def _small(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)  # a str subclass: only the plain text can be packed
    is_large = type(value) is int and not -(2**63) <= value < 2**64
    return "int" if is_large else value


def records_of(found: Iterable[Frame]) -> Iterator[tuple[int, AnyEvent | Success]]:
    """Yield each record with the end offset of its frame. Undecodable frames are logged and skipped.

    A standalone call is followed by the end event of its run.
    """
    for offset, sort, payload in found:
        try:
            record, run = (_event(payload), None) if sort == EVENT else _success(payload)
        except Exception as error:  # noqa: BLE001 - a damaged record must not block those after it
            log.warning("a damaged record of a journal was passed over: %s", error)
            continue
        yield offset, record
        if run is not None:
            yield offset, RunEnded(run)


def events_of(found: Iterable[Frame]) -> Iterator[tuple[int, AnyEvent]]:
    """Yield each record as an event, with the end offset of its frame."""
    for offset, record in records_of(found):
        yield offset, Kept([record])[0]


def _event(payload: bytes) -> AnyEvent:
    event: AnyEvent = decode(payload, AnyEvent)  # type: ignore[arg-type]
    if isinstance(event, RunStarted | RunEnded):
        for moment in (event.run.started, event.run.ended or 0):
            if abs(moment) >= 2**53:  # journal recovery would use it as the end of the run
                raise ValueError("a time that is none")
    return event


def _success(payload: bytes) -> tuple[Success, Run | None]:
    """Decode a successful call, and its run if it was a standalone call."""
    prefix, run, seq, parent, started, seconds, about, told = _facts(payload)
    form, names = _form(bytes(prefix))
    places = len(names)
    arguments = {name: _read(value) for name, value in zip(names, told[:places], strict=True)}
    if len(told) > places:
        own = zip(told[places::2], told[places + 1 :: 2], strict=True)
        arguments.update((name, _read(value)) for name, value in own)
    success = Success(form, run, seq, parent, started, (), arguments, None, True, seconds)
    alone = _about(bytes(about))
    return success, None if alone is None else success.whole_run(alone)


@functools.lru_cache(FORMS)
def _form(prefix: bytes) -> tuple[Form, Sequence[str]]:
    """Return the template shared by calls with this prefix, and the names of the positional values."""
    type, name, names, server = (*_prefix(prefix), None) if prefix[0] == _THREE else _prefix_of(prefix)
    form = Form(type, name, server=server)
    form.kept_name = name
    return form, names


@functools.lru_cache(FORMS)
def _about(told: bytes) -> Run | None:
    said = _alone(told)
    if said is None:
        return None
    agent, environment, session, above = said
    return Run(id="", agent=agent or "", environment=environment, session=session, parent=above)


def _read(told: Any) -> Any:
    """Restore a value as far as `journal_values` encoded it: texts have only their length."""
    if type(told) is list:
        (length,) = told
        return {"$str": length}
    return {"$type": told} if type(told) is str else told
