"""A mulligan that cannot start leaves the client its server, whatever is broken and however the command starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from mcp_client import FAKE, Connection, direct, stored_runs, texts

import mulligan

PACKAGE = Path(mulligan.__file__).parent
pytestmark = pytest.mark.slow
BREAK = """
import importlib.abc, runpy, sys
class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {names!r}:
            raise {error}("cannot load " + name)
sys.meta_path.insert(0, Broken())
sys.argv = ["mulligan", "proxy", "--name", "fake", "--", sys.executable, {server!r}, *sys.argv[1:]]
"""
STARTS = {
    "module": "runpy.run_module('mulligan', run_name='__main__')",
    "installed entry": f"runpy.run_path({str(PACKAGE / 'cli' / 'start.py')!r}, run_name='__main__')",
    "console script": "from mulligan.__main__ import main; main()",
}


def broken(*names: str, start: str = "module", error: str = "ImportError", words: tuple[str, ...] = (), **environment):
    """A client of the proxy on a machine where these modules cannot be imported."""
    program = BREAK.format(names=names, error=error, server=str(FAKE)) + STARTS[start]
    more = {"PYTHONPATH": str(PACKAGE.parent), "MULLIGAN_TOKEN": "mul_secret", **environment}
    return Connection([sys.executable, "-c", program, *words], {**os.environ, **more})


def transcript(client: Connection) -> list[bytes]:
    """What a client hears of a server, line by line."""
    lines = []
    for id, method, params in (
        (1, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}}),
        (2, "tools/list", {}),
        (3, "tools/call", {"name": "echo", "arguments": {"text": "h\u00e9"}}),
        (4, "tools/call", {"name": "fail", "arguments": {"text": "no"}}),
    ):
        client.send(id=id, method=method, params=params)
        lines.append(client.line())
    return lines


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("names", [("msgspec",), ("click",), ("mulligan.proxy.tool_calls",), ("mulligan.settings",)])
def test_the_server_runs_without_a_mulligan_that_cannot_be_imported(names, start):
    with direct() as server:
        expected = transcript(server)
    with broken(*names, start=start) as client:
        assert transcript(client) == expected
        assert client.close() == 0
    warning = "".join(client.complaints)
    assert warning.startswith("mulligan: the proxy cannot start (ImportError: cannot load ")
    assert "nothing is recorded" in warning
    assert "Traceback" not in warning


@pytest.mark.parametrize("error", ["OSError", "SyntaxError", "AttributeError", "RecursionError"])
def test_any_error_of_a_broken_dependency_leaves_the_server(error):
    with broken("msgspec", error=error) as client:
        assert texts(client.open().call("echo", text="x")) == ["x"]


@pytest.mark.parametrize("names", [("jsonschema_rs",), ("tomlkit",), ("jsonschema_rs", "tomlkit")])
def test_a_dependency_that_few_calls_need_is_not_missed(names):
    with direct() as server:
        expected = transcript(server)
    with broken(*names) as client:
        lines = transcript(client)
        assert lines[:3] == expected[:3]
        assert b'"text": "no"' in lines[3].replace(b'":"', b'": "')
        assert client.close() == 0
    assert "the proxy cannot start" not in "".join(client.complaints)
    (history,) = stored_runs()
    assert [step.outcome for step in history.steps] == ["success", "failure"]


def test_the_server_gets_its_environment_without_our_settings():
    with broken("msgspec", MULLIGAN_STORE="x.db", OWN="yes") as client:
        (answer,) = texts(client.open().call("env"))
    assert '"OWN": "yes"' in answer
    assert "MULLIGAN_" not in answer


def test_a_server_that_was_started_in_advance_ends_before_it_starts_again(tmp_path):
    log = tmp_path / "heard"
    with broken("mulligan.proxy.tool_calls", words=(f"log={log}",)) as client:
        client.open()
        assert texts(client.call("count")) == ["1"]
        assert client.close() == 0
    assert log.read_bytes().count(b'"initialize"') == 1


@pytest.mark.parametrize("settings", ["redact_patterns = ['(']\n", "[tools.x]\neffects = 'odd'\n"])
def test_settings_that_cannot_be_used_cost_the_records_and_never_the_server(settings, tmp_path):
    folder = tmp_path / "config" / "mulligan"
    folder.mkdir(parents=True)
    (folder / "mulligan.toml").write_text(settings)
    with direct() as server:
        expected = transcript(server)
    program = f"import sys; sys.argv = ['mulligan', 'proxy', '--', sys.executable, {str(FAKE)!r}]; "
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    environment = {name: value for name, value in environment.items() if name != "MULLIGAN_STORE"}
    with Connection([sys.executable, "-c", program + STARTS["console script"]], environment) as client:
        assert transcript(client) == expected
        assert client.close() == 0
    assert "calls are forwarded without being recorded" in "".join(client.complaints)


def test_another_command_still_says_what_is_broken():
    program = BREAK.format(names=("msgspec",), error="ImportError", server="")
    start = program + "sys.argv = ['mulligan', 'stats']\n" + STARTS["module"]
    with Connection([sys.executable, "-c", start], {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}) as client:
        assert client.process.wait(30) == 1
    assert "ImportError: cannot load msgspec" in "".join(client.complaints)
