"""Daily quotas per tenant, shared by all processes of one store.

Each process reserves a hundredth of the quota at a time from one counter in the store and spends it locally. The total
therefore never exceeds the quota, with any number of processes. What a killed process had reserved stays unused until
the next day.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from mulligan.records import Record, decode, encode
from mulligan.remember.store import DAY, Shelf
from mulligan.serve.api.errors import away, too_much, used_up
from mulligan.serve.api.tenants import MEASURES, Measure, Tenant
from mulligan.serve.api.tokens import KIND

KEY = "usage"
SHARE = 100
"""A process reserves the quota divided by this number at a time."""
DAYS = 31
"""Days of usage that the store holds."""
LATEST = 3600
"""Upper limit of Retry-After: an operator may raise the quota before the day ends."""


class Usage(Record, frozen=True):
    """Used amounts of a tenant by day. Only measures with a quota are counted."""

    days: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


class _Held(NamedTuple):
    """Amounts that this process reserved and has not spent."""

    day: str
    left: dict[Measure, int]


def day_of(now: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(now // 1000))


def usage(shelf: Shelf, tenant: str) -> Usage:
    kept = shelf.get(tenant, KIND, KEY)
    return decode(kept, Usage) if kept else Usage()


class Quotas:
    """Quota accounting of one process."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()

    def spend(self, tenant: Tenant, asked: Mapping[Measure, int], now: int) -> bool:
        """Spend the amounts from the local reserve, all or none. Return whether it sufficed. Never calls the store."""
        needed = {name: much for name, much in asked.items() if name in tenant.quotas}
        if not needed:
            return True
        with self._lock:
            left = self._today(tenant.name, now)
            if any(left.get(name, 0) < much for name, much in needed.items()):
                return False
            for name, much in needed.items():
                left[name] -= much
            return True

    def take(self, tenant: Tenant, asked: Mapping[Measure, int], now: int) -> None:
        """Reserve the missing amounts in the store and spend them. Raise `ApiError` if the quota is exhausted."""
        for name, much in asked.items():
            if much > tenant.quotas.get(name, much):
                raise too_much(name, tenant.quotas[name])
        while not self.spend(tenant, asked, now):
            with self._lock:
                left = dict(self._today(tenant.name, now))
            missing = {
                name: much - left.get(name, 0)
                for name, much in asked.items()
                if name in tenant.quotas and much > left.get(name, 0)
            }
            granted = self._granted(tenant, missing, day_of(now))
            with self._lock:
                left = self._today(tenant.name, now)
                for name, much in granted.items():
                    left[name] = left.get(name, 0) + much
                short = [name for name, much in asked.items() if name in missing and left.get(name, 0) < much]
            if short and not self.spend(tenant, asked, now):
                raise used_up(short[0], tenant.quotas[short[0]], min(LATEST, (DAY - now % DAY) // 1000 + 1))
            if short:
                return

    def close(self) -> None:
        """Return unspent reserves to the store."""
        with self._lock:
            held, self._held = self._held, {}
        for name, (day, left) in held.items():
            if any(left.values()):
                self._count(name, day, partial(_given_back, left))

    def _today(self, tenant: str, now: int) -> dict[Measure, int]:
        day = day_of(now)
        held = self._held.get(tenant)
        if held is None or held.day != day:
            held = self._held[tenant] = _Held(day, {})
        return held.left

    def _granted(self, tenant: Tenant, missing: Mapping[Measure, int], day: str) -> dict[Measure, int]:
        def share(counted: Mapping[str, int]) -> dict[Measure, int]:
            return {
                name: min(max(much, tenant.quotas[name] // SHARE), max(0, tenant.quotas[name] - counted.get(name, 0)))
                for name, much in missing.items()
            }

        return self._count(tenant.name, day, share)

    def _count(
        self, tenant: str, day: str, share: Callable[[Mapping[str, int]], dict[Measure, int]]
    ) -> dict[Measure, int]:
        """Update a day's usage with compare-and-set. Return the added amounts."""
        for _ in range(1000):
            known = self._shelf.get(tenant, KIND, KEY)
            days = dict((decode(known, Usage) if known else Usage()).days)
            counted = days.get(day, {})
            added = share(counted)
            if not any(added.values()):
                return added
            days[day] = {
                name: counted.get(name, 0) + added.get(name, 0) for name in MEASURES if name in {*counted, *added}
            }
            kept = Usage(days=dict(sorted(days.items())[-DAYS:]))
            if self._shelf.swap(tenant, KIND, KEY, known, encode(kept)):
                return added
        raise away("so many processes count the quota of a tenant that this one did not come to it.")


def _given_back(left: Mapping[Measure, int], counted: Mapping[str, int]) -> dict[Measure, int]:
    return {name: -min(much, counted.get(name, 0)) for name, much in left.items()}
