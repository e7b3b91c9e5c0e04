from __future__ import annotations

from typing import Any

import pytest
from session_logs import read, write

from mulligan.core.failure import Failure, Kind
from mulligan.core.records import History, Link, Run, Step, encode
from mulligan.core.run_links import attach_links
from mulligan.transcripts.log_lines import UnreadableFileError
from mulligan.transcripts.run_builder import ReaderState

HEADER = {"mulligan": "export", "version": 1, "level": "local"}
REFUSED = Failure.of(Kind("tool", "not_found"), "no")
HISTORY = History(
    run=Run(id="run_a", agent="librarian", started_at=5),
    steps=(Step(run="run_a", seq=1, call=1, name="x", failure=Failure.of(Kind("tool", "timeout")), outcome="failure"),),
)


def header(**changes: object) -> bytes:
    return encode({**HEADER, **changes})


JUDGED = attach_links(HISTORY)
"""The same, with what its links say in its steps: a store does not derive them anew."""


def call(seq: int, failure: Failure | None = None, **arguments: object) -> Step:
    outcome = "failure" if failure else "success"
    return Step(run="run_a", seq=seq, call=seq, name="x", arguments=arguments, outcome=outcome, failure=failure)


def test_what_was_exported_is_read_as_it_was(tmp_path):
    assert JUDGED.steps[0].links_decided
    assert read(write(tmp_path / "e.jsonl", header(), encode(HISTORY))) == [JUDGED]
    assert read(write(tmp_path / "again.jsonl", header(), encode(JUDGED))) == [JUDGED]


def test_links_of_an_export_hold_as_they_were_judged_and_those_without_evidence_are_judged_anew(tmp_path):
    steps = call(1, REFUSED, month="Jan"), call(2, month="Feb"), call(3, REFUSED, month="Mar"), call(4, month="Mar")
    link = Link(run="run_a", failed_call=1, recovering_call=2, method="agent", evidence=("handler",))
    similar = Link(run="run_a", failed_call=1, recovering_call=2, method="agent")
    run = Run(id="run_a", started_at=5, end_reason="finished")
    (judged,) = read(write(tmp_path / "e.jsonl", header(), encode(History(run=run, steps=steps, links=(link,)))))
    assert [(link.failed_call, link.recovering_call) for link in judged.links] == [(1, 2)]
    assert judged.steps[1].links == (link,)
    (older,) = read(write(tmp_path / "o.jsonl", header(), encode(History(run=run, steps=steps, links=(similar,)))))
    assert [(link.failed_call, link.recovering_call, link.evidence) for link in older.links] == [
        (3, 4, ("same_arguments",))
    ]
    assert older.steps[1].links == ()


def test_an_export_of_a_newer_format_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(UnreadableFileError, match=r"newer mulligan .format 2; this version supports 1.*pip install ."):
        read(write(tmp_path / "e.jsonl", header(version=2)))


def test_a_run_that_was_put_together_by_hand_and_half_a_line_are_passed_over(tmp_path):
    reading = ReaderState()
    odd = encode(History(run=Run(id="run_b"), steps=HISTORY.steps))
    path = write(tmp_path / "e.jsonl", header(), odd, encode(HISTORY)[:-9], encode(HISTORY))
    assert read(path, reading) == [JUDGED]
    assert reading.unrecognized_lines == 2


def test_exports_put_behind_each_other_are_one(tmp_path):
    other = encode(History(run=Run(id="run_c")))
    assert len(read(write(tmp_path / "e.jsonl", header(), encode(HISTORY), header(), other))) == 2


# Recorded calls


def row(run: str, seq: int, tool: str, error: str | None = None, **parameters: Any) -> dict[str, Any]:
    return {
        "dataset": "shop",
        "run_id": run,
        "seq": seq,
        "tool": tool,
        "parameters": parameters,
        "outcome": "failure" if error else "success",
        "error": error,
        "result_excerpt": None if error else "fine",
        "model": "m-1",
    }


def test_rows_become_runs_with_failures_classified_and_linked(tmp_path):
    path = write(
        tmp_path / "calls.jsonl",
        row("a", 0, "order", "order_id must be an integer", order_id="7"),
        row("a", 1, "order", order_id=7),
        row("b", 0, "order", order_id=8),
    )
    first, second = read(path, ReaderState(keeps_results=True))
    assert [step.seq for step in first.steps] == [1, 2]
    assert (first.run.agent, first.run.session) == ("shop", "a")
    assert first.run.metadata == {"format": "calls", "model": "m-1"}
    assert [(link.method, link.evidence) for link in first.links] == [("agent", ("same_values",))]
    assert first.steps[1].result == "fine"
    assert second.run.session == "b"


def test_another_value_is_a_correction_only_beside_an_argument_that_stays(tmp_path):
    path = write(
        tmp_path / "calls.jsonl",
        row("a", 0, "order", "there is no such size", size="XXXL", color="red"),
        row("a", 1, "order", size="XL", color="red"),
        row("b", 0, "order", "there is no such size", size="XXXL"),
        row("b", 1, "order", size="XL"),
    )
    first, second = read(path, ReaderState())
    assert [link.evidence for link in first.links] == [("next_call",)]
    assert second.links == ()


def test_a_row_that_cannot_be_read_is_counted_and_passed_over(tmp_path):
    reading = ReaderState()
    path = write(
        tmp_path / "calls.jsonl",
        row("a", 0, "x"),
        {**row("a", 1, "x"), "seq": -5},
        {**row("a", 2, "x"), "outcome": "maybe"},
        b"\xff\xfe broken",
        row("a", 3, "x"),
    )
    (history,) = read(path, reading)
    assert [step.seq for step in history.steps] == [1, 4]
    assert (reading.line_count, reading.unrecognized_lines) == (5, 3)
