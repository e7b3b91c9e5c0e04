"""What it costs to make lessons of a million calls, and of one per cent more.

    python benchmarks/consolidate.py [--calls 1000000] [--folder DIR] [--keep] [--json]

The store is filled by its own writer with the calls of `recall.py`: ten agents, 200 tools, each of which fails in some
hundred ways. Then `consolidate` is run four times, each in a process of its own, which tells its CPU time and its peak
of memory: of everything; of one per cent more calls; of another one per cent; and when nothing was added.
It exits with 1 if the first takes more than 3 minutes or 500 MB, or one of the next two more than 5 % of the first.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import recall

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import StepEnded
from mulligan.store.sqlite import SqliteStore

MINUTES = 3.0
MEGABYTES = 500.0
SHARE = 0.05
PER_CENT = 0.01

CHILD = """
import json, resource, sys, time
from pathlib import Path
from mulligan.prompt import Prompt
from mulligan.store import database_lessons as lesson_rows
from mulligan.store.sqlite import SqliteStore
from mulligan.contract.store import DEFAULT_TENANT
Prompt().message("once, so that what is compiled at first use is not measured")
store = SqliteStore(Path(sys.argv[1]))
wall, cpu = time.monotonic(), time.process_time()
done = store.consolidate(DEFAULT_TENANT, int(sys.argv[2]))
told = {"seconds": time.monotonic() - wall, "cpu": time.process_time() - cpu, "patterns": done.patterns,
        "lessons": len(done.lessons), "active": sum(each.state == "active" for each in done.lessons),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
print(json.dumps(told))
"""


class Filling:
    """Runs of calls, ever more of them."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._chance = random.Random(8)
        self._runs = 0

    def add(self, calls: int, show: Callable[[str], None]) -> int:
        kept = 0
        began = time.monotonic()
        while kept < calls:
            numbers = range(self._runs, self._runs + min(recall.BATCH, max(1, (calls - kept) // 10)))
            batch = [event for each in numbers for event in recall.run(self._chance, each)]
            self._runs += len(numbers)
            self._store.append(DEFAULT_TENANT, batch, f"journal_{self._runs}", 1)
            kept += sum(isinstance(event, StepEnded) for event in batch)
            if self._runs % 10_000 == 0:
                spent = time.monotonic() - began
                show(f"  {kept:,} calls kept in {spent:.0f} s, about {spent * calls / kept - spent:.0f} s to go")
        return kept


def consolidated(path: Path) -> dict[str, Any]:
    """In a process of its own: what it spent."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(recall.NOW)], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--calls", type=int, default=1_000_000)
    options.add_argument("--folder", type=Path, help="where the store is made; a temporary folder if not given")
    options.add_argument("--keep", action="store_true", help="leave the store there")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="mulligan-consolidate-"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"consolidate-{given.calls}.db"

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    rounds: dict[str, dict[str, Any]] = {}
    try:
        store = SqliteStore(path)
        filling = Filling(store)
        kept = filling.add(given.calls, show)
        rounds[f"{kept:,} calls"] = consolidated(path)
        for name in ("1 % more", "another 1 %"):
            filling.add(int(PER_CENT * kept), show)
            rounds[name] = consolidated(path)
        rounds["nothing new"] = consolidated(path)
        store.close()
    finally:
        if not given.keep:
            shutil.rmtree(folder) if given.folder is None else path.unlink(missing_ok=True)
    first, *more = rounds.values()
    is_met = first["seconds"] <= 60 * MINUTES and first["megabytes"] <= MEGABYTES
    is_met = is_met and all(each["cpu"] <= SHARE * first["cpu"] for each in more)
    if given.json:
        print(json.dumps({"rounds": rounds, "met": is_met}))
    else:
        print(f"{'':20}{'patterns':>10}{'lessons':>9}{'active':>8}{'CPU':>10}{'of the first':>14}{'memory':>9}")
        for name, each in rounds.items():
            share = f"{100 * each['cpu'] / first['cpu']:.1f} %"
            print(
                f"{name:20}{each['patterns']:>10,}{each['lessons']:>9,}{each['active']:>8,}"
                f"{each['cpu']:>8.2f} s{share:>14}{each['megabytes']:>6.0f} MB"
            )
        print(f"\n{'Met' if is_met else 'NOT MET'}: within {MINUTES:.0f} minutes and {MEGABYTES:.0f} MB, then 5 %.")
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
