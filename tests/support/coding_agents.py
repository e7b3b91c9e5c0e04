"""Real coding agents in a home of their own, and how to speak to them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from agent_api import Api

from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]
FORBIDDEN_PROGRAM = "sudo"
"""Program that the rules of each agent forbid."""
PROXY = [sys.executable, "-I", "-m", "mulligan", "proxy"]
PROGRAMS = ROOT / ".agents" / "node_modules" / ".bin"
PROGRAM_NAMES = {"claude-code": "claude"} | {name: name for name in ("codex", "copilot", "gemini", "opencode", "pi")}
"""The program of each agent."""

SERVER = """
import json, sys
earlier = set()
def answer_call(q):
    fails = q == "tea" or q == "once" and q not in earlier
    earlier.add(q)
    return {"isError": fails, "content": [{"type": "text", "text": "rate limit exceeded" if fails else "found it"}]}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    answer = {
        "initialize": lambda: {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                               "serverInfo": {"name": "crm", "version": "1"}},
        "tools/list": lambda: {"tools": [{"name": "lookup", "description": "finds", "inputSchema": schema}]},
        "tools/call": lambda: answer_call(asked["params"].get("arguments", {}).get("q")),
    }.get(asked["method"], dict)()
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""


def build_environment(home: Path, data: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "MULLIGAN_HOME": str(data),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


def run_command(words: Iterable[str], environment: dict[str, str], folder: Path, codes: Collection[int] = (0,)) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mulligan", *words],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode in codes, done.stderr
    return done.stdout


class Place:
    """A home and a project of their own, and the scripted model."""

    def __init__(self, folder: Path, api: Api, opencode_server: OpenCodeServer | None = None) -> None:
        self.api, self.opencode_server = api, opencode_server
        self.home, self.project = folder / "home", folder / "project"
        self.data = self.home / "mulligan"
        self.home.mkdir()
        self.project.mkdir()
        (self.project / "a.txt").write_text("hello\n")
        (folder / "crm.py").write_text(SERVER)
        self.crm = str(folder / "crm.py")
        self.server = [sys.executable, self.crm]
        """How the MCP server is started."""
        self.gemini_settings: dict[str, Any] = {}
        self.environment = build_environment(self.home, self.data)

    def install(self, agent: str) -> None:
        """As a user does it."""
        self.run("install", agent)

    def run(self, *words: str, codes: Collection[int] = (0,)) -> str:
        """Run a command of mulligan as the user of this place; what it prints."""
        return run_command(words, self.environment, self.project, codes)

    def proxy(self, mode: str) -> None:
        """Put our proxy in front of the server, as `install proxy` does, for an agent that hands on no environment."""
        command = [*PROXY, "--mode", mode, "--name", "crm", "--", *self.server]
        variables = {"MULLIGAN_HOME": str(self.data)}
        program = self.home.parent / "proxied.py"
        program.write_text(f"import os\nos.environ.update({variables!r})\nos.execv({sys.executable!r}, {command!r})\n")
        self.server = [sys.executable, str(program)]

    def imports(self) -> None:
        """Also import the logs of the agents."""
        self.run("scan", "--import", codes=(0, 1))

    def messages(self) -> list[str]:
        """Messages and details of the stored failures."""
        store = SqliteStore(self.data / "mulligan.db")
        try:
            steps = [step for run in store.runs(DEFAULT_TENANT, RunQuery()) for step in run.steps]
            return [f"{step.failure.message} {step.failure.detail}" for step in steps if step.failure is not None]
        finally:
            store.close()

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
        config = {"mcpServers": {"crm": {"command": place.server[0], "args": place.server[1:]}}}
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
                json.dumps(config), "--allowedTools", "Bash,Edit,Read,mcp__crm__lookup",
                "--disallowedTools", f"Bash({FORBIDDEN_PROGRAM}:*)", *options,
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


class Pi:
    """Pi, spoken to as a program speaks to it."""

    def __init__(self, place: Place, *options: str) -> None:
        folder = place.home / ".pi" / "agent"
        folder.mkdir(parents=True, exist_ok=True)
        models = [{"id": "m", "contextWindow": 200_000}]
        provider = {"baseUrl": f"{place.api.url}/v1", "api": "openai-completions", "apiKey": "none", "models": models}
        (folder / "models.json").write_text(json.dumps({"providers": {"fake": provider}}))
        (folder / "settings.json").write_text(json.dumps({"compaction": {"keepRecentTokens": 1}}))
        environment = place.environment | {"PI_OFFLINE": "1"}
        environment.pop("PYTHONPATH")
        self._process = subprocess.Popen(
            [str(PROGRAMS / "pi"), "--mode", "rpc", "--model", "fake/m", *options],
            env=environment, cwd=place.project, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.events: list[dict[str, Any]] = []
        """Everything it said, line by line."""

    def says(self, text: str) -> dict[str, Any]:
        """The user says something, or `/compact`: the last event of what follows."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        is_command = text == "/compact"
        command = {"type": "compact"} if is_command else {"type": "prompt", "message": text}
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            event = json.loads(line)
            self.events.append(event)
            is_answered = event.get("type") == "response" and event.get("command") == command["type"]
            if is_answered:
                assert event["success"], event
            if event.get("type") == "agent_end" or (is_command and is_answered):
                return event
        assert self._process.stderr is not None
        raise AssertionError(f"it ended: {self._process.stderr.read()}")

    def ends(self) -> None:
        """Close its input: it ends."""
        self._process.communicate(timeout=60)

    def __enter__(self) -> Pi:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.communicate()


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
command = "{place.server[0]}"
args = {json.dumps(place.server[1:])}
startup_timeout_sec = 60
required = true
"""
    )
    rule = f'prefix_rule(pattern=["{FORBIDDEN_PROGRAM}"], decision="forbidden")\n'
    (folder / "rules").mkdir(exist_ok=True)
    (folder / "rules" / "default.rules").write_text(rule)
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


def gemini(place: Place, prompt: str = "please work", *options: str) -> str:
    """Gemini CLI works once through the script: its last words."""
    file = place.home / ".gemini" / "settings.json"
    settings = json.loads(file.read_text()) if file.exists() else {}
    file.parent.mkdir(exist_ok=True)
    server = {"command": place.server[0], "args": place.server[1:], "trust": True}
    settings |= {"security": {"auth": {"selectedType": "gemini-api-key"}}, "mcpServers": {"crm": server}}
    file.write_text(json.dumps(settings | place.gemini_settings))
    (file.parent / "policies").mkdir(exist_ok=True)
    rule = f'toolName = "run_shell_command"\ncommandPrefix = "{FORBIDDEN_PROGRAM}"\ndecision = "deny"\npriority = 999\n'
    (file.parent / "policies" / "rules.toml").write_text(f"[[rule]]\n{rule}")
    environment = place.environment | {
        "GEMINI_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": place.api.url,
        "GEMINI_TELEMETRY_ENABLED": "false",
        "GEMINI_CLI_NO_RELAUNCH": "true",  # else it starts itself once more with other options of node: 1 s
    }
    environment.pop("PYTHONPATH")
    done = subprocess.run(
        [str(PROGRAMS / "gemini"), "-p", prompt, "--yolo", "--skip-trust", "-m", "gemini-2.5-flash", *options],
        env=environment, cwd=place.project, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def copilot(place: Place, prompt: str = "please work") -> str:
    """Copilot CLI works once through the script: its last words."""
    environment = place.environment | {
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_PROVIDER_BASE_URL": f"{place.api.url}/v1",
        "COPILOT_PROVIDER_API_KEY": "none",
        "COPILOT_MODEL": "gpt-4.1",
    }
    environment.pop("PYTHONPATH")
    done = subprocess.run(
        [str(PROGRAMS / "copilot"), "-p", prompt, "--allow-all-tools", "--deny-tool", f"shell({FORBIDDEN_PROGRAM})"],
        env=environment, cwd=place.project, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def opencode(place: Place, *options: str, prompt: str = "please work") -> list[dict[str, Any]]:
    """OpenCode works once through the script, in a process of its own: what it said, line by line."""
    prepare_opencode(place.home)
    (place.home / ".config" / "opencode" / "opencode.json").write_text(json.dumps(opencode_settings(place)))
    done = subprocess.run(
        [str(PROGRAMS / "opencode"), "run", "--format", "json", *options, prompt],
        env=opencode_environment(place.environment), cwd=place.project, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def prepare_opencode(home: Path) -> None:
    """Let OpenCode find the package that it installs for plugins, which our plugin does not import: 10 s."""
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"dependencies": {"@opencode-ai/plugin": "1.18.18"}}
    (folder / "package.json").write_text(json.dumps(wanted))
    (folder / "package-lock.json").write_text(json.dumps({"lockfileVersion": 3, "packages": {"": wanted}}))
    (folder / "node_modules").mkdir(exist_ok=True)


def opencode_settings(place: Place) -> dict[str, Any]:
    model = {"name": "m", "limit": {"context": 200_000, "output": 1000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{place.api.url}/v1", "apiKey": "none"},
        "models": {"m": model},
    }
    return {
        "provider": {"fake": provider},
        "model": "fake/m",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"bash": {"*": "allow", f"{FORBIDDEN_PROGRAM} *": "deny"}},
        "mcp": {"crm": {"type": "local", "command": place.server}},
    }


def opencode_environment(environment: dict[str, str]) -> dict[str, str]:
    environment = environment | {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }
    environment.pop("PYTHONPATH")
    return environment


class OpenCodeServer:
    """OpenCode as a server for many sessions. A process takes 7 s of CPU, a session of the server 2 s.

    Its sessions share a home with our plugin. Each has its own project, settings and data folder of mulligan: the
    server's variable names a link, which follows the session.
    """

    def __init__(self, folder: Path) -> None:
        self._home, self._link = folder / "home", folder / "data"
        self._process: subprocess.Popen[str] | None = None
        self._url = self._session = ""
        self._project = self._home

    def work(self, place: Place, *prompts: str) -> list[dict[str, Any]]:
        """Work through the script in a session: the parts of its messages."""
        self._start()
        if self._session:  # so that the log has one session
            self._call("DELETE", f"/session/{self._session}")
        self._project = place.project
        self._link.unlink(missing_ok=True)
        place.data.mkdir(exist_ok=True)
        self._link.symlink_to(place.data)
        (place.project / "opencode.json").write_text(json.dumps(opencode_settings(place)))
        data = Path(".local", "share", "opencode")
        (place.home / data).parent.mkdir(parents=True, exist_ok=True)
        (place.home / data).unlink(missing_ok=True)
        (place.home / data).symlink_to(self._home / data)
        self._session = self._call("POST", "/session", {"title": "work"})["id"]
        for prompt in prompts or ("please work",):
            self._call("POST", f"/session/{self._session}/message", {"parts": [{"type": "text", "text": prompt}]})
        messages = self._call("GET", f"/session/{self._session}/message")
        self._call("POST", "/instance/dispose")
        self._wait_for_children()
        return [part for message in messages for part in message["parts"]]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _start(self) -> None:
        if self._process is not None:
            return
        prepare_opencode(self._home)
        run_command(["install", "opencode"], build_environment(self._home, self._home / "installation"), self._home)
        environment = build_environment(self._home, self._link)
        self._process = subprocess.Popen(
            [str(PROGRAMS / "opencode"), "serve", "--port", "0"],
            env=opencode_environment(environment), cwd=self._home, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._url = next(match[0] for line in self._process.stdout if (match := re.search(r"http://\S+", line)))

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"content-type": "application/json", "x-opencode-directory": str(self._project)}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=180) as answer:
            return json.load(answer)

    def _wait_for_children(self) -> None:
        """Wait until hooks, proxies and commands of the session have ended."""
        assert self._process is not None
        deadline = time.monotonic() + 60
        tasks = Path("/proc", str(self._process.pid), "task")
        while any((task / "children").read_text() for task in tasks.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def unwritable(place: Place) -> None:
    shutil.rmtree(place.data, ignore_errors=True)  # `install` may have created it
    place.data.write_text("a file where the folder should be")


def corrupt(place: Place) -> None:
    place.data.mkdir(exist_ok=True)
    (place.data / "mulligan.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)


def list_files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Modes and bytes of all files and folders, but those of mulligan's data."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
        if "mulligan" not in path.relative_to(folder).parts
    }
