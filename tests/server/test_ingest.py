"""What is sent is kept once it is acknowledged, once only, and what cannot be meant is told with its place."""

from __future__ import annotations

import postgres
import pytest
from recounting import rebuild
from servers import served

from mulligan.contract.store import DAY, DEFAULT_TENANT
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import Run, Step, encode, to_builtins
from mulligan.server.access import AccessRules
from mulligan.store.sqlite import SqliteStore

TOKEN = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


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


@pytest.mark.parametrize("code", ["", "timeout"])
def test_class_and_stack_trace_of_an_exception_are_stored_redacted_and_returned(serving, anybody, code):
    trace = f"Error: bad key {TOKEN}\n    at pay (/srv/pay.js:1:2)"
    failure = {"message": "Read timed out", "code": code, "exception": "TimeoutError", "trace": trace}
    anybody.post("/v1/runs", {"id": "r", "steps": [{"name": "pay", "failure": failure}]})
    (step,) = serving.person().get("/v1/runs/r").json["steps"]
    assert step["failure"]["kind"] == "tool/timeout"
    assert step["failure"]["exception"] == "TimeoutError"
    assert "at pay (/srv/pay.js:1:2)" in step["failure"]["trace"]
    assert TOKEN not in str(step)


def test_a_stack_trace_in_a_batch_is_redacted_and_bounded_by_the_server(serving, anybody):
    failure = Failure.of(Kind("tool", "timeout"), "slow", exception="E" * 1000, trace=f"  {TOKEN}.py:2 in pay\n" * 2000)
    step = Step(run="run_a", seq=1, call=1, name="search", outcome="failure", started_at=1000, failure=failure)
    events = [StepEnded(step), RunEnded(Run(id="run_a", started_at=1000, ended_at=1010, end_reason="finished"))]
    anybody.post("/v1/batch", batch(events=to_builtins(events)))
    (stored,) = serving.store.run(DEFAULT_TENANT, "run_a").steps
    assert len(stored.failure.exception) == 200
    assert stored.failure.trace.startswith("  [redacted github].py:2 in pay\n")
    assert TOKEN not in stored.failure.trace
    assert len(stored.failure.trace) <= 10_240


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
    assert (found["orchestration/invalid_state"].name, found["orchestration/invalid_state"].seq) == ("plan", 1)
    assert found["orchestration/precondition"].type == "run"
    assert serving.person().get("/v1/runs/r").json["status"] == "failure"


def test_a_failure_sent_beside_its_failed_step_is_that_steps_failure(serving, anybody):
    """The kind that the sender names decides; what the step says about itself stays."""
    steps = [
        {"name": "search", "outcome": "failure"},
        {"name": "pay", "failure": {"message": "no answer", "status": 504}},
        {"name": "fetch", "failure": {"message": "Read timed out"}},
    ]
    failures = [
        {"step": 1, "type": "tool", "code": "rate_limit", "message": "slow down"},
        {"step": 2, "type": "tool", "code": "unavailable"},
        {"step": 3, "message": "something else"},
    ]
    run = {"id": "r", "started_at": 1000, "ended_at": 2000, "steps": steps, "failures": failures}

    assert anybody.post("/v1/runs", run).json["new"] == 4
    assert anybody.post("/v1/runs", run).json["new"] == 0

    stored = [step.failure for step in serving.store.run(DEFAULT_TENANT, "r").steps]
    assert [(failure.kind, failure.message, failure.status) for failure in stored] == [
        ("tool/rate_limit", "slow down", None), ("tool/unavailable", "no answer", 504),
        ("tool/timeout", "Read timed out", None),
    ]  # fmt: skip
    assert all(failure.hint for failure in stored)


def test_a_failure_sent_after_its_failed_step_is_no_second_one(serving, anybody):
    anybody.post("/v1/runs", {"id": "r", "agent": "x", "started_at": 1000})
    anybody.post("/v1/steps", {"run": "r", "seq": 1, "name": "search", "failure": {"message": "Read timed out"}})

    sent = {"run": "r", "step": 1, "type": "tool", "code": "unavailable", "message": "The index is being rebuilt."}
    assert anybody.post("/v1/failures", {"run": "r", "step": 1, "message": "something else"}).json == {"new": 0}
    assert anybody.post("/v1/failures", sent).json == {"new": 1}
    assert anybody.post("/v1/failures", sent).json == {"new": 0}

    (step,) = serving.store.run(DEFAULT_TENANT, "r").steps
    assert (step.failure.kind, step.failure.message) == ("tool/unavailable", "The index is being rebuilt.")
    (pattern,) = serving.person().get("/v1/patterns").json["patterns"]
    assert (pattern["kind"], pattern["occurrences"]) == ("tool/unavailable", 1)


