"""One run as lanes."""

from __future__ import annotations

import itertools
import re

import pytest

pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")

from hypothesis import given
from hypothesis import strategies as st

from mulligan.core import calls
from mulligan.core.failure import Failure, Remedy
from mulligan.core.kinds import KINDS
from mulligan.core.records import Change, History, Link, Recovery, Run, Step
from mulligan.core.run_links import link_recoveries
from mulligan.dashboard import run_pages

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
REJECTED = Failure.of(KINDS["tool/invalid_arguments"], "k must be at most 10", fingerprint="f")
CHANGED = (Change(path="k", operation="clamp", before=50, after=10, source="schema"),)


def repaired(name: str = "search", run: str = "run_a", message: str = "k must be at most 10", **arguments) -> History:
    failure = Failure.of(KINDS["tool/invalid_arguments"], message, fingerprint="f")
    given = arguments or {"k": 50}
    steps = (
        Step(run=run, seq=1, call=1, name=name, arguments=given, started_at=1000, duration_seconds=2.0,
             outcome="failure", failure=failure),
        Step(run=run, seq=2, call=1, attempt=2, name=name, arguments={"k": 10}, started_at=4000, duration_seconds=1.0,
             recovery=Recovery(remedy=Remedy.REPAIR, changes=CHANGED, source="schema")),
    )  # fmt: skip
    about = Run(id=run, agent="a", started_at=1000, ended_at=5000, end_reason="finished")
    return History(run=about, steps=steps, links=tuple(link_recoveries(steps)))


def test_attempts_are_drawn_to_scale():
    (lane,) = run_pages.build_run_page(repaired())["lanes"]
    bars = re.findall(r'class="lane-(\w+)" x="([\d.]+)%" y="1" width="([\d.]+)%"', lane["lane"])
    assert bars == [("lost", "0.00", "50.00"), ("won", "75.00", "25.00")]
    assert lane["took"] == 4.0


@pytest.mark.parametrize("at", [0, 500, 1000])
def test_attempts_at_almost_the_same_time_are_drawn_beside_each_other(at):
    steps = tuple(
        Step(run="r", seq=number, call=1, attempt=number, name="t", started_at=at + number, duration_seconds=0.0,
             outcome="failure" if number < 3 else "success", failure=REJECTED if number < 3 else None)
        for number in (1, 2, 3)
    )  # fmt: skip
    history = History(run=Run(id="r", started_at=0, ended_at=1000, end_reason="finished"), steps=steps)
    (lane,) = run_pages.build_run_page(history)["lanes"]
    lefts = [float(left) for left in re.findall(r'<rect class="[^"]*" x="([\d.]+)%"', lane["lane"])]
    assert all(later - earlier >= 1.99 for earlier, later in itertools.pairwise(lefts))
    assert len(lefts) == 3


def test_it_says_what_the_model_was_told():
    (lane,) = run_pages.build_run_page(repaired())["lanes"]
    ((name, said),) = lane["messages"]
    assert name == "note"
    assert "search was called with k 50" in said


def test_where_the_values_of_a_repair_come_from_is_said():
    (lane,) = run_pages.build_run_page(repaired())["lanes"]
    assert [(each["name"], str(each["before"]), str(each["after"]), each["source"]) for each in lane["changes"]] == [
        ("k", "50", "10", "tool schema")
    ]


@given(texts, texts, texts, st.dictionaries(texts, texts | st.integers() | st.none(), max_size=3))
def test_a_test_case_is_python_whatever_strangers_wrote(name, run, message, arguments):
    history = repaired(name, run, message, k=50)
    failed = calls.group_attempts(history.steps)[0]
    told = run_pages.render_test_case(failed, failed).unescape()
    compile(told, "case", "exec")
    other = Step(run=run, seq=1, call=1, name=name, arguments=arguments, outcome="failure", failure=REJECTED)
    compile(run_pages.render_test_case(calls.Call(steps=(other,)), None).unescape(), "case", "exec")
    assert told.count("\n") < 20


@given(st.lists(st.tuples(st.integers(-(10**12), 10**14), st.floats(0, 1e9)), max_size=5), st.integers(0, 10**14))
def test_a_clock_that_is_wrong_leaves_every_bar_within_the_lane(moments, began):
    steps = tuple(
        Step(run="r", seq=number, call=number, name="t", started_at=started, duration_seconds=seconds)
        for number, (started, seconds) in enumerate(moments, 1)
    )
    history = History(run=Run(id="r", started_at=began, ended_at=began + 5, end_reason="finished"), steps=steps)
    for lane in run_pages.build_run_page(history)["lanes"]:
        for left, wide in re.findall(r'x="(-?[\d.]+)%" y="1" width="(-?[\d.]+)%"', lane["lane"]):
            assert 0 <= float(left) <= 98.61
            assert 0 < float(wide) <= 100
            assert float(left) + float(wide) <= 100.02


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("finished", "the model's next turn, the error states the limit"),
        (None, "the model's next turn, the error states the limit, provisional until the run ends"),
    ],
)
def test_a_later_call_is_shown_with_why_it_belongs_to_the_failed_one(end, words):
    steps = (
        Step(run="run_a", seq=1, call=1, name="search", arguments={"k": 50}, outcome="failure", failure=REJECTED),
        Step(run="run_a", seq=2, call=2, name="search", arguments={"k": 10}),
    )
    evidence = ("model_turn", "stated_limit")
    link = Link(
        run="run_a", failed_call=1, recovering_call=2, method="agent", evidence=evidence, provisional=end is None
    )
    failed, worked = run_pages.build_run_page(History(run=Run(id="run_a", end_reason=end), steps=steps, links=(link,)))[
        "lanes"
    ]
    assert (failed["by"], failed["linked"]) == (2, words)
    assert worked["linked"] == ""


def test_attempts_at_one_call_need_no_reason():
    (lane,) = run_pages.build_run_page(repaired())["lanes"]
    assert lane["linked"] == ""
