"""Diagnostics of a PostgreSQL store: sizes, partitions, extensions, timeouts, replicas and tenant isolation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg.sql import Identifier, quote

from mulligan.contract.store import DAY
from mulligan.store.diagnostics import Diagnostics, TableSize, find_pending_migration
from mulligan.store.postgres.partitions import PARTITIONS_AHEAD_DAYS, list_partition_days
from mulligan.store.postgres.pool import Pool, parse_url, translate_errors
from mulligan.store.postgres.postgres_tables import (
    POSTGRES_TABLES,
    enable_row_security,
    list_tables,
    measure_database,
    read_schema_version,
    set_all_tenants,
    size_function,
)
from mulligan.store.postgres.workers import has_workers, read_workers
from mulligan.store.tables import MIGRATIONS

EXTENSIONS = ("pg_trgm", "btree_gist")
TIMEOUT_SETTINGS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
"""As set for the store's own sessions."""
DURABILITY_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")

_TABLES = (
    "FROM pg_class c WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition "
    "AND c.relnamespace = current_schema()::regnamespace"
)


def diagnose_postgres(url: str, now: int) -> Diagnostics:
    """Check a PostgreSQL store without changing it: an outdated schema is not migrated."""
    pool = Pool(url, 1)
    where, replica = pool.where, pool.url.replica
    try:
        with translate_errors(where), pool.using() as connection, connection.transaction():
            raw_connection = connection.raw_connection
            schema = read_schema_version(raw_connection, where)
            facts: dict[str, Any] = {
                "pool": pool.url.pool_size,
                "pooler": connection.is_pooled,
                **_server_facts(raw_connection),
            }
            workers = read_workers(raw_connection)
            is_complete = all(worker.reachable for worker in workers)
            if schema:
                facts |= _partition_facts(raw_connection, now, is_complete) | _access_facts(raw_connection)
            if schema and is_complete:
                facts["tenants"] = _count_runs(raw_connection)
            if workers:
                facts["workers"] = [msgspec.structs.asdict(worker) for worker in workers]
            facts |= _replication_facts(raw_connection) | {"replica": parse_url(replica).where if replica else ""}
            return Diagnostics(
                engine=f"PostgreSQL {_fetch_value(raw_connection, 'SHOW server_version')}",
                schema=schema,
                newest=len(MIGRATIONS),
                bytes=measure_database(raw_connection) if is_complete else sum(worker.bytes or 0 for worker in workers),
                tables=_measure_tables(raw_connection) if schema and is_complete else (),
                facts=facts,
                problems=(*find_pending_migration(schema), *_find_problems(facts)),
            )
    finally:
        pool.close()


def read_schema_version_at(url: str) -> int:
    """Return the schema version of a database without changing it."""
    pool = Pool(url, 1)
    try:
        with translate_errors(pool.where), pool.using() as connection:
            return read_schema_version(connection.raw_connection, pool.where)
    finally:
        pool.close()


def _quote_name(name: str, connection: psycopg.Connection[Any]) -> str:
    return str(Identifier(name).as_string(connection))


def _fetch_value(connection: psycopg.Connection[Any], sql: str, values: Sequence[Any] = ()) -> Any:
    row = connection.execute(sql, values).fetchone()
    return row[0] if row else None


