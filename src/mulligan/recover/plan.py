"""Recovery planning: the next move after a failure. Pure: the players of `capture/player.py` execute the moves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

from mulligan.core import fork_safety
from mulligan.core.calls import TOOL_NAME_PATH, is_same_json
from mulligan.core.failure import Failure, Remedy, TookEffect
from mulligan.core.privileged_arguments import is_privileged
from mulligan.core.records import Fix, Precedent, Recovery
from mulligan.recover.policy import (
    ADDED_SOURCES,
    MAX_CALL_REPAIRS,
    Arguments,
    EarlierCall,
    Policy,
    PrerequisiteCall,
    Suggestion,
    Tool,
    describe_effects,
)
from mulligan.recover.retry_schedule import (
    DEADLINE_BEFORE_ATTEMPT,
    BackoffMove,
    RetryQueries,
    RetrySchedule,
    WaitMove,
    describe_attempts,
    describe_end,
    describe_retry_after,
)


class AttemptMove(msgspec.Struct, frozen=True):
    """Move that makes the call. The reply is its failure, or None."""

    arguments: Arguments
    recovery: Recovery | None = None
    function: Callable[..., Any] | None = None
    """Called instead of the wrapped function: another model."""
    has_substitute: Callable[[Failure], bool] | None = None
    """Whether a fallback would answer if this attempt was blocked with this failure, because its target is down."""


class QueryMove(msgspec.Struct, frozen=True):
    """Move that calls a query function with its arguments. The reply is its result, or None if it failed."""

    query: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    name: str = "A recovery query"
    """What the log calls it if it fails: the option, for a function of the user."""


class StopMove(QueryMove, frozen=True):
    """The last move of a plan that stops. It looks up what recovered the same failure before."""


Move = AttemptMove | BackoffMove | WaitMove | QueryMove


class RetryLayer(msgspec.Struct, frozen=True):
    """A retry library or client, other than mulligan, that retries a call."""

    name: str
    calls: int = 0
    """Attempts that it has made so far; 0 if unknown."""
    limit: int | None = None
    """Attempts that it makes at most; None if unknown."""
    is_above: bool = False
    """Whether it calls the tool. Otherwise the tool calls it."""

    def find_stop_reason(self, attempt: int, max_attempts: int, *, is_retry: bool) -> str:
        """Return why mulligan must not make this attempt, or an empty string.

        Only one layer retries. A library cannot repair: above, the first of its attempts may be repaired, once. Below,
        a repair is made if the limit of attempts allows one more.
        """
        if self.is_above:
            is_allowed = not is_retry and attempt == 2 and self.calls == 1
            return "" if is_allowed else f"{self.name} retries this call, so mulligan does not"
        if not is_retry and 0 < self.calls * (attempt - 1) < max_attempts:
            return ""
        if not self.calls:
            return f"{self.name} inside this call retries it, so mulligan does not"
        return f"{self.name} inside this call made {self.calls} attempts, so mulligan makes no more"

    def will_retry(self, max_attempts: int) -> bool:
        """Return whether it gets the failure and calls again. Without a known limit, ours counts."""
        return self.is_above and self.calls < (self.limit or max_attempts)


class RecoveryQueries(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that recovery uses to query its environment. A query that cannot be answered returns nothing.

    Slow queries are made by a `QueryMove`. The others use data in memory and are called directly.
    """

    lookup_precedents: Callable[[Failure, str, Sequence[Suggestion]], Sequence[Precedent]]
    """Called by a move with the stop reason and the suggestions. Returns what recovered the same failure before."""
    lookup_fixes: Callable[[Failure, Arguments], Sequence[Fix]] | None = None
    """Called by a move before a repair is chosen. Returns fixes from memory."""
    reflect: Callable[[Failure, Arguments, Sequence[Arguments]], Any] | None = None
    """Called by a move if rules and memory have no suggestion, with the arguments of the failed attempt and of those
    before it. Returns a `CalibratedReflection` of the user's model, or None."""
    run_prerequisite: Callable[[PrerequisiteCall], Any] | None = None
    """Called by a move. Makes a prerequisite call. Returns why it failed, or an empty string."""
    verify: Callable[[Arguments, Failure], object] | None = None
    """Called by a move. Returns `VERIFIED_EXECUTED`, the failure of a call that did not execute, or None if unknown."""
    retries: RetryQueries = msgspec.field(default_factory=RetryQueries)
    earlier_calls: Callable[[], Sequence[EarlierCall]] = tuple
    changed_arguments: Callable[[], Sequence[str]] = tuple
    """Returns the arguments that the attempt has modified in place."""
    inner_effects: Callable[[], str] = str
    """Returns why a call inside the last attempt forbids to repeat it, whatever the tool declares, or nothing."""
    retry_layer: Callable[[], RetryLayer | None] = lambda: None
    """Returns what else retries the call, above or below it."""
    has_reader: Callable[[], bool] = lambda: True
    """Returns whether a model reads the note about a repair. A program that made the call does not."""
    was_executed: Callable[[], bool] = lambda: True
    """Returns whether the last attempt called the function. If not, our own check rejected its arguments."""
    take_repair: Callable[[], str] = str
    """Counts a repair of the run. Returns why it is denied."""
    find_obstacle: Callable[[], str] = str
    """Called after a backoff. Returns why no attempt may follow any more, such as the deadline."""


