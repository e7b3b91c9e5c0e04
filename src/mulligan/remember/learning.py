"""Fixes in a database: asked for, decided about and taken back. How votes come in is in `voting.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from mulligan.links import judge_calls
from mulligan.records import Fix, Run, Step, decode, encode
from mulligan.remember import bodies, exemplars, fixes, recipes, schemas, voting
from mulligan.remember.connection import Connection, upsert
from mulligan.remember.fixes import Tally, Trial, Verdict, Vote
from mulligan.remember.recipes import Brief, Row, whole
from mulligan.remember.rows import FIRST
from mulligan.remember.store import (
    ITEMS_KIND,
    Evidence,
    FixQuery,
    Revocation,
    Revoked,
    Shape,
    parse_items,
    shape_of,
)
from mulligan.remember.tallies import id_of
from mulligan.remember.telling import Profile, build_profile
from mulligan.remember.voting import REPORTED, VOTE, News, note_news, refresh, vote_row, votes

TALLIES = 64
"""Fixes of one pattern that are looked at, the latest."""
FRESH = 500
"""Votes that are looked at where a tool's schema has changed, the latest."""
TOGETHER = 30
"""Fixes whose votes are asked for by one statement."""

Read = voting.Read
_VERDICT = upsert("verdicts", "tenant id", "body")
_KNOWN = (
    "SELECT 'verdict', id, NULL, NULL, NULL, body FROM verdicts WHERE tenant = ? "
    "UNION ALL SELECT 'revoked', principal, tool, since, until, NULL FROM revocations WHERE tenant = ? "
    "UNION ALL SELECT 'principal', principal, NULL, last, NULL, NULL FROM principals WHERE tenant = ? "
    "UNION ALL SELECT 'schema', key, NULL, NULL, NULL, value FROM shelf WHERE tenant = ? AND kind = ?"
)
"""What is known beside the tallies, by one statement."""
FIXES = "SELECT pattern, last, body FROM fixes WHERE tenant = ? AND pattern = ? ORDER BY last DESC LIMIT ?"
"""Those of one pattern, the latest."""
_OWN = f" UNION ALL SELECT 'fix', NULL, NULL, last, NULL, body FROM ({FIXES}) AS own"
_STAMP = " UNION ALL SELECT 'stamp', NULL, NULL, stamp, NULL, NULL FROM sketches WHERE tenant = ? AND tool = ?"
_CHOSEN = (
    "SELECT i.value FROM json_each(?) i WHERE NOT EXISTS (SELECT 1 FROM patterns p WHERE p.tenant = ? "
    "AND p.id = i.value AND p.kind <> ? AND ? <> '') AND EXISTS (SELECT 1 FROM fixes f WHERE f.tenant = ? "
    "AND f.pattern = i.value)"
)
"""Of some patterns those that have a fix and are of a kind, where one is given."""
VOTES = (
    "SELECT fix, at, run, body FROM votes WHERE tenant = ? AND fix = ? AND worked = 1 AND body IS NOT NULL "
    "AND run <> ? ORDER BY at DESC, run DESC LIMIT ?"
)
"""Those for one fix that tell what was called, the latest."""
UNREVOKED = (
    "NOT EXISTS (SELECT 1 FROM revocations v WHERE v.tenant = u.tenant "
    f"AND (v.principal IS NULL OR v.principal = coalesce(nullif(r.principal, ''), '{fixes.OWN}')) "
    "AND (v.tool IS NULL OR v.tool = u.name) AND (v.since IS NULL OR r.started >= v.since) "
    "AND (v.until IS NULL OR r.started < v.until))"
)
"""That what a run `r` says about a tool it used, `u`, was not taken back."""


def trials_of(run: Run, steps: Iterable[Step], is_settled: bool = False) -> list[Trial]:
    """Return every trial of a run. Provisional links teach once the run has ended or is settled."""
    trials: list[Trial] = []
    is_final = is_settled or run.end is not None
    for before, call, found in judge_calls(steps, run, is_final=is_final):
        trials += fixes.find_trials(before, call, found)
    return [trial for trial in trials if not (trial.worked and is_goal_missed(run))]


