"""Similarity index: the sketches of a tool's patterns, packed into one row and cached per process.

Reading one row per pattern takes far longer than comparing the patterns. So the writer packs all sketches of a tool
into one row. The row's stamp (a checksum) tells a process whether its cached copy is current.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

from mulligan.remember import similar
from mulligan.remember.connection import Connection, Insert, Lookup

MOST = 1024
"""Patterns per tool that a new failure is compared with; comparing this many takes 0.3 ms.

The packed row is 150 KB at this limit. It is rewritten whenever a further pattern of the tool gets its first fix.
"""
IN_HAND = 50_000
"""Cached patterns of all tools per process: about 12 MB at this limit."""
_ENTRY = struct.Struct(f"16s{similar.BITS // 8}s")
_SKETCHES = Insert.instead("sketches", "tenant tool", "stamp body")
_KNOWN = Lookup.of("sketches", "tenant tool", "body")
_ASKED = "SELECT stamp, body FROM sketches WHERE tenant = ? AND tool = ?"
Read = Callable[..., list[Any]]


# Stored rows


def add(writer: Connection, tenant: str, new: Iterable[tuple[str, str, bytes]]) -> None:
    """Add patterns that got their first fix, as (tool, pattern id, sketch)."""
    of_tools: dict[str, list[bytes]] = {}
    for tool, pattern, sketch in new:
        of_tools.setdefault(tool, []).append(_ENTRY.pack(pattern.encode(), sketch))
    for _, tool, body in writer.look_up(_KNOWN, [(tenant, tool) for tool in of_tools]):
        known = bytes(body)
        of_tools[tool] += (known[start : start + _ENTRY.size] for start in range(0, len(known), _ENTRY.size))
    writer.put(_SKETCHES, [_row(tenant, tool, entries) for tool, entries in of_tools.items()])


def pack(writer: Connection, tenant: str, tool: str) -> None:
    """Rebuild the row of a tool after some of its patterns were deleted."""
    rows = writer.execute(
        "SELECT pattern, sketch FROM fixed WHERE tenant = ? AND tool = ? ORDER BY pattern LIMIT ?", (tenant, tool, MOST)
    ).fetchall()
    if rows:
        entries = [_ENTRY.pack(pattern.encode(), bytes(sketch)) for pattern, sketch in rows]
        writer.put(_SKETCHES, [_row(tenant, tool, entries)])
    else:
        writer.execute("DELETE FROM sketches WHERE tenant = ? AND tool = ?", (tenant, tool))


def pack_all(writer: Connection) -> None:
    """Rebuild the rows of all tools: older schemas have none."""
    for tenant, tool in writer.execute("SELECT DISTINCT tenant, tool FROM fixed").fetchall():
        pack(writer, tenant, tool)


def _row(tenant: str, tool: str, entries: Iterable[bytes]) -> tuple[str, str, int, bytes]:
    """Return the packed row of a tool. Entries are sorted by id, so equal sets give equal rows and stamps."""
    body = b"".join(sorted(set(entries))[:MOST])
    return tenant, tool, crc32(body), body


# Cache


class Candidates:
    """Process-wide cache of the sketches of each tool, checked by stamp."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_hand: dict[tuple[str, str], tuple[int, similar.Sketches]] = {}
        self._count = 0

    def of(self, read: Read, tenant: str, tool: str, stamp: int) -> similar.Sketches:
        """Return the sketches of a tool, from the cache if it has this stamp, else from the database.

        A concurrent write may return a newer row than the stamp names.
        """
        in_hand, known = self._in_hand.get((tenant, tool), _NONE)
        if in_hand == stamp:
            return known
        for now, body in read(_ASKED, (tenant, tool)):
            known = similar.Sketches((name.decode(), similar.unpacked(bits)) for name, bits in _ENTRY.iter_unpack(body))
            self._take((tenant, tool), now, known)
            return known
        return _NONE[1]

    def _take(self, place: tuple[str, str], stamp: int, known: similar.Sketches) -> None:
        """Cache sketches and evict the tools that were read longest ago."""
        with self._lock:
            self._count += len(known) - len(self._in_hand.pop(place, _NONE)[1])
            self._in_hand[place] = stamp, known
            while self._count > IN_HAND:
                oldest = next(iter(self._in_hand))
                self._count -= len(self._in_hand.pop(oldest)[1])


_NONE = (-1, similar.Sketches(()))
