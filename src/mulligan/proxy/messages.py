"""JSON-RPC messages: decoded only as far as needed, and those that the proxy writes.

The server's content stays unchanged, byte for byte. All text that the proxy adds comes from `prompt/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from mulligan.redaction import to_plain_data

T = TypeVar("T")
D = TypeVar("D")
Id = int | str | float | None
HUNG_UP = "the client hung up"
"""The reason of a cancellation that the proxy sends for a client that is gone."""
EMPTY_RAW = Raw()
META_PREFIX = "mulligan/"
"""Prefix of the keys that we add to `_meta`."""
CLIENT_INFO_KEY = "io.modelcontextprotocol/clientInfo"
"""Key under which a request without handshake identifies its client."""
PROTOCOL_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
STATELESS_VERSION = "2026-07-28"
"""First protocol version without handshake: each request carries its version in `_meta`."""
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
"""Key of a notification's `_meta` that names the request it belongs to."""
SESSION_KEY = "sessionId"
"""Key of a request's `_meta` under which Codex passes its session id."""
USER_REQUEST_KEYS = ("x-codex-turn-metadata", "turn_id")
"""Keys of `_meta` under which Codex passes the id of the user's request. No other agent tells it to its servers."""
NO_ANSWER_CODE = -32000
"""Error code of our answer if the server gave none."""
MAX_ANSWER_SIZE = 65_536
"""Characters of a text that are recorded, and bytes above which structured content is not decoded."""
MAX_SESSION_CHARS = 200
_ID = re.compile(rb'"id"\s{0,9}:\s{0,9}(-?[0-9]{1,18}|"[^"\\]{0,200}")')


class Envelope(msgspec.Struct, gc=False):
    """Message with its parts still encoded."""

    id: Id | msgspec.UnsetType = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: Raw = EMPTY_RAW
    result: Raw = EMPTY_RAW
    error: Raw = EMPTY_RAW


class LooseEnvelope(Envelope, gc=False):
    """Message that is not valid JSON, decoded with a lenient parser. It must not be encoded again."""


class ToolCall(msgspec.Struct):
    name: str
    arguments: Any = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class ClientInfo(msgspec.Struct):
    """Name and version that the client reports."""

    name: str = ""
    version: str | None = None


class Params(msgspec.Struct):
    """Parameters that the proxy reads in other messages."""

    client: ClientInfo = msgspec.field(default_factory=ClientInfo, name="clientInfo")
    request: Id = msgspec.field(default=None, name="requestId")
    token: Id = msgspec.field(default=None, name="progressToken")
    name: Any = None
    arguments: Any = None
    uri: Any = None
    cursor: Any = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")

    @property
    def stateless_version(self) -> str:
        """Protocol version of a request without handshake. Empty in a session."""
        version = (self.meta or {}).get(PROTOCOL_VERSION_KEY)
        return version if isinstance(version, str) else ""


class ContentBlock(msgspec.Struct):
    """Content block of a result. Only text is decoded."""

    type: str = ""
    text: str | None = None


class ToolResult(msgspec.Struct):
    content: list[ContentBlock] | None = None
    is_error: bool | None = msgspec.field(default=None, name="isError")
    structured: Raw = msgspec.field(default=EMPTY_RAW, name="structuredContent")


class ErrorObject(msgspec.Struct):
    code: int | float = 0
    message: str = ""
    data: Any = None


class InvalidAnswerError(ValueError):
    """Invalid message from the server."""


class ProtocolResponseError(Exception):
    """Protocol error in the server's answer."""

    def __init__(self, raw: Raw) -> None:
        error = decode_error(raw)
        super().__init__(error.message)
        self.error = {"code": error.code, "message": error.message, "data": error.data}


_envelope = msgspec.json.Decoder(Envelope)
_batch = msgspec.json.Decoder(list[Envelope])
_call = msgspec.json.Decoder(ToolCall)
_result = msgspec.json.Decoder(ToolResult)
_error = msgspec.json.Decoder(ErrorObject)
_params = msgspec.json.Decoder(Params)
object_decoder = msgspec.json.Decoder(dict[Any, Any])
_id = msgspec.json.Decoder(int | str)
encode = msgspec.json.Encoder().encode
decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
"""Decode an object but leave its values encoded, so that they are written back unchanged."""
decode_items = msgspec.json.Decoder(list[Raw]).decode


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
        members = {name: to_plain_data(parsed[name]) for name in Envelope.__struct_fields__ if name in parsed}
        header = msgspec.convert({name: members.pop(name) for name in ("id", "method") if name in members}, Envelope)
        parts = {name: Raw(encode(value)) for name, value in members.items()}
        return LooseEnvelope(header.id, header.method, **parts)
    except msgspec.ValidationError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def decode(decoder: msgspec.json.Decoder[T], data: bytes | Raw, default: D) -> T | D:
    """Decode JSON, or return the default if it is invalid or of another type."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return default


def decode_batch(line: bytes) -> list[Envelope]:
    """Decode a batch of messages, which one protocol version allowed. Return an empty list for anything else."""
    return decode(_batch, line, [])


def decode_tool_call(params: Raw) -> ToolCall | None:
    """Decode a tool call. Return None if it is invalid: the server reports the error."""
    return decode(_call, params, None)


def find_session_id(tool_call: ToolCall) -> str:
    """Return the session id that the client sent with a call, or an empty text."""
    session = tool_call.meta.get(SESSION_KEY) if tool_call.meta else None
    return session[:MAX_SESSION_CHARS] if isinstance(session, str) else ""


def find_user_request_id(tool_call: ToolCall) -> str:
    """Return the id of the user's request that a call belongs to, or an empty text."""
    metadata = tool_call.meta.get(USER_REQUEST_KEYS[0]) if tool_call.meta else None
    request = metadata.get(USER_REQUEST_KEYS[1]) if isinstance(metadata, dict) else None
    return request[:MAX_SESSION_CHARS] if isinstance(request, str) else ""


