"""Every entry that `install` writes, started for real in a hostile repository: none of its files is run or obeyed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from hostile_repository import HostileRepository
from mcp_client import FAKE, Connection
from session_logs import Codex, write

import mulligan
from mulligan.cli.clients import AGENTS, CLIENTS, MCP_CLIENTS, SCRIPT, StartCommand, settings_path
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.records import encode
from mulligan.settings import config_folder
from mulligan.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]
SERVER = ["-I", str(FAKE)]
"""The server behind the proxy is the user's own: it is started so that it imports nothing of the repository either."""
VALUE = "kestrel"
"""What the user's settings keep out of the store, and those of the repository would let in."""


@pytest.fixture
def repository(tmp_path):
    return HostileRepository(tmp_path)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The user's store, named in the user's settings, which keep no values."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", *filter(lambda name: name.startswith("PYTHON"), os.environ)):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "of_user.db"
    file = config_folder() / "mulligan.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'store = "{path}"\nrecord = "shape"\n')
    return path


def read_failures(store: Path) -> list[str]:
    """Read the names of the calls that failed, and check that none of them came with its values."""
    assert store.exists(), "nothing was kept in the user's store"
    database = SqliteStore(store)
    steps = [step for history in database.runs(DEFAULT_TENANT, RunQuery()) for step in history.steps]
    database.close()
    assert VALUE not in encode(steps).decode()
    return [step.name for step in steps if step.has_failed]


# Hooks of coding agents


def build_events(agent: str, log: Path) -> list[dict[str, object]]:
    """Build the events of a session: a call fails, then the conversation is compacted."""
    arguments = {"command": f"make {VALUE}"}
    call = {"tool_name": "Bash", "tool_input": arguments, "tool_use_id": "call_1"}
    compaction = {"hook_event_name": "SessionStart", "source": "compact"}
    if agent == "claude-code":
        error = "Exit code 2\nmake: *** No rule to make target.  Stop."
        return [{"hook_event_name": "PostToolUseFailure", **call, "error": error, "is_interrupt": False}, compaction]
    if agent == "codex":
        session = Codex()
        said = "make: *** No rule to make target.  Stop."
        item = {"type": "CommandExecution", "id": "call_1", "exit_code": 2, "aggregated_output": said}
        ended = session.line("event_msg", 2, type="item_completed", item=item)
        write(
            log, session.meta("session_1"), session.call("call_1", "exec_command", 1, cmd=arguments["command"]), ended
        )
        return [{"hook_event_name": "PostToolUse", **call, "tool_response": said}, compaction]
    if agent == "opencode":
        state = {"status": "error", "input": arguments, "error": "make: *** No rule to make target.  Stop."}
        part = {"type": "tool", "callID": "call_1", "tool": "bash", "state": state}
        return [{"hook_event_name": "ToolFailed", "part": part}, {**compaction, "hook_event_name": "SessionCompacted"}]
    if agent == "copilot":
        failed_call = {"hook_event_name": "PostToolUseFailure", **call, "error": "make: *** No rule to make target."}
        next_call = {"hook_event_name": "PostToolUse", "tool_name": "Bash", "tool_input": {"command": "true"}}
        return [failed_call, {"hook_event_name": "PreCompact", "trigger": "auto"}, next_call]
    if agent == "cursor":
        failed_call = {"hook_event_name": "postToolUseFailure", **call, "error_message": "make: *** No rule to make x."}
        next_call = {"hook_event_name": "postToolUse", **call, "tool_output": '{"exitCode":0}', "tool_use_id": "call_2"}
        return [failed_call, {"hook_event_name": "preCompact", "trigger": "auto"}, next_call]
    if agent == "pi":
        failed_call = {"hook_event_name": "ToolFailed", **call, "error": "make: *** No rule to make target.  Stop."}
        return [failed_call, {**compaction, "hook_event_name": "SessionCompacted"}]
    response = {"llmContent": "Output: make: *** No rule to make target.  Stop.\nExit Code: 2\n"}
    return [
        {"hook_event_name": "AfterTool", **call, "tool_response": response},
        {"hook_event_name": "PreCompress", "trigger": "manual"},
        {"hook_event_name": "BeforeAgent", "prompt": "go on"},
    ]


