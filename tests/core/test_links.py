"""Recovery links: which later call recovers a failed one, and what a run's status is (LEARNING.md, "Linking")."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import closing, nullcontext
from contextvars import ContextVar, copy_context
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mulligan.api import Mulligan
from mulligan.contract.store import DEFAULT_TENANT, FixQuery
from mulligan.core import calls
from mulligan.core.argument_comparison import compact_arguments
from mulligan.core.call_facts import LOGGED, SAME_ARGUMENTS_ONLY, CallFacts
from mulligan.core.calls import TOOL_NAME_PATH, Call, group_attempts, is_same_json
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.links import MAX_OPEN_FAILURES, RunProgress, differs_in
from mulligan.core.records import Change, History, Link, Recovery, Run, Step
from mulligan.core.run_links import attach_links, derive_status, find_refuted, judge_calls, link_recoveries
from mulligan.learn.fixes import find_trials
from mulligan.store.urls import open_store

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f-timeout")
REJECTED = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "this is not supported", fingerprint="f-rejected"
)
UNKNOWN_TOOL = Failure.of(
    Kind("tool", "unknown_tool", Remedy.REPLAN, TookEffect.NO), "no such tool", fingerprint="f-unknown"
)
NOT_LOGGED_IN = Failure.of(Kind("tool", "precondition", Remedy.REPLAN, TookEffect.NO), "log in", fingerprint="f-login")
USER_REJECTED = Failure.of(Kind("none", "user_rejected"), "the user said no")
BROKEN = Failure.of(Kind("tool", "execution_failed", Remedy.REPLAN), "it broke", fingerprint="f-broken")
PROGRAM = CallFacts(failures_before=0, task=(1,), knows_program=True)


def fail(message: str, code: str = "invalid_arguments", remedy: Remedy = Remedy.REPAIR) -> Failure:
    """Make a failure with the text of an error."""
    return Failure.of(Kind("tool", code, remedy), message, fingerprint=f"f-{code}")


def step(seq: int, call: int | None = None, attempt: int = 1, *, failure: Failure | None = None, **fields: Any) -> Step:
    outcome = fields.pop("outcome", "success" if failure is None else "failure")
    return Step(
        run="run_a",
        seq=seq,
        call=call if call is not None else seq,
        attempt=attempt,
        name=fields.pop("name", "search"),
        outcome=outcome,
        failure=failure,
        **fields,
    )


def get_status(steps: Sequence[Step], run: Run | None = None) -> str:
    return derive_status(run or Run(id="run_a", end_reason="finished"), steps, link_recoveries(steps))


class LiveRun:
    """A run of a program, judged call by call as the recording process judges it."""

    def __init__(self) -> None:
        self.progress = RunProgress()
        self.steps: list[Step] = []
        self.links: list[Link] = []

    def begin_call(self, **facts: Any) -> CallFacts:
        """Return what is known of a call that begins now, in the main task unless `facts` say otherwise."""
        return msgspec.structs.replace(PROGRAM, failures_before=self.progress.delivered, **facts)

    def end_call(
        self, arguments: Any, failure: Failure | None = None, facts: CallFacts | None = None, **fields: Any
    ) -> list[Link]:
        """End a call that began with `facts`, or just now. Return its links."""
        number = len(self.steps) + 1
        ended = step(number, failure=failure, arguments=arguments, **fields)
        self.steps.append(ended)
        facts = facts if facts is not None else self.begin_call()
        self.progress, links = self.progress.after(
            Call(steps=(ended,)), facts, lambda candidate: differs_in(candidate, self.steps)
        )
        if failure is None:
            self.links += links
        return links

    def fail_call(
        self, arguments: Any, failure: Failure = BROKEN, facts: CallFacts | None = None, **fields: Any
    ) -> int:
        """Make a call that fails. Return its number."""
        self.end_call(arguments, failure, facts, **fields)
        return self.steps[-1].call


def link_live(before: Any, after: Any, failure: Failure = BROKEN, **facts: Any) -> list[Link]:
    """Return the links of a program's call that follows a failed one without any evidence but these facts."""
    run = LiveRun()
    run.fail_call(before, failure)
    return run.end_call(after, facts=run.begin_call(**facts))


def link_logged(before: Any, after: Any, failure: Failure = REJECTED) -> list[Link]:
    """Return the links of an agent's log with a failed call and the next call of its tool."""
    return link_recoveries([step(1, failure=failure, arguments=before), step(2, arguments=after)])


def link_handled(before: Any, after: Any, failure: Failure = BROKEN) -> list[Link]:
    """Return the links of a call that is made while the exception of the failed one is being handled."""
    return link_live(before, after, failure, handled=(1,))


# Status


def test_run_in_which_nothing_failed_is_a_success():
    assert get_status([]) == "success"
    assert get_status([step(1), step(2)]) == "success"


def test_run_whose_failed_call_worked_on_a_later_attempt_is_recovered():
    assert get_status([step(1, failure=TIMEOUT), step(2, 1, 2)]) == "recovered"


def test_run_whose_failed_call_was_corrected_by_a_later_one_is_recovered():
    before, after = {"query": "fish", "k": 50}, {"query": "fish", "k": 10}
    assert get_status([step(1, arguments=before, failure=REJECTED), step(2, arguments=after)]) == "recovered"


def test_run_with_an_unrecovered_call_is_partial():
    assert get_status([step(1, failure=TIMEOUT), step(2, name="other")]) == "partial"


def test_run_in_which_no_call_succeeded_in_the_end_is_a_failure():
    assert get_status([step(1, failure=TIMEOUT)]) == "failure"
    assert get_status([step(1, failure=TIMEOUT), step(2, outcome="cancelled")]) == "failure"


@pytest.mark.parametrize("type", ["plan", "respond"])
def test_stage_that_succeeded_is_no_call_that_succeeded(type):
    assert get_status([step(1, failure=TIMEOUT), step(2, name="answer", type=type)]) == "failure"


@pytest.mark.parametrize("end", ["raised", "abandoned"])
def test_run_that_raised_or_was_abandoned_is_a_failure_whatever_worked(end):
    assert get_status([step(1)], Run(id="run_a", end_reason=end)) == "failure"


def test_failure_of_the_run_itself_is_recovered_by_nothing():
    steps = [step(1, type="run", name="agent", failure=TIMEOUT), step(2, type="run", name="agent")]
    assert get_status(steps) == "failure"
    assert link_recoveries(steps) == []


@pytest.mark.parametrize("outcome", ["cancelled", "blocked"])
def test_cancelled_and_refused_calls_are_no_failures(outcome):
    assert get_status([step(1, outcome=outcome)]) == "success"


def test_call_that_the_user_rejected_is_no_failure():
    assert get_status([step(1, failure=USER_REJECTED)]) == "success"


class Model:
    """A5 of the product, written a second time and as plainly as possible: what became of each call."""

    def __init__(self) -> None:
        self.has_own_failure = False
        self.end: str | None = None
        self.failed: set[int] = set()
        self.outcomes: dict[int, str] = {}

    @property
    def status(self) -> str:
        if self.end in ("raised", "abandoned") or self.has_own_failure:
            return "failure"
        if not self.failed:
            return "success"
        if "success" not in self.outcomes.values():
            return "failure"
        return "recovered" if all(self.outcomes[call] == "success" for call in self.failed) else "partial"


class Runs(RuleBasedStateMachine):
    """Drives a run. Every call has a tool of its own, so that only its own attempts can recover it."""

    @initialize()
    def begin(self) -> None:
        self.steps: list[Step] = []
        self.model = Model()
        self.run = Run(id="run_a")

    def add(self, call: int | None, outcome: str, failure: Failure | None = None, type: str = "tool") -> None:
        seq = len(self.steps) + 1
        call = call if call is not None else seq
        attempt = 1 + sum(step.call == call for step in self.steps)
        self.steps.append(
            step(seq, call, attempt, failure=failure, outcome=outcome, name=f"{type}-{call}", type=type)  # type: ignore[arg-type]
        )
        if type == "run":
            return
        self.model.outcomes[call] = outcome
        if outcome == "failure" and failure is not USER_REJECTED:
            self.model.failed.add(call)

    @rule(
        outcome=st.sampled_from(["success", "failure", "cancelled", "blocked"]),
        failure=st.sampled_from([TIMEOUT, REJECTED]),
    )
    def new_call(self, outcome: str, failure: Failure) -> None:
        self.add(None, outcome, failure if outcome == "failure" else None)

    @rule(
        chosen=st.integers(0, 50),
        outcome=st.sampled_from(["success", "failure", "cancelled"]),
        failure=st.sampled_from([TIMEOUT, REJECTED]),
    )
    def another_attempt(self, chosen: int, outcome: str, failure: Failure) -> None:
        numbers = sorted(self.model.outcomes)
        if numbers:
            self.add(numbers[chosen % len(numbers)], outcome, failure if outcome == "failure" else None)

    @rule()
    def user_rejects(self) -> None:
        self.add(None, "failure", USER_REJECTED)

    @rule()
    def own_failure(self) -> None:
        self.add(None, "failure", TIMEOUT, "run")
        self.model.has_own_failure = True

    @rule(end=st.sampled_from(["finished", "raised", "abandoned"]))
    def run_ends(self, end: str) -> None:
        self.model.end = end
        self.run = Run(id="run_a", end_reason=end)  # type: ignore[arg-type]

    @invariant()
    def status_is_the_models(self) -> None:
        assert derive_status(self.run, self.steps, link_recoveries(self.steps)) == self.model.status

    @invariant()
    def status_is_the_same_call_by_call(self) -> None:
        progress = RunProgress()
        for call in group_attempts(self.steps):
            progress, _ = progress.after(call)
        assert progress.status(self.run) == self.model.status

    @rule(random=st.randoms(use_true_random=False))
    def arrive_in_any_order(self, random: Any) -> None:
        shuffled = list(self.steps)
        random.shuffle(shuffled)
        assert link_recoveries(shuffled) == link_recoveries(self.steps)
        assert group_attempts(shuffled) == group_attempts(self.steps)
        assert derive_status(self.run, shuffled, link_recoveries(shuffled)) == self.model.status


Runs.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestStatusAgreesWithTheProduct = Runs.TestCase


# Links of attempts


def test_link_of_a_retry_names_no_change():
    (link,) = link_recoveries([step(1, failure=TIMEOUT), step(2, 1, 2)])
    assert (link.failed_call, link.recovering_call, link.method, link.changes) == (1, 1, "retry", ())
    assert (link.evidence, link.provisional) == (("attempt",), False)


def test_link_of_a_repair_names_what_recovery_changed():
    changed = Change(path="k", operation="clamp", before=50, after=10, source="schema")
    after = Recovery(remedy=Remedy.REPAIR, changes=(changed,))
    (link,) = link_recoveries([step(1, failure=REJECTED), step(2, 1, 2, recovery=after)])
    assert (link.method, link.changes) == ("repair", (changed,))


def test_link_of_a_recipe_names_what_recovery_called_first():
    after = Recovery(remedy=Remedy.REPAIR, prerequisites=("login",))
    (link,) = link_recoveries([step(1, failure=NOT_LOGGED_IN), step(2, 1, 2, recovery=after)])
    assert (link.method, link.intermediate_tools) == ("prerequisite", ("login",))


@pytest.mark.parametrize(
    "after",
    [
        Recovery(remedy=Remedy.COMPRESS, source="structure"),
        Recovery(remedy=Remedy.REPAIR, source="refresh"),
        Recovery(remedy=Remedy.REPLAN),
        Recovery(remedy=Remedy.REPLAN, source="fallback"),
        Recovery(remedy=Remedy.RETRY, source="verify"),
    ],
)
def test_recovery_beside_the_call_is_no_precedent_for_a_retry(after):
    (link,) = link_recoveries([step(1, failure=TIMEOUT), step(2, 1, 2, recovery=after)])
    assert (link.method, link.changes) == ("repair", ())
    assert calls.rank_precedents([(1, link)], 1) == []


