"""Each adapter plays the same twelve scenarios in its framework, with the same records and answers.

Where a framework does not allow it, its driver names the reason in `limits`, and the test shows that it fails there.
"""

from __future__ import annotations

import importlib
import threading

import pytest
import taught
from frameworks.judgment import check_or_show_limit, play, recorded_steps, statuses
from frameworks.scenarios import (
    SCENARIOS,
    Conversation,
    Driver,
    RateLimitError,
    Request,
    Scenario,
    Style,
    Tools,
    failure_of,
)

import mulligan
from mulligan.core.episodes import find_causes
from mulligan.core.run_links import derive_status
from mulligan.testing import Sandbox, sandbox

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are theirs
PACKAGES = {
    "langchain": "langchain",
    "pydantic_ai": "pydantic_ai",
    "openai_agents": "agents",
    "google_adk": "google.adk",
    "agent_framework": "agent_framework",
    "strands": "strands",
}


@pytest.fixture(params=PACKAGES)
def driver(request: pytest.FixtureRequest) -> Driver:
    pytest.importorskip(PACKAGES[request.param], exc_type=ImportError)
    try:
        return importlib.import_module(f"frameworks.{request.param}_driver").driver  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        if error.name != f"frameworks.{request.param}_driver":
            raise
        pytest.skip("no adapter yet")


@pytest.mark.parametrize("style", ["sync", "async", "stream"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(driver: Driver, scenario: Scenario, style: Style, played: Sandbox) -> None:
    conversation, tools = play(driver, scenario, style, played)
    check_or_show_limit(driver, scenario, conversation, tools, played)


@pytest.mark.parametrize("style", ["sync", "async", "stream"])
def test_a_failed_call_is_attributed_to_the_model_and_the_turn_that_requested_it(
    driver: Driver, style: Style, played: Sandbox
) -> None:
    script = [[Request("pay", {"amount": number})] for number in (1, 2)]
    driver.play(Tools().functions("pay"), [*script, "done"], style)
    (history,) = played.runs
    turns = [step for step in history.steps if step.type == "model"]
    failed_steps = [step for step in history.steps if step.has_failed]
    causes = find_causes(history)
    assert [step.arguments["amount"] for step in failed_steps] == [1, 2]
    assert all(causes[step.call].model.startswith("scripted") for step in failed_steps)
    assert [causes[step.call].turn for step in failed_steps] == [turns[0].seq, turns[1].seq]


@pytest.mark.parametrize("style", ["sync", "async", "stream"])
def test_a_tool_with_a_similar_name_is_named_and_not_called(driver: Driver, style: Style, played: Sandbox) -> None:
    """A framework asks for approval under the requested name: `Pay` must not get past the approval of `pay`."""
    tools = Tools()
    conversation = driver.play(tools.functions("pay"), [[Request("Pay", {"amount": 5})], "done"], style)
    assert tools.calls == []
    assert failure_of(conversation.answers[0])["suggestions"] == ["Did you mean pay?"]
    assert recorded_steps(played) == [("Pay", "failure", "tool/unknown_tool")]
    (stop,) = (step.stop for step in played.steps if step.stop is not None)
    assert stop.reason == 'no tool has this name; the model is asked: "Did you mean pay?"'


def test_a_cancelled_task_is_no_failure(driver: Driver, played: Sandbox) -> None:
    tools = Tools()
    driver.cancel(tools.functions("wait"), [[Request("wait", {"seconds": 5})], "done"], tools.started)
    assert recorded_steps(played) == [("wait", "cancelled", "")]
    (history,) = played.runs
    assert history.run.end_reason == "abandoned"


def test_a_run_that_is_resumed_after_an_interrupt_is_one_run(driver: Driver, played: Sandbox) -> None:
    if "interrupt" in driver.limits:
        pytest.skip(driver.limits["interrupt"])
    answer = driver.interrupt_and_resume(played)
    assert "paid 5, approved" in answer
    assert [step.failure for step in played.steps] == [None] * len(played.steps)
    (history,) = played.runs
    assert statuses(played) == ["success"]
    assert history.run.end_reason == "finished"


def test_two_agents_at_once_are_two_runs(driver: Driver, played: Sandbox) -> None:
    scenario = SCENARIOS[0]
    errors: list[BaseException] = []

    def work() -> None:
        try:
            driver.play(Tools().functions(*scenario.tools), scenario.script, "sync", **scenario.options)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [derive_status(history.run, history.steps, history.links) for history in played.runs] == [
        "recovered",
        "recovered",
    ]


def test_a_run_of_the_program_contains_the_calls(driver: Driver, played: Sandbox) -> None:
    scenario = SCENARIOS[0]
    with mulligan.run("program") as run:
        driver.play(Tools().functions(*scenario.tools), scenario.script, "sync", **scenario.options)
    assert run.status == "recovered"
    (history,) = played.runs
    assert history.run.agent == "program"


def test_options_of_a_decorated_tool_apply_and_it_is_recorded_once(driver: Driver, played: Sandbox) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "rate limit")
    tools = Tools()
    tools.errors = [error() for error in scenario.errors]
    (function,) = tools.functions("fetch")
    driver.play([mulligan.tool(effects="none")(function)], scenario.script, "sync")
    assert recorded_steps(played) == [*scenario.steps]
    assert len(tools.calls) == 2


def without_ids(conversation: Conversation) -> tuple[list[str], str, str]:
    return conversation.answers, conversation.text, type(conversation.error).__name__


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_observing_and_being_off_change_nothing(driver: Driver, scenario: Scenario) -> None:
    conversations = []
    for options in ({"mode": "observe"}, {}):
        with sandbox(enabled=bool(options)) as played:
            tools = Tools()
            tools.errors = [error() for error in scenario.errors]
            all_options = {**scenario.options, **options}
            conversation = driver.play(tools.functions(*scenario.tools), scenario.script, "async", **all_options)
            conversations.append((without_ids(conversation), tools.calls))
            assert bool(played.steps) == bool(options)
    assert conversations[0] == conversations[1]


@pytest.mark.parametrize("style", ["async", "stream"])
def test_a_fallback_answers_for_the_model(driver: Driver, played: Sandbox, style: Style) -> None:
    def apologize(failure: mulligan.Failure) -> str:
        return "Ask me later."

    conversation = driver.play([], [RateLimitError("Too many requests")] * 9, style, model={"fallback": apologize})
    assert conversation.text == "Ask me later."
    assert played.runs[0].run.end_reason == "finished"


def test_lessons_are_added_to_the_instructions(driver: Driver, played: Sandbox) -> None:
    @mulligan.tool
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"rain in {city}"

    weather("Oslo")
    mulligan.flush(30)
    taught.prove(played.store, 1_700_000_000_000, "weather")
    conversation = driver.play([weather], ["done"], "async", inject_lessons=True)
    assert "use k=10" in conversation.sent[0]
