"""Recovery for agents of the Google ADK: `App(name=..., root_agent=agent, plugins=[MulliganPlugin()])`."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from mulligan.classify.declared_errors import InfraError
from mulligan.integrations.framework_agent import AgentRun, FrameworkAgent
from mulligan.integrations.framework_tools import ToolDefinition
from mulligan.integrations.suspended_call import SuspendedCall, SuspendedCalls, Suspension
from mulligan.recover.policy import Mode


class MulliganPlugin(BasePlugin):
    """Records the runs of an app and recovers its tool and model calls. Put it first in the list.

    ADK makes the first attempt of each call, so its own callbacks and confirmations stay in force. The options are
    those of `FrameworkAgent`.
    """

    def __init__(self, name: str = "mulligan", **options: Any) -> None:
        super().__init__(name)
        self._agent = FrameworkAgent(**options)
        self._calls = SuspendedCalls()
        """Calls whose first attempt ADK makes: of tools by their context, of models by their task."""

    # Runs

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        if self._agent.is_enabled:
            run = await self._agent.astart_run(**describe_run(invocation_context))
            run.is_paused = False

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> None:
        # Also a request for a confirmation or a credential is a long-running call.
        if event.long_running_tool_ids and self._agent.is_enabled:
            self._find_run(invocation_context).is_paused = True

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        await self._agent.aend_run(invocation_context.invocation_id)

    async def on_run_error_callback(self, *, invocation_context: InvocationContext, error: Exception) -> None:
        await self._agent.aend_run(invocation_context.invocation_id, error)

    def _find_run(self, context: Any) -> AgentRun:
        return self._agent.start_run(**describe_run(context))

    # Tools

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        if not self._agent.is_enabled or tool_context in self._calls:  # a repeated attempt
            return None
        run = self._find_run(tool_context)
        if type(tool) is BaseTool:  # a name that ADK does not know
            agent_tools = await tool_context.get_invocation_context().agent.canonical_tools(tool_context)
            tools = self._agent.tools.define({tool.name: tool for tool in agent_tools}, define_tool)
            outcome = await run.reject(tools, tool.name, tool_args)
            return outcome.to_dict() if outcome is not None else None
        mode: Mode | None = "suggest" if await needs_approval(tool, tool_args, tool_context) else None
        tools = self._agent.tools.define({tool.name: tool}, define_tool, mode)

        async def repeat(name: str, arguments: dict[str, Any]) -> Any:
            # Callbacks that guard the tool must see the changed arguments, too.
            answer = await run_callbacks("before", tool, arguments, tool_context)
            return await tool.run_async(args=arguments, tool_context=tool_context) if answer is None else answer

        call = SuspendedCall(lambda attempt: run.acall(tools, tool.name, dict(tool_args), attempt), repeat)
        outcome = await call.start()
        if not isinstance(outcome, Suspension):
            return outcome.to_dict()
        self._calls.add(tool_context, call)
        tool_args.clear()
        tool_args.update(call.request[1])
        return None

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> dict[str, Any] | None:
        if (call := self._calls.get(tool_context)) is None:
            return None
        try:
            if is_paused(tool_context):
                call.close()
                return None
            outcome = await call.finish(result)
        finally:
            self._calls.pop(tool_context, None)
        if outcome.ok and outcome.value is result and not outcome.notes:
            return None
        answer = outcome.to_dict()
        return await run_callbacks("after", tool, tool_args, tool_context, answer) or answer

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: BaseException
    ) -> dict[str, Any] | None:
        if (call := self._calls.get(tool_context)) is None:
            return None
        try:
            return (await call.finish(error=error)).to_dict()
        except Exception as raised:  # noqa: BLE001 - ADK raises the tool's own exception, and would wrap this one
            if isinstance(raised, InfraError):
                self._agent.end_run(tool_context.invocation_id, raised)
            return None
        except asyncio.CancelledError as cancellation:
            self._agent.end_run(tool_context.invocation_id, cancellation)
            raise
        finally:
            self._calls.pop(tool_context, None)

    # Models

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        context = callback_context.get_invocation_context()
        if not self._agent.is_enabled or context.live_request_queue is not None:
            return
        run = self._find_run(callback_context)
        summaries = [event.id for event in callback_context.session.events if event.actions.compaction is not None]
        if instructions := await run.ainstructions(list(llm_request.tools_dict), summaries):
            llm_request.append_instructions([instructions])

        async def repeat(contents: Any) -> Any:
            context.increment_llm_call_count()
            request = llm_request.model_copy(update={"contents": contents})
            model = await context.agent.canonical_model_async(callback_context)
            return [response async for response in model.generate_content_async(request)][-1]

        call = SuspendedCall(lambda attempt: run.aask(llm_request.contents, attempt, model=llm_request.model), repeat)
        if isinstance(await call.start(), Suspension):
            end_run = functools.partial(self._agent.end_run, callback_context.invocation_id)
            self._calls.add(asyncio.current_task(), call, end_run)

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        if llm_response.partial or (call := self._calls.pop(asyncio.current_task(), None)) is None:
            return None
        response = to_response(await call.finish(llm_response))
        return response if response is not llm_response else None

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        if (call := self._calls.pop(asyncio.current_task(), None)) is None:
            return None
        try:
            return to_response(await call.finish(error=error))
        except Exception:  # noqa: BLE001 - ADK raises the model's own exception, and would wrap this one
            return None


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
