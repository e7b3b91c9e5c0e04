"""Coding agents and MCP clients: their settings files, and edits of the MCP servers listed in them.

Clients start servers in cloned repositories, so a start command must not import files or read variables that a
repository controls. An edit changes only a server's command and arguments. A file in an unsupported layout is left
unchanged; the error says what to write by hand.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from mulligan.cli.config_edits import Edit, json_edit, read_json, read_text, read_toml
from mulligan.core.failure import SettingsError
from mulligan.settings import config_folder, data_folder

RESTART_SESSIONS = "Restart open sessions to apply this."


class SettingsFile(NamedTuple):
    """A settings file of a client, as a user has it and as a project has it."""

    user: Callable[[], Path]
    project: str | None
    """Path within a project folder. None if the client has no project settings."""


class Client(NamedTuple):
    """Coding agent or MCP client, and what mulligan can install into it."""

    name: str
    display_name: str
    server_file: SettingsFile | None = None
    """The file that lists MCP servers."""
    servers_key: str = "mcpServers"
    file_format: str = "json"
    hook_file: SettingsFile | None = None
    hook_events: Mapping[str, str | None] = {}
    """Hook events, each with an optional matcher."""
    timeout_units_per_second: int = 1
    """Units of the timeout of a hook: 1 for seconds, 1000 for milliseconds."""
    hooks_help: str = ""
    next_step: str = RESTART_SESSIONS
    """One-time instruction for the user after hooks were installed."""


def agent_folder(variable: str, default_name: str) -> Path:
    """Return the settings folder of a coding agent."""
    configured_folder = os.environ.get(variable)
    return Path(configured_folder).expanduser() if configured_folder else Path.home() / default_name


def _program_path(*parts: str) -> Path:
    """Return a path in another program's configuration folder, which lies next to ours."""
    base_folder = data_folder() if sys.platform == "win32" else config_folder()
    return base_folder.parent.joinpath(*parts)


CLIENTS = (
    Client(
        "claude-desktop", "Claude Desktop",
        SettingsFile(lambda: _program_path("Claude", "claude_desktop_config.json"), None),
    ),
    Client(
        "claude-code", "Claude Code",
        SettingsFile(
            lambda: Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home()) / ".claude.json", ".mcp.json"
        ),
        hook_file=SettingsFile(
            lambda: agent_folder("CLAUDE_CONFIG_DIR", ".claude") / "settings.json", ".claude/settings.local.json"
        ),
        hook_events={"PostToolUseFailure": None, "PostToolBatch": None, "SessionStart": "compact", "SessionEnd": None},
        hooks_help="~/.claude/settings.json, or .claude/settings.local.json of a project",
    ),
    Client("cursor", "Cursor", SettingsFile(lambda: Path.home() / ".cursor" / "mcp.json", ".cursor/mcp.json")),
    Client(
        "vscode", "VS Code",
        SettingsFile(lambda: _program_path("Code", "User", "mcp.json"), ".vscode/mcp.json"),
        "servers",
    ),
    Client(
        "codex", "Codex",
        SettingsFile(lambda: agent_folder("CODEX_HOME", ".codex") / "config.toml", ".codex/config.toml"),
        "mcp_servers", "toml",
        hook_file=SettingsFile(lambda: agent_folder("CODEX_HOME", ".codex") / "hooks.json", ".codex/hooks.json"),
        hook_events={"PostToolUse": None, "SessionStart": "compact", "SessionEnd": None},
        hooks_help="hooks.json in ~/.codex, or in .codex of a project",
        next_step="Codex runs a hook only after you trust it: start codex, type /hooks and trust the hooks of "
        "mulligan.",
    ),
    Client(
        "goose", "Goose", SettingsFile(lambda: Path.home() / ".config" / "goose" / "config.yaml", None),
        "extensions", "yaml",
    ),
    Client(
        "gemini", "Gemini CLI",
        hook_file=SettingsFile(lambda: Path.home() / ".gemini" / "settings.json", ".gemini/settings.json"),
        hook_events={"AfterTool": None, "BeforeAgent": None, "PreCompress": None, "SessionEnd": None},
        timeout_units_per_second=1000,
        hooks_help="settings.json in ~/.gemini, or in .gemini of a project",
    ),
)  # fmt: skip
MCP_CLIENTS = {client.name: client for client in CLIENTS if client.server_file}
AGENTS = {client.name: client for client in CLIENTS if client.hook_file}
"""Clients with hooks."""


def settings_path(client: Client, file: SettingsFile | None, project: bool) -> Path:
    """Return the path of a settings file of this client. For a project, it is the file that is not committed."""
    assert file is not None
    if not project:
        return file.user()
    if file.project is None:
        raise SettingsError(f"{client.display_name} has no project settings. Remove --project.")
    return Path.cwd() / file.project


