"""Recovery of model calls: compress, retry, clamp, ask again, refresh credentials, or use another model.

Like `plan.py` it only decides. Slow operations are moves, which the players of `capture/player.py` execute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mulligan.core.conversation import INSTRUCTION_ARGUMENTS, conversation_argument, user_message
from mulligan.core.failure import Failure, Kind, Remedy, SettingsError
from mulligan.core.kinds import KINDS, MODEL_CONTEXT_LENGTH_EXCEEDED
from mulligan.core.records import Change, Recovery
from mulligan.recover.compress import DEFAULT_COMPRESS_ABOVE_CHARS, CompressionResult, fit_to_window
from mulligan.recover.plan import (
    BLOCKED,
    AttemptMove,
    Move,
    QueryMove,
    RecoveryFailed,
    RecoveryMoves,
    RecoveryQueries,
    StopMove,
    describe_remedy,
    find_repeat_obstacle,
    find_stop_reason,
)
from mulligan.recover.policy import Arguments, Policy, Tool
from mulligan.recover.retry_schedule import BackoffMove, RetrySchedule, describe_attempts, describe_end
from mulligan.recover.target_state import TARGET_DOWN
from mulligan.recover.tokens import Sizes, calibrate_scale, provider_of, token_limit, window_of

ANSWER_GIVEN = object()
MAX_ATTEMPTS_BEFORE_MODEL = 2
"""Attempts of one model before a fallback model answers. A user should not wait while another model works."""
MAX_ATTEMPTS_BEFORE_FALLBACK = 3
"""Attempts before the user's fallback function answers."""
"""Result of `Model.answer` if the user's function answered the call."""
ANSWER_LIMIT_ARGUMENTS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "max_tokens_to_sample",
)
"""Arguments that limit the length of the answer."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """A fallback model: a model name, or a function called with the same arguments."""

    model: str | Callable[..., Any]
    window: int | None = None
    """Context window in tokens. Without it, an unknown model is not used for conversations that are too long."""
    on: str | Iterable[str] = ()
    """The failures for which this model is used, and no others: `"content_policy"`, or a list of them. Without it:
    conversations that are too long, outages, rate limits, an exhausted quota, and a model that does not exist."""

    def __post_init__(self) -> None:
        if not isinstance(self.on, Iterable):
            raise SettingsError(f"Invalid on {self.on!r} of a fallback. Use a failure or a list of them.")
        names = (self.on,) if isinstance(self.on, str) else tuple(self.on)
        codes = tuple(name.removeprefix("model/") if isinstance(name, str) else name for name in names)
        allowed = {kind.code for kind in KINDS.values() if kind.type == "model" and kind.fallback}
        for name, code in zip(names, codes, strict=True):
            if code not in allowed:
                raise SettingsError(f"Invalid failure {name!r} in on of a fallback. Use {', '.join(sorted(allowed))}.")
        object.__setattr__(self, "on", codes)
        if not (callable(self.model) or (isinstance(self.model, str) and self.model)):
            raise SettingsError(f"Invalid fallback model {self.model!r}. Use a model name or a function.")
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            raise SettingsError(f"Invalid window {self.window!r}. Use a number of tokens.")

    @property
    def name(self) -> str:
        return self.model if isinstance(self.model, str) else getattr(self.model, "__name__", type(self.model).__name__)

    def serves(self, failure: Failure) -> bool:
        """Return whether this model may be used after a failure. A call that was blocked counts as any outage."""
        if BLOCKED in failure.evidence:
            return not self.on or any(Kind("model", code).is_outage for code in self.on)
        return failure.kind.is_one_of(self.on) if self.on else failure.kind.fallback == "default"

    def fits(self, tokens: float) -> bool:
        window = self.window or (window_of(self.model) if isinstance(self.model, str) else None)
        return MODEL_CONTEXT_LENGTH_EXCEEDED.is_one_of(self.on) if window is None else window > tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What recovery knows about a model, and the functions it may use for a call."""

    sizes: Callable[[Failure], Sizes]
    describe_failure: Callable[[Failure], str]
    """Describes the failure to the model in one sentence."""
    on_compacted: Callable[[CompressionResult], None]
    """Called after a conversation was compressed."""
    warn: Callable[[str], None]
    summarise: Callable[[str], Any] | None = None
    rewrite: Callable[[Sequence[Any]], Any] | None = None
    summarize_gap: Callable[[str, int], Any] | None = None
    refresh: Callable[[Failure], Any] | None = None
    """Called by a move. Returns new arguments, or whether the refresh succeeded."""
    answer: Callable[[Arguments, Failure], object] | None = None
    """Called by a move. Returns `ANSWER_GIVEN` if the user's function answered instead of the model."""
    name: object = None
    """Model name, used if the arguments do not contain one."""
    fallbacks: Sequence[Fallback] = ()
    max_compressions: int = 1
    compress_above_chars: int = DEFAULT_COMPRESS_ABOVE_CHARS


