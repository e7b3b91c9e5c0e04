"""The proxy is put before a server in a client's settings, and taken away, and nothing else is changed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from mcp_client import FAKE

from mulligan.cli import clients
from mulligan.cli.clients import (
    MCP_CLIENTS,
    StartCommand,
    build_start_command,
    can_start_isolated,
    parse_mulligan_arguments,
    unwrap_proxy,
    wrap_with_proxy,
)

OURS = ["-I", "-m", "mulligan", "proxy", "--name", "git", "--"]
PLACES = {
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "claude-code": ".claude.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
    "codex": ".codex/config.toml",
    "goose": ".config/goose/config.yaml",
}
JSON = """{
    "theme": "dark",
    "SERVERS": {
        "git": {"command": "uvx", "args": ["mcp-server-git", "--repository", "/srv/caf\u00e9"], "env": {"A": "b"}},
        "web": {"url": "https://mcp.example/"}
    }
}
"""
TOML = """# mine
model = "x"

[mcp_servers.git]   # of the team
args = [
  "mcp-server-git",  # one
  "--repository", "/srv/caf\u00e9",
]
command = "uvx"
startup_timeout_sec = 20

[mcp_servers.git.env]
A = "b"

[mcp_servers.web]
url = "https://mcp.example/"
"""
YAML = """GOOSE_MODEL: x
extensions:
  developer:
    bundled: true
    enabled: true
    type: builtin
  git:
    args:
    - mcp-server-git
    - --repository
    - '/srv/caf\u00e9'
    # a comment
    cmd: uvx
    enabled: true
    envs: {}
    type: stdio
other: 1
"""
TEXTS = {"json": JSON, "toml": TOML, "yaml": YAML}


@pytest.fixture(params=PLACES)
def client(request, monkeypatch):
    """A client with a server of its own, and the file in which it stands."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.home() / ".config"))
    monkeypatch.setattr(sys, "platform", "linux")
    known = MCP_CLIENTS[request.param]
    path = Path.home() / PLACES[request.param]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXTS[known.file_format].replace("SERVERS", known.servers_key))
    return known, path


def started(known, path):
    """What the client would run."""
    if known.file_format == "json":
        about = json.loads(path.read_text())[known.servers_key]["git"]
        return [about["command"], *about["args"]]
    if known.file_format == "toml":
        about = tomllib.loads(path.read_text())[known.servers_key]["git"]
        return [about["command"], *about["args"]]
    lines = path.read_text().splitlines()
    command = next(line for line in lines if line.startswith("    cmd: "))
    args = [line.strip()[2:] for line in lines if line.startswith("    - ")]
    return [each.strip("'\"") for each in (command.split(": ")[1], *args)]


@pytest.mark.slow
def test_the_proxy_is_put_before_a_server_and_taken_away_again(types, client):
    known, path = client
    before = path.read_text()
    code, said, _ = types("install", "proxy", "--client", known.name, "--server", "git")
    assert code == 0
    assert "now go through mulligan" in said
    assert started(known, path) == [sys.executable, *OURS, "uvx", "mcp-server-git", "--repository", "/srv/caf\u00e9"]
    copy = next(path.parent.glob(f"{path.name}.before-mulligan-*"))
    assert copy.read_text() == before

    assert "nothing to change" in types("install", "proxy", "--client", known.name, "--server", "git")[1]
    assert types("uninstall", "proxy", "--client", known.name, "--server", "git")[0] == 0
    assert started(known, path) == ["uvx", "mcp-server-git", "--repository", "/srv/caf\u00e9"]
    assert "nothing to change" in types("uninstall", "proxy", "--client", known.name, "--server", "git")[1]
    if known.file_format == "json":
        assert json.loads(path.read_text()) == json.loads(before)
    elif known.file_format == "toml":
        assert tomllib.loads(path.read_text()) == tomllib.loads(before)
        assert "# of the team" in path.read_text()


