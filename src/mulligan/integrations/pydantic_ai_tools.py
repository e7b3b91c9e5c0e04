"""Tool calls of PydanticAI: what a tool is, what it has raised, and how its result carries a note."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any

from pydantic_ai.exceptions import ModelRetry, ToolFailed, ToolFailedError, ToolRetryError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelResponse, ToolReturn, is_multi_modal_content
from pydantic_ai.tools import RunContext
from pydantic_ai.tools import ToolDefinition as PydanticTool
from pydantic_ai.toolsets import ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.integrations.framework_tools import ToolDefinition

ANY_ARGUMENTS = SchemaValidator(core_schema.any_schema())
"""Validates the arguments of unknown tools, and marks these tools."""


def collect_tools(ctx: RunContext[Any]) -> dict[str, ToolDefinition]:
    """Return the tools that the model may call now."""
    tools: dict[str, ToolsetTool[Any]] = (ctx.tool_manager.tools if ctx.tool_manager is not None else None) or {}
    definitions: dict[str, ToolDefinition] = {}
    for name, tool in tools.items():
        definition = tool.tool_def
        is_callable = tool.args_validator is not ANY_ARGUMENTS and ctx.is_tool_available(definition)
        if is_callable and definition.kind != "output":
            is_approved = definition.defer or (ctx.tool_call_approved and ctx.tool_name == name)
            mode: Any = "suggest" if is_approved else None  # a person has seen these arguments
            function, unlisted_parameters = _find_function(tool)
            definitions[name] = ToolDefinition(
                name, definition.parameters_json_schema, function, mode, unlisted_parameters=unlisted_parameters
            )
    return definitions


def add_unknown_tools(ctx: RunContext[Any], response: ModelResponse) -> None:
    """Add the unknown tools that the model requests, so that their calls reach `wrap_tool_execute`."""
    manager = ctx.tool_manager
    if manager is None or manager.tools is None:
        return
    for call in response.tool_calls:
        if call.tool_name not in manager.tools:
            definition = PydanticTool(name=call.tool_name)
            manager.tools[call.tool_name] = ToolsetTool(
                toolset=manager.toolset, tool_def=definition, max_retries=0, args_validator=ANY_ARGUMENTS
            )


def _find_function(tool: Any) -> tuple[Callable[..., Any] | None, frozenset[str]]:
    """Return the user's function, also of a tool that a toolset has renamed or wrapped.

    With it, the parameter in whose place the schema lists the members of an object, if there is one.
    """
    while (source := getattr(tool, "source_tool", None)) is not None:
        tool = source
    function_schema = getattr(getattr(tool, "call_func", None), "__self__", None)
    parameter = getattr(function_schema, "single_arg_name", None)
    return getattr(function_schema, "function", None), frozenset(filter(None, [parameter]))


def is_converted(requested: Any, validated: Any) -> bool:
    """Return whether PydanticAI accepts arguments that do not match the schema as they are, such as "7" for 7.

    Otherwise the schema decides: for tools of MCP servers, PydanticAI accepts everything.
    """
    try:
        return validated is not None and bool(requested != validated)
    except Exception:  # noqa: BLE001 - the arguments are objects of any class
        return True


def find_original_error(error: Exception, ctx: RunContext[Any]) -> BaseException:
    """Return what the tool has raised, not what PydanticAI makes of it."""
    if isinstance(error, ToolFailedError):
        return error.__cause__ or error
    retry = error.__cause__ if isinstance(error, ToolRetryError | UnexpectedModelBehavior) else error
    if isinstance(retry, ModelRetry):
        modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(retry.__traceback__)]
        if modules and modules[-1].startswith("pydantic_ai."):  # for a timeout, or the error of an MCP server
            return retry.__cause__ or ToolFailed(retry.message)
        # The author of the tool has asked the model to retry, perhaps too often: then PydanticAI ends the run.
        is_last = isinstance(error, UnexpectedModelBehavior) and ctx.retry >= ctx.max_retries
        return retry if is_last else error
    return error


def add_notes(result: Any, outcome: ToolOutcome) -> ToolReturn[Any]:
    answer = result if isinstance(result, ToolReturn) else ToolReturn(result)
    value, content = answer.return_value, answer.content or ()
    if any(map(is_multi_modal_content, value if isinstance(value, list | tuple) else [value])):
        content = [content] if isinstance(content, str) else list(content)
        return dataclasses.replace(answer, content=[*content, outcome.to_note()])
    return dataclasses.replace(answer, return_value=outcome.to_message())


def find_pending_calls(ctx: RunContext[Any], messages: list[Any]) -> str:
    """Return the ids of the tool calls that have no result yet, if any. They identify a run that waits for results."""
    result_ids: set[str | None] = set()
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            ids = [call.tool_call_id for call in message.tool_calls if call.tool_call_id not in result_ids]
            return " ".join([ctx.conversation_id or "", *ids]) if ids else ""
        result_ids.update(getattr(part, "tool_call_id", None) for part in message.parts)
    return ""
