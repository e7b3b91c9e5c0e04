"""Candidate values for a rejected argument from earlier calls of the same run.

Only opaque identifiers of the same run are used, and only if the field name fits. A value that differs only in
punctuation, case or spaces may be applied automatically; all others are suggestions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from mulligan.privileged_arguments import words
from mulligan.records import Change
from mulligan.recover.near import distance, plain
from mulligan.recover.schema import Path
from mulligan.recover.tool import Seen

CALLS = 40
"""Earlier calls that are searched, latest first."""
LEAVES = 4000
"""Values of these calls that are searched."""
READ = 100_000
"""Characters of a result that are parsed."""
WIDE = 20
"""Values of one call, or of one list in it, that are searched."""
LONG = 120
"""A longer value is text and not an identifier."""
_VAGUE = frozenset("id ids name names number no num code key value the a an of is s".split())
"""Words that do not describe what an identifier refers to."""
_ENDS = (".", "_", "-", ":")
"""Separators after which a longer identifier continues."""
_TOKEN = re.compile(r"[#@$]?[A-Za-z0-9][\w.@:/#-]*[\w]|[#@$]?[A-Za-z0-9]")

_PAIR = re.compile(r'"([^"\\]{1,120})"\s*:\s*(?:"([^"\\]{1,120})"|(-?[0-9]{1,18})(?![.0-9])|(\{))')


class Found(NamedTuple):
    """A value of an earlier call, with its field name."""

    field: str
    value: str
    age: int
    """0 for the latest call."""
    origin: str


class Guess(NamedTuple):
    """A candidate value for one argument."""

    path: Path
    after: Any
    family: str
    evidence: str


def harvest(seen: Sequence[Seen]) -> list[Found]:
    """Return the identifiers that occurred in this run, latest first."""
    found: dict[tuple[str, str, int], Found] = {}
    left = LEAVES
    for age, call in enumerate(reversed(seen[-CALLS:])):
        sides = [("call", call.arguments)]
        if call.outcome == "success":
            sides.append(("result", _read(call.result)))
        for side, value in sides:
            if side == "call" and call.outcome != "success":
                continue  # a failed call does not prove that its values exist
            for field, leaf in _leaves(value, "", 0):
                left -= 1
                if left < 0:
                    return list(found.values())
                found.setdefault((field, leaf, age), Found(field, leaf, age, f"{side} of {call.tool}"))
    return list(found.values())


def _read(result: Any) -> Any:
    if isinstance(result, str):
        text = result[:READ].strip()
        if text[:1] in ("{", "["):
            try:
                return msgspec.json.decode(text)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                return _pairs(text)
        return text
    return result


def _pairs(text: str) -> list[dict[str, Any]]:
    """Return the pairs of a truncated JSON text, and the keys of objects that are keyed by identifier."""
    found: list[dict[str, Any]] = []
    table = ""
    for name, text_value, number, opens in _PAIR.findall(text):
        if opens:
            if table and _is_opaque(name):
                found.append({table: name})
            else:
                table = name
        else:
            found.append({name: text_value or number})
    return found


def _leaves(value: Any, field: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > 12:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(name, str):
                if isinstance(inner, Mapping) and _is_opaque(name):
                    yield field, name  # an object keyed by identifier
                yield from _leaves(inner, name, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, field, depth + 1)
    elif isinstance(value, str):
        if value and len(value) <= LONG and "\n" not in value:
            yield field, value
        elif value:
            for match in _TOKEN.finditer(value[:5000]):
                if _is_opaque(match.group()):
                    yield field, match.group()
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        yield field, str(value)


def _is_opaque(text: str) -> bool:
    """Return whether a text looks like an identifier rather than a word."""
    return len(text) <= LONG and " " not in text and (any(c.isdigit() for c in text) or "_" in text or "." in text)


def guesses(
    arguments: Mapping[str, Any], error: str, names: Sequence[str], tool: str, seen: Sequence[Seen]
) -> list[Guess]:
    """Return candidate values for the arguments that an error can refer to, likeliest first.

    `names` are the arguments of the schema. A missing one may be the cause.
    """
    found = harvest(seen)
    made: list[Guess] = []
    suspects = list(_suspects(arguments, error))
    records = list(_records(seen))
    for path, value in suspects:
        made += _same(path, value, found)
        made += _formed(path, value, tool, seen)
        made += _recorded(path, value, records)
        made += _answered(path, value, seen)
        made += _near(path, value, found)
    for path, value in suspects:
        made += _fitting(path, value, arguments, found, tool, seen)
    said = _topics(error)
    for name in names:
        if name not in arguments and _topics(name) & said:
            made += _fitting((name,), None, arguments, found, tool, seen)
    return made


def _suspects(arguments: Mapping[str, Any], error: str) -> Iterator[tuple[Path, str]]:
    """Yield the arguments that an error refers to: by value, else by name, else all."""
    leaves = [(path, value) for path, value in _texts(arguments, ()) if value and len(value) <= LONG]
    text = error[:2000]
    shown = [(path, value) for path, value in leaves if len(value) > 1 and _stands_in(value, text)]
    said = _topics(text)
    told = [(path, value) for path, value in leaves if _topics(_name(path)) & said]
    yield from (shown or told or leaves)[:WIDE]


def _stands_in(value: str, text: str) -> bool:
    """Return whether a text contains a value as a whole word, unlike the `no` in `not found`."""
    return value in text and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the strings and integers of a call with their paths, bounded in number."""
    if len(path) > 4:
        return
    if isinstance(value, Mapping):
        for name, inner in islice(value.items(), WIDE):
            if isinstance(name, str):
                yield from _texts(inner, (*path, name))
    elif isinstance(value, list):
        for at, inner in enumerate(value[:WIDE]):
            yield from _texts(inner, (*path, at))
    elif isinstance(value, str):
        yield path, value
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        yield path, str(value)


