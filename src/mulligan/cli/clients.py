"""Coding agents and MCP clients: their settings files, and the commands with which they start mulligan.

Clients start servers in cloned repositories, so a start command must not import files or read variables that a
repository controls. A start command falls through to the server if mulligan is no longer installed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from mulligan.core.failure import SettingsError
from mulligan.settings import config_folder, data_folder


class SettingsFile(NamedTuple):
    scope: str
    """`user`, `local` (yours, for this folder alone) or `project`."""
    path: str
    """Path that starts with one of `find_folders`. Several, separated by `|`: the first that exists."""
    key: tuple[str, ...] = ()
    """Where the servers are in this file. `{project}` is the current folder."""
    is_committed: bool = False
    """Whether teams share this file, so that it must not contain paths of one machine."""


class EntryKeys(NamedTuple):
    """Names of the keys of a server's entry."""

    command: str = "command"
    args: str | None = "args"
    """None if `command` is a list with the arguments."""
    env: str = "env"
    urls: tuple[str, ...] = ("url",)
    headers: str = "headers"
    types: tuple[str, str] | None = ("stdio", "http")
    """Values of `type` for a server with a command and for one with a URL. None if there is no such key."""


class Client(NamedTuple):
    """Coding agent or MCP client, and what mulligan can install into it."""

    name: str
    display_name: str
    server_files: tuple[SettingsFile, ...] = ()
    """The files that list MCP servers."""
    file_format: str = "json"
    keys: EntryKeys = EntryKeys()
    hook_files: tuple[SettingsFile, ...] = ()
    hook_events: Mapping[str, str | None] = {}
    """Hook events, each with an optional matcher."""
    has_flat_hooks: bool = False
    """Whether an event lists its commands at once, without groups of them, in a file with a version."""
    timeout_units_per_second: int = 1
    """Units of the timeout of a hook: 1 for seconds, 1000 for milliseconds."""
    windows_shell: str = "cmd"
    """Shell that runs hooks on Windows: `sh`, `cmd` or `powershell`."""
    program: str = ""
    """Name of its program, unless that is `name`."""
    next_step: str = "Restart open sessions to apply this."
    """One-time instruction for the user after hooks were installed."""


def _server_files(
    user: str, project: str | None = None, key: str = "mcpServers", local: str | None = None
) -> tuple[SettingsFile, ...]:
    files = [SettingsFile("user", user, (key,))]
    if local is not None:
        files.append(SettingsFile("local", local, ("projects", "{project}", key)))
    if project is not None:
        files.append(SettingsFile("project", project, (key,), is_committed=True))
    return tuple(files)


def _hook_files(user: str, project: str) -> tuple[SettingsFile, ...]:
    return SettingsFile("user", user), SettingsFile("project", project)


