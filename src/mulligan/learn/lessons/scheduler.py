"""Background consolidation: a few patterns per round, at intervals, on an idle writer thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from mulligan.core.records import Lesson
from mulligan.store.base import Store, now

FIRST_ROUND_DELAY_SECONDS = 1.0
"""Delay before the first round, so that consolidation does not slow down process startup."""
ROUND_INTERVAL_SECONDS = 5.0
"""Minimum time between two rounds."""
MAX_PATTERNS_PER_ROUND = 10
"""Maximum number of patterns per round, about 10 to 20 ms of work."""


class ConsolidationScheduler:
    """Schedule and execution of consolidation rounds. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_round_at = clock() + FIRST_ROUND_DELAY_SECONDS
        self._changed_tenants: dict[str, None] = {}
        """Tenants with records stored since their last round, in order of arrival."""

    def mark_changed(self, tenant: str) -> None:
        self._changed_tenants[tenant] = None

    def run_if_due(self, store: Store) -> list[tuple[str, Lesson]]:
        """Run one round for one tenant if it is due. Return the new lessons.

        A tenant with remaining patterns is scheduled again.
        """
        if not self._changed_tenants or self._clock() < self._next_round_at:
            return []
        tenant = next(iter(self._changed_tenants))
        del self._changed_tenants[tenant]
        try:
            consolidated = store.consolidate(tenant, now(), max_patterns=MAX_PATTERNS_PER_ROUND)
        finally:
            self._next_round_at = self._clock() + ROUND_INTERVAL_SECONDS
        if consolidated.remaining:
            self._changed_tenants[tenant] = None
        return [(tenant, lesson) for lesson in consolidated.lessons]
