"""Selection and rendering of lessons for a prompt, ranked and limited to a token budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import product
from operator import itemgetter
from typing import NamedTuple

import msgspec

from mulligan.contract.store import LessonQuery, Store
from mulligan.core.failure import StoreError
from mulligan.core.records import Lesson, LessonState
from mulligan.prompt import DEFAULT_LESSON_TOKENS, Prompt, estimate_prompt_tokens


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
    were never installed in the store, unless only a generic name such as `search` matches.
    """
    tool_names = list(dict.fromkeys(tools))
    candidates: list[Lesson] = []
    if store is not None:
        states: tuple[LessonState, ...] = ("active", "proposed") if include_proposed else ("active",)
        for state, name in product(states, tool_names or (None,)):
            # Lessons read per tool. They are ranked, so later ones would rarely fit into a prompt.
            candidates += store.lessons(tenant, LessonQuery(tool=name, state=state, now=now, limit=100))
    if include_seeds:
        candidates += _select_seeds(store, tenant, tool_names, now)
    lessons_by_id: dict[str, Lesson] = {}
    for lesson in candidates:
        lessons_by_id.setdefault(lesson.id, lesson)
    usable_lessons = [
        lesson
        for lesson in lessons_by_id.values()
        if (lesson.can_show_to_model if include_proposed else lesson.is_trusted)
        and (include_seeds or not lesson.is_seed)
    ]
    return sorted(usable_lessons, key=_rank)  # stable: lessons of the same rank keep the store's order


def _select_seeds(store: Store | None, tenant: str, tool_names: Sequence[str], now: int) -> list[Lesson]:
    """Return the seed lessons for these tools with any edits from the store, most occurrences first."""
    query = LessonQuery(source="seed", now=now, limit=10_000)
    stored_seeds = {seed.id: seed for seed in store.lessons(tenant, query)} if store is not None else {}
    matching_seeds = stored_seeds
    if tool_names:
        from mulligan.learn import seeds  # lazy: reads files, and many callers need no seeds

        try:
            is_disabled = store is not None and seeds.is_disabled(store, tenant)
        except StoreError:
            # A server hides its key-value entries from readers: use only the seeds installed there.
            is_disabled = True
        shipped_seeds = {} if is_disabled else {seed.id: seed for seed in seeds.load_seeds().values()}
        matching_seeds = {}
        # Without a shell, a name such as read_doc or run_report says nothing about files or programs.
        has_shell = any(map(seeds.is_shell, tool_names))
        for tool_name in tool_names:
            family = seeds.find_tool_family(tool_name) if has_shell else ""
            for seed in (shipped_seeds | stored_seeds).values():
                is_named = seed.tool == tool_name and (tool_name not in seeds.GENERIC_TOOLS or seed.id in stored_seeds)
                if is_named or (family and seeds.find_tool_family(seed.tool) == family):
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
    label_by_tool = {
        tool: prompt.tool_heading(tool, is_requested=tool in requested_tools)
        for tool in {lesson.tool for lesson in lessons}
    }
    line_by_id = {
        lesson.id: line
        for lesson in lessons
        if label_by_tool[lesson.tool]
        and (line := prompt.lesson_sentence(lesson, with_evidence=not _is_general_advice(lesson)))
    }

    def render(opening: str, included: Sequence[Lesson]) -> str:
        """Render the page, grouped by tool. General advice comes last, under a heading of its own."""
        parts = [opening]
        for is_general in (False, True):
            lines_by_tool: dict[str, list[str]] = {}
            for lesson in included:
                if _is_general_advice(lesson) == is_general:
                    lines_by_tool.setdefault(lesson.tool, []).append(f"- {line_by_id[lesson.id]}")
            if is_general and lines_by_tool:
                parts.append(prompt.general_advice_heading())
            # Do not report "no lessons" if lessons exist and only did not fit.
            elif not is_general and (lines_by_tool or not line_by_id):
                parts.append(prompt.lessons_heading(bool(line_by_id)))
            for tool, lines in lines_by_tool.items():
                parts.append("\n".join([heading.format(label_by_tool[tool]), *lines]))
        if server:
            parts.append(prompt.server_link(server))
        return "\n\n".join(filter(None, parts))

    def fits(opening: str, included: Sequence[Lesson] = ()) -> bool:
        return estimate_prompt_tokens(wrap(render(opening, included))) <= max_tokens

    opening_budget = max_tokens // 3 if line_by_id else max_tokens
    openings = (prompt.introduction(can_query=_can_query(requested_tools)), prompt.short_introduction())
    opening = next((text for text in openings if estimate_prompt_tokens(text) <= opening_budget and fits(text)), "")
    if not fits(opening):
        return RenderedLessons("", (), len(line_by_id))
    included: list[Lesson] = []
    rendered_lines: set[tuple[str, str]] = set()
    for lesson in _interleave_tools([lesson for lesson in lessons if lesson.id in line_by_id]):
        key = (lesson.tool, line_by_id[lesson.id])
        if key not in rendered_lines and fits(opening, [*included, lesson]):
            rendered_lines.add(key)
            included.append(lesson)
    ids = tuple(lesson.id for lesson in included)
    return RenderedLessons(render(opening, included), ids, len(line_by_id) - len(ids))


def _can_query(tools: Collection[str]) -> bool:
    """Return whether an agent with these tools, if they are known, can query mulligan by a shell or its MCP server."""
    from mulligan.learn import seeds

    return not tools or any(seeds.is_shell(tool) or tool.endswith("known_failures") for tool in tools)


def _interleave_tools(lessons: Sequence[Lesson]) -> list[Lesson]:
    """Interleave tools within each rank, so that one tool with many lessons does not crowd out the others."""
    counts: Counter[tuple[int, str]] = Counter()
    positions = []
    for lesson in lessons:
        key = (_rank(lesson), lesson.tool)
        counts[key] += 1
        positions.append((key[0], counts[key]))
    return [lesson for _, lesson in sorted(zip(positions, lessons, strict=True), key=itemgetter(0))]
