"""Decisions and deletion over real HTTP: the same as by command or page, for admins, and in the audit log."""

from __future__ import annotations

import pytest
import taught
from servers import served
from stores import STORES

from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery
from mulligan.server import openapi
from mulligan.server.access import AccessRules

NOW = 1_794_700_000_000


@pytest.fixture(params=["sqlite", "postgres"])
def world(request, tmp_path):
    store = STORES[request.param](tmp_path)
    with served(tmp_path, AccessRules(is_local=False), store=store, clock=lambda: NOW) as running:
        taught.fill(running.store, NOW)
        yield running


@pytest.fixture
def admin(world):
    return world.holding("admin", name="ann")


def post(client, path, sent):
    answer = client.post(path, sent)
    assert answer.status == 200, answer.json
    return answer.json


def read_actions(admin):
    return [(entry["action"], entry["target"], entry["by"], entry["via"]) for entry in audit(admin)]


def audit(admin):
    return admin.get("/v1/audit?limit=1000").json["audit"]


def test_a_fix_is_approved_and_revoked(world, admin):
    (fix,) = admin.get("/v1/fixes").json["fixes"]
    shown = admin.get(f"/v1/fixes/{fix['id'][:8]}").json
    assert (shown["id"], len(shown["evidence"])) == (fix["id"], 8)

    assert post(admin, f"/v1/fixes/{fix['id']}", {"verdict": "approve"})["state"] == "approved"
    assert post(admin, f"/v1/fixes/{fix['id'][:8]}", {"verdict": "revoke"})["state"] == "revoked"
    assert [stored.state for stored in world.store.fixes(DEFAULT_TENANT, FixQuery(now=NOW))] == ["revoked"]
    assert read_actions(admin)[:2] == [
        ("fix.revoke", fix["id"], "ann", "api"), ("fix.approve", fix["id"], "ann", "api"),
    ]  # fmt: skip


def test_trials_are_revoked_by_tool(admin):
    assert post(admin, "/v1/revocations", {"tool": "search"}) == {"runs": 8, "votes": 8, "fixes": 1}
    assert admin.get("/v1/fixes").json["fixes"] == []
    assert read_actions(admin)[0][0] == "memory.revoke"
    assert post(admin, "/v1/revocations", {"principal": "nobody"}) == {"runs": 0, "votes": 0, "fixes": 0}
    assert admin.post("/v1/revocations", {}).status == 400


def test_a_pattern_is_muted_resolved_merged_and_split(world, admin):
    world.store.append(DEFAULT_TENANT, taught.clamped("run_b", NOW - DAY, "other"), "journal-b", 1)
    first, second = (pattern["id"] for pattern in admin.get("/v1/patterns").json["patterns"])

    for action, state in (("mute", "muted"), ("unmute", "active"), ("resolve", "resolved"), ("reopen", "active")):
        assert post(admin, f"/v1/patterns/{first}", {"action": action})["state"] == state
    merged = post(admin, f"/v1/patterns/{second}", {"action": "merge", "into": first[:9]})
    assert (merged["id"], merged["occurrences"]) == (first, 9)
    assert post(admin, f"/v1/patterns/{second}", {"action": "split"})["occurrences"] == 1
    assert [action for action, *_ in read_actions(admin)[:6]] == [
        "pattern.split", "pattern.merge", "pattern.reopen", "pattern.resolve", "pattern.unmute", "pattern.mute",
    ]  # fmt: skip

    assert post(admin, f"/v1/patterns/{first}", {"action": "note", "note": "known"})["note"] == "known"
    assert post(admin, f"/v1/patterns/{first}", {"action": "mute"})["note"] == "known"
    for sent in ({"action": "note"}, {"action": "mute", "note": "x"}):
        assert admin.post(f"/v1/patterns/{first}", sent).json["field"] == "note"
    for sent in ({"action": "merge"}, {"action": "mute", "into": first}):
        refused = admin.post(f"/v1/patterns/{first}", sent)
        assert (refused.status, refused.json["field"]) == (400, "into")
    assert admin.post(f"/v1/patterns/{first}", {"action": "merge", "into": "pat_zzz"}).status == 404
    assert admin.post(f"/v1/patterns/{first}", {"action": "merge", "into": first}).status == 400


