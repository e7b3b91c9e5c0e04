"""mulligan alerts: rules and targets per tenant, a test message, and the history."""

from __future__ import annotations

import json

import pytest
from alert_receiver import receiving

pytest.importorskip("starlette", reason="needs the extra: pip install 'mulligan[server]'")


@pytest.fixture
def types_there(types, tmp_path, monkeypatch):
    monkeypatch.setenv("MULLIGAN_STORE", str(tmp_path / "m.db"))
    assert types("tenant", "create", "acme")[0] == 0
    return types


@pytest.mark.slow
def test_test_message_reaches_every_target_and_is_listed(types_there):
    with receiving() as receiver:
        target = f"slack:{receiver.url}"
        assert types_there("alerts", "set", "--tenant", "acme", "--target", target, "--target", "command:false")[0] == 0
        code, out, _ = types_there("alerts", "test", "--tenant", "acme")
        assert code == 1
        assert "slack at 127.0.0.1  accepted" in out
        assert "command false       exit status 1" in out
        assert receiver.bodies[0]["text"].startswith("mulligan: test of alerts")
    (entry,) = json.loads(types_there("alerts", "list", "--tenant", "acme", "--json")[1])
    assert (entry["type"], entry["state"]) == ("test", "failed")
    assert receiver.url not in json.dumps(entry)
    assert json.loads(types_there("alerts", "list", "--json")[1]) == []


def test_rules_are_changed_one_by_one_and_shown_without_secrets(types_there):
    types_there("alerts", "set", "--tenant", "acme", "--target", "slack:https://hooks.slack.com/services/hunter2")
    code, out, _ = types_there("alerts", "set", "--tenant", "acme", "--quiet-hours", "22:00-07:00 Europe/Berlin")
    assert code == 0
    assert "22:00-07:00 Europe/Berlin" in out
    assert "slack at hooks.slack.com" in out
    assert "hunter2" not in out + types_there("tenant", "show", "acme")[1] + types_there("audit")[1]
    assert "none" in types_there("alerts", "set", "--tenant", "acme", "--no-targets")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "--target", "fax:1"), "Invalid alert target 'fax'"),
        (("set", "--quiet-hours", "late"), "Invalid quiet hours 'late'"),
        (("set", "--target", "mail:ann@example.com"), "E-mail needs a mail server"),
        (("test",), "No target to test"),
        (("list", "--tenant", "nobody"), "No tenant of this name"),
    ],
)
def test_what_cannot_work_is_refused_with_the_next_step(types_there, words, said):
    code, _, err = types_there("alerts", *words)
    assert code == 2
    assert said in err
