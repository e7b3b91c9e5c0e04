"""JSON arguments of a model reach the function in its annotated types."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import re
import subprocess
import sys
import time as clock
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict, Union
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mulligan
from mulligan import AgentError, InfraError, Mulligan, ToolOutcome
from mulligan.contract.store import DEFAULT_TENANT, FixQuery
from mulligan.store.sqlite import SqliteStore
from mulligan.testing import Sandbox, sandbox

if TYPE_CHECKING:
    from somewhere import Undefined


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Pair(enum.Enum):
    ORIGIN = (0, 0)


@dataclass
class Item:
    name: str
    price: float
    day: date | None = None


@dataclass
class Order:
    items: list[Item]
    id: UUID
    tags: set[str] = field(default_factory=set)


@dataclass
class Node:
    value: int
    children: list[Node] = field(default_factory=list)


@dataclass
class Cat:
    kind: Literal["cat"]


@dataclass
class Dog:
    kind: Literal["dog"]


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError("number must be positive")


@dataclass
class Secretive:
    number: int
    key: dataclasses.InitVar[str]


class Place(TypedDict):
    city: str
    since: NotRequired[date]


class Address(pydantic.BaseModel):
    street: str
    number: int = pydantic.Field(ge=1)


class Person(pydantic.BaseModel):
    name: str
    born: date
    addresses: list[Address] = []


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    day: date


@pydantic.dataclasses.dataclass
class Point:
    x: int


class Small(pydantic.BaseModel):
    x: int


class Large(pydantic.BaseModel):
    x: int
    y: int


@dataclass
class Delivery:
    to: Address
    day: date


class Client:
    """A class that nobody can convert."""


class Row(NamedTuple):
    number: int


Ticket = NewType("Ticket", UUID)
JSON_KEYS = st.sampled_from(["name", "price", "day", "value", "children", "city", "born", "kind"]) | st.text(max_size=3)
JSON_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
DAY, ID = "2026-03-01", "2b4c1d5e-0f3a-4b6c-8d7e-9f0a1b2c3d4e"


def call(annotation: Any, value: Any, **options: Any) -> ToolOutcome:
    """Call a tool whose argument has this annotation."""

    @mulligan.tool(**options)
    def tool(value):  # type: ignore[no-untyped-def]
        received.append(value)
        return "received"

    received: list[Any] = []
    code = tool.__mulligan__.function
    code.__annotations__["value"] = annotation
    (outcome,) = [turn.call({"tool": tool}, "tool", {"value": value}) for turn in mulligan.turns(limit=1)]
    return dataclasses.replace(outcome, value=received[0] if received else None)


def add_year(text: str) -> str:
    return f"2026-{text}"


def name_annotation(value: object) -> str:
    """The same name in every process: without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize(
    ("annotation", "value", "received"),
    [
        (date, DAY, date(2026, 3, 1)),
        (datetime, "2026-03-01T10:00:00Z", datetime(2026, 3, 1, 10, tzinfo=UTC)),
        (datetime, "2026-03-01T10:00:00", datetime(2026, 3, 1, 10)),
        (time, "10:30:00", time(10, 30)),
        (UUID, ID, UUID(ID)),
        (Decimal, "1.10", Decimal("1.10")),
        (Decimal, 0.1, Decimal("0.1")),
        (Decimal, 5, Decimal(5)),
        (Path, "a/b.txt", Path("a/b.txt")),
        (PurePosixPath, "/a", PurePosixPath("/a")),
        (Color, "red", Color.RED),
        (Level, 1, Level.LOW),
        (Literal["a", 1], 1, 1),
        (Literal[Color.RED], "red", Color.RED),
        (Annotated[date, "the first day"], DAY, date(2026, 3, 1)),
        (Annotated[date, pydantic.BeforeValidator(add_year)], "03-01", date(2026, 3, 1)),
        (list[Annotated[str, pydantic.AfterValidator(str.upper)] | None], ["a", None], ["A", None]),
        (Annotated[date, pydantic.Field(description="the first day")], DAY, date(2026, 3, 1)),
        (Ticket, ID, UUID(ID)),
        (Optional[date], None, None),  # noqa: UP045 - the older spelling
        (Optional[date], DAY, date(2026, 3, 1)),  # noqa: UP045
        (date | None, DAY, date(2026, 3, 1)),
        (date | datetime, "2026-03-01T10:00:00", datetime(2026, 3, 1, 10)),
        (str | date, DAY, DAY),
        (Union[Item, str], "all", "all"),  # noqa: UP007
        (Cat | Dog, {"kind": "dog"}, Dog("dog")),
        (Item | Client, {"odd": 1}, {"odd": 1}),
        (Small | Large, {"x": 1, "y": 2}, Large(x=1, y=2)),
        (Small | Large | None, {"x": 1}, Small(x=1)),
        (Annotated[Item | Small | Large, "a size"], {"x": 1, "y": 2}, Large(x=1, y=2)),
        (list[date], [DAY], [date(2026, 3, 1)]),
        (Sequence[date], [DAY], [date(2026, 3, 1)]),
        (Iterable[UUID], [ID], [UUID(ID)]),
        (dict[str, date], {"a": DAY}, {"a": date(2026, 3, 1)}),
        (Mapping[str, Path], {"a": "b"}, {"a": Path("b")}),
        (dict[int, str], {"5": "five"}, {5: "five"}),
        (dict[date, int], {DAY: 1}, {date(2026, 3, 1): 1}),
        (dict[Color, int], {"red": 1}, {Color.RED: 1}),
        (tuple, [1, "a"], (1, "a")),
        (tuple[int, date], [1, DAY], (1, date(2026, 3, 1))),
        (tuple[date, ...], [DAY, DAY], (date(2026, 3, 1),) * 2),
        (set[int], [1, 2], {1, 2}),
        (frozenset[str], ["a"], frozenset({"a"})),
        (Item, {"name": "lamp", "price": 5}, Item("lamp", 5)),
        (Item, {"name": "lamp", "price": 5.5, "day": DAY}, Item("lamp", 5.5, date(2026, 3, 1))),
        (
            Order,
            {"items": [{"name": "lamp", "price": 5}], "id": ID, "tags": ["a"]},
            Order([Item("lamp", 5)], UUID(ID), {"a"}),
        ),
        (Node, {"value": 1, "children": [{"value": 2}]}, Node(1, [Node(2)])),
        (Positive, {"number": 5.0}, Positive(5)),
        (Place, {"city": "Oslo", "since": DAY}, {"city": "Oslo", "since": date(2026, 3, 1)}),
        (Address, {"street": "Main", "number": 1}, Address(street="Main", number=1)),
        (
            Person,
            {"name": "Ann", "born": DAY, "addresses": [{"street": "Main", "number": 1}]},
            Person(name="Ann", born=date(2026, 3, 1), addresses=[Address(street="Main", number=1)]),
        ),
        (list[Address], [{"street": "Main", "number": 1}], [Address(street="Main", number=1)]),
        (dict[str, Address], {"a": {"street": "Main", "number": 1}}, {"a": Address(street="Main", number=1)}),
        (Address | None, {"street": "Main", "number": 1}, Address(street="Main", number=1)),
        (Strict, {"day": DAY}, Strict(day=date(2026, 3, 1))),
        (Point, {"x": 1}, Point(1)),
        (
            Delivery,
            {"to": {"street": "Main", "number": 1}, "day": DAY},
            Delivery(Address(street="Main", number=1), date(2026, 3, 1)),
        ),
        (pydantic.SecretStr, "key", pydantic.SecretStr("key")),
    ],
    ids=name_annotation,
)
def test_json_value_is_received_in_the_annotated_type(
    played: Sandbox, annotation: Any, value: Any, received: Any
) -> None:
    outcome = call(annotation, value)
    assert outcome.ok, outcome.answer
    assert outcome.value == received
    assert type(outcome.value) is type(received)
    (step,) = played.steps
    assert step.arguments == {"value": value}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "5"),
        (float, 5),
        (list[int], [1]),
        (dict[str, Any], {"a": 1}),
        (Any, {"a": 1}),
        (bytes, "aGVsbG8="),
        (Client, {"a": 1}),
        (list[Client], [{"a": 1}]),
        (Row, [1]),
        (Pair, [0, 0]),
        (set[Item], [{"name": "lamp", "price": 5}]),
        (Secretive, {"number": 1}),
        (Callable[[int], str], "x"),
        ("Undefined", "x"),
        ("1 +", "x"),
        (7, "x"),
        (date, date(2026, 3, 1)),
        (Item, Item("lamp", 5)),
        (Address, Address(street="Main", number=1)),
        (list[Address], [Address(street="Main", number=1)]),
    ],
    ids=name_annotation,
)
def test_value_that_needs_no_conversion_or_allows_none_is_passed_as_it_is(
    played: Sandbox, annotation: Any, value: Any
) -> None:
    outcome = call(annotation, value, mode="observe")
    assert outcome.ok, outcome.answer
    assert outcome.value == value
    assert type(outcome.value) is type(value)


