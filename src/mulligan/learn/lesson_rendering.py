"""Selection and rendering of lessons for a prompt, ranked and limited to a token budget."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from mulligan.core.failure import StoreError
from mulligan.core.records import Lesson, LessonState
from mulligan.prompt import DEFAULT_LESSON_TOKENS, Prompt, estimate_prompt_tokens
from mulligan.store.base import LessonQuery, Store

MAX_SEEDS = 10_000
MAX_LESSONS_PER_TOOL = 100
"""Lessons read per tool. They are ranked, so later ones would rarely fit into a prompt."""


class RenderedLessons(NamedTuple):
    """Rendered prompt text and the ids of the lessons in it."""

    text: str
    lesson_ids: tuple[str, ...]
    omitted_count: int
    """Lessons that did not fit into the token budget."""


def select_lessons(
    store: Store | None,
    tenant: str,
    tools: Iterable[str],
    now: int,
    *,
    include_seeds: bool = True,
    include_proposed: bool = False,
) -> list[Lesson]:
    """Select the lessons for these tools, or for all tools if none is named, in rank order.

    Order: active lessons, seed lessons, then proposed ones, which are included only with `include_proposed`. Lessons
    learned under an older schema of their tool are excluded. For named tools, seed lessons are included even if they
    were never installed in the store.
    """
    tool_names = list(dict.fromkeys(tools))
    lessons_by_id: dict[str, Lesson] = {}
    if store is not None:
        states: tuple[LessonState, ...] = ("active", "proposed") if include_proposed else ("active",)
        queries = [LessonQuery(tool=name, state=state, now=now, limit=MAX_LESSONS_PER_TOOL)
                   for state in states for name in tool_names or (None,)]  # fmt: skip
        for query in queries:
            lessons_by_id |= {
                lesson.id: lesson for lesson in store.lessons(tenant, query) if lesson.id not in lessons_by_id
            }
    if include_seeds:
        lessons_by_id |= {
            lesson.id: lesson
            for lesson in _select_seeds(store, tenant, tool_names, now)
            if lesson.id not in lessons_by_id
        }
    usable_lessons = [
        lesson
        for lesson in lessons_by_id.values()
        if (lesson.can_show_to_model if include_proposed else lesson.is_trusted)
    ]
    # The sort is stable: lessons of the same rank keep the store's order.
    return sorted((lesson for lesson in usable_lessons if include_seeds or not lesson.is_seed), key=_rank)


def _select_seeds(store: Store | None, tenant: str, tool_names: Sequence[str], now: int) -> list[Lesson]:
    """Return the seed lessons for these tools with any edits from the store, most occurrences first."""
    stored_seeds: dict[str, Lesson] = {}
    if store is not None:
        stored_seeds = {
            seed.id: seed for seed in store.lessons(tenant, LessonQuery(source="seed", now=now, limit=MAX_SEEDS))
        }
    if not tool_names:
        return sorted(stored_seeds.values(), key=lambda seed: -seed.occurrences)
    from mulligan.learn import seeds  # lazy: reads files, and many callers need no seeds

    try:
        is_disabled = store is not None and seeds.is_disabled(store, tenant)
    except StoreError:
        # A server hides its key-value entries from readers: use only the seeds installed there.
        is_disabled = True
    seeds_by_id = {} if is_disabled else {seed.id: seed for seed in seeds.load_seeds().values()}
    seeds_by_id |= stored_seeds
    matching_seeds: dict[str, Lesson] = {}
    for tool_name in tool_names:
        family = seeds.find_tool_family(tool_name)
        for seed in seeds_by_id.values():
            if seed.tool == tool_name or (family and seeds.find_tool_family(seed.tool) == family):
                matching_seeds.setdefault(seed.id, msgspec.structs.replace(seed, tool=tool_name))
    return sorted(matching_seeds.values(), key=lambda seed: -seed.occurrences)


def _rank(lesson: Lesson) -> int:
    if lesson.is_seed:
        return 1
    return 0 if lesson.state == "active" else 2


def _is_general_advice(lesson: Lesson) -> bool:
    """Return whether it is a seed lesson whose failure did not occur yet."""
    return lesson.is_seed and not lesson.occurrences


def render_within_budget(
    prompt: Prompt,
    lessons: Sequence[Lesson],
    max_tokens: int = DEFAULT_LESSON_TOKENS,
    *,
    requested_tools: Collection[str] = (),
    heading: str = "{}:",
    server: str = "",
    wrap: Callable[[str], str] = lambda text: text,
) -> RenderedLessons:
    """Render lessons as a text of at most `max_tokens`: the best lesson of each tool, then the second of each.

    `requested_tools` are the tool names of the query. The text that `wrap` adds counts toward the budget. The text is
    empty if not even the frame fits.
    """
    line_by_id: dict[str, str] = {}
    for lesson in lessons:
        name = prompt.tool_heading(lesson.tool, is_requested=lesson.tool in requested_tools)
        line = prompt.lesson_sentence(lesson, with_evidence=not _is_general_advice(lesson)) if name else ""
        if line:
            line_by_id[lesson.id] = line
    page = _LessonPage(prompt, heading, frozenset(requested_tools), server, has_lessons=bool(line_by_id))
    opening_choices = (prompt.introduction(), prompt.short_introduction(), "")

    def fits(opening: str | None = None) -> bool:
        return estimate_prompt_tokens(wrap(page.text(opening))) <= max_tokens

    opening_budget = max_tokens // 3 if line_by_id else max_tokens
    page.opening = next(
        (opening for opening in opening_choices if estimate_prompt_tokens(opening) <= opening_budget and fits(opening)),
        "",
    )
    if not fits():
        return RenderedLessons("", (), len(line_by_id))
    included_lessons: list[Lesson] = []
    rendered_lines: set[tuple[str, str]] = set()
    for lesson in _interleave_tools([lesson for lesson in lessons if lesson.id in line_by_id]):
        line = line_by_id[lesson.id]
        if (lesson.tool, line) in rendered_lines:
            continue
        page.add_line(lesson, line)
        if not fits():
            page.remove_last_line(lesson)
            continue
        rendered_lines.add((lesson.tool, line))
        included_lessons.append(lesson)
    return RenderedLessons(
        page.text(), tuple(lesson.id for lesson in included_lessons), len(line_by_id) - len(included_lessons)
    )


def _interleave_tools(lessons: Sequence[Lesson]) -> Iterator[Lesson]:
    """Interleave tools within each rank, so that one tool with many lessons does not crowd out the others."""
    position_by_group: dict[tuple[int, str], int] = {}
    order = []
    for number, lesson in enumerate(lessons):
        key = (_rank(lesson), lesson.tool)
        position_by_group[key] = position_by_group.get(key, 0) + 1
        order.append((_rank(lesson), position_by_group[key], number, lesson))
    yield from (lesson for *_, lesson in sorted(order, key=lambda entry: entry[:3]))


class _LessonPage:
    """Prompt text built line by line, grouped by tool. General advice comes last, under a heading of its own."""

    def __init__(
        self, prompt: Prompt, heading: str, requested_tools: frozenset[str], server: str, *, has_lessons: bool
    ) -> None:
        self._prompt, self._heading, self._requested_tools, self._server = prompt, heading, requested_tools, server
        self._has_lessons = has_lessons
        self._lines_by_tool: dict[str, list[str]] = {}
        self._general_lines_by_tool: dict[str, list[str]] = {}
        self.opening = ""

    def _section(self, lesson: Lesson) -> dict[str, list[str]]:
        return self._general_lines_by_tool if _is_general_advice(lesson) else self._lines_by_tool

    def add_line(self, lesson: Lesson, line: str) -> None:
        self._section(lesson).setdefault(lesson.tool, []).append(line)

    def remove_last_line(self, lesson: Lesson) -> None:
        section = self._section(lesson)
        section[lesson.tool].pop()
        if not section[lesson.tool]:
            del section[lesson.tool]

    def text(self, opening: str | None = None) -> str:
        prompt = self._prompt
        parts = [self.opening if opening is None else opening]
        # Do not report "no lessons" if lessons exist and only did not fit.
        if self._lines_by_tool or not self._has_lessons:
            parts.append(prompt.lessons_heading(self._has_lessons))
        parts += self._render_tools(self._lines_by_tool)
        if self._general_lines_by_tool:
            parts += [prompt.general_advice_heading(), *self._render_tools(self._general_lines_by_tool)]
        if self._server:
            parts.append(prompt.server_link(self._server))
        return "\n\n".join(filter(None, parts))

    def _render_tools(self, section: dict[str, list[str]]) -> Iterator[str]:
        for tool, lines in section.items():
            tool_label = self._prompt.tool_heading(tool, is_requested=tool in self._requested_tools)
            yield "\n".join([self._heading.format(tool_label), *(f"- {line}" for line in lines)])
