"""Recovery for agents of LangChain and LangGraph: `create_agent(model, tools, middleware=[MulliganMiddleware()])`."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Annotated, Any, NotRequired, TypeAlias

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import PrivateStateAttr, ToolCallRequest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langchain_core.tracers.context import register_configure_hook
from langgraph.types import Command
from pydantic import ValidationError

from mulligan.capture.player import run_in_thread
from mulligan.capture.run import ContextValue
from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.core.records import new_id
from mulligan.integrations.framework_agent import (
    AgentRun,
    FrameworkAgent,
    ReportedError,
    ToolDefinition,
    mark_reported,
    mark_retried,
)

ToolResult: TypeAlias = ToolMessage | Command[Any] | list[Any]


class MulliganState(AgentState[Any]):
    """The state of an agent, with the run that its calls belong to: a resumed graph continues it."""

    mulligan_run: NotRequired[Annotated[str, PrivateStateAttr]]  # type: ignore[valid-type]


class MulliganMiddleware(AgentMiddleware[Any, Any, Any]):
    """Records the runs of an agent and recovers its tool and model calls. Put it first in the list.

    The options are those of `FrameworkAgent`. Without `create_agent`, pass its methods `wrap_tool_call` and
    `awrap_tool_call` to a `ToolNode`.
    """

    state_schema = MulliganState

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._agent = FrameworkAgent(**options)
        self._definitions: dict[str, tuple[BaseTool, ToolDefinition]] = {}

    # Runs

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        # An earlier run of this thread may wait for a person, or another part of the graph has raised.
        self._agent.end_run(state.get("mulligan_run"), KeyboardInterrupt())
        run_key, messages = new_id("langchain"), state.get("messages", [])
        texts = [message.text for message in messages if isinstance(message, HumanMessage)]
        run = self._agent.start_run(run_key, session=_thread_id(runtime), context=texts[-1] if texts else None)
        run.known_summaries.update(_summary_ids(messages))
        return {"mulligan_run": run_key}

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        return await run_in_thread(self.before_agent, state, runtime)  # it may read the session from the store

    def after_agent(self, state: Any, runtime: Any) -> None:
        self._agent.end_run(state.get("mulligan_run"))

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        await run_in_thread(self.after_agent, state, runtime)

    def _find_run(self, request: ToolCallRequest | ModelRequest[Any]) -> AgentRun:
        run_key = request.state.get("mulligan_run") if isinstance(request.state, dict) else None
        return self._agent.start_run(run_key, session=_thread_id(request.runtime))

    # Tools

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        # Another middleware may execute a tool that the graph does not know.
        if request.tool is None and not _is_unknown(answer := handler(request)):
            return answer
        call = _GraphCall(request)

        def attempt(name: str, arguments: dict[str, Any]) -> Any:
            with ContextValue(_current_errors, call.reset_errors):
                return call.read_answer(handler(call.change_request(name, arguments)))

        run, tools = self._find_run(request), self._define_tools(request)
        return call.build_answer(run.call(tools, request.tool_call["name"], request.tool_call["args"], attempt))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        if request.tool is None and not _is_unknown(answer := await handler(request)):
            return answer
        call = _GraphCall(request)

        async def attempt(name: str, arguments: dict[str, Any]) -> Any:
            with ContextValue(_current_errors, call.reset_errors):
                return call.read_answer(await handler(call.change_request(name, arguments)))

        run, tools = self._find_run(request), self._define_tools(request)
        return call.build_answer(await run.acall(tools, request.tool_call["name"], request.tool_call["args"], attempt))

    def _define_tools(self, request: ToolCallRequest) -> dict[str, ToolDefinition]:
        return {name: self._define_tool(name, tool) for name, tool in _tools_of(request).items()}

    def _define_tool(self, name: str, tool: BaseTool) -> ToolDefinition:
        cached_tool, definition = self._definitions.get(name, (None, None))
        if definition is None or cached_tool is not tool:
            function, json_schema = getattr(tool, "func", None) or getattr(tool, "coroutine", None), None
            with self._agent.mulligan.capture_context().guard("Reading the schema of a tool"):
                schema = tool.tool_call_schema  # without what LangGraph injects
                json_schema = schema if isinstance(schema, dict) else schema.model_json_schema()
            definition = ToolDefinition(name, json_schema, function)
            self._definitions[name] = tool, definition
        return definition

    # Models

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        run, request = self._prepare_model_call(request)
        responses: list[ModelResponse[Any]] = []

        def attempt(messages: Any) -> Any:
            responses[:] = [handler(request.override(messages=messages))]
            return _find_answer(responses[0])

        return _build_response(responses, run.ask(request.messages, attempt, model=_model_name(request.model)))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        run, request = self._prepare_model_call(request)
        responses: list[ModelResponse[Any]] = []

        async def attempt(messages: Any) -> Any:
            responses[:] = [await handler(request.override(messages=messages))]
            return _find_answer(responses[0])

        return _build_response(responses, await run.aask(request.messages, attempt, model=_model_name(request.model)))

    def _prepare_model_call(self, request: ModelRequest[Any]) -> tuple[AgentRun, ModelRequest[Any]]:
        run = self._find_run(request)
        for summary_id in _summary_ids(request.messages):
            run.note_compaction(summary_id)
        names = [tool.get("name", "") if isinstance(tool, dict) else tool.name for tool in request.tools]
        if instructions := run.instructions(names):
            system = request.system_message or SystemMessage("")
            if isinstance(system.content, list):  # a block may say where the cache of the provider ends
                content: Any = [*system.content, {"type": "text", "text": instructions}]
            else:
                content = "\n\n".join(filter(None, (system.content, instructions)))
            request = request.override(system_message=system.model_copy(update={"content": content}))
        return run, request


class _ToolErrors(BaseCallbackHandler):
    """Collects the exceptions of one tool call, also those that LangGraph or a middleware turns into a message."""

    run_inline = True

    def __init__(self, tool_call_id: str | None) -> None:
        self._tool_call_id = tool_call_id
        self.errors: list[BaseException] = []

    def on_tool_error(self, error: BaseException, *, tool_call_id: str | None = None, **values: Any) -> None:
        if tool_call_id == self._tool_call_id:  # otherwise of a tool that this one calls
            self.errors.append(error)


_current_errors: ContextVar[_ToolErrors | None] = ContextVar("mulligan_tool_errors", default=None)
register_configure_hook(_current_errors, inheritable=False)


class _GraphCall:
    """A tool call of a graph, and what its last attempt returned."""

    def __init__(self, request: ToolCallRequest) -> None:
        self._request = request
        self._answer: ToolResult | None = None
        self._has_failed = False
        self._tool_errors = self.reset_errors()

    def reset_errors(self) -> _ToolErrors:
        self._answer, self._tool_errors = None, _ToolErrors(self._request.tool_call["id"])
        return self._tool_errors

    def change_request(self, name: str, arguments: dict[str, Any]) -> ToolCallRequest:
        tool_call = {**self._request.tool_call, "name": name, "args": arguments}
        if tool_call == self._request.tool_call:
            return self._request
        return self._request.override(tool_call=tool_call, tool=_tools_of(self._request).get(name))

    def read_answer(self, answer: ToolResult) -> Any:
        """Return what the tool returned, or raise its exception. LangGraph reports an error as a message."""
        self._answer, errors = answer, self._tool_errors.errors
        self._has_failed = isinstance(answer, ToolMessage) and answer.status == "error"
        if not isinstance(answer, ToolMessage) or not self._has_failed:
            return _read_content(answer) if isinstance(answer, ToolMessage) else answer
        if errors and isinstance(errors[-1], ValidationError):
            raise ReportedError(answer.text)  # LangGraph has removed what it injected from the text
        error = errors[-1] if errors else ToolException(answer.text)
        if len(errors) > 1:
            mark_retried(error, "a middleware", len(errors))
        raise mark_reported(error)

    def build_answer(self, outcome: ToolOutcome) -> ToolResult:
        answer, tool_call = self._answer, self._request.tool_call
        if answer is not None and outcome.ok and not outcome.notes and (outcome.value is None or not self._has_failed):
            return answer
        if answer is not None and not self._has_failed:
            return _add_text(answer, outcome, tool_call["id"])
        status, text = "success" if outcome.ok else "error", outcome.to_message()
        return ToolMessage(text, name=tool_call["name"], tool_call_id=tool_call["id"], status=status)


def _add_text(answer: Any, outcome: ToolOutcome, tool_call_id: str | None) -> Any:
    """Add what mulligan says to the message for this tool call, also inside a command."""
    if isinstance(answer, list):
        return [_add_text(part, outcome, tool_call_id) for part in answer]
    if isinstance(answer, Command) and isinstance(answer.update, dict) and "messages" in answer.update:
        messages = _add_text(answer.update["messages"], outcome, tool_call_id)
        return dataclasses.replace(answer, update={**answer.update, "messages": messages})
    if not isinstance(answer, ToolMessage) or answer.tool_call_id != tool_call_id:
        return answer
    content = _read_content(answer)
    if isinstance(content, list):  # with images
        answer_only = dataclasses.replace(outcome, is_returned_error=False)
        text = " ".join(outcome.notes) if outcome.ok else answer_only.to_message()
        content = [*content, {"type": "text", "text": text}]
    else:
        content = dataclasses.replace(outcome, value=content).to_message()
    return answer.model_copy(update={"content": content, "status": "success" if outcome.ok else "error"})


def _read_content(message: ToolMessage) -> Any:
    """Return the content of a message: a text, or a list if it has images or other parts."""
    is_text = isinstance(message.content, str) or all(
        isinstance(block, str) or block.get("type") == "text" for block in message.content
    )
    return message.text if is_text else message.content


def _tools_of(request: ToolCallRequest) -> dict[str, BaseTool]:
    tools = {tool.name: tool for tool in getattr(request.runtime, "tools", ())}
    return tools if request.tool is None else {**tools, request.tool_call["name"]: request.tool}


def _is_unknown(answer: ToolResult) -> bool:
    """Return whether this is how LangGraph answers a call of an unknown tool."""
    return isinstance(answer, ToolMessage) and answer.status == "error" and "is not a valid tool" in answer.text


def _thread_id(runtime: Any) -> str | None:
    thread_id = getattr(getattr(runtime, "execution_info", None), "thread_id", None)
    return None if thread_id is None else str(thread_id)


def _summary_ids(messages: list[Any]) -> list[str]:
    """Return the ids of the summaries that SummarizationMiddleware has put in place of messages."""
    summaries = [message for message in messages if isinstance(message, HumanMessage)]
    return [str(message.id) for message in summaries if message.additional_kwargs.get("lc_source") == "summarization"]


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
