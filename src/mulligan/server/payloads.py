"""Payload types: runs, steps and failures as programs in any language send them, with limits."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mulligan.core.events import AnyEvent
from mulligan.core.records import EndReason, Outcome, StepType

MAX_BODY_ITEMS = 10_000
"""Limit of items in one list of a body."""
YEAR_9999 = 253_402_300_799_999
Id = Annotated[str, Meta(min_length=1, max_length=200, description="An opaque id of your own.")]
Name = Annotated[str, Meta(max_length=200)]
Trace = Annotated[str, Meta(pattern="^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
Number = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Timestamp = Annotated[int, Meta(ge=0, le=YEAR_9999, description="UTC milliseconds.")]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=0, le=2**40)]
Word = Annotated[str, Meta(max_length=80, pattern=r"^[A-Za-z0-9_.-]*$")]


class Payload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all payloads. Unknown fields are rejected."""


class FailurePayload(Payload, frozen=True):
    """A failure. Without a code, its message is classified."""

    run: Annotated[Id | None, Meta(description="Needed where it stands alone.")] = None
    step: Annotated[
        Number | None, Meta(description="The seq of the step it belongs to; without it, it is the run's own.")
    ] = None
    id: Annotated[Id | None, Meta(description="The same id again is the same failure.")] = None
    type: Annotated[Word, Meta(description="tool, model, retrieval or orchestration.")] = ""
    code: Annotated[Word, Meta(description="Such as timeout; see the kinds there are.")] = ""
    message: Annotated[str, Meta(description="What was said.")] = ""
    detail: Annotated[str, Meta(description="A stack, or whatever else was said.")] = ""
    exception: Annotated[Name, Meta(description="The name of the exception's class, where there was one.")] = ""
    status: Annotated[
        Annotated[int, Meta(ge=100, le=599)] | None, Meta(description="The status of HTTP, where there was one.")
    ] = None
    retry_after: Annotated[Seconds | None, Meta(description="Seconds after which it was told to come again.")] = None
    name: Annotated[Name | None, Meta(description="The tool, where the step is not known here.")] = None
    started: Annotated[Timestamp | None, Meta(description="UTC milliseconds.")] = None


class StepPayload(Payload, frozen=True):
    """One attempt of a call."""

    run: Annotated[Id | None, Meta(description="Needed where it does not stand in its run.")] = None
    seq: Annotated[
        Number | None,
        Meta(description="Counts from 1 within the run; needed where it does not stand in its run, else its place."),
    ] = None
    call: Annotated[
        Number | None,
        Meta(description="Of a further attempt: the seq of the first one. Without it, a call of its own."),
    ] = None
    attempt: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None, Meta(description="Which attempt at its call; counted if not said.")
    ] = None
    parent: Annotated[Number | None, Meta(description="The seq of the step within which it was made.")] = None
    type: StepType = "tool"
    name: Annotated[Name, Meta(description="The tool, the model, or what the step is called.")] = ""
    server: Annotated[Name | None, Meta(description="Of MCP: the server whose tool it is.")] = None
    arguments: Annotated[Any, Meta(description="What it was called with.")] = None
    outcome: Annotated[Outcome | None, Meta(description="success, or failure where there is one, if not said.")] = None
    result: Annotated[Any, Meta(description="What it answered.")] = None
    started: Annotated[Timestamp | None, Meta(description="UTC milliseconds; when its run began, if not said.")] = None
    seconds: Annotated[Seconds, Meta(description="How long it took.")] = 0.0
    failure: Annotated[FailurePayload | None, Meta(description="What went wrong.")] = None
    tokens: Annotated[dict[Name, Count] | None, Meta(description="How many, by what they were.")] = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="Whatever else you want to see of it.")] = None


class RunPayload(Payload, frozen=True):
    """One run of an agent, complete or in progress."""

    id: Annotated[
        Id | None, Meta(description="The same id again is the same run. Without one it is given one, and told.")
    ] = None
    agent: Annotated[Name, Meta(description="Who works.")] = ""
    version: Annotated[Name | None, Meta(description="Of the agent.")] = None
    environment: Annotated[Name | None, Meta(description="production, staging, a laptop.")] = None
    session: Annotated[Name | None, Meta(description="The conversation it is part of.")] = None
    parent: Annotated[Name | None, Meta(description="The id of the run that began this one.")] = None
    traceparent: Annotated[Trace | None, Meta(description="The W3C's: the span of another program it began under.")] = (
        None
    )
    context: Annotated[str | None, Meta(description="What the agent was trying to do.")] = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="Whatever else; model names the model.")] = None
    started: Annotated[
        Timestamp | None, Meta(description="UTC milliseconds; if not said, its first step's, or now.")
    ] = None
    ended: Annotated[Timestamp | None, Meta(description="UTC milliseconds; without it and end, it is under way.")] = (
        None
    )
    end: Annotated[EndReason | None, Meta(description="How it ended: finished, where only the time is said.")] = None
    steps: Annotated[
        list[StepPayload], Meta(max_length=MAX_BODY_ITEMS, description="In the order in which they began.")
    ] = []
    failures: Annotated[
        list[FailurePayload], Meta(max_length=MAX_BODY_ITEMS, description="The run's own, or of its steps.")
    ] = []


class BatchPayload(Payload, frozen=True):
    """Events in the format of mulligan's journal."""

    client: Annotated[Name, Meta(description="Which journals these are one of: a folder of one machine.")]
    journal: Annotated[str, Meta(min_length=1, max_length=200, description="Which of them.")]
    offset: Annotated[
        int,
        Meta(
            ge=1,
            le=2**62,
            description="At the end of these events. A batch that ends no further than what is kept changes nothing.",
        ),
    ]
    events: Annotated[list[AnyEvent], Meta(max_length=MAX_BODY_ITEMS)]


RunPayloads = RunPayload | Annotated[list[RunPayload], Meta(max_length=MAX_BODY_ITEMS)]
StepPayloads = StepPayload | Annotated[list[StepPayload], Meta(max_length=MAX_BODY_ITEMS)]
FailurePayloads = FailurePayload | Annotated[list[FailurePayload], Meta(max_length=MAX_BODY_ITEMS)]
