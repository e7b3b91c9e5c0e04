"""Transformations of a value into another form of it: case, separators, affixes, dates, durations, units.

Where a corrected value is a function of the wrong one, the function is what was learned, not the value. The set of
functions is closed, and each has a name that can be stored: `upper`, `without:-`, `date:MM/DD/YYYY>YYYY-MM-DD`. A name
is a kind and a parameter. Two steps are joined by `+`. Another word, a bound or another number is never a form.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mulligan.core.written_times import (
    convert_duration,
    convert_time,
    describe_duration_form,
    describe_time_form,
    find_duration_conversions,
    find_time_conversions,
    keeps_time,
)
from mulligan.redaction.regex import LazyRegex

MAX_TEXT_CHARS = 200
"""Longer texts have no transformation: they are contents, not identifiers or quantities."""
MAX_SCALED_NUMBER = 10**16
_SCALE_DIGITS = {100: 2, 1000: 2, 10**6: 2, 10**9: 2, 60: 3, 3600: 3, 86400: 3, 24: 3}
"""Factors between units, and how many significant digits both numbers of a single pair must have."""
_SEPARATORS = {
    " ": "blanks", "-": "dashes", "_": "underscores", ".": "dots", "/": "slashes", ":": "colons", ",": "commas",
    "(": "parentheses", ")": "parentheses", "'": "apostrophes", "\\": "backslashes",
}  # fmt: skip
_WRAPPERS = ('""', "''", "``", "()", "[]", "{}", "<>", "“”", "‘’")
_EXTENSIONS = frozenset(
    "pdf txt md rst csv tsv json jsonl xml yaml yml toml ini html htm css js ts tsx jsx py ipynb java go rs rb php sh "
    "sql c h cpp cs doc docx xls xlsx ppt pptx odt png jpg jpeg gif webp svg mp3 mp4 wav mov avi zip gz tar log db "
    "parquet eml ics git".split()
)
_DIVIDED_NUMBER = LazyRegex(r"-?\d+[.,/]\d+")
_THOUSANDS = LazyRegex(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER = LazyRegex(r"([-+#$€£]?) ?(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?( ?[%€])?")
_COMMA_NUMBER = LazyRegex(r"([-+#$€£]?) ?(\d{1,3}(?:[. ]\d{3})+|\d+)(,\d+)( ?[%€])?")
_TRAILING_NUMBER = LazyRegex(r"((?:.*[^\d.,])?)(\d+)", re.DOTALL)
_LOCALE = LazyRegex(r"([A-Za-z]{2,3})[-_]([A-Za-z]{2})")
_WORDS = LazyRegex(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+")
_NO_WORDS = LazyRegex(r"[^\w\s-]")
_SLUG_GAP = LazyRegex(r"""[\s_./,:;!?'"()&-]+""")
_CORE_GAP = LazyRegex(r"[\W_]+")
_SYMBOL = LazyRegex(r"[#@+$€£%/:=]{1,2}|\./")
_NAMESPACE = LazyRegex(r"[A-Za-z][\w.-]*(?:[:/]+[A-Za-z][\w.-]*)*[:/]{1,3}|www\.")
_LABEL = LazyRegex(r"[A-Za-z]{1,10}[-_# ]?|0x")
_COUNTRY_CODE = LazyRegex(r"(?:\+|00)[1-9]\d{0,2}")
_UNIT = LazyRegex(r" ?[A-Za-z]{1,10}")
_TAG = LazyRegex(r":[A-Za-z]+")


def _apply_words(text: str, join: str, first: Callable[[str], str], other: Callable[[str], str]) -> str | None:
    if _NO_WORDS.search(text) or not text[0].isalnum() or not any(map(str.isalpha, text)):
        return None
    words = _WORDS.findall(text)
    return join.join([*map(first, words[:1]), *map(other, words[1:])])


def _remove_characters(text: str, characters: str) -> str | None:
    if not characters or any(character not in _SEPARATORS for character in characters):
        return None
    if _DIVIDED_NUMBER.fullmatch(text) and not (characters == "," and _THOUSANDS.fullmatch(text)):
        return text  # 1.5 without its dot is another number
    if "-" in characters and text[:1] == "-":
        return None  # a minus sign, or an option
    return text.translate(dict.fromkeys(map(ord, characters)))


def _exchange_separator(text: str, parameter: str) -> str | None:
    before, after = parameter[:1], parameter[2:]
    if parameter[1:2] != ">" or before not in _SEPARATORS or after not in _SEPARATORS:
        return None
    if _DIVIDED_NUMBER.fullmatch(text) and {before, after} != {".", ","}:
        return None
    return text.replace(before, after)


def _remove_accents(text: str) -> str:
    if text.isascii():
        return text
    letters = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _build_slug(text: str, _: str) -> str | None:
    slug = _SLUG_GAP.sub("-", _remove_accents(text).lower()).strip("-")
    # A sign such as that of C++, C# or !archived has a meaning.
    is_title = " " in text and text[0].isalnum()
    return slug if is_title and all(character.isalnum() or character == "-" for character in slug) else None


def _unwrap(text: str) -> str:
    return text[1:-1] if len(text) > 2 and text[0] + text[-1] in _WRAPPERS else text


def _fit_mask(text: str, mask: str) -> str | None:
    """Insert separators at fixed positions: `mask` has an x for each character of the text."""
    if (
        not text.isalnum()
        or (mask[0] + mask[-1]) != "xx"
        or set(mask) - {"x", *_SEPARATORS}
        or mask.count("x") != len(text)
    ):
        return None
    characters = iter(text)
    return "".join(next(characters) if sign == "x" else sign for sign in mask)


def _split_number(text: str, separator: str) -> str | None:
    match = _TRAILING_NUMBER.fullmatch(text)
    return f"{match[1]}{separator}{match[2]}" if match and match[1].isalpha() and separator in _SEPARATORS else None


def _pad_number(text: str, width: str) -> str | None:
    match = _TRAILING_NUMBER.fullmatch(text)
    return f"{match[1]}{match[2].zfill(min(int(width), MAX_TEXT_CHARS))}" if match else None


def _unpad_number(text: str, _: str) -> str | None:
    match = _TRAILING_NUMBER.fullmatch(text)
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
    if factor not in _SCALE_DIGITS or not -MAX_SCALED_NUMBER < number < MAX_SCALED_NUMBER:
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
        return stem if extension.lower() in _EXTENSIONS else None
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


_TEXT_FUNCTIONS: dict[str, Callable[[str, str], Any]] = {
    "trim": lambda text, _: " ".join(text.split()),
    "unwrap": lambda text, _: _unwrap(text),
    "upper": lambda text, _: text.upper(),
    "lower": lambda text, _: text.lower(),
    "capitalized": lambda text, _: text.capitalize(),
    "title": lambda text, _: text.title(),
    "without": _remove_characters,
    "swap": _exchange_separator,
    "accents": lambda text, _: _remove_accents(text),
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
    "wrap": lambda text, pair: pair[0] + text + pair[1] if pair in _WRAPPERS and text != _unwrap(pair + text) else None,
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
_NUMBER_FUNCTIONS: dict[str, Callable[[Any, str], Any]] = {
    "scale": _scale,
    "date": convert_time,
    "duration": convert_duration,
}
"""Functions that take numbers as they are. The others take the text of a number."""
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
    "camel": "in camelCase", "pascal": "in PascalCase", "spaced": "as lower-case words", "slug": "as a slug (words-in-lower-case)",
    "locale": "as language{0}REGION", "language": "as a language without region", "split": "with {0!r} before the number",
    "mask": "grouped as {0}", "wrap": "inside {0}", "pad": "with leading zeros, {0} digits", "unpad": "without leading zeros",
    "prefix": "beginning with {0}", "suffix": "ending with {0}", "cut-prefix": "without {0} at the beginning",
    "cut-suffix": "without {0} at the end", "number": "as a number", "fraction": "as a fraction of 1", "text": "as a text", "integer": "as a whole number",
    "decimals": "with {0} decimals", "last": "as its last part alone", "stem": "without the file extension",
    "host": "as the host name alone", "path": "as the path of the URL", "route": "as the path of the URL without slashes around it",
    "segment": "as part {0} of the URL's path", "query": "as the value of {0} in the URL",
}  # fmt: skip


def find_transformations(old: Any, new: Any) -> tuple[str, ...]:
    """Return the names of all transformations that turn one value into the other, the simplest first.

    Two steps are searched only where no single one does it. Scales and affixes need support in the values: `1000` to
    `10` and `db` to `prod-db` are other values, until `common_transformation` sees several of them.
    """
    if not (_is_scalar(old) and _is_scalar(new)) or _is_same(old, new):
        return ()
    return tuple(dict.fromkeys(name for name in _propose(old, new) if _explains(name, old, new)))


def apply_transformation(name: str, value: Any) -> Any:
    """Apply a transformation to another value. Return None if it does not apply or changes nothing.

    Names of a newer version do not apply.
    """
    result = value if _is_scalar(value) else None
    for step in name.split("+", 2):
        if result is None:
            return None
        kind, _, parameter = step.partition(":")
        parameter = parameter.replace("%2B", "+").replace("%25", "%")
        try:
            if kind in _NUMBER_FUNCTIONS:
                result = _NUMBER_FUNCTIONS[kind](result, parameter)
            else:
                text = _to_text(result)
                result = _TEXT_FUNCTIONS[kind](text, parameter) if text is not None else None
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return None  # a kind or parameter of another version, or a value beyond what the function can read
    return None if result is None or result == "" or _is_same(result, value) else result


def common_transformation(pairs: Iterable[tuple[Any, Any]]) -> str | None:
    """Return the simplest transformation that turns each old value into its new one, or None."""
    known_pairs = list(pairs)
    names: list[str] = []
    for old, new in known_pairs:
        names += find_transformations(old, new)
    removed = {character for name in names if name.startswith("without:") for character in name[len("without:") :]}
    names.append(_name("without", "".join(sorted(removed))))
    if len({repr(old) for old, _ in known_pairs}) > 1 and all(map(_is_scalar, known_pairs[0])):
        names += _propose_supported(*known_pairs[0])
    candidates = sorted(dict.fromkeys(names), key=lambda name: name.count("+"))
    return next((name for name in candidates if all(_explains(name, *pair) for pair in known_pairs)), None)


def describe_transformation(name: str) -> str:
    """Return a phrase that follows an argument's name: "in upper case", "as YYYY-MM-DD"."""
    return ", ".join(map(_describe_step, name.split("+", 2)))


def keeps_identity(name: str) -> bool:
    """Return whether two values that differ by this transformation surely stand for the same thing."""
    return all(map(_step_keeps_identity, name.split("+", 2)))


def _propose(old: Any, new: Any) -> Iterator[str]:
    """Yield names that may turn one value into the other. The order is from simple to special."""
    names = [name for name in _propose_steps(old, new) if _explains(name, old, new)]
    yield from names or _propose_pairs(old, new)


def _propose_steps(old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, str) and isinstance(new, str):
        left, right = _core_of(old), _core_of(new)
        if left == right:
            yield "trim"
            yield from _propose_separators(old, new)
            yield from _FIXED
        elif left in right or right in left:
            yield from _PARTS
            yield from _propose_url_parts(old, new)
            yield from ("slug", "unpad")
        elif "://" not in old and not (old[-1:].isdigit() and new[-1:].isdigit()):
            if not old.isascii():
                yield from ("accents", "slug")
            if not (_has_digit(old) and _has_digit(new)):
                return
    elif not isinstance(old, str) and not isinstance(new, str):
        yield "integer"
        yield from _propose_scales(old, new, digits=min(_count_digits(old), _count_digits(new)))
        return
    old_text, new_text = _to_text(old), _to_text(new)
    if old_text is None or new_text is None:
        return
    if isinstance(new, str):
        if not isinstance(old, str):
            yield "text"
        if new_text[-1:].isdigit() and (match := _TRAILING_NUMBER.fullmatch(new_text)):
            yield f"pad:{len(match[2])}"
        if _has_digit(old_text) and "." in new_text:
            yield f"decimals:{len(new_text.rpartition('.')[2])}"
        yield from _propose_affixes(old_text, new_text, is_supported=False)
    else:
        yield from ("number", "number:,", "integer", "fraction")
    if _has_digit(old_text) and _has_digit(new_text):
        yield from (_name("date", conversion) for conversion in find_time_conversions(old, new))
        yield from (_name("duration", conversion) for conversion in find_duration_conversions(old, new))


def _propose_separators(old: str, new: str) -> Iterator[str]:
    removed = set(old) - set(new)
    yield _name("without", "".join(sorted(removed & _SEPARATORS.keys())))
    position = next((index for index, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
    before, after = old[position : position + 1], new[position : position + 1]
    yield _name("swap", f"{before}>{after}")
    yield from (_name("swap", f"{sign}>{other}") for sign in removed for other in set(new) - set(old))
    if old.isalnum():
        yield from (_name("split", sign) for sign in set(new) - set(old))
        yield _name("mask", re.sub(r"[^\W_]", "x", new))
    yield _name("wrap", new[:1] + new[-1:])


def _propose_affixes(old: str, new: str, *, is_supported: bool) -> Iterator[str]:
    """Yield constant affixes. One pair supports only those that say no more than the kind of the value."""
    for short, long, cut in ((old, new, ""), (new, old, "cut-")):
        if not short or len(short) >= len(long):
            continue
        if long.endswith(short):
            affix = long[: -len(short)]
            if _is_prefix(affix, short) or (is_supported and _is_boundary(affix[-1], short[0])):
                yield _name(f"{cut}prefix", affix)
        if long.startswith(short):
            affix = long[len(short) :]
            if _is_suffix(affix, short) or (is_supported and _is_boundary(short[-1], affix[0])):
                yield _name(f"{cut}suffix", affix)


def _propose_url_parts(old: str, new: str) -> Iterator[str]:
    if "://" in old:
        yield from (f"segment:{position}" for position in range(1, min(old.count("/"), 12)))
        match = re.search(rf"[?&](\w{{1,40}})={re.escape(new)}", old)
        if match:
            yield _name("query", match[1])


def _propose_scales(old: Any, new: Any, *, digits: int) -> Iterator[str]:
    """Yield scales that the significant digits of two numbers support: 1000 to 10 may be a bound, 3600 to 60 too."""
    sign = "" if abs(new) > abs(old) else "/"
    yield from (f"scale:{sign}{factor}" for factor, min_digits in _SCALE_DIGITS.items() if digits >= min_digits)


def _propose_supported(old: Any, new: Any) -> Iterator[str]:
    """Yield what a single pair does not support: scales of round numbers, and any affix at a word boundary."""
    if isinstance(old, str) and isinstance(new, str):
        yield from _propose_affixes(old, new, is_supported=True)
    elif not isinstance(old, str) and not isinstance(new, str):
        yield from _propose_scales(old, new, digits=MAX_TEXT_CHARS)


def _propose_pairs(old: Any, new: Any) -> Iterator[str]:
    """Yield transformations of two steps: a first one that is known, and all that fit between its result and `new`."""
    if not isinstance(old, str):
        if isinstance(new, str) and new.endswith("%"):
            yield "scale:100+suffix:%25"
        return
    if isinstance(new, str):
        left, right = _core_of(_remove_accents(old)), _core_of(_remove_accents(new))
        if left not in right and right not in left:
            return
        removed = "".join(sorted(set(old) - set(new) & _SEPARATORS.keys()))
        first_steps = [*_FIRST_STEPS, *_propose_separators(old, new)]
        if _SYMBOL.fullmatch(old[:1]):
            first_steps.append(_name("cut-prefix", old[0]))
        first_steps += [_name("without", sign) for sign in removed if len(removed) > 1]
        for first in first_steps:
            middle = apply_transformation(first, old)
            if isinstance(middle, str):
                yield from (f"{first}+{second}" for second in _propose_steps(middle, new))
    elif _has_digit(old):
        text = _to_text(new)
        yield from (f"{first}+number" for first in _propose_affixes(old, text or "", is_supported=False))
        for first in ("number", "number:,"):
            number = apply_transformation(first, old)
            if number is not None:
                yield from (f"{first}+{second}" for second in _propose_steps(number, new))


def _explains(name: str, old: Any, new: Any) -> bool:
    result = apply_transformation(name, old)
    return result is not None and _is_same(result, new)


def _name(kind: str, parameter: str) -> str:
    return f"{kind}:{parameter.replace('%', '%25').replace('+', '%2B')}"


def _is_scalar(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT_CHARS and value.isprintable()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and abs(value) < MAX_SCALED_NUMBER


def _is_same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _to_text(value: Any) -> str | None:
    return value if isinstance(value, str) else f"{Decimal(repr(value)):f}" if _is_scalar(value) else None


def _core_of(text: str) -> str:
    return _CORE_GAP.sub("", text).casefold()


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def _count_digits(number: int | float) -> int:
    """Return the number of significant digits."""
    return len(f"{Decimal(repr(number)):f}".replace(".", "").strip("-0"))


def _is_boundary(before: str, after: str) -> bool:
    return not (before.isalnum() and after.isalnum()) or before.isdigit() != after.isdigit()


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
        return affix[1:].lower() in _EXTENSIONS
    return _TAG.fullmatch(affix) is not None or (text.isdigit() and _UNIT.fullmatch(affix) is not None)


def _describe_step(step: str) -> str:
    kind, _, parameter = step.partition(":")
    parameter = parameter.replace("%2B", "+").replace("%25", "%")
    if kind == "without":
        words = list(dict.fromkeys(_SEPARATORS.get(character, repr(character)) for character in parameter))
        return f"without {' and '.join(filter(None, (', '.join(words[:-1]), *words[-1:])))}"
    if kind == "swap":
        before, after = (_SEPARATORS.get(sign, repr(sign)) for sign in (parameter[:1], parameter[2:]))
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
    return kind in _TEXT_FUNCTIONS and kind not in _LOSSY
