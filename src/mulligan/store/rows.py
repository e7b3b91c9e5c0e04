"""Runs and steps as database rows: their encoding as JSON, with old bodies compressed; insert, read and delete."""

from __future__ import annotations

import enum
import itertools
import zlib
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import astuple, replace

from mulligan.contract import counters
from mulligan.contract.run_facts import RUN_FACTS, compute_facts
from mulligan.core.calls import Call, group_attempts
from mulligan.core.records import (
    Compaction,
    History,
    Link,
    RecordedMessage,
    Run,
    Status,
    Step,
    decode,
    digest,
    encode,
    message_numbers,
)
from mulligan.store.connection import Connection, Insert, Lookup, upsert

T = TypeVar("T")

MIN_COMPRESSED_BYTES = 200
"""Shorter bodies are not compressed."""

# Compression dictionary of frequent JSON fragments, so that short bodies shrink too. Never edit it: stored bodies are
# decompressed with it.
DICTIONARY_1 = (
    b'"metadata":{"model":"description":"message":"content":"status":"error":"type":"text","id":"null,false,true,"value"'
    b'"items":[{"name":"query":"path":"url":"http://https://","title":"data":{"results":[{"}]},"tokens":{"input":"output"'
    b'"evidence":["fingerprint":"1:"confidence":0."remedy":"took_effect":"hint":"detail":'
    b'"kind":"tool/","failure":{"kind":"tool/'
    b'"recovery":{"remedy":"repair","changes":[{"path":"operation":"substitute","before":"after":"source":"call"}],"source":"schema"'
    b',"outcome":"failure","attempt":2,"parent":1,"type":"model","server":"arguments":{"result":{"started_at":17,"duration_seconds":0.0'
    b'{"run":"run_","seq":1,"call":1,"name":"'
)
_COMPRESSED_PREFIX_1 = b"\x01"
"""First byte of a body compressed with dictionary 1. JSON never starts with this byte."""


class StepBody(Step, frozen=True, gc=False):
    """The body of a step's row. It omits what the columns hold. Bodies of 0.1.0 may contain the whole step."""

    run: str = ""
    seq: int = 0
    call: int = 0
    """The number of its call, unless that is its own number."""


def compress(body: bytes) -> bytes:
    """Return the body compressed, or unchanged if compression saves less than 10%."""
    if len(body) < MIN_COMPRESSED_BYTES or body.startswith(_COMPRESSED_PREFIX_1):
        return body
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY_1)
    compressed = _COMPRESSED_PREFIX_1 + compressor.compress(body) + compressor.flush()
    return compressed if len(compressed) < 0.9 * len(body) else body


def decompress(body: bytes) -> bytes:
    """Return the JSON of a body, compressed or not."""
    if not body.startswith(_COMPRESSED_PREFIX_1):
        return body
    decompressor = zlib.decompressobj(-15, DICTIONARY_1)
    return decompressor.decompress(body[1:]) + decompressor.flush()


def decode_body(body: bytes, type: type[T]) -> T:
    return decode(decompress(body), type)


def decode_step(run: str, seq: int, name: str, started_at: int, body: bytes) -> Step:
    step = decode(decompress(body), StepBody)
    return Step(*astuple(replace(step, run=run, seq=seq, call=step.call or seq, name=name, started_at=started_at)))


# Rows

MAX_READ_CALLS = 500
"""Limit of calls that one statement selects by number."""
BEFORE_FIRST_CALL = -(2**63)
"""Sorts before every call number."""


class FactsState(enum.IntEnum):
    """How far the facts of a run can be trusted: `runs.facts_state`."""

    MISSING = 0
    """The default: an earlier version stored the run."""
    FINAL = 1
    UNFINISHED = 2
    """The run has not ended. An open process of an earlier version may add attempts that the facts lack."""

    @classmethod
    def of_run(cls, run: Run) -> FactsState:
        return cls.UNFINISHED if run.end_reason is None else cls.FINAL


