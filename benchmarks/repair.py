"""What a repair from the schema costs: CPU at the median, for each sort of fault.

    python benchmarks/repair.py

Repair is asked for after a failure only: a call that works never comes here.
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

from mulligan.core.failure import Failure
from mulligan.core.kinds import TOOL_INVALID_ARGUMENTS
from mulligan.recover.policy import Tool
from mulligan.recover.repair import suggest

TARGET = 200.0
"""Microseconds, at the median over all sorts of faults."""
ROUNDS = 300

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "top_k": {"type": "integer", "minimum": 1, "maximum": 10},
        "sort": {"type": "string", "enum": ["Newest", "Oldest", "Relevance"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "span": {"type": "object", "properties": {"days": {"type": "integer"}}},
        "unit": {"type": "string", "default": "metric"},
    },
    "required": ["query", "unit"],
    "additionalProperties": False,
}
GOOD = {"query": "cats", "unit": "metric"}
FAULTS: dict[str, dict[str, Any]] = {
    "cast": {**GOOD, "top_k": "5"},
    "bound": {**GOOD, "top_k": 50},
    "rename, spelling": {**GOOD, "topK": 5},
    "rename, slip": {**GOOD, "tpo_k": 5},
    "enum": {**GOOD, "sort": "newest"},
    "parse": {**GOOD, "tags": '["a", "b"]'},
    "wrap": {**GOOD, "tags": "a"},
    "empty key": {**GOOD, "": {}},
    "default": {"query": "cats"},
    "unnest": {"arguments": GOOD},
    "nest": {**GOOD, "days": 3},
    "four at once": {"query": 5, "topK": "50", "sort": "OLDEST", "tags": "a", "unit": "metric"},
}


def main() -> None:
    failure = Failure.of(TOOL_INVALID_ARGUMENTS, "The arguments do not fit.")
    tool = Tool(name="search", schema=lambda: SCHEMA)
    times: dict[str, list[int]] = {name: [] for name in FAULTS}
    for _ in range(ROUNDS):  # in turn, so that a busy moment of the machine hits all alike
        for name, arguments in FAULTS.items():
            began = time.process_time_ns()
            made = suggest(arguments, failure, tool)
            times[name].append(time.process_time_ns() - began)
            assert made, name
            assert made[0].automatic, name
    for name, each in times.items():
        print(f"{name:<20}{statistics.median(each) / 1000:7.0f} us")
    median = statistics.median(value for each in times.values() for value in each) / 1000
    print(f"{'all':<20}{median:7.0f} us   (at most {TARGET:.0f})")
    sys.exit(0 if median <= TARGET else 1)


if __name__ == "__main__":
    main()
