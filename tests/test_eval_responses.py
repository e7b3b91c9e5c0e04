"""The corpus of `evals/response_corpus`: errors among responses are recognized, and successes are left alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mulligan.capture.result_checks import may_look_failed
from mulligan.classify.result_verdict import judge_result
from mulligan.classify.results import is_error_result

ROOT = Path(__file__).resolve().parents[1]


def is_error(response: Any) -> bool:
    return judge_result(response).judgment != "success"


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    sys.path.append(str(ROOT / "evals"))
    try:
        from response_corpus.rows import read_rows
    finally:
        sys.path.remove(str(ROOT / "evals"))
    return list(read_rows())


def test_corpus_has_400_errors_and_2000_successes(rows: list[Any]) -> None:
    assert sum(row.is_error for row in rows) >= 400
    assert sum(not row.is_error for row in rows) >= 2_000


@pytest.mark.parametrize("is_opened", [True, False], ids=["opened", "unopened"])
def test_errors_of_each_half_are_recognized_and_successes_are_not(rows: list[Any], is_opened: bool) -> None:
    half = [row for row in rows if row.is_opened is is_opened]
    errors = [is_error(row.response) for row in half if row.is_error]
    alarms = [judge_result(row.response).judgment for row in half if not row.is_error]
    assert sum(errors) / len(errors) >= 0.94
    assert alarms.count("failure") / len(alarms) <= 0.005
    assert alarms.count("suspected") / len(alarms) <= 0.02


def test_cheap_check_lets_no_error_pass(rows: list[Any]) -> None:
    assert [row for row in rows if is_error(row.response) and not may_look_failed(row.response)] == []


def test_tool_without_a_category_fails_or_is_suspected_where_its_text_is_an_error(rows: list[Any]) -> None:
    errors = [row for row in rows if is_error_result(row.response)]
    assert [row for row in errors if not is_error(row.response)] == []
