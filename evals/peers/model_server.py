"""The server of the model on loopback: OpenAI's and Anthropic's form, three deployments, and the faults of a world."""

from __future__ import annotations

import http.server
import json
import socket
import socketserver
import struct
import threading
from collections.abc import Mapping
from typing import Any

from scripted_model import Reply, ScriptedModel, count_tokens
from service import Fault, FaultScript
from simulated_clock import clock

MODEL_SECONDS = 1.0
ERROR_SECONDS = 0.1
OPENAI_MODEL, ANTHROPIC_MODEL = "gpt-4o-mini", "claude-sonnet-4-5"
ERROR_TEXTS = {
    400: "The request was rejected.",
    401: "Incorrect API key provided.",
    429: "Rate limit reached. Please try again later.",
    500: "The server had an error while processing your request.",
    503: "The engine is currently overloaded, please try again later.",
    529: "Overloaded",
}
ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class ModelServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Answers for the model of one play at a time."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ModelHandler)
        self.model: ScriptedModel
        self.faults: FaultScript
        self.window = 0
        """Tokens that a request may have, except of the deployment `large`; 0: any number."""
        self.turns = self.requests = self.tokens = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def reset_counts(self) -> None:
        self.turns = self.requests = self.tokens = 0

    def handle_error(self, request: Any, client_address: Any) -> None: ...


class ModelHandler(http.server.BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        deployment, is_anthropic = self.path.split("/")[1], self.path.endswith("/messages")
        messages = to_openai_messages(body) if is_anthropic else body["messages"]
        server = self.server
        server.requests += 1
        fault = server.faults.find("model", f"model-{deployment}")
        if fault is not None and not fault.error.startswith("empty"):
            self._fail(fault, is_anthropic)
            return
        tokens = count_tokens(messages)
        if server.window and tokens > server.window and deployment != "large":
            clock.advance(ERROR_SECONDS)
            self._send(400, build_context_error(tokens, server.window, is_anthropic))
            return
        reply = Reply() if fault is not None else server.model.reply(messages)
        clock.advance(MODEL_SECONDS)
        server.turns += 1
        written = (len(reply.text) + sum(len(call.arguments) for call in reply.calls)) // 4
        server.tokens += tokens + written
        self._send(200, to_anthropic(reply, tokens, written) if is_anthropic else to_openai(reply, tokens, written))

    def _fail(self, fault: Fault, is_anthropic: bool) -> None:
        clock.advance(ERROR_SECONDS)
        if fault.error == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        status, _, wait = fault.error.partition(" after ")
        message = ERROR_TEXTS[int(status)]
        type = ANTHROPIC_ERRORS.get(int(status), "api_error") if is_anthropic else "error"
        error = {"type": type, "message": message, **({} if is_anthropic else {"code": None, "param": None})}
        body = {"type": "error", "error": error} if is_anthropic else {"error": error}
        self._send(int(status), body, {"retry-after": wait} if wait else {})

    def _send(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        lengths = {"Content-Length": str(len(content)), "Content-Type": "application/json"}
        for name, value in {**(headers or {}), **lengths}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None: ...


def build_context_error(tokens: int, window: int, is_anthropic: bool) -> dict[str, Any]:
    if is_anthropic:
        message = f"prompt is too long: {tokens} tokens > {window} maximum"
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    message = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens. "
        "Please reduce the length of the messages."
    )
    error = {
        "message": message,
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    return {"error": error}


def to_openai(reply: Reply, tokens: int, written: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or ("" if not reply.calls else None)}
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.calls else "stop"}
    usage = {"prompt_tokens": tokens, "completion_tokens": written, "total_tokens": tokens + written}
    return {
        "id": "c1", "object": "chat.completion", "created": 1, "model": OPENAI_MODEL,
        "choices": [choice], "usage": usage,
    }  # fmt: skip


def to_anthropic(reply: Reply, tokens: int, written: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    for call in reply.calls:
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            arguments = None
        # Anthropic's API parses the arguments itself, and always sends an object.
        arguments = arguments if isinstance(arguments, dict) else {}
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return {
        "id": "m1", "type": "message", "role": "assistant", "model": ANTHROPIC_MODEL, "content": content,
        "stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": tokens, "output_tokens": written},
    }  # fmt: skip


def to_openai_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a request to Anthropic in OpenAI's form."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": body.get("system") or ""}]
    for message in body["messages"]:
        if isinstance(message["content"], str):
            messages.append(dict(message))
            continue
        texts = [block["text"] for block in message["content"] if block["type"] == "text"]
        calls = [
            {"id": block["id"], "function": {"name": block["name"], "arguments": json.dumps(block["input"])}}
            for block in message["content"]
            if block["type"] == "tool_use"
        ]
        if texts or calls:
            messages.append({"role": message["role"], "content": "\n".join(texts), "tool_calls": calls})
        messages += (
            {"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]}
            for block in message["content"]
            if block["type"] == "tool_result"
        )
    return messages


def start_model_server() -> ModelServer:
    """Return a server that answers until the process ends."""
    server = ModelServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
