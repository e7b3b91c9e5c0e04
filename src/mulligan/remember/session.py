"""Session: retains the few failures of a conversation that must survive a compaction.

`tracker.py` decides what is retained and reported. This module listens to events, synchronizes threads, and saves the
state as a key-value entry of the store, so that another object or process with the same id continues from there.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from mulligan import forks
from mulligan.events import AnyEvent, ContextCompacted, RunStarted, StepEnded, Stream
from mulligan.prompt import Prompt
from mulligan.records import Compaction, new_id
from mulligan.remember import tracker
from mulligan.remember.store import LOCAL, Shelf
from mulligan.remember.tracker import CAPACITY, RECENT, Stretch, Tracker

__all__ = ["CAPACITY", "RECENT", "Session", "Stretch"]

log = logging.getLogger("mulligan")
T = TypeVar("T")

KIND = "session"
"""Kind of the key-value entries."""
SINCE = 1000
"""Limit of the newest changes that are replayed on the state saved by another process."""


class Session:
    """Tracks the failures of one conversation and reports them after a compaction.

    A turn is one model response: each successful `model` step of its runs, or a call of `mark_turn()`. Objects with the
    same id, at the same time or later, share one session.
    """

    def __init__(
        self, stream: Stream, id: str | None = None, shelf: Shelf | None = None, words: Prompt | None = None
    ) -> None:
        self._kept = _found(stream, id, shelf, words or Prompt())
        self._is_closed = False

    @property
    def id(self) -> str:
        return self._kept.id

    @property
    def turns(self) -> int:
        """Number of model responses so far."""
        return self._kept.tracker.turns

    def turn(self) -> None:
        """Count a model response that no wrapped model call has recorded."""
        self._kept.change(Tracker.turn)

    def compacted(self, *, chars_before: int | None = None, chars_after: int | None = None) -> None:
        """Record a compaction of the conversation. From then on, the reminder lists the failures before it."""
        at = int(time.time() * 1000)
        self._kept.compact()
        made = Compaction(
            session=self.id,
            at=at,
            reason="agent",
            chars_before=chars_before,
            chars_after=chars_after,
            known=self._kept.tracker.known,
        )
        self._kept.publish(ContextCompacted(made))
        self._kept.save()

    def reminder(self) -> str:
        """Return the recent failures for the system prompt.

        Empty until the first compaction, and constant between two compactions.
        """
        return self._kept.tracker.reminder

    def injection(self) -> str:
        """Return the reminder once per compaction, then an empty string: for hosts that can only append messages."""
        said = self._kept.change(Tracker.injection)
        if said:
            self._kept.save()  # another process must not deliver it again
        return said

    def summary_note(self) -> str:
        """Return what a summarizer need not repeat, for its prompt. Empty if nothing failed."""
        with self._kept.lock:
            return self._kept.tracker.note(self._kept.words)

    def rates(self) -> list[Stretch]:
        """Return calls and failed calls of each interval between compactions, the oldest first.

        A call counts as failed if its first attempt failed.
        """
        with self._kept.lock:
            return [Stretch(each.calls, each.failed) for each in self._kept.tracker.stretches]

    def rise(self) -> str:
        """Return a warning if more calls fail since the last compaction than before; empty if that may be chance."""
        with self._kept.lock:
            return self._kept.tracker.rise()

    def to_json(self) -> bytes:
        """Return the state as JSON, to store it elsewhere."""
        with self._kept.lock:
            return tracker.kept(self._kept.tracker)

    def restore(self, data: bytes | str) -> None:
        """Replace the state by one that `to_json` returned."""
        try:
            given = data.encode() if isinstance(data, str) else data
            tracker.restored(given)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise ValueError(f"this is not what Session.to_json gives: {error}") from None
        self._kept.replace(given)

    def close(self) -> None:
        """Stop listening and save the state."""
        if not self._is_closed:
            self._is_closed = True
            self._kept.let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Kept:
    """The state of one session, shared by all `Session` objects with its id."""

    def __init__(self, stream: Stream, id: str, shelf: Shelf | None, words: Prompt) -> None:
        self.id = id
        self.lock = threading.RLock()
        self._saving = threading.Lock()
        self._stream = stream
        self.words = words
        self._shelf = shelf
        self._version = self._saved = 0
        self._known: bytes | None = None
        """The stored entry, as last read or written."""
        self._since: list[Callable[[Tracker], object]] = []
        """Changes since the last save or load. Replayed if another process has written meanwhile."""
        self._holders = 0
        self._ends: list[Callable[[], None]] = []
        self.tracker = Tracker()

    def hold(self) -> None:
        self._holders += 1
        if not self._ends:
            self._ends = [self._stream.listen(self.hear, when="caller")]
            if self._shelf is not None:
                # Runs on the recorder's thread after it has stored the event, so that no user call waits for the store.
                self._ends.append(self._stream.listen(lambda event: self.save(waits=False), when="recorder"))

    def let_go(self) -> None:
        with _finding:
            self._holders -= 1
            if self._holders > 0:
                return
            ends, self._ends = self._ends, []
            for end in ends:
                end()
            if self._shelf is not None:  # the next object loads the entry, which may contain changes of other processes
                _all.get(self._stream, {}).pop(self.id, None)
        self.save()

    def change(self, how: Callable[[Tracker], T]) -> T:
        """Apply a change under the lock, and remember it until it is saved."""
        with self.lock:
            self._version += 1
            if self._shelf is not None:
                self._since.append(how)
                del self._since[:-SINCE]
            return how(self.tracker)

    def compact(self) -> None:
        self.change(lambda known: known.compact(self.words))

    def replace(self, data: bytes) -> None:
        self.change(lambda known: known.become(tracker.restored(data)))
        self.save()

    def publish(self, event: ContextCompacted) -> None:
        self._stream.publish(event)

    def hear(self, event: AnyEvent) -> None:
        match event:
            case RunStarted(run) if run.session == self.id:
                self.change(lambda known: known.begin(run.id))
            case StepEnded(step) if step.run in self.tracker.runs:
                self.change(lambda known: known.hear(step))
                self._warn()
            case ContextCompacted(compaction) if self._is_of_recovery(compaction):
                self.compact()

    def _is_of_recovery(self, compaction: Compaction) -> bool:
        # Compactions that a session publishes itself have no run.
        return compaction.run is not None and (compaction.session == self.id or compaction.run in self.tracker.runs)

    def _warn(self) -> None:
        with self.lock:
            if self.tracker.has_warned or not (said := self.tracker.rise()):
                return
            self.change(Tracker.warned)
        log.warning("session %s: %s", self.id, said)

    def load(self) -> None:
        """Load the stored state."""
        if self._shelf is None:
            return
        try:
            self._known = self._shelf.get(LOCAL, KIND, self.id)
            if self._known is not None:
                self.tracker = tracker.restored(self._known)
        except Exception as error:  # noqa: BLE001 - a broken disk costs the memory of a session, never the agent
            log.warning("session %s begins anew: what was kept of it cannot be read (%s).", self.id, error)

    def save(self, waits: bool = True) -> None:
        """Save the state if it has changed, merging changes of other processes."""
        if self._shelf is None or self._saved == self._version:
            return
        if not self._saving.acquire(blocking=waits):  # one writer at a time, so that the newest state is written last
            return  # The current writer may wait for the recorder, whose thread must not wait here.
        try:
            while not self._put():
                self._catch_up()
        except Exception as error:  # noqa: BLE001 - as above; tried again after the next change
            log.warning("session %s could not be kept (%s): it lives as long as this process.", self.id, error)
        finally:
            self._saving.release()

    def _put(self) -> bool:
        """Write the entry. Return False if another process has changed it since it was read."""
        assert self._shelf is not None
        with self.lock:
            version, done, data = self._version, len(self._since), tracker.kept(self.tracker)
        self._saved = version
        if not self._shelf.swap(LOCAL, KIND, self.id, self._known, data):
            return False
        with self.lock:
            self._known = data
            del self._since[:done]
        return True

    def _catch_up(self) -> None:
        """Load the other process's state and replay the unsaved changes on it."""
        assert self._shelf is not None
        theirs = self._shelf.get(LOCAL, KIND, self.id)
        with self.lock:
            self._known = theirs
            try:
                known = tracker.restored(theirs) if theirs is not None else Tracker()
            except (msgspec.MsgspecError, UnicodeError):
                return  # unreadable: overwrite it
            for how in self._since:
                how(known)
            self.tracker = known


