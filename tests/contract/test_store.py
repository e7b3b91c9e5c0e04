"""What every Store must do. A new store is finished when it passes this; it is one more line in `STORES`
(`tests/support/stores.py`)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from recounting import rebuild
from stores import STORES, Writer

from mulligan.classify.fingerprint import compute_fingerprint
from mulligan.contract import counters
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    ITEMS_KIND,
    AuditQuery,
    Batch,
    FixQuery,
    ForgetRequest,
    ForgetResult,
    PatternCommand,
    PatternQuery,
    RecallQuery,
    Retention,
    RunQuery,
    SessionQuery,
    Store,
    now,
    parse_items,
)
from mulligan.core.events import (
    AnyEvent,
    ContextCompacted,
    FailureRecorded,
    RunEnded,
    RunStarted,
    StepEnded,
    StepStarted,
    redact_event,
)
from mulligan.core.failure import Failure, Kind, Remedy, StoreError, TookEffect
from mulligan.core.fast_path import CallTemplate, StandaloneRun, SuccessRecord, redact_records
from mulligan.core.record_redaction import RecordRedactor
from mulligan.core.records import (
    FIRST_FAILURE_SEQ,
    AvoidedTurn,
    Change,
    Compaction,
    Example,
    History,
    Link,
    MessagePart,
    Pattern,
    RecordedMessage,
    Recovery,
    Run,
    Status,
    Step,
    encode,
    pattern_id,
)
from mulligan.core.run_links import derive_status, link_recoveries
from mulligan.redaction import Redactor
from mulligan.store.erasure import ERASED_MARK
from mulligan.store.sql import DatabaseStore

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f-timeout")
REJECTED = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k is 10 at most", fingerprint="f-k"
)
REFUSED = Failure.of(Kind("none", "user_rejected"), "the user said no", fingerprint="f-k")


def run(id: str = "run_a", started: int = 1000, **fields: Any) -> Run:
    return Run(id=id, started_at=started, **fields)


def step(seq: int, call: int | None = None, attempt: int = 1, *, failure: Failure | None = None, **fields: Any) -> Step:
    defaults: dict[str, Any] = {"run": "run_a", "name": "search", "outcome": "failure" if failure else "success"}
    return Step(**{**defaults, "seq": seq, "call": call or seq, "attempt": attempt, "failure": failure, **fields})


def failed_then_worked(run_id: str, started: int, after: int = 10) -> list[AnyEvent]:
    """A run in which k=50 was rejected and another k worked."""
    return [
        RunStarted(run(run_id, started)),
        StepEnded(step(1, run=run_id, arguments={"k": 50, "q": run_id}, failure=REJECTED)),
        StepEnded(step(2, run=run_id, arguments={"k": after, "q": run_id})),
        RunEnded(run(run_id, started, ended_at=started + 5, end_reason="finished")),
    ]


def test_batches_that_are_stored_together_count_as_if_each_came_alone(store, write):
    """Also those of one run, one that was stored before, and one with a compaction. Each has its own principal."""
    write(*failed_then_worked("run_0", 900))
    again = step(3, run="run_1", name="fetch", arguments={"k": 1})
    compaction = ContextCompacted(Compaction(run="run_2", at=2002))
    batches = [
        Batch(DEFAULT_TENANT, failed_then_worked("run_1", 1000), "ja", 1, "anna"),
        Batch(DEFAULT_TENANT, failed_then_worked("run_2", 2000), "jb", 1, "bert"),
        Batch(DEFAULT_TENANT, [StepEnded(again), *failed_then_worked("run_1", 1000)], "jb", 2, "bert"),
        Batch(DEFAULT_TENANT, failed_then_worked("run_3", 3000), "ja", 1, "anna"),  # stored before, by its position
        Batch(DEFAULT_TENANT, [compaction], "jb", 3, "bert"),
        Batch(DEFAULT_TENANT, failed_then_worked("run_0", 900), "jc", 1, "carl"),
        Batch(DEFAULT_TENANT, failed_then_worked("run_4", 4000), "jc", 2, "carl"),
    ]
    # A start and its end are two records.
    assert store.append_all(batches) == [4, 4, 1, 0, 1, 0, 4]
    assert store.append_all(batches) == [0] * 7
    histories = {history.run.id: history for history in store.export(DEFAULT_TENANT)}
    assert {id: len(history.steps) for id, history in histories.items()} == {
        "run_0": 2, "run_1": 3, "run_2": 2, "run_4": 2,
    }  # fmt: skip
    stats = store.stats(DEFAULT_TENANT, StatsQuery(now=0))
    assert stats == counters.stats(list(histories.values()), StatsQuery(now=0))
    (pattern,) = store.patterns(DEFAULT_TENANT, PatternQuery())
    assert (pattern.occurrences, pattern.runs) == (4, 4)


ASKED = RecallQuery(tool="search", fingerprint="f-k", run="run_now")


# Records


def test_what_is_erased_of_a_tenant_is_gone_and_what_is_of_others_stays(store):
    for tenant in ("theirs", DEFAULT_TENANT):
        Writer(store, tenant)(*failed_then_worked("run_a", 1000))
        store.put(tenant, "notes", "n", b"kept")
    if hasattr(store, "of"):  # a server's tenants are managed where its store is
        with pytest.raises(StoreError, match="tenant remove"):
            store.erase("theirs")
        return
    assert store.erase("theirs") > 0

    assert [*store.export("theirs")] == []
    assert store.journals("theirs") == []
    assert store.patterns("theirs", PatternQuery()) == []
    assert store.fixes("theirs", FixQuery(now=2000)) == []
    assert store.stats("theirs", StatsQuery(now=2000)).total.attempts == 0
    assert store.get("theirs", "notes", "n") is None
    assert store.erase("theirs") == 0
    assert len([*store.export(DEFAULT_TENANT)]) == 1
    assert store.get(DEFAULT_TENANT, "notes", "n") == b"kept"
    assert Writer(store, "theirs")(*failed_then_worked("run_a", 1000)) > 0


def test_is_a_store(store):
    assert isinstance(store, Store)


def test_a_run_comes_back_with_its_steps_in_order(store, write):
    write(
        RunStarted(run()), StepEnded(step(2)), StepEnded(step(1)), RunEnded(run(end_reason="finished", ended_at=1010))
    )

    history = store.run(DEFAULT_TENANT, "run_a")

    assert history.run == run(end_reason="finished", ended_at=1010)
    assert [each.seq for each in history.steps] == [1, 2]


def test_sessions_are_listed_once_the_newest_first_with_their_runs(store, write):
    for number, (session, agent) in enumerate(
        [("a", "x"), ("b", "y"), ("a", "y"), (None, "x"), ("c", "x"), ("b", "y")]
    ):
        one = run(f"run_{number}", 1000 + number, session=session, agent=agent)
        failed = StepEnded(step(1, run=one.id, failure=TIMEOUT, started_at=one.started_at))
        ended = msgspec.structs.replace(one, ended_at=2000, end_reason="finished")
        write(RunStarted(one), *([failed] if session == "b" else []), *([RunEnded(ended)] if number != 5 else []))

    listed = store.sessions(DEFAULT_TENANT, SessionQuery())

    assert [session.id for session in listed] == ["b", "c", "a"]
    b = listed[0]
    assert (b.runs, b.first_run_at, b.last_run_at, b.last_run, b.agents) == (2, 1001, 1005, "run_5", ("y",))
    assert b.unrecovered == 1, "the other run has not ended"
    assert listed[2].agents == ("x", "y")

    def ids(**fields: Any) -> list[str]:
        return [session.id for session in store.sessions(DEFAULT_TENANT, SessionQuery(**fields))]

    assert ids(agent="x") == ["c", "a"]
    assert ids(text="B") == ["b"]
    assert ids(since=1003) == ["b", "c"]
    position, pages = None, []
    while page := store.sessions(DEFAULT_TENANT, SessionQuery(limit=1, before=position)):
        pages += [session.id for session in page]
        position = SessionQuery().position_of(page[0])
    assert pages == ["b", "c", "a"], "a session is on the page of its newest run only"
    assert store.sessions("theirs", SessionQuery()) == []


def message(number: int, text: str, role: str = "user", **part: Any) -> RecordedMessage:
    return RecordedMessage(role=role, parts=(MessagePart(text=text, **part),), number=number)


def asked(run_id: str, *messages: RecordedMessage, seq: int = 1, seen: int | None = None, **fields: Any) -> StepEnded:
    """A model call that brings these messages and has received all up to the last, or up to `seen`."""
    last = seen if seen is not None else messages[-1].number
    defaults: dict[str, Any] = {"type": "model", "name": "ask", "messages": ((1, last),)}
    return StepEnded(step(seq, run=run_id, **{**defaults, **fields}), messages)


def texts_of(store: Store, run_id: str, tenant: str = DEFAULT_TENANT) -> list[str]:
    history = store.run(tenant, run_id)
    return [part.text for message in (history.messages if history else ()) for part in message.parts]


def test_messages_come_back_with_their_run_by_number_and_lists_of_runs_leave_them_out(store, write):
    first, second = message(1, "Where is order 7?"), message(2, "Shipped.", "assistant")
    write(RunStarted(run()), asked("run_a", first, second, seen=1, answer=2))
    write(asked("run_a", message(3, "Thanks."), seq=2))
    write(asked("run_a", message(3, "Thanks."), seq=2))  # again, as after a crash

    history = store.run(DEFAULT_TENANT, "run_a")

    assert [each.number for each in history.messages] == [1, 2, 3]
    assert history.messages[:2] == (first, second)
    assert [(each.messages, each.answer) for each in history.steps] == [(((1, 1),), 2), (((1, 3),), None)]
    assert [each.messages for each in store.export(DEFAULT_TENANT)] == [history.messages]
    assert store.runs(DEFAULT_TENANT, RunQuery())[0].messages == ()


def test_a_message_stays_until_the_last_run_that_has_it_is_forgotten(store, write):
    for id, own in (("run_a", "only in a"), ("run_b", "only in b")):
        write(RunStarted(run(id)), asked(id, message(1, "You are kind.", "system"), message(2, own)))

    assert store.forget(DEFAULT_TENANT, ForgetRequest(run="run_a")).messages == 2
    assert texts_of(store, "run_b") == ["You are kind.", "only in b"]

    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_b"))
    write(RunStarted(run("run_b")), asked("run_b", seen=2))

    assert texts_of(store, "run_b") == []


def test_messages_go_with_a_forgotten_session_and_with_the_steps_that_have_them(store, write):
    write(RunStarted(run(session="s")), asked("run_a", message(1, "of the session")))
    write(RunStarted(run("run_b")), asked("run_b", message(1, "of both models")))
    write(asked("run_b", message(2, "of the other model"), seq=2, name="other"))

    assert store.forget(DEFAULT_TENANT, ForgetRequest(session="s")).messages == 1
    assert store.forget(DEFAULT_TENANT, ForgetRequest(tool="other")).messages == 1
    assert texts_of(store, "run_b") == ["of both models"]


def test_a_forgotten_text_is_erased_from_messages_of_all_runs(store, write):
    for id in ("run_a", "run_b"):
        called = MessagePart(type="call", name="pay", arguments={"to": "Ada Lovelace", "n": [1]})
        write(RunStarted(run(id)), asked(id, RecordedMessage(role="assistant", parts=(called,), number=1)))
        write(asked(id, message(2, "user said Ada Lovelace paid"), seq=2))

    assert store.forget(DEFAULT_TENANT, ForgetRequest(text="Ada Lovelace")).messages == 4
    assert not store.forget(DEFAULT_TENANT, ForgetRequest(text="Ada Lovelace"))
    for id in ("run_a", "run_b"):
        call, said = store.run(DEFAULT_TENANT, id).messages
        assert call.parts[0].arguments == {"to": ERASED_MARK, "n": [1]}
        assert (said.role, said.parts[0].text) == ("user", f"user said {ERASED_MARK} paid")


def test_what_a_forgotten_tool_received_and_returned_is_erased_from_messages(store, write):
    called = RecordedMessage(
        role="assistant", parts=(MessagePart(type="call", name="search", arguments={"q": "me"}),), number=1
    )
    told = message(2, "my address", "tool", type="result", name="search")
    write(RunStarted(run()), asked("run_a", called, told, message(3, "of another", "tool", name="other")))

    assert store.forget(DEFAULT_TENANT, ForgetRequest(tool="search")).messages == 2
    assert texts_of(store, "run_a") == [ERASED_MARK, ERASED_MARK, "of another"]
    assert store.run(DEFAULT_TENANT, "run_a").messages[0].parts[0].arguments is None


def test_messages_of_one_tenant_do_not_depend_on_those_of_another(store):
    for tenant in ("theirs", DEFAULT_TENANT):
        Writer(store, tenant)(RunStarted(run()), asked("run_a", message(1, "the same text")))

    store.forget("theirs", ForgetRequest(run="run_a"))

    assert texts_of(store, "run_a", "theirs") == []
    assert texts_of(store, "run_a") == ["the same text"]


def test_messages_expire_with_their_run_and_with_sampled_steps(store, write):
    ended = {"ended_at": 2000, "end_reason": "finished"}
    write(RunStarted(run("run_old")), asked("run_old", message(1, "shared"), message(2, "old")))
    write(RunEnded(run("run_old", **ended)))
    failed = StepEnded(step(1, run="run_bad", failure=TIMEOUT))
    write(RunStarted(run("run_bad")), failed, asked("run_bad", message(1, "shared"), message(2, "bad"), seq=2))
    write(RunEnded(run("run_bad", **ended)))
    later = 40 * DAY + counters.HOUR

    pruned = store.prune(DEFAULT_TENANT, Retention(), now() + later)

    assert pruned.runs == 1
    assert store.run(DEFAULT_TENANT, "run_old") is None
    assert texts_of(store, "run_bad") == ["shared", "bad"]

    store.prune(DEFAULT_TENANT, Retention(sample=1e-9), now() + later)

    assert [each.seq for each in store.run(DEFAULT_TENANT, "run_bad").steps] == [1]
    assert texts_of(store, "run_bad") == []
    write(asked("run_bad", seq=3, seen=2))
    assert texts_of(store, "run_bad") == []  # not only hidden


RECORDED = Failure.of(Kind("tool", "unavailable", Remedy.RETRY), "being rebuilt", fingerprint="f-down")


@pytest.mark.parametrize("sizes", [(4, 1), (2, 1, 2), (5,), (1, 1, 1, 1, 1), (0, 4, 1, 1)], ids=str)
def test_a_failure_recorded_for_a_failed_step_replaces_its_failure_everywhere(store, sizes):
    """However the records arrive, everything derived is as if the step had ended with it."""
    first, failed, later, ended = failed_then_worked("run_a", 1000, after=50)
    events = [first, failed, FailureRecorded("run_a", 1, RECORDED), later, ended]
    if sizes == (4, 1):  # it was recovered before the failure was recorded
        events = [first, failed, later, ended, FailureRecorded("run_a", 1, RECORDED)]
    write = Writer(store)
    write(RunStarted(run("run_b", 900)), StepEnded(step(1, run="run_b", failure=REJECTED)))
    pending = iter(events)
    for size in sizes:
        write(*itertools.islice(pending, size))
    new = FailureRecorded("run_a", 1, RECORDED)
    assert write(new) == 0
    assert write(FailureRecorded("run_a", 9, RECORDED), FailureRecorded("run_x", 1, RECORDED)) == 0

    expected = "expected"
    Writer(store, expected)(RunStarted(run("run_b", 900)), StepEnded(step(1, run="run_b", failure=REJECTED)))
    assert isinstance(failed, StepEnded)
    whole = StepEnded(msgspec.structs.replace(failed.step, failure=RECORDED))
    Writer(store, expected)(first, whole, later, ended)

    assert [*store.export(DEFAULT_TENANT)] == [*store.export(expected)]
    for tenant in (DEFAULT_TENANT, expected):
        assert store.stats(tenant, EVERYTHING) == counters.stats(store.export(expected), EVERYTHING)
    now = 2000
    assert [
        (pattern.kind, pattern.occurrences, pattern.recovered)
        for pattern in store.patterns(DEFAULT_TENANT, PatternQuery())
    ] == [
        (pattern.kind, pattern.occurrences, pattern.recovered) for pattern in store.patterns(expected, PatternQuery())
    ]
    asked = RecallQuery(tool="search", fingerprint="f-down", run="run_now")
    assert store.recall(DEFAULT_TENANT, asked) == store.recall(expected, asked)
    assert store.fixes(DEFAULT_TENANT, FixQuery(now=now)) == store.fixes(expected, FixQuery(now=now))


@pytest.mark.parametrize("order", ["same batch", "next batch", "after the end", "nested first", "nested last"])
def test_a_failure_recorded_for_a_success_marks_it_failed_everywhere(store, order):
    """However the records arrive, everything derived is as if the step had failed at once."""
    started, ended = RunStarted(run("run_a", 1000)), RunEnded(run("run_a", 1000, ended_at=2000, end_reason="finished"))
    success, later = step(1, run="run_a", name="search"), StepEnded(step(2, run="run_a", name="search"))
    recorded = FailureRecorded("run_a", 1, RECORDED)
    nested = StepEnded(step(FIRST_FAILURE_SEQ + 7, run="run_a", name="search", parent=1, failure=RECORDED))
    batches = {
        "same batch": [[started, StepEnded(success), recorded, later, ended]],
        "next batch": [[started, StepEnded(success)], [recorded], [recorded, later, ended]],
        "after the end": [[started, StepEnded(success), later, ended], [recorded]],
        "nested first": [[started], [nested], [StepEnded(success)], [later], [ended]],
        "nested last": [[started], [StepEnded(success)], [nested, later], [ended]],
    }[order]
    write = Writer(store)
    for batch in batches:
        write(*batch)
    assert write(recorded) == 0

    expected = "expected"
    failed = StepEnded(msgspec.structs.replace(success, outcome="failure", failure=RECORDED))
    Writer(store, expected)(started, failed, later, ended)
    assert [*store.export(DEFAULT_TENANT)] == [*store.export(expected)]
    assert [step.outcome for step in store.run(DEFAULT_TENANT, "run_a").steps] == ["failure", "success"]
    for tenant in (DEFAULT_TENANT, expected):
        assert store.stats(tenant, EVERYTHING) == counters.stats(store.export(expected), EVERYTHING)


@pytest.mark.parametrize("order", ["early", "without run", "late"])
def test_a_failure_stored_before_its_failed_step_becomes_its_failure_everywhere(store, order):
    first, failed, later, ended = failed_then_worked("run_a", 1000, after=50)
    assert isinstance(failed, StepEnded)
    nested = StepEnded(step(FIRST_FAILURE_SEQ + 7, run="run_a", name="", parent=1, started_at=1000, failure=RECORDED))
    events = {
        "early": [first, nested, failed, later, ended],
        "without run": [nested, failed, first, later, ended],
        "late": [failed, nested, first, later, ended],
    }[order]
    write = Writer(store)
    for event in events:
        write(event)
    assert write(failed) == 0

    fingerprint = compute_fingerprint(RECORDED.kind, "search", RECORDED.message)
    recorded = msgspec.structs.replace(RECORDED, fingerprint=fingerprint)
    expected = "expected"
    whole = StepEnded(msgspec.structs.replace(failed.step, failure=recorded))
    Writer(store, expected)(first, whole, later, ended)

    assert [*store.export(DEFAULT_TENANT)] == [*store.export(expected)]
    assert store.stats(DEFAULT_TENANT, EVERYTHING) == counters.stats(store.export(expected), EVERYTHING)
    for tenant in (DEFAULT_TENANT, expected):
        (pattern,) = store.patterns(tenant, PatternQuery())
        assert (pattern.kind, pattern.occurrences, pattern.recovered) == ("tool/unavailable", 1, 1)


def test_an_unknown_run_is_none(store):
    assert store.run(DEFAULT_TENANT, "run_a") is None
    assert store.runs(DEFAULT_TENANT, RunQuery()) == []


def test_many_runs_are_read_at_once_without_their_steps(store, write):
    runs = {f"run_{number}": Run(id=f"run_{number}", agent="scout") for number in range(0, 1200, 2)}
    write(*map(RunStarted, runs.values()))
    asked = [f"run_{number}" for number in range(1200)]

    assert store.runs_by_id(DEFAULT_TENANT, asked) == runs
    assert store.runs_by_id("theirs", asked) == store.runs_by_id(DEFAULT_TENANT, []) == {}


def test_which_runs_have_ended_is_told_for_many_at_once(store, write):
    for number in range(6):
        write(RunStarted(Run(id=f"run_{number}", started_at=number)))
        if number % 2:
            write(RunEnded(Run(id=f"run_{number}", started_at=number, ended_at=9, end_reason="finished")))
    asked = [f"run_{number}" for number in range(1200)]
    assert store.ended_runs(DEFAULT_TENANT, asked) == {"run_1", "run_3", "run_5"}
    assert store.ended_runs("theirs", asked) == store.ended_runs(DEFAULT_TENANT, []) == set()


def test_a_batch_is_kept_once_by_its_journal_and_offset(store):
    batch = [RunStarted(run()), StepEnded(step(1))]

    assert store.append(DEFAULT_TENANT, batch, "journal_a", 2) == 2
    assert store.append(DEFAULT_TENANT, batch, "journal_a", 2) == 0
    assert store.append(DEFAULT_TENANT, [StepEnded(step(2))], "journal_a", 1) == 0
    assert len(store.run(DEFAULT_TENANT, "run_a").steps) == 1


def test_a_record_is_kept_once_whichever_journal_it_comes_from(store):
    batch = [RunStarted(run()), StepEnded(step(1)), RunEnded(run(end_reason="finished"))]

    assert store.append(DEFAULT_TENANT, batch, "journal_a", 3) == 3
    assert store.append(DEFAULT_TENANT, batch, "journal_b", 3) == 0
    assert store.append(DEFAULT_TENANT, [StepEnded(step(1, name="other"))], "journal_c", 1) == 0
    assert store.run(DEFAULT_TENANT, "run_a").steps == (step(1),)


LOOKING = CallTemplate("tool", "look", ("where", "how"), frozenset({"where", "how", "password"}))
THINKING = CallTemplate("model", "think", ("prompt",), frozenset({"prompt", "model"}))
READING = CallTemplate("retrieval", "read", ("path",), frozenset({"path"}), server="files")


def worked(form: CallTemplate, run: str, seq: int, *given: Any, at: float = 3599.5, **named: Any) -> SuccessRecord:
    tokens = {"input": seq} if form is THINKING else None
    alone = StandaloneRun.from_run(Run(id="", agent="ann")) if run.startswith("run_alone") else None
    return SuccessRecord(
        form, run, seq, seq - 1 or None, at + seq / 10, given, named, alone,
        duration_seconds=seq / 1000, result={"of": seq}, tokens=tokens,
    )  # fmt: skip


def recorded() -> list[AnyEvent | SuccessRecord]:
    """Calls that worked, before, between and after others; some have something to hide, and an hour ends among them."""
    return [
        RunStarted(run("run_a", agent="bob", metadata={"model": "m-1"})),
        *(worked(LOOKING, "run_a", seq, f"place {seq}", seq) for seq in range(1, 12)),
        worked(THINKING, "run_a", 12, "well", model="m-2"),
        worked(LOOKING, "run_a", 13, "ann@example.com", password="open sesame"),
        worked(READING, "run_a", 14, "a \N{SNOWMAN}"),
        RunStarted(run("run_b")),
        worked(LOOKING, "run_b", 1),
        StepEnded(step(2, run="run_b", arguments={"k": 50}, failure=REJECTED, started_at=1)),
        StepEnded(step(3, run="run_b", arguments={"k": 10}, started_at=2)),
        worked(READING, "run_b", 4, path="b"),
        *(worked(LOOKING, f"run_alone_{seq}", 1, how=seq) for seq in range(3)),
        RunEnded(run("run_b", ended_at=9, end_reason="finished")),
        worked(LOOKING, "run_a", 15, "later", at=7200.0),
        worked(LOOKING, "run_lost", 1, "begun elsewhere"),
    ]


@pytest.mark.parametrize("first", [0, 1, 9, 17, 23])
def test_calls_that_worked_are_kept_as_their_events_would_be(store, first):
    kept = redact_records(recorded(), RecordRedactor(Redactor(key=b"k" * 32)))
    told = list(kept)

    if first:
        assert store.append("events", told[:first], "journal_1", 1) == store.append(
            "calls", told[:first], "journal_1", 1
        )
    counts = [store.append("events", told, "journal_2", 1), store.append("calls", kept, "journal_2", 1)]
    again = [store.append("events", told, "journal_3", 1), store.append("calls", kept, "journal_3", 1)]
    started = RunStarted(run("run_lost"))
    for tenant in ("events", "calls"):
        store.append(tenant, [started], "journal_4", 1)

    assert counts[0] == counts[1] > 0
    assert again == [0, 0]
    histories = [*store.export("calls")]
    assert histories == [*store.export("events")]
    assert encode(store.run("calls", "run_a").steps) == encode(
        sorted((e.step for e in told if isinstance(e, StepEnded) and e.step.run == "run_a"), key=lambda step: step.seq)
    )
    for by in (None, "tool", "model", "agent", "kind"):
        asked = StatsQuery(now=8_000_000, by=by)
        assert store.stats("calls", asked) == store.stats("events", asked) == counters.stats(histories, asked)
    for asked in (RunQuery(tool="read"), RunQuery(tool="look"), RunQuery(model="m-1"), RunQuery(model="m-2")):
        assert store.runs("calls", asked) == store.runs("events", asked) != []


def test_the_end_of_a_run_replaces_its_beginning_in_any_order_of_arrival(store, write):
    ended = run(end_reason="finished", ended_at=2000, agent="a")
    write(RunEnded(ended))
    write(RunStarted(run(agent="a")))
    assert store.run(DEFAULT_TENANT, "run_a").run == ended

    write(RunStarted(run("run_b")))
    write(RunEnded(run("run_b", end_reason="raised")))
    assert store.run(DEFAULT_TENANT, "run_b").run.end_reason == "raised"


def test_events_that_are_not_records_are_passed_over(store, write):
    assert write(StepStarted(step(1)), ContextCompacted(Compaction(reason="agent"))) == 0
    assert store.health(DEFAULT_TENANT).steps == 0


def test_the_newest_runs_come_first_and_no_more_than_asked_for(store, write):
    write(*(RunStarted(run(f"run_{n}", started=n)) for n in (3, 1, 2)))

    def found(**query: Any) -> list[str]:
        return [history.run.id for history in store.runs(DEFAULT_TENANT, RunQuery(**query))]

    assert found() == ["run_3", "run_2", "run_1"]
    assert found(limit=2) == ["run_3", "run_2"]
    assert found(limit=0) == []
    assert found(limit=-1) == []


def write_runs_of_different_cost(write: Writer) -> None:
    """Three runs: the first cost most, the second lasted longest and failed most, the third has most tokens."""
    for name, cost, tokens, failures, seconds in (("a", 3, 10, 0, 2), ("b", 2, 20, 2, 9), ("c", 1, 30, 1, 5)):
        id = f"run_{name}"
        model = step(1, run=id, name="gpt", type="model", tokens={"input": tokens}, cost_nanos=cost * 10**9)
        failed = [step(2 + n, 2, 1 + n, run=id, failure=TIMEOUT) for n in range(failures)]
        # The steps of c arrive before it, and the agent of b is known when it ends.
        write(StepEnded(model)) if name == "c" else write(RunStarted(run(id, 1000)), StepEnded(model))
        ended = run(id, 1000, ended_at=1000 + seconds * 1000, end_reason="finished", agent=name)
        write(*map(StepEnded, failed), RunEnded(ended))


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({"order": "cost"}, "abc"),
        ({"order": "tokens"}, "cba"),
        ({"order": "duration"}, "bca"),
        ({"order": "attempts"}, "bca"),
        ({"order": "tool_failures"}, "bca"),
        ({"min_facts": {"cost": 1.5}}, "ba"),
        ({"min_facts": {"cost": 2.0000001}}, "a"),
        ({"min_facts": {"tokens": 20}}, "cb"),
        ({"min_facts": {"duration": 5.0}}, "cb"),
        ({"min_facts": {"attempts": 2}, "order": "tokens"}, "cb"),
        ({"min_facts": {"tool_failures": 1, "cost": 1.5}}, "b"),
        ({"min_facts": {"tool_failures": 1}, "kind": "tool/timeout", "since": 1000}, "cb"),
        ({"order": "cost", "tool": "search"}, "bc"),
        ({"order": "cost", "until": 1000}, ""),
    ],
)
def test_runs_are_filtered_and_sorted_by_what_they_cost_and_how_they_went(store, write, query, ids):
    write_runs_of_different_cost(write)

    def find(**more: Any) -> list[History]:
        return list(store.runs(DEFAULT_TENANT, RunQuery(**query, **more)))

    assert [history.run.id for history in find()] == [f"run_{id}" for id in ids]
    pages: list[History] = []
    while page := find(limit=1, **({"before": RunQuery(**query).position_of(pages[-1])} if pages else {})):
        pages += page
    assert pages == find()


def test_runs_of_one_moment_are_in_one_order(store, write):
    write(*(RunStarted(run(f"run_{id}")) for id in "bca"))
    assert [each.run.id for each in store.runs(DEFAULT_TENANT, RunQuery())] == ["run_c", "run_b", "run_a"]


def test_runs_are_found_by_agent_session_and_time(store, write):
    write(
        RunStarted(run("run_1", 10, agent="x", session="s")),
        RunStarted(run("run_2", 20, agent="x")),
        RunStarted(run("run_3", 30, agent="y", session="s")),
    )

    def found(**query: Any) -> list[str]:
        return [history.run.id for history in store.runs(DEFAULT_TENANT, RunQuery(**query))]

    assert found(agent="x") == ["run_2", "run_1"]
    assert found(session="s") == ["run_3", "run_1"]
    assert found(agent="x", session="s") == ["run_1"]
    assert found(since=20) == ["run_3", "run_2"]
    assert found(until=20) == ["run_1"]


def test_a_run_is_found_by_the_beginning_of_its_id(store, write):
    write(*(RunStarted(run(id, n)) for n, id in enumerate(["run_ab", "run_ac", "run_b", "rün_ä", "run_%"])))

    assert [each.id for each in store.find(DEFAULT_TENANT, "run_a")] == ["run_ac", "run_ab"]
    assert [each.id for each in store.find(DEFAULT_TENANT, "run_a", limit=1)] == ["run_ac"]
    assert [each.id for each in store.find(DEFAULT_TENANT, "rün_")] == ["rün_ä"]
    assert [each.id for each in store.find(DEFAULT_TENANT, "run_%")] == ["run_%"]
    assert store.find(DEFAULT_TENANT, "run_x") == []


def test_export_tells_every_run_the_oldest_first(store, write):
    write(*(event for n in (3, 1, 2) for event in failed_then_worked(f"run_{n}", n)))

    exported = list(store.export(DEFAULT_TENANT))

    assert [history.run.id for history in exported] == ["run_1", "run_2", "run_3"]
    assert exported[0] == store.run(DEFAULT_TENANT, "run_1")
    assert [history.run.id for history in store.export(DEFAULT_TENANT, since=2)] == ["run_2", "run_3"]


def test_a_preview_of_forgetting_counts_and_changes_nothing(store, write):
    write(*failed_then_worked("run_1", 1))
    before = store.run(DEFAULT_TENANT, "run_1"), store.stats(DEFAULT_TENANT, EVERYTHING)
    request = ForgetRequest(run="run_1")

    preview = store.preview_forget(DEFAULT_TENANT, request)

    assert preview == ForgetResult(runs=1, steps=2, patterns=1)
    assert (store.run(DEFAULT_TENANT, "run_1"), store.stats(DEFAULT_TENANT, EVERYTHING)) == before
    assert store.audit(DEFAULT_TENANT, AuditQuery(action="forget.")) == []
    assert store.forget(DEFAULT_TENANT, request) == preview


def test_an_import_does_not_bring_back_what_was_forgotten(store, write):
    def session_run(id: str) -> list[AnyEvent]:
        return [replace_session(event, "s") for event in failed_then_worked(id, 1)]

    write(*failed_then_worked("run_1", 1), *session_run("run_2"), *failed_then_worked("run_3", 1))
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_1"))
    store.forget(DEFAULT_TENANT, ForgetRequest(session="s"))
    log = [*failed_then_worked("run_1", 1), *session_run("run_2"), *session_run("run_4")]

    new = store.append(DEFAULT_TENANT, [*log, *failed_then_worked("run_5", 1)], "import:log", 1)
    late = store.append(DEFAULT_TENANT, [StepEnded(step(3, run="run_4"))], "import:log", 2)

    assert (new, late) == (4, 0)
    assert {run.id for run in store.find(DEFAULT_TENANT, "run_")} == {"run_3", "run_5"}
    assert store.stats(DEFAULT_TENANT, EVERYTHING).total.calls == 4


def replace_session(event: AnyEvent, session: str) -> AnyEvent:
    if not isinstance(event, RunStarted | RunEnded):
        return event
    return msgspec.structs.replace(event, run=msgspec.structs.replace(event.run, session=session))


def test_imported_corrections_alone_never_promote_a_fix(store, write):
    for day in range(1, 10):
        store.append(DEFAULT_TENANT, failed_then_worked(f"run_{day}", day * DAY), f"import:log_{day}", 1)

    (fix,) = store.fixes(DEFAULT_TENANT, FixQuery(tool="search", now=10 * DAY))

    assert (fix.state, fix.trials, fix.imported) == ("proposed", 9, 9)


def test_ids_are_found_by_their_prefix(store, write):
    for number in (1, 2, 12):
        write(*failed_then_worked(f"run_{number}", number))
    assert store.find_ids(DEFAULT_TENANT, "runs", "run_1") == ["run_1", "run_12"]
    assert store.find_ids(DEFAULT_TENANT, "runs", "run_", 2) == ["run_1", "run_12"]
    assert store.find_ids(DEFAULT_TENANT, "runs", "RUN") == []
    (pattern,) = store.patterns(DEFAULT_TENANT, PatternQuery())
    assert store.find_ids(DEFAULT_TENANT, "patterns", "pat_") == [pattern.id]
    (fix,) = store.fixes(DEFAULT_TENANT, FixQuery())
    assert store.find_ids(DEFAULT_TENANT, "fixes", fix.id) == [fix.id]
    assert store.find_ids(DEFAULT_TENANT, "lessons", "les_") == []
    assert store.find_ids("theirs", "runs", "run_") == []


def test_a_run_of_which_some_fields_are_sent_keeps_the_others(store, write):
    first = Run(id="run_1", agent="a", session="s", metadata={"x": 1}, started_at=5)
    assert write(RunStarted(first, ("agent", "session", "metadata"))) == 1
    assert write(RunStarted(Run(id="run_1", started_at=9), ())) == 0
    ended = Run(id="run_1", version="2", metadata={"y": 2}, started_at=9, ended_at=9, end_reason="finished")
    assert write(RunEnded(ended, ("version", "metadata", "ended_at"))) == 1
    assert write(RunEnded(ended, ("version", "metadata", "ended_at"))) == 0
    expected = msgspec.structs.replace(ended, agent="a", session="s", metadata={"x": 1, "y": 2}, started_at=5)
    assert store.run(DEFAULT_TENANT, "run_1").run == expected


def test_a_forgotten_run_is_gone_from_everything(store, write):
    write(*failed_then_worked("run_1", 1))

    assert store.forget(DEFAULT_TENANT, ForgetRequest(run="run_1")) == ForgetResult(runs=1, steps=2, patterns=1)

    assert store.run(DEFAULT_TENANT, "run_1") is None
    assert store.find(DEFAULT_TENANT, "run_") == []
    assert list(store.export(DEFAULT_TENANT)) == []
    assert store.recall(DEFAULT_TENANT, ASKED) == []
    assert store.stats(DEFAULT_TENANT, EVERYTHING) == counters.stats([])
    assert (store.health(DEFAULT_TENANT).runs, store.health(DEFAULT_TENANT).steps) == (0, 0)
    assert not store.forget(DEFAULT_TENANT, ForgetRequest(run="run_1"))


def test_health_says_how_much_is_kept(store, write):
    write(*failed_then_worked("run_1", 1))
    health = store.health(DEFAULT_TENANT)
    assert (health.healthy, health.runs, health.steps) == (True, 1, 2)
    assert health.where


def test_tenants_never_meet(store):
    ours, theirs = Writer(store, "ours"), Writer(store, "theirs")  # and both call their journal the same
    ours(*failed_then_worked("run_1", 1))
    assert theirs(RunStarted(run("run_1", 2, agent="x"))) == 1
    store.put("ours", "session", "s", b"mine")

    assert store.run("theirs", "run_1").steps == ()
    assert store.run("ours", "run_1").run.agent == ""
    assert store.recall("theirs", ASKED) == []
    assert store.stats("theirs", EVERYTHING).total.calls == 0
    assert store.get("theirs", "session", "s") is None
    assert len(store.runs("theirs", RunQuery())) == len(store.find("theirs", "run_")) == 1
    assert store.health("theirs").steps == 0
    assert store.forget("theirs", ForgetRequest(run="run_1"))
    assert len(store.run("ours", "run_1").steps) == 2


# Links and memory


def test_links_are_what_link_recoveries_says(store, write):
    write(*failed_then_worked("run_1", 1))
    history = store.run(DEFAULT_TENANT, "run_1")
    assert history.links == tuple(link_recoveries(history.steps, history.run)) != ()
    assert not history.links[0].provisional


def word_then_another(run_id: str) -> list[AnyEvent]:
    """A run in which a word was rejected and another one worked, which no limit in the error supports."""
    return [
        RunStarted(run(run_id, 1)),
        StepEnded(step(1, run=run_id, arguments={"mode": "fast", "q": run_id}, failure=REJECTED)),
        StepEnded(step(2, run=run_id, arguments={"mode": "slow", "q": run_id})),
        RunEnded(run(run_id, 1, ended_at=6, end_reason="finished")),
    ]


def test_link_by_another_value_is_provisional_until_its_run_ends(store, write):
    *events, ended = word_then_another("run_1")
    write(*events)
    (link,) = store.run(DEFAULT_TENANT, "run_1").links
    assert (link.evidence, link.provisional) == (("next_call",), True)
    assert store.fixes(DEFAULT_TENANT, FixQuery(now=2000)) == []
    write(ended)
    (link,) = store.run(DEFAULT_TENANT, "run_1").links
    assert (link.evidence, link.provisional) == (("next_call",), False)
    assert [fix.successes for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=2000))] == [1]


def test_loop_over_items_has_no_link_when_its_run_has_ended(store, write):
    *events, ended = word_then_another("run_1")
    write(*events)
    write(StepEnded(step(3, run="run_1", arguments={"mode": "safe", "q": "run_1"})))
    assert all(link.provisional for link in store.run(DEFAULT_TENANT, "run_1").links)
    write(ended)
    history = store.run(DEFAULT_TENANT, "run_1")
    assert (history.links, derive_status(history.run, history.steps, history.links)) == ((), "partial")
    assert [each.run.id for each in store.runs(DEFAULT_TENANT, RunQuery(status="partial"))] == ["run_1"]
    assert store.fixes(DEFAULT_TENANT, FixQuery(now=2000)) == []
    assert (found(store)[0].recovered, found(store)[0].unrecovered) == (0, 1)


def successes(run_id: str, started: int, count: int, **fields: Any) -> list[AnyEvent]:
    """A run of successful calls of one tool."""
    calls = [StepEnded(step(seq, run=run_id, arguments={"unit": "days"}, **fields)) for seq in range(1, count + 1)]
    return [RunStarted(run(run_id, started)), *calls]


def test_values_of_a_tool_are_found_beyond_many_later_calls_of_another_tool_with_its_name(store, write):
    write(*(event for at in range(3) for event in successes(f"run_{at}", at, 5, key="of_server_a")))
    expected = store.value_profiles(DEFAULT_TENANT, "search", "of_server_a")
    write(*(event for at in range(3, 12) for event in successes(f"run_{at}", at, 15, key="of_server_b")))
    assert expected
    assert store.value_profiles(DEFAULT_TENANT, "search", "of_server_a") == expected


def test_values_of_a_tool_are_found_in_a_run_with_a_failure_of_no_step(store, write):
    """A server numbers such failures far behind the steps."""
    write(*successes("run_a", 1, 5))
    expected = store.value_profiles(DEFAULT_TENANT, "search")
    write(StepEnded(step(FIRST_FAILURE_SEQ + 7, failure=TIMEOUT)))
    assert expected
    assert store.value_profiles(DEFAULT_TENANT, "search") == expected


def test_run_that_raised_proves_nothing_by_what_succeeded_in_it(store, write):
    *events, _ = failed_then_worked("run_1", 1)
    write(*events, RunEnded(run("run_1", 1, ended_at=6, end_reason="raised")))
    assert len(store.run(DEFAULT_TENANT, "run_1").links) == 1
    assert store.fixes(DEFAULT_TENANT, FixQuery(now=2000)) == []


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_recovered_chain_of_failed_calls_is_kept_in_however_many_batches_it_comes(store, write, parts):
    modes = [50, 40, 30, 10]
    rejected = Failure.of(REJECTED.kind, "k must be at most 10", fingerprint="f-k")
    steps = [
        step(n, arguments={"k": k, "q": "a"}, failure=rejected if k > 10 else None)
        for n, k in enumerate(modes, start=1)
    ]
    write(RunStarted(run()))
    for start in range(0, len(steps), 4 // parts):
        write(*map(StepEnded, steps[start : start + 4 // parts]))
    write(RunEnded(run(ended_at=2000, end_reason="finished")))
    history = store.run(DEFAULT_TENANT, "run_a")
    assert [(link.failed_call, link.recovering_call) for link in history.links] == [(1, 4), (2, 4), (3, 4)]
    assert [link.changes[0].before for link in history.links] == [50, 40, 30]
    assert derive_status(history.run, history.steps, history.links) == "recovered"


def test_store_takes_links_as_the_recorder_judged_them_and_derives_none(store, write):
    """The arguments were hidden afterwards: what is equal now may have been different."""
    hidden = {"order": "[redacted card]", "full": True}
    stored = Link(run="run_a", failed_call=2, recovering_call=4, method="retry", evidence=("same_arguments",))
    write(
        RunStarted(run()),
        StepEnded(step(1, arguments=hidden, failure=REJECTED, links_decided=True)),
        StepEnded(step(2, arguments=hidden, failure=REJECTED, links_decided=True)),
        StepEnded(step(3, arguments=hidden)),
        StepEnded(step(4, arguments=hidden, links=(stored,))),
        RunEnded(run(ended_at=2000, end_reason="finished")),
    )
    history = store.run(DEFAULT_TENANT, "run_a")
    assert history.links == (stored,)
    assert derive_status(history.run, history.steps, history.links) == "partial"


def test_withdrawn_call_loses_its_provisional_links_and_keeps_the_others(store, write):
    judged = {"failure": REJECTED, "links_decided": True}
    links = (
        Link(
            run="run_a",
            failed_call=1,
            recovering_call=3,
            method="agent",
            evidence=("same_arguments",),
            provisional=True,
        ),
        Link(run="run_a", failed_call=2, recovering_call=3, method="retry", evidence=("same_arguments",)),
    )
    reissue = Link(run="run_a", failed_call=1, recovering_call=2, method="agent", evidence=("next_call",))
    write(
        RunStarted(run()),
        StepEnded(step(1, arguments={"order": 1, "full": True}, **judged)),
        StepEnded(step(2, arguments={"order": 2, "full": True}, links=(reissue,), **judged)),
        StepEnded(step(3, arguments={"order": 2, "full": True}, links=links)),
    )
    assert [link.failed_call for link in store.run(DEFAULT_TENANT, "run_a").links] == [1, 2]
    write(RunEnded(run(ended_at=2000, end_reason="finished", withdrawn=(3,))))
    history = store.run(DEFAULT_TENANT, "run_a")
    assert [link.failed_call for link in history.links] == [2]
    assert derive_status(history.run, history.steps, history.links) == "partial"


def test_arguments_that_name_items_are_kept_with_those_of_earlier_runs(store, write):
    for number, items in enumerate(({"tools:look": ("order",)}, {"tools:look": ("month",), "tools:send": ("to",)})):
        write(RunStarted(run(f"run_{number}")), RunEnded(run(f"run_{number}", end_reason="finished", items=items)))
    assert parse_items(store.get(DEFAULT_TENANT, ITEMS_KIND, "tools:look")) == {"month", "order"}
    assert parse_items(store.get(DEFAULT_TENANT, ITEMS_KIND, "tools:send")) == {"to"}
    assert store.get("theirs", ITEMS_KIND, "tools:look") is None


def test_a_step_that_comes_late_changes_what_overcame_what(store, write):
    write(RunStarted(run()), StepEnded(step(1, arguments={"q": "cats"}, failure=TIMEOUT)))
    write(StepEnded(step(3, arguments={"q": "cats"})))
    assert len(store.run(DEFAULT_TENANT, "run_a").links) == 1

    late = step(2, 1, 2, arguments={"subject": "another thing altogether"}, failure=TIMEOUT)
    write(StepEnded(late))

    history = store.run(DEFAULT_TENANT, "run_a")
    assert history.links == tuple(link_recoveries(history.steps, history.run)) == ()
    assert store.recall(DEFAULT_TENANT, RecallQuery(tool="search", fingerprint="f-timeout")) == []


def test_what_overcame_a_failure_before_is_recalled_with_its_count_of_runs(store, write):
    write(*failed_then_worked("run_1", 1), *failed_then_worked("run_2", 2), *failed_then_worked("run_3", 3, after=7))
    write(RunStarted(run("run_4", 4)), StepEnded(step(1, run="run_4", arguments={"k": 50}, failure=REJECTED)))

    first, second = store.recall(DEFAULT_TENANT, ASKED)

    assert (first.changes, first.successes, first.occurrences) == (
        (Change(path="k", operation="substitute", before=50, after=10),),
        2,
        4,
    )
    assert (second.changes[0].after, second.successes, second.occurrences) == (7, 1, 4)
    assert store.recall(DEFAULT_TENANT, RecallQuery(tool="search", fingerprint="f-k", limit=1)) == [first]


def test_the_asking_runs_own_fresh_failure_is_not_counted(store, write):
    write(*failed_then_worked("run_1", 1))
    write(RunStarted(run("run_now", 2)), StepEnded(step(1, run="run_now", failure=REJECTED)))

    (known,) = store.recall(DEFAULT_TENANT, ASKED)

    assert (known.successes, known.occurrences) == (1, 1)


def test_what_the_asking_run_has_overcome_itself_is_counted(store, write):
    write(*failed_then_worked("run_now", 1))
    (known,) = store.recall(DEFAULT_TENANT, ASKED)
    assert (known.successes, known.occurrences) == (1, 1)


@pytest.mark.parametrize(
    "question",
    [
        RecallQuery(tool="other", fingerprint="f-k"),
        RecallQuery(tool="search", fingerprint="f-else"),
        RecallQuery(tool="search", fingerprint=""),
    ],
)
def test_nothing_known_is_a_good_answer(store, write, question):
    write(*failed_then_worked("run_1", 1))
    assert store.recall(DEFAULT_TENANT, question) == []


def test_what_was_refused_by_the_user_is_not_a_failure_that_was_met(store, write):
    write(*failed_then_worked("run_1", 1))
    write(RunStarted(run("run_2")), StepEnded(step(1, run="run_2", failure=REFUSED)))
    (known,) = store.recall(DEFAULT_TENANT, ASKED)
    assert known.occurrences == 1


def test_what_worked_is_known_by_the_failure_it_came_after(store, write):
    after = Recovery(remedy=Remedy.REPAIR, changes=(Change(path="k", operation="clamp", before=50, after=10),))
    write(
        RunStarted(run()),
        StepEnded(step(1, failure=TIMEOUT)),
        StepEnded(step(2, 1, 2, failure=REJECTED)),
        StepEnded(step(3, 1, 3, recovery=after)),
    )
    assert len(store.recall(DEFAULT_TENANT, ASKED)) == 1
    assert store.recall(DEFAULT_TENANT, RecallQuery(tool="search", fingerprint="f-timeout")) == []


# Patterns


def found(store: Store, **query: Any) -> list[Pattern]:
    return store.patterns(DEFAULT_TENANT, PatternQuery(**query))


K = pattern_id("search", "f-k")
SLOW = pattern_id("search", "f-timeout")


def test_failures_of_one_fingerprint_and_tool_are_one_pattern(store, write):
    write(*failed_then_worked("run_1", 1), *failed_then_worked("run_2", DAY + 2))
    write(RunStarted(run("run_3", 3, agent="x")), StepEnded(step(1, run="run_3", started_at=3 * DAY, failure=REJECTED)))

    (listed,) = found(store)
    pattern = store.pattern(DEFAULT_TENANT, K)

    assert listed == msgspec.structs.replace(pattern, examples=())
    assert (pattern.tool, pattern.fingerprint, pattern.kind) == ("search", "f-k", "tool/invalid_arguments")
    assert (pattern.occurrences, pattern.recovered, pattern.unrecovered, pattern.runs) == (3, 2, 1, 3)
    assert (pattern.first_seen_at, pattern.last_seen_at, pattern.state) == (0, 3 * DAY, "active")
    assert pattern.agents == {"": 2, "x": 1}
    assert pattern.days == {0: 2, 3 * DAY: 1}
    assert pattern.examples[0] == Example(run="run_3", seq=1, started_at=3 * DAY)
    assert len(pattern.examples) == 3


def test_a_pattern_says_why_its_failures_are_one(store, write):
    failure = Failure.of(TIMEOUT.kind, "no answer from 10.0.0.7 after 31 s (limit 30 s)", fingerprint="f-timeout")
    write(RunStarted(run()), StepEnded(step(1, failure=failure)))
    (pattern,) = found(store)
    assert pattern.message == failure.message
    assert "<ip>" in pattern.template
    assert "limit 30 s" in pattern.template


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_failure_its_session_knew_is_a_repeat_in_whatever_order_it_is_told(store, write, order):
    compacted = Compaction(session="s", at=500, known_failures=(pattern_id("search", "f-timeout"),))
    told = [
        [RunStarted(run("run_1", 100, session="s")), StepEnded(step(1, run="run_1", started_at=100, failure=TIMEOUT))],
        [ContextCompacted(compacted)],
        [RunStarted(run("run_2", 900, session="s")), StepEnded(step(1, run="run_2", started_at=900, failure=TIMEOUT))],
    ]
    for place in order:
        write(*told[place])
    write(RunStarted(run("run_3", 900)), StepEnded(step(1, run="run_3", started_at=900, failure=TIMEOUT)))
    write(ContextCompacted(Compaction(session="s", at=700)))  # the last before it counts, and this knew nothing
    assert store.stats(DEFAULT_TENANT, StatsQuery(now=0)).total.repeats == 0
    write(ContextCompacted(Compaction(session="s", at=800, known_failures=compacted.known_failures)))
    assert store.stats(DEFAULT_TENANT, StatsQuery(now=0)).total.repeats == 1
    assert [each.at for each in store.run(DEFAULT_TENANT, "run_2").compactions] == [800]
    assert [each.at for each in store.run(DEFAULT_TENANT, "run_1").compactions] == [500, 700, 800]
    assert store.stats(DEFAULT_TENANT, StatsQuery(now=0)) == counters.stats(store.export(DEFAULT_TENANT))


def test_the_message_is_that_of_the_first_failure_whatever_came_first(store, write):
    late, early = (Failure.of(TIMEOUT.kind, text, fingerprint="f-timeout") for text in ("late", "early"))
    write(
        RunStarted(run()),
        StepEnded(step(1, started_at=9, failure=late)),
        StepEnded(step(2, started_at=5, failure=early)),
    )
    assert found(store)[0].message == "early"


def test_what_is_no_failure_or_has_no_fingerprint_makes_no_pattern(store, write):
    unknown = Failure.of(TIMEOUT.kind, "?")
    write(RunStarted(run()), StepEnded(step(1, failure=REFUSED)), StepEnded(step(2, failure=unknown)))
    assert found(store) == []
    assert store.pattern(DEFAULT_TENANT, K) is None


def test_a_pattern_is_overcome_later_and_not_when_a_late_step_shows_otherwise(store, write):
    write(RunStarted(run()), StepEnded(step(1, arguments={"q": "cats"}, failure=TIMEOUT)))
    assert found(store)[0].unrecovered == 1
    write(StepEnded(step(3, arguments={"q": "cats"})))
    assert found(store)[0].recovered == 1
    write(StepEnded(step(2, 1, 2, arguments={"subject": "another thing altogether"}, failure=TIMEOUT)))
    assert (found(store)[0].recovered, found(store)[0].unrecovered) == (0, 2)


def test_what_nobody_overcame_comes_first_where_that_is_asked(store, write):
    for number in range(3):
        write(*failed_then_worked(f"run_{number}", DAY * number))
    write(
        RunStarted(run("run_lost")), StepEnded(step(1, run="run_lost", name="fetch", started_at=DAY, failure=TIMEOUT))
    )
    lost = pattern_id("fetch", "f-timeout")
    assert [each.id for each in found(store)] == [K, lost]
    assert [each.id for each in found(store, order="unrecovered")] == [lost, K]
    assert [each.id for each in found(store, order="unrecovered", since=0)] == [lost, K]


def test_patterns_are_found_by_what_they_are_and_when(store, write):
    write(
        RunStarted(run("run_1", agent="x")),
        StepEnded(step(1, run="run_1", started_at=DAY, failure=REJECTED)),
        StepEnded(step(2, run="run_1", started_at=5 * DAY, failure=REJECTED)),
        RunStarted(run("run_2", agent="y")),
        StepEnded(step(1, run="run_2", name="fetch", started_at=3 * DAY, failure=TIMEOUT)),
    )
    slow = pattern_id("fetch", "f-timeout")

    def ids(**query: Any) -> list[str]:
        return [pattern.id for pattern in found(store, **query)]

    assert ids() == [K, slow]
    assert ids(tool="fetch") == ids(agent="y") == ids(kind="tool/timeout") == ids(text="TOO SLOW") == [slow]
    assert sorted(ids(kind="tool/")) == sorted([K, slow])
    assert ids(kind="model/") == ids(agent="z") == ids(text="nothing") == []
    assert ids(state="active") == [K]
    assert ids(state="new") == [slow]
    assert ids(new_since=2 * DAY) == [slow]
    assert ids(order="last_seen") == [K, slow]
    assert ids(order="first_seen") == [slow, K]
    assert ids(limit=1) == [K]
    assert ids(since=2 * DAY) == [K, slow]
    assert ids(since=2 * DAY, tool="fetch") == ids(since=2 * DAY, kind="tool/timeout") == [slow]
    assert ids(since=4 * DAY, tool="fetch") == ids(since=2 * DAY, agent="z") == []
    assert ids(since=2 * DAY, order="first_seen", kind="tool/") == [slow, K]
    assert ids(limit=0) == ids(limit=-1) == []
    (recent,) = found(store, since=4 * DAY)
    assert (recent.id, recent.occurrences, recent.days) == (K, 1, {5 * DAY: 1})


def decide(store: Store, do: str, pattern: str, **fields: Any) -> Pattern | None:
    return store.update_pattern(DEFAULT_TENANT, PatternCommand(action=do, pattern=pattern, **fields))


def test_the_most_frequent_patterns_since_a_day_are_those_that_add_up_to_most(store, write):
    failed: Counter[tuple[str, int]] = Counter()
    for number in range(24):
        for day in range(number % 3, 9, 1 + number % 4):
            failed[f"f-{number:02d}", day * DAY] = 1 + (number * 7 + day * day * 3) % 11
    steps = [(fingerprint, day) for (fingerprint, day), count in failed.items() for _ in range(count)]
    write(
        RunStarted(run("run_1", 0)),
        *(
            StepEnded(
                step(
                    seq, run="run_1", started_at=day, failure=msgspec.structs.replace(TIMEOUT, fingerprint=fingerprint)
                )
            )
            for seq, (fingerprint, day) in enumerate(steps, 1)
        ),
    )

    for since in (0, 3 * DAY + 5, 7 * DAY, 9 * DAY):
        expected: Counter[str] = Counter()
        for (fingerprint, day), count in failed.items():
            if day >= since // DAY * DAY and any(
                failed[fingerprint, later * DAY] and later * DAY >= since for later in range(9)
            ):
                expected[fingerprint] += count
        in_order = sorted(expected.items(), key=lambda item: (-item[1], pattern_id("search", item[0])))
        for limit in (1, 3, 10, 100):
            told = [(each.fingerprint, each.occurrences) for each in found(store, since=since, limit=limit)]
            assert told == in_order[:limit], (since, limit)


@pytest.mark.parametrize("share", [1, 2, 3, 1000], ids=["none", "half", "a third", "one each"])
def test_the_patterns_most_given_up_since_a_day_are_those_that_add_up_to_most(store, write, share):
    """Of every so many failures one is given up, and the others are overcome."""
    events: list[AnyEvent] = [RunStarted(run("run_1", 0))]
    unrecovered: Counter[str] = Counter()
    seq = 1
    for number in range(24):
        for place in range(1 + number * 7 % 11):
            failure = msgspec.structs.replace(TIMEOUT, fingerprint=f"f-{number:02d}")
            started = (1 + place % 5) * DAY
            about = {
                "run": "run_1",
                "started_at": started,
                "arguments": {f"k{seq}": seq},
            }  # no other call is much like it
            events.append(StepEnded(step(seq, failure=failure, **about)))
            if is_overcome := share == 1 or place % share:
                events.append(StepEnded(step(seq + 1, seq, 2, **about)))
            unrecovered[f"f-{number:02d}"] += not is_overcome
            seq += 2
    write(*events)

    in_order = sorted(unrecovered.items(), key=lambda item: (-item[1], pattern_id("search", item[0])))
    for limit in (1, 3, 10, 100):
        answer = found(store, since=DAY, limit=limit, order="unrecovered")
        assert [(each.fingerprint, each.unrecovered) for each in answer] == in_order[:limit], limit


def test_a_muted_pattern_is_not_listed_and_still_counted(store, write):
    write(*failed_then_worked("run_1", 1))
    assert decide(store, "mute", K).state == "muted"
    write(*failed_then_worked("run_2", 2))
    assert found(store) == []
    assert found(store, state="muted")[0].occurrences == 2
    assert decide(store, "unmute", K).state == "new"
    assert found(store)[0].occurrences == 2


def test_a_resolved_pattern_reopens_when_it_is_seen_again(store, write):
    write(RunStarted(run()), StepEnded(step(1, started_at=10, failure=TIMEOUT)))
    assert decide(store, "resolve", SLOW, at=20).state == "resolved"

    write(StepEnded(step(2, started_at=15, failure=TIMEOUT)))  # it came late, and happened before
    assert store.pattern(DEFAULT_TENANT, SLOW).state == "resolved"

    write(StepEnded(step(3, started_at=25, failure=TIMEOUT)))
    assert (store.pattern(DEFAULT_TENANT, SLOW).state, store.pattern(DEFAULT_TENANT, SLOW).reopened) == ("active", 1)
    assert decide(store, "resolve", SLOW, at=30).state == "resolved"
    write(StepEnded(step(4, started_at=35, failure=TIMEOUT)))
    assert (found(store)[0].state, found(store)[0].reopened) == ("active", 2)
    assert decide(store, "reopen", SLOW).reopened == 2


def test_merged_patterns_are_counted_as_one_until_they_are_split(store, write):
    write(*failed_then_worked("run_1", 1), StepEnded(step(9, run="run_1", failure=TIMEOUT, started_at=5)))

    merged = decide(store, "merge", SLOW, into=K)

    assert (merged.id, merged.merged, merged.occurrences, merged.recovered) == (K, (SLOW,), 2, 1)
    assert store.pattern(DEFAULT_TENANT, SLOW) == merged
    assert [pattern.id for pattern in found(store)] == [K]
    write(StepEnded(step(10, run="run_1", failure=TIMEOUT)))  # and what comes later too
    assert found(store)[0].occurrences == 3
    assert [pattern.id for pattern in found(store, since=0)] == [K]
    assert [history.run.id for history in store.runs(DEFAULT_TENANT, RunQuery(pattern=K))] == ["run_1"]

    assert decide(store, "split", SLOW).occurrences == 2
    assert {pattern.id: pattern.occurrences for pattern in found(store)} == {K: 1, SLOW: 2}


def test_what_is_said_about_a_merged_pattern_is_said_about_the_whole(store, write):
    write(*failed_then_worked("run_1", 1), StepEnded(step(9, run="run_1", failure=TIMEOUT)))
    decide(store, "merge", SLOW, into=K)
    assert decide(store, "mute", SLOW).id == K
    assert found(store) == []
    with pytest.raises(StoreError, match="are already merged"):
        decide(store, "merge", K, into=SLOW)
    with pytest.raises(StoreError, match="No pattern pat_x"):
        decide(store, "merge", K, into="pat_x")
    with pytest.raises(StoreError, match="needs two pattern ids"):
        decide(store, "merge", K)


def test_an_unknown_pattern_changes_nothing(store, write):
    assert decide(store, "mute", K) is None
    write(*failed_then_worked("run_1", 1))
    assert decide(store, "mute", "pat_x") is None
    assert decide(store, "mute", K[:8]).id == store.pattern(DEFAULT_TENANT, K[:8]).id == K


def test_runs_are_found_by_what_happened_in_them(store, write):
    write(*failed_then_worked("run_1", 10))
    write(
        RunStarted(run("run_2", 20, environment="prod", version="2")),
        StepEnded(step(1, run="run_2", name="chat", type="model", arguments={"model": "gpt"}, failure=TIMEOUT)),
        RunEnded(run("run_2", 20, environment="prod", version="2", end_reason="finished")),
        RunEnded(run("run_3", 30, end_reason="finished")),
        StepEnded(step(1, run="run_3", name="fetch")),
    )

    def ids(**query: Any) -> list[str]:
        return [history.run.id for history in store.runs(DEFAULT_TENANT, RunQuery(**query))]

    assert ids(tool="search") == ids(kind="tool/invalid_arguments") == ids(status="recovered") == ids(pattern=K)
    assert ids(tool="search") == ["run_1"]
    assert ids(environment="prod") == ids(version="2") == ids(model="gpt") == ids(status="failure") == ["run_2"]
    assert ids(kind="tool/") == ["run_2", "run_1"]
    assert ids(status="success") == ids(tool="fetch") == ["run_3"]
    assert ids(model="search") == ids(pattern="pat_x") == ids(status="partial") == ids(tool="fetch", until=30) == []
    assert ids(limit=1, before=(30, "run_3")) == ["run_2"]
    assert ids(before=(20, "run_2")) == ["run_1"]


# Forgetting


def everywhere(store: Store) -> str:
    """All a store says, in one text."""
    told = [
        list(store.export(DEFAULT_TENANT)),
        found(store, limit=100),
        [store.pattern(DEFAULT_TENANT, each.id) for each in found(store)],
    ]
    return encode(told).decode()


def test_a_forgotten_tool_is_gone_and_the_rest_of_its_runs_stays(store, write):
    write(*failed_then_worked("run_1", 1), StepEnded(step(3, run="run_1", name="fetch")))
    write(RunStarted(run("run_2")), StepEnded(step(1, run="run_2")))

    assert store.forget(DEFAULT_TENANT, ForgetRequest(tool="search")) == ForgetResult(runs=1, steps=3, patterns=1)

    assert [each.name for each in store.run(DEFAULT_TENANT, "run_1").steps] == ["fetch"]
    assert store.run(DEFAULT_TENANT, "run_1").links == ()
    assert store.run(DEFAULT_TENANT, "run_2") is None  # nothing else was in it
    assert store.recall(DEFAULT_TENANT, ASKED) == []
    assert "search" not in everywhere(store)


def test_a_forgotten_session_is_gone_with_its_runs_and_its_shelf(store, write):
    write(RunStarted(run("run_1", session="s")), StepEnded(step(1, run="run_1", failure=TIMEOUT)))
    write(RunStarted(run("run_2", session="other")))
    store.put(DEFAULT_TENANT, "session", "s", b"what failed")
    store.put(DEFAULT_TENANT, "session", "other", b"what failed")

    assert store.forget(DEFAULT_TENANT, ForgetRequest(session="s")) == ForgetResult(
        runs=1, steps=1, patterns=1, key_value_entries=1
    )

    assert [each.run.id for each in store.runs(DEFAULT_TENANT, RunQuery())] == ["run_2"]
    assert store.get(DEFAULT_TENANT, "session", "s") is None
    assert store.get(DEFAULT_TENANT, "session", "other") == b"what failed"


def test_a_forgotten_text_is_gone_from_every_record_and_the_records_stay(store, write):
    secret = 'ze"bra \u00e9 4711'
    failure = Failure.of(TIMEOUT.kind, f"{secret} was slow", detail=secret, fingerprint="f-timeout")
    write(
        RunStarted(run(agent=secret, context=f"about {secret}!", session=secret)),
        StepEnded(step(1, arguments={"q": secret, secret: [1, {"n": secret}], "k": 50}, failure=failure)),
        StepEnded(step(2, arguments={"q": secret, secret: [1, {"n": secret}], "k": 50}, result=secret)),
    )
    store.put(DEFAULT_TENANT, "session", "s", encode({"about": secret}))
    (pattern,) = found(store)
    note = f"Ask {secret}."
    store.update_pattern(DEFAULT_TENANT, PatternCommand(action="note", pattern=pattern.id, note=note))
    assert found(store)[0].note == note

    assert store.forget(DEFAULT_TENANT, ForgetRequest(text=secret)) == ForgetResult(
        runs=1, steps=2, key_value_entries=1
    )

    assert "4711" not in everywhere(store)
    history = store.run(DEFAULT_TENANT, "run_a")
    assert history.run.context == f"about {ERASED_MARK}!"
    assert history.steps[0].failure.message == f"{ERASED_MARK} was slow"
    assert history.steps[1].arguments["k"] == 50
    assert history.links == tuple(link_recoveries(history.steps, history.run)) != ()
    assert found(store)[0].message == f"{ERASED_MARK} was slow"
    assert found(store)[0].agents == {ERASED_MARK: 1}
    assert found(store)[0].note == f"Ask {ERASED_MARK}."
    assert store.get(DEFAULT_TENANT, "session", "s") is None
    assert not store.forget(DEFAULT_TENANT, ForgetRequest(text=secret))


def test_a_number_is_a_text_where_a_user_put_it(store, write):
    write(RunStarted(run(started=47114711)), StepEnded(step(1, started_at=47114711, arguments={"card": 47114711})))
    assert store.forget(DEFAULT_TENANT, ForgetRequest(text="4711471")).steps == 1
    assert store.run(DEFAULT_TENANT, "run_a").steps[0].arguments == {"card": ERASED_MARK}
    assert store.run(DEFAULT_TENANT, "run_a").run.started_at == 47114711


def test_a_run_whose_name_holds_a_forgotten_text_goes_as_a_whole(store, write):
    write(RunStarted(run("of-jane-doe-7")), StepEnded(step(1, run="of-jane-doe-7")))
    assert store.forget(DEFAULT_TENANT, ForgetRequest(text="jane-doe")) == ForgetResult(runs=1, steps=1)
    assert store.find(DEFAULT_TENANT, "of-") == []


@pytest.mark.parametrize(
    "what", [ForgetRequest(), ForgetRequest(run="a", tool="b"), ForgetRequest(text=""), ForgetRequest(text="abc")]
)
def test_what_is_to_be_forgotten_must_be_clear(store, what):
    with pytest.raises(StoreError):
        store.forget(DEFAULT_TENANT, what)


def test_decisions_about_a_pattern_go_with_its_last_failure(store, write):
    write(*failed_then_worked("run_1", 1), RunStarted(run()), StepEnded(step(1, failure=TIMEOUT)))
    decide(store, "mute", K)
    decide(store, "merge", SLOW, into=K)
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_1"))
    assert [pattern.id for pattern in found(store)] == [SLOW]
    write(*failed_then_worked("run_2", 2))
    assert store.pattern(DEFAULT_TENANT, K).state == "new"


# Figures and shelf


EVERYTHING = StatsQuery(now=0)


def counted(histories: list[History]) -> dict[str, Any]:
    """The same figures, counted by hand."""
    groups = [
        (history, list(group))
        for history in histories
        for _, group in itertools.groupby(
            sorted((each for each in history.steps if each.type != "run"), key=lambda each: (each.call, each.attempt)),
            key=lambda each: each.call,
        )
    ]
    failed = [(h, g) for h, g in groups if any(each.has_failed for each in g)]
    overcome = [
        g for h, g in failed if g[-1].outcome == "success" or g[0].call in {link.failed_call for link in h.links}
    ]
    return {
        "calls": len(groups),
        "attempts": sum(len(g) for _, g in groups),
        "first_try": sum(g[-1].outcome == "success" for _, g in groups if not any(each.has_failed for each in g)),
        "recovered": len(overcome),
        "unrecovered": len(failed) - len(overcome),
        "runs": Counter(derive_status(h.run, h.steps, h.links) for h in histories if h.run.end_reason),
        "running": sum(h.run.end_reason is None for h in histories),
    }


def test_stats_count_what_was_begun_in_a_time_range(store, write):
    hour = counters.HOUR
    write(*failed_then_worked("run_1", 1), *failed_then_worked("run_2", 2 * hour))
    write(
        RunEnded(run("run_3", 3 * hour, end_reason="finished")),
        StepEnded(step(1, run="run_3", failure=TIMEOUT, started_at=3 * hour)),
        StepEnded(
            step(
                2,
                1,
                2,
                run="run_3",
                failure=TIMEOUT,
                started_at=3 * hour,
                recovery=Recovery(remedy=Remedy.RETRY, backoff_seconds=1.5),
            )
        ),
        StepEnded(step(3, run="run_3", name="other", started_at=3 * hour)),
    )

    stats = store.stats(DEFAULT_TENANT, StatsQuery(now=5 * hour, since=hour))

    assert (stats.grain, stats.since) == ("hour", hour)
    assert stats.total.runs == {"recovered": 1, "partial": 1}
    assert (stats.total.calls, stats.total.first_try, stats.total.unrecovered) == (2, 1, 1)
    assert (stats.total.attempts, stats.total.backoff_micros) == (3, 1_500_000)
    assert {kind: each.failures for kind, each in stats.total.kinds.items()} == {"tool/timeout": 2}


def test_the_shelf_gives_back_what_was_put_there_last(store):
    assert store.get(DEFAULT_TENANT, "session", "s") is None
    store.put(DEFAULT_TENANT, "session", "s", b"\x00\xff one")
    store.put(DEFAULT_TENANT, "session", "s", b"two")
    store.put(DEFAULT_TENANT, "schema", "s", b"three")
    assert store.get(DEFAULT_TENANT, "session", "s") == b"two"
    assert store.get(DEFAULT_TENANT, "schema", "s") == b"three"


def test_what_is_on_the_shelf_is_swapped_only_by_who_knows_it(store):
    assert store.compare_and_set(DEFAULT_TENANT, "session", "s", None, b"one")
    assert not store.compare_and_set(DEFAULT_TENANT, "session", "s", None, b"two")
    assert store.compare_and_set(DEFAULT_TENANT, "session", "s", b"one", b"three")
    assert not store.compare_and_set(DEFAULT_TENANT, "session", "s", b"one", b"four")
    assert not store.compare_and_set(DEFAULT_TENANT, "session", "t", b"one", b"five")
    assert store.get(DEFAULT_TENANT, "session", "s") == b"three"


def test_the_shelf_tells_what_is_on_it(store):
    store.put(DEFAULT_TENANT, "session", "b", b"")
    store.put(DEFAULT_TENANT, "session", "a", b"")
    store.put(DEFAULT_TENANT, "schema", "c", b"")
    assert store.keys(DEFAULT_TENANT, "session") == ["a", "b"]
    assert store.keys("another", "session") == []


# Whatever is published comes back

HOSTILE = {
    "surrogate \ud800": "lone \udcff surrogate",
    "nul": "a\x00b",
    "huge": 10**30,
    "edge": [2**63 - 1, -(2**63)],
    "floats": [float("nan"), float("inf"), -0.0, 1e300, 5e-324, 0.1],
    "nested": {"a": [{"b": None}]},
    "sql": "'; DROP TABLE runs; --",
    "escape": "\x1b[2J<script>",
    "object": object(),
    "bytes": b"\xff",
    "date": "2024-01-01T00:00:00Z",
    5: "a key that is a number",
}


def test_whatever_redaction_lets_through_comes_back_equal(store, write):
    failure = Failure.of(
        Kind("tool", "näme \udcff"),
        "message \ud800 \x00",
        detail="d" * 100_000,
        status=500,
        code="c\udcff",
        retry_after=1.5,
        evidence=("a", "b"),
        fingerprint="f",
        confidence=0.5,
    )
    changed = Change(path="k.\udcff", operation="cast", before=float("nan"), after=10**40)
    published = [
        RunStarted(run(agent="a\udcff", context="c\ud800", metadata=HOSTILE, session="s", version="1")),
        StepEnded(
            step(
                1,
                name="t\udcff",
                server="s\x00",
                arguments=HOSTILE,
                result=HOSTILE,
                metadata=HOSTILE,
                failure=failure,
                recovery=Recovery(remedy=Remedy.REPAIR, changes=(changed,)),
                tokens={"in": 5},
            )
        ),
    ]
    kept = [redact_event(event, Redactor()) for event in published]

    assert write(*kept) == 2

    history = store.run(DEFAULT_TENANT, "run_a")
    assert history.run == kept[0].run
    assert history.steps == (kept[1].step,)
    assert history.steps[0].failure.kind.remedy is failure.remedy


ODD = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3), st.just(object()))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(odd=st.lists(ODD, min_size=12, max_size=12))
def test_a_value_of_the_wrong_type_never_makes_a_run_unreadable(store, odd):
    failure = Failure(
        kind=Kind("tool", "x"), remedy=Remedy.REPLAN, took_effect=TookEffect.NO, message=odd[0], hint=odd[1],
        status=odd[2], code=odd[3], retry_after=odd[4], fingerprint="f",
    )  # fmt: skip
    begun = Run(id="run_a", agent=odd[5], version=odd[6], context=odd[7], environment=odd[8], metadata=odd[9])
    ended = step(1, name=odd[10], arguments=odd[11], failure=failure)
    write = Writer(store, tenant=f"tenant-{next(TENANTS)}")
    write(redact_event(RunStarted(begun), Redactor()), redact_event(StepEnded(ended), Redactor()))

    assert len(store.run(write.tenant, "run_a").steps) == 1
    assert len(store.runs(write.tenant, RunQuery())) == 1


TENANTS = itertools.count()


@st.composite
def cut_runs(draw: st.DrawFn) -> list[list[AnyEvent]]:
    """Two ended runs, in order, cut into batches anywhere. Some steps are stages, which are no success of a run."""
    events: list[AnyEvent] = []
    for id in ("run_a", "run_b"):
        steps = draw(st.lists(st.tuples(st.sampled_from(["tool", "tool", "plan"]), st.booleans()), max_size=6))
        events.append(RunStarted(run(id)))
        for seq, (type, has_failed) in enumerate(steps, start=1):
            fields = {"run": id, "type": type, "name": f"tool_{seq % 3}", "started_at": 1000 + seq}
            events.append(StepEnded(step(seq, failure=TIMEOUT if has_failed else None, **fields)))
        events.append(RunEnded(run(id, ended_at=2000, end_reason=draw(st.sampled_from(["finished", "raised"])))))
    cuts = sorted(draw(st.sets(st.integers(1, len(events) - 1))))
    return [events[start:end] for start, end in itertools.pairwise([0, *cuts, len(events)])]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(published=cut_runs())
def test_counters_and_statuses_are_those_of_the_rows_however_runs_are_cut_into_batches(store, published):
    tenant = f"cut-{next(TENANTS)}"
    write = Writer(store, tenant)
    for batch in published:
        write(*batch)
    histories = list(store.export(tenant))
    query = StatsQuery(now=0)
    assert store.stats(tenant, query) == counters.stats(histories, query)
    for status in get_args(Status):
        assert {history.run.id for history in store.runs(tenant, RunQuery(status=status))} == {
            history.run.id
            for history in histories
            if derive_status(history.run, history.steps, history.links) == status
        }
    if isinstance(store, DatabaseStore):
        rebuild(store, tenant)
        assert store.stats(tenant, query) == counters.stats(histories, query)


# All stores give the same answers

WAITED = Recovery(remedy=Remedy.RETRY, backoff_seconds=0.1)
MENDED = Recovery(
    remedy=Remedy.REPAIR,
    changes=(Change(path="k", operation="clamp", before=50, after=10),),
    source="schema",
    confidence=0.9,
)
ARGUMENTS = st.fixed_dictionaries({"k": st.integers(0, 2), "q": st.sampled_from(["cats", "dogs"])})


@st.composite
def batches(draw: st.DrawFn) -> list[list[AnyEvent]]:
    """What several runs publish, in any order, some of it twice, cut into batches anywhere."""
    events: list[AnyEvent] = []
    for id in ("run_a", "run_b", "run_c")[: draw(st.integers(1, 3))]:
        started = draw(st.integers(0, 3))
        about = {
            "agent": draw(st.sampled_from("xy")),
            "session": draw(st.sampled_from([None, "s"])),
            "version": draw(st.sampled_from([None, "1", "2"])),
            "environment": draw(st.sampled_from([None, "live"])),
            "metadata": draw(st.sampled_from([None, {"model": "big-1"}])),
        }
        if draw(st.booleans()):
            events.append(RunStarted(run(id, started, **about)))
        call = attempt = 0
        for seq in range(1, draw(st.integers(0, 6)) + 1):
            call, attempt = (call, attempt + 1) if call and draw(st.booleans()) else (seq, 1)
            failure = draw(st.sampled_from([None, TIMEOUT, REJECTED, REFUSED]))
            name = draw(st.sampled_from(["search", "lookup"])) if attempt == 1 else name  # noqa: F821
            ended = step(
                seq,
                call,
                attempt,
                run=id,
                name=name,
                arguments=draw(ARGUMENTS),
                failure=failure,
                started_at=draw(st.sampled_from([1, counters.HOUR, 2 * counters.DAY])),
                duration_seconds=draw(st.sampled_from([0.0, 0.1, 31.0])),
                recovery=draw(st.sampled_from([None, WAITED, MENDED])) if attempt > 1 else None,
                **draw(st.sampled_from(USAGES)),
            )
            events.append(StepEnded(ended))
        if draw(st.booleans()):
            events.append(RunEnded(run(id, started, end_reason=draw(st.sampled_from(["finished", "raised"])), **about)))
    order = draw(st.permutations(events + events[: draw(st.integers(0, 2))]))
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=3)))
    return [list(order[a:b]) for a, b in itertools.pairwise([0, *cuts, len(order)]) if b > a]


USAGES: list[dict[str, Any]] = [
    {},
    {"tokens": {"input": 3}},
    {"tokens": {"input": 3, "cached_input": 2, "output": 1}, "cost_nanos": 7},
    {"cost_nanos": 0},
    {"avoided": AvoidedTurn(model="m", input_tokens=5, cost_nanos=2)},
    {"avoided": AvoidedTurn(model="m", input_tokens=5)},
]
NOW = 10 * counters.DAY
QUESTIONS = [
    EVERYTHING,
    *(StatsQuery(now=NOW, by=by) for by in get_args(counters.By)),
    *(StatsQuery(now=NOW, by=by, agent="x") for by in get_args(counters.By)),
    *(StatsQuery(now=NOW, by=by, kind="tool/timeout") for by in get_args(counters.By)),
    *(StatsQuery(now=NOW, by=by, detail=True) for by in get_args(counters.By)),
    StatsQuery(now=NOW, agent="x"),
    StatsQuery(now=NOW, tool="search"),
    StatsQuery(now=NOW, tool="search", agent="x"),
    StatsQuery(now=NOW, kind="tool"),
    StatsQuery(now=2 * counters.DAY, since=counters.HOUR, until=2 * counters.HOUR),
    StatsQuery(now=NOW, since=2 * counters.HOUR, until=3 * counters.DAY),
    # Hours that are put together of days, and of what is left of them.
    *(
        StatsQuery(now=2 * counters.DAY, since=counters.HOUR, by=by, **narrowed)
        for by in (None, *get_args(counters.By))
        for narrowed in ({}, {"detail": True}, {"agent": "x"}, {"kind": "tool/timeout"})
    ),
    StatsQuery(now=2 * counters.DAY, since=counters.HOUR, until=2 * counters.DAY + counters.HOUR, by="tool"),
    StatsQuery(now=2 * counters.DAY, since=counters.HOUR, until=counters.DAY - counters.HOUR, by="tool", detail=True),
]


def answers(store: Store, tenant: str) -> dict[str, Any]:
    return {
        "runs": store.runs(tenant, RunQuery(limit=100)),
        "filtered": store.runs(tenant, RunQuery(agent="x", since=1, until=3, limit=2)),
        "session": store.runs(tenant, RunQuery(session="s")),
        "exported": list(store.export(tenant, since=1)),
        "found": store.find(tenant, "run_"),
        "stats": [store.stats(tenant, query) for query in QUESTIONS],
        "recalled": [
            store.recall(tenant, RecallQuery(tool=tool, fingerprint=fingerprint, run="run_b"))
            for tool in ("search", "lookup")
            for fingerprint in ("f-k", "f-timeout")
        ],
        "fixes": store.fixes(tenant, FixQuery(limit=100, now=NOW)),
        "evidence": [store.evidence(tenant, fix.id) for fix in store.fixes(tenant, FixQuery(limit=100, now=NOW))],
        "alike": store.fixes(tenant, FixQuery(tool="search", fingerprint="f-new", text="k is <n> at most", now=NOW)),
        "profiles": [store.value_profiles(tenant, tool) for tool in ("search", "lookup")],
        "size": (store.health(tenant).runs, store.health(tenant).steps),
    }


@pytest.fixture(scope="module")
def all_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Store]]:
    # A server counts nothing itself: what is behind it is one of the others, and a question over the wire takes long.
    stores = {name: STORES[name](tmp_path_factory.mktemp(name)) for name in ("memory", "sqlite")}
    yield stores
    for store in stores.values():
        store.close()


@settings(max_examples=120, deadline=None)
@given(published=batches(), forgotten=st.sampled_from(["", "run_a"]))
def test_all_stores_give_the_same_answers(all_stores, published, forgotten):
    same_answers(all_stores, published, forgotten)


@pytest.fixture(scope="module")
def with_postgres(all_stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Store]]:
    store = STORES["postgres"](tmp_path_factory.mktemp("postgres"))
    yield {"memory": all_stores["memory"], "postgres": store}
    store.close()


@settings(max_examples=20, deadline=None)
@given(published=batches(), forgotten=st.sampled_from(["", "run_a"]))
def test_so_does_one_that_is_slower_to_ask(with_postgres, published, forgotten):
    same_answers(with_postgres, published, forgotten)


def same_answers(all_stores: dict[str, Any], published: Any, forgotten: str) -> None:
    tenant = f"same-{next(TENANTS)}"
    told = {}
    for name, store in all_stores.items():
        write = Writer(store, tenant)
        kept = [write(*batch) for batch in published]
        was_there = store.forget(tenant, ForgetRequest(run=forgotten)) if forgotten else None
        told[name] = {"kept": kept, "forgotten": was_there, **answers(store, tenant)}

    rebuild(all_stores["memory"], tenant)
    told["memory"] |= answers(all_stores["memory"], tenant)
    first = told["memory"]
    for name, answer in told.items():
        assert answer == first, name
    for history in first["runs"]:
        assert history.links == tuple(link_recoveries(history.steps, history.run))
    expected = counted(first["runs"])
    assert {name: getattr(first["stats"][0].total, name) for name in expected} == expected