def _name(path: Path) -> str:
    return next((part for part in reversed(path) if isinstance(part, str)), "")


def _topics(text: str) -> frozenset[str]:
    found = (word.casefold() for word in words(text[:2000]))
    return frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in found) - _VAGUE


def _fits(field: str, name: str) -> bool:
    """Return whether two field names refer to the same thing: `order_id`, `orders`, `orderId`."""
    if plain(field) == plain(name):
        return True
    theirs, ours = _topics(field), _topics(name)
    return bool(theirs and ours) and (theirs == ours)


def _same(path: Path, value: str, found: list[Found]) -> list[Guess]:
    """Match an identifier that differs only in punctuation, case or spaces: `W123` for `#W123`."""
    spelt = plain(value)
    if len(spelt) < 2:
        return []
    same = {each.value: each for each in reversed(found) if each.value != value and plain(each.value) == spelt}
    if len(same) != 1 or any(each.value == value for each in found):
        return []
    (each,) = same.values()
    # S1: only an opaque identifier whose field name fits. A path does not qualify: `./a` and `a` may be two files.
    is_one = _is_opaque(each.value) and "/" not in each.value + value and _fits(each.field, _name(path))
    family = "same id" if is_one else "near id"
    return [Guess(path, each.value, family, f"{each.field or 'a value'} in the {each.origin}")]


def _near(path: Path, value: str, found: list[Found]) -> list[Guess]:
    """Match identifiers within one or two edits. They are only suggested, since each may be a different object."""
    spelt = plain(value)
    if len(spelt) < 3:
        return []
    near = []
    for each in found:
        other = plain(each.value)
        if other != spelt and each.value.startswith(value) and each.value[len(value) : len(value) + 1] in _ENDS:
            near.append((0, each.age, each))  # a file without its extension, an identifier without its number
        elif other != spelt and abs(len(other) - len(spelt)) <= 2:
            enough = 1 if len(spelt) < 6 else 2
            apart = distance(spelt, other, enough)
            if apart <= enough:
                near.append((apart, each.age, each))
    near.sort(key=lambda item: item[:2])
    return [
        Guess(path, each.value, "near id", f"{each.field or 'a value'} in the {each.origin}") for _, _, each in near[:2]
    ]


def _answered(path: Path, value: str, seen: Sequence[Seen]) -> list[Guess]:
    """Match the result of an earlier call with this value as argument: the code of a city, the id of a name."""
    spelt = plain(value)
    for call in reversed(seen[-CALLS:]):
        if call.outcome == "success" and isinstance(call.arguments, Mapping) and len(call.arguments) <= 3:
            if not any(plain(other) == spelt for _, other in _texts(call.arguments, ())):
                continue
            answers = {leaf for _, leaf in _leaves(_read(call.result), "", 0)}
            if len(answers) == 1 and _is_known(answer := answers.pop()) and spelt not in plain(answer):
                return [Guess(path, answer, "answered", f"what {call.tool} answered to {value[:40]}")]
    return []


def _is_known(text: str) -> bool:
    """Return whether a text is a code or an identifier, and not an amount or a path."""
    if text.isalnum():
        return 1 < len(text) <= 24 and (text.isupper() or any(c.isdigit() for c in text))
    return len(text) <= 60 and any(c.isdigit() for c in text) and any(c.isalpha() for c in text) and _is_word(text)


def _is_word(text: str) -> bool:
    return " " not in text and "/" not in text


class Record(NamedTuple):
    """An object in a result: its scalar values with their names, and both in normalized form."""

    call: int
    tool: str
    leaves: list[tuple[str, str, str, str]]


