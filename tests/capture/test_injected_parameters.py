"""Parameters that a framework or the program supplies are no arguments: not recorded, not changed, not offered.

The types here stand in for those of the frameworks, under their qualified names. `tests/frameworks` has the real ones.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Generic, Optional, TypeVar

import pytest

import mulligan
from mulligan import AgentError
from mulligan.capture.framework_classes import INJECTED_TYPES
from mulligan.core.failure import SettingsError
from mulligan.testing import Sandbox, ScriptedModel, call, sandbox

T = TypeVar("T")
MARK = "a row of the database"


def stand_in(name: str, *bases: type) -> type[Any]:
    """Build a class with the qualified name of another library's class."""
    module, _, class_name = name.partition(":")
    return type(class_name, bases, {"__module__": module})


@dataclass
class RunContext(Generic[T]):
    """PydanticAI's context, which is a dataclass: recorded as an argument, it would be copied with all it holds."""

    deps: T
    messages: list[str] = field(default_factory=lambda: [MARK] * 50)


RunContext.__module__ = "pydantic_ai._run_context"
InjectedState = stand_in(
    "langgraph.prebuilt.tool_node:InjectedState", stand_in("langchain_core.tools.base:InjectedToolArg")
)
Depends = stand_in("fastapi.params:Depends")
Request = stand_in("starlette.requests:Request", stand_in("starlette.requests:HTTPConnection"))
Bound = TypeVar("Bound", bound=Request)
CONTEXT: RunContext[list[str]] = RunContext([MARK] * 50)


class Database:
    """A dependency of the user's own program."""


def by_class(query: str, ctx: RunContext) -> str: ...  # type: ignore[type-arg]
def by_generic(query: str, ctx: RunContext[list[str]]) -> str: ...
def by_optional(query: str, ctx: Optional[RunContext[Any]] = None) -> str: ...  # noqa: UP045
def by_union(query: str, ctx: RunContext[Any] | None = None) -> str: ...
def by_text(query: str, ctx: "RunContext[Any]") -> str: ...  # noqa: UP037
def by_mark(query: str, ctx: Annotated[dict[str, Any], InjectedState]) -> str: ...
def by_mark_object(query: str, ctx: Annotated[dict[str, Any], "a hint", InjectedState()]) -> str: ...
def by_annotated_class(query: str, ctx: Annotated[RunContext[Any], "a hint"]) -> str: ...
def by_default(query: str, ctx: Any = Depends()) -> str: ...  # noqa: B008
def by_bound(query: str, ctx: Bound) -> str: ...
def by_position(ctx: RunContext[Any], query: str) -> str: ...
def by_keyword(query: str, *, ctx: RunContext[Any]) -> str: ...
def by_position_only(ctx: RunContext[Any], /, query: str) -> str: ...
def with_names(query: str, ctx: RunContext[Any], **named: Any) -> str: ...
def for_logs(query: str, ctx: logging.Logger) -> str: ...


