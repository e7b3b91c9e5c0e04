"""Hooks of coding agents: read an event as JSON from stdin, write the response as JSON to stdout."""
