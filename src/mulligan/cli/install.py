"""mulligan install and mulligan uninstall: edit other programs' settings so that they run mulligan."""

from __future__ import annotations

import difflib
import json
import re
import shutil
import sys
from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

import mulligan
from mulligan.cli import CommandGroup, clients
from mulligan.cli.clients import (
    AGENTS,
    MCP_CLIENTS,
    Client,
    check_project_file,
    prefer_user_file,
    select_file,
    settings_path,
)
from mulligan.cli.config_edits import (
    Edit,
    apply_installation,
    find_installed_files,
    plan_edit,
    plan_restoration,
    read_document,
    read_text,
)
from mulligan.cli.config_text import ConfigText
from mulligan.cli.options import CommandContext, add_options, command
from mulligan.cli.prompt import remove_section, write_lessons
from mulligan.cli.server_entries import PLUGIN_START, SERVER_NAME, ServerList
from mulligan.cli.toml_text import add_read_file, reads_file, remove_read_file
from mulligan.core.failure import INSTALL_EXTRA, SettingsError
from mulligan.hooks.event_processing import store_path
from mulligan.settings import hook_folder, load_settings

EXAMPLES = (
    "Examples:\n\n  mulligan {0} claude-code --dry-run\n\n  mulligan {0} codex\n\n  mulligan {0} gemini --project"
)
HOOK_COMMAND_PATTERN = re.compile(r"\bmulligan-hook\b|\bmulligan[/\\]hooks[/\\]")
_edit_options = add_options(
    click.option(
        "--project", is_flag=True, help="Edit the settings of the project in this folder, not your user settings."
    ),
    click.option("--dry-run", is_flag=True, help="Show the change without writing it."),
)


