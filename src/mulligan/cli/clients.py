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
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from mulligan.cli.config_edits import Edit, json_edit, read_json, read_text, read_toml
from mulligan.core.failure import SettingsError
from mulligan.settings import config_folder, data_folder


class SettingsFile(NamedTuple):
    """A settings file of a client, as a user has it and as a project has it."""

    user: str
    """Path that starts with one of `find_folders`."""
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
    next_step: str = "Restart open sessions to apply this."
    """One-time instruction for the user after hooks were installed."""


CLIENTS = (
    Client(
        "claude-desktop", "Claude Desktop", SettingsFile("{programs}/Claude/claude_desktop_config.json", None),
    ),
    Client(
        "claude-code", "Claude Code", SettingsFile("{claude_home}/.claude.json", ".mcp.json"),
        hook_file=SettingsFile("{claude}/settings.json", ".claude/settings.local.json"),
        hook_events={"PostToolUseFailure": None, "PostToolBatch": None, "SessionStart": "compact", "SessionEnd": None},
        hooks_help="~/.claude/settings.json, or .claude/settings.local.json of a project",
    ),
    Client("cursor", "Cursor", SettingsFile("{home}/.cursor/mcp.json", ".cursor/mcp.json")),
    Client("vscode", "VS Code", SettingsFile("{programs}/Code/User/mcp.json", ".vscode/mcp.json"), "servers"),
    Client(
        "codex", "Codex", SettingsFile("{codex}/config.toml", ".codex/config.toml"), "mcp_servers", "toml",
        hook_file=SettingsFile("{codex}/hooks.json", ".codex/hooks.json"),
        hook_events={"PostToolUse": None, "SessionStart": "compact", "SessionEnd": None},
        hooks_help="hooks.json in ~/.codex, or in .codex of a project",
        next_step="Codex runs a hook only after you trust it: start codex, type /hooks and trust the hooks of "
        "mulligan.",
    ),
    Client("goose", "Goose", SettingsFile("{home}/.config/goose/config.yaml", None), "extensions", "yaml"),
    Client(
        "gemini", "Gemini CLI",
        hook_file=SettingsFile("{home}/.gemini/settings.json", ".gemini/settings.json"),
        hook_events={"AfterTool": None, "BeforeAgent": None, "PreCompress": None, "SessionEnd": None},
        timeout_units_per_second=1000,
        hooks_help="settings.json in ~/.gemini, or in .gemini of a project",
    ),
)  # fmt: skip
MCP_CLIENTS = {client.name: client for client in CLIENTS if client.server_file}
AGENTS = {client.name: client for client in CLIENTS if client.hook_file}
"""Clients with hooks."""


def find_folders() -> dict[str, Path]:
    """Return the folders of settings files, by their name in `SettingsFile.user`."""
    home = Path.home()
    claude, codex = os.environ.get("CLAUDE_CONFIG_DIR"), os.environ.get("CODEX_HOME")
    return {
        "home": home,
        "programs": (
            data_folder() if sys.platform == "win32" else config_folder()
        ).parent,  # the folder that contains mulligan's own
        "claude": Path(claude).expanduser() if claude else home / ".claude",
        "claude_home": Path(claude or home),
        "codex": Path(codex).expanduser() if codex else home / ".codex",
    }


def settings_path(client: Client, file: SettingsFile | None, project: bool) -> Path:
    """Return the path of a settings file of this client. For a project, it is the file that is not committed."""
    assert file is not None
    if not project:
        return Path(file.user.format_map(find_folders()))
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
    while words and re.fullmatch(r"-[IEPSs]+", words[0]):
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


