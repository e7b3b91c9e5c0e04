"""What recovery knows about the function behind a call, and about earlier calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mulligan.core.records import Effects, Outcome

Arguments = Mapping[str, Any]
Mode = Literal["observe", "suggest", "repair"]
Learn = Literal["off", "tell", "repair"]
MAX_TOOL_KEY_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What recovery knows about the function behind a call."""

    name: str
    server: str | None = None
    """Server of the tool, if it runs in another program."""
    effects: Effects = "once"
    mode: Mode = "repair"
    schema: Callable[[], Mapping[str, Any] | None] = field(default=lambda: None)
    """Called on the first failure only: deriving a schema from a signature takes time."""
    privileged: frozenset[str] = frozenset()
    unprivileged: frozenset[str] = frozenset()
    destructive: bool = False
    """Declared by the developer, an operator or an annotation. Its arguments are never changed automatically."""

    items: frozenset[str] = frozenset()
    """Arguments that the developer declared to name items."""
    learn: Learn = "tell"
    """Use of memory: off, tell, or repair, which also runs promoted prerequisites."""
    circuit_breaker: bool = False
    """Whether its open circuit breaker also blocks first attempts, outside of a loop too."""
    key: str = ""
    """Identifies the tool among others with the same name. By default built from `server` and `name`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", make_tool_key(self.name, self.server, self.key))

    @property
    def recorded_key(self) -> str | None:
        """Return the key to record, or None if only a bare name is known."""
        return self.key if self.key != self.name else None

    @property
    def is_retry_safe(self) -> bool:
        return self.effects != "once"


def make_tool_key(name: str, server: str | None = None, function: str = "") -> str:
    """Identify a tool: by its server and name, else by its function's `module:qualname`, else by its name alone."""
    # The proxy calls its tools `server.name`.
    key = f"{server}/{name.removeprefix(f'{server}.')}" if server and not function else function or name
    return key[:MAX_TOOL_KEY_CHARACTERS]


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """An earlier call of the same run, with its outcome."""

    tool: str
    arguments: Any = None
    outcome: Outcome = "success"
    result: Any = None
    """The result, or the error text of a failed call."""
