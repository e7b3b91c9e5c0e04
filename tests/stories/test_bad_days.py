"""Bad settings, unknown commands, a damaged store, an unwritable home: a sentence, and the user's call unharmed."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

import mulligan
from mulligan.testing import sandbox

TRIES = """
    import mulligan

    @mulligan.tool(effects="none")
    def double(number):
        return 2 * number

    print(double(21))
    mulligan.flush()
"""


def test_a_misspelt_setting_is_refused_with_the_nearest_name_and_calls_pass_through(user):
    (user.folder / "mulligan.toml").write_text("atempts = 2\n")
    done = user.runs_program(TRIES)
    assert done.stdout == "42\n"
    assert done.stderr.count("Did you mean attempts?") == 1
    assert "mulligan.toml" in done.stderr

    said = user.types("runs")
    assert said.returncode == 2
    assert "Did you mean attempts?" in said.stderr
    assert said.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rnus"], "Did you mean runs?"),
        (["runs", "--limit", "many"], "--limit"),
        (["runs", "--since", "yesterday"], "such as 24h or 7d"),
        (["runs", "--store", "mysql://db/mulligan"], "Unknown store type 'mysql'"),
        (["copy"], "Missing argument"),
        (["show", "run_nobody"], "No runs in"),
    ],
)
def test_a_command_that_cannot_be_done_says_what_to_type_and_exits_2(user, words, sentence):
    said = user.types(*words)
    assert said.returncode == 2
    assert said.stdout == ""
    assert said.stderr.startswith("error: ")
    assert sentence in said.stderr


def test_a_damaged_store_is_left_as_it_is_and_calls_are_kept_elsewhere_until_it_is_moved(user):
    assert user.runs_program(TRIES).stdout == "42\n"
    store = user.home / "mulligan" / "mulligan.db"
    for extra in store.parent.glob("mulligan.db-*"):
        extra.unlink()
    store.write_bytes(b"not a database at all" * 100)
    damaged = store.read_bytes()

    refuge = user.folder / "tmp"
    refuge.mkdir()
    done = user.runs_program(TRIES, TMPDIR=str(refuge))
    assert done.stdout == "42\n"
    assert done.stderr.count("is damaged") == 1
    kept = next(refuge.rglob("mulligan.db"))
    assert str(kept) in done.stderr
    assert [run["status"] for run in user.sees("runs", "--store", str(kept))] == ["success"]

    said = user.types("runs")
    assert said.returncode == 2
    assert "is damaged" in said.stderr
    assert "mv " in said.stderr
    assert store.read_bytes() == damaged

    store.rename(store.with_suffix(".damaged"))
    assert user.runs_program(TRIES).stderr == ""
    assert len(user.sees("runs")) == 1


@pytest.mark.skipif(
    os.geteuid() == 0, reason="nothing is unwritable for root; the next test has a folder nobody can make"
)
def test_an_unwritable_home_costs_nothing_but_a_warning(user):
    home = user.home / "mulligan"
    home.mkdir(mode=0o500)
    refuge = user.folder / "tmp"
    refuge.mkdir()
    done = user.runs_program(TRIES, TMPDIR=str(refuge))
    assert done.stdout == "42\n"
    assert done.stderr.count("cannot be") == 1
    assert next(refuge.rglob("mulligan.db")).exists()


def test_a_home_that_cannot_be_made_costs_nothing_but_a_warning(user):
    (user.home / "mulligan").write_text("a file where the folder should be")
    refuge = user.folder / "tmp"
    refuge.mkdir()
    done = user.runs_program(TRIES, TMPDIR=str(refuge))
    assert done.stdout == "42\n"
    assert done.stderr.count("Set MULLIGAN_HOME") == 1
    kept = next(refuge.rglob("mulligan.db"))
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    said = user.types("runs")
    assert said.returncode == 2
    assert "MULLIGAN_HOME" in said.stderr
    shown = user.types("demo", "--fast", "--json", TMPDIR=str(refuge))
    assert shown.returncode == 0, shown.stderr


def test_a_refuge_that_somebody_else_laid_is_not_used(user):
    (user.home / "mulligan").write_text("a file where the folder should be")
    refuge = user.folder / "tmp"
    (refuge / f"mulligan-{os.getuid()}").mkdir(parents=True, mode=0o777)
    (refuge / f"mulligan-{os.getuid()}").chmod(0o777)
    done = user.runs_program(TRIES, TMPDIR=str(refuge))
    assert done.stdout == "42\n"
    assert "belongs to another user" in done.stderr
    assert not list(refuge.rglob("*.db"))


def test_mulligan_off_makes_everything_pass_through_and_writes_nothing(user):
    done = user.runs_program(TRIES, MULLIGAN="off")
    assert (done.stdout, done.stderr) == ("42\n", "")
    assert not (user.home / "mulligan").exists()


def test_asking_about_an_empty_home_makes_no_files(user):
    said = user.types("runs")
    assert said.returncode == 0
    assert "mulligan demo" in said.stdout
    assert not (user.home / "mulligan").exists()


@pytest.mark.safety
@pytest.mark.parametrize("works", [True, False])
def test_lists_that_share_each_other_without_end_do_not_hang_a_call(works: bool) -> None:
    shared: list[Any] = [1]
    for _ in range(60):
        shared = [shared, shared]

    @mulligan.tool(effects="none")
    def count(tree: list[Any]) -> list[Any]:
        if not works:
            raise TimeoutError("no answer")
        return tree

    with sandbox() as played:
        if works:
            assert count(shared) is shared
        else:
            with pytest.raises(TimeoutError):
                count(shared)
    assert played.steps


INTERRUPTED = """
import asyncio, os, signal
import mulligan

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has those in its background ignore it

@mulligan.tool
def wait():
    return os.kill(os.getpid(), signal.SIGINT)

@mulligan.tool
async def await_():
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)

def sync():
    with mulligan.run("shop"):
        wait()

async def coroutine():
    async with mulligan.run("shop"):
        await await_()

{how}
"""


@pytest.mark.parametrize("how", ["sync()", "asyncio.run(coroutine())"])
def test_a_run_that_a_person_interrupts_counts_as_no_success(user, how):
    assert "KeyboardInterrupt" in user.runs_program(INTERRUPTED.format(how=how)).stderr
    (run,) = user.sees("runs", "--agent", "shop")
    (call,) = user.sees("show", run["id"])["steps"]
    assert (run["end_reason"], call["outcome"]) == ("abandoned", "cancelled")
    assert [len(user.sees("runs", "--status", status)) for status in ("success", "failure")] == [0, 1]
    assert "failure, abandoned" in user.types("runs").stdout
    assert "failure, abandoned: 1 call" in user.types("show", run["id"]).stdout
