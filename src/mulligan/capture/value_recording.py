"""What is kept of the values of a call, where it is not all of them: their shape, or a conversation in short."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from mulligan.capture import message_summary
from mulligan.core.failure import Failure
from mulligan.core.fast_path import IMMUTABLE_TYPES, restore_value, snapshot_value
from mulligan.core.records import Change, Link, Recovery, RecoveryStop

QUOTED = 4
"""Characters. A shorter text is not looked for in the message of its failure: it would be found everywhere."""
NESTED = 200
"""Texts of a call that are looked for in the message of its failure."""


CHANGEABLE = (list, dict, set)


def copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they are now: the function may change what it was given."""
    return {
        name: value if type(value) in IMMUTABLE_TYPES else restore_value(snapshot_value(value))
        for name, value in arguments.items()
    }


def shape(value: Any, closed: Collection[str] = ()) -> Any:
    """A value without its text: what is closed-class as it is, of everything else the type and the length."""
    kind = type(value)
    if kind is str:
        return value if value in closed else {"$str": len(value)}
    if kind in IMMUTABLE_TYPES:
        return value
    if isinstance(value, list | tuple | dict | set | frozenset | bytes | bytearray):
        return {"$type": kind.__name__, "length": len(value)}
    return {"$type": kind.__name__}


def shapes(values: Mapping[str, Any], closed: Collection[str] = ()) -> dict[str, Any]:
    return {name: shape(value, closed) for name, value in values.items()}


class Keeping:
    """How the values of one function's calls are kept."""

    __slots__ = ("_closed", "_model", "is_model", "is_shape")

    def __init__(
        self, *, is_shape: bool, is_model: bool, closed: Callable[[], Collection[str]], model: object = None
    ) -> None:
        self.is_shape = is_shape
        self.is_model = is_model
        self._closed = closed
        self._model = model if isinstance(model, str) else None
        """Which model it calls where nobody says another."""

    def arguments(self, given: Mapping[str, Any], is_its_own: bool = True) -> tuple[dict[str, Any], str | None]:
        """The arguments as they are kept, and what the user said last, where they are a conversation.

        `is_its_own` is false where another function is called with them.
        """
        if not self.is_model:
            return shapes(given, self._closed()), None
        if self._model is not None and is_its_own and "model" not in given:
            given = {**given, "model": self._model}
        # At once, and not on the recorder's thread: a copy of the conversation would cost as much as its sizes.
        kept, said = message_summary.summarize_arguments(given, has_texts=not self.is_shape)
        if not self.is_shape:
            return copied(kept), said
        closed = self._closed()
        changed = {
            name: value if value is not given.get(name) else shape(value, closed) for name, value in kept.items()
        }
        return changed, None

    def changeable(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Copies of what a tool may change of what it is given: of what is kept, nobody could tell. Never kept."""
        if self.is_model:
            return {}
        return copied({name: value for name, value in given.items() if isinstance(value, CHANGEABLE)})

    def result(self, result: Any) -> Any:
        if self.is_shape:
            return None
        return message_summary.shorten_answer(result)

    def tokens(self, result: Any) -> dict[str, int] | None:
        return message_summary.read_token_usage(result) if self.is_model else None

    def failure(self, failure: Failure | None, given: Mapping[str, Any]) -> Failure | None:
        """A failure as it is kept: in shape, without the rest of what was said, and without the call's own texts."""
        if failure is None or not self.is_shape:
            return failure
        message, hint = failure.message, failure.hint
        for name, text in _texts(given):
            message = message.replace(text, f"[{name}]")
            hint = hint.replace(text, f"[{name}]")
        return msgspec.structs.replace(failure, message=message, hint=hint, detail="")

    def recovery(self, recovery: Recovery | None) -> Recovery | None:
        if recovery is None or not self.is_shape or not recovery.changes:
            return recovery
        return msgspec.structs.replace(recovery, changes=tuple(map(self._change, recovery.changes)))

    def links(self, links: Iterable[Link]) -> tuple[Link, ...]:
        """Reduce the values of recovery links as those of calls."""
        if not self.is_shape:
            return tuple(links)
        return tuple(msgspec.structs.replace(link, changes=tuple(map(self._change, link.changes))) for link in links)

    def ending(self, ending: RecoveryStop) -> RecoveryStop:
        offered = tuple(left for each in ending.suggestions if (left := self.recovery(each)) is not None)
        return msgspec.structs.replace(ending, suggestions=offered)

    def _change(self, change: Change) -> Change:
        if change.operation == "rename":
            return change  # from one name to another
        closed = self._closed()
        return msgspec.structs.replace(change, before=shape(change.before, closed), after=shape(change.after, closed))


def _texts(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The texts of a call with the name of their argument, the longest first: one may be part of another."""
    found: list[tuple[str, str]] = []
    waiting: list[tuple[str, Any, int]] = [(str(name), value, 0) for name, value in given.items()]
    while waiting and len(found) < NESTED:
        name, value, depth = waiting.pop()
        if isinstance(value, str):
            if len(value) >= QUOTED:
                found.append((name, str(value)))
        elif depth < message_summary.MAX_NESTING and isinstance(value, dict | list | tuple):
            inside = list(value.values() if isinstance(value, dict) else value)[:NESTED]
            waiting.extend((name, each, depth + 1) for each in inside)
    return sorted(found, key=lambda each: -len(each[1]))