def _server_facts(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    installed = {name for (name,) in connection.execute("SELECT extname FROM pg_extension").fetchall()}
    available = {name for (name,) in connection.execute("SELECT name FROM pg_available_extensions").fetchall()}
    return {
        "extensions": {
            name: "installed" if name in installed else "available" if name in available else "not there"
            for name in EXTENSIONS
        },
        "connections": int(
            _fetch_value(connection, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        ),
        "max_connections": int(_fetch_value(connection, "SHOW max_connections")),
        "timeouts": {name: _fetch_value(connection, f"SHOW {name}") for name in TIMEOUT_SETTINGS},
        "durable": {name: _fetch_value(connection, f"SHOW {name}") for name in DURABILITY_SETTINGS},
        # A dump leaves no trace in the database, so the last backup is unknown.
        "last_backup": "unknown",
        "archived": _fetch_value(
            connection, "SELECT extract(epoch FROM last_archived_time)::bigint * 1000 FROM pg_stat_archiver"
        ),
    }


def _partition_facts(connection: psycopg.Connection[Any], now: int, is_complete: bool) -> dict[str, Any]:
    """Return facts about partitions. Unless all workers answer, steps outside of partitions cannot be counted."""
    days, today = list_partition_days(connection), now // DAY
    return {
        "parts": len(days),
        "parts_ahead": sum(day > today for day in days),
        "has_today": today in days,
        "steps_without_part": int(
            _fetch_value(connection, "SELECT count(*) FROM (SELECT 1 FROM steps_default LIMIT 1000000) AS latest")
        )
        if is_complete
        else 0,
    }


def find_isolation_problems(url: str) -> list[str]:
    """Return why PostgreSQL itself does not keep the tenants of a store apart, with the commands that repair it."""
    pool = Pool(url, 1)
    try:
        with translate_errors(pool.where), pool.using() as connection:
            return _find_isolation_problems(_access_facts(connection.raw_connection))
    finally:
        pool.close()


def _access_facts(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return whether row security isolates tenants for this role, and which SQL makes it an ordinary one."""
    guarded = list_tables(connection)
    unguarded = sorted(name for name, is_guarded in guarded.items() if not is_guarded)
    role, is_superuser, has_bypass, is_first_role = connection.execute(
        "SELECT rolname, rolsuper, rolbypassrls, oid = 10 FROM pg_roles WHERE rolname = current_user"
    ).fetchone() or ("", False, False, False)
    reason = "it is a superuser" if is_superuser else "it has the attribute BYPASSRLS" if has_bypass else ""
    state = "in force"
    if unguarded:
        state = "off in some tables" if any(guarded.values()) else "off"
    return {
        "role": role,
        "row_security": "bypassed by this role" if reason else state,
        "bypass_reason": reason,
        "ordinary_role_sql": _build_ordinary_role_sql(connection, role, is_first_role) if reason else [],
        "unguarded": unguarded,
    }


def _build_ordinary_role_sql(connection: psycopg.Connection[Any], role: str, is_first_role: bool) -> list[str]:
    """Return the statements for a superuser after which mulligan can use its tables as an ordinary role.

    The first role of a PostgreSQL installation stays a superuser, so the tables go to a new one.
    """
    new_role = f"{role}_app" if is_first_role else role
    name = _quote_name(new_role, connection)
    schema = _fetch_value(connection, "SELECT current_schema()")
    schema_name = _quote_name(schema, connection)
    tables = (
        f"SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = "
        f"{quote(schema_name, connection)}::regnamespace"
    )
    first = f"CREATE ROLE {name} LOGIN PASSWORD 'CHANGE-ME'" if is_first_role else ""
    change_owner = quote(f"ALTER TABLE {schema_name}.%I OWNER TO {name}", connection)
    return [
        first or f"ALTER ROLE {name} NOSUPERUSER NOBYPASSRLS",
        f"GRANT USAGE, CREATE ON SCHEMA {schema_name} TO {name}",
        f"DO $$ DECLARE name text; BEGIN FOR name IN {tables} LOOP EXECUTE format({change_owner}, name); "
        "END LOOP; END $$",
    ]


def _find_isolation_problems(facts: dict[str, Any]) -> list[str]:
    problems = []
    if facts.get("bypass_reason"):
        statements = [f"  {statement};" for statement in facts["ordinary_role_sql"]]
        advice = (
            [] if "NOSUPERUSER" in statements[0] else ["Then use the new role in the store URL, with its password."]
        )
        problems.append(
            "\n".join([
                f"The role {facts['role']} bypasses row-level security, because {facts['bypass_reason']}: PostgreSQL "
                "does not keep tenants apart. Use an ordinary role. As a superuser, run in this database:",
                *statements, *advice,
            ])
        )  # fmt: skip
    if facts.get("unguarded"):
        names = ", ".join(facts["unguarded"])
        problems.append(f"Row-level security for tenants is off in: {names}. Turn it on: mulligan migrate")
    return problems


def enable_missing_row_security(url: str) -> None:
    """Turn on row security in all tables of a store that lack it."""
    pool = Pool(url, 1)
    try:
        with translate_errors(pool.where), pool.using() as connection, connection.raw_connection.transaction():
            enable_row_security(connection.raw_connection)
    finally:
        pool.close()


def _count_runs(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    """Count the runs of all tenants, which the policies allow to work on the whole store."""
    set_all_tenants(connection)
    rows = connection.execute("SELECT tenant, count(*) FROM runs GROUP BY tenant ORDER BY tenant").fetchall()
    return [{"name": tenant, "runs": int(count)} for tenant, count in rows]


def _replication_facts(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    rows = connection.execute(
        "SELECT coalesce(application_name, ''), state, coalesce(extract(epoch FROM replay_lag), 0)::float8 "
        "FROM pg_stat_replication"
    ).fetchall()
    return {
        "replicas": [{"name": name, "state": state, "lag_seconds": lag} for name, state, lag in rows],
        "is_replica": bool(_fetch_value(connection, "SELECT pg_is_in_recovery()")),
    }


def _measure_tables(connection: psycopg.Connection[Any]) -> tuple[TableSize, ...]:
    """Return table sizes, on all workers. Row counts are PostgreSQL's estimates; of workers there are none.

    A partitioned table counts all its partitions.
    """
    if has_workers(connection):
        measured = connection.execute(
            f"SELECT coalesce(p.relname, c.relname), sum({size_function(connection)}(c.oid))::bigint "
            "FROM pg_dist_partition d JOIN pg_class c ON c.oid = d.logicalrelid "
            "LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = i.inhparent "
            "WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace GROUP BY 1"
        ).fetchall()
        return _sort_tables(TableSize(name, size) for name, size in measured)
    rows = connection.execute(
        "SELECT c.relname, CASE c.relkind WHEN 'p' THEN (SELECT coalesce(sum(pg_total_relation_size(t.relid)), 0) "
        "FROM pg_partition_tree(c.oid) t WHERE t.isleaf) ELSE pg_total_relation_size(c.oid) END::bigint, "
        "CASE c.relkind WHEN 'p' THEN (SELECT sum(greatest(p.reltuples, 0)) FROM pg_partition_tree(c.oid) t "
        f"JOIN pg_class p ON p.oid = t.relid WHERE t.isleaf) ELSE greatest(c.reltuples, 0) END::bigint {_TABLES}"
    ).fetchall()
    return _sort_tables(TableSize(name, int(size), int(count or 0)) for name, size, count in rows)


def _sort_tables(tables: Iterable[TableSize]) -> tuple[TableSize, ...]:
    own_tables = [table for table in tables if table.name not in POSTGRES_TABLES]
    return tuple(sorted(own_tables, key=lambda table: (-table.bytes, table.name)))


def _find_problems(facts: dict[str, Any]) -> list[str]:
    problems = []
    if facts["durable"]["fsync"] != "on" or facts["durable"]["full_page_writes"] != "on":
        problems.append(
            "PostgreSQL runs without fsync or full_page_writes: a crash may destroy the database. Turn both on."
        )
    # Share of used connections that is reported as a problem.
    if facts["connections"] >= 0.9 * facts["max_connections"]:
        problems.append(f"{facts['connections']} of {facts['max_connections']} PostgreSQL connections are in use.")
    if "parts" in facts and not facts["has_today"] and facts["parts"]:
        problems.append(
            "Steps of today have no partition of their own: "
            f"no writes for {PARTITIONS_AHEAD_DAYS} days, or the user may not create tables. "
            "They go to the default partition and are pruned row by row."
        )
    problems += [
        f"The replica {replica['name']} is {replica['lag_seconds']:.0f} s behind."
        for replica in facts["replicas"]
        if replica["lag_seconds"] > 60.0  # maximum delay of a replica
    ]
    problems += [
        f"The worker {worker['name']} does not answer ({worker['detail']}). Requests of the tenants on it get 503, and "
        "their records wait in journals, until it is back."
        for worker in facts.get("workers", ())
        if not worker["reachable"]
    ]
    return problems + _find_isolation_problems(facts)
