"""What the core needs of Strands: tools, results of tools and models, retries and summaries of an agent."""

from __future__ import annotations

from typing import Any

from strands.middleware import ModelStopReason, ToolResultEvent

from mulligan.capture.tool_outcome import ToolOutcome
from mulligan.integrations.framework_tools import ToolDefinition, mark_reported


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