class ClientChoice(click.Choice[str]):
    """Name of an MCP client. An unknown one is answered with those that it may stand for."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in self.choices:
            return str(value)
        similar = [name for name in self.choices if name.startswith(value) or value.startswith(name)]
        similar = similar or difflib.get_close_matches(value, self.choices)
        advice = f"Did you mean {' or '.join(similar)}?" if similar else f"One of: {', '.join(self.choices)}."
        raise click.BadParameter(f"Unknown client {value!r}. {advice}", ctx, param)


_client_option = click.option(
    "--client", type=ClientChoice(list(MCP_CLIENTS)), required=True, help="MCP client whose settings are edited."
)
_proxy_options = add_options(
    click.option(
        "--client",
        type=ClientChoice(list(MCP_CLIENTS)),
        help="MCP client whose settings are edited. With --all, the default is every client that has settings.",
    ),
    click.option("--server", metavar="NAME", help="Name of the server in these settings."),
    click.option(
        "--all",
        "is_all",
        is_flag=True,
        help="Every server of the client: in your settings, in those of this folder and in its project files.",
    ),
)


@click.group(cls=CommandGroup, epilog=EXAMPLES.format("install"))
def install() -> None:
    """Connect mulligan to a coding agent or MCP client: edits the text of its settings and shows the diff.

    Comments and layout stay. Installing twice changes nothing. A settings file that cannot be parsed is not changed.
    """


@click.group(cls=CommandGroup, epilog=EXAMPLES.format("uninstall"))
def uninstall() -> None:
    """Remove from a program's settings what `mulligan install` added, and nothing else.

    A file that was not edited since is restored byte for byte.
    """


_install_command = partial(command, parent=install, has_store=False)
_uninstall_command = partial(command, parent=uninstall, has_store=False)


class FileChange(NamedTuple):
    """Edit of one settings file, and the entries of ours that it adds or removes."""

    edit: Edit
    added: Set[str] = frozenset()
    removed: Set[str] = frozenset()


def _apply(
    context: CommandContext,
    changes: Sequence[FileChange],
    is_dry_run: bool,
    success_message: str,
    *next_steps: str,
    unchanged: str = "",
    warnings: Sequence[str] = (),
    **facts: Any,
) -> None:
    """Apply the edits, except in a dry run, and print them with the warnings and the next steps."""
    changes = [
        change._replace(edit=plan_restoration(change.edit, change.removed)) if change.edit.has_changes else change
        for change in changes
    ]
    written_paths: list[str] = []
    for change in changes if not is_dry_run else ():
        if change.edit.has_changes:
            try:
                apply_installation(*change)
            except SettingsError as error:
                already = f" These files were changed before: {', '.join(written_paths)}." if written_paths else ""
                raise SettingsError(f"{error}{already}") from None
            written_paths.append(str(change.edit.path))
    edits = [change.edit for change in changes]
    files = [{"file": str(edit.path), "changed": edit.has_changes, "difference": edit.to_diff()} for edit in edits]
    facts |= {"files": files, "changed": any(edit.has_changes for edit in edits), "dry_run": is_dry_run}
    next_steps = (*warnings, *next_steps)
    facts["then"] = next_steps if facts["changed"] else warnings
    paths = ", ".join(dict.fromkeys(str(edit.path) for edit in edits))
    if not facts["changed"]:
        context.print(facts, "\n".join([f"{unchanged}Nothing to change in {paths or 'any settings file'}.", *warnings]))
        return
    # Lines keep their layout so that the diff stays readable, but control characters are removed.
    lines = [
        "".join(letter if letter.isprintable() or letter == "\t" else " " for letter in _shorten_line(line))
        for edit in edits
        for line in edit.to_diff().splitlines()
    ]
    were = "were" if len({edit.path for edit in edits}) > 1 else "was"
    lines += ["", *([f"Dry run: {paths} {were} not changed."] if is_dry_run else (success_message, *next_steps))]
    context.print(facts, "\n".join(lines))


def _shorten_line(line: str) -> str:
    """Leave out the middle of a long line: both ends name the command."""
    return line if len(line) <= 400 else f"{line[:200]} [...] {line[-200:]}"


# Hooks of coding agents


def build_hook_command(agent: str) -> str:
    """Build the shell command of a hook. If Python or the package is missing, the command succeeds without output.

    The interpreter starts without `site` and runs `start.py` by its path, which takes a third of the time. `-E` and
    `-P` prevent imports from cloned repositories, in which agents run hooks.
    """
    shell = AGENTS[agent].windows_shell if sys.platform == "win32" else "sh"
    start = Path(mulligan.__file__).parent / "hooks" / "start.py"
    words = clients.quote_words([sys.executable, "-ESP", str(start), agent], shell)
    if shell == "powershell":
        return f"try {{ {words} 2>$null }} catch {{}}; exit 0"
    return f"{words} 2>nul || ver >nul" if shell == "cmd" else f"{words} 2>/dev/null || :"


def _add_hooks(document: ConfigText, agent: Client, path: Path) -> ConfigText:
    """Return the settings with our hooks, each once, next to existing hooks."""
    command = build_hook_command(agent.name)
    hooks = _read_hooks(document, path)
    installed_commands = [
        (event, entry.get("matcher"), handler)
        for event, entries in hooks.items()
        for entry in entries
        for handler in _find_own_handlers(entry)
    ]
    expected = [(event, matcher, _build_handler(agent, event, command)) for event, matcher in agent.hook_events.items()]
    if sorted(map(repr, installed_commands)) == sorted(map(repr, expected)):
        return document
    document = _remove_hooks(document, path)
    if agent.has_flat_hooks and "version" not in document.value:
        document = document.set(("version",), 1)
    for event, matcher, handler in expected:
        group = {**({"matcher": matcher} if matcher else {}), "hooks": [handler]}
        entry = handler if agent.has_flat_hooks else group
        index = len(document.read(("hooks", event)) or ())
        document = document.set(("hooks", event, index), entry)
    return document


def _build_handler(agent: Client, event: str, command: str) -> dict[str, Any]:
    # Time after which an agent continues without the hook, which takes about 0.1 seconds. At the end of a session no
    # agent waits longer than 3 seconds.
    seconds = 3 if event == "SessionEnd" else 10
    return {"type": "command", "command": command, "timeout": seconds * agent.timeout_units_per_second}


def _read_hooks(document: ConfigText, path: Path) -> dict[str, list[Any]]:
    hooks = document.read(("hooks",)) if "hooks" in document.value else {}
    if not isinstance(hooks, dict) or not all(isinstance(entries, list) for entries in hooks.values()):
        raise SettingsError(f"{path}: `hooks` is not an object of lists. Fix it first; nothing was changed.")
    return hooks


def _find_own_handlers(entry: Any) -> list[Any]:
    """Return our commands in an entry: a group of them, or one itself."""
    handlers = entry.get("hooks", [entry]) if isinstance(entry, dict) else None
    return [
        handler
        for handler in (handlers if isinstance(handlers, list) else ())
        if isinstance(handler, dict) and HOOK_COMMAND_PATTERN.search(str(handler.get("command", "")))
    ]


def _remove_hooks(document: ConfigText, path: Path) -> ConfigText:
    """Return the settings without our hooks and otherwise unchanged."""
    hooks = _read_hooks(document, path)
    for event, entries in hooks.items():
        remaining_entries = len(entries)
        for index in reversed(range(len(entries))):
            own_handlers = _find_own_handlers(entries[index])
            if own_handlers and len(own_handlers) == len(entries[index].get("hooks", own_handlers)):
                document = document.remove(("hooks", event, index))
                remaining_entries -= 1
                continue
            for position in reversed(range(len(entries[index]["hooks"]) if own_handlers else 0)):
                if entries[index]["hooks"][position] in own_handlers:
                    document = document.remove(("hooks", event, index, "hooks", position))
        if entries and not remaining_entries:
            document = document.remove(("hooks", event))
    if hooks and not document.read(("hooks",)) and set(document.value) == {"hooks", "version"}:
        document = document.remove(("version",))
    return document.remove(("hooks",)) if hooks and not document.read(("hooks",)) else document


PLUGIN_INSTALLED = "Plugin installed: mulligan records failed calls and reminds the model of them after a compaction."


def _build_plugin(agent: str) -> str:
    """Return the plugin file of an agent without command hooks. It starts the hook without a shell."""
    folder = Path(mulligan.__file__).parent / "hooks"
    command = json.dumps([sys.executable, "-ESP", str(folder / "start.py"), agent])
    return (folder / f"{agent}_plugin.js").read_text().replace("const COMMAND = []", f"const COMMAND = {command}")


def _setup_warnings(agent: Client) -> list[str]:
    """Return warnings about an agent that is not on this machine, and about other settings that disable hooks."""
    folder = settings_path(agent.hook_files[0]).parent
    folder = folder.parent if folder.name in ("plugins", "extensions") else folder
    if not folder.exists() and shutil.which(agent.program or agent.name) is None:
        program = agent.program or agent.name
        return [
            f"{agent.display_name} was not found on this machine: no {program} on the PATH, no folder {folder}. "
            "The hooks take effect once it is installed."
        ]
    if agent.name == "claude-code":
        paths = [settings_path(file) for file in agent.hook_files]
        paths.insert(1, paths[1].with_name("settings.json"))
        return [
            f"Warning: {path} turns all hooks off, so mulligan records nothing. Remove `disableAllHooks` from it."
            for path in dict.fromkeys(paths)
            if read_document(path, "json")[1].read(("disableAllHooks",)) is True
        ]
    if agent.name != "codex":
        return []
    config = clients.find_folders()["codex"] / "config.toml"
    features = read_document(config, "toml")[1].read(("features",))
    if isinstance(features, dict) and (features.get("hooks") is False or features.get("codex_hooks") is False):
        return [f"Warning: {config} turns hooks off. Remove that line from its [features]."]
    return []


def _describe_records() -> str:
    """Return where the records of hooks are and how to delete them."""
    store = store_path(load_settings(of_user=True))
    if not store.exists():
        return "mulligan has recorded no sessions."
    return (
        f"Recorded sessions stay in {store}. List them: mulligan sessions. Delete one: mulligan forget --session ID. "
        "To delete everything that mulligan recorded, remove that file and the files whose names start with its name."
    )


def _find_hook_file(agent: Client, project: bool) -> Path:
    file = select_file(agent, agent.hook_files, project)
    path = settings_path(file)
    check_project_file(file, path)
    return path


def _register_agent(agent: Client) -> None:
    """Register `mulligan install AGENT` and `mulligan uninstall AGENT`."""
    user_file, project_file = (file.path.format(**_HELP_FOLDERS) for file in agent.hook_files)

    @_install_command(
        f"mulligan install {agent.name}",
        f"mulligan install {agent.name} --project --dry-run",
        name=agent.name,
        help=f"Install hooks that keep failures of {agent.display_name} across compactions. Edits {user_file}, or "
        f"{project_file} of a project.",
    )
    @_edit_options
    def add_hooks(context: CommandContext, project: bool, dry_run: bool) -> None:
        path = _find_hook_file(agent, project)
        warnings = _setup_warnings(agent)
        if path.suffix == ".js":
            text = read_text(path)
            has_plugin = text is not None and text.startswith(PLUGIN_START)
            edit = Edit(path, text, _build_plugin(agent.name))
            change = FileChange(edit, added=frozenset() if has_plugin else {"plugin"})
            _apply(context, [change], dry_run, PLUGIN_INSTALLED, agent.next_step, warnings=warnings,
                   unchanged="Already installed. ", agent=agent.name)  # fmt: skip
            return
        before, document = read_document(path, "json")
        has_hooks = _remove_hooks(document, path) is not document
        edit = plan_edit(path, before, document, _add_hooks(document, agent, path))
        change = FileChange(edit, added=frozenset() if has_hooks else {"hooks"})
        message = f"Hooks installed: mulligan records failed calls of {agent.display_name} and reminds it of them"
        _apply(context, [change], dry_run, f"{message} after a compaction.", agent.next_step, warnings=warnings,
               unchanged="Already installed. ", agent=agent.name)  # fmt: skip

    @_uninstall_command(
        f"mulligan uninstall {agent.name}",
        f"mulligan uninstall {agent.name} --dry-run",
        name=agent.name,
        help=f"Remove mulligan's hooks from the settings of {agent.display_name}.",
    )
    @_edit_options
    def remove_hooks(context: CommandContext, project: bool, dry_run: bool) -> None:
        path = _find_hook_file(agent, project)
        if path.suffix == ".js":
            text = read_text(path)
            has_plugin = text is not None and text.startswith(PLUGIN_START)
            change = FileChange(Edit(path, text, None if has_plugin else text), removed={"plugin"})
            _apply(context, [change], dry_run, "Plugin removed.", _describe_records(), unchanged="Not installed. ",
                   agent=agent.name)  # fmt: skip
            return
        before, document = read_document(path, "json")
        change = FileChange(plan_edit(path, before, document, _remove_hooks(document, path)), removed={"hooks"})
        _apply(context, [change], dry_run, f"Hooks removed from {agent.display_name}.", _describe_records(),
               unchanged="Not installed. ", agent=agent.name)  # fmt: skip


_HELP_FOLDERS = {
    "claude": "~/.claude", "codex": "~/.codex", "config": "~/.config", "copilot": "~/.copilot", "home": "~",
    "pi": "~/.pi/agent", "project": ".",
}  # fmt: skip
for _agent in AGENTS.values():
    _register_agent(_agent)


# Aider: no hooks; it reads files that its settings name


def _find_aider_files(is_project: bool) -> tuple[Path, Path, str]:
    """Return Aider's settings file, our file of lessons, and the name of that file in the settings."""
    if is_project:
        lessons = Path(".mulligan") / "aider.md"
        return Path.cwd() / ".aider.conf.yml", Path.cwd() / lessons, lessons.as_posix()
    lessons = hook_folder().with_name("aider.md")
    return Path.home() / ".aider.conf.yml", lessons, str(lessons)


