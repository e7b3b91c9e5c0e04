"""Edits that add `mulligan mcp` to the servers of an MCP client, and remove it. Files as in `clients.py`."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from mulligan.cli.clients import Client, plan_edit
from mulligan.cli.config_edits import Edit, json_edit, read_json, read_toml
from mulligan.cli.entries import StartCommand, build_start_command, parse_mulligan_arguments
from mulligan.core.failure import SettingsError

SERVER_NAME = "mulligan"


def plan_addition(client: Client, path: Path) -> Edit:
    """Plan the edit that makes a client start our MCP server. The edit is empty if the client does so already."""
    before, settings, servers = _read(client, path)
    existing_entry = servers.get(SERVER_NAME)
    if existing_entry is not None and not is_mulligan_entry(existing_entry):
        raise SettingsError(
            f"{path} already has another server named {SERVER_NAME!r}. Rename it first; nothing was changed."
        )
    start = build_start_command("mcp")
    entry = {"command": start.command, "args": list(start.args)}
    if client.file_format == "json":
        return json_edit(
            path,
            before,
            {**settings, client.servers_key: {**servers, SERVER_NAME: {**(existing_entry or {}), **entry}}},
        )
    if existing_entry is not None:
        return plan_edit(client, path, SERVER_NAME, lambda _: start)  # keeps the other keys of the user's entry
    table = (
        f"[{client.servers_key}.{SERVER_NAME}]\n"
        f"command = {json.dumps(start.command)}\nargs = {json.dumps(entry['args'])}\n"
    )
    after = f"{before.rstrip()}\n\n{table}" if before and before.strip() else table
    return _verify_edit(path, before, after, {**settings, client.servers_key: {**servers, SERVER_NAME: entry}})


def plan_removal(client: Client, path: Path) -> Edit:
    """Plan the edit that removes our MCP server from a client. The edit is empty if it is not installed."""
    before, settings, servers = _read(client, path)
    if not is_mulligan_entry(servers.get(SERVER_NAME)):
        return Edit(path, before, before)
    remaining_servers = {name: entry for name, entry in servers.items() if name != SERVER_NAME}
    if client.file_format == "json":
        return json_edit(path, before, {**settings, client.servers_key: remaining_servers})
    expected_settings = (
        {**settings, client.servers_key: remaining_servers}
        if remaining_servers
        else {k: v for k, v in settings.items() if k != client.servers_key}
    )
    return _verify_edit(path, before, _remove_table(client, before or ""), expected_settings)


def is_mulligan_entry(entry: Any) -> bool:
    args = entry.get("args") if isinstance(entry, dict) else None
    if not isinstance(args, list) or not args or args[-1] != "mcp":
        return False
    start = StartCommand(str(entry.get("command", "")), tuple(map(str, args)))
    return "mulligan" in args or parse_mulligan_arguments(start) is not None


def _read(client: Client, path: Path) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    if client.file_format == "yaml":
        start = build_start_command("mcp")
        command_text = json.dumps([start.command, *start.args])
        raise SettingsError(
            f"Cannot edit the settings of {client.display_name}. Add a server to {path} that runs {command_text}."
        )
    before, settings = read_json(path) if client.file_format == "json" else read_toml(path)
    servers = settings.get(client.servers_key, {})
    if not isinstance(servers, dict):
        raise SettingsError(f"{path}: `{client.servers_key}` is not a table. Fix it first; nothing was changed.")
    return before, settings, servers


def _remove_table(client: Client, text: str) -> str:
    """Return the TOML text without our server table."""
    lines = text.splitlines(keepends=True)
    header = re.compile(rf"\s*\[\s*{client.servers_key}\s*\.\s*{SERVER_NAME}\s*\]\s*(?:#.*)?$")
    begin = next((at for at, line in enumerate(lines) if header.match(line.rstrip("\n"))), None)
    if begin is None:
        return text
    end = next((at for at in range(begin + 1, len(lines)) if lines[at].lstrip().startswith("[")), len(lines))
    remaining_parts = "".join(lines[:begin]).rstrip() + "\n", "".join(lines[end:])
    return "\n".join(part for part in remaining_parts if part.strip())


def _verify_edit(path: Path, before: str | None, after: str, expected_settings: dict[str, Any]) -> Edit:
    """Return the edit if the new text parses to the expected settings. It was edited by lines: TOML has no writer."""
    try:
        if tomllib.loads(after) == expected_settings:
            return Edit(path, before, after)
    except tomllib.TOMLDecodeError:
        pass  # raised below
    raise SettingsError(f"Cannot parse the layout of {path}. Edit [mcp_servers.{SERVER_NAME}] by hand.")
