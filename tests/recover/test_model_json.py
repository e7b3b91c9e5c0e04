"""JSON as models write it: what has one reading is mended, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.recover.model_json import parse_arguments, repair_json

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
