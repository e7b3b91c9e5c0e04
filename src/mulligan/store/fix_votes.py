"""Votes for fixes: stored batch by batch, with one lookup per table, and counted into fix records.

Also the similarity index: the sketches of a tool's patterns that have a fix, packed into one row and cached per
process. Reading one row per pattern takes far longer than comparing the patterns. The row's stamp (a checksum) tells a
process whether its cached copy is current.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from mulligan.contract.store import Revocation
from mulligan.core.calls import wilson_lower_bound
from mulligan.core.records import Run, decode, encode
from mulligan.learn import fixes, patterns
from mulligan.learn.fixes import FixRecord, Trial, TrialDetails, Vote
from mulligan.store.connection import Connection, Insert, Lookup, RowReader
from mulligan.store.pattern_counts import id_of
from mulligan.store.rows import BEFORE_FIRST_CALL

MAX_PATTERNS_PER_TOOL = 1024
"""Patterns per tool that a new failure is compared with; comparing this many takes 0.3 ms.

The packed row is 150 KB at this limit. It is rewritten whenever a further pattern of the tool gets its first fix.
"""
MAX_CACHED_PATTERNS = 50_000
"""Cached patterns of all tools per process: about 12 MB at this limit."""
REPORTED = -1
"""Replaces the failed call in a vote that was reported from outside."""

Read = Callable[..., list[Any]]
VOTE = Insert.or_update(
    "votes",
    "tenant run tried_call failed_call fix",
    "successful at day principal agent automatic body content old_value other_values details",
)
_FIX_INSERT = Insert.or_update("fixes", "tenant id", "tool pattern last_tried_at body")
_FIXED_INSERT = Insert.of("pattern_sketches", "tenant tool pattern sketch text")
_PENDING_INSERT = Insert.of("pending_patterns", "tenant pattern")
_OF_RUN = Lookup.of("votes", "tenant run tried_call>=", "tried_call failed_call fix principal successful at")
_OF_FIX = Lookup.of("votes", "tenant run fix", "principal successful at")
_RUN_LOOKUP = Lookup.of("runs", "tenant id", "principal stored_at")
_SKETCHES_INSERT = Insert.or_update("tool_sketches", "tenant tool", "stamp body")
_FIX_LOOKUP = Lookup.of("fixes", "tenant id", "body")
_FIXED_LOOKUP = Lookup.of("pattern_sketches", "tenant tool pattern", "pattern")
_TEMPLATE_LOOKUP = Lookup.of("patterns", "tenant id", "template")


class _StoredVote(NamedTuple):
    tried_call: int
    failed_call: int
    fix: str
    principal: str
    successful: bool
    at: int


class RunTrials(msgspec.Struct, frozen=True):
    """All trials of fixes in one run, from this call on."""

    run: Run
    start: int
    trials: list[Trial]
    stored_at: int = 0


def add_votes(writer: Connection, tenant: str, batch: Sequence[RunTrials], principal: str = "") -> None:
    """Replace the votes of some runs, from their first changed call on.

    Without `principal`, the author of each run and the time when it was stored are read.
    """
    votes_by_run = _load_votes(writer, tenant, batch)
    stored_votes = {
        run: {(vote.failed_call, vote.tried_call): vote for vote in votes if vote.failed_call != REPORTED}
        for run, votes in votes_by_run.items()
    }
    changed_runs = [run_trials for run_trials in batch if run_trials.trials or stored_votes[run_trials.run.id]]
    if not changed_runs:
        return
    revoked = revocations(RowReader(writer), tenant)
    authors_and_times = {run_trials.run.id: (principal, run_trials.stored_at) for run_trials in changed_runs}
    if not principal:
        rows = writer.look_up(_RUN_LOOKUP, [(tenant, run) for run in authors_and_times])
        authors_and_times = {run: (author or fixes.LOCAL_PRINCIPAL, stored_at) for _, run, author, stored_at in rows}
    stale: list[tuple[str, str, int, int]] = []
    uncertain: set[str] = set()
    new_votes: list[tuple[Trial, Vote]] = []
    for run_trials in changed_runs:
        run = run_trials.run
        author, stored_at = authors_and_times[run.id]
        current_trials = {
            (trial.failed_call, trial.tried_call): trial
            for trial in run_trials.trials
            if not any(fixes.is_revoked(rule, author, trial.step.name, run.started_at) for rule in revoked)
        }
        run_votes = stored_votes[run.id]
        same = {
            key
            for key, vote in run_votes.items()
            if (trial := current_trials.get(key)) is not None
            and (trial.fix, trial.successful, trial.at) == (vote.fix, vote.successful, vote.at)
        }
        stale += [(tenant, run.id, *key) for key in run_votes if key not in same]
        uncertain |= {vote.fix for key, vote in run_votes.items() if key not in same}
        new_votes += [
            (trial, Vote.from_trial(run, author, stored_at, trial))
            for key, trial in current_trials.items()
            if key not in same
        ]
    writer.executemany("DELETE FROM votes WHERE tenant = ? AND run = ? AND failed_call = ? AND tried_call = ?", stale)
    for fix in uncertain:
        recount_fix(writer, tenant, fix)
    if new_votes:
        stale_keys = {key[1:] for key in stale}
        kept_votes = {
            run: [vote for vote in votes_by_run[run] if (run, vote.failed_call, vote.tried_call) not in stale_keys]
            for run in (run_trials.run.id for run_trials in changed_runs if run_trials.start == BEFORE_FIRST_CALL)
        }
        _count_votes(writer, tenant, new_votes, kept_votes)


def _load_votes(writer: Connection, tenant: str, batch: Sequence[RunTrials]) -> dict[str, list[_StoredVote]]:
    """Return the stored votes of these calls, and those reported from outside, by run."""
    votes_by_run: dict[str, list[_StoredVote]] = {run_trials.run.id: [] for run_trials in batch}
    keys = [(tenant, run_trials.run.id, run_trials.start) for run_trials in batch]
    for _, run, _, tried_call, failed_call, fix, principal, is_success, at in writer.look_up(_OF_RUN, keys):
        vote = _StoredVote(tried_call, failed_call, fix, principal, bool(is_success), at)
        votes_by_run[run].append(vote)
    return votes_by_run


def _count_votes(
    writer: Connection,
    tenant: str,
    new_votes: Sequence[tuple[Trial, Vote]],
    stored_votes: Mapping[str, Sequence[_StoredVote]],
) -> None:
    """Store votes and count each for its fix. `stored_votes` has all earlier votes of some of the runs."""
    earlier: dict[tuple[str, str, str], tuple[bool, int]] = {}

    def note(fix: str, run: str, author: str, is_success: bool, at: int) -> None:
        before = earlier.get((fix, run, author), (is_success, at))
        earlier[fix, run, author] = min(before[0], is_success), min(before[1], at)

    for run, run_votes in stored_votes.items():
        for stored_vote in run_votes:
            note(stored_vote.fix, run, stored_vote.principal, stored_vote.successful, stored_vote.at)
    vote_keys = {(tenant, vote.run, trial.fix) for trial, vote in new_votes if vote.run not in stored_votes}
    for _, run, fix, author, is_success, at in writer.look_up(_OF_FIX, list(vote_keys)):
        note(fix, run, author, bool(is_success), at)
    fix_keys = [(tenant, fix) for fix in {trial.fix for trial, _ in new_votes}]
    tallies = {id: decode(body, FixRecord) for _, id, body in writer.look_up(_FIX_LOOKUP, fix_keys)}
    before = {id: _weight(tally) for id, tally in tallies.items()}
    new: dict[str, Trial] = {}
    changed_fixes: set[str] = set()
    uncertain: set[str] = set()
    for trial, vote in new_votes:
        fix = trial.fix
        earlier_vote = earlier.get((fix, vote.run, vote.principal))
        note(fix, vote.run, vote.principal, vote.successful, vote.at)
        if earlier_vote is not None:
            # Each run has one vote: its first failure, else its first success.
            if earlier_vote[0] != vote.successful or vote.at < earlier_vote[1]:
                uncertain.add(fix)
            elif vote.successful:
                tallies[fix].add_further_values(msgspec.structs.replace(vote, at=earlier_vote[1]))
                changed_fixes.add(fix)
            continue
        if fix not in tallies:
            tallies[fix], new[fix] = FixRecord.from_trial(trial), trial
            before[fix] = _weight(tallies[fix])
        tallies[fix].add(vote)
        changed_fixes.add(fix)
    writer.queue(
        VOTE,
        [vote_row(tenant, trial.tried_call, trial.failed_call, trial.fix, vote, trial) for trial, vote in new_votes],
    )
    if new:
        _note_patterns(writer, tenant, new.values())
    consolidated_fixes = {
        fix for fix in changed_fixes if tallies[fix].successes > 0 and _weight(tallies[fix]) != before[fix]
    }
    _save_records(writer, tenant, [tallies[fix] for fix in changed_fixes], consolidated_fixes)
    for fix in uncertain:
        recount_fix(writer, tenant, fix)


def vote_row(
    tenant: str, tried_call: int, failed: int, fix: str, vote: Vote, trial: Trial | None = None
) -> tuple[Any, ...]:
    body = encode(trial.prerequisite_calls) if trial is not None and trial.prerequisite_calls else None
    return (
        tenant, vote.run, tried_call, failed, fix, int(vote.successful), vote.at, vote.day, vote.principal,
        vote.agent, fixes.TRIAL_ACTORS.index(vote.actor), body, vote.content, vote.old_value, vote.other_values,
        encode(vote.details).decode() if vote.details is not None else "",
    )  # fmt: skip


def _weight(tally: FixRecord) -> tuple[int | bool, ...]:
    """Return the values whose change may change a lesson, rounded: one more of a thousand does not."""
    counts = (tally.successes, tally.trials, len(tally.principals))
    is_reliable = wilson_lower_bound(tally.successes, tally.trials) >= fixes.MIN_SUCCESS_RATE
    rounded_counts = (count if count < 8 else 8 * count.bit_length() for count in counts)
    return (*rounded_counts, min(len(tally.days), 2), is_reliable)


def _save_records(writer: Connection, tenant: str, tallies: Sequence[FixRecord], consolidated_fixes: set[str]) -> None:
    patterns_by_fix = {tally.id: id_of(tally.tool, tally.fingerprint) for tally in tallies}
    pending_patterns = {pattern for fix, pattern in patterns_by_fix.items() if fix in consolidated_fixes}
    writer.queue(_PENDING_INSERT, [(tenant, pattern) for pattern in pending_patterns])
    rows = [
        (tenant, tally.id, tally.tool, patterns_by_fix[tally.id], tally.last_tried_at, encode(tally))
        for tally in tallies
    ]
    writer.queue(_FIX_INSERT, rows)


def mark_for_consolidation(writer: Connection, tenant: str, pattern: str) -> None:
    """Mark a pattern whose fixes have changed for the next consolidation."""
    writer.queue(_PENDING_INSERT, [(tenant, pattern)])


def _note_patterns(writer: Connection, tenant: str, trials: Iterable[Trial]) -> None:
    """Store sketches of the patterns of new fixes, so that similar failures find them."""
    steps = {(tenant, trial.step.name, id_of(trial.step.name, trial.fingerprint)): trial.step for trial in trials}
    for _, tool, pattern, _ in writer.look_up(_FIXED_LOOKUP, list(steps)):
        steps.pop((tenant, tool, pattern), None)
    texts = {
        id: text for _, id, text in writer.look_up(_TEMPLATE_LOOKUP, [(tenant, pattern) for _, _, pattern in steps])
    }
    rows = []
    for key, step in steps.items():
        text = texts[key[2]] if key[2] in texts else patterns.extract_message_and_template(step)[1]
        rows.append((*key, patterns.pack(patterns.sketch(text)), text[: patterns.MAX_SKETCH_CHARS]))
    writer.queue(_FIXED_INSERT, rows)
    pack_sketches(writer, tenant, {tool for _, tool, _ in steps})


def recount_fix(writer: Connection, tenant: str, fix: str) -> None:
    row = writer.execute("SELECT body FROM fixes WHERE tenant = ? AND id = ?", (tenant, fix)).fetchone()
    if row is None:
        return
    old = decode(row[0], FixRecord)
    fix_votes = votes(RowReader(writer), tenant, fix)
    if fix_votes:
        _save_records(writer, tenant, [old.recount(fix_votes)], {fix})
        return
    writer.execute("DELETE FROM fixes WHERE tenant = ? AND id = ?", (tenant, fix))
    pattern = id_of(old.tool, old.fingerprint)
    mark_for_consolidation(writer, tenant, pattern)
    remaining_fix = writer.execute("SELECT 1 FROM fixes WHERE tenant = ? AND pattern = ?", (tenant, pattern)).fetchone()
    if remaining_fix is None:
        writer.execute(
            "DELETE FROM pattern_sketches WHERE tenant = ? AND tool = ? AND pattern = ?", (tenant, old.tool, pattern)
        )
        pack_sketches(writer, tenant, {old.tool})


def votes(
    read: Read, tenant: str, fix: str, since: int = BEFORE_FIRST_CALL, without: str = "", limit: int = 2**62
) -> list[Vote]:
    """Return the counted votes for a fix in the order of time, the newest if limited."""
    rows = read(
        "SELECT tried_call, run, principal, agent, at, day, successful, automatic, content, old_value, other_values, "
        "details FROM votes "
        "WHERE tenant = ? AND fix = ? AND at >= ? AND run <> ? ORDER BY at DESC LIMIT ?",
        (tenant, fix, since, without, limit),
    )
    return fixes.select_counted_votes(map(_to_vote, rows))


def _to_vote(row: Sequence[Any]) -> tuple[int, Vote]:
    tried_call, run, author, agent, at, day, is_success, actor, content, old_value, other_values, details = row
    vote = Vote(
        run, author, agent, at, day, bool(is_success), fixes.TRIAL_ACTORS[actor], content, old_value, other_values,
        decode(details, TrialDetails) if details else None,
    )  # fmt: skip
    return tried_call, vote


# Revocations


def revocations(read: Read, tenant: str) -> list[Revocation]:
    rows = read("SELECT principal, tool, since, until FROM revocations WHERE tenant = ?", (tenant,))
    return [Revocation(*row) for row in rows]


# Similarity index

_SKETCHES_SQL = "SELECT pattern, sketch FROM pattern_sketches WHERE tenant = ?2 AND tool = ?1 ORDER BY pattern LIMIT ?3"
_ENTRY = struct.Struct(f"16s{patterns.SKETCH_BITS // 8}s")


def pack_sketches(writer: Connection, tenant: str, tools: Collection[str]) -> None:
    """Pack the sketches of each of these tools into one row, after their patterns changed."""
    if not tools:
        return
    bodies = dict.fromkeys(sorted(tools), b"")
    for tool, pattern, sketch in writer.execute_by_key(_SKETCHES_SQL, list(bodies), (tenant, MAX_PATTERNS_PER_TOOL)):
        bodies[tool] += _ENTRY.pack(pattern.encode(), bytes(sketch))
    writer.queue(_SKETCHES_INSERT, [(tenant, tool, crc32(body), body) for tool, body in bodies.items() if body])
    for tool in (tool for tool, body in bodies.items() if not body):
        writer.execute("DELETE FROM tool_sketches WHERE tenant = ? AND tool = ?", (tenant, tool))


class SketchCache:
    """Process-wide cache of the sketches of each tool, checked by stamp."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sketches_by_tool: dict[tuple[str, str], tuple[int, patterns.Sketches]] = {}
        self._count = 0

    def get_sketches(self, read: Read, tenant: str, tool: str, stamp: int) -> patterns.Sketches:
        """Return the sketches of a tool, from the cache if it has this stamp, else from the database.

        After a concurrent write, the sketches may be newer than the stamp.
        """
        cached_stamp, sketches = self._sketches_by_tool.get((tenant, tool), _NO_SKETCHES)
        if cached_stamp == stamp:
            return sketches
        for stored_stamp, body in read(
            "SELECT stamp, body FROM tool_sketches WHERE tenant = ? AND tool = ?", (tenant, tool)
        ):
            sketches = patterns.Sketches(
                (name.decode(), patterns.unpack(bits)) for name, bits in _ENTRY.iter_unpack(body)
            )
            self._cache_sketches((tenant, tool), stored_stamp, sketches)
            return sketches
        return _NO_SKETCHES[1]

    def _cache_sketches(self, key: tuple[str, str], stamp: int, sketches: patterns.Sketches) -> None:
        """Cache sketches and evict the tools that were read longest ago."""
        with self._lock:
            self._count += len(sketches) - len(self._sketches_by_tool.pop(key, _NO_SKETCHES)[1])
            self._sketches_by_tool[key] = stamp, sketches
            while self._count > MAX_CACHED_PATTERNS:
                oldest = next(iter(self._sketches_by_tool))
                self._count -= len(self._sketches_by_tool.pop(oldest)[1])


_NO_SKETCHES = (-1, patterns.Sketches(()))
