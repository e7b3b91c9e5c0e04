"""A Store in a list: for tests, and for those who want recovery and no file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import RLock
from typing import Any

from msgspec.structs import replace

from mulligan import calls, figures
from mulligan.events import AnyEvent, ContextCompacted, RunEnded, RunStarted, StepEnded
from mulligan.failure import StoreError
from mulligan.figures import Stats, StatsQuery
from mulligan.records import (
    Compaction,
    Fix,
    History,
    Lesson,
    LessonSource,
    LessonVerdict,
    Link,
    Pattern,
    Precedent,
    Run,
    Step,
    encode,
    pattern_id,
)
from mulligan.remember import (
    audit,
    exemplars,
    fixes,
    forgetting,
    learning,
    patterns,
    recipes,
    retention,
    schemas,
    similar,
    voting,
)
from mulligan.remember.fixes import Tally as FixTally
from mulligan.remember.fixes import Trial, Vote
from mulligan.remember.lessons.listed import Facts, LessonList
from mulligan.remember.lessons.making import EVERY
from mulligan.remember.patterns import Decision, Sighting, Tally
from mulligan.remember.store import (
    IMPORTED,
    Act,
    AuditQuery,
    Batch,
    Command,
    Consolidated,
    Evidence,
    FixQuery,
    Forget,
    Forgotten,
    Health,
    LessonQuery,
    Noted,
    PatternQuery,
    Progress,
    Pruned,
    Question,
    Retention,
    Revocation,
    Revoked,
    RunQuery,
    Shape,
    now,
    shape_of,
)

QUICK = 1000
"""Runs of which lessons are made in the background."""


class MemoryStore:
    """Keeps everything for as long as the process lives."""

    def __init__(self, clock: Callable[[], int] = now) -> None:
        self._lock = RLock()
        self._clock = clock
        self._runs: dict[tuple[str, str], Run] = {}
        self._steps: dict[tuple[str, str], dict[int, Step]] = {}
        self._kept: dict[tuple[str, str], tuple[int, bool]] = {}
        """When a run came, and whether it happened elsewhere."""
        self._offsets: dict[tuple[str, str], int] = {}
        self._shelf: dict[tuple[str, str, str], bytes] = {}
        self._decisions: dict[str, dict[str, Decision]] = {}
        self._compactions: dict[tuple[str, str, str], dict[int, Compaction]] = {}
        self._pruned: dict[str, list[Sighting]] = {}
        self._counted: dict[str, figures.Cells] = {}
        """What is gone and still counted."""
        self._writers: dict[tuple[str, str], str] = {}
        """Who wrote a run."""
        self._principals: dict[str, dict[str, int]] = {}
        self._votes: dict[str, list[tuple[Trial, Vote]]] = {}
        """Of runs that were pruned, and those that were reported."""
        self._verdicts: dict[str, dict[str, fixes.Verdict]] = {}
        self._revocations: dict[str, list[Revocation]] = {}
        self._audit: dict[str, list[Act]] = {}
        self._lessons: dict[str, LessonList] = {}

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int, principal: str = "") -> int:
        with self._lock:
            if offset <= self._offsets.get((tenant, journal), 0):
                return 0
            self._offsets[tenant, journal] = offset
            is_imported = journal.startswith(IMPORTED)
            principal = fixes.IMPORT if is_imported else principal or fixes.OWN
            self._hear(tenant, principal)
            for event in batch:
                if isinstance(event, RunStarted | RunEnded):
                    self._writers.setdefault((tenant, event.run.id), principal)
            return sum(self._keep(tenant, event, is_imported) for event in batch)

    def append_all(self, batches: Sequence[Batch]) -> list[int]:
        with self._lock:
            return [self.append(*each) for each in batches]

    def _hear(self, tenant: str, principal: str) -> None:
        heard = self._principals.setdefault(tenant, {})
        heard[principal] = max(heard.get(principal, 0), self._clock())

    def _keep(self, tenant: str, event: AnyEvent, is_imported: bool) -> bool:
        match event:
            case RunStarted(run):
                is_new = (tenant, run.id) not in self._runs
                if is_new:
                    self._put_run(tenant, run, is_imported)
                return is_new
            case RunEnded(run):
                is_new = self._runs.get((tenant, run.id)) != run
                if is_new:
                    self._put_run(tenant, run, is_imported)
                return is_new
            case StepEnded(step):
                steps = self._steps.setdefault((tenant, step.run), {})
                is_new = step.seq not in steps
                steps.setdefault(step.seq, step)
                self._kept.setdefault((tenant, step.run), (self._clock(), is_imported))
                return is_new
            case ContextCompacted(compaction):
                return self._keep_compaction(tenant, compaction)
            case _:
                return False

    def _keep_compaction(self, tenant: str, compaction: Compaction) -> bool:
        sort, owner = ("run", compaction.run) if compaction.run is not None else ("session", compaction.session)
        if owner is None:
            return False
        known = self._compactions.setdefault((tenant, sort, owner), {})
        is_new = compaction.at not in known
        known.setdefault(compaction.at, compaction)
        return is_new

    def _compactions_of(self, tenant: str, run: Run) -> tuple[Compaction, ...]:
        """Its own, and those of its session since it began, and the last before."""
        found = list(self._compactions.get((tenant, "run", run.id), {}).values())
        if run.session is not None:
            of_session = self._compactions.get((tenant, "session", run.session), {}).values()
            before = max((each.at for each in of_session if each.at < run.started), default=run.started)
            found += [compaction for compaction in of_session if compaction.at >= before]
        return tuple(sorted(found, key=lambda compaction: compaction.at))

    def _put_run(self, tenant: str, run: Run, is_imported: bool) -> None:
        key = tenant, run.id
        if key not in self._runs:
            since, _ = self._kept.get(key, (self._clock(), False))  # when the first of it came
            self._kept[key] = since, is_imported
        self._runs[key] = run

    def offset(self, tenant: str, journal: str) -> int:
        return self._offsets.get((tenant, journal), 0)

    def journals(self, tenant: str) -> list[str]:
        return [journal for owner, journal in list(self._offsets) if owner == tenant]

    def release(self, tenant: str, journals: Sequence[str]) -> None:
        for journal in journals:
            self._offsets.pop((tenant, journal), None)

    def runs(self, tenant: str, query: RunQuery) -> list[History]:
        return self._found(tenant, query)[: max(query.limit, 0)]

    def _found(self, tenant: str, query: RunQuery) -> list[History]:
        with self._lock:
            runs = [run for (owner, _), run in self._runs.items() if owner == tenant and is_run_asked(run, query)]
            newest = sorted(runs, key=lambda run: (run.started, run.id), reverse=True)
            histories = [self._history(tenant, run) for run in newest]
            asked = self._asked_patterns(tenant, query.pattern)
        return [history for history in histories if is_history_asked(history, query, asked)]

    def _asked_patterns(self, tenant: str, id: str | None) -> set[str]:
        known = self.pattern(tenant, id) if id is not None else None
        return {known.id, *known.merged} if known is not None else set()

    def run(self, tenant: str, id: str) -> History | None:
        with self._lock:
            run = self._runs.get((tenant, id))
        return None if run is None else self._history(tenant, run)

    def known(self, tenant: str, ids: Sequence[str]) -> set[str]:
        with self._lock:
            return {id for id in ids if (tenant, id) in self._runs}

    def _history(self, tenant: str, run: Run) -> History:
        steps = self._steps_of(tenant, run.id)
        compactions = self._compactions_of(tenant, run)
        return History(run=run, steps=tuple(steps), links=tuple(calls.overcame(steps)), compactions=compactions)

    def _steps_of(self, tenant: str, run: str) -> list[Step]:
        with self._lock:
            return sorted(self._steps.get((tenant, run), {}).values(), key=lambda step: step.seq)

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        runs = [history.run for history in self._found(tenant, RunQuery())]
        return [run for run in runs if run.id.startswith(prefix)][: max(limit, 0)]

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        yield from reversed(self._found(tenant, RunQuery(since=since)))

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> Pruned:
        """By age and by sampling; there is no file whose size could be bounded."""
        runs = steps = sampled = 0
        with self._lock:
            for history in self._found(tenant, RunQuery()):
                kept, is_imported = self._kept[tenant, history.run.id]
                if is_imported and not policy.imports:
                    continue
                status = calls.status(history.run, history.steps, history.links)
                if retention.is_expired(status, kept, policy, now):
                    runs, steps = runs + 1, steps + len(history.steps)
                    left = None
                elif kept < now - policy.sample_after:
                    left = retention.sampled(history, policy.sample)
                    sampled += len(history.steps) - len(left.steps if left else ())
                else:
                    continue
                if not dry_run:
                    self._shrink(tenant, history, left)
            if not dry_run:
                self._note(tenant, "prune", told=audit.counted(runs=runs, steps=steps))
        return Pruned(runs=runs, steps=steps, sampled=sampled)

    def _shrink(self, tenant: str, history: History, left: History | None) -> None:
        key = tenant, history.run.id
        counted = self._counted.setdefault(tenant, {})
        figures.add(counted, figures.cells(history))
        if left is not None:
            figures.add(counted, figures.cells(left), -1)
        if left is None:
            self._pruned.setdefault(tenant, []).extend(patterns.sightings(history))
            self._votes.setdefault(tenant, []).extend(self._votes_of(tenant, history))
            del self._runs[key], self._kept[key]
            self._steps.pop(key, None)
            self._compactions.pop((tenant, "run", history.run.id), None)
        else:
            self._steps[key] = {step.seq: step for step in left.steps}

    def forget(self, tenant: str, what: Forget) -> Forgotten:
        forgetting.check(what)
        with self._lock:
            before = set(self._tallies(tenant))
            runs = steps = 0
            compacted = {(owner, name) for owner, sort, name in self._compactions if sort == "run"}
            for owner, run in sorted({*self._runs, *self._steps, *compacted}):
                if owner == tenant:
                    gone, touched = self._forget_in(tenant, run, what)
                    runs, steps = runs + gone, steps + touched
            self._forget_pruned(tenant, what)
            self._forget_votes(tenant, what)
            shelf = self._forget_shelf(tenant, what)
            lost = before - set(self._tallies(tenant))
            self._lessons_of(tenant).forget(what)
            decisions = self._decisions.get(tenant, {})
            self._decisions[tenant] = {
                id: decision for id, decision in decisions.items() if id not in lost and decision.into not in lost
            }
            if what.text is not None:
                text, acts = what.text, self._audit.get(tenant, [])
                self._audit[tenant] = [forgetting.without(act, text) for act in acts]
            told = audit.counted(runs=runs, steps=steps, patterns=len(lost), notes=shelf)
            self._note(tenant, f"forget.{forgetting.sort(what)}", told=told)
        return Forgotten(runs=runs, steps=steps, patterns=len(lost), shelf=shelf)

    def _forget_in(self, tenant: str, id: str, what: Forget) -> tuple[int, int]:
        """How many runs (none or one) and steps were removed or changed."""
        run, steps = self._runs.get((tenant, id)), self._steps.get((tenant, id), {})
        is_text_in_id = what.text is not None and what.text in id
        if what.run == id or is_text_in_id or (what.session is not None and run and run.session == what.session):
            return self._forget_run(tenant, id)
        if what.tool is not None:
            left = {seq: step for seq, step in steps.items() if step.name != what.tool}
            if len(left) == len(steps):
                return 0, 0
            if not left:
                return self._forget_run(tenant, id)
            self._steps[tenant, id] = left
            return 0, len(steps) - len(left)
        if what.text is not None:
            cleaned = {seq: forgetting.without(step, what.text) for seq, step in steps.items()}
            changed = sum(cleaned[seq] != step for seq, step in steps.items())
            self._steps[tenant, id] = cleaned
            if run is not None and (clean := forgetting.without(run, what.text)) != run:
                self._runs[tenant, id] = clean
                return 1, changed
            return 0, changed
        return 0, 0

    def _forget_run(self, tenant: str, id: str) -> tuple[int, int]:
        steps = self._steps.pop((tenant, id), {})
        self._kept.pop((tenant, id), None)
        self._compactions.pop((tenant, "run", id), None)
        return int(self._runs.pop((tenant, id), None) is not None), len(steps)

    def _forget_pruned(self, tenant: str, what: Forget) -> None:
        """Of what is only counted any more, names and messages are left."""
        left = [each for each in self._pruned.get(tenant, ()) if each.step.name != what.tool]
        counted = self._counted.get(tenant, {})
        self._counted[tenant] = {
            place: cell for place, cell in counted.items() if not (place.type and place.name == what.tool)
        }
        if what.text is not None:
            left = [replace(each, step=forgetting.without(each.step, what.text)) for each in left]
        self._pruned[tenant] = left

    def _forget_votes(self, tenant: str, what: Forget) -> None:
        """What was learned from runs that are gone, or reported, and what operators said of what is not known now."""
        left = []
        for trial, vote in self._votes.get(tenant, ()):
            if vote.run == what.run or what.tool in (trial.step.name, *trial.form.names):
                continue
            if what.text is not None:
                if what.text in vote.run or forgetting.holds(encode(fixes.Tally.of(trial)), what.text):
                    continue
                trial = replace(trial, done=() if forgetting.holds(encode(trial.done), what.text) else trial.done)
                vote = replace(vote, agent=vote.agent.replace(what.text, forgetting.FORGOTTEN))
            left.append((trial, vote))
        self._votes[tenant] = left
        known = {trial.fix for trial, _ in self._all_votes(tenant)}
        verdicts = self._verdicts.get(tenant, {})
        self._verdicts[tenant] = {id: verdict for id, verdict in verdicts.items() if id in known}

    def _forget_shelf(self, tenant: str, what: Forget) -> int:
        gone = [
            place
            for place, value in self._shelf.items()
            if place[0] == tenant and forgetting.is_on_shelf(*place[1:], value, what)
        ]
        for place in gone:
            del self._shelf[place]
        return len(gone)

    def erase(self, tenant: str) -> int:
        erased = 0
        with self._lock:
            for kept in vars(self).values():
                if isinstance(kept, dict) and kept is not self._audit:  # by tenant, or by a tenant and something of it
                    gone = [key for key in kept if (key[0] if isinstance(key, tuple) else key) == tenant]
                    erased += len([kept.pop(key) for key in gone])
            if erased:
                self._note(tenant, "tenant.erase", told=audit.counted(rows=erased))
        return erased

    def audit(self, tenant: str, query: AuditQuery) -> list[Act]:
        with self._lock:
            acts = [act for act in self._audit.get(tenant, ()) if audit.is_asked(act, query)]
        return sorted(acts, key=lambda act: (act.at, act.id), reverse=True)[: max(query.limit, 0)]

    def _note(self, tenant: str, do: str, about: str = "", told: str = "") -> None:
        self._audit.setdefault(tenant, []).append(audit.entry(do, self._clock(), about, told))

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        raise StoreError("a store in memory cannot be backed up. Name a file: --store sqlite:///PATH")

    def health(self, tenant: str) -> Health:
        with self._lock:
            runs = sum(owner == tenant for owner, _ in self._runs)
            steps = sum(len(steps) for (owner, _), steps in self._steps.items() if owner == tenant)
        return Health(where="memory", sound=True, runs=runs, steps=steps)

    def close(self) -> None:
        """Nothing to let go of: what is kept goes with the object."""

    def recall(self, tenant: str, question: Question) -> list[Precedent]:
        with self._lock:
            runs = [
                run.id
                for (owner, _), run in self._runs.items()
                if owner == tenant and not self._is_revoked(tenant, run, question.tool)
            ]
        links: list[Link] = []
        seen: set[str] = set()
        for run in runs:
            steps = self._steps_of(tenant, run)
            asked = {call.id for call in calls.joined(steps) if is_asked(call, question)}
            known = [link for link in calls.overcame(steps) if link.failed in asked]
            links += known
            if known or (run != question.run and any(has_met(step, question) for step in steps)):
                seen.add(run)
        return calls.precedents(links, len(seen))[: max(question.limit, 0)]

    def _is_revoked(self, tenant: str, run: Run, tool: str) -> bool:
        who = self._writers.get((tenant, run.id), fixes.OWN)
        revoked = self._revocations.get(tenant, ())
        return any(fixes.is_revoked(each, who, tool, run.started) for each in revoked)

    def _votes_of(self, tenant: str, history: History) -> list[tuple[Trial, Vote]]:
        run = history.run
        who = self._writers.get((tenant, run.id), fixes.OWN)
        return [
            (trial, fixes.Vote(run.id, who, run.agent, trial.at, trial.worked, trial.is_automatic))
            for trial in learning.trials_of(history.steps)
            if not self._is_revoked(tenant, run, trial.step.name)
        ]

    def _all_votes(self, tenant: str) -> list[tuple[Trial, Vote]]:
        found = list(self._votes.get(tenant, ()))
        for history in self._found(tenant, RunQuery()):
            found += self._votes_of(tenant, history)
        return found

    def fixes(self, tenant: str, query: FixQuery) -> list[Fix]:
        with self._lock:
            votes = [each for each in self._all_votes(tenant) if not query.without or each[1].run != query.without]
        tallies = fixes.tallied(votes)
        groups: dict[str, list[fixes.Tally]] = {}
        for tally in sorted(tallies.values(), key=lambda each: -each.last):
            if query.tool is None or tally.tool == query.tool:
                groups.setdefault(pattern_id(tally.tool, tally.fingerprint), []).append(tally)
        asked = [(1.0, each) for each in groups.values()]
        if query.fingerprint and query.tool is not None:
            own = groups.get(pattern_id(query.tool, query.fingerprint), [])
            asked = [(1.0, own)]
            if query.text and not own:
                texts = {pattern_id(trial.step.name, trial.fingerprint): patterns.worded(trial.step)[1]
                         for trial, _ in reversed(votes)}  # fmt: skip
                kinds = {pattern_id(trial.step.name, trial.fingerprint): trial.step.failure.kind
                         for trial, _ in reversed(votes) if trial.step.failure is not None}  # fmt: skip
                known = [(id, similar.sketch(texts[id])) for id in groups]
                near = [each for each in similar.nearest(query.text, known) if query.kind in ("", kinds[each[1]])]
                asked += [(likeness, groups[id]) for likeness, id in near[: recipes.ALIKE]]

        if not any(tallies for _, tallies in asked) and query.is_question:
            return exemplars.drawn(query, self._worked(tenant, query)) if query.shape else []

        return recipes.answered(asked, query, self._known(tenant, votes, query))

    def _known(self, tenant: str, votes: Sequence[tuple[Trial, Vote]], query: FixQuery) -> recipes.Known:
        """What is known beside the tallies."""
        with self._lock:
            heard, revoked = self._principals.get(tenant, {}), self._revocations.get(tenant, [])
            seen = [(key, value) for (owner, kind, key), value in self._shelf.items()
                    if owner == tenant and kind == schemas.KIND]  # fmt: skip

        def samples(ids: Sequence[str]) -> dict[str, list[tuple[int, Any]]]:
            return {fix: of_fix(fix) for fix in ids}

        def of_fix(fix: str) -> list[tuple[int, Any]]:
            told = [(vote.at, vote.run, trial.done) for trial, vote in votes
                    if trial.fix == fix and vote.worked and trial.done]  # fmt: skip
            told.sort(key=lambda each: each[:2], reverse=True)
            return [(at, done) for at, _, done in told[: recipes.EACH]]

        def fresh(tally: FixTally, since: int) -> FixTally:
            some = ((trial.tried, vote) for trial, vote in votes if trial.fix == tally.id and vote.at >= since)
            return tally.anew(fixes.counted(some)[-learning.FRESH :])

        crowd = fixes.crowd(heard, revoked, query.now)
        return recipes.Known(crowd, self._verdicts.get(tenant, {}), samples, schemas.since(seen, query), fresh)

    def _worked(self, tenant: str, query: FixQuery) -> list[Shape]:
        """The latest calls of a tool that worked."""
        tool = query.tool or ""
        return exemplars.capped(
            shape_of(step.arguments)
            for history in self._found(tenant, RunQuery(tool=tool))[: exemplars.MOST]
            if history.run.id != query.without and not self._is_revoked(tenant, history.run, tool)
            for step in reversed(history.steps)
            if step.name == tool and step.outcome == "success" and len(encode(step)) < exemplars.LARGEST
        )

    def evidence(self, tenant: str, fix: str, limit: int = 100) -> list[Evidence]:
        with self._lock:
            votes = [(vote, trial.tried) for trial, vote in self._all_votes(tenant) if trial.fix == fix]
        votes.sort(key=lambda each: (-each[0].at, each[0].run, each[1]))
        return [
            Evidence(run=vote.run, principal=vote.principal, agent=vote.agent, at=vote.at, worked=vote.worked,
                     automatic=vote.is_automatic)
            for vote, _ in votes[: max(limit, 0)]
        ]  # fmt: skip

    def outcome(self, tenant: str, fix: str, report: Evidence) -> bool:
        with self._lock:
            known = next((trial for trial, _ in self._all_votes(tenant) if trial.fix == fix), None)
            if known is None:
                return False
            self._hear(tenant, report.principal)
            vote = fixes.Vote.reported(report)
            revoked = self._revocations.get(tenant, ())
            if not any(fixes.is_revoked(each, vote.principal, known.step.name, vote.at) for each in revoked):
                trial = replace(known, failed=voting.REPORTED, tried=vote.at, at=vote.at, worked=vote.worked, done=())
                self._votes.setdefault(tenant, []).append((trial, vote))
            return True

    def decide(self, tenant: str, fix: str, approved: bool, at: int) -> bool:
        with self._lock:
            is_known = self._decide(tenant, fix, approved, at)
            if is_known:
                self._note(tenant, "fix.approve" if approved else "fix.revoke", fix)
            return is_known

    def _decide(self, tenant: str, fix: str, approved: bool, at: int) -> bool:
        with self._lock:
            if not any(trial.fix == fix for trial, _ in self._all_votes(tenant)):
                return False
            verdicts = self._verdicts.setdefault(tenant, {})
            verdicts[fix] = fixes.decided(verdicts.get(fix, fixes.Verdict()), approved, at)
            return True

    def revoke(self, tenant: str, what: Revocation) -> Revoked:
        with self._lock:
            before = self._all_votes(tenant)
            self._revocations.setdefault(tenant, []).append(what)
            started = {id: run.started for (owner, id), run in self._runs.items() if owner == tenant}
            self._votes[tenant] = [
                (trial, vote)
                for trial, vote in self._votes.get(tenant, ())
                if not fixes.is_revoked(what, vote.principal, trial.step.name, started.get(vote.run, vote.at))
            ]
            left = self._all_votes(tenant)
            gone = [each for each in before if each not in left]
            known = {trial.fix for trial, _ in left}
            verdicts = self._verdicts.get(tenant, {})
            self._verdicts[tenant] = {id: verdict for id, verdict in verdicts.items() if id in known}
            self._note(
                tenant, "memory.revoke", told=audit.named(principal=what.principal, tool=what.tool, since=what.since)
            )
        return Revoked(
            runs=len({vote.run for _, vote in gone}), votes=len(gone), fixes=len({trial.fix for trial, _ in gone})
        )

    def lessons(self, tenant: str, query: LessonQuery) -> list[Lesson]:
        with self._lock:
            return self._lessons_of(tenant).asked(self._facts(tenant, query.tool, query.now), query)

    def _lessons_of(self, tenant: str) -> LessonList:
        return self._lessons.setdefault(tenant, LessonList())

    def _facts(self, tenant: str, tool: str | None, now: int) -> Facts:
        votes = self._all_votes(tenant)
        known = self._known(tenant, votes, FixQuery(tool=tool, now=now))
        started = {run.id: run.started for (owner, _), run in self._runs.items() if owner == tenant}
        return Facts(
            votes, self._tallies(tenant), known, started, lambda run, seq: self._steps[tenant, run][seq].arguments
        )

    def lesson(self, tenant: str, id: str, now: int = 0) -> Lesson | None:
        with self._lock:
            known = self._lessons_of(tenant).whole_id(id)
        query = LessonQuery(now=now or self._clock(), limit=EVERY)
        return next((each for each in self.lessons(tenant, query) if each.id == known), None)

    def keep_lesson(self, tenant: str, lesson: Lesson) -> bool:
        with self._lock:
            is_new = self._lessons_of(tenant).keep(lesson, self._clock())
            if is_new:
                self._note(tenant, "lesson.write", lesson.id)
            return is_new

    def remove_lessons(self, tenant: str, source: LessonSource) -> int:
        with self._lock:
            removed = self._lessons_of(tenant).remove(source)
            if removed:
                self._note(tenant, "lesson.remove", source, audit.counted(lessons=removed))
            return removed

    def decide_lesson(self, tenant: str, id: str, verdict: LessonVerdict, at: int) -> Lesson | None:
        with self._lock:
            kept = self._lessons_of(tenant).decide(id, verdict, at)
            if kept is None:
                return None
            if verdict == "revoke" and kept.lesson.fix:
                self._decide(tenant, kept.lesson.fix, approved=False, at=at)
            self._note(tenant, f"lesson.{verdict}", kept.lesson.id)
        return self.lesson(tenant, kept.lesson.id, at)

    def consolidate(
        self, tenant: str, now: int, progress: Progress | None = None, most: int | None = None
    ) -> Consolidated:
        """All of it, each time; where that is bounded, not of many runs: everything is counted anew here."""
        if most is not None and len(self._runs) > QUICK:
            return Consolidated(left=1)
        with self._lock:
            looked_at, news = self._lessons_of(tenant).consolidate(self._facts(tenant, None, now), now)
        told = tuple(found for id in news if (found := self.lesson(tenant, id, now)) is not None)
        return Consolidated(patterns=looked_at, lessons=told)

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        with self._lock:
            parts = [tally.pattern(query.since) for tally in self._tallies(tenant).values()]
            whole = patterns.shown(parts, self._decisions.get(tenant, {}))
        found = patterns.in_order((each for each in whole if patterns.is_asked(each, query)), query)
        return [patterns.told(pattern) for pattern in found]

    def _tallies(self, tenant: str) -> dict[str, Tally]:
        found: dict[str, Tally] = {}
        for sighting in self._pruned.get(tenant, ()):
            found.setdefault(sighting.pattern, Tally(sighting)).add(sighting, is_gone=True)
        for history in self._found(tenant, RunQuery()):
            for sighting in patterns.sightings(history):
                found.setdefault(sighting.pattern, Tally(sighting)).add(sighting)
        return found

    def pattern(self, tenant: str, id: str) -> Pattern | None:
        with self._lock:
            tallies = self._tallies(tenant)
            decisions = self._decisions.get(tenant, {})
        exact = patterns.whole_id(id, tallies)
        whole = patterns.shown([tally.pattern() for tally in tallies.values()], decisions)
        found = next((each for each in whole if exact in (each.id, *each.merged)), None)
        return None if found is None else patterns.told(found, with_examples=True)

    def change(self, tenant: str, command: Command) -> Pattern | None:
        with self._lock:
            decisions = self._decisions.setdefault(tenant, {})
            found = patterns.named(command, self._tallies(tenant), decisions)
            if found is None:
                return None
            command, changed = found
            current = self.pattern(tenant, changed)
            assert current is not None
            decisions[changed] = patterns.decided(command, decisions.get(changed, Decision()), current)
            self._note(tenant, f"pattern.{command.do}", changed, audit.named(into=command.into))
            return self.pattern(tenant, changed)

    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        counted: figures.Cells = {}
        figures.add(counted, self._counted.get(tenant, {}))
        for history in self.export(tenant):
            figures.add(counted, figures.cells(history))
        whole, parts = figures.readings(query)
        return figures.answer(query, figures.rows(counted, whole), figures.rows(counted, parts) if parts else ())

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        return self._shelf.get((tenant, kind, key))

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        self._shelf[tenant, kind, key] = value

    def swap(
        self, tenant: str, kind: str, key: str, known: bytes | None, value: bytes, noted: Noted | None = None
    ) -> bool:
        with self._lock:
            is_known = self.get(tenant, kind, key) == known
            if is_known:
                self.put(tenant, kind, key, value)
                if noted is not None:
                    self._audit.setdefault(noted.tenant, []).append(noted.act)
            return is_known

    def keys(self, tenant: str, kind: str) -> list[str]:
        return sorted(key for owner, sort, key in list(self._shelf) if (owner, sort) == (tenant, kind))


def is_run_asked(run: Run, query: RunQuery) -> bool:
    return (
        (query.agent is None or run.agent == query.agent)
        and (query.session is None or run.session == query.session)
        and (query.environment is None or run.environment == query.environment)
        and (query.version is None or run.version == query.version)
        and (query.since is None or run.started >= query.since)
        and (query.until is None or run.started < query.until)
        and (query.before is None or (run.started, run.id) < tuple(query.before))
    )


def is_history_asked(history: History, query: RunQuery, pattern: set[str]) -> bool:
    steps = history.steps
    failures = [(step, step.failure) for step in steps if step.has_failed and step.failure]
    return (
        (query.status is None or calls.status(history.run, steps, history.links) == query.status)
        and (query.tool is None or any(step.name == query.tool for step in steps))
        and (query.model is None or any(figures.model_of(history.run, step) == query.model for step in steps))
        and (query.kind is None or any(patterns.is_kind(failure.kind, query.kind) for _, failure in failures))
        and (
            query.pattern is None or any(pattern_id(step.name, each.fingerprint) in pattern for step, each in failures)
        )
    )


def is_asked(call: calls.Call, question: Question) -> bool:
    """Whether what went wrong last with this call is what the question is about."""
    failure = call.failure
    return call.name == question.tool and failure is not None and failure.fingerprint == question.fingerprint


def has_met(step: Step, question: Question) -> bool:
    failure = step.failure if step.has_failed else None
    return step.name == question.tool and failure is not None and failure.fingerprint == question.fingerprint
