"""The same store on Citus and on plain PostgreSQL, and several `mulligan serve` on one store.

    python benchmarks/scale.py [--citus DIR] [--quick] [--only append questions servers] [--json]
    python benchmarks/scale.py --capacity FILE    print the tables of docs/capacity.md from the output of --json

`--citus` names the programs of a PostgreSQL with Citus: a coordinator and two workers are started on loopback, beside
one plain PostgreSQL of the same programs. Without Citus only plain PostgreSQL is measured.

- append: two writers, each with its own tenants, in batches of 1, 10 and 100 runs of ten calls, one call in ten fails.
- questions: what a page, a report and a memory lookup ask, about the same data. The answers must be equal.
- servers: 1 and 2 servers behind a balancer, small and batched writes; 4 servers for correctness. Every acknowledged
  run must be there once, and counters must equal rows.

Both databases get the same records in alternating rounds, with fsync and without autovacuum. A ratio is the median of
the ratios of these rounds. CPU is that of our processes and of each node's processes. Latency is by the clock; of each
question the median of its rounds counts. Exit 1 if a target is missed, 2 if it cannot be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import gzip
import itertools
import json
import math
import multiprocessing
import os
import random
import re
import socket
import statistics
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import postgres  # type: ignore[import-not-found]
import psycopg
import recall
from balancer import Balancer  # type: ignore[import-not-found]
from server_writers import Write, build_small_write, measure_writers, send_again

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DAY, DEFAULT_TENANT, LessonQuery, PatternQuery, RunQuery, Store
from mulligan.core.events import StepEnded
from mulligan.server.tenants import Tokens
from mulligan.store.postgres import postgres_tables
from mulligan.store.postgres.postgres_store import PostgresStore
from server import Server, batches

APPEND_RATIO, RECALL_P99 = 0.6, 5.0
"""Targets: Citus over plain PostgreSQL on the same cores, in each size of batch; milliseconds of a memory lookup."""
PARTS = ("append", "questions", "servers")
OPTIONS = {"shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum": "off"}
SHARDS = "8"
WRITERS = 2
TENANTS = (DEFAULT_TENANT, *(f"tenant_{number}" for number in range(1, 8)))
RUNS_PER_ROUND = {1: 60, 10: 200, 100: 400}
"""Runs that each writer appends in a round, by the runs of a batch."""
LOOKUPS = ("the same failure", "one like it", "calls that worked", "precedents")
SMALL_WRITERS, BATCH_WRITERS = 48, 8
NETWORK_BYTES = struct.Struct("=120xQQ")
"""Bytes acknowledged and received, in Linux's `tcp_info`."""


class Sizes(NamedTuple):
    rounds: int
    share: float
    """Of the runs of a round."""
    filled_runs: int
    """Runs that each writer appends to its first tenant before the rounds."""
    lookups: int
    """Lookups of each of the four ways."""
    seconds: float
    """Of a round of writes through servers."""


FULL = Sizes(rounds=5, share=1.0, filled_runs=5000, lookups=150, seconds=4.0)
QUICK = Sizes(rounds=2, share=0.2, filled_runs=300, lookups=20, seconds=1.5)


