"""Worlds as runs in a store: the page that is built from them has the same figures as the cases of the world."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from worlds import World, play

from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import AdvisedFix, Link, Run, Step
from mulligan.report.impact import ImpactRow, analyze, build_report
from mulligan.report.impact_cases import ImpactCase, leave_out_earlier
from mulligan.store.sqlite import MemoryStore

FAILURE = Failure(
    kind=Kind("tool", "invalid_argument"), remedy=Remedy.REPAIR, took_effect="no", message="no such value"
)
COMPARED_OUTCOMES = ("failures recovered", "fixed at the first attempt")
"""Outcomes that do not depend on the clock."""
START = 1_790_000_000_000


def list_events(case: ImpactCase, id: str) -> Iterator[AnyEvent]:
    """Yield a run with one failed call, which the model repeats until it succeeds or gives up."""
    advice = (AdvisedFix(1, case.subject, held_out=not case.has_help),)
    run = Run(id=id, agent="planner", session=case.cluster, started_at=START + case.started_at, advice=advice)
    yield RunStarted(run)
    failed_calls = case.model_attempts if case.is_recovered else case.model_attempts + 1
    for number in range(1, failed_calls + 1):
        failed: Any = {"outcome": "failure", "failure": FAILURE, "links_decided": True}
        yield StepEnded(Step(run=id, seq=number, call=number, name="search", started_at=run.started_at, **failed))
    if case.is_recovered:
        last = failed_calls + 1
        links = tuple(Link(id, number, last, "agent") for number in range(1, last))
        yield StepEnded(Step(run=id, seq=last, call=last, name="search", started_at=run.started_at, links=links))
    yield RunEnded(msgspec.structs.replace(run, ended_at=run.started_at, end_reason="finished"))


def outcomes(rows: Iterable[ImpactRow], names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Return subject, shares and numbers of cases of rows; their intervals depend on how many other rows there are."""
    fields = (
        (row.subject, row.with_help, row.without_help, row.cases, row.held_out_cases, row.estimate)
        for row in rows
        if row.name in names or row.subject in names
    )
    return sorted(fields, key=str)


def is_stored_alike(world: World, number: int) -> bool:
    """Return whether the page from a store says the same as that of the cases."""
    cases = play(world, random.Random(f"{world.name} {number}"))
    store = MemoryStore()
    for position, case in enumerate(cases):
        store.append(DEFAULT_TENANT, list(list_events(case, f"run_{position}")), "journal_a", position + 1)
    report = build_report(store, DEFAULT_TENANT, RunQuery(), START + 1_000_000)
    store.close()
    summary, contributions, _ = analyze(leave_out_earlier(cases))
    fixes = tuple(row.subject for row in contributions)
    return outcomes(report.summary, COMPARED_OUTCOMES) == outcomes(summary, COMPARED_OUTCOMES) and outcomes(
        report.contributions, fixes
    ) == outcomes(contributions, fixes)
