"""Recovering copies of the tools of the OpenAI Agents SDK. `openai_agents.py` gives them to the agents."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from agents.tool import FunctionTool
from agents.tool_context import ToolContext

import agents
from agents import tool as sdk
from mulligan.capture.call_scope import ContextValue
from mulligan.classify.declared_errors import InfraError
from mulligan.integrations.framework_agent import AgentRun, FrameworkAgent
from mulligan.integrations.framework_tools import ToolDefinition, relax_schema

CONTENT_CLASSES = agents.ToolOutputText, agents.ToolOutputImage, agents.ToolOutputFileContent
_mcp_errors: ContextVar[list[Any]] = ContextVar("mulligan_mcp_errors")


def protect_tool(tool: Any, agent: FrameworkAgent, find_run: Callable[[], AgentRun]) -> Any:
    """Return a copy of a function tool whose calls are recovered. Other tools stay as they are."""
    # A program reads the result of a tool with an output schema: it must not get a text for a model.
    if not isinstance(tool, FunctionTool) or tool.output_json_schema is not None:
        return tool
    if isinstance(tool.on_invoke_tool, _ToolInvoker):  # of a copy of a protected agent
        return tool
    protected = copy.copy(tool)
    protected.on_invoke_tool = _ToolInvoker(tool, agent, find_run)
    protected.timeout_seconds = None  # of each attempt, not of all
    protected.needs_approval = _approval_condition(tool)
    return protected


class _AgentPause(BaseException):
    """An agent that is a tool waits for an approval."""


def report_errors(server: Any) -> None:
    """Make an MCP server tell which of its results are errors."""
    extract = getattr(server, "custom_data_extractor", None)
    if not isinstance(extract, _ErrorReporter):
        server.custom_data_extractor = _ErrorReporter(extract)


class _ErrorReporter:
    """Tells which results of an MCP server are errors: the SDK passes them on like others, as a text.

    It takes the place of the program's function that makes data for the SDK, and calls it.
    """

    def __init__(self, extract: Any) -> None:
        self._extract = extract

    def __call__(self, result: Any) -> Any:
        if result.is_error:
            _mcp_errors.get([]).append(result)
        return None if self._extract is None else self._extract(result)


class _ToolInvoker:
    """Makes the calls of one tool."""

    def __init__(self, function_tool: FunctionTool, agent: FrameworkAgent, find_run: Callable[[], AgentRun]) -> None:
        self._tool, self._agent, self._find_run = function_tool, agent, find_run
        self._definition = ToolDefinition(
            function_tool.name,
            relax_schema(function_tool.params_json_schema),
            getattr(function_tool, "__wrapped__", None),
            mode="suggest" if function_tool.needs_approval else None,  # what a person has approved is not changed
        )
        self._raising_tool = sdk.set_function_tool_failure_error_function(copy.copy(function_tool), None)
        self._raising_tool.timeout_behavior = "raise_exception"

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        if not self._agent.is_enabled:
            return await sdk.invoke_function_tool(function_tool=self._tool, context=context, arguments=arguments)
        request, results, errors = _parse_object(arguments), list[Any](), list[Exception]()

        async def attempt(name: str, values: Any) -> Any:
            payload = json.dumps(values)
            payload = arguments if payload == json.dumps(request) else payload
            mcp_errors: list[Any] = []
            try:
                with ContextValue(_mcp_errors, lambda: mcp_errors):
                    result = await sdk.invoke_function_tool(
                        function_tool=self._raising_tool, context=context, arguments=payload
                    )
            except Exception as error:
                errors.append(error)
                raise
            if result is None and _is_agent(self._tool):
                raise _AgentPause
            results.append(result)
            return {"content": _as_list(result), "isError": True} if mcp_errors else result

        run, tools, name = self._find_run(), {self._tool.name: self._definition}, self._tool.name
        try:
            outcome = await run.acall(tools, name, request, attempt)
        except _AgentPause:
            return None
        except InfraError:
            raise
        except Exception as error:
            if error not in errors or not _is_masking(self._tool):
                raise
            return (await self._describe_error(context, error))[0]  # only observed: answered as without mulligan
        if not outcome.ok and not outcome.is_returned_error and errors:
            text, is_default = await self._describe_error(context, errors[-1])
            if not is_default:
                outcome = replace(outcome, value=text, is_returned_error=True)
        value = results[-1] if results else outcome.value
        if outcome.ok and not (outcome.notes and _is_for_model(context, name)):
            return value
        if outcome.ok and all(_is_content(part) for part in _as_list(value)):
            return [*_as_list(value), agents.ToolOutputText(text=outcome.to_note())]
        return outcome.to_message()

    async def _describe_error(self, context: ToolContext[Any], error: Exception) -> tuple[str, bool]:
        """Return how the SDK answers an error, and whether the author of the tool has not chosen that. Or raise it."""
        if isinstance(error, agents.ToolTimeoutError):
            limit, describe = error.timeout_seconds, self._tool.timeout_error_function
            if self._tool.timeout_behavior == "raise_exception":
                raise error
            default = sdk.default_tool_timeout_error_message(tool_name=self._tool.name, timeout_seconds=limit)
            return (default, True) if describe is None else (await await_answer(describe(context, error)), False)
        text = await sdk.maybe_invoke_function_tool_failure_error_function(
            function_tool=self._tool, context=context, error=error
        )
        if text is None:
            raise error
        return text, text == sdk.default_tool_error_function(context, error)


async def await_answer(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def _parse_object(arguments: str) -> Any:
    """Return arguments as a dictionary, or as they are if they are no JSON object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _is_agent(function_tool: FunctionTool) -> bool:
    origin = sdk.get_function_tool_origin(function_tool)
    return origin is not None and origin.type == agents.ToolOriginType.AGENT_AS_TOOL


def _is_masking(function_tool: FunctionTool) -> bool:
    """Return whether the SDK itself answers errors of the tool: not if its invoker was written by hand."""
    return hasattr(function_tool.on_invoke_tool, "prepare_arguments")


def _is_for_model(context: ToolContext[Any], name: str) -> bool:
    """Return whether a model reads the result of a tool. Otherwise it is the answer of the agent, without notes."""
    behavior = getattr(getattr(context, "agent", None), "tool_use_behavior", "run_llm_again")
    if isinstance(behavior, dict):
        return name not in behavior.get("stop_at_tool_names", ())
    return bool(behavior == "run_llm_again")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_content(part: Any) -> bool:
    """Return whether the SDK sends a part of a result as it is, for example an image."""
    return isinstance(part, CONTENT_CLASSES) or (
        isinstance(part, dict) and part.get("type") in ("text", "image", "file")
    )


def _approval_condition(function_tool: FunctionTool) -> Any:
    """Return when a call needs an approval: by the tool's condition, or if validation would change the arguments.

    The SDK sees to the latter by itself, but only for invokers of its own.
    """
    needs_approval, invoker = function_tool.needs_approval, function_tool.on_invoke_tool
    if not callable(needs_approval) or not _is_masking(function_tool):
        return needs_approval

    async def check(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        prepared = invoker.prepare_arguments(json.dumps(arguments), function_tool.name)
        is_changed = prepared is not None and not prepared.unchanged
        return is_changed or bool(await await_answer(needs_approval(context, arguments, call_id)))

    return check
