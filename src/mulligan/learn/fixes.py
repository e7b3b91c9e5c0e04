"""Trials of fixes, their votes, and the rules for promotion (SAFETY S3).

A trial is a failed call with the next attempt and its outcome. Learning uses these pairs, not lone successes. A
`FixRecord` counts the trials of one fix, one vote per run. The functions are pure, so every store gets the same result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec

from mulligan.contract.store import (
    DAY,
    IMPORT_PREFIX,
    Revocation,
    TrialReport,
    hash_arguments,
    hash_value,
    is_import_principal,
)
from mulligan.core import calls, fork_safety
from mulligan.core.argument_comparison import FORM_OPERATIONS, diff_calls, is_hidden
from mulligan.core.call_facts import RecentSuccess
from mulligan.core.calls import Call, wilson_lower_bound
from mulligan.core.links import MAX_RECENT_SUCCESSES, RunProgress
from mulligan.core.privileged_arguments import is_privileged, split_words
from mulligan.core.quantity_arguments import is_number, names_object
from mulligan.core.records import (
    ANY_FIX,
    HIDDEN_VALUE,
    LAST_PATH_SEGMENT,
    REQUOTED,
    RUN_SPECIFIC,
    Change,
    Fix,
    FixState,
    Link,
    Record,
    Run,
    Step,
    fix_id,
)
from mulligan.redaction.plain_data import HIDDEN_VALUE_PATTERN
from mulligan.redaction.regex import LazyRegex

LOCAL_PRINCIPAL = "local"
"""Principal of records that name none."""

MAX_RECENT_VOTES = 20
MAX_SHOWN_AGENTS = 10
"""Agents listed with a fix: those with the most successes."""
FixActionType = Literal["change", "prerequisite", "retry"]


class FixAction(Record, frozen=True):
    """Action of a fix, without run-specific values. Its encoding is part of the fix id."""

    type: FixActionType = "change"
    changes: tuple[Change, ...] = ()
    tools: tuple[str, ...] = ()
    """Prerequisites: the tools called between failure and success, each once, ordered by last call."""

    @property
    def is_form(self) -> bool:
        """Whether it keeps the values of a call, which then supplies the result itself."""
        return not self.tools and all(
            change.operation in FORM_OPERATIONS or change.form or change.after == REQUOTED for change in self.changes
        )


RETRY_ACTION = FixAction(type="retry")


TrialActor = Literal["caller", "fix", "rule"]
"""Author of a change: the program or its model, a stored fix, or a repair rule (schema, error, run)."""
TRIAL_ACTORS: tuple[TrialActor, ...] = ("caller", "fix", "rule")
"""Ordered by the numbers that the database stores for them."""


class TrialDetails(Record, frozen=True):
    """What decides whether a trial is evidence, and for which calls."""

    has_advice: bool = False
    """Whether the model had read the fix, or for a prerequisite any advice. Then a success is no evidence for it."""
    number: float | None = None
    """The replaced value, if it is a number: several of them show a bound."""
    conditions: dict[str, str] = msgspec.field(default_factory=dict)
    """Hashes of the unchanged arguments."""
    names_calls: bool = False
    """Whether the error has a word of each call in between: "not authenticated" before `authenticate_user`."""
    is_possible: bool = False
    """Whether the call may have had another intent. Then a success promotes nothing."""
    ignored_fixes: tuple[str, ...] = ()
    """Other fixes that the model had read, by id."""

    @property
    def episode_fields(self) -> tuple[float | None, dict[str, str], bool, bool, tuple[str, ...]]:
        """The details besides advice."""
        return self.number, self.conditions, self.names_calls, self.is_possible, self.ignored_fixes


class Trial(msgspec.Struct, frozen=True):
    """One use of a fix: a failed call or attempt, the action of the next one, and its outcome.

    Identified by the ids of the two calls or attempts.
    """

    failed_call: int
    tried_call: int
    step: Step
    """The failed step."""
    action: FixAction
    successful: bool
    at: int
    actor: TrialActor = "caller"
    prerequisite_calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Calls of a prerequisite with their compact arguments."""
    content: str = ""
    """Hash of the arguments before and after. Equal trials count as one vote."""
    old_value: str = ""
    """Hash of the replaced values."""
    other_values: str = ""
    """Hash of the unchanged arguments."""
    details: TrialDetails | None = None

    @property
    def fix(self) -> str:
        return fix_id(self.step.tool_key, self.fingerprint, self.action)

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.step)