_finding = threading.RLock()
_all: weakref.WeakKeyDictionary[Stream, dict[str, weakref.ref[_Kept]]] = weakref.WeakKeyDictionary()


def _found(stream: Stream, id: str | None, shelf: Shelf | None, words: Prompt) -> _Kept:
    """Return the live state of a session id, else the stored one, else a new one."""
    with _finding:
        sessions = _all.setdefault(stream, {})
        known = sessions.get(id) if id is not None else None
        kept = known() if known is not None else None
        if kept is None:
            kept = _Kept(stream, id or new_id("session"), shelf, words)
            if id is not None:
                kept.load()
            sessions[kept.id] = weakref.ref(kept)
        kept.hold()
        return kept


def _renew() -> None:
    global _finding
    _finding = threading.RLock()  # the thread that held a lock does not exist in the child
    for sessions in tuple(_all.values()):
        for known in tuple(sessions.values()):
            kept = known()
            if kept is not None:
                kept.lock, kept._saving = threading.RLock(), threading.Lock()


forks.renew(_renew)


def answered(stream: Stream, run: str) -> None:
    """Count a model turn in the session of a run: the model has requested tools."""
    for known in tuple(_all.get(stream, {}).values()):
        kept = known()
        if kept is not None and run in kept.tracker.runs:
            kept.change(Tracker.answered)
