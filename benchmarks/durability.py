"""How many records of finished calls are lost when a process ends badly, beside opentelemetry's batch processor.

    python benchmarks/durability.py [--calls N] [--kills N] [--seconds N] [--json]

Each row is a real process that makes calls and ends in its own way. A call counts once it has returned: the child says
so in memory shared with us, which survives it. What is missing from the store then is lost; what is there beyond the
calls that were made is doubled. A process that is killed may have been in the middle of one more call.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SCENARIOS = (
    "normal exit",
    "burst from 8 threads",
    "thread exit",
    "unhandled exception",
    "asyncio",
    "fork",
    "multiprocessing, fork",
    "multiprocessing, spawn",
    "os._exit",
    "SIGTERM",
    "SIGKILL at random times",
    "6 processes at once, some killed",
)
CELL = struct.Struct("<Q")
WORKERS = 8


class Counter:
    """Finished calls, one cell for each worker, in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(CELL.size * WORKERS))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def add(self, worker: int = 0) -> None:
        place = worker * CELL.size
        CELL.pack_into(self._memory, place, CELL.unpack_from(self._memory, place)[0] + 1)

    def total(self) -> int:
        return sum(CELL.unpack_from(self._memory, worker * CELL.size)[0] for worker in range(WORKERS))


def mulligan_tool(out: Path) -> Callable[[int], int]:
    os.environ["MULLIGAN_HOME"] = str(out)
    import mulligan

    return mulligan.tool(double)


