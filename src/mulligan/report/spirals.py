"""Where agents went round in circles: the same failure again and again in one session, and how that ended."""

from __future__ import annotations

from mulligan.failure import Failure
from mulligan.records import History, Link, Run, Step

REACH = 15
"""Calls between two failures of one spiral at most."""
SPIRAL = 3
"""Failures that make one."""
MOST = 20
"""Spirals that are told: the worst."""
PAUSE = 300.0
"""Seconds. Somebody who comes back after a longer time was away, and not waiting for the agent."""


class Spiral:
    """The same failure again and again, in one session."""

    __slots__ = ("call", "first", "last", "link", "run", "seconds", "size")

    def __init__(self, run: Run, step: Step) -> None:
        self.run = run
        self.first = self.last = step
        self.call = step.call
        self.size = 1
        self.seconds = step.seconds
        self.link: Link | None = None


class Spirals:
    """The worst spirals of many sessions, in memory that does not grow with them."""

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
                continue  # made at the same time: nobody had seen the first fail
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
    """What an agent does again when it goes round in circles: a kind of failure with one file, address or program.

    That a build or a test fails in another way is progress, so of these the message counts.
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
    """The first words of what a command does, without the folder it goes to before."""
    last = command.split("&&", 1)[-1] if command.startswith("cd ") else command
    return " ".join(last.split()[:3])


def _is_sibling(one: Step, other: Step) -> bool:
    """Whether two steps were under way at the same time."""
    return bool(one.started and other.started) and other.started < one.started + one.seconds * 1000


def _ends(spiral: Spiral, step: Step, links: dict[int, Link]) -> bool:
    """Whether what failed had been overcome before it failed again."""
    link = links.get(spiral.call)
    return link is not None and link.overcame < step.seq and step.call != spiral.call
