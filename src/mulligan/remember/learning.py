"""Database queries for fixes, operator decisions, revocations and reported votes."""

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
"""Fixes that are read per pattern, last tried first."""
FRESH = 500
"""Latest votes that are recounted after a schema change of the tool."""
TOGETHER = 30
"""Fixes whose votes one statement reads."""

Read = voting.Read
_VERDICT = upsert("verdicts", "tenant id", "body")
_KNOWN = (
    "SELECT 'verdict', id, NULL, NULL, NULL, body FROM verdicts WHERE tenant = ? "
    "UNION ALL SELECT 'revoked', principal, tool, since, until, NULL FROM revocations WHERE tenant = ? "
    "UNION ALL SELECT 'principal', principal, NULL, last, NULL, NULL FROM principals WHERE tenant = ? "
    "UNION ALL SELECT 'schema', key, NULL, NULL, NULL, value FROM shelf WHERE tenant = ? AND kind = ?"
)
"""All that an answer needs besides fix records: decisions, revocations, principals and schemas, in one statement."""
FIXES = "SELECT pattern, last, body FROM fixes WHERE tenant = ? AND pattern = ? ORDER BY last DESC LIMIT ?"
"""Fixes of one pattern, last tried first."""
_OWN = f" UNION ALL SELECT 'fix', NULL, NULL, last, NULL, body FROM ({FIXES}) AS own"
_STAMP = " UNION ALL SELECT 'stamp', NULL, NULL, stamp, NULL, NULL FROM sketches WHERE tenant = ? AND tool = ?"
_CHOSEN = (
    "SELECT i.value FROM json_each(?) i WHERE NOT EXISTS (SELECT 1 FROM patterns p WHERE p.tenant = ? "
    "AND p.id = i.value AND p.kind <> ? AND ? <> '') AND EXISTS (SELECT 1 FROM fixes f WHERE f.tenant = ? "
    "AND f.pattern = i.value)"
)
"""The patterns of a list that have a fix and are of the given kind, if any."""
VOTES = (
    "SELECT fix, at, run, body FROM votes WHERE tenant = ? AND fix = ? AND worked = 1 AND body IS NOT NULL "
    "AND run <> ? ORDER BY at DESC, run DESC LIMIT ?"
)
"""Latest successful votes for one fix with stored prerequisite calls, without those of one run."""
UNREVOKED = (
    "NOT EXISTS (SELECT 1 FROM revocations v WHERE v.tenant = u.tenant "
    f"AND (v.principal IS NULL OR v.principal = coalesce(nullif(r.principal, ''), '{fixes.OWN}')) "
    "AND (v.tool IS NULL OR v.tool = u.name) AND (v.since IS NULL OR r.started >= v.since) "
    "AND (v.until IS NULL OR r.started < v.until))"
)
"""Condition: no revocation covers run `r` for its used tool `u`."""


def trials_of(run: Run, steps: Iterable[Step], is_settled: bool = False) -> list[Trial]:
    """Return every trial of a run. Provisional links count once the run has ended or is settled."""
    trials: list[Trial] = []
    is_final = is_settled or run.end is not None
    for before, call, found in judge_calls(steps, run, is_final=is_final):
        trials += fixes.find_trials(before, call, found)
    return [trial for trial in trials if not (trial.worked and is_goal_missed(run))]


def is_goal_missed(run: Run) -> bool:
    """Return whether a run failed its goal. Successes in it are no votes."""
    return run.end in ("raised", "abandoned")


def relearn(writer: Connection, tenant: str, run: Run, steps: Iterable[Step], *, is_settled: bool = False) -> None:
    """Recompute and store the votes of a run from its current steps."""
    voting.add(writer, tenant, [News(run, FIRST, trials_of(run, steps, is_settled))])


def note_principal(writer: Connection, tenant: str, principal: str, now: int) -> None:
    """Record the time of a principal's last write."""
    writer.execute(
        "INSERT INTO principals (tenant, principal, last) VALUES (?, ?, ?) ON CONFLICT (tenant, principal) DO UPDATE "
        "SET last = excluded.last WHERE principals.last < excluded.last",
        (tenant, principal, now),
    )


# Deletion and revocation


def forget_run(writer: Connection, tenant: str, run: str) -> None:
    """Delete the votes of a run and recount the fixes they counted for."""
    touched = writer.execute("SELECT DISTINCT fix FROM votes WHERE tenant = ? AND run = ?", (tenant, run)).fetchall()
    writer.execute("DELETE FROM votes WHERE tenant = ? AND run = ?", (tenant, run))
    for (fix,) in touched:
        refresh(writer, tenant, fix)
        _forget_verdict(writer, tenant, fix)


def _forget_verdict(writer: Connection, tenant: str, fix: str) -> None:
    """Delete the operator decision about a fix that no longer exists."""
    if writer.execute("SELECT 1 FROM fixes WHERE tenant = ? AND id = ?", (tenant, fix)).fetchone() is None:
        writer.execute("DELETE FROM verdicts WHERE tenant = ? AND id = ?", (tenant, fix))


def forget_where(writer: Connection, tenant: str, is_gone: Callable[[Tally, bytes], bool]) -> None:
    """Delete the fixes that `should_forget` selects, with votes and decisions. Fixes can outlive their runs."""
    rows = writer.execute("SELECT id, body FROM fixes WHERE tenant = ?", (tenant,)).fetchall()
    for id, body in rows:
        if is_gone(decode(body, Tally), body):
            writer.execute("DELETE FROM votes WHERE tenant = ? AND fix = ?", (tenant, id))
            writer.execute("DELETE FROM verdicts WHERE tenant = ? AND id = ?", (tenant, id))
            refresh(writer, tenant, id)


