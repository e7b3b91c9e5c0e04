"""Words and what they mean: another spelling of the same word, another unit, the opposite.

A name or a value is taken for another one only if it is the same word in another spelling. Tables of opposites, units
and similar words say which words only look alike.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from mulligan.core.privileged_arguments import split_words
from mulligan.core.quantity_arguments import argument_name
from mulligan.recover.spelling import (
    MAX_COMPARED_CHARS,
    edit_distance,
    extract_digits,
    normalize_name,
    normalize_spelling,
    strip_quotes,
)

MIN_WORD_LETTERS = 3
"""Letters of an enum member from which on its case says nothing: `GB` and `Gb` differ."""

_OPPOSITES = """
    min minimum / max maximum; first / last latest; before / after; from / to; since / until; start begin / end stop
    finish; source src origin / target destination dest dst; asc ascending / desc descending; older old / newer new; gt
    gte / lt lte; above over / below under; greater more / less fewer; high higher upper top / low lower bottom; left /
    right; up / down; on / off; open opened / close closed; in / out; add create insert append attach / remove delete
    drop detach; allow allowed permit grant / deny denied block blocked forbid revoke; lock / unlock; show shown visible
    / hide hidden invisible; public / private internal; read / write; send sender sent / receive receiver received
    recipient; buy buyer / sell seller; bid / ask; credit / debit; deposit / withdraw withdrawal; income gain profit /
    expense loss; win won / lose lost; true yes / false no; pass passed success succeeded / fail failed failure error;
    accept accepted approve approved confirm / reject rejected decline declined cancel; push / pull; quiet silent /
    verbose; dry / live real; prev previous / next; forward / backward back; with / without; keep retain / discard drop
    purge; all / none any; parent / child; lat latitude / lon lng long longitude; width / height; row / column col; x /
    y; east / west; north / south; am / pm; day / night; gross / net; long / short; arrival arrive / departure depart;
    pickup / dropoff; checkin / checkout; local / remote; absolute / relative; fast / slow; hot heat / cold cool;
    male / female; client / server; primary / secondary; prod production / dev development test
    staging; horizontal / vertical; active / passive; manual / automatic auto; single / multiple; hard / soft; strict /
    lenient; start / stop; lender / borrower; landlord / tenant; teacher / student; and / or; live / test; import /
    export; positive / negative; increase / decrease; raise / reduce; earliest / latest; pre / post
