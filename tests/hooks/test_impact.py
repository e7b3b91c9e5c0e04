"""A coding agent over its hooks: advice is held out from some sessions, and `impact` shows what it was worth."""

from __future__ import annotations

import json

import pytest

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.episodes import list_episodes
from mulligan.learn import seeds

STALE = "File has been modified since read, by the user or a linter. Read it again before attempting to write it."
EDIT = {"file_path": "/src/shop/a.py", "old_string": "total = 1", "new_string": "total = 2"}
SESSIONS = 60


@pytest.fixture(autouse=True)
def removed_seeds(another):
    store = another().store
    seeds.remove_seeds(store, DEFAULT_TENANT)
    store.close()


def work(agent) -> bool:
    """Edit a file that has changed. With advice the model reads it first; without, it repeats the edit once."""
    has_advice = bool(agent.is_refused("Edit", STALE, **EDIT))
    if not has_advice:
        agent.is_refused("Edit", STALE, **EDIT)
    agent.works("Read", file_path="/src/shop/a.py")
    agent.works("Edit", **EDIT)
    agent.ends()
    return has_advice


def test_impact_shows_the_effect_of_advice_and_show_names_the_sessions_without_it(another, types, monkeypatch):
    monkeypatch.setenv("MULLIGAN_HOLDOUT", "0.4")
    advised = {f"s{number}": work(another(session=f"s{number}")) for number in range(SESSIONS)}
    held_out = []
    for session, has_advice in list(advised.items())[10:]:
        history = another(session=session).run()
        [episode] = list_episodes(history)
        assert bool(episode.fixes) is has_advice
        assert bool(episode.held_out_fixes) is not has_advice
        if not has_advice:
            held_out.append(history.run.id)
    assert 8 < len(held_out) < 40
    facts = json.loads(types("impact", "--json")[1])
    row = next(row for row in facts["summary"] if row["name"] == "fixed at the first attempt")
    assert (row["with_help"], row["without_help"], row["verdict"]) == ("100 %", "0 %", "better")
    assert row["held_out_cases"] >= len(held_out)
    assert "not told: held out, " in types("show", held_out[0])[1]
