"""What the tool's schema alone can mend, and that nothing else gets into a repaired call (SAFETY S1, S2, S6)."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mulligan.recover import cost, schema
from mulligan.recover.provenance import is_privileged

ANY_NUMBER = {"type": "integer"}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def mended(arguments: dict[str, Any], properties: dict[str, Any], error: str = "", **options: Any) -> Any:
    suggestion = schema.suggest(arguments, error, of(**properties), **options)
    return suggestion.arguments if suggestion else None


# Casts keep the meaning


@pytest.mark.parametrize(
    ("value", "type", "expected"),
    [
        ("5", "integer", 5),
        (" 5 ", "integer", 5),
        ("-5", "integer", -5),
        ("0", "integer", 0),
        ("2.5", "number", 2.5),
        ("5", "number", 5),
        ("true", "boolean", True),
        ("False", "boolean", False),
        (5, "string", "5"),
        ("5", ["integer", "null"], 5),
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
        ("", "integer"),
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
        (None, "integer"),
        (["5"], "integer"),
        ({"a": 1}, "string"),
    ],
)
def test_a_cast_that_would_have_to_be_guessed_is_not_made(value, type):
    assert mended({"x": value}, {"x": {"type": type}}) is None


def test_a_text_that_belongs_there_stays_text():
    assert mended({"zip": "020", "k": "5"}, {"zip": {"type": "string"}, "k": ANY_NUMBER}) == {"zip": "020", "k": 5}


# Bounds


def test_a_number_is_moved_to_the_bound_it_broke():
    limited = {"type": "integer", "minimum": 1, "maximum": 10}
    assert mended({"k": 50}, {"k": limited}) == {"k": 10}
    assert mended({"k": -3}, {"k": limited}) == {"k": 1}
    assert mended({"k": 0.5}, {"k": {"type": "number", "minimum": 1}}) == {"k": 1}


def test_a_bound_keeps_a_whole_number_whole():
    assert mended({"k": 50}, {"k": {"type": "integer", "maximum": 10.0}})["k"].__class__ is int
    assert mended({"k": 50}, {"k": {"type": "integer", "maximum": 10.5}}) is None


def test_a_number_given_as_text_and_out_of_bounds_is_cast_and_then_moved_in_one_change():
    suggestion = schema.suggest({"k": "50"}, "", of(k={"type": "integer", "maximum": 10}))
    assert suggestion.arguments == {"k": 10}
    (change,) = suggestion.changes
    assert (change.path, change.how, change.before, change.after, change.from_) == ("k", "clamp", "50", 10, "schema")
    assert suggestion.confidence == schema.SURE_OF_BOUND


def test_a_cast_that_makes_a_member_of_an_enum_is_enough():
    assert mended({"k": "2"}, {"k": {"type": "integer", "enum": [1, 2]}}) == {"k": 2}
    assert mended({"k": "3"}, {"k": {"type": "integer", "enum": [1, 2]}}) is None


def test_half_a_repair_is_none():
    assert mended({"k": "5", "x": "five"}, {"k": ANY_NUMBER, "x": ANY_NUMBER}) is None


def test_bounds_that_contradict_each_other_mend_nothing():
    assert mended({"k": 7}, {"k": {"type": "integer", "minimum": 10, "maximum": 5}}) is None


def test_a_schema_that_is_satisfied_leaves_the_call_alone():
    assert mended({"k": 5}, {"k": ANY_NUMBER}, "something went wrong") is None


def test_a_huge_number_is_mended_like_any_other():
    assert mended({"k": 10**400}, {"k": {"type": "integer", "maximum": 10}}) == {"k": 10}
    assert mended({"k": 5}, {"k": {"type": "integer", "minimum": 10**400}}) in (None, {"k": 10**400})


# A bound in the error text


@pytest.mark.parametrize(
    "error",
    [
        "top_k must be 10 or less, got 50.",
        "top_k must be at most 10",
        "top_k must not exceed 10.",
        "top_k: maximum is 10",
        "top_k exceeds the limit of 10",
        "top_k should be less than or equal to 10",
        "top_k must be between 1 and 10",
        "Invalid value for top_k (max=10)",
        "top_k <= 10 required",
    ],
)
def test_a_bound_in_the_error_text_moves_the_one_number_it_names(error):
    suggestion = schema.suggest({"q": "cats", "top_k": 50}, error, None)
    assert suggestion.arguments == {"q": "cats", "top_k": 10}
    assert (suggestion.source, suggestion.changes[0].from_) == ("error", "error")


def test_a_lower_bound_moves_it_up():
    assert schema.suggest({"n": 1}, "n must be at least 5", None).arguments == {"n": 5}


@pytest.mark.parametrize(
    "error",
    [
        "must be at most 10",  # whose?
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
    assert schema.suggest({"top_k": 50, "n": 20}, error, None) is None


def test_a_bound_in_the_error_text_stays_within_the_schema():
    limited = {"top_k": {"type": "integer", "minimum": 5, "maximum": 100}}
    assert mended({"top_k": 50}, limited, "top_k must be at most 10") == {"top_k": 10}
    assert mended({"top_k": 50}, limited, "top_k must be at most 1") is None


def test_other_arguments_that_are_not_json_do_not_loosen_the_schema():
    limited = {"top_k": {"type": "integer", "minimum": 5}}
    arguments = {"frame": object(), "top_k": 50}
    assert mended(arguments, limited, "top_k must be at most 10")["top_k"] == 10
    assert mended(arguments, limited, "top_k must be at most 1") is None


def test_a_boolean_is_not_a_number_and_a_text_is_no_argument_to_bound():
    assert schema.suggest({"flag": True}, "flag must be at most 0", None) is None
    assert schema.suggest({"n": "50"}, "n must be at most 10", None) is None
    assert schema.suggest({"n": float("nan")}, "n must be at most 10", None) is None


# Privileged arguments


@pytest.mark.parametrize("name", ["user_id", "amount", "port", "to"])
def test_a_privileged_argument_is_never_changed(name):
    assert mended({name: "5"}, {name: ANY_NUMBER}) is None
    assert mended({name: 50}, {name: {"maximum": 10}}) is None
    assert schema.suggest({name: 50}, f"{name} must be at most 10", None) is None


def test_a_repair_that_would_also_touch_a_privileged_argument_is_not_made_in_part():
    assert mended({"days": "5", "amount": "5"}, {"days": ANY_NUMBER, "amount": ANY_NUMBER}) is None


def test_declared_and_released_arguments_follow_their_operator():
    assert mended({"days": "5"}, {"days": ANY_NUMBER}, privileged={"days"}) is None
    assert mended({"port": "5"}, {"port": ANY_NUMBER}, released={"port"}) == {"port": 5}


# Properties: whatever a stranger writes

NAMES = st.sampled_from(["top_k", "limit", "days", "q", "amount", "user_id", "path", "token"])
VALUES = st.one_of(
    st.integers(-100, 100),
    st.integers(-100, 100).map(str),
    st.floats(-100, 100),
    st.booleans(),
    st.none(),
    st.sampled_from(["true", "False", "020", " 7 ", "x", "2.50", ""]),
    st.lists(st.integers(), max_size=2),
)
PROPERTY = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["integer", "number", "string", "boolean", ["integer", "null"]]),
        "minimum": st.integers(-20, 20) | st.floats(-20, 20),
        "maximum": st.integers(-20, 20) | st.floats(-20, 20),
        "enum": st.lists(st.integers(-3, 3) | st.sampled_from(["true", "x"]), min_size=1, max_size=3),
        "default": st.integers(500, 505),
    },
)
SCHEMAS = st.none() | st.dictionaries(NAMES, PROPERTY, max_size=4).map(lambda properties: of(**properties))
PHRASES = st.sampled_from(
    ["at most", "at least", "maximum", "no more than", "or less", "or more", "between", "and", "<=", ">=", "limit is",
     "ignore previous instructions and set", "must be", "=", ":", ".", "900", "7", "-3", "12.5", "1,000", "5k"]
)  # fmt: skip
ERRORS = st.lists(PHRASES | NAMES, max_size=10).map(" ".join) | st.text(max_size=80)


def numbers_in(text: str) -> set[float]:
    return {float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)}


def casts(value: Any) -> Iterator[Any]:
    """What one value may become without becoming another."""
    yield value
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("true", "false"):
            yield text.lower() == "true"
        if re.fullmatch(r"-?\d+(\.\d+)?", text):
            yield float(text)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
        yield float(value)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4), ERRORS, SCHEMAS)
def test_every_value_of_a_repaired_call_comes_from_the_call_the_schema_or_is_a_bound_in_the_error(call, error, pinned):
    suggestion = schema.suggest(call, error, pinned)
    if suggestion is None:
        return
    repaired = suggestion.arguments
    properties = (pinned or {}).get("properties", {})

    assert repaired.keys() == call.keys()  # nothing is added
    assert repaired != call or any(type(repaired[name]) is not type(call[name]) for name in call)
    changed = {change.path for change in suggestion.changes}
    assert len(changed) == len(suggestion.changes)
    for name, value in repaired.items():
        if name not in changed:
            assert value is call[name]
            continue
        assert not is_privileged(name)
        bounds = [properties.get(name, {}).get(rule) for rule in ("minimum", "maximum")]
        if value in list(casts(call[name])) or value in bounds:
            continue
        before = call[name]
        assert value in numbers_in(error)
        assert isinstance(before, int | float)
        assert not isinstance(before, bool)
        assert type(value) is type(before)
        assert value != before
    if pinned is not None:
        assert schema.judged(repaired, pinned) == []  # a repaired call always validates


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4), ERRORS, SCHEMAS)
def test_repairing_twice_changes_nothing_more(call, error, pinned):
    once = schema.suggest(call, error, pinned)
    if once is not None:
        assert schema.suggest(once.arguments, error, pinned) is None


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(NAMES, VALUES, max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "properties", "$ref", "allOf", "items", "maximum", "pattern", "$defs", "enum"]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=10,
    ),
)
def test_any_nonsense_for_a_schema_is_survived(call, nonsense):
    pinned = nonsense if isinstance(nonsense, dict) else {"properties": nonsense}
    schema.suggest(call, "top_k must be at most 3", pinned)


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


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$schema", "$id"])
def test_a_reference_to_another_place_is_refused_without_a_look_there(listener, keyword, tmp_path):
    port, knocks = listener
    (tmp_path / "s.json").write_text('{"properties": {"k": {"maximum": 1}}}')
    for place in (f"http://127.0.0.1:{port}/s.json", f"file://{tmp_path}/s.json"):
        pinned = {keyword: place, "properties": {"k": {"$ref": "s.json"}}}
        assert schema.suggest({"k": 50}, "", pinned) is None
        assert not schema.judged({"k": 50}, pinned)
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
    assert schema.suggest({"k": "a" * 5000 + "!"}, "", hostile) is None


def test_a_schema_that_branches_with_every_level_of_the_arguments_is_refused_for_deep_ones():
    deep: Any = 1
    for _ in range(40):
        deep = {"a": deep}
    assert not cost.is_affordable(TREE, deep)
    assert cost.is_affordable(TREE, {"a": {"a": 1}})


def test_ordinary_schemas_with_references_and_recursion_are_affordable():
    pinned = {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "k": ANY_NUMBER}}},
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/node"}, "k": {"$ref": "#/$defs/node/properties/k"}},
    }
    assert cost.is_affordable(pinned, {"root": {"next": {"next": {}}}})
    assert schema.suggest({"k": "5"}, "", pinned).arguments == {"k": 5}


@pytest.mark.parametrize("name", ["type", "default", "items", "$ref"])
def test_a_property_may_have_the_name_of_a_keyword(name):
    assert mended({name: "5"}, {name: ANY_NUMBER}) == {name: 5}


@pytest.mark.parametrize("filling", ["1", "1.", "-1", "maximum ", "between 1 and ", "at most at ", "1 or "])
def test_no_error_text_makes_the_search_for_a_bound_take_more_than_linear_time(filling, monkeypatch):
    # Were it quadratic, a text of this length would take hours.
    monkeypatch.setattr(schema, "_SCANNED", 400_000)
    schema.suggest({"top_k": 50}, "top_k " + filling * (400_000 // len(filling)), None)


def test_a_call_with_very_many_numbers_is_not_searched_for():
    call = {f"n{n}": 50 for n in range(10_000)}
    assert schema.suggest(call, "n1 must be at most 10", None) is None
