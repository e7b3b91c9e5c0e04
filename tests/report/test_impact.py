"""What mulligan's help is worth, by comparison with held-out cases, and what the page says of it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import mulligan
from mulligan.report.impact import ImpactCase, analyze
from mulligan.report.impact_cases import leave_out_earlier

RUNS = 60


def build_cases(chance: random.Random, effects: dict[str, float], sessions: int, share: float) -> list[ImpactCase]:
    """Cases of sessions that differ in how often failures are recovered. Each fix adds its true effect."""
    cases = []
    for number in range(sessions):
        session_rate = min(max(chance.gauss(0.55, 0.2), 0.05), 0.95)
        for _ in range(chance.randint(1, 6)):
            fix, has_help = chance.choice(list(effects)), chance.random() >= share
            is_recovered = chance.random() < session_rate + effects[fix] * has_help
            cases.append(ImpactCase("fix", fix, has_help, f"s{number}", number, is_recovered, is_recovered, 1))
    return cases


def test_pages_of_useless_fixes_are_rarely_called_helpful_or_harmful():
    called = 0
    for seed in range(100):
        summary, contributions, _ = analyze(build_cases(random.Random(seed), dict.fromkeys("abc", 0.0), 150, 0.2))
        called += any(row.verdict in ("better", "worse") for row in (*summary, *contributions))
    assert called <= 5


def test_effect_of_20_points_is_called_with_200_held_out_cases():
    called = 0
    for seed in range(20):
        cases = build_cases(random.Random(seed), {"a": 0.2}, 630, 0.09)
        summary, _, conclusion = analyze(cases)
        assert summary[0].held_out_cases == pytest.approx(200, rel=0.3)
        called += summary[0].verdict == "better"
        assert conclusion.startswith("Learned fixes help: ") or summary[0].verdict != "better"
    assert called >= 16


def test_harmful_fix_is_ranked_first():
    effects = {**dict.fromkeys("abcdefg", 0.1), "harmful": -0.3}
    first = [analyze(build_cases(random.Random(seed), effects, 800, 0.1))[1][0].subject for seed in range(20)]
    assert first.count("harmful") >= 18


def test_conclusion_names_what_harms_first():
    effects = {"start": 0.2, "lookup": 0.2, "harmful": -0.5}
    _, contributions, conclusion = analyze(build_cases(random.Random(1), effects, 500, 0.3), {"harmful": "a: b=c"})
    assert [row.verdict for row in contributions].count("worse") == 1
    assert conclusion.startswith("Harmful: a: b=c (harmful), -")
    assert "). Learned fixes " in conclusion


def test_too_few_cases_say_how_many_sessions_are_missing():
    _, _, conclusion = analyze(build_cases(random.Random(1), {"a": 0.2}, 12, 0.2))
    assert conclusion.startswith("Learned fixes: too few cases to tell, about ")
    assert conclusion.endswith(" more sessions with such failures needed.")


def test_nothing_held_out_says_what_would_be():
    summary, contributions, conclusion = analyze([])
    assert (summary, contributions) == ([], [])
    assert conclusion.startswith("Nothing can be compared yet: no help was held out.")


def play(memory: mulligan.Mulligan, count: int = RUNS) -> None:
    """Play runs in which a model says "fast" for "slow". It follows what it reads; else it first tries "medium"."""

    @memory.tool(effects="none")
    def start(job: str, queue: str) -> Any:
        if queue != "slow":
            raise ValueError(f"Invalid value for queue: {queue}")
        return queue

    @memory.model(name="small-1")
    def model(messages: list[Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": "..."}
        return {"choices": [{"message": message}], "usage": {"prompt_tokens": 900, "completion_tokens": 100}}

    for number in range(count):
        with memory.run("planner", version="1"):
            queues = ["fast"]
            for turn in memory.turns(limit=3):
                model([{"role": "user", "content": "start it"}])
                answer = turn.call([start], "start", {"job": f"job {number}", "queue": queues[-1]})
                if answer.ok:
                    break
                queues.append("slow" if answer.notes or len(queues) > 1 else "medium")
        memory.flush()


def test_command_shows_the_effect_of_a_fix_in_the_users_own_runs(types):
    play(mulligan.Mulligan(holdout=0.5))
    code, out, _ = types("impact", "--json")
    facts = json.loads(out)
    assert code == 0
    rows = {row["name"]: row for row in facts["summary"]}
    first = rows["fixed at the first attempt"]
    assert (first["with_help"], first["without_help"], first["verdict"]) == ("100 %", "0 %", "better")
    assert first["cases"] + first["held_out_cases"] <= RUNS
    assert "; however, fixed at the first attempt +100.0 points (better), " in facts["conclusion"]
    assert "cost per recovery" not in rows  # no price is known
    tokens = rows["tokens per recovery"]
    assert (tokens["with_help"], tokens["without_help"], tokens["verdict"]) == ("1,000", "2,000", "better")
    [contribution] = facts["contributions"]
    assert contribution["name"] == "start: queue=slow"
    attempts = {row["advice"]: row["by_attempt"] for row in facts["model_recovery"]["by_advice"]}
    assert attempts["fixes"]["1"] > 0 == attempts["fixes"]["2"]
    assert attempts["held out"]["2"] > 0 == attempts["held out"]["1"]
    text = types("impact")[1]
    assert "Fixed by the model, by what it had read" in text
    assert "fixed at the first attempt" in text
    markdown = types("impact", "--markdown")[1]
    assert "| learned fixes: tokens per recovery | 1,000 | 2,000 | -50 %" in markdown
    assert json.loads(types("impact", "--json", "--agent", "other")[1])["summary"] == []


def test_what_is_not_held_out_is_listed_as_incomparable(types):
    play(mulligan.Mulligan(holdout=0), count=12)
    facts = json.loads(types("impact", "--json")[1])
    assert facts["summary"] == []
    [reason] = facts["incomparable"]
    assert "start: queue=slow" in reason
    assert "not held out" in reason


def test_fix_whose_recoveries_are_not_proven_is_not_compared(types):
    """After "not found", a call with another value may be about another item: no result says what the fix is worth."""
    memory = mulligan.Mulligan(holdout=0.5)

    @memory.tool(effects="none")
    def look_up(customer: str, region: str) -> str:
        if region != "us":
            raise LookupError(f"Customer is not in region {region}")
        return "Jane Doe"

    for number in range(40):
        with memory.run("planner"):
            for turn, region in zip(memory.turns(limit=2), ("eu", "us"), strict=True):
                turn.call([look_up], "look_up", {"customer": f"customer {number}", "region": region})
        memory.flush()
    facts = json.loads(types("impact", "--json")[1])
    assert facts["summary"] == facts["contributions"] == []
    assert facts["conclusion"].startswith("Nothing can be compared yet")
    [reason] = facts["incomparable"]
    assert "look_up: region=us" in reason
    assert "not proven" in reason


def test_cases_count_from_when_help_was_first_held_out():
    cases = [ImpactCase("fix", "a", has_help, "s", day, True) for day, has_help in ((1, True), (2, False), (3, True))]
    assert leave_out_earlier(cases) == cases[1:]


def test_heading_says_failed_runs_unless_all_runs_were_read(types):
    play(mulligan.Mulligan(holdout=0), count=6)
    with mulligan.Mulligan().run("planner"):
        pass
    mulligan.Mulligan().flush()
    assert "6 runs with failures." in types("impact")[1]
