"""An error in the clothes of a success is recognised; a document about errors is a document."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.classify.tool_results import is_error_result

FAILED = [
    "Error: no such order",
    "Error executing tool search: top_k must be 10 or less",
    "ValueError: top_k must be 10 or less",
    "Traceback (most recent call last):\n  File ...",
    '{"error": "No such user."}',
    '{"success": false, "message": "No such user."}',
    {"error": {"code": 5, "message": "no"}},
    {"isError": True, "content": []},
    {"content": [{"type": "text", "text": "Error: no such order"}]},
    {"data": None, "errors": [{"message": "no"}]},
    {"returncode": 2, "stderr": "no"},
    SimpleNamespace(isError=True, content=[]),
    SimpleNamespace(status_code=503, headers={}),
    "<tool_use_error>no</tool_use_error>",
]

WORKED = [
    None,
    "",
    "Done.",
    "Errors are values. A document about error handling: ...",
    "The log holds 3 lines with Error: in them",
    '{"error": null, "result": 4}',
    '{"error": false}',
    '{"errors": [], "data": {"x": 1}}',
    {"data": {"x": 1}, "errors": [{"message": "one field is old"}]},
    {"status": "failed", "order": 4},
    {"content": [{"type": "text", "text": "42"}]},
    SimpleNamespace(status_code=200, headers={}),
    [],
    404,
]


@pytest.mark.parametrize("result", FAILED, ids=repr)
def test_a_result_that_says_error_is_a_failure(result: object) -> None:
    assert is_error_result(result)


@pytest.mark.parametrize("result", WORKED, ids=repr)
def test_a_result_that_does_not_is_none(result: object) -> None:
    assert not is_error_result(result)


def test_the_flag_is_believed() -> None:
    assert is_error_result("Done.", is_error=True)


def test_a_process_is_judged_by_its_exit_code() -> None:
    assert is_error_result(subprocess.run([sys.executable, "-I", "-c", "raise SystemExit(3)"], check=False))
    assert not is_error_result(subprocess.run([sys.executable, "-I", "-c", ""], check=False))


@given(st.text() | st.binary() | st.dictionaries(st.text(), st.text() | st.none()))
def test_any_result_gets_an_answer(result: object) -> None:
    assert is_error_result(result) in (True, False)