class RecoveryFailed(msgspec.Struct, frozen=True):
    """Stop reason of a failed recovery, with precedents and suggestions."""

    failure: Failure
    reason: str
    precedents: Sequence[Precedent] = ()
    suggestions: Sequence[Suggestion] = ()


NO_RETRY_REASONS = {
    Remedy.REPLAN: "the model must choose another action",
    Remedy.COMPRESS: "the conversation exceeds the context window",
    Remedy.STOP: "a person must act",
}
GUESS_REASONS = {
    Remedy.RETRY: "only its words suggest that a retry helps, and they may mean something else",
    Remedy.STOP: "its words suggest that a person must act",
}
"""Why no attempt follows if the kind is a guess. A repair has evidence of its own: a schema, a bound, a memory."""
BLOCKED = "the call was blocked"

MIN_SHOWN_CONFIDENCE = 0.5
"""Suggestions with a lower confidence are not shown to a model."""

RecoveryMoves = Generator[Move, Any, RecoveryFailed | None]


def plan_recovery(
    arguments: Arguments, tool: Tool, policy: Policy, queries: RecoveryQueries, initial_repair: Recovery | None = None
) -> RecoveryMoves:
    """Plan the attempts for one call as a generator of moves. Return `None` on success, else `RecoveryFailed`.

    Pure: the player executes the moves, sync or async. `initial_repair` is the repair of a call that was rejected
    before execution.
    """
    if initial_repair is not None:
        yield BackoffMove(initial_repair)
    failure: Failure | None = yield AttemptMove(arguments, initial_repair)
    recovery = ToolRecovery(tool, policy, queries, [arguments], schedule=RetrySchedule(policy, queries.retries))
    recovery.repair_count = int(initial_repair is not None)
    attempt = 1 if initial_repair is None else 2
    while failure is not None:
        if queries.verify is not None and needs_verification(failure, tool):
            # The call may have executed: verify that before anything else.
            verified_failure = yield QueryMove(queries.verify, (arguments, failure), "verify")
            if verified_failure is VERIFIED_EXECUTED:
                return None
            failure = verified_failure or failure
        attempt += 1
        if queries.lookup_fixes is not None and can_use_memory(failure, tool):
            recovery.fixes = (yield QueryMove(queries.lookup_fixes, (failure, arguments))) or ()
        choice = recovery.choose_next_attempt(arguments, failure, attempt)
        if isinstance(choice, str) and queries.reflect is not None and recovery.should_reflect(arguments, failure):
            details = (failure, arguments, tuple(recovery.attempted_arguments[:-1]))
            recovery.use_reflection((yield QueryMove(queries.reflect, details, "The reflector")))
            choice = recovery.choose_next_attempt(arguments, failure, attempt)
        match choice:
            case str(reason):
                pass
            case next_arguments, planned_recovery:
                planned_recovery, reason = yield from recovery.prepare_attempt(failure, planned_recovery)
                if not reason:
                    arguments = next_arguments
                    failure = yield AttemptMove(arguments, planned_recovery)
                    continue
                recovery.undo_last(next_arguments)
        suggestions = recovery.remaining_suggestions(arguments, failure)
        precedents = yield StopMove(queries.lookup_precedents, (failure, reason, suggestions))
        return RecoveryFailed(failure, reason, select_tellable(precedents or (), tool), suggestions)
    return None


