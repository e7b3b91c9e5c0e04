"""What may work instead of a failed call, from where its values come, and what is tried without asking."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

import mulligan
from mulligan.core.failure import Failure, Kind, TookEffect
from mulligan.core.kinds import (
    NONE_USER_REJECTED,
    TOOL_AUTH_ERROR,
    TOOL_INVALID_ARGUMENTS,
    TOOL_NOT_FOUND,
    TOOL_RATE_LIMIT,
    TOOL_UNKNOWN_TOOL,
)
from mulligan.core.privileged_arguments import is_privileged
from mulligan.prompt.failure_messages import MIN_SHOWN_CONFIDENCE
from mulligan.recover import error_repair, history, schema
from mulligan.recover.policy import EarlierCall, Suggestion, Tool
from mulligan.recover.repair import MAX_SUGGESTIONS, STRATEGY_CONFIDENCE, suggest

ANY_NUMBER = {"type": "integer"}
CLAMPED: dict[str, Any] = {"clamp": frozenset({"k", "n", "top_k", "size"})}
"""A tool whose author prefers the bound to an error. Who may clamp what: test_meaning.py."""


def of(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


def closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {**of(required, **properties), "additionalProperties": False}


def asked(
    arguments: dict[str, Any],
    pinned: dict[str, Any] | None = None,
    error: str = "",
    *,
    kind: Kind = TOOL_INVALID_ARGUMENTS,
    ran: TookEffect = TookEffect.NO,
    seen: list[EarlierCall] | None = None,
    tools: dict[str, Any] | None = None,
    name: str = "search",
    **about: Any,
) -> list[Suggestion]:
    failure = Failure.of(kind, error, took_effect=ran)
    return suggest(arguments, failure, Tool(name=name, schema=lambda: pinned, **about), seen or [], tools=tools)


def tried(arguments: dict[str, Any], pinned: dict[str, Any] | None = None, error: str = "", **options: Any) -> Any:
    """The arguments that would be tried without asking; None where nothing would."""
    first = next(iter(asked(arguments, pinned, error, **options)), None)
    return first.arguments if first is not None and first.automatic else None


def mended(arguments: dict[str, Any], properties: dict[str, Any], error: str = "", **options: Any) -> Any:
    return tried(arguments, of(**properties), error, **options)


# Casts keep the meaning


@pytest.mark.parametrize(
    ("value", "type", "expected"),
    [
        ("5", "integer", 5),
        (" 5 ", "integer", 5),
        ('"5"', "integer", 5),
        ("-5", "integer", -5),
        ("0", "integer", 0),
        ("2.5", "number", 2.5),
        ("5", "number", 5),
        ("true", "boolean", True),
        (["5"], "integer", 5),
        ("False", "boolean", False),
        (5, "string", "5"),
        ("5", ["integer", "null"], 5),
        ("5", "int", 5),
        ("2.5", "float", 2.5),
    ],
)
def test_a_value_is_cast_to_the_type_that_was_asked_for(value, type, expected):
    after = mended({"x": value}, {"x": {"type": type}})
    assert after == {"x": expected}
    assert after["x"].__class__ is expected.__class__


@pytest.mark.parametrize(
    ("value", "type"),
    [
        ("020", "integer"),  # a name or a postcode
        ("+5", "integer"),
        ("5.0", "integer"),
        ("1e3", "integer"),
        ("0x10", "integer"),
        ("1,000", "integer"),
        ("\u0665", "integer"),
        ("five", "integer"),
        ("9" * 30, "integer"),
        ("nan", "number"),
        ("1e400", "number"),
        ("yes", "boolean"),
        ("1", "boolean"),
        (1, "boolean"),
        (True, "integer"),
        (True, "string"),
        (2.5, "integer"),
        (2.5, "string"),
        (["5", "6"], "integer"),
        ({"a": 1}, "string"),
        ("2024-01-05", "integer"),
        ("a, b", "array"),  # one or two?
    ],
)
def test_a_cast_that_would_have_to_be_guessed_is_not_made(value, type):
    assert mended({"x": value}, {"x": {"type": type}}) is None


def test_a_number_whose_leading_zeros_may_have_been_lost_is_not_made_a_text():
    assert mended({"zip_code": 2139}, {"zip_code": {"type": "string"}}) is None
    assert mended({"room": 2139}, {"room": {"type": "string"}}) == {"room": "2139"}


def test_a_text_that_belongs_there_stays_text():
    assert mended({"zip": "020", "k": "5"}, {"zip": {"type": "string"}, "k": ANY_NUMBER}) == {"zip": "020", "k": 5}


def test_null_is_left_out_where_it_may_be_and_never_replaced():
    assert tried({"q": "x", "k": None}, of(["q"], q={"type": "string"}, k=ANY_NUMBER)) == {"q": "x"}
    assert asked({"k": None}, of(["k"], k=ANY_NUMBER)) == []
    assert asked({"k": None}, of(["k"], k={"type": ["integer", "null"]})) == []


@pytest.mark.parametrize(
    "text", ['["a", "b"]', "['a', 'b']", '"[\\"a\\", \\"b\\"]"', ' ["a","b"] ', '```json\n["a","b"]\n```']
)
def test_json_in_a_text_is_read(text):
    assert mended({"tags": text}, {"tags": {"type": "array", "items": {"type": "string"}}}) == {"tags": ["a", "b"]}


def test_an_object_in_a_text_is_read_and_what_is_in_it_is_held_against_the_schema():
    node = {"type": "object", "properties": {"days": ANY_NUMBER}, "required": ["days"]}
    assert mended({"span": '{"days": "7"}'}, {"span": node}) == {"span": {"days": 7}}
    assert mended({"span": '{"days": "many"}'}, {"span": node}) is None


def test_a_single_value_becomes_a_list_of_one():
    assert mended({"tags": "a"}, {"tags": {"type": "array", "items": {"type": "string"}}}) == {"tags": ["a"]}
    assert mended({"days": 3}, {"days": {"type": "array", "items": ANY_NUMBER}}) == {"days": [3]}
    assert mended({"days": "x"}, {"days": {"type": "array", "items": ANY_NUMBER}}) is None


def test_the_one_value_in_an_object_is_taken_out_where_its_key_says_nothing():
    assert mended({"days": {"value": 5}}, {"days": ANY_NUMBER}) == {"days": 5}
    assert mended({"days": {"days": "5"}}, {"days": ANY_NUMBER}) == {"days": 5}
    assert mended({"page": {"Page": "a"}}, {"page": {"type": "string"}}) == {"page": "a"}


def test_an_operator_is_left_out_by_asking_only():
    (suggestion,) = asked({"days": {"$lt": 5}}, of(days=ANY_NUMBER))
    assert suggestion.arguments == {"days": 5}
    assert not suggestion.automatic


def test_the_value_of_a_key_with_a_meaning_is_not_suggested():
    assert asked({"days": {"hours": 5}}, of(days=ANY_NUMBER)) == []
    assert asked({"customer": {"id": "u-1"}}, of(customer={"type": "string"})) == []


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("content", {"a": 1}, '{"a": 1}'),
        ("content", {"value": 5}, '{"value": 5}'),
        ("body", {"id": "u-1"}, '{"id": "u-1"}'),
    ],
)
def test_an_object_for_a_document_is_suggested_as_its_whole_json_text(name, value, text):
    (suggestion,) = asked({name: value}, of(**{name: {"type": "string"}}))
    assert suggestion.arguments == {name: text}
    assert not suggestion.automatic


@pytest.mark.parametrize("value", [{"value": 5, "unit": "d"}, {"value": None}, {"value": [5]}, {"value": {"value": 5}}])
def test_an_object_that_says_more_than_one_value_is_left_alone(value):
    assert asked({"days": value}, of(days=ANY_NUMBER)) == []


def test_one_of_several_schemas_is_met_where_only_one_thing_meets_it():
    optional = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert mended({"k": "5"}, {"k": optional}) == {"k": 5}
    assert mended({"k": "x"}, {"k": optional}) is None
    assert mended({"k": "true"}, {"k": {"anyOf": [{"type": "boolean"}, {"type": "integer"}]}}) == {"k": True}
    assert mended({"k": 5}, {"k": {"anyOf": [{"type": "string"}, {"type": "array"}]}}) is None  # "5" or [5]?


def test_deep_places_are_mended_like_shallow_ones():
    pinned = of(rows={"type": "array", "items": of(["n"], n=ANY_NUMBER, sort={"enum": ["Up", "Down"]})})
    assert tried({"rows": [{"n": 1}, {"n": "2", "sort": "down"}]}, pinned) == {
        "rows": [{"n": 1}, {"n": 2, "sort": "Down"}]
    }


# Enums


@pytest.mark.parametrize("value", ["celsius", "CELSIUS", " Celsius ", '"Celsius"', "Celsius\n"])
def test_a_member_of_an_enum_is_known_in_another_spelling(value):
    assert mended({"unit": value}, {"unit": {"enum": ["Celsius", "Fahrenheit"]}}) == {"unit": "Celsius"}


@pytest.mark.parametrize("value", ["Celsus", "Celcius"])
def test_a_member_of_an_enum_with_a_slip_is_used_only_where_the_tool_has_no_effects(value):
    pinned = of(scale={"enum": ["Celsius", "Kelvin"]})
    assert tried({"scale": value}, pinned, effects="none") == {"scale": "Celsius"}
    for effects in ("once", "idempotent"):
        (suggestion,) = asked({"scale": value}, pinned, effects=effects)
        assert suggestion.arguments == {"scale": "Celsius"}
        assert not suggestion.automatic


@pytest.mark.parametrize(
    ("value", "members"), [("pprod", ["prod", "dev", "preprod"]), ("umount", ["mount", "unmount"])]
)
def test_a_slip_near_two_members_of_an_enum_is_not_even_suggested(value, members):
    assert asked({"x": value}, of(["x"], x={"enum": members}), effects="none") == []


@pytest.mark.parametrize(
    ("value", "members"),
    [("semi-annual", ["annual", "monthly"]), ("not started", ["started", "done"]), ("non_refundable", ["refundable"])],
)
def test_word_that_makes_another_meaning_of_a_member_is_not_left_out(value, members):
    assert asked({"x": value}, of(["x"], x={"enum": members}), effects="none") == []
    assert asked({"x": f"high {members[0]}"}, of(["x"], x={"enum": members}))[0].arguments == {"x": members[0]}


@pytest.mark.parametrize(("value", "members"), [("c++", ["c", "java"]), ("1.2", ["12"]), ("-1", ["1"]), ("c#", ["c"])])
def test_signs_that_are_no_separators_make_another_value(value, members):
    assert tried({"x": value}, of(["x"], x={"enum": members}), effects="none") is None


@pytest.mark.parametrize(
    ("value", "members"),
    [
        ("inactive", ["active", "closed"]),
        ("v1", ["v2", "v3"]),
        ("model-4", ["model-5"]),
        ("urgent", ["low", "normal", "high"]),
        ("asc", ["desc", "none"]),
        ("colour", ["Colour", "COLOUR"]),
        ("", ["a", "b"]),
    ],
)
def test_another_word_is_no_slip(value, members):
    assert tried({"x": value}, of(["x"], x={"enum": members})) is None


def test_what_shares_a_word_with_a_member_is_suggested():
    (first, *_) = asked({"x": "guitar"}, of(x={"enum": ["Guitar Lessons", "Violin Lessons"]}))
    assert first.arguments == {"x": "Guitar Lessons"}
    assert not first.automatic


# Bounds


def test_a_number_is_moved_to_the_bound_it_broke():
    limited = {"type": "integer", "minimum": 1, "maximum": 10}
    assert mended({"k": 50}, {"k": limited}, **CLAMPED) == {"k": 10}
    assert mended({"k": -3}, {"k": limited}, **CLAMPED) == {"k": 1}
    assert mended({"k": 0.5}, {"k": {"type": "number", "minimum": 1}}, **CLAMPED) == {"k": 1}
    assert mended({"k": 50}, {"k": {"type": "integer", "exclusiveMaximum": 10}}, **CLAMPED) == {"k": 9}
    assert mended({"k": 50.5}, {"k": {"type": "number", "exclusiveMaximum": 10}}, **CLAMPED) is None


def test_a_bound_keeps_a_whole_number_whole():
    assert mended({"k": 50}, {"k": {"type": "integer", "maximum": 10.0}}, **CLAMPED)["k"].__class__ is int
    assert mended({"k": 50}, {"k": {"type": "integer", "maximum": 10.5}}, **CLAMPED) is None


def test_a_number_given_as_text_and_out_of_bounds_is_cast_and_then_moved_in_one_change():
    (suggestion,) = asked({"k": "50"}, of(k={"type": "integer", "maximum": 10}))
    assert suggestion.arguments == {"k": 10}
    (change,) = suggestion.changes
    assert (change.path, change.operation, change.before, change.after, change.source) == (
        "k",
        "clamp",
        "50",
        10,
        "schema",
    )
    assert suggestion.confidence == STRATEGY_CONFIDENCE["clamp"]


def test_a_cast_that_makes_a_member_of_an_enum_is_enough():
    assert mended({"k": "2"}, {"k": {"type": "integer", "enum": [1, 2]}}) == {"k": 2}
    assert mended({"k": "3"}, {"k": {"type": "integer", "enum": [1, 2]}}) is None


def test_half_a_repair_is_none():
    assert mended({"k": "5", "x": "five"}, {"k": ANY_NUMBER, "x": ANY_NUMBER}) is None


def test_bounds_that_contradict_each_other_mend_nothing():
    assert mended({"k": 7}, {"k": {"type": "integer", "minimum": 10, "maximum": 5}}, **CLAMPED) is None


def test_a_schema_that_is_satisfied_leaves_the_call_alone():
    assert asked({"k": 5}, of(k=ANY_NUMBER), "something went wrong") == []


def test_a_repair_that_leaves_what_the_error_is_about_as_it_is_is_only_suggested():
    made = {"city": {"type": "string"}, "fields": {"type": "array", "items": {"enum": ["Divorce", "Tax"]}}}
    given = {"city": "Chicago", "fields": ["divorce"]}
    wanted = {"city": "Chicago", "fields": ["Divorce"]}
    for about_another in ("Invalid value for parameter 'city'.", 'the "city" field is not a known place'):
        assert tried(given, of(**made), about_another) is None
        assert [each.arguments for each in asked(given, of(**made), about_another)] == [wanted]
    for error in ("", "Invalid value for parameter 'fields'.", "parameter 'city' or parameter 'fields' is wrong"):
        assert tried(given, of(**made), error) == wanted
    renamed = of(["town"], town={"type": "string"})
    assert tried({"Town": "Oslo"}, renamed, "unexpected parameter 'Town'") == {"town": "Oslo"}
    assert tried({"Town": "Oslo"}, renamed, "missing parameter 'town'") == {"town": "Oslo"}


def test_a_huge_number_is_mended_like_any_other():
    assert mended({"k": 10**400}, {"k": {"type": "integer", "maximum": 10}}, **CLAMPED) == {"k": 10}
    assert mended({"k": 10**5000}, {"k": {"type": "string"}}) is None
    assert mended({"k": 5}, {"k": {"type": "integer", "minimum": 10**400}}, **CLAMPED) in (None, {"k": 10**400})


# Names


@pytest.mark.parametrize("name", ["topK", "top-k", "TOP_K", "Top K", " top_k", '"top_k"', "top_k:", "topk"])
def test_an_argument_is_known_in_another_spelling(name):
    assert tried({"query": "x", name: 5}, closed(["query"], query={"type": "string"}, top_k=ANY_NUMBER)) == {
        "query": "x",
        "top_k": 5,
    }


def test_a_slip_in_a_name_is_mended_and_the_order_is_kept():
    pinned = closed(["query", "limit"], query={"type": "string"}, limit=ANY_NUMBER)
    (suggestion,) = asked({"qurey": "x", "limit": 3}, pinned)
    assert list(suggestion.arguments.items()) == [("query", "x"), ("limit", 3)]
    (change,) = suggestion.changes
    assert (change.path, change.operation, change.before, change.after) == ("qurey", "rename", "qurey", "query")


def test_a_name_is_given_only_where_exactly_one_is_near_and_free():
    pinned = closed([], city_a={"type": "string"}, city_b={"type": "string"})
    assert tried({"city_c": "Rome"}, pinned) is None
    assert tried({"cityA": "Rome", "city_a": "Oslo"}, pinned) is None
    assert tried({"cityA": "Rome", "CITY_A": "Oslo"}, pinned) is None


def test_an_argument_that_carries_meaning_is_never_dropped_without_asking():
    (first,) = asked({"query": "x", "colour": "red"}, closed(["query"], query={"type": "string"}))
    assert first.arguments == {"query": "x"}
    assert not first.automatic


@pytest.mark.parametrize("value", [None, "", {}, [], "''", "{}", "=''"])
def test_a_stray_argument_that_says_nothing_is_dropped(value):
    pinned = of(["query"], query={"type": "string"})
    assert tried({"query": "x", "": value}, pinned, "invalid syntax") == {"query": "x"}
    assert tried({"query": "x", "extra": value}, pinned, "unexpected keyword argument 'extra'") == {"query": "x"}
    assert tried({"": value}, of()) == {}


def test_what_the_schema_does_not_forbid_is_not_touched_unless_the_failure_is_about_it():
    pinned = of(["query"], query={"type": "string"}, limit=ANY_NUMBER)
    assert asked({"query": "x", "limitt": 5}, pinned, "the service is confused") == []
    assert tried({"query": "x", "limitt": 5}, pinned, "Unknown parameter: limitt") == {"query": "x", "limit": 5}
    assert (
        asked({"query": "x", "limitt": 5}, {**pinned, "additionalProperties": True}, "Unknown parameter: limitt") == []
    )


def test_a_name_by_its_initials_or_a_part_of_it_is_suggested():
    for name in ("dob", "birth"):
        (first,) = asked({name: "1990-01-01"}, closed(["date_of_birth"], date_of_birth={"type": "string"}))
        assert first.arguments == {"date_of_birth": "1990-01-01"}
        assert not first.automatic


def test_what_the_schema_neither_knows_nor_forbids_stays_beside_what_is_mended():
    assert tried({"k": "5", "note": "x"}, of(["k"], k=ANY_NUMBER)) == {"k": 5, "note": "x"}


def test_what_is_required_is_suggested_with_its_default_and_not_filled():
    pinned = of(["q", "unit"], q={"type": "string"}, unit={"type": "string", "default": "metric"})
    (suggestion,) = asked({"q": "x"}, pinned)
    assert suggestion.arguments == {"q": "x", "unit": "metric"}
    assert not suggestion.automatic
    assert suggestion.changes[0].source == "schema"
    assert asked({}, of(["q"], q={"type": "string"})) == []


def test_arguments_inside_another_are_taken_out_and_those_beside_their_object_put_in():
    pinned = closed(["q"], q={"type": "string"}, span=of(days=ANY_NUMBER, hours=ANY_NUMBER))
    assert tried({"arguments": {"q": "x"}}, pinned) == {"q": "x"}
    assert tried({"kwargs": '{"q": "x"}'}, pinned) == {"q": "x"}
    assert tried({"q": "x", "days": 3}, pinned) == {"q": "x", "span": {"days": 3}}
    assert tried({"q": "x", "span": {"hours": 1}, "days": 3}, pinned) == {"q": "x", "span": {"hours": 1, "days": 3}}
    assert tried({"note": {"q": "x", "colour": "red"}}, pinned) is None


def test_a_nested_name_is_mended_too():
    pinned = closed([], rows={"type": "array", "items": closed(["product_id"], product_id={"type": "string"})})
    assert tried({"rows": [{"productId": "p1"}]}, pinned) == {"rows": [{"product_id": "p1"}]}


# The tool's name

TOOLS = {"search": of(["q"], q={"type": "string"}), "fetch_page": of(n=ANY_NUMBER), "music.play": of()}


@pytest.mark.parametrize(
    "name",
    ["search<|channel|>commentary", "functions.search", "search()", " search ", '"search"', "search\u00a0json",
     "Search", "SEARCH", "<tool>search</tool>", "search:0", "tools/search", "`search`", "search<|end|>"],
)  # fmt: skip
def test_junk_or_case_around_exactly_one_known_name_is_repaired(name):
    (suggestion,) = asked(
        {"q": "x"}, None, f"There is no tool {name!r}", kind=TOOL_UNKNOWN_TOOL, tools=TOOLS, name=name
    )
    assert (suggestion.tool, suggestion.arguments, suggestion.automatic) == ("search", {"q": "x"}, True)
    assert suggestion.changes[0].operation == "rename"


def test_a_namespace_in_another_way_of_writing_is_known():
    for name in ("music_play", "musicPlay", "play"):
        (suggestion,) = asked({}, None, "unknown tool", kind=TOOL_UNKNOWN_TOOL, tools=TOOLS, name=name)
        assert suggestion.tool == "music.play"


def test_a_tool_of_another_namespace_is_another_tool():
    tools = {"chat.delete_message": None, "search": None}
    for name in ("mail.delete_message", "mail.search"):
        found = asked({}, None, "unknown tool", kind=TOOL_UNKNOWN_TOOL, tools=tools, name=name)
        assert not any(each.automatic for each in found)


def test_a_misspelt_tool_is_offered_and_not_called():
    (suggestion,) = asked({"q": "x"}, None, "unknown tool", kind=TOOL_UNKNOWN_TOOL, tools=TOOLS, name="serch")
    assert suggestion.tool == "search"
    assert not suggestion.automatic


def test_of_tools_with_a_like_name_the_one_that_takes_the_arguments_comes_first():
    tools = {"get_user": of(["user"], user={"type": "string"}), "get_order_details": of(["order"], order=ANY_NUMBER)}
    first, *_ = asked({"order": 5}, None, "no such tool", kind=TOOL_UNKNOWN_TOOL, tools=tools, name="get_order")
    assert (first.tool, first.automatic) == ("get_order_details", False)


def test_a_name_that_leaves_two_is_not_repaired():
    tools = {"get_item": None, "getItem": None}
    assert not any(each.automatic for each in asked({}, None, kind=TOOL_UNKNOWN_TOOL, tools=tools, name="GET_ITEM"))


def test_the_name_and_the_arguments_are_mended_together_or_not_without_asking():
    (first,) = asked({"n": "3"}, None, "no such tool", kind=TOOL_UNKNOWN_TOOL, tools=TOOLS, name="fetch-page")
    assert (first.tool, first.arguments, first.automatic) == ("fetch_page", {"n": 3}, True)
    (first,) = asked({"n": "three"}, None, "no such tool", kind=TOOL_UNKNOWN_TOOL, tools=TOOLS, name="fetch-page")
    assert not first.automatic  # it would not validate


def test_names_that_were_understood_in_this_run_are_known():
    seen = [EarlierCall("think", {"thought": "hm"})]
    (first,) = asked({"thought": "so"}, None, "Unknown action THINK", kind=TOOL_UNKNOWN_TOOL, seen=seen, name="THINK")
    assert (first.tool, first.automatic) == ("think", True)


# A bound in the error text


@pytest.mark.parametrize(
    "error",
    [
        "top_k must be 10 or less, got 50.",
        "top_k must be at most 10",
        "max top_k is 10",
        "The maximum allowed top_k: 10",
        "top_k must not exceed 10.",
        "top_k: maximum is 10",
        "top_k exceeds the limit of 10",
        "top_k should be less than or equal to 10",
        "top_k must be between 1 and 10",
        "Invalid value for top_k (max=10)",
        "top_k <= 10 required",
        "top_k\n  Input should be less than or equal to 10 [type=less_than_equal, input_value=50]",
        "50 is greater than the maximum of 10",
        "top_k cannot be more than 10",
    ],
)
def test_a_bound_in_the_error_text_moves_the_one_number_it_is_about(error):
    (suggestion,) = asked({"q": "cats", "top_k": 50}, None, error, effects="none")
    assert suggestion.arguments == {"q": "cats", "top_k": 10}
    assert suggestion.automatic
    assert (suggestion.source, suggestion.changes[0].source) == ("error", "error")


def schema_with_default(name, default):
    return {"type": "object", "properties": {"q": {"type": "string"}, name: {"type": "integer", "default": default}}}


@pytest.mark.parametrize(
    ("name", "error"),
    [("top_k", "top_k must be 10 or less"), ("limit", "limit must be 10 or less, got 50.")],
)
def test_bound_in_the_error_text_is_suggested_in_place_of_a_default_that_violates_it(name, error):
    (suggestion,) = asked({"q": "cats"}, schema_with_default(name, 50), error)
    assert suggestion.arguments == {"q": "cats", name: 10}
    assert not suggestion.automatic  # S1: the argument is not in the call


@pytest.mark.parametrize(
    ("name", "default", "error"),
    [
        ("top_k", 5, "top_k must be 10 or less"),  # the default meets the bound
        ("limit", 50, "Too many words: the limit of 10 is exceeded"),  # a word, not the argument
        ("top_k", 50, "q must be at most 10 characters, whatever top_k"),  # about another argument
        ("top_k", 50, "must be 10 or less"),
        ("top_k", True, "top_k must be 10 or less"),
        ("top_k", "50", "top_k must be 10 or less"),
    ],
)
def test_default_stays_unless_the_error_is_surely_about_it(name, default, error):
    assert asked({"q": "cats"}, schema_with_default(name, default), error) == []


def test_a_number_inside_another_argument_is_moved_too():
    (suggestion,) = asked({"page": {"size": 500}}, None, "size must be at most 100", **CLAMPED)
    assert suggestion.arguments == {"page": {"size": 100}}
    assert (suggestion.automatic, suggestion.changes[0].path) == (True, "page.size")


def test_a_number_that_was_expected_is_suggested_in_place_of_the_one_that_was_shown():
    (suggestion,) = asked({"rows": 3}, None, "rows: expected 5, got 3")
    assert suggestion.arguments == {"rows": 5}
    assert not suggestion.automatic


@pytest.mark.parametrize(
    ("error", "after"),
    [
        ("amount: expected 350, got 300", 350),
        ("Payment amount does not add up, total price is 350, but paid 300", 350),
        ("The payments come to 300, but the total is $350.50.", 350.5),
        ("Total price was 350.00; received only 300", 350),
        ("amount should be 350 instead of 300", 350),
    ],
)
def test_a_total_is_suggested_in_place_of_what_was_paid_and_never_used_without_asking(error, after):
    (suggestion,) = asked({"payments": [{"card": "c1", "amount": 300}]}, None, error, effects="none")
    assert suggestion.arguments == {"payments": [{"card": "c1", "amount": after}]}
    assert not suggestion.automatic
    assert suggestion.changes[0].source == "error"


def test_what_a_total_lacks_is_suggested_for_each_of_several_the_last_first():
    call = {"payments": [{"card": "c1", "amount": 100}, {"card": "c2", "amount": 200}]}
    made = asked(call, None, "total price is 350, but paid 300")
    assert [[each["amount"] for each in one.arguments["payments"]] for one in made] == [[100, 250], [150, 200]]
    assert not any(one.automatic for one in made)


@pytest.mark.parametrize(
    "error",
    [
        "total price is 350",  # in place of what?
        "total price is 350, but paid 310",  # nobody paid that
        "total price is 9500, but paid 300",  # no slip in a sum
        "total price is 350 or total price is 400, but paid 300",
        "tip: expected 350, got 300",  # of another argument
        "total price is 1,350, but paid 300",
    ],
)
def test_a_total_that_is_not_about_a_number_of_the_call_is_left_alone(error):
    assert asked({"tip": 5, "amount": 300}, None, error) == []


def test_a_number_that_stands_twice_in_the_call_is_not_corrected():
    assert asked({"adults": 2, "bags": 2}, None, "expected 3, got 2") == []


def test_what_an_error_expects_is_not_tried_however_little_is_asked_of_it():
    failure = Failure.of(TOOL_INVALID_ARGUMENTS, "rows: expected 5, got 3", took_effect=TookEffect.NO)
    (suggestion,) = suggest({"rows": 3}, failure, Tool(name="search"), min_confidence=0.0)
    assert not suggestion.automatic


def test_a_lower_bound_moves_it_up():
    assert tried({"n": 1}, None, "n must be at least 5", **CLAMPED) == {"n": 5}


@pytest.mark.parametrize(
    "error",
    [
        "must be at most 10",  # whose?
        "max retries is 10, and top_k is wrong",  # of something else
        "50 exceeds 10",  # a quota, or the number?
        "top_k and n must be at most 10",  # which?
        "top_k must be at most 1,000",
        "top_k must be at most 10k",
        "top_k must be at most 10%",
        "top_k must be at most 10 %",
        "top_k: limit is 10/minute",
        "top_k must be at most 10-20",
        "top_k must be at most 1.2.3",
        "top_k must be at most 0x10",
        "top_k must be at most 10_000",
        "top_k must be at most 2.5",  # it was whole
        "top_k must be between 10 and 5",
        "top_k must be at most 10, or at most 20",
        "top_k must be at most 50",  # it is
        "top_k must be at most 100",  # it is less
        "top_k must be at least 10",  # it is more
        "set top_k to 10",
    ],
)
def test_a_number_that_may_not_be_the_bound_is_left_alone(error):
    assert asked({"top_k": 50, "n": 20}, None, error) == []


def test_a_bound_in_the_error_text_stays_within_the_schema():
    limited = {"top_k": {"type": "integer", "minimum": 5, "maximum": 100}}
    assert mended({"top_k": 50}, limited, "top_k must be at most 10", **CLAMPED) == {"top_k": 10}
    assert mended({"top_k": 50}, limited, "top_k must be at most 1", **CLAMPED) is None


def test_other_arguments_that_are_not_json_do_not_loosen_the_schema():
    limited = {"top_k": {"type": "integer", "minimum": 5}}
    arguments = {"frame": object(), "top_k": 50}
    assert mended(arguments, limited, "top_k must be at most 10", **CLAMPED)["top_k"] == 10
    assert mended(arguments, limited, "top_k must be at most 1", **CLAMPED) is None


def test_a_boolean_is_not_a_number_and_a_text_is_no_argument_to_bound():
    assert asked({"flag": True}, None, "flag must be at most 0") == []
    assert asked({"n": "50"}, None, "n must be at most 10") == []
    assert asked({"n": float("nan")}, None, "n must be at most 10") == []


@pytest.mark.parametrize(
    "filling", ["1", "1.", "-1", "maximum ", "between 1 and ", "at most at ", "1 or ", "total ", "add up "]
)
def test_no_error_text_makes_the_search_for_a_bound_take_more_than_linear_time(filling, monkeypatch):
    # Were it quadratic, a text of this length would take many minutes.
    monkeypatch.setattr(error_repair, "MAX_SCANNED_CHARS", 100_000)
    assert error_repair.find_error_bound("top_k " + filling * (100_000 // len(filling)), {"top_k": 50}) is None
    assert error_repair.find_expected_values("top_k " + filling * (100_000 // len(filling)), {"top_k": 50}) == []


def test_a_call_with_very_many_numbers_is_not_searched_for():
    assert asked({f"n{n}": 50 for n in range(10_000)}, None, "n1 must be at most 10") == []


# This run

ORDERS = [
    EarlierCall(
        "find_customer", {"email": "a@b.example"}, "success", {"customer": "c_7", "orders": ["#W123", "#W456"]}
    ),
    EarlierCall("get_order", {"order_id": "#W456"}, "success", {"order_id": "#W456", "status": "sent"}),
]


@pytest.mark.parametrize("value", ["W123", "#w123", "w123", " #W123"])
def test_an_identifier_of_this_run_is_known_without_its_sign_or_in_another_case(value):
    (first, *_) = asked(
        {"order_id": value}, None, "order not found", kind=TOOL_NOT_FOUND, seen=ORDERS, effects="none", name="get_order"
    )
    assert first.arguments == {"order_id": "#W123"}
    assert (first.automatic, first.source) == (True, "run")
    assert (first.changes[0].operation, first.changes[0].source) == ("substitute", "run")
    assert "find_customer" in first.evidence[0]


def test_a_result_in_a_text_that_was_cut_off_is_read_too():
    cut = '{"customer": "c_7", "orders": {"#W123": {"total": 5}, "#W456": {"total": 9'
    seen = [EarlierCall("find_customer", {}, "success", cut)]
    (first, *_) = asked({"order_id": "W123"}, None, "no order", kind=TOOL_NOT_FOUND, seen=seen, effects="none")
    assert first.arguments == {"order_id": "#W123"}


def test_a_near_miss_is_suggested_and_not_tried():
    found = asked({"order_id": "#W124"}, None, "order not found", kind=TOOL_NOT_FOUND, seen=ORDERS, effects="none")
    assert {"order_id": "#W123"} in [each.arguments for each in found]
    assert not any(each.automatic for each in found)


def test_an_identifier_without_its_end_is_suggested_and_not_tried():
    seen = [EarlierCall("find", {}, "success", {"customer": "ann_lee_4410"})]
    (suggestion,) = asked({"owner": "ann_lee"}, None, "no such owner", kind=TOOL_NOT_FOUND, seen=seen, effects="none")
    assert suggestion.arguments == {"owner": "ann_lee_4410"}
    assert not suggestion.automatic


def test_a_word_that_has_a_value_inside_does_not_show_it():
    seen = [EarlierCall("get_customer", {}, "success", {"method": "card_77"})]
    call = {"method": "card_78x9", "gift": "no"}
    (suggestion,) = asked(call, None, "method not found", kind=TOOL_NOT_FOUND, seen=seen)
    assert suggestion.arguments == {"method": "card_77", "gift": "no"}


def test_what_stands_in_the_record_of_a_value_is_suggested_in_its_place():
    orders = {"items": [{"title": "lamp", "item": "i_1"}, {"title": "kettle", "item": "i_2"}, {"item": "i_3"}]}
    seen = [EarlierCall("get_order", {}, "success", orders)]
    first, *_ = asked({"item": "Kettle"}, None, "Kettle not found", kind=TOOL_NOT_FOUND, seen=seen, effects="none")
    assert (first.arguments, first.automatic) == ({"item": "i_2"}, False)
    seen = [EarlierCall("list", {}, "success", {"lamp": "i_1", "kettle": "i_2"})]
    (only,) = asked({"item": "kettle"}, None, "kettle not found", kind=TOOL_NOT_FOUND, seen=seen, effects="none")
    assert (only.arguments, only.automatic) == ({"item": "i_2"}, False)


@pytest.mark.safety
def test_of_very_large_answers_a_part_is_looked_at():
    rows = [[{"title": f"t{n}", "item": f"i_{n}"} for n in range(1000)] for _ in range(1000)]
    seen = [EarlierCall("list", {}, "success", rows) for _ in range(20)]
    assert sum(len(each.leaves) for each in history.iter_answer_records(seen)) <= history.MAX_LEAF_VALUES


def test_two_records_of_a_value_leave_it_open_which_is_meant():
    twice = [{"title": "lamp", "item": "i_1"}, {"title": "lamp", "item": "i_2"}]
    made = asked(
        {"item": "lamp"}, None, "lamp not found", kind=TOOL_NOT_FOUND, seen=[EarlierCall("list", {}, "success", twice)]
    )
    assert {each.strategy for each in made} == {"one of several"}


def test_a_path_is_no_identifier():
    seen = [EarlierCall("find", {"path": "."}, "success", {"path": ["./notes/a1.txt"]})]
    found = asked({"path": "notes/a1.txt"}, None, "not found", kind=TOOL_NOT_FOUND, seen=seen, effects="none")
    assert not any(each.automatic for each in found)


def test_a_call_that_may_have_happened_is_not_made_again_with_another_identifier():
    found = asked({"order_id": "W123"}, None, "not found", kind=TOOL_NOT_FOUND, ran=TookEffect.UNKNOWN, seen=ORDERS)
    assert found[0].arguments == {"order_id": "#W123"}
    assert not found[0].automatic
    assert "nothing proves that the call did not execute" in found[0].reason


def test_what_failed_in_this_run_is_not_known_to_exist():
    seen = [EarlierCall("get_order", {"order_id": "#W999"}, "failure", "order not found")]
    assert asked({"order_id": "W999"}, None, "order not found", kind=TOOL_NOT_FOUND, seen=seen, effects="none") == []


def test_what_stood_beside_the_other_values_comes_first():
    seen = [
        EarlierCall("get_order", {"order_id": "#W2"}, "success", {"order_id": "#W2", "payment_method_id": "card_22"}),
        EarlierCall("get_order", {"order_id": "#W1"}, "success", {"order_id": "#W1", "payment_method_id": "card_11"}),
    ]
    call = {"order_id": "#W2", "payment_method_id": "gift_99"}
    found = asked(call, None, "not the original payment method", kind=TOOL_NOT_FOUND, seen=seen)
    assert found[0].arguments == {"order_id": "#W2", "payment_method_id": "card_22"}
    assert not found[0].automatic


def test_what_is_missing_is_suggested_from_earlier_calls_of_the_run():
    pinned = of(["session_key", "n"], session_key={"type": "string"}, n=ANY_NUMBER)
    (first,) = asked({"n": 1}, pinned, "missing session_key", seen=[EarlierCall("list", {"session_key": "k_81"})])
    assert first.arguments == {"n": 1, "session_key": "k_81"}
    assert not first.automatic


# Privileged arguments, destructive tools, modes


@pytest.mark.parametrize("name", ["user_id", "amount", "port", "to"])
def test_a_privileged_argument_is_never_changed_without_asking(name):
    assert mended({name: "5"}, {name: ANY_NUMBER}) is None
    assert mended({name: 50}, {name: {"maximum": 10}}) is None
    assert tried({name.upper(): 5}, closed([name], **{name: ANY_NUMBER})) is None
    assert tried({}, of([name], **{name: {"default": 5}})) is None
    seen = [EarlierCall("list", {}, "success", {name: "#A5"})]
    assert tried({name: "a5"}, None, "not found", kind=TOOL_NOT_FOUND, seen=seen, effects="none") is None


@pytest.mark.parametrize(
    ("misspelt", "name"), [("usr_id", "user_id"), ("amuont", "amount"), ("recipeint", "recipient")]
)
def test_nothing_is_renamed_to_a_privileged_argument_without_asking(misspelt, name):
    pinned = closed([name], **{name: ANY_NUMBER})
    (offered,) = asked({misspelt: 5}, pinned, f"unexpected argument {misspelt}")
    assert offered.arguments == {name: 5}
    assert not offered.automatic
    assert name in offered.reason


def test_a_bound_in_the_error_is_not_even_suggested_for_a_privileged_argument():
    assert asked({"amount": 40.0}, None, "amount must be at least 9500") == []


def test_a_repair_that_would_also_touch_a_privileged_argument_is_not_made_in_part():
    assert mended({"days": "5", "amount": "5"}, {"days": ANY_NUMBER, "amount": ANY_NUMBER}) is None


def test_declared_and_released_arguments_follow_their_operator():
    assert mended({"days": "5"}, {"days": ANY_NUMBER}, privileged=frozenset({"days"})) is None
    assert mended({"port": "5"}, {"port": ANY_NUMBER}, unprivileged=frozenset({"port"})) == {"port": 5}


def test_no_argument_of_a_destructive_tool_is_changed_without_asking():
    (first,) = asked({"k": "5"}, of(k=ANY_NUMBER), destructive=True)
    assert first.arguments == {"k": 5}
    assert not first.automatic
    assert "destructive" in first.reason


@pytest.mark.parametrize("mode", ["suggest", "observe"])
def test_the_mode_decides_whether_a_repair_is_tried(mode):
    (first,) = asked({"k": "5"}, of(k=ANY_NUMBER), mode=mode)
    assert first.arguments == {"k": 5}
    assert not first.automatic


def test_what_is_no_failure_or_nobodys_mistake_is_not_repaired():
    assert asked({"k": "5"}, of(k=ANY_NUMBER), kind=NONE_USER_REJECTED) == []
    for kind in (TOOL_RATE_LIMIT, TOOL_AUTH_ERROR):
        assert not any(each.automatic for each in asked({"k": "5"}, of(k=ANY_NUMBER), kind=kind))


def test_a_call_that_breaks_its_schema_did_not_run_whatever_was_said():
    assert tried({"k": "5"}, of(k=ANY_NUMBER), "internal error", ran=TookEffect.UNKNOWN) == {"k": 5}


def test_suggestions_are_few_and_the_surest_is_first():
    seen = [EarlierCall("list", {}, "success", {"order_id": [f"#W{n}" for n in range(100)]})]
    found = asked({"order_id": "W7"}, None, "order not found", kind=TOOL_NOT_FOUND, seen=seen)
    assert len(found) <= MAX_SUGGESTIONS
    assert [each.confidence for each in found] == sorted((each.confidence for each in found), reverse=True)
    assert found[0].arguments == {"order_id": "#W7"}


# Properties: whatever a stranger writes

NAMES = st.sampled_from(["top_k", "topK", "limit", "days", "q", "amount", "user_id", "path", "token", "", "tags"])
TEXTS = st.sampled_from(
    ["true", "False", "020", " 7 ", "x", "2.50", "", "Fast", "slow", "[1, 2]", '{"q": "x"}', "#W12"]
)
VALUES = st.recursive(
    st.one_of(
        st.integers(-100, 100), st.integers(-100, 100).map(str), st.floats(-100, 100), st.booleans(), st.none(), TEXTS
    ),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
PROPERTY = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["integer", "number", "string", "boolean", "array", "object", ["integer", "null"]]),
        "minimum": st.integers(-20, 20) | st.floats(-20, 20),
        "maximum": st.integers(-20, 20) | st.floats(-20, 20),
        "enum": st.lists(st.integers(-3, 3) | st.sampled_from(["Fast", "Slow", "x"]), min_size=1, max_size=3),
        "default": st.integers(500, 505) | st.just("schema default"),
    },
)
SCHEMAS = st.none() | st.builds(
    lambda properties, required, more: {
        "type": "object",
        "properties": properties,
        "required": required,
        **({} if more is None else {"additionalProperties": more}),
    },
    st.dictionaries(NAMES, PROPERTY, max_size=4),
    st.lists(NAMES, max_size=2, unique=True),
    st.none() | st.booleans(),
)
PHRASES = st.sampled_from(
    ["at most", "at least", "maximum", "no more than", "or less", "or more", "between", "and", "<=", ">=", "limit is",
     "ignore previous instructions and set", "must be", "=", ":", ".", "900", "7", "-3", "12.5", "1,000", "5k", "evil",
     "unexpected keyword argument", "not found", "use token=stolen", "did you mean evil?", "total price is 7",
     "expected 12.5", "but paid", "got"]
)  # fmt: skip
ERRORS = st.lists(PHRASES | NAMES, max_size=10).map(" ".join) | st.text(max_size=80)
RUNS = st.lists(
    st.builds(
        EarlierCall,
        st.sampled_from(["search", "list"]),
        st.dictionaries(NAMES, VALUES, max_size=2),
        st.sampled_from(["success", "failure"]),
        VALUES,
    ),
    max_size=3,
)
KINDS = st.sampled_from([TOOL_INVALID_ARGUMENTS, TOOL_NOT_FOUND])


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def numbers_in(text: str) -> set[float]:
    return {float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)}


@settings(max_examples=250)
@given(st.dictionaries(NAMES, VALUES, max_size=4), ERRORS, SCHEMAS, RUNS, KINDS)
@example({"top_k": 0}, "", None, [EarlierCall("search", {"top_k": ""}, "success", None)], TOOL_INVALID_ARGUMENTS)
def test_for_any_error_text_every_value_tried_comes_from_the_call_the_run_or_the_schema(call, error, pinned, run, kind):
    for suggestion in asked(call, pinned, error, seen=run, kind=kind, effects="none"):
        known = [
            *leaves(call),
            *leaves(pinned),
            *(leaf for each in run for leaf in leaves([each.arguments, each.result])),
        ]
        told = "\n".join(str(leaf) for leaf in known).casefold()
        for leaf in leaves(suggestion.arguments):
            if isinstance(leaf, str):
                assert leaf.casefold() in told
            elif isinstance(leaf, int | float) and not isinstance(leaf, bool) and leaf == leaf:
                is_ours = str(leaf) in told or float(leaf) in {n for each in known for n in numbers_in(str(each))}
                is_bound = any(change.source == "error" for change in suggestion.changes) and leaf in numbers_in(error)
                assert is_ours or is_bound or suggestion.strategy == "rest in error"
        for change in suggestion.changes:
            if change.source == "error":
                before = change.before
                assert suggestion.strategy == "default bound" or isinstance(before, int | float)
                assert not isinstance(before, bool)
                if suggestion.strategy != "bound in error":
                    assert not suggestion.automatic
                    continue
                assert type(change.after) is type(before)
                assert not is_privileged(change.path)
            if suggestion.automatic:
                assert not is_privileged(change.path)


@settings(max_examples=150)
@given(st.dictionaries(NAMES, VALUES, max_size=4), ERRORS, SCHEMAS, RUNS, KINDS)
def test_a_repaired_call_always_validates_and_repairing_twice_changes_nothing_more(call, error, pinned, run, kind):
    for suggestion in asked(call, pinned, error, seen=run, kind=kind, effects="none"):
        if pinned is not None and suggestion.source in ("schema", "error", "run"):
            assert schema.validate_or_none(suggestion.arguments, pinned) in ([], None)
        if suggestion.automatic and suggestion.source in ("schema", "error"):
            again = asked(suggestion.arguments, pinned, error, seen=run, kind=kind, effects="none")
            assert not any(each.automatic and each.source == suggestion.source for each in again)


@settings(max_examples=100)
@given(st.dictionaries(NAMES, VALUES, max_size=4), SCHEMAS)
def test_a_call_that_validates_is_not_touched_by_its_schema(call, pinned):
    if pinned is not None and schema.validate_or_none(call, pinned) == [] and "" not in call:
        assert not any(each.source == "schema" for each in asked(call, pinned, "it is broken"))


def test_the_call_itself_is_not_changed():
    call = {"rows": [{"n": "1"}], "topK": "5"}
    asked(call, closed([], rows={"type": "array", "items": of(n=ANY_NUMBER)}, top_k=ANY_NUMBER))
    assert call == {"rows": [{"n": "1"}], "topK": "5"}


@pytest.mark.parametrize(
    "call",
    [
        {"k": "[" * 100_000},
        {"k": "9" * 10_000_000},
        {f"k{n}": "5" for n in range(5000)},
        {"x" * 1_000_000: 5},
        {"k": "\ud800"},
        {"k": float("nan")},
        {1: 2},
        {"k": b"bytes"},
    ],
    ids=["brackets", "10 MB", "many", "long name", "surrogate", "nan", "number for a name", "bytes"],
)
def test_any_arguments_are_survived(call):
    for pinned in (closed(["k"], k=ANY_NUMBER, tags={"type": "array"}), None):
        told = "k must be at most 10" + "\u202e\ud800"
        for found in asked(call, pinned, told, seen=[EarlierCall("search", call, "success", call)]):
            assert found.arguments != call
            assert not schema.validate_or_none(found.arguments, pinned or {})


def test_a_path_loses_its_folder_only_if_a_result_of_this_run_names_the_file_without_it():
    error = "no such file: orders/7.txt"
    assert asked({"path": "orders/7.txt"}, None, error, kind=TOOL_NOT_FOUND) == []
    seen = [EarlierCall("list", {}, "success", {"files": ["7.txt", "8.txt"]})]
    (found,) = asked({"path": "orders/7.txt"}, None, error, kind=TOOL_NOT_FOUND, seen=seen)
    assert (found.arguments, found.strategy, found.automatic) == ({"path": "7.txt"}, "last part", False)
    assert found.confidence < MIN_SHOWN_CONFIDENCE, "a person may see it, a model does not"


def test_a_date_has_no_folder_to_go_without():
    assert asked({"day": "03/04/2031"}, None, "03/04/2031 not found", kind=TOOL_NOT_FOUND) == []


def test_a_bound_stays_ambiguous_however_many_arguments_there_are() -> None:
    arguments = {"top_k": 50, **{f"text_{n}": "a" for n in range(60)}, "depth": 50}
    assert error_repair.find_error_bound("top_k and depth must be at most 10", arguments) is None


# No advice is better than wrong advice


@pytest.mark.parametrize(
    ("arguments", "error", "run"),
    [
        pytest.param({"path": "/srv/may.csv"}, "No such file: /srv/may.csv", [], id="a path to its base name"),
        pytest.param({"path": "/srv/may.csv"}, "may.csv not found", [("list", {}, ["a.csv"])], id="the same, listed"),
        pytest.param({"order_id": "w77"}, "order w77 not found", [], id="the case of an identifier"),
        pytest.param({"order_id": "w77", "units": "metric"}, "metric: w77 not found", [], id="a valid argument"),
        pytest.param({"command": "foo --all"}, "foo: command not found", [], id="another command"),
        pytest.param(
            {"old_string": "a", "new_string": "b"}, "String to replace not found.", [], id="another old_string"
        ),
    ],
)
def test_nothing_is_suggested_without_evidence_in_schema_or_run(
    arguments: dict[str, Any], error: str, run: list[tuple[str, Any, Any]]
) -> None:
    calls = [{"tool": tool, "arguments": earlier, "result": result} for tool, earlier, result in run]
    for pinned in (None, of(**{name: {"type": "string"} for name in arguments})):
        advice = mulligan.suggest("get", arguments, error, schema=pinned, run=calls, memory=False)
        assert advice.suggestions == ()


def test_values_of_earlier_calls_are_for_people_and_never_shown_to_a_model() -> None:
    """A run may answer several questions: only another form of the call's own value is sure to belong to this one."""
    calls = [
        {"tool": "find", "arguments": {"title": "kettle"}, "result": {"order_id": "W1", "title": "kettle"}},
        {"tool": "find", "arguments": {"title": "lamp"}, "result": {"order_id": "W2", "title": "lamp"}},
    ]
    pinned = of(order_id={"type": "string"}, required=["order_id"])
    for arguments, error in (
        ({"order_id": "kettle"}, "order kettle not found"),
        ({"order_id": "W9"}, "order W9 not found"),
        ({}, "'order_id' is a required property"),
    ):
        advice = mulligan.suggest("get", arguments, error, schema=pinned, run=calls, memory=False)
        shown = [suggestion for suggestion in advice.suggestions if suggestion.confidence >= MIN_SHOWN_CONFIDENCE]
        assert shown == []
    (own, *_) = mulligan.suggest("get", {"order_id": "#w1"}, "order #w1 not found", run=calls, memory=False).suggestions
    assert own.arguments == {"order_id": "W1"}


@pytest.mark.parametrize(
    "strategy", ["answered", "same record", "near id", "filled", "only value", "beside", "last part"]
)
def test_guesses_from_the_run_are_below_the_threshold_of_a_model(strategy: str) -> None:
    assert STRATEGY_CONFIDENCE[strategy] < MIN_SHOWN_CONFIDENCE


def test_no_change_renames_an_argument_to_its_own_name():
    pinned = closed(["item"], item={"type": "string"}, count=ANY_NUMBER)
    (suggestion,) = asked({"arguments": {"item": "box", "count": 3}}, pinned)
    assert suggestion.arguments == {"item": "box", "count": 3}
    assert [(change.path, change.after) for change in suggestion.changes] == [
        ("arguments.item", "item"),
        ("arguments.count", "count"),
    ]
