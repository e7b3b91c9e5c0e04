"""What a server costs: CPU an item for own ingest and for OTLP, acknowledged after commit; memory, start, packages.
How many small writes it takes from 50 writers, on SQLite and PostgreSQL, and what a hostile batch does to them.

    python benchmarks/server.py [--batches 20] [--rounds 3]

CPU is that of the server's process, from the system's own books; what sends is another process and is not counted.
Beside it floors are measured in the same run: for the start `python -c pass`, for what is sent `server_floor.py`, which
gets each batch first: a slow machine makes both slow, and a slow server has a larger ratio. On a virtual machine, the
last row says how much CPU its host withheld: above a few percent, the figures by the clock say little. Phoenix is
measured too where it is installed (pip install arize-phoenix). Exit 1 if a target is missed, 2 if it cannot be
measured.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.metadata
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

try:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
except ImportError:
    print("error: this benchmark needs the bench dependencies. Type: make bench", file=sys.stderr)
    sys.exit(2)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "tests" / "support"))

import postgres  # type: ignore[import-not-found]  # noqa: E402
from server_writers import Measured, hostile_body, measure_writers  # noqa: E402
from spans import Made, as_protobuf  # type: ignore[import-not-found]  # noqa: E402

from mulligan.core.events import RunEnded, StepEnded  # noqa: E402
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect  # noqa: E402
from mulligan.core.records import Run, Step, encode  # noqa: E402

OWN, OTLP, IDLE, PACKAGES, MEGABYTES = 50.0, 80.0, 80.0, 25, 60.0
"""Targets: microseconds an item, megabytes, distributions."""
SMALL_WRITES, SMALL_WRITES_SHARE, SMALL_WRITE_P99 = 1000.0, 0.5, 250.0
"""Targets of small writes: a second, or their share of the floor; milliseconds."""
HEALTH_CHECK, HOSTILE_P99_RATIO = 100.0, 2.0
"""Targets beside a hostile batch: milliseconds of a health check, and p99 of the others against a quiet server."""
ROUND_SECONDS = 3.0
ITEMS = 500
TICK = os.sysconf("SC_CLK_TCK")
WORDS = "find the open orders of last week and tell me which of them have not been sent yet please".split()


Row = tuple[str, float, float | None]
"""Name, value and target of a line that is printed. A value above its target is missed."""


class Server:
    """A server in a process of its own, on a new store."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, *arguments]
        begun = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        assert found is not None
        self.port = int(found[1])
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.ask("GET", "/healthz")
        self.start = time.perf_counter() - begun
        self.start_cpu = self.cpu()

    def ask(self, method: str, path: str, body: bytes | None = None, sort: str = "application/json") -> bytes:
        self.connection.request(method, path, body, {"Content-Type": sort} if body is not None else {})
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {data[:300]!r}")
        return data

    def cpu(self) -> float:
        """Seconds of CPU of all its threads so far; to the nanosecond, where the system counts so."""
        try:
            threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
            if spent := sum(int(thread.read_text().split()[0]) for thread in threads):
                return spent / 1e9
        except (OSError, ValueError):
            pass  # in ticks then
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def megabytes(self) -> float:
        """What it holds of the machine's memory, its share of what others use too (PSS)."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss:\s+(\d+) kB", text, re.M)
        return int(found[1]) / 1024 if found else float("nan")

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.communicate()


def batches(count: int, chance: random.Random) -> list[bytes]:
    """Batches of a library's journal: runs of ten calls, of which one in twenty fails first."""
    kind = Kind("tool", "timeout", Remedy.RETRY, TookEffect.UNKNOWN)
    made = []
    now = int(time.time() * 1000)
    for number in range(count):
        events: list[Any] = []
        while len(events) < ITEMS:
            now += chance.randrange(1000)  # runs begin one after the other
            run = f"run_{chance.getrandbits(80):020x}"
            for seq in range(1, 10):
                given = {"query": " ".join(chance.sample(WORDS, 8)), "limit": seq, "open": True}
                failure = (
                    Failure.of(kind, "Read timed out after 3 s", fingerprint="3:abc")
                    if chance.random() < 0.05
                    else None
                )
                events.append(
                    StepEnded(
                        Step(
                            run=run, seq=seq, call=seq, name=f"tool_{seq % 5}", arguments=given, started_at=now,
                            duration_seconds=chance.random(), failure=failure,
                            outcome="failure" if failure else "success",
                            result=None if failure else {"found": seq, "first": " ".join(chance.sample(WORDS, 12))},
                        )
                    )
                )  # fmt: skip
            events.append(
                RunEnded(Run(id=run, agent="bench", started_at=now, ended_at=now + 900, end_reason="finished"))
            )
        made.append(encode({"client": "bench", "journal": "1-j_bench", "offset": number + 1, "events": events[:ITEMS]}))
    return made


