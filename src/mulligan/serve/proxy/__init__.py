"""An MCP server in front of MCP servers: every tool call recorded, explained and, where it is safe, repaired."""
