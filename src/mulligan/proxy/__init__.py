"""MCP proxy that records, explains and, where it is safe, repairs tool calls."""
