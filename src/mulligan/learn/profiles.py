"""What successful calls show: which fixes a model may see, and suggestions from exemplars. Plain functions.

A change of form (cast, rename, trim) and a prerequisite may be shown after they succeeded in two runs. A concrete value
is shown only if it is a setting: it replaced different values, or one value in different calls, and the old value never
succeeded (LEARNING.md, "Telling").

Exemplars are past successful calls of the same tool, by argument names and types, without values. They are the last
resort, for a failure that neither its own pattern nor a similar one has a fix for. They show two mistakes: an unknown
argument in place of one that all exemplars have, and an argument of another type.

Value profiles say what the values of an argument had in common: type, format, range, a few words. A model reads them
as facts after a failure with a value outside of them. They are never applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from mulligan.core.argument_comparison import is_replaced
from mulligan.core.calls import TOOL_NAME_PATH, wilson_lower_bound
from mulligan.core.failure import Failure
from mulligan.core.privileged_arguments import is_privileged, split_words
from mulligan.core.records import (
    HIDDEN_VALUE,
    LAST_PATH_SEGMENT,
    REQUOTED,
    RUN_SPECIFIC,
    Change,
    Fix,
    ValueProfile,
    fix_id,
)
from mulligan.core.stated_limits import names_argument
from mulligan.learn.fixes import MAX_OLD_VALUES, RETRY_ACTION, FixAction, FixRecord, is_shareable
from mulligan.redaction.regex import LazyRegex
from mulligan.store.base import ArgumentTypes, FixQuery, argument_type, hash_value

MIN_SHARED_CONFIDENCE = 0.5
MAX_SETTING_VALUES = 8
"""Maximum number of different values in successful calls for an argument to count as a setting."""
MIN_PROFILED_CALLS = 4
"""From this number of successful calls on, a setting must also repeat its values."""
LAST_CORRECTIONS = 3
_FORMS = frozenset({"cast", "rename", "parse", "wrap", "trim", "drop", "enum"})


class ArgumentProfile(msgspec.Struct):
    """The values of one argument in recent successful calls of a tool."""

    count: int = 0
    hashes: dict[str, int] = {}
    """Different values, with how often each occurred."""
    last_uses: dict[str, int] = {}
    """When the latest run with each value began."""

    @property
    def is_setting(self) -> bool:
        """Whether the argument takes few values and repeats them."""
        has_few_values = len(self.hashes) <= MAX_SETTING_VALUES
        return has_few_values and (self.count < MIN_PROFILED_CALLS or 2 * len(self.hashes) <= self.count)


Profile = Mapping[str, ArgumentProfile]


def build_profile(calls: Sequence[tuple[int, Any]]) -> dict[str, ArgumentProfile]:
    """Profile the arguments of successful calls of one tool, each with the time when its run began.

    An argument that a call leaves to its default has no value there, which counts as one.
    """
    recorded_calls = [(started, arguments) for started, arguments in calls if isinstance(arguments, Mapping)]
    profile: dict[str, ArgumentProfile] = {}
    for name in dict.fromkeys(name for _, arguments in recorded_calls for name in arguments):
        values = [(hash_value(arguments.get(name)), started) for started, arguments in recorded_calls]
        counts = Counter(value for value, _ in values)
        profile[str(name)] = ArgumentProfile(len(values), counts, dict(sorted(values, key=itemgetter(1))))
    return profile


def find_hidden_reason(
    tally: FixRecord,
    peers: Sequence[FixRecord],
    agent: str,
    profile: Callable[[], Profile],
    items: Callable[[], Collection[str]] = tuple,
    replaced: str = "",
) -> str:
    """Return why a fix is hidden from the model; empty if it may be shown.

    `peers` are the fixes of the same pattern and tool that change one of its arguments, or for a prerequisite those
    that change nothing. `profile` and `items`, the arguments that name items, are called only for a concrete value.
    `replaced` is the hash of the values that it would replace in the failed call, if these are known.
    """
    peers = [peer for peer in peers if peer.id == tally.id or _may_have_replaced(peer, tally, replaced)]
    if wilson_lower_bound(tally.successes, tally.trials) < MIN_SHARED_CONFIDENCE:
        return f"succeeded in {tally.successes} of {tally.trials} runs: too low to show to a model"
    if [is_success for _, _, is_success, _ in tally.recent][-2:] == [False, False]:
        return "failed twice in a row"
    if tally.action.type == "prerequisite" and any(peer.action == RETRY_ACTION and peer.successes for peer in peers):
        return "the same call also succeeded without it"
    # A prerequisite that supplies the value is shown as a call, without the value.
    for change in tally.action.changes if not tally.action.tools else ():
        if change.path != TOOL_NAME_PATH and is_privileged(change.path):
            return f"{change.path} is a privileged argument"
        if change.after == RUN_SPECIFIC:
            return f"the value of {change.path} is specific to its run"
        if change.after == HIDDEN_VALUE:
            return f"the value of {change.path} is hidden at redaction level shared"
    for change in tally.action.changes:
        rivals = [peer for peer in peers if peer.id != tally.id and peer.successes and _contradicts(peer, change)]
        is_doubtful = any(agent in rival.agents for rival in rivals) and not _is_latest(tally, peers, change)
        if rivals and (agent not in tally.agents or is_doubtful):
            return f"other agents or later runs contradict it for {change.path}"
    settings = list(filter(is_concrete, tally.action.changes))
    if not settings:
        return ""
    if not tally.is_setting:
        return "it replaced one value in one call only, possibly by coincidence"
    argument_profile, item_arguments = profile(), items()
    for change in settings:
        root = change.path.partition(".")[0]
        argument = argument_profile.get(root, ArgumentProfile())
        if root in item_arguments:
            return f"{root} names items"
        if _is_latest(tally, peers, change) and not _has_worked_since(tally, argument):
            continue  # all of the last corrections led to it, so earlier values do not matter
        if not tally.old_values.keys().isdisjoint(argument.hashes):
            return f"the value of {change.path} that it replaces has also succeeded"
        if not argument.is_setting:
            return f"{change.path} takes too many values to be a setting"
    return ""


def replaces_other_values(tally: FixRecord, replaced: str, profile: Callable[[], Profile]) -> bool:
    """Return whether a fix sets a text that never recovered a call with the values that this call has.

    Where `EURO` became `EUR`, `YEN` need not. A text that replaced several others is right for a further one only if
    no other text succeeds. A number is usually a limit, which other numbers exceed as well.
    """
    settings = [change for change in tally.action.changes if is_concrete(change) and isinstance(change.after, str)]
    is_supported = not settings or not replaced or not tally.old_values or replaced in tally.old_values
    if is_supported or tally.action.tools or any("." in change.path for change in settings):
        return False
    if len(tally.old_values) == 1:
        return True
    argument_profile = profile()
    return any(
        argument_profile.get(change.path, ArgumentProfile()).hashes.keys() - {hash_value(change.after)}
        for change in settings
    )


def _may_have_replaced(peer: FixRecord, tally: FixRecord, replaced: str) -> bool:
    """Return whether a fix may have replaced the values that a call has: it is then evidence about that call."""
    paths, peer_paths = ({change.path for change in record.action.changes} for record in (tally, peer))
    has_all_values = paths == peer_paths and 0 < len(peer.old_values) < MAX_OLD_VALUES
    return replaced not in tally.old_values or not has_all_values or replaced in peer.old_values


def _has_worked_since(tally: FixRecord, argument: ArgumentProfile) -> bool:
    """Return whether a replaced value has succeeded since the fix did, so that the value was not the cause."""
    first = min((vote[0] for vote in tally.recent if vote[2]), default=0)
    return any(argument.last_uses.get(value, 0) > first for value in tally.old_values)


def is_concrete(change: Change) -> bool:
    """Return whether a change sets a value, instead of converting the form of the call's own value."""
    placeholders = (RUN_SPECIFIC, HIDDEN_VALUE, LAST_PATH_SEGMENT, REQUOTED)
    return change.operation not in _FORMS and change.after not in placeholders


