"""Payloads: runs, steps and failures as programs in any language send them, and their conversion into records.

A failure without a kind is classified. Everything is redacted before it is stored.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from mulligan.capture.run_judge import outcome_of
from mulligan.classify.recorded_kinds import find_fingerprint, name_kind
from mulligan.classify.result_verdict import suspect_recorded_result
from mulligan.contract.store import DAY, Batch, KeyValueStore
from mulligan.core.attempts import join_attempts, mark_attempt, parse_attempt_name, says_attempt
from mulligan.core.events import (
    AnyEvent,
    ContextCompacted,
    FailureRecorded,
    RunEnded,
    RunStarted,
    StepEnded,
    redact_all,
)
from mulligan.core.failure import Failure, Kind, SettingsError
from mulligan.core.kinds import KINDS, check_type
from mulligan.core.log import get_logger
from mulligan.core.prices import PriceTable
from mulligan.core.record_redaction import RecordRedactor
from mulligan.core.records import (
    FIRST_FAILURE_SEQ,
    EndReason,
    History,
    Link,
    Outcome,
    Run,
    Step,
    StepType,
    encode,
    new_id,
)
from mulligan.core.run_links import attach_links, judge_calls
from mulligan.core.token_usage import MAX_TOKEN_COUNT
from mulligan.redaction import Redactor
from mulligan.report.tables import format_timestamp
from mulligan.server.background import FAILURE_WEIGHT, SlicedWork, complete
from mulligan.server.bodies import MAX_BODY_ITEMS, FaultCollector, invalid
from mulligan.server.tenants import Tenant, Tenants, load_or_create_key
from mulligan.store.sent_records import needs_numbers

log = get_logger(__name__)

STEP_NUMBER_LIMIT = 2**31
MAX_COST_NANOS = 10**15
COPIED_RUN_FIELDS = ("agent", "version", "environment", "session", "parent", "traceparent", "context", "metadata")
COPIED_STEP_FIELDS = ("parent", "type", "name", "server", "arguments", "result", "duration_seconds")
MAX_PART_WEIGHT = 1000
"""Weight at which a large body is stored in parts, each in a transaction of its own: 25 failures."""
SENT_RUN_FIELDS = (*COPIED_RUN_FIELDS, "started_at", "ended_at", "end_reason")
YEAR_9999 = 253_402_300_799_999
MIN_UNIX_SECONDS, MAX_UNIX_SECONDS = 10**8, 10**11
"""Numbers that are a time in seconds from 1973 to 5138. As milliseconds, they would be before 1974."""
Id = Annotated[str, Meta(min_length=1, max_length=200, description="Opaque id chosen by the sender.")]
Name = Annotated[str, Meta(max_length=200)]
Trace = Annotated[str, Meta(pattern="^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
T = TypeVar("T")
Items = Annotated[list[T], Meta(max_length=MAX_BODY_ITEMS)]
Tags = Annotated[list[Name], Meta(max_length=50)]
Attempt = Annotated[int, Meta(ge=1, le=1000)]
Offset = Annotated[int, Meta(ge=1, le=2**62)]
Number = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Timestamp = Annotated[int, Meta(ge=0, le=2**62, description="UTC milliseconds.")]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=0, le=2**40)]
Word = Annotated[str, Meta(max_length=80, pattern=r"^[A-Za-z0-9_.-]*$")]


TOKENS_DESCRIPTION = (
    "Token counts: input, output, and their parts cached_input, cache_write, cache_write_1h, audio_input, reasoning, "
    "audio_output."
)
SEQ_DESCRIPTION = "Number from 1. Default: the position in a run, outside a run the number after the last stored step."
METADATA_DESCRIPTION = "Further data to store. model names the model, cost its cost in US dollars."


class Payload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all payloads. Unknown fields are rejected."""


