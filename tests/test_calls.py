"""Attempts joined into calls, a run's status, what changed between two calls, and what overcame what."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mulligan import calls
from mulligan.failure import Failure, Kind, Ran, Remedy
from mulligan.links import derive_status, link_recoveries
from mulligan.records import Change, Ending, Link, Recovery, Run, Step

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.WAIT), "too slow", fingerprint="f-timeout")
REJECTED = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPAIR, Ran.NO), "no", fingerprint="f-rejected")
UNKNOWN_TOOL = Failure.of(Kind("tool", "unknown_tool", Remedy.TELL, Ran.NO), "no such tool", fingerprint="f-unknown")
REFUSED_HERE = Failure.of(Kind("tool", "precondition", Remedy.TELL, Ran.NO), "log in", fingerprint="f-login")
REFUSED = Failure.of(Kind("none", "user_rejected"), "the user said no")


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


def status_of(steps: list[Step], run: Run | None = None) -> str:
    return derive_status(run or Run(id="run_a", end="finished"), steps, link_recoveries(steps))


# Joining


def test_attempts_at_one_thing_are_one_call_in_the_order_they_were_made():
    steps = [step(3, 1, 2), step(2, name="other"), step(1, failure=TIMEOUT)]

    joined = calls.group_attempts(steps)

    assert [[each.seq for each in call.steps] for call in joined] == [[1, 3], [2]]
    assert [call.name for call in joined] == ["search", "other"]


def test_a_call_says_how_it_ended():
    waited = step(2, 1, 2, after=Recovery(remedy=Remedy.WAIT, seconds=1.5))
    changed = step(2, 1, 2, after=Recovery(remedy=Remedy.REPAIR, changes=(Change(path="k", how="clamp"),)))
    later = msgspec.structs.replace(changed, seq=3, attempt=3)

    def ending(*steps: Step) -> str:
        return calls.group_attempts(steps)[0].ending

    assert ending(step(1)) == "first try"
    assert ending(step(1, failure=TIMEOUT)) == "given up"
    assert ending(step(1, failure=TIMEOUT), waited) == "recovered by waiting"
    assert ending(step(1, failure=REJECTED), changed) == "repaired"
    assert ending(step(1, failure=REJECTED), step(2, 1, 2, failure=REJECTED), later) == "repaired on a later try"
    again = msgspec.structs.replace(changed, outcome="failure", failure=REJECTED)
    assert ending(step(1, failure=REJECTED), again, later) == "repaired on the second try"
    offered = Ending(why="repairs are only suggested", offered=(Recovery(remedy=Remedy.REPAIR),))
    assert ending(step(1, failure=REJECTED, ending=offered)) == "given up with suggestions"
    checked = step(2, 1, 2, after=Recovery(remedy=Remedy.WAIT, source="verify"))
    assert ending(step(1, failure=TIMEOUT), checked) == "confirmed by a check"
    assert ending(step(1, outcome="cancelled")) == "cancelled"
    assert calls.group_attempts([step(1, failure=TIMEOUT), waited])[0].waited == 1.5


def test_a_call_says_what_its_recovery_took():
    first = step(1, failure=TIMEOUT, seconds=3.0, tokens={"input": 5, "output": 2})
    second = step(2, 1, 2, seconds=0.5, tokens={"input": 7}, after=Recovery(remedy=Remedy.WAIT, seconds=1.5))
    (call,) = calls.group_attempts([first, second])
    assert call.recovery_seconds == 2.0
    assert call.recovery_tokens == 7


# Status


def test_a_run_in_which_nothing_failed_is_a_success():
    assert status_of([]) == "success"
    assert status_of([step(1), step(2)]) == "success"


def test_a_run_whose_failed_call_worked_in_the_end_is_recovered():
    assert status_of([step(1, failure=TIMEOUT), step(2, 1, 2)]) == "recovered"


def test_a_run_whose_failed_call_was_done_right_by_a_later_one_is_recovered():
    steps = [step(1, arguments={"k": 50}, failure=REJECTED), step(2, arguments={"k": 10})]
    assert status_of(steps) == "recovered"


def test_a_run_that_finished_with_a_call_given_up_is_partial():
    assert status_of([step(1, failure=TIMEOUT), step(2, name="other")]) == "partial"


@pytest.mark.parametrize("end", ["raised", "abandoned"])
def test_a_run_that_raised_or_was_abandoned_is_a_failure_whatever_worked(end):
    assert status_of([step(1)], Run(id="run_a", end=end)) == "failure"


def test_a_failure_of_the_run_itself_is_overcome_by_nothing():
    steps = [step(1, type="run", name="agent", failure=TIMEOUT), step(2, type="run", name="agent")]
    assert status_of(steps) == "failure"
    assert link_recoveries(steps) == []


@pytest.mark.parametrize("outcome", ["cancelled", "refused"])
def test_cancelled_and_refused_calls_are_no_failures(outcome):
    assert status_of([step(1, outcome=outcome)]) == "success"


def test_what_the_user_rejected_is_no_failure():
    assert status_of([step(1, failure=REFUSED)]) == "success"


class Model:
    """A5 of the product, written a second time and as plainly as possible: what became of each call."""

    def __init__(self) -> None:
        self.has_own_failure = False
        self.end: str | None = None
        self.failed: set[int] = set()
        self.last: dict[int, str] = {}

    @property
    def status(self) -> str:
        if self.end in ("raised", "abandoned") or self.has_own_failure:
            return "failure"
        if not self.failed:
            return "success"
        return "recovered" if all(self.last[call] == "success" for call in self.failed) else "partial"


class Runs(RuleBasedStateMachine):
    """Drives a run. Every call has a tool of its own, so that only its own attempts can overcome it."""

    @initialize()
    def begin(self) -> None:
        self.steps: list[Step] = []
        self.model = Model()
        self.run = Run(id="run_a")

    def add(self, call: int | None, outcome: str, failure: Failure | None = None, type: str = "tool") -> None:
        seq = len(self.steps) + 1
        call = call if call is not None else seq
        attempt = 1 + sum(each.call == call for each in self.steps)
        self.steps.append(
            step(seq, call, attempt, failure=failure, outcome=outcome, name=f"{type}-{call}", type=type)  # type: ignore[arg-type]
        )
        if type == "run":
            return
        self.model.last[call] = outcome
        if outcome == "failure" and failure is not REFUSED:
            self.model.failed.add(call)

    @rule(
        outcome=st.sampled_from(["success", "failure", "cancelled", "refused"]),
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
        known = sorted(self.model.last)
        if known:
            self.add(known[chosen % len(known)], outcome, failure if outcome == "failure" else None)

    @rule()
    def user_rejects(self) -> None:
        self.add(None, "failure", REFUSED)

    @rule()
    def own_failure(self) -> None:
        self.add(None, "failure", TIMEOUT, "run")
        self.model.has_own_failure = True

    @rule(end=st.sampled_from(["finished", "raised", "abandoned"]))
    def run_ends(self, end: str) -> None:
        self.model.end = end
        self.run = Run(id="run_a", end=end)  # type: ignore[arg-type]

    @invariant()
    def status_is_the_models(self) -> None:
        assert derive_status(self.run, self.steps, link_recoveries(self.steps)) == self.model.status

    @rule(random=st.randoms(use_true_random=False))
    def arrive_in_any_order(self, random: Any) -> None:
        shuffled = list(self.steps)
        random.shuffle(shuffled)
        assert link_recoveries(shuffled) == link_recoveries(self.steps)
        assert calls.group_attempts(shuffled) == calls.group_attempts(self.steps)
        assert derive_status(self.run, shuffled, link_recoveries(shuffled)) == self.model.status


Runs.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestStatusAgreesWithTheProduct = Runs.TestCase

NAMES = st.sampled_from(["search", "lookup"])
ARGUMENTS = st.fixed_dictionaries({"k": st.integers(0, 3)})
RUNS = st.lists(
    st.tuples(NAMES, ARGUMENTS, st.sampled_from([None, TIMEOUT, REJECTED, UNKNOWN_TOOL, REFUSED]), st.booleans()),
    max_size=10,
)


def made(drawn: list[tuple[str, dict[str, int], Failure | None, bool]]) -> list[Step]:
    """Steps of which some are further attempts at the call before them."""
    steps: list[Step] = []
    for seq, (name, arguments, failure, is_again) in enumerate(drawn, start=1):
        if is_again and steps:
            before = steps[-1]
            steps.append(step(seq, before.call, before.attempt + 1, failure=failure, name=before.name))
        else:
            steps.append(step(seq, failure=failure, name=name, arguments=arguments))
    return steps


@given(RUNS)
def test_a_run_without_failures_is_always_a_success(drawn):
    steps = [each for each in made(drawn) if not each.has_failed]
    assert status_of(steps) == "success"


RANK = {"failure": 0, "partial": 1, "recovered": 2, "success": 3}


@given(RUNS, st.data())
def test_a_later_success_that_overcomes_a_failure_never_makes_the_status_worse(drawn, data):
    steps = made(drawn)
    failed = [call for call in calls.group_attempts(steps) if call.has_failed]
    if not failed:
        return
    again = data.draw(st.sampled_from(failed)).last
    success = step(len(steps) + 1, name=again.name, arguments=again.arguments)
    assert RANK[status_of([*steps, success])] >= RANK[status_of(steps)]


@given(RUNS)
def test_each_failed_call_has_at_most_one_link_and_it_points_to_a_later_success(drawn):
    steps = made(drawn)
    by_id = {call.id: call for call in calls.group_attempts(steps)}
    links = link_recoveries(steps)

    assert [link.failed for link in links] == sorted({link.failed for link in links})
    for link in links:
        assert by_id[link.failed].has_failed
        assert by_id[link.overcame].has_succeeded
        assert by_id[link.overcame].last.seq >= by_id[link.failed].last.seq


# What overcame what


def test_a_link_says_that_time_helped():
    (link,) = link_recoveries([step(1, failure=TIMEOUT), step(2, 1, 2)])
    assert (link.failed, link.overcame, link.how, link.changes) == (1, 1, "retry", ())


def test_a_link_says_what_recovery_changed():
    changed = Change(path="k", how="clamp", before=50, after=10, from_="schema")
    after = Recovery(remedy=Remedy.REPAIR, changes=(changed,))
    (link,) = link_recoveries([step(1, failure=REJECTED), step(2, 1, 2, after=after)])
    assert (link.how, link.changes) == ("repair", (changed,))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"url": "https://x.example/list", "page": 3}, {"url": "https://x.example/list", "page": 4}),
        ({"order": "W123"}, {"order": "W124"}),
        ({"query": "weather in Oslo"}, {"query": "weather in Rome"}),
        ({"ids": ["a", "b"]}, {"ids": ["c", "b"]}),
    ],
)
def test_the_next_item_of_a_loop_does_not_overcome_the_one_that_timed_out(before, after):
    steps = [step(1, arguments=before, failure=TIMEOUT), step(2, arguments=after)]
    assert link_recoveries(steps) == []
    assert status_of(steps) == "partial"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"query": "fish", "limit": 1000}, {"query": "fish", "limit": 100}),
        ({"command": "npm test"}, {"command": "npm test -- --watch=false"}),
        ({"command": "make test"}, {"command": "make test", "timeout": 600}),
        ({"ids": ["a", "b"], "deep": True}, {"ids": ["b"], "deep": False}),
    ],
)
def test_the_same_asked_in_less_or_in_other_words_does(before, after):
    steps = [step(1, arguments=before, failure=TIMEOUT), step(2, arguments=after)]
    (link,) = link_recoveries(steps)
    assert (link.failed, link.overcame, link.how) == (1, 2, "agent")


@pytest.mark.parametrize(
    ("code", "before", "after", "is_overcome"),
    [
        ("execution_failed", {"order": "W123"}, {"order": "W124"}, False),
        ("execution_failed", {"path": "src/a1.py", "mode": "r"}, {"path": "src/a2.py", "mode": "r"}, False),
        ("not_found", {"order": "W123"}, {"order": "#W123"}, True),
        ("execution_failed", {"command": "make tset"}, {"command": "make test"}, True),
        ("execution_failed", {"order": "W123", "depth": 5}, {"order": "W123", "depth": 2}, True),
    ],
)
def test_a_tool_that_broke_is_not_overcome_by_a_call_about_another_thing(code, before, after, is_overcome):
    failure = Failure.of(Kind("tool", code, Remedy.TELL), "it broke", fingerprint="f")
    steps = [step(1, arguments=before, failure=failure), step(2, arguments=after)]
    assert bool(link_recoveries(steps)) is is_overcome


@pytest.mark.parametrize(
    ("before", "after", "is_overcome"),
    [
        ({"order": "W-1001", "full": True}, {"order": "W-1002", "full": True}, False),
        ({"order_id": 7, "full": True, "lines": 3}, {"order_id": 8, "full": True, "lines": 3}, False),
        ({"room": "blue", "days": 9}, {"room": "blue", "days": 5}, True),
        ({"path": "notes/2026-01.txt"}, {"path": "notes/2026-02.txt"}, False),
        ({"page": "/help/refunds"}, {"page": "/help/returns"}, False),
        ({"order": "W1001"}, {"order": "#W1001"}, True),  # the same one, in another writing
        ({"order": "w-1001 "}, {"order": "W-1001"}, True),
        ({"path": "src/settings.py"}, {"path": "lib/app/settings.py"}, True),
        ({"branch": "relase-notes"}, {"branch": "release-notes"}, True),
        ({"city": "Osol"}, {"city": "Oslo"}, True),
    ],
)
def test_what_is_not_there_is_not_overcome_by_the_next_thing_that_is(before, after, is_overcome):
    gone = Failure.of(Kind("tool", "not_found", Remedy.TELL), "no such thing", fingerprint="f-gone")
    failed = step(1, failure=gone, arguments=before)
    assert bool(link_recoveries([failed, step(2, arguments=after)])) is is_overcome
    looked_up = [failed, step(2, name="list_orders"), step(3, arguments=after)]
    assert link_recoveries([failed, step(2, arguments=after), step(3, arguments=after)]) == [] or is_overcome
    if calls.alike(before, after) >= calls.ALIKE:
        assert link_recoveries(looked_up)  # what came between may have told which one is meant


def test_a_link_says_what_recovery_called_first():
    after = Recovery(remedy=Remedy.REPAIR, first=("login",))
    (link,) = link_recoveries([step(1, failure=REFUSED_HERE), step(2, 1, 2, after=after)])
    assert (link.how, link.between) == ("recipe", ("login",))


@pytest.mark.parametrize(
    "after",
    [
        Recovery(remedy=Remedy.COMPRESS, source="structure"),
        Recovery(remedy=Remedy.REPAIR, source="refresh"),
        Recovery(remedy=Remedy.TELL),
        Recovery(remedy=Remedy.TELL, source="fallback"),
        Recovery(remedy=Remedy.WAIT, source="verify"),
    ],
)
def test_what_recovery_did_beside_the_call_is_no_precedent_of_making_the_same_call_later(after):
    (link,) = link_recoveries([step(1, failure=TIMEOUT), step(2, 1, 2, after=after)])
    assert (link.how, link.changes) == ("repair", ())
    assert calls.precedents([link], 1) == []


def test_a_link_says_what_the_agent_changed():
    (link,) = link_recoveries(
        [step(1, arguments={"q": "x", "k": 50}, failure=REJECTED), step(2, arguments={"q": "x", "k": 5})]
    )
    assert (link.failed, link.overcame, link.how) == (1, 2, "agent")
    assert link.changes == (Change(path="k", how="substitute", before=50, after=5),)


def test_a_link_says_what_had_to_come_first():
    (link,) = link_recoveries([step(1, failure=REFUSED_HERE), step(2, name="login"), step(3)])
    assert (link.how, link.between) == ("recipe", ("login",))


def test_what_only_time_can_help_is_overcome_by_coming_back_to_it():
    steps = [step(1, failure=TIMEOUT), step(2, name="gpt", type="model"), step(3)]
    (link,) = link_recoveries(steps)
    assert (link.overcame, link.how, link.between) == (3, "retry", ())
    assert status_of(steps) == "recovered"


def test_what_only_time_can_help_is_given_up_by_who_goes_on_with_something_else():
    """Else `fetch` would be told as what had been missing, and what is made anew as what was waited for."""
    steps = [step(1, failure=TIMEOUT), step(2, name="fetch"), step(3)]
    assert link_recoveries(steps) == []
    assert status_of(steps) == "partial"


def test_other_arguments_are_a_correction_however_late():
    failed, later = step(1, arguments={"q": "cats", "k": 50}, failure=TIMEOUT), step(3, arguments={"q": "cats", "k": 5})
    (link,) = link_recoveries([failed, step(2, name="fetch"), later])
    assert (link.how, link.changes[0].after) == ("agent", 5)


def test_a_model_that_answers_again_has_overcome_that_it_did_not():
    failed, later = (step(n, name="gpt", type="model", failure=each) for n, each in ((1, TIMEOUT), (3, None)))
    assert [link.failed for link in link_recoveries([failed, step(2, name="fetch"), later])] == [1]


NO_KEY = Failure.of(Kind("model", "auth_error", Remedy.STOP), "wrong key", fingerprint="f-key")


def said(*texts: str) -> dict[str, Any]:
    """A conversation as it is kept."""
    each = [{"role": "user", "chars": len(text), "hash": text} for text in texts]
    return {"messages": {"count": len(texts), "each": each, "last_user": texts[-1]}}


def test_a_conversation_that_went_on_overcomes_and_corrects_nothing():
    """Nobody can learn from it to have sent two messages."""
    failed = step(1, failure=NO_KEY, type="model", arguments=said("hello") | {"model": "small-1"})
    tool = step(2, name="lookup")
    later = step(3, type="model", arguments=said("hello", "again") | {"model": "small-1"})

    (link,) = link_recoveries([failed, tool, later])

    assert (link.failed, link.overcame, link.how, link.changes, link.between) == (1, 3, "agent", (), ())
    assert calls.precedents([link], 1) == []


def test_another_model_in_a_conversation_that_went_on_is_what_was_changed():
    failed = step(1, failure=NO_KEY, type="model", arguments=said("hello") | {"model": "small-1"})
    later = step(2, type="model", arguments=said("hello", "again") | {"model": "small-2"})

    (link,) = link_recoveries([failed, later])

    assert [(each.path, each.after) for each in link.changes] == [("model", "small-2")]


def test_a_misspelt_tool_is_overcome_by_the_one_that_was_meant():
    (link,) = link_recoveries([step(1, name="serch", failure=UNKNOWN_TOOL), step(2, name="search")])
    assert link.changes[0] == Change(path=calls.TOOL, how="rename", before="serch", after="search")


@pytest.mark.parametrize(
    "later",
    [
        step(2, name="other"),
        step(2, arguments={"question": "something else altogether"}),
        step(2, server="elsewhere", arguments={"q": "cats"}),
        step(2, type="retrieval", arguments={"q": "cats"}),
        step(2, arguments={"q": "cats"}, failure=TIMEOUT),
    ],
    ids=["another tool", "other arguments", "another server", "another type", "a failure"],
)
def test_another_thing_does_not_overcome_a_failure(later):
    assert link_recoveries([step(1, arguments={"q": "cats"}, failure=TIMEOUT), later]) == []


def test_a_success_before_the_last_attempt_failed_overcomes_nothing():
    steps = [step(1, failure=TIMEOUT), step(2), step(3, 1, 2, failure=TIMEOUT)]
    assert link_recoveries(steps) == []
    assert status_of(steps) == "partial"


def test_a_run_of_many_failures_is_linked_in_bounded_time():
    failed = [step(n, arguments={"q": f"{n} " * 60}, failure=TIMEOUT) for n in range(1, 400)]
    success = step(400, arguments={"q": "399 " * 60})
    assert [link.failed for link in link_recoveries([*failed, success])][-1] == 399
    assert len(link_recoveries([*failed, success])) <= calls.OPEN


# How alike, and what changed


def test_calls_are_as_alike_as_what_they_share():
    assert calls.alike({"q": "cats", "k": 5}, {"q": "cats", "k": 5}) == 1.0
    assert calls.alike({"q": "cats", "k": "5"}, {"q": "cats", "k": 5}) == 1.0  # only cast
    assert calls.alike({"q": "cats", "limit": 5}, {"q": "cats", "top_k": 5}) > calls.ALIKE  # only renamed
    assert calls.alike({"q": "cats"}, {"q": "Maxwell's equations"}) < calls.ALIKE
    assert calls.alike({"q": "cats"}, "cats") == 0.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 1.5]) | st.text("ab 1[]", max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


@given(CALLS, CALLS)
def test_likeness_is_a_share_and_the_same_both_ways(one, other):
    assert 0.0 <= calls.alike(one, other) <= 1.0
    assert calls.alike(one, one) == 1.0


def applied(before: Any, changes: tuple[Change, ...]) -> Any:
    """Does to the arguments what the changes say."""
    if len(changes) == 1 and changes[0].path == "":
        return changes[0].after
    after = msgspec.json.decode(msgspec.json.encode(before))
    for change in changes:
        *above, name = change.path.split(".")
        place = after
        for key in above:
            place = place[key]
        if change.how == "drop":
            del place[name]
        elif change.how == "rename":
            place[change.after] = place.pop(name)
        else:
            place[name] = change.after
    return after


@given(CALLS | JSON, CALLS | JSON)
def test_changes_applied_to_the_first_arguments_give_the_second(before, after):
    changes = calls.changes(before, after)
    assert calls.is_same_json(applied(before, changes), after)
    assert bool(changes) is not calls.is_same_json(before, after)


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [
        ("5", 5, "cast"),
        (5, "5", "cast"),
        (5.0, 5, "cast"),
        ("true", True, "cast"),
        (1, True, "cast"),
        (" x ", "x", "trim"),
        ("METRIC", "metric", "enum"),
        ('{"a": 1}', {"a": 1}, "parse"),
        ("x", ["x"], "wrap"),
        ("x", "y", "substitute"),
        (50, 10, "substitute"),
    ],
)
def test_a_change_is_called_what_it_is(before, after, how):
    assert calls.changes({"x": before}, {"x": after}) == (Change(path="x", how=how, before=before, after=after),)


class Odd:
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_objects_that_cannot_be_compared_are_simply_not_the_same():
    assert calls.alike({"x": Odd()}, {"x": Odd()}) < 1
    assert status_of([step(1, arguments={"x": Odd()}, failure=TIMEOUT), step(2, arguments={"x": Odd()})]) == "partial"


# Precedents


def link(run: str, how: str = "agent", after: Any = 5, between: tuple[str, ...] = ()) -> Link:
    changes = (Change(path="k", how="substitute", before=50, after=after),) if how == "agent" else ()
    return Link(run=run, failed=1, overcame=2, how=how, changes=changes, between=between)  # type: ignore[arg-type]


def test_the_same_change_in_several_runs_is_one_precedent_and_the_most_frequent_comes_first():
    links = [link("a", after=7), link("b"), link("c"), link("c"), link("d", "recipe", between=("login",))]

    found = calls.precedents(links, seen=9)

    told = [(each.how, each.worked, each.seen) for each in found]
    assert told == [("agent", 2, 9), ("agent", 1, 9), ("recipe", 1, 9)]
    assert found[0].changes[0].after == 5


@given(st.permutations([link("a", after=7), link("b"), link("c"), link("d", "retry"), link("e", after=7)]))
def test_precedents_do_not_depend_on_the_order_in_which_they_are_known(links):
    assert calls.precedents(links, 5) == calls.precedents(sorted(links, key=lambda each: each.run), 5)


def test_nothing_known_is_no_precedent():
    assert calls.precedents([], 3) == []


# How alike two texts are


@given(st.text("ab c", max_size=40), st.text("ab c", max_size=40))
@settings(max_examples=200)
def test_texts_are_as_alike_as_difflib_says_only_faster(one, other):
    from difflib import SequenceMatcher

    assert calls.similarity(one, other) == SequenceMatcher(None, one, other, autojunk=False).ratio()


def test_long_texts_are_compared_by_their_beginnings():
    assert calls.similarity("a" * 200 + "b" * 10**7, "a" * 200 + "c" * 10**7) == 1.0
    assert calls.similarity("", "") == 1.0
    assert calls.similarity("STRASSE", "straße") == 1.0