def _contradicts(tally: FixRecord, change: Change) -> bool:
    """Return whether a fix changes the same argument to something else."""
    return any(
        other.path == change.path
        and _result_of(other) != _result_of(change)
        and not {RUN_SPECIFIC, HIDDEN_VALUE} & {str(other.after), str(change.after)}
        for other in tally.action.changes
    )


def _result_of(change: Change) -> tuple[str, str, str]:
    """Return the result of a change. Equal values are equal results, whether clamped or substituted."""
    return change.path, "value" if is_concrete(change) else change.operation, hash_value(change.after)


def _is_latest(tally: FixRecord, peers: Sequence[FixRecord], change: Change) -> bool:
    """Return whether the last corrections of an argument all led to this fix, and none has led elsewhere since its
    first: values that alternate belong to their calls."""
    results = set(map(_result_of, tally.action.changes))
    votes = sorted(
        (at, peer.id, set(map(_result_of, peer.action.changes)) == results)
        for peer in peers
        if any(other.path == change.path for other in peer.action.changes)
        for at, _, is_success, _ in peer.recent
        if is_success
    )
    equal = [is_equal for _, _, is_equal in votes]
    latest = equal[equal.index(True) :] if True in equal else []
    return len(latest) >= LAST_CORRECTIONS and all(latest)


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
REQUIRED_ARGUMENT_RATIO = 0.9
"""Share of exemplars that must have an argument for it to count as required."""


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
    required_count = REQUIRED_ARGUMENT_RATIO * len(exemplars)
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
MAX_FACTS = 2
"""Facts that are told after one failure."""
MAX_PROFILED_ARGUMENTS = 50
MAX_PROFILED_DEPTH = 3
MAX_WORD_CHARS = 20
_PERSON_WORDS = frozenset("author creator reporter manager contact person guest passenger sender nick login".split())
"""Words in names of arguments that may hold the name of a person."""
_FORMATS = {
    "date": LazyRegex(r"\d{4}-\d{2}-\d{2}"),
    "time": LazyRegex(r"\d{2}:\d{2}(?::\d{2})?"),
    "date-time": LazyRegex(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})?"),
    "uuid": LazyRegex(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"),
}
_REJECTION_CODES = frozenset({"invalid_arguments", "invalid_query"})
"""Codes of failures that reject the value of an argument."""


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
        if isinstance(member, Mapping) and member and depth + 1 < MAX_PROFILED_DEPTH:
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
        if len(runs_by_word) > MAX_SETTING_VALUES:
            return ()
    may_name_person = not _PERSON_WORDS.isdisjoint(word.casefold() for word in split_words(path))
    is_closed = not may_name_person and all(
        len(runs) >= MIN_FACT_RUNS
        and len(word) <= MAX_WORD_CHARS
        and word in (word.lower(), word.upper())  # a capitalized word may be the name of a person or a place
        and is_shareable(path, word)
        for word, runs in runs_by_word.items()
    )
    return tuple(sorted(runs_by_word)) if is_closed else ()


def is_about_values(failure: Failure) -> bool:
    """Return whether a failure rejects the value of an argument."""
    return failure.kind.code in _REJECTION_CODES


def has_enough_calls(profile: ValueProfile) -> bool:
    """Return whether a profile rests on enough calls and runs to be told."""
    return profile.calls >= MIN_FACT_CALLS and profile.runs >= MIN_FACT_RUNS


def select_facts(
    value_profiles: Iterable[ValueProfile], failure: Failure, arguments: Mapping[str, Any]
) -> list[ValueProfile]:
    """Return the profiles to tell after a failure: of the arguments that the error names, with a value outside.

    Each profile is reduced to the one fact that the value contradicts.
    """
    if not is_about_values(failure):
        return []
    lines = f"{failure.message}\n{failure.detail}".splitlines()
    text = "\n".join(line for line in lines if not line.startswith("mulligan:"))  # our own notes are not the error
    members = dict(_iter_members(arguments))
    facts: list[ValueProfile] = []
    for profile in value_profiles:
        if has_enough_calls(profile) and names_argument(text, profile.argument.rpartition(".")[2]):
            fact = _find_contradicted_fact(profile, members)
            facts += [] if fact is None else [fact]
    return facts[:MAX_FACTS]


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