class FailurePayload(Payload, frozen=True):
    """A failure. Without a code, its message is classified."""

    run: Annotated[Id | None, Meta(description="Id of the run. Required outside a run.")] = None
    step: Annotated[Number | None, Meta(description="seq of the failed step. Default: the run itself failed.")] = None
    id: Annotated[Id | None, Meta(description="Deduplication id: failures with the same id count once.")] = None
    type: Annotated[Word, Meta(description="tool, model, retrieval or orchestration.")] = ""
    code: Annotated[Name, Meta(description="Code of the kind, for example timeout, or one of your own.")] = ""
    failure_type: Annotated[Word, Meta(description="Another name for type.")] = ""
    failure_code: Annotated[Name, Meta(description="Another name for code.")] = ""
    step_id: Annotated[Number | None, Meta(description="Another name for step.")] = None
    message: Annotated[str, Meta(description="Error message.")] = ""
    detail: Annotated[str, Meta(description="Further output.")] = ""
    exception: Annotated[Name, Meta(description="Class of the exception with its module, if any.")] = ""
    trace: Annotated[str, Meta(description="Stack trace, shown to people only.")] = ""
    status: Annotated[Annotated[int, Meta(ge=100, le=599)] | None, Meta(description="HTTP status, if any.")] = None
    retry_after: Annotated[Seconds | None, Meta(description="Retry-After in seconds.")] = None
    name: Annotated[Name | None, Meta(description="Tool name, if the step was not sent.")] = None
    started_at: Annotated[Timestamp | None, Meta(description="UTC milliseconds.")] = None

    def resolve_names(self, path_prefix: str = "") -> FailurePayload:
        """Return the payload with the first name of each field, so that both names give the same record."""
        values: dict[str, Any] = {}
        for name, other_name in (("type", "failure_type"), ("code", "failure_code"), ("step", "step_id")):
            value, other_value = getattr(self, name), getattr(self, other_name)
            if value and other_value and value != other_value:
                message = f"{other_name} contradicts {name}: they are the same field. Send one of them."
                raise invalid(message, f"{path_prefix}{other_name}")
            values[name] = value or other_value
        return msgspec.structs.replace(self, failure_type="", failure_code="", step_id=None, **values)


class StepPayload(Payload, frozen=True):
    """One attempt of a call."""

    run: Annotated[Id | None, Meta(description="Id of the run. Required outside a run.")] = None
    seq: Annotated[Number | None, Meta(description=SEQ_DESCRIPTION)] = None
    call: Annotated[Number | None, Meta(description="seq of the call's first attempt. Default: a call of its own.")] = (
        None
    )
    attempt: Annotated[Attempt | None, Meta(description="Attempt number within the call. Counted by default.")] = None
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
    tokens: Annotated[dict[Name, Count] | None, Meta(description=TOKENS_DESCRIPTION)] = None
    metadata: Annotated[dict[str, Any] | None, Meta(description=METADATA_DESCRIPTION)] = None


class RunPayload(Payload, frozen=True):
    """One run of an agent, complete or in progress. If it is stored, only the fields that are sent change."""

    id: Annotated[Id | None, Meta(description="Run id, shared by its records. Default: created and returned.")] = None
    agent: Annotated[Name, Meta(description="Name of the agent.")] = ""
    version: Annotated[Name | None, Meta(description="Version of the agent.")] = None
    environment: Annotated[Name | None, Meta(description="For example production or staging.")] = None
    session: Annotated[Name | None, Meta(description="Session id.")] = None
    parent: Annotated[Name | None, Meta(description="Id of the parent run.")] = None
    traceparent: Annotated[Trace | None, Meta(description="W3C traceparent of the calling span.")] = None
    context: Annotated[str | None, Meta(description="Task description.")] = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="Further data. The key model names the model.")] = None
    user: Annotated[Name | None, Meta(description="The user whom it serves. Stored in the metadata.")] = None
    tags: Annotated[Tags | None, Meta(description="Stored in the metadata.")] = None
    started_at: Annotated[Timestamp | None, Meta(description="Default: start of the first step, else now.")] = None
    ended_at: Annotated[Timestamp | None, Meta(description="Without it and end_reason, the run is in progress.")] = None
    end_reason: Annotated[EndReason | None, Meta(description="Default: finished, if ended_at is set.")] = None
    steps: Annotated[Items[StepPayload], Meta(description="Steps in start order.")] = []
    failures: Annotated[Items[FailurePayload], Meta(description="Failures of the run or of its steps.")] = []


