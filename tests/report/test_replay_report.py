"""Whether mode=repair is worth it, and for which tools."""

from __future__ import annotations

from typing import Any

from mulligan.core.records import ReplayResult
from mulligan.report.replay_report import ReplaySummary, describe_verdict, render_summary


def summary(*cases: tuple[str, str, bool | None], **about: Any) -> ReplaySummary:
    made = ReplaySummary()
    made.add(
        ReplayResult(
            run="run_a", call=number, tool=tool, kind="tool/invalid_arguments", move=move, agrees=agrees, **about
        )
        for number, (tool, move, agrees) in enumerate(cases)
    )
    return made


def test_tools_whose_repairs_are_what_then_worked_are_named():
    found = describe_verdict(summary(("search", "repair", True), ("search", "nothing", None), ("pay", "repair", False)))
    assert (
        "Use mode=repair for search: 1 of 2 failures would be repaired like the recorded recovery, none differently."
        in found
    )
    assert "Keep mode=suggest for pay: 1 of 1 repair differs from the recorded recovery." in found


def test_what_was_never_overcome_proves_nothing():
    found = describe_verdict(summary(("search", "repair", None)))
    assert found.startswith("The recording shows no benefit of mode=repair.")
    assert "No verdict for search" in found


def test_one_wrong_of_twenty_is_still_worth_it_and_one_of_ten_is_not():
    def worth(right: int) -> str:
        return summary(*[("a", "repair", True)] * right, ("a", "repair", False)).groups["tool"]["a"].worth

    assert (worth(19), worth(9)) == ("yes", "no")


def test_the_sums_are_told_with_their_costs():
    made = summary(
        ("search", "repair", True), ("search", "suggest", True), seconds=1.0, saved_seconds=60.0, calls=4, tokens=9
    )
    text = "\n".join(render_summary(made, None))
    assert text.startswith("1 of 2 recorded failures (50.0 %) would recover automatically today")
    assert "Cost: 1 call, 1.0 s. Saved until the recorded recovery: 4 calls, 9 tokens, 60.0 s." in text
    assert "recorded recovery among the first 3 for 1 of 1" in text


def test_nothing_to_replay_is_said():
    assert list(render_summary(summary(), None)) == ["No failed tool calls in 1 run: nothing to replay."]


def test_foreign_names_are_fit_for_a_terminal():
    assert "\x1b" not in "".join(render_summary(summary(("a\x1b[2J", "repair", True)), None))
