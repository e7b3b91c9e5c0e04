"""Memory only adds: whatever a store holds, the repairs of an empty one are made, as early and as often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.core.calls import is_same_json
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import (
    LAST_PATH_SEGMENT,
    REQUOTED,
    RUN_SPECIFIC,
    Change,
    ChangeOperation,
    Fix,
    FixState,
    Prerequisite,
)
from mulligan.recover.plan import AttemptMove, QueryMove, RecoveryMoves, RecoveryQueries, plan_recovery
from mulligan.recover.policy import EarlierCall, Policy, Suggestion, Tool
from mulligan.recover.repair import suggest
from mulligan.recover.retry_schedule import BackoffMove, RetryQueries

REJECTED = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "no", fingerprint="f")
SCHEMA = {
    "type": "object",
    "properties": {
        "top_k": {"type": "integer", "minimum": 1, "maximum": 100},
        "unit": {"enum": ["metric", "imperial"]},
        "ids": {"type": "array"},
        "query": {"type": "string"},
        "order_id": {"type": "string"},
        "flag": {"type": "boolean"},
    },
    "required": ["query"],
    "additionalProperties": False,
}
NAMES = st.sampled_from(["top_k", "unit", "ids", "query", "order_id", "flag", "topk", "limit", "strange"])
VALUES = st.one_of(
    st.sampled_from(
        [500, 50, 20, 10, 0, "500", "50", " cats ", "cats", "METRIC", "imperial", "[1]", "ord_8812", "true"]
    ),
    st.booleans(),
    st.none(),
    st.lists(st.integers(0, 3), max_size=2),
)
REPAIRABLE: list[dict[str, Any]] = [
    {"query": "cats", "top_k": 50, "order_id": "ord_8813"},
    {"query": "cats", "top_k": "50"},
    {"query": "cats", "top_k": 500},
    {"query": "cats", "unit": "METRIC", "ids": "[1]"},
    {"query": "cats", "topk": 5},
]
"""Calls that rules can repair, the first one in several ways."""
CALLS = st.one_of(
    st.just(REPAIRABLE[0]),
    st.just(REPAIRABLE[0]),
    st.sampled_from(REPAIRABLE),
    st.dictionaries(NAMES, VALUES, max_size=4),
)
REMEMBERED_VALUES = st.one_of(
    VALUES,
    st.sampled_from(
        [RUN_SPECIFIC, REQUOTED, LAST_PATH_SEGMENT, "integer", "string", "boolean", "metric", "query", "top_k", 100]
    ),
)
CHANGES = st.builds(Change, path=NAMES, operation=st.sampled_from(get_args(ChangeOperation)), after=REMEMBERED_VALUES)
PREREQUISITES = st.builds(
    Prerequisite,
    tool=st.sampled_from(["login", "search"]),
    arguments=st.dictionaries(NAMES, VALUES, max_size=2),
    variable_arguments=st.lists(NAMES, max_size=1).map(tuple),
)
FIXES = st.builds(
    Fix,
    id=st.sampled_from(["fix_1", "fix_2", "fix_3"]),
    tool=st.just("search"),
    fingerprint=st.just("f"),
    type=st.sampled_from(["change", "prerequisite", "retry", "exemplar"]),
    changes=st.lists(CHANGES, max_size=3).map(tuple),
    prerequisites=st.lists(PREREQUISITES, max_size=2).map(tuple),
    trials=st.integers(1, 500),
    successes=st.integers(0, 500),
    state=st.sampled_from(get_args(FixState)),
    reason=st.sampled_from(["", "it is not proven"]),
    similarity=st.sampled_from([1.0, 1.0, 0.7]),
    exemplars=st.integers(0, 9),
    showable=st.booleans(),
)
STORES = st.lists(FIXES, max_size=6)
MESSAGES = [
    "no",
    "top_k must be at most 20, got 50",
    "unexpected argument 'topk'",
    "top_k must be at most 20, got 50; order ord_8813 does not exist",
]
FAILURES = st.builds(
    lambda message, remedy, ran, fingerprint: Failure.of(
        Kind("tool", "invalid_arguments", remedy, ran), message, fingerprint=fingerprint
    ),
    st.sampled_from(MESSAGES),
    st.sampled_from([*[Remedy.REPAIR] * 6, Remedy.REPLAN, Remedy.RETRY]),
    st.sampled_from(TookEffect),
    st.sampled_from(["f", "g"]),
)
TOOLS = st.builds(
    Tool,
    name=st.just("search"),
    schema=st.sampled_from([lambda: SCHEMA, lambda: None]),
    effects=st.sampled_from(["none", "none", "idempotent", "once"]),
    mode=st.sampled_from([*["repair"] * 6, "suggest", "observe"]),
    learn=st.sampled_from(["off", "tell", "tell", "repair"]),
    privileged=st.sampled_from([frozenset(), frozenset(), frozenset(), frozenset({"top_k"})]),
    destructive=st.sampled_from([False, False, False, True]),
)
LISTED = EarlierCall("list_orders", {"query": "cats"}, result={"order_id": "ord_8812", "id": "ord_8814"})
EARLIER_CALLS = st.lists(
    st.just(LISTED) | st.builds(EarlierCall, st.sampled_from(["search", "list_orders"]), CALLS, result=VALUES),
    max_size=3,
)


@st.composite
def draw_fixes(draw: st.DrawFn, suggestions: Sequence[Suggestion]) -> list[Fix]:
    """Draw what a store may hold: anything, and the very repairs that rules suggest, with any record."""
    fixes = draw(STORES)
    for suggestion in suggestions:
        if draw(st.booleans()):
            values = {change.path: suggestion.arguments.get(change.path) for change in suggestion.changes}
            changes = tuple(Change(path=path, operation="substitute", after=value) for path, value in values.items())
            record = msgspec.structs.replace(draw(FIXES), type="change", prerequisites=(), changes=changes)
            fixes.append(msgspec.structs.replace(record, state=draw(st.sampled_from(["approved", record.state]))))
    return fixes


def find_equal(suggestion: Suggestion, others: Sequence[Suggestion]) -> int | None:
    """Return the place of the suggestion that makes the same call."""
    for place, other in enumerate(others):
        is_same_call = suggestion.tool == other.tool and suggestion.prerequisites == other.prerequisites
        if is_same_call and is_same_json(suggestion.arguments, other.arguments):
            return place
    return None


@settings(max_examples=1000)
@given(CALLS, FAILURES, TOOLS, EARLIER_CALLS, st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.9]), st.data())
def test_automatic_repair_of_an_empty_store_is_automatic_with_any_store(
    arguments, failure, tool, earlier_calls, confidence, data
):
    by_rules = suggest(arguments, failure, tool, earlier_calls, min_confidence=confidence)
    fixes = data.draw(draw_fixes(by_rules))
    with_memory = suggest(arguments, failure, tool, earlier_calls, min_confidence=confidence, fixes=fixes)

    automatic = [suggestion for suggestion in by_rules if suggestion.automatic]
    places = [find_equal(suggestion, with_memory) for suggestion in automatic]
    assert None not in places
    assert places == sorted(places)
    assert all(with_memory[place].automatic for place in places)
    for suggestion in by_rules:  # what is only suggested stays, too
        assert find_equal(suggestion, with_memory) is not None


def play(moves: RecoveryMoves, failures: Sequence[Failure | None]) -> list[Any]:
    """Return the arguments of the attempts that are made when they end so; further ones fail as the last one did."""
    attempts: list[Any] = []
    answer: Any = None
    while True:
        try:
            move = moves.send(answer)
        except StopIteration:
            return attempts
        match move:
            case AttemptMove():
                attempts.append(dict(move.arguments))
                answer = failures[min(len(attempts), len(failures)) - 1]
            case QueryMove():
                answer = move.query(*move.arguments)
            case BackoffMove():
                answer = None


def list_attempts(
    arguments: dict[str, Any],
    tool: Tool,
    policy: Policy,
    earlier_calls: Sequence[EarlierCall],
    failures: Sequence[Failure | None],
    fixes: Sequence[Fix] | None,
) -> list[Any]:
    """Return the attempts at a call, with a memory that holds some fixes or without any."""
    questions = RecoveryQueries(
        lookup_precedents=lambda *about: (),
        lookup_fixes=None if fixes is None else lambda failure, arguments: fixes,
        run_prerequisite=lambda before: "",
        retries=RetryQueries(limits=policy.limit_retries()),
        earlier_calls=lambda: earlier_calls,
    )
    return play(plan_recovery(arguments, tool, policy, questions), failures)


POLICIES = st.builds(
    Policy,
    attempts=st.integers(1, 4),
    min_confidence=st.sampled_from([0.0, 0.0, 0.3, 0.8]),
    initial_backoff=st.just(0.0),
)


@settings(max_examples=1000)
@given(CALLS, TOOLS, POLICIES, EARLIER_CALLS, st.lists(FAILURES | st.none(), min_size=1, max_size=4), st.data())
def test_attempts_of_an_empty_store_are_made_first_with_any_store(
    arguments, tool, policy, earlier_calls, failures, data
):
    cause = failures[0] or REJECTED
    fixes = data.draw(draw_fixes(suggest(arguments, cause, tool, earlier_calls, min_confidence=policy.min_confidence)))
    by_rules = list_attempts(arguments, tool, policy, earlier_calls, failures, None)
    with_memory = list_attempts(arguments, tool, policy, earlier_calls, failures, fixes)

    assert len(with_memory) >= len(by_rules)
    assert all(is_same_json(rule, attempt) for rule, attempt in zip(by_rules, with_memory, strict=False))
    assert len(with_memory) <= policy.attempts


def approve(*changes: Change) -> Fix:
    return Fix(
        id="fix_1",
        tool="search",
        fingerprint="f",
        changes=changes,
        trials=500,
        successes=500,
        state="approved",
        showable=True,
    )


def test_equal_suggestion_of_memory_does_not_put_a_repair_off():
    """Memory knows the same repair, and surer: it is still the rule's own, and comes before what memory adds."""
    tool = Tool(name="search", schema=lambda: SCHEMA, effects="idempotent")
    cast = Change(path="top_k", operation="cast", after="integer")
    clamp = Change(path="top_k", operation="substitute", after=10)
    call = {"query": "cats", "top_k": "50"}
    policy = Policy(attempts=2, initial_backoff=0.0)
    for fixes in ([approve(cast)], [approve(clamp), approve(cast)], [approve(clamp)]):
        attempts = list_attempts(call, tool, policy, (), [REJECTED], fixes)
        assert attempts == [call, {"query": "cats", "top_k": 50}]
        (repair, *_) = [made for made in suggest(call, REJECTED, tool, fixes=fixes) if made.source != "memory"]
        assert repair.automatic


