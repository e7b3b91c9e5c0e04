"""Answers nobody can use are found; those with one reading are mended, and no others."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.recover.model_output import find_output_error, parse_arguments, repair_json, repair_output

JSON_MODE: dict[str, Any] = {"response_format": {"type": "json_object"}}


def chat(content: str | None = None, *, arguments: str | None = None, ended: str = "stop") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if arguments is not None:
        message["tool_calls"] = [{"id": "a", "function": {"name": "weather", "arguments": arguments}}]
    return {"choices": [{"finish_reason": ended, "message": message}]}


def test_arguments_of_a_call_that_cannot_be_read_are_found_and_mended_in_place() -> None:
    answer = chat(arguments="{'city': 'Oslo'}", ended="tool_calls")
    wrong = find_output_error(answer, {})
    assert wrong is not None
    assert "weather" in wrong.reason
    made = repair_output(answer, wrong)
    assert json.loads(made["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{'city': 'Oslo'}"


def test_the_older_form_of_a_call_is_read_too() -> None:
    message = {"content": None, "function_call": {"name": "weather", "arguments": "{'city': 'Oslo'}"}}
    answer = {"choices": [{"finish_reason": "function_call", "message": message}]}
    wrong = find_output_error(answer, {})
    assert wrong is not None
    assert json.loads(repair_output(answer, wrong)["choices"][0]["message"]["function_call"]["arguments"]) == {
        "city": "Oslo"
    }


def test_what_was_cut_off_is_not_mended() -> None:
    answer = chat(arguments='{"city": "Os', ended="length")
    wrong = find_output_error(answer, {})
    assert wrong is not None
    assert wrong.is_cut
    assert repair_output(answer, wrong) is None


def test_json_is_asked_for_only_where_the_call_says_so() -> None:
    assert find_output_error(chat("Rain."), {}) is None
    assert find_output_error(chat("Rain."), JSON_MODE) is not None
    assert find_output_error(chat('{"weather": "rain"}'), JSON_MODE) is None
    assert find_output_error("Rain.", JSON_MODE) is not None
    assert (
        find_output_error(chat("Rain."), {"generation_config": {"response_mime_type": "application/json"}}) is not None
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " \n",
        chat(""),
        chat(None),
        {"content": [], "stop_reason": "end_turn"},
        {"output": [], "status": "completed"},
        {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]},
        SimpleNamespace(content=[SimpleNamespace(type="text", text="")], stop_reason="end_turn"),
        {"object": "chat.completion", "choices": []},
        SimpleNamespace(object="chat.completion", choices=None, usage=None),
    ],
)
def test_an_empty_answer_of_any_form_is_found(answer: Any) -> None:
    assert find_output_error(answer, {}) is not None


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"message": "upstream is full", "code": 503}, "user_id": "u"},
        {"id": "a", "choices": [], "error": {"message": "upstream is full", "code": 503}},
        SimpleNamespace(id=None, choices=None, error={"message": "upstream is full", "code": 503}),
    ],
)
def test_an_answer_that_holds_nothing_but_the_providers_error_is_found_with_it(answer: Any) -> None:
    wrong = find_output_error(answer, {})
    assert wrong is not None
    assert wrong.provider_error == {"message": "upstream is full", "code": 503}


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"message": "no such city", "code": 1}, "city": "Oslo"},  # what a model was asked to write
        {"error": "no such city"},
        {"question": "Which is a city?", "choices": []},
        SimpleNamespace(question="Which is a city?", choices=[]),
        chat("Rain.") | {"error": None},
        chat("Rain.") | {"error": {"message": "the second half was lost", "code": 502}},
        chat("Rain."),
        chat("Ra", ended="length"),  # the caller asked for so many tokens
        chat(None, arguments='{"city": "Oslo"}', ended="tool_calls"),
        {"choices": [{"finish_reason": "stop", "message": {"content": None, "refusal": "I cannot."}}]},
        {"content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}], "stop_reason": "tool_use"},
        {"output": [{"type": "function_call", "arguments": "{}", "name": "f"}], "status": "completed"},
        {"output": [], "status": "queued"},
        {
            "candidates": [
                {"content": {"parts": [{"function_call": {"name": "f", "args": {}}}]}, "finish_reason": "STOP"}
            ]
        },
        None,
        7,
        {"anything": "else"},
        object(),
    ],
)
def test_an_answer_that_can_be_used_or_is_of_no_known_form_is_not_accused(answer: Any) -> None:
    assert find_output_error(answer, {}) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("{'a': 'it is'}", {"a": "it is"}),
        ("{'a': 'say \"hi\"'}", {"a": 'say "hi"'}),
        ('{"a": True, "b": None}', {"a": True, "b": None}),
        ('```json\n{"a": [1, 2,],}\n```', {"a": [1, 2]}),
        ('Here it is: {"a": {"b": 2}} I hope it helps.', {"a": {"b": 2}}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ("", {}),
        ('```{"a": 1}```', {"a": 1}),
        ('```python\n{"a": "```sh\\nls\\n```"}\n```', {"a": "```sh\nls\n```"}),
        ('It is so:\n```json\n{"a": 1}\n```\nIs it?', {"a": 1}),
        ('\ufeff{"a": 1}', {"a": 1}),
        ('{"a": 1}</tool_call>', {"a": 1}),
        ('{"a": 1}}', {"a": 1}),
        (r"""{"a": "it\'s"}""", {"a": "it's"}),
    ],
)
def test_what_has_one_reading_is_mended(text: str, means: Any) -> None:
    made = repair_json(text, is_object=True)
    assert made is not None
    assert json.loads(made) == means


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1',  # cut off: nobody knows what was to follow
        '{"a": "Os',
        '{"a": 1}{"a": 2}',
        'Either {"a": 1} or {"a": 2}',
        '{"a": b}',
        "Oslo",
        "[1, 2]",
        '{"a": 1 "b": 2}',
        "{a: 1}",
        "{'a': 'it's'}",
        "{'a': 'one' 'two'}",
        '{"a": NaN}',
        '{"a": 1}, "b": 2}',
        '```json\n{"a": 1}\n```\nor\n```json\n{"a": 2}\n```',
    ],
)
def test_what_has_none_or_several_is_left_alone(text: str) -> None:
    assert repair_json(text, is_object=True) is None


@given(st.text(max_size=200))
@settings(max_examples=300)
def test_whatever_is_mended_is_json_and_nothing_makes_it_raise(text: str) -> None:
    made = repair_json(text)
    if made is not None:
        json.loads(made)


@given(VALUES)
@settings(max_examples=150)
def test_what_a_model_wrote_in_pythons_way_means_the_same(value: Any) -> None:
    made = repair_json(repr({"value": value}), is_object=True)
    assert made is None or json.loads(made) == {"value": value}


# Arguments of a call


@given(st.text() | st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_arguments_of_any_sort_are_read(arguments: Any) -> None:
    found = parse_arguments(arguments)
    assert isinstance(found.value, dict) or found.error


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()))
def test_what_is_mended_says_what_was_written(value: dict[str, Any]) -> None:
    assert parse_arguments(json.dumps(value)).value == value
    assert parse_arguments(f"```json\n{json.dumps(value)}\n```").value == value
    assert parse_arguments(repr(value)).value in (value, None)
    if value:
        assert parse_arguments(json.dumps(value)[:-1]).value is None  # cut off


def test_what_is_long_or_deep_is_read_in_bounded_time() -> None:
    for text in (
        "{" * 100_000,
        '{"a":' * 5000,
        "[" * 100_000,
        '{"a": "' + "x" * 3_000_000,
        "'" * 50_000,
        "," * 900_000,
        '{"a": "' + '\\"' * 450_000,
        "{" + " ,\n" * 250_000 + "}",
        "```" + " " * 900_000,
        "{'" + "a'" * 400_000,
    ):
        assert parse_arguments(text).value is None
