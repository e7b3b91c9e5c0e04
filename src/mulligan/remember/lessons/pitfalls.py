"""What a model should know of its tools before it calls them: which lessons, in which order, within how many tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from mulligan.failure import StoreError
from mulligan.prompt import BUDGET, Prompt, tokens
from mulligan.records import Lesson, LessonState
from mulligan.remember.store import LessonQuery, Store

SEEDS = 10_000
LOOKED_AT = 100
"""Lessons of a tool that are looked at. What does not fit into a prompt by then is not the best proven."""


class Told(NamedTuple):
    """A prompt, and which lessons are in it."""

    text: str
    lessons: tuple[str, ...]
    left_out: int
    """Those for which there was no room."""


def gathered(
    store: Store | None, tenant: str, tools: Iterable[str], now: int, *, seeds: bool = True, proposals: bool = False
) -> list[Lesson]:
    """What may be told of these tools, or of all where none is named; the best proven first.

    What is proven or approved comes before what came with mulligan, and that before what is only proposed, which is
    told only to those who ask for it. What was learned under another schema of its tool is not told. Of tools that are
    named, seeds are told also where they were never put into the store.
    """
    names = list(dict.fromkeys(tools))
    found: dict[str, Lesson] = {}
    if store is not None:
        states: tuple[LessonState, ...] = ("active", "proposed") if proposals else ("active",)
        queries = [LessonQuery(tool=name, state=state, now=now, limit=LOOKED_AT)
                   for state in states for name in names or (None,)]  # fmt: skip
        for query in queries:
            found |= {each.id: each for each in store.lessons(tenant, query) if each.id not in found}
    if seeds:
        found |= {each.id: each for each in _seeds(store, tenant, names, now) if each.id not in found}
    told = [each for each in found.values() if (each.may_be_told if proposals else each.is_trusted)]
    return sorted((each for each in told if seeds or not each.is_seed), key=_rank)  # stable: else the store's order


def _seeds(store: Store | None, tenant: str, names: Sequence[str], now: int) -> list[Lesson]:
    """What came with mulligan about these tools, as people left it; first what was met here."""
    kept: dict[str, Lesson] = {}
    if store is not None:
        kept = {each.id: each for each in store.lessons(tenant, LessonQuery(source="seed", now=now, limit=SEEDS))}
    if not names:
        return sorted(kept.values(), key=lambda each: -each.seen)
    from mulligan.remember.seeds import corpus  # reads files, and many ask of all tools, or without seeds
    from mulligan.remember.seeds.wordings import family

    try:
        is_used = store is None or not corpus.is_off(store, tenant)
    except StoreError:
        is_used = False  # a server tells readers nothing of its shelf: what was planted there is told, and no more
    every = {**({each.id: each for each in corpus.seeds().values()} if is_used else {}), **kept}
    found: dict[str, Lesson] = {}
    for name in names:
        for each in every.values():
            if each.tool == name or (family(name) and family(each.tool) == family(name)):
                found.setdefault(each.id, msgspec.structs.replace(each, tool=name))
    return sorted(found.values(), key=lambda each: -each.seen)


def _rank(lesson: Lesson) -> int:
    if lesson.is_seed:
        return 1
    return 0 if lesson.state == "active" else 2


def told(
    words: Prompt,
    lessons: Sequence[Lesson],
    budget: int = BUDGET,
    *,
    tools: Collection[str] = (),
    heading: str = "{}:",
    server: str = "",
    wrap: Callable[[str], str] = lambda text: text,
) -> Told:
    """These lessons as a text of at most so many tokens, whatever is stored: each tool's best before any tool's second.

    `tools` are the names that were asked for. `wrap` puts around it what counts too. Where there is no room for
    anything, the text is empty.
    """
    lines: dict[str, str] = {}
    for lesson in lessons:
        name = words.about_tool(lesson.tool, was_asked=lesson.tool in tools)
        line = words.lesson(lesson) if name else ""
        if line:
            lines[lesson.id] = line
    page = _Page(words, heading, frozenset(tools), server, is_any=bool(lines))
    openings = (words.opening(), words.short_opening(), "")

    def fits(opening: str | None = None) -> bool:
        return tokens(wrap(page.text(opening))) <= budget

    room = budget // 3 if lines else budget
    page.opening = next((each for each in openings if tokens(each) <= room and fits(each)), "")
    if not fits():
        return Told("", (), len(lines))
    taken: list[Lesson] = []
    said: set[tuple[str, str]] = set()
    for lesson in _in_turn([each for each in lessons if each.id in lines]):
        line = lines[lesson.id]
        if (lesson.tool, line) in said:
            continue
        page.put(lesson.tool, line)
        if not fits():
            page.take_back(lesson.tool)
            continue
        said.add((lesson.tool, line))
        taken.append(lesson)
    return Told(page.text(), tuple(each.id for each in taken), len(lines) - len(taken))


def _in_turn(lessons: Sequence[Lesson]) -> Iterator[Lesson]:
    """The best of each tool, then the second of each: of one that fails in many ways, the others' must not go."""
    places: dict[tuple[int, str], int] = {}
    order = []
    for number, lesson in enumerate(lessons):
        key = (_rank(lesson), lesson.tool)
        places[key] = places.get(key, 0) + 1
        order.append((_rank(lesson), places[key], number, lesson))
    yield from (lesson for *_, lesson in sorted(order, key=lambda each: each[:3]))


class _Page:
    """A text that is filled line by line, under the names of tools."""

    def __init__(self, words: Prompt, heading: str, asked: frozenset[str], server: str, *, is_any: bool) -> None:
        self._words, self._heading, self._asked, self._server = words, heading, asked, server
        self._is_any = is_any
        self._tools: dict[str, list[str]] = {}
        self.opening = ""

    def put(self, tool: str, line: str) -> None:
        self._tools.setdefault(tool, []).append(line)

    def take_back(self, tool: str) -> None:
        self._tools[tool].pop()
        if not self._tools[tool]:
            del self._tools[tool]

    def text(self, opening: str | None = None) -> str:
        words = self._words
        parts = [self.opening if opening is None else opening]
        if self._tools or not self._is_any:  # nothing that fits is not nothing that is known
            parts.append(words.known_pitfalls(self._is_any))
        for tool, lines in self._tools.items():
            named = words.about_tool(tool, was_asked=tool in self._asked)
            parts.append("\n".join([self._heading.format(named), *(f"- {line}" for line in lines)]))
        if self._server:
            parts.append(words.elsewhere(self._server))
        return "\n\n".join(filter(None, parts))
