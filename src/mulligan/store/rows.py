"""Runs and steps as database rows: insert, read and delete."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from mulligan.core.calls import Call, group_attempts
from mulligan.core.links import RunProgress
from mulligan.core.records import Compaction, History, Link, Run, Status, Step, encode
from mulligan.store import counters, pattern_counts, row_encoding
from mulligan.store.connection import Connection, Insert, Lookup, upsert
from mulligan.store.row_encoding import CompactStep, SuccessRow

MAX_READ_CALLS = 500
"""Limit of calls that one statement selects by number."""
BEFORE_FIRST_CALL = -(2**63)
"""Sorts before every call number."""

STEP = Insert.of("steps", "tenant run seq call name outcome kind fingerprint started_at body")
STORED_STEP = Lookup.of("steps", "tenant run seq", "seq")
RUN = Insert.of(
    "runs",
    "tenant id agent session started_at body version environment status stored_at imported failure_free principal",
)
_STORED_RUN = Lookup.of("runs", "tenant id", "body status failure_free", is_locking=True)
USED = Insert.of("run_callees", "tenant type name started_at run")
LINK = Insert.or_update("links", "tenant run failed_call", "name fingerprint body recovering_call")
_OF_RUN = "2, at, body, '', 0 FROM compactions WHERE tenant = ? AND owner_type = 'run' AND owner = ?"
_OF_SESSION = (
    "2, at, body, '', 0 FROM compactions WHERE tenant = ? AND owner_type = 'session' AND owner = ? AND at >= coalesce("
    "(SELECT max(at) FROM compactions WHERE tenant = ? AND owner_type = 'session' AND owner = ? AND at < ?), ?)"
)
_HISTORY = (
    "SELECT 0, seq, body, name, started_at FROM steps WHERE tenant = ? AND run = ? "
    "UNION ALL SELECT 1, failed_call, body, '', 0 FROM links WHERE tenant = ? AND run = ? "
    f"UNION ALL SELECT {_OF_RUN}"
)
_NOTE = upsert("meta", "tenant key", "value")


class StoredRun(NamedTuple):
    """A run with the derived columns of its row."""

    run: Run
    status: Status
    is_failure_free: bool = True
    """Whether all of its calls succeeded at the first attempt."""


def load_runs(writer: Connection, tenant: str, ids: Iterable[str]) -> dict[str, StoredRun]:
    """Return the stored ones of these runs. Other writers cannot change them until the end of the transaction."""
    rows = writer.look_up(_STORED_RUN, [(tenant, id) for id in sorted(ids)])  # sorted: no two writers deadlock
    return {
        id: StoredRun(row_encoding.decode_body(body, Run), status, bool(is_failure_free))
        for _, id, body, status, is_failure_free in rows
    }


def update_runs(writer: Connection, tenant: str, runs: Sequence[Run]) -> None:
    if runs:
        writer.executemany(
            "UPDATE runs SET agent = ?, session = ?, started_at = ?, body = ?, version = ?, environment = ? "
            "WHERE tenant = ? AND id = ?",
            [
                (run.agent, run.session, run.started_at, encode(run), run.version, run.environment, tenant, run.id)
                for run in runs
            ],
        )


def step_row(tenant: str, step: Step) -> tuple[Any, ...]:
    kind = fingerprint = None
    if step.failure is not None and step.has_failed:
        kind, fingerprint = str(step.failure.kind), step.failure.fingerprint
    return (
        tenant, step.run, step.seq, step.call, step.name, step.outcome, kind, fingerprint, step.started_at, encode(step)
    )  # fmt: skip


def success_row(step: Step) -> SuccessRow:
    compact_step = CompactStep(
        step.arguments, step.result, step.duration_seconds, step.parent, step.type, step.server, step.tokens,
        step.metadata, step.recovery, step.stop, step.sample_rate, step.effects, step.key, step.links,
    )  # fmt: skip
    return step.run, step.seq, step.name, step.started_at, compact_step


def run_row(tenant: str, run: Run, stored_at: int, is_imported: bool, principal: str) -> tuple[Any, ...]:
    """Build the row of a new run. Its status is updated when its calls are known."""
    status = RunProgress().status(run)
    return (
        tenant, run.id, run.agent, run.session, run.started_at, encode(run), run.version, run.environment, status,
        stored_at, int(is_imported), 1, principal,
    )  # fmt: skip


def put_statuses(writer: Connection, statuses: Sequence[tuple[Status, int, str, str]]) -> None:
    """Update many runs: status, whether all calls succeeded at the first attempt, tenant and run."""
    if statuses:
        writer.executemany("UPDATE runs SET status = ?, failure_free = ? WHERE tenant = ? AND id = ?", statuses)


def set_status(writer: Connection, tenant: str, id: str, status: Status, is_failure_free: bool) -> None:
    put_statuses(writer, [(status, int(is_failure_free), tenant, id)])


def extent(writer: Connection, tenant: str, id: str) -> tuple[int, int]:
    count, sum = writer.execute(
        "SELECT count(*), coalesce(sum(seq), 0) FROM steps WHERE tenant = ? AND run = ?", (tenant, id)
    ).fetchone()
    return count, sum


def steps_since(writer: Connection, tenant: str, run: str, start: int, new: list[Step]) -> list[Step]:
    """Return the steps of all calls from this number on. Steps in `new` replace their stored versions."""
    new_by_seq = {step.seq: step for step in new}
    rows = writer.execute(
        "SELECT seq, name, started_at, body FROM steps WHERE tenant = ? AND run = ? AND seq >= ? ORDER BY seq",
        (tenant, run, start),
    )
    steps = (
        new_by_seq.get(seq) or row_encoding.decode_step(run, seq, name, started, body)
        for seq, name, started, body in rows
    )
    return [step for step in steps if step.call >= start]


def calls_of(writer: Connection, tenant: str, run: str, ids: Collection[int]) -> dict[int, Call]:
    """Read some calls of a run, by their numbers."""
    steps: list[Step] = []
    call_ids = sorted(ids)
    for start in range(0, len(call_ids), MAX_READ_CALLS):
        chunk = call_ids[start : start + MAX_READ_CALLS]
        rows = writer.execute(
            "SELECT seq, name, started_at, body FROM steps WHERE tenant = ? AND run = ? "
            f"AND call IN ({', '.join('?' * len(chunk))})",
            (tenant, run, *chunk),
        )
        steps += [row_encoding.decode_step(run, *row) for row in rows]
    return {call.id: call for call in group_attempts(steps)}


def links_since(writer: Connection, tenant: str, run: str, start: int) -> dict[int, Link]:
    rows = writer.execute(
        "SELECT failed_call, body FROM links WHERE tenant = ? AND run = ? "
        "AND (failed_call >= ? OR recovering_call >= ?)",
        (tenant, run, start, start),
    )
    return {failed: row_encoding.decode_body(body, Link) for failed, body in rows}


def put_links(
    writer: Connection,
    tenant: str,
    run: str,
    stored_links: dict[int, Link],
    links: dict[int, Link],
    failed_calls: Mapping[int, Call],
) -> None:
    """Replace the links of a run. They share a transaction with the success, so a crash cannot separate them."""
    forget_links(writer, [(tenant, run, failed) for failed in stored_links if failed not in links])
    writer.put(LINK, link_rows(tenant, run, links, failed_calls))


def forget_links(writer: Connection, keys: Sequence[tuple[str, str, int]]) -> None:
    if keys:
        writer.executemany("DELETE FROM links WHERE tenant = ? AND run = ? AND failed_call = ?", keys)


def link_rows(tenant: str, run: str, links: dict[int, Link], failed_calls: Mapping[int, Call]) -> list[tuple[Any, ...]]:
    rows = []
    for failed, link in links.items():
        failure = failed_calls[failed].failure
        # Write equal links, too: the link may now belong to another failure of the same call.
        row = (failed_calls[failed].name, failure.fingerprint if failure else "", encode(link), link.recovering_call)
        rows.append((tenant, run, failed, *row))
    return rows


def compactions_of(connection: Connection, tenant: str, run: Run) -> tuple[Compaction, ...]:
    """Return the compactions of a run and of its session: those since the run began, and the last one before."""
    rows = connection.execute(f"SELECT {_OF_RUN}", (tenant, run.id)).fetchall()
    if run.session is not None:
        values = (tenant, run.session, tenant, run.session, run.started_at, run.started_at)
        rows += connection.execute(f"SELECT {_OF_SESSION}", values).fetchall()
    return tuple(row_encoding.decode_body(body, Compaction) for _, _, body, _, _ in sorted(rows, key=itemgetter(1)))


def history_of(connection: Connection, tenant: str, run: Run) -> History:
    """Read a complete run with one statement, which sees one consistent state."""
    sql = _HISTORY
    values: tuple[str | int, ...] = (tenant, run.id) * 3
    if run.session is not None:
        sql = f"{sql} UNION ALL SELECT {_OF_SESSION}"
        values += (tenant, run.session, tenant, run.session, run.started_at, run.started_at)
    rows = sorted(connection.execute(sql, values).fetchall(), key=itemgetter(0, 1))
    return History(
        run=run,
        steps=tuple(
            row_encoding.decode_step(run.id, seq, name, at, body)
            for row_type, seq, body, name, at in rows
            if row_type == 0
        ),
        links=tuple(row_encoding.decode_body(body, Link) for row_type, _, body, _, _ in rows if row_type == 1),
        compactions=tuple(
            row_encoding.decode_body(body, Compaction) for row_type, _, body, _, _ in rows if row_type == 2
        ),
    )


def runs_since(connection: Connection, tenant: str, after: int = 0, limit: int = 1000) -> list[Any]:
    """Return runs in the order of arrival, starting after this row id."""
    sql = (
        "SELECT rowid, id, status, stored_at, imported, body FROM runs WHERE tenant = ? AND rowid > ? "
        "ORDER BY rowid LIMIT ?"
    )
    return connection.execute(sql, (tenant, after, limit)).fetchall()


def remove_run(writer: Connection, tenant: str, history: History) -> None:
    """Delete a run with its rows. The caller updates rollups, patterns and the pattern occurrences of the run."""
    run_key = (tenant, history.run.id)
    delete_usages(writer, tenant, history)
    for table in ("steps", "links", "orphaned_runs", "provisional_runs"):
        writer.execute(f"DELETE FROM {table} WHERE tenant = ? AND run = ?", run_key)
    writer.execute("DELETE FROM compactions WHERE tenant = ? AND owner_type = 'run' AND owner = ?", run_key)
    writer.execute("DELETE FROM runs WHERE tenant = ? AND id = ?", run_key)


def delete_usages(writer: Connection, tenant: str, history: History) -> None:
    run = history.run
    usages = {("tool", step.name) for step in history.steps}
    usages |= {("model", counters.model_of(run, step)) for step in history.steps}
    writer.executemany(
        "DELETE FROM run_callees WHERE tenant = ? AND type = ? AND name = ? AND started_at = ? AND run = ?",
        [(tenant, usage_type, name, run.started_at, run.id) for usage_type, name in usages],
    )


def delete_pattern_runs(writer: Connection, tenant: str, history: History) -> None:
    """Delete the index of a run by its patterns. The counters of these patterns do not change."""
    run = history.run
    failures = [(step, step.failure) for step in history.steps if step.has_failed and step.failure]
    pattern_ids = {
        pattern_counts.id_of(step.name, failure.fingerprint) if failure.fingerprint else ""
        for step, failure in failures
    }
    writer.executemany(
        "DELETE FROM run_failures WHERE tenant = ? AND pattern = ? AND started_at = ? AND run = ?",
        [(tenant, id, run.started_at, run.id) for id in pattern_ids],
    )


def replace_steps(writer: Connection, tenant: str, run: str, steps: Sequence[Step]) -> None:
    """Replace all steps of a run."""
    writer.execute("DELETE FROM steps WHERE tenant = ? AND run = ?", (tenant, run))
    writer.put(STEP, [step_row(tenant, step) for step in steps])


def read_meta(connection: Connection, tenant: str, key: str) -> str:
    row = connection.execute("SELECT value FROM meta WHERE tenant = ? AND key = ?", (tenant, key)).fetchone()
    return row[0] if row else ""


def write_meta(writer: Connection, tenant: str, key: str, value: str) -> None:
    writer.execute(_NOTE, (tenant, key, value))
