"""What went wrong with a tool before and what proved to help, in its description, within a budget (F7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.prompt import Prompt, tokens
from mulligan.remember.store import LOCAL, FixQuery, Store
from mulligan.serve.proxy.messages import encode

EACH = 120
"""Tokens that may be added to one description: a model reads all of them with every request."""
ALL = 1500
"""Tokens that may be added to all descriptions of a server."""
FIXES = 50
"""Fixes of a tool that are looked at."""


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
    """What is proven about each of these tools, as sentences; only what recovery itself would act on.

    Each tool comes with the texts that belong to its schema, and so to nobody.
    """
    found: dict[str, list[str]] = {}
    for name, closed in tools.items():
        fixes = store.fixes(LOCAL, FixQuery(tool=f"{server}.{name}", now=now, limit=FIXES))
        proven = [fix for fix in fixes if fix.state in ("promoted", "approved")]
        told = dict.fromkeys(sentence for fix in proven if (sentence := words.pitfall(fix, closed)))
        if told:
            found[name] = list(told)
    return found