# Rule 1: afterwards, and knowing


def test_call_in_flight_when_the_failure_was_delivered_recovers_nothing():
    run = LiveRun()
    in_flight = run.begin_call(handled=(1,))
    run.fail_call({"city": "Oslo", "days": 9})

    assert run.end_call({"city": "Oslo", "days": 9}, facts=in_flight) == []
    assert run.end_call({"city": "Oslo", "days": "9"}, facts=in_flight) == []
    assert run.end_call({"city": "Oslo", "days": 7}, facts=in_flight) == []
    assert [link.evidence for link in run.end_call({"city": "Oslo", "days": 9})] == [("same_arguments",)]


def test_call_of_a_log_that_overlaps_the_failed_one_recovers_nothing():
    failed = step(1, arguments={"city": "Oslo"}, failure=BROKEN, started_at=1000, duration_seconds=2.0)
    overlapping = step(2, arguments={"city": "Oslo"}, started_at=2500, duration_seconds=3.0)
    later = step(2, arguments={"city": "Oslo"}, started_at=3000, duration_seconds=3.0)

    assert link_recoveries([failed, overlapping]) == []
    assert [link.recovering_call for link in link_recoveries([failed, later])] == [2]


def test_success_before_the_last_attempt_failed_recovers_nothing():
    steps = [step(1, failure=TIMEOUT), step(2), step(3, 1, 2, failure=TIMEOUT)]
    assert link_recoveries(steps) == []
    assert get_status(steps) == "partial"


@pytest.mark.parametrize("task", [(1,), (1, 2), (2,), (7, 3)])
def test_same_arguments_recover_in_any_task(task):
    run = LiveRun()
    run.fail_call({"city": "Oslo"}, facts=run.begin_call(task=(1,)))
    (link,) = run.end_call({"city": "Oslo"}, facts=run.begin_call(task=task))
    assert link.evidence == ("same_arguments",)


RELATED_TASKS = [((1,), (1,)), ((1,), (1, 2)), ((1, 2), (1,)), ((1, 2), (1, 2, 5))]
UNRELATED_TASKS = [((1,), (2,)), ((1, 2), (1, 3)), ((1, 2, 4), (1, 3)), ((1,), None), (None, (1,))]


@pytest.mark.parametrize(("task", "later_task"), [*RELATED_TASKS, *UNRELATED_TASKS])
@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"city": "Oslo", "days": 9}, {}),
        ({"city": "Oslo", "days": "9", "unit": "metric"}, {}),
        ({"city": "Oslo", "days": "7"}, {"handled": (1,)}),
    ],
    ids=["another form", "missing argument", "other value"],
)
def test_other_arguments_recover_only_in_a_related_task(task, later_task, arguments, facts):
    run = LiveRun()
    run.fail_call({"city": "Oslo", "days": "9"}, fail("missing unit"), run.begin_call(task=task))
    links = run.end_call(arguments, facts=run.begin_call(task=later_task, **facts))
    assert bool(links) is ((task, later_task) in RELATED_TASKS)


# Rule 2: one to one


def test_success_recovers_one_of_several_open_failures():
    run = LiveRun()
    run.fail_call({"order": 1, "full": "yes"}, facts=run.begin_call(task=(1, 2)))
    run.fail_call({"order": 1, "full": "yes"}, facts=run.begin_call(task=(1, 3)), name="archive")
    run.fail_call({"order": 2, "full": "yes"}, facts=run.begin_call(task=(1, 4)))

    assert [link.failed_call for link in run.end_call({"order": 2, "full": "yes"})] == [3]
    assert [link.failed_call for link in run.end_call({"order": 1, "full": "yes"})] == [1]
    assert run.end_call({"order": 1, "full": "yes"}) == []


def test_success_with_one_failure_among_loop_items_recovers_that_one_only():
    steps = [step(n, arguments={"order": n}, failure=BROKEN) for n in (1, 2, 3)]
    links = link_recoveries([*steps, step(4, arguments={"order": 2})])
    assert [(link.failed_call, link.recovering_call) for link in links] == [(2, 4)]


def test_chain_of_reissues_is_recovered_as_one_intent():
    run = LiveRun()
    run.fail_call({"city": "Oslo", "days": 30})
    run.fail_call({"city": "Oslo", "days": 14}, facts=run.begin_call(handled=(1,)))
    run.fail_call({"city": "Oslo", "days": "14"})
    links = run.end_call({"city": "Oslo", "days": 7}, facts=run.begin_call(handled=(1, 2, 3)))

    assert [(link.failed_call, link.recovering_call) for link in links] == [(1, 4), (2, 4), (3, 4)]
    assert [[(change.before, change.after) for change in link.changes] for link in links] == [
        [(30, 7)],
        [(14, 7)],
        [("14", 7)],
    ]
    assert run.progress.status(Run(id="run_a", end_reason="finished")) == "recovered"


def test_chain_ends_where_a_reissue_has_no_evidence():
    run = LiveRun()
    run.fail_call({"city": "Oslo", "days": 30})
    run.fail_call({"city": "Rome", "days": 14})
    links = run.end_call({"city": "Rome", "days": 7}, facts=run.begin_call(handled=(2,)))

    assert [link.failed_call for link in links] == [2]
    assert run.progress.status(Run(id="run_a", end_reason="finished")) == "partial"


def test_item_test_is_applied_to_the_success_and_not_to_the_reissues_before_it():
    steps = [
        step(1, arguments={"city": "Oslo", "days": 30}, failure=REJECTED),
        step(2, arguments={"city": "Oslo", "days": 14}, failure=REJECTED),
        step(3, arguments={"city": "Oslo", "days": 7}),
    ]
    assert [link.failed_call for link in link_recoveries(steps)] == [1, 2]
    another_week = step(4, arguments={"city": "Rome", "days": 7})
    assert [link.failed_call for link in link_recoveries([*steps, another_week])] == [1, 2]
    another_length = step(4, arguments={"city": "Rome", "days": 5})
    assert link_recoveries([*steps, another_length]) == []


@pytest.mark.parametrize("other", [{"order": 3, "full": True}, {"order": 4, "full": False}])
@pytest.mark.parametrize("place", [0, 3])
def test_item_that_failed_before_the_retried_one_is_not_recovered_by_the_retry(place, other):
    """Two items of a loop fail one after another, and the second is tried again."""
    made: list[tuple[dict[str, Any], Failure | None]] = [
        ({"order": 1, "full": True}, REJECTED),
        ({"order": 2, "full": True}, REJECTED),
        ({"order": 2, "full": True}, None),
    ]
    made.insert(place, (other, None))
    steps = [step(n, arguments=arguments, failure=failure) for n, (arguments, failure) in enumerate(made, start=1)]
    links = link_recoveries(steps)
    assert [(link.evidence, link.changes) for link in links] == [(("same_arguments",), ())]
    assert get_status(steps) == "partial"


def test_items_that_failed_one_after_another_are_recovered_by_their_own_retries():
    made = [(1, REJECTED), (2, REJECTED), (1, None), (2, None)]
    steps = [
        step(n, arguments={"order": order, "full": True}, failure=cause) for n, (order, cause) in enumerate(made, 1)
    ]
    links = link_recoveries(steps)
    assert [(link.failed_call, link.recovering_call, link.evidence) for link in links] == [
        (1, 3, ("same_arguments",)),
        (2, 4, ("same_arguments",)),
    ]
    assert get_status(steps) == "recovered"


def test_chain_is_followed_back_as_far_as_no_value_names_an_item():
    steps = [
        step(1, arguments={"order": 1, "days": 30}, failure=REJECTED),
        step(2, arguments={"order": 2, "days": 30}, failure=REJECTED),
        step(3, arguments={"order": 2, "days": 14}, failure=REJECTED),
        step(4, arguments={"order": 2, "days": 7}),
    ]
    assert [link.failed_call for link in link_recoveries(steps)] == [1, 2, 3]
    another_order = step(5, arguments={"order": 5, "days": 7})
    assert [link.failed_call for link in link_recoveries([*steps, another_order])] == [2, 3]


# Rule 3 (a): the same arguments


def test_same_arguments_recover_by_a_retry():
    (link,) = link_live({"city": "Oslo", "days": 9}, {"days": 9, "city": "Oslo"})
    assert (link.failed_call, link.recovering_call, link.method, link.changes) == (1, 2, "retry", ())
    assert (link.evidence, link.provisional) == (("same_arguments",), False)


@pytest.mark.parametrize(("before", "after"), [({"n": 1}, {"n": True}), ({"n": 1}, {"n": 2}), ({"n": 1}, {})])
def test_arguments_that_differ_are_not_the_same(before, after):
    assert all(link.evidence != ("same_arguments",) for link in link_live(before, after))


def test_same_arguments_after_other_tools_name_them_as_prerequisites():
    arguments = {"order": 7}
    failed = step(1, failure=NOT_LOGGED_IN, arguments=arguments)
    (link,) = link_recoveries([failed, step(2, name="login"), step(3, arguments=arguments)])
    assert (link.method, link.intermediate_tools) == ("prerequisite", ("login",))


@pytest.mark.parametrize(
    ("between", "tools"),
    [
        ([("look_up", True)], ()),
        ([("login", False)], ("login",)),
        ([("look_up", True), ("login", False), ("count", True)], ("login",)),
    ],
)
def test_tool_that_only_reads_is_no_prerequisite(between, tools):
    run = LiveRun()
    run.fail_call({"order": 7}, NOT_LOGGED_IN, run.begin_call(turn=(1, 1)))
    for name, reads_only in between:
        run.end_call({"user": "ada"}, name=name, facts=run.begin_call(reads_only=reads_only))
    (link,) = run.end_call({"order": 7}, facts=run.begin_call(turn=(1, 2)))
    assert (link.method, link.intermediate_tools) == ("prerequisite" if tools else "retry", tools)


def test_same_arguments_name_no_prerequisite_where_only_time_could_help():
    arguments = {"order": 7}
    steps = [step(1, failure=TIMEOUT, arguments=arguments), step(2, name="fetch"), step(3, arguments=arguments)]
    (link,) = link_recoveries(steps)
    assert (link.recovering_call, link.method, link.intermediate_tools) == (3, "retry", ())
    assert get_status(steps) == "recovered"


@pytest.mark.parametrize(
    ("between", "method"),
    [
        (["sleep 5", "ls -l", "cat log | tail -3"], "retry"),
        (["ls -l", "docker compose up -d db"], "agent"),
        (["echo db > /etc/hosts"], "agent"),
    ],
)
def test_same_command_after_another_that_may_have_changed_something_is_no_retry(between, method):
    def run(seq: int, command: str, failure: Failure | None = None) -> Step:
        return step(seq, name="Bash", arguments={"command": command}, failure=failure)

    refused = fail("Connection refused", "connection_failed", Remedy.RETRY)
    commands = [run(2 + number, command) for number, command in enumerate(between)]
    (link,) = link_recoveries([run(1, "psql", refused), *commands, run(9, "psql")])
    assert (link.method, link.intermediate_tools) == (method, () if method == "retry" else ("Bash",))
    links = link_recoveries([run(1, "psql", refused), *commands, run(8, "psql", refused), run(9, "psql")])
    assert {link.method for link in links} == {method}, "the later of two failures knows it too"


