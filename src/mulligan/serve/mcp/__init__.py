"""Our own MCP server: an agent asks what is known about a failure. Only `server.py` needs the extra."""