def is_goal_missed(run: Run) -> bool:
    """Return whether a run is known not to have reached its goal: what succeeded in it proves nothing."""
    return run.end in ("raised", "abandoned")


def relearn(writer: Connection, tenant: str, run: Run, steps: Iterable[Step], *, is_settled: bool = False) -> None:
    """Store the votes of a run, from its steps as they are now."""
    voting.add(writer, tenant, [News(run, FIRST, trials_of(run, steps, is_settled))])


def note_principal(writer: Connection, tenant: str, principal: str, now: int) -> None:
    writer.execute(
        "INSERT INTO principals (tenant, principal, last) VALUES (?, ?, ?) ON CONFLICT (tenant, principal) DO UPDATE "
        "SET last = excluded.last WHERE principals.last < excluded.last",
        (tenant, principal, now),
    )


# Taken back


def forget_run(writer: Connection, tenant: str, run: str) -> None:
    touched = writer.execute("SELECT DISTINCT fix FROM votes WHERE tenant = ? AND run = ?", (tenant, run)).fetchall()
    writer.execute("DELETE FROM votes WHERE tenant = ? AND run = ?", (tenant, run))
    for (fix,) in touched:
        refresh(writer, tenant, fix)
        _forget_verdict(writer, tenant, fix)


def _forget_verdict(writer: Connection, tenant: str, fix: str) -> None:
    """What operators said goes with the last that it was about."""
    if writer.execute("SELECT 1 FROM fixes WHERE tenant = ? AND id = ?", (tenant, fix)).fetchone() is None:
        writer.execute("DELETE FROM verdicts WHERE tenant = ? AND id = ?", (tenant, fix))


def forget_where(writer: Connection, tenant: str, is_gone: Callable[[Tally, bytes], bool]) -> None:
    """Fixes that outlived their rows and hold what is to be forgotten."""
    rows = writer.execute("SELECT id, body FROM fixes WHERE tenant = ?", (tenant,)).fetchall()
    for id, body in rows:
        if is_gone(decode(body, Tally), body):
            writer.execute("DELETE FROM votes WHERE tenant = ? AND fix = ?", (tenant, id))
            writer.execute("DELETE FROM verdicts WHERE tenant = ? AND id = ?", (tenant, id))
            refresh(writer, tenant, id)


def revoke(writer: Connection, tenant: str, what: Revocation) -> Revoked:
    """Takes back everything that rests on these records: memory answers as if it had never seen them."""
    row = (tenant, what.principal, what.tool, what.since, what.until)
    writer.execute("INSERT INTO revocations (tenant, principal, tool, since, until) VALUES (?, ?, ?, ?, ?)", row)
    rows = writer.execute(
        "SELECT v.run, v.failed, v.tried, v.fix, v.principal, f.tool, coalesce(r.started, v.at) FROM votes v "
        "JOIN fixes f ON f.tenant = v.tenant AND f.id = v.fix "
        "LEFT JOIN runs r ON r.tenant = v.tenant AND r.id = v.run WHERE v.tenant = ?",
        (tenant,),
    ).fetchall()
    gone = [each for each in rows if fixes.is_revoked(what, each[4], each[5], each[6])]
    writer.executemany(
        "DELETE FROM votes WHERE tenant = ? AND run = ? AND failed = ? AND tried = ? AND fix = ?",
        [(tenant, run, failed, tried, fix) for run, failed, tried, fix, *_ in gone],
    )
    if fixes.is_everything_of(what):
        writer.execute("DELETE FROM principals WHERE tenant = ? AND principal = ?", (tenant, what.principal))
    touched = {each[3] for each in gone}
    for fix in touched:
        refresh(writer, tenant, fix)
        _forget_verdict(writer, tenant, fix)
    return Revoked(runs=len({each[0] for each in gone}), votes=len(gone), fixes=len(touched))


def report(writer: Connection, tenant: str, fix: str, vote: Vote) -> bool:
    """A vote that somebody else's trial gave; whether there is such a fix."""
    row = writer.execute("SELECT body FROM fixes WHERE tenant = ? AND id = ?", (tenant, fix)).fetchone()
    if row is None:
        return False
    tally = decode(row[0], Tally)
    revoked = voting.revocations(lambda sql, values: writer.execute(sql, values).fetchall(), tenant)
    if not any(fixes.is_revoked(each, vote.principal, tally.tool, vote.at) for each in revoked):
        writer.execute(VOTE.one, vote_row(tenant, vote.at, REPORTED, fix, vote))
        refresh(writer, tenant, fix)
    return True