FORMS = [
    by_class, by_generic, by_optional, by_union, by_text, by_mark, by_mark_object, by_annotated_class, by_default,
    by_bound, by_position, by_keyword, by_position_only, with_names, for_logs,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_an_injected_parameter_is_recognized_by_its_annotation_or_default(
    played: Sandbox, form: Callable[..., str]
) -> None:
    tool = mulligan.tool(effects="none")(form)
    wrapped: Any = getattr(tool, "__mulligan__")  # noqa: B009
    assert wrapped.signature.injected == {"ctx"}
    assert list(wrapped.schema()["properties"]) == ["query"]
    assert wrapped.schema()["required"] == ["query"]
    positional = (CONTEXT, "fish") if form in (by_position, by_position_only) else ("fish",)
    tool(*positional, **({"ctx": CONTEXT} if len(positional) == 1 else {}))
    (step,) = played.steps
    assert step.arguments == {"query": "fish"}


@pytest.mark.parametrize("name", sorted(INJECTED_TYPES))
def test_each_type_of_the_table_is_left_out(played: Sandbox, name: str) -> None:
    def search(query: str, ctx: Any) -> str:
        return query

    search.__annotations__["ctx"] = stand_in("app:Special", stand_in(name))
    mulligan.tool(search)("fish", object())
    assert [step.arguments for step in played.steps] == [{"query": "fish"}]


@pytest.mark.parametrize("annotation", [str, Database, list[RunContext[Any]], str | RunContext[Any], Any, "Unknown"])
def test_other_parameters_stay_arguments(annotation: Any) -> None:
    def search(query: str, ctx: Any) -> str: ...

    search.__annotations__["ctx"] = annotation
    wrapped: Any = mulligan.tool(search).__mulligan__  # type: ignore[attr-defined]
    assert wrapped.signature.injected == frozenset()


def test_a_class_that_only_type_checkers_import_is_recognized(
    played: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = ModuleType("framework_of_test")
    framework.RunContext = RunContext  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "framework_of_test", framework)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tools_of_test.py").write_text(
        textwrap.dedent(
            """
            from __future__ import annotations
            from typing import TYPE_CHECKING, Annotated
            if TYPE_CHECKING:
                import framework_of_test as framework
                from framework_of_test import RunContext
                from nowhere import Deps

            def search(ctx: RunContext[Deps], query: str, top_k: int = 5) -> str: ...
            def find(query: str, ctx: framework.RunContext[Deps] | None = None) -> str: ...
            """
        )
    )
    module = __import__("tools_of_test")
    for function in (module.search, module.find):
        wrapped: Any = mulligan.tool(function).__mulligan__
        assert wrapped.signature.injected == {"ctx"}
    assert mulligan.tool(module.search).__mulligan__.schema()["properties"]["top_k"] == {
        "type": "integer",
        "default": 5,
    }


def test_a_tool_with_a_dependency_of_50_rows_stores_none_of_them(played: Sandbox) -> None:
    def search(ctx: RunContext[list[str]], query: str) -> str:
        if query == "bad":
            raise ValueError("This query is bad.")
        return f"{len(ctx.deps)} rows"

    tool = mulligan.tool(effects="none")(search)

    @mulligan.tool(effects="none")
    async def asearch(ctx: RunContext[list[str]], query: str) -> str:
        return search(ctx, query)

    @mulligan.tool(effects="none")
    def stream(ctx: RunContext[list[str]], query: str) -> Iterator[str]:
        yield search(ctx, query)

    @mulligan.model
    def chat(ctx: RunContext[list[str]], messages: list[str]) -> str:
        return search(ctx, messages[0])

    with mulligan.run("searcher"):
        assert tool(CONTEXT, "fish") == "50 rows"
        assert tool(query="fish", ctx=CONTEXT) == "50 rows"
        assert asyncio.run(asearch(CONTEXT, "fish")) == "50 rows"
        assert list(stream(CONTEXT, "fish")) == ["50 rows"]
        assert chat(CONTEXT, ["fish"]) == "50 rows"
        for failing in (lambda: tool(CONTEXT, "bad"), lambda: tool(query="bad", ctx=CONTEXT)):
            with pytest.raises(ValueError, match="bad"):
                failing()
    stored = repr(played.runs) + repr(played.events)
    assert MARK not in stored
    assert "ctx" not in stored


def test_a_context_of_any_value_is_left_out_also_where_calls_are_cheap(played: Sandbox) -> None:
    """Numbers and texts take a faster path to the record."""

    @mulligan.tool(exclude={"tenant"})
    def search(query: str, tenant: str = "", top_k: int = 5) -> str:
        return query

    for _ in range(3):
        search("fish", "secret tenant", 7)
        search("fish", tenant="secret tenant")
        search("fish", top_k=3)
    played.mulligan.flush(30)
    assert "secret tenant" not in repr(played.runs)
    assert [step.arguments for step in played.steps[:3]] == [
        {"query": "fish", "top_k": 7},
        {"query": "fish"},
        {"query": "fish", "top_k": 3},
    ]


@pytest.mark.parametrize("is_keyword", [True, False])
def test_a_repaired_call_gets_the_same_context(played: Sandbox, is_keyword: bool) -> None:
    contexts = []

    @mulligan.tool(effects="none", clamp=["top_k"])
    def search(query: str, ctx: RunContext[Any], top_k: int = 5) -> int:
        contexts.append(ctx)
        if top_k > 10:
            raise AgentError(f"top_k must be 10 or less, got {top_k}.")
        return top_k

    found = search("fish", ctx=CONTEXT, top_k=50) if is_keyword else search("fish", CONTEXT, 50)
    assert found == 10
    assert [context is CONTEXT for context in contexts] == [True, True]
    assert [step.arguments for step in played.steps] == [
        {"query": "fish", "top_k": 50},
        {"query": "fish", "top_k": 10},
    ]


