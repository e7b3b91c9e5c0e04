"""A program with an agent of LangChain that starts jobs for two simulated weeks. `tests/frameworks/test_impact.py` runs
it as a process whose clock is shifted.
"""

# No `from __future__ import annotations`: LangChain reads the annotations of tools.

import os
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from simulated_weeks import SimulatedModel, start_times

import mulligan
from mulligan.integrations.langchain import MulliganMiddleware


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

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_model_name": "small-1"}  # as models of providers name themselves to tracers

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
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[request]))])


def work(runs: int) -> None:
    model = PlanningModel(simulated=SimulatedModel(3))
    agent = create_agent(model, [start_job], middleware=[MulliganMiddleware(agent="planner")])
    clock = Path(os.environ["TEST_CLOCK_FILE"])
    for number, shift in enumerate(start_times(runs)):
        clock.write_text(str(shift))
        agent.invoke({"messages": [HumanMessage(f"job {number}")]})
        mulligan.flush()