def decide(writer: Connection, tenant: str, fix: str, approved: bool, at: int) -> bool:
    """What an operator says of a fix; whether there is such a fix."""
    row = writer.execute("SELECT pattern FROM fixes WHERE tenant = ? AND id = ?", (tenant, fix)).fetchone()
    if row is None:
        return False
    known = writer.execute("SELECT body FROM verdicts WHERE tenant = ? AND id = ?", (tenant, fix)).fetchone()
    verdict = fixes.decided(decode(known[0], Verdict) if known else Verdict(), approved, at)
    writer.execute(
        _VERDICT,
        (tenant, fix, encode(verdict)),
    )
    note_news(writer, tenant, row[0])
    return True


# Asked for


def answer(read: Read, tenant: str, query: FixQuery, clock: Callable[[], float], ways: Ways) -> list[Fix]:
    """The fixes asked for: of one failure and those like it, or of a tool, or all."""
    if query.fingerprint and query.tool is not None:
        return _of_failure(read, tenant, query, clock, ways)
    where, values = ("AND tool = ?", (query.tool,)) if query.tool is not None else ("", ())
    rows = read(f"SELECT pattern, body FROM fixes WHERE tenant = ? {where} ORDER BY last DESC LIMIT 5000",
                (tenant, *values))  # fmt: skip
    together: dict[str, list[Tally]] = {}
    for pattern, body in rows:
        together.setdefault(pattern, []).append(decode(body, Tally))
    groups = [(1.0, _without(read, tenant, tallies, query.without)) for tallies in together.values()]
    if not any(tallies for _, tallies in groups):
        return []
    return recipes.answered(groups, query, known_of(read, tenant, query))


def _of_failure(read: Read, tenant: str, query: FixQuery, clock: Callable[[], float], ways: Ways) -> list[Fix]:
    """What helps against one failure, in as few statements as that takes: each is a way to the database and back."""
    began = clock()

    def is_time() -> bool:
        return not query.within or clock() - began < query.within

    tool = query.tool or ""
    rows = _beside(read, tenant, query, _OWN + _STAMP,
                   (tenant, id_of(tool, query.fingerprint or ""), TALLIES, tenant, tool))  # fmt: skip
    latest_first = sorted((row for row in rows if row[0] == "fix"), key=itemgetter(3), reverse=True)
    own = _without(read, tenant, [Brief.of(row[5]) for row in latest_first], query.without)
    groups = [(1.0, own)]
    if query.text and not own:
        stamp = next((row[3] for row in rows if row[0] == "stamp"), None)
        alike = ways.near(read, tenant, tool, query.text, stamp) if stamp is not None else []
        if alike and is_time():
            groups += _alike(read, tenant, alike, query, ways)
    if any(tallies for _, tallies in groups):
        return recipes.answered(groups, query, _known(read, tenant, query, rows, ways.samples, ways.latest))
    if not query.shape or not is_time():
        return []
    return exemplars.drawn(query, _worked(read, tenant, query, ways.latest))


def _alike(
    read: Read, tenant: str, near: Sequence[tuple[float, str]], query: FixQuery, ways: Ways
) -> list[tuple[float, list[Row]]]:
    """The fixes of the most alike patterns of the failure's kind, as far as theirs is known."""
    of_pattern: dict[str, list[tuple[int, bytes]]] = {}
    for pattern, last, body in ways.fixes(read, tenant, [pattern for _, pattern in near], query.kind):
        of_pattern.setdefault(pattern, []).append((last, body))
    found = []
    for likeness, pattern in near:
        if rows := of_pattern.get(pattern):
            rows.sort(key=itemgetter(0), reverse=True)
            found.append((likeness, _without(read, tenant, [Brief.of(body) for _, body in rows], query.without)))
    return found


