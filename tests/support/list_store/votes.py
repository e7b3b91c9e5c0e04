"""What was tried against failures of one tenant, who says so, and what that answers; counted when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from list_store.histories import Histories
from mulligan.contract.store import (
    ITEMS_KIND,
    SCHEMA_KIND,
    ArgumentTypes,
    FixQuery,
    ForgetRequest,
    RecallQuery,
    Revocation,
    RevokeResult,
    RunQuery,
    TrialReport,
    argument_types,
    parse_items,
    schema_change_times,
    schema_changed_at,
)
from mulligan.core import calls
from mulligan.core.records import Fix, History, Link, Precedent, Run, Step, ValueProfile, encode, pattern_id
from mulligan.core.run_links import link_recoveries
from mulligan.learn import fixes, patterns, prerequisites, profiles
from mulligan.learn.fixes import FixRecord, OperatorDecision, Trial, Vote
from mulligan.learn.profiles import build_profile
from mulligan.learn.telling import Profile
from mulligan.store import erasure, fix_queries, fix_votes


class Votes:
    """Each run that is kept votes by what happened in it. Of runs that are gone, and of reports, votes are kept."""

    def __init__(self, histories: Histories, values: Mapping[tuple[str, str], bytes]) -> None:
        self._histories, self._values = histories, values
        self._kept: list[tuple[Trial, Vote]] = []
        self._verdicts: dict[str, OperatorDecision] = {}
        self._revocations: list[Revocation] = []
        self._heard: dict[str, int] = {}
        """Principals, and when each was last heard of."""

    def __len__(self) -> int:
        """How many rows it would be in a database."""
        return len(self._kept) + len(self._verdicts) + len(self._revocations) + len(self._heard)

    # Taken in

    def hear(self, principal: str, now: int) -> None:
        self._heard[principal] = max(self._heard.get(principal, 0), now)

    def keep(self, history: History) -> None:
        """Those of a run that is about to go."""
        self._kept.extend(self._of(history))

    def report(self, fix: str, report: TrialReport, now: int) -> bool:
        """Record the outcome of a fix as reported. Return whether the fix exists."""
        known = next((trial for trial, _ in self.all() if trial.fix == fix), None)
        if known is None:
            return False
        self.hear(report.principal, now)
        vote = Vote.from_report(report, now)
        if not any(fixes.is_revoked(each, vote.principal, known.step.name, vote.at) for each in self._revocations):
            trial = replace(
                known,
                failed_call=fix_votes.REPORTED,
                tried_call=vote.at,
                at=vote.at,
                successful=vote.successful,
                prerequisite_calls=(),
            )
            self._kept.append((trial, vote))
        return True

    def decide(self, fix: str, approved: bool, at: int) -> bool:
        """An operator's verdict on a fix; whether it is known."""
        is_known = any(trial.fix == fix for trial, _ in self.all())
        if is_known:
            self._verdicts[fix] = fixes.apply_decision(self._verdicts.get(fix, OperatorDecision()), approved, at)
        return is_known

    # Taken back

    def revoke(self, what: Revocation) -> RevokeResult:
        before = self.all()
        self._revocations.append(what)
        started = {id: run.started_at for id, run in self._histories.runs.items()}
        self._kept = [
            (trial, vote)
            for trial, vote in self._kept
            if not fixes.is_revoked(what, vote.principal, trial.step.name, started.get(vote.run, vote.at))
        ]
        left = self.all()
        gone = [each for each in before if each not in left]
        self._forget_verdicts()
        return RevokeResult(
            runs=len({vote.run for _, vote in gone}), votes=len(gone), fixes=len({trial.fix for trial, _ in gone})
        )

    def forget(self, what: ForgetRequest) -> None:
        """What was learned from runs that are gone, or reported, and what operators said of what is not known now."""
        left = []
        for trial, vote in self._kept:
            if vote.run == what.run or what.tool in (trial.step.name, *trial.action.tools):
                continue
            if what.text is not None:
                if what.text in vote.run or erasure.may_contain(encode(FixRecord.from_trial(trial)), what.text):
                    continue
                trial = replace(
                    trial,
                    prerequisite_calls=()
                    if erasure.may_contain(encode(trial.prerequisite_calls), what.text)
                    else trial.prerequisite_calls,
                )
                vote = replace(vote, agent=vote.agent.replace(what.text, erasure.ERASED_MARK))
            left.append((trial, vote))
        self._kept = left
        self._forget_verdicts()

    def _forget_verdicts(self) -> None:
        known = {trial.fix for trial, _ in self.all()}
        self._verdicts = {id: verdict for id, verdict in self._verdicts.items() if id in known}

    # Asked

    def all(self) -> list[tuple[Trial, Vote]]:
        found = list(self._kept)
        for history in self._histories.every():
            found += self._of(history)
        return found

    def _of(self, history: History) -> list[tuple[Trial, Vote]]:
        run = history.run
        return [
            (trial, Vote.from_trial(run, self._writer(run), self._histories.came(run.id)[0], trial))
            for trial in fix_queries.find_run_trials(run, history.steps)
            if not self._is_revoked(run, trial.step.name)
        ]

    def _writer(self, run: Run) -> str:
        return self._histories.writers.get(run.id, fixes.LOCAL_PRINCIPAL)

    def _is_revoked(self, run: Run, tool: str) -> bool:
        return any(fixes.is_revoked(each, self._writer(run), tool, run.started_at) for each in self._revocations)

    def precedents(self, question: RecallQuery) -> list[Precedent]:
        """What overcame the same failure before."""
        links: list[Link] = []
        seen: set[str] = set()
        for run in self._histories.runs.values():
            if self._is_revoked(run, question.tool):
                continue
            steps = self._histories.steps_of(run.id)
            asked = {call.id for call in calls.group_attempts(steps) if is_asked(call, question)}
            known = [link for link in link_recoveries(steps, run) if link.failed_call in asked]
            links += known
            if known or (run.id != question.run and any(has_met(step, question) for step in steps)):
                seen.add(run.id)
        return group_precedents(links, len(seen))[: max(question.limit, 0)]

    def fixes(self, query: FixQuery, seen: Sequence[tuple[str, bytes]]) -> list[Fix]:
        """What is known to help, the likeliest first. `seen` are the schemas of tools, as they are on the shelf."""
        votes = [each for each in self.all() if not query.excluded_run or each[1].run != query.excluded_run]
        groups = group_by_pattern(each for each in votes if query.tool in (None, each[0].step.name))
        asked = [(1.0, each) for each in groups.values()]
        if query.fingerprint and query.tool is not None:
            own = groups.get(pattern_id(query.tool, query.fingerprint), [])
            asked = [(1.0, own)]
            if query.text and not own:
                texts = {
                    pattern_id(trial.step.name, trial.fingerprint): patterns.extract_message_and_template(trial.step)[1]
                    for trial, _ in reversed(votes)
                }
                known = [(id, patterns.sketch(texts[id])) for id in groups]
                near = [each for each in patterns.nearest(query.text, known) if self._is_of(each[1], query.kind)]
                asked += [(likeness, groups[id]) for likeness, id in near[: prerequisites.MAX_SIMILAR_PATTERNS]]

        if not any(tallies for _, tallies in asked) and query.is_about_failure:
            return profiles.suggest_from_exemplars(query, self._worked(query)) if query.argument_types else []

        return prerequisites.rank_fixes(asked, query, self.known(votes, query, seen))

    def _is_of(self, pattern: str, kind: str) -> bool:
        """Whether failures of a pattern are of this kind, as far as theirs is known: that of the first of them."""
        met = self._histories.tallies().get(pattern) if kind else None
        return met is None or met.to_pattern().kind == kind

    def known(
        self, votes: Sequence[tuple[Trial, Vote]], query: FixQuery, seen: Sequence[tuple[str, bytes]]
    ) -> prerequisites.FixContext:
        """What is known beside the tallies."""

        def samples(ids: Sequence[str]) -> dict[str, list[tuple[int, Any]]]:
            return {fix: of_fix(fix) for fix in ids}

        def of_fix(fix: str) -> list[tuple[int, Any]]:
            told = [(vote.at, vote.run, trial.prerequisite_calls) for trial, vote in votes
                    if trial.fix == fix and vote.successful and trial.prerequisite_calls]  # fmt: skip
            told.sort(key=lambda each: each[:2], reverse=True)
            return [(at, done) for at, _, done in told[: prerequisites.MAX_SAMPLES_PER_FIX]]

        def fresh(tally: FixRecord, since: int) -> FixRecord:
            some = ((trial.tried_call, vote) for trial, vote in votes if trial.fix == tally.id and vote.at >= since)
            return tally.recount(fixes.select_counted_votes(some)[-fix_queries.MAX_RECOUNTED_VOTES :])

        promotion = prerequisites.PromotionFacts(
            fixes.find_writers(self._heard, self._revocations, query.now), schema_change_times(seen, query)
        )

        def profile(tool: str, key: str) -> Profile:
            return self._profile(tool, key, query.excluded_run)

        def count_runs(tool: str, fingerprint: str) -> int:
            met = self._histories.tallies().get(pattern_id(tool, fingerprint))
            return met.to_pattern().runs - query.is_about_failure if met is not None else 0

        return prerequisites.FixContext(self._verdicts, lambda: promotion, samples, fresh, profile, count_runs)

    def value_profiles(self, tool: str, key: str) -> list[ValueProfile]:
        """What the latest successful calls had in common, since the schema of the tool changed."""
        changed_at = schema_changed_at(self._values.get((SCHEMA_KIND, tool)))
        calls: list[tuple[int, Any]] = []
        for run, history in enumerate(self._latest(tool, fix_queries.MAX_PROFILED_CALLS)):
            if history.run.started_at >= changed_at:
                calls += [(run, arguments) for arguments in self._successes(history, tool, key)]
        return profiles.build_value_profiles(calls[: fix_queries.MAX_PROFILED_CALLS], self._items(tool, key))

    def _latest(self, tool: str, limit: int = profiles.MAX_EXEMPLARS) -> list[History]:
        """The latest runs that used a tool and were not revoked."""
        histories = self._histories.asked(RunQuery(tool=tool), set())
        return [history for history in histories if not self._is_revoked(history.run, tool)][:limit]

    def _successes(self, history: History, tool: str, key: str) -> list[Any]:
        """The arguments of the latest successful calls of a run."""
        worked = [step for step in reversed(history.steps) if step.name == tool and step.outcome == "success"]
        return [step.arguments for step in worked[: profiles.MAX_EXEMPLARS] if not key or step.key in (None, key)]

    def _profile(self, tool: str, key: str, without: str) -> Profile:
        calls: list[tuple[str, Any]] = []
        for history in self._latest(tool):
            if history.run.id == without:
                continue
            calls += [(history.run.agent, arguments) for arguments in self._successes(history, tool, key)]
        return build_profile(calls[: fix_queries.MAX_PROFILED_CALLS])

    def _items(self, tool: str, key: str) -> frozenset[str]:
        return parse_items(self._values.get((ITEMS_KIND, key or tool)))

    def _worked(self, query: FixQuery) -> list[ArgumentTypes]:
        """The latest calls of a tool that worked."""
        tool = query.tool or ""
        found: list[ArgumentTypes] = []
        for history in self._latest(tool):
            if len(found) >= profiles.MAX_EXEMPLARS:
                break
            if history.run.id != query.excluded_run:
                worked = [step for step in reversed(history.steps) if step.name == tool and step.outcome == "success"
                          and len(encode(step)) < profiles.MAX_BODY_BYTES]  # fmt: skip
                found += [argument_types(step.arguments) for step in worked[: profiles.MAX_EXEMPLARS]]
        return profiles.sample_by_shape(found)

    def evidence(self, fix: str, limit: int) -> list[TrialReport]:
        votes = [(vote, trial.tried_call) for trial, vote in self.all() if trial.fix == fix]
        votes.sort(key=lambda each: (-each[0].at, each[0].run, each[1]))
        return [
            TrialReport(run=vote.run, principal=vote.principal, agent=vote.agent, at=vote.at,
                        successful=vote.successful, automatic=vote.actor == "fix")
            for vote, _ in votes[: max(limit, 0)]
        ]  # fmt: skip


