"""A fake provider on loopback that answers as OpenAI, Anthropic, Gemini, Bedrock and vLLM do.

It counts tokens, four letters each, and enforces its window by counting; whatever else goes wrong is scripted: each
request takes the next `Wrong` of the script, and is answered well when there is none left.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXT = "Rain in Oslo, as always."


@dataclass(frozen=True)
class Wrong:
    """One request that goes wrong."""

    status: int = 200
    type: str = ""
    code: str | None = None
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    breaks_after: int | None = None
    """Of a stream: tokens after which the connection is cut. 0 is an error event before the first token."""
    answer: str | None = None
    """What the model says instead."""
    arguments: str | None = None
    """What the model calls a tool with, instead of saying something."""
    tool: str = "weather"


class Provider:
    """One server, several providers: the path of a request says which."""

    def __init__(self, *, window: int = 10**9, says_sizes: bool = True) -> None:
        self.window = window
        self.says_sizes = says_sizes
        self.usage: dict[str, Any] | None = None
        """The usage of every answer, in the provider's own form; counted by default."""
        self.script: list[Wrong] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                provider.requests.append(body)
                provider.keys.append(self.headers.get("authorization") or self.headers.get("x-api-key") or "")
                provider._answer(self, body)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                pass  # a client that hung up is part of the play

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Provider:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    # Answers

    def _answer(self, http: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        style = _style(http.path)
        wrong = self.script.pop(0) if self.script else Wrong()
        too_long = self._too_long(style, body)
        if wrong.status == 200 and too_long is not None:
            wrong = too_long
        elif wrong.status == 200 and (reason := find_broken_order(style, body)):
            wrong = Wrong(400, "invalid_request_error", None, reason)
        if wrong.status != 200:
            self._send(http, wrong.status, _error(style, wrong), wrong.headers)
        elif body.get("stream") or "stream" in http.path.lower():
            self._stream(http, style, wrong, body)
        else:
            self._send(http, 200, _success(style, wrong, tokens(body), self.usage), {})

    def _too_long(self, style: str, body: dict[str, Any]) -> Wrong | None:
        count = tokens(body)
        if count <= self.window:
            return None
        sized, blind = OVERFLOWS[style]
        message = sized.format(count=count, window=self.window) if self.says_sizes else blind
        code = "context_length_exceeded" if style in ("openai", "responses") else None
        return Wrong(400, "invalid_request_error", code, message)

    def _send(self, http: BaseHTTPRequestHandler, status: int, body: Any, headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        http.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(data)), **headers}.items():
            http.send_header(name, value)
        http.end_headers()
        http.wfile.write(data)

    def _stream(self, http: BaseHTTPRequestHandler, style: str, wrong: Wrong, body: dict[str, Any]) -> None:
        http.send_response(200)
        http.send_header(
            "content-type", "application/vnd.amazon.eventstream" if style == "bedrock" else "text/event-stream"
        )
        http.send_header("connection", "close")
        http.end_headers()
        http.close_connection = True
        for event in _events(style, wrong, body, self.usage):
            http.wfile.write(event if isinstance(event, bytes) else event.encode())
            http.wfile.flush()


def tokens(body: dict[str, Any]) -> int:
    """Four letters of what is sent are one, as this provider counts. Fields that are not set count for nothing."""
    counted = [body.get(name) for name in ("messages", "input", "contents", "system", "instructions", "tools")]
    return len(json.dumps([_without_unset(each) for each in counted if each])) // 4


def _without_unset(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_unset(member) for name, member in value.items() if member is not None}
    return [_without_unset(member) for member in value] if isinstance(value, list) else value


def find_broken_order(style: str, body: dict[str, Any]) -> str:
    """Why a provider would reject the order of these messages: calls without results, roles that do not alternate."""
    open_calls: set[str] = set()
    role = ""
    for message in body.get("messages") or body.get("input") or body.get("contents") or ():
        if isinstance(message, str):
            return ""
        calls, results = _calls_of(message)
        if style == "bedrock" and message["role"] == (role or "assistant"):
            return f"A conversation must alternate between user and assistant roles, and begin with user: {role!r}"
        if not set(results) <= open_calls:
            return f"unexpected tool results: {sorted(set(results) - open_calls)}"
        if style not in ("responses", "openai", "vllm"):
            # The next message answers all calls.
            if open_calls - set(results):
                return f"calls without a result in the next message: {sorted(open_calls - set(results))}"
        elif open_calls and message.get("role") in ("user", "assistant"):
            return f"calls without a result: {sorted(open_calls)}"
        open_calls = (open_calls - set(results)) | set(calls)
        role = message.get("role", "")
    return f"calls without a result: {sorted(open_calls)}" if open_calls else ""


