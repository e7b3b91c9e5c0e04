"""A failure in, the next move out. Nothing here waits, calls or reads: the players of `capture/drive.py` do."""

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
    """Make the call. Answered with its failure, or None."""

    arguments: Arguments
    after: Recovery | None = None
    function: Callable[..., Any] | None = None
    """Called instead of the wrapped one: another model."""
    has_substitute: Callable[[Failure], bool] | None = field(default=None, compare=False, repr=False)
    """Whether something else would answer, if an open circuit breaker blocked this attempt with this failure."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Let the time of a recovery pass. Answered with nothing."""

    recovery: Recovery


@dataclass(frozen=True, slots=True)
class Ask:
    """Call a question with its arguments. Answered with what it answers, or None if it cannot."""

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
    """What recovery asks of the world; a question nobody can answer is answered with nothing.

    Those that may take time are asked by a move, `Ask`; the others are about what is at hand and are just called.
    """

    recall: Callable[[Failure, str, Sequence[Suggestion]], Sequence[Precedent]]
    """Asked by a move, with why the call is given up and what is offered: what overcame the same failure before."""
    known: Callable[[Failure, Arguments], Sequence[Fix]] | None = None
    """Asked by a move, before a repair is chosen: what memory knows to have helped."""
    prepare: Callable[[Before], Any] | None = None
    """Asked by a move: makes a call that must come first; why it did not work, or an empty text."""
    verify: Callable[[Arguments, Failure], object] | None = None
    """Asked by a move: `HAPPENED`, or the failure of a call that did not, or None where that is still not known."""
    chance: Callable[[], float]
    seen: Callable[[], Sequence[Seen]] = _nothing_seen
    changed: Callable[[], Sequence[str]] = _nothing_changed
    """Which arguments are no longer what the attempt was given, because it has changed them."""
    remaining: Callable[[], float | None] = _no_limit
    """Seconds until the deadline."""
    spend: Callable[..., str] = _may
    """Takes one retry from every budget; why there is none left. Told the failure, and whether a repair follows it."""
    halted: Callable[..., str] = _may
    """Why an attempt may not be made so many seconds from now, so that nothing is waited for in vain.

    Beyond the seconds it may be told the arguments and the function of that attempt."""
    turned_away: Callable[..., str] = _may
    """Asked once an attempt, when it has been waited for: why it may not be made now; told of it like `halted`."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Why recovery ended without a success, what was seen to work before, and what may work instead."""

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
    """The moves that lead from a call to its success, or to the reason why it was given up.

    `mended` says that the call was turned away already, before anything could happen, and how it was put right.
    """
    if mended is not None:
        yield Wait(mended)
    failure: Failure | None = yield Try(arguments, mended)
    repairs = Repairs([arguments])
    attempt = 1 if mended is None else 2
    while failure is not None:
        if ask.verify is not None and is_unsettled(failure, tool):
            # It may have happened: settle that first, or stop.
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
    """Return what recovered the failure before, without what changes an argument that is privileged for this tool.

    A store knows the arguments that are privileged by their names. What was declared is known here.
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
    """Why there is no further attempt where there may be no more of them."""
    return "1 attempt was made" if number == 1 else f"{number} attempts were made"


def is_of_memory(failure: Failure, tool: Tool) -> bool:
    """Whether what helped others may help here: by other arguments, or by another call first."""
    may = failure.counts and failure.recoverable and tool.mode != "observe" and REFUSED not in failure.evidence
    return may and tool.learn != "off" and failure.remedy in (Remedy.REPAIR, Remedy.TELL)


def is_unsettled(failure: Failure, tool: Tool) -> bool:
    """Whether it matters, and is not known, whether the call took effect."""
    return (
        failure.ran is Ran.UNKNOWN
        and not tool.is_repeatable
        and tool.mode != "observe"
        and failure.counts
        and failure.recoverable
    )


HAPPENED = object()
"""What `verify` answers where the call took effect after all."""
SETTLED = "the developer's check says that it did not happen"
"""The evidence with which a failure comes back from `verify`."""


def next_step(
    arguments: Arguments,
    failure: Failure,
    attempt: int,
    tool: Tool,
    policy: Policy,
    ask: Questions,
    repairs: Repairs,
) -> tuple[Arguments, Recovery] | str:
    """What to do before this attempt and what to attempt, or why there is none."""
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
    # Arguments that were turned away were not read. A connection that was refused says nothing of that.
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
        # What turned the call away, a refused connection say, would do so again; but time may have settled the rest.
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
    """An iterator, a generator or an open file. A cursor of a database is one too, but asked anew."""
    if isinstance(value, list | tuple):
        return any(map(_is_iterator, value))
    return _is_iterator(value)


def _is_iterator(value: Any) -> bool:
    kind = type(value)
    return (hasattr(kind, "__next__") or hasattr(kind, "__anext__")) and not hasattr(kind, "execute")


@dataclass(slots=True)
class Repairs:
    """What was suggested for a call on the way, and what was tried of it."""

    tried: list[Arguments]
    waiting: list[Suggestion] = field(default_factory=list)
    """Suggestions for the first arguments that were not the best."""
    last: str | None = None
    """The fingerprint of what was last repaired."""
    asked: tuple[Failure, list[Suggestion]] | None = None
    known: Sequence[Fix] = ()
    """What memory knows about the last failure."""
    first: Sequence[Before] = ()
    """What must come before the repair that was chosen."""
    prepared: set[str | None] = field(default_factory=set)
    """The recipes that were followed: each once."""

    def next(
        self, arguments: Arguments, failure: Failure, tool: Tool, policy: Policy, ask: Questions
    ) -> Suggestion | str:
        """The best repair that was not tried yet, or why there is none.

        If the one before did not change what is wrong, the second best for the same arguments comes first; if it did,
        what mends the rest.
        """
        found = self._suggested(arguments, failure, tool, policy, ask)
        fresh = [each for each in found if each.automatic and (ask.prepare is not None or not each.first)]
        is_the_same_again = self.last is not None and self.last == failure.fingerprint
        queue = [*self.waiting, *fresh] if is_the_same_again else [*fresh, *self.waiting]
        queue = [each for each in queue if not self._was_tried(each)]
        # Memory only adds: what rules suggest is attempted as often and as early as without it.
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
        """A repair was chosen and may not be made: nobody has tried it, and it is still to be offered."""
        if len(self.tried) > 1 and self.tried[-1] is arguments:
            self.tried.pop()

    def _was_tried(self, one: Suggestion) -> bool:
        if one.first:
            return one.fix in self.prepared
        return any(is_same_json(one.arguments, tried) for tried in self.tried)

    def offered(
        self, arguments: Arguments, failure: Failure, tool: Tool, policy: Policy, ask: Questions
    ) -> list[Suggestion]:
        """What a model or a person may try, where recovery may not or did not."""
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
