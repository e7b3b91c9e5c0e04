"""Recounting of everything that is derived from the stored rows: links, statuses, patterns and rollups."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mulligan.contract.store import DAY
from mulligan.core.calls import group_attempts
from mulligan.core.records import Link, Run, Status, Step
from mulligan.core.run_links import derive_status, link_recoveries
from mulligan.learn.patterns import start_of_day
from mulligan.store import fix_queries, pattern_counts, rollups
from mulligan.store.connection import Connection
from mulligan.store.rollups import EMPTY_SLICE, CounterChanges, RunSlice
from mulligan.store.rows import (
    BEFORE_FIRST_CALL,
    LINK,
    decode_body,
    forget_links,
    history_of,
    link_rows,
    links_since,
    put_statuses,
    read_meta,
    runs_since,
)


def judge_run(
    writer: Connection, tenant: str, run: Run, steps: Sequence[Step], is_settled: bool = False
) -> tuple[tuple[Link, ...], Status]:
    """Derive links, status and votes of a run from its steps and store them. Return the links and the status.

    An unfinished run that `is_settled` is judged as if it had ended.
    """
    links = {link.failed_call: link for link in link_recoveries(steps, run, is_settled=is_settled)}
    calls = {call.id: call for call in group_attempts(steps)}
    stale_links = links_since(writer, tenant, run.id, BEFORE_FIRST_CALL).keys() - links.keys()
    forget_links(writer, [(tenant, run.id, failed) for failed in stale_links])
    writer.put(LINK, link_rows(tenant, run.id, links, calls))
    status = derive_status(run, steps, links.values())
    is_failure_free = all(
        call.first.seq == call.id and len(call.steps) == 1 and call.has_succeeded and not call.has_failed
        for call in calls.values()
    )
    put_statuses(writer, [(status, int(is_failure_free), tenant, run.id)])
    fix_queries.store_run_votes(writer, tenant, run, steps, is_settled=is_settled)
    return tuple(links.values()), status


def rebuild(writer: Connection, tenant: str) -> None:
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
            changes.add_facts(history.run, history.steps)
            changes.add(EMPTY_SLICE, RunSlice.of_history(replace(history, links=links)))
            changes.add_run(None, history.run, status)
        changes.write_usages(writer, tenant)
        cells = changes.collect_cells()
        rollups.apply(writer, tenant, {key: cell for key, cell in cells.items() if key.hour >= horizon})
        after = rows[-1].rowid
        if pruned:
            recent_failures = [failure for failure in changes.failures if failure.step.started_at >= horizon]
            pattern_counts.add_days(writer, tenant, recent_failures)
        else:
            pattern_counts.add(writer, tenant, changes.failures)
    if pruned:
        pattern_counts.sum_days(writer, tenant)
