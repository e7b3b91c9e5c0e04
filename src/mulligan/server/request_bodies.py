"""Request bodies, limited in size, inflated size, depth and time, and JSON without duplicate keys."""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import NoReturn, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from mulligan.core.records import decode, encode
from mulligan.server.responses import ApiError, body_timeout, invalid, too_large
from mulligan.transcripts.log_lines import replace_invalid_unicode

T = TypeVar("T")

JSON = "application/json"
MAX_BODY_BYTES = 5 * 1024 * 1024
"""Limit of a request body as sent."""
MAX_INFLATED_BYTES = 20 * 1024 * 1024
"""Limit of a request body after decompression."""
BODY_TIMEOUT_SECONDS = 60.0
"""Time limit for receiving a whole body."""
MAX_JSON_DEPTH = 64
MIN_THREADED_DECODE_BYTES = 256 * 1024
"""Bodies above this size are decoded on a thread, so that the event loop stays free."""
LIBRARY_BATCH_PREFIX = b'{"client":'
"""Start of a batch from mulligan's own library.

Its bytes normally equal our own encoding, which rules out duplicate keys without a second parse.
"""
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_STRINGS = re.compile(rb'"[^"]*"')
_decode_json = msgspec.json.Decoder(strict=True).decode
_json_encoder = msgspec.json.Encoder()


async def read_body(request: Request, *accepted: str) -> bytes:
    """Return the decompressed body. Raise `ApiError` for a content type that is not accepted."""
    media_type = content_type(request)
    if media_type not in accepted:
        raise ApiError(
            415, "unsupported_type", f"Unsupported content type {media_type[:80]!r}. Send {' or '.join(accepted)}."
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip"):
        raise ApiError(
            415, "unsupported_encoding", f"Unsupported content encoding {encoding[:40]!r}. Use identity or gzip."
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise too_large(MAX_BODY_BYTES, "The body")
    inflater = _GzipInflater() if encoding == "gzip" else None
    size, parts = 0, []
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise too_large(MAX_BODY_BYTES, "The body")
                parts.append(inflater.inflate(chunk) if inflater else chunk)
    except TimeoutError:
        raise body_timeout(BODY_TIMEOUT_SECONDS) from None
    except ClientDisconnect:
        raise ApiError(400, "cut_off", "The body is incomplete: the client disconnected.") from None
    if inflater is not None:
        inflater.check_complete()
    return b"".join(parts)


async def read_json(request: Request, type: type[T]) -> T:
    """Read a JSON body into a record."""
    return parse_json(await read_body(request, JSON), type)


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


class _GzipInflater:
    """Incremental gzip decompression with a size limit, so that a decompression bomb is rejected early."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)
        self._size = 0

    def inflate(self, chunk: bytes) -> bytes:
        try:
            out = self._stream.decompress(chunk, MAX_INFLATED_BYTES - self._size + 1)
        except zlib.error:
            raise invalid("The body is not gzip, although Content-Encoding is gzip.") from None
        self._size += len(out)
        if self._size > MAX_INFLATED_BYTES or self._stream.unconsumed_tail:
            raise too_large(MAX_INFLATED_BYTES, "The decompressed body")
        if self._stream.unused_data:
            raise invalid("The body has data after the end of the gzip stream.")
        return out

    def check_complete(self) -> None:
        if not self._stream.eof:
            raise invalid("The gzip stream is incomplete.")


def parse_json(data: bytes, type: type[T]) -> T:
    """Decode JSON into a record. Reject invalid, too deep or ambiguous JSON and name the field."""
    if is_too_deep(data):
        raise invalid(f"The JSON is nested deeper than {MAX_JSON_DEPTH} levels.")
    try:
        record = decode(data, type)
    except msgspec.ValidationError as error:
        _raise_invalid(error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if replace_invalid_unicode(data) != data:  # Repairing the text could map two different ids to one.
            raise invalid("Invalid Unicode: a lone surrogate or bytes that are not UTF-8.") from None
        raise invalid(f"Invalid JSON: {error}.") from None
    if not (data.startswith(LIBRARY_BATCH_PREFIX) and encode(record) == data) and has_duplicate_keys(data):
        raise invalid("Duplicate key in a JSON object. Send each key once.")
    return record


def _raise_invalid(error: msgspec.ValidationError) -> NoReturn:
    message, _, location = str(error).partition(" - at `")
    raise invalid(f"{message}.", _field_path(location)) from None


def _field_path(location: str) -> str:
    return location.rstrip("`").removeprefix("$").removeprefix(".")


def is_too_deep(data: bytes) -> bool:
    """Return whether JSON is nested deeper than allowed.

    Only brackets are compared: each pass removes the innermost pairs, at most MAX_JSON_DEPTH times.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_JSON_DEPTH:
        return False
    brackets = (
        _strip_escapes(data).translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    )  # Drop strings without brackets.
    if b'"' in brackets:
        brackets = _STRINGS.sub(b"", brackets)
    brackets = brackets.translate(_BRACES_TO_BRACKETS)
    for _ in range(MAX_JSON_DEPTH):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            return False  # Balanced, or not JSON at all.
        brackets = inner
    return bool(brackets)


def _strip_escapes(data: bytes) -> bytes:
    """Remove escape sequences from JSON strings, so that every remaining quote starts or ends a string."""
    return data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data


def has_duplicate_keys(data: bytes) -> bool:
    """Return whether an object in this JSON repeats a key, which decoders resolve differently.

    A decoder keeps one of the two values. Encoding the result again therefore yields fewer quotes than the input has.
    """
    try:
        reencoded = _json_encoder.encode(_decode_json(data))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # a number with thousands of digits
        raise invalid(f"Invalid JSON: {str(error)[:200]}.") from None
    return _strip_escapes(reencoded).count(b'"') != _strip_escapes(data).count(b'"')
