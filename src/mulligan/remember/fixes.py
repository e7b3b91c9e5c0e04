"""Trials of fixes, their votes, and the rules for promotion (SAFETY S3).

A trial is a failed call with the next attempt and its outcome. Learning uses these pairs, not lone successes. A
`FixRecord` counts the trials of one fix, one vote per run. The functions are pure, so every store gets the same result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec

from mulligan import calls
from mulligan.calls import Call, wilson
from mulligan.failure import Failure
from mulligan.links import MAX_RECENT_SUCCESSES, RecentSuccess, RunProgress, diff_calls
from mulligan.privileged_arguments import is_privileged
from mulligan.privileged_arguments import words as split_words
from mulligan.records import (
    LAST_PART,
    OPEN,
    REQUOTED,
    Change,
    Fix,
    FixState,
    Link,
    Record,
    Run,
    Step,
    digest,
    fix_id,
    pattern_id,
)
from mulligan.remember.store import DAY, Evidence, Revocation

IMPORT = "import"
"""Principal of imported logs. Its trials alone never promote a fix."""
OWN = "local"
"""Principal of records that name none."""

CHANGES = 4
"""More changes make a different call, not a repaired one."""
RECENT = 20
AGENTS = 10
"""Agents listed with a fix: those with the most successes."""
HOUR = DAY // 24
Sort = Literal["change", "recipe", "retry"]


class Form(Record, frozen=True):
    """Action of a fix, without run-specific values. Its encoding is part of the fix id."""

    sort: Sort = "change"
    changes: tuple[Change, ...] = ()
    names: tuple[str, ...] = ()
    """Prerequisites: the tools called between failure and success, each once, ordered by last call."""


RETRY = Form(sort="retry")


Actor = Literal["caller", "fix", "rule"]
"""Author of a change: the program or its model, a stored fix, or a repair rule (schema, error, run)."""
ACTORS: tuple[Actor, ...] = ("caller", "fix", "rule")
"""Ordered by the numbers that the database stores for them."""


class Trial(msgspec.Struct, frozen=True):
    """One use of a fix: a failed call or attempt, the action of the next one, and its outcome.

    Identified by the ids of the two calls or attempts.
    """

    failed: int
    tried: int
    step: Step
    """The failed step."""
    form: Form
    worked: bool
    at: int
    actor: Actor = "caller"
    done: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Calls of a prerequisite with their compact arguments."""
    content: str = ""
    """Hash of the arguments before and after. Equal trials count as one vote."""
    old_value: str = ""
    """Hash of the replaced values."""
    other_values: str = ""
    """Hash of the unchanged arguments."""

    @property
    def fix(self) -> str:
        return fix_id(self.step.tool_key, self.fingerprint, self.form)

    @property
    def fingerprint(self) -> str:
        return self.step.failure.fingerprint if self.step.failure else ""


def find_trials(before: RunProgress, call: Call, links: Iterable[Link]) -> list[Trial]:
    """Return the trials of a call, from the run's progress before it and the links to the calls it re-issues.

    Provisional links are skipped: they are confirmed or refuted when the run has ended.
    """
    if not (before.open or len(call.steps) > 1):
        return []
    trials = list(_trials_of_attempts(call))
    failures = {failure.call.id: failure.call for failure in before.open}
    failures |= {member.call.id: member.call for failure in before.open for member in failure.members}
    for link in links:
        failed = failures.get(link.failed)
        is_conversation = link.how == "agent" and not link.changes  # the conversation continued: no action to repeat
        if failed is None or link.failed == call.id or link.provisional or is_conversation:
            continue
        trial = _trial_of_link(before, failed, call, link)
        if trial is not None:
            trials.append(trial)
    return trials


