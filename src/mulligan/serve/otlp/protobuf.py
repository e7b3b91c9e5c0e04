"""Reader of OTLP protobuf that decodes only the relevant fields.

A custom reader instead of a library: only a dozen attributes of a span matter, and finding them in the bytes is faster
than decoding whole messages. It also needs no dependency.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from mulligan.capture.transcripts.otlp import WANTED, Span

_WANTED = {name.encode(): name for name in WANTED}
_fixed64 = struct.Struct("<Q").unpack_from
_double = struct.Struct("<d").unpack_from
_NONE = bytes(16)
DEPTH = 8
SHORT = 64
"""Attributes up to this size are cached by their bytes: most recur in many spans of an export."""

_Fact = tuple[str, Any]
"""An attribute: its name and its value."""


class Malformed(ValueError):
    """Invalid protobuf bytes."""


class LogRecord(NamedTuple):
    """The decoded fields of a log record."""

    name: str
    time: int
    """Nanoseconds since the epoch."""
    facts: dict[str, Any]
    resource: dict[str, Any]
    body: str


def spans(data: bytes) -> tuple[list[Span], int]:
    """Return the spans of an export, and the number of spans rejected for an invalid id."""
    found: list[Span] = []
    rejected = 0
    known: dict[bytes, _Fact | None] = {}
    try:
        for resource, scope, end in _grouped(data):
            for number, start, stop in _fields(data, scope, end):
                if number == 2:
                    span = _span(data, start, stop, resource, known)
                    if span is None:
                        rejected += 1
                    else:
                        found.append(span)
    except IndexError:
        raise Malformed("it ends in the middle of a field") from None
    return found, rejected


def logs(data: bytes) -> list[LogRecord]:
    found: list[LogRecord] = []
    for resource, scope, end in _grouped(data):
        found += [_log(data, start, stop, resource) for number, start, stop in _fields(data, scope, end) if number == 2]
    return found


def _grouped(data: bytes) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yield each scope of an export with the attributes of its resource. Traces and logs have the same layout."""
    for number, start, end in _fields(data, 0, len(data)):
        if number != 1:
            continue
        resource: dict[str, Any] = {}
        scopes: list[tuple[int, int]] = []
        for inner, first, last in _fields(data, start, end):
            if inner == 1:
                for each, begin, stop in _fields(data, first, last):
                    if each == 1:
                        _attribute(data, begin, stop, resource)
            elif inner == 2:
                scopes.append((first, last))
        for first, last in scopes:
            yield resource, first, last


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each field with start and end of its value. For a varint, start is the value itself."""
    while at < end:
        number, start, stop, at = _next(data, at, end)
        yield number, start, stop


def _next(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Return the next field as above, and the index after it."""
    tag = data[at]
    at += 1
    if tag > 127:
        tag, at = _varint(data, at - 1, end)
    kind = tag & 7
    if kind == 2:
        if at >= end:
            raise Malformed("it ends in the middle of a field")
        size = data[at]
        at += 1
        if size > 127:
            size, at = _varint(data, at - 1, end)
        stop = at + size
        if stop > end:
            raise Malformed("a field is longer than what holds it")
        return tag >> 3, at, stop, stop
    if kind == 0:
        value, at = _varint(data, at, end)
        return tag >> 3, value, -1, at
    if kind == 1 or kind == 5:
        stop = at + (8 if kind == 1 else 4)
        if stop > end:
            raise Malformed("it ends in the middle of a number")
        return tag >> 3, at, stop, stop
    raise Malformed(f"there is no field of the sort {kind}")


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise Malformed("a number has no end")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _attribute(data: bytes, at: int, end: int, facts: dict[str, Any], every: bool = False) -> None:
    """Add an attribute to the facts if it is a relevant one."""
    fact = _fact(data, at, end, every)
    if fact is not None:
        facts[fact[0]] = fact[1]


def _fact(data: bytes, at: int, end: int, every: bool = False) -> _Fact | None:
    # Fast path for the usual layout: a short key, then the value.
    if at + 2 < end and data[at] == 0x0A and (size := data[at + 1]) < 128 and not every:
        place = at + 2 + size
        known = _WANTED.get(data[at + 2 : place])
        if known is None and place < end:
            return None
        if known is not None and place + 1 < end and data[place] == 0x12:
            size, start = data[place + 1], place + 2
            if size > 127:
                size, start = _varint(data, place + 1, end)
            if start + size == end:
                return known, _value(data, start, end)
    name: str | None = None
    value: tuple[int, int] | None = None
    for number, start, stop in _fields(data, at, end):
        if number == 1:
            key = data[start:stop]
            name = key.decode("utf-8", "replace") if every else _WANTED.get(key)
            if name is None:
                return None
        elif number == 2 and stop >= 0:
            value = (start, stop)
    return (name, _value(data, *value)) if name is not None and value is not None else None