@_install_command("mulligan install aider", "mulligan install aider --project --dry-run", name="aider")
@_edit_options
def _install_aider(context: CommandContext, project: bool, dry_run: bool) -> None:
    """Write the lessons to a file and name it in the list `read` of ~/.aider.conf.yml, or of the project's.

    Aider has no hooks. It reads such files when it starts.
    """
    path, lessons_path, name = _find_aider_files(project)
    before, lessons = read_text(path), read_text(lessons_path)
    changes = [
        FileChange(Edit(lessons_path, lessons, write_lessons(context, lessons or "", lessons_path)), added={"lessons"}),
        FileChange(
            Edit(path, before, add_read_file(before or "", name)),
            added=frozenset() if reads_file(before or "", name) else {"read"},
        ),
    ]
    _apply(
        context, changes, dry_run, "Aider reads these lessons when it starts.",
        f"Update them after you approved or wrote others: mulligan prompt --file {lessons_path}",
        unchanged="Already installed. ", agent="aider",
    )  # fmt: skip


@_uninstall_command("mulligan uninstall aider", "mulligan uninstall aider --dry-run", name="aider")
@_edit_options
def _uninstall_aider(context: CommandContext, project: bool, dry_run: bool) -> None:
    """Remove the file of lessons, and its name from Aider's settings."""
    path, lessons_path, name = _find_aider_files(project)
    before, lessons = read_text(path), read_text(lessons_path)
    settings = remove_read_file(before or "", name)
    remainder = remove_section(lessons or "", str(lessons_path))
    changes = [
        FileChange(Edit(path, before, settings if settings.strip() else None), removed={"read"}),
        FileChange(Edit(lessons_path, lessons, remainder if remainder.strip() else None), removed={"lessons"}),
    ]
    _apply(context, changes, dry_run, "Lessons removed from Aider.", unchanged="Not installed. ", agent="aider")


