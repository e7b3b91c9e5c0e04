"""Recovery for agents of Strands: `Agent(tools=..., plugins=[MulliganPlugin()])`."""

from __future__ import annotations

import asyncio
import functools
import sys
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from strands import Agent
from strands.hooks import AfterInvocationEvent, BeforeInvocationEvent
from strands.interrupt import InterruptException
from strands.middleware import (
    ExecuteToolContext,
    ExecuteToolStage,
    InvokeModelContext,
    InvokeModelStage,
    ModelStopReason,
    ToolResultEvent,
)
from strands.plugins import Plugin

from mulligan.api import Mulligan
from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.classify.declared_errors import InfraError
from mulligan.core.records import new_id
from mulligan.integrations.framework_agent import AgentRun, FrameworkAgent, mark_retried
from mulligan.integrations.framework_tools import ToolDefinition, mark_reported

Next = Callable[[Any], AsyncGenerator[Any, None]]
Emit = Callable[[Any], None]


class MulliganPlugin(Plugin):
    """Records the runs of an agent and recovers its tool and model calls.

    The options are those of `FrameworkAgent`.
    """

    name = "mulligan"

    def __init__(self, mulligan: Mulligan | None = None, **options: Any) -> None:
        super().__init__()
        self._agent = FrameworkAgent(mulligan, **options)
        self._paused_runs: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._fatal_errors: weakref.WeakKeyDictionary[Any, InfraError] = weakref.WeakKeyDictionary()
        """Errors of tools that end a run. Strands would only tell the model."""

    def init_agent(self, agent: Agent) -> None:
        agent.add_hook(self._start_run, BeforeInvocationEvent)
        agent.add_hook(self._end_run, AfterInvocationEvent)
        agent.add_middleware(InvokeModelStage, self._ask_model)
        agent.add_middleware(ExecuteToolStage, self._call_tool)

    # Runs

    async def _start_run(self, event: BeforeInvocationEvent) -> None:
        if event.messages is None:  # Agent.structured_output makes no call that we see
            return
        run_key = self._paused_runs.pop(event.agent, None) or new_id("strands")
        event.invocation_state[_state_key(event.agent)] = run_key
        blocks = [block for message in event.messages for block in message["content"]]
        texts = [block["text"] for block in blocks if "text" in block]
        description = {"agent": event.agent.name, "session": event.agent.session_id}
        await self._agent.astart_run(run_key, **description, context=next(reversed(texts), None))

    async def _end_run(self, event: AfterInvocationEvent) -> None:
        error = sys.exception() if event.result is None else None
        self._fatal_errors.pop(event.agent, None)
        run_key = event.invocation_state.pop(_state_key(event.agent), None)
        if run_key is not None and event.result is not None and event.result.stop_reason == "interrupt":
            self._paused_runs[event.agent] = run_key
        else:
            await self._agent.aend_run(run_key, getattr(error, "original_exception", error))

    def _find_run(self, context: InvokeModelContext | ExecuteToolContext) -> AgentRun | None:
        """Return the run of an invocation. Direct calls of tools have none."""
        run_key = context.invocation_state.get(_state_key(context.agent))
        return None if run_key is None else self._agent.start_run(run_key)

    # Tools

    async def _call_tool(self, context: ExecuteToolContext, next_stage: Next) -> AsyncGenerator[Any, None]:
        run = self._find_run(context)
        work = None if run is None else functools.partial(self._call, run, context, next_stage)
        async for event in next_stage(context) if work is None else _stream(work):
            yield event

    async def _call(self, run: AgentRun, context: ExecuteToolContext, next_stage: Next, emit: Emit) -> None:
        registry = context.agent.tool_registry
        tools = {**registry.registry, **registry.dynamic_tools}
        if context.tool is not None:  # a hook may have selected another one
            tools[context.tool_use["name"]] = context.tool
        else:  # another middleware may execute it
            probe = [event async for event in next_stage(context)]
            if not is_unknown(probe):
                for event in probe:
                    emit(event)
                return
        results: list[ToolResultEvent] = []
        interrupts: list[Any] = []

        async def attempt(name: str, arguments: dict[str, Any]) -> Any:
            results.clear()
            tool_use = {**context.tool_use, "name": name, "input": arguments}
            async with aclosing(next_stage(context.replace(tool=tools.get(name), tool_use=tool_use))) as events:
                async for event in events:
                    if isinstance(event, ToolResultEvent):
                        results[:] = [event]
                    elif "tool_interrupt_event" in event:
                        interrupts.append(event)
                        raise InterruptException(event["tool_interrupt_event"]["interrupts"][0])
                    else:
                        emit(event)
            return read_result(results[0])

        definitions = self._agent.tools.define(tools, define_tool)
        tool_use = context.tool_use
        try:
            outcome = await run.acall(definitions, tool_use["name"], tool_use["input"], attempt)
        except InterruptException:
            if not interrupts:
                raise
            emit(interrupts[0])
        except InfraError as error:
            self._fatal_errors[context.agent] = error
            raise
        else:
            emit(build_result(tool_use["toolUseId"], results, outcome))

    # Models

    async def _ask_model(self, context: InvokeModelContext, next_stage: Next) -> AsyncGenerator[Any, None]:
        if (error := self._fatal_errors.pop(context.agent, None)) is not None:
            raise error
        run = self._find_run(context)
        work = None if run is None else functools.partial(self._ask, run, context, next_stage)
        async for event in next_stage(context) if work is None else _stream(work):
            yield event

    async def _ask(self, run: AgentRun, context: InvokeModelContext, next_stage: Next, emit: Emit) -> None:
        names = [spec["name"] for spec in context.tool_specs]
        if instructions := await run.ainstructions(names, summary_ids(context.agent)):
            prompt: Any = context.system_prompt or []
            blocks = [{"text": prompt}] if isinstance(prompt, str) else prompt
            context = context.replace(system_prompt=[*blocks, {"text": instructions}])
        stops: list[ModelStopReason] = []

        async def attempt(messages: Any) -> Any:
            stops.clear()
            try:
                async with aclosing(next_stage(context.replace(messages=messages))) as events:
                    async for event in events:
                        if isinstance(event, ModelStopReason):
                            stops[:] = [event]
                        else:
                            emit(event)
            except Exception as error:
                if is_retried(context.agent, error):
                    mark_retried(error, "ModelRetryStrategy", is_above=True)
                raise
            reason, message, usage, _ = stops[0]["stop"]
            return {"output": {"message": message}, "stopReason": reason, "usage": usage}

        config = context.model.get_config()
        model = config.get("model_id") if isinstance(config, dict) else None
        answer = await run.aask(context.messages, attempt, model=model)
        emit(stops[0] if stops else build_stop(answer))


