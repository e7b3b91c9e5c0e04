"""What went wrong with a tool before and what proved to help, in its description, within a budget (F7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.prompt import Prompt, tokens
from mulligan.remember.store import LOCAL, FixQuery, LessonQuery, Store
from mulligan.serve.proxy.messages import encode

EACH = 120
"""Tokens that may be added to one description: a model reads all of them with every request."""
ALL = 1500
"""Tokens that may be added to all descriptions of a server."""
FIXES = 50
"""Lessons and fixes of a tool that are looked at."""


class Budget:
    """What may still be added to the descriptions of one list."""

    def __init__(self, words: Prompt) -> None:
        self._words = words
        self._left = ALL

    def described(self, definition: Mapping[str, msgspec.Raw], lessons: Sequence[str]) -> dict[str, Any] | None:
        """The definition of a tool with what is known about it; None where nothing is, or nothing fits."""
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
    """What is proven about each of these tools, as sentences: lessons in force, then what recovery would act on.

    Each tool comes with the texts that belong to its schema, and so to nobody.
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
