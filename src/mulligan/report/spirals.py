"""Detection of spirals in recorded sessions: one strategy that fails repeatedly, and whether it recovered."""

from __future__ import annotations

from mulligan.failure import Failure
from mulligan.records import History, Link, Run, Step

REACH = 15
"""Maximum distance in steps between two failures of one spiral."""
SPIRAL = 3
"""Minimum number of failures in a spiral."""
MOST = 20
"""Maximum number of reported spirals."""
PAUSE = 300.0
"""Longest gap that counts as lost time: after a longer one, the user was away."""


class Spiral:
    """One strategy that failed repeatedly in one session."""

    __slots__ = ("call", "first", "last", "link", "run", "seconds", "size")

    def __init__(self, run: Run, step: Step) -> None:
        self.run = run
        self.first = self.last = step
        self.call = step.call
        self.size = 1
        self.seconds = step.seconds
        self.link: Link | None = None


class Spirals:
    """Collector of the worst spirals of many sessions, with bounded memory."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, float, int, str, Spiral]] = []

    def add(self, history: History, links: dict[int, Link]) -> None:
        current: dict[tuple[str, str, str], Spiral] = {}
        for step in history.steps:
            failure = step.failure
            if failure is None or not step.has_failed:
                continue
            key = _strategy(step, failure)
            spiral = current.get(key)
            if spiral is not None and _is_sibling(spiral.last, step):
                continue  # concurrent calls: the agent had not seen the first failure yet
            if spiral is not None and step.seq - spiral.last.seq <= REACH and not _ends(spiral, step, links):
                spiral.size += 1
                gap = (step.started - spiral.last.started) / 1000
                spiral.seconds += gap if 0 < gap <= PAUSE else step.seconds
                spiral.last = step
                spiral.call = step.call
                continue
            if spiral is not None:
                self._keep(spiral, links)
            current[key] = Spiral(history.run, step)
        for spiral in current.values():
            self._keep(spiral, links)

    def _keep(self, spiral: Spiral, links: dict[int, Link]) -> None:
        if spiral.size < SPIRAL:
            return
        spiral.link = links.get(spiral.call)
        rank = (spiral.size, spiral.seconds, -len(self._kept), spiral.run.id, spiral)
        self._kept.append(rank)
        if len(self._kept) > 4 * MOST:
            self._kept = sorted(self._kept, key=lambda each: each[:4], reverse=True)[:MOST]

    def worst(self) -> list[Spiral]:
        return [each[-1] for each in sorted(self._kept, key=lambda each: each[:4], reverse=True)[:MOST]]


_ABOUT = ("file_path", "path", "notebook_path", "filename", "file", "url", "query")


def _strategy(step: Step, failure: Failure) -> tuple[str, str, str]:
    """Return the key of a strategy: the kind of failure with one file, URL or program.

    For builds and tests the fingerprint is part of the key, because a different failure means progress.
    """
    kind = str(failure.kind)
    if failure.kind.code in ("build_failure", "test_failure") or not isinstance(step.arguments, dict):
        return kind, step.name, failure.fingerprint
    for name in _ABOUT:
        if isinstance(step.arguments.get(name), str):
            return kind, "", step.arguments[name]
    for name in ("command", "cmd"):
        if isinstance(step.arguments.get(name), str):
            return kind, "", _program(step.arguments[name])
    return kind, step.name, failure.fingerprint


def _program(command: str) -> str:
    """Return the first three words of a shell command, without a leading `cd`."""
    last = command.split("&&", 1)[-1] if command.startswith("cd ") else command
    return " ".join(last.split()[:3])


def _is_sibling(one: Step, other: Step) -> bool:
    """Return whether the later step started before the earlier one ended."""
    return bool(one.started and other.started) and other.started < one.started + one.seconds * 1000


def _ends(spiral: Spiral, step: Step, links: dict[int, Link]) -> bool:
    """Return whether the last failure of a spiral recovered before this step."""
    link = links.get(spiral.call)
    return link is not None and link.overcame < step.seq and step.call != spiral.call
