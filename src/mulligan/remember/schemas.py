"""Schema digests of tools, with the time of the last change: promotions under another schema do not hold (SAFETY S3).

The recording process stores them as key-value entries. The first schema of a tool is not a change.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mulligan.records import Record, decode, encode
from mulligan.remember.store import FixQuery

KIND = "schema digest"
"""Kind of the key-value entries; the key is the tool."""


class Seen(Record, frozen=True):
    """The last schema of a tool."""

    digest: str
    since: int = 0
    """When the schema replaced another one; 0 if it is the first."""


def noted(kept: bytes | None, digest: str, now: int) -> bytes | None:
    """Return the new entry of a tool whose schema changed, or None if it did not."""
    before = _read(kept)
    if before is not None and before.digest == digest:
        return None
    return encode(Seen(digest=digest, since=0 if before is None else now))


def since(rows: Iterable[tuple[str, bytes]], query: FixQuery) -> dict[str, int]:
    """Return, by tool, when its schema changed. Tools with an unchanged schema are omitted.

    If the query names another schema than the last one seen, the schema counts as changed now.
    """
    found: dict[str, int] = {}
    for tool, kept in rows:
        seen = _read(kept)
        if seen is not None:
            is_another = tool == query.tool and query.schema not in ("", seen.digest)
            found[tool] = query.now if is_another else seen.since
    return {tool: at for tool, at in found.items() if at}


def _read(kept: bytes | None) -> Seen | None:
    try:
        return None if kept is None else decode(kept, Seen)
    except msgspec.DecodeError:  # written by another version: treat it as missing
        return None
