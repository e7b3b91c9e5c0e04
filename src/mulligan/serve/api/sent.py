"""What may be sent: runs, steps and failures as a program in any language would write them, with their bounds."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mulligan.events import AnyEvent
from mulligan.records import End, Outcome, StepType

MANY = 10_000
"""Of anything in one body."""
YEAR_9999 = 253_402_300_799_999
Id = Annotated[str, Meta(min_length=1, max_length=200, description="An opaque id of your own.")]
Name = Annotated[str, Meta(max_length=200)]
Number = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Moment = Annotated[int, Meta(ge=0, le=YEAR_9999, description="UTC milliseconds.")]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=0, le=2**40)]
Word = Annotated[str, Meta(max_length=80, pattern=r"^[A-Za-z0-9_.-]*$")]


class Sent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What all share: a name that nobody knows is a mistake, and told."""


class SentFailure(Sent, frozen=True):
    """What went wrong. Without a code, the message is classified."""

    run: Id | None = None
    """Needed where it stands alone."""
    step: Number | None = None
    """The seq of the step it belongs to; without it, it is the run's own."""
    id: Id | None = None
    """The same id again is the same failure."""
    type: Word = ""
    code: Word = ""
    message: str = ""
    detail: str = ""
    exception: Name = ""
    """The name of the exception's class, where there was one."""
    status: Annotated[int, Meta(ge=100, le=599)] | None = None
    retry_after: Seconds | None = None
    name: Name | None = None
    """The tool, where the step is not known here."""
    started: Moment | None = None


class SentStep(Sent, frozen=True):
    """One attempt at a call."""

    run: Id | None = None
    """Needed where it does not stand in its run."""
    seq: Number | None = None
    """Counts from 1 within the run; needed where it does not stand in its run."""
    call: Number | None = None
    """The seq of the first attempt at the same thing."""
    attempt: Annotated[int, Meta(ge=1, le=1000)] | None = None
    parent: Number | None = None
    type: StepType = "tool"
    name: Name = ""
    server: Name | None = None
    arguments: Any = None
    outcome: Outcome | None = None
    result: Any = None
    started: Moment | None = None
    seconds: Seconds = 0.0
    failure: SentFailure | None = None
    tokens: dict[Name, Count] | None = None
    metadata: dict[str, Any] | None = None


class SentRun(Sent, frozen=True):
    """A piece of work by an agent, with what is known of it so far."""

    id: Id | None = None
    """The same id again is the same run. Without one it is given one, and told."""
    agent: Name = ""
    version: Name | None = None
    environment: Name | None = None
    session: Name | None = None
    parent: Name | None = None
    context: str | None = None
    metadata: dict[str, Any] | None = None
    started: Moment | None = None
    ended: Moment | None = None
    end: End | None = None
    steps: Annotated[list[SentStep], Meta(max_length=MANY)] = []
    failures: Annotated[list[SentFailure], Meta(max_length=MANY)] = []
    """The run's own, or of its steps."""


class SentBatch(Sent, frozen=True):
    """Events as mulligan's own journal has them."""

    client: Name
    """Which journals these are one of: a folder of one machine."""
    journal: Annotated[str, Meta(min_length=1, max_length=200)]
    offset: Annotated[int, Meta(ge=1, le=2**62)]
    """At the end of these events. A batch that ends no further than what is kept changes nothing."""
    events: Annotated[list[AnyEvent], Meta(max_length=MANY)]


SentRuns = SentRun | Annotated[list[SentRun], Meta(max_length=MANY)]
SentSteps = SentStep | Annotated[list[SentStep], Meta(max_length=MANY)]
SentFailures = SentFailure | Annotated[list[SentFailure], Meta(max_length=MANY)]
