"""Conversion of payloads into records: classify failures without a kind, then redact."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from mulligan.capture.tracer import outcome_of
from mulligan.classify.taxonomy import KINDS
from mulligan.events import AnyEvent, ContextCompacted, Gate, RunEnded, RunStarted, StepEnded, all_redacted
from mulligan.failure import Failure, Kind
from mulligan.links import attach_links, link_recoveries
from mulligan.records import History, Run, Step, StepType, encode, new_id
from mulligan.redaction import Redactor
from mulligan.remember.store import Batch, Shelf
from mulligan.serve.api.errors import invalid
from mulligan.serve.api.sent import YEAR_9999, SentBatch, SentFailure, SentRun, SentStep
from mulligan.serve.api.tenants import Tenant, Tenants

ASIDE = 2**30
"""First step number for failures sent without a step, above all regular step numbers."""
NUMBER = 2**31
COUNTED = 2**40


class Intake:
    """Converter from payloads to records, with the tenants' redaction rules."""

    def __init__(
        self, classify: Callable[..., Failure], redactor: Callable[[bytes, Tenant], Redactor], shelf: Shelf
    ) -> None:
        self.classify = classify
        self.tenants = Tenants(shelf)
        self._make = redactor
        self._shelf = shelf
        self._gates: dict[str, tuple[Tenant, Gate]] = {}
        self._journal = new_id("journal")
        self._offset = 0
        self._lock = threading.Lock()

    def gate(self, tenant: str) -> Gate:
        """Return the redactor of a tenant, with its own unredacted arguments and its own key.

        The key makes equal values comparable within one tenant, but not across tenants.
        """
        settings = self.tenants.of(tenant)
        made_for, gate = self._gates.get(tenant, (None, None))
        if gate is None or made_for != settings:
            key = self._shelf.get(tenant, "key", "export")
            if key is None:
                drawn = os.urandom(32)
                is_first = self._shelf.swap(tenant, "key", "export", None, drawn)
                key = drawn if is_first else self._shelf.get(tenant, "key", "export") or drawn
            gate = Gate(self._make(key, settings))
            self._gates[tenant] = (settings, gate)
        return gate

    def batch(self, tenant: str, principal: str, sent: SentBatch) -> Batch:
        """Build the redacted batch for a journal chunk from a client."""
        journal = f"remote:{sent.client}:{sent.journal}"
        return Batch(tenant, self._redacted(tenant, sent.events), journal, sent.offset, principal)

    def kept(self, tenant: str, principal: str, events: Sequence[AnyEvent]) -> Batch:
        """Build the redacted batch for events without a journal.

        Run id and step number identify each event, so sending it again has no further effect.
        """
        judged = judge_whole_runs(events)
        with self._lock:
            self._offset += 1
            return Batch(tenant, self._redacted(tenant, judged), self._journal, self._offset, principal)

    def _redacted(self, tenant: str, events: Sequence[AnyEvent]) -> list[AnyEvent]:
        return all_redacted(events, self.gate(tenant))

    # Payloads of other programs

    def run(self, sent: SentRun, now: int, place: str = "") -> tuple[str, list[AnyEvent]]:
        """Convert a run with its steps and failures. Return the run's id and its events."""
        if sent.ended is not None and sent.started is not None and sent.ended < sent.started:
            raise invalid("it ends before it begins.", f"{place}ended")
        moments = [step.started for step in sent.steps if step.started is not None]
        begun = min(moments) if moments else now
        if sent.ended is not None:
            begun = min(begun, sent.ended)  # A run must not end before its first step starts.
        run = Run(
            id=sent.id or new_id(),
            agent=sent.agent,
            version=sent.version,
            environment=sent.environment,
            session=sent.session,
            parent=sent.parent,
            traceparent=sent.traceparent,
            context=sent.context,
            metadata=sent.metadata,
            started=sent.started if sent.started is not None else begun,
            ended=sent.ended if sent.ended is not None else (now if sent.end else None),
            end=sent.end or ("finished" if sent.ended is not None else None),
        )
        events: list[AnyEvent] = [RunStarted(run) if run.end is None else RunEnded(run)]
        attempts: dict[int, int] = {}
        names: dict[int, tuple[StepType, str]] = {}
        calls: dict[int, int] = {}
        for number, step in enumerate(sent.steps, start=1):
            at = f"{place}steps[{number - 1}]."
            if step.run is not None and step.run != run.id:
                raise invalid("it stands in one run and names another.", f"{at}run")
            made = self._step(step, run.id, step.seq or number, run.started, at, attempts)
            if made.seq in names:
                raise invalid(f"two steps have the number {made.seq}.", f"{at}seq")
            names[made.seq] = (made.type, made.name)
            calls[made.seq] = made.call
            events.append(StepEnded(made))
        for number, call in enumerate(calls.values()):
            if calls.get(call, call) != call:  # Otherwise attempts of different calls would be grouped into one call.
                told = f"it is the seq of a first attempt, and step {call} is a further one, of call {calls[call]}."
                raise invalid(told, f"{place}steps[{number}].call")
        for number, failure in enumerate(sent.failures):
            at = f"{place}failures[{number}]."
            if failure.run is not None and failure.run != run.id:
                raise invalid("it stands in one run and names another.", f"{at}run")
            if failure.step is not None and failure.step not in names:
                raise invalid(f"there is no step {failure.step} in this run.", f"{at}step")
            about = names.get(failure.step or 0, ("run", run.agent))
            events.append(StepEnded(self.aside(failure, run.id, about, run.started)))
        return run.id, events

    def step(self, sent: SentStep, now: int, place: str = "") -> StepEnded:
        if sent.run is None:
            raise invalid("which run it belongs to is missing.", f"{place}run")
        if sent.seq is None:
            raise invalid("its number within the run is missing.", f"{place}seq")
        return StepEnded(self._step(sent, sent.run, sent.seq, now, place, {}))

    def _step(self, sent: SentStep, run: str, seq: int, begun: int, at: str, attempts: dict[int, int]) -> Step:
        call = sent.call or seq
        if call > seq:
            raise invalid("a call is known by its first attempt, which comes before.", f"{at}call")
        attempts[call] = attempts.get(call, 0) + 1
        attempt = sent.attempt or (attempts[call] if call == seq or attempts[call] > 1 else 2)
        failure = None
        if sent.failure is not None:
            failure = self.failure(sent.failure, sent.type, sent.name, sent.arguments)
        elif sent.outcome == "failure":
            failure = self.failure(SentFailure(), sent.type, sent.name, sent.arguments)
        if failure is not None and sent.outcome not in (None, outcome_of(failure)):
            raise invalid(f"it has a failure, and its outcome is {sent.outcome}.", f"{at}outcome")
        return Step(
            run=run,
            seq=seq,
            call=call,
            attempt=attempt,
            parent=sent.parent,
            type=sent.type,
            name=sent.name,
            server=sent.server,
            arguments=sent.arguments,
            outcome=outcome_of(failure) if failure is not None else sent.outcome or "success",
            result=sent.result,
            started=sent.started if sent.started is not None else begun,
            seconds=sent.seconds,
            failure=failure,
            tokens=dict(sent.tokens) if sent.tokens else None,
            metadata=_with_model(sent),
        )

    def failure(self, sent: SentFailure, source: StepType, tool: str, arguments: Any = None) -> Failure:
        """Return the failure with its given kind, or classify its message."""
        known = self.classify(
            text=sent.message,
            tool=tool,
            source=sent.type or (source if source != "run" else "orchestration"),
            is_error=True,
            arguments=arguments if isinstance(arguments, dict) else None,
            exception=sent.exception or None,
            status=sent.status,
        )
        if not sent.code:
            return known
        type = sent.type or known.kind.type
        kind = KINDS.get(f"{type}/{sent.code}") or Kind(type, sent.code)
        return Failure.of(
            kind,
            sent.message,
            detail=sent.detail,
            status=sent.status,
            retry_after=sent.retry_after if sent.retry_after is not None else known.retry_after,
            fingerprint=known.fingerprint,
        )

    def aside(self, sent: SentFailure, run: str, about: tuple[StepType, str], begun: int) -> Step:
        """Build a step that carries only a failure.

        Its number is a hash of the failure, so a repeat maps to the same step.
        """
        type, name = about
        name = sent.name if sent.name is not None else name
        said = encode(sent) if sent.id is None else sent.id.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(run.encode("utf-8", "surrogatepass") + b"\n" + said, digest_size=4).digest()
        seq = ASIDE + int.from_bytes(digest, "big") % ASIDE
        failure = self.failure(sent, type, name)
        return Step(
            run=run, seq=seq, call=seq, parent=sent.step, type=type, name=name, outcome=outcome_of(failure),
            started=sent.started if sent.started is not None else begun, failure=failure,
        )  # fmt: skip


