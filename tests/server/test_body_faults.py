"""A refused body is answered with all its faults: where each is, and what to send instead."""

from __future__ import annotations

import http.client
import json

import pytest

from mulligan.server.body_faults import MAX_FAULTS, find_faults, to_pointer
from mulligan.server.payloads import FailurePayload, RunPayloads


def faults_of(body, type=RunPayloads):
    return {fault.pointer: fault.message for fault in find_faults(json.dumps(body).encode(), type)}


@pytest.mark.parametrize(
    ("field", "pointer"),
    [
        ("", ""),
        ("started_at", "/started_at"),
        ("steps[0].outcome", "/steps/0/outcome"),
        ("[1].steps[12].failure.code", "/1/steps/12/failure/code"),
        ("metadata.a/b~c", "/metadata/a~1b~0c"),
    ],
)
def test_path_becomes_a_json_pointer(field, pointer):
    assert to_pointer(field) == pointer


def test_all_faults_of_a_body_are_found_at_once():
    body = {
        "agnet": "nightly",
        "started_at": "now",
        "steps": [
            {"name": "fetch"},
            {"name": "fetch", "outcome": "sucess", "duration_seconds": -1},
            {"type": "llm", "failure": {"mesage": "no", "status": 42}},
            "fetch",
        ],
        "failures": {},
    }
    assert list(faults_of(body)) == [
        "/agnet", "/started_at", "/steps/1/outcome", "/steps/1/duration_seconds", "/steps/2/type",
        "/steps/2/failure/mesage", "/steps/2/failure/status", "/steps/3", "/failures",
    ]  # fmt: skip


def test_unknown_field_names_the_nearest_and_all_others():
    (message,) = faults_of({"agnet": "x"}).values()
    assert message.startswith("Unknown field 'agnet'. Did you mean 'agent'? Fields here: id, agent, version, ")
    (message,) = faults_of([{"zzz": 1}]).values()
    assert message.startswith("Unknown field 'zzz'. Fields here: id, ")


def test_unknown_value_lists_what_is_allowed():
    faults = faults_of({"steps": [{"outcome": "sucess", "type": "llm"}], "end_reason": "ended"})
    expected = "Unknown value 'sucess'. Did you mean 'success'? Use one of success, failure, cancelled, blocked."
    assert faults["/steps/0/outcome"] == expected
    assert faults["/steps/0/type"].endswith(
        "Use one of plan, tool, model, retrieval, respond, custom, run, reflection."
    )
    assert faults["/end_reason"] == "Unknown value 'ended'. Use one of finished, raised, abandoned."


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (7, ""),
        ("text", ""),
        ([{"id": "a"}, 7], "/1"),
        ({"id": ""}, "/id"),
        ({"id": "x" * 1_000_000}, "/id"),
        ({"steps": [{"tokens": {"input": -1}}]}, "/steps/0/tokens/input"),
        ({"steps": [{"name": "a"}] * 10_001}, "/steps"),
        ({"x" * 1_000_000: 1}, "/" + "x" * 80),
        ({"a/b": 1}, "/a~1b"),
        ({"a.b[0]": 1}, "/a.b[0]"),
    ],
)
def test_each_fault_has_the_pointer_of_its_value(body, pointer):
    ((found, message),) = faults_of(body).items()
    assert found == pointer
    assert 0 < len(message) < 1000


def test_faults_of_a_long_list_are_limited():
    assert len(find_faults(json.dumps([{"zzz": 1}] * 1000).encode(), RunPayloads)) == MAX_FAULTS


def test_valid_body_has_no_faults():
    assert faults_of({"id": "a", "steps": [{"name": "b"}]}) == {}
    assert faults_of({"run": "a", "code": "timeout"}, FailurePayload) == {}


# Through the server


def test_answer_has_the_first_fault_and_all_of_them(anybody):
    answer = anybody.post("/v1/runs", [{"id": "a"}, {"id": "b", "agnet": "x", "steps": [{"outcome": "sucess"}]}])
    assert (answer.status, answer.json["error"]) == (400, "invalid")
    assert (answer.json["field"], answer.json["pointer"]) == ("[1].agnet", "/1/agnet")
    assert answer.json["message"] == answer.json["errors"][0]["message"]
    assert [error["pointer"] for error in answer.json["errors"]] == ["/1/agnet", "/1/steps/0/outcome"]


@pytest.mark.parametrize(
    ("path", "body", "pointers"),
    [
        (
            "/v1/runs",
            {"id": "a", "started_at": 10, "ended_at": 5,
             "steps": [{"seq": 1, "started_at": 1_794_700_000}, {"seq": 1}, {"call": 7},
                       {"outcome": "success", "failure": {"type": "tol"}}],
             "failures": [{"run": "b"}, {"type": "tol"}]},
            ["/ended_at", "/steps/0/started_at", "/steps/1/seq", "/steps/2/call", "/steps/3/failure/type",
             "/failures/0/run", "/failures/1/type"],
        ),
        ("/v1/runs", [{"id": "a", "started_at": 1_794_700_000}, {"ended_at": 1_794_700_000}],
         ["/0/started_at", "/1/ended_at"]),
        ("/v1/steps", [{"name": "a"}, {"run": "r", "started_at": 1_794_700_000}], ["/0/run", "/1/started_at"]),
        ("/v1/failures", [{"code": "a"}, {"run": "r", "type": "tol"}], ["/0/run", "/1/type"]),
    ],
)  # fmt: skip
def test_contradictions_of_a_body_are_answered_at_once(serving, anybody, path, body, pointers):
    answer = anybody.post(path, body)
    assert answer.status == 400
    assert [error["pointer"] for error in answer.json["errors"]] == pointers
    assert all(error["message"] for error in answer.json["errors"])
    assert list(serving.store.export("default")) == []


def test_fault_in_a_large_body_has_its_pointer(anybody):
    steps = [{"name": "a", "result": "x" * 1000} for _ in range(300)]
    answer = anybody.post("/v1/runs", {"id": "r", "steps": [*steps, {"outcome": "sucess", "nmae": "b"}]})
    assert [error["pointer"] for error in answer.json["errors"]] == ["/steps/300/outcome", "/steps/300/nmae"]


def test_pattern_decision_lists_its_actions(person):
    answer = person.post("/v1/patterns/pat_1", {"action": "silence"})
    assert "Use one of merge, mute, unmute, " in answer.json["message"]


@pytest.mark.parametrize("size", [5_300_000, 6_000_000, 15_000_000, 30_000_000])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_client_that_sends_all_of_a_large_body_before_it_reads_gets_the_answer(serving, size, is_chunked):
    body = b'{"id": "' + b"x" * size + b'"}'
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=30)
        parts = (body[start : start + 65536] for start in range(0, len(body), 65536)) if is_chunked else body
        connection.request("POST", "/v1/runs", parts, {"Content-Type": "application/json"}, encode_chunked=is_chunked)
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["error"] == "too_large"
        connection.close()
