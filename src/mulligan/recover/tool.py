"""What recovery must know of the function behind a call, and of the calls before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mulligan.records import Effects, Outcome

Arguments = Mapping[str, Any]
Mode = Literal["observe", "suggest", "repair"]
Learn = Literal["off", "tell", "repair"]
MAX_TOOL_KEY_CHARACTERS = 300


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
    destructive: bool = False
    """Marked so by its developer, an operator or an annotation: none of its arguments is changed without asking."""

    items: frozenset[str] = frozenset()
    """Arguments that the developer declared to name items."""
    learn: Learn = "tell"
    """How far memory goes: off, tell, or repair, which also runs promoted prerequisites."""
    circuit_breaker: bool = False
    """Whether it asks for its open circuit breaker to block first attempts too, whoever makes them."""
    key: str = ""
    """Which tool it is: two of one name differ in it. Where it is not given, it is made of `server` and `name`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", make_tool_key(self.name, self.server, self.key))

    @property
    def recorded_key(self) -> str | None:
        """The key as it is recorded: none where only a bare name is known."""
        return self.key if self.key != self.name else None

    @property
    def is_repeatable(self) -> bool:
        return self.effects != "once"


def make_tool_key(name: str, server: str | None = None, function: str = "") -> str:
    """Identify a tool: by its server and name, else by its function's `module:qualname`, else by its name alone."""
    # The proxy calls its tools `server.name`.
    key = f"{server}/{name.removeprefix(f'{server}.')}" if server and not function else function or name
    return key[:MAX_TOOL_KEY_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Seen:
    """An earlier call of the same run: what was asked and what came of it."""

    tool: str
    arguments: Any = None
    outcome: Outcome = "success"
    result: Any = None
    """What it answered, or where it failed what the error said."""
