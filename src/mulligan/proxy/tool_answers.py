"""Answers of the MCP server: the raw message, and the result as a function would return it."""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.proxy import messages
from mulligan.proxy.messages import Envelope, Id

MAX_ANSWER_SIZE = 65_536
"""Characters of a text that are recorded, and bytes above which structured content is not decoded."""


class ProtocolResponseError(Exception):
    """Protocol error in the server's answer."""

    def __init__(self, error: messages.ErrorObject) -> None:
        super().__init__(error.message)
        self.error = {"code": error.code, "message": error.message, "data": error.data}


class Answer(msgspec.Struct):
    """Answer of the server to one attempt, with the raw line."""

    id: Id
    envelope: Envelope
    line: bytes


def decode_error(raw: msgspec.Raw) -> messages.ErrorObject:
    try:
        return messages.decode_error_object(raw)
    except (msgspec.DecodeError, RecursionError):
        return messages.ErrorObject(message=bytes(raw)[:1000].decode("utf-8", "replace"))


def to_function_result(raw: msgspec.Raw) -> Any:
    """Convert an answer to the value that a function would return, so that it can be classified and recorded."""
    try:
        result = messages.decode_result(raw)
    except (msgspec.DecodeError, RecursionError):
        return _decode_unusual_result(raw)
    blocks = result.content or []
    texts = [_truncate(block.text) for block in blocks if block.text is not None]
    if result.is_error:
        content = [{"type": "text", "text": text} for text in texts]
        return {"isError": True, "content": content}
    if len(blocks) == 1 and texts:
        return texts[0]
    if result.structured != messages.EMPTY_RAW and memoryview(result.structured).nbytes <= MAX_ANSWER_SIZE:
        return msgspec.json.decode(result.structured)
    return {"content": [{"type": block.type, "text": _truncate(block.text)} for block in blocks]} if blocks else None


def _decode_unusual_result(raw: msgspec.Raw) -> Any:
    """Convert an answer that does not match the protocol. Only one marked as an error is kept."""
    members = messages.decode_or_default(dict, raw) if memoryview(raw).nbytes <= MAX_ANSWER_SIZE else {}
    if members.get("isError") is not True:
        return None
    return {"isError": True, "content": [{"type": "text", "text": _truncate(str(members.get("content", "")))}]}


def _truncate(text: str | None) -> str | None:
    return (
        text
        if text is None or len(text) <= MAX_ANSWER_SIZE
        else f"{text[:MAX_ANSWER_SIZE]} [{len(text) - MAX_ANSWER_SIZE} more]"
    )
