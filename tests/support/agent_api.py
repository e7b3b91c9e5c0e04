"""A scripted model on loopback, for real coding agents: it speaks as Anthropic's, OpenAI's and Google's API do.

Each request of the agent's main loop takes the next reply of the script; whatever else an agent asks, a title or a
summary, is answered in a word. Every request is kept.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SUMMARY = "The work went on as planned."


@dataclass(frozen=True)
class Ask:
    """A tool that the model asks for."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    namespace: str | None = None


@dataclass(frozen=True)
class Reply:
    """What the model answers: tools it asks for, or words."""

    asks: tuple[Ask, ...] = ()
    text: str = "Done."
    tokens: int = 100
    """How long the conversation is, as this provider counts. An agent compacts when that is too much."""


def asks(name: str, /, **arguments: Any) -> Reply:
    return Reply((Ask(name, arguments),))


class Api:
    """The server. `script` is taken from the front."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        self.requests: list[dict[str, Any]] = []
        self._ids = itertools.count(1)
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send({"data": [], "models": []})

            def do_HEAD(self) -> None:
                self._send({})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
                if self.path.partition("?")[0].endswith("/messages"):
                    self._answer(body, _claude(api._next(body, _is_summary(body)), api._ids))
                elif self.path.endswith("/responses"):
                    self._answer(body, _codex(api._next(body, False), api._ids))
                elif self.path.endswith("/chat/completions"):
                    self._answer(body, _opencode(api._next(body, _is_summary(body)), api._ids))
                elif "treamGenerateContent" in self.path:
                    self._answer(body, _gemini(api._next(body, False)))
                elif self.path.partition("?")[0].endswith(":generateContent"):
                    api.requests.append(body)
                    summary = f"<state_snapshot>{SUMMARY}</state_snapshot>"
                    self._send(next(_gemini(Reply(text=summary, tokens=10))))
                else:
                    self._send({"input_tokens": 10, "totalTokens": 10})

            def _answer(self, body: dict[str, Any], events: Iterator[dict[str, Any]]) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                for event in events:
                    named = f"event: {event['type']}\n" if "type" in event else ""
                    self.wfile.write(f"{named}data: {json.dumps(event)}\r\n\r\n".encode())

            def _send(self, told: Any) -> None:
                data = json.dumps(told).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                pass  # an agent that hung up

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Api:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _next(self, body: dict[str, Any], is_summary: bool) -> Reply:
        self.requests.append(body)
        if is_summary or not body.get("tools"):
            return Reply(text=f"<summary>{SUMMARY}</summary>")
        return self.script.pop(0) if self.script else Reply()

    def said(self, words: str) -> list[int]:
        """How often these words stand in each request so far."""
        return [json.dumps(body).count(words) for body in self.requests]


def _is_summary(body: dict[str, Any]) -> bool:
    return "detailed summary" in json.dumps(body.get("messages", [])[-1:])


def _claude(reply: Reply, ids: Iterator[int]) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": reply.tokens, "output_tokens": 5}
    start = {"id": f"msg_{next(ids)}", "type": "message", "role": "assistant", "model": "m", "content": [],
             "stop_reason": None, "stop_sequence": None, "usage": usage}  # fmt: skip
    yield {"type": "message_start", "message": start}
    blocks: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (
            {"type": "tool_use", "id": f"toolu_{next(ids):04d}", "name": ask.name, "input": {}},
            {"type": "input_json_delta", "partial_json": json.dumps(ask.arguments)},
        )
        for ask in reply.asks
    ]
    if not blocks:
        blocks = [({"type": "text", "text": ""}, {"type": "text_delta", "text": reply.text})]
    for index, (block, delta) in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": "tool_use" if reply.asks else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def _codex(reply: Reply, ids: Iterator[int]) -> Iterator[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for ask in reply.asks:
        item = {"type": "function_call", "id": f"f{next(ids)}", "call_id": f"call_{next(ids):04d}", "name": ask.name,
                "arguments": json.dumps(ask.arguments)}  # fmt: skip
        items.append(item | ({"namespace": ask.namespace} if ask.namespace else {}))
    if not items:
        words = {"type": "output_text", "text": reply.text, "annotations": []}
        items.append({"type": "message", "id": f"m{next(ids)}", "role": "assistant", "status": "completed",
                      "content": [words]})  # fmt: skip
    yield {"type": "response.created", "response": {"id": "r"}}
    for index, item in enumerate(items):
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    usage = {"input_tokens": reply.tokens, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1,
             "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": reply.tokens + 1}  # fmt: skip
    whole = {"id": f"r{next(ids)}", "status": "completed", "output": items, "usage": usage}
    yield {"type": "response.completed", "response": whole}


def _opencode(reply: Reply, ids: Iterator[int]) -> Iterator[dict[str, Any]]:
    calls = [
        {"index": index, "id": f"call_{next(ids):04d}", "type": "function",
         "function": {"name": ask.name, "arguments": json.dumps(ask.arguments)}}
        for index, ask in enumerate(reply.asks)
    ]  # fmt: skip
    chunk = {"id": f"c{next(ids)}", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    delta = {"role": "assistant", **({"tool_calls": calls} if calls else {"content": reply.text})}
    yield {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    reason = "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": reply.tokens, "completion_tokens": 1, "total_tokens": reply.tokens + 1}
    yield {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}


def _gemini(reply: Reply) -> Iterator[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"functionCall": {"name": ask.name, "args": ask.arguments}} for ask in reply.asks]
    content = {"role": "model", "parts": parts or [{"text": reply.text}]}
    usage = {"promptTokenCount": reply.tokens, "candidatesTokenCount": 1, "totalTokenCount": reply.tokens + 1}
    yield {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}