@pytest.mark.parametrize("mode", ["observe", "suggest", "repair"])
@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (date, "tomorrow", "value"),
        (date, 5, "value"),
        (datetime, DAY, "value"),
        (UUID, "7", "value"),
        (Decimal, "ten", "value"),
        (Path, {"a": 1}, "value"),
        (Color, "green", "value"),
        (Level, True, "value"),
        (Small | Large, {"x": "a"}, "value: does not match any of Small, Large"),
        (list[date], [DAY, "x"], "value.1"),
        (dict[str, date], {"first": "x"}, "value.first"),
        (tuple[int, date], [1], "value"),
        (set[int], ["one"], "value.0"),
        (Item, {"name": "lamp", "price": "5 euros"}, "value.price"),
        (Item, {"name": "lamp"}, "price"),
        (Item, {"name": "lamp", "price": 5, "size": 3}, "size"),
        (Order, {"items": [{"name": "a", "price": 1}, {"name": "b", "price": "x"}], "id": ID}, "value.items.1.price"),
        (Positive, {"number": 0}, "number must be positive"),
        (Cat | Dog, {"kind": "cow"}, "value"),
        (Address, {"street": "Main", "number": "x"}, "value.number"),
        (Person, {"name": "Ann", "born": DAY, "addresses": [{"street": "a", "number": "x"}]}, "addresses.0.number"),
        (list[Address], [{"street": "Main", "number": 1}, {"street": {}, "number": 1}], "value.1.street"),
        (Address | None, {"street": "Main"}, "value.number"),
        (list[Item] | None, [{"name": "a", "price": 1}, {"name": "b", "price": "x"}], "value.1.price"),
    ],
    ids=name_annotation,
)
def test_value_that_its_type_rejects_is_reported_with_its_path_and_the_tool_is_not_called(
    mode: Any, annotation: Any, value: Any, path: str
) -> None:
    with sandbox(mode=mode) as played:
        outcome = call(annotation, value)
    assert outcome.failure is not None
    assert outcome.failure.kind == "tool/invalid_arguments"
    assert outcome.failure.took_effect.value == "no"
    assert path in outcome.failure.message
    assert outcome.value is None  # it was not called
    assert {step.outcome for step in played.steps} == {"failure"}


