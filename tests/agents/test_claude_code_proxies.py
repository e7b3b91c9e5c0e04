"""`mulligan install proxy --all`, and whether the real clients reach their servers: Claude Code, OpenCode, Codex."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from coding_agents import PROGRAMS, Place

from mulligan.cli.clients import SCRIPT

pytestmark = pytest.mark.agents


def run(place: Place, *words: str) -> str:
    """Run a program as the user of this place; what it prints."""
    result = subprocess.run(
        words, cwd=place.project, env=place.environment, capture_output=True, text=True, timeout=120, check=False
    )
    return result.stdout + result.stderr


def write_servers(place: Place) -> dict[Path, bytes]:
    """Write one server into each file in which these clients look for servers. Return their bytes."""
    entry = {"command": sys.executable, "args": [place.crm]}
    projects = {str(place.project): {"mcpServers": {"of_folder": entry}}}
    claude = {"mcpServers": {"of_user": {"type": "stdio", **entry}}, "projects": projects}
    opencode = json.dumps({"mcp": {"crm": {"type": "local", "command": [sys.executable, place.crm]}}})
    codex = f"[mcp_servers.crm]\ncommand = {json.dumps(sys.executable)} # mine\nargs = [{json.dumps(place.crm)}]\n"
    texts = {
        place.home / ".claude.json": json.dumps(claude, indent=2),
        place.project / ".mcp.json": json.dumps({"mcpServers": {"of_team": entry}}),
        place.home / ".config" / "opencode" / "opencode.jsonc": f"// mine\n{opencode}\n",
        place.home / ".codex" / "config.toml": codex,
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {path: path.read_bytes() for path in texts}


def check_connections(place: Place) -> None:
    """Let each client that is here connect to its servers."""
    output = run(place, str(PROGRAMS / "claude"), "mcp", "list")
    assert output.count("Connected") == 2, output
    assert "of_team" in output  # it waits for the user's approval, like every server of a project
    if (PROGRAMS / "opencode").exists():
        output = run(place, str(PROGRAMS / "opencode"), "mcp", "list")
        assert "connected" in output, output
    if (PROGRAMS / "codex").exists():
        assert "command: /bin/sh" in run(place, str(PROGRAMS / "codex"), "mcp", "get", "crm")


def test_clients_reach_all_their_servers_through_the_proxy_and_after_mulligan_was_removed(place, tmp_path):
    texts = write_servers(place)
    command = [sys.executable, "-m", "mulligan"]
    assert "now go through mulligan" in run(place, *command, "install", "proxy", "--all")
    check_connections(place)
    for path in texts:
        path.write_text(path.read_text().replace(str(SCRIPT), f"{tmp_path}/gone/mulligan/cli/start.py"))
    check_connections(place)
    assert "gone/mulligan/cli/start.py, which does not exist" in run(place, *command, "doctor")
    assert "Removed the proxy" in run(place, *command, "uninstall", "proxy", "--all")
    for path, text in texts.items():
        if path.name == ".claude.json":  # Claude Code writes this file too
            servers, expected = json.loads(path.read_text()), json.loads(text)
            assert servers["mcpServers"] == expected["mcpServers"]
            folder = str(place.project)
            assert servers["projects"][folder]["mcpServers"] == expected["projects"][folder]["mcpServers"]
        else:
            assert path.read_bytes() == text
