"""A small MCP server whose lists change, and that asks its client all that a server may ask.

`python changing_mcp.py LOG`. The tool `grow` adds a tool and sends every notification. `ask` sends one request of each
kind and returns the answers. LOG gets what the server hears.
"""

from __future__ import annotations

import json
import sys

tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("grow", "ask", "fail", "read_file")]
NOTIFICATIONS = (
    ("notifications/tools/list_changed", None),
    ("notifications/prompts/list_changed", {}),
    ("notifications/resources/list_changed", {"_meta": {"of": 1}}),
    ("notifications/resources/updated", {"uri": "note://1", "title": "h\u00e9"}),
    ("notifications/message", {"level": "warning", "logger": "l", "data": {"a": [1, 2.50]}}),
    ("notifications/cancelled", {"requestId": "s-0", "reason": "no longer needed"}),
    ("notifications/elicitation/complete", {"elicitationId": "e"}),
    ("notifications/tasks/status", {"taskId": "t", "status": "working"}),
    ("notifications/of/tomorrow", {"any": None}),
)
REQUESTS = (
    ("ping", None),
    ("roots/list", None),
    ("sampling/createMessage", {"messages": [], "maxTokens": 1}),
    ("elicitation/create", {"message": "which?", "requestedSchema": {"type": "object", "properties": {}}}),
    ("of/tomorrow", {"x": 1}),
)
answers = []


def send(**message) -> None:
    # Written with spaces, which an encoder of the proxy would not write.
    line = json.dumps({"jsonrpc": "2.0", **{key: value for key, value in message.items() if value is not None}})
    sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()


def answer(id, name, token) -> None:
    text = {"type": "text", "text": "Error: 404 Not Found"}
    if name == "grow":
        tools.append({"name": f"tool_{len(tools)}", "inputSchema": {"type": "object"}})
        for step in range(2):
            send(method="notifications/progress", params={"progressToken": token, "progress": step, "total": 2})
        for method, params in NOTIFICATIONS:
            send(method=method, params=params)
    elif name == "ask":
        for index, (method, params) in enumerate(REQUESTS):
            send(id=f"s-{index}" if index % 2 else 1000 + index, method=method, params=params)
            answers.append(read())
        text = {"type": "text", "text": json.dumps(answers)}
    send(id=id, result={"content": [text], "isError": name == "fail", "_meta": {"of": "server"}})


def read():
    line = sys.stdin.buffer.readline()
    with open(sys.argv[1], "ab") as log:
        log.write(line)
    return json.loads(line) if line else None


def main() -> None:
    while message := read():
        method, id, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method == "initialize":
            changing = {"listChanged": True}
            capabilities = {"tools": changing, "prompts": changing, "resources": {**changing, "subscribe": True}}
            send(id=id, result={"protocolVersion": params["protocolVersion"], "capabilities": capabilities,
                                "serverInfo": {"name": "changing", "version": "1"}})  # fmt: skip
        elif method == "tools/list":
            send(id=id, result={"tools": tools})
        elif method == "tools/call":
            answer(id, params["name"], (params.get("_meta") or {}).get("progressToken"))
        elif id is not None:
            send(id=id, result={})


if __name__ == "__main__":
    main()
