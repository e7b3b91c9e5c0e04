"""The open runs of an adapter: which one a key means, and which summaries of a session are new."""

from __future__ import annotations

import re
from typing import Any

import pytest

import mulligan
from mulligan.core.failure import SettingsError
from mulligan.integrations import framework_agent
from mulligan.integrations.framework_agent import FrameworkAgent
from mulligan.integrations.framework_tools import ToolDefinition
from mulligan.testing import Sandbox


def end_reasons(played: Sandbox) -> list[str | None]:
    return [history.run.end_reason for history in played.runs]


def test_a_run_that_pauses_under_the_key_of_another_one_keeps_it(played: Sandbox) -> None:
    agent = FrameworkAgent()
    first, second = agent.start_run("first"), agent.start_run("second")
    first.pause("waiting")
    second.pause("waiting")
    assert agent.start_run("waiting") is second
    assert sorted(map(str, end_reasons(played))) == ["None", "abandoned"]


def test_the_late_end_of_an_old_run_does_not_remove_the_new_one(played: Sandbox) -> None:
    agent = FrameworkAgent()
    with mulligan.run("program"):
        old = agent.start_run("key")
    new = agent.start_run("key")
    old.end()
    assert agent.start_run("key") is new


def test_the_oldest_run_that_was_never_ended_is_abandoned(played: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework_agent, "MAX_OPEN_RUNS", 2)
    agent = FrameworkAgent()
    runs = [agent.start_run(key) for key in ("a", "b", "c")]
    assert [run.run.is_open for run in runs] == [False, True, True]


def test_a_summary_counts_once_in_a_session_also_in_later_runs(played: Sandbox) -> None:
    agent = FrameworkAgent()
    for key in ("first", "second"):
        run = agent.start_run(key, session="chat")
        for _ in range(3):
            run.instructions([], ["summary 1"])
        run.end()
    assert [event.name for event in played.events].count("context.compacted") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mulligan": "researcher"}, "or the name as agent='researcher'"),
        ({"mulligan": object()}, "Invalid mulligan of type object. Pass a Mulligan object."),
        ({"agent": 3}, 'Invalid agent 3. Use the name of the agent, for example agent="researcher".'),
        ({"inject_lessons": "yes"}, "Invalid inject_lessons 'yes'. Use True, False or the maximum number of tokens."),
        ({"model": "gpt"}, "Invalid model 'gpt'. Map options to values"),
        ({"model": {"retry": 3}}, "of the model: model() got an unexpected keyword argument 'retry'"),
        ({"effects": "none"}, "Unknown option 'effects' of an agent. Valid options: agent, tools, model"),
        ({"inject_lesson": True}, "Did you mean 'inject_lessons'?"),
        ({"tools": [len]}, 'for example tools={"search": {"effects": "none"}}'),
        ({"tools": {"fetch": "none"}}, "Invalid options 'none' of the tool 'fetch'"),
        (
            {"tools": {"fetch": {"retries": 5}}},
            "of the tool 'fetch': tool() got an unexpected keyword argument 'retries'",
        ),
        ({"tools": {"fetch": {"efects": "none"}}}, "Did you mean 'effects'?"),
        ({"tools": {"fetch": {"effects": "no"}}}, "of the tool 'fetch': effects must be none, idempotent or once"),
    ],
)
def test_an_invalid_option_is_named_when_the_adapter_is_built(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        FrameworkAgent(**options)


def test_options_for_a_misspelled_tool_are_reported_once(played: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    tools = FrameworkAgent(tools={"fetsh": {"effects": "none"}, "of_another_agent": {}, "search": {}, "*": {}}).tools
    for _ in range(2):
        tools.define({"fetch": object(), "search": object()}, lambda tool: ToolDefinition(""))
    assert [record.message for record in caplog.records] == [
        "No tool is named 'fetsh', so its options have no effect. Did you mean 'fetch'?"
    ]


def test_repeated_call_after_a_lost_answer_has_a_note_until_the_next_user_message(played: Sandbox) -> None:
    agent = FrameworkAgent()
    tools = {"pay": ToolDefinition("pay", {"properties": {"invoice": {}, "currency": {"default": "EUR"}}})}
    made: list[Any] = []

    def pay(name: str, arguments: Any) -> str:
        made.append(arguments)
        if len(made) < 3:
            raise TimeoutError("no answer in 30 s")
        return "paid"

    def request(key: str) -> list[str]:
        run = agent.start_run(key, session="chat")
        requests = ({"invoice": "INV-1"}, {"currency": "EUR", "invoice": "INV-1"}, {"invoice": "INV-1"})
        answers = [run.call(tools, "pay", arguments, pay).to_message() for arguments in requests]
        run.end()
        return answers

    note = "the same call of pay was made before and its outcome is unknown: check before you repeat it."
    assert [note in answer for answer in request("first")] == [False, True, True]
    assert len(made) == 3  # every call is made
    assert played.runs[0].run.end_reason == "finished"
    assert not played.runs[0].links
    assert not any(note in answer for answer in request("second"))


def test_adapter_tool_is_not_repeated_after_a_payment_inside_it(played: Sandbox) -> None:
    paid: list[str] = []

    @mulligan.tool
    def pay(invoice: str) -> str:
        paid.append(invoice)
        return "paid"

    def checkout(name: str, arguments: dict[str, Any]) -> str:
        pay("INV-1")
        raise ConnectionResetError("reset")

    run = FrameworkAgent(tools={"checkout": {"effects": "none"}}).start_run("key")
    outcome = run.call({"checkout": ToolDefinition("checkout")}, "checkout", {}, checkout)
    assert not outcome.ok
    assert paid == ["INV-1"]
    assert "pay may have executed inside this call" in outcome.to_message()


def test_effects_that_an_adapter_declares_replace_those_of_the_function_behind_its_tool(played: Sandbox) -> None:
    calls: list[str] = []

    @mulligan.tool
    def fetch(page: str) -> str:
        calls.append(page)
        if len(calls) == 1:
            raise ConnectionResetError("reset")
        return "text"

    run = FrameworkAgent(tools={"fetch": {"effects": "none"}}).start_run("key")
    definitions = {"fetch": ToolDefinition("fetch", function=fetch)}
    outcome = run.call(definitions, "fetch", {"page": "a"}, lambda name, arguments: fetch(**arguments))
    assert outcome.ok
    assert calls == ["a", "a"]


def test_program_around_an_agent_that_paid_is_not_repeated(played: Sandbox) -> None:
    paid: list[str] = []
    agent = FrameworkAgent()

    def pay(name: str, arguments: dict[str, Any]) -> str:
        paid.append(name)
        return "paid"

    @mulligan.tool(effects="none")
    def research() -> None:
        agent.start_run("key").call({"pay": ToolDefinition("pay")}, "pay", {}, pay)
        raise ConnectionResetError("reset")

    with pytest.raises(ConnectionResetError, match="reset") as raised:
        research()
    assert paid == ["pay"]
    assert "pay may have executed inside this attempt" in raised.value.__notes__[0]
