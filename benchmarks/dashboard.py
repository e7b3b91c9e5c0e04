"""The dashboard over millions of calls: what a page costs the server, and what the browser must load.

    python benchmarks/dashboard.py [--calls 1000000 10000000] [--folder DIR] [--keep] [--rounds 7]

Each page is asked for over HTTP on loopback, packed as a browser takes it; CPU is that of the whole process, so that it
includes the little that asking costs. The figure is the median of the rounds, after one that warms the store's pages.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
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
    "fixes": "/fixes",
    "versions compared": "/compare?agent=agent-3",
    "search": "/search?q=tool-04",
}


class Measured(NamedTuple):
    cpu: float
    """Milliseconds."""
    wall: float
    sent: int


def measure(folder: Path, rounds: int) -> tuple[dict[str, Measured], int]:
    from servers import served  # type: ignore[import-not-found] # of tests/support

    from mulligan.dashboard.pages import build_routes

    found: dict[str, Measured] = {}
    with served(folder, groups=(build_routes,), clock=lambda: NOW) as running:
        person = running.person()
        for name, path in PAGES.items():
            cpu, wall, sent = [], [], 0
            for number in range(rounds + 1):
                began, used = time.perf_counter(), time.process_time()
                answer = person.get(path, Accept_Encoding="gzip")
                if number:
                    cpu.append((time.process_time() - used) * 1000)
                    wall.append((time.perf_counter() - began) * 1000)
                assert answer.status == 200, (path, answer.status)
                sent = len(answer.body)
            found[name] = Measured(statistics.median(cpu), statistics.median(wall), sent)
        return found, found["overview, 7 days"].sent + loaded(person)


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
            for name, each in found.items():
                print(f"  {name:22} {each.cpu:7.1f} ms CPU  {each.wall:7.1f} ms  {each.sent:8,} bytes sent")
                missed |= name.startswith("overview,") and each.cpu > TARGET
            missed |= bytes_loaded > BYTES
            if not given.keep:
                shutil.rmtree(place)
    finally:
        if given.folder is None and not given.keep:
            shutil.rmtree(folder)
    print("missed: the overview" if missed else f"The overview takes less than {TARGET:.0f} ms and {BYTES:,} bytes.")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