@dataclass(frozen=True, slots=True)
class PlannedAttempt:
    """An attempt to make, with its arguments and recovery."""

    arguments: Arguments
    recovery: Recovery
    function: Callable[..., Any] | None = None


AttemptMoves = Generator[Move, Any, "PlannedAttempt | str"]


def plan_model_recovery(
    arguments: Arguments, tool: Tool, policy: Policy, queries: RecoveryQueries, model: Model
) -> RecoveryMoves:
    """Plan the attempts for one model call as a generator of moves.

    Return `None` on success, else `RecoveryFailed`. Pure: the player executes the moves, sync or async.
    """
    recovery = _ModelRecovery(arguments, tool, policy.for_models(), queries, model)
    failure: Failure | None = yield AttemptMove(arguments, has_substitute=recovery.has_substitute)
    while failure is not None:
        step = yield from recovery.next_attempt(failure)
        if isinstance(step, PlannedAttempt):
            step, reason = yield from recovery.prepare_attempt(step, failure)
            if not reason:
                recovery.arguments, recovery.function = step.arguments, step.function
                failure = yield AttemptMove(step.arguments, step.recovery, step.function)
                continue
        else:
            reason = step
        if model.answer is not None and recovery.can_answer(failure):
            answer = yield QueryMove(model.answer, (recovery.arguments, failure), "fallback")
            if answer is ANSWER_GIVEN:
                return None
        if BLOCKED in failure.evidence and failure.kind.is_outage and not tool.circuit_breaker:
            # The fallback for whose sake the call was blocked did not answer: the call itself is made after all.
            reason = TARGET_DOWN
            failure = yield AttemptMove(arguments, Recovery(remedy=Remedy.RETRY))
            if failure is None:
                return None
        precedents = yield StopMove(queries.lookup_precedents, (failure, reason, ()))
        return RecoveryFailed(failure, reason, precedents or ())
    return None


