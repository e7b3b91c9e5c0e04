"""The dashboard over many calls: what every page costs the server, and what the browser must load.

    python benchmarks/dashboard.py [--calls 100000 1000000 10000000] [--folder DIR] [--keep] [--rounds 7] [--postgres]

Each page is asked for over HTTP on loopback, packed as a browser takes it; CPU is that of the whole process, so that it
includes the little that asking costs. The figure is the median of the rounds, after one that warms the store's pages.
Beside the pages named here, one of every kind that they link to is measured. With `--postgres` the store is copied to
PostgreSQL, and the CPU of its sessions is added.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / "support"), str(Path(__file__).parent)]

from filling import NOW, Filler  # noqa: E402

TARGET = 150.0
"""Milliseconds of CPU for the overview of ten million calls."""
BYTES = 100_000
"""That a browser loads for the overview, with everything the page names."""
PAGE_TARGET, PAGE_CALLS = 250.0, 1_000_000
"""Milliseconds of any page, with at most so many calls."""
DATABASE = f"dashboard_{os.getpid()}"
MIN_CALLS = 100_000
PAGES = {
    "overview, 7 days": "/",
    "overview, 24 hours": "/?range=24h",
    "overview, 30 days": "/?range=30d",
    "overview of an agent": "/?agent=agent-3",
    "patterns": "/patterns",
    "runs": "/runs",
    "runs that failed": "/runs?status=failure",
    "tools": "/tools",
    "one tool": "/tools/tool-041",
    "agents": "/agents",
    "one agent": "/agents/agent-3",
    "models": "/models",
    "sessions": "/sessions",
    "learned": "/learned",
    "everything": "/?range=all",
    "alerts": "/alerts",
    "audit": "/audit",
    "settings": "/settings",
    "versions compared": "/compare?agent=agent-3",
    "search": "/search?q=tool-04",
}


class Measured(NamedTuple):
    cpu: float
    """Milliseconds."""
    wall: float
    sent: int


def find_pages(person: Any) -> dict[str, str]:
    """The pages named above, and one of every kind that they and these link to."""
    pages, unread = dict(PAGES), list(PAGES.values())
    while unread:
        body = person.get(unread.pop()).body.decode()
        for path in re.findall(r'href="?(/[^"\s>#]*)', body):
            section, _, name = path.partition("?")[0].strip("/").partition("/")
            kind = f"/{section}/..." if name else f"/{section}"
            is_page = section not in ("static", "v1", "docs", "enter", "sign-out") and not re.search("csv|json", path)
            if is_page and section and kind not in pages:
                pages[kind] = html.unescape(path)
                unread.append(pages[kind])
    return pages


def measure(folder: Path, rounds: int, store: Any = None) -> tuple[dict[str, Measured], int]:
    from servers import served  # type: ignore[import-not-found] # of tests/support

    from mulligan.dashboard.pages import build_routes

    found: dict[str, Measured] = {}
    with served(folder, groups=(build_routes,), clock=lambda: NOW, store=store) as running:
        person = running.person()
        for name, path in find_pages(person).items():
            cpu, wall, sent = [], [], 0
            for number in range(rounds + 1):
                began, used = time.perf_counter(), cpu_seconds()
                answer = person.get(path, Accept_Encoding="gzip")
                if number:
                    cpu.append((cpu_seconds() - used) * 1000)
                    wall.append((time.perf_counter() - began) * 1000)
                assert answer.status == 200, (path, answer.status)
                sent = len(answer.body)
            found[name] = Measured(statistics.median(cpu), statistics.median(wall), sent)
        return found, found["overview, 7 days"].sent + loaded(person)


def cpu_seconds() -> float:
    """CPU of this process, and of the sessions of its PostgreSQL, which stay open."""
    spent = 0
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if DATABASE in command.read_text():
                spent += int(command.with_name("schedstat").read_text().split()[0])
    return time.process_time() + spent / 1e9


def measure_postgres(path: Path, rounds: int) -> dict[str, Measured]:
    import postgres  # type: ignore[import-not-found] # of tests/support

    from mulligan.store.urls import open_store

    with postgres.Server() as database, tempfile.TemporaryDirectory() as folder:
        url = postgres.make_database(database.url, DATABASE)
        subprocess.run([sys.executable, "-m", "mulligan", "copy", str(path), url], check=True, stdout=sys.stderr)
        return measure(Path(folder), rounds, open_store(url))[0]


def show(found: dict[str, Measured], count: int) -> bool:
    """Print the figures. Return whether a page takes too long."""
    missed = False
    for name, each in found.items():
        is_slow = each.cpu > (TARGET if name.startswith("overview,") else PAGE_TARGET if count <= PAGE_CALLS else 1e9)
        missed |= is_slow
        mark = "  MISSED" if is_slow else ""
        print(f"  {name:22} {each.cpu:7.1f} ms CPU  {each.wall:7.1f} ms  {each.sent:8,} bytes sent{mark}")
    return missed


def loaded(person: Any) -> int:
    """Bytes of what the overview names: style sheet, scripts, icon."""
    page = person.get("/").body.decode()
    named = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    return sum(len(person.get(link, Accept_Encoding="gzip").body) for link in named)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--folder", type=Path, help="where the stores are made (a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="leave the stores there, and use those that are")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--postgres", action="store_true", help="measure a copy of each store in PostgreSQL, too")
    given = parser.parse_args()
    if min(given.calls) < MIN_CALLS:
        parser.error(f"--calls must be at least {MIN_CALLS:,}: in fewer, not every tool and agent of the pages occurs.")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="mulligan-dashboard-"))
    missed = False
    try:
        for count in sorted(given.calls):
            place = folder / str(count)
            path = place / "mulligan.db"
            if not path.exists():
                place.mkdir(parents=True, exist_ok=True)
                Filler(path, count).fill(lambda told: print(told, file=sys.stderr))
            found, bytes_loaded = measure(place, given.rounds)
            print(f"{count:,} calls, {path.stat().st_size / 1e9:.1f} GB; the overview loads {bytes_loaded:,} bytes")
            missed |= bytes_loaded > BYTES or show(found, count)
            if given.postgres:
                print(f"{count:,} calls in PostgreSQL")
                missed |= show(measure_postgres(path, given.rounds), count)
            if not given.keep:
                shutil.rmtree(place)
    finally:
        if given.folder is None and not given.keep:
            shutil.rmtree(folder)
    print("missed" if missed else f"The overview takes less than {TARGET:.0f} ms and {BYTES:,} bytes.")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
