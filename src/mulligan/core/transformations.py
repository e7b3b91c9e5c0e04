"""Transformations of a value into another form of it: case, separators, affixes, dates, durations, units.

Where a corrected value is a function of the wrong one, the function is what was learned, not the value. The set of
functions is closed, and each has a name that can be stored: `upper`, `without:-`, `date:MM/DD/YYYY>YYYY-MM-DD`. A name
is a kind and a parameter. Two steps are joined by `+`. Another word, a bound or another number is never a form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Any

from mulligan.core.form_functions import (
    EXTENSIONS,
    MAX_TEXT_CHARS,
    NUMBER_FUNCTIONS,
    SCALE_DIGITS,
    SEPARATORS,
    TEXT_FUNCTIONS,
    TRAILING_NUMBER,
    is_scalar,
    remove_accents,
    to_text,
)
from mulligan.core.records import FORM_PREFIX, Change
from mulligan.core.written_times import (
    describe_duration_form,
    describe_time_form,
    find_duration_conversions,
    find_time_conversions,
    keeps_time,
)
from mulligan.redaction.regex import LazyRegex

CACHED_TEXTS = 64
MAX_EXCHANGED_SEPARATORS = 2
"""Separators of one value that the other does not have, up to which every exchange is tested."""
_CORE_GAP = LazyRegex(r"[\W_]+")
_SYMBOL = LazyRegex(r"[#@+$€£%/:=]{1,2}|\./")
_NAMESPACE = LazyRegex(r"[A-Za-z][\w.-]*(?:[:/]+[A-Za-z][\w.-]*)*[:/]{1,3}|www\.")
_LABEL = LazyRegex(r"[A-Za-z]{1,10}[-_# ]?|0x")
_COUNTRY_CODE = LazyRegex(r"(?:\+|00)[1-9]\d{0,2}")
_UNIT = LazyRegex(r" ?[A-Za-z]{1,10}")
_TAG = LazyRegex(r":[A-Za-z]+")
_FIXED = (
    "unwrap", "upper", "lower", "capitalized", "title", "accents", "snake", "kebab", "constant", "camel", "pascal",
    "spaced", "slug", "locale:-", "locale:_", "unpad",
)  # fmt: skip
"""Transformations that keep all letters and digits, and need no parameter from the values."""
_PARTS = ("last", "stem", "language", "host", "path", "route")
_FIRST_STEPS = ("trim", "unwrap", "accents", "upper", "lower", "snake", "kebab", "last", "stem", "host")
_LOSSY = frozenset({"scale", "last", "stem", "language", "host", "path", "route", "segment", "query"})
_AFFIXES = frozenset({"prefix", "suffix", "cut-prefix", "cut-suffix"})
_PHRASES = {
    "trim": "without superfluous blanks", "unwrap": "without quotes or brackets around it", "upper": "in upper case",
    "lower": "in lower case", "capitalized": "with a capital first letter", "title": "with capital first letters",
    "accents": "without accents", "snake": "in snake_case", "kebab": "in kebab-case", "constant": "in CONSTANT_CASE",
    "camel": "in camelCase", "pascal": "in PascalCase", "spaced": "as lower-case words",
    "slug": "as a slug (words-in-lower-case)", "locale": "as language{0}REGION",
    "language": "as a language without region", "split": "with {0!r} before the number", "mask": "grouped as {0}",
    "wrap": "inside {0}", "dialing": "with {0} before the country code",
    "pad": "with leading zeros, {0} digits", "unpad": "without leading zeros",
    "prefix": "beginning with {0}", "suffix": "ending with {0}", "cut-prefix": "without {0} at the beginning",
    "cut-suffix": "without {0} at the end", "number": "as a number", "fraction": "as a fraction of 1",
    "text": "as a text", "integer": "as a whole number", "decimals": "with {0} decimals",
    "last": "as its last part alone", "stem": "without the file extension", "host": "as the host name alone",
    "path": "as the path of the URL", "route": "as the path of the URL without slashes around it",
    "segment": "as part {0} of the URL's path", "query": "as the value of {0} in the URL",
}  # fmt: skip


def find_transformations(old: Any, new: Any) -> tuple[str, ...]:
    """Return the names of all transformations that turn one value into the other, the simplest first.

    Two steps are searched only where no single one does it. Scales and affixes need support in the values: `1000` to
    `10` and `db` to `prod-db` are other values.
    """
    if not (is_scalar(old) and is_scalar(new)) or _is_same(old, new):
        return ()
    for propose in (_propose_steps, _propose_pairs):
        names = tuple(dict.fromkeys(name for name in propose(old, new) if _explains(name, old, new)))
        if names:
            return names
    return ()


def may_keep_quantity(old: Any, new: Any) -> bool:
    """Return whether a transformation that `keeps_quantity` may turn one value into the other, by a cheap test.

    One that is no unit, date or number keeps all letters, so texts without digits must have the same ones.
    """
    if not isinstance(old, str) or not isinstance(new, str) or _has_digit(old) or _has_digit(new):
        return True
    return _core_of(remove_accents(old)) == _core_of(remove_accents(new))


def apply_transformation(name: str, value: Any) -> Any:
    """Apply a transformation to another value. Return None if it does not apply or changes nothing.

    Names of a newer version do not apply.
    """
    result = value if is_scalar(value) else None
    for step in name.split("+", 2):
        if result is None:
            return None
        kind, _, parameter = step.partition(":")
        parameter = parameter.replace("%2B", "+").replace("%25", "%")
        try:
            if kind in NUMBER_FUNCTIONS:
                result = NUMBER_FUNCTIONS[kind](result, parameter)
            else:
                text = to_text(result)
                result = TEXT_FUNCTIONS[kind](text, parameter) if text is not None else None
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return None  # a kind or parameter of another version, or a value beyond what the function can read
    return None if result is None or result == "" or _is_same(result, value) else result


def encode_form(old: Any, name: str) -> str:
    """Return a transformation as a learned change stores it: with the characters of the values that it is for."""
    return f"{FORM_PREFIX}{_find_characters(old)}|{name}"


def apply_form(change: Change, value: Any) -> Any:
    """Apply a learned transformation to a value; None if it was learned of values with other characters."""
    is_for_value = change.after.startswith(f"{FORM_PREFIX}{_find_characters(value)}|")
    return apply_transformation(change.form, value) if is_for_value else None


def _find_characters(value: Any) -> str:
    """Return which characters a value has: `a` for letters, `9` for digits, and its separators, or its type."""
    if not isinstance(value, str):
        return type(value).__name__
    separators = sorted({char for char in value[:MAX_TEXT_CHARS] if not char.isalnum() and char != "|"})
    letters, digits = any(map(str.isalpha, value)), any(map(str.isdigit, value))
    return "a" * letters + "9" * digits + "".join(separators[:8])


def describe_transformation(name: str) -> str:
    """Return a phrase that follows an argument's name: "in upper case", "as YYYY-MM-DD"."""
    return ", ".join(map(_describe_step, name.split("+", 2)))


