"""Pairs, not successes: what was tried after a failure, whether it worked, and when that is proof enough (SAFETY S3).

Plain functions of records. A trial is one failed call and what was done next; a tally is what the trials of one fix
come to, one vote for each run. Whoever keeps tallies, in a list or in a file, comes to the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec

from mulligan import calls
from mulligan.calls import Call, Done, Standing, wilson
from mulligan.records import LAST_PART, OPEN, Change, Fix, FixState, Link, Record, Step, fix_id, pattern_id
from mulligan.remember.store import DAY, Evidence, Revocation

IMPORT = "import"
"""Who logs come from that were made elsewhere: one principal, which never proves anything by itself."""
OWN = "local"
"""Who writes, where nobody says."""

CHANGES = 4
"""Changes of one fix. More is another call, not the same one put right."""
RECENT = 20
AGENTS = 10
"""Who is told to have been helped by a fix, of very many."""
HOUR = DAY // 24
Sort = Literal["change", "recipe", "retry"]


class Form(Record, frozen=True):
    """A fix without its record: what is done, in a form that carries no text of a run."""

    sort: Sort = "change"
    changes: tuple[Change, ...] = ()
    names: tuple[str, ...] = ()
    """Of a recipe: the tools that were called in between, each once, in the order of their last call."""


RETRY = Form(sort="retry")


class Trial(msgspec.Struct, frozen=True):
    """What was done after a failure, and whether it worked. Known by the two calls or attempts."""

    failed: int
    tried: int
    step: Step
    """That failed."""
    form: Form
    worked: bool
    at: int
    is_automatic: bool = False
    done: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Of a recipe: the calls with their arguments, in brief."""

    @property
    def fix(self) -> str:
        return fix_id(self.step.name, self.fingerprint, self.form)

    @property
    def fingerprint(self) -> str:
        return self.step.failure.fingerprint if self.step.failure else ""


def trials(before: Standing, call: Call, links: Iterable[Link]) -> list[Trial]:
    """What a call tells about fixes, given where its run stood before it and what it has overcome."""
    if not (before.open or len(call.steps) > 1):
        return []
    found = list(_attempts(call))
    if call.has_succeeded:
        opened = {each.call.id: each.call for each in before.open}
        for link in links:
            failed = opened.get(link.failed)
            is_said = link.how == "agent" and not link.changes  # a conversation went on: nothing to do again
            if failed is not None and link.failed != call.id and not is_said:
                found += _tried(before, failed, call, link.changes, worked=True)
    elif call.has_failed and call.first.type != "run":
        failed = next((each.call for each in reversed(before.open) if _is_same_place(each.call, call)), None)
        if failed is not None:
            changed = calls.corrected(failed.last, call.first)
            is_said = not changed and calls.goes_on(failed.last, call.first)
            if not is_said and _is_a_correction(changed, failed.last.arguments):
                found += _tried(before, failed, call, changed, worked=False)
    return found


def _attempts(call: Call) -> Iterable[Trial]:
    for one, other in pairwise(call.steps):
        after = other.after
        if not _is_known(one) or other.outcome not in ("success", "failure"):
            continue
        if after is not None and not (after.changes or after.first or calls.is_the_same_again(after)):
            continue  # what made the difference is not in the call: nobody can learn to do it again
        changed = after.changes if after is not None else calls.corrected(one, other)
        form = Form(sort="recipe", names=after.first) if after is not None and after.first else formed(changed)
        if form is not None:
            is_automatic = after is not None and after.fix is not None
            yield Trial(one.seq, other.seq, one, form, other.outcome == "success", other.started, is_automatic)


def _tried(before: Standing, failed: Call, call: Call, changed: Sequence[Change], worked: bool) -> Iterable[Trial]:
    step = next((each for each in reversed(failed.steps) if each.has_failed), failed.last)
    if not _is_known(step):
        return
    done: tuple[Done, ...] = ()
    form = formed(changed)
    if form is RETRY:
        done = tuple(each for each in before.recent if each.call > failed.id)
        if done and len(before.recent) == calls.RECENT and before.recent[0].call > failed.id:
            return  # too long ago to say what was missing
        if done:
            last = {each.name: each for each in done}
            done = tuple(sorted(last.values(), key=lambda each: each.call))
            form = Form(sort="recipe", names=tuple(each.name for each in done))
    if form is not None:
        told = tuple((each.name, each.arguments) for each in done)
        yield Trial(failed.id, call.id, step, form, worked, call.last.started, done=told)