class BatchPayload(Payload, frozen=True):
    """Events in the format of mulligan's journal."""

    client: Annotated[Name, Meta(description="Id of the client: one journal folder on one machine.")]
    journal: Annotated[str, Meta(min_length=1, max_length=200, description="Name of the journal.")]
    offset: Annotated[Offset, Meta(description="Offset after these events. Up to a stored offset, it has no effect.")]
    events: Items[AnyEvent]


ITEM_TYPES: Mapping[Any, Mapping[str, Any]] = {
    RunPayload: {"steps": StepPayload, "failures": FailurePayload},
    BatchPayload: {"events": AnyEvent},
}
"""Types of the items in the lists of a payload. A large body is decoded an item at a time."""
RunPayloads = RunPayload | Items[RunPayload]
StepPayloads = StepPayload | Items[StepPayload]
FailurePayloads = FailurePayload | Items[FailurePayload]


# Conversion


class PayloadConverter:
    """Converter from payloads to records, with the tenants' redaction rules."""

    def __init__(
        self,
        classify: Callable[..., Failure],
        build_redactor: Callable[[bytes, Tenant], Redactor],
        key_value_store: KeyValueStore,
        kinds: Mapping[str, Kind] = KINDS,
        prices: PriceTable | None = None,
    ) -> None:
        self.classify = classify
        self.kinds = kinds
        self._prices = prices or PriceTable()
        self.tenants = Tenants(key_value_store)
        self._build_redactor = build_redactor
        self._key_value_store = key_value_store
        self._redactors: dict[str, tuple[Tenant, RecordRedactor]] = {}
        self._logged_kinds: set[Kind] = set()
        """Undeclared kinds that were logged: each is logged once."""
        self._redaction_lock = threading.Lock()
        """Held while a redactor works, which the writer thread and the thread for large bodies share."""

    def record_redactor(self, tenant: str) -> RecordRedactor:
        """Return the redactor of a tenant, with its own unredacted arguments and its own key.

        The key makes equal values comparable within one tenant, but not across tenants.
        """
        settings = self.tenants.settings_for(tenant)
        redactor_settings, redactor = self._redactors.get(tenant, (None, None))
        if redactor is None or redactor_settings != settings:
            key = load_or_create_key(self._key_value_store, tenant, "key", "export")
            redactor = RecordRedactor(self._build_redactor(key, settings))
            self._redactors[tenant] = (settings, redactor)
        return redactor

    def build_journal_batch(self, tenant: str, principal: str, payload: BatchPayload) -> Batch:
        """Build the redacted batch for a journal chunk from a client."""
        return self.build_journal_end(tenant, principal, payload, self._redact(tenant, payload.events))

    def build_journal_end(
        self, tenant: str, principal: str, payload: BatchPayload, redacted_events: Sequence[AnyEvent]
    ) -> Batch:
        """Build the last batch of a journal chunk that is stored in parts."""
        return Batch(tenant, redacted_events, _journal_name(payload), payload.offset, principal)

    def build_event_batch(
        self, tenant: str, principal: str, events: Sequence[AnyEvent], numbered_events: list[AnyEvent]
    ) -> Batch:
        """Build the redacted batch for events without a journal. `numbered_events` is as in `Batch`.

        Run id and step number identify each event, so sending it again has no further effect.
        """
        redacted_events = self._redact(tenant, complete(link_complete_runs(events)))
        return Batch(tenant, redacted_events, principal=principal, numbered_events=numbered_events)

    def prepare_parts(
        self, tenant: str, events: Sequence[AnyEvent], is_linked: bool = False
    ) -> SlicedWork[tuple[list[list[AnyEvent]], list[str]]]:
        """Link and redact the events of a large body.

        Return them in parts that are quick to store, and the ids of the runs that start in one part and end in another.
        """
        linked_events = events if is_linked else (yield from link_complete_runs(events))
        redacted_events: list[AnyEvent] = []
        for part in split_events(linked_events, 25):  # weight of the events that are redacted without a pause
            redacted_events += self._redact(tenant, part)
            yield
        if weigh_events(redacted_events) <= MAX_PART_WEIGHT or needs_numbers(redacted_events):
            return [redacted_events], []
        ordered_events, started_runs = end_runs_last(redacted_events)
        return list(split_events(ordered_events, MAX_PART_WEIGHT)), started_runs

    def _redact(self, tenant: str, events: Sequence[AnyEvent]) -> list[AnyEvent]:
        with self._redaction_lock:
            return redact_all(self._prices.add_costs(events), self.record_redactor(tenant))

    # Payloads of other programs

    def convert_run(
        self, payload: RunPayload, now: int, path_prefix: str = ""
    ) -> SlicedWork[tuple[str, list[AnyEvent]]]:
        """Convert a run with its steps and failures. Return the run's id and its events."""
        facts = {name: fact for name in ("user", "tags") if (fact := getattr(payload, name)) is not None}
        if facts:
            payload = msgspec.structs.replace(payload, metadata={**(payload.metadata or {}), **facts})
        started_at, ended_at, end_reason = payload.started_at, payload.ended_at, payload.end_reason
        faults = FaultCollector()
        with faults:
            check_times(payload, now, path_prefix)
            if ended_at is not None and started_at is not None and ended_at < started_at:
                raise invalid("Invalid ended_at: before started_at.", f"{path_prefix}ended_at")
        if started_at is None:
            started_at = min((step.started_at for step in payload.steps if step.started_at is not None), default=now)
            if ended_at is not None:
                started_at = min(started_at, ended_at)  # A run must not end before its first step starts.
        run = Run(
            id=payload.id or new_id(),
            started_at=started_at,
            ended_at=now if ended_at is None and end_reason else ended_at,
            end_reason=end_reason or ("finished" if ended_at is not None else None),
            **{name: getattr(payload, name) for name in COPIED_RUN_FIELDS},
        )
        attempts: Counter[int] = Counter()
        steps: dict[int, Step] = {}
        for number, step_payload in enumerate(payload.steps):
            yield
            item_path = f"{path_prefix}steps[{number}]."
            seq = step_payload.seq or number + 1
            with faults:
                _check_run(step_payload.run, run.id, item_path)
            with faults:
                check_times(step_payload, now, item_path)
            with faults:
                step = self._convert_step(step_payload, run.id, seq, run.started_at, item_path, attempts)
                if seq in steps:
                    raise invalid(f"Duplicate seq {seq}. Each step needs its own number.", f"{item_path}seq")
                steps[seq] = step
        for number, step in enumerate(steps.values()):
            first = steps.get(step.call)
            if first is not None and first.call != first.seq:  # Otherwise different calls would be grouped into one.
                message = f"Invalid call {step.call}: that step is a later attempt. Use its call, {first.call}."
                faults.add(message, f"{path_prefix}steps[{number}].call")
        failure_steps: list[Step] = []
        recorded_failures: dict[int, FailureRecorded] = {}
        for number, failure_payload in enumerate(payload.failures):
            yield
            item_path = f"{path_prefix}failures[{number}]."
            with faults:
                failure = failure_payload.resolve_names(item_path)
                _check_run(failure.run, run.id, item_path)
                check_times(failure, now, item_path)
                failed_step = steps.get(failure.step or 0)
                if failed_step is not None:
                    merged = self.merge_failure(failed_step, failure, item_path)
                    if merged is not None:
                        steps[failed_step.seq] = failed_step.with_failure(merged)
                        # The step may be stored as a success already.
                        recorded_failures[failed_step.seq] = FailureRecorded(run.id, failed_step.seq, merged)
                    continue
                # A failure of a step that is not in this body waits for it, or finds it in the store.
                target: tuple[StepType, str] = ("run", run.agent) if failure.step is None else ("tool", "")
                failure_steps.append(self.build_failure_step(failure, run.id, target, run.started_at, item_path))
        faults.raise_all()
        if any(map(says_attempt, steps.values())):
            steps = {step.seq: step for step in join_attempts(steps.values())}
        sent_fields = tuple(name for name in SENT_RUN_FIELDS if getattr(payload, name) not in (None, ""))
        run_event = (RunStarted if run.end_reason is None else RunEnded)(run, sent_fields)
        step_events = map(StepEnded, (*steps.values(), *failure_steps))
        return run.id, [run_event, *step_events, *recorded_failures.values()]

    def convert_step(self, payload: StepPayload, now: int, path_prefix: str = "") -> Step:
        """Convert a step outside a run. One without a number gets the number 0, which the store replaces."""
        if payload.run is None:
            raise invalid("Missing run: the id of the run that the step belongs to.", f"{path_prefix}run")
        check_times(payload, now, path_prefix)
        return self._convert_step(payload, payload.run, payload.seq or 0, now, path_prefix, Counter())

    def _convert_step(
        self, payload: StepPayload, run: str, seq: int, default_start: int, path_prefix: str, attempts: Counter[int]
    ) -> Step:
        call = payload.call or seq
        if call > seq > 0:
            message = f"Invalid call {call}. Use the seq of the call's first attempt, at most {seq}."
            raise invalid(message, f"{path_prefix}call")
        attempts[call] += 1
        attempt = payload.attempt or (attempts[call] if call == seq or attempts[call] > 1 else 2)
        attempt = 1 if not call and payload.attempt is None else attempt
        failure, outcome, metadata = None, payload.outcome or "success", payload.metadata
        attempt_name = parse_attempt_name(payload.name)
        name = payload.name if attempt_name is None else attempt_name.name
        if payload.failure is not None or outcome == "failure":
            item_path = f"{path_prefix}failure."
            failure_payload = (payload.failure or FailurePayload()).resolve_names(item_path)
            failure = self.convert_failure(failure_payload, payload.type, name, item_path, payload.arguments)
            outcome = outcome_of(failure)
            if payload.outcome not in (None, outcome):
                message = f"Outcome {payload.outcome!r} contradicts the failure. Omit it, or send {outcome!r}."
                raise invalid(message, f"{path_prefix}outcome")
        suspected = None
        if outcome == "success":
            classify, arguments = self.classify, payload.arguments
            suspected = suspect_recorded_result(
                payload.result, classify, type=payload.type, tool=name, arguments=arguments
            )
        if payload.type == "model" and name:
            metadata = {"model": name, **(metadata or {})}  # Metrics filter by it.
        step = Step(
            run=run,
            seq=seq,
            call=call,
            attempt=attempt,
            outcome=outcome,
            started_at=payload.started_at if payload.started_at is not None else default_start,
            failure=failure,
            suspected=suspected,
            tokens=dict(payload.tokens) if payload.tokens else None,
            metadata=metadata,
            **{name: getattr(payload, name) for name in COPIED_STEP_FIELDS},
        )
        rank = payload.attempt if payload.call is None and (payload.attempt or 0) > 1 else None
        return step if rank is None and attempt_name is None else mark_attempt(step, rank)

    def merge_failure(self, step: Step, payload: FailurePayload, path_prefix: str) -> Failure | None:
        """Return the one failure of a step for which a failure was sent; None if it stays as it is."""
        failure = self.convert_failure(payload, step.type, step.name, path_prefix, step.arguments)
        if step.failure is not None and step.failure.message and not payload.code:
            return None  # classified from its own message
        return failure if step.failure is None else step.failure.with_recorded(failure)

    def check_failure_type(self, payload: FailurePayload, path_prefix: str) -> None:
        """Raise `ApiError` unless there are kinds of the failure's type."""
        try:
            if payload.type:
                check_type(payload.type.lower(), self.kinds)
        except SettingsError as error:
            raise invalid(str(error), f"{path_prefix}type") from None

    def convert_failure(
        self, payload: FailurePayload, source: StepType, tool: str, path_prefix: str = "", arguments: Any = None
    ) -> Failure:
        """Return the failure with its given kind, or classify its message."""
        self.check_failure_type(payload, path_prefix)
        classified = self.classify(
            text=payload.message,
            tool=tool,
            source=payload.type or (source if source != "run" else "orchestration"),
            is_error=True,
            arguments=arguments if isinstance(arguments, dict) else None,
            exception=payload.exception or None,
            status=payload.status,
        )
        if not payload.code:
            return msgspec.structs.replace(
                classified,
                detail=payload.detail or classified.detail,
                exception=payload.exception,
                trace=payload.trace,
            )
        kind, warning = name_kind(payload.type, payload.code, self.kinds, source=source)
        if warning and kind not in self._logged_kinds and len(self._logged_kinds) < 1000:
            self._logged_kinds.add(kind)
            log.warning("%s", warning)
        return Failure.of(
            kind,
            payload.message,
            detail=payload.detail,
            status=payload.status,
            retry_after=payload.retry_after if payload.retry_after is not None else classified.retry_after,
            fingerprint=find_fingerprint(
                kind, msgspec.structs.replace(classified, message=payload.message), tool, arguments
            ),
            exception=payload.exception,
            trace=payload.trace,
        )

    def build_failure_step(
        self,
        payload: FailurePayload,
        run: str,
        failed_step: tuple[StepType, str],
        default_start: int,
        path_prefix: str = "",
    ) -> Step:
        """Build a step that carries only a failure.

        Its number is a hash of the failure, so a repeat maps to the same step.
        """
        type, name = failed_step
        name = payload.name if payload.name is not None else name
        identity = encode(payload) if payload.id is None else payload.id.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(run.encode("utf-8", "surrogatepass") + b"\n" + identity, digest_size=4).digest()
        seq = FIRST_FAILURE_SEQ + int.from_bytes(digest, "big") % FIRST_FAILURE_SEQ
        failure = self.convert_failure(payload, type, name, path_prefix)
        return Step(
            run=run, seq=seq, call=seq, parent=payload.step, type=type, name=name, outcome=outcome_of(failure),
            started_at=payload.started_at if payload.started_at is not None else default_start, failure=failure,
        )  # fmt: skip


