"""What capture needs of the world, put together by `assembly.py` and given to every wrapper."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mulligan.events import AnyEvent
from mulligan.failure import Failure
from mulligan.records import Precedent
from mulligan.recover.plan import Mode
from mulligan.recover.policy import Policy

if TYPE_CHECKING:
    from mulligan.capture.tracer import ActiveRun, ActiveStep


def _nothing_known(tool: str, failure: Failure, run: str) -> Sequence[Precedent]:
    return ()


async def _asleep(seconds: float) -> None:
    import asyncio  # 30 ms, and only async callers come here; it is loaded by then

    await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """A stream to publish on, how to classify, how hard to try, and a clock that tests can replace."""

    publish: Callable[[AnyEvent], None]
    classify: Callable[..., Failure]
    policy: Policy = field(default_factory=Policy)
    mode: Mode = "repair"
    agent: str = ""
    environment: str | None = None
    recall: Callable[[str, Failure, str], Sequence[Precedent]] = _nothing_known
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] = _asleep
    chance: Callable[[], float] = random.random
    run: ContextVar[ActiveRun | None] = field(default_factory=lambda: ContextVar("mulligan_run", default=None))
    step: ContextVar[ActiveStep | None] = field(default_factory=lambda: ContextVar("mulligan_step", default=None))
    is_recovering: ContextVar[bool] = field(default_factory=lambda: ContextVar("mulligan_is_recovering", default=False))
    """One layer retries: inside a call that is being recovered, further wrappers only record."""

    def now(self) -> int:
        """UTC milliseconds."""
        return int(self.clock() * 1000)


Source = Callable[[], Kit | None]
"""Answers with the kit to use now, or None where everything passes through."""
Arguments = dict[str, Any]
