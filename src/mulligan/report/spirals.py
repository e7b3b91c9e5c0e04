"""Detection of spirals in recorded sessions: one strategy that fails repeatedly, and whether it recovered."""

from __future__ import annotations

from mulligan.core.failure import Failure
from mulligan.core.records import History, Link, Run, Step

MAX_CALLS_BETWEEN_FAILURES = 15
"""Maximum distance in steps between two failures of one spiral."""
MIN_SPIRAL_FAILURES = 3
"""Minimum number of failures in a spiral."""
MAX_SPIRALS = 20
"""Maximum number of reported spirals."""
MAX_PAUSE_SECONDS = 300.0
"""Longest gap that counts as lost time: after a longer one, the user was away."""


class SessionSpiral:
    """One strategy that failed repeatedly in one session."""

    __slots__ = ("call", "first", "last", "link", "run", "seconds", "size")

    def __init__(self, run: Run, step: Step) -> None:
        self.run = run
        self.first = self.last = step
        self.call = step.call
        self.size = 1
        self.seconds = step.duration_seconds
        self.link: Link | None = None


class SpiralCollector:
    """Collector of the worst spirals of many sessions, with bounded memory."""

    def __init__(self) -> None:
        self._ranked_spirals: list[tuple[int, float, int, str, SessionSpiral]] = []

    def add(self, history: History, links: dict[int, Link]) -> None:
        open_spirals: dict[tuple[str, str, str], SessionSpiral] = {}
        for step in history.steps:
            failure = step.failure
            if failure is None or not step.has_failed:
                continue
            key = _strategy_key(step, failure)
            spiral = open_spirals.get(key)
            if spiral is not None and _is_concurrent(spiral.last, step):
                continue  # concurrent calls: the agent had not seen the first failure yet
            if (
                spiral is not None
                and step.seq - spiral.last.seq <= MAX_CALLS_BETWEEN_FAILURES
                and not _is_recovered_before(spiral, step, links)
            ):
                spiral.size += 1
                gap = (step.started_at - spiral.last.started_at) / 1000
                spiral.seconds += gap if 0 < gap <= MAX_PAUSE_SECONDS else step.duration_seconds
                spiral.last = step
                spiral.call = step.call
                continue
            if spiral is not None:
                self._add_finished(spiral, links)
            open_spirals[key] = SessionSpiral(history.run, step)
        for spiral in open_spirals.values():
            self._add_finished(spiral, links)

    def _add_finished(self, spiral: SessionSpiral, links: dict[int, Link]) -> None:
        if spiral.size < MIN_SPIRAL_FAILURES:
            return
        spiral.link = links.get(spiral.call)
        entry = (spiral.size, spiral.seconds, -len(self._ranked_spirals), spiral.run.id, spiral)
        self._ranked_spirals.append(entry)
        if len(self._ranked_spirals) > 4 * MAX_SPIRALS:
            self._ranked_spirals = sorted(self._ranked_spirals, key=lambda ranked: ranked[:4], reverse=True)[
                :MAX_SPIRALS
            ]

    def worst_spirals(self) -> list[SessionSpiral]:
        return [
            entry[-1] for entry in sorted(self._ranked_spirals, key=lambda entry: entry[:4], reverse=True)[:MAX_SPIRALS]
        ]


_TARGET_ARGUMENTS = ("file_path", "path", "notebook_path", "filename", "file", "url", "query")


def _strategy_key(step: Step, failure: Failure) -> tuple[str, str, str]:
    """Return the key of a strategy: the kind of failure with one file, URL or program.

    For builds and tests the fingerprint is part of the key, because a different failure means progress.
    """
    kind = str(failure.kind)
    if failure.kind.code in ("build_failure", "test_failure") or not isinstance(step.arguments, dict):
        return kind, step.name, failure.fingerprint
    for name in _TARGET_ARGUMENTS:
        if isinstance(step.arguments.get(name), str):
            return kind, "", step.arguments[name]
    for name in ("command", "cmd"):
        if isinstance(step.arguments.get(name), str):
            return kind, "", _command_prefix(step.arguments[name])
    return kind, step.name, failure.fingerprint


def _command_prefix(command: str) -> str:
    """Return the first three words of a shell command, without a leading `cd`."""
    last = command.split("&&", 1)[-1] if command.startswith("cd ") else command
    return " ".join(last.split()[:3])


def _is_concurrent(earlier: Step, later: Step) -> bool:
    """Return whether the later step started before the earlier one ended."""
    return (
        bool(earlier.started_at and later.started_at)
        and later.started_at < earlier.started_at + earlier.duration_seconds * 1000
    )


def _is_recovered_before(spiral: SessionSpiral, step: Step, links: dict[int, Link]) -> bool:
    """Return whether the last failure of a spiral recovered before this step."""
    link = links.get(spiral.call)
    return link is not None and link.recovering_call < step.seq and step.call != spiral.call