def run_session(agent: str, command: str, repository: HostileRepository, environment: dict[str, str]) -> str:
    """Run a hook's command for each event of a session, as an agent does; what the last one answers."""
    log = repository.folder.parent / "session.jsonl"
    about = {"session_id": "session_1", "cwd": str(repository.folder), "transcript_path": str(log)}
    answer = ""
    for event in build_events(agent, log):
        process = subprocess.run(
            ["sh", "-c", command],
            input=json.dumps({**about, **event}, separators=(",", ":")),
            cwd=repository.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (process.returncode, process.stderr) == (0, "")
        answer = process.stdout
    return answer


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_hook_of_an_agent_runs_nothing_of_a_repository(types, store, repository, agent):
    assert types("install", agent.name)[0] == 0
    command = read_hook_command(settings_path(agent.hook_files[0]))
    answer = run_session(agent.name, command, repository, {**os.environ, **repository.variables})
    repository.check_untouched()
    response = json.loads(answer)
    assert "Recent failures" in str(response.get("additional_context") or response["hookSpecificOutput"])
    names = {"codex": "exec_command", "copilot": "bash", "opencode": "bash"}
    assert read_failures(store) == [names.get(agent.name, "Bash")]


def read_hook_command(path: Path) -> str:
    """Read the only command in a file of hooks: JSON, or a plugin in JavaScript."""
    if path.suffix == ".js":
        (line,) = [line for line in path.read_text().splitlines() if line.startswith("const COMMAND = ")]
        return shlex.join(json.loads(line.removeprefix("const COMMAND = ")))
    hooks = json.loads(path.read_text())["hooks"]
    groups = [item for items in hooks.values() for item in items]
    (command,) = {handler["command"] for group in groups for handler in group.get("hooks", [group])}
    return command


def read_plugin_command() -> str:
    return read_hook_command(ROOT / "plugins/claude-code/hooks/hooks.json")


def install_script(folder: Path) -> str:
    """Write `mulligan-hook` as an installer writes it; the PATH on which it is found."""
    folder.mkdir()
    script = folder / "mulligan-hook"
    script.write_text(f"#!{sys.executable}\nfrom mulligan.hooks.main import main\nmain()\n")
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_plugin_runs_nothing_of_a_repository(store, repository, tmp_path):
    path = install_script(tmp_path / "bin")
    environment = {**os.environ, **repository.variables, "PATH": path}
    answer = run_session("claude-code", read_plugin_command(), repository, environment)
    repository.check_untouched()
    assert "Recent failures" in json.loads(answer)["hookSpecificOutput"]["additionalContext"]
    assert read_failures(store) == ["Bash"]


def test_plugin_runs_no_program_of_a_relative_path(store, repository, tmp_path):
    path = f"bin{os.pathsep}{install_script(tmp_path / 'bin')}"
    assert run_session("claude-code", read_plugin_command(), repository, {**os.environ, "PATH": path}) == ""
    repository.check_untouched()


# Entries of MCP clients


def write_server(client: str) -> Path:
    """Write the settings of a client that starts one server of the user's; their path."""
    known = MCP_CLIENTS[client]
    path = settings_path(known.server_files[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    if known.file_format == "json":
        entry = StartCommand(sys.executable, tuple(SERVER)).to_entry(known.keys)
        path.write_text(json.dumps({known.server_files[0].key[0]: {"fake": entry}}))
    elif known.file_format == "toml":
        path.write_text(f"[mcp_servers.fake]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(SERVER)}\n")
    else:
        args = "".join(f"    - {word}\n" for word in SERVER)
        path.write_text(
            f"{known.server_files[0].key[0]}:\n  fake:\n    cmd: {sys.executable}\n    args:\n{args}    type: stdio\n"
        )
    return path


def read_entry(client: str, server: str) -> list[str]:
    """Read the command by which a client starts a server."""
    known = MCP_CLIENTS[client]
    text = settings_path(known.server_files[0]).read_text()
    if known.file_format == "yaml":
        lines = [line.strip() for line in text.splitlines()]
        words = [line.partition(" ")[2] for line in lines if line.startswith(("cmd: ", "- "))]
        return [json.loads(word) for word in words]
    settings = json.loads(text) if known.file_format == "json" else tomllib.loads(text)
    entry = settings[known.server_files[0].key[0]][server]
    return [entry["command"], *entry["args"]] if known.keys.args else entry["command"]


def call_failing_tool(entry: list[str], repository: HostileRepository, environment: dict[str, str]) -> None:
    """Start an entry with the proxy before a server, and let a tool of that server fail."""
    with Connection(entry, environment, cwd=repository.folder) as connection:
        connection.open()
        answer = connection.call("fail", text=VALUE)
        assert answer["result"]["isError"] is True
        assert "mulligan" in answer["result"]["content"][-1]["text"]
        connection.close()


@pytest.mark.parametrize("client", MCP_CLIENTS)
def test_proxied_server_of_a_client_runs_nothing_of_a_repository(types, store, repository, client):
    write_server(client)
    assert types("install", "proxy", "--client", client, "--server", "fake")[0] == 0
    call_failing_tool(read_entry(client, "fake"), repository, {**os.environ, **repository.variables})
    repository.check_untouched()
    assert read_failures(store) == ["fake.fail"]


@pytest.mark.parametrize("client", [name for name, client in MCP_CLIENTS.items() if client.file_format != "yaml"])
def test_question_server_of_a_client_runs_nothing_of_a_repository(types, store, repository, client):
    """What it answers is tested where the `mcp` package is: in tests/mcp/test_installed_entry.py."""
    assert types("install", "mcp-server", "--client", client)[0] == 0
    process = subprocess.run(
        read_entry(client, "mulligan"),
        stdin=subprocess.DEVNULL,
        cwd=repository.folder,
        env={**os.environ, **repository.variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    repository.check_untouched()
    if find_spec("mcp") is None:
        assert "mulligan mcp needs the mcp package" in process.stderr
    else:
        assert (process.returncode, process.stderr) == (0, "")


# Commands that a user types in a repository

SECRET = '{"mcpServers": {"x": {"command": "sk-secret"}}, "mcp": {}, "servers": {}, "hooks": {}}\n'


def test_commands_run_and_change_nothing_outside_of_a_repository(store, repository, tmp_path):
    """Its settings are links to a file of the user, and its servers have names and commands that do harm."""
    secret = tmp_path / "secret.json"
    secret.write_text(SECRET)
    files = {file.path for client in CLIENTS for file in (*client.server_files, *client.hook_files)}
    for name in sorted(name for name in files if name.startswith("{project}")):
        path = Path(name.partition("|")[0].format(project=repository.folder))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(secret)
    environment = {**os.environ, **repository.variables}
    commands = [
        [action, *words]
        for action in ("install", "uninstall")
        for words in (*([agent, "--project"] for agent in AGENTS), ["proxy", "--all", "--project"], ["proxy", "--all"])
    ]
    for words in [*commands, ["doctor"]]:
        process = subprocess.run(
            [sys.executable, "-I", "-m", "mulligan", *words],
            cwd=repository.folder, env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        output = process.stdout + process.stderr
        assert "Traceback" not in output
        assert "sk-secret" not in output
        if words[1:] and words[1] in AGENTS:
            assert process.returncode == 2
            assert "outside of this folder" in output
        assert secret.read_text() == SECRET
    assert repository.read_marks() == set()


def test_commands_start_no_server_of_a_repository_and_print_no_control_characters(store, repository, tmp_path):
    for name in ("mulligan.toml", "pyproject.toml"):  # which `doctor` refuses
        (repository.folder / name).unlink()
    program = str(repository.folder / "bin" / "python")
    gone = f"{tmp_path}/\x1b]0;gone\x07/mulligan/cli/start.py"
    servers = {
        "a\x1b[2J": {"command": program, "args": []},
        "b": {"command": program, "args": ["-ESP", gone, "proxy", "--", "x"]},
        "$(touch owned)": {"command": program, "args": ["-ESP", gone, "proxy", "--", "x"]},
    }
    (repository.folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    plugin = repository.folder / ".opencode" / "plugins" / "mulligan.js"
    plugin.parent.mkdir(parents=True)
    command = json.dumps([program, "-ESP", gone, "opencode"])
    plugin.write_text(f"// Written by `mulligan install opencode`\nconst COMMAND = {command}\n")
    for words in (["doctor"], ["install", "proxy", "--all"], ["doctor", "--json"], ["uninstall", "proxy", "--all"]):
        process = subprocess.run(
            [sys.executable, "-I", "-m", "mulligan", *words],
            cwd=repository.folder, env={**os.environ, **repository.variables}, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        output = process.stdout + process.stderr
        assert "Traceback" not in output
        assert not [letter for letter in output if ord(letter) < 32 and letter not in "\n\t"]
        if words == ["doctor"]:
            assert output.count("which does not exist") == 3
            assert "mulligan uninstall opencode --project" in output
            assert "--server '$(touch owned)'" in output
    assert repository.read_marks() == set()


# An installation in the user site, which isolated mode does not find


@pytest.fixture
def user_python(tmp_path, store):
    """An interpreter without an environment of its own, for which mulligan lies in the user's home."""
    if sys.prefix == sys.base_prefix:
        pytest.skip("without a virtual environment there is no other interpreter than the one that has mulligan")
    python = sys._base_executable
    ask = [python, "-c", "import site; print(site.ENABLE_USER_SITE and site.getusersitepackages() or '')"]
    folder = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    if not folder:
        pytest.skip(f"{python} has no user site")
    Path(folder).mkdir(parents=True)
    packages = {
        str(Path(spec.origin).parents[1]) for name in ("mulligan", "msgspec", "click") if (spec := find_spec(name))
    }
    (Path(folder) / "installed.pth").write_text("".join(f"{package}\n" for package in sorted(packages)))
    return python


def install_as_user(python: str, *words: str) -> None:
    process = subprocess.run(
        [python, "-m", "mulligan", "install", *words], cwd=Path.home(), capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr


def test_proxied_server_of_a_user_installation_runs_nothing_of_a_repository(user_python, store, repository):
    write_server("cursor")
    install_as_user(user_python, "proxy", "--client", "cursor", "--server", "fake")
    entry = read_entry("cursor", "fake")
    assert entry[3:5] == [user_python, str(SCRIPT)]
    call_failing_tool(entry, repository, {**os.environ, **repository.variables})
    repository.check_untouched()
    assert read_failures(store) == ["fake.fail"]


def test_hook_of_a_user_installation_runs_nothing_of_a_repository(user_python, store, repository):
    install_as_user(user_python, "claude-code")
    hooks = json.loads(settings_path(AGENTS["claude-code"].hook_files[0]).read_text())["hooks"]
    command = hooks["SessionEnd"][0]["hooks"][0]["command"]
    assert command.startswith(user_python)
    answer = run_session("claude-code", command, repository, {**os.environ, **repository.variables})
    repository.check_untouched()
    assert "Recent failures" in json.loads(answer)["hookSpecificOutput"]["additionalContext"]
    assert read_failures(store) == ["Bash"]


def test_proxied_server_keeps_the_variables_of_its_user(user_python, store, repository):
    write_server("cursor")
    install_as_user(user_python, "proxy", "--client", "cursor", "--server", "fake")
    environment = {**os.environ, "PYTHONUSERBASE": "/srv/base"}
    with Connection(read_entry("cursor", "fake"), environment, cwd=repository.folder) as connection:
        answer = connection.open().call("env")
        connection.close()
    assert "/srv/base" in json.dumps(answer)


# The repository itself


@pytest.mark.parametrize(
    ("name", "value", "flags"),
    [("MULLIGAN", "", ()), ("PYTHONPATH", ".", ("-P",)), ("PYTHONUSERBASE", "base", ("-EP",))],
)
def test_hostile_repository_runs_what_is_started_carelessly(user_python, repository, name, value, flags):
    """Were that not so, the tests above would prove nothing."""
    subprocess.run(
        [user_python, *flags, "-m", "mulligan", "--version"],
        cwd=repository.folder,
        env={**os.environ, name: value},
        capture_output=True,
        timeout=60,
    )
    assert repository.read_marks()


def test_entry_starts_the_package_that_installed_it():
    assert SCRIPT.is_file()
    assert Path(mulligan.__file__).parent in SCRIPT.parents
