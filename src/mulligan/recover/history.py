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

from mulligan.core.privileged_arguments import split_words
from mulligan.core.records import Change
from mulligan.recover.names import edit_distance, normalize_name
from mulligan.recover.schema import Path
from mulligan.recover.tool import EarlierCall

MAX_EARLIER_CALLS = 40
"""Earlier calls that are searched, latest first."""
MAX_LEAF_VALUES = 4000
"""Values of these calls that are searched."""
MAX_READ_CHARS = 100_000
"""Characters of a result that are parsed."""
MAX_VALUES_PER_CALL = 20
"""Values of one call, or of one list in it, that are searched."""
MAX_IDENTIFIER_CHARS = 120
"""A longer value is text and not an identifier."""
_GENERIC_WORDS = frozenset("id ids name names number no num code key value the a an of is s".split())
"""Words that do not describe what an identifier refers to."""
_IDENTIFIER_SEPARATORS = (".", "_", "-", ":")
"""Separators after which a longer identifier continues."""
_TOKEN = re.compile(r"[#@$]?[A-Za-z0-9][\w.@:/#-]*[\w]|[#@$]?[A-Za-z0-9]")

_PAIR = re.compile(r'"([^"\\]{1,120})"\s*:\s*(?:"([^"\\]{1,120})"|(-?[0-9]{1,18})(?![.0-9])|(\{))')


class SeenValue(NamedTuple):
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
    strategy: str
    evidence: str


def collect_identifiers(earlier_calls: Sequence[EarlierCall]) -> list[SeenValue]:
    """Return the identifiers that occurred in this run, latest first."""
    values_by_key: dict[tuple[str, str, int], SeenValue] = {}
    remaining = MAX_LEAF_VALUES
    for age, call in enumerate(reversed(earlier_calls[-MAX_EARLIER_CALLS:])):
        sides = [("call", call.arguments)]
        if call.outcome == "success":
            sides.append(("result", _parse_result(call.result)))
        for side, value in sides:
            if side == "call" and call.outcome != "success":
                continue  # a failed call does not prove that its values exist
            for field, leaf in _iter_leaves(value, "", 0):
                remaining -= 1
                if remaining < 0:
                    return list(values_by_key.values())
                values_by_key.setdefault((field, leaf, age), SeenValue(field, leaf, age, f"{side} of {call.tool}"))
    return list(values_by_key.values())


def _parse_result(result: Any) -> Any:
    if isinstance(result, str):
        text = result[:MAX_READ_CHARS].strip()
        if text[:1] in ("{", "["):
            try:
                return msgspec.json.decode(text)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                return _scan_pairs(text)
        return text
    return result


def _scan_pairs(text: str) -> list[dict[str, Any]]:
    """Return the pairs of a truncated JSON text, and the keys of objects that are keyed by identifier."""
    pairs: list[dict[str, Any]] = []
    table = ""
    for name, text_value, number, opens in _PAIR.findall(text):
        if opens:
            if table and _is_opaque(name):
                pairs.append({table: name})
            else:
                table = name
        else:
            pairs.append({name: text_value or number})
    return pairs


