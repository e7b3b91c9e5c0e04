"""A store of a million calls moves from SQLite to PostgreSQL and back: whether anything is lost, and what it takes.

    python benchmarks/moving.py [--calls N] [--postgres URL] [--json]

Each copy is the command itself, in a process of its own; time is its wall clock and its CPU, memory its peak. The store
that comes back is held against the first one: every row of every table. Exits 1 where they differ. Without --postgres a
server is started, as tests do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filling import Filler

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))


@contextlib.contextmanager
def database(url: str | None) -> Iterator[str]:
    """An empty one on the server that was named, or on one of our own."""
    from postgres import Server, fresh_database  # type: ignore[import-not-found]

    with contextlib.ExitStack() as opened:
        server = url or opened.enter_context(Server(durable=True, max_wal_size="4GB")).url
        yield opened.enter_context(fresh_database(server))


def copied(source: str, to: str, *words: str) -> dict[str, Any]:
    """What a copy came to, and what it took."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "mulligan", "copy", source, to, "--json", *words], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, took = os.wait4(process.pid, 0)  # of this child alone
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"copy failed with {process.returncode}")
    told = json.loads(said)
    cpu = took.ru_utime + took.ru_stime
    return {
        "rows": told["rows"],
        "put": told["put"],
        "same": told["same"],
        "digest": told["digest"],
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(cpu, 1),
        "peak_mb": round(took.ru_maxrss / 1024),
    }


def filled(path: Path, calls: int) -> int:
    filler = Filler(path, calls)
    filler.fill()
    return filler.calls


def size_of(url: str) -> int:
    import psycopg

    with psycopg.connect(url) as made:
        return int((made.execute("SELECT pg_database_size(current_database())").fetchone() or (0,))[0])


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--calls", type=int, default=1_000_000)
    asked.add_argument("--postgres", metavar="URL")
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    os.environ.setdefault("PYTHONPATH", str(HERE.parent / "src"))
    with tempfile.TemporaryDirectory(prefix="mulligan-copy-") as folder, database(given.postgres) as url:
        first, last = Path(folder, "first.db"), Path(folder, "last.db")
        # In a process of its own: a child's peak is never told as less than what its parent held when it began.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            calls = pool.apply(filled, (first, given.calls))
        rows = {
            "SQLite to PostgreSQL": copied(str(first), url),
            "the same again, nothing new": copied(str(first), url),
            "PostgreSQL to SQLite": copied(url, str(last)),
            "the last against the first": copied(str(first), str(last), "--check"),
        }
        sizes = {"sqlite_bytes": first.stat().st_size, "postgres_bytes": size_of(url)}
        found: dict[str, Any] = {"calls": calls, **sizes, "copies": rows}
    is_lossless = all(each["same"] for each in rows.values()) and len({each["digest"] for each in rows.values()}) == 1
    if given.json:
        print(json.dumps(found | {"lossless": is_lossless}))
    else:
        print(
            f"{found['calls']:,} calls, {found['sqlite_bytes'] / 1e6:,.0f} MB in SQLite, "
            f"{found['postgres_bytes'] / 1e6:,.0f} MB in PostgreSQL\n"
        )
        print(f"| {'':28} | rows      | written   | s     | CPU s | peak MB | same |")
        print(f"| {'-' * 28} | --------- | --------- | ----- | ----- | ------- | ---- |")
        for name, each in rows.items():
            print(
                f"| {name:28} | {each['rows']:9,} | {each['put']:9,} | {each['seconds']:5} | {each['cpu_seconds']:5} "
                f"| {each['peak_mb']:7} | {'yes' if each['same'] else 'NO':4} |"
            )
        print(f"\n{'Lossless.' if is_lossless else 'NOT lossless.'}")
    sys.exit(0 if is_lossless else 1)


if __name__ == "__main__":
    main()
