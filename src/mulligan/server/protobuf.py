"""Reader of OTLP protobuf that decodes only the relevant fields.

A custom reader instead of a library: only a dozen attributes of a span matter, and finding them in the bytes is faster
than decoding whole messages. It also needs no dependency.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from mulligan.transcripts.otlp import READ_ATTRIBUTES, Span

_WANTED = {name.encode(): name for name in READ_ATTRIBUTES}
_fixed64 = struct.Struct("<Q").unpack_from
_double = struct.Struct("<d").unpack_from
_ID_FIELDS = (1, 2, 4)
"""Trace, span and parent span."""
MAX_CACHED_ATTRIBUTE_BYTES = 64
"""Attributes up to this size are cached by their bytes: most recur in many spans of an export."""

_Field = tuple[int, int, int]
_Fact = tuple[str, Any]
"""An attribute: its name and its value."""


class MalformedProtobufError(ValueError):
    """Invalid protobuf bytes."""


class LogRecord(NamedTuple):
    """The decoded fields of a log record."""

    name: str
    time: int
    """Nanoseconds since the epoch."""
    facts: dict[str, Any]
    resource: dict[str, Any]
    body: str


def parse_spans(data: bytes) -> tuple[list[Span], int]:
    """Return the spans of an export, and the number of spans rejected for an invalid id."""
    parsed_spans: list[Span] = []
    rejected = 0
    attribute_cache: dict[bytes, _Fact | None] = {}
    try:
        for resource, scope, end in _iter_scopes(data):
            for number, start, stop in _read_fields(data, scope, end):
                if number == 2:
                    span = _parse_span(data, start, stop, resource, attribute_cache)
                    if span is None:
                        rejected += 1
                    else:
                        parsed_spans.append(span)
    except IndexError:
        raise MalformedProtobufError("truncated field") from None
    return parsed_spans, rejected


def parse_logs(data: bytes) -> list[LogRecord]:
    log_records: list[LogRecord] = []
    for resource, scope, end in _iter_scopes(data):
        log_records += [
            _parse_log(data, start, stop, resource)
            for number, start, stop in _read_fields(data, scope, end)
            if number == 2
        ]
    return log_records


def _iter_scopes(data: bytes) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yield each scope of an export with the attributes of its resource. Traces and logs have the same layout."""
    for number, start, end in _read_fields(data, 0, len(data)):
        if number != 1:
            continue
        resource: dict[str, Any] = {}
        scopes: list[tuple[int, int]] = []
        for inner, first, last in _read_fields(data, start, end):
            if inner == 1:
                for field_number, begin, stop in _read_fields(data, first, last):
                    if field_number == 1:
                        _add_attribute(resource, read_attribute(data, begin, stop))
            elif inner == 2:
                scopes.append((first, last))
        for first, last in scopes:
            yield resource, first, last


def _read_fields(data: bytes, at: int, end: int) -> list[_Field]:
    """Return the number of each field with start and end of its value. For a varint, start is the value itself."""
    fields: list[_Field] = []
    while at < end:
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = _read_varint(data, at - 1, end)
        kind = tag & 7
        if kind == 0:
            value, at = _read_varint(data, at, end)
            fields.append((tag >> 3, value, -1))
            continue
        if kind == 2:
            size = data[at] if at < end else 128
            at += 1
            if size > 127:
                size, at = _read_varint(data, at - 1, end)
        elif kind == 1 or kind == 5:
            size = 8 if kind == 1 else 4
        else:
            raise MalformedProtobufError(f"unknown wire type {kind}")
        if at + size > end:
            raise MalformedProtobufError("field exceeds its message")
        fields.append((tag >> 3, at, at + size))
        at += size
    return fields


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise MalformedProtobufError("unterminated varint")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def read_attribute(data: bytes, at: int, end: int, should_keep_all: bool = False) -> _Fact | None:
    """Return an attribute if it is a relevant one."""
    # Fast path for the usual layout: a short key, then a string.
    if (
        not should_keep_all
        and at + 2 < end
        and data[at] == 0x0A
        and data[at + 1] < 128
        and (key_end := at + 2 + data[at + 1]) < end
    ):
        wanted_name = _WANTED.get(data[at + 2 : key_end])
        if wanted_name is None:
            return None
        text = key_end + 4
        if text <= end and data[key_end] == 0x12 and data[key_end + 2] == 0x0A and text + data[text - 1] == end:
            return wanted_name, data[text:end].decode("utf-8", "replace")
    name: str | None = None
    value: Any = None
    for number, start, stop in _read_fields(data, at, end):
        if number == 1:
            key = data[start:stop]
            name = key.decode("utf-8", "replace") if should_keep_all else _WANTED.get(key)
            if name is None:
                return None
        elif number == 2 and stop >= 0:
            value = (start, stop)
    return (name, _read_value(data, *value)) if name is not None and value is not None else None


