"""Decides whether a model reads a fix, one function a rule (LEARNING.md, "Telling").

Evidence is what happened without advice. A success of a model that had read a fix does not count for it; a failure
counts against it. A value that a tool never accepted is wrong in itself, so little evidence is enough. A value that
succeeds elsewhere failed because of the state of the world: what to do then is often a choice, and takes much evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from mulligan.contract.store import DAY, hash_value
from mulligan.core.argument_rejections import TextVerdict
from mulligan.core.calls import TOOL_NAME_PATH, wilson_lower_bound
from mulligan.core.privileged_arguments import is_privileged
from mulligan.core.quantity_arguments import is_number, names_object
from mulligan.core.records import HIDDEN_VALUE, LAST_PATH_SEGMENT, REQUOTED, RUN_SPECIFIC, Change, Effects
from mulligan.core.stated_limits import follows_direction
from mulligan.learn.decisions import find_decision
from mulligan.learn.fixes import RETRY_ACTION, Episode, FixRecord, hash_replaced, list_episodes

MIN_SHARE_OF_REJECTED = 0.5
"""Lower bound of the share that a fix of a value needs which the tool never accepted: 2 of 2."""
MIN_SHARE_OF_ACCEPTED = 0.75
"""The same for a value that succeeds elsewhere, and for calls in between without contrast: 5 of 5."""
MIN_POSSIBLE_SUCCESSES: dict[TextVerdict, int] = {"rejection": 3, "neither": 3, "state": 5}
"""Successes that a fix needs if the calls may have had another intent, by what the error says: it rejects what was
asked, neither, or it describes the state of the world."""
MAX_CHANCE = 0.05
"""Likelihood up to which it is no chance that a value always fails together with a value of another argument."""
FAILED_TWICE = "failed twice in a row"
MAY_BE_CHOICE = "the value that it replaces succeeds elsewhere, so that it may be a choice"
MAX_CONDITION_VALUES = 12
"""Values of an argument on which a fix may depend."""
_FORMS = frozenset({"cast", "rename", "parse", "wrap", "trim", "drop", "enum"})
_CONVERSIONS = (LAST_PATH_SEGMENT, REQUOTED)
_ABSENT = hash_value(None)


class AcceptedCall(msgspec.Struct, frozen=True):
    """A recent successful call of a tool."""

    agent: str
    hashes: Mapping[str, str]
    """By argument: the hash of its value."""


class Profile(msgspec.Struct, frozen=True):
    """The values that a tool accepted in recent calls. An argument that a call leaves to its default is absent."""

    calls: Sequence[AcceptedCall] = ()

    def select(self, agent: str) -> Sequence[AcceptedCall]:
        """Return the calls of an agent; all calls if it has none."""
        return [call for call in self.calls if call.agent == agent] or self.calls

    def list_values(self, name: str) -> set[str]:
        """Return the hashes of the different values of an argument."""
        return {call.hashes.get(name, _ABSENT) for call in self.calls}


class FailedCall(msgspec.Struct, frozen=True):
    """What is known of the call that a fix is wanted for. For a list of all fixes, nothing is."""

    agent: str = ""
    hashes: Mapping[str, str] = {}
    """By argument: the hash of its value; empty if unknown."""
    numbers: Mapping[str, float] = {}
    """By argument: its value, if that is a number."""
    verdict: TextVerdict = "rejection"
    """Whether its error rejects what was asked, describes the state of the world, or does neither."""
    error: str = ""
    """The text of its error: it may say that a number is too large or too small."""


class Experience(msgspec.Struct, frozen=True):
    """What is known besides the fixes of a pattern. It is read only when a rule needs it."""

    load_profile: Callable[[], Profile]
    count_runs: Callable[[], int]
    """Return the number of runs with the pattern."""


def explain_silence(
    record: FixRecord, peers: Sequence[FixRecord], call: FailedCall, replaced: str, experience: Experience
) -> str:
    """Return why a model does not read a fix; empty if it does.

    `peers` are the fixes of the same pattern and tool, this one included, that change arguments, or for a prerequisite
    those that change nothing. `replaced` is the hash of the values that the fix would replace in the
    failed call; empty if they are unknown.
    """
    if reason := find_unspeakable_value(record) or _find_decision(record):
        return reason
    rivals = [peer for peer in peers if peer.id != record.id and peer.successes]
    if record.action.type == "prerequisite" and not record.action.changes:
        return _judge_prerequisite(record, rivals, peers)
    values = [change for change in record.action.changes if is_concrete(change)]
    if record.action.tools or not values:
        return _judge_form(record, rivals)
    if call.hashes and not replaced and not any("." in change.path for change in values):
        return "the value that it would replace is too long to compare"
    olds = [replaced] if replaced else _list_old_values(list_episodes(record))
    reasons = [_judge_value(record, rivals, call, old, values, experience) for old in olds] or ["it never succeeded"]
    return "" if "" in reasons else reasons[0]


def _list_old_values(episodes: Sequence[Episode]) -> list[str]:
    """Return the old values that a fix replaced, those with most evidence first."""
    counts = Counter(episode.old_value for episode in episodes if episode.is_evidence)
    return sorted({episode.old_value for episode in episodes}, key=lambda old_value: (-counts[old_value], old_value))


def is_concrete(change: Change) -> bool:
    """Return whether a change sets a value, instead of converting the form of the call's own value."""
    if change.operation == "drop":
        return change.before is not None
    placeholders = (RUN_SPECIFIC, HIDDEN_VALUE, *_CONVERSIONS)
    return change.operation not in _FORMS and change.after not in placeholders and not change.form


