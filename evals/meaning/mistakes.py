"""Mistaken calls: a tool, the arguments that a caller sent, and the executions that would mean the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

TOPICS = (
    "unit", "time zone", "currency", "polarity", "retention", "permission", "date", "null", "paging", "enum", "flag",
    "name", "number", "setting", "type", "structure", "other",
)  # fmt: skip
Arguments = Mapping[str, Any]
Kind = Literal["form", "equivalent", "meaning"]
"""form: the same value in another type, spelling or structure. equivalent: another value that means the same, as one
who knows the subject can tell (a synonym, a converted unit or date). meaning: nothing accepted means what was asked."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistaken call of one tool."""

    function: Callable[..., Any]
    topic: str
    kind: Kind
    effects: Literal["none", "idempotent", "once"]
    asked: Arguments
    same: tuple[Arguments, ...]
    less: tuple[Arguments, ...]
    earlier: tuple[Arguments, ...]
    reason: str

    @property
    def name(self) -> str:
        return self.function.__name__

    def bind(self, arguments: Arguments) -> dict[str, Any]:
        """Return the arguments by name, with the defaults of the tool."""
        bound = inspect.signature(self.function).bind(**arguments)
        bound.apply_defaults()
        return dict(bound.arguments)


class Batch:
    """The mistakes of one file: `mistake = batch.add` is the decorator of its tools."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []

    def add(
        self,
        topic: str,
        kind: Kind,
        *,
        effects: Literal["none", "idempotent", "once"],
        asked: Arguments,
        same: Sequence[Arguments] = (),
        less: Sequence[Arguments] = (),
        earlier: Sequence[Arguments] = (),
        reason: str,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add a mistaken call of the decorated tool. A tool may have several: stack the decorators."""

        def add_mistake(function: Callable[..., Any]) -> Callable[..., Any]:
            mistake = Mistake(
                function, topic, kind, effects, dict(asked), tuple(same), tuple(less), tuple(earlier), reason
            )
            _check(mistake)
            self.mistakes.append(mistake)
            return function

        return add_mistake


def _check(mistake: Mistake) -> None:
    label = f"{mistake.name}({mistake.asked})"
    if mistake.topic not in TOPICS:
        raise ValueError(f"{label}: unknown topic {mistake.topic!r}")
    if (mistake.kind == "meaning") != (not mistake.same):
        raise ValueError(f"{label}: form and equivalent need an execution that means the same, meaning has none")
    for arguments in (*mistake.same, *mistake.less, *mistake.earlier):
        mistake.bind(arguments)  # raises TypeError if the tool has no such arguments
        mistake.function(**arguments)  # raises if the tool would reject it
