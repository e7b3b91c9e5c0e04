"""mulligan install and mulligan uninstall: edit other programs' settings so that they run mulligan."""

from __future__ import annotations

import copy
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

import mulligan
from mulligan.cli import clients, mcp_server_config
from mulligan.cli.config_edits import Edit, json_edit, read_json, read_toml
from mulligan.cli.groups import CommandGroup
from mulligan.cli.options import as_json, print_json
from mulligan.core.failure import SettingsError

HOOK_TIMEOUT_SECONDS = 10
"""Time limit after which an agent continues without the hook. A hook takes about 0.1 seconds."""
SESSION_END_TIMEOUT_SECONDS = 3
"""Time limit at the end of a session. No agent waits longer."""
MAX_DIFF_LINE_CHARS = 400
"""Longest line of a diff on the terminal."""
EXAMPLES = (
    "Examples:\n\n  mulligan {0} claude-code --dry-run\n\n  mulligan {0} codex\n\n  mulligan {0} gemini --project"
)


class Agent(NamedTuple):
    """Coding agent and the hook events to install."""

    name: str
    """Argument of `mulligan-hook`."""
    display_name: str
    events: Mapping[str, str | None]
    """Hook events, each with an optional matcher."""
    timeout_units_per_second: int = 1
    """Units of the agent's timeout setting: 1 for seconds, 1000 for milliseconds."""
    next_step: str = ""
    """One-time instruction for the user."""


CLAUDE_CODE = Agent(
    "claude-code",
    "Claude Code",
    {"PostToolUseFailure": None, "PostToolBatch": None, "SessionStart": "compact", "SessionEnd": None},
    next_step="Restart open sessions to apply this.",
)
CODEX = Agent(
    "codex",
    "Codex",
    {"PostToolUse": None, "SessionStart": "compact", "SessionEnd": None},
    next_step=("Codex runs a hook only after you trust it: start codex, type /hooks and trust the hooks of mulligan."),
)
GEMINI = Agent(
    "gemini",
    "Gemini CLI",
    {"AfterTool": None, "BeforeAgent": None, "PreCompress": None, "SessionEnd": None},
    timeout_units_per_second=1000,
    next_step="Restart open sessions to apply this.",
)


def build_hook_command(agent: Agent) -> str:
    """Build the shell command of a hook. If Python or the package is missing, the command succeeds without output.

    The interpreter starts without `site` and runs `start.py` by its path, which takes a third of the time. `-E` and
    `-P` prevent imports from cloned repositories, in which agents run hooks.
    """
    start = Path(mulligan.__file__).parent / "hooks" / "start.py"
    return f"{shlex.quote(sys.executable)} -ESP {shlex.quote(str(start))} {agent.name} 2>/dev/null || :"


HOOK_COMMAND_PATTERN = re.compile(r"\bmulligan-hook\b|\bmulligan[/\\](?:serve[/\\])?hooks[/\\]")


def add_hooks(settings: Mapping[str, Any], agent: Agent, path: Path) -> dict[str, Any]:
    """Return the settings with our hooks, each once, next to existing hooks."""
    new_settings = remove_hooks(settings, path)
    hooks = new_settings.setdefault("hooks", {})
    for event, matcher in agent.events.items():
        entry: dict[str, Any] = {"matcher": matcher} if matcher else {}
        seconds = SESSION_END_TIMEOUT_SECONDS if event == "SessionEnd" else HOOK_TIMEOUT_SECONDS
        entry["hooks"] = [
            {
                "type": "command",
                "command": build_hook_command(agent),
                "timeout": seconds * agent.timeout_units_per_second,
            }
        ]
        hooks.setdefault(event, []).append(entry)
    return new_settings


