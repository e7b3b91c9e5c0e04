"""The generated conversations of `conversations.py` in the classes of the real packages, and as those dump them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import conversations
from conversations import SYSTEM, Turn


def langchain(turns: list[Turn]) -> list[Any]:
    from langchain_core import messages as lc

    made: list[Any] = [lc.SystemMessage(SYSTEM, id="s")]
    for sort, told in turns:
        if sort == "user":
            made.append(lc.HumanMessage(told, id="h"))
        elif sort == "said":
            made.append(lc.AIMessage(told, response_metadata={"model": "m"}))
        else:
            calls = [{"id": id, "name": name, "args": given, "type": "tool_call"} for id, name, given, _ in told]
            copies = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
                for id, name, given, _ in told
            ]
            made.append(lc.AIMessage("", tool_calls=calls, additional_kwargs={"tool_calls": copies}))
            made += [
                lc.ToolMessage(result, tool_call_id=id, name=name, artifact={"raw": result})
                for id, name, _, result in told
            ]
    return made


def langchain_dumps(turns: list[Turn]) -> list[Any]:
    return [message.model_dump() for message in langchain(turns)]


def langchain_dicts(turns: list[Turn]) -> list[Any]:
    from langchain_core.messages import messages_to_dict

    return messages_to_dict(langchain(turns))


def langchain_serialized(turns: list[Turn]) -> list[Any]:
    from langchain_core.load import dumpd

    return [dumpd(message) for message in langchain(turns)]


def langchain_blocks(turns: list[Turn]) -> list[Any]:
    """The answers as Anthropic's and as LangChain's own content blocks, in turn."""
    from langchain_core.messages import AIMessage

    made = langchain(turns)
    for number, message in enumerate(made):
        if message.type == "ai" and message.tool_calls and number % 2:
            blocks = [
                {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]}
                for call in message.tool_calls
            ]
            made[number] = AIMessage(blocks, tool_calls=message.tool_calls)
        elif message.type == "ai":
            text = [{"type": "text", "text": message.content}] if message.content else []
            made[number] = AIMessage(content_blocks=[*text, *message.tool_calls])
    return made


def langchain_pairs(turns: list[Turn]) -> list[Any]:
    """Pairs for what was said, and messages for the rest, as prompt templates take them."""
    names = {"system": "system", "human": "human", "ai": "ai"}
    return [
        (names[message.type], message.content) if message.content and message.type in names else message
        for message in langchain(turns)
    ]


def openai_chat(turns: list[Turn]) -> list[Any]:
    """The answers are objects of the client, and the rest dictionaries."""
    from openai.types.chat import ChatCompletionMessage

    return [
        ChatCompletionMessage.model_validate(message) if message["role"] == "assistant" else message
        for message in conversations.openai_chat(turns)
    ]


def openai_dumps(turns: list[Turn]) -> list[Any]:
    return [message if isinstance(message, dict) else message.model_dump() for message in openai_chat(turns)]


def openai_responses(turns: list[Turn]) -> list[Any]:
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

    types: dict[str, Any] = {
        "message": ResponseOutputMessage,
        "function_call": ResponseFunctionToolCall,
        "reasoning": ResponseReasoningItem,
    }
    made = []
    for item in conversations.openai_responses(turns):
        if item.get("type") == "message":
            blocks = [{**block, "annotations": []} for block in item["content"]]
            item = {**item, "status": "completed", "content": blocks}
        made.append(types[item["type"]].model_validate(item) if item.get("type") in types else item)
    return made


def openai_responses_dumps(turns: list[Turn]) -> list[Any]:
    return [item if isinstance(item, dict) else item.model_dump() for item in openai_responses(turns)]


def anthropic(turns: list[Turn]) -> list[Any]:
    """The blocks of the answers are objects of the client."""
    from anthropic.types import TextBlock, ToolUseBlock

    types: dict[str, Any] = {"text": TextBlock, "tool_use": ToolUseBlock}
    return [
        {**message, "content": [types[block["type"]].model_validate(block) for block in message["content"]]}
        if message["role"] == "assistant"
        else message
        for message in conversations.anthropic(turns)
    ]


def anthropic_answers(turns: list[Turn]) -> list[Any]:
    """The answers are the client's message objects as they came, with their usage."""
    from anthropic.types import Message

    usage = {"input_tokens": 1, "output_tokens": 1}
    about = {"id": "m", "type": "message", "model": "claude", "stop_reason": "end_turn", "usage": usage}
    return [
        Message.model_validate({**about, **message}) if message["role"] == "assistant" else message
        for message in conversations.anthropic(turns)
    ]


def anthropic_dumps(turns: list[Turn]) -> list[Any]:
    return [message if isinstance(message, dict) else message.model_dump() for message in anthropic_answers(turns)]


def google(turns: list[Turn]) -> list[Any]:
    from google.genai.types import Content

    return [Content.model_validate(message) for message in conversations.google(turns)]


def google_dumps(turns: list[Turn]) -> list[Any]:
    return [message.model_dump() for message in google(turns)]


def google_json(turns: list[Turn]) -> list[Any]:
    return [json.loads(message.model_dump_json(by_alias=True)) for message in google(turns)]


def litellm_messages(turns: list[Turn]) -> list[Any]:
    from litellm.types.utils import Message

    return [
        Message(**message) if message["role"] == "assistant" else message
        for message in conversations.openai_chat(turns)
    ]


def litellm_dumps(turns: list[Turn]) -> list[Any]:
    return [message if isinstance(message, dict) else message.model_dump() for message in litellm_messages(turns)]


Form = Callable[[list[Turn]], list[Any]]
FORMS: dict[str, list[Form]] = {
    "langchain_core": [
        langchain,
        langchain_dumps,
        langchain_dicts,
        langchain_serialized,
        langchain_blocks,
        langchain_pairs,
    ],
    "openai": [openai_chat, openai_dumps, openai_responses, openai_responses_dumps],
    "anthropic": [anthropic, anthropic_answers, anthropic_dumps],
    "google.genai": [google, google_dumps, google_json],
    "litellm": [litellm_messages, litellm_dumps],
}
