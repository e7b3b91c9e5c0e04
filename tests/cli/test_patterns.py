"""mulligan patterns: what goes wrong again, looked at and decided about."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time

import pytest

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Run, Step, pattern_id
from mulligan.store.sqlite import SqliteStore

DAY = 86_400_000


def failed(run, name, at, message, fingerprint):
    failure = Failure.of(Kind("tool", "timeout", Remedy.RETRY), message, fingerprint=fingerprint)
    return Step(run=run, seq=1, call=1, name=name, started_at=at, outcome="failure", failure=failure)


@pytest.fixture
def store(tmp_path):
    """An old pattern that was met three times, and one that was met for the first time an hour ago."""
    path = tmp_path / "kept.db"
    kept = SqliteStore(path)
    now = int(time.time() * 1000)
    steps = [failed(f"run_{n}", "search", now - (n + 2) * DAY, "too slow", "f-old") for n in range(3)]
    steps.append(failed("run_9", "=fetch", now - DAY // 24, "gone \x1b[2J", "f-new"))
    for place, step in enumerate(steps, start=1):
        run = Run(
            id=step.run, agent="helper", started_at=step.started_at, ended_at=step.started_at, end_reason="finished"
        )
        kept.append(DEFAULT_TENANT, [StepEnded(step), RunEnded(run)], "journal", place * 2)
    kept.close()
    return str(path)


@pytest.fixture
def known(types, store):
    _, out, _ = types("patterns", "--store", store, "--json")
    return {each["tool"]: each["id"] for each in json.loads(out)}


def test_the_most_frequent_comes_first(types, store):
    code, out, err = types("patterns", "--store", store)
    assert code == 0
    assert out.startswith("2 patterns, 4 failures, 0 % recovered.")
    assert out.index("search") < out.index("=fetch")
    assert "\x1b" not in out
    assert "mulligan patterns show pat_" in err


def test_a_failure_that_nobody_knows_the_time_of_is_listed_too(types, tmp_path):
    path = tmp_path / "undated.db"
    kept = SqliteStore(path)
    run = Run(id="run_1", started_at=int(time.time() * 1000), end_reason="finished")
    kept.append(DEFAULT_TENANT, [StepEnded(failed("run_1", "search", 0, "too slow", "f")), RunEnded(run)], "journal", 1)
    kept.close()
    code, out, _ = types("patterns", "--store", str(path))
    assert (code, "too slow" in out) == (0, True)
    (found,) = json.loads(types("patterns", "--store", str(path), "--json")[1])
    assert (found["first_seen_at"], found["last_seen_at"]) == (0, 0)
    code, out, _ = types("patterns", "show", found["id"], "--store", str(path))
    assert (code, "last seen" in out, "days ago" in out, "Occurrences by day" in out) == (0, True, False, False)


def test_a_list_that_was_cut_says_so(types, store):
    assert "The first 1 are" not in types("patterns", "--store", store)[2]
    _, _, err = types("patterns", "--limit", "1", "--store", store)
    assert "listed and counted. For more: --limit 10" in err


def test_a_kind_is_a_type_and_a_code_or_a_type_alone(types, store):
    for command in ("patterns", "runs"):
        code, _, err = types(command, "--kind", "timeout", "--store", store)
        assert (code, "such as tool/timeout or model/timeout" in err) == (2, True)
        assert "search" in types(command, "--kind", "tool", "--store", store)[1]
        assert types(command, "--kind", "tool/timeout", "--store", store)[0] == 0


@pytest.mark.slow
def test_something_new_is_bad_news(store):
    def typed(*words):
        return subprocess.run(
            [sys.executable, "-m", "mulligan", "patterns", "--store", store, "--new", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    new = typed("--since", "1d")
    assert new.returncode == 1
    assert "=fetch" in new.stdout
    assert "search" not in new.stdout
    nothing = typed("--since", "10m")
    assert (nothing.returncode, nothing.stdout) == (0, "No new patterns in this period.\n")
    assert json.loads(typed("--since", "10m", "--json").stdout) == []


def test_one_pattern_with_why_it_is_one_and_where_to_look(types, store, known):
    code, out, _ = types("patterns", "show", known["search"][:9], "--store", store)
    assert code == 0
    assert out.startswith(
        f"{known['search']} active: tool/timeout in search, 3 failures in 3 runs, 0 recovered, 3 unrecovered"
    )
    assert "message template" in out
    assert "nothing yet" in out
    assert "mulligan show run_0" in out
    _, out, _ = types("patterns", "show", known["search"], "--store", store, "--json")
    assert json.loads(out)["occurrences"] == 3


def states(types, store, *words):
    _, out, _ = types("patterns", "--store", store, "--json", *words)
    return {each["tool"]: each["state"] for each in json.loads(out)}


def test_mute_and_unmute(types, store, known):
    code, out, _ = types("patterns", "mute", known["search"], known["=fetch"], "--store", store)
    assert (code, out) == (0, f"{known['search']} is muted.\n{known['=fetch']} is muted.\n")
    assert states(types, store) == {}
    assert states(types, store, "--state", "muted") == {"search": "muted", "=fetch": "muted"}
    types("patterns", "unmute", known["search"], "--store", store)
    assert states(types, store) == {"search": "active"}


def test_resolve_and_reopen(types, store, known):
    _, out, _ = types("patterns", "resolve", known["search"], "--store", store)
    assert out == f"{known['search']} is resolved. It reopens at the next occurrence.\n"
    assert states(types, store)["search"] == "resolved"
    types("patterns", "reopen", known["search"], "--store", store)
    assert states(types, store)["search"] == "active"


def test_merge_and_split(types, store, known):
    code, out, _ = types("patterns", "merge", known["=fetch"], known["search"], "--store", store)
    assert code == 0
    assert f"mulligan patterns split {known['=fetch']}" in out
    _, out, _ = types("patterns", "--store", store, "--json")
    (one,) = json.loads(out)
    assert (one["id"], one["occurrences"]) == (known["search"], 4)
    code, out, _ = types("patterns", "split", known["=fetch"], "--store", store)
    assert code == 0
    assert set(states(types, store)) == {"search", "=fetch"}


def test_csv_cannot_run_anything(types, store):
    _, out, _ = types("patterns", "--store", store, "--csv")
    assert [row["tool"] for row in csv.DictReader(out.splitlines())] == ["search", "'=fetch"]


@pytest.mark.parametrize("words", [("show", "pat_none"), ("mute", "pat_none"), ("merge", "pat_none", "pat_other")])
def test_an_unknown_pattern_is_told(types, store, words):
    code, out, err = types("patterns", *words, "--store", store)
    assert (code, out) == (2, "")
    assert "No pattern matches 'pat_none'" in err


def test_nothing_is_changed_if_one_of_several_is_unknown(types, store, known):
    code, _, _ = types("patterns", "mute", known["search"], "pat_none", "--store", store)
    assert code == 2
    assert states(types, store)["search"] == "active"


def test_runs_of_a_pattern(types, store, known):
    _, out, _ = types("runs", "--pattern", known["search"][:9], "--store", store, "--json")
    assert {each["id"] for each in json.loads(out)} == {"run_0", "run_1", "run_2"}
    code, _, err = types("runs", "--pattern", "pat_none", "--store", store)
    assert code == 2
    assert "No pattern matches 'pat_none'" in err


@pytest.mark.slow
def test_patterns_that_look_alike_are_found_by_their_words_or_by_a_model_of_yours(tmp_path):
    kept = SqliteStore(tmp_path / "kept.db")
    for tool, text in (("search", "the session has expired"), ("fetch", "a session has expired"), ("draw", "no pen")):
        failure = Failure.of(Kind("tool", "auth_error"), text, fingerprint=f"f-{tool}")
        step = Step(run=f"run_{tool}", seq=1, call=1, name=tool, outcome="failure", failure=failure)
        kept.append(DEFAULT_TENANT, [RunStarted(Run(id=f"run_{tool}")), StepEnded(step)], tool, 1)
    kept.close()
    (tmp_path / "mine.py").write_text("def embed(text):\n    return [1.0, 'pen' in text, 'session' in text]\n")

    def like(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mulligan", "patterns", "similar", *words, "--store", "kept.db"]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)

    id = pattern_id("search", "f-search")
    (found,) = json.loads(like(id, "--json").stdout)
    assert found["tool"] == "fetch"
    assert like(id).stdout.startswith("1 similar pattern.")
    by_model = json.loads(like(id, "--embedder", "mine:embed", "--json").stdout)
    assert [each["tool"] for each in by_model] == ["fetch", "draw"]
    for embedder in ("nowhere:embed", "mine:nothing"):
        done = like(id, "--embedder", embedder)
        assert (done.returncode, "MODULE:FUNCTION" in done.stderr) == (2, True)
