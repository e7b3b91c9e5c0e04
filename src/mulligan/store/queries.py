"""Database queries for runs and patterns. Their cost grows with the result, not with the size of the store."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from mulligan.contract.run_facts import RUN_FACTS
from mulligan.contract.store import DAY, PATTERN_HISTORY_KIND, PatternQuery, RunQuery, SessionQuery, SessionSummary
from mulligan.core.records import Example, Pattern, Run, decode, encode
from mulligan.learn import pattern_decisions, patterns
from mulligan.learn.pattern_decisions import PatternDecision, SeenVersion
from mulligan.store.connection import RowReader
from mulligan.store.pattern_counts import size_class
from mulligan.store.rows import decode_body

MAX_SORTED_ROWS = 1000
"""Rows that are read and sorted in Python. Above it, scanning from the newest row finds enough matches sooner."""


MAX_READ_RUNS = 10_000
"""Runs that a search without an index reads."""


class ProposedRuns(NamedTuple):
    """The runs that may contain the text of a search."""

    condition: str = "1 = 1"
    """SQL about runs `r`."""
    values: tuple[Any, ...] = ()
    is_selective: bool = False
    """Whether few runs meet it. They are looked up by row, and all filters are checks of each (SQLite)."""
    max_runs: int = MAX_READ_RUNS
    """Runs that are read before the search ends without an answer."""


ALL_RUNS = ProposedRuns()


class _Where:
    """WHERE clause under construction: conditions and their values."""

    def __init__(self, condition: str, *values: Any) -> None:
        self.conditions = [condition]
        self.values = list(values)

    def add(self, condition: str, *values: Any) -> None:
        self.conditions.append(condition)
        self.values += values

    def __str__(self) -> str:
        return " AND ".join(self.conditions)


def find_runs(
    read: RowReader, tenant: str, query: RunQuery, pattern_ids: set[str], proposed_runs: ProposedRuns = ALL_RUNS
) -> list[Run]:
    """Return the runs that match the query, in its order. `pattern_ids` are the ids merged into `query.pattern`.

    Of `proposed_runs`, which may contain `query.text`.
    """
    where = _Where("r.tenant = ?", tenant)
    where.add(proposed_runs.condition, *proposed_runs.values)
    has_driver = not proposed_runs.is_selective or query.order != "started"
    driver = ""
    # One indexed filter drives the query in time order. All other filters are lookups per run that it returns.
    filters: list[tuple[str, str, tuple[Any, ...]]] = []
    if query.pattern is not None:
        placeholders = ", ".join("?" * len(pattern_ids))
        filters.append(("run_failures", f"pattern IN ({placeholders})", tuple(sorted(pattern_ids))))
    if query.kind is not None and query.kind.endswith("/"):
        where.add("r.status <> 'success'")
        where.add(
            "EXISTS (SELECT 1 FROM steps s WHERE s.tenant = ? AND s.run = r.id AND substr(s.kind, 1, ?) = ?)",
            tenant, len(query.kind), query.kind,
        )  # fmt: skip
    elif query.kind is not None:
        filters.append(("run_failures", "kind = ?", (query.kind,)))
    filters += [
        ("run_callees", "type = ? AND name = ?", (callee_type, name))
        for callee_type, name in (("tool", query.tool), ("model", query.model))
        if name is not None
    ]
    facts = [(f"{RUN_FACTS[name].column} >= ?", minimum) for name, minimum in query.minima.items()]
    if facts or query.order != "started":
        conditions = " AND ".join(condition for condition, _ in facts) or "attempts >= 0"
        filters.append(("run_facts", conditions, tuple(minimum for _, minimum in facts)))
        if query.order != "started":
            filters.insert(0, filters.pop())
    for table, condition, values in filters:
        if has_driver and not driver:
            driver = table
            where.add(f"d.tenant = ? AND {condition}", tenant, *values)
        else:
            where.add(
                f"EXISTS (SELECT 1 FROM {table} x WHERE x.tenant = ? AND {condition} "
                "AND x.started_at = r.started_at AND x.run = r.id)",
                tenant, *values,
            )  # fmt: skip
    started, id = ("d.started_at", "d.run") if driver else ("r.started_at", "r.id")
    order = started if query.order == "started" else f"d.{RUN_FACTS[query.order].column}"
    for name in ("agent", "session", "environment", "version", "status"):
        if (value := getattr(query, name)) is not None:
            where.add(f"r.{name} = ?", value)
    # Repeat the conditions of the partial indices, so that the planner uses them.
    if query.agent:
        where.add("r.agent <> ''")
    if query.status not in (None, "success"):
        where.add("r.status <> 'success'")
    if query.since is not None:
        where.add(f"{started} >= ?", query.since)
    if query.until is not None:
        where.add(f"{started} < ?", query.until)
    if query.before is not None:
        where.add(f"({order}, {id}) < (?, ?)", *query.before)
    source = f"{driver} d CROSS JOIN runs r ON r.tenant = d.tenant AND r.id = d.run" if driver else "runs r"
    if proposed_runs.is_selective and not driver:
        source += " NOT INDEXED"
    sql = f"SELECT r.id, r.body, r.stored_at FROM {source} WHERE {where} ORDER BY {order} DESC, {id} DESC LIMIT ?"
    # A run with several patterns of a kind is returned once for each: read more rows to fill the limit without them.
    count = 2 * query.limit if driver == "run_failures" else query.limit
    while True:
        rows = read(sql, (*where.values, count))
        read.remember_runs(tenant, {id: stored_at for id, _, stored_at in rows})
        runs = [decode_body(body, Run) for body in {id: body for id, body, _ in rows}.values()]
        if query.status is not None:
            # The column caches the status as of the latest call. A run has a status only when it has ended.
            runs = [run for run in runs if run.end_reason is not None]
        if len(runs) >= query.limit or len(rows) < count:
            return runs[: query.limit]
        count *= 4


def find_sessions(read: RowReader, tenant: str, query: SessionQuery) -> list[SessionSummary]:
    """Return the sessions that match the query, the one with the newest run first.

    A scan from the newest run finds their ids. A session that an earlier page has shown is skipped.
    """
    where = _Where("tenant = ? AND session IS NOT NULL", tenant)
    for condition, value in (
        ("agent = ?", query.agent), ("started_at >= ?", query.since), ("started_at < ?", query.until),
    ):  # fmt: skip
        if value is not None:
            where.add(condition, value)
    position, sessions = query.before, dict[str, SessionSummary | None]()
    while True:
        page_condition = " AND (started_at, id) < (?, ?)" if position is not None else ""
        rows = read(
            f"SELECT started_at, id, session FROM runs WHERE {where}{page_condition} "
            "ORDER BY started_at DESC, id DESC LIMIT ?",
            (*where.values, *(position or ()), MAX_SORTED_ROWS),
        )
        for started_at, id, session in rows:
            if session in sessions or (query.text or "").casefold() not in session.casefold():
                continue
            newer_runs = query.before is not None and read(
                f"SELECT 1 FROM runs WHERE {where} AND session = ? AND (started_at, id) >= (?, ?) LIMIT 1",
                (*where.values, session, *query.before),
            )
            sessions[session] = None if newer_runs else _build_session(read, tenant, session, started_at, id)
            matches = [match for match in sessions.values() if match is not None]
            if len(matches) >= query.limit:
                return matches
        if len(rows) < MAX_SORTED_ROWS:
            return [match for match in sessions.values() if match is not None]
        position = rows[-1][:2]


def _build_session(read: RowReader, tenant: str, id: str, last_run_at: int, last_run: str) -> SessionSummary:
    condition = "FROM runs WHERE tenant = ? AND session = ?"
    counts = read(f"SELECT agent, count(*), min(started_at) {condition} GROUP BY agent ORDER BY agent", (tenant, id))
    unrecovered = read(f"SELECT body {condition} AND status IN ('partial', 'failure')", (tenant, id))
    return SessionSummary(
        id=id,
        runs=sum(count for _, count, _ in counts),
        unrecovered=sum(decode_body(body, Run).end_reason is not None for (body,) in unrecovered),
        first_run_at=min(first for *_, first in counts),
        last_run_at=last_run_at,
        last_run=last_run,
        agents=tuple(agent for agent, *_ in counts if agent),
    )


def find_runs_by_prefix(read: RowReader, tenant: str, prefix: str, limit: int) -> list[Run]:
    """Return the runs whose id has this prefix, newest first."""
    condition = "tenant = ? AND id >= ? AND id < ? AND substr(id, 1, ?) = ?"
    values = (tenant, prefix, prefix + "\U0010ffff", len(prefix), prefix)
    id_rows = read(f"SELECT started_at, id FROM runs WHERE {condition} LIMIT ?", (*values, MAX_SORTED_ROWS + 1))
    if len(id_rows) <= MAX_SORTED_ROWS:
        ids = [id for _, id in sorted(id_rows, reverse=True)[:limit]]
        rows = [row for id in ids for row in read("SELECT body FROM runs WHERE tenant = ? AND id = ?", (tenant, id))]
    else:
        rows = read(
            "SELECT body FROM runs WHERE tenant = ? AND substr(id, 1, ?) = ? ORDER BY started_at DESC, id DESC LIMIT ?",
            (tenant, len(prefix), prefix, limit),
        )
    return [decode_body(body, Run) for (body,) in rows]


# Patterns

_COLUMNS = (
    "id, tool, fingerprint, kind, server, message, template, occurrences, recovered, runs, first_seen_at, last_seen_at"
)
_ORDER_COLUMNS = {
    "occurrences": "p.occurrences",
    "unrecovered": "p.occurrences - p.recovered",
    "first_seen": "p.first_seen_at",
    "last_seen": "p.last_seen_at",
}
_PERIOD_COLUMNS = _COLUMNS.replace("occurrences, recovered", "n, o")
MAX_SEARCHED_RUNS = 1000
"""Runs of each end of the time since a decision that are searched for versions."""
MAX_SHOWN_DAYS = 5000
"""Latest days of a pattern that are returned."""


def find_patterns(
    read: RowReader, tenant: str, query: PatternQuery, now: int, can_fold_case: bool = True
) -> list[Pattern]:
    """Return the patterns that match the query, in its order.

    `can_fold_case` is whether the database can search text case-insensitively. The database filters patterns without
    a decision. Patterns with a decision (muted, merged and so on) are few: they are merged and filtered in Python.
    """
    decisions = read_decisions(read, tenant)
    decided_ids = find_decided_ids(decisions)
    select_patterns = _select_patterns if can_fold_case or query.text is None else _search_patterns
    candidates = [part for part in select_patterns(read, tenant, query, len(decided_ids)) if part.id not in decided_ids]
    unmerged = load_unmerged(read, tenant, decided_ids, query.since)
    candidates += [
        merged_pattern
        for merged_pattern in patterns.merge_patterns(unmerged, decisions, StoredOccurrences(read, tenant), now)
        if patterns.matches_query(_with_agents_and_days(read, tenant, merged_pattern, query.since), query)
    ]
    ordered_patterns = patterns.sort_patterns(candidates, query)
    return [
        patterns.limit_details(_with_agents_and_days(read, tenant, pattern, query.since))
        for pattern in ordered_patterns
    ]


def read_decisions(read: RowReader, tenant: str) -> dict[str, PatternDecision]:
    rows = read("SELECT id, body FROM pattern_decisions WHERE tenant = ?", (tenant,))
    return {id: decode(body, PatternDecision) for id, body in rows}


def find_decided_ids(decisions: dict[str, PatternDecision]) -> set[str]:
    """Return the ids of patterns with a decision and of those that others are merged into."""
    return {*decisions, *(decision.into for decision in decisions.values() if decision.into is not None)}


class StoredOccurrences:
    """Rows of occurrences, for decisions about patterns."""

    def __init__(self, read: RowReader, tenant: str) -> None:
        self._read, self._tenant = read, tenant

    def find_versions(self, ids: Collection[str], since: int) -> list[SeenVersion]:
        """Search the first and the last runs since then, so that many runs of older versions cost a bounded time."""
        first_failures: dict[str, int] = {}
        for id, order in itertools.product(ids, ("", " DESC")):
            for version, started in self._read(
                "SELECT r.version, f.started_at FROM (SELECT started_at, run FROM run_failures WHERE tenant = ? "
                f"AND pattern = ? AND started_at > ? ORDER BY started_at{order} LIMIT ?) f "
                "JOIN runs r ON r.tenant = ? AND r.id = f.run",
                (self._tenant, id, since, MAX_SEARCHED_RUNS, self._tenant),
            ):
                first_failures[version or ""] = min(started, first_failures.get(version or "", started))
        return [
            SeenVersion(version, failed_at, (self.find_first_run(version) or 0) if version else 0)
            for version, failed_at in sorted(first_failures.items(), key=lambda item: (item[1], item[0]))
        ]

    def find_first_run(self, version: str) -> int | None:
        sql = "SELECT min(started_at) FROM runs WHERE tenant = ? AND version = ?"
        first: int | None = self._read(sql, (self._tenant, version))[0][0]
        return first

    def count_days(self, ids: Collection[str], first_day: int) -> Mapping[int, int]:
        return dict(self._read(
            "SELECT day, sum(occurrences) FROM pattern_days WHERE tenant = ? AND day >= ? "
            "AND id IN (SELECT value FROM json_each(?)) GROUP BY day",
            (self._tenant, first_day, encode(list(ids)).decode()),
        ))  # fmt: skip


def _select_patterns(read: RowReader, tenant: str, query: PatternQuery, more: int) -> list[Pattern]:
    if query.state not in (None, "new", "active") or query.owner or query.regressed or query.limit <= 0:
        return []
    where = _Where("p.tenant = ?", tenant)
    if query.state is not None:
        where.add(f"p.last_seen_at - p.first_seen_at {'<' if query.state == 'new' else '>='} {DAY}")
    if query.tool is not None:
        where.add("p.tool = ?", query.tool)
    if query.kind is not None and query.kind.endswith("/"):
        where.add("substr(p.kind, 1, ?) = ?", len(query.kind), query.kind)
    elif query.kind is not None:
        where.add("p.kind = ?", query.kind)
    if query.agent is not None:
        where.add(
            "EXISTS (SELECT 1 FROM pattern_agents a WHERE a.tenant = ? AND a.id = p.id AND a.agent = ?)",
            tenant,
            query.agent,
        )
    if query.text is not None:
        texts = "p.tool || char(10) || p.kind || char(10) || p.message || char(10) || p.template"
        where.add(f"instr(folded({texts}), ?)", query.text.casefold())
    if query.since is not None:
        where.add("p.last_seen_at >= ?", query.since)
    if query.new_since is not None:
        where.add("p.first_seen_at >= ?", query.new_since)
    limit = query.limit + more
    order = _ORDER_COLUMNS[query.order]
    if query.since is not None:
        order = {"occurrences": "n", "unrecovered": "n - o"}.get(query.order, order)
    after_sql, after_values = "", tuple[Any, ...]()
    if query.after is not None:
        value, id = -query.after[0], query.after[1]
        after_sql, after_values = f" AND ({order} < ? OR ({order} = ? AND p.id > ?))", (value, value, id)
    if query.since is None:
        sql = f"SELECT {_COLUMNS} FROM patterns p WHERE {where}{after_sql} ORDER BY {order} DESC, p.id LIMIT ?"
        return [_pattern_from_row(row) for row in read(sql, (*where.values, *after_values, limit))]
    counts_sql, values = _build_counts_query(read, tenant, query, where, limit)
    sql = (
        f"SELECT {_PERIOD_COLUMNS} FROM ({counts_sql}) c CROSS JOIN patterns p ON p.id = of WHERE {where}{after_sql} "
        f"ORDER BY {order} DESC, p.id LIMIT ?"
    )
    return [_pattern_from_row(row) for row in read(sql, (*values, *where.values, *after_values, limit))]


def _search_patterns(read: RowReader, tenant: str, query: PatternQuery, more: int) -> list[Pattern]:
    """Search the text in Python, for a database that cannot. Reads ever larger batches until enough match."""
    match_limit, count = query.limit + more, max(8 * (query.limit + more), MAX_SORTED_ROWS)
    while True:
        candidates = _select_patterns(read, tenant, msgspec.structs.replace(query, text=None, limit=count), 0)
        matches = [part for part in candidates if patterns.contains_text(part, query.text or "")]
        if len(matches) >= match_limit or len(candidates) < count or query.limit <= 0:
            return matches[:match_limit]
        count *= 8


def _build_counts_query(
    read: RowReader, tenant: str, query: PatternQuery, where: _Where, limit: int
) -> tuple[str, tuple[Any, ...]]:
    """Build the subquery that counts patterns since a day, limited to possible results where that is cheaper."""
    start = patterns.start_of_day(query.since or 0)
    ((latest,),) = read("SELECT max(day) FROM pattern_days WHERE tenant = ?", (tenant,))
    days = range(start, (start if latest is None else latest) + 1, DAY)
    if 0 < len(days) <= 100:  # up to this many days, the query looks up each day by key
        days_json = encode(list(days)).decode()
        candidates_query: tuple[str, tuple[Any, ...]] | None = None
        if any(getattr(query, name) is not None for name in ("state", "tool", "kind", "agent", "text", "new_since")):
            candidates_query = f"SELECT p.id FROM patterns p WHERE {where}", tuple(where.values)
        # Up to this limit, the most frequent patterns are found from the top patterns of each day.
        elif query.order in ("occurrences", "unrecovered") and limit <= 100 and query.after is None:
            counts = "d.occurrences" if query.order == "occurrences" else "d.occurrences - d.recovered"
            candidates_query = _build_frequent_query(read, tenant, where, days_json, days, limit, counts)
        if candidates_query is not None:
            sql = (
                f"SELECT d.id AS of, sum(d.occurrences) AS n, sum(d.recovered) AS o FROM ({candidates_query[0]}) c "
                "CROSS JOIN json_each(?) CROSS JOIN pattern_days d ON d.tenant = ? AND d.day = CAST(value AS BIGINT) "
                "AND d.id = c.id GROUP BY d.id"
            )
            return sql, (*candidates_query[1], days_json, tenant)
    sql = "SELECT id AS of, sum(occurrences) AS n, sum(recovered) AS o FROM pattern_days WHERE tenant = ? AND day >= ?"
    return f"{sql} GROUP BY id", (tenant, start)


def _build_frequent_query(
    read: RowReader, tenant: str, where: _Where, days_json: str, days: range, limit: int, counts: str
) -> tuple[str, tuple[Any, ...]] | None:
    """Build the subquery for patterns that can be among the most frequent of these days, or the most unrecovered.

    The top patterns of each day give a lower bound for the result. A pattern that reaches the bound must reach the
    daily average of it on at least one day. The index by size finds those days; all other patterns are skipped.
    Return None if there is no useful bound.
    """
    # Few of the most frequent patterns are often unrecovered, so the bound needs more of them.
    top_limit = limit if counts == "d.occurrences" else 6 * limit
    tops = {
        id
        for day in days
        for (id,) in read(
            "SELECT d.id FROM pattern_days d CROSS JOIN patterns p ON p.tenant = d.tenant AND p.id = d.id "
            f"WHERE d.tenant = ? AND d.day = ? AND {where} ORDER BY d.size_class DESC LIMIT ?",
            (tenant, day, *where.values, top_limit),
        )
    }
    if len(tops) < limit:
        return None
    sums = read(
        f"SELECT sum({counts}) FROM json_each(?) i CROSS JOIN json_each(?) j CROSS JOIN pattern_days d "
        "ON d.tenant = ? AND d.day = CAST(j.value AS BIGINT) AND d.id = i.value GROUP BY d.id",
        (encode(sorted(tops)).decode(), days_json, tenant),
    )
    min_daily_count = -(-sorted((count for (count,) in sums), reverse=True)[limit - 1] // len(days))
    if min_daily_count <= 0:
        return None  # so few are unrecovered that any pattern may be in the result
    sql = (
        "SELECT DISTINCT k.id FROM json_each(?) CROSS JOIN pattern_days k ON k.tenant = ? "
        "AND k.day = CAST(value AS BIGINT) AND k.size_class >= ? AND k.occurrences >= ?"
    )
    return sql, (days_json, tenant, size_class(min_daily_count), min_daily_count)


def _pattern_from_row(row: tuple[Any, ...]) -> Pattern:
    id, tool, fingerprint, kind, server, message, template, count, recovered, runs, first, last = row
    return Pattern(
        id=id, tool=tool, fingerprint=fingerprint, kind=kind, server=server, message=message, template=template,
        occurrences=count, recovered=recovered, unrecovered=count - recovered, runs=runs, first_seen_at=first,
        last_seen_at=last, state="new" if last - first < DAY else "active",
    )  # fmt: skip


def load_unmerged(read: RowReader, tenant: str, ids: Iterable[str], since: int | None = None) -> list[Pattern]:
    """Return the patterns as counted, before merges. With `since`, count only the days from then on."""
    sql = f"SELECT {_COLUMNS} FROM patterns WHERE tenant = ? AND id = ?"
    stored_patterns = [_pattern_from_row(row) for id in sorted(ids) for row in read(sql, (tenant, id))]
    if since is None:
        return stored_patterns
    period_patterns = []
    for part in stored_patterns:
        days = _read_days(read, tenant, part.id, part, since)
        count, recovered = sum(count for _, count, _ in days), sum(recovered_on_day for _, _, recovered_on_day in days)
        period_patterns.append(
            msgspec.structs.replace(part, occurrences=count, recovered=recovered, unrecovered=count - recovered)
        )
    return period_patterns


def _read_days(
    read: RowReader, tenant: str, id: str, pattern: Pattern, since: int | None
) -> list[tuple[int, int, int]]:
    first = patterns.start_of_day(pattern.first_seen_at if since is None else max(pattern.first_seen_at, since))
    days = range(first, pattern.last_seen_at + 1, DAY)[-MAX_SHOWN_DAYS:]
    return read(
        "SELECT day, occurrences, recovered FROM pattern_days WHERE tenant = ? AND id = ? "
        "AND day IN (SELECT CAST(value AS BIGINT) FROM json_each(?))",
        (tenant, id, encode(list(days)).decode()),
    )


def _with_agents_and_days(read: RowReader, tenant: str, pattern: Pattern, since: int | None) -> Pattern:
    """Return the pattern with its counts by agent and by day, including merged patterns."""
    ids = (pattern.id, *pattern.merged)
    agents = read(
        "SELECT agent, sum(occurrences) FROM pattern_agents "
        f"WHERE tenant = ? AND id IN ({', '.join('?' * len(ids))}) GROUP BY agent",
        (tenant, *ids),
    )
    days: dict[int, int] = {}
    for id in ids:
        for day, count, _ in _read_days(read, tenant, id, pattern, since):
            days[day] = days.get(day, 0) + count
    return msgspec.structs.replace(pattern, agents=dict(agents), days=dict(sorted(days.items())))


def find_pattern(read: RowReader, tenant: str, id: str, now: int) -> Pattern | None:
    """Return one pattern with its merged patterns, its newest examples and what people did with it."""
    full_id = resolve_id(read, tenant, id)
    if full_id is None:
        return None
    decisions = read_decisions(read, tenant)
    root_id = patterns.find_merge_root(full_id, decisions)
    ids = {
        pattern_id
        for pattern_id in find_decided_ids(decisions)
        if patterns.find_merge_root(pattern_id, decisions) == root_id
    } | {full_id, root_id}
    merged_pattern = next(
        candidate
        for candidate in patterns.merge_patterns(
            load_unmerged(read, tenant, ids), decisions, StoredOccurrences(read, tenant), now
        )
        if full_id in (candidate.id, *candidate.merged)
    )
    examples = [
        Example(run=run, seq=seq, started_at=started)
        for part in load_unmerged(read, tenant, (merged_pattern.id, *merged_pattern.merged))
        for run, seq, started in read(
            "SELECT run, seq, started_at FROM steps WHERE tenant = ? AND name = ? AND fingerprint = ? "
            "ORDER BY started_at DESC, run, seq LIMIT ?",
            (tenant, part.tool, part.fingerprint, patterns.MAX_SHOWN_EXAMPLES),
        )
    ]
    rows = read(
        "SELECT value FROM key_values WHERE tenant = ? AND kind = ? AND key = ?",
        (tenant, PATTERN_HISTORY_KIND, merged_pattern.id),
    )
    full = msgspec.structs.replace(
        _with_agents_and_days(read, tenant, merged_pattern, None),
        examples=tuple(examples),
        history=pattern_decisions.read_history(bytes(rows[0][0]) if rows else None),
    )
    return patterns.limit_details(full, with_examples=True)


def resolve_id(read: RowReader, tenant: str, id: str) -> str | None:
    """Return the pattern id with this prefix; None if there is none or the prefix is ambiguous."""
    sql = "SELECT id FROM patterns WHERE tenant = ? AND id >= ? AND id < ? ORDER BY id LIMIT 2"
    matching_ids = [matching_id for (matching_id,) in read(sql, (tenant, id, id + "\U0010ffff"))]
    return matching_ids[0] if matching_ids and (len(matching_ids) == 1 or matching_ids[0] == id) else None
