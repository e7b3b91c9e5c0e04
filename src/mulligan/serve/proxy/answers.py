"""Answers of the MCP server: the raw message, and the result as a function would return it."""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.serve.proxy import messages
from mulligan.serve.proxy.messages import Envelope, Id

LARGE = 65_536
"""Characters of a text that are recorded, and bytes above which structured content is not decoded."""


class Refused(Exception):
    """Protocol error in the server's answer."""

    def __init__(self, error: messages.Error) -> None:
        super().__init__(error.message)
        self.error = {"code": error.code, "message": error.message, "data": error.data}


class Answer(msgspec.Struct):
    """Answer of the server to one attempt, with the raw line."""

    id: Id
    said: Envelope
    line: bytes


def error_in(raw: msgspec.Raw) -> messages.Error:
    try:
        return messages.error_of(raw)
    except (msgspec.DecodeError, RecursionError):
        return messages.Error(message=bytes(raw)[:1000].decode("utf-8", "replace"))


def told(raw: msgspec.Raw) -> Any:
    """Convert an answer to the value that a function would return, so that it can be classified and recorded."""
    try:
        result = messages.result_of(raw)
    except (msgspec.DecodeError, RecursionError):
        return _odd(raw)
    blocks = result.content or []
    texts = [_cut(block.text) for block in blocks if block.text is not None]
    if result.is_error:
        content = [{"type": "text", "text": text} for text in texts]
        return {"isError": True, "content": content}
    if len(blocks) == 1 and texts:
        return texts[0]
    if result.structured != messages.NOTHING and memoryview(result.structured).nbytes <= LARGE:
        return msgspec.json.decode(result.structured)
    return {"content": [{"type": block.type, "text": _cut(block.text)} for block in blocks]} if blocks else None


def _odd(raw: msgspec.Raw) -> Any:
    """Convert an answer that does not match the protocol. Only one marked as an error is kept."""
    members = messages.read(dict, raw) if memoryview(raw).nbytes <= LARGE else {}
    if members.get("isError") is not True:
        return None
    return {"isError": True, "content": [{"type": "text", "text": _cut(str(members.get("content", "")))}]}


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= LARGE else f"{text[:LARGE]} [{len(text) - LARGE} more]"
