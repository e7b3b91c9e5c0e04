"""Hooks of coding agents: an event as JSON on stdin, what the agent is to be told as JSON on stdout.

A process for every call of a tool, so there are two stages. first.py decides from the bytes alone, with next to
nothing imported, whether there is anything to do; mostly there is not. second.py opens the store.
"""
