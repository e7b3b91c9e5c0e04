"""Request bodies, limited in size, inflated size, depth and time, and JSON without duplicate keys."""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import NoReturn, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from mulligan.capture.transcripts.lines import mended
from mulligan.records import decode, encode
from mulligan.serve.api.errors import Refused, invalid, too_large, too_slow

T = TypeVar("T")

BODY = 5 * 1024 * 1024
"""Limit of a request body as sent."""
INFLATED = 20 * 1024 * 1024
"""Limit of a request body after decompression."""
SECONDS = 60.0
"""Time limit for receiving a whole body."""
DEPTH = 64
LARGE = 256 * 1024
"""Bodies above this size are decoded on a thread, so that the event loop stays free."""
OURS = b'{"client":'
"""Start of a batch from mulligan's own library.

Its bytes normally equal our own encoding, which rules out duplicate keys without a second parse.
"""
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_ALIKE = bytes.maketrans(b"{}", b"[]")
_STRINGS = re.compile(rb'"[^"]*"')
_read = msgspec.json.Decoder(strict=True).decode
_any = msgspec.json.Encoder()


async def read(request: Request, *accepted: str) -> bytes:
    """Return the decompressed body. Raise `ApiError` for a content type that is not accepted."""
    sort = content_type(request)
    if sort not in accepted:
        raise Refused(415, "unsupported_type", f"send {' or '.join(accepted)}, not {sort or 'a body without a type'}.")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip"):
        raise Refused(415, "unsupported_encoding", f"send it plain or as gzip, not as {encoding[:40]!r}.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > BODY:
        raise too_large(BODY, "a body")
    inflating = _Inflating() if encoding == "gzip" else None
    size, parts = 0, []
    try:
        async with asyncio.timeout(SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > BODY:
                    raise too_large(BODY, "a body")
                parts.append(inflating.more(chunk) if inflating else chunk)
    except TimeoutError:
        raise too_slow(SECONDS) from None
    except ClientDisconnect:
        raise Refused(400, "cut_off", "the body ended before its end.") from None
    if inflating is not None:
        inflating.end()
    return b"".join(parts)


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


class _Inflating:
    """Incremental gzip decompression with a size limit, so that a decompression bomb is rejected early."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)
        self._size = 0

    def more(self, chunk: bytes) -> bytes:
        try:
            out = self._stream.decompress(chunk, INFLATED - self._size + 1)
        except zlib.error:
            raise invalid("the body is not gzip, though its Content-Encoding says so.") from None
        self._size += len(out)
        if self._size > INFLATED or self._stream.unconsumed_tail:
            raise too_large(INFLATED, "an inflated body")
        if self._stream.unused_data:
            raise invalid("there is something behind the end of the gzip.")
        return out

    def end(self) -> None:
        if not self._stream.eof:
            raise invalid("the gzip ends before its end.")


def parsed(data: bytes, type: type[T]) -> T:
    """Decode JSON into a record. Reject invalid, too deep or ambiguous JSON and name the field."""
    if too_deep(data):
        raise invalid(f"it is nested deeper than {DEPTH}.")
    try:
        found = decode(data, type)
    except msgspec.ValidationError as error:
        _refuse(error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if mended(data) != data:  # Repairing the text could map two different ids to one.
            raise invalid("there is half a character in it: an emoji cut in two, or bytes that are no UTF-8.") from None
        raise invalid(f"this is no JSON: {error}.") from None
    if not (data.startswith(OURS) and encode(found) == data) and said_twice(data):
        raise invalid("a name is said twice in one object, and which one is meant is not for us to say.")
    return found


def _refuse(error: msgspec.ValidationError) -> NoReturn:
    said, _, place = str(error).partition(" - at `")
    raise invalid(f"{said}.", _place(place)) from None


def _place(place: str) -> str:
    return place.rstrip("`").removeprefix("$").removeprefix(".")


def too_deep(data: bytes) -> bool:
    """Return whether JSON is nested deeper than allowed.

    Only brackets are compared: each pass removes the innermost pairs, at most MAX_JSON_DEPTH times.
    """
    if data.count(b"[") + data.count(b"{") <= DEPTH:
        return False
    left = _unescaped(data).translate(None, _NOT_STRUCTURE).replace(b'""', b"")  # Drop strings without brackets.
    if b'"' in left:
        left = _STRINGS.sub(b"", left)
    left = left.translate(_ALIKE)
    for _ in range(DEPTH):
        inner = left.replace(b"[]", b"")
        if len(inner) == len(left):
            return False  # Balanced, or not JSON at all.
        left = inner
    return bool(left)


def _unescaped(data: bytes) -> bytes:
    """Remove escape sequences from JSON strings, so that every remaining quote starts or ends a string."""
    return data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data


def said_twice(data: bytes) -> bool:
    """Return whether an object in this JSON repeats a key, which decoders resolve differently.

    A decoder keeps one of the two values. Encoding the result again therefore yields fewer quotes than the input has.
    """
    try:
        again = _any.encode(_read(data))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # a number with thousands of digits
        raise invalid(f"this is no JSON that everybody reads: {str(error)[:200]}.") from None
    return _unescaped(again).count(b'"') != _unescaped(data).count(b'"')
