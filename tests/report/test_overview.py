"""What a person reads about figures: the answer first, nothing that is not so, nothing foreign obeyed."""

from __future__ import annotations

from mulligan.contract import counters
from mulligan.contract.counters import DAY, StatsQuery
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Change, History, Recovery, Run, Step
from mulligan.report import overview

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f")
REJECTED = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR), "k", fingerprint="k")
CLAMPED = Change(path="k", operation="clamp", before=50, after=10)


def worked(agent="helper", name="search"):
    run = Run(id="r", agent=agent, started_at=DAY, end_reason="finished")
    again = Recovery(remedy=Remedy.RETRY, backoff_seconds=1.0)
    mended = Recovery(remedy=Remedy.REPAIR, changes=(CLAMPED,), source="schema")

    def step(seq, call, attempt=1, **fields):
        failed = {"outcome": "failure"} if "failure" in fields else {}
        return Step(
            run="r",
            seq=seq,
            call=call,
            attempt=attempt,
            name=name,
            started_at=DAY,
            duration_seconds=0.2,
            **failed,
            **fields,
        )

    steps = (
        step(1, 1),
        step(2, 2, failure=TIMEOUT),
        step(3, 2, 2, recovery=again),
        step(4, 4, failure=REJECTED),
        step(5, 4, 2, recovery=mended),
    )
    return History(run=run, steps=steps)


def page(*histories, width=None, **query):
    asked = StatsQuery(now=9 * DAY, **query)

    def answer(**fields):
        return counters.stats(histories, StatsQuery(now=9 * DAY, **(query | fields)))

    return "\n".join(
        overview.render_overview(
            counters.stats(histories, asked),
            answer(by="tool", detail=True),
            answer(by="agent"),
            answer(by="time"),
            width,
        )
    )


def test_the_page_begins_with_the_answer():
    assert page(worked()).splitlines()[:2] == [
        "1 run over all time: 1 recovered.",
        "3 calls: 33.3 % first-try success, 100 % final success; 2 of 2 failed calls recovered.",
    ]


def test_the_page_says_what_fails_what_overcame_it_and_what_it_cost():
    shown = page(worked())
    assert "  tool/timeout                   1      1          1            0         200 ms  retry" in shown
    assert "  schema repair  1   50 %" in shown.replace("50.0 %", " 50 %")
    assert "cost of recovery    backoff 1.0 s, retries 400 ms" in shown
    assert "second       2          2         100 %" in shown
    assert "search  k             1  out of bounds" in shown
    assert "latency             too few samples (3)" in shown


def test_nothing_recorded_is_one_sentence():
    assert page(since=DAY) == "No runs or calls since 1970-01-02 00:00 UTC."


def test_no_line_is_longer_than_a_narrow_terminal():
    shown = page(worked(), worked(name="a_tool_with_a_name_as_long_as_names_can_be_in_practice"), width=50)
    for line in shown.splitlines():
        assert len(line.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")) <= 50


def test_a_name_of_a_stranger_is_not_obeyed():
    shown = page(worked(name="search\x1b[2J\nx"))
    assert "\x1b" not in shown


def test_one_kind_alone_says_what_became_of_the_calls_that_met_it():
    stats = counters.stats([worked()], StatsQuery(now=DAY, kind="tool/timeout"))
    assert list(overview.render_headline(stats, "tool/timeout")) == [
        "1 failure of tool/timeout in 1 call over all time; 1 of these recovered, 0 unrecovered."
    ]