CLIENTS = (
    Client("claude-desktop", "Claude Desktop", _server_files("{programs}/Claude/claude_desktop_config.json")),
    Client(
        "claude-code", "Claude Code",
        _server_files("{claude_home}/.claude.json", "{project}/.mcp.json", local="{claude_home}/.claude.json"),
        hook_files=_hook_files("{claude}/settings.json", "{project}/.claude/settings.local.json"),
        hook_events={"PostToolUseFailure": None, "PostToolBatch": None, "SessionStart": "compact", "SessionEnd": None},
        windows_shell="sh", program="claude",
    ),
    Client(
        "cursor", "Cursor", _server_files("{home}/.cursor/mcp.json", "{project}/.cursor/mcp.json"),
        hook_files=_hook_files("{home}/.cursor/hooks.json", "{project}/.cursor/hooks.json"),
        hook_events={"postToolUse": None, "postToolUseFailure": None, "preCompact": None, "sessionEnd": None},
        has_flat_hooks=True, windows_shell="powershell",
    ),
    Client(
        "vscode", "VS Code", _server_files("{programs}/Code/User/mcp.json", "{project}/.vscode/mcp.json", "servers"),
    ),
    Client(
        "codex", "Codex", _server_files("{codex}/config.toml", "{project}/.codex/config.toml", "mcp_servers"), "toml",
        keys=EntryKeys(headers="http_headers", types=None),
        hook_files=_hook_files("{codex}/hooks.json", "{project}/.codex/hooks.json"),
        hook_events={"PostToolUse": None, "SessionStart": "compact", "SessionEnd": None},
        next_step="Codex runs a hook only after you trust it: start codex, type /hooks and trust the hooks of "
        "mulligan.",
    ),
    Client(
        "copilot", "Copilot CLI", _server_files("{copilot}/mcp-config.json", "{project}/.github/mcp.json"),
        hook_files=_hook_files("{copilot}/settings.json", "{project}/.github/copilot/settings.local.json"),
        hook_events={"PostToolUse": None, "PostToolUseFailure": None, "PreCompact": None, "SessionEnd": None},
        windows_shell="powershell",
    ),
    Client(
        "goose", "Goose", _server_files("{home}/.config/goose/config.yaml", key="extensions"), "yaml",
        keys=EntryKeys("cmd", env="envs", urls=("uri",), types=("stdio", "streamable_http")),
    ),
    Client(
        "gemini", "Gemini CLI", _server_files("{home}/.gemini/settings.json", "{project}/.gemini/settings.json"),
        keys=EntryKeys(urls=("httpUrl", "url"), types=None),
        hook_files=_hook_files("{home}/.gemini/settings.json", "{project}/.gemini/settings.json"),
        hook_events={"AfterTool": None, "BeforeAgent": None, "PreCompress": None, "SessionEnd": None},
        timeout_units_per_second=1000, windows_shell="powershell",
    ),
    Client(
        "opencode", "OpenCode",
        _server_files(
            "{config}/opencode/opencode.json|{config}/opencode/opencode.jsonc",
            "{project}/opencode.json|{project}/opencode.jsonc", "mcp",
        ),
        keys=EntryKeys(args=None, env="environment", types=("local", "remote")),
        hook_files=_hook_files(
            "{config}/opencode/plugins/mulligan.js", "{project}/.opencode/plugins/mulligan.js",
        ),
    ),
    Client(
        "pi", "Pi", hook_files=_hook_files("{pi}/extensions/mulligan.js", "{project}/.pi/extensions/mulligan.js"),
    ),
    Client(
        "amp", "Amp",
        _server_files("{home}/.config/amp/settings.json", "{project}/.amp/settings.json", "amp.mcpServers"),
        keys=EntryKeys(types=None),
    ),
)  # fmt: skip
MCP_CLIENTS = {client.name: client for client in CLIENTS if client.server_files}
AGENTS = {client.name: client for client in CLIENTS if client.hook_files}


def find_folders() -> dict[str, Path]:
    """Return the folders of settings files, by their name in `SettingsFile.path`."""
    home = Path.home()
    claude, codex = os.environ.get("CLAUDE_CONFIG_DIR"), os.environ.get("CODEX_HOME")
    copilot, pi = os.environ.get("COPILOT_HOME"), os.environ.get("PI_CODING_AGENT_DIR")
    return {
        "home": home,
        "project": Path.cwd(),
        "config": Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config"),
        "programs": (
            data_folder() if sys.platform == "win32" else config_folder()
        ).parent,  # the folder that contains mulligan's own
        "claude": Path(claude).expanduser() if claude else home / ".claude",
        "claude_home": Path(claude).expanduser() if claude else home,
        "codex": Path(codex).expanduser() if codex else home / ".codex",
        "copilot": Path(copilot).expanduser() if copilot else home / ".copilot",
        "pi": Path(pi).expanduser() if pi else home / ".pi" / "agent",
    }


def settings_path(file: SettingsFile) -> Path:
    folders = find_folders()
    paths = [Path(path.format_map(folders)) for path in file.path.split("|")]
    return next((path for path in paths if path.exists()), paths[0])


def check_project_file(file: SettingsFile, path: Path) -> None:
    """Refuse a project's file that leads out of its folder: a cloned repository could direct an edit anywhere."""
    if file.scope == "project" and not path.resolve().is_relative_to(Path.cwd().resolve()):
        raise SettingsError(
            f"{path} leads to {path.resolve()}, outside of this folder. Nothing was changed. Edit that file itself."
        )


def select_file(client: Client, files: Sequence[SettingsFile], is_project: bool) -> SettingsFile:
    """Return the settings file of the user or of the project in this folder."""
    scope = "project" if is_project else "user"
    for file in files:
        if file.scope == scope:
            return prefer_user_file(file, files)
    raise SettingsError(f"{client.display_name} has no project settings. Remove --project.")


def prefer_user_file(file: SettingsFile, files: Sequence[SettingsFile]) -> SettingsFile:
    """Return the user's file if a project's file is the same one, as in the home folder: no team shares it."""
    path = settings_path(file).resolve()
    user_files = (
        user_file for user_file in files if user_file.scope == "user" and settings_path(user_file).resolve() == path
    )
    return next(user_files, file) if file.scope == "project" else file


