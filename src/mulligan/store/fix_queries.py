"""Database queries for precedents and fixes, operator decisions, revocations and reported votes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from mulligan.contract.store import (
    IMPORT_PREFIX,
    ITEMS_KIND,
    SCHEMA_KIND,
    ArgumentTypes,
    FixQuery,
    RecallQuery,
    Revocation,
    RevokeResult,
    TrialReport,
    argument_types,
    parse_items,
    schema_change_times,
    schema_changed_at,
)
from mulligan.core import calls as core_calls
from mulligan.core.records import Fix, Link, Precedent, Run, Step, ValueProfile, decode, encode, pattern_id
from mulligan.core.run_links import judge_calls
from mulligan.learn import fixes, prerequisites, profiles
from mulligan.learn.fixes import FixRecord, OperatorDecision, Trial, Vote
from mulligan.learn.prerequisites import FixSummary, Row, load_record
from mulligan.learn.profiles import build_profile
from mulligan.learn.telling import Profile
from mulligan.learn.working_calls import PastFailure
from mulligan.store import fix_votes
from mulligan.store.connection import Connection, RowReader, upsert
from mulligan.store.fix_votes import REPORTED, VOTE, RunTrials, mark_for_consolidation, recount_fix, vote_row, votes
from mulligan.store.pattern_counts import id_of
from mulligan.store.rows import BEFORE_FIRST_CALL, decode_body, decode_step, decompress

MAX_FIXES_PER_PATTERN = 64
"""Fixes that are read per pattern, last tried first."""
_UPSERT_DECISION_SQL = upsert("fix_decisions", "tenant id", "body")
# A statement costs about as much as the tables it names: Citus plans each of them twice, every time.
_DECISIONS_SQL = "SELECT 'decision', id, NULL, body FROM fix_decisions WHERE tenant = ?1"
_FAILURE_SQL = (
    "SELECT 'fix', NULL, last_tried_at, body FROM (SELECT last_tried_at, body FROM fixes WHERE tenant = ?1 "
    "AND pattern = ?2 ORDER BY last_tried_at DESC LIMIT ?3) AS own "
    "UNION ALL SELECT 'stamp', NULL, stamp, NULL FROM tool_sketches WHERE tenant = ?1 AND tool = ?4 "
    f"UNION ALL {_DECISIONS_SQL}"
)
"""The fixes of a pattern, the stamp of the sketches of its tool, and the decisions about fixes."""
_SCHEMAS_SQL = "SELECT 'schema', key, NULL, NULL, NULL, value FROM key_values WHERE tenant = ?1 AND kind = ?2"
_WRITERS_SQL = (
    " UNION ALL SELECT 'revoked', principal, tool, since, until, NULL FROM revocations WHERE tenant = ?1 "
    "UNION ALL SELECT 'principal', principal, NULL, last_seen_at, NULL, NULL FROM principals WHERE tenant = ?1"
)
PATTERN_FIXES_SQL = (
    "SELECT last_tried_at, body FROM fixes WHERE tenant = ?2 AND pattern = ?1 ORDER BY last_tried_at DESC LIMIT ?3"
)
"""Fixes of one pattern, last tried first."""
KIND_FIXES_SQL = (
    "SELECT last_tried_at, body FROM fixes WHERE tenant = ?2 AND pattern = ?1 AND NOT EXISTS (SELECT 1 FROM patterns p "
    "WHERE p.tenant = ?2 AND p.id = ?1 AND p.kind <> ?4) ORDER BY last_tried_at DESC LIMIT ?3"
)
"""The same if the pattern is of this kind. A pattern that is not stored is of every kind."""
VOTES_SQL = (
    "SELECT at, run, body FROM votes WHERE tenant = ?2 AND fix = ?1 AND successful = 1 AND body IS NOT NULL "
    "AND run <> ?3 ORDER BY at DESC, run DESC LIMIT ?4"
)
"""Latest successful votes for one fix with stored prerequisite calls, without those of one run."""
SUCCESSES_SQL = (
    "SELECT seq, body FROM (SELECT seq, "
    "CASE WHEN name = ?4 AND outcome = 'success' AND length(body) < ?5 THEN body END AS body "
    "FROM steps WHERE tenant = ?2 AND run = ?1 ORDER BY seq DESC LIMIT ?3) AS latest WHERE body IS NOT NULL LIMIT ?6"
)
"""Successful calls of a tool among the latest steps of one run, latest first.

