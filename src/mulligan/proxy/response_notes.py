"""Notes and failure blocks that the proxy adds to answers.

The server's content stays unchanged, byte for byte. All added text comes from `prompt/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mulligan.proxy.messages import (
    META_PREFIX,
    ErrorObject,
    Id,
    build_error,
    decode_error_object,
    decode_items,
    decode_members,
    encode,
)
from mulligan.proxy.messages import build_answer as answering

Raw = msgspec.Raw


def _text_block(text: str) -> Raw:
    return Raw(encode({"type": "text", "text": text}))


def add_notes(id: Id, result: Raw, notes: Sequence[str], metadata: Mapping[str, Any]) -> bytes:
    """Return a result with notes about the call."""
    return answering(
        id, _append_blocks(result, [_text_block(note) for note in notes], "note", {"notes": list(notes), **metadata})
    )


def add_failure_block(id: Id, result: Raw, block: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
    """Return a failed result with our failure block after the server's content."""
    text_block = _text_block(encode({"mulligan": block}).decode())
    return answering(id, _append_blocks(result, [text_block], "failure", {**block, **metadata}))


def _append_blocks(result: Raw, blocks: list[Raw], key: str, value: Any) -> dict[str, Any]:
    result_members: dict[str, Any] = dict(decode_members(result))
    content = decode_items(result_members["content"]) if "content" in result_members else []
    meta: dict[str, Any] = (
        dict(decode_members(result_members["_meta"])) if result_members.get("_meta", b"null") != b"null" else {}
    )
    return {**result_members, "content": [*content, *blocks], "_meta": {**meta, META_PREFIX + key: value}}


def add_block_to_error(id: Id, error: Raw, block: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
    """Return a protocol error with our failure block: appended to its message, which a model sees, and in its data."""
    try:
        error_object = decode_error_object(error)
    except (msgspec.DecodeError, RecursionError):
        error_object = ErrorObject(message=bytes(error).decode("utf-8", "replace"))
    data = (
        dict(error_object.data)
        if isinstance(error_object.data, dict)
        else {}
        if error_object.data is None
        else {"data": error_object.data}
    )
    block_text = encode({"mulligan": {name: value for name, value in block.items() if name != "message"}}).decode()
    return build_error(
        id, error_object.code, f"{error_object.message}\n{block_text}", {**data, "mulligan": {**block, **metadata}}
    )


def build_failure_answer(id: Id, block: Mapping[str, Any], metadata: Mapping[str, Any], is_stateless: bool) -> bytes:
    """Return a failure as the answer to a request that the server did not answer."""
    result: dict[str, Any] = {"content": [_text_block(encode({"mulligan": block}).decode())], "isError": True}
    if is_stateless:
        result["resultType"] = "complete"
    return answering(id, {**result, "_meta": {META_PREFIX + "failure": {**block, **metadata}}})
