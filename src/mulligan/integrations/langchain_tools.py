"""Tool calls of LangGraph: reads what an attempt returned, and builds the answer for the model."""

from __future__ import annotations

import copy
import dataclasses
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langchain_core.tracers.context import register_configure_hook
from langgraph.types import Command
from pydantic import BaseModel, ValidationError

from mulligan.capture.run import ContextValue
from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.classify.declared_errors import AgentError
from mulligan.integrations.framework_agent import mark_retried
from mulligan.integrations.framework_tools import ToolDefinition, mark_reported
from mulligan.recover.names import match_name

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
        self._names = {self.aliases.get(name, name) for name in properties}

    def rename_properties(self, schema: dict[str, Any]) -> dict[str, Any]:
        if not self.aliases:
            return schema
        renamed = {self.aliases.get(name, name): node for name, node in schema.get("properties", {}).items()}
        required = [self.aliases.get(name, name) for name in schema.get("required", ())]
        return {**schema, "properties": renamed, "required": required}

    def accept(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the model accepts the arguments, as LangChain will ask it.

        It ignores unknown arguments. One that misspells an argument is not accepted: the tool would be called
        without it.
        """
        unused_names = self._names - arguments.keys()
        if any(match_name(name, unused_names) is not None for name in arguments.keys() - self._names):
            return False
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
