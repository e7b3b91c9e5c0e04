"""What is sent is kept once it is acknowledged, once only, and what cannot be meant is told with its place."""

from __future__ import annotations

import pytest

from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.records import Run, Step, to_builtins
from mulligan.store.base import DEFAULT_TENANT


def batch(offset=2, **more):
    events = [
        StepEnded(Step(run="run_a", seq=1, call=1, name="search", arguments={"k": 1}, started_at=1000)),
        RunEnded(Run(id="run_a", agent="helper", started_at=1000, ended_at=1010, end_reason="finished")),
    ]
    return {"client": "c", "journal": "1-j_x", "offset": offset, "events": to_builtins(events), **more}


def test_a_batch_is_in_the_store_when_it_is_acknowledged(serving, anybody):
    told = anybody.post("/v1/batch", batch())

    assert (told.status, told.json) == (200, {"new": 2, "offset": 2})
    assert serving.store.run(DEFAULT_TENANT, "run_a").run.agent == "helper"


def test_the_same_batch_again_changes_nothing(serving, anybody):
    anybody.post("/v1/batch", batch())

    assert anybody.post("/v1/batch", batch()).json == {"new": 0, "offset": 2}
    assert anybody.post("/v1/batch", batch(journal="2-j_y")).json == {"new": 0, "offset": 2}
    assert len(serving.store.run(DEFAULT_TENANT, "run_a").steps) == 1


def test_a_run_of_another_program_gets_a_kind_a_fingerprint_a_status_and_a_pattern(serving, anybody):
    run = {
        "id": "theirs-1",
        "agent": "cron",
        "started_at": 1_794_700_000_000,
        "ended_at": 1_794_700_009_000,
        "steps": [
            {"name": "fetch", "duration_seconds": 3, "failure": {"message": "Read timed out after 3 s"}},
            {"name": "fetch", "call": 1, "duration_seconds": 0.5, "arguments": {"url": "x"}},
        ],
    }

    assert anybody.post("/v1/runs", run).json == {"new": 3, "runs": ["theirs-1"]}

    told = serving.person().get("/v1/runs/theirs-1").json
    assert told["status"] == "recovered"
    assert [each["attempts"] for each in told["calls"]] == [2]
    (pattern,) = serving.person().get("/v1/patterns").json["patterns"]
    assert (pattern["kind"], pattern["occurrences"], pattern["recovered"]) == ("tool/timeout", 1, 1)


def test_a_further_attempt_that_names_another_further_attempt_is_told_so(anybody):
    """Whoever counts calls 1, 2, 3 instead would have attempts joined that have nothing to do with each other."""
    steps = [
        {"name": "fetch", "call": 1, "failure": {"message": "Read timed out"}},
        {"name": "fetch", "call": 1},
        {"name": "send", "call": 2},
    ]
    told = anybody.post("/v1/runs", {"id": "r", "steps": steps})
    assert (told.status, told.json["field"]) == (400, "steps[2].call")
    assert "Invalid call 2: that step is a later attempt. Use its call, 1." in told.json["message"]
    steps[2]["call"] = 3
    assert anybody.post("/v1/runs", {"id": "r", "steps": steps}).json["new"] == 4


def test_the_same_run_again_changes_nothing(anybody):
    run = {"id": "r", "ended_at": 5, "started_at": 1, "steps": [{"name": "a"}], "failures": [{"message": "no disk"}]}

    assert anybody.post("/v1/runs", run).json["new"] == 3
    assert anybody.post("/v1/runs", run).json["new"] == 0


def test_a_run_without_an_id_is_given_one(serving, anybody):
    (id,) = anybody.post("/v1/runs", {"agent": "x", "end_reason": "finished"}).json["runs"]

    assert serving.store.run(DEFAULT_TENANT, id).run.agent == "x"


