"""The Store in lists, which counts everything when it is asked: the oracle for the stores in databases."""

from __future__ import annotations

from list_store.lists import ListStore

__all__ = ["ListStore"]
