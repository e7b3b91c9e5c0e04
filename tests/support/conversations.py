"""Conversations to compress: the same generated story in the form of every provider, and a check of its pairing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mulligan.core import conversation

Turn = tuple[str, Any]
"""(`user`, text), (`said`, text) or (`calls`, [(id, name, arguments, result), ...])."""

WORDS = (
    "the agent reads orders and refunds while a customer waits for news about parcel, weather, Oslo harbour, invoice; "
    "reconciliation table window little amount because under before returned shipped warehouse-7 answer question "
    "customs delay (unresolved), it's pre-authorised, subsidiary's ledger: idempotent retries' backoff, shipmentId "
    "carrier_code Rotterdam unconfirmed; misrouted, de-duplicated telemetry. Nevertheless, three of 14 consignments"
).split()


def prose(chance: random.Random, chars: int) -> str:
    text: list[str] = []
    length = 0
    while length < chars:
        word = chance.choice(WORDS)
        text.append(word + ("." if chance.random() < 0.1 else ""))
        length += len(word) + 1
    return " ".join(text)


def records(chance: random.Random, chars: int) -> str:
    rows: list[dict[str, Any]] = []
    length = 0
    while length < chars:
        row = {"id": f"ord_{chance.randrange(10**6)}", "total": chance.randrange(9999), "note": prose(chance, 40)}
        length += len(json.dumps(row)) + 2
        rows.append(row)
    return json.dumps({"orders": rows, "next": None})


def logs(chance: random.Random, chars: int) -> str:
    lines: list[str] = []
    length = 0
    while length < chars:
        line = f"2024-05-{chance.randrange(1, 28):02} 12:{chance.randrange(60):02}:07 INFO worker-{chance.randrange(9)}"
        line += f" took {chance.randrange(900)} ms" if chance.random() < 0.7 else f" {prose(chance, 50)}"
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)


def table(chance: random.Random, chars: int) -> str:
    lines = ["id,name,amount,city"]
    length = 20
    while length < chars:
        lines.append(f"{len(lines)},{chance.choice(WORDS)},{chance.randrange(10**4)},{chance.choice(WORDS)}")
        length += len(lines[-1]) + 1
    return "\n".join(lines)


RESULTS: tuple[Callable[[random.Random, int], str], ...] = (prose, records, logs, table)


def story(seed: int, *, messages: int = 200, results: int = 30, longest: int = 12_000) -> list[Turn]:
    """A conversation of about so many messages, of which so many are the results of tools."""
    chance = random.Random(seed)
    turns: list[Turn] = [("user", prose(chance, 300))]
    left = results
    while len(turns) < messages - results - 1:
        if left and chance.random() < results / (messages - 2 * results):
            count = min(left, chance.choice((1, 1, 1, 2, 3)))
            left -= count
            calls = []
            for _ in range(count):
                size = int(longest * chance.random() ** 2) + 40
                number = f"call_{chance.randrange(10**9)}"
                calls.append((number, "orders", {"page": chance.randrange(50)}, chance.choice(RESULTS)(chance, size)))
            turns.append(("calls", calls))
        else:
            who = "user" if turns[-1][0] == "said" else "said"
            turns.append((who, prose(chance, chance.randrange(20, 900))))
    while left:
        left -= 1
        result = chance.choice(RESULTS)(chance, longest // 3)
        turns.append(("calls", [(f"call_{chance.randrange(10**9)}", "orders", {"page": 1}, result)]))
    turns.append(("user", "What is the sum of all of that?"))
    return turns


SYSTEM = "You are an agent of a shop. Answer in one sentence."


def openai_chat(turns: list[Turn]) -> list[Any]:
    made: list[Any] = [{"role": "system", "content": SYSTEM}]
    for sort, told in turns:
        if sort == "user":
            made.append({"role": "user", "content": told})
        elif sort == "said":
            made.append({"role": "assistant", "content": told})
        else:
            calls = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for id, name, arguments, _ in told
            ]
            made.append({"role": "assistant", "content": None, "tool_calls": calls})
            made += [{"role": "tool", "tool_call_id": id, "content": result} for id, _, _, result in told]
    return made


def openai_responses(turns: list[Turn]) -> list[Any]:
    made: list[Any] = [{"role": "developer", "content": SYSTEM}]
    for number, (sort, told) in enumerate(turns):
        if sort == "user":
            made.append({"role": "user", "content": [{"type": "input_text", "text": told}]})
        elif sort == "said":
            block = {"type": "output_text", "text": told}
            made.append({"type": "message", "id": f"msg_{number}", "role": "assistant", "content": [block]})
        else:
            made.append({"type": "reasoning", "id": f"rs_{number}", "summary": []})
            made += [
                {"type": "function_call", "call_id": id, "name": name, "arguments": json.dumps(arguments)}
                for id, name, arguments, _ in told
            ]
            made += [{"type": "function_call_output", "call_id": id, "output": result} for id, _, _, result in told]
    return made


def anthropic(turns: list[Turn]) -> list[Any]:
    made: list[Any] = []
    for sort, told in turns:
        if sort == "user":
            made.append({"role": "user", "content": told})
        elif sort == "said":
            made.append({"role": "assistant", "content": [{"type": "text", "text": told}]})
        else:
            uses = [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given, _ in told]
            made.append({"role": "assistant", "content": uses})
            results: list[Any] = [
                {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": result}]}
                for id, _, _, result in told
            ]
            made.append({"role": "user", "content": results})
    return made


def google(turns: list[Turn]) -> list[Any]:
    made: list[Any] = []
    for sort, told in turns:
        if sort in ("user", "said"):
            made.append({"role": "user" if sort == "user" else "model", "parts": [{"text": told}]})
        else:
            calls = [{"function_call": {"id": id, "name": name, "args": given}} for id, name, given, _ in told]
            made.append({"role": "model", "parts": calls})
            results = [
                {"function_response": {"id": id, "name": name, "response": _answer(result)}}
                for id, name, _, result in told
            ]
            made.append({"role": "user", "parts": results})
    return made


def agent_framework(turns: list[Turn]) -> list[Any]:
    """Message objects whose results hold their text twice: in `result` and in `items`."""

    def message(role: str, *contents: dict[str, Any]) -> Any:
        parts = [SimpleNamespace(**content) for content in contents]
        text = " ".join(part.text for part in parts if part.type == "text")
        return SimpleNamespace(role=role, contents=parts, text=text, message_id=None, additional_properties={})

    made: list[Any] = []
    for sort, told in turns:
        if sort in ("user", "said"):
            made.append(message("user" if sort == "user" else "assistant", {"type": "text", "text": told}))
            continue
        calls = [
            {"type": "function_call", "call_id": id, "name": name, "arguments": json.dumps(given), "text": None}
            for id, name, given, _ in told
        ]
        made.append(message("assistant", *calls))
        for id, _, _, result in told:
            items = [SimpleNamespace(type="text", text=result)]
            content = {"type": "function_result", "call_id": id, "result": result, "items": items, "exception": None}
            made.append(message("tool", content))
    return made


def _answer(result: str) -> dict[str, Any]:
    return json.loads(result) if result.startswith("{") else {"result": result}  # type: ignore[no-any-return]


def bedrock(turns: list[Turn]) -> list[Any]:
    made: list[Any] = []
    for sort, told in turns:
        if sort in ("user", "said"):
            made.append({"role": "user" if sort == "user" else "assistant", "content": [{"text": told}]})
        else:
            uses = [{"toolUse": {"toolUseId": id, "name": name, "input": given}} for id, name, given, _ in told]
            made.append({"role": "assistant", "content": uses})
            results = []
            for id, _, _, result in told:
                block = {"json": json.loads(result)} if result.startswith("{") else {"text": result}
                results.append({"toolResult": {"toolUseId": id, "content": [block], "status": "success"}})
            made.append({"role": "user", "content": results})
    return made


def alternating_bedrock(turns: list[Turn]) -> list[Any]:
    """The provider rejects two messages of one role in a row."""
    messages: list[Any] = []
    for message in bedrock(turns):
        if messages and messages[-1]["role"] == message["role"]:
            messages[-1]["content"] += message["content"]
        else:
            messages.append(message)
    return messages


def objects(turns: list[Turn]) -> list[Any]:
    """As objects with attributes, the way a client's own classes are."""

    def thing(value: Any) -> Any:
        if isinstance(value, dict):
            return SimpleNamespace(**{name: thing(inside) for name, inside in value.items()})
        return [thing(each) for each in value] if isinstance(value, list) else value

    return [thing(message) for message in openai_chat(turns)]


