"""The same program, recorded five ways, gives the same runs, calls, statuses, kinds, patterns and statistics.

The ways: wrapped functions, steps marked by hand, one HTTP body, HTTP bodies in pieces (shuffled and repeated), spans.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Running, served
from spans import BEGUN, SECOND, Made, as_protobuf

import mulligan
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DEFAULT_TENANT, PatternQuery, Store
from mulligan.core.calls import group_attempts
from mulligan.report.run_text import status_of
from mulligan.testing import Sandbox, sandbox

MESSAGES = {"timeout": "Read timed out after 30 s", "rate_limit": "429 Too Many Requests"}
STARTED = BEGUN // 1_000_000
WAYS = ("wrapped", "by hand", "one body", "pieces", "spans")


class PlannedCall(NamedTuple):
    """One call of a program: the kinds of its failed attempts, and whether a last attempt succeeds."""

    tool: str
    item: int
    failures: tuple[str, ...]
    succeeds: bool
    late_failure: tuple[str, str] | None = None
    """Type and code of a failure that the program records for the last attempt after it has succeeded."""

    @property
    def attempts(self) -> list[str | None]:
        """The kind of each attempt; None for a success."""
        return [*self.failures, *([None] if self.succeeds or not self.failures else [])]


class Program(NamedTuple):
    calls: tuple[PlannedCall, ...]
    numbering: str
    """How its own attempts say that they are attempts."""
    seed: int
    """Order in which pieces arrive."""
    records_failures_at_end: bool = False
    """Whether it records all late failures at its end, not each before its next call."""


class ServiceError(Exception):
    """What a tool raises."""


planned_calls = st.builds(
    PlannedCall,
    tool=st.sampled_from(["search", "send"]),
    item=st.integers(1, 2),
    failures=st.lists(st.sampled_from(sorted(MESSAGES)), max_size=2).map(tuple),
    succeeds=st.booleans(),
    late_failure=st.sampled_from([None, None, ("tool", "crm_ticket_locked"), ("retrieval", "no_results")]),
)


programs = st.builds(
    Program,
    calls=st.lists(planned_calls, min_size=1, max_size=4).map(tuple),
    numbering=st.sampled_from(["call", "attempt", "suffix"]),
    seed=st.integers(0, 1000),
    records_failures_at_end=st.booleans(),
)
LATE_MESSAGE = "The answer was of no use"


class SentStep(NamedTuple):
    """One attempt, as a program sends it."""

    seq: int
    first: int
    attempt: int
    call: PlannedCall
    kind: str | None
    started_at: int
    is_last: bool


def list_steps(program: Program) -> Iterator[SentStep]:
    seqs = itertools.count(1)
    for call in program.calls:
        first = 0
        for attempt, kind in enumerate(call.attempts, start=1):
            seq = next(seqs)
            first = first or seq
            is_last = attempt == len(call.attempts)
            yield SentStep(seq, first, attempt, call, kind, STARTED + 10_000 * seq, is_last)


def late_failures(program: Program) -> dict[int, tuple[str, str]]:
    """The failures that are recorded for an attempt that succeeded, by its number."""
    return {
        step.seq: step.call.late_failure
        for step in list_steps(program)
        if step.is_last and step.kind is None and step.call.late_failure
    }


# In this process

_script: deque[str | None] = deque()


def search(item: int) -> str:
    return _answer()


def send(item: int) -> str:
    return _answer()


def _answer() -> str:
    kind = _script.popleft()
    if kind is not None:
        raise ServiceError(MESSAGES[kind])
    return "ok"


def read_store(played: Sandbox) -> Store:
    assert played.runs  # waits for the recorder
    return played.store


def record_wrapped(program: Program) -> dict[str, Any]:
    with sandbox() as played:
        with mulligan.run("agent") as run:
            late, steps = late_failures(program), list(list_steps(program))
            for first in [step for step in steps if step.attempt == 1]:
                call = first.call
                _script.extend(call.attempts)
                function = {"search": search, "send": send}[call.tool]
                try:
                    policy = mulligan.Policy(attempts=len(call.attempts), down_after=0, retry_tokens=1000)
                    mulligan.tool(effects="none", policy=policy)(function)(item=call.item)
                except ServiceError:
                    pass
                last = next(step for step in steps if step.first == first.seq and step.is_last)
                record_late_failures(run, program, late, last.seq)
        return describe(read_store(played), run.status)


def record_late_failures(run: Any, program: Program, late: dict[int, tuple[str, str]], seq: int) -> None:
    """Record the failure of a step that has ended, or all of them after the last step."""
    is_end = seq == sum(len(call.attempts) for call in program.calls)
    seqs = [seq] if not program.records_failures_at_end else late if is_end else []
    for failed_seq in seqs:
        if failed_seq in late:
            run.record_failure(*late[failed_seq], LATE_MESSAGE, step_id=failed_seq)


def record_by_hand(program: Program) -> dict[str, Any]:
    with sandbox() as played:
        with mulligan.run("agent") as run:
            late = late_failures(program)
            for step in list_steps(program):
                options: dict[str, Any] = {"arguments": {"item": step.call.item}}
                name = step.call.tool
                if program.numbering == "call" and step.attempt > 1:
                    options["call"] = step.first
                elif program.numbering == "attempt":
                    options["attempt"] = step.attempt
                elif program.numbering == "suffix":
                    name = f"{name}_attempt_{step.attempt}"
                try:
                    with run.step("tool", name, **options):
                        if step.kind is not None:
                            raise ServiceError(MESSAGES[step.kind])
                except ServiceError:
                    pass
                record_late_failures(run, program, late, step.seq)
        return describe(read_store(played), run.status)


# To a server


def step_payload(step: SentStep, numbering: str) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "seq": step.seq, "name": step.call.tool, "arguments": {"item": step.call.item}, "started_at": step.started_at,
        "duration_seconds": 1.0,
    }  # fmt: skip
    if numbering == "call" and step.attempt > 1:
        payload |= {"call": step.first, "attempt": step.attempt}
    elif numbering == "attempt":
        payload["attempt"] = step.attempt
    elif numbering == "suffix":
        payload["name"] += f"_attempt_{step.attempt}"
    if step.kind is not None:
        payload["failure"] = {"message": MESSAGES[step.kind]}
    return payload


def failure_payloads(program: Program) -> list[dict[str, Any]]:
    return [
        {"step": seq, "type": type, "code": code, "message": LATE_MESSAGE}
        for seq, (type, code) in late_failures(program).items()
    ]


def send_one_body(client: Any, program: Program) -> None:
    steps = [step_payload(step, program.numbering) for step in list_steps(program)]
    run = {"id": "r", "agent": "agent", "started_at": STARTED, "ended_at": STARTED + 500_000}
    assert client.post("/v1/runs", {**run, "steps": steps, "failures": failure_payloads(program)}).status == 200


def send_pieces(client: Any, program: Program) -> None:
    pieces = [
        ("/v1/runs", {"id": "r", "agent": "agent", "started_at": STARTED}),
        ("/v1/runs", {"id": "r", "started_at": STARTED, "ended_at": STARTED + 500_000}),
        *(("/v1/steps", {"run": "r", **step_payload(step, program.numbering)}) for step in list_steps(program)),
        *(("/v1/failures", {"run": "r", **failure}) for failure in failure_payloads(program)),
    ]
    order = random.Random(program.seed)
    pieces += order.sample(pieces, len(pieces) // 2)
    order.shuffle(pieces)
    for path, body in pieces:
        answer = client.post(path, body)
        assert answer.status == 200, (path, body, answer.json)


def send_spans(client: Any, program: Program) -> None:
    trace, root = "a" * 32, "b" * 16
    late = late_failures(program)
    spans, corrections = [], []
    for step in list_steps(program):
        name = step.call.tool + (f"_attempt_{step.attempt}" if program.numbering == "suffix" else "")
        facts: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name,
            "gen_ai.tool.call.arguments": f'{{"item": {step.call.item}}}',
        }  # fmt: skip
        if program.numbering != "suffix":
            facts |= {"gen_ai.tool.call.id": f"call-{step.first}", "mulligan.attempt": step.attempt}
        start = step.started_at * 1_000_000
        error = MESSAGES[step.kind] if step.kind is not None else None
        span = Made(trace, f"{step.seq:016x}", root, f"execute_tool {name}", start, start + SECOND, facts, error)
        spans.append(span)
        if step.seq in late:
            type, code = late[step.seq]
            facts = {**facts, "mulligan.failure.type": type, "mulligan.failure.code": code}
            corrections.append(span._replace(facts=facts, error=LATE_MESSAGE))
    end = (STARTED + 500_000) * 1_000_000
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "agent"}
    for export in ([*spans, Made(trace, root, "", "agent", BEGUN, end, agent)], corrections, spans):
        if export:
            answer = client.post("/v1/traces", body=as_protobuf(export), Content_Type="application/x-protobuf")
            assert answer.status == 200


# What is compared


def describe(store: Store, status: str | None = None, tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
    (history,) = store.export(tenant)
    total = store.stats(tenant, StatsQuery(now=0)).total
    assert status in (None, status_of(history)), "the status of the live run is that of the stored one"
    names = ("runs", "calls", "first_try", "recovered", "repaired", "unrecovered", "attempts")
    return {
        "agent": history.run.agent,
        "status": status_of(history),
        "calls": [
            [
                (step.type, step.name, step.attempt, step.arguments, step.outcome, _kind(step),
                 step.recovery.remedy.value if step.recovery else None)
                for step in call.steps
            ]
            for call in group_attempts(history.steps)
        ],
        "links": [(link.failed_call, link.recovering_call, link.method) for link in history.links],
        "patterns": sorted(
            (pattern.id, str(pattern.kind), pattern.occurrences, pattern.recovered)
            for pattern in store.patterns(tenant, PatternQuery())
        ),
        "stats": {name: getattr(total, name) for name in names},
        "kinds": {str(kind): (cell.failures, cell.calls, cell.unrecovered) for kind, cell in total.kinds.items()},
    }  # fmt: skip


def _kind(step: Any) -> str | None:
    return str(step.failure.kind) if step.failure is not None else None


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(tmp_path_factory.mktemp("five")) as running:
        yield running


_tenants = (f"t{number}" for number in itertools.count())


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(program=programs)
def test_one_program_recorded_five_ways_gives_the_same(running: Running, program: Program) -> None:
    results = {"wrapped": record_wrapped(program), "by hand": record_by_hand(program)}
    for way, send_program in (("one body", send_one_body), ("pieces", send_pieces), ("spans", send_spans)):
        tenant = next(_tenants)
        send_program(running.holding("ingest", tenant=tenant, principal="p"), program)
        results[way] = describe(running.store, tenant=tenant)
    assert list(results) == list(WAYS)
    for way, result in results.items():
        assert result == results["wrapped"], way
