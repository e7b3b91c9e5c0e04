"""JSON-RPC messages, decoded only as far as needed, and the few that the proxy writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from mulligan.redaction import plain

Id = int | str | float | None
NOTHING = msgspec.Raw()
OURS = "mulligan/"
"""Prefix of the keys that we add to `_meta`."""
CLIENT = "io.modelcontextprotocol/clientInfo"
"""Key under which a request without handshake identifies its client."""
VERSION = "io.modelcontextprotocol/protocolVersion"
GONE = -32000
"""Error code of our answer if the server gave none."""


class Envelope(msgspec.Struct, gc=False):
    """Message with its parts still encoded."""

    id: Id | msgspec.UnsetType = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw = NOTHING
    result: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


class Loose(Envelope, gc=False):
    """Message that is not valid JSON, decoded with a lenient parser. It must not be encoded again."""


class ToolCall(msgspec.Struct):
    """Parameters of `tools/call`."""

    name: str
    arguments: Any = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class Client(msgspec.Struct):
    """Name and version that the client reports."""

    name: str = ""
    version: str | None = None


class Initialize(msgspec.Struct):
    client: Client = msgspec.field(default_factory=Client, name="clientInfo")


class Cancelled(msgspec.Struct):
    request: Id = msgspec.field(default=None, name="requestId")


class Progress(msgspec.Struct):
    token: Id = msgspec.field(default=None, name="progressToken")


class Block(msgspec.Struct):
    """Content block of a result. Only text is decoded."""

    type: str = ""
    text: str | None = None


class Result(msgspec.Struct):
    """Result of a tool call."""

    content: list[Block] | None = None
    is_error: bool | None = msgspec.field(default=None, name="isError")
    structured: msgspec.Raw = msgspec.field(default=NOTHING, name="structuredContent")
    type: str | None = msgspec.field(default=None, name="resultType")


class Error(msgspec.Struct):
    code: int | float = 0
    message: str = ""
    data: Any = None


_envelope = msgspec.json.Decoder(Envelope)
_many = msgspec.json.Decoder(list[Envelope])
_call = msgspec.json.Decoder(ToolCall)
_result = msgspec.json.Decoder(Result)
_error = msgspec.json.Decoder(Error)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
encode = msgspec.json.Encoder().encode
result_of = _result.decode
error_of = _error.decode
members = _members.decode
"""Decode an object but leave its values encoded, so that they are written back unchanged."""
items = _items.decode


def envelope(line: bytes) -> Envelope:
    """Decode a message. Raise `msgspec.ValidationError` for other JSON and `msgspec.DecodeError` for invalid JSON."""
    try:
        return _envelope.decode(line)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError):
        return _loosely(line)


def _loosely(line: bytes) -> Envelope:
    """Decode a message with lone surrogates or NaN, which some programs write."""
    import json  # rarely needed: accepts input that msgspec rejects

    try:
        said = json.loads(line)
        if not isinstance(said, dict):
            raise msgspec.ValidationError("not an object")
        parts = {name: msgspec.Raw(encode(plain(said[name]))) for name in ("params", "result", "error") if name in said}
        known = {name: plain(said[name]) for name in ("id", "method") if name in said}
        about = msgspec.convert(known, Envelope)
        return Loose(about.id, about.method, **parts)
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError):
            raise
        raise msgspec.DecodeError(str(error)) from None


def batch(line: bytes) -> list[Envelope]:
    """Decode a batch of messages, which one protocol version allowed. Return an empty list for anything else."""
    try:
        return _many.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return []


def tool_call(params: msgspec.Raw) -> ToolCall | None:
    """Decode a tool call. Return None if it is invalid: the server reports the error."""
    try:
        return _call.decode(params)
    except (msgspec.DecodeError, RecursionError):
        return None


def read(type: type[Any], raw: msgspec.Raw) -> Any:
    """Decode a part of a message, or return the default of the type if it does not match."""
    try:
        return msgspec.json.decode(raw, type=type)
    except (msgspec.DecodeError, RecursionError):
        return type()


_ID = re.compile(rb'"id"\s{0,9}:\s{0,9}(-?[0-9]{1,18}|"[^"\\]{0,200}")')


def id_in(line: bytes) -> Id:
    """Find the id in an invalid message, or return None."""
    found = _ID.search(line, 0, 1000) or _ID.search(line, max(0, len(line) - 300))
    try:
        return None if found is None else msgspec.json.decode(found[1], type=int | str)
    except msgspec.DecodeError:
        return None


def is_text(line: bytes) -> bool:
    """Return whether the line is valid UTF-8, as the protocol requires."""
    if line.isascii():
        return True
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def answer(id: Id, result: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "result": result}) + b"\n"


def refusal(id: Id, code: int | float, message: str, data: Any = None) -> bytes:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return encode({"jsonrpc": "2.0", "id": id, "error": error}) + b"\n"


def request(id: Id, method: str, params: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + b"\n"


def notification(method: str, params: Mapping[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "method": method, "params": params}) + b"\n"


def with_id(line: bytes, id: Id) -> bytes:
    """Return the same message with another id."""
    return encode({**members(line), "id": id}) + b"\n"
