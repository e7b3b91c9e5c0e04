"""Recovery for agents of the Microsoft Agent Framework: `Agent(client, middleware=MulliganMiddlewareList())`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import agent_framework as framework
from agent_framework import Content, FunctionTool, Message, MiddlewareFailure, ResponseStream

from mulligan.api import Mulligan
from mulligan.capture.call_scope import ContextValue, Raised
from mulligan.classify.declared_errors import InfraError
from mulligan.core.records import new_id
from mulligan.integrations.framework_agent import MAX_OPEN_RUNS, AgentRun, FrameworkAgent
from mulligan.integrations.framework_tools import ToolDefinition
from mulligan.recover.model_output import parse_arguments


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


class RunningAgent:
    """A run of an agent, as a context manager around its work. An exception ends it. Without a key, it has one call."""

    def __init__(self, agent: FrameworkAgent, key: str | None = None) -> None:
        self.key = key
        self.requests: dict[str, Any] = {}
        """The arguments as the model wrote them, by the id of the call: the framework drops unknown ones."""
        self._answers: dict[str, str] = {}
        """Our answers to requests of unknown tools, by the id of the call: the framework gives its own."""
        self._agent = agent

    def find_run(self) -> AgentRun:
        return self._agent.start_run(self.key)

    def __enter__(self) -> None:
        self._scope = ContextValue(current_agent, lambda: self)
        self._scope.__enter__()

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        self._scope.__exit__(kind, error, trace)
        if isinstance(error, MiddlewareFailure) and isinstance(error.__cause__, InfraError):
            raise error.__cause__
        if isinstance(error, MiddlewareFailure):  # control flow for the calls, and a failure of the run
            self._agent.end_run(self.key, error.__cause__ or RuntimeError(str(error)))
        elif error is not None and not isinstance(error, StopAsyncIteration):
            self._agent.end_run(self.key, error)

    async def read_requests(self, run: AgentRun, response: Any, tools: Sequence[FunctionTool]) -> None:
        """Keep the requests of a model, and answer those of unknown tools: no middleware of functions gets them."""
        definitions = self._agent.tools.define({tool.name: tool for tool in tools}, define_tool)
        for content in (content for message in response.messages for content in message.contents):
            if self.key is not None and content.type == "function_call" and content.call_id and content.name:
                parsed = parse_arguments(content.arguments)
                self.requests[content.call_id] = content.arguments if parsed.defect or parsed.error else parsed.value
                if tools and content.name not in definitions:
                    outcome = await run.reject(definitions, content.name, content.arguments)
                    self._answers |= {content.call_id: outcome.to_message()} if outcome is not None else {}

    def replace_answers(self, messages: Sequence[Message]) -> None:
        for content in (content for message in messages for content in message.contents):
            if content.type == "function_result" and content.call_id in self._answers:
                content.result = self._answers.pop(content.call_id)


current_agent: ContextVar[RunningAgent | None] = ContextVar("mulligan_agent_framework", default=None)


def summary_ids(messages: Sequence[Message]) -> list[str]:
    """Return the ids of the summaries that stand in place of messages."""
    annotations = [
        (message.message_id or message.text, message.additional_properties.get(framework.GROUP_ANNOTATION_KEY))
        for message in messages
    ]
    key = framework.SUMMARY_OF_MESSAGE_IDS_KEY
    return [id for id, annotation in annotations if isinstance(annotation, dict) and key in annotation]


def to_response(answer: Any) -> framework.ChatResponse[Any]:
    """Return the answer of a model, or of a fallback: a response or a text."""
    is_response = isinstance(answer, framework.ChatResponse)
    return answer if is_response else framework.ChatResponse(messages=[Message("assistant", [str(answer)])])


def to_stream(response: framework.ChatResponse[Any]) -> ResponseStream[Any, Any]:
    async def read_updates() -> AsyncIterator[Any]:
        for message in response.messages:
            yield framework.ChatResponseUpdate(role=message.role, contents=message.contents)

    return ResponseStream(read_updates(), finalizer=lambda updates: response)


def define_tool(tool: FunctionTool) -> ToolDefinition:
    return ToolDefinition(tool.name, tool.parameters(), tool.func)


def read_result(result: Any) -> Any:
    """Return the text of a tool's result, or the result if it is more than that."""
    if isinstance(result, list) and all(isinstance(item, Content) and item.type == "text" for item in result):
        return "\n".join(item.text or "" for item in result)
    return result


def complete_results(messages: Sequence[Message]) -> None:
    """Put the texts of changed results into their items, too: some clients read them there."""
    for content in (content for message in messages for content in message.contents):
        items = content.items if content.type == "function_result" and content.result else []
        texts = [item.text for item in items or () if item.type == "text" and item.text]
        if items and "\n".join(texts) != content.result:
            content.items = [Content.from_text(content.result), *(item for item in items if item.type != "text")]