# Servers of MCP clients


def _read_server_lists(
    client: str | None, project: bool, is_all: bool
) -> tuple[list[ServerList], list[dict[str, Any]]]:
    """Return the servers of a client, or of all clients, by settings file, and the files that cannot be parsed.

    Files that do not exist are left out.
    """
    if client is None and not is_all:
        raise SettingsError(f"Missing --client. One of: {', '.join(MCP_CLIENTS)}. Or --all for all of them.")
    selected_clients = [MCP_CLIENTS[client]] if client else list(MCP_CLIENTS.values())
    server_lists, skipped = [], []
    for mcp_client in selected_clients:
        if client is not None and project:
            select_file(mcp_client, mcp_client.server_files, is_project=True)
        for file in dict.fromkeys(prefer_user_file(file, mcp_client.server_files) for file in mcp_client.server_files):
            is_selected = file.scope == "project" if project else is_all or file.scope != "project"
            if is_selected and (settings_path(file).exists() or (file.scope == "user" and client is not None)):
                try:
                    server_lists.append(ServerList(mcp_client, file))
                except SettingsError as error:
                    if not is_all:
                        raise
                    skipped.append({"server": None, "file": str(settings_path(file)), "reason": str(error)})
    return server_lists, skipped


def _select_servers(
    server_lists: Sequence[ServerList], server: str | None, is_all: bool
) -> list[tuple[ServerList, str]]:
    if is_all:
        return [(servers, name) for servers in server_lists for name in servers.servers]
    paths = ", ".join(dict.fromkeys(str(servers.path) for servers in server_lists))
    names = ", ".join(dict.fromkeys(str(name) for servers in server_lists for name in servers.servers))
    if not names:
        raise SettingsError(
            f"{paths or 'This folder'} lists no MCP servers. Add one first; the proxy can only be installed for an "
            "existing server."
        )
    if server is None:
        raise SettingsError(f"Missing --server or --all. Servers in {paths}: {names}.")
    selected = [(servers, server) for servers in server_lists if server in servers.servers]
    if not selected:
        raise SettingsError(f"Unknown server {server!r}. Servers in {paths}: {names}.")
    return selected