def _recorded(path: Path, value: str, records: Sequence[Record]) -> list[Guess]:
    """Match the id of a result object that contains the given value, such as the id of the item with that title.

    Also match an entry with that key: `{"kettle": "8834460"}`. The latest result with exactly one match counts.
    """
    name, spelt = _name(path), plain(value)
    found: dict[int, dict[str, tuple[str, str]]] = {}
    for call, tool, leaves in records if len(spelt) > 1 else ():
        if any(other == spelt and not _fits(field, name) for field, _, _, other in leaves):
            found.setdefault(call, {}).update(
                (leaf, (field, tool)) for field, leaf, _, _ in leaves if _fits(field, name)
            )
        for field, leaf, key, _ in leaves:
            if key == spelt and _is_known(leaf):
                found.setdefault(call, {})[leaf] = field, tool
    for answers in found.values():
        answers.pop(value, None)
        if len(answers) == 1:
            ((answer, (field, tool)),) = answers.items()
            evidence = f"{field} in the record of {value[:40]} that {tool} answered"
            return [Guess(path, answer, "same record", evidence)]
    return []


def _records(seen: Sequence[Seen]) -> Iterator[Record]:
    """Yield the objects in the results of this run, latest first, bounded in number."""
    left = LEAVES
    for age, call in enumerate(reversed(seen[-CALLS:])):
        rest: list[Any] = [_read(call.result)] if call.outcome == "success" else []
        while rest and left > 0:
            value = rest.pop()
            inside = list(islice(value.items(), left)) if isinstance(value, Mapping) else []
            told = [(name, str(leaf)) for name, leaf in inside if isinstance(name, str) and _is_scalar(leaf)]
            if told:
                yield Record(age, call.tool, [(name, leaf, plain(name), plain(leaf)) for name, leaf in told])
            elif isinstance(value, list | tuple):
                inside = [("", inner) for inner in value[:left]]
            left -= 1 + len(inside)
            rest.extend(inner for _, inner in reversed(inside) if isinstance(inner, Mapping | list | tuple))


def _is_scalar(value: Any) -> bool:
    return (isinstance(value, str) and 0 < len(value) <= LONG) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18
    )


def _formed(path: Path, value: str, tool: str, seen: Sequence[Seen]) -> list[Guess]:
    """Match the format of values that succeeded with this tool: a leading sign, or upper case."""
    worked = [
        other
        for call in seen[-CALLS:]
        if call.tool == tool and call.outcome == "success" and isinstance(call.arguments, Mapping)
        for place, other in _texts(call.arguments, ())
        if _name(place) == _name(path)
    ]
    if not worked or any(other == value for other in worked):
        return []
    signs = {other[:1] for other in worked}  # an empty value gives no sign
    if len(signs) == 1 and (sign := signs.pop()) and not sign.isalnum() and not value.startswith(sign):
        return [Guess(path, sign + value, "seen form", f"{tool} worked with {worked[-1]}")]
    if value.upper() != value and all(other.isupper() for other in worked):
        return [Guess(path, value.upper(), "seen form", f"{tool} worked with {worked[-1]}")]
    return []


def _fitting(
    path: Path,
    value: str | None,
    arguments: Mapping[str, Any],
    found: list[Found],
    tool: str,
    seen: Sequence[Seen],
) -> list[Guess]:
    """Match values with the same field name in this run that did not fail with this tool.

    Values that occurred together with the call's other values come first, such as the payment of the same order.
    """
    name = _name(path)
    others = {other for place, other in _texts(arguments, ()) if place != path and _is_opaque(other)}
    failed = {
        other
        for call in seen[-CALLS:]
        if call.tool == tool and call.outcome != "success"
        for tried in [list(_texts(call.arguments, ()))]
        if others <= {each for _, each in tried}
        for place, other in tried
        if _name(place) == name
    }
    fitting = [each for each in found if each.value != value and each.value not in failed and _fits(each.field, name)]
    beside = {each.age for each in found if each.value in others}
    fitting.sort(key=lambda each: each.age not in beside)
    options = list(dict.fromkeys(each.value for each in fitting))
    if not options:
        return []
    close = list(dict.fromkeys(each.value for each in fitting if each.age in beside))
    family = "only value" if len(options) == 1 else "one of several"
    evidence = {each.value: f"{each.field} in the {each.origin}" for each in reversed(fitting)}
    return [
        Guess(path, option, "beside" if close == [option] and len(options) > 1 else family, evidence[option])
        for option in options[:3]
    ]


def fillings(missing: Sequence[str], seen: Sequence[Seen]) -> dict[str, list[tuple[str, str]]]:
    """Return candidates for missing arguments: values of that field in earlier successful calls and results."""
    found = harvest(seen)
    made: dict[str, list[tuple[str, str]]] = {}
    for name in missing:
        fitting = [each for each in found if plain(each.field) == plain(name)] or [
            each for each in found if _fits(each.field, name)
        ]
        options = [value for value in dict.fromkeys(each.value for each in fitting) if " " not in value][:3]
        origins = {each.value: f"{each.field} in the {each.origin}" for each in reversed(fitting)}
        made[name] = [(option, origins[option]) for option in options]
    return made


def changed(arguments: Mapping[str, Any], guess: Guess) -> Change:
    before: Any = arguments
    for part in guess.path:
        before = before[part] if not isinstance(before, Mapping) or part in before else None
    path = ".".join(map(str, guess.path))
    return Change(path=path, how="substitute", before=before, after=guess.after, from_="run")
