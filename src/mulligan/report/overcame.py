"""Text descriptions of recovery links that contain no argument values."""

from __future__ import annotations

from mulligan import calls
from mulligan.records import Change, Link

COMMENTS = frozenset(("description", "explanation", "thought", "reason", "justification", "timeout", "limit", "offset"))
"""Arguments that rarely cause a recovery: comments of the model, and limits on the output."""
_EDITS = frozenset(("edit", "multiedit", "write", "notebookedit", "apply_patch", "replace", "write_file", "edit_file"))
_READS = frozenset(("read", "read_file", "view", "notebookread", "cat"))
_FIRST = {"build_failure": _EDITS, "test_failure": _EDITS, "stale_file": _READS}
"""Tools, by failure code, that make the same call succeed. If one ran in between, only that one is named."""


def fix(link: Link, code: str = "") -> str:
    """Describe how a failure with this code recovered, without argument values."""
    changed = [change for change in link.changes if change.path not in COMMENTS]
    first = next((name for name in link.between if name.casefold() in _FIRST.get(code, ())), "")
    told = _changed(changed)
    if first:
        return f"{first} first" + (f", then {told}" if told and code != "stale_file" else "")
    if told:
        return told
    if not link.between:
        return "the same call again"
    return f"{_listed(link.between)} first" if len(link.between) <= 3 else f"{len(link.between)} other tools first"


def _changed(changes: list[Change]) -> str:
    """Describe changes, for example `another file_path and limit, without offset`."""
    others = tuple(each.path for each in changes if sort_of(each) == "another")
    told = [f"another {_listed(others[:3])}" + (" and more" if len(others) > 3 else "")] if others else []
    told += [_told(each) for each in changes if sort_of(each) != "another"][:3]
    return ", ".join(told)


def sort_of(change: Change) -> str:
    is_other = change.path != calls.TOOL and change.how not in ("drop", "rename") and change.before is not None
    return "another" if is_other else change.how


def _told(change: Change) -> str:
    if change.path == calls.TOOL:
        return f"called {change.after}"
    if change.how == "drop":
        return f"without {change.path}"
    if change.how == "rename":
        return f"{change.after} for {change.path}"
    return f"with {change.path}"


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
