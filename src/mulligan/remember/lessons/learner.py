"""Background consolidation: a few patterns per round, at intervals, on an idle writer thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from mulligan.records import Lesson
from mulligan.remember.store import Store, now

FIRST = 1.0
"""Delay before the first round, so that consolidation does not slow down process startup."""
PAUSE = 5.0
"""Minimum time between two rounds."""
MOST = 10
"""Maximum number of patterns per round, about 10 to 20 ms of work."""


class Learner:
    """Schedule and execution of consolidation rounds. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + FIRST
        self._tenants: dict[str, None] = {}
        """Tenants with records stored since their last round, in order of arrival."""

    def heard(self, tenant: str) -> None:
        self._tenants[tenant] = None

    def turn(self, store: Store) -> list[tuple[str, Lesson]]:
        """Run one round for one tenant if it is due. Return the new lessons.

        A tenant with remaining patterns is scheduled again.
        """
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
