"""What searches cost in a store of many calls, and what their index costs.

    python benchmarks/search.py [--calls 1000000] [--folder DIR] [--postgres]

Goals, at a million calls: p99 of 200 pages of results at most 150 ms of CPU, and an answer to a hostile text within
100 ms; the page Health at most 100 ms; indexing at most 15 % of the CPU of storing a call and 25 % of its bytes.

The words of arguments and results are drawn from 30,000 made-up words, the frequent ones far more often. Ids of
customers occur in about 20 runs each. Each sort of search is asked 20 times with other words, of the store and as a
page of the dashboard over HTTP. CPU is that of the whole process, and with `--postgres` also that of its PostgreSQL.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / "support")]

from mulligan.contract.store import DEFAULT_TENANT, RunQuery  # noqa: E402
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded  # noqa: E402
from mulligan.core.failure import Failure, Kind, SettingsError  # noqa: E402
from mulligan.core.records import Run, Step  # noqa: E402
from mulligan.store.sql import DatabaseStore  # noqa: E402
from mulligan.store.sqlite import SqliteStore  # noqa: E402

CALLS_PER_RUN = 10
NOW = 1_790_000_000_000
ROUNDS = 20
BATCH_RUNS = 100


class Vocabulary:
    def __init__(self) -> None:
        self.random = random.Random(7)
        self.words = ["".join(self.random.choices("etaoinshrdlu", k=self.random.randint(3, 10))) for _ in range(30_000)]

    def sentence(self, length: int) -> str:
        return " ".join(self.words[int(len(self.words) * self.random.random() ** 4)] for _ in range(length))


def make_batch(vocabulary: Vocabulary, first: int, count: int, runs: int) -> Iterator[AnyEvent]:
    draw = vocabulary.random
    for number in range(first, first + count):
        id = f"run_{number:09}"
        customer = draw.randrange(max(runs // 20, 1))
        fields: dict[str, Any] = {"agent": f"agent-{number % 10}", "version": f"1.{number % 5}", "id": id}
        fields |= {"started_at": NOW - (runs - number) * 1000, "metadata": {"user": f"user{number % 997}"}}
        yield RunStarted(Run(**fields))
        for seq in range(1, CALLS_PER_RUN + 1):
            arguments = {"customer_id": f"cus_{customer}", "query": vocabulary.sentence(6), "limit": draw.randrange(50)}
            failure = Failure.of(Kind("tool", "timeout"), vocabulary.sentence(8)) if draw.random() < 0.08 else None
            yield StepEnded(
                Step(
                    run=id, seq=seq, call=seq, name=f"tool-{draw.randrange(20)}", arguments=arguments,
                    outcome="failure" if failure else "success", failure=failure, started_at=fields["started_at"],
                    result=None if failure else {"title": vocabulary.sentence(4), "text": vocabulary.sentence(15)},
                )
            )  # fmt: skip
        yield RunEnded(Run(**fields, ended_at=fields["started_at"] + 900, end_reason="finished"))


def searches(vocabulary: Vocabulary, runs: int) -> dict[str, Callable[[], str]]:
    draw = vocabulary.random
    rare, common = vocabulary.words[-5000:], vocabulary.words[:20]
    return {
        "a customer": lambda: f"cus_{draw.randrange(runs // 20)}",
        "a customer by name": lambda: f"customer_id:cus_{draw.randrange(runs // 20)}",
        "a rare word": lambda: draw.choice(rare),
        "a frequent word": lambda: draw.choice(common),
        "the beginning of a word": lambda: draw.choice(rare)[:4],
        "two words": lambda: f"{draw.choice(common)} {draw.choice(rare)}",
        "a phrase": lambda: f'"{draw.choice(common)} {draw.choice(common)}"',
        "a word, without another": lambda: f"{draw.choice(rare)} -{draw.choice(common)}",
        "a user": lambda: f"user:user{draw.randrange(997)}",
        "no run": lambda: f"absent{draw.randrange(1000)}",
    }


HOSTILE = (
    "x" * 10_000, '"' * 500, "the of and to", "(a+)+$" * 20, "(?:.*a){30}", "a\0b", "\ud800", "NEAR(a b) AND NOT",
    "nan", " ".join(f'"{letter}"' for letter in "abcdefghijkl"), "' OR 1=1 --", "&|!<->():*",
)  # fmt: skip


def measure_index(store: DatabaseStore, runs: int, stored_seconds: float, cpu: Callable[[], float]) -> None:
    started = cpu()
    indexed = store.update_search(DEFAULT_TENANT)
    seconds = cpu() - started
    print(
        f"index: {indexed:,} runs, {seconds / (indexed * CALLS_PER_RUN) * 1e6:.1f} us a call, "
        f"{seconds / stored_seconds:.0%} of storing (goal: at most 15%)"
    )
    assert indexed == runs


def measure_bytes(folder: Path, calls: int) -> None:
    sizes = {path.name: path.stat().st_size / calls for path in sorted(folder.iterdir())}
    for name, size in sizes.items():
        print(f"  {name}: {size:.0f} bytes a call")
    if index_size := sizes.get("mulligan.db.search"):
        print(f"  the index has {index_size / sizes['mulligan.db']:.0%} of the store's bytes (goal: at most 25%)")


def measure_hostile_texts(ask: Callable[[str], int], cpu: Callable[[], float]) -> None:
    longest, slowest = 0.0, ""
    for text in HOSTILE:
        started = cpu()
        ask(text)
        longest, slowest = max((longest, slowest), (cpu() - started, text))
    print(f"  hostile texts: at most {longest * 1000:.1f} ms, for {slowest[:30]!r} (goal: at most 100 ms)")


def measure_searches(ask: Callable[[str], int], texts: dict[str, list[str]], cpu: Callable[[], float]) -> None:
    everything = []
    for name, texts_of_sort in texts.items():
        costs, found = [], 0
        for text in texts_of_sort:
            started = cpu()
            found += ask(text)
            costs.append((cpu() - started) * 1000)
        everything += costs
        print(
            f"  {name:<26} {statistics.median(costs):7.1f} ms  at most {max(costs):7.1f} ms  {found / ROUNDS:5.1f} runs"
        )
    print(f"  p99 of all: {statistics.quantiles(everything, n=100)[98]:.1f} ms (goal: at most 150 ms)")


def ask_store(store: DatabaseStore, text: str) -> int:
    with contextlib.suppress(SettingsError):
        return len(store.runs(DEFAULT_TENANT, RunQuery(text=text, limit=25)))
    return 0


def ask_page(person: Any, text: str) -> int:
    answer = person.get(f"/search?q={quote(text, errors='replace')}", Accept_Encoding="gzip")
    assert answer.status == 200, (text[:100], answer.status)
    return gzip.decompress(answer.body).count(b'<a class="said" href="/runs/')


def measure_pages(store: DatabaseStore, texts: dict[str, list[str]], folder: Path, cpu: Callable[[], float]) -> None:
    from servers import served  # type: ignore[import-not-found]  # in tests/support

    from mulligan.dashboard.pages import build_routes

    with served(folder, groups=(build_routes,), clock=store._clock, store=store) as running:
        person = running.person()
        person.get("/search?q=warm")
        print("pages of results")
        measure_searches(partial(ask_page, person), texts, cpu)
        measure_hostile_texts(partial(ask_page, person), cpu)
        for path in ("/health", "/"):
            costs = []
            for _ in range(ROUNDS):
                started = cpu()
                assert person.get(path, Accept_Encoding="gzip").status == 200
                costs.append((cpu() - started) * 1000)
            goal = " (goal: at most 100 ms)" if path == "/health" else ""
            print(f"  {path:<26} {statistics.median(costs):7.1f} ms  at most {max(costs):7.1f} ms{goal}")


@contextlib.contextmanager
def open_store(folder: Path, is_postgres: bool) -> Iterator[Any]:
    if is_postgres:
        import postgres  # type: ignore[import-not-found]  # in tests/support

        from mulligan.store.postgres.postgres_store import PostgresStore

        with postgres.Server() as database:
            url = postgres.make_database(database.url, f"search_{os.getpid()}")
            with contextlib.closing(PostgresStore(url, clock=lambda: NOW)) as store:
                yield store, partial(_postgres_cpu, database.process.pid)
    else:
        with contextlib.closing(SqliteStore(folder / "mulligan.db", clock=lambda: NOW)) as store:
            yield store, time.process_time


def _postgres_cpu(server: int) -> float:
    """Return the CPU seconds of this process and of the processes of this PostgreSQL."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if server in (int(path.parent.name), int(fields[1])):
                ticks += sum(map(int, fields[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    runs = options.calls // CALLS_PER_RUN
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as name,
        open_store(Path(name), options.postgres) as (store, cpu),
    ):
        vocabulary, stored_seconds = Vocabulary(), 0.0
        for first in range(0, runs, BATCH_RUNS):
            batch = list(make_batch(vocabulary, first, BATCH_RUNS, runs))
            started = cpu()
            store.append(DEFAULT_TENANT, batch, "journal", first + 1)
            stored_seconds += cpu() - started
        print(f"{options.calls:,} calls stored, {stored_seconds / options.calls * 1e6:.1f} us a call")
        store._clock = lambda: NOW + 10**6  # they have settled
        measure_index(store, runs, stored_seconds, cpu)
        if not options.postgres:
            measure_bytes(Path(name), options.calls)
        texts = {sort: [build_text() for _ in range(ROUNDS)] for sort, build_text in searches(vocabulary, runs).items()}
        print("runs that the store finds")
        measure_searches(partial(ask_store, store), texts, cpu)
        measure_hostile_texts(partial(ask_store, store), cpu)
        measure_pages(store, texts, Path(name), cpu)


if __name__ == "__main__":
    main()
