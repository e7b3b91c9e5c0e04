"""Tenants: settings for retention, quotas, redaction and alerts of each owner of records.

Only the token determines the tenant of a request. The tenant `local` always exists. A tenant without settings gets the
defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from mulligan.core.failure import SettingsError
from mulligan.core.records import Record, encode
from mulligan.server.entries import CachedRecords
from mulligan.store import base
from mulligan.store.audit import build_entry
from mulligan.store.base import DAY, DEFAULT_TENANT, AuditNote, KeyValueStore, Retention

TENANTS_KEY = "tenants"
TENANT_NAME_PATTERN = re.compile(r"[\w.@:/-]{1,80}", re.ASCII)
"""Allowed tenant names."""
Measure = Literal["requests", "records", "bytes"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
RETENTION_FIELDS = ("keep_failures", "keep_successes", "keep_hourly")
"""Record types with their own age limit, as in `Retention`."""


class Tenant(Record, frozen=True):
    """Settings of one tenant. Unset values use the defaults."""

    name: str
    created_at: int = 0
    note: str = ""
    """Description for operators."""
    retention_days: Mapping[str, int | None] = msgspec.field(default_factory=dict)
    """Days of retention by record type: failures, successes, hourly counters. `None` means forever."""
    quotas: Mapping[Measure, int] = msgspec.field(default_factory=dict)
    """Limits per UTC day."""
    unredacted_arguments: tuple[str, ...] = ()
    """Arguments stored unredacted at level shared, in addition to the server's settings."""
    alert_command: str = ""
    alert_webhook: str = ""

    @property
    def retention(self) -> Retention:
        ages: dict[str, Any] = {
            name: None if days is None else days * DAY for name, days in self.retention_days.items()
        }
        return Retention(**ages)


class Tenants(CachedRecords[Tenant]):
    """Tenants of a store. `local` always exists."""

    def __init__(self, key_value_store: KeyValueStore) -> None:
        super().__init__(key_value_store, TENANTS_KEY, Tenant)
        self._tenants_by_name: dict[str, Tenant] = {}

    def _cache(self, records: Sequence[Tenant]) -> None:
        self._tenants_by_name = {tenant.name: tenant for tenant in records}

    def settings_for(self, name: str) -> Tenant:
        """Return the settings of a tenant as of the last refresh."""
        return self._tenants_by_name.get(name) or Tenant(name)

    def load_all_with_default(self) -> list[Tenant]:
        """Return all tenants, including `local`."""
        tenants_by_name = {DEFAULT_TENANT: Tenant(DEFAULT_TENANT)} | {tenant.name: tenant for tenant in self.load_all()}
        return [tenants_by_name[name] for name in sorted(tenants_by_name)]

    def find(self, name: str) -> Tenant | None:
        """Read a tenant from the store."""
        return _find_tenant(self.load_all(), name)

    def create(self, tenant: Tenant) -> None:
        def add_tenant(tenants: list[Tenant]) -> list[Tenant]:
            if _find_tenant(tenants, tenant.name) is not None:
                raise SettingsError(
                    f"Tenant {tenant.name!r} already exists. Change it: mulligan tenant set {tenant.name}"
                )
            return _sort_by_name([*tenants, tenant])

        self._change(add_tenant, lambda: _build_audit_note("tenant.create", Tenant(tenant.name), tenant))

    def set(self, name: str, change: Callable[[Tenant], Tenant]) -> Tenant:
        """Change the settings of a tenant. Return the new settings."""
        result: list[Tenant] = []

        def replace_tenant(tenants: list[Tenant]) -> list[Tenant]:
            current_tenant = _find_tenant(tenants, name)
            if current_tenant is None:
                raise unknown_tenant(name)
            result[:] = [current_tenant, change(current_tenant)]
            return _sort_by_name([*(tenant for tenant in tenants if tenant.name != name), result[1]])

        self._change(replace_tenant, lambda: _build_audit_note("tenant.set", *result))
        return result[1]

    def remove(self, name: str) -> Tenant:
        """Remove the settings of a tenant. Its records stay in the store."""
        removed: list[Tenant] = []

        def drop_tenant(tenants: list[Tenant]) -> list[Tenant]:
            removed[:] = [tenant for tenant in tenants if tenant.name == name]
            if not removed:
                raise unknown_tenant(name)
            return [tenant for tenant in tenants if tenant.name != name]

        self._change(drop_tenant, lambda: _build_audit_note("tenant.remove", removed[0], removed[0]))
        return removed[0]


def _find_tenant(tenants: Sequence[Tenant], name: str) -> Tenant | None:
    default = Tenant(name) if name == DEFAULT_TENANT else None
    return next((tenant for tenant in tenants if tenant.name == name), default)


def _sort_by_name(tenants: list[Tenant]) -> list[Tenant]:
    return sorted(tenants, key=lambda tenant: tenant.name)


def _build_audit_note(do: str, before: Tenant, after: Tenant) -> AuditNote:
    """Build the audit note for a change. Alert targets are named without values, because they may contain secrets."""
    value_fields = ("note", "retention_days", "quotas", "unredacted_arguments")
    changes = [
        f"{name} {encode(value).decode()}" if name in value_fields else name
        for name in after.__struct_fields__
        if (value := getattr(after, name)) != getattr(before, name) and name != "created_at"
    ]
    return AuditNote(after.name, build_entry(do, base.now(), after.name, ", ".join(changes)))


def unknown_tenant(name: str) -> SettingsError:
    return SettingsError(f"No tenant {name!r}. List all: mulligan tenant list")


def with_quotas(tenant: Tenant, changes: Mapping[Measure, int | None]) -> Tenant:
    """Return the tenant with changed quotas. `None` removes a quota."""
    quotas: dict[Measure, int] = dict(tenant.quotas)
    for measure, limit in changes.items():
        quotas.pop(measure, None)
        if limit is not None:
            quotas[measure] = limit
    return replace(tenant, quotas=quotas)


def with_retention_days(tenant: Tenant, changes: Mapping[str, int | None], reset_fields: Sequence[str] = ()) -> Tenant:
    """Return the tenant with changed retention. Fields in `reset_fields` return to the default."""
    retention_days = {
        name: days for name, days in {**tenant.retention_days, **changes}.items() if name not in reset_fields
    }
    return replace(tenant, retention_days=retention_days)
