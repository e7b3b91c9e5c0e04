"""A function's parameters, as a dictionary and as a JSON schema."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.capture.signature import Signature, annotation_to_schema


class Bound:
    def __init__(self, **bounds: float) -> None:
        self.__dict__.update(bounds)


class Field:
    """As pydantic has it: the bounds are in a list."""

    def __init__(self, *metadata: Any) -> None:
        self.metadata = list(metadata)


class Colour(enum.Enum):
    RED = 1


class Odd(enum.Enum):
    """Its members are nothing that JSON can hold."""

    ONE = object()


UserId = NewType("UserId", int)


@dataclasses.dataclass
class Point:
    x: int
    label: str = ""


class Filters(TypedDict):
    city: str
    days: NotRequired[int]


class Modelled:
    """As pydantic says it, which need not be installed."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        inner = {"type": "object", "properties": {"a": {"type": "integer", "title": "A"}}, "title": "Inner"}
        return {"type": "object", "properties": {"inner": {"$ref": "#/$defs/Inner"}}, "$defs": {"Inner": inner}}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (list, {"type": "array"}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (dict, {"type": "object"}),
        (dict[str, Any], {"type": "object"}),
        (Mapping[str, str], {"type": "object", "additionalProperties": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (tuple[int, str], {"type": "array"}),
        (set[str], {"type": "array", "items": {"type": "string"}}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (UserId, {"type": "integer"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (decimal.Decimal, {"type": ["string", "number"]}),
        (pathlib.Path, {"type": "string"}),
        (
            Point,
            {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        ),
        (
            Filters,
            {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        ),
        (
            Modelled,
            {"type": "object", "properties": {"inner": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
        ),
        (Annotated[str, Bound(min_length=1, max_length=9)], {"type": "string", "minLength": 1, "maxLength": 9}),
        (Annotated[list[int], Bound(max_length=3)], {"type": "array", "items": {"type": "integer"}, "maxItems": 3}),
        (Annotated[int, Bound(multiple_of=5)], {"type": "integer", "multipleOf": 5}),
        (int | None, {"type": ["integer", "null"]}),
        (Optional[str], {"type": ["string", "null"]}),  # noqa: UP045 - as older code has it
        (list[int] | int, {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "integer"}]}),
        (int | object, {}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),
        (Literal[Colour.RED], {}),
        (Annotated[int, Bound(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (
            Annotated[int, Field(Bound(gt=0), Bound(lt=5))],
            {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 5},
        ),
        (Annotated[int, "words"], {"type": "integer", "description": "words"}),
        (Colour, {"enum": [1]}),
        (Odd, {}),
        (Any, {}),
        ("int", {"type": "integer"}),
        ("Colour", {}),
        ([1, 2], {}),
        ({}, {}),
        (7, {}),
    ],
)
def test_an_annotation_says_what_json_can_hold_of_it_and_nothing_else(annotation: Any, schema: dict[str, Any]) -> None:
    assert annotation_to_schema(annotation) == schema


def test_a_schema_says_what_is_required_and_whether_there_may_be_more() -> None:
    def closed(a: int, b: str = "x", *, c: bool) -> None: ...

    def open_(a: int, **more: Any) -> None: ...

    schema = Signature(closed).schema()
    assert schema is not None
    assert (schema["required"], schema["additionalProperties"]) == (["a", "c"], False)
    assert list(schema["properties"]) == ["a", "b", "c"]
    assert (Signature(open_).schema() or {})["additionalProperties"] is True


def test_an_annotation_that_names_what_is_not_there_does_not_hide_the_others() -> None:
    def search(query: str, where: NotThere, top_k: int = 5) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    schema = Signature(search).schema()
    assert schema is not None
    assert schema["properties"] == {
        "query": {"type": "string"},
        "where": {},
        "top_k": {"type": "integer", "default": 5},
    }


def test_annotations_that_raise_when_they_are_looked_at_leave_no_schema_and_no_error() -> None:
    class Angry:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("do not compare me")

        __hash__ = object.__hash__

        @property
        def metadata(self) -> Any:
            raise RuntimeError("do not look at me")

    def first(a: int) -> None: ...

    first.__annotations__ = {"a": Angry()}

    def second(a: int) -> None: ...

    second.__annotations__ = {"a": Annotated[int, Angry()]}

    assert (Signature(first).schema() or {})["properties"] == {"a": {}}
    assert Signature(second).schema() is None


def test_nothing_is_said_of_a_function_without_a_signature() -> None:
    assert Signature(max).schema() is None
    assert not Signature(max).rejects_call((), {"anything": 1})


def test_an_object_that_can_be_called_is_described_by_its_call() -> None:
    class Search:
        limit: int = 3

        def __call__(self, query: str) -> None: ...

    schema = Signature(Search()).schema()
    assert schema is not None
    assert schema["properties"] == {"query": {"type": "string"}}


def test_a_partial_is_described_by_what_is_left_of_its_function() -> None:
    def search(query: str, top_k: int) -> None: ...

    schema = Signature(functools.partial(search, "fish")).schema()
    assert schema is not None
    assert schema["properties"] == {"top_k": {"type": "integer"}}


@pytest.mark.parametrize(
    ("function", "is_method"),
    [("method", True), ("static", False)],
)
def test_self_is_not_an_argument(function: str, is_method: bool) -> None:
    class Thing:
        def method(self, a: int) -> None: ...

        @staticmethod
        def static(a: int) -> None: ...

    thing = Thing()
    signature = Signature(getattr(Thing, function))
    assert signature.bind((thing, 1) if is_method else (1,), {}) == {"a": 1}
    assert list((signature.schema() or {})["properties"]) == ["a"]


def test_a_function_inside_a_function_may_have_a_parameter_called_self() -> None:
    def about(self: int) -> None: ...

    assert Signature(about).bind((1,), {}) == {"self": 1}


def functions() -> list[Callable[..., Any]]:
    def plain(a: Any, b: Any = 0, c: Any = 0) -> Any:
        return a, b, c

    def rest(a: Any, *args: Any, c: Any = 0, **kwargs: Any) -> Any:
        return a, args, c, kwargs

    def unnameable(a: Any, b: Any = 0, /, c: Any = 0, **kwargs: Any) -> Any:
        return a, b, c, kwargs

    return [plain, rest, unnameable]


@given(
    st.sampled_from(functions()),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.sampled_from("abcde"), st.integers()),
)
def test_arguments_by_name_and_back_make_the_same_call(
    function: Callable[..., Any], args: list[int], kwargs: dict[str, int]
) -> None:
    signature = Signature(function)
    try:
        expected = function(*args, **kwargs)
    except TypeError:
        assert signature.rejects_call(tuple(args), kwargs)
        return
    positional, named = signature.split_arguments(signature.bind(tuple(args), kwargs), tuple(args))
    assert function(*positional, **named) == expected


# What is told to a model


def test_defaults_and_the_docstring_are_part_of_the_schema() -> None:
    def search(query: str, top_k: int = 5, where: Any = object) -> None:
        """Finds passages
        in the library.

        Args:
            query: What to look for.
            top_k (int): How many
                passages to give back.

        Returns:
            nothing: at all
        """

    signature = Signature(search)
    assert signature.description == "Finds passages in the library."
    assert (signature.schema() or {})["properties"] == {
        "query": {"type": "string", "description": "What to look for."},
        "top_k": {"type": "integer", "default": 5, "description": "How many"},
        "where": {},
    }


def test_sphinx_fields_are_understood_too() -> None:
    def search(query: str) -> None:
        """Finds passages.

        :param str query: What to look for.
        """

    assert (Signature(search).schema() or {})["properties"]["query"]["description"] == "What to look for."


@given(st.text())
def test_no_docstring_stops_us(text: str) -> None:
    def search(query: str) -> None: ...

    search.__doc__ = text
    assert isinstance(Signature(search).description, str)
    assert Signature(search).schema() is not None
