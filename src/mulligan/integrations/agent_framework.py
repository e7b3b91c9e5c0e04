"""Recovery for agents of the Microsoft Agent Framework: `Agent(client, middleware=MulliganMiddlewareList())`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import agent_framework as framework
from agent_framework import Content, FunctionTool, Message, MiddlewareFailure, ResponseStream

from mulligan.api import Mulligan
from mulligan.classify.declared_errors import InfraError
from mulligan.core.records import new_id
from mulligan.integrations.agent_framework_runs import (
    RunningAgent,
    complete_results,
    current_agent,
    define_tool,
    read_result,
    summary_ids,
    to_response,
    to_stream,
)
from mulligan.integrations.framework_agent import MAX_OPEN_RUNS, FrameworkAgent


class MulliganMiddlewareList(list[Any]):
    """Middleware that records the runs of an agent and recovers its tool and model calls.

    Add others behind it: `middleware=[*MulliganMiddlewareList(), other]`. The options are those of `FrameworkAgent`.
    """

    def __init__(self, mulligan: Mulligan | None = None, **options: Any) -> None:
        self._agent = FrameworkAgent(mulligan, **options)
        self._paused_runs: dict[str, RunningAgent] = {}
        """Runs that wait for a person, by the id of the request."""
        super().__init__([self.process_run, self.process_chat, self.process_function])

    # Runs

    async def process_run(self, context: framework.AgentContext, call_next: Any) -> None:
        if not self._agent.is_enabled:
            await call_next()
            return
        running = self._resume(context.messages) or await self._start(context)
        with running:
            await call_next()
        if isinstance(context.result, ResponseStream):
            context.result.with_pull_context_manager(lambda: running)
            context.stream_result_hooks.append(lambda response: self._finish(running, response))
        else:
            await self._finish(running, context.result)

    async def _start(self, context: framework.AgentContext) -> RunningAgent:
        texts = [message.text for message in context.messages if message.role == "user" and message.text]
        running = RunningAgent(self._agent, new_id("agent_framework"))
        session = context.session.session_id if context.session is not None else None
        description = {"agent": context.agent.name, "session": session, "context": next(reversed(texts), None)}
        await self._agent.astart_run(running.key, **description)
        return running

    def _resume(self, messages: Sequence[Message]) -> RunningAgent | None:
        """Return the paused run that these messages answer."""
        contents = [content for message in messages for content in message.contents]
        answered_runs = [self._paused_runs.pop(content.id, None) for content in contents if content.id]
        return next((running for running in answered_runs if running is not None), None)

    async def _finish(self, running: RunningAgent, response: framework.AgentResponse[Any] | None) -> None:
        requests = [request.id for request in (response.user_input_requests if response is not None else ())]
        for id in requests:
            self._paused_runs[id] = running
        for id in list(self._paused_runs)[:-MAX_OPEN_RUNS]:
            del self._paused_runs[id]
        if not requests:
            await self._agent.aend_run(running.key)

    # Tools

    async def process_function(self, context: framework.FunctionInvocationContext, call_next: Any) -> None:
        if not self._agent.is_enabled:
            await call_next()
            return
        running, tool = current_agent.get() or RunningAgent(self._agent), context.function
        needs_approval = tool.approval_mode == "always_require" or "approval_response" in context.metadata
        tools = self._agent.tools.define({tool.name: tool}, define_tool, "suggest" if needs_approval else None)
        arguments = running.requests.get(context.metadata.get("call_id", "")) or context.arguments

        async def attempt(name: str, arguments: Any) -> Any:
            context.result = None
            if isinstance(arguments, dict):
                context.arguments = arguments
            await call_next()
            return read_result(context.result)

        try:
            outcome = await running.find_run().acall(tools, tool.name, arguments, attempt)
        except InfraError as error:
            self._agent.end_run(running.key, error)
            raise MiddlewareFailure(str(error)) from error  # anything else becomes an answer for the model
        if isinstance(outcome.value, list) and (note := outcome.to_note()):  # images and files
            context.result = [*outcome.value, Content.from_text(note)]
        elif not outcome.ok or (outcome.notes and not isinstance(outcome.value, Content)):
            context.result = outcome.to_message()

    # Models

    async def process_chat(self, context: framework.ChatContext, call_next: Any) -> None:
        if not self._agent.is_enabled:
            await call_next()
            return
        running, results = current_agent.get() or RunningAgent(self._agent), list[Any]()
        run, options = running.find_run(), context.options or {}
        tools = [tool for tool in framework.normalize_tools(options.get("tools")) if isinstance(tool, FunctionTool)]
        running.replace_answers(context.messages)
        if instructions := await run.ainstructions([tool.name for tool in tools], summary_ids(context.messages)):
            texts = filter(None, (options.get("instructions"), instructions))
            context.options = {**options, "instructions": "\n\n".join(texts)}

        async def attempt(messages: Sequence[Message]) -> Any:
            context.messages = messages
            complete_results(messages)
            await call_next()
            results.append(context.result)
            return context.result

        async def finish(answer: Any) -> Any:
            response = to_response(await results[-1].get_final_response() if context.stream else answer)
            run.note_compactions(summary_ids(context.messages))  # the client makes some itself
            await running.read_requests(run, response, tools)
            return response

        model = options.get("model") or getattr(context.client, "model", None)
        settings = {"model": model if isinstance(model, str) else None, "stream": context.stream or None}
        answer = await run.aask(list(context.messages), attempt, **settings)
        if context.stream and isinstance(answer, str | framework.ChatResponse):  # of a fallback
            context.result = to_stream(to_response(answer))
        else:
            context.result = ResponseStream(answer, finalizer=finish) if context.stream else await finish(answer)
