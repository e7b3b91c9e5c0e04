"""A week of three agents with four tools and a model, made up: 140 runs, and every way a run can end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from mulligan.classify.fingerprint import compute_fingerprint
from mulligan.contract.store import DAY, DEFAULT_TENANT, Store
from mulligan.core.events import AnyEvent, ContextCompacted, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Remedy
from mulligan.core.kinds import KINDS
from mulligan.core.records import Change, Compaction, History, Recovery, RecoveryStop, Run, Step
from mulligan.core.run_links import link_recoveries

AGENTS = ("bookkeeper", "gardener", "receptionist")
ENDS = ("success",) * 58 + ("recovered",) * 69 + ("partial",) * 4 + ("failure",) * 9


class Trouble(NamedTuple):
    """A way in which a tool fails, and what comes after."""

    tool: str
    kind: str
    message: str
    arguments: dict[str, Any]
    changes: tuple[Change, ...] = ()
    took: float = 0.3


TROUBLES = (
    Trouble("find_orders", "tool/invalid_arguments", "limit must be at most 25, got {n}", {"customer": "Lindqvist",
            "limit": 80}, (Change(path="limit", operation="clamp", before=80, after=25, source="schema"),)),
    Trouble("find_orders", "tool/invalid_arguments", "customer_id is not known, did you mean customer?",
            {"customer_id": "Okafor", "limit": 10},
            (Change(path="customer_id", operation="rename", before="customer_id", after="customer", source="schema"),)),
    Trouble("fetch_forecast", "tool/timeout", "no answer from the forecast service after 12 s", {"city": "Tromso"},
            took=12.0),
    Trouble("fetch_forecast", "tool/unavailable", "503 the forecast service is being repaired, ticket {n}",
            {"city": "Tromso"}),
    Trouble("send_letter", "tool/auth_error", "401 the key of the letter service is no longer valid",
            {"to": "the printer", "pages": 2}),
    Trouble("search_notes", "tool/timeout", "the index of notes did not answer within 4 s", {"query": "watering"},
            took=4.0),
    Trouble("planner-large", "model/rate_limit", "429 slow down: 40 requests a minute, try again in 3 s",
            {"model": "planner-large"}, took=0.8),
    Trouble("search_notes", "tool/execution_failed", "error", {"query": "pruning of roses"}),
)  # fmt: skip
GIVEN_UP = (4, 2, 7)
"""Troubles that are not overcome."""


def history(chance: random.Random, number: int, end: str, now: int) -> History:
    started = now - 60_000 - int(chance.random() ** 1.3 * 6.5 * DAY)  # all within seven calendar days
    agent = AGENTS[number % 3]
    run = Run(
        id=f"run_{number:04d}{chance.randrange(16**8):08x}",
        agent=agent,
        version=f"2.{number % 2}",
        environment="production" if chance.random() < 0.8 else "staging",
        session=f"chat-{number // 9}" if agent == "receptionist" else None,
        context=f"task {number}: what a person asked for",
        started_at=started,
        metadata={"model": "planner-large"},
    )
    made = Maker(chance, run)
    for _ in range(chance.randrange(3, 8)):
        made.plain()
        if end != "success" and chance.random() < 0.25:
            made.overcome()
    if end != "success":
        made.overcome()
    if end == "partial" or (end == "failure" and number % 2):
        made.given_up()
    if number % 20 == 3 and end == "recovered":
        made.by_the_model()
    if end == "failure":
        made.own()
    ended = msgspec.structs.replace(
        run, ended_at=made.clock, end_reason="raised" if end == "failure" and number % 3 else "finished"
    )
    smaller = Compaction(run=run.id, at=started + 4000, reason="too long", chars_before=90_000, chars_after=21_000)
    return History(
        run=ended,
        steps=tuple(made.steps),
        links=tuple(link_recoveries(made.steps)),
        compactions=(smaller,) if number % 25 == 0 else (),
    )


class Maker:
    """The steps of one run, one after the other."""

    def __init__(self, chance: random.Random, run: Run) -> None:
        self.chance, self.run, self.clock = chance, run, run.started_at + 40
        self.steps: list[Step] = []

    def _add(self, seconds: float, **fields: Any) -> Step:
        step = Step(run=self.run.id, seq=len(self.steps) + 1, started_at=self.clock, duration_seconds=round(seconds, 3),
                    **({"call": len(self.steps) + 1} | fields))  # fmt: skip
        self.steps.append(step)
        self.clock += int(seconds * 1000) + 15
        return step

    def plain(self) -> None:
        spent = {"input": 900, "output": 80}
        self._add(0.4 + self.chance.expovariate(1), type="model", name="planner-large", tokens=spent,
                  arguments={"model": "planner-large"}, result="ok")  # fmt: skip
        tool = self.chance.choice(("find_orders", "fetch_forecast", "search_notes", "send_letter"))
        arguments = {"customer": "Lindqvist", "limit": 25} if tool == "find_orders" else {"query": "a thing"}
        self._add(0.2 + self.chance.expovariate(2), name=tool, arguments=arguments, result={"found": 3})

    def _failed(self, trouble: Trouble, **fields: Any) -> Step:
        kind = KINDS[trouble.kind]
        number = self.chance.randrange(30, 100)
        message = trouble.message.format(n=number)
        arguments = trouble.arguments
        if "got {n}" in trouble.message:
            arguments = {**arguments, "limit": number}
        failure = Failure.of(
            kind, message, fingerprint=compute_fingerprint(trouble.kind, trouble.tool, message, arguments),
            evidence=("text",), confidence=0.92, status=503 if message.startswith("503") else None,
        )  # fmt: skip
        sort = "model" if trouble.kind.startswith("model") else "tool"
        return self._add(trouble.took + self.chance.random() / 5, type=sort, name=trouble.tool,
                         arguments=arguments, outcome="failure", failure=failure, **fields)  # fmt: skip

    def overcome(self) -> None:
        trouble = TROUBLES[self.chance.choice((0, 0, 1, 2, 3, 5, 6))]
        first = self._failed(trouble)
        number = 2
        while self.chance.random() < 0.3 and number < 3 and not trouble.changes:
            self.clock += 700
            self._failed(
                trouble, call=first.seq, attempt=number, recovery=Recovery(remedy=Remedy.RETRY, backoff_seconds=0.7)
            )
            number += 1
        if trouble.changes:
            (change,) = trouble.changes
            if change.operation == "clamp":
                change = msgspec.structs.replace(change, before=first.arguments["limit"])
            after = Recovery(remedy=Remedy.REPAIR, changes=(change,), source="schema", confidence=0.95)
            arguments = {"customer": "Lindqvist", "limit": 25}
        else:
            after, arguments = Recovery(remedy=Remedy.RETRY, backoff_seconds=1.1), trouble.arguments
            self.clock += 1100
        self._add(0.3 + self.chance.random(), type=first.type, name=trouble.tool, arguments=arguments, call=first.seq,
                  attempt=number, recovery=after, result={"found": 1}, tokens={"input": 400, "output": 30})  # fmt: skip

    def given_up(self) -> None:
        ending = RecoveryStop(reason="it may have taken effect, and the tool is called once")
        self._failed(TROUBLES[self.chance.choice(GIVEN_UP)], stop=ending)

    def by_the_model(self) -> None:
        """A call that was given up, and made again by the model with another argument."""
        trouble = TROUBLES[0]
        self._failed(trouble, stop=RecoveryStop(reason="nobody was sure enough"))
        self.plain()
        self._add(0.4, name=trouble.tool, arguments={"customer": "Lindqvist", "limit": 25}, result={"found": 2})

    def own(self) -> None:
        failure = Failure.of(KINDS["orchestration/uncaught_exception"], "KeyError: 'total'", fingerprint="own-1")
        self._add(0.0, type="run", name="", outcome="failure", failure=failure)


def histories(now: int, seed: int = 11) -> list[History]:
    chance = random.Random(seed)
    ends = list(ENDS)
    chance.shuffle(ends)
    return [history(chance, number, end, now) for number, end in enumerate(ends)]


def events(history: History) -> Iterator[AnyEvent]:
    yield RunStarted(history.run)
    for step in history.steps:
        yield StepEnded(step)
    for compaction in history.compactions:
        yield ContextCompacted(compaction)
    yield RunEnded(history.run)


def fill(store: Store, found: list[History], tenant: str = DEFAULT_TENANT, journal: str = "week") -> None:
    batch = [event for history in found for event in events(history)]
    store.append(tenant, batch, journal, store.offset(tenant, journal) + len(batch))
