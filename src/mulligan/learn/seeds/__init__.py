"""Seed lessons: loaded from their files, installed into a store, and matched to failures.

Seeds work without being installed, so that the first day is useful. They are no evidence (SAFETY S3). Decisions in the
store take precedence: a seed that was disabled or edited there stays so, and `mulligan seed --remove` disables all.

A seed matches a failure whose text contains one of its phrases word for word. There is no similarity search: a seed is
about one program, which prints constant messages. Each line of a seed's `error` is a phrase, with `{name}` for a
variable part. Most failures match no seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from mulligan.contract.store import LessonQuery, Store
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import Lesson

FOLDER = Path(__file__).parent / "lessons"
KEY_VALUE_KIND, USE_KEY = "seeds", "use"
OFF = b"off"


class SeedResult(NamedTuple):
    """The result of installing the seeds into a store."""

    new: int
    updated: int
    same: int
    edited: int
    """Seeds that a person has edited. They are not updated."""


@cache
def load_seeds() -> Mapping[str, Lesson]:
    """Return all seeds by file name."""
    return {name.removesuffix(".md"): _load_seed(name) for name in _read_phrases()}


@cache
def _read_phrases() -> Mapping[str, list[SeedPhrase]]:
    """Return the phrases of all seeds by file name. Hooks match seeds, and parsing the files takes 100 ms."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
    sections = {name: text.partition("\n# Error\n")[2].partition("\n# ")[0] for name, text in texts.items()}
    return {name: [parse_phrase(line) for line in text.splitlines() if line] for name, text in sections.items()}


@cache
def _load_seed(file_name: str) -> Lesson:
    from mulligan.learn import lesson_files

    lesson = lesson_files.parse_lesson_file((FOLDER / file_name).read_bytes(), file_name).lesson
    return msgspec.structs.replace(lesson, edited=False, source="seed")


def find_seed(id: str) -> Lesson | None:
    """Return the seed with this id or unique id prefix."""
    matches = [seed for seed in load_seeds().values() if seed.id.startswith(id)]
    return matches[0] if len(matches) == 1 else None


def find_matching_seeds(store: Store | None, tenant: str, tool: str, failure: Failure, limit: int = 1) -> list[Lesson]:
    """Return the seeds that match a failure, with their stored text, without disabled ones."""
    text = "\n".join((*_lines(failure.message), *_lines(failure.detail)))
    names = [name for name, phrases in _read_phrases().items() if any(phrase.is_in(text) for phrase in phrases)]
    matches = match_seeds(map(_load_seed, names), tool, failure, limit)
    if not matches or store is None:
        return matches
    if is_disabled(store, tenant):
        return []
    current_seeds = [store.lesson(tenant, seed.id) or seed for seed in matches]
    return [seed for seed in current_seeds if seed.state != "disabled"]


def install_seeds(store: Store, tenant: str) -> SeedResult:
    """Install the seeds into a store, or update their text. Decisions of people are retained."""
    before = {lesson.id: lesson for lesson in list_stored_seeds(store, tenant)}
    seeds = list(load_seeds().values())
    changed_ids = [
        seed.id for seed, is_changed in zip(seeds, store.save_lessons(tenant, seeds), strict=True) if is_changed
    ]
    store.put(tenant, KEY_VALUE_KIND, USE_KEY, b"on")
    new = sum(seed.id not in before for seed in seeds)
    updated = sum(id in before for id in changed_ids)
    edited = sum(seed.id in before and before[seed.id].edited for seed in seeds)
    return SeedResult(new, updated, len(seeds) - new - updated - edited, edited)


def remove_seeds(store: Store, tenant: str) -> int:
    """Delete the seeds from a store and disable them. Return how many were stored."""
    removed_count = store.remove_lessons(tenant, "seed")
    store.put(tenant, KEY_VALUE_KIND, USE_KEY, OFF)
    return removed_count


def is_disabled(store: Store, tenant: str) -> bool:
    """Return whether a person has disabled the seeds."""
    return store.get(tenant, KEY_VALUE_KIND, USE_KEY) == OFF


def list_stored_seeds(store: Store, tenant: str) -> list[Lesson]:
    return store.lessons(tenant, LessonQuery(source="seed", limit=10_000))


# Matching


MAX_EDGE_LINES = 40
"""Lines at each end of a text that are searched: programs print the cause first or last."""
MAX_LINE_CHARS = 600
"""Characters of a line that are searched."""
ANY_TOOL = "any"
"""The tool of a seed that applies to all tools."""

GENERIC_TOOLS = frozenset((ANY_TOOL, "chat", "fetch", "query", "search"))
"""Tools of seeds whose names say nothing about the tool of an agent that has the same name."""

_PLACEHOLDER = re.compile(r"\{[a-z ]{1,20}\}")
_MARKUP = str.maketrans("\u2039\u203a\u00a6", "<>|")
"""Reverts the replacements of the text sanitizer, in seeds and in stored failures alike."""
_SHELL = re.compile(
    r"(?:\b|_)(?:bash|shell|sh|zsh|terminal|console|powershell|cmd|exec|execute|command|run|python|ipython|jupyter|node"
    r"|interpreter|script|build|compile|lint|tests?)(?:\b|_|$)",
    re.I,
)
_SHELL_NAME = re.compile(
    r"(?:\b|_)(?:(?:bash|shell|sh|zsh|terminal|powershell)|(?:run|exec|execute)_(?:command|cmd))(?:\b|_|$)", re.I
)
_FILES = re.compile(
    r"(?:\b|_)(?:edit|multiedit|write|read|replace|patch|apply_patch|str_replace|notebookedit|glob|grep|view|ls)(?:\b|_|$)"
    r"|file",
    re.I,
)
_QUOTES = "'\"`\u2018\u201c"


