"""Pages across all records: overview, search, comparison, live events, health, audit and settings."""

from __future__ import annotations

import asyncio
import shlex
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from markupsafe import Markup

from mulligan import __version__
from mulligan.contract.audit import AuditNote, build_entry
from mulligan.contract.counters import Cell
from mulligan.contract.search_terms import MAX_SEARCH_CHARS
from mulligan.contract.store import (
    DAY,
    DEFAULT_CHANGE_DAYS,
    DEFAULT_TENANT,
    HASH_KEY,
    LessonQuery,
    PatternQuery,
    Retention,
    RunQuery,
    SessionQuery,
    Store,
)
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.failure import SettingsError
from mulligan.core.records import decode, digest, encode
from mulligan.dashboard import charts, formatting, metric_cards
from mulligan.dashboard.memory_pages import build_lesson_row, build_pattern_rows
from mulligan.dashboard.page_query import ListPages, PageQuery, parse_date_range, parse_hour
from mulligan.record.journal_import import HookErrors, count_dropped, read_hook_errors
from mulligan.redaction import sanitize
from mulligan.report import call_text, run_search, run_text
from mulligan.report import impact as impact_report
from mulligan.report import stats as stats_report
from mulligan.report.changes import find_changes
from mulligan.report.impact_cases import HELP_NAMES
from mulligan.report.impact_text import describe_sample, list_attempt_tables
from mulligan.report.resources import AUDIT_SPEC, IMPACT_SPEC, PATTERN_SPEC, STEP_SPEC
from mulligan.report.tail_reader import START_LOOKBACK_MS, TailReader
from mulligan.server.routes import decode_cursor, encode_cursor
from mulligan.server.tenants import Tenants, Tokens
from mulligan.settings import hook_folder

MAX_SHOWN_PATTERNS = 10
MAX_SHOWN_RESULTS = 20
MAX_SHOWN_HITS = 25
MAX_SAVED_SEARCHES = 50
MAX_SAVED_NAME_CHARS = 80
SAVED_SEARCH_KIND = "saved search"
"""Kind of the entries with saved searches, by a hash of their name. Forgetting a text removes those that have it."""
NO_HITS: dict[str, Any] = {"hits": [], "facets": [], "answer": None, "notes": [], "pages": ListPages(None, None)}
DIMENSIONS = {
    "version": "versions", "agent": "agents", "model": "models", "environment": "environments", "tool": "tools",
    "time": "periods",
}  # fmt: skip
"""Dimensions whose values can be compared."""
HOW_TO_SET = {
    "version": 'mulligan.run("agent", version="1.4")', "environment": 'mulligan.run("agent", environment="production")',
}  # fmt: skip
"""How a program sets the value of a dimension that a run need not have."""
MIN_CONTEXT_SHARE = 0.8
"""Target share of runs with a task description."""
POLL_INTERVAL_SECONDS = 1.0
"""Minimum time between two polls of the store."""
POLL_DELAY_FACTOR = 5
"""Delay after a poll, as a multiple of its duration, so that a live page cannot keep a busy store busy."""
MAX_POLLS = 600
"""Limit of polls per connection. The browser then reconnects, so forgotten tabs hold no connection."""


