"""Hooks of coding agents: read an event as JSON from stdin, write the response as JSON to stdout.

An agent starts one process for every tool call, so there are two stages. The first scans the bytes of the event with
almost no imports and exits early for most events. The second opens the store.
"""
