"""A small MCP server on stdio, without a package: one tool, which rejects a quantity that is no number."""

import json
import sys
from typing import Any

ORDER = {
    "name": "order",
    "description": "Order lamps.",
    "inputSchema": {
        "type": "object",
        "properties": {"quantity": {"type": "integer", "minimum": 1}},
        "required": ["quantity"],
    },
}


def answer(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": parameters["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "shop", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [ORDER]}
    quantity = parameters["arguments"].get("quantity")
    is_valid = isinstance(quantity, int)
    text = f"{quantity} lamps ordered" if is_valid else "quantity: Input should be a valid integer"
    return {"content": [{"type": "text", "text": text}], "isError": not is_valid}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        response = {
            "jsonrpc": "2.0",
            "id": request["id"],
            "result": answer(request["method"], request.get("params", {})),
        }
        print(json.dumps(response), flush=True)
