"""Watching a store: each attempt is told once, however many runs there are."""

from __future__ import annotations

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.records import Run, Step
from mulligan.report import tail_reader
from mulligan.report.tail_reader import StepQuery, TailReader
from mulligan.store.sqlite import MemoryStore

NOW = 1_800_000_000_000


class Kept:
    """A store, and what agents do there, a millisecond after each other."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = NOW
        self.seqs: dict[str, int] = {}
        self.started: dict[str, int] = {}

    def _tell(self, event) -> None:
        self.clock += 1
        self.store.append(DEFAULT_TENANT, [event], "journal", self.clock)

    def begin(self, id: str) -> None:
        self.started[id] = self.clock
        self._tell(RunStarted(Run(id=id, agent="helper", started_at=self.clock)))

    def call(self, id: str) -> None:
        seq = self.seqs[id] = self.seqs.get(id, 0) + 1
        self._tell(StepEnded(Step(run=id, seq=seq, call=seq, name="search", started_at=self.clock)))

    def end(self, id: str) -> None:
        self._tell(
            RunEnded(
                Run(id=id, agent="helper", started_at=self.started[id], ended_at=self.clock, end_reason="finished")
            )
        )

    def ended(self, id: str) -> None:
        self.begin(id)
        self.call(id)
        self.end(id)


def watching(limit: int = 3) -> TailReader:
    return TailReader(StepQuery(), NOW - 1, limit)


def told(found) -> list[str]:
    return [
        f"{event.step.run} {event.step.seq}" if isinstance(event, StepEnded) else f"{event.run.id} ended"
        for event, _ in found
    ]


def test_a_run_that_is_still_open_is_heard_of_however_many_began_after_it():
    kept, tail = Kept(), watching()
    kept.begin("run_long")
    for number in range(10):
        kept.ended(f"run_{number}")
    tail.poll(kept.store)
    kept.call("run_long")
    assert told(tail.poll(kept.store)) == ["run_long 1"]
    for number in range(10, 20):
        kept.ended(f"run_{number}")
    tail.poll(kept.store)
    kept.call("run_long")
    kept.end("run_long")
    assert told(tail.poll(kept.store)) == ["run_long 2", "run_long ended"]
    assert tail.poll(kept.store) == []


def test_runs_that_come_faster_than_somebody_looks_are_all_told():
    kept, tail = Kept(), watching()
    kept.ended("run_first")
    tail.poll(kept.store)
    for number in range(10):
        kept.ended(f"run_{number}")
    assert told(tail.poll(kept.store)) == [each for n in range(10) for each in (f"run_{n} 1", f"run_{n} ended")]


def test_runs_that_never_end_are_let_go_of_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(tail_reader, "MAX_OPEN_RUNS", 5)
    kept, tail = Kept(), watching()
    for number in range(20):
        kept.begin(f"run_{number}")
        kept.call(f"run_{number}")
    asked = []
    one = kept.store.run
    kept.store.run = lambda tenant, id: asked.append(id) or one(tenant, id)
    assert len(tail.poll(kept.store)) == 20
    tail.poll(kept.store)
    assert sorted(asked) == ["run_15", "run_16"]  # of the last five the newest three are in the list anyway


def test_a_run_that_was_forgotten_is_not_asked_for_again():
    kept, tail = Kept(), watching()
    kept.begin("run_gone")
    for number in range(5):
        kept.ended(f"run_{number}")
    tail.poll(kept.store)
    asked = []
    kept.store.run = lambda tenant, id: asked.append(id)
    tail.poll(kept.store)
    tail.poll(kept.store)
    assert asked == ["run_gone"]
