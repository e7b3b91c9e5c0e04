"""What memory answers about a failure depends on what happened alone, not on the order in which it was stored."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recounting import rebuild

from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    FixQuery,
    ForgetRequest,
    RecallQuery,
    Revocation,
    Store,
    argument_types,
)
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Run, Step
from mulligan.store.sqlite import MemoryStore

NOW = 100 * DAY
KINDS = (
    Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO),
    Kind("orchestration", "precondition", Remedy.REPLAN),
)
MESSAGES = (
    "the limit of this search is ten",
    "the limit of that search is ten",
    "the limit of this search was passed",
    "the door is locked while it rains",
    "quota",
)
TOOLS = ("search", "open")
ARGUMENTS = ({"k": 50, "q": "a"}, {"k": 10, "q": "a"}, {"k": "10", "q": "a"}, {"top": 10, "q": "a"}, {})
AGENTS = ("", "ann's")
WHO = ("ann", "bob")


def failure(message: str, kind: Kind) -> Failure:
    return Failure.of(kind, message, fingerprint=f"1:{message}")


calls = st.tuples(
    st.sampled_from(TOOLS),
    st.sampled_from(ARGUMENTS),
    st.one_of(st.none(), st.tuples(st.sampled_from(MESSAGES), st.sampled_from(KINDS))),
)
runs = st.tuples(
    st.lists(calls, min_size=1, max_size=7), st.integers(0, 40), st.sampled_from(AGENTS), st.sampled_from(WHO)
)


def events(number: int, run: tuple[Any, ...]) -> list[AnyEvent]:
    made, days, agent, _ = run
    id, began = f"run_{number}", NOW - days * DAY - 1000 * number
    about = Run(id=id, started_at=began, agent=agent)
    told: list[AnyEvent] = [RunStarted(about)]
    for seq, (tool, arguments, failed) in enumerate(made, 1):
        shared: dict[str, Any] = {"run": id, "seq": seq, "call": seq, "name": tool, "started_at": began + seq}
        if failed is not None:
            shared |= {"outcome": "failure", "failure": failure(*failed)}
        told.append(StepEnded(Step(arguments=arguments, **shared)))
    return [*told, RunEnded(about)]


def answers(store: Store, agent: str, without: str) -> list[Any]:
    found: list[Any] = [store.fixes(DEFAULT_TENANT, FixQuery(now=NOW, limit=99, excluded_run=without))]
    for tool in TOOLS:
        found.append(store.fixes(DEFAULT_TENANT, FixQuery(tool=tool, now=NOW, limit=99)))
        for message in (*MESSAGES, "the limit of my search is ten", "the door was locked"):
            asking = RecallQuery(tool=tool, fingerprint=f"1:{message}", run=without)
            found.append(store.recall(DEFAULT_TENANT, asking))
            for arguments, kind in (({"topK": 10, "q": "a"}, ""), ({"k": "10", "q": "a"}, str(KINDS[0]))):
                query = FixQuery(
                    tool=tool, fingerprint=f"1:{message}", text=message, kind=kind,
                    argument_types=argument_types(arguments), agent=agent, excluded_run=without, now=NOW,
                )  # fmt: skip
                found.append((query, store.fixes(DEFAULT_TENANT, query)))
    return found


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    history=st.lists(runs, min_size=1, max_size=7),
    times=st.integers(1, 3),
    agent=st.sampled_from(AGENTS),
    without=st.sampled_from(["", "run_0", "run_asking"]),
    gone=st.sampled_from([None, ForgetRequest(run="run_1"), ForgetRequest(tool="open"), ForgetRequest(text="rains")]),
    revoked=st.sampled_from([None, Revocation(principal="ann"), Revocation(tool="open", since=NOW - 9 * DAY)]),
)
def test_answers_depend_on_neither_the_order_of_runs_nor_incremental_counts(
    history, times, agent, without, gone, revoked
):
    """Each run is met some times, because once is chance."""
    runs = list(enumerate(run for run in history for _ in range(times)))
    stores = [MemoryStore(lambda: NOW), MemoryStore(lambda: NOW)]
    for store, ordered in zip(stores, (runs, runs[::-1]), strict=True):
        for number, run in ordered:
            store.append(DEFAULT_TENANT, events(number, run), f"journal_{number}", 1, run[3])
    assert answers(stores[0], agent, without) == answers(stores[1], agent, without)
    for store in stores:
        if gone is not None:
            store.forget(DEFAULT_TENANT, gone)
        if revoked is not None:
            store.revoke(DEFAULT_TENANT, revoked)
    rebuild(stores[1], DEFAULT_TENANT)
    assert answers(stores[0], agent, without) == answers(stores[1], agent, without)
    for store in stores:
        store.close()