def keeps_identity(name: str) -> bool:
    """Return whether two values that differ by this transformation surely stand for the same thing."""
    return all(map(_step_keeps_identity, name.split("+", 2)))


def keeps_quantity(name: str) -> bool:
    """Return whether a transformation writes the same thing in another form, or the same quantity in another unit."""
    return all(_step_keeps_identity(step) or step.startswith("scale:") for step in name.split("+", 2))


def _propose_steps(old: Any, new: Any) -> Iterator[str]:
    """Yield single steps that may turn one value into the other, from simple to special. Words that share nothing and
    have no digits end the search early."""
    if isinstance(old, str) and isinstance(new, str):
        left, right = _core_of(old), _core_of(new)
        if left == right:
            yield "trim"
            yield from _propose_separators(old, new)
            yield from _FIXED
        elif left in right or right in left:
            yield from _PARTS
            yield from _propose_url_parts(old, new)
            yield from ("slug", "dialing:00", "dialing:%2B", "unpad")
        elif "://" not in old and not (old[-1:].isdigit() and new[-1:].isdigit()):
            if not old.isascii():
                yield from ("accents", "slug")
            if not (_has_digit(old) and _has_digit(new)):
                return
    elif not isinstance(old, str) and not isinstance(new, str):
        yield "integer"
        yield from _propose_scales(old, new, digits=min(_count_digits(old), _count_digits(new)))
        return
    old_text, new_text = to_text(old), to_text(new)
    if old_text is None or new_text is None:
        return
    if isinstance(new, str):
        if not isinstance(old, str):
            yield "text"
        if new_text[-1:].isdigit() and (match := TRAILING_NUMBER.fullmatch(new_text)):
            yield f"pad:{len(match[2])}"
        if _has_digit(old_text) and "." in new_text and _has_digit(new_text.rpartition(".")[2]):
            yield f"decimals:{len(new_text.rpartition('.')[2])}"
        yield from _propose_affixes(old_text, new_text)
    else:
        yield from ("number", "number:,", "integer", "fraction")
    if _has_digit(old_text) and _has_digit(new_text):
        yield from (_name("date", conversion) for conversion in find_time_conversions(old, new))
        yield from (_name("duration", conversion) for conversion in find_duration_conversions(old, new))


