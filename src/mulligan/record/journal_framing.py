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

from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StoredEvents
from mulligan.core.fast_path import CallTemplate, SuccessRecord, journal_values
from mulligan.core.records import Run, StepType, decode, encode
from mulligan.record.journal import FRAME_HEADER, FRAME_MARK, JournalFrame, encode_frame

log = logging.getLogger("mulligan")

EVENT_FRAME, SUCCESS_FRAME = 1, 4
"""Frame types: an event as JSON, and a call that succeeded at the first attempt, in the compact encoding."""
MAX_CACHED_TEMPLATES = 1000
"""Call templates and run descriptions cached while frames are decoded."""

_pack = msgspec.msgpack.Encoder().encode
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Seconds = Annotated[float, msgspec.Meta(gt=-(2**43), lt=2**43)]
"""Range that every store supports; it excludes NaN."""
_decode_success = msgspec.msgpack.Decoder(  # the fields that `success_frame` packs
    tuple[msgspec.Raw, str, _Number, _Number | None, _Seconds, _Seconds, msgspec.Raw, list[Any]]
).decode
_decode_prefix = msgspec.msgpack.Decoder(tuple[StepType, str, list[str]]).decode
_THREE_ITEM_MARK = _pack((0, 0, 0))[0]
_decode_prefix_with_server = msgspec.msgpack.Decoder(tuple[StepType, str, list[str], str | None]).decode
_decode_standalone_run = msgspec.msgpack.Decoder(tuple[str | None, str | None, str | None, str | None] | None).decode
_pack_header = FRAME_HEADER.pack
_checksum = zlib.crc32


def event_frame(event: AnyEvent) -> bytes:
    return encode_frame(EVENT_FRAME, encode(event))


def success_frame(success: SuccessRecord, journal_form: Sequence[Any] | None = None) -> bytes:
    """Encode a success without its texts: a prefix shared by all calls of its template, then the fields of this call.

    `journal_form` is the result of `journal_values` if the caller has already computed it.
    """
    template, standalone_run = success.template, success.standalone_run
    if journal_form is None:
        journal_form = journal_values(template, success.keywords, success.positional)
    facts = (
        template.journal_prefixes[len(success.positional)],  # type: ignore[index] # None raises: the caller prepares the template
        success.run,
        success.seq,
        success.parent,
        success.started_at,
        success.duration_seconds,
        None if standalone_run is None else standalone_run.encoded,
        journal_form,
    )
    try:
        payload = _pack(facts)
    except (OverflowError, TypeError):  # a number too large for the format is replaced by its type name
        payload = _pack((*facts[:-1], [_fit_to_format(value) for value in journal_form or ()]))
    return _pack_header(FRAME_MARK, SUCCESS_FRAME, len(payload), _checksum(payload, SUCCESS_FRAME)) + payload


def _fit_to_format(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)  # a str subclass: only the plain text can be packed
    is_large = type(value) is int and not -(2**63) <= value < 2**64
    return "int" if is_large else value


def decode_records(frames: Iterable[JournalFrame]) -> Iterator[tuple[int, AnyEvent | SuccessRecord]]:
    """Yield each record with the end offset of its frame. Undecodable frames are logged and skipped.

    A standalone call is followed by the end event of its run.
    """
    for offset, frame_type, payload in frames:
        try:
            record, run = (
                (_decode_event_payload(payload), None)
                if frame_type == EVENT_FRAME
                else _decode_success_payload(payload)
            )
        except Exception as error:  # noqa: BLE001 - a damaged record must not block those after it
            log.warning("Skipped a damaged journal record: %s", error)
            continue
        yield offset, record
        if run is not None:
            yield offset, RunEnded(run)


def decode_events(frames: Iterable[JournalFrame]) -> Iterator[tuple[int, AnyEvent]]:
    """Yield each record as an event, with the end offset of its frame."""
    for offset, record in decode_records(frames):
        yield offset, StoredEvents([record])[0]


def _decode_event_payload(payload: bytes) -> AnyEvent:
    event: AnyEvent = decode(payload, AnyEvent)  # type: ignore[arg-type]
    if isinstance(event, RunStarted | RunEnded):
        for timestamp in (event.run.started_at, event.run.ended_at or 0):
            if abs(timestamp) >= 2**53:  # journal recovery would use it as the end of the run
                raise ValueError("an invalid timestamp")
    return event


def _decode_success_payload(payload: bytes) -> tuple[SuccessRecord, Run | None]:
    """Decode a successful call, and its run if it was a standalone call."""
    prefix, run, seq, parent, started, seconds, run_bytes, values = _decode_success(payload)
    template, names = _load_template(bytes(prefix))
    positional_count = len(names)
    arguments = {
        name: _restore_journal_value(value) for name, value in zip(names, values[:positional_count], strict=True)
    }
    if len(values) > positional_count:
        extra_values = zip(values[positional_count::2], values[positional_count + 1 :: 2], strict=True)
        arguments.update((name, _restore_journal_value(value)) for name, value in extra_values)
    success = SuccessRecord(template, run, seq, parent, started, (), arguments, None, True, seconds)
    standalone_run = _load_standalone_run(bytes(run_bytes))
    return success, None if standalone_run is None else success.to_run(standalone_run)


@functools.lru_cache(MAX_CACHED_TEMPLATES)
def _load_template(prefix: bytes) -> tuple[CallTemplate, Sequence[str]]:
    """Return the template shared by calls with this prefix, and the names of the positional values."""
    type, name, names, server = (
        (*_decode_prefix(prefix), None) if prefix[0] == _THREE_ITEM_MARK else _decode_prefix_with_server(prefix)
    )
    template = CallTemplate(type, name, server=server)
    template.stored_name = name
    return template, names


@functools.lru_cache(MAX_CACHED_TEMPLATES)
def _load_standalone_run(encoded_run: bytes) -> Run | None:
    run_fields = _decode_standalone_run(encoded_run)
    if run_fields is None:
        return None
    agent, environment, session, parent = run_fields
    return Run(id="", agent=agent or "", environment=environment, session=session, parent=parent)


def _restore_journal_value(value: Any) -> Any:
    """Restore a value as far as `journal_values` encoded it: texts have only their length."""
    if type(value) is list:
        (length,) = value
        return {"$str": length}
    return {"$type": value} if type(value) is str else value
