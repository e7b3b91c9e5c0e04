"""Which fixes a model may be told about: plain functions of tallies."""

from __future__ import annotations

import pytest

from mulligan.records import Change, How
from mulligan.remember.fixes import Form, Tally, Vote
from mulligan.remember.telling import why_untold


def tally_of(value: int, how: How = "substitute", agents: str = "a", start: int = 0, runs: int = 4) -> Tally:
    """A fix that set `k` in some runs, each with another query."""
    form = Form(changes=(Change(path="k", how=how, after=value),))
    tally = Tally(id=f"{how}-{value}", tool="search", fingerprint="f", form=form, key="shop:search")
    for number in range(runs):
        at = start + number
        tally.add(Vote(f"run_{at}", "local", agents, at, True, "caller", f"content {at}", "old", f"query {at}"))
    return tally


def reason(tally: Tally, *peers: Tally, agent: str = "a") -> str:
    return why_untold(tally, [tally, *peers], agent, dict)


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
