"""A LangChain agent with mulligan's middleware. Its model is scripted: replace it with your own."""

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

import mulligan
from mulligan.integrations.langchain import MulliganMiddleware


class ScriptedModel(BaseChatModel):
    """Calls `search` with a misspelled argument that is too large, then answers."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        if isinstance(messages[-1], ToolMessage):
            return ChatResult(generations=[ChatGeneration(message=AIMessage("Found 10 results."))])
        call = {"name": "search", "args": {"query": "fish", "topk": 50}, "id": "call_1", "type": "tool_call"}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])


def search(query: str, top_k: int = 5) -> str:
    """Search the index."""
    if top_k > 10:
        raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
    return f"{top_k} results for {query}"


middleware = MulliganMiddleware(agent="researcher", tools={"search": {"effects": "none"}})  # it only reads
agent = create_agent(ScriptedModel(), [search], middleware=[middleware])
messages = agent.invoke({"messages": [{"role": "user", "content": "Find fish."}]})["messages"]
print("tool:", messages[-2].text)
print("answer:", messages[-1].text)
mulligan.flush()
