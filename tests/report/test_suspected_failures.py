"""Suspected failures are visible wherever runs and calls are, and counted apart."""

from __future__ import annotations

import mulligan
from mulligan.contract.counters import Cell, StatsQuery
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.report import run_text, stats
from mulligan.testing import Sandbox

SENTENCE = "bash: kubectl: command not found"


def run_commands(count: int = 1) -> None:
    @mulligan.tool
    def shell(command: str) -> str:
        return SENTENCE if "kubectl" in command else "fine"

    with mulligan.run("operator"):
        for _ in range(count):
            shell("kubectl get pods")
        shell("ls")


def test_run_shows_the_suspected_failure_of_a_call_with_its_kind_and_sentence(played: Sandbox) -> None:
    run_commands()
    (history,) = played.runs
    text = "\n".join(run_text.render_run(history, now=0))
    assert "success: 2 calls in 2 attempts, 1 suspected failure." in text
    assert f"suspected  tool/command_not_found, confidence 0.70: {SENTENCE}" in text
    first, second = run_text.to_summary(history)["calls"]
    assert first["suspected"] == "tool/command_not_found"
    assert "suspected" not in second


def test_list_of_runs_names_a_suspected_failure_if_nothing_failed(played: Sandbox) -> None:
    run_commands()
    facts = run_text.to_facts(played.runs[0])
    assert (facts["status"], facts["suspected"]) == ("success", 1)
    assert facts["worst"] == "suspected tool/command_not_found in shell"


def test_stats_count_suspected_failures_as_successes_and_apart(played: Sandbox) -> None:
    run_commands(6)
    assert len(played.runs) == 1  # stored
    total = played.store.stats(DEFAULT_TENANT, StatsQuery(now=2**41)).total
    assert (total.calls, total.first_try, total.suspected) == (7, 7, 6)
    assert stats.to_facts(total)["suspected"] == 6
    assert not total.kinds


def test_advice_proposes_to_declare_a_tool_whose_results_often_look_like_a_failure() -> None:
    often, seldom = Cell(calls=10, first_try=10, suspected=5), Cell(calls=100, first_try=100, suspected=5)
    advice = stats.build_advice(Cell(), {"lookup": often, "search": seldom}, {})
    assert len(advice) == 1
    assert advice[0].startswith("lookup: 5 of 10 results look like an unstated failure.")


def test_shape_records_the_kind_of_a_suspected_failure_without_its_sentence(played: Sandbox) -> None:
    @mulligan.tool(record="shape")
    def shell(command: str) -> str:
        return SENTENCE

    shell("kubectl get pods")
    (step,) = played.steps
    assert step.suspected is not None
    assert (step.suspected.kind, step.suspected.sentence) == ("tool/command_not_found", "")


def test_secret_in_a_suspected_failure_is_redacted(played: Sandbox) -> None:
    secret = "ghp_" + "x7Kq2LmZ9RtB4VwC8NpD3HsFj6YgUe1aQo5i"

    @mulligan.tool
    def shell(command: str) -> str:
        return f"fatal: unable to access 'https://{secret}@shop.example/': not found"

    shell("git fetch")
    assert played.steps[0].suspected is not None
    assert secret not in str(played.runs[0])