def _is_known(step: Step) -> bool:
    return step.has_failed and step.failure is not None and bool(step.failure.fingerprint)


def _is_same_place(one: Call, other: Call) -> bool:
    return one.name == other.name and one.first.type == other.first.type and one.first.server == other.first.server


def _is_a_correction(changed: Sequence[Change], arguments: Any) -> bool:
    """Whether enough of a call is as it was for the rest to have been meant as a correction."""
    if not changed:
        return True
    return isinstance(arguments, Mapping) and 2 * len(changed) <= len(arguments) + 1


# The closed-class form of a change


def formed(changed: Sequence[Change]) -> Form | None:
    """What was changed, without what belongs to its run; None if that is too much to be one correction."""
    if not changed:
        return RETRY
    if len(changed) > CHANGES:
        return None
    return Form(changes=tuple(sorted(map(closed, changed), key=lambda each: each.path)))


def closed(change: Change) -> Change:
    """A change of one run as a change that others can make: which argument, how, and no text of the run."""
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
    if after is None or isinstance(after, bool | int | float) or _is_word(after):
        return Change(path=change.path, how=change.how, after=after)
    return Change(path=change.path, how="substitute", after=OPEN)


def _type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return names.get(type(value), "other")


def _is_word(value: Any) -> bool:
    """Whether a text could be a member of an enum. Only where the schema says so is it used for another run."""
    return (
        isinstance(value, str) and 0 < len(value) <= 40 and not any(each.isdigit() or each in " /@:" for each in value)
    )


# Votes and what they come to


class Vote(msgspec.Struct, frozen=True):
    """One run's trial of a fix."""

    run: str
    principal: str
    agent: str
    at: int
    worked: bool
    is_automatic: bool = False

    @classmethod
    def reported(cls, report: Evidence) -> Vote:
        return cls(report.run, report.principal, report.agent, report.at, report.worked, report.automatic)


