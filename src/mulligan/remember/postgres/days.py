"""Daily partitions of `steps`.

A step is in the partition of the day on which the first record of its run arrived. So the steps of a run are together,
no step is in two partitions, and an expired day is dropped as a whole. Partitions are created ahead; steps without one
go to `steps_rest`.
"""

from __future__ import annotations

from typing import Any

import psycopg

from mulligan.remember.postgres import security
from mulligan.remember.postgres.tables import LOCK

AHEAD = 7
"""Days for which partitions are created ahead."""
LONG = "15s"
"""The lock timeout of all sessions."""
BRIEFLY = "500ms"
"""Shorter than PostgreSQL's deadlock detection, so that in a deadlock this statement gives up."""
WHILE = "3s"
"""Longer than PostgreSQL's deadlock detection, after which autovacuum gives up its lock."""
ROW = 200
"""Estimated size of a step in a partition and its indexes, without its body."""


def part(day: int) -> str:
    return f"steps_{day}"


def make_parts(made: psycopg.Connection[Any], today: int) -> None:
    """Create the partitions of today and the days ahead. Steps that are already in `steps_rest` remain there."""
    for day in range(today, today + AHEAD + 1):
        if made.execute("SELECT to_regclass(%s)", (part(day),)).fetchone() != (None,):
            continue
        try:
            with made.transaction():
                # Future partitions are not urgent: do not wait while a backup reads the table.
                made.execute(f"SET LOCAL lock_timeout = '{BRIEFLY if day > today else LONG}'")
                made.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
                made.execute(
                    f"CREATE TABLE IF NOT EXISTS {part(day)} PARTITION OF steps FOR VALUES FROM ({day}) TO ({day + 1})"
                )
                security.guard(made, part(day))
        except (psycopg.errors.CheckViolation, psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            continue  # retried later; until then steps_rest takes the steps


def parts(made: psycopg.Connection[Any]) -> list[int]:
    """Return the days that have a partition, the oldest first."""
    rows = made.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = to_regclass('steps')"
    ).fetchall()
    return sorted(int(name[6:]) for (name,) in rows if name[6:].isdigit())


def drop_empty(made: psycopg.Connection[Any], until: int) -> int:
    """Drop the empty partitions of days before this one. Return their number."""
    dropped = 0
    for day in parts(made):
        if day >= until:
            break
        try:
            with made.transaction():
                security.mean_everybody(made)  # rows hidden by row security count
                made.execute(f"SET LOCAL lock_timeout = '{BRIEFLY}'")
                if not _has_any(made, day):
                    made.execute(f"LOCK TABLE ONLY steps, ONLY {part(day)} IN ACCESS EXCLUSIVE MODE")
                    if not _has_any(made, day):  # check again under the lock
                        made.execute(f"DROP TABLE {part(day)}")
                        dropped += 1
        except psycopg.errors.UndefinedTable:
            continue  # another process dropped it
        except psycopg.errors.LockNotAvailable:
            break  # a long read holds the table: retried later
    return dropped


def _has_any(made: psycopg.Connection[Any], day: int) -> bool:
    return made.execute(f"SELECT 1 FROM {part(day)} LIMIT 1").fetchone() is not None


def without(made: psycopg.Connection[Any], day: int, tenant: str, going: str) -> bool:
    """Delete runs of a tenant from a partition by replacing it, within a transaction for the tenant.

    All other steps, also of other tenants, are copied to a new partition. Return False, with nothing changed, if most
    steps remain or the partition is in use. `runs_table` contains the runs to delete.
    """
    gone = f"p.tenant = %s AND EXISTS (SELECT 1 FROM {going} g WHERE g.run = p.run)"
    return _anew(made, day, tenant, f"WHERE NOT ({gone})", (tenant,))


def tighten(made: psycopg.Connection[Any], day: int, tenant: str) -> bool:
    """Copy all steps of a day into a new partition, if at least half of the old one is free space."""
    return _anew(made, day, tenant, "", ())


def _anew(made: psycopg.Connection[Any], day: int, tenant: str, staying: str, values: tuple[str, ...]) -> bool:
    old, new = part(day), f"{part(day)}_anew"
    left = f"FROM {old} p {staying}"
    try:
        with made.transaction():
            made.execute(f"SET LOCAL lock_timeout = '{WHILE}'")
            # Of all tenants: rows hidden by row security count, too.
            security.mean_everybody(made)
            made.execute(f"LOCK TABLE ONLY {old} IN SHARE ROW EXCLUSIVE MODE")  # readers only
            count, size, most = made.execute(
                f"SELECT count(*), count(*) * {ROW} + coalesce(sum(pg_column_size(p.body)), 0), "
                f"(SELECT pg_total_relation_size('{old}')) / 2 {left}",
                values,
            ).fetchone() or (0, 0, 0)
            is_worth_it = not count or size < most
            if is_worth_it:
                if count:
                    made.execute(f"CREATE TABLE {new} (LIKE {old} INCLUDING ALL)")
                    made.execute(f"INSERT INTO {new} SELECT p.* {left}", values)
                    # Saves the scan of the table when it is attached.
                    made.execute(f"ALTER TABLE {new} ADD CONSTRAINT of_day CHECK (day >= {day} AND day < {day + 1})")
                    made.execute(f"ANALYZE {new}")
                _drop(made, old)
                if count:
                    made.execute(f"ALTER TABLE {new} RENAME TO {old}")
                    made.execute(f"ALTER TABLE steps ATTACH PARTITION {old} FOR VALUES FROM ({day}) TO ({day + 1})")
                    made.execute(f"ALTER TABLE {old} DROP CONSTRAINT of_day")
                    security.guard(made, old)
            security.mean(made, (tenant,), is_local=True)
            return is_worth_it
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
        return False  # in use, or the role is not its owner


def _drop(made: psycopg.Connection[Any], old: str) -> None:
    """Drop a partition within a transaction. Other sessions wait briefly and never see an intermediate state."""
    made.execute(f"SET LOCAL lock_timeout = '{BRIEFLY}'")
    made.execute(f"LOCK TABLE ONLY steps, ONLY {old} IN ACCESS EXCLUSIVE MODE")
    made.execute(f"DROP TABLE {old}")