def test_command_that_came_first_teaches_no_fix():
    arguments = {"command": "psql"}
    refused = fail("Connection refused", "connection_failed", Remedy.RETRY)
    steps = [
        step(1, name="Bash", arguments=arguments, failure=refused),
        step(2, name="Bash", arguments={"command": "docker compose up -d db"}),
        step(3, name="Bash", arguments=arguments),
    ]
    assert [find_trials(*judged, (), is_final=True) for judged in judge_calls(steps, is_final=True)] == [[], [], []]


def test_second_round_of_a_program_names_no_prerequisites():
    run = LiveRun()
    run.fail_call({"order": 1}, NOT_LOGGED_IN)
    run.end_call({"order": 2}, name="archive")
    assert [(link.method, link.intermediate_tools) for link in run.end_call({"order": 1})] == [("retry", ())]
    run.fail_call({"order": 3}, NOT_LOGGED_IN)
    run.end_call({"user": "ada"}, name="login")
    (link,) = run.end_call({"order": 3}, facts=run.begin_call(handled=(run.steps[-2].call,)))
    assert (link.method, link.intermediate_tools) == ("prerequisite", ("login",))


def test_calls_without_arguments_are_not_known_to_be_the_same():
    assert link_recoveries([step(1, failure=TIMEOUT), step(2)]) == []
    stages = [step(n, type="custom", failure=cause, metadata={"part": 3}) for n, cause in ((1, BROKEN), (2, None))]
    assert [link.evidence for link in link_recoveries(stages)] == [("same_arguments",)]


def test_call_of_which_nothing_else_is_known_recovers_only_with_same_arguments():
    for arguments, is_linked in (({"k": 5}, True), ({"k": "5"}, False)):
        progress, _ = RunProgress().after(Call(steps=(step(1, arguments={"k": 5}, failure=BROKEN),)))
        _, links = progress.after(Call(steps=(step(2, arguments=arguments),)), SAME_ARGUMENTS_ONLY)
        assert bool(links) is is_linked


class Odd:
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_objects_that_cannot_be_compared_recover_nothing():
    steps = [step(1, arguments={"x": Odd()}, failure=TIMEOUT), step(2, arguments={"x": Odd()})]
    assert link_recoveries(steps) == []
    assert get_status(steps) == "partial"


@pytest.mark.parametrize(
    "later",
    [
        step(2, name="other", arguments={"q": "cats"}),
        step(2, arguments={"question": "something else altogether"}),
        step(2, server="elsewhere", arguments={"q": "cats"}),
        step(2, key="other:search", arguments={"q": "cats"}),
        step(2, type="retrieval", arguments={"q": "cats"}),
        step(2, arguments={"q": "cats"}, failure=TIMEOUT),
    ],
    ids=["another tool", "different arguments", "another server", "another key", "another type", "a failure"],
)
def test_call_of_another_thing_recovers_nothing(later):
    assert link_recoveries([step(1, arguments={"q": "cats"}, failure=TIMEOUT), later]) == []


# Rule 3 (b): the same values in another form

FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cast to a number": ({"k": "5"}, {"k": 5}),
    "cast to a text": ({"k": 5}, {"k": "5"}),
    "rename": ({"limit": 5}, {"top_k": 5}),
    "parse": ({"ids": '["a", "b"]'}, {"ids": ["a", "b"]}),
    "wrap": ({"ids": "a"}, {"ids": ["a"]}),
    "trim": ({"city": " Oslo "}, {"city": "Oslo"}),
    "case": ({"unit": "METRIC"}, {"unit": "metric"}),
    "prefix": ({"order": "W1001"}, {"order": "#W1001"}),
    "unit": ({"weight": 6.85}, {"weight": 6850}),
    "dialing prefix": ({"number": "+4720304050"}, {"number": "004720304050"}),
    "quoting": ({"command": "grep 'two words' notes"}, {"command": 'grep "two words" notes'}),
    "escaping": ({"pattern": r"a\.b"}, {"pattern": "a.b"}),
    "longer path": ({"path": "src/app.py"}, {"path": "/home/ada/src/app.py"}),
    "shorter path": ({"path": "/home/ada/src/app.py"}, {"path": "src/app.py"}),
    "path from home": ({"file": "notes/a.txt"}, {"file": "~/notes/a.txt"}),
    "nested cast": ({"page": {"size": "5"}}, {"page": {"size": 5}}),
}


@pytest.mark.parametrize(("before", "after"), FORMS.values(), ids=FORMS)
def test_same_values_in_another_form_recover_without_further_evidence(before, after):
    (link,) = link_live(before, after)
    assert (link.method, link.evidence, link.provisional) == ("agent", ("same_values",), False)
    assert link.changes == calls.diff_arguments(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"city": "Osol"}, {"city": "Oslo"}),
        ({"branch": "relase-notes"}, {"branch": "release-notes"}),
        ({"path": "src/settings.py"}, {"path": "lib/app/settings.py"}),
        ({"path": "notes/2026-01.txt"}, {"path": "notes/2026-02.txt"}),
        ({"page": "/help/refunds"}, {"page": "/help/returns"}),
        ({"query": "weather in Oslo"}, {"query": "weather in Rome"}),
        ({"ids": ["a", "b"]}, {"ids": ["c", "b"]}),
        ({"command": "make tset"}, {"command": "make test"}),
        ({"order": 7, "full": True, "lines": 3}, {"order": 8, "full": True, "lines": 3}),
    ],
)
@pytest.mark.parametrize("failure", [TIMEOUT, BROKEN, fail("no such thing", "not_found", Remedy.REPLAN), REJECTED])
def test_similar_values_are_no_evidence(before, after, failure):
    assert link_live(before, after, failure) == []


def test_relative_path_that_became_longer_is_doubtful_where_another_file_was_used():
    before, after = {"path": "app.py"}, {"path": "src/app.py"}
    run = LiveRun()
    run.fail_call(before)
    assert [link.evidence for link in run.end_call(after)] == [("same_values",)]

    run = LiveRun()
    run.end_call({"path": "tests/app.py"})
    run.fail_call(before)
    assert run.end_call(after) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"path": "pkg/__init__.py"}, {"path": "__init__.py"}),
        ({"path": "__init__.py"}, {"path": "pkg/__init__.py"}),
        ({"path": "/src/pkg/__init__.py"}, {"path": "__init__.py"}),
    ],
)
@pytest.mark.parametrize("place", ["before", "after"])
def test_file_of_the_same_name_is_an_item_where_a_program_uses_others(before, after, place):
    other = {"path": "pkg/core.py"}
    run = LiveRun()
    if place == "before":
        run.end_call(other)
    run.fail_call(before)
    links = run.end_call(after)
    found = [(link.evidence, link.provisional) for link in links]
    assert found == ([] if place == "before" else [(("same_values",), True)])


@pytest.mark.parametrize(
    ("failure", "is_linked"),
    [
        (fail("No such book.", "not_found", Remedy.REPLAN), False),
        (TIMEOUT, False),
        (fail("Books have no title. Give the author.", "not_found", Remedy.REPLAN), True),
        (fail("unexpected argument"), True),
    ],
)
def test_value_under_another_name_is_another_question_where_the_tool_knew_the_first(failure, is_linked):
    before, after = {"title": "King"}, {"author": "King"}
    assert bool(link_live(before, after, failure)) is is_linked
    assert [link.evidence[0] for link in link_handled(before, after, failure)] == (
        ["same_values"] if is_linked else ["handler"]
    )


@pytest.mark.parametrize(
    ("message", "is_named"),
    [
        ("unexpected argument 'verbose'", True),
        ("1 validation error for call\nverbose\n  Extra inputs are not permitted", True),
        ("Additional properties are not allowed ('verbose' was unexpected)", True),
        ("verbose is not supported", True),
        ("unrecognized arguments: --verbose", True),
        ("it broke", False),
        ("verbosely", False),
        ("verbose shelf_c is full", False),
        ("verbose: unknown shelf 'shelf_c'", False),
        ("verbose must be one of a, b", False),
    ],
)
def test_argument_may_be_dropped_where_the_error_calls_it_unknown(message, is_named):
    links = link_live({"city": "Oslo", "verbose": True}, {"city": "Oslo"}, fail(message))
    assert [link.evidence for link in links] == ([("same_values",)] if is_named else [])


@pytest.mark.parametrize("message", ["dest shelf_c is full", "Unknown dest shelf_c", "dest must be a shelf"])
def test_call_of_a_log_without_a_value_that_the_tool_knows_is_another_action(message):
    steps = [
        step(1, arguments={"item": "box", "count": 3, "dest": "shelf_c"}, failure=fail(message)),
        step(2, arguments={"item": "box", "count": 3}),
    ]
    assert link_recoveries(steps) == []


@pytest.mark.parametrize(("message", "is_named"), [("unknown option --color", True), ("exit status 2", False)])
def test_word_may_be_dropped_where_the_error_names_it(message, is_named):
    before, after = {"command": "ls --color src"}, {"command": "ls src"}
    assert bool(link_live(before, after, fail(message, "execution_failed", Remedy.REPLAN))) is is_named


def test_error_that_quotes_the_whole_value_names_none_of_its_words():
    before, after = {"name": "desk lamp led"}, {"name": "desk lamp"}
    failure = fail("There is no product 'desk lamp led'.", "not_found", Remedy.REPLAN)
    assert link_live(before, after, failure) == []
    assert link_live(before, after, fail("Nothing is called 'desk lamp led'.", "not_found", Remedy.REPLAN)) == []
    assert link_live(before, after, fail("There is no product 'desk lamp led', leave out led.")) != []


def test_word_that_was_replaced_is_not_dropped():
    before, after = {"command": "ls --color src"}, {"command": "ls --plain src"}
    assert link_live(before, after, fail("unknown option --color")) == []


def test_comment_argument_may_differ_beside_the_same_command():
    before = {"command": "make test", "description": "Run the tests"}
    (link,) = link_live(before, {**before, "description": "Run the tests again"})
    assert link.evidence == ("same_values",)
    assert link_live(before, {"command": "make lint", "description": "Run the tests"}) == []


def test_argument_of_that_name_is_no_comment_without_a_command():
    before, after = {"title": "Fish", "description": "cold"}, {"title": "Fish", "description": "warm"}
    assert link_live(before, after) == []


def test_unchanged_comment_is_no_unchanged_argument():
    before = {"command": "make lint", "description": "Run it"}
    assert link_logged(before, {**before, "command": "make test"}) == []


@pytest.mark.parametrize(
    ("arguments", "turn", "is_linked"),
    [
        ({"city": "Oslo", "days": 7}, 2, True),
        ({"city": "Oslo", "days": 7}, 3, False),  # not the next turn
        ({"city": "Rome", "days": 7}, 2, False),  # nothing stays the same
    ],
)
def test_model_may_correct_one_value_together_with_the_name_of_the_tool(arguments, turn, is_linked):
    run = LiveRun()
    failed_facts = run.begin_call(turn=(1, 1))
    run.fail_call({"city": "Oslo", "days": 30}, UNKNOWN_TOOL, failed_facts, name="get_forecast")
    links = run.end_call(arguments, facts=run.begin_call(turn=(1, turn)), name="get_forecasts")
    assert [link.evidence for link in links] == ([("model_turn",)] if is_linked else [])


def test_misspelt_tool_is_recovered_by_the_one_of_a_similar_name_and_the_same_values():
    arguments = {"query": "fish"}
    steps = [step(1, name="serch", failure=UNKNOWN_TOOL, arguments=arguments), step(2, arguments=arguments)]
    (link,) = link_recoveries(steps)
    assert link.changes == (Change(path=TOOL_NAME_PATH, operation="rename", before="serch", after="search"),)
    assert link_recoveries([steps[0], step(2, arguments={"query": "birds"})]) == []
    assert link_recoveries([steps[0], step(2, name="delete", arguments=arguments)]) == []