The outer query keeps the order of the inner one. With an order of its own, SQLite would read all of these steps.
"""
_LATEST_RUNS_SQL = (
    "SELECT u.run, u.started_at, coalesce((SELECT r.stored_at FROM runs r WHERE r.tenant = ?1 AND r.id = u.run), 0), "
    "(SELECT r.agent FROM runs r WHERE r.tenant = ?1 AND r.id = u.run), "
    "EXISTS (SELECT 1 FROM revocations WHERE tenant = ?1) FROM run_callees u "
    "WHERE u.tenant = ?1 AND u.type = 'tool' AND u.name = ?2 ORDER BY u.started_at DESC, u.run DESC LIMIT ?3"
)
"""Latest runs that used a tool, and whether the tenant has revocations. Joins are slower: `runs` has many indexes."""
_UNREVOKED_SQL = (
    "NOT EXISTS (SELECT 1 FROM revocations v WHERE v.tenant = ?1 AND (v.principal IS NULL OR "
    f"(SELECT coalesce(nullif(r.principal, ''), '{fixes.LOCAL_PRINCIPAL}') FROM runs r WHERE r.tenant = ?1 "
    f"AND r.id = u.run) IN (v.principal, '{IMPORT_PREFIX}' || v.principal)) AND (v.tool IS NULL OR v.tool = u.name) "
    "AND (v.since IS NULL OR u.started_at >= v.since) AND (v.until IS NULL OR u.started_at < v.until))"
)
"""Condition: no revocation of tenant ?1 covers run `u.run` for its used tool."""
_LATEST_UNREVOKED_RUNS_SQL = _LATEST_RUNS_SQL.replace(" ORDER BY", f" AND {_UNREVOKED_SQL} ORDER BY")


def find_run_trials(run: Run, steps: Iterable[Step], is_settled: bool = False) -> list[Trial]:
    """Return every trial of a run. Provisional links count once the run has ended or is settled."""
    trials: list[Trial] = []
    is_final = is_settled or run.end_reason is not None
    for before, call, links in judge_calls(steps, run, is_final=is_final):
        trials += fixes.find_trials(before, call, links, run.withdrawn, is_final=is_final)
    return [trial for trial in trials if not (trial.successful and is_goal_missed(run))]


def is_goal_missed(run: Run) -> bool:
    """Return whether a run failed its goal. Successes in it are no votes."""
    return run.end_reason in ("raised", "abandoned")


def store_run_votes(
    writer: Connection, tenant: str, run: Run, steps: Iterable[Step], *, is_settled: bool = False
) -> None:
    """Recompute and store the votes of a run from its current steps."""
    fix_votes.add_votes(writer, tenant, [RunTrials(run, BEFORE_FIRST_CALL, find_run_trials(run, steps, is_settled))])


def update_principal(writer: Connection, tenant: str, principal: str, now: int) -> None:
    """Record the time of a principal's last write."""
    writer.execute(
        "INSERT INTO principals (tenant, principal, last_seen_at) VALUES (?, ?, ?) "
        "ON CONFLICT (tenant, principal) DO UPDATE "
        "SET last_seen_at = excluded.last_seen_at WHERE principals.last_seen_at < excluded.last_seen_at",
        (tenant, principal, now),
    )


# Deletion and revocation


def forget_run(writer: Connection, tenant: str, run: str) -> None:
    """Delete the votes of a run and recount the fixes they counted for."""
    rows = writer.execute("SELECT DISTINCT fix FROM votes WHERE tenant = ? AND run = ?", (tenant, run)).fetchall()
    writer.execute("DELETE FROM votes WHERE tenant = ? AND run = ?", (tenant, run))
    _recount_fixes(writer, tenant, (fix for (fix,) in rows))


def _recount_fixes(writer: Connection, tenant: str, ids: Iterable[str]) -> None:
    """Recount fixes from their remaining votes. Delete the operator decisions about those without any."""
    for id in ids:
        recount_fix(writer, tenant, id)
        writer.execute(
            "DELETE FROM fix_decisions WHERE tenant = ? AND id = ? AND NOT EXISTS "
            "(SELECT 1 FROM fixes f WHERE f.tenant = ? AND f.id = ?)",
            (tenant, id, tenant, id),
        )


