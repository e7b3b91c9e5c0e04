"""How the steps of a batch best get into PostgreSQL: by a statement of many rows, as they do, or by COPY.

    python benchmarks/batches.py [--rounds N] [--sizes 100 1000 4000] [--postgres URL] [--json]

COPY cannot pass over what is there already, and not into a table whose rows are guarded by their tenant. So it goes
into a table of the session's own, in the binary form and packed by us like the statement's values, and from there to
the steps by one statement, which is the other's but for where it takes the rows from. That table is kept and emptied
(`kept`), or made for each batch (`made`), as it must be behind a pooler that gives each transaction another session.
`whole` is the store's own append of the same calls. All of them in turn, each a transaction, with fsync; CPU is that of
our thread and of the server's process, calls a second by the clock. Medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import struct
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import postgres  # type: ignore[import-not-found]

from mulligan.contract.store import DAY, DEFAULT_TENANT
from mulligan.core.events import AnyEvent, RunStarted, StepEnded
from mulligan.core.records import Run, Step
from mulligan.store.postgres.postgres_connection import PostgresConnection
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.rows import STEP, step_row

SIZES = (100, 1000, 4000)
RUN = 20
"""Calls of a run."""
NOW = 1_794_700_000_000
NAMES = ", ".join(STEP.columns)
STAGED = f"CREATE TEMP TABLE IF NOT EXISTS {{}} ON COMMIT {{}} AS SELECT {NAMES} FROM steps LIMIT 0"
FROM_STAGED = (
    f"INSERT INTO steps ({NAMES}, day) SELECT {', '.join(f'n.{name}' for name in STEP.columns)}, r.stored_at / {DAY} "
    f"FROM {{}} n JOIN runs r ON r.tenant = n.tenant AND r.id = n.run {STEP.conflict}"
)


def packed(rows: Sequence[tuple[Any, ...]]) -> bytes:
    """Rows of steps in the binary form of COPY."""
    whole, size, none = struct.Struct("!iq").pack, struct.Struct("!i").pack, struct.pack("!i", -1)
    head = struct.pack("!h", len(STEP.columns))
    parts: list[bytes] = [b"PGCOPY\n\xff\r\n\x00", bytes(8)]
    for row in rows:
        parts.append(head)
        for value in row:
            if value is None:
                parts.append(none)
            elif isinstance(value, int):
                parts.append(whole(8, value))
            else:
                data = value.encode() if isinstance(value, str) else value
                parts += (size(len(data)), data)
    parts.append(b"\xff\xff")
    return b"".join(parts)


def by_statement(connection: PostgresConnection, rows: Sequence[tuple[Any, ...]]) -> None:
    assert connection.put(STEP, rows) == len(rows)


def by_copy(connection: PostgresConnection, rows: Sequence[tuple[Any, ...]], into: str) -> None:
    if into == "made":
        connection.raw_connection.execute(STAGED.format(into, "DROP"))
    with connection.raw_connection.cursor() as cursor:
        with cursor.copy(f"COPY {into} FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(packed(rows))
        assert cursor.execute(FROM_STAGED.format(into)).rowcount == len(rows)


def steps(start: int, size: int) -> list[Step]:
    return [
        Step(
            run=f"run_{(start + n) // RUN}", seq=(start + n) % RUN + 1, call=(start + n) % RUN + 1,
            name=("search", "fetch", "write")[n % 3], started_at=NOW + n, duration_seconds=0.2,
            arguments={"path": f"/srv/data/{start + n}.json", "limit": n % 50}, result=f"{n} rows, then {start + n}",
        )
        for n in range(size)
    ]  # fmt: skip


def begun(start: int, size: int) -> list[RunStarted]:
    numbers = range(start // RUN, (start + size - 1) // RUN + 1)
    return [RunStarted(Run(id=f"run_{n}", agent="nightly", started_at=NOW)) for n in numbers]


class Clock:
    """CPU seconds of this thread and of the server's process, and seconds."""

    def __init__(self, pid: int) -> None:
        self._file = open(f"/proc/{pid}/schedstat", "rb", buffering=0)  # noqa: SIM115

    def spent(self, work: Callable[[], object]) -> tuple[float, float, float]:
        before = self._now()
        work()
        ours, theirs, took = (after - one for after, one in zip(self._now(), before, strict=True))
        return ours, theirs, took

    def _now(self) -> tuple[float, float, float]:
        return (
            time.thread_time(), int(os.pread(self._file.fileno(), 64, 0).split()[0]) / 1e9, time.perf_counter()
        )  # fmt: skip


def measured(
    store: PostgresStore, sizes: Sequence[int], rounds: int, start: int = 0
) -> dict[int, dict[str, list[tuple[float, ...]]]]:
    with store.write_transaction(DEFAULT_TENANT) as writer:
        pid = writer.raw_connection.info.backend_pid
        writer.raw_connection.execute(STAGED.format("kept", "DELETE ROWS"))
    clock, found = Clock(pid), {}
    ways: dict[str, Callable[..., None]] = {
        "statement": by_statement,
        "COPY, kept": partial(by_copy, into="kept"),
        "COPY, made": partial(by_copy, into="made"),
    }

    def put(way: Callable[..., None], rows: Sequence[tuple[Any, ...]]) -> None:
        with store.write_transaction(DEFAULT_TENANT) as writer:
            way(writer, rows)

    for size in sizes:
        spent: dict[str, list[tuple[float, ...]]] = {name: [] for name in (*ways, "whole")}
        for _ in range(rounds):
            for name, way in ways.items():
                store.append(DEFAULT_TENANT, begun(start, size), f"j{start}", 1)
                rows = [step_row(DEFAULT_TENANT, step) for step in steps(start, size)]
                spent[name].append(clock.spent(partial(put, way, rows)))
                start += max(size, RUN)
            events: list[AnyEvent] = [*begun(start, size), *map(StepEnded, steps(start, size))]
            spent["whole"].append(clock.spent(partial(store.append, DEFAULT_TENANT, events, f"j{start}", 1)))
            start += max(size, RUN)
        assert store.writer is not None
        assert store.writer.raw_connection.info.backend_pid == pid
        found[size] = spent
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=40)
    asked.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    asked.add_argument("--postgres", metavar="URL")
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    with contextlib.ExitStack() as opened:
        server = given.postgres or opened.enter_context(postgres.Server(durable=True, max_wal_size="4GB")).url
        url = opened.enter_context(postgres.fresh_database(server))
        store = opened.enter_context(contextlib.closing(PostgresStore(url, clock=lambda: NOW)))
        measured(store, given.sizes, 3)  # what is prepared once is prepared
        found = measured(store, given.sizes, given.rounds, start=10**9)
    told = {
        size: {
            name: {
                "client_us": round(statistics.median(each[0] for each in all) / size * 1e6, 2),
                "server_us": round(statistics.median(each[1] for each in all) / size * 1e6, 2),
                "calls_a_second": round(size / statistics.median(each[2] for each in all)),
            }
            for name, all in ways.items()
        }
        for size, ways in found.items()
    }
    if given.json:
        print(json.dumps(told))
        return
    print("| calls a batch | way | CPU us a call, ours | the server's | both | calls a second |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size, ways in told.items():
        for name, each in ways.items():
            both = each["client_us"] + each["server_us"]
            print(
                f"| {size:,} | {name} | {each['client_us']:.1f} | {each['server_us']:.1f} | {both:.1f} "
                f"| {each['calls_a_second']:,} |"
            )


if __name__ == "__main__":
    main()