def overview(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    series = store.stats(tenant, page_query.stats_query(by="time"))
    cell = series.total
    if not cell.calls and not cell.kinds and not stats_report.started_runs(cell):
        return {"empty": metric_cards.empty_state(store, tenant, page_query)}
    tools = store.stats(tenant, page_query.stats_query(by="tool"))
    patterns = store.patterns(tenant, page_query.query(PATTERN_SPEC, order="unrecovered", limit=MAX_SHOWN_PATTERNS))
    metrics = metric_cards.metric_context(store, tenant, page_query, series)
    tool_calls = sum(part.calls for part in tools.parts.values())
    models = store.stats(tenant, page_query.stats_query(type="model")) if cell.calls > tool_calls else None
    return {
        "empty": None,
        "older": metric_cards.find_older_runs(store, tenant, page_query),
        "changes": _list_changes(store, tenant, page_query, metrics["worse"]),
        "runs": stats_report.started_runs(cell),
        "running": cell.running,
        "has_runs": metric_cards.has_runs(page_query),
        **metrics,
        "costs": metric_cards.costs(cell),
        "tool_calls": tool_calls,
        "model_calls": models.total.calls if models is not None else 0,
        "pattern_start": page_query.pattern_start,
        "tools": metric_cards.metric_rows(tools, 8),
        "all_tools": len(tools.parts),
        "patterns": build_pattern_rows(store, tenant, page_query, patterns),
        "grain": series.grain,
    }


def _list_changes(store: Store, tenant: str, page_query: PageQuery, worse: Iterable[str]) -> dict[str, Any] | None:
    """Return the patterns that changed in the period, or in the last 7 days of all time; None for past days."""
    if page_query.until is not None and page_query.until <= page_query.now:
        return None
    since = page_query.since or page_query.now // DAY * DAY - (DEFAULT_CHANGE_DAYS - 1) * DAY
    query = page_query.query(PATTERN_SPEC, since=since, state=None, text=None, new_since=None)
    changes = find_changes(store, tenant, query, page_query.now)
    new_link = page_query.link("/patterns", order="first_seen")
    label = page_query.period_label if page_query.since else "last 7 days"
    earlier, end = page_query.previous_stats_query(), page_query.period_end
    first, second = _format_period(earlier.since or 0, page_query.since), _format_period(page_query.since, end)
    return {
        "rows": changes.rows, "short_history": changes.short_history, "new_link": new_link, "label": label,
        "worse": worse,
        "compare_link": page_query.link("/compare", by="time", a=first, b=second),
    }  # fmt: skip


def search(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Find runs by their words, or the start of their id; patterns and lessons by text, the others by name."""
    text = page_query.other_parameters.get("q", "")
    saved = _list_saved_searches(store, tenant)
    run_results = _search_in_runs(store, tenant, page_query, text) if text else {**NO_HITS, "problem": ""}
    # The other lists belong to the first page of a text of usual length.
    if not 0 < len(text) <= MAX_SEARCH_CHARS or page_query.other_parameters.get("cursor"):
        names = ("runs", "sessions", "patterns", "lessons", "tools", "agents", "models")
        no_results: dict[str, Any] = {name: [] for name in names}
        return {"q": text, **run_results, "is_empty": not run_results["hits"], **no_results, "saved_searches": saved}
    patterns = store.patterns(tenant, PatternQuery(text=text, limit=MAX_SHOWN_RESULTS, order="unrecovered"))
    if not patterns and len(text) > 4 and (pattern := store.pattern(tenant, text)) is not None:
        patterns = [pattern]
    lessons = store.lessons(tenant, LessonQuery(text=text, now=page_query.now, limit=MAX_SHOWN_RESULTS))
    results: dict[str, Any] = {
        "runs": store.find(tenant, text, limit=MAX_SHOWN_RESULTS),
        **run_results,
        "sessions": [match.id for match in store.sessions(tenant, SessionQuery(text=text, limit=MAX_SHOWN_RESULTS))],
        "patterns": build_pattern_rows(store, tenant, page_query, patterns),
        "lessons": list(map(build_lesson_row, lessons)),
    }
    for by, name in (("tool", "tools"), ("agent", "agents"), ("model", "models")):
        parts = store.stats(tenant, page_query.stats_query(by=by, since=None, until=None)).parts
        results[name] = sorted(part for part in parts if text.casefold() in part.casefold())[:MAX_SHOWN_RESULTS]
    is_empty = not any(results[name] for name in results if name != "notes" and isinstance(results[name], list))
    return {"q": text, **results, "is_empty": is_empty, "saved_searches": saved}


class SavedSearch(NamedTuple):
    """A search that people of a tenant gave a name."""

    id: str
    name: str
    link: str


def _list_saved_searches(store: Store, tenant: str) -> list[SavedSearch]:
    searches = []
    for id in store.keys(tenant, SAVED_SEARCH_KIND):
        if value := store.get(tenant, SAVED_SEARCH_KIND, id):  # empty: it was removed
            name, parameters = decode(value, tuple[str, dict[str, str]])
            searches.append(SavedSearch(id, name, f"/search?{urlencode(parameters, errors='replace')}"))
    return sorted(searches, key=lambda search: search.name.casefold())


def save_search(store: Store, tenant: str, now: int, _: str, form: Mapping[str, str]) -> bool:
    """Save the search of the page under a name, or remove one. Return False if there is none to remove."""
    name, parameters = form.get("name", "").strip(), dict(parse_qsl(urlsplit(form.get("address", "")).query))
    if removed_id := form.get("remove", ""):
        id, action, value = removed_id, "search.remove", b""
    elif not name or len(name) > MAX_SAVED_NAME_CHARS or "q" not in parameters:
        raise SettingsError(f"Search for something, and give it a name of at most {MAX_SAVED_NAME_CHARS} characters.")
    elif len(_list_saved_searches(store, tenant)) >= MAX_SAVED_SEARCHES:
        raise SettingsError(f"There are {MAX_SAVED_SEARCHES} saved searches. Remove one of them first.")
    else:
        # The name is the key: saving it again replaces the search.
        id, action = digest(name.encode("utf-8", "replace"), 8).hex(), "search.save"
        value = encode((name, parameters))  # not as an address, in which a text to forget is encoded
    previous = store.get(tenant, SAVED_SEARCH_KIND, id)
    if removed_id and not previous:
        return False
    note = AuditNote(tenant, build_entry(action, now, id))
    return store.compare_and_set(tenant, SAVED_SEARCH_KIND, id, previous, value, note)


def _search_in_runs(store: Store, tenant: str, page_query: PageQuery, text: str) -> dict[str, Any]:
    """Return the runs that contain the words of a text, or why it cannot be searched for."""
    try:
        key = store.get(tenant, *HASH_KEY)
        cursor = page_query.other_parameters.get("cursor", "")
        position = decode_cursor(cursor, run_search.SEARCH_SPEC.position_type) if cursor else None
        answer = run_search.search_runs(
            store, tenant, text, page_query.now, MAX_SHOWN_HITS, page_query.filters, position, key
        )
    except SettingsError as error:
        return {**NO_HITS, "problem": str(error)}
    facets = [
        (name, [(value, count, _link_with_filter(page_query, name, value)) for value, count in counts.items()])
        for name, counts in answer.facets.items()
        if len(counts) > 1
    ]
    more = page_query.link(cursor=encode_cursor(answer.next_position)) if answer.next_position is not None else None
    return {
        "hits": [build_hit_row(hit, page_query) for hit in answer.hits],
        "facets": facets,
        "answer": answer,
        "notes": list(answer.notes),
        "pages": ListPages(page_query.link() if position is not None else None, more),
        "problem": "",
    }


def _link_with_filter(page_query: PageQuery, name: str, value: str) -> Markup:
    """Return a link to the runs of this search with one more filter. The page has no parameter for their status."""
    if name == "status":
        return page_query.link(q=f"{page_query.value('q')} status:{value}")
    return page_query.narrow(**{name: value}).link()


def build_hit_row(hit: run_search.SearchHit, page_query: PageQuery) -> dict[str, Any]:
    """Return what the page shows of a run: its facts, and the places with links to their calls."""
    facts = run_text.to_facts(hit.history)
    link = page_query.detail_link("runs", facts["id"])
    anchors = {step.seq: f"#call-{step.call}" for step in hit.history.steps}
    locations = [
        {
            "name": run_search.describe_location(match),
            "link": link + anchors.get(match.seq or 0, ""),
            "parts": run_search.split_excerpt(match),
        }
        for match in hit.matches[: run_search.MAX_SHOWN_MATCHES]
    ]
    hidden_count = max(len(hit.matches) - run_search.MAX_SHOWN_MATCHES, 0)
    others = {"pattern": hit.pattern, "others": hit.others, "hidden": hidden_count}
    return {"facts": facts, "link": link, "locations": locations, **others}


# Comparison


def compare(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Compare two versions, agents or periods, with significant differences marked."""
    by = page_query.other_parameters.get("by", "version")
    if by not in DIMENSIONS:
        raise SettingsError(f"Invalid by {by[:40]!r}. Use one of: {', '.join(DIMENSIONS)}.")
    sides = [page_query.other_parameters.get(side, "") for side in ("a", "b")]
    values: list[str] = []
    if by == "time":
        if page_query.period == "all" or page_query.grain == "hour":  # compare full days, a week with the week before
            page_query = page_query.parse(page_query.path, page_query.filters, page_query.now)
        earlier = page_query.previous_stats_query()
        dates = formatting.date(earlier.since or 0), formatting.date((earlier.until or 1) - 1)
        sides = [sides[0] or "..".join(dates), sides[1] or "..".join(page_query.dates)]
        periods = [_parse_period(side, name, page_query.now) for side, name in zip(sides, "ab", strict=True)]
    else:
        counts = count_calls(by, store.stats(tenant, page_query.stats_query(by=by)).parts)
        values = sorted(counts, key=lambda name: (-counts[name], name))
        if not any(sides) and len(values) >= 2:
            sides = values[:2]
        periods = [{by: side} for side in sides]
    comparison = missing = None
    unknown = [side for side in sides if side and values and side not in values]
    if all(sides) and not unknown:
        query = page_query.stats_query()
        first, second = (msgspec.structs.replace(query, **period) for period in periods)
        comparison = stats_report.compare_groups(store, tenant, (sides[0], sides[1]), (first, second))
        sides = list(comparison.names)
        cells = [stats.total for stats in comparison.stats]
        missing = [
            side for side, cell in zip(sides, cells, strict=True) if not (cell.calls or stats_report.started_runs(cell))
        ]
    return {
        # Limit of values offered for selection.
        "by": by, "dimensions": DIMENSIONS, "a": sides[0], "b": sides[1], "values": values[:100],
        "unknown": unknown, "periods": _offer_periods(page_query) if by == "time" else (),
        "comparison": comparison, "missing": missing, "how_to_set": HOW_TO_SET,
        "note": stats_report.COMPARISON_NOTE,
    }  # fmt: skip


def _offer_periods(page_query: PageQuery) -> list[tuple[str, Markup]]:
    """Return labels and links of the periods that people compare most."""
    today = page_query.now // DAY * DAY
    week, before = today - 6 * DAY, today - 13 * DAY
    offers = {
        "yesterday and today": ("yesterday", "today"),
        "the day before and yesterday": (_format_period(today - 2 * DAY, today - DAY), "yesterday"),
        "7 days before and the last 7 days": (_format_period(before, week), _format_period(week, today + DAY)),
    }
    return [(label, page_query.link(by="time", a=a, b=b)) for label, (a, b) in offers.items()]


def impact(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """Compare failures with mulligan's help with those without it."""
    report = impact_report.build_report(store, tenant, page_query.query(IMPACT_SPEC), page_query.now)
    return {
        "report": report,
        "sample": describe_sample(report),
        "help_names": HELP_NAMES,
        "note": impact_report.IMPACT_NOTE,
        "attempt_tables": list(list_attempt_tables(report.model_recovery)),
        "curves": _draw_curves(report, page_query.now) if report.curve else (),
    }


def _draw_curves(report: impact_report.ImpactReport, now: int) -> list[tuple[str, str, Markup]]:
    """Return title, subtitle and chart of the recovery rate and of the time to recovery, by day."""
    by_day = {day["day"]: day for day in report.curve}
    today = now // DAY * DAY
    rates, times = [], []
    for start in range(today - (impact_report.CURVE_DAYS - 1) * DAY, today + DAY, DAY):
        day = by_day.get(start, {"failed": 0, "recovered": 0, "median_seconds": None})
        count = formatting.count(day["failed"], "failed call")
        bucket = charts.Bucket(str(formatting.day(start)), f"{formatting.date(start)}, {count}", ())
        rates.append(bucket._replace(values=[day["recovered"] / day["failed"] if day["failed"] else None]))
        times.append(bucket._replace(values=[day["median_seconds"]]))
    recovered, median = (
        charts.ChartSeries("recovered", "recovered", "ok"),
        metric_cards.LATENCY[0]._replace(label="median"),
    )
    rate = "Recovered calls", f"of failed calls, last {impact_report.CURVE_DAYS} days"
    time_to_recovery = "Time to recovery", f"median by day, last {impact_report.CURVE_DAYS} days"
    return [
        (*rate, charts.render_shares("recovered", *rate, rates, recovered)),
        (*time_to_recovery, charts.render_lines("to-recovery", *time_to_recovery, times, (median,))),
    ]


def count_calls(by: str, parts: Mapping[str, Cell]) -> dict[str, int]:
    """Return the calls by value of a dimension, for values that can be chosen.

    Stats label a version with its agent; only the version is used.
    """
    counts: Counter[str] = Counter()
    for label, cell in parts.items():
        name = label.rpartition(" ")[2] if by == "version" else label
        # Only names that sanitizing leaves unchanged, so that a choice matches exactly.
        if name and sanitize(name, formatting.MAX_TEXT_CHARS) == name:
            counts[name] += cell.calls
    return counts


def _format_period(since: int, until: int) -> str:
    """Write a period as the page reads it: two days, or two hours, the second of which is excluded."""
    if since % DAY == until % DAY == 0:
        return f"{formatting.date(since)}..{formatting.date(until - 1)}"
    return "..".join(f"{formatting.date(hour)}T{formatting.hour(hour)}" for hour in (since, until))


def _parse_period(text: str, side: str, now: int) -> dict[str, Any]:
    today = now // DAY * DAY
    if text in ("today", "yesterday"):
        start = today if text == "today" else today - DAY
        return {"since": start, "until": start + DAY}
    first, dots, last = text.partition("..")
    if not dots:
        example = "2026-01-01..2026-01-31, 2026-01-01T08:00..2026-01-01T12:00, yesterday or today"
        raise SettingsError(f"Invalid {side} {text[:40]!r}. Use a period, for example {example}.")
    if "T" in text:
        hours = [parse_hour(part, side) for part in (first, last)]
        if hours[0] >= hours[1]:
            raise SettingsError(f"Invalid {side} {text[:40]!r}: it ends before it starts.")
        return {"since": hours[0], "until": hours[1]}
    since, until = parse_date_range(first, last, now)
    return {"since": since, "until": until}


# Live page: every attempt as it ends, sent to the browser as server-sent events


def build_tail_reader(tenant: str, page_query: PageQuery) -> TailReader:
    # Newest runs read per poll.
    return TailReader(page_query.query(STEP_SPEC), page_query.now - START_LOOKBACK_MS, 50, tenant)


async def stream_events(poll: Callable[[], Any], should_stop: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield server-sent events until the browser disconnects, the server stops or the poll limit is reached."""
    yield "retry: 2000\n\n"
    for number in range(MAX_POLLS):
        if should_stop():
            return
        poll_started = time.monotonic()
        events = await poll()
        poll_seconds = time.monotonic() - poll_started
        for event, agent in events if number else events[-30:]:  # limit of recent events sent at the start
            yield f"data: {encode(to_live_event(event, agent)).decode()}\n\n"
        if number == 0:
            yield "event: ready\ndata: {}\n\n"
        next_poll = time.monotonic() + max(POLL_INTERVAL_SECONDS, POLL_DELAY_FACTOR * poll_seconds)
        while not should_stop() and (delay := next_poll - time.monotonic()) > 0:
            await asyncio.sleep(min(delay, POLL_INTERVAL_SECONDS))


def to_live_event(event: StepEnded | RunEnded, agent: str) -> dict[str, Any]:
    """Convert an event into one row of the live page. The script inserts the values as text, not as HTML."""
    if isinstance(event, RunEnded):
        run = event.run
        id, key, at = run.id, f"{run.id}/ended", run.ended_at or run.started_at
        mark, look, seconds = "■", "quietly" if run.end_reason == "finished" else "lost", (at - run.started_at) / 1000
        row: dict[str, Any] = {"name": "run ended", "text": str(run.end_reason)}
    else:
        step, failure = event.step, event.step.failure
        id, key, seconds = step.run, f"{step.run}/{step.seq}", step.duration_seconds
        at = step.started_at + int(seconds * 1000)
        mark = "✕" if step.has_failed else "✓" if step.outcome == "success" else "\u2013"
        look = "lost" if step.has_failed else "won" if step.attempt > 1 else "ok"
        text = formatting.plain_line(f"{failure.kind}: {failure.message}", 160) if failure else step.outcome
        if wait := call_text.describe_wait(step):
            text = f"{text}; {wait}"
        name = formatting.plain_line(step.name or step.type, 60)
        row = {"name": name, "text": text, "attempt": step.attempt}
    return row | {
        "key": key,
        "at": at,
        "mark": mark,
        "look": look,
        "agent": formatting.plain_line(agent, 40),
        "took": formatting.plain_line(formatting.seconds(seconds), 20),
        "href": formatting.detail_path("runs", id),
    }


# Health, audit and settings


def health(store: Store, tenant: str, retention: Retention) -> dict[str, Any]:
    """Return the state and size of the store, dropped records, hook errors and retention."""
    store_health = store.health(tenant)
    recent = store.runs(tenant, RunQuery(limit=200))  # newest runs checked for a task description
    runs_with_context = sum(history.run.context is not None for history in recent)
    path = Path(store_health.where)
    is_default_tenant = tenant == DEFAULT_TENANT
    has_files = store_health.where and is_default_tenant
    files = [file for file in (path, path.with_name(f"{path.name}-wal")) if has_files and file.is_file()]
    return {
        "health": store_health,
        # Location and total size cover all tenants, so only the operator sees them.
        "is_own": is_default_tenant,
        "size": formatting.size(sum(file.stat().st_size for file in files)) if files else formatting.NONE,
        "dropped": count_dropped(store, tenant),
        # Hook errors belong to this host's owner, not to other tenants.
        "hooks": read_hook_errors(hook_folder()) if is_default_tenant else HookErrors(),
        "context": formatting.percent(runs_with_context, len(recent)) if recent else formatting.NONE,
        "recent": len(recent),
        "has_enough_context": not recent or runs_with_context >= MIN_CONTEXT_SHARE * len(recent),
        "retention": _retention_rows(retention),
        "version": __version__,
        "sqlite": sqlite3.sqlite_version,
    }


def _retention_rows(retention: Retention) -> list[tuple[str, str]]:
    return [
        ("Runs with failures", _format_retention(retention.keep_failures)),
        ("Runs without failures", _format_retention(retention.keep_successes)),
        ("Hourly metrics", _format_retention(retention.keep_hourly)),
        ("Daily metrics", "forever"),
        ("Maximum size", formatting.size(retention.max_size) if retention.max_size else "unlimited"),
    ]


def _format_retention(millis: int | None) -> str:
    return "forever" if millis is None else f"{millis // DAY} days"


def audit(store: Store, tenant: str, page_query: PageQuery) -> dict[str, Any]:
    """List changes by a tenant's operators, newest first, of all time. It requires the role admin."""
    entries, pages = page_query.read_page(store, tenant, AUDIT_SPEC, 100, since=None, until=None)
    return {"rows": entries, "pages": pages}


def settings(
    tenants: Tenants, tokens: Tokens, targets: Mapping[str, str], tenant: str, now: int, *, is_operator: bool
) -> dict[str, Any]:
    """Return tenants and tokens: all of them for the operator of the server, else those of the caller's tenant.

    Tokens are without their secrets, and alert targets without what follows their host or program.
    """
    shown_tenants = [entry for entry in tenants.load_all_with_default() if is_operator or entry.name == tenant]
    shown_tokens = [token for token in tokens.load_all() if is_operator or token.tenant == tenant]
    rows = []
    for entry in shown_tenants or [tenants.settings_for(tenant)]:
        tenant_targets = {"command": entry.alert_command, "webhook": entry.alert_webhook}
        is_default = entry.name == DEFAULT_TENANT and not any(tenant_targets.values())
        effective_targets = targets if is_default else tenant_targets
        alerts = [_shorten_target(name, value) for name, value in effective_targets.items() if value]
        rows.append({"tenant": entry, "retention": _retention_rows(entry.retention), "alerts": alerts})
    order = {"active": 0, "expired": 1, "revoked": 2}
    states = sorted(((token, token.state(now)) for token in shown_tokens), key=lambda row: (order[row[1]], row[0].name))
    return {"tenants": rows, "tokens": states, "is_operator": is_operator}


def _shorten_target(name: str, value: str) -> str:
    """Return an alert target without its secrets: the host of a webhook, the program of a command."""
    if name == "webhook":
        return f"webhook at {urlsplit(value).hostname}"
    return f"command {next(iter(shlex.split(value)), '')}"