def test_verify_and_fallback_get_the_context(played: Sandbox) -> None:
    @mulligan.tool(verify=lambda amount, ctx: f"paid {amount} {ctx is CONTEXT}")
    def pay(amount: int, ctx: RunContext[Any]) -> str:
        raise TimeoutError("no answer")

    @mulligan.model(fallback=lambda failure, ctx: f"no model, {ctx is CONTEXT}")
    def chat(ctx: RunContext[Any], messages: list[str]) -> str:
        raise ConnectionError("reset")

    assert pay(5, ctx=CONTEXT) == "paid 5 True"
    assert chat(CONTEXT, ["hello"]) == "no model, True"


def test_a_fingerprint_does_not_depend_on_the_context(played: Sandbox) -> None:
    """Texts of arguments are masked in the message of a failure, and those of the context are not."""

    @mulligan.tool(exclude={"tenant"})
    def search(query: str, tenant: str) -> str:
        raise ValueError("There is no column called harbour.")

    for tenant in ("harbour", "airport"):
        with pytest.raises(ValueError, match="harbour"):
            search("fish", tenant)
    first, second = (step.failure for step in played.steps)
    assert first is not None
    assert second is not None
    assert first.fingerprint == second.fingerprint


def test_settings_add_types_of_the_program() -> None:
    class ReadOnly(Database):
        pass

    def search(query: str, database: ReadOnly) -> str:
        return query

    search.__annotations__["database"] = ReadOnly
    for settings, expected in ((dict[str, Any](), 2), ({"injected_types": [Database]}, 1)):
        with sandbox(**settings) as played:
            mulligan.tool(search)("fish", ReadOnly())
            assert [len(step.arguments or ()) for step in played.steps] == [expected]


def test_a_schema_of_your_own_decides_what_is_an_argument(played: Sandbox) -> None:
    @mulligan.tool(schema={"type": "object", "properties": {"request": {"type": "string"}}, "required": ["request"]})
    def send(request: Request) -> str:
        return "sent"

    assert send("GET /") == "sent"
    assert [step.arguments for step in played.steps] == [{"request": "GET /"}]


# Agent loops


def search_rows(query: str, ctx: RunContext[list[str]]) -> str:
    return f"{len(ctx.deps)} rows about {query}"


def test_a_loop_offers_no_context_and_a_partial_supplies_it(played: Sandbox) -> None:
    offered = []
    script = ScriptedModel(call("search", query="fish"), "done")

    def model(messages: list[Any], tools: list[Any]) -> Any:
        offered.append(tools)
        return script(messages)

    tool = mulligan.tool(name="search", effects="none", privileged=["ctx"])(search_rows)
    result = mulligan.loop(model, [functools.partial(tool, ctx=CONTEXT)], "Search.")
    assert result.text == "done"
    assert "50 rows about fish" in str(result.messages)
    assert list(offered[0][0]["function"]["parameters"]["properties"]) == ["query"]
    (step,) = (step for step in played.steps if step.type == "tool")
    assert (step.name, step.arguments, step.outcome) == ("search", {"query": "fish"}, "success")


def test_a_partial_of_a_tool_keeps_its_options(played: Sandbox) -> None:
    script: list[Any] = [ConnectionError("reset"), "found"]

    @mulligan.tool(effects="none", exclude={"ctx"})
    def search(ctx: Any, query: str) -> str:
        answer = script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    for turn in mulligan.turns(limit=1):
        assert turn.call([functools.partial(search, CONTEXT)], "search", {"query": "fish"}).value == "found"
    steps = [(step.name, step.tool_key, step.outcome) for step in played.steps]
    assert steps == [
        ("search", search.__mulligan__.key, "failure"),  # type: ignore[attr-defined]
        ("search", search.__mulligan__.key, "success"),  # type: ignore[attr-defined]
    ]