class Database(NamedTuple):
    name: str
    url: str
    owner_url: str
    nodes: Sequence[Any]
    """Servers of the tests: the workers, then the one to connect to."""

    def node_cpu(self) -> tuple[float, float]:
        """Return the CPU seconds so far of the coordinator, or of plain PostgreSQL, and of all workers."""
        *workers, coordinator = (_cpu_seconds(node.process.pid) for node in self.nodes)
        return coordinator, sum(workers)

    def wal_bytes(self) -> int:
        """Return the bytes of the write-ahead logs of all nodes so far."""
        total = 0
        for node in self.nodes:
            with psycopg.connect(node.url) as connection:
                row = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").fetchone()
                total += int(row[0]) if row else 0
        return total

    def stored_bytes(self) -> int:
        with psycopg.connect(self.owner_url) as connection:
            return postgres_tables.measure_database(connection)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all processes of a database server."""
    spent = 0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            spent += int(Path(f"/proc/{child}/schedstat").read_text().split()[0])
    return spent / 1e9


def start_databases(citus: str) -> list[Database]:
    """Start plain PostgreSQL, and the cluster if there is one to be had. They end with this process."""
    install, clusters = None, {}
    try:
        postgres.CITUS = citus or "PATH"
        install = postgres.citus_installation()
        clusters["Citus"] = postgres.start_cluster(os.getpid(), True, **OPTIONS, **{"citus.shard_count": SHARDS})
    except postgres.Unavailable as reason:
        if citus:
            raise SystemExit(f"error: {reason}") from None
        print(f"Citus is not measured: {reason}", file=sys.stderr)
    plain = postgres.Server(True, install=install, auth="trust", **OPTIONS)
    databases = []
    for name, nodes in {"PostgreSQL": [plain], **clusters}.items():
        url = postgres.make_database(nodes[-1].url, "scale")
        databases.append(Database(name, url, postgres.named(nodes[-1].url, "scale"), nodes))
        PostgresStore(url).close()  # creates the tables
    return databases


# Append


class Order(NamedTuple):
    """What a writer is to append."""

    tenants: Sequence[str]
    first: int
    runs: int
    """In total, over its tenants in turn."""
    batch: int
    """Runs in a batch."""


def run_writer(url: str, pipe: Any) -> None:
    """Append what is ordered, until told to end. Answer with calls, CPU seconds, bytes, start and end."""
    os.setsid()  # Linux shares CPU between sessions: in one session, two writers would get the share of one
    store = PostgresStore(url, clock=lambda: recall.NOW)
    while (order := pipe.recv()) is not None:
        chance = random.Random(order.first)
        starts = range(order.first, order.first + order.runs, order.batch)
        prepared = [
            [event for number in range(start, start + order.batch) for event in recall.run(chance, number)]
            for start in starts
        ]
        pipe.send("prepared")
        pipe.recv()
        network, cpu, begun = _network_bytes(store), time.process_time(), time.perf_counter()
        for place, (start, events) in enumerate(zip(starts, prepared, strict=True)):
            store.append(order.tenants[place % len(order.tenants)], events, "writer", start + 1)
        end, cpu = time.perf_counter(), time.process_time() - cpu
        calls = sum(isinstance(event, StepEnded) for events in prepared for event in events)
        pipe.send((calls, cpu, _network_bytes(store) - network, begun, end))
    store.close()


def _network_bytes(store: PostgresStore) -> int:
    """Return the bytes that the store's writer sent and received."""
    if store.writer is None:
        return 0
    with socket.socket(fileno=os.dup(store.writer.raw_connection.fileno())) as copied:
        return sum(NETWORK_BYTES.unpack_from(copied.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)))


class Writers:
    """Processes that append to one database, each to its own tenants."""

    def __init__(self, database: Database) -> None:
        self.database = database
        context = multiprocessing.get_context("fork")
        self._pipes, self._first = [], 0
        for _ in range(WRITERS):
            ours, theirs = context.Pipe()
            context.Process(target=run_writer, args=(database.url, theirs), daemon=True).start()
            self._pipes.append(ours)

    def append(self, tenants: Sequence[str], runs: int, batch: int) -> dict[str, float]:
        """Append so many runs with each writer. Return calls a second, and CPU and bytes per call."""
        for number, pipe in enumerate(self._pipes):
            pipe.send(Order(tenants[number::WRITERS], self._first, runs, batch))
        self._first += runs
        for pipe in self._pipes:
            pipe.recv()
        coordinator, workers = self.database.node_cpu()
        for pipe in self._pipes:
            pipe.send("begin")
        calls, client, network, begun, end = zip(*(pipe.recv() for pipe in self._pipes), strict=True)
        coordinator_after, workers_after = self.database.node_cpu()
        total = sum(calls)
        return {
            "calls": total,
            "calls_per_second": total / (max(end) - min(begun)),
            "client_us": 1e6 * sum(client) / total,
            "coordinator_us": 1e6 * (coordinator_after - coordinator) / total,
            "workers_us": 1e6 * (workers_after - workers) / total,
            "network_bytes": sum(network) / total,
        }

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)


