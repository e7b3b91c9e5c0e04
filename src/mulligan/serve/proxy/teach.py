"""Lessons in tool descriptions, within a token budget (F7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.prompt import Prompt, tokens
from mulligan.remember.store import LOCAL, FixQuery, LessonQuery, Store
from mulligan.serve.proxy.messages import encode

EACH = 120
"""Limit for one description: a model reads all of them with every request."""
ALL = 1500
"""Limit for all descriptions of a server."""
FIXES = 50
"""Limit of lessons and fixes that are read for a tool."""


class Budget:
    """Token budget for lessons in the descriptions of one tool list."""

    def __init__(self, words: Prompt) -> None:
        self._words = words
        self._left = ALL

    def described(self, definition: Mapping[str, msgspec.Raw], lessons: Sequence[str]) -> dict[str, Any] | None:
        """Return the tool definition with its lessons, or None if there are none or none fits."""
        told: list[str] = []
        left = min(EACH, self._left)
        for each in lessons:
            cost = tokens(each)
            if cost <= left:
                told.append(each)
                left -= cost
                self._left -= cost
        if not told:
            return None
        try:
            before = msgspec.json.decode(definition.get("description", b'""'), type=str | None) or ""
        except msgspec.DecodeError:
            return None
        text = f"{before.rstrip()}\n\n{self._words.taught(told)}" if before.strip() else self._words.taught(told)
        return {**definition, "description": msgspec.Raw(encode(text))}


def lessons(
    store: Store, words: Prompt, server: str, tools: Mapping[str, Collection[str]], now: int
) -> dict[str, list[str]]:
    """Return sentences about each tool: active lessons, then promoted and approved fixes.

    Each tool comes with the shareable values of its schema.
    """
    found: dict[str, list[str]] = {}
    for name, closed in tools.items():
        tool = f"{server}.{name}"
        known = [each for each in store.lessons(LOCAL, LessonQuery(tool=tool, state="active", now=now, limit=FIXES))
                 if each.is_trusted]  # fmt: skip
        said = [words.lesson(each).removesuffix(".") for each in known]
        rests = {each.fix for each in known}
        said += [
            words.pitfall(fix, closed)
            for fix in store.fixes(LOCAL, FixQuery(tool=tool, now=now, limit=FIXES))
            if fix.state in ("promoted", "approved") and fix.id not in rests
        ]
        if told := list(dict.fromkeys(filter(None, said))):
            found[name] = told
    return found
