"""A PostgreSQL that goes wrong again and again while records come in: what of those acknowledged is lost or doubled.

    python benchmarks/faults.py [--rounds N] [--json]
    python benchmarks/faults.py --writers 50 [--seconds 60] [--json]

Each round has every fault once, in another order: the database is stopped and started (fast, immediate, killed), the
answer to a COMMIT is lost, a COMMIT is lost, no connection is left, no room is left. Meanwhile clients send runs to
`mulligan serve` until each is acknowledged, and an agent makes calls through the library. Exits 1 where anything that
was acknowledged is missing, or counted more than once.

With `--writers`, so many send one run in a POST to a server on SQLite and to one on PostgreSQL, while these servers are
killed with SIGKILL and the database is restarted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--json", action="store_true")
    asked.add_argument("--writers", type=int, default=0)
    asked.add_argument("--seconds", type=float, default=60.0, help="of the writers on each store")
    given = asked.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent / "src"), os.environ.get("PYTHONPATH")]))
    if given.writers:
        rows = [write(name, given.writers, given.seconds) for name in ("SQLite", "PostgreSQL")]
        for row in rows:
            print(json.dumps(row) if given.json else "  ".join(f"{key} {value}" for key, value in row.items()))
        sys.exit(0 if all(row["lost"] == row["doubled"] == 0 for row in rows) else 1)
    found = measured(given.rounds, given.seed)
    if given.json:
        print(json.dumps(found))
    else:
        shown(found)
    sys.exit(0 if found["lost"] == found["doubled"] == 0 else 1)


def write(name: str, writers: int, seconds: float) -> dict[str, Any]:
    """Writers at a server on this store, through kills and restarts; what is lost or doubled."""
    from ingest import Kept, write_through_faults  # type: ignore[import-not-found]
    from postgres import Server, fresh_database  # type: ignore[import-not-found]

    with contextlib.ExitStack() as opened:
        restart: Callable[[], None] | None = None
        if name == "SQLite":
            url = f"sqlite:///{opened.enter_context(tempfile.TemporaryDirectory())}/kept.db"
        else:
            database = opened.enter_context(Server(durable=True))
            url = opened.enter_context(fresh_database(database.url))

            def restart() -> None:
                database.stop("immediate")
                database.start()

        survived = write_through_faults(url, restart, writers, seconds)
        kept = Kept(url)
        return {
            "store": name,
            "seconds": round(survived.seconds, 1),
            "kills": survived.kills,
            "restarts": survived.restarts,
            "acknowledged": len(survived.senders.acknowledged),
            "refused": sum(survived.senders.refused.values()),
            "stored": len(kept.runs),
            "lost": len(survived.senders.acknowledged - kept.runs),
            "doubled": _doubled(kept),
        }


def measured(rounds: int, seed: int) -> dict[str, Any]:
    from cutting import Wire  # type: ignore[import-not-found]
    from full_disk import can_be_had, with_small_log  # type: ignore[import-not-found]
    from ingest import Agent, Kept, Senders, serving
    from postgres import Server, fresh_database

    chance = random.Random(seed)
    count: dict[str, int] = {}
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(Server(durable=True, max_connections="40"))
        with_small_log(server)
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="mulligan-faults-")))
        ours, theirs = (opened.enter_context(fresh_database(server.url)) for _ in range(2))
        wire, other_wire = opened.enter_context(Wire(ours)), opened.enter_context(Wire(theirs))
        process = opened.enter_context(serving(wire.url))
        agent = Agent(other_wire.url, folder)
        began = time.monotonic()
        with Senders(process.port, text=600) as senders:
            faults: dict[str, Callable[[], None]] = {
                "stopped (fast)": lambda: restarted(server, senders, "fast"),
                "stopped (immediate)": lambda: restarted(server, senders, "immediate"),
                "killed": lambda: restarted(server, senders, "kill"),
                "answer to COMMIT lost": lambda: cut(senders, "after", wire, other_wire),
                "COMMIT lost": lambda: cut(senders, "before", wire, other_wire),
                "no connection left": lambda: taken(ours, senders),
            }
            if can_be_had():
                faults["no room left"] = lambda: filled(server, senders)
            for _ in range(rounds):
                for name in chance.sample(sorted(faults), len(faults)):
                    faults[name]()
                    count[name] = count.get(name, 0) + 1
                    senders.until(20)
        seconds = time.monotonic() - began
        made = agent.end()
        kept, calls = Kept(ours), Kept(theirs)
        return {
            "seconds": round(seconds, 1),
            "faults": count,
            "cut": len(wire.cut) + len(other_wire.cut),
            "acknowledged_runs": len(senders.acknowledged),
            "refused": sum(senders.refused.values()),
            "agent_calls": made,
            "lost": len(senders.acknowledged - kept.runs) + max(0, made - calls.steps),
            "doubled": _doubled(kept) + _doubled(calls) + max(0, calls.steps - made),
        }


def _doubled(kept: Any) -> int:
    """Calls by which the figures differ from what is there."""
    counted = kept.counted.total.calls
    return abs(int(kept.stats.total.calls) - int(counted)) or int(kept.stats != kept.counted)


def restarted(server: Any, senders: Any, mode: str) -> None:
    server.stop(mode)
    senders.until_refused()
    server.start()


def cut(senders: Any, moment: Any, *wires: Any) -> None:
    for wire in wires:
        wire.arm(moment)
    senders.until(20)


def taken(url: str, senders: Any) -> None:
    import psycopg

    with contextlib.ExitStack() as held:
        with psycopg.connect(url, autocommit=True) as other:
            for last in (False, True):
                with contextlib.suppress(psycopg.OperationalError):
                    while True:
                        held.enter_context(psycopg.connect(url))
                if not last:
                    other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                        "AND application_name LIKE 'mulligan%'"
                    )
        senders.until_refused()


def filled(server: Any, senders: Any) -> None:
    from full_disk import full_disk

    # Nothing may grow any more that has come so far; what is still small may, which is as with a real disk.
    largest = max(path.stat().st_size for path in (server.data / "base").rglob("[0-9]*"))
    with full_disk(server, max(largest, 1 << 20)):
        senders.until_refused()


def shown(found: dict[str, Any]) -> None:
    for name, number in sorted(found["faults"].items()):
        print(f"{number:4} x {name}")
    print(
        f"\n{found['acknowledged_runs']:,} runs acknowledged over HTTP ({found['refused']:,} refusals), "
        f"{found['agent_calls']:,} calls of an agent, in {found['seconds']:.0f} s; {found['cut']} connections cut"
    )
    print(f"lost {found['lost']}, doubled {found['doubled']}")


if __name__ == "__main__":
    main()
