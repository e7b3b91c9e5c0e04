"""What a wrapped function is, and what is recorded of its calls."""

from __future__ import annotations

import array
import asyncio
import collections
import contextlib
import copy
import dataclasses
import functools
import inspect
import pickle
import sqlite3
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mulligan
from mulligan.api import Mulligan
from mulligan.capture.wrap import begin_call
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.failure import SettingsError
from mulligan.core.fast_path import journal_values
from mulligan.core.records import encode
from mulligan.recover.policy import Tool
from mulligan.redaction import to_plain_data
from mulligan.redaction.plain_data import is_resource
from mulligan.testing import Sandbox, sandbox


@mulligan.tool
def at_module_level(query: str, top_k: int = 5) -> str:
    """Finds things."""
    return f"{query} {top_k}"


class Flaky:
    """Fails as often as it was told to, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.executed = 0

    def answer(self, value: Any = "ok") -> Any:
        self.executed += 1
        if self.errors:
            raise self.errors.pop(0)
        return value


def arguments(played: Sandbox) -> list[Any]:
    return [step.arguments for step in played.steps]


# What comes out


def test_a_wrapped_function_answers_as_it_did_before(played: Sandbox) -> None:
    assert at_module_level("fish") == "fish 5"
    assert at_module_level("fish", top_k=2) == "fish 2"


def test_it_is_wrapped_with_and_without_parentheses(played: Sandbox) -> None:
    @mulligan.tool
    def bare() -> int:
        return 1

    @mulligan.tool()
    def called() -> int:
        return 2

    assert (bare(), called()) == (1, 2)


def test_name_documentation_and_signature_are_those_of_the_function() -> None:
    def search(query: str, *, top_k: int = 5) -> list[str]:
        """Finds things."""
        return [query]

    wrapped = mulligan.tool(search)

    assert wrapped.__name__ == "search"
    assert wrapped.__doc__ == "Finds things."
    assert wrapped.__wrapped__ is search  # type: ignore[attr-defined]
    assert wrapped.__module__ == search.__module__
    assert inspect.signature(wrapped) == inspect.signature(search)


def test_a_function_at_module_level_can_be_pickled(played: Sandbox) -> None:
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level


def test_the_four_shapes_of_function_keep_their_shape() -> None:
    def plain() -> None: ...

    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    async def async_generator() -> AsyncIterator[int]:
        yield 1

    for function in (plain, coroutine, generator, async_generator):
        for ask in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
            assert ask(mulligan.tool(function)) == ask(function), (function.__name__, ask.__name__)


def test_an_async_function_is_recovered_while_it_is_awaited(played: Sandbox) -> None:
    flaky = Flaky(ConnectionError("reset"))

    @mulligan.tool(effects="none")
    async def fetch(url: str) -> str:
        await asyncio.sleep(0)
        return str(flaky.answer(url))

    assert asyncio.run(fetch("a")) == "a"
    assert flaky.executed == 2
    assert [step.outcome for step in played.steps] == ["failure", "success"]


# Where a function may stand


class Index:
    def __init__(self) -> None:
        self.name = "index"

    @mulligan.tool
    def method(self, query: str) -> str:
        return f"{self.name} {query}"

    @mulligan.tool
    @classmethod
    def class_method_inside(cls, query: str) -> str:
        return f"{cls.__name__} {query}"

    @classmethod
    @mulligan.tool
    def class_method_outside(cls, query: str) -> str:
        return f"{cls.__name__} {query}"

    @mulligan.tool
    @staticmethod
    def static_inside(query: str) -> str:
        return query

    @staticmethod
    @mulligan.tool
    def static_outside(query: str) -> str:
        return query

    @mulligan.tool
    async def async_method(self, query: str) -> str:
        return f"{self.name} {query}"


@pytest.mark.parametrize(
    "name", ["method", "class_method_inside", "class_method_outside", "static_inside", "static_outside"]
)
def test_methods_of_every_sort_can_be_wrapped_and_self_is_not_an_argument(played: Sandbox, name: str) -> None:
    assert getattr(Index(), name)("fish").endswith("fish")
    assert arguments(played) == [{"query": "fish"}]


def test_an_async_method_can_be_wrapped(played: Sandbox) -> None:
    assert asyncio.run(Index().async_method("fish")) == "index fish"
    assert arguments(played) == [{"query": "fish"}]


def test_a_bound_method_can_be_wrapped(played: Sandbox) -> None:
    wrapped = mulligan.tool(Flaky().answer)
    assert wrapped("x") == "x"
    assert arguments(played) == [{"value": "x"}]


def test_a_partial_is_known_by_the_name_of_its_function(played: Sandbox) -> None:
    def add(left: int, right: int) -> int:
        return left + right

    assert mulligan.tool(functools.partial(add, 1))(right=2) == 3
    assert [(step.name, step.arguments) for step in played.steps] == [("add", {"right": 2})]


def test_a_partial_of_an_async_function_is_async(played: Sandbox) -> None:
    async def add(left: int, right: int) -> int:
        return left + right

    wrapped = mulligan.tool(functools.partial(add, 1))
    assert inspect.iscoroutinefunction(wrapped)
    assert asyncio.run(wrapped(2)) == 3


def test_an_object_that_can_be_called_is_known_by_its_class(played: Sandbox) -> None:
    class Search:
        def __call__(self, query: str) -> str:
            return query

    wrapped = mulligan.tool(Search())
    assert wrapped("fish") == "fish"
    assert wrapped.__name__ == "Search"  # type: ignore[attr-defined]
    assert [(step.name, step.arguments) for step in played.steps] == [("Search", {"query": "fish"})]


def test_a_lambda_can_be_wrapped_and_named(played: Sandbox) -> None:
    assert mulligan.tool(name="double")(lambda x: 2 * x)(4) == 8
    assert played.steps[0].name == "double"


def test_a_built_in_without_a_signature_can_be_wrapped(played: Sandbox) -> None:
    assert mulligan.tool(max)(3, 5) == 5
    assert arguments(played) == [{"*": [3, 5]}]


def test_every_way_of_passing_an_argument_arrives_and_is_recorded_by_name(played: Sandbox) -> None:
    @mulligan.tool
    def every(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> tuple[Any, ...]:
        return a, b, rest, c, more

    assert every(1, 2, 5, 6, c=4, d=7) == (1, 2, (5, 6), 4, {"d": 7})
    assert every(1, b=2) == (1, 2, (), 3, {})
    assert every(1, 2, a=9) == (1, 2, (), 3, {"a": 9})
    assert arguments(played) == [
        {"a": 1, "b": 2, "*": [5, 6], "c": 4, "d": 7},
        {"a": 1, "b": 2},
        {"a": 1, "b": 2, "**a": 9},
    ]


@pytest.mark.parametrize(
    ("args", "kwargs", "recorded"),
    [
        ((), {"query": "x", "n": 1}, {"query": "x", "n": 1}),
        (("x", 1), {}, {"*": ["x", 1]}),
        (("x",), {"n": 1}, {"*": ["x"], "n": 1}),
        (("x",), {"*": 1}, {"*": 1}),
    ],
)
def test_a_function_that_takes_anything_has_its_calls_recorded_by_name(
    played: Sandbox, args: tuple[Any, ...], kwargs: dict[str, Any], recorded: Any
) -> None:
    takes_anything = mulligan.tool(lambda *args, **kwargs: (args, kwargs), name="anything")
    for _ in range(4):
        assert takes_anything(*args, **kwargs) == (args, kwargs)
    assert [step.arguments for step in played.steps] == [recorded] * 4


def test_positions_beyond_the_names_of_a_method_are_recorded_without_self(played: Sandbox) -> None:
    class Place:
        @mulligan.tool
        def look(self, first: int, *rest: int, **more: int) -> int:
            return first

    for n in (1, 2):
        Place().look(n, 7, 8, other=n)
    assert [step.arguments for step in played.steps] == [{"first": n, "*": [7, 8], "other": n} for n in (1, 2)]


def test_arguments_arrive_as_the_very_objects_that_were_given(played: Sandbox) -> None:
    given: list[object] = []
    thing = object()
    wrapped = mulligan.tool(lambda *args, **kwargs: given.extend([*args, *kwargs.values()]))
    wrapped(thing, given, key=thing)
    assert given[0] is thing
    assert given[1] is given
    assert given[2] is thing


def test_what_was_given_is_recorded_even_if_the_function_changes_it(played: Sandbox) -> None:
    @mulligan.tool
    def drain(items: list[int]) -> int:
        total = sum(items)
        items.clear()
        return total

    items = [1, 2]
    assert drain(items) == 3
    assert items == []
    assert arguments(played) == [{"items": [1, 2]}]


# One layer retries


def test_of_two_wrapped_layers_only_the_outer_one_retries(played: Sandbox) -> None:
    flaky = Flaky(*(ConnectionError("reset") for _ in range(10)))
    inner = mulligan.tool(effects="none", name="inner")(flaky.answer)

    @mulligan.tool(effects="none")
    def outer() -> Any:
        return inner()

    with pytest.raises(ConnectionError):
        outer()
    assert flaky.executed == 10  # eight, and two that probed


def test_where_the_outer_layer_only_observes_the_inner_one_retries(played: Sandbox) -> None:
    flaky = Flaky(ConnectionError("reset"))
    inner = mulligan.tool(effects="none", name="inner")(flaky.answer)

    @mulligan.tool(mode="observe")
    def outer() -> Any:
        return inner()

    assert outer() == "ok"
    assert flaky.executed == 2


def test_a_task_that_outlives_the_call_which_started_it_recovers_for_itself(played: Sandbox) -> None:
    flaky = Flaky(ConnectionError("reset"))

    @mulligan.tool(effects="none")
    async def inner() -> Any:
        return flaky.answer()

    @mulligan.tool(effects="none")
    async def start() -> asyncio.Task[Any]:
        async def later() -> Any:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return await inner()

        return asyncio.create_task(later())

    async def main() -> Any:
        return await (await start())

    assert asyncio.run(main()) == "ok"
    assert flaky.executed == 2
    assert len(played.runs) == 2


def test_a_wrapped_call_inside_another_says_inside_which_step(played: Sandbox) -> None:
    inner = mulligan.tool(name="inner")(lambda: 1)
    mulligan.tool(name="outer")(lambda: inner())()

    by_name = {step.name: step for step in played.steps}
    assert by_name["inner"].parent == by_name["outer"].seq
    assert by_name["outer"].parent is None
    assert len(played.runs) == 1


def test_a_wrapped_function_may_call_itself(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    def factorial(n: int) -> int:
        return 1 if n <= 1 else n * factorial(n - 1)

    assert factorial(20) == 2432902008176640000
    assert len(played.steps) == 20


# Many at once


def test_calls_in_threads_are_runs_of_their_own(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    def work(number: int) -> int:
        return number

    answers: dict[int, int] = {}
    threads = [threading.Thread(target=lambda n=n: answers.update({n: work(n)})) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == {n: n for n in range(20)}
    assert len(played.runs) == 20
    assert all(len(history.steps) == 1 for history in played.runs)


def test_calls_gathered_in_one_run_do_not_mix_up_their_attempts() -> None:
    with sandbox(down_after=0) as played:
        _gathered_calls(played)


def _gathered_calls(played: Sandbox) -> None:
    seen: dict[int, int] = {}

    @mulligan.tool(effects="none")
    async def work(number: int) -> int:
        seen[number] = seen.get(number, 0) + 1
        await asyncio.sleep(0)
        if seen[number] <= number % 3:
            raise ConnectionError(f"reset {number}")
        return number

    async def main() -> list[int]:
        async with mulligan.run("gathering"):
            return await asyncio.gather(*(work(n) for n in range(30)))

    assert asyncio.run(main()) == list(range(30))
    assert [len(call.steps) for call in sorted(played.calls, key=lambda call: call.first.arguments["number"])] == [
        1 + n % 3 for n in range(30)
    ]
    for call in played.calls:
        assert len({step.arguments["number"] for step in call.steps}) == 1
        assert all(step.parent is None for step in call.steps)
    assert len({step.seq for step in played.steps}) == len(played.steps)


def test_calls_gathered_outside_a_run_are_runs_of_their_own(played: Sandbox) -> None:
    @mulligan.tool
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def main() -> None:
        await asyncio.gather(*(work(n) for n in range(10)))

    asyncio.run(main())
    assert len(played.runs) == 10


def test_one_wrapped_function_serves_several_event_loops(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return number

    answers: list[int] = []
    threads = [threading.Thread(target=lambda n=n: answers.append(asyncio.run(work(n)))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [0, 1, 2, 3]
    assert asyncio.run(work(4)) == 4


# Options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effects": "sometimes"}, "effects must be none, idempotent or once, got 'sometimes'."),
        ({"type": "plan"}, "type must be tool, model or retrieval, got 'plan'."),
        ({"mode": "loud"}, "mode must be observe, suggest or repair, got 'loud'."),
        ({"mode": ""}, "mode must be observe, suggest or repair, got ''."),
        ({"name": 7}, "Invalid name 7. Use a string."),
        ({"schema": "object"}, "Invalid schema of type str. Use a JSON schema as a dictionary."),
        ({"policy": 3}, "Invalid policy of type int. Use a mulligan.Policy."),
        (
            {"privileged": "amount"},
            "Invalid privileged 'amount'. Use a list of argument names, for example ['amount'].",
        ),
        ({"unprivileged": [1]}, "Invalid unprivileged [1]. Use a list of argument names"),
        ({"unprivileged": 1}, "Invalid unprivileged 1. Use a list of argument names"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_when_the_function_is_wrapped(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        mulligan.tool(**options)(len)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (3, "Cannot wrap an object of type int. Pass a function."),
        ("search", "@mulligan.tool(name='search')"),
        (Index, "Index is a class"),
        (property(lambda self: 1), "Cannot wrap an object of type property"),
    ],
)
def test_what_cannot_be_called_cannot_be_wrapped(thing: Any, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        mulligan.tool(thing)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("module", "name", "page"),
    [
        ("langchain_core.tools.structured", "StructuredTool", "langchain"),
        ("google.adk.tools.function_tool", "FunctionTool", "google_adk"),
        ("pydantic_ai.agent", "Agent", "pydantic_ai"),
        ("agents.tool", "FunctionTool", "openai_agents"),
    ],
)
def test_objects_of_a_framework_are_refused_with_its_page(module: str, name: str, page: str) -> None:
    cls = type(name, (), {"__module__": module})
    subclass = type("OwnTool", (cls,), {"__module__": "app", "__call__": lambda self: "done"})
    wrapped = [cls(), cls, subclass] if name == "Agent" else [cls(), cls, subclass(), subclass]
    for thing in wrapped:
        with pytest.raises(SettingsError, match=f"see docs/frameworks/{page}.md"):
            mulligan.tool(thing)


def test_callable_objects_of_a_framework_that_are_no_tools_can_be_wrapped() -> None:
    model = type("LM", (), {"__module__": "dspy.clients.lm", "__call__": lambda self, prompt: prompt})()
    assert mulligan.model(model)("hello") == "hello"


@pytest.mark.parametrize("option", ["privileged", "unprivileged", "exclude"])
def test_a_misspelt_name_of_an_argument_is_refused(option: str) -> None:
    message = r"pay has no argument 'ammount'\. Did you mean 'amount'\? Its arguments are amount, note"
    with pytest.raises(SettingsError, match=message):

        @mulligan.tool(**{option: ["ammount"]})
        def pay(amount: int, note: str = "") -> None: ...

    @mulligan.tool(**{option: ["anything"]})
    def open_to_all(**named: int) -> None: ...

    schema = {"type": "object", "properties": {"limit": {"type": "integer"}}}
    if option == "exclude":
        with pytest.raises(SettingsError, match="exclude: schema declares 'limit' as an argument"):
            mulligan.tool(exclude={"limit"}, schema=schema)(print)
        return

    @mulligan.tool(**{option: ["limit"]}, schema=schema)
    def by_schema(query: str) -> None: ...


# The way of every call, and the longer way round

odd = [
    [1, "two"], {"k": [1]}, (1, 2), {"a", "b"}, [b"bytes", {1: float("nan")}], b"bytes", 10**30,
    "sk-live-" + "a1B2" * 8, "x" * 70_000,
]  # fmt: skip
values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.sampled_from(odd)
results = values | st.dictionaries(st.sampled_from(["city", "days", "password", "note"]), values, max_size=3)


def takes_some(city, days=3, /, unit="c", *rest, password=None, **more):
    return city, days, unit, rest, password, more


def kept_of(args: Any, kwargs: Any, result: Any, **options: Any) -> list[tuple[Any, ...]]:
    with contextlib.closing(Mulligan(store="memory:")) as mine:
        made = functools.wraps(takes_some)(lambda *_, **__: copy.deepcopy(result))
        tool = mine.tool(made, name="some", **options)
        with mine.run("agent"):
            for _ in range(3):
                tool(*args, **kwargs)
                assert mine.flush(10)  # what may be told of a form is known once the first of its calls is kept
        first = begin_call(tool.__mulligan__, mine._components.capture, args, kwargs)
        if first is not None and first.record.is_immutable:  # the inlined encoding equals the other one
            record = first.record
            assert first.journal_values == journal_values(record.template, record.keywords, record.positional)
        (history,) = mine._components.recorder.store.runs(DEFAULT_TENANT, RunQuery())
        return [(step.name, step.seq, step.outcome, encode((step.arguments, step.result))) for step in history.steps]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(values, min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(["password", "city", "token", "limit"]), values, max_size=3),
    results,
)
def test_the_short_way_and_the_long_way_round_keep_the_same_of_a_call(args, kwargs, result):
    short = kept_of(args, kwargs, result)
    long = kept_of(args, kwargs, result, schema={"type": "object"})  # has each call looked at before it is made
    assert short == long
    assert [each[3] for each in short] == [short[0][3]] * 3


@pytest.mark.parametrize(
    ("schema", "is_told"),
    [
        ({"type": "nonsense"}, True),
        ({"properties": {"k": {"$ref": "https://example.org/k.json"}}}, True),
        ({"properties": {"k": {"type": "integer"}}}, False),
    ],
)
def test_a_schema_that_is_none_is_told_once(
    caplog: pytest.LogCaptureFixture, schema: dict[str, Any], is_told: bool
) -> None:
    with sandbox():
        search = mulligan.tool(name="search", schema=schema)(lambda k: k)
        assert [search(1), search(2)] == [1, 2]
        assert search(object) is object  # what JSON does not know is no fault of the schema
    assert caplog.text.count("The schema of search is unusable") == is_told


@pytest.mark.parametrize("error", [ConnectionResetError("cut"), ConnectionRefusedError("refused")])
def test_what_can_be_read_only_once_is_not_handed_to_a_second_attempt(
    played: Sandbox, error: Exception, tmp_path: Path
) -> None:
    """It would find nothing left to read, and what it answers would be told as a success."""

    @mulligan.tool(effects="idempotent")
    def upload(lines: Any) -> int:
        sent.append(len(list(lines)))
        if len(sent) == 1:
            raise error
        return sent[-1]

    (tmp_path / "lines").write_text("a\nb\n")
    with (tmp_path / "lines").open() as file:
        for once in (iter(["a", "b"]), (line for line in "ab"), file):
            sent: list[int] = []
            with pytest.raises(type(error)) as left:
                upload(once)
            assert sent == [2]
            assert "an argument can be read only once" in left.value.__notes__[0]
    sent = []
    assert upload(["a", "b"]) == 2
    assert sent == [2, 2]


def test_arguments_that_were_turned_away_are_repaired_beside_what_can_be_read_only_once(played: Sandbox) -> None:
    @mulligan.tool(effects="idempotent", clamp=["chunk_size"])
    def upload(lines: Any, chunk_size: int = 5) -> int:
        if chunk_size > 10:
            raise mulligan.AgentError(f"chunk_size must be 10 or less, got {chunk_size}.")
        return len(list(lines))

    assert upload(iter("ab"), chunk_size=50) == 2


def test_a_cursor_is_a_tool_of_the_trade_and_not_what_is_read(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    def count(cursor: sqlite3.Cursor) -> int:
        asked.append(1)
        if len(asked) == 1:
            raise ConnectionResetError("cut")
        return len(cursor.execute("SELECT 1").fetchall())

    asked: list[int] = []
    assert count(sqlite3.connect(":memory:").cursor()) == 1


@dataclasses.dataclass
class Cart:
    items: list[Any]


@attrs.define
class Basket:
    items: list[Any]


class Order(pydantic.BaseModel):
    items: list[Any]


class Trolley:
    def __init__(self, items: list[Any]) -> None:
        self.items = items


class Crate:
    __slots__ = ("items",)

    def __init__(self, items: list[Any]) -> None:
        self.items = items


def add_fee(cart: Any) -> None:
    cart.items.append("fee")


CHANGING: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "a list": (["a", "b"], lambda rows: rows.pop()),
    "a dictionary": ({"day": 1}, lambda query: query.pop("day")),
    "a set": ({1, 2}, lambda ids: ids.discard(1)),
    "inside": ({"filters": [{"day": 1}]}, lambda query: query["filters"][0].update(day=2)),
    "in order": ([2, 1], lambda rows: rows.sort()),
    "beside an object": ([object(), 1], lambda rows: rows.pop()),
    "large": ([{"row": number} for number in range(5000)], lambda rows: rows.pop()),
    "a deque": (collections.deque("ab"), lambda rows: rows.rotate()),
    "a bytearray": (bytearray(b"ab"), lambda rows: rows.reverse()),
    "an array": (array.array("i", [1, 2]), lambda rows: rows.reverse()),
    "a dataclass": (Cart(["a"]), add_fee),
    "an attrs object": (Basket(["a"]), add_fee),
    "a pydantic model": (Order(items=["a"]), add_fee),
    "a plain object": (Trolley(["a"]), add_fee),
    "slots": (Crate(["a"]), add_fee),
    "a namespace": (types.SimpleNamespace(items=["a"]), add_fee),
    "a user's collection": (collections.UserList("ab"), lambda rows: rows.pop()),
    "a new field": (Trolley(["a"]), lambda cart: setattr(cart, "fee", 1)),
    "deep in objects": (Trolley([Crate([Trolley([1])])]), lambda cart: add_fee(cart.items[0].items[0])),
    "objects in a list": ([Trolley(["a"])], lambda carts: add_fee(carts[0])),
    "bytes in an object": (Cart([bytearray(b"ab")]), lambda cart: cart.items[0].reverse()),
}


@pytest.mark.parametrize(
    "options",
    [{}, {"timeout": 30}, {"record": "off"}, {"record": "shape"}],
    ids=["short", "long", "unrecorded", "shape"],
)
@pytest.mark.parametrize("case", CHANGING)
def test_a_call_that_changed_what_it_was_given_is_not_made_again(
    played: Sandbox, case: str, options: dict[str, Any]
) -> None:
    """The second attempt would be another call than the caller made, and what it answers would pass for a success."""

    @mulligan.tool(effects="idempotent", **options)
    def send(rows: Any, is_changed: bool) -> int:
        seen.append(copy.deepcopy(rows))
        if is_changed:
            change(rows)
        if len(seen) == 1:
            raise ConnectionResetError("cut")
        return len(seen)

    seen: list[Any] = []
    rows, change = copy.deepcopy(CHANGING[case])
    assert send(rows, is_changed=False) == 2
    assert len(seen) == 2
    seen = []
    with pytest.raises(ConnectionResetError) as left:
        send(rows, is_changed=True)
    assert len(seen) == 1
    assert "the call modified its arguments (rows)" in left.value.__notes__[0]


def read_state(value: Any) -> Any:
    states: list[Any] = []
    return to_plain_data(value, states=states), states


@pytest.mark.parametrize("case", CHANGING)
def test_fresh_arguments_give_each_attempt_a_copy(played: Sandbox, case: str) -> None:
    @mulligan.tool(effects="idempotent", fresh_arguments=True)
    def send(rows: Any) -> str:
        change(rows)
        seen.append(read_state(rows))
        if len(seen) < 3:
            raise ConnectionResetError("cut")
        return "sent"

    seen: list[Any] = []
    rows, change = copy.deepcopy(CHANGING[case])
    before = read_state(rows)
    assert send(rows) == "sent"
    assert seen[0] == seen[1] == seen[2] != before
    assert read_state(rows) == before


class FakeClient:
    """Counts its requests, as clients, sessions and pools do."""

    def __init__(self) -> None:
        self.requests: list[str] = []


class Registry:
    """Changes its state under a lock."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.lock = threading.Lock()


