"""mulligan stats, through the command itself."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time

import pytest

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Run, Step
from mulligan.store.sqlite import SqliteStore

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f")


@pytest.fixture
def store(tmp_path):
    """Two runs of version 1.0, one of them failed, now; and one of 1.1 a month ago."""
    path = tmp_path / "kept.db"
    kept = SqliteStore(path)
    now = int(time.time() * 1000)
    for place, (version, at, failure) in enumerate(
        [("1.0", now, None), ("1.0", now, TIMEOUT), ("1.1", now - 30 * 86_400_000, None)], start=1
    ):
        run = Run(id=f"run_{place}", agent="helper", version=version, started_at=at, ended_at=at, end_reason="finished")
        step = Step(
            run=run.id,
            seq=1,
            call=1,
            name="=cmd|' /C calc'!A0" if place == 1 else "search",
            started_at=at,
            duration_seconds=0.1,
            failure=failure,
            outcome="failure" if failure else "success",
        )
        kept.append(DEFAULT_TENANT, [StepEnded(step), RunEnded(run)], "journal", place * 2)
    kept.close()
    return str(path)


def typed(*words, env=None):
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", "stats", *words], capture_output=True, text=True, check=False, env=env
    )
    return done.returncode, done.stdout, done.stderr


def test_period_without_runs_names_the_older_ones(store):
    code, out, err = typed("--store", store, "--since", "20d", "--until", "10d")
    assert code == 0
    assert out.startswith("No runs or calls ")
    assert err == f"Store {store} has 1 older run: --since all\n"


def test_the_last_week_on_one_page(store):
    code, out, err = typed("--store", store)
    assert (code, err) == (0, "")
    assert out.startswith("2 runs since ")
    assert "1 success, 1 failure" in out
    assert "tool/timeout" in out
    assert "\x1b" not in out


def test_all_of_it(store):
    _, out, _ = typed("--store", store, "--since", "all")
    assert out.startswith("3 runs over all time: 2 success, 1 failure.")


@pytest.mark.parametrize("by", ["agent", "tool", "kind", "model", "version", "environment", "step", "attempt", "time"])
def test_divided_by_each_dimension_as_text_json_and_csv(store, by):
    code, out, _ = typed("--store", store, "--by", by, "--since", "all")
    assert (code, out.startswith("3 runs over all time")) == (0, True)
    code, out, _ = typed("--store", store, "--by", by, "--since", "all", "--json")
    parts = json.loads(out)["parts"]
    code, out, _ = typed("--store", store, "--by", by, "--since", "all", "--csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 0
    assert len(rows) == len(parts)
    assert [row["attempts"] for row in rows] == [str(part["attempts"]) for part in parts]


def test_so_many_rows_in_every_form_and_of_times_the_latest(store):
    for by, kept, left in (("version", "1.0", "1.1"), ("time", "", "")):
        words = ("--store", store, "--since", "all", "--by", by, "--limit", "1")
        _, out, _ = typed(*words)
        assert ("and 1 earlier: --limit 2" if by == "time" else "and 1 more: --limit 2") in out
        assert not left or left not in out
        (part,) = json.loads(typed(*words, "--json")[1])["parts"]
        assert kept in part[by]
        assert by != "time" or int(part["time"]) > (time.time() - 2 * 86_400) * 1000
        assert len(typed(*words, "--csv")[1].splitlines()) == 2
        assert len(json.loads(typed(*words[:-2], "--json")[1])["parts"]) == 2


def test_csv_cannot_run_anything(store):
    _, out, _ = typed("--store", store, "--by", "tool", "--csv")
    assert {row["tool"] for row in csv.DictReader(out.splitlines())} == {"'=cmd|' /C calc'!A0", "search"}


def test_json_holds_every_figure(store):
    _, out, _ = typed("--store", store, "--json")
    facts = json.loads(out)
    assert facts["grain"] == "day"
    assert (facts["total"]["total_runs"], facts["total"]["calls"], facts["total"]["unrecovered"]) == (2, 2, 1)
    assert facts["total"]["success_rate"] == 50.0  # in the other run no call succeeded
    assert facts["total"]["kinds"]["tool/timeout"]["failures"] == 1


def test_two_versions_are_compared_with_the_one_that_was_seen_first(store):
    code, out, _ = typed("--store", store, "--since", "all", "--compare", "1.0", "1.1")
    assert code == 0
    assert out.startswith("1.0 compared with 1.1, over all time.\n1.0: too few cases to tell.")
    _, out, _ = typed("--store", store, "--since", "all", "--compare", "1.0", "1.1", "--json")
    assert [side["total"]["calls"] for side in json.loads(out)["stats"]] == [1, 2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--since", "3y"], "Invalid --since '3y'. Use an age such as 24h or 7d"),
        (["--since", "1h", "--until", "2h"], "Invalid period: since is not before until. Change one of them."),
        (["--csv"], "--csv needs --by"),
        (["--by", "colour"], "'colour' is not one of"),
        (["--kind", "timeout"], "such as tool/timeout"),
        (["--compare", "1.0", "7.7"], "No records with version '7.7' in this period. Available: helper 1.0."),
        (["--by", "kind", "--compare", "a", "b"], "Cannot compare by kind"),
    ],
)
def test_what_cannot_be_meant_is_told(store, words, says):
    code, out, err = typed("--store", store, *words)
    assert (code, out) == (2, "")
    assert says in err


def test_a_store_that_is_not_there_is_told_and_not_made(tmp_path):
    code, out, err = typed("--store", str(tmp_path / "none.db"))
    assert (code, out) == (2, "")
    assert "none.db does not exist yet. Name another with --store." in err
    assert not (tmp_path / "none.db").exists()
