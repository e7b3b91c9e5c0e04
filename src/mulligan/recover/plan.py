"""A failure in, the next move out. Nothing here waits, calls or reads: the players of `capture/drive.py` do."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.failure import Failure, Ran, Remedy
from mulligan.records import Precedent, Recovery
from mulligan.recover.policy import Policy
from mulligan.recover.repair import suggest
from mulligan.recover.tool import Arguments, Tool


@dataclass(frozen=True, slots=True)
class Try:
    """Make the call. Answered with its failure, or None."""

    arguments: Arguments
    after: Recovery | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What recovery asks of the world; a question nobody can answer is answered with nothing."""

    recall: Callable[[Failure], Sequence[Precedent]]
    chance: Callable[[], float]


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Why recovery ended without a success, and what was seen to work before."""

    failure: Failure
    why: str
    precedents: Sequence[Precedent] = ()


WHY_NOT = {
    Remedy.TELL: "only the model can help",
    Remedy.COMPRESS: "the conversation is too long",
    Remedy.STOP: "only a person can help",
}

Recovering = Generator[Move, Any, GivenUp | None]


def recovery(arguments: Arguments, tool: Tool, policy: Policy, ask: Questions) -> Recovering:
    """The moves that lead from a call to its success, or to the reason why it was given up."""
    failure: Failure | None = yield Try(arguments)
    attempt = 1
    while failure is not None:
        attempt += 1
        step = next_step(arguments, failure, attempt, tool, policy, ask.chance())
        if isinstance(step, str):
            precedents = yield Ask(ask.recall, (failure,))
            return GivenUp(failure, step, precedents or ())
        arguments, after = step
        yield Wait(after)
        failure = yield Try(arguments, after)
    return None


def next_step(
    arguments: Arguments, failure: Failure, attempt: int, tool: Tool, policy: Policy, chance: float
) -> tuple[Arguments, Recovery] | str:
    """What to do before this attempt and what to attempt, or why there is none."""
    if not failure.counts:
        return "it is not a failure"
    if tool.mode == "observe":
        return "it is only observed"
    if not failure.recoverable:
        return "its author says that trying again cannot help"
    if failure.remedy not in (Remedy.WAIT, Remedy.REPAIR):
        return (
            "only the model can help" if failure.remedy is Remedy.TELL else f"the remedy is to {failure.remedy.value}"
        )
    if not tool.is_repeatable and failure.ran is not Ran.NO:
        return "it may have taken effect and is not known to be repeatable"
    if attempt > policy.attempts:
        return f"{policy.attempts} attempts were made"
    seconds = policy.wait(attempt, failure.retry_after, chance)
    if seconds is None:
        return f"it asked for {failure.retry_after:g} s, longer than {policy.longest_wait:g} s"
    if failure.remedy is Remedy.WAIT:
        if not tool.is_repeatable:
            return "the same call is not made twice, because it may have side effects"
        return arguments, Recovery(remedy=Remedy.WAIT, seconds=seconds)
    suggestions = suggest(arguments, failure, tool, confidence=policy.confidence)
    if not suggestions:
        return "nothing known would mend its arguments"
    suggestion = suggestions[0]
    if not suggestion.automatic:
        return suggestion.why
    return suggestion.arguments, Recovery(
        remedy=Remedy.REPAIR,
        seconds=seconds,
        changes=suggestion.changes,
        source=suggestion.source,
        confidence=suggestion.confidence,
    )
