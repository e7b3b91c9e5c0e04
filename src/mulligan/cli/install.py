"""mulligan install and mulligan uninstall: edit other programs' settings so that they run mulligan."""

from __future__ import annotations

import copy
import re
import shlex
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

import mulligan
from mulligan.cli import CommandGroup, clients
from mulligan.cli.clients import AGENTS, MCP_CLIENTS, SERVER_NAME, Client, ServerList, settings_path
from mulligan.cli.config_edits import Edit, json_edit, read_json, read_toml
from mulligan.cli.options import CommandContext, add_options, command
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
HOOK_COMMAND_PATTERN = re.compile(r"\bmulligan-hook\b|\bmulligan[/\\](?:serve[/\\])?hooks[/\\]")
_edit_options = add_options(
    click.option(
        "--project", is_flag=True, help="Edit the settings of the project in this folder, not your user settings."
    ),
    click.option("--dry-run", is_flag=True, help="Show the change without writing it."),
)
_client_option = click.option(
    "--client", type=click.Choice(list(MCP_CLIENTS)), required=True, help="MCP client whose settings are edited."
)
_server_option = click.option("--server", metavar="NAME", help="Name of the server in these settings.")


@click.group(cls=CommandGroup, epilog=EXAMPLES.format("install"))
def install() -> None:
    """Connect mulligan to a coding agent or MCP client: edits its settings, keeps a backup, shows the diff.

    Installing twice changes nothing. A settings file that cannot be parsed is not changed.
    """


@click.group(cls=CommandGroup, epilog=EXAMPLES.format("uninstall"))
def uninstall() -> None:
    """Remove from a program's settings what `mulligan install` added, and nothing else."""


_install_command = partial(command, parent=install, has_store=False)
_uninstall_command = partial(command, parent=uninstall, has_store=False)


def _apply(
    context: CommandContext, edit: Edit, is_dry_run: bool, success_message: str, *next_steps: str, **facts: Any
) -> None:
    """Apply an edit, except in a dry run, and print it with the next steps."""
    backup_path = edit.apply() if edit.has_changes and not is_dry_run else None
    facts |= {
        "file": str(edit.path),
        "changed": edit.has_changes,
        "dry_run": is_dry_run,
        "difference": edit.to_diff(),
        "backup": str(backup_path) if backup_path else None,
        "then": next_steps,
    }
    if not edit.has_changes:
        parent = click.get_current_context().parent
        state = "Not" if parent is not None and parent.command is uninstall else "Already"
        context.print(facts, f"{state} installed: nothing to change in {edit.path}.")
        return
    # Lines keep their layout so that the diff stays readable, but control characters are removed.
    lines = [
        "".join(letter if letter.isprintable() or letter == "\t" else " " for letter in line[:MAX_DIFF_LINE_CHARS])
        for line in edit.to_diff().splitlines()
    ]
    lines += ["", f"Dry run: {edit.path} was not changed." if is_dry_run else success_message]
    if not is_dry_run:
        lines += [f"Backup of the old file: {backup_path}"] if backup_path is not None else []
        lines += next_steps
    context.print(facts, "\n".join(lines))


# Hooks of coding agents


def build_hook_command(agent: str) -> str:
    """Build the shell command of a hook. If Python or the package is missing, the command succeeds without output.

    The interpreter starts without `site` and runs `start.py` by its path, which takes a third of the time. `-E` and
    `-P` prevent imports from cloned repositories, in which agents run hooks.
    """
    start = Path(mulligan.__file__).parent / "hooks" / "start.py"
    return f"{shlex.quote(sys.executable)} -ESP {shlex.quote(str(start))} {agent} 2>/dev/null || :"


def _add_hooks(settings: Mapping[str, Any], agent: Client, path: Path) -> dict[str, Any]:
    """Return the settings with our hooks, each once, next to existing hooks."""
    new_settings = _remove_hooks(settings, path)
    hooks = new_settings.setdefault("hooks", {})
    for event, matcher in agent.hook_events.items():
        seconds = SESSION_END_TIMEOUT_SECONDS if event == "SessionEnd" else HOOK_TIMEOUT_SECONDS
        timeout = seconds * agent.timeout_units_per_second
        handler = {"type": "command", "command": build_hook_command(agent.name), "timeout": timeout}
        hooks.setdefault(event, []).append({**({"matcher": matcher} if matcher else {}), "hooks": [handler]})
    return new_settings


