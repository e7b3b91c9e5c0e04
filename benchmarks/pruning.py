"""What retention costs in PostgreSQL: a day of calls that worked goes, and the few that failed stay.

    python benchmarks/pruning.py [--calls N] [--failed SHARE] [--rounds N] [--postgres URL] [--json]

The same day, in copies of one database: taken out run by run, as in SQLite, and as a whole, as the store does; with
runs that stay, and without. CPU is that of our thread and of the server's process. Sizes are the day's part of the
steps with its indices, after VACUUM: nobody writes to a day that is over, so what is deleted there is free for nobody.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import postgres  # type: ignore[import-not-found]
import psycopg

from mulligan.contract.store import DAY, DEFAULT_TENANT, Retention
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Run, Step
from mulligan.store.postgres.partitions import PartitionPruneRound
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.retention import PruneRound

TODAY = 20_000
RUN = 5
"""Calls of a run."""
BATCH = 500
"""Runs that come at a time."""
LATE = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "no answer after 3 s", fingerprint="f-late")


class RunByRun(PartitionPruneRound):
    _by_age = PruneRound._by_age


WAYS = {"run by run": RunByRun, "as a whole": PartitionPruneRound}
POLICIES = {
    "what failed stays": Retention(keep_successes=30 * DAY, keep_failures=90 * DAY, compress_after=None),
    "nothing stays": Retention(keep_successes=30 * DAY, keep_failures=30 * DAY, compress_after=None),
}


def run(number: int, has_failed: bool) -> Iterator[AnyEvent]:
    id, at = f"run_{number:012}", TODAY * DAY + number
    yield RunStarted(Run(id=id, agent="nightly", started_at=at))
    for n in range(1, RUN + 1):
        failed: dict[str, Any] = {"outcome": "failure", "failure": LATE} if has_failed and n == 2 else {}
        yield StepEnded(
            Step(
                run=id, seq=n, call=n, name=("search", "fetch", "write")[n % 3], started_at=at + n,
                duration_seconds=0.2, arguments={"path": f"/srv/data/{number}/{n}.json", "limit": n % 50},
                result=f"{n} rows of {number}", **failed,
            )
        )  # fmt: skip
    yield RunEnded(Run(id=id, agent="nightly", started_at=at, ended_at=at + 9, end_reason="finished"))


def filled(url: str, calls: int, failed: float) -> None:
    with contextlib.closing(PostgresStore(url, clock=lambda: TODAY * DAY + 7)) as store:
        number = 0
        while number * RUN < calls:
            some = range(number, min(number + BATCH, calls // RUN))
            often = round(1 / failed) if failed else 2**62
            store.append(DEFAULT_TENANT, [event for n in some for event in run(n, n % often == 1)], f"j{number}", 1)
            number = some.stop
    with psycopg.connect(url, autocommit=True) as made:
        made.execute("VACUUM ANALYZE")


def pruned(url: str, way: type[PruneRound], policy: Retention) -> dict[str, float]:
    now = (TODAY + 40) * DAY
    with contextlib.closing(PostgresStore(url, clock=lambda: now)) as store:
        with store.write_transaction(DEFAULT_TENANT) as writer:
            pid = writer.raw_connection.info.backend_pid
        round = way(
            store.write_transaction,
            partial(store.read_connection, DEFAULT_TENANT),
            DEFAULT_TENANT,
            policy,
            now,
        )
        before = _clocks(pid)
        done = round.perform()
        ours, theirs, took = (after - one for after, one in zip(_clocks(pid), before, strict=True))
    with psycopg.connect(url, autocommit=True) as made:
        made.execute("VACUUM ANALYZE")
        (size,) = made.execute(
            "SELECT coalesce(pg_total_relation_size(to_regclass(%s)), 0)", (f"steps_{TODAY}",)
        ).fetchone() or (0,)
    return {"runs": done.runs, "seconds": took, "client_cpu": ours, "server_cpu": theirs, "left_bytes": size}


def _clocks(pid: int) -> tuple[float, float, float]:
    theirs = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return time.thread_time(), theirs, time.perf_counter()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--calls", type=int, default=100_000)
    asked.add_argument("--failed", type=float, default=0.05, help="the share of runs in which a call fails")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--postgres", metavar="URL")
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    found: dict[str, dict[str, dict[str, float]]] = {}
    with contextlib.ExitStack() as opened:
        server = given.postgres or opened.enter_context(postgres.Server(durable=True, max_wal_size="4GB")).url
        full = opened.enter_context(postgres.fresh_database(server))
        filled(full, given.calls, given.failed)
        with psycopg.connect(full) as made:
            (before,) = made.execute("SELECT pg_total_relation_size(%s)", (f"steps_{TODAY}",)).fetchone() or (0,)
        template = full.rpartition("/")[2]
        for sort, policy in POLICIES.items():
            rounds: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
            for _ in range(given.rounds):
                for name, way in WAYS.items():
                    with postgres.fresh_database(server, template) as url:
                        rounds[name].append(pruned(url, way, policy))
            found[sort] = {
                name: {key: statistics.median(one[key] for one in each) for key in each[0]}
                for name, each in rounds.items()
            }
    if given.json:
        print(json.dumps({"before_bytes": before, **found}))
        return
    print(f"{given.calls:,} calls in runs of {RUN}, {before / 1e6:,.1f} MB of steps\n")
    print("| | | runs gone | s | CPU s, ours | the server's | MB of steps left |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for sort, ways in found.items():
        for name, each in ways.items():
            print(
                f"| {sort} | {name} | {each['runs']:,.0f} | {each['seconds']:.2f} | {each['client_cpu']:.2f} "
                f"| {each['server_cpu']:.2f} | {each['left_bytes'] / 1e6:.1f} |"
            )


if __name__ == "__main__":
    main()
