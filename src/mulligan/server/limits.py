"""Limits of callers: records per second, failed sign-ins per minute, and daily quotas of tenants.

Quotas are shared by all processes of one store. Each process reserves a hundredth of the quota at a time from one
counter in the store and spends it locally. The total therefore never exceeds the quota, with any number of processes.
What a killed process had reserved stays unused until the next day.

The rate limit is shared, too, without a statement per request: a process decides by its own copy of a caller's bucket.
At most once a second it subtracts from the bucket in the store what it let through, and copies the result, which has
what other processes let through. Meanwhile together they may let through too much, and then less until that is made up.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping

import msgspec

from mulligan.contract.store import DAY, KeyValueStore
from mulligan.core.failure import StoreError
from mulligan.core.records import Record, decode, encode
from mulligan.server.bodies import ApiError, rate_limited, store_unavailable
from mulligan.server.tenants import MEASURES, SERVER_ENTRY_KIND, Measure, Tenant, update_entry

USAGE_KEY = "usage"
BUCKETS_KEY = "rate limit"
REPORT_INTERVAL_SECONDS = 1.0
"""Between two reports of a process about what it let through."""
REPORT_RATIO = 0.01
"""Share of a full bucket that a caller must have used before a process reports it."""
MAX_RETRY_AFTER_SECONDS = 3600
"""Upper limit of Retry-After: an operator may raise the quota before the day ends."""
MAX_ADDRESS_FAILURES = 10
"""Limit of failed sign-ins per minute from one address."""
FAILURE_WINDOW_SECONDS = 60.0
MAX_LIVE_STREAMS = 10
"""Limit of open event streams per token, or per browser without one."""


class Usage(Record, frozen=True):
    """Used amounts of a tenant by day. Only measures with a quota are counted."""

    days: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


def day_of(now: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(now // 1000))


def load_usage(key_value_store: KeyValueStore, tenant: str) -> Usage:
    stored_value = key_value_store.get(tenant, SERVER_ENTRY_KIND, USAGE_KEY)
    return decode(stored_value, Usage) if stored_value else Usage()


class Quotas:
    """Quota accounting of one process."""

    def __init__(self, key_value_store: KeyValueStore) -> None:
        self._key_value_store = key_value_store
        self._reserved: dict[str, tuple[str, dict[Measure, int]]] = {}
        """Amounts that this process reserved and has not spent, by tenant, with their day."""
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
                message = f"The request exceeds the daily quota of {tenant.quotas[name]:,} {name}. Send less at once."
                raise ApiError(413, "too_large", message)  # not 429, because a retry can never succeed
        while not self.spend_reserved(tenant, amounts, now):
            with self._lock:
                remaining = self._remaining_today(tenant.name, now)
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
            exhausted = next((name for name, amount in missing.items() if granted[name] < amount), None)
            if exhausted is not None:
                if self.spend_reserved(tenant, amounts, now):
                    return
                message = f"The daily quota of {tenant.quotas[exhausted]:,} {exhausted} is exhausted."
                seconds = min(MAX_RETRY_AFTER_SECONDS, (DAY - now % DAY) // 1000 + 1)
                headers = {"Retry-After": str(seconds)}
                raise ApiError(429, "quota", f"{message} It resets at 00:00 UTC.", headers=headers)

    def close(self) -> None:
        """Return unspent reserves to the store."""
        with self._lock:
            reserved, self._reserved = self._reserved, {}
        for tenant, (day, remaining) in reserved.items():

            def refund(usage: Mapping[str, int], remaining: dict[Measure, int] = remaining) -> dict[Measure, int]:
                return {name: -min(amount, usage.get(name, 0)) for name, amount in remaining.items()}

            if any(remaining.values()):
                self._update_usage(tenant, day, refund)

    def _remaining_today(self, tenant: str, now: int) -> dict[Measure, int]:
        day = day_of(now)
        if tenant not in self._reserved or self._reserved[tenant][0] != day:
            self._reserved[tenant] = (day, {})
        return self._reserved[tenant][1]

    def _reserve(self, tenant: Tenant, missing: Mapping[Measure, int], day: str) -> dict[Measure, int]:
        def choose_amounts(usage: Mapping[str, int]) -> dict[Measure, int]:
            amounts = {}
            for name, amount in missing.items():
                quota = tenant.quotas[name]
                # A process reserves the quota divided by this number at a time.
                amounts[name] = min(max(amount, quota // 100), max(0, quota - usage.get(name, 0)))
            return amounts

        return self._update_usage(tenant.name, day, choose_amounts)

    def _update_usage(
        self, tenant: str, day: str, choose_amounts: Callable[[Mapping[str, int]], dict[Measure, int]]
    ) -> dict[Measure, int]:
        """Add amounts to a day's usage. Return the added amounts."""
        added: dict[Measure, int] = {}

        def add_amounts(stored_value: bytes | None) -> bytes | None:
            days = dict((decode(stored_value, Usage) if stored_value else Usage()).days)
            usage = days.get(day, {})
            added.clear()
            added.update(choose_amounts(usage))
            if not any(added.values()):
                return None
            days[day] = {
                name: usage.get(name, 0) + added.get(name, 0) for name in MEASURES if name in usage or name in added
            }
            return encode(Usage(days=dict(sorted(days.items())[-31:])))  # days of usage that the store holds

        if not update_entry(self._key_value_store, tenant, USAGE_KEY, add_amounts):
            raise store_unavailable("The quota could not be updated: too many concurrent updates. Retry later.")
        return added


