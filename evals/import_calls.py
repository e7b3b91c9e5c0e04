"""Recorded calls, imported by the command: how long it takes, and whether the counts agree.

    python evals/import_calls.py            the tables
    python evals/import_calls.py --update   and puts the first into docs/classification-figures.md

Reads ../shared/data. The outcome *reported* is the recording's own flag. Ours differs by the calls that are flagged as
errors and are none: refused by the user, stopped, or collateral of a sibling call. These are listed by kind.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "calls-dev.jsonl.gz"
PAGE = ROOT / "docs" / "classification-figures.md"
REPORTED = {"bfcl-multi-turn": (24_371, 2_746), "tau-bench": (5_156, 408), "claude-code-sessions": (13_575, 606)}
"""Calls and failures of each dataset, as the description of the data says."""
LIMIT = 60.0
"""Seconds. Those it computes count: what else the machine does is not the command's fault."""
sys.path.insert(0, str(ROOT / "src"))

from mulligan.contract.store import DEFAULT_TENANT  # noqa: E402
from mulligan.store.sqlite import SqliteStore  # noqa: E402


def imported(store: Path) -> tuple[float, float, dict[str, int]]:
    """Seconds that the command takes, seconds that it computes, and what it says."""
    command = [
        sys.executable,
        "-m",
        "mulligan",
        "import",
        "--format",
        "calls",
        str(DATA),
        "--store",
        str(store),
        "--json",
    ]
    began, used = time.monotonic(), _used()
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True, capture_output=True, text=True
    )
    return time.monotonic() - began, _used() - used, json.loads(done.stdout)


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def main() -> int:
    if not DATA.exists():
        print(f"No data: {DATA} is absent, so there is nothing to measure on.")
        return 0
    flagged: Counter[tuple[str, str]] = Counter()
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            flagged[row["dataset"], row["outcome"]] += 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "imported.db"
        seconds, used, told = imported(path)
        again, _, repeated = imported(path)
        ours: Counter[tuple[str, str]] = Counter()
        none: Counter[tuple[str, str]] = Counter()
        store = SqliteStore(path)
        for history in store.export(DEFAULT_TENANT):
            for step in history.steps:
                ours[history.run.agent, step.outcome] += 1
                ours[history.run.agent, "calls"] += 1
                if step.failure is not None and not step.failure.is_failure:
                    none[history.run.agent, str(step.failure.kind)] += 1
            ours[history.run.agent, "recovered"] += len(history.links)
        store.close()
    wrong = []
    rows = [
        "| dataset | calls | reported failures | no failures (`none/...`) | ours | recovered later in the run |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, (calls, failures) in REPORTED.items():
        aside = {kind: count for (dataset, kind), count in none.items() if dataset == name}
        told_apart = ", ".join(f"{count} {kind.partition('/')[2]}" for kind, count in sorted(aside.items())) or "0"
        rows.append(
            f"| {name} | {ours[name, 'calls']:,} | {flagged[name, 'failure']:,} | {told_apart} | "
            f"{ours[name, 'failure']:,} | {ours[name, 'recovered']:,} |"
        )
        if (ours[name, "calls"], flagged[name, "failure"]) != (calls, failures):
            wrong.append(f"{name}: the description says {calls:,} calls and {failures:,} failures")
        if ours[name, "failure"] + sum(aside.values()) != failures:
            wrong.append(f"{name}: ours and the calls classified none do not add up to what was reported")
    made = "\n".join(rows)
    print(made)
    print()
    counts = f"{told['runs']:,} runs with {told['steps']:,} calls"
    print(f"{counts} imported in {seconds:.1f} s, {used:.1f} s of them computing, at most {LIMIT:.0f} s.")
    print(f"The same file again: {repeated['new']} new records, {again:.1f} s.")
    if repeated["new"]:
        wrong.append("the same file again added something")
    if used > LIMIT:
        wrong.append(f"importing took {used:.0f} s")
    for each in wrong:
        print(f"WRONG: {each}")
    if "--update" in sys.argv:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- imported -->\n")
        after = rest.partition("<!-- end imported -->")[2]
        PAGE.write_text(f"{before}<!-- imported -->\n{made}\n<!-- end imported -->{after}", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
