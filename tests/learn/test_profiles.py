"""What a model may be told of what was learned (LEARNING.md, "Telling")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mulligan.core.records import RUN_SPECIFIC, Change, ChangeOperation
from mulligan.learn.fixes import RETRY_ACTION, FixAction, FixRecord, Vote, hash_value, to_shareable
from mulligan.learn.profiles import build_profile, find_hidden_reason

SETTING = FixAction(changes=(Change(path="queue", operation="substitute", after="slow"),))


def make_tally(
    form: FixAction = SETTING, times: Sequence[int] = (10, 20, 30), id: str = "fix_a", **fields: Any
) -> FixRecord:
    """Make a fix that worked at these times, for one old value beside different other ones."""
    return FixRecord(
        id=id,
        tool="start",
        fingerprint="f",
        action=form,
        trials=len(times),
        successes=len(times),
        agents={"agent": len(times)},
        recent=[(at, f"run_{at}", True, False) for at in times],
        old_values={hash_value("fast"): ["a", "b"]},
        **fields,
    )


def find_reason(
    tally: FixRecord, calls: Sequence[tuple[int, Any]] = (), items: Sequence[str] = (), **fields: Any
) -> str:
    peers = fields.get("peers", [tally])
    return find_hidden_reason(tally, peers, "agent", lambda: build_profile(calls), lambda: items)


def test_setting_is_told_whose_old_value_never_worked():
    assert find_reason(make_tally(), [(at, {"queue": "slow", "job": at}) for at in (10, 20, 30)]) == ""


def test_value_is_not_told_once_its_argument_is_known_to_name_items():
    assert find_reason(make_tally(), items=["queue"]) == "queue names items"
    assert find_reason(make_tally(), items=["job"]) == ""


@pytest.mark.parametrize(("at", "is_told"), [(5, True), (15, False), (35, False)])
def test_last_corrections_are_told_unless_the_old_value_has_worked_since(at, is_told):
    reason = find_reason(make_tally(), [(10, {"queue": "slow"}), (at, {"queue": "fast"})])
    assert (reason == "") is is_told


@pytest.mark.parametrize("times", [(10, 20), (10, 20, 30)])
def test_old_value_that_was_left_to_the_default_counts_as_one_that_worked(times):
    tally = make_tally(times=times)
    tally.old_values = {hash_value(None): ["a", "b"]}
    slow = [(at, {"job": at, "queue": "slow"}) for at in times]
    assert find_reason(tally, slow) == ""
    assert "has also succeeded" in find_reason(tally, [*slow, (40, {"job": 40})])


def test_prerequisite_is_not_told_where_the_same_call_worked_without_it():
    recipe = make_tally(FixAction(type="prerequisite", tools=("notify",)))
    assert find_reason(recipe) == ""
    retry = make_tally(RETRY_ACTION, id="fix_b")
    assert find_reason(recipe, peers=[recipe, retry]) == "the same call also succeeded without it"
    retry.successes = 0
    assert find_reason(recipe, peers=[recipe, retry]) == ""


@pytest.mark.parametrize(
    ("value", "is_shared"),
    [
        ("latin-1", True), ("latin1", True), ("iso-8859-15", True), ("cp1252", True), ("utf-16-le", True),
        ("sha256", True), ("base64", True), ("mp3", True), ("h264", True), ("a4", True), ("ipv6", True),
        ("emp17", False), ("ord-10423", False), ("v2", False), ("table7", False), ("G12", False), ("2026-01-31", False),
    ],
)  # fmt: skip
def test_name_of_a_format_may_be_repeated_in_another_run_and_an_id_may_not(value, is_shared):
    change = to_shareable(Change(path="format", operation="substitute", before="x", after=value))
    assert (change.after == value) is is_shared
    assert is_shared or change.after == RUN_SPECIFIC


def tally_of(
    value: int, how: ChangeOperation = "substitute", agents: str = "a", start: int = 0, runs: int = 4
) -> FixRecord:
    """A fix that set `k` in some runs, each with another query."""
    form = FixAction(changes=(Change(path="k", operation=how, after=value),))
    tally = FixRecord(id=f"{how}-{value}", tool="search", fingerprint="f", action=form, key="shop:search")
    for number in range(runs):
        at = start + number
        tally.add(Vote(f"run_{at}", "local", agents, at, 0, True, "caller", f"content {at}", "old", f"query {at}"))
    return tally


def reason(tally: FixRecord, *peers: FixRecord, agent: str = "a") -> str:
    return find_hidden_reason(tally, [tally, *peers], agent, dict)


@pytest.mark.parametrize("how", ["clamp", "default"])
def test_a_value_does_not_contradict_itself_however_it_was_found(how):
    chosen, found = tally_of(10), tally_of(10, how, start=10)
    assert reason(chosen, found) == ""
    assert reason(found, chosen) == ""


def test_a_value_that_another_agent_contradicts_is_told_to_its_own_agent_only():
    mine, theirs = tally_of(10), tally_of(20, agents="b", start=10)
    assert reason(mine, theirs, agent="a") == ""
    assert reason(mine, theirs, agent="b") == "other agents or later runs contradict it for k"
    assert reason(mine, theirs, agent="c") == "other agents or later runs contradict it for k"


def test_the_last_corrections_decide_between_values_of_one_agent_whichever_way_they_were_found():
    old, new, same = tally_of(10), tally_of(20, start=10, runs=2), tally_of(20, "clamp", start=20, runs=2)
    assert reason(old, new, same) == "other agents or later runs contradict it for k"
    assert reason(new, old, same) == ""
    assert reason(same, old, new) == ""