def _value(data: bytes, at: int, end: int) -> Any:
    if at + 1 < end and data[at] == 0x0A:  # fast path: a string
        size, start = data[at + 1], at + 2
        if size > 127:
            size, start = _varint(data, at + 1, end)
        if start + size == end:
            return data[start:end].decode("utf-8", "replace")
    for number, start, stop in _fields(data, at, end):
        if number == 1:
            return data[start:stop].decode("utf-8", "replace")
        if number == 2:
            return bool(start)
        if number == 3:
            return start - 2**64 if start >= 2**63 else start
        if number == 4 and stop - start == 8:
            return _double(data, start)[0]
    return None


def _span(data: bytes, at: int, end: int, resource: dict[str, Any], known: dict[bytes, _Fact | None]) -> Span | None:
    # Inlined instead of calling `_iter_fields`: with a dozen fields in each of thousands of spans, the generator would
    # take half of the total time.
    trace = id = parent = b""
    name = message = ""
    begun = ended = 0
    has_failed = False
    facts: dict[str, Any] = {}
    events: list[tuple[str, dict[str, Any]]] = []
    while at < end:
        tag = data[at]
        if tag > 127 or tag & 7 != 2:
            if tag == 0x39 or tag == 0x41:
                if at + 9 > end:
                    raise Malformed("it ends in the middle of a number")
                (moment,) = _fixed64(data, at + 1)
                begun, ended = (moment, ended) if tag == 0x39 else (begun, moment)
                at += 9
            elif (tag == 0x30 or tag == 0x50) and at + 2 <= end and data[at + 1] < 128:
                at += 2  # the kind, or the number of dropped attributes
            elif tag == 0x85 and at + 6 <= end and data[at + 1] == 0x01:
                at += 6  # flags
            else:
                number, _, _, at = _next(data, at, end)
                if number == 7 or number == 8:
                    raise Malformed("a time is no time")
            continue
        size = data[at + 1]
        start = at + 2
        if size > 127:
            size, start = _varint(data, at + 1, end)
        at = start + size
        if at > end:
            raise Malformed("a field is longer than what holds it")
        if tag == 0x4A:
            if size > SHORT:
                fact = _fact(data, start, at)
            elif (piece := data[start:at]) in known:
                fact = known[piece]
            else:
                fact = known[piece] = _fact(piece, 0, size)
            if fact is not None:
                facts[fact[0]] = fact[1]
        elif tag == 0x0A:
            trace = data[start:at]
        elif tag == 0x12:
            id = data[start:at]
        elif tag == 0x22:
            parent = data[start:at]
        elif tag == 0x2A:
            name = data[start:at].decode("utf-8", "replace")
        elif tag == 0x7A:
            if size == 2 and data[start] == 0x18 and data[start + 1] < 128:
                has_failed = data[start + 1] == 2
                continue
            for inner, first, last in _fields(data, start, at):
                if inner == 2:
                    message = data[first:last].decode("utf-8", "replace")
                elif inner == 3:
                    has_failed = first == 2
        elif tag == 0x5A:
            events.append(_event(data, start, at))
        elif tag == 0x3A or tag == 0x42:
            raise Malformed("a time is no time")
    if len(trace) != 16 or len(id) != 8 or trace == _NONE or id == _NONE[:8]:
        return None
    above = parent.hex() if parent.strip(b"\0") else ""
    return Span(trace.hex(), id.hex(), above, name, begun, ended, facts, has_failed, message, events, resource)


def _event(data: bytes, at: int, end: int) -> tuple[str, dict[str, Any]]:
    name = ""
    facts: dict[str, Any] = {}
    for number, start, stop in _fields(data, at, end):
        if number == 2:
            name = data[start:stop].decode("utf-8", "replace")
        elif number == 3:
            _attribute(data, start, stop, facts)
    return name, facts


def _log(data: bytes, at: int, end: int, resource: dict[str, Any]) -> LogRecord:
    name = body = ""
    moment = observed = 0
    facts: dict[str, Any] = {}
    for number, start, stop in _fields(data, at, end):
        if number == 6:
            _attribute(data, start, stop, facts, every=True)
        elif (number == 1 or number == 11) and stop - start == 8:
            (found,) = _fixed64(data, start)
            if number == 1:
                moment = found
            else:
                observed = found
        elif number == 12 and stop >= 0:
            name = data[start:stop].decode("utf-8", "replace")
        elif number == 5 and stop >= 0:
            value = _value(data, start, stop)
            body = value if isinstance(value, str) else ""
    return LogRecord(name, moment or observed, facts, resource, body)


def answered(rejected: int = 0, why: str = "") -> bytes:
    """Encode the response to an export: empty, or the number of rejected records and the reason."""
    if not rejected and not why:
        return b""
    text = why.encode()
    told = (b"\x08" + _number(rejected) if rejected else b"") + b"\x12" + _number(len(text)) + text
    return b"\x0a" + _number(len(told)) + told


def status(message: str) -> bytes:
    """Encode an error as google.rpc.Status, which OTLP clients expect."""
    text = message.encode()
    return b"\x08\x03\x12" + _number(len(text)) + text


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
