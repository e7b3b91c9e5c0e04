"""Diagnostics of a PostgreSQL store: sizes, partitions, extensions, timeouts, replicas and tenant isolation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import psycopg

from mulligan.store.base import DAY
from mulligan.store.diagnostics import Diagnostics, TableSize, find_pending_migration
from mulligan.store.postgres.partitions import PARTITIONS_AHEAD_DAYS, list_partition_days
from mulligan.store.postgres.pool import Pool, parse_url, translate_errors
from mulligan.store.postgres.postgres_tables import (
    POSTGRES_TABLES,
    is_enforced,
    list_tables,
    measure_database,
    read_schema_version,
    size_function,
)
from mulligan.store.postgres.workers import has_workers, read_workers
from mulligan.store.tables import MIGRATIONS

MAX_REPLICA_LAG_SECONDS = 60.0
"""Maximum delay of a replica."""
MAX_CONNECTION_RATIO = 0.9
"""Share of used connections that is reported as a problem."""
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


def _access_facts(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return whether row security isolates tenants for this role."""
    guarded = list_tables(connection)
    is_any_guarded = any(guarded.values())
    unguarded = sorted(name for name, is_guarded in guarded.items() if not is_guarded)
    bypassed = "bypassed by this role" if is_any_guarded else "off"
    return {
        "role": _fetch_value(connection, "SELECT current_user"),
        "row_security": "in force" if is_enforced(connection) else bypassed,
        "unguarded": unguarded if is_any_guarded else [],
    }


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
    if facts["connections"] >= MAX_CONNECTION_RATIO * facts["max_connections"]:
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
        if replica["lag_seconds"] > MAX_REPLICA_LAG_SECONDS
    ]
    problems += [
        f"The worker {worker['name']} does not answer ({worker['detail']}). Requests of the tenants on it get 503, and "
        "their records wait in journals, until it is back."
        for worker in facts.get("workers", ())
        if not worker["reachable"]
    ]
    if facts.get("unguarded"):
        problems.append(f"Row-level security for tenants is off in: {', '.join(facts['unguarded'])}.")
    return problems