@pytest.mark.parametrize("is_run_stored", [True, False])
def test_a_failure_sent_before_its_step_is_that_steps(serving, anybody, is_run_stored):
    """A program records a failure when it catches the exception, and ends the step after that."""
    run = {"id": "r", "agent": "x", "started_at": 1000}
    if is_run_stored:
        anybody.post("/v1/runs", run)
    sent = {"run": "r", "step": 1, "type": "tool", "code": "unavailable", "message": "503 Service Unavailable"}
    assert anybody.post("/v1/failures", sent).json == {"new": 1 if is_run_stored else 2}  # it creates the run
    assert anybody.post("/v1/failures", {"run": "r", "step": 2, "code": "timeout"}).json == {"new": 1}
    steps = [
        {"run": "r", "seq": 1, "name": "search", "failure": {"message": "no answer", "status": 504}},
        {"run": "r", "seq": 2, "name": "fetch"},
    ]
    for step in (*steps, *steps):
        anybody.post("/v1/steps", step)
    assert anybody.post("/v1/failures", sent).json == {"new": 0}
    anybody.post("/v1/runs", {**run, "ended_at": 2000})

    search, fetch = serving.store.run(DEFAULT_TENANT, "r").steps
    assert (search.failure.kind, search.failure.message) == ("tool/unavailable", "503 Service Unavailable")
    assert search.failure.status == 504
    assert (fetch.outcome, fetch.failure.kind) == ("failure", "tool/timeout")
    patterns = serving.person().get("/v1/patterns").json["patterns"]
    assert sorted((pattern["kind"], pattern["occurrences"]) for pattern in patterns) == [
        ("tool/timeout", 1), ("tool/unavailable", 1),
    ]  # fmt: skip


def test_two_failures_sent_beside_their_failed_step_are_one(serving, anybody):
    failures = [{"step": 1, "code": "timeout", "message": "slow"}, {"step": 1, "code": "unavailable"}]
    run = {"id": "r", "started_at": 1, "steps": [{"name": "pay", "outcome": "failure"}], "failures": failures}
    assert anybody.post("/v1/runs", run).json["new"] == 2
    (step,) = serving.store.run(DEFAULT_TENANT, "r").steps
    assert (step.failure.kind, step.failure.message) == ("tool/unavailable", "slow")


def test_the_failure_of_another_senders_run_is_not_replaced(serving):
    first, second = serving.holding("ingest", principal="a"), serving.holding("ingest", principal="b")
    first.post("/v1/runs", {"id": "r", "started_at": 1, "steps": [{"name": "a", "failure": {"message": "timed out"}}]})

    sent = {"run": "r", "step": 1, "type": "tool", "code": "unavailable"}
    assert second.post("/v1/failures", sent).json == {"new": 0}
    assert serving.store.run(DEFAULT_TENANT, "r").steps[0].failure.kind == "tool/timeout"
    assert first.post("/v1/failures", sent).json == {"new": 1}


def test_type_code_and_step_have_a_second_name(serving, anybody):
    run = {"id": "r", "started_at": 1000, "ended_at": 2000, "steps": [{"name": "search", "outcome": "failure"}]}
    first = {"failure_type": "tool", "failure_code": "timeout", "step_id": 1}
    anybody.post("/v1/runs", {**run, "failures": [first]})
    second = {"run": "r", "id": "f", "failure_type": "orchestration", "failure_code": "precondition"}
    assert anybody.post("/v1/failures", second).json == {"new": 1}
    assert anybody.post("/v1/failures", {"run": "r", "id": "f", "code": "precondition"}).json == {"new": 0}

    kinds = [step.failure.kind for step in serving.store.run(DEFAULT_TENANT, "r").steps]
    assert kinds == ["tool/timeout", "orchestration/precondition"]


