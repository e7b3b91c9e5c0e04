"""Text rendering of fixes. Untrusted text is sanitized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mulligan.calls import TOOL
from mulligan.privileged_arguments import is_privileged
from mulligan.records import LAST_PART, OPEN, REQUOTED, Change, Fix, builtins
from mulligan.redaction import clean
from mulligan.remember.store import Evidence
from mulligan.report.tables import ago, columns, count


def facts(fix: Fix) -> dict[str, Any]:
    told: dict[str, Any] = builtins(fix)
    return {"tried": 0, "worked": 0, "imported": 0, "state": "proposed", "sort": "change", **told, "does": does(fix)}


def does(fix: Fix) -> str:
    """Describe the action of a fix in a few words."""
    if fix.sort == "retry":
        return "make the same call again later"
    if fix.sort == "recipe":
        sequence = "first " + ", then ".join(_call(call.tool, call.arguments, call.open) for call in fix.first)
        names = ", ".join(clean(change.path, 40) for change in fix.changes)
        return f"{sequence}, then use its {names}" if names else sequence
    return ", ".join(map(_change, fix.changes))


def why_unapplied(fix: Fix) -> str:
    """Return why a fix can never be applied automatically; empty if only its state decides."""
    if fix.sort == "recipe":
        if fix.changes:
            return "only the caller can read the value in a tool's answer"
        return 'run automatically only with learn = "repair"'
    if fix.sort == "retry":
        return "whether a call is made again, its kind and its effects say"
    if any(change.after == OPEN for change in fix.changes):
        return "which value it was is not kept"
    privileged = [change.path for change in fix.changes if change.path != TOOL and is_privileged(change.path)]
    if privileged:
        return f"{clean(privileged[0], 40)} is a privileged argument"
    if fix.state != "approved" and any(map(sets_value, fix.changes)):
        return "a remembered value is applied only after a person approved it"
    return ""


def sets_value(change: Change) -> bool:
    """Return whether a change sets a remembered value instead of converting the value of the call."""
    return change.how in ("substitute", "clamp", "default") and change.after not in (OPEN, LAST_PART, REQUOTED)


def is_applied(fix: Fix) -> bool:
    """Return whether a fix is applied automatically. Safety checks can still prevent it for a single call."""
    return fix.state in ("promoted", "approved") and not why_unapplied(fix)


def describe_use(fix: Fix) -> Iterator[tuple[str, str]]:
    """Yield label and text rows: whether a fix is applied automatically and shown to models, or why not."""
    yield "applied", "automatically" if is_applied(fix) else f"no: {why_unapplied(fix) or f'it is {fix.state}'}"
    yield "told", "to models" if fix.tellable else f"no: {clean(fix.why_untold or 'it is not told to models', 120)}"


def _call(tool: str, arguments: dict[str, Any], open: Sequence[str]) -> str:
    given = [f"{name}={_shown(value)}" for name, value in arguments.items()] + [f"{name}=..." for name in open]
    return f"{clean(tool, 60)}({clean(', '.join(given), 120)})"


def _shown(value: Any) -> str:
    return repr(value) if not isinstance(value, str) else value


def _change(change: Change) -> str:
    path = clean(change.path, 40)
    if change.path == TOOL:
        return f"call {clean(str(change.after), 40)} instead"
    match change.how:
        case "rename":
            return f"{path} is called {clean(str(change.after), 40)}"
        case "drop":
            return f"leave {path} out where it is empty"
        case "cast":
            return f"{path} as {clean(str(change.after), 20)}"
        case "parse" | "wrap":
            return f"{change.how} {path}"
        case "trim":
            return f"{path}: its last part" if change.after == LAST_PART else f"trim {path}"
    return f"another {path}" if change.after == OPEN else f"{path}={clean(_shown(change.after), 40)}"


def listed(found: Sequence[Fix], now: int, width: int | None) -> Iterator[str]:
    applied, tellable = sum(map(is_applied, found)), sum(fix.tellable for fix in found)
    fixes = count(len(found), "fix").replace("fixs", "fixes")
    yield f"{fixes}: {tellable} told to models, {applied} applied automatically."
    yield ""
    rows = [
        (
            fix.id,
            fix.state,
            "yes" if fix.tellable else "no",
            f"{fix.worked} of {fix.tried}",
            ago(fix.last, now),
            clean(fix.tool, 30),
            does(fix),
        )
        for fix in found
    ]
    yield from columns([("fix", "state", "told", "worked", "last", "tool", "what to do"), *rows], width=width)


def shown(
    fix: Fix, evidence: Sequence[Evidence], reasons: Mapping[str, str], now: int, width: int | None
) -> Iterator[str]:
    """Render a fix with its trials. `reasons` explain, by run, why its calls are linked."""
    yield f"{clean(fix.tool, 60)}: {does(fix)}"
    yield ""
    who = f"for {fix.principals} of those who write here, on {count(fix.days, 'day')}"
    logs = f", {fix.imported} tries in imported logs" if fix.imported else ""
    yield f"  worked   {fix.worked} of {fix.tried} times; {who}{logs}"
    yield f"  state    {fix.state}" + (f": {clean(fix.why, 120)}" if fix.why else "")
    for name, use in describe_use(fix):
        yield f"  {name:<7}  {use}"
    yield ""
    rows = [
        (
            clean(each.run, 30),
            "worked" if each.worked else "failed",
            "by itself" if each.automatic else "",
            clean(each.principal, 20),
            clean(each.agent, 30),
            ago(each.at, now),
            reasons.get(each.run, ""),
        )
        for each in evidence
    ]
    yield from columns([("run", "came out", "", "by", "agent", "when", "linked because"), *rows], width=width)
