"""A body with many failures: others are answered meanwhile, callers take turns, nothing of it is lost or doubled."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest
from servers import Client
from spans import Made, as_protobuf

from mulligan.core.events import StepEnded
from mulligan.core.records import Step, encode
from mulligan.server import background, ingest, opentelemetry
from mulligan.server.access import Caller
from mulligan.server.background import FairQueue
from mulligan.server.tenants import Tenant
from mulligan.store import counters
from mulligan.store.base import DEFAULT_TENANT
from mulligan.store.counters import StatsQuery


def failing_run(id: str, failures: int) -> dict[str, object]:
    """A run in which each tool fails once and then works with another argument."""
    steps: list[dict[str, object]] = []
    for number in range(failures):
        text = f"column {number} of the table orders_{number * 7} is unknown to host {number % 13}"
        steps.append({"name": f"tool_{number}", "arguments": {"q": f"a{number}"}, "failure": {"message": text}})
        steps.append({"name": f"tool_{number}", "arguments": {"q": f"b{number}"}, "result": number})
    return {"id": id, "agent": "a", "started_at": 1000, "ended_at": 2000, "steps": steps}


@pytest.fixture
def process(tmp_path):
    command = [sys.executable, "-m", "mulligan", "serve", "--no-auth", "--port", "0"]
    started = subprocess.Popen([*command, "--store", str(tmp_path / "s.db")], stdout=subprocess.PIPE, text=True)
    try:
        yield Client(int(started.stdout.readline().split("127.0.0.1:")[1].split()[0].rstrip("/")))
    finally:
        started.kill()
        started.communicate()


@pytest.mark.slow
def test_a_health_check_and_a_small_write_are_answered_before_a_hostile_batch(process):
    answered: list[str] = []
    hostile = json.dumps(failing_run("hostile", 300)).encode()

    def send_hostile() -> None:
        answered.append(f"hostile {process.post('/v1/runs', body=hostile).json['new']}")

    thread = threading.Thread(target=send_hostile)
    thread.start()
    while not process.get("/readyz").json["waiting_bytes"] and thread.is_alive():
        time.sleep(0.005)
    assert process.get("/healthz").status == 200
    answered.append("health")
    assert process.post("/v1/runs", failing_run("small", 1)).json["new"] == 3
    answered.append("small")
    thread.join(60)
    assert answered == ["health", "small", "hostile 601"]


def test_callers_take_turns_first_between_tenants_then_between_callers_of_a_tenant():
    queue: FairQueue[str] = FairQueue()
    for tenant, principal, items in (("a", "x", "123"), ("a", "y", "4"), ("b", "z", "56")):
        for item in items:
            queue.push(Caller(tenant, principal), item)
    assert "".join(queue.pop() for _ in range(6)) == "154623"
    assert not queue


def test_a_tenant_with_many_large_bodies_does_not_delay_the_one_of_another(serving):
    serving.server.tenants.create(Tenant("other"))
    busy, other = serving.holding("ingest"), serving.holding("ingest", tenant="other")
    answered: list[str] = []

    def send(client: Client, name: str, failures: int) -> None:
        assert client.post("/v1/runs", failing_run(name, failures)).status == 200
        answered.append(name)

    threads = [threading.Thread(target=send, args=(busy, f"busy-{number}", 60)) for number in range(4)]
    for thread in threads:
        thread.start()
    while serving.server.committer.pending_bytes == 0:
        time.sleep(0.002)
    send(other, "other", 6)
    for thread in threads:
        thread.join(60)
    assert len(answered) == 5
    assert answered.index("other") <= 1


def test_a_run_that_is_stored_in_parts_is_the_same_as_one_stored_at_once(serving, anybody, monkeypatch):
    body = failing_run("r", 60)
    assert anybody.post("/v1/runs", body).json == {"new": 121, "runs": ["r"]}
    assert serving.server.committer.transactions > 1
    in_parts = serving.store.run(DEFAULT_TENANT, "r")
    stats = serving.store.stats(DEFAULT_TENANT, StatsQuery(now=0))
    assert stats == counters.stats(list(serving.store.export(DEFAULT_TENANT)), StatsQuery(now=0))
    assert anybody.post("/v1/runs", body).json["new"] == 0

    monkeypatch.setattr(ingest, "MAX_INLINE_WEIGHT", 10**9)
    serving.server.tenants.create(Tenant("other"))
    assert serving.holding("ingest", tenant="other").post("/v1/runs", body).json["new"] == 121
    assert serving.store.run("other", "r") == in_parts
    assert in_parts.run.end_reason == "finished"


def test_a_large_batch_of_a_library_is_stored_in_parts_and_its_offset_with_the_last_one(serving, anybody):
    events = [StepEnded(Step(run=f"r{number}", seq=1, call=1, name="search")) for number in range(2500)]
    body = encode({"client": "c", "journal": "j", "offset": 9, "events": events})
    assert anybody.post("/v1/batch", body=body).json == {"new": 2500, "offset": 9}
    assert serving.server.committer.transactions > 1
    assert anybody.post("/v1/batch", body=body).json == {"new": 0, "offset": 9}
    assert serving.store.offset(DEFAULT_TENANT, "remote:c:j") == 9


def test_a_part_that_cannot_be_stored_is_told_and_all_of_it_can_be_sent_again(serving, anybody, monkeypatch):
    appended, calls = serving.store.append_all, []

    def fails_at_the_second(batches):
        calls.append(batches)
        if len(calls) == 2:
            raise background.StoreError("no room left")
        return appended(batches)

    monkeypatch.setattr(serving.store, "append_all", fails_at_the_second)
    answer = anybody.post("/v1/runs", failing_run("r", 60))
    assert answer.status == 503
    assert answer.json["message"].startswith("A part of this request is stored. Send all of it again")
    assert anybody.post("/v1/runs", failing_run("r", 60)).status == 200
    history = serving.store.run(DEFAULT_TENANT, "r")
    assert [step.seq for step in history.steps] == list(range(1, 121))
    assert serving.server.committer.pending_bytes == 0


def test_an_invalid_item_of_a_large_body_is_named_and_nothing_is_stored(serving, anybody):
    body = failing_run("r", 60)
    body["steps"][100]["call"] = 119
    answer = anybody.post("/v1/runs", body)
    assert (answer.status, answer.json["field"]) == (400, "steps[100].call")
    assert serving.store.run(DEFAULT_TENANT, "r") is None


def test_more_failures_than_a_body_may_have_are_refused_with_the_limit(anybody, monkeypatch):
    monkeypatch.setattr(ingest, "MAX_BODY_FAILURES", 5)
    answer = anybody.post("/v1/runs", failing_run("r", 6))
    assert (answer.status, answer.json["error"]) == (413, "too_large")
    assert answer.json["message"] == "6 failures in one body. The limit is 5. Send less at once."
    failures = [{"run": "r", "message": f"no {number}"} for number in range(6)]
    assert anybody.post("/v1/failures", failures).status == 413


def test_failed_spans_are_stored_in_parts_and_an_export_has_a_limit(serving, anybody, monkeypatch):
    trace = "1" * 32
    facts = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
    spans = [
        Made(trace, f"{number + 1:016x}", "", "execute_tool search", number, number + 1, facts, f"no host {number}")
        for number in range(60)
    ]
    body = as_protobuf(spans)
    assert anybody.post("/v1/traces", body=body, Content_Type="application/x-protobuf").status == 200
    assert serving.server.committer.transactions > 1
    (history,) = serving.store.export(DEFAULT_TENANT)
    assert len(history.steps) == 60
    monkeypatch.setattr(opentelemetry, "MAX_FAILED_SPANS", 59)
    answer = anybody.post("/v1/traces", body=body, Content_Type="application/x-protobuf")
    assert answer.status == 413
    assert b"The limit is 59" in answer.body
