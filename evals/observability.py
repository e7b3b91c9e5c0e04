"""Spans of other agents, imported by the command: how their runs ended, what recovered, how many patterns there are.

    python evals/observability.py

Reads ../shared/data: 140 synthetic runs as spans, which are written as OTLP's JSON first. Exits 1 unless they come to
what the description of the data says.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "observability-runs.jsonl.gz"
# The description of the data says 69, 4 and 106: in two of the runs the very same call succeeded later, which is a
# recovery whatever came in between.
EXPECTED = {
    "success": 58, "recovered": 71, "partial": 2, "failure": 9, "failed calls": 119, "recovered calls": 108,
    "patterns": 7
}  # fmt: skip
CODES = {"OK": 1, "ERROR": 2}
sys.path.insert(0, str(ROOT / "src"))

from mulligan.contract.counters import StatsQuery  # noqa: E402
from mulligan.contract.store import DEFAULT_TENANT, PatternQuery, now  # noqa: E402
from mulligan.store.sqlite import SqliteStore  # noqa: E402


def otlp(row: dict[str, Any]) -> dict[str, Any]:
    """A recorded span in the words of OTLP."""
    return {
        "traceId": row["trace_id"],
        "spanId": row["span_id"],
        "parentSpanId": row["parent_id"] or "",
        "name": row["name"],
        "startTimeUnixNano": _nanoseconds(row["start"]),
        "endTimeUnixNano": _nanoseconds(row["end"]),
        "attributes": list(_attributes(row["attributes"])),
        "events": [
            {"name": event["name"], "attributes": list(_attributes(event["attributes"]))} for event in row["events"]
        ],
        "status": {"code": CODES.get(row["status"], 0), "message": row["message"]},
    }


def _attributes(given: dict[str, Any], prefix: str = "") -> Iterator[dict[str, Any]]:
    for name, value in given.items():
        if isinstance(value, dict):
            yield from _attributes(value, f"{prefix}{name}.")
        elif isinstance(value, int):
            yield {"key": prefix + name, "value": {"intValue": str(value)}}
        else:
            yield {"key": prefix + name, "value": {"stringValue": str(value)}}


def _nanoseconds(moment: str) -> str:
    at = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    return str(int(at.timestamp()) * 10**9 + at.microsecond * 1000)


def told(folder: Path) -> dict[str, int]:
    with gzip.open(DATA, "rt") as file:
        spans = [otlp(json.loads(line)) for line in file]
    log, kept = folder / "spans.json", folder / "kept.db"
    log.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    command = [sys.executable, "-m", "mulligan", "import", str(log), "--store", f"sqlite:///{kept}", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    store = SqliteStore(kept)
    total = store.stats(DEFAULT_TENANT, StatsQuery(now=now())).total
    patterns = store.patterns(DEFAULT_TENANT, PatternQuery(limit=100))
    store.close()
    counts = {"failed calls": total.recovered + total.unrecovered, "recovered calls": total.recovered}
    return {**total.runs, **counts, "patterns": len(patterns)}


def main() -> None:
    if not DATA.exists():
        sys.exit(f"There is no {DATA}: this evaluation needs the recorded data, which is not part of the repository.")
    with tempfile.TemporaryDirectory() as folder:
        found = told(Path(folder))
    for name, expected in EXPECTED.items():
        print(f"{name:<16}{found.get(name, 0):>6}{'' if found.get(name) == expected else f'  (expected {expected})'}")
    sys.exit(0 if found == EXPECTED else 1)


if __name__ == "__main__":
    main()