def _iter_leaves(value: Any, field: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > 12:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(name, str):
                if isinstance(inner, Mapping) and _is_opaque(name):
                    yield field, name  # an object keyed by identifier
                yield from _iter_leaves(inner, name, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _iter_leaves(inner, field, depth + 1)
    elif isinstance(value, str):
        if value and len(value) <= MAX_IDENTIFIER_CHARS and "\n" not in value:
            yield field, value
        elif value:
            for match in _TOKEN.finditer(value[:5000]):
                if _is_opaque(match.group()):
                    yield field, match.group()
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        yield field, str(value)


def _is_opaque(text: str) -> bool:
    """Return whether a text looks like an identifier rather than a word."""
    return (
        len(text) <= MAX_IDENTIFIER_CHARS
        and " " not in text
        and (any(c.isdigit() for c in text) or "_" in text or "." in text)
    )


def candidate_values(
    arguments: Mapping[str, Any], error: str, names: Sequence[str], tool: str, earlier_calls: Sequence[EarlierCall]
) -> list[Guess]:
    """Return candidate values for the arguments that an error can refer to, likeliest first.

    `names` are the arguments of the schema. A missing one may be the cause.
    """
    seen_values = collect_identifiers(earlier_calls)
    candidates: list[Guess] = []
    suspects = list(_find_suspects(arguments, error))
    records = list(iter_answer_records(earlier_calls))
    for path, value in suspects:
        candidates += _match_same_identifier(path, value, seen_values)
        candidates += _match_seen_format(path, value, tool, earlier_calls)
        candidates += _match_answer_record(path, value, records)
        candidates += _match_earlier_answer(path, value, earlier_calls)
        candidates += _match_similar_identifier(path, value, seen_values)
    for path, value in suspects:
        candidates += _match_field_values(path, value, arguments, seen_values, tool, earlier_calls)
    error_topics = _extract_topics(error)
    for name in names:
        if name not in arguments and _extract_topics(name) & error_topics:
            candidates += _match_field_values((name,), None, arguments, seen_values, tool, earlier_calls)
    return candidates


def _find_suspects(arguments: Mapping[str, Any], error: str) -> Iterator[tuple[Path, str]]:
    """Yield the arguments that an error refers to: by value, else by name, else all."""
    leaves = [
        (path, value) for path, value in _iter_texts(arguments, ()) if value and len(value) <= MAX_IDENTIFIER_CHARS
    ]
    text = error[:2000]
    shown_values = [(path, value) for path, value in leaves if len(value) > 1 and _shows_value(value, text)]
    error_topics = _extract_topics(text)
    named_values = [(path, value) for path, value in leaves if _extract_topics(_field_name(path)) & error_topics]
    yield from (shown_values or named_values or leaves)[:MAX_VALUES_PER_CALL]


def _shows_value(value: str, text: str) -> bool:
    """Return whether a text contains a value as a whole word, unlike the `no` in `not found`."""
    return value in text and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def _iter_texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the strings and integers of a call with their paths, bounded in number."""
    if len(path) > 4:
        return
    if isinstance(value, Mapping):
        for name, inner in islice(value.items(), MAX_VALUES_PER_CALL):
            if isinstance(name, str):
                yield from _iter_texts(inner, (*path, name))
    elif isinstance(value, list):
        for at, inner in enumerate(value[:MAX_VALUES_PER_CALL]):
            yield from _iter_texts(inner, (*path, at))
    elif isinstance(value, str):
        yield path, value
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        yield path, str(value)


def _field_name(path: Path) -> str:
    return next((part for part in reversed(path) if isinstance(part, str)), "")


def _extract_topics(text: str) -> frozenset[str]:
    lower_words = (word.casefold() for word in split_words(text[:2000]))
    return (
        frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in lower_words) - _GENERIC_WORDS
    )


def _is_same_field(field: str, name: str) -> bool:
    """Return whether two field names refer to the same thing: `order_id`, `orders`, `orderId`."""
    if normalize_name(field) == normalize_name(name):
        return True
    theirs, ours = _extract_topics(field), _extract_topics(name)
    return bool(theirs and ours) and (theirs == ours)


def _match_same_identifier(path: Path, value: str, seen_values: list[SeenValue]) -> list[Guess]:
    """Match an identifier that differs only in punctuation, case or spaces: `W123` for `#W123`."""
    spelt = normalize_name(value)
    if len(spelt) < 2:
        return []
    same = {
        seen_value.value: seen_value
        for seen_value in reversed(seen_values)
        if seen_value.value != value and normalize_name(seen_value.value) == spelt
    }
    if len(same) != 1 or any(seen_value.value == value for seen_value in seen_values):
        return []
    (identical,) = same.values()
    # S1: only an opaque identifier whose field name fits. A path does not qualify: `./a` and `a` may be two files.
    is_one = (
        _is_opaque(identical.value)
        and "/" not in identical.value + value
        and _is_same_field(identical.field, _field_name(path))
    )
    strategy = "same id" if is_one else "near id"
    return [Guess(path, identical.value, strategy, f"{identical.field or 'a value'} in the {identical.origin}")]


def _match_similar_identifier(path: Path, value: str, seen_values: list[SeenValue]) -> list[Guess]:
    """Match identifiers within one or two edits. They are only suggested, since each may be a different object."""
    spelt = normalize_name(value)
    if len(spelt) < 3:
        return []
    near = []
    for seen_value in seen_values:
        other = normalize_name(seen_value.value)
        if (
            other != spelt
            and seen_value.value.startswith(value)
            and seen_value.value[len(value) : len(value) + 1] in _IDENTIFIER_SEPARATORS
        ):
            near.append(
                (0, seen_value.age, seen_value)
            )  # a file without its extension, an identifier without its number
        elif other != spelt and abs(len(other) - len(spelt)) <= 2:
            max_edits = 1 if len(spelt) < 6 else 2
            edits = edit_distance(spelt, other, max_edits)
            if edits <= max_edits:
                near.append((edits, seen_value.age, seen_value))
    near.sort(key=lambda item: item[:2])
    return [
        Guess(path, similar_value.value, "near id", f"{similar_value.field or 'a value'} in the {similar_value.origin}")
        for _, _, similar_value in near[:2]
    ]


def _match_earlier_answer(path: Path, value: str, earlier_calls: Sequence[EarlierCall]) -> list[Guess]:
    """Match the result of an earlier call with this value as argument: the code of a city, the id of a name."""
    spelt = normalize_name(value)
    for call in reversed(earlier_calls[-MAX_EARLIER_CALLS:]):
        if call.outcome == "success" and isinstance(call.arguments, Mapping) and len(call.arguments) <= 3:
            if not any(normalize_name(other) == spelt for _, other in _iter_texts(call.arguments, ())):
                continue
            answers = {leaf for _, leaf in _iter_leaves(_parse_result(call.result), "", 0)}
            if (
                len(answers) == 1
                and _is_code_or_identifier(answer := answers.pop())
                and spelt not in normalize_name(answer)
            ):
                return [Guess(path, answer, "answered", f"result of {call.tool} for {value[:40]}")]
    return []


def _is_code_or_identifier(text: str) -> bool:
    """Return whether a text is a code or an identifier, and not an amount or a path."""
    if text.isalnum():
        return 1 < len(text) <= 24 and (text.isupper() or any(c.isdigit() for c in text))
    return len(text) <= 60 and any(c.isdigit() for c in text) and any(c.isalpha() for c in text) and _is_word(text)


def _is_word(text: str) -> bool:
    return " " not in text and "/" not in text


class AnswerRecord(NamedTuple):
    """An object in a result: its scalar values with their names, and both in normalized form."""

    call: int
    tool: str
    leaves: list[tuple[str, str, str, str]]


def _match_answer_record(path: Path, value: str, records: Sequence[AnswerRecord]) -> list[Guess]:
    """Match the id of a result object that contains the given value, such as the id of the item with that title.

    Also match an entry with that key: `{"kettle": "8834460"}`. The latest result with exactly one match counts.
    """
    name, spelt = _field_name(path), normalize_name(value)
    answers_by_call: dict[int, dict[str, tuple[str, str]]] = {}
    for call, tool, leaves in records if len(spelt) > 1 else ():
        if any(other == spelt and not _is_same_field(field, name) for field, _, _, other in leaves):
            answers_by_call.setdefault(call, {}).update(
                (leaf, (field, tool)) for field, leaf, _, _ in leaves if _is_same_field(field, name)
            )
        for field, leaf, key, _ in leaves:
            if key == spelt and _is_code_or_identifier(leaf):
                answers_by_call.setdefault(call, {})[leaf] = field, tool
    for answers in answers_by_call.values():
        answers.pop(value, None)
        if len(answers) == 1:
            ((answer, (field, tool)),) = answers.items()
            evidence = f"{field} in the result of {tool} for {value[:40]}"
            return [Guess(path, answer, "same record", evidence)]
    return []


def iter_answer_records(earlier_calls: Sequence[EarlierCall]) -> Iterator[AnswerRecord]:
    """Yield the objects in the results of this run, latest first, bounded in number."""
    remaining = MAX_LEAF_VALUES
    for age, call in enumerate(reversed(earlier_calls[-MAX_EARLIER_CALLS:])):
        pending: list[Any] = [_parse_result(call.result)] if call.outcome == "success" else []
        while pending and remaining > 0:
            value = pending.pop()
            members = list(islice(value.items(), remaining)) if isinstance(value, Mapping) else []
            scalars = [(name, str(leaf)) for name, leaf in members if isinstance(name, str) and _is_scalar(leaf)]
            if scalars:
                yield AnswerRecord(
                    age, call.tool, [(name, leaf, normalize_name(name), normalize_name(leaf)) for name, leaf in scalars]
                )
            elif isinstance(value, list | tuple):
                members = [("", inner) for inner in value[:remaining]]
            remaining -= 1 + len(members)
            pending.extend(inner for _, inner in reversed(members) if isinstance(inner, Mapping | list | tuple))


def _is_scalar(value: Any) -> bool:
    return (isinstance(value, str) and 0 < len(value) <= MAX_IDENTIFIER_CHARS) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18
    )


def _match_seen_format(path: Path, value: str, tool: str, earlier_calls: Sequence[EarlierCall]) -> list[Guess]:
    """Match the format of values that succeeded with this tool: a leading sign, or upper case."""
    successful_values = [
        other
        for call in earlier_calls[-MAX_EARLIER_CALLS:]
        if call.tool == tool and call.outcome == "success" and isinstance(call.arguments, Mapping)
        for other_path, other in _iter_texts(call.arguments, ())
        if _field_name(other_path) == _field_name(path)
    ]
    if not successful_values or any(other == value for other in successful_values):
        return []
    signs = {other[:1] for other in successful_values}  # an empty value gives no sign
    if len(signs) == 1 and (sign := signs.pop()) and not sign.isalnum() and not value.startswith(sign):
        return [Guess(path, sign + value, "seen form", f"{tool} succeeded with {successful_values[-1]}")]
    if value.upper() != value and all(other.isupper() for other in successful_values):
        return [Guess(path, value.upper(), "seen form", f"{tool} succeeded with {successful_values[-1]}")]
    return []


def _match_field_values(
    path: Path,
    value: str | None,
    arguments: Mapping[str, Any],
    seen_values: list[SeenValue],
    tool: str,
    earlier_calls: Sequence[EarlierCall],
) -> list[Guess]:
    """Match values with the same field name in this run that did not fail with this tool.

    Values that occurred together with the call's other values come first, such as the payment of the same order.
    """
    name = _field_name(path)
    others = {other for other_path, other in _iter_texts(arguments, ()) if other_path != path and _is_opaque(other)}
    failed = {
        other
        for call in earlier_calls[-MAX_EARLIER_CALLS:]
        if call.tool == tool and call.outcome != "success"
        for failed_texts in [list(_iter_texts(call.arguments, ()))]
        if others <= {failed_text for _, failed_text in failed_texts}
        for other_path, other in failed_texts
        if _field_name(other_path) == name
    }
    matching_values = [
        seen_value
        for seen_value in seen_values
        if seen_value.value != value and seen_value.value not in failed and _is_same_field(seen_value.field, name)
    ]
    related_ages = {seen_value.age for seen_value in seen_values if seen_value.value in others}
    matching_values.sort(key=lambda seen_value: seen_value.age not in related_ages)
    options = list(dict.fromkeys(seen_value.value for seen_value in matching_values))
    if not options:
        return []
    close = list(dict.fromkeys(seen_value.value for seen_value in matching_values if seen_value.age in related_ages))
    strategy = "only value" if len(options) == 1 else "one of several"
    evidence = {
        seen_value.value: f"{seen_value.field} in the {seen_value.origin}" for seen_value in reversed(matching_values)
    }
    return [
        Guess(path, option, "beside" if close == [option] and len(options) > 1 else strategy, evidence[option])
        for option in options[:3]
    ]


def missing_value_candidates(
    missing: Sequence[str], earlier_calls: Sequence[EarlierCall]
) -> dict[str, list[tuple[str, str]]]:
    """Return candidates for missing arguments: values of that field in earlier successful calls and results."""
    seen_values = collect_identifiers(earlier_calls)
    candidates: dict[str, list[tuple[str, str]]] = {}
    for name in missing:
        matching_values = [
            seen_value for seen_value in seen_values if normalize_name(seen_value.field) == normalize_name(name)
        ] or [seen_value for seen_value in seen_values if _is_same_field(seen_value.field, name)]
        options = [
            value for value in dict.fromkeys(seen_value.value for seen_value in matching_values) if " " not in value
        ][:3]
        origins = {
            seen_value.value: f"{seen_value.field} in the {seen_value.origin}"
            for seen_value in reversed(matching_values)
        }
        candidates[name] = [(option, origins[option]) for option in options]
    return candidates


def build_change(arguments: Mapping[str, Any], guess: Guess) -> Change:
    before: Any = arguments
    for part in guess.path:
        before = before[part] if not isinstance(before, Mapping) or part in before else None
    path = ".".join(map(str, guess.path))
    return Change(path=path, operation="substitute", before=before, after=guess.after, source="run")