def _calls_of(message: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The ids of a message's calls, and of those that it answers."""
    calls = [call["id"] for call in message.get("tool_calls") or ()]
    results = [message["tool_call_id"]] if message.get("role") == "tool" else []
    if message.get("type") == "function_call":
        calls.append(message["call_id"])
    elif message.get("type") == "function_call_output":
        results.append(message["call_id"])
    blocks = message.get("content") or message.get("parts")
    for block in blocks if isinstance(blocks, list) else ():
        if block.get("type") == "tool_use":
            calls.append(block["id"])
        elif block.get("type") == "tool_result":
            results.append(block["tool_use_id"])
        elif "toolUse" in block:
            calls.append(block["toolUse"]["toolUseId"])
        elif "toolResult" in block:
            results.append(block["toolResult"]["toolUseId"])
        elif "functionCall" in block:
            calls.append(block["functionCall"]["id"])
        elif "functionResponse" in block:
            results.append(block["functionResponse"]["id"])
    return calls, results


def _style(path: str) -> str:
    if path.endswith("/responses"):
        return "responses"
    if "generateContent" in path or "streamGenerateContent" in path:
        return "gemini"
    if path.endswith(("/converse", "/converse-stream", "/invoke")):
        return "bedrock"
    if path.endswith("/v2/chat"):
        return "cohere"
    if path.endswith("/messages"):
        return "anthropic"
    return next((style for style in ("vllm", "mistral") if f"/{style}" in path), "openai")


OVERFLOWS = {
    "openai": (
        "This model's maximum context length is {window} tokens. However, your messages resulted in {count} tokens. "
        "Please reduce the length of the messages.",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    "responses": (
        "This model's maximum context length is {window} tokens. However, your messages resulted in {count} tokens.",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    "anthropic": ("prompt is too long: {count} tokens > {window} maximum", "prompt is too long"),
    "gemini": (
        "The input token count ({count}) exceeds the maximum number of tokens allowed ({window}).",
        "The input token count exceeds the maximum number of tokens allowed.",
    ),
    "bedrock": (
        "Input is too long for requested model: {count} tokens > {window} maximum",
        "Input is too long for requested model.",
    ),
    "vllm": (
        "This model's maximum context length is {window} tokens. However, you requested {count} tokens in the "
        "messages, Please reduce the length of the messages.",
        "The decoder prompt is longer than the maximum model length.",
    ),
}


def _error(style: str, wrong: Wrong) -> Any:
    if style == "anthropic":
        kind = wrong.type or "api_error"
        return {"type": "error", "error": {"type": kind, "message": wrong.message}, "request_id": "req_1"}
    if style == "gemini":
        return {"error": {"code": wrong.status, "message": wrong.message, "status": wrong.type.upper() or "UNKNOWN"}}
    if style == "bedrock":
        return {"message": wrong.message, "__type": wrong.type}
    if style == "vllm":
        return {
            "object": "error",
            "message": wrong.message,
            "type": wrong.type or "BadRequestError",
            "code": wrong.status,
        }
    return {"error": {"message": wrong.message, "type": wrong.type, "param": None, "code": wrong.code}}


def _success(style: str, wrong: Wrong, count: int, stated: dict[str, Any] | None = None) -> Any:
    text = TEXT if wrong.answer is None else wrong.answer
    usage = stated or {"prompt_tokens": count, "completion_tokens": 6, "total_tokens": count + 6}
    if style in ("openai", "vllm", "mistral"):
        message: dict[str, Any] = {"role": "assistant", "content": text}
        ended = "stop"
        if wrong.arguments is not None:
            function = {"name": wrong.tool, "arguments": wrong.arguments}
            call = {"id": f"call_{wrong.tool}", "type": "function", "function": function}
            message, ended = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": ended, "logprobs": None}
        return {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
    if style == "responses":
        block = {"type": "output_text", "text": text, "annotations": []}
        item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [block]}
        return {
            "id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [item],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "usage": stated or {
                "input_tokens": count, "output_tokens": 6, "total_tokens": count + 6,
                "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}},
        }  # fmt: skip
    if style == "anthropic":
        blocks: list[Any] = [{"type": "text", "text": text}] if text else []
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": blocks,
            "stop_reason": "end_turn", "stop_sequence": None,
            "usage": stated or {"input_tokens": count, "output_tokens": 6},
        }  # fmt: skip
    if style == "bedrock":
        message = {"role": "assistant", "content": [{"text": text}]}
        usage = stated or {"inputTokens": count, "outputTokens": 6, "totalTokens": count + 6}
        return {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}}
    if style == "cohere":
        message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
        usage = stated or {"tokens": {"input_tokens": count, "output_tokens": 6}}
        return {"id": "c1", "finish_reason": "COMPLETE", "message": message, "usage": usage}
    parts = {"role": "model", "parts": [{"text": text}]}
    usage = stated or {"promptTokenCount": count, "candidatesTokenCount": 6}
    candidate = {"content": parts, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m"}


def _events(
    style: str, wrong: Wrong, body: dict[str, Any], stated: dict[str, Any] | None = None
) -> Iterator[str | bytes]:
    """A stream of the answer, word by word, in the style of a provider."""
    if style in ("gemini", "bedrock", "cohere"):
        yield from _other_events(style, _success(style, wrong, tokens(body), stated))
        return
    words = [f"{word} " for word in (TEXT if wrong.answer is None else wrong.answer).split()]
    limit = wrong.breaks_after
    if style == "anthropic":
        start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
                 "stop_reason": None, "usage": {**(stated or {"input_tokens": 1}), "output_tokens": 1}}  # fmt: skip
        yield _event({"type": "message_start", "message": start}, named=True)
        if limit != 0:
            yield _event(
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, named=True
            )
        for number, word in enumerate(words):
            if number == limit:
                error = {"type": "overloaded_error", "message": "Overloaded"}
                yield _event({"type": "error", "error": error}, named=True)
                return
            delta = {"type": "text_delta", "text": word}
            yield _event({"type": "content_block_delta", "index": 0, "delta": delta}, named=True)
        yield _event({"type": "content_block_stop", "index": 0}, named=True)
        ended = {"stop_reason": "end_turn", "stop_sequence": None}
        spent = {name: count for name, count in (stated or {"output_tokens": 6}).items() if name != "cache_creation"}
        yield _event({"type": "message_delta", "delta": ended, "usage": spent}, named=True)
        yield _event({"type": "message_stop"}, named=True)
        return
    if style == "responses":
        yield from _response_events(words, limit, stated)
        return
    yield _chunk({"role": "assistant", "content": ""})
    for number, word in enumerate(words):
        if number == limit:
            yield _event({"error": {"message": "The server is overloaded.", "type": "server_error", "code": None}})
            return
        yield _chunk({"content": word})
    yield _chunk({}, "stop")
    if style == "mistral" or (body.get("stream_options") or {}).get("include_usage"):
        usage = stated or {"prompt_tokens": tokens(body), "completion_tokens": 6}
        facts = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
        yield _event({**facts, "usage": usage})
    yield "data: [DONE]\n\n"


def _other_events(style: str, whole: dict[str, Any]) -> Iterator[str | bytes]:
    """The streams of Gemini, Bedrock and Cohere, in one piece: their failures are not played."""
    usage = whole.get("usage")
    if style == "gemini":
        yield _event({**whole, "usageMetadata": {**whole["usageMetadata"], "candidatesTokenCount": 1}})
        end = {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP"}
        yield _event({**whole, "candidates": [end]})
    elif style == "cohere":
        start = {"type": "message-start", "id": "c1", "delta": {"message": {"role": "assistant"}}}
        yield _event(start, named=True)
        delta = {"message": {"content": {"text": TEXT}}}
        yield _event({"type": "content-delta", "index": 0, "delta": delta}, named=True)
        yield _event({"type": "message-end", "id": "c1", "delta": {"finish_reason": "COMPLETE", "usage": usage}})
    else:
        yield _frame("messageStart", {"role": "assistant"})
        yield _frame("contentBlockDelta", {"delta": {"text": TEXT}, "contentBlockIndex": 0})
        yield _frame("messageStop", {"stopReason": "end_turn"})
        yield _frame("metadata", {"usage": usage, "metrics": {"latencyMs": 1}})


def _frame(event: str, payload: dict[str, Any]) -> bytes:
    """One message of the binary event stream of AWS: lengths and checksums around headers and payload."""
    named = {":event-type": event, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        struct.pack("B", len(name)) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in named.items()
    )
    data = json.dumps(payload).encode()
    lengths = struct.pack(">II", 16 + len(headers) + len(data), len(headers))
    message = lengths + struct.pack(">I", zlib.crc32(lengths)) + headers + data
    return message + struct.pack(">I", zlib.crc32(message))


def _response_events(words: list[str], limit: int | None, stated: dict[str, Any] | None = None) -> Iterator[str]:
    """OpenAI's responses say that they failed in an event, which the client passes on."""
    whole = _success("responses", Wrong(answer="".join(words)), 1, stated)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    item = whole["output"][0]
    at = {"item_id": "m1", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "content": [], "status": "in_progress"},
        },
        {"type": "response.content_part.added", "part": {"type": "output_text", "text": "", "annotations": []}, **at},
    ]
    for number, word in enumerate(words):
        if number == limit:
            break
        events.append({"type": "response.output_text.delta", "delta": word, "logprobs": [], **at})
    if limit is None:
        text = "".join(words)
        events += [
            {"type": "response.output_text.done", "text": text, "logprobs": [], **at},
            {"type": "response.content_part.done", "part": item["content"][0], **at},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": whole},
        ]
    else:
        error = {"code": "server_error", "message": "The server is overloaded."}
        events.append({"type": "response.failed", "response": {**begun, "status": "failed", "error": error}})
    for number, event in enumerate(events):
        yield _event({**event, "sequence_number": number}, named=True)


def _chunk(delta: dict[str, Any], ended: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": ended}
    return _event({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def _event(data: dict[str, Any], named: bool = False) -> str:
    return (f"event: {data['type']}\n" if named else "") + f"data: {json.dumps(data)}\n\n"