def otel_tool(out: Path) -> Callable[[int], int]:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Lines(SpanExporter):  # type: ignore[misc, unused-ignore]  # its types are there only with the bench group
        """A line a span, into a file."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            with (out / f"spans-{os.getpid()}.txt").open("a") as file:
                file.writelines(f"{span.context.span_id if span.context else 0}\n" for span in spans)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Lines()))
    tracer = provider.get_tracer("durability")

    def call(number: int) -> int:
        with tracer.start_as_current_span("execute_tool") as span:
            span.set_attribute("number", number)
            return double(number)

    return call


def double(number: int) -> int:
    return 2 * number


LIBRARIES = {"mulligan": mulligan_tool, "opentelemetry": otel_tool}


def child(library: str, scenario: str, calls: int, out: Path, worker: int = 0) -> None:
    """Makes the calls in this process, and ends as the scenario says."""
    if scenario == "6 processes at once, some killed":
        together(library, calls, out)
        return
    tool = LIBRARIES[library](out)
    counter = Counter(out / "counter")

    def work(number: int, worker: int = 0) -> None:
        for each in range(number):
            tool(each)
            counter.add(worker)

    match scenario:
        case "normal exit":
            work(calls)
        case "burst from 8 threads" | "thread exit":
            threads = [threading.Thread(target=work, args=(calls // WORKERS, each)) for each in range(WORKERS)]
            for thread in threads:
                thread.start()
            if scenario != "thread exit":
                for thread in threads:
                    thread.join()
        case "unhandled exception":
            work(calls)
            raise RuntimeError("nobody handles this")
        case "asyncio":
            import asyncio

            async def task(worker: int) -> None:
                for each in range(calls // WORKERS):
                    tool(each)
                    counter.add(worker)
                    if each % 50 == 0:
                        await asyncio.sleep(0)

            async def everything() -> None:
                await asyncio.gather(*(task(worker) for worker in range(WORKERS)))

            asyncio.run(everything())
        case "fork":
            work(calls // 2)
            process = os.fork()
            work(calls // 4, 1 if process else 2)
            if process:
                os.waitpid(process, 0)
        case "multiprocessing, fork" | "multiprocessing, spawn":
            import multiprocessing

            context: Any = multiprocessing.get_context(scenario.rpartition(" ")[2])
            workers = [
                context.Process(target=portion, args=(library, calls // WORKERS, str(out), each))
                for each in range(WORKERS)
            ]
            for each in workers:
                each.start()
            for each in workers:
                each.join()
        case "os._exit":
            work(calls)
            os._exit(0)
        case _:
            work(10**9, worker)


PROCESSES = 6


def together(library: str, seconds: int, out: Path) -> None:
    """Six processes on one store for so many seconds; each second one is killed, and another takes its place."""
    rng = random.Random(3)
    command = [sys.executable, __file__, "--child", "until killed", "--library", library, "--out", str(out)]

    def begin(worker: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, "--worker", str(worker)], stderr=subprocess.DEVNULL)

    workers = [begin(worker) for worker in range(PROCESSES)]
    until = time.monotonic() + seconds
    killed = 0
    while time.monotonic() < until:
        time.sleep(1)
        worker = rng.randrange(PROCESSES)
        workers[worker].kill()
        workers[worker].wait()
        killed += 1
        workers[worker] = begin(worker)
    for each in workers:
        each.kill()
        each.wait()
    (out / "killed").write_text(str(killed + PROCESSES))


def portion(library: str, calls: int, out: str, worker: int) -> None:
    tool = LIBRARIES[library](Path(out))
    counter = Counter(Path(out) / "counter")
    for each in range(calls):
        tool(each)
        counter.add(worker)


def kept(library: str, out: Path) -> int:
    """How many records are there."""
    if library == "opentelemetry":
        return sum(len(file.read_text().splitlines()) for file in out.glob("spans-*.txt"))
    # Whoever uses the store next adopts what the dead left behind.
    opening = "import mulligan; mulligan.tool(abs)(1); assert mulligan.flush(3600)"  # a million takes its time
    subprocess.run([sys.executable, "-c", opening], env=os.environ | {"MULLIGAN_HOME": str(out)}, check=True)
    import sqlite3

    database = sqlite3.connect(out / "mulligan.db")
    ((rows,),) = database.execute("SELECT count(*) FROM steps WHERE name = 'double'")
    ((sound,),) = database.execute("PRAGMA integrity_check")
    assert sound == "ok", sound
    return int(rows)


def tried(library: str, scenario: str, calls: int, rng: random.Random) -> tuple[int, int, int]:
    """Finished, lost and doubled, of one process."""
    with tempfile.TemporaryDirectory(prefix="mulligan-durability-") as folder:
        out = Path(folder)
        counter = Counter(out / "counter")
        command = [sys.executable, __file__, "--child", scenario, "--library", library, "--calls", str(calls)]
        process = subprocess.Popen([*command, "--out", folder], stderr=subprocess.DEVNULL)
        if scenario.startswith("SIG"):
            while counter.total() == 0 and process.poll() is None:
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 1.0))
            process.send_signal(signal.SIGKILL if "KILL" in scenario else signal.SIGTERM)
        process.wait()
        finished = counter.total()
        there = kept(library, out)
        in_flight = 1 if scenario.startswith("SIG") else 0
        if (out / "killed").exists():
            in_flight = int((out / "killed").read_text())  # one each
        return finished, max(0, finished - there), max(0, there - finished - in_flight)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20, help="how many processes are killed at random times")
    parser.add_argument("--only", help="one scenario")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--library", default="mulligan", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, default=60, help="how long six processes write at once")
    options = parser.parse_args()
    if options.child:
        child(options.library, options.child, options.calls, options.out, options.worker)
        return 0
    rng = random.Random(11)
    rows: list[dict[str, Any]] = []
    for scenario in SCENARIOS:
        if options.only and options.only != scenario:
            continue
        times = options.kills if "random" in scenario else 1
        for library in LIBRARIES:
            size = options.seconds if scenario.startswith("6 processes") else options.calls
            results = [tried(library, scenario, size, rng) for _ in range(times)]
            finished, lost, doubled = (sum(column) for column in zip(*results, strict=True))
            rows.append(
                {"scenario": scenario, "library": library, "finished": finished, "lost": lost, "doubled": doubled}
            )
            if not options.json:
                print(
                    f"{finished:>9,} calls {lost:>8,} lost {doubled:>6,} doubled  {library:<14} {scenario}", flush=True
                )
    if options.json:
        print(json.dumps(rows))
    ours = [row for row in rows if row["library"] == "mulligan"]
    # A row in which no call was finished says nothing: a busy machine needs more --seconds.
    bad = [row for row in ours if row["lost"] or row["doubled"] or not row["finished"]]
    print(
        f"\nmulligan: {len(ours) - len(bad)} of {len(ours)} rows with calls in them, nothing lost and nothing doubled.",
        file=sys.stderr,
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
