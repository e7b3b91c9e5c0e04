"""Edits of the MCP servers in a client's settings: the proxy in front of them, and our own server beside them.

Keys of an entry that are not named here stay. A file in an unsupported layout is left unchanged; the error says what to
write by hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mulligan.cli.clients import (
    CLIENTS,
    SCRIPT_PATTERN,
    Client,
    EntryKeys,
    SettingsFile,
    StartCommand,
    build_start_command,
    check_project_file,
    find_folders,
    parse_mulligan_arguments,
    settings_path,
)
from mulligan.cli.config_edits import Edit, plan_edit, read_document
from mulligan.cli.config_text import ConfigSyntaxError, ConfigText
from mulligan.core.failure import INSTALL_EXTRA, SettingsError

SERVER_NAME = "mulligan"
"""Name of our MCP server in a client's settings."""
HEADER_VARIABLE = "MULLIGAN_HEADER_"
"""Start of the names of variables that pass headers to the proxy, so that no command line shows them."""

PLUGIN_START = "// Written by `mulligan install "
"""Start of a plugin file of ours."""


class ServerList:
    """The MCP servers that a client's settings file lists. The methods plan edits of them, one after the other."""

    def __init__(self, client: Client, file: SettingsFile) -> None:
        self.client, self.file = client, file
        self.path = settings_path(file)
        check_project_file(file, self.path)
        self.key = tuple(part.format_map(find_folders()) for part in file.key)
        self.before, self.document = read_document(self.path, client.file_format)
        self._initial_document = self.document
        self.servers = self.document.read(self.key)
        if self.servers is None:
            self.servers = {}
        if not isinstance(self.servers, dict):
            raise SettingsError(f"{self.path}: `{self.key[-1]}` is not a table. Fix it first; nothing was changed.")

    def continue_from(self, document: ConfigText | None) -> None:
        """Continue with a document of the same file that was edited already, for the servers of another scope."""
        if document is not None:
            self._update(document)

    @property
    def edit(self) -> Edit:
        return plan_edit(self.path, self.before, self._initial_document, self.document)

    def entry_name(self, server: str) -> str:
        """Return the name of a server's entry in the record of the installation."""
        return "/".join((*self.key, server))

    def read_start(self, server: str) -> StartCommand | None:
        where, entry, keys = f"{self.path}: the server {server!r}", self.servers[server], self.client.keys
        if not isinstance(entry, dict):
            raise SettingsError(f"{where} is not a table. Fix it first; nothing was changed.")
        for part in entry.values():
            if isinstance(part, ConfigSyntaxError):
                raise SettingsError(f"{where}: {part} Edit it by hand; nothing was changed.")
        command = entry.get(keys.command)
        words = command if keys.args is None else [command, *(entry.get(keys.args) or ())]
        if command is None and any(isinstance(entry.get(key), str) for key in keys.urls):
            return None
        if not isinstance(words, list) or not words or not words[0]:
            raise SettingsError(f"{where} has no command and no URL. Nothing was changed.")
        if not all(isinstance(word, str) for word in words) or not isinstance(
            entry.get(keys.args, []) if keys.args else [], list
        ):
            raise SettingsError(f"{where} has arguments that are not a list of strings. Fix them first.")
        return StartCommand(words[0], tuple(words[1:]))

    def has_proxy(self, server: str) -> bool:
        start = self.read_start(server)
        return start is not None and (parse_mulligan_arguments(start) or ())[:1] == ("proxy",)

    def _proxy_words(self, server: str, options: Sequence[str]) -> list[str]:
        start = build_start_command("proxy", "--name", server, *options, is_shared=self.file.is_committed)
        return [start.command, *start.args]

    def add_proxy(self, server: str, options: Sequence[str], *, can_need_mulligan: bool = False) -> None:
        """Put the proxy in front of a server. An existing proxy is replaced.

        A server with a URL cannot be reached without mulligan afterwards. In a shared file that must be allowed.
        """
        if self.has_proxy(server):
            if self._has_current_proxy(server, options):
                return
            self.remove_proxy(server)
        start = self.read_start(server)
        words = self._proxy_words(server, options)
        with _explain_layout(self.path, server, [*words, "--", *([start.command, *start.args] if start else ())]):
            if start is None and self.file.is_committed and not can_need_mulligan:
                raise SettingsError(
                    f"{self.path}: the server {server!r} has a URL. Colleagues without mulligan could not reach it "
                    "through the proxy, so this entry was not changed. If all of them have mulligan[mcp], run "
                    f"`mulligan install proxy --client {self.client.name} --project --server {server}`."
                )
            if start is None and not has_remote_support():
                raise SettingsError(
                    f"{self.path}: the server {server!r} has a URL, which needs the mcp package. "
                    f"{INSTALL_EXTRA.format('mcp')}. Nothing was changed for it."
                )
            if start is None:
                self._wrap_url(server, words)
            else:
                self._write_start(server, StartCommand(words[0], (*words[1:], "--", start.command, *start.args)))

    def _has_current_proxy(self, server: str, options: Sequence[str]) -> bool:
        start = self.read_start(server)
        assert start is not None
        words = [start.command, *start.args]
        expected = self._proxy_words(server, options)
        return words[: len(expected)] == expected and words[len(expected)] in ("--", "--url")

    def _write_start(self, server: str, start: StartCommand) -> None:
        document = self.document
        for key, value in start.to_entry(self.client.keys).items():
            document = document.set((*self.key, server, key), value)
        self._update(document)

    def _wrap_url(self, server: str, words: Sequence[str]) -> None:
        """Replace the URL of a server by the proxy. Headers go into variables, where the client may expand them."""
        keys, path, document = self.client.keys, (*self.key, server), self.document
        entry = self.servers[server]
        url_key = next(key for key in keys.urls if isinstance(entry.get(key), str))
        variables, headers = _read_headers(entry, keys)
        arguments = [*words, "--url", entry[url_key]]
        for name, value in headers.items():
            arguments += ["--header", f"{name}: {value}"]
        start = StartCommand(arguments[0], tuple(arguments[1:]))
        for key, value in start.to_entry(keys).items():
            document = document.set((*path, key), value)
        for name, value in variables.items():
            document = document.set((*path, keys.env, name), value)
        if names := list(_codex_variables(entry).values()):
            document = document.set((*path, "env_vars"), [*entry.get("env_vars", ()), *names])
        if keys.types and "type" in entry:
            document = document.set((*path, "type"), keys.types[0])
        for key in (url_key, keys.headers, *_CODEX_KEYS):
            document = document.remove((*path, key))
        self._update(document)

    def remove_proxy(self, server: str) -> None:
        """Remove the proxy from in front of a server. Nothing changes if there is none."""
        if not self.has_proxy(server):
            return
        start = self.read_start(server)
        assert start is not None
        words = parse_mulligan_arguments(start) or ()
        with _explain_layout(self.path, server, None):
            if "--" not in words:
                self._unwrap_url(server, words)
            else:
                command, *arguments = words[words.index("--") + 1 :]
                self._write_start(server, StartCommand(command, tuple(arguments)))

    def _unwrap_url(self, server: str, words: Sequence[str]) -> None:
        keys, path, document = self.client.keys, (*self.key, server), self.document
        entry = self.servers[server]
        env = entry.get(keys.env) or {}
        values = [words[index + 1] for index, word in enumerate(words[:-1]) if word == "--header"]
        url = next((words[index + 1] for index, word in enumerate(words[:-1]) if word == "--url"), None)
        if url is None:
            raise ConfigSyntaxError("the entry of the proxy has neither a command nor a URL")
        headers: dict[str, str] = {}
        variables = entry.get("env_vars") if self.client.name == "codex" else None
        for name, _, value in (value.partition(": ") for value in values):
            variable = re.fullmatch(r"(Bearer )?\$\{(\w+)\}", value)
            if variable and variables and variable[2] in variables:
                variables = [name for name in variables if name != variable[2]]
                variable_path = ("bearer_token_env_var",) if variable[1] else ("env_http_headers", name)
                document = document.set((*path, *variable_path), variable[2])
                continue
            headers[name] = re.sub(r"\$\{(\w+)\}", lambda match: str(env.get(match[1], match[0])), value)
        if variables is not None:
            variables_path = (*path, "env_vars")
            document = document.set(variables_path, variables) if variables else document.remove(variables_path)
        is_sse = url.rstrip("/").endswith("/sse")
        url_key = keys.urls[-1 if is_sse else 0]
        document = document.set((*path, url_key), url)
        if headers:
            document = document.set((*path, keys.headers), headers)
        if keys.types and "type" in entry:
            remote_type = "sse" if is_sse and keys.types[1] != "remote" else keys.types[1]
            document = document.set((*path, "type"), remote_type)
        remaining_env = {name: value for name, value in env.items() if not name.startswith(HEADER_VARIABLE)}
        for name in env.keys() - remaining_env.keys():
            document = document.remove((*path, keys.env, name))
        if env and not remaining_env:
            document = document.remove((*path, keys.env))
        for key in (keys.command, keys.args):
            document = document.remove((*path, key)) if key else document
        self._update(document)

    def add_own_server(self) -> None:
        """Make the client start our MCP server. Nothing changes if it does so already."""
        start = build_start_command("mcp", is_shared=self.file.is_committed)
        words = [start.command, *start.args]
        if self.client.file_format == "yaml":
            raise SettingsError(
                f"Cannot edit the settings of {self.client.display_name}. Add a server to {self.path} that runs "
                f"{json.dumps(words)}."
            )
        entry = self.servers.get(SERVER_NAME)
        if entry is not None and not self.has_own_server():
            raise SettingsError(
                f"{self.path} already has another server named {SERVER_NAME!r}. Rename it first; nothing was changed."
            )
        keys = self.client.keys
        new_entry = start.to_entry(keys)
        if keys.types and keys.types[0] == "local":
            new_entry = {"type": "local", **new_entry}
        with _explain_layout(self.path, SERVER_NAME, words):
            if entry is None:
                self._update(self.document.set((*self.key, SERVER_NAME), new_entry))
            for key, value in new_entry.items():
                self._update(self.document.set((*self.key, SERVER_NAME, key), value))

    def has_own_server(self) -> bool:
        """Return whether the client starts our MCP server."""
        if SERVER_NAME not in self.servers:
            return False
        start = self.read_start(SERVER_NAME)
        return start is not None and (parse_mulligan_arguments(start) or ())[:1] == ("mcp",)

    def remove_own_server(self) -> None:
        """Remove our MCP server from the client. Nothing changes if it is not installed."""
        if self.has_own_server():
            with _explain_layout(self.path, SERVER_NAME, None):
                self._update(self.document.remove((*self.key, SERVER_NAME)))
                if self.key and not self.document.read(self.key):
                    self._update(self.document.remove(self.key))

    def _update(self, document: ConfigText) -> None:
        self.document = document
        self.servers = document.read(self.key) or {}


