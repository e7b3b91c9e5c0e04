"""Pinned tool definitions of a server, and what has changed since they were accepted (SAFETY 4).

Plain data: stored pins, the listed definitions, and the findings about their differences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from mulligan.contract.store import DEFAULT_TENANT, KeyValueStore

PINS_KIND = "tools"
"""Key-value kind of a server's pins."""
MAX_LISTED_NAMES = 3
"""Names of tools or servers in one message."""
UNPINNED_PARTS = frozenset({"_meta", "icons"})
"""Parts of a definition that a model never sees."""

ALL_SERVERS_KEY = ""
"""Key for the tool names of all servers, which reveal equal names on two servers."""
_servers = msgspec.json.Decoder(dict[str, list[str]])
_canonical = msgspec.json.Encoder(order="sorted").encode

FindingType = Literal["new", "changed", "removed", "twice", "shadows"]


class Pin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tool definition that was accepted or waits for acceptance."""

    digest: str
    seen_at: int
    """UTC milliseconds."""
    definition: dict[str, Any] = {}


class Pins(msgspec.Struct, kw_only=True, omit_defaults=True):
    accepted: dict[str, Pin] = {}
    waiting: dict[str, Pin] = {}
    """Current definitions of tools that are new or have changed."""


class ToolListFinding(msgspec.Struct, frozen=True):
    """Fact about a tool list that the operator should know."""

    type: FindingType
    tool: str
    detail: str = ""


def _build_pin(definition: Mapping[str, Any], now: int) -> Pin:
    pinned_parts = {name: value for name, value in definition.items() if name not in UNPINNED_PARTS}
    digest = hashlib.sha256(_canonical(pinned_parts)).hexdigest()[:32]
    return Pin(digest=digest, seen_at=now, definition=dict(definition))


def compare_pins(
    pins: Pins, definitions: Iterable[Mapping[str, Any]], now: int, *, is_complete: bool
) -> tuple[Pins, list[ToolListFinding]]:
    """Compare a tool list with the pins. Return the new pins and the findings. The first list is accepted.

    `is_complete` says that the list has all tools, so that missing ones were removed.
    """
    is_first = not pins.accepted and not pins.waiting
    accepted, waiting = dict(pins.accepted), dict(pins.waiting)
    findings: list[ToolListFinding] = []
    names: set[str] = set()
    for definition in definitions:
        name = definition["name"]
        if name in names:
            findings.append(ToolListFinding("twice", name))
            continue
        names.add(name)
        # Limit of pinned tools per server
        if len(accepted) + len(waiting) >= 1000 and name not in accepted:
            continue
        pin = _build_pin(definition, now)
        accepted_pin = accepted.get(name)
        if is_first or (accepted_pin is not None and accepted_pin.digest == pin.digest):
            if accepted_pin is None:
                accepted[name] = pin
            waiting.pop(name, None)
        else:
            if name not in waiting or waiting[name].digest != pin.digest:
                waiting[name] = pin
            findings.append(
                ToolListFinding("new" if accepted_pin is None else "changed", name, describe_changes(accepted_pin, pin))
            )
    if is_complete:
        findings.extend(ToolListFinding("removed", name) for name in accepted if name not in names)
        waiting = {name: pin for name, pin in waiting.items() if name in names}
    return Pins(accepted=accepted, waiting=waiting), findings


def describe_changes(before: Pin | None, after: Pin) -> str:
    """Return the names of the parts that differ."""
    if before is None:
        return ""
    old, new = before.definition, after.definition
    names = [name for name in {**old, **new} if name not in UNPINNED_PARTS and old.get(name) != new.get(name)]
    return ", ".join(sorted(names))


def accept_tools(pins: Pins, names: Iterable[str]) -> Pins:
    chosen_names = set(names)
    moved = {name: pin for name, pin in pins.waiting.items() if name in chosen_names}
    remaining = {name: pin for name, pin in pins.waiting.items() if name not in chosen_names}
    return Pins(accepted={**pins.accepted, **moved}, waiting=remaining)


def load_all_pins(key_value_store: KeyValueStore) -> dict[str, Pins]:
    """Return the pins of all servers, by name."""
    names = sorted(load_tool_names(key_value_store))
    return {name: decode_pins(key_value_store.get(DEFAULT_TENANT, PINS_KIND, name)) for name in names}


def load_tool_names(key_value_store: KeyValueStore) -> dict[str, list[str]]:
    """Return the tool names of every server."""
    data = key_value_store.get(DEFAULT_TENANT, PINS_KIND, ALL_SERVERS_KEY)
    try:
        return _servers.decode(data) if data is not None else {}
    except msgspec.DecodeError:
        return {}


def save_pins(key_value_store: KeyValueStore, server: str, pins: Pins) -> list[ToolListFinding]:
    """Store the pins of a server. Return a finding if other servers have some of its new tool names too."""
    key_value_store.put(DEFAULT_TENANT, PINS_KIND, server, encode_pins(pins))
    servers = load_tool_names(key_value_store)
    tool_names = sorted({*pins.accepted, *pins.waiting})
    new_names = set(tool_names) - set(servers.get(server, ()))
    key_value_store.put(
        DEFAULT_TENANT, PINS_KIND, ALL_SERVERS_KEY, msgspec.json.encode({**servers, server: tool_names})
    )
    shared_names = {other: new_names & set(theirs) for other, theirs in servers.items() if other != server}
    others = sorted(other for other, names in shared_names.items() if names)
    all_names = sorted(set().union(*shared_names.values()))
    return [ToolListFinding("shadows", _list_first(all_names), _list_first(others))] if others else []


def _list_first(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(names[:MAX_LISTED_NAMES]) + more


def encode_pins(pins: Pins) -> bytes:
    return msgspec.json.encode(pins)


def decode_pins(data: bytes | None) -> Pins:
    """Decode stored pins. Return empty pins if they are missing or unreadable."""
    try:
        return msgspec.json.decode(data or b"{}", type=Pins)
    except (msgspec.DecodeError, RecursionError):
        return Pins()
