"""Waking each other up with no lock that one holds and another waits for.

A signal handler, or a finaliser, may record in the middle of anything. It then waits for the lock of those who record;
whoever has that lock must wait for nothing that the interrupted one holds, or both would wait for ever.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable


class Bell:
    """Wakes the one who waits for it, once however often it was rung.

    Not an Event: that one takes a lock to be set, and a signal handler that sets it meanwhile would wait for ever.
    """

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was rung, and nobody has heard it yet
            self._silence.release()

    def wait(self, timeout: float = -1) -> bool:
        return self._silence.acquire(timeout=timeout)


class Progress:
    """Wakes all who wait until something is so. Not a Condition, for the same reason."""

    def __init__(self) -> None:
        self._waiting: deque[Bell] = deque()

    def tell(self) -> None:
        """Something may be so by now."""
        with contextlib.suppress(IndexError):
            while True:
                self._waiting.popleft().ring()

    def wait_until(self, is_so: Callable[[], bool], deadline: float) -> bool:
        """Whether it is so by the deadline, on the monotonic clock."""
        while not is_so():
            bell = Bell()
            self._waiting.append(bell)
            try:
                # Looked at once more now that the bell hangs there: what is told from now on is heard.
                if not is_so() and not bell.wait(min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)):
                    return is_so()
            finally:
                with contextlib.suppress(ValueError):  # it was rung
                    self._waiting.remove(bell)
        return True
