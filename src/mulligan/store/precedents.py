"""Precedents read from a database: what recovered the same failure in earlier runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mulligan.core import calls
from mulligan.core.records import Link, Precedent, decode, pattern_id
from mulligan.learn import fixes
from mulligan.store import fix_votes, row_encoding
from mulligan.store.base import RecallQuery, Revocation

MAX_READ_LINKS = 200
"""Newest links that are read for one query."""
_LINKS_SQL = (
    "SELECT run, body, NULL AS count FROM links WHERE tenant = ? AND name = ? AND fingerprint = ? "
    "ORDER BY rowid DESC LIMIT ?"
)
_COUNTS_SQL = (
    "SELECT 'runs', NULL, runs FROM patterns WHERE tenant = ? AND id = ? "
    "UNION ALL SELECT 'revoked', NULL, 1 WHERE EXISTS (SELECT 1 FROM revocations WHERE tenant = ?) "
    "UNION ALL SELECT 'own', NULL, 1 WHERE EXISTS (SELECT 1 FROM runs r CROSS JOIN run_failures m "
    "ON m.tenant = r.tenant AND m.pattern = ? AND m.started_at = r.started_at AND m.run = r.id "
    "WHERE r.tenant = ? AND r.id = ?)"
)
"""Runs of the pattern, whether revocations exist, and whether the querying run had the pattern."""
_COMBINED_SQL = f"SELECT run, body, CAST(count AS BIGINT) FROM ({_LINKS_SQL}) AS latest UNION ALL {_COUNTS_SQL}"
METHOD_KEY = b'"method":'
"""The JSON key after the position of a link. It cannot occur inside a text, because quotes are escaped there."""

Read = Callable[..., list[Any]]


def find_precedents(read: Read, tenant: str, query: RecallQuery, in_one_query: bool = False) -> list[Precedent]:
    """Return what recovered a failure in earlier runs.

    `in_one_query` combines all reads into one statement, for databases with slow round trips.
    """
    pattern = pattern_id(query.tool, query.fingerprint)
    of_links = (tenant, query.tool, query.fingerprint, MAX_READ_LINKS)
    of_counts = (tenant, pattern, tenant, pattern, tenant, query.run)
    rows = read(_COMBINED_SQL, (*of_links, *of_counts)) if in_one_query else read(_LINKS_SQL, of_links)
    links = [(run, body) for run, body, _ in rows if body is not None]
    if not links:
        return []
    counts = {
        label: count for label, body, count in (rows if in_one_query else read(_COUNTS_SQL, of_counts)) if body is None
    }
    pattern_runs, own_runs = counts.get("runs", 0), counts.get("own", 0)
    revocations = fix_votes.revocations(read, tenant) if "revoked" in counts else []
    if revoked := _find_revoked_runs(read, tenant, query.tool, pattern, revocations):
        links = [link for link in links if link[0] not in revoked]
    other_runs = pattern_runs - len(revoked) - (0 if query.run in revoked else own_runs)
    counted_runs = other_runs + any(run == query.run for run, _ in links)
    return calls.rank_precedents(group_links(links), counted_runs, max(query.limit, 0))


def group_links(links: Iterable[tuple[str, bytes]]) -> Iterator[tuple[int, Link]]:
    """Yield one link of each shape with the number of runs that had it. Links with equal text are parsed once."""
    links_by_text: dict[bytes, list[tuple[str, bytes]]] = {}
    for run, body in links:
        text = row_encoding.decompress(body)
        links_by_text.setdefault(text.partition(METHOD_KEY)[2] or text, []).append((run, text))
    shapes: dict[object, list[tuple[Link, list[tuple[str, bytes]]]]] = {}
    for same in links_by_text.values():
        link = decode(same[0][1], Link)
        shapes.setdefault(calls.precedent_key(link), []).append((link, same))
    for (link, same), *others in shapes.values():
        if others:  # the earliest link represents its shape
            same = [entry for _, entries in others for entry in entries] + same
            link = min(
                (decode(text, Link) for _, text in same), key=lambda candidate: (candidate.run, candidate.failed_call)
            )
        yield len({run for run, _ in same}) if len(same) > 1 else 1, link


def _find_revoked_runs(read: Read, tenant: str, tool: str, pattern: str, revocations: Sequence[Revocation]) -> set[str]:
    """Return the runs of a pattern that were revoked."""
    if not revocations:
        return set()
    run_rows = read(
        "SELECT DISTINCT r.id, r.principal, r.started_at FROM run_failures m JOIN runs r "
        "ON r.tenant = m.tenant AND r.id = m.run WHERE m.tenant = ? AND m.pattern = ?",
        (tenant, pattern),
    )
    return {
        run
        for run, principal, started in run_rows
        if any(fixes.is_revoked(revocation, principal, tool, started) for revocation in revocations)
    }