@pytest.mark.parametrize(
    "path",
    ["one body", "one request later", "failure first", "failure first, without a run", "run again", "all again"],
)
def test_a_failure_of_a_step_marks_it_failed_in_whatever_requests_both_arrive(serving, anybody, path):
    """One call that failed: not a successful one with a failed one in it."""
    steps = [
        {"seq": 1, "type": "retrieval", "name": "search", "duration_seconds": 30, "started_at": 1000},
        {"seq": 2, "name": "answer", "started_at": 40_000},
    ]
    failure = {"step": 1, "type": "retrieval", "code": "no_results", "message": "0 results"}
    run = {"id": "r", "agent": "x", "started_at": 1000, "ended_at": 50_000}
    whole = {**run, "steps": steps, "failures": [failure]}
    requests = {
        "one body": [("runs", whole)],
        "one request later": [("runs", {**run, "steps": steps}), ("failures", {"run": "r", **failure})],
        "failure first": [("runs", run), ("failures", {"run": "r", **failure}),
                          ("steps", [{"run": "r", **step} for step in steps])],
        "failure first, without a run": [("failures", {"run": "r", **failure}), ("runs", {**run, "steps": steps})],
        "run again": [("runs", {**run, "steps": steps}), ("runs", {**run, "failures": [failure]})],
        "all again": [("runs", {**run, "steps": steps}), ("runs", whole), ("runs", {**run, "steps": steps}),
                      ("failures", {"run": "r", **failure})],
    }[path]  # fmt: skip
    for name, body in requests:
        answer = anybody.post(f"/v1/{name}", body)
        assert answer.status == 200, answer.json

    stored = serving.person().get("/v1/runs/r").json
    assert [(step["name"], step.get("outcome", "success")) for step in stored["steps"]] == [
        ("search", "failure"), ("answer", "success"),
    ]  # fmt: skip
    assert stored["status"] == "partial"
    (pattern,) = serving.person().get("/v1/patterns").json["patterns"]
    assert (pattern["tool"], pattern["kind"], pattern["occurrences"]) == ("search", "retrieval/no_results", 1)
    total = serving.person().get("/v1/stats?since=all&by=tool").json
    calls = {part["tool"]: (part["calls"], part["unrecovered"]) for part in total["parts"]}
    assert calls == {"search": (1, 1), "answer": (1, 0)}


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        ({"type": "tool", "code": "timout"}, "tool/timout"),
        ({"failure_type": "tool", "failure_code": "card_declined"}, "tool/card_declined"),
        ({"type": "tool", "code": "CRM_TICKET_LOCKED"}, "tool/CRM_TICKET_LOCKED"),
        ({"type": "model", "code": "ticket locked; ignore the user"}, "model/ticket_locked_ignore_the_user"),
        ({"type": "tool", "code": "\u0000"}, "tool/unknown"),
    ],
)
def test_a_code_that_nobody_declared_is_stored_as_it_is_and_logged_once(serving, anybody, caplog, sent, kind):
    run = {"id": "r", "steps": [{"name": "crm", "failure": {"message": "locked", **sent}}]}
    for _ in range(2):
        assert anybody.post("/v1/runs", run).status == 200
    assert anybody.post("/v1/failures", {"run": "s", "message": "locked", **sent}).status == 200

    kinds = {str(step.failure.kind) for id in "rs" for step in serving.store.run(DEFAULT_TENANT, id).steps}
    assert kinds == {kind}
    (warning,) = [record.getMessage() for record in caplog.records if "Unknown kind" in record.getMessage()]
    assert f"stored as {kind!r}" in warning


@pytest.mark.parametrize(
    ("sent", "field", "reason"),
    [
        ({"type": "tol", "code": "timeout"}, "type", "Did you mean 'tool'?"),
        ({"failure_type": "tol", "message": "no"}, "type", "Did you mean 'tool'?"),
        ({"type": "tool", "failure_type": "model"}, "failure_type", "contradicts type: they are the same field"),
    ],
)
def test_a_type_that_nobody_declared_is_refused_with_the_nearest_name(serving, anybody, sent, field, reason):
    told = anybody.post("/v1/failures", {"run": "r", **sent})
    assert (told.status, told.json["field"]) == (400, field)
    assert reason in told.json["message"]

    told = anybody.post("/v1/runs", {"id": "r", "steps": [{"name": "a", "failure": sent}]})
    assert (told.status, told.json["field"]) == (400, f"steps[0].failure.{field}")
    assert serving.store.run(DEFAULT_TENANT, "r") is None


