"""Reduces the values of a call for recording: to their shape, or a conversation to a summary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from mulligan.core import fork_safety
from mulligan.core.failure import Failure
from mulligan.core.fast_path import IMMUTABLE_TYPES, restore_value, snapshot_value
from mulligan.core.records import Change, Link, Recovery, RecoveryStop

MIN_QUOTED_CHARS = 4
"""Shorter texts of a call are not removed from the message of its failure: they would match everywhere."""
MAX_QUOTED_TEXTS = 200
"""Texts of a call that are removed from the message of its failure."""
MAX_NESTING = 6
MUTABLE_TYPES = (list, dict, set)


def copy_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Copy arguments: the function may modify them."""
    return {
        name: value if type(value) in IMMUTABLE_TYPES else restore_value(snapshot_value(value))
        for name, value in arguments.items()
    }


def shape(value: Any, shareable: Collection[str] = ()) -> Any:
    """Return a value without its text: type and length, except of numbers and shareable texts."""
    kind = type(value)
    if kind is str:
        return value if value in shareable else {"$str": len(value)}
    if kind in IMMUTABLE_TYPES:
        return value
    if isinstance(value, list | tuple | dict | set | frozenset | bytes | bytearray):
        return {"$type": kind.__name__, "length": len(value)}
    return {"$type": kind.__name__}


def shapes(values: Mapping[str, Any], shareable: Collection[str] = ()) -> dict[str, Any]:
    return {name: shape(value, shareable) for name, value in values.items()}


class ValueRecorder:
    """Copies the values of one function's calls for recording, reduced if less than everything is recorded."""

    __slots__ = ("_default_model", "_shareable_texts", "is_model", "is_reduced", "is_shape")

    def __init__(
        self, *, is_shape: bool, is_model: bool, shareable_texts: Callable[[], Collection[str]], model: object = None
    ) -> None:
        self.is_shape = is_shape
        self.is_model = is_model
        self.is_reduced = is_shape or is_model
        self._shareable_texts = shareable_texts
        self._default_model = model if isinstance(model, str) else None
        """The model of calls that name none."""

    def arguments(self, arguments: Mapping[str, Any], is_replaced: bool = False) -> tuple[dict[str, Any], str | None]:
        """Return the arguments as recorded, and the user's last text if they contain a conversation.

        `is_replaced` means that another function is called with them.
        """
        if not self.is_reduced:
            return copy_arguments(arguments), None
        if not self.is_model:
            return shapes(arguments, self._shareable_texts()), None
        if self._default_model is not None and not is_replaced and "model" not in arguments:
            arguments = {**arguments, "model": self._default_model}
        # Summarized here and not by the recorder: a copy of the conversation would cost as much as its sizes.
        summary, user_text = _message_summary().summarize_arguments(arguments, has_texts=not self.is_shape)
        if not self.is_shape:
            return copy_arguments(summary), user_text
        shareable = self._shareable_texts()
        reduced = {
            name: value if value is not arguments.get(name) else shape(value, shareable)
            for name, value in summary.items()
        }
        return reduced, None

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a copy of arguments whose recorded form does not suffice to judge links; otherwise None."""
        return copy_arguments(arguments) if self.is_shape and not self.is_model else None

    def result(self, result: Any) -> Any:
        if self.is_shape:
            return None
        return _message_summary().shorten_answer(result) if self.is_model else result

    def tokens(self, result: Any) -> dict[str, int] | None:
        if not self.is_model:
            return None
        with fork_safety.import_lock:
            from mulligan.core.conversation import read_token_usage  # lazy: needed for models only
        return read_token_usage(result)

    def failure(self, failure: Failure | None, arguments: Mapping[str, Any]) -> Failure | None:
        """Return a failure as recorded: in shape, without its detail and without the call's own texts."""
        if failure is None or not self.is_shape:
            return failure
        message, hint = failure.message, failure.hint
        for name, text in _texts(arguments):
            message = message.replace(text, f"[{name}]")
            hint = hint.replace(text, f"[{name}]")
        return msgspec.structs.replace(failure, message=message, hint=hint, detail="")

    def recovery(self, recovery: Recovery | None) -> Recovery | None:
        if recovery is None or not self.is_shape or not recovery.changes:
            return recovery
        return msgspec.structs.replace(recovery, changes=tuple(map(self._change, recovery.changes)))

    def links(self, links: Iterable[Link]) -> tuple[Link, ...]:
        if not self.is_shape:
            return tuple(links)
        return tuple(msgspec.structs.replace(link, changes=tuple(map(self._change, link.changes))) for link in links)

    def stop(self, stop: RecoveryStop | None) -> RecoveryStop | None:
        if stop is None or not self.is_shape:
            return stop
        suggestions = tuple(
            reduced for suggestion in stop.suggestions if (reduced := self.recovery(suggestion)) is not None
        )
        return msgspec.structs.replace(stop, suggestions=suggestions)

    def _change(self, change: Change) -> Change:
        if change.operation == "rename":
            return change  # from one name to another
        shareable = self._shareable_texts()
        return msgspec.structs.replace(
            change, before=shape(change.before, shareable), after=shape(change.after, shareable)
        )


def _texts(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the texts of a call with the name of their argument, the longest first: one may be part of another."""
    texts: list[tuple[str, str]] = []
    pending: list[tuple[str, Any, int]] = [(str(name), value, 0) for name, value in arguments.items()]
    while pending and len(texts) < MAX_QUOTED_TEXTS:
        name, value, depth = pending.pop()
        if isinstance(value, str):
            if len(value) >= MIN_QUOTED_CHARS:
                texts.append((name, str(value)))
        elif depth < MAX_NESTING and isinstance(value, dict | list | tuple):
            members = list(value.values() if isinstance(value, dict) else value)[:MAX_QUOTED_TEXTS]
            pending.extend((name, member, depth + 1) for member in members)
    return sorted(texts, key=lambda entry: -len(entry[1]))


def _message_summary() -> Any:
    """Import the summaries of conversations at the first model call."""
    with fork_safety.import_lock:
        from mulligan.capture import message_summary
    return message_summary
