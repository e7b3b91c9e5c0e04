"""The store that benchmarks ask is what its own writer would have kept, and is there whole or not at all."""

from __future__ import annotations

import importlib.util
import sqlite3
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mulligan.contract import counters
from mulligan.contract.counters import DAY, HOUR
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.store import rollups
from mulligan.store.sqlite import SqliteStore

FIRST = 1_700_000_000_000 // DAY * DAY
NOW = FIRST + DAY + 3 * HOUR - 1


@pytest.fixture(scope="module")
def filling() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "filling.py"
    spec = importlib.util.spec_from_file_location("filling", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kept(path: Path) -> dict[str, Any]:
    """Everything in a store, but for when it came and what was learned from it, which these benchmarks do not ask."""
    with sqlite3.connect(path) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        tables = {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}
        indices = sorted(connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))
    connection.close()
    # not filled
    for name in (
        "journals",
        "principals",
        "votes",
        "fixes",
        "pattern_sketches",
        "pending_patterns",
        "tool_sketches",
        "run_facts",
    ):
        del tables[name]
    tables["runs"] = [(*row[:9], *row[10:-1]) for row in tables["runs"]]
    sums = {tuple(key): counters.unpack(cell, rest) for *key, cell, rest in tables.pop("rollups")}
    return {**tables, "sums": sums, "indices": indices}


def test_a_store_filled_in_bulk_is_what_its_writer_keeps_of_the_same_calls(filling: ModuleType, tmp_path: Path) -> None:
    filler = filling.Filler(tmp_path / "bulk.db", 27 * 20, NOW, FIRST)
    filler.fill()
    store = SqliteStore(tmp_path / "written.db")
    for hour in filler.hours:
        histories = [filling.moved(history, hour) for history in filler.blocks[hour.block].histories]
        batch: list[Any] = []
        for history in histories:
            batch += [RunStarted(history.run), *(StepEnded(step) for step in history.steps), RunEnded(history.run)]
        store.append(DEFAULT_TENANT, batch, "journal", hour.number + 1)
    with store.write_transaction(DEFAULT_TENANT) as writer:
        rollups.fold(writer, DEFAULT_TENANT)
    store.close()

    bulk, written = kept(tmp_path / "bulk.db"), kept(tmp_path / "written.db")

    assert bulk.keys() == written.keys()
    for name in written:
        assert bulk[name] == written[name], name
    assert len(bulk["steps"]) > filler.calls == 540
    filled = ("links", "run_failures", "run_callees", "patterns", "pattern_days", "pattern_agents")
    assert all(bulk[name] for name in filled)


def test_a_store_that_was_not_filled_to_the_end_is_not_there(filling: ModuleType, tmp_path: Path) -> None:
    filler = filling.Filler(tmp_path / "bulk.db", 27 * 20, NOW, FIRST)

    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filler.fill(stop)
    assert not (tmp_path / "bulk.db").exists()

    filler.fill()  # again, over what was left
    assert kept(tmp_path / "bulk.db")["runs"]