def measure_append(databases: Sequence[Database], sizes: Sizes) -> dict[str, Any]:
    """Append the same runs to all databases in alternating rounds."""
    writers = {database.name: Writers(database) for database in databases}
    calls = dict.fromkeys(writers, 0.0)
    for name, group in writers.items():
        show(f"append: filling {name}")
        calls[name] += group.append(TENANTS[:WRITERS], sizes.filled_runs, 100)["calls"]
    wal = {database.name: database.wal_bytes() for database in databases}
    filled = dict(calls)
    found: dict[str, Any] = {}
    for batch, runs in RUNS_PER_ROUND.items():
        show(f"append: batches of {batch} runs")
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in writers}
        for number in range(sizes.rounds + 1):
            for name in _alternate(writers, number):
                measured = writers[name].append(TENANTS, max(batch, int(runs * sizes.share)), batch)
                calls[name] += measured["calls"]
                if number:  # the first round warms up
                    rounds[name].append(measured)
        found[str(batch)] = {name: _medians(measured) for name, measured in rounds.items()}
        rates = {name: [row["calls_per_second"] for row in rows] for name, rows in rounds.items()}
        found[str(batch)]["ratio"] = _ratio(rates["PostgreSQL"], rates.get("Citus", []))
    for database in databases:
        found.setdefault("bytes", {})[database.name] = {
            "calls": calls[database.name],
            "stored_bytes": database.stored_bytes() / calls[database.name],
            "wal_bytes": (database.wal_bytes() - wal[database.name]) / (calls[database.name] - filled[database.name]),
        }
    for group in writers.values():
        group.close()
    return found


def _alternate(names: Mapping[str, Any], number: int) -> list[str]:
    return list(names) if number % 2 else list(names)[::-1]


