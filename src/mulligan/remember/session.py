"""The object through which an agent keeps the few failures that must survive a compaction.

What is kept and said is decided in tracker.py. Here it listens, is guarded against threads, and goes to the shelf of
the store, so that another object, or another process, with the same id picks it up where it was.
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
"""What sessions are called on the shelf."""
SINCE = 1000
"""Changes that are made again on top of what another process has put there, the latest."""


class Session:
    """Remembers this conversation's failures, and speaks of them only once they may have been forgotten.

    A turn is one answer of the model: each successful `model` step of its runs, or a call of `turn()`. Two objects of
    one id, at once or one after the other, are the same session.
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
        """How many answers of the model there were."""
        return self._kept.tracker.turns

    def turn(self) -> None:
        """Says that the model has answered, where no wrapped model call says so."""
        self._kept.change(Tracker.turn)

    def compacted(self, *, chars_before: int | None = None, chars_after: int | None = None) -> None:
        """Says that the conversation was made shorter: from now on the reminder speaks of what came before."""
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
        """Recent failures, for the system prompt; empty until the first compaction, and the same until the next."""
        return self._kept.tracker.reminder

    def injection(self) -> str:
        """The reminder, once for each compaction and then empty: for whoever can only append to the conversation."""
        said = self._kept.change(Tracker.injection)
        if said:
            self._kept.save()  # another process must not say it again
        return said

    def summary_note(self) -> str:
        """For the prompt of whatever summarises the conversation: what it need not repeat. Empty if nothing failed."""
        with self._kept.lock:
            return self._kept.tracker.note(self._kept.words)

    def rates(self) -> list[Stretch]:
        """Calls made, and failed at first, before each compaction and since the last; the oldest first."""
        with self._kept.lock:
            return [Stretch(each.calls, each.failed) for each in self._kept.tracker.stretches]

    def rise(self) -> str:
        """Says that more calls fail since the last compaction than before it; empty where that may be chance."""
        with self._kept.lock:
            return self._kept.tracker.rise()

    def to_json(self) -> bytes:
        """All that is remembered, for whoever keeps it elsewhere."""
        with self._kept.lock:
            return tracker.kept(self._kept.tracker)

    def restore(self, data: bytes | str) -> None:
        """Goes on from what `to_json` gave, in place of what is remembered now."""
        try:
            given = data.encode() if isinstance(data, str) else data
            tracker.restored(given)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise ValueError(f"this is not what Session.to_json gives: {error}") from None
        self._kept.replace(given)

    def close(self) -> None:
        """Hears no more, and leaves what it knows on the shelf."""
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
    """One session of one stream, however many objects speak for it."""

    def __init__(self, stream: Stream, id: str, shelf: Shelf | None, words: Prompt) -> None:
        self.id = id
        self.lock = threading.RLock()
        self._saving = threading.Lock()
        self._stream = stream
        self.words = words
        self._shelf = shelf
        self._version = self._saved = 0
        self._known: bytes | None = None
        """What is on the shelf, as far as we know."""
        self._since: list[Callable[[Tracker], object]] = []
        """What happened since that was the same as what is remembered here: a shelf that is away costs memory."""
        self._holders = 0
        self._ends: list[Callable[[], None]] = []
        self.tracker = Tracker()

    def hold(self) -> None:
        self._holders += 1
        if not self._ends:
            self._ends = [self._stream.listen(self.hear, when="caller")]
            if self._shelf is not None:
                # After what the recorder has kept, on its thread: no call of the user's waits for this.
                self._ends.append(self._stream.listen(lambda event: self.save(waits=False), when="recorder"))

    def let_go(self) -> None:
        with _finding:
            self._holders -= 1
            if self._holders > 0:
                return
            ends, self._ends = self._ends, []
            for end in ends:
                end()
            if self._shelf is not None:  # whoever comes next finds it there, with what others did meanwhile
                _all.get(self._stream, {}).pop(self.id, None)
        self.save()

    def change(self, how: Callable[[Tracker], T]) -> T:
        """Changes what is remembered, one thread at a time; how is kept until it is on the shelf."""
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
        # What a session says itself names no run.
        return compaction.run is not None and (compaction.session == self.id or compaction.run in self.tracker.runs)

    def _warn(self) -> None:
        with self.lock:
            if self.tracker.has_warned or not (said := self.tracker.rise()):
                return
            self.change(Tracker.warned)
        log.warning("session %s: %s", self.id, said)

    def load(self) -> None:
        """Goes on from what is on the shelf."""
        if self._shelf is None:
            return
        try:
            self._known = self._shelf.get(LOCAL, KIND, self.id)
            if self._known is not None:
                self.tracker = tracker.restored(self._known)
        except Exception as error:  # noqa: BLE001 - a broken disk costs the memory of a session, never the agent
            log.warning("session %s begins anew: what was kept of it cannot be read (%s).", self.id, error)

    def save(self, waits: bool = True) -> None:
        """Puts it on the shelf, if it is not there as it is; beside what another process has put there meanwhile."""
        if self._shelf is None or self._saved == self._version:
            return
        if not self._saving.acquire(blocking=waits):  # the newest is written last
            return  # whoever is at it may wait for the recorder, which must not wait for them
        try:
            while not self._put():
                self._catch_up()
        except Exception as error:  # noqa: BLE001 - as above; tried again after the next change
            log.warning("session %s could not be kept (%s): it lives as long as this process.", self.id, error)
        finally:
            self._saving.release()

    def _put(self) -> bool:
        """Whether it could be put there: not if another process has changed it since we looked."""
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
        """What the other process knows, and then what happened here since the two were last the same."""
        assert self._shelf is not None
        theirs = self._shelf.get(LOCAL, KIND, self.id)
        with self.lock:
            self._known = theirs
            try:
                known = tracker.restored(theirs) if theirs is not None else Tracker()
            except (msgspec.MsgspecError, UnicodeError):
                return  # nobody can read it: ours takes its place
            for how in self._since:
                how(known)
            self.tracker = known


_finding = threading.RLock()
_all: weakref.WeakKeyDictionary[Stream, dict[str, weakref.ref[_Kept]]] = weakref.WeakKeyDictionary()


def _found(stream: Stream, id: str | None, shelf: Shelf | None, words: Prompt) -> _Kept:
    """The session of this id that somebody still speaks for, else the one on the shelf, else a new one."""
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
    _finding = threading.RLock()  # a thread that held a lock is not in the child to let go of it
    for sessions in tuple(_all.values()):
        for known in tuple(sessions.values()):
            kept = known()
            if kept is not None:
                kept.lock, kept._saving = threading.RLock(), threading.Lock()


forks.renew(_renew)


def answered(stream: Stream, run: str) -> None:
    """Says to the session of a run that the model asks for tools, so that it must have answered."""
    for known in tuple(_all.get(stream, {}).values()):
        kept = known()
        if kept is not None and run in kept.tracker.runs:
            kept.change(Tracker.answered)
