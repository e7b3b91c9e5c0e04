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
        "tried": 0,
        "worked": 0,
        "imported": 0,
        "state": "proposed",
        "sort": "change",
        **fact_values,
        "does": describe_action(fix),
    }


def describe_action(fix: Fix) -> str:
    """Describe the action of a fix in a few words."""
    if fix.sort == "retry":
        return "make the same call again later"
    if fix.sort == "recipe":
        sequence = "first " + ", then ".join(_format_call(call.tool, call.arguments, call.open) for call in fix.first)
        names = ", ".join(sanitize(change.path, 40) for change in fix.changes)
        return f"{sequence}, then use its {names}" if names else sequence
    return ", ".join(map(_describe_change, fix.changes))


def not_automatic_reason(fix: Fix) -> str:
    """Return why a fix can never be applied automatically; empty if only its state decides."""
    if fix.sort == "recipe":
        if fix.changes:
            return "only the caller can read the value in a tool's answer"
        return 'run automatically only with learn = "repair"'
    if fix.sort == "retry":
        return "whether a call is made again, its kind and its effects say"
    if any(change.after == RUN_SPECIFIC for change in fix.changes):
        return "which value it was is not kept"
    privileged = [change.path for change in fix.changes if change.path != TOOL_NAME_PATH and is_privileged(change.path)]
    if privileged:
        return f"{sanitize(privileged[0], 40)} is a privileged argument"
    if fix.state != "approved" and any(map(sets_value, fix.changes)):
        return "a remembered value is applied only after a person approved it"
    return ""


def sets_value(change: Change) -> bool:
    """Return whether a change sets a remembered value instead of converting the value of the call."""
    return change.how in ("substitute", "clamp", "default") and change.after not in (
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
        "automatically" if is_automatic(fix) else f"no: {not_automatic_reason(fix) or f'it is {fix.state}'}",
    )
    yield (
        "told",
        "to models" if fix.showable else f"no: {sanitize(fix.hidden_reason or 'it is not told to models', 120)}",
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
    match change.how:
        case "rename":
            return f"{path} is called {sanitize(str(change.after), 40)}"
        case "drop":
            return f"leave {path} out where it is empty"
        case "cast":
            return f"{path} as {sanitize(str(change.after), 20)}"
        case "parse" | "wrap":
            return f"{change.how} {path}"
        case "trim":
            return f"{path}: its last part" if change.after == LAST_PATH_SEGMENT else f"trim {path}"
    return f"another {path}" if change.after == RUN_SPECIFIC else f"{path}={sanitize(_format_value(change.after), 40)}"


def render_list(fixes: Sequence[Fix], now: int, width: int | None) -> Iterator[str]:
    automatic_count, tellable_count = sum(map(is_automatic, fixes)), sum(fix.showable for fix in fixes)
    fix_count_text = format_count(len(fixes), "fix").replace("fixs", "fixes")
    yield f"{fix_count_text}: {tellable_count} told to models, {automatic_count} applied automatically."
    yield ""
    rows = [
        (
            fix.id,
            fix.state,
            "yes" if fix.showable else "no",
            f"{fix.worked} of {fix.tried}",
            format_age(fix.last, now),
            sanitize(fix.tool, 30),
            describe_action(fix),
        )
        for fix in fixes
    ]
    yield from render_columns([("fix", "state", "told", "worked", "last", "tool", "what to do"), *rows], width=width)


def render_detail(
    fix: Fix, evidence: Sequence[TrialReport], reasons: Mapping[str, str], now: int, width: int | None
) -> Iterator[str]:
    """Render a fix with its trials. `reasons` explain, by run, why its calls are linked."""
    yield f"{sanitize(fix.tool, 60)}: {describe_action(fix)}"
    yield ""
    writers_text = f"for {fix.principals} of those who write here, on {format_count(fix.days, 'day')}"
    imported_text = f", {fix.imported} tries in imported logs" if fix.imported else ""
    yield f"  worked   {fix.worked} of {fix.tried} times; {writers_text}{imported_text}"
    yield f"  state    {fix.state}" + (f": {sanitize(fix.why, 120)}" if fix.why else "")
    for name, use in describe_use(fix):
        yield f"  {name:<7}  {use}"
    yield ""
    rows = [
        (
            sanitize(trial.run, 30),
            "worked" if trial.worked else "failed",
            "by itself" if trial.automatic else "",
            sanitize(trial.principal, 20),
            sanitize(trial.agent, 30),
            format_age(trial.at, now),
            reasons.get(trial.run, ""),
        )
        for trial in evidence
    ]
    yield from render_columns([("run", "came out", "", "by", "agent", "when", "linked because"), *rows], width=width)
