"""Search page: runs by id prefix, patterns and lessons by text, tools and agents by name."""

from __future__ import annotations

from typing import Any

from mulligan.dashboard import lesson_pages
from mulligan.dashboard.overview_page import build_pattern_row
from mulligan.dashboard.page_query import PageQuery
from mulligan.store.base import LessonQuery, PatternQuery, Store

MAX_SHOWN_RESULTS = 20


def search(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    search_text = page_query.other_parameters.get("q", "")
    if not search_text:
        return {"q": "", "runs": [], "patterns": [], "lessons": [], "tools": [], "agents": [], "is_empty": True}
    casefolded_text = search_text.casefold()
    results: dict[str, Any] = {
        "q": search_text,
        "runs": store.find(tenant, search_text, limit=MAX_SHOWN_RESULTS),
        "patterns": [
            build_pattern_row(store, tenant, page_query, pattern)
            for pattern in store.patterns(
                tenant, PatternQuery(text=search_text, limit=MAX_SHOWN_RESULTS, order="unrecovered")
            )
        ],
        "lessons": [
            lesson_pages.build_lesson_row(lesson)
            for lesson in store.lessons(
                tenant, LessonQuery(text=search_text, now=page_query.now, limit=MAX_SHOWN_RESULTS)
            )
        ],
    }
    for by, name in (("tool", "tools"), ("agent", "agents")):
        parts = store.stats(tenant, page_query.stats_query(by=by, since=None, until=None)).parts  # type: ignore[arg-type]
        results[name] = sorted(part_name for part_name in parts if casefolded_text in part_name.casefold())[
            :MAX_SHOWN_RESULTS
        ]
    if (
        not results["patterns"]
        and (matching_pattern := store.pattern(tenant, search_text) if len(search_text) > 4 else None) is not None
    ):
        results["patterns"] = [build_pattern_row(store, tenant, page_query, matching_pattern)]
    results["is_empty"] = not any(results[name] for name in ("runs", "patterns", "lessons", "tools", "agents"))
    return results