def _remove_hooks(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings without our hooks and otherwise unchanged."""
    new_settings = copy.deepcopy(dict(settings))
    hooks = new_settings.get("hooks", {})
    if not isinstance(hooks, dict) or not all(isinstance(entries, list) for entries in hooks.values()):
        raise SettingsError(f"{path}: `hooks` is not a table of lists. Fix it first; nothing was changed.")
    for event, entries in list(hooks.items()):
        hooks[event] = [entry for entry in map(_remove_hook_commands, entries) if entry is not None]
        if entries and not hooks[event]:
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


def _setup_warnings(agent: Client) -> list[str]:
    """Return warnings about other settings that disable hooks."""
    if agent.name != "codex":
        return []
    config = clients.find_folders()["codex"] / "config.toml"
    features = read_toml(config)[1].get("features", {})
    if isinstance(features, dict) and (features.get("hooks") is False or features.get("codex_hooks") is False):
        return [f"{config} turns hooks off. Remove that line from its [features]."]
    return []


def _register_agent(agent: Client) -> None:
    """Register `mulligan install AGENT` and `mulligan uninstall AGENT`."""

    @_install_command(
        f"mulligan install {agent.name}",
        f"mulligan install {agent.name} --project --dry-run",
        name=agent.name,
        help=f"Install hooks that keep failures of {agent.display_name} across compactions. Edits {agent.hooks_help}.",
    )
    @_edit_options
    def add_hooks(context: CommandContext, project: bool, dry_run: bool) -> None:
        path = settings_path(agent, agent.hook_file, project)
        warnings = _setup_warnings(agent)
        before, settings = read_json(path)
        edit = json_edit(path, before, _add_hooks(settings, agent, path))
        message = f"Hooks installed: mulligan records failed calls of {agent.display_name} and reminds it of them"
        _apply(context, edit, dry_run, f"{message} after a compaction.", *warnings, agent.next_step, agent=agent.name)

    @_uninstall_command(
        f"mulligan uninstall {agent.name}",
        f"mulligan uninstall {agent.name} --dry-run",
        name=agent.name,
        help=f"Remove mulligan's hooks from the settings of {agent.display_name}.",
    )
    @_edit_options
    def remove_hooks(context: CommandContext, project: bool, dry_run: bool) -> None:
        path = settings_path(agent, agent.hook_file, project)
        before, settings = read_json(path)
        edit = json_edit(path, before, _remove_hooks(settings, path)) if settings else Edit(path, before, before)
        message = f"Hooks removed from {agent.display_name}. Recorded sessions stay: mulligan sessions"
        _apply(context, edit, dry_run, message, agent=agent.name)


for _agent in AGENTS.values():
    _register_agent(_agent)


# Servers of MCP clients


def _read_servers(client: str, project: bool) -> tuple[ServerList, str]:
    """Return the servers of a client, and its name for messages."""
    mcp_client = MCP_CLIENTS[client]
    path = settings_path(mcp_client, mcp_client.server_file, project)
    return ServerList(mcp_client, path), mcp_client.display_name


def _require_server(servers: ServerList, server: str | None) -> str:
    if server is None:
        names = ", ".join(map(str, servers.servers)) or "none"
        raise SettingsError(f"Missing --server. Servers in {servers.path}: {names}.")
    return server


@_install_command(
    "mulligan install proxy --client claude-desktop --server git",
    "mulligan install proxy --client cursor --server files --repair --pin --dry-run",
    name="proxy",
)
@_client_option
@_server_option
@click.option("--repair", is_flag=True, help="Apply automatic repairs: see mulligan proxy --help.")
@click.option(
    "--pin",
    is_flag=True,
    help="Block tools whose definition is new or has changed until you run `mulligan proxy accept`.",
)
@click.option("--inject-lessons", is_flag=True, help="Add active lessons and promoted fixes to tool descriptions.")
@click.option("--trust-annotations", is_flag=True, help="Trust the server's annotations of side effects.")
@_edit_options
def _install_proxy(
    context: CommandContext, client: str, server: str | None, project: bool, dry_run: bool, **flags: bool
) -> None:
    """Put `mulligan proxy` in front of an MCP server in a client's settings."""
    servers, display_name = _read_servers(client, project)
    name = _require_server(servers, server)
    words = [f"--{flag.replace('_', '-')}" for flag, is_set in flags.items() if is_set]
    edit = servers.plan_start(name, clients.wrap_with_proxy(servers.read_start(name), name, words))
    message = f"Calls to {name} from {display_name} now go through mulligan."
    _apply(context, edit, dry_run, message, f"Restart {display_name} to apply this.", client=client, server=name)


@_uninstall_command("mulligan uninstall proxy --client claude-desktop --server git", name="proxy")
@_client_option
@_server_option
@_edit_options
def _uninstall_proxy(context: CommandContext, client: str, server: str | None, project: bool, dry_run: bool) -> None:
    """Remove `mulligan proxy` from in front of an MCP server."""
    servers, display_name = _read_servers(client, project)
    name = _require_server(servers, server)
    start = servers.read_start(name)
    edit = servers.plan_start(name, clients.unwrap_proxy(start) or start)
    message = f"{display_name} starts {name} directly again."
    _apply(context, edit, dry_run, message, f"Restart {display_name} to apply this.", client=client, server=name)


@_install_command(
    "mulligan install mcp-server --client claude-code",
    "mulligan install mcp-server --client cursor --project --dry-run",
    name="mcp-server",
)
@_client_option
@_edit_options
def _install_mcp_server(context: CommandContext, client: str, project: bool, dry_run: bool) -> None:
    """Add `mulligan mcp` to the servers of a client, so that its agent can query failure memory."""
    servers, display_name = _read_servers(client, project)
    message = f"{display_name} can now query mulligan about failures."
    next_step = f"Restart {display_name} to apply this. Required: pip install 'mulligan[mcp]'"
    _apply(context, servers.plan_addition(), dry_run, message, next_step, client=client, server=SERVER_NAME)


@_uninstall_command("mulligan uninstall mcp-server --client claude-code", name="mcp-server")
@_client_option
@_edit_options
def _uninstall_mcp_server(context: CommandContext, client: str, project: bool, dry_run: bool) -> None:
    """Remove `mulligan mcp` from the servers of a client."""
    servers, display_name = _read_servers(client, project)
    message = f"Removed: {display_name} no longer starts mulligan mcp."
    _apply(context, servers.plan_removal(), dry_run, message, client=client, server=SERVER_NAME)
