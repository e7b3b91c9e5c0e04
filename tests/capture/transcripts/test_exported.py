from __future__ import annotations

import pytest
from session_logs import read, write

from mulligan.capture.transcripts.gathering import Reading
from mulligan.capture.transcripts.lines import Unreadable
from mulligan.failure import Failure, Kind
from mulligan.records import History, Run, Step, encode

HEADER = {"mulligan": "export", "version": 1, "level": "local"}
HISTORY = History(
    run=Run(id="run_a", agent="librarian", started=5),
    steps=(Step(run="run_a", seq=1, call=1, name="x", failure=Failure.of(Kind("tool", "timeout")), outcome="failure"),),
)


def header(**changes: object) -> bytes:
    return encode({**HEADER, **changes})


def test_what_was_exported_is_read_as_it_was(tmp_path):
    assert read(write(tmp_path / "e.jsonl", header(), encode(HISTORY))) == [HISTORY]


def test_an_export_of_a_newer_format_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(Unreadable, match=r"newer mulligan .format 2; this one knows 1.*pip install -U"):
        read(write(tmp_path / "e.jsonl", header(version=2)))


def test_a_run_that_was_put_together_by_hand_and_half_a_line_are_passed_over(tmp_path):
    reading = Reading()
    odd = encode(History(run=Run(id="run_b"), steps=HISTORY.steps))
    path = write(tmp_path / "e.jsonl", header(), odd, encode(HISTORY)[:-9], encode(HISTORY))
    assert read(path, reading) == [HISTORY]
    assert reading.unknown == 2


def test_exports_put_behind_each_other_are_one(tmp_path):
    other = encode(History(run=Run(id="run_c")))
    assert len(read(write(tmp_path / "e.jsonl", header(), encode(HISTORY), header(), other))) == 2
