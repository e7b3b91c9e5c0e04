"""The few failures that must survive a compaction."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from mulligan import calls, forks, prompt
from mulligan.events import AnyEvent, ContextCompacted, RunStarted, StepEnded, Stream
from mulligan.records import Compaction, Link, Step, new_id

CAPACITY = 10
BY_AGENT = "agent"
"""The reason of a compaction that the agent itself has told of."""
RECENT = 2
"""Turns within which the same failure only raises a count."""


@dataclass(slots=True)
class Remembered:
    """One failure of this session."""

    step: Step
    """The attempt that failed last."""
    turn: int
    count: int = 1
    worked: str = ""

    @property
    def is_of(self) -> tuple[str, str]:
        """What makes it the same failure again."""
        return self.step.name, self.step.failure.fingerprint if self.step.failure else ""


class Session:
    """Remembers this conversation's failures, and speaks of them only once they may have been forgotten.

    A turn is one answer of the model: each successful `model` step of its runs, or a call of `turn()`.
    """

    def __init__(self, stream: Stream, id: str | None = None) -> None:
        self.id = id or new_id("session")
        self.turns = 0
        self._stream = stream
        self._failures: list[Remembered] = []
        self._pending: dict[tuple[str, int], Step] = {}
        """Calls that failed in this turn. One that is overcome before the turn ends taught nobody anything."""
        self._runs: set[str] = set()
        self._reminder = ""
        self._lock = threading.Lock()
        _sessions.add(self)
        self._deafen: Callable[[], None] | None = stream.listen(self.hear, when="caller")

    def hear(self, event: AnyEvent) -> None:
        with self._lock:
            match event:
                case RunStarted(run) if run.session == self.id:
                    self._runs.add(run.id)
                case StepEnded(step) if step.run in self._runs:
                    self._heard(step)
                case ContextCompacted(made) if made.session == self.id and made.reason != BY_AGENT:
                    self._remind()  # recovery made a conversation of ours shorter

    def _heard(self, step: Step) -> None:
        if step.outcome == "success":
            self._overcome(step)
            if step.type == "model":
                self._turned()
        elif step.has_failed and step.failure is not None and step.type != "run":
            self._pending[step.run, step.call] = step

    def _turned(self) -> None:
        self._settle()
        self.turns += 1

    def _settle(self) -> None:
        for step in self._pending.values():
            self._remember(step)
        self._pending.clear()

    def _remember(self, step: Step) -> None:
        new = Remembered(step, self.turns)
        for known in self._failures:
            if known.is_of == new.is_of:
                new.count = known.count + 1 if self.turns - known.turn <= RECENT else 1
                self._failures.remove(known)
                break
        if len(self._failures) >= CAPACITY:
            alike = [each for each in self._failures if (_kind(each.step), each.step.name) == (_kind(step), step.name)]
            self._failures.remove((alike or self._failures)[0])  # the oldest: they stand in the order they came
        self._failures.append(new)

    def _overcome(self, step: Step) -> None:
        self._pending.pop((step.run, step.call), None)
        for failed in [failed for failed in self._pending.values() if _link(failed, step)]:
            del self._pending[failed.run, failed.call]
        for known in self._failures:
            if link := _link(known.step, step):
                changes = "; ".join(prompt.change(change) for change in link.changes)
                known.worked = changes or "the same call, later"

    def turn(self) -> None:
        """Says that the model has answered, where no wrapped model call says so."""
        with self._lock:
            self._turned()

    def compacted(self, *, chars_before: int | None = None, chars_after: int | None = None) -> None:
        """Says that the conversation was made shorter: from now on the reminder speaks of what came before."""
        with self._lock:
            self._remind()
        self._stream.publish(
            ContextCompacted(
                Compaction(
                    session=self.id,
                    at=int(time.time() * 1000),
                    reason=BY_AGENT,
                    chars_before=chars_before,
                    chars_after=chars_after,
                )
            )
        )

    def _remind(self) -> None:
        # Fixed here and unchanged until the next compaction, so that the prompt's cache holds.
        self._settle()
        self._reminder = prompt.reminder(
            [
                {
                    "kind": _kind(known.step),
                    "tool": known.step.name,
                    "turn": known.turn,
                    "count": known.count,
                    "message": known.step.failure.message if known.step.failure else "",
                    "worked": known.worked,
                }
                for known in self._failures
            ]
        )

    def reminder(self) -> str:
        """Recent failures, for the system prompt; empty until the first compaction."""
        return self._reminder

    def close(self) -> None:
        if self._deafen is not None:
            self._deafen()
            self._deafen = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _kind(step: Step) -> str:
    return str(step.failure.kind) if step.failure else ""


def _link(failed: Step, success: Step) -> Link | None:
    """Whether a success is plausibly the failed call done right, and what was different."""
    if success.run != failed.run:  # another run of the session counts its steps for itself
        success = msgspec.structs.replace(success, run=failed.run, seq=failed.seq + 1, call=failed.seq + 1, after=None)
    links = calls.overcame([failed, success])
    return links[0] if links else None


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _renew() -> None:
    for session in tuple(_sessions):  # a thread that held the lock is not in the child to let go of it
        session._lock = threading.Lock()


forks.renew(_renew)
