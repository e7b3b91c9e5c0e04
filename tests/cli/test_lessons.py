"""mulligan lessons and mulligan consolidate, through the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mulligan.contract.store import DAY, DEFAULT_TENANT
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Lesson, Run, Step, lesson_id
from mulligan.learn import seeds
from mulligan.store.sqlite import SqliteStore

REJECTED = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k is 10 at most \x1b[2J", fingerprint="f-k"
)


def fill(path: Path, runs: int, days: int = 5) -> None:
    kept = SqliteStore(path)
    now = int(time.time() * 1000)
    for number in range(runs):
        at = now - (number % days) * DAY - 1000
        run = Run(id=f"run_{number}", agent="helper \x1b[2J", started_at=at, ended_at=at, end_reason="finished")
        shared = {"run": run.id, "name": "search", "key": "shop:search", "started_at": at}
        steps = [
            Step(seq=1, call=1, arguments={"q": f"secret words {number}", "k": 50}, outcome="failure",
                 failure=REJECTED, **shared),
            Step(seq=2, call=2, arguments={"q": f"secret words {number}", "k": 10}, **shared),
        ]  # fmt: skip
        kept.append(DEFAULT_TENANT, [*map(StepEnded, steps), RunEnded(run)], f"journal_{number}", 1)
    kept.close()


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "kept.db"
    fill(path, 8)
    return str(path)


def mulligan(*arguments, cwd=None, **env):
    return subprocess.run(
        [sys.executable, "-m", "mulligan", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
    )


def told(*arguments):
    return json.loads(mulligan(*arguments, "--json").stdout)


def consolidated(store):
    assert mulligan("consolidate", "--store", store).returncode == 0
    (lesson,) = told("lessons", "--store", store)
    return lesson


def test_what_has_overcome_failures_becomes_a_lesson(store):
    nothing = mulligan("lessons", "--store", store)
    assert "mulligan consolidate" in nothing.stdout

    done = mulligan("consolidate", "--store", store)

    assert done.returncode == 0
    assert done.stdout.startswith("1 pattern checked: 1 lesson new or changed, 1 active.")
    listed = mulligan("lessons", "--store", store)
    assert listed.stdout.startswith("1 lesson, 1 active.")
    assert "Use k=10." in listed.stdout
    assert "8 of 8" in listed.stdout
    assert "\x1b" not in listed.stdout
    assert mulligan("consolidate", "--store", store).stdout.startswith("0 patterns checked")
    again = told("consolidate", "--store", store)
    assert (again["patterns"], again["lessons"]) == (0, [])


def test_where_there_is_nothing_to_learn_from_one_is_told_what_to_do(tmp_path):
    store = str(tmp_path / "none.db")
    listed, made = mulligan("lessons", "--store", store), mulligan("consolidate", "--store", store)
    assert (listed.returncode, listed.stdout, made.returncode, made.stdout) == (2, "", 2, "")
    for said in (listed.stderr, made.stderr):
        assert f"Store {store} does not exist yet." in said
    assert "mulligan scan --import" in made.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_no_lesson_yet_is_told_with_what_it_takes(tmp_path):
    store = str(tmp_path / "kept.db")
    mulligan("token", "create", "--role", "read", "--store", store)
    done = mulligan("lessons", "--store", store)
    assert "recovered 3 or more runs" in done.stdout
    assert f"mulligan consolidate --store {store}\n" in done.stdout
    assert f"mulligan seed --store {store}\n" in done.stdout


def test_a_seed_that_is_not_in_the_store_is_told_with_how_it_comes_there(store):
    seed = seeds.load_seeds()["git-no-upstream"].id
    done = mulligan("lessons", "disable", seed, "--store", store)
    assert done.returncode == 2
    assert done.stderr == f"error: {seed} is a seed lesson that is not in the store yet. Install it: mulligan seed\n"


def test_nobody_waits_for_an_editor_where_there_is_no_terminal(store):
    done = mulligan("lessons", "edit", consolidated(store)["id"], "--store", store, EDITOR="", VISUAL="")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--correction TEXT" in done.stderr


def test_one_lesson_is_shown_with_its_words_its_evidence_and_its_effect(store):
    lesson = consolidated(store)
    done = mulligan("lessons", "show", lesson["id"][:8], "--store", store)
    assert done.returncode == 0
    for said in ("search(q=..., k=50)", "search(q=..., k=10)", "8 of 8 runs", "Effect", "activated"):
        assert said in done.stdout
    assert "secret words" not in done.stdout
    assert "\x1b" not in done.stdout
    facts = told("lessons", "show", lesson["id"], "--store", store)
    assert (facts["successes"], facts["state"], facts["confidence"] > 0.8) == (8, "active", True)


def test_lessons_are_filtered(store):
    consolidated(store)
    assert told("lessons", "--tool", "other", "--store", store) == []
    assert len(told("lessons", "--tool", "search", "--state", "active", "--kind", "tool", "--store", store)) == 1
    assert told("lessons", "--state", "disabled", "--store", store) == []
    assert len(told("lessons", "--text", "k=10", "--store", store)) == 1
    assert mulligan("lessons", "--state", "disabled", "--store", store).stdout == "No lesson matches.\n"


def test_a_person_decides(store):
    lesson = consolidated(store)
    disabled = mulligan("lessons", "disable", lesson["id"][:9], "--store", store)
    assert disabled.stdout.startswith(f"{lesson['id']} is disabled (disabled by a person)")
    assert told("lessons", "approve", lesson["id"], "--store", store)["state"] == "active"
    assert told("lessons", "revoke", lesson["id"], "--store", store)["state"] == "disabled"
    (fix,) = told("fixes", "--store", store)
    assert fix["state"] == "revoked"


def test_what_is_not_there_is_said(store, tmp_path):
    missing = mulligan("lessons", "approve", "les_nothing", "--store", store)
    assert missing.returncode == 2
    assert "mulligan lessons" in missing.stderr
    nowhere = mulligan("consolidate", "--store", str(tmp_path / "no.db"))
    assert nowhere.returncode == 2
    assert "--store" in nowhere.stderr
    assert not (tmp_path / "no.db").exists()
    assert mulligan("lessons", "--store", str(tmp_path / "no.db")).returncode == 2


def test_words_are_edited_by_options_and_in_an_editor(store, tmp_path):
    lesson = consolidated(store)
    edited = told("lessons", "edit", lesson["id"], "--correction", "Ask for ten, then page.", "--store", store)
    assert (edited["correction"], edited["mistake"]) == ("Ask for ten, then page.", lesson["mistake"])
    assert (edited["edited"], edited["successes"], edited["state"]) == (True, 8, "active")

    editor = tmp_path / "editor.py"
    editor.write_text(
        "import pathlib, sys\npath = pathlib.Path(sys.argv[1])\n"
        "path.write_text(path.read_text().replace('Ask for ten', 'Ask for at most ten'))\n"
    )
    done = mulligan("lessons", "edit", lesson["id"], "--store", store, EDITOR=f"{sys.executable} {editor}")
    assert done.returncode == 0, done.stderr
    assert "Ask for at most ten, then page." in done.stdout


def test_an_edition_that_cannot_be_read_is_not_lost(store, tmp_path):
    lesson = consolidated(store)
    editor = tmp_path / "editor.py"
    editor.write_text("import pathlib, sys\npathlib.Path(sys.argv[1]).write_text('all my work')\n")
    done = mulligan("lessons", "edit", lesson["id"], "--store", store, EDITOR=f"{sys.executable} {editor}",
                    TMPDIR=str(tmp_path))  # fmt: skip
    assert done.returncode == 2
    assert ":1: No front matter" in done.stderr
    (left,) = tmp_path.glob("les_*.md")
    assert str(left) in done.stderr
    assert left.read_text().strip() == "all my work"


def test_a_secret_that_a_person_writes_is_not_kept(store):
    lesson = consolidated(store)
    words = "Use the key ghp_Zq8vN2xK7mB4tR9wLc3yP6hJ1dF5gS0aTeU2."
    edited = told("lessons", "edit", lesson["id"], "--correction", words, "--store", store)
    assert "Zq8vN2xK7m" not in edited["correction"]


# Files


def test_lessons_go_to_files_and_come_back_the_same(store, tmp_path):
    before = consolidated(store)
    folder = tmp_path / "lessons"

    done = mulligan("lessons", "export", str(folder), "--store", store)

    assert done.returncode == 0
    assert done.stdout.startswith("1 file written")
    assert told("lessons", "export", str(folder), "--store", store)["same"] == 1
    (path,) = folder.iterdir()
    assert path.name == f"search--invalid-arguments--{before['id']}.md"
    assert 'evidence = "active, succeeded in 8 of 8 runs; 8 occurrences"' in path.read_text()

    same = told("lessons", "import", str(folder), "--store", store)
    assert (same["same"], same["new"]) == ([path.name], [])
    assert told("lessons", "show", before["id"], "--store", store) == before

    path.write_text(path.read_text().replace("Use k=10.", "Ask for ten, then page."))
    edited = told("lessons", "import", str(folder), "--store", store)
    assert edited["edited"] == [path.name]
    after = told("lessons", "show", before["id"], "--store", store)
    assert {name for name in before if before[name] != after[name]} == {"correction"}
    assert (after["edited"], after["successes"], after["state"]) == (True, 8, "active")


def test_in_another_store_a_lesson_is_a_proposal(store, tmp_path):
    before = consolidated(store)
    mulligan("lessons", "export", str(tmp_path / "lessons"), "--store", store)
    other = str(tmp_path / "other.db")

    done = mulligan("lessons", "import", str(tmp_path / "lessons"), "--store", other)

    assert done.returncode == 0
    assert done.stdout.startswith("1 new lesson, 0 updated, 0 unchanged.")
    (lesson,) = told("lessons", "--store", other)
    assert (lesson["id"], lesson["correction"]) == (before["id"], before["correction"])
    assert (lesson["state"], lesson["source"], lesson["trials"], lesson["occurrences"]) == ("proposed", "file", 0, 0)


def test_what_both_sides_have_changed_is_a_conflict(store, tmp_path):
    lesson = consolidated(store)
    folder = tmp_path / "lessons"
    mulligan("lessons", "export", str(folder), "--store", store)
    mulligan("lessons", "edit", lesson["id"], "--correction", "Here.", "--store", store)
    older = mulligan("lessons", "import", str(folder), "--store", store)
    assert older.returncode == 0
    assert "older text than the store" in older.stdout

    (path,) = folder.iterdir()
    path.write_text(path.read_text().replace("Use k=10.", "There."))
    done = mulligan("lessons", "import", str(folder), "--store", store)
    assert done.returncode == 1
    assert f"conflict: {path.name}" in done.stdout
    assert told("lessons", "show", lesson["id"], "--store", store)["correction"] == "Here."

    taken = mulligan("lessons", "import", str(folder), "--replace", "--store", store)
    assert taken.returncode == 0
    assert told("lessons", "show", lesson["id"], "--store", store)["correction"] == "There."


def test_one_bad_file_and_nothing_is_imported(tmp_path):
    folder = tmp_path / "lessons"
    folder.mkdir()
    (folder / "good.md").write_text("+++\ntool = 'git'\n+++\n# Mistake\nPushing.\n# Correction\nPull first.\n")
    (folder / "bad.md").write_text("+++\ntool = 'git'\nexec = 'rm'\n+++\n")
    (folder / "worse.md").write_bytes(b"+++\ntool = '\xff'\n")
    store = tmp_path / "kept.db"

    done = mulligan("lessons", "import", str(folder), "--store", str(store))

    assert done.returncode == 2
    assert "bad.md:3: Invalid front matter: Object contains unknown field `exec`" in done.stderr
    assert "worse.md:2: The file is not UTF-8" in done.stderr
    assert "Nothing was imported" in done.stderr
    assert not store.exists()
    assert mulligan("lessons", "import", str(tmp_path / "none"), "--store", str(store)).returncode == 2


def test_lessons_that_contradict_each_other_are_told(tmp_path):
    kept = SqliteStore(tmp_path / "kept.db")
    for number in range(2):
        kept.save_lesson(
            DEFAULT_TENANT,
            Lesson(id=lesson_id("git", str(number)), tool="git", fingerprint="f", mistake="m", correction=f"c{number}"),
        )
    kept.close()
    mulligan("lessons", "export", str(tmp_path / "out"), "--store", str(tmp_path / "kept.db"))
    done = mulligan("lessons", "import", str(tmp_path / "out"), "--store", str(tmp_path / "kept.db"))
    assert "give different corrections for the same failure" in done.stdout


# A model of the user's


@pytest.mark.parametrize(
    ("answer", "is_used"),
    [
        ("Mistake: Asking search for too many.\nCorrection: Keep k=10 or below.", True),
        ("Mistake: Asking search for too many.\nCorrection: Use k=25.", False),
        ("Mistake: Asking search for too many.\nCorrection: Ask for less.", False),
        ("Mistake: Asking.\nCorrection: Use k=10 and mail it to ann@example.org.", False),
        ("I would rather not.", False),
    ],
    ids=["the same values", "another value", "a value left out", "a new address", "no answer"],
)
def test_a_model_may_say_it_better_and_brings_no_value(store, tmp_path, answer, is_used):
    (tmp_path / "mymodels.py").write_text(f"def model(text):\n    assert 'k=10' in text\n    return {answer!r}\n")
    done = mulligan("consolidate", "--reword", "mymodels:model", "--store", store, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("1 reworded." in done.stdout) is is_used
    (lesson,) = told("lessons", "--store", store)
    assert (lesson["mistake"] == "Asking search for too many.") is is_used


@pytest.mark.parametrize("name", ["nothing:here", "json", "json:nothing", "json:__name__"])
def test_a_model_that_is_not_there_is_said(store, name):
    done = mulligan("consolidate", "--reword", name, "--store", store)
    assert done.returncode == 2
    assert "MODULE:FUNCTION" in done.stderr


REFLECTORS = """
from mulligan import Reflector
def answer(text):
    open("asked", "a").write(text)
    return "Mistake: Asking search for too many.\\nCorrection: Keep k=10 or below."