class Holder:
    def __init__(self, client: Any) -> None:
        self.client = client
        self.requests: list[str] = []


class Lazy:
    @functools.cached_property
    def requests(self) -> list[str]:
        return []


@pytest.mark.parametrize("is_fresh", [False, True])
@pytest.mark.parametrize(
    "build", [FakeClient, Registry, lambda: Holder(Registry()), lambda: Holder(FakeClient()), Lazy]
)
def test_what_a_call_changes_in_a_client_forbids_nothing(
    played: Sandbox, build: Callable[[], Any], is_fresh: bool
) -> None:
    @mulligan.tool(effects="none", fresh_arguments=is_fresh)
    def fetch(client: Any, options: dict[str, Any]) -> int:
        clients.add(id(client))
        client.requests.append("page")
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionResetError("cut")
        return len(attempts)

    attempts: list[int] = []
    clients: set[int] = set()
    client = build()
    assert fetch(client, {"client": client}) == 2
    assert clients == {id(client)} or not is_resource(client)


def test_a_success_with_plain_objects_makes_one_bounded_copy(played: Sandbox) -> None:
    @mulligan.tool(effects="none")
    def count(cart: Trolley) -> int:
        return len(cart.items)

    assert count(Trolley(["a"] * 100_000)) == 100_000
    assert played.steps[0].arguments == {"cart": {"$type": "Trolley"}}


