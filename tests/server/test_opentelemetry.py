"""What OpenTelemetry sends becomes runs: in protobuf, JSON and gzip, in many exports, sent twice, across a restart."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import random
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from servers import served
from spans import BEGUN, Made, World, as_json, as_protobuf, field

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.server import protobuf
from mulligan.server.access import AccessRules
from mulligan.transcripts.run_builder import derive_run_id

TAGS = (b"nightly", b"eu")
PROTOBUF = "application/x-protobuf"
STATUSES = ["success"] * 12 + ["recovered"] * 9 + ["partial"] * 3 + ["failure"] * 4


def send(client, spans, how="protobuf", scope=""):
    if how == "json":
        return client.post("/v1/traces", as_json(spans, scope=scope))
    data = as_protobuf(spans, scope=scope)
    if how == "gzip":
        return client.post("/v1/traces", body=gzip.compress(data), Content_Type=PROTOBUF, Content_Encoding="gzip")
    return client.post("/v1/traces", body=data, Content_Type=PROTOBUF)


def look_alike(seed=7):
    world = World(seed)
    spans = [span for status in world.random.sample(STATUSES, len(STATUSES)) for span in world.run(status)]
    return sorted(spans, key=lambda span: span.end)


@pytest.mark.parametrize("half", ["\\ud83d", "\\udc4d"])
def test_an_emoji_that_was_cut_in_two_costs_itself_alone(serving, anybody, person, half):
    world = World(3)
    body = json.dumps(as_json(world.run("failure")))
    assert '"message": "' in body
    body = body.replace('"message": "', f'"message": "{half} ')
    assert anybody.post("/v1/traces", body=body.encode()).status == 200
    assert [run["status"] for run in person.get("/v1/runs").json["runs"]] == ["failure"]


def test_runs_of_a_foreign_agent_come_out_as_what_they_were(serving, anybody):
    spans = look_alike()
    hows = random.Random(1)
    for start in range(0, len(spans), 10):  # a trace comes in several exports
        told = send(anybody, spans[start : start + 10], hows.choice(["protobuf", "gzip", "json"]))
        assert told.status == 200
        if hows.random() < 0.3:
            send(anybody, spans[start : start + 10])  # an answer was lost

    stats = serving.person().get("/v1/stats?since=all").json
    assert stats["total"]["runs"] == dict(Counter(STATUSES))
    assert stats["total"]["recovered"] == 9
    assert stats["total"]["unrecovered"] == 7
    assert set(stats["failure_breakdown"]) == {"tool/timeout"}
    assert len(serving.person().get("/v1/patterns").json["patterns"]) == 1
    run = serving.person().get("/v1/runs?status=recovered&limit=1").json["runs"][0]
    assert run["agent"] == "scout"
    assert not run["running"]


def test_a_trace_goes_on_where_it_was_after_a_restart(tmp_path):
    spans = look_alike(3)
    for part in (spans[: len(spans) // 2], spans[len(spans) // 3 :]):  # some of it is sent again
        with served(tmp_path) as running:
            assert send(running.anybody(), part).status == 200
            stats = running.person().get("/v1/stats?since=all").json
    assert stats["total"]["runs"] == dict(Counter(STATUSES))
    assert stats["total"]["calls"] == len({(span.trace, span.facts.get("gen_ai.tool.call.id"), span.id)
                                           if "gen_ai.tool.call.id" not in span.facts
                                           else (span.trace, span.facts["gen_ai.tool.call.id"])
                                           for span in spans if span.parent})  # fmt: skip


@pytest.mark.parametrize("senders", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_traces_whose_exports_go_to_two_servers_come_out_whole(tmp_path, seed, senders):
    spans = look_alike(seed)
    with served(tmp_path) as one, served(tmp_path) as other, ThreadPoolExecutor(senders) as pool:
        servers = itertools.cycle([one, other])
        exports = [(next(servers).anybody(), spans[start : start + 3]) for start in range(0, len(spans), 3)]
        assert {answer.status for answer in pool.map(lambda export: send(*export), exports)} == {200}
        runs = one.person().get("/v1/runs?since=all&limit=100").json["runs"]
        stored_steps = sum(len(one.person().get(f"/v1/runs/{run['id']}").json["steps"]) for run in runs)
    assert stored_steps == sum(bool(span.parent) for span in spans)
    if senders == 1:  # else a root may arrive before the steps of its trace
        assert {(run["agent"], run["running"]) for run in runs} == {("scout", False)}
        assert Counter(run["status"] for run in runs) == Counter(STATUSES)


def test_a_run_is_under_way_until_its_root_comes(serving, anybody):
    *parts, root = World(1).run("success")
    send(anybody, parts)
    (run,) = serving.person().get("/v1/runs").json["runs"]
    assert (run["running"], run["agent"]) == (True, "look-alike")
    send(anybody, [root])
    (run,) = serving.person().get("/v1/runs").json["runs"]
    assert (run["running"], run["agent"]) == (False, "scout")


def test_what_was_not_kept_is_taken_when_it_comes_again(serving, anybody, monkeypatch):
    from mulligan.core.failure import StoreError

    spans = list(World(2).run("recovered"))
    appended = serving.store.append_all

    def fails(batches):
        raise StoreError("the disk is full")

    monkeypatch.setattr(serving.store, "append_all", fails)
    told = send(anybody, spans)
    assert (told.status, told.headers["retry-after"]) == (503, "2")
    monkeypatch.setattr(serving.store, "append_all", appended)
    assert send(anybody, spans).status == 200
    assert serving.person().get("/v1/stats?since=all").json["total"]["runs"]["recovered"] == 1


def test_the_answer_is_in_kind_and_tells_what_was_not_taken(anybody):
    spans = [span._replace(id="0" * 16) for span in World(1).run("success")][:1]
    told = send(anybody, spans, "json")
    assert told.json["partialSuccess"]["rejectedSpans"] == "1"
    told = send(anybody, spans)
    assert told.headers["content-type"] == PROTOBUF
    assert b"\x08\x01" in told.body
    assert send(anybody, list(World(1).run("success"))).body == b""


WEB_SPAN = Made("1" * 32, "2" * 16, "", "GET /users", BEGUN, BEGUN + 1, {"http.request.method": "GET"})


@pytest.mark.parametrize("name", ["GET /users", "chat with support", "execute_tool x", "plan", "TOOL"])
def test_spans_without_attributes_of_an_agent_make_no_run_whatever_their_name(serving, anybody, name):
    assert send(anybody, [WEB_SPAN._replace(name=name)]).status == 200
    assert serving.person().get("/v1/runs").json["runs"] == []


@pytest.mark.parametrize("how", ["json", "protobuf"])
def test_unrecognized_spans_are_counted_by_scope_in_the_response_and_the_metrics(tmp_path, how):
    *steps, root = World(1).run("success")
    web = [WEB_SPAN._replace(id=f"{number:016x}", parent="9" * 16) for number in range(1, 4)]
    with served(tmp_path) as running:
        acme = running.holding("ingest", tenant="acme")
        assert send(acme, web, how, "instrumentation.web").status == 200
        told = send(running.anybody(), [*web, *steps, root], how, "instrumentation.web")
        message = "3 spans were not stored: they describe no agent, model or tool. By scope: instrumentation.web 3."
        if how == "json":
            assert told.json == {"partialSuccess": {"rejectedSpans": "0", "errorMessage": message}}
        else:
            assert told.body == protobuf.encode_response(0, message)
        send(running.anybody(), [WEB_SPAN], how, 'a "scope"')
        metrics = running.person().get("/metrics").body.decode()
        others = running.holding("read", tenant="other").get("/metrics").body.decode()
    counts = [line for line in metrics.splitlines() if line.startswith("mulligan_unrecognized_spans_total{")]
    assert counts == [
        'mulligan_unrecognized_spans_total{scope="a \\"scope\\""} 1',
        'mulligan_unrecognized_spans_total{scope="instrumentation.web"} 3',
    ]
    assert "mulligan_unrecognized_spans_total{" not in others


def test_many_scopes_of_unrecognized_spans_are_counted_together(serving, anybody):
    for number in range(60):
        send(anybody, [WEB_SPAN._replace(trace=f"{number + 1:032x}")], "json", f"scope {number}")
    counts = serving.server.unrecognized_spans[DEFAULT_TENANT]
    assert len(counts) == 51
    assert counts["(other scopes)"] == 10


def test_root_that_only_frames_a_run_is_not_counted_as_unrecognized(anybody):
    step, *_ = World(1).run("success")
    root = WEB_SPAN._replace(trace=step.trace, id=step.parent)
    assert send(anybody, [step, root], "json").json == {}


@pytest.mark.parametrize(
    ("facts", "error", "status"),
    [
        ({"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1"}, None, "success"),
        ({"gen_ai.tool.name": "search"}, "Read timed out after 3 s", "failure"),
    ],
)
def test_trace_whose_root_is_a_model_or_tool_call_is_a_run_that_ended(serving, anybody, facts, error, status):
    root = WEB_SPAN._replace(facts={**facts, "session.id": "s-1"}, error=error)
    assert send(anybody, [root]).body == b""
    (run,) = serving.person().get("/v1/runs").json["runs"]
    assert (run["running"], run["status"], run["agent"]) == (False, status, "look-alike")
    assert serving.store.run(DEFAULT_TENANT, run["id"]).run.session == "s-1"


@pytest.mark.parametrize("how", ["json", "protobuf"])
def test_error_level_of_langfuse_is_a_failure_without_a_failed_status(serving, anybody, how):
    facts = {"langfuse.observation.type": "tool", "langfuse.observation.level": "ERROR",
             "langfuse.observation.status_message": "Read timed out after 3 s"}  # fmt: skip
    send(anybody, [WEB_SPAN._replace(name="search", facts=facts)], how)
    (run,) = serving.person().get("/v1/runs").json["runs"]
    (step,) = serving.store.run(DEFAULT_TENANT, run["id"]).steps
    assert (step.name, str(step.failure.kind)) == ("search", "tool/timeout")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_span_that_is_sent_again_as_an_error_marks_its_call_failed(tmp_path, is_restarted):
    facts = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
    call = Made("a" * 32, "b" * 16, "c" * 16, "execute_tool search", BEGUN, BEGUN + 10**9, facts)
    root = Made("a" * 32, "c" * 16, "", "agent", BEGUN, BEGUN + 10**10, {"gen_ai.operation.name": "invoke_agent"})
    failed = call._replace(error="0 results", facts={**facts, "error.type": "retrieval/no_results"})
    exports = [[call, root], [failed], [failed]]
    for parts in [exports[:1], exports[1:]] if is_restarted else [exports]:
        with served(tmp_path) as running:
            for part in parts:
                assert send(running.anybody(), part).status == 200
            (history,) = running.store.export(DEFAULT_TENANT)
    assert [(step.name, step.outcome, str(step.failure.kind)) for step in history.steps] == [
        ("search", "failure", "retrieval/no_results")
    ]


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"mulligan.failure.type": "tool", "mulligan.failure.code": "crm_ticket_locked"}, "tool/crm_ticket_locked"),
        ({"mulligan.failure.code": "rate_limit"}, "tool/rate_limit"),
        ({"error.type": "tool/crm_ticket_locked"}, "tool/crm_ticket_locked"),
        ({"error.type": "application/json"}, "tool/timeout"),
    ],
)
def test_span_may_name_the_kind_of_its_failure(serving, anybody, facts, kind):
    facts = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"} | facts
    span = Made("a" * 32, "b" * 16, "", "execute_tool search", BEGUN, BEGUN + 10**9, facts, "Read timed out")
    assert send(anybody, [span]).status == 200
    (history,) = serving.store.export(DEFAULT_TENANT)
    assert [str(step.failure.kind) for step in history.steps] == [kind]


LINKED_TRACE = "d" * 32


def as_rich_json(spans, links):
    """The spans, of which the root links to another trace, with attributes that are lists."""
    export = as_json(spans)
    for span in export["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        if not span["parentSpanId"]:
            span["links"] = links
            values = {"arrayValue": {"values": [{"stringValue": "nightly"}, {"stringValue": "eu"}]}}
            span["attributes"].append({"key": "langfuse.trace.tags", "value": values})
    return export


@pytest.mark.parametrize("is_restarted", [False, True])
def test_name_user_tags_and_parent_of_a_trace_are_those_of_its_run(tmp_path, is_restarted):
    facts = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "langfuse.trace.name": "checkout",
             "langfuse.user.id": "u-1", "langfuse.observation.prompt.name": "greet"}  # fmt: skip
    child = Made("a" * 32, "b" * 16, "c" * 16, "chat", BEGUN, BEGUN + 10**9, facts)
    root_facts = {"langfuse.observation.type": "agent", "langfuse.trace.name": "checkout"}
    root = Made("a" * 32, "c" * 16, "", "handle", BEGUN, BEGUN + 10**10, root_facts)
    exports = [[child], [root]]
    for parts in [exports[:1], exports[1:]] if is_restarted else [exports]:
        with served(tmp_path) as running:
            for part in parts:
                links = [{"traceId": LINKED_TRACE, "spanId": "e" * 16}]
                assert running.anybody().post("/v1/traces", as_rich_json(part, links)).status == 200
            (history,) = running.store.export(DEFAULT_TENANT)
    assert history.run.agent == "checkout"
    assert history.run.metadata["user"] == "u-1"
    assert history.run.metadata["tags"] == ["nightly", "eu"]
    assert history.steps[0].metadata["prompt"] == "greet"
    assert history.run.parent == derive_run_id("otlp", LINKED_TRACE)


def test_links_and_lists_are_read_from_protobuf():
    tags = field(5, b"".join(field(1, field(1, tag)) for tag in TAGS))
    attribute = field(1, b"langfuse.trace.tags") + field(2, tags)
    link = field(1, bytes.fromhex(LINKED_TRACE)) + field(2, b"e" * 8)
    ids = field(1, b"a" * 16) + field(2, b"b" * 8)
    span = ids + field(9, attribute) + field(13, link)
    export = field(1, field(2, field(2, span)))
    (read,) = protobuf.parse_spans(export)
    assert (read.links, read.facts) == ([LINKED_TRACE], {"langfuse.trace.tags": ["nightly", "eu"]})


def test_agent_that_a_child_names_stays_after_a_restart_before_the_root_comes(tmp_path):
    agent = WEB_SPAN._replace(id="3" * 16, parent="2" * 16, facts={"gen_ai.operation.name": "invoke_agent",
                                                                   "gen_ai.agent.name": "scout"})  # fmt: skip
    step = agent._replace(id="4" * 16, parent="3" * 16, facts={"gen_ai.tool.name": "search"})
    for spans in ([step, agent], [WEB_SPAN]):
        with served(tmp_path) as running:
            assert send(running.anybody(), spans).status == 200
            (run,) = running.person().get("/v1/runs").json["runs"]
            assert (run["agent"], run["running"]) == ("scout", False)


LANGFUSE_PATH = "/api/public/otel/v1/traces"


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_langfuse_path_takes_the_keys_of_its_sdk_on_this_machine(serving, anybody):
    body = as_protobuf(list(World(1).run("success")))
    for authorization in (basic("pk", "sk"), "Basic nonsense"):
        told = anybody.post(LANGFUSE_PATH, body=body, Content_Type=PROTOBUF, Authorization=authorization)
        assert told.status == 200
    unknown = basic("pk", "mul_ingest_unknown")
    assert anybody.post(LANGFUSE_PATH, body=body, Content_Type=PROTOBUF, Authorization=unknown).status == 401
    assert anybody.get("/v1/runs", Authorization=basic("pk", "sk")).status == 401
    assert len(serving.person().get("/v1/runs").json["runs"]) == 1


def test_langfuse_path_needs_a_token_as_secret_key_on_a_shared_server(tmp_path):
    body = as_protobuf(list(World(1).run("success")))
    with served(tmp_path, AccessRules(is_local=False)) as running:
        tokens = {role: running.holding(role).token for role in ("ingest", "read")}
        statuses = [
            running.anybody().post(LANGFUSE_PATH, body=body, Content_Type=PROTOBUF, Authorization=authorization).status
            for authorization in (
                basic("pk", "sk"), basic("pk", ""), "Basic nonsense", basic("pk", tokens["read"]),
                basic("pk", tokens["ingest"]),
            )
        ]  # fmt: skip
        assert statuses == [401, 401, 401, 403, 200]
        assert running.anybody().get("/v1/runs", Authorization=basic("pk", tokens["read"])).status == 401


@pytest.mark.parametrize("sort", [PROTOBUF, "application/json"])
@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs"])
def test_what_is_no_otlp_is_refused_in_kind(anybody, sort, path):
    told = anybody.post(path, body=b'{"resourceSpans": 3, "resourceLogs": 3, \xff', Content_Type=sort)
    assert told.status == 400
    assert told.headers["content-type"].partition(";")[0] == sort


def test_metrics_are_answered_so_that_nobody_tries_again(anybody):
    told = anybody.post("/v1/metrics", {"resourceMetrics": []})
    assert told.status == 200
    assert anybody.post("/v1/metrics", body=b"\x0a\x00", Content_Type=PROTOBUF).status == 200


def log_record(name, time, **facts):
    attributes = [{"key": key.replace("__", "."), "value": {"stringValue": str(value)}} for key, value in facts.items()]
    return {"timeUnixNano": str(time), "body": {"stringValue": f"claude_code.{name}"},
            "attributes": [{"key": "event.name", "value": {"stringValue": name}}, *attributes]}  # fmt: skip


def test_the_log_of_a_coding_agent_tells_of_its_tools(serving, anybody):
    records = [
        log_record("user_prompt", BEGUN, session__id="s-1", prompt_length=12),
        log_record("tool_result", BEGUN + 10**9, session__id="s-1", tool_name="Bash", success="false", duration_ms="9",
                   error="bash: frobnicate: command not found", tool_parameters='{"command": "frobnicate"}'),
        log_record("tool_result", BEGUN + 2 * 10**9, session__id="s-1", tool_name="Bash", success="true",
                   duration_ms="80", tool_parameters='{"command": "ls"}'),
        log_record("api_error", BEGUN + 3 * 10**9, session__id="s-1", model="m-1", status_code="529",
                   error="Overloaded", duration_ms="10"),
        log_record("api_request", BEGUN + 4 * 10**9, session__id="s-1", model="m-1", input_tokens="10",
                   output_tokens="5", cache_read_tokens="90", cost_usd="0.0125", duration_ms="10"),
    ]  # fmt: skip
    sent = {"resourceLogs": [{"resource": {"attributes": []}, "scopeLogs": [{"logRecords": records}]}]}
    for _ in range(2):  # the second time changes nothing
        assert anybody.post("/v1/logs", sent).status == 200

    (run,) = serving.person().get("/v1/runs").json["runs"]
    history = serving.store.run(DEFAULT_TENANT, run["id"])
    assert [(step.name, step.outcome) for step in history.steps] == [
        ("Bash", "failure"), ("Bash", "success"), ("m-1", "failure"), ("m-1", "success"),
    ]  # fmt: skip
    kinds = {str(step.failure.kind) for step in history.steps if step.failure}
    assert kinds == {"tool/command_not_found", "model/unavailable"}
    assert history.steps[-1].tokens == {"input": 100, "output": 5, "cached_input": 90}
    assert history.steps[-1].cost_nanos == 12_500_000
    assert history.run.session == "s-1"


def test_what_a_coding_agent_logs_with_details_is_taken_for_what_it_is(serving, anybody):
    about = {"session__id": "s-2", "success": "false", "duration_ms": "8"}
    records = [
        log_record("tool_result", BEGUN + 10**9, **about, tool_name="Bash", tool_use_id="t1", error_type="ShellError",
                   error="Shell command failed", tool_input='{"command":"make nothing","description":"builds"}',
                   tool_parameters='{"bash_command":"make","full_command":"make nothing"}'),
        log_record("tool_result", BEGUN + 2 * 10**9, **about, tool_name="mcp_tool", tool_use_id="t2",
                   error_type="McpToolCallError", error="rate limit exceeded", tool_input='{"q":"tea"}',
                   tool_parameters='{"mcp_server_name":"crm","mcp_tool_name":"lookup"}'),
        log_record("tool_result", BEGUN + 3 * 10**9, **about, tool_name="mcp_tool", tool_use_id="t3",
                   error_type="McpToolCallError"),  # as it is without details
        log_record("tool_result", BEGUN + 4 * 10**9, **about, tool_name="mcp_tool", tool_parameters="[1]"),
    ]  # fmt: skip
    sent = {"resourceLogs": [{"resource": {"attributes": []}, "scopeLogs": [{"logRecords": records}]}]}
    assert anybody.post("/v1/logs", sent).status == 200

    (run,) = serving.person().get("/v1/runs").json["runs"]
    steps = serving.store.run(DEFAULT_TENANT, run["id"]).steps
    assert [(step.name, step.server, str(step.failure.kind), step.failure.message) for step in steps] == [
        ("Bash", None, "tool/execution_failed", "Shell command failed"),
        ("lookup", "crm", "tool/rate_limit", "rate limit exceeded"),
        ("mcp_tool", None, "tool/execution_failed", "McpToolCallError"),
        ("mcp_tool", None, "tool/unknown", ""),
    ]
    assert [step.arguments for step in steps[:3]] == [
        {"command": "make nothing", "description": "builds"}, {"q": "tea"}, None,
    ]  # fmt: skip


def test_a_client_that_speaks_grpc_is_told_what_to_do(serving, caplog):
    with socket.create_connection(("127.0.0.1", serving.port), timeout=10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        said = b""
        while chunk := connection.recv(4096):
            said += chunk
    assert b"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in said
    assert said[3] == 4  # SETTINGS first, as HTTP/2 wants it
    assert any("http/protobuf" in record.message for record in caplog.records)


@pytest.mark.parametrize("how", ["protobuf", "json"])
def test_a_result_of_a_span_that_looks_like_a_failure_is_suspected(serving, anybody, how):
    spans = list(World(5).run("success"))
    tool = next(span for span in spans if "gen_ai.tool.name" in span.facts)
    report = "bash: kubectl: command not found"
    tool.facts.update({"gen_ai.tool.name": "terminal", "gen_ai.tool.call.result": report})
    assert send(anybody, spans, how).status == 200

    (run,) = serving.person().get("/v1/runs").json["runs"]
    told = serving.person().get(f"/v1/runs/{run['id']}").json
    assert told["status"] == "success"
    suspected = [step["suspected"]["kind"] for step in told["steps"] if step.get("suspected")]
    assert suspected == ["tool/command_not_found"]