# Rule 3 (c): missing arguments


@pytest.mark.parametrize(
    ("message", "is_named"),
    [
        ("missing 1 required positional argument: 'unit'", True),
        ("unit is required", True),
        ("no unit was given", True),
        ("call it with a unit: it needs a unit", True),
        ("Please specify the unit.", True),
        ("it broke", False),
        ("the community is closed", False),
        ("every unit of this city is closed", False),
        ("The unit is asleep. A city is required.", False),
    ],
)
def test_arguments_may_be_added_that_the_error_says_are_missing(message, is_named):
    links = link_live({"city": "Oslo"}, {"city": "Oslo", "unit": "metric"}, fail(message))
    assert [link.evidence for link in links] == ([("missing_arguments",)] if is_named else [])


def test_missing_argument_beside_another_value_needs_evidence():
    before, after = {"city": "Oslo"}, {"city": "Rome", "unit": "metric"}
    assert link_live(before, after, fail("unit is required")) == []
    assert [link.evidence for link in link_handled(before, after, fail("unit is required"))] == [("handler",)]


# Rule 3 (d) and 4: other values need evidence


@pytest.mark.parametrize("before", [{"city": "Oslo", "days": 9}, {"days": 9}])
def test_call_made_while_the_exception_is_handled_recovers_it(before):
    (link,) = link_handled(before, {**before, "days": 7})
    assert (link.evidence, link.provisional, link.method) == (("handler",), True, "agent")
    assert link.changes == (Change(path="days", operation="substitute", before=9, after=7),)


def test_handler_of_another_exception_is_no_evidence():
    run = LiveRun()
    run.fail_call({"city": "Oslo", "days": 9})
    run.fail_call({"order": 3}, name="archive")
    assert run.end_call({"city": "Oslo", "days": 7}, facts=run.begin_call(handled=(2,))) == []


@pytest.mark.parametrize(
    ("turn", "arguments", "is_linked"),
    [
        ((1, 4), {"city": "Oslo", "days": 7}, True),
        ((1, 3), {"city": "Oslo", "days": 7}, False),
        ((1, 5), {"city": "Oslo", "days": 7}, False),
        ((2, 4), {"city": "Oslo", "days": 7}, False),
        (None, {"city": "Oslo", "days": 7}, False),
        ((1, 4), {"city": "Rome", "days": 7}, False),
    ],
    ids=["next turn", "same turn", "later turn", "other loop", "no turn", "nothing unchanged"],
)
def test_model_turn_is_evidence_for_the_next_turn_with_another_argument_unchanged(turn, arguments, is_linked):
    run = LiveRun()
    run.fail_call({"city": "Oslo", "days": 9}, REJECTED, run.begin_call(turn=(1, 3)))
    links = run.end_call(arguments, facts=run.begin_call(turn=turn))
    assert [link.evidence for link in links] == ([("model_turn",)] if is_linked else [])


@pytest.mark.parametrize(
    ("before", "after", "is_linked"),
    [
        ({"query": "fish", "limit": 1000}, {"query": "fish", "limit": 100}, True),
        ({"room": "blue", "days": 9}, {"room": "blue", "days": 5}, True),
        ({"path": "src/a1.py", "mode": "r"}, {"path": "src/a2.py", "mode": "r"}, True),
        ({"order": "W123"}, {"order": "W124"}, False),
        ({"ids": ["a", "b"], "deep": True}, {"ids": ["b"], "deep": False}, False),
    ],
)
def test_next_call_of_a_log_is_evidence_with_another_argument_unchanged(before, after, is_linked):
    links = link_logged(before, after, REJECTED)
    assert [link.evidence for link in links] == ([("next_call",)] if is_linked else [])


ERRORS_BY_CAUSE = [
    (fail("format is not supported"), True),
    (fail("format is not supported", "execution_failed", Remedy.REPLAN), True),
    (fail("format must be written in lower case", "unknown_error", Remedy.REPLAN), True),
    (fail("format ogg was not found"), False),
    (fail("no file has this format", "not_found", Remedy.REPLAN), False),
    (fail("format is locked by another user", "invalid_arguments", Remedy.REPAIR), False),
    (TIMEOUT, False),
    (BROKEN, False),
]
"""Errors, and whether their text rejects what was asked. The kind of the error does not say it."""


@pytest.mark.parametrize(("failure", "rejects"), ERRORS_BY_CAUSE, ids=lambda value: getattr(value, "message", None))
def test_model_corrects_only_what_the_error_rejects(failure, rejects):
    """Where the error is about the state of the world, its next call may be for the next item."""
    before, after = {"song": "Air", "format": "ogg"}, {"song": "Air", "format": "mp3"}
    assert [link.evidence for link in link_logged(before, after, failure)] == ([("next_call",)] if rejects else [])
    run = LiveRun()
    run.fail_call(before, failure, run.begin_call(turn=(1, 1)))
    links = run.end_call(after, facts=run.begin_call(turn=(1, 2)))
    assert [link.evidence for link in links] == ([("model_turn",)] if rejects else [])
    assert [link.evidence for link in link_handled(before, after, failure)] == [("handler",)]


def test_next_call_of_a_log_is_no_evidence_after_another_call_of_the_tool():
    failed = step(1, arguments={"city": "Oslo", "days": 9}, failure=REJECTED)
    between = step(2, arguments={"city": "Bergen", "days": 5})
    later = step(3, arguments={"city": "Oslo", "days": 5})
    assert link_recoveries([failed, between, later]) == []
    assert [link.evidence for link in link_recoveries([failed, later])] == [("next_call",)]
    other_tool = step(2, name="fetch", arguments={"city": "Bergen"})
    assert [link.evidence for link in link_recoveries([failed, other_tool, later])] == [("next_call",)]


def test_next_call_is_no_evidence_where_a_program_made_the_calls():
    assert link_live({"query": "fish", "limit": 1000}, {"query": "fish", "limit": 100}, REJECTED) == []


@pytest.mark.parametrize(
    ("message", "old", "new", "is_met"),
    [
        ("days must be at most 7", 9, 7, True),
        ("days must be at most 7", 9, 8, False),
        ("days must be at most 7", 5, 4, False),
        ("days must be between 1 and 7", 0, 3, True),
        ("format must be one of: csv, json", "xml", "json", True),
        ("format must be one of: csv, json", "xml", "yaml", False),
        ("format must be one of: csv, json", "csv", "json", False),
        ("the order is locked", 9, 7, False),
    ],
)
def test_stated_limit_is_evidence_where_the_new_value_meets_it_and_the_old_does_not(message, old, new, is_met):
    links = link_live({"size": old}, {"size": new}, fail(message, "execution_failed", Remedy.REPLAN))
    assert [link.evidence for link in links] == ([("stated_limit",)] if is_met else [])


@pytest.mark.parametrize(
    ("before", "after", "failure", "is_met"),
    [
        ({"days": 9}, {"days": 5}, fail("the stay is too long"), True),
        ({"days": 9}, {"days": 5}, fail("the stay is too short"), False),
        ({"days": 1}, {"days": 5}, fail("the stay is too short"), True),
        ({"days": 9, "hotel": "Plaza"}, {"days": 5, "hotel": "Ritz"}, fail("the stay is too long"), False),
        ({"order": 9}, {"order": 5}, fail("the order is too large"), False),
        ({"days": 9}, {"days": 5}, fail("too many requests", "rate_limit", Remedy.RETRY), False),
        ({"days": 5}, {"days": 9}, TIMEOUT, False),
    ],
    ids=["smaller", "wrong direction", "larger", "two values", "names an object", "many requests", "slow service"],
)
def test_number_that_the_error_calls_too_large_or_too_small_is_corrected_in_that_direction(
    before, after, failure, is_met
):
    assert [link.evidence for link in link_live(before, after, failure)] == ([("stated_limit",)] if is_met else [])


@pytest.mark.parametrize("facts", [{"handled": (2,)}, {"turn": (1, 2)}], ids=["handler", "next turn"])
def test_value_that_meets_a_stated_limit_may_differ_in_other_successes_where_the_failure_caused_the_call(facts):
    run = LiveRun()
    run.end_call({"city": "Rome", "days": 3})
    run.fail_call({"city": "Oslo", "days": 9}, fail("days must be at most 7"), run.begin_call(turn=(1, 1)))
    (link,) = run.end_call({"city": "Oslo", "days": 7}, facts=run.begin_call(**facts))
    assert link.evidence[1:] == ("stated_limit",)
    assert not link.provisional


def test_value_that_meets_a_stated_limit_is_an_item_where_nothing_else_says_that_the_failure_caused_the_call():
    """The next item of a loop meets the limit too."""
    failure = fail("days must be at most 7")
    (link,) = link_live({"days": 9}, {"days": 5}, failure)
    assert (link.evidence, link.provisional) == (("stated_limit",), True)
    run = LiveRun()
    run.end_call({"days": 3})
    run.fail_call({"days": 9}, failure)
    assert run.end_call({"days": 5}) == []


@pytest.mark.parametrize("name", ["note_id", "id", "note", "page", "index"])
def test_stated_bound_is_no_evidence_for_a_number_that_names_another_object(name):
    failure = fail(f"{name} must be at least 1", "invalid_arguments", Remedy.REPAIR)
    assert link_live({name: 0}, {name: 7}, failure) == []
    assert link_logged({name: 0}, {name: 7}, failure) == []


@pytest.mark.parametrize("name", ["order", "locked"])
def test_name_of_an_argument_in_the_error_is_no_evidence(name):
    assert link_live({name: 17}, {name: 18}, fail("The order is locked")) == []


@pytest.mark.parametrize(
    ("asked", "result", "value", "is_evidence"),
    [
        ({"title": "Plan"}, {"version": "v-204"}, "v-204", True),
        ({"title": "Plan"}, "the version is v-204.", "v-204", True),
        ({"title": "Plan"}, {"version": 204}, 204, True),
        ({"title": "Plan"}, {"version": "v-2044"}, "v-204", False),
        ({"title": "Plan"}, {"etag": 'W/"7204"'}, 'W/"7204"', True),
        ({"title": "Budget"}, {"version": "v-204"}, "v-204", True),
        ({}, {"anything": ["v-204"]}, "v-204", True),
        ({"title": "Plan"}, {"version": 20}, 20, True),
        ({"title": "Plan"}, [{"latestVersion": {"number": 19, "version": "20"}}], 20, True),
        ({"title": "Plan"}, {"versions": [19, 20]}, 20, False),
        ({"title": "Plan"}, {"pages": 20}, 20, False),
        ({"title": "Plan"}, "the version is 20.", 20, False),
        ({"title": "Plan"}, {"version": True}, True, False),
    ],
    ids=[
        "field", "text", "number", "part of a word", "value with quotes", "other arguments", "any field",
        "short value in its field",
        "short value in a field with a word of its name", "short value in a field with another word",
        "short value in another field", "short value in a text", "truth value",
    ],
)  # fmt: skip
def test_tool_result_is_evidence_for_a_value_that_was_looked_up(asked, result, value, is_evidence):
    run = LiveRun()
    run.fail_call({"title": "Plan", "version": "v-1"})
    run.end_call(asked, name="read_doc", result=result)
    links = run.end_call({"title": "Plan", "version": value})
    assert [link.evidence for link in links] == ([("tool_result",)] if is_evidence else [])
    if is_evidence:
        assert links[0].intermediate_tools == ("read_doc",)
        assert [change.source for change in links[0].changes] == ["run"]


