"""What a value looks like: made up by a machine, chosen by a person, or put there to be replaced."""

from __future__ import annotations

import math

from mulligan.redaction.expressions import Expression

_STAND_INS = (
    "example", "placeholder", "redacted", "change", "dummy", "insert", "xxxx", "***", "####", "...", "\u2026", "\u2022",
    "_here", "todo", "-my-", "your",
)  # fmt: skip
_CLOSER = Expression(r"change(?!.?me)|(?<![_-])your(?![_-])")
_OPENINGS = ("<", "{", "[", "(", "@", "%", "${", "$(", "my_", "my-")
_DIGITS = frozenset("0123456789")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_BITS = [0.0, *(n * math.log2(n) for n in range(1, 65))]
_CODE = Expression(
    r"[A-Za-z_][A-Za-z_]*(?:\.[A-Za-z_][A-Za-z_\d]*)+|[A-Z][A-Z]*(?:_[A-Z]+)+|[a-z]+(?:_[a-z]+)+|[a-z]+(?:-[a-z]+)+"
    r"|[a-z]+(?:[A-Z][a-z]+)+|[A-Z][a-z]+(?:[A-Z][a-z]+)+|(?:https?:/)?\.{0,2}/\S*|[\w.-]+(?:/[\w.-]+)+\.[a-z\d]{1,5}|0x[0-9a-f]{1,8}|v?\d+(?:\.\d+)+"
)


# What people type when they need something long: no machine draws eight letters in their order.
_COUNTED = (
    *("abcdefghijklmnopqrstuvwxyz"[start : start + 8] for start in range(19)),
    *("1234567890", "0123456789", "9876543210", "1234-1234", "qwertyuiop", "deadbeef"),
)


def is_counted(value: str) -> bool:
    """Made up by counting: `klmnopqrst`, `1234567890`."""
    return any(map(value.lower().__contains__, _COUNTED))


def entropy(value: str) -> float:
    """Bits a character, of its first 64."""
    value = value[:64]
    size = len(value)
    return math.log2(size) - sum([_BITS[value.count(c)] for c in set(value)]) / size if size else 0.0


def _varies(value: str, least: float) -> bool:
    """Whether the entropy is at least so much. Most values are told by how many characters they have."""
    size, kinds = min(len(value), 64), len(set(value[:64]))
    if kinds <= 1:
        return least <= 0
    if math.log2(kinds) < least:
        return False  # less than when each came equally often
    often = size - kinds + 1
    return math.log2(size) - _BITS[often] / size >= least or entropy(value) >= least


def is_fake(value: str) -> bool:
    """Written to be replaced: `xxxxxxxx`, `<token>`, `${TOKEN}`, `your_api_key`."""
    return _is_stand_in(value) or (len(value) >= 10 and not _varies(value, 2.2))


def _is_stand_in(value: str) -> bool:
    small = value.lower()
    if small.startswith(_OPENINGS) or small.endswith(("(", "{")) or not small.strip("x*.#_-"):
        return True
    if value[:1] == "$" and value[1:].replace("_", "").isupper():  # a variable of a shell
        return True
    if not any(map(small.__contains__, _STAND_INS)):
        return False
    return any(map(_CLOSER.sub("", small).__contains__, _STAND_INS))


def is_dull(value: str) -> bool:
    """Long, and with too few characters for a machine to have drawn it: `5555555dAAAAA7777`."""
    return len(value) >= 30 and not _varies(value, 3.0)


def is_mixed(value: str) -> bool:
    """Letters and digits: what a machine makes and a word is not."""
    return not _DIGITS.isdisjoint(value) and not _LETTERS.isdisjoint(value)


def is_random(value: str, least: int = 16) -> bool:
    """Long and without pattern."""
    if len(value) < least or not _varies(value, 3.0) or _is_stand_in(value):
        return False
    return is_mixed(value) or (len(value) >= 24 and _varies(value, 4.0) and not is_code(value))


def is_code(value: str) -> bool:
    """An identifier, a path, a constant, a version: the name of a thing and not the thing."""
    return _CODE.fullmatch(value) is not None


def is_chosen(value: str) -> bool:
    """What people choose as a password: a word with digits or marks in it."""
    return len(value) >= 6 and not value.isalpha() and any(c.isalpha() for c in value) and not is_code(value)
