"""The patterns of a tool that a new failure is compared with: kept in one row, and in hand once they were read.

To read a row for each of them takes far longer than to compare them. So those of a tool are packed into one row by
whoever writes, and the stamp of that row says whether what a process has in hand is still what is kept.
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
"""Patterns of a tool that a new one is compared with: that takes a third of a millisecond. Packed they are 150 KB, and
are written anew whenever a tool of so many fails in a new way that something helps against.
"""
IN_HAND = 50_000
"""Patterns of all tools that a process has in hand: some 12 MB, where so many are asked about."""
_ENTRY = struct.Struct(f"16s{similar.BITS // 8}s")
_SKETCHES = Insert.instead("sketches", "tenant tool", "stamp body")
_KNOWN = Lookup.of("sketches", "tenant tool", "body")
_ASKED = "SELECT stamp, body FROM sketches WHERE tenant = ? AND tool = ?"
Read = Callable[..., list[Any]]


# Kept


def add(writer: Connection, tenant: str, new: Iterable[tuple[str, str, bytes]]) -> None:
    """Takes in patterns that have a fix now: each with its tool, its id and its sketch."""
    of_tools: dict[str, list[bytes]] = {}
    for tool, pattern, sketch in new:
        of_tools.setdefault(tool, []).append(_ENTRY.pack(pattern.encode(), sketch))
    for _, tool, body in writer.look_up(_KNOWN, [(tenant, tool) for tool in of_tools]):
        known = bytes(body)
        of_tools[tool] += (known[start : start + _ENTRY.size] for start in range(0, len(known), _ENTRY.size))
    writer.put(_SKETCHES, [_row(tenant, tool, entries) for tool, entries in of_tools.items()])


def pack(writer: Connection, tenant: str, tool: str) -> None:
    """Packs those of a tool anew, where some are gone."""
    rows = writer.execute(
        "SELECT pattern, sketch FROM fixed WHERE tenant = ? AND tool = ? ORDER BY pattern LIMIT ?", (tenant, tool, MOST)
    ).fetchall()
    if rows:
        entries = [_ENTRY.pack(pattern.encode(), bytes(sketch)) for pattern, sketch in rows]
        writer.put(_SKETCHES, [_row(tenant, tool, entries)])
    else:
        writer.execute("DELETE FROM sketches WHERE tenant = ? AND tool = ?", (tenant, tool))


def pack_all(writer: Connection) -> None:
    """For a store of an earlier schema, which had none of it."""
    for tenant, tool in writer.execute("SELECT DISTINCT tenant, tool FROM fixed").fetchall():
        pack(writer, tenant, tool)


def _row(tenant: str, tool: str, entries: Iterable[bytes]) -> tuple[str, str, int, bytes]:
    """Always in the order of their ids, so that it is the same row however it came to be."""
    body = b"".join(sorted(set(entries))[:MOST])
    return tenant, tool, crc32(body), body


# Asked


class Candidates:
    """What a process has in hand of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_hand: dict[tuple[str, str], tuple[int, similar.Sketches]] = {}
        self._count = 0

    def of(self, read: Read, tenant: str, tool: str, stamp: int) -> similar.Sketches:
        """Those of a tool whose row has this stamp now, or had it a moment ago."""
        in_hand, known = self._in_hand.get((tenant, tool), _NONE)
        if in_hand == stamp:
            return known
        for now, body in read(_ASKED, (tenant, tool)):
            known = similar.Sketches((name.decode(), similar.unpacked(bits)) for name, bits in _ENTRY.iter_unpack(body))
            self._take((tenant, tool), now, known)
            return known
        return _NONE[1]

    def _take(self, place: tuple[str, str], stamp: int, known: similar.Sketches) -> None:
        """The latest to be read are in hand."""
        with self._lock:
            self._count += len(known) - len(self._in_hand.pop(place, _NONE)[1])
            self._in_hand[place] = stamp, known
            while self._count > IN_HAND:
                oldest = next(iter(self._in_hand))
                self._count -= len(self._in_hand.pop(oldest)[1])


_NONE = (-1, similar.Sketches(()))
