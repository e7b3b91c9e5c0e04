"""The functions that write a text or number in another form. Each takes a value and the parameter of its name.

They return None for a value that does not have the form they expect, and the value itself if nothing changes.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mulligan.core.written_times import convert_duration, convert_time
from mulligan.redaction.regex import LazyRegex

MAX_TEXT_CHARS = 200
"""Longer texts have no transformation: they are contents, not identifiers or quantities."""
MAX_SCALED_NUMBER = 10**16
SCALE_DIGITS = {100: 2, 1000: 2, 10**6: 2, 10**9: 2, 60: 3, 3600: 3, 86400: 3, 24: 3}
"""Factors between units, and how many significant digits both numbers of a single pair must have."""
SEPARATORS = {
    " ": "blanks", "-": "dashes", "_": "underscores", ".": "dots", "/": "slashes", ":": "colons", ",": "commas",
    "(": "parentheses", ")": "parentheses", "'": "apostrophes", "\\": "backslashes",
}  # fmt: skip
WRAPPERS = ('""', "''", "``", "()", "[]", "{}", "<>", "“”")
EXTENSIONS = frozenset(
    "pdf txt md rst csv tsv json jsonl xml yaml yml toml ini html htm css js ts tsx jsx py ipynb java go rs rb php sh "
    "sql c h cpp cs doc docx xls xlsx ppt pptx odt png jpg jpeg gif webp svg mp3 mp4 wav mov avi zip gz tar log db "
    "parquet eml ics git".split()
)
_DIVIDED_NUMBER = LazyRegex(r"-?\d+[.,/]\d+")
_THOUSANDS = LazyRegex(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER = LazyRegex(r"([-+#$€£]?) ?(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?( ?[%€])?")
_COMMA_NUMBER = LazyRegex(r"([-+#$€£]?) ?(\d{1,3}(?:[. ]\d{3})+|\d+)(,\d+)( ?[%€])?")
TRAILING_NUMBER = LazyRegex(r"((?:.*[^\d.,])?)(\d+)", re.DOTALL)
_INTERNATIONAL_NUMBER = LazyRegex(r"(?:\+|00)([1-9][\d ()./-]{6,20})")
_LOCALE = LazyRegex(r"([A-Za-z]{2,3})[-_]([A-Za-z]{2})")
_SURROGATE = LazyRegex(r"[\ud800-\udfff]")
_WORD = LazyRegex(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+")
_NO_WORDS = LazyRegex(r"[^\w\s-]")
_SLUG_GAP = LazyRegex(r"""[\s_./,:;!?'"()&-]+""")


def is_scalar(value: Any) -> bool:
    """Return whether a value is a short text or a number that a transformation can take."""
    if isinstance(value, str):
        return len(value) <= MAX_TEXT_CHARS and (value.isprintable() or not _SURROGATE.search(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and abs(value) < MAX_SCALED_NUMBER


def to_text(value: Any) -> str | None:
    """Return a text, or the digits of a number, as they are transformed."""
    return value if isinstance(value, str) else f"{Decimal(repr(value)):f}" if is_scalar(value) else None


def _apply_words(text: str, join: str, first: Callable[[str], str], other: Callable[[str], str]) -> str | None:
    if _NO_WORDS.search(text) or not text[0].isalnum() or not any(map(str.isalpha, text)):
        return None
    words = _WORD.findall(text)
    return join.join([*map(first, words[:1]), *map(other, words[1:])])


def _remove_characters(text: str, characters: str) -> str | None:
    if not characters or any(character not in SEPARATORS for character in characters):
        return None
    if _DIVIDED_NUMBER.fullmatch(text) and not (characters == "," and _THOUSANDS.fullmatch(text)):
        return text  # 1.5 without its dot is another number
    if "-" in characters and text[:1] == "-":
        return None  # a minus sign, or an option
    return text.translate(dict.fromkeys(map(ord, characters)))


def _exchange_separator(text: str, parameter: str) -> str | None:
    before, after = parameter[:1], parameter[2:]
    if parameter[1:2] != ">" or before not in SEPARATORS or after not in SEPARATORS:
        return None
    if _DIVIDED_NUMBER.fullmatch(text) and {before, after} != {".", ","}:
        return None
    return text.replace(before, after)


def remove_accents(text: str) -> str:
    """Return a text without its accents and other combining marks."""
    if text.isascii():
        return text
    letters = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _build_slug(text: str, _: str) -> str | None:
    slug = _SLUG_GAP.sub("-", remove_accents(text).lower()).strip("-")
    # A sign such as that of C++, C# or !archived has a meaning.
    is_title = " " in text and text[0].isalnum()
    return slug if is_title and all(character.isalnum() or character == "-" for character in slug) else None


def _unwrap(text: str) -> str:
    return text[1:-1] if len(text) > 2 and text[0] + text[-1] in WRAPPERS else text


def _fit_mask(text: str, mask: str) -> str | None:
    """Insert separators at fixed positions: `mask` has an x for each character of the text."""
    if (
        not text.isalnum()
        or (mask[0] + mask[-1]) != "xx"
        or set(mask) - {"x", *SEPARATORS}
        or mask.count("x") != len(text)
    ):
        return None
    characters = iter(text)
    return "".join(next(characters) if sign == "x" else sign for sign in mask)


def _split_number(text: str, separator: str) -> str | None:
    match = TRAILING_NUMBER.fullmatch(text)
    return f"{match[1]}{separator}{match[2]}" if match and match[1].isalpha() and separator in SEPARATORS else None


def _exchange_dialing_prefix(text: str, prefix: str) -> str | None:
    """Write an international telephone number with another sign before its country code."""
    match = _INTERNATIONAL_NUMBER.fullmatch(text)
    return f"{prefix}{match[1]}" if match and prefix in ("+", "00") else None


def _pad_number(text: str, width: str) -> str | None:
    match = TRAILING_NUMBER.fullmatch(text)
    return f"{match[1]}{match[2].zfill(min(int(width), MAX_TEXT_CHARS))}" if match else None


def _unpad_number(text: str, _: str) -> str | None:
    match = TRAILING_NUMBER.fullmatch(text)
    return f"{match[1]}{match[2].lstrip('0') or '0'}" if match else None


def _read_number(text: str, decimal_sign: str) -> int | float | None:
    match = (_COMMA_NUMBER if decimal_sign == "," else _NUMBER).fullmatch(text)
    if match is None:
        return None
    digits = re.sub(r"\D", "", match[2])
    sign = "-" if match[1] == "-" else ""
    return float(f"{sign}{digits}.{match[3][1:]}") if match[3] else int(f"{sign}{digits}")


def _read_fraction(text: str, _: str) -> int | float | None:
    number = _read_number(text, ".") if text.endswith("%") else None
    return None if number is None else _scale(number, "/100")


def _write_decimals(text: str, count: str) -> str | None:
    number = Decimal(text)
    rounded = f"{number:.{min(int(count), 9)}f}"
    return rounded if number == Decimal(rounded) and len(rounded) >= len(text) else None


def _scale(number: int | float, parameter: str) -> int | float | None:
    factor = int(parameter.removeprefix("/"))
    if factor not in SCALE_DIGITS or not -MAX_SCALED_NUMBER < number < MAX_SCALED_NUMBER:
        return None
    exact = Decimal(repr(number))
    exact = exact / factor if parameter.startswith("/") else exact * factor
    return int(exact) if exact == exact.to_integral_value() else float(exact)


def _change_part(text: str, kind: str, parameter: str) -> str | None:
    """Return a part of a URL, path or qualified name."""
    if kind == "last":
        path = text.partition("?")[0].partition("#")[0].rstrip("/") if "://" in text else text.rstrip("/")
        mark = "/" if "/" in path else ":" if path.count(":") > 1 and path[0].isalpha() else ""
        return path.rpartition(mark)[2] if mark and not _DIVIDED_NUMBER.fullmatch(path) else None
    if kind == "stem":
        stem, _, extension = text.rpartition(".")
        return stem if extension.lower() in EXTENSIONS else None
    url = urlsplit(text)
    if not url.scheme or not url.netloc:
        return None
    if kind == "query":
        return parse_qs(url.query).get(parameter, [None])[0]
    segments = url.path.strip("/").split("/")
    parts = {"host": url.hostname, "path": url.path, "route": "/".join(segments)}
    return segments[int(parameter) - 1] if kind == "segment" and int(parameter) > 0 else parts.get(kind)


def _format_locale(text: str, separator: str) -> str | None:
    match = _LOCALE.fullmatch(text)
    return f"{match[1].lower()}{separator}{match[2].upper()}" if match and separator in ("-", "_") else None


def _read_language(text: str, _: str) -> str | None:
    match = _LOCALE.fullmatch(text)
    return match[1].lower() if match else None


TEXT_FUNCTIONS: dict[str, Callable[[str, str], Any]] = {
    "trim": lambda text, _: " ".join(text.split()),
    "unwrap": lambda text, _: _unwrap(text),
    "upper": lambda text, _: text.upper(),
    "lower": lambda text, _: text.lower(),
    "capitalized": lambda text, _: text.capitalize(),
    "title": lambda text, _: text.title(),
    "without": _remove_characters,
    "swap": _exchange_separator,
    "accents": lambda text, _: remove_accents(text),
    "snake": lambda text, _: _apply_words(text, "_", str.lower, str.lower),
    "kebab": lambda text, _: _apply_words(text, "-", str.lower, str.lower),
    "constant": lambda text, _: _apply_words(text, "_", str.upper, str.upper),
    "camel": lambda text, _: _apply_words(text, "", str.lower, str.capitalize),
    "pascal": lambda text, _: _apply_words(text, "", str.capitalize, str.capitalize),
    "spaced": lambda text, _: _apply_words(text, " ", str.lower, str.lower),
    "slug": _build_slug,
    "locale": _format_locale,
    "language": _read_language,
    "split": _split_number,
    "mask": _fit_mask,
    "wrap": lambda text, pair: pair[0] + text + pair[1] if pair in WRAPPERS and text != _unwrap(pair + text) else None,
    "dialing": _exchange_dialing_prefix,
    "pad": _pad_number,
    "unpad": _unpad_number,
    "prefix": lambda text, affix: text if text.startswith(affix) else affix + text,
    "suffix": lambda text, affix: text if text.endswith(affix) else text + affix,
    "cut-prefix": lambda text, affix: text.removeprefix(affix),
    "cut-suffix": lambda text, affix: text.removesuffix(affix),
    "number": _read_number,
    "fraction": _read_fraction,
    "text": lambda text, _: text,
    "integer": lambda text, _: int(text.rstrip("0").removesuffix(".")) if re.fullmatch(r"-?\d+\.0+", text) else None,
    "decimals": _write_decimals,
    **{
        kind: lambda text, parameter, kind=kind: _change_part(text, kind, parameter)  # type: ignore[misc]
        for kind in ("last", "stem", "host", "path", "route", "segment", "query")
    },
}
NUMBER_FUNCTIONS: dict[str, Callable[[Any, str], Any]] = {
    "scale": _scale,
    "date": convert_time,
    "duration": convert_duration,
}
"""Functions that take numbers as they are. The others take the text of a number."""