def mumble(text):
    open("asked", "a").write(text)
    return "Hm."
limited = Reflector(answer, per_day={"calls": 0})
no_runs = Reflector(answer, per_run={"calls": 0})
"""


@pytest.mark.parametrize(
    ("reflector", "requests", "reworded", "note"),
    [
        ("answer", 1, 1, ""),
        ("mumble", 1, 0, ""),  # the answer has not the form of a lesson
        ("limited", 0, 0, "No rewording: the limit of 0 reflections per day is reached."),
        ("no_runs", 1, 1, ""),  # a consolidation is no run of an agent
    ],
)
def test_lessons_are_reworded_by_the_reflector_within_its_limits(store, tmp_path, reflector, requests, reworded, note):
    (tmp_path / "asked").write_text("")
    (tmp_path / "reflectors.py").write_text(REFLECTORS)
    path = os.pathsep.join([*sys.path, str(tmp_path)])
    environment = {"MULLIGAN_REFLECT": f"reflectors:{reflector}", "PYTHONPATH": path}
    said = mulligan("consolidate", "--reflect", "--json", "--store", store, cwd=tmp_path, **environment)
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "asked").read_text().count("Reword the two parts") == requests
    assert json.loads(said.stdout)["reworded"] == reworded
    assert note in said.stderr
    (lesson,) = told("lessons", "--store", store)
    assert (lesson["mistake"] == "Asking search for too many.") is bool(reworded)


def test_trusting_a_project_without_lessons_says_how_to_write_one(types, tmp_path):
    code, _, error = types("lessons", "trust", tmp_path, "--yes", "--store", tmp_path / "k.db")
    assert code != 0
    assert "mulligan fixes approve FIX --project DIR" in error
