"""Recovery planning: the next move after a failure. Pure: the players of `capture/drive.py` execute the moves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.calls import TOOL, is_same_json
from mulligan.failure import Failure, Ran, Remedy
from mulligan.privileged_arguments import is_privileged
from mulligan.records import Fix, Precedent, Recovery
from mulligan.recover.policy import Policy
from mulligan.recover.repair import Before, Suggestion, suggest
from mulligan.recover.tool import Arguments, Seen, Tool


@dataclass(frozen=True, slots=True)
class Try:
    """Move that makes the call. The reply is its failure, or None."""

    arguments: Arguments
    after: Recovery | None = None
    function: Callable[..., Any] | None = None
    """Called instead of the wrapped function: another model."""
    has_substitute: Callable[[Failure], bool] | None = field(default=None, compare=False, repr=False)
    """Whether a fallback would answer if an open circuit breaker blocked this attempt with this failure."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Move that waits for the backoff of a recovery. There is no reply."""

    recovery: Recovery


@dataclass(frozen=True, slots=True)
class Ask:
    """Move that calls a query function with its arguments. The reply is its result, or None if it failed."""

    question: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


Move = Try | Wait | Ask


def _nothing_seen() -> Sequence[Seen]:
    return ()


def _nothing_changed() -> Sequence[str]:
    return ()


def _no_limit() -> float | None:
    return None