def _read_value(data: bytes, at: int, end: int) -> Any:
    for number, start, stop in _read_fields(data, at, end):
        if number == 1:
            return data[start:stop].decode("utf-8", "replace")
        if number == 2:
            return bool(start)
        if number == 3:
            return start - 2**64 if start >= 2**63 else start
        if number == 4 and stop - start == 8:
            return _double(data, start)[0]
    return None


def _add_attribute(facts: dict[str, Any], fact: _Fact | None) -> None:
    if fact is not None:
        facts[fact[0]] = fact[1]


def _parse_span(
    data: bytes, at: int, end: int, resource: dict[str, Any], attribute_cache: dict[bytes, _Fact | None]
) -> Span | None:
    ids: dict[int, bytes] = {}
    times: dict[int, int] = {}
    name = message = ""
    has_failed = False
    facts: dict[str, Any] = {}
    events: list[tuple[str, dict[str, Any]]] = []
    for number, start, stop in _read_fields(data, at, end):
        if number == 9:
            piece = data[start:stop]
            if len(piece) > MAX_CACHED_ATTRIBUTE_BYTES:
                fact = read_attribute(piece, 0, len(piece))
            elif piece in attribute_cache:
                fact = attribute_cache[piece]
            else:
                fact = attribute_cache[piece] = read_attribute(piece, 0, len(piece))
            if fact is not None:
                facts[fact[0]] = fact[1]
        elif number in _ID_FIELDS:
            ids[number] = data[start:stop]
        elif number == 5:
            name = data[start:stop].decode("utf-8", "replace")
        elif number == 7 or number == 8:
            if stop - start != 8:
                raise MalformedProtobufError("invalid timestamp")
            (times[number],) = _fixed64(data, start)
        elif number == 15:
            for inner, first, last in _read_fields(data, start, stop):
                if inner == 2:
                    message = data[first:last].decode("utf-8", "replace")
                elif inner == 3:
                    has_failed = first == 2
        elif number == 11:
            events.append(_parse_event(data, start, stop))
    trace, id, parent = (ids.get(number, b"") for number in _ID_FIELDS)
    if len(trace) != 16 or len(id) != 8 or not any(trace) or not any(id):
        return None
    parent_id = parent.hex() if any(parent) else ""
    begin, finish = times.get(7, 0), times.get(8, 0)
    return Span(trace.hex(), id.hex(), parent_id, name, begin, finish, facts, has_failed, message, events, resource)


def _parse_event(data: bytes, at: int, end: int) -> tuple[str, dict[str, Any]]:
    name = ""
    facts: dict[str, Any] = {}
    for number, start, stop in _read_fields(data, at, end):
        if number == 2:
            name = data[start:stop].decode("utf-8", "replace")
        elif number == 3:
            _add_attribute(facts, read_attribute(data, start, stop))
    return name, facts


def _parse_log(data: bytes, at: int, end: int, resource: dict[str, Any]) -> LogRecord:
    name = body = ""
    timestamp = observed = 0
    facts: dict[str, Any] = {}
    for number, start, stop in _read_fields(data, at, end):
        if number == 6:
            _add_attribute(facts, read_attribute(data, start, stop, should_keep_all=True))
        elif (number == 1 or number == 11) and stop - start == 8:
            (nanoseconds,) = _fixed64(data, start)
            if number == 1:
                timestamp = nanoseconds
            else:
                observed = nanoseconds
        elif number == 12 and stop >= 0:
            name = data[start:stop].decode("utf-8", "replace")
        elif number == 5 and stop >= 0:
            value = _read_value(data, start, stop)
            body = value if isinstance(value, str) else ""
    return LogRecord(name, timestamp or observed, facts, resource, body)


def encode_response(rejected: int = 0, reason: str = "") -> bytes:
    """Encode the response to an export: empty, or the number of rejected records and the reason."""
    if not rejected and not reason:
        return b""
    text = reason.encode()
    partial_success = (
        (b"\x08" + _encode_varint(rejected) if rejected else b"") + b"\x12" + _encode_varint(len(text)) + text
    )
    return b"\x0a" + _encode_varint(len(partial_success)) + partial_success


def encode_status(message: str) -> bytes:
    """Encode an error as google.rpc.Status, which OTLP clients expect."""
    text = message.encode()
    return b"\x08\x03\x12" + _encode_varint(len(text)) + text


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
