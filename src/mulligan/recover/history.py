"""Candidate values for a rejected argument from earlier calls of the same run.

Only opaque identifiers of the same run are used, and only if the field name fits. A value that differs only in
punctuation, case or spaces may be applied automatically; all others are suggestions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from mulligan.core.calls import parse_json
from mulligan.core.stated_limits import contains_word
from mulligan.recover.names import (
    stem_words,
)
from mulligan.recover.policy import EarlierCall
from mulligan.recover.schema import Path, field_name, iter_scalars
from mulligan.recover.spelling import (
    edit_distance,
    normalize_name,
)
from mulligan.recover.value_coercion import Candidate

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
_TOKEN = re.compile(r"[#@$]?[A-Za-z0-9][\w.@:/#-]*[\w]|[#@$]?[A-Za-z0-9]")

_PAIR = re.compile(r'"([^"\\]{1,120})"\s*:\s*(?:"([^"\\]{1,120})"|(-?[0-9]{1,18})(?![.0-9])|(\{))')


class SeenValue(NamedTuple):
    """A value of an earlier call, with its field name."""

    field: str
    value: str
    age: int
    """0 for the latest call."""
    origin: str

    @property
    def evidence(self) -> str:
        return f"{self.field or 'a value'} in the {self.origin}"


def collect_identifiers(earlier_calls: Sequence[EarlierCall]) -> list[SeenValue]:
    """Return the identifiers that occurred in this run, latest first."""
    values_by_key: dict[tuple[str, str, int], SeenValue] = {}
    leaves = (
        SeenValue(field, leaf, age, f"{side} of {call.tool}")
        for age, call in enumerate(reversed(earlier_calls[-MAX_EARLIER_CALLS:]))
        if call.has_succeeded  # a failed call does not prove that its values exist
        for side, value in (("call", call.arguments), ("result", _parse_result(call.result)))
        for field, leaf in _iter_leaves(value, "", 0)
    )
    for seen_value in islice(leaves, MAX_LEAF_VALUES):
        values_by_key.setdefault(seen_value[:3], seen_value)
    return list(values_by_key.values())


def _parse_result(result: Any) -> Any:
    if not isinstance(result, str):
        return result
    text = result[:MAX_READ_CHARS].strip()
    if text[:1] not in ("{", "["):
        return text
    parsed = parse_json(text)
    return _scan_pairs(text) if parsed is None else parsed


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
    elif _is_identifier_number(value):
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
) -> list[Candidate]:
    """Return candidate values for the arguments that an error can refer to, likeliest first.

    `names` are the arguments of the schema. A missing one may be the cause.
    """
    run = _RunValues(arguments, tool, earlier_calls)
    matchers = (
        run.match_same_identifier,
        run.match_answer_record,
        run.match_earlier_answer,
        run.match_similar_identifier,
        run.match_file_name,
    )
    suspects = _find_suspects(arguments, error)
    candidates = [guess for suspect in suspects for match in matchers for guess in match(*suspect)]
    error_topics = _extract_topics(error)
    missing = [name for name in names if name not in arguments and _extract_topics(name) & error_topics]
    suspects_or_missing: list[tuple[Path, str | None]] = [*suspects, *(((name,), None) for name in missing)]
    return candidates + [guess for path, value in suspects_or_missing for guess in run.match_field_values(path, value)]


def _find_suspects(arguments: Mapping[str, Any], error: str) -> list[tuple[Path, str]]:
    """Return the arguments that an error refers to: by value, else by name, else all."""
    text = error[:2000]
    error_topics = _extract_topics(text)
    leaves = [leaf for leaf in _list_texts(arguments) if 0 < len(leaf[1]) <= MAX_IDENTIFIER_CHARS]
    # As a whole word, unlike the `no` in `not found`.
    shown_values = [leaf for leaf in leaves if len(leaf[1]) > 1 and contains_word(text, leaf[1])]
    named_values = [leaf for leaf in leaves if _extract_topics(field_name(leaf[0])) & error_topics]
    return (shown_values or named_values or leaves)[:MAX_VALUES_PER_CALL]


def _list_texts(value: Any) -> list[tuple[Path, str]]:
    """Return the strings and integers of a call with their paths, bounded in number."""
    scalars = iter_scalars(value, MAX_VALUES_PER_CALL)
    return [(path, str(leaf)) for path, leaf in scalars if isinstance(leaf, str) or _is_identifier_number(leaf)]


def _is_identifier_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18


def _extract_topics(text: str) -> frozenset[str]:
    return stem_words(text[:2000]) - _GENERIC_WORDS


def is_same_field(field: str, name: str) -> bool:
    """Return whether two field names refer to the same thing: `order_id`, `orders`, `orderId`."""
    if normalize_name(field) == normalize_name(name):
        return True
    topics = _extract_topics(field)
    return bool(topics) and topics == _extract_topics(name)


def _is_code_or_identifier(text: str) -> bool:
    """Return whether a text is a code or an identifier, and not an amount or a path."""
    has_digit = any(c.isdigit() for c in text)
    if text.isalnum():
        return 1 < len(text) <= 24 and (text.isupper() or has_digit)
    return len(text) <= 60 and has_digit and any(c.isalpha() for c in text) and " " not in text and "/" not in text


def _propose(path: Path, after: str, strategy: str, evidence: str) -> Candidate:
    return Candidate(after, "substitute", strategy, "run", path, evidence)


class AnswerRecord(NamedTuple):
    """An object in a result: its scalar values with their names, and both in normalized form."""

    call: int
    tool: str
    leaves: list[tuple[str, str, str, str]]


class _RunValues:
    """Values of earlier calls of the same run, matched with the arguments of a failed call."""

    def __init__(self, arguments: Mapping[str, Any], tool: str, earlier_calls: Sequence[EarlierCall]) -> None:
        self.arguments = arguments
        self.tool = tool
        self.calls = earlier_calls[-MAX_EARLIER_CALLS:]
        self.successful_calls = [
            call for call in self.calls if call.has_succeeded and isinstance(call.arguments, Mapping)
        ]
        self.seen_values = collect_identifiers(earlier_calls)
        self.records = list(iter_answer_records(self.calls))

    def match_same_identifier(self, path: Path, value: str) -> list[Candidate]:
        """Match an identifier that differs only in punctuation, case or spaces: `W123` for `#W123`."""
        normalized = normalize_name(value)
        if len(normalized) < 2:
            return []
        same = {
            seen_value.value: seen_value
            for seen_value in reversed(self.seen_values)
            if normalize_name(seen_value.value) == normalized
        }
        if len(same) != 1 or value in same:
            return []
        (identical,) = same.values()
        # S1: only an opaque identifier whose field name fits. A path does not qualify: `./a` and `a` may be two files.
        is_certain = (
            _is_opaque(identical.value)
            and "/" not in identical.value + value
            and is_same_field(identical.field, field_name(path))
        )
        return [_propose(path, identical.value, "same id" if is_certain else "near id", identical.evidence)]

    def match_answer_record(self, path: Path, value: str) -> list[Candidate]:
        """Match the id of a result object that contains the given value, such as the id of the item with that title.

        Also match an entry with that key: `{"kettle": "8834460"}`. The latest result with exactly one match counts.
        """
        name, normalized = field_name(path), normalize_name(value)
        answers_by_call: dict[int, dict[str, tuple[str, str]]] = {}
        for call, tool, leaves in self.records if len(normalized) > 1 else ():
            if any(other == normalized and not is_same_field(field, name) for field, _, _, other in leaves):
                answers_by_call.setdefault(call, {}).update(
                    (leaf, (field, tool)) for field, leaf, _, _ in leaves if is_same_field(field, name)
                )
            for field, leaf, key, _ in leaves:
                if key == normalized and _is_code_or_identifier(leaf):
                    answers_by_call.setdefault(call, {})[leaf] = field, tool
        for answers in answers_by_call.values():
            answers.pop(value, None)
            if len(answers) == 1:
                ((answer, (field, tool)),) = answers.items()
                evidence = f"{field} in the result of {tool} for {value[:40]}"
                return [_propose(path, answer, "same record", evidence)]
        return []

    def match_earlier_answer(self, path: Path, value: str) -> list[Candidate]:
        """Match the result of an earlier call with this value as argument: the code of a city, the id of a name."""
        normalized = normalize_name(value)
        for call in reversed(self.successful_calls):
            if len(call.arguments) > 3:
                continue
            if not any(normalize_name(other) == normalized for _, other in _list_texts(call.arguments)):
                continue
            answers = {leaf for _, leaf in _iter_leaves(_parse_result(call.result), "", 0)}
            answer = answers.pop() if len(answers) == 1 else ""
            if _is_code_or_identifier(answer) and normalized not in normalize_name(answer):
                return [_propose(path, answer, "answered", f"result of {call.tool} for {value[:40]}")]
        return []

    def match_similar_identifier(self, path: Path, value: str) -> list[Candidate]:
        """Match identifiers within one or two edits. They are only suggested, since each may be a different object."""
        normalized = normalize_name(value)
        if len(normalized) < 3:
            return []
        near: list[tuple[int, SeenValue]] = []
        max_edits = 1 if len(normalized) < 6 else 2
        for seen_value in self.seen_values:
            other = normalize_name(seen_value.value)
            if other == normalized:
                continue
            following = seen_value.value[len(value) : len(value) + 1]
            # Separators after which a longer identifier continues
            if seen_value.value.startswith(value) and following in (".", "_", "-", ":"):
                near.append((0, seen_value))  # a file without its extension, an identifier without its number
            elif abs(len(other) - len(normalized)) <= 2:
                edits = edit_distance(normalized, other, max_edits)
                if edits <= max_edits:
                    near.append((edits, seen_value))
        near.sort(key=lambda item: (item[0], item[1].age))
        return [_propose(path, seen_value.value, "near id", seen_value.evidence) for _, seen_value in near[:2]]

    def match_file_name(self, path: Path, value: str) -> list[Candidate]:
        """Match a file that a result of this run names without its folder. Without such a result, the path stays."""
        name = value.rstrip("/").rpartition("/")[2]
        file_value = next((seen_value for seen_value in self.seen_values if seen_value.value == name), None)
        if not name or name == value or "://" in value or file_value is None:
            return []
        return [_propose(path, name, "last part", f"{file_value.evidence} names it without a folder")]

    def match_field_values(self, path: Path, value: str | None) -> list[Candidate]:
        """Match values with the same field name in this run that did not fail with this tool.

        Values that occurred together with the call's other values come first, such as the payment of the same order.
        """
        name = field_name(path)
        others = {text for other, text in _list_texts(self.arguments) if other != path and _is_opaque(text)}
        failed: set[str] = set()
        for call in self.calls:
            if call.tool == self.tool and not call.has_succeeded:
                texts = _list_texts(call.arguments)
                if others <= {text for _, text in texts}:
                    failed |= {text for other, text in texts if field_name(other) == name}
        related_ages = {seen_value.age for seen_value in self.seen_values if seen_value.value in others}
        options: dict[str, SeenValue] = {}
        for seen_value in sorted(self.seen_values, key=lambda seen_value: seen_value.age not in related_ages):
            if seen_value.value != value and seen_value.value not in failed and is_same_field(seen_value.field, name):
                options.setdefault(seen_value.value, seen_value)
        close = [option for option, seen_value in options.items() if seen_value.age in related_ages]
        strategy = "only value" if len(options) == 1 else "one of several"
        return [
            _propose(
                path, option, "beside" if close == [option] and len(options) > 1 else strategy, seen_value.evidence
            )
            for option, seen_value in islice(options.items(), 3)
        ]


def iter_answer_records(calls: Sequence[EarlierCall]) -> Iterator[AnswerRecord]:
    """Yield the objects in the results of this run, latest first, bounded in number."""
    remaining = MAX_LEAF_VALUES
    for age, call in enumerate(reversed(calls)):
        pending: list[Any] = [_parse_result(call.result)] if call.has_succeeded else []
        while pending and remaining > 0:
            value = pending.pop()
            members = list(islice(value.items(), remaining)) if isinstance(value, Mapping) else []
            leaves = [
                (name, str(leaf), normalize_name(name), normalize_name(str(leaf)))
                for name, leaf in members
                if isinstance(name, str)
                and ((isinstance(leaf, str) and 0 < len(leaf) <= MAX_IDENTIFIER_CHARS) or _is_identifier_number(leaf))
            ]
            if leaves:
                yield AnswerRecord(age, call.tool, leaves)
            elif isinstance(value, list | tuple):
                members = [("", inner) for inner in value[:remaining]]
            remaining -= 1 + len(members)
            pending.extend(inner for _, inner in reversed(members) if isinstance(inner, Mapping | list | tuple))


def missing_value_candidates(
    missing: Sequence[str], earlier_calls: Sequence[EarlierCall]
) -> dict[str, list[tuple[str, str]]]:
    """Return candidates for missing arguments: values of that field in earlier successful calls and results."""
    seen_values = collect_identifiers(earlier_calls)
    candidates: dict[str, list[tuple[str, str]]] = {}
    for name in missing:
        matching_values = [
            seen_value for seen_value in seen_values if normalize_name(seen_value.field) == normalize_name(name)
        ] or [seen_value for seen_value in seen_values if is_same_field(seen_value.field, name)]
        evidence: dict[str, str] = {}
        for seen_value in matching_values:
            if " " not in seen_value.value:
                evidence.setdefault(seen_value.value, seen_value.evidence)
        candidates[name] = list(evidence.items())[:3]
    return candidates
