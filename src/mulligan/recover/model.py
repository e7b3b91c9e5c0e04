"""Recovery of model calls: compress, retry, clamp, ask again, refresh credentials, or use another model.

Like `plan.py` it only decides. Slow operations are moves, which the players of `capture/drive.py` execute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mulligan import conversation
from mulligan.failure import Failure, Remedy, SettingsError
from mulligan.records import Change, Recovery
from mulligan.recover.compress import THRESHOLD, Compressed, Scale, Sizes, calibrated, fitting, room
from mulligan.recover.plan import REFUSED, Ask, GivenUp, Move, Questions, Recovering, Try, Wait, attempts_made
from mulligan.recover.policy import Policy
from mulligan.recover.tool import Arguments, Tool
from mulligan.recover.windows import provider_of, window_of

ANSWERED = object()
"""Result of `Model.answer` if the user's function answered the call."""
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_tokens_to_sample")
"""Arguments that limit the length of the answer."""
WORTH_CLAMPING = 1024
"""Below this many tokens for the answer, the conversation is compressed instead."""

OVERFLOW = frozenset({"context_length_exceeded"})
OUTAGE = frozenset({"unavailable", "timeout", "rate_limit", "quota_exceeded"})
RETIRED = frozenset({"not_found"})


@dataclass(frozen=True, slots=True)
class Fallback:
    """A fallback model: a model name, or a function called with the same arguments."""

    model: str | Callable[..., Any]
    window: int | None = None
    """Context window in tokens. Without it, an unknown model is not used for conversations that are too long."""

    def __post_init__(self) -> None:
        if not (callable(self.model) or (isinstance(self.model, str) and self.model)):
            raise SettingsError(f"a fallback model is a name or a function, got {self.model!r}.")
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            raise SettingsError(f"window is a number of tokens, got {self.window!r}.")

    @property
    def name(self) -> str:
        return self.model if isinstance(self.model, str) else getattr(self.model, "__name__", type(self.model).__name__)

    def fits(self, tokens: float) -> bool:
        window = self.window or (window_of(self.model) if isinstance(self.model, str) else None)
        return window is not None and window > tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What recovery knows about a model, and the functions it may use for a call."""

    sizes: Callable[[Failure], Sizes]
    words: Callable[[Failure], str]
    """Describes the failure to the model in one sentence."""
    compacted: Callable[[Compressed], None]
    """Called after a conversation was compressed."""
    warn: Callable[[str], None]
    summarise: Callable[[str], Any] | None = None
    rewrite: Callable[[Sequence[Any]], Any] | None = None
    retell: Callable[[str, int], Any] | None = None
    refresh: Callable[[Failure], Any] | None = None
    """Called by a move. Returns new arguments, or whether the refresh succeeded."""
    answer: Callable[[Arguments, Failure], object] | None = None
    """Called by a move. Returns `ANSWER_GIVEN` if the user's function answered instead of the model."""
    name: object = None
    """Model name, used if the arguments do not contain one."""
    fallbacks: Sequence[Fallback] = ()
    compressions: int = 1
    threshold: int = THRESHOLD


@dataclass(frozen=True, slots=True)
class Step:
    """An attempt to make, with its arguments and recovery."""

    arguments: Arguments
    recovery: Recovery
    function: Callable[..., Any] | None = None


Choosing = Generator[Move, Any, "Step | str"]


def recovery(arguments: Arguments, tool: Tool, policy: Policy, ask: Questions, model: Model) -> Recovering:
    """Plan the attempts for one model call as a generator of moves.

    Return `None` on success, else `RecoveryFailed`. Pure: the driver executes the moves, sync or async.
    """
    way = _Way(arguments, tool, policy.for_models(), ask, model)
    failure: Failure | None = yield Try(arguments, has_substitute=way.has_substitute)
    while failure is not None:
        step = yield from way.next(failure)
        why = step if isinstance(step, str) else way.halted(step) or ask.spend(failure)
        if not why and not isinstance(step, str):
            yield Wait(step.recovery)
            why = ask.turned_away(step.arguments, step.function)
        if why or isinstance(step, str):
            if model.answer is not None and way.may_answer(failure):
                answered = yield Ask(model.answer, (way.arguments, failure))
                if answered is ANSWERED:
                    return None
            precedents = yield Ask(ask.recall, (failure, why, ()))
            return GivenUp(failure, why, precedents or ())
        way.take(step)
        failure = yield Try(step.arguments, step.recovery, step.function)
    return None


