"""Another program sends a run piece by piece: each piece changes what it names, and nothing is dropped silently."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunStarted, StepEnded
from mulligan.core.records import Run, Step, to_builtins

STARTED = 1_794_700_000_000


@pytest.fixture(params=["sqlite", "postgres"])
def world(request, tmp_path):
    from servers import served
    from stores import STORES

    with served(tmp_path, store=STORES[request.param](tmp_path)) as running:
        yield running


@pytest.fixture
def sender(world):
    return world.anybody()


def read_run(world, id="r"):
    return world.store.run(DEFAULT_TENANT, id)


def post(sender, path, sent):
    answer = sender.post(path, sent)
    assert answer.status == 200, answer.json
    return answer.json


def test_ending_a_run_changes_only_what_is_sent(world, sender):
    first = {
        "id": "r", "agent": "nightly", "version": "2", "session": "s", "context": "clean up",
        "metadata": {"team": "a", "model": "big-1"}, "started_at": STARTED, "steps": [{"name": "fetch"}],
    }  # fmt: skip
    post(sender, "/v1/runs", first)
    assert post(sender, "/v1/runs", {"id": "r", "end_reason": "finished"})["new"] == 1

    history = read_run(world)
    assert (history.run.agent, history.run.version, history.run.session) == ("nightly", "2", "s")
    assert (history.run.started_at, history.run.context) == (STARTED, "clean up")
    assert history.run.end_reason == "finished"
    assert len(history.steps) == 1

    ended_at = history.run.ended_at
    assert post(sender, "/v1/runs", {"id": "r", "end_reason": "finished"})["new"] == 0
    assert read_run(world).run.ended_at == ended_at

    post(sender, "/v1/runs", {"id": "r", "environment": "prod", "metadata": {"team": "b"}})
    run = read_run(world).run
    assert (run.environment, run.end_reason, run.ended_at) == ("prod", "finished", ended_at)
    assert run.metadata == {"team": "b", "model": "big-1"}
    (part,) = world.person().get("/v1/stats?by=environment&since=all").json["parts"]
    assert (part["environment"], part["calls"]) == ("prod", 1)


@pytest.mark.parametrize("level", ["local", "shared"])
def test_attempts_that_are_sent_apart_are_one_call_at_each_level_and_may_be_sent_again(tmp_path, level):
    from servers import served

    attempts = [
        {"run": "r", "seq": seq, "name": f"fetch_attempt_{seq - 1}", "started_at": STARTED + seq * 10_000,
         **({"failure": {"message": "Read timed out"}} if seq < 3 else {})}
        for seq in (1, 2, 3)
    ]  # fmt: skip
    with served(tmp_path, level=level) as running:
        for attempt in (attempts[2], attempts[0], attempts[1], *attempts):
            post(running.anybody(), "/v1/steps", attempt)
        post(running.anybody(), "/v1/runs", {"id": "r", "ended_at": STARTED + 60_000})
        steps = running.store.run(DEFAULT_TENANT, "r").steps
        assert [(step.name, step.call, step.attempt) for step in steps] == [
            ("fetch", 1, 1), ("fetch", 1, 2), ("fetch", 1, 3),
        ]  # fmt: skip
        assert [step.recovery and step.recovery.backoff_seconds for step in steps] == [None, 10.0, 10.0]
        assert running.person().get("/v1/runs/r").json["status"] == "recovered"


def test_user_and_tags_of_a_run_are_metadata_and_may_come_later(world, sender):
    post(sender, "/v1/runs", {"id": "r", "metadata": {"team": "a"}, "user": "u-1"})
    post(sender, "/v1/runs", {"id": "r", "tags": ["nightly"]})
    assert read_run(world).run.metadata == {"team": "a", "user": "u-1", "tags": ["nightly"]}
    refused = sender.post("/v1/runs", {"id": "r", "tags": "nightly"})
    assert (refused.status, refused.json["pointer"]) == (400, "/tags")


def test_a_run_that_was_sent_without_a_start_keeps_its_first_one(world, sender):
    post(sender, "/v1/runs", {"id": "r"})
    started_at = read_run(world).run.started_at
    post(sender, "/v1/runs", {"id": "r", "ended_at": started_at + 1000})
    assert read_run(world).run.started_at == started_at

    answer = sender.post("/v1/runs", {"id": "r", "ended_at": started_at - 60_000})
    assert (answer.status, answer.json["error"]) == (409, "conflict")
    assert "Run 'r' started at" in answer.json["message"]
    assert read_run(world).run.ended_at == started_at + 1000


def test_a_redacted_field_stays_as_it_is_stored(tmp_path):
    """Values are redacted once: a hash of a hash would match nothing."""
    from servers import served

    with served(tmp_path, level="shared") as running:
        sender = running.anybody()
        post(sender, "/v1/runs", {"id": "r", "metadata": {"customer": "Ada Lovelace"}, "steps": [{"name": "a"}]})
        before = running.store.run(DEFAULT_TENANT, "r").run.metadata
        post(sender, "/v1/runs", {"id": "r", "metadata": {"other": "x"}, "end_reason": "finished"})
        after = running.store.run(DEFAULT_TENANT, "r").run.metadata
        assert after["customer"] == before["customer"]
        assert "Ada" not in str(after)


def test_a_step_that_contradicts_a_stored_one_is_refused_by_name(world, sender):
    post(sender, "/v1/runs", {"id": "r", "steps": [{"name": "fetch", "arguments": {"k": 1}, "duration_seconds": 1}]})

    for path, sent in (
        ("/v1/runs", {"id": "r", "agent": "changed", "steps": [{"name": "send"}]}),
        ("/v1/runs", [{"id": "other"}, {"id": "r", "steps": [{"name": "fetch", "arguments": {"k": 2}}]}]),
        ("/v1/steps", {"run": "r", "seq": 1, "name": "fetch", "outcome": "cancelled"}),
        ("/v1/steps", [{"run": "new", "seq": 3, "name": "a"}, {"run": "new", "seq": 3, "name": "b"}]),
    ):
        answer = sender.post(path, sent)
        assert (answer.status, answer.json["error"]) == (409, "conflict"), answer.json
    assert "Step 3 of run 'new' is stored with another name." in answer.json["message"]
    assert read_run(world, "other") is None
    assert read_run(world, "new") is None
    assert read_run(world).run.agent == ""
    (step,) = read_run(world).steps
    assert (step.name, step.arguments) == ("fetch", {"k": 1})


def test_the_same_body_again_stores_nothing_and_is_no_conflict(world, sender):
    run = {
        "id": "r", "agent": "a", "steps": [
            {"name": "fetch", "arguments": {"a": [1, 2.0], "b": None}, "failure": {"message": "Read timed out"}},
            {"name": "fetch", "call": 1, "result": {"ok": True}, "tokens": {"input": 3}},
            {"name": "big-1", "type": "model", "metadata": {"note": "n"}},
        ],
        "failures": [{"step": 1, "code": "timeout"}, {"message": "disk full"}],
    }  # fmt: skip
    assert post(sender, "/v1/runs", run)["new"] == 5
    assert post(sender, "/v1/runs", run)["new"] == 0
    reordered = json.loads(json.dumps(run, sort_keys=True))
    assert post(sender, "/v1/runs", reordered)["new"] == 0
    steps = [{"run": "r", "seq": seq, **step} for seq, step in enumerate(run["steps"], start=1)]
    assert post(sender, "/v1/steps", steps)["new"] == 0


def test_a_failure_with_a_used_id_and_another_message_is_refused(world, sender):
    sent = {"run": "r", "id": "f-1", "message": "disk full"}
    assert post(sender, "/v1/failures", sent)["new"] == 2
    assert post(sender, "/v1/failures", sent)["new"] == 0
    answer = sender.post("/v1/failures", {**sent, "message": "no such host"})
    assert (answer.status, answer.json["error"]) == (409, "conflict")
    assert "A failure with the same id of run 'r' is stored with another message." in answer.json["message"]


def test_steps_without_numbers_are_appended(world, sender):
    post(sender, "/v1/runs", {"id": "r", "steps": [{"name": "plan"}, {"name": "fetch", "seq": 5}]})
    post(sender, "/v1/failures", {"run": "r", "message": "disk full"})

    assert post(sender, "/v1/steps", {"run": "r", "name": "send"}) == {"new": 1, "seqs": [6]}
    assert post(sender, "/v1/steps", {"run": "r", "name": "send"}) == {"new": 1, "seqs": [7]}
    failed = {"run": "r", "name": "pay", "failure": {"message": "Read timed out"}}
    assert post(sender, "/v1/steps", [failed, {"run": "r", "name": "log"}])["seqs"] == [8, 9]
    assert post(sender, "/v1/steps", {"run": "r", "name": "pay", "call": 8})["seqs"] == [10]

    answer = sender.post("/v1/steps", {"run": "r", "name": "pay", "call": 99})
    assert (answer.status, answer.json["error"]) == (409, "conflict")
    assert "Run 'r' has no step 99 yet" in answer.json["message"]

    names = {step.seq: step.name for step in read_run(world).steps if step.seq < 100}
    assert names == {1: "plan", 5: "fetch", 6: "send", 7: "send", 8: "pay", 9: "log", 10: "pay"}
    retried = next(step for step in read_run(world).steps if step.seq == 10)
    assert (retried.call, retried.attempt) == (8, 2)


def test_many_steps_without_numbers_are_appended_at_once_or_not_at_all(world, sender):
    failed = {"run": "r", "name": "pay", "failure": {"message": "Read timed out"}}
    answer = post(sender, "/v1/steps", [failed] * 100)
    assert answer == {"new": 101, "seqs": list(range(1, 101))}
    refused = sender.post("/v1/steps", [failed] * 101)
    assert (refused.status, refused.json["error"]) == (413, "too_large")
    assert len(read_run(world).steps) == 100


def test_steps_that_several_senders_append_at_once_are_all_stored(world, sender):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(sender, "/v1/steps", {"run": "r", "name": "ping"}), range(40)))
    assert sorted(answer["seqs"][0] for answer in answers) == list(range(1, 41))
    assert len(read_run(world).steps) == 40


def test_two_servers_of_one_database_append_no_number_twice(postgres_url, tmp_path):
    from servers import served

    from mulligan.store.postgres.postgres_store import PostgresStore

    with served(tmp_path, store=PostgresStore(postgres_url)) as one, served(
        tmp_path, store=PostgresStore(postgres_url)
    ) as two:  # fmt: skip
        senders, barrier = [one.anybody(), two.anybody()], threading.Barrier(2)

        def append(sender):
            barrier.wait()
            return [post(sender, "/v1/steps", {"run": "r", "name": "ping"})["seqs"][0] for _ in range(15)]

        with ThreadPoolExecutor(2) as pool:
            seqs = [seq for part in pool.map(append, senders) for seq in part]
        assert sorted(seqs) == list(range(1, 31))


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/v1/steps", {"run": "r", "seq": 2, "name": "fetch", "started_at": STARTED}),
        ("/v1/steps", {"run": "r", "name": "fetch", "started_at": STARTED}),
        ("/v1/failures", {"run": "r", "message": "disk full", "started_at": STARTED}),
    ],
)
def test_records_of_an_unknown_run_create_it(world, sender, path, sent):
    assert post(sender, path, sent)["new"] == 2
    person = world.person()
    assert [run["id"] for run in person.get("/v1/runs").json["runs"]] == ["r"]
    assert person.get("/v1/runs/r").json["run"]["started_at"] == STARTED

    post(sender, "/v1/runs", {"id": "r", "agent": "late", "started_at": STARTED - 5000, "end_reason": "finished"})
    found = person.get("/v1/runs/r").json
    assert (found["run"]["agent"], found["run"]["started_at"]) == ("late", STARTED - 5000)
    assert len(found["steps"]) == 1
    assert [part["agent"] for part in person.get("/v1/stats?by=agent&since=all").json["parts"]] == ["late"]


def test_the_start_of_a_run_in_a_batch_completes_one_that_its_records_created(world, sender):
    post(sender, "/v1/failures", {"run": "run_a", "message": "disk full"})
    events = [
        RunStarted(Run(id="run_a", agent="helper", started_at=STARTED)),
        StepEnded(Step(run="run_a", seq=1, call=1, name="search", started_at=STARTED)),
    ]
    batch = {"client": "c", "journal": "1-j", "offset": 2, "events": to_builtins(events)}
    assert post(sender, "/v1/batch", batch)["new"] == 2
    run = read_run(world, "run_a").run
    assert (run.agent, run.started_at) == ("helper", STARTED)


@pytest.mark.parametrize(
    ("path", "sent", "field"),
    [
        ("/v1/runs", {"id": "r", "started_at": 1_794_700_000}, "started_at"),
        ("/v1/runs", {"id": "r", "ended_at": 1_794_700_000}, "ended_at"),
        ("/v1/runs", {"id": "r", "steps": [{"name": "a", "started_at": 1_794_700_000}]}, "steps[0].started_at"),
        ("/v1/runs", {"id": "r", "failures": [{"started_at": 1_794_700_000}]}, "failures[0].started_at"),
        ("/v1/steps", [{"run": "r", "seq": 1, "started_at": 1_794_700_000}], "[0].started_at"),
        ("/v1/failures", {"run": "r", "started_at": 1_794_700_000}, "started_at"),
    ],
)
def test_a_time_in_seconds_is_refused_with_the_time_to_send(serving, anybody, path, sent, field):
    answer = anybody.post(path, sent)
    assert (answer.status, answer.json["field"]) == (400, field)
    reason = "it is in seconds (2026-11-14 23:46:40). Use UTC milliseconds: 1794700000000."
    assert answer.json["message"].endswith(reason)
    assert serving.store.run(DEFAULT_TENANT, "r") is None


def test_a_time_in_the_future_or_in_microseconds_is_refused(serving, anybody):
    now, day = serving.server.clock(), 24 * 3_600_000
    assert anybody.post("/v1/runs", {"id": "r", "started_at": now + day // 2}).status == 200

    answer = anybody.post("/v1/runs", {"id": "s", "started_at": now + 2 * day})
    assert (answer.status, answer.json["field"]) == (400, "started_at")
    assert "is after" in answer.json["message"]
    assert "the time of the server. Check the sender's clock" in answer.json["message"]

    answer = anybody.post("/v1/runs", {"id": "s", "started_at": now * 1000})
    assert "it is in microseconds or nanoseconds" in answer.json["message"]
    report = {"fix_id": "fix_a", "run": "r", "successful": True, "at": now + 2 * day}
    assert anybody.post("/v1/outcomes", report).json["field"] == "at"
