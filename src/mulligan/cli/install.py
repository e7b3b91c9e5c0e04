"""mulligan install and mulligan uninstall: edit other programs' settings so that they run mulligan."""

from __future__ import annotations

import copy
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

import mulligan
from mulligan.cli import clients
from mulligan.cli.clients import AGENTS, MCP_CLIENTS, Client, settings_path
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


def build_hook_command(agent: str) -> str:
    """Build the shell command of a hook. If Python or the package is missing, the command succeeds without output.

    The interpreter starts without `site` and runs `start.py` by its path, which takes a third of the time. `-E` and
    `-P` prevent imports from cloned repositories, in which agents run hooks.
    """
    start = Path(mulligan.__file__).parent / "hooks" / "start.py"
    return f"{shlex.quote(sys.executable)} -ESP {shlex.quote(str(start))} {agent} 2>/dev/null || :"


HOOK_COMMAND_PATTERN = re.compile(r"\bmulligan-hook\b|\bmulligan[/\\](?:serve[/\\])?hooks[/\\]")


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
        remaining_entries = [
            remaining_entry for entry in entries if (remaining_entry := _remove_hook_commands(entry)) is not None
        ]
        if remaining_entries:
            hooks[event] = remaining_entries
        elif entries:
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
    config = clients.agent_folder("CODEX_HOME", ".codex") / "config.toml"
    features = read_toml(config)[1].get("features", {})
    if isinstance(features, dict) and (features.get("hooks") is False or features.get("codex_hooks") is False):
        return [f"{config} turns hooks off. Remove that line from its [features]."]
    return []


def _apply(edit: Edit, options: Mapping[str, Any], success_message: str, *next_steps: str, **facts: Any) -> None:
    """Apply an edit unless the options ask for a dry run, and print it with the next steps."""
    backup_path = edit.apply() if edit.has_changes and not options["dry_run"] else None
    if options["as_json"]:
        facts |= {
            "file": str(edit.path),
            "changed": edit.has_changes,
            "dry_run": options["dry_run"],
            "difference": edit.to_diff(),
            "backup": str(backup_path) if backup_path else None,
            "then": next_steps,
        }
        print_json(facts)
        return
    if not edit.has_changes:
        parent = click.get_current_context().parent
        is_removal = parent is not None and parent.command is uninstall
        click.echo(f"{'Not' if is_removal else 'Already'} installed: nothing to change in {edit.path}.")
        return
    for line in edit.to_diff().splitlines():
        # Lines keep their layout so that the diff stays readable, but control characters are removed.
        shown_line = line[:MAX_DIFF_LINE_CHARS]
        click.echo("".join(letter if letter.isprintable() or letter == "\t" else " " for letter in shown_line))
    click.echo("")
    click.echo(f"Dry run: {edit.path} was not changed." if options["dry_run"] else success_message)
    if backup_path is not None:
        click.echo(f"Backup of the old file: {backup_path}")
    for instruction in next_steps if not options["dry_run"] else ():
        click.echo(instruction)


def _add_common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    project_help = "Edit the settings of the project in this folder, not your user settings."
    function = click.option("--dry-run", is_flag=True, help="Show the change without writing it.")(as_json(function))
    return click.option("--project", is_flag=True, help=project_help)(function)


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


def _register_agent(agent: Client) -> None:
    """Register `mulligan install AGENT` and `mulligan uninstall AGENT`."""

    @install.command(
        agent.name,
        help=f"Install hooks that keep failures of {agent.display_name} across compactions. Edits {agent.hooks_help}.",
        epilog=f"Examples:\n\n  mulligan install {agent.name}\n\n  mulligan install {agent.name} --project --dry-run",
    )
    @_add_common_options
    def _(project: bool, **options: bool) -> None:
        path = settings_path(agent, agent.hook_file, project)
        warnings = _setup_warnings(agent)
        before, settings = read_json(path)
        edit = json_edit(path, before, _add_hooks(settings, agent, path))
        message = f"Hooks installed: mulligan records failed calls of {agent.display_name} and reminds it of them"
        _apply(edit, options, f"{message} after a compaction.", *warnings, agent.next_step, agent=agent.name)

    @uninstall.command(
        agent.name,
        help=f"Remove mulligan's hooks from the settings of {agent.display_name}.",
        epilog=f"Examples:\n\n  mulligan uninstall {agent.name}\n\n  mulligan uninstall {agent.name} --dry-run",
    )
    @_add_common_options
    def _(project: bool, **options: bool) -> None:
        path = settings_path(agent, agent.hook_file, project)
        before, settings = read_json(path)
        edit = json_edit(path, before, _remove_hooks(settings, path)) if settings else Edit(path, before, before)
        message = f"Hooks removed from {agent.display_name}. Recorded sessions stay: mulligan sessions"
        _apply(edit, options, message, agent=agent.name)