def is_asked(call: calls.Call, question: RecallQuery) -> bool:
    """Whether what went wrong last with this call is what the question is about."""
    failure = call.failure
    return call.name == question.tool and failure is not None and failure.fingerprint == question.fingerprint


def has_met(step: Step, question: RecallQuery) -> bool:
    failure = step.failure if step.has_failed else None
    return step.name == question.tool and failure is not None and failure.fingerprint == question.fingerprint


def group_precedents(links: Iterable[Link], run_count: int) -> list[Precedent]:
    """Group recovery links into precedents, the most frequent first. The same change in several runs is one
    precedent."""
    runs: dict[object, set[str]] = {}
    first: dict[object, Link] = {}
    for link in links:
        shape = calls.precedent_key(link)
        runs.setdefault(shape, set()).add(link.run)
        # Choose the representative link independently of input order, so that two stores return the same precedents.
        first[shape] = min(first.get(shape, link), link, key=lambda candidate: (candidate.run, candidate.failed_call))
    return calls.rank_precedents([(len(runs[shape]), link) for shape, link in first.items()], run_count)


def count_votes(votes: Iterable[tuple[Trial, Vote]]) -> dict[str, FixRecord]:
    """Return fix records by fix id."""
    votes_by_fix: dict[str, tuple[FixRecord, list[tuple[int, Vote]]]] = {}
    for trial, vote in votes:
        votes_by_fix.setdefault(trial.fix, (FixRecord.from_trial(trial), []))[1].append((trial.tried_call, vote))
    return {
        id: record.recount(fixes.select_counted_votes(numbered_votes))
        for id, (record, numbered_votes) in votes_by_fix.items()
    }


def group_by_pattern(votes: Iterable[tuple[Trial, Vote]]) -> dict[str, list[FixRecord]]:
    """Return fix records by pattern id, last tried first."""
    groups: dict[str, list[FixRecord]] = {}
    for record in sorted(count_votes(votes).values(), key=lambda record: -record.last_tried_at):
        groups.setdefault(pattern_id(record.tool, record.fingerprint), []).append(record)
    return groups
