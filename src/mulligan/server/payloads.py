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
Id = Annotated[str, Meta(min_length=1, max_length=200, description="Opaque id chosen by the sender.")]
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

    run: Annotated[Id | None, Meta(description="Id of the run. Required outside a run.")] = None
    step: Annotated[Number | None, Meta(description="seq of the failed step. Without it, the run itself failed.")] = (
        None
    )
    id: Annotated[Id | None, Meta(description="Deduplication id: failures with the same id count once.")] = None
    type: Annotated[Word, Meta(description="tool, model, retrieval or orchestration.")] = ""
    code: Annotated[Word, Meta(description="Code of the kind, for example timeout.")] = ""
    message: Annotated[str, Meta(description="Error message.")] = ""
    detail: Annotated[str, Meta(description="Stack trace or further output.")] = ""
    exception: Annotated[Name, Meta(description="Class name of the exception, if any.")] = ""
    status: Annotated[Annotated[int, Meta(ge=100, le=599)] | None, Meta(description="HTTP status, if any.")] = None
    retry_after: Annotated[Seconds | None, Meta(description="Retry-After in seconds.")] = None
    name: Annotated[Name | None, Meta(description="Tool name, if the step was not sent.")] = None
    started_at: Annotated[Timestamp | None, Meta(description="UTC milliseconds.")] = None


class StepPayload(Payload, frozen=True):
    """One attempt of a call."""

    run: Annotated[Id | None, Meta(description="Id of the run. Required outside a run.")] = None
    seq: Annotated[
        Number | None,
        Meta(description="Number within the run, from 1. Required outside a run; default: position in steps."),
    ] = None
    call: Annotated[
        Number | None,
        Meta(description="seq of the call's first attempt. Without it, the step is a call of its own."),
    ] = None
    attempt: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(description="Attempt number within the call. Counted by default."),
    ] = None
    parent: Annotated[Number | None, Meta(description="seq of the enclosing step.")] = None
    type: StepType = "tool"
    name: Annotated[Name, Meta(description="Name of the tool, model or step.")] = ""
    server: Annotated[Name | None, Meta(description="MCP server of the tool.")] = None
    arguments: Annotated[Any, Meta(description="Arguments of the call.")] = None
    outcome: Annotated[Outcome | None, Meta(description="Default: failure if there is one, else success.")] = None
    result: Annotated[Any, Meta(description="Result of the call.")] = None
    started_at: Annotated[Timestamp | None, Meta(description="UTC milliseconds. Default: start of the run.")] = None
    duration_seconds: Annotated[Seconds, Meta(description="Duration in seconds.")] = 0.0
    failure: Annotated[FailurePayload | None, Meta(description="Failure of this attempt.")] = None
    tokens: Annotated[
        dict[Name, Count] | None, Meta(description="Token counts by type, for example input and output.")
    ] = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="Further data to store.")] = None


class RunPayload(Payload, frozen=True):
    """One run of an agent, complete or in progress."""

    id: Annotated[
        Id | None,
        Meta(description="Run id: records with the same id belong to one run. Default: created and returned."),
    ] = None
    agent: Annotated[Name, Meta(description="Name of the agent.")] = ""
    version: Annotated[Name | None, Meta(description="Version of the agent.")] = None
    environment: Annotated[Name | None, Meta(description="For example production or staging.")] = None
    session: Annotated[Name | None, Meta(description="Session id.")] = None
    parent: Annotated[Name | None, Meta(description="Id of the parent run.")] = None
    traceparent: Annotated[Trace | None, Meta(description="W3C traceparent of the calling span.")] = None
    context: Annotated[str | None, Meta(description="Task description.")] = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="Further data. The key model names the model.")] = None
    started_at: Annotated[
        Timestamp | None, Meta(description="UTC milliseconds. Default: start of the first step, else now.")
    ] = None
    ended_at: Annotated[
        Timestamp | None, Meta(description="UTC milliseconds. Without ended_at and end_reason, the run is in progress.")
    ] = None
    end_reason: Annotated[EndReason | None, Meta(description="End reason. Default: finished, if ended_at is set.")] = (
        None
    )
    steps: Annotated[list[StepPayload], Meta(max_length=MAX_BODY_ITEMS, description="Steps in start order.")] = []
    failures: Annotated[
        list[FailurePayload], Meta(max_length=MAX_BODY_ITEMS, description="Failures of the run or of its steps.")
    ] = []


class BatchPayload(Payload, frozen=True):
    """Events in the format of mulligan's journal."""

    client: Annotated[Name, Meta(description="Id of the client: one journal folder on one machine.")]
    journal: Annotated[str, Meta(min_length=1, max_length=200, description="Name of the journal.")]
    offset: Annotated[
        int,
        Meta(
            ge=1,
            le=2**62,
            description="Journal offset after these events. A batch up to a stored offset has no effect.",
        ),
    ]
    events: Annotated[list[AnyEvent], Meta(max_length=MAX_BODY_ITEMS)]


RunPayloads = RunPayload | Annotated[list[RunPayload], Meta(max_length=MAX_BODY_ITEMS)]
StepPayloads = StepPayload | Annotated[list[StepPayload], Meta(max_length=MAX_BODY_ITEMS)]
FailurePayloads = FailurePayload | Annotated[list[FailurePayload], Meta(max_length=MAX_BODY_ITEMS)]
