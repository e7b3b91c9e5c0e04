"""Occurrences of failure patterns, counted one by one: what the counters of a database must equal."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mulligan.core import calls
from mulligan.core.records import Example, History, Pattern, Step, pattern_id
from mulligan.learn.patterns import extract_message_and_template, order_of, start_of_day


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


class PatternCounter:
    """Counters of one pattern. All are sums, except the first and last time and the message of the first failure."""

    def __init__(self, occurrence: Occurrence) -> None:
        step, failure = occurrence.step, occurrence.step.failure
        assert failure is not None
        self.tool, self.fingerprint = step.name, failure.fingerprint
        self.runs: set[str] = set()
        self.agents: dict[str, int] = {}
        self.days: dict[int, list[int]] = {}
        self.first = step
        self.last = step.started_at
        self.examples: list[Example] = []

    def add(self, occurrence: Occurrence, is_step_removed: bool = False) -> None:
        step = occurrence.step
        self.runs.add(step.run)
        self.agents[occurrence.agent] = self.agents.get(occurrence.agent, 0) + 1
        day = self.days.setdefault(start_of_day(step.started_at), [0, 0])
        day[0] += 1
        day[1] += occurrence.is_recovered
        if order_of(step) < order_of(self.first):
            self.first = step
        self.last = max(self.last, step.started_at)
        if not is_step_removed:  # only a stored step can serve as an example
            self.examples.append(Example(run=step.run, seq=step.seq, started_at=step.started_at))

    def to_pattern(self, since: int | None = None) -> Pattern:
        days = {day: sums for day, sums in sorted(self.days.items()) if since is None or day >= start_of_day(since)}
        count = sum(count for count, _ in days.values())
        recovered = sum(recovered_on_day for _, recovered_on_day in days.values())
        message, masked = extract_message_and_template(self.first)
        return Pattern(
            id=pattern_id(self.tool, self.fingerprint),
            tool=self.tool,
            server=self.first.server,
            fingerprint=self.fingerprint,
            kind=str(self.first.failure.kind) if self.first.failure else "",
            message=message,
            template=masked,
            occurrences=count,
            recovered=recovered,
            unrecovered=count - recovered,
            runs=len(self.runs),
            first_seen_at=self.first.started_at,
            last_seen_at=self.last,
            agents=self.agents,
            examples=tuple(self.examples),
            days={day: count for day, (count, _) in days.items()},
        )
