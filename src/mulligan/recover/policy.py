"""What recovery works with: the policy, the tool, earlier calls of the run, and suggestions.

These are apart from the rules in `repair.py`, which are imported at the first failure.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import msgspec

from mulligan.core.failure import Failure, SettingsError
from mulligan.core.records import Change, Effects, Fix, Outcome, Step

SpiralAction = Literal["report", "block"]
Arguments = Mapping[str, Any]
Mode = Literal["observe", "suggest", "repair"]
Learn = Literal["off", "tell", "repair"]
ADDED_SOURCES = {"memory": 1, "reflection": 2}
"""Sources of suggestions that only add to those of the rules: they come after them, in this order."""

_DEFAULT_MAX_BACKOFF_SECONDS = 30.0
MODEL_MAX_BACKOFF_SECONDS = 90.0
DEFAULT_ATTEMPTS = 8
DEFAULT_RETRY_SECONDS = 45.0
AWAITED_ATTEMPTS = 3
"""Attempts of a call that answers a model, which waits for it."""
AWAITED_RETRY_SECONDS = 10.0
AWAITED_OUTAGE_SECONDS = 20.0
MAX_CALL_REPAIRS = 2


_COUNT = (int, 0, sys.maxsize, "a whole number, 0 or more")
_SECONDS = (int | float, 0, sys.maxsize, "a number of seconds, 0 or more")
_RATIO = (int | float, 0, 1, "a number from 0 to 1")
_LIMITS: dict[str, tuple[Any, int, int, str]] = {
    "attempts": (int, 1, 10, "a whole number of 10 or less, to avoid retry storms"),
    "retry_seconds": _SECONDS,
    "retry_tokens": _COUNT,
    "down_after": _COUNT,
    "max_run_retries": _COUNT,
    "max_identical_failures": _COUNT,
    "initial_backoff": _SECONDS,
    "max_backoff": _SECONDS,
    "min_confidence": _RATIO,
}
"""Settings with a number: its type, bounds, and both in words."""
OPTIONAL_LIMITS = ("attempts", "retry_seconds")
"""Settings whose default depends on the caller."""
REMOVED_SETTINGS = {
    "retry_budget_burst": "Use retry_tokens, the failed retries that a target may get without a success.",
    "retry_budget_ratio": "Use retry_tokens: every success of a target returns three.",
    "circuit_breaker": "Use down_after = 0 to retry calls one by one while their target is down.",
}
"""Settings of 0.1.0 without effect, with what replaces them."""


class RetryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the retries of one call, in seconds since it began."""

    attempts: int
    retry_seconds: float
    """No retry starts later."""
    outage_seconds: float
    """No retry starts later if the call waits for a target that is down."""
    are_attempts_explicit: bool = False
    """Whether the attempts were set: then they also limit probes and stated delays."""
    is_awaited: bool = False
    """Whether a model waits for the answer: then the attempts also limit stated delays."""
    guaranteed_retries: int = 0
    """Retries that no limit of time forbids: those of the client that makes the call."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of automatic recovery for one tool or model."""

    attempts: int | None = None
    """Maximum attempts of a call, including the first. By default 8, and 3 for a call that answers a model. 1 turns
    recovery off."""
    initial_backoff: float = 0.5
    """Maximum backoff in seconds before the second attempt. It doubles with each further attempt, up to 8 seconds."""
    max_backoff: float = _DEFAULT_MAX_BACKOFF_SECONDS
    """Maximum backoff in seconds. A longer Retry-After ends recovery instead of blocking the agent. Models: 90 by
    default."""
    retry_seconds: float | None = None
    """No retry starts later than so many seconds after the call began. By default 45. For a call that answers a model
    10, or 20 while its target is down. A stated Retry-After has `max_backoff` instead."""
    min_confidence: float = 0.80
    """Repairs with a higher confidence than this are applied automatically. From 0 to 1."""
    max_run_retries: int = 20
    """Maximum repairs of one run, over all its calls. Retries have other limits; the name is that of 0.1.0."""
    retry_tokens: int = 20
    """Failed retries that a target may get without a success. A timeout counts as three, and each success returns
    three. 0 turns retries off, except after rate limits."""
    down_after: int = 5
    """Failures in a row without an answer after which a target is down: then failed calls wait while one of them probes
    it. 0 means never."""
    max_identical_failures: int = 2
    """How many times a call may fail the same way in a run. In a mulligan loop the next identical call is blocked;
    elsewhere it is made and a note is added. 0 means unlimited."""
    on_spiral: SpiralAction = "report"
    """What to do about a strategy that failed several times with varied arguments. `report` adds a note for the
    model; `block` also blocks it in a mulligan loop."""
    retry_budget_ratio: float | None = None
    """Removed: see `REMOVED_SETTINGS`."""
    retry_budget_burst: int | None = None
    """Removed: see `REMOVED_SETTINGS`."""
    circuit_breaker: bool | None = None
    """Removed: see `REMOVED_SETTINGS`. The option of a tool remains."""

    def __post_init__(self) -> None:
        for name, replacement in REMOVED_SETTINGS.items():
            if getattr(self, name) is not None:
                raise SettingsError(f"{name} was removed. {replacement}")
        if isinstance(self.attempts, int) and self.attempts < 1:
            raise SettingsError(f"attempts must be at least 1, got {self.attempts}. attempts=1 turns recovery off.")
        for name, (number_type, minimum, maximum, meaning) in _LIMITS.items():
            value = getattr(self, name)
            if value is None and name in OPTIONAL_LIMITS:
                continue
            is_number = isinstance(value, number_type) and not isinstance(value, bool)
            if not is_number or not minimum <= value <= maximum:  # also refuses NaN and infinity
                raise SettingsError(f"{name} must be {meaning}, got {value!r}.")
        if self.on_spiral not in get_args(SpiralAction):
            raise SettingsError(f"on_spiral must be report or block, got {self.on_spiral!r}.")

    @property
    def allows_recovery(self) -> bool:
        return self.attempts != 1

    def for_models(self) -> Policy:
        """Return the policy for model calls.

        Their rate limits often last a minute, so the default maximum backoff is longer.
        """
        is_default = self.max_backoff == _DEFAULT_MAX_BACKOFF_SECONDS
        return msgspec.structs.replace(self, max_backoff=MODEL_MAX_BACKOFF_SECONDS) if is_default else self

    def limit_retries(
        self, *, answers_model: bool = False, has_timeout: bool = False, client_retries: int = 0
    ) -> RetryLimits:
        """Return the limits of one call. Limits that were set replace those of the caller.

        `has_timeout` means that the call has a deadline of its own. `client_retries` is how often its client would
        retry it.
        """
        is_awaited = answers_model and self.attempts is None and not has_timeout
        retry_seconds = AWAITED_RETRY_SECONDS if is_awaited else DEFAULT_RETRY_SECONDS
        outage_seconds = AWAITED_OUTAGE_SECONDS if is_awaited else DEFAULT_RETRY_SECONDS
        if self.retry_seconds is not None:
            retry_seconds = outage_seconds = self.retry_seconds
        elif has_timeout:
            retry_seconds = outage_seconds = math.inf
        attempts = self.attempts
        if attempts is None:
            attempts = max(AWAITED_ATTEMPTS if answers_model else DEFAULT_ATTEMPTS, client_retries + 1)
        return RetryLimits(
            attempts=attempts,
            retry_seconds=retry_seconds,
            outage_seconds=outage_seconds,
            are_attempts_explicit=self.attempts is not None,
            is_awaited=is_awaited,
            guaranteed_retries=0 if self.attempts is not None or has_timeout else client_retries,
        )

    def compute_backoff(
        self, attempt: int, retry_after: float | None, random_value: float, elapsed: float = 0.0
    ) -> float | None:
        """Return the backoff in seconds before this attempt, or None if Retry-After exceeds the maximum.

        `random_value` is a random number from 0 to 1. `elapsed` are the seconds since the call began: a stated delay
        may take what remains of the maximum.
        """
        exponent = min(max(attempt - 2, 0), 60)
        # Limit of the exponential backoff. Only a stated Retry-After is longer.
        ceiling: float = min(8.0, self.max_backoff, self.initial_backoff * 2**exponent)
        if retry_after is not None and retry_after >= 0:  # ignores negative values and NaN
            remaining = self.max_backoff - elapsed
            if retry_after > remaining:
                return None
            # Spread the rejected callers, who all received the same Retry-After, over as long again.
            return min(remaining, retry_after + random_value * max(retry_after, ceiling))
        return ceiling * (1 - 0.5 * random_value)


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """What recovery knows about the function behind a call."""

    name: str
    server: str | None = None
    """Server of the tool, if it runs in another program."""
    effects: Effects = "once"
    mode: Mode = "repair"
    observe_reason: str = 'the mode is "observe"'
    """Stop reason in mode `observe`. A call inside another one, or one that cannot be executed at all, has its own."""
    schema: Callable[[], Mapping[str, Any] | None] = lambda: None
    """Called on the first failure only: deriving a schema from a signature takes time."""
    privileged: frozenset[str] = frozenset()
    unprivileged: frozenset[str] = frozenset()
    clamp: frozenset[str] = frozenset()
    """Arguments that are changed to a bound automatically: callers of the tool prefer less to an error."""
    destructive: bool = False
    """Declared by the developer, an operator or an annotation. Its arguments are never changed automatically."""
    items: frozenset[str] = frozenset()
    """Arguments that the developer declared to name items."""
    learn: Learn = "tell"
    """Use of memory: off, tell, or repair, which also runs promoted prerequisites."""
    circuit_breaker: bool = False
    """Whether calls fail at once while their target is down, first attempts too."""
    key: str = ""
    """Identifies the tool among others with the same name. By default built from `server` and `name`."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "key", make_tool_key(self.name, self.server, self.key))

    @property
    def recorded_key(self) -> str | None:
        """Return the key to record, or None if only a bare name is known."""
        return self.key if self.key != self.name else None

    @property
    def is_retry_safe(self) -> bool:
        return self.effects != "once"


def make_tool_key(name: str, server: str | None = None, function: str = "") -> str:
    """Identify a tool: by its server and name, else by its function's `module:qualname`, else by its name alone."""
    # The proxy calls its tools `server.name`.
    key = f"{server}/{name.removeprefix(f'{server}.')}" if server and not function else function or name
    return key[:300]


