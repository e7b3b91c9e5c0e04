"""Bodies of requests and responses.

Request bodies are limited in size, inflated size, depth and time, and their JSON has no duplicate keys. Responses are
records as JSON, rows as CSV, and errors with a code for programs and a message for people.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from importlib import import_module
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mulligan.core.records import decode, encode
from mulligan.report.tables import render_csv
from mulligan.server.body_faults import MAX_FAULTS, Fault, describe_length, find_faults
from mulligan.transcripts.log_lines import replace_invalid_unicode

zstandard: Any = None
with suppress(ImportError):  # an extra
    zstandard = import_module("zstandard")

T = TypeVar("T")

JSON = "application/json"
MAX_BODY_BYTES = 5 * 1024 * 1024
"""Limit of a request body as sent."""
MAX_INFLATED_BYTES = 20 * 1024 * 1024
"""Limit of a request body after decompression."""
MAX_OTLP_BODY_BYTES = 20 * 1024 * 1024
"""Limit of an OTLP export as sent. OpenTelemetry collectors send large batches."""
MAX_OTLP_INFLATED_BYTES = 64 * 1024 * 1024
"""Limit of an OTLP export after decompression."""
ZSTD_SLICE_BYTES = 256
"""Compressed bytes per step of zstd, which has no limit of its output: 64 blocks of 128 KB at most."""
MAX_RECEIVED_BYTES = 64 * 1024 * 1024
"""Limit of the bodies that a server is receiving and decompressing. Above it senders of large ones receive 429."""
UNCOUNTED_BYTES = 64 * 1024
"""The first part of each body does not count, so that large uploads never keep out small requests."""
IS_BODY_COMPLETE = "is_body_complete"
"""Key in a request's state that says that all of its body has arrived."""
BODY_TIMEOUT_SECONDS = 60.0
"""Time limit for receiving a whole body."""
DISCARD_SECONDS = 20.0
"""Time limit for receiving the rest of a refused body."""
MAX_JSON_DEPTH = 64
MAX_INLINE_BYTES = 128 * 1024
"""JSON up to this size is decoded at once, which takes about a millisecond."""
MAX_BODY_ITEMS = 10_000
"""Limit of items in one list of a body."""
MAX_ITEM_BYTES = 2 * 1024 * 1024
"""Limit of one item in a larger body: while it is decoded, nothing else runs."""
LIBRARY_PREFIXES = (b'{"client":', b'{"event":')
"""Start of a batch, or of an event, from mulligan's own library.

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

    `field` is the path of the invalid field in the request, for example `steps[2].duration_seconds`. `faults` are all
    faults of the request, if more than one was found.
    """

    def __init__(
        self, status: int, error: str, message: str, field: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.error, self.message, self.field = status, error, message, field
        self.headers = dict(headers or {})
        self.faults: list[Fault] = []

    @property
    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"error": self.error, "message": self.message}
        if self.field:
            facts["field"] = self.field
        if self.error == "invalid":
            faults = self.faults or [Fault.at(self.field, self.message)]
            facts |= {"pointer": faults[0].pointer, "errors": [fault.facts for fault in faults]}
        return facts


def invalid(message: str, field: str = "") -> ApiError:
    return ApiError(400, "invalid", message, field)


def invalid_body(faults: Sequence[Fault]) -> ApiError:
    """Build the error for a body with one or more faults. Its message is that of the first one."""
    error = invalid(faults[0].message, faults[0].field)
    error.faults = list(faults)
    return error