def weigh_events(events: Sequence[AnyEvent]) -> int:
    """Return what it costs to redact and store these events, as a number of successes."""
    return sum(map(_weigh_event, events))


def _weigh_event(event: AnyEvent) -> int:
    has_failure = isinstance(event, FailureRecorded) or (isinstance(event, StepEnded) and event.step.has_failed)
    return FAILURE_WEIGHT if has_failure else 1


def split_events(events: Sequence[AnyEvent], max_weight: int) -> Iterator[list[AnyEvent]]:
    """Yield the events in parts, each of which ends where it has reached this weight."""
    part: list[AnyEvent] = []
    weight = 0
    for event in events:
        part.append(event)
        weight += _weigh_event(event)
        if weight >= max_weight:
            yield part
            part, weight = [], 0
    if part:
        yield part


def end_runs_last(events: Sequence[AnyEvent]) -> tuple[list[AnyEvent], list[str]]:
    """Let each run end after its steps, so that a run that is stored in parts is complete when it ends.

    Return the events and the ids of the runs that got a start of their own for this.
    """
    last_steps = {event.step.run: number for number, event in enumerate(events) if isinstance(event, StepEnded)}
    ordered_events: list[AnyEvent] = []
    ends: dict[str, list[AnyEvent]] = {}
    started_runs: list[str] = []
    for number, event in enumerate(events):
        if isinstance(event, RunEnded) and last_steps.get(event.run.id, -1) > number:
            started_run = msgspec.structs.replace(event.run, ended_at=None, end_reason=None)
            sent_fields = event.sent_fields
            if sent_fields is not None:
                sent_fields = tuple(name for name in sent_fields if name not in ("ended_at", "end_reason"))
            ordered_events.append(RunStarted(started_run, sent_fields))
            ends.setdefault(event.run.id, []).append(event)
            started_runs.append(event.run.id)
            continue
        ordered_events.append(event)
        if isinstance(event, StepEnded) and last_steps[event.step.run] == number:
            ordered_events += ends.pop(event.step.run, ())
    return ordered_events, started_runs


