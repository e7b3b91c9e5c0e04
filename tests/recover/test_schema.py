"""In which ways arguments break their schema, in any dialect, and that no schema can do harm (SAFETY S6)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mulligan.recover import schema
from mulligan.recover.schema import SchemaRejectedError, to_json_schema

ANY_NUMBER = {"type": "integer"}


def rules(arguments: dict[str, Any], pinned: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(fault.path, fault.rule) for fault in schema.validate_or_none(arguments, pinned) or []]


def test_every_fault_is_found_with_its_place():
    pinned = {
        "type": "object",
        "properties": {"k": ANY_NUMBER, "rows": {"type": "array", "items": {"enum": ["a", "b"]}}},
        "required": ["k", "q"],
        "additionalProperties": False,
    }
    assert rules({"k": "5", "rows": ["a", "B"], "x": 1}, pinned) == [
        ((), "required"),
        (("k",), "type"),
        (("rows", 1), "enum"),
        ((), "additionalProperties"),
    ]


def test_one_validator_serves_a_schema_whoever_holds_it():
    first, same = {"properties": {"k": ANY_NUMBER}}, {"properties": {"k": {"type": "integer"}}}
    assert schema.compile_schema(first) is schema.compile_schema(first) is schema.compile_schema(same)
    assert schema.compile_schema({"properties": {"k": {"type": "string"}}}) is not schema.compile_schema(first)


def test_no_more_validators_are_kept_than_an_agent_has_tools(monkeypatch):
    monkeypatch.setattr(schema, "MAX_CACHED_SCHEMAS", 10)
    for number in range(100):
        schema.compile_schema({"properties": {f"k{number}": ANY_NUMBER}})
    assert len(schema.cache_by_text) <= 10
    assert len(schema.cache_by_id) <= 10


def test_a_schema_counts_as_it_was_when_it_was_first_seen():
    changing: dict[str, Any] = {"properties": {"k": {"type": "integer", "maximum": 10}}}
    assert rules({"k": 50}, changing) == [(("k",), "maximum")]
    changing["properties"]["k"]["maximum"] = 100
    assert rules({"k": 50}, changing) == [(("k",), "maximum")]


# Dialects


@pytest.mark.parametrize(
    ("given", "type"),
    [("dict", "object"), ("float", "number"), ("tuple", "array"), ("int", "integer"), ("STRING", "string"),
     ("bool", "boolean"), ("list", "array"), ("OBJECT", "object"), ("Double", "number"), ("str", "string")],
)  # fmt: skip
def test_other_names_for_types_are_understood(given, type):
    assert to_json_schema({"type": "dict", "properties": {"x": {"type": given}}})["properties"]["x"] == {"type": type}


def test_any_is_no_type_at_all():
    assert to_json_schema({"properties": {"x": {"type": "any", "description": "?"}}})["properties"]["x"] == {
        "description": "?"
    }


def test_gemini_says_that_null_is_allowed_with_a_word_of_its_own():
    given = {"type": "OBJECT", "properties": {"x": {"type": "STRING", "nullable": True, "enum": ["A"]}}}
    assert to_json_schema(given)["properties"]["x"] == {"type": ["string", "null"], "enum": ["A", None]}


@pytest.mark.parametrize(
    "description",
    [
        {
            "type": "function",
            "function": {"name": "f", "strict": True, "parameters": {"properties": {"k": ANY_NUMBER}}},
        },
        {"type": "function", "name": "f", "parameters": {"properties": {"k": ANY_NUMBER}}},
        {"name": "f", "description": "", "parameters": {"properties": {"k": ANY_NUMBER}}},
        {"name": "f", "input_schema": {"properties": {"k": ANY_NUMBER}}},
        {"name": "f", "inputSchema": {"properties": {"k": ANY_NUMBER}}},
    ],
    ids=["OpenAI", "OpenAI, newer", "bare", "Anthropic", "MCP"],
)
def test_a_whole_description_of_a_tool_is_understood(description):
    assert rules({"k": "5"}, description) == [(("k",), "type")]


def test_openai_strict_schemas_require_everything_and_take_null_for_what_is_left_out():
    strict = {
        "type": "object",
        "properties": {"k": {"type": ["integer", "null"]}, "q": {"type": "string"}},
        "required": ["k", "q"],
        "additionalProperties": False,
    }
    assert rules({"k": None, "q": "x"}, strict) == []
    assert rules({"q": "x"}, strict) == [((), "required")]


def test_older_drafts_are_understood():
    given = {"properties": {"x": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "required": True}}}
    assert to_json_schema(given)["properties"]["x"] == {"type": "integer", "exclusiveMinimum": 0}


def test_the_given_schema_is_not_changed():
    given = {"type": "dict", "properties": {"x": {"type": "float", "nullable": True}}}
    to_json_schema(given)
    assert given == {"type": "dict", "properties": {"x": {"type": "float", "nullable": True}}}


def test_names_of_arguments_are_nobodys_keywords():
    given = {"type": "dict", "properties": {"type": {"type": "float"}, "required": {"type": "int"}, "nullable": {}}}
    assert to_json_schema(given)["properties"] == {
        "type": {"type": "number"},
        "required": {"type": "integer"},
        "nullable": {},
    }


def test_a_few_lines_that_stand_for_very_many_are_not_mapped():
    inner: dict[str, Any] = {}
    for _ in range(40):
        inner = {"properties": {"a": inner, "b": inner}}
    with pytest.raises(SchemaRejectedError):
        to_json_schema(inner)
    assert schema.validate_or_none({"a": 1}, inner) is None


# Hostile schemas


@pytest.fixture
def listener() -> Iterator[tuple[int, list[int]]]:
    """A port that counts who knocks."""
    knocks: list[int] = []
    server = socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            knocks.append(1)
            connection.close()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    yield server.getsockname()[1], knocks
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.mark.safety
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$schema", "$id"])
def test_a_reference_to_another_place_is_refused_without_a_look_there(listener, keyword, tmp_path):
    port, knocks = listener
    (tmp_path / "s.json").write_text('{"properties": {"k": {"maximum": 1}}}')
    for place in (f"http://127.0.0.1:{port}/s.json", f"file://{tmp_path}/s.json"):
        pinned = {keyword: place, "properties": {"k": {"$ref": "s.json"}}}
        assert not schema.validate_or_none({"k": 50}, pinned)
    assert knocks == []


def doubling(levels: int) -> dict[str, Any]:
    """A few lines whose check takes two to the power of their number."""
    defs = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**defs, f"d{levels}": {}}, "$ref": "#/$defs/d0"}


def nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(levels):
        inner = {"allOf": [inner]}
    return inner


TREE = {
    "$defs": {"node": {"allOf": [{"properties": {"a": {"$ref": "#/$defs/node"}}}] * 2}},
    "properties": {"a": {"$ref": "#/$defs/node"}},
}


@pytest.mark.parametrize(
    "hostile",
    [
        doubling(60),
        nested(100_000),
        {"allOf": [{}] * 100_000},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/nowhere"},
        {"$ref": "#anchor"},
        {"properties": {"k": {"pattern": "(a+)+$"}}},
    ],
    ids=["doubling", "nested", "wide", "itself", "itself inside", "nowhere", "anchor", "pattern"],
)
def test_a_hostile_schema_is_not_worth_more_than_a_bounded_look(hostile):
    assert not schema.validate_or_none({"k": "a" * 5000 + "!"}, hostile) or "pattern" in str(hostile)


def test_a_schema_that_branches_with_every_level_of_the_arguments_is_refused_for_deep_ones():
    deep: Any = 1
    for _ in range(40):
        deep = {"a": deep}
    assert not schema.is_affordable(TREE, schema.measure_extent(deep)[0])
    assert schema.is_affordable(TREE, 2)


def test_ordinary_schemas_with_references_and_recursion_are_affordable():
    pinned = {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "k": ANY_NUMBER}}},
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/node"}, "k": {"$ref": "#/$defs/node/properties/k"}},
    }
    assert schema.is_affordable(pinned, 4)
    (fault,) = schema.validate_or_none({"k": "5"}, pinned)
    assert (fault.path, fault.rule, fault.limit) == (("k",), "type", "integer")


OPEN = {"type": "object", "properties": {"k": {"type": "array"}, "n": {"type": "integer"}}}


def doubled(levels: int) -> Any:
    """A few lists that are more values than anyone can count."""
    value: Any = []
    for _ in range(levels):
        value = [value, value]
    return value


def holding_itself() -> Any:
    value: list[Any] = []
    value += [value, value, {"again": value}]
    return value


@pytest.mark.parametrize("value", [doubled(60), holding_itself()], ids=["doubled", "holding itself"])
def test_of_arguments_that_have_no_end_nothing_is_said(value):
    assert schema.validate_or_none({"k": value, "n": "5"}, OPEN) is None


def test_a_value_that_is_held_twice_counts_twice_and_depth_is_bounded():
    assert schema.measure_extent({"a": [1, 2], "b": {}}) == (2, 5)
    assert schema.measure_extent(doubled(10)) == (11, 2**11 - 1)
    assert schema.measure_extent(holding_itself())[0] == schema.MAX_NESTING_DEPTH
    assert schema.measure_extent(5) == (0, 1)


def test_in_a_very_large_call_faults_are_not_counted_one_by_one():
    numbers = {"type": "object", "properties": {"k": {"type": "array", "items": {"type": "integer"}}}}
    assert schema.validate_or_none({"k": [1] * (schema.MAX_DETAILED_VALUES + 1)}, numbers) == []
    assert schema.validate_or_none({"k": ["x"] * (schema.MAX_DETAILED_VALUES + 1)}, numbers) is None
    assert len(schema.validate_or_none({"k": ["x"] * 100}, numbers)) == 100


def test_a_pattern_that_cannot_be_tried_to_its_end_accuses_nobody():
    endless = {"type": "object", "properties": {"k": {"type": "string", "pattern": r"(a*)*\1b"}}}
    assert schema.validate_or_none({"k": "a" * 60 + "c"}, endless) is None


@pytest.mark.parametrize("name", ["type", "default", "items", "$ref"])
def test_a_property_may_have_the_name_of_a_keyword(name):
    pinned = {"type": "object", "properties": {name: ANY_NUMBER}}
    assert rules({name: "5"}, pinned) == [((name,), "type")]


@settings(max_examples=150)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "properties", "$ref", "allOf", "items", "maximum", "pattern", "$defs", "enum", "nullable"]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=10,
    )
)
def test_any_nonsense_for_a_schema_is_survived(nonsense):
    pinned = nonsense if isinstance(nonsense, dict) else {"properties": nonsense}
    faults = schema.validate_or_none({"k": 5, "type": "x"}, pinned)
    assert faults is None or all(isinstance(each, schema.SchemaViolation) for each in faults)
