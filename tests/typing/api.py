"""What a type checker sees of `import mulligan`. Checked by mypy and pyright, never run.

A call that must be refused carries an ignore; an ignore that is not needed is an error, so each is a check.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true
from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, assert_type

import mulligan
from mulligan import AgentError, Event, Failure, InfraError, Kind, Mulligan, Policy, Remedy, Store, ToolOutcome
from mulligan.core.records import Link
from mulligan.testing import Sandbox, sandbox

# A decorated function keeps its signature and its answer.


@mulligan.tool
def search(query: str, top_k: int = 5) -> list[str]:
    return [query] * top_k


@mulligan.tool(effects="none", type="retrieval", privileged=["query"], policy=Policy(attempts=2))
def configured(query: str, *, exact: bool = False) -> list[str]:
    return [query] if exact else []


@mulligan.tool(
    type="retrieval", empty_result="failure", detect_errors=False, record="shape", learn="off", items=("query",)
)
def sought(query: str) -> list[str]:
    return []


@mulligan.tool
async def fetch(url: str) -> bytes:
    return url.encode()


@mulligan.tool
def words(text: str) -> Iterator[str]:
    yield text


@mulligan.model
async def tokens(prompt: str) -> AsyncIterator[str]:
    yield prompt


@mulligan.model(
    name="large", record="off", compress=str.strip, fallback_models=["other", mulligan.Fallback("x", 9, on="timeout")]
)
def chat(messages: list[str]) -> str:
    return messages[0]


class Index:
    @mulligan.tool
    def find(self, query: str) -> int:
        return len(query)

    @mulligan.tool(effects="none")
    async def afind(self, query: str) -> int:
        return len(query)

    @classmethod
    @mulligan.tool
    def made(cls, size: int) -> Index:
        return cls()

    @staticmethod
    @mulligan.tool
    def size(index: Index) -> int:
        return 0


async def answers() -> None:
    assert_type(search("fish"), list[str])
    assert_type(search("fish", top_k=2), list[str])
    assert_type(configured("fish", exact=True), list[str])
    assert_type(sought("fish"), list[str])
    assert_type(await fetch("http://localhost"), bytes)
    assert_type(words("a b"), Iterator[str])
    assert_type(tokens("hello"), AsyncIterator[str])
    assert_type([token async for token in tokens("hello")], list[str])
    assert_type(chat(["hello"]), str)
    assert_type(Index().find("fish"), int)
    assert_type(await Index().afind("fish"), int)
    assert_type(Index.made(3), Index)
    assert_type(Index.size(Index()), int)


async def wrong_calls_are_errors() -> None:
    search(7)  # type: ignore[arg-type]
    search("fish", top_k="many")  # type: ignore[arg-type]
    search()  # type: ignore[call-arg]
    search("fish", colour="red")  # type: ignore[call-arg]
    configured("fish", True)  # type: ignore[call-arg]
    await fetch(7)  # type: ignore[arg-type]
    words(7)  # type: ignore[arg-type]
    chat("hello")  # type: ignore[arg-type]
    Index().find(7)  # type: ignore[arg-type]


def wrong_options_are_errors() -> None:
    mulligan.tool(effects="sometimes")  # type: ignore[call-overload]
    mulligan.tool(record="some")  # type: ignore[call-overload]
    mulligan.tool(detect_errors="all")  # type: ignore[call-overload]
    mulligan.tool(empty_result="bad")  # type: ignore[call-overload]
    mulligan.run("agent", record="some")  # type: ignore[arg-type]
    mulligan.run("agent", mode="fix")  # type: ignore[arg-type]
    mulligan.run("agent", learn="all")  # type: ignore[arg-type]
    mulligan.tool(learn="all")  # type: ignore[call-overload]
    mulligan.correcting("the text of an error")  # type: ignore[arg-type]
    mulligan.tool(colour="red")  # type: ignore[call-overload]
    mulligan.tool(3)  # type: ignore[call-overload]
    mulligan.model(effects="none")  # type: ignore[call-overload]
    mulligan.turns(limit="ten")  # type: ignore[arg-type]
    mulligan.tol  # type: ignore[attr-defined] # noqa: B018 - a misspelt name is not ours


# Runs, steps, turns and sessions.


def work() -> str:
    with mulligan.session("s1") as session, mulligan.run("agent", version="1", session=session) as run:
        assert_type(session.id, str)
        assert_type(session.reminder(), str)
        assert_type(run.id, str)
        with run.step("plan", "read", words=3) as step:
            assert_type(step.record_failure("tool", "timeout", "30 s"), Failure)
            assert_type(step.step_id, int | None)
            assert_type(run.record_failure(failure_type="tool", failure_code="timeout", step_id=1), Failure)
        assert_type(mulligan.carry_run(search)("fish", top_k=3), list[str])
        run.step("thought")  # type: ignore[arg-type]
        with run.item(("order", 7)), mulligan.correcting(ValueError("no")):
            search("fish")
        assert_type(run.links(), list[Link])
        for turn in mulligan.turns(limit=3):
            assert_type(turn.number, int)
            assert_type(turn.is_last, bool)
            assert_type(turn.notice, str)
            outcome = turn.call([search, fetch], "search", '{"query": "fish"}')
            assert_type(outcome, ToolOutcome)
            assert_type(outcome.ok, bool)
            assert_type(outcome.failure, Failure | None)
            assert_type(outcome.notes, tuple[str, ...])
            assert_type(outcome.answer, dict[str, Any] | None)
            assert_type(outcome.to_message(), str)
            outcome["error"]  # type: ignore[index]
            turn.call({"search": search}, "search", {"query": "fish"})
        assert_type(mulligan.drain_notes(), list[str])
        assert_type(mulligan.settle(), int)
        assert_type(mulligan.settle(search, {"query": "fish"}), int)
        assert_type(mulligan.idempotency_key(), str)
        return run.status


async def async_work() -> Any:
    async with mulligan.run("agent", mode="suggest", record="shape", learn="tell") as run, run.step("respond"):
        async with run.item(7), mulligan.correcting(ValueError("no")):
            pass
        for turn in mulligan.turns():
            return assert_type(await turn.acall([fetch], "fetch", {}), ToolOutcome)
    return None


# What is known of a failure.


def known(error: Exception) -> None:
    failure = mulligan.classify_error(error)
    assert_type(failure.to_tool_response("search"), dict[str, Any])
    assert_type(failure, Failure)
    assert_type(failure.kind, Kind)
    assert_type(failure.remedy, Remedy)
    assert_type(failure.retry_after, float | None)
    raise AgentError("too many", code="E1", hint="ask for 10", recoverable=False) from InfraError("down")


def advised(error: Exception) -> None:
    advice = mulligan.suggest("search", {"top_k": "5"}, error, schema={"properties": {}}, effects="none")
    assert_type(advice.abstained, bool)
    assert_type(advice.reason, str)
    assert_type(advice.suggestions[0].arguments, dict[str, Any])
    assert_type(advice.suggestions[0].automatic, bool)


# One's own parts.


def heard(event: Event) -> None:
    assert_type(event.name, str)


def own(store: Store) -> None:
    mine = Mulligan(store="memory:", policy=Policy(attempts=2))
    assert_type(mine.tool(len)([]), int)
    assert_type(mulligan.add_listener(heard, thread="caller"), Callable[[], None])
    assert_type(mulligan.flush(1.0), bool)
    mulligan.configure(store="memory:")
    store.close()


def rehearsed() -> None:
    with sandbox(attempts=2) as played:
        assert_type(played, Sandbox)
        assert_type(played.backoffs, list[float])
        played.script(search, fail_with=[TimeoutError(), TimeoutError, {"error": "busy"}, None], result=["fish"])
        played.advance(60)
        played.assert_recovered(search)
        played.assert_failed("tool/timeout", "search")
        played.assert_no_new_patterns("known-failures.txt")