def test_result_of_the_same_tool_is_no_evidence():
    """A list of items names the next item."""
    run = LiveRun()
    run.fail_call({"title": "Plan", "version": "v-1"})
    run.end_call({"title": "Budget", "version": "v-1"}, result={"version": "v-204"})
    assert run.end_call({"title": "Plan", "version": "v-204"}) == []


@pytest.mark.parametrize("is_first", [True, False])
def test_value_that_was_looked_up_may_differ_in_other_successes(is_first):
    run = LiveRun()
    other = {"title": "Budget", "version": "v-7"}
    if is_first:
        run.end_call(other)
    run.fail_call({"title": "Plan", "version": "v-1"})
    run.end_call({"title": "Plan"}, name="read_doc", result={"version": "v-204"})
    (link,) = run.end_call({"title": "Plan", "version": "v-204"})
    assert (link.evidence, link.provisional) == (("tool_result",), False)


def test_tool_result_from_before_the_failure_is_no_evidence():
    run = LiveRun()
    run.end_call({"title": "Plan"}, name="read_doc", result={"version": "v-204"})
    run.fail_call({"title": "Plan", "version": "v-1"})
    assert run.end_call({"title": "Plan", "version": "v-204"}) == []


EDIT = "The quick brown fox jumps over the lazy dog and then it sleeps near the old river bank all day long"


def test_long_text_of_which_most_is_unchanged_is_evidence():
    edited = EDIT.replace("lazy", "sleepy")
    (link,) = link_live({"body": EDIT}, {"body": edited})
    assert (link.evidence, link.provisional) == (("same_text",), True)
    assert link_live({"body": EDIT}, {"body": " ".join(reversed("abcdefghijklmnopqrstuvwxyz" * 4))}) == []
    assert link_live({"body": EDIT[:50]}, {"body": EDIT[:50].replace("brown", "red")}) == []


LONG_COMMAND = "python manage.py migrate --settings=config.settings.production --no-input"


@pytest.mark.parametrize(
    ("failed", "later", "is_linked"),
    [
        (LONG_COMMAND, LONG_COMMAND.replace("python", "php"), False),
        (LONG_COMMAND, LONG_COMMAND.replace("production", "staging"), False),
        (LONG_COMMAND, LONG_COMMAND.replace("manage.py", "setup.py"), False),
        (LONG_COMMAND, f"{LONG_COMMAND} --fake-initial", True),
        (f'git commit -m "{EDIT}"', f'git commit -m "{EDIT.replace("lazy", "sleepy")}"', True),
        (f"python - <<EOF\n{EDIT}\nEOF", f"python - <<EOF\n{EDIT.replace('lazy', 'sleepy')}\nEOF", True),
    ],
)  # fmt: skip
def test_long_command_is_the_same_only_if_nothing_but_its_quoted_text_and_added_options_changed(
    failed, later, is_linked
):
    steps = [step(1, name="Bash", arguments={"command": failed}, failure=BROKEN),
             step(2, name="Bash", arguments={"command": later})]  # fmt: skip
    assert bool(link_recoveries(steps)) is is_linked


def test_long_text_with_other_words_is_an_item_where_another_success_has_one():
    texts = [" ".join(f"{word}{number}" for number in range(20)) for word in ("first", "second", "third")]
    run = LiveRun()
    run.end_call({"document": "report", "text": texts[0]})
    run.fail_call({"document": "report", "text": texts[1]}, REJECTED, facts=run.begin_call(turn=(1, 2)))
    assert run.end_call({"document": "report", "text": texts[2]}, facts=run.begin_call(turn=(1, 3))) == []


@pytest.mark.parametrize("failure", [TIMEOUT, fail("no such file", "file_not_found", Remedy.REPLAN)])
def test_long_text_is_no_evidence_where_the_failure_was_not_about_the_text(failure):
    assert link_live({"body": EDIT}, {"body": EDIT.replace("lazy", "sleepy")}, failure) == []


@pytest.mark.parametrize(("place", "cause"), [(0, None), (1, None), (2, None), (2, BROKEN)])
def test_long_text_is_no_evidence_where_another_call_of_the_run_has_the_like(place, cause):
    made: list[tuple[str, Failure | None]] = [(EDIT, BROKEN), (EDIT.replace("lazy", "sleepy"), None)]
    made.insert(place, (EDIT.replace("fox", "cat").replace("dog", "cow"), cause))
    steps = [step(n, arguments={"body": body}, failure=failure) for n, (body, failure) in enumerate(made, start=1)]
    assert link_recoveries(steps) == []


def test_long_text_that_failed_twice_is_one_chain_of_edits():
    bodies = [EDIT, EDIT.replace("lazy", "sleepy"), EDIT.replace("lazy", "weary")]
    steps = [step(n, arguments={"body": body}, failure=BROKEN) for n, body in enumerate(bodies, start=1)]
    steps[2] = step(3, arguments={"body": bodies[2]})
    links = link_recoveries(steps)
    assert [(link.failed_call, link.recovering_call, link.evidence) for link in links] == [
        (1, 3, ("same_text",)),
        (2, 3, ("same_text",)),
    ]


def test_program_may_say_that_a_call_corrects_another_across_tools_tasks_and_items():
    run = LiveRun()
    run.fail_call({"order": 7}, facts=run.begin_call(item=("7",)))
    facts = run.begin_call(corrected=(1,), task=(9,), item=("8",))
    (link,) = run.end_call({"reference": "AB"}, facts=facts, name="find_order")
    assert (link.failed_call, link.evidence, link.method) == (1, ("explicit",), "agent")
    assert link.changes[0] == Change(path=TOOL_NAME_PATH, operation="rename", before="search", after="find_order")


def test_program_that_says_so_is_preferred_to_a_failure_with_the_same_form():
    run = LiveRun()
    run.fail_call({"order": 7})
    run.fail_call({"order": "9"})
    links = run.end_call({"order": 9}, facts=run.begin_call(corrected=(1,)))
    assert [(link.failed_call, link.evidence) for link in links] == [(1, ("explicit",))]


@pytest.mark.parametrize(
    ("after", "is_linked"),
    [
        ({"title": "Plan", "version": "v-204", "days": 7}, True),
        ({"title": "Plan", "version": "v-204", "days": 9}, True),
        ({"title": "Budget", "version": "v-204", "days": 7}, False),
    ],
    ids=["two values", "one value", "three values"],
)
def test_handler_may_correct_two_values_beside_an_unchanged_one(after, is_linked):
    before = {"title": "Plan", "version": "v-1", "days": 9}
    assert [link.evidence for link in link_handled(before, after)] == ([("handler",)] if is_linked else [])


def test_handler_corrects_one_value_where_none_is_unchanged():
    before = {"version": "v-1", "days": 9}
    assert link_handled(before, {"version": "v-204", "days": 7}) == []
    assert link_handled({"days": 9}, {"days": 7}) != []


def test_model_corrects_one_value_and_the_second_must_come_from_a_result_or_the_error():
    before, after = {"title": "Plan", "version": "v-1", "days": 9}, {"title": "Plan", "version": "v-204", "days": 7}
    assert link_logged(before, after) == []
    (link,) = link_logged(before, after, fail("days must be at most 7"))
    assert link.evidence == ("next_call", "stated_limit")
    run = LiveRun()
    run.fail_call(before, REJECTED, run.begin_call(turn=(1, 1)))
    run.end_call({"title": "Plan"}, name="read_doc", result={"version": "v-204"})
    (link,) = run.end_call(after, facts=run.begin_call(turn=(1, 2)))
    assert link.evidence == ("model_turn", "tool_result")


# Rule 4: items


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("before", "after", "other"),
    [
        ({"url": "https://x.example", "page": 3}, {"url": "https://x.example", "page": 4}, {"page": 5}),
        ({"url": "https://x.example", "page": 3}, {"url": "https://x.example", "page": 4}, {}),
        ({"order": "W-1", "full": True}, {"order": "W-2", "full": True}, {"order": "W-3", "full": True}),
        ({"q": {"day": 1}, "full": True}, {"q": {"day": 2}, "full": True}, {"q": {"day": 3}, "full": True}),
    ],
)
def test_value_names_an_item_where_another_success_of_the_run_differs_in_it(place, before, after, other):
    made = [(before, REJECTED), (after, None)]
    made.insert(place, (other, None))
    steps = [step(n, arguments=arguments, failure=cause) for n, (arguments, cause) in enumerate(made, start=1)]
    assert link_recoveries(steps) == []
    assert get_status(steps) == "partial"


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize(
    "other",
    [
        step(9, arguments={"url": "https://y.example", "page": 4}),
        step(9, arguments={"url": "https://y.example", "page": 5}, failure=BROKEN),
        step(9, arguments={"url": "https://x.example", "page": 5}, name="count"),
    ],
    ids=["same value", "failure", "another tool"],
)
def test_value_names_no_item_where_no_other_success_differs_in_it(place, other):
    made = [step(1, arguments={"url": "https://x.example", "page": 3}, failure=REJECTED)]
    made.append(step(2, arguments={"url": "https://x.example", "page": 4}))
    made.insert(place, other)
    steps = [msgspec.structs.replace(numbered, seq=n, call=n) for n, numbered in enumerate(made, start=1)]
    assert [link.evidence for link in link_recoveries(steps)] == [("next_call",)]


def test_item_test_binds_every_evidence_of_other_values():
    for facts in ({"handled": (2,)}, {"turn": (1, 2)}):
        run = LiveRun()
        run.end_call({"order": "W-3", "full": True})
        run.fail_call({"order": "W-1", "full": True}, REJECTED, run.begin_call(turn=(1, 1)))
        assert run.end_call({"order": "W-2", "full": True}, facts=run.begin_call(**facts)) == []


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize(
    ("other", "is_item"), [("utf-8", False), ("latin-1", False), ("ascii", True)], ids=["usual", "new", "third"]
)
def test_value_that_failed_here_and_succeeds_elsewhere_is_the_usual_one(place, other, is_item):
    """A program that corrects an error tries the usual value first. A third value shows that it goes through items."""
    made: list[tuple[str, str, Failure | None]] = [("a.txt", "utf-8", BROKEN), ("a.txt", "latin-1", None)]
    made.insert(0 if place == "before" else 2, ("b.txt", other, None))
    steps = [
        step(number, arguments={"file": file, "encoding": encoding}, failure=failure)
        for number, (file, encoding, failure) in enumerate(made, start=1)
    ]
    failed = next(made for made in steps if made.failure)
    progress, _ = RunProgress().after(Call(steps=(failed,)), PROGRAM)
    facts = msgspec.structs.replace(PROGRAM, failures_before=1, handled=(failed.call,))
    success = next(made for made in steps if made.seq == failed.seq + 1)
    _, links = progress.after(Call(steps=(success,)), facts, lambda candidate: differs_in(candidate, steps))
    assert bool(links) is not is_item


@pytest.mark.parametrize("other", ["utf-8", "ascii"])
def test_usual_value_is_known_again_in_a_log_and_where_a_run_never_ended(other):
    steps = [
        step(1, arguments={"file": "b.txt", "encoding": other}),
        step(2, arguments={"file": "a.txt", "encoding": "utf-8"}, failure=REJECTED),
        step(3, arguments={"file": "a.txt", "encoding": "latin-1"}),
    ]
    links = link_recoveries(steps)
    assert [link.evidence for link in links] == ([("next_call",)] if other == "utf-8" else [])
    change = Change(path="encoding", operation="substitute", before="utf-8", after="latin-1")
    stored = Link(
        run="run_a", failed_call=2, recovering_call=3, method="agent", changes=(change,), evidence=("next_call",),
        provisional=True,
    )  # fmt: skip
    steps[2] = msgspec.structs.replace(steps[2], links=(stored,))
    assert find_refuted(steps) == (() if other == "utf-8" else (3,))


