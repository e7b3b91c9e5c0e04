"""Diagnostics of a PostgreSQL store: sizes, partitions, extensions, timeouts, replicas and tenant isolation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from mulligan.remember.checkup import Checkup, Size, due
from mulligan.remember.postgres.days import AHEAD, parts
from mulligan.remember.postgres.pool import Pool, parts_of, shown, told
from mulligan.remember.postgres.tables import OWN_TABLES, schema_of
from mulligan.remember.store import DAY
from mulligan.remember.tables import MIGRATIONS

LAG = 60.0
"""Maximum delay of a replica."""
NEARLY = 0.9
"""Share of used connections that is reported as a problem."""
EXTENSIONS = ("pg_trgm", "btree_gist")
SETTINGS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
"""As set for the store's own sessions."""
DURABLE = ("fsync", "full_page_writes", "synchronous_commit")

_TABLES = (
    "FROM pg_class c WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition "
    "AND c.relnamespace = current_schema()::regnamespace"
)


def of_postgres(url: str, now: int) -> Checkup:
    """Check a PostgreSQL store without changing it: an outdated schema is not migrated."""
    plain, replica, most = parts_of(url)
    where = shown(plain)
    pool = Pool(plain, 1)
    try:
        with told(where), pool.using() as connection, connection.asking():
            made = connection.made
            schema = schema_of(made, where)
            facts: dict[str, Any] = {"pool": most, "pooler": connection.is_pooled, **_server(made)}
            if schema:
                facts |= _parts(made, now) | _rights(made)
            facts |= _replication(made) | {"replica": shown(replica) if replica else ""}
            return Checkup(
                engine=f"PostgreSQL {_one(made, 'SHOW server_version')}",
                schema=schema,
                newest=len(MIGRATIONS),
                bytes=int(_one(made, "SELECT pg_database_size(current_database())")),
                tables=_sizes(made) if schema else (),
                facts=facts,
                ills=(*due(schema), *_ills(facts)),
            )
    finally:
        pool.close()


def schema_at(url: str) -> int:
    """Return the schema version of a database without changing it."""
    pool = Pool(parts_of(url)[0], 1)
    try:
        with told(pool.where), pool.using() as connection:
            return schema_of(connection.made, pool.where)
    finally:
        pool.close()


def _one(made: psycopg.Connection[Any], sql: str, values: Sequence[Any] = ()) -> Any:
    row = made.execute(sql, values).fetchone()
    return row[0] if row else None


def _server(made: psycopg.Connection[Any]) -> dict[str, Any]:
    installed = {name for (name,) in made.execute("SELECT extname FROM pg_extension").fetchall()}
    available = {name for (name,) in made.execute("SELECT name FROM pg_available_extensions").fetchall()}
    return {
        "extensions": {
            name: "installed" if name in installed else "available" if name in available else "not there"
            for name in EXTENSIONS
        },
        "connections": int(_one(made, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")),
        "max_connections": int(_one(made, "SHOW max_connections")),
        "timeouts": {name: _one(made, f"SHOW {name}") for name in SETTINGS},
        "durable": {name: _one(made, f"SHOW {name}") for name in DURABLE},
        # A dump leaves no trace in the database, so the last backup is unknown.
        "last_backup": "unknown",
        "archived": _one(made, "SELECT extract(epoch FROM last_archived_time)::bigint * 1000 FROM pg_stat_archiver"),
    }


def _parts(made: psycopg.Connection[Any], now: int) -> dict[str, Any]:
    days, today = parts(made), now // DAY
    return {
        "parts": len(days),
        "parts_ahead": sum(day > today for day in days),
        "has_today": today in days,
        "steps_without_part": int(_one(made, "SELECT count(*) FROM (SELECT 1 FROM steps_rest LIMIT 1000000) AS rest")),
    }


def _rights(made: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return whether row security isolates tenants for this role."""
    rows = made.execute(f"SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity {_TABLES}").fetchall()
    guarded = {name: is_guarded for name, is_guarded in rows if name not in OWN_TABLES}
    passes = _one(made, "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user")
    return {
        "role": _one(made, "SELECT current_user"),
        "row_security": "in force" if all(guarded.values()) and not passes
        else "passed by this role" if any(guarded.values()) else "off",
        "unguarded": sorted(name for name, is_guarded in guarded.items() if not is_guarded) if any(guarded.values())
        else [],
    }  # fmt: skip


def _replication(made: psycopg.Connection[Any]) -> dict[str, Any]:
    rows = made.execute(
        "SELECT coalesce(application_name, ''), state, coalesce(extract(epoch FROM replay_lag), 0)::float8 "
        "FROM pg_stat_replication"
    ).fetchall()
    return {
        "replicas": [{"name": name, "state": state, "lag_seconds": lag} for name, state, lag in rows],
        "is_replica": bool(_one(made, "SELECT pg_is_in_recovery()")),
    }


def _sizes(made: psycopg.Connection[Any]) -> tuple[Size, ...]:
    """Return table sizes. Row counts are PostgreSQL's estimates; a partitioned table counts all its partitions."""
    rows = made.execute(
        "SELECT c.relname, CASE c.relkind WHEN 'p' THEN (SELECT coalesce(sum(pg_total_relation_size(t.relid)), 0) "
        "FROM pg_partition_tree(c.oid) t WHERE t.isleaf) ELSE pg_total_relation_size(c.oid) END::bigint, "
        "CASE c.relkind WHEN 'p' THEN (SELECT sum(greatest(p.reltuples, 0)) FROM pg_partition_tree(c.oid) t "
        f"JOIN pg_class p ON p.oid = t.relid WHERE t.isleaf) ELSE greatest(c.reltuples, 0) END::bigint {_TABLES}"
    ).fetchall()
    own = [Size(name, int(size), int(count or 0)) for name, size, count in rows if name not in OWN_TABLES]
    return tuple(sorted(own, key=lambda each: (-each.bytes, each.name)))


def _ills(facts: dict[str, Any]) -> list[str]:
    ills = []
    if facts["durable"]["fsync"] != "on" or facts["durable"]["full_page_writes"] != "on":
        ills.append(
            "PostgreSQL does not wait for its disk (fsync or full_page_writes is off): a crash may cost everything."
        )
    if facts["connections"] >= NEARLY * facts["max_connections"]:
        ills.append(f"{facts['connections']} of {facts['max_connections']} connections of PostgreSQL are taken.")
    if "parts" in facts and not facts["has_today"] and facts["parts"]:
        ills.append(
            f"The steps of today have no part of their own: nobody has written for {AHEAD} days, or the user may make "
            "no tables. They are kept with the rest, and removed row by row."
        )
    ills += [
        f"The replica {each['name']} is {each['lag_seconds']:.0f} s behind."
        for each in facts["replicas"]
        if each["lag_seconds"] > LAG
    ]
    if facts.get("unguarded"):
        ills.append(f"Rows of tenants are not kept apart by PostgreSQL in: {', '.join(facts['unguarded'])}.")
    return ills
