"""Recovery for agents of LangChain and LangGraph: `create_agent(model, tools, middleware=[MulliganMiddleware()])`."""

from __future__ import annotations

import copy
import dataclasses
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Annotated, Any, NotRequired, Optional, TypeAlias

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import PrivateStateAttr, ToolCallRequest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from langchain_core.tracers.context import register_configure_hook
from langgraph.types import Command
from pydantic import BaseModel, ValidationError

from mulligan.api import Mulligan
from mulligan.capture.call_scope import ContextValue
from mulligan.capture.player import run_in_thread
from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.classify.declared_errors import AgentError
from mulligan.core.records import new_id
from mulligan.integrations.framework_agent import AgentRun, FrameworkAgent, mark_retried
from mulligan.integrations.framework_tools import ToolDefinition, mark_reported


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
    if not isinstance(name, str):  # a model may be bound to arguments, or name itself only to tracers
        model = getattr(model, "bound", model)
        name = model._get_ls_params().get("ls_model_name") if isinstance(model, BaseChatModel) else None
    return name if isinstance(name, str) else None


def _find_answer(response: ModelResponse[Any]) -> Any:
    return next((message for message in response.result if isinstance(message, AIMessage)), response)


def _build_response(responses: list[ModelResponse[Any]], answer: Any) -> ModelResponse[Any]:
    """Return the response with this answer. That of a fallback is an answer only."""
    if responses and answer is _find_answer(responses[0]):
        return responses[0]
    return ModelResponse([answer if isinstance(answer, AIMessage) else AIMessage(str(answer))])


ToolResult: TypeAlias = ToolMessage | Command[Any] | list[Any]


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


class GraphCall:
    """A tool call of a graph, and what its last attempt returned."""

    def __init__(self, request: ToolCallRequest) -> None:
        self._request = request
        self.tools = {tool.name: tool for tool in getattr(request.runtime, "tools", ())}
        if request.tool is not None:
            self.tools[request.tool_call["name"]] = request.tool
        self._answer: ToolResult | None = None
        self._has_failed = False
        self._tool_errors = self._reset_errors()

    def collect_errors(self) -> ContextValue:
        """Return a context manager that collects the exceptions of one attempt."""
        return ContextValue(_current_errors, self._reset_errors)

    def _reset_errors(self) -> _ToolErrors:
        self._answer, self._tool_errors = None, _ToolErrors(self._request.tool_call["id"])
        return self._tool_errors

    def change_request(self, name: str, arguments: dict[str, Any]) -> ToolCallRequest:
        tool_call = {**self._request.tool_call, "name": name, "args": arguments}
        if tool_call == self._request.tool_call:
            return self._request
        return self._request.override(tool_call=tool_call, tool=self.tools.get(name))

    def read_answer(self, answer: ToolResult) -> Any:
        """Return what the tool returned, or raise its exception. LangGraph reports an error as a message."""
        self._answer, errors = answer, self._tool_errors.errors
        self._has_failed = isinstance(answer, ToolMessage) and answer.status == "error"
        if not isinstance(answer, ToolMessage) or not self._has_failed:
            return _read_content(answer) if isinstance(answer, ToolMessage) else answer
        if errors and isinstance(errors[-1], ValidationError) and not _was_executed(errors[-1]):
            raise mark_reported(AgentError(answer.text))  # LangGraph has removed what it injected from the text
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


def _was_executed(error: BaseException) -> bool:
    """Return whether the tool raised this error, and not LangChain's check of the arguments before it."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_code.co_name in ("_run", "_arun") for frame in frames)


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
        content = [*content, {"type": "text", "text": outcome.to_note()}]
    else:
        content = dataclasses.replace(outcome, value=content).to_message()
    return answer.model_copy(update={"content": content, "status": "success" if outcome.ok else "error"})


def _read_content(message: ToolMessage) -> Any:
    """Return the content of a message: a text, or a list if it has images or other parts."""
    is_text = isinstance(message.content, str) or all(
        isinstance(block, str) or block.get("type") == "text" for block in message.content
    )
    return message.text if is_text else message.content


def is_unknown(answer: ToolResult) -> bool:
    """Return whether this is how LangGraph answers a call of an unknown tool."""
    return isinstance(answer, ToolMessage) and answer.status == "error" and "is not a valid tool" in answer.text


def define_tool(tool: BaseTool) -> ToolDefinition:
    schema, model = tool.tool_call_schema, tool.args_schema  # the first one without what LangGraph injects
    json_schema: dict[str, Any] = schema if isinstance(schema, dict) else schema.model_json_schema()
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    definition = ToolDefinition(tool.name, json_schema, function)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return definition  # LangChain does not validate the arguments
    arguments = _ModelArguments(model, json_schema.get("properties", {}))
    return definition._replace(
        schema=arguments.rename_properties(json_schema),
        accepts=arguments.accept,
        unlisted_parameters=frozenset(arguments.aliases),
    )


class _ModelArguments:
    """The arguments of a tool as its pydantic model takes them. The schema that LangChain derives has no aliases."""

    def __init__(self, model: type[BaseModel], properties: Mapping[str, Any]) -> None:
        self._model = model
        config, fields = model.model_config, model.model_fields
        takes_names = config.get("populate_by_name") or config.get("validate_by_name")
        self._injected_names = fields.keys() - properties.keys()
        self.aliases = {
            name: alias
            for name, field in fields.items()
            if name in properties and not takes_names and (alias := _find_alias(field)) is not None
        }

    def rename_properties(self, schema: dict[str, Any]) -> dict[str, Any]:
        if not self.aliases:
            return schema
        renamed = {self.aliases.get(name, name): node for name, node in schema.get("properties", {}).items()}
        required = [self.aliases.get(name, name) for name in schema.get("required", ())]
        return {**schema, "properties": renamed, "required": required}

    def accept(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the model accepts the arguments, as LangChain will ask it."""
        try:
            self._model.model_validate(copy.deepcopy(dict(arguments)))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            return all(
                problem["type"] == "missing" and problem["loc"][0] in self._injected_names for problem in problems
            )
        except Exception:  # noqa: BLE001 - of a validator of the user: the call would fail as well
            return False
        return True


def _find_alias(field: Any) -> str | None:
    """Return the name under which a model takes a field, if that is another one."""
    alias = field.validation_alias or field.alias
    choices = getattr(alias, "choices", (alias,))
    return next((choice for choice in choices if isinstance(choice, str)), None)
