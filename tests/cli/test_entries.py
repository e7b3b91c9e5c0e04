"""The commands by which other programs start mulligan: built in one form, recognized in every form there was."""

from __future__ import annotations

import sys

import pytest

from mulligan.cli import entries
from mulligan.cli.clients import unwrap_proxy, wrap_with_proxy
from mulligan.cli.entries import StartCommand, build_start_command, can_start_isolated, parse_mulligan_arguments

FORMS = {
    "plain": ("/usr/bin/python3", ("-m", "mulligan")),
    "isolated": ("/usr/bin/python3", ("-I", "-m", "mulligan")),
    "by hand": ("python3", ("-E", "-P", "-m", "mulligan")),
    "by path": ("/usr/bin/python3", ("-ESP", "/srv/packages/mulligan/cli/start.py")),
    "by path on Windows": ("C:\\python.exe", ("-ESP", "C:\\lib\\mulligan\\serve\\cli\\start.py")),
    "script": ("/usr/bin/mulligan", ()),
}


@pytest.fixture(autouse=True)
def _ask_the_interpreter_again():
    can_start_isolated.cache_clear()
    yield
    can_start_isolated.cache_clear()


def test_entry_is_isolated_where_that_finds_the_packages():
    assert build_start_command("mcp") == StartCommand(sys.executable, ("-I", "-m", "mulligan", "mcp"))


@pytest.mark.parametrize("reason", ["a package is found elsewhere", "a package is not found", "no interpreter"])
def test_entry_names_its_script_where_isolation_loses_a_package(monkeypatch, tmp_path, reason):
    if reason == "no interpreter":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    else:
        name = "lost" if reason == "a package is not found" else "click"
        (tmp_path / f"{name}.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(entries, "PACKAGES", ("mulligan", name))
    assert build_start_command("mcp") == StartCommand(sys.executable, ("-ESP", str(entries.SCRIPT), "mcp"))


@pytest.mark.parametrize("form", FORMS)
def test_entry_is_recognized_in_every_form(form):
    command, args = FORMS[form]
    assert parse_mulligan_arguments(StartCommand(command, (*args, "mcp"))) == ("mcp",)


@pytest.mark.parametrize(
    "start",
    [
        StartCommand("python3", ("-m", "mulligan.other")),
        StartCommand("python3", ("-I", "-m", "other", "mulligan")),
        StartCommand("python3", ("-I", "/srv/start.py", "mcp")),
        StartCommand("python3", ("-I",)),
        StartCommand("npx", ("-y", "mulligan", "mcp")),
    ],
)
def test_entry_of_another_program_is_not_recognized(start):
    assert parse_mulligan_arguments(start) is None


@pytest.mark.parametrize("form", FORMS)
def test_proxy_in_any_form_is_replaced_and_taken_away(form):
    command, args = FORMS[form]
    server = StartCommand("npx", ("-y", "server", "--", "-m", "mulligan"))
    before = StartCommand(command, (*args, "proxy", "--name", "git", "--pin", "--", server.command, *server.args))
    assert unwrap_proxy(before) == server
    after = wrap_with_proxy(before, "git", ["--pin"])
    assert after == build_start_command("proxy", "--name", "git", "--pin", "--", server.command, *server.args)
    assert wrap_with_proxy(after, "git", ["--pin"]) == after
    assert unwrap_proxy(after) == server
