"""What successful calls show: accepted values, suggestions from exemplars, and facts. Plain functions.

Exemplars are past successful calls of the same tool, by argument names and types, without values. They are the last
resort, for a failure that neither its own pattern nor a similar one has a fix for. They show two mistakes: an unknown
argument in place of one that all exemplars have, and an argument of another type.

Value profiles say what the values of an argument had in common: type, format, range, a few words. A model reads them
as facts after a failure with a value outside of them. They are never applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.contract.store import ArgumentTypes, FixQuery, argument_type, hash_value
from mulligan.core.argument_comparison import is_replaced
from mulligan.core.failure import Failure
from mulligan.core.privileged_arguments import is_privileged, split_words
from mulligan.core.records import Change, Fix, ValueProfile, fix_id
from mulligan.core.stated_limits import names_argument
from mulligan.learn.fixes import FixAction, FixRecord, is_shareable
from mulligan.learn.telling import AcceptedCall, Profile, is_concrete
from mulligan.redaction.regex import LazyRegex


def build_profile(calls: Sequence[tuple[str, Any]]) -> Profile:
    """Profile the arguments of successful calls of one tool, each with the agent that made it."""
    return Profile(
        [
            AcceptedCall(agent, {str(name): hash_value(value) for name, value in arguments.items()})
            for agent, arguments in calls
            if isinstance(arguments, Mapping)
        ]
    )


def replaces_other_values(record: FixRecord, replaced: str, profile: Callable[[], Profile]) -> bool:
    """Return whether a fix sets a text that never recovered a call with the values that this call has.

    Where `EURO` became `EUR`, `YEN` need not. A text that replaced several others is right for a further one only if
    no other text succeeds. A number is usually a limit, which other numbers exceed as well.
    """
    settings = [
        change
        for change in record.action.changes
        if is_concrete(change) and (change.operation == "drop" or isinstance(change.after, str))
    ]
    is_supported = not settings or not replaced or not record.old_values or replaced in record.old_values
    if is_supported or record.action.tools or any("." in change.path for change in settings):
        return False
    if len(record.old_values) == 1:
        return True
    accepted = profile()
    return any(accepted.list_values(change.path) - {hash_value(change.after)} for change in settings)


# Exemplars


MAX_EXEMPLARS = 16
"""Latest successful calls that are read per tool."""
MAX_SCANNED_STEPS = 1000
"""Steps that the search for exemplars may skip over."""
MAX_BODY_BYTES = 8192
"""Larger step bodies are skipped: decoding them only for argument names costs too much."""
MAX_EXEMPLARS_PER_SHAPE = 8
"""Further exemplars of the same shape add no information."""
MIN_EXEMPLARS = 5
"""Exemplars that a suggestion needs."""


class ExemplarArguments(msgspec.Struct, frozen=True):
    """Partial view of a stored step: arguments and tool key. Decoding skips all other fields."""

    arguments: Any = None
    key: str | None = None


NUMBER_TYPES = frozenset({"integer", "number"})
ALLOWED_CASTS = frozenset({
    ("string", "integer"), ("string", "number"), ("string", "boolean"), ("integer", "string"), ("number", "string"),
})  # fmt: skip


def sample_by_shape(shapes: Iterable[ArgumentTypes]) -> list[ArgumentTypes]:
    """Return up to `MAX_EXEMPLARS` shapes in order, with at most `MAX_EXEMPLARS_PER_SHAPE` equal ones."""
    shape_counts: Counter[ArgumentTypes] = Counter()
    sample: list[ArgumentTypes] = []
    for shape in shapes:
        if shape_counts[shape] < MAX_EXEMPLARS_PER_SHAPE:
            shape_counts[shape] += 1
            sample.append(shape)
        if len(sample) >= MAX_EXEMPLARS:
            break
    return sample


def suggest_from_exemplars(query: FixQuery, exemplars: Sequence[ArgumentTypes]) -> list[Fix]:
    """Suggest the changes that give a failed call the shape of the exemplars. Empty if the shapes agree."""
    if not query.argument_types or query.tool is None or len(exemplars) < MIN_EXEMPLARS:
        return []
    changes = tuple(sorted(_suggest_changes(dict(query.argument_types), exemplars), key=lambda change: change.path))
    fingerprint = query.fingerprint or ""
    fix = Fix(
        id=fix_id(query.tool, fingerprint, FixAction(changes=changes)),
        tool=query.tool,
        fingerprint=fingerprint,
        type="exemplar",
        changes=changes,
        exemplars=len(exemplars),
        reason="no trials yet: modeled on successful calls",
        showable=True,
    )
    return [fix] if changes else []


def _suggest_changes(failed: Mapping[str, str], exemplars: Sequence[ArgumentTypes]) -> Iterable[Change]:
    types: dict[str, list[str]] = {}
    for shape in exemplars:
        for name, type in shape:
            types.setdefault(name, []).append(type)
    # Share of exemplars that must have an argument for it to count as required
    required_count = 0.9 * len(exemplars)
    unknown = [name for name in failed if name not in types]
    missing = [
        name for name, argument_types in types.items() if len(argument_types) >= required_count and name not in failed
    ]
    if len(unknown) == len(missing) == 1 and _fits(failed[unknown[0]], types[missing[0]]):
        yield Change(path=unknown[0], operation="rename", after=missing[0])
    elif unknown or missing:
        return  # ambiguous: no unique pair of unknown and missing argument, so type changes would not help either
    for name, type in failed.items():
        argument_types = types.get(name, [])
        if len(argument_types) < MIN_EXEMPLARS or len(set(argument_types)) > 1 or _fits(type, argument_types):
            continue
        if (type, argument_types[0]) in ALLOWED_CASTS:
            yield Change(path=name, operation="cast", after=argument_types[0])
        elif argument_types[0] == "array" and type != "null":
            yield Change(path=name, operation="wrap")


def _fits(type: str, expected_types: Iterable[str]) -> bool:
    expected = set(expected_types)
    return type in expected or (type in NUMBER_TYPES and not expected.isdisjoint(NUMBER_TYPES))


# Value profiles


MIN_FACT_CALLS = 20
"""Successful calls with an argument that a fact about its values needs."""
MIN_FACT_RUNS = 3
"""Runs that these calls must come from, and that each listed word must occur in."""
MAX_PROFILED_ARGUMENTS = 50
MAX_WORD_CHARS = 20
_ENUM_WORD = LazyRegex(r"[^\W\d_]+(?:[-_][^\W\d_]+){0,3}(?:[-_][0-9]{1,2})?")
"""A word that may be an enum member (`json`, `utf-8`, `us-east-1`), not an identifier."""
_PERSON_WORDS = frozenset("author creator reporter manager contact person guest passenger sender nick login".split())
"""Words in names of arguments that may hold the name of a person."""
_FORMATS = {
    "date": LazyRegex(r"\d{4}-\d{2}-\d{2}"),
    "time": LazyRegex(r"\d{2}:\d{2}(?::\d{2})?"),
    "date-time": LazyRegex(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})?"),
    "uuid": LazyRegex(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"),
}


def build_value_profiles(calls: Sequence[tuple[int, Any]], items: Collection[str] = ()) -> list[ValueProfile]:
    """Profile the values of each argument in successful calls of one tool, each with the number of its run.

    Privileged arguments, item arguments and redacted values have no profile.
    """
    recorded_calls = [(run, dict(_iter_members(arguments))) for run, arguments in calls]
    paths = dict.fromkeys(path for _, members in recorded_calls for path in members)
    value_profiles: list[ValueProfile] = []
    for path in list(paths)[:MAX_PROFILED_ARGUMENTS]:
        if is_privileged(path) or path.partition(".")[0] in items:
            continue
        values = [(run, members[path]) for run, members in recorded_calls if path in members]
        if not any(is_replaced(value) for _, value in values):
            value_profiles.append(_profile_values(path, values, len(recorded_calls)))
    return value_profiles


def _iter_members(value: Any, path: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    """Yield the values of a call with their paths. A list is one value."""
    if not isinstance(value, Mapping):
        return
    for name, member in list(value.items())[:MAX_PROFILED_ARGUMENTS]:
        member_path = f"{path}.{name}" if path else str(name)
        if isinstance(member, Mapping) and member and depth + 1 < 3:
            yield from _iter_members(member, member_path, depth + 1)
        else:
            yield member_path, member


def _profile_values(path: str, run_values: Sequence[tuple[int, Any]], call_count: int) -> ValueProfile:
    values = [value for _, value in run_values]
    facts: dict[str, Any] = {"type": _common_type(values)}
    sizes = [len(value) for value in values if isinstance(value, str | list)]
    if len(sizes) == len(values):
        facts |= {"min_length": min(sizes), "max_length": max(sizes)}
    if facts["type"] in NUMBER_TYPES and is_shareable(path, values[0]) and 2 * len(set(values)) <= len(values):
        facts |= {"minimum": min(values), "maximum": max(values)}
    elif facts["type"] == "string":
        facts["format"] = next((name for name in _FORMATS if all(map(_FORMATS[name].fullmatch, values))), "")
        facts["values"] = _list_words(path, run_values)
    return ValueProfile(
        argument=path,
        calls=len(values),
        runs=len({run for run, _ in run_values}),
        always_given=len(values) == call_count,
        **facts,
    )


def _common_type(values: Sequence[Any]) -> str:
    """Return the JSON type of all values. Integers among other numbers are numbers."""
    types = {argument_type(value) for value in values}
    if types == NUMBER_TYPES:
        return "number"
    return types.pop() if len(types) == 1 else ""


def _list_words(path: str, run_values: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    """Return all texts if they are few words that may be enum members, each of several runs; otherwise nothing."""
    runs_by_word: dict[str, set[int]] = {}
    for run, value in run_values:
        runs_by_word.setdefault(value, set()).add(run)
        # Maximum number of different words in successful calls for an argument to count as an enum.
        if len(runs_by_word) > 8:
            return ()
    may_name_person = not _PERSON_WORDS.isdisjoint(word.casefold() for word in split_words(path))
    is_closed = not may_name_person and all(
        len(runs) >= MIN_FACT_RUNS
        and len(word) <= MAX_WORD_CHARS
        and word in (word.lower(), word.upper())  # a capitalized word may be the name of a person or a place
        and _ENUM_WORD.fullmatch(word) is not None
        and is_shareable(path, word)
        for word, runs in runs_by_word.items()
    )
    return tuple(sorted(runs_by_word)) if is_closed else ()


def is_about_values(failure: Failure) -> bool:
    """Return whether a failure rejects the value of an argument."""
    return failure.kind.rejects_values


def has_enough_calls(profile: ValueProfile) -> bool:
    """Return whether a profile rests on enough calls and runs to be told."""
    return profile.calls >= MIN_FACT_CALLS and profile.runs >= MIN_FACT_RUNS


def select_facts(
    value_profiles: Iterable[ValueProfile], failure: Failure, arguments: Mapping[str, Any]
) -> list[ValueProfile]:
    """Return the profiles to tell after a failure: of the arguments that the error names, with a value outside.

    If the error names no argument, the only one with a value outside is selected. Each profile is reduced to the one
    fact that the value contradicts.
    """
    if not is_about_values(failure):
        return []
    lines = f"{failure.message}\n{failure.detail}".splitlines()
    text = "\n".join(line for line in lines if not line.startswith("mulligan:"))  # our own notes are not the error
    members = dict(_iter_members(arguments))
    profiles = [profile for profile in value_profiles if has_enough_calls(profile)]
    names = {profile.argument: names_argument(text, profile.argument.rpartition(".")[2]) for profile in profiles}
    is_silent = not any(names_argument(text, path.rpartition(".")[2]) for path in (*names, *members))
    contradicted_facts = (_find_contradicted_fact(profile, members) for profile in profiles)
    facts = [fact for fact in contradicted_facts if fact is not None and (is_silent or names[fact.argument])]
    # Facts that are told after one failure.
    return [] if is_silent and len(facts) > 1 else facts[:2]


def _find_contradicted_fact(profile: ValueProfile, members: Mapping[str, Any]) -> ValueProfile | None:
    """Return the profile with the one fact that a call contradicts, or None if it contradicts none."""
    fact = ValueProfile(argument=profile.argument, calls=profile.calls, runs=profile.runs)
    if profile.argument not in members:
        is_missing = profile.always_given and not any(path.startswith(f"{profile.argument}.") for path in members)
        return msgspec.structs.replace(fact, always_given=True, type=profile.type) if is_missing else None
    value = members[profile.argument]
    if profile.type and not _fits(argument_type(value), [profile.type]):
        return msgspec.structs.replace(fact, type=profile.type)
    if profile.minimum is not None and profile.maximum is not None:
        is_outside = not profile.minimum <= value <= profile.maximum
        return msgspec.structs.replace(fact, minimum=profile.minimum, maximum=profile.maximum) if is_outside else None
    if profile.values:
        return msgspec.structs.replace(fact, values=profile.values) if value not in profile.values else None
    if profile.format:
        is_other = _FORMATS[profile.format].fullmatch(value) is None
        return msgspec.structs.replace(fact, format=profile.format) if is_other else None
    return None
