"""A program that does nothing but call tools, and never waits: what is kept meanwhile, and in how much memory.

    python benchmarks/busy.py [--seconds N] [--rounds N] [--json]

A thread that records beside such a program has its turn every five milliseconds at most. Each round is a process of its
own for each way, in alternation: with mulligan outside any run and inside one, and with opentelemetry's batch processor
and an exporter that writes a line a span into a file. `meanwhile` is what was kept when the loop ended, `missing` what
was not kept, and is counted as dropped nowhere, after everything was given its time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from durability import LIBRARIES

WAYS = ("outside any run", "inside a run", "opentelemetry")


def looped(call: Callable[[int], int], seconds: float) -> int:
    calls = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(100):
            call(calls)
            calls += 1
    return calls


def kept(way: str, out: Path) -> int:
    if way == "opentelemetry":
        return sum(len(file.read_text().splitlines()) for file in out.glob("spans-*.txt"))
    ((rows,),) = sqlite3.connect(out / "mulligan.db").execute("SELECT count(*) FROM steps")
    return int(rows)


def dropped(way: str, out: Path) -> int:
    """What is counted as such; opentelemetry counts nothing."""
    if way == "opentelemetry":
        return 0
    rows = sqlite3.connect(out / "mulligan.db").execute(
        "SELECT value FROM key_values WHERE kind = 'recorder' AND key = 'dropped'"
    )
    return sum(int(value) for (value,) in rows)


def child(way: str, seconds: float, out: Path) -> dict[str, Any]:
    call = LIBRARIES["opentelemetry" if way == "opentelemetry" else "mulligan"](out)
    if way == "inside a run":
        import mulligan

        with mulligan.run("busy"):
            calls = looped(call, seconds)
    else:
        calls = looped(call, seconds)
    meanwhile = kept(way, out)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if way != "opentelemetry":
        import mulligan

        mulligan.flush(3600)
    return {"calls": calls, "meanwhile": meanwhile, "memory": memory}


def measured(way: str, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mulligan-busy-") as folder:
        command = [sys.executable, __file__, "--child", way, "--seconds", str(seconds), "--out", folder]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found: dict[str, Any] = json.loads(answer.stdout)
        found["dropped"] = dropped(way, Path(folder))
        found["missing"] = found["calls"] - found["dropped"] - kept(way, Path(folder))
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each process calls (8)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each way; the median is told (3)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.seconds, options.out)), flush=True)
        return 0
    if options.seconds <= 0 or options.rounds < 1:
        parser.error("--seconds must be more than 0, and --rounds 1 or more")
    os.environ.pop("MULLIGAN_HOME", None)
    rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            rounds[way].append(measured(way, options.seconds))
    rows = [
        {"way": way, **{name: statistics.median(each[name] for each in some) for name in some[0]}}
        for way, some in rounds.items()
    ]
    if options.json:
        print(json.dumps(rows))
    else:
        print(f"{options.seconds:g} s of calls, the median of {options.rounds} rounds")
        print("calls      meanwhile  dropped    missing    memory")
        for row in rows:
            figures = "  ".join(f"{int(row[name]):>9,}" for name in ("calls", "meanwhile", "dropped", "missing"))
            print(f"{figures}  {int(row['memory']):>4} MB  {row['way']}")
    ours = [row for row in rows if row["way"] != "opentelemetry"]
    return 1 if any(row["missing"] or not row["meanwhile"] for row in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