class _Way:
    """State of the recovery of one model call."""

    def __init__(self, arguments: Arguments, tool: Tool, policy: Policy, ask: Questions, model: Model) -> None:
        self.arguments = arguments
        self._tool = tool
        self._policy = policy
        self._ask = ask
        self._model = model
        self._attempt = 1
        self._function: Callable[..., Any] | None = None
        self._fallbacks = list(model.fallbacks)
        self._compressed = 0
        self._has_refreshed = False
        self._has_told = False
        self._has_clamped = False

    def take(self, step: Step) -> None:
        self.arguments, self._function = step.arguments, step.function

    def halted(self, step: Step) -> str:
        return self._ask.halted(step.recovery.seconds, step.arguments, step.function)

    def may_answer(self, failure: Failure) -> bool:
        """Return whether the user's fallback may answer. Not for failures that need a person or are not understood."""
        return (
            failure.counts
            and self._tool.mode != "observe"
            and failure.remedy is not Remedy.STOP
            and failure.kind.code != "unknown"
        )

    def has_substitute(self, failure: Failure) -> bool:
        """Return whether a fallback would answer a call that an open circuit breaker has blocked."""
        if self._model.answer is not None and self.may_answer(failure):
            return True
        return self._tool.mode == "repair" and self._instead(failure, is_tried=False) is not None

    def next(self, failure: Failure) -> Choosing:
        """Return the next attempt, or the reason why there is none."""
        self._attempt += 1
        if not failure.counts:
            return "it is not a failure"
        if self._tool.mode == "observe":
            return "it is only observed"
        if REFUSED in failure.evidence:
            # A circuit breaker of one model does not affect another model.
            return (failure.kind.code in OUTAGE and self._tool.mode == "repair" and self._instead(failure)) or REFUSED
        if not failure.recoverable:
            return "its author says that trying again cannot help"
        if self._attempt > self._policy.attempts:
            return attempts_made(self._policy.attempts)
        remaining = self._ask.remaining()
        if remaining is not None and remaining <= 0:
            return "its time is over"
        if failure.kind.type == "model" and self._tool.mode != "repair" and failure.remedy is not Remedy.WAIT:
            return "its mode allows no other move than to wait"
        return (yield from self._by_kind(failure))

    def _by_kind(self, failure: Failure) -> Choosing:
        code = failure.kind.code if failure.kind.type == "model" else ""
        if code in OVERFLOW:
            return (yield from self._too_long(failure))
        if code == "auth_error":
            return (yield from self._refreshed(failure))
        if code in RETIRED:
            return self._instead(failure) or "only a person can help"
        if code == "quota_exceeded":
            return self._instead(failure) or "waiting does not help: the account is out of credit or quota"
        if code == "bad_request":
            return self._clamped(failure) or self._told(failure) or "the provider refused the request as it stands"
        if code in ("invalid_output", "output_limit"):
            return self._told(failure) or "the answer could not be used, and asking again did not help"
        if code == "content_policy":
            return "the provider's content filter stopped it, and would again"
        if code == "unknown":
            return "nobody knows what it is, so it is left as it is"
        if failure.remedy is Remedy.WAIT:
            return self._later(failure)
        return "only a person can help" if failure.remedy is Remedy.STOP else "only the model can help"

    # Retries

    def _later(self, failure: Failure) -> Step | str:
        seconds = self._policy.wait(self._attempt, failure.retry_after, self._ask.chance())
        remaining = self._ask.remaining()
        instead = self._instead(failure, is_tried=False)
        is_left_alone = seconds is not None and self.halted(self._waited(seconds))
        if instead is not None and (seconds is None or is_left_alone or self._attempt == self._policy.attempts):
            return self._instead(failure) or "no other model serves"
        if seconds is None:
            return f"it asked for {failure.retry_after:g} s, longer than {self._policy.longest_wait:g} s"
        if remaining is not None and seconds >= remaining:
            return "its time would be over before the next attempt"
        return self._waited(seconds)

    def _waited(self, seconds: float) -> Step:
        return Step(self.arguments, Recovery(remedy=Remedy.WAIT, seconds=seconds), self._function)

    # Context overflow

    def _too_long(self, failure: Failure) -> Choosing:
        sizes = self._sizes(failure)
        room_for_answer = self._room_for_answer(sizes)
        if room_for_answer is not None:
            return room_for_answer
        why = "there is no conversation among its arguments"
        place = conversation.place(self.arguments)
        if place is not None and isinstance(self.arguments[place], list | tuple):
            times = "once" if self._compressed == 1 else f"{self._compressed} times"
            why = f"it was compressed {times} already, and is still too long"
            if not self._model.compressions:
                why = "nothing is compressed, because max_compress_retries is 0"
            if self._compressed < self._model.compressions:
                made = yield from self._compress(place, sizes)
                if made.fits and made.steps:
                    return self._shorter(place, made)
                why = "what must stay of the conversation does not fit: system prompt, last turn and newest exchange"
        return self._instead(failure, tokens=self._tokens(sizes)) or why

    def _sizes(self, failure: Failure) -> Sizes:
        sizes = self._model.sizes(failure)
        if sizes.window is None:
            sizes = replace(sizes, window=window_of(self.arguments.get("model", self._model.name)))
        return sizes

    def _room_for_answer(self, sizes: Sizes) -> Step | None:
        """Lower the answer limit if the conversation alone fits. That costs less than compressing the conversation."""
        name = _limit_of(self.arguments)
        if name is None or self._has_clamped or sizes.window is None or sizes.requested is None or not sizes.answer:
            return None
        left = int((sizes.window - (sizes.requested - sizes.answer)) * 0.99)
        if left < max(WORTH_CLAMPING, sizes.answer // 4) or left >= self.arguments[name]:
            return None
        return self._with_limit(name, left)

    def _compress(self, place: str, sizes: Sizes) -> Generator[Move, Any, Compressed]:
        model = self._model
        messages = self.arguments[place]
        scale = self._scale(sizes, place)
        besides = scale.whole(self._counted(place)) - scale.whole(messages)
        if not sizes.answer and sizes.requested is None:
            sizes = replace(sizes, answer=self._reserve(sizes))
        limit = room(sizes, besides + scale.whole(messages), scale.margin) - besides
        self._compressed += 1
        return (
            yield from fitting(
                messages,
                limit,
                threshold=model.threshold,
                scale=scale,
                summarise=model.summarise,
                rewrite=model.rewrite,
                retell=model.retell,
            )
        )

    def _scale(self, sizes: Sizes, place: str) -> Scale:
        return calibrated(sizes, self._counted(place), self.arguments.get("model", self._model.name))

    def _counted(self, place: str) -> list[Any]:
        """Return the parts of a request that a provider counts: conversation, instructions and tools."""
        names = (*conversation.INSTRUCTIONS, "tools", "functions", "response_format")
        return [self.arguments[place], *(self.arguments[name] for name in names if self.arguments.get(name))]

    def _reserve(self, sizes: Sizes) -> int:
        name = _limit_of(self.arguments)
        if name is None or sizes.window is None:
            return 0
        return min(int(self.arguments[name]), sizes.window // 4)

    def _shorter(self, place: str, made: Compressed) -> Step:
        self._model.compacted(made)
        arguments = {**self.arguments, place: made.messages}
        return Step(arguments, Recovery(remedy=Remedy.COMPRESS, source=made.by), self._function)

    def _tokens(self, sizes: Sizes) -> float:
        """Return the tokens that a larger window must hold."""
        if sizes.requested is not None:
            return float(sizes.requested)
        place = conversation.place(self.arguments)
        whole = self._scale(sizes, place).whole(self._counted(place)) if place is not None else 0.0
        return max(1.1 * whole, float(sizes.window or 0)) + self._reserve(sizes)

    # Answer limit

    def _clamped(self, failure: Failure) -> Step | None:
        """Clamp an answer limit that exceeds the model's to the bound that the error names."""
        name = _limit_of(self.arguments)
        if name is None or self._has_clamped:
            return None
        bound = bound_of(f"{failure.message}\n{failure.detail}", self.arguments[name])
        return None if bound is None else self._with_limit(name, bound)

    def _with_limit(self, name: str, limit: int) -> Step:
        self._has_clamped = True
        change = Change(path=name, how="clamp", before=self.arguments[name], after=limit, from_="error")
        return Step(
            {**self.arguments, name: limit},
            Recovery(remedy=Remedy.REPAIR, changes=(change,), source="error"),
            self._function,
        )

    # Notes to the model

    def _told(self, failure: Failure) -> Step | None:
        """Repeat the call with one note about the failure at the end of the conversation."""
        place = conversation.place(self.arguments)
        if self._has_told or place is None:
            return None
        given = self.arguments[place]
        words = self._model.words(failure)
        messages: Any
        if isinstance(given, str):
            messages = f"{given}\n\n{words}"
        elif isinstance(given, list | tuple):
            messages = [*given, conversation.spoken(given, words)]
        else:
            return None
        self._has_told = True
        return Step({**self.arguments, place: messages}, Recovery(remedy=Remedy.TELL), self._function)

    # Credentials

    def _refreshed(self, failure: Failure) -> Choosing:
        if self._model.refresh is None or self._has_refreshed:
            return "only a person can help"
        self._has_refreshed = True
        given = yield Ask(self._model.refresh, (failure,))
        if given is None or given is False:
            return "refreshing the credentials did not work"
        arguments = {**self.arguments, **given} if isinstance(given, Mapping) else self.arguments
        return Step(arguments, Recovery(remedy=Remedy.REPAIR, source="refresh"), self._function)

    # Fallback models

    def _instead(self, failure: Failure, *, tokens: float = 0, is_tried: bool = True) -> Step | None:
        """Return an attempt with the next fallback model that suits this kind of failure, or None."""
        before = self.arguments.get("model", self._model.name)
        own = provider_of(before)
        for fallback in list(self._fallbacks):
            if tokens and not fallback.fits(tokens):
                continue
            if failure.kind.code in OUTAGE and isinstance(fallback.model, str):
                other = provider_of(fallback.model)
                if own and other and own == other:
                    continue  # the outage or spent quota affects the whole provider
            change = Change(path="model", how="substitute", before=before, after=fallback.name, from_="rule")
            recovery = Recovery(remedy=Remedy.REPAIR, source="fallback", changes=(change,))
            if isinstance(fallback.model, str):
                step = Step({**self.arguments, "model": fallback.model}, recovery)
            else:
                step = Step(self.arguments, recovery, fallback.model)
            if self.halted(step):
                continue  # its own circuit breaker is open
            if is_tried:
                self._fallbacks.remove(fallback)
                self._model.warn(f"{before or 'the model'} failed with {failure.kind}; {fallback.name} is used instead")
            return step
        return None


def _limit_of(arguments: Arguments) -> str | None:
    return next((name for name in LIMITS if type(arguments.get(name)) is int and arguments[name] > 0), None)


_ABOUT = re.compile(
    r"max_?(?:completion_|output_|new_)?tokens|maxoutputtokens|(?:output|completion) tokens|maximum tokens",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"(?:at most|up to|maximum(?: \w+){0,4}?(?: is| of)?|max(?: \w+){0,2} (?:is|of)|<=?|>|less than(?: or equal to)?|"
    r"limit(?: \w+){0,3}? (?:is|of)|to|exceeds?(?: the)?(?: \w+){0,4}?(?: of)?|cannot exceed|between \d+ and)"
    r"[\s:`'\"(]{1,3}(\d[\d,_]{0,11})(?: ?\(?(exclusive))?",
    re.IGNORECASE,
)


def bound_of(text: str, given: int) -> int | None:
    """Return the maximum answer length that a text names, if it is lower than the requested one and unambiguous."""
    if not _ABOUT.search(text):
        return None
    found: set[int] = set()
    for match in _BOUND.finditer(text[:4000]):
        number = int(re.sub(r"\D", "", match[1])) - bool(match[2])
        if 16 <= number < given:
            found.add(number)
    return found.pop() if len(found) == 1 else None
