"""Schema digests of tools, with the time of the last change: promotions under another schema do not hold (SAFETY S3).

The recording process stores them as key-value entries. The first schema of a tool is not a change.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mulligan.core.records import Record, decode, encode
from mulligan.store.base import FixQuery

SCHEMA_KIND = "schema digest"
"""Kind of the key-value entries; the key is the tool."""


class SeenSchema(Record, frozen=True):
    """The last schema of a tool."""

    digest: str
    since: int = 0
    """When the schema replaced another one; 0 if it is the first."""


def update_entry(stored: bytes | None, digest: str, now: int) -> bytes | None:
    """Return the new entry of a tool whose schema changed, or None if it did not."""
    before = _parse_entry(stored)
    if before is not None and before.digest == digest:
        return None
    return encode(SeenSchema(digest=digest, since=0 if before is None else now))


def schema_change_times(rows: Iterable[tuple[str, bytes]], query: FixQuery) -> dict[str, int]:
    """Return, by tool, when its schema changed. Tools with an unchanged schema are omitted.

    If the query names another schema than the last one seen, the schema counts as changed now.
    """
    changed_at: dict[str, int] = {}
    for tool, stored in rows:
        seen_schema = _parse_entry(stored)
        if seen_schema is not None:
            is_another = tool == query.tool and query.schema not in ("", seen_schema.digest)
            changed_at[tool] = query.now if is_another else seen_schema.since
    return {tool: at for tool, at in changed_at.items() if at}


def _parse_entry(stored: bytes | None) -> SeenSchema | None:
    try:
        return None if stored is None else decode(stored, SeenSchema)
    except msgspec.DecodeError:  # written by another version: treat it as missing
        return None
