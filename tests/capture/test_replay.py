"""Recorded failures and what would be done about them today, held against what then worked."""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.capture.suggestions import replay_failures
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Change, Fix, History, Prerequisite, ReplayResult, Run, Step
from mulligan.core.run_links import link_recoveries
from mulligan.recover.policy import Policy

REJECTED = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "too many", fingerprint="f-k")
LOCKED = Failure.of(Kind("orchestration", "precondition", Remedy.REPLAN), "it is locked", fingerprint="f-locked")
SLOW = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f-slow")
PROVEN = Fix(
    id="fix_1", tool="search", fingerprint="f-k", changes=(Change(path="k", operation="substitute", after=10),),
    trials=40, successes=40, state="approved", showable=True,
)  # fmt: skip


def step(seq: int, name: str, arguments: dict[str, Any], failure: Failure | None = None, **about: Any) -> Step:
    outcome = "failure" if failure else "success"
    shared = {"run": "run_a", "call": seq, "started_at": seq * 1000, "duration_seconds": 0.5}
    return Step(seq=seq, name=name, arguments=arguments, outcome=outcome, failure=failure, **{**shared, **about})


def replay(*steps: Step, known: tuple[Fix, ...] = (), **about: Any) -> list[ReplayResult]:
    history = History(run=Run(id="run_a"), steps=steps, links=tuple(link_recoveries(steps)))
    return list(replay_failures(history, policy=Policy(), recall_fixes=lambda *_: known, **about))


def test_a_repair_that_is_what_then_worked_agrees_with_the_record_and_saves_what_came_between():
    (one,) = replay(
        step(1, "search", {"q": "a", "k": 50}, REJECTED, effects="none"),
        step(2, "think", {}, tokens={"input": 70}),
        step(3, "search", {"q": "a", "k": 10}),
        known=(PROVEN,),
    )
    assert (one.move, one.agrees, one.source, one.fix_id) == ("repair", True, "memory", "fix_1")
    assert (one.seconds, one.saved_seconds, one.calls, one.tokens) == (0.875, 2.0, 2, 70)


def test_a_repair_that_is_another_call_than_the_one_that_then_worked_does_not():
    (one,) = replay(
        step(1, "search", {"q": "a", "k": 50}, REJECTED, effects="none"),
        step(2, "search", {"q": "a", "k": 7}),
        known=(PROVEN,),
    )
    assert (one.move, one.agrees, one.saved_seconds) == ("repair", False, 0.0)


def test_where_nothing_overcame_a_failure_the_record_cannot_tell():
    (one,) = replay(step(1, "search", {"k": 50}, REJECTED, effects="none"), known=(PROVEN,))
    assert (one.move, one.agrees, one.recovered) == ("repair", None, False)


def test_a_remembered_value_is_only_told_until_an_operator_approves_it_and_a_form_is_changed_once_proven():
    failed, then = step(1, "search", {"q": "a", "k": 50}, REJECTED), step(2, "search", {"q": "a", "k": 10})
    (value,) = replay(failed, then, known=(msgspec.structs.replace(PROVEN, state="promoted"),))
    assert (value.move, value.agrees, value.fix_id) == ("suggest", True, "fix_1")
    cast = msgspec.structs.replace(
        PROVEN, state="promoted", changes=(Change(path="k", operation="cast", after="integer"),)
    )
    text = step(1, "search", {"q": "a", "k": "10"}, REJECTED, effects="none")
    (form,) = replay(text, then, known=(cast,))
    assert (form.move, form.agrees, form.fix_id) == ("repair", True, "fix_1")


def test_what_is_not_proven_is_told_and_what_is_not_known_is_nothing():
    proposed = Fix(
        **{name: getattr(PROVEN, name) for name in ("id", "tool", "fingerprint", "changes")}, trials=1, successes=1
    )
    failed, then = step(1, "search", {"q": "a", "k": 50}, REJECTED), step(2, "search", {"q": "a", "k": 10})
    (told,) = replay(failed, then, known=(proposed,))
    assert (told.move, told.agrees) == ("suggest", True)
    (nothing,) = replay(failed, then)
    assert (nothing.move, nothing.recovered) == ("nothing", True)


def test_a_recipe_agrees_where_its_calls_were_made_before_the_same_call_worked():
    recipe = Fix(
        id="fix_2", tool="start", fingerprint="f-locked", type="prerequisite", trials=9, successes=9,
        prerequisites=(Prerequisite(tool="press", arguments={"to": 1.0}),),
    )  # fmt: skip
    failed, then = step(1, "start", {"mode": "on"}, LOCKED), step(3, "start", {"mode": "on"})
    (one,) = replay(failed, step(2, "press", {"to": 1}), then, known=(recipe,))
    assert (one.move, one.agrees, one.fix_id) == ("suggest", True, "fix_2")
    (other,) = replay(failed, step(2, "kick", {}), then, known=(recipe,))
    assert other.agrees is False


def test_what_passes_is_waited_for_only_where_the_call_may_be_made_again():
    failed, then = step(1, "search", {"q": "a"}, SLOW), step(2, "search", {"q": "a"})
    (nothing,) = replay(failed, then)
    assert (nothing.move, nothing.reason) == ("nothing", "the tool is not declared safe to repeat")
    (waited,) = replay(failed, then, effects="idempotent")
    assert (waited.move, waited.agrees) == ("retry", True)


def test_the_schema_of_a_tool_is_used_where_it_is_named():
    properties = {"k": {"type": "integer", "maximum": 10}, "q": {"type": "string"}}
    schema = {"properties": properties, "additionalProperties": False}
    steps = step(1, "search", {"k": "5", "q": "a"}, REJECTED), step(2, "search", {"k": 5, "q": "a"})
    (one,) = replay(*steps, tools={"search": schema})
    assert (one.move, one.agrees, one.source) == ("repair", True, "schema")
