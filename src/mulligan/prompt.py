"""Every sentence a model reads about a failure: the other exit of the process, and guarded like the first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from mulligan.calls import TOOL
from mulligan.failure import Failure, Ran
from mulligan.records import Change, Precedent
from mulligan.redaction import clean, quote

NAME = 80
"""Characters of a tool's or argument's name that are shown: names come from models and strangers too."""


def answer(
    failure: Failure,
    *,
    tool: str,
    precedents: Sequence[Precedent] = (),
    names: Sequence[str] = (),
    closed: Collection[str] = (),
    has_effects: bool = True,
) -> dict[str, Any]:
    """The failure in the words of a tool's answer: what happened, what to do, and what worked before.

    `names` are tools that may have been meant. `closed` are values that belong to the tool and not to a run, such as
    the members of an enum: no other text of an earlier run is repeated.
    """
    told: dict[str, Any] = {
        "error": str(failure.kind),
        "code": clean(failure.code, NAME) or failure.kind.code,
        "message": quote(failure.message, who=clean(tool, NAME) or "tool"),
        "hint": clean(failure.hint, 300),
        "recoverable": failure.recoverable,
    }
    if failure.ran is Ran.UNKNOWN and has_effects:
        told["outcome"] = "unknown: it may have taken effect. Check before you do it again."
    suggestions = [f"Did you mean {clean(name, NAME)}?" for name in names]
    suggestions += [precedent(each, closed) for each in precedents]
    if suggestions:
        told["suggestions"] = suggestions
    return told


def precedent(known: Precedent, closed: Collection[str] = ()) -> str:
    """What overcame the same failure before, and how often."""
    times = f"in {known.worked} of {known.seen} runs" if known.seen > 1 else "once"
    if known.changes:
        return f"This worked before, {times}: {'; '.join(change(each, closed) for each in known.changes)}."
    if known.how == "recipe":
        first = ", ".join(clean(name, NAME) for name in known.between[:5])
        return f"The same call worked before, {times}, after {first}."
    return f"The same call worked before, {times}, when it was made again later."


def change(changed: Change, closed: Collection[str] = ()) -> str:
    """One changed argument, in a few words. Texts of other runs are named, not repeated."""
    path = clean(changed.path, NAME)
    if changed.path == TOOL:
        return f"call {clean(str(changed.after), NAME)} instead"
    if changed.how == "rename":
        return f"{path} is called {clean(str(changed.after), NAME)}"
    if changed.how == "drop":
        return f"leave {path} out"
    if _is_closed(changed.after, closed):
        return f"{path}={_shown(changed.after)}"
    return f"another {path}"


def _is_closed(value: Any, closed: Collection[str]) -> bool:
    return value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and value in closed)


def _shown(value: Any) -> str:
    return clean(value, NAME) if isinstance(value, str) else repr(value)


def note(tool: str, changes: Iterable[Change]) -> str:
    """Announces a repair, so that the model learns from it although its history shows the call it made."""
    told = ", ".join(f"{clean(each.path, NAME)} {_short(each.before)} -> {_short(each.after)}" for each in changes)
    return f"mulligan: {clean(tool, NAME)} was called with {told}; the first arguments were rejected."


def _short(value: Any) -> str:
    return clean(value if isinstance(value, str) else repr(value), 60)


def epitaph(failure: Failure, *, attempts: int, seconds: float, waits: Sequence[float], why: str, run: str) -> str:
    """The note on an exception that leaves: what was tried, why no more, and where to look."""
    tried = f"{attempts} attempts" if attempts > 1 else "1 attempt"
    waited = f", waited {' and '.join(f'{wait:.1f} s' for wait in waits)}" if waits else ""
    return f"mulligan: {failure.kind}, {tried} in {seconds:.1f} s{waited}; {why}. Details: mulligan show {run[:12]}"


def reminder(failures: Sequence[Mapping[str, Any]]) -> str:
    """What went wrong before the conversation was made shorter, a line each; nothing if nothing did."""
    if not failures:
        return ""
    lines = ["Recent failures of this session, from before the conversation was shortened. Avoid repeating them:"]
    for each in failures:
        times = f", {each['count']} times" if each["count"] > 1 else ""
        worked = f" What worked: {each['worked']}" if each.get("worked") else ""
        lines.append(
            f"- {each['kind']} in {clean(each['tool'], NAME)} (turn {each['turn']}{times}): "
            f"{quote(clean(each['message'], 120), who=clean(each['tool'], NAME) or 'tool')}{worked}"
        )
    return "\n".join(lines) + "\n"
