"""Which arguments of a tool vary between its successful calls: they may name items."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from mulligan.core.argument_comparison import differing_names
from mulligan.core.call_facts import PossibleCorrection

Scope = tuple[Any, ...]
MAX_LEARNING_CALLS = 8
"""Calls of a tool after which only arguments that never varied are still compared."""
_ABSENT = object()


class CalledTool(Protocol):
    tool_key: str
    positional_names: Sequence[str]


class ArgumentVariation:
    """The successful calls of one tool in one item scope: first arguments, and which have varied since."""

    def __init__(
        self, key: str, scope: Scope, names: Sequence[str], positional: Sequence[Any], keywords: Mapping[str, Any]
    ):
        self.key = key
        self.scope = scope
        self._names = names
        self.first = self.last = self._by_name(positional, keywords)
        self._calls = 1
        self._positional_count = len(positional)
        self._constant = list(enumerate(positional))
        """Positional values that never varied, with their index."""
        self._constant_names = list(keywords.items())
        self.varying: set[str] = set()
        """Arguments in which two successes differ."""
        self.values: dict[str, list[Any]] = {name: [value] for name, value in self.first.items()}
        """Different values of each argument in the first calls. An absent argument has the value None."""
        self.item_names: set[str] = set()
        """Arguments that are the only difference between two successes: they name items."""
        self.is_settled = False
        """Whether every argument has varied, so that nothing more can be learned."""

    def add(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Compare another success. Hot path: after a few calls, only values that never varied are compared."""
        if self._calls >= MAX_LEARNING_CALLS and len(positional) == self._positional_count:
            for index, value in self._constant:
                if positional[index] != value:
                    return self._compare(positional, keywords)
            for name, value in self._constant_names:
                if keywords.get(name, _ABSENT) != value:
                    return self._compare(positional, keywords)
            return None
        return self._compare(positional, keywords)

    def _compare(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        self._calls += 1
        current, last = self._by_name(positional, keywords), self.last
        self.last = current
        if self._calls <= MAX_LEARNING_CALLS:
            for name in self.values.keys() | current.keys():
                value, values = current.get(name), self.values.setdefault(name, [None])
                if value not in values:
                    values.append(value)
        differing = _differing(self.first, current)
        self.varying |= differing
        if len(differing) == 1:
            self.item_names |= differing
        differing = _differing(last, current)
        if len(differing) == 1:
            self.item_names |= differing
        varying, names = self.varying, self._names
        self._constant = [(index, value) for index, value in self._constant if names[index] not in varying]
        self._constant_names = [(name, value) for name, value in self._constant_names if name not in varying]
        all_vary = not self._constant and not self._constant_names
        self.is_settled = all_vary and self._calls >= MAX_LEARNING_CALLS

    def has_other_item(self, candidate: PossibleCorrection, roots: Collection[str]) -> bool:
        """Return whether a success shows that one of these arguments of a possible correction names items."""
        if candidate.replaced and self._calls <= MAX_LEARNING_CALLS:
            return any(
                candidate.is_other_item(root, value) for root in roots for value in self.values.get(root, (None,))
            )
        arguments = candidate.call.last.arguments
        # A call is judged before its arguments are added. A tool that is called in two ways has two variations.
        return not self.varying.isdisjoint(roots) or (
            isinstance(arguments, Mapping) and not differing_names(self.first, arguments).isdisjoint(roots)
        )

    def _by_name(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self._names, positional)), **keywords}  # noqa: B905 - fewer values than names are possible


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    """Return the arguments that differ, compared by Python equality: 1 equals True."""
    return {name for name in first.keys() | second.keys() if first.get(name, _ABSENT) != second.get(name, _ABSENT)}