# Start commands

SCRIPT = Path(__file__).with_name("start.py")
SCRIPT_PATTERN = re.compile(r"(?:^|[/\\])mulligan[/\\](?:cli|hooks)[/\\]start\.py$")
_FALL_THROUGH = (
    'while test $# -gt 0; do case $1 in --) test $# -gt 1 && shift && exec "$@";; '
    '--url) echo "Without mulligan, put this URL back into this entry: $2" >&2;; esac; shift; done; '
    "echo 'mulligan is not installed. In a checkout of it, run: pip install .' >&2; exit 127"
)
_USER_START = 'test -x "$0" && test -f "$1" && exec "$0" -ESP "$@"; '
_SHARED_START = 'case $(command -v mulligan) in /*) exec mulligan "$@";; esac; '
USER_WRAPPER = _USER_START + _FALL_THROUGH
"""Shell script that runs mulligan of this machine or, without it, the command after `--`. A URL is printed."""
SHARED_WRAPPER = _SHARED_START + _FALL_THROUGH
"""Shell script that runs mulligan from the PATH of any machine or, without it, the command after `--`."""


class StartCommand(NamedTuple):
    command: str
    args: tuple[str, ...]

    def to_entry(self, keys: EntryKeys) -> dict[str, Any]:
        if keys.args is None:
            return {keys.command: [self.command, *self.args]}
        return {keys.command: self.command, keys.args: list(self.args)}


def build_start_command(*arguments: str, is_shared: bool = False) -> StartCommand:
    """Build the command that runs `mulligan` with these arguments and imports nothing that a repository controls.

    `-ESP` ignores the working directory and PYTHON* variables. `-S` delays `site`, which reads PYTHONUSERBASE even
    under `-E`, until `start.py` has removed that variable. A shared command contains no path of this machine.
    """
    if is_shared:
        if sys.platform == "win32":
            return StartCommand("mulligan", arguments)
        return StartCommand("sh", ("-c", SHARED_WRAPPER, "mulligan", *arguments))
    if sys.platform == "win32":
        return StartCommand(sys.executable, ("-ESP", str(SCRIPT), *arguments))
    return StartCommand("/bin/sh", ("-c", USER_WRAPPER, sys.executable, str(SCRIPT), *arguments))


def parse_mulligan_arguments(start: StartCommand) -> tuple[str, ...] | None:
    """Return the arguments after `mulligan`, for all command forms that start it, else None."""
    name, words = PurePath(start.command).stem, start.args
    if name == "mulligan":
        return words
    if name == "sh" and words[:1] == ("-c",) and len(words) > 1 and words[1].startswith((_USER_START, _SHARED_START)):
        return words[3 if words[1].startswith(_SHARED_START) else 4 :]
    while words and re.fullmatch(r"-[IEPSs]+", words[0]):
        words = words[1:]
    if words[:2] == ("-m", "mulligan"):
        return words[2:]
    return words[1:] if words and SCRIPT_PATTERN.search(words[0]) else None


def quote_words(words: Sequence[str], shell: str) -> str:
    """Quote the words of a command for `sh`, `cmd` or `powershell`."""
    if shell == "sh":
        import shlex

        return shlex.join(words)
    if shell == "powershell":
        # PowerShell treats curly single quotes like straight ones. `&` runs a quoted word as a command.
        return "& " + " ".join("'" + re.sub(r"(['\u2018-\u201b])", r"\1\1", word) + "'" for word in words)
    return " ".join(map(_quote_for_cmd, words))


def _quote_for_cmd(word: str) -> str:
    """Quote a word for cmd, and for the C runtime of the started program, which splits the command line again.

    cmd replaces %NAME% even between quotes. A percent sign outside quotes, behind a caret, keeps its meaning.
    """
    if '"' in word or "\n" in word or "\r" in word:
        raise SettingsError(
            f"cmd cannot start {word!r}: it has a double quote or a line end. Install mulligan elsewhere."
        )
    if re.fullmatch(r"[\w.:\\/-]+", word, re.ASCII):
        return word
    pieces = [f'"{piece}{_trailing_backslashes(piece)}"' if piece else "" for piece in word.split("%")]
    return "^%".join(pieces) or '""'


def _trailing_backslashes(text: str) -> str:
    """Return the backslashes at the end of a text: before a quote they must be doubled."""
    return text[len(text.rstrip("\\")) :]
