"""What is true of a failed call, written down beside the program that makes it."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Arguments = Mapping[str, Any]

TELLABLE_RULES = ("setting", "form", "bound", "missing argument", "prerequisite")
"""Rules of LEARNING.md by which a correction may be told to a model, or made without asking."""
FORBIDDEN_RULES = ("privileged", "value of a run", "learning is off")
"""Rules by which memory must not tell a correction, even where it would be right."""


@dataclass(frozen=True, kw_only=True)
class Cure:
    """What really helps a call that failed: other arguments, other calls first, or both."""

    name: str
    """The same name is the same correction, in whichever run."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """By argument the right value, or a function that says whether a value is right."""
    renames: Mapping[str, str] = field(default_factory=dict)
    drops: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    """Tools that have to be called before the same call."""
    rule: str = "setting"
    """The rule that lets it be told, or the one that forbids it."""
    occurrence: int = 3
    """From which occurrence on the rule lets it be told."""
    is_open: bool = False
    """Whether the new value belongs to the run, so that the calls before it are all that can be told."""

    @property
    def is_tellable(self) -> bool:
        return self.rule in TELLABLE_RULES

    def accepts(self, before: Arguments, after: Arguments) -> bool:
        """Say whether a call with `after` is the right one in the place of a call with `before`."""
        rest = {self.renames.get(name, name): value for name, value in before.items() if name not in self.drops}
        names = rest.keys() | self.changes.keys()
        strangers = {name for name in after.keys() - names if after[name] is not None}
        if strangers or not names <= after.keys():
            return False
        return all(
            is_match(self.changes[name], after[name]) if name in self.changes else is_same(rest[name], after[name])
            for name in names
        )


def is_match(expectation: Any, value: Any) -> bool:
    """Say whether a value is the right one, or one that the expectation agrees to."""
    if not callable(expectation):
        return is_same(expectation, value)
    try:
        return bool(expectation(value))
    except (TypeError, ValueError, AttributeError):
        return False


def is_same(one: Any, other: Any) -> bool:
    """Say whether two values are equal and of one sort: `"3"` is not 3, and True is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def list_values(text: str) -> list[Any]:
    """List what a value may be that was shown as this text."""
    values: list[Any] = [text, text.strip("'\"`")]
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        values.append(ast.literal_eval(text))
    return values


Truth = Callable[[Arguments], Cure | None]
"""Of a tool: what cures a failed call with these arguments; None where no other call is the same thing."""
