"""Read-only calls: by their declared effects; without them, by tool names and programs."""

from __future__ import annotations

from collections.abc import Mapping

from mulligan.core.records import Step
from mulligan.redaction.regex import LazyRegex

READ_ONLY_TOOLS = frozenset(
    "read glob grep ls notebookread webfetch websearch bashoutput "  # Claude Code
    "read_file read_many_files list_directory search_file_content google_web_search web_fetch "  # Gemini CLI
    "view_image web_search list_dir grep_files".split()  # Codex
)
"""Read-only tools of coding agents, in lower case."""
SHELL_TOOLS = frozenset("bash shell local_shell exec_command run_shell_command".split())
READ_ONLY_PROGRAMS = frozenset(
    "[ basename cat cd cut diff dirname du echo egrep fgrep find grep head jq ls lsof nl pgrep ps "
    "pwd readlink realpath rg sleep stat tail test tr type wc which".split()
)
"""Programs that are read-only with any arguments, except `find`: `_WRITES` catches its other actions."""
MAX_COMMAND_CHARS = 2000
"""Longer commands are never treated as read-only."""

_WRITES = LazyRegex(r"`|\$\(|<\(|>(?!\s{0,4}/dev/null\b|&\d)|\s-(?:delete|exec|ok|fprint|fls)")
_COMMAND_SEPARATORS = LazyRegex(r"\|\||&&|[;|\n]|(?<!>)&(?!\d)")


def is_read_only(step: Step) -> bool:
    """Return whether a call is read-only: by its declared effects, else by tool name or command."""
    if step.effects is not None:
        return step.effects == "none"
    return step.type == "retrieval" or step.name.casefold() in READ_ONLY_TOOLS or is_read_only_command(step)


def may_prepare_command(success: Step, failed: Step) -> bool:
    """Return whether a success may be why a failed shell command succeeds later: it may have changed something."""
    return failed.name.casefold() in SHELL_TOOLS and not is_read_only(success)


def is_read_only_command(step: Step) -> bool:
    """Return whether a call is a shell command whose programs are all read-only."""
    command = find_command(step.arguments) if isinstance(step.arguments, Mapping) else ""
    if step.name.casefold() not in SHELL_TOOLS or not command or len(command) > MAX_COMMAND_CHARS:
        return False
    if _WRITES.search(command):
        return False
    programs = [part.split()[0] for part in _COMMAND_SEPARATORS.split(command) if part.strip()]
    return bool(programs) and all(program in READ_ONLY_PROGRAMS for program in programs)


def find_command(arguments: Mapping[str, object]) -> str:
    """Return the command of a shell call; empty if there is none."""
    command = arguments.get("command") or arguments.get("cmd")
    if isinstance(command, list | tuple):  # an argv: the command follows `-c`
        command = command[-1] if command else None
    return command if isinstance(command, str) else ""
