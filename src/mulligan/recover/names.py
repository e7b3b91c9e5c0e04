"""Matching of misspelled names and values against known ones.

Only typing mistakes match, never another word: the first letter and all digits must be equal, so that `inactive` does
not match `active`, nor `v1` match `v2`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mulligan.core.privileged_arguments import split_words

MAX_COMPARED_CHARS = 200
"""Characters of a name or a value that are compared."""
MAX_COMPARED_NAMES = 500
"""Known names that are compared. With more, a match is not reliable."""
MIN_TOOL_SIMILARITY = 0.6
"""Minimum similarity of a tool name to be suggested."""

MIN_TYPO_LETTERS = 5
"""Letters of a word from which on a wrong letter at any place is a typing error."""
MIN_JOINED_LETTERS = 8
"""Letters of a name from which on its words are compared as one."""
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


class NameMatch(NamedTuple):
    """A matched name and how it matched."""

    name: str
    method: str
    """spelling: case, separators, quotes. slip: one or two letters. part: one name contains the words of the other."""


def normalize_name(text: str) -> str:
    """Return only letters and digits, in one case."""
    casefolded = unicodedata.normalize("NFKC", text[:MAX_COMPARED_CHARS]).casefold()
    return "".join(character for character in casefolded if character.isalnum())


def match_name(text: str, known_names: Iterable[str]) -> NameMatch | None:
    """Return the one known name that this text misspells, or None if there is none or more than one."""
    names = list(known_names)
    if not isinstance(text, str) or len(names) > MAX_COMPARED_NAMES:
        return None
    normalized = normalize_name(text)
    if not normalized:
        return None
    same = [name for name in names if normalize_name(name) == normalized]
    if len(same) == 1:
        return NameMatch(same[0], "spelling")
    if same:  # several names differ only in case: accept an exact match only
        exact = [name for name in same if name.strip() == text.strip()]
        return NameMatch(exact[0], "spelling") if len(exact) == 1 else None
    typos = [
        name
        for name in names
        if is_typo(normalized, normalize_name(name))
        and not _differs_in_short_word(text, name)
        and not are_opposites(text, name)
    ]
    return NameMatch(typos[0], "slip") if len(typos) == 1 else None


def is_typo(one: str, other: str) -> bool:
    """Return whether two texts differ by a typing mistake.

    One edit is allowed, or two in a long word, but none in the first letter or in a digit.
    """
    length = min(len(one), len(other))
    if length < 4 or one[0] != other[0] or _digits(one) != _digits(other):
        return False
    allowed = 1 if length < 8 else 2
    return abs(len(one) - len(other)) <= allowed and edit_distance(one, other, allowed) <= allowed


def _differs_in_short_word(text: str, name: str) -> bool:
    """Return whether they differ in a word of one or two letters, which distinguishes names: `city_a` and `city_b`."""
    one, other = split_words(text[:MAX_COMPARED_CHARS].casefold()), split_words(name[:MAX_COMPARED_CHARS].casefold())
    return len(one) == len(other) and any(
        left != right and max(len(left), len(right)) <= 2 for left, right in zip(one, other, strict=True)
    )


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def edit_distance(one: str, other: str, max_distance: int) -> int:
    """Return the edit distance with transpositions. Values above `max_distance` are not exact."""
    if len(one) > MAX_COMPARED_CHARS or len(other) > MAX_COMPARED_CHARS:
        return max_distance + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        row = [i]
        for j, right in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and right == one[i - 2]:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > max_distance:
            return max_distance + 1
        before, last = last, row
    return last[-1]


def strip_quotes(text: str) -> str:
    """Return a text without surrounding spaces and quotes."""
    bare = text.strip()
    while len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in "\"'`":
        bare = bare[1:-1].strip()
    return bare


def normalize_spelling(text: str) -> str:
    """Return a text without quotes around it, case, and separators between words. `1.2`, `-1` and `c++` keep theirs."""
    unquoted_text = strip_quotes(unicodedata.normalize("NFKC", text[:MAX_COMPARED_CHARS]).casefold())
    return re.sub(r"(?<=[^\W_])[\s_./:-]{1,5}(?=[^\W\d_])|(?<=[^\W\d_])[\s_./:-]{1,5}(?=[^\W_])", "", unquoted_text)


def argument_name(path: str) -> str:
    """Return the last name in a path, without positions of a list: `filter.days` and `days.0` are both `days`."""
    return next((part for part in reversed(path[:MAX_COMPARED_CHARS].split(".")) if not part.isdigit()), "")


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


def is_same_name(path: str, target: str, value: Any = None) -> bool:
    """Return whether a name is another spelling of an argument's name: case, separators, a plural, one typing error.

    A number under a singular name says which one, under a plural how many: `day=3` is not `days=3`.
    """
    name, target = argument_name(path), argument_name(target)
    if normalize_name(name) == normalize_name(target):
        return True
    if are_opposites(name, target):
        return False
    words, target_words = lower_words(name), lower_words(target)
    if len(words) != len(target_words):
        # The error may hide a boundary: `pedalPPosition`. A further word is a further meaning: `radius`, `radius_m`.
        letters, target_letters = normalize_name(name), normalize_name(target)
        return len(letters) >= MIN_JOINED_LETTERS and _is_slip(letters, target_letters, must_keep_ends=True)
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
    if _digits(one) != _digits(other) or edit_distance(one, other, 1) > 1:
        return False
    if f"{min(one, other)}/{max(one, other)}" in _load_similar_words():
        return False
    if sorted(one) == sorted(other) or any(
        long[:index] + long[index + 1 :] == short and long[index] == long[index - 1] for index in range(1, len(long))
    ):
        return True
    if one[0] != other[0] or (len(short) < MIN_TYPO_LETTERS and (one[-1] != other[-1] or len(one) == len(other))):
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
    return frozenset(Path(__file__).with_name("similar_words.txt").read_text(encoding="ascii").split())


def are_opposites(one: str, other: str) -> bool:
    """Return whether two names or values mean the opposite of each other: include and exclude, min and max."""
    words, other_words = _comparable_words(one), _comparable_words(other)
    left, right = words - other_words, other_words - words
    if not left and not right:
        return False
    if (left | right) & _NEGATIONS and (not left or not right or words & other_words):
        return True
    return any(_is_opposite_word(first, second) for first in left for second in right)


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
    """Return the words of a name in lower case."""
    return [word.casefold() for word in split_words(name[:MAX_COMPARED_CHARS])]


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word


def match_by_words(text: str, known_names: Iterable[str]) -> list[str]:
    """Return the known names that contain all words of the text or the reverse, such as `type` and `scale_type`."""
    text_stems = stem_words(text[:MAX_COMPARED_CHARS])
    if not text_stems:
        return []
    stems_by_name = {name: stem_words(name[:MAX_COMPARED_CHARS]) for name in known_names}
    matches = [name for name, stems in stems_by_name.items() if stems and (text_stems <= stems or stems <= text_stems)]
    return matches or [
        name
        for name in stems_by_name
        if "" != normalize_name(text) == _initials(name) or "" != normalize_name(name) == _initials(text)
    ]


def is_abbreviation(one: str, other: str) -> bool:
    """Return whether one name abbreviates the other: `addr` and `address`, `qty` and `quantity`, `mail` and `email`."""
    short, long = sorted((normalize_name(one), normalize_name(other)), key=len)
    if len(short) < 3 or short == long:
        return False
    if short in long:
        return True
    letters = iter(long)
    return short[0] == long[0] and all(letter in letters for letter in short)


def _initials(name: str) -> str:
    """Return the initials of a name: `dob` for `date_of_birth`."""
    parts = split_words(name[:MAX_COMPARED_CHARS])
    return "".join(part[0] for part in parts).casefold() if len(parts) > 1 else ""


def stem_words(text: str) -> frozenset[str]:
    """Return the words of a text in lower case and without the `s` of a plural."""
    lower_words = (word.casefold() for word in split_words(text))
    return frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in lower_words)


# What models add to a name: control tokens of chat templates with everything after them, an API namespace, call
# brackets, a counter.
_TOKEN = re.compile(r"<\|[^|>]{0,40}\|?>?|\|>|</?[A-Za-z_]{1,30}>")
_NAMESPACE = re.compile(
    r"(?:functions?|tools?|default_api|api|multi_tool_use|namespace|call|tool_call|function_call)(?:\.|::|:|/|__)", re.I
)
_WORDS_AFTER = frozenset("commentary analysis final json code to assistant function tool call".split())


def match_tool_name(text: str, known_names: Sequence[str]) -> NameMatch | None:
    """Return the known tool that a name refers to, despite junk around it or another case.

    `junk` and `spelling` leave exactly one name. `part` matches the last segment of a longer known name: `create_mix`
    for `music.create_mix`; `other` is the reverse. `slip` is a typing mistake.
    """
    if text in known_names or len(known_names) > MAX_COMPARED_NAMES:
        return None
    bare = _strip_junk(text)
    if bare and bare in known_names:
        return NameMatch(bare, "junk")
    for name in (text, bare):
        match = match_name(name, known_names) if name else None
        if match is not None and match.method == "spelling":
            return NameMatch(match.name, "spelling")
    requested_name = bare or text
    tail = normalize_name(_last_segment(requested_name))
    if len(tail) >= 3:
        tails = [name for name in known_names if normalize_name(_last_segment(name)) == tail]
        if len(tails) == 1:
            # Different namespaces are different tools, even if the last segment is equal.
            if _last_segment(requested_name) == requested_name:
                return NameMatch(tails[0], "part")
            return NameMatch(tails[0], "other") if _last_segment(tails[0]) == tails[0] else None
    return match_name(bare or text, known_names)


def nearest_tool_names(text: str, known_names: Sequence[str], limit: int = 3) -> list[str]:
    """Return the most similar known tool names, likeliest first."""
    from difflib import get_close_matches  # lazy: needed for unknown tools only

    match = match_tool_name(text, known_names)
    folded_names = {name[:MAX_COMPARED_CHARS].casefold(): name for name in known_names[:MAX_COMPARED_NAMES]}
    near = get_close_matches(text[:MAX_COMPARED_CHARS].casefold(), folded_names, limit, MIN_TOOL_SIMILARITY)
    ranked = [*([match.name] if match is not None else []), *(folded_names[name] for name in near)]
    return [name for name in dict.fromkeys(ranked) if not are_opposites(text, name)][:limit]


def _strip_junk(text: str) -> str:
    """Remove everything from a name that cannot be part of one."""
    name = unicodedata.normalize("NFKC", text[:MAX_COMPARED_CHARS])
    token = _TOKEN.search(name)
    if token is not None:
        # The name precedes the first control token, or follows it if nothing precedes it.
        head = name[: token.start()].strip()
        name = head or _TOKEN.sub(" ", name)
    name = re.sub(r"\(.*$|\{.*$", "", name.strip(), flags=re.DOTALL)
    while (shorter := _NAMESPACE.sub("", name, count=1)) != name and _NAMESPACE.match(name):
        name = shorter
    parts = re.split(r"\s+", name.strip(" \t\r\n\"'`*.,:;#<>|=()[]{}"))
    while len(parts) > 1 and parts[-1].casefold() in _WORDS_AFTER:
        parts.pop()
    name = " ".join(parts)
    return re.sub(r":\d{1,4}$", "", name)


def _last_segment(name: str) -> str:
    return re.split(r"\.|::|/|__", name)[-1]
