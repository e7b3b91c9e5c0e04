"""Servers of a command line or of a file with `mcpServers`, as clients use it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from mulligan.core.failure import SettingsError
from mulligan.proxy import ServerTarget

MAX_FILE_BYTES = 10_000_000
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')


def expand_variables(text: str, environment: Mapping[str, str], subject: str) -> str:
    """Replace `${NAME}`, `${env:NAME}` and `${NAME:-default}` by the environment. A missing variable is an error."""

    def expand(match: re.Match[str]) -> str:
        value = environment.get(match[1], match[2])
        if value is None:
            raise SettingsError(f"{subject} uses ${{{match[1]}}}, but the environment has no variable {match[1]}.")
        return value

    return _VARIABLE.sub(expand, text)


def parse_headers(lines: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Parse headers of the command line, such as `Authorization: Bearer ${TOKEN}`. Errors never quote a value."""
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise SettingsError("A --header has no colon. Write it as 'Name: value', for example 'X-Team: search'.")
        headers[name.strip()] = value.strip()
    return check_headers(headers, environment)


def check_headers(headers: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Expand variables in headers and refuse what HTTP cannot send."""
    expanded_headers = {}
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise SettingsError(f"Invalid header name {name!r}. Use letters, digits and hyphens.")
        expanded_value = expand_variables(value, environment, f"The header {name!r}")
        if not (expanded_value.isprintable() and expanded_value.isascii()):
            raise SettingsError(f"The value of the header {name!r} has characters that a header cannot contain.")
        expanded_headers[name] = expanded_value
    return expanded_headers


def check_url(url: str, subject: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid or not url.isprintable() or " " in url:
        raise SettingsError(f"Invalid URL in {subject}. Use one such as https://example.com/mcp")
    return url


def server_name_from_url(url: str) -> str:
    """Derive the server's name from its host, for example `example-com` from `https://mcp.example.com/mcp`.

    A port is part of it: servers of one machine differ in nothing else.
    """
    parts = urlsplit(url)
    host = re.sub(r"^(?:mcp|www|api)\.(?=.*\.)", "", parts.hostname or "") + (f"-{parts.port}" if parts.port else "")
    return re.sub(r"[^\w-]+", "-", host).strip("-") or "server"


def read_config(path: Path, environment: Mapping[str, str]) -> dict[str, ServerTarget]:
    """Read the servers of a file, by name. Raise `SettingsError` if the file or an entry is invalid."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"Cannot read {path}: {error.strerror}. Pass a file with mcpServers.") from None
    if len(data) > MAX_FILE_BYTES:
        raise SettingsError(f"{path} is larger than {MAX_FILE_BYTES} bytes. Pass a file with mcpServers.")
    entries = parse_json_with_comments(data.decode("utf-8-sig", "replace"), str(path))
    servers = entries.get("mcpServers", entries.get("servers")) if isinstance(entries, dict) else None
    if not isinstance(servers, dict) or not all(isinstance(entry, dict) for entry in servers.values()):
        raise SettingsError(f"{path} has no servers. It needs an object mcpServers with one entry for each server.")
    targets: dict[str, ServerTarget] = {}
    for key, entry in servers.items():
        name = re.sub(r"[^A-Za-z0-9-]+", "-", key).strip("-")[:64] or "server"
        if name in targets:
            raise SettingsError(f"{path} has two servers named {name!r}. Rename one of them.")
        if entry.get("disabled") is not True and entry.get("enabled") is not False:
            targets[name] = build_target(name, entry, environment, f"server {name!r} of {path}")
    return targets


def parse_json_with_comments(text: str, subject: str) -> Any:
    """Parse JSON in which comments and trailing commas are allowed, as editors do."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        pass
    text = _COMMENT.sub(lambda match: match[1] or " ", text)
    text = _TRAILING_COMMA.sub(lambda match: match[1] or "", text)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise SettingsError(f"{subject} is not valid JSON: {error}.") from None


def build_target(name: str, entry: Mapping[str, Any], environment: Mapping[str, str], subject: str) -> ServerTarget:
    def read_texts(key: str) -> dict[str, str]:
        value = entry.get(key) or {}
        if not isinstance(value, dict) or not all(isinstance(item, str | int | float) for item in value.values()):
            raise SettingsError(f"Invalid {key!r} in {subject}. Use an object with texts.")
        return {str(item_name): str(item) for item_name, item in value.items()}

    def expand(text: Any, key: str) -> str:
        if not isinstance(text, str) or "\0" in text:
            raise SettingsError(f"Invalid {key!r} in {subject}. Use a text.")
        return expand_variables(text, environment, subject)

    url = entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")
    if url:
        return ServerTarget(
            name=name,
            url=check_url(expand(url, "url"), subject),
            headers=check_headers(read_texts("headers"), environment),
            is_sse=entry.get("type") == "sse",
        )
    arguments = entry.get("args") or []
    if not entry.get("command") or not isinstance(arguments, list):
        raise SettingsError(f"Missing command or url in {subject}.")
    command = [expand(entry["command"], "command"), *(expand(argument, "args") for argument in arguments)]
    added_environment = {key: expand(value, "env") for key, value in read_texts("env").items()}
    folder = expand(entry["cwd"], "cwd") if entry.get("cwd") else None
    return ServerTarget(name=name, command=command, environment={**environment, **added_environment}, folder=folder)


def read_file_state(path: Path) -> tuple[int, ...]:
    """Return what changes with the content of a file, empty if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino
