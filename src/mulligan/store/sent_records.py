"""Records that other programs send piece by piece: which fields of a run change, which number a step gets, and which
steps contradict stored ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from mulligan.core.events import AnyEvent, StepEnded
from mulligan.core.failure import RecordConflictError
from mulligan.core.records import FIRST_FAILURE_SEQ, Run, Step, encode
from mulligan.store.connection import Connection

COMPARED_STEP_FIELDS = (
    "call", "parent", "type", "name", "server", "arguments", "outcome", "result", "duration_seconds", "tokens",
    "metadata",
)  # fmt: skip
"""Fields in which a step that is sent again must equal the stored one. Others have defaults that depend on the time or
on other records."""
MAX_NAMED_CONFLICTS = 5


def needs_numbers(events: Sequence[AnyEvent]) -> bool:
    """Return whether one of the steps has no number."""
    return any(isinstance(event, StepEnded) and not event.step.seq for event in events)


def number_steps(writer: Connection, tenant: str, events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """Return the events with numbers for steps that have none (`seq` 0): the next ones of their run.

    A step without a call becomes a call of its own. The transaction must be exclusive: another process could use the
    same numbers.
    """
    steps = [event.step for event in events if isinstance(event, StepEnded)]
    last_seqs = {step.run: 0 for step in steps if not step.seq}
    for run in last_seqs:
        sql = "SELECT max(seq) FROM steps WHERE tenant = ? AND run = ? AND seq < ?"
        (last_stored_seq,) = writer.execute(sql, (tenant, run, FIRST_FAILURE_SEQ)).fetchone()
        sent_seqs = (step.seq for step in steps if step.run == run and step.seq < FIRST_FAILURE_SEQ)
        last_seqs[run] = max(last_stored_seq or 0, *sent_seqs)
    numbered_events: list[AnyEvent] = []
    for event in events:
        if isinstance(event, StepEnded) and not event.step.seq:
            step = event.step
            last_seqs[step.run] = seq = last_seqs[step.run] + 1
            if step.call > seq:
                message = f"Run {step.run!r} has no step {step.call} yet, which the new step {seq} names as its call."
                raise RecordConflictError(message)
            event = StepEnded(replace(step, seq=seq, call=step.call or seq), event.messages)
        numbered_events.append(event)
    return numbered_events


def merge_sent_fields(stored_run: Run, run: Run, sent_fields: Collection[str]) -> Run:
    """Return the stored run with the fields that were sent. Others are only set where the stored run has none."""
    fields = {
        name: getattr(run, name)
        for name in Run.__struct_fields__
        if name in sent_fields or getattr(stored_run, name) in (None, "")
    }
    if stored_run.metadata and run.metadata:
        fields["metadata"] = stored_run.metadata | run.metadata
    merged_run = replace(stored_run, **fields)
    if merged_run.ended_at is not None and merged_run.ended_at < merged_run.started_at:
        raise RecordConflictError(
            f"Run {run.id!r} started at {merged_run.started_at}, after the ended_at {merged_run.ended_at} that was "
            "sent. Send the right started_at too."
        )
    return merged_run


def is_placeholder(run: Run) -> bool:
    """Return whether a run was only created because records of it arrived before its start."""
    return run == Run(id=run.id, started_at=run.started_at)


def check_conflicts(stored_steps: Mapping[tuple[str, int], Step], steps: Sequence[Step]) -> None:
    """Raise `RecordConflictError` if one of the steps differs from the stored one or from an earlier one."""
    earlier_steps = dict(stored_steps)
    conflicts: list[str] = []
    for step in steps:
        earlier_step = earlier_steps.setdefault((step.run, step.seq), step)
        different_fields = _find_differences(earlier_step, step) if earlier_step is not step else []
        if different_fields:
            noun = f"Step {step.seq}" if step.seq < FIRST_FAILURE_SEQ else "A failure with the same id"
            conflicts.append(f"{noun} of run {step.run!r} is stored with another {', '.join(different_fields)}.")
    if conflicts:
        more = f" {len(conflicts) - MAX_NAMED_CONFLICTS} more." if len(conflicts) > MAX_NAMED_CONFLICTS else ""
        raise RecordConflictError(
            f"{' '.join(conflicts[:MAX_NAMED_CONFLICTS])}{more} Stored steps do not change. "
            "Send new ones with new numbers, or to /v1/steps without seq."
        )


def _find_differences(stored_step: Step, step: Step) -> list[str]:
    if step.seq >= FIRST_FAILURE_SEQ:  # a failure without a step of its own
        messages = {failure.message for failure in (stored_step.failure, step.failure) if failure is not None}
        return ["message"] if len(messages) > 1 else []

    def read(step: Step) -> dict[str, Any]:
        fields = {name: getattr(step, name) for name in COMPARED_STEP_FIELDS}
        return dict(msgspec.json.decode(encode(fields)))  # as JSON: a stored list may have been sent as a tuple

    if stored_step.failure is not None and step.failure is None and step.outcome == "success":
        step = replace(step, outcome=stored_step.outcome)  # its failure was sent apart
    stored_fields, fields = read(stored_step), read(step)
    return [name for name in COMPARED_STEP_FIELDS if stored_fields[name] != fields[name]]