def _propose_separators(old: str, new: str) -> Iterator[str]:
    removed, added = (set(old) - set(new)) & SEPARATORS.keys(), (set(new) - set(old)) & SEPARATORS.keys()
    if removed:
        yield _name("without", "".join(sorted(removed)))
    position = next((index for index, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
    yield _name("swap", f"{old[position : position + 1]}>{new[position : position + 1]}")
    if len(removed) <= MAX_EXCHANGED_SEPARATORS and len(added) <= MAX_EXCHANGED_SEPARATORS:
        yield from (_name("swap", f"{before}>{after}") for before in sorted(removed) for after in sorted(added))
        if old.isalnum():
            yield from (_name("split", separator) for separator in sorted(added))
    if old.isalnum():
        yield _name("mask", re.sub(r"[^\W_]", "x", new))
    yield _name("wrap", new[:1] + new[-1:])


def _propose_affixes(old: str, new: str) -> Iterator[str]:
    """Yield constant affixes. One pair supports only those that say no more than the kind of the value."""
    for short, long, action in ((old, new, ""), (new, old, "cut-")):
        if not short or len(short) >= len(long):
            continue
        if long.endswith(short):
            affix = long[: -len(short)]
            if _is_prefix(affix, short):
                yield _name(f"{action}prefix", affix)
        if long.startswith(short):
            affix = long[len(short) :]
            if _is_suffix(affix, short):
                yield _name(f"{action}suffix", affix)


def _propose_url_parts(old: str, new: str) -> Iterator[str]:
    if "://" in old:
        yield from (f"segment:{position}" for position in range(1, min(old.count("/"), 12)))
        match = re.search(rf"[?&](\w{{1,40}})={re.escape(new)}", old)
        if match:
            yield _name("query", match[1])


def _propose_scales(old: Any, new: Any, *, digits: int) -> Iterator[str]:
    """Yield scales that the significant digits of two numbers support: 1000 to 10 may be a bound, 3600 to 60 too."""
    sign = "" if abs(new) > abs(old) else "/"
    yield from (f"scale:{sign}{factor}" for factor, min_digits in SCALE_DIGITS.items() if digits >= min_digits)


def _propose_pairs(old: Any, new: Any) -> Iterator[str]:
    """Yield transformations of two steps: a first one that is known, and all that fit between its result and `new`."""
    if not isinstance(old, str):
        if isinstance(new, str) and new.endswith("%"):
            yield "scale:100+suffix:%25"
        return
    if isinstance(new, str):
        left, right = _core_of(remove_accents(old)), _core_of(remove_accents(new))
        if left not in right and right not in left:
            return
        removed = sorted((set(old) - set(new)) & SEPARATORS.keys())
        first_steps = [*_FIRST_STEPS, *_propose_separators(old, new)]
        if _SYMBOL.fullmatch(old[:1]):
            first_steps.append(_name("cut-prefix", old[0]))
        first_steps += [_name("without", separator) for separator in removed if len(removed) > 1]
        for first in first_steps:
            middle = apply_transformation(first, old)
            if isinstance(middle, str):
                yield from (f"{first}+{second}" for second in _propose_steps(middle, new))
    elif _has_digit(old):
        text = to_text(new)
        yield from (f"{first}+number" for first in _propose_affixes(old, text or ""))
        for first in ("number", "number:,"):
            number = apply_transformation(first, old)
            if number is not None:
                yield from (f"{first}+{second}" for second in _propose_steps(number, new))


def _explains(name: str, old: Any, new: Any) -> bool:
    result = apply_transformation(name, old)
    return result is not None and _is_same(result, new)


def _name(kind: str, parameter: str) -> str:
    return f"{kind}:{parameter.replace('%', '%25').replace('+', '%2B')}"


def _is_same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


@lru_cache(maxsize=CACHED_TEXTS)  # each value is compared with those of several calls
def _core_of(text: str) -> str:
    return _CORE_GAP.sub("", text).casefold()


@lru_cache(maxsize=CACHED_TEXTS)
def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def _count_digits(number: int | float) -> int:
    return len(f"{Decimal(repr(number)):f}".replace(".", "").strip("-0"))


def _is_prefix(affix: str, text: str) -> bool:
    if _SYMBOL.fullmatch(affix) or _NAMESPACE.fullmatch(affix):
        return True
    if _COUNTRY_CODE.fullmatch(affix):
        return text.isdigit() and len(text) > 5
    return text[0].isdigit() and _LABEL.fullmatch(affix) is not None


def _is_suffix(affix: str, text: str) -> bool:
    if _SYMBOL.fullmatch(affix):
        return affix in ("/", "%")
    if affix[0] == ".":
        return affix[1:].lower() in EXTENSIONS
    return _TAG.fullmatch(affix) is not None or (text.isdigit() and _UNIT.fullmatch(affix) is not None)


def _describe_step(step: str) -> str:
    kind, _, parameter = step.partition(":")
    parameter = parameter.replace("%2B", "+").replace("%25", "%")
    if kind == "without":
        words = list(dict.fromkeys(SEPARATORS.get(character, repr(character)) for character in parameter))
        return f"without {' and '.join(filter(None, (', '.join(words[:-1]), *words[-1:])))}"
    if kind == "swap":
        before, after = (SEPARATORS.get(sign, repr(sign)) for sign in (parameter[:1], parameter[2:]))
        return f"with {after} instead of {before}"
    if kind == "scale":
        is_larger, factor = parameter.startswith("/"), parameter.removeprefix("/")
        return f"in a larger unit (divided by {factor})" if is_larger else f"in a smaller unit (times {factor})"
    if kind == "date":
        return f"as {describe_time_form(parameter.partition('>')[2])}"
    if kind == "duration":
        return f"as {describe_duration_form(parameter.partition('>')[2])}"
    return _PHRASES.get(kind, "in another form").format(parameter)


def _step_keeps_identity(step: str) -> bool:
    kind, _, parameter = step.partition(":")
    if kind in _AFFIXES:
        return not any(map(str.isalnum, parameter.replace("%2B", "").replace("%25", "")))
    if kind == "date":
        return keeps_time(parameter)
    if kind == "duration":
        return "unit" not in parameter
    return kind in TEXT_FUNCTIONS and kind not in _LOSSY
