"""Notes and failure blocks that the proxy adds to answers.

The server's content stays unchanged, byte for byte. All added text comes from `prompt/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mulligan.serve.proxy.messages import OURS, Error, Id, encode, error_of, items, members, refusal
from mulligan.serve.proxy.messages import answer as answering

Raw = msgspec.Raw


def _text(text: str) -> Raw:
    return Raw(encode({"type": "text", "text": text}))


def noted(id: Id, result: Raw, notes: Sequence[str], about: Mapping[str, Any]) -> bytes:
    """Return a result with notes about the call."""
    return answering(id, _with(result, [_text(each) for each in notes], "note", {"notes": list(notes), **about}))


def explained(id: Id, result: Raw, block: Mapping[str, Any], about: Mapping[str, Any]) -> bytes:
    """Return a failed result with our failure block after the server's content."""
    told = _text(encode({"mulligan": block}).decode())
    return answering(id, _with(result, [told], "failure", {**block, **about}))


def _with(result: Raw, blocks: list[Raw], key: str, value: Any) -> dict[str, Any]:
    whole: dict[str, Any] = dict(members(result))
    content = items(whole["content"]) if "content" in whole else []
    meta: dict[str, Any] = dict(members(whole["_meta"])) if whole.get("_meta", b"null") != b"null" else {}
    return {**whole, "content": [*content, *blocks], "_meta": {**meta, OURS + key: value}}


def refused(id: Id, error: Raw, block: Mapping[str, Any], about: Mapping[str, Any]) -> bytes:
    """Return a protocol error with our failure block: appended to its message, which a model sees, and in its data."""
    try:
        said = error_of(error)
    except (msgspec.DecodeError, RecursionError):
        said = Error(message=bytes(error).decode("utf-8", "replace"))
    data = dict(said.data) if isinstance(said.data, dict) else {} if said.data is None else {"data": said.data}
    told = encode({"mulligan": {name: value for name, value in block.items() if name != "message"}}).decode()
    return refusal(id, said.code, f"{said.message}\n{told}", {**data, "mulligan": {**block, **about}})


def instead(id: Id, block: Mapping[str, Any], about: Mapping[str, Any], is_stateless: bool) -> bytes:
    """Return a failure as the answer to a request that the server did not answer."""
    result: dict[str, Any] = {"content": [_text(encode({"mulligan": block}).decode())], "isError": True}
    if is_stateless:
        result["resultType"] = "complete"
    return answering(id, {**result, "_meta": {OURS + "failure": {**block, **about}}})
