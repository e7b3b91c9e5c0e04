"""Options of a proxy: the user's settings for its tools, and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mulligan.capture.context import MODES, strictest
from mulligan.capture.wrap import ToolOptions
from mulligan.core.records import Effects
from mulligan.recover.tool import Mode

DEFAULT_TIMEOUT_SECONDS = 300.0
"""Default time limit of a call without an answer or progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    """Options of one proxy."""

    name: str
    """Name of the server in records."""
    mode: Mode = "suggest"
    should_trust_annotations: bool = False
    should_pin: bool = False
    should_inject_lessons: bool = False
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    """Seconds. 0 means no limit."""
    start_timeout: float = 120.0
    """Seconds for the answer to the first message. 0 means no limit."""
    should_restart: bool = True
    session: str | None = None
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rules of the user's settings, by `server.tool`, `server.*` or `*`."""

    def merge_rules(self, tool: str) -> dict[str, Any]:
        """Merge the rules for a tool. The most specific rule wins."""
        merged_rule: dict[str, Any] = {}
        for key in ("*", f"{self.name}.*", f"{self.name}.{tool}"):
            merged_rule.update(self.rules.get(key, {}))
        return merged_rule


def build_tool_options(
    options: ProxyOptions, tool: str, annotations: Mapping[str, Any], *, is_pinned: bool
) -> ToolOptions:
    """Build the options of one tool. Nothing is repaired while its definition differs from the pin."""
    rule = options.merge_rules(tool)
    mode: Mode = rule.get("mode", options.mode)
    return ToolOptions(
        name=f"{options.name}.{tool}",
        server=options.name,
        effects=rule.get("effects") or _effects(options, annotations),
        mode=mode if is_pinned else strictest(MODES, mode, "suggest"),
        record=rule.get("record"),
        learn=rule.get("learn"),
        privileged=rule.get("privileged", ()),
        unprivileged=rule.get("unprivileged", ()),
        # Trusted without a flag: this hint can only restrict repairs.
        destructive=rule.get("destructive", annotations.get("destructiveHint") is True),
    )


def tool_timeout(options: ProxyOptions, tool: str) -> float:
    return float(options.merge_rules(tool).get("timeout", options.timeout))


def _effects(options: ProxyOptions, annotations: Mapping[str, Any]) -> Effects:
    if not options.should_trust_annotations:
        return "once"
    if annotations.get("readOnlyHint") is True:
        return "none"
    return "idempotent" if annotations.get("idempotentHint") is True else "once"
