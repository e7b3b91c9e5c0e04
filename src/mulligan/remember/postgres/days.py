"""The parts of `steps`, a day each.

A step is kept in the part of the day on which the first of its run came, so that a run's steps are together, the same
step is never in two parts, and a day that nobody needs any more is dropped as a whole. Parts are made ahead; what has
none is in `steps_rest`.
"""

from __future__ import annotations

from typing import Any

import psycopg

from mulligan.remember.postgres import security
from mulligan.remember.postgres.tables import LOCK

AHEAD = 7
"""Days whose parts are made beforehand."""
LONG = "15s"
"""As everywhere."""
BRIEFLY = "500ms"
"""Shorter than PostgreSQL waits before it looks for a circle: in one, it is we who give way."""
WHILE = "3s"
"""Longer than that: who tidies a table for PostgreSQL itself gives way to us then."""
ROW = 200
"""Bytes of a step in a part and its indices, beside its body."""


def part(day: int) -> str:
    return f"steps_{day}"


def make_parts(made: psycopg.Connection[Any], today: int) -> None:
    """Makes the parts of today and the days ahead. Steps of a day that are in `steps_rest` already stay there."""
    for day in range(today, today + AHEAD + 1):
        if made.execute("SELECT to_regclass(%s)", (part(day),)).fetchone() != (None,):
            continue
        try:
            with made.transaction():
                # For those to come there is time: nobody waits for them while a copy is read.
                made.execute(f"SET LOCAL lock_timeout = '{BRIEFLY if day > today else LONG}'")
                made.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
                made.execute(
                    f"CREATE TABLE IF NOT EXISTS {part(day)} PARTITION OF steps FOR VALUES FROM ({day}) TO ({day + 1})"
                )
                security.guard(made, part(day))
        except (psycopg.errors.CheckViolation, psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            continue  # another time, or never: the rest takes it


def parts(made: psycopg.Connection[Any]) -> list[int]:
    """The days that have a part, the oldest first."""
    rows = made.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = to_regclass('steps')"
    ).fetchall()
    return sorted(int(name[6:]) for (name,) in rows if name[6:].isdigit())


def drop_empty(made: psycopg.Connection[Any], until: int) -> int:
    """Drops the parts of days before this one that have nothing in them any more; how many."""
    dropped = 0
    for day in parts(made):
        if day >= until:
            break
        try:
            with made.transaction():
                security.mean_everybody(made)  # what is hidden from us is not nothing
                made.execute(f"SET LOCAL lock_timeout = '{BRIEFLY}'")
                if not _has_any(made, day):
                    made.execute(f"LOCK TABLE ONLY steps, ONLY {part(day)} IN ACCESS EXCLUSIVE MODE")
                    if not _has_any(made, day):  # nor did any come meanwhile
                        made.execute(f"DROP TABLE {part(day)}")
                        dropped += 1
        except psycopg.errors.UndefinedTable:
            continue  # another process was first
        except psycopg.errors.LockNotAvailable:
            break  # somebody reads steps for long: another time
    return dropped


def _has_any(made: psycopg.Connection[Any], day: int) -> bool:
    return made.execute(f"SELECT 1 FROM {part(day)} LIMIT 1").fetchone() is not None


def without(made: psycopg.Connection[Any], day: int, tenant: str, going: str) -> bool:
    """Takes the steps of these runs of a tenant out of the part of a day by dropping it, in a transaction that means
    the tenant: where others have steps in it, or the tenant has more of them, these are put into a new one before.

    Not where most of it would have to be put there, or somebody uses it just now. `going` is a table with such runs.
    """
    gone = f"p.tenant = %s AND EXISTS (SELECT 1 FROM {going} g WHERE g.run = p.run)"
    return _anew(made, day, tenant, f"WHERE NOT ({gone})", (tenant,))


def tighten(made: psycopg.Connection[Any], day: int, tenant: str) -> bool:
    """Puts all steps of a day into a new part, if at least half of the old one is room that nobody needs."""
    return _anew(made, day, tenant, "", ())


def _anew(made: psycopg.Connection[Any], day: int, tenant: str, staying: str, values: tuple[str, ...]) -> bool:
    old, new = part(day), f"{part(day)}_anew"
    left = f"FROM {old} p {staying}"
    try:
        with made.transaction():
            made.execute(f"SET LOCAL lock_timeout = '{WHILE}'")
            # Of everybody: what is hidden from us is not nothing.
            security.mean_everybody(made)
            made.execute(f"LOCK TABLE ONLY {old} IN SHARE ROW EXCLUSIVE MODE")  # it may be read, and no more
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
                    # So that nobody has to wait until it is looked through.
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
        return False  # somebody reads it, or it is not ours to drop


def _drop(made: psycopg.Connection[Any], old: str) -> None:
    """Within a transaction: it is waited for a moment, and nobody sees anything between before and after."""
    made.execute(f"SET LOCAL lock_timeout = '{BRIEFLY}'")
    made.execute(f"LOCK TABLE ONLY steps, ONLY {old} IN ACCESS EXCLUSIVE MODE")
    made.execute(f"DROP TABLE {old}")