def _medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def _ratio(plain: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the median of the ratios of rounds; None without the other."""
    return statistics.median(b / a for a, b in zip(plain, other, strict=True)) if other else None


# Questions

Question = Callable[[Store], object]


def questions(lookups: int) -> dict[str, list[Question]]:
    """Return what is asked, by name."""
    month = partial(StatsQuery, now=recall.NOW, since=recall.NOW - 30 * DAY)
    runs = [f"run_{number:016d}" for number in range(0, 200, 2)]
    asked: dict[str, list[Question]] = {
        "stats by kind": [partial(_stats, month(by="kind"))] * 5,
        "stats by tool": [partial(_stats, month(by="tool"))] * 5,
        "top 10 patterns": [lambda store: store.patterns(DEFAULT_TENANT, PatternQuery(limit=10))] * 5,
        "page of 20 runs": [lambda store: store.runs(DEFAULT_TENANT, RunQuery(limit=20))] * 5,
        "one run": [partial(_run, id) for id in runs],
        "lessons of a tool": [partial(_lessons, f"tool_{number}") for number in range(50)],
    }
    return asked | {name: recall.questions()[name][:lookups] for name in LOOKUPS}


def _stats(query: StatsQuery, store: Store) -> object:
    return store.stats(DEFAULT_TENANT, query)


def _lessons(tool: str, store: Store) -> object:
    return store.lessons(DEFAULT_TENANT, LessonQuery(tool=tool, now=recall.NOW))


def _run(id: str, store: Store) -> object:
    return store.run(DEFAULT_TENANT, id)


def measure_questions(databases: Sequence[Database], sizes: Sizes) -> dict[str, Any]:
    """Ask every database the same in alternating rounds. Return milliseconds, CPU, and how many answers differ."""
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as opened:
        stores = {
            database.name: opened.enter_context(
                contextlib.closing(PostgresStore(database.url, clock=lambda: recall.NOW))
            )
            for database in databases
        }
        for name, store in stores.items():
            show(f"questions: consolidating lessons in {name}")
            store.consolidate(DEFAULT_TENANT, recall.NOW)
        for database in databases:
            with psycopg.connect(database.owner_url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
        gc.collect()
        gc.freeze()
        for question, asked in questions(sizes.lookups).items():
            show(f"questions: {question}")
            latencies: dict[str, list[list[float]]] = {name: [] for name in stores}
            cpu: dict[str, list[dict[str, float]]] = {name: [] for name in stores}
            answers: dict[str, list[object]] = {}
            for number in range(sizes.rounds + 1):
                for name in _alternate(stores, number):
                    database = next(database for database in databases if database.name == name)
                    before, taken, replies = (time.process_time(), *database.node_cpu()), [], []
                    for ask in asked:
                        started_at = time.perf_counter()
                        replies.append(ask(stores[name]))
                        taken.append(1000 * (time.perf_counter() - started_at))
                    after = time.process_time(), *database.node_cpu()
                    if number:
                        latencies[name].append(taken)
                        spent = [1e6 * (end - begin) / len(asked) for begin, end in zip(before, after, strict=True)]
                        cpu[name].append(dict(zip(("client_us", "coordinator_us", "workers_us"), spent, strict=True)))
                    else:  # the first round warms up
                        answers[name] = replies
            totals = {name: [sum(row.values()) for row in rows] for name, rows in cpu.items()}
            found[question] = {"ratio": _ratio(totals["PostgreSQL"], totals.get("Citus", []))}
            for name in stores:
                each = sorted(statistics.median(of_one) for of_one in zip(*latencies[name], strict=True))
                found[question][name] = {
                    "p50_ms": each[len(each) // 2],
                    "p99_ms": each[int(0.99 * len(each))],
                    "cpu_us": statistics.median(totals[name]),
                    **_medians(cpu[name]),
                    "differing": sum(a != b for a, b in zip(answers[name], answers["PostgreSQL"], strict=True)),
                }
    return found


# Servers


def measure_servers(database: Database, sizes: Sizes) -> dict[str, Any]:
    """Write through 1 and 2 servers behind a balancer in alternating rounds, and through 4. Check what is stored."""
    found: dict[str, Any] = {"store": database.name}
    url = postgres.make_database(database.nodes[-1].url, "servers")
    database = database._replace(url=url, owner_url=postgres.named(database.nodes[-1].url, "servers"))
    with contextlib.closing(PostgresStore(url)) as store:
        tokens = {tenant: Tokens(store).create("ingest", 0, tenant=tenant)[1] for tenant in TENANTS}
    serve = ("-m", "mulligan", "serve", "--no-prune", "--port", "0", "--store", url)
    acknowledged: dict[str, dict[str, int]] = {tenant: {} for tenant in TENANTS}
    template = batches(1, random.Random(7))[0]
    calls = template.count(b'"run":"run_')
    found["body_bytes"] = len(template) / calls
    found["body_bytes_compressed"] = len(gzip.compress(template, 1)) / calls
    with contextlib.ExitStack() as stack:
        servers = [Server(*serve) for _ in range(4)]
        for server in servers:
            stack.callback(server.close)
        balancer = stack.enter_context(Balancer([server.port for server in servers]))
        bodies = Bodies(tokens, template)
        kinds: dict[str, tuple[Callable[[int], Write], int]] = {
            "small": (bodies.build_small, SMALL_WRITERS),
            "batched": (bodies.build_batch, BATCH_WRITERS),
        }
        for kind, (build, writers) in kinds.items():
            rounds: dict[int, list[dict[str, float]]] = {1: [], 2: [], 4: []}
            for number in range(sizes.rounds + 1):
                for count in (1, 2, 4) if number == 1 else ((1, 2), (2, 1))[number % 2]:
                    show(f"servers: {kind} writes through {count}")
                    balancer.ports = [server.port for server in servers[:count]]
                    serving, (coordinator, workers) = _server_cpu(servers), database.node_cpu()
                    measured = measure_writers(balancer.port, sizes.seconds, writers=writers, build_write=build)
                    coordinator_after, workers_after = database.node_cpu()
                    for write in measured.acknowledged:
                        acknowledged[write.tenant].update(write.calls_by_run)
                    total = sum(sum(write.calls_by_run.values()) for write in measured.acknowledged)
                    if number:
                        rounds[count].append({
                            "writes_per_second": measured.per_second,
                            "calls_per_second": measured.per_second * total / len(measured.acknowledged),
                            "p99_ms": measured.p99,
                            "server_us": 1e6 * (_server_cpu(servers) - serving) / total,
                            "coordinator_us": 1e6 * (coordinator_after - coordinator) / total,
                            "workers_us": 1e6 * (workers_after - workers) / total,
                        })  # fmt: skip
            found[kind] = {str(count): _medians(rows) for count, rows in rounds.items()}
            rates = {count: [row["calls_per_second"] for row in rows] for count, rows in rounds.items()}
            found[kind]["ratio"] = _ratio(rates[1], rates[2])
        balancer.ports = [server.port for server in servers]
        found["resent"] = send_again(balancer.port, list(bodies.last_writes.values()))
        found["server_megabytes"] = max(server.megabytes() for server in servers)
    return found | check_stored(database, acknowledged)


class Bodies:
    """Builds the requests of writers, each of which writes for one tenant."""

    def __init__(self, tokens: Mapping[str, str], template: bytes) -> None:
        self._tokens, self._template = tokens, template
        self._numbers = itertools.count(1)
        calls = Counter(re.findall(rb'"run":"run_([0-9a-f]+)"', template))
        self._calls_by_run = {id.decode(): count for id, count in calls.items()}
        self.last_writes: dict[int, Write] = {}
        """The last one of each writer."""

    def build_small(self, writer: int) -> Write:
        """Build the request for one run of one call."""
        return self._add_tenant(writer, build_small_write(writer))

    def build_batch(self, writer: int) -> Write:
        """Build the request of a library with 50 runs of 9 calls."""
        number = next(self._numbers)
        body = self._template.replace(b"run_", b"run_%d_" % number).replace(b"1-j_bench", b"1-j_%d" % writer, 1)
        body = body.replace(b'"offset":1,', b'"offset":%d,' % number, 1)
        calls_by_run = {f"run_{number}_{id}": calls for id, calls in self._calls_by_run.items()}
        return self._add_tenant(writer, Write("/v1/batch", body, calls_by_run=calls_by_run))

    def _add_tenant(self, writer: int, write: Write) -> Write:
        tenant = TENANTS[writer % len(TENANTS)]
        write = self.last_writes[writer] = write._replace(tenant=tenant, token=self._tokens[tenant])
        return write


def _server_cpu(servers: Sequence[Server]) -> float:
    return sum(server.cpu() for server in servers)


def check_stored(database: Database, acknowledged: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Compare what is stored with what was acknowledged: runs, steps, and the counters of steps."""
    with psycopg.connect(database.owner_url) as connection:
        stored_runs = set(connection.execute("SELECT tenant, id FROM runs").fetchall())
        rows = connection.execute("SELECT tenant, run, count(*) FROM steps GROUP BY 1, 2").fetchall()
    stored_steps = {(tenant, run): count for tenant, run, count in rows}
    expected = {(tenant, run): calls for tenant, runs in acknowledged.items() for run, calls in runs.items()}
    with contextlib.closing(PostgresStore(database.url)) as store:
        now = int(time.time() * 1000)
        counted = sum(store.stats(tenant, StatsQuery(now=now)).total.attempts for tenant in acknowledged)
    return {
        "acknowledged_calls": sum(expected.values()),
        "lost": sum(max(0, calls - stored_steps.get(key, 0)) for key, calls in expected.items()),
        "doubled": sum(max(0, calls - expected.get(key, 0)) for key, calls in stored_steps.items()),
        "wrong_runs": len(stored_runs ^ expected.keys()),
        "miscounted": abs(counted - sum(stored_steps.values())),
    }


# Capacity

CALLS_PER_DAY = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
PEAK_RATIO = 3.0
"""Of the busiest time to the average of the day."""
MAX_UTILIZATION = 0.5
LOOKUP_SHARE = 0.1
"""Lookups per call: one for each failure."""
RETENTION_DAYS = 30
CPU_PARTS = ("server", "coordinator", "workers")
WORKER_CORES, WORKER_BYTES = 8, 4e12


def read_inputs(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the inputs of the model, from the figures of a run. CPU is in microseconds."""
    servers, store = figures["servers"], figures["servers"]["store"]
    lookups = [figures["questions"][name][store] for name in LOOKUPS]
    appended, stored = figures["append"]["100"], figures["append"]["bytes"][store]
    return {
        **{f"a call in a batch, {part} CPU us": servers["batched"]["1"][f"{part}_us"] for part in CPU_PARTS},
        **{f"a call alone, {part} CPU us": servers["small"]["1"][f"{part}_us"] for part in CPU_PARTS},
        "a call in a batch, plain PostgreSQL CPU us": appended["PostgreSQL"]["coordinator_us"],
        "a lookup, server CPU us": statistics.mean(lookup["client_us"] for lookup in lookups),
        "a lookup, coordinator CPU us": statistics.mean(lookup["coordinator_us"] for lookup in lookups),
        "a lookup, workers CPU us": statistics.mean(lookup["workers_us"] for lookup in lookups),
        "a call on disk with indexes, bytes": stored["stored_bytes"],
        "a call in the write-ahead log, bytes": stored["wal_bytes"],
        "a call from client to server, compressed, bytes": servers["body_bytes_compressed"],
        "a call between server and database, bytes": appended[store]["network_bytes"],
        "a server process, MB": servers["server_megabytes"],
    }


def compute_capacity(inputs: Mapping[str, float]) -> list[dict[str, float]]:
    """Compute what each number of calls a day needs."""
    cpu = {
        part: inputs[f"a call in a batch, {part} CPU us"] + LOOKUP_SHARE * inputs[f"a lookup, {part} CPU us"]
        for part in CPU_PARTS
    }
    # From the coordinator to the worker the same goes once more: not measured.
    network = (
        inputs["a call from client to server, compressed, bytes"]
        + 2 * inputs["a call between server and database, bytes"]
    )
    rows = []
    for calls in CALLS_PER_DAY:
        peak = PEAK_RATIO * calls / 86_400
        cores = {part: peak * spent / 1e6 / MAX_UTILIZATION for part, spent in cpu.items()}
        kept = RETENTION_DAYS * calls * inputs["a call on disk with indexes, bytes"]
        rows.append({
            "calls_per_day": calls,
            "peak_calls_per_second": peak,
            "server_processes": math.ceil(cores["server"]),
            "coordinator_cores": cores["coordinator"],
            "worker_cores": cores["workers"],
            "workers": max(math.ceil(cores["workers"] / WORKER_CORES), math.ceil(kept / WORKER_BYTES)),
            "stored_gb_per_day": kept / RETENTION_DAYS / 1e9,
            "stored_tb": kept / 1e12,
            "wal_mb_per_second": peak * inputs["a call in the write-ahead log, bytes"] / 1e6,
            "network_mb_per_second": peak * network / 1e6,
        })  # fmt: skip
    return rows


# Output


def show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def render_tables(found: Mapping[str, Any]) -> Iterator[str]:
    """Render everything that was measured as the tables of docs/capacity.md."""
    if set(PARTS) <= found.keys():
        yield from render_capacity(read_inputs(found))
    if "append" in found:
        yield from render_append(found["append"])
    if "questions" in found:
        yield from render_questions(found["questions"])
    if "servers" in found:
        yield from render_servers(found["servers"])


def _render_table(head: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {head} |"
    yield "|" + " --- |" * (head.count("|") + 1)
    yield from (f"| {' | '.join(cells)} |" for cells in rows)
    yield ""


def _render_ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def render_capacity(inputs: Mapping[str, float]) -> Iterator[str]:
    yield from _render_table(
        "calls a day | calls/s at peak | server processes | coordinator cores | worker cores | workers "
        f"| GB a day | TB in {RETENTION_DAYS} days | log MB/s | network MB/s",
        (
            (
                f"{row['calls_per_day']:,}", f"{row['peak_calls_per_second']:,.0f}", f"{row['server_processes']:,}",
                f"{row['coordinator_cores']:,.1f}", f"{row['worker_cores']:,.1f}", f"{row['workers']:,}",
                f"{row['stored_gb_per_day']:,.0f}", f"{row['stored_tb']:,.2f}", f"{row['wal_mb_per_second']:,.1f}",
                f"{row['network_mb_per_second']:,.1f}",
            )
            for row in compute_capacity(inputs)
        ),
    )  # fmt: skip
    yield from _render_table("input | figure", ((name, f"{value:,.0f}") for name, value in inputs.items()))


def render_append(found: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for batch in map(str, RUNS_PER_ROUND):
        plain, citus = found[batch]["PostgreSQL"], found[batch].get("Citus")
        rows.append((
            f"append in batches of {10 * int(batch):,} calls, calls/s",
            f"{plain['calls_per_second']:,.0f}", f"{citus['calls_per_second']:,.0f}" if citus else "-",
            _render_ratio(found[batch]["ratio"]),
        ))  # fmt: skip
        rows.append((
            "the same, CPU us a call: writer, coordinator, workers",
            f"{plain['client_us']:.0f}, {plain['coordinator_us']:.0f}",
            f"{citus['client_us']:.0f}, {citus['coordinator_us']:.0f}, {citus['workers_us']:.0f}" if citus else "-",
            _render_ratio(_sum_cpu(plain) / _sum_cpu(citus) if citus else None),
        ))  # fmt: skip
    yield from _render_table("append | plain PostgreSQL | Citus | ratio", rows)


def _sum_cpu(each: Mapping[str, float]) -> float:
    return each["client_us"] + each["coordinator_us"] + each["workers_us"]


def render_questions(found: Mapping[str, Any]) -> Iterator[str]:
    def render(each: Mapping[str, float] | None) -> str:
        return f"{each['p50_ms']:.1f}, {each['p99_ms']:.1f}; {each['cpu_us']:,.0f}" if each else "-"

    yield from _render_table(
        "question: p50 and p99 in ms; CPU us | plain PostgreSQL | Citus | ratio of CPU",
        (
            (question, render(each["PostgreSQL"]), render(each.get("Citus")), _render_ratio(each["ratio"]))
            for question, each in found.items()
        ),
    )


def render_servers(found: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for kind, calls in (("small", "one call"), ("batched", "450 calls")):
        for count in ("1", "2", "4"):
            each = found[kind][count]
            rows.append((
                f"requests of {calls}, {count} {'server' if count == '1' else 'servers'}",
                f"{each['calls_per_second']:,.0f}", f"{each['p99_ms']:,.0f}",
                f"{each['server_us']:.0f}, {each['coordinator_us']:.0f}, {each['workers_us']:.0f}",
                _render_ratio(found[kind]["ratio"] if count == "2" else None),
            ))  # fmt: skip
    yield from _render_table(
        f"servers on {found['store']} | calls/s | p99 ms | CPU us a call: server, coordinator, workers | ratio to one",
        rows,
    )
    yield (
        f"{found['acknowledged_calls']:,} calls acknowledged, {found['resent']} requests sent twice: {found['lost']} "
        f"lost, {found['doubled']} doubled, {found['miscounted']} miscounted, {found['wrong_runs']} wrong runs"
    )


def missed(found: Mapping[str, Any]) -> Iterator[str]:
    for batch in map(str, RUNS_PER_ROUND) if "append" in found else ():
        ratio = found["append"][batch]["ratio"]
        if ratio is not None and ratio < APPEND_RATIO:
            calls = 10 * int(batch)
            yield f"append on Citus, {calls:,} calls a batch: {ratio:.2f} of plain PostgreSQL, less than {APPEND_RATIO}"
    for question, stores in found.get("questions", {}).items():
        for name, each in stores.items():
            if name == "ratio":
                continue
            if question in LOOKUPS and each["p99_ms"] > RECALL_P99:
                yield f"{question}, {name}: p99 {each['p99_ms']:.1f} ms, more than {RECALL_P99:g}"
            if each["differing"]:
                yield f"{question}, {name}: {each['differing']} answers differ"
    for name in ("lost", "doubled", "wrong_runs", "miscounted"):
        if found.get("servers", {}).get(name):
            yield f"servers: {found['servers'][name]} {name.replace('_', ' ')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--citus", metavar="DIR", default="", help="programs of a PostgreSQL with Citus; else PATH")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--capacity", metavar="FILE", type=Path, help="instead: the tables from the output of --json")
    given = parser.parse_args()
    if given.capacity:
        try:
            figures = json.loads(given.capacity.read_text())
        except (OSError, ValueError) as error:
            parser.error(
                f"--capacity {given.capacity}: {error}. Write it first: python benchmarks/scale.py --json > FILE"
            )
        print("\n".join(render_tables(figures)))
        return
    if not Path("/proc/self/schedstat").exists():
        print("error: this benchmark reads /proc, which is not here.", file=sys.stderr)
        sys.exit(2)
    sizes = QUICK if given.quick else FULL
    databases = start_databases(given.citus)
    found: dict[str, Any] = {}
    if "append" in given.only or "questions" in given.only:  # the questions are about what was appended
        found["append"] = measure_append(databases, sizes)
    if "questions" in given.only:
        found["questions"] = measure_questions(databases, sizes)
    if "servers" in given.only:
        found["servers"] = measure_servers(databases[-1], sizes)
    if given.json:
        print(json.dumps(found))
    else:
        print("\n".join(render_tables(found)))
    for miss in missed(found):
        show(f"missed: {miss}")
    sys.exit(1 if any(missed(found)) else 0)


if __name__ == "__main__":
    main()
