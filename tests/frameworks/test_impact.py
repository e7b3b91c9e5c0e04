"""An agent of the real LangChain works for two simulated weeks: `impact` shows the effect of advice that was put in."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import simulated_weeks
from simulated_weeks import SHIFTED_CLOCK, check_impact, check_show

from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.settings import load_settings
from mulligan.store.sqlite import SqliteStore

pytest.importorskip("langchain", exc_type=ImportError)
RUNS = 110
PROGRAM = f"{SHIFTED_CLOCK}\nfrom frameworks.planning_agent import work\nwork({RUNS})"


def test_impact_shows_what_the_simulation_put_in_and_show_names_the_runs_without_advice(types, tmp_path):
    clock = tmp_path / "clock"
    clock.write_text("0")
    added = {"TEST_CLOCK_FILE": str(clock), "PYTHONPATH": str(Path(simulated_weeks.__file__).parent)}
    environment = {**os.environ, **added, "MULLIGAN_HOLDOUT": "0.5"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], env=environment, check=True)
    row = check_impact(types)
    assert row["held_out_cases"] >= 20
    with contextlib.closing(SqliteStore(load_settings().folder / "mulligan.db")) as store:
        runs = [history.run for history in store.runs(DEFAULT_TENANT, RunQuery(limit=RUNS))]
    held_out = [run.id for run in runs if any(record.held_out for record in run.advice)]
    advised = [run.id for run in runs if run.advice and run.id not in held_out]
    check_show(types, held_out[0], advised[0])
    causes = json.loads(types("stats", "--since", "20d", "--json")[1])["model_recovery"]["by_cause"]
    assert {cause["model"] for cause in causes} == {"small-1"}
