"""Daily partitions of `steps`.

A step is in the partition of the day on which the first record of its run arrived. So the steps of a run are together,
no step is in two partitions, and an expired day is dropped as a whole. Partitions are created ahead; steps without one
go to `steps_default`.
"""

from __future__ import annotations

from typing import Any

import psycopg

from mulligan.store.postgres import row_security
from mulligan.store.postgres.postgres_tables import SCHEMA_LOCK_ID

PARTITIONS_AHEAD_DAYS = 7
"""Days for which partitions are created ahead."""
DEFAULT_LOCK_TIMEOUT = "15s"
"""The lock timeout of all sessions."""
SHORT_LOCK_TIMEOUT = "500ms"
"""Shorter than PostgreSQL's deadlock detection, so that in a deadlock this statement gives up."""
REWRITE_LOCK_TIMEOUT = "3s"
"""Longer than PostgreSQL's deadlock detection, after which autovacuum gives up its lock."""
STEP_OVERHEAD_BYTES = 200
"""Estimated size of a step in a partition and its indexes, without its body."""


def partition_name(day: int) -> str:
    return f"steps_{day}"


def create_partitions(connection: psycopg.Connection[Any], today: int) -> None:
    """Create the partitions of today and the days ahead. Steps that are already in `steps_default` remain there."""
    for day in range(today, today + PARTITIONS_AHEAD_DAYS + 1):
        if connection.execute("SELECT to_regclass(%s)", (partition_name(day),)).fetchone() != (None,):
            continue
        try:
            with connection.transaction():
                # Future partitions are not urgent: do not wait while a backup reads the table.
                connection.execute(
                    f"SET LOCAL lock_timeout = '{SHORT_LOCK_TIMEOUT if day > today else DEFAULT_LOCK_TIMEOUT}'"
                )
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK_ID,))
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {partition_name(day)} "
                    f"PARTITION OF steps FOR VALUES FROM ({day}) TO ({day + 1})"
                )
                row_security.enable_row_security(connection, partition_name(day))
        except (psycopg.errors.CheckViolation, psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            continue  # retried later; until then steps_default takes the steps


def list_partition_days(connection: psycopg.Connection[Any]) -> list[int]:
    """Return the days that have a partition, the oldest first."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = to_regclass('steps')"
    ).fetchall()
    return sorted(int(name[6:]) for (name,) in rows if name[6:].isdigit())


def drop_empty_partitions(connection: psycopg.Connection[Any], until: int) -> int:
    """Drop the empty partitions of days before this one. Return their number."""
    dropped = 0
    for day in list_partition_days(connection):
        if day >= until:
            break
        try:
            with connection.transaction():
                row_security.set_all_tenants(connection)  # rows hidden by row security count
                connection.execute(f"SET LOCAL lock_timeout = '{SHORT_LOCK_TIMEOUT}'")
                if not _has_steps(connection, day):
                    connection.execute(f"LOCK TABLE ONLY steps, ONLY {partition_name(day)} IN ACCESS EXCLUSIVE MODE")
                    if not _has_steps(connection, day):  # check again under the lock
                        connection.execute(f"DROP TABLE {partition_name(day)}")
                        dropped += 1
        except psycopg.errors.UndefinedTable:
            continue  # another process dropped it
        except psycopg.errors.LockNotAvailable:
            break  # a long read holds the table: retried later
    return dropped


def _has_steps(connection: psycopg.Connection[Any], day: int) -> bool:
    return connection.execute(f"SELECT 1 FROM {partition_name(day)} LIMIT 1").fetchone() is not None


def remove_runs(connection: psycopg.Connection[Any], day: int, tenant: str, runs_table: str) -> bool:
    """Delete runs of a tenant from a partition by replacing it, within a transaction for the tenant.

    All other steps, also of other tenants, are copied to a new partition. Return False, with nothing changed, if most
    steps remain or the partition is in use. `runs_table` contains the runs to delete.
    """
    is_removed_sql = f"p.tenant = %s AND EXISTS (SELECT 1 FROM {runs_table} g WHERE g.run = p.run)"
    return _rewrite_partition(connection, day, tenant, f"WHERE NOT ({is_removed_sql})", (tenant,))


def shrink_partition(connection: psycopg.Connection[Any], day: int, tenant: str) -> bool:
    """Copy all steps of a day into a new partition, if at least half of the old one is free space."""
    return _rewrite_partition(connection, day, tenant, "", ())


def _rewrite_partition(
    connection: psycopg.Connection[Any], day: int, tenant: str, where: str, values: tuple[str, ...]
) -> bool:
    old, new = partition_name(day), f"{partition_name(day)}_anew"
    remaining_rows_sql = f"FROM {old} p {where}"
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{REWRITE_LOCK_TIMEOUT}'")
            # Of all tenants: rows hidden by row security count, too.
            row_security.set_all_tenants(connection)
            connection.execute(f"LOCK TABLE ONLY {old} IN SHARE ROW EXCLUSIVE MODE")  # readers only
            count, size, max_bytes = connection.execute(
                f"SELECT count(*), count(*) * {STEP_OVERHEAD_BYTES} + coalesce(sum(pg_column_size(p.body)), 0), "
                f"(SELECT pg_total_relation_size('{old}')) / 2 {remaining_rows_sql}",
                values,
            ).fetchone() or (0, 0, 0)
            is_worth_it = not count or size < max_bytes
            if is_worth_it:
                if count:
                    connection.execute(f"CREATE TABLE {new} (LIKE {old} INCLUDING ALL)")
                    connection.execute(f"INSERT INTO {new} SELECT p.* {remaining_rows_sql}", values)
                    # Saves the scan of the table when it is attached.
                    connection.execute(
                        f"ALTER TABLE {new} ADD CONSTRAINT of_day CHECK (day >= {day} AND day < {day + 1})"
                    )
                    connection.execute(f"ANALYZE {new}")
                _drop_partition(connection, old)
                if count:
                    connection.execute(f"ALTER TABLE {new} RENAME TO {old}")
                    connection.execute(
                        f"ALTER TABLE steps ATTACH PARTITION {old} FOR VALUES FROM ({day}) TO ({day + 1})"
                    )
                    connection.execute(f"ALTER TABLE {old} DROP CONSTRAINT of_day")
                    row_security.enable_row_security(connection, old)
            row_security.set_tenants(connection, (tenant,), is_local=True)
            return is_worth_it
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
        return False  # in use, or the role is not its owner


def _drop_partition(connection: psycopg.Connection[Any], old: str) -> None:
    """Drop a partition within a transaction. Other sessions wait briefly and never see an intermediate state."""
    connection.execute(f"SET LOCAL lock_timeout = '{SHORT_LOCK_TIMEOUT}'")
    connection.execute(f"LOCK TABLE ONLY steps, ONLY {old} IN ACCESS EXCLUSIVE MODE")
    connection.execute(f"DROP TABLE {old}")
