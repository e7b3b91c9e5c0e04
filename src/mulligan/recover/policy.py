"""Policy: how many attempts, how long to wait, how sure to be."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from mulligan.failure import SettingsError

Spirals = Literal["report", "block"]

_LONGEST = 30.0
LONGEST_FOR_MODELS = 90.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How hard to try before a failure is told."""

    attempts: int = 3
    """In all, the first included, whether an attempt waited or was repaired. 1 turns recovery off."""
    first_wait: float = 0.5
    """Seconds. The longest wait before the second attempt; it doubles with each further one."""
    longest_wait: float = _LONGEST
    """Seconds. A longer Retry-After ends recovery instead of blocking the agent. Models: 90, unless it is set."""
    confidence: float = 0.80
    """A repair that is surer than this is tried without asking, from 0 to 1."""
    run_retries: int = 20
    """Retries of one run, all its calls together."""
    retry_ratio: float = 0.1
    """Retries allowed for each first attempt, for each tool and for the whole process."""
    retry_burst: int = 10
    """Retries allowed before there were any first attempts, and the most that can be saved up."""
    breaker: bool = True
    """Whether an open circuit breaker stops retries, for some seconds, at a tool that keeps failing. It blocks first
    attempts too in a loop of ours, and of tools that ask for it (`circuit_breaker=True`)."""
    repeats: int = 2
    """Times that a call may be given up the same way in a run. The next one is not made where it answers a model in a
    loop of ours; elsewhere it is made, and a note says so. 0 for any number."""
    spirals: Spirals = "report"
    """What becomes of a strategy that failed several times in other words. report tells the model; block also stops it
    in a loop of ours."""

    def __post_init__(self) -> None:
        for name in ("attempts", "run_retries", "retry_burst", "repeats"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int):
                raise SettingsError(f"{name} is a whole number, got {number!r}.")
            if number < 0 and name != "attempts":
                raise SettingsError(f"{name} must be 0 or more, got {number}.")
        if self.attempts < 1:
            raise SettingsError(
                f"attempts must be at least 1, got {self.attempts}. To turn recovery off, pass attempts=1."
            )
        if self.attempts > 10:
            raise SettingsError(f"attempts must be 10 or less, got {self.attempts}: more is a retry storm.")
        for name in ("first_wait", "longest_wait"):
            seconds = getattr(self, name)
            if not _is_number(seconds) or not 0 <= seconds < float("inf"):
                raise SettingsError(f"{name} is a number of seconds, 0 or more, got {seconds!r}.")
        if not _is_number(self.confidence) or not 0 <= self.confidence <= 1:
            raise SettingsError(f"confidence is a share from 0 to 1, got {self.confidence!r}.")
        if not _is_number(self.retry_ratio) or not 0 <= self.retry_ratio <= 1:
            raise SettingsError(f"retry_ratio is a share from 0 to 1, got {self.retry_ratio!r}.")
        if not isinstance(self.breaker, bool):
            raise SettingsError(f"breaker is true or false, got {self.breaker!r}.")
        if self.spirals not in get_args(Spirals):
            raise SettingsError(f"spirals is report or block, got {self.spirals!r}.")

    def for_models(self) -> Policy:
        """The same for calls of models, whose limits are often by the minute: unless someone said how long to wait."""
        return msgspec.structs.replace(self, longest_wait=LONGEST_FOR_MODELS) if self.longest_wait == _LONGEST else self

    def wait(self, attempt: int, retry_after: float | None, chance: float) -> float | None:
        """Seconds before this attempt, or None when the other side asks for more than we would wait.

        `chance` is a random number from 0 to 1.
        """
        if retry_after is not None and retry_after >= 0:  # neither a time gone by nor NaN can be waited for
            if retry_after > self.longest_wait:
                return None
            # A little later than asked, each at another time: everybody who was turned away was told the same moment.
            return min(self.longest_wait, retry_after * (1 + 0.1 * chance))
        # Full jitter, not a fixed step: many agents share one rate limit and would otherwise return together.
        ceiling: float = min(self.longest_wait, self.first_wait * 2 ** (attempt - 2))
        return ceiling * (1 - chance)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
