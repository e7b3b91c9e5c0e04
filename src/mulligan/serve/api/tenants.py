"""Tenants: settings for retention, quotas, redaction and alerts of each owner of records.

Only the token determines the tenant of a request. The tenant `local` always exists. A tenant without settings gets the
defaults.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from mulligan.failure import SettingsError
from mulligan.records import Record, decode, encode
from mulligan.remember import store
from mulligan.remember.audit import entry
from mulligan.remember.store import DAY, LOCAL, Noted, Retention, Shelf
from mulligan.serve.api.tokens import FRESH, KIND, OF_THE_SERVER

KEY = "tenants"
NAME = re.compile(r"[\w.@:/-]{1,80}", re.ASCII)
"""Allowed tenant names."""
Measure = Literal["requests", "records", "bytes"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
KEEPS = ("failures", "successes", "hours")
"""Record types with their own age limit, as in `Retention`."""


class Tenant(Record, frozen=True):
    """Settings of one tenant. Unset values use the defaults."""

    name: str
    created: int = 0
    note: str = ""
    """Description for operators."""
    keeps: Mapping[str, int | None] = msgspec.field(default_factory=dict)
    """Days of retention by record type: failures, successes, hourly counters. `None` means forever."""
    quotas: Mapping[Measure, int] = msgspec.field(default_factory=dict)
    """Limits per UTC day."""
    listed: tuple[str, ...] = ()
    """Arguments stored unredacted at level shared, in addition to the server's settings."""
    alert_command: str = ""
    alert_webhook: str = ""

    @property
    def retention(self) -> Retention:
        aged: dict[str, Any] = {name: None if days is None else days * DAY for name, days in self.keeps.items()}
        return Retention(**aged)


class Tenants:
    """Tenants of a store, cached for a second because every request needs them."""

    def __init__(self, shelf: Shelf, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._shelf = shelf
        self._monotonic = monotonic
        self._known: dict[str, Tenant] = {}
        self._read_at = float("-inf")

    def all(self) -> list[Tenant]:
        """Return the tenants with settings, sorted by name."""
        kept = self._shelf.get(OF_THE_SERVER, KIND, KEY)
        return decode(kept, list[Tenant]) if kept else []

    def everybody(self) -> list[Tenant]:
        """Return all tenants, including `local`."""
        made = {LOCAL: Tenant(LOCAL)} | {each.name: each for each in self.all()}
        return [made[name] for name in sorted(made)]

    def find(self, name: str) -> Tenant | None:
        """Read a tenant from the store. `local` always exists."""
        return next((each for each in self.all() if each.name == name), Tenant(name) if name == LOCAL else None)

    def create(self, tenant: Tenant) -> None:
        def added(known: list[Tenant]) -> list[Tenant]:
            if any(each.name == tenant.name for each in known) or tenant.name == LOCAL:
                raise SettingsError(f"there is a tenant {tenant.name!r}. Change it: mulligan tenant set {tenant.name}")
            return [*known, tenant]

        self._change(added, lambda: _noted("tenant.create", Tenant(tenant.name), tenant))

    def set(self, name: str, change: Callable[[Tenant], Tenant]) -> Tenant:
        """Change the settings of a tenant. Return the new settings."""
        result: list[Tenant] = []

        def changed(known: list[Tenant]) -> list[Tenant]:
            old = next((each for each in known if each.name == name), Tenant(name) if name == LOCAL else None)
            if old is None:
                raise unknown(name)
            result[:] = [old, change(old)]
            return [*(each for each in known if each.name != name), result[1]]

        self._change(changed, lambda: _noted("tenant.set", *result))
        return result[1]

    def remove(self, name: str) -> Tenant:
        """Remove the settings of a tenant. Its records stay in the store."""
        gone: list[Tenant] = []

        def without(known: list[Tenant]) -> list[Tenant]:
            gone[:] = [each for each in known if each.name == name]
            if not gone:
                raise unknown(name)
            return [each for each in known if each.name != name]

        self._change(without, lambda: _noted("tenant.remove", gone[0], gone[0]))
        return gone[0]

    def _change(self, changed: Callable[[list[Tenant]], list[Tenant]], noted: Callable[[], Noted]) -> None:
        for _ in range(100):
            known = self._shelf.get(OF_THE_SERVER, KIND, KEY)
            now = sorted(changed(decode(known, list[Tenant]) if known else []), key=lambda each: each.name)
            if self._shelf.swap(OF_THE_SERVER, KIND, KEY, known, encode(now), noted()):
                return
        raise SettingsError("the tenants are being changed by somebody else all the time. Try again.")

    @property
    def is_stale(self) -> bool:
        return self._monotonic() - self._read_at > FRESH

    def refresh(self) -> None:
        read_at = self._monotonic()
        self._known = {each.name: each for each in self.all()}
        self._read_at = read_at

    def of(self, name: str) -> Tenant:
        """Return the settings of a tenant as of the last refresh."""
        return self._known.get(name) or Tenant(name)


def _noted(do: str, before: Tenant, after: Tenant) -> Noted:
    """Build the audit note for a change. Alert targets are named without values, because they may contain secrets."""
    plain = ("note", "keeps", "quotas", "listed")
    told = [
        f"{name} {encode(value).decode()}" if name in plain else name
        for name in after.__struct_fields__
        if (value := getattr(after, name)) != getattr(before, name) and name != "created"
    ]
    return Noted(after.name, entry(do, store.now(), after.name, ", ".join(told)))


def unknown(name: str) -> SettingsError:
    return SettingsError(f"there is no tenant {name!r}. See them: mulligan tenant list")


def with_quotas(tenant: Tenant, given: Mapping[Measure, int | None]) -> Tenant:
    """Return the tenant with changed quotas. `None` removes a quota."""
    quotas: dict[Measure, int] = dict(tenant.quotas)
    for measure, most in given.items():
        quotas.pop(measure, None)
        if most is not None:
            quotas[measure] = most
    return replace(tenant, quotas=quotas)


def with_keeps(tenant: Tenant, given: Mapping[str, int | None], usual: Sequence[str] = ()) -> Tenant:
    """Return the tenant with changed retention. Fields in `reset_fields` return to the default."""
    keeps = {name: days for name, days in {**tenant.keeps, **given}.items() if name not in usual}
    return replace(tenant, keeps=keeps)