def forget_matching_fixes(writer: Connection, tenant: str, should_forget: Callable[[FixRecord, bytes], bool]) -> None:
    """Delete the fixes that `should_forget` selects, with votes and decisions. Fixes can outlive their runs."""
    rows = writer.execute("SELECT id, body FROM fixes WHERE tenant = ?", (tenant,)).fetchall()
    ids = [id for id, body in rows if should_forget(decode(body, FixRecord), body)]
    writer.executemany("DELETE FROM votes WHERE tenant = ? AND fix = ?", [(tenant, id) for id in ids])
    _recount_fixes(writer, tenant, ids)


def revoke(writer: Connection, tenant: str, revocation: Revocation) -> RevokeResult:
    """Store a revocation and delete all votes it covers. Queries then answer as if these never existed."""
    row = (tenant, revocation.principal, revocation.tool, revocation.since, revocation.until)
    writer.execute("INSERT INTO revocations (tenant, principal, tool, since, until) VALUES (?, ?, ?, ?, ?)", row)
    rows = writer.execute(
        "SELECT v.principal, f.tool, coalesce(r.started_at, v.at), v.run, v.failed_call, v.tried_call, v.fix "
        "FROM votes v JOIN fixes f ON f.tenant = v.tenant AND f.id = v.fix "
        "LEFT JOIN runs r ON r.tenant = v.tenant AND r.id = v.run WHERE v.tenant = ?",
        (tenant,),
    ).fetchall()
    revoked_keys = [vote[3:] for vote in rows if fixes.is_revoked(revocation, *vote[:3])]
    writer.executemany(
        "DELETE FROM votes WHERE tenant = ? AND run = ? AND failed_call = ? AND tried_call = ? AND fix = ?",
        [(tenant, *key) for key in revoked_keys],
    )
    if fixes.revokes_principal(revocation):
        writer.execute("DELETE FROM principals WHERE tenant = ? AND principal = ?", (tenant, revocation.principal))
    touched = {key[3] for key in revoked_keys}
    _recount_fixes(writer, tenant, touched)
    return RevokeResult(runs=len({key[0] for key in revoked_keys}), votes=len(revoked_keys), fixes=len(touched))


def add_reported_vote(writer: Connection, tenant: str, fix: str, vote: Vote) -> bool:
    """Add a vote reported from outside this store, unless revoked. Return whether the fix exists."""
    row = writer.execute("SELECT tool FROM fixes WHERE tenant = ? AND id = ?", (tenant, fix)).fetchone()
    if row is None:
        return False
    revocations = fix_votes.revocations(RowReader(writer), tenant)
    if not any(fixes.is_revoked(revocation, vote.principal, row[0], vote.at) for revocation in revocations):
        writer.put(VOTE, [vote_row(tenant, vote.at, REPORTED, fix, vote)])
        recount_fix(writer, tenant, fix)
    return True


def store_decision(writer: Connection, tenant: str, fix: str, approved: bool, at: int) -> bool:
    """Store an operator's decision about a fix. Return whether the fix exists."""
    row = writer.execute("SELECT pattern FROM fixes WHERE tenant = ? AND id = ?", (tenant, fix)).fetchone()
    if row is None:
        return False
    stored = writer.execute("SELECT body FROM fix_decisions WHERE tenant = ? AND id = ?", (tenant, fix)).fetchone()
    earlier_decision = decode(stored[0], OperatorDecision) if stored else OperatorDecision()
    decision = fixes.apply_decision(earlier_decision, approved, at)
    writer.execute(_UPSERT_DECISION_SQL, (tenant, fix, encode(decision)))
    mark_for_consolidation(writer, tenant, row[0])
    return True


# Precedents

_PRECEDENTS_SQL = (
    "SELECT run, body, CAST(count AS BIGINT) FROM (SELECT run, body, NULL AS count FROM links WHERE tenant = ?1 "
    "AND name = ?2 AND fingerprint = ?3 ORDER BY rowid DESC LIMIT ?4) AS latest "
    "UNION ALL SELECT 'runs', NULL, runs FROM patterns WHERE tenant = ?1 AND id = ?5 "
    "UNION ALL SELECT 'revoked', NULL, 1 WHERE EXISTS (SELECT 1 FROM revocations WHERE tenant = ?1) "
    "UNION ALL SELECT 'own', NULL, 1 WHERE EXISTS (SELECT 1 FROM run_failures WHERE tenant = ?1 AND pattern = ?5 "
    "AND started_at = (SELECT started_at FROM runs WHERE tenant = ?1 AND id = ?6) AND run = ?6)"
)
"""Latest links, runs of the pattern, whether revocations exist, and whether the querying run had the pattern."""
METHOD_KEY = b'"method":'
"""The JSON key after the position of a link. It cannot occur inside a text, because quotes are escaped there."""


