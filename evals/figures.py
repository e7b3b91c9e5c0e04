"""Are the figures of a store what its records come to? Recorded calls are imported, and counted by hand.

    python evals/figures.py

../shared/data/calls-dev.jsonl.gz is imported by the command into a temporary store. Every question that can be put to
`mulligan stats` is then answered from the store's sums and counted anew from its records, and a count that knows
nothing of `mulligan.contract.counters` is made of the steps themselves. All three must be equal.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "calls-dev.jsonl.gz"
sys.path.insert(0, str(ROOT / "src"))

from mulligan.contract import counters  # noqa: E402
from mulligan.contract.counters import DAY, By, StatsQuery  # noqa: E402
from mulligan.contract.store import DEFAULT_TENANT  # noqa: E402
from mulligan.core.records import History  # noqa: E402
from mulligan.store.sqlite import SqliteStore  # noqa: E402


def by_hand(histories: list[History]) -> dict[str, Any]:
    """The plainest count of the steps themselves."""
    told: dict[str, Any] = dict.fromkeys(("calls", "attempts", "first_try", "recovered", "unrecovered"), 0)
    kinds: Counter[str] = Counter()
    tools: dict[str, Counter[str]] = defaultdict(Counter)
    for history in histories:
        linked = {link.failed_call for link in history.links}
        steps = sorted(history.steps, key=lambda step: (step.call, step.attempt))
        for id, group in itertools.groupby(steps, key=lambda step: step.call):
            attempts = list(group)
            failed = [step for step in attempts if step.has_failed]
            for step in failed:
                assert step.failure is not None
                kinds[str(step.failure.kind)] += 1
            if attempts[0].type == "run":
                continue
            worked = attempts[-1].outcome == "success"
            if failed:
                ending = "recovered" if worked or id in linked else "unrecovered"
            else:
                ending = "first_try" if worked else ""
            told["calls"] += 1
            told["attempts"] += len(attempts)
            if ending:
                told[ending] += 1
            if attempts[0].type in counters.TOOLS:
                tools[attempts[0].name].update(["calls", *([ending] if ending else [])])
    return told | {"kinds": dict(kinds), "tools": {name: dict(each) for name, each in tools.items()}}


def answered(cells: counters.Cells, query: StatsQuery) -> counters.Stats:
    """What `figures.stats` says, without counting the same records for every question."""
    whole, parts = counters.readings(query)
    packed = counters.to_packed_cells(cells)
    return counters.answer(query, counters.rows(packed, whole), counters.rows(packed, parts) if parts else ())


def questions(histories: list[History]) -> list[StatsQuery]:
    """Every dimension, alone and narrowed, over everything and over parts of the time."""
    last = max(step.started_at for history in histories for step in history.steps)
    first = min(step.started_at for history in histories for step in history.steps)
    agent = Counter(history.run.agent for history in histories).most_common(1)[0][0]
    tool = Counter(step.name for history in histories for step in history.steps).most_common(1)[0][0]
    bys: list[By | None] = [None, *get_args(By)]
    narrowed: list[dict[str, Any]] = [
        {},
        {"agent": agent},
        {"tool": tool},
        {"kind": "tool/invalid_arguments"},
        {"agent": agent, "tool": tool},
        {"since": (first + last) // 2},
        {"since": last - DAY},
        {"since": first, "until": (first + last) // 2},
    ]
    return [
        StatsQuery(now=last, by=by, detail=detail, **fields)
        for by in bys
        for fields in narrowed
        for detail in (False, True)
    ]


def main() -> int:
    if not DATA.exists():
        print(f"{DATA.name} is not beside the project; nothing was compared.")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kept.db"
        began = time.monotonic()
        words = [sys.executable, "-m", "mulligan", "import", str(DATA), "--format", "calls", "--store", str(path)]
        subprocess.run(words, check=True, env={"PYTHONPATH": str(ROOT / "src"), "HOME": folder}, capture_output=True)
        print(f"imported in {time.monotonic() - began:.0f} s")
        store = SqliteStore(path)
        histories = list(store.export(DEFAULT_TENANT))
        asked = questions(histories)
        counted_anew: counters.Cells = {}
        for history in histories:
            counters.add(counted_anew, counters.cells(history))
        wrong = sum(store.stats(DEFAULT_TENANT, query) != answered(counted_anew, query) for query in asked)
        print(f"{len(histories):,} runs, {sum(len(each.steps) for each in histories):,} steps")
        print(f"questions whose answer differs from a count of the records: {wrong} of {len(asked)}")
        total = store.stats(DEFAULT_TENANT, StatsQuery(now=0)).total
        parts = store.stats(DEFAULT_TENANT, StatsQuery(now=0, by="tool")).parts
        store.close()
    counted = by_hand(histories)
    differing = [name for name in counted if name not in ("kinds", "tools") and counted[name] != getattr(total, name)]
    if counted["kinds"] != {kind: cell.failures for kind, cell in total.kinds.items()}:
        differing.append("kinds")
    names = ("calls", "first_try", "recovered", "unrecovered")
    tools = {tool: {name: getattr(cell, name) for name in names if getattr(cell, name)} for tool, cell in parts.items()}
    if counted["tools"] != tools:
        differing.append("tools")
    print(f"figures that differ from a count by hand: {', '.join(differing) or 'none'}")
    told = ", ".join(f"{name} {counted[name]:,}" for name in names)
    print(f"{told}; {sum(counted['kinds'].values()):,} failures of {len(counted['kinds'])} kinds, {len(tools)} tools")
    return int(bool(wrong or differing))


if __name__ == "__main__":
    sys.exit(main())