# Start commands

PACKAGES = ("mulligan", "msgspec", "jsonschema_rs", "click", "mcp", "psycopg")
"""All packages that a started command may import: mulligan and its dependencies."""
SCRIPT = Path(__file__).with_name("start.py")
PROBE_TIMEOUT_SECONDS = 30
"""Time limit for the interpreter that checks isolated mode."""
_ORIGINS = """
import sys
from importlib.util import find_spec
for name in sys.argv[1:]:
    spec = find_spec(name)
    print(spec.origin or "" if spec else "")
"""
_FLAGS = re.compile(r"-[IEPSs]+")
SCRIPT_PATTERN = re.compile(r"(?:^|[/\\])mulligan[/\\](?:serve[/\\])?cli[/\\]start\.py$")


class StartCommand(NamedTuple):
    """Command that starts a server."""

    command: str
    args: tuple[str, ...]

    def to_entry(self) -> dict[str, Any]:
        return {"command": self.command, "args": list(self.args)}


def build_start_command(*arguments: str) -> StartCommand:
    """Build the command that runs `mulligan` with these arguments and imports nothing that a repository controls."""
    # `-I` ignores the working directory, PYTHON* variables and the user site, where `pip install --user` puts
    # packages. For such an installation `-EP` is not enough: `site` reads PYTHONUSERBASE even under `-E`, and
    # executes files that it finds there. So `-S` delays `site` until `start.py` has removed that variable.
    interpreter_args = ("-I", "-m", "mulligan") if can_start_isolated() else ("-ESP", str(SCRIPT))
    return StartCommand(sys.executable, (*interpreter_args, *arguments))


@functools.cache
def can_start_isolated() -> bool:
    """Return whether this interpreter's isolated mode finds every package at the same path as this process."""
    specs = [find_spec(name) for name in PACKAGES]
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-c", _ORIGINS, *PACKAGES],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_TIMEOUT_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.stdout.splitlines() == [(spec.origin or "") if spec else "" for spec in specs]


def parse_mulligan_arguments(start: StartCommand) -> tuple[str, ...] | None:
    """Return the arguments after `mulligan`, for all command forms that `install` has written, else None."""
    if PurePath(start.command).stem == "mulligan":
        return start.args
    words = start.args
    while words and _FLAGS.fullmatch(words[0]):
        words = words[1:]
    if words[:2] == ("-m", "mulligan"):
        return words[2:]
    return words[1:] if words and SCRIPT_PATTERN.search(words[0]) else None


def wrap_with_proxy(start: StartCommand, server: str, options: Sequence[str]) -> StartCommand:
    """Return the start command with the proxy in front. An existing proxy is replaced."""
    inner = unwrap_proxy(start) or start
    return build_start_command("proxy", "--name", server, *options, "--", inner.command, *inner.args)


def unwrap_proxy(start: StartCommand) -> StartCommand | None:
    """Return the start command without the proxy, or None if there is no proxy."""
    words = parse_mulligan_arguments(start)
    if words is None or words[:1] != ("proxy",) or "--" not in words:
        return None
    inner = words[words.index("--") + 1 :]
    return StartCommand(inner[0], inner[1:]) if inner else None


# Edits of the listed servers

SERVER_NAME = "mulligan"
"""Name of our MCP server in a client's settings."""


def read_servers(client: Client, path: Path) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """Return a settings file as text and as an object, and the servers that it lists, by name."""
    if client.file_format == "yaml":
        before = read_text(path)
        lines = (before or "").splitlines(keepends=True)
        settings: dict[str, Any] = {client.servers_key: _list_yaml_servers(lines, client)}
    else:
        before, settings = read_json(path) if client.file_format == "json" else read_toml(path)
    servers = settings.get(client.servers_key, {})
    if not isinstance(servers, dict):
        raise SettingsError(f"{path}: `{client.servers_key}` is not a table. Fix it first; nothing was changed.")
    return before, settings, servers


