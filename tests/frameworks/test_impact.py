"""An agent of the real LangChain works for two simulated weeks: `impact` shows the effect of advice that was put in."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("langchain", exc_type=ImportError)

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from simulated_weeks import SimulatedModel, check_impact, check_show, start_times

import mulligan
from mulligan.build import Components
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.integrations.langchain import MulliganMiddleware
from mulligan.settings import load_settings
from mulligan.store.sqlite import SqliteStore

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are theirs
RUNS = 110


@tool
def start_job(job: str, queue: str) -> str:
    """Start a job."""
    if queue != "slow":
        raise ValueError(f"Invalid value for queue: {queue}")
    return f"started {job}"


class PlanningModel(BaseChatModel):
    """First says "fast". After a failure it says "slow" more often if it has read that."""

    simulated: Any

    @property
    def _llm_type(self) -> str:
        return "planning"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        answers = [message for message in messages if isinstance(message, ToolMessage)]
        if answers and answers[-1].text.startswith("started"):
            return ChatResult(generations=[ChatGeneration(message=AIMessage("done"))])
        is_right = bool(answers) and self.simulated.is_right("slow" in answers[0].text)
        queues = ["fast", "slow" if is_right else "medium", "slow"]
        arguments = {"job": messages[0].text, "queue": queues[len(answers)]}
        request = {"name": "start_job", "args": arguments, "id": f"call_{len(answers)}", "type": "tool_call"}
        answer = AIMessage("", tool_calls=[request], response_metadata={"model_name": "small-1"})
        return ChatResult(generations=[ChatGeneration(message=answer)])


def test_impact_shows_what_the_simulation_put_in_and_show_names_the_runs_without_advice(types):
    shift = 0.0
    settings = load_settings({"holdout": 0.5})
    memory = mulligan.Mulligan()
    memory._components = Components(
        settings,
        open_store=lambda: SqliteStore(settings.folder / "mulligan.db"),
        clock=lambda: time.time() + shift,
    )
    middleware = [MulliganMiddleware(memory, agent="planner")]
    agent = create_agent(PlanningModel(simulated=SimulatedModel(3)), [start_job], middleware=middleware)
    for number, shift in enumerate(start_times(RUNS)):  # noqa: B007 - the clock reads it
        agent.invoke({"messages": [HumanMessage(f"job {number}")]})
        memory.flush()
    row = check_impact(types)
    assert row["held_out_cases"] >= 20
    store = SqliteStore(settings.folder / "mulligan.db")
    runs = [history.run for history in store.runs(DEFAULT_TENANT, RunQuery(limit=RUNS))]
    store.close()
    held_out = [run.id for run in runs if any(record.held_out for record in run.advice)]
    advised = [run.id for run in runs if run.advice and run.id not in held_out]
    check_show(types, held_out[0], advised[0])
