"""Runs as a table: grouped by agent, session, user or version, and two runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from mulligan.contract.run_facts import RUN_FACTS, RUN_ORDERS, RunFact, compute_facts
from mulligan.contract.store import RunQuery, Store
from mulligan.core.calls import Call, group_attempts
from mulligan.core.records import History, Run, encode
from mulligan.report.run_text import format_status, status_of
from mulligan.report.tables import (
    TableColumn,
    format_age,
    format_count,
    format_dollars,
    format_duration,
    format_timestamp,
    render_table,
    to_line,
)

RUN_GROUPS = ("agent", "session", "user", "version")
MAX_GROUPED_RUNS = 250
"""Runs that are read to group them: a page must stay fast in a store of any size."""
MAX_GROUPED_STEPS = 4000
"""No further runs are read when so many attempts were."""
READ_RUNS = 125
"""Runs that are read at once."""
MAX_COMPARED_ARGUMENTS = 3
"""Arguments of a call whose values are named where they differ."""
MAX_COMPARED_CALLS = 200
"""Calls of each run that are compared."""


class RunGroups(NamedTuple):
    """Sums of runs by what they have in common."""

    by: str
    rows: list[dict[str, Any]]
    runs: int
    is_cut: bool
    """Whether further runs match the query."""
    order: str

    def to_facts(self) -> dict[str, Any]:
        return {"by": self.by, "groups": self.rows, "runs": self.runs, "is_cut": self.is_cut}

    @property
    def note(self) -> str:
        """State which runs were grouped."""
        runs = format_count(self.runs, "run")
        if not self.is_cut:
            return f"Groups of {runs}."
        return f"Groups of the first {runs} only, {RUN_ORDERS[self.order]}; more match. Set a period for others."


def group_runs(store: Store, tenant: str, query: RunQuery, by: str) -> RunGroups:
    """Group the first runs of a query. A run without this field is in the group None."""
    groups: dict[str | None, list[History]] = {}
    run_count = step_count = 0
    page, has_more = query, True
    while has_more and run_count < MAX_GROUPED_RUNS and step_count < MAX_GROUPED_STEPS:
        count = min(READ_RUNS, MAX_GROUPED_RUNS - run_count)
        histories = store.runs(tenant, msgspec.structs.replace(page, limit=count + 1))
        has_more = len(histories) > count
        for history in histories[:count]:
            groups.setdefault(_find_group(history.run, by), []).append(history)
            step_count += len(history.steps)
        run_count += len(histories[:count])
        if has_more:
            page = msgspec.structs.replace(page, before=query.position_of(histories[count - 1]))
    rows = [{by: name, **_sum_up(members)} for name, members in groups.items()]
    field = RUN_FACTS[query.order].field if query.order in RUN_FACTS else "last_run_at"
    rows.sort(key=lambda row: -row[field])
    return RunGroups(by, rows, run_count, has_more, query.order)


def _find_group(run: Run, by: str) -> str | None:
    value = (run.metadata or {}).get("user") if by == "user" else getattr(run, by)
    return value if isinstance(value, str) and value else None


def _sum_up(members: Sequence[History]) -> dict[str, Any]:
    facts = [compute_facts(history) for history in members]
    return {
        "runs": len(members),
        "failed_runs": sum(status_of(history) in ("partial", "failure") for history in members),
        "last_run_at": max(history.run.started_at for history in members),
        **{fact.field: _to_unit(fact, sum(numbers[name] for numbers in facts)) for name, fact in RUN_FACTS.items()},
    }


def _to_unit(fact: RunFact, number: int) -> float:
    return number / fact.scale if fact.unit else number


def format_fact(fact: RunFact, value: float) -> str:
    if fact.unit == "usd":
        return format_dollars(round(value * fact.scale))
    return format_duration(value) if fact.unit else f"{value:,}"


def render_groups(groups: RunGroups, now: int, width: int | None) -> Iterator[str]:
    """Render the groups for a terminal."""
    by = groups.by

    def cell(fact: RunFact) -> Any:
        return lambda row: format_fact(fact, row[fact.field])

    columns = (
        TableColumn("runs", lambda row: f"{row['runs']:,}", True, 8),
        TableColumn("failed", lambda row: f"{row['failed_runs']:,}", True, 7),
        *(TableColumn(fact.label.lower(), cell(fact), True, 3) for fact in RUN_FACTS.values()),
        TableColumn("newest", lambda row: format_age(row["last_run_at"], now), True, 5),
        TableColumn(by, lambda row: to_line(row[by] or "-", 60), priority=9),
    )
    yield groups.note
    yield ""
    yield from render_table(columns, groups.rows, width)


class ComparedRow(NamedTuple):
    """A fact or a call of two runs. A run without the call has an empty text."""

    name: str
    first: str
    second: str
    differs: bool


class RunComparison(NamedTuple):
    """Two runs side by side."""

    facts: list[ComparedRow]
    calls: list[ComparedRow]
    hidden_calls: int

    def to_facts(self) -> dict[str, Any]:
        return {
            "facts": [row._asdict() for row in self.facts],
            "calls": [row._asdict() for row in self.calls],
            "hidden_calls": self.hidden_calls,
        }


def compare_runs(first: History, second: History) -> RunComparison:
    """Compare two runs: their facts, and their calls in the order in which both made them."""
    sides = [_describe_run(history) for history in (first, second)]
    rows = [ComparedRow(name, left, sides[1][name], left != sides[1][name]) for name, left in sides[0].items()]
    calls = [
        [call for call in group_attempts(history.steps) if call.first.type not in ("run", "reflection")]
        for history in (first, second)
    ]
    hidden = sum(max(0, len(side) - MAX_COMPARED_CALLS) for side in calls)
    left, right = (side[:MAX_COMPARED_CALLS] for side in calls)
    return RunComparison(rows, list(_align_calls(left, right)), hidden)


def _describe_run(history: History) -> dict[str, str]:
    run, facts = history.run, compute_facts(history)
    values = {
        "run": run.id,
        "status": format_status(status_of(history), run.end_reason),
        "agent": run.agent,
        "version": run.version or "-",
        "environment": run.environment or "-",
        "started": format_timestamp(run.started_at),
    }
    for name, fact in RUN_FACTS.items():
        is_open = name == "duration" and run.ended_at is None
        values[fact.label.lower()] = "-" if is_open else format_fact(fact, _to_unit(fact, facts[name]))
    return {name: to_line(value, 200) for name, value in values.items()}


def _align_calls(left: Sequence[Call], right: Sequence[Call]) -> Iterator[ComparedRow]:
    """Yield the calls of two runs, in rows with calls of the same name."""
    from difflib import SequenceMatcher  # lazy: rarely needed

    names, other_names = ([f"{call.first.type} {call.name}" for call in side] for side in (left, right))
    for tag, start, end, other_start, other_end in SequenceMatcher(
        None, names, other_names, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            for call, other in zip(left[start:end], right[other_start:other_end], strict=True):
                first, second = _describe_call(call), _describe_call(other)
                changes = list(_compare_arguments(call.first.arguments, other.first.arguments))
                notes = [f"; {'; '.join(side)}" if side else "" for side in zip(*changes, strict=True)] or ["", ""]
                differs = first != second or bool(changes)
                yield ComparedRow(to_line(call.name, 80), first + notes[0], second + notes[1], differs)
        else:
            for call in left[start:end]:
                yield ComparedRow(to_line(call.name, 80), _describe_call(call), "", True)
            for call in right[other_start:other_end]:
                yield ComparedRow(to_line(call.name, 80), "", _describe_call(call), True)


def _compare_arguments(left: Any, right: Any) -> Iterator[tuple[str, str]]:
    """Yield the arguments that differ, as text of each side."""
    if not (isinstance(left, dict) and isinstance(right, dict)):
        left, right = {"arguments": left}, {"arguments": right}
    all_names = {**left, **right}
    names = [name for name in all_names if (name in left, left.get(name)) != (name in right, right.get(name))]
    for name in names[:MAX_COMPARED_ARGUMENTS]:
        sides = (to_line(encode(side[name]).decode(), 60) if name in side else "not sent" for side in (left, right))
        first, second = (f"{to_line(str(name), 40)}: {text}" for text in sides)
        yield first, second
    if len(names) > MAX_COMPARED_ARGUMENTS:
        more = f"{format_count(len(names) - MAX_COMPARED_ARGUMENTS, 'more argument')} differ"
        yield more, more


def _describe_call(call: Call) -> str:
    attempts = f", {len(call.steps)} attempts" if len(call.steps) > 1 else ""
    kind = f" ({call.failure.kind})" if call.failure else ""
    return to_line(f"{call.outcome_label}{kind}{attempts}", 120)


def render_comparison(comparison: RunComparison, width: int | None) -> Iterator[str]:
    """Render two runs side by side for a terminal. An asterisk marks a difference."""
    columns = (
        TableColumn("", lambda row: "*" if row["differs"] else " ", priority=8),
        TableColumn("", lambda row: str(row["name"]), priority=9),
        TableColumn("first run", lambda row: str(row["first"] or "-"), priority=9),
        TableColumn("second run", lambda row: str(row["second"] or "-"), priority=9),
    )
    yield from render_table(columns, [row._asdict() for row in (*comparison.facts, *comparison.calls)], width)
    if comparison.hidden_calls:
        yield f"{format_count(comparison.hidden_calls, 'further call')} not compared."