class Tally(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the votes for a fix come to. Votes may come in any order, each run's once."""

    id: str
    tool: str
    fingerprint: str
    form: Form
    tried: int = 0
    worked: int = 0
    imported: int = 0
    principals: dict[str, int] = {}
    """Those who saw it work, with how often."""
    days: list[int] = []
    """On which it worked, imported logs apart; the latest."""
    agents: dict[str, int] = {}
    recent: list[tuple[int, str, bool, bool]] = []
    """The latest votes: when, which run, whether it worked, whether it was automatic."""
    uses: list[int] = []
    """When it was last used without asking."""
    used: int = 0
    """When it was first used so."""
    paused: int = 0
    """When it was found to be used too often or to fail too often."""

    @classmethod
    def of(cls, trial: Trial) -> Tally:
        return cls(id=trial.fix, tool=trial.step.name, fingerprint=trial.fingerprint, form=trial.form)

    def add(self, vote: Vote) -> None:
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
        self.recent = sorted([*self.recent, (vote.at, vote.run, vote.worked, vote.is_automatic)])[-RECENT:]
        if vote.is_automatic:
            self.used = min(self.used or vote.at, vote.at)
            self.uses = sorted([*self.uses, vote.at])[-RECENT - 1 :]
            self.paused = self.paused or self._is_suspicious(vote.at)

    def _is_suspicious(self, at: int) -> int:
        """More than 20 uses an hour within a day of the first; later more than a fifth failing of the last 20."""
        is_new = at - self.used < DAY
        if is_new and len(self.uses) > RECENT and self.uses[-1] - self.uses[0] < HOUR:
            return at
        failed = sum(not worked for _, _, worked, _ in self.recent)
        return at if not is_new and len(self.recent) == RECENT and failed > RECENT // 5 else 0

    @property
    def last(self) -> int:
        return self.recent[-1][0] if self.recent else 0

    def anew(self, votes: Iterable[Vote]) -> Tally:
        """The same fix with these votes alone, which come in the order of their time."""
        fresh = Tally(id=self.id, tool=self.tool, fingerprint=self.fingerprint, form=self.form)
        for vote in votes:
            fresh.add(vote)
        return fresh


def is_revoked(what: Revocation, principal: str, tool: str, started: int) -> bool:
    """Whether a revocation takes back what this principal's run of this time says about this tool."""
    return (
        (what.principal is None or what.principal == principal)
        and (what.tool is None or what.tool == tool)
        and (what.since is None or started >= what.since)
        and (what.until is None or started < what.until)
    )


def is_everything_of(what: Revocation) -> bool:
    """Whether somebody is no longer listened to at all."""
    return what.principal is not None and what.tool is None and what.since is None and what.until is None


def counted(votes: Iterable[tuple[int, Vote]]) -> list[Vote]:
    """Of the votes for one fix, each with its trial's number, those that count, in the order of their time.

    A run has one: its first failure, else its first success.
    """
    first: dict[tuple[str, str], tuple[bool, int, int, Vote]] = {}
    for tried, vote in votes:
        place, rank = (vote.run, vote.principal), (vote.worked, vote.at, tried, vote)
        if place not in first or rank[:3] < first[place][:3]:
            first[place] = rank
    return sorted((vote for *_, vote in first.values()), key=lambda vote: (vote.at, vote.run))


def tallied(votes: Iterable[tuple[Trial, Vote]]) -> dict[str, Tally]:
    """Tallies by fix."""
    together: dict[str, tuple[Tally, list[tuple[int, Vote]]]] = {}
    for trial, vote in votes:
        together.setdefault(trial.fix, (Tally.of(trial), []))[1].append((trial.tried, vote))
    return {id: tally.anew(counted(some)) for id, (tally, some) in together.items()}


def grouped(votes: Iterable[tuple[Trial, Vote]]) -> dict[str, list[Tally]]:
    """Tallies by pattern, the latest first."""
    groups: dict[str, list[Tally]] = {}
    for tally in sorted(tallied(votes).values(), key=lambda each: -each.last):
        groups.setdefault(pattern_id(tally.tool, tally.fingerprint), []).append(tally)
    return groups


# When it is proof enough


class Verdict(Record, frozen=True):
    """What an operator has said about a fix."""

    approved: int = 0
    revoked: int = 0
    """When. The later one holds."""


def decided(before: Verdict, approved: bool, at: int) -> Verdict:
    return Verdict(approved=max(at, before.revoked + 1)) if approved else Verdict(revoked=max(at, before.approved + 1))


class Crowd(msgspec.Struct, frozen=True):
    """Who writes into this store, imported logs apart: how many ever did, and who in the last 30 days."""

    ever: int = 1
    active: frozenset[str] = frozenset({OWN})

    def needed(self, seen: Iterable[str]) -> int:
        """How many must have seen a correction work. These count as active themselves, or a few could wait it out."""
        return max(2, math.ceil(0.2 * len(self.active.union(seen))))


def crowd(last: Mapping[str, int], revoked: Sequence[Revocation], now: int) -> Crowd:
    """Who counts, of those who write here, by when they last did: neither logs nor who is no longer listened to."""
    gone = {IMPORT, *(each.principal for each in revoked if is_everything_of(each))}
    heard = {name: at for name, at in last.items() if name not in gone}
    return Crowd(ever=max(1, len(heard)), active=frozenset(name for name, at in heard.items() if at >= now - UNUSED))


PROOFS = 5
SURE = 0.8
UNUSED = 30 * DAY


def judged(tally: Tally, crowd: Crowd, now: int, verdict: Verdict | None = None) -> tuple[FixState, str]:
    """Whether a fix may be tried without asking, and why not."""
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
    """The same after the tool's schema changed: only `fresh`, what was tried since then, proves anything."""
    if state[0] not in ("promoted", "approved") or (verdict is not None and verdict.approved >= since):
        return state
    return state if judged(fresh, crowd, now)[0] == "promoted" else ("demoted", "the tool's schema has changed since")


def _why_unproven(tally: Tally, crowd: Crowd) -> str:
    if tally.worked < PROOFS:
        return f"it worked {tally.worked} times, and {PROOFS} are needed"
    others = tally.principals.keys() - {IMPORT}
    if crowd.ever > 1:
        if len(others) < (needed := crowd.needed(others)):
            return f"{len(others)} of those who write here saw it work, and {needed} are needed"
    elif sum(count for name, count in tally.principals.items() if name != IMPORT) < 3 or len(tally.days) < 2:
        return "it must have worked in 3 runs of this machine, on 2 days"
    if wilson(tally.worked, tally.tried) < SURE:
        return f"it worked {tally.worked} of {tally.tried} times, which is not sure enough"
    return ""


def told(tally: Tally, state: tuple[FixState, str], likeness: float = 1.0) -> Fix:
    """A fix with its record, as others hear of it."""
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
    )


def told_agents(agents: Mapping[str, int]) -> dict[str, int]:
    """Those for whom it worked the most often, as others hear of them."""
    return dict(sorted(agents.items(), key=lambda item: (-item[1], item[0]))[:AGENTS])