def test_a_tool_whose_context_nobody_supplies_is_refused_with_the_way_out(played: Sandbox) -> None:
    tool = mulligan.tool(search_rows)
    message = r"search_rows needs 'ctx', which a model does not supply\. Pass functools\.partial\(search_rows, ctx="
    with pytest.raises(SettingsError, match=message):
        mulligan.loop(ScriptedModel("done"), [tool], "Search.")
    for turn in mulligan.turns(limit=1):
        with pytest.raises(SettingsError, match=message):
            turn.call([tool], "search_rows", {"query": "fish"})


@pytest.mark.parametrize("settings", [{}, {"min_confidence": 0.5}], ids=["rejected", "repaired"])
def test_a_model_cannot_supply_the_context(settings: dict[str, Any]) -> None:
    contexts = []

    @mulligan.tool(effects="none")
    def search(query: str, ctx: RunContext[Any] | None = None, **named: Any) -> str:
        contexts.append(ctx)
        return "found"

    with sandbox(**settings) as played:
        for turn in mulligan.turns(limit=1):
            arguments = {"query": "fish", "ctx": {"user": "root"}}
            outcome = turn.call([functools.partial(search, ctx=CONTEXT)], "search", arguments)
    if settings:
        assert contexts == [CONTEXT]
        assert outcome.value == "found"
    else:
        assert contexts == []
        assert outcome.failure is not None
        assert "search has no argument 'ctx'." in outcome.failure.message
    assert played.steps[0].outcome == "failure"


def send_rows(database, key: str, query: str) -> str:  # type: ignore[no-untyped-def]
    """Send rows to the archive."""
    return f"{type(database).__name__} {key} {query}"


def test_what_a_partial_supplies_is_neither_offered_nor_replaced(played: Sandbox) -> None:
    offered = []
    script = ScriptedModel(call("send_rows", query="fish"), call("send_rows", query="fish", key="other"), "done")

    def model(messages: list[Any], tools: list[Any]) -> Any:
        offered.append(tools)
        return script(messages)

    tool = functools.partial(send_rows, database=Database(), key="sk-1234567890")
    result = mulligan.loop(model, [tool], "Send.")
    function = offered[0][0]["function"]
    assert list(function["parameters"]["properties"]) == ["query"]
    assert function["description"] == "Send rows to the archive."
    assert "sk-1234567890" not in str(offered)
    assert "Database sk-1234567890 fish" in str(result.messages)
    assert "send_rows has no argument 'key'." in result.report


def test_a_schema_of_your_own_decides_what_a_partial_offers(played: Sandbox) -> None:
    schema = {"properties": {"key": {"type": "string"}, "query": {"type": "string"}}}
    tool = mulligan.tool(schema=schema)(functools.partial(send_rows, Database(), key="default"))
    for turn in mulligan.turns(limit=1):
        outcome = turn.call([tool], "send_rows", {"key": "other", "query": "fish"})
    assert outcome.value == "Database other fish"
    assert played.steps[0].arguments == {"key": "other", "query": "fish"}


class Archive:
    @mulligan.tool
    def send(self, query: str, ctx: RunContext[Any]) -> str:
        return f"{query} {len(ctx.messages)}"


def test_a_partial_of_a_method_keeps_its_object(played: Sandbox) -> None:
    for turn in mulligan.turns(limit=1):
        outcome = turn.call([functools.partial(Archive().send, ctx=CONTEXT)], "send", {"query": "fish"})
    assert outcome.value == "fish 50"
    assert played.steps[0].arguments == {"query": "fish"}


@pytest.mark.parametrize(
    "supply",
    [lambda tool: functools.partial(tool, CONTEXT), lambda tool: functools.partial(tool, ctx=CONTEXT)],
    ids=["position", "keyword"],
)
def test_verify_gets_what_a_partial_supplies(played: Sandbox, supply: Callable[..., Any]) -> None:
    @mulligan.tool(verify=lambda ctx, amount: f"paid {amount} {ctx is CONTEXT}")
    def pay(ctx: RunContext[Any], amount: int) -> str:
        raise TimeoutError("no answer")

    for turn in mulligan.turns(limit=1):
        assert turn.call([supply(pay)], "pay", {"amount": 5}).value == "paid 5 True"
