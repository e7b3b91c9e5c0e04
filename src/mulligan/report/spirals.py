"""Spirals in recorded sessions (one strategy that fails repeatedly), and descriptions of recoveries."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mulligan.core.argument_comparison import find_target
from mulligan.core.calls import TOOL_NAME_PATH
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import Change, History, Link, Run, Step

MIN_SPIRAL_FAILURES = 3
"""Minimum number of failures in a spiral."""
MAX_SPIRALS = 20
"""Maximum number of reported spirals."""
MAX_PAUSE_SECONDS = 300.0
"""Longest gap that counts as lost time: after a longer one, the user was away."""


@dataclass(slots=True)
class SessionSpiral:
    """One strategy that failed repeatedly in one session."""

    run: Run
    first: Step
    last: Step
    seconds: float
    size: int = 1
    link: Link | None = None


class SpiralCollector:
    """Collector of the worst spirals of many sessions, with bounded memory."""

    def __init__(self) -> None:
        self._worst: list[tuple[int, float, int, SessionSpiral]] = []
        self._spiral_count = 0

    def add(self, history: History, links: dict[int, Link]) -> None:
        open_spirals: dict[tuple[str, str, str], SessionSpiral] = {}
        for step in history.steps:
            failure = step.failure
            if failure is None or not step.has_failed:
                continue
            key = _strategy_key(step, failure)
            spiral = open_spirals.get(key)
            if spiral is None or not _continues(spiral, step, links):
                if spiral is not None:
                    self._add_finished(spiral, links)
                open_spirals[key] = SessionSpiral(history.run, step, step, step.duration_seconds)
            elif not _is_concurrent(spiral.last, step):
                gap = (step.started_at - spiral.last.started_at) / 1000
                spiral.seconds += gap if 0 < gap <= MAX_PAUSE_SECONDS else step.duration_seconds
                spiral.size += 1
                spiral.last = step
        for spiral in open_spirals.values():
            self._add_finished(spiral, links)

    def _add_finished(self, spiral: SessionSpiral, links: dict[int, Link]) -> None:
        if spiral.size >= MIN_SPIRAL_FAILURES:
            spiral.link = links.get(spiral.last.call)
            self._spiral_count += 1
            heapq.heappush(self._worst, (spiral.size, spiral.seconds, -self._spiral_count, spiral))
            if len(self._worst) > MAX_SPIRALS:
                heapq.heappop(self._worst)

    def worst_spirals(self) -> list[SessionSpiral]:
        return [spiral for *_, spiral in sorted(self._worst, key=lambda entry: entry[:3], reverse=True)]


def _strategy_key(step: Step, failure: Failure) -> tuple[str, str, str]:
    """Return the key of a strategy: the kind of failure with one file, URL or program.

    For builds and tests the fingerprint is part of the key, because a different failure means progress.
    """
    kind = str(failure.kind)
    if not failure.kind.is_about_code and isinstance(step.arguments, dict):
        target = find_target(step.arguments)
        if not target and isinstance(query := step.arguments.get("query"), str):
            target = query
        if target:
            return kind, "", target
    return kind, step.name, failure.fingerprint


def _is_concurrent(earlier: Step, later: Step) -> bool:
    """Return whether the later step started before the earlier one ended: the agent had not seen its failure yet."""
    return (
        bool(earlier.started_at and later.started_at)
        and later.started_at < earlier.started_at + earlier.duration_seconds * 1000
    )


def _continues(spiral: SessionSpiral, step: Step, links: dict[int, Link]) -> bool:
    """Return whether a failure belongs to a spiral: it is near the last one, which had not recovered before it."""
    link = links.get(spiral.last.call)
    is_recovered = link is not None and link.recovering_call < step.seq and step.call != spiral.last.call
    # Maximum distance in steps between two failures of one spiral
    return _is_concurrent(spiral.last, step) or (step.seq - spiral.last.seq <= 15 and not is_recovered)


# Recoveries in words

_IGNORED_ARGUMENTS = frozenset("description explanation thought reason justification timeout limit offset".split())
"""Arguments that rarely cause a recovery: comments of the model, and limits on the output."""
_EDIT_TOOLS = frozenset("edit multiedit write notebookedit apply_patch replace write_file edit_file".split())
_READ_TOOLS = frozenset("read read_file view notebookread cat".split())
_PREPARING_TOOLS = {"edit": _EDIT_TOOLS, "read": _READ_TOOLS}
"""Tools that make the same call succeed, by what they do. If one ran in between, only that one is named."""


def describe_recovery(link: Link, kind: Kind | None = None) -> str:
    """Describe how a failure of this kind recovered, without argument values."""
    tools, change_text = link.intermediate_tools, _describe_changes(link.changes)
    preparation = kind.prepared_by if kind is not None else ""
    preparing_tool = next((name for name in tools if name.casefold() in _PREPARING_TOOLS.get(preparation, ())), "")
    if preparing_tool:
        return f"{preparing_tool} first" + (f", then {change_text}" if change_text and preparation != "read" else "")
    if change_text or not tools:
        return change_text or "retry of the same call"
    return f"{_join_names(tools)} first" if len(tools) <= 3 else f"{len(tools)} other tools first"


def find_new_value(changes: Iterable[Change]) -> Change | None:
    """Return the change if exactly one relevant argument changed, and it has a new value."""
    relevant_changes = [change for change in changes if change.path not in _IGNORED_ARGUMENTS]
    return relevant_changes[0] if len(relevant_changes) == 1 and _has_new_value(relevant_changes[0]) else None


def _describe_changes(changes: Iterable[Change]) -> str:
    """Describe changes, for example `different file_path and limit, without offset`."""
    relevant_changes = [change for change in changes if change.path not in _IGNORED_ARGUMENTS]
    paths = [change.path for change in relevant_changes if _has_new_value(change)]
    phrases = [f"different {_join_names(paths[:3])}" + (" and more" if len(paths) > 3 else "")] if paths else []
    phrases += [_describe_change(change) for change in relevant_changes if not _has_new_value(change)][:3]
    return ", ".join(phrases)


def _has_new_value(change: Change) -> bool:
    is_changed_value = change.path != TOOL_NAME_PATH and change.operation not in ("drop", "rename")
    return is_changed_value and change.before is not None


def _describe_change(change: Change) -> str:
    if change.path == TOOL_NAME_PATH:
        return f"tool {change.after} instead"
    if change.operation == "rename":
        return f"{change.path} renamed to {change.after}"
    return f"without {change.path}" if change.operation == "drop" else f"with {change.path}"


def _join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
