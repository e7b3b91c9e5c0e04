"""The stream: everything it carries has passed redaction, and no listener's fault reaches anybody else."""

from __future__ import annotations

import logging
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mulligan.core.events import (
    EVENTS,
    AnyEvent,
    ContextCompacted,
    EventStream,
    FailureRecorded,
    LessonLearned,
    RecoveryPlanned,
    RunEnded,
    RunStarted,
    StepEnded,
    StepStarted,
    redact_all,
    redact_event,
)
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.fast_path import CallTemplate, StandaloneRun, SuccessRecord, redact_records
from mulligan.core.record_redaction import RecordRedactor
from mulligan.core.records import Change, Compaction, Lesson, Recovery, Run, Step, decode, encode
from mulligan.core.value_snapshots import snapshot_value
from mulligan.redaction import Redactor, to_plain_data

CANARY = "canary-7f3a9c"
"""A text that is a secret wherever it stands."""
REDACTOR = Redactor(patterns=["canary-[0-9a-f]+"])
QUIET = "correct horse battery staple"
"""A text that only its name gives away."""


def failure(**fields: Any) -> Failure:
    return Failure.of(Kind("tool", "x", Remedy.REPAIR), **{"message": "m", "fingerprint": "f", **fields})


def step(**fields: Any) -> Step:
    return Step(run="run_a", seq=1, call=1, **{"name": "search", **fields})


def recovery(path: str = "q", before: Any = None, after: Any = None, how: Any = "substitute") -> Recovery:
    return Recovery(remedy=Remedy.REPAIR, changes=(Change(path=path, operation=how, before=before, after=after),))