class _CallerBuckets:
    """Token bucket per caller. The least recently used ones are dropped above a limit."""

    def __init__(self, capacity: float, rate: float, monotonic: Callable[[], float]) -> None:
        self._capacity, self._rate, self._monotonic = capacity, rate, monotonic
        self._buckets: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def remaining(self, caller: object) -> float:
        now = self._monotonic()
        tokens, at = self._buckets.get(caller, (self._capacity, now))
        return min(self._capacity, tokens + (now - at) * self._rate)

    def retry_after(self, caller: object) -> int:
        """Return the seconds until a token is available, at least 1."""
        return max(1, math.ceil((1 - self.remaining(caller)) / self._rate))

    def take(self, caller: object, tokens: float) -> None:
        self.set_remaining(caller, self.remaining(caller) - tokens)

    def set_remaining(self, caller: object, tokens: float) -> None:
        self._buckets[caller] = (tokens, self._monotonic())
        self._buckets.move_to_end(caller)
        while len(self._buckets) > 10_000:
            self._buckets.popitem(last=False)


class SharedBucket(Record, frozen=True):
    """Token bucket of a caller in the store."""

    tokens: float
    """Below 0 after processes that did not know of each other let through too much."""
    refilled_at: int


class SharedBuckets(Record, frozen=True):
    """Token buckets of a tenant by principal, without full ones."""

    buckets: dict[str, SharedBucket] = msgspec.field(default_factory=dict)


