"""What recovery works with: the policy, the tool, earlier calls of the run, and suggestions.

These are apart from the rules in `repair.py`, which are imported at the first failure.
"""

from __future__ import annotations

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
MAX_TOOL_KEY_CHARACTERS = 300
ADDED_SOURCES = {"memory": 1, "reflection": 2}
"""Sources of suggestions that only add to those of the rules: they come after them, in this order."""

_DEFAULT_MAX_BACKOFF_SECONDS = 30.0
MODEL_MAX_BACKOFF_SECONDS = 90.0


_COUNT = (int, 0, sys.maxsize, "a whole number, 0 or more")
_SECONDS = (int | float, 0, sys.maxsize, "a number of seconds, 0 or more")
_RATIO = (int | float, 0, 1, "a number from 0 to 1")
_LIMITS: dict[str, tuple[Any, int, int, str]] = {
    "attempts": (int, 1, 10, "a whole number of 10 or less, to avoid retry storms"),
    "max_run_retries": _COUNT,
    "retry_budget_burst": _COUNT,
    "max_identical_failures": _COUNT,
    "initial_backoff": _SECONDS,
    "max_backoff": _SECONDS,
    "min_confidence": _RATIO,
    "retry_budget_ratio": _RATIO,
}
"""Settings with a number: its type, bounds, and both in words."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of automatic recovery for one tool or model."""

    attempts: int = 3
    """Maximum attempts of a call, including the first, for retries and repairs together. 1 turns recovery off."""
    initial_backoff: float = 0.5
    """Maximum backoff in seconds before the second attempt. It doubles with each further attempt."""
    max_backoff: float = _DEFAULT_MAX_BACKOFF_SECONDS
    """Maximum backoff in seconds. A longer Retry-After ends recovery instead of blocking the agent. Models: 90 by
    default."""
    min_confidence: float = 0.80
    """Repairs with a higher confidence than this are applied automatically. From 0 to 1."""
    max_run_retries: int = 20
    """Maximum retries of one run, over all its calls."""
    retry_budget_ratio: float = 0.1
    """Retries allowed per first attempt, for each tool and for the whole process."""
    retry_budget_burst: int = 10
    """Retries allowed before any first attempt, and the maximum that can accumulate."""
    circuit_breaker: bool = True
    """Whether an open circuit breaker blocks retries to a tool that keeps failing, for some seconds. It also blocks
    first attempts in a mulligan loop, and of tools declared with `circuit_breaker=True`."""
    max_identical_failures: int = 2
    """How many times a call may fail the same way in a run. In a mulligan loop the next identical call is blocked;
    elsewhere it is made and a note is added. 0 means unlimited."""
    on_spiral: SpiralAction = "report"
    """What to do about a strategy that failed several times with varied arguments. `report` adds a note for the
    model; `block` also blocks it in a mulligan loop."""

    def __post_init__(self) -> None:
        if isinstance(self.attempts, int) and self.attempts < 1:
            raise SettingsError(f"attempts must be at least 1, got {self.attempts}. attempts=1 turns recovery off.")
        for name, (number_type, minimum, maximum, meaning) in _LIMITS.items():
            value = getattr(self, name)
            is_number = isinstance(value, number_type) and not isinstance(value, bool)
            if not is_number or not minimum <= value <= maximum:  # also refuses NaN and infinity
                raise SettingsError(f"{name} must be {meaning}, got {value!r}.")
        if not isinstance(self.circuit_breaker, bool):
            raise SettingsError(f"circuit_breaker must be true or false, got {self.circuit_breaker!r}.")
        if self.on_spiral not in get_args(SpiralAction):
            raise SettingsError(f"on_spiral must be report or block, got {self.on_spiral!r}.")

    def for_models(self) -> Policy:
        """Return the policy for model calls.

        Their rate limits often last a minute, so the default maximum backoff is longer.
        """
        is_default = self.max_backoff == _DEFAULT_MAX_BACKOFF_SECONDS
        return msgspec.structs.replace(self, max_backoff=MODEL_MAX_BACKOFF_SECONDS) if is_default else self

    def compute_backoff(self, attempt: int, retry_after: float | None, random_value: float) -> float | None:
        """Return the backoff in seconds before this attempt, or None if Retry-After exceeds the maximum.

        `random_value` is a random number from 0 to 1.
        """
        if retry_after is not None and retry_after >= 0:  # ignores negative values and NaN
            if retry_after > self.max_backoff:
                return None
            # Add jitter after the requested delay: all rejected callers received the same Retry-After.
            return min(self.max_backoff, retry_after * (1 + 0.1 * random_value))
        # Full jitter instead of fixed steps: agents that share a rate limit would otherwise retry simultaneously.
        ceiling: float = min(self.max_backoff, self.initial_backoff * 2 ** (attempt - 2))
        return ceiling * (1 - random_value)


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
    """Whether its open circuit breaker also blocks first attempts, outside of a loop too."""
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
    return key[:MAX_TOOL_KEY_CHARACTERS]


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
