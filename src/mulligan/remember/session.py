"""The few failures that must survive a compaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from mulligan import prompt
from mulligan.events import AnyEvent, ContextCompacted, RunStarted, StepEnded, Stream
from mulligan.records import Compaction, Step, new_id

CAPACITY = 10
RECENT = 2
"""Turns within which the same failure only raises a count."""


@dataclass(slots=True)
class Remembered:
    """One failure of this session."""

    call: tuple[str, int]
    kind: str
    tool: str
    fingerprint: str
    message: str
    turn: int
    count: int = 1
    worked: str = ""


class Session:
    """Remembers this conversation's failures, and speaks of them only once they may have been forgotten.

    A turn is one answer of the model: each successful `model` step of its runs, or a call of `turn()`.
    """

    def __init__(self, stream: Stream, id: str | None = None) -> None:
        self.id = id or new_id("session")
        self.turns = 0
        self._stream = stream
        self._failures: list[Remembered] = []
        self._runs: set[str] = set()
        self._reminder = ""
        self._lock = threading.Lock()
        self._deafen: Callable[[], None] | None = stream.listen(self.hear, when="caller")

    def hear(self, event: AnyEvent) -> None:
        match event:
            case RunStarted(run) if run.session == self.id:
                self._runs.add(run.id)
            case StepEnded(step) if step.run in self._runs:
                with self._lock:
                    self._heard(step)

    def _heard(self, step: Step) -> None:
        if step.outcome == "success":
            self._overcome(step)
            if step.type == "model":
                self.turns += 1
        elif step.has_failed and step.failure is not None and step.type != "run":
            self._remember(step)

    def _remember(self, step: Step) -> None:
        failure = step.failure
        assert failure is not None
        call = (step.run, step.call)
        for known in self._failures:
            if known.fingerprint == failure.fingerprint and known.tool == step.name:
                is_same_call = known.call == call
                is_recent = self.turns - known.turn <= RECENT
                known.count = known.count + (not is_same_call) if is_recent else 1
                known.call, known.message, known.turn = call, failure.message, self.turns
                return
        if len(self._failures) >= CAPACITY:
            alike = [known for known in self._failures if known.kind == failure.kind and known.tool == step.name]
            self._failures.remove(min(alike or self._failures, key=lambda known: known.turn))
        self._failures.append(
            Remembered(call, str(failure.kind), step.name, failure.fingerprint, failure.message, self.turns)
        )

    def _overcome(self, step: Step) -> None:
        """A failure that its own call overcame in the same turn taught nobody anything."""
        for known in list(self._failures):
            if known.call == (step.run, step.call) and known.turn == self.turns and known.count == 1:
                self._failures.remove(known)
            elif known.call == (step.run, step.call) and step.after and step.after.changes:
                known.worked = "; ".join(prompt.change(change) for change in step.after.changes)

    def turn(self) -> None:
        """Says that the model has answered, where no wrapped model call says so."""
        with self._lock:
            self.turns += 1

    def compacted(self, *, chars_before: int | None = None, chars_after: int | None = None) -> None:
        """Says that the conversation was made shorter: from now on the reminder speaks of what came before."""
        with self._lock:
            # Fixed here and unchanged until the next compaction, so that the prompt's cache holds.
            self._reminder = prompt.reminder(
                [
                    {
                        "kind": known.kind,
                        "tool": known.tool,
                        "turn": known.turn,
                        "count": known.count,
                        "message": known.message,
                        "worked": known.worked,
                    }
                    for known in self._failures
                ]
            )
        self._stream.publish(
            ContextCompacted(
                Compaction(session=self.id, reason="agent", chars_before=chars_before, chars_after=chars_after)
            )
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