# Rules for every fix


def _has_failed_lately(episodes: Sequence[Episode]) -> bool:
    return len(episodes) > 1 and not any(episode.successful for episode in episodes[-2:])


def find_unspeakable_value(record: FixRecord) -> str:
    """Return why a value may not be said. A call that supplies it may be, and so may a change of form."""
    for change in record.action.changes if not record.action.tools else ():
        is_form = change.operation in _FORMS or bool(change.form)
        if change.path != TOOL_NAME_PATH and is_privileged(change.path) and not is_form:
            return f"{change.path} is a privileged argument"
        if change.after == RUN_SPECIFIC:
            return f"the value of {change.path} is specific to its run"
        if change.after == HIDDEN_VALUE:
            return f"the value of {change.path} is hidden at redaction level shared"
    return ""


def _find_decision(record: FixRecord) -> str:
    """Return why a person must decide. The effects of calls in between are unknown here: their names decide."""
    calls: dict[str, Effects | None] = dict.fromkeys(record.action.tools, "idempotent")
    return find_decision(record.tool, record.action.changes, calls)


def _judge_share(successes: int, others: int, min_share: float) -> str:
    """Return why a fix has not succeeded often enough without advice; empty if it has."""
    if wilson_lower_bound(successes, successes + others) >= min_share:
        return ""
    if not successes:
        return "never succeeded without advice"
    if not others:
        return f"succeeded without advice {_times(successes)}, which may be chance"
    return f"succeeded without advice {_times(successes)}, and {_times(others)} something else did or it failed"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# Calls in between


def _judge_prerequisite(record: FixRecord, rivals: Sequence[FixRecord], peers: Sequence[FixRecord]) -> str:
    """Judge calls after which the same call succeeded: perhaps time did it, unless the error asks for them."""
    episodes = list_episodes(record)
    if _has_failed_lately(episodes):
        return FAILED_TWICE
    if any(peer.action == RETRY_ACTION for peer in rivals):
        return "the same call also succeeded without it"
    tools = frozenset(record.action.tools)
    # Contrast: repeated without one of these calls, it failed again.
    has_contrast = any(peer.trials > peer.successes for peer in peers if not tools.issubset(peer.action.tools))
    others = [
        episode
        for rival in rivals
        if not tools.issubset(rival.action.tools) and not _has_failed_lately(list_episodes(rival))
        for episode in list_episodes(rival)
    ]
    is_named = any(episode.names_calls for episode in episodes)
    min_share = MIN_SHARE_OF_REJECTED if has_contrast or is_named else MIN_SHARE_OF_ACCEPTED
    return _judge_share(_count_unadvised(episodes), _count_against(episodes, others), min_share)


