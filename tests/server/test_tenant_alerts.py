"""Alerts of a server: what they say, when they are sent, and that a dead target loses none and slows nobody."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from alert_receiver import receiving
from msgspec.structs import replace
from servers import served

from mulligan.contract.store import DEFAULT_TENANT, PatternCommand
from mulligan.core.failure import SettingsError
from mulligan.report.alerts import AlertSettings, find_quiet_end, parse_alert_settings
from mulligan.server import tenant_alerts
from mulligan.server.tenant_alerts import TenantAlerts, load_history
from mulligan.server.tenants import Tenant
from mulligan.store.sqlite import SqliteStore

pytestmark = pytest.mark.slow


def sent(id: str, tool: str = "pay", failure: dict[str, Any] | None = None, **run: Any) -> dict[str, Any]:
    now = int(time.time() * 1000)
    steps = [{"name": tool, "started_at": now, "failure": failure}]
    return {"id": id, "agent": "cashier", "version": "1.4", "environment": "prod", "started_at": now,
            "end_reason": "finished", "steps": steps, **run}  # fmt: skip


NO_CREDIT = {"type": "model", "code": "quota_exceeded", "message": "no credit left"}
SLOW = {"type": "tool", "code": "timeout", "message": "too slow"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(tenant_alerts, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(tenant_alerts, "PATTERN_POLL_SECONDS", 0.05)
    monkeypatch.setattr(tenant_alerts, "HEALTH_POLL_SECONDS", 0.05)
    monkeypatch.setattr(tenant_alerts, "RETRY_DELAYS_SECONDS", (0.1,))
    monkeypatch.setattr("mulligan.report.alerts.PATTERN_CHECK_SECONDS", 0.0)
    monkeypatch.setattr("mulligan.report.alert_targets.DELIVERY_TIMEOUT_SECONDS", 0.5)


LISTENERS: dict[int, Any] = {}


@contextlib.contextmanager
def server_with_alerts(folder, **more):
    port: list[int] = []
    with served(folder, on_stored=lambda tenant, events: LISTENERS[port[0]](tenant, events), **more) as running:
        port.append(running.port)
        yield running


class Serving:
    """A server with alerts for the tenant acme; another tenant has none."""

    def __init__(self, running, url="", **rules):
        self.now = None
        self.running, server = running, running.server
        if server.tenants.find("acme") is None:
            server.tenants.create(Tenant("acme", alert_webhook=url, alerts=AlertSettings(**rules)))
        server.tenants.refresh()
        self.alerts = TenantAlerts(running.store, server.tenants, clock=lambda: self.now or time.time())
        self.alerts.link = "https://mulligan.example.com"
        LISTENERS[running.port] = self.alerts.on_stored
        server.on_quota_exhausted = self.alerts.on_quota_exhausted
        server.background_work = (self.alerts,)
        self.acme = running.holding("admin", tenant="acme")
        self.alerts.start()

    def send(self, *runs):
        for run in runs:
            assert self.acme.post("/v1/runs", run).status == 200


def types(receiver):
    return [(body["alert"]["type"], body["alert"].get("resolved", False)) for body in receiver.bodies]


def eventually(is_true):
    until = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_alert_has_the_facts_of_run_and_pattern_and_reaches_the_tenants_target_alone(tmp_path):
    with receiving() as receiver, server_with_alerts(tmp_path) as running:
        serving = Serving(running, receiver.url)
        running.holding("ingest").post("/v1/runs", sent("other", failure=NO_CREDIT))
        serving.send(sent("r1", failure=NO_CREDIT))
        (body,) = receiver.wait_for(1)
    alert = body["alert"]
    assert (alert["type"], alert["tenant"], alert["agent"], alert["version"], alert["environment"]) == (
        "person_needed", "acme", "cashier", "1.4", "prod",
    )  # fmt: skip
    assert alert["occurrences"] == 1
    assert alert["message"] == "no credit left"
    assert alert["link"] == "https://mulligan.example.com/runs/r1"
    assert f"Open the pattern: https://mulligan.example.com/patterns/{alert['pattern']}" in body["text"]


def test_pattern_is_reported_when_new_when_it_came_back_and_when_a_person_resolved_it(tmp_path):
    with receiving() as receiver, server_with_alerts(tmp_path) as running:
        serving = Serving(running, receiver.url)
        serving.send(sent("r1", failure=SLOW))
        pattern = receiver.wait_for(1)[0]["alert"]["pattern"]
        command = PatternCommand("resolve", pattern, at=int(time.time() * 1000))
        running.store.update_pattern("acme", command)
        receiver.wait_for(2)
        time.sleep(0.01)
        serving.send(sent("r2", failure=SLOW, version="1.5"))
        receiver.wait_for(3)
    assert types(receiver) == [("new_pattern", False), ("new_pattern", True), ("regressed_pattern", False)]
    assert "occurred again in version 1.5" in receiver.bodies[2]["alert"]["text"]


def test_success_of_the_tool_resolves_what_needed_a_person(tmp_path):
    with receiving() as receiver, server_with_alerts(tmp_path) as running:
        serving = Serving(running, receiver.url)
        serving.send(sent("r1", failure=NO_CREDIT))
        receiver.wait_for(1)
        serving.send(sent("r2", tool="other"))
        serving.send(sent("r3"))
        receiver.wait_for(2)
        serving.send(sent("r4"))
        time.sleep(0.3)
    assert types(receiver) == [("person_needed", False), ("person_needed", True)]
    assert receiver.bodies[1]["text"].startswith("mulligan: resolved: model/quota")


def test_rate_quota_and_health_have_their_alerts(tmp_path):
    with receiving() as receiver, server_with_alerts(tmp_path) as running:
        serving = Serving(
            running, receiver.url, failure_rate=0.2, min_calls=4,
            types=("high_failure_rate", "budget_exhausted", "server_unhealthy"),
        )  # fmt: skip
        serving.send(*(sent(f"ok{number}", "search") for number in range(3)), sent("bad", "search", SLOW))
        receiver.wait_for(1)
        assert "1 of the last 4 calls are unrecovered" in receiver.bodies[0]["text"]
        serving.send(sent("ok3", "search"), sent("ok4", "search"))
        receiver.wait_for(2)
        running.server.tenants.set("acme", lambda tenant: replace(tenant, quotas={"records": 2}))
        running.server.tenants.refresh()
        serving.acme.post("/v1/runs", sent("q1"))
        assert serving.acme.post("/v1/runs", sent("q2")).status == 429
        receiver.wait_for(3)
        running.server.tenants.set(DEFAULT_TENANT, lambda tenant: replace(tenant, alert_webhook=receiver.url))
        running.server.tenants.refresh()
        serving.alerts.check_health = lambda: "the store is not writable"
        receiver.wait_for(4)
        serving.alerts.check_health = lambda: ""
        receiver.wait_for(5)
    assert types(receiver) == [
        ("high_failure_rate", False), ("high_failure_rate", True), ("budget_exhausted", False),
        ("server_unhealthy", False), ("server_unhealthy", True),
    ]  # fmt: skip
    assert "The daily quota of 2 records is exhausted" in receiver.bodies[2]["alert"]["text"]


def test_target_that_refuses_hangs_and_restarts_gets_every_alert_and_ingest_does_not_wait(tmp_path):
    """A real target: it refuses, then hangs while the server is stopped, and answers the next server."""
    with receiving() as receiver:
        receiver.status = 503
        with server_with_alerts(tmp_path) as running:
            serving = Serving(running, receiver.url, types=("person_needed",))
            serving.send(sent("r1", failure=NO_CREDIT))
            eventually(lambda: receiver.requests >= 3)
            receiver.hangs.set()
            requests = receiver.requests
            eventually(lambda: receiver.requests > requests)
            times = []
            for number in range(20):
                begin = time.monotonic()
                serving.send(sent(f"h{number}", f"tool-{number}", NO_CREDIT))
                times.append(time.monotonic() - begin)
            assert sorted(times)[10] < 0.4, times  # the target hangs for 0.5 s and gets 21 alerts
        assert not receiver.bodies
        store = SqliteStore(tmp_path / "mulligan.db")
        pending = [entry for entry in load_history(store, "acme").alerts if entry.state == "pending"]
        assert len(pending) == 21
        receiver.hangs.clear()
        receiver.status = 200
        with pytest.MonkeyPatch.context() as patch, server_with_alerts(tmp_path, store=store) as running:
            later = time.time() + tenant_alerts.CLAIM_SECONDS + 1
            patch.setattr(time, "time", lambda: later)
            Serving(running)
            receiver.wait_for(21)
            eventually(lambda: {entry.state for entry in load_history(running.store, "acme").alerts} == {"sent"})
            assert all(not entry.alert.message for entry in load_history(running.store, "acme").alerts)
    tools = [body["alert"]["tool"] for body in receiver.bodies]
    assert tools == ["pay", *(f"tool-{number}" for number in range(20))]


def test_target_that_became_invalid_stops_no_other_tenant(tmp_path, caplog):
    with receiving() as receiver, server_with_alerts(tmp_path) as running:
        running.server.tenants.create(Tenant("aaa", alerts=AlertSettings(targets=("mail:ann@example.com",))))
        serving = Serving(running, receiver.url)
        assert running.holding("admin", tenant="aaa").post("/v1/runs", sent("r0", failure=NO_CREDIT)).status == 200
        serving.send(sent("r1", failure=NO_CREDIT))
        receiver.wait_for(1)
    assert caplog.text.count("Alerts of tenant aaa are not sent") == 1


def test_address_that_is_wrong_is_not_asked_again(tmp_path):
    with receiving() as receiver, server_with_alerts(tmp_path) as running:
        receiver.status = 404
        serving = Serving(running, receiver.url)
        serving.send(sent("r1", failure=NO_CREDIT))
        eventually(lambda: [entry.state for entry in load_history(running.store, "acme").alerts] == ["failed"])
        time.sleep(0.3)
    assert receiver.requests == 1


def test_chat_gets_one_message_for_what_waited_and_a_webhook_each(tmp_path, monkeypatch):
    with receiving() as chat, receiving() as hook, server_with_alerts(tmp_path) as running:
        serving = Serving(running, hook.url, targets=(f"slack:{chat.url}",), quiet_hours="00:00-23:59")
        now = time.time()
        noon = now - now % 86_400 + 43_200
        serving.now = noon
        serving.send(sent("r1", "pay", NO_CREDIT), sent("r2", "ship", NO_CREDIT))
        eventually(lambda: len(load_history(running.store, "acme").alerts) == 2)
        time.sleep(0.3)
        assert not chat.bodies + hook.bodies
        serving.now = noon + 12 * 3600
        hook.wait_for(2)
        chat.wait_for(1)
        time.sleep(0.2)
    assert len(chat.bodies) == 1
    assert "Also: model/quota_exceeded in ship" in chat.bodies[0]["text"]


def test_test_alert_says_which_targets_work_and_is_in_the_history(tmp_path):
    with receiving() as receiver, server_with_alerts(tmp_path) as running:
        serving = Serving(
            running, receiver.url, targets=("webhook:http://127.0.0.1:9/x", "command:false --key hunter2")
        )
        results = serving.alerts.send_test("acme", "ann")
        assert [bool(result.sent_at) for result in results] == [True, False, False]
        (entry,) = load_history(running.store, "acme").alerts
        assert "hunter2" not in repr(entry)
        assert receiver.bodies[0]["text"].startswith("mulligan: test of alerts by ann")


def test_quiet_hours_end_by_the_clock_of_their_zone():
    noon_utc = 1_763_553_600.0  # 2025-11-19 12:00 UTC
    assert find_quiet_end("22:00-07:00", noon_utc) == noon_utc
    assert find_quiet_end("22:00-07:00", noon_utc + 11 * 3600) == noon_utc + 19 * 3600
    assert find_quiet_end("09:00-13:30", noon_utc) == noon_utc + 1.5 * 3600
    assert find_quiet_end("22:00-07:00 Asia/Tokyo", noon_utc + 2 * 3600) == noon_utc + 10 * 3600


@pytest.mark.parametrize(
    "values",
    [{"type": 1}, {"quiet_hours": "25:00-1:00"}, {"quiet_hours": "22:00-07:00 Mars/Base"}, {"failure_rate": 2.0},
     {"types": ["fire"]}, {"targets": ["fax:1"]}, {"interval_minutes": -1.0}, {"targets": ["mail:a@b.example"]}],
)  # fmt: skip
def test_rules_that_cannot_be_meant_are_refused(values):
    with pytest.raises(SettingsError):
        parse_alert_settings(values)
