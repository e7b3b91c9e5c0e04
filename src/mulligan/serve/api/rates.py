"""Rate limit of records per caller, with bursts. The error names the time of the next attempt."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from mulligan.serve.api.errors import busy

RATE = 20_000
"""Sustained records per second of one caller: several times what one process records."""
BURST = 10
"""Burst size as seconds of the sustained rate, for records queued while the server was unavailable."""
CALLERS = 10_000


class Rates:
    """Token bucket per caller."""

    def __init__(self, rate: float = RATE, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def take(self, tenant: str, principal: str, records: int) -> None:
        """Take tokens for the records or raise `ApiError`. A caller with tokens left may overdraw by one body."""
        key, now, most = (tenant, principal), self._monotonic(), self._rate * BURST
        left, at = self._left.get(key, (most, now))
        left = min(most, left + (now - at) * self._rate)
        if left <= 0:
            raise busy(max(1, math.ceil((1 - left) / self._rate)))
        self._left[key] = (left - records, now)
        self._left.move_to_end(key)
        while len(self._left) > CALLERS:
            self._left.popitem(last=False)