def _trials_of_attempts(call: Call) -> Iterable[Trial]:
    for attempt, later in pairwise(call.steps):
        recovery = later.after
        if not _is_known(attempt) or later.outcome not in ("success", "failure"):
            continue
        if recovery is not None and not (recovery.changes or recovery.first or calls.is_retry(recovery)):
            continue  # the recovery did not change the call, so it is not repeatable
        changed = recovery.changes if recovery is not None else diff_calls(attempt, later)
        form = Form(sort="recipe", names=recovery.first) if recovery is not None and recovery.first else formed(changed)
        if form is None:
            continue
        actor: Actor = "caller"
        if recovery is not None and (recovery.changes or recovery.first):
            actor = "rule" if recovery.fix is None else "fix"
        worked = later.outcome == "success"
        content, old_value, other_values = _hash_trial(attempt, later, changed)
        yield Trial(
            attempt.seq, later.seq, attempt, form, worked, later.started, actor, (), content, old_value, other_values
        )


def _trial_of_link(before: RunProgress, failed: Call, call: Call, link: Link) -> Trial | None:
    step = next((attempt for attempt in reversed(failed.steps) if attempt.has_failed), failed.last)
    if not _is_known(step):
        return None
    calls_between: tuple[RecentSuccess, ...] = ()
    form = formed(link.changes, link.between)
    if form is RETRY and link.how == "recipe":
        calls_between = tuple(success for success in before.recent if success.call > failed.id)
        if len(before.recent) == MAX_RECENT_SUCCESSES and before.recent[0].call > failed.id:
            return None  # the list of recent calls is full: earlier prerequisites may be missing from it
        latest = {success.name: success for success in calls_between}
        calls_between = tuple(sorted(latest.values(), key=lambda success: success.call))
        if calls_between:
            form = Form(sort="recipe", names=tuple(success.name for success in calls_between))
    if form is None or (not call.has_succeeded and not _is_same_failure(step.failure, call.failure)):
        return None  # a different failure means that this one was passed: no vote against the action
    done = tuple((success.name, success.arguments) for success in calls_between)
    content, old_value, other_values = _hash_trial(failed.last, call.last, link.changes)
    return Trial(
        failed.id, call.id, step, form, call.has_succeeded, call.last.started, "caller", done, content, old_value,
        other_values,
    )  # fmt: skip


def _is_same_failure(failure: Failure | None, later: Failure | None) -> bool:
    return failure is not None and later is not None and failure.fingerprint == later.fingerprint


def _hash_trial(failed: Step, later: Step, changed: Sequence[Change]) -> tuple[str, str, str]:
    """Return hashes of the arguments before and after, of the changed values and of the other values, as stored."""
    arguments = failed.arguments if isinstance(failed.arguments, Mapping) else {}
    roots = {change.path.partition(".")[0] for change in changed}
    old = [arguments.get(root) for root in sorted(roots)]
    others = {name: value for name, value in sorted(arguments.items()) if name not in roots}
    content = hash_value((failed.arguments, later.arguments))
    return content, hash_value(old[0] if len(old) == 1 else old) if old else "", hash_value(others)


def hash_value(value: Any) -> str:
    """Return a short hash of a stored value. Equal values have equal hashes."""
    try:
        return digest(_sorted.encode(value), 6).hex()
    except (TypeError, ValueError, RecursionError):  # an in-memory store may hold values that JSON cannot encode
        return digest(repr(value)[:10_000].encode("utf-8", "replace"), 6).hex()


_sorted = msgspec.json.Encoder(enc_hook=str, order="sorted")


def _is_known(step: Step) -> bool:
    return step.has_failed and step.failure is not None and bool(step.failure.fingerprint)


# Shareable actions


def formed(changed: Sequence[Change], sources: Sequence[str] = ()) -> Form | None:
    """Return the action of these changes without run-specific values; None if there are too many changes.

    `sources` are the tools whose results supplied a changed value. Their calls become the prerequisite.
    """
    if not changed:
        return RETRY
    if len(changed) > CHANGES:
        return None
    shared = tuple(sorted(map(closed, changed), key=lambda change: change.path))
    if sources and any(change.from_ == "run" for change in changed):
        return Form(sort="recipe", names=tuple(sources), changes=shared)
    return Form(changes=shared)


