"""ListStore: what every Store does, of what is in lists; each tenant has a room of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence, Sized
from pathlib import Path
from threading import RLock

from msgspec.structs import replace

from list_store.histories import Histories
from list_store.list_lessons import ListLessons, TenantFacts
from list_store.votes import Votes
from mulligan.contract import audit, counters
from mulligan.contract.counters import Stats, StatsQuery
from mulligan.contract.store import (
    FORGOTTEN_KIND,
    ITEMS_KIND,
    PATTERN_HISTORY_KIND,
    SCHEMA_KIND,
    AuditEntry,
    AuditNote,
    AuditQuery,
    Batch,
    ConsolidationResult,
    FixQuery,
    ForgetRequest,
    ForgetResult,
    Health,
    LessonQuery,
    ListedResource,
    PatternCommand,
    PatternQuery,
    Progress,
    PruneResult,
    RecallQuery,
    Retention,
    Revocation,
    RevokeResult,
    RunQuery,
    SessionQuery,
    SessionSummary,
    TrialReport,
    forgotten_key,
    import_principal,
    is_import_principal,
    merge_items,
    now,
)
from mulligan.core.events import AnyEvent, RunEnded, RunStarted
from mulligan.core.failure import StoreError
from mulligan.core.records import (
    Fix,
    History,
    Lesson,
    LessonSource,
    LessonVerdict,
    Pattern,
    Precedent,
    Run,
    ValueProfile,
    encode,
)
from mulligan.core.run_links import derive_status
from mulligan.learn import fixes, patterns
from mulligan.learn.lessons import MAX_LESSONS_PER_QUERY
from mulligan.learn.pattern_decisions import PatternDecision, add_event, apply_command, read_history
from mulligan.store import erasure, retention

QUICK = 1000
"""Runs of which lessons are made in the background."""


class _Room:
    """All that is kept of one tenant, but for what people changed: that outlives it."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.histories = Histories()
        self.shelf: dict[tuple[str, str], bytes] = {}
        self.votes = Votes(self.histories, self.shelf)
        self.lessons = ListLessons()
        self.decisions: dict[str, PatternDecision] = {}
        self.offsets: dict[str, int] = {}

    def __len__(self) -> int:
        """How many rows it would be in a database."""
        parts: list[Sized] = [self.histories, self.votes, self.lessons, self.decisions, self.shelf, self.offsets]
        return sum(map(len, parts))

    def schemas(self) -> list[tuple[str, bytes]]:
        """Those that tools were seen with."""
        return [(key, value) for (kind, key), value in self.shelf.items() if kind == SCHEMA_KIND]

    def facts(self, tool: str | None, now: int) -> TenantFacts:
        """What lessons are made of and judged by."""
        votes, histories = self.votes.all(), self.histories
        known = self.votes.known(votes, FixQuery(tool=tool, now=now), self.schemas())
        started = {run.id: run.started_at for run in histories.runs.values()}
        return TenantFacts(
            votes, histories.tallies(), known, started, lambda run, seq: histories.steps[run][seq].arguments
        )

    def pattern(self, id: str) -> Pattern | None:
        tallies = self.histories.tallies()
        exact = patterns.complete_id(id, tallies)
        parts = [tally.to_pattern() for tally in tallies.values()]
        whole = patterns.merge_patterns(parts, self.decisions, self.histories, self.clock())
        found = next((each for each in whole if exact in (each.id, *each.merged)), None)
        if found is None:
            return None
        events = read_history(self.shelf.get((PATTERN_HISTORY_KIND, found.id)))
        return patterns.limit_details(replace(found, history=events), with_examples=True)