"""
_NEGATIONS = frozenset("not no non never without skip ignore disable disabled un dont exclude except omit".split())
"""Words that turn a name into its opposite: `verify` and `no_verify`."""
_NEGATIVE_PREFIXES = {"un": 3, "non": 3, "dis": 3, "anti": 3, "in": 5, "im": 5, "ir": 5, "il": 5, "de": 5}
"""Prefixes that turn a word into its opposite, and the letters that this word has at least: not `input` of `put`."""
_PREFIX_PAIRS = [
    pair
    for first, second in map(str.split, "in ex;im ex;in out;en dis;en de;in de;up down;over under;pre post".split(";"))
    for pair in ((first, second), (second, first))
]
_SUFFIX_PAIRS = [("er", "ee"), ("ee", "er"), ("or", "ee"), ("ee", "or"), ("ful", "less"), ("less", "ful")]

_WORD_ENDINGS = ("er", "ee", "ed", "en", "or", "es", "ly")
_UNIT_WORDS = frozenset(
    "ns us ms millis milliseconds s sec secs second seconds min mins minute minutes h hr hrs hour hours day days week "
    "weeks month months quarter quarters year years mm cm m meter meters metre metres km kilometers mile miles ft feet "
    "inch inches yard yards mg g gram grams kg lb lbs pound pounds oz ton tons tonnes l liter liters litre litres ml "
    "gal gallon gallons b byte bytes kb mb gb tb kib mib gib bit bits bps kbps mbps gbps w kw mw gw wh kwh mwh v volts "
    "a amps hz khz mhz ghz c f celsius fahrenheit kelvin percent pct percentage ratio cent cents usd eur gbp euro "
    "euros dollar dollars mph kmh kph rpm deg degrees rad radians px pt em".split()
)
"""Words of names that say in which unit a number is."""
_UNIT_SYMBOLS = frozenset(
    "wh kwh mwh gwh mah hz khz mhz ghz bit kib mib gib tib pib bps kbps mbps gbps mol kpa mpa hpa psi rpm dpi mph kmh "
    "mcg mmol min sec msec usec nsec kva mva kvar dbm dba ppm ppb".split()
)
"""Symbols of units that look like words. The case of their first letter is a factor."""


def is_same_word(before: Any, after: Any) -> bool:
    """Return whether two texts are one word in another case or with other separators.

    Not a unit, a code with digits or two letters: `MW` is not `mW`, `1M` is not `1m`.
    """
    if not isinstance(before, str) or not isinstance(after, str):
        return False
    if strip_quotes(before) == after:
        return True
    letters = normalize_name(after)
    is_word = len(letters) >= MIN_WORD_LETTERS and letters.isalpha() and letters not in _UNIT_SYMBOLS
    return is_word and not _has_unit_case(after) and normalize_spelling(before) == normalize_spelling(after)


def _has_unit_case(text: str) -> bool:
    """Return whether a short text mixes cases as symbols do: `kWh`, `mAh`, `dB`."""
    return len(text) <= 4 and text not in (text.lower(), text.upper(), text.title())


def is_same_code(before: str, after: str) -> bool:
    """Return whether two texts are one code with a word in it, in another case: `EU-WEST-1` and `eu-west-1`."""
    has_word = any(len(part) >= MIN_WORD_LETTERS for part in re.findall(r"[^\W\d_]+", after))
    is_unit = _has_unit_case(after) or any(word in _UNIT_SYMBOLS for word in lower_words(after))
    return has_word and not is_unit and normalize_name(before) == normalize_name(after)


def is_same_name(name: str, target: str, value: Any = None) -> bool:
    """Return whether a name is another spelling of an argument's name: case, separators, a plural, one typing error.

    A number under a singular name says which one, under a plural how many: `day=3` is not `days=3`.
    """
    name, target = argument_name(name), argument_name(target)
    if normalize_name(name) == normalize_name(target):
        return True
    if are_opposites(name, target):
        return False
    words, target_words = lower_words(name), lower_words(target)
    if len(words) != len(target_words):
        # The error may hide a boundary: `pedalPPosition`. A further word is a further meaning: `radius`, `radius_m`.
        letters, target_letters = normalize_name(name), normalize_name(target)
        # Letters of a name from which on its words are compared as one.
        return len(letters) >= 8 and _is_slip(letters, target_letters, must_keep_ends=True)
    differing = [(one, other) for one, other in zip(words, target_words, strict=True) if one != other]
    typos = [pair for pair in differing if _singular(pair[0]) != _singular(pair[1])]
    if isinstance(value, int | float) and words[-1] != target_words[-1] and not typos:
        return False
    return len(typos) <= 1 and all(_is_slip(*pair) for pair in typos)


def _is_slip(one: str, other: str, *, must_keep_ends: bool = False) -> bool:
    """Return whether two words differ by one typing error that makes no other word of them.

    Two letters in the wrong order or a letter typed twice are errors in any word. A missing or a wrong letter may make
    another word of a short one (`date`, `data`), or another form of a long one (`payer`, `payee`).
    """
    short, long = sorted((one, other), key=len)
    if extract_digits(one) != extract_digits(other) or edit_distance(one, other, 1) > 1:
        return False
    if f"{min(one, other)}/{max(one, other)}" in _load_similar_words():
        return False
    if sorted(one) == sorted(other) or any(
        long[:index] + long[index + 1 :] == short and long[index] == long[index - 1] for index in range(1, len(long))
    ):
        return True
    # Letters of a word from which on a wrong letter at any place is a typing error.
    if one[0] != other[0] or (len(short) < 5 and (one[-1] != other[-1] or len(one) == len(other))):
        return False
    ends = {word[-2:] for word in (one, other)}
    return one[-1] == other[-1] or (not must_keep_ends and ends.isdisjoint(_WORD_ENDINGS))


def is_unit(text: str) -> bool:
    """Return whether a text is a unit or its symbol: `kWh`, `miles`. A short text may be one."""
    name = normalize_name(text)
    return len(name) < MIN_WORD_LETTERS or name in _UNIT_WORDS or name in _UNIT_SYMBOLS


def names_other_unit(name: str, target: str) -> bool:
    """Return whether a target names a unit that the name does not: `weeks` for `months`, `radius_m` for `radius`."""
    return not _UNIT_WORDS.isdisjoint(set(lower_words(target)) - set(lower_words(name)))


@functools.cache
def _load_similar_words() -> frozenset[str]:
    """Return the pairs of common English words that one typing error turns into each other, such as `charge/change`."""
    # As bytes: read_text imports the codec, and a child forked meanwhile would wait for that import forever.
    return frozenset(Path(__file__).with_name("similar_words.txt").read_bytes().decode().split())


def are_opposites(one: str, other: str) -> bool:
    """Return whether two names or values mean the opposite of each other: include and exclude, min and max."""
    words, other_words = _comparable_words(one), _comparable_words(other)
    own_words, foreign_words = words - other_words, other_words - words
    has_negation = not _NEGATIONS.isdisjoint(own_words | foreign_words)
    if has_negation and (words & other_words or not own_words or not foreign_words):
        return True
    return any(_is_opposite_word(first, second) for first in own_words for second in foreign_words)


def _comparable_words(name: str) -> set[str]:
    *words, last = map(_singular, lower_words(name) or [""])
    return {*words, "number" if words and last == "no" else last}  # `flight_no` is a number, `no_stops` a negation


def _is_opposite_word(one: str, other: str) -> bool:
    if other in _build_opposites().get(one, ()):
        return True
    short, long = sorted((one, other), key=len)
    if len(short) >= _NEGATIVE_PREFIXES.get(long.removesuffix(short), len(short) + 1):
        return True
    return any(
        one.startswith(first) and other.startswith(second) and one[len(first) :] == other[len(second) :] != ""
        for first, second in _PREFIX_PAIRS
    ) or any(
        one.endswith(first) and other.endswith(second) and one[: -len(first)] == other[: -len(second)] != ""
        for first, second in _SUFFIX_PAIRS
    )


@functools.cache
def _build_opposites() -> dict[str, frozenset[str]]:
    opposites: dict[str, frozenset[str]] = {}
    for pair in _OPPOSITES.split(";"):
        sides = [side.split() for side in pair.split("/")]
        for words, others in (sides, sides[::-1]):
            for word in words:
                opposites[_singular(word)] = opposites.get(_singular(word), frozenset()).union(map(_singular, others))
    return opposites


def lower_words(name: str) -> list[str]:
    return [word.casefold() for word in split_words(name[:MAX_COMPARED_CHARS])]


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word
