"""Occurrences of failure patterns, counted one by one: what the counters of a database must equal."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mulligan.core import calls
from mulligan.core.records import History, Step, pattern_id


class Occurrence(msgspec.Struct, frozen=True):
    """A failed attempt, with the fields that its pattern counts."""

    step: Step
    agent: str
    is_recovered: bool

    @property
    def pattern(self) -> str:
        assert self.step.failure is not None
        return pattern_id(self.step.name, self.step.failure.fingerprint)


def is_occurrence(step: Step) -> bool:
    return step.has_failed and step.failure is not None and bool(step.failure.fingerprint)


def find_occurrences(history: History) -> Iterator[Occurrence]:
    """Yield each failed attempt of a run.

    It counts as recovered if its call recovered, by a later attempt or by a later call.
    """
    linked = {link.failed_call for link in history.links}
    for call in calls.group_attempts(history.steps):
        if call.has_failed:
            is_recovered = call.has_succeeded or call.id in linked
            for step in call.steps:
                if is_occurrence(step):
                    yield Occurrence(step, history.run.agent, is_recovered)
