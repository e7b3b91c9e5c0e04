"""Row-level security, the second line between tenants: PostgreSQL itself shows a statement no row of anybody else.

Every question names its tenant; should one ever forget to, there is a policy on every table. It goes by a setting that
the store makes in each transaction that writes, and on each connection before it reads: the tenants that are meant, and
nobody where nothing was said. It holds for the tables' owner too, but for no superuser and no role with BYPASSRLS:
`holds` says whether it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from mulligan.failure import StoreError

SETTING = "mulligan.tenants"
APART = "\x1f"
EVERYBODY = "*"
"""Who is meant by work on the store as a whole: a migration, a copy. No tenant is called so."""
POLICY = "of_tenant"
_MEANT = f"(SELECT current_setting('{SETTING}', true))"
_ALLOWED = (
    f"(tenant = ANY (CAST((SELECT string_to_array(current_setting('{SETTING}', true), chr(31))) AS text[])) "
    f"OR {_MEANT} = '{EVERYBODY}')"
)
"""Looked up once a statement, and not once a row."""
SHARED = {"meta": "OR tenant = ''"}
"""What a store knows of itself, whoever asks: how often something was forgotten."""
_TABLES = (
    "SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity AND EXISTS "
    f"(SELECT 1 FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = '{POLICY}') FROM pg_class c "
    "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped "
    "WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') ORDER BY c.relname"
)


def tables(made: psycopg.Connection[Any]) -> dict[str, bool]:
    """Every table with rows of tenants, parts of others too, and whether it is guarded."""
    return dict(made.execute(_TABLES).fetchall())


def guard(made: psycopg.Connection[Any], *names: str) -> None:
    """Guards these tables, or all that are not; within a transaction of the owner's."""
    for name in names or [name for name, is_guarded in tables(made).items() if not is_guarded]:
        allowed = f"({_ALLOWED} {SHARED.get(name, '')})"
        made.execute(f'ALTER TABLE "{name}" ENABLE ROW LEVEL SECURITY')
        made.execute(f'ALTER TABLE "{name}" FORCE ROW LEVEL SECURITY')
        made.execute(f'DROP POLICY IF EXISTS {POLICY} ON "{name}"')
        made.execute(f'CREATE POLICY {POLICY} ON "{name}" USING {allowed} WITH CHECK {allowed}')


def mean(made: psycopg.Connection[Any], tenants: Sequence[str], is_local: bool) -> None:
    """From now on these are meant: within this transaction, or until others are."""
    if strange := [name for name in tenants if APART in name or name in (EVERYBODY, "\x1e")]:
        raise StoreError(f"no tenant is called {strange[0][:80]!r}.")
    # Nobody's name at the end: without it the tenant "", which has what is the server's own, would be no tenant at all.
    _set(made, APART.join((*tenants, "\x1e")), is_local)


def mean_everybody(made: psycopg.Connection[Any]) -> None:
    """The same for work on the store as a whole, within a transaction."""
    _set(made, EVERYBODY, is_local=True)


def _set(made: psycopg.Connection[Any], meant: str, is_local: bool) -> None:
    made.execute(f"SELECT set_config('{SETTING}', %s, %s)", (meant, is_local))


def holds(made: psycopg.Connection[Any]) -> bool:
    """Whether it holds for whoever is connected."""
    row = made.execute("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user").fetchone()
    return row is not None and not row[0] and all(tables(made).values())
