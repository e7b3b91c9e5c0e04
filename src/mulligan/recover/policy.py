"""Recovery policy: attempts, backoff, retry budgets and confidence threshold."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from mulligan.core.failure import SettingsError

SpiralAction = Literal["report", "block"]

_DEFAULT_MAX_BACKOFF_SECONDS = 30.0
MODEL_MAX_BACKOFF_SECONDS = 90.0


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
        for name in ("attempts", "max_run_retries", "retry_budget_burst", "max_identical_failures"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int):
                raise SettingsError(f"{name} must be a whole number, got {number!r}.")
            if number < 0 and name != "attempts":
                raise SettingsError(f"{name} must be 0 or more, got {number}.")
        if self.attempts < 1:
            raise SettingsError(f"attempts must be at least 1, got {self.attempts}. attempts=1 turns recovery off.")
        if self.attempts > 10:
            raise SettingsError(f"attempts must be 10 or less to avoid retry storms, got {self.attempts}.")
        for name in ("initial_backoff", "max_backoff"):
            seconds = getattr(self, name)
            if not _is_number(seconds) or not 0 <= seconds < float("inf"):
                raise SettingsError(f"{name} must be a number of seconds, 0 or more, got {seconds!r}.")
        if not _is_number(self.min_confidence) or not 0 <= self.min_confidence <= 1:
            raise SettingsError(f"min_confidence must be a number from 0 to 1, got {self.min_confidence!r}.")
        if not _is_number(self.retry_budget_ratio) or not 0 <= self.retry_budget_ratio <= 1:
            raise SettingsError(f"retry_budget_ratio must be a number from 0 to 1, got {self.retry_budget_ratio!r}.")
        if not isinstance(self.circuit_breaker, bool):
            raise SettingsError(f"circuit_breaker must be true or false, got {self.circuit_breaker!r}.")
        if self.on_spiral not in get_args(SpiralAction):
            raise SettingsError(f"on_spiral must be report or block, got {self.on_spiral!r}.")

    def for_models(self) -> Policy:
        """Return the policy for model calls.

        Their rate limits often last a minute, so the default maximum backoff is longer.
        """
        return (
            msgspec.structs.replace(self, max_backoff=MODEL_MAX_BACKOFF_SECONDS)
            if self.max_backoff == _DEFAULT_MAX_BACKOFF_SECONDS
            else self
        )

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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
