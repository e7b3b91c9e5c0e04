"""Configuration files of MCP clients: put the proxy in front of a server's command, or remove it.

An edit changes only the server's command and arguments. A file in an unsupported layout is left unchanged; the error
says what to write by hand.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mulligan.cli.config_edits import Edit, json_edit, read_json, read_text, read_toml
from mulligan.cli.entries import StartCommand, build_start_command, parse_mulligan_arguments
from mulligan.core.failure import SettingsError
from mulligan.settings import config_folder, data_folder


class Client(NamedTuple):
    """MCP client and the configuration files it reads."""

    name: str
    display_name: str
    user: Callable[[], Path]
    project: str | None
    """Path within a project folder. None if the client has no project settings."""
    servers_key: str
    """Key of the table that lists the servers."""
    file_format: str = "json"


def _program_config_path(*parts: str) -> Path:
    """Return a path in another program's configuration folder, which lies next to ours."""
    base_folder = data_folder() if sys.platform == "win32" else config_folder()
    return base_folder.parent.joinpath(*parts)


CLIENTS = {
    client.name: client
    for client in (
        Client(
            "claude-desktop",
            "Claude Desktop",
            lambda: _program_config_path("Claude", "claude_desktop_config.json"),
            None,
            "mcpServers",
        ),
        Client(
            "claude-code",
            "Claude Code",
            lambda: Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home()) / ".claude.json",
            ".mcp.json",
            "mcpServers",
        ),
        Client("cursor", "Cursor", lambda: Path.home() / ".cursor" / "mcp.json", ".cursor/mcp.json", "mcpServers"),
        Client(
            "vscode", "VS Code", lambda: _program_config_path("Code", "User", "mcp.json"), ".vscode/mcp.json", "servers"
        ),
        Client(
            "codex",
            "Codex",
            lambda: Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml",
            ".codex/config.toml",
            "mcp_servers",
            "toml",
        ),
        Client("goose", "Goose", lambda: Path.home() / ".config" / "goose" / "config.yaml", None, "extensions", "yaml"),
    )
}


def config_path(client: Client, project: bool) -> Path:
    if not project:
        return client.user()
    if client.project is None:
        raise SettingsError(f"{client.display_name} has no project settings. Remove --project.")
    return Path.cwd() / client.project


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


def plan_edit(client: Client, path: Path, server: str, change: Callable[[StartCommand], StartCommand]) -> Edit:
    """Plan the edit that changes the start command of a server."""
    if client.file_format == "json":
        return _edit_json(client, path, server, change)
    return (
        _edit_toml(client, path, server, change)
        if client.file_format == "toml"
        else _edit_yaml(client, path, server, change)
    )


def _find_server(client: Client, path: Path, servers: Any, server: str) -> dict[str, Any]:
    """Return the client's entry for a server. The error for an unknown name lists the known servers."""
    if not isinstance(servers, dict) or not servers:
        raise SettingsError(
            f"{path} lists no MCP servers. Add one first; the proxy can only be installed for an existing server."
        )
    if server not in servers:
        server_names = ", ".join(map(str, servers))
        raise SettingsError(f"Unknown server {server!r} for {client.display_name}. Servers in {path}: {server_names}.")
    entry = servers[server]
    if not isinstance(entry, dict):
        raise SettingsError(f"{path}: the entry {server!r} is not a table. Fix it first; nothing was changed.")
    return entry


def _read_start(path: Path, server: str, command: Any, args: Any) -> StartCommand:
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


def _edit_json(client: Client, path: Path, server: str, change: Callable[[StartCommand], StartCommand]) -> Edit:
    before, settings = read_json(path)
    entry = _find_server(client, path, settings.get(client.servers_key), server)
    start = _read_start(path, server, entry.get("command"), entry.get("args"))
    new_start = change(start)
    if new_start == start:
        return Edit(path, before, before)
    new = {**entry, "command": new_start.command, "args": list(new_start.args)}
    if "args" not in entry and not new_start.args:
        del new["args"]
    return json_edit(path, before, {**settings, client.servers_key: {**settings[client.servers_key], server: new}})


def _edit_toml(client: Client, path: Path, server: str, change: Callable[[StartCommand], StartCommand]) -> Edit:
    """Replace only the lines of the two keys: no TOML writer preserves the formatting of the rest."""
    import tomllib  # 10 ms, and few commands need it

    before, settings = read_toml(path)
    entry = _find_server(client, path, settings.get(client.servers_key), server)
    start = _read_start(path, server, entry.get("command"), entry.get("args"))
    new_start = change(start)
    if new_start == start or before is None:
        return Edit(path, before, before)
    lines = before.splitlines(keepends=True)
    name = rf"(?:{re.escape(server)}|\"{re.escape(server)}\"|'{re.escape(server)}')"
    header = re.compile(rf"\s*\[\s*{client.servers_key}\s*\.\s*{name}\s*\]\s*(?:#.*)?$")
    begin = next((at for at, line in enumerate(lines) if header.match(line.rstrip("\n"))), None)
    if begin is not None:
        end = next((at for at in range(begin + 1, len(lines)) if lines[at].lstrip().startswith("[")), len(lines))
        body = _remove_toml_keys(lines[begin + 1 : end], ("command", "args"))
        new = [f"command = {json.dumps(new_start.command)}\n", f"args = {json.dumps(list(new_start.args))}\n"]
        after = "".join([*lines[: begin + 1], *new, *body, *lines[end:]])
        expected_entry = {**entry, "command": new_start.command, "args": list(new_start.args)}
        try:
            parsed = tomllib.loads(after)
            expected = {**settings, client.servers_key: {**settings[client.servers_key], server: expected_entry}}
            if parsed == expected:
                return Edit(path, before, after)
        except tomllib.TOMLDecodeError:
            pass  # raised below
    raise _manual_edit_error(path, server, new_start)


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