def test_patterns_are_assigned_together_and_found_by_their_owner(world, admin):
    world.store.append(DEFAULT_TENANT, taught.clamped("run_b", NOW - DAY, "other"), "journal-b", 1)
    ids = [pattern["id"] for pattern in admin.get("/v1/patterns").json["patterns"]]

    answer = post(admin, "/v1/patterns", {"ids": ids, "action": "assign", "text": "me"})
    assert [(pattern["id"], pattern["owner"]) for pattern in answer["patterns"]] == [(id, "ann") for id in ids]
    post(admin, f"/v1/patterns/{ids[0]}", {"action": "assign", "text": "search team"})
    assert [pattern["id"] for pattern in admin.get("/v1/patterns?owner=me").json["patterns"]] == ids[1:]

    commented = post(admin, f"/v1/patterns/{ids[0]}", {"action": "comment", "text": "Seen."})
    assert (commented["history"][0]["action"], commented["history"][0]["by"]) == ("comment", "ann")
    assert admin.post("/v1/patterns", {"ids": [*ids, "pat_zzz"], "action": "mute"}).status == 404
    assert admin.get("/v1/patterns?state=muted").json["patterns"] == []
    refused = admin.post(f"/v1/patterns/{ids[0]}", {"action": "link", "text": "javascript:alert(1)"})
    assert (refused.status, "Invalid link" in refused.json["message"]) == (400, True)


@pytest.mark.parametrize("resource", ["runs", "patterns", "fixes", "lessons"])
def test_an_ambiguous_prefix_is_another_answer_than_an_unknown_id(world, admin, resource):
    taught.prove(world.store, NOW, "other")
    ids = sorted(row["id"] for row in admin.get(f"/v1/{resource}?limit=1000").json[resource])
    prefix = ids[0][:4]
    assert sum(id.startswith(prefix) for id in ids) > 1

    answer = admin.get(f"/v1/{resource}/{prefix}")
    assert (answer.status, answer.json["error"]) == (409, "ambiguous")
    assert f"Several {resource} start with '{prefix}': {ids[0]}, " in answer.json["message"]
    assert admin.get(f"/v1/{resource}/{ids[0]}").json["id"] == ids[0]

    answer = admin.get(f"/v1/{resource}/{prefix}zzz")
    assert (answer.status, answer.json["error"]) == (404, "not_found")
    if resource != "runs":
        sent = {"action": "mute"} if resource == "patterns" else {"verdict": "approve"}
        assert admin.post(f"/v1/{resource}/{prefix}", sent).json["error"] == "ambiguous"
        assert admin.post(f"/v1/{resource}/zzz", sent).json["error"] == "not_found"


@pytest.mark.parametrize(
    ("target", "counts"),
    [
        ({"run": "run_search0"}, {"runs": 1, "steps": 2}),
        ({"tool": "search"}, {"runs": 8, "steps": 16, "patterns": 1}),
        ({"text": "cats of run_search1"}, {"steps": 2}),
        ({"learned": True}, {"fixes": 1, "lessons": 1}),
        ({"session": "none"}, {}),
    ],
)
def test_records_are_forgotten_after_a_preview(world, admin, target, counts):
    before = [row["id"] for row in admin.get("/v1/runs").json["runs"]], admin.get("/v1/stats?since=all").json["total"]
    audit_before = audit(admin)
    preview = post(admin, "/v1/forget", target)
    assert preview["dry_run"] is True
    assert {name: count for name, count in preview.items() if count and name != "dry_run"} == counts
    after = [row["id"] for row in admin.get("/v1/runs").json["runs"]], admin.get("/v1/stats?since=all").json["total"]
    assert (after, audit(admin)) == (before, audit_before)

    result = post(admin, "/v1/forget", {**target, "confirm": True})
    assert result == preview | {"dry_run": False}
    (name,) = target
    assert read_actions(admin)[0] == (f"forget.{name}", "", "ann", "api")
    if name == "run":
        assert admin.get("/v1/runs/run_search0").status == 404
    if name == "text":
        assert b"cats of run_search1" not in admin.get("/v1/runs/run_search1").body


def test_what_is_forgotten_must_be_named_exactly(admin):
    for sent in ({}, {"run": "run_search0", "tool": "search"}, {"text": "abc"}, {"run": ""}, {"confirm": True}):
        assert admin.post("/v1/forget", {**sent, "confirm": True}).status == 400, sent
    assert admin.post("/v1/forget", {"run": "run_search", "confirm": True}).json["error"] == "ambiguous"
    assert admin.post("/v1/forget", {"run": "zzz", "confirm": True}).status == 404
    assert len(admin.get("/v1/runs").json["runs"]) == 8


def test_expired_runs_are_pruned_after_a_preview(tmp_path):
    now = [NOW]
    with served(tmp_path, AccessRules(is_local=False), clock=lambda: now[0]) as running:
        admin = running.holding("admin", name="ann")
        for id, failure in (("ok", None), ("bad", {"message": "Read timed out"})):
            run = {"id": id, "started_at": NOW, "ended_at": NOW + 1, "steps": [{"name": "a", "failure": failure}]}
            post(admin, "/v1/runs", run)
        now[0] = NOW + 365 * DAY
        preview = post(admin, "/v1/prune", {"keep_failures": 1000})
        assert (preview["dry_run"], preview["runs"]) == (True, 1)
        assert len(admin.get("/v1/runs").json["runs"]) == 2
        pruned = post(admin, "/v1/prune", {"keep_failures": 1000, "confirm": True})
        assert (pruned["dry_run"], pruned["runs"]) == (False, 1)
        assert [run["id"] for run in admin.get("/v1/runs").json["runs"]] == ["bad"]
        assert read_actions(admin)[0] == ("prune", "", "ann", "api")


