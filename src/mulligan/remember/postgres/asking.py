"""Fix lookups in PostgreSQL: many rows per statement, to save round trips.

Several patterns or fixes are looked up in one statement by a LATERAL join. A UNION of single queries, as used for
SQLite, is slower here: it plans every table and checks row security again for each part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mulligan.remember import exemplars, learning, recipes, similar
from mulligan.remember.learning import Latest, Read
from mulligan.remember.postgres.values import Texts
from mulligan.remember.store import DAY

FEW_PATTERNS = 64
"""Limit of candidates from the similarity index. They are then compared by sketch, as in other stores."""
ENOUGH = 2 * exemplars.MOST
"""Calls of the latest runs of a tool that are read first. Usually they are sufficient."""
_LATEST = f"""
    WITH latest AS (
        SELECT u.run, u.started AS began, r.kept / {DAY} AS day FROM used u
        JOIN runs r ON r.tenant = u.tenant AND r.id = u.run WHERE u.tenant = ? AND u.sort = 'tool' AND u.name = ?
        AND {learning.UNREVOKED} ORDER BY u.started DESC, u.run DESC LIMIT ? OFFSET ?)
    SELECT l.run, l.began, e.last, c.seq, c.body FROM latest l
    CROSS JOIN LATERAL (SELECT max(seq) AS last FROM steps WHERE tenant = ? AND run = l.run AND day = l.day) e
    LEFT JOIN LATERAL (
        SELECT seq, body FROM steps WHERE tenant = ? AND run = l.run AND day = l.day AND seq > e.last - ?
        AND name = ? AND outcome = 'success' AND length(body) < ? ORDER BY seq DESC LIMIT ?) c ON true
    ORDER BY l.began DESC, l.run DESC, c.seq DESC LIMIT ?
"""
_FIXES = """
    SELECT n.place, f.last, f.body FROM (
        SELECT m.pattern, m.place FROM unnest(CAST(? AS text[])) WITH ORDINALITY AS m (pattern, place)
        WHERE NOT EXISTS (SELECT 1 FROM patterns p WHERE p.tenant = ? AND p.id = m.pattern AND p.kind <> ? AND ? <> '')
        AND EXISTS (SELECT 1 FROM fixes f WHERE f.tenant = ? AND f.pattern = m.pattern)
        ORDER BY m.place LIMIT ?) n
    CROSS JOIN LATERAL (
        SELECT last, body FROM fixes WHERE tenant = ? AND pattern = n.pattern ORDER BY last DESC LIMIT ?) f
"""
_SAMPLES = """
    SELECT n.fix, v.at, v.run, v.body FROM unnest(CAST(? AS text[])) AS n (fix) CROSS JOIN LATERAL (
        SELECT at, run, body FROM votes WHERE tenant = ? AND fix = n.fix AND worked = 1 AND body IS NOT NULL
        AND run <> ? ORDER BY at DESC, run DESC LIMIT ?) v
"""


def near(read: Read, tenant: str, tool: str, text: str) -> list[tuple[float, str]]:
    """Return the most similar patterns of a tool, from the candidates of the similarity index."""
    rows = read(
        "SELECT pattern, sketch FROM fixed WHERE tenant = ? AND tool = ? ORDER BY words <-> ? LIMIT ?",
        (tenant, tool, text, FEW_PATTERNS),
    )
    return similar.nearest(text, [(pattern, similar.unpacked(bits)) for pattern, bits in rows])


def latest(read: Read, tenant: str, tool: str) -> Iterator[Latest]:
    """Yield the latest runs of a tool with their calls. Reading each run separately is slower."""
    start = 0
    within = (tenant, tenant, exemplars.SCANNED, tool, exemplars.LARGEST, exemplars.MOST)
    for most in (ENOUGH, 2**31):
        rows = read(_LATEST, (tenant, tool, exemplars.MOST - start, start, *within, most))
        runs: dict[tuple[str, int, int | None], list[Any]] = {}
        for run, started, last, seq, body in rows:
            runs.setdefault((run, started, last), []).extend([] if seq is None else [(seq, body)])
        if len(rows) == most:
            runs.popitem()  # its calls may be incomplete
        for (run, started, last), calls in runs.items():
            yield Latest(
                run, started, last,
                lambda after, calls=calls: [each for each in calls if each[0] > after],  # type: ignore[misc]
            )  # fmt: skip
        start += len(runs)
        if len(rows) < most:
            return


def fixes_of(read: Read, tenant: str, patterns: Sequence[str], kind: str) -> list[Any]:
    """Return the newest fixes of each pattern, like `find_pattern_fixes` for SQLite."""
    chosen = (Texts(patterns), tenant, kind, kind, tenant, recipes.ALIKE)
    rows = read(_FIXES, (*chosen, tenant, learning.TALLIES))
    return [(patterns[place - 1], last, body) for place, last, body in rows]


def samples(read: Read, tenant: str, ids: Sequence[str], without: str) -> list[Any]:
    """Return the newest successful votes of each fix, like `find_successful_votes` for SQLite."""
    return read(_SAMPLES, (Texts(ids), tenant, without, recipes.EACH)) if ids else []
