"""Seed matching: a seed matches a failure whose text contains one of its phrases word for word.

There is no similarity search: a seed is about one program, which prints constant messages. Each line of a seed's
`error` is a phrase, with `{name}` for a variable part. Most failures match no seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from mulligan.failure import Failure
from mulligan.records import Lesson

LINES = 40
"""Lines at each end of a text that are searched: programs print the cause first or last."""
WIDEST = 600
"""Characters of a line that are searched."""
ANY = "any"
"""The tool of a seed that applies to all tools."""

_OPEN = re.compile(r"\{[a-z ]{1,20}\}")
_MARKUP = str.maketrans("\u2039\u203a\u00a6", "<>|")
"""Reverts the replacements of the text sanitizer, in seeds and in stored failures alike."""
_SHELL = re.compile(
    r"(?:\b|_)(?:bash|shell|sh|zsh|terminal|console|powershell|cmd|exec|execute|command|run|python|ipython|jupyter|node"
    r"|interpreter|script|build|compile|lint|tests?)(?:\b|_|$)",
    re.I,
)
_FILES = re.compile(
    r"(?:\b|_)(?:edit|multiedit|write|read|replace|patch|apply_patch|str_replace|notebookedit|glob|grep|view|ls)(?:\b|_|$)"
    r"|file",
    re.I,
)
_QUOTES = "'\"`\u2018\u201c"
_VAGUE = ("execution_failed", "build_failure", "test_failure", "unknown")
_EDITING = ("tool/edit_mismatch", "tool/stale_file")


class Wording(NamedTuple):
    """The constant parts of a phrase, in order, with variable text in between."""

    parts: tuple[str, ...]

    @property
    def weight(self) -> int:
        """The number of constant characters: of several matches, the longest is the most specific."""
        return sum(map(len, self.parts))


@lru_cache(1024)
def wording(text: str) -> Wording:
    """Parse a phrase. Variable parts at its ends are ignored."""
    return Wording(tuple(part for each in _OPEN.split(_folded(text)) if (part := each.strip(" "))))


def wordings(seed: Lesson) -> list[Wording]:
    return [wording(line) for line in seed.error.splitlines() if line.strip()]


def is_in(known: Wording, line: str) -> bool:
    """Return whether a normalized line contains the phrase: whole words, in order, with text in between.

    A quoted phrase does not count: such a text talks about a failure.
    """
    end = -1
    for number, part in enumerate(known.parts):
        start = end + 1
        end = _end_of(part, line, start)
        while not number and end >= 0 and _is_quoted(line, end - len(part)):
            end = _end_of(part, line, end)
        if end < 0:
            return False
    return bool(known.parts)


def _is_quoted(line: str, at: int) -> bool:
    return at > 0 and line[at - 1] in _QUOTES and line[at] not in _QUOTES


def _end_of(part: str, line: str, start: int) -> int:
    """Return the end of the first occurrence at or after `start` that has word boundaries; -1 if there is none."""
    at = line.find(part, start)
    while at >= 0:
        end = at + len(part)
        is_cut = at > 0 and line[at - 1].isalnum() and part[0].isalnum()
        if not is_cut and not (end < len(line) and line[end].isalnum() and part[-1].isalnum()):
            return end
        at = line.find(part, at + 1)
    return -1


def speaking(seeds: Iterable[Lesson], tool: str, failure: Failure, limit: int = 1) -> list[Lesson]:
    """Return the seeds that match a failure of a tool, the most specific first."""
    said = _lines(failure.message)
    rest = _lines(failure.detail)
    whole = "\n".join((*said, *rest))
    found: list[tuple[bool, int, str, Lesson]] = []
    for seed in seeds:
        if not _may_meet(seed, tool, failure):
            continue
        # The detail may be about something else. Search it only if the failure has the seed's kind, or a vague one.
        may_look_on = failure.kind.code in _VAGUE or str(failure.kind) == seed.kind
        for each in wordings(seed):
            if not all(part in whole for part in each.parts):
                continue
            in_message = any(is_in(each, line) for line in said)
            in_rest = not in_message and may_look_on and any(is_in(each, line) for line in rest)
            if in_message or in_rest:
                found.append((in_message, each.weight, seed.id, seed))
    found.sort(key=lambda each: (not each[0], -each[1], each[2]))
    return list({id: seed for *_, id, seed in found}.values())[:limit]


def _may_meet(seed: Lesson, tool: str, failure: Failure) -> bool:
    """Return whether a seed can apply to a tool: shells, editors and models print different messages."""
    if (seed.kind.partition("/")[0] == "model") != (failure.kind.type == "model"):
        return False
    if seed.tool == ANY or failure.kind.type == "model":
        return True
    asked, own = family(tool), family(seed.tool)
    if own == "files" and asked == "shell":
        return str(failure.kind) in _EDITING  # some agents patch files by a shell command
    if "." in seed.tool and asked == "shell":
        return False  # a tool of an MCP server
    if own == "shell":
        return asked == "shell" or not tool  # other tools may use the words of a program with another meaning
    return own == asked or not own or not asked


def family(tool: str) -> str:
    """Return `shell`, `files` or an empty string, by the tool names that agents use."""
    name = re.split(r"[.]|__", tool)[-1]
    if _SHELL.search(name):
        return "shell"
    return "files" if _FILES.search(name) else ""


def _lines(text: str) -> Sequence[str]:
    lines = text[: 200 * WIDEST].splitlines() if len(text) <= 200 * WIDEST else _ends(text)
    if len(lines) > 2 * LINES:
        lines = lines[:LINES] + lines[-LINES:]
    return [folded for line in lines if (folded := _folded(line[:WIDEST]))]


def _ends(text: str) -> list[str]:
    return text[: 20 * WIDEST].splitlines() + text[-20 * WIDEST :].splitlines()


def _folded(text: str) -> str:
    return " ".join(text.translate(_MARKUP).casefold().split())
