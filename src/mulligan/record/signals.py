"""Wake-up signals between threads that are safe in signal handlers and finalizers.

A signal handler or finalizer may record at any point and then needs the queue lock. The holder of that lock must not
wait for a lock that the interrupted code holds, or both deadlock. `Event` and `Condition` use such locks.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable


class WakeSignal:
    """One-shot wake-up signal that is safe to set from a signal handler.

    `threading.Event.set` takes a non-reentrant lock, so a handler interrupting `set` would deadlock.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # already set
            self._unset.release()

    def wait(self, timeout: float = -1) -> bool:
        return self._unset.acquire(timeout=timeout)


class ProgressSignal:
    """Condition variable without a lock: wakes all waiting threads to check their predicates again."""

    def __init__(self) -> None:
        self._waiting_signals: deque[WakeSignal] = deque()

    def notify_all(self) -> None:
        """Wake all waiting threads. Call it after a change that may satisfy a predicate."""
        with contextlib.suppress(IndexError):
            while True:
                self._waiting_signals.popleft().set()

    def wait_until(self, predicate: Callable[[], bool], deadline: float) -> bool:
        """Block until the predicate holds or the deadline passes. Return whether it holds.

        The deadline is a time of the monotonic clock.
        """
        while not predicate():
            signal = WakeSignal()
            self._waiting_signals.append(signal)
            try:
                # Check again after registering: a notification between check and registration would be missed.
                if not predicate() and not signal.wait(
                    min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
                ):
                    return predicate()
            finally:
                with contextlib.suppress(ValueError):  # already removed by notify_all
                    self._waiting_signals.remove(signal)
        return True
