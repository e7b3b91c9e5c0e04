"""Rate limit of records per caller, with bursts. The error names the time of the next attempt."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from mulligan.server.errors import rate_limited

DEFAULT_RECORDS_PER_SECOND = 20_000
"""Sustained records per second of one caller: several times what one process records."""
BURST_SECONDS = 10
"""Burst size as seconds of the sustained rate, for records queued while the server was unavailable."""
MAX_TRACKED_CALLERS = 10_000


class RateLimiter:
    """Token bucket per caller."""

    def __init__(
        self, rate: float = DEFAULT_RECORDS_PER_SECOND, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._budgets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def take(self, tenant: str, principal: str, records: int) -> None:
        """Take tokens for the records or raise `ApiError`. A caller with tokens left may overdraw by one body."""
        key, now, capacity = (tenant, principal), self._monotonic(), self._rate * BURST_SECONDS
        remaining, at = self._budgets.get(key, (capacity, now))
        remaining = min(capacity, remaining + (now - at) * self._rate)
        if remaining <= 0:
            raise rate_limited(max(1, math.ceil((1 - remaining) / self._rate)))
        self._budgets[key] = (remaining - records, now)
        self._budgets.move_to_end(key)
        while len(self._budgets) > MAX_TRACKED_CALLERS:
            self._budgets.popitem(last=False)
