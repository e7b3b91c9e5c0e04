"""What a JSON-RPC message says, read as far as it is needed and no further; and the few that we write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from mulligan.redaction import plain

Id = int | str | float | None
NOTHING = msgspec.Raw()
OURS = "mulligan/"
"""What the keys that we add to `_meta` begin with."""
CLIENT = "io.modelcontextprotocol/clientInfo"
"""Where a request of the protocol without a handshake says who asks."""
VERSION = "io.modelcontextprotocol/protocolVersion"
GONE = -32000
"""The code of our own answers to what the server did not answer."""


class Envelope(msgspec.Struct, gc=False):
    """A message without what is in it."""

    id: Id | msgspec.UnsetType = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw = NOTHING
    result: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


class Loose(Envelope, gc=False):
    """One that is not quite JSON, read as well as it can be: good enough to know it by, not to write it anew."""


class ToolCall(msgspec.Struct):
    """What `tools/call` asks for."""

    name: str
    arguments: Any = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class Client(msgspec.Struct):
    """Who is at the other end, as they say."""

    name: str = ""
    version: str | None = None


class Initialize(msgspec.Struct):
    client: Client = msgspec.field(default_factory=Client, name="clientInfo")


class Cancelled(msgspec.Struct):
    request: Id = msgspec.field(default=None, name="requestId")


class Progress(msgspec.Struct):
    token: Id = msgspec.field(default=None, name="progressToken")


class Block(msgspec.Struct):
    """A piece of content; only texts are looked into."""

    type: str = ""
    text: str | None = None


class Result(msgspec.Struct):
    """What a tool answered."""

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
"""An object whose values are left as they stand, so that what is put together again is what it was."""
items = _items.decode


def envelope(line: bytes) -> Envelope:
    """A message. Raises `msgspec.ValidationError` for JSON that is none, `msgspec.DecodeError` for what is not JSON."""
    try:
        return _envelope.decode(line)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError):
        return _loosely(line)


def _loosely(line: bytes) -> Envelope:
    """Half a character, or NaN: some write them, and some read them."""
    import json  # it takes what msgspec refuses, and few come here

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
    """Several messages in one line, as one version of the protocol had them; none where it is not that."""
    try:
        return _many.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return []


def tool_call(params: msgspec.Raw) -> ToolCall | None:
    """A call that can be read; else it is the server's to complain about."""
    try:
        return _call.decode(params)
    except (msgspec.DecodeError, RecursionError):
        return None


def read(type: type[Any], raw: msgspec.Raw) -> Any:
    """What is in a part of a message; what its type says by default where it is something else."""
    try:
        return msgspec.json.decode(raw, type=type)
    except (msgspec.DecodeError, RecursionError):
        return type()


_ID = re.compile(rb'"id"\s{0,9}:\s{0,9}(-?[0-9]{1,18}|"[^"\\]{0,200}")')


def id_in(line: bytes) -> Id:
    """The id that seems to stand in something that is no message; None where there is none."""
    found = _ID.search(line, 0, 1000) or _ID.search(line, max(0, len(line) - 300))
    try:
        return None if found is None else msgspec.json.decode(found[1], type=int | str)
    except msgspec.DecodeError:
        return None


def is_text(line: bytes) -> bool:
    """Whether it is UTF-8, as every message must be."""
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
    """The same message under another id."""
    return encode({**members(line), "id": id}) + b"\n"
