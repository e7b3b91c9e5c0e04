"""Everything that a store derives from its rows, counted again: what incremental counting must agree with."""

from __future__ import annotations

from msgspec.structs import replace

from mulligan.contract.store import DAY
from mulligan.core.records import Run
from mulligan.learn.patterns import start_of_day
from mulligan.store import pattern_counts, rollups
from mulligan.store.connection import Connection
from mulligan.store.judging import judge_run
from mulligan.store.rollups import EMPTY_SLICE, CounterChanges, RunSlice
from mulligan.store.rows import BEFORE_FIRST_CALL, decode_body, history_of, read_meta, runs_since
from mulligan.store.sql import DatabaseStore


def rebuild(store: DatabaseStore, tenant: str) -> None:
    """Count links, statuses, votes, patterns and rollups of a tenant again."""
    with store.write_transaction(tenant) as writer:
        store.batch_writer.drop_cache()
        _rebuild(writer, tenant)


def _rebuild(writer: Connection, tenant: str) -> None:
    """Recount links, statuses, votes, patterns and rollups from the rows.

    Counters of days with pruned rows are retained: the rows are incomplete.
    """
    rollups.fold(writer, tenant)
    pruned = read_meta(writer, tenant, "pruned")
    horizon = start_of_day(int(pruned)) + DAY if pruned else BEFORE_FIRST_CALL
    for table in ("run_callees", "run_facts"):
        writer.execute(f"DELETE FROM {table} WHERE tenant = ?", (tenant,))
    writer.execute("DELETE FROM rollups WHERE tenant = ? AND bucket >= ?", (tenant, horizon))
    writer.execute("DELETE FROM pattern_days WHERE tenant = ? AND day >= ?", (tenant, horizon))
    if not pruned:
        for table in ("patterns", "pattern_agents", "run_failures"):
            writer.execute(f"DELETE FROM {table} WHERE tenant = ?", (tenant,))
    after = 0
    while rows := runs_since(writer, tenant, after):
        changes = CounterChanges()
        for row in rows:
            history = history_of(writer, tenant, decode_body(row.body, Run))
            links, status = judge_run(writer, tenant, history.run, history.steps)
            changes.add_used_names(history.run, history.steps)
            changes.add(EMPTY_SLICE, RunSlice.of_history(replace(history, links=links)))
            changes.add_run(None, history.run, status)
        changes.write_usages(writer, tenant)
        cells = changes.collect_cells()
        rollups.apply(writer, tenant, {key: cell for key, cell in cells.items() if key.hour >= horizon})
        after = rows[-1].rowid
        if pruned:
            recent_failures = [failure for failure in changes.failures if failure.step.started_at >= horizon]
            pattern_counts.add_days(writer, tenant, pattern_counts.sum_changes(recent_failures)[0])
        else:
            pattern_counts.add(writer, tenant, changes.failures)
    if pruned:
        _sum_days(writer, tenant)


def _sum_days(writer: Connection, tenant: str) -> None:
    """Set the total counts of patterns to the sums of their days."""
    for column in ("occurrences", "recovered"):
        writer.execute(
            f"UPDATE patterns SET {column} = (SELECT coalesce(sum(d.{column}), 0) FROM pattern_days d "
            "WHERE d.tenant = ? AND d.id = patterns.id) WHERE tenant = ?",
            (tenant, tenant),
        )