def find_precedents(read: RowReader, tenant: str, query: RecallQuery) -> list[Precedent]:
    """Return what recovered a failure in earlier runs, with one statement."""
    pattern = pattern_id(query.tool, query.fingerprint)
    # Newest links that are read for one query.
    rows = read(_PRECEDENTS_SQL, (tenant, query.tool, query.fingerprint, 200, pattern, query.run))
    links = [(run, body) for run, body, _ in rows if body is not None]
    if not links:
        return []
    counts = {label: count for label, body, count in rows if body is None}
    pattern_runs, own_runs = counts.get("runs", 0), counts.get("own", 0)
    revocations = fix_votes.revocations(read, tenant) if "revoked" in counts else []
    if revoked := _find_revoked_runs(read, tenant, query.tool, pattern, revocations):
        links = [link for link in links if link[0] not in revoked]
    other_runs = pattern_runs - len(revoked) - (0 if query.run in revoked else own_runs)
    counted_runs = other_runs + any(run == query.run for run, _ in links)
    return core_calls.rank_precedents(group_links(links), counted_runs, max(query.limit, 0))


def group_links(links: Iterable[tuple[str, bytes]]) -> Iterator[tuple[int, Link]]:
    """Yield one link of each shape with the number of runs that had it. Links with equal text are parsed once."""
    links_by_text: dict[bytes, list[tuple[str, bytes]]] = {}
    for run, body in links:
        text = decompress(body)
        links_by_text.setdefault(text.partition(METHOD_KEY)[2] or text, []).append((run, text))
    shapes: dict[object, list[tuple[Link, list[tuple[str, bytes]]]]] = {}
    for same in links_by_text.values():
        link = decode(same[0][1], Link)
        shapes.setdefault(core_calls.precedent_key(link), []).append((link, same))
    for (link, same), *others in shapes.values():
        if others:  # the earliest link represents its shape
            same = [entry for _, entries in others for entry in entries] + same
            link = min(
                (decode(text, Link) for _, text in same), key=lambda candidate: (candidate.run, candidate.failed_call)
            )
        yield len({run for run, _ in same}) if len(same) > 1 else 1, link


def _find_revoked_runs(
    read: RowReader, tenant: str, tool: str, pattern: str, revocations: Sequence[Revocation]
) -> set[str]:
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


MAX_STEPS_TO_RECOVERY = 60
_PAST_FAILURES_SQL = (
    "SELECT s.run, s.seq, s.name, s.started_at, s.body, l.body, l.recovering_call, v.fix, d.body "
    "FROM steps s LEFT JOIN links l ON l.tenant = s.tenant AND l.run = s.run AND l.failed_call = s.call "
    "LEFT JOIN votes v ON v.tenant = s.tenant AND v.run = s.run AND v.tried_call = l.recovering_call "
    "AND v.failed_call = s.call LEFT JOIN fix_decisions d ON d.tenant = v.tenant AND d.id = v.fix "
    "WHERE s.tenant = ? AND s.name = ? AND s.fingerprint = ? AND s.run LIKE ? AND s.run <> ? "
    "ORDER BY s.started_at DESC LIMIT ?"
)


