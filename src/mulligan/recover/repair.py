"""A failed call in, the calls that should work out: what to change, from where, how sure, and whether to ask first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.failure import Failure, Ran
from mulligan.records import Change
from mulligan.recover import schema
from mulligan.recover.tool import Arguments, Seen, Tool


@dataclass(frozen=True, slots=True)
class Before:
    """A call that must come first."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A call that should work where another failed."""

    tool: str
    arguments: dict[str, Any]
    first: tuple[Before, ...] = ()
    """Calls that must come before it."""
    changes: tuple[Change, ...] = ()
    source: str = "schema"
    """Who suggests it: schema, error, run, memory, rule."""
    confidence: float
    evidence: tuple[str, ...] = ()
    automatic: bool = False
    """Whether safety, mode and policy let it be tried without asking."""
    why: str = ""
    """Why it is not automatic."""


def suggest(
    arguments: Arguments,
    failure: Failure,
    tool: Tool,
    seen: Sequence[Seen] = (),
    *,
    confidence: float = 0.80,
) -> list[Suggestion]:
    """What may work instead of a call that failed, the likeliest first; nothing at all is a right answer.

    `seen` are the earlier calls of the same run, the oldest first. What is not surer than `confidence` is not
    automatic.
    """
    found = schema.suggest(
        arguments, failure.message, tool.schema(), privileged=tool.privileged, released=tool.released
    )
    if found is None:
        return []
    why = _why_not(failure, tool, found.confidence, confidence)
    return [
        Suggestion(
            tool=tool.name,
            arguments=found.arguments,
            changes=found.changes,
            source=found.source,
            confidence=found.confidence,
            automatic=not why,
            why=why,
        )
    ]


def _why_not(failure: Failure, tool: Tool, sure: float, confidence: float) -> str:
    """Why a suggestion is not tried without asking; empty where it may be."""
    if tool.mode != "repair":
        return "repairs are only suggested"
    if tool.destructive:
        return "the tool is marked as destructive"
    if not tool.is_repeatable and failure.ran is not Ran.NO:
        return "it may have taken effect and is not known to be repeatable"
    if sure <= confidence:  # SAFETY 2: what is tried exceeds it
        return "no repair is sure enough"
    return ""
