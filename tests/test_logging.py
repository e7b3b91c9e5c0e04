"""One line an event: whole, in one line whatever is in it, and redacted before it comes here."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mulligan
from mulligan.core.events import (
    ContextCompacted,
    LessonLearned,
    RecoveryPlanned,
    RunEnded,
    RunStarted,
    StepEnded,
    StepStarted,
)
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Change, Compaction, Lesson, Recovery, RecoveryStop, Run, Step
from mulligan.logging import Log, format_event, format_fields, to_fields

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY, TookEffect.UNKNOWN), 'it said "no" = 100%', fingerprint="f1")
FAILED = Step(run="run_1", seq=2, call=2, name="search", outcome="failure", duration_seconds=0.25, failure=TIMEOUT)
EVENTS = [
    RunStarted(Run(id="run_1", agent="helper", started_at=1000)),
    StepEnded(FAILED),
    RecoveryPlanned(
        FAILED,
        Recovery(
            remedy=Remedy.REPAIR, backoff_seconds=0.5, changes=(Change(path="k", operation="clamp"),), source="schema"
        ),
    ),
    ContextCompacted(Compaction(session="s", reason="agent", chars_before=10, chars_after=5)),
    LessonLearned(Lesson(id="les_1", tool="search", fingerprint="f1", mistake="m", correction="c")),
    RunEnded(Run(id="run_1", agent="helper", started_at=1000, ended_at=3500, end_reason="finished")),
]


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, "mulligan.events")
    return caplog


def test_each_event_is_one_line(logged):
    log = Log()
    for event in EVENTS:
        log(event)
    assert [record.getMessage() for record in logged.records] == [
        "event=run.started run=run_1 agent=helper",
        "event=step.ended run=run_1 seq=2 call=2 attempt=1 type=tool name=search outcome=failure duration_seconds=0.25 "
        "kind=tool/timeout remedy=retry took_effect=unknown fingerprint=f1 "
        'message="it said \\"no\\" = 100%"',
        "event=recovery.planned run=run_1 seq=2 name=search attempt=1 remedy=repair backoff_seconds=0.5 source=schema "
        "changes=k:clamp confidence=1.0",
        "event=context.compacted session=s reason=agent chars_before=10 chars_after=5",
        "event=lesson.learned lesson=les_1 tool=search fingerprint=f1 state=proposed",
        "event=run.ended run=run_1 agent=helper end_reason=finished duration_seconds=2.5",
    ]


def test_a_failure_is_a_warning_and_a_beginning_is_left_out(logged):
    log = Log()
    log(StepEnded(FAILED))
    log(StepStarted(FAILED))
    log(RunStarted(Run(id="r")))
    assert [record.levelname for record in logged.records] == ["WARNING", "INFO"]


def test_the_same_as_json(logged):
    Log(form="json")(StepEnded(FAILED))
    told = json.loads(logged.records[0].getMessage())
    assert (told["event"], told["kind"], told["message"]) == ("step.ended", "tool/timeout", 'it said "no" = 100%')


def test_a_form_that_is_not_known_is_told():
    with pytest.raises(ValueError, match="form must be text or json, got 'xml'"):
        Log(form="xml")  # type: ignore[arg-type]


@given(st.text())
def test_a_line_is_one_line_whatever_is_in_it(text):
    step = Step(run="r", seq=1, call=1, name=text, outcome="failure", failure=Failure.of(TIMEOUT.kind, text))
    for told in (format_fields(to_fields(StepEnded(step))), format_event(StepEnded(step), text)):
        assert told.isprintable()


def test_why_a_call_was_given_up_is_told():
    step = Step(
        run="run_1", seq=1, call=1, name="pay", outcome="failure", failure=TIMEOUT, stop=RecoveryStop(reason="so")
    )
    assert to_fields(StepEnded(step))["stop_reason"] == "so"
    assert format_event(StepEnded(step)).endswith("(unrecovered: so)")


def test_it_is_a_listener_like_any_other(logged):
    ours = mulligan.Mulligan(store="memory:")
    ours.add_listener(Log(), thread="caller")

    @ours.tool
    def double(number: int) -> int:
        return 2 * number

    double(4)
    assert "name=double outcome=success" in logged.text


def test_people_who_watch_read_when_who_and_what():
    told = format_event(StepEnded(FAILED), "helper")
    assert told.split("  ")[1:3] == ["run_1", "helper"]
    assert "x search, 250 ms, tool/timeout: it said" in told
    ended = format_event(RunEnded(Run(id="run_1", agent="helper", started_at=1000, ended_at=3500, end_reason="raised")))
    assert ended.endswith(". run raised after 2.5 s")