def closed(change: Change) -> Change:
    """Return the change as other runs can apply it: argument and operation, without run-specific values."""
    before, after = change.before, change.after
    match change.how:
        case "rename":
            return Change(path=change.path, how="rename", after=after)
        case "drop" | "parse" | "wrap":
            return Change(path=change.path, how=change.how)
        case "trim":
            return Change(path=change.path, how="trim")
        case "cast":
            return Change(path=change.path, how="cast", after=_type(after))
    is_cut = isinstance(before, str) and "/" in before and after == before.rstrip("/").rpartition("/")[2]
    if is_cut and after:
        return Change(path=change.path, how="trim", after=LAST_PART)
    if _is_requoted(before, after):
        return Change(path=change.path, how="substitute", after=REQUOTED)
    if change.from_ != "run" and not change.privileged and is_shareable(change.path, after):
        return Change(path=change.path, how=change.how, after=after)
    return Change(path=change.path, how="substitute", after=OPEN)


def _is_requoted(before: Any, after: Any) -> bool:
    if not isinstance(before, str) or not isinstance(after, str) or before.casefold() == after.casefold():
        return False
    plain_before, plain_after = (re.sub(r"[\\\"'`\s]", "", text) for text in (before, after))
    return bool(plain_before) and plain_before == plain_after


_RUN_SPECIFIC_NAMES = frozenset(
    "id ids uid uuid guid ref reference version revision rev etag sha hash commit date day month year time timestamp "
    "when start end since until from offset page cursor index row line number no num seq position key name title label "
    "subject message text content note comment question prompt query search term keyword".split()
)
"""Last words of argument names with run-specific values: identifiers, dates, pages, texts."""


def is_shareable(path: str, value: Any) -> bool:
    """Return whether a value may be repeated in another run: a setting, not an identifier, amount, path or text."""
    if is_privileged(path) or _is_run_specific(path.rpartition(".")[2]):
        return False
    return value is None or isinstance(value, bool | int | float) or _is_word(value)


def _is_run_specific(name: str) -> bool:
    words = [word.casefold() for word in split_words(name)]
    if words[:1] == ["per"]:
        return False  # `per_page` is a size, not a page
    return bool(words) and words[-1] in _RUN_SPECIFIC_NAMES


def _type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return names.get(type(value), "other")


def _is_word(value: Any) -> bool:
    """Return whether a text may be an enum member (`json`, `utf-8`, `us-east-1`), not an id, date or version."""
    if not isinstance(value, str) or not 0 < len(value) <= 40 or any(letter in " /@:" for letter in value):
        return False
    if not any(letter.isdigit() for letter in value):
        return True
    return _NUMBERED_WORD.fullmatch(value) is not None or _TECHNICAL_WORD.fullmatch(value.casefold()) is not None


_NUMBERED_WORD = re.compile(r"[A-Za-z]{2,20}(?:[-_][A-Za-z]{2,20}){0,3}[-_][0-9]{1,2}")
_TECHNICAL_WORD = re.compile(
    r"(?:utf|ucs|iso|latin|cp|windows|koi|big)[-_]?[0-9]{1,4}(?:[-_](?:[0-9]{1,2}|le|be|sig|r|u))?"  # encodings
    r"|(?:sha|md|crc|base|aes|rsa|ed|blake)[-_]?[0-9]{1,5}|hs256|rs256|es256"  # hashes, keys
    r"|mp[34]|m4[av]|h26[0-9]|x26[0-9]|vp[89]|av1|opus|jp2|jpeg2000|[248]k|[0-9]{3,4}[pi]"  # sound, pictures
    r"|h[123]|http[-_]?[123](?:\.[01])?|ipv[46]|tls[-_]?v?1(?:\.[0-3])?|oauth[12]|s3|pop3|imap4"  # networks
    r"|u?int[0-9]{1,3}|b?f(?:loat|p)?[0-9]{1,3}|bzip2|bz2|lz4|7z|html5|hdf5|x86(?:_64)?|amd64|arm64|[ab][0-6]|[23]d"
)
"""Names of encodings, algorithms and formats with digits, which would otherwise look like ids."""


# Votes and fix records