def test_steps_and_failures_come_later_and_belong_to_their_run(serving, anybody):
    anybody.post("/v1/runs", {"id": "r", "agent": "x", "started_at": 1000})
    anybody.post("/v1/steps", [{"run": "r", "seq": 1, "name": "plan", "type": "plan", "started_at": 1000}])
    told = {"run": "r", "step": 1, "type": "orchestration", "code": "invalid_state", "message": "no plan"}

    assert anybody.post("/v1/failures", told).json == {"new": 1}
    assert anybody.post("/v1/failures", told).json == {"new": 0}
    anybody.post("/v1/failures", {"run": "r", "type": "orchestration", "code": "precondition", "message": "no disk"})
    anybody.post("/v1/runs", {"id": "r", "agent": "x", "started_at": 1000, "ended_at": 2000})

    history = serving.store.run(DEFAULT_TENANT, "r")
    found = {str(step.failure.kind): step for step in history.steps if step.failure}
    assert found["orchestration/invalid_state"].parent == 1
    assert found["orchestration/precondition"].type == "run"
    assert serving.person().get("/v1/runs/r").json["status"] == "failure"


@pytest.mark.parametrize(
    ("path", "sent", "field"),
    [
        ("/v1/runs", {"agnet": "x"}, ""),
        ("/v1/runs", {"started_at": -1}, "started_at"),
        ("/v1/runs", {"started_at": 10, "ended_at": 5}, "ended_at"),
        (
            "/v1/runs", [{"id": "a"}, {"id": "a", "steps": [{"duration_seconds": "long"}]}],
            "[1].steps[0].duration_seconds",
        ),
        ("/v1/runs", {"id": "a", "steps": [{"seq": 1}, {"seq": 1}]}, "steps[1].seq"),
        ("/v1/runs", {"id": "a", "failures": [{"step": 7}]}, "failures[0].step"),
        ("/v1/steps", {"seq": 1}, "run"),
        ("/v1/steps", {"run": "r"}, "seq"),
        ("/v1/steps", {"run": "r", "seq": 1, "call": 2}, "call"),
        ("/v1/steps", {"run": "r", "seq": 1, "outcome": "success", "failure": {"message": "no"}}, "outcome"),
        ("/v1/failures", {"message": "no"}, "run"),
        ("/v1/failures", {"run": "r", "code": "a b"}, "code"),
        ("/v1/batch", {"client": "c", "journal": "j", "offset": 0, "events": []}, "offset"),
        ("/v1/batch", batch(events=[{"event": "run.ended", "run": {"id": "x", "started_at": 10**17}}]),
         "events[0].run.started_at"),
        ("/v1/batch", batch(events=[{"event": "step.ended", "step": {
            "run": "r", "seq": 1, "call": 1, "failure": {"kind": {}, "remedy": "replan", "took_effect": "no"}}}]),
         "events[0].step.failure.kind"),
        ("/v1/batch", batch(events=[{"event": "step.ended", "step": {"run": "", "seq": 1, "call": 1}}]),
         "events[0].step.run"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_its_place(anybody, path, sent, field):
    told = anybody.post(path, sent)

    assert told.status == 400
    assert told.json["error"] == "invalid"
    assert told.json.get("field", "") == field, told.json
    assert told.json["message"]


def test_of_a_batch_that_is_refused_nothing_is_kept(serving, anybody):
    sent = batch()
    sent["events"][0]["step"]["duration_seconds"] = -1
    assert anybody.post("/v1/batch", sent).status == 400

    assert serving.store.run(DEFAULT_TENANT, "run_a") is None


def test_the_trace_that_began_a_run_is_kept_and_one_that_is_none_is_refused(serving, anybody):
    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    assert anybody.post("/v1/runs", {"id": "theirs", "traceparent": header}).status == 200
    refused = anybody.post("/v1/runs", {"id": "other", "traceparent": "00-x"})

    assert serving.person().get("/v1/runs/theirs").json["run"]["traceparent"] == header
    assert (refused.status, refused.json["field"]) == (400, "traceparent")


def test_a_run_that_says_only_when_it_ended_does_not_begin_after_that(serving, anybody):
    ended = serving.server.clock() - 60_000
    anybody.post("/v1/runs", {"id": "a", "ended_at": ended, "steps": [{"name": "s"}]})
    anybody.post("/v1/runs", {"id": "b", "ended_at": ended, "steps": [{"name": "s", "started_at": ended - 500}]})
    assert [serving.store.run(DEFAULT_TENANT, id).run.started_at - ended for id in "ab"] == [0, -500]
