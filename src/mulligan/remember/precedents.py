"""Precedents read from a database: what recovered the same failure in earlier runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mulligan import calls
from mulligan.records import Link, Precedent, decode, pattern_id
from mulligan.remember import bodies, fixes, voting
from mulligan.remember.store import Question, Revocation

MOST = 200
"""Newest links that are read for one query."""
_LINKS = (
    "SELECT run, body, NULL AS count FROM links WHERE tenant = ? AND name = ? AND fingerprint = ? "
    "ORDER BY rowid DESC LIMIT ?"
)
_BESIDE = (
    "SELECT 'runs', NULL, runs FROM patterns WHERE tenant = ? AND id = ? "
    "UNION ALL SELECT 'revoked', NULL, 1 WHERE EXISTS (SELECT 1 FROM revocations WHERE tenant = ?) "
    "UNION ALL SELECT 'own', NULL, 1 WHERE EXISTS (SELECT 1 FROM runs r CROSS JOIN met m "
    "ON m.tenant = r.tenant AND m.pattern = ? AND m.started = r.started AND m.run = r.id "
    "WHERE r.tenant = ? AND r.id = ?)"
)
"""Runs of the pattern, whether revocations exist, and whether the querying run had the pattern."""
_AT_ONCE = f"SELECT run, body, CAST(count AS BIGINT) FROM ({_LINKS}) AS latest UNION ALL {_BESIDE}"
_HOW = b'"how":'
"""The JSON key after the position of a link. It cannot occur inside a text, because quotes are escaped there."""

Read = Callable[..., list[Any]]


def answer(read: Read, tenant: str, question: Question, at_once: bool = False) -> list[Precedent]:
    """Return what recovered a failure in earlier runs.

    `in_one_query` combines all reads into one statement, for databases with slow round trips.
    """
    pattern = pattern_id(question.tool, question.fingerprint)
    of_links = (tenant, question.tool, question.fingerprint, MOST)
    of_beside = (tenant, pattern, tenant, pattern, tenant, question.run)
    rows = read(_AT_ONCE, (*of_links, *of_beside)) if at_once else read(_LINKS, of_links)
    links = [(run, body) for run, body, _ in rows if body is not None]
    if not links:
        return []
    beside = {what: count for what, body, count in (rows if at_once else read(_BESIDE, of_beside)) if body is None}
    counted, own = beside.get("runs", 0), beside.get("own", 0)
    taken_back = voting.revocations(read, tenant) if "revoked" in beside else []
    if revoked := _revoked(read, tenant, question.tool, pattern, taken_back):
        links = [link for link in links if link[0] not in revoked]
    others = counted - len(revoked) - (0 if question.run in revoked else own)
    seen = others + any(run == question.run for run, _ in links)
    return calls.ranked(_together(links), seen, max(question.limit, 0))


def _together(links: Iterable[tuple[str, bytes]]) -> Iterator[tuple[int, Link]]:
    """Yield one link of each shape with the number of runs that had it. Links with equal text are parsed once."""
    said: dict[bytes, list[tuple[str, bytes]]] = {}
    for run, body in links:
        text = bodies.plain(body)
        said.setdefault(text.partition(_HOW)[2] or text, []).append((run, text))
    shapes: dict[object, list[tuple[Link, list[tuple[str, bytes]]]]] = {}
    for same in said.values():
        link = decode(same[0][1], Link)
        shapes.setdefault(calls.shape_of(link), []).append((link, same))
    for (link, same), *others in shapes.values():
        if others:  # the earliest link represents its shape
            same = [each for _, some in others for each in some] + same
            link = min((decode(text, Link) for _, text in same), key=lambda each: (each.run, each.failed))
        yield len({run for run, _ in same}) if len(same) > 1 else 1, link


def _revoked(read: Read, tenant: str, tool: str, pattern: str, revoked: Sequence[Revocation]) -> set[str]:
    """Return the runs of a pattern that were revoked."""
    if not revoked:
        return set()
    met = read(
        "SELECT DISTINCT r.id, r.principal, r.started FROM met m JOIN runs r "
        "ON r.tenant = m.tenant AND r.id = m.run WHERE m.tenant = ? AND m.pattern = ?",
        (tenant, pattern),
    )
    return {
        run
        for run, principal, started in met
        if any(fixes.is_revoked(each, principal, tool, started) for each in revoked)
    }
