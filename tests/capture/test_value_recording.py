"""How much is kept of a call: everything, its shape, or nothing; for a tool, for an agent and by a setting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import mulligan
from mulligan import AgentError
from mulligan.api import Mulligan
from mulligan.contract import counters
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.failure import SettingsError
from mulligan.core.records import History, encode
from mulligan.store.sqlite import SqliteStore
from mulligan.testing import Sandbox, sandbox


class Busy(Exception):
    status_code = 503


def weather(city: str, days: int = 3, unit: Literal["c", "f"] = "c", tags: Any = None) -> str:
    return f"rain in {city}"


def stored(played: Sandbox) -> str:
    return "\n".join(encode(history).decode() for history in played.runs)


# Off


def test_of_a_tool_that_is_off_nothing_is_kept_and_it_is_recovered_all_the_same(played: Sandbox) -> None:
    errors = [Busy("busy")]

    def flaky(city: str) -> str:
        if errors:
            raise errors.pop()
        return city

    assert mulligan.tool(effects="none", record="off")(flaky)("Oslo") == "Oslo"
    assert len(played.backoffs) == 1
    assert played.runs == []
    assert played.events == []


def test_of_an_agent_that_is_off_nothing_is_kept(played: Sandbox) -> None:
    with mulligan.run("private", record="off", context="a secret", metadata={"a": 1}) as run:
        mulligan.tool(weather)("Oslo")
        with run.step("plan", "think"):
            pass
        with pytest.raises(Busy), mulligan.run("child", record="full"):
            mulligan.tool(raising)("Oslo")
        for turn in mulligan.turns(limit=1):
            turn.call([weather], "weather", {"city": "Oslo"})
            turn.call([weather], "wether", {"city": "Oslo"})
        run.record_failure("tool", "timeout", "30 s")
    assert played.runs == []
    assert played.events == []
    assert run.status == "failure"


def raising(city: str) -> str:
    raise Busy(f"busy with {city}")


def test_a_tool_that_is_off_leaves_no_hole_in_its_run(played: Sandbox) -> None:
    inner = mulligan.tool(name="inner")(weather)

    @mulligan.tool(record="off")
    def outer(city: str) -> str:
        return inner(city)

    with mulligan.run("agent") as run:
        with run.step("plan", "think"):
            outer("Oslo")
        with pytest.raises(Busy):
            mulligan.tool(record="off")(raising)("Oslo")
        inner("Oslo")
    (history,) = played.runs
    assert [(step.seq, step.parent, step.name) for step in history.steps] == [
        (1, None, "think"),
        (2, 1, "inner"),
        (3, None, "inner"),
    ]
    assert run.status == "success"


def test_an_exception_of_a_tool_that_is_off_ends_its_run_and_is_not_told(played: Sandbox) -> None:
    with pytest.raises(Busy), mulligan.run("agent"):
        mulligan.tool(record="off")(raising)("Oslo")
    (history,) = played.runs
    assert history.run.end_reason == "raised"
    assert "Oslo" not in stored(played)


@pytest.mark.parametrize("kind", ["async", "stream", "async stream", "schema", "cancelled"])
def test_every_shape_of_function_can_be_off(played: Sandbox, kind: str) -> None:
    off = mulligan.tool(record="off")

    async def fetch() -> str:
        return "rain"

    def words() -> Iterator[str]:
        yield "rain"

    async def awords() -> Any:
        yield "rain"

    async def read() -> list[str]:
        return [word async for word in off(awords)()]

    def interrupted() -> None:
        raise KeyboardInterrupt

    if kind == "async":
        assert asyncio.run(off(fetch)()) == "rain"
    elif kind == "stream":
        assert list(off(words)()) == ["rain"]
    elif kind == "async stream":
        assert asyncio.run(read()) == ["rain"]
    elif kind == "schema":
        assert mulligan.tool(record="off", schema={"type": "object"})(weather)("Oslo") == "rain in Oslo"
    else:
        with pytest.raises(KeyboardInterrupt):
            off(interrupted)()
    assert played.runs == []
    assert played.events == []


# Shape


def test_in_shape_names_types_lengths_and_closed_values_are_kept_and_no_text(played: Sandbox) -> None:
    shaped = mulligan.tool(record="shape")(weather)
    shaped("Oslo", days=7, unit="f", tags=["a", "b"])
    shaped("Oslo", tags={"key": "value"})
    shaped("Oslo", tags=b"1234")
    first, second, third = (history.steps[0] for history in played.runs)
    assert first.arguments == {
        "city": {"$str": 4},
        "days": 7,
        "unit": "f",
        "tags": {"$type": "list", "length": 2},
    }
    assert second.arguments["tags"] == {"$type": "dict", "length": 1}
    assert third.arguments["tags"] == {"$type": "bytes", "length": 4}
    assert first.result is None
    assert "Oslo" not in stored(played)
    assert first.outcome == "success"


def test_in_shape_a_failure_keeps_its_kind_and_a_message_without_the_calls_texts(played: Sandbox) -> None:
    with pytest.raises(Busy):
        mulligan.tool(record="shape", effects="none")(raising)("Trondheim")
    assert "Trondheim" not in stored(played)
    assert "Trondheim" not in str(played.events)
    step = played.runs[0].steps[0]
    assert step.failure is not None
    assert step.failure.kind == "tool/unavailable"
    assert step.failure.message == "busy with [city]"
    assert [each.attempt for each in played.runs[0].steps] == list(range(1, 11))


def test_in_shape_an_answer_that_is_an_error_is_not_kept(played: Sandbox) -> None:
    shaped = mulligan.tool(record="shape")(lambda city: {"error": f"no such place as {city}"})
    assert shaped("Trondheim") == {"error": "no such place as Trondheim"}
    assert "Trondheim" not in stored(played)
    assert played.runs[0].steps[0].has_failed


def test_in_shape_a_repair_keeps_what_was_changed_and_no_text(played: Sandbox) -> None:
    def search(query: str, top_k: int = 5) -> str:
        if not isinstance(top_k, int):
            raise AgentError(f"top_k must be an integer, got {top_k!r}.")
        return query

    assert mulligan.tool(record="shape", effects="none")(search)("fishes", top_k="12345") == "fishes"  # type: ignore[arg-type]
    assert "fishes" not in str(played.events)
    changed = played.runs[0].steps[1].recovery
    assert changed is not None
    assert changed.changes[0].before == {"$str": 5}
    assert changed.changes[0].after == 12345


def test_an_agent_in_shape_keeps_no_context_and_no_texts_of_metadata(played: Sandbox) -> None:
    with mulligan.run("agent", record="shape", context="what to wear", metadata={"user": "anna", "n": 3}) as run:
        mulligan.tool(weather)("Oslo")
        with run.step("plan", "think", about="anna"):
            pass
    (history,) = played.runs
    assert history.run.context is None
    assert history.run.metadata == {"user": {"$str": 4}, "n": 3}
    assert history.steps[0].arguments == {"city": {"$str": 4}}
    assert history.steps[1].metadata == {"about": {"$str": 4}}


def test_in_shape_a_success_after_a_failure_is_kept_in_shape_too(played: Sandbox) -> None:
    with mulligan.run("agent", record="shape"):
        with pytest.raises(Busy):
            mulligan.tool(raising)("Trondheim")
        mulligan.tool(weather)("Trondheim")
    assert "Trondheim" not in stored(played)
    assert [step.outcome for step in played.runs[0].steps] == ["failure", "success"]


# Who decides

FULL, SHAPE, OFF = "full", "shape", "off"


@pytest.mark.parametrize(
    ("setting", "agent", "tool", "kept"),
    [
        (FULL, None, None, FULL),
        (FULL, SHAPE, None, SHAPE),
        (FULL, None, SHAPE, SHAPE),
        (FULL, SHAPE, FULL, SHAPE),
        (FULL, FULL, SHAPE, SHAPE),
        (FULL, SHAPE, OFF, OFF),
        (FULL, OFF, FULL, OFF),
        (SHAPE, None, None, SHAPE),
        (SHAPE, FULL, None, FULL),
        (SHAPE, None, FULL, SHAPE),
        (OFF, None, None, OFF),
        (OFF, FULL, None, FULL),
        (OFF, SHAPE, FULL, SHAPE),
    ],
)
def test_the_stricter_of_tool_and_agent_wins_over_the_setting(setting: str, agent: Any, tool: Any, kept: str) -> None:
    with sandbox(record=setting) as played:
        with mulligan.run("agent", record=agent):
            mulligan.tool(record=tool)(weather)("Oslo")
        steps = [step for history in played.runs for step in history.steps]
        assert how_much(steps) == kept


@pytest.mark.parametrize(
    ("setting", "tool", "kept"),
    [
        (FULL, None, FULL),
        (FULL, SHAPE, SHAPE),
        (FULL, OFF, OFF),
        (SHAPE, FULL, FULL),
        (OFF, None, OFF),
        (OFF, FULL, FULL),
    ],
)
def test_outside_a_run_the_tool_decides_and_else_the_setting(setting: str, tool: Any, kept: str) -> None:
    with sandbox(record=setting) as played:
        for options in ({}, {"schema": {"type": "object"}}):
            mulligan.tool(record=tool, **options)(weather)("Oslo")
        for history in played.runs:
            assert how_much(list(history.steps)) == kept
        assert len(played.runs) == (0 if kept == OFF else 2)


def how_much(steps: list[Any]) -> str:
    if not steps:
        return OFF
    (step,) = steps
    return FULL if step.arguments["city"] == "Oslo" and step.result else SHAPE


def test_a_run_inside_another_keeps_no_more_than_that_one(played: Sandbox) -> None:
    with mulligan.run("outer", record="shape"), mulligan.run("inner", record="full"):
        mulligan.tool(weather)("Oslo")
    assert "Oslo" not in stored(played)


def test_one_function_follows_the_run_it_is_called_in(played: Sandbox) -> None:
    tool = mulligan.tool(weather)
    for record in (None, "shape", "off", "full", None):
        with mulligan.run("agent", record=record):  # type: ignore[arg-type]
            tool("Oslo")
    assert [how_much(list(history.steps)) for history in played.runs] == [FULL, SHAPE, FULL, FULL]


def test_the_setting_is_read_from_the_environment_and_holds_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULLIGAN_RECORD", "shape")
    mine = Mulligan(store=str(tmp_path / "m.db"))
    mine.tool(weather)("Trondheim")
    with pytest.raises(Busy):
        mine.tool(raising)("Trondheim")
    assert mine.flush(30)
    mine.close()
    store = SqliteStore(tmp_path / "m.db")
    histories: list[History] = list(store.runs(DEFAULT_TENANT, RunQuery(limit=10)))
    store.close()
    assert len(histories) == 2
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"Trondheim" not in path.read_bytes(), path


@pytest.mark.parametrize("options", [{"mode": "fix"}, {"record": "some"}, {"record": 1}])
def test_a_run_is_not_begun_with_what_cannot_be_meant(played: Sandbox, options: Any) -> None:
    with pytest.raises(SettingsError, match=r"(mode|record) must be .*, got "):
        mulligan.run("agent", **options)


# The mode of an agent


@pytest.mark.parametrize(
    ("setting", "agent", "tool", "executed"),
    [
        ("repair", None, None, 10),
        ("repair", "observe", None, 1),
        ("repair", "observe", "repair", 1),
        ("repair", "repair", "observe", 1),
        ("observe", None, None, 1),
        ("observe", "suggest", None, 10),
        ("observe", None, "repair", 10),
        ("observe", "suggest", "repair", 10),
    ],
)
def test_the_stricter_mode_of_tool_and_agent_wins(setting: str, agent: Any, tool: Any, executed: int) -> None:
    made: list[str] = []

    def busy(city: str) -> str:
        made.append(city)
        raise Busy("busy")

    with sandbox(mode=setting), pytest.raises(Busy), mulligan.run("agent", mode=agent):
        mulligan.tool(effects="none", mode=tool)(busy)("Oslo")
    assert len(made) == executed


def test_an_agent_that_only_suggests_repairs_nothing(played: Sandbox) -> None:
    def search(top_k: int = 5) -> int:
        if not isinstance(top_k, int):
            raise AgentError(f"top_k must be an integer, got {top_k!r}.")
        return top_k

    tool: Any = mulligan.tool(effects="none")(search)
    assert tool("7") == 7
    with pytest.raises(AgentError), mulligan.run("agent", mode="suggest"):
        tool("7")


# Model steps

TALK = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Weather in Oslo? I am a@b.example"}]


def reply(text: str = "Rain.") -> Any:
    return SimpleNamespace(
        choices=[SimpleNamespace(message=SimpleNamespace(content=text))],
        usage=SimpleNamespace(prompt_tokens=12, completion_tokens=3),
    )


def test_a_model_step_keeps_sizes_and_the_last_user_sentence_and_not_the_conversation(played: Sandbox) -> None:
    with mulligan.run("agent"):
        mulligan.model(name="gpt")(lambda messages, temperature: reply())(TALK, temperature=0.5)
    (history,) = played.runs
    (step,) = history.steps
    told = step.arguments["messages"]
    assert [(each["role"], each["chars"]) for each in told["each"]] == [("system", 9), ("user", 33)]
    assert all(len(each["hash"]) == 8 for each in told["each"])
    assert told["last_user"].startswith("Weather in Oslo?")
    assert "a@b.example" not in stored(played)
    assert step.arguments["temperature"] == 0.5
    assert "Be short." not in stored(played)
    assert step.tokens == {"input": 12, "output": 3}
    assert step.result == {"text": "Rain."}


@pytest.mark.parametrize("kind", ["alone", "in a run", "failing", "async"])
def test_a_run_without_context_is_about_what_the_user_said_first(played: Sandbox, kind: str) -> None:
    errors: list[Exception] = [Busy("busy")] if kind == "failing" else []

    def answered(messages: Any) -> Any:
        if errors:
            raise errors.pop()
        return reply()

    async def aanswered(messages: Any) -> Any:
        return reply()

    chat = mulligan.model(answered)
    if kind == "in a run":
        with mulligan.run("agent"):
            chat(TALK)
            chat([{"role": "user", "content": "And tomorrow?"}])
    elif kind == "async":
        asyncio.run(mulligan.model(aanswered)(TALK))
    else:
        chat(TALK)
    (history,) = played.runs
    assert history.run.context is not None
    assert history.run.context.startswith("Weather in Oslo?")
    assert "a@b.example" not in history.run.context


def test_a_run_with_an_empty_context_stores_no_words_of_the_user(played):
    with mulligan.run("agent", context=""):
        mulligan.model(lambda messages: reply())(TALK)
    assert played.runs[-1].run.context == ""


def test_a_context_that_was_given_stays(played: Sandbox) -> None:
    with mulligan.run("agent", context="the weather"):
        mulligan.model(lambda messages: "Rain.")(TALK)
    assert played.runs[0].run.context == "the weather"


def test_a_model_in_shape_keeps_sizes_and_tokens_only(played: Sandbox) -> None:
    chat = mulligan.model(record="shape", name="gpt")(lambda messages, user: reply())
    with mulligan.run("agent"):
        chat(TALK, user="anna")
    (history,) = played.runs
    (step,) = history.steps
    assert step.arguments == {
        "messages": {"count": 2, "each": [{"role": "system", "chars": 9}, {"role": "user", "chars": 33}]},
        "user": {"$str": 4},
    }
    assert step.tokens == {"input": 12, "output": 3}
    assert step.result is None
    assert history.run.context is None


def test_a_model_that_is_off_is_not_kept(played: Sandbox) -> None:
    mulligan.model(record="off")(lambda messages: reply())(TALK)
    assert played.events == []


def test_a_conversation_that_is_changed_by_the_call_is_kept_as_it_was(played: Sandbox) -> None:
    def chat(messages: list[str]) -> str:
        messages.append("x" * 100)
        return "ok"

    mulligan.model(chat)(["hello"])
    assert played.runs[0].steps[0].arguments["messages"]["count"] == 1


def test_the_hashes_of_messages_survive_redaction(played: Sandbox) -> None:
    mulligan.model(lambda messages: "ok")([f"message {number}" for number in range(200)])
    each = played.runs[0].steps[0].arguments["messages"]["each"]
    assert [one for one in each if len(str(one["hash"])) != 8] == []


def test_the_model_that_a_function_calls_by_default_is_kept_as_if_it_had_been_given(played: Sandbox) -> None:
    @mulligan.model
    def chat(messages: list[dict[str, str]], model: str = "small-1") -> str:
        if model == "small-1" and messages[0]["content"] == "bad":
            raise ConnectionError("reset")
        return model

    said = [{"role": "user", "content": "hello"}]
    assert [chat(said), chat(said, model="big-1"), chat(said, "big-1")] == ["small-1", "big-1", "big-1"]
    with pytest.raises(ConnectionError):
        chat([{"role": "user", "content": "bad"}])

    models = [counters.model_of(history.run, step) for history in played.runs for step in history.steps]
    assert models[:3] == ["small-1", "big-1", "big-1"]
    assert set(models[3:]) == {"small-1"}


def test_a_fallback_is_not_taken_for_the_model_it_stands_in_for(played: Sandbox) -> None:
    @mulligan.model(fallback_models=[lambda messages: "from another"])
    def chat(messages: list[dict[str, str]], model: str = "small-1") -> str:
        raise ConnectionError("reset")

    assert chat([{"role": "user", "content": "hello"}]) == "from another"
    *own, other = played.steps
    assert {step.arguments.get("model") for step in own} == {"small-1"}
    assert "model" not in other.arguments
