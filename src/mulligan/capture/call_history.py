"""The latest calls of a run: repairs may take an id from them, and one that succeeded may recover an earlier one."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import msgspec

from mulligan.capture.call_scope import lock
from mulligan.capture.run_judge import TOOL_STEP_TYPES, RunJudge
from mulligan.core.links import STAGES
from mulligan.core.records import Step
from mulligan.recover.policy import EarlierCall

MAX_REMEMBERED_CALLS = 32
"""Earlier calls of a run that are remembered."""


class RecordedSuccess(Protocol):
    """A successful call whose step is built on request: mostly no later call needs it."""

    seq: int

    def to_step(self) -> Step: ...

    def without_large_result(self) -> RecordedSuccess: ...


class CallHistory:
    """The latest calls of a run."""

    def __init__(self, judge: RunJudge) -> None:
        self._judge = judge
        self._records: deque[RecordedSuccess] = deque(maxlen=MAX_REMEMBERED_CALLS)
        """The latest successful calls that were recorded by the fast path."""
        self._successes: deque[Step] = deque(maxlen=MAX_REMEMBERED_CALLS)
        """The latest other successful attempts."""
        self._failures: deque[Step] = deque(maxlen=MAX_REMEMBERED_CALLS)
        """The latest failed attempts."""
        self._success_count = 0
        """How many published steps have succeeded, except stages."""
        self._item_of_call: dict[int, tuple[Any, ...]] = {}
        """The item scopes of the latest calls."""
        self._request_start = 0
        """Number of the last call before the current request of the user."""

    @property
    def has_success(self) -> bool:
        return bool(self._records or self._success_count)

    def add_record(self, success: RecordedSuccess) -> None:
        """Add a successful call of the fast path. Large results are dropped."""
        if self._judge.item_scopes is not None:
            self._note_item(success.seq)
        self._records.append(success.without_large_result())

    def add_success(self, step: Step, *, is_remembered: bool) -> None:
        """Count a successful attempt, and add it without its result if it is remembered."""
        self._success_count += step.type not in STAGES
        if is_remembered:
            self._successes.append(msgspec.structs.replace(step, result=None))

    def add_failure(self, step: Step) -> None:
        self._failures.append(step)
        self._note_item(step.call)

    def _note_item(self, call: int) -> None:
        """Store the item scope of a call, if the run has item scopes."""
        item_scopes = self._judge.item_scopes
        if item_scopes is not None and (scopes := item_scopes.get()):
            with lock():
                self._item_of_call[call] = scopes
                while len(self._item_of_call) > 4 * MAX_REMEMBERED_CALLS:
                    del self._item_of_call[next(iter(self._item_of_call))]

    def successes(self) -> list[Step]:
        """Return the latest successful attempts, in order."""
        recorded = [msgspec.structs.replace(success.to_step(), result=None) for success in tuple(self._records)]
        return sorted((*recorded, *self._successes), key=lambda step: step.seq)

    def forget_success(self, number: int) -> None:
        """Remove a successful attempt: its failure was recorded afterwards."""
        for success in [success for success in tuple(self._records) if success.seq == number]:
            self._records.remove(success)
        for step in [step for step in self._successes if step.seq == number]:
            self._successes.remove(step)
            self._success_count -= step.type not in STAGES

    def find_step(self, number: int) -> Step | None:
        """Return the attempt with this number, if it is among the latest."""
        return next((step for step in (*self._failures, *self.successes()) if step.seq == number), None)

    def begin_user_request(self) -> None:
        """Mark that the user has asked for something else: no repair takes a value from the calls so far."""
        with lock():
            numbers = [step.seq for step in self._failures]
        self._request_start = max([*numbers, *(success.seq for success in tuple(self._records))], default=0)

    def earlier_calls(self) -> list[EarlierCall]:
        """Return the earlier calls for the same request of the user, the oldest first."""
        with lock():
            steps = [*(success.to_step() for success in tuple(self._records)), *self._failures]
        calls = {step.seq: (step.call, EarlierCall.from_step(step)) for step in steps if step.type in TOOL_STEP_TYPES}
        if self._request_start:
            calls = {seq: call for seq, call in calls.items() if seq > self._request_start}
        if scopes := self._judge.item_scope((), {}):
            # Calls of another item are no evidence for this one.
            calls = {seq: call for seq, call in calls.items() if self._item_of_call.get(call[0], ()) in ((), scopes)}
        return [calls[seq][1] for seq in sorted(calls)[-MAX_REMEMBERED_CALLS:]]
