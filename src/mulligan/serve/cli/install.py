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
from mulligan.failure import SettingsError
from mulligan.serve.cli import asking, clients
from mulligan.serve.cli.edits import Edit, json_edit, read_json, read_toml
from mulligan.serve.cli.groups import Group
from mulligan.serve.cli.options import as_json, print_json

SECONDS = 10
"""Time limit after which an agent continues without the hook. A hook takes about 0.1 seconds."""
AT_THE_END = 3
"""Time limit at the end of a session. No agent waits longer."""
WIDEST = 400
"""Longest line of a diff on the terminal."""
EXAMPLES = (
    "Examples:\n\n  mulligan {0} claude-code --dry-run\n\n  mulligan {0} codex\n\n  mulligan {0} gemini --project"
)


class Agent(NamedTuple):
    """Coding agent and the hook events to install."""

    name: str
    """Argument of `mulligan-hook`."""
    spoken: str
    events: Mapping[str, str | None]
    """Hook events, each with an optional matcher."""
    unit: int = 1
    """Units of the agent's timeout setting: 1 for seconds, 1000 for milliseconds."""
    then: str = ""
    """One-time instruction for the user."""


CLAUDE_CODE = Agent(
    "claude-code",
    "Claude Code",
    {"PostToolUseFailure": None, "PostToolBatch": None, "SessionStart": "compact", "SessionEnd": None},
    then="Sessions that are open take it up when they are started again.",
)
CODEX = Agent(
    "codex",
    "Codex",
    {"PostToolUse": None, "SessionStart": "compact", "SessionEnd": None},
    then="Codex runs a hook once you trust it: start codex, type /hooks and trust those of mulligan.",
)
GEMINI = Agent(
    "gemini",
    "Gemini CLI",
    {"AfterTool": None, "BeforeAgent": None, "PreCompress": None, "SessionEnd": None},
    unit=1000,
    then="Sessions that are open take it up when they are started again.",
)


def command(agent: Agent) -> str:
    """Build the shell command of a hook. If Python or the package is missing, the command succeeds without output.

    The interpreter starts without `site` and runs `start.py` by its path, which takes a third of the time. `-E` and
    `-P` prevent imports from cloned repositories, in which agents run hooks.
    """
    start = Path(mulligan.__file__).parent / "serve" / "hooks" / "start.py"
    return f"{shlex.quote(sys.executable)} -ESP {shlex.quote(str(start))} {agent.name} 2>/dev/null || :"


_OURS = re.compile(r"\bmulligan-hook\b|\bmulligan[/\\]serve[/\\]hooks[/\\]")


def with_hooks(settings: Mapping[str, Any], agent: Agent, path: Path) -> dict[str, Any]:
    """Return the settings with our hooks, each once, next to existing hooks."""
    made = without_hooks(settings, path)
    hooks = made.setdefault("hooks", {})
    for event, matcher in agent.events.items():
        entry: dict[str, Any] = {"matcher": matcher} if matcher else {}
        seconds = AT_THE_END if event == "SessionEnd" else SECONDS
        entry["hooks"] = [{"type": "command", "command": command(agent), "timeout": seconds * agent.unit}]
        hooks.setdefault(event, []).append(entry)
    return made