PATHS = ("fixes/fix_a", "patterns/pat_a", "lessons/les_a", "revocations", "forget", "prune")


@pytest.mark.parametrize("path", PATHS)
def test_only_admins_decide_and_delete(tmp_path, path):
    with served(tmp_path, AccessRules(is_local=False)) as running:
        for role in ("ingest", "read"):
            answer = running.holding(role).post(f"/v1/{path}", {})
            assert (answer.status, answer.json["error"]) == (403, "forbidden")
        assert running.anybody().post(f"/v1/{path}", {}).status == 401


def test_an_admin_decides_and_deletes_only_in_the_own_tenant(world, admin):
    stranger = world.holding("admin", tenant="other")
    (fix,), (pattern,) = admin.get("/v1/fixes").json["fixes"], admin.get("/v1/patterns").json["patterns"]
    assert stranger.post(f"/v1/fixes/{fix['id']}", {"verdict": "approve"}).status == 404
    assert stranger.post(f"/v1/patterns/{pattern['id']}", {"action": "mute"}).status == 404
    assert stranger.post("/v1/forget", {"run": "run_search0", "confirm": True}).status == 404
    for sent in ({"tool": "search"}, {"learned": True}):
        forgotten = post(stranger, "/v1/forget", {**sent, "confirm": True})
        assert not any(forgotten[name] for name in ("runs", "steps", "fixes", "lessons"))
    assert post(stranger, "/v1/prune", {"keep_failures": 0, "keep_successes": 0, "confirm": True})["bytes_before"] == 0
    assert len(admin.get("/v1/runs").json["runs"]) == 8


def test_a_token_works_as_soon_as_it_exists_in_every_process(tmp_path):
    """Both servers have just read the tokens: they would use what they know for a second."""
    from mulligan.store.sqlite import SqliteStore

    with (
        served(tmp_path, AccessRules(is_local=False)) as one,
        served(tmp_path, AccessRules(is_local=False), store=SqliteStore(tmp_path / "mulligan.db")) as two,
    ):
        from servers import Client

        for number in range(5):
            for running in (one, two):
                running.server.refresh()
            _, secret = one.server.tokens.create("read", 0, name=f"t{number}")
            for running in (two, one):
                assert Client(running.port, token=secret).get("/v1/runs").status == 200
        assert Client(one.port, token="mul_read_unknown").get("/v1/runs").status == 401


def test_each_example_of_the_document_is_accepted(world, admin):
    """What a reader copies from /docs or /openapi.json works: with ids that exist, it is answered with 200."""
    (fix,), (pattern,) = admin.get("/v1/fixes").json["fixes"], admin.get("/v1/patterns").json["patterns"]
    world.store.append(DEFAULT_TENANT, taught.clamped("run_b", NOW - DAY, "other"), "journal-b", 1)
    other = next(row for row in admin.get("/v1/patterns").json["patterns"] if row["id"] != pattern["id"])
    lesson = admin.get("/v1/lessons").json["lessons"][0]
    ids = {"fixes": fix["id"], "patterns": pattern["id"], "lessons": lesson["id"]}
    document = admin.get("/openapi.json").json
    assert document["servers"]
    tags = {tag["name"] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert set(operation["tags"]) <= tags, path
            assert "429" in operation["responses"] or path in ("/healthz", "/readyz")
            if method != "post" or path.endswith(("/v1/traces", "/v1/logs", "/v1/metrics")):
                continue
            examples = operation["requestBody"]["content"]["application/json"]["examples"]
            assert examples, path
            for example in examples.values():
                sent = dict(example["value"])
                sent |= {"into": other["id"]} if "into" in sent else {"fix_id": fix["id"]} if "fix_id" in sent else {}
                sent |= {"ids": [pattern["id"]]} if "ids" in sent else {}
                if path == "/v1/alerts/test":  # no target is set here: a real one would be sent a message
                    assert "No target" in admin.post(path, sent).json["message"]
                    continue
                post(admin, path.replace("{id}", ids.get(path.split("/")[2], "")), sent)
    assert tags == {tag for methods in document["paths"].values() for each in methods.values() for tag in each["tags"]}
    assert set(openapi.EXAMPLES) <= set(document["paths"])
