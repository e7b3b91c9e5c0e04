"""Rewrites of a path, or of a call without one argument. Suggestions only, since a path names a destination."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from mulligan.core.records import Change

MAX_PATH_CHARS = 500
_HTTP_ERROR_PATTERN = re.compile(r"\bHTTP\b|\b404\b(?: not found| client error| on /)", re.IGNORECASE)
"""Errors of web servers. Their paths are URLs, so removing a folder makes no sense."""


class Rewrite(NamedTuple):
    arguments: dict[str, Any]
    changes: tuple[Change, ...]
    strategy: str
    evidence: str


def suggest_rewrites(arguments: Mapping[str, Any], error: str, required: Collection[str] | None) -> Iterator[Rewrite]:
    """Yield calls with the last or first segment of a path, and without the argument that the error shows.

    `required` are the arguments that cannot be dropped, or None if unknown.
    """
    slashed = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, str)
        and "/" in value
        and len(value) <= MAX_PATH_CHARS
        and " " not in value
        and _has_name(value)
    }
    is_web = any("://" in value for value in slashed.values()) or _HTTP_ERROR_PATTERN.search(error[:MAX_PATH_CHARS])
    if slashed and not is_web:
        yield _keep_segment(arguments, slashed, -1, "last part", "the file name without its folder")
        shown_paths = {name: value for name, value in slashed.items() if value in error} or slashed
        if len(shown_paths) < len(slashed):
            yield _keep_segment(arguments, shown_paths, -1, "last part", "the file name without its folder")
        yield _keep_segment(arguments, slashed, 0, "first part", "the folder only")
    if required is None:
        return
    for name, value in arguments.items():
        if name not in required and isinstance(value, str) and value and value in error:
            remaining_arguments = {other: other_value for other, other_value in arguments.items() if other != name}
            change = Change(path=name, operation="drop", before=value)
            yield Rewrite(remaining_arguments, (change,), "leave out", f"{name} is optional and named in the error")


def _has_name(path: str) -> bool:
    """Return whether any segment could name a file, unlike those of a date or of `../..`."""
    return bool(path.strip("./0123456789"))


def _keep_segment(
    arguments: Mapping[str, Any], slashed: Mapping[str, str], at: int, strategy: str, evidence: str
) -> Rewrite:
    after = {name: value.strip("/").split("/")[at] for name, value in slashed.items()}
    changes = tuple(
        Change(path=name, operation="substitute", before=value, after=after[name]) for name, value in slashed.items()
    )
    return Rewrite({**arguments, **after}, changes, strategy, evidence)


def replace_at_path(root: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """Return a copy of the root with another value at a path."""
    if not path:
        return value
    head, remaining_path = path[0], path[1:]
    if isinstance(head, int):
        copy = list(root)
        copy[head] = replace_at_path(copy[head], remaining_path, value)
        return copy
    mapping = dict(root)
    mapping[head] = replace_at_path(mapping.get(head, {}), remaining_path, value)
    return mapping