STEP = Insert.of("steps", "tenant run seq call name outcome kind fingerprint started_at body")
STORED_STEP = Lookup.of("steps", "tenant run seq", "seq")
RUN = Insert.of(
    "runs",
    "tenant id agent session started_at body version environment status stored_at imported failure_free principal "
    "facts_state",
)
_STORED_RUN = Lookup.of("runs", "tenant id", "body status failure_free stored_at", is_locking=True)
USED = Insert.of("run_callees", "tenant type name started_at run")
FACTS = Insert.of(
    "run_facts",
    f"tenant started_at run steps {' '.join(fact.column for fact in RUN_FACTS.values())}",
    "ON CONFLICT (tenant, started_at, run) DO UPDATE SET steps = run_facts.steps + excluded.steps, "
    + ", ".join(
        f"{fact.column} = {'' if fact.of_run else f'run_facts.{fact.column} + '}excluded.{fact.column}"
        for fact in RUN_FACTS.values()
    ),
)
"""Adds to the facts of a run. Those of its own record are replaced."""
_OPEN_FACTS_SQL = (
    "SELECT r.body, coalesce(f.steps, -1) <> (SELECT count(*) FROM steps s WHERE s.tenant = r.tenant AND s.run = r.id) "
    "FROM runs r LEFT JOIN run_facts f ON f.tenant = r.tenant AND f.started_at = r.started_at AND f.run = r.id "
    "WHERE r.tenant = ? AND r.facts_state <> 1 AND r.facts_state = 2"
)
MESSAGE = Insert.of("messages", "tenant digest body")
RUN_MESSAGE = Insert.of("run_messages", "tenant run number digest")
_ONLY_OF_RUN = (
    "FROM messages WHERE tenant = ? AND digest IN (SELECT digest FROM run_messages WHERE tenant = ? AND run = ?) "
    "AND NOT EXISTS (SELECT 1 FROM run_messages r WHERE r.tenant = ? AND r.digest = messages.digest AND r.run <> ?)"
)
"""The messages that a run has and no other run."""
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
    stored_at: int = 0


def load_runs(writer: Connection, tenant: str, ids: Iterable[str]) -> dict[str, StoredRun]:
    """Return the stored ones of these runs. Other writers cannot change them until the end of the transaction."""
    rows = writer.look_up(_STORED_RUN, [(tenant, id) for id in sorted(ids)])  # sorted: no two writers deadlock
    return {
        id: StoredRun(decode_body(body, Run), status, bool(is_failure_free), stored_at)
        for _, id, body, status, is_failure_free, stored_at in rows
    }


def update_runs(writer: Connection, tenant: str, runs: Sequence[Run]) -> None:
    writer.executemany(
        "UPDATE runs SET agent = ?, session = ?, started_at = ?, body = ?, version = ?, environment = ?, "
        f"facts_state = CASE WHEN facts_state = {FactsState.UNFINISHED:d} THEN ? ELSE facts_state END "
        "WHERE tenant = ? AND id = ?",
        [
            (
                run.agent,
                run.session,
                run.started_at,
                encode(run),
                run.version,
                run.environment,
                int(FactsState.of_run(run)),
                tenant,
                run.id,
            )
            for run in runs
        ],
    )


def step_row(tenant: str, step: Step) -> tuple[Any, ...]:
    """Build the row of `STEP`. Hot path: thousands are built per batch."""
    kind = fingerprint = None
    if step.failure is not None and step.has_failed:
        kind, fingerprint = str(step.failure.kind), step.failure.fingerprint
    call = 0 if step.call == step.seq else step.call
    body = StepBody(*astuple(replace(step, run="", seq=0, call=call, name="", started_at=0)))
    return (
        tenant, step.run, step.seq, step.call, step.name, step.outcome, kind, fingerprint, step.started_at,
        bytearray(encode(body)),  # sqlite3 would first search for an adapter of bytes
    )  # fmt: skip


def run_row(
    tenant: str, run: Run, stored_at: int, is_imported: bool, principal: str, status: Status, is_failure_free: bool
) -> tuple[Any, ...]:
    return (
        tenant, run.id, run.agent, run.session, run.started_at, encode(run), run.version, run.environment, status,
        stored_at, int(is_imported), int(is_failure_free), principal, int(FactsState.of_run(run)),
    )  # fmt: skip


