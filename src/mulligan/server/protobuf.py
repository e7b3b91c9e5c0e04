"""Reader of OTLP protobuf that decodes only the relevant fields.

A custom reader instead of a library: only a dozen attributes of a span matter, and finding them in the bytes is faster
than decoding whole messages. It also needs no dependency.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from mulligan.transcripts.otlp import Span
from mulligan.transcripts.span_attributes import READ_ATTRIBUTES, has_error

_WANTED = {name.encode(): name for name in READ_ATTRIBUTES}
MAX_CACHED_ATTRIBUTE_BYTES = 64
"""Attributes up to this size are cached by their bytes: most recur in many spans of an export."""

MAX_ARRAY_ITEMS = 100

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


def parse_spans(data: bytes) -> Iterator[Span | None]:
    """Yield the spans of an export, None for one with an invalid id."""
    attribute_cache: dict[bytes, _Fact | None] = {}
    for resource, scope, record in _iter_records(data):
        yield _parse_span(record, resource, scope, attribute_cache)


def parse_logs(data: bytes) -> Iterator[LogRecord]:
    """Yield the log records of an export."""
    for resource, _, record in _iter_records(data):
        yield _parse_log(record, resource)


def _iter_records(data: bytes) -> Iterator[tuple[dict[str, Any], str, bytes]]:
    """Yield each record with the attributes of its resource and its scope. Traces and logs have the same layout."""
    for group in _messages(data, 1):
        resource: dict[str, Any] = {}
        for message in _messages(group, 1):
            resource.update(filter(None, map(read_attribute, _messages(message, 1))))
        for scope_records in _messages(group, 2):
            fields = _read_fields(scope_records)
            scopes = (value for number, value in fields if number == 1 and isinstance(value, bytes))
            scope = _to_text(_bytes(dict(_read_fields(next(scopes, b""))), 1))
            for number, record in fields:
                if number == 2 and isinstance(record, bytes):
                    yield resource, scope, record


def _messages(data: bytes, number: int) -> list[bytes]:
    return [value for field, value in _read_fields(data) if field == number and isinstance(value, bytes)]


def _read_fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """Return the number of each field with its value: an integer for a varint, else bytes."""
    fields: list[tuple[int, int | bytes]] = []
    at, end = 0, len(data)
    try:
        while at < end:
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = _read_varint(data, at - 1)
            kind = tag & 7
            if kind == 2:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = _read_varint(data, at - 1)
            elif kind == 1 or kind == 5:
                size = 8 if kind == 1 else 4
            elif kind == 0:
                value, at = _read_varint(data, at)
                fields.append((tag >> 3, value))
                continue
            else:
                raise MalformedProtobufError(f"unknown wire type {kind}")
            stop = at + size
            if stop > end:
                raise MalformedProtobufError("field exceeds its message")
            fields.append((tag >> 3, data[at:stop]))
            at = stop
    except IndexError:
        raise MalformedProtobufError("truncated field") from None
    return fields


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift <= 63:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise MalformedProtobufError("unterminated varint")


def read_attribute(data: bytes, should_keep_all: bool = False) -> _Fact | None:
    """Return an attribute if it is a relevant one."""
    # Fast path for the usual layout, a short key and then a string: see benchmarks/server.py.
    key_end = 2 + data[1] if data[:1] == b"\n" and len(data) > 2 and data[1] < 128 else 0
    if key_end and not should_keep_all:
        name = _WANTED.get(data[2:key_end])
        if name is None:
            return None
        if len(data) > key_end + 3 and data[key_end + 2] == 0x0A and key_end + 4 + data[key_end + 3] == len(data):
            return name, data[key_end + 4 :].decode("utf-8", "replace")
    fields = dict(_read_fields(data))
    key, value = _bytes(fields, 1), fields.get(2)
    name = _to_text(key) if should_keep_all else _WANTED.get(key)
    return (name, _read_value(value)) if name is not None and isinstance(value, bytes) else None


def _read_value(data: bytes) -> Any:
    for number, value in _read_fields(data):
        if isinstance(value, bytes):
            if number == 1:
                return _to_text(value)
            if number == 4 and len(value) == 8:
                return struct.unpack("<d", value)[0]
            if number == 5:
                return [_read_value(item) for item in _messages(value, 1)[:MAX_ARRAY_ITEMS]]
        elif number == 2:
            return bool(value)
        elif number == 3:
            return value - 2**64 if value >= 2**63 else value
    return None


def _to_text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _bytes(fields: dict[int, int | bytes], number: int) -> bytes:
    value = fields.get(number, b"")
    return value if isinstance(value, bytes) else b""


def _nanoseconds(fields: dict[int, int | bytes], number: int) -> int:
    value = fields.get(number, bytes(8))
    if isinstance(value, int) or len(value) != 8:
        raise MalformedProtobufError("invalid timestamp")
    return int.from_bytes(value, "little")


def _parse_span(
    data: bytes, resource: dict[str, Any], scope: str, attribute_cache: dict[bytes, _Fact | None]
) -> Span | None:
    all_fields = _read_fields(data)
    fields = dict(all_fields)
    trace, id, parent = _bytes(fields, 1), _bytes(fields, 2), _bytes(fields, 4)
    if len(trace) != 16 or len(id) != 8 or not any(trace) or not any(id):
        return None
    facts: dict[str, Any] = {}
    events: list[tuple[str, dict[str, Any]]] = []
    links: list[str] = []
    for number, value in all_fields:
        if number == 9 and isinstance(value, bytes):
            if len(value) > MAX_CACHED_ATTRIBUTE_BYTES:
                fact = read_attribute(value)
            elif value in attribute_cache:
                fact = attribute_cache[value]
            else:
                fact = attribute_cache[value] = read_attribute(value)
            if fact is not None:
                facts[fact[0]] = fact[1]
        elif number == 11 and isinstance(value, bytes):
            event_facts = dict(filter(None, map(read_attribute, _messages(value, 3))))
            events.append((_to_text(_bytes(dict(_read_fields(value)), 2)), event_facts))
        elif number == 13 and isinstance(value, bytes):
            links.append(_bytes(dict(_read_fields(value)), 1).hex())
    has_failed, message = False, ""
    if 15 in fields:
        status = dict(_read_fields(_bytes(fields, 15)))
        has_failed, message = status.get(3) == 2, _to_text(_bytes(status, 2))
    parent_id, name = parent.hex() if any(parent) else "", _to_text(_bytes(fields, 5))
    start, end = _nanoseconds(fields, 7), _nanoseconds(fields, 8)
    has_failed = has_failed or has_error(facts, events)
    return Span(
        trace.hex(), id.hex(), parent_id, name, start, end, facts, has_failed, message, events, resource, scope, links
    )  # fmt: skip


def _parse_log(data: bytes, resource: dict[str, Any]) -> LogRecord:
    fields = dict(_read_fields(data))
    attributes = (read_attribute(attribute, should_keep_all=True) for attribute in _messages(data, 6))
    timestamp = _nanoseconds(fields, 1) or _nanoseconds(fields, 11)
    body = _read_value(_bytes(fields, 5))
    text = body if isinstance(body, str) else ""
    return LogRecord(_to_text(_bytes(fields, 12)), timestamp, dict(filter(None, attributes)), resource, text)


def encode_response(rejected: int = 0, reason: str = "") -> bytes:
    """Encode the response to an export: empty, or the number of rejected records and the reason."""
    if not rejected and not reason:
        return b""
    count = b"\x08" + _encode_varint(rejected) if rejected else b""
    return _encode_bytes(1, count + _encode_bytes(2, reason.encode()))


def encode_status(message: str) -> bytes:
    """Encode an error as google.rpc.Status, which OTLP clients expect."""
    return b"\x08\x03" + _encode_bytes(2, message.encode())


def _encode_bytes(number: int, value: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