def test_a_repaired_call_that_changed_what_it_was_given_is_not_made_again(played: Sandbox) -> None:
    @mulligan.tool(effects="none", clamp=["top_k"])
    def search(tags: list[str], top_k: int) -> list[str]:
        tried.append((list(tags), top_k))
        if top_k > 10:
            raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
        tags.clear()
        raise ConnectionResetError("cut")

    tried: list[Any] = []
    with pytest.raises(ConnectionResetError):
        search(["a"], top_k=50)
    assert tried == [(["a"], 50), (["a"], 10)]


def test_a_tool_that_retries_by_itself_is_repaired_and_not_retried_once_more(played: Sandbox) -> None:
    tenacity = pytest.importorskip("tenacity")

    @mulligan.tool(effects="none", clamp=["top_k"])
    @tenacity.retry(stop=tenacity.stop_after_attempt(2))
    def search(query: str, top_k: int = 5) -> int:
        executed.append(top_k)
        if query == "down":
            raise ConnectionResetError("Connection reset by peer")
        if top_k > 10:
            raise ValueError(f"top_k must be 10 or less, got {top_k}.")
        return top_k

    executed: list[int] = []
    assert search("fish", top_k=50) == 10
    assert executed == [50, 50, 10]
    executed = []
    with pytest.raises(tenacity.RetryError):
        search("down")
    assert executed == [5, 5]
    assert [str(step.failure.kind) for step in played.steps if step.failure is not None] == [
        "tool/invalid_arguments",
        "tool/connection_error",
    ]


