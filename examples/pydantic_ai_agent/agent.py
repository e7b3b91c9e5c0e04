"""A PydanticAI agent with mulligan's capability. Its model is scripted: replace it with your own."""

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import mulligan
from mulligan.integrations.pydantic_ai import MulliganCapability


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call `search` with a misspelled argument, then repeat what the tool returned."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse([TextPart(last.model_response_str())])
    return ModelResponse([ToolCallPart("search", {"query": "fish", "topk": 3})])


def search(query: str, top_k: int = 5) -> str:
    """Search the index."""
    return f"{top_k} results for {query}"


capability = MulliganCapability(agent="researcher", tools={"search": {"effects": "none"}})  # search only reads
agent = Agent(FunctionModel(answer), tools=[search], capabilities=[capability])
print("answer:", agent.run_sync("Find fish.").output)
mulligan.flush()
