"""The page and the API of alerts: who may add which target, what is shown of it, a test message and the history."""

from __future__ import annotations

from urllib.parse import urlencode

import dashboards
import pytest
from alert_receiver import receiving

from mulligan.report.alert_targets import Alert
from mulligan.server import tenant_alerts
from mulligan.server.tenant_alerts import load_history
from mulligan.server.tenants import Tenant

SLACK = "slack:https://hooks.slack.com/services/T0/hunter2"


def send(client, **fields):
    form = urlencode(fields).encode()
    return client.post("/alerts", body=form, Content_Type="application/x-www-form-urlencoded", Accept="text/html")


@pytest.fixture
def shown(tmp_path):
    with dashboards.empty(tmp_path) as shown:
        shown.running.server.tenants.create(Tenant("acme"))
        shown.running.server.tenants.refresh()
        yield shown


@pytest.fixture
def acme(shown):
    return shown.running.holding("admin", tenant="acme", name="ann")


def test_rules_and_targets_of_a_tenant_are_changed_on_the_page_and_shown_without_secrets(shown, acme):
    assert "No target yet" in acme.get("/alerts").body.decode()
    assert send(acme, action="add", target=SLACK).status == 303
    rules = {
        "action": "save", "type new_pattern": "on", "type person_needed": "on", "failure_rate": "30",
        "min_calls": "50", "interval_minutes": "5", "quiet_hours": "22:00-07:00 Europe/Berlin", "resolved": "on",
    }  # fmt: skip
    assert send(acme, **rules).status == 303
    page = acme.get("/alerts").body.decode()
    assert "slack at hooks.slack.com" in page
    assert "hunter2" not in page
    assert 'value="22:00-07:00 Europe/Berlin"' in page
    assert page.count('" checked>') == 2 + 1
    stored = shown.running.server.tenants.find("acme").alerts
    assert (stored.failure_rate, stored.min_calls, stored.interval_minutes) == (0.3, 50, 5.0)
    assert stored.types == ("new_pattern", "person_needed")
    assert "slack" not in shown.running.holding("admin", name="other").get("/alerts").body.decode().partition("<ul")[2]
    (target,) = acme.get("/v1/alerts").json["rules"]["targets"]
    assert send(acme, remove=target["id"]).status == 303
    assert shown.running.server.tenants.find("acme").alerts.targets == ()
    assert send(acme, remove=target["id"]).status == 400


@pytest.mark.parametrize(
    "target",
    ["command:rm -rf /", "webhook:http://169.254.169.254/latest", "webhook:https://example.com/x", "fax:1",
     "slack:http://127.0.0.1:9/x", "slack:https://hooks.slack.com.evil.example/x", "teams:https://10.0.0.1/x",
     "slack:http://hooks.slack.com/x", "mail:ann@example.com"],
)  # fmt: skip
def test_a_token_adds_no_target_that_reaches_the_network_of_the_server_or_runs_a_program(shown, acme, target):
    assert send(acme, action="add", target=target).status == 400
    answer = acme.post("/v1/alerts", {"add_targets": [SLACK, target]})
    assert (answer.status, answer.json["error"]) == (400, "invalid")
    assert shown.running.server.tenants.find("acme").alerts is None


def test_the_person_at_the_printed_address_adds_any_webhook_but_no_command(shown):
    person = shown.running.person()
    assert send(person, action="add", target="webhook:http://127.0.0.1:9/x").status == 303
    assert send(person, action="add", target="command:true").status == 400
    assert "webhook at (private address)" in person.get("/alerts").body.decode()


@pytest.mark.parametrize(
    "fields",
    [{}, {"action": "save"}, {"action": "save", "type new_pattern": "on", "failure_rate": "much"},
     {"action": "save", "type new_pattern": "on", "failure_rate": "200", "min_calls": "1", "interval_minutes": "1"},
     {"action": "test"}],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(acme, fields):
    assert send(acme, **fields).status == 400


def test_readers_neither_see_nor_change_alerts(shown):
    reader = shown.running.holding("read")
    assert reader.get("/alerts").status == reader.get("/v1/alerts").status == 403
    assert send(reader, action="add", target=SLACK).status == reader.post("/v1/alerts/test", {}).status == 403


def test_rules_are_changed_by_the_api_field_by_field(shown, acme):
    answer = acme.post("/v1/alerts", {"add_targets": [SLACK], "types": ["new_pattern"], "interval_minutes": 0})
    assert answer.status == 200
    rules = acme.post("/v1/alerts", {"resolved": False}).json["rules"]
    assert (rules["types"], rules["interval_minutes"], rules["resolved"]) == (["new_pattern"], 0, False)
    (target,) = rules["targets"]
    assert target["label"] == "slack at hooks.slack.com"
    assert acme.post("/v1/alerts", {"remove_targets": [target["id"]]}).json["rules"]["targets"] == []
    assert acme.post("/v1/alerts", {"remove_targets": [target["id"]]}).status == 400
    assert acme.post("/v1/alerts", {"types": ["test"]}).status == 400


def test_history_shows_text_links_and_deliveries_as_text(shown, acme):
    assert acme.post("/v1/alerts", {"add_targets": [SLACK]}).status == 200
    hostile = "<script>alert(2)</script> <a href=https://evil.example>of acme</a>"
    alert = Alert("new_pattern", hostile, 1_700_000_000_000, run="run_1", pattern="pat_1")
    shown.running.server.alerts.add("acme", [alert])
    page = acme.get("/alerts").body.decode()
    assert "alert(2)" in page
    assert "<script>alert" not in page
    assert 'href="https://evil.example' not in page
    assert "<a href=https" not in page
    assert 'href="/patterns/pat_1"' in page
    assert 'href="/runs/run_1#first-failure"' in page
    (entry,) = acme.get("/v1/alerts").json["alerts"]
    assert (entry["state"], entry["text"]) == ("pending", hostile)
    assert "alert(2)" not in shown.running.person().get("/alerts").body.decode()


@pytest.mark.slow
def test_test_message_is_sent_in_the_background_and_once_in_a_while(shown, monkeypatch):
    monkeypatch.setattr(tenant_alerts, "POLL_SECONDS", 0.05)
    person, alerts = shown.running.person(), shown.running.server.alerts
    alerts.link = "https://mulligan.example.com/"
    with receiving() as receiver:
        assert send(person, action="add", target=f"webhook:{receiver.url}").status == 303
        assert person.post("/v1/alerts/test", {}).json["state"] == "pending"
        assert b"every 2s" in person.get("/alerts").body
        assert send(person, action="test").status == 400  # a moment ago
        alerts.start()
        (body,) = receiver.wait_for(1)
        assert "Open the alerts page: https://mulligan.example.com/alerts" in body["text"]
        alerts.close()
    (entry,) = load_history(shown.running.store, "local").alerts
    assert entry.state == "sent"


@pytest.mark.slow
def test_failed_test_message_is_not_repeated(shown):
    with receiving() as receiver:
        receiver.status = 503
        person, alerts = shown.running.person(), shown.running.server.alerts
        assert send(person, action="add", target=f"webhook:{receiver.url}").status == 303
        assert send(person, action="test").status == 303
        alerts.start()
        alerts.close()
    (entry,) = load_history(shown.running.store, "local").alerts
    assert (entry.state, entry.deliveries[0].error) == ("failed", "HTTP status 503")