def link_complete_runs(events: Sequence[AnyEvent]) -> SlicedWork[list[AnyEvent]]:
    """Link the recoveries of runs that arrived completely, before redaction hides their values.

    The store links the calls of runs that arrive in pieces. It sees only redacted values and therefore matches equal
    arguments only.
    """
    if not any(isinstance(event, StepEnded) and event.step.has_failed for event in events):
        return list(events)
    ended = {event.run.id: event.run for event in events if isinstance(event, RunEnded)}
    steps: dict[str, list[Step]] = {}
    for event in events:
        if isinstance(event, StepEnded) and event.step.run in ended and event.step.seq < FIRST_FAILURE_SEQ:
            steps.setdefault(event.step.run, []).append(event.step)
    linked_steps: dict[tuple[str, int], Step] = {}
    for id, run_steps in steps.items():
        is_complete = sorted(step.seq for step in run_steps) == list(range(1, len(run_steps) + 1))
        if is_complete and any(step.has_failed for step in run_steps):
            run = ended[id]
            links: list[Link] = []
            for _, call, call_links in judge_calls(run_steps, run, is_final=True):
                links += call_links if call.has_succeeded else ()
                yield
            links.sort(key=lambda link: link.failed_call)
            history = History(run=run, steps=tuple(run_steps), links=tuple(links))
            linked_steps.update(((id, step.seq), step) for step in attach_links(history).steps)
    return [
        StepEnded(linked_steps.get((event.step.run, event.step.seq), event.step), event.messages)
        if isinstance(event, StepEnded)
        else event
        for event in events
    ]