class RateLimiter:
    """Rate limit of records per caller, with bursts. All processes of one store share it, as the module says."""

    def __init__(self, rate: float = 20_000, monotonic: Callable[[], float] = time.monotonic) -> None:
        # The default is several times what one process records.
        # Burst size as seconds of the sustained rate, for records queued while the server was unavailable.
        self._rate, self._capacity, self._monotonic = rate, rate * 10, monotonic
        self._buckets = _CallerBuckets(self._capacity, rate, monotonic)
        self._unreported: dict[tuple[str, str], int] = {}
        """Records let through since the last report, by caller."""
        self._due_tenants: set[str] = set()
        self._reported_at = float("-inf")
        self._lock = threading.Lock()

    @property
    def is_report_due(self) -> bool:
        return bool(self._due_tenants) and self._monotonic() - self._reported_at >= REPORT_INTERVAL_SECONDS

    def take(self, tenant: str, principal: str, records: int) -> None:
        """Take tokens for the records or raise `ApiError`. A caller with tokens left may overdraw by one body."""
        caller = (tenant, principal)
        with self._lock:
            if (remaining := self._buckets.remaining(caller)) <= 0:
                raise rate_limited(self._buckets.retry_after(caller))
            self._buckets.set_remaining(caller, remaining - records)
            unreported = self._unreported[caller] = self._unreported.get(caller, 0) + records
            if unreported >= self._capacity * REPORT_RATIO:
                self._due_tenants.add(tenant)

    def report(self, key_value_store: KeyValueStore, now: int) -> None:
        """Subtract from the buckets in the store what this process let through, and copy them.

        While the store is unavailable, this process limits alone.
        """
        with self._lock:
            self._reported_at = self._monotonic()
            tenants, self._due_tenants = self._due_tenants, set()
        for tenant in tenants:
            with self._lock:
                callers = [caller for caller in self._unreported if caller[0] == tenant]
                spent_tokens = {caller[1]: self._unreported.pop(caller) for caller in callers}
            try:
                buckets = self._update_buckets(key_value_store, tenant, spent_tokens, now)
            except StoreError:
                buckets = None
            with self._lock:
                if buckets is None:
                    self._due_tenants.add(tenant)
                for principal, records in spent_tokens.items():
                    caller = (tenant, principal)
                    unreported = self._unreported.get(caller, 0)
                    if buckets is None:
                        self._unreported[caller] = unreported + records
                    else:
                        self._buckets.set_remaining(caller, buckets[principal].tokens - unreported)

    def _update_buckets(
        self, key_value_store: KeyValueStore, tenant: str, spent_tokens: Mapping[str, int], now: int
    ) -> dict[str, SharedBucket] | None:
        """Subtract the spent tokens in the store. Return the buckets, or `None` if too many processes update them."""
        buckets: dict[str, SharedBucket] = {}

        def subtract(stored_value: bytes | None) -> bytes:
            buckets.clear()
            buckets.update((decode(stored_value, SharedBuckets) if stored_value else SharedBuckets()).buckets)
            for principal in (*buckets, *(name for name in spent_tokens if name not in buckets)):
                bucket = buckets.get(principal, SharedBucket(self._capacity, now))
                # The clocks of processes differ: the latest one refills.
                refill = max(0, now - bucket.refilled_at) / 1000 * self._rate
                tokens = min(self._capacity, bucket.tokens + refill) - spent_tokens.get(principal, 0)
                buckets[principal] = SharedBucket(tokens, max(now, bucket.refilled_at))
            return encode(
                SharedBuckets({name: bucket for name, bucket in buckets.items() if bucket.tokens < self._capacity})
            )

        return buckets if update_entry(key_value_store, tenant, BUCKETS_KEY, subtract) else None


class SignInLimiter:
    """Rate limit for failed sign-ins from one address. A valid token works at any time.

    Each process counts for itself: tokens have 160 random bits. There is no limit of all addresses together, which one
    attacker could use to lock out everyone.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._buckets = _CallerBuckets(MAX_ADDRESS_FAILURES, MAX_ADDRESS_FAILURES / FAILURE_WINDOW_SECONDS, monotonic)

    def record_failure(self, address: str) -> None:
        """Count a failed sign-in. Raise `ApiError` with Retry-After if there were too many."""
        if self._buckets.remaining(address) < 1:
            message = "Too many failed sign-ins from this address. Wait a minute, or use a valid token."
            headers = {"Retry-After": str(self._buckets.retry_after(address))}
            raise ApiError(429, "busy", message, headers=headers)
        self._buckets.take(address, 1)


class StreamLimiter:
    """Limit of open event streams per caller: each holds a connection and polls the store."""

    def __init__(self) -> None:
        self._open: Counter[object] = Counter()

    def open(self, caller: object) -> None:
        """Count a stream. Raise `ApiError` if the caller has too many."""
        if self._open[caller] >= MAX_LIVE_STREAMS:
            message = f"Too many live streams: {MAX_LIVE_STREAMS} are open with this token. Close one and try again."
            raise ApiError(429, "busy", message, headers={"Retry-After": "10"})
        self._open[caller] += 1

    def close(self, caller: object) -> None:
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]
