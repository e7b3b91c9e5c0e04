"""A run of the Microsoft Agent Framework, and its messages, tools and results as the core needs them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import agent_framework as framework
from agent_framework import Content, FunctionTool, Message, MiddlewareFailure, ResponseStream

from mulligan.capture.run import ContextValue, Raised
from mulligan.classify.declared_errors import InfraError
from mulligan.integrations.framework_agent import AgentRun, FrameworkAgent
from mulligan.integrations.framework_tools import ToolDefinition
from mulligan.recover.model_output import parse_arguments


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
