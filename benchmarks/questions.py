"""What questions cost when a million and ten million calls are kept, beside raw SQL over the same file and DuckDB.

    python benchmarks/questions.py [--calls 1000000 10000000] [--folder DIR] [--keep] [--json]
    python benchmarks/questions.py --store postgresql    the same in PostgreSQL: on a server of its own, or at a URL
    python benchmarks/questions.py --append 40           how many calls a second PostgreSQL and SQLite take in, and two
                                                         writers of one tenant in PostgreSQL beside one

A store is filled in bulk (`filling.py`) with a month of calls. Ten million take some minutes and some gigabytes, which
are removed afterwards. Then each question is asked in turn, by every way, for as many rounds; what is told is the
median of the CPU time, of all threads. Before that every answer is held against DuckDB's: a fast wrong one would be
worth nothing. Last, it is asked with the most unfolded changes of counters that there may be. The file is in the page
cache throughout: run ids grow with time here, so that filling is quick, which makes no difference to reading. Of
PostgreSQL the CPU of its process that answers is counted with ours.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from filling import NOW, Filler, history, hours, run_id
from msgspec.structs import replace

from mulligan.contract.counters import DAY, HOUR, StatsQuery
from mulligan.contract.store import DEFAULT_TENANT, PatternQuery, Store
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.report import stats as report
from mulligan.store.sql import DatabaseStore
from mulligan.store.sqlite import SqliteStore

UNFOLDED_TARGET = 60
"""Milliseconds of CPU of any question, with as many unfolded changes of the counters as there may be."""
TARGETS = {"type and code, 7 d": 25, "success by tool, 7 d": 25, "top 10 patterns, 7 d": 100, "percentiles, 24 h": 25}


# Asking


class Ways(NamedTuple):
    """One question, by each way to ask it."""

    ours: Callable[[], Any]
    raw: str
    column: str


def ways(store: Store) -> dict[str, Ways]:
    week, day = (NOW - 7 * DAY) // DAY * DAY, (NOW - DAY) // HOUR * HOUR

    def percentiles() -> dict[str, Any]:
        stats = store.stats(DEFAULT_TENANT, StatsQuery(now=NOW, since=NOW - DAY, by="tool"))
        return {tool: report.percentile_summary(cell.seconds) for tool, cell in stats.parts.items()}

    quantiles = "quantile_cont(seconds, [0.5, 0.95, 0.99])"
    return {
        "type and code, 7 d": Ways(
            lambda: {
                kind: cell.attempts
                for kind, cell in store.stats(
                    DEFAULT_TENANT, StatsQuery(now=NOW, since=NOW - 7 * DAY, by="kind")
                ).parts.items()
            },
            f"SELECT kind, count(*) FROM steps WHERE tenant = 'local' AND started_at >= {week} AND kind IS NOT NULL "
            "GROUP BY 1",
            f"SELECT kind, count(*) FROM facts WHERE started >= {week} AND kind IS NOT NULL GROUP BY 1",
        ),
        "success by tool, 7 d": Ways(
            lambda: {
                tool: (cell.calls, cell.first_try)
                for tool, cell in store.stats(
                    DEFAULT_TENANT, StatsQuery(now=NOW, since=NOW - 7 * DAY, by="tool")
                ).parts.items()
            },
            f"SELECT name, count(*), sum(outcome = 'success') FROM steps WHERE tenant = 'local' "
            f"AND started_at >= {week} "
            "AND seq = call GROUP BY 1",
            f"SELECT name, count(*), sum((outcome = 'success')::INT) FROM facts WHERE started >= {week} "
            "AND attempt = 1 GROUP BY 1",
        ),
        "top 10 patterns, 7 d": Ways(
            lambda: [
                (each.tool, each.fingerprint, each.occurrences)
                for each in store.patterns(DEFAULT_TENANT, PatternQuery(since=NOW - 7 * DAY, limit=10))
            ],
            f"SELECT name, fingerprint, count(*) AS n FROM steps WHERE tenant = 'local' AND started_at >= {week} "
            "AND fingerprint IS NOT NULL GROUP BY 1, 2 ORDER BY n DESC LIMIT 10",
            f"SELECT name, fingerprint, count(*) AS n FROM facts WHERE started >= {week} AND fingerprint IS NOT NULL "
            "GROUP BY 1, 2 ORDER BY n DESC LIMIT 10",
        ),
        "percentiles, 24 h": Ways(
            percentiles,
            # SQLite has no percentiles: the times themselves, in order, are what it can give.
            f"SELECT name, json_extract(body, '$.duration_seconds') AS s FROM steps WHERE tenant = 'local' "
            f"AND started_at >= {day} "
            "AND outcome = 'success' ORDER BY 1, 2",
            f"SELECT name, {quantiles} FROM facts WHERE started >= {day} AND outcome = 'success' GROUP BY 1",
        ),
    }


def check(asked: dict[str, Ways], raw: sqlite3.Connection, columns: Any) -> None:
    """Every answer of ours is DuckDB's, and DuckDB has the rows that the store has."""

    def told(name: str) -> list[Any]:
        return list(columns.execute(asked[name].column).fetchall())

    assert (
        raw.execute("SELECT count(*) FROM steps").fetchall() == columns.execute("SELECT count(*) FROM facts").fetchall()
    )
    assert dict(raw.execute(asked["type and code, 7 d"].raw)) == dict(told("type and code, 7 d"))
    assert asked["type and code, 7 d"].ours() == dict(told("type and code, 7 d"))
    assert asked["success by tool, 7 d"].ours() == {name: (n, int(ok)) for name, n, ok in told("success by tool, 7 d")}
    counts = [count for *_, count in asked["top 10 patterns, 7 d"].ours()]
    assert counts == [count for *_, count in told("top 10 patterns, 7 d")]
    ours = {name: each for name, each in asked["percentiles, 24 h"].ours().items() if each["sample_size"]}
    exact = dict(told("percentiles, 24 h"))
    assert ours.keys() == exact.keys()
    for name, values in exact.items():
        for share, value in zip((0.5, 0.95, 0.99), values, strict=True):
            near = ours[name][f"p{round(100 * share)}"]
            if ours[name]["sample_size"] * (1 - share) >= 20:  # with fewer beyond it, its neighbours are far apart
                assert 0.8 < near / value < 1.25, (name, share, near, value)