def test_argument_that_named_items_in_earlier_runs_links_nothing():
    progress, _ = RunProgress().after(Call(steps=(step(1, arguments={"order": 1, "full": True}, failure=REJECTED),)))
    later = Call(steps=(step(2, arguments={"order": 2, "full": True}),))
    assert progress.after(later, LOGGED, lambda candidate: candidate.paths == ("order",))[1] == []
    assert progress.after(later, LOGGED)[1] != []


def test_link_never_crosses_a_declared_item():
    before, after = {"order": "7", "days": 9}, {"order": "7", "days": 7}
    run = LiveRun()
    run.fail_call(before, facts=run.begin_call(item=("order 7",)))
    for arguments in (before, after, {**before, "days": "9"}):
        assert run.end_call(arguments, facts=run.begin_call(item=("order 8",), handled=(1,))) == []
        assert run.end_call(arguments, facts=run.begin_call(handled=(1,))) == []
    assert run.end_call(before, facts=run.begin_call(item=("order 7",)))


def test_declared_item_argument_never_changes_in_a_link():
    before, after = {"month": "May", "days": 9}, {"month": "June", "days": 9}
    assert link_live(before, after, handled=(1,), item_arguments=("month",)) == []
    assert link_live(before, {**before, "days": 7}, handled=(1,), item_arguments=("month",))


# Rule 4: privileged arguments


@pytest.mark.parametrize("name", ["customer_id", "account", "tenant", "amount", "price", "iban"])
def test_identity_and_money_link_only_by_handler_result_or_program(name):
    before, after = {name: "1001", "full": True}, {name: "1002", "full": True}
    assert link_logged(before, after) == []
    assert link_live(before, after, fail(f"{name} must be one of: 1002, 1003", "execution_failed")) == []
    run = LiveRun()
    run.fail_call(before, REJECTED, run.begin_call(turn=(1, 1)))
    assert run.end_call(after, facts=run.begin_call(turn=(1, 2))) == []

    assert [link.evidence for link in link_handled(before, after)] == [("handler",)]
    assert [link.evidence for link in link_live(before, after, corrected=(1,))] == [("explicit",)]
    run = LiveRun()
    run.fail_call({**before, "city": "Oslo"})
    run.end_call({"city": "Oslo"}, name="find", result={"id": "1002"})
    assert [link.evidence for link in run.end_call({**after, "city": "Oslo"})] == [("tool_result",)]


def test_identity_and_money_link_by_an_argument_error_that_rejects_them_by_name():
    before, after = {"amount": 50, "city": "Oslo"}, {"amount": 5, "city": "Oslo"}
    failure = fail("amount is not supported")
    assert [link.evidence for link in link_logged(before, after, failure)] == [("next_call",)]
    assert link_logged(before, after, REJECTED) == []
    assert link_logged(before, after, fail("amount is not supported", "execution_failed")) == []
    assert link_live(before, after, failure) == []


@pytest.mark.parametrize("name", ["path", "command", "url", "sql"])
def test_paths_and_commands_link_by_any_evidence(name):
    before, after = {name: "one", "full": True}, {name: "two", "full": True}
    assert [link.evidence for link in link_logged(before, after)] == [("next_call",)]
    assert [link.evidence for link in link_handled(before, after)] == [("handler",)]


# Hidden values

HIDDEN = ["[redacted email]", "[str 12 chars]", "[int]", "[str 12 chars #0a1b2c3d4e5f]", {"$type": "str"}]


@pytest.mark.parametrize("hidden", HIDDEN)
def test_hidden_values_derive_no_form_and_no_other_value(hidden):
    for other in ("plain", [hidden], "[redacted phone]"):
        assert link_logged({"to": hidden, "full": True}, {"to": other, "full": True}) == []
        assert link_handled({"to": other, "full": True}, {"to": hidden, "full": True}) == []
    is_hashed = "#" in str(hidden)
    assert bool(link_logged({"limit": hidden}, {"top_k": hidden})) is is_hashed


@pytest.mark.parametrize("hidden", [value for value in HIDDEN if "#" not in str(value)])
def test_hidden_value_is_not_known_to_be_unchanged(hidden):
    """Which of many customers it was is not known, so nothing says that the other argument is of the same one."""
    before = {"to": hidden, "days": "9"}
    assert link_logged(before, {**before, "days": 9}) == []
    assert link_logged(before, {**before, "days": "7"}) == []
    assert link_handled(before, {**before, "days": 7}) == []


@pytest.mark.parametrize(
    ("hidden", "is_known"), [(value, value in ("[redacted email]", "[str 12 chars #0a1b2c3d4e5f]")) for value in HIDDEN]
)
def test_same_hidden_values_are_the_same_arguments_unless_only_their_type_is_known(hidden, is_known):
    assert bool(link_logged({"to": hidden}, {"to": hidden})) is is_known


def test_hidden_values_of_other_calls_count_as_different_items():
    before, after = {"page": 3, "full": True}, {"page": 4, "full": True}
    steps = [step(1, arguments=before, failure=REJECTED), step(2, arguments=after)]
    assert link_recoveries(steps)
    assert link_recoveries([*steps, step(3, arguments={"page": "[int]", "full": True})]) == []


def test_store_derives_no_link_for_a_failure_that_the_recorder_judges():
    arguments = {"order": 7}
    failed = step(1, arguments=arguments, failure=BROKEN, links_decided=True)
    later = step(2, arguments=arguments)
    stored = Link(run="run_a", failed_call=1, recovering_call=2, method="retry", evidence=("same_arguments",))

    assert link_recoveries([failed, later]) == []
    assert link_recoveries([failed, msgspec.structs.replace(later, links=(stored,))]) == [stored]


@pytest.mark.parametrize(
    "sent",
    [
        Link(run="run_a", failed_call=9, recovering_call=2, method="retry"),
        Link(run="run_b", failed_call=1, recovering_call=1, method="retry"),
        Link(run="run_a", failed_call=2, recovering_call=1, method="retry"),
        Link(run="run_a", failed_call=3, recovering_call=2, method="retry"),
    ],
    ids=["no such call", "another run", "itself", "a call that came later"],
)
def test_link_that_a_client_sent_recovers_only_the_intent_that_it_names(sent):
    failed = step(1, arguments={"order": 7}, failure=BROKEN, links_decided=True)
    own = Link(run="run_a", failed_call=1, recovering_call=2, method="retry", evidence=("same_arguments",))
    later = step(2, arguments={"order": 7}, links=(sent, own))
    other = step(3, arguments={"order": 8}, failure=BROKEN, links_decided=True)
    assert link_recoveries([failed, later, other]) == [own]


def test_stored_link_of_a_withdrawn_call_recovers_nothing():
    stored = Link(
        run="run_a", failed_call=1, recovering_call=2, method="agent", evidence=("handler",), provisional=True
    )
    failed = step(1, arguments={"order": 7}, failure=BROKEN, links_decided=True)
    later = step(2, arguments={"order": 8}, links=(stored,))
    assert link_recoveries([failed, later], Run(id="run_a", end_reason="finished"))
    assert link_recoveries([failed, later], Run(id="run_a", end_reason="finished", withdrawn=(2,))) == []


def test_links_of_a_whole_run_can_be_written_into_its_steps_before_values_are_hidden():
    steps = (
        step(1, arguments={"k": "5"}, failure=BROKEN),
        step(2, arguments={"k": 5}),
        step(3, arguments={"k": 6}, failure=BROKEN),
    )
    history = History(run=Run(id="run_a", end_reason="finished"), steps=steps, links=tuple(link_recoveries(steps)))
    attached = attach_links(history)
    hidden = [msgspec.structs.replace(kept_step, arguments={"k": "[redacted]"}) for kept_step in attached.steps]
    assert link_recoveries(hidden) == list(history.links) != []
    assert attach_links(attached) == attached


# Provisional until the run ends


def test_link_by_other_values_is_provisional_until_the_run_ends():
    before, after = {"query": "fish", "k": 50}, {"query": "fish", "k": 10}
    steps = [step(1, arguments=before, failure=REJECTED), step(2, arguments=after)]
    (link,) = link_recoveries(steps, Run(id="run_a"))
    assert link.provisional
    for end in ("finished", "raised"):
        (link,) = link_recoveries(steps, Run(id="run_a", end_reason=end))
        assert not link.provisional


@pytest.mark.parametrize("after", [{"k": "5"}, {"k": 5}, {"k": "5", "unit": "m"}])
def test_link_that_no_later_call_can_refute_is_never_provisional(after):
    steps = [step(1, arguments={"k": "5"}, failure=fail("unit is missing")), step(2, arguments=after)]
    assert [link.provisional for link in link_recoveries(steps, Run(id="run_a"))] == [False]


# Conversations of models


def test_model_that_answers_again_recovers_its_failed_call():
    failed, later = (step(n, name="gpt", type="model", failure=cause) for n, cause in ((1, TIMEOUT), (3, None)))
    assert [link.failed_call for link in link_recoveries([failed, step(2, name="fetch"), later])] == [1]


NO_KEY = Failure.of(Kind("model", "auth_error", Remedy.STOP), "wrong key", fingerprint="f-key")


def build_conversation(*texts: str) -> dict[str, Any]:
    """Build a conversation as it is stored."""
    messages = [{"role": "user", "chars": len(text), "hash": text} for text in texts]
    return {"messages": {"count": len(texts), "each": messages, "last_user": texts[-1]}}


def test_conversation_that_went_on_recovers_and_corrects_nothing():
    """Nobody can learn from it to have sent two messages."""
    failed = step(1, failure=NO_KEY, type="model", arguments=build_conversation("hello") | {"model": "small-1"})
    tool = step(2, name="lookup")
    later = step(3, type="model", arguments=build_conversation("hello", "again") | {"model": "small-1"})

    (link,) = link_recoveries([failed, tool, later])

    assert (link.failed_call, link.recovering_call, link.method, link.changes, link.intermediate_tools) == (
        1,
        3,
        "agent",
        (),
        (),
    )
    assert link.evidence == ("conversation",)
    assert calls.rank_precedents([(1, link)], 1) == []


def test_another_model_in_a_conversation_that_went_on_is_what_was_changed():
    failed = step(1, failure=NO_KEY, type="model", arguments=build_conversation("hello") | {"model": "small-1"})
    later = step(2, type="model", arguments=build_conversation("hello", "again") | {"model": "small-2"})

    (link,) = link_recoveries([failed, later])

    assert [(change.path, change.after) for change in link.changes] == [("model", "small-2")]


def test_another_conversation_of_the_same_model_recovers_nothing():
    failed = step(1, failure=NO_KEY, type="model", arguments=build_conversation("hello") | {"model": "small-1"})
    later = step(2, type="model", arguments=build_conversation("good day") | {"model": "small-1"})
    assert link_recoveries([failed, later]) == []


# Bounds


def test_run_of_many_failures_keeps_a_bounded_number_open():
    failed = [step(n, arguments={"q": f"{n} " * 60}, failure=TIMEOUT) for n in range(1, 400)]
    success = step(400, arguments={"q": "399 " * 60})
    assert [link.failed_call for link in link_recoveries([*failed, success])] == [399]
    progress = RunProgress()
    for failed_step in failed:
        progress, _ = progress.after(Call(steps=(failed_step,)))
    assert len(progress.open) == MAX_OPEN_FAILURES
    assert progress.failed == 399


