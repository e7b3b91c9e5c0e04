"""mulligan audit, and the page and the answer for admins: who changed what, through which door."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from mulligan.contract import audit
from mulligan.contract.store import DEFAULT_TENANT, AuditQuery
from mulligan.store.sqlite import SqliteStore


@pytest.fixture
def there(types, tmp_path):
    store = str(tmp_path / "s.db")
    return lambda *words: types(*words, "--store", store)


def test_commands_are_noted_with_who_typed_them(there, monkeypatch):
    monkeypatch.setattr(audit, "current_user", lambda: "ann")
    there("tenant", "create", "acme", "--records", "2m", "--alert-webhook", "https://chat.example.com/s3cr3t")
    secret = there("token", "create", "--role", "read", "--tenant", "acme", "--name", "ci")[1].strip()
    there("tenant", "set", "acme", "--keep-failures", "180")
    there("token", "revoke", "ci")

    acts = json.loads(there("audit", "--tenant", "acme", "--json")[1])
    assert {each["action"] for each in acts} == {"token.revoke", "tenant.set", "token.create", "tenant.create"}
    assert {(each["by"], each["via"]) for each in acts} == {("ann", "command")}
    told = {each["action"]: each["detail"] for each in acts}
    assert told["tenant.set"] == 'retention_days {"keep_failures":180}'
    assert "2000000" in told["tenant.create"]
    assert "alert_webhook" in told["tenant.create"]
    everything = there("audit", "--tenant", "acme")[1] + there("audit", "--tenant", "acme", "--csv")[1]
    assert "s3cr3t" not in everything
    assert secret not in everything
    assert there("audit", "--json")[1].strip() == "[]"  # `local` has changed nothing


def test_it_is_narrowed_and_told_as_a_table_and_as_csv(there):
    there("token", "create", "--role", "read", "--name", "one")
    there("token", "create", "--role", "read", "--name", "two")
    there("token", "revoke", "one")
    assert len(json.loads(there("audit", "--action", "token.create", "--json")[1])) == 2
    assert len(json.loads(there("audit", "--action", "token.", "--json")[1])) == 3
    assert len(json.loads(there("audit", "--limit", "1", "--json")[1])) == 1
    assert json.loads(there("audit", "--by", "no such person", "--json")[1]) == []
    assert "token.revoke" in there("audit")[1]
    rows = list(csv.DictReader(io.StringIO(there("audit", "--csv")[1])))
    assert {each["action"] for each in rows} == {"token.create", "token.revoke"}
    assert "No audit entry matches" in there("audit", "--by", "no such person")[1]


def test_what_cannot_be_asked_is_refused(types, there):
    code, _, err = there("audit")
    assert (code, "does not exist yet" in err) == (2, True)
    assert there("audit", "--since", "soon")[0] == 2
    code, _, err = types("audit", "--tenant", "acme", "--store", "https://mulligan.example.com")
    assert (code, "the tenant from your token" in err) == (2, True)


def test_a_removed_tenant_leaves_its_log(there, tmp_path, monkeypatch):
    monkeypatch.setattr("mulligan.cli.tenant.REFRESH_INTERVAL_SECONDS", 0)
    there("tenant", "create", "acme")
    there("token", "create", "--role", "read", "--tenant", "acme")
    there("tenant", "remove", "acme", "--yes")
    did = [each["action"] for each in json.loads(there("audit", "--tenant", "acme", "--json")[1])]
    assert sorted(did) == ["tenant.create", "tenant.remove", "token.create", "token.revoke"]


@pytest.fixture
def serving(tmp_path):
    pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")
    from servers import served

    from mulligan.dashboard.pages import build_routes

    with served(tmp_path, groups=[build_routes]) as running:
        yield running


RUN = {
    "id": "r", "agent": "a", "end_reason": "finished",
    "steps": [{"name": "s", "arguments": {"k": 1}, "failure": {"message": "no", "code": "invalid_arguments"}},
              {"name": "s", "arguments": {"k": 2}}],
}  # fmt: skip


def test_decisions_on_pages_and_by_token_are_noted_with_who_holds_the_token(serving):
    ann = serving.holding("admin", tenant="acme", name="ann")
    assert ann.post("/v1/runs", RUN).status == 200
    (pattern,) = ann.get("/v1/patterns").json["patterns"]
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    assert ann.post(f"/patterns/{pattern['id']}", body=b"action=mute", **form).status == 303
    assert ann.post("/v1/store/forget", body=b'[{"run":"r"}]').status == 200

    acts = ann.get("/v1/audit").json["audit"]
    assert [(each["action"], each["by"], each["via"]) for each in acts[:2]] == [
        ("forget.run", "ann", "api"),
        ("pattern.mute", "ann", "page"),
    ]
    assert acts[0]["token"].startswith("tok_")
    page = ann.get("/audit").body.decode()
    assert "pattern.mute" in page
    assert pattern["id"] in page
    assert "mul_admin" not in page
    assert b"pattern.mute" in ann.get("/v1/audit?format=csv").body
    first = ann.get("/v1/audit?limit=1").json
    assert ann.get(f"/v1/audit?limit=1&cursor={first['next']}").json["audit"] == acts[1:2]
    assert ann.get("/v1/audit?action=pattern.").json["audit"] == acts[1:2]


def test_the_log_is_for_admins_of_the_tenant_alone(serving):
    serving.holding("admin", tenant="acme", name="ann")
    for path in ("/v1/audit", "/audit"):
        assert serving.holding("read", tenant="acme").get(path).status == 403
        assert serving.holding("ingest", tenant="acme").get(path).status == 403
        assert serving.anybody().get(path).status == 401
        other = serving.holding("admin", tenant="other", name="bob").get(path)
        assert other.status == 200
        assert b"ann" not in other.body
    assert b"/audit" in serving.person().get("/").body
    assert b'"/audit"' not in serving.holding("read").get("/").body


def test_whoever_came_by_the_printed_address_is_told_as_such(serving):
    serving.anybody().post("/v1/runs", RUN)
    (pattern,) = serving.person().get("/v1/patterns").json["patterns"]
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    assert serving.person().post(f"/patterns/{pattern['id']}", body=b"action=mute", **form).status == 303
    (act,) = serving.store.audit(DEFAULT_TENANT, AuditQuery(action="pattern."))
    assert (act.by, act.via, act.token) == ("dashboard", "page", "")


def test_a_change_that_fails_leaves_no_entry(tmp_path, monkeypatch):
    """Both are in one transaction."""
    store = SqliteStore(Path(tmp_path / "s.db"))
    monkeypatch.setattr(audit, "insert_entry", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.compare_and_set("", "server", "k", None, b"1", audit.AuditNote(DEFAULT_TENANT, audit.build_entry("x", 1)))
    assert store.get("", "server", "k") is None
    store.close()