def select_tellable(precedents: Sequence[Precedent], tool: Tool) -> tuple[Precedent, ...]:
    """Return the precedents without those that change an argument that is privileged for this tool, or to an opposite.

    A store knows arguments that are privileged by name. Arguments declared as privileged are known only here.
    """
    if not precedents:
        return ()
    with fork_safety.import_lock:
        from mulligan.recover.repair import is_opposite  # lazy: needed for failures only

    return tuple(
        precedent
        for precedent in precedents
        if not any(
            tool.destructive or is_privileged(change.path, tool.privileged, tool.unprivileged) or is_opposite(change)
            for change in (precedent.changes if not precedent.intermediate_tools else ())
            if change.path != TOOL_NAME_PATH
        )
    )


def find_stop_reason(failure: Failure, tool: Tool) -> str:
    """Return why no attempt follows, whatever the arguments, or an empty string."""
    if not failure.is_failure:
        return "the result is not a failure"
    if tool.mode == "observe":
        return tool.observe_reason
    if BLOCKED in failure.evidence:
        return BLOCKED
    if failure.recoverable or failure.remedy is Remedy.STOP:  # the remedy says more
        return ""
    return "the error is declared unrecoverable"


def describe_remedy(failure: Failure) -> str:
    """Return the stop reason for a failure whose remedy is no further attempt."""
    reasons = GUESS_REASONS if failure.is_guess and failure.remedy in GUESS_REASONS else NO_RETRY_REASONS
    return reasons[failure.remedy] + describe_end(failure)


def find_repeat_obstacle(queries: RecoveryQueries) -> str:
    """Return why what the last attempt did forbids to repeat it, or an empty string."""
    if reason := queries.inner_effects():
        return reason
    if changed_names := queries.changed_arguments():
        names = ", ".join(changed_names)
        return f"the call modified its arguments ({names}), so a second attempt would get different input"
    return ""


def can_use_memory(failure: Failure, tool: Tool) -> bool:
    """Return whether memory may help: by changed arguments or a prerequisite call."""
    is_repairable = failure.remedy in (Remedy.REPAIR, Remedy.REPLAN)
    return is_repairable and tool.learn != "off" and not find_stop_reason(failure, tool)


def needs_verification(failure: Failure, tool: Tool) -> bool:
    """Return whether it matters and is unknown that the call took effect."""
    is_unknown = failure.took_effect is TookEffect.UNKNOWN and not tool.is_retry_safe
    return is_unknown and find_stop_reason(failure, tool) in ("", BLOCKED)


VERIFIED_EXECUTED = object()
"""Result of `verify` if the call executed."""
VERIFIED_NOT_EXECUTED = "verify reported that the call did not execute"
"""Evidence on a failure that `verify` returned."""


def _can_be_read_once(value: Any) -> bool:
    """Return whether a value is an iterator, a generator or an open file. A database cursor can be executed again."""
    if isinstance(value, list | tuple):
        return any(map(_is_iterator, value))
    return _is_iterator(value)


def _is_iterator(value: Any) -> bool:
    kind = type(value)
    return (hasattr(kind, "__next__") or hasattr(kind, "__anext__")) and not hasattr(kind, "execute")