class FaultCollector:
    """Collects the faults of the parts of a body: `with faults:` around each, then `faults.raise_all()`."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, message: str, field: str) -> None:
        self._faults.append(Fault.at(field, message))

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, ApiError) or error.status != 400 or len(self._faults) >= MAX_FAULTS:
            return False
        self._faults += error.faults or [Fault.at(error.field, error.message)]
        return True

    def raise_all(self) -> None:
        """Raise one error for all faults, if there are any."""
        if self._faults:
            raise invalid_body(self._faults[:MAX_FAULTS])


def not_found(message: str) -> ApiError:
    return ApiError(404, "not_found", message)


def too_large(limit: int, subject: str) -> ApiError:
    return ApiError(413, "too_large", f"{subject} exceeds {limit:,} bytes. Send less at once.")


def rate_limited(seconds: int = 1, subject: str = "records") -> ApiError:
    message = f"Too many {subject}. Retry after the time in Retry-After."
    return ApiError(429, "busy", message, headers={"Retry-After": str(seconds)})


def store_unavailable(message: str) -> ApiError:
    return ApiError(503, "store_unavailable", message, headers={"Retry-After": "2"})


def worker_unavailable(worker: str = "") -> ApiError:
    """Build the error for a tenant whose worker is away. `worker` is its address, for those who may know it."""
    subject = f"The worker {worker} of the store" if worker else "The worker of the store with this tenant's records"
    message = f"{subject} does not answer. Other tenants are not affected. Send the request again later."
    return ApiError(503, "worker_unavailable", message, headers={"Retry-After": "2"})


def internal_error(message: str = "Internal server error. See the server's log.") -> ApiError:
    return ApiError(500, "fault", message)


# Requests


class BodyMemory:
    """Memory of the bodies that a server is receiving and decompressing."""

    def __init__(self) -> None:
        self.byte_count = 0

    def add(self, size: int, count: int) -> None:
        """Count the next bytes of a body of this size. Raise `ApiError` if the server holds too many."""
        added = max(0, size + count - UNCOUNTED_BYTES) - max(0, size - UNCOUNTED_BYTES)
        if added and self.byte_count + added > MAX_RECEIVED_BYTES:
            raise rate_limited(5, "large bodies at once")
        self.byte_count += added

    def release(self, size: int) -> None:
        self.byte_count -= max(0, size - UNCOUNTED_BYTES)


async def read_body(
    request: Request,
    *accepted: str,
    max_bytes: int = MAX_BODY_BYTES,
    max_inflated_bytes: int = MAX_INFLATED_BYTES,
) -> bytes:
    """Return the decompressed body. Raise `ApiError` for a content type that is not accepted."""
    media_type = content_type(request)
    if media_type not in accepted:
        message = f"Unsupported content type {media_type[:80]!r}. Send {' or '.join(accepted)}."
        raise ApiError(415, "unsupported_type", message)
    encoding = request.headers.get("content-encoding", "").strip().lower() or "identity"
    encodings = ("identity", "gzip", "deflate", *(("zstd",) if zstandard is not None else ()))
    if encoding not in encodings:
        message = f"Unsupported content encoding {encoding[:40]!r}. Use {', '.join(encodings)}."
        raise ApiError(415, "unsupported_encoding", message, headers={"Accept-Encoding": ", ".join(encodings)})
    length = request.headers.get("content-length", "")
    data = bytearray()
    try:
        if length.isdecimal() and int(length) > max_bytes:
            raise too_large(max_bytes, "The body")
        await _receive(request, data, max_bytes)
        return bytes(data) if encoding == "identity" else await _inflate(bytes(data), encoding, max_inflated_bytes)
    except ApiError as error:
        if error.status == 413:
            await _discard_body(request)
        raise
    finally:
        request.state.body_memory.release(len(data))


async def _receive(request: Request, data: bytearray, limit: int) -> None:
    memory: BodyMemory = request.state.body_memory
    # A timer costs as much as decoding a small body, which has mostly arrived with its head.
    timeout = nullcontext() if IS_BODY_COMPLETE in request.scope["state"] else asyncio.timeout(BODY_TIMEOUT_SECONDS)
    try:
        async with timeout:
            async for chunk in request.stream():
                size = len(data) + len(chunk)
                if size > limit:
                    raise too_large(limit, "The body")
                if size > UNCOUNTED_BYTES:
                    memory.add(len(data), len(chunk))
                data += chunk
    except TimeoutError:
        message = f"The body was not received within {BODY_TIMEOUT_SECONDS:g} s. Send less at once."
        raise ApiError(408, "too_slow", message, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(400, "cut_off", "The body is incomplete: the client disconnected.") from None


async def _discard_body(request: Request) -> None:
    """Read what else a client sends of a refused body, within limits.

    Many clients send all of it before they read. A connection that closes meanwhile is reset, and they never see why.
    """
    if IS_BODY_COMPLETE in request.scope["state"] or "expect" in request.headers:
        return  # a client that waits for permission reads the answer
    discarded_bytes = 0
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(DISCARD_SECONDS):
            async for chunk in request.stream():
                discarded_bytes += len(chunk)
                # Bytes of a body that is too large which are read and discarded, so that its sender gets the answer.
                if discarded_bytes > 128 * 1024 * 1024:
                    return


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a URL-encoded form. Return no fields if it is too large or malformed."""
    try:
        body = bytearray()
        # Limit of a form body.
        await _receive(request, body, 64 * 1024)  # too small to count
        if content_type(request) != "application/x-www-form-urlencoded":
            return {}
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=80))
    except ApiError as error:
        if error.status != 413:
            raise
    except ValueError:  # More fields than any of our forms has.
        pass
    return {}