class Vote(msgspec.Struct, frozen=True):
    """Counted trial of a fix by one run."""

    run: str
    principal: str
    agent: str
    at: int
    worked: bool
    actor: Actor = "caller"
    content: str = ""
    old_value: str = ""
    other_values: str = ""

    @classmethod
    def reported(cls, report: Evidence) -> Vote:
        actor: Actor = "fix" if report.automatic else "caller"
        return cls(report.run, report.principal, report.agent, report.at, report.worked, actor)

    @classmethod
    def of(cls, run: Run, principal: str, trial: Trial) -> Vote:
        return cls(
            run.id, principal, run.agent, trial.at, trial.worked, trial.actor,
            trial.content, trial.old_value, trial.other_values,
        )  # fmt: skip


class Proof(msgspec.Struct, array_like=True):
    """Group of trials with equal content, by the program or its model. Counts as one vote for promotion."""

    at: int
    run: str
    principal: str
    worked: bool
    """Whether all of them succeeded."""


MAX_PROOFS = 100
"""Distinct trials stored per fix."""
MAX_OLD_VALUES = 8
"""Distinct old values stored per fix, and distinct other values stored per old value."""


class Tally(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counts and recent votes of one fix. Add one vote per run, in any order."""

    id: str
    tool: str
    fingerprint: str
    form: Form
    key: str = ""
    """Tool key; empty if the records have the bare tool name only."""
    tried: int = 0
    worked: int = 0
    imported: int = 0
    principals: dict[str, int] = {}
    """Successes by principal."""
    days: list[int] = []
    """Latest days with a success, without imported logs."""
    agents: dict[str, int] = {}
    recent: list[tuple[int, str, bool, bool]] = []
    """Latest votes: time, run, whether it succeeded, whether the fix was applied automatically."""
    uses: list[int] = []
    """Times of the latest automatic applications."""
    used: int = 0
    """Time of the first automatic application; 0 if there is none."""
    paused: int = 0
    """Time at which it was paused, because it was applied or failed too often; 0 if it was not."""
    proofs: dict[str, Proof] = {}
    """Votes for promotion by content hash."""
    old_values: dict[str, list[str]] = {}
    """Hashes of the replaced values, each with the hashes of the other arguments."""

    @classmethod
    def of(cls, trial: Trial) -> Tally:
        step = trial.step
        key = step.tool_key if step.key or step.server else ""
        return cls(id=trial.fix, tool=step.name, fingerprint=trial.fingerprint, form=trial.form, key=key)

    def add(self, vote: Vote) -> None:
        is_applied = vote.actor == "fix"
        self.recent = sorted([*self.recent, (vote.at, vote.run, vote.worked, is_applied)])[-RECENT:]
        if is_applied:
            self.used = min(self.used or vote.at, vote.at)
            self.uses = sorted([*self.uses, vote.at])[-RECENT - 1 :]
            self.paused = self.paused or self._is_suspicious(vote.at)
            if vote.worked:
                return  # a success of an automatic repair is no vote: a fix must not promote itself
        self.tried += 1
        is_imported = vote.principal == IMPORT
        self.imported += is_imported
        if vote.worked:
            self.worked += 1
            self.principals[vote.principal] = self.principals.get(vote.principal, 0) + 1
            self.agents[vote.agent] = self.agents.get(vote.agent, 0) + 1
            day = vote.at // DAY
            if not is_imported and day not in self.days:
                self.days = sorted([*self.days, day])[-RECENT:]
            self._add_old_value(vote)
        if vote.actor != "rule":
            self._add_proof(vote)

    def _add_proof(self, vote: Vote) -> None:
        content = vote.content or vote.run
        proof = Proof(vote.at, vote.run, vote.principal, vote.worked)
        known = self.proofs.get(content)
        if known is not None:
            first = min(known, proof, key=lambda proof: (proof.at, proof.run, proof.principal))
            proof = Proof(first.at, first.run, first.principal, known.worked and vote.worked)
        # Sorted, so that the limit drops the same trials in any order of votes.
        self.proofs = dict(sorted({**self.proofs, content: proof}.items())[:MAX_PROOFS])

    def _add_old_value(self, vote: Vote) -> None:
        if vote.old_value:
            beside = sorted({*self.old_values.get(vote.old_value, ()), vote.other_values})[:MAX_OLD_VALUES]
            self.old_values = dict(sorted({**self.old_values, vote.old_value: beside}.items())[:MAX_OLD_VALUES])

    def _is_suspicious(self, at: int) -> int:
        """Return `at` if the fix must be paused, else 0.

        On the day of its first automatic application: more than 20 within an hour. Later: more than a fifth of the
        last 20 votes failed.
        """
        is_new = at - self.used < DAY
        if is_new and len(self.uses) > RECENT and self.uses[-1] - self.uses[0] < HOUR:
            return at
        failed = sum(not worked for _, _, worked, _ in self.recent)
        return at if not is_new and len(self.recent) == RECENT and failed > RECENT // 5 else 0

    @property
    def last(self) -> int:
        return self.recent[-1][0] if self.recent else 0

    @property
    def is_setting(self) -> bool:
        """Whether it replaced several old values, or one old value with different other arguments.

        Then the change is a setting of the tool and no coincidence of one call.
        """
        return len(self.old_values) > 1 or any(len(others) > 1 for others in self.old_values.values())

    def anew(self, votes: Iterable[Vote]) -> Tally:
        """Return a record of the same fix with only these votes, which must be ordered by time."""
        fresh = Tally(id=self.id, tool=self.tool, fingerprint=self.fingerprint, form=self.form, key=self.key)
        for vote in votes:
            fresh.add(vote)
        return fresh


def is_revoked(what: Revocation, principal: str, tool: str, started: int) -> bool:
    """Return whether a revocation covers a principal's run, started at this time, for this tool."""
    return (
        (what.principal is None or what.principal == principal)
        and (what.tool is None or what.tool == tool)
        and (what.since is None or started >= what.since)
        and (what.until is None or started < what.until)
    )


def is_everything_of(what: Revocation) -> bool:
    """Return whether a revocation covers all records of a principal."""
    return what.principal is not None and what.tool is None and what.since is None and what.until is None


def counted(votes: Iterable[tuple[int, Vote]]) -> list[Vote]:
    """Select the votes that count from the (tried call, vote) pairs of one fix, ordered by time.

    Each run has one vote: its first failure, else its first success.
    """
    first: dict[tuple[str, str], tuple[bool, int, int, Vote]] = {}
    for tried, vote in votes:
        place, rank = (vote.run, vote.principal), (vote.worked, vote.at, tried, vote)
        if place not in first or rank[:3] < first[place][:3]:
            first[place] = rank
    return sorted((vote for *_, vote in first.values()), key=lambda vote: (vote.at, vote.run))


def tallied(votes: Iterable[tuple[Trial, Vote]]) -> dict[str, Tally]:
    """Return fix records by fix id."""
    together: dict[str, tuple[Tally, list[tuple[int, Vote]]]] = {}
    for trial, vote in votes:
        together.setdefault(trial.fix, (Tally.of(trial), []))[1].append((trial.tried, vote))
    return {id: tally.anew(counted(some)) for id, (tally, some) in together.items()}


def grouped(votes: Iterable[tuple[Trial, Vote]]) -> dict[str, list[Tally]]:
    """Return fix records by pattern id, last tried first."""
    groups: dict[str, list[Tally]] = {}
    for tally in sorted(tallied(votes).values(), key=lambda each: -each.last):
        groups.setdefault(pattern_id(tally.tool, tally.fingerprint), []).append(tally)
    return groups


# Promotion


class Verdict(Record, frozen=True):
    """Decision of an operator about a fix."""

    approved: int = 0
    revoked: int = 0
    """Times of the decisions; 0 for none. The later one is in effect."""


def decided(before: Verdict, approved: bool, at: int) -> Verdict:
    """Return the decision after an operator approved or revoked the fix. The new decision wins over clock skew."""
    return Verdict(approved=max(at, before.revoked + 1)) if approved else Verdict(revoked=max(at, before.approved + 1))


class Crowd(msgspec.Struct, frozen=True):
    """Principals that write to this store, without imported logs: the total, and those of the last 30 days."""

    ever: int = 1
    active: frozenset[str] = frozenset({OWN})

    def needed(self, seen: Iterable[str]) -> int:
        """Return how many principals must have had a success.

        `principals` count as active: otherwise a few could wait until the others are inactive.
        """
        return max(2, math.ceil(0.2 * len(self.active.union(seen))))


def crowd(last: Mapping[str, int], revoked: Sequence[Revocation], now: int) -> Crowd:
    """Return the writers that count, from the time of each principal's last write.

    Imported logs and fully revoked principals are excluded.
    """
    gone = {IMPORT, *(each.principal for each in revoked if is_everything_of(each))}
    heard = {name: at for name, at in last.items() if name not in gone}
    return Crowd(ever=max(1, len(heard)), active=frozenset(name for name, at in heard.items() if at >= now - UNUSED))


PROOFS = 5
SURE = 0.8
UNUSED = 30 * DAY


def judged(tally: Tally, crowd: Crowd, now: int, verdict: Verdict | None = None) -> tuple[FixState, str]:
    """Return the state of a fix, and the reason if it is not applied automatically."""
    approved, revoked = (verdict.approved, verdict.revoked) if verdict is not None else (0, 0)
    if revoked > 0 and revoked >= approved:
        return "revoked", "an operator took it back"
    if tally.paused > approved:
        return "paused", "it was used or failed too often, and waits for an operator"
    if max(tally.last, approved) < now - UNUSED:
        return "expired", "it was not used for 30 days"
    outcomes = [(at, worked) for at, _, worked, _ in tally.recent if at > approved]
    fell = max(
        (place for place in range(1, len(outcomes)) if not (outcomes[place][1] or outcomes[place - 1][1])), default=0
    )
    if fell and sum(worked for _, worked in outcomes[fell + 1 :]) < PROOFS:
        return "demoted", "it failed twice in a row"
    if approved:
        return "approved", ""
    why = _why_unproven(tally, crowd)
    return ("proposed", why) if why else ("promoted", "")


def rejudged(
    state: tuple[FixState, str], since: int, fresh: Tally, crowd: Crowd, now: int, verdict: Verdict | None = None
) -> tuple[FixState, str]:
    """Return the state after the tool's schema changed at `since`. Only `fresh_record`, the later trials, counts."""
    if state[0] not in ("promoted", "approved") or (verdict is not None and verdict.approved >= since):
        return state
    return state if judged(fresh, crowd, now)[0] == "promoted" else ("demoted", "the tool's schema has changed since")


def _why_unproven(tally: Tally, crowd: Crowd) -> str:
    """Return the first unmet condition for promotion; empty if all are met."""
    if not tally.key:
        return "its tool is known by a bare name only"
    proofs = [proof for proof in tally.proofs.values() if proof.worked]
    own = [proof for proof in proofs if proof.principal != IMPORT]
    if len(proofs) < PROOFS:
        return f"it worked in {len(proofs)} different trials, and {PROOFS} are needed"
    if crowd.ever > 1:
        principals = {proof.principal for proof in own}
        if len(principals) < (needed := crowd.needed(principals)):
            return f"{len(principals)} of those who write here saw it work, and {needed} are needed"
    elif len({proof.run for proof in own}) < 3 or len({proof.at // DAY for proof in own}) < 2:
        return "it must have worked in 3 runs of this machine, on 2 days"
    if wilson(len(proofs), len(tally.proofs)) < SURE:
        return f"it worked in {len(proofs)} of {len(tally.proofs)} different trials, which is not sure enough"
    return ""


def told(tally: Tally, state: tuple[FixState, str], likeness: float = 1.0) -> Fix:
    """Convert a record with its state to the public `Fix`."""
    return Fix(
        id=tally.id,
        tool=tally.tool,
        fingerprint=tally.fingerprint,
        sort=tally.form.sort,
        changes=tally.form.changes,
        tried=tally.tried,
        worked=tally.worked,
        imported=tally.imported,
        principals=len(tally.principals),
        days=len(tally.days),
        agents=told_agents(tally.agents),
        last=tally.last,
        state=state[0],
        why=state[1],
        likeness=likeness,
        key=tally.key,
    )


def told_agents(agents: Mapping[str, int]) -> dict[str, int]:
    """Return the agents with the most successes, up to `MAX_SHOWN_AGENTS`."""
    return dict(sorted(agents.items(), key=lambda item: (-item[1], item[0]))[:AGENTS])
