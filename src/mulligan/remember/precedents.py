"""What overcame a failure before, from the rows of a database: what many runs say in the same words is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mulligan import calls
from mulligan.records import Link, Precedent, decode, pattern_id
from mulligan.remember import bodies, fixes, voting
from mulligan.remember.store import Question, Revocation

MOST = 200
"""Runs that are looked at, the latest to come."""
_LINKS = "SELECT run, body FROM links WHERE tenant = ? AND name = ? AND fingerprint = ? ORDER BY rowid DESC LIMIT ?"
_BESIDE = (
    "SELECT 'revoked', principal, tool, since, until FROM revocations WHERE tenant = ? "
    "UNION ALL SELECT 'runs', NULL, NULL, runs, NULL FROM patterns WHERE tenant = ? AND id = ? "
    "UNION ALL SELECT 'own', NULL, NULL, 1, NULL WHERE EXISTS (SELECT 1 FROM runs r CROSS JOIN met m "
    "ON m.tenant = r.tenant AND m.pattern = ? AND m.started = r.started AND m.run = r.id "
    "WHERE r.tenant = ? AND r.id = ?)"
)
"""What they are counted against: what was taken back, how many runs met the pattern, whether this one did."""
_HOW = b'"how":'
"""Begins what a link says beside where it was. In a text there is no such thing: its quotes are escaped."""

Read = Callable[..., list[Any]]


def answer(read: Read, tenant: str, question: Question) -> list[Precedent]:
    links = read(_LINKS, (tenant, question.tool, question.fingerprint, MOST))
    if not links:
        return []
    pattern = pattern_id(question.tool, question.fingerprint)
    told = read(_BESIDE, (tenant, tenant, pattern, pattern, tenant, question.run))
    taken_back = [voting.revocation(row[1:]) for row in told if row[0] == "revoked"]
    counted = sum(row[3] for row in told if row[0] == "runs")
    own = sum(row[3] for row in told if row[0] == "own")
    if revoked := _revoked(read, tenant, question.tool, pattern, taken_back):
        links = [link for link in links if link[0] not in revoked]
    others = counted - len(revoked) - (0 if question.run in revoked else own)
    seen = others + any(run == question.run for run, _ in links)
    return calls.ranked(_together(links), seen)[: max(question.limit, 0)]


def _together(links: Iterable[tuple[str, bytes]]) -> Iterator[tuple[Link, set[str]]]:
    """Links with the runs that they were in. Most runs say the same, and that is read but once."""
    said: dict[bytes, tuple[set[str], list[bytes]]] = {}
    for run, body in links:
        text = bodies.plain(body)
        what = text.partition(_HOW)[2] or text
        if what not in said:
            said[what] = set(), []
        runs, texts = said[what]
        runs.add(run)
        texts.append(text)
    known = [(decode(texts[0], Link), runs, texts) for runs, texts in said.values()]
    shapes = Counter(calls.shape_of(link) for link, _, _ in known)
    for link, runs, texts in known:
        if shapes[calls.shape_of(link)] > 1:  # which of them is told goes by which was the first
            link = min((decode(text, Link) for text in texts), key=lambda each: (each.run, each.failed))
        yield link, runs


def _revoked(read: Read, tenant: str, tool: str, pattern: str, revoked: Sequence[Revocation]) -> set[str]:
    """The runs that met a pattern and that memory must not rest on."""
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
