"""Compare page: two versions, agents or periods, with significant differences marked."""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.failure import SettingsError
from mulligan.figures import Stats, StatsQuery
from mulligan.remember.store import Store
from mulligan.report import stats as questions
from mulligan.serve.dashboard import shown
from mulligan.serve.dashboard.asked import Asked, between

BY = {"version": "versions", "agent": "agents", "model": "models", "environment": "environments", "tool": "tools",
      "time": "times"}  # fmt: skip
MOST = 100
"""Limit of values offered for selection."""


def compare(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    by = asked.rest.get("by", "version")
    if by not in BY:
        raise SettingsError(f"by takes {', '.join(BY)}, got {by!r}.")
    one, other = asked.rest.get("a", ""), asked.rest.get("b", "")
    told: dict[str, Any] = {"by": by, "ways": BY, "a": one, "b": other, "differences": None, "missing": None}
    if by == "time":
        days = asked.buckets
        first, last = asked.dates
        earlier = asked.before()
        told["a"] = one or f"{shown.date(earlier.since or 0)}..{shown.date((earlier.until or 1) - 1)}"
        told["b"] = other or f"{first}..{last}"
        told["values"] = []
        answers = [_over(store, tenant, asked, told[side], side) for side in ("a", "b")]
        told["grain"] = len(days)
    else:
        every = store.stats(tenant, asked.stats(by=by))  # type: ignore[arg-type]
        values = _values(by, every)
        told["values"] = values[:MOST]
        if not one and not other and len(values) >= 2:
            told["a"], told["b"] = one, other = values[0], values[1]
        if not one or not other:
            return told
        answers = [store.stats(tenant, _only(asked, by, value)) for value in (one, other)]
    told["missing"] = [
        told[side]
        for side, answer in zip("ab", answers, strict=True)
        if not answer.total.calls and not answer.total.runs
    ]
    told["differences"] = questions.compared(answers[0].total, answers[1].total)
    told["calls"] = [answer.total.calls for answer in answers]
    return told


def _values(by: str, every: Stats) -> list[str]:
    """Return the comparable values, most calls first.

    Stats label a version with its agent; only the version is used.
    """
    counts: dict[str, int] = {}
    for label, cell in every.parts.items():
        name = label.rpartition(" ")[2] if by == "version" else label
        if name and shown.is_plain(name):
            counts[name] = counts.get(name, 0) + cell.calls
    return sorted(counts, key=lambda name: (-counts[name], name))


def _only(asked: Asked, by: str, value: str) -> StatsQuery:
    return msgspec.structs.replace(asked.stats(), **{by: value})


def _over(store: Store, tenant: str, asked: Asked, text: str, side: str) -> Stats:
    first, dots, last = text.partition("..")
    if not dots:
        raise SettingsError(f"{side} takes two dates such as 2026-01-01..2026-01-31, got {text[:40]!r}.")
    since, until = between(first, last, asked.now)
    return store.stats(tenant, msgspec.structs.replace(asked.stats(), since=since, until=until))
