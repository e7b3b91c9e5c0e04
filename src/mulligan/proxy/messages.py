"""JSON-RPC messages, decoded only as far as needed, and the few that the proxy writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from mulligan.redaction import to_plain_data

Id = int | str | float | None
EMPTY_RAW = msgspec.Raw()
META_PREFIX = "mulligan/"
"""Prefix of the keys that we add to `_meta`."""
CLIENT_INFO_KEY = "io.modelcontextprotocol/clientInfo"
"""Key under which a request without handshake identifies its client."""
PROTOCOL_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
NO_ANSWER_CODE = -32000
"""Error code of our answer if the server gave none."""


class Envelope(msgspec.Struct, gc=False):
    """Message with its parts still encoded."""

    id: Id | msgspec.UnsetType = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw = EMPTY_RAW
    result: msgspec.Raw = EMPTY_RAW
    error: msgspec.Raw = EMPTY_RAW


class LooseEnvelope(Envelope, gc=False):
    """Message that is not valid JSON, decoded with a lenient parser. It must not be encoded again."""


class ToolCall(msgspec.Struct):
    """Parameters of `tools/call`."""

    name: str
    arguments: Any = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class ClientInfo(msgspec.Struct):
    """Name and version that the client reports."""

    name: str = ""
    version: str | None = None


class InitializeParams(msgspec.Struct):
    client: ClientInfo = msgspec.field(default_factory=ClientInfo, name="clientInfo")


class CancelledParams(msgspec.Struct):
    request: Id = msgspec.field(default=None, name="requestId")


class ProgressParams(msgspec.Struct):
    token: Id = msgspec.field(default=None, name="progressToken")


class ContentBlock(msgspec.Struct):
    """Content block of a result. Only text is decoded."""

    type: str = ""
    text: str | None = None


class ToolResult(msgspec.Struct):
    """Result of a tool call."""

    content: list[ContentBlock] | None = None
    is_error: bool | None = msgspec.field(default=None, name="isError")
    structured: msgspec.Raw = msgspec.field(default=EMPTY_RAW, name="structuredContent")
    type: str | None = msgspec.field(default=None, name="resultType")


class ErrorObject(msgspec.Struct):
    code: int | float = 0
    message: str = ""
    data: Any = None


_envelope = msgspec.json.Decoder(Envelope)
_batch_decoder = msgspec.json.Decoder(list[Envelope])
_call = msgspec.json.Decoder(ToolCall)
_result = msgspec.json.Decoder(ToolResult)
_error = msgspec.json.Decoder(ErrorObject)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
encode = msgspec.json.Encoder().encode
decode_result = _result.decode
decode_error_object = _error.decode
decode_members = _members.decode
"""Decode an object but leave its values encoded, so that they are written back unchanged."""
decode_items = _items.decode


def decode_envelope(line: bytes) -> Envelope:
    """Decode a message. Raise `msgspec.ValidationError` for other JSON and `msgspec.DecodeError` for invalid JSON."""
    try:
        return _envelope.decode(line)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError):
        return _decode_loosely(line)


def _decode_loosely(line: bytes) -> Envelope:
    """Decode a message with lone surrogates or NaN, which some programs write."""
    import json  # rarely needed: accepts input that msgspec rejects

    try:
        parsed = json.loads(line)
        if not isinstance(parsed, dict):
            raise msgspec.ValidationError("not an object")
        parts = {
            name: msgspec.Raw(encode(to_plain_data(parsed[name])))
            for name in ("params", "result", "error")
            if name in parsed
        }
        header_fields = {name: to_plain_data(parsed[name]) for name in ("id", "method") if name in parsed}
        header = msgspec.convert(header_fields, Envelope)
        return LooseEnvelope(header.id, header.method, **parts)
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError):
            raise
        raise msgspec.DecodeError(str(error)) from None


def decode_batch(line: bytes) -> list[Envelope]:
    """Decode a batch of messages, which one protocol version allowed. Return an empty list for anything else."""
    try:
        return _batch_decoder.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return []


def decode_tool_call(params: msgspec.Raw) -> ToolCall | None:
    """Decode a tool call. Return None if it is invalid: the server reports the error."""
    try:
        return _call.decode(params)
    except (msgspec.DecodeError, RecursionError):
        return None


def decode_or_default(type: type[Any], raw: msgspec.Raw) -> Any:
    """Decode a part of a message, or return the default of the type if it does not match."""
    try:
        return msgspec.json.decode(raw, type=type)
    except (msgspec.DecodeError, RecursionError):
        return type()


_ID = re.compile(rb'"id"\s{0,9}:\s{0,9}(-?[0-9]{1,18}|"[^"\\]{0,200}")')


def find_id(line: bytes) -> Id:
    """Find the id in an invalid message, or return None."""
    id_match = _ID.search(line, 0, 1000) or _ID.search(line, max(0, len(line) - 300))
    try:
        return None if id_match is None else msgspec.json.decode(id_match[1], type=int | str)
    except msgspec.DecodeError:
        return None


def is_utf8(line: bytes) -> bool:
    """Return whether the line is valid UTF-8, as the protocol requires."""
    if line.isascii():
        return True
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def build_answer(id: Id, result: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "result": result}) + b"\n"


def build_error(id: Id, code: int | float, message: str, data: Any = None) -> bytes:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return encode({"jsonrpc": "2.0", "id": id, "error": error}) + b"\n"


def build_request(id: Id, method: str, params: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + b"\n"


def build_notification(method: str, params: Mapping[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "method": method, "params": params}) + b"\n"


def replace_id(line: bytes, id: Id) -> bytes:
    """Return the same message with another id."""
    return encode({**decode_members(line), "id": id}) + b"\n"
