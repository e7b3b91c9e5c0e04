"""Scripted sessions of coding agents, the same for every agent, and what failed and recovered in each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_api import Ask, Reply
from coding_agents import FORBIDDEN_PROGRAM, PROXY, Claude, Pi, Place, codex, copilot, gemini, opencode

from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.records import History
from mulligan.store.sqlite import SqliteStore
from mulligan.transcripts.formats import default_locations, detect_log_format, find_log_files
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.run_builder import ReaderState

AGENTS = ("claude-code", "codex", "copilot", "gemini", "opencode", "pi")
AGENTS_WITH_SERVERS = ("claude-code", "codex", "gemini", "opencode")
"""Agents with MCP servers and with rules that forbid a command."""
CONVERSATIONS = {"claude-code": Claude, "pi": Pi}
"""Agents that are spoken to while they run, and so compact when they are asked to."""
FULL_CONTEXT_TOKENS = {"codex": 9000, "copilot": 61_000, "opencode": 250_000}
"""Reported length of a conversation at which an agent compacts it."""


@dataclass(frozen=True)
class Action:
    """A tool call of the model, in words that each agent translates."""

    tool: str
    """`shell`, `read`, `edit`, `lookup` (the MCP tool), `unknown` (no such tool)."""
    arguments: dict[str, Any]


def shell(command: str, **arguments: Any) -> Action:
    return Action("shell", {"command": command, **arguments})


def read(file: str) -> Action:
    return Action("read", {"file": file})


def edit(old: str, new: str) -> Action:
    return Action("edit", {"file": "a.txt", "old": old, "new": new})


def lookup(**arguments: Any) -> Action:
    return Action("lookup", arguments)


UNKNOWN = Action("unknown", {"a": 1})
INVALID = Action("invalid", {})
"""A shell call without its command."""


@dataclass(frozen=True)
class ExpectedFailure:
    tool: str
    kind: str
    is_recovered: bool = False


@dataclass(frozen=True)
class Session:
    """A session: its turns, and the failures that everybody must see."""

    name: str
    turns: tuple[tuple[Action, ...], ...]
    failures: tuple[ExpectedFailure, ...]
    compacts_after: int | None = None
    """Number of turns after which the conversation is compacted."""
    agents: tuple[str, ...] = AGENTS
    """Agents that have what the session needs."""
    differences: tuple[tuple[str, tuple[ExpectedFailure, ...]], ...] = ()
    """Failures in one agent, where its tools behave in another way."""

    def expected(self, agent: str) -> list[ExpectedFailure]:
        return sorted(dict(self.differences).get(agent, self.failures), key=repr)


def session(
    name: str, *turns: Action | tuple[Action, ...], failures: Iterable[tuple[Any, ...]], **options: Any
) -> Session:
    return Session(
        name,
        tuple(turn if isinstance(turn, tuple) else (turn,) for turn in turns),
        tuple(ExpectedFailure(*failure) for failure in failures),
        differences=tuple(
            (agent, tuple(ExpectedFailure(*failure) for failure in options.pop(agent)))
            for agent in AGENTS
            if agent in options
        ),
        **options,
    )


SLOW = shell("sleep 8", timeout=1000)
"""A command with its timeout in milliseconds. Codex has none: a command that takes long continues."""
REFUSED = shell(f"{FORBIDDEN_PROGRAM} ls")
FAILING_BUILD = shell("make nothing")
NO_FILE = shell("cat notes.txt")
WRITE_FILE = shell("echo note > notes.txt")
FORBIDDEN = shell("echo 'cat: keys: Permission denied' >&2; exit 1")
KILLED = shell("sleep 9 & kill -9 $!; wait $!")
"""A process of the shell. When the shell itself is killed, OpenCode waits for its timeout and reports that."""
SESSIONS = (
    session(
        "corrected_command", shell("cat a.txt notes.txt"), shell("cat a.txt"),
        failures=[("shell", "tool/file_not_found", True)],
    ),
    session(
        "command_after_preparation", NO_FILE, WRITE_FILE, NO_FILE, failures=[("shell", "tool/file_not_found", True)],
    ),
    session(
        "edit_after_reading", read("a.txt"), edit("hullo", "goodbye"), read("a.txt"), edit("hello", "goodbye"),
        failures=[("edit", "tool/edit_mismatch", True)],
    ),
    session(
        "missing_file", read("notes.txt"), WRITE_FILE, read("notes.txt"),
        failures=[("read", "tool/file_not_found", True)],
    ),
    session("another_file", read("notes.txt"), read("a.txt"), failures=[("read", "tool/file_not_found", False)]),
    session("invalid_input", INVALID, shell("true"), failures=[("shell", "tool/invalid_arguments", False)]),
    session("unknown_tool", UNKNOWN, shell("true"), failures=[("unknown", "tool/unknown_tool", False)]),
    session(
        "server_tool", shell("sleep 2"), lookup(q="tea"), lookup(q="milk"),
        failures=[("lookup", "tool/rate_limit", False)], agents=AGENTS_WITH_SERVERS,
    ),
    session(
        "server_tool_again", shell("sleep 2"), lookup(q="once"), shell("true"), lookup(q="once"),
        failures=[("lookup", "tool/rate_limit", True)], agents=AGENTS_WITH_SERVERS,
    ),
    session("forbidden", FORBIDDEN, shell("true"), failures=[("shell", "tool/permission_denied", False)]),
    session(
        "refused_command", REFUSED, shell("true"), shell("true"),
        failures=[("shell", "tool/permission_denied", False)], compacts_after=2, agents=AGENTS_WITH_SERVERS,
    ),
    session(
        "timed_out_command", SLOW, shell("true"),
        failures=[("shell", "tool/timeout", False)], agents=("claude-code", "gemini", "opencode", "pi"),
    ),
    session("killed_command", KILLED, shell("true"), failures=[("shell", "tool/execution_failed", False)]),
    session(
        "two_failures_one_recovered", FAILING_BUILD, NO_FILE, WRITE_FILE, NO_FILE,
        failures=[("shell", "tool/build_failure", False), ("shell", "tool/file_not_found", True)],
    ),
    session(
        "repeated_command", NO_FILE, NO_FILE, WRITE_FILE, NO_FILE,
        failures=[("shell", "tool/file_not_found", True), ("shell", "tool/file_not_found", True)],
    ),
    session("never_recovered", FAILING_BUILD, shell("echo hi"), failures=[("shell", "tool/build_failure", False)]),
    session(
        "compaction_between", NO_FILE, WRITE_FILE, NO_FILE,
        failures=[("shell", "tool/file_not_found", True)], compacts_after=2,
    ),
    session(
        "parallel_calls", (FAILING_BUILD, shell("true"), read("notes.txt")), WRITE_FILE, read("notes.txt"),
        failures=[("shell", "tool/build_failure", False), ("read", "tool/file_not_found", True)],
    ),
)  # fmt: skip


# Translation


def translate(agent: str, action: Action, project: Path) -> Ask:
    """Return the call as the model of this agent makes it."""
    arguments = dict(action.arguments)
    if "file" in arguments:
        arguments["file"] = str(project / arguments["file"])
    return _TRANSLATIONS[agent](action.tool, arguments)


def _to_claude(tool: str, arguments: dict[str, Any]) -> Ask:
    match tool:
        case "shell":
            return Ask("Bash", arguments)
        case "invalid":
            return Ask("Bash", {"description": "builds"})
        case "read":
            return Ask("Read", {"file_path": arguments["file"]})
        case "edit":
            names = {"file_path": "file", "old_string": "old", "new_string": "new"}
            return Ask("Edit", {name: arguments[key] for name, key in names.items()})
        case "lookup":
            return Ask("mcp__crm__lookup", arguments)
    return Ask("nosuch", arguments)


def _to_codex(tool: str, arguments: dict[str, Any]) -> Ask:
    match tool:
        case "shell":
            return Ask("exec_command", {"cmd": arguments["command"]})
        case "invalid":
            return Ask("exec_command", {"workdir": "."})
        case "read":
            return Ask("exec_command", {"cmd": f"cat {arguments['file']}"})
        case "edit":
            patch = (
                f"*** Begin Patch\n*** Update File: {arguments['file']}\n@@\n-{arguments['old']}\n+{arguments['new']}\n"
            )
            return Ask("exec_command", {"cmd": f"apply_patch <<'EOF'\n{patch}*** End Patch\nEOF\n"})
        case "lookup":
            return Ask("lookup", arguments, namespace="mcp__crm")
    return Ask("nosuch", arguments)


def _to_copilot(tool: str, arguments: dict[str, Any]) -> Ask:
    match tool:
        case "shell":
            return Ask("bash", {**arguments, "description": "works"})
        case "invalid":
            return Ask("bash", {"description": "builds"})
        case "read":
            return Ask("view", {"path": arguments["file"]})
        case "edit":
            return Ask("edit", {"path": arguments["file"], "old_str": arguments["old"], "new_str": arguments["new"]})
    return Ask("nosuch", arguments)


def _to_gemini(tool: str, arguments: dict[str, Any]) -> Ask:
    match tool:
        case "shell":
            return Ask("run_shell_command", {"command": arguments["command"]})
        case "invalid":
            return Ask("run_shell_command", {"description": "builds"})
        case "read":
            return Ask("read_file", {"file_path": arguments["file"]})
        case "edit":
            names = {"file_path": "file", "old_string": "old", "new_string": "new"}
            return Ask("replace", {name: arguments[key] for name, key in names.items()} | {"instruction": "change it"})
        case "lookup":
            return Ask("mcp_crm_lookup", arguments)
    return Ask("nosuch", arguments)


def _to_opencode(tool: str, arguments: dict[str, Any]) -> Ask:
    match tool:
        case "shell":
            return Ask("bash", {**arguments, "description": "works"})
        case "invalid":
            return Ask("bash", {"description": "builds"})
        case "read":
            return Ask("read", {"filePath": arguments["file"]})
        case "edit":
            names = {"filePath": "file", "oldString": "old", "newString": "new"}
            return Ask("edit", {name: arguments[key] for name, key in names.items()})
        case "lookup":
            return Ask("crm_lookup", arguments)
    return Ask("nosuch", arguments)


def _to_pi(tool: str, arguments: dict[str, Any]) -> Ask:
    match tool:
        case "shell":
            seconds = {"timeout": arguments["timeout"] // 1000} if "timeout" in arguments else {}
            return Ask("bash", {**arguments, **seconds})
        case "invalid":
            return Ask("bash", {"timeout": 5})
        case "read":
            return Ask("read", {"path": arguments["file"]})
        case "edit":
            edits = [{"oldText": arguments["old"], "newText": arguments["new"]}]
            return Ask("edit", {"path": arguments["file"], "edits": edits})
    return Ask("nosuch", arguments)


_TRANSLATIONS: dict[str, Callable[[str, dict[str, Any]], Ask]] = {
    "claude-code": _to_claude,
    "codex": _to_codex,
    "copilot": _to_copilot,
    "gemini": _to_gemini,
    "opencode": _to_opencode,
    "pi": _to_pi,
}
TOOLS = {
    "claude-code": {"Bash": "shell", "Read": "read", "Edit": "edit"},
    "codex": {"exec_command": "shell"},
    "copilot": {"bash": "shell", "view": "read", "edit": "edit"},
    "gemini": {"run_shell_command": "shell", "read_file": "read", "replace": "edit"},
    "opencode": {"bash": "shell", "read": "read", "edit": "edit", "crm_lookup": "lookup"},
    "pi": {"bash": "shell", "read": "read", "edit": "edit"},
}
"""The tools of an agent in the words of this table."""


# One session of a real agent


def play(agent: str, place: Place, played: Session) -> None:
    """Let the agent work through the session, with its MCP server behind the proxy."""
    place.server = [*PROXY, "--store", str(place.home / "proxy.db"), "--name", "crm", "--", sys.executable, place.crm]
    replies = [Reply(tuple(translate(agent, action, place.project) for action in turn)) for turn in played.turns]
    if SLOW in (action for turn in played.turns for action in turn):
        place.gemini_settings = {"tools": {"shell": {"inactivityTimeout": 1}}}  # seconds, and of all its commands
    split = played.compacts_after if played.compacts_after is not None else len(replies)
    if agent in CONVERSATIONS:
        place.api.script = [*replies[:split], Reply()]
        with CONVERSATIONS[agent](place) as conversation:
            conversation.says("please work")
            if replies[split:]:
                conversation.says("/compact")
                place.api.script = [*replies[split:], Reply()]
                conversation.says("go on")
            conversation.ends()
        return
    if agent == "gemini" and replies[split:]:  # it compresses only what came before a prompt
        place.api.script = [*replies[:split], Reply()]
        gemini(place)
        place.gemini_settings |= {"model": {"compressionThreshold": 0.0001}}
        place.api.script = [*replies[split:], Reply()]
        gemini(place, "go on", "--resume", "latest")
        return
    if replies[split:]:
        replies[split - 1] = replace(replies[split - 1], tokens=FULL_CONTEXT_TOKENS[agent])
    place.api.script = [*replies, Reply()]
    work_through(agent, place)


def work_through(agent: str, place: Place, has_hooks: bool = True) -> None:
    """Let the agent work through the script of its model. The server of OpenCode always has our plugin."""
    if agent in CONVERSATIONS:
        with CONVERSATIONS[agent](place) as conversation:
            conversation.says("please work")
            conversation.ends()
    elif agent == "opencode" and has_hooks and place.opencode_server is not None:
        place.opencode_server.work(place)
    else:
        {"codex": codex, "copilot": copilot, "gemini": gemini, "opencode": opencode}[agent](place)


# What each of them saw


SeenFailure = tuple[str, str, bool]
"""Tool, kind and whether it recovered."""


def failures_of(histories: Iterable[History]) -> list[SeenFailure]:
    failures = []
    for history in histories:
        recovered = {link.failed_call for link in history.links}
        failures += [
            (step.name.removeprefix(f"{step.server}."), str(step.failure.kind), step.call in recovered)
            for step in history.steps
            if step.type == "tool" and step.has_failed and step.failure is not None
        ]
    return sorted(failures)


def stored_failures(path: Path) -> list[SeenFailure]:
    if not path.exists():
        return []
    store = SqliteStore(path)
    try:
        return failures_of(store.runs(DEFAULT_TENANT, RunQuery()))
    finally:
        store.close()


def unknown_outcomes(path: Path) -> set[str]:
    """The kinds of the stored failures of which mulligan says that the call may have executed."""
    if not path.exists():
        return set()
    store = SqliteStore(path)
    try:
        failures = [step.failure for run in store.runs(DEFAULT_TENANT, RunQuery()) for step in run.steps]
        return {str(failure.kind) for failure in failures if failure is not None and failure.has_unknown_outcome}
    finally:
        store.close()


def scanned_failures(place: Place) -> list[SeenFailure]:
    """The failures in the agent's own log, as the reader of `mulligan scan` finds them."""
    histories: list[History] = []
    state = ReaderState()
    for location in default_locations({}, place.home):
        files = find_log_files(location.folder, []) if location.folder.is_dir() else [location.folder]
        for path in files:
            if path.exists():
                with LogLines(path) as lines:
                    log_format = detect_log_format(lines)
                    histories += log_format.read(lines, state) if log_format is not None else ()
    return failures_of(histories)


def scan_totals(place: Place) -> tuple[int, int]:
    """What the command says: calls that failed, and how many of them recovered."""
    findings = json.loads(place.run("scan", "--json", codes=(0, 1)))
    return findings.get("failures", 0), findings.get("recovered", 0)


def as_expected(agent: str, failures: Iterable[SeenFailure]) -> list[ExpectedFailure]:
    """The failures in the words of the table. Codex reads and edits by commands."""
    tools = TOOLS[agent]
    found = [ExpectedFailure(tools.get(name, {"lookup": "lookup"}.get(name, "unknown")), kind, recovered)
             for name, kind, recovered in failures]  # fmt: skip
    return sorted(found, key=repr)


def as_commands(failures: Iterable[ExpectedFailure]) -> list[ExpectedFailure]:
    return sorted(
        (replace(failure, tool="shell") if failure.tool in ("read", "edit") else failure for failure in failures),
        key=repr,
    )
