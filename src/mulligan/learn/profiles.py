"""Rules for which fixes a model may see (LEARNING.md, "Telling"). Plain functions of fix records and profiles.

A change of form (cast, rename, trim) and a prerequisite may be shown after they succeeded in two runs. A concrete value
is shown only if it is a setting: it replaced different values, or one value in different calls, and the old value never
succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.core.calls import TOOL_NAME_PATH, wilson_lower_bound
from mulligan.core.privileged_arguments import is_privileged
from mulligan.core.records import LAST_PATH_SEGMENT, REQUOTED, RUN_SPECIFIC, Change
from mulligan.learn.fixes import RETRY_ACTION, FixRecord, hash_value

MIN_SHARED_CONFIDENCE = 0.5
MAX_SETTING_VALUES = 8
"""Maximum number of different values in successful calls for an argument to count as a setting."""
MIN_PROFILED_CALLS = 4
"""From this number of successful calls on, a setting must also repeat its values."""
LAST_CORRECTIONS = 3
_FORMS = frozenset({"cast", "rename", "parse", "wrap", "trim", "drop"})


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
    names = dict.fromkeys(name for _, arguments in recorded_calls for name in arguments)
    profile: dict[str, ArgumentProfile] = {}
    for name in names:
        argument = profile[str(name)] = ArgumentProfile()
        for started, arguments in recorded_calls:
            argument.count += 1
            key = hash_value(arguments.get(name))
            argument.hashes[key] = argument.hashes.get(key, 0) + 1
            argument.last_uses[key] = max(started, argument.last_uses.get(key, 0))
    return profile


def find_hidden_reason(
    tally: FixRecord,
    peers: Sequence[FixRecord],
    agent: str,
    profile: Callable[[], Profile],
    items: Callable[[], Collection[str]] = tuple,
) -> str:
    """Return why a fix is hidden from the model; empty if it may be shown.

    `peers` are the fixes of the same pattern and tool that change one of its arguments, or for a prerequisite those
    that change nothing. `profile` and `items`, the arguments that name items, are called only for a concrete value.
    """
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
    for change in tally.action.changes:
        rivals = [peer for peer in peers if peer.id != tally.id and peer.successes and _contradicts(peer, change)]
        if not rivals:
            continue
        is_own = agent in tally.agents
        is_latest = _is_latest(tally, [peer for peer in peers if _changes_path(peer, change)])
        is_doubtful = any(agent in rival.agents for rival in rivals) and not is_latest
        if not is_own or is_doubtful:
            return f"other agents or later runs contradict it for {change.path}"
    settings = [change for change in tally.action.changes if is_concrete(change)]
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
        rivals = [peer for peer in peers if _changes_path(peer, change)]
        if _is_latest(tally, rivals) and not _has_worked_since(tally, argument):
            continue  # all of the last corrections led to it, so earlier values do not matter
        if not tally.old_values.keys().isdisjoint(argument.hashes):
            return f"the value of {change.path} that it replaces has also succeeded"
        if not argument.is_setting:
            return f"{change.path} takes too many values to be a setting"
    return ""


def _has_worked_since(tally: FixRecord, argument: ArgumentProfile) -> bool:
    """Return whether a replaced value has succeeded since the fix did, so that the value was not the cause."""
    first = min((vote[0] for vote in tally.recent if vote[2]), default=0)
    return any(argument.last_uses.get(value, 0) > first for value in tally.old_values)


def is_concrete(change: Change) -> bool:
    """Return whether a change sets a value, instead of converting the form of the call's own value."""
    return (
        change.operation not in _FORMS
        and change.operation != "enum"
        and change.after not in (RUN_SPECIFIC, LAST_PATH_SEGMENT, REQUOTED)
    )


def _changes_path(tally: FixRecord, change: Change) -> bool:
    return any(other.path == change.path for other in tally.action.changes)


def _contradicts(tally: FixRecord, change: Change) -> bool:
    """Return whether a fix changes the same argument to something else."""
    return any(
        other.path == change.path
        and _result_of(other) != _result_of(change)
        and RUN_SPECIFIC not in (other.after, change.after)
        for other in tally.action.changes
    )


def _result_of(change: Change) -> tuple[str, str]:
    """Return the result of a change. Equal values are equal results, whether clamped or substituted."""
    return "value" if is_concrete(change) else change.operation, hash_value(change.after)


def _is_latest(tally: FixRecord, tallies: Sequence[FixRecord]) -> bool:
    """Return whether the last corrections of an argument all led to this one."""
    results = {(change.path, *_result_of(change)) for change in tally.action.changes}
    votes = sorted(
        (at, peer.id, {(change.path, *_result_of(change)) for change in peer.action.changes} == results)
        for peer in tallies
        for at, _, is_success, _ in peer.recent
        if is_success
    )
    latest = votes[-LAST_CORRECTIONS:]
    return len(latest) == LAST_CORRECTIONS and all(is_equal for _, _, is_equal in latest)