def has_remote_support() -> bool:
    """Return whether this installation can connect to servers with a URL."""
    return find_spec("mcp") is not None


_CODEX_KEYS = ("bearer_token_env_var", "env_http_headers")


def _codex_variables(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables whose values Codex sends as headers, by the header's name."""
    declared_headers = entry.get("env_http_headers")
    variables = dict(declared_headers) if isinstance(declared_headers, dict) else {}
    if isinstance(token := entry.get("bearer_token_env_var"), str):
        variables["Authorization"] = token
    return variables


def _read_headers(entry: Mapping[str, Any], keys: EntryKeys) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables to set for the proxy, and the headers that refer to variables."""
    literal_headers = entry.get(keys.headers) or {}
    if not isinstance(literal_headers, dict):
        raise ConfigSyntaxError(f"`{keys.headers}` is not a table")
    variables, headers = {}, {}
    for number, (name, value) in enumerate(literal_headers.items(), 1):
        variables[f"{HEADER_VARIABLE}{number}"] = str(value)
        headers[name] = f"${{{HEADER_VARIABLE}{number}}}"
    for name, variable in _codex_variables(entry).items():
        prefix = "Bearer " if name == "Authorization" and variable == entry.get("bearer_token_env_var") else ""
        headers[name] = f"{prefix}${{{variable}}}"
    return variables, headers


@contextlib.contextmanager
def _explain_layout(path: Path, server: str, words: Sequence[str] | None) -> Iterator[None]:
    """Turn a layout that cannot be edited into an error that says what to type."""
    try:
        yield
    except ConfigSyntaxError as error:
        advice = f" so that it runs {json.dumps(list(words), ensure_ascii=False)}" if words else ""
        raise SettingsError(f"{path}: cannot edit the entry {server!r}: {error}. Edit it by hand{advice}.") from None


# Entries that no longer work


def find_broken_entries() -> Iterator[str]:
    """Yield the entries and hooks of all clients that start a mulligan which is not there, with what to type."""
    for client in CLIENTS:
        for file in client.server_files:
            with contextlib.suppress(SettingsError, OSError):  # a file that cannot be read: the client says so
                if settings_path(file).exists():
                    yield from _find_broken_servers(ServerList(client, file))
        for file in client.hook_files:
            yield from _find_broken_hooks(client, file)


def _find_broken_servers(servers: ServerList) -> Iterator[str]:
    for server in servers.servers:
        try:
            start = servers.read_start(server)
        except SettingsError:
            continue  # not an entry of ours
        missing = _find_missing_program([start.command, *start.args]) if start else None
        if missing:
            is_own = server == SERVER_NAME and servers.has_own_server()
            target = f"{'mcp-server' if is_own else 'proxy'} --client {servers.client.name}"
            target += "" if is_own else f" --server {shlex.quote(server)}"
            target += " --project" if servers.file.scope == "project" else ""
            yield (
                f"{servers.path}: the server {server!r} starts {missing}, which does not exist. "
                f"Run `mulligan install {target}` or `mulligan uninstall {target}`."
            )


def _find_missing_program(words: Sequence[str]) -> str | None:
    """Return the missing program of a command that starts mulligan, or None."""
    if parse_mulligan_arguments(StartCommand(words[0], tuple(words[1:]))) is None:
        return None
    if words[1:2] == ["-c"]:
        words = words[3:]
    paths = [word for word in words[:3] if os.path.isabs(word) and (word == words[0] or SCRIPT_PATTERN.search(word))]
    return next((path for path in paths if not os.path.exists(path)), None)


def read_plugin_command(text: str) -> list[str]:
    """Return the command that a plugin of ours starts. Empty if the file is not ours."""
    match = re.search(r"^const COMMAND = (\[.*\])$", text, re.MULTILINE) if text.startswith(PLUGIN_START) else None
    return [str(word) for word in json.loads(match[1])] if match else []


def _find_broken_hooks(client: Client, file: SettingsFile) -> Iterator[str]:
    path = settings_path(file)
    try:
        check_project_file(file, path)
        text = path.read_text() if path.exists() else ""
        commands = set(re.findall(r'"command"\s*:\s*("(?:[^"\\]|\\.)*start\.py(?:[^"\\]|\\.)*")', text))
        words = [word for command in commands for word in shlex.split(json.loads(command))]
        words += read_plugin_command(text) if path.suffix == ".js" else ()
    except (OSError, ValueError, SettingsError):
        return
    scripts = [word for word in words if SCRIPT_PATTERN.search(word)]
    programs = [words[index - 2] for index, word in enumerate(words) if word in scripts and index > 1]
    missing = next((name for name in (*programs, *scripts) if not os.path.exists(name)), None)
    if missing:
        flag = " --project" if file.scope == "project" else ""
        yield (
            f"{path}: a hook starts {missing}, which does not exist. Run `mulligan install {client.name}{flag}` or "
            f"`mulligan uninstall {client.name}{flag}`."
        )
