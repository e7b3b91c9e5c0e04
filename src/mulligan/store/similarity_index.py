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

from mulligan.learn import similar
from mulligan.store.connection import Connection, Insert, Lookup

MAX_PATTERNS_PER_TOOL = 1024
"""Patterns per tool that a new failure is compared with; comparing this many takes 0.3 ms.

The packed row is 150 KB at this limit. It is rewritten whenever a further pattern of the tool gets its first fix.
"""
MAX_CACHED_PATTERNS = 50_000
"""Cached patterns of all tools per process: about 12 MB at this limit."""
_ENTRY = struct.Struct(f"16s{similar.SKETCH_BITS // 8}s")
_UPSERT_SKETCHES = Insert.or_update("tool_sketches", "tenant tool", "stamp body")
_STORED_SKETCHES = Lookup.of("tool_sketches", "tenant tool", "body")
_SELECT_SKETCHES_SQL = "SELECT stamp, body FROM tool_sketches WHERE tenant = ? AND tool = ?"
Read = Callable[..., list[Any]]


# Stored rows


def add_patterns(writer: Connection, tenant: str, patterns: Iterable[tuple[str, str, bytes]]) -> None:
    """Add patterns that got their first fix, as (tool, pattern id, sketch)."""
    entries_by_tool: dict[str, list[bytes]] = {}
    for tool, pattern, sketch in patterns:
        entries_by_tool.setdefault(tool, []).append(_ENTRY.pack(pattern.encode(), sketch))
    for _, tool, body in writer.look_up(_STORED_SKETCHES, [(tenant, tool) for tool in entries_by_tool]):
        stored_body = bytes(body)
        entries_by_tool[tool] += (
            stored_body[start : start + _ENTRY.size] for start in range(0, len(stored_body), _ENTRY.size)
        )
    writer.put(_UPSERT_SKETCHES, [_row(tenant, tool, entries) for tool, entries in entries_by_tool.items()])


def rebuild_tool(writer: Connection, tenant: str, tool: str) -> None:
    """Rebuild the row of a tool after some of its patterns were deleted."""
    rows = writer.execute(
        "SELECT pattern, sketch FROM pattern_sketches WHERE tenant = ? AND tool = ? ORDER BY pattern LIMIT ?",
        (tenant, tool, MAX_PATTERNS_PER_TOOL),
    ).fetchall()
    if rows:
        entries = [_ENTRY.pack(pattern.encode(), bytes(sketch)) for pattern, sketch in rows]
        writer.put(_UPSERT_SKETCHES, [_row(tenant, tool, entries)])
    else:
        writer.execute("DELETE FROM tool_sketches WHERE tenant = ? AND tool = ?", (tenant, tool))


def _row(tenant: str, tool: str, entries: Iterable[bytes]) -> tuple[str, str, int, bytes]:
    """Return the packed row of a tool. Entries are sorted by id, so equal sets give equal rows and stamps."""
    body = b"".join(sorted(set(entries))[:MAX_PATTERNS_PER_TOOL])
    return tenant, tool, crc32(body), body


# Cache


class SketchCache:
    """Process-wide cache of the sketches of each tool, checked by stamp."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sketches_by_tool: dict[tuple[str, str], tuple[int, similar.Sketches]] = {}
        self._count = 0

    def get_sketches(self, read: Read, tenant: str, tool: str, stamp: int) -> similar.Sketches:
        """Return the sketches of a tool, from the cache if it has this stamp, else from the database.

        A concurrent write may return a newer row than the stamp names.
        """
        cached_stamp, sketches = self._sketches_by_tool.get((tenant, tool), _NO_SKETCHES)
        if cached_stamp == stamp:
            return sketches
        for stored_stamp, body in read(_SELECT_SKETCHES_SQL, (tenant, tool)):
            sketches = similar.Sketches(
                (name.decode(), similar.unpack(bits)) for name, bits in _ENTRY.iter_unpack(body)
            )
            self._cache_sketches((tenant, tool), stored_stamp, sketches)
            return sketches
        return _NO_SKETCHES[1]

    def _cache_sketches(self, key: tuple[str, str], stamp: int, sketches: similar.Sketches) -> None:
        """Cache sketches and evict the tools that were read longest ago."""
        with self._lock:
            self._count += len(sketches) - len(self._sketches_by_tool.pop(key, _NO_SKETCHES)[1])
            self._sketches_by_tool[key] = stamp, sketches
            while self._count > MAX_CACHED_PATTERNS:
                oldest = next(iter(self._sketches_by_tool))
                self._count -= len(self._sketches_by_tool.pop(oldest)[1])


_NO_SKETCHES = (-1, similar.Sketches(()))