class ServerList:
    """The MCP servers that a client's settings file lists. The methods plan edits of one of them."""

    def __init__(self, client: Client, path: Path) -> None:
        self.client = client
        self.path = path
        key = client.servers_key
        if client.file_format == "yaml":
            self.before = read_text(path)
            self._settings: dict[str, Any] = {key: _parse_yaml_servers(self.before or "", key)}
        else:
            self.before, self._settings = read_json(path) if client.file_format == "json" else read_toml(path)
        self.servers = self._settings.get(key, {})
        if not isinstance(self.servers, dict):
            raise SettingsError(f"{path}: `{key}` is not a table. Fix it first; nothing was changed.")

    def read_start(self, server: str) -> StartCommand:
        """Return the command that starts a server."""
        if not self.servers:
            raise SettingsError(
                f"{self.path} lists no MCP servers. Add one first; the proxy can only be installed for an existing "
                "server."
            )
        if server not in self.servers:
            names = ", ".join(map(str, self.servers))
            raise SettingsError(
                f"Unknown server {server!r} for {self.client.display_name}. Servers in {self.path}: {names}."
            )
        where, entry = f"{self.path}: the server {server!r}", self.servers[server]
        if isinstance(entry, re.Match):
            entry = _parse_yaml_entry(where, entry)
        if not isinstance(entry, dict):
            raise SettingsError(f"{where} is not a table. Fix it first; nothing was changed.")
        command, args = entry.get("command"), entry.get("args")
        if not isinstance(command, str) or not command:
            raise SettingsError(f"{where} has no command, and the proxy supports only stdio. Nothing was changed.")
        if args is not None and not (isinstance(args, list) and all(isinstance(argument, str) for argument in args)):
            raise SettingsError(f"{where} has arguments that are not a list of strings. Fix them first.")
        return StartCommand(command, tuple(args or ()))

    def plan_start(self, server: str, start: StartCommand) -> Edit:
        """Plan the edit that changes the start command of a server."""
        entry = self.servers[server]
        if start == self.read_start(server):
            return Edit(self.path, self.before, self.before)
        if isinstance(entry, re.Match):
            return Edit(self.path, self.before, _replace_yaml_entry(entry, start))
        new_entry = {**entry, **start.to_entry()}
        if self.client.file_format == "json" and "args" not in entry and not start.args:
            del new_entry["args"]
        return self._plan_entry(server, new_entry)

    def plan_addition(self) -> Edit:
        """Plan the edit that makes the client start our MCP server. The edit is empty if the client does so already."""
        start = build_start_command("mcp")
        if self.client.file_format == "yaml":
            raise SettingsError(
                f"Cannot edit the settings of {self.client.display_name}. Add a server to {self.path} that runs "
                f"{json.dumps([start.command, *start.args])}."
            )
        entry = self.servers.get(SERVER_NAME)
        if entry is not None and not _is_own_entry(entry):
            raise SettingsError(
                f"{self.path} already has another server named {SERVER_NAME!r}. Rename it first; nothing was changed."
            )
        return self._plan_entry(SERVER_NAME, {**(entry or {}), **start.to_entry()})

    def plan_removal(self) -> Edit:
        """Plan the edit that removes our MCP server from the client. The edit is empty if it is not installed."""
        entry = self.servers.get(SERVER_NAME)
        return self._plan_entry(SERVER_NAME, None if _is_own_entry(entry) else entry)

    def _plan_entry(self, server: str, entry: dict[str, Any] | None) -> Edit:
        """Plan the edit that stores this entry of a server, or removes it if it is None."""
        if entry == self.servers.get(server):
            return Edit(self.path, self.before, self.before)
        servers = {**self.servers, server: entry}
        if entry is None:
            del servers[server]
        expected = {**self._settings, self.client.servers_key: servers}
        if self.client.file_format == "json":
            return json_edit(self.path, self.before, expected)
        import tomllib  # 10 ms, and few commands need it

        if not servers:
            del expected[self.client.servers_key]
        after = _set_toml_table(self.before or "", self.client.servers_key, server, entry)
        try:
            if tomllib.loads(after) == expected:
                return Edit(self.path, self.before, after)
        except tomllib.TOMLDecodeError:
            pass  # raised below
        advice = f" so that it runs {json.dumps([entry['command'], *entry['args']])}" if entry else ""
        raise SettingsError(f"{self.path}: cannot parse the entry {server!r}. Edit it by hand{advice}.")


def _is_own_entry(entry: Any) -> bool:
    args = entry.get("args") if isinstance(entry, dict) else None
    if not isinstance(args, list) or not args or args[-1] != "mcp":
        return False
    start = StartCommand(str(entry.get("command", "")), tuple(map(str, args)))
    return "mulligan" in args or parse_mulligan_arguments(start) is not None


_TOML_KEYS = re.compile(r"^[ \t]*(?:command|args)[ \t]*=[ \t]*(?:\[[^\]]*\])?.*\n", re.MULTILINE)


