"""Every page of the dashboard over recorded calls: how long each takes, over real HTTP.

    python evals/dashboard.py [--limit 1.0]

Reads ../shared/data. The recorded calls are old, so that every page is asked about the days they are of. Exits 1 if a
page takes longer than the limit: the best of three, of what the whole process computes and of the clock on the wall.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "support"), str(ROOT / "evals")]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--limit", type=float, default=1.0, help="seconds a page may take")
    limit = parser.parse_args().limit
    from import_calls import DATA, imported

    if not DATA.exists():
        print(f"There is no {DATA.name} beside the repository (../shared/data): nothing to show.")
        return 0
    from servers import served

    from mulligan.dashboard.pages import build_routes

    with tempfile.TemporaryDirectory() as folder:
        imported(Path(folder) / "mulligan.db")
        with served(Path(folder), groups=(build_routes,)) as running:
            person = running.person()
            slow = 0
            print(f"{'page':58}  {'bytes':>9}  {'sent':>8}  {'s':>6}  {'CPU s':>6}")
            for path in pages(running.store):
                best = used = float("inf")
                for _ in range(3):
                    began, before = time.perf_counter(), time.process_time()
                    answer = person.get(path)
                    best, used = min(best, time.perf_counter() - began), min(used, time.process_time() - before)
                    assert answer.status == 200, (path, answer.status)
                sent = len(person.get(path, Accept_Encoding="gzip").body)
                slow += min(best, used) >= limit
                print(f"{path[:58]:58}  {len(answer.body):9,}  {sent:8,}  {best:6.3f}  {used:6.3f}")
    print(f"\n{slow} pages took {limit} s or more.")
    return 1 if slow else 0


def pages(store: object) -> list[str]:
    """The lists over all days there are, and of each the one with the most in it."""
    from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery, PatternQuery, RunQuery, Store
    from mulligan.dashboard import formatting

    assert isinstance(store, Store)
    histories = list(store.export(DEFAULT_TENANT))
    started = [history.run.started_at for history in histories if history.run.started_at]
    days = f"from={formatting.date(min(started))}&to={formatting.date(max(started) + DAY)}"
    longest = max(histories, key=lambda history: len(history.steps))
    calls: dict[str, int] = {}
    agents: dict[str, int] = {}
    for history in histories:
        agents[history.run.agent] = agents.get(history.run.agent, 0) + 1
        for step in history.steps:
            if step.type == "tool":
                calls[step.name] = calls.get(step.name, 0) + 1
    tool, agent = max(calls, key=lambda name: calls[name]), max(agents, key=lambda name: agents[name])
    pattern = max(store.patterns(DEFAULT_TENANT, PatternQuery(limit=1000)), key=lambda each: each.occurrences)
    fix = max(store.fixes(DEFAULT_TENANT, FixQuery(now=max(started), limit=100)), key=lambda each: each.trials)
    assert store.runs(DEFAULT_TENANT, RunQuery(limit=1))
    one = {"runs": longest.run.id, "tools": tool, "agents": agent, "patterns": pattern.id, "fixes": fix.id}
    found = [f"/?{days}", f"/?{days}&agent={agent}", "/", "/?range=24h", "/?range=30d"]
    for section, name in one.items():
        there = formatting.detail_path(section, name)
        found += [f"/{section}?{days}", f"{there}{'&' if '?' in there else '?'}{days}"]
    found += [f"/runs?{days}&status=partial", f"/patterns?{days}&text=not", f"/choices?{days}", f"/search?q={tool[:6]}"]
    return [*found, f"/compare?{days}&by=agent", f"/compare?{days}&by=tool", "/compare?by=time", "/health", "/live"]


if __name__ == "__main__":
    sys.exit(main())
