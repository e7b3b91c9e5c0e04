"""Adapters for agent frameworks, one module each. They need the framework itself: `pip install '.[langchain]'`."""
