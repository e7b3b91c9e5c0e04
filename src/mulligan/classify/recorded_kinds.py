"""Kinds that a program names for a failure that it records itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mulligan.classify.fingerprint import compute_fingerprint
from mulligan.core.failure import DEFAULT_HINTS, Failure, Kind, Remedy, SettingsError
from mulligan.core.kinds import KINDS, TYPES, find_declared_kind, find_kind
from mulligan.redaction.regex import LazyRegex

MAX_NAME_CHARS = 200
MAX_WORD_CHARS = 80
UNKNOWN_WORD = "unknown"
_NO_WORD_CHARS = LazyRegex(r"[^\w.:-]+", re.ASCII)


def name_kind(type: str, code: str, kinds: Mapping[str, Kind] = KINDS, *, source: str = "tool") -> tuple[Kind, str]:
    """Return the kind with this type and code, and a warning if it is not declared.

    Such a kind is stored as it was named: the caller mostly handles an error, and must not get another one. It
    has the remedy of a declared kind with the same code, if there is one. Without a type, `source` says what failed.
    """
    if not type:
        declared_kind = find_declared_kind(code[:MAX_NAME_CHARS], source, kinds)
        if declared_kind is not None:
            return declared_kind, ""
        type = source if source in TYPES else "orchestration" if source == "run" else "tool"
    type_word, code_word, problem = to_word(type).lower(), to_word(code), ""
    names = [(type[:MAX_NAME_CHARS], code[:MAX_NAME_CHARS])]
    if code_word != UNKNOWN_WORD:
        names.append((type_word, code_word))
    for type_name, code_name in names:
        try:
            return find_kind(type_name, code_name, kinds), ""
        except SettingsError as error:
            problem = str(error)
    relative = next((kind for kind in kinds.values() if kind.is_one_of([code_word.lower()])), None)
    relative = relative or Kind("", "", hint=DEFAULT_HINTS[Remedy.REPLAN])
    kind = Kind(type_word, code_word, relative.remedy, relative.took_effect, relative.hint)
    consequence = f"Until then, such failures are stored as {str(kind)!r}, with the remedy {kind.remedy.value}."
    return kind, f"{problem} {consequence}"


def find_fingerprint(kind: Kind, classified: Failure, tool: str, arguments: object = None) -> str:
    """Return the fingerprint of a failure with a named kind, of which `classified` is what its message alone tells."""
    if kind == classified.kind:
        return classified.fingerprint
    values = arguments if isinstance(arguments, Mapping) else None
    return compute_fingerprint(kind, tool, classified.message, values)


def to_word(name: str) -> str:
    """Return a type or code as one bounded word: a sentence in its place could be read as an instruction."""
    return _NO_WORD_CHARS.sub("_", name[:MAX_NAME_CHARS]).strip("_")[:MAX_WORD_CHARS] or UNKNOWN_WORD
