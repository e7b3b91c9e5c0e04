"""A function's parameters, as a dictionary and as a JSON schema."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.capture.signature import Signature, as_schema


class Bound:
    def __init__(self, **bounds: float) -> None:
        self.__dict__.update(bounds)


class Field:
    """As pydantic has it: the bounds are in a list."""

    def __init__(self, *metadata: Any) -> None:
        self.metadata = list(metadata)


class Colour(enum.Enum):
    RED = 1


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
        (dict[str, int], {"type": "object"}),
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
        (Annotated[int, "words"], {"type": "integer"}),
        (Colour, {}),
        (Any, {}),
        ("int", {"type": "integer"}),
        ("Colour", {}),
        ([1, 2], {}),
        ({}, {}),
        (7, {}),
    ],
)
def test_an_annotation_says_what_json_can_hold_of_it_and_nothing_else(annotation: Any, schema: dict[str, Any]) -> None:
    assert as_schema(annotation) == schema


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
    assert schema["properties"] == {"query": {"type": "string"}, "where": {}, "top_k": {"type": "integer"}}


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
    assert not Signature(max).refuses((), {"anything": 1})


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
        assert signature.refuses(tuple(args), kwargs)
        return
    positional, named = signature.spread(signature.bind(tuple(args), kwargs), tuple(args))
    assert function(*positional, **named) == expected
