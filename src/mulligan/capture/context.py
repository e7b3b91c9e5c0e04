"""What capture needs of the world, put together by `build.py` and given to every wrapper."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from mulligan.core.events import AnyEvent
from mulligan.core.failure import Failure, Kind
from mulligan.core.fast_path import SuccessRecord
from mulligan.core.records import Fix, Precedent
from mulligan.prompt import Prompt
from mulligan.recover.budget import RetryBudget
from mulligan.recover.policy import Policy
from mulligan.recover.tool import Learn, Mode

if TYPE_CHECKING:
    from mulligan.capture.run import ActiveRun

log = logging.getLogger("mulligan")
T = TypeVar("T")

Recording = Literal["full", "shape", "off"]
"""How much of a call is kept: everything that redaction lets pass, no texts, or nothing."""
RECORDINGS: tuple[Recording, ...] = ("off", "shape", "full")
MODES: tuple[Mode, ...] = ("observe", "suggest", "repair")


def strictest(order: tuple[T, ...], *given: T | None) -> T | None:
    """The first in this order of those that were given."""
    return next((each for each in order if each in given), None)


LEARNS: tuple[Learn, ...] = ("off", "tell", "repair")


class Limits(NamedTuple):
    """What was said of a run, and so of every call in it."""

    mode: Mode | None = None
    record: Recording | None = None
    learn: Learn | None = None

    def within(self, outer: Limits) -> Limits:
        if outer is NO_LIMITS:
            return self
        return Limits(
            strictest(MODES, self.mode, outer.mode),
            strictest(RECORDINGS, self.record, outer.record),
            strictest(LEARNS, self.learn, outer.learn),
        )


NO_LIMITS = Limits()


def _nothing_known(tool: str, key: str, failure: Failure, arguments: Mapping[str, Any]) -> Sequence[Precedent]:
    return ()


async def _asleep(seconds: float) -> None:
    import asyncio  # 30 ms, and only async callers come here; it is loaded by then

    await asyncio.sleep(seconds)


class Here(msgspec.Struct, eq=False):
    """Where something happens: in which run, inside which of its steps, and under which layer that retries.

    One layer retries. It is the place of a call itself, and open while the call is under way: a task it started may
    outlive it, and is then on its own. (A struct, because one is made at every call.)
    """

    known_run: ActiveRun | None
    """None where it is made when it is asked for."""
    number: int | None
    above: Here | None
    """The layer around it."""
    is_open: bool
    """Whether it is a layer that retries itself, and under way."""

    @property
    def run(self) -> ActiveRun:
        assert self.known_run is not None
        return self.known_run

    @property
    def layer(self) -> Here | None:
        """The layer that retries here, this place or one above it, while it is under way."""
        layer = self if self.is_open else self.above
        return layer if layer is not None and layer.is_open else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """A stream to publish on, how to classify, how hard to try, and a clock that tests can replace."""

    publish: Callable[[AnyEvent], None]
    succeed: Callable[[SuccessRecord], None]
    keep: Keep | None = None
    """The same where nobody wants to hear of it in the caller's time, without a detour; None where there is none."""
    classify: Callable[..., Failure]
    watchers: Sequence[object] = ()
    """Who, beside the recorder, wants to hear of every beginning. Looked at, not asked: that is done at every call."""
    prompt: Prompt = field(default_factory=Prompt)
    """What is said to a model, without what these settings hide."""
    policy: Policy = field(default_factory=Policy)
    mode: Mode = "repair"
    record: Recording = "full"
    agent: str = ""
    environment: str | None = None
    recall: Callable[[str, str, Failure, Mapping[str, Any]], Sequence[Precedent]] = _nothing_known
    fixes: Known | None = None
    """What memory knows to have helped; None where there is no memory."""
    pitfalls: Callable[[Sequence[str], int], str] = lambda tools, budget: ""
    """What a model should know of these tools, within so many tokens."""
    answered: Callable[[str], None] = lambda run: None
    """Told of a run whose model asks for tools: the session counts its turns, whether or not its model is wrapped."""
    learn: Learn = "tell"
    """How far memory goes."""
    tools: Callable[[str], Any] | None = None
    """The wrapped function of a name, where there is exactly one."""
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] = _asleep
    chance: Callable[[], float] = random.random
    here: ContextVar[Here | None] = field(default_factory=lambda: ContextVar("mulligan_here", default=None))
    deadline: ContextVar[float | None] = field(default_factory=lambda: ContextVar("mulligan_deadline", default=None))
    """When the calls around this one must be over, by `timer`."""
    preparing: ContextVar[bool] = field(default_factory=lambda: ContextVar("mulligan_preparing", default=False))
    """Whether we are in a call that a recipe asked for: that one follows no recipe of its own."""
    item_arguments: Callable[[str], Collection[str]] = lambda tool: ()
    """Arguments of a tool, by its key, that named items in earlier runs."""
    published_items: set[tuple[str, str]] = field(default_factory=set)
    """Tools and arguments that this process has published as items already."""
    budget: RetryBudget = field(default_factory=RetryBudget)
    faults: set[str] = field(default_factory=set)
    """Which of our own parts have failed, so that each is told once."""
    others: dict[Recording, Kit] = field(default_factory=dict)
    """The same kit for calls of which more or less is kept."""

    def recording(self, record: Recording) -> Kit:
        """The same kit for calls of which this much is kept."""
        if record == self.record:
            return self
        if record not in self.others:
            self.others[record] = replace(self, record=record)
        return self.others[record]

    def new_items(self, items: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]] | None:
        """Return the item arguments that this process has not published yet; None where there are none."""
        fresh: dict[str, tuple[str, ...]] = {}
        for tool, arguments in items.items():
            unpublished = tuple(name for name in arguments if (tool, name) not in self.published_items)
            if unpublished:
                self.published_items.update((tool, name) for name in unpublished)
                fresh[tool] = unpublished
        return fresh or None

    @property
    def is_silent(self) -> bool:
        """Whether nothing is kept of what is told here."""
        return self.record == "off"

    def now(self) -> int:
        """UTC milliseconds."""
        return int(self.clock() * 1000)

    def current(self) -> ActiveRun | None:
        """The current run. One that has ended is nobody's: a task it left behind must not add to it."""
        here = self.here.get()
        return here.run if here is not None and here.run.is_open else None

    def step_of(self, run: ActiveRun) -> int | None:
        """The number of the step of this run that we are inside."""
        here = self.here.get()
        return here.number if here is not None and here.run is run else None

    def layer(self) -> Here | None:
        """The layer above us that retries, if there is one: one layer retries, the others only record."""
        here = self.here.get()
        return here.layer if here is not None else None

    def tell(self, event: AnyEvent) -> None:
        """Publishes, and is never the failure."""
        if self.record == "off":
            return
        try:
            self.publish(event)
        except Exception:  # noqa: BLE001 - the caller's work goes on, whoever listens
            self.fault("Publishing an event")

    def failure(self, error: object = None, *, source: str, **evidence: Any) -> Failure:
        """Classifies, and is never the failure."""
        try:
            return self.classify(error, source=source, **evidence)
        except Exception:  # noqa: BLE001 - an error nobody can name is still an error
            self.fault("Classification")
            return Failure.of(Kind(source, "unknown"), type(error).__name__)

    def fault(self, what: str) -> None:
        """Logs the exception being handled as our own, once for each part that fails."""
        if what not in self.faults:
            self.faults.add(what)
            log.exception("%s failed; the call continues without it (logged once)", what)


Keep = Callable[[SuccessRecord, Sequence[Any] | None], None]
"""Of a call that worked, and what `success.telling` makes of it, where that was done."""
Known = Callable[[str, str, Failure, Mapping[str, Any], str], Sequence[Fix]]
"""Of a tool's name and key, its failure, the arguments and the digest of its schema ("" where there is none)."""
Source = Callable[[], Kit | None]
"""Answers with the kit to use now, or None where everything passes through."""


def reset(variable: ContextVar[T], token: Token[T]) -> None:
    """Takes a context variable back to what it was.

    A coroutine or generator that is thrown away is closed wherever that happens, in a context that was never changed.
    """
    try:  # noqa: SIM105 - contextlib.suppress takes longer than all the rest of a call's end
        variable.reset(token)
    except ValueError:
        pass
