"""Real coding agents in a home of their own, and how to speak to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent_api import Api

from mulligan.store.base import DEFAULT_TENANT, RunQuery
from mulligan.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".agents" / "node_modules" / ".bin"

SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    answer = {
        "initialize": lambda: {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                               "serverInfo": {"name": "crm", "version": "1"}},
        "tools/list": lambda: {"tools": [{"name": "lookup", "description": "finds", "inputSchema": schema}]},
        "tools/call": lambda: {"isError": True, "content": [{"type": "text", "text": "rate limit exceeded"}]},
    }.get(asked["method"], dict)()
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""


class Place:
    """A home and a project of their own, and the scripted model."""

    def __init__(self, folder: Path, api: Api) -> None:
        self.api = api
        self.home, self.project = folder / "home", folder / "project"
        self.data = self.home / "mulligan"
        self.home.mkdir()
        self.project.mkdir()
        (self.project / "a.txt").write_text("hello\n")
        (folder / "crm.py").write_text(SERVER)
        self.crm = str(folder / "crm.py")
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "MULLIGAN_HOME": str(self.data),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }

    def install(self, agent: str) -> None:
        """As a user does it."""
        done = subprocess.run(
            [sys.executable, "-m", "mulligan", "install", agent],
            env=self.environment, cwd=self.project, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def kinds(self) -> list[tuple[str, str]]:
        """What failed, of which kind, in the order in which it was kept."""
        store = SqliteStore(self.data / "mulligan.db")
        try:
            runs = store.runs(DEFAULT_TENANT, RunQuery())
            return [(each.name, str(each.failure.kind)) for run in runs for each in run.steps if each.has_failed]
        finally:
            store.close()


class Claude:
    """Claude Code, spoken to as a program speaks to it."""

    def __init__(self, place: Place, *options: str) -> None:
        config = {"mcpServers": {"crm": {"command": sys.executable, "args": [place.crm]}}}
        environment = place.environment | {
            "CLAUDE_CONFIG_DIR": str(place.home / ".claude"),
            "ANTHROPIC_BASE_URL": place.api.url,
            "ANTHROPIC_API_KEY": "sk-ant-none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }
        environment.pop("PYTHONPATH")  # the hook must find its own way
        self._process = subprocess.Popen(
            [
                str(PROGRAMS / "claude"), "-p", "--verbose", "--input-format", "stream-json", "--output-format",
                "stream-json", "--include-hook-events", "--model", "claude-sonnet-4-5", "--mcp-config",
                json.dumps(config), "--allowedTools", "Bash,Edit,Read,mcp__crm__lookup", *options,
            ],
            env=environment, cwd=place.project, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.told: list[dict[str, Any]] = []
        """Everything it said, line by line."""

    def says(self, text: str) -> dict[str, Any]:
        """The user says something: the result of what follows."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        said = {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": text}]}}
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            told = json.loads(line)
            self.told.append(told)
            if told.get("type") == "result":
                return told
        assert self._process.stderr is not None
        raise AssertionError(f"it ended: {self._process.stderr.read()}")

    def ends(self) -> None:
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0

    def __enter__(self) -> Claude:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def complaints(self) -> list[Any]:
        """What it said of hooks that did not do well."""
        hooks = [each for each in self.told if "hook" in str(each.get("subtype", ""))]
        return [each for each in hooks if each.get("exit_code") or each.get("stderr") or each.get("outcome") == "error"]


def codex(place: Place, prompt: str = "please work") -> list[dict[str, Any]]:
    """Codex works once through the script: what it said, line by line."""
    folder = place.home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(
        f"""
model = "gpt-5"
model_provider = "fake"
model_auto_compact_token_limit = 5000
[model_providers.fake]
name = "fake"
base_url = "{place.api.url}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
[mcp_servers.crm]
command = "{sys.executable}"
args = ["{place.crm}"]
"""
    )
    environment = place.environment | {"CODEX_HOME": str(folder), "FAKE_KEY": "none"}
    environment.pop("PYTHONPATH")
    done = subprocess.run(
        [
            str(PROGRAMS / "codex"), "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-hook-trust", "-s",
            "danger-full-access", prompt,
        ],
        env=environment, cwd=place.project, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def gemini(place: Place, prompt: str = "please work") -> str:
    """Gemini CLI works once through the script: its last words."""
    file = place.home / ".gemini" / "settings.json"
    settings = json.loads(file.read_text()) if file.exists() else {}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(settings | {"security": {"auth": {"selectedType": "gemini-api-key"}}}))
    environment = place.environment | {
        "GEMINI_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": place.api.url,
        "GEMINI_TELEMETRY_ENABLED": "false",
    }
    environment.pop("PYTHONPATH")
    done = subprocess.run(
        [str(PROGRAMS / "gemini"), "-p", prompt, "--yolo", "--skip-trust", "-m", "gemini-2.5-flash"],
        env=environment, cwd=place.project, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def unwritable(place: Place) -> None:
    place.data.write_text("a file where the folder should be")


def corrupt(place: Place) -> None:
    place.data.mkdir()
    (place.data / "mulligan.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