def find_past_failures(read: RowReader, tenant: str, failed: Step, run_suffix: str) -> list[PastFailure]:
    """Return the same failure in other runs whose id ends so, each with what recovered it, the oldest first."""
    assert failed.failure is not None
    fingerprint = failed.failure.fingerprint
    # Newest failed calls that are read for one query.
    rows = read(_PAST_FAILURES_SQL, (tenant, failed.name, fingerprint, f"%{run_suffix}", failed.run, 40))
    revocations = fix_votes.revocations(read, tenant) if rows else []
    revoked_runs = _find_revoked_runs(read, tenant, failed.name, pattern_id(failed.name, fingerprint), revocations)
    past_failures = []
    for run, seq, name, started_at, body, link_body, recovering_call, fix, decision_body in reversed(rows):
        step = decode_step(run, seq, name, started_at, body)
        if step.tool_key != failed.tool_key or run in revoked_runs:
            continue
        link = decode_body(link_body, Link) if link_body is not None else None
        later_rows = read(
            "SELECT seq, name, started_at, body FROM steps WHERE tenant = ? AND run = ? AND seq > ? AND seq <= ? "
            "ORDER BY seq LIMIT ?",
            (tenant, run, seq, recovering_call or seq + MAX_STEPS_TO_RECOVERY, MAX_STEPS_TO_RECOVERY),
        )
        decision = decode(decision_body, OperatorDecision) if decision_body else OperatorDecision()
        past_failures.append(
            PastFailure(
                step,
                link,
                [decode_step(run, *row) for row in later_rows],
                fix or "",
                is_approved=decision.approved > decision.revoked,
                is_revoked=decision.revoked > decision.approved,
            )
        )
    return past_failures


# Fixes

FindSimilar = Callable[[RowReader, str, str, str, int], list[tuple[float, str]]]
"""Find patterns of a tool with a fix and a similar message, most similar first.

Arguments: reader, tenant, tool, message and the stamp of the stored sketches.
"""


def answer_query(
    read: RowReader, tenant: str, query: FixQuery, clock: Callable[[], float], find_similar: FindSimilar
) -> list[Fix]:
    """Return the fixes for one failure and similar ones, for a tool, or all."""
    if query.fingerprint and query.tool is not None:
        return _find_fixes_for_failure(read, tenant, query, clock, find_similar)
    where, values = ("AND tool = ?", (query.tool,)) if query.tool is not None else ("", ())
    rows = read(f"SELECT pattern, body FROM fixes WHERE tenant = ? {where} ORDER BY last_tried_at DESC LIMIT 5000",
                (tenant, *values))  # fmt: skip
    records_by_pattern: dict[str, list[FixRecord]] = {}
    for pattern, body in rows:
        records_by_pattern.setdefault(pattern, []).append(decode(body, FixRecord))
    groups = [(1.0, _exclude_run(read, tenant, records, query.excluded_run)) for records in records_by_pattern.values()]
    if not any(records for _, records in groups):
        return []
    return prerequisites.rank_fixes(groups, query, load_context(read, tenant, query))


def _find_fixes_for_failure(
    read: RowReader, tenant: str, query: FixQuery, clock: Callable[[], float], find_similar: FindSimilar
) -> list[Fix]:
    """Return the fixes for one failure. Uses few statements: each one is a database round trip.

    Order: own pattern, similar patterns, exemplars. `query.timeout_seconds` limits the time for the later ones.
    """
    start_time = clock()

    def has_time() -> bool:
        return not query.timeout_seconds or clock() - start_time < query.timeout_seconds

    tool = query.tool or ""
    pattern = id_of(tool, query.fingerprint or "")
    rows = read(_FAILURE_SQL, (tenant, pattern, MAX_FIXES_PER_PATTERN, tool))
    latest_first = sorted((row for row in rows if row[0] == "fix"), key=itemgetter(2), reverse=True)
    own_records = _exclude_run(read, tenant, [FixSummary.of(row[3]) for row in latest_first], query.excluded_run)
    groups = [(1.0, own_records)]
    if query.text and not own_records:
        stamp = next((row[2] for row in rows if row[0] == "stamp"), None)
        similar_patterns = find_similar(read, tenant, tool, query.text, stamp) if stamp is not None else []
        if similar_patterns and has_time():
            groups += _load_similar_groups(read, tenant, similar_patterns, query)
    if any(records for _, records in groups):
        return prerequisites.rank_fixes(groups, query, _build_context(read, tenant, query, rows))
    if not query.argument_types or not has_time():
        return []
    return profiles.suggest_from_exemplars(query, _load_exemplars(read, tenant, query))


