"""A failure in, the next move out. The generator is driven by hand: nothing here waits or calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Change, Precedent, Recovery
from mulligan.recover.plan import (
    AttemptMove,
    Move,
    QueryMove,
    RecoveryFailed,
    RecoveryQueries,
    plan_recovery,
    select_tellable,
)
from mulligan.recover.policy import Policy, Tool
from mulligan.recover.retry_schedule import BackoffMove, RetryQueries

SCHEMA = {"type": "object", "properties": {"k": {"type": "integer", "maximum": 10}}}
PRECEDENT = Precedent(method="retry")


def failing(remedy: Remedy, ran: TookEffect = TookEffect.NO, type: str = "tool", **fields: Any) -> Failure:
    return Failure.of(Kind(type, remedy.value, remedy), "no", took_effect=ran, **fields)


def tool(effects: Any = "none", **fields: Any) -> Tool:
    clamp = frozenset({"k"})
    return Tool(**{"name": "search", "effects": effects, "schema": lambda: SCHEMA, "clamp": clamp, **fields})


def played(
    failures: Sequence[Failure | None], tool: Tool, policy: Policy | None = None, arguments: Any = None
) -> tuple[list[Move], RecoveryFailed | None]:
    """The moves when the attempts end so; those beyond the list fail as the last one did."""
    policy = policy or Policy()
    retries = RetryQueries(limits=policy.limit_retries())
    questions = RecoveryQueries(lookup_precedents=lambda *about: [PRECEDENT], retries=retries)
    moves = plan_recovery({"k": 50} if arguments is None else arguments, tool, policy, questions)
    made: list[Move] = []
    answer: Any = None
    while True:
        try:
            move = moves.send(answer)
        except StopIteration as stop:
            return made, stop.value
        made.append(move)
        match move:
            case AttemptMove():
                tries = sum(isinstance(each, AttemptMove) for each in made)
                answer = failures[min(tries, len(failures)) - 1]
            case QueryMove():
                answer = move.query(*move.arguments)
            case BackoffMove():
                answer = None


def tries(moves: list[Move]) -> list[Any]:
    return [dict(move.arguments) for move in moves if isinstance(move, AttemptMove)]


def test_a_call_that_works_is_made_once_and_nothing_is_asked():
    moves, given_up = played([None], tool())
    assert tries(moves) == [{"k": 50}]
    assert given_up is None
    assert len(moves) == 1


# SAFETY 2: what may be repeated. "again" is the same call, "repaired" one with other arguments, "told" none.

TABLE = [
    # effects, ran, remedy, the next move
    *[(effects, ran, Remedy.RETRY, "again") for effects in ("none", "idempotent") for ran in TookEffect],
    *[(effects, ran, Remedy.REPAIR, "repaired") for effects in ("none", "idempotent") for ran in TookEffect],
    ("once", TookEffect.NO, Remedy.RETRY, "told"),
    ("once", TookEffect.NO, Remedy.REPAIR, "repaired"),
    *[
        ("once", ran, remedy, "told")
        for ran in (TookEffect.UNKNOWN, TookEffect.YES)
        for remedy in (Remedy.RETRY, Remedy.REPAIR)
    ],
    *[
        (effects, ran, remedy, "told")
        for effects in ("none", "idempotent", "once")
        for ran in TookEffect
        for remedy in (Remedy.REPLAN, Remedy.STOP, Remedy.COMPRESS)
    ],
]


def test_the_table_says_something_about_every_case():
    assert len({row[:3] for row in TABLE}) == len(TABLE) == 3 * len(TookEffect) * len(Remedy)


@pytest.mark.parametrize(("effects", "ran", "remedy", "expected"), TABLE)
def test_a_call_is_repeated_only_where_that_is_safe(effects, ran, remedy, expected):
    moves, given_up = played([failing(remedy, ran), None], tool(effects))

    match expected:
        case "again":
            assert tries(moves) == [{"k": 50}, {"k": 50}]
        case "repaired":
            assert tries(moves) == [{"k": 50}, {"k": 10}]
        case "told":
            assert tries(moves) == [{"k": 50}]
            assert given_up.failure.remedy is remedy
            assert given_up.reason


FAILURES = st.builds(
    lambda remedy, ran, recoverable, retry_after: failing(
        remedy, ran, recoverable=recoverable, retry_after=retry_after
    ),
    st.sampled_from(Remedy),
    st.sampled_from(TookEffect),
    st.booleans(),
    st.none() | st.floats(0, 100),
)


@given(
    st.lists(st.none() | FAILURES, min_size=1, max_size=12),
    st.sampled_from(["none", "idempotent", "once"]),
    st.integers(1, 10),
    st.sampled_from(["observe", "suggest", "repair"]),
)
def test_attempts_never_exceed_the_policy_and_every_retry_is_announced_by_a_wait(failures, effects, attempts, mode):
    policy = Policy(attempts=attempts)
    moves, given_up = played(failures, tool(effects, mode=mode), policy)

    made = [move for move in moves if isinstance(move, AttemptMove)]
    waits = [move for move in moves if isinstance(move, BackoffMove)]
    assert 1 <= len(made) <= attempts
    assert [move.recovery for move in made[1:]] == [move.recovery for move in waits]
    assert all(0 <= wait.recovery.backoff_seconds <= policy.max_backoff * 1.1 for wait in waits)
    last = failures[min(len(made), len(failures)) - 1]
    assert (given_up is None) == (last is None)
    if given_up is not None:
        assert given_up.failure == last
        assert list(given_up.precedents) == [PRECEDENT]


@given(st.lists(FAILURES, min_size=1, max_size=6))
def test_a_once_tool_is_never_made_again_while_it_may_have_happened(failures):
    moves, _ = played(failures, tool("once"))
    made = len(tries(moves))
    assert all(failure.took_effect is TookEffect.NO for failure in failures[: made - 1])


@given(st.lists(FAILURES, min_size=1, max_size=6))
def test_a_once_tool_is_never_called_twice_with_the_same_arguments(failures):
    made = tries(played(failures, tool("once"))[0])
    assert all(made.count(arguments) == 1 for arguments in made)


def test_the_eighth_failure_ends_it():
    moves, given_up = played([failing(Remedy.RETRY)], tool())
    assert len(tries(moves)) == 8
    assert given_up.reason == "the limit of 8 attempts is reached"


def test_a_call_is_repaired_twice_at_most():
    schema = {"type": "object", "properties": {name: {"type": "integer", "maximum": 10} for name in "abcd"}}
    arguments = dict.fromkeys("abcd", 50)
    moves, _ = played([failing(Remedy.REPAIR)], tool(schema=lambda: schema, clamp=frozenset("abcd")), None, arguments)
    assert len(tries(moves)) <= 3


# Modes


def test_observing_changes_nothing():
    for remedy in Remedy:
        moves, given_up = played([failing(remedy)], tool(mode="observe"))
        assert len(tries(moves)) == 1
        assert given_up.reason == 'the mode is "observe"'


def test_suggesting_waits_and_changes_no_arguments():
    assert len(tries(played([failing(Remedy.RETRY)], tool(mode="suggest"))[0])) == 8
    moves, given_up = played([failing(Remedy.REPAIR)], tool(mode="suggest"))
    assert len(tries(moves)) == 1
    assert given_up.reason == 'the mode is "suggest"'


def test_repairing_says_what_it_changed_and_how_sure_it_is():
    moves, _ = played([failing(Remedy.REPAIR), None], tool())
    after = moves[-1].recovery
    assert [(each.path, each.operation, each.before, each.after) for each in after.changes] == [("k", "clamp", 50, 10)]
    assert (after.remedy, after.source) == (Remedy.REPAIR, "schema")
    assert after.confidence >= Policy().min_confidence


def test_a_repair_that_is_not_sure_enough_is_not_tried():
    moves, given_up = played([failing(Remedy.REPAIR)], tool(), Policy(min_confidence=0.99))
    assert len(tries(moves)) == 1
    assert given_up.reason == "the confidence of the repair is too low"


def test_where_nothing_mends_the_arguments_it_is_told():
    _, given_up = played([failing(Remedy.REPAIR)], tool(schema=lambda: None))
    assert given_up.reason == "no repair found for the arguments"


# What ends recovery


def test_what_its_author_calls_unrecoverable_is_never_retried():
    for remedy in (Remedy.RETRY, Remedy.REPAIR):
        moves, given_up = played([failing(remedy, recoverable=False)], tool())
        assert len(tries(moves)) == 1
        assert "declared unrecoverable" in given_up.reason


def test_a_retry_after_longer_than_the_longest_wait_ends_recovery():
    moves, given_up = played([failing(Remedy.RETRY, retry_after=120.0)], tool(), Policy(max_backoff=30))
    assert len(tries(moves)) == 1
    assert given_up.reason == "Retry-After is 120 s, above the maximum backoff of 30 s"


def test_a_retry_after_within_bounds_is_waited_for():
    moves, _ = played([failing(Remedy.RETRY, retry_after=2.0), None], tool())
    assert moves[1] == BackoffMove(Recovery(remedy=Remedy.RETRY, backoff_seconds=2.0))


def test_what_is_no_failure_is_not_recovered():
    moves, given_up = played([failing(Remedy.RETRY, type="none")], tool())
    assert len(tries(moves)) == 1
    assert given_up.reason == "the result is not a failure"


def test_one_attempt_turns_recovery_off():
    assert len(tries(played([failing(Remedy.RETRY)], tool(), Policy(attempts=1))[0])) == 1


def test_the_schema_is_asked_for_only_when_a_repair_is_wanted():
    asked: list[int] = []

    def schema() -> dict[str, Any]:
        asked.append(1)
        return SCHEMA

    played([failing(Remedy.RETRY)], tool(schema=schema))
    assert asked == []


def test_a_question_nobody_can_answer_leaves_no_precedents():
    questions = RecoveryQueries(lookup_precedents=lambda *about: [])
    moves = plan_recovery({}, tool(), Policy(), questions)
    next(moves)
    assert isinstance(moves.send(failing(Remedy.REPLAN)), QueryMove)
    with pytest.raises(StopIteration) as stop:
        moves.send(None)
    assert stop.value.value.precedents == ()


@pytest.mark.parametrize(
    ("tool", "is_told"),
    [
        (Tool(name="ship"), True),
        (Tool(name="ship", privileged=frozenset({"lane"})), False),
        (Tool(name="ship", destructive=True), False),
    ],
)
def test_precedent_of_an_argument_that_is_privileged_for_this_tool_is_not_told(tool, is_told):
    change = Change(path="lane", operation="substitute", after="slow")
    precedents = [
        Precedent(method="agent", changes=(change,), successes=3, occurrences=3),
        Precedent(method="retry", successes=1, occurrences=1),
    ]
    assert select_tellable(precedents, tool) == tuple(precedents if is_told else precedents[1:])
