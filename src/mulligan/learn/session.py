"""Session: retains the few failures of a conversation that must survive a compaction.

`tracker.py` decides what is retained and reported. This module listens to events, synchronizes threads, and saves the
state as a key-value entry of the store, so that another object or process with the same id continues from there.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

import msgspec

from mulligan.contract.store import DEFAULT_TENANT, KeyValueStore
from mulligan.core import fork_safety
from mulligan.core.events import AnyEvent, ContextCompacted, EventStream, RunStarted, StepEnded
from mulligan.core.holdout import REMINDER, is_held_out
from mulligan.core.log import get_logger
from mulligan.core.records import Compaction, new_id
from mulligan.learn import tracker
from mulligan.learn.tracker import MAX_TRACKED_FAILURES, REPEAT_WINDOW_TURNS, SESSION_KIND, CompactionInterval, Tracker
from mulligan.prompt import Prompt

log = get_logger(__name__)

__all__ = ["MAX_TRACKED_FAILURES", "REPEAT_WINDOW_TURNS", "CompactionInterval", "Session"]

T = TypeVar("T")


class Session:
    """Tracks the failures of one conversation and reports them after a compaction.

    A turn is one model response: each successful `model` step of its runs, or a call of `mark_turn()`. Objects with the
    same id, at the same time or later, share one session.
    """

    def __init__(
        self,
        stream: EventStream,
        id: str | None = None,
        key_values: KeyValueStore | None = None,
        prompt: Prompt | None = None,
        clock: Callable[[], float] = time.time,
        note_reminder: Callable[[Sequence[str], bool], bool] = lambda tools, is_held_out: False,
        holdout: float = 0.0,
    ) -> None:
        self._state = _get_state(stream, id, key_values, prompt or Prompt())
        self._clock = clock
        self._note_reminder = note_reminder
        """Called with the tools that a reminder is about, and whether it belongs to those that are held out: what then
        succeeds may have followed it. Returns whether it is held out from the current run."""
        self._is_held_out = is_held_out(holdout, self.id, REMINDER)
        self._is_closed = False

    @property
    def id(self) -> str:
        return self._state.id

    @property
    def turns(self) -> int:
        """Number of model responses so far."""
        return self._state.tracker.turns

    def mark_turn(self) -> None:
        """Count a model response that no wrapped model call has recorded."""
        self._state.apply_change(Tracker.mark_turn)

    def mark_compacted(
        self, *, chars_before: int | None = None, chars_after: int | None = None, summary_id: str | None = None
    ) -> None:
        """Record a compaction of the conversation. From then on, the reminder lists the failures before it.

        With `summary_id`, the compaction that wrote this summary counts once in the session.
        """
        at = int(self._clock() * 1000)
        if not self._state.compact(summary_id):
            return
        compaction = Compaction(
            session=self.id,
            at=at,
            reason="agent",
            chars_before=chars_before,
            chars_after=chars_after,
            known_failures=self._state.tracker.known_failures,
        )
        self._state.stream.publish(ContextCompacted(compaction))
        self._state.save()

    def reminder(self) -> str:
        """Return the recent failures for the system prompt.

        Empty until the first compaction, and constant between two compactions.
        """
        return self._deliver(self._state.tracker.reminder)

    def _deliver(self, reminder: str) -> str:
        """Return a reminder, unless it is held out from this session and the current run."""
        tools = [failure.step.name for failure in self._state.tracker.failures]
        return "" if reminder and self._note_reminder(tools, self._is_held_out) else reminder

    def take_reminder(self) -> str:
        """Return the reminder once per compaction, then an empty string: for hosts that can only append messages."""
        reminder = self._state.apply_change(Tracker.take_reminder)
        if reminder:
            self._state.save()  # another process must not deliver it again
        return self._deliver(reminder)

    def summarizer_note(self) -> str:
        """Return what a summarizer need not repeat, for its prompt. Empty if nothing failed."""
        with self._state.lock:
            return self._state.tracker.summarizer_note(self._state.prompt)

    def failure_rates(self) -> list[CompactionInterval]:
        """Return calls and failed calls of each interval between compactions, the oldest first.

        A call counts as failed if its first attempt failed.
        """
        with self._state.lock:
            return [CompactionInterval(interval.calls, interval.failed) for interval in self._state.tracker.intervals]

    def failure_rate_warning(self) -> str:
        """Return a warning if more calls fail since the last compaction than before; empty if that may be chance."""
        with self._state.lock:
            return self._state.tracker.rate_increase()

    def to_json(self) -> bytes:
        """Return the state as JSON, to store it elsewhere."""
        with self._state.lock:
            return tracker.to_json(self._state.tracker)

    def restore(self, data: bytes | str) -> None:
        """Replace the state by one that `to_json` returned."""
        try:
            encoded = data.encode() if isinstance(data, str) else data
            tracker.from_json(encoded)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise ValueError(f"Invalid session state, expected the output of Session.to_json: {error}") from None
        self._state.apply_change(lambda current: current.become(tracker.from_json(encoded)))
        self._state.save()

    def close(self) -> None:
        """Stop listening and save the state."""
        if not self._is_closed:
            self._is_closed = True
            self._state.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _SessionState:
    """The state of one session, shared by all `Session` objects with its id."""

    def __init__(self, stream: EventStream, id: str, key_values: KeyValueStore | None, prompt: Prompt) -> None:
        self.id, self.stream, self.prompt = id, stream, prompt
        self.tracker = Tracker()
        self.lock, self._saving = threading.RLock(), threading.Lock()
        self._key_values = key_values
        self._version = self._saved = 0
        self._stored: bytes | None = None
        """The stored entry, as last read or written."""
        self._unsaved_changes: list[Callable[[Tracker], object]] = []
        """Changes since the last save or load. Replayed if another process has written meanwhile."""
        self._holders = 0
        self._remove_listeners: list[Callable[[], None]] = []

    def add_holder(self) -> None:
        self._holders += 1
        if not self._remove_listeners:
            self._remove_listeners = [self.stream.add_listener(self._observe_event, thread="caller")]
            if self._key_values is not None:
                # Runs on the recorder's thread after it has stored the event, so that no user call waits for the store.
                self._remove_listeners.append(
                    self.stream.add_listener(lambda event: self.save(waits=False), thread="recorder")
                )

    def release(self) -> None:
        with _registry_lock:
            self._holders -= 1
            if self._holders > 0:
                return
            while self._remove_listeners:
                self._remove_listeners.pop()()
            if self._key_values is not None:  # the next object loads the entry, with changes of other processes
                _registry.get(self.stream, {}).pop(self.id, None)
        self.save()

    def apply_change(self, change: Callable[[Tracker], T]) -> T:
        """Apply a change under the lock, and remember it until it is saved."""
        with self.lock:
            self._version += 1
            if self._key_values is not None:
                self._unsaved_changes.append(change)
                # Limit of the newest changes that are replayed on the state saved by another process.
                del self._unsaved_changes[:-1000]
            return change(self.tracker)

    def compact(self, summary_id: str | None = None) -> bool:
        """Record a compaction, unless the one with this summary was recorded before. Return whether it was recorded."""
        with self.lock:
            if summary_id is not None and self.tracker.has_summary(summary_id):
                return False
            return self.apply_change(lambda current: current.compact(self.prompt, summary_id))

    def _observe_event(self, event: AnyEvent) -> None:
        match event:
            case RunStarted(run) if run.session == self.id:
                self.apply_change(lambda current: current.begin(run.id))
            case StepEnded(step) if step.run in self.tracker.runs:
                self.apply_change(lambda current: current.observe_step(step))
                with self.lock:
                    warning = "" if self.tracker.has_warned else self.tracker.rate_increase()
                    if warning:
                        self.apply_change(Tracker.mark_warned)
                if warning:
                    log.warning("Session %s: %s", self.id, warning)
            # Compactions that a session publishes itself have no run.
            case ContextCompacted(compaction) if compaction.run is not None:
                if compaction.session == self.id or compaction.run in self.tracker.runs:
                    self.compact()

    def load(self) -> None:
        if self._key_values is None:
            return
        try:
            self._stored = self._key_values.get(DEFAULT_TENANT, SESSION_KIND, self.id)
            if self._stored is not None:
                self.tracker = tracker.from_json(self._stored)
        except Exception as error:  # noqa: BLE001 - a broken disk costs the memory of a session, never the agent
            log.warning("Session %s: stored state unreadable, starting without it (%s)", self.id, error)

    def save(self, waits: bool = True) -> None:
        """Save the state if it has changed, merging changes of other processes."""
        if self._key_values is None or self._saved == self._version:
            return
        if not self._saving.acquire(blocking=waits):  # one writer at a time, so that the newest state is written last
            return  # The current writer may wait for the recorder, whose thread must not wait here.
        try:
            while not self._put(self._key_values):
                self._catch_up(self._key_values)
        except Exception as error:  # noqa: BLE001 - as above; tried again after the next change
            log.warning("Session %s: state not saved, kept in this process only (%s)", self.id, error)
        finally:
            self._saving.release()

    def _put(self, key_values: KeyValueStore) -> bool:
        """Write the entry. Return False if another process has changed it since it was read."""
        with self.lock:
            self._saved, change_count, data = self._version, len(self._unsaved_changes), tracker.to_json(self.tracker)
        if not key_values.compare_and_set(DEFAULT_TENANT, SESSION_KIND, self.id, self._stored, data):
            return False
        with self.lock:
            self._stored = data
            del self._unsaved_changes[:change_count]
        return True

    def _catch_up(self, key_values: KeyValueStore) -> None:
        """Load the other process's state and replay the unsaved changes on it."""
        theirs = key_values.get(DEFAULT_TENANT, SESSION_KIND, self.id)
        with self.lock:
            self._stored = theirs
            try:
                merged = tracker.from_json(theirs) if theirs is not None else Tracker()
            except (msgspec.MsgspecError, UnicodeError):
                return  # unreadable: overwrite it
            for change in self._unsaved_changes:
                change(merged)
            self.tracker = merged


