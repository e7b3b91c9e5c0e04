"""What the operator says of a server's tools: in the user's settings, and on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mulligan.capture.kit import MODES, strictest
from mulligan.capture.wrap import ToolOptions
from mulligan.records import Effects
from mulligan.recover.tool import Mode

HANGS = 300.0
"""Seconds without an answer and without progress, after which a call is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one proxy behaves."""

    name: str
    """What the server is called in records."""
    mode: Mode = "suggest"
    trusts_annotations: bool = False
    pins: bool = False
    teaches: bool = False
    timeout: float = HANGS
    """Seconds; 0 for as long as it takes."""
    start_timeout: float = 120.0
    """Seconds in which a server must answer its first message; 0 for as long as it takes."""
    restarts: bool = True
    session: str | None = None
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of the user's settings: for `server.tool`, for `server.*`, for `*`."""

    def rule(self, tool: str) -> dict[str, Any]:
        """What the user's settings say of a tool, the nearest word last."""
        found: dict[str, Any] = {}
        for key in ("*", f"{self.name}.*", f"{self.name}.{tool}"):
            found.update(self.rules.get(key, {}))
        return found


def tool_options(options: Options, tool: str, annotations: Mapping[str, Any], *, is_settled: bool) -> ToolOptions:
    """What holds for one tool. Where its definition is not the one that was pinned, nothing is repaired."""
    rule = options.rule(tool)
    mode: Mode = rule.get("mode", options.mode)
    return ToolOptions(
        name=f"{options.name}.{tool}",
        server=options.name,
        effects=rule.get("effects") or _effects(options, annotations),
        mode=mode if is_settled else strictest(MODES, mode, "suggest"),
        record=rule.get("record"),
        privileged=rule.get("privileged", ()),
        released=rule.get("released", ()),
        # Whoever says so of themselves is believed: it only takes from what we may do.
        destructive=rule.get("destructive", annotations.get("destructiveHint") is True),
    )


def timeout_of(options: Options, tool: str) -> float:
    return float(options.rule(tool).get("timeout", options.timeout))


def _effects(options: Options, annotations: Mapping[str, Any]) -> Effects:
    if not options.trusts_annotations:
        return "once"
    if annotations.get("readOnlyHint") is True:
        return "none"
    return "repeatable" if annotations.get("idempotentHint") is True else "once"