def exports(count: int, chance: random.Random) -> list[bytes]:
    """Exports of an OpenTelemetry SDK: traces of a root, four chats and five tools."""
    made: list[Made] = []
    clock = time.time_ns()
    while len(made) < count * ITEMS:
        trace, root = f"{chance.getrandbits(128) | 1:032x}", f"{chance.getrandbits(64) | 1:016x}"
        for number in range(9):
            start, clock = clock, clock + chance.randrange(10**9)
            id = f"{chance.getrandbits(64) | 1:016x}"
            if number % 2:
                facts = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "small-1",
                         "gen_ai.provider.name": "acme", "gen_ai.usage.input_tokens": 900,
                         "gen_ai.usage.output_tokens": 40, "server.port": 443}  # fmt: skip
                made.append(Made(trace, id, root, "chat small-1", start, clock, facts))
            else:
                given = json.dumps({"query": " ".join(chance.sample(WORDS, 8)), "limit": number})
                facts = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": f"tool_{number % 5}",
                         "gen_ai.tool.call.id": f"call_{id}", "gen_ai.tool.call.arguments": given,
                         "gen_ai.tool.type": "function"}  # fmt: skip
                error = "Read timed out after 3 s" if chance.random() < 0.05 else None
                made.append(Made(trace, id, root, f"execute_tool tool_{number % 5}", start, clock, facts, error))
        facts = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "bench"}
        made.append(Made(trace, root, "", "invoke_agent bench", clock, clock, facts))
    return [as_protobuf(made[start : start + ITEMS]) for start in range(0, count * ITEMS, ITEMS)]