class LangChainMessage(SimpleNamespace):
    """Like a message of LangChain, which shows its content a second time as `text`."""

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(block["text"] for block in self.content if block["type"] == "text")

    @property
    def additional_kwargs(self) -> dict[str, Any]:
        return {"tool_calls": getattr(self, "tool_calls", [])}


def langchain(turns: list[Turn]) -> list[Any]:
    made: list[Any] = [LangChainMessage(type="system", content=SYSTEM)]
    for sort, told in turns:
        if sort in ("user", "said"):
            made.append(LangChainMessage(type="human" if sort == "user" else "ai", content=told))
        else:
            calls = [{"id": id, "name": name, "args": given, "type": "tool_call"} for id, name, given, _ in told]
            made.append(LangChainMessage(type="ai", content="", tool_calls=calls))
            made += [LangChainMessage(type="tool", content=result, tool_call_id=id) for id, _, _, result in told]
    return made


def pydantic_ai(turns: list[Turn]) -> list[Any]:
    """As PydanticAI has them: requests and responses with parts."""

    def message(kind: str, parts: list[dict[str, Any]]) -> Any:
        return SimpleNamespace(kind=kind, parts=[SimpleNamespace(**part) for part in parts])

    made: list[Any] = [message("request", [{"part_kind": "system-prompt", "content": SYSTEM}])]
    for sort, told in turns:
        if sort == "user":
            made.append(message("request", [{"part_kind": "user-prompt", "content": told}]))
        elif sort == "said":
            made.append(message("response", [{"part_kind": "text", "content": told}]))
        else:
            calls = [
                {"part_kind": "tool-call", "tool_name": name, "args": given, "tool_call_id": id}
                for id, name, given, _ in told
            ]
            results = [
                {"part_kind": "tool-return", "content": result, "tool_call_id": id, "outcome": "success"}
                for id, _, _, result in told
            ]
            made += [message("response", calls), message("request", results)]
    return made