def put_statuses(writer: Connection, statuses: Sequence[tuple[Status, int, str, str]]) -> None:
    """Update many runs: status, whether all calls succeeded at the first attempt, tenant and run."""
    writer.executemany("UPDATE runs SET status = ?, failure_free = ? WHERE tenant = ? AND id = ?", statuses)


def extent(writer: Connection, tenant: str, id: str) -> tuple[int, int]:
    count, sum = writer.execute(
        "SELECT count(*), coalesce(sum(seq), 0) FROM steps WHERE tenant = ? AND run = ?", (tenant, id)
    ).fetchone()
    return count, sum


def select_steps(connection: Connection, tenant: str, condition: str, *values: Any) -> Iterator[Step]:
    """Read the steps of a tenant that meet a condition, which may end with an order and a limit."""
    sql = f"SELECT run, seq, name, started_at, body FROM steps WHERE tenant = ? AND {condition}"
    return itertools.starmap(decode_step, connection.execute(sql, (tenant, *values)).fetchall())


def steps_since(writer: Connection, tenant: str, run: str, start: int, new: list[Step]) -> list[Step]:
    """Return the steps of all calls from this number on. Steps in `new` replace their stored versions."""
    new_by_seq = {step.seq: step for step in new}
    stored_steps = select_steps(writer, tenant, "run = ? AND seq >= ? ORDER BY seq", run, start)
    steps = (new_by_seq.get(step.seq, step) for step in stored_steps)
    return [step for step in steps if step.call >= start]


def calls_of(writer: Connection, tenant: str, run: str, ids: Collection[int]) -> dict[int, Call]:
    """Read some calls of a run, by their numbers."""
    steps: list[Step] = []
    call_ids = sorted(ids)
    for start in range(0, len(call_ids), MAX_READ_CALLS):
        chunk = call_ids[start : start + MAX_READ_CALLS]
        steps += select_steps(writer, tenant, f"run = ? AND call IN ({', '.join('?' * len(chunk))})", run, *chunk)
    return {call.id: call for call in group_attempts(steps)}


def links_since(writer: Connection, tenant: str, run: str, start: int) -> dict[int, Link]:
    rows = writer.execute(
        "SELECT failed_call, body FROM links WHERE tenant = ? AND run = ? "
        "AND (failed_call >= ? OR recovering_call >= ?)",
        (tenant, run, start, start),
    )
    return {failed: decode_body(body, Link) for failed, body in rows}


def forget_links(writer: Connection, keys: Sequence[tuple[str, str, int]]) -> None:
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
    return tuple(decode_body(body, Compaction) for _, _, body, _, _ in sorted(rows, key=itemgetter(1)))


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
            decode_step(run.id, seq, name, at, body) for row_type, seq, body, name, at in rows if row_type == 0
        ),
        links=tuple(decode_body(body, Link) for row_type, _, body, _, _ in rows if row_type == 1),
        compactions=tuple(decode_body(body, Compaction) for row_type, _, body, _, _ in rows if row_type == 2),
    )


class RunRow(NamedTuple):
    """A row of `runs`, as far as it matters for retention."""

    rowid: int
    id: str
    status: Status
    stored_at: int
    imported: int
    body: bytes


def runs_since(connection: Connection, tenant: str, after: int = 0, limit: int = 1000) -> list[RunRow]:
    """Return runs in the order of arrival, starting after this row id."""
    sql = f"SELECT {', '.join(RunRow._fields)} FROM runs WHERE tenant = ? AND rowid > ? ORDER BY rowid LIMIT ?"
    return list(map(RunRow._make, connection.execute(sql, (tenant, after, limit))))


def remove_run(writer: Connection, tenant: str, history: History) -> int:
    """Delete a run with its rows. The caller updates rollups, patterns and the pattern occurrences of the run.

    Return the size of the messages that were deleted with it.
    """
    run_key = (tenant, history.run.id)
    delete_callees(writer, tenant, history)
    delete_facts(writer, tenant, [history.run])
    message_bytes = remove_messages(writer, tenant, history.run.id)
    for table in ("steps", "links", "orphaned_runs", "provisional_runs"):
        writer.execute(f"DELETE FROM {table} WHERE tenant = ? AND run = ?", run_key)
    writer.execute("DELETE FROM compactions WHERE tenant = ? AND owner_type = 'run' AND owner = ?", run_key)
    writer.execute("DELETE FROM runs WHERE tenant = ? AND id = ?", run_key)
    return message_bytes


