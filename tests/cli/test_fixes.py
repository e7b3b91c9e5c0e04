"""mulligan fixes: what turned failures into successes, looked at and decided about."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mulligan.contract.store import DEFAULT_TENANT, TrialReport
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Change, Fix, Run, Step
from mulligan.report.memory_text import not_automatic_reason, render_fix
from mulligan.report.resources import FIX_SPEC, PATTERN_SPEC
from mulligan.report.tables import render_table
from mulligan.store.sqlite import SqliteStore

REJECTED = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k must be at most 10", fingerprint="f-k"
)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "kept.db"
    kept = SqliteStore(path)
    for number, who in enumerate(["ann", "ann", "bob"]):
        at = int(time.time() * 1000) - 1000
        run = Run(id=f"run_{number}", agent="helper \x1b[2J", started_at=at, ended_at=at, end_reason="finished")
        shared = {"run": run.id, "name": "search", "key": "shop:search", "started_at": at}
        query = f"cats {number}"
        steps = [
            Step(seq=1, call=1, arguments={"q": query, "k": 50}, outcome="failure", failure=REJECTED, **shared),
            Step(seq=2, call=2, arguments={"q": query, "k": 10}, **shared),
        ]
        kept.append(DEFAULT_TENANT, [*map(StepEnded, steps), RunEnded(run)], f"journal_{number}", 1, who)
    kept.close()
    return str(path)


def mulligan(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mulligan", "fixes", *arguments], capture_output=True, text=True, timeout=60
    )


def told(store, *arguments):
    return json.loads(mulligan(*arguments, "--store", store, "--json").stdout)


@pytest.mark.learning
def test_fixes_are_listed_with_their_record(store):
    done = mulligan("--store", store)
    assert done.returncode == 0
    assert done.stdout.startswith("1 fix: 1 shown to models, 0 applied automatically.")
    assert "k=10" in done.stdout
    assert "3 of 3" in done.stdout
    (fix,) = told(store)
    assert (fix["successes"], fix["principals"], fix["state"]) == (3, 2, "proposed")


def test_only_the_latest_trials_are_listed() -> None:
    fix = Fix(id="fix_1", tool="search", fingerprint="f-k")
    trials = [
        TrialReport(run=f"run_{number}", principal="ann", agent="", at=0, successful=True) for number in range(25)
    ]
    lines = list(render_fix(fix, trials, {}, 0, None))
    assert sum("run_" in line for line in lines) == 20
    assert lines[-1] == "  5 older runs with --json"


def test_trials_of_one_run_are_one_row() -> None:
    trials = [TrialReport(run="run_1", principal="ann", agent="", at=0, successful=True) for _ in range(100)]
    lines = list(render_fix(Fix(id="fix_1", tool="search", fingerprint="f-k"), trials, {}, 0, None))
    assert [line.split()[:3] for line in lines if "run_1" in line] == [["run_1", "100", "success"]]
    assert "older" not in lines[-1]


@pytest.mark.parametrize(
    ("spec", "needed"), [(FIX_SPEC, {"fix", "tool", "action"}), (PATTERN_SPEC, {"pattern", "message"})]
)
def test_narrow_list_drops_the_less_important_columns(spec: Any, needed: set[str]) -> None:
    facts = {
        "id": "fix_025c39f499c1", "state": "proposed", "showable": False, "successes": 5, "trials": 5, "tool": "stock",
        "last_tried_at": 0, "last_seen_at": 0, "action": "rename top_k to limit", "now": 10**10, "occurrences": 5,
        "unrecovered": 3, "reopened": False, "status": "new",
        "kind": "tool/invalid_arguments", "message": "top_k must be 10 or less",
    }  # fmt: skip
    heading = next(iter(render_table(spec.columns, [facts], 60)))
    assert all(title in heading for title in needed), heading


@pytest.mark.learning
def test_one_is_shown_with_each_run_that_it_rests_on(store):
    (fix,) = told(store)
    done = mulligan("show", fix["id"][:8], "--store", store)
    assert "trials   3 of 3 succeeded" in done.stdout
    assert "  applied  no: a remembered value needs approval by a person\n" in done.stdout
    assert "  shown    to models\n" in done.stdout
    assert "run_2" in done.stdout
    assert done.stdout.count("the tool's next call in the log, the error states the limit") == 3
    assert "\x1b" not in done.stdout
    assert [each["principal"] for each in told(store, "show", fix["id"])["evidence"]].count("ann") == 2


@pytest.mark.learning
def test_one_is_approved_and_revoked(store):
    (fix,) = told(store)
    assert told(store, "approve", fix["id"])["state"] == "approved"
    assert "  applied  automatically\n" in mulligan("show", fix["id"], "--store", store).stdout
    assert mulligan("--store", store).stdout.startswith("1 fix: 1 shown to models, 1 applied automatically.")
    assert told(store, "revoke", fix["id"])["state"] == "revoked"
    assert told(store, "--state", "approved") == []


@pytest.mark.learning
def test_what_cannot_be_tried_is_not_said_to_be(tmp_path):
    """A long text belongs to its run: that it was another one is all that is kept. Approval makes no value of it."""
    path = str(tmp_path / "kept.db")
    kept = SqliteStore(tmp_path / "kept.db")
    at = int(time.time() * 1000) - 1000
    run = Run(id="run_1", agent="helper", started_at=at, ended_at=at, end_reason="finished")
    shared = {"run": run.id, "name": "weather", "started_at": at}
    steps = [
        Step(seq=1, call=1, arguments={"place": FAR, "days": 3}, outcome="failure", failure=REJECTED, **shared),
        Step(seq=2, call=2, arguments={"place": NEAR, "days": 3}, **shared),
    ]
    kept.append(DEFAULT_TENANT, [*map(StepEnded, steps), RunEnded(run)], "journal", 1, "ann")
    kept.close()
    (fix,) = told(path)
    why = "not applied: the value was specific to one run and is not stored"
    assert mulligan("approve", fix["id"], "--store", path).stdout.endswith(f"set place to a value of its run ({why})\n")
    assert mulligan("--store", path).stdout.startswith("1 fix: 0 shown to models, 0 applied automatically.")
    shown = mulligan("show", fix["id"], "--store", path).stdout
    assert "  applied  no: the value was specific to one run and is not stored\n" in shown
    listed = mulligan("--store", path).stderr
    assert "Not shown to models, 1 fix: the value of place is specific to its run" in listed
    assert "  shown    no: the value of place is specific to its run\n" in shown


FAR, NEAR = (f"{word}, then follow the old road along the river for two more hours" for word in ("north", "south"))
VALUE, CAST = Change(path="k", operation="substitute", after=10), Change(path="k", operation="cast", after="integer")
AMOUNT = Change(path="amount", operation="cast", after="integer")


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"type": "prerequisite"}, 'prerequisites are called automatically only with learn = "repair"'),
        ({"type": "prerequisite", "changes": (VALUE,)}, "only the caller can read the value from the tool result"),
        ({"type": "retry"}, "the kind and the tool's effects decide whether a call is retried"),
        ({"changes": (VALUE,)}, "a remembered value needs approval by a person"),
        ({"changes": (AMOUNT,), "state": "approved"}, "amount is a privileged argument"),
    ],
)
def test_a_fix_that_no_state_lets_be_applied_says_why_and_is_not_counted(about, why):
    fix = Fix(**({"id": "fix_1", "tool": "weather", "fingerprint": "f", "state": "promoted"} | about))
    assert not_automatic_reason(fix) == why
    assert next(FIX_SPEC.render_list([fix], 0, None)) == "1 fix: 0 shown to models, 0 applied automatically."


@pytest.mark.parametrize(("change", "state"), [(CAST, "promoted"), (VALUE, "approved")])
def test_a_promoted_form_and_an_approved_value_are_applied(change, state):
    fix = Fix(id="fix_1", tool="weather", fingerprint="f", changes=(change,), state=state, showable=True)
    assert next(FIX_SPEC.render_list([fix], 0, None)) == "1 fix: 1 shown to models, 1 applied automatically."


@pytest.mark.learning
def test_what_rests_on_somebody_is_taken_back(store):
    done = mulligan("revoke", "--principal", "ann", "--store", store)
    assert done.stdout == "Revoked 2 trials in 2 runs; 1 fix changed.\n"
    assert told(store)[0]["trials"] == 1


@pytest.mark.learning
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "fix_none"), "No fix matches 'fix_none'. List fixes: mulligan fixes"),
        (("revoke",), "--principal"),
        (("revoke", "fix_1", "--tool", "x"), "--principal"),
        (("revoke", "--since", "soon"), "--since"),
    ],
)
def test_what_cannot_be_done_says_what_to_type(store, arguments, said):
    done = mulligan(*arguments, "--store", store)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.learning
def test_the_start_of_several_ids_is_answered_with_them(store):
    kept, at = SqliteStore(Path(store)), int(time.time() * 1000) - 1000
    run = Run(id="run_other", started_at=at, ended_at=at, end_reason="finished")
    shared = {"run": run.id, "name": "find", "key": "shop:find", "started_at": at}
    steps = [
        Step(seq=1, call=1, arguments={"q": "cats", "k": 50}, outcome="failure", failure=REJECTED, **shared),
        Step(seq=2, call=2, arguments={"q": "cats", "k": 10}, **shared),
    ]
    kept.append(DEFAULT_TENANT, [*map(StepEnded, steps), RunEnded(run)], "journal_other", 1, "ann")
    kept.close()
    done = mulligan("show", "fix_", "--store", store)
    assert done.returncode == 2
    assert "2 fixes start with 'fix_': fix_" in done.stderr


@pytest.mark.learning
def test_a_store_that_is_not_there_is_not_made(tmp_path):
    assert "none.db does not exist yet" in mulligan("--store", str(tmp_path / "none.db")).stderr
    assert mulligan("show", "fix_1", "--store", str(tmp_path / "none.db")).returncode == 2
    assert not (tmp_path / "none.db").exists()


@pytest.mark.learning
def test_the_page_on_memory_shows_what_its_example_really_teaches(tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "MULLIGAN_HOME": str(tmp_path), "PYTHONPATH": str(root / "src")}

    def said(*words):
        command = [sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True).stdout

    said(str(root / "examples" / "plain_loop" / "learn_from_failures.py"))
    listed, shown = said("-m", "mulligan", "fixes"), said("-m", "mulligan", "fixes", "show", "fix_448e")
    page = (root / "docs" / "memory.md").read_text()
    wanted = re.search(r"```\n\$ mulligan fixes\n(.*?)\n\$ mulligan fixes show fix_448e\n(.*?)```", page, re.DOTALL)
    assert wanted is not None
    assert re.sub(r"\d+ s ago", "0 s ago", listed) == wanted[1]
    # How many of the runs had read the fix depends on how soon the run before was stored.
    assert re.sub(r"\(has \d+;", "(has 2;", shown).startswith(wanted[2])
