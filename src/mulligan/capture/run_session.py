"""The session of a run: what its user has written, and calls whose answer was lost until one of them settles it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mulligan.capture.call_scope import current_step, lock
from mulligan.capture.context import CaptureContext
from mulligan.core import fork_safety

if TYPE_CHECKING:
    from mulligan.recover.lost_answers import LostAnswer, UserMessages


class RunSession:
    capture: CaptureContext
    session_key: str
    """The session, or else the run, whose lost answers count here."""
    has_failures: bool
    """Whether successes are judged too: a call has failed, or the session has a lost answer."""
    has_loop = False
    """Whether a loop of turns belongs to the run."""
    user_messages: tuple[UserMessages, ...] = ()
    """What the user had written when the current loop began, in each conversation before its first tool call."""
    awaits_user_messages = True
    """Whether no tool was called yet in the current loop, so that a conversation may have a new message of the user.
    Later ones may be results of tools: some programs send these as messages of the user."""
    _is_nested: bool
    """Whether a step of another run contains it: then it is part of that run's work."""

    @property
    def lost_answers(self) -> tuple[LostAnswer, ...]:
        """The calls of the session with effects="once" whose answer was lost and is not settled."""
        return self.capture.lost_answers.get(self.session_key, ())

    def add_lost_answer(self, answer: LostAnswer) -> None:
        """Remember a lost answer until it is settled. Remembers a limited number, of a limited number of sessions."""
        with fork_safety.import_lock:
            from mulligan.recover.lost_answers import MAX_LOST_ANSWERS, MAX_SESSIONS  # lazy: after a failure only
        with lock():
            by_session = self.capture.lost_answers
            earlier_answers = by_session.pop(self.session_key, ())
            by_session[self.session_key] = (*earlier_answers[1 - MAX_LOST_ANSWERS :], answer)
            while len(by_session) > MAX_SESSIONS:
                del by_session[next(iter(by_session))]
            self.has_failures = True  # from now on, successes are reported too

    def settle(self, is_settled: Callable[[LostAnswer], bool]) -> int:
        """Forget the lost answers of the session whose outcome is known. Return how many there were."""
        settled_answers = [answer for answer in self.lost_answers if is_settled(answer)]
        if not settled_answers:
            return 0
        with lock():
            for answer in settled_answers:
                answer.settled_calls.add(answer.number)
            remaining = tuple(answer for answer in self.lost_answers if answer not in settled_answers)
            if remaining:
                self.capture.lost_answers[self.session_key] = remaining
            else:
                self.capture.lost_answers.pop(self.session_key, None)
        return len(settled_answers)

    def begin_loop(self) -> None:
        """Mark that an agent loop begins: its conversation may have a new message of the user."""
        self.has_loop = True
        if not self._is_inside_call:
            self.awaits_user_messages, self.user_messages = True, ()

    @property
    def _is_inside_call(self) -> bool:
        """Whether the current code is part of a step: an agent inside a tool does not talk to the user."""
        return self._is_nested or current_step(self.capture, self) is not None

    def note_user_messages(self, texts: Sequence[str], *, starts_loop: bool = False) -> None:
        """Note what the user wrote in a conversation. A new message settles earlier lost answers.

        `starts_loop` says that a loop was started with it.
        """
        if not texts or self._is_inside_call:
            return
        module = _lost_answers()
        messages = module.UserMessages(len(texts), texts[-1])
        self.settle(lambda answer: answer.is_followed_by(texts, starts_loop=starts_loop))
        if messages not in self.user_messages:
            self.user_messages = (*self.user_messages[1 - module.MAX_CONVERSATIONS :], messages)
        self.awaits_user_messages = not starts_loop


@functools.cache
def _lost_answers() -> Any:
    """Import the module at the first model call."""
    with fork_safety.import_lock:
        from mulligan.recover import lost_answers
    return lost_answers