class ListStore:
    """Keeps everything for as long as the process lives."""

    def __init__(self, clock: Callable[[], int] = now) -> None:
        self._lock = RLock()
        self._clock = clock
        self._rooms: dict[str, _Room] = {}
        self._audit: dict[str, list[AuditEntry]] = {}

    def _room(self, tenant: str) -> _Room:
        with self._lock:
            return self._rooms.setdefault(tenant, _Room(self._clock))

    # Records

    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int, principal: str = "") -> int:
        with self._lock:
            room = self._room(tenant)
            if offset <= room.offsets.get(journal, 0):
                return 0
            room.offsets[journal] = offset
            is_imported = Batch(tenant, batch, journal, offset, principal).is_imported
            if is_imported and not is_import_principal(principal):
                principal = import_principal(principal)
            principal = principal or fixes.LOCAL_PRINCIPAL
            if is_imported:
                marks = {key for kind, key in room.shelf if kind == FORGOTTEN_KIND}
                batch, new_marks = erasure.select_unforgotten(batch, marks)
                room.shelf.update({(FORGOTTEN_KIND, mark): b"" for mark in new_marks})
            room.votes.hear(principal, self._clock())
            for event in batch:
                if isinstance(event, RunStarted | RunEnded):
                    room.histories.writers.setdefault(event.run.id, principal)
                    for tool, arguments in (event.run.items or {}).items():
                        if (merged := merge_items(room.shelf.get((ITEMS_KIND, tool)), arguments)) is not None:
                            room.shelf[ITEMS_KIND, tool] = merged
            return sum(room.histories.keep(event, is_imported, self._clock()) for event in batch)

    def append_all(self, batches: Sequence[Batch]) -> list[int]:
        with self._lock:
            return [self.append(*each[:5]) for each in batches]

    def offset(self, tenant: str, journal: str) -> int:
        return self._room(tenant).offsets.get(journal, 0)

    def journals(self, tenant: str) -> list[str]:
        with self._lock:
            return list(self._room(tenant).offsets)

    def release(self, tenant: str, journals: Sequence[str]) -> None:
        with self._lock:
            for journal in journals:
                self._room(tenant).offsets.pop(journal, None)

    def find_ids(self, tenant: str, resource: ListedResource, prefix: str, limit: int = 5) -> list[str]:
        with self._lock:
            room = self._room(tenant)
            ids = {
                "runs": list(room.histories.runs), "patterns": list(room.histories.tallies()),
                "fixes": [fix.id for fix in self.fixes(tenant, FixQuery(limit=10_000))],
                "lessons": [lesson.id for lesson in self.lessons(tenant, LessonQuery(limit=10_000))],
            }[resource]  # fmt: skip
        return sorted(id for id in ids if id.startswith(prefix))[: max(limit, 0)]

    def runs(self, tenant: str, query: RunQuery) -> list[History]:
        with self._lock:
            room = self._room(tenant)
            known = room.pattern(query.pattern) if query.pattern is not None else None
            asked = {known.id, *known.merged} if known is not None else set()
            return room.histories.asked(query, asked)[: max(query.limit, 0)]

    def run(self, tenant: str, id: str) -> History | None:
        with self._lock:
            histories = self._room(tenant).histories
            run = histories.runs.get(id)
            return None if run is None else histories.with_messages(histories.history(run))

    def sessions(self, tenant: str, query: SessionQuery) -> list[SessionSummary]:
        asked = RunQuery(agent=query.agent, since=query.since, until=query.until, limit=1_000_000)
        newest: dict[str, SessionSummary] = {}
        for history in self.runs(tenant, asked):
            id = history.run.session
            if id is None or id in newest or (query.text or "").casefold() not in id.casefold():
                continue
            runs = self.runs(tenant, RunQuery(session=id, limit=1_000_000))
            newest[id] = SessionSummary(
                id=id,
                runs=len(runs),
                unrecovered=sum(
                    each.run.end_reason is not None
                    and derive_status(each.run, each.steps, each.links) in ("partial", "failure")
                    for each in runs
                ),
                first_run_at=min(each.run.started_at for each in runs),
                last_run_at=history.run.started_at,
                last_run=history.run.id,
                agents=tuple(sorted({each.run.agent for each in runs} - {""})),
            )
        positions = {id: query.position_of(session) for id, session in newest.items()}
        following = [each for id, each in newest.items() if query.before is None or positions[id] < query.before]
        return following[: max(query.limit, 0)]

    def runs_by_id(self, tenant: str, ids: Sequence[str]) -> dict[str, Run]:
        with self._lock:
            runs = self._room(tenant).histories.runs
            return {id: runs[id] for id in ids if id in runs}

    def ended_runs(self, tenant: str, ids: Sequence[str]) -> set[str]:
        with self._lock:
            runs = self._room(tenant).histories.runs
            return {id for id in ids if id in runs and runs[id].end_reason is not None}

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        with self._lock:
            runs = [history.run for history in self._room(tenant).histories.every()]
        return [run for run in runs if run.id.startswith(prefix)][: max(limit, 0)]

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        with self._lock:
            histories = self._room(tenant).histories
            found = [histories.with_messages(history) for history in histories.asked(RunQuery(since=since), set())]
        yield from reversed(found)

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> PruneResult:
        """By age and by sampling; there is no file whose size could be bounded."""
        runs = steps = sampled = 0
        with self._lock:
            room = self._room(tenant)
            for history in room.histories.every():
                kept, is_imported = room.histories.came(history.run.id)
                if is_imported and not policy.include_imported:
                    continue
                status = derive_status(history.run, history.steps, history.links)
                if retention.is_expired(status, kept, policy, now):
                    runs, steps = runs + 1, steps + len(history.steps)
                    left = None
                elif kept < now - policy.sample_after:
                    left = retention.sample_run(history, policy.sample)
                    sampled += len(history.steps) - len(left.steps if left else ())
                else:
                    continue
                if not dry_run:
                    if left is None:
                        room.votes.keep(history)
                    room.histories.shrink(history, left)
            if not dry_run and (runs or sampled):
                self._note(tenant, "prune", told=audit.format_counts(runs=runs, steps=steps + sampled))
        return PruneResult(runs=runs, steps=steps, sampled=sampled)

    def preview_forget(self, tenant: str, request: ForgetRequest) -> ForgetResult:
        with self._lock:
            rooms, acts = copy.deepcopy(self._rooms), copy.deepcopy(self._audit)
            result = self.forget(tenant, request)
            self._rooms, self._audit = rooms, acts
            return result

    def forget(self, tenant: str, request: ForgetRequest) -> ForgetResult:
        request.validate()
        if request.learned is not None:
            return self._forget_learned(tenant, request.learned)
        with self._lock:
            room = self._room(tenant)
            before = set(room.histories.tallies())
            runs, steps, messages = room.histories.forget(request)
            room.votes.forget(request)
            self._forget_in_history(room, request.text)
            gone = [place for place, value in room.shelf.items() if erasure.should_forget_entry(*place, value, request)]
            for place in gone:
                del room.shelf[place]
            forgotten_id = request.session or request.run
            if forgotten_id is not None and (runs or gone):
                room.shelf[FORGOTTEN_KIND, forgotten_key(forgotten_id)] = b""
            lost = before - set(room.histories.tallies())
            for id in lost:
                room.shelf.pop((PATTERN_HISTORY_KIND, id), None)
            room.lessons.forget(request)
            room.decisions = {
                id: decision for id, decision in room.decisions.items() if id not in lost and decision.into not in lost
            }
            if request.text is not None:
                text, acts = request.text, self._audit.get(tenant, [])
                room.decisions = {
                    id: replace(
                        erasure.erase_text(decision, text),
                        into=decision.into,
                        link="" if text in decision.link else decision.link,
                    )
                    for id, decision in room.decisions.items()
                }
                self._audit[tenant] = [erasure.erase_text(act, text) for act in acts]
            told = audit.format_counts(runs=runs, steps=steps, patterns=len(lost), messages=messages, notes=len(gone))
            self._note(tenant, f"forget.{request.validate()}", told=told)
        return ForgetResult(runs=runs, steps=steps, patterns=len(lost), key_value_entries=len(gone), messages=messages)

    @staticmethod
    def _forget_in_history(room: _Room, text: str | None) -> None:
        for (kind, id), value in room.shelf.items():
            if text is not None and kind == PATTERN_HISTORY_KIND:
                events = [erasure.erase_text(event, text) for event in read_history(value)]
                room.shelf[kind, id] = encode(events)

    def _forget_learned(self, tenant: str, until: int) -> ForgetResult:
        with self._lock:
            room = self._room(tenant)
            revoked = room.votes.revoke(Revocation(until=until))
            lessons = room.lessons.remove_by_source("learned")
            items = [place for place in room.shelf if place[0] == ITEMS_KIND]
            for place in items:
                del room.shelf[place]
            told = audit.format_counts(fixes=revoked.fixes, lessons=lessons, notes=len(items))
            self._note(tenant, "forget.learned", told=told)
        return ForgetResult(fixes=revoked.fixes, lessons=lessons, key_value_entries=len(items))

    def erase(self, tenant: str) -> int:
        with self._lock:
            erased = len(self._rooms.pop(tenant, ()))
            if erased:
                self._note(tenant, "tenant.erase", told=audit.format_counts(rows=erased))
        return erased

    def audit(self, tenant: str, query: AuditQuery) -> list[AuditEntry]:
        with self._lock:
            acts = [act for act in self._audit.get(tenant, ()) if audit.matches_query(act, query)]
        return sorted(acts, key=lambda act: (act.at, act.id), reverse=True)[: max(query.limit, 0)]

    def _note(self, tenant: str, do: str, about: str = "", told: str = "") -> None:
        self._audit.setdefault(tenant, []).append(audit.build_entry(do, self._clock(), about, told))

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        raise StoreError("A store in memory cannot be backed up. Use a file: --store sqlite:///PATH")

    def health(self, tenant: str) -> Health:
        with self._lock:
            histories = self._room(tenant).histories
            runs, steps = len(histories.runs), sum(map(len, histories.steps.values()))
        return Health(where="memory", healthy=True, runs=runs, steps=steps)

    def close(self) -> None:
        """Do nothing: the records live as long as the object."""

    # Memory

    def recall(self, tenant: str, query: RecallQuery) -> list[Precedent]:
        with self._lock:
            return self._room(tenant).votes.precedents(query)

    def fixes(self, tenant: str, query: FixQuery) -> list[Fix]:
        with self._lock:
            room = self._room(tenant)
            return room.votes.fixes(query, room.schemas())

    def value_profiles(self, tenant: str, tool: str, key: str = "") -> list[ValueProfile]:
        with self._lock:
            return self._room(tenant).votes.value_profiles(tool, key)

    def evidence(self, tenant: str, fix: str, limit: int = 100) -> list[TrialReport]:
        with self._lock:
            return self._room(tenant).votes.evidence(fix, limit)

    def record_outcome(self, tenant: str, fix: str, report: TrialReport) -> bool:
        with self._lock:
            return self._room(tenant).votes.report(fix, report, self._clock())

    def decide(self, tenant: str, fix: str, approved: bool, at: int) -> bool:
        with self._lock:
            is_known = self._room(tenant).votes.decide(fix, approved, at)
            if is_known:
                self._note(tenant, "fix.approve" if approved else "fix.revoke", fix)
            return is_known

    def revoke(self, tenant: str, revocation: Revocation) -> RevokeResult:
        with self._lock:
            revoked = self._room(tenant).votes.revoke(revocation)
            told = audit.format_fields(principal=revocation.principal, tool=revocation.tool, since=revocation.since)
            self._note(tenant, "memory.revoke", told=told)
            return revoked

    def lessons(self, tenant: str, query: LessonQuery) -> list[Lesson]:
        with self._lock:
            room = self._room(tenant)
            return room.lessons.find_lessons(room.facts(query.tool, query.now), query)

    def lesson(self, tenant: str, id: str, now: int = 0) -> Lesson | None:
        with self._lock:
            known = self._room(tenant).lessons.resolve_id(id)
        query = LessonQuery(now=now or self._clock(), limit=MAX_LESSONS_PER_QUERY)
        return next((each for each in self.lessons(tenant, query) if each.id == known), None)

    def save_lesson(self, tenant: str, lesson: Lesson) -> bool:
        return self.save_lessons(tenant, [lesson])[0]

    def save_lessons(self, tenant: str, lessons: Sequence[Lesson]) -> list[bool]:
        with self._lock:
            are_new: list[bool] = []
            try:
                for each in lessons:
                    are_new.append(self._room(tenant).lessons.save_lesson(each, self._clock()))  # noqa: PERF401 - up to a bad one
            finally:
                if noted := audit.describe_saved_lessons(lessons[: len(are_new)], are_new):
                    self._note(tenant, "lesson.write", *noted)
            return are_new

    def remove_lessons(self, tenant: str, source: LessonSource) -> int:
        with self._lock:
            removed = self._room(tenant).lessons.remove_by_source(source)
            if removed:
                self._note(tenant, "lesson.remove", source, audit.format_counts(lessons=removed))
            return removed

    def decide_lesson(self, tenant: str, id: str, verdict: LessonVerdict, at: int) -> Lesson | None:
        with self._lock:
            room = self._room(tenant)
            kept = room.lessons.record_decision(id, verdict, at)
            if kept is None:
                return None
            if verdict != "disable" and kept.lesson.fix_id:
                room.votes.decide(kept.lesson.fix_id, approved=verdict == "approve", at=at)
            self._note(tenant, f"lesson.{verdict}", kept.lesson.id)
        return self.lesson(tenant, kept.lesson.id, at)

    def consolidate(
        self, tenant: str, now: int, progress: Progress | None = None, max_patterns: int | None = None
    ) -> ConsolidationResult:
        """Return all of it each time; if the query is bounded, not of many runs: everything is recounted here."""
        with self._lock:
            room = self._room(tenant)
            if max_patterns is not None and len(room.histories.runs) > QUICK:
                return ConsolidationResult(remaining=1)
            looked_at, news = room.lessons.consolidate(room.facts(None, now), now)
        told = tuple(found for id in news if (found := self.lesson(tenant, id, now)) is not None)
        return ConsolidationResult(patterns=looked_at, lessons=told)

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        with self._lock:
            room = self._room(tenant)
            parts = [tally.to_pattern(query.since) for tally in room.histories.tallies().values()]
            whole = patterns.merge_patterns(parts, room.decisions, room.histories, self._clock())
        found = patterns.sort_patterns((each for each in whole if patterns.matches_query(each, query)), query)
        return [patterns.limit_details(pattern) for pattern in found]

    def pattern(self, tenant: str, id: str) -> Pattern | None:
        with self._lock:
            return self._room(tenant).pattern(id)

    def update_pattern(self, tenant: str, command: PatternCommand) -> Pattern | None:
        with self._lock:
            room = self._room(tenant)
            found = patterns.resolve_command(command, room.histories.tallies(), room.decisions)
            if found is None:
                return None
            command, changed = found
            current = room.pattern(changed)
            assert current is not None
            room.decisions[changed] = apply_command(command, room.decisions.get(changed, PatternDecision()), current)
            entry = PATTERN_HISTORY_KIND, changed
            room.shelf[entry] = add_event(room.shelf.get(entry), command)
            self._note(tenant, f"pattern.{command.action}", changed, audit.format_fields(into=command.into))
            return room.pattern(changed)

    # Figures

    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        with self._lock:
            counted = counters.to_packed_cells(self._room(tenant).histories.cells())
        whole, parts = counters.readings(query)
        return counters.answer(query, counters.rows(counted, whole), counters.rows(counted, parts) if parts else ())

    # Shelf

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        return self._room(tenant).shelf.get((kind, key))

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        with self._lock:
            self._room(tenant).shelf[kind, key] = value

    def compare_and_set(
        self,
        tenant: str,
        kind: str,
        key: str,
        expected: bytes | None,
        value: bytes,
        audit_note: AuditNote | None = None,
    ) -> bool:
        with self._lock:
            is_known = self.get(tenant, kind, key) == expected
            if is_known:
                self.put(tenant, kind, key, value)
                if audit_note is not None:
                    self._audit.setdefault(audit_note.tenant, []).append(audit_note.entry)
            return is_known

    def keys(self, tenant: str, kind: str) -> list[str]:
        with self._lock:
            return sorted(key for sort, key in self._room(tenant).shelf if sort == kind)
