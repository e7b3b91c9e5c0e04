"""Lessons in tool descriptions, within a token budget (F7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.prompt import Prompt, estimate_prompt_tokens
from mulligan.proxy.messages import encode
from mulligan.store.base import DEFAULT_TENANT, FixQuery, LessonQuery, Store

MAX_TOOL_TOKENS = 120
"""Limit for one description: a model reads all of them with every request."""
MAX_SERVER_TOKENS = 1500
"""Limit for all descriptions of a server."""
MAX_FIXES_PER_TOOL = 50
"""Limit of lessons and fixes that are read for a tool."""


class DescriptionBudget:
    """Token budget for lessons in the descriptions of one tool list."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._remaining_tokens = MAX_SERVER_TOKENS

    def add_lessons(self, definition: Mapping[str, msgspec.Raw], lessons: Sequence[str]) -> dict[str, Any] | None:
        """Return the tool definition with its lessons, or None if there are none or none fits."""
        fitting_lessons: list[str] = []
        remaining_tokens = min(MAX_TOOL_TOKENS, self._remaining_tokens)
        for lesson in lessons:
            cost = estimate_prompt_tokens(lesson)
            if cost <= remaining_tokens:
                fitting_lessons.append(lesson)
                remaining_tokens -= cost
                self._remaining_tokens -= cost
        if not fitting_lessons:
            return None
        try:
            before = msgspec.json.decode(definition.get("description", b'""'), type=str | None) or ""
        except msgspec.DecodeError:
            return None
        text = (
            f"{before.rstrip()}\n\n{self._prompt.description_suffix(fitting_lessons)}"
            if before.strip()
            else self._prompt.description_suffix(fitting_lessons)
        )
        return {**definition, "description": msgspec.Raw(encode(text))}


def collect_lessons(
    store: Store, prompt: Prompt, server: str, tools: Mapping[str, Collection[str]], now: int
) -> dict[str, list[str]]:
    """Return sentences about each tool: active lessons, then promoted and approved fixes.

    Each tool comes with the shareable values of its schema.
    """
    sentences_by_tool: dict[str, list[str]] = {}
    for name, shareable_values in tools.items():
        tool = f"{server}.{name}"
        query = LessonQuery(tool=tool, state="active", now=now, limit=MAX_FIXES_PER_TOOL)
        active_lessons = [lesson for lesson in store.lessons(DEFAULT_TENANT, query) if lesson.is_trusted]
        sentences = [prompt.lesson_sentence(lesson).removesuffix(".") for lesson in active_lessons]
        covered_fixes = {lesson.fix_id for lesson in active_lessons}
        sentences += [
            prompt.fix_sentence(fix, shareable_values)
            for fix in store.fixes(DEFAULT_TENANT, FixQuery(tool=tool, now=now, limit=MAX_FIXES_PER_TOOL))
            if fix.state in ("promoted", "approved") and fix.id not in covered_fixes
        ]
        if unique_sentences := list(dict.fromkeys(filter(None, sentences))):
            sentences_by_tool[name] = unique_sentences
    return sentences_by_tool