def _edit_servers(
    context: CommandContext,
    client: str | None,
    server: str | None,
    is_all: bool,
    project: bool,
    dry_run: bool,
    options: Sequence[str] | None,
) -> None:
    """Add the proxy with these options to servers, or remove it if there are none."""
    server_lists, skipped = _read_server_lists(client, project, is_all)
    changed_servers = []
    by_path: dict[Path, FileChange] = {}
    documents: dict[Path, ConfigText] = {}
    for servers, name in _select_servers(server_lists, server, is_all):
        servers.continue_from(documents.get(servers.path))
        had_proxy, before = False, servers.document
        try:
            had_proxy = servers.has_proxy(name)
            if options is None:
                servers.remove_proxy(name)
            elif not (is_all and (name == SERVER_NAME and servers.has_own_server())):
                servers.add_proxy(name, options, can_need_mulligan=not is_all)
        except SettingsError as error:
            if not is_all:
                raise
            servers.continue_from(before)  # replacing a proxy may have failed halfway
            skipped.append({"server": name, "file": str(servers.path), "reason": str(error)})
        documents[servers.path] = servers.document
        entry = {servers.entry_name(name)} if servers.document is not before else set()
        if entry:
            changed_servers.append({"server": name, "client": servers.client.name, "scope": servers.file.scope})
        change = by_path.get(servers.path, FileChange(servers.edit))
        added = entry if options is not None and not had_proxy else set()
        by_path[servers.path] = FileChange(
            servers.edit, change.added | added, change.removed | (entry if options is None else set())
        )
    names = ", ".join(dict.fromkeys(item["server"] for item in changed_servers))
    display_names = ", ".join(dict.fromkeys(MCP_CLIENTS[item["client"]].display_name for item in changed_servers))
    message = (
        f"Removed the proxy from {names} in {display_names}."
        if options is None
        else f"Calls to {names} from {display_names} now go through mulligan."
    )
    steps = [f"Restart {display_names} to apply this."]
    if options is not None and any(item["scope"] == "project" for item in changed_servers):
        steps.append(
            "Shared files run mulligan from the PATH, or the command of a server without it."
            + (" Windows needs sh, of Git." if sys.platform == "win32" else "")
        )
    remarks = [f"Skipped: {item['reason']}" for item in skipped]
    if options is None:
        edited_paths = {path.resolve() for path in by_path}
        remarks += [
            f"Still installed in {path}. To remove it, run `mulligan uninstall proxy --all` in the project's folder."
            for path in find_installed_files({"hooks", "plugin", "lessons", "read"})
            if path not in edited_paths
        ]
    _apply(
        context, list(by_path.values()), dry_run, message, *steps, *remarks,
        unchanged="".join(f"{remark}\n" for remark in remarks), servers=changed_servers, skipped=skipped,
    )  # fmt: skip
    if any(item["server"] is None for item in skipped):
        sys.exit(1)  # a file that cannot be parsed