def run_lists(count: int, chance: random.Random) -> list[bytes]:
    """Lists of runs as programs without mulligan send them: nine steps a run, of which one in twenty fails."""
    made = []
    now = int(time.time() * 1000)
    for _ in range(count):
        runs = []
        for _ in range(ITEMS // 10):
            now += chance.randrange(1000)
            steps = [
                {
                    "seq": seq, "name": f"tool_{seq % 5}", "started_at": now, "duration_seconds": chance.random(),
                    "arguments": {"query": " ".join(chance.sample(WORDS, 8)), "limit": seq, "open": True},
                    **(
                        {"failure": {"message": "Read timed out after 3 s"}}
                        if chance.random() < 0.05
                        else {"result": {"found": seq, "first": " ".join(chance.sample(WORDS, 12))}}
                    ),
                }
                for seq in range(1, 10)
            ]  # fmt: skip
            id = f"bench-{chance.getrandbits(80):020x}"
            runs.append({"id": id, "agent": "bench", "started_at": now, "ended_at": now + 900, "steps": steps})
        made.append(json.dumps(runs).encode())
    return made


def measured(servers: list[Server], path: str, sort: str, bodies: list[bytes]) -> list[float]:
    """Microseconds of CPU an item of each server, once the first quarter has made everything warm."""
    first = max(1, len(bodies) // 4)
    before = [0.0] * len(servers)
    for number, body in enumerate(bodies):
        if number == first:
            before = [server.cpu() for server in servers]
        for server in servers:
            server.ask("POST", path, body, sort)
    count = (len(bodies) - first) * ITEMS
    return [(server.cpu() - spent) / count * 1e6 for server, spent in zip(servers, before, strict=True)]


def installed() -> tuple[int, float]:
    """Distributions and megabytes of the base package with the extra `server`, on this interpreter."""
    left, seen, size = [("mulligan", "server")], dict[str, set[str]](), 0
    while left:
        name, extra = left.pop()
        key = canonicalize_name(name)
        if extra in seen.setdefault(key, set()):
            continue
        is_first = not seen[key]
        seen[key].add(extra)
        wanted = importlib.metadata.requires(name) if key != "mulligan" else _ours()
        if is_first and key != "mulligan":
            size += sum(
                path.stat().st_size
                for each in importlib.metadata.files(name) or ()
                if (path := Path(str(each.locate()))).is_file() and path.suffix != ".pyc"
            )
        for text in wanted or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                left += [(requirement.name, each) for each in (requirement.extras or {""})]
    size += sum(path.stat().st_size for path in (ROOT / "src").rglob("*") if path.is_file() and path.suffix != ".pyc")
    return len(seen), size / 1e6


def _ours() -> list[str]:
    import tomllib

    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*told["dependencies"], *told["optional-dependencies"]["server"]]


def start_of_python() -> float:
    before = os.times()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def phoenix() -> float | None:
    """Seconds of CPU until Phoenix answers, where it is installed."""
    if shutil.which("phoenix") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PHOENIX_WORKING_DIR": folder, "PHOENIX_PORT": "6123"}
        process = subprocess.Popen(
            ["phoenix", "serve"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            for _ in range(1200):
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", 6123, timeout=1)
                    connection.request("GET", "/healthz")
                    connection.getresponse()
                    break
                except OSError:
                    time.sleep(0.1)
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / TICK
        finally:
            process.kill()
            process.wait()


def withheld_ticks() -> tuple[int, int]:
    """Return the ticks that the host of this virtual machine withheld (steal), and all ticks, since it started."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[7], sum(ticks)


def measure_small_writes(rounds: int, chance: random.Random) -> list[Row]:
    """Rows of small writes on each store beside the floor, in alternating rounds, without and with a hostile batch."""
    quiet: dict[str, list[Measured]] = {}
    hostile: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stores = {"SQLite": f"{folder}/small.db"}
        try:
            database = stack.enter_context(postgres.Server(durable=True))
            stores["PostgreSQL"] = postgres.make_database(database.url, "small_writes")
        except postgres.Unavailable as reason:
            print(f"PostgreSQL is not measured: {reason}")
        servers = {"floor": Server(str(Path(__file__).with_name("server_floor.py")), f"{folder}/floor.db")}
        serve = ("-m", "mulligan", "serve", "--no-auth", "--port", "0", "--store")
        servers |= {name: Server(*serve, where) for name, where in stores.items()}
        for server in servers.values():
            stack.callback(server.close)
            measure_writers(server.port, 1.0)  # makes everything warm
        for _ in range(rounds):
            for name, server in servers.items():
                quiet.setdefault(name, []).append(measure_writers(server.port, ROUND_SECONDS))
            for name in stores:
                body = hostile_body(chance)
                hostile.setdefault(name, []).append(measure_writers(servers[name].port, ROUND_SECONDS, body))
    floor = statistics.median(measured.per_second for measured in quiet["floor"])
    rows: list[Row] = [("floor of small writes, a second", floor, None)]
    for name in stores:
        rate = statistics.median(measured.per_second for measured in quiet[name])
        p99 = statistics.median(measured.p99 for measured in quiet[name])
        hostile_p99 = statistics.median(measured.p99 for measured in hostile[name])
        is_enough = rate >= SMALL_WRITES  # else its share of the floor counts
        rows += [
            (f"{name}, small writes a second", rate, None),
            (f"{name}, floor over 2 x small writes", SMALL_WRITES_SHARE * floor / rate, None if is_enough else 1.0),
            (f"{name}, small writes, p99 ms", p99, SMALL_WRITE_P99),
            (f"{name}, health check, slowest ms", max(m.slowest_health_check for m in quiet[name]), None),
            (f"{name}, hostile batch: p99 ratio", hostile_p99 / p99, HOSTILE_P99_RATIO),
            (f"{name}, hostile batch: health ms", max(m.slowest_health_check for m in hostile[name]), HEALTH_CHECK),
        ]
    return rows


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--batches", type=int, default=20, help=f"of {ITEMS} items each")
    options.add_argument("--rounds", type=int, default=3, help="of small writes on each server")
    chosen = options.parse_args()
    count = chosen.batches
    if count < 2:
        options.error("--batches must be at least 2: the first batch only warms the server up.")
    if not Path("/proc/self/smaps_rollup").exists():
        print("error: this benchmark reads /proc, which is not here.", file=sys.stderr)
        sys.exit(2)
    chance = random.Random(7)
    withheld, ticks = withheld_ticks()
    with tempfile.TemporaryDirectory() as folder:
        server = Server("-m", "mulligan", "serve", "--no-auth", "--port", "0", "--store", f"{folder}/s.db")
        beside = Server(str(Path(__file__).with_name("server_floor.py")), f"{folder}/floor.db")
        both = [beside, server]
        try:
            time.sleep(1)
            idle = server.megabytes()
            own_floor, own = measured(both, "/v1/batch", "application/json", batches(count, chance))
            run_floor, run = measured(both, "/v1/runs", "application/json", run_lists(count, chance))
            otlp_floor, otlp = measured(both, "/v1/traces", "application/x-protobuf", exports(count, chance))
            full = server.megabytes()
        finally:
            server.close()
            beside.close()
    packages, megabytes = installed()
    floor = statistics.median(start_of_python() for _ in range(3))
    rows: list[Row] = [
        ("own ingest, CPU us an item", own, OWN),
        ("own ingest over /v1/runs, CPU us an item", run, OWN),
        ("OTLP, CPU us a span", otlp, OTLP),
        ("floor of own ingest, CPU us", own_floor, None),
        ("floor of /v1/runs, CPU us", run_floor, None),
        ("floor of OTLP, CPU us", otlp_floor, None),
        ("own ingest, times its floor", own / own_floor, None),
        ("/v1/runs, times its floor", run / run_floor, None),
        ("OTLP, times its floor", otlp / otlp_floor, None),
        ("idle, MB", idle, IDLE),
        (f"after {3 * count * ITEMS:,} items, MB", full, None),
        ("packages", packages, PACKAGES),
        ("installed, MB", megabytes, MEGABYTES),
        ("start, CPU s", server.start_cpu, None),
        ("start, times python -c pass", server.start_cpu / floor, None),
    ]
    rows += measure_small_writes(chosen.rounds, chance)
    withheld_after, ticks_after = withheld_ticks()
    rows.append(("CPU withheld by the host, %", 100 * (withheld_after - withheld) / (ticks_after - ticks), None))
    other = phoenix()
    if other is not None:
        rows.append(("start, times Phoenix", server.start_cpu / other, 1 / 20))
    missed = False
    for name, value, target in rows:
        is_missed = target is not None and value > target
        missed = missed or is_missed
        aim = f"   target {target:g}{'  MISSED' if is_missed else ''}" if target is not None else ""
        print(f"{name:<42}{value:>10.2f}{aim}")
    if other is None:
        print("Phoenix is not installed, so nothing stands beside the start.")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
