"""Numeric arguments that measure something, as opposed to those that name an object.

A bound may replace a quantity: `top_k=50` asks for as much as possible. It never replaces the name of an object:
`note_id=1` is another note than `note_id=0`. An unknown name counts as the name of an object.
"""

from __future__ import annotations

from typing import Any

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


def measures_quantity(path: str, *values: Any) -> bool:
    """Return whether a numeric argument says how much, not which object: `per_page`, not `page`.

    The name decides: a word for a quantity, or a plural (`days`). Without one, only a fraction is certainly no object.
    """
    name = next((part for part in reversed(path[:MAX_NAME_CHARS].split(".")) if not part.isdigit()), "")
    words = [word.casefold() for word in split_words(name)]
    if not words or (not _OBJECT_WORDS.isdisjoint(words) and words[:2] != ["number", "of"]):
        return False
    if any(isinstance(value, float) for value in values) or not _QUANTITY_WORDS.isdisjoint(words):
        return True
    return len(words[-1]) > 3 and words[-1].endswith("s") and not words[-1].endswith(("ss", "us", "is"))
