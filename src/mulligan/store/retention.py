"""Retention rules: which runs have expired, and which steps survive sampling of successful calls.

Metrics and patterns were counted when the records arrived; retention does not change them.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from mulligan.core import calls
from mulligan.core.links import derive_status
from mulligan.core.records import History, Status, Step
from mulligan.store.base import Retention


def is_expired(status: Status, stored_at: int, policy: Retention, now: int) -> bool:
    """Return whether a run stored at `stored_at` exceeds the maximum age for its status."""
    age = policy.keep_successes if status == "success" else policy.keep_failures
    return age is not None and stored_at < now - age


def sample_run(history: History, rate: float) -> History | None:
    """Return what remains of a run at this sample rate for simple successes; None if nothing does.

    A run without failures is retained or removed as a whole. In other runs these steps remain: failures, all attempts
    of a retried call, recovering calls, the calls in between, and the parents of all these. The choice is a hash of the
    record's id, so sampling again gives the same result.
    """
    if rate >= 1 or history.run.end_reason is None:
        return history
    status = derive_status(history.run, history.steps, history.links)
    if status == "success":
        if _hash_fraction(history.run.id) >= rate:
            return None
        return _with_steps(history, [_with_sample_rate(step, rate) for step in history.steps])
    required_seqs = _steps_to_keep(history)
    steps = [
        step if step.seq in required_seqs else _with_sample_rate(step, rate)
        for step in history.steps
        if step.seq in required_seqs or _hash_fraction(f"{step.run}:{step.seq}") < rate
    ]
    return _with_steps(history, steps)


def _with_steps(history: History, steps: list[Step]) -> History:
    return msgspec.structs.replace(history, steps=tuple(steps))


def _with_sample_rate(step: Step, rate: float) -> Step:
    return step if step.sample_rate <= rate else msgspec.structs.replace(step, sample_rate=rate)


def _hash_fraction(name: str) -> float:
    return crc32(name.encode("utf-8", "surrogatepass")) / 2**32


def _steps_to_keep(history: History) -> set[int]:
    """Return the seq numbers of the steps that sampling must not remove."""
    grouped_calls = calls.group_attempts(history.steps)
    required_seqs = {
        step.seq
        for call in grouped_calls
        if len(call.steps) > 1 or not _is_simple_success(call.first)
        for step in call.steps
    }
    recovering_calls = {link.recovering_call for link in history.links}
    required_seqs |= {step.seq for call in grouped_calls if call.id in recovering_calls for step in call.steps}
    for link in history.links:
        names = set(link.intermediate_tools)
        for call in grouped_calls:
            if link.failed_call < call.id and call.name in names and call.has_succeeded:
                names.discard(call.name)
                required_seqs |= {step.seq for step in call.steps}
    parents = {step.seq: step.parent for step in history.steps}
    for seq in tuple(required_seqs):
        parent = parents.get(seq)
        while parent is not None and parent not in required_seqs:
            required_seqs.add(parent)
            parent = parents.get(parent)
    return required_seqs


def _is_simple_success(step: Step) -> bool:
    return step.outcome == "success" and step.failure is None and step.type != "run"