class EarlierCall(msgspec.Struct, frozen=True):
    """An earlier call of the same run, with its outcome."""

    tool: str
    arguments: Any = None
    outcome: Outcome = "success"
    result: Any = None
    """The result, or the error text of a failed call."""

    @property
    def has_succeeded(self) -> bool:
        return self.outcome == "success"

    @classmethod
    def from_step(cls, step: Step) -> EarlierCall:
        result_or_error = step.result if step.failure is None else step.failure.message
        return cls(step.name, step.arguments, step.outcome, result_or_error)


class PrerequisiteCall(msgspec.Struct, frozen=True):
    """A call that must succeed before another."""

    tool: str
    arguments: dict[str, Any]


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """A proposed call that replaces a failed one."""

    tool: str
    arguments: dict[str, Any]
    prerequisites: tuple[PrerequisiteCall, ...] = ()
    """Calls that must be made before it."""
    changes: tuple[Change, ...] = ()
    source: str = "schema"
    """Origin of the suggestion: schema, error, run, memory, rule or reflection."""
    confidence: float
    strategy: str = ""
    """The repair strategy: that of the change with the lowest confidence."""
    evidence: tuple[str, ...] = ()
    fix_id: str | None = None
    """Id of the fix in memory, for `mulligan fixes show`."""
    record: Fix | None = None
    """The fix with this id."""
    automatic: bool = False
    """Whether safety rules, mode and policy allow it to be applied automatically."""
    reason: str = ""
    """Why it is not automatic."""


def describe_effects(failure: Failure) -> str:
    """Return why a failed call of a tool with effects="once" is not made again: it may have executed."""
    if failure.has_unknown_outcome:
        return 'the call may have executed and the tool has effects="once"'
    return (
        'the tool has effects="once", and nothing proves that the call did not execute '
        '(raise AgentError before it does anything, or declare effects="none" or "idempotent" if that is true)'
    )