# Messages


def message_rows(tenant: str, messages: Iterable[tuple[str, RecordedMessage]]) -> tuple[list[Any], list[Any]]:
    """Build the rows of `messages` and of `run_messages` for messages with their runs."""
    bodies: dict[str, bytes] = {}
    usages = []
    for run, message in messages:
        body = encode(replace(message, number=0))
        content_digest = b64encode(digest(body, 16), b"-_").decode().rstrip("=")
        bodies[content_digest] = body
        usages.append((tenant, run, message.number, content_digest))
    # Sorted: concurrent writers insert equal messages in the same order, so that none waits for the other.
    return [(tenant, key, compress(body)) for key, body in sorted(bodies.items())], usages


def messages_of(connection: Connection, tenant: str, run: str) -> tuple[RecordedMessage, ...]:
    rows = connection.execute(
        "SELECT r.number, m.body FROM run_messages r JOIN messages m ON m.tenant = r.tenant AND m.digest = r.digest "
        "WHERE r.tenant = ? AND r.run = ? ORDER BY r.number",
        (tenant, run),
    ).fetchall()
    return tuple(replace(decode_body(body, RecordedMessage), number=number) for number, body in rows)


def remove_messages(writer: Connection, tenant: str, run: str, numbers: Collection[int] | None = None) -> int:
    """Delete the messages of a run, or those with these numbers, unless another run has them too.

    Return the size of the deleted messages. Requires a transaction without other writers of the tenant: one could
    store a use of a message that is deleted here.
    """
    run_key = (tenant, run)
    if numbers is None:
        # A statement for all messages: a run may have thousands, and retention deletes many runs in a transaction.
        values = (tenant, *run_key, *run_key)
        (size,) = writer.execute(f"SELECT coalesce(sum(length(body)), 0) {_ONLY_OF_RUN}", values).fetchone()
        if size:
            writer.execute(f"DELETE {_ONLY_OF_RUN}", values)
        writer.execute("DELETE FROM run_messages WHERE tenant = ? AND run = ?", run_key)
        return int(size)
    rows = writer.execute("SELECT number, digest FROM run_messages WHERE tenant = ? AND run = ?", run_key).fetchall()
    usages = [(number, key) for number, key in rows if number in numbers]
    writer.executemany(
        "DELETE FROM run_messages WHERE tenant = ? AND run = ? AND number = ?",
        [(tenant, run, number) for number, _ in usages],
    )
    return sum(_remove_unused(writer, tenant, key) for key in {key for _, key in usages})


def _remove_unused(writer: Connection, tenant: str, key: str) -> int:
    """Delete a message that no run has any more. Return its size."""
    if writer.execute("SELECT 1 FROM run_messages WHERE tenant = ? AND digest = ?", (tenant, key)).fetchone():
        return 0
    sql = "SELECT length(body) FROM messages WHERE tenant = ? AND digest = ?"
    (size,) = writer.execute(sql, (tenant, key)).fetchone() or (0,)
    writer.execute("DELETE FROM messages WHERE tenant = ? AND digest = ?", (tenant, key))
    return int(size)


def replace_message(writer: Connection, tenant: str, key: str, message: RecordedMessage) -> None:
    """Replace a message by changed content, in all runs that have it."""
    rows, ((_, _, _, new_key),) = message_rows(tenant, [("", message)])
    writer.put(MESSAGE, rows)
    if new_key != key:
        runs = writer.execute("SELECT run FROM run_messages WHERE tenant = ? AND digest = ?", (tenant, key)).fetchall()
        writer.unindex_runs(tenant, [run for (run,) in runs])
        writer.execute("UPDATE run_messages SET digest = ? WHERE tenant = ? AND digest = ?", (new_key, tenant, key))
        writer.execute("DELETE FROM messages WHERE tenant = ? AND digest = ?", (tenant, key))


