"""Options of a proxy: the user's settings for its tools, and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mulligan.capture.kit import MODES, strictest
from mulligan.capture.wrap import ToolOptions
from mulligan.records import Effects
from mulligan.recover.tool import Mode

HANGS = 300.0
"""Default time limit of a call without an answer or progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one proxy."""

    name: str
    """Name of the server in records."""
    mode: Mode = "suggest"
    trusts_annotations: bool = False
    pins: bool = False
    teaches: bool = False
    timeout: float = HANGS
    """Seconds. 0 means no limit."""
    start_timeout: float = 120.0
    """Seconds for the answer to the first message. 0 means no limit."""
    restarts: bool = True
    session: str | None = None
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rules of the user's settings, by `server.tool`, `server.*` or `*`."""

    def rule(self, tool: str) -> dict[str, Any]:
        """Merge the rules for a tool. The most specific rule wins."""
        found: dict[str, Any] = {}
        for key in ("*", f"{self.name}.*", f"{self.name}.{tool}"):
            found.update(self.rules.get(key, {}))
        return found


def tool_options(options: Options, tool: str, annotations: Mapping[str, Any], *, is_settled: bool) -> ToolOptions:
    """Build the options of one tool. Nothing is repaired while its definition differs from the pin."""
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
        # Trusted without a flag: this hint can only restrict repairs.
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