def decode_params(params: Raw) -> Params:
    """Decode the parameters of another message, or return the defaults if they do not match."""
    return decode(_params, params, Params())


def decode_error(raw: Raw) -> ErrorObject:
    error = decode(_error, raw, None)
    return error or ErrorObject(message=bytes(raw)[:MAX_ANSWER_SIZE].decode("utf-8", "replace"))


def find_id(line: bytes) -> Id:
    """Find the id in an invalid message, or return None."""
    id_match = _ID.search(line, 0, 1000) or _ID.search(line, max(0, len(line) - 300))
    return None if id_match is None else decode(_id, id_match[1], None)


def is_utf8(line: bytes) -> bool:
    """Return whether the line is valid UTF-8, as the protocol requires."""
    try:
        return line.isascii() or bool(line.decode())
    except UnicodeDecodeError:
        return False


def to_function_result(raw: Raw) -> Any:
    """Convert an answer to the value that a function would return, so that it can be classified and recorded.

    Raise `InvalidAnswerError` if it is no result of a tool and not marked as an error.
    """
    result = decode(_result, raw, None)
    if result is None:
        # The answer does not match the protocol. Only one marked as an error is kept.
        members = decode(object_decoder, raw, {}) if memoryview(raw).nbytes <= MAX_ANSWER_SIZE else {}
        if members.get("isError") is not True:
            raise InvalidAnswerError("Invalid response of the server: the result does not match the protocol")
        return {"isError": True, "content": [{"type": "text", "text": _truncate(str(members.get("content", "")))}]}
    blocks = result.content or []
    texts = [_truncate(block.text) for block in blocks if block.text is not None]
    if result.is_error:
        return {"isError": True, "content": [{"type": "text", "text": text} for text in texts]}
    if len(blocks) == 1 and texts:
        return texts[0]
    if result.structured != EMPTY_RAW and memoryview(result.structured).nbytes <= MAX_ANSWER_SIZE:
        return msgspec.json.decode(result.structured)
    return {"content": [{"type": block.type, "text": _truncate(block.text)} for block in blocks]} if blocks else None


def _truncate(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_ANSWER_SIZE:
        return text
    return f"{text[:MAX_ANSWER_SIZE]} [{len(text) - MAX_ANSWER_SIZE} more]"


# Messages of the proxy


def build_message(**members: Any) -> bytes:
    """Build a request (`id`, `method`, `params`), a notification (no `id`) or an answer (`id`, `result` or `error`)."""
    return encode({"jsonrpc": "2.0", **members}) + b"\n"


def build_error(id: Id, message: str, code: int | float = NO_ANSWER_CODE, data: Any = None) -> bytes:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return build_message(id=id, error=error)


def replace_id(line: bytes, id: Id) -> bytes:
    """Return the same message with another id."""
    return encode({**decode_members(line), "id": id}) + b"\n"


def add_notes(id: Id, result: Raw, notes: Sequence[str], metadata: Mapping[str, Any]) -> bytes:
    """Return a result with notes about the call."""
    return _append_blocks(id, result, notes, "note", {"notes": list(notes), **metadata})


def add_failure_block(id: Id, result: Raw, block: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
    """Return a failed result with our failure block after the server's content."""
    return _append_blocks(id, result, [_block_text(block)], "failure", {**block, **metadata})


def build_failure_answer(id: Id, block: Mapping[str, Any], metadata: Mapping[str, Any], is_stateless: bool) -> bytes:
    """Return a failure as the answer to a request that the server did not answer."""
    result = {"isError": True, **({"resultType": "complete"} if is_stateless else {})}
    return add_failure_block(id, Raw(encode(result)), block, metadata)


def add_block_to_error(id: Id, raw: Raw, block: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
    """Return a protocol error with our failure block: appended to its message, which a model sees, and in its data."""
    error = decode_error(raw)
    data = error.data if isinstance(error.data, dict) else {} if error.data is None else {"data": error.data}
    block_text = _block_text({name: value for name, value in block.items() if name != "message"})
    data = {**data, "mulligan": {**block, **metadata}}
    return build_error(id, f"{error.message}\n{block_text}", error.code, data)


def _block_text(block: Mapping[str, Any]) -> str:
    return encode({"mulligan": block}).decode()


def _append_blocks(id: Id, result: Raw, texts: Sequence[str], key: str, value: Any) -> bytes:
    members: dict[str, Any] = dict(decode_members(result))
    content = decode_items(members["content"]) if "content" in members else []
    meta = decode_members(members["_meta"]) if members.get("_meta", b"null") != b"null" else {}
    blocks = [{"type": "text", "text": text} for text in texts]
    return build_message(
        id=id, result={**members, "content": [*content, *blocks], "_meta": {**meta, META_PREFIX + key: value}}
    )
