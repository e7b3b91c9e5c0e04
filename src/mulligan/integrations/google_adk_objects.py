"""What the core needs of the Google ADK: runs, tools, their confirmations and callbacks, responses of models."""

from __future__ import annotations

import inspect
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from mulligan.integrations.framework_tools import ToolDefinition


def describe_run(context: Any) -> dict[str, Any]:
    """Return the run of an invocation. ADK continues it under the same id after a pause."""
    texts = [part.text for part in getattr(context.user_content, "parts", None) or () if part.text]
    agent = context.agent.name if isinstance(context, InvocationContext) else context.agent_name
    run_key, session = context.invocation_id, context.session.id
    return {"key": run_key, "agent": agent, "session": session, "context": "\n".join(texts)}


def to_response(answer: Any) -> LlmResponse:
    """Return the answer of a model, or of a fallback: a response or a text."""
    if isinstance(answer, LlmResponse):
        return answer
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=str(answer))]))


def define_tool(tool: BaseTool) -> ToolDefinition:
    """Define a tool with the schema that ADK sends to the model: without its context."""
    request, schema = LlmRequest(), None
    request.append_tools([tool])
    for declaration in request.config.tools[0].function_declarations if request.config.tools else ():
        schema = declaration.parameters_json_schema
        if schema is None and declaration.parameters is not None:
            schema = declaration.parameters.json_schema.model_dump(mode="json", by_alias=True, exclude_none=True)
    return ToolDefinition(tool.name, schema, getattr(tool, "func", None))


async def needs_approval(tool: BaseTool, arguments: dict[str, Any], tool_context: ToolContext) -> bool:
    try:
        is_confirmed = tool_context.tool_confirmation is not None
        return is_confirmed or bool(await tool.check_require_confirmation(arguments, tool_context))
    except Exception:  # noqa: BLE001 - a condition of the user that does not understand the arguments
        return True


def is_paused(tool_context: ToolContext) -> bool:
    """Return whether a call waits for a person, or a person has rejected it."""
    actions, confirmation = tool_context.actions, tool_context.tool_confirmation
    is_rejected = confirmation is not None and not confirmation.confirmed
    return bool(actions.requested_tool_confirmations or actions.requested_auth_configs or is_rejected)


async def run_callbacks(position: str, tool: BaseTool, arguments: Any, tool_context: ToolContext, *answer: Any) -> Any:
    """Run the callbacks of other plugins and of the agent, as ADK does. The first answer counts."""
    context = tool_context.get_invocation_context()
    run_plugins = getattr(context.plugin_manager, f"run_{position}_tool_callback")
    result = dict(zip(("result",), answer, strict=False))
    response = await run_plugins(tool=tool, tool_args=arguments, tool_context=tool_context, **result)
    for callback in getattr(context.agent, f"canonical_{position}_tool_callbacks", ()):
        if response is None:
            response = callback(tool, arguments, tool_context, *answer)
            response = await response if inspect.isawaitable(response) else response
    return response
