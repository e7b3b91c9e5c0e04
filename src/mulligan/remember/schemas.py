"""Which schema a tool has, by its digest, and since when: what was proven under another one is not proven (SAFETY S3).

Kept on the shelf by whoever makes the calls. The first schema that is met changes nothing: there was none before.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mulligan.records import Record, decode, encode
from mulligan.remember.store import FixQuery

KIND = "schema digest"
"""Of what is on the shelf; the key is the tool."""


class Seen(Record, frozen=True):
    """A tool's schema as it was last seen."""

    digest: str
    since: int = 0
    """When it was first seen after another one; 0 where there was none before."""


def noted(kept: bytes | None, digest: str, now: int) -> bytes | None:
    """What is to be kept from now on, where a tool is met with another schema than the one that is kept."""
    before = _read(kept)
    if before is not None and before.digest == digest:
        return None
    return encode(Seen(digest=digest, since=0 if before is None else now))


def since(rows: Iterable[tuple[str, bytes]], query: FixQuery) -> dict[str, int]:
    """By tool, when its schema changed; those that never did are left out.

    Whoever asks with another schema than the one that was last met is told what is proven for theirs: nothing.
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
    except msgspec.DecodeError:  # of another version: as if it had never been seen
        return None