for _agent in AGENTS.values():
    _register_agent(_agent)


@install.command(
    "proxy",
    epilog="Examples:\n\n  mulligan install proxy --client claude-desktop --server git\n\n"
    "  mulligan install proxy --client cursor --server files --repair --pin --dry-run",
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
@_add_common_options
def _install_proxy(client: str, server: str | None, project: bool, dry_run: bool, as_json: bool, **flags: bool) -> None:
    """Put `mulligan proxy` in front of an MCP server in a client's settings."""
    mcp_client, path, name = _find_server(client, server, project)
    words = [f"--{flag.replace('_', '-')}" for flag, is_set in flags.items() if is_set]
    edit = clients.plan_edit(mcp_client, path, name, lambda start: clients.wrap_with_proxy(start, name, words))
    message = f"Calls to {name} from {mcp_client.display_name} now go through mulligan."
    next_step = f"Restart {mcp_client.display_name} to apply this."
    _apply(edit, {"dry_run": dry_run, "as_json": as_json}, message, next_step, client=client, server=name)


@uninstall.command("proxy", epilog="Examples:\n\n  mulligan uninstall proxy --client claude-desktop --server git")
@_client_option
@_server_option
@_add_common_options
def _uninstall_proxy(client: str, server: str | None, project: bool, **options: bool) -> None:
    """Remove `mulligan proxy` from in front of an MCP server."""
    mcp_client, path, name = _find_server(client, server, project)
    edit = clients.plan_edit(mcp_client, path, name, lambda start: clients.unwrap_proxy(start) or start)
    message = f"{mcp_client.display_name} starts {name} directly again."
    next_step = f"Restart {mcp_client.display_name} to apply this."
    _apply(edit, options, message, next_step, client=client, server=name)


@install.command("mcp-server", epilog="Examples:\n\n  mulligan install mcp-server --client claude-code\n\n"
                 "  mulligan install mcp-server --client cursor --project --dry-run")  # fmt: skip
@_client_option
@_add_common_options
def _install_mcp_server(client: str, project: bool, **options: bool) -> None:
    """Add `mulligan mcp` to the servers of a client, so that its agent can query failure memory."""
    mcp_client = MCP_CLIENTS[client]
    edit = clients.plan_addition(mcp_client, settings_path(mcp_client, mcp_client.server_file, project))
    message = f"{mcp_client.display_name} can now query mulligan about failures."
    next_step = f"Restart {mcp_client.display_name} to apply this. Required: pip install 'mulligan[mcp]'"
    _apply(edit, options, message, next_step, client=client, server=clients.SERVER_NAME)


@uninstall.command("mcp-server", epilog="Examples:\n\n  mulligan uninstall mcp-server --client claude-code")
@_client_option
@_add_common_options
def _uninstall_mcp_server(client: str, project: bool, **options: bool) -> None:
    """Remove `mulligan mcp` from the servers of a client."""
    mcp_client = MCP_CLIENTS[client]
    edit = clients.plan_removal(mcp_client, settings_path(mcp_client, mcp_client.server_file, project))
    message = f"Removed: {mcp_client.display_name} no longer starts mulligan mcp."
    _apply(edit, options, message, client=client, server=clients.SERVER_NAME)


def _find_server(client: str, server: str | None, project: bool) -> tuple[Client, Path, str]:
    """Return the client, its settings file and the name of the server, which is required."""
    mcp_client = MCP_CLIENTS[client]
    path = settings_path(mcp_client, mcp_client.server_file, project)
    if server is None:
        names = ", ".join(map(str, clients.read_servers(mcp_client, path)[2])) or "none"
        raise SettingsError(f"Missing --server. Servers in {path}: {names}.")
    return mcp_client, path, server