async def read_json(request: Request, type: type[T]) -> T:
    return parse_json(await read_body(request, JSON), type)


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _inflate(data: bytes, encoding: str, limit: int) -> bytes:
    """Decompress a body, a large one on a thread so that the event loop stays free."""
    pieces = _iter_inflated(data, encoding)
    out = bytearray()
    # Bodies above this size are decoded on a thread, so that the event loop stays free.
    if not _collect_pieces(pieces, out, limit, 256 * 1024):
        await asyncio.get_running_loop().run_in_executor(_inflaters, _collect_pieces, pieces, out, limit, limit + 1)
    return bytes(out)


def _collect_pieces(pieces: Iterator[bytes], out: bytearray, limit: int, enough: int) -> bool:
    """Append pieces until there are enough bytes. Return whether that was all. Refuse a bomb at the limit."""
    for piece in pieces:
        out += piece
        if len(out) > limit:
            raise too_large(limit, "The decompressed body")
        if len(out) >= enough:
            return False
    return True


# Threads that decompress large bodies. Others wait, with their compressed bytes only.
_inflaters = ThreadPoolExecutor(2, thread_name_prefix="mulligan-inflater")
_DECOMPRESSION_ERRORS: tuple[type[Exception], ...] = (
    (zlib.error,) if zstandard is None else (zlib.error, zstandard.ZstdError)
)


def _iter_inflated(data: bytes, encoding: str) -> Iterator[bytes]:
    """Yield the decompressed bytes in pieces. Raise `ApiError` unless the data is exactly one complete stream."""
    try:
        if encoding == "zstd":
            # Largest window of a zstd body. HTTP allows no larger one (RFC 9659).
            stream: Any = zstandard.ZstdDecompressor(max_window_size=8 * 1024 * 1024).decompressobj()
            for at in range(0, len(data), ZSTD_SLICE_BYTES):
                if stream.eof:
                    raise invalid("The body has data after the end of the zstd stream.")
                yield stream.decompress(data[at : at + ZSTD_SLICE_BYTES])
        else:
            stream = zlib.decompressobj(wbits=_zlib_format(data, encoding))
            compressed, piece = data, data
            while piece and not stream.eof:
                # Decompression continues in pieces of this size, so that a bomb is refused before it fills the memory.
                piece = stream.decompress(compressed, 1024 * 1024)
                compressed = stream.unconsumed_tail
                yield piece
    except _DECOMPRESSION_ERRORS:
        raise invalid(f"The body is not {encoding}, although Content-Encoding is {encoding}.") from None
    if not stream.eof:
        raise invalid(f"The {encoding} stream is incomplete.")
    if stream.unused_data:
        raise invalid(f"The body has data after the end of the {encoding} stream.")


def _zlib_format(data: bytes, encoding: str) -> int:
    """Return the `wbits` of a stream. Some clients send deflate without the zlib header that HTTP requires."""
    if encoding == "gzip":
        return 31
    has_header = len(data) >= 2 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
    return 15 if has_header else -15


def parse_json(data: bytes, type: type[T], outer_depth: int = 0) -> T:
    """Decode JSON into a record. Reject invalid, too deep or ambiguous JSON and name the field.

    `outer_depth` is the number of levels around this part of a body.
    """
    check_depth(data, MAX_JSON_DEPTH - outer_depth)
    record = _decode_record(data, type)
    if not (data.startswith(LIBRARY_PREFIXES) and encode(record) == data) and has_duplicate_keys(data):
        raise invalid("Duplicate key in a JSON object. Send each key once.")
    return record


