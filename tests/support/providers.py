"""A fake provider on loopback that answers as OpenAI, Anthropic, Gemini, Bedrock and vLLM do.

It counts tokens, four letters each, and enforces its window by counting; whatever else goes wrong is scripted: each
request takes the next `Wrong` of the script, and is answered well when there is none left.
"""

from __future__ import annotations

import json
import threading
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


class Provider:
    """One server, several providers: the path of a request says which."""

    def __init__(self, *, window: int = 10**9, says_sizes: bool = True) -> None:
        self.window = window
        self.says_sizes = says_sizes
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
        if wrong.status != 200:
            self._send(http, wrong.status, _error(style, wrong), wrong.headers)
        elif body.get("stream") or "stream" in http.path.lower():
            self._stream(http, style, wrong)
        else:
            self._send(http, 200, _success(style, wrong, tokens(body)), {})

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

    def _stream(self, http: BaseHTTPRequestHandler, style: str, wrong: Wrong) -> None:
        http.send_response(200)
        http.send_header("content-type", "text/event-stream")
        http.send_header("connection", "close")
        http.end_headers()
        http.close_connection = True
        for number, event in enumerate(_events(style, wrong)):
            del number
            http.wfile.write(event.encode())
            http.wfile.flush()


def tokens(body: dict[str, Any]) -> int:
    """Four letters of what is sent are one, as this provider counts."""
    counted = [body.get(name) for name in ("messages", "input", "contents", "system", "instructions", "tools")]
    return len(json.dumps([each for each in counted if each])) // 4


def _style(path: str) -> str:
    if path.endswith("/responses"):
        return "responses"
    if "generateContent" in path or "streamGenerateContent" in path:
        return "gemini"
    if path.endswith(("/converse", "/invoke")):
        return "bedrock"
    if path.endswith("/messages"):
        return "anthropic"
    return "vllm" if "/vllm" in path else "openai"


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


def _success(style: str, wrong: Wrong, count: int) -> Any:
    text = TEXT if wrong.answer is None else wrong.answer
    usage = {"prompt_tokens": count, "completion_tokens": 6, "total_tokens": count + 6}
    if style in ("openai", "vllm"):
        message: dict[str, Any] = {"role": "assistant", "content": text}
        ended = "stop"
        if wrong.arguments is not None:
            call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": wrong.arguments}}
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
            "usage": {"input_tokens": count, "output_tokens": 6, "total_tokens": count + 6,
                      "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}},
        }  # fmt: skip
    if style == "anthropic":
        blocks: list[Any] = [{"type": "text", "text": text}] if text else []
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": blocks,
            "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": count, "output_tokens": 6},
        }  # fmt: skip
    if style == "bedrock":
        message = {"role": "assistant", "content": [{"text": text}]}
        return {"output": {"message": message}, "stopReason": "end_turn", "usage": {"inputTokens": count}}
    parts = {"role": "model", "parts": [{"text": text}]}
    return {"candidates": [{"content": parts, "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": count}}


def _events(style: str, wrong: Wrong) -> Iterator[str]:
    """A stream of the answer, word by word, in the style of a provider."""
    words = [f"{word} " for word in (TEXT if wrong.answer is None else wrong.answer).split()]
    limit = wrong.breaks_after
    if style == "anthropic":
        start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
                 "stop_reason": None, "usage": {"input_tokens": 1, "output_tokens": 1}}  # fmt: skip
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
        yield _event({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 6}}, named=True)
        yield _event({"type": "message_stop"}, named=True)
        return
    if style == "responses":
        yield from _response_events(words, limit)
        return
    yield _chunk({"role": "assistant", "content": ""})
    for number, word in enumerate(words):
        if number == limit:
            yield _event({"error": {"message": "The server is overloaded.", "type": "server_error", "code": None}})
            return
        yield _chunk({"content": word})
    yield _chunk({}, "stop")
    yield "data: [DONE]\n\n"


def _response_events(words: list[str], limit: int | None) -> Iterator[str]:
    """OpenAI's responses say that they failed in an event, which the client passes on."""
    whole = _success("responses", Wrong(answer="".join(words)), 1)
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