def known_of(read: Read, tenant: str, query: FixQuery) -> recipes.Known:
    """What is known beside the tallies."""
    return _known(read, tenant, query, _beside(read, tenant, query), samples, latest)


def _beside(read: Read, tenant: str, query: FixQuery, more: str = "", values: tuple[Any, ...] = ()) -> list[Any]:
    """The rows of it, and with them those of another question."""
    where, tool = (" AND key = ?", (query.tool,)) if query.tool is not None else ("", ())
    return read(_KNOWN + where + more, (tenant, tenant, tenant, tenant, schemas.KIND, *tool, *values))


def _revoked_in(rows: Iterable[Any]) -> list[Revocation]:
    return [voting.revocation(row[1:5]) for row in rows if row[0] == "revoked"]


def _known(
    read: Read,
    tenant: str,
    query: FixQuery,
    rows: Sequence[Any],
    votes_of: Callable[..., list[Any]],
    latest_of: Callable[..., Iterator[Latest]],
) -> recipes.Known:
    def samples(ids: Sequence[str]) -> dict[str, list[tuple[int, Any]]]:
        found: dict[str, list[tuple[int, Any]]] = {}
        some = votes_of(read, tenant, list(dict.fromkeys(ids)), query.without)
        for fix, at, _, body in sorted(some, key=itemgetter(1, 2), reverse=True):
            found.setdefault(fix, []).append((at, msgspec.json.decode(body)))
        return found

    def fresh(tally: Tally, since: int) -> Tally:
        return tally.anew(votes(read, tenant, tally.id, since, query.without, FRESH))

    principals = {row[1]: row[3] for row in rows if row[0] == "principal"}
    revoked = _revoked_in(rows)
    verdicts = {row[1]: decode(row[5], Verdict) for row in rows if row[0] == "verdict"}
    since = schemas.since([(row[1], row[5]) for row in rows if row[0] == "schema"], query)

    def profile(tool: str, key: str) -> Profile:
        return build_profile(successful_arguments(read, tenant, tool, key, query.without, latest_of))

    def items(tool: str, key: str) -> frozenset[str]:
        rows = read(
            "SELECT value FROM shelf WHERE tenant = ? AND kind = ? AND key = ?", (tenant, ITEMS_KIND, key or tool)
        )
        return parse_items(rows[0][0]) if rows else frozenset()

    crowd = fixes.crowd(principals, revoked, query.now)
    return recipes.Known(crowd, verdicts, samples, since, fresh, profile, items)


MAX_PROFILED_CALLS = 64
"""Successful calls of a tool of which its profile is made, the latest."""


def successful_arguments(
    read: Read, tenant: str, tool: str, key: str, without: str, latest_of: Callable[..., Iterator[Latest]]
) -> list[tuple[int, Any]]:
    """Return the arguments of the latest successful calls of a tool but those of one run, each with its run's start."""
    calls: list[tuple[int, Any]] = []
    for run in latest_of(read, tenant, tool):
        if run.last is None or len(calls) >= MAX_PROFILED_CALLS:
            break
        if run.run == without:
            continue
        for _, body in run.worked(run.last - exemplars.SCANNED):
            call = bodies.read(body, exemplars.Given)
            if not key or call.key in (None, key):
                calls.append((run.started, call.arguments))
    return calls[:MAX_PROFILED_CALLS]


# What a database may do in its own way


class Ways(msgspec.Struct, frozen=True):
    """How a store finds what it takes to answer about a failure: as here, or as its own database does it best."""

    near: Callable[[Read, str, str, str, int], list[tuple[float, str]]]
    """Patterns of a tool that have a fix and are like a text, the most alike first. The last one given is the stamp of
    those that are kept.
    """
    latest: Callable[[Read, str, str], Iterator[Latest]]
    fixes: Callable[[Read, str, Sequence[str], str], list[Any]]
    samples: Callable[[Read, str, Sequence[str], str], list[Any]]


def fixes_of(read: Read, tenant: str, patterns: Sequence[str], kind: str) -> list[Any]:
    """The fixes of the first few of these patterns that have any and are of this kind, as far as theirs is known: each
    with its pattern and when it was last tried.
    """
    having = {pattern for (pattern,) in read(_CHOSEN, (encode(patterns).decode(), tenant, kind, kind, tenant))}
    chosen = [pattern for pattern in patterns if pattern in having][: recipes.ALIKE]
    return _together(read, FIXES, [(tenant, pattern, TALLIES) for pattern in chosen])


