"""MCP server with which agents query failure memory. Only `mcp_server.py` needs the `mcp` extra."""
