"""A server's tools as they were when they were first seen, and what has changed since (SAFETY 4).

Plain data: what is kept on the shelf, what was listed, and what to make of the difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from mulligan.remember.store import LOCAL, Shelf

SHELF = "tools"
"""The kind of record under which a server's pins are kept."""
MOST = 1000
"""Tools of one server that are remembered."""
UNPINNED = frozenset({"_meta", "icons"})
"""Parts of a definition that a model never sees."""

ALL = ""
"""The key under which the names of all servers' tools are kept: two servers may have one of the same name."""
_servers = msgspec.json.Decoder(dict[str, list[str]])
_canonical = msgspec.json.Encoder(order="sorted").encode

What = Literal["new", "changed", "removed", "twice", "shadows"]


class Pin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool as it was accepted, or as it waits to be."""

    digest: str
    seen: int
    """UTC milliseconds."""
    definition: dict[str, Any] = {}


class Pins(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is known of one server."""

    accepted: dict[str, Pin] = {}
    waiting: dict[str, Pin] = {}
    """Tools whose definition has changed, or that came later, as they are now."""


class Finding(msgspec.Struct, frozen=True):
    """One thing about a list of tools that a person should know."""

    what: What
    tool: str
    told: str = ""


def digest(definition: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in definition.items() if name not in UNPINNED}
    return hashlib.sha256(_canonical(kept)).hexdigest()[:32]


def compared(
    pins: Pins, listed: Iterable[Mapping[str, Any]], now: int, *, is_whole: bool
) -> tuple[Pins, list[Finding]]:
    """The pins after a list of tools, and what it has that they do not. The first list of a server is accepted.

    `is_whole` says that the list has all there is: then what is not in it is gone.
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
    """Which parts of a definition are not what they were."""
    if before is None:
        return ""
    old, new = before.definition, after.definition
    names = [name for name in {**old, **new} if name not in UNPINNED and old.get(name) != new.get(name)]
    return ", ".join(sorted(names))


def accept(pins: Pins, names: Iterable[str]) -> Pins:
    """The same with what waited under these names accepted."""
    chosen = set(names)
    moved = {name: pin for name, pin in pins.waiting.items() if name in chosen}
    left = {name: pin for name, pin in pins.waiting.items() if name not in chosen}
    return Pins(accepted={**pins.accepted, **moved}, waiting=left)


def all_of(shelf: Shelf) -> dict[str, Pins]:
    """What is known of every server, by name."""
    return {name: unpacked(shelf.get(LOCAL, SHELF, name)) for name in sorted(servers_of(shelf))}


def servers_of(shelf: Shelf) -> dict[str, list[str]]:
    """The names of every server's tools."""
    kept = shelf.get(LOCAL, SHELF, ALL)
    try:
        return _servers.decode(kept) if kept is not None else {}
    except msgspec.DecodeError:
        return {}


def keep(shelf: Shelf, server: str, pins: Pins) -> list[Finding]:
    """Puts the pins of a server on the shelf; its tools that another server has by the same name, once."""
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
    """What was kept; nothing where there is nothing, or another version wrote what we cannot read."""
    if kept is None:
        return Pins()
    try:
        return msgspec.json.decode(kept, type=Pins)
    except (msgspec.DecodeError, RecursionError):
        return Pins()
