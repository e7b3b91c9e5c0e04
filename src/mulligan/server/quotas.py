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

from mulligan.core.records import Record, decode, encode
from mulligan.server.errors import quota_exceeded, request_exceeds_quota, store_unavailable
from mulligan.server.tenants import MEASURES, Measure, Tenant
from mulligan.server.tokens import SERVER_ENTRY_KIND
from mulligan.store.base import DAY, KeyValueStore

USAGE_KEY = "usage"
QUOTA_RESERVE_DIVISOR = 100
"""A process reserves the quota divided by this number at a time."""
MAX_USAGE_DAYS = 31
"""Days of usage that the store holds."""
MAX_RETRY_AFTER_SECONDS = 3600
"""Upper limit of Retry-After: an operator may raise the quota before the day ends."""


class Usage(Record, frozen=True):
    """Used amounts of a tenant by day. Only measures with a quota are counted."""

    days: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


class _ReservedQuota(NamedTuple):
    """Amounts that this process reserved and has not spent."""

    day: str
    remaining: dict[Measure, int]


def day_of(now: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(now // 1000))


def load_usage(key_value_store: KeyValueStore, tenant: str) -> Usage:
    stored_value = key_value_store.get(tenant, SERVER_ENTRY_KIND, USAGE_KEY)
    return decode(stored_value, Usage) if stored_value else Usage()


class Quotas:
    """Quota accounting of one process."""

    def __init__(self, key_value_store: KeyValueStore) -> None:
        self._key_value_store = key_value_store
        self._reserved: dict[str, _ReservedQuota] = {}
        self._lock = threading.Lock()

    def spend_reserved(self, tenant: Tenant, amounts: Mapping[Measure, int], now: int) -> bool:
        """Spend the amounts from the local reserve, all or none. Return whether it sufficed. Never calls the store."""
        limited_amounts = {name: amount for name, amount in amounts.items() if name in tenant.quotas}
        if not limited_amounts:
            return True
        with self._lock:
            remaining = self._remaining_today(tenant.name, now)
            if any(remaining.get(name, 0) < amount for name, amount in limited_amounts.items()):
                return False
            for name, amount in limited_amounts.items():
                remaining[name] -= amount
            return True

    def reserve_and_spend(self, tenant: Tenant, amounts: Mapping[Measure, int], now: int) -> None:
        """Reserve the missing amounts in the store and spend them. Raise `ApiError` if the quota is exhausted."""
        for name, amount in amounts.items():
            if amount > tenant.quotas.get(name, amount):
                raise request_exceeds_quota(name, tenant.quotas[name])
        while not self.spend_reserved(tenant, amounts, now):
            with self._lock:
                remaining = dict(self._remaining_today(tenant.name, now))
            missing = {
                name: amount - remaining.get(name, 0)
                for name, amount in amounts.items()
                if name in tenant.quotas and amount > remaining.get(name, 0)
            }
            granted = self._reserve(tenant, missing, day_of(now))
            with self._lock:
                remaining = self._remaining_today(tenant.name, now)
                for name, amount in granted.items():
                    remaining[name] = remaining.get(name, 0) + amount
                exhausted = [
                    name for name, amount in amounts.items() if name in missing and remaining.get(name, 0) < amount
                ]
            if exhausted and not self.spend_reserved(tenant, amounts, now):
                raise quota_exceeded(
                    exhausted[0],
                    tenant.quotas[exhausted[0]],
                    min(MAX_RETRY_AFTER_SECONDS, (DAY - now % DAY) // 1000 + 1),
                )
            if exhausted:
                return

    def close(self) -> None:
        """Return unspent reserves to the store."""
        with self._lock:
            reserved, self._reserved = self._reserved, {}
        for name, (day, remaining) in reserved.items():
            if any(remaining.values()):
                self._update_usage(name, day, partial(_refund_amounts, remaining))

    def _remaining_today(self, tenant: str, now: int) -> dict[Measure, int]:
        day = day_of(now)
        reserved = self._reserved.get(tenant)
        if reserved is None or reserved.day != day:
            reserved = self._reserved[tenant] = _ReservedQuota(day, {})
        return reserved.remaining

    def _reserve(self, tenant: Tenant, missing: Mapping[Measure, int], day: str) -> dict[Measure, int]:
        def choose_amounts(used_amounts: Mapping[str, int]) -> dict[Measure, int]:
            return {
                name: min(
                    max(amount, tenant.quotas[name] // QUOTA_RESERVE_DIVISOR),
                    max(0, tenant.quotas[name] - used_amounts.get(name, 0)),
                )
                for name, amount in missing.items()
            }

        return self._update_usage(tenant.name, day, choose_amounts)

    def _update_usage(
        self, tenant: str, day: str, choose_amounts: Callable[[Mapping[str, int]], dict[Measure, int]]
    ) -> dict[Measure, int]:
        """Update a day's usage with compare-and-set. Return the added amounts."""
        for _ in range(1000):
            stored_value = self._key_value_store.get(tenant, SERVER_ENTRY_KIND, USAGE_KEY)
            days = dict((decode(stored_value, Usage) if stored_value else Usage()).days)
            used_amounts = days.get(day, {})
            added = choose_amounts(used_amounts)
            if not any(added.values()):
                return added
            days[day] = {
                name: used_amounts.get(name, 0) + added.get(name, 0)
                for name in MEASURES
                if name in {*used_amounts, *added}
            }
            updated_usage = Usage(days=dict(sorted(days.items())[-MAX_USAGE_DAYS:]))
            if self._key_value_store.compare_and_set(
                tenant, SERVER_ENTRY_KIND, USAGE_KEY, stored_value, encode(updated_usage)
            ):
                return added
        raise store_unavailable("The quota could not be updated: too many concurrent updates. Retry later.")


def _refund_amounts(remaining: Mapping[Measure, int], used_amounts: Mapping[str, int]) -> dict[Measure, int]:
    return {name: -min(amount, used_amounts.get(name, 0)) for name, amount in remaining.items()}
