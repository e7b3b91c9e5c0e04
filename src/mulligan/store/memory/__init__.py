"""A Store in lists: for tests, and for those who want recovery and no file."""

from __future__ import annotations

from mulligan.store.memory.memory_store import MemoryStore

__all__ = ["MemoryStore"]
