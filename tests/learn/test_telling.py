"""Which learned fixes a model is told, rule by rule (LEARNING.md, "Telling")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.contract.store import DAY, hash_arguments, hash_value
from mulligan.core.argument_rejections import TextVerdict
from mulligan.core.records import HIDDEN_VALUE, RUN_SPECIFIC, Change, ChangeOperation
from mulligan.learn.fixes import (
    RETRY_ACTION,
    FixAction,
    FixRecord,
    TrialActor,
    TrialDetails,
    Vote,
    Writers,
    fix_state,
    to_fix,
)
from mulligan.learn.profiles import build_profile
from mulligan.learn.telling import Experience, FailedCall, explain_silence


def build_action(path: str, after: Any, operation: ChangeOperation = "substitute") -> FixAction:
    return FixAction(changes=(Change(path=path, operation=operation, after=after),))


SLOW = build_action("queue", "slow")
TEN = build_action("k", 10)


def build_lookup(path: str) -> FixAction:
    change = Change(path=path, operation="substitute", after=RUN_SPECIFIC)
    return FixAction(type="prerequisite", tools=("list_queues",), changes=(change,))


UNLOCK = FixAction(type="prerequisite", tools=("login",))


def build_vote(
    at: int,
    old: Any = "fast",
    *,
    successful: bool = True,
    told: bool | None = False,
    agent: str = "",
    actor: TrialActor = "caller",
    others: dict[str, Any] | None = None,
    action: FixAction | None = None,
) -> Vote:
    """Build the vote of one run. Each run has another job, unless `others` says otherwise."""
    other_arguments = {"job": at} if others is None else others
    number = float(old) if isinstance(old, int) else None
    details = TrialDetails(told, number, dict(hash_arguments(other_arguments))) if told is not None else None
    old_value = hash_value(old) if old is not None else ""
    return Vote(
        f"run_{at:03}", "local", agent, at, at // DAY, successful, actor, f"content {old} {other_arguments}",
        old_value, hash_value(other_arguments), details,
    )  # fmt: skip


def build_fix(action: FixAction, *votes: Vote, tool: str = "start", id: str = "") -> FixRecord:
    record = FixRecord(id=id or f"fix of {action}", tool=tool, fingerprint="f", action=action, key="shop:start")
    for vote in votes:
        record.add(vote)
    return record


def repeat(count: int, old: Any = "fast", start: int = 1, **fields: Any) -> list[Vote]:
    return [build_vote(at, old, **fields) for at in range(start, start + count)]


def explain(
    fix: FixRecord,
    *peers: FixRecord,
    arguments: dict[str, Any] | None = None,
    successes: Sequence[dict[str, Any]] = (),
    agent: str = "",
    verdict: TextVerdict = "rejection",
    error: str = "",
    runs: int = 0,
) -> str:
    """Return why a fix is not told for a call with these arguments, beside successful calls of the tool.

    `runs` had the failure, in whatever way they ended.
    """
    arguments = arguments or {}
    [path] = {change.path for change in fix.action.changes} or {""}
    numbers = {name: float(value) for name, value in arguments.items() if isinstance(value, int)}
    call = FailedCall(agent, dict(hash_arguments(arguments)), numbers, verdict, error)
    replaced = hash_value(arguments[path]) if path in arguments else ""
    profile = build_profile([("", success) for success in successes])
    return explain_silence(fix, [fix, *peers], call, replaced, Experience(lambda: profile, lambda: runs))


# Values


def test_value_that_the_tool_never_accepted_needs_two_of_two():
    assert explain(build_fix(SLOW, *repeat(1))) == "succeeded without advice once, which may be chance"
    assert explain(build_fix(SLOW, *repeat(2))) == ""


def test_value_that_succeeds_elsewhere_needs_five_of_five():
    successes = [{"queue": "fast", "job": 9}]
    assert explain(build_fix(SLOW, *repeat(4)), successes=successes) == (
        "succeeded without advice 4 times, which may be chance"
    )
    assert explain(build_fix(SLOW, *repeat(5)), successes=successes) == ""


def test_error_about_the_state_of_the_world_needs_five_of_five():
    assert explain(build_fix(SLOW, *repeat(4)), verdict="state") != ""
    assert explain(build_fix(SLOW, *repeat(5)), verdict="state") == ""


def test_argument_that_a_successful_call_left_to_its_default_counts_as_an_accepted_value():
    votes = repeat(5, old=None)
    fix = build_fix(SLOW, *(msgspec.structs.replace(vote, old_value=hash_value(None)) for vote in votes))
    slow = [{"job": 1, "queue": "slow"}]
    assert explain(fix, successes=slow, runs=9) == ""
    assert explain(fix, successes=[*slow, {"job": 2}], runs=9) != ""


def test_success_of_a_model_that_was_told_is_no_evidence():
    assert explain(build_fix(SLOW, *repeat(1), *repeat(9, start=10, told=True))) == (
        "succeeded without advice once, which may be chance"
    )


def test_followed_advice_leaves_a_fix_as_sure_as_it_was():
    assert explain(build_fix(SLOW, *repeat(2), *repeat(9, start=10, told=True))) == ""


@pytest.mark.parametrize("told", [True, False])
def test_failure_counts_against_a_fix_told_or_not(told):
    fix = build_fix(SLOW, *repeat(2), *repeat(1, start=10, successful=False, told=told))
    assert explain(fix) == "succeeded without advice 2 times, and once something else did or it failed"


def test_equal_trials_count_once():
    equal = repeat(9, others={"job": 1})
    assert explain(build_fix(SLOW, *equal)) == "succeeded without advice once, which may be chance"
    assert explain(build_fix(SLOW, *equal, *repeat(1, start=20))) == ""


def test_value_is_judged_for_the_old_value_that_it_replaced():
    fix = build_fix(SLOW, *repeat(2))
    assert explain(fix, arguments={"queue": "fast"}) == ""
    assert explain(fix, arguments={"queue": "fastest"}) != ""


def test_word_is_told_for_an_unseen_old_value_after_five_different_ones_if_no_other_word_is_accepted():
    def replace_words(count: int) -> FixRecord:
        return build_fix(SLOW, *(build_vote(at, f"word {at}") for at in range(count)))

    unseen, slow = {"queue": "fastest"}, [{"queue": "slow"}]
    assert explain(replace_words(4), arguments=unseen, successes=slow) != ""
    assert explain(replace_words(5), arguments=unseen, successes=slow) == ""
    assert explain(replace_words(5), arguments=unseen, successes=[*slow, {"queue": "idle"}]) == (
        "queue takes other values too"
    )


@pytest.mark.parametrize(
    ("olds", "number", "is_told"),
    [
        ((50, 70), 60, True),
        ((50, 70), 500, False),  # beyond what was seen
        ((50, 70), 5, False),  # the other side of the bound
        ((50, 50), 60, False),  # one old value
        ((50, 5), 60, False),  # both sides: no bound
        ((1, 3), 2, True),  # a lower bound
        ((2, 3), 60, False),
    ],
)
def test_number_is_a_bound_between_two_different_old_values_on_the_same_side(olds, number, is_told):
    fix = build_fix(TEN, *(build_vote(at, old) for at, old in enumerate(olds)))
    assert (explain(fix, arguments={"k": number}) == "") is is_told


@pytest.mark.parametrize(
    ("error", "is_told"), [("That is too much.", True), ("That is too few.", False), ("No.", False)]
)
def test_bound_reaches_beyond_the_old_values_if_the_error_says_in_which_direction(error, is_told):
    fix = build_fix(TEN, build_vote(1, 50), build_vote(2, 50, others={"job": "b"}))
    assert (explain(fix, arguments={"k": 500}, error=error) == "") is is_told


def test_bound_that_failed_is_told_only_while_it_mostly_succeeds():
    votes = [build_vote(1, 50), build_vote(2, 70)]
    failed = build_vote(9, 60, successful=False, told=True)
    assert explain(build_fix(TEN, *votes, failed), arguments={"k": 60}) != ""
    more_votes = [build_vote(at, 100 + at) for at in range(20, 30)]
    assert explain(build_fix(TEN, *votes, failed, *more_votes), arguments={"k": 65}) == ""


def test_bound_after_an_error_about_the_state_of_the_world_needs_five_old_values():
    votes = [build_vote(at, 50 + at) for at in range(5)]
    assert explain(build_fix(TEN, *votes[:4]), arguments={"k": 52}, verdict="state") != ""
    assert explain(build_fix(TEN, *votes), arguments={"k": 53}, verdict="state") == ""


# Several values


@pytest.mark.parametrize("operation", ["clamp", "default"])
def test_value_does_not_contradict_itself_however_it_was_found(operation):
    chosen, clamped = build_fix(TEN, *repeat(4)), build_fix(build_action("k", 10, operation), *repeat(4, start=10))
    assert explain(chosen, clamped) == ""
    assert explain(clamped, chosen) == ""


def test_value_is_not_told_where_another_one_succeeded_as_often():
    assert explain(build_fix(SLOW, *repeat(3)), build_fix(build_action("queue", "idle"), *repeat(3, start=10))) == (
        "succeeded without advice 3 times, and 3 times something else did or it failed"
    )


def test_unchanged_argument_that_separates_the_values_decides():
    acme, umbrella = {"tenant": "acme"}, {"tenant": "umbrella"}
    slow = build_fix(SLOW, *(build_vote(at, others={**acme, "job": at}) for at in (1, 2)))
    idle = build_fix(build_action("queue", "idle"), *(build_vote(at, others={**umbrella, "job": at}) for at in (3, 4)))
    assert explain(slow, idle, arguments={"queue": "fast", **acme}) == ""
    assert explain(slow, idle, arguments={"queue": "fast", **umbrella}) == (
        "with other values of tenant, something else succeeded"
    )
    assert explain(slow, idle, arguments={"queue": "fast", "tenant": "other"}) != ""
    assert explain(idle, slow, arguments={"queue": "fast", **umbrella}) == ""


def test_argument_that_differs_in_each_call_decides_nothing():
    """Each call has another job, so that no job of one value is among those of the other."""
    slow = build_fix(SLOW, *repeat(6))
    assert (
        explain(slow, build_fix(build_action("queue", "idle"), *repeat(1, start=10)), arguments={"queue": "fast"}) == ""
    )


def test_model_that_knows_a_value_does_not_contradict_its_lookup():
    lookup = build_fix(build_lookup("queue"), *repeat(2))
    known = build_fix(SLOW, *repeat(6, start=10))
    assert explain(lookup, known) == ""
    assert explain(known, lookup) == ""


def test_agents_that_differ_are_each_told_their_own_value():
    mine, theirs = build_fix(TEN, *repeat(5, agent="a")), build_fix(
        build_action("k", 20), *repeat(5, start=10, agent="b")
    )  # fmt: skip
    assert explain(mine, theirs, agent="a") == ""
    assert explain(mine, theirs, agent="b") != ""
    assert explain(mine, theirs, agent="c") != ""


def test_value_that_failed_twice_since_gives_way_to_the_one_that_succeeds_now():
    earlier = build_fix(TEN, *repeat(5), *repeat(2, start=10, successful=False))
    later = build_fix(build_action("k", 5), *repeat(5, start=20))
    assert explain(later, earlier) == ""
    assert explain(earlier, later) != ""


# Calls in between


def test_call_in_between_needs_five_of_five_without_contrast():
    assert explain(build_fix(UNLOCK, *repeat(4))) == "succeeded without advice 4 times, which may be chance"
    assert explain(build_fix(UNLOCK, *repeat(5))) == ""


def test_call_in_between_needs_two_of_two_where_the_same_call_failed_without_it():
    failed_retry = build_fix(RETRY_ACTION, *repeat(1, start=20, successful=False))
    assert explain(build_fix(UNLOCK, *repeat(1)), failed_retry) != ""
    assert explain(build_fix(UNLOCK, *repeat(2)), failed_retry) == ""


def test_call_in_between_is_not_told_where_the_same_call_succeeded_without_it():
    retry = build_fix(RETRY_ACTION, *repeat(1, start=20))
    assert explain(build_fix(UNLOCK, *repeat(9)), retry) == "the same call also succeeded without it"


def test_call_in_between_that_failed_twice_in_a_row_is_not_told():
    fix = build_fix(UNLOCK, *repeat(20), *repeat(2, start=30, successful=False, told=True))
    assert explain(fix) == "failed twice in a row"


# Forms


@pytest.mark.parametrize("told", [True, False])
def test_change_of_form_needs_two_of_two_told_or_not(told):
    cast = build_action("k", "integer", "cast")
    assert explain(build_fix(cast, build_vote(1, "5", told=told))) != ""
    assert explain(build_fix(cast, build_vote(1, "5", told=told), build_vote(2, "7", told=told))) == ""


# What is never told, however often it succeeded


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (build_action("user", "ann"), "user is a privileged argument"),
        (build_action("queue", RUN_SPECIFIC), "the value of queue is specific to its run"),
        (build_action("queue", HIDDEN_VALUE), "the value of queue is hidden at redaction level shared"),
        (build_action("overwrite", True), "switches consent on"),
        (build_action("strict", False), "switches a check off"),
        (build_action("visibility", "public"), "widens access or an audience"),
        (
            FixAction(type="prerequisite", tools=("delete_file",)),
            "needs a call that undoes, grants, removes, pays or restores: delete_file",
        ),
    ],
)
def test_privileged_values_and_decisions_are_never_told(action, reason):
    assert explain(build_fix(action, *repeat(30))) == reason


# Records of version 0.1.0


def forget_episodes(record: FixRecord) -> FixRecord:
    """Return the record as version 0.1.0 stored it."""
    return msgspec.structs.replace(record, episodes=[])


def test_record_of_0_1_0_counts_its_first_two_successes_as_untold():
    old_fix = forget_episodes(build_fix(SLOW, *repeat(7, told=None)))
    assert explain(old_fix) == ""
    assert explain(old_fix, successes=[{"queue": "fast"}]) == "succeeded without advice 2 times, which may be chance"
    assert explain(forget_episodes(build_fix(SLOW, *repeat(1, told=None)))) != ""


def test_record_of_0_1_0_that_failed_since_is_not_told():
    votes = [*repeat(7, told=None), *repeat(2, start=20, successful=False, told=None)]
    assert explain(forget_episodes(build_fix(UNLOCK, *votes))) == "failed twice in a row"
    later = repeat(1, start=30, told=None)
    assert explain(forget_episodes(build_fix(UNLOCK, *votes, *later))) != "failed twice in a row"


# Properties

ACTIONS = st.sampled_from([SLOW, TEN, UNLOCK, build_action("k", "integer", "cast")])
VOTES = st.lists(
    st.builds(
        lambda old, successful, told, agent, job, actor: (old, successful, told, agent, job, actor),
        st.sampled_from([50, 60, 5, "fast"]), st.booleans(), st.sampled_from([True, False, None]),
        st.sampled_from(["a", "b"]), st.integers(1, 4), st.sampled_from(["caller", "fix", "rule"]),
    ),
    max_size=12,
)  # fmt: skip
CALLS = st.sampled_from([{}, {"k": 50, "queue": "fast"}, {"k": 70, "queue": "new"}, {"k": 5, "job": 1, "queue": "x"}])


def build_votes(rows: Sequence[Any], start: int = 0) -> list[Vote]:
    return [
        build_vote(start + at, old, successful=successful, told=told, agent=agent, others={"job": job}, actor=actor)
        for at, (old, successful, told, agent, job, actor) in enumerate(rows)
    ]


def mark_told(vote: Vote) -> Vote:
    if not vote.successful:
        return vote
    details = vote.details or TrialDetails()
    return msgspec.structs.replace(vote, details=msgspec.structs.replace(details, has_advice=True))


@given(ACTIONS, VOTES, VOTES, CALLS, st.booleans(), st.data())
def test_told_success_never_makes_a_fix_told_and_never_promotes_it(action, rows, rival_rows, arguments, accepts, data):
    votes = build_votes(rows)
    told_votes = [mark_told(vote) if data.draw(st.booleans()) else vote for vote in votes]
    rivals = [build_fix(build_action("k", 7), *build_votes(rival_rows, start=50)), build_fix(RETRY_ACTION)]
    peers = rivals[:1] if action.changes else rivals[1:]
    successes = [{"k": 50, "queue": "fast"}] if accepts else []
    fix, told_fix = build_fix(action, *votes), build_fix(action, *told_votes)

    if explain(fix, *peers, arguments=arguments, successes=successes):
        assert explain(told_fix, *peers, arguments=arguments, successes=successes)
    states = [fix_state(record, Writers, 20)[0] for record in (fix, told_fix)]
    assert states[1] != "promoted" or states[0] == "promoted"


def test_followed_advice_promotes_no_value_and_no_call_in_between():
    for action, is_promoted in ((TEN, False), (UNLOCK, False), (build_action("k", "integer", "cast"), True)):
        votes = [build_vote(at * DAY, 50 + at, told=True) for at in range(9)]
        assert (fix_state(build_fix(action, *votes), Writers, 9 * DAY)[0] == "promoted") is is_promoted


@given(ACTIONS, VOTES, st.randoms(use_true_random=False))
def test_votes_in_any_order_give_the_same_answer(action, rows, random):
    votes = build_votes(rows)
    shuffled = list(votes)
    random.shuffle(shuffled)
    assert explain(build_fix(action, *votes)) == explain(build_fix(action, *shuffled))


# Combinations of values, and runs that ended in another way


def test_value_that_always_failed_with_another_value_is_told_for_that_one():
    votes = [build_vote(at, "counter", others={"seat": at, "tariff": "comp"}) for at in range(1, 5)]
    fix = build_fix(build_action("queue", "house"), *votes)
    successes = [{"queue": "counter", "seat": 100 + number, "tariff": "full"} for number in range(8)]
    comp = {"queue": "counter", "seat": 9, "tariff": "comp"}
    assert explain(fix, arguments=comp, successes=successes, runs=9) == ""
    assert explain(fix, arguments={**comp, "tariff": "full"}, successes=successes, runs=9) != ""
    assert explain(fix, arguments=comp, successes=[*successes, comp], runs=9) != ""


def test_value_that_is_accepted_by_chance_is_no_combination():
    votes = [build_vote(at, "fri-17", others={"client": "Costa" if at < 4 else f"client {at}"}) for at in range(1, 20)]
    fix = build_fix(build_action("queue", "sat-11"), *votes)
    successes = [{"queue": "fri-17", "client": "Fox"}]
    assert explain(fix, arguments={"queue": "fri-17", "client": "Costa"}, successes=successes, runs=40) != ""


def test_value_that_fails_only_beside_a_given_argument_is_told_where_that_is_given():
    votes = [build_vote(at, "senior", others={"member": f"M{at}"}) for at in range(1, 5)]
    fix = build_fix(SLOW, *votes)
    successes = [{"queue": "senior"} for _ in range(8)]
    assert explain(fix, arguments={"queue": "senior", "member": "M77"}, successes=successes, runs=9) == ""
    assert explain(fix, arguments={"queue": "senior"}, successes=successes, runs=9) != ""


def test_runs_that_ended_in_another_way_count_against_the_replacement_of_an_accepted_value():
    fix, successes = build_fix(SLOW, *repeat(8)), [{"queue": "fast", "job": 9}]
    assert explain(fix, successes=successes, runs=8) == ""
    assert explain(fix, successes=successes, runs=12) != ""


def test_value_for_an_argument_that_was_left_out_needs_five_of_five():
    votes = [msgspec.structs.replace(vote, old_value=hash_value(None)) for vote in repeat(5, old=None)]
    assert explain(build_fix(SLOW, *votes[:4])) != ""
    assert explain(build_fix(SLOW, *votes)) == ""


@pytest.mark.parametrize(
    ("old_numbers", "bound"),
    [([50, 20], "at most"), ([3, 4], "at least"), ([50, 50], ""), ([50, 3], ""), ([50, 20, "many"], ""), ([], "")],
    ids=["larger", "smaller", "one value", "both sides", "a text among them", "none"],
)
def test_number_is_a_bound_if_it_replaced_several_numbers_of_one_side(old_numbers, bound):
    record = build_fix(TEN, *(build_vote(at, old) for at, old in enumerate(old_numbers)))
    [change] = to_fix(record, ("proposed", "")).changes
    assert change.bound == bound


def test_failed_trials_show_no_bound():
    record = build_fix(TEN, build_vote(1, 50), build_vote(2, 20, successful=False))
    assert to_fix(record, ("proposed", "")).changes == TEN.changes


def test_smaller_value_agrees_with_a_bound_and_a_larger_one_contradicts_it():
    forty, twenty_five = build_action("speed", 40), build_action("speed", 25)
    slow = build_fix(forty, *(build_vote(at, 120, action=forty) for at in range(5)))
    slower = build_fix(twenty_five, *(build_vote(at, 120, action=twenty_five) for at in range(10, 15)))
    asked = {"speed": 120, "job": 99}
    assert explain(slow, slower, arguments=asked) == ""
    assert explain(slower, slow, arguments=asked).endswith("5 times something else did or it failed")


def test_numbers_that_name_objects_are_no_bounds():
    first, second = build_action("order_number", 21), build_action("order_number", 11)
    one = build_fix(first, *(build_vote(at, 90 + at, action=first) for at in range(5)))
    other = build_fix(second, *(build_vote(at, 90 + at, action=second) for at in range(5)))
    assert to_fix(one, ("proposed", "")).changes == first.changes
    assert explain(one, other, arguments={"order_number": 92}) != ""