def samples(read: Read, tenant: str, ids: Sequence[str], without: str) -> list[Any]:
    """Of each of these fixes the latest votes that tell what was called, but those of this run: with the fix, when, in
    which run.
    """
    found: list[Any] = []
    for start in range(0, len(ids), TOGETHER):
        asked = [(tenant, fix, without, recipes.EACH) for fix in ids[start : start + TOGETHER]]
        found += _together(read, VOTES, asked)
    return found


def _together(read: Read, sql: str, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The same question of several, by one statement."""
    if len(asked) < 2:
        return [row for values in asked for row in read(sql, values)]
    parts = (f"SELECT * FROM ({sql}) AS part_{place}" for place in range(len(asked)))
    return read(" UNION ALL ".join(parts), [value for values in asked for value in values])


class Latest(msgspec.Struct, frozen=True):
    """A run that used a tool."""

    run: str
    started: int
    last: int | None
    """Its last step."""
    worked: Callable[[int], list[Any]]
    """Its latest calls of the tool that worked, after this step: each with its number and its body."""


def latest(read: Read, tenant: str, tool: str) -> Iterator[Latest]:
    """The latest runs that used a tool and were not revoked, looked at one by one."""
    runs = read(
        "SELECT u.run, u.started, (SELECT max(seq) FROM steps s WHERE s.tenant = u.tenant "
        "AND s.run = u.run) FROM used u JOIN runs r ON r.tenant = u.tenant AND r.id = u.run "
        f"WHERE u.tenant = ? AND u.sort = 'tool' AND u.name = ? AND {UNREVOKED} "
        "ORDER BY u.started DESC, u.run DESC LIMIT ?",
        (tenant, tool, exemplars.MOST),
    )
    for run, started, last in runs:

        def worked(after: int, run: str = run) -> list[Any]:
            return read(
                "SELECT seq, body FROM steps WHERE tenant = ? AND run = ? AND seq > ? AND name = ? "
                "AND outcome = 'success' AND length(body) < ? ORDER BY seq DESC LIMIT ?",
                (tenant, run, after, tool, exemplars.LARGEST, exemplars.MOST),
            )

        yield Latest(run, started, last, worked)


def _worked(read: Read, tenant: str, query: FixQuery, latest: Callable[..., Iterator[Latest]]) -> list[Shape]:
    """The latest calls of a tool that worked. A long run is looked at from its end, so that it takes no longer."""
    found: list[Shape] = []
    left = exemplars.SCANNED
    for each_run in latest(read, tenant, query.tool):
        last = each_run.last
        if each_run.run == query.without:
            continue
        if left <= 0 or len(found) >= exemplars.MOST or last is None:
            break
        rows = each_run.worked(last - left)
        left -= last
        found += [shape_of(bodies.read(body, exemplars.Given).arguments) for _, body in rows]
    return exemplars.capped(found)


def _without(read: Read, tenant: str, tallies: Sequence[Row], run: str) -> list[Row]:
    """The same as if this run had not been."""
    if not run or not tallies:
        return list(tallies)
    own = {fix for (fix,) in read("SELECT DISTINCT fix FROM votes WHERE tenant = ? AND run = ?", (tenant, run))}
    left = [
        whole(tally).anew(votes(read, tenant, tally.id, without=run)) if tally.id in own else tally for tally in tallies
    ]
    return [tally for tally in left if tally.tried]


def evidence(read: Read, tenant: str, fix: str, limit: int) -> list[Evidence]:
    rows = read(
        "SELECT run, principal, agent, at, worked, automatic FROM votes WHERE tenant = ? AND fix = ? "
        "ORDER BY at DESC, run, tried LIMIT ?",
        (tenant, fix, limit),
    )
    return [
        Evidence(run=run, principal=who, agent=agent, at=at, worked=bool(worked), automatic=automatic == 1)
        for run, who, agent, at, worked, automatic in rows
    ]