class SeedPhrase(NamedTuple):
    """The constant parts of a phrase, in order, with variable text in between."""

    parts: tuple[str, ...]

    @property
    def weight(self) -> int:
        """The number of constant characters: of several matches, the longest is the most specific."""
        return sum(map(len, self.parts))

    def is_in(self, text: str) -> bool:
        """Return whether a normalized text has all parts, anywhere: fast, and never false if a line matches."""
        return all(part in text for part in self.parts)


@lru_cache(1024)
def parse_phrase(text: str) -> SeedPhrase:
    """Parse a phrase. Variable parts at its ends are ignored."""
    return SeedPhrase(tuple(part for piece in _PLACEHOLDER.split(_normalize(text)) if (part := piece.strip(" "))))


def parse_phrases(seed: Lesson) -> list[SeedPhrase]:
    return [parse_phrase(line) for line in seed.error.splitlines() if line.strip()]


def contains_phrase(phrase: SeedPhrase, line: str) -> bool:
    """Return whether a normalized line contains the phrase: whole words, in order, with text in between.

    A quoted phrase does not count: such a text talks about a failure.
    """
    end = -1
    for number, part in enumerate(phrase.parts):
        start = end + 1
        end = _end_of(part, line, start)
        while not number and end >= 0 and _is_quoted(line, end - len(part)):
            end = _end_of(part, line, end)
        if end < 0:
            return False
    return bool(phrase.parts)


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


def match_seeds(seeds: Iterable[Lesson], tool: str, failure: Failure, limit: int = 1) -> list[Lesson]:
    """Return the seeds that match a failure of a tool, the most specific first."""
    message_lines = _lines(failure.message)
    detail_lines = _lines(failure.detail)
    full_text = "\n".join((*message_lines, *detail_lines))
    matches: list[tuple[bool, int, str, Lesson]] = []
    for seed in seeds:
        if not _can_apply(seed, tool, failure):
            continue
        # The detail may be about something else. Search it only if the failure has the seed's kind, or a vague one.
        can_search_detail = failure.kind.is_vague or str(failure.kind) == seed.kind
        for phrase in parse_phrases(seed):
            if not phrase.is_in(full_text):
                continue
            in_message = any(contains_phrase(phrase, line) for line in message_lines)
            if in_message or (can_search_detail and any(contains_phrase(phrase, line) for line in detail_lines)):
                matches.append((not in_message, -phrase.weight, seed.id, seed))
    matches.sort(key=lambda match: match[:3])
    return list({id: seed for *_, id, seed in matches}.values())[:limit]


def _can_apply(seed: Lesson, tool: str, failure: Failure) -> bool:
    """Return whether a seed can apply to a tool: shells, editors and models print different messages.

    A test prints what it likes, such as a missing file that it expects.
    """
    if failure.kind.is_about_tests and not Kind.from_name(seed.kind).is_vague:
        return False
    if (seed.kind.partition("/")[0] == "model") != (failure.kind.type == "model"):
        return False
    if seed.tool == ANY_TOOL or failure.kind.type == "model":
        return True
    tool_family, seed_family = find_tool_family(tool), find_tool_family(seed.tool)
    if seed_family == "files" and tool_family == "shell":
        return failure.kind.needs_reread  # some agents patch files by a shell command
    if "." in seed.tool and tool_family == "shell":
        return False  # a tool of an MCP server
    if seed_family == "shell":
        return tool_family == "shell" or not tool  # other tools may use the words of a program with another meaning
    return seed_family == tool_family or not seed_family or not tool_family


def find_tool_family(tool: str) -> str:
    """Return `shell`, `files` or an empty string, by the tool names that agents use."""
    name = _last_name(tool)
    if _SHELL.search(name):
        return "shell"
    return "files" if _FILES.search(name) else ""


def is_shell(tool: str) -> bool:
    """Return whether a tool's name alone says that it runs commands."""
    return _SHELL_NAME.search(_last_name(tool)) is not None


def _last_name(tool: str) -> str:
    """Return a tool's name without those of its server or module, and of a huge name the end."""
    return re.split(r"[.]|__", tool[-200:])[-1]


def _lines(text: str) -> Sequence[str]:
    if len(text) > 200 * MAX_LINE_CHARS:
        text = f"{text[: 20 * MAX_LINE_CHARS]}\n{text[-20 * MAX_LINE_CHARS :]}"
    lines = text.splitlines()
    if len(lines) > 2 * MAX_EDGE_LINES:
        lines = lines[:MAX_EDGE_LINES] + lines[-MAX_EDGE_LINES:]
    return [normalized for line in lines if (normalized := _normalize(line[:MAX_LINE_CHARS]))]


def _normalize(text: str) -> str:
    return " ".join(text.translate(_MARKUP).casefold().split())