PLACES: dict[str, AnyEvent] = {
    "arguments": StepEnded(step(arguments={"q": CANARY})),
    "nested arguments": StepEnded(step(arguments={"q": [{"deep": f"use {CANARY} here"}]})),
    "the name of an argument": StepEnded(step(arguments={CANARY: 1})),
    "result": StepEnded(step(result=f"your key is {CANARY}")),
    "metadata of a step": StepEnded(step(metadata={"note": CANARY})),
    "name of a tool": StepEnded(step(name=CANARY)),
    "server": StepEnded(step(server=CANARY)),
    "message": StepEnded(step(outcome="failure", failure=failure(message=f"bad key {CANARY}"))),
    "detail": StepEnded(step(outcome="failure", failure=failure(detail=f"Authorization: Bearer {CANARY}"))),
    "hint": StepEnded(step(outcome="failure", failure=failure(hint=f"use {CANARY}"))),
    "code": StepEnded(step(outcome="failure", failure=failure(code=CANARY))),
    "class of an exception": StepEnded(step(outcome="failure", failure=failure(exception=f"app.{CANARY}"))),
    "file of a frame": StepEnded(step(outcome="failure", failure=failure(trace=f"  app/{CANARY}/a.py:2 in pay"))),
    "function of a frame": StepEnded(step(outcome="failure", failure=failure(trace=f"  app/a.py:2 in {CANARY}"))),
    "message of a cause": StepEnded(step(outcome="failure", failure=failure(trace=f"caused by E: bad {CANARY}"))),
    "named, and quoted by a cause": StepEnded(
        step(arguments={"password": QUIET}, outcome="failure", failure=failure(trace=f"caused by E: {QUIET}"))
    ),
    "evidence": StepEnded(step(outcome="failure", failure=failure(evidence=(CANARY,)))),
    "before of a change": StepEnded(step(recovery=recovery(before=CANARY))),
    "after of a change": StepEnded(step(recovery=recovery(after={"x": CANARY}))),
    "path of a change": StepEnded(step(recovery=recovery(path=CANARY, before=1))),
    "name in a rename": StepEnded(step(recovery=recovery(how="rename", before="q", after=CANARY))),
    "a step that starts": StepStarted(step(arguments={"q": CANARY})),
    "the step of a plan": RecoveryPlanned(step(arguments={"q": CANARY}), recovery()),
    "the changes of a plan": RecoveryPlanned(step(), recovery(before=CANARY, after=CANARY)),
    "context": RunStarted(Run(id="run_a", context=f"log in with {CANARY}")),
    "metadata of a run": RunEnded(Run(id="run_a", metadata={"note": CANARY})),
    "agent": RunStarted(Run(id="run_a", agent=CANARY)),
    "version": RunStarted(Run(id="run_a", version=CANARY)),
    "environment": RunStarted(Run(id="run_a", environment=CANARY)),
    "reason of a compaction": ContextCompacted(Compaction(reason=CANARY)),
    "mistake of a lesson": LessonLearned(Lesson(id="l", tool="t", fingerprint="f", mistake=CANARY, correction="")),
    "correction of a lesson": LessonLearned(Lesson(id="l", tool="t", fingerprint="f", mistake="", correction=CANARY)),
    "named by its argument": StepEnded(step(arguments={"password": QUIET})),
    "named, and quoted elsewhere": StepEnded(
        step(arguments={"password": QUIET}, outcome="failure", failure=failure(message=f"{QUIET} is wrong"))
    ),
    "named by the path of a change": StepEnded(step(recovery=recovery(path="password", before=QUIET))),
    "named by a part of the path": StepEnded(
        step(recovery=recovery(path="credentials.user", before=QUIET, after=QUIET))
    ),
    "named in the call, quoted in the plan": RecoveryPlanned(
        step(arguments={"password": QUIET}), recovery(before=f"it is {QUIET}")
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_no_secret_reaches_any_listener(place):
    stream = EventStream(REDACTOR)
    heard: list[AnyEvent] = []
    stream.add_listener(heard.append, thread="caller")
    stream.add_listener(heard.append)

    stream.publish(PLACES[place])

    assert len(heard) == 2
    for event in heard:
        told = encode(event).decode()
        assert CANARY not in told
        assert QUIET not in told


def test_at_level_shared_only_listed_values_are_published():
    shared = Redactor(level="shared", unredacted_arguments=["top_k"])
    event = StepEnded(step(arguments={"q": "private words", "top_k": 5}, recovery=recovery(path="top_k", before=9)))

    kept = redact_event(event, shared)

    assert "private words" not in encode(kept).decode()
    assert kept.step.arguments["top_k"] == 5
    assert kept.step.recovery.changes[0].before == 9


def test_at_level_shared_a_name_that_was_changed_is_told_as_it_is():
    shared = Redactor(level="shared", key=b"tenant", patterns=["canary-[0-9a-f]+"])
    after = recovery(path="(tool)", how="rename", before="serch", after="search")
    (change,) = redact_event(StepEnded(step(recovery=after)), shared).step.recovery.changes
    assert (change.path, change.before, change.after) == ("(tool)", "serch", "search")
    hidden = recovery(path="k", how="rename", before=CANARY, after="k")
    assert CANARY not in encode(redact_event(StepEnded(step(recovery=hidden)), shared)).decode()


def test_at_level_shared_the_model_is_still_known_by_name_and_nothing_else_of_it_is_shown():
    shared = Redactor(level="shared", key=b"tenant")
    about = {"model": "big-1", "by": "person", "note": "private words"}
    called = {"model": "big-1", "messages": "private words"}

    step_ = redact_event(StepEnded(step(type="model", arguments=called, metadata=about)), shared).step
    run = redact_event(RunEnded(Run(id="r", metadata=about)), shared).run
    tool = redact_event(StepEnded(step(arguments={"model": "private words"})), shared).step
    secret = redact_event(StepEnded(step(metadata={"model": "hunter-two-3", "password": "hunter-two-3"})), shared).step

    assert (step_.metadata["model"], step_.metadata["by"], step_.arguments["model"]) == ("big-1", "person", "big-1")
    assert run.metadata["model"] == "big-1"
    assert "private words" not in encode([step_, run, tool]).decode()  # a tool's argument is a value like any other
    assert "hunter" not in encode(secret).decode()


def test_what_is_no_secret_is_kept():
    event = StepEnded(
        step(
            arguments={"q": "cats", "top_k": 50},
            recovery=recovery(path="top_k", before="50", after=10),
            outcome="failure",
            failure=failure(message="exceeds 128k token limit", status=400, retry_after=2.0, code="too_long"),
        )
    )
    assert redact_event(event, Redactor()) == event


def test_an_id_is_never_hidden_because_it_looks_like_a_secret():
    run = Run(id=CANARY, session=CANARY, parent=CANARY)
    assert redact_event(RunStarted(run), REDACTOR).run == run


def test_a_rename_under_a_secret_name_still_says_both_names():
    event = StepEnded(step(recovery=recovery(path="api_key", how="rename", before="api_key", after="key")))
    assert redact_event(event, Redactor()) == event


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=4) | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=10,
)
SURROGATES = st.text(st.characters(), max_size=10)


