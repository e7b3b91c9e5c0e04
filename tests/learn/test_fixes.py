"""What is learned from pairs: which change, how often it worked, for whom, and when that is proof enough."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from recounting import rebuild

from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    IMPORT_PRINCIPAL,
    SCHEMA_KIND,
    FixQuery,
    ForgetRequest,
    RecallQuery,
    Retention,
    Revocation,
    Store,
    TrialReport,
    update_schema,
)
from mulligan.core import calls
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import HIDDEN_VALUE, LAST_PATH_SEGMENT, RUN_SPECIFIC, Change, Fix, Recovery, Run, Step
from mulligan.learn import fixes
from mulligan.learn.fixes import FixAction, FixRecord, OperatorDecision, TrialDetails, Vote, Writers
from mulligan.store.sqlite import MemoryStore, SqliteStore

REJECTED = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k is 10 at most", fingerprint="f-k"
)
LOCKED = Failure.of(Kind("orchestration", "precondition", Remedy.REPLAN), "the door is locked", fingerprint="f-locked")
NOW = 100 * DAY


@pytest.fixture
def store() -> Iterator[Store]:
    made = MemoryStore(lambda: NOW)
    yield made
    made.close()


numbers = itertools.count(1)


def write(
    store: Store, *events: AnyEvent, journal: str = "", principal: str = "", tenant: str = DEFAULT_TENANT
) -> None:
    store.append(tenant, events, journal or f"journal_{next(numbers)}", 1, principal)


def tried(
    id: str,
    before: Any,
    after: Any,
    *,
    worked: bool = True,
    at: int = NOW - 1000,
    tool: str = "search",
    failure: Failure = REJECTED,
    agent: str = "",
    key: str | None = "tools",
) -> list[AnyEvent]:
    """A run in which a call failed and was made again with other arguments. `key` is the module of its tool."""
    step = {"run": id, "name": tool, "started_at": at, "key": f"{key}:{tool}" if key is not None else None}
    second = Step(seq=2, call=2, arguments=after, **step) if worked else Step(
        seq=2, call=2, arguments=after, outcome="failure", failure=failure, **step)  # fmt: skip
    run = Run(id=id, started_at=at, agent=agent)
    first = Step(seq=1, call=1, arguments=before, outcome="failure", failure=failure, **step)
    ended = msgspec.structs.replace(run, ended_at=at, end_reason="finished")
    return [RunStarted(run), StepEnded(first), StepEnded(second), RunEnded(ended)]


def learn(store: Store, count: int = 1, first: int = 0, principal: str = "", journal: str = "", **how: Any) -> None:
    """Let runs try one correction, each beside another value unless they must not differ."""
    for number in range(first, first + count):
        at = how.get("at", NOW - 3 * DAY + (number % 3) * DAY - 1)
        before, after = how.get("before", {"k": 50}), how.get("after", {"k": 10})
        other = {"q": f"a{principal}{number}"} if how.get("differs", True) else {"q": "a"}
        events = {name: value for name, value in how.items() if name not in ("before", "after", "differs")}
        write(
            store,
            *tried(f"run_{principal}{number}", {**before, **other}, {**after, **other}, **{**events, "at": at}),
            principal=principal,
            journal=journal and f"{journal}{next(numbers)}",
        )


def asked(store: Store, **query: Any) -> list[Fix]:
    return store.fixes(DEFAULT_TENANT, FixQuery(**{"tool": "search", "fingerprint": "f-k", "now": NOW, **query}))


# What a change of one run is to others


@pytest.mark.parametrize(
    ("change", "closed"),
    [
        (
            Change(path="topK", operation="rename", before="topK", after="k"),
            Change(path="topK", operation="rename", after="k"),
        ),
        (Change(path="k", operation="cast", before="5", after=5), Change(path="k", operation="cast", after="integer")),
        (
            Change(path="k", operation="substitute", before=50, after=10),
            Change(path="k", operation="substitute", after=10),
        ),
        (
            Change(path="on", operation="substitute", before="yes", after=True),
            Change(path="on", operation="substitute", after=True),
        ),
        (Change(path="ids", operation="wrap", before="x1", after=["x1"]), Change(path="ids", operation="wrap")),
        (Change(path="ids", operation="parse", before="[1]", after=[1]), Change(path="ids", operation="parse")),
        (Change(path="q", operation="trim", before=" a", after="a"), Change(path="q", operation="trim")),
        (
            Change(path="unit", operation="enum", before="METRIC", after="metric"),
            Change(path="unit", operation="enum", after="metric"),
        ),
        (
            Change(path="file", operation="substitute", before="a/b.txt", after="b.txt"),
            Change(path="file", operation="trim", after=LAST_PATH_SEGMENT),
        ),
        # Another run's texts are nobody else's.
        (
            Change(path="user", operation="substitute", before="u1", after="user_8842"),
            Change(path="user", operation="substitute", after=RUN_SPECIFIC),
        ),
        # A short text may recur in other runs, a long one belongs to its run.
        (
            Change(path="q", operation="substitute", before="a", after="a question about cats"),
            Change(path="q", operation="substitute", after="a question about cats"),
        ),
        (
            Change(path="q", operation="substitute", before="a", after="a long question about cats " * 3),
            Change(path="q", operation="substitute", after=RUN_SPECIFIC),
        ),
        (
            Change(path="q", operation="substitute", before="a", after="two\nlines"),
            Change(path="q", operation="substitute", after=RUN_SPECIFIC),
        ),
        (
            Change(path="x", operation="substitute", after={"deep": 1}),
            Change(path="x", operation="substitute", after=RUN_SPECIFIC),
        ),
        # What level shared hides is unknown, not specific to its run; its type is known.
        (
            Change(path="k", operation="clamp", before="[int #0123456789ab]", after="[int #ba9876543210]"),
            Change(path="k", operation="substitute", after=HIDDEN_VALUE),
        ),
        (
            Change(path="user", operation="substitute", before="[int]", after="[str 4 chars]"),
            Change(path="user", operation="substitute", after=RUN_SPECIFIC),
        ),
        (
            Change(path="password", operation="substitute", before="x", after="[redacted password]"),
            Change(path="password", operation="substitute", after=RUN_SPECIFIC),
        ),
        (
            Change(path="k", operation="cast", before="[str 1 chars]", after="[int #ba9876543210]"),
            Change(path="k", operation="cast", after="integer"),
        ),
        (
            Change(path="k", operation="cast", before="[int]", after="[str 4 chars #ba9876543210]"),
            Change(path="k", operation="cast", after="string"),
        ),
    ],
)
def test_a_change_is_kept_without_what_belongs_to_its_run(change, closed):
    assert fixes.to_shareable(change) == closed


def test_many_changes_at_once_are_another_call_and_no_correction():
    assert fixes.to_action([Change(path=str(n), operation="drop") for n in range(5)]) is None


# Learning


def test_a_pair_becomes_a_fix_with_its_record(store):
    learn(store, 3)

    (fix,) = asked(store)

    assert (fix.type, fix.changes) == ("change", (Change(path="k", operation="substitute", after=10),))
    assert (fix.trials, fix.successes, fix.principals, fix.days) == (3, 3, 1, 3)
    assert [each.run for each in store.evidence(DEFAULT_TENANT, fix.id)] == ["run_2", "run_1", "run_0"]


def test_a_conversation_that_went_on_teaches_nothing(store):
    def said(*sizes: int) -> dict[str, Any]:
        return {
            "model": "small",
            "messages": {"count": len(sizes), "each": [{"role": "user", "chars": n} for n in sizes]},
        }

    for number in range(3):
        events = tried(f"run_{number}", said(5), said(5, 7))
        models = [
            StepEnded(msgspec.structs.replace(e.step, type="model")) if isinstance(e, StepEnded) else e for e in events
        ]
        write(store, *models)

    assert asked(store) == []


def test_what_was_tried_in_vain_counts_against_it(store):
    learn(store, 3)
    learn(store, 2, first=10, worked=False)
    (fix,) = asked(store)
    assert (fix.trials, fix.successes) == (5, 3)


def test_what_never_worked_is_no_fix(store):
    learn(store, 3, worked=False)
    assert asked(store) == []


def test_a_run_has_one_vote_however_often_it_tried(store):
    run = Run(id="run_a", started_at=NOW - 9)
    steps = []
    for seq in range(1, 20, 2):
        shared = {"run": "run_a", "name": "search", "started_at": NOW - 9}
        arguments = {"k": 50, "q": f"a{seq}"}
        steps.append(Step(seq=seq, call=seq, arguments=arguments, outcome="failure", failure=REJECTED, **shared))
        steps.append(Step(seq=seq + 1, call=seq + 1, arguments={**arguments, "k": 10}, **shared))
    ended = msgspec.structs.replace(run, end_reason="finished")
    write(store, RunStarted(run), *map(StepEnded, steps), RunEnded(ended))
    (fix,) = asked(store)
    assert (fix.trials, fix.successes) == (1, 1)
    assert len(store.evidence(DEFAULT_TENANT, fix.id, 99)) == 10


def repaired(number: int, *, k: int = 10, worked: bool = True, fix: str | None = None) -> list[AnyEvent]:
    """A run in which recovery repaired a call by a remembered fix, or by a rule of its own."""
    run = Run(id=f"run_r{number}", started_at=NOW - DAY * (number % 3))
    shared = {"run": run.id, "call": 1, "name": "search", "started_at": run.started_at, "key": "tools:search"}
    change = Change(path="k", operation="substitute", before=50, after=k)
    after = Recovery(remedy=Remedy.REPAIR, changes=(change,), fix_id=fix)
    outcome: dict[str, Any] = {} if worked else {"outcome": "failure", "failure": REJECTED}
    rejected = {"outcome": "failure", "failure": REJECTED, "arguments": {"k": 50, "q": f"r{number}"}}
    return [
        RunStarted(run),
        StepEnded(Step(seq=1, **rejected, **shared)),
        StepEnded(Step(seq=2, attempt=2, arguments={"k": k, "q": f"r{number}"}, recovery=after, **outcome, **shared)),
        RunEnded(msgspec.structs.replace(run, end_reason="finished")),
    ]


def test_success_of_an_applied_fix_is_no_vote_for_it(store):
    learn(store, 3)
    (fix,) = asked(store)
    for number in range(20):
        write(store, *repaired(number, fix=fix.id))
    (same_fix,) = asked(store)
    assert (same_fix.trials, same_fix.successes, same_fix.state) == (3, 3, "proposed")
    assert sum(report.automatic for report in store.evidence(DEFAULT_TENANT, fix.id, 99)) == 20


def test_failure_of_an_applied_fix_is_a_vote_against_it(store):
    learn(store, 9)
    (fix,) = asked(store)
    write(store, *repaired(1, worked=False, fix=fix.id))
    (same_fix,) = asked(store)
    assert (same_fix.trials, same_fix.successes) == (10, 9)


def test_repair_by_a_rule_counts_for_telling_and_not_for_promotion(store):
    for number in range(20):
        write(store, *repaired(number))
    (fix,) = asked(store)
    assert (fix.trials, fix.successes, fix.showable) == (20, 20, True)
    assert (fix.state, fix.reason) == (
        "proposed",
        "needs 5 successful runs with different arguments to be promoted (has 0; all trials of a run count once)",
    )
    assert not any(report.automatic for report in store.evidence(DEFAULT_TENANT, fix.id, 99))


@pytest.mark.parametrize("end", ["raised", "abandoned"])
def test_run_that_missed_its_goal_proves_nothing(store, end):
    for number in range(3):
        *events, ended = tried(f"run_{number}", {"k": 50, "q": f"a{number}"}, {"k": 10, "q": f"a{number}"})
        write(store, *events, RunEnded(msgspec.structs.replace(ended.run, end_reason=end)))
    assert asked(store) == []


def test_run_that_goes_on_teaches_nothing_of_which_a_later_call_may_be_the_disproof(store):
    events = tried("run_a", {"mode": "fast", "q": "a"}, {"mode": "slow", "q": "a"})
    write(store, *events[:-1])
    assert asked(store) == []
    write(store, events[-1])
    assert asked(store)[0].successes == 1


def test_model_reads_an_approved_fix_however_little_evidence_it_has(store):
    learn(store, 1)
    (fix,) = asked(store)
    assert not fix.showable
    store.decide(DEFAULT_TENANT, fix.id, approved=True, at=NOW)
    assert asked(store)[0].showable


def test_loop_over_items_teaches_nothing(store):
    *events, ended = tried("run_a", {"mode": "fast", "q": "a"}, {"mode": "slow", "q": "a"})
    another = Step(run="run_a", seq=3, call=3, name="search", key="tools:search", arguments={"mode": "safe", "q": "a"})
    write(store, *events, StepEnded(another), ended)
    assert asked(store) == []


def test_reissue_that_fails_otherwise_is_no_vote_against_what_was_changed(store):
    learn(store, 2)
    first, failed, second, ended = tried("run_x", {"k": 50, "q": "x"}, {"k": 10, "q": "x"}, worked=False)
    assert isinstance(second, StepEnded)
    write(store, first, failed, StepEnded(msgspec.structs.replace(second.step, failure=LOCKED)), ended)
    assert (asked(store)[0].trials, asked(store)[0].successes) == (2, 2)


def test_batches_teach_the_same_however_they_are_cut(tmp_path):
    events = [
        event
        for number in range(3)
        for event in tried(f"run_{number}", {"k": 50, "q": "a"}, {"k": 10, "q": "a"}, worked=number != 1)
    ]
    whole, cut = SqliteStore(tmp_path / "whole.db", lambda: NOW), SqliteStore(tmp_path / "cut.db", lambda: NOW)
    write(whole, *events)
    for event in events:
        write(cut, event)
    assert asked(whole) == asked(cut) != []
    rebuild(cut, DEFAULT_TENANT)
    assert asked(whole) == asked(cut)
    whole.close()
    cut.close()


def test_a_run_that_is_forgotten_has_taught_nothing(store):
    learn(store, 2)
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_0"))
    assert asked(store)[0].trials == 1
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_1"))
    assert asked(store) == []


def test_a_tool_that_is_forgotten_has_no_fixes(store):
    learn(store, 2)
    store.forget(DEFAULT_TENANT, ForgetRequest(tool="search"))
    assert store.fixes(DEFAULT_TENANT, FixQuery(now=NOW)) == []


def test_what_pruned_runs_have_taught_is_forgotten_with_them(store):
    learn(store, 2)
    (fix,) = asked(store)
    store.decide(DEFAULT_TENANT, fix.id, approved=True, at=NOW)
    store.prune(DEFAULT_TENANT, Retention(keep_failures=0, keep_successes=0), NOW + 1)
    assert asked(store)[0].trials == 2
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_0"))
    assert asked(store)[0].trials == 1
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_1"))
    assert asked(store) == []
    learn(store, 1, first=7)
    assert asked(store)[0].state == "proposed"


def test_what_pruned_and_reported_runs_say_of_a_tool_is_forgotten_with_it(store):
    learn(store, 2)
    (fix,) = asked(store)
    store.record_outcome(DEFAULT_TENANT, fix.id, TrialReport(run="elsewhere", principal="local", at=NOW))
    store.prune(DEFAULT_TENANT, Retention(keep_failures=0, keep_successes=0), NOW + 1)
    store.forget(DEFAULT_TENANT, ForgetRequest(tool="search"))
    assert store.fixes(DEFAULT_TENANT, FixQuery(now=NOW)) == []


def test_a_text_is_forgotten_also_in_what_was_learned(store):
    unknown = Failure.of(REJECTED.kind, "x is not a valid mode", fingerprint="f-k")
    before, after = {"mode": "x", "q": "a"}, {"mode": "confidential", "q": "a"}
    for number in range(2):
        write(store, *tried(f"run_{number}", before, after, failure=unknown, agent="the zebra agent"))
    store.prune(DEFAULT_TENANT, Retention(keep_failures=0, keep_successes=0), NOW + 1)
    assert asked(store)[0].changes[0].after == "confidential"
    store.forget(DEFAULT_TENANT, ForgetRequest(text="confidential"))
    assert asked(store) == []


# Recall


def test_a_wording_never_met_finds_the_fixes_of_those_like_it(store):
    learn(store, 3)
    (fix,) = asked(store, fingerprint="f-other", text="k is <n> at the most")
    assert 0.6 < fix.similarity < 1
    assert asked(store, fingerprint="f-other", text="the disk is full") == []
    assert asked(store, tool="other", fingerprint="f-other", text="k is <n> at the most") == []


def test_a_wording_like_it_of_another_kind_is_another_failure(store):
    learn(store, 3)
    about = {"fingerprint": "f-other", "text": "k is <n> at the most"}
    assert len(asked(store, kind="tool/invalid_arguments", **about)) == 1
    assert asked(store, kind="tool/not_found", **about) == []


def test_what_helped_once_against_something_like_it_is_chance(store):
    learn(store, 1)
    assert asked(store, fingerprint="f-other", text="k is <n> at the most") == []


def test_what_helped_the_same_agent_comes_first(store):
    learn(store, 3, agent="x")
    write(store, *tried("run_y", {"k": 50, "q": "a"}, {"k": 7, "q": "a"}, agent="y"))
    assert [fix.changes[0].after for fix in asked(store, agent="y")] == [7, 10]
    assert [fix.changes[0].after for fix in asked(store)] == [10, 7]


def test_tenants_never_meet(store):
    write(store, *tried("run_a", {"k": 50, "q": "a"}, {"k": 10, "q": "a"}), tenant="theirs")
    assert asked(store) == []
    assert len(store.fixes("theirs", FixQuery(now=NOW))) == 1


# Proof (SAFETY S3)


def test_one_user_needs_three_runs_on_two_days_and_seven_of_seven(store):
    learn(store, 6)
    assert asked(store)[0].state == "proposed"
    learn(store, 1, first=6)
    assert asked(store)[0].state == "promoted"


def test_equal_trials_are_one_proof_however_many_runs_repeat_them(store):
    learn(store, 50, differs=False)
    (fix,) = asked(store)
    assert (fix.trials, fix.successes) == (50, 50)
    assert (fix.state, fix.reason) == (
        "proposed",
        "needs 5 successful runs with different arguments to be promoted (has 1; all trials of a run count once)",
    )


def test_equal_trials_of_which_one_failed_prove_nothing(store):
    learn(store, 9)
    assert asked(store)[0].state == "promoted"
    events = tried("run_again", {"k": 50, "q": "a0"}, {"k": 10, "q": "a0"}, worked=False, at=NOW - 5)
    write(store, *events)
    assert asked(store)[0].state == "proposed"


def test_tool_known_by_a_bare_name_only_has_no_promoted_fix(store):
    learn(store, 50, key=None)
    (fix,) = asked(store)
    assert (fix.state, fix.reason, fix.key) == ("proposed", "the tool is identified by its name only", "")


def test_server_is_identity_enough_for_promotion(store):
    for number in range(9):
        at = NOW - 3 * DAY + (number % 3) * DAY
        events = tried(f"run_{number}", {"k": "5", "q": f"{number}"}, {"k": 5, "q": f"{number}"}, at=at, key=None)
        write(
            store,
            *(
                StepEnded(msgspec.structs.replace(event.step, server="files"))
                if isinstance(event, StepEnded)
                else event
                for event in events
            ),
        )
    (fix,) = asked(store)
    assert (fix.state, fix.key) == ("promoted", "files/search")


def test_fixes_of_another_tool_of_the_same_name_are_not_asked(store):
    learn(store, 3)
    learn(store, 2, first=20, key="others", after={"k": 7})
    assert [fix.changes[0].after for fix in asked(store, key="tools:search")] == [10]
    assert [fix.changes[0].after for fix in asked(store, key="others:search")] == [7]
    assert {fix.changes[0].after for fix in asked(store)} == {7, 10}


def test_one_day_is_no_proof(store):
    learn(store, 9, at=NOW - 10)
    assert asked(store)[0].state == "proposed"


def test_imported_logs_prove_nothing_by_themselves(store):
    learn(store, 50, journal="import:")
    (fix,) = asked(store)
    assert (fix.state, fix.imported) == ("proposed", 50)
    assert fix.reason


def test_where_several_write_one_of_them_proves_nothing(store):
    learn(store, 1, principal="honest", tool="other")
    learn(store, 50, principal="mallory")
    assert asked(store)[0].state == "proposed"
    learn(store, 1, first=60, principal="honest")
    assert asked(store)[0].state == "promoted"


def test_two_failures_in_a_row_demote_it(store):
    learn(store, 40)
    for number in range(2):
        write(store, *tried(f"run_bad{number}", {"k": 50, "q": "a"}, {"k": 10, "q": "a"}, worked=False, at=NOW - 5))
    (fix,) = asked(store)
    assert fix.state == "demoted"


def test_thirty_days_without_use_expire_it(store):
    learn(store, 9)
    assert asked(store, now=NOW + 31 * DAY)[0].state == "expired"


def test_an_operator_approves_and_takes_back(store):
    learn(store, 1)
    (fix,) = asked(store)
    assert store.decide(DEFAULT_TENANT, fix.id, approved=True, at=NOW)
    assert asked(store)[0].state == "approved"
    assert store.decide(DEFAULT_TENANT, fix.id, approved=False, at=NOW)
    assert asked(store) == []
    assert asked(store, fingerprint=None)[0].state == "revoked"
    assert not store.decide(DEFAULT_TENANT, "fix_none", approved=True, at=NOW)


def test_a_fix_that_is_used_too_often_at_once_waits_for_an_operator():
    tally = FixRecord(id="fix_1", tool="t", fingerprint="f", action=FixAction())
    for number in range(21):
        tally.add(Vote(f"run_{number}", "local", "", NOW - 60_000 + number, NOW // DAY, True, "fix"))
    assert fixes.fix_state(tally, Writers, NOW)[0] == "paused"
    assert fixes.fix_state(tally, Writers, NOW, OperatorDecision(approved=NOW))[0] == "approved"


def test_a_fix_that_fails_too_often_later_waits_for_an_operator():
    tally = FixRecord(id="fix_1", tool="t", fingerprint="f", action=FixAction())
    for number in range(40):
        tally.add(Vote(f"run_{number}", "local", "", number * DAY, number, number < 20 or number % 3 != 0, "fix"))
    assert fixes.fix_state(tally, Writers, 40 * DAY)[0] == "paused"


def met(store: Store, digest: str, at: int) -> None:
    """The tool is called, and its schema is this."""
    noted = update_schema(store.get(DEFAULT_TENANT, SCHEMA_KIND, "search"), digest, at)
    if noted is not None:
        store.put(DEFAULT_TENANT, SCHEMA_KIND, "search", noted)


def test_the_first_schema_that_is_met_changes_nothing(store):
    learn(store, 9)
    met(store, "one", NOW)
    assert asked(store, schema="one")[0].state == "promoted"


def test_a_list_says_which_agents_see_a_value_that_others_contradict(store):
    learn(store, 9, agent="x")
    learn(store, 9, first=20, agent="y", after={"k": "all"})
    listed = {fix.changes[0].after: fix for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=NOW))}
    contradiction = "succeeded without advice 9 times, and 9 times something else did or it failed"
    assert [(fix.showable, fix.is_partly_shown) for fix in listed.values()] == [(False, True)] * 2
    assert {value: fix.hidden_reason for value, fix in listed.items()} == {
        10: f"shown only to x: {contradiction}",
        "all": f"shown only to y: {contradiction}",
    }
    assert [fix.changes[0].after for fix in asked(store, agent="x", showable=True)] == [10]


def test_a_changed_schema_demotes_what_was_proven_before(store):
    met(store, "one", 0)
    learn(store, 9)
    met(store, "two", NOW)
    (fix,) = asked(store, schema="two")
    assert (fix.state, fix.reason) == ("demoted", "the tool's schema has changed since then")
    assert (fix.trials, fix.successes) == (9, 9)
    (listed,) = store.fixes(DEFAULT_TENANT, FixQuery(now=NOW))
    assert (listed.state, listed.showable, listed.hidden_reason) == ("demoted", False, "its state is demoted")
    assert asked(store, schema="two", showable=True) == []


def test_what_is_proven_anew_under_the_new_schema_is_promoted_again(store):
    met(store, "one", 0)
    learn(store, 9)
    met(store, "two", NOW - DAY)
    learn(store, 6, first=20, at=NOW - 5)
    assert asked(store)[0].state == "demoted"
    learn(store, 1, first=30, at=NOW + 5)
    assert asked(store, now=NOW + DAY)[0].state == "promoted"


def test_after_a_change_of_schema_one_of_many_proves_nothing_alone(store):
    met(store, "one", 0)
    learn(store, 5, principal="ann")
    learn(store, 5, principal="bob")
    assert asked(store)[0].state == "promoted"
    met(store, "two", NOW - DAY)
    learn(store, 30, first=50, principal="mallory", at=NOW - 5)
    assert asked(store)[0].state == "demoted"


def test_an_approval_holds_for_the_schema_that_it_was_given_for(store):
    met(store, "one", 0)
    learn(store, 1)
    (fix,) = asked(store)
    store.decide(DEFAULT_TENANT, fix.id, approved=True, at=NOW - 10)
    assert asked(store)[0].state == "approved"
    met(store, "two", NOW)
    assert asked(store)[0].state == "demoted"
    store.decide(DEFAULT_TENANT, fix.id, approved=True, at=NOW)
    assert asked(store)[0].state == "approved"


def test_whoever_asks_with_another_schema_is_told_that_nothing_is_proven_for_it(store):
    met(store, "one", 0)
    learn(store, 9)
    assert asked(store, schema="two")[0].state == "demoted"
    assert asked(store, schema="one")[0].state == "promoted"


def test_a_recipe_is_demoted_by_a_changed_schema_as_well(store):
    for number in range(9):
        at = NOW - 3 * DAY + (number % 3) * DAY
        shared = {"run": f"run_{number}", "started_at": at}
        door = {"name": "open", "key": "tools:open", "arguments": {"door": number}}
        write(
            store,
            RunStarted(Run(id=f"run_{number}", started_at=at)),
            StepEnded(Step(seq=1, call=1, outcome="failure", failure=LOCKED, **door, **shared)),
            StepEnded(Step(seq=2, call=2, name="unlock", arguments={}, **shared)),
            StepEnded(Step(seq=3, call=3, **door, **shared)),
        )
    query = FixQuery(tool="open", fingerprint="f-locked", now=NOW)
    assert store.fixes(DEFAULT_TENANT, query)[0].state == "promoted"
    store.put(
        DEFAULT_TENANT,
        SCHEMA_KIND,
        "open",
        update_schema(update_schema(None, "one", 0), "two", NOW),
    )
    (fix,) = store.fixes(DEFAULT_TENANT, query)
    assert (fix.type, fix.state) == ("prerequisite", "demoted")


def test_a_run_that_is_asked_about_teaches_nothing_about_itself(store):
    learn(store, 2)
    assert asked(store, excluded_run="run_0")[0].trials == 1
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_1"))
    assert asked(store, excluded_run="run_0") == []


def test_seven_of_seven_are_sure_enough():
    assert calls.wilson_lower_bound(6, 6) < 0.8 <= calls.wilson_lower_bound(7, 7)


def test_somebody_elses_trial_can_be_reported(store):
    learn(store, 1)
    (fix,) = asked(store)
    assert store.record_outcome(
        DEFAULT_TENANT, fix.id, TrialReport(run="elsewhere", principal="local", at=NOW, successful=False)
    )
    assert (asked(store)[0].trials, asked(store)[0].successes) == (2, 1)
    assert not store.record_outcome(DEFAULT_TENANT, "fix_none", TrialReport(run="elsewhere", principal="local"))


def test_a_trial_that_is_reported_before_its_run_is_stored_counts_once(store):
    learn(store, 1)
    (fix,) = asked(store)
    store.record_outcome(DEFAULT_TENANT, fix.id, TrialReport(run="run_1", principal="local", at=NOW - DAY))
    learn(store, 1, first=1)
    assert (asked(store)[0].trials, asked(store)[0].successes) == (2, 2)


def test_who_only_reports_is_counted_among_those_who_must_agree(store):
    for number in range(9):
        write(store, RunStarted(Run(id=f"run_h{number}")), principal=f"honest{number}")
    learn(store, 9, journal="import:")
    (fix,) = asked(store)
    for number in range(2):  # of eleven, three must have seen it work
        assert store.record_outcome(
            DEFAULT_TENANT, fix.id, TrialReport(run=f"run_m{number}", principal=f"mallory{number}", at=NOW)
        )
    assert asked(store)[0].state == "proposed"


def test_who_is_too_few_now_is_too_few_after_thirty_days_of_silence(store):
    for number in range(10):
        write(store, RunStarted(Run(id=f"run_h{number}")), principal=f"honest{number}")
    learn(store, 4, principal="mallory1")
    learn(store, 4, principal="mallory2")
    assert asked(store)[0].state == "proposed"
    quiet = Writers(total=12, active=frozenset(f"honest{number}" for number in range(10)))
    assert (quiet.required_confirmations(()), quiet.required_confirmations({"mallory1", "mallory2"})) == (2, 3)


# Episodes

EPISODE_ACTIONS = st.sampled_from(
    [
        FixAction(changes=(Change(path="k", operation="substitute", after=10),)),
        FixAction(type="prerequisite", tools=("a",)),
    ]
)
DETAILS = st.none() | st.builds(
    TrialDetails, has_advice=st.booleans(), number=st.none() | st.sampled_from([1.0, 2.0]),
    conditions=st.dictionaries(st.sampled_from("pq"), st.sampled_from("xy"), max_size=2),
)  # fmt: skip
EPISODE_VOTES = st.lists(
    st.builds(
        Vote, run=st.sampled_from([f"run_{number}" for number in range(40)]), principal=st.sampled_from(["ann", "bob"]),
        agent=st.sampled_from("xy"), at=st.integers(0, 5), day=st.just(0), successful=st.booleans(),
        actor=st.sampled_from(["caller", "rule"]), content=st.sampled_from("cd"),
        old_value=st.sampled_from(["", "m", "n"]), other_values=st.sampled_from("op"), details=DETAILS,
    ),
    max_size=50, unique_by=lambda vote: (vote.run, vote.principal),
)  # fmt: skip


def count_votes(action: FixAction, votes: Iterable[Vote]) -> FixRecord:
    return FixRecord(id="fix_a", tool="t", fingerprint="f", action=action).recount(votes)


@given(EPISODE_ACTIONS, EPISODE_VOTES, st.randoms(use_true_random=False))
def test_votes_in_any_order_give_the_same_record(action, votes, random):
    shuffled = list(votes)
    random.shuffle(shuffled)
    assert count_votes(action, shuffled) == count_votes(action, votes)


@given(EPISODE_ACTIONS, EPISODE_VOTES)
def test_only_the_first_successes_are_untold_where_it_is_unknown(action, votes):
    unknown = [msgspec.structs.replace(vote, details=None) for vote in votes[: fixes.MAX_EPISODES]]
    evidence = [episode for episode in fixes.list_episodes(count_votes(action, unknown)) if episode.is_evidence]
    success_count = sum(vote.successful for vote in unknown)
    assert len(evidence) == min(fixes.UNADVISED_SUCCESSES, success_count)


@given(EPISODE_ACTIONS, EPISODE_VOTES.map(lambda votes: votes[:12]), EPISODE_VOTES.map(lambda votes: votes[:12]))
def test_record_of_0_1_0_and_later_votes_have_the_episodes_of_all_votes(action, earlier_votes, later_votes):
    """It is known what was replaced, what failed and what was told since then. Of the time before, two are untold."""
    earlier_votes = [msgspec.structs.replace(vote, details=None) for vote in earlier_votes]
    later_votes = [msgspec.structs.replace(vote, run=f"later {vote.run}", at=vote.at + 9) for vote in later_votes]
    record = count_votes(action, earlier_votes)
    record.episodes = []  # as 0.1.0 stored it
    for vote in later_votes:
        record.add(vote)
    recount = count_votes(action, [*earlier_votes, *later_votes])

    def describe(record: FixRecord) -> Any:
        episodes = fixes.list_episodes(record)
        return (
            [episode for episode in record.episodes if episode.run.startswith("later")],
            {episode.old_value for episode in episodes if episode.successful and episode.old_value},
            {episode.run for episode in episodes if not episode.successful},
        )

    assert describe(record) == describe(recount)
    evidence = [episode for episode in fixes.list_episodes(record) if episode.is_evidence]
    assert sum(not episode.run.startswith("later") for episode in evidence) <= fixes.UNADVISED_SUCCESSES


def test_of_equal_trials_of_a_run_the_first_decides_whether_it_was_told():
    first, second = (
        Vote("run_a", "local", "", at, 0, True, "caller", "c", "old", "other", TrialDetails(has_advice=told))
        for at, told in ((1, False), (2, True))
    )
    for votes in ([(1, first), (2, second)], [(2, second), (1, first)]):
        (vote,) = fixes.select_counted_votes(votes)
        assert vote.also_replaced == (("old", "other", TrialDetails(has_advice=False)),)


# Revocation


def test_a_revocation_of_a_principal_covers_the_logs_it_imported(store):
    learn(store, 9, principal="import:mallory")
    assert asked(store)[0].imported == 9
    store.revoke(DEFAULT_TENANT, Revocation(principal="mallory"))
    assert asked(store) == []
    learn(store, 1, first=9, principal="import:mallory")
    assert asked(store) == []


def test_after_a_revocation_nothing_rests_on_what_was_revoked(store):
    learn(store, 4, principal="honest")
    learn(store, 4, principal="mallory")
    told = store.revoke(DEFAULT_TENANT, Revocation(principal="mallory"))
    assert (told.runs, told.votes, told.fixes) == (4, 4, 1)
    assert asked(store)[0].trials == 4
    learn(store, 4, first=20, principal="mallory")
    assert asked(store)[0].trials == 4
    (known,) = store.recall(DEFAULT_TENANT, RecallQuery(tool="search", fingerprint="f-k"))
    assert (known.successes, known.occurrences) == (4, 4)


def test_a_revocation_outlives_counting_anew(tmp_path):
    store = SqliteStore(tmp_path / "a.db", lambda: NOW)
    learn(store, 4)
    store.revoke(DEFAULT_TENANT, Revocation(tool="search", until=NOW))
    rebuild(store, DEFAULT_TENANT)
    assert asked(store) == []
    store.close()


PRINCIPALS = ("ann", "bob", "cid", "mallory")
RUNS = st.tuples(
    st.sampled_from(PRINCIPALS), st.sampled_from([10, 7]), st.booleans(), st.sampled_from(["search", "lookup"])
)


def taught(store: Store, sent: list[tuple[int, tuple[str, int, bool, str]]]) -> None:
    for number, (who, k, worked, tool) in sent:
        at = NOW - 4 * DAY + (number % 4) * DAY
        events = tried(f"run_{number}", {"k": 50, "q": "a"}, {"k": k, "q": "a"}, worked=worked, at=at, tool=tool)
        write(store, *events, principal=who)


def answers(store: Store) -> Any:
    return (
        store.fixes(DEFAULT_TENANT, FixQuery(now=NOW, limit=99)),
        [store.fixes(DEFAULT_TENANT, FixQuery(tool=tool, fingerprint="f-k", now=NOW)) for tool in ("search", "lookup")],
        [store.recall(DEFAULT_TENANT, RecallQuery(tool=tool, fingerprint="f-k")) for tool in ("search", "lookup")],
    )


@settings(max_examples=40, deadline=None)
@given(
    sent=st.lists(RUNS, max_size=12),
    what=st.sampled_from(
        [
            Revocation(principal="mallory"),
            Revocation(tool="search", until=NOW),
            Revocation(since=NOW - 2 * DAY, until=NOW),
            Revocation(principal="ann", tool="lookup", until=NOW),
        ]
    ),
)
def test_after_revoke_every_answer_is_that_of_a_store_that_never_saw_it(sent, what):
    numbered = list(enumerate(sent))
    store, innocent = MemoryStore(lambda: NOW), MemoryStore(lambda: NOW)
    taught(store, numbered)
    store.revoke(DEFAULT_TENANT, what)
    rest = [
        (number, each)
        for number, each in numbered
        if not fixes.is_revoked(what, each[0], each[3], NOW - 4 * DAY + (number % 4) * DAY)
    ]
    taught(innocent, rest)
    for who in {each[0] for _, each in numbered} - {each[0] for _, each in rest}:
        if what.principal != who or what.tool is not None:  # they write here all the same
            write(innocent, RunStarted(Run(id=f"run_of_{who}", started_at=NOW - 9 * DAY)), principal=who)
    assert answers(store) == answers(innocent)
    store.close()
    innocent.close()


TOOLS = ("search", "lookup")
REPEATED, BARE, APPLIED = 5, 4, 3
"""Values of `k` that everybody corrects to: always in one trial, for a tool of a bare name, by applying the fix."""
UNPROVEN = (10, REPEATED, BARE, APPLIED)


class Adversary(RuleBasedStateMachine):
    """One who sends what they like, as fewer principals than are needed: nothing of theirs is ever promoted.

    Nor does everybody together promote by equal trials, by applying a fix, or for a tool of a bare name.
    In the end everything of theirs is revoked. Then, and ever after, the store answers as one that never saw it.
    """

    @initialize(honest=st.integers(1, 12))
    def begin(self, honest):
        self.now = NOW
        self.count = 0
        self.is_revoked = False
        self.store, self.innocent = MemoryStore(lambda: self.now), MemoryStore(lambda: self.now)
        self.needed = max(2, -(-(honest + 1) // 5))
        self.honest = [f"honest{number}" for number in range(honest)]
        self.others_work()
        self.mine = [f"mallory{number}" for number in range(max(1, self.needed - 1))]
        self.almost_proofs = 0
        for who in self.mine:
            write(self.store, RunStarted(Run(id=f"run_{who}")), principal=who)

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.innocent.close()

    def others_work(self):
        """They vote for nothing of this."""
        for who in self.honest:
            for store in (self.store, self.innocent):
                write(store, RunStarted(Run(id=f"run_{who}")), principal=who)

    def sent(self, worked, tool, k, mine):
        self.count += 1
        at = self.now - (self.count % 5) * DAY
        sort = "x" if mine else "h"
        before, after = {"k": 50, "q": f"a{self.count}"}, {"k": k, "q": f"a{self.count}"}
        return tried(f"run_{sort}{self.count}", before, after, worked=worked, at=at, tool=tool)

    def write_as(self, who, events):
        """Write what one of all principals sends; the innocent store never sees those of the adversary."""
        write(self.store, *events, principal=who)
        if who in self.honest:
            write(self.innocent, *events, principal=who)

    @rule(who=st.integers(0, 9), count=st.integers(1, 8), worked=st.booleans(), tool=st.sampled_from(TOOLS))
    def vote(self, who, count, worked, tool):
        for _ in range(count):
            write(self.store, *self.sent(worked, tool, 10, mine=True), principal=self.mine[who % len(self.mine)])

    @rule(who=st.integers(0, 9), worked=st.booleans(), k=st.sampled_from([7, 8, 9]), tool=st.sampled_from(TOOLS))
    def somebody_honest_votes(self, who, worked, k, tool):
        """For something else."""
        events = self.sent(worked, tool, k, mine=False)
        for store in (self.store, self.innocent):
            write(store, *events, principal=self.honest[who % len(self.honest)])

    @rule(worked=st.booleans())
    def everybody_repeats_one_trial(self, worked):
        """Equal arguments before and after: one proof, whoever sends it and however often."""
        for who in (*self.honest[:3], *self.mine):
            self.count += 1
            run, at = f"run_e{self.count}", self.now - (self.count % 5) * DAY
            self.write_as(who, tried(run, {"k": 50, "q": "same"}, {"k": REPEATED, "q": "same"}, worked=worked, at=at))

    @rule()
    def everybody_uses_a_tool_of_a_bare_name(self):
        for who in (*self.honest[:3], *self.mine):
            self.count += 1
            before, after = {"k": 50, "q": f"a{self.count}"}, {"k": BARE, "q": f"a{self.count}"}
            at = self.now - (self.count % 5) * DAY
            self.write_as(who, tried(f"run_b{self.count}", before, after, at=at, key=None))

    @precondition(lambda self: self.almost_proofs < fixes.MIN_SUCCESSES - 1)
    @rule(who=st.integers(0, 9))
    def somebody_honest_almost_proves(self, who):
        self.almost_proofs += 1
        self.write_as(self.honest[who % len(self.honest)], self.sent(True, "search", APPLIED, mine=False))

    @rule(count=st.integers(1, 4))
    def everybody_applies_what_is_almost_proven(self, count):
        """The success of an applied fix is no vote for it, whether it was recorded or reported."""
        for who in (*self.honest[:2], *self.mine[:1]) * count:
            self.count += 1
            self.write_as(who, repaired(self.count, k=APPLIED, fix="fix_applied"))
        for store in (self.store, self.innocent):
            for fix in store.fixes(DEFAULT_TENANT, FixQuery(now=self.now, limit=99)):
                if fix.changes[0].after == APPLIED:
                    self.count += 1
                    report = TrialReport(run=f"u{self.count}", principal=self.honest[0], at=self.now, automatic=True)
                    store.record_outcome(DEFAULT_TENANT, fix.id, report)

    @precondition(lambda self: not self.is_revoked)
    @rule(count=st.integers(1, 8))
    def imports(self, count):
        for _ in range(count):
            write(self.store, *self.sent(True, "search", 10, mine=True), journal=f"import:{next(numbers)}")

    @rule(who=st.integers(0, 9))
    def reports(self, who):
        for fix in self.store.fixes(DEFAULT_TENANT, FixQuery(now=self.now)):
            if fix.changes[0].after == 10:
                name = self.mine[who % len(self.mine)]
                self.count += 1
                report = TrialReport(run=f"r{self.count}", principal=name, at=self.now, successful=True)
                self.store.record_outcome(DEFAULT_TENANT, fix.id, report)

    @rule(days=st.integers(1, 40))
    def waits(self, days):
        self.now += days * DAY
        self.others_work()

    @rule()
    def asks_from_elsewhere(self):
        assert self.store.fixes("another tenant", FixQuery(now=self.now)) == []
        assert self.store.recall("another tenant", RecallQuery(tool="search", fingerprint="f-k")) == []

    @rule()
    def is_found_out(self):
        for who in (*self.mine, IMPORT_PRINCIPAL):
            self.store.revoke(DEFAULT_TENANT, Revocation(principal=who))
        self.is_revoked = True

    def answers(self, store):
        return [
            store.fixes(DEFAULT_TENANT, FixQuery(now=self.now, limit=99)),
            *(store.fixes(DEFAULT_TENANT, FixQuery(tool=tool, fingerprint="f-k", now=self.now)) for tool in TOOLS),
            *(store.recall(DEFAULT_TENANT, RecallQuery(tool=tool, fingerprint="f-k")) for tool in TOOLS),
        ]

    @invariant()
    def nothing_of_theirs_is_promoted(self):
        if hasattr(self, "store"):
            listed = self.store.fixes(DEFAULT_TENANT, FixQuery(now=self.now, limit=99))
            theirs = [fix for fix in listed if fix.changes and fix.changes[0].after in UNPROVEN]
            assert all(fix.state not in ("promoted", "approved") for fix in theirs)

    @invariant()
    def what_is_revoked_was_never_there(self):
        if hasattr(self, "store") and self.is_revoked:
            assert self.answers(self.store) == self.answers(self.innocent)


TestAdversary = Adversary.TestCase
TestAdversary.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