def _edit_yaml(client: Client, path: Path, server: str, change: Callable[[StartCommand], StartCommand]) -> Edit:
    """Plan the edit line by line, for the simple YAML that Goose writes."""
    before = read_text(path)
    lines = (before or "").splitlines(keepends=True)
    top = _find_yaml_block(lines, 0, len(lines), client.servers_key)
    if top is None:
        raise SettingsError(
            f"{path} lists no MCP servers. Add one first; the proxy can only be installed for an existing server."
        )
    server_block = _find_yaml_block(lines, *top, server)
    if server_block is None:
        indent = min((_indent(line) for line in lines[slice(*top)] if line.strip()), default=0)
        names = [line.split(":")[0].strip() for line in lines[slice(*top)] if line.strip() and _indent(line) == indent]
        raise SettingsError(
            f"Unknown server {server!r} for {client.display_name}. Servers in {path}: {', '.join(names)}."
        )
    facts, line_spans = _parse_yaml_server(path, server, lines, *server_block)
    start = _read_start(path, server, facts.get("cmd"), facts.get("args", []))
    new_start = change(start)
    if new_start == start:
        return Edit(path, before, before)
    space = " " * min(_indent(line) for line in lines[slice(*server_block)] if line.strip())
    args = [f"{space}- {json.dumps(argument, ensure_ascii=False)}\n" for argument in new_start.args]
    new = {
        "cmd": [f"{space}cmd: {json.dumps(new_start.command, ensure_ascii=False)}\n"],
        "args": [f"{space}args:\n", *args],
    }
    if not args:
        new["args"] = [f"{space}args: []\n"]
    if "args" not in line_spans:
        new["cmd"] += new.pop("args")
    for key in sorted(
        new, key=lambda yaml_key: -line_spans[yaml_key][0]
    ):  # from the end, so that earlier line numbers stay valid
        lines[slice(*line_spans[key])] = new[key]
    return Edit(path, before, "".join(lines))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _find_yaml_block(lines: list[str], begin: int, end: int, key: str) -> tuple[int, int] | None:
    """Return the first and last line inside a key, within a range of lines. None if the key is absent."""
    level = min(
        (_indent(line) for line in lines[begin:end] if line.strip() and not line.lstrip().startswith("#")), default=0
    )
    for at in range(begin, end):
        if _indent(lines[at]) == level and lines[at].strip() in (f"{key}:", f'"{key}":', f"'{key}':"):
            last = at + 1
            while last < end and (not lines[last].strip() or _indent(lines[last]) > level):
                last += 1
            return at + 1, last
    return None


def _parse_yaml_server(
    path: Path, server: str, lines: list[str], begin: int, end: int
) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """Return command and arguments of a server, and the line span of each."""
    facts: dict[str, Any] = {}
    line_spans: dict[str, tuple[int, int]] = {}
    level = min(_indent(line) for line in lines[begin:end] if line.strip())
    at = begin
    while at < end:
        key, colon, value = lines[at].strip().partition(":")
        if not colon or _indent(lines[at]) != level or key not in ("cmd", "args"):
            at += 1
            continue
        first, at = at, at + 1
        if key == "cmd":
            facts[key] = _parse_yaml_scalar(path, server, value)
        elif value.strip() in ("", "[]"):
            facts[key] = []
            while at < end and lines[at].strip().startswith("- ") and _indent(lines[at]) >= level:
                facts[key].append(_parse_yaml_scalar(path, server, lines[at].strip()[2:]))
                at += 1
        else:
            try:
                facts[key] = json.loads(value)
            except ValueError:
                raise SettingsError(
                    f"{path}: cannot parse the arguments of {server!r}. Write each one on its own line after "
                    "`- `; nothing was changed."
                ) from None
        line_spans[key] = first, at
    return facts, line_spans


def _parse_yaml_scalar(path: Path, server: str, text: str) -> str:
    """Parse a YAML scalar that is unquoted, or quoted on one line."""
    text = text.strip()
    if text[:1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            pass  # raised below
    elif text[:1] == "'" and text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    elif text and text[0] not in "&*!|>{}[]%@`#" and " #" not in text and ": " not in text:
        return text
    raise SettingsError(
        f"{path}: cannot parse a value of {server!r}: {text[:80]}. Edit it by hand; nothing was changed."
    )


def _manual_edit_error(path: Path, server: str, start: StartCommand) -> SettingsError:
    command_text = json.dumps([start.command, *start.args])
    return SettingsError(f"{path}: cannot parse the entry {server!r}. Edit it by hand so that it runs {command_text}.")


def read_servers(client: Client, path: Path) -> Mapping[str, Any]:
    """Return the servers that a client lists, by name."""
    if client.file_format == "yaml":
        lines = (read_text(path) or "").splitlines()
        block = _find_yaml_block(lines, 0, len(lines), client.servers_key)
        if block is None:
            return {}
        level = min((_indent(line) for line in lines[slice(*block)] if line.strip()), default=0)
        names = [line for line in lines[slice(*block)] if line.strip() and _indent(line) == level]
        return {line.strip().rstrip(":"): None for line in names}
    _, settings = read_json(path) if client.file_format == "json" else read_toml(path)
    servers = settings.get(client.servers_key)
    return servers if isinstance(servers, dict) else {}