@settings(max_examples=60)
@given(arguments=ANY, text=SURROGATES, path=SURROGATES, before=ANY)
def test_whatever_is_published_can_be_written_down_and_read_again_and_redacting_it_again_changes_nothing(
    arguments, text, path, before
):
    event = StepEnded(
        step(
            name=text,
            arguments=arguments,
            outcome="failure",
            failure=failure(message=text, code=text, hint=text),
            recovery=recovery(path=path, before=before),
        )
    )
    kept = redact_event(event, Redactor())
    assert decode(encode(kept), StepEnded) == kept
    assert redact_event(kept, Redactor()) == kept


def test_one_listeners_fault_reaches_neither_the_others_nor_the_publisher(caplog):
    stream = EventStream(Redactor())
    heard: list[AnyEvent] = []

    def broken(event: AnyEvent) -> None:
        raise ValueError("broken")

    for when in ("caller", "recorder"):
        stream.add_listener(broken, thread=when)
        stream.add_listener(heard.append, thread=when)

    stream.publish(RunStarted(Run(id="run_a")))

    assert len(heard) == 2


def test_a_listeners_faults_are_logged_once(caplog):
    stream = EventStream(Redactor())
    stream.add_listener(lambda event: 1 / 0, thread="caller")

    with caplog.at_level(logging.ERROR, logger="mulligan"):
        for _ in range(3):
            stream.publish(RunStarted(Run(id="run_a")))

    assert len(caplog.records) == 1


def test_an_event_that_cannot_be_redacted_is_not_carried_and_harms_nobody(caplog):
    class Broken(Redactor):
        def record(self, *parts: Any) -> tuple[Any, ...]:
            raise RuntimeError("no redaction today")

    stream = EventStream(Broken())
    heard: list[AnyEvent] = []
    stream.add_listener(heard.append, thread="caller")

    stream.publish(StepEnded(step(arguments={"q": CANARY})))

    assert heard == []
    assert CANARY not in caplog.text


def test_a_failure_recorded_for_a_step_is_published_without_secrets():
    stream = EventStream(Redactor())
    heard: list[AnyEvent] = []
    stream.add_listener(heard.append, thread="caller")
    failure = Failure.of(Kind("tool", "timeout"), f"password={CANARY} was refused", detail=f"token={CANARY}")

    stream.publish(FailureRecorded("run_a", 3, failure))

    (event,) = heard
    assert (event.run, event.seq, event.failure.kind) == ("run_a", 3, "tool/timeout")
    assert CANARY not in encode(event).decode()


def test_a_listener_that_has_ended_hears_no_more():
    stream = EventStream(Redactor())
    heard: list[AnyEvent] = []
    end = stream.add_listener(heard.append, thread="caller")

    stream.publish(RunStarted(Run(id="run_a")))
    end()
    end()
    stream.publish(RunStarted(Run(id="run_b")))

    assert [event.run.id for event in heard] == ["run_a"]


def test_the_carrier_gets_each_event_and_delivers_it_when_it_likes():
    stream = EventStream(Redactor())
    carried: list[AnyEvent] = []
    late: list[AnyEvent] = []
    stream.set_sink(carried.append)
    stream.add_listener(late.append)

    stream.publish(RunStarted(Run(id="run_a")))
    assert (len(carried), len(late)) == (1, 0)

    stream.deliver(carried[0])
    assert late == carried


def test_events_are_named_by_a_noun_and_a_past_participle():
    assert set(EVENTS) == {
        "run.started",
        "run.ended",
        "step.started",
        "step.ended",
        "failure.recorded",
        "recovery.planned",
        "context.compacted",
        "lesson.learned",
    }
    assert RunStarted(Run(id="run_a")).name == "run.started"


PIECES = st.sampled_from(
    [
        "find the open orders",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "ann@example.com",
        "ü",
        "x" * 9000,
        "",
        "a b",
        "7",
    ]
)
FLAT = st.one_of(PIECES, st.integers(), st.floats(allow_nan=False), st.booleans(), st.none())
NAMED = st.sampled_from(["query", "password", "k", "api_key", "pin", "deep"])
GIVEN = st.dictionaries(NAMED, FLAT | st.lists(PIECES), max_size=4)


@given(
    st.lists(
        st.builds(
            lambda name, arguments, result, metadata, server: StepEnded(
                Step(run="run_a", seq=1, call=1, name=name, arguments=arguments, result=result, metadata=metadata,
                     server=server)
            ),
            PIECES, st.none() | GIVEN | PIECES, st.none() | GIVEN | FLAT, st.none() | GIVEN, st.none() | PIECES,
        ),
        max_size=12,
    ),
    st.sampled_from(["local", "shared"]),
)  # fmt: skip
def test_many_events_are_redacted_as_each_of_them_would_be(batch, level):
    redactor = Redactor(level=level, key=b"k" * 32)

    assert redact_all(batch, RecordRedactor(redactor)) == [redact_event(event, redactor) for event in batch]


