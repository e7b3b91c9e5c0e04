"""A body with many failures: others are answered meanwhile, callers take turns, nothing of it is lost or doubled."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any, get_args

import pytest
from servers import Client
from spans import Made, as_protobuf

from mulligan.contract import counters
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import StepEnded
from mulligan.core.records import Step, encode
from mulligan.server import background, bodies, ingest, opentelemetry, payloads
from mulligan.server.access import Caller
from mulligan.server.background import FairQueue
from mulligan.server.tenants import Tenant


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


# Decoding in slices

RUN = {
    "id": "r", "agent": "a", "started_at": 1, "ended_at": 2, "metadata": {"model": "m", "q": 'a "quoted" \\ word'},
    "steps": [
        {"name": "a", "arguments": {"q": ["é", "\ud83d\ude00", None], "n": {"x": {"y": 1.5}}}, "result": "]}{["},
        {"seq": 2, "name": "b", "failure": {"message": 'he said "no"', "status": 500}, "metadata": {}},
    ],
    "failures": [{"step": 2, "code": "timeout"}],
}  # fmt: skip
STEP = b'{"event":"step.ended","step":{"run":"r","seq":1,"call":1,"name":"search","arguments":{"q":1}}}'
BATCH = b'{"client":"c","journal":"j","offset":3,"events":[%s,%s]}' % (STEP, STEP.replace(b'"seq":1', b'"seq":2'))


def decode_both_ways(body: bytes, type: Any, monkeypatch) -> list[Any]:
    """Return what a body means, decoded at once and an item at a time: a record, or status, message and field.

    For JSON that is too deep or has duplicate keys, only the second way knows where.
    """
    outcomes: list[Any] = []
    object_type = get_args(type)[0] if get_args(type) else type
    for is_sliced in (False, True):
        try:
            if is_sliced:
                monkeypatch.setattr(bodies, "MAX_INLINE_BYTES", 0)
                item_types = payloads.ITEM_TYPES.get(object_type, {})
                outcomes.append(background.complete(bodies.parse_in_slices(body, type, object_type, item_types)))
            else:
                outcomes.append(bodies.parse_json(body, type))
        except bodies.ApiError as error:
            has_no_field = error.message.startswith(("Duplicate key", "The JSON is nested"))
            is_malformed = error.message.startswith(("Invalid JSON", "Invalid Unicode"))
            field = "" if has_no_field else error.field
            outcomes.append((error.status, "malformed") if is_malformed else (error.status, error.message, field))
    return outcomes


def changed(path: str, value: object) -> bytes:
    """The run with another value at a path such as steps.0.name."""
    run = json.loads(json.dumps(RUN))
    *parents, last = path.split(".")
    target = run
    for name in parents:
        target = target[int(name) if isinstance(target, list) else name]
    target[last] = value
    return json.dumps(run).encode()


DEEP = json.loads("[" * 70 + "]" * 70)
RUN_BODIES = [
    json.dumps(RUN).encode(), json.dumps([RUN, {"id": "x"}, RUN], indent=2).encode(), b"[]", b"{}", b" [ ] ", b"",
    b"[7]", b"{", b"[{}", b"{}{}", json.dumps(RUN).encode()[:-1], b"\xff", b'{"id":"\\ud800"}',
    changed("steps", None), changed("steps", {"a": 1}), changed("steps", [1]), changed("steps.1.seq", "one"),
    changed("steps.0.name", "x" * 201), changed("steps.0.unknown", 1), changed("unknown", 1), changed("agent", 5),
    changed("failures.0.status", 5), changed("steps.1.failure.status", 5), changed("steps.0.arguments", DEEP),
    changed("metadata.deep", DEEP), changed("steps.0.result", json.loads("[" * 60 + "]" * 60)),
    changed("steps.0.result", json.loads("[" * 62 + "]" * 62)), b"[" + changed("steps.1.seq", "one") + b"]",
    b"[" + changed("agent", 5) + b"]", json.dumps([{}] * 10_001).encode(), changed("steps", [{}] * 10_001),
    json.dumps(RUN).encode().replace(b'"agent"', b'"id": "s", "agent"'),
    json.dumps(RUN).encode().replace(b'"steps"', b'"steps": [], "steps"'),
    json.dumps(RUN).encode().replace(b'"seq"', b'"seq": 1, "seq"'),
    json.dumps(RUN).encode().replace(b'"model"', b'"model": "n", "model"'),
]  # fmt: skip


@pytest.mark.parametrize("body", RUN_BODIES, ids=range(len(RUN_BODIES)))
def test_a_body_decoded_an_item_at_a_time_means_the_same(body, monkeypatch):
    at_once, sliced = decode_both_ways(body, payloads.RunPayloads, monkeypatch)
    assert sliced == at_once


@pytest.mark.parametrize(
    "body",
    [BATCH, b"[%s]" % BATCH, BATCH.replace(b'"seq":2', b'"seq":"2"'), BATCH.replace(b'"seq":2', b'"seq":2,"seq":2'),
     BATCH.replace(b'"client":"c",', b""), BATCH.replace(b'"events"', b'"event"'), BATCH.replace(b"step.ended", b"no")],
)  # fmt: skip
def test_a_batch_decoded_an_item_at_a_time_means_the_same(body, monkeypatch):
    at_once, sliced = decode_both_ways(body, payloads.BatchPayload, monkeypatch)
    assert sliced == at_once


def test_a_large_body_is_decoded_in_slices(serving, anybody, monkeypatch):
    sliced, parse = [], bodies.parse_in_slices
    monkeypatch.setattr(bodies, "parse_in_slices", lambda *given: sliced.append(len(given[0])) or parse(*given))
    steps = [{"name": "search", "result": "x" * 1000} for _ in range(300)]
    assert anybody.post("/v1/runs", {"id": "r", "steps": steps}).json == {"new": 301, "runs": ["r"]}
    assert anybody.post("/v1/runs", {"id": "s"}).status == 200
    assert len(sliced) == 1


def test_an_item_that_takes_too_long_to_decode_is_refused(anybody):
    steps = [{"name": "search"}, {"name": "search", "arguments": {"numbers": [1] * 1_000_000}}]
    answer = anybody.post("/v1/runs", {"id": "r", "steps": steps})
    assert (answer.status, answer.json["error"], answer.json["field"]) == (413, "too_large", "steps[1]")
    assert "The limit is 2,097,152." in answer.json["message"]