class ToolRecovery(msgspec.Struct):
    """State of the recovery of one call: its suggested repairs, and those that were attempted."""

    tool: Tool
    policy: Policy
    queries: RecoveryQueries
    attempted_arguments: list[Arguments]
    schedule: RetrySchedule
    alternatives: list[Suggestion] = msgspec.field(default_factory=list)
    """Lower-ranked suggestions for the first arguments."""
    last_fingerprint: str | None = None
    """Fingerprint of the failure that was last repaired."""
    cached_suggestions: tuple[Failure, list[Suggestion]] | None = None
    fixes: Sequence[Fix] = ()
    """Fixes from memory for the last failure."""
    prerequisites: Sequence[PrerequisiteCall] = ()
    """Prerequisite calls of the chosen repair."""
    attempted_fixes: set[str | None] = msgspec.field(default_factory=set)
    """Prerequisite fixes that were attempted, each once."""
    repair_count: int = 0
    reflection: Any = None
    """The answer of the reflector, which is asked once per call."""
    has_reflected: bool = False

    def should_reflect(self, arguments: Arguments, failure: Failure) -> bool:
        """Return whether the user's model may help: changed arguments could, and nothing else suggests any."""
        if self.has_reflected or find_stop_reason(failure, self.tool) or failure.kind.has_no_repair:
            return False
        is_unsafe = not self.tool.is_retry_safe or self.queries.inner_effects()
        may_have_executed = failure.has_unknown_outcome and is_unsafe
        if failure.remedy not in (Remedy.REPAIR, Remedy.REPLAN) or may_have_executed:
            return False
        suggestions = self.remaining_suggestions(arguments, failure)
        return all(suggestion.confidence < MIN_SHOWN_CONFIDENCE for suggestion in suggestions)

    def use_reflection(self, reflection: Any) -> None:
        """Add the answer of the reflector to the suggestions."""
        self.has_reflected = True
        if reflection is not None:
            self.reflection, self.cached_suggestions = reflection, None

    def choose_next_attempt(
        self, arguments: Arguments, failure: Failure, attempt: int
    ) -> tuple[Arguments, Recovery] | str:
        """Return the arguments and recovery of the next attempt, or the reason why there is none."""
        tool, queries = self.tool, self.queries
        if reason := find_stop_reason(failure, tool) or queries.inner_effects():
            return reason
        can_prepare = (
            tool.learn == "repair" and queries.run_prerequisite is not None and failure.remedy is Remedy.REPLAN
        )
        is_retry = failure.remedy is Remedy.RETRY or self.schedule.can_await_quota(failure)
        if not is_retry and failure.remedy is not Remedy.REPAIR and not can_prepare:
            is_unknown = failure.remedy is Remedy.REPLAN and failure.has_unknown_outcome and not tool.is_retry_safe
            return describe_effects(failure) if is_unknown else describe_remedy(failure)
        if not tool.is_retry_safe and failure.took_effect is not TookEffect.NO:
            return self._describe_unproven(arguments, failure)
        # Rejected arguments were not read. A refused connection does not prove that.
        is_rejected = failure.took_effect is TookEffect.NO and not is_retry
        if not is_rejected and any(map(_can_be_read_once, arguments.values())):
            return "an argument can be read only once, so a second attempt would get no data"
        if reason := find_repeat_obstacle(queries):
            return reason
        layer = queries.retry_layer()
        max_attempts = self.schedule.limits.attempts
        if attempt > max_attempts and self.schedule.limits.are_attempts_explicit:
            return describe_attempts(max_attempts)
        if layer is not None and (reason := layer.find_stop_reason(attempt, max_attempts, is_retry=is_retry)):
            return reason
        if is_retry and failure.is_guess:
            return GUESS_REASONS[failure.remedy]
        if is_retry:
            seconds = self.schedule.plan_retry(failure)
            if isinstance(seconds, str):
                return seconds
            # Whatever the error, a second execution is only safe if `verify` has proved that there was no first one.
            if not tool.is_retry_safe and VERIFIED_NOT_EXECUTED not in failure.evidence:
                return 'the tool has effects="once" and may have side effects'
            return arguments, Recovery(remedy=Remedy.RETRY, backoff_seconds=seconds)
        backoff = self._plan_repair(failure, attempt)
        if isinstance(backoff, str):
            return backoff
        repair = self.next_repair(arguments, failure)
        if isinstance(repair, str):
            return NO_RETRY_REASONS.get(failure.remedy, repair)
        return repair.arguments, Recovery(
            remedy=Remedy.REPAIR,
            backoff_seconds=backoff,
            changes=repair.changes,
            source=repair.source,
            fix_id=repair.fix_id,
            confidence=repair.confidence,
            prerequisites=tuple(prerequisite.tool for prerequisite in repair.prerequisites),
        )

    def _plan_repair(self, failure: Failure, attempt: int) -> float | str:
        """Return the backoff before a repair, or why there is none. A call that was never made needs no backoff."""
        limit = min(MAX_CALL_REPAIRS, self.schedule.limits.attempts - 1)
        if self.repair_count >= limit:
            return describe_attempts(limit + 1)
        queries = self.queries.retries
        if not self.queries.was_executed() or not queries.can_wait():
            return 0.0
        backoff = self.policy.compute_backoff(attempt, failure.retry_after, queries.random(), queries.elapsed())
        if backoff is None:
            return describe_retry_after(failure, self.policy)
        remaining = queries.seconds_left()
        return DEADLINE_BEFORE_ATTEMPT if remaining is not None and backoff >= remaining else backoff

    def _describe_unproven(self, arguments: Arguments, failure: Failure) -> str:
        """Return why a call that may have executed is not repeated: first what would remain if it were safe to."""
        if failure.has_unknown_outcome or failure.remedy is not Remedy.REPAIR:
            return describe_effects(failure)
        suggestions = self._suggest(arguments, failure)
        if not suggestions:
            return self._describe_no_repair(arguments, failure)
        return suggestions[0].reason or describe_effects(failure)

    def _describe_no_repair(self, arguments: Arguments, failure: Failure) -> str:
        """Return why nothing is suggested: the only repair changes a privileged argument, or there is none."""
        with fork_safety.import_lock:
            from mulligan.recover.repair import find_privileged_repair  # lazy: needed for failures only

        name = find_privileged_repair(arguments, failure, self.tool, self.queries.earlier_calls())
        return f"{name} is a privileged argument" if name else "no repair found for the arguments"

    def prepare_attempt(self, failure: Failure, recovery: Recovery) -> Generator[Move, Any, tuple[Recovery, str]]:
        """Wait, and make the prerequisite calls. Return the recovery, and why no attempt follows."""
        queries = self.queries
        if recovery.remedy is Remedy.RETRY:
            recovery, reason = yield from self.schedule.await_turn(failure, recovery)
            return recovery, reason or queries.find_obstacle()
        if reason := queries.find_obstacle() or queries.take_repair():
            return recovery, reason
        self.repair_count += 1
        yield BackoffMove(recovery)
        reason = queries.find_obstacle()
        for prerequisite in self.prerequisites:
            if not reason and queries.run_prerequisite is not None:
                prerequisite_error = yield QueryMove(queries.run_prerequisite, (prerequisite,))
                reason = (
                    f"the prerequisite {prerequisite.tool} could not be called"
                    if prerequisite_error is None
                    else prerequisite_error
                )
        return recovery, reason

    def next_repair(self, arguments: Arguments, failure: Failure) -> Suggestion | str:
        """Return the best repair not attempted yet, or the reason why there is none.

        If the last repair did not change the failure, the next alternative for the same arguments comes first. If it
        did, a repair of the new failure comes first.
        """
        suggestions = self._suggest(arguments, failure)
        candidates = [
            suggestion
            for suggestion in suggestions
            if suggestion.automatic and (self.queries.run_prerequisite is not None or not suggestion.prerequisites)
        ]
        is_same_failure = self.last_fingerprint is not None and self.last_fingerprint == failure.fingerprint
        queue = [*self.alternatives, *candidates] if is_same_failure else [*candidates, *self.alternatives]
        queue = [suggestion for suggestion in queue if not self._was_attempted(suggestion)]
        # Memory and reflection only add repairs: those from rules are attempted as often and as early as without them.
        queue.sort(key=lambda suggestion: ADDED_SOURCES.get(suggestion.source, 0))
        if not queue:
            if not suggestions:
                return self._describe_no_repair(arguments, failure)
            return suggestions[0].reason or "all known repairs were attempted"
        best, *self.alternatives = queue
        self.prerequisites = best.prerequisites
        if best.prerequisites:
            self.attempted_fixes.add(best.fix_id)
        else:
            self.attempted_arguments.append(best.arguments)
        self.last_fingerprint = failure.fingerprint
        return best

    def undo_last(self, arguments: Arguments) -> None:
        """Undo the choice of a repair that was blocked, so that it remains a suggestion."""
        if len(self.attempted_arguments) > 1 and self.attempted_arguments[-1] is arguments:
            self.attempted_arguments.pop()

    def _was_attempted(self, suggestion: Suggestion) -> bool:
        if suggestion.prerequisites:
            return suggestion.fix_id in self.attempted_fixes
        return any(is_same_json(suggestion.arguments, attempted) for attempted in self.attempted_arguments)

    def remaining_suggestions(self, arguments: Arguments, failure: Failure) -> list[Suggestion]:
        """Return the suggestions that were not attempted, for the model or a person."""
        is_repairable = failure.remedy in (Remedy.REPAIR, Remedy.REPLAN) and BLOCKED not in failure.evidence
        if not is_repairable or self.tool.mode == "observe":
            return []
        return [
            suggestion
            for suggestion in (*self._suggest(arguments, failure), *self.alternatives)
            if suggestion.prerequisites
            or not any(is_same_json(suggestion.arguments, attempted) for attempted in self.attempted_arguments[1:])
        ]

    def _suggest(self, arguments: Arguments, failure: Failure) -> list[Suggestion]:
        if self.cached_suggestions is None or self.cached_suggestions[0] is not failure:
            with fork_safety.import_lock:
                from mulligan.recover.repair import suggest  # lazy: needed for failures only

            suggestions = suggest(
                arguments,
                failure,
                self.tool,
                self.queries.earlier_calls(),
                min_confidence=self.policy.min_confidence,
                fixes=self.fixes,
                reflection=self.reflection,
                has_reader=self.queries.has_reader(),
            )
            self.cached_suggestions = failure, suggestions
        return self.cached_suggestions[1]
