"""What recovery must know of the function behind a call, and of the calls before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mulligan.records import Effects, Outcome

Arguments = Mapping[str, Any]
Mode = Literal["observe", "suggest", "repair"]
Learn = Literal["off", "tell", "repair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What recovery must know of the function behind a call."""

    name: str
    server: str | None = None
    """Whose tool it is, where it is another program's."""
    effects: Effects = "once"
    mode: Mode = "repair"
    schema: Callable[[], Mapping[str, Any] | None] = field(default=lambda: None)
    """Asked for on the first failure only: to work it out from a signature takes time."""
    privileged: frozenset[str] = frozenset()
    released: frozenset[str] = frozenset()
    key: str = ""
    """Identity: module and qualified name of a Python function; empty where server and name, or the name, serve."""
    destructive: bool = False
    """Marked so by its developer, an operator or an annotation: none of its arguments is changed without asking."""

    items: frozenset[str] = frozenset()
    """Arguments that the developer declared to name items."""
    learn: Learn = "tell"
    """How far memory goes: off, tell, or repair, which also runs promoted prerequisites."""

    @property
    def is_repeatable(self) -> bool:
        return self.effects != "once"


@dataclass(frozen=True, slots=True)
class Seen:
    """An earlier call of the same run: what was asked and what came of it."""

    tool: str
    arguments: Any = None
    outcome: Outcome = "success"
    result: Any = None
    """What it answered, or where it failed what the error said."""
