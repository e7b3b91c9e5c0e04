"""Selection and rendering of lessons for a prompt, ranked and limited to a token budget."""

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
"""Lessons read per tool. They are ranked, so later ones would rarely fit into a prompt."""


class Told(NamedTuple):
    """Rendered prompt text and the ids of the lessons in it."""

    text: str
    lessons: tuple[str, ...]
    left_out: int
    """Lessons that did not fit into the token budget."""


def gathered(
    store: Store | None, tenant: str, tools: Iterable[str], now: int, *, seeds: bool = True, proposals: bool = False
) -> list[Lesson]:
    """Select the lessons for these tools, or for all tools if none is named, in rank order.

    Order: active lessons, seed lessons, then proposed ones, which are included only with `include_proposed`. Lessons
    learned under an older schema of their tool are excluded. For named tools, seed lessons are included even if they
    were never installed in the store.
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
    # The sort is stable: lessons of the same rank keep the store's order.
    return sorted((each for each in told if seeds or not each.is_seed), key=_rank)


def _seeds(store: Store | None, tenant: str, names: Sequence[str], now: int) -> list[Lesson]:
    """Return the seed lessons for these tools with any edits from the store, most occurrences first."""
    kept: dict[str, Lesson] = {}
    if store is not None:
        kept = {each.id: each for each in store.lessons(tenant, LessonQuery(source="seed", now=now, limit=SEEDS))}
    if not names:
        return sorted(kept.values(), key=lambda each: -each.seen)
    from mulligan.remember.seeds import corpus  # lazy: reads files, and many callers need no seeds
    from mulligan.remember.seeds.wordings import family

    try:
        is_used = store is None or not corpus.is_off(store, tenant)
    except StoreError:
        # A server hides its key-value entries from readers: use only the seeds installed there.
        is_used = False
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
    """Render lessons as a text of at most `max_tokens`: the best lesson of each tool, then the second of each.

    `requested_tools` are the tool names of the query. The text that `wrap` adds counts toward the budget. The text is
    empty if not even the frame fits.
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
    """Interleave tools within each rank, so that one tool with many lessons does not crowd out the others."""
    places: dict[tuple[int, str], int] = {}
    order = []
    for number, lesson in enumerate(lessons):
        key = (_rank(lesson), lesson.tool)
        places[key] = places.get(key, 0) + 1
        order.append((_rank(lesson), places[key], number, lesson))
    yield from (lesson for *_, lesson in sorted(order, key=lambda each: each[:3]))


class _Page:
    """Prompt text built line by line, grouped by tool."""

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
        # Do not report "no lessons" if lessons exist and only did not fit.
        if self._tools or not self._is_any:
            parts.append(words.known_pitfalls(self._is_any))
        for tool, lines in self._tools.items():
            named = words.about_tool(tool, was_asked=tool in self._asked)
            parts.append("\n".join([self._heading.format(named), *(f"- {line}" for line in lines)]))
        if self._server:
            parts.append(words.elsewhere(self._server))
        return "\n\n".join(filter(None, parts))
