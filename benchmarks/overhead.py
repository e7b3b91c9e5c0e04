"""What a guarded call costs, beside what you would use instead: alternating rounds in one process, ratios at the end.

    make bench, or: python benchmarks/overhead.py [--rounds N] [--calls N] [--burst N] [--long N] [--json]

Needs the `bench` dependency group (opentelemetry-sdk, the OTLP exporter, tenacity). OTLP goes to a sink on loopback.
A ratio is the median of those within each round: a machine that changes its speed in between changes both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TextIO

HOME = tempfile.mkdtemp(prefix="mulligan-bench-")
os.environ["MULLIGAN_HOME"] = HOME

import tenacity  # noqa: E402
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

import mulligan  # noqa: E402

Call = Callable[..., Any]
Figures = dict[str, dict[str, list[tuple[float, float]]]]
"""By suite and contender what each round measured: see `measured`."""
WORDS = "the file was read and a row of results came back with id name status total and a note for each of them".split()


def small(city: str, days: int = 3, unit: str = "c", verbose: bool = False) -> dict[str, Any]:
    return {"city": city, "days": days}


def values(rng: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and, through them, a result of the size and text that coding agents' and API tools' calls have."""
    size = int(min(20_000, rng.lognormvariate(6.2, 1.3)))
    text = " ".join(rng.choices(WORDS, k=max(1, size // 5)))
    return (f"src/module_{rng.randrange(99)}.py",), {
        "pattern": text[: size // 6],
        "limit": rng.randrange(100),
        "text": text,
    }


def large(path: str, pattern: str = "", limit: int = 0, text: str = "") -> str:
    return text


@contextlib.contextmanager
def sink() -> Iterator[str]:
    """Takes whatever an OTLP exporter sends."""

    class Sink(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces"
    server.shutdown()


def nested(outer_wrapper: Callable[[Call], Call], inner: Call) -> Call:
    """A call around another one."""

    def outer(city: str, days: int = 3) -> Any:
        return inner(city, days=days)

    return outer_wrapper(outer)


def traced(provider: TracerProvider, function: Call) -> Call:
    """The span a careful developer writes: arguments and result as attributes."""
    tracer = provider.get_tracer("bench")

    def call(*args: Any, **kwargs: Any) -> Any:
        with tracer.start_as_current_span("execute_tool") as span:
            span.set_attribute("gen_ai.tool.name", function.__name__)
            span.set_attribute("gen_ai.tool.call.arguments", json.dumps([args, kwargs]))
            result = function(*args, **kwargs)
            span.set_attribute("gen_ai.tool.call.result", json.dumps(result))
            return result

    return call


def measured(
    call: Call, work: list[tuple[tuple[Any, ...], dict[str, Any]]], settle: Callable[[], object]
) -> tuple[float, float]:
    """Microseconds: the median in the caller, and CPU of all threads a call until everything is kept."""
    clock = time.perf_counter_ns
    spent = []
    cpu = time.process_time_ns()
    for args, kwargs in work:
        began = clock()
        call(*args, **kwargs)
        spent.append(clock() - began)
    settle()
    return statistics.median(spent) / 1000, (time.process_time_ns() - cpu) / 1000 / len(work)


def measured_async(call: Call, work: list[Any], settle: Callable[[], object], tasks: int) -> tuple[float, float]:
    spent: list[int] = []

    async def worker(part: list[Any]) -> None:
        clock = time.perf_counter_ns
        for args, kwargs in part:
            began = clock()
            await call(*args, **kwargs)
            spent.append(clock() - began)

    async def everything() -> None:
        await asyncio.gather(*(worker(work[start::tasks]) for start in range(tasks)))

    cpu = time.process_time_ns()
    asyncio.run(everything())
    settle()
    return statistics.median(spent) / 1000, (time.process_time_ns() - cpu) / 1000 / len(work)


def measured_threads(call: Call, work: list[Any], settle: Callable[[], object], threads: int) -> tuple[float, float]:
    spent: list[int] = []

    def worker(part: list[Any]) -> None:
        clock = time.perf_counter_ns
        own = []
        for args, kwargs in part:
            began = clock()
            call(*args, **kwargs)
            own.append(clock() - began)
        spent.extend(own)

    workers = [threading.Thread(target=worker, args=(work[start::threads],)) for start in range(threads)]
    cpu = time.process_time_ns()
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    settle()
    return statistics.median(spent) / 1000, (time.process_time_ns() - cpu) / 1000 / len(work)


async def asmall(city: str, days: int = 3, unit: str = "c", verbose: bool = False) -> dict[str, Any]:
    return {"city": city, "days": days}


def atraced(provider: TracerProvider, function: Call) -> Call:
    tracer = provider.get_tracer("bench")

    async def call(*args: Any, **kwargs: Any) -> Any:
        with tracer.start_as_current_span("execute_tool") as span:
            span.set_attribute("gen_ai.tool.name", function.__name__)
            span.set_attribute("gen_ai.tool.call.arguments", json.dumps([args, kwargs]))
            result = await function(*args, **kwargs)
            span.set_attribute("gen_ai.tool.call.result", json.dumps(result))
            return result

    return call


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--burst", type=int, default=100_000, help="calls at once from 8 threads; 0 for none")
    parser.add_argument("--long", type=int, default=1_000_000, help="calls over which memory is watched; 0 for none")
    options = parser.parse_args()
    with sink() as address:
        return report(options, address)


def report(options: argparse.Namespace, address: str) -> int:
    memory = InMemorySpanExporter()
    batched = TracerProvider()
    batched.add_span_processor(BatchSpanProcessor(memory))
    exported = TracerProvider()
    exported.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=address)))
    retrying = tenacity.retry(stop=tenacity.stop_after_attempt(3))

    def settle_memory() -> None:
        batched.force_flush()
        memory.clear()

    nothing: Callable[[], object] = lambda: None  # noqa: E731 - a name for doing nothing
    rng = random.Random(7)
    light: list[Any] = [((f"city {number}",), {"days": number % 9}) for number in range(options.calls)]
    heavy = [values(rng) for _ in range(options.calls)]
    tool_small, tool_large = mulligan.tool(small), mulligan.tool(large)
    atool = mulligan.tool(asmall)
    read = mulligan.tool(effects="none")
    once_in_read, read_in_once = nested(read, tool_small), nested(mulligan.tool, read(small))
    settle: Callable[[], object] = lambda: mulligan.flush(60)  # noqa: E731

    def in_run(measure: Callable[[], tuple[float, float]]) -> Callable[[], tuple[float, float]]:
        def measured_inside() -> tuple[float, float]:
            with mulligan.run("bench"):
                return measure()

        return measured_inside

    suites: dict[str, dict[str, Callable[[], tuple[float, float]]]] = {
        "small values": {
            "bare function": lambda: measured(small, light, nothing),
            "tenacity (no recording)": lambda: measured(retrying(small), light, nothing),
            "opentelemetry, batched in memory": lambda: measured(traced(batched, small), light, settle_memory),
            "opentelemetry, OTLP to a sink": lambda: measured(traced(exported, small), light, exported.force_flush),
            "mulligan, inside a run": in_run(lambda: measured(tool_small, light, settle)),
            "mulligan, each call alone": lambda: measured(tool_small, light, settle),
        },
        "nested calls": {
            BATCHED: lambda: measured(
                nested(lambda outer: traced(batched, outer), traced(batched, small)), light, settle_memory
            ),
            NESTED_ONCE: in_run(lambda: measured(once_in_read, light, settle)),
            NESTED_READ: in_run(lambda: measured(read_in_once, light, settle)),
        },
        "values like those of recorded calls": {
            "bare function": lambda: measured(large, heavy, nothing),
            "opentelemetry, batched in memory": lambda: measured(traced(batched, large), heavy, settle_memory),
            "opentelemetry, OTLP to a sink": lambda: measured(traced(exported, large), heavy, exported.force_flush),
            "mulligan, inside a run": in_run(lambda: measured(tool_large, heavy, settle)),
        },
        "async": {
            "bare function": lambda: measured_async(asmall, light, nothing, 1),
            "opentelemetry, batched in memory": lambda: measured_async(
                atraced(batched, asmall), light, settle_memory, 1
            ),
            "mulligan, inside a run": in_run(lambda: measured_async(atool, light, settle, 1)),
        },
        "100 tasks": {
            "opentelemetry, batched in memory": lambda: measured_async(
                atraced(batched, asmall), light, settle_memory, 100
            ),
            "mulligan, inside a run": in_run(lambda: measured_async(atool, light, settle, 100)),
        },
        "8 threads": {
            "opentelemetry, batched in memory": lambda: measured_threads(
                traced(batched, small), light, settle_memory, 8
            ),
            "mulligan, each call alone": lambda: measured_threads(tool_small, light, settle, 8),
        },
    }
    figures: Figures = {}
    for suite, contenders in suites.items():
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for number in range(options.rounds + 1):
            # In another order each time: whoever follows one that keeps with a second thread finds the caches cold.
            for name, measure in rng.sample(list(contenders.items()), len(contenders)):
                figure = measure()
                if number:  # the first round warms up
                    rounds[name].append(figure)
        figures[suite] = rounds
    if options.json:
        print(
            json.dumps({suite: {name: medians(each) for name, each in rows.items()} for suite, rows in figures.items()})
        )
    missed = told(figures, quiet=options.json)
    out = sys.stderr if options.json else sys.stdout
    if options.burst:
        missed += burst(tool_small, options.burst, out)
    if options.long:
        missed += long(tool_small, options.long, out)
    return 1 if missed else 0


def burst(tool: Call, count: int, out: TextIO) -> int:
    """Calls from 8 threads as fast as they can be made: how many of them are in the store. 1 if not all."""
    import sqlite3

    mulligan.flush(60)
    database = sqlite3.connect(Path(HOME) / "mulligan.db")
    ((before,),) = database.execute("SELECT count(*) FROM steps")
    work: list[Any] = [((f"city {number}",), {}) for number in range(count // 8 * 8)]
    p50, _ = measured_threads(tool, work, lambda: mulligan.flush(600), 8)
    ((after,),) = database.execute("SELECT count(*) FROM steps")
    database.close()
    kept = after - before
    print(f"\nburst of {len(work):,} calls from 8 threads: {kept / len(work):.2%} kept, p50 {p50:.2f} us", file=out)
    return int(kept != len(work))


GROWTH = 1.1
"""How much more memory the last tenth may take at most than the first, and how many more objects may be left."""


def long(tool: Call, count: int, out: TextIO) -> int:
    """Many calls in one process: what it takes at most in each tenth, and what is left of it. 1 if it is not flat.

    While calls are made faster than they are kept, they wait in memory, up to a bound. What the process has after that
    says how much of it the allocator gave back, which is another story each time; it is told, and not judged.
    """
    most, after, objects = [], [], []
    for _ in range(10):
        Path("/proc/self/clear_refs").write_text("5")  # what it took at most is counted anew
        for start in range(0, count // 10, 1000):
            with mulligan.run("bench"):
                for number in range(start, start + 1000):
                    tool(f"city {number}")
        mulligan.flush(60)
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        most.append(int(status["VmHWM"].split()[0]) / 1024)
        after.append(int(status["VmRSS"].split()[0]) / 1024)
        gc.collect()  # what waits for the collector is not left over
        objects.append(sys.getallocatedblocks() / 1000)
    print(
        f"\nmemory over {count:,} calls, MB at most in each tenth: {' '.join(f'{each:.0f}' for each in most)}", file=out
    )
    print(f"after it: {' '.join(f'{each:.0f}' for each in after)}", file=out)
    print(f"thousands of objects: {' '.join(f'{each:.0f}' for each in objects)}", file=out)
    return int(most[-1] > GROWTH * most[0] or objects[-1] > GROWTH * objects[0])


BATCHED, EXPORTED = "opentelemetry, batched in memory", "opentelemetry, OTLP to a sink"
NESTED_ONCE, NESTED_READ = 'mulligan, effects="once" in a read', 'mulligan, a read in effects="once"'
TARGETS = [
    ("small values", "mulligan, inside a run", BATCHED, 0, 0.25),
    ("small values", "mulligan, each call alone", BATCHED, 0, 0.25),
    ("async", "mulligan, inside a run", BATCHED, 0, 0.25),
    ("nested calls", NESTED_ONCE, BATCHED, 0, 0.25),
    ("nested calls", NESTED_READ, BATCHED, 0, 0.25),
    ("values like those of recorded calls", "mulligan, inside a run", BATCHED, 0, 1 / 3),
    ("small values", "mulligan, inside a run", EXPORTED, 1, 0.3),
    ("values like those of recorded calls", "mulligan, inside a run", EXPORTED, 1, 1.0),
]


def medians(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(p50 for p50, _ in rounds), statistics.median(cpu for _, cpu in rounds)


def told(figures: Figures, quiet: bool) -> int:
    out = sys.stderr if quiet else sys.stdout
    for suite, rows in figures.items():
        print(f"\n{suite}\n{'p50 in the caller, us':>24}{'CPU a call, us':>18}", file=out)
        for name, rounds in rows.items():
            p50, cpu = medians(rounds)
            print(f"{p50:>24.2f}{cpu:>18.2f}  {name}", file=out)
    print("\n   ratio    target", file=out)
    missed = 0
    for suite, ours, theirs, place, target in TARGETS:
        pairs = zip(figures[suite][ours], figures[suite][theirs], strict=True)
        ratio = statistics.median(own[place] / other[place] for own, other in pairs)
        word = "met" if ratio <= target else "MISSED"
        missed += ratio > target
        what = ("p50", "CPU")[place]
        print(f"{ratio:>8.3f}  {target:>8.3f}  {word:<6}  {what}, {suite}: {ours} over {theirs}", file=out)
    print(f"\n{len(TARGETS) - missed} of {len(TARGETS)} targets met.", file=out)
    return missed


if __name__ == "__main__":
    code = main()
    mulligan.flush(60)
    for left in sorted(Path(HOME).rglob("*"), reverse=True):
        left.rmdir() if left.is_dir() else left.unlink()
    sys.exit(code)