async def _stream(work: Callable[[Emit], Awaitable[None]]) -> AsyncGenerator[Any, None]:
    """Yield the events that this work emits, at once, and raise its exception."""
    events: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.ensure_future(work(events.put_nowait))
    task.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _state_key(agent: Any) -> str:
    """Return where the state of an invocation has the key of its run. Agents may share the state."""
    return f"mulligan_run_{id(agent)}"


def define_tool(tool: Any) -> ToolDefinition:
    schema = tool.tool_spec["inputSchema"]
    return ToolDefinition(tool.tool_name, schema.get("json", schema), getattr(tool, "__wrapped__", None))


def is_unknown(events: list[Any]) -> bool:
    """Return whether this is how Strands answers a call of an unknown tool."""
    errors = [event.exception for event in events if isinstance(event, ToolResultEvent)]
    return bool(errors) and str(errors[-1]).startswith("Unknown tool: ")


def read_result(event: ToolResultEvent) -> Any:
    """Return what the tool returned, or raise its exception."""
    result = event.tool_result
    blocks = result["content"]
    texts = [block["text"] for block in blocks if "text" in block]
    if result["status"] == "error":
        raise mark_reported(event.exception or "\n".join(texts))
    if len(texts) == len(blocks):
        return "\n".join(texts)
    return blocks[0]["json"] if len(blocks) == 1 and "json" in blocks[0] else blocks


def build_result(tool_use_id: str, results: list[ToolResultEvent], outcome: ToolOutcome) -> ToolResultEvent:
    event = results[0] if results else None
    is_answered = event is not None and event.tool_result["status"] != "error"
    if event is not None and outcome.ok and not outcome.notes and (is_answered or outcome.value is None):
        return event
    content = [{"text": outcome.to_message()}]
    if event is not None and is_answered and isinstance(outcome.value, list):  # with images
        content = [*event.tool_result["content"], {"text": outcome.to_note()}]
    status = "success" if outcome.ok else "error"
    error = event.exception if event is not None and not outcome.ok else None
    return ToolResultEvent({"toolUseId": tool_use_id, "status": status, "content": content}, exception=error)


def build_stop(answer: Any) -> ModelStopReason:
    """Return the answer of a fallback as Strands needs it."""
    usage = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    message = answer if isinstance(answer, dict) else {"role": "assistant", "content": [{"text": str(answer)}]}
    return ModelStopReason("end_turn", message, usage, {"latencyMs": 0})


def is_retried(agent: Any, error: Exception) -> bool:
    """Return whether the retry strategy of the agent retries after this exception. It has no public name."""
    strategy: Any = getattr(agent, "_retry_strategy", None)
    return getattr(strategy, "_max_attempts", 1) > 1 and bool(strategy.is_retryable(error))


def summary_ids(agent: Any) -> list[str]:
    """Return the id of the summary in place of messages, if the conversation manager writes summaries."""
    state = agent.conversation_manager.get_state()
    return [str(state["removed_message_count"])] if state.get("summary_message") else []
