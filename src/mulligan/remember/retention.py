"""Retention rules: which runs have expired, and which steps survive sampling of successful calls.

Metrics and patterns were counted when the records arrived; retention does not change them.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from mulligan import calls
from mulligan.links import derive_status
from mulligan.records import History, Status, Step
from mulligan.remember.store import Retention


def is_expired(status: Status, kept: int, policy: Retention, now: int) -> bool:
    """Return whether a run stored at `stored_at` exceeds the maximum age for its status."""
    age = policy.successes if status == "success" else policy.failures
    return age is not None and kept < now - age


def sampled(history: History, rate: float) -> History | None:
    """Return what remains of a run at this sample rate for simple successes; None if nothing does.

    A run without failures is retained or removed as a whole. In other runs these steps remain: failures, all attempts
    of a retried call, recovering calls, the calls in between, and the parents of all these. The choice is a hash of the
    record's id, so sampling again gives the same result.
    """
    if rate >= 1 or history.run.end is None:
        return history
    status = derive_status(history.run, history.steps, history.links)
    if status == "success":
        if _share(history.run.id) >= rate:
            return None
        return _with(history, [_standing_for(step, rate) for step in history.steps])
    needed = _needed(history)
    steps = [
        step if step.seq in needed else _standing_for(step, rate)
        for step in history.steps
        if step.seq in needed or _share(f"{step.run}:{step.seq}") < rate
    ]
    return _with(history, steps)


def _with(history: History, steps: list[Step]) -> History:
    return msgspec.structs.replace(history, steps=tuple(steps))


def _standing_for(step: Step, rate: float) -> Step:
    return step if step.sampled <= rate else msgspec.structs.replace(step, sampled=rate)


def _share(name: str) -> float:
    return crc32(name.encode("utf-8", "surrogatepass")) / 2**32


def _needed(history: History) -> set[int]:
    """Return the seq numbers of the steps that sampling must not remove."""
    joined = calls.group_attempts(history.steps)
    needed = {step.seq for call in joined if len(call.steps) > 1 or not _is_plain(call.first) for step in call.steps}
    overcoming = {link.overcame for link in history.links}
    needed |= {step.seq for call in joined if call.id in overcoming for step in call.steps}
    for link in history.links:
        names = set(link.between)
        for call in joined:
            if link.failed < call.id and call.name in names and call.has_succeeded:
                names.discard(call.name)
                needed |= {step.seq for step in call.steps}
    parents = {step.seq: step.parent for step in history.steps}
    for seq in tuple(needed):
        above = parents.get(seq)
        while above is not None and above not in needed:
            needed.add(above)
            above = parents.get(above)
    return needed


def _is_plain(step: Step) -> bool:
    return step.outcome == "success" and step.failure is None and step.type != "run"