def start_missing_runs(steps: Iterable[Step]) -> list[AnyEvent]:
    """Return a start for each run of these steps. It creates the run if it is not stored, and else changes nothing."""
    starts: dict[str, int] = {}
    for step in steps:
        starts[step.run] = min(step.started_at, starts.get(step.run, step.started_at))
    return [RunStarted(Run(id=run, started_at=started_at), ()) for run, started_at in starts.items()]


def check_times(payload: RunPayload | StepPayload | FailurePayload, now: int, path_prefix: str) -> None:
    """Raise `ApiError` if a time of the payload is not in milliseconds or in the future."""
    for name in ("started_at", "ended_at"):
        timestamp = getattr(payload, name, None)
        if timestamp is not None and (reason := find_time_error(timestamp, now)):
            raise invalid(f"Invalid {name} {timestamp}: {reason}", f"{path_prefix}{name}")


def find_time_error(timestamp: int, now: int) -> str:
    """Return why a time that was sent cannot be right, or nothing. `now` is the time of the server."""
    if MIN_UNIX_SECONDS <= timestamp < MAX_UNIX_SECONDS:
        return f"it is in seconds ({format_timestamp(timestamp * 1000)}). Use UTC milliseconds: {timestamp * 1000}."
    if timestamp > YEAR_9999:
        return "it is in microseconds or nanoseconds. Use UTC milliseconds."
    if timestamp > now + DAY:  # how far the sender's clock may be ahead of the server's
        times = f"{format_timestamp(timestamp)} is after {format_timestamp(now)}, the time of the server"
        return f"{times}. Check the sender's clock, and use UTC milliseconds."
    return ""


