"""Detection of read-only calls, and of failed calls that were lookups without a result.

Declared effects decide. Without a declaration, as in logs of coding agents, read-only tools are recognized by name and
shell commands by their programs. Any other call counts as one that may change something.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mulligan.core.records import Step
from mulligan.redaction.lazy_regex import LazyRegex

READ_ONLY_TOOLS = frozenset(
    "read glob grep ls notebookread webfetch websearch bashoutput "  # Claude Code
    "read_file read_many_files list_directory search_file_content google_web_search web_fetch "  # Gemini CLI
    "view_image web_search list_dir grep_files".split()  # Codex
)
"""Read-only tools of coding agents, in lower case."""
SHELL_TOOLS = frozenset("bash shell local_shell exec_command run_shell_command".split())
READ_ONLY_PROGRAMS = frozenset(
    "[ basename cat cd cut diff dirname du echo egrep fgrep find grep head jq ls nl pwd readlink realpath rg stat tail "
    "test tr type wc which".split()
)
"""Programs that are read-only with any arguments, except `find`: `_WRITES` catches its other actions."""
EMPTY_LOOKUP_CODES = frozenset(("not_found", "file_not_found", "no_results"))
"""Kind codes of lookups without a result."""
MAX_COMMAND_CHARS = 2000
"""Longer commands are never treated as read-only."""

_SILENT_EXIT = LazyRegex(r"(?:command failed with )?exit (?:code|status):? 1\.?", re.IGNORECASE)
_WRITES = LazyRegex(r"`|\$\(|<\(|>(?!\s{0,4}/dev/null\b|&\d)|\s-(?:delete|exec|ok|fprint|fls)")
_COMMAND_SEPARATORS = LazyRegex(r"\|\||&&|[;|\n]|(?<!>)&(?!\d)")
_WORD = LazyRegex(r"[a-z]+|[A-Z]+[a-z]*")


def is_read_only(step: Step) -> bool:
    """Return whether a call is read-only: by its declared effects, else by tool name or command."""
    if step.effects is not None:
        return step.effects == "none"
    return step.type == "retrieval" or step.name.casefold() in READ_ONLY_TOOLS or _is_read_only_command(step)


def is_empty_lookup(step: Step) -> bool:
    """Return whether a failed call was a lookup without a result. That is an answer, not a mistake to avoid."""
    failure = step.failure
    if failure is None or not is_read_only(step):
        return False
    if failure.kind.code in EMPTY_LOOKUP_CODES:
        return True
    # grep, diff and test report "no" by a silent exit code 1.
    return (
        failure.kind.code == "execution_failed"
        and _is_read_only_command(step)
        and bool(_SILENT_EXIT.fullmatch(failure.message))
    )


def reads_file(step: Step) -> bool:
    """Return whether a call reads a file, judged by its tool name."""
    return any(word.casefold() in ("read", "view", "open", "cat") for word in _WORD.findall(step.name[:200]))


def _is_read_only_command(step: Step) -> bool:
    command = step.arguments.get("command") if isinstance(step.arguments, Mapping) else None
    if isinstance(command, list | tuple):  # an argv: the command follows `-c`
        command = command[-1] if command else None
    if step.name.casefold() not in SHELL_TOOLS or not isinstance(command, str) or len(command) > MAX_COMMAND_CHARS:
        return False
    if _WRITES.search(command):
        return False
    programs = [part.split()[0] for part in _COMMAND_SEPARATORS.split(command) if part.strip()]
    return bool(programs) and all(program in READ_ONLY_PROGRAMS for program in programs)
