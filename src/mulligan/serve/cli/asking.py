"""Edits that add `mulligan mcp` to the servers of an MCP client, and remove it. Files as in `clients.py`."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from mulligan.failure import SettingsError
from mulligan.serve.cli.clients import Client, edit
from mulligan.serve.cli.edits import Edit, json_edit, read_json, read_toml
from mulligan.serve.cli.entries import Start, build_start, read_words

NAME = "mulligan"


def added(client: Client, path: Path) -> Edit:
    """Plan the edit that makes a client start our MCP server. The edit is empty if the client does so already."""
    before, settings, servers = _read(client, path)
    known = servers.get(NAME)
    if known is not None and not is_ours(known):
        raise SettingsError(f"{path}: there is another server called {NAME!r}. Rename it first; nothing was done.")
    start = build_start("mcp")
    entry = {"command": start.command, "args": list(start.args)}
    if client.form == "json":
        return json_edit(path, before, {**settings, client.under: {**servers, NAME: {**(known or {}), **entry}}})
    if known is not None:
        return edit(client, path, NAME, lambda _: start)  # keeps the other keys of the user's entry
    table = f"[{client.under}.{NAME}]\ncommand = {json.dumps(start.command)}\nargs = {json.dumps(entry['args'])}\n"
    after = f"{before.rstrip()}\n\n{table}" if before and before.strip() else table
    return _checked(path, before, after, {**settings, client.under: {**servers, NAME: entry}})


def removed(client: Client, path: Path) -> Edit:
    """Plan the edit that removes our MCP server from a client. The edit is empty if it is not installed."""
    before, settings, servers = _read(client, path)
    if not is_ours(servers.get(NAME)):
        return Edit(path, before, before)
    left = {name: about for name, about in servers.items() if name != NAME}
    if client.form == "json":
        return json_edit(path, before, {**settings, client.under: left})
    wanted = {**settings, client.under: left} if left else {k: v for k, v in settings.items() if k != client.under}
    return _checked(path, before, _without(client, before or ""), wanted)


def is_ours(about: Any) -> bool:
    args = about.get("args") if isinstance(about, dict) else None
    if not isinstance(args, list) or not args or args[-1] != "mcp":
        return False
    start = Start(str(about.get("command", "")), tuple(map(str, args)))
    return "mulligan" in args or read_words(start) is not None


def _read(client: Client, path: Path) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    if client.form == "yaml":
        start = build_start("mcp")
        said = json.dumps([start.command, *start.args])
        raise SettingsError(f"{client.spoken} is told by hand: add a server to {path} that runs {said}.")
    before, settings = read_json(path) if client.form == "json" else read_toml(path)
    servers = settings.get(client.under, {})
    if not isinstance(servers, dict):
        raise SettingsError(f"{path}: `{client.under}` is not laid out as a table. Mend it first; nothing was done.")
    return before, settings, servers


def _without(client: Client, text: str) -> str:
    """Return the TOML text without our server table."""
    lines = text.splitlines(keepends=True)
    header = re.compile(rf"\s*\[\s*{client.under}\s*\.\s*{NAME}\s*\]\s*(?:#.*)?$")
    begin = next((at for at, line in enumerate(lines) if header.match(line.rstrip("\n"))), None)
    if begin is None:
        return text
    end = next((at for at in range(begin + 1, len(lines)) if lines[at].lstrip().startswith("[")), len(lines))
    left = "".join(lines[:begin]).rstrip() + "\n", "".join(lines[end:])
    return "\n".join(part for part in left if part.strip())


def _checked(path: Path, before: str | None, after: str, wanted: dict[str, Any]) -> Edit:
    """Return the edit if the new text parses to the expected settings. It was edited by lines: TOML has no writer."""
    try:
        if tomllib.loads(after) == wanted:
            return Edit(path, before, after)
    except tomllib.TOMLDecodeError:
        pass  # raised below
    raise SettingsError(f"{path} is written in a way that is not understood. Edit [mcp_servers.{NAME}] by hand.")
