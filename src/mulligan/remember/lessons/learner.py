"""Lessons in the background: of a few patterns at a time, not often, by whoever writes and has nothing else to do."""

from __future__ import annotations

import time
from collections.abc import Callable

from mulligan.records import Lesson
from mulligan.remember.store import Store, now

FIRST = 1.0
"""Seconds before the first round: a process that only starts up has better things to do."""
PAUSE = 5.0
"""Seconds between two rounds."""
MOST = 10
"""Patterns of one round: ten to twenty milliseconds."""


class Learner:
    """Says when it is time, and does it. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + FIRST
        self._tenants: dict[str, None] = {}
        """Of whom something was kept since they were last looked at."""

    def heard(self, tenant: str) -> None:
        self._tenants[tenant] = None

    def turn(self, store: Store) -> list[tuple[str, Lesson]]:
        """One round, for one tenant, if it is time: what was learned. Whoever has more to be looked at comes again."""
        if not self._tenants or self._clock() < self._next:
            return []
        tenant = next(iter(self._tenants))
        del self._tenants[tenant]
        try:
            done = store.consolidate(tenant, now(), most=MOST)
        finally:
            self._next = self._clock() + PAUSE
        if done.left:
            self._tenants[tenant] = None
        return [(tenant, lesson) for lesson in done.lessons]
