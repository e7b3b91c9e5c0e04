from __future__ import annotations

from typing import Any

from session_logs import read, write

from mulligan.transcripts.run_builder import ReaderState


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
