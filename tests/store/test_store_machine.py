"""Anything may happen to a store, in any order: it says what a dictionary would say.

Records come late, twice and in disorder; the process dies before or after they are kept; the file is opened again,
made by an earlier schema, pruned, forgotten in, counted anew and replaced by its copy; patterns are merged and split.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import postgres
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from occurrences import Occurrence, find_occurrences
from recounting import rebuild

from mulligan.contract import counters
from mulligan.contract.counters import StatsQuery
from mulligan.contract.run_facts import compute_facts
from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    ForgetRequest,
    PatternCommand,
    PatternQuery,
    Retention,
    RunQuery,
    Store,
)
from mulligan.core.events import AnyEvent, ContextCompacted, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Compaction, History, Run, Step, pattern_id
from mulligan.core.run_links import derive_status, link_recoveries
from mulligan.store import erasure, retention
from mulligan.store.sqlite import MemoryStore, SqliteStore

RUNS = ("run_a", "run_b", "run_c", "run_d")
TOOLS = ("search", "fetch")
SLOW = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow for zebra-4711", fingerprint="f-slow")
WRONG = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR), "k is 10 at most", fingerprint="f-wrong")
REFUSED = Failure.of(Kind("none", "user_rejected"), "the user said no", fingerprint="f-no")
PATTERNS = [pattern_id(tool, failure.fingerprint) for tool in TOOLS for failure in (SLOW, WRONG)]
HOUR = 3_600_000


class StoreMachine(RuleBasedStateMachine):
    """The rules. What is kept is a few dictionaries; what is counted is counted anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, Run] = {}
        self.steps: dict[str, dict[int, Step]] = {}
        self.compactions: dict[str, dict[int, Compaction]] = {}
        self.kept: dict[str, int] = {}
        self.cells: counters.Cells = {}
        self.sightings: list[Occurrence] = []
        """Counted of what was pruned."""
        self.into: dict[str, str] = {}
        self.muted: set[str] = set()
        self.waiting: list[AnyEvent] = []
        self.next: dict[str, int] = dict.fromkeys(RUNS, 1)
        self.open: dict[str, tuple[int, int, str]] = {}
        self.now = 1  # 0 is no time at which anything came
        self.offset = 0
        self.journal = 0

    store: Store

    def clock(self) -> int:
        return self.now

    # What happens

    @rule(run=st.sampled_from(RUNS), agent=st.sampled_from("xy"), session=st.sampled_from([None, "s"]))
    def begin(self, run: str, agent: str, session: str | None) -> None:
        self.waiting.append(RunStarted(Run(id=run, agent=agent, session=session, started_at=RUNS.index(run) * HOUR)))

    @rule(run=st.sampled_from(RUNS), end=st.sampled_from(["finished", "raised"]), agent=st.sampled_from("xy"))
    def end(self, run: str, end: Any, agent: str) -> None:
        started = RUNS.index(run) * HOUR
        self.waiting.append(
            RunEnded(Run(id=run, agent=agent, started_at=started, ended_at=started + 9, end_reason=end))
        )

    @rule(
        run=st.sampled_from(RUNS), tool=st.sampled_from(TOOLS), k=st.integers(0, 2), again=st.booleans(),
        failure=st.sampled_from([None, None, SLOW, WRONG, REFUSED]), day=st.integers(0, 2),
    )  # fmt: skip
    def step(self, run: str, tool: str, k: int, again: bool, failure: Failure | None, day: int) -> None:
        seq = self.next[run]
        self.next[run] += 1
        call, attempt = seq, 1
        if again and run in self.open:
            call, attempt, tool = self.open[run]
        self.open[run] = (call, attempt + 1, tool)
        self.waiting.append(
            StepEnded(
                Step(
                    run=run, seq=seq, call=call, attempt=attempt, name=tool, arguments={"k": k, "q": "cats"},
                    started_at=day * DAY + seq, duration_seconds=0.5 * k, failure=failure,
                    outcome="failure" if failure else "success",
                )
            )
        )  # fmt: skip

    @rule(run=st.sampled_from(RUNS), at=st.integers(0, 3))
    def compact(self, run: str, at: int) -> None:
        self.waiting.append(ContextCompacted(Compaction(run=run, at=at * DAY // 2, reason="agent")))

    @rule(at=st.integers(0, 5), known=st.sets(st.sampled_from(PATTERNS)))
    def compact_the_session(self, at: int, known: set[str]) -> None:
        self.waiting.append(
            ContextCompacted(Compaction(session="s", at=at * HOUR // 2, known_failures=tuple(sorted(known))))
        )

    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        """A batch of what waits, in any order, with some of it twice."""
        batch = list(data.draw(st.permutations(self.waiting)))
        batch += batch[: data.draw(st.integers(0, 2))]
        self.offset += 1
        self.store.append(DEFAULT_TENANT, batch, f"journal_{self.journal}", self.offset)
        self.waiting.clear()
        for event in batch:
            self.keep(event)

    def keep(self, event: AnyEvent) -> None:
        match event:
            case RunStarted(run) if run.id not in self.runs:
                self.kept.setdefault(run.id, self.now)
                self.runs[run.id] = run
            case RunEnded(run):
                self.kept.setdefault(run.id, self.now)
                self.runs[run.id] = run
            case StepEnded(step):
                self.kept.setdefault(step.run, self.now)
                self.steps.setdefault(step.run, {}).setdefault(step.seq, step)
            case ContextCompacted(compaction):
                self.compactions.setdefault(compaction.run or "", {}).setdefault(compaction.at, compaction)

    @rule(days=st.integers(1, 4))
    def time_passes(self, days: int) -> None:
        self.now += days * DAY

    # What is done to it

    @rule(
        successes=st.sampled_from([None, 2 * DAY]), failures=st.sampled_from([None, 5 * DAY]),
        sample=st.sampled_from([1.0, 0.5]), dry_run=st.booleans(),
    )  # fmt: skip
    def prune(self, successes: int | None, failures: int | None, sample: float, dry_run: bool) -> None:
        policy = Retention(
            keep_successes=successes,
            keep_failures=failures,
            sample=sample,
            sample_after=DAY,
            compress_after=DAY,
            keep_hourly=None,
        )
        self.store.prune(DEFAULT_TENANT, policy, self.now, dry_run)
        for history in () if dry_run else self.histories():
            id = history.run.id
            status = derive_status(history.run, history.steps, history.links)
            left: History | None = history
            if retention.is_expired(status, self.kept[id], policy, self.now):
                left = None
            elif self.kept[id] < self.now - policy.sample_after:
                left = retention.sample_run(history, sample)
            counters.add(self.cells, counters.cells(history))
            if left is not None:
                counters.add(self.cells, counters.cells(left), -1)
                self.steps[id] = {step.seq: step for step in left.steps}
            else:
                self.sightings += find_occurrences(history)
                self.lose(id)

    def lose(self, id: str) -> None:
        for kept in (self.runs, self.steps, self.compactions, self.kept):
            kept.pop(id, None)  # type: ignore[attr-defined]

    @rule(run=st.sampled_from(RUNS))
    def forget_a_run(self, run: str) -> None:
        self.store.forget(DEFAULT_TENANT, ForgetRequest(run=run))
        self.lose(run)
        self.drop_decisions()

    @rule(tool=st.sampled_from(TOOLS))
    def forget_a_tool(self, tool: str) -> None:
        self.store.forget(DEFAULT_TENANT, ForgetRequest(tool=tool))
        for id, steps in list(self.steps.items()):
            self.steps[id] = {seq: step for seq, step in steps.items() if step.name != tool}
            if steps and not self.steps[id]:
                self.lose(id)
        self.cells = {place: cell for place, cell in self.cells.items() if place.name != tool}
        self.sightings = [each for each in self.sightings if each.step.name != tool]
        self.drop_decisions()

    @rule()
    def forget_a_text(self) -> None:
        self.store.forget(DEFAULT_TENANT, ForgetRequest(text="zebra-4711"))
        for id, steps in self.steps.items():
            self.steps[id] = {seq: erasure.erase_text(step, "zebra-4711") for seq, step in steps.items()}

    def drop_decisions(self) -> None:
        known = self.counted()
        self.muted &= known.keys()
        self.into = {id: into for id, into in self.into.items() if id in known and into in known}

    @rule(pattern=st.sampled_from(PATTERNS), into=st.sampled_from(PATTERNS))
    def merge(self, pattern: str, into: str) -> None:
        known = self.counted()
        if pattern in known and into in known and self.root(pattern) != self.root(into):
            self.store.update_pattern(DEFAULT_TENANT, PatternCommand(action="merge", pattern=pattern, into=into))
            self.into[self.root(pattern)] = self.root(into)

    @rule(pattern=st.sampled_from(PATTERNS))
    def split(self, pattern: str) -> None:
        if self.store.update_pattern(DEFAULT_TENANT, PatternCommand(action="split", pattern=pattern)) is not None:
            self.into.pop(pattern, None)

    @rule(pattern=st.sampled_from(PATTERNS), do=st.sampled_from(["mute", "unmute"]))
    def mute(self, pattern: str, do: Any) -> None:
        if self.store.update_pattern(DEFAULT_TENANT, PatternCommand(action=do, pattern=pattern)) is not None:
            self.muted.discard(self.root(pattern))
            if do == "mute":
                self.muted.add(self.root(pattern))

    # What it should say

    def histories(self) -> list[History]:
        found = []
        for run in sorted(self.runs.values(), key=lambda run: (run.started_at, run.id)):
            steps = tuple(step for _, step in sorted(self.steps.get(run.id, {}).items()))
            own = self.compactions.get(run.id, {})
            shared = self.compactions.get("", {}) if run.session == "s" else {}
            before = max((at for at in shared if at < run.started_at), default=run.started_at)
            seen = [*own.values(), *(each for at, each in shared.items() if at >= before)]
            compactions = tuple(sorted(seen, key=lambda each: each.at))
            links = tuple(link_recoveries(steps))
            found.append(History(run=run, steps=steps, links=links, compactions=compactions))
        return found

    def counted(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        live = [each for history in self.histories() for each in find_occurrences(history)]
        for sighting in (*self.sightings, *live):
            counts = found.setdefault(sighting.pattern, Counter())
            counts["count"] += 1
            counts["overcome"] += sighting.is_recovered
        return found

    def root(self, pattern: str) -> str:
        while pattern in self.into:
            pattern = self.into[pattern]
        return pattern

    @invariant()
    def tells_every_run(self) -> None:
        expected = self.histories()
        assert list(self.store.export(DEFAULT_TENANT)) == expected
        for tool in TOOLS:
            with_tool = [each.run.id for each in reversed(expected) if any(step.name == tool for step in each.steps)]
            assert [each.run.id for each in self.store.runs(DEFAULT_TENANT, RunQuery(tool=tool))] == with_tool
        for status in ("success", "recovered", "partial", "failure"):
            of_status = [each.run.id for each in reversed(expected)
                         if each.run.end_reason
                         and derive_status(each.run, each.steps, each.links) == status]  # fmt: skip
            assert [each.run.id for each in self.store.runs(DEFAULT_TENANT, RunQuery(status=status))] == of_status

    @invariant()
    def sorts_runs_by_their_facts(self) -> None:
        """Also runs of which steps arrived before the run, were replaced, sampled or erased."""
        facts = {each.run.id: compute_facts(each) for each in self.histories()}
        for fact, least in (("attempts", 0), ("tool_failures", 1), ("duration", 0)):
            query = RunQuery(order=fact, min_facts={fact: least})
            values = {id: facts_of_run[fact] for id, facts_of_run in facts.items()}
            expected = sorted(
                (id for id in values if values[id] >= least), key=lambda id, values=values: (values[id], id)
            )[::-1]
            assert [each.run.id for each in self.store.runs(DEFAULT_TENANT, query)] == expected[: query.limit]

    @invariant()
    def counts_what_happened(self) -> None:
        counted: counters.Cells = {}
        counters.add(counted, self.cells)
        for history in self.histories():
            counters.add(counted, counters.cells(history))
        for query in (StatsQuery(now=0), StatsQuery(now=0, by="tool", detail=True), StatsQuery(now=9 * DAY, since=DAY)):
            whole, parts = counters.readings(query)
            rows = counters.rows(counters.to_packed_cells(counted), parts) if parts else ()
            told, expected = (
                self.store.stats(DEFAULT_TENANT, query),
                counters.answer(query, counters.rows(counters.to_packed_cells(counted), whole), rows),
            )
            assert told.total == expected.total
            nothing = counters.Cell()
            assert {name: cell for name, cell in told.parts.items() if cell != nothing} == {
                name: cell for name, cell in expected.parts.items() if cell != nothing
            }

    @invariant()
    def knows_its_patterns(self) -> None:
        expected: dict[str, Counter[str]] = {}
        for id, counts in self.counted().items():
            expected.setdefault(self.root(id), Counter()).update(counts)
        told = [
            *self.store.patterns(DEFAULT_TENANT, PatternQuery()),
            *self.store.patterns(DEFAULT_TENANT, PatternQuery(state="muted")),
        ]
        assert {each.id: (each.occurrences, each.recovered) for each in told} == {
            id: (counts["count"], counts["overcome"]) for id, counts in expected.items()
        }
        assert {each.id for each in told if each.state == "muted"} == self.muted & expected.keys()


class MemoryMachine(StoreMachine):
    @initialize()
    def make(self) -> None:
        self.store = MemoryStore(self.clock)


class SqliteMachine(StoreMachine):
    @initialize()
    def make(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mulligan-machine-"))
        self.path = self.folder / "0.db"
        self.store: SqliteStore = SqliteStore(self.path, self.clock)
        self.abandoned: list[SqliteStore] = []

    @rule(is_kept=st.booleans())
    def crash(self, is_kept: bool) -> None:
        """The process ends. What waits is in its journal: the next one keeps it, and may keep it twice."""
        if is_kept and self.waiting:
            self.store.append(DEFAULT_TENANT, self.waiting, f"journal_{self.journal}", self.offset + 1)
        self.abandoned.append(self.store)
        self.store = SqliteStore(self.path, self.clock)
        adopted = self.store.append(DEFAULT_TENANT, self.waiting, f"journal_{self.journal}", self.offset + 1)
        assert not (is_kept and self.waiting and adopted)
        for event in self.waiting:
            self.keep(event)
        self.waiting.clear()
        self.journal, self.offset = self.journal + 1, 0

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.path, self.clock)

    @rule()
    def count_anew(self) -> None:
        rebuild(self.store, DEFAULT_TENANT)

    @rule()
    def go_on_with_a_copy(self) -> None:
        self.path = self.folder / f"{len(list(self.folder.iterdir()))}-copy.db"
        assert self.store.backup(self.path).healthy
        self.reopen()

    @invariant()
    def is_sound(self) -> None:
        assert self.store.health(DEFAULT_TENANT).healthy

    def teardown(self) -> None:
        for store in (self.store, *self.abandoned):
            store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgresMachine(StoreMachine):
    """Several processes write into one database, each of which may be gone at any moment."""

    @initialize()
    def make(self) -> None:
        postgres.had()
        from mulligan.store.postgres.postgres_store import PostgresStore

        self.url = postgres.emptied()
        self.opened = [PostgresStore(self.url, self.clock), PostgresStore(self.url, self.clock)]
        self.store = self.opened[0]

    @rule()
    def another_process_goes_on(self) -> None:
        self.opened.reverse()
        self.store = self.opened[0]

    @rule(is_kept=st.booleans())
    def the_answer_to_a_commit_is_lost(self, is_kept: bool) -> None:
        """Whoever keeps what waits next cannot know whether it was kept, and keeps it once."""
        if is_kept and self.waiting:
            self.store.append(DEFAULT_TENANT, self.waiting, f"journal_{self.journal}", self.offset + 1)
        self.another_process_goes_on()
        adopted = self.store.append(DEFAULT_TENANT, self.waiting, f"journal_{self.journal}", self.offset + 1)
        assert not (is_kept and self.waiting and adopted)
        for event in self.waiting:
            self.keep(event)
        self.waiting.clear()
        self.journal, self.offset = self.journal + 1, 0

    @rule()
    def count_anew(self) -> None:
        rebuild(self.opened[0], DEFAULT_TENANT)

    def teardown(self) -> None:
        for store in getattr(self, "opened", ()):  # none where there is no PostgreSQL: then it is skipped
            store.close()


few = settings(
    max_examples=25, stateful_step_count=30, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
TestMemory = MemoryMachine.TestCase
TestMemory.settings = few
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = few
TestPostgres = PostgresMachine.TestCase
TestPostgres.settings = settings(few, max_examples=8)
TestPostgres.pytestmark = [pytest.mark.postgres]
