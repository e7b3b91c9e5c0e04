"""Conversion of payloads into records: classify failures without a kind, then redact."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from mulligan.capture.run import outcome_of
from mulligan.classify.kinds import KINDS
from mulligan.core.events import (
    AnyEvent,
    ContextCompacted,
    RecordRedactor,
    RunEnded,
    RunStarted,
    StepEnded,
    redact_all,
)
from mulligan.core.failure import Failure, Kind
from mulligan.core.links import attach_links, link_recoveries
from mulligan.core.records import History, Run, Step, StepType, encode, new_id
from mulligan.redaction import Redactor
from mulligan.server.errors import invalid
from mulligan.server.payloads import YEAR_9999, BatchPayload, FailurePayload, RunPayload, StepPayload
from mulligan.server.tenants import Tenant, Tenants
from mulligan.store.base import Batch, KeyValueStore

FIRST_FAILURE_SEQ = 2**30
"""First step number for failures sent without a step, above all regular step numbers."""
STEP_NUMBER_LIMIT = 2**31
MAX_TOKEN_COUNT = 2**40


class PayloadConverter:
    """Converter from payloads to records, with the tenants' redaction rules."""

    def __init__(
        self,
        classify: Callable[..., Failure],
        build_redactor: Callable[[bytes, Tenant], Redactor],
        key_value_store: KeyValueStore,
    ) -> None:
        self.classify = classify
        self.tenants = Tenants(key_value_store)
        self._build_redactor = build_redactor
        self._key_value_store = key_value_store
        self._redactors: dict[str, tuple[Tenant, RecordRedactor]] = {}
        self._journal = new_id("journal")
        self._offset = 0
        self._lock = threading.Lock()

    def record_redactor(self, tenant: str) -> RecordRedactor:
        """Return the redactor of a tenant, with its own unredacted arguments and its own key.

        The key makes equal values comparable within one tenant, but not across tenants.
        """
        settings = self.tenants.settings_for(tenant)
        redactor_settings, redactor = self._redactors.get(tenant, (None, None))
        if redactor is None or redactor_settings != settings:
            key = self._key_value_store.get(tenant, "key", "export")
            if key is None:
                new_key = os.urandom(32)
                is_first = self._key_value_store.compare_and_set(tenant, "key", "export", None, new_key)
                key = new_key if is_first else self._key_value_store.get(tenant, "key", "export") or new_key
            redactor = RecordRedactor(self._build_redactor(key, settings))
            self._redactors[tenant] = (settings, redactor)
        return redactor

    def build_journal_batch(self, tenant: str, principal: str, payload: BatchPayload) -> Batch:
        """Build the redacted batch for a journal chunk from a client."""
        journal = f"remote:{payload.client}:{payload.journal}"
        return Batch(tenant, self._redact(tenant, payload.events), journal, payload.offset, principal)

    def build_event_batch(self, tenant: str, principal: str, events: Sequence[AnyEvent]) -> Batch:
        """Build the redacted batch for events without a journal.

        Run id and step number identify each event, so sending it again has no further effect.
        """
        linked_events = link_complete_runs(events)
        with self._lock:
            self._offset += 1
            return Batch(tenant, self._redact(tenant, linked_events), self._journal, self._offset, principal)

    def _redact(self, tenant: str, events: Sequence[AnyEvent]) -> list[AnyEvent]:
        return redact_all(events, self.record_redactor(tenant))

    # Payloads of other programs

    def convert_run(self, payload: RunPayload, now: int, path_prefix: str = "") -> tuple[str, list[AnyEvent]]:
        """Convert a run with its steps and failures. Return the run's id and its events."""
        if payload.ended_at is not None and payload.started_at is not None and payload.ended_at < payload.started_at:
            raise invalid("Invalid ended_at: before started_at.", f"{path_prefix}ended_at")
        step_starts = [step.started_at for step in payload.steps if step.started_at is not None]
        earliest_start = min(step_starts) if step_starts else now
        if payload.ended_at is not None:
            earliest_start = min(earliest_start, payload.ended_at)  # A run must not end before its first step starts.
        run = Run(
            id=payload.id or new_id(),
            agent=payload.agent,
            version=payload.version,
            environment=payload.environment,
            session=payload.session,
            parent=payload.parent,
            traceparent=payload.traceparent,
            context=payload.context,
            metadata=payload.metadata,
            started_at=payload.started_at if payload.started_at is not None else earliest_start,
            ended_at=payload.ended_at if payload.ended_at is not None else (now if payload.end_reason else None),
            end_reason=payload.end_reason or ("finished" if payload.ended_at is not None else None),
        )
        events: list[AnyEvent] = [RunStarted(run) if run.end_reason is None else RunEnded(run)]
        attempts: dict[int, int] = {}
        names: dict[int, tuple[StepType, str]] = {}
        calls: dict[int, int] = {}
        for number, step in enumerate(payload.steps, start=1):
            item_path = f"{path_prefix}steps[{number - 1}]."
            if step.run is not None and step.run != run.id:
                raise invalid(f"Invalid run: this item belongs to run {run.id!r}. Omit run.", f"{item_path}run")
            converted_step = self._convert_step(step, run.id, step.seq or number, run.started_at, item_path, attempts)
            if converted_step.seq in names:
                raise invalid(f"Duplicate seq {converted_step.seq}. Each step needs its own number.", f"{item_path}seq")
            names[converted_step.seq] = (converted_step.type, converted_step.name)
            calls[converted_step.seq] = converted_step.call
            events.append(StepEnded(converted_step))
        for number, call in enumerate(calls.values()):
            if calls.get(call, call) != call:  # Otherwise attempts of different calls would be grouped into one call.
                message = f"Invalid call {call}: that step is a later attempt. Use its call, {calls[call]}."
                raise invalid(message, f"{path_prefix}steps[{number}].call")
        for number, failure in enumerate(payload.failures):
            item_path = f"{path_prefix}failures[{number}]."
            if failure.run is not None and failure.run != run.id:
                raise invalid(f"Invalid run: this item belongs to run {run.id!r}. Omit run.", f"{item_path}run")
            if failure.step is not None and failure.step not in names:
                raise invalid(f"No step {failure.step} in this run.", f"{item_path}step")
            failed_step = names.get(failure.step or 0, ("run", run.agent))
            events.append(StepEnded(self.build_failure_step(failure, run.id, failed_step, run.started_at)))
        return run.id, events

    def convert_step(self, payload: StepPayload, now: int, path_prefix: str = "") -> StepEnded:
        if payload.run is None:
            raise invalid("Missing run: the id of the run that the step belongs to.", f"{path_prefix}run")
        if payload.seq is None:
            raise invalid("Missing seq: the number of the step within its run.", f"{path_prefix}seq")
        return StepEnded(self._convert_step(payload, payload.run, payload.seq, now, path_prefix, {}))

    def _convert_step(
        self, payload: StepPayload, run: str, seq: int, default_start: int, path_prefix: str, attempts: dict[int, int]
    ) -> Step:
        call = payload.call or seq
        if call > seq:
            raise invalid(
                f"Invalid call {call}. Use the seq of the call's first attempt, at most {seq}.", f"{path_prefix}call"
            )
        attempts[call] = attempts.get(call, 0) + 1
        attempt = payload.attempt or (attempts[call] if call == seq or attempts[call] > 1 else 2)
        failure = None
        if payload.failure is not None:
            failure = self.convert_failure(payload.failure, payload.type, payload.name, payload.arguments)
        elif payload.outcome == "failure":
            failure = self.convert_failure(FailurePayload(), payload.type, payload.name, payload.arguments)
        if failure is not None and payload.outcome not in (None, outcome_of(failure)):
            raise invalid(
                f"Outcome {payload.outcome!r} contradicts the failure. Omit it, or send {outcome_of(failure)!r}.",
                f"{path_prefix}outcome",
            )
        return Step(
            run=run,
            seq=seq,
            call=call,
            attempt=attempt,
            parent=payload.parent,
            type=payload.type,
            name=payload.name,
            server=payload.server,
            arguments=payload.arguments,
            outcome=outcome_of(failure) if failure is not None else payload.outcome or "success",
            result=payload.result,
            started_at=payload.started_at if payload.started_at is not None else default_start,
            duration_seconds=payload.duration_seconds,
            failure=failure,
            tokens=dict(payload.tokens) if payload.tokens else None,
            metadata=_with_model(payload),
        )

    def convert_failure(self, payload: FailurePayload, source: StepType, tool: str, arguments: Any = None) -> Failure:
        """Return the failure with its given kind, or classify its message."""
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
            return classified
        type = payload.type or classified.kind.type
        kind = KINDS.get(f"{type}/{payload.code}") or Kind(type, payload.code)
        return Failure.of(
            kind,
            payload.message,
            detail=payload.detail,
            status=payload.status,
            retry_after=payload.retry_after if payload.retry_after is not None else classified.retry_after,
            fingerprint=classified.fingerprint,
        )

    def build_failure_step(
        self, payload: FailurePayload, run: str, failed_step: tuple[StepType, str], default_start: int
    ) -> Step:
        """Build a step that carries only a failure.

        Its number is a hash of the failure, so a repeat maps to the same step.
        """
        type, name = failed_step
        name = payload.name if payload.name is not None else name
        identity = encode(payload) if payload.id is None else payload.id.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(run.encode("utf-8", "surrogatepass") + b"\n" + identity, digest_size=4).digest()
        seq = FIRST_FAILURE_SEQ + int.from_bytes(digest, "big") % FIRST_FAILURE_SEQ
        failure = self.convert_failure(payload, type, name)
        return Step(
            run=run, seq=seq, call=seq, parent=payload.step, type=type, name=name, outcome=outcome_of(failure),
            started_at=payload.started_at if payload.started_at is not None else default_start, failure=failure,
        )  # fmt: skip


