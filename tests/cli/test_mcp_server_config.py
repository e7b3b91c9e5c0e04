"""`mulligan mcp` is put among the servers of a client, and taken away, and nothing else is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mulligan.cli.clients import build_start_command

START = build_start_command("mcp")
OURS = {"command": START.command, "args": list(START.args)}
EARLIER = {
    "plain": {"command": "/old/python", "args": ["-m", "mulligan", "mcp"]},
    "by path": {"command": "/old/python", "args": ["-ESP", "/old/mulligan/cli/start.py", "mcp"]},
    "script": {"command": "/usr/bin/mulligan", "args": ["mcp"]},
}
TOML = '# mine\nmodel = "x"\n\n[mcp_servers.git]   # of the team\ncommand = "uvx"\n\n[tui]\ntheme = "dark"\n'


@pytest.fixture
def home(tmp_path):
    return tmp_path


def mulligan(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home), "CODEX_HOME": str(home / ".codex"), "XDG_CONFIG_HOME": ""}
    environment.pop("CLAUDE_CONFIG_DIR", None)
    return subprocess.run(
        [sys.executable, "-m", "mulligan", *words],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(("client", "file", "under"), [("claude-code", ".claude.json", "mcpServers"),
                                                       ("cursor", ".cursor/mcp.json", "mcpServers")])  # fmt: skip
def test_a_client_with_json_starts_it_beside_what_it_had(home, client, file, under):
    path = home / file
    path.parent.mkdir(exist_ok=True)
    had = {"theme": "dark", under: {"git": {"command": "uvx"}}}
    path.write_text(json.dumps(had))
    assert mulligan(home, "install", "mcp-server", "--client", client, "--dry-run").returncode == 0
    assert json.loads(path.read_text()) == had
    assert mulligan(home, "install", "mcp-server", "--client", client).returncode == 0
    assert json.loads(path.read_text()) == {"theme": "dark", under: {"git": {"command": "uvx"}, "mulligan": OURS}}
    assert "Nothing to change" in mulligan(home, "install", "mcp-server", "--client", client).stdout
    assert mulligan(home, "uninstall", "mcp-server", "--client", client).returncode == 0
    assert json.loads(path.read_text()) == had


def test_a_client_without_a_file_gets_one(home):
    assert mulligan(home, "install", "mcp-server", "--client", "cursor").returncode == 0
    assert json.loads((home / ".cursor" / "mcp.json").read_text()) == {"mcpServers": {"mulligan": OURS}}


def test_codex_keeps_its_comments(home):
    path = home / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text(TOML)
    assert mulligan(home, "install", "mcp-server", "--client", "codex").returncode == 0
    made = path.read_text()
    assert made.startswith(TOML)
    assert tomllib.loads(made)["mcp_servers"]["mulligan"] == OURS
    assert mulligan(home, "uninstall", "mcp-server", "--client", "codex").returncode == 0
    assert path.read_text() == TOML


def test_what_is_not_understood_is_left_alone_and_told(home):
    path = home / ".claude.json"
    path.write_text(json.dumps({"mcpServers": {"mulligan": {"command": "other"}}}))
    done = mulligan(home, "install", "mcp-server", "--client", "claude-code")
    assert done.returncode == 2
    assert "another server named 'mulligan'" in done.stderr
    assert "Nothing to change" in mulligan(home, "uninstall", "mcp-server", "--client", "claude-code").stdout
    done = mulligan(home, "install", "mcp-server", "--client", "goose")
    assert done.returncode == 2
    assert "Add a server to" in done.stderr


@pytest.mark.parametrize("form", EARLIER)
def test_earlier_entry_in_json_is_replaced_once_and_taken_away(home, form):
    path = home / ".claude.json"
    env = {"MULLIGAN_HOME": "/srv"}
    text = json.dumps({"mcpServers": {"mulligan": {**EARLIER[form], "env": env}}})
    path.write_text(text)
    assert mulligan(home, "install", "mcp-server", "--client", "claude-code").returncode == 0
    assert json.loads(path.read_text()) == {"mcpServers": {"mulligan": {**OURS, "env": env}}}
    assert "Nothing to change" in mulligan(home, "install", "mcp-server", "--client", "claude-code").stdout
    path.write_text(text)
    assert mulligan(home, "uninstall", "mcp-server", "--client", "claude-code").returncode == 0
    assert not path.exists()  # nothing else was in it


@pytest.mark.parametrize("form", EARLIER)
def test_earlier_entry_in_toml_is_replaced_once_and_taken_away(home, form):
    path = home / ".codex" / "config.toml"
    path.parent.mkdir()
    command, args = EARLIER[form].values()
    entry = f"[mcp_servers.mulligan]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n"
    text = TOML.replace("[tui]", f"{entry}startup_timeout_sec = 20  # slow here\n\n[tui]")
    path.write_text(text)
    assert mulligan(home, "install", "mcp-server", "--client", "codex").returncode == 0
    assert tomllib.loads(path.read_text())["mcp_servers"]["mulligan"] == {**OURS, "startup_timeout_sec": 20}
    assert "# slow here" in path.read_text()
    assert "Nothing to change" in mulligan(home, "install", "mcp-server", "--client", "codex").stdout
    path.write_text(text)
    assert mulligan(home, "uninstall", "mcp-server", "--client", "codex").returncode == 0
    assert tomllib.loads(path.read_text()) == tomllib.loads(TOML)