def _load_similar_groups(
    read: RowReader, tenant: str, similar_patterns: Sequence[tuple[float, str]], query: FixQuery
) -> list[tuple[float, list[Row]]]:
    """Load the fix records of the first few similar patterns that have any of the failure's kind."""
    rows_by_pattern: dict[str, list[tuple[int, bytes]]] = {}
    ids = [pattern for _, pattern in similar_patterns]
    sql, kind = (KIND_FIXES_SQL, (query.kind,)) if query.kind else (PATTERN_FIXES_SQL, ())
    for pattern, last, body in read.by_key(sql, ids, (tenant, MAX_FIXES_PER_PATTERN, *kind)):
        rows_by_pattern.setdefault(pattern, []).append((last, body))
    groups = []
    with_fixes = [match for match in similar_patterns if match[1] in rows_by_pattern]
    for similarity, pattern in with_fixes[: prerequisites.MAX_SIMILAR_PATTERNS]:
        latest_first = sorted(rows_by_pattern[pattern], key=itemgetter(0), reverse=True)
        records = [FixSummary.of(body) for _, body in latest_first]
        groups.append((similarity, _exclude_run(read, tenant, records, query.excluded_run)))
    return groups


def load_context(read: RowReader, tenant: str, query: FixQuery) -> prerequisites.FixContext:
    """Load everything besides fix records that an answer needs."""
    return _build_context(read, tenant, query, read(_DECISIONS_SQL, (tenant,)))


def _build_context(read: RowReader, tenant: str, query: FixQuery, rows: Sequence[Any]) -> prerequisites.FixContext:
    """Build the context with the decisions of these rows. All else is read when it is needed."""

    def load_samples(ids: Sequence[str]) -> dict[str, list[tuple[int, Any]]]:
        samples_by_fix: dict[str, list[tuple[int, Any]]] = {}
        values = (tenant, query.excluded_run, prerequisites.MAX_SAMPLES_PER_FIX)
        vote_rows = read.by_key(VOTES_SQL, list(dict.fromkeys(ids)), values)
        for fix, at, _, body in sorted(vote_rows, key=itemgetter(1, 2), reverse=True):
            samples_by_fix.setdefault(fix, []).append((at, msgspec.json.decode(body)))
        return samples_by_fix

    def recount_since(record: FixRecord, since: int) -> FixRecord:
        # Latest votes that are recounted after a schema change of the tool
        return record.recount(votes(read, tenant, record.id, since, query.excluded_run, 500))

    @functools.cache
    def load_promotion_facts() -> prerequisites.PromotionFacts:
        where, tool = (" AND key = ?3", (query.tool,)) if query.tool is not None else ("", ())
        promotion_rows = read(_SCHEMAS_SQL + where + _WRITERS_SQL, (tenant, SCHEMA_KIND, *tool))
        principals = {row[1]: row[3] for row in promotion_rows if row[0] == "principal"}
        revocations = [Revocation(*row[1:5]) for row in promotion_rows if row[0] == "revoked"]
        return prerequisites.PromotionFacts(
            fixes.find_writers(principals, revocations, query.now),
            schema_change_times([(row[1], row[5]) for row in promotion_rows if row[0] == "schema"], query),
        )

    def load_profile(tool: str, key: str) -> Profile:
        """Build the profile of a tool from its latest successful calls."""
        profiled_calls: list[tuple[str, Any]] = []
        for _, agent, calls in _find_successes(read, tenant, tool, query.excluded_run):
            if len(profiled_calls) >= MAX_PROFILED_CALLS:
                break
            profiled_calls += [(agent, call.arguments) for call in calls if not key or call.key in (None, key)]
        return build_profile(profiled_calls[:MAX_PROFILED_CALLS])

    def count_runs(tool: str, fingerprint: str) -> int:
        sql = "SELECT runs FROM patterns WHERE tenant = ? AND id = ?"
        counts = read(sql, (tenant, pattern_id(tool, fingerprint)))
        return int(counts[0][0]) - query.is_about_failure if counts else 0  # the run that asks has not ended

    decisions = {row[1]: decode(row[3], OperatorDecision) for row in rows if row[0] == "decision"}
    return prerequisites.FixContext(
        decisions, load_promotion_facts, load_samples, recount_since, load_profile, count_runs
    )


def _read_entry(read: RowReader, tenant: str, kind: str, key: str) -> bytes | None:
    rows = read("SELECT value FROM key_values WHERE tenant = ? AND kind = ? AND key = ?", (tenant, kind, key))
    return rows[0][0] if rows else None