def test_text_in_place_of_a_number_is_not_converted_silently(played: Sandbox) -> None:
    outcome = call(Positive, {"number": "5"})
    assert outcome.value == Positive(5)
    assert "value.number as the number 5" in outcome.notes[0]  # a repair, and it says so
    assert [step.outcome for step in played.steps] == ["failure", "success"]
    observed = call(Positive, {"number": "5"}, mode="observe")
    assert observed.failure is not None


def test_repaired_arguments_are_converted_again(played: Sandbox) -> None:
    @mulligan.tool(clamp=["nights"])
    def find_rooms(day: date, nights: Annotated[int, pydantic.Field(le=7)], color: Color = Color.RED) -> str:
        received.append((day, nights, color))
        return "found"

    received: list[Any] = []
    (outcome,) = [
        turn.call([find_rooms], "find_rooms", {"day": DAY, "nights": 30, "color": "Blue"})
        for turn in mulligan.turns(limit=1)
    ]
    assert outcome.ok
    assert received == [(date(2026, 3, 1), 7, Color.BLUE)]
    assert [step.arguments for step in played.steps] == [
        {"day": DAY, "nights": 30, "color": "Blue"},
        {"day": DAY, "nights": 7, "color": "blue"},
    ]


def test_retry_gets_newly_converted_arguments(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    def ship(order: Order) -> list[str]:
        received.append(order)
        order.items.clear()
        if len(received) == 1:
            raise ConnectionError("reset")
        return ["shipped"]

    received: list[Order] = []
    arguments = {"order": {"items": [{"name": "lamp", "price": 5}], "id": ID}}
    (outcome,) = [turn.call([ship], "ship", arguments) for turn in mulligan.turns(limit=1)]
    assert outcome.value == ["shipped"]
    assert received[0] is not received[1]
    assert arguments == {"order": {"items": [{"name": "lamp", "price": 5}], "id": ID}}


def test_verify_gets_converted_arguments(played: Sandbox) -> None:
    def verify(day: date) -> Any:
        received.append(day)
        return "booked"

    @mulligan.tool(verify=verify)
    def book(day: date) -> str:
        raise TimeoutError("no answer")

    received: list[Any] = []
    (outcome,) = [turn.call([book], "book", {"day": DAY}) for turn in mulligan.turns(limit=1)]
    assert outcome.value == "booked"
    assert received == [date(2026, 3, 1)]


def test_direct_call_is_not_converted(played: Sandbox) -> None:
    @mulligan.tool
    def book(day: date, item: Item | None = None) -> Any:
        return day, item

    assert book("soon", {"name": "lamp"}) == ("soon", {"name": "lamp"})  # type: ignore[arg-type]


def test_none_for_a_default_of_none_is_passed(played: Sandbox) -> None:
    @mulligan.tool(mode="observe")
    def book(day: date = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013
        return day

    assert [turn.call([book], "book", {"day": None}).ok for turn in mulligan.turns(limit=1)] == [True]


def test_annotation_beside_an_undefined_one_is_converted(played: Sandbox) -> None:
    def book(day: date, other: Undefined, *, item: Item) -> Any:
        return day, other, item

    arguments = {"day": DAY, "other": "x", "item": {"name": "lamp", "price": 5}}
    (outcome,) = [turn.call([book], "book", arguments) for turn in mulligan.turns(limit=1)]
    assert outcome.value == (date(2026, 3, 1), "x", Item("lamp", 5))


class Agenda:
    @mulligan.tool
    def add(self, day: date, /) -> date:
        return day

    def remove(self, day: date) -> date:
        return day

    def __call__(self, day: date) -> date:
        return day


@pytest.mark.parametrize("tool", [Agenda().add, Agenda().remove, Agenda()], ids=["wrapped", "unwrapped", "object"])
def test_methods_and_objects_get_converted_arguments(played: Sandbox, tool: Any) -> None:
    (outcome,) = [turn.call({"tool": tool}, "tool", {"day": DAY}) for turn in mulligan.turns(limit=1)]
    assert outcome.value == date(2026, 3, 1)


def test_async_tools_and_streams_get_converted_arguments(played: Sandbox) -> None:
    async def book(day: date) -> date:
        return day

    def days(first: date) -> Any:
        yield first

    async def main() -> list[Any]:
        (turn,) = mulligan.turns(limit=1)
        return [
            (await turn.acall([book], "book", {"day": DAY})).value,
            (await turn.acall([days], "days", {"first": DAY})).value,
        ]

    assert asyncio.run(main()) == [date(2026, 3, 1), [date(2026, 3, 1)]]


class Hostile(type):
    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError("do not look")

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("do not compare")

    __hash__ = type.__hash__


class Untouchable(metaclass=Hostile):
    pass


@pytest.mark.parametrize(
    "annotation", [Untouchable, list[Untouchable], Untouchable | None], ids=["own", "list", "union"]
)
def test_hostile_annotation_leaves_the_call_as_it_was(played: Sandbox, annotation: Any) -> None:
    assert call(annotation, [1], mode="observe").value == [1]


def test_incomplete_model_leaves_the_value_as_it_was(played: Sandbox) -> None:
    class Incomplete(pydantic.BaseModel):
        other: Undefined

    assert call(Incomplete, {"other": 1}, mode="observe").value == {"other": 1}


class Pause(Exception):
    """Control flow of the program."""


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Pause("ask a person"), "cancelled"),
        (InfraError("the rates are not loaded"), "failure"),
        (AgentError("no such rate", hint="Use EUR."), "failure"),
        (KeyError("EUR"), "failure"),
        (StopIteration(), "failure"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("is_pydantic", [True, False], ids=["validator", "constructor"])
def test_error_that_a_type_raises_on_purpose_ends_the_call_like_one_of_the_tool(
    error: Exception, outcome: str, is_pydantic: bool
) -> None:
    class Model(pydantic.BaseModel):
        @pydantic.model_validator(mode="after")
        def check(self) -> Model:
            raise error

    @dataclass
    class Plain:
        def __post_init__(self) -> None:
            raise error

    annotation = (Model if is_pydantic else Plain) | None
    with sandbox(control_flow=[Pause]) as played:
        if isinstance(error, Pause | InfraError):
            with pytest.raises(type(error)) as raised:
                call(annotation, {})
            assert raised.value is error
        else:
            answer = call(annotation, {})
            assert not answer.ok
            assert ("Use EUR." in answer.to_message()) is isinstance(error, AgentError)
    assert [step.outcome for step in played.steps] == [outcome]


@pytest.mark.slow
def test_pydantic_is_not_imported_for_functions_without_its_types() -> None:
    program = """
import datetime, sys
import mulligan
from mulligan.testing import sandbox

def book(day: datetime.date) -> int:
    return day.year

with sandbox():
    for turn in mulligan.turns(limit=1):
        assert turn.call([book], "book", {"day": "2026-03-01"}).value == 2026
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "annotation", [date, Color, Decimal, Path, Item, Node, Place, Person, tuple[int, date], Cat | Dog]
)
@given(value=st.recursive(JSON_LEAVES, lambda items: st.lists(items) | st.dictionaries(JSON_KEYS, items), max_leaves=8))
def test_any_json_is_converted_or_rejected(annotation: Any, value: Any) -> None:
    with sandbox(mode="observe"):
        outcome = call(annotation, value)
    if outcome.failure is not None:
        assert outcome.failure.kind == "tool/invalid_arguments"
    elif annotation is not Place and isinstance(annotation, type):
        assert isinstance(outcome.value, annotation)


def test_arguments_of_a_prerequisite_are_converted(tmp_path: Path) -> None:
    store_path = str(tmp_path / "m.db")
    pressed: list[Any] = []

    def play(program: Mulligan, *script: tuple[str, dict[str, Any]]) -> list[ToolOutcome]:
        @program.tool(effects="idempotent")
        def press(level: Level) -> str:
            pressed.append(level)
            return "pressed"

        @program.tool(effects="idempotent")
        def start(car: str) -> str:
            if not pressed:
                raise AgentError("The brake pedal must be pressed before the engine starts.", code="precondition")
            pressed.clear()
            return "running"

        with program.run("driver"):
            turns = program.turns(limit=len(script))
            return [turn.call([press, start], *request) for turn, request in zip(turns, script, strict=True)]

    teacher = Mulligan(store=store_path, home=str(tmp_path))
    for car in ("red", "blue"):
        started = "start", {"car": car}
        assert [outcome.ok for outcome in play(teacher, started, ("press", {"level": 1}), started)] == [
            False,
            True,
            True,
        ]
    teacher.flush(60)
    store = SqliteStore(tmp_path / "m.db")
    now = int(clock.time() * 1000)
    (fix,) = store.fixes(DEFAULT_TENANT, FixQuery(now=now, limit=10))
    store.decide(DEFAULT_TENANT, fix.id, approved=True, at=now)
    store.close()

    program = Mulligan(store=store_path, home=str(tmp_path), learn="repair")
    seen: list[Any] = []
    program.add_listener(lambda event: seen.extend(pressed), thread="caller")
    (outcome,) = play(program, ("start", {"car": "green"}))
    assert outcome.value == "running"
    assert seen
    assert all(type(level) is Level for level in seen)
