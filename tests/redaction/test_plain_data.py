"""Any value as plain data."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
import socket
import types
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.redaction import to_plain_data


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int
    y: int = 2


@dataclasses.dataclass
class Order:
    id: int
    lines: list[str]


@dataclasses.dataclass(slots=True)
class Slim:
    id: int


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("value", "copy"),
    [
        ({"a": [1, 2.5, True, None, "x"]}, {"a": [1, 2.5, True, None, "x"]}),
        ((1, (2,)), [1, [2]]),
        ({"b", "a"}, ["a", "b"]),
        ({1: "a", None: "b", False: "c"}, {"1": "a", "null": "b", "false": "c"}),
        (float("inf"), {"$type": "float", "value": "inf"}),
        (b"abc", {"$type": "bytes", "length": 3}),
        (datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC), "2024-05-01T12:00:00+00:00"),
        (datetime.date(2024, 5, 1), "2024-05-01"),
        (decimal.Decimal("1.20"), "1.20"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("/srv/x"), "/srv/x"),
        (Colour.RED, "red"),
        (Order(1, ["a"]), {"id": 1, "lines": ["a"]}),
        (Slim(1), {"id": 1}),
        (Point(1), {"x": 1, "y": 2}),
        (Pair(1, 2), {"left": 1, "right": 2}),
        (collections.deque([1, 2]), [1, 2]),
        (ValueError("no", 3), {"$type": "ValueError", "args": ["no", 3]}),
        (2**63, str(2**63)),
        (2**5000, {"$type": "int", "bits": 5001}),
        (range(3), [0, 1, 2]),
        (print, {"$type": "builtin_function_or_method"}),
        ("\ud800", "\\ud800"),
    ],
)  # fmt: skip
def test_a_value_becomes_plain(value, copy):
    assert to_plain_data(value) == copy


def test_two_keys_that_read_the_same_both_stay():
    assert to_plain_data({1: "a", "1": "b"}) == {"1": "a", "1'": "b"}


def test_a_model_of_pydantic_is_read_without_being_called():
    class Model:
        model_fields = types.MappingProxyType({})
        __pydantic_fields__ = {"city": None}  # noqa: RUF012

        def __init__(self) -> None:
            self.city = "Bern"
            self.cache = object()

        def model_dump(self) -> dict[str, str]:
            raise AssertionError("called")

    assert to_plain_data(Model()) == {"city": "Bern"}


def test_whatever_else_can_dump_itself_is_asked():
    class Model:
        def model_dump(self) -> dict[str, str]:
            return {"city": "Bern"}

    assert to_plain_data(Model()) == {"city": "Bern"}


def test_an_array_is_its_shape_and_a_scalar_its_number():
    array = type("ndarray", (), {"__module__": "numpy", "shape": (3, 4), "dtype": "float64"})
    scalar = type("float64", (), {"__module__": "numpy", "shape": (), "item": lambda self: 2.5})

    assert to_plain_data(array()) == {"$type": "ndarray", "shape": [3, 4], "dtype": "float64"}
    assert to_plain_data(scalar()) == 2.5


def test_nothing_of_a_foreign_object_is_called():
    class Mine:
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

        def __repr__(self) -> str:
            raise AssertionError("repr")

        def __iter__(self) -> object:
            raise AssertionError("iter")

        def __len__(self) -> int:
            raise AssertionError("len")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("eq")

        __hash__ = object.__hash__

    class Text(str):
        def __str__(self) -> str:
            raise AssertionError("str")

    class Named(dict):  # type: ignore[type-arg]
        def items(self) -> object:  # type: ignore[override]
            raise AssertionError("items")

    assert to_plain_data([Mine(), {Mine(): 1}, Text("x"), Named(a=1)]) == [
        {"$type": "Mine"},
        {"$Mine": 1},
        "x",
        {"a": 1},
    ]


def test_generators_files_and_sockets_are_named_and_left_alone(tmp_path):
    numbers = iter([1, 2])
    with (tmp_path / "x").open("w") as file, socket.socket() as connection:
        assert to_plain_data([numbers, file, connection]) == [
            {"$type": "list_iterator"}, {"$type": "TextIOWrapper"}, {"$type": "socket"},
        ]  # fmt: skip
    assert next(numbers) == 1


def test_a_cycle_is_said_to_be_one():
    value: list[object] = [1]
    value.append(value)

    assert to_plain_data(value) == [1, {"$type": "list", "$cut": "a cycle"}]


def test_the_same_value_twice_is_no_cycle():
    inner = [1]

    assert to_plain_data([inner, inner]) == [[1], [1]]


def test_what_is_cut_is_said():
    deep: object = "x"
    for _ in range(10_000):
        deep = [deep]

    assert "too deep" in str(to_plain_data(deep))
    assert to_plain_data(list(range(5000)))[-1] == "[4000 more items cut]"
    assert to_plain_data(dict.fromkeys(range(5000)))["$cut"] == "4000 more items"
    assert "characters cut" in to_plain_data("word " * 2_000_000)
    assert len(to_plain_data("word " * 2_000_000)) <= 10_240


def test_the_whole_is_bounded_however_it_is_nested():
    value: object = "leaf " * 1000
    for _ in range(6):
        value = [value] * 50

    assert len(msgspec.json.encode(to_plain_data(value))) < 2_000_000


ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.dates(), st.decimals(),
        st.uuids(),
        st.complex_numbers(), st.timedeltas(), st.just(object()), st.just(Colour.RED), st.builds(Point, st.integers()),
        st.characters(categories=["Cs"]), st.builds(ValueError, st.text()),
    ),
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner, inner), st.builds(Order, inner, inner),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.none(), st.characters(categories=["Cs"])), inner),
    ),
)  # fmt: skip


@given(ANYTHING)
def test_any_value_can_be_encoded(value):
    copy = to_plain_data(value)

    assert msgspec.json.decode(msgspec.json.encode(copy)) == copy
