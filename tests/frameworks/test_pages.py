"""The pages of frameworks without an adapter: their code runs in the real framework, and plays the same scenarios.

Where a framework does not allow it, its driver names the reason in `limits`, and the test shows that it fails there.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest
from frameworks.judgment import check_or_show_limit, play, recorded_steps, statuses
from frameworks.pages import PAGES, execute_blocks
from frameworks.scenarios import (
    NO_EFFECTS,
    SCENARIOS,
    Driver,
    RateLimitError,
    Request,
    Scenario,
    Style,
    Tools,
    failure_of,
)
from frameworks.table import PAGE, render_scenarios, render_table, update_page

import mulligan
from mulligan.testing import Sandbox

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are theirs
SCRIPT = ([Request("search", {"query": "fish", "top_k": 50})], "done")


@pytest.fixture(params=PAGES)
def driver(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(PAGES[request.param], exc_type=ImportError)
    return importlib.import_module(f"frameworks.{request.param}_driver").driver


def test_the_start_of_the_page_repairs_a_call(driver: Any, played: Sandbox) -> None:
    run, _ = driver.run_page(SCRIPT, 0)
    assert recorded_steps(played) == [("search", "failure", "tool/invalid_arguments"), ("search", "success", "")]
    assert run.status == "recovered"


def test_the_program_of_the_page_tells_the_model_about_a_repair(driver: Any, played: Sandbox) -> None:
    run, text = driver.run_page(SCRIPT * driver.programs)
    assert recorded_steps(played)[-2:] == [("search", "failure", "tool/invalid_arguments"), ("search", "success", "")]
    assert run.status == "recovered"
    assert "50 -> 10" in text


@pytest.mark.parametrize("style", ["sync", "async", "stream"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(driver: Any, scenario: Scenario, style: Style, played: Sandbox) -> None:
    if style not in driver.styles:
        pytest.skip(f"{driver.title} has no {style} agent")
    conversation, tools = play(driver, scenario, style, played)
    check_or_show_limit(driver, scenario, conversation, tools, played)


def test_a_cancelled_task_is_no_failure(driver: Driver, played: Sandbox) -> None:
    if "cancellation" in driver.limits:
        pytest.skip(driver.limits["cancellation"])
    tools = Tools()
    driver.cancel(tools.functions("wait"), [[Request("wait", {"seconds": 5})], "done"], tools.started)
    assert recorded_steps(played) == [("wait", "cancelled", "")]
    (history,) = played.runs
    assert history.run.end_reason == "abandoned"


def test_a_run_that_is_resumed_after_an_interrupt_is_one_run(driver: Driver, played: Sandbox) -> None:
    if "interrupt" in driver.limits:
        pytest.skip(driver.limits["interrupt"])
    assert "paid 5, approved" in driver.interrupt_and_resume(played)
    assert [step.failure for step in played.steps] == [None] * len(played.steps)
    assert statuses(played) == ["success"]


def test_the_text_of_an_infra_error_is_not_for_the_model(driver: Any, played: Sandbox) -> None:
    def unlock(door: int) -> str:
        """Unlock a door."""
        raise mulligan.InfraError("vault at 10.0.0.7 is sealed")

    script = [[Request("unlock", {"door": 1})], "done"]
    conversation = driver.play([unlock], script, driver.styles[0])
    assert "10.0.0.7" not in "".join(conversation.sent + conversation.answers)
    assert [step.outcome for step in played.steps if step.type == "tool"] == ["failure"]


def test_only_one_layer_retries(driver: Any, played: Sandbox) -> None:
    tools = Tools()
    tools.errors = [RateLimitError("Too many requests") for _ in range(20)]
    script = [[Request("fetch", {"url": "a"})], "done"]
    conversation = driver.play(tools.functions("fetch"), script, driver.styles[0], **NO_EFFECTS)
    assert len(tools.calls) == 3
    assert failure_of(conversation.answers[0])["code"] == "rate_limit"


def test_a_correction_by_the_model_counts_as_a_recovery_where_turns_are_known(driver: Any, played: Sandbox) -> None:
    def find(name: str, section: int = 1) -> str:
        """Find a name."""
        if section == 2:
            raise RuntimeError("This section is not supported.")
        return f"{name} in {section}"

    arguments: list[dict[str, Any]] = [{"name": "fish", "section": 2}, {"name": "fish", "section": 3}]
    driver.play([find], [*([Request("find", values)] for values in arguments), "done"], driver.styles[0])
    assert statuses(played) == ["recovered" if driver.knows_turns else "partial"]


def test_of_a_model_call_only_the_conversation_and_the_model_are_recorded(driver: Any, played: Sandbox) -> None:
    driver.play(Tools().functions("search"), [[Request("search", {"query": "fish"})], "done"], driver.styles[0])
    steps = [step for step in played.steps if step.type == "model"]
    assert len(steps) >= 2
    assert {name for step in steps for name in step.arguments or {}} <= {"messages", "model"}


@pytest.mark.parametrize("is_text", [False, True])
def test_the_hooks_of_the_crewai_page_know_names_of_tools_as_crewai_writes_them(played: Sandbox, is_text: bool) -> None:
    pytest.importorskip("crewai")
    from crewai import Agent, Crew, Task
    from crewai.hooks import clear_all_global_hooks
    from crewai.tools import tool
    from frameworks.crewai_driver import ScriptedLLM

    class TextLLM(ScriptedLLM):
        def supports_function_calling(self) -> bool:
            return False

    @tool("Pay Bill")
    def pay(amount: int) -> str:
        """Pay an amount."""
        raise TimeoutError("The payment service did not answer in 30 s.")

    action = 'Thought: I pay.\nAction: pay_bill\nAction Input: {"amount": 5}'
    replies: list[Any] = [action, "Thought: I know it.\nFinal Answer: done"]
    if not is_text:
        replies = [[Request("pay_bill", {"amount": 5})], "done"]
    llm = (TextLLM if is_text else ScriptedLLM)(model="scripted", script=replies)
    execute_blocks("crewai", 1)
    try:
        agent = Agent(role="payer", goal="Pay.", backstory="You pay.", llm=llm, tools=[pay])
        task = Task(description="Pay.", expected_output="done", agent=agent)
        with mulligan.run("payer"):
            assert Crew(agents=[agent], tasks=[task]).kickoff().raw == "done"
    finally:
        clear_all_global_hooks()
    assert recorded_steps(played) == [("pay_bill", "failure", "tool/timeout")]  # CrewAI alone would pay three times
    assert "the call may have executed" in str(llm.sent[-1])


def test_the_hooks_of_the_crewai_page_leave_tools_of_crewai_alone(played: Sandbox) -> None:
    pytest.importorskip("crewai")
    from crewai import Agent, Crew, Task
    from crewai.hooks import clear_all_global_hooks
    from frameworks.crewai_driver import ScriptedLLM

    question = {"question": "Any fish?", "context": "We need fish.", "coworker": "helper"}
    llm = ScriptedLLM(model="scripted", script=[[Request("ask_question_to_coworker", question)], "done"])
    helper_llm = ScriptedLLM(model="scripted", script=["two fish"])
    execute_blocks("crewai", 1)
    try:
        agent = Agent(role="asker", goal="Ask.", backstory="You ask.", llm=llm, allow_delegation=True)
        helper = Agent(role="helper", goal="Help.", backstory="You help.", llm=helper_llm)
        task = Task(description="Ask.", expected_output="done", agent=agent)
        with mulligan.run("asker"):
            assert Crew(agents=[agent, helper], tasks=[task]).kickoff().raw == "done"
    finally:
        clear_all_global_hooks()
    assert "two fish" in str(llm.sent[-1])
    assert recorded_steps(played) == []


def test_the_hooks_of_the_claude_page_explain_record_and_remind(played: Sandbox) -> None:
    pytest.importorskip("claude_agent_sdk")
    from frameworks.claude_agent_sdk_driver import ScriptedTransport

    names = execute_blocks("claude_agent_sdk")
    failure = {"hook_event_name": "PostToolUseFailure", "tool_name": "Bash", "error": "Exit code 127\nfoo: not found"}
    common = {"session_id": "s1", "transcript_path": "", "cwd": "/"}
    prompt = {"hook_event_name": "UserPromptSubmit", "prompt": "Continue.", **common}
    compaction = {"hook_event_name": "PreCompact", "trigger": "auto", "custom_instructions": None, **common}
    texts: list[Any] = []

    class HookTransport(ScriptedTransport):
        async def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
            for event in (prompt, {**failure, **common, "tool_input": {"command": "foo"}}, compaction, prompt):
                (hook,) = self.hooks[event["hook_event_name"]]
                output = await self.request("hook_callback", callback_id=hook, input=event, tool_use_id="c1")
                texts.append(output.get("hookSpecificOutput", {}).get("additionalContext", ""))
            return await super().call_tool(name, arguments)

    run = asyncio.run(names["answer_with_hooks"]("Find fish.", transport=HookTransport(SCRIPT)))
    assert texts[0] == texts[2] == ""
    assert '"error": "tool/' in texts[1]
    assert "Bash" in texts[3]
    assert [(step.name, step.outcome) for step in played.steps][:1] == [("Bash", "failure")]
    assert run.status == "partial"


def test_the_tables_of_the_page_are_those_of_the_drivers(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        update_page()
    text = PAGE.read_text()
    assert render_table() in text
    assert render_scenarios() in text
