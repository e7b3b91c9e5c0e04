"""Recovery for agents of LangChain and LangGraph: `create_agent(model, tools, middleware=[MulliganMiddleware()])`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NotRequired, Optional

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import PrivateStateAttr, ToolCallRequest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig

from mulligan.api import Mulligan
from mulligan.capture.player import run_in_thread
from mulligan.core.records import new_id
from mulligan.integrations.framework_agent import AgentRun, FrameworkAgent
from mulligan.integrations.langchain_tools import GraphCall, ToolResult, define_tool, is_unknown


class MulliganState(AgentState[Any]):
    """The state of an agent, with the run that its calls belong to: a resumed graph continues it."""

    mulligan_run: NotRequired[Annotated[str, PrivateStateAttr]]  # type: ignore[valid-type]


class MulliganMiddleware(AgentMiddleware[Any, Any, Any]):
    """Records the runs of an agent and recovers its tool and model calls. Put it first in the list.

    The options are those of `FrameworkAgent`. Without `create_agent`, pass its methods `wrap_tool_call` and
    `awrap_tool_call` to a `ToolNode`.
    """

    state_schema = MulliganState

    def __init__(self, mulligan: Mulligan | None = None, **options: Any) -> None:
        super().__init__()
        self._agent = FrameworkAgent(mulligan, **options)

    # Runs

    def before_agent(self, state: Any, runtime: Any, config: Optional[RunnableConfig] = None) -> dict[str, Any]:  # noqa: UP045
        # LangGraph passes the config to a parameter with exactly this annotation.
        # An earlier run of this thread may wait for a person, or another part of the graph has raised.
        self._agent.end_run(state.get("mulligan_run"), KeyboardInterrupt())
        run_key, messages = new_id("langchain"), state.get("messages", [])
        texts = [message.text for message in messages if isinstance(message, HumanMessage)]
        agent_name = (config or {}).get("metadata", {}).get("lc_agent_name")
        self._start_run(run_key, runtime, agent=agent_name, context=next(reversed(texts), None))
        return {"mulligan_run": run_key}

    async def abefore_agent(
        self,
        state: Any,
        runtime: Any,
        config: Optional[RunnableConfig] = None,  # noqa: UP045
    ) -> dict[str, Any]:
        return await run_in_thread(self.before_agent, state, runtime, config)  # it may read the session from the store

    def after_agent(self, state: Any, runtime: Any) -> None:
        self._agent.end_run(state.get("mulligan_run"))

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        await run_in_thread(self.after_agent, state, runtime)

    def _find_run(self, request: ToolCallRequest | ModelRequest[Any]) -> AgentRun:
        run_key = request.state.get("mulligan_run") if isinstance(request.state, dict) else None
        return self._start_run(run_key, request.runtime)

    def _start_run(self, run_key: str | None, runtime: Any, **description: Any) -> AgentRun:
        thread_id = getattr(getattr(runtime, "execution_info", None), "thread_id", None)
        session = None if thread_id is None else str(thread_id)
        return self._agent.start_run(run_key, session=session, ends_on_error=True, **description)

    # Tools

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        # Another middleware may execute a tool that the graph does not know.
        if request.tool is None and not is_unknown(answer := handler(request)):
            return answer
        call = GraphCall(request)

        def attempt(name: str, arguments: dict[str, Any]) -> Any:
            with call.collect_errors():
                return call.read_answer(handler(call.change_request(name, arguments)))

        run, tools = self._find_run(request), self._agent.tools.define(call.tools, define_tool)
        return call.build_answer(run.call(tools, request.tool_call["name"], request.tool_call["args"], attempt))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        if request.tool is None and not is_unknown(answer := await handler(request)):
            return answer
        call = GraphCall(request)

        async def attempt(name: str, arguments: dict[str, Any]) -> Any:
            with call.collect_errors():
                return call.read_answer(await handler(call.change_request(name, arguments)))

        run, tools = self._find_run(request), self._agent.tools.define(call.tools, define_tool)
        return call.build_answer(await run.acall(tools, request.tool_call["name"], request.tool_call["args"], attempt))

    # Models

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        run = self._find_run(request)
        request = _add_instructions(request, run.instructions(_tool_names(request), _summary_ids(request)))
        responses: list[ModelResponse[Any]] = []

        def attempt(messages: Any) -> Any:
            responses[:] = [handler(request.override(messages=messages))]
            return _find_answer(responses[0])

        return _build_response(responses, run.ask(request.messages, attempt, model=_model_name(request.model)))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        run = self._find_run(request)
        request = _add_instructions(request, await run.ainstructions(_tool_names(request), _summary_ids(request)))
        responses: list[ModelResponse[Any]] = []

        async def attempt(messages: Any) -> Any:
            responses[:] = [await handler(request.override(messages=messages))]
            return _find_answer(responses[0])

        return _build_response(responses, await run.aask(request.messages, attempt, model=_model_name(request.model)))


def _tool_names(request: ModelRequest[Any]) -> list[str]:
    return [tool.get("name", "") if isinstance(tool, dict) else tool.name for tool in request.tools]


def _summary_ids(request: ModelRequest[Any]) -> list[str]:
    """Return the ids of the summaries that SummarizationMiddleware has put in place of messages."""
    summaries = [message for message in request.messages if isinstance(message, HumanMessage)]
    return [str(message.id) for message in summaries if message.additional_kwargs.get("lc_source") == "summarization"]


def _add_instructions(request: ModelRequest[Any], instructions: str) -> ModelRequest[Any]:
    if not instructions:
        return request
    system = request.system_message or SystemMessage("")
    if isinstance(system.content, list):  # a block may say where the cache of the provider ends
        content: Any = [*system.content, {"type": "text", "text": instructions}]
    else:
        content = "\n\n".join(filter(None, (system.content, instructions)))
    return request.override(system_message=system.model_copy(update={"content": content}))


def _model_name(model: Any) -> str | None:
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    return name if isinstance(name, str) else None


def _find_answer(response: ModelResponse[Any]) -> Any:
    return next((message for message in response.result if isinstance(message, AIMessage)), response)


def _build_response(responses: list[ModelResponse[Any]], answer: Any) -> ModelResponse[Any]:
    """Return the response with this answer. That of a fallback is an answer only."""
    if responses and answer is _find_answer(responses[0]):
        return responses[0]
    return ModelResponse([answer if isinstance(answer, AIMessage) else AIMessage(str(answer))])
