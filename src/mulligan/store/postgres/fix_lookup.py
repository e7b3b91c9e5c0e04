"""Fix lookups in PostgreSQL: many rows per statement, to save round trips.

Several patterns or fixes are looked up in one statement by a LATERAL join. A UNION of single queries, as used for
SQLite, is slower here: it plans every table and checks row security again for each part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mulligan.learn import exemplars, prerequisites, similar
from mulligan.store import fix_queries
from mulligan.store.base import DAY
from mulligan.store.fix_queries import Read, RecentRun
from mulligan.store.postgres.value_encoding import TextColumn

MAX_COMPARED_PATTERNS = 64
"""Limit of candidates from the similarity index. They are then compared by sketch, as in other stores."""
FIRST_PAGE_CALLS = 2 * exemplars.MAX_EXEMPLARS
"""Calls of the latest runs of a tool that are read first. Usually they are sufficient."""
_LATEST_SQL = f"""
    WITH latest AS (
        SELECT u.run, u.started_at AS began, r.stored_at / {DAY} AS day FROM run_callees u
        JOIN runs r ON r.tenant = u.tenant AND r.id = u.run WHERE u.tenant = ? AND u.type = 'tool' AND u.name = ?
        AND {fix_queries.UNREVOKED_SQL} ORDER BY u.started_at DESC, u.run DESC LIMIT ? OFFSET ?)
    SELECT l.run, l.began, e.last, c.seq, c.body FROM latest l
    CROSS JOIN LATERAL (SELECT max(seq) AS last FROM steps WHERE tenant = ? AND run = l.run AND day = l.day) e
    LEFT JOIN LATERAL (
        SELECT seq, body FROM steps WHERE tenant = ? AND run = l.run AND day = l.day AND seq > e.last - ?
        AND name = ? AND outcome = 'success' AND length(body) < ? ORDER BY seq DESC LIMIT ?) c ON true
    ORDER BY l.began DESC, l.run DESC, c.seq DESC LIMIT ?
"""
_FIXES_SQL = """
    SELECT n.position, f.last_tried_at, f.body FROM (
        SELECT m.pattern, m.position FROM unnest(CAST(? AS text[])) WITH ORDINALITY AS m (pattern, position)
        WHERE NOT EXISTS (SELECT 1 FROM patterns p WHERE p.tenant = ? AND p.id = m.pattern AND p.kind <> ? AND ? <> '')
        AND EXISTS (SELECT 1 FROM fixes f WHERE f.tenant = ? AND f.pattern = m.pattern)
        ORDER BY m.position LIMIT ?) n
    CROSS JOIN LATERAL (
        SELECT last_tried_at, body FROM fixes WHERE tenant = ? AND pattern = n.pattern
        ORDER BY last_tried_at DESC LIMIT ?) f
"""
_SAMPLES_SQL = """
    SELECT n.fix, v.at, v.run, v.body FROM unnest(CAST(? AS text[])) AS n (fix) CROSS JOIN LATERAL (
        SELECT at, run, body FROM votes WHERE tenant = ? AND fix = n.fix AND successful = 1 AND body IS NOT NULL
        AND run <> ? ORDER BY at DESC, run DESC LIMIT ?) v
"""


def find_similar_patterns(read: Read, tenant: str, tool: str, text: str) -> list[tuple[float, str]]:
    """Return the most similar patterns of a tool, from the candidates of the similarity index."""
    rows = read(
        "SELECT pattern, sketch FROM pattern_sketches WHERE tenant = ? AND tool = ? ORDER BY text <-> ? LIMIT ?",
        (tenant, tool, text, MAX_COMPARED_PATTERNS),
    )
    return similar.nearest(text, [(pattern, similar.unpack(bits)) for pattern, bits in rows])


def find_recent_runs(read: Read, tenant: str, tool: str) -> Iterator[RecentRun]:
    """Yield the latest runs of a tool with their calls. Reading each run separately is slower."""
    start = 0
    step_parameters = (
        tenant,
        tenant,
        exemplars.MAX_SCANNED_STEPS,
        tool,
        exemplars.MAX_BODY_BYTES,
        exemplars.MAX_EXEMPLARS,
    )
    for max_rows in (FIRST_PAGE_CALLS, 2**31):
        rows = read(_LATEST_SQL, (tenant, tool, exemplars.MAX_EXEMPLARS - start, start, *step_parameters, max_rows))
        runs: dict[tuple[str, int, int | None], list[Any]] = {}
        for run, started, last, seq, body in rows:
            runs.setdefault((run, started, last), []).extend([] if seq is None else [(seq, body)])
        if len(rows) == max_rows:
            runs.popitem()  # its calls may be incomplete
        for (run, started, last), calls in runs.items():
            yield RecentRun(
                run, started, last,
                lambda after, calls=calls: [call for call in calls if call[0] > after],  # type: ignore[misc]
            )  # fmt: skip
        start += len(runs)
        if len(rows) < max_rows:
            return


def find_pattern_fixes(read: Read, tenant: str, patterns: Sequence[str], kind: str) -> list[Any]:
    """Return the newest fixes of each pattern, like `find_pattern_fixes` for SQLite."""
    pattern_parameters = (TextColumn(patterns), tenant, kind, kind, tenant, prerequisites.MAX_SIMILAR_PATTERNS)
    rows = read(_FIXES_SQL, (*pattern_parameters, tenant, fix_queries.MAX_FIXES_PER_PATTERN))
    return [(patterns[position - 1], last, body) for position, last, body in rows]


def find_successful_votes(read: Read, tenant: str, ids: Sequence[str], without: str) -> list[Any]:
    """Return the newest successful votes of each fix, like `find_successful_votes` for SQLite."""
    return read(_SAMPLES_SQL, (TextColumn(ids), tenant, without, prerequisites.MAX_SAMPLES_PER_FIX)) if ids else []
