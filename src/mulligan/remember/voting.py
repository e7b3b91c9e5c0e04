"""Votes for fixes: stored batch by batch, with one lookup per table, and counted into fix records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from mulligan.calls import wilson
from mulligan.records import Run, decode, encode
from mulligan.remember import candidates, fixes, patterns, similar
from mulligan.remember.connection import Connection, Insert, Lookup
from mulligan.remember.fixes import Tally, Trial, Vote
from mulligan.remember.rows import FIRST
from mulligan.remember.store import Revocation
from mulligan.remember.tallies import id_of

REPORTED = -1
"""Replaces the failed call in a vote that was reported from outside."""

Read = Callable[..., list[Any]]
VOTE = Insert.instead(
    "votes",
    "tenant run tried failed fix",
    "worked at principal agent automatic body content old_value other_values",
)
_FIX = Insert.instead("fixes", "tenant id", "tool pattern last body")
_FIXED = Insert.of("fixed", "tenant tool pattern sketch words")
_UNLEARNED = Insert.of("unlearned", "tenant pattern")
_OF_RUN = Lookup.of("votes", "tenant run tried>=", "failed tried fix worked at")
_OF_FIX = Lookup.of("votes", "tenant run fix", "principal worked at")
_TALLY = Lookup.of("fixes", "tenant id", "body")
_KNOWN = Lookup.of("fixed", "tenant tool pattern", "pattern")
_TEMPLATE = Lookup.of("patterns", "tenant id", "template")


class News(msgspec.Struct, frozen=True):
    """All trials of fixes in one run, from this call on."""

    run: Run
    start: int
    trials: list[Trial]


def add(writer: Connection, tenant: str, news: Sequence[News], principal: str | None = None) -> None:
    """Replace the votes of some runs, from their first changed call on."""
    known = _known(writer, tenant, news)
    told = [about for about in news if about.trials or about.run.id in known]
    if not told:
        return
    revoked = revocations(lambda sql, values: writer.execute(sql, values).fetchall(), tenant)
    stale: list[tuple[str, str, int, int]] = []
    uncertain: set[str] = set()
    heard: list[tuple[Trial, Vote]] = []
    for about in told:
        run = about.run
        who = principal or _principal(writer, tenant, run.id)
        wanted = {
            (trial.failed, trial.tried): trial
            for trial in about.trials
            if not any(fixes.is_revoked(each, who, trial.step.name, run.started) for each in revoked)
        }
        kept = known.get(run.id, {})
        same = {
            key
            for key, vote in kept.items()
            if key in wanted and (wanted[key].fix, wanted[key].worked, wanted[key].at) == vote
        }
        stale += [(tenant, run.id, *key) for key in kept if key not in same]
        uncertain |= {fix for key, (fix, _, _) in kept.items() if key not in same}
        heard += [(trial, Vote.of(run, who, trial)) for key, trial in wanted.items() if key not in same]
    if stale:
        writer.executemany("DELETE FROM votes WHERE tenant = ? AND run = ? AND failed = ? AND tried = ?", stale)
    for fix in uncertain:
        refresh(writer, tenant, fix)
    if heard:
        _count(writer, tenant, heard)


def _known(
    writer: Connection, tenant: str, news: Sequence[News]
) -> dict[str, dict[tuple[int, int], tuple[str, bool, int]]]:
    """Return the stored votes of these calls, by run and by failed and tried call."""
    found: dict[str, dict[tuple[int, int], tuple[str, bool, int]]] = {}
    places = [(tenant, about.run.id, about.start) for about in news]
    for _, run, _, failed, tried, fix, worked, at in writer.look_up(_OF_RUN, places):
        if failed != REPORTED:
            found.setdefault(run, {})[failed, tried] = (fix, bool(worked), at)
    return found


def _principal(writer: Connection, tenant: str, run: str) -> str:
    row = writer.execute("SELECT principal FROM runs WHERE tenant = ? AND id = ?", (tenant, run)).fetchone()
    return (row[0] if row else "") or fixes.OWN


def _count(writer: Connection, tenant: str, heard: Sequence[tuple[Trial, Vote]]) -> None:
    """Store votes and count each for its fix."""
    earlier: dict[tuple[str, str, str], tuple[bool, int]] = {}

    def note(fix: str, run: str, who: str, worked: bool, at: int) -> None:
        before = earlier.get((fix, run, who), (worked, at))
        earlier[fix, run, who] = min(before[0], worked), min(before[1], at)

    asked = {(tenant, vote.run, trial.fix) for trial, vote in heard}
    for _, run, fix, who, worked, at in writer.look_up(_OF_FIX, list(asked)):
        note(fix, run, who, bool(worked), at)
    places = [(tenant, fix) for fix in {trial.fix for trial, _ in heard}]
    tallies = {id: decode(body, Tally) for _, id, body in writer.look_up(_TALLY, places)}
    before = {id: _weight(tally) for id, tally in tallies.items()}
    new: dict[str, Trial] = {}
    changed: set[str] = set()
    uncertain: set[str] = set()
    for trial, vote in heard:
        fix = trial.fix
        known = earlier.get((fix, vote.run, vote.principal))
        note(fix, vote.run, vote.principal, vote.worked, vote.at)
        if known is not None:
            # Each run has one vote: its first failure, else its first success.
            if known[0] != vote.worked or vote.at < known[1]:
                uncertain.add(fix)
            continue
        if fix not in tallies:
            tallies[fix], new[fix] = Tally.of(trial), trial
            before[fix] = _weight(tallies[fix])
        tallies[fix].add(vote)
        changed.add(fix)
    writer.put(VOTE, [vote_row(tenant, trial.tried, trial.failed, trial.fix, vote, trial) for trial, vote in heard])
    if new:
        _note_patterns(writer, tenant, new.values())
    news = {fix for fix in changed if tallies[fix].worked > 0 and _weight(tallies[fix]) != before[fix]}
    _put(writer, tenant, [tallies[fix] for fix in changed], news)
    for fix in uncertain:
        refresh(writer, tenant, fix)


def vote_row(tenant: str, tried: int, failed: int, fix: str, vote: Vote, trial: Trial | None = None) -> tuple[Any, ...]:
    body = encode(trial.done) if trial is not None and trial.done else None
    return (
        tenant, vote.run, tried, failed, fix, int(vote.worked), vote.at, vote.principal, vote.agent,
        fixes.ACTORS.index(vote.actor), body, vote.content, vote.old_value, vote.other_values,
    )  # fmt: skip


def _weight(tally: Tally) -> tuple[int | bool, ...]:
    """Return the values whose change may change a lesson, rounded: one more of a thousand does not."""
    is_sure = wilson(tally.worked, tally.tried) >= fixes.SURE
    return (*map(_roughly, (tally.worked, tally.tried, len(tally.principals))), min(len(tally.days), 2), is_sure)


def _roughly(count: int) -> int:
    return count if count < 8 else 8 * count.bit_length()


def _put(writer: Connection, tenant: str, tallies: Sequence[Tally], news: set[str]) -> None:
    named = [(tally, id_of(tally.tool, tally.fingerprint)) for tally in tallies]
    writer.put(_UNLEARNED, [(tenant, pattern) for pattern in {pattern for tally, pattern in named if tally.id in news}])
    rows = [(tenant, tally.id, tally.tool, pattern, tally.last, encode(tally)) for tally, pattern in named]
    writer.put(_FIX, rows)


def note_news(writer: Connection, tenant: str, pattern: str) -> None:
    """Mark a pattern whose fixes have changed for the next consolidation."""
    writer.put(_UNLEARNED, [(tenant, pattern)])


def _note_patterns(writer: Connection, tenant: str, trials: Iterable[Trial]) -> None:
    """Store sketches of the patterns of new fixes, so that similar failures find them."""
    steps = {(tenant, trial.step.name, id_of(trial.step.name, trial.fingerprint)): trial.step for trial in trials}
    for _, tool, pattern, _ in writer.look_up(_KNOWN, list(steps)):
        steps.pop((tenant, tool, pattern), None)
    texts = {id: text for _, id, text in writer.look_up(_TEMPLATE, [(tenant, pattern) for _, _, pattern in steps])}
    rows = []
    for place, step in steps.items():
        text = texts[place[2]] if place[2] in texts else patterns.worded(step)[1]
        rows.append((*place, similar.packed(similar.sketch(text)), text[: similar.LONGEST]))
    writer.put(_FIXED, rows)
    candidates.add(writer, tenant, [(tool, pattern, sketch) for _, tool, pattern, sketch, _ in rows])


def refresh(writer: Connection, tenant: str, fix: str) -> None:
    """Recount a fix from its votes."""
    row = writer.execute("SELECT body FROM fixes WHERE tenant = ? AND id = ?", (tenant, fix)).fetchone()
    if row is None:
        return
    old = decode(row[0], Tally)
    counted = votes(lambda sql, values: writer.execute(sql, values).fetchall(), tenant, fix)
    if counted:
        _put(writer, tenant, [old.anew(counted)], {fix})
        return
    writer.execute("DELETE FROM fixes WHERE tenant = ? AND id = ?", (tenant, fix))
    pattern = id_of(old.tool, old.fingerprint)
    note_news(writer, tenant, pattern)
    left = writer.execute("SELECT 1 FROM fixes WHERE tenant = ? AND pattern = ?", (tenant, pattern)).fetchone()
    if left is None:
        writer.execute("DELETE FROM fixed WHERE tenant = ? AND tool = ? AND pattern = ?", (tenant, old.tool, pattern))
        candidates.pack(writer, tenant, old.tool)


def votes(read: Read, tenant: str, fix: str, since: int = FIRST, without: str = "", most: int = 2**62) -> list[Vote]:
    """Return the counted votes for a fix in the order of time, the newest if limited."""
    rows = read(
        "SELECT tried, run, principal, agent, at, worked, automatic, content, old_value, other_values FROM votes "
        "WHERE tenant = ? AND fix = ? AND at >= ? AND run <> ? ORDER BY at DESC LIMIT ?",
        (tenant, fix, since, without, most),
    )
    return fixes.counted(
        (tried, Vote(run, who, agent, at, bool(worked), fixes.ACTORS[actor], *hashes))
        for tried, run, who, agent, at, worked, actor, *hashes in rows
    )


# Revocations


def revocations(read: Read, tenant: str) -> list[Revocation]:
    rows = read("SELECT principal, tool, since, until FROM revocations WHERE tenant = ?", (tenant,))
    return list(map(revocation, rows))


def revocation(row: Sequence[Any]) -> Revocation:
    who, tool, since, until = row
    return Revocation(principal=who, tool=tool, since=since, until=until)
