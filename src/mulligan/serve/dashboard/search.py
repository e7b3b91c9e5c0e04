"""Search page: runs by id prefix, patterns and lessons by text, tools and agents by name."""

from __future__ import annotations

from typing import Any

from mulligan.remember.store import LessonQuery, PatternQuery, Store
from mulligan.serve.dashboard import lessons
from mulligan.serve.dashboard.asked import Asked
from mulligan.serve.dashboard.overview import row

SHOWN = 20


def search(store: Store, tenant: str, asked: Asked) -> dict[str, Any]:
    wanted = asked.rest.get("q", "")
    if not wanted:
        return {"q": "", "runs": [], "patterns": [], "lessons": [], "tools": [], "agents": [], "is_empty": True}
    folded = wanted.casefold()
    found: dict[str, Any] = {
        "q": wanted,
        "runs": store.find(tenant, wanted, limit=SHOWN),
        "patterns": [
            row(store, tenant, asked, each)
            for each in store.patterns(tenant, PatternQuery(text=wanted, limit=SHOWN, order="given_up"))
        ],
        "lessons": [
            lessons.row(each) for each in store.lessons(tenant, LessonQuery(text=wanted, now=asked.now, limit=SHOWN))
        ],
    }
    for by, name in (("tool", "tools"), ("agent", "agents")):
        parts = store.stats(tenant, asked.stats(by=by, since=None, until=None)).parts  # type: ignore[arg-type]
        found[name] = sorted(each for each in parts if folded in each.casefold())[:SHOWN]
    if not found["patterns"] and (one := store.pattern(tenant, wanted) if len(wanted) > 4 else None) is not None:
        found["patterns"] = [row(store, tenant, asked, one)]
    found["is_empty"] = not any(found[name] for name in ("runs", "patterns", "lessons", "tools", "agents"))
    return found