@pytest.mark.parametrize("learn", ["tell", "repair"])
def test_memory_adds_an_approved_repair_where_rules_have_none(learn):
    tool = Tool(name="search", schema=lambda: SCHEMA, effects="idempotent", learn=learn)
    call = {"query": "cats", "top_k": 50}
    fixes = [approve(Change(path="top_k", operation="substitute", after=10))]
    policy = Policy(attempts=2, initial_backoff=0.0)
    assert list_attempts(call, tool, policy, (), [REJECTED], None) == [call]
    assert list_attempts(call, tool, policy, (), [REJECTED], fixes) == [call, {"query": "cats", "top_k": 10}]


def test_repair_of_a_rule_that_a_second_failure_makes_possible_comes_before_what_memory_adds():
    tool = Tool(name="search", schema=lambda: SCHEMA, effects="idempotent", clamp=frozenset({"top_k"}))
    call = {"query": "cats", "top_k": "50"}
    bound = Failure.of(
        Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO),
        "top_k must be at most 20, got 50",
        fingerprint="f",
    )
    fixes = [approve(Change(path="top_k", operation="substitute", after=10))]
    policy = Policy(attempts=3, initial_backoff=0.0)
    by_rules = [call, {"query": "cats", "top_k": 50}, {"query": "cats", "top_k": 20}]
    assert list_attempts(call, tool, policy, (), [REJECTED, bound], None) == by_rules
    assert list_attempts(call, tool, policy, (), [REJECTED, bound], fixes) == by_rules