def judge_whole_runs(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """Link the recoveries of runs that arrived completely, before redaction hides their values.

    The store links the calls of runs that arrive in pieces. It sees only redacted values and therefore matches equal
    arguments only.
    """
    ended = {event.run.id: event.run for event in events if isinstance(event, RunEnded)}
    steps: dict[str, list[Step]] = {}
    for event in events:
        if isinstance(event, StepEnded) and event.step.run in ended and event.step.seq < ASIDE:
            steps.setdefault(event.step.run, []).append(event.step)
    judged: dict[tuple[str, int], Step] = {}
    for id, some in steps.items():
        is_whole = sorted(step.seq for step in some) == list(range(1, len(some) + 1))
        if is_whole and any(step.has_failed for step in some):
            run = ended[id]
            history = attach_links(History(run=run, steps=tuple(some), links=tuple(link_recoveries(some, run))))
            judged.update(((id, step.seq), step) for step in history.steps)
    return [
        StepEnded(judged.get((event.step.run, event.step.seq), event.step)) if isinstance(event, StepEnded) else event
        for event in events
    ]


def _with_model(sent: SentStep) -> dict[str, Any] | None:
    """Return the metadata with the model's name.

    A model step usually carries it as its name, and metrics filter by it.
    """
    if sent.type != "model" or not sent.name or "model" in (sent.metadata or {}):
        return sent.metadata
    return {**(sent.metadata or {}), "model": sent.name}


def check(events: Sequence[AnyEvent]) -> None:
    """Reject implausible timestamps, numbers and ids, because one of them would distort all counters."""
    for place, event in enumerate(events):
        if isinstance(event, StepEnded):
            step = event.step
            if not (0 < step.seq < NUMBER and 0 < step.call < NUMBER and 0 < step.attempt < NUMBER):
                raise invalid("seq, call and attempt count from 1.", f"events[{place}].step.seq")
            if not (0 <= step.started <= YEAR_9999 and 0 <= step.seconds <= 1e9):
                raise invalid("this is no time.", f"events[{place}].step.started")
            if step.tokens and not all(0 <= each <= COUNTED for each in step.tokens.values()):
                raise invalid("so many tokens there are not.", f"events[{place}].step.tokens")
            if step.after is not None and not 0 <= step.after.seconds <= 1e9:
                raise invalid("this is no time.", f"events[{place}].step.after.seconds")
            _check_id(step.run, f"events[{place}].step.run")
            if not math.isfinite(step.sampled) or not 0 < step.sampled <= 1:
                raise invalid("it is a share above 0, up to 1.", f"events[{place}].step.sampled")
        elif isinstance(event, RunStarted | RunEnded):
            run = event.run
            if not 0 <= run.started <= YEAR_9999 or not 0 <= (run.ended or 0) <= YEAR_9999:
                raise invalid("this is no time.", f"events[{place}].run.started")
            _check_id(run.id, f"events[{place}].run.id")
        elif isinstance(event, ContextCompacted) and not 0 <= event.compaction.at <= YEAR_9999:
            raise invalid("this is no time.", f"events[{place}].compaction.at")


def _check_id(id: str, place: str) -> None:
    if not 0 < len(id) <= 200:
        raise invalid("an id has 1 to 200 characters.", place)