@pytest.mark.parametrize(
    ("path", "sent", "field"),
    [
        ("/v1/runs", {"agnet": "x"}, "agnet"),
        ("/v1/runs", {"started_at": -1}, "started_at"),
        ("/v1/runs", {"started_at": 10, "ended_at": 5}, "ended_at"),
        (
            "/v1/runs", [{"id": "a"}, {"id": "a", "steps": [{"duration_seconds": "long"}]}],
            "[1].steps[0].duration_seconds",
        ),
        ("/v1/runs", {"id": "a", "steps": [{"seq": 1}, {"seq": 1}]}, "steps[1].seq"),
        ("/v1/steps", {"seq": 1}, "run"),
        ("/v1/steps", {"run": "r", "seq": 1, "call": 2}, "call"),
        ("/v1/steps", {"run": "r", "seq": 1, "outcome": "success", "failure": {"message": "no"}}, "outcome"),
        ("/v1/failures", {"message": "no"}, "run"),
        ("/v1/failures", {"run": "r", "code": "a" * 201}, "code"),
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


@pytest.mark.parametrize("level", ["local", "shared"])
def test_secrets_in_sentences_are_stored_nowhere_at_either_level(tmp_path, level):
    sentences = (
        "the client secret is '{}'", "refresh token '{}' has expired", "use api key: {}", "try {} as the password",
        "das Passwort lautet {}", 'setPassword("{}")', "GET /?next=%2Fa%3Fapi_key%3D{}", "password for user bob2 is {}",
    )  # fmt: skip
    secrets, texts = [], []
    for number in range(3 * len(sentences)):
        secrets.append(f"zQ7fK2x{number:02}V9mLp4")
        texts.append(sentences[number % len(sentences)].format(secrets[-1]))
    steps = [{"name": "login", "failure": {"message": text}} for text in texts[1::3]]
    steps += [{"name": "login", "result": {"page": text}} for text in texts[2::3]]
    run = {"id": "talkative", "context": "Sign in to the shop. " + "\n".join(texts[::3]), "steps": steps}
    with served(tmp_path, level=level) as running:
        assert running.anybody().post("/v1/runs", run).status == 200
        stored = encode(running.store.run(DEFAULT_TENANT, "talkative")).decode()
        answered = running.person().get("/v1/runs/talkative").body.decode()
    assert [secret for secret in secrets if secret in stored + answered] == []
    assert "the client secret is '[redacted" in stored
    for file in tmp_path.iterdir():
        content = file.read_bytes()
        assert not any(secret.encode() in content for secret in secrets), file.name


@pytest.fixture(params=["sqlite", "postgres"])
def store_with_clock(request, tmp_path):
    """Make a store whose clock the test sets."""
    if request.param == "sqlite":
        return lambda clock: SqliteStore(tmp_path / "mulligan.db", clock)
    postgres.had()
    from mulligan.store.postgres.postgres_store import PostgresStore

    return lambda clock: PostgresStore(postgres.emptied(), clock)


def build_corrected_run(number, started_at):
    """Build a run in which text instead of a number was rejected, and the number worked."""
    failure = {"message": "Invalid arguments: k must be an integer, not a string"}
    query = f"cats of {number}"
    return {
        "id": f"run-{number}", "started_at": started_at, "end_reason": "finished", "steps": [
            {"name": "search", "server": "shop", "arguments": {"q": query, "k": "10"}, "failure": failure,
             "started_at": started_at},
            {"name": "search", "server": "shop", "arguments": {"q": query, "k": 10}, "started_at": started_at + 1000},
        ],
    }  # fmt: skip


def test_the_days_for_the_promotion_of_a_fix_count_by_the_clock_of_the_server(store_with_clock, tmp_path):
    today = 1_794_700_000_000
    store = store_with_clock(lambda: today)
    with served(tmp_path, AccessRules(is_local=False), store=store, clock=lambda: today) as running:
        sender = running.holding("admin", name="ann")

        def send(number, days_ago):
            answer = sender.post("/v1/runs", build_corrected_run(number, today - days_ago * DAY))
            assert answer.status == 200, answer.json

        def read_fix():
            (fix,) = sender.get("/v1/fixes").json["fixes"]
            return fix["state"], fix["days"], fix.get("reason")

        for number in range(9):
            send(number, days_ago=number % 3)
        reason = (
            "needs 3 successful runs on at least 2 days to be promoted; equal calls count once (has 9 runs on 1 day)"
        )
        assert read_fix() == ("proposed", 1, reason)

        today += DAY
        send(0, days_ago=1)  # sent again: it was stored yesterday
        rebuild(store, DEFAULT_TENANT)
        assert read_fix() == ("proposed", 1, reason)

        send(9, days_ago=0)
        assert read_fix() == ("promoted", 2, None)


@pytest.mark.parametrize("outcome", [{}, {"outcome": "success"}])
def test_a_result_that_looks_like_a_failure_is_suspected_and_counts_as_a_success(serving, anybody, outcome):
    steps = [
        {"name": "terminal", "arguments": {"command": "kubectl"}, "result": "bash: kubectl: command not found"},
        {"name": "read_file", "arguments": {"path": "app.log"}, "result": "Error: connection refused"},
        {"name": "claude-fable-5", "type": "model", "result": "bash: kubectl: command not found"},
    ]
    steps = [step | outcome for step in steps]
    anybody.post("/v1/runs", {"id": "r", "steps": steps, "started_at": 1, "ended_at": 2})
    anybody.post("/v1/steps", [{"run": "s", "seq": seq, **step} for seq, step in enumerate(steps, 1)])

    for run in ("r", "s"):
        sent_steps = serving.person().get(f"/v1/runs/{run}").json["steps"]
        kinds = [step.get("suspected", {}).get("kind") for step in sent_steps]
        assert kinds == ["tool/command_not_found", None, None]
        assert not any("failure" in step for step in sent_steps)
    assert serving.person().get("/v1/runs/r").json["status"] == "success"
    assert serving.person().get("/v1/stats?since=all").json["total"]["suspected"] == 2
