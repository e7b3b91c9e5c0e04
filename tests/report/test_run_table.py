"""Runs grouped, with chosen columns, and two of them side by side."""

from __future__ import annotations

import csv
import json

import msgspec
import pytest

from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import History, Run, Step
from mulligan.report import run_table
from mulligan.store.sqlite import SqliteStore

FAILURE = Failure.of(Kind("tool", "timeout"), "Read timed out")


def history(number: int, tools: str = "search pay", version: str = "1.0", user: str | None = "ada") -> History:
    """Return a run of these tools. The call of a tool that ends in ! failed."""
    id = f"run_{number}"
    run = Run(
        id, agent="shop", version=version, started_at=1000 * number, ended_at=1000 * number + 500,
        end_reason="finished", metadata={"user": user} if user else None,
    )  # fmt: skip
    steps = tuple(
        Step(
            run=id, seq=seq, call=seq, name=tool.rstrip("!"), arguments={"id": 7}, started_at=run.started_at,
            outcome="failure" if tool.endswith("!") else "success", cost_nanos=10**9 * number,
            failure=FAILURE if tool.endswith("!") else None,
        )
        for seq, tool in enumerate(tools.split(), 1)
    )  # fmt: skip
    return History(run=run, steps=steps)


@pytest.fixture
def path(tmp_path):
    store = SqliteStore(tmp_path / "runs.db")
    runs = [history(1), history(2, "search! pay", "1.1"), history(3, user="bob"), history(4, "search", user=None)]
    for each in runs:
        events = [RunStarted(each.run), *map(StepEnded, each.steps), RunEnded(each.run)]
        store.append(DEFAULT_TENANT, events, "", 0)
    store.close()
    return tmp_path / "runs.db"


def test_groups_sum_number_failures_and_cost_of_their_runs(path):
    store = SqliteStore(path)
    groups = run_table.group_runs(store, DEFAULT_TENANT, RunQuery(), "user")
    store.close()
    sums = [
        (row["user"], row["runs"], row["failed_runs"], row["cost_usd"], row["tool_failures"]) for row in groups.rows
    ]
    assert sums == [(None, 1, 0, 4.0, 0), ("bob", 1, 0, 6.0, 0), ("ada", 2, 1, 6.0, 1)]
    assert groups.note == "Groups of 4 runs."


@pytest.mark.parametrize(("limit", "value"), [("MAX_GROUPED_RUNS", 2), ("MAX_GROUPED_STEPS", 3)])
def test_groups_of_more_runs_than_are_read_say_so(limit, value, path, monkeypatch):
    monkeypatch.setattr(run_table, "READ_RUNS", 1)
    monkeypatch.setattr(run_table, limit, value)
    store = SqliteStore(path)
    groups = run_table.group_runs(store, DEFAULT_TENANT, RunQuery(order="cost"), "version")
    store.close()
    assert (groups.runs, groups.is_cut) == (2, True)
    assert groups.note == "Groups of the first 2 runs only, most expensive first; more match. Set a period for others."


def test_the_command_prints_groups_as_text_json_and_csv(path, types):
    code, out, _ = types("runs", "--by", "version", "--store", path)
    assert code == 0
    assert out.splitlines()[0] == "Groups of 4 runs."
    facts = json.loads(types("runs", "--by", "version", "--store", path, "--json")[1])
    assert {row["version"]: row["runs"] for row in facts["groups"]} == {"1.0": 3, "1.1": 1}
    rows = list(csv.DictReader(types("runs", "--by", "version", "--csv", "--store", path)[1].splitlines()))
    assert {row["version"]: row["failed_runs"] for row in rows} == {"1.0": "0", "1.1": "1"}


def test_columns_are_chosen_for_text_json_and_csv(path, types):
    words = ("runs", "--columns", "agent, cost_usd", "--order", "cost", "--store", path)
    assert types(*words, "--csv")[1].splitlines()[:2] == ["agent,cost_usd", "shop,6.0"]
    assert json.loads(types(*words, "--json")[1])[0] == {"agent": "shop", "cost_usd": 6.0}
    assert types(*words)[1].split()[:2] == ["agent", "cost_usd"]
    by_filter = types("runs", "--columns", "agent, cost", "--order", "cost", "--store", path, "--csv")[1]
    assert by_filter == types(*words, "--csv")[1], "the name of the filter and of the order"
    code, _, error = types("runs", "--columns", "colour", "--store", path)
    assert code == 2
    assert "Use some of: id, status" in error


def test_two_runs_stand_side_by_side_with_their_differences(path, types):
    comparison = run_table.compare_runs(history(1, "search ask pay"), history(2, "search! pay refund"))
    assert [(row.name, bool(row.first), bool(row.second), row.differs) for row in comparison.calls] == [
        ("search", True, True, True), ("ask", True, False, True), ("pay", True, True, False),
        ("refund", False, True, True),
    ]  # fmt: skip
    code, out, _ = types("show", "run_1", "run_2", "--store", path)
    assert code == 0
    assert [line.split() for line in out.splitlines() if "version" in line] == [["*", "version", "1.0", "1.1"]]
    facts = json.loads(types("show", "run_1", "run_2", "--store", path, "--json")[1])
    assert [row["name"] for row in facts["calls"]] == ["search", "pay"]


def test_long_runs_are_compared_up_to_a_bound():
    comparison = run_table.compare_runs(history(1, "search " * 250), history(2, "search " * 205))
    assert (len(comparison.calls), comparison.hidden_calls) == (200, 55)


def test_arguments_that_differ_are_named_with_both_values():
    first, second = history(1, "search"), history(2, "search")
    steps = [msgspec.structs.replace(second.steps[0], arguments={"id": 8, "q": "rose"})]
    comparison = run_table.compare_runs(first, msgspec.structs.replace(second, steps=tuple(steps)))
    (call,) = comparison.calls
    assert (call.first, call.second) == (
        "first attempt; id: 7; q: not sent", 'first attempt; id: 8; q: "rose"',
    )  # fmt: skip
    steps = [msgspec.structs.replace(second.steps[0], arguments=dict.fromkeys("abcdefg", 1))]
    comparison = run_table.compare_runs(first, msgspec.structs.replace(second, steps=tuple(steps)))
    assert comparison.calls[0].second.endswith("; 5 more arguments differ")


@pytest.mark.parametrize(("order", "value"), [("duration", "500 ms"), ("tokens", "0"), ("tool_failures", "1")])
def test_the_fact_by_which_runs_are_sorted_has_a_column(path, types, order, value):
    header, row = [line for line in types("runs", "--order", order, "--store", path)[1].splitlines() if line][1:3]
    label = order.replace("_", " ")
    assert label in header
    assert row[: header.index(label) + len(label)].endswith(value)


def test_a_warning_says_that_exported_groups_are_cut(path, types, monkeypatch):
    monkeypatch.setattr(run_table, "MAX_GROUPED_RUNS", 2)
    for option in ("--csv", "--json"):
        assert "the first 2 runs only" in types("runs", "--by", "version", option, "--store", path)[2]