@pytest.mark.safety
def test_run_of_five_thousand_calls_is_judged_call_by_call_in_bounded_time():
    run = RunProgress()
    began = time.process_time()
    for number in range(1, 5001):
        cause = BROKEN if number % 7 == 0 else None
        made = step(number, arguments={"order": number, "full": True}, failure=cause)
        run, _ = run.after(Call(steps=(made,)), PROGRAM)
    assert time.process_time() - began < 20
    assert (run.failed, run.recovered) == (714, 0)


@pytest.mark.parametrize(
    ("arguments", "compact"),
    [
        ({"a": 1, "b": None, "c": "short", "d": True}, {"a": 1, "b": None, "c": "short", "d": True}),
        ({"a": "x" * 81, "b": {"c": 1}, "d": ["x", 1], "e": [["x"]]}, {"a": None, "b": None, "d": ["x", 1], "e": None}),
        ("text", {}),
    ],
)
def test_recent_success_keeps_no_long_or_nested_value(arguments, compact):
    assert compact_arguments(arguments) == compact


# Properties

NAMES = st.sampled_from(["search", "lookup"])
ARGUMENTS = st.fixed_dictionaries({"k": st.integers(0, 3)}, optional={"full": st.booleans(), "unit": st.just("m")})
CAUSES = st.sampled_from([None, None, TIMEOUT, REJECTED, UNKNOWN_TOOL, USER_REJECTED, fail("k must be at most 1")])
DRAWN_RUNS = st.lists(st.tuples(NAMES, ARGUMENTS, CAUSES, st.booleans()), max_size=12)


def build_steps(drawn: Sequence[tuple[str, dict[str, Any], Failure | None, bool]]) -> list[Step]:
    """Build steps of which some are further attempts at the call before them."""
    steps: list[Step] = []
    for seq, (name, arguments, failure, is_attempt) in enumerate(drawn, start=1):
        if is_attempt and steps:
            before = steps[-1]
            steps.append(
                step(
                    seq, before.call, before.attempt + 1, failure=failure, name=before.name, arguments=before.arguments
                )
            )
        else:
            steps.append(step(seq, failure=failure, name=name, arguments=arguments))
    return steps


@given(DRAWN_RUNS)
def test_run_without_failures_is_always_a_success(drawn):
    steps = [made for made in build_steps(drawn) if not made.has_failed]
    assert get_status(steps) == "success"


RANK = {"failure": 0, "partial": 1, "recovered": 2, "success": 3}


@given(DRAWN_RUNS, st.data())
def test_success_with_the_arguments_of_a_failed_call_never_makes_the_status_worse(drawn, data):
    steps = build_steps(drawn)
    failed = [call for call in group_attempts(steps) if call.has_failed]
    if not failed:
        return
    again = data.draw(st.sampled_from(failed)).last
    if again.arguments not in [call.last.arguments for call in group_attempts(steps) if call.has_succeeded]:
        return  # its values show what an item is, and may refute an earlier link
    success = step(len(steps) + 1, name=again.name, arguments=again.arguments)
    assert RANK[get_status([*steps, success])] >= RANK[get_status(steps)]


@given(DRAWN_RUNS)
def test_failed_call_has_at_most_one_link_and_it_leads_to_a_later_success(drawn):
    steps = build_steps(drawn)
    by_id = {call.id: call for call in group_attempts(steps)}
    links = link_recoveries(steps)

    assert [link.failed_call for link in links] == sorted({link.failed_call for link in links})
    for link in links:
        assert by_id[link.failed_call].has_failed
        assert by_id[link.recovering_call].has_succeeded
        assert by_id[link.recovering_call].last.seq >= by_id[link.failed_call].last.seq
        assert link.evidence


@given(DRAWN_RUNS)
def test_success_recovers_one_intent(drawn):
    """The failed calls that a success recovers are one unbroken chain of re-issues."""
    previous: dict[int, int] = {}
    for _, call, links in judge_calls(build_steps(drawn), is_final=True):
        if call.has_succeeded:
            failed = sorted(link.failed_call for link in links if link.failed_call != call.id)
            assert all(previous[later] == earlier for earlier, later in itertools.pairwise(failed))
        else:
            assert len(links) <= 1
            previous |= {link.recovering_call: link.failed_call for link in links}


@given(DRAWN_RUNS)
def test_no_final_link_changes_an_argument_in_which_another_success_differs(drawn):
    steps = build_steps(drawn)
    by_id = {call.id: call for call in group_attempts(steps)}
    for link in link_recoveries(steps):
        success = by_id[link.recovering_call]
        if link.evidence[0] in ("attempt", "same_arguments", "same_values", "missing_arguments"):
            continue
        for change in link.changes:
            if change.operation != "substitute" or link.evidence == ("next_call", "stated_limit"):
                continue  # the limit and the failure before it explain the value
            others = [
                call.last.arguments for call in by_id.values() if call.has_succeeded and call.name == success.name
            ]
            assert all(is_same_json(other.get(change.path), change.after) for other in others)


VALUES = st.one_of(st.integers(0, 5), st.sampled_from(["oslo", "rome", "paris"]), st.booleans())
FLAT_ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, min_size=1, max_size=3)


@given(st.lists(st.tuples(FLAT_ARGUMENTS, st.sampled_from([None, TIMEOUT, BROKEN, REJECTED])), max_size=12))
def test_program_without_evidence_recovers_only_by_the_same_values(drawn):
    """However similar its calls are: only equal arguments and other forms of the same values link."""
    run = LiveRun()
    for arguments, cause in drawn:
        run.end_call(arguments, cause)
    by_id = {made.call: made.arguments for made in run.steps}
    latest = {link.recovering_call: link for link in run.links}
    for link in run.links:
        assert link.evidence in (("same_arguments",), ("same_values",))
        if link is not latest[link.recovering_call]:
            continue  # an earlier failed call of a chain, whose values may have changed their form and their name
        assert sorted(map(str, by_id[link.failed_call].values())) == sorted(
            map(str, by_id[link.recovering_call].values())
        ) or {change.operation for change in link.changes} <= {"cast", "rename"}


class PlannedCall(NamedTuple):
    """A call that one of several workers makes."""

    item: int
    mode: int
    failure: Failure | None
    evidence: int
    """Which of the failures delivered so far it is made in the handler of, and whether as a later model turn."""
    is_lookup: bool
    """Whether it calls another tool, which returns all items and modes."""


class WorkerCall(NamedTuple):
    """A call while it is made by a worker."""

    planned: PlannedCall
    facts: CallFacts
    delivered: frozenset[int]
    """Failed calls whose outcome was known when it began."""


PLANNED_CALLS = st.builds(
    PlannedCall,
    item=st.integers(101, 104),
    mode=st.integers(1, 3),
    failure=st.sampled_from([None, BROKEN, TIMEOUT, REJECTED, fail("mode must be at most 2"), fail("order is locked")]),
    evidence=st.integers(0, 20),
    is_lookup=st.booleans(),
)
WORKERS = st.lists(st.lists(PLANNED_CALLS, min_size=1, max_size=6), min_size=1, max_size=4)
TASKS = [(1,), (1, 2), (1, 3), (4,)]


class Interleaving:
    """Several workers whose calls begin and end in any order, judged by the pure functions."""

    def __init__(self, workers: Sequence[Sequence[PlannedCall]], *, has_scopes: bool) -> None:
        self.run = LiveRun()
        self.waiting = [list(planned) for planned in workers]
        self.made: dict[int, WorkerCall | None] = dict.fromkeys(range(len(workers)))
        self.has_scopes = has_scopes
        self.ended: dict[int, WorkerCall] = {}
        """By number."""

    def advance(self, worker: int) -> None:
        """Begin the next call of a worker, or end the one that it makes."""
        made = self.made[worker]
        if made is not None:
            planned = made.planned
            arguments = {"order": planned.item, "mode": planned.mode}
            self.run.end_call(arguments, planned.failure, made.facts, result={"next": planned.item + 1})
            self.ended[self.run.steps[-1].call] = made
            self.made[worker] = None
        elif self.waiting[worker]:
            planned = self.waiting[worker].pop(0)
            delivered = [number for number, made in self.ended.items() if made.planned.failure is not None]
            facts = self.run.begin_call(task=TASKS[worker], item=(planned.item,) if self.has_scopes else ())
            handled = [number for number in delivered if self.may_be_handled(number, worker, planned)]
            if handled and planned.evidence:
                number = handled[planned.evidence % len(handled)]
                turn = (1, planned.evidence) if self.has_scopes else None
                facts = msgspec.structs.replace(facts, handled=(number,), turn=turn)
            self.made[worker] = WorkerCall(planned, facts, frozenset(delivered))

    def may_be_handled(self, number: int, worker: int, planned: PlannedCall) -> bool:
        """Return whether a worker may be in the handler of a failed call: of any, or of its own item without scopes."""
        failed = self.ended[number]
        return self.has_scopes or (failed.facts.task == TASKS[worker] and failed.planned.item == planned.item)

    def check_links(self) -> None:
        latest = {link.recovering_call: link.failed_call for link in self.run.links}
        for link in self.run.links:
            failed, success = self.ended[link.failed_call], self.ended[link.recovering_call]
            assert failed.planned.item == success.planned.item
            assert link.failed_call in success.delivered
            # Of a chain, the last failed call is the one that the success re-issues.
            if (
                link.evidence != ("same_arguments",)
                and link.changes
                and link.failed_call == latest[link.recovering_call]
            ):
                first, second = failed.facts.task, success.facts.task
                assert first is not None
                assert second is not None
                assert first[-1] in second or second[-1] in first


@given(WORKERS, st.booleans(), st.lists(st.integers(0, 3), max_size=60))
@settings(max_examples=300)
def test_no_interleaving_links_across_items_or_to_a_call_in_flight(workers, has_scopes, schedule):
    """With scopes around items whatever the evidence; without them where a program corrects in its handlers only."""
    interleaving = Interleaving(workers, has_scopes=has_scopes)
    for index in schedule:
        interleaving.advance(index % len(workers))
    for worker in range(len(workers)):
        while interleaving.made[worker] is not None or interleaving.waiting[worker]:
            interleaving.advance(worker)
    interleaving.check_links()


class DeclaredItems(Interleaving):
    """Workers whose items are declared, by scopes or by an argument, and that look up the items of each other."""

    def __init__(self, workers: Sequence[Sequence[PlannedCall]], *, is_argument: bool) -> None:
        super().__init__(workers, has_scopes=True)
        self.is_argument = is_argument

    def advance(self, worker: int) -> None:
        made = self.made[worker]
        if made is not None and made.planned.is_lookup:
            found = {"orders": [101, 102, 103, 104], "mode": [1, 2, 3]}
            self.run.end_call({"order": made.planned.item}, None, made.facts, name="list_orders", result=found)
            self.ended[self.run.steps[-1].call] = made._replace(planned=made.planned._replace(failure=None))
            self.made[worker] = None
            return
        super().advance(worker)
        made = self.made[worker]
        if made is not None and self.is_argument:
            facts = msgspec.structs.replace(made.facts, item=(("order", made.planned.item),), item_arguments=("order",))
            self.made[worker] = made._replace(facts=facts)


@given(WORKERS, st.booleans(), st.lists(st.integers(0, 3), max_size=60))
@settings(max_examples=300)
def test_no_interleaving_links_across_declared_items_whatever_was_looked_up(workers, is_argument, schedule):
    interleaving = DeclaredItems(workers, is_argument=is_argument)
    for index in schedule:
        interleaving.advance(index % len(workers))
    for worker in range(len(workers)):
        while interleaving.made[worker] is not None or interleaving.waiting[worker]:
            interleaving.advance(worker)
    interleaving.check_links()


