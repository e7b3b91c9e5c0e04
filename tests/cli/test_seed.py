"""mulligan seed: the lessons that come with mulligan, in a store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mulligan import settings
from mulligan.contract.store import DEFAULT_TENANT, AuditQuery, FixQuery, LessonQuery
from mulligan.learn.seeds import load_seeds
from mulligan.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path):
    return str(tmp_path / "kept.db")


def mulligan(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mulligan", "seed", *arguments], capture_output=True, text=True, timeout=60
    )


def told(store, *arguments):
    done = mulligan(*arguments, "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_seeds_are_put_into_a_store_once_and_are_no_evidence(store):
    first = mulligan("--store", store)
    assert first.returncode == 0
    assert first.stdout.startswith(f"{len(load_seeds())} seed lessons in {store}: {len(load_seeds())} new")
    assert told(store) == {"new": 0, "updated": 0, "same": len(load_seeds()), "edited": 0, "store": store}
    kept = SqliteStore(Path(store))
    assert {each.source for each in kept.lessons(DEFAULT_TENANT, LessonQuery(limit=1000))} == {"seed"}
    assert kept.lessons(DEFAULT_TENANT, LessonQuery(state="active")) == []
    assert kept.fixes(DEFAULT_TENANT, FixQuery()) == []
    (act,) = kept.audit(DEFAULT_TENANT, AuditQuery())  # one person did one thing
    assert (act.action, act.target, act.detail) == ("lesson.write", "seed", f"{len(load_seeds())} lessons")
    kept.close()


def test_an_upgrade_brings_newer_words_and_keeps_what_people_said(store):
    told(store)
    kept = SqliteStore(Path(store))
    old, disabled = load_seeds()["git-no-upstream"], load_seeds()["http-404"]
    with kept.write_transaction() as writer:  # as an earlier version of mulligan left it
        (body,) = writer.execute("SELECT body FROM lessons WHERE id = ?", (old.id,)).fetchone()
        written = body.replace(old.correction.encode(), b"Push it somehow.")
        assert written != body
        writer.execute("UPDATE lessons SET body = ? WHERE id = ?", (written, old.id))
    kept.decide_lesson(DEFAULT_TENANT, disabled.id, "disable", 1)
    kept.close()
    assert told(store)["updated"] == 1
    listed = {each["name"]: each for each in told(store, "--list")}
    assert listed["git-no-upstream"]["correction"] == old.correction
    assert (listed["http-404"]["state"], listed["http-404"]["active"]) == ("disabled", False)


def test_the_list_needs_no_store_and_makes_none(store, tmp_path):
    done = mulligan("--list", "--store", store)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{len(load_seeds())} seed lessons shipped with mulligan, without evidence")
    (row,) = (each for each in done.stdout.splitlines() if "git-push-fetch-first" in each)
    assert row.split()[0] == load_seeds()["git-push-fetch-first"].id[:12], "the id that mulligan lessons takes"
    assert not list(tmp_path.glob("*.db"))
    (one,) = (each for each in told(store, "--list") if each["name"] == "git-push-fetch-first")
    assert (one["stored"], one["active"], one["kind"]) == (False, True, "tool/execution_failed")
    assert one["origin"].startswith("git 2")


def test_removed_seeds_are_out_of_use_until_they_are_put_back(store):
    told(store)
    assert told(store, "--remove")["removed"] == len(load_seeds())
    assert {each["active"] for each in told(store, "--list")} == {False}
    assert "Seed lessons are disabled" in mulligan("--list", "--store", store).stdout
    assert told(store)["new"] == len(load_seeds())
    assert {each["active"] for each in told(store, "--list")} == {True}


def test_what_cannot_be_meant_is_refused(store):
    done = mulligan("--list", "--remove", "--store", store)
    assert done.returncode == 2
    assert "exclude each other" in done.stderr
    done = mulligan("--store", "memory:")
    assert done.returncode == 2
    assert "--store PATH" in done.stderr


def test_explain_tells_what_is_known_of_a_program(tmp_path):
    def explained(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "mulligan", "classify", "--tool", "Bash", *arguments],
            input="fatal: refusing to merge unrelated histories\n", capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0
        return done.stdout

    seed = load_seeds()["git-unrelated-histories"]
    assert seed.correction in explained()
    assert json.loads(explained("--json"))["seed_lesson"]["id"] == seed.id
    kept = SqliteStore(Path(settings.load_settings().store_url))
    kept.save_lesson(DEFAULT_TENANT, seed)
    kept.decide_lesson(DEFAULT_TENANT, seed.id, "disable", 1)
    kept.close()
    assert seed.correction not in explained()
