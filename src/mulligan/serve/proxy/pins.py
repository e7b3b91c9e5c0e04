"""Pinned tool definitions of a server, and what has changed since they were accepted (SAFETY 4).

Plain data: stored pins, the listed definitions, and the findings about their differences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from mulligan.remember.store import LOCAL, Shelf

SHELF = "tools"
"""Key-value kind of a server's pins."""
MOST = 1000
"""Limit of pinned tools per server."""
UNPINNED = frozenset({"_meta", "icons"})
"""Parts of a definition that a model never sees."""

ALL = ""
"""Key for the tool names of all servers, which reveal equal names on two servers."""
_servers = msgspec.json.Decoder(dict[str, list[str]])
_canonical = msgspec.json.Encoder(order="sorted").encode

What = Literal["new", "changed", "removed", "twice", "shadows"]


class Pin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tool definition that was accepted or waits for acceptance."""

    digest: str
    seen: int
    """UTC milliseconds."""
    definition: dict[str, Any] = {}


class Pins(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Pins of one server."""

    accepted: dict[str, Pin] = {}
    waiting: dict[str, Pin] = {}
    """Current definitions of tools that are new or have changed."""


class Finding(msgspec.Struct, frozen=True):
    """Fact about a tool list that the operator should know."""

    what: What
    tool: str
    told: str = ""


def digest(definition: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in definition.items() if name not in UNPINNED}
    return hashlib.sha256(_canonical(kept)).hexdigest()[:32]


def compared(
    pins: Pins, listed: Iterable[Mapping[str, Any]], now: int, *, is_whole: bool
) -> tuple[Pins, list[Finding]]:
    """Compare a tool list with the pins. Return the new pins and the findings. The first list is accepted.

    `is_complete` says that the list has all tools, so that missing ones were removed.
    """
    is_first = not pins.accepted and not pins.waiting
    accepted, waiting = dict(pins.accepted), dict(pins.waiting)
    found: list[Finding] = []
    names: set[str] = set()
    for definition in listed:
        name = definition["name"]
        if name in names:
            found.append(Finding("twice", name))
            continue
        names.add(name)
        if len(accepted) + len(waiting) >= MOST and name not in accepted:
            continue
        pin = Pin(digest=digest(definition), seen=now, definition=dict(definition))
        known = accepted.get(name)
        if is_first or (known is not None and known.digest == pin.digest):
            if known is None:
                accepted[name] = pin
            waiting.pop(name, None)
        else:
            if name not in waiting or waiting[name].digest != pin.digest:
                waiting[name] = pin
            found.append(Finding("new" if known is None else "changed", name, told(known, pin)))
    if is_whole:
        found.extend(Finding("removed", name) for name in accepted if name not in names)
        waiting = {name: pin for name, pin in waiting.items() if name in names}
    return Pins(accepted=accepted, waiting=waiting), found


def told(before: Pin | None, after: Pin) -> str:
    """Return the names of the parts that differ."""
    if before is None:
        return ""
    old, new = before.definition, after.definition
    names = [name for name in {**old, **new} if name not in UNPINNED and old.get(name) != new.get(name)]
    return ", ".join(sorted(names))


def accept(pins: Pins, names: Iterable[str]) -> Pins:
    """Return the pins with these waiting tools accepted."""
    chosen = set(names)
    moved = {name: pin for name, pin in pins.waiting.items() if name in chosen}
    left = {name: pin for name, pin in pins.waiting.items() if name not in chosen}
    return Pins(accepted={**pins.accepted, **moved}, waiting=left)


def all_of(shelf: Shelf) -> dict[str, Pins]:
    """Return the pins of all servers, by name."""
    return {name: unpacked(shelf.get(LOCAL, SHELF, name)) for name in sorted(servers_of(shelf))}


def servers_of(shelf: Shelf) -> dict[str, list[str]]:
    """Return the tool names of every server."""
    kept = shelf.get(LOCAL, SHELF, ALL)
    try:
        return _servers.decode(kept) if kept is not None else {}
    except msgspec.DecodeError:
        return {}


def keep(shelf: Shelf, server: str, pins: Pins) -> list[Finding]:
    """Store the pins of a server. Return a finding for each new tool name that another server has too."""
    shelf.put(LOCAL, SHELF, server, packed(pins))
    servers = servers_of(shelf)
    own = sorted({*pins.accepted, *pins.waiting})
    fresh = set(own) - set(servers.get(server, ()))
    shelf.put(LOCAL, SHELF, ALL, msgspec.json.encode({**servers, server: own}))
    return [
        Finding("shadows", tool, other)
        for other, theirs in servers.items()
        if other != server
        for tool in sorted(fresh & set(theirs))
    ]


def packed(pins: Pins) -> bytes:
    return msgspec.json.encode(pins)


def unpacked(kept: bytes | None) -> Pins:
    """Decode stored pins. Return empty pins if they are missing or unreadable."""
    if kept is None:
        return Pins()
    try:
        return msgspec.json.decode(kept, type=Pins)
    except (msgspec.DecodeError, RecursionError):
        return Pins()