def parse_in_slices(
    data: bytes, type: Any, object_type: Any, item_types: Mapping[str, Any]
) -> Generator[None, None, Any]:
    """Decode a large body like `parse_json`, an item at a time: while a decoder works, no other thread can run.

    The body is an object, or a list of such objects if `type` is not `object_type`. `item_types` are the types of the
    items in lists of the object.
    """
    if type is object_type or data.lstrip()[:1] != b"[":
        return (yield from _parse_object(data, object_type, item_types, ""))
    objects = []
    for number, item in enumerate(_split_list(data, "")):
        objects.append((yield from _parse_object(bytes(item), object_type, item_types, f"[{number}]")))
    return objects


def _parse_object(data: bytes, type: Any, item_types: Mapping[str, Any], path: str) -> Generator[None, None, Any]:
    yield
    outer_depth = 1 if path else 0
    if not item_types or len(data) <= MAX_INLINE_BYTES:
        return _parse_item(data, type, path, outer_depth)
    fields = _decode_record(data, dict[str, msgspec.Raw], path)
    yield
    if encode(fields).count(b'"') != data.count(b'"'):
        raise invalid("Duplicate key in a JSON object. Send each key once.", path)
    lists: dict[str, list[Any]] = {}
    for name in item_types.keys() & fields.keys():
        list_path = _join_path(path, name)
        lists[name] = []
        yield
        for number, item in enumerate(_split_list(fields[name], list_path)):
            yield
            lists[name].append(_parse_item(item, item_types[name], f"{list_path}[{number}]", outer_depth + 2))
        fields[name] = msgspec.Raw(b"[]")
    return msgspec.structs.replace(_parse_item(encode(fields), type, path, outer_depth), **lists)


def _split_list(data: bytes | msgspec.Raw, path: str) -> list[msgspec.Raw]:
    items = _decode_record(data, list[msgspec.Raw], path)
    if len(items) > MAX_BODY_ITEMS:
        raise invalid(describe_length(len(items), MAX_BODY_ITEMS), path)
    return items


def _parse_item(item: bytes | msgspec.Raw, type: Any, path: str, outer_depth: int) -> Any:
    data = bytes(item)
    if len(data) > MAX_ITEM_BYTES:
        message = f"One item has {len(data):,} bytes. The limit is {MAX_ITEM_BYTES:,}. Send less of its content."
        raise ApiError(413, "too_large", message, path)
    try:
        return parse_json(data, type, outer_depth)
    except ApiError as error:
        error.field = _join_path(path, error.field)
        error.faults = [fault.within(path) for fault in error.faults]
        raise


def _join_path(path: str, field: str) -> str:
    return f"{path}{'.' if path and field and field[0] != '[' else ''}{field}"


def _decode_record(data: bytes | msgspec.Raw, type: type[T], path: str = "") -> T:
    try:
        return decode(data, type)
    except msgspec.ValidationError as error:
        if faults := find_faults(bytes(data), type, path):
            raise invalid_body(faults) from None
        message, _, location = str(error).partition(" - at `")
        field = location.rstrip("`").removeprefix("$").removeprefix(".")
        raise invalid(f"{message}.", _join_path(path, field)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if replace_invalid_unicode(bytes(data)) != bytes(
            data
        ):  # Repairing the text could map two different ids to one.
            raise invalid("Invalid Unicode: a lone surrogate or bytes that are not UTF-8.") from None
        raise invalid(f"Invalid JSON: {error}.") from None


def check_depth(data: bytes, max_depth: int = MAX_JSON_DEPTH) -> None:
    """Raise `ApiError` if JSON is nested deeper than allowed.

    Only brackets are compared: each pass removes the innermost pairs, at most `max_depth` times.
    """
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    structure = _strip_escapes(data).translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    brackets = _STRINGS.sub(b"", structure).translate(_BRACES_TO_BRACKETS)
    for _ in range(max_depth):
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