def langchain_blocks(turns: list[Turn]) -> list[Any]:
    """As LangChain has the answers of Anthropic: the calls are in the content, and once more in `tool_calls`."""
    made = langchain(turns)
    for message in made:
        if message.type == "ai" and message.content:
            message.content = [{"type": "text", "text": message.content}]
        elif message.type == "ai":
            message.content = [
                {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]}
                for call in message.tool_calls
            ]
    return made


def langchain_dicts(turns: list[Turn]) -> list[Any]:
    """As LangChain's `messages_to_dict` has them: with every field, set or not, and with copies."""
    unset = {"name": None, "id": None, "example": False, "response_metadata": {}, "usage_metadata": None}
    return [
        {
            "type": message.type,
            "data": {**unset, **vars(message), "additional_kwargs": message.additional_kwargs},
        }
        for message in langchain(turns)
    ]


def pair_lists(turns: list[Turn]) -> list[Any]:
    """Pairs as they come out of JSON."""
    return [list(pair) for pair in pairs(turns)]


def dumps(turns: list[Turn]) -> list[Any]:
    """As `model_dump` of a client's classes gives them: with every field, set or not."""
    unset = {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None}
    return [{**unset, "provider_specific_fields": None, **message} for message in openai_chat(turns)]


def google_dumps(turns: list[Turn]) -> list[Any]:
    unset = {"text": None, "inline_data": None, "file_data": None, "thought": None, "thought_signature": None}
    unset |= {"function_call": None, "function_response": None, "executable_code": None}
    return [{**message, "parts": [{**unset, **part} for part in message["parts"]]} for message in google(turns)]


def pairs(turns: list[Turn]) -> list[Any]:
    """Plain (who, text) pairs, in which results stand as texts."""
    made: list[Any] = [("system", SYSTEM)]
    for sort, told in turns:
        if sort == "calls":
            made.append(("assistant", f"I look at {len(told)} pages."))
            made += [("tool", result) for *_, result in told]
        else:
            made.append(("user" if sort == "user" else "assistant", told))
    return made


FORMS: dict[str, Callable[[list[Turn]], list[Any]]] = {
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "anthropic": anthropic,
    "google": google,
    "bedrock": bedrock,
    "objects": objects,
    "langchain": langchain,
    "agent_framework": agent_framework,
    "pydantic_ai": pydantic_ai,
    "pairs": pairs,
}


OTHER_FORMS: dict[str, Callable[[list[Turn]], list[Any]]] = {
    "langchain_blocks": langchain_blocks,
    "langchain_dicts": langchain_dicts,
    "pair_lists": pair_lists,
    "dumps": dumps,
    "google_dumps": google_dumps,
}
"""The same forms as clients and hosts copy them."""


def read_turns(messages: list[Any]) -> list[Turn]:
    """Convert a conversation of any form back into its turns. Texts that are read twice would be there twice."""
    turns: list[Turn] = []
    results: dict[Any, str] = {}
    parsed = conversation.parse_messages(messages)
    for message in parsed:
        for block in message.blocks:
            if block.type == "result":
                results[block.id] = "".join(slot.text for slot in block.slots)
    for message in parsed:
        calls = []
        for block in message.calls:
            given = json.loads(block.value) if isinstance(block.value, str) else flat(block.value)
            calls.append((block.id, block.name, given, results.pop(block.id)))
        if message.role == "user" or (message.role == "assistant" and any(message.texts)):
            turns.append(("user" if message.role == "user" else "said", "".join(message.texts)))
        if calls and turns and turns[-1][0] == "calls" and all(block.type == "call" for block in message.blocks):
            turns[-1][1].extend(calls)  # OpenAI's responses have an item for each call
        elif calls:
            turns.append(("calls", calls))
    assert not results
    return turns


def plain_texts(turns: list[Turn]) -> list[str]:
    """What a model reads of it, without any form."""
    lines = [SYSTEM]
    for sort, told in turns:
        if sort == "calls":
            for id, name, given, result in told:
                lines += [id, name, json.dumps(given), result, id]
        else:
            lines.append(told)
    return lines


def flat(value: Any) -> Any:
    """Any of these as JSON knows it. A text that an object has twice is sent once, and an empty field not at all."""
    if isinstance(value, SimpleNamespace):
        fields = dict(vars(value))
        if "contents" in fields:
            fields.pop("text", None)
        if "result" in fields:
            fields.pop("items", None)
        return {name: flat(inside) for name, inside in fields.items() if inside not in (None, {})}
    if isinstance(value, dict):
        return {name: flat(inside) for name, inside in value.items()}
    return [flat(each) for each in value] if isinstance(value, list | tuple) else value