def find_trials(
    before: RunProgress, call: Call, links: Iterable[Link], withdrawn: Collection[int], *, is_final: bool
) -> list[Trial]:
    """Return the trials of a call, from the run's progress before it and the links to the calls it re-issues.

    Provisional and possible links are skipped: they are confirmed or refuted when the run has ended.
    """
    if not (before.open or len(call.steps) > 1):
        return []
    if is_final and call.id not in withdrawn:
        possible_links = (link for link in call.last.links if link.possible)
        links = (*links, *(msgspec.structs.replace(link, provisional=False) for link in possible_links))
    trials = [_trial_of_attempts(attempt, later) for attempt, later in pairwise(call.steps)]
    failures = {failure.call.id: failure.call for failure in before.open}
    failures |= {member.call.id: member.call for failure in before.open for member in failure.members}
    for link in links:
        is_unknown = link.method == "agent" and not link.changes  # no action to repeat
        if link.failed_call in failures and link.failed_call != call.id and not (link.provisional or is_unknown):
            trials.append(_trial_of_link(before, failures[link.failed_call], call, link))
    return [trial for trial in trials if trial is not None]


def _trial_of_attempts(attempt: Step, later: Step) -> Trial | None:
    recovery = later.recovery
    if not _has_fingerprint(attempt) or later.outcome not in ("success", "failure"):
        return None
    if recovery is not None and not (recovery.changes or recovery.prerequisites or calls.is_retry(recovery)):
        return None  # the recovery did not change the call, so it is not repeatable
    changes = recovery.changes if recovery is not None else diff_calls(attempt, later)
    actor: TrialActor = "caller"
    if recovery is not None and (recovery.changes or recovery.prerequisites):
        actor = "rule" if recovery.fix_id is None else "fix"
    action = to_action(changes)
    if recovery is not None and recovery.prerequisites:
        action = FixAction(type="prerequisite", tools=recovery.prerequisites)
    if action is None:
        return None
    return Trial(
        attempt.seq, later.seq, attempt, action, later.outcome == "success", later.started_at, actor, (),
        *_hash_trial(attempt, later, changes), _find_details(attempt, action, changes),
    )  # fmt: skip


def _trial_of_link(before: RunProgress, failed: Call, call: Call, link: Link) -> Trial | None:
    step = next((attempt for attempt in reversed(failed.steps) if attempt.has_failed), failed.last)
    if not _has_fingerprint(step) or _is_cured_by_time(step, link):
        return None
    calls_between: list[RecentSuccess] = []
    # The error names an argument that is left out. Otherwise leaving it out is a correction of its value alone.
    names_dropped = "same_values" in link.evidence
    action = to_action(link.changes, link.intermediate_tools, keeps_dropped=not names_dropped)
    if action is RETRY_ACTION and link.method == "prerequisite":
        if len(before.recent) == MAX_RECENT_SUCCESSES and before.recent[0].call > failed.id:
            return None  # the list of recent calls is full: earlier prerequisites may be missing from it
        changing_tools = frozenset(link.intermediate_tools)
        later_successes = (success for success in before.recent if success.call > failed.id)
        latest = {success.name: success for success in later_successes if success.name in changing_tools}
        calls_between = sorted(latest.values(), key=lambda success: success.call)
        if calls_between:
            action = FixAction(type="prerequisite", tools=tuple(success.name for success in calls_between))
    is_same_failure = step.failure and call.failure and step.failure.fingerprint == call.failure.fingerprint
    if action is None or not (call.has_succeeded or is_same_failure):
        return None  # a different failure means that this one was passed: no vote against the action
    return Trial(
        failed.id, call.id, step, action, call.has_succeeded, call.last.started_at, "caller",
        tuple((success.name, success.arguments) for success in calls_between),
        *_hash_trial(failed.last, call.last, link.changes),
        _find_details(step, action, link.changes, link.advice, is_possible=link.possible),
    )  # fmt: skip


def _find_details(
    failed: Step,
    action: FixAction,
    changes: Sequence[Change],
    advice: Collection[str] = (),
    *,
    is_possible: bool = False,
) -> TrialDetails:
    id = fix_id(failed.tool_key, _fingerprint(failed), action)
    arguments = failed.arguments if isinstance(failed.arguments, Mapping) else {}
    roots = {change.path.partition(".")[0] for change in changes}
    others = {str(name): value for name, value in arguments.items() if name not in roots}
    # Fixes stored with a trial that the model had read and did not follow, the latest.
    return TrialDetails(
        has_advice=bool(advice) if action.tools else not {id, ANY_FIX}.isdisjoint(advice),
        number=_find_number(changes),
        conditions=hash_conditions(others),
        names_calls=bool(action.tools) and all(_names_tool(failed, tool) for tool in action.tools),
        is_possible=is_possible,
        ignored_fixes=tuple(fix for fix in advice if fix not in (id, ANY_FIX))[-4:],
    )


