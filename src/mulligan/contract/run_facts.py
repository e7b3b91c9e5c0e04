"""Facts of a run: the numbers by which runs are filtered and sorted.

A fact is one row here and one column of the table `run_facts`. From both follow the filter and the order of commands,
API and dashboard, the fields of JSON and CSV, and what the store writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import starmap
from typing import Literal

import msgspec

from mulligan.core.calls import Call, group_attempts
from mulligan.core.records import History, Link, Run, Step

FailedCall = tuple[Call, Link | None]
"""A call with a failed attempt, and the link to the later call that recovered it, if any."""


class RunFact(msgspec.Struct, frozen=True):
    """A number of a run. One of the three functions computes it, so that a batch can add its share to a stored sum."""

    name: str
    """Its order and, after `min_`, its filter."""
    column: str
    label: str
    """Header of its column in the dashboard."""
    description: str
    """Help of the filter."""
    order_label: str
    of_step: Callable[[Step], int] | None = None
    """What each attempt adds."""
    of_failed_call: Callable[[Call, Link | None], int] | None = None
    """What each call with a failed attempt adds."""
    of_run: Callable[[Run], int] | None = None
    """The whole number, if it needs neither."""
    unit: Literal["", "usd", "seconds"] = ""
    scale: int = 1
    """How many of the column are one unit."""

    @property
    def field(self) -> str:
        """Its name in JSON and CSV."""
        return f"{self.name}_{self.unit}" if self.unit else self.name

    def sum(self, steps: Sequence[Step], failed_calls: Collection[FailedCall]) -> int:
        """Return what these attempts, and the failed ones of their calls, add."""
        if self.of_step is not None:
            return sum(map(self.of_step, steps))
        return sum(starmap(self.of_failed_call, failed_calls)) if self.of_failed_call is not None else 0


RUN_FACTS = {
    fact.name: fact
    for fact in (
        RunFact(
            "duration",
            "duration_ms",
            "Duration",
            "Only runs that lasted at least so many seconds.",
            "longest first",
            of_run=lambda run: run.ended_at - run.started_at if run.ended_at is not None else 0,
            unit="seconds",
            scale=10**3,
        ),
        RunFact(
            "tokens",
            "tokens",
            "Tokens",
            "Only runs with at least so many tokens.",
            "most tokens first",
            of_step=lambda step: step.token_count,
        ),
        RunFact(
            "cost",
            "cost_nanos",
            "Cost",
            "Only runs that cost at least so many US dollars.",
            "most expensive first",
            of_step=lambda step: step.cost_nanos or 0,
            unit="usd",
            scale=10**9,
        ),
        RunFact(
            "attempts",
            "attempts",
            "Attempts",
            "Only runs with at least so many attempts.",
            "most attempts first",
            of_step=lambda step: step.type not in ("run", "reflection"),
        ),
        RunFact(
            "tool_failures",
            "tool_failures",
            "Tool failures",
            "Only runs with at least so many failed attempts of tools.",
            "most failed attempts of tools first",
            of_failed_call=lambda call, link: sum(step.type == "tool" and step.has_failed for step in call.steps),
        ),
    )
}
RUN_ORDERS = {"started": "newest first", **{name: fact.order_label for name, fact in RUN_FACTS.items()}}
"""The orders of runs, all descending, with their labels."""
NO_SUMS = (0,) * (1 + len(RUN_FACTS))


def sum_facts(steps: Sequence[Step], failed_calls: Collection[FailedCall]) -> list[int]:
    """Return the number of these attempts, and what they add to each fact."""
    return [len(steps), *(fact.sum(steps, failed_calls) for fact in RUN_FACTS.values())]


def complete_facts(run: Run, sums: Sequence[int]) -> tuple[int, ...]:
    """Return the number of attempts and the facts of a run with these sums."""
    facts = zip(RUN_FACTS.values(), sums[1:], strict=True)
    return (sums[0], *(fact.of_run(run) if fact.of_run is not None else added for fact, added in facts))


def compute_facts(history: History) -> dict[str, int]:
    """Return the facts of a run by name. One that has not ended has no duration."""
    links = history.links_by_call
    failed_calls = [(call, links.get(call.id)) for call in group_attempts(history.steps) if call.has_failed]
    _, *facts = complete_facts(history.run, sum_facts(history.steps, failed_calls))
    return dict(zip(RUN_FACTS, facts, strict=True))
