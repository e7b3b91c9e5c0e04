"""Whether a call only looks, and whether a failed one merely looked and found nothing.

What the developer of a tool said about its effects decides. Where nobody said anything, as in the logs of coding
agents, their readers are known by name, and a shell by the programs it was to run. What is not known may change things.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mulligan.records import Step
from mulligan.redaction.expressions import Expression

READERS = frozenset(
    "read glob grep ls notebookread webfetch websearch bashoutput "  # Claude Code
    "read_file read_many_files list_directory search_file_content google_web_search web_fetch "  # Gemini CLI
    "view_image web_search list_dir grep_files".split()  # Codex
)
"""Tools of coding agents that change nothing, in small letters."""
SHELLS = frozenset("bash shell local_shell exec_command run_shell_command".split())
PROGRAMS = frozenset(
    "[ basename cat cd cut diff dirname du echo egrep fgrep find grep head jq ls nl pwd readlink realpath rg stat tail "
    "test tr type wc which".split()
)
"""Programs that only look, whatever they are told; but for `find`, which can be told to do more."""
MISSES = frozenset(("not_found", "file_not_found", "no_results"))
"""What a look that found nothing is called."""
LONG = 2000
"""Characters of a command that are looked at: whoever writes more does more than look."""

_SILENT = Expression(r"(?:command failed with )?exit (?:code|status):? 1\.?", re.IGNORECASE)
_WRITES = Expression(r"`|\$\(|<\(|>(?!\s{0,4}/dev/null\b|&\d)|\s-(?:delete|exec|ok|fprint|fls)")
_PARTS = Expression(r"\|\||&&|[;|\n]|(?<!>)&(?!\d)")
_WORD = Expression(r"[a-z]+|[A-Z]+[a-z]*")


def only_looks(step: Step) -> bool:
    """Whether a call of this kind changes nothing, as far as anybody has said."""
    if step.effects is not None:
        return step.effects == "none"
    return step.type == "retrieval" or step.name.casefold() in READERS or _is_look(step)


def is_miss(step: Step) -> bool:
    """Whether a failed call was a look that found nothing: an answer, and nothing to avoid."""
    failure = step.failure
    if failure is None or not only_looks(step):
        return False
    if failure.kind.code in MISSES:
        return True
    # grep, diff and test say no in this way, and nothing else.
    return failure.kind.code == "execution_failed" and _is_look(step) and bool(_SILENT.fullmatch(failure.message))


def is_reading(step: Step) -> bool:
    """Whether a call shows what is in a file, by the name of its tool."""
    return any(word.casefold() in ("read", "view", "open", "cat") for word in _WORD.findall(step.name[:200]))


def _is_look(step: Step) -> bool:
    command = step.arguments.get("command") if isinstance(step.arguments, Mapping) else None
    if isinstance(command, list | tuple):  # an argv: what stands behind `-c` is the command
        command = command[-1] if command else None
    if step.name.casefold() not in SHELLS or not isinstance(command, str) or len(command) > LONG:
        return False
    if _WRITES.search(command):
        return False
    programs = [part.split()[0] for part in _PARTS.split(command) if part.strip()]
    return bool(programs) and all(each in PROGRAMS for each in programs)