def test_an_exception_that_cannot_be_written_to_leaves_as_it_is(
    played: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        code: int = 3

    @mulligan.tool
    def fail() -> None:
        raise Frozen()

    with pytest.raises(Frozen):
        fail()
    assert [step.outcome for step in played.steps] == ["failure"]
    assert caplog.records == []


# Which tool it is


class Shelf:
    """Something whose methods are tools, and that can be called itself."""

    def search(self, query: str) -> str:
        return query

    def __call__(self, query: str) -> str:
        return query


def search(query: str) -> str:
    return query


def key_of(function: Any, **options: Any) -> str:
    key: str = mulligan.tool(**options)(function).__mulligan__.key
    return key


def test_tool_key_is_the_module_and_the_qualified_name_of_the_function() -> None:
    def local(query: str) -> str:
        return query

    here = "test_tool_key_is_the_module_and_the_qualified_name_of_the_function.<locals>"
    assert key_of(search) == f"{__name__}:search"
    assert key_of(search, name="find") == f"{__name__}:search"
    assert key_of(mulligan.tool(name="find")(search)) == f"{__name__}:search"
    assert key_of(functools.partial(search, query="fish"), name="fish") == f"{__name__}:search"
    assert key_of(Shelf.search) == key_of(Shelf().search) == f"{__name__}:Shelf.search"
    assert key_of(Shelf()) == key_of(mulligan.tool(name="shelf")(Shelf())) == f"{__name__}:Shelf"
    assert key_of(local) == f"{__name__}:{here}.local"
    assert key_of(lambda query: query, name="search") == f"{__name__}:{here}.<lambda> search"
    assert key_of([].append) == "append"  # of which Python knows no module


def test_tool_key_names_the_server_of_a_tool_and_is_bounded() -> None:
    assert Tool(name="search").key == "search"
    assert Tool(name="search", server="docs").key == "docs/search"
    assert Tool(name="docs.search", server="docs").key == "docs/search"  # as the proxy calls it
    assert len(Tool(name="x" * 1000, server="docs").key) == 300
    tool = mulligan.tool(search).__mulligan__.tool("repair")
    assert tool.key == f"{__name__}:search"
    assert msgspec.structs.replace(tool, learn="repair").key == tool.key


def test_tools_of_one_name_share_no_target_and_wrappings_of_one_function_do(played: Sandbox) -> None:
    def target_of(function: Any, **options: Any) -> Any:
        return mulligan.tool(**options)(function).__mulligan__.find_target({}, (), None).key

    def make_tool(place: str) -> Callable[[str], str]:
        def call(query: str) -> str:
            return f"{place} {query}"

        return call

    assert target_of(search) == target_of(search) == target_of(search, name="find")
    assert target_of(search) != target_of(Shelf().search)
    # Local functions of one factory have one qualified name: what they are called tells them apart.
    weather, stocks = make_tool("weather"), make_tool("stocks")
    assert target_of(weather, name="weather") != target_of(stocks, name="stocks")
    assert target_of(weather, name="weather") == target_of(make_tool("weather"), name="weather")