def plan_edit(client: Client, path: Path, server: str, change: Callable[[StartCommand], StartCommand]) -> Edit:
    """Plan the edit that changes the start command of a server."""
    before, settings, servers = read_servers(client, path)
    if not servers:
        raise SettingsError(
            f"{path} lists no MCP servers. Add one first; the proxy can only be installed for an existing server."
        )
    if server not in servers:
        names = ", ".join(map(str, servers))
        raise SettingsError(f"Unknown server {server!r} for {client.display_name}. Servers in {path}: {names}.")
    entry = servers[server]
    if client.file_format == "yaml":
        lines = (before or "").splitlines(keepends=True)
        entry = _parse_yaml_server(path, server, lines, entry)
    if not isinstance(entry, dict):
        raise SettingsError(f"{path}: the entry {server!r} is not a table. Fix it first; nothing was changed.")
    start = _read_start(path, server, entry)
    new_start = change(start)
    if new_start == start:
        return Edit(path, before, before)
    if client.file_format == "yaml":
        return Edit(path, before, _replace_yaml_server(lines, servers[server], new_start))
    new_entry = {**entry, **new_start.to_entry()}
    if client.file_format == "json" and "args" not in entry and not new_start.args:
        del new_entry["args"]
    return _plan_entry(client, path, before, settings, server, new_entry)


def plan_addition(client: Client, path: Path) -> Edit:
    """Plan the edit that makes a client start our MCP server. The edit is empty if the client does so already."""
    start = build_start_command("mcp")
    if client.file_format == "yaml":
        command_text = json.dumps([start.command, *start.args])
        raise SettingsError(
            f"Cannot edit the settings of {client.display_name}. Add a server to {path} that runs {command_text}."
        )
    before, settings, servers = read_servers(client, path)
    entry = servers.get(SERVER_NAME)
    if entry is not None and not _is_own_entry(entry):
        raise SettingsError(
            f"{path} already has another server named {SERVER_NAME!r}. Rename it first; nothing was changed."
        )
    new_entry = {**(entry or {}), **start.to_entry()}
    if new_entry == entry:
        return Edit(path, before, before)
    return _plan_entry(client, path, before, settings, SERVER_NAME, new_entry)


def plan_removal(client: Client, path: Path) -> Edit:
    """Plan the edit that removes our MCP server from a client. The edit is empty if it is not installed."""
    before, settings, servers = read_servers(client, path)
    if not _is_own_entry(servers.get(SERVER_NAME)):
        return Edit(path, before, before)
    return _plan_entry(client, path, before, settings, SERVER_NAME, None)


def _is_own_entry(entry: Any) -> bool:
    args = entry.get("args") if isinstance(entry, dict) else None
    if not isinstance(args, list) or not args or args[-1] != "mcp":
        return False
    start = StartCommand(str(entry.get("command", "")), tuple(map(str, args)))
    return "mulligan" in args or parse_mulligan_arguments(start) is not None


def _read_start(path: Path, server: str, entry: dict[str, Any]) -> StartCommand:
    command, args = entry.get("command"), entry.get("args")
    if not isinstance(command, str) or not command:
        raise SettingsError(
            f"{path}: the server {server!r} has no command, and the proxy supports only stdio. Nothing was changed."
        )
    if args is None:
        args = []
    if not isinstance(args, list) or not all(isinstance(argument, str) for argument in args):
        raise SettingsError(
            f"{path}: the arguments of {server!r} are not a list of strings. Fix them first; nothing was changed."
        )
    return StartCommand(command, tuple(args))


def _plan_entry(
    client: Client, path: Path, before: str | None, settings: dict[str, Any], server: str, entry: dict[str, Any] | None
) -> Edit:
    """Plan the edit that stores this entry of a server, or removes it if it is None."""
    servers = {**settings.get(client.servers_key, {}), server: entry}
    if entry is None:
        del servers[server]
    expected = {**settings, client.servers_key: servers}
    if client.file_format == "json":
        return json_edit(path, before, expected)
    import tomllib  # 10 ms, and few commands need it

    if not servers:
        del expected[client.servers_key]
    after = _set_toml_server(before or "", client, server, entry)
    try:
        if tomllib.loads(after) == expected:
            return Edit(path, before, after)
    except tomllib.TOMLDecodeError:
        pass  # raised below
    advice = f" so that it runs {json.dumps([entry['command'], *entry['args']])}" if entry else ""
    raise SettingsError(f"{path}: cannot parse the entry {server!r}. Edit it by hand{advice}.")


def _set_toml_server(text: str, client: Client, server: str, entry: dict[str, Any] | None) -> str:
    """Return the text with this table of a server. Only the lines of its two keys change: TOML has no writer."""
    lines = text.splitlines(keepends=True)
    name = rf"(?:{re.escape(server)}|\"{re.escape(server)}\"|'{re.escape(server)}')"
    header = re.compile(rf"\s*\[\s*{client.servers_key}\s*\.\s*{name}\s*\]\s*(?:#.*)?$")
    begin = next((at for at, line in enumerate(lines) if header.match(line.rstrip("\n"))), None)
    keys = "".join(f"{key} = {json.dumps(entry[key])}\n" for key in ("command", "args")) if entry else ""
    if begin is None:
        return f"{text.rstrip()}\n\n[{client.servers_key}.{server}]\n{keys}".lstrip("\n") if entry else text
    end = next((at for at in range(begin + 1, len(lines)) if lines[at].lstrip().startswith("[")), len(lines))
    if entry is None:
        parts = "".join(lines[:begin]).rstrip() + "\n", "".join(lines[end:])
        return "\n".join(part for part in parts if part.strip())
    body = _remove_toml_keys(lines[begin + 1 : end], ("command", "args"))
    return "".join([*lines[: begin + 1], keys, *body, *lines[end:]])


