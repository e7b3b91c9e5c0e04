"""Call a tool of an MCP server through the proxy. Then run: mulligan show last"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("server.py")
COMMAND = [sys.executable, "-m", "mulligan", "proxy", "--repair", "--name", "shop", "--", sys.executable, str(SERVER)]

with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
    assert proxy.stdin is not None
    assert proxy.stdout is not None

    def send(**message: Any) -> None:
        proxy.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        proxy.stdin.flush()

    def request(number: int, method: str, **parameters: Any) -> dict[str, Any]:
        send(id=number, method=method, params=parameters)
        while (response := json.loads(proxy.stdout.readline())).get("id") != number:
            pass
        return response["result"]

    client = {"name": "example", "version": "1"}
    request(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
    send(method="notifications/initialized")
    request(2, "tools/list")
    arguments = {"quantity": "3"}
    print("call:", json.dumps(arguments))
    result = request(3, "tools/call", name="order", arguments=arguments)
    for number, part in enumerate(result["content"]):
        print("note:" if number else "answer:", part["text"])
    proxy.stdin.close()
