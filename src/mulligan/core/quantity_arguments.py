"""Numeric arguments that measure something, and those that name an object.

A bound may replace a quantity: `top_k=50` asks for as much as possible. It never replaces the name of an object:
`note_id=1` is another note than `note_id=0`. An unknown name counts as the name of an object.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeGuard

from mulligan.core.privileged_arguments import MAX_NAME_CHARS, split_words

_OBJECT_WORDS = frozenset(
    "id ids uid uids uuid uuids guid guids identifier identifiers key keys ref refs reference references index indexes "
    "indices idx no nr number numbers serial lat latitude lon lng long longitude x y z".split()
)
"""Words in names of arguments that say which object, whatever the other words say: `max_id`, `page_number`."""
_QUANTITY_WORDS = frozenset(
    "limit max maximum min minimum top k n num count cnt per first last take quota budget capacity quantity qty amount "
    "total size length len width height depth weight age mileage distance radius range margin padding gap spacing "
    "duration timeout delay interval ttl lookback lookahead window horizon secs sec ms millis percent percentage pct "
    "ratio rate fraction share threshold tolerance cutoff score similarity confidence precision accuracy temperature "
    "probability quality volume level brightness contrast saturation opacity speed velocity acceleration pressure "
    "humidity power voltage intensity strength magnitude zoom scale factor multiplier priority severity importance "
    "rating concurrency parallelism batch chunk buffer overlap dpi fps bitrate effort cost value liter litre gallon "
    "meter metre kilometer mile kilogram gram kg km cm mm mb gb kb".split()
)
"""Words in names of arguments that say how much."""
_CONSEQUENTIAL_WORDS = frozenset(
    "pay payment payout refund charge transfer remit wire buy purchase sell sale trade order bid bet wager stake tip "
    "donate credit debit deposit withdraw withdrawal invest loan lend borrow mint burn swap bill subscribe renew "
    "delete remove purge drop erase wipe destroy clear clean cleanup truncate prune expire retention retain keep "
    "rotate revoke kill terminate shutdown reset rollback uninstall evict trim dose administer prescribe inject "
    "infuse".split()
)
"""Words in names of tools that spend, destroy or treat."""


def is_other_action(tool: str, effects: str, path: str, *values: Any) -> bool:
    """Return whether another number would be another action: about another object, or spending or destroying less."""
    return not measures_quantity(path, *values) or (
        effects != "none" and not _CONSEQUENTIAL_WORDS.isdisjoint(_tool_words(tool))
    )


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def names_object(path: str) -> bool:
    """Return whether the name of an argument says that its number identifies something: `order_number`, `page`."""
    return _names_object([word.casefold() for word in split_words(argument_name(path))])


def _names_object(words: list[str]) -> bool:
    return not words or (not _OBJECT_WORDS.isdisjoint(words) and words[:2] != ["number", "of"])


def measures_quantity(path: str, *values: Any) -> bool:
    """Return whether a numeric argument says how much, not which object: `per_page`, not `page`.

    The name decides: a word for a quantity, or a plural (`days`). Without one, only a fraction is certainly no object.
    """
    return _measures_quantity(path, any(isinstance(value, float) for value in values))


@lru_cache(maxsize=256)  # calls of one tool have the same arguments
def _measures_quantity(path: str, has_fraction: bool) -> bool:
    words = [word.casefold() for word in split_words(argument_name(path))]
    if _names_object(words):
        return False
    if has_fraction or not _QUANTITY_WORDS.isdisjoint(words):
        return True
    return len(words[-1]) > 3 and words[-1].endswith("s") and not words[-1].endswith(("ss", "us", "is"))


def argument_name(path: str) -> str:
    """Return the last name in a path, without positions of a list: `filter.days` and `days.0` are both `days`."""
    return next((part for part in reversed(path[:MAX_NAME_CHARS].split(".")) if not part.isdigit()), "")


def _tool_words(tool: str) -> list[str]:
    """Return the words in the name of a tool, without its server."""
    return [word.casefold() for word in split_words(tool.rpartition(".")[2][:MAX_NAME_CHARS])]