@_install_command(
    "mulligan install proxy --all",
    "mulligan install proxy --client claude-desktop --server git",
    "mulligan install proxy --client cursor --server files --repair --pin --dry-run",
    name="proxy",
)
@_proxy_options
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
    context: CommandContext,
    client: str | None,
    server: str | None,
    is_all: bool,
    project: bool,
    dry_run: bool,
    **flags: bool,
) -> None:
    """Put `mulligan proxy` in front of the MCP servers in a client's settings."""
    options = [f"--{flag.replace('_', '-')}" for flag, is_set in flags.items() if is_set]
    _edit_servers(context, client, server, is_all, project, dry_run, options)


@_uninstall_command(
    "mulligan uninstall proxy --all", "mulligan uninstall proxy --client claude-desktop --server git", name="proxy"
)
@_proxy_options
@_edit_options
def _uninstall_proxy(
    context: CommandContext, client: str | None, server: str | None, is_all: bool, project: bool, dry_run: bool
) -> None:
    """Remove `mulligan proxy` from in front of MCP servers."""
    _edit_servers(context, client, server, is_all, project, dry_run, None)


def _read_servers(client: str, project: bool) -> ServerList:
    mcp_client = MCP_CLIENTS[client]
    return ServerList(mcp_client, select_file(mcp_client, mcp_client.server_files, project))


@_install_command(
    "mulligan install mcp-server --client claude-code",
    "mulligan install mcp-server --client cursor --project --dry-run",
    name="mcp-server",
)
@_client_option
@_edit_options
def _install_mcp_server(context: CommandContext, client: str, project: bool, dry_run: bool) -> None:
    """Add `mulligan mcp` to the servers of a client, so that its agent can query failure memory."""
    servers = _read_servers(client, project)
    display_name = servers.client.display_name
    added: Set[str] = frozenset() if servers.has_own_server() else {servers.entry_name(SERVER_NAME)}
    servers.add_own_server()
    message = f"{display_name} can now query mulligan about failures."
    next_step = f"Restart {display_name} to apply this. It needs an extra. {INSTALL_EXTRA.format('mcp')}"
    _apply(context, [FileChange(servers.edit, added)], dry_run, message, next_step, unchanged="Already installed. ",
           client=client, server=SERVER_NAME)  # fmt: skip


@_uninstall_command("mulligan uninstall mcp-server --client claude-code", name="mcp-server")
@_client_option
@_edit_options
def _uninstall_mcp_server(context: CommandContext, client: str, project: bool, dry_run: bool) -> None:
    """Remove `mulligan mcp` from the servers of a client."""
    servers = _read_servers(client, project)
    servers.remove_own_server()
    message = f"Removed: {servers.client.display_name} no longer starts mulligan mcp."
    change = FileChange(servers.edit, removed={servers.entry_name(SERVER_NAME)})
    _apply(context, [change], dry_run, message, unchanged="Not installed. ", client=client, server=SERVER_NAME)
