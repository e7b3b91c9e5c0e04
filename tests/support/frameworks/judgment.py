"""Plays a scenario and compares its records and answers with those that it must give."""

from __future__ import annotations

import pytest

from frameworks.scenarios import Conversation, Driver, Scenario, Style, Tools
from mulligan.core.calls import group_attempts
from mulligan.core.episodes import TOOL_TYPES, find_causes
from mulligan.core.run_links import derive_status
from mulligan.testing import Sandbox


def play(driver: Driver, scenario: Scenario, style: Style, played: Sandbox) -> tuple[Conversation, Tools]:
    tools = Tools()
    tools.errors = [error() for error in scenario.errors]
    conversation = driver.play(tools.functions(*scenario.tools), scenario.script, style, **scenario.options)
    return conversation, tools


def recorded_steps(played: Sandbox) -> list[tuple[str, str, str]]:
    """Each attempt of a tool, and the attempts of a model call that failed: name, outcome, kind."""
    failed_models = {step.call for step in played.steps if step.type == "model" and step.failure is not None}
    return [
        (step.name, step.outcome, str(step.failure.kind) if step.failure is not None else "")
        for step in played.steps
        if step.type != "model" or step.call in failed_models
    ]


def statuses(played: Sandbox) -> list[str]:
    return [derive_status(history.run, history.steps, history.links) for history in played.runs]


def check_or_show_limit(
    driver: Driver, scenario: Scenario, conversation: Conversation, tools: Tools, played: Sandbox
) -> None:
    """Compare records and answers. If the driver names a limit of the framework, show that the scenario fails there."""
    if scenario.name in driver.limits:
        with pytest.raises((AssertionError, IndexError)):
            check(scenario, conversation, tools, played)
    else:
        check(scenario, conversation, tools, played)


def check(scenario: Scenario, conversation: Conversation, tools: Tools, played: Sandbox) -> None:
    assert conversation.error is None
    assert conversation.text == "done"
    assert sorted(recorded_steps(played)) == sorted(scenario.steps)
    assert scenario.answer(conversation.answers), conversation.answers
    assert statuses(played) == [scenario.status]
    (history,) = played.runs
    assert history.run.agent == "tester"
    assert history.run.end_reason == "finished"
    assert scenario.reached is None or len(tools.calls) == scenario.reached
    check_causes(scenario, played)


def check_causes(scenario: Scenario, played: Sandbox) -> None:
    """Compare the model and the turn of each failed tool call with the last answer of the script before the call.

    A framework may ask the model more often than the script answers: DSPy extracts the last answer, for example.
    """
    (history,) = played.runs
    answers = [step for step in history.steps if step.type == "model" and step.outcome == "success"]
    turns = [step.seq for step in answers if not step.is_summary]
    requests = [request.tool for reply in scenario.script if isinstance(reply, list) for request in reply]
    calls = [call for call in group_attempts(history.steps) if call.first.type in TOOL_TYPES]
    assert [call.first.name for call in calls] == requests
    causes = find_causes(history)
    for call in calls:
        if call.has_failed:
            assert causes[call.id].model.startswith("scripted")
            assert causes[call.id].turn == max(turn for turn in turns if turn < call.first.seq)
