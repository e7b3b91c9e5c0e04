"""Recounting of everything that is derived from the stored rows: links, statuses, patterns and rollups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from mulligan.core import calls
from mulligan.core.links import derive_status, link_recoveries
from mulligan.core.records import Run, Step
from mulligan.learn.patterns import start_of_day
from mulligan.store import fix_queries, pattern_counts, rollups, row_encoding
from mulligan.store.base import DAY
from mulligan.store.connection import Connection
from mulligan.store.rollups import EMPTY_SLICE, CounterChanges, RunSlice
from mulligan.store.rows import (
    BEFORE_FIRST_CALL,
    USED,
    StoredRun,
    history_of,
    links_since,
    put_links,
    read_meta,
    runs_since,
    set_status,
)


def rebuild_links(writer: Connection, tenant: str, run: Run, steps: Iterable[Step]) -> dict[int, Any]:
    steps = tuple(steps)
    links = {link.failed_call: link for link in link_recoveries(steps, run)}
    failed = {call.id: call for call in calls.group_attempts(steps)}
    put_links(writer, tenant, run.id, links_since(writer, tenant, run.id, BEFORE_FIRST_CALL), links, failed)
    return links


def rebuild(writer: Connection, tenant: str) -> None:
    """Recount links, statuses, patterns and rollups from the rows.

    Counters of days with pruned rows are retained: the rows are incomplete.
    """
    rollups.fold(writer, tenant)
    pruned = read_meta(writer, tenant, "pruned")
    horizon = start_of_day(int(pruned)) + DAY if pruned else BEFORE_FIRST_CALL
    writer.execute("DELETE FROM run_callees WHERE tenant = ?", (tenant,))
    writer.execute("DELETE FROM rollups WHERE tenant = ? AND bucket >= ?", (tenant, horizon))
    writer.execute("DELETE FROM pattern_days WHERE tenant = ? AND day >= ?", (tenant, horizon))
    if not pruned:
        for table in ("patterns", "pattern_agents", "run_failures"):
            writer.execute(f"DELETE FROM {table} WHERE tenant = ?", (tenant,))
    after = 0
    while rows := runs_since(writer, tenant, after):
        account = CounterChanges()
        for rowid, _, status, _, _, body in rows:
            after = rowid
            _recount_run(writer, tenant, StoredRun(row_encoding.decode_body(body, Run), status), account)
        writer.put(USED, [(tenant, *usage_row) for usage_row in account.used_names])
        counters = {
            counter_key: cell for counter_key, cell in account.collect_cells().items() if counter_key.hour >= horizon
        }
        rollups.apply(writer, tenant, counters)
        if pruned:
            pattern_counts.add_days(
                writer,
                tenant,
                [counted_failure for counted_failure in account.failures if counted_failure.step.started_at >= horizon],
            )
        else:
            pattern_counts.add(writer, tenant, account.failures)
    if pruned:
        pattern_counts.sum_days(writer, tenant)


def _recount_run(writer: Connection, tenant: str, tracked_run: StoredRun, account: CounterChanges) -> None:
    run = tracked_run.run
    before = history_of(writer, tenant, run)
    links = rebuild_links(writer, tenant, run, before.steps)
    history = msgspec.structs.replace(before, links=tuple(links.values()))
    status = derive_status(run, history.steps, history.links)
    is_failure_free = all(
        call.first.seq == call.id and len(call.steps) == 1 and call.has_succeeded and not call.has_failed
        for call in calls.group_attempts(history.steps)
    )
    set_status(writer, tenant, run.id, status, is_failure_free)
    if not is_failure_free:
        fix_queries.store_run_votes(writer, tenant, run, history.steps)
    account.add_used_names(run, history.steps)
    account.add(EMPTY_SLICE, RunSlice.of_history(history))
    account.add_run(None, run, status)
