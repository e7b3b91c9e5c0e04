"""Row-level security, a second isolation of tenants: PostgreSQL itself hides the rows of all other tenants.

Every query names its tenant; should one forget to, the policy of each table still applies. It depends on a setting with
the current tenants, which the store sets in each write transaction and on each connection before reading. Without the
setting, no row is visible. It applies to the owner of the tables, too, but not to superusers and roles with BYPASSRLS:
`is_enforced` tells whether it applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from mulligan.core.failure import StoreError

SETTING = "mulligan.tenants"
TENANT_SEPARATOR = "\x1f"
ALL_TENANTS = "*"
"""Selects all tenants, for work on the whole store such as migration and copying. No tenant has this name."""
POLICY_NAME = "of_tenant"
_CURRENT_TENANTS_SQL = f"(SELECT current_setting('{SETTING}', true))"
_IS_ALLOWED_SQL = (
    f"(tenant = ANY (CAST((SELECT string_to_array(current_setting('{SETTING}', true), chr(31))) AS text[])) "
    f"OR {_CURRENT_TENANTS_SQL} = '{ALL_TENANTS}')"
)
"""A subquery, so that PostgreSQL evaluates it once per statement instead of once per row."""
SHARED = {"meta": "OR tenant = ''"}
"""Exceptions for rows of the store itself, such as the number of erasures."""
_TABLES_SQL = (
    "SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity AND EXISTS "
    f"(SELECT 1 FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = '{POLICY_NAME}') FROM pg_class c "
    "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped "
    "WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') ORDER BY c.relname"
)


def list_tables(connection: psycopg.Connection[Any]) -> dict[str, bool]:
    """Return every table with tenant rows, partitions included, and whether row security is enabled."""
    return dict(connection.execute(_TABLES_SQL).fetchall())


def enable_row_security(connection: psycopg.Connection[Any], *names: str) -> None:
    """Enable row security for these tables, or for all that lack it. Requires a transaction of the owner."""
    for name in names or [name for name, is_guarded in list_tables(connection).items() if not is_guarded]:
        allowed = f"({_IS_ALLOWED_SQL} {SHARED.get(name, '')})"
        connection.execute(f'ALTER TABLE "{name}" ENABLE ROW LEVEL SECURITY')
        connection.execute(f'ALTER TABLE "{name}" FORCE ROW LEVEL SECURITY')
        connection.execute(f'DROP POLICY IF EXISTS {POLICY_NAME} ON "{name}"')
        connection.execute(f'CREATE POLICY {POLICY_NAME} ON "{name}" USING {allowed} WITH CHECK {allowed}')


def set_tenants(connection: psycopg.Connection[Any], tenants: Sequence[str], is_local: bool) -> None:
    """Set the current tenants for this transaction, or until they are set again."""
    if invalid_names := [name for name in tenants if TENANT_SEPARATOR in name or name in (ALL_TENANTS, "\x1e")]:
        raise StoreError(f"Invalid tenant name {invalid_names[0][:80]!r}.")
    # A terminator that is no tenant name: without it, the tenant "" would be an empty list.
    _set_setting(connection, TENANT_SEPARATOR.join((*tenants, "\x1e")), is_local)


def set_all_tenants(connection: psycopg.Connection[Any]) -> None:
    """Select all tenants for work on the whole store, within a transaction."""
    _set_setting(connection, ALL_TENANTS, is_local=True)


def _set_setting(connection: psycopg.Connection[Any], value: str, is_local: bool) -> None:
    connection.execute(f"SELECT set_config('{SETTING}', %s, %s)", (value, is_local))


def is_enforced(connection: psycopg.Connection[Any]) -> bool:
    """Return whether row security applies to the connected role."""
    row = connection.execute("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user").fetchone()
    return row is not None and not row[0] and all(list_tables(connection).values())