def _check_run(run: str | None, expected: str, path_prefix: str) -> None:
    if run not in (None, expected):
        raise invalid(f"Invalid run: this item belongs to run {expected!r}. Omit run.", f"{path_prefix}run")


def _journal_name(payload: BatchPayload) -> str:
    return f"remote:{payload.client}:{payload.journal}"


def check_events(events: Sequence[AnyEvent]) -> SlicedWork[None]:
    """Reject implausible timestamps, numbers and ids, because one of them would distort all counters."""
    for index, event in enumerate(events):
        yield
        if (fault := _find_fault(event)) is not None:
            message, field = fault
            raise invalid(message, f"events[{index}].{field}")


INVALID_TIME = "Invalid time. Use UTC milliseconds, and seconds for durations."
INVALID_TOKENS = f"Invalid token count. Use 0 to {MAX_TOKEN_COUNT:,}."
INVALID_COST = f"Invalid cost. Use 0 to {MAX_COST_NANOS:,} billionths of a dollar."
INVALID_ID = "Invalid id. Use 1 to 200 characters."


def _find_fault(event: AnyEvent) -> tuple[str, str] | None:
    """Return the message and the field of the first implausible value of an event."""
    if isinstance(event, StepEnded):
        return _find_step_fault(event.step) or _find_message_fault(event)
    if isinstance(event, (RunStarted, RunEnded)):
        run = event.run
        if not (0 <= run.started_at <= YEAR_9999 and 0 <= (run.ended_at or 0) <= YEAR_9999):
            return INVALID_TIME, "run.started_at"
        if not 0 < len(run.id) <= 200:
            return INVALID_ID, "run.id"
    elif isinstance(event, FailureRecorded):
        if not 0 < len(event.run) <= 200:
            return INVALID_ID, "run"
        if not 0 < event.seq < STEP_NUMBER_LIMIT:
            return "Invalid seq. Use numbers from 1.", "seq"
    elif isinstance(event, ContextCompacted) and not 0 <= event.compaction.at <= YEAR_9999:
        return INVALID_TIME, "compaction.at"
    return None