def cpu(ask: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """Milliseconds of CPU, of all threads; or by another clock."""
    gc.collect()
    began = clock()
    ask()
    return (clock() - began) * 1000


def measure(
    path: Path, facts: Path, rounds: int, raw_rounds: int, store: Store,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, Any]:  # fmt: skip
    import duckdb

    raw = sqlite3.connect(path)
    raw.execute("PRAGMA query_only=ON")
    raw.execute("PRAGMA mmap_size=8000000000")
    columns = duckdb.connect()
    columns.execute("CREATE TABLE hours (number INT, base BIGINT, block INT)")
    columns.executemany("INSERT INTO hours VALUES (?, ?, ?)", [list(hour) for hour in hours()])
    columns.execute(
        "CREATE TABLE facts AS SELECT name, outcome, kind, fingerprint, attempt, base + started AS started, seconds "
        "FROM read_csv(?, header=false, nullstr='', columns={'block': 'INT', 'name': 'VARCHAR', 'outcome': 'VARCHAR', "
        "'kind': 'VARCHAR', 'fingerprint': 'VARCHAR', 'attempt': 'INT', 'started': 'BIGINT', 'seconds': 'DOUBLE'}) "
        "JOIN hours USING (block) ORDER BY started",
        [str(facts)],
    )
    asked = ways(store)
    check(asked, raw, columns)
    times: dict[str, dict[str, list[float]]] = {name: {"ours": [], "raw": [], "duckdb": []} for name in asked}
    for turn in range(rounds):
        for name, way in asked.items():
            times[name]["ours"].append(cpu(way.ours, clock))
            times[name]["duckdb"].append(cpu(lambda sql=way.column: columns.execute(sql).fetchall()))  # type: ignore[misc]
            if turn < raw_rounds:
                times[name]["raw"].append(cpu(lambda sql=way.raw: raw.execute(sql).fetchall()))  # type: ignore[misc]
    found = {name: {way: statistics.median(each) for way, each in many.items()} for name, many in times.items()}
    page = cpu(lambda: overview(store), clock)
    unfolded = measure_unfolded(store, rounds, clock)
    for name, medians in found.items():
        medians["unfolded"] = max(measured[name] for measured in unfolded.values())
    return {
        "unfolded": unfolded,
        "questions": found,
        "run": runs(store, clock),
        "overview": page,
        "patterns": size(raw),
    }


def measure_unfolded(store: Store, rounds: int, clock: Callable[[], float]) -> dict[str, dict[str, float]]:
    """Ask with the most unfolded changes that there may be: of small batches, of large ones, and of runs of a week."""
    assert isinstance(store, DatabaseStore)
    chance, numbers = random.Random(9), itertools.count()
    sizes_sql = "SELECT count(*), coalesce(sum(length(body)), 0) FROM rollup_changes WHERE tenant = ?"
    times: dict[str, dict[str, float]] = {}
    for label, runs_per_batch, days in (("1 run a batch", 1, 0), ("100 runs a batch", 100, 0), ("of a week", 100, 7)):
        batch_count, count = 0, -1
        for is_last_cycle in (False, False, True):  # to the next fold, to the one after it, and almost to the third
            size = 0
            for number in itertools.count(1):
                if is_last_cycle and number == batch_count:
                    break
                batch = build_batch(chance, numbers, runs_per_batch, days)
                store.append(DEFAULT_TENANT, batch, f"unfolded {next(numbers)}", 1)
                before, ((count, size),) = count, store.read_rows(DEFAULT_TENANT, sizes_sql, (DEFAULT_TENANT,), True)
                if count <= before and not is_last_cycle:
                    batch_count = number
                    break
        times[label] = {
            name: statistics.median(cpu(way.ours, clock) for _ in range(rounds)) for name, way in ways(store).items()
        }
        show(f"  {label}: {count} unfolded changes, {size / 1024:.0f} KB, {max(times[label].values()):.1f} ms at most")
    return times


def build_batch(chance: random.Random, numbers: Iterator[int], count: int, days: int) -> list[AnyEvent]:
    """Build runs of the last hour, or of these last days."""
    events: list[AnyEvent] = []
    for _ in range(count):
        made = history(chance, next(numbers))
        begin = NOW - HOUR - (chance.randrange(days * DAY) if days else 0)
        run = replace(made.run, id=f"run_new{next(numbers):09d}", started_at=begin + made.run.started_at)
        run = replace(run, ended_at=run.started_at + 50_000)
        steps = (replace(step, run=run.id, started_at=begin + step.started_at) for step in made.steps)
        events += [RunStarted(run), *map(StepEnded, steps), RunEnded(run)]
    return events


def asked_of(
    where: str, path: Path, facts: Path, rounds: int, raw_rounds: int, kept: Path | None = None
) -> dict[str, Any]:
    if where == "sqlite":
        return measure(path, facts, rounds, raw_rounds, SqliteStore(path)) | {"bytes": path.stat().st_size}
    import postgres_store  # those who ask PostgreSQL have the extra

    with postgres_store.filled(where, kept, path, NOW, show) as store:
        ((size,),) = store.read_rows(DEFAULT_TENANT, "SELECT pg_database_size(current_database())")
        return measure(path, facts, rounds, raw_rounds, store, postgres_store.Clock(store)) | {"bytes": size}


def size(raw: sqlite3.Connection) -> int:
    return int(raw.execute("SELECT count(*) FROM patterns").fetchone()[0])


def overview(store: Store) -> None:
    """What `mulligan stats` asks for one page."""
    for fields in ({}, {"by": "tool", "detail": True}, {"by": "agent"}, {"by": "time"}):
        store.stats(DEFAULT_TENANT, StatsQuery(now=NOW, since=NOW - 7 * DAY, **fields))


def runs(store: Store, clock: Callable[[], float]) -> dict[str, float]:
    """One run, by its id: anyone of all."""
    chance = random.Random(4)
    known = len(list(hours()))
    spent = []
    for _ in range(2000):
        id = run_id(chance.randrange(known), 0)
        began = clock()
        found = store.run(DEFAULT_TENANT, id)
        spent.append((clock() - began) * 1000)
        assert found is not None
        assert found.steps
    spent.sort()
    return {"p50": spent[1000], "p99": spent[1980]}


def appended(where: str, batches: int) -> dict[str, list[float]]:
    """Calls a second that each store takes in, by the clock, batch by batch in turn; one call in ten of them fails."""
    import postgres_store  # those who ask PostgreSQL have the extra
    import recall

    from mulligan.store.postgres.postgres_store import PostgresStore

    chance = random.Random(8)
    rates: dict[str, list[float]] = {"SQLite": [], "PostgreSQL": []}
    with tempfile.TemporaryDirectory() as folder, postgres_store.server(where) as url:
        stores: dict[str, Store] = {
            "SQLite": SqliteStore(Path(folder) / "a.db", lambda: recall.NOW),
            "PostgreSQL": PostgresStore(url, clock=lambda: recall.NOW),
        }
        for at in range(batches):
            first = at * recall.BATCH
            batch = [event for each in range(first, first + recall.BATCH) for event in recall.run(chance, each)]
            count = sum(isinstance(event, StepEnded) for event in batch)
            for name, store in stores.items():
                spent = cpu(partial(store.append, DEFAULT_TENANT, batch, f"j{at}", 1), time.perf_counter)
                rates[name].append(1000 * count / spent)
        for store in stores.values():
            store.close()
    return rates


def run_writer(url: str, first: int, batches: int, begin: Any, results: Any) -> None:
    """Write batches to PostgreSQL from this process and put its measurements into `results`.

    They are: calls, CPU seconds of client and server, start and end, and seconds that both waited for a core.
    """
    import os

    import recall

    from mulligan.store.postgres.postgres_store import PostgresStore

    os.setsid()  # Linux shares CPU between sessions: in one session, two writers would get the share of one
    chance = random.Random(first)
    starts = range(first, first + batches * recall.BATCH, recall.BATCH)
    events = [
        [event for number in range(start, start + recall.BATCH) for event in recall.run(chance, number)]
        for start in starts
    ]
    store = PostgresStore(url, clock=lambda: recall.NOW)
    store.append(DEFAULT_TENANT, list(recall.run(chance, first + 10**7)), f"first {first}", 1)
    assert store.writer is not None
    schedules = Path("/proc/self/schedstat"), Path(f"/proc/{store.writer.raw_connection.info.backend_pid}/schedstat")

    def read_schedules() -> tuple[float, float]:
        """Return the CPU seconds of the server, and the seconds that client and server waited for a core."""
        (_, client_wait, _), (server_cpu, server_wait, _) = (map(int, path.read_text().split()) for path in schedules)
        return server_cpu / 1e9, (client_wait + server_wait) / 1e9

    begin.wait()
    client_before, (server_before, wait_before), start = time.process_time(), read_schedules(), time.perf_counter()
    for number, batch in enumerate(events):
        store.append(DEFAULT_TENANT, batch, f"{first} {number}", 1)
    client_seconds, end = time.process_time() - client_before, time.perf_counter()
    calls = sum(isinstance(event, StepEnded) for batch in events for event in batch)
    server_after, wait_after = read_schedules()
    results.put((calls, client_seconds, server_after - server_before, start, end, wait_after - wait_before))
    store.close()


def compare_writers(where: str, batches: int, rounds: int = 3) -> Iterator[str]:
    """Measure one writer and two writers of one tenant in turn. Yield calls per second and CPU per call.

    Counters are folded at about every 6th batch. With fewer batches, the result depends on which writer folds.
    """
    import multiprocessing

    import postgres_store

    context = multiprocessing.get_context("fork")
    with postgres_store.server(where) as url:
        measurements: dict[int, list[tuple[float, float, float, float]]] = {1: [], 2: []}
        for number in range(rounds + 1):
            for writers, rows in measurements.items():
                begin, results = context.Barrier(writers), context.Queue()
                starts = [(number * 9 + writers * 3 + index) * 10**8 for index in range(writers)]
                processes = [
                    context.Process(target=run_writer, args=(url, start, batches if number else 2, begin, results))
                    for start in starts
                ]
                for process in processes:
                    process.start()
                columns = list(zip(*(results.get() for _ in processes), strict=True))
                for process in processes:
                    process.join()
                calls, client, server = map(sum, columns[:3])
                seconds = max(columns[4]) - min(columns[3])
                if number:  # the first round warms up
                    waiting_ratio = sum(columns[5]) / writers / seconds
                    rows.append((calls / seconds, client / calls * 1e6, server / calls * 1e6, waiting_ratio))
    for writers, rows in measurements.items():
        rate, client, server, waiting_ratio = map(statistics.median, zip(*rows, strict=True))
        yield (
            f"PostgreSQL, {writers} {'writer' if writers == 1 else 'writers'}: {rate:,.0f} calls/s, CPU per call "
            f"client {client:.1f} us, server {server:.1f} us, waiting for a core {100 * waiting_ratio:.0f} %"
        )
    ratios = [pair[0] / single[0] for single, pair in zip(measurements[1], measurements[2], strict=True)]
    yield f"throughput of two writers of one tenant, ratio to one: {statistics.median(ratios):.2f}"


def show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(found: dict[int, dict[str, Any]]) -> Iterator[str]:
    smallest, largest = min(found), max(found)
    head = ["CPU ms", *(f"ours, {calls:,}" for calls in found), "ratio", "target", "unfolded", "raw SQL", "DuckDB"]
    lines = [head]
    for name, target in TARGETS.items():
        ours = {calls: each["questions"][name]["ours"] for calls, each in found.items()}
        beside = found[largest]["questions"][name]
        ratio = ours[largest] / ours[smallest]
        lines.append(
            [
                name,
                *(f"{each:.1f}" for each in ours.values()),
                f"{ratio:.2f}",
                f"<= {target}",
                f"{beside['unfolded']:.1f}",
                f"{beside['raw']:,.0f}",
                f"{beside['duckdb']:.0f}",
            ]
        )
    for name, of in (("one run, p50", "p50"), ("one run, p99", "p99")):
        each = [found[calls]["run"][of] for calls in found]
        lines.append([name, *(f"{one:.2f}" for one in each), f"{each[-1] / each[0]:.2f}", "<= 5", "", "", ""])
    pages = [found[calls]["overview"] for calls in found]
    lines.append(
        ["mulligan stats, one page", *(f"{one:.0f}" for one in pages), f"{pages[-1] / pages[0]:.2f}", "", "", "", ""]
    )
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    for line in lines:
        yield "  ".join(
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )


def missed(found: dict[int, dict[str, Any]]) -> Iterator[str]:
    """The targets that were not met: a time at the largest, and what a question may cost more than at the smallest."""
    smallest, largest = found[min(found)], found[max(found)]
    for name, target in TARGETS.items():
        ours, before = largest["questions"][name]["ours"], smallest["questions"][name]["ours"]
        if ours > target:
            yield f"{name}: {ours:.1f} ms, more than {target}"
        if (unfolded := largest["questions"][name]["unfolded"]) > UNFOLDED_TARGET:
            yield f"{name}: {unfolded:.1f} ms with unfolded changes, more than {UNFOLDED_TARGET}"
        if ours > 1.5 * before and ours > 5:  # below that it is the clock that is measured
            yield f"{name}: {ours / before:.2f} times of what it takes at the smallest, more than 1.5"
    if largest["run"]["p99"] > 5:
        yield f"one run: {largest['run']['p99']:.1f} ms, more than 5"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--folder", type=Path, help="where the stores are made (a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="leave the stores there, and use those that are")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--raw-rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--store", default="sqlite", help="sqlite, postgresql, or the URL of a server")
    parser.add_argument("--append", type=int, metavar="BATCHES", help="instead: how fast PostgreSQL and SQLite take in")
    given = parser.parse_args()
    if given.append:
        where = "postgresql" if given.store == "sqlite" else given.store
        for name, rates in appended(where, given.append).items():
            print(f"{name}: {statistics.median(rates):,.0f} calls a second are taken in")
        for line in compare_writers(where, given.append):
            print(line, flush=True)
        return
    folder = given.folder or Path(tempfile.mkdtemp(prefix="mulligan-questions-"))
    found: dict[int, dict[str, Any]] = {}
    try:
        for count in sorted(given.calls):
            path, facts = folder / f"{count}.db", folder / f"{count}.csv"
            if not (path.exists() and facts.exists()):
                show(f"{count:,} calls:")
                filler = Filler(path, count)
                filler.write_facts(facts)
                filler.fill(show)
            kept = folder if given.keep else None
            found[count] = asked_of(given.store, path, facts, given.rounds, given.raw_rounds, kept)
            if not given.keep:
                for left in folder.glob(f"{count}.*"):
                    left.unlink()
    finally:
        if given.folder is None and not given.keep:
            shutil.rmtree(folder)
    if given.json:
        print(json.dumps(found))
        return
    for count, each in found.items():
        print(f"{count:,} calls: {each['bytes'] / 1e9:.1f} GB, {each['patterns']:,} patterns")
    print("\n".join(table(found)))
    if given.store != "sqlite":
        print("of ours: this process and the one of PostgreSQL that answers; raw SQL over a file of SQLite")
    for miss in missed(found):
        print(f"missed: {miss}")
    sys.exit(1 if any(missed(found)) else 0)


if __name__ == "__main__":
    main()