def link_complete_runs(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """Link the recoveries of runs that arrived completely, before redaction hides their values.

    The store links the calls of runs that arrive in pieces. It sees only redacted values and therefore matches equal
    arguments only.
    """
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
            history = attach_links(
                History(run=run, steps=tuple(run_steps), links=tuple(link_recoveries(run_steps, run)))
            )
            linked_steps.update(((id, step.seq), step) for step in history.steps)
    return [
        StepEnded(linked_steps.get((event.step.run, event.step.seq), event.step))
        if isinstance(event, StepEnded)
        else event
        for event in events
    ]


def _with_model(payload: StepPayload) -> dict[str, Any] | None:
    """Return the metadata with the model's name.

    A model step usually carries it as its name, and metrics filter by it.
    """
    if payload.type != "model" or not payload.name or "model" in (payload.metadata or {}):
        return payload.metadata
    return {**(payload.metadata or {}), "model": payload.name}


def check_events(events: Sequence[AnyEvent]) -> None:
    """Reject implausible timestamps, numbers and ids, because one of them would distort all counters."""
    for index, event in enumerate(events):
        if isinstance(event, StepEnded):
            step = event.step
            if not (
                0 < step.seq < STEP_NUMBER_LIMIT
                and 0 < step.call < STEP_NUMBER_LIMIT
                and 0 < step.attempt < STEP_NUMBER_LIMIT
            ):
                raise invalid("Invalid seq, call or attempt. Use numbers from 1.", f"events[{index}].step.seq")
            if not (0 <= step.started_at <= YEAR_9999 and 0 <= step.duration_seconds <= 1e9):
                raise invalid(
                    "Invalid time. Use UTC milliseconds, and seconds for durations.", f"events[{index}].step.started_at"
                )
            if step.tokens and not all(0 <= token_count <= MAX_TOKEN_COUNT for token_count in step.tokens.values()):
                raise invalid(f"Invalid token count. Use 0 to {MAX_TOKEN_COUNT:,}.", f"events[{index}].step.tokens")
            if step.recovery is not None and not 0 <= step.recovery.backoff_seconds <= 1e9:
                raise invalid(
                    "Invalid time. Use UTC milliseconds, and seconds for durations.",
                    f"events[{index}].step.recovery.backoff_seconds",
                )
            _check_id(step.run, f"events[{index}].step.run")
            if not math.isfinite(step.sample_rate) or not 0 < step.sample_rate <= 1:
                raise invalid(
                    "Invalid sample rate. Use a number above 0 and at most 1.", f"events[{index}].step.sample_rate"
                )
        elif isinstance(event, RunStarted | RunEnded):
            run = event.run
            if not 0 <= run.started_at <= YEAR_9999 or not 0 <= (run.ended_at or 0) <= YEAR_9999:
                raise invalid(
                    "Invalid time. Use UTC milliseconds, and seconds for durations.", f"events[{index}].run.started_at"
                )
            _check_id(run.id, f"events[{index}].run.id")
        elif isinstance(event, ContextCompacted) and not 0 <= event.compaction.at <= YEAR_9999:
            raise invalid(
                "Invalid time. Use UTC milliseconds, and seconds for durations.", f"events[{index}].compaction.at"
            )


def _check_id(id: str, field_path: str) -> None:
    if not 0 < len(id) <= 200:
        raise invalid("Invalid id. Use 1 to 200 characters.", field_path)