def without_hooks(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings without our hooks and otherwise unchanged."""
    made = copy.deepcopy(dict(settings))
    hooks = made.get("hooks", {})
    if not isinstance(hooks, dict) or not all(isinstance(entries, list) for entries in hooks.values()):
        raise SettingsError(f"{path}: `hooks` is not laid out as a table of lists. Mend it first; nothing was done.")
    for event, entries in list(hooks.items()):
        left = [kept for entry in entries if (kept := _without(entry)) is not None]
        if left != entries:
            hooks[event] = left
            if not left:
                del hooks[event]
    if not hooks and settings.get("hooks"):
        del made["hooks"]
    return made


def _without(entry: Any) -> Any:
    """Return a hook entry without our commands, or None if nothing else remains."""
    handlers = entry.get("hooks") if isinstance(entry, dict) else None
    if not isinstance(handlers, list):
        return entry
    left = [each for each in handlers if not (isinstance(each, dict) and _OURS.search(str(each.get("command", ""))))]
    if len(left) == len(handlers):
        return entry
    return {**entry, "hooks": left} if left else None


def settings_of(agent: Agent, project: bool) -> Path:
    """Return the settings file of an agent. For a project, prefer the file that is not committed."""
    if project:
        here = Path.cwd()
        return {
            "claude-code": here / ".claude" / "settings.local.json",
            "codex": here / ".codex" / "hooks.json",
            "gemini": here / ".gemini" / "settings.json",
        }[agent.name]
    return {
        "claude-code": _folder("CLAUDE_CONFIG_DIR", ".claude") / "settings.json",
        "codex": _folder("CODEX_HOME", ".codex") / "hooks.json",
        "gemini": Path.home() / ".gemini" / "settings.json",
    }[agent.name]


def _folder(variable: str, usual: str) -> Path:
    named = os.environ.get(variable)
    return Path(named).expanduser() if named else Path.home() / usual


def _advice(agent: Agent) -> list[str]:
    """Return warnings about other settings that disable hooks."""
    if agent is not CODEX:
        return []
    config = _folder("CODEX_HOME", ".codex") / "config.toml"
    _, told = read_toml(config)
    features = told.get("features", {})
    if isinstance(features, dict) and (features.get("hooks") is False or features.get("codex_hooks") is False):
        return [f"{config} switches hooks off. Take the line out of its [features]."]
    return []


def perform(
    edit: Edit, dry_run: bool, as_json: bool, done: str, nothing: str, then: list[str] | None = None, **facts: Any
) -> None:
    """Show an edit, apply it unless this is a dry run, and print the result and the next steps."""
    saved = edit.make() if edit.changes and not dry_run else None
    if as_json:
        print_json(
            facts
            | {
                "file": str(edit.path),
                "changed": edit.changes,
                "dry_run": dry_run,
                "difference": edit.difference(),
                "backup": str(saved) if saved else None,
                "then": then or [],
            }
        )
        return
    if not edit.changes:
        click.echo(nothing)
        return
    for each in edit.difference().splitlines():
        # Lines keep their layout so that the diff stays readable, but control characters are removed.
        click.echo("".join(letter if letter.isprintable() or letter == "\t" else " " for letter in each[:WIDEST]))
    click.echo("")
    click.echo(f"Nothing was written: this was a rehearsal of {edit.path}." if dry_run else done)
    if saved is not None:
        click.echo(f"The file as it was: {saved}")
    for each in then or () if not dry_run else ():
        click.echo(each)


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        as_json,
        click.option("--dry-run", is_flag=True, help="Only show what would change."),
        click.option("--project", is_flag=True, help="For the project in this folder, not for all of yours."),
    ):
        function = option(function)
    return function


@click.group(cls=Group, epilog=EXAMPLES.format("install"))
def install() -> None:
    """Let a program's failures come to mulligan: edits its settings, keeps a copy, shows the difference.

    Doing it twice is doing it once. A file that cannot be read as what it should be is left alone.
    """


@click.group(cls=Group, epilog=EXAMPLES.format("uninstall"))
def uninstall() -> None:
    """Take out of a program's settings what `mulligan install` put there, and nothing else."""


def _install(agent: Agent, project: bool, dry_run: bool, as_json: bool) -> None:
    path = settings_of(agent, project)
    advice = _advice(agent)
    before, settings = read_json(path)
    edit = json_edit(path, before, with_hooks(settings, agent, path))
    perform(
        edit,
        dry_run,
        as_json,
        f"{agent.spoken} now tells mulligan of failed calls, and is reminded of them after a compaction.",
        f"It is installed: nothing to change in {path}.",
        [*advice, agent.then],
        agent=agent.name,
    )


def _uninstall(agent: Agent, project: bool, dry_run: bool, as_json: bool) -> None:
    path = settings_of(agent, project)
    before, settings = read_json(path)
    edit = json_edit(path, before, without_hooks(settings, path)) if settings else Edit(path, before, before)
    perform(
        edit,
        dry_run,
        as_json,
        f"{agent.spoken} tells mulligan nothing any more. What was kept stays: mulligan sessions",
        f"It is not installed: nothing to change in {path}.",
        agent=agent.name,
    )


def _add(agent: Agent, where: str) -> None:
    """Register `mulligan install AGENT` and `mulligan uninstall AGENT`."""

    @install.command(
        agent.name,
        help=f"Let failures of {agent.spoken} survive a compaction. Edits {where}.",
        epilog=f"Examples:\n\n  mulligan install {agent.name}\n\n  mulligan install {agent.name} --project --dry-run",
    )
    @_options
    def _(project: bool, dry_run: bool, as_json: bool) -> None:
        _install(agent, project, dry_run, as_json)

    @uninstall.command(
        agent.name,
        help=f"Take mulligan's hooks out of the settings of {agent.spoken}.",
        epilog=f"Examples:\n\n  mulligan uninstall {agent.name}\n\n  mulligan uninstall {agent.name} --dry-run",
    )
    @_options
    def _(project: bool, dry_run: bool, as_json: bool) -> None:
        _uninstall(agent, project, dry_run, as_json)


@install.command(
    "mcp",
    epilog="Examples:\n\n  mulligan install mcp --client claude-desktop --server git\n\n"
    "  mulligan install mcp --client cursor --server files --repair --pin --dry-run",
)
@click.option("--client", type=click.Choice(list(clients.CLIENTS)), required=True, help="Whose settings.")
@click.option("--server", metavar="NAME", help="Which of its servers.")
@click.option("--repair", is_flag=True, help="Let sure repairs be made: see mulligan proxy --help.")
@click.option("--pin", is_flag=True, help="Hold back tools that are new or changed.")
@click.option("--teach", is_flag=True, help="Add what is proven to help to descriptions.")
@click.option("--trust-annotations", is_flag=True, help="Believe what the server says of its tools' effects.")
@_options
def _install_mcp(client: str, server: str | None, project: bool, dry_run: bool, as_json: bool, **given: bool) -> None:
    """Put `mulligan proxy` before an MCP server in a client's settings."""
    known = clients.CLIENTS[client]
    path = clients.path_of(known, project)
    named = _server(known, path, server)
    flags = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
    edit = clients.edit(known, path, named, lambda start: clients.wrapped(start, named, flags))
    perform(
        edit,
        dry_run,
        as_json,
        f"Calls of {named} in {known.spoken} now go through mulligan.",
        f"It is installed: nothing to change in {path}.",
        [f"{known.spoken} takes it up when it is started again."],
        client=client,
        server=named,
    )


@uninstall.command("mcp", epilog="Examples:\n\n  mulligan uninstall mcp --client claude-desktop --server git")
@click.option("--client", type=click.Choice(list(clients.CLIENTS)), required=True, help="Whose settings.")
@click.option("--server", metavar="NAME", help="Which of its servers.")
@_options
def _uninstall_mcp(client: str, server: str | None, project: bool, dry_run: bool, as_json: bool) -> None:
    """Take `mulligan proxy` away from before an MCP server."""
    known = clients.CLIENTS[client]
    path = clients.path_of(known, project)
    named = _server(known, path, server)
    edit = clients.edit(known, path, named, lambda start: clients.unwrapped(start) or start)
    perform(
        edit,
        dry_run,
        as_json,
        f"{named} is started by {known.spoken} itself again.",
        f"It is not installed: nothing to change in {path}.",
        [f"{known.spoken} takes it up when it is started again."],
        client=client,
        server=named,
    )


_client = click.option("--client", type=click.Choice(list(clients.CLIENTS)), required=True, help="Whose settings.")


@install.command("ask", epilog="Examples:\n\n  mulligan install ask --client claude-code\n\n"
                 "  mulligan install ask --client cursor --project --dry-run")  # fmt: skip
@_client
@_options
def _install_ask(client: str, project: bool, dry_run: bool, as_json: bool) -> None:
    """Let an agent ask what is known about failures: puts `mulligan mcp` among the servers of its client."""
    known = clients.CLIENTS[client]
    path = clients.path_of(known, project)
    perform(
        asking.added(known, path),
        dry_run,
        as_json,
        f"{known.spoken} can now ask mulligan what is known about a failure.",
        f"It is installed: nothing to change in {path}.",
        [f"{known.spoken} takes it up when it is started again. It needs pip install 'mulligan[mcp]'."],
        client=client,
        server=asking.NAME,
    )


@uninstall.command("ask", epilog="Examples:\n\n  mulligan uninstall ask --client claude-code")
@_client
@_options
def _uninstall_ask(client: str, project: bool, dry_run: bool, as_json: bool) -> None:
    """Take `mulligan mcp` out of the servers of a client."""
    known = clients.CLIENTS[client]
    path = clients.path_of(known, project)
    perform(
        asking.removed(known, path),
        dry_run,
        as_json,
        f"{known.spoken} does not start mulligan mcp any more.",
        f"It is not installed: nothing to change in {path}.",
        client=client,
        server=asking.NAME,
    )


def _server(client: clients.Client, path: Path, named: str | None) -> str:
    if named is not None:
        return named
    known = ", ".join(map(str, clients.servers_of(client, path))) or "none"
    raise SettingsError(f"--server says which of the servers in {path}. There are: {known}.")


_add(CLAUDE_CODE, "~/.claude/settings.json, or .claude/settings.local.json of a project")
_add(CODEX, "hooks.json in ~/.codex, or in .codex of a project")
_add(GEMINI, "settings.json in ~/.gemini, or in .gemini of a project")
