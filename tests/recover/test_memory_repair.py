"""What memory knows, applied to the call in hand; and what is never taken from another run (SAFETY S1-S3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.contract.store import DEFAULT_TENANT, FixQuery
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import LAST_PATH_SEGMENT, RUN_SPECIFIC, Change, Fix, Prerequisite, Run, Step
from mulligan.recover.policy import EarlierCall, PrerequisiteCall, Tool
from mulligan.recover.repair import suggest
from mulligan.store.sqlite import MemoryStore

REJECTED = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "no", fingerprint="f")
SCHEMA = {
    "type": "object",
    "properties": {
        "k": {"type": "integer", "maximum": 100},
        "unit": {"enum": ["metric", "nautical"]},
        "ids": {},
        "file": {"type": "string"},
        "q": {},
        "flag": {"type": "boolean"},
    },
}


def fix(*changes: Change, **about: Any) -> Fix:
    given = {"successes": 9, "trials": 9, "state": "promoted", "principals": 3, **about}
    return Fix(id="fix_1", tool="search", fingerprint="f", changes=changes, **given)


def asked(arguments: dict[str, Any], *known: Fix, seen: tuple[EarlierCall, ...] = (), **tool: Any) -> list[Any]:
    about = Tool(name="search", schema=lambda: SCHEMA, **{"effects": "idempotent", **tool})
    return [each for each in suggest(arguments, REJECTED, about, seen, fixes=known) if each.source == "memory"]


@pytest.mark.parametrize(
    ("arguments", "change", "mended"),
    [
        ({"k": 50}, Change(path="k", operation="substitute", after=10), {"k": 10}),
        ({"flag": False}, Change(path="flag", operation="substitute", after=True), {"flag": True}),
        ({"unit": "nautical"}, Change(path="unit", operation="substitute", after="metric"), {"unit": "metric"}),
        ({"ids": "7"}, Change(path="ids", operation="wrap"), {"ids": ["7"]}),
        ({"ids": "[7]"}, Change(path="ids", operation="parse"), {"ids": [7]}),
        ({"q": "7"}, Change(path="q", operation="cast", after="integer"), {"q": 7}),
        ({"q": " a "}, Change(path="q", operation="trim"), {"q": "a"}),
        ({"file": "a/b.txt"}, Change(path="file", operation="trim", after=LAST_PATH_SEGMENT), {"file": "b.txt"}),
        ({"query": "a"}, Change(path="query", operation="rename", after="q"), {"q": "a"}),
        ({"q": "a", "ids": ""}, Change(path="ids", operation="drop"), {"q": "a"}),
    ],
)
def test_a_fix_is_made_to_this_calls_own_values(arguments, change, mended):
    (made,) = asked(arguments, fix(change))
    assert made.arguments == mended
    assert (made.source, made.fix_id) == ("memory", "fix_1")
    assert "succeeded in 9 of 9 trials" in made.evidence[0]


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        ({"q": "cats", "ids": [1]}, Change(path="ids", operation="drop")),  # it says something
        ({"q": "cats"}, Change(path="q", operation="substitute", after=RUN_SPECIFIC)),
        ({"q": "cats"}, Change(path="q", operation="substitute", after="dogs")),  # no member of an enum
        ({"q": "cats"}, Change(path="unknown", operation="substitute", after=True)),  # the schema does not know it
        ({"q": "cats"}, Change(path="k", operation="cast", after="integer")),
        ({"q": "cats"}, Change(path="q", operation="rename", after="elsewhere")),
        ({"k": 50}, Change(path="k", operation="substitute", after=1000)),  # beyond its bound
        ({"k": 10}, Change(path="k", operation="substitute", after=10)),
    ],
)
def test_a_fix_that_does_not_fit_this_call_is_left_alone(arguments, change):
    assert asked(arguments, fix(change)) == []


CLAMP = Change(path="k", operation="substitute", after=10)


CAST = Change(path="q", operation="cast", after="integer")


def test_promoted_form_change_is_applied_automatically():
    (made,) = asked({"q": "7"}, fix(CAST))
    assert made.automatic
    assert made.confidence > 0.8


def test_promoted_value_is_never_applied_because_of_its_votes():
    (made,) = asked({"k": 50}, fix(CLAMP, successes=500, trials=500, showable=True))
    assert not made.automatic
    assert made.reason == "a value from memory needs approval by an operator"


def test_approved_text_is_applied_only_if_the_schema_lists_it():
    schema_member = Change(path="unit", operation="substitute", after="metric")
    (made,) = asked({"unit": "nautical"}, fix(schema_member, state="approved", showable=True))
    assert made.automatic
    other_text = Change(path="file", operation="substitute", after="archive")
    (made,) = asked(
        {"file": "inbox"}, fix(other_text, state="approved", showable=True), unprivileged=frozenset({"file"})
    )
    assert not made.automatic
    assert "schema" in made.reason


@pytest.mark.parametrize(
    ("known", "tool", "why"),
    [
        (fix(CLAMP, state="proposed", reason="it worked 3 times"), {}, "it worked 3 times"),
        (fix(CLAMP, state="demoted", reason="failed twice in a row"), {}, "twice"),
        (fix(CLAMP, similarity=0.9), {}, "similar failure only"),
        (fix(CLAMP), {"effects": "once"}, "needs approval by an operator"),
        (fix(CLAMP), {}, "needs approval by an operator"),
        (fix(CLAMP), {"mode": "suggest"}, 'the mode is "suggest"'),
        (fix(CLAMP, state="approved"), {"destructive": True}, "destructive"),
        (fix(CLAMP, state="approved"), {"privileged": frozenset({"k"})}, "is a privileged argument"),
        (fix(CLAMP, successes=5, trials=9, state="approved"), {}, ""),
        (fix(CLAMP, state="approved"), {"effects": "once"}, ""),
    ],
)
def test_what_is_not_proven_or_not_safe_is_only_suggested(known, tool, why):
    (made,) = asked({"k": 50}, known, **tool)
    assert made.automatic is (why == "")
    assert why in made.reason


RECIPE = Fix(
    id="fix_2", tool="search", fingerprint="f", type="prerequisite", successes=412, trials=412, state="promoted",
    showable=True,
    prerequisites=(
        Prerequisite(tool="press", arguments={"position": 1.0}),
        Prerequisite(tool="login", arguments={"user": "ann"}, variable_arguments=("id",)),
    ),
)  # fmt: skip


def test_a_recipe_is_offered_with_what_comes_first_and_never_carried_out():
    seen = (EarlierCall("login", {"user": "bob"}), EarlierCall("lookup", {}, "success", {"id": "u17"}))
    (made,) = asked({"q": "cats"}, RECIPE, seen=seen)
    assert made.prerequisites == (
        PrerequisiteCall("press", {"position": 1.0}),
        PrerequisiteCall("login", {"user": "bob", "id": "u17"}),
    )
    assert made.arguments == {"q": "cats"}
    assert made.confidence > 0.95
    assert not made.automatic


def test_who_another_run_was_is_not_told():
    (made,) = asked({"q": "cats"}, RECIPE)
    assert made.prerequisites[1] == PrerequisiteCall("login", {})
    assert any("login.user" in told for told in made.evidence)
    assert made.confidence < 0.6


# Nothing of another run (SAFETY S1), whatever was learned and even where an operator approved all of it

NAMES = st.sampled_from(["q", "unit", "file", "k", "flag", "ids", "query", "strange"])
THEIRS = st.one_of(
    st.sampled_from(["metric", "IMPERIAL", "theirs/secret.txt", "theirs", "Theirs", "their own words", "user_8842"]),
    st.integers(-5, 200),
    st.booleans(),
    st.none(),
    st.lists(st.sampled_from(["theirs", "metric"]), max_size=2),
)
OWN = st.one_of(
    st.sampled_from(["mine", " mine ", "mine/own.txt", "METRIC", "[1]", "5", "true"]),
    st.integers(0, 200),
    st.booleans(),
)


def texts(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {text for each in value.values() for text in texts(each)}
    if isinstance(value, list):
        return {text for each in value for text in texts(each)}
    return {value} if isinstance(value, str) else set()


@settings(max_examples=150, deadline=None)
@given(
    runs=st.lists(st.tuples(NAMES, THEIRS, NAMES, THEIRS), min_size=1, max_size=4),
    arguments=st.dictionaries(NAMES, OWN, min_size=3, max_size=8),
    has_schema=st.booleans(),
)  # fmt: skip
def test_nothing_marked_automatic_holds_a_text_of_another_run(runs, arguments, has_schema):
    store = MemoryStore(lambda: 1000)
    for number, (name, value, other, worked) in enumerate(runs):
        rest = {"one": 1, "two": "theirs too"}
        before, after = {**rest, name: value}, {**rest, other: worked}
        shared = {"run": f"run_{number}", "name": "search", "started_at": number, "key": "tools:search"}
        failed = Step(seq=1, call=1, arguments=before, outcome="failure", failure=REJECTED, **shared)
        then = Step(seq=2, call=2, arguments=after, **shared)
        run, ended = Run(id=f"run_{number}"), Run(id=f"run_{number}", end_reason="finished")
        store.append(
            DEFAULT_TENANT, [RunStarted(run), StepEnded(failed), StepEnded(then), RunEnded(ended)], f"{number}", 1
        )
    for each in store.fixes(DEFAULT_TENANT, FixQuery(now=1000, limit=99)):
        store.decide(DEFAULT_TENANT, each.id, approved=True, at=1000)
    known = store.fixes(DEFAULT_TENANT, FixQuery.for_failure("search", REJECTED, arguments, now=1000, limit=99))
    about = Tool(name="search", schema=lambda: SCHEMA if has_schema else None, effects="idempotent")
    mine = texts(arguments)
    for made in suggest(arguments, REJECTED, about, fixes=known):
        if made.automatic:
            new = {text for text in texts(made.arguments) if not any(text in each for each in mine)}
            schema_own = {"metric", "imperial"} if has_schema else set()
            same_word = {text for text in new if text.casefold() in {each.casefold() for each in mine}}
            as_text = {text for text in new if text in {str(value) for value in arguments.values()}}
            assert new - schema_own - same_word - as_text == set()


@pytest.mark.parametrize(
    ("about", "is_told"), [({}, True), ({"privileged": {"k"}}, False), ({"destructive": True}, False)]
)
def test_fix_of_an_argument_that_is_privileged_for_this_tool_is_no_advice(about, is_told):
    (suggestion,) = asked({"k": 50}, fix(Change(path="k", operation="substitute", after=10), showable=True), **about)
    assert (suggestion.confidence >= 0.5) is is_told
    assert not suggestion.automatic