@given(WORKERS, st.lists(st.integers(0, 3), max_size=60))
def test_interleaved_steps_judged_as_a_log_link_to_no_call_in_flight(workers, schedule):
    """A store that knows only times never links to a call that began before the failure was over."""
    steps: list[Step] = []
    began: dict[int, tuple[int, PlannedCall]] = {}
    waiting = [list(planned) for planned in workers]
    clock = 1000
    order = [
        *(index % len(workers) for index in schedule),
        *(index for index in range(len(workers)) for _ in range(14)),
    ]
    for worker in order:
        clock += 10
        if worker in began:
            start, planned = began.pop(worker)
            arguments = {"order": planned.item, "mode": planned.mode}
            times = {"started_at": start, "duration_seconds": (clock - start) / 1000}
            steps.append(step(len(steps) + 1, arguments=arguments, failure=planned.failure, **times))
        elif waiting[worker]:
            began[worker] = clock, waiting[worker].pop(0)
    by_call = {ended.call: ended for ended in steps}
    for link in link_recoveries(steps):
        failed, success = by_call[link.failed_call], by_call[link.recovering_call]
        assert success.started_at >= failed.started_at + failed.duration_seconds * 1000 - 1


# Through the public API


class Work(NamedTuple):
    """What a worker does for one item: calls until one works, or until it goes on with the next item."""

    item: int
    outcomes: tuple[tuple[int, str], ...]
    """The mode of each call and the message of its error; empty where it works."""
    is_corrected_in_handler: bool
    goes_on_in_handler: bool
    """Whether the next item is worked on while the last error of this one is being handled."""


WORK = st.builds(
    Work,
    item=st.integers(101, 103),
    outcomes=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["", "it broke", "mode must be at most 2"])),
        min_size=1,
        max_size=4,
    ).map(tuple),
    is_corrected_in_handler=st.booleans(),
    goes_on_in_handler=st.booleans(),
)
PROGRAMS = st.lists(st.lists(WORK, min_size=1, max_size=3), min_size=1, max_size=3)
DECLARED = st.sampled_from(["scope", "argument", "nothing"])
SCHEDULES = st.lists(st.integers(0, 2), max_size=40)


class Truth:
    """What really happened in a program: which call was of which item, and when it began and was known to fail."""

    def __init__(self) -> None:
        self.clock = itertools.count()
        self.items: list[int] = []
        self.begins: list[int] = []
        self.deliveries: dict[int, int] = {}
        """By number: when the error of a call reached the program."""

    def begin(self, item: int) -> int:
        """Note that a call begins. Return its number, which is that of its step."""
        self.items.append(item)
        self.begins.append(next(self.clock))
        return len(self.items)

    def deliver(self, number: int) -> None:
        self.deliveries[number] = next(self.clock)

    def check_links(self, links: Iterable[Link]) -> None:
        for link in links:
            assert self.items[link.failed_call - 1] == self.items[link.recovering_call - 1], link
            assert self.deliveries[link.failed_call] < self.begins[link.recovering_call - 1], link


upcoming: ContextVar[tuple[int, str]] = ContextVar("upcoming")
"""The item of the call that is made next in this task, and the message of its error."""
last_number: ContextVar[list[int]] = ContextVar("last_number")
"""Receives the number of the call that was made last in this task."""


async def work_through(
    work: Sequence[Work], declared: str, run: Any, call: Callable[..., Awaitable[Any]], truth: Truth
) -> None:
    """Work on items one after another. With a synchronous tool, `call` never waits."""
    if not work:
        return
    planned, *rest = work
    last_number.set([])

    async def attempt(index: int) -> None:
        mode, message = planned.outcomes[index]
        upcoming.set((planned.item, message))
        is_last = index + 1 == len(planned.outcomes)
        try:
            await call(order=planned.item, mode=mode)
        except ValueError:
            truth.deliver(last_number.get()[-1])
            if planned.is_corrected_in_handler and not is_last:
                await attempt(index + 1)
            elif planned.goes_on_in_handler and declared != "nothing" and is_last:
                await work_through(rest, declared, run, call, truth)
                rest.clear()
                return
        else:
            return
        if not planned.is_corrected_in_handler and not is_last:
            await attempt(index + 1)

    with run.item(planned.item) if declared == "scope" else nullcontext():
        await attempt(0)
    await work_through(rest, declared, run, call, truth)


def run_without_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits, outside any event loop."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


class ThreadStage:
    """Plays workers in threads of which one runs at a time, as a schedule says."""

    def __init__(self, count: int) -> None:
        self.turns = [threading.Semaphore(0) for _ in range(count)]
        self.pauses = threading.Semaphore(0)
        self.remaining = list(range(count))
        self.errors: list[BaseException] = []
        self.current = -1

    def pause(self) -> None:
        """Let the others run, in the middle of a call."""
        worker = self.current
        self.pauses.release()
        assert self.turns[worker].acquire(timeout=60)

    def play(self, bodies: Sequence[Callable[[], None]], schedule: Iterable[int]) -> None:
        def work(worker: int, body: Callable[[], None]) -> None:
            assert self.turns[worker].acquire(timeout=60)
            try:
                body()
            except Exception as error:  # noqa: BLE001 - shown by the test
                self.errors.append(error)
            self.remaining.remove(worker)
            self.pauses.release()

        threads = [
            threading.Thread(target=copy_context().run, args=(work, worker, body)) for worker, body in enumerate(bodies)
        ]
        for thread in threads:
            thread.start()
        for choice in itertools.chain(schedule, itertools.repeat(0)):
            if not self.remaining:
                break
            self.current = self.remaining[choice % len(self.remaining)]
            self.turns[self.current].release()
            assert self.pauses.acquire(timeout=60)
        for thread in threads:
            thread.join()
        assert self.errors == []


class TaskStage:
    """Plays workers in tasks of one event loop, of which one runs at a time, as a schedule says."""

    def __init__(self, count: int) -> None:
        self.turns = [asyncio.Semaphore(0) for _ in range(count)]
        self.pauses = asyncio.Semaphore(0)
        self.remaining = list(range(count))
        self.current = -1

    async def pause(self) -> None:
        worker = self.current
        self.pauses.release()
        await self.turns[worker].acquire()

    async def play(self, bodies: Sequence[Callable[[], Coroutine[Any, Any, None]]], schedule: Iterable[int]) -> None:
        async def work(worker: int, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
            await self.turns[worker].acquire()
            try:
                await body()
            finally:
                self.remaining.remove(worker)
                self.pauses.release()

        async with asyncio.TaskGroup() as group:
            for worker, body in enumerate(bodies):
                group.create_task(work(worker, body))
            for choice in itertools.chain(schedule, itertools.repeat(0)):
                if not self.remaining:
                    break
                self.current = self.remaining[choice % len(self.remaining)]
                self.turns[self.current].release()
                await self.pauses.acquire()


def check_stored_links(mulligan: Mulligan, url: str, run: Any, truth: Truth) -> None:
    """Compare the links of a run, live and stored, with what really happened."""
    truth.check_links(run.links())
    mulligan.close()
    with closing(open_store(url)) as store:
        history = store.run(DEFAULT_TENANT, run.id)
        assert history is not None
        assert [step.seq for step in history.steps] == list(range(1, len(truth.items) + 1))
        assert [step.arguments["order"] for step in history.steps] == truth.items
        truth.check_links(history.links)
        assert {(link.failed_call, link.recovering_call) for link in history.links} == {
            (link.failed_call, link.recovering_call) for link in run.links()
        }
        is_recovered = truth.deliveries.keys() == {link.failed_call for link in history.links}
        assert (run.status in ("success", "recovered")) is is_recovered


def test_later_success_withdraws_a_provisional_link_and_recovers_its_failure_itself(tmp_path):
    """Until a third order is looked up, the second looks like the correction of the first."""
    mulligan = Mulligan(store=f"sqlite:///{tmp_path}/a.db")
    outcomes = iter([ValueError("it broke"), None, None, None])

    @mulligan.tool(mode="observe")
    def look_up(order: int, full: bool) -> str:
        error = next(outcomes)
        if error is not None:
            raise error
        return "shipped"

    with mulligan.run() as run:
        try:
            look_up(101, True)
        except ValueError:
            look_up(102, True)
        assert [(link.recovering_call, link.provisional) for link in run.links()] == [(2, True)]
        look_up(103, True)
        assert run.links() == []
        look_up(101, True)
        assert [(link.recovering_call, link.evidence) for link in run.links()] == [(4, ("same_arguments",))]
    assert run.status == "recovered"
    mulligan.close()
    with closing(open_store(f"sqlite:///{tmp_path}/a.db")) as store:
        history = store.run(DEFAULT_TENANT, run.id)
        assert history is not None
        assert [(link.failed_call, link.recovering_call, link.evidence) for link in history.links] == [
            (1, 4, ("same_arguments",))
        ]
        assert history.run.withdrawn == (2,)
        fixes = store.fixes(DEFAULT_TENANT, FixQuery(now=history.run.started_at))
        assert [(fix.type, fix.changes) for fix in fixes] == [("retry", ())]


def test_argument_that_names_items_in_one_run_names_them_in_later_runs(tmp_path):
    mulligan = Mulligan(store=f"sqlite:///{tmp_path}/a.db")

    @mulligan.tool(mode="observe")
    def look_up(order: int, full: bool) -> str:
        if order < 0:
            raise ValueError("it broke")
        return "shipped"

    def correct() -> str:
        with mulligan.run() as run:
            try:
                look_up(-1, True)
            except ValueError:
                look_up(102, True)
        mulligan.flush()
        return run.status

    assert correct() == "recovered"
    with mulligan.run():
        look_up(101, True)
        look_up(102, True)
    mulligan.flush()
    assert correct() == "partial"
    mulligan.close()


@given(PROGRAMS, DECLARED, SCHEDULES)
@settings(max_examples=40)
def test_no_interleaving_of_threads_links_across_items_or_to_a_call_in_flight(program, declared, schedule):
    truth, stage = Truth(), ThreadStage(len(program))
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/a.db"
        mulligan = Mulligan(store=url)

        @mulligan.tool(mode="observe", items=("order",) if declared == "argument" else ())
        def look_up(order: int, mode: int) -> dict[str, int]:
            item, message = upcoming.get()
            last_number.get().append(truth.begin(item))
            stage.pause()
            if message:
                raise ValueError(message)
            return {"next": order + 1}

        async def call(**arguments: int) -> None:
            look_up(**arguments)

        with mulligan.run() as run:
            bodies = [partial(run_without_loop, work_through(work, declared, run, call, truth)) for work in program]
            stage.play(bodies, schedule)
        check_stored_links(mulligan, url, run, truth)


@given(PROGRAMS, DECLARED, SCHEDULES)
@settings(max_examples=40)
def test_no_interleaving_of_tasks_links_across_items_or_to_a_call_in_flight(program, declared, schedule):
    truth = Truth()
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/a.db"
        mulligan = Mulligan(store=url)

        async def play() -> Any:
            stage = TaskStage(len(program))

            @mulligan.tool(mode="observe", items=("order",) if declared == "argument" else ())
            async def look_up(order: int, mode: int) -> dict[str, int]:
                item, message = upcoming.get()
                last_number.get().append(truth.begin(item))
                await stage.pause()
                if message:
                    raise ValueError(message)
                return {"next": order + 1}

            async with mulligan.run() as run:
                bodies = [partial(work_through, work, declared, run, look_up, truth) for work in program]
                await stage.play(bodies, schedule)
            return run

        check_stored_links(mulligan, url, asyncio.run(play()), truth)