def test_earlier_proxy_is_replaced_once_and_taken_away(types, client):
    known, path = client
    types("install", "proxy", "--client", known.name, "--server", "git")
    now = path.read_text()
    quoted = {"json": '"-I",', "toml": '"-I",', "yaml": '- "-I"\n'}[known.file_format]
    earlier = re.sub(rf"\s*{re.escape(quoted)}", "\n" if known.file_format == "yaml" else "", now, count=1)
    path.write_text(earlier)
    assert started(known, path)[1:] == [*OURS[1:], "uvx", "mcp-server-git", "--repository", "/srv/caf\u00e9"]
    assert types("install", "proxy", "--client", known.name, "--server", "git")[0] == 0
    assert started(known, path)[1:] == [*OURS, "uvx", "mcp-server-git", "--repository", "/srv/caf\u00e9"]
    assert "nothing to change" in types("install", "proxy", "--client", known.name, "--server", "git")[1]
    path.write_text(earlier)
    assert types("uninstall", "proxy", "--client", known.name, "--server", "git")[0] == 0
    assert started(known, path) == ["uvx", "mcp-server-git", "--repository", "/srv/caf\u00e9"]


def test_everything_else_stays_as_it_was(types, client):
    known, path = client
    before = path.read_text()
    types("install", "proxy", "--client", known.name, "--server", "git", "--repair", "--pin")
    if known.file_format == "json":
        old, new = json.loads(before), json.loads(path.read_text())
        assert new[known.servers_key]["git"]["args"][4:8] == ["--name", "git", "--repair", "--pin"]
        for each in (old, new):
            del each[known.servers_key]["git"]["command"], each[known.servers_key]["git"]["args"]
        assert new == old
    else:
        kept = set(before.splitlines()) - set(path.read_text().splitlines())
        assert all(any(word in line for word in ("git", "uvx", "repository", "caf", "args", "]")) for line in kept)


def test_a_rehearsal_writes_nothing(types, client):
    known, path = client
    before = path.read_text()
    said = types("install", "proxy", "--client", known.name, "--server", "git", "--dry-run")[1]
    assert "was not changed" in said
    assert path.read_text() == before


def test_a_server_that_is_not_there_is_refused_with_those_that_are(types, client):
    known, _ = client
    for words in (["--server", "gti"], []):
        code, _, complaint = types("install", "proxy", "--client", known.name, *words)
        assert code == 2
        assert "git" in complaint


def test_a_server_that_is_reached_by_an_address_is_refused(types, client):
    known, _ = client
    name = "developer" if known.file_format == "yaml" else "web"
    code, _, complaint = types("install", "proxy", "--client", known.name, "--server", name)
    assert code == 2
    assert "has no command" in complaint


def test_a_file_that_is_not_understood_is_left_alone(types, client):
    known, path = client
    broken = {"json": "{", "toml": "[", "yaml": "extensions:\n  git:\n    cmd: |\n      uvx\n"}[known.file_format]
    path.write_text(broken)
    code, _, complaint = types("install", "proxy", "--client", known.name, "--server", "git")
    assert code == 2
    assert str(path) in complaint
    assert path.read_text() == broken


def test_a_project_has_a_file_of_its_own(types, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"git": {"command": "uvx"}}}')
    assert types("install", "proxy", "--client", "claude-code", "--project", "--server", "git")[0] == 0
    about = json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"]["git"]
    assert [about["command"], *about["args"]] == [sys.executable, *OURS, "uvx"]
    assert types("install", "proxy", "--client", "goose", "--project", "--server", "git")[0] == 2


def test_wrapping_twice_is_wrapping_once():
    start = StartCommand("npx", ("-y", "server", "--", "x"))
    once = wrap_with_proxy(start, "s", ["--pin"])
    assert wrap_with_proxy(once, "s", []) == wrap_with_proxy(start, "s", [])
    assert unwrap_proxy(once) == start
    assert unwrap_proxy(start) is None
    assert unwrap_proxy(StartCommand("/usr/bin/mulligan", ("proxy", "--", "npx"))) == StartCommand("npx", ())


@pytest.mark.slow
def test_what_is_installed_runs(types, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server = {"command": sys.executable, "args": [str(FAKE)]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"fake": server}}))
    types("install", "proxy", "--client", "claude-code", "--project", "--server", "fake")
    about = json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"]["fake"]
    import mulligan

    done = subprocess.run(
        [about["command"], *about["args"]],
        input='{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(Path(mulligan.__file__).parents[1])},
    )
    assert json.loads(done.stdout)["result"]["heard"] == "ping"


# Start commands: built in one form, recognized in every form there was

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
        monkeypatch.setattr(clients, "PACKAGES", ("mulligan", name))
    assert build_start_command("mcp") == StartCommand(sys.executable, ("-ESP", str(clients.SCRIPT), "mcp"))


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