def _names_tool(failed: Step, tool: str) -> bool:
    error = failed.failure.message[:MAX_ERROR_CHARS] if failed.failure else ""
    words = (word for word in split_words(tool) if len(word) > 2)
    stems = (re.escape(word[: max(4, len(word) - 2)]) for word in words)
    return any(re.search(rf"\b{stem}", error, re.IGNORECASE) for stem in stems)


MAX_ERROR_CHARS = 2000


def hash_conditions(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the hashes of short values, by argument."""
    hashes = ((name[:80], value) for name, value in hash_arguments(arguments) if value)
    # Unchanged arguments of a trial whose values are stored as hashes.
    return dict(list(hashes)[:8])


def _find_number(changes: Sequence[Change]) -> float | None:
    """Return the number that the only change replaced."""
    if len(changes) != 1 or isinstance(changes[0].before, bool) or not isinstance(changes[0].before, int | float):
        return None
    number = float(changes[0].before) if abs(changes[0].before) < 2**63 else math.inf
    return number if math.isfinite(number) else None


def _fingerprint(step: Step) -> str:
    return step.failure.fingerprint if step.failure else ""


def _is_cured_by_time(step: Step, link: Link) -> bool:
    """Return whether other values succeeded after a failure that no value causes."""
    has_new_value = any(change.operation not in FORM_OPERATIONS for change in link.changes)
    return has_new_value and step.failure is not None and step.failure.kind.is_cured_by_time


def _hash_trial(failed: Step, later: Step, changes: Sequence[Change]) -> tuple[str, str, str]:
    """Return hashes of the arguments before and after, of the changed values and of the other values, as stored."""
    arguments = failed.arguments if isinstance(failed.arguments, Mapping) else {}
    paths = [change.path for change in changes]
    roots = {path.partition(".")[0] for path in paths}
    others = {name: value for name, value in sorted(arguments.items()) if name not in roots}
    old_values = {root: arguments.get(root) for root in roots}
    # Values that redaction removed may differ.
    hashes = {root: "" if is_hidden(value) else hash_value(value) for root, value in old_values.items()}
    old_value = hash_replaced(paths, hashes)
    return hash_value((failed.arguments, later.arguments)), old_value, hash_value(others)


def hash_replaced(paths: Iterable[str], hashes: Mapping[str, str]) -> str:
    """Return the hash of the values that changes of these paths replace, from the hashes of a call's arguments.

    Empty if one of them is unknown.
    """
    roots = sorted({path.partition(".")[0] for path in paths})
    replaced = [hashes.get(root, _ABSENT) for root in roots]
    if "" in replaced:
        return ""
    return replaced[0] if len(replaced) == 1 else hash_value(replaced) if replaced else ""


_ABSENT = hash_value(None)


def _has_fingerprint(step: Step) -> bool:
    return step.has_failed and step.failure is not None and bool(step.failure.fingerprint)


# Shareable actions


def to_action(
    changes: Sequence[Change], sources: Sequence[str] = (), *, keeps_dropped: bool = False
) -> FixAction | None:
    """Return the action of these changes without run-specific values; None if there are too many changes.

    `sources` are the tools whose results supplied a changed value. Their calls become the prerequisite.
    `keeps_dropped` says that an argument was left out because of its value.
    """
    if not changes:
        return RETRY_ACTION
    # More changes make a different call, not a repaired one.
    if len(changes) > 4:
        return None
    shareable = (_share_dropped(change) if keeps_dropped else to_shareable(change) for change in changes)
    shareable_changes = tuple(sorted(shareable, key=lambda change: change.path))
    if sources and any(change.source == "run" for change in changes):
        return FixAction(type="prerequisite", tools=tuple(sources), changes=shareable_changes)
    return FixAction(changes=shareable_changes)


def _share_dropped(change: Change) -> Change:
    """Return the change as other runs can apply it. An argument that is left out keeps the value for which it was."""
    if change.operation != "drop" or change.before in (None, "", [], {}):
        return to_shareable(change)
    if change.privileged or not is_shareable(change.path, change.before):
        return Change(path=change.path, operation="substitute", after=RUN_SPECIFIC)
    return Change(path=change.path, operation="drop", before=change.before)


def to_shareable(change: Change) -> Change:
    """Return the change as other runs can apply it: argument and operation, without run-specific values."""
    path, operation, before, after = change.path, change.operation, change.before, change.after
    if change.form:
        return Change(path=path, operation="substitute", after=after)
    match operation:
        case "rename":
            return Change(path=path, operation=operation, after=after)
        case "drop" | "parse" | "wrap" | "trim":
            return Change(path=path, operation=operation)
        case "cast":
            return Change(path=path, operation=operation, after=_TYPE_NAMES.get(_type_name(after), "other"))
    if isinstance(before, str) and "/" in before and after and after == before.rstrip("/").rpartition("/")[2]:
        return Change(path=path, operation="trim", after=LAST_PATH_SEGMENT)
    if _is_requoted(before, after):
        return Change(path=path, operation="substitute", after=REQUOTED)
    if change.source != "run" and operation in ("substitute", "clamp") and (form := find_form(change)):
        with fork_safety.import_lock:
            from mulligan.core.transformations import encode_form  # lazy: few changes are a change of form
        return Change(path=path, operation="substitute", after=encode_form(before, form))
    if change.source != "run" and not change.privileged:
        if _is_hidden(after) and is_shareable(path, None):
            return Change(path=path, operation="substitute", after=HIDDEN_VALUE)
        if is_shareable(path, after):
            return Change(path=path, operation=operation, after=after)
    return Change(path=path, operation="substitute", after=RUN_SPECIFIC)


def find_form(change: Change) -> str:
    """Return the transformation that a change is. One of a privileged argument must not quote a part of its value."""
    is_private = change.privileged or is_privileged(change.path)
    with fork_safety.import_lock:
        from mulligan.core.transformations import find_transformations, keeps_identity  # lazy: for trials only
    names = find_transformations(change.before, change.after)
    return next((name for name in names if not is_private or keeps_identity(name)), "")


_TYPE_NAMES = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}
_HIDDEN_VALUE = LazyRegex(HIDDEN_VALUE_PATTERN)


def _is_hidden(value: Any) -> bool:
    return isinstance(value, str) and _HIDDEN_VALUE.fullmatch(value) is not None


def _type_name(value: Any) -> str:
    """Return the type of a value, also of one of which redaction left only the type."""
    return re.split(r"[][ ]", value)[1] if _is_hidden(value) else type(value).__name__


_QUOTE = LazyRegex(r"[\\\"'`]")


def _is_requoted(before: Any, after: Any) -> bool:
    if not isinstance(before, str) or not isinstance(after, str) or before.casefold() == after.casefold():
        return False
    if _QUOTE.search(before) is None and _QUOTE.search(after) is None:
        return False  # they differ in blanks alone
    plain_before, plain_after = (re.sub(r"\s", "", _QUOTE.sub("", text)) for text in (before, after))
    return bool(plain_before) and plain_before == plain_after


def is_shareable(path: str, value: Any) -> bool:
    """Return whether a value may be repeated in another run, if it recurs there: a short one, and not privileged."""
    # Longer texts belong to their run.
    if isinstance(value, str) and (len(value) > 60 or "\n" in value):
        return False
    return not is_privileged(path) and (value is None or isinstance(value, str | bool | int | float))


# Votes and fix records


class Vote(msgspec.Struct, frozen=True):
    """Counted trial of a fix by one run."""

    run: str
    principal: str
    agent: str
    at: int
    day: int
    """Day for which it counts in promotion. See `vote_day`."""
    successful: bool
    actor: TrialActor = "caller"
    content: str = ""
    old_value: str = ""
    other_values: str = ""
    details: TrialDetails | None = None
    """None for a vote of version 0.1.0, or one that was reported."""
    also_replaced: tuple[tuple[str, str, TrialDetails | None], ...] = ()
    """Old and other values of further successful trials of the run, which are no votes."""

    @classmethod
    def from_report(cls, report: TrialReport, stored_at: int) -> Vote:
        actor: TrialActor = "fix" if report.automatic else "caller"
        day = vote_day(report.principal, report.at, stored_at)
        return cls(report.run, report.principal, report.agent, report.at, day, report.successful, actor)

    @classmethod
    def from_trial(cls, run: Run, principal: str, stored_at: int, trial: Trial) -> Vote:
        return cls(
            run.id, principal, run.agent, trial.at, vote_day(principal, trial.at, stored_at), trial.successful,
            trial.actor,
            trial.content, trial.old_value, trial.other_values, trial.details,
        )  # fmt: skip


def vote_day(principal: str, at: int, stored_at: int) -> int:
    """Return the day for which a vote counts in promotion.

    For a principal with a token it is the day on which the server stored the run: the times in its records are its own
    claim, and runs dated on several days can arrive at once. Local programs share the clock of the store.
    """
    return (at if principal == LOCAL_PRINCIPAL else stored_at) // DAY


class DistinctTrial(msgspec.Struct, array_like=True):
    """Group of trials with equal content, by the program or its model. Counts as one vote for promotion."""

    day: int
    run: str
    principal: str
    successful: bool
    """Whether all of them succeeded."""


MAX_OLD_VALUES = 8
"""Distinct old values stored per fix, and distinct other values stored per old value."""


class Episode(msgspec.Struct, array_like=True, frozen=True):
    """A failure of one run, and whether a fix overcame it."""

    at: int
    run: str
    old_value: str
    other_values: str
    successful: bool
    has_advice: bool | None
    """None if it is unknown. `list_episodes` decides then."""
    agent: str = ""
    number: float | None = None
    conditions: dict[str, str] = msgspec.field(default_factory=dict)
    names_calls: bool = False
    is_possible: bool = False
    ignored_fixes: tuple[str, ...] = ()

    @property
    def is_evidence(self) -> bool:
        """Whether it succeeded without advice."""
        return self.successful and not self.has_advice


MAX_EPISODES = 32
"""Latest episodes stored per fix."""
UNADVISED_SUCCESSES = 2
"""Successes of a fix before which there was no advice. Where it is unknown, later ones may have followed advice."""


class FixRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counts and recent votes of one fix. Add one vote per run, in any order."""

    id: str
    tool: str
    fingerprint: str
    action: FixAction
    key: str = ""
    """Tool key; empty if the records have the bare tool name only."""
    trials: int = 0
    successes: int = 0
    followed: int = 0
    """Successes after the model had read the fix."""
    imported: int = 0
    principals: dict[str, int] = {}
    """Successes by principal."""
    days: list[int] = []
    """Latest days with a success, without imported logs."""
    agents: dict[str, int] = {}
    recent: list[tuple[int, str, bool, bool]] = []
    """Latest votes: time, run, whether it succeeded, whether the fix was applied automatically."""
    recent_applied_at: list[int] = []
    """Times of the latest automatic applications."""
    first_applied_at: int = 0
    """Time of the first automatic application; 0 if there is none."""
    paused_at: int = 0
    """Time at which it was paused, because it was applied or failed too often; 0 if it was not."""
    distinct_trials: dict[str, DistinctTrial] = {}
    """Votes for promotion by content hash."""
    old_values: dict[str, list[str]] = {}
    """Hashes of the replaced values, each with the hashes of the other arguments."""
    episodes: list[Episode] = []
    """Latest trials, as recorded. Empty in a record of version 0.1.0: use `list_episodes`."""

    @classmethod
    def from_trial(cls, trial: Trial) -> FixRecord:
        step = trial.step
        key = step.tool_key if step.key or step.server else ""
        return cls(id=trial.fix, tool=step.name, fingerprint=trial.fingerprint, action=trial.action, key=key)

    def add(self, vote: Vote) -> None:
        self._add_episodes(vote)
        is_applied = vote.actor == "fix"
        self.recent = sorted([*self.recent, (vote.at, vote.run, vote.successful, is_applied)])[-MAX_RECENT_VOTES:]
        if is_applied:
            self.first_applied_at = min(self.first_applied_at or vote.at, vote.at)
            self.recent_applied_at = sorted([*self.recent_applied_at, vote.at])[-MAX_RECENT_VOTES - 1 :]
            self.paused_at = self.paused_at or self._pause_time(vote.at)
            if vote.successful:
                self.add_old_value(vote)
                return  # a success of an automatic repair is no vote: a fix must not promote itself
        self.trials += 1
        is_imported = is_import_principal(vote.principal)
        self.imported += is_imported
        if vote.successful:
            self.successes += 1
            self.followed += vote.details is not None and vote.details.has_advice
            self.principals[vote.principal] = self.principals.get(vote.principal, 0) + 1
            self.agents[vote.agent] = self.agents.get(vote.agent, 0) + 1
            if not is_imported and vote.day not in self.days:
                self.days = sorted([*self.days, vote.day])[-MAX_RECENT_VOTES:]
            self.add_old_value(vote)
        is_possible = vote.details is not None and vote.details.is_possible
        if vote.actor != "rule" and not self._follows_advice(vote) and not (is_possible and vote.successful):
            self._add_distinct_trial(vote)

    def _follows_advice(self, vote: Vote) -> bool:
        """Return whether a model succeeded because it had read the fix, which promotes no value and no prerequisite."""
        is_advised = vote.details is not None and vote.details.has_advice
        return vote.successful and is_advised and not self.action.is_form

    def add_further_values(self, vote: Vote) -> None:
        """Add the values that another successful trial of a run replaced. It is no vote."""
        self._add_episodes(vote)
        self.add_old_value(vote)

    def _add_episodes(self, vote: Vote) -> None:
        """Add what the run shows. A success of an automatic repair shows nothing."""
        replaced = {(vote.old_value, vote.other_values): vote.details}
        if vote.actor == "fix" and vote.successful:
            replaced = {}
        replaced |= {(old, other): details for old, other, details in vote.also_replaced if vote.successful}
        episodes = [
            Episode(
                vote.at, vote.run, old, other, vote.successful, None if details is None else details.has_advice,
                vote.agent, *(() if details is None else details.episode_fields),
            )
            for (old, other), details in replaced.items()
        ]  # fmt: skip
        if episodes:
            earlier_episodes = self.episodes or _derive_episodes(self)
            self.episodes = select_episodes([*earlier_episodes, *episodes])

    def _add_distinct_trial(self, vote: Vote) -> None:
        content = vote.content or vote.run
        trial = DistinctTrial(vote.day, vote.run, vote.principal, vote.successful)
        existing = self.distinct_trials.get(content)
        if existing is not None:
            first = min(existing, trial, key=lambda trial: (trial.day, trial.run, trial.principal))
            trial = DistinctTrial(first.day, first.run, first.principal, existing.successful and vote.successful)
        # Sorted, so that the limit drops the same trials in any order of votes.
        # Distinct trials stored per fix.
        self.distinct_trials = dict(sorted({**self.distinct_trials, content: trial}.items())[:100])

    def add_old_value(self, vote: Vote) -> None:
        """Add the values that a successful trial replaced, also of one that is no vote."""
        own_values = [(vote.old_value, vote.other_values)] if vote.actor != "fix" else []
        for old, other in (*own_values, *(replaced[:2] for replaced in vote.also_replaced)):
            if old:
                other_values = sorted({*self.old_values.get(old, ()), other})[:MAX_OLD_VALUES]
                self.old_values = dict(sorted({**self.old_values, old: other_values}.items())[:MAX_OLD_VALUES])

    def _pause_time(self, at: int) -> int:
        """Return `at` if the fix must be paused, else 0.

        On the day of its first automatic application: more than 20 within an hour. Later: more than a fifth of the
        last 20 votes failed.
        """
        if at - self.first_applied_at < DAY:
            applied_at = self.recent_applied_at
            return at if len(applied_at) > MAX_RECENT_VOTES and applied_at[-1] - applied_at[0] < DAY // 24 else 0
        failed = sum(not successful for _, _, successful, _ in self.recent)
        return at if len(self.recent) == MAX_RECENT_VOTES and failed > MAX_RECENT_VOTES // 5 else 0

    @property
    def last_tried_at(self) -> int:
        return self.recent[-1][0] if self.recent else 0

    @property
    def is_setting(self) -> bool:
        """Whether it replaced several old values, or one old value with different other arguments.

        Then the change is a setting of the tool and no coincidence of one call.
        """
        return len(self.old_values) > 1 or any(len(others) > 1 for others in self.old_values.values())

    def recount(self, votes: Iterable[Vote]) -> FixRecord:
        """Return a record of the same fix with only these votes, which must be ordered by time."""
        record = FixRecord(id=self.id, tool=self.tool, fingerprint=self.fingerprint, action=self.action, key=self.key)
        for vote in votes:
            record.add(vote)
        return record


def order_episode(episode: Episode) -> tuple[Any, ...]:
    """Return a sort key by time. It has all fields, so that a limit drops the same episodes in any order of votes."""
    return (
        episode.at, episode.run, episode.old_value, episode.other_values, episode.successful,
        episode.has_advice is None, episode.has_advice is True, episode.agent, episode.number or 0.0,
        sorted(episode.conditions.items()),
    )  # fmt: skip


def select_episodes(episodes: Iterable[Episode]) -> list[Episode]:
    """Return the episodes to store, in order: the latest, with only a few of those that followed advice."""
    ordered = sorted(episodes, key=order_episode)
    followed = [episode for episode in ordered if episode.successful and episode.has_advice]
    # The latest successes that followed advice are kept: no evidence, but they show that the fix still helps.
    dropped = {id(episode) for episode in followed[:-8]}
    return [episode for episode in ordered if id(episode) not in dropped][-MAX_EPISODES:]


def list_episodes(record: FixRecord) -> list[Episode]:
    """Return the episodes of a fix by time. Where advice is unknown, only the first successes count as without it."""
    episodes = record.episodes or _derive_episodes(record)
    if all(episode.has_advice is not None for episode in episodes):
        return episodes
    resolved_episodes: list[Episode] = []
    success_count = 0
    for episode in episodes:
        is_advised = success_count >= UNADVISED_SUCCESSES if episode.has_advice is None else episode.has_advice
        resolved_episodes.append(msgspec.structs.replace(episode, has_advice=is_advised))
        success_count += episode.successful
    return resolved_episodes


def _derive_episodes(record: FixRecord) -> list[Episode]:
    """Return the episodes of a record of version 0.1.0, which has only counts, old values and recent votes."""
    if not record.trials:
        return []
    agent = next(iter(top_agents(record.agents)), "")
    pairs = [(old, other) for old, others in record.old_values.items() for other in others]
    pairs = (pairs or [("", "")] * record.successes)[:MAX_EPISODES]
    # The latest success: failures since then are the last episodes.
    at = max((at for at, _, is_success, is_applied in record.recent if is_success and not is_applied), default=0)
    episodes = [Episode(at, f"earlier {number}", *pair, True, None, agent) for number, pair in enumerate(pairs)]
    failed_runs = [(at, run) for at, run, is_success, _ in record.recent if not is_success]
    episodes += [Episode(at, run, "", "", False, None, agent) for at, run in failed_runs]
    return sorted(episodes, key=order_episode)


def is_revoked(revocation: Revocation, principal: str, tool: str, started_at: int) -> bool:
    """Return whether a revocation covers a principal's run, started at this time, for this tool.

    A revocation of a principal covers the logs that it imported.
    """
    return (
        revocation.principal in (None, principal, principal.removeprefix(IMPORT_PREFIX))
        and revocation.tool in (None, tool)
        and (revocation.since is None or started_at >= revocation.since)
        and (revocation.until is None or started_at < revocation.until)
    )


def revokes_principal(revocation: Revocation) -> bool:
    """Return whether a revocation covers all records of a principal."""
    return revocation.principal is not None and revocation == Revocation(principal=revocation.principal)


def select_counted_votes(votes: Iterable[tuple[int, Vote]]) -> list[Vote]:
    """Select the votes that count from the (tried call, vote) pairs of one fix, ordered by time.

    Each run has one vote: its first failure, else its first success.
    """
    first_votes: dict[tuple[str, str], tuple[bool, int, int, Vote]] = {}
    replaced: dict[tuple[str, str], dict[tuple[str, str], TrialDetails | None]] = {}
    # The latest first, so that of equal trials of a run the details of the first remain.
    for tried_call, vote in sorted(votes, key=lambda pair: (pair[1].at, pair[0]), reverse=True):
        voter, rank = (vote.run, vote.principal), (vote.successful, vote.at, tried_call, vote)
        if voter not in first_votes or rank[:3] < first_votes[voter][:3]:
            first_votes[voter] = rank
        if vote.old_value and vote.successful and vote.actor != "fix":
            replaced.setdefault(voter, {})[vote.old_value, vote.other_values] = vote.details
    counted_votes = (
        msgspec.structs.replace(
            vote, also_replaced=tuple((*pair, details) for pair, details in sorted(replaced[voter].items()))
        )
        if voter in replaced
        else vote
        for voter, (*_, vote) in first_votes.items()
    )
    return sorted(counted_votes, key=lambda vote: (vote.at, vote.run))


# Promotion


class OperatorDecision(Record, frozen=True):
    """Decision of an operator about a fix."""

    approved: int = 0
    revoked: int = 0
    """Times of the decisions; 0 for none. The later one is in effect."""


def apply_decision(before: OperatorDecision, approved: bool, at: int) -> OperatorDecision:
    """Return the decision after an operator approved or revoked the fix. The new decision wins over clock skew."""
    if approved:
        return OperatorDecision(approved=max(at, before.revoked + 1))
    return OperatorDecision(revoked=max(at, before.approved + 1))


class Writers(msgspec.Struct, frozen=True):
    """Principals that write to this store, without imported logs: the total, and those of the last 30 days."""

    total: int = 1
    active: frozenset[str] = frozenset({LOCAL_PRINCIPAL})

    def required_confirmations(self, principals: Iterable[str]) -> int:
        """Return how many principals must have had a success.

        `principals` count as active: otherwise a few could wait until the others are inactive.
        """
        return max(2, math.ceil(0.2 * len(self.active.union(principals))))


def find_writers(last_written_at: Mapping[str, int], revocations: Sequence[Revocation], now: int) -> Writers:
    """Return the writers that count, from the time of each principal's last write.

    Imported logs and fully revoked principals are excluded.
    """
    revoked = {rule.principal for rule in revocations if revokes_principal(rule)}
    writers = {
        name: at for name, at in last_written_at.items() if name not in revoked and not is_import_principal(name)
    }
    active = frozenset(name for name, at in writers.items() if at >= now - EXPIRY_MS)
    return Writers(total=max(1, len(writers)), active=active)


HIDDEN_STATES = ("revoked", "demoted", "paused", "expired")
"""States in which no model sees a fix."""
MIN_SUCCESSES = 5
MIN_SUCCESS_RATE = 0.8
EXPIRY_MS = 30 * DAY


def fix_state(
    record: FixRecord, load_writers: Callable[[], Writers], now: int, decision: OperatorDecision | None = None
) -> tuple[FixState, str]:
    """Return the state of a fix, and the reason if it is not applied automatically."""
    approved, revoked = (decision.approved, decision.revoked) if decision is not None else (0, 0)
    if revoked > 0 and revoked >= approved:
        return "revoked", "revoked by an operator"
    if record.paused_at > approved:
        return "paused", "used or failed too often; an operator must decide"
    if max(record.last_tried_at, approved) < now - EXPIRY_MS:
        return "expired", "not used for 30 days"
    outcomes = [(at, successful) for at, _, successful, _ in record.recent if at > approved]
    last_double_failure = max(
        (index for index in range(1, len(outcomes)) if not (outcomes[index][1] or outcomes[index - 1][1])), default=0
    )
    if last_double_failure and sum(successful for _, successful in outcomes[last_double_failure + 1 :]) < MIN_SUCCESSES:
        return "demoted", "failed twice in a row"
    if approved:
        return "approved", ""
    reason = _missing_for_promotion(record, load_writers)
    return ("proposed", reason) if reason else ("promoted", "")


def _missing_for_promotion(record: FixRecord, load_writers: Callable[[], Writers]) -> str:
    """Return the first unmet condition for promotion; empty if all are met."""
    if not record.key:
        return "the tool is identified by its name only"
    successes = [trial for trial in record.distinct_trials.values() if trial.successful]
    local_successes = [trial for trial in successes if not is_import_principal(trial.principal)]
    if len(successes) < MIN_SUCCESSES:
        return (
            f"needs {MIN_SUCCESSES} successful runs with different arguments to be promoted "
            f"(has {len(successes)}; all trials of a run count once)"
        )
    writers = load_writers()
    if writers.total > 1:
        principals = {trial.principal for trial in local_successes}
        if len(principals) < (required := writers.required_confirmations(principals)):
            return f"needs successes by {required} principals to be promoted (has {len(principals)})"
    else:
        run_count = len({trial.run for trial in local_successes})
        day_count = len({trial.day for trial in local_successes})
        if run_count < 3 or day_count < 2:
            runs = "1 run" if run_count == 1 else f"{run_count} runs"
            days = "1 day" if day_count == 1 else f"{day_count} days"
            condition = "needs 3 successful runs on at least 2 days to be promoted; equal calls count once"
            return f"{condition} (has {runs} on {days})"
    if wilson_lower_bound(len(successes), len(record.distinct_trials)) < MIN_SUCCESS_RATE:
        return f"succeeded in {len(successes)} of {len(record.distinct_trials)} trials: too low for promotion"
    return ""


def to_fix(record: FixRecord, state: tuple[FixState, str], similarity: float = 1.0) -> Fix:
    """Convert a record with its state to the public `Fix`."""
    return Fix(
        id=record.id,
        tool=record.tool,
        fingerprint=record.fingerprint,
        type=record.action.type,
        changes=_describe_bound(record),
        trials=record.trials,
        successes=record.successes,
        followed=record.followed,
        imported=record.imported,
        principals=len(record.principals),
        days=len(record.days),
        agents=top_agents(record.agents),
        last_tried_at=record.last_tried_at,
        state=state[0],
        reason=state[1],
        similarity=similarity,
        key=record.key,
    )


def _describe_bound(record: FixRecord) -> tuple[Change, ...]:
    """Return the changes of a fix; a number that replaced several larger or several smaller ones is a bound."""
    changes = record.action.changes
    if len(changes) != 1 or not is_number(changes[0].after) or names_object(changes[0].path):
        return changes
    old_numbers = {episode.number for episode in list_episodes(record) if episode.successful}
    numbers = [number for number in old_numbers if number is not None]
    if len(numbers) < 2 or len(numbers) < len(old_numbers):
        return changes
    bound = changes[0].after
    if min(numbers) > bound:
        return (msgspec.structs.replace(changes[0], bound="at most"),)
    if max(numbers) < bound:
        return (msgspec.structs.replace(changes[0], bound="at least"),)
    return changes


def top_agents(agents: Mapping[str, int]) -> dict[str, int]:
    """Return the agents with the most successes, up to `MAX_SHOWN_AGENTS`."""
    return dict(sorted(agents.items(), key=lambda item: (-item[1], item[0]))[:MAX_SHOWN_AGENTS])