def _set_toml_table(text: str, servers_key: str, server: str, entry: dict[str, Any] | None) -> str:
    """Return the text with this table of a server. Only the lines of its two keys change: TOML has no writer."""
    text = text if text.endswith("\n") or not text else f"{text}\n"
    name = rf"(?:{re.escape(server)}|\"{re.escape(server)}\"|'{re.escape(server)}')"
    table = re.search(
        rf"^[ \t]*\[\s*{servers_key}\s*\.\s*{name}\s*\].*\n(?P<body>(?:(?![ \t]*\[).*\n)*)", text, re.MULTILINE
    )
    keys = "".join(f"{key} = {json.dumps(entry[key])}\n" for key in ("command", "args")) if entry else ""
    if table is None:
        return f"{text.rstrip()}\n\n[{servers_key}.{server}]\n{keys}".lstrip("\n") if entry else text
    if entry is None:
        parts = text[: table.start()].rstrip() + "\n", text[table.end() :]
        return "\n".join(part for part in parts if part.strip())
    return text[: table.start("body")] + keys + _TOML_KEYS.sub("", table["body"]) + text[table.end() :]


# YAML, by lines: the simple layout that Goose writes

_YAML_ENTRY = re.compile(
    r"^(?P<indent> +)(?P<quote>[\"']?)(?P<name>[^\s\"'#:][^\"':\n]*)(?P=quote):[ \t]*(?:#.*)?\n"
    r"(?P<body>(?:(?P=indent) +.*\n|[ \t]*\n|[ \t]*#.*\n)*)",
    re.MULTILINE,
)
_YAML_KEY = re.compile(
    r"^(?P<indent> +)(?P<name>cmd|args):[ \t]*(?P<value>.*)\n"
    r"(?P<body>(?:(?:[ \t]*#.*\n)*(?P=indent)(?: *- | +[^#\s]).*\n)*)",
    re.MULTILINE,
)


def _parse_yaml_servers(text: str, servers_key: str) -> dict[str, re.Match[str]]:
    """Return the entry of each server by name."""
    text = text if text.endswith("\n") else f"{text}\n"
    table = re.search(rf"^{servers_key}:[ \t]*(?:#.*)?\n(?P<body>(?:[ \t]+.*\n|[ \t]*\n|#.*\n)*)", text, re.MULTILINE)
    entries = _YAML_ENTRY.finditer(text, table.start("body"), table.end("body")) if table else ()
    return {entry["name"]: entry for entry in entries}


def _find_yaml_keys(entry: re.Match[str]) -> dict[str, re.Match[str]]:
    keys = _YAML_KEY.finditer(entry.string, entry.start("body"), entry.end("body"))
    return {key["name"]: key for key in keys}


def _parse_yaml_entry(where: str, entry: re.Match[str]) -> dict[str, Any]:
    """Return command and arguments of a server."""
    keys = _find_yaml_keys(entry)
    parsed: dict[str, Any] = {}
    if command := keys.get("cmd"):
        parsed["command"] = _parse_yaml_scalar(where, f"{command['value']}\n{command['body']}")
    if args := keys.get("args"):
        items = [line.strip() for line in args["body"].splitlines() if line.strip().startswith("- ")]
        parsed["args"] = [_parse_yaml_scalar(where, item[2:]) for item in items]
        if args["value"] not in ("", "[]"):
            try:
                parsed["args"] = json.loads(args["value"])
            except ValueError:
                raise SettingsError(
                    f"{where} has arguments that cannot be parsed. Write each one on its own line after `- `; "
                    "nothing was changed."
                ) from None
    return parsed


def _parse_yaml_scalar(where: str, text: str) -> str:
    """Parse a YAML scalar that is unquoted, or quoted on one line."""
    text = text.strip()
    if text[:1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            pass  # raised below
    elif "\n" not in text and text[:1] == "'" and text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    elif text and not re.search(r"^[&*!|>{}\[\]%@`#']|\n| #|: ", text):
        return text
    raise SettingsError(f"{where} has a value that cannot be parsed: {text[:80]}. Edit it by hand.")


def _replace_yaml_entry(entry: re.Match[str], start: StartCommand) -> str:
    """Return the text with this start command of a server."""
    keys, text = _find_yaml_keys(entry), entry.string
    indent = keys["cmd"]["indent"]
    args = "".join(f"{indent}- {json.dumps(argument, ensure_ascii=False)}\n" for argument in start.args)
    new = {
        "cmd": f"{indent}cmd: {json.dumps(start.command, ensure_ascii=False)}\n",
        "args": f"{indent}args:\n{args}" if args else f"{indent}args: []\n",
    }
    if "args" not in keys:
        new["cmd"] += new["args"]
    for key in sorted(keys.values(), key=lambda key: -key.start()):  # from the end: earlier positions stay valid
        text = text[: key.start()] + new[key["name"]] + text[key.end() :]
    return text
