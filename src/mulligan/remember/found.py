"""Database queries for runs and patterns. Their cost grows with the result, not with the size of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from mulligan.records import Example, Pattern, Run, decode, encode
from mulligan.remember import bodies, patterns
from mulligan.remember.patterns import Decision
from mulligan.remember.store import DAY, PatternQuery, RunQuery
from mulligan.remember.tallies import size_of

Read = Callable[[str, Iterable[Any]], list[Any]]
FEW = 1000
"""Rows that are read and sorted in Python. Above it, scanning from the newest row finds enough matches sooner."""


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


def runs(read: Read, tenant: str, query: RunQuery, asked: set[str], limit: int) -> list[Run]:
    """Return the runs that match the query, newest first. `pattern_ids` are the ids merged into `query.pattern`."""
    where = _Where("r.tenant = ?", tenant)
    start = "r.started", "r.id"
    source = "runs r"
    # One indexed filter drives the query in time order. All other filters are lookups per run that it returns.
    if query.pattern is not None:
        start, source = (
            ("d.started", "d.run"),
            _led_by(f"d.pattern IN ({_marks(asked)})", where, tenant, *sorted(asked)),
        )
    if query.kind is not None and not query.kind.endswith("/"):
        if source == "runs r":
            start, source = ("d.started", "d.run"), _led_by("d.kind = ?", where, tenant, query.kind)
        else:
            _add_lookup(where, "met", "kind = ?", tenant, query.kind)
    elif query.kind is not None:
        where.add("r.status <> 'success'")
        where.add(
            "EXISTS (SELECT 1 FROM steps s WHERE s.tenant = ? AND s.run = r.id AND substr(s.kind, 1, ?) = ?)",
            tenant, len(query.kind), query.kind,
        )  # fmt: skip
    for sort, name in (("tool", query.tool), ("model", query.model)):
        if name is None:
            continue
        if source == "runs r":
            start, source = ("d.started", "d.run"), "used d CROSS JOIN runs r ON r.tenant = d.tenant AND r.id = d.run"
            where.add("d.tenant = ? AND d.sort = ? AND d.name = ?", tenant, sort, name)
        else:
            _add_lookup(where, "used", "sort = ? AND name = ?", tenant, sort, name)
    _add_fields(where, query, start)
    started, id = start
    sql = f"SELECT r.id, r.body FROM {source} WHERE {where} ORDER BY {started} DESC, {id} DESC LIMIT ?"
    # A run with several patterns of a kind is returned once for each: read more rows to fill the limit without them.
    count = limit if source.startswith(("runs", "used")) else 2 * limit
    while True:
        rows = read(sql, (*where.values, count))
        bodies_found = dict(rows)
        if len(bodies_found) >= limit or len(rows) < count:
            return [bodies.read(body, Run) for body in list(bodies_found.values())[:limit]]
        count *= 4


def _led_by(condition: str, where: _Where, tenant: str, *values: Any) -> str:
    """Add the condition on occurrences, and return the FROM clause that they drive."""
    where.add(f"d.tenant = ? AND {condition}", tenant, *values)
    return "met d CROSS JOIN runs r ON r.tenant = d.tenant AND r.id = d.run"


def _add_lookup(where: _Where, table: str, condition: str, tenant: str, *values: Any) -> None:
    where.add(
        f"EXISTS (SELECT 1 FROM {table} x WHERE x.tenant = ? AND {condition} "
        "AND x.started = r.started AND x.run = r.id)",
        tenant, *values,
    )  # fmt: skip


def _add_fields(where: _Where, query: RunQuery, start: tuple[str, str]) -> None:
    for name in ("agent", "session", "environment", "version", "status"):
        value = getattr(query, name)
        if value is not None:
            where.add(f"r.{name} = ?", value)
    # Repeat the conditions of the partial indices, so that the planner uses them.
    if query.agent:
        where.add("r.agent <> ''")
    if query.status not in (None, "success"):
        where.add("r.status <> 'success'")
    started, id = start
    if query.since is not None:
        where.add(f"{started} >= ?", query.since)
    if query.until is not None:
        where.add(f"{started} < ?", query.until)
    if query.before is not None:
        where.add(f"({started}, {id}) < (?, ?)", *query.before)


def _marks(values: Iterable[Any]) -> str:
    return ", ".join("?" for _ in values)


def beginning(read: Read, tenant: str, prefix: str, limit: int) -> list[Run]:
    """Return the runs whose id has this prefix, newest first."""
    named = "tenant = ? AND id >= ? AND id < ? AND substr(id, 1, ?) = ?"
    values = (tenant, prefix, prefix + "\U0010ffff", len(prefix), prefix)
    few = read(f"SELECT started, id FROM runs WHERE {named} LIMIT ?", (*values, FEW + 1))
    if len(few) <= FEW:
        ids = [id for _, id in sorted(few, reverse=True)[:limit]]
        rows = [row for id in ids for row in read("SELECT body FROM runs WHERE tenant = ? AND id = ?", (tenant, id))]
    else:
        rows = read(
            "SELECT body FROM runs WHERE tenant = ? AND substr(id, 1, ?) = ? ORDER BY started DESC, id DESC LIMIT ?",
            (tenant, len(prefix), prefix, limit),
        )
    return [bodies.read(body, Run) for (body,) in rows]


# Patterns

_COLUMNS = "id, tool, fingerprint, kind, server, message, template, count, overcome, runs, first, last"
_COUNTED = _COLUMNS.replace("count, overcome", "n, o")
DAYS = 5000
"""Latest days of a pattern that are returned."""
FEW_DAYS = 100
"""Up to this many days, the query looks up each day by key."""
FEW_PATTERNS = 100
"""Up to this limit, the most frequent patterns are found from the top patterns of each day."""


def found(read: Read, tenant: str, query: PatternQuery, folds: bool = True) -> list[Pattern]:
    """Return the patterns that match the query, in its order.

    `can_fold_case` is whether the database can search text case-insensitively. The database filters patterns without
    a decision. Patterns with a decision (muted, merged and so on) are few: they are merged and filtered in Python.
    """
    decisions = decisions_of(read, tenant)
    touched = touched_by(decisions)
    kept = _as_kept if folds or query.text is None else _holding
    candidates = [part for part in kept(read, tenant, query, len(touched)) if part.id not in touched]
    candidates += [
        whole
        for whole in patterns.shown(parts(read, tenant, touched, query.since), decisions)
        if patterns.is_asked(_with_parts(read, tenant, whole, query.since), query)
    ]
    asked = patterns.in_order(candidates, query)
    return [patterns.told(_with_parts(read, tenant, pattern, query.since)) for pattern in asked]


def decisions_of(read: Read, tenant: str) -> dict[str, Decision]:
    rows = read("SELECT id, body FROM decisions WHERE tenant = ?", (tenant,))
    return {id: decode(body, Decision) for id, body in rows}


def touched_by(decisions: dict[str, Decision]) -> set[str]:
    """Return the ids of patterns with a decision and of those that others are merged into."""
    return {*decisions, *(each.into for each in decisions.values() if each.into is not None)}


def _as_kept(read: Read, tenant: str, query: PatternQuery, more: int) -> list[Pattern]:
    if query.state in ("resolved", "muted") or query.limit <= 0:
        return []
    where = _Where("p.tenant = ?", tenant)
    if query.state is not None:
        where.add(f"p.last - p.first {'<' if query.state == 'new' else '>='} {DAY}")
    if query.tool is not None:
        where.add("p.tool = ?", query.tool)
    if query.kind is not None and query.kind.endswith("/"):
        where.add("substr(p.kind, 1, ?) = ?", len(query.kind), query.kind)
    elif query.kind is not None:
        where.add("p.kind = ?", query.kind)
    if query.agent is not None:
        where.add(
            "EXISTS (SELECT 1 FROM pattern_agents a WHERE a.tenant = p.tenant AND a.id = p.id AND a.agent = ?)",
            query.agent,
        )
    if query.text is not None:
        texts = "p.tool || char(10) || p.kind || char(10) || p.message || char(10) || p.template"
        where.add(f"instr(folded({texts}), ?)", query.text.casefold())
    if query.since is not None:
        where.add("p.last >= ?", query.since)
    if query.new_since is not None:
        where.add("p.first >= ?", query.new_since)
    limit = query.limit + more
    if query.since is None:
        order = "p.count - p.overcome" if query.order == "given_up" else f"p.{query.order}"
        sql = f"SELECT {_COLUMNS} FROM patterns p WHERE {where} ORDER BY {order} DESC, p.id LIMIT ?"
        return [_pattern(row) for row in read(sql, (*where.values, limit))]
    counted, values = _counted(read, tenant, query, where, limit)
    order = {"count": "n", "given_up": "n - o"}.get(query.order, f"p.{query.order}")
    sql = (
        f"SELECT {_COUNTED} FROM ({counted}) c CROSS JOIN patterns p ON p.id = of WHERE {where} "
        f"ORDER BY {order} DESC, p.id LIMIT ?"
    )
    return [_pattern(row) for row in read(sql, (*values, *where.values, limit))]


def _holding(read: Read, tenant: str, query: PatternQuery, more: int) -> list[Pattern]:
    """Search the text in Python, for a database that cannot. Reads ever larger batches until enough match."""
    wanted, count = query.limit + more, max(8 * (query.limit + more), FEW)
    while True:
        every = _as_kept(read, tenant, msgspec.structs.replace(query, text=None, limit=count), 0)
        holding = [part for part in every if patterns.holds(part, query.text or "")]
        if len(holding) >= wanted or len(every) < count or query.limit <= 0:
            return holding[:wanted]
        count *= 8


def _counted(read: Read, tenant: str, query: PatternQuery, where: _Where, limit: int) -> tuple[str, tuple[Any, ...]]:
    """Build the subquery that counts patterns since a day, limited to possible results where that is cheaper."""
    start = patterns.day_of(query.since or 0)
    ((latest,),) = read("SELECT max(day) FROM pattern_days WHERE tenant = ?", (tenant,))
    days = range(start, (start if latest is None else latest) + 1, DAY)
    if 0 < len(days) <= FEW_DAYS:
        given = encode(list(days)).decode()
        chosen: tuple[str, tuple[Any, ...]] | None = None
        if any(getattr(query, name) is not None for name in ("state", "tool", "kind", "agent", "text", "new_since")):
            chosen = f"SELECT p.id FROM patterns p WHERE {where}", tuple(where.values)
        elif query.order in ("count", "given_up") and limit <= FEW_PATTERNS:
            counts = "d.count" if query.order == "count" else "d.count - d.overcome"
            chosen = _frequent(read, tenant, where, given, days, limit, counts)
        if chosen is not None:
            sql = (
                f"SELECT d.id AS of, sum(d.count) AS n, sum(d.overcome) AS o FROM ({chosen[0]}) c "
                "CROSS JOIN json_each(?) CROSS JOIN pattern_days d ON d.tenant = ? AND d.day = CAST(value AS BIGINT) "
                "AND d.id = c.id GROUP BY d.id"
            )
            return sql, (*chosen[1], given, tenant)
    sql = "SELECT id AS of, sum(count) AS n, sum(overcome) AS o FROM pattern_days WHERE tenant = ? AND day >= ?"
    return f"{sql} GROUP BY id", (tenant, start)


def _frequent(
    read: Read, tenant: str, where: _Where, given: str, days: range, limit: int, counts: str
) -> tuple[str, tuple[Any, ...]] | None:
    """Build the subquery for patterns that can be among the most frequent of these days, or the most unrecovered.

    The top patterns of each day give a lower bound for the result. A pattern that reaches the bound must reach the
    daily average of it on at least one day. The index by size finds those days; all other patterns are skipped.
    Return None if there is no useful bound.
    """
    # Few of the most frequent patterns are often unrecovered, so the bound needs more of them.
    most = limit if counts == "d.count" else 6 * limit
    tops = {
        id
        for day in days
        for (id,) in read(
            "SELECT d.id FROM pattern_days d CROSS JOIN patterns p ON p.tenant = d.tenant AND p.id = d.id "
            f"WHERE d.tenant = ? AND d.day = ? AND {where} ORDER BY d.size DESC LIMIT ?",
            (tenant, day, *where.values, most),
        )
    }
    if len(tops) < limit:
        return None
    sums = read(
        f"SELECT sum({counts}) FROM json_each(?) i CROSS JOIN json_each(?) j CROSS JOIN pattern_days d "
        "ON d.tenant = ? AND d.day = CAST(j.value AS BIGINT) AND d.id = i.value GROUP BY d.id",
        (encode(sorted(tops)).decode(), given, tenant),
    )
    least = -(-sorted((count for (count,) in sums), reverse=True)[limit - 1] // len(days))
    if least <= 0:
        return None  # so few are unrecovered that any pattern may be in the result
    sql = (
        "SELECT DISTINCT k.id FROM json_each(?) CROSS JOIN pattern_days k ON k.tenant = ? "
        "AND k.day = CAST(value AS BIGINT) AND k.size >= ? AND k.count >= ?"
    )
    return sql, (given, tenant, size_of(least), least)


def _pattern(row: tuple[Any, ...]) -> Pattern:
    id, tool, fingerprint, kind, server, message, template, count, overcome, runs, first, last = row
    return Pattern(
        id=id, tool=tool, fingerprint=fingerprint, kind=kind, server=server, message=message, template=template,
        count=count, overcome=overcome, given_up=count - overcome, runs=runs, first=first, last=last,
        state="new" if last - first < DAY else "active",
    )  # fmt: skip


def parts(read: Read, tenant: str, ids: Iterable[str], since: int | None = None) -> list[Pattern]:
    """Return the patterns as counted, before merges. With `since`, count only the days from then on."""
    sql = f"SELECT {_COLUMNS} FROM patterns WHERE tenant = ? AND id = ?"
    kept = [_pattern(row) for id in sorted(ids) for row in read(sql, (tenant, id))]
    if since is None:
        return kept
    counted = []
    for part in kept:
        days = _days(read, tenant, part.id, part, since)
        count, overcome = sum(count for _, count, _ in days), sum(overcome for _, _, overcome in days)
        counted.append(msgspec.structs.replace(part, count=count, overcome=overcome, given_up=count - overcome))
    return counted


def _days(read: Read, tenant: str, id: str, over: Pattern, since: int | None) -> list[tuple[int, int, int]]:
    first = patterns.day_of(over.first if since is None else max(over.first, since))
    days = range(first, over.last + 1, DAY)[-DAYS:]
    return read(
        "SELECT day, count, overcome FROM pattern_days WHERE tenant = ? AND id = ? "
        "AND day IN (SELECT CAST(value AS BIGINT) FROM json_each(?))",
        (tenant, id, encode(list(days)).decode()),
    )


def _with_parts(read: Read, tenant: str, pattern: Pattern, since: int | None) -> Pattern:
    """Return the pattern with its counts by agent and by day, including merged patterns."""
    ids = (pattern.id, *pattern.merged)
    agents = read(
        f"SELECT agent, sum(count) FROM pattern_agents WHERE tenant = ? AND id IN ({_marks(ids)}) GROUP BY agent",
        (tenant, *ids),
    )
    days: dict[int, int] = {}
    for id in ids:
        for day, count, _ in _days(read, tenant, id, pattern, since):
            days[day] = days.get(day, 0) + count
    return msgspec.structs.replace(pattern, agents=dict(agents), days=dict(sorted(days.items())))


def pattern(read: Read, tenant: str, id: str) -> Pattern | None:
    """Return one pattern with its merged patterns and its newest examples."""
    known = whole_id(read, tenant, id)
    if known is None:
        return None
    decisions = decisions_of(read, tenant)
    whole = patterns.root(known, decisions)
    ids = {each for each in touched_by(decisions) if patterns.root(each, decisions) == whole} | {known, whole}
    shown = next(
        each for each in patterns.shown(parts(read, tenant, ids), decisions) if known in (each.id, *each.merged)
    )
    examples = [
        Example(run=run, seq=seq, started=started)
        for part in parts(read, tenant, (shown.id, *shown.merged))
        for run, seq, started in read(
            "SELECT run, seq, started FROM steps WHERE tenant = ? AND name = ? AND fingerprint = ? "
            "ORDER BY started DESC, run, seq LIMIT ?",
            (tenant, part.tool, part.fingerprint, patterns.EXAMPLES),
        )
    ]
    full = msgspec.structs.replace(_with_parts(read, tenant, shown, None), examples=tuple(examples))
    return patterns.told(full, with_examples=True)


def whole_id(read: Read, tenant: str, id: str) -> str | None:
    """Return the pattern id with this prefix; None if there is none or the prefix is ambiguous."""
    sql = "SELECT id FROM patterns WHERE tenant = ? AND id >= ? AND id < ? ORDER BY id LIMIT 2"
    meant = [each for (each,) in read(sql, (tenant, id, id + "\U0010ffff"))]
    return meant[0] if meant and (len(meant) == 1 or meant[0] == id) else None