FORMS = [
    CallTemplate("tool", name, ("query", "k", "pin"), frozenset({"query", "k", "pin", "password"}))
    for name in ("find", "read")
]
CALLS = st.builds(
    lambda form, given, named, result, alone: SuccessRecord(
        form, "run_a", 1, None, 1.5, given, named, alone, duration_seconds=0.25, result=snapshot_value(result)
    ),
    st.sampled_from(FORMS),
    st.lists(FLAT, max_size=2).map(tuple),
    st.dictionaries(st.sampled_from(["pin", "password"]), FLAT, max_size=2),
    GIVEN | FLAT | st.dictionaries(st.integers() | PIECES, FLAT, max_size=2) | st.lists(PIECES),
    st.none() | st.just(StandaloneRun.from_run(Run(id="", agent="ann@example.com"))),
)
ALIKE = st.lists(st.just("order 7") | PIECES, max_size=30).map(
    lambda texts: [
        SuccessRecord(
            FORMS[0], "run_a", seq, None, 1.5, (text,), {"k": seq}, None, duration_seconds=0.25, result={"query": text}
        )
        for seq, text in enumerate(texts)
    ]
)


@given(st.lists(ALIKE | CALLS.map(lambda call: [call]) | st.just([RunStarted(Run(id="run_a"))]), max_size=8))
def test_many_calls_that_worked_are_kept_in_their_order_as_each_of_them_would_be(parts):
    records = [record for part in parts for record in part]
    redactor = Redactor(key=b"k" * 32)

    kept = redact_records(records, RecordRedactor(redactor))

    alone = [event for record in records for event in redact_records([record], RecordRedactor(redactor))]
    assert encode(list(kept)) == encode(alone)
    assert b"ann@" not in encode(alone)
    assert b"ghp_" not in encode(alone)
    assert len(kept) == len(alone)
    assert encode([kept[place] for place in range(len(kept))]) == encode(kept[:]) == encode(alone)


LONG = "x y " * 50_000
TEXT_FIELDS = ("message", "detail", "hint", "code", "trace")


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"kind": Kind("ann@example.com", "ü")},
        {"kind": Kind("tool", "x" * 300)},
        *({name: text} for name in TEXT_FIELDS for text in ("to ann@example.com", LONG)),
        {"exception": "ann@example.com"},
        {"exception": "E" * 300},
        {"exception": 7},
        {"trace": 7},
        {"message": 7},
        {"status": "503"},
        {"retry_after": float("inf")},
        {"retry_after": "soon"},
        {"confidence": float("nan")},
        {"evidence": ("said", "ann@example.com")},
        {"fingerprint": "x" * 300},
        {"recoverable": "no"},
    ],
    ids=lambda odd: " ".join(odd) or "nothing",
)
def test_many_failures_are_redacted_as_each_of_them_would_be(odd):
    redactor = Redactor(key=b"k" * 32)
    plain = {
        "kind": Kind("tool", "timeout"),
        "remedy": Remedy.RETRY,
        "took_effect": TookEffect.UNKNOWN,
        "message": "it took too long",
    }
    batch = [
        StepEnded(Step(run="run_a", seq=seq, call=seq, outcome="failure", failure=Failure(**{**plain, **said})))
        for seq, said in enumerate(({}, odd, {}), start=1)
    ]

    kept = redact_all(batch, RecordRedactor(redactor))

    assert kept == [redact_event(event, redactor) for event in batch]
    assert (kept[1] == batch[1]) is not bool(odd)


@given(
    st.lists(st.tuples(st.none() | PIECES | st.just(7), st.none() | GIVEN), max_size=8),
    st.sampled_from(["local", "shared"]),
)
def test_runs_are_redacted_the_same_by_a_gate_that_knows_their_names(said, level):
    redactor = Redactor(level=level, key=b"k" * 32)
    gate = RecordRedactor(redactor)

    for context, metadata in said:
        run = RunEnded(Run(id="run_a", agent="bot", context=context, metadata=metadata))
        told = redactor.record(context if context is None else str(context), to_plain_data(metadata))
        assert redact_all([run], gate) == [redact_event(run, redactor)]
        kept = redact_all([run], gate)[0].run
        assert (kept.context, kept.metadata) == told
