"""One clean sentence, whatever it is wrapped in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.classify.classifier import classify
from mulligan.classify.unwrap import MAX_MESSAGE_CHARS, scan_pairs, unwrap_text

SENTENCE = "The date must be in the future."


@pytest.mark.parametrize(
    "text",
    [
        SENTENCE,
        json.dumps({"error": SENTENCE}),
        json.dumps({"error": {"message": SENTENCE, "code": 17}}),
        json.dumps({"message": json.dumps({"error": {"message": SENTENCE}})}),
        json.dumps({"detail": json.dumps({"message": json.dumps({"message": SENTENCE})})}),
        str({"error": {"message": SENTENCE, "param": None}}),
        f"Error code: 400 - {{'error': {{'message': '{SENTENCE}', 'type': None}}}}",
        f"BadRequestError: SomeException - {SENTENCE}",
        f"\x1b[31mError:\x1b[0m {SENTENCE}",
        f"Exit code 1\n\n{SENTENCE}",
        f"<tool_use_error>{SENTENCE}</tool_use_error>",
        f"<html><head><title>{SENTENCE}</title></head><body><p>nginx</p></body></html>",
        f'<?xml version="1.0"?><Error><Code>BadDate</Code><Message>{SENTENCE}</Message></Error>',
        f'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: {SENTENCE}',
        json.dumps({"error": SENTENCE, "more": "x" * 500})[:-200],
    ],
    ids=range(15),
)
def test_the_sentence_is_found(text: str) -> None:
    assert unwrap_text(text).sentence == SENTENCE


def test_the_rest_is_kept_as_detail() -> None:
    text = json.dumps({"error": {"message": SENTENCE}, "request_id": "req_1"})
    failure = classify(text, tool="book")
    assert failure.message == SENTENCE
    assert "req_1" in failure.detail


def test_a_long_sentence_is_cut_where_a_sentence_ends() -> None:
    text = "It failed for a reason. " * 40
    said = unwrap_text(text).sentence
    assert len(said) <= MAX_MESSAGE_CHARS
    assert said.endswith("reason.")


def test_of_a_build_the_first_error_is_the_message() -> None:
    text = "# example.org/a\n./a.go:4:2: undefined: frob\n./a.go:9:2: undefined: nicate"
    assert classify(text, tool="Bash").message == "./a.go:4:2: undefined: frob"


def test_of_a_program_the_line_that_says_why_is_the_message() -> None:
    text = "Exit code 2\nReading notes\nls: cannot access 'notes': No such file or directory\ndone"
    assert classify(text, tool="Bash").message == "ls: cannot access 'notes': No such file or directory"


@given(
    st.recursive(
        st.text(max_size=30), lambda inner: st.dictionaries(st.sampled_from(["message", "error", "code"]), inner)
    )
)
def test_pairs_of_any_json_are_read_without_error(value: object) -> None:
    assert len(scan_pairs(json.dumps(value))) <= 200


@given(st.text(max_size=500))
def test_no_control_mark_survives(text: str) -> None:
    said = unwrap_text(f"\x1b[1m{text}").sentence
    assert "\x1b" not in said
    assert "\x00" not in said
