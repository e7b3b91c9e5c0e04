"""mulligan replay, through the real command: the store, a log, what is remembered elsewhere, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Run, Step
from mulligan.store.sqlite import SqliteStore

REJECTED = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k is too much", fingerprint="f-k"
)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Eight runs, on two days, in which the same correction worked."""
    path = tmp_path / "kept.db"
    kept = SqliteStore(path)
    for number in range(8):
        at = int(time.time() * 1000) - 10_000 - (number % 2) * DAY
        run = Run(id=f"run_{number}", started_at=at, ended_at=at, end_reason="finished")
        shared: dict[str, Any] = {"run": run.id, "name": "search", "key": "shop:search", "duration_seconds": 0.1}
        query = f"cats {number}"
        failed = Step(
            seq=1, call=1, arguments={"q": query, "k": 50}, outcome="failure", failure=REJECTED, effects="none",
            started_at=at, **shared,
        )  # fmt: skip
        then = Step(seq=2, call=2, arguments={"q": query, "k": 10}, started_at=at + 1000, **shared)
        kept.append(DEFAULT_TENANT, [StepEnded(failed), StepEnded(then), RunEnded(run)], f"journal_{number}", 1)
    kept.close()
    return str(path)


def mulligan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mulligan", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def facts(*arguments: str) -> dict[str, Any]:
    done = mulligan("replay", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def approve(store: str) -> None:
    kept = SqliteStore(Path(store))
    (fix,) = kept.fixes(DEFAULT_TENANT, FixQuery(now=int(time.time() * 1000)))
    kept.decide(DEFAULT_TENANT, fix.id, approved=True, at=int(time.time() * 1000))
    kept.close()


def test_a_remembered_value_is_only_told_until_a_person_approves_it(store):
    found = facts("--store", store)
    assert (found["failures"], found["repaired"], found["suggested_correctly"]) == (8, 0, 8)
    assert "shows no benefit of mode=repair" in found["verdict"]


def test_what_memory_would_have_repaired_is_counted_without_what_a_run_taught_about_itself(store):
    approve(store)
    found = facts("--store", store)
    assert (found["failures"], found["repaired"], found["repaired_differently"]) == (8, 8, 0)
    assert found["tools"][0]["tool"] == "search"
    assert found["kinds"][0]["kind"] == "tool/invalid_arguments"
    assert "Use mode=repair for search" in found["verdict"]
    done = mulligan("replay", "--store", store)
    assert done.stdout.startswith("8 of 8 recorded failures (100 %) would recover automatically today")
    assert done.stdout.rstrip().endswith("none differently.")


def test_without_memory_nothing_is_known_and_a_schema_knows_by_itself(store, tmp_path):
    assert facts("--store", store, "--no-memory")["no_action"] == 8
    tools = tmp_path / "tools.json"
    schema = {"type": "object", "properties": {"q": {"type": "string"}, "k": {"type": "integer", "maximum": 10}}}
    tools.write_text(json.dumps({"tools": [{"name": "search", "inputSchema": schema}]}))
    found = facts("--store", store, "--no-memory", "--tools", str(tools))
    assert found["repaired"] == 8
    assert [each["source"] for each in found["sources"]] == ["schema"]


def test_a_log_is_replayed_with_what_is_remembered_elsewhere(store, tmp_path):
    log = tmp_path / "calls.jsonl"
    row = {"run_id": "r", "tool": "search", "result_excerpt": ""}
    log.write_text(
        "\n".join(
            json.dumps({**row, **each})
            for each in (
                {"seq": 0, "parameters": {"q": "b", "k": 70}, "outcome": "failure", "error": "k is too much"},
                {"seq": 1, "parameters": {"q": "b", "k": 10}, "outcome": "success", "error": None},
            )
        )
    )
    assert facts(str(log))["no_action"] == 1
    assert facts(str(log), "--memory", store)["failures"] == 1
    alone = facts(str(log), "--memory", str(log))
    assert (alone["failures"], alone["no_action"]) == (1, 1), "a run teaches nothing about itself"


def test_each_failure_can_be_had_as_a_line(store):
    approve(store)
    done = mulligan("replay", "--store", store, "--cases")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 8
    assert {(line["move"], line["agrees"], line["source"]) for line in lines} == {("repair", True, "memory")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--store", "nowhere.db"], "Store nowhere.db does not exist yet"),
        (["nowhere.jsonl"], "Cannot read nowhere.jsonl"),
        (["--memory", "a", "--no-memory"], "exclude each other"),
        (["a.jsonl", "--store", "b.db"], "FILE and --store exclude each other"),
        (["--tools", "nowhere.json"], "Cannot read nowhere.json"),
    ],
)
def test_what_cannot_be_done_says_what_to_type(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = mulligan("replay", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_store_is_not_read_as_a_log(store):
    done = mulligan("replay", store)
    assert (done.returncode, f"--store {store}" in done.stderr) == (2, True)
