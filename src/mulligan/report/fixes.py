"""What turned failures into successes, as text for people. Everything foreign passes `clean` on its way here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mulligan.calls import TOOL
from mulligan.records import LAST_PART, OPEN, Change, Fix, builtins
from mulligan.redaction import clean
from mulligan.remember.store import Evidence
from mulligan.report.tables import ago, columns, count


def facts(fix: Fix) -> dict[str, Any]:
    told: dict[str, Any] = builtins(fix)
    return {"tried": 0, "worked": 0, "imported": 0, "state": "proposed", "sort": "change", **told, "does": does(fix)}


def does(fix: Fix) -> str:
    """A fix in a few words."""
    if fix.sort == "retry":
        return "make the same call again later"
    if fix.sort == "recipe":
        return "first " + ", then ".join(_call(each.tool, each.arguments, each.open) for each in fix.first)
    return ", ".join(map(_change, fix.changes))


def untried(fix: Fix) -> str:
    """Why it is only told, whatever its state; empty where it is tried without asking once that allows it."""
    if fix.sort == "recipe":
        return 'run automatically only with learn = "repair"'
    if fix.sort == "retry":
        return "whether a call is made again, its kind and its effects say"
    return "which value it was is not kept" if any(each.after == OPEN for each in fix.changes) else ""


def is_tried(fix: Fix) -> bool:
    """Whether it is tried without asking, where safety allows it for the call in hand."""
    return fix.state in ("promoted", "approved") and not untried(fix)


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
    tried = sum(map(is_tried, found))
    yield f"{count(len(found), 'fix').replace('fixs', 'fixes')}, {tried} of them tried without asking."
    yield ""
    rows = [
        (fix.id, fix.state, f"{fix.worked} of {fix.tried}", ago(fix.last, now), clean(fix.tool, 30), does(fix))
        for fix in found
    ]
    yield from columns([("fix", "state", "worked", "last", "tool", "what to do"), *rows], width=width)


def shown(fix: Fix, evidence: Sequence[Evidence], now: int, width: int | None) -> Iterator[str]:
    yield f"{clean(fix.tool, 60)}: {does(fix)}"
    yield ""
    who = f"for {fix.principals} of those who write here, on {count(fix.days, 'day')}"
    logs = f", {fix.imported} tries in imported logs" if fix.imported else ""
    yield f"  worked   {fix.worked} of {fix.tried} times; {who}{logs}"
    yield f"  state    {fix.state}" + (f": {clean(fix.why, 120)}" if fix.why else "")
    if why := untried(fix):
        yield f"  told     and not tried: {why}"
    yield ""
    rows = [
        (
            clean(each.run, 30),
            "worked" if each.worked else "failed",
            "by itself" if each.automatic else "",
            clean(each.principal, 20),
            clean(each.agent, 30),
            ago(each.at, now),
        )
        for each in evidence
    ]
    yield from columns([("run", "came out", "", "by", "agent", "when"), *rows], width=width)