def _find_step_fault(step: Step) -> tuple[str, str] | None:
    if not (min(step.seq, step.call, step.attempt) > 0 and max(step.seq, step.call, step.attempt) < STEP_NUMBER_LIMIT):
        return "Invalid seq, call or attempt. Use numbers from 1.", "step.seq"
    if not (0 <= step.started_at <= YEAR_9999 and 0 <= step.duration_seconds <= 1e9):
        return INVALID_TIME, "step.started_at"
    if step.tokens and not all(0 <= count <= MAX_TOKEN_COUNT for count in step.tokens.values()):
        return INVALID_TOKENS, "step.tokens"
    costs = (step.cost_nanos or 0, (step.avoided.cost_nanos or 0) if step.avoided is not None else 0)
    if not (min(costs) >= 0 and max(costs) <= MAX_COST_NANOS):
        return INVALID_COST, "step.cost_nanos"
    if step.recovery is not None and not 0 <= step.recovery.backoff_seconds <= 1e9:
        return INVALID_TIME, "step.recovery.backoff_seconds"
    if not 0 < len(step.run) <= 200:
        return INVALID_ID, "step.run"
    if not 0 < step.sample_rate <= 1:
        return "Invalid sample rate. Use a number above 0 and at most 1.", "step.sample_rate"
    return None


def _find_message_fault(event: StepEnded) -> tuple[str, str] | None:
    step = event.step
    if not (step.messages or event.messages or step.answer is not None):
        return None
    message_numbers = (number for message_range in step.messages for number in message_range)
    numbers = chain(message_numbers, (message.number for message in event.messages), [step.answer or 1])
    if all(0 < number < STEP_NUMBER_LIMIT for number in numbers):
        return None
    return "Invalid number of a message. Use numbers from 1.", "messages"