def find_value_profiles(read: RowReader, tenant: str, tool: str, key: str) -> list[ValueProfile]:
    """Profile the values of a tool's latest successful calls, since its schema last changed."""
    profiled_calls: list[tuple[int, Any]] = []
    changed_at = schema_changed_at(_read_entry(read, tenant, SCHEMA_KIND, tool))
    runs = _find_successes(read, tenant, tool, "", MAX_PROFILED_CALLS)
    for run, (started_at, _, calls) in enumerate(runs):
        if len(profiled_calls) >= MAX_PROFILED_CALLS or started_at < changed_at:
            break
        profiled_calls += [(run, call.arguments) for call in calls if not key or call.key in (None, key)]
    items = parse_items(_read_entry(read, tenant, ITEMS_KIND, key or tool))
    return profiles.build_value_profiles(profiled_calls[:MAX_PROFILED_CALLS], items)


MAX_PROFILED_CALLS = 64
"""Latest successful calls that make up a tool's profile."""
MAX_READ_CALLS = MAX_PROFILED_CALLS + profiles.MAX_EXEMPLARS
"""Successful calls that are read at a time. Usually they are sufficient."""


def _find_successes(
    read: RowReader, tenant: str, tool: str, excluded_run: str, run_limit: int = profiles.MAX_EXEMPLARS
) -> Iterator[tuple[int, str, list[profiles.ExemplarArguments]]]:
    """Yield the latest unrevoked runs with successful calls of a tool: start, agent, and the latest of these calls."""
    runs = read(_LATEST_RUNS_SQL, (tenant, tool, run_limit))
    if any(has_revocations for *_, has_revocations in runs):
        runs = read(_LATEST_UNREVOKED_RUNS_SQL, (tenant, tool, run_limit))
    read.remember_runs(tenant, {run: stored_at for run, _, stored_at, *_ in runs})
    found_runs = {run: (started_at, agent or "") for run, started_at, _, agent, _ in runs if run != excluded_run}
    values = (tenant, profiles.MAX_SCANNED_STEPS, tool, profiles.MAX_BODY_BYTES, profiles.MAX_EXEMPLARS)
    while found_runs:
        rows = read.by_key(SUCCESSES_SQL, list(found_runs), values, MAX_READ_CALLS)
        unread_count = MAX_READ_CALLS
        for run, call_rows in itertools.groupby(rows, itemgetter(0)):
            latest_first = sorted(call_rows, key=itemgetter(1), reverse=True)
            unread_count -= len(latest_first)
            if not unread_count:  # the run may have more of them: it is read again, with those after it
                break
            yield *found_runs.pop(run), [decode_body(body, profiles.ExemplarArguments) for *_, body in latest_first]
        else:
            return


def _load_exemplars(read: RowReader, tenant: str, query: FixQuery) -> list[ArgumentTypes]:
    """Return the argument types of a tool's latest successful calls."""
    shapes: list[ArgumentTypes] = []
    for *_, calls in _find_successes(read, tenant, query.tool or "", query.excluded_run):
        if len(shapes) >= profiles.MAX_EXEMPLARS:
            break
        shapes += [argument_types(call.arguments) for call in calls]
    return profiles.sample_by_shape(shapes)


def _exclude_run(read: RowReader, tenant: str, records: Sequence[Row], run: str) -> list[Row]:
    """Return the records recounted without the votes of one run."""
    if not run or not records:
        return list(records)
    touched_fixes = {
        fix for (fix,) in read("SELECT DISTINCT fix FROM votes WHERE tenant = ? AND run = ?", (tenant, run))
    }
    recounted_records = [
        load_record(record).recount(votes(read, tenant, record.id, without=run))
        if record.id in touched_fixes
        else record
        for record in records
    ]
    return [record for record in recounted_records if record.trials]


def find_trial_reports(read: RowReader, tenant: str, fix: str, limit: int) -> list[TrialReport]:
    """Return the stored trials of a fix, newest first."""
    rows = read(
        "SELECT run, principal, agent, at, successful, automatic FROM votes WHERE tenant = ? AND fix = ? "
        "ORDER BY at DESC, run, tried_call LIMIT ?",
        (tenant, fix, limit),
    )
    return [
        TrialReport(run, principal, agent, at, bool(successful), automatic == 1)
        for run, principal, agent, at, successful, automatic in rows
    ]
