"""How much one caller may send: so many records a second, and a burst. Whoever sends more is told when to come."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from mulligan.serve.api.errors import busy

RATE = 20_000
"""Records a second that one caller may send in the long run: several times what one process records."""
BURST = 10
"""Seconds of it that may come at once: what was recorded while the server was away."""
CALLERS = 10_000


class Rates:
    """An allowance for each caller, which fills again with time."""

    def __init__(self, rate: float = RATE, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def take(self, tenant: str, principal: str, records: int) -> None:
        """Takes so much of the caller's allowance, or refuses. One body alone may always come."""
        key, now, most = (tenant, principal), self._monotonic(), self._rate * BURST
        left, at = self._left.get(key, (most, now))
        left = min(most, left + (now - at) * self._rate)
        if left <= 0:
            raise busy(max(1, math.ceil((1 - left) / self._rate)))
        self._left[key] = (left - records, now)
        self._left.move_to_end(key)
        while len(self._left) > CALLERS:
            self._left.popitem(last=False)
