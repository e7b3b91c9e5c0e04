"""What is done to a store in a file now and then: pruned, forgotten in, counted anew, copied."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recounting import rebuild

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    IMPORT_PREFIX,
    FixQuery,
    ForgetRequest,
    PatternCommand,
    PatternQuery,
    Retention,
    RunQuery,
)
from mulligan.core.calls import diff_arguments
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Link, MessagePart, RecordedMessage, Recovery, Run, Step, pattern_id
from mulligan.store import rollups
from mulligan.store.sqlite import SqliteStore

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f-slow")
SECRET = "zebra-4711-quagga"
EVERYTHING = StatsQuery(now=0)
START = 1_700_000_000_000


class Clock:
    now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "a.db", clock)
    yield store
    store.close()


def a_run(id: str, *steps: Step, started: int = START, **fields: Any) -> list[AnyEvent]:
    run = Run(id=id, started_at=started, agent="a", **fields)
    ended = Run(id=id, started_at=started, agent="a", ended_at=started + 9, end_reason="finished", **fields)
    return [RunStarted(run), *(StepEnded(step) for step in steps), RunEnded(ended)]


def worked(run: str, seq: int = 1, name: str = "search", **fields: Any) -> Step:
    return Step(run=run, seq=seq, call=seq, name=name, started_at=START + seq, duration_seconds=0.25, **fields)


def failed(run: str, seq: int = 1, name: str = "search", **fields: Any) -> Step:
    return Step(
        run=run, seq=seq, call=seq, name=name, started_at=START + seq, outcome="failure",
        **{"failure": TIMEOUT, **fields},
    )  # fmt: skip


def append(store: SqliteStore, *events: AnyEvent, journal: str = "j") -> None:
    store.append(DEFAULT_TENANT, events, journal, store.offset(DEFAULT_TENANT, journal) + 1)


def ids(store: SqliteStore) -> list[str]:
    return sorted(history.run.id for history in store.export(DEFAULT_TENANT))


def tables(store: SqliteStore) -> dict[str, list[Any]]:
    """Everything that could be counted anew."""
    with store.write_transaction(DEFAULT_TENANT) as writer:
        rollups.fold(writer, DEFAULT_TENANT)
    derived = (
        "links",
        "run_callees",
        "run_facts",
        "run_failures",
        "patterns",
        "pattern_days",
        "pattern_agents",
        "rollups",
    )
    with store.read_connection(DEFAULT_TENANT) as connection:
        told = {name: sorted(map(repr, connection.execute(f"SELECT * FROM {name}"))) for name in derived}
        told["runs"] = sorted(map(repr, connection.execute("SELECT id, status, failure_free FROM runs")))
    return told


# Runs that never end

MINUTE = 60_000
WRONG = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k is 10 at most", fingerprint="f-k"
)


def begin_correction(store: SqliteStore, *others: Step, judged: bool = False) -> None:
    """A run without an end, in which one mode was rejected and another worked."""
    before, after = {"mode": "fast", "q": "cats"}, {"mode": "slow", "q": "cats"}
    link = Link(
        run="run_a", failed_call=1, recovering_call=2, method="agent", changes=diff_arguments(before, after),
        evidence=("handler",), provisional=True,
    )  # fmt: skip
    failure = failed("run_a", failure=WRONG, arguments=before, links_decided=judged)
    success = worked("run_a", 2, arguments=after, links=(link,) if judged else ())
    steps = map(StepEnded, (failure, success, *others))
    append(store, RunStarted(Run(id="run_a", started_at=START)), *steps)


def wait(store: SqliteStore, clock: Clock, minutes: int) -> None:
    """Let time pass, and another run begin."""
    clock.now += minutes * MINUTE
    append(store, *a_run(f"run_at_{clock.now}", worked(f"run_at_{clock.now}"), started=clock.now))


def end_run(store: SqliteStore) -> None:
    append(store, RunEnded(Run(id="run_a", started_at=START, ended_at=START + 1, end_reason="finished")))


def later_step(at: int, seq: int, **fields: Any) -> Step:
    return Step(run="run_a", seq=seq, call=seq, name=fields.pop("name", "fetch"), started_at=at, **fields)


def taught(store: SqliteStore) -> list[Any]:
    return [fix.changes[0].after for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=START))]


@pytest.mark.parametrize("judged", [False, True])
def test_run_that_never_ends_is_judged_after_thirty_idle_minutes(store, clock, judged):
    begin_correction(store, judged=judged)
    wait(store, clock, 29)
    assert [link.provisional for link in store.run(DEFAULT_TENANT, "run_a").links] == [True]
    assert taught(store) == []
    wait(store, clock, 31)
    assert [link.provisional for link in store.run(DEFAULT_TENANT, "run_a").links] == [False]
    assert taught(store) == ["slow"]
    assert store.runs(DEFAULT_TENANT, RunQuery(status="recovered")) == []  # no status before its end
    end_run(store)
    assert [each.run.id for each in store.runs(DEFAULT_TENANT, RunQuery(status="recovered"))] == ["run_a"]


@pytest.mark.parametrize("judged", [False, True])
def test_idle_run_over_items_teaches_nothing_and_stays_unrecovered(store, clock, judged):
    begin_correction(store, worked("run_a", 3, arguments={"mode": "safe", "q": "cats"}), judged=judged)
    wait(store, clock, 31)
    assert store.run(DEFAULT_TENANT, "run_a").links == ()
    assert taught(store) == []
    assert store.patterns(DEFAULT_TENANT, PatternQuery())[0].unrecovered == 1
    total = store.stats(DEFAULT_TENANT, EVERYTHING).total
    assert (total.unrecovered, total.recovered, total.running) == (1, 0, 1)


def test_run_that_goes_on_is_not_idle(store, clock):
    begin_correction(store)
    clock.now += 20 * MINUTE
    append(store, StepEnded(later_step(clock.now, 3)))
    wait(store, clock, 20)
    assert [link.provisional for link in store.run(DEFAULT_TENANT, "run_a").links] == [True]
    assert taught(store) == []


def test_idle_run_that_goes_on_is_judged_once_more_at_its_end(store, clock):
    begin_correction(store)
    wait(store, clock, 31)
    assert taught(store) == ["slow"]
    refuting = later_step(clock.now, 3, name="search", arguments={"mode": "safe", "q": "cats"})
    append(
        store,
        StepEnded(refuting),
        RunEnded(Run(id="run_a", started_at=START, ended_at=clock.now, end_reason="finished")),
    )
    assert taught(store) == []
    assert store.run(DEFAULT_TENANT, "run_a").links == ()


def test_forgotten_run_leaves_nothing_to_be_judged(store, clock):
    begin_correction(store)
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_a"))
    with store.read_connection(DEFAULT_TENANT) as connection:
        assert connection.execute("SELECT * FROM provisional_runs").fetchall() == []
    wait(store, clock, 31)
    assert taught(store) == []


# Retention


def test_what_worked_goes_after_its_age_and_what_failed_after_its_own(store, clock):
    append(store, *a_run("run_worked", worked("run_worked")), *a_run("run_failed", failed("run_failed")))
    before = store.stats(DEFAULT_TENANT, EVERYTHING)

    assert store.prune(DEFAULT_TENANT, Retention(), START + 31 * DAY).runs == 1
    assert ids(store) == ["run_failed"]
    assert store.prune(DEFAULT_TENANT, Retention(), START + 91 * DAY).runs == 1
    assert ids(store) == []

    # They are counted all the same, and the pattern is known.
    assert store.stats(DEFAULT_TENANT, EVERYTHING) == before
    assert store.patterns(DEFAULT_TENANT, PatternQuery())[0].occurrences == 1
    assert store.pattern(DEFAULT_TENANT, pattern_id("search", "f-slow")).examples == ()
    assert (
        store.runs(DEFAULT_TENANT, RunQuery(tool="search"))
        == store.runs(DEFAULT_TENANT, RunQuery(kind="tool/timeout"))
        == []
    )


def test_a_rehearsal_says_what_would_go_and_removes_nothing(store):
    append(store, *a_run("run_a", worked("run_a")), *a_run("run_b", worked("run_b"), worked("run_b", 2)))
    pruned = store.prune(DEFAULT_TENANT, Retention(), START + 31 * DAY, dry_run=True)
    assert (pruned.runs, pruned.steps) == (2, 3)
    assert ids(store) == ["run_a", "run_b"]
    assert store.prune(DEFAULT_TENANT, Retention(), START + 31 * DAY).steps == 3


def test_age_counts_from_when_a_record_came_and_what_was_imported_waits_until_asked(store, clock):
    append(store, *a_run("run_old", worked("run_old"), started=1))
    append(store, *a_run("run_imported", worked("run_imported")), journal=f"{IMPORT_PREFIX}file")
    assert store.prune(DEFAULT_TENANT, Retention(), START + DAY).runs == 0
    assert store.prune(DEFAULT_TENANT, Retention(), START + 31 * DAY).runs == 1
    assert ids(store) == ["run_imported"]
    assert store.prune(DEFAULT_TENANT, Retention(include_imported=True), START + 31 * DAY).runs == 1


def test_plain_successes_are_sampled_and_figures_were_counted_before(store, clock):
    for n in range(200):
        append(store, *a_run(f"run_{n}", worked(f"run_{n}")))
    mixed = [worked("run_mixed", seq, name=f"tool{seq}") for seq in range(3, 103)]
    same = {"arguments": {"q": "cats"}}
    append(store, *a_run("run_mixed", failed("run_mixed", **same), worked("run_mixed", 2, **same), *mixed))
    before = store.stats(DEFAULT_TENANT, EVERYTHING)
    policy = Retention(sample=0.1, keep_successes=None)

    pruned = store.prune(DEFAULT_TENANT, policy, START + 8 * DAY)

    assert pruned.sampled > 200
    left = list(store.export(DEFAULT_TENANT))
    assert 2 < len(left) < 60
    mixed_left = next(history for history in left if history.run.id == "run_mixed")
    assert [step.seq for step in mixed_left.steps][:2] == [1, 2]  # the failure, and what overcame it
    assert mixed_left.links
    assert {step.sample_rate for history in left for step in history.steps if step.seq > 2} <= {0.1}
    assert store.stats(DEFAULT_TENANT, EVERYTHING) == before
    assert store.prune(DEFAULT_TENANT, policy, START + 9 * DAY).sampled == 0  # made again, the choice is the same


def test_cold_records_are_compressed_and_read_as_before(store, tmp_path):
    steps = [worked("run_a", seq, result={"text": "the same words " * 30}) for seq in range(1, 400)]
    append(store, *a_run("run_a", *steps))
    before = store.run(DEFAULT_TENANT, "run_a")
    store.prune(DEFAULT_TENANT, Retention(), START + DAY)
    size = (tmp_path / "a.db").stat().st_size

    pruned = store.prune(DEFAULT_TENANT, Retention(), START + 8 * DAY)

    assert pruned.compressed == 399
    assert store.run(DEFAULT_TENANT, "run_a") == before
    assert pruned.bytes_after < 0.7 * pruned.bytes_before
    assert store.prune(DEFAULT_TENANT, Retention(), START + 9 * DAY).compressed == 0
    append(store, StepEnded(worked("run_a", 500)))  # and such a run goes on
    rebuild(store, DEFAULT_TENANT)
    assert store.stats(DEFAULT_TENANT, EVERYTHING).total.calls == 400
    assert size


def test_a_store_is_kept_within_its_size_and_the_file_shrinks(store, tmp_path):
    for n in range(120):
        made = failed if n % 4 == 0 else worked
        append(store, *a_run(f"run_{n:03}", *(made(f"run_{n:03}", seq, result="x" * 2500) for seq in range(1, 11))))
    path = tmp_path / "a.db"
    with store.writer as writer:
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.stat().st_size
    bound = before // 2

    rehearsed = store.prune(DEFAULT_TENANT, Retention(max_size=bound), START, dry_run=True)
    pruned = store.prune(DEFAULT_TENANT, Retention(max_size=bound), START)

    with store.writer as writer:
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size <= bound
    assert 0.5 < rehearsed.runs / pruned.runs < 2
    left = ids(store)
    assert "run_000" in left  # a failure, although it is the oldest
    assert "run_001" not in left
    assert "run_119" in left


def test_a_preview_of_a_size_limit_counts_recorded_messages(store):
    """And no more runs are deleted than that takes. A message that several runs share goes with the last of them."""
    shared = RecordedMessage(role="system", parts=(MessagePart(text="You help."),), number=1)
    for n in range(60):
        texts = [random.Random(100 * n + number).randbytes(4000).hex() for number in range(20)]
        messages = [shared] + [
            RecordedMessage(role="user", parts=(MessagePart(text=text),), number=number)
            for number, text in enumerate(texts, start=2)
        ]
        started, ended = a_run(f"run_{n:03}")
        call = Step(run=f"run_{n:03}", seq=1, call=1, type="model", name="ask", started_at=START, messages=((1, 21),))
        append(store, started, StepEnded(call, tuple(messages)), ended)
    with store.writer as writer:
        (pages,), (page_size,) = (writer.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    limit = Retention(max_size=pages * page_size // 2)

    previewed = store.prune(DEFAULT_TENANT, limit, START, dry_run=True)
    pruned = store.prune(DEFAULT_TENANT, limit, START)

    assert 25 < pruned.runs < 40
    assert 0.8 < previewed.runs / pruned.runs < 1.2


def test_what_was_imported_does_not_go_for_its_size_unless_that_is_said(store):
    for n in range(20):
        events = a_run(f"run_{n:03}", *(worked(f"run_{n:03}", seq, result="x" * 900) for seq in range(1, 11)))
        append(store, *events, journal=f"{IMPORT_PREFIX}file" if n < 10 else "own")
    store.prune(DEFAULT_TENANT, Retention(max_size=1), START)
    assert ids(store) == [f"run_{n:03}" for n in range(10)]
    store.prune(DEFAULT_TENANT, Retention(max_size=1, include_imported=True), START)
    assert ids(store) == []


def test_counters_by_the_hour_go_and_those_by_the_day_stay(store):
    append(store, *a_run("run_a", worked("run_a")))
    assert (
        store.prune(DEFAULT_TENANT, Retention(keep_successes=None, keep_hourly=DAY), START + 3 * DAY).counters == 0
    )  # still asked for
    assert store.prune(DEFAULT_TENANT, Retention(keep_successes=None, keep_hourly=DAY), START + 5 * DAY).counters > 0
    assert store.stats(DEFAULT_TENANT, StatsQuery(now=START + 90 * DAY, since=START - DAY)).total.calls == 1


def test_pruning_tells_how_far_it_is(store):
    append(store, *(event for n in range(30) for event in a_run(f"run_{n}", worked(f"run_{n}"))))
    told: list[tuple[int, int]] = []
    store.prune(DEFAULT_TENANT, Retention(), START + 31 * DAY, progress=lambda done, total: told.append((done, total)))
    assert told
    assert told[-1][0] == told[-1][1]


# Forgetting


def bytes_of(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


@pytest.mark.parametrize(
    "what",
    [
        ForgetRequest(run="run_secret"), ForgetRequest(tool=SECRET),
        ForgetRequest(session=SECRET), ForgetRequest(text=SECRET),
    ],
    ids=lambda what: next(name for name in ("run", "tool", "session", "text") if getattr(what, name)),
)  # fmt: skip
@pytest.mark.parametrize("is_cold", [False, True], ids=["fresh", "compressed"])
def test_not_a_byte_of_what_was_forgotten_is_left_in_the_file(store, tmp_path, what, is_cold):
    for n in range(100):
        append(store, *a_run(f"run_{n}", worked(f"run_{n}", name="other"), failed(f"run_{n}", 2, name="other")))
    about = {"arguments": {"q": SECRET, SECRET: 1}}
    failure = Failure.of(TIMEOUT.kind, f"no answer from {SECRET}", detail="x" * 9000 + SECRET, fingerprint="f-slow")
    name = SECRET if what.tool else "search"
    steps = [failed("run_secret", 1, name, failure=failure, **about), worked("run_secret", 2, name, **about)]
    if what.text is None:
        session = SECRET if what.session else None
        append(store, *a_run("run_secret", *steps, session=session))
    else:
        append(store, *a_run("run_secret", *steps, context=SECRET, session=SECRET, environment=SECRET, version=SECRET))
    if what.session or what.text:
        store.put(DEFAULT_TENANT, "session", SECRET, SECRET.encode())
    if is_cold:
        store.prune(DEFAULT_TENANT, Retention(), START + 8 * DAY)
    else:
        assert SECRET.encode() in bytes_of(tmp_path)

    assert store.forget(DEFAULT_TENANT, what)

    assert SECRET.encode() not in bytes_of(tmp_path)
    store.close()
    assert SECRET.encode() not in bytes_of(tmp_path)
    again = SqliteStore(tmp_path / "a.db")
    assert again.health(DEFAULT_TENANT).healthy
    assert len(ids(again)) == (101 if what.text else 100)
    again.close()


def test_a_tool_is_forgotten_although_its_rows_were_pruned_before(store, tmp_path):
    append(store, *a_run("run_a", failed("run_a", 1, SECRET)), *a_run("run_b", worked("run_b", name="other")))
    store.prune(DEFAULT_TENANT, Retention(keep_failures=0, keep_successes=None), START + DAY)
    assert SECRET in str(store.stats(DEFAULT_TENANT, StatsQuery(now=0, by="tool")).parts)

    store.forget(DEFAULT_TENANT, ForgetRequest(tool=SECRET))

    assert store.patterns(DEFAULT_TENANT, PatternQuery()) == []
    told = store.stats(DEFAULT_TENANT, StatsQuery(now=0, by="tool"))
    assert set(told.parts) == {"other"}
    assert told.total.calls == 1
    assert SECRET.encode() not in bytes_of(tmp_path)


def test_a_text_is_forgotten_although_its_rows_were_pruned_before(store, tmp_path):
    failure = Failure.of(TIMEOUT.kind, f"no answer from {SECRET}", fingerprint="f-slow")
    append(store, *a_run("run_a", failed("run_a", failure=failure), environment=SECRET))
    store.prune(DEFAULT_TENANT, Retention(keep_failures=0), START + DAY)
    store.forget(DEFAULT_TENANT, ForgetRequest(text=SECRET))
    assert store.patterns(DEFAULT_TENANT, PatternQuery())[0].message == "no answer from [forgotten]"
    assert store.stats(DEFAULT_TENANT, EVERYTHING).total.calls == 1
    assert SECRET.encode() not in bytes_of(tmp_path)


def test_another_process_does_not_bring_back_what_was_forgotten(store, tmp_path):
    other = SqliteStore(tmp_path / "a.db")
    append(other, RunStarted(Run(id="run_a", agent=SECRET, started_at=START)), StepEnded(failed("run_a")), journal="o")

    store.forget(DEFAULT_TENANT, ForgetRequest(text=SECRET))
    append(other, StepEnded(worked("run_a", 2)), journal="o")

    assert list(store.patterns(DEFAULT_TENANT, PatternQuery())[0].agents) == ["[forgotten]"]
    assert SECRET not in str(store.stats(DEFAULT_TENANT, StatsQuery(now=0, by="agent")).parts)
    other.close()


# Counting anew


def test_what_is_counted_anew_is_what_was_kept_up_to_date(store):
    retried = Step(
        run="run_b", seq=2, call=1, attempt=2, name="search", started_at=START + DAY, duration_seconds=1.5,
        recovery=Recovery(remedy=Remedy.RETRY, backoff_seconds=0.5),
    )  # fmt: skip
    append(store, *a_run("run_a", worked("run_a"), worked("run_a", 2, name="fetch", metadata={"model": "m"})))
    append(store, *a_run("run_b", failed("run_b"), environment="prod", version="2")[:-1])
    append(store, StepEnded(retried))
    append(store, StepEnded(worked("run_orphan")))
    store.update_pattern(DEFAULT_TENANT, PatternCommand(action="mute", pattern=pattern_id("search", "f-slow")))
    before = tables(store)

    rebuild(store, DEFAULT_TENANT)

    assert tables(store) == before
    assert (
        store.patterns(DEFAULT_TENANT, PatternQuery(state="muted"))[0].recovered == 1
    )  # what a person said is no count


def test_sums_of_days_whose_rows_are_gone_are_not_counted_anew(store):
    append(store, *a_run("run_a", failed("run_a")))
    store.prune(DEFAULT_TENANT, Retention(keep_failures=0), START + DAY)
    late = Step(
        run="run_b", seq=1, call=1, name="search", started_at=START + 5 * DAY, outcome="failure", failure=TIMEOUT
    )
    append(store, *a_run("run_b", late, started=START + 5 * DAY))
    before, patterns = store.stats(DEFAULT_TENANT, EVERYTHING), store.patterns(DEFAULT_TENANT, PatternQuery())
    rebuild(store, DEFAULT_TENANT)
    assert store.stats(DEFAULT_TENANT, EVERYTHING) == before
    assert store.patterns(DEFAULT_TENANT, PatternQuery()) == patterns
    assert patterns[0].occurrences == 2
