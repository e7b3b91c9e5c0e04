"""Bodies of requests and responses.

Request bodies are limited in size, inflated size, depth and time, and their JSON has no duplicate keys. Responses are
records as JSON, rows as CSV, and errors with a code for programs and a message for people.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mulligan.core.records import decode, encode
from mulligan.report.tables import render_csv
from mulligan.transcripts.log_lines import replace_invalid_unicode

T = TypeVar("T")

JSON = "application/json"
MAX_BODY_BYTES = 5 * 1024 * 1024
"""Limit of a request body as sent."""
MAX_INFLATED_BYTES = 20 * 1024 * 1024
"""Limit of a request body after decompression."""
MAX_FORM_BYTES = 64 * 1024
"""Limit of a form body."""
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


# Responses


def json_response(facts: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(facts), status, {"Cache-Control": "no-store", **(headers or {})}, JSON)


def csv_response(
    rows: Iterable[Mapping[str, Any]], names: Sequence[str], headers: Mapping[str, str] | None = None
) -> Response:
    text = "".join(f"{line}\r\n" for line in render_csv(rows, names))
    return Response(text, 200, {"Cache-Control": "no-store", **(headers or {})}, "text/csv; charset=utf-8")


class ApiError(Exception):
    """Rejected request, with the reason.

    `field` is the path of the invalid field in the request, for example `steps[2].duration_seconds`.
    """

    def __init__(
        self, status: int, error: str, message: str, field: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.error, self.message, self.field = status, error, message, field
        self.headers = dict(headers or {})

    @property
    def facts(self) -> dict[str, Any]:
        return {"error": self.error, "message": self.message, **({"field": self.field} if self.field else {})}


def invalid(message: str, field: str = "") -> ApiError:
    return ApiError(400, "invalid", message, field)


def not_found(message: str) -> ApiError:
    return ApiError(404, "not_found", message)


def too_large(limit: int, subject: str) -> ApiError:
    return ApiError(413, "too_large", f"{subject} exceeds {limit:,} bytes. Send less at once.")


def rate_limited(seconds: int = 1) -> ApiError:
    message = "Too many records. Retry after the time in Retry-After."
    return ApiError(429, "busy", message, headers={"Retry-After": str(seconds)})


def store_unavailable(message: str) -> ApiError:
    return ApiError(503, "store_unavailable", message, headers={"Retry-After": "2"})


def internal_error(message: str = "Internal server error. See the server's log.") -> ApiError:
    return ApiError(500, "fault", message)


# Requests


async def read_body(request: Request, *accepted: str) -> bytes:
    """Return the decompressed body. Raise `ApiError` for a content type that is not accepted."""
    media_type = content_type(request)
    if media_type not in accepted:
        message = f"Unsupported content type {media_type[:80]!r}. Send {' or '.join(accepted)}."
        raise ApiError(415, "unsupported_type", message)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip"):
        message = f"Unsupported content encoding {encoding[:40]!r}. Use identity or gzip."
        raise ApiError(415, "unsupported_encoding", message)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise too_large(MAX_BODY_BYTES, "The body")
    return await _receive(request, MAX_BODY_BYTES, is_gzip=encoding == "gzip")


async def _receive(request: Request, limit: int, *, is_gzip: bool = False) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    size, data = 0, bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise too_large(limit, "The body")
                data += _inflate(stream, chunk, len(data)) if is_gzip else chunk
    except TimeoutError:
        message = f"The body was not received within {BODY_TIMEOUT_SECONDS:g} s. Send less at once."
        raise ApiError(408, "too_slow", message, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(400, "cut_off", "The body is incomplete: the client disconnected.") from None
    if is_gzip and not stream.eof:
        raise invalid("The gzip stream is incomplete.")
    return bytes(data)


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a URL-encoded form. Return no fields if it is too large or malformed."""
    try:
        body = await _receive(request, MAX_FORM_BYTES)
        if content_type(request) != "application/x-www-form-urlencoded":
            return {}
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=50))
    except ApiError as error:
        if error.status != 413:
            raise
    except ValueError:  # More fields than any of our forms has.
        pass
    return {}


async def read_json(request: Request, type: type[T]) -> T:
    """Read a JSON body into a record."""
    return parse_json(await read_body(request, JSON), type)


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _inflate(stream: Any, chunk: bytes, size: int) -> bytes:
    """Decompress a chunk. The size limit rejects a decompression bomb early."""
    try:
        out: bytes = stream.decompress(chunk, MAX_INFLATED_BYTES - size + 1)
    except zlib.error:
        raise invalid("The body is not gzip, although Content-Encoding is gzip.") from None
    if size + len(out) > MAX_INFLATED_BYTES or stream.unconsumed_tail:
        raise too_large(MAX_INFLATED_BYTES, "The decompressed body")
    if stream.unused_data:
        raise invalid("The body has data after the end of the gzip stream.")
    return out


def parse_json(data: bytes, type: type[T]) -> T:
    """Decode JSON into a record. Reject invalid, too deep or ambiguous JSON and name the field."""
    check_depth(data)
    try:
        record = decode(data, type)
    except msgspec.ValidationError as error:
        message, _, location = str(error).partition(" - at `")
        raise invalid(f"{message}.", location.rstrip("`").removeprefix("$").removeprefix(".")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if replace_invalid_unicode(data) != data:  # Repairing the text could map two different ids to one.
            raise invalid("Invalid Unicode: a lone surrogate or bytes that are not UTF-8.") from None
        raise invalid(f"Invalid JSON: {error}.") from None
    if not (data.startswith(LIBRARY_BATCH_PREFIX) and encode(record) == data) and has_duplicate_keys(data):
        raise invalid("Duplicate key in a JSON object. Send each key once.")
    return record


def check_depth(data: bytes) -> None:
    """Raise `ApiError` if JSON is nested deeper than allowed.

    Only brackets are compared: each pass removes the innermost pairs, at most MAX_JSON_DEPTH times.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_JSON_DEPTH:
        return
    structure = _strip_escapes(data).translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    brackets = _STRINGS.sub(b"", structure).translate(_BRACES_TO_BRACKETS)
    for _ in range(MAX_JSON_DEPTH):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            return  # Balanced, or not JSON at all.
        brackets = inner
    if brackets:
        raise invalid(f"The JSON is nested deeper than {MAX_JSON_DEPTH} levels.")


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