def revoke(writer: Connection, tenant: str, what: Revocation) -> Revoked:
    """Store a revocation and delete all votes it covers. Queries then answer as if these never existed."""
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
    """Add a vote reported from outside this store, unless revoked. Return whether the fix exists."""
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
    """Store an operator's decision about a fix. Return whether the fix exists."""
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


# Queries


def answer(read: Read, tenant: str, query: FixQuery, clock: Callable[[], float], ways: Ways) -> list[Fix]:
    """Return the fixes for one failure and similar ones, for a tool, or all."""
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
    """Return the fixes for one failure. Uses few statements: each one is a database round trip.

    Order: own pattern, similar patterns, exemplars. `query.timeout_seconds` limits the time for the later ones.
    """
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
    """Load the fix records of similar patterns of the failure's kind, each group with its similarity."""
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
    """Load everything besides fix records that an answer needs."""
    return _known(read, tenant, query, _beside(read, tenant, query), samples, latest)


def _beside(read: Read, tenant: str, query: FixQuery, more: str = "", values: tuple[Any, ...] = ()) -> list[Any]:
    """Read the context rows, together with those of a further statement, in one round trip."""
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
"""Latest successful calls that make up a tool's profile."""


def successful_arguments(
    read: Read, tenant: str, tool: str, key: str, without: str, latest_of: Callable[..., Iterator[Latest]]
) -> list[tuple[int, Any]]:
    """Return the arguments of a tool's latest successful calls, with their run's start. Skip `excluded_run`."""
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


# Lookups that a database can replace by its own


class Ways(msgspec.Struct, frozen=True):
    """Lookups for a fix query: the portable ones of this module, or faster ones of a specific database."""

    near: Callable[[Read, str, str, str, int], list[tuple[float, str]]]
    """Find patterns of a tool with a fix and a similar message, most similar first.

    Arguments: read function, tenant, tool, message and the stamp of the stored sketches.
    """
    latest: Callable[[Read, str, str], Iterator[Latest]]
    fixes: Callable[[Read, str, Sequence[str], str], list[Any]]
    samples: Callable[[Read, str, Sequence[str], str], list[Any]]


def fixes_of(read: Read, tenant: str, patterns: Sequence[str], kind: str) -> list[Any]:
    """Return the fixes of the first few patterns that have one and match the kind.

    Each row is (pattern, last_tried_at, body). A pattern that is not stored matches every kind.
    """
    having = {pattern for (pattern,) in read(_CHOSEN, (encode(patterns).decode(), tenant, kind, kind, tenant))}
    chosen = [pattern for pattern in patterns if pattern in having][: recipes.ALIKE]
    return _together(read, FIXES, [(tenant, pattern, TALLIES) for pattern in chosen])


def samples(read: Read, tenant: str, ids: Sequence[str], without: str) -> list[Any]:
    """Return the latest successful votes of each fix that have prerequisite calls, without those of one run.

    Each row is (fix, at, run, body).
    """
    found: list[Any] = []
    for start in range(0, len(ids), TOGETHER):
        asked = [(tenant, fix, without, recipes.EACH) for fix in ids[start : start + TOGETHER]]
        found += _together(read, VOTES, asked)
    return found


def _together(read: Read, sql: str, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run a query for several parameter sets as one UNION ALL statement."""
    if len(asked) < 2:
        return [row for values in asked for row in read(sql, values)]
    parts = (f"SELECT * FROM ({sql}) AS part_{place}" for place in range(len(asked)))
    return read(" UNION ALL ".join(parts), [value for values in asked for value in values])


class Latest(msgspec.Struct, frozen=True):
    """Recent run that used a tool."""

    run: str
    started: int
    last: int | None
    """Number of its last step; None without steps."""
    worked: Callable[[int], list[Any]]
    """Read the latest successful calls of the tool after a step, as (seq, body)."""


def latest(read: Read, tenant: str, tool: str) -> Iterator[Latest]:
    """Yield the latest runs that used a tool and are not revoked. Steps are read on demand."""
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
    """Return the argument types of a tool's latest successful calls.

    A long run is read from its end, so that the cost stays bounded.
    """
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
    """Return the records recounted without the votes of one run."""
    if not run or not tallies:
        return list(tallies)
    own = {fix for (fix,) in read("SELECT DISTINCT fix FROM votes WHERE tenant = ? AND run = ?", (tenant, run))}
    left = [
        whole(tally).anew(votes(read, tenant, tally.id, without=run)) if tally.id in own else tally for tally in tallies
    ]
    return [tally for tally in left if tally.tried]


def evidence(read: Read, tenant: str, fix: str, limit: int) -> list[Evidence]:
    """Return the stored trials of a fix, newest first."""
    rows = read(
        "SELECT run, principal, agent, at, worked, automatic FROM votes WHERE tenant = ? AND fix = ? "
        "ORDER BY at DESC, run, tried LIMIT ?",
        (tenant, fix, limit),
    )
    return [
        Evidence(run=run, principal=who, agent=agent, at=at, worked=bool(worked), automatic=automatic == 1)
        for run, who, agent, at, worked, automatic in rows
    ]
