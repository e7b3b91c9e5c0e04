"""Who may come in: by Host, Origin, token, cookie and role, at every endpoint there is."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time

import pytest
from servers import Client, served

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.failure import StoreError
from mulligan.dashboard.pages import build_routes as pages
from mulligan.server.access import AccessRules
from mulligan.server.limits import MAX_LIVE_STREAMS
from mulligan.server.routes import ROUTE_GROUPS
from mulligan.store import wire_protocol

OPEN = {"/healthz", "/readyz", "/openapi.json", "/docs", "/docs.css"}
ENDPOINTS = {
    ("GET", "/v1/runs"): "read",
    ("GET", "/v1/runs/x"): "read",
    ("GET", "/v1/run-groups"): "read",
    ("GET", "/v1/stats"): "read",
    ("GET", "/v1/compare"): "read",
    ("GET", "/v1/impact"): "read",
    ("GET", "/v1/search"): "read",
    ("GET", "/v1/patterns"): "read",
    ("GET", "/v1/patterns/x"): "read",
    ("GET", "/v1/lessons"): "read",
    ("GET", "/v1/lessons/x"): "read",
    ("POST", "/v1/lessons/x"): "admin",
    ("POST", "/v1/patterns/x"): "admin",
    ("POST", "/v1/patterns"): "admin",
    ("GET", "/v1/fixes"): "read",
    ("GET", "/v1/fixes/x"): "read",
    ("POST", "/v1/fixes/x"): "admin",
    ("POST", "/v1/revocations"): "admin",
    ("POST", "/v1/forget"): "admin",
    ("POST", "/v1/prune"): "admin",
    ("GET", "/v1/tools"): "read",
    ("GET", "/v1/agents"): "read",
    ("GET", "/v1/audit"): "admin",
    ("GET", "/v1/alerts"): "admin",
    ("POST", "/v1/alerts"): "admin",
    ("POST", "/v1/alerts/test"): "admin",
    ("GET", "/metrics"): "read",
    ("POST", "/v1/batch"): "ingest",
    ("POST", "/v1/runs"): "ingest",
    ("POST", "/v1/steps"): "ingest",
    ("POST", "/v1/failures"): "ingest",
    ("POST", "/v1/traces"): "ingest",
    ("POST", "/api/public/otel/v1/traces"): "ingest",
    ("POST", "/v1/logs"): "ingest",
    ("POST", "/v1/metrics"): "ingest",
    ("POST", "/v1/recall"): "lookup",
    ("POST", "/v1/outcomes"): "ingest",
    ("POST", "/v1/export"): "read",
    **{("POST", f"/v1/store/{name}"): about.required_role for name, about in wire_protocol.METHODS.items()},
}
"""What each needs."""


@pytest.fixture
def beyond(tmp_path):
    """A server that others can reach."""
    with served(tmp_path, AccessRules(is_local=False, hosts=frozenset({"mulligan.example.com"}))) as running:
        yield running


def test_where_the_store_is_is_told_to_nobody_elsewhere(beyond, serving, monkeypatch, caplog):
    def away(*_):
        raise StoreError("postgresql://clerk@10.0.0.7/memory cannot be reached.")

    for running in (beyond, serving):
        monkeypatch.setattr(running.store, "get", away)
    told = beyond.anybody().get("/readyz")
    assert told.status == 503
    assert b"10.0.0.7" not in told.body
    assert "10.0.0.7" in caplog.text
    assert b"10.0.0.7" in serving.anybody().get("/readyz").body  # whoever is on this machine may help


def test_every_endpoint_is_in_the_table(serving):
    found = {
        (method, each.path.replace("{id:path}", "x"))
        for group in ROUTE_GROUPS
        for each in group(serving.server)
        for method in each.methods - {"HEAD"}
        if each.path not in OPEN
    }
    assert found == set(ENDPOINTS)


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_beyond_loopback_nothing_is_done_without_a_token(beyond, method, path):
    told = beyond.anybody()(method, path, {} if method == "POST" else None)

    assert told.status == 401
    assert told.headers["www-authenticate"].startswith("Bearer")


def test_each_role_may_do_what_it_is_for_and_nothing_else(beyond):
    may = {
        "ingest": {"lookup", "ingest"}, "read": {"lookup", "read"}, "admin": {"lookup", "ingest", "read", "admin"},
    }  # fmt: skip
    for role, allowed in may.items():
        client = beyond.holding(role)
        for (method, path), needs in ENDPOINTS.items():
            status = client(method, path, {} if method == "POST" else None).status  # often 400: but not before the door
            assert (status == 403) == (needs not in allowed), (role, path, status)
            assert status != 401


def test_a_token_that_is_expired_revoked_or_unknown_opens_nothing(beyond):
    expired = beyond.holding("admin", expires=1)
    revoked = beyond.holding("admin", name="gone")
    beyond.server.tokens.revoke("gone", 5)
    beyond.server.tokens.refresh()
    for client in (expired, revoked, Client(beyond.port, token="mul_admin_x"), Client(beyond.port, token="")):
        for method, path in ENDPOINTS:
            assert client(method, path, {} if method == "POST" else None).status == 401


def test_a_wrong_token_is_refused_even_where_none_is_needed(serving):
    assert Client(serving.port, token="mul_ingest_x").post("/v1/runs", {}).status == 401
    assert serving.anybody().post("/v1/runs", {}).status == 200


def test_on_loopback_anybody_may_send_and_only_the_person_at_the_keyboard_may_look(serving):
    assert serving.anybody().get("/v1/runs").status == 401
    assert serving.person().get("/v1/runs").status == 200


def test_the_printed_address_works_once_and_its_cookie_is_kept_from_other_sites(serving):
    ticket = serving.server.browser_sessions.ticket
    came = serving.anybody().get(f"/enter/{ticket}")

    assert came.status == 303
    cookie = came.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert serving.anybody().get(f"/enter/{ticket}").status == 403
    assert serving.server.browser_sessions.ticket != ticket


def test_a_tenant_sees_nothing_of_another(beyond):
    ours, theirs = beyond.holding("admin", tenant="ours"), beyond.holding("admin", tenant="theirs")
    run = {
        "id": "r",
        "agent": "a",
        "ended_at": 2,
        "started_at": 1,
        "steps": [{"name": "s", "failure": {"message": "no"}}],
    }
    assert ours.post("/v1/runs", run).json["new"] == 2
    (pattern,) = ours.get("/v1/patterns").json["patterns"]

    assert theirs.get("/v1/runs").json["runs"] == []
    assert theirs.get("/v1/runs/r").status == 404
    assert theirs.get(f"/v1/patterns/{pattern['id']}").status == 404
    assert theirs.get("/v1/stats?since=all").json["total_runs"] == 0
    assert theirs.get("/v1/tools?since=all").json["tools"] == []
    assert ours.get("/v1/runs/r").status == 200
    assert theirs.post("/v1/runs", run).json["new"] == 2  # the same id is another run there


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:99", 200), ("localhost", 200), ("[::1]:4700", 200), ("LOCALHOST.", 200),
        ("evil.example.com", 421), ("192.168.1.5", 421), ("", 421), ("localhost.evil.com", 421),
        ("127.0.0.1.nip.io", 421),
    ],
)  # fmt: skip
def test_a_host_that_is_not_ours_is_refused(serving, host, status):
    for path in ("/healthz", "/v1/runs"):
        told = serving.person().get(path, Host=host)
        assert told.status == status


def test_beyond_loopback_an_address_and_the_names_it_was_given_are_its_own(beyond):
    for host, status in (("mulligan.example.com", 200), ("10.0.0.7:4700", 200), ("evil.example.com", 421)):
        assert beyond.anybody().get("/healthz", Host=host).status == status


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", "http://127.0.0.1:1", "file://"])
def test_a_page_of_another_site_cannot_write(serving, origin):
    person = serving.person()

    assert person.post("/v1/runs", {}, Origin=origin).status == 403
    assert person.post("/v1/runs", {}, Origin=f"http://127.0.0.1:{serving.port}").status == 200


def test_every_answer_tells_browsers_to_trust_nothing_else(serving):
    for path in ("/healthz", "/v1/runs", "/nowhere"):
        headers = serving.anybody().get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_what_is_not_there_and_what_cannot_be_done_is_told(serving):
    assert serving.anybody().get("/nowhere").status == 404
    told = serving.anybody()("DELETE", "/v1/runs")
    assert told.status == 405


@pytest.mark.parametrize(
    ("path", "possible"),
    [
        ("/v1/runs", {"GET", "HEAD", "POST"}),
        ("/v1/runs/run_a", {"GET", "HEAD"}),
        ("/v1/lessons/les_0123456789ab", {"GET", "HEAD", "POST"}),
        ("/v1/batch", {"POST"}),
    ],
)
def test_what_cannot_be_done_names_everything_that_can(serving, path, possible):
    told = serving.anybody()("DELETE", path)
    assert (told.status, set(told.headers["allow"].split(", "))) == (405, possible)


@pytest.mark.parametrize(
    ("method", "said", "told"),
    [
        ("forget", [{"text": "abc"}], "Use at least 4 characters"),
        ("forget", [{}], "Select exactly one of"),
        (
            "update_pattern",
            [{"pattern": "ID", "action": "merge", "into": "pat_none"}],
            "List patterns: mulligan patterns",
        ),
        ("update_pattern", [{"pattern": "ID", "action": "merge"}], "Merging needs two pattern ids"),
        ("save_lesson", [{"id": "les_1", "tool": "s", "mistake": "m", "correction": "c"}], "12 hexadecimal digits"),
    ],
)
def test_what_no_store_can_do_is_the_askers_fault_and_not_told_as_the_stores(serving, method, said, told):
    failed = {"id": "r", "end_reason": "finished", "steps": [{"name": "s", "failure": {"message": "no"}}]}
    assert serving.anybody().post("/v1/runs", failed).status == 200
    person = serving.person()
    (pattern,) = person.get("/v1/patterns").json["patterns"]
    body = json.dumps(said).replace('"ID"', json.dumps(pattern["id"])).encode()
    answer = person.post(f"/v1/store/{method}", body=body)
    assert (answer.status, answer.json["error"]) == (400, "invalid")
    assert told in answer.json["message"]
    assert "retry-after" not in answer.headers


def test_transfer_encoding_with_content_length_is_refused_and_the_connection_closed(serving):
    body = b'[{"id": "smuggled"}]'
    framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    head = (
        f"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(framed)}\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()
    following = f"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", serving.port), timeout=10) as connection:
        connection.sendall(head + framed + following)
        received = b"".join(iter(lambda: connection.recv(65536), b""))  # until the server closes
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in received.lower()
    assert received.count(b"HTTP/1.1 ") == 1, "the following request was answered"
    assert serving.store.run(DEFAULT_TENANT, "smuggled") is None


def test_live_streams_are_limited_per_token_and_free_when_closed(tmp_path):
    with served(tmp_path, AccessRules(is_local=False), groups=[pages]) as running:
        reader, other = running.holding("read", name="a"), running.holding("read", name="b")

        def open_stream(token: str) -> tuple[http.client.HTTPConnection, int]:
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)
            connection.request("GET", "/live/events", headers={"Authorization": f"Bearer {token}"})
            return connection, connection.getresponse().status

        streams = [open_stream(reader.token) for _ in range(MAX_LIVE_STREAMS)]
        assert {status for _, status in streams} == {200}
        refused = reader.get("/live/events")
        assert refused.status == 429
        assert "Too many live streams" in refused.json["message"]
        assert int(refused.headers["retry-after"]) > 0
        streams.append(open_stream(other.token))
        assert streams[-1][1] == 200, "another token has its own streams"
        for connection, _ in streams:
            connection.close()
        for _ in range(200):  # the server notices the end of a stream at its next event
            connection, status = open_stream(reader.token)
            connection.close()
            if status == 200:
                break
            time.sleep(0.1)
        assert status == 200


def test_requests_that_arrive_while_tokens_are_read_again_wait_for_one_reading(serving, anybody, monkeypatch):
    server, may_end = serving.server, threading.Event()
    arrivals, readings, statuses = [], [], []
    refresh, refresh_if_stale = server.refresh, server.refresh_if_stale

    def read_slowly() -> None:
        readings.append(1)
        assert may_end.wait(20)
        refresh()

    async def arrive() -> None:
        arrivals.append(1)
        await refresh_if_stale()

    monkeypatch.setattr(server, "refresh", read_slowly)
    monkeypatch.setattr(server, "refresh_if_stale", arrive)

    def send() -> None:
        statuses.append(anybody.post("/v1/runs", {"id": "r"}).status)

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    while len(arrivals) < 6:
        time.sleep(0.002)
    may_end.set()
    for thread in threads:
        thread.join(20)
    assert statuses == [200] * 6
    assert len(readings) == 1
