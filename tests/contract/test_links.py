"""Recovery links in every store: in one piece or in many, and with whatever a sender writes into its steps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.calls import TOOL_NAME_PATH
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Link, Run, Step
from mulligan.core.run_links import derive_status, link_recoveries

REJECTED = Failure.of(
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO), "k is too much", fingerprint="f-k"
)
UNKNOWN = Failure.of(
    Kind("tool", "unknown_tool", Remedy.REPLAN, TookEffect.NO), "there is no get_forecast", fingerprint="f-t"
)
LOCKED = Failure.of(Kind("orchestration", "precondition", Remedy.REPLAN), "it is locked", fingerprint="f-l")


def step(seq: int, failure: Failure | None = None, name: str = "search", **fields: Any) -> Step:
    outcome = "failure" if failure else "success"
    return Step(run="run_a", seq=seq, call=seq, name=name, outcome=outcome, failure=failure, started_at=seq, **fields)


def run_of(*steps: Step) -> list[AnyEvent]:
    run = Run(id="run_a", started_at=1)
    ended = msgspec.structs.replace(run, ended_at=len(steps) + 1, end_reason="finished")
    return [RunStarted(run), *map(StepEnded, steps), RunEnded(ended)]


CHAIN = [
    *(step(number, REJECTED, arguments={"q": "a", "k": 100 - number}) for number in range(1, 15)),
    step(15, arguments={"q": "a", "k": 10}),
]
RETRIES = [*(step(number, LOCKED, arguments={"door": 1}) for number in range(1, 15)), step(15, arguments={"door": 1})]


@pytest.mark.parametrize("steps", [CHAIN, RETRIES], ids=["corrections", "retries"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_chain_of_failed_calls_is_recovered_whole_in_however_many_pieces_it_comes(store, write, steps, size):
    events = run_of(*steps)
    for start in range(0, len(events), size):
        write(*events[start : start + size])
    history = store.run(DEFAULT_TENANT, "run_a")
    assert [link.failed_call for link in history.links] == list(range(1, 15))
    assert {link.recovering_call for link in history.links} == {15}
    assert history.links == tuple(link_recoveries(steps))
    assert derive_status(history.run, history.steps, history.links) == "recovered"


@pytest.mark.parametrize("size", [1, 100])
def test_a_chain_that_began_with_another_tool_names_the_tool_that_worked(store, write, size):
    steps = [
        step(1, UNKNOWN, "get_forecast", arguments={"city": "Oslo", "days": 30}),
        step(2, REJECTED, "forecast", arguments={"city": "Oslo", "days": 30}),
        step(3, None, "forecast", arguments={"city": "Oslo", "days": 7}),
    ]
    events = run_of(*steps)
    for start in range(0, len(events), size):
        write(*events[start : start + size])
    first, second = store.run(DEFAULT_TENANT, "run_a").links
    assert [(change.path, change.after) for change in first.changes] == [(TOOL_NAME_PATH, "forecast"), ("days", 7)]
    assert [(change.path, change.after) for change in second.changes] == [("days", 7)]


def test_sender_links_identical_failures_to_one_success(store, write):
    link = Link(run="run_a", failed_call=1, recovering_call=4, method="prerequisite", evidence=("same_arguments",))
    links = tuple(msgspec.structs.replace(link, failed_call=failed) for failed in (1, 2, 3))
    failures = [
        step(seq, LOCKED, "open", arguments={"door": door}, links_decided=True)
        for seq, door in ((1, 1), (2, 2), (3, 2))
    ]
    for event in run_of(*failures, step(4, None, "open", arguments={"door": 2}, links=links)):
        write(event)
    history = store.run(DEFAULT_TENANT, "run_a")
    assert [link.failed_call for link in history.links] == [2, 3]  # another door is another intent
    assert derive_status(history.run, history.steps, history.links) == "partial"


def test_a_sender_links_only_open_failures_of_its_own_run_to_the_call_that_carries_the_link(store, write):
    link = Link(run="run_a", failed_call=2, recovering_call=3, method="agent", evidence=("explicit",))
    odd = [
        msgspec.structs.replace(link, run="run_b", recovering_call=77),
        msgspec.structs.replace(link, failed_call=1),
        msgspec.structs.replace(link, failed_call=99),
        msgspec.structs.replace(link, failed_call=-1),
    ]
    first = step(1, LOCKED, "open", arguments={"door": 1}, links_decided=True)
    second = step(2, LOCKED, "open", arguments={"door": 2}, links_decided=True)
    third = step(3, None, "knock", arguments={"door": 2}, links=tuple(odd))
    for event in run_of(first, second, third):
        write(event)
    history = store.run(DEFAULT_TENANT, "run_a")
    assert [(link.run, link.failed_call, link.recovering_call) for link in history.links] == [("run_a", 2, 3)]
    assert derive_status(history.run, history.steps, history.links) == "partial"
