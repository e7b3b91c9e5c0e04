"""Links, status and votes of a run, derived from its steps and stored."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.core.calls import group_attempts
from mulligan.core.records import Link, Run, Status, Step
from mulligan.core.run_links import derive_status, link_recoveries
from mulligan.store import fix_queries
from mulligan.store.connection import Connection
from mulligan.store.rows import (
    BEFORE_FIRST_CALL,
    LINK,
    forget_links,
    link_rows,
    links_since,
    put_statuses,
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