def remove_hooks(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings without our hooks and otherwise unchanged."""
    new_settings = copy.deepcopy(dict(settings))
    hooks = new_settings.get("hooks", {})
    if not isinstance(hooks, dict) or not all(isinstance(entries, list) for entries in hooks.values()):
        raise SettingsError(f"{path}: `hooks` is not a table of lists. Fix it first; nothing was changed.")
    for event, entries in list(hooks.items()):
        remaining_entries = [
            remaining_entry for entry in entries if (remaining_entry := _remove_hook_commands(entry)) is not None
        ]
        if remaining_entries != entries:
            hooks[event] = remaining_entries
            if not remaining_entries:
                del hooks[event]
    if not hooks and settings.get("hooks"):
        del new_settings["hooks"]
    return new_settings


def _remove_hook_commands(entry: Any) -> Any:
    """Return a hook entry without our commands, or None if nothing else remains."""
    handlers = entry.get("hooks") if isinstance(entry, dict) else None
    if not isinstance(handlers, list):
        return entry
    remaining_handlers = [
        handler
        for handler in handlers
        if not (isinstance(handler, dict) and HOOK_COMMAND_PATTERN.search(str(handler.get("command", ""))))
    ]
    if len(remaining_handlers) == len(handlers):
        return entry
    return {**entry, "hooks": remaining_handlers} if remaining_handlers else None


def settings_path(agent: Agent, project: bool) -> Path:
    """Return the settings file of an agent. For a project, prefer the file that is not committed."""
    if project:
        here = Path.cwd()
        return {
            "claude-code": here / ".claude" / "settings.local.json",
            "codex": here / ".codex" / "hooks.json",
            "gemini": here / ".gemini" / "settings.json",
        }[agent.name]
    return {
        "claude-code": _config_folder("CLAUDE_CONFIG_DIR", ".claude") / "settings.json",
        "codex": _config_folder("CODEX_HOME", ".codex") / "hooks.json",
        "gemini": Path.home() / ".gemini" / "settings.json",
    }[agent.name]


def _config_folder(variable: str, default_name: str) -> Path:
    configured_folder = os.environ.get(variable)
    return Path(configured_folder).expanduser() if configured_folder else Path.home() / default_name


def _setup_warnings(agent: Agent) -> list[str]:
    """Return warnings about other settings that disable hooks."""
    if agent is not CODEX:
        return []
    config = _config_folder("CODEX_HOME", ".codex") / "config.toml"
    _, codex_settings = read_toml(config)
    features = codex_settings.get("features", {})
    if isinstance(features, dict) and (features.get("hooks") is False or features.get("codex_hooks") is False):
        return [f"{config} turns hooks off. Remove that line from its [features]."]
    return []


def apply_edit(
    edit: Edit,
    dry_run: bool,
    as_json: bool,
    success_message: str,
    unchanged_message: str,
    next_steps: list[str] | None = None,
    **facts: Any,
) -> None:
    """Show an edit, apply it unless this is a dry run, and print the result and the next steps."""
    backup_path = edit.apply() if edit.has_changes and not dry_run else None
    if as_json:
        print_json(
            facts
            | {
                "file": str(edit.path),
                "changed": edit.has_changes,
                "dry_run": dry_run,
                "difference": edit.to_diff(),
                "backup": str(backup_path) if backup_path else None,
                "then": next_steps or [],
            }
        )
        return
    if not edit.has_changes:
        click.echo(unchanged_message)
        return
    for diff_line in edit.to_diff().splitlines():
        # Lines keep their layout so that the diff stays readable, but control characters are removed.
        click.echo(
            "".join(
                letter if letter.isprintable() or letter == "\t" else " " for letter in diff_line[:MAX_DIFF_LINE_CHARS]
            )
        )
    click.echo("")
    click.echo(f"Dry run: {edit.path} was not changed." if dry_run else success_message)
    if backup_path is not None:
        click.echo(f"Backup of the old file: {backup_path}")
    for instruction in next_steps or () if not dry_run else ():
        click.echo(instruction)


def _add_common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        as_json,
        click.option("--dry-run", is_flag=True, help="Show the change without writing it."),
        click.option(
            "--project", is_flag=True, help="Edit the settings of the project in this folder, not your user settings."
        ),
    ):
        function = option(function)
    return function


@click.group(cls=CommandGroup, epilog=EXAMPLES.format("install"))
def install() -> None:
    """Connect mulligan to a coding agent or MCP client: edits its settings, keeps a backup, shows the diff.

    Installing twice changes nothing. A settings file that cannot be parsed is not changed.
    """


@click.group(cls=CommandGroup, epilog=EXAMPLES.format("uninstall"))
def uninstall() -> None:
    """Remove from a program's settings what `mulligan install` added, and nothing else."""


def _install(agent: Agent, project: bool, dry_run: bool, as_json: bool) -> None:
    path = settings_path(agent, project)
    warnings = _setup_warnings(agent)
    before, settings = read_json(path)
    edit = json_edit(path, before, add_hooks(settings, agent, path))
    apply_edit(
        edit,
        dry_run,
        as_json,
        f"Hooks installed: mulligan records failed calls of {agent.display_name} and reminds it of them "
        "after a compaction.",
        f"Already installed: nothing to change in {path}.",
        [*warnings, agent.next_step],
        agent=agent.name,
    )


def _uninstall(agent: Agent, project: bool, dry_run: bool, as_json: bool) -> None:
    path = settings_path(agent, project)
    before, settings = read_json(path)
    edit = json_edit(path, before, remove_hooks(settings, path)) if settings else Edit(path, before, before)
    apply_edit(
        edit,
        dry_run,
        as_json,
        f"Hooks removed from {agent.display_name}. Recorded sessions stay: mulligan sessions",
        f"Not installed: nothing to change in {path}.",
        agent=agent.name,
    )


def _register_agent(agent: Agent, where: str) -> None:
    """Register `mulligan install AGENT` and `mulligan uninstall AGENT`."""

    @install.command(
        agent.name,
        help=f"Install hooks that keep failures of {agent.display_name} across compactions. Edits {where}.",
        epilog=f"Examples:\n\n  mulligan install {agent.name}\n\n  mulligan install {agent.name} --project --dry-run",
    )
    @_add_common_options
    def _(project: bool, dry_run: bool, as_json: bool) -> None:
        _install(agent, project, dry_run, as_json)

    @uninstall.command(
        agent.name,
        help=f"Remove mulligan's hooks from the settings of {agent.display_name}.",
        epilog=f"Examples:\n\n  mulligan uninstall {agent.name}\n\n  mulligan uninstall {agent.name} --dry-run",
    )
    @_add_common_options
    def _(project: bool, dry_run: bool, as_json: bool) -> None:
        _uninstall(agent, project, dry_run, as_json)


@install.command(
    "proxy",
    epilog="Examples:\n\n  mulligan install proxy --client claude-desktop --server git\n\n"
    "  mulligan install proxy --client cursor --server files --repair --pin --dry-run",
)
@click.option(
    "--client", type=click.Choice(list(clients.CLIENTS)), required=True, help="MCP client whose settings are edited."
)
@click.option("--server", metavar="NAME", help="Name of the server in these settings.")
@click.option("--repair", is_flag=True, help="Apply automatic repairs: see mulligan proxy --help.")
@click.option(
    "--pin",
    is_flag=True,
    help="Block tools whose definition is new or has changed until you run `mulligan proxy accept`.",
)
@click.option("--inject-lessons", is_flag=True, help="Add active lessons and promoted fixes to tool descriptions.")
@click.option("--trust-annotations", is_flag=True, help="Trust the server's annotations of side effects.")
@_add_common_options
def _install_proxy(
    client: str, server: str | None, project: bool, dry_run: bool, as_json: bool, **proxy_options: bool
) -> None:
    """Put `mulligan proxy` in front of an MCP server in a client's settings."""
    mcp_client = clients.CLIENTS[client]
    path = clients.config_path(mcp_client, project)
    server_name = _require_server_name(mcp_client, path, server)
    flags = [f"--{name.replace('_', '-')}" for name, is_given in proxy_options.items() if is_given]
    edit = clients.plan_edit(
        mcp_client, path, server_name, lambda start: clients.wrap_with_proxy(start, server_name, flags)
    )
    apply_edit(
        edit,
        dry_run,
        as_json,
        f"Calls to {server_name} from {mcp_client.display_name} now go through mulligan.",
        f"Already installed: nothing to change in {path}.",
        [f"Restart {mcp_client.display_name} to apply this."],
        client=client,
        server=server_name,
    )


@uninstall.command("proxy", epilog="Examples:\n\n  mulligan uninstall proxy --client claude-desktop --server git")
@click.option(
    "--client", type=click.Choice(list(clients.CLIENTS)), required=True, help="MCP client whose settings are edited."
)
@click.option("--server", metavar="NAME", help="Name of the server in these settings.")
@_add_common_options
def _uninstall_proxy(client: str, server: str | None, project: bool, dry_run: bool, as_json: bool) -> None:
    """Remove `mulligan proxy` from in front of an MCP server."""
    mcp_client = clients.CLIENTS[client]
    path = clients.config_path(mcp_client, project)
    server_name = _require_server_name(mcp_client, path, server)
    edit = clients.plan_edit(mcp_client, path, server_name, lambda start: clients.unwrap_proxy(start) or start)
    apply_edit(
        edit,
        dry_run,
        as_json,
        f"{mcp_client.display_name} starts {server_name} directly again.",
        f"Not installed: nothing to change in {path}.",
        [f"Restart {mcp_client.display_name} to apply this."],
        client=client,
        server=server_name,
    )


_client_option = click.option(
    "--client", type=click.Choice(list(clients.CLIENTS)), required=True, help="MCP client whose settings are edited."
)


@install.command("mcp-server", epilog="Examples:\n\n  mulligan install mcp-server --client claude-code\n\n"
                 "  mulligan install mcp-server --client cursor --project --dry-run")  # fmt: skip
@_client_option
@_add_common_options
def _install_mcp_server(client: str, project: bool, dry_run: bool, as_json: bool) -> None:
    """Add `mulligan mcp` to the servers of a client, so that its agent can query failure memory."""
    mcp_client = clients.CLIENTS[client]
    path = clients.config_path(mcp_client, project)
    apply_edit(
        mcp_server_config.plan_addition(mcp_client, path),
        dry_run,
        as_json,
        f"{mcp_client.display_name} can now query mulligan about failures.",
        f"Already installed: nothing to change in {path}.",
        [f"Restart {mcp_client.display_name} to apply this. Required: pip install 'mulligan[mcp]'"],
        client=client,
        server=mcp_server_config.SERVER_NAME,
    )


@uninstall.command("mcp-server", epilog="Examples:\n\n  mulligan uninstall mcp-server --client claude-code")
@_client_option
@_add_common_options
def _uninstall_mcp_server(client: str, project: bool, dry_run: bool, as_json: bool) -> None:
    """Remove `mulligan mcp` from the servers of a client."""
    mcp_client = clients.CLIENTS[client]
    path = clients.config_path(mcp_client, project)
    apply_edit(
        mcp_server_config.plan_removal(mcp_client, path),
        dry_run,
        as_json,
        f"Removed: {mcp_client.display_name} no longer starts mulligan mcp.",
        f"Not installed: nothing to change in {path}.",
        client=client,
        server=mcp_server_config.SERVER_NAME,
    )


def _require_server_name(client: clients.Client, path: Path, server_name: str | None) -> str:
    if server_name is not None:
        return server_name
    server_names = ", ".join(map(str, clients.read_servers(client, path))) or "none"
    raise SettingsError(f"Missing --server. Servers in {path}: {server_names}.")


_register_agent(CLAUDE_CODE, "~/.claude/settings.json, or .claude/settings.local.json of a project")
_register_agent(CODEX, "hooks.json in ~/.codex, or in .codex of a project")
_register_agent(GEMINI, "settings.json in ~/.gemini, or in .gemini of a project")
