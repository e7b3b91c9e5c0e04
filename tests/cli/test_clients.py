"""The proxy is put before a server in a client's settings, and taken away, and nothing else is changed."""

from __future__ import annotations

import json
import os
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
    parse_mulligan_arguments,
)
from mulligan.cli.server_entries import find_broken_entries

OURS = ["/bin/sh", "-c", clients.USER_WRAPPER, sys.executable, str(clients.SCRIPT), "proxy", "--name", "git", "--"]
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
    path.write_text(TEXTS[known.file_format].replace("SERVERS", known.server_files[0].key[0]))
    return known, path


def started(known, path):
    """What the client would run."""
    if known.file_format == "json":
        about = json.loads(path.read_text())[known.server_files[0].key[0]]["git"]
        return [about["command"], *about["args"]]
    if known.file_format == "toml":
        about = tomllib.loads(path.read_text())[known.server_files[0].key[0]]["git"]
        return [about["command"], *about["args"]]
    lines = path.read_text().splitlines()
    command = next(line for line in lines if line.startswith("    cmd: "))
    args = [line.strip()[2:] for line in lines if line.startswith("    - ")]
    words = (command.partition(": ")[2], *args)
    return [json.loads(word) if word.startswith('"') else word.strip("'") for word in words]


@pytest.mark.slow
def test_the_proxy_is_put_before_a_server_and_taken_away_again(types, client):
    known, path = client
    before = path.read_text()
    code, said, _ = types("install", "proxy", "--client", known.name, "--server", "git")
    assert code == 0
    assert "now go through mulligan" in said
    assert started(known, path) == [*OURS, "uvx", "mcp-server-git", "--repository", "/srv/caf\u00e9"]
    assert "Nothing to change" in types("install", "proxy", "--client", known.name, "--server", "git")[1]
    assert types("uninstall", "proxy", "--client", known.name, "--server", "git")[0] == 0
    assert started(known, path) == ["uvx", "mcp-server-git", "--repository", "/srv/caf\u00e9"]
    assert "Nothing to change" in types("uninstall", "proxy", "--client", known.name, "--server", "git")[1]
    assert path.read_text() == before


def test_proxy_with_other_options_replaces_the_first(types, client):
    known, path = client
    before = path.read_text()
    types("install", "proxy", "--client", known.name, "--server", "git", "--pin")
    assert types("install", "proxy", "--client", known.name, "--server", "git")[0] == 0
    assert started(known, path) == [*OURS, "uvx", "mcp-server-git", "--repository", "/srv/caf\u00e9"]
    types("uninstall", "proxy", "--client", known.name, "--server", "git")
    assert path.read_text() == before


def test_everything_else_stays_as_it_was(types, client):
    known, path = client
    before = path.read_text()
    types("install", "proxy", "--client", known.name, "--server", "git", "--repair", "--pin")
    if known.file_format == "json":
        old, new = json.loads(before), json.loads(path.read_text())
        assert new[known.server_files[0].key[0]]["git"]["args"][5:9] == ["--name", "git", "--repair", "--pin"]
        for each in (old, new):
            del each[known.server_files[0].key[0]]["git"]["command"], each[known.server_files[0].key[0]]["git"]["args"]
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
    words = ["sh", "-c", clients.SHARED_WRAPPER, "mulligan", "proxy", "--name", "git", "--", "uvx"]
    assert [about["command"], *about["args"]] == words
    assert types("install", "proxy", "--client", "goose", "--project", "--server", "git")[0] == 2


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
    "by path on Windows": ("C:\\python.exe", ("-ESP", "C:\\lib\\mulligan\\cli\\start.py")),
    "with fallback": build_start_command(),
    "shared": build_start_command(is_shared=True),
    "script": ("/usr/bin/mulligan", ()),
}


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


# Entries that no longer work


def test_entry_of_a_removed_environment_is_named_with_what_to_type(types, client, monkeypatch, tmp_path):
    known, path = client
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone" / "bin" / "python"))
    types("install", "proxy", "--client", known.name, "--server", "git")
    (problem,) = find_broken_entries()
    assert problem.startswith(f"{path}: the server 'git' starts {tmp_path}/gone/bin/python, which does not exist.")
    assert f"`mulligan uninstall proxy --client {known.name} --server git`" in problem
    code, output, _ = types("doctor")
    assert (code, problem in output) == (1, True)