def _may(*about: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Functions that recovery uses to query its environment. A query that cannot be answered returns nothing.

    Slow queries are made by a `QueryMove`. The others use data in memory and are called directly.
    """

    recall: Callable[[Failure, str, Sequence[Suggestion]], Sequence[Precedent]]
    """Called by a move with the stop reason and the suggestions. Returns what recovered the same failure before."""
    known: Callable[[Failure, Arguments], Sequence[Fix]] | None = None
    """Called by a move before a repair is chosen. Returns fixes from memory."""
    prepare: Callable[[Before], Any] | None = None
    """Called by a move. Makes a prerequisite call. Returns why it failed, or an empty string."""
    verify: Callable[[Arguments, Failure], object] | None = None
    """Called by a move. Returns `VERIFIED_EXECUTED`, the failure of a call that did not execute, or None if unknown."""
    chance: Callable[[], float]
    seen: Callable[[], Sequence[Seen]] = _nothing_seen
    changed: Callable[[], Sequence[str]] = _nothing_changed
    """Returns the arguments that the attempt has modified in place."""
    remaining: Callable[[], float | None] = _no_limit
    """Seconds until the deadline."""
    spend: Callable[..., str] = _may
    """Takes one retry from every budget. Returns why it is denied. Gets the failure, and whether a repair follows."""
    halted: Callable[..., str] = _may
    """Returns why an attempt would be blocked in so many seconds, so that no backoff is wasted. Optional further
    arguments: the arguments and the function of that attempt."""
    turned_away: Callable[..., str] = _may
    """Called once per attempt after its backoff. Returns why it is blocked now. Takes the attempt's arguments and
    function like `blocking_reason`."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Stop reason of a failed recovery, with precedents and suggestions."""

    failure: Failure
    why: str
    precedents: Sequence[Precedent] = ()
    suggestions: Sequence[Suggestion] = ()


WHY_NOT = {
    Remedy.TELL: "only the model can help",
    Remedy.COMPRESS: "the conversation is too long",
    Remedy.STOP: "only a person can help",
}
UNKNOWN_OUTCOME = "it may have taken effect and is not known to be repeatable"
READ_ONCE = "an argument of it can be read only once, and a second attempt would find nothing left"
REFUSED = "it was not made"

Recovering = Generator[Move, Any, GivenUp | None]


def recovery(
    arguments: Arguments, tool: Tool, policy: Policy, ask: Questions, mended: Recovery | None = None
) -> Recovering:
    """Plan the attempts for one call as a generator of moves. Return `None` on success, else `RecoveryFailed`.

    Pure: the driver executes the moves, sync or async. `initial_repair` is the repair of a call that was rejected
    before execution.
    """
    if mended is not None:
        yield Wait(mended)
    failure: Failure | None = yield Try(arguments, mended)
    repairs = Repairs([arguments])
    attempt = 1 if mended is None else 2
    while failure is not None:
        if ask.verify is not None and is_unsettled(failure, tool):
            # The call may have executed: verify that before anything else.
            settled = yield Ask(ask.verify, (arguments, failure))
            if settled is HAPPENED:
                return None
            failure = settled or failure
        attempt += 1
        if ask.known is not None and is_of_memory(failure, tool):
            repairs.known = (yield Ask(ask.known, (failure, arguments))) or ()
        step = next_step(arguments, failure, attempt, tool, policy, ask, repairs)
        why = (
            step if isinstance(step, str) else ask.halted(step[1].seconds) or ask.spend(failure, bool(step[1].changes))
        )
        if not why and not isinstance(step, str):
            yield Wait(step[1])
            why = ask.turned_away()
            for before in repairs.first:
                if not why and ask.prepare is not None:
                    told = yield Ask(ask.prepare, (before,))
                    why = f"{before.tool}, which must come first, could not be called" if told is None else told
        if why or isinstance(step, str):
            if not isinstance(step, str):
                repairs.take_back(step[0])
            offered = repairs.offered(arguments, failure, tool, policy, ask)
            precedents = yield Ask(ask.recall, (failure, why, offered))
            return GivenUp(failure, why, select_tellable(precedents or (), tool), offered)
        arguments, after = step
        failure = yield Try(arguments, after)
    return None


def select_tellable(precedents: Sequence[Precedent], tool: Tool) -> tuple[Precedent, ...]:
    """Return the precedents without those that change an argument that is privileged for this tool.

    A store knows arguments that are privileged by name. Arguments declared as privileged are known only here.
    """
    return tuple(
        precedent
        for precedent in precedents
        if not any(
            tool.destructive or is_privileged(change.path, tool.privileged, tool.released)
            for change in (precedent.changes if not precedent.between else ())
            if change.path != TOOL
        )
    )


def attempts_made(number: int) -> str:
    """Return the stop reason for reaching the maximum number of attempts."""
    return "1 attempt was made" if number == 1 else f"{number} attempts were made"


def is_of_memory(failure: Failure, tool: Tool) -> bool:
    """Return whether memory may help: by changed arguments or a prerequisite call."""
    may = failure.counts and failure.recoverable and tool.mode != "observe" and REFUSED not in failure.evidence
    return may and tool.learn != "off" and failure.remedy in (Remedy.REPAIR, Remedy.TELL)


def is_unsettled(failure: Failure, tool: Tool) -> bool:
    """Return whether it matters and is unknown that the call took effect."""
    return (
        failure.ran is Ran.UNKNOWN
        and not tool.is_repeatable
        and tool.mode != "observe"
        and failure.counts
        and failure.recoverable
    )


HAPPENED = object()
"""Result of `verify` if the call executed."""
SETTLED = "the developer's check says that it did not happen"
"""Evidence on a failure that `verify` returned."""


def next_step(
    arguments: Arguments,
    failure: Failure,
    attempt: int,
    tool: Tool,
    policy: Policy,
    ask: Questions,
    repairs: Repairs,
) -> tuple[Arguments, Recovery] | str:
    """Return the arguments and recovery of the next attempt, or the reason why there is none."""
    if not failure.counts:
        return "it is not a failure"
    if tool.mode == "observe":
        return "it is only observed"
    if REFUSED in failure.evidence:
        return REFUSED
    if not failure.recoverable:
        return "its author says that trying again cannot help"
    may_prepare = tool.learn == "repair" and ask.prepare is not None and failure.remedy is Remedy.TELL
    if failure.remedy not in (Remedy.WAIT, Remedy.REPAIR) and not may_prepare:
        return WHY_NOT[failure.remedy]
    if not tool.is_repeatable and failure.ran is not Ran.NO:
        return UNKNOWN_OUTCOME
    # Rejected arguments were not read. A refused connection does not prove that.
    is_turned_away = failure.ran is Ran.NO and failure.remedy is not Remedy.WAIT
    if not is_turned_away and any(map(_can_be_read_once, arguments.values())):
        return READ_ONCE
    if changed := ask.changed():
        return f"it has changed {', '.join(changed)}, which it was given, and a second attempt would get something else"
    if attempt > policy.attempts:
        return attempts_made(policy.attempts)
    seconds = policy.wait(attempt, failure.retry_after, ask.chance())
    if seconds is None:
        return f"it asked for {failure.retry_after:g} s, longer than {policy.longest_wait:g} s"
    remaining = ask.remaining()
    if remaining is not None and seconds >= remaining:
        return "its time would be over before the next attempt"
    if failure.remedy is Remedy.WAIT:
        # A retry would repeat a refused connection, but is safe if the check proved that the call did not execute.
        if not tool.is_repeatable and SETTLED not in failure.evidence:
            return "the same call is not made twice, because it may have side effects"
        return arguments, Recovery(remedy=Remedy.WAIT, seconds=seconds)
    found = repairs.next(arguments, failure, tool, policy, ask)
    if isinstance(found, str):
        return WHY_NOT[failure.remedy] if failure.remedy is Remedy.TELL else found
    return found.arguments, Recovery(
        remedy=Remedy.REPAIR,
        seconds=seconds,
        changes=found.changes,
        source=found.source,
        fix=found.fix,
        confidence=found.confidence,
        first=tuple(each.tool for each in found.first),
    )


def _can_be_read_once(value: Any) -> bool:
    """Return whether a value is an iterator, a generator or an open file. A database cursor can be executed again."""
    if isinstance(value, list | tuple):
        return any(map(_is_iterator, value))
    return _is_iterator(value)


def _is_iterator(value: Any) -> bool:
    kind = type(value)
    return (hasattr(kind, "__next__") or hasattr(kind, "__anext__")) and not hasattr(kind, "execute")


@dataclass(slots=True)
class Repairs:
    """Suggested repairs of one call, and those that were attempted."""

    tried: list[Arguments]
    waiting: list[Suggestion] = field(default_factory=list)
    """Lower-ranked suggestions for the first arguments."""
    last: str | None = None
    """Fingerprint of the failure that was last repaired."""
    asked: tuple[Failure, list[Suggestion]] | None = None
    known: Sequence[Fix] = ()
    """Fixes from memory for the last failure."""
    first: Sequence[Before] = ()
    """Prerequisite calls of the chosen repair."""
    prepared: set[str | None] = field(default_factory=set)
    """Prerequisite fixes that were attempted, each once."""

    def next(
        self, arguments: Arguments, failure: Failure, tool: Tool, policy: Policy, ask: Questions
    ) -> Suggestion | str:
        """Return the best repair not attempted yet, or the reason why there is none.

        If the last repair did not change the failure, the next alternative for the same arguments comes first. If it
        did, a repair of the new failure comes first.
        """
        found = self._suggested(arguments, failure, tool, policy, ask)
        fresh = [each for each in found if each.automatic and (ask.prepare is not None or not each.first)]
        is_the_same_again = self.last is not None and self.last == failure.fingerprint
        queue = [*self.waiting, *fresh] if is_the_same_again else [*fresh, *self.waiting]
        queue = [each for each in queue if not self._was_tried(each)]
        # Memory only adds repairs: those from rules are attempted as often and as early as without it.
        queue.sort(key=lambda suggestion: suggestion.source == "memory")
        if not queue:
            if not found:
                return "nothing known would mend its arguments"
            return found[0].why or "no other repair is known"
        best, *self.waiting = queue
        self.first = best.first
        if best.first:
            self.prepared.add(best.fix)
        else:
            self.tried.append(best.arguments)
        self.last = failure.fingerprint
        return best

    def take_back(self, arguments: Arguments) -> None:
        """Undo the choice of a repair that was blocked, so that it remains a suggestion."""
        if len(self.tried) > 1 and self.tried[-1] is arguments:
            self.tried.pop()

    def _was_tried(self, one: Suggestion) -> bool:
        if one.first:
            return one.fix in self.prepared
        return any(is_same_json(one.arguments, tried) for tried in self.tried)

    def offered(
        self, arguments: Arguments, failure: Failure, tool: Tool, policy: Policy, ask: Questions
    ) -> list[Suggestion]:
        """Return the suggestions that were not attempted, for the model or a person."""
        if failure.remedy not in (Remedy.REPAIR, Remedy.TELL) or tool.mode == "observe" or REFUSED in failure.evidence:
            return []
        found = [*self._suggested(arguments, failure, tool, policy, ask), *self.waiting]
        return [
            each for each in found if each.first or not any(is_same_json(each.arguments, one) for one in self.tried[1:])
        ]

    def _suggested(
        self, arguments: Arguments, failure: Failure, tool: Tool, policy: Policy, ask: Questions
    ) -> list[Suggestion]:
        if self.asked is None or self.asked[0] is not failure:
            seen = ask.seen()
            made = suggest(arguments, failure, tool, seen, confidence=policy.confidence, known=self.known)
            self.asked = failure, made
        return self.asked[1]