def delete_callees(writer: Connection, tenant: str, history: History) -> None:
    """Delete the rows by which a run is found by its tools and models."""
    run = history.run
    callees = {("tool", step.name) for step in history.steps}
    callees |= {("model", counters.model_of(run, step)) for step in history.steps}
    writer.executemany(
        "DELETE FROM run_callees WHERE tenant = ? AND type = ? AND name = ? AND started_at = ? AND run = ?",
        [(tenant, callee_type, name, run.started_at, run.id) for callee_type, name in callees],
    )


def delete_facts(writer: Connection, tenant: str, runs: Iterable[Run]) -> None:
    sql = "DELETE FROM run_facts WHERE tenant = ? AND started_at = ? AND run = ?"
    writer.executemany(sql, [(tenant, run.started_at, run.id) for run in runs])


def replace_facts(writer: Connection, tenant: str, histories: Sequence[History]) -> None:
    """Compute the facts of runs from all of their attempts. Batches and erasure add differences instead."""
    delete_facts(writer, tenant, [history.run for history in histories])
    writer.put(
        FACTS,
        [
            (tenant, history.run.started_at, history.run.id, len(history.steps), *compute_facts(history).values())
            for history in histories
        ],
    )


def complete_facts(writer: Connection, tenant: str) -> None:
    """Compute the facts of some runs that an earlier version stored."""
    sql = "SELECT body FROM runs WHERE tenant = ? AND facts_state <> 1 AND facts_state = 0 LIMIT ?"
    # Runs of an earlier version that get their facts in one transaction.
    runs = [decode_body(body, Run) for (body,) in writer.execute(sql, (tenant, 500)).fetchall()]
    replace_facts(writer, tenant, [history_of(writer, tenant, run) for run in runs])
    set_facts_states(writer, tenant, [(FactsState.of_run(run), run.id) for run in runs])


def set_facts_states(writer: Connection, tenant: str, states: Iterable[tuple[FactsState, str]]) -> None:
    sql = "UPDATE runs SET facts_state = ? WHERE tenant = ? AND id = ?"
    writer.executemany(sql, [(int(state), tenant, id) for state, id in states])


def find_outdated_facts(connection: Connection, tenant: str) -> list[str]:
    """Return the unfinished runs that an earlier version has continued or ended since their facts were stored."""
    rows = connection.execute(_OPEN_FACTS_SQL, (tenant,)).fetchall()
    open_runs = [(decode_body(body, Run), lacks_steps) for body, lacks_steps in rows]
    return [run.id for run, lacks_steps in open_runs if lacks_steps or run.end_reason is not None]


def replace_steps(writer: Connection, tenant: str, run: str, steps: Sequence[Step]) -> None:
    """Replace all steps of a run. Messages that none of them has are deleted."""
    writer.unindex_runs(tenant, [run])
    writer.execute("DELETE FROM steps WHERE tenant = ? AND run = ?", (tenant, run))
    writer.put(STEP, [step_row(tenant, step) for step in steps])
    sql = "SELECT number FROM run_messages WHERE tenant = ? AND run = ?"
    unused = {number for (number,) in writer.execute(sql, (tenant, run)).fetchall()}
    for step in steps if unused else ():
        unused -= {*message_numbers(step), step.answer}
    if unused:
        remove_messages(writer, tenant, run, unused)


def read_meta(connection: Connection, tenant: str, key: str) -> str:
    row = connection.execute("SELECT value FROM meta WHERE tenant = ? AND key = ?", (tenant, key)).fetchone()
    return row[0] if row else ""


def write_meta(writer: Connection, tenant: str, key: str, value: str) -> None:
    writer.execute(_NOTE, (tenant, key, value))


def mark_rewritten(writer: Connection, tenant: str) -> int:
    """Note that stored steps were changed: other processes drop their caches before their next batch.

    Return how often that has happened.
    """
    count = int(read_meta(writer, tenant, "forgotten") or 0) + 1
    write_meta(writer, tenant, "forgotten", str(count))
    return count