_registry_lock = threading.RLock()
_registry: weakref.WeakKeyDictionary[EventStream, dict[str, weakref.ref[_SessionState]]] = weakref.WeakKeyDictionary()


def _get_state(stream: EventStream, id: str | None, key_values: KeyValueStore | None, prompt: Prompt) -> _SessionState:
    """Return the live state of a session id, else the stored one, else a new one."""
    with _registry_lock:
        sessions = _registry.setdefault(stream, {})
        state = sessions.get(id or "", lambda: None)()
        if state is None:
            state = _SessionState(stream, id or new_id("session"), key_values, prompt)
            if id is not None:
                state.load()
            sessions[state.id] = weakref.ref(state)
        state.add_holder()
        return state


def _live_states(stream: EventStream) -> list[_SessionState]:
    states = (reference() for reference in tuple(_registry.get(stream, {}).values()))
    return [state for state in states if state is not None]


def _reset_locks_in_child() -> None:
    global _registry_lock
    _registry_lock = threading.RLock()  # the thread that held a lock does not exist in the child
    for stream in tuple(_registry):
        for state in _live_states(stream):
            state.lock, state._saving = threading.RLock(), threading.Lock()


fork_safety.run_in_child(_reset_locks_in_child)


def mark_model_turn(stream: EventStream, run: str) -> None:
    """Count a model turn in the session of a run: the model has requested tools."""
    for state in _live_states(stream):
        if run in state.tracker.runs:
            state.apply_change(Tracker.mark_tools_requested)