def _count_unadvised(episodes: Iterable[Episode]) -> int:
    """Count the successes without advice: one a run, and those of one day with equal values before and after once.

    If all of them have equal values, they may be one coincidence.
    """
    evidence = [episode for episode in episodes if episode.is_evidence]
    pairs = {(episode.old_value, episode.other_values) if episode.old_value else episode.run for episode in evidence}
    if len(pairs) < 2:
        return len(pairs)
    days = {(episode.at // DAY, episode.old_value, episode.other_values) for episode in evidence if episode.old_value}
    return min(max(len(pairs), len(days)), len({episode.run for episode in evidence}))


# Changes of form, and lookups


def _judge_form(record: FixRecord, rivals: Sequence[FixRecord]) -> str:
    """Judge a change whose result each call supplies itself. A success counts, with advice and without.

    What else succeeded counts against it for the same old values only: others may have another form.
    """
    episodes = list_episodes(record)
    if _has_failed_lately(episodes):
        return FAILED_TWICE
    is_lookup = bool(record.action.tools)
    # Who knows the value need not look it up.
    peers = [rival for rival in rivals if rival.action.tools] if is_lookup else rivals
    against = [rival for rival in peers if any(_contradicts(rival, change) for change in record.action.changes)]
    old_values = {episode.old_value for episode in episodes}
    others = {
        (episode.run, episode.old_value)
        for rival in against
        for episode in list_episodes(rival)
        if episode.successful and episode.old_value in old_values
    }
    # A looked-up value is another one in each run. Its old value may be redacted.
    successes = {
        episode.run if is_lookup else episode.old_value or episode.run for episode in episodes if episode.successful
    }
    failed_runs = {episode.run for episode in episodes if not episode.successful}
    return _judge_share(len(successes), len(others) + len(failed_runs), MIN_SHARE_OF_REJECTED)


def _contradicts(record: FixRecord, change: Change) -> bool:
    """Return whether a fix changes the same argument to something else."""
    return any(other.path == change.path and _result_of(other) != _result_of(change) for other in record.action.changes)


def _result_of(change: Change) -> tuple[str, str, str]:
    """Return the result of a change. Equal values are equal results, whether clamped or substituted."""
    return change.path, "value" if is_concrete(change) else change.operation, hash_value(change.after)


# Values


def _judge_value(
    record: FixRecord,
    rivals: Sequence[FixRecord],
    call: FailedCall,
    old_value: str,
    values: Sequence[Change],
    experience: Experience,
) -> str:
    """Judge a value that other calls used, for a call whose old value has this hash."""
    results = {_result_of(change) for change in record.action.changes}
    against = [
        rival
        for rival in rivals
        # Which value was looked up is unknown: it may be this one.
        if not rival.action.tools
        and {_result_of(change) for change in rival.action.changes} != results
        and not _keeps_bound(rival, record)
    ]
    if all(change.operation == "drop" for change in values):
        # To leave an argument out is one change, whatever its value was.
        agreeing = [rival for rival in rivals if {_result_of(change) for change in rival.action.changes} == results]
        success_count = sum(fix.successes for fix in (record, *agreeing))
        episodes = [episode for fix in (record, *agreeing) for episode in list_episodes(fix)]
    else:
        success_count = record.successes
        episodes = [episode for episode in list_episodes(record) if episode.old_value == old_value]
    if not any(episode.successful for episode in episodes):
        return _judge_unseen_value(record, against, call, values, experience)
    other_episodes = [
        _add_old_value(episode, rival)
        for rival in against
        if not _is_superseded(rival, record, call)
        for episode in list_episodes(rival)
        if episode.successful and _had_value(rival, episode, values, old_value)
    ]
    if call.agent and any(episode.agent == call.agent for episode in episodes) and other_episodes:
        # Where agents differ, each reads its own experience.
        episodes = [episode for episode in episodes if episode.agent == call.agent]
        other_episodes = [episode for episode in other_episodes if episode.agent == call.agent]
    required = _find_required_evidence(record, call, old_value, episodes)
    contradictions = {episode.run for episode in other_episodes if record.id in episode.ignored_fixes}
    if len(contradictions) > success_count - _count_unadvised(episodes):
        return f"{_times(len(contradictions))} models that had read it did something else"
    if required.share < MIN_SHARE_OF_ACCEPTED:
        # What a model does that has read the fix does not say how often it is right without advice.
        other_episodes = [episode for episode in other_episodes if record.id not in episode.ignored_fixes]
    accepted_calls = _find_accepted_calls(experience.load_profile(), values, old_value, call.agent)
    if accepted_calls:
        is_possible = any(episode.is_possible for episode in episodes)
        if is_possible and call.verdict == "state" and any(change.operation != "drop" for change in values):
            return MAY_BE_CHOICE  # or the next item
        deciding = list(_find_deciding_arguments(call, [*episodes, *other_episodes], accepted_calls))
        if not all(_judge_condition(condition, episodes, other_episodes, required) for condition in deciding):
            return ""
        if is_possible and call.verdict != "rejection":
            return MAY_BE_CHOICE
        ended_otherwise = max(_count_against(episodes, other_episodes), experience.count_runs() - success_count)
        return _judge_share(_count_unadvised(episodes), ended_otherwise, MIN_SHARE_OF_ACCEPTED)
    others = [*other_episodes, *(episode for episode in episodes if not episode.successful)]
    if not others:
        reason = _judge_rejected(episodes, (), required)
        return reason and _judge_unseen_value(record, against, call, values, experience) and reason
    # Where it failed, or something else succeeded, another argument may decide.
    successes = [episode for episode in episodes if episode.successful]
    conditions = list(_find_conditions(successes, others, call))
    for name in conditions:
        condition_evidence = PROVEN_CONDITION if _decides(name, successes, others) else required
        if not _judge_condition(Condition(name, call.hashes[name]), episodes, (), condition_evidence):
            return ""
    if conditions:
        return f"with other values of {' or '.join(conditions)}, something else succeeded"
    if _has_failed_lately(episodes):
        return FAILED_TWICE
    return _judge_rejected(episodes, other_episodes, required)


class RequiredEvidence(msgspec.Struct, frozen=True):
    """How often a fix must have succeeded without advice."""

    successes: int
    share: float
    counts_followed: bool
    """Whether successes with advice count too. A model may have read the fix after its second attempt, so that nothing
    shows what overcomes the first. If the fix has evidence elsewhere, it counts that it succeeded here."""


PROVEN_CONDITION = RequiredEvidence(2, MIN_SHARE_OF_REJECTED, counts_followed=False)
"""The evidence for one value of an argument that decides beyond chance which replacement succeeds."""


def _find_required_evidence(
    record: FixRecord, call: FailedCall, old_value: str, episodes: Sequence[Episode]
) -> RequiredEvidence:
    """Return the evidence that the replacement of a value needs which the tool never accepted."""
    counts_followed = _count_unadvised(list_episodes(record)) > 1
    if any(change.operation != "drop" for change in record.action.changes) and old_value == _ABSENT:
        # Nothing was wrong that this replaces: what is missing may be another value for each user.
        # Successes that a value needs which was missing: it may be another one for each user.
        return RequiredEvidence(5, MIN_SHARE_OF_ACCEPTED, counts_followed=False)
    if any(episode.is_possible for episode in episodes):
        min_share = MIN_SHARE_OF_ACCEPTED if call.verdict == "state" else MIN_SHARE_OF_REJECTED
        return RequiredEvidence(MIN_POSSIBLE_SUCCESSES[call.verdict], min_share, counts_followed)
    share = MIN_SHARE_OF_REJECTED if call.verdict == "rejection" else MIN_SHARE_OF_ACCEPTED
    return RequiredEvidence(0, share, counts_followed and call.verdict == "rejection")


def _judge_rejected(episodes: Sequence[Episode], other_episodes: Sequence[Episode], required: RequiredEvidence) -> str:
    """Judge the replacement of a value that the tool never accepted."""
    successes = _count_unadvised(episodes)
    if required.counts_followed:
        successes = max(successes, len({episode.run for episode in episodes if episode.successful}))
    if successes < required.successes:
        return _judge_share(successes, 0, 1.0)
    return _judge_share(successes, _count_against(episodes, other_episodes), required.share)


class Condition(msgspec.Struct, frozen=True):
    """An unchanged argument that decides whether a value succeeds."""

    name: str
    value: str = ""
    """The hash of its value; empty if any value counts, in contrast to none."""

    def applies_to(self, episode: Episode) -> bool:
        value = episode.conditions.get(self.name, _ABSENT)
        return value == self.value if self.value else value != _ABSENT


def _judge_condition(
    condition: Condition, episodes: Sequence[Episode], other_episodes: Sequence[Episode], required: RequiredEvidence
) -> str:
    """Judge a value by the episodes that meet a condition, as this call does."""
    same, others = (list(filter(condition.applies_to, both)) for both in (episodes, other_episodes))
    return FAILED_TWICE if _has_failed_lately(same) else _judge_rejected(same, others, required)


def _find_deciding_arguments(
    call: FailedCall, episodes: Sequence[Episode], accepted_calls: Sequence[AcceptedCall]
) -> Iterable[Condition]:
    """Yield the arguments with whose value here the old value always failed, while it succeeded with others.

    The old value may be accepted or not by chance, as a free slot is. Then it would have been accepted here as well.
    """
    failed_runs = {episode.run for episode in episodes}
    failure_rate = len(failed_runs) / (len(failed_runs) + len(accepted_calls))
    for name, value in call.hashes.items():
        accepted_values = {accepted.hashes.get(name, _ABSENT) for accepted in accepted_calls}
        condition = Condition(name, "" if accepted_values == {_ABSENT} else value)
        runs = {episode.run for episode in episodes if condition.applies_to(episode)}
        if (
            value not in accepted_values
            and failure_rate ** len(runs) <= MAX_CHANCE
            and len(accepted_values) <= MAX_CONDITION_VALUES
        ):
            yield condition


def _keeps_bound(rival: FixRecord, record: FixRecord) -> bool:
    """Return whether two fixes replaced larger numbers, and the rival by a smaller one, or the reverse."""
    if len(record.action.changes) != 1 or len(rival.action.changes) != 1:
        return False
    [change], [other] = record.action.changes, rival.action.changes
    if change.path != other.path or names_object(change.path):
        return False
    if not is_number(change.after) or not is_number(other.after):
        return False
    bound = change.after
    numbers = [episode.number for fix in (record, rival) for episode in list_episodes(fix) if episode.successful]
    old_numbers = [number for number in numbers if number is not None]
    if not old_numbers or len(old_numbers) < len(numbers):
        return False
    return other.after < bound < min(old_numbers) or max(old_numbers) < bound < other.after


def _find_accepted_calls(
    profile: Profile, changes: Sequence[Change], old_value: str, agent: str
) -> Sequence[AcceptedCall]:
    """Return the calls that succeeded with the replaced values."""
    paths = [change.path for change in changes]
    return [call for call in profile.select(agent) if hash_replaced(paths, call.hashes) == old_value]


def _is_superseded(rival: FixRecord, record: FixRecord, call: FailedCall) -> bool:
    """Return whether a rival failed after its last success, and the fix succeeded twice since then: a limit changed."""
    episodes = list_episodes(rival)
    last_success = max((episode.at for episode in episodes if episode.successful), default=0)
    newer_runs = {episode.run for episode in list_episodes(record) if episode.successful and episode.at > last_success}
    if episodes[-1].successful or len(newer_runs) < 2:
        return False
    successes = [episode for episode in episodes if episode.successful]
    failures = [episode for episode in episodes if not episode.successful]
    return not any(_find_conditions(successes, failures, call))


def _add_old_value(episode: Episode, record: FixRecord) -> Episode:
    """Return an episode whose conditions include the value that the only change replaced."""
    [change, *more] = record.action.changes
    conditions = {**episode.conditions, change.path: episode.old_value}
    return episode if more or "." in change.path else msgspec.structs.replace(episode, conditions=conditions)


def _had_value(rival: FixRecord, episode: Episode, changes: Sequence[Change], old_value: str) -> bool:
    """Return whether a rival overcame a failure of a call with the old value.

    More changes may be those of the next item, unless they include these.
    """
    results, rival_results = (set(map(_result_of, both)) for both in (changes, rival.action.changes))
    paths, rival_paths = ({path for path, *_ in both} for both in (results, rival_results))
    if rival_paths == paths:
        return episode.old_value == old_value
    if len(rival_paths) > len(paths):
        return results < rival_results
    condition = episode.conditions.get(changes[0].path.partition(".")[0], old_value)
    return len(changes) > 1 or condition == old_value


def _count_against(episodes: Iterable[Episode], other_episodes: Iterable[Episode]) -> int:
    """Count the runs in which a fix failed, or something else succeeded without advice."""
    failed_runs = {episode.run for episode in episodes if not episode.successful}
    return len(failed_runs) + _count_unadvised(other_episodes)


def _find_conditions(
    successes: Sequence[Episode], other_episodes: Sequence[Episode], call: FailedCall
) -> Iterable[str]:
    """Yield the unchanged arguments whose value seems to decide whether this fix succeeds."""
    for name in call.hashes:
        own_values = {episode.conditions.get(name) for episode in successes}
        others = {episode.conditions.get(name) for episode in other_episodes}
        values = own_values | others
        # Values that hardly recur name items, and differ between any two calls.
        recurs = 2 * len(values) <= len(successes) + len(other_episodes)
        if None not in values and own_values.isdisjoint(others) and recurs and len(values) <= MAX_CONDITION_VALUES:
            yield name


def _decides(name: str, successes: Sequence[Episode], other_episodes: Sequence[Episode]) -> bool:
    """Return whether an argument that separates a fix from its rivals does so beyond chance.

    If nothing decided, a call with an earlier value of the argument would often have another outcome than that one.
    """
    total = len(successes) + len(other_episodes)
    repeats = total - len({episode.conditions.get(name) for episode in (*successes, *other_episodes)})
    share = len(successes) / total
    return (share**2 + (1 - share) ** 2) ** repeats <= MAX_CHANCE


def _judge_unseen_value(
    record: FixRecord,
    against: Sequence[FixRecord],
    call: FailedCall,
    values: Sequence[Change],
    experience: Experience,
) -> str:
    """Judge a value for a call whose old value it never replaced: a bound, or the only value that is accepted."""
    [change, *more] = values
    if more or any(rival.successes for rival in against):
        return f"it never replaced the value that {change.path} has here"
    episodes = list_episodes(record)
    old_count = len({episode.old_value for episode in episodes if episode.is_evidence})
    old_count = min(old_count, _count_unadvised(episodes))  # one a run
    failed_count = _count_against(episodes, ())
    if is_number(change.after):
        olds = [episode.number for episode in episodes if episode.successful]
        # Without a call, one of the earlier ones stands for it.
        number, bound = call.numbers.get(change.path) if call.hashes else next(iter(olds), None), change.after
        numbers = [old for old in olds if old is not None]
        if number is None or not numbers or len(numbers) < len(olds):
            return f"it never replaced the value that {change.path} has here"
        is_upper = min(numbers) > bound and number > bound
        is_lower = max(numbers) < bound and number < bound
        if (is_upper or is_lower) and follows_direction(call.error, number, bound):
            old_count = _count_unadvised(episodes)  # the error says that the number is too large, or too small
        elif not (is_upper or is_lower) or old_count < 2 or not min(numbers) <= number <= max(numbers):
            return f"{change.path}={change.after} is no bound of what {change.path} was in earlier calls"
        min_share = MIN_SHARE_OF_REJECTED if call.verdict == "rejection" else MIN_SHARE_OF_ACCEPTED
        return _judge_share(old_count, failed_count, min_share)
    if experience.load_profile().list_values(change.path.partition(".")[0]) - {hash_value(change.after)}:
        return f"{change.path} takes other values too"
    return _judge_share(old_count, failed_count, MIN_SHARE_OF_ACCEPTED)
