"""Which model caused a failed tool call: recorded transcripts that name the model, imported by the command.

    python evals/attribution.py

Reads ../shared/data and says so when it is absent. A failure is right if `find_causes` names the model of its row. The
adapters have the same question in `tests/frameworks/test_adapters.py`, for each scripted scenario.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "calls-dev.jsonl.gz"
BATCH = 500
sys.path.insert(0, str(ROOT / "src"))

from mulligan.contract.store import DEFAULT_TENANT, RunQuery  # noqa: E402
from mulligan.core.calls import group_attempts  # noqa: E402
from mulligan.core.episodes import find_causes  # noqa: E402
from mulligan.store.sqlite import SqliteStore  # noqa: E402


def read_models() -> dict[tuple[str, str, int], str]:
    """Return the model of each recorded call, by dataset, transcript and number of the call."""
    with gzip.open(DATA, "rt") as lines:
        rows = map(json.loads, lines)
        return {(row["dataset"], row["run_id"], row["seq"] + 1): row["model"] for row in rows if row["model"]}


def count_right(store: SqliteStore) -> tuple[Counter[str], Counter[str]]:
    """Return failed calls, and those attributed to the model of their row, by dataset."""
    models = read_models()
    totals: Counter[str] = Counter()
    right: Counter[str] = Counter()
    position = None
    while histories := store.runs(DEFAULT_TENANT, query := RunQuery(limit=BATCH, before=position)):
        position = query.position_of(histories[-1])
        for history in histories:
            causes = find_causes(history)
            for call in group_attempts(history.steps):
                model = models.get((history.run.agent, history.run.session or "", call.id))
                if call.has_failed and model is not None:
                    totals[history.run.agent] += 1
                    cause = causes.get(call.id)
                    right[history.run.agent] += cause is not None and cause.model == model
    return totals, right


def main() -> None:
    if not DATA.exists():
        sys.exit(f"There is no {DATA}.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls.db"
        command = [sys.executable, "-m", "mulligan", "import", "--format", "calls", str(DATA), "--store", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        totals, right = count_right(SqliteStore(path))
    for dataset, total in sorted(totals.items()):
        print(f"{dataset:22} {right[dataset]:,} of {total:,} failed calls attributed to the model that the row names")
    print(f"{'all':22} {right.total():,} of {totals.total():,}")
    sys.exit(right != totals)


if __name__ == "__main__":
    main()
