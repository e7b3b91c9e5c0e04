"""MCP server with which agents query failure memory. Only `server.py` needs the `mcp` extra."""
