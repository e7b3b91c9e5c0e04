"""Text rendering of fixes. Untrusted text is sanitized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mulligan.core.calls import TOOL_NAME_PATH
from mulligan.core.privileged_arguments import is_privileged
from mulligan.core.records import LAST_PATH_SEGMENT, REQUOTED, RUN_SPECIFIC, Change, Fix, to_builtins
from mulligan.redaction import sanitize
from mulligan.report.tables import format_age, format_count, render_columns
from mulligan.store.base import TrialReport


def to_facts(fix: Fix) -> dict[str, Any]:
    fact_values: dict[str, Any] = to_builtins(fix)
    return {
        "trials": 0,
        "successes": 0,
        "imported": 0,
        "state": "proposed",
        "type": "change",
        **fact_values,
        "action": describe_action(fix),
    }


def describe_action(fix: Fix) -> str:
    """Describe the action of a fix in a few words."""
    if fix.type == "retry":
        return "retry the same call later"
    if fix.type == "prerequisite":
        sequence = "first call " + ", then ".join(
            _format_call(call.tool, call.arguments, call.variable_arguments) for call in fix.prerequisites
        )
        names = ", ".join(sanitize(change.path, 40) for change in fix.changes)
        return f"{sequence}, then use its {names}" if names else sequence
    return ", ".join(map(_describe_change, fix.changes))


def not_automatic_reason(fix: Fix) -> str:
    """Return why a fix can never be applied automatically; empty if only its state decides."""
    if fix.type == "prerequisite":
        if fix.changes:
            return "only the caller can read the value from the tool result"
        return 'prerequisites are called automatically only with learn = "repair"'
    if fix.type == "retry":
        return "the kind and the tool's effects decide whether a call is retried"
    if any(change.after == RUN_SPECIFIC for change in fix.changes):
        return "the value was specific to one run and is not stored"
    privileged = [change.path for change in fix.changes if change.path != TOOL_NAME_PATH and is_privileged(change.path)]
    if privileged:
        return f"{sanitize(privileged[0], 40)} is a privileged argument"
    if fix.state != "approved" and any(map(sets_value, fix.changes)):
        return "a remembered value needs approval by a person"
    return ""


def sets_value(change: Change) -> bool:
    """Return whether a change sets a remembered value instead of converting the value of the call."""
    return change.operation in ("substitute", "clamp", "default") and change.after not in (
        RUN_SPECIFIC,
        LAST_PATH_SEGMENT,
        REQUOTED,
    )


def is_automatic(fix: Fix) -> bool:
    """Return whether a fix is applied automatically. Safety checks can still prevent it for a single call."""
    return fix.state in ("promoted", "approved") and not not_automatic_reason(fix)


def describe_use(fix: Fix) -> Iterator[tuple[str, str]]:
    """Yield label and text rows: whether a fix is applied automatically and shown to models, or why not."""
    yield (
        "applied",
        "automatically" if is_automatic(fix) else f"no: {not_automatic_reason(fix) or f'state is {fix.state}'}",
    )
    yield (
        "shown",
        "to models" if fix.showable else f"no: {sanitize(fix.hidden_reason or 'not shown to models', 120)}",
    )


def _format_call(tool: str, arguments: dict[str, Any], open: Sequence[str]) -> str:
    argument_texts = [f"{name}={_format_value(value)}" for name, value in arguments.items()] + [
        f"{name}=..." for name in open
    ]
    return f"{sanitize(tool, 60)}({sanitize(', '.join(argument_texts), 120)})"


def _format_value(value: Any) -> str:
    return repr(value) if not isinstance(value, str) else value


def _describe_change(change: Change) -> str:
    path = sanitize(change.path, 40)
    if change.path == TOOL_NAME_PATH:
        return f"call {sanitize(str(change.after), 40)} instead"
    match change.operation:
        case "rename":
            return f"rename {path} to {sanitize(str(change.after), 40)}"
        case "drop":
            return f"omit {path} if it is empty"
        case "cast":
            return f"cast {path} to {sanitize(str(change.after), 20)}"
        case "parse" | "wrap":
            return f"{change.operation} {path}"
        case "trim":
            return f"trim {path} to its last segment" if change.after == LAST_PATH_SEGMENT else f"trim {path}"
    return (
        f"use a different {path}"
        if change.after == RUN_SPECIFIC
        else f"{path}={sanitize(_format_value(change.after), 40)}"
    )


def render_list(fixes: Sequence[Fix], now: int, width: int | None) -> Iterator[str]:
    automatic_count, shown_count = sum(map(is_automatic, fixes)), sum(fix.showable for fix in fixes)
    fix_count_text = format_count(len(fixes), "fix").replace("fixs", "fixes")
    yield f"{fix_count_text}: {shown_count} shown to models, {automatic_count} applied automatically."
    yield ""
    rows = [
        (
            fix.id,
            fix.state,
            "yes" if fix.showable else "no",
            f"{fix.successes} of {fix.trials}",
            format_age(fix.last_tried_at, now),
            sanitize(fix.tool, 30),
            describe_action(fix),
        )
        for fix in fixes
    ]
    yield from render_columns(
        [("fix", "state", "shown", "successes", "last trial", "tool", "action"), *rows], width=width
    )


def render_detail(
    fix: Fix, evidence: Sequence[TrialReport], reasons: Mapping[str, str], now: int, width: int | None
) -> Iterator[str]:
    """Render a fix with its trials. `reasons` explain, by run, why its calls are linked."""
    yield f"{sanitize(fix.tool, 60)}: {describe_action(fix)}"
    yield ""
    sources_text = f"confirmed by {format_count(fix.principals, 'source')} on {format_count(fix.days, 'day')}"
    imported_text = f"; {format_count(fix.imported, 'trial')} imported" if fix.imported else ""
    yield f"  trials   {fix.successes} of {fix.trials} succeeded; {sources_text}{imported_text}"
    yield f"  state    {fix.state}" + (f": {sanitize(fix.reason, 120)}" if fix.reason else "")
    for name, use in describe_use(fix):
        yield f"  {name:<7}  {use}"
    yield ""
    rows = [
        (
            sanitize(trial.run, 30),
            "success" if trial.successful else "failure",
            "automatically" if trial.automatic else "",
            sanitize(trial.principal, 20),
            sanitize(trial.agent, 30),
            format_age(trial.at, now),
            reasons.get(trial.run, ""),
        )
        for trial in evidence
    ]
    yield from render_columns(
        [("run", "outcome", "applied", "principal", "agent", "time", "linked because"), *rows], width=width
    )