class _ModelRecovery:
    """State of the recovery of one model call."""

    def __init__(
        self, arguments: Arguments, tool: Tool, policy: Policy, queries: RecoveryQueries, model: Model
    ) -> None:
        self.arguments = arguments
        self.function: Callable[..., Any] | None = None
        self._tool = tool
        self._policy = policy
        self._queries = queries
        self._model = model
        self._schedule = RetrySchedule(policy, queries.retries)
        self._attempt_number = 1
        """All attempts, of whatever type."""
        self._fallbacks = list(model.fallbacks)
        self._compressed = 0
        self._has_refreshed = self._has_added_note = self._has_clamped = False

    @property
    def _model_name(self) -> Any:
        return self.arguments.get("model", self._model.name)

    def _attempt(self, recovery: Recovery, changed_arguments: Arguments | None = None) -> PlannedAttempt:
        arguments = {**self.arguments, **changed_arguments} if changed_arguments else self.arguments
        return PlannedAttempt(arguments, recovery, self.function)

    def prepare_attempt(
        self, step: PlannedAttempt, failure: Failure
    ) -> Generator[Move, Any, tuple[PlannedAttempt, str]]:
        """Wait for an attempt. Return it with the time this took, and why it is not made after all."""
        queries, recovery = self._queries, step.recovery
        if reason := queries.find_obstacle():
            return step, reason
        if recovery.remedy is Remedy.RETRY:
            recovery, reason = yield from self._schedule.await_turn(failure, recovery, step.arguments, step.function)
            step = replace(step, recovery=recovery)
        else:
            yield BackoffMove(recovery)
        return step, reason or queries.find_obstacle()

    @property
    def _max_attempts(self) -> int:
        return self._schedule.limits.attempts

    def can_answer(self, failure: Failure) -> bool:
        """Return whether the user's fallback may answer. Not for failures that need a person or are not understood."""
        layer = self._queries.retry_layer()
        return (
            failure.is_failure
            and not (layer and layer.will_retry(self._max_attempts))
            and self._tool.mode != "observe"
            and failure.remedy is not Remedy.STOP
            and not failure.kind.is_unknown
        )

    def has_substitute(self, failure: Failure) -> bool:
        """Return whether a fallback would answer a call that was blocked because its target is down."""
        if self._model.answer is not None and self.can_answer(failure):
            return True
        return self._tool.mode == "repair" and self._use_fallback(failure, should_consume=False) is not None

    def next_attempt(self, failure: Failure) -> AttemptMoves:
        """Return the next attempt, or the reason why there is none."""
        self._attempt_number += 1
        is_repairing = self._tool.mode == "repair"
        if reason := find_stop_reason(failure, self._tool):
            # An outage of one model says nothing about another model.
            can_switch = reason == BLOCKED and failure.kind.is_outage and is_repairing
            return (can_switch and self._use_fallback(failure)) or reason
        if reason := find_repeat_obstacle(self._queries):
            return reason
        if self._max_attempts == 1:
            return describe_attempts(1)
        is_retry, layer = failure.remedy is Remedy.RETRY, self._queries.retry_layer()
        if layer and (reason := layer.find_stop_reason(self._attempt_number, self._max_attempts, is_retry=is_retry)):
            can_switch = is_repairing and not layer.will_retry(self._max_attempts)
            return (can_switch and self._use_fallback(failure)) or reason
        if reason := self._queries.find_obstacle():
            return reason
        if failure.kind.type == "model" and not is_repairing and failure.remedy is not Remedy.RETRY:
            return 'only mode="repair" allows more than a retry'
        return (yield from self._by_kind(failure))

    def _by_kind(self, failure: Failure) -> AttemptMoves:
        if failure.is_guess and failure.remedy is Remedy.RETRY:
            return self._use_fallback(failure) or describe_remedy(failure)
        if failure.kind.type == "model":
            for move in failure.kind.model_moves:
                step = yield from self._move(move, failure)
                if step is not None:
                    return step
            if failure.kind.stop_reason and not self._schedule.can_await_quota(failure):
                return failure.kind.stop_reason + describe_end(failure)
        if failure.remedy is Remedy.RETRY or self._schedule.can_await_quota(failure):
            return self._retry_later(failure)
        if failure.remedy is Remedy.STOP:
            return describe_remedy(failure)
        return "the model must choose another action"

    def _move(self, move: str, failure: Failure) -> Generator[Move, Any, PlannedAttempt | str | None]:
        """Return the attempt of one move, the reason why no other move is tried, or None."""
        match move:
            case "shorten":
                return (yield from self._handle_overflow(failure))
            case "refresh":
                return (yield from self._refresh_credentials(failure))
            case "clamp":
                return self._clamp_answer_limit(failure)
            case "note":
                return self._append_note(failure)
        return self._use_fallback(failure)

    def _retry_later(self, failure: Failure) -> PlannedAttempt | str:
        fallback = self._use_fallback(failure, should_consume=False)
        limit: int | None = None
        if fallback is not None or (self._model.answer is not None and self.can_answer(failure)):
            is_down = self._is_target_down(self.arguments, self.function)
            limit = MAX_ATTEMPTS_BEFORE_FALLBACK if fallback is None else MAX_ATTEMPTS_BEFORE_MODEL
            limit = 1 if is_down else min(limit, max(1, self._max_attempts - (fallback is not None)))
        seconds = self._schedule.plan_retry(failure, max_attempts=limit)
        if isinstance(seconds, str):
            return seconds if fallback is None else self._use_fallback(failure) or seconds
        return self._attempt(Recovery(remedy=Remedy.RETRY, backoff_seconds=seconds))

    def _is_target_down(self, arguments: Arguments, function: Callable[..., Any] | None) -> bool:
        return self._queries.retries.is_target_down(arguments, function)

    # Context overflow

    def _handle_overflow(self, failure: Failure) -> AttemptMoves:
        sizes = self._model.sizes(failure)
        if sizes.window is None:
            sizes = replace(sizes, window=window_of(self._model_name))
        if (clamped_attempt := self._shrink_answer(sizes)) is not None:
            return clamped_attempt
        reason = "no argument is a conversation"
        argument = conversation_argument(self.arguments)
        if argument is not None and isinstance(self.arguments[argument], list | tuple):
            times = "once" if self._compressed == 1 else f"{self._compressed} times"
            reason = f"the conversation was compressed {times} and is still too long"
            if not self._model.max_compressions:
                reason = "compression is off: max_compressions is 0"
            if self._compressed < self._model.max_compressions:
                compression = yield from self._compress(argument, sizes)
                if compression.fits and compression.steps:
                    self._model.on_compacted(compression)
                    recovery = Recovery(remedy=Remedy.COMPRESS, source=compression.shortened_by)
                    return self._attempt(recovery, {argument: compression.messages})
                reason = "the system prompt, last turn and newest exchange alone exceed the context window"
        return self._use_fallback(failure, tokens=self._required_tokens(argument, sizes)) or reason

    def _shrink_answer(self, sizes: Sizes) -> PlannedAttempt | None:
        """Lower the answer limit if the conversation alone fits. That costs less than compressing the conversation."""
        name = _answer_limit_argument(self.arguments)
        if name is None or self._has_clamped or sizes.window is None or sizes.requested is None or not sizes.answer:
            return None
        available_tokens = int((sizes.window - (sizes.requested - sizes.answer)) * 0.99)
        # Below this many tokens for the answer, the conversation is compressed instead.
        if available_tokens < max(1024, sizes.answer // 4) or available_tokens >= self.arguments[name]:
            return None
        return self._with_limit(name, available_tokens)

    def _compress(self, argument: str, sizes: Sizes) -> Generator[Move, Any, CompressionResult]:
        model, messages = self._model, self.arguments[argument]
        request = self._counted_parts(argument)
        scale = calibrate_scale(sizes, request, self._model_name)
        message_tokens = scale.count_value(messages)
        other_tokens = scale.count_value(request) - message_tokens
        if not sizes.answer and sizes.requested is None:
            sizes = replace(sizes, answer=self._reserve(sizes))
        self._compressed += 1
        return (
            yield from fit_to_window(
                messages,
                token_limit(sizes, other_tokens + message_tokens, scale.margin) - other_tokens,
                threshold=model.compress_above_chars,
                scale=scale,
                summarise=model.summarise,
                rewrite=model.rewrite,
                summarize_gap=model.summarize_gap,
            )
        )

    def _counted_parts(self, argument: str) -> list[Any]:
        """Return the parts of a request that a provider counts: conversation, instructions and tools."""
        names = (*INSTRUCTION_ARGUMENTS, "tools", "functions", "response_format")
        return [self.arguments[argument], *(self.arguments[name] for name in names if self.arguments.get(name))]

    def _reserve(self, sizes: Sizes) -> int:
        name = _answer_limit_argument(self.arguments)
        return 0 if name is None or sizes.window is None else min(int(self.arguments[name]), sizes.window // 4)

    def _required_tokens(self, argument: str | None, sizes: Sizes) -> float:
        """Return the tokens that a larger window must hold."""
        if sizes.requested is not None:
            return float(sizes.requested)
        request_tokens = 0.0
        if argument is not None:
            request = self._counted_parts(argument)
            request_tokens = calibrate_scale(sizes, request, self._model_name).count_value(request)
        return max(1.1 * request_tokens, float(sizes.window or 0)) + self._reserve(sizes)

    # Answer limit, notes to the model, credentials

    def _clamp_answer_limit(self, failure: Failure) -> PlannedAttempt | None:
        """Clamp an answer limit that exceeds the model's to the bound that the error names."""
        name = _answer_limit_argument(self.arguments)
        if name is None or self._has_clamped:
            return None
        bound = find_answer_bound(f"{failure.message}\n{failure.detail}", self.arguments[name])
        return None if bound is None else self._with_limit(name, bound)

    def _with_limit(self, name: str, limit: int) -> PlannedAttempt:
        self._has_clamped = True
        change = Change(path=name, operation="clamp", before=self.arguments[name], after=limit, source="error")
        return self._attempt(Recovery(remedy=Remedy.REPAIR, changes=(change,), source="error"), {name: limit})

    def _append_note(self, failure: Failure) -> PlannedAttempt | None:
        """Repeat the call with one note about the failure at the end of the conversation."""
        argument = conversation_argument(self.arguments)
        messages = self.arguments[argument] if argument is not None else None
        if argument is None or self._has_added_note or not isinstance(messages, str | list | tuple):
            return None
        self._has_added_note = True
        note = self._model.describe_failure(failure)
        new_messages = (
            f"{messages}\n\n{note}" if isinstance(messages, str) else [*messages, user_message(messages, note)]
        )
        return self._attempt(Recovery(remedy=Remedy.REPLAN), {argument: new_messages})

    def _refresh_credentials(self, failure: Failure) -> AttemptMoves:
        if self._model.refresh is None or self._has_refreshed:
            return "a person must act"
        self._has_refreshed = True
        refreshed = yield QueryMove(self._model.refresh, (failure,), "refresh_auth")
        if refreshed is None or refreshed is False:
            return "refresh_auth returned no new credentials"
        changed_arguments = refreshed if isinstance(refreshed, Mapping) else None
        return self._attempt(Recovery(remedy=Remedy.REPAIR, source="refresh"), changed_arguments)

    # Fallback models

    def _use_fallback(
        self, failure: Failure, *, tokens: float = 0, should_consume: bool = True
    ) -> PlannedAttempt | None:
        """Return an attempt with the next fallback model that suits this kind of failure, or None."""
        current_model = self._model_name
        current_provider = provider_of(current_model)
        fallbacks = [fallback for fallback in self._fallbacks if fallback.serves(failure)]
        if failure.kind.is_outage and current_provider:
            # An outage or a spent quota mostly affects the whole provider. While its target is down, another model
            # of the same provider is still better than the one that fails.
            near = [
                fallback
                for fallback in fallbacks
                if not fallback.on and provider_of(fallback.model) == current_provider
            ]
            fallbacks = [fallback for fallback in fallbacks if fallback not in near]
            fallbacks += near if BLOCKED in failure.evidence else []
        for fallback in fallbacks:
            if tokens and not fallback.fits(tokens):
                continue
            change = Change(
                path="model", operation="substitute", before=current_model, after=fallback.name, source="rule"
            )
            recovery = Recovery(remedy=Remedy.REPAIR, source="fallback", changes=(change,))
            if isinstance(fallback.model, str):
                step = PlannedAttempt({**self.arguments, "model": fallback.model}, recovery)
            else:
                step = PlannedAttempt(self.arguments, recovery, fallback.model)
            if self._is_target_down(step.arguments, step.function):
                continue
            if should_consume:
                self._fallbacks.remove(fallback)
                self._schedule.restart()
                self._model.warn(
                    f"{current_model or 'The model'} failed with {failure.kind}; using fallback {fallback.name}"
                )
            return step
        return None


def _answer_limit_argument(arguments: Arguments) -> str | None:
    return next(
        (name for name in ANSWER_LIMIT_ARGUMENTS if type(arguments.get(name)) is int and arguments[name] > 0), None
    )


_ANSWER_LIMIT_PATTERN = re.compile(
    r"max_?(?:completion_|output_|new_)?tokens|maxoutputtokens|(?:output|completion) tokens|maximum tokens",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"(?:at most|up to|maximum(?: \w+){0,4}?(?: is| of)?|max(?: \w+){0,2} (?:is|of)|<=?|>|less than(?: or equal to)?|"
    r"limit(?: \w+){0,3}? (?:is|of)|to|exceeds?(?: the)?(?: \w+){0,4}?(?: of)?|cannot exceed|between \d+ and)"
    r"[\s:`'\"(]{1,3}(\d[\d,_]{0,11})(?: ?\(?(exclusive))?",
    re.IGNORECASE,
)


def find_answer_bound(text: str, requested_tokens: int) -> int | None:
    """Return the maximum answer length that a text names, if it is lower than the requested one and unambiguous."""
    if not _ANSWER_LIMIT_PATTERN.search(text):
        return None
    bounds: set[int] = set()
    for match in _BOUND.finditer(text[:4000]):
        number = int(re.sub(r"\D", "", match[1])) - bool(match[2])
        if 16 <= number < requested_tokens:
            bounds.add(number)
    return bounds.pop() if len(bounds) == 1 else None