def _remove_toml_keys(lines: list[str], keys: Sequence[str]) -> list[str]:
    """Return the lines of one table without the assignments to these keys. An assignment may span lines."""
    import tomllib

    remaining_lines: list[str] = []
    pending_lines: list[str] = []
    for line in lines:
        if not pending_lines and not re.match(rf"\s*(?:{'|'.join(keys)})\s*=", line):
            remaining_lines.append(line)
            continue
        pending_lines.append(line)
        try:
            tomllib.loads("".join(pending_lines))
        except tomllib.TOMLDecodeError:
            continue
        pending_lines = []
    return remaining_lines + pending_lines


# YAML, by lines: the simple layout that Goose writes

_LineSpan = tuple[int, int]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _list_yaml_keys(lines: list[str], span: _LineSpan) -> dict[str, _LineSpan]:
    """Return the keys of a mapping on these lines, each with its lines. List items may be as far left as their key."""
    numbers = [at for at in range(*span) if lines[at].strip() and not lines[at].lstrip().startswith("#")]
    level = min((_indent(lines[at]) for at in numbers), default=0)
    keys: dict[str, _LineSpan] = {}
    for at in numbers:
        if _indent(lines[at]) == level and not lines[at].lstrip().startswith("- "):
            key = lines[at].partition(":")[0].strip().strip("\"'")
            keys[key] = at, at + 1
        elif keys:
            keys[key] = keys[key][0], at + 1
    return keys


def _list_yaml_servers(lines: list[str], client: Client) -> dict[str, _LineSpan]:
    begin, end = _list_yaml_keys(lines, (0, len(lines))).get(client.servers_key, (0, 0))
    return _list_yaml_keys(lines, (begin + 1, end)) if end else {}


def _parse_yaml_server(path: Path, server: str, lines: list[str], span: _LineSpan) -> dict[str, Any]:
    """Return command and arguments of a server."""
    entry: dict[str, Any] = {}
    for key, (begin, end) in _list_yaml_keys(lines, (span[0] + 1, span[1])).items():
        value = "".join(lines[begin:end] if key == "cmd" else lines[begin : begin + 1]).partition(":")[2].strip()
        if key == "cmd":
            entry["command"] = _parse_yaml_scalar(path, server, value)
        elif key == "args" and value in ("", "[]"):
            items = [line.strip() for line in lines[begin + 1 : end] if line.strip().startswith("- ")]
            entry["args"] = [_parse_yaml_scalar(path, server, item[2:]) for item in items]
        elif key == "args":
            try:
                entry["args"] = json.loads(value)
            except ValueError:
                raise SettingsError(
                    f"{path}: cannot parse the arguments of {server!r}. Write each one on its own line after "
                    "`- `; nothing was changed."
                ) from None
    return entry


def _parse_yaml_scalar(path: Path, server: str, text: str) -> str:
    """Parse a YAML scalar that is unquoted, or quoted on one line."""
    text = text.strip()
    if text[:1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            pass  # raised below
    elif "\n" in text:
        pass
    elif text[:1] == "'" and text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    elif text and text[0] not in "&*!|>{}[]%@`#" and " #" not in text and ": " not in text:
        return text
    raise SettingsError(
        f"{path}: cannot parse a value of {server!r}: {text[:80]}. Edit it by hand; nothing was changed."
    )


def _replace_yaml_server(lines: list[str], span: _LineSpan, start: StartCommand) -> str:
    """Return the text with this start command of a server."""
    keys = _list_yaml_keys(lines, (span[0] + 1, span[1]))
    space = " " * _indent(lines[keys["cmd"][0]])
    args = [f"{space}- {json.dumps(argument, ensure_ascii=False)}\n" for argument in start.args]
    new = {
        "cmd": [f"{space}cmd: {json.dumps(start.command, ensure_ascii=False)}\n"],
        "args": [f"{space}args:\n", *args] if args else [f"{space}args: []\n"],
    }
    if "args" not in keys:
        new["cmd"] += new.pop("args")
    for key in sorted(new, key=lambda key: -keys[key][0]):  # from the end, so that earlier line numbers stay valid
        lines[slice(*keys[key])] = new[key]
    return "".join(lines)
