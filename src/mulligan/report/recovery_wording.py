"""Text descriptions of recovery links that contain no argument values."""

from __future__ import annotations

from mulligan.core import calls
from mulligan.core.records import Change, Link

IGNORED_ARGUMENTS = frozenset(
    ("description", "explanation", "thought", "reason", "justification", "timeout", "limit", "offset")
)
"""Arguments that rarely cause a recovery: comments of the model, and limits on the output."""
_EDIT_TOOLS = frozenset(
    ("edit", "multiedit", "write", "notebookedit", "apply_patch", "replace", "write_file", "edit_file")
)
_READ_TOOLS = frozenset(("read", "read_file", "view", "notebookread", "cat"))
_PREPARING_TOOLS = {"build_failure": _EDIT_TOOLS, "test_failure": _EDIT_TOOLS, "stale_file": _READ_TOOLS}
"""Tools, by failure code, that make the same call succeed. If one ran in between, only that one is named."""


def describe_recovery(link: Link, code: str = "") -> str:
    """Describe how a failure with this code recovered, without argument values."""
    relevant_changes = [change for change in link.changes if change.path not in IGNORED_ARGUMENTS]
    preparing_tool = next(
        (name for name in link.intermediate_tools if name.casefold() in _PREPARING_TOOLS.get(code, ())), ""
    )
    change_text = _describe_changes(relevant_changes)
    if preparing_tool:
        return f"{preparing_tool} first" + (f", then {change_text}" if change_text and code != "stale_file" else "")
    if change_text:
        return change_text
    if not link.intermediate_tools:
        return "retry of the same call"
    return (
        f"{_join_names(link.intermediate_tools)} first"
        if len(link.intermediate_tools) <= 3
        else f"{len(link.intermediate_tools)} other tools first"
    )


def _describe_changes(changes: list[Change]) -> str:
    """Describe changes, for example `different file_path and limit, without offset`."""
    changed_paths = tuple(change.path for change in changes if categorize_change(change) == "another")
    phrases = (
        [f"different {_join_names(changed_paths[:3])}" + (" and more" if len(changed_paths) > 3 else "")]
        if changed_paths
        else []
    )
    phrases += [_describe_change(change) for change in changes if categorize_change(change) != "another"][:3]
    return ", ".join(phrases)


def categorize_change(change: Change) -> str:
    is_new_value = (
        change.path != calls.TOOL_NAME_PATH and change.operation not in ("drop", "rename") and change.before is not None
    )
    return "another" if is_new_value else change.operation


def _describe_change(change: Change) -> str:
    if change.path == calls.TOOL_NAME_PATH:
        return f"tool {change.after} instead"
    if change.operation == "drop":
        return f"without {change.path}"
    if change.operation == "rename":
        return f"{change.path} renamed to {change.after}"
    return f"with {change.path}"


def _join_names(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
