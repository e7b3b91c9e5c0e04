"""The table of docs/judged-results.md: what a result must state, by the category and the effects of its tool."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.capture.result_checks import may_look_failed
from mulligan.classify.result_verdict import judge_result
from mulligan.core.failure import ToolCategory

CONTENT: list[ToolCategory] = ["shell", "file", "fetch", "search", "sql", "browser", "code", "model"]
STATED = {"error": "no such order", "code": "E4"}
FLAGGED = {"isError": True, "content": [{"type": "text", "text": "no such order"}]}
OPENING = "Error: no such order"
WORDS = {"message": "The order could not be found"}
LOG = "2026-01-04 10:00:01 ERROR connection refused\n2026-01-04 10:00:02 INFO retry\n"


def judge(result: Any, **options: Any) -> str:
    return judge_result(result, **options).judgment


@pytest.mark.parametrize("category", CONTENT)
def test_tools_that_return_content_fail_by_a_flag_alone(category: ToolCategory) -> None:
    assert judge(FLAGGED, category=category) == "failure"
    assert judge(LOG, category=category, is_error=True) == "failure"
    assert judge({"returncode": 2, "stderr": "no such order"}, category=category) == "failure"
    assert judge({"returncode": 0, "stderr": OPENING}, category=category) == "success"
    for result in (STATED, OPENING, WORDS, LOG, [STATED], '{"error": "no such order"}'):
        assert judge(result, category=category) != "failure"


@pytest.mark.parametrize(
    ("effects", "judgments"),
    [
        ("none", ["failure", "failure", "failure", "suspected", "success"]),
        ("idempotent", ["failure", "failure", "failure", "suspected", "success"]),
        ("once", ["failure", "failure", "suspected", "success", "success"]),
    ],
)
def test_other_tools_fail_by_what_they_state_and_without_effects_by_a_text_that_begins_as_an_error(
    effects: Any, judgments: list[str]
) -> None:
    results = [FLAGGED, STATED, OPENING, WORDS, LOG]
    assert [judge(result, effects=effects) for result in results] == judgments


@pytest.mark.parametrize(
    ("output", "judgment"),
    [
        ("Exit code: 1\nbash: x: command not found", "failure"),
        ("Exit code: 0\nbash: x: command not found", "success"),
        ('{"output": "done", "exit_code": 3}', "failure"),
        ('{"output": "Error: no", "exit_code": 0}', "success"),
        ("compiling\nerror: no\n[Command finished with exit code 2]", "failure"),
        ("step 1\nProcess exited with code 1\nstep 2\n", "success"),
    ],
)
def test_exit_code_decides_about_the_output_of_a_program(output: str, judgment: str) -> None:
    assert judge(output, category="shell") == judgment
    assert judge(output, category="file") != "failure"


def test_exit_code_that_the_command_prints_is_content() -> None:
    shown = "Exit code: 1"
    assert judge(shown, category="shell", arguments={"command": "cat exit.txt"}) == "success"
    assert judge(shown, category="shell", arguments={"command": 'make; echo "exit code: $?"'}) == "success"
    failed = "Exit code: 1\ncat: exit.txt: No such file or directory"
    assert judge(failed, category="shell", arguments={"command": "cat exit.txt"}) == "failure"


def test_error_object_is_content_of_a_command_that_shows_a_file_and_an_answer_of_one_that_calls_a_service() -> None:
    error = '{"error": "invalid api key"}'
    assert judge(error, category="shell", arguments={"command": "cat fixture.json"}) == "success"
    assert judge(error, category="shell", arguments={"command": "curl -s https://shop.example"}) == "suspected"
    assert judge(error, category="file", arguments={"path": "fixture.json"}) == "success"
    assert judge(error, category="file", arguments={"folder": "inbox"}) == "suspected"


def test_status_of_a_response_object_is_a_statement_and_that_of_a_fetched_object_is_suspicious() -> None:
    response = SimpleNamespace(status_code=503, headers={})
    assert judge(response, category="fetch") == "failure"
    assert judge({"status_code": 503, "body": "busy"}, category="fetch") == "suspected"
    assert judge({"status_code": 200, "body": OPENING}, category="fetch") == "success"


@pytest.mark.parametrize(
    ("result", "category"),
    [
        ([{"type": "text", "text": '{"error": "quota used up"}'}], "search"),
        ([SimpleNamespace(text='{"error": "quota used up"}')], "search"),
        ({"content": [{"type": "text", "text": '{"error": "quota used up"}'}]}, "sql"),
        ([{"type": "text", "text": OPENING}], "other"),
    ],
)
def test_content_list_with_an_error_is_suspicious(result: Any, category: ToolCategory) -> None:
    assert judge(result, category=category, effects="once") == "suspected"


def test_declared_content_is_believed_whatever_the_category() -> None:
    assert judge(STATED, category="other", returns="content") == "suspected"
    assert judge(STATED, category="file", returns="status") == "failure"


def test_detection_by_text_takes_words_for_a_statement_and_none_takes_nothing() -> None:
    assert judge(OPENING, category="file", detect_errors="text") == "failure"
    assert judge(WORDS, effects="none", detect_errors="text") == "failure"
    assert judge(FLAGGED, detect_errors=False) == "success"


def test_excerpt_is_the_part_that_looks_like_a_failure() -> None:
    output = "fetching\nnpm ERR! code ERESOLVE\nnpm ERR! unable to resolve dependency tree\n"
    verdict = judge_result(output, category="shell")
    assert verdict.judgment == "suspected"
    assert "npm ERR!" in verdict.excerpt


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.binary(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["error", "content", "text"]), inner)
        ),
        max_leaves=8,
    ),
    st.sampled_from([*CONTENT, "message", "action", "other"]),
)
def test_result_of_any_form_is_judged(result: Any, category: ToolCategory) -> None:
    assert judge(result, category=category) in ("success", "suspected", "failure")


@pytest.mark.parametrize("category", [*CONTENT, "other"])
@pytest.mark.parametrize("text", ["error: " * 1_500_000, "\ud800" * 1_000_000, "<html>" + "<" * 9_000_000, "a" * 10**7])
def test_long_text_is_judged_by_its_ends(text: str, category: ToolCategory) -> None:
    assert judge(text, category=category) in ("success", "suspected", "failure")


@pytest.mark.parametrize("category", ["action", "search", "other"])
@pytest.mark.parametrize(
    ("text", "is_suspected"),
    [
        ("Material 100-4711 is locked by another user.", True),
        ("You already made this exact call 4 times with the same outcome. Not running it again.", True),
        ("Le service de cartographie est indisponible, réessayez plus tard.", True),
        ("Task 3 created: reject requests that are not authorized", False),  # about success
        ('The user wrote: "permission denied"', False),  # a quotation
        ("1. Permission denied for guests", False),  # a list
        ("Timeout settings: connect 21 s, read 3936 s", False),
        ("Access denied events in Gent: 1", False),
    ],
)
def test_a_statement_of_a_failure_is_suspected_and_a_text_that_mentions_one_is_not(
    text: str, is_suspected: bool, category: ToolCategory
) -> None:
    assert (judge_result(text, category=category).judgment == "suspected") is is_suspected
    if is_suspected:
        assert may_look_failed(text, category if category == "search" else None), "the cheap check lets it pass"
