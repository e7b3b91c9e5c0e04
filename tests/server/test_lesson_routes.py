"""/v1/lessons over real HTTP: who may ask and who may decide, what is answered, and that a server serves as memory."""

from __future__ import annotations

import csv
import io
import time

import pytest
import taught
from servers import served

from mulligan.contract.store import DEFAULT_TENANT, LessonQuery
from mulligan.learn import lessons
from mulligan.server.access import AccessRules
from mulligan.store.remote import RemoteStore

NOW = 1_794_700_000_000


@pytest.fixture
def serving(tmp_path):
    with served(tmp_path, AccessRules(is_local=False), clock=lambda: NOW) as running:
        taught.fill(running.store, NOW)
        yield running


@pytest.fixture
def admin(serving):
    return serving.holding("admin")


def ids(answer):
    return [each["id"] for each in answer.json["lessons"]]


def test_lessons_are_told_the_best_proven_first_with_their_evidence_of_the_moment(serving):
    told = serving.holding("read").get("/v1/lessons").json

    assert [each.id for each in serving.store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW))] == [
        each["id"] for each in told["lessons"]
    ]
    first = told["lessons"][0]
    assert (first["tool"], first["state"], first["source"]) == ("search", "active", "learned")
    assert (first["trials"], first["successes"], first["occurrences"]) == (8, 8, 8)
    assert first["correction"] == "Use k=10."
    assert told["now"] == NOW


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("state=active", 2),
        ("state=proposed", 2),
        ("state=disabled", 0),
        ("source=seed", 1),
        ("source=learned", 1),
        ("tool=git", 1),
        ("kind=tool/conflict", 1),
        ("kind=tool", 2),
        ("text=PUSH", 1),
        ("tool=search&state=active&source=file", 1),
    ],
)
def test_lessons_are_found_by_what_is_asked(serving, asked, found):
    assert len(ids(serving.holding("read").get(f"/v1/lessons?{asked}"))) == found


def test_pages_put_together_are_the_whole(serving):
    client = serving.holding("read")
    seen, more = [], ""
    for _ in range(4):
        page = client.get(f"/v1/lessons?limit=1{more}").json
        seen += [each["id"] for each in page["lessons"]]
        more = f"&cursor={page['next']}"
    assert page["next"] is None
    assert seen == ids(client.get("/v1/lessons"))


def test_csv_has_a_row_a_lesson_and_no_formula(serving):
    serving.store.save_lesson(DEFAULT_TENANT, taught.written(taught.PROPOSED, mistake="=cmd|calc", correction="+1"))
    told = serving.holding("read").get("/v1/lessons?format=csv")

    rows = list(csv.DictReader(io.StringIO(told.body.decode())))
    assert told.headers["content-type"].startswith("text/csv")
    assert len(rows) == 4
    assert rows[0]["correction"] == "Use k=10."
    assert not any(str(cell).startswith(("=", "+")) for row in rows for cell in row.values())


@pytest.mark.parametrize(("asked", "field"), [("state=good", "state"), ("source=web", "source"), ("since=7d", "since")])
def test_a_parameter_that_cannot_be_meant_is_refused_by_name(serving, asked, field):
    told = serving.holding("read").get(f"/v1/lessons?{asked}")

    assert (told.status, told.json["field"]) == (400, field)


def test_one_lesson_is_found_by_the_beginning_of_its_id_and_comes_with_the_runs_it_rests_on(serving):
    client = serving.holding("read")
    (learned,) = client.get("/v1/lessons?source=learned").json["lessons"]

    told = client.get(f"/v1/lessons/{learned['id'][:-2]}").json

    assert told["id"] == learned["id"]
    assert {each["run"] for each in told["evidence"]} == {f"run_search{number}" for number in range(8)}
    assert client.get("/v1/lessons/les_").status == 409, "several begin so"
    assert client.get("/v1/lessons/les_none").status == 404
    assert client.get(f"/v1/lessons/{taught.SEED}").json["evidence"] == []


def test_an_admin_approves_disables_and_revokes(serving, admin):
    def state():
        return admin.get(f"/v1/lessons/{taught.PROPOSED}").json["state"]

    assert state() == "proposed"
    told = admin.post(f"/v1/lessons/{taught.PROPOSED}", {"verdict": "approve"})
    assert (told.status, told.json["state"], state()) == (200, "active", "active")
    assert admin.post(f"/v1/lessons/{taught.PROPOSED}", {"verdict": "disable"}).json["state"] == "disabled"
    (learned,) = admin.get("/v1/lessons?source=learned").json["lessons"]
    assert admin.post(f"/v1/lessons/{learned['id']}", {"verdict": "revoke"}).json["state"] == "disabled"
    (fix,) = admin.get("/v1/fixes?tool=search").json["fixes"]
    assert fix["state"] == "revoked", "the fix beneath it went too"
    audit = admin.get("/v1/audit").json["audit"]
    assert len([each for each in audit if taught.PROPOSED in str(each) or learned["id"] in str(each)]) >= 3


@pytest.mark.parametrize(
    "sent", [{}, {"verdict": "obey"}, {"verdict": None}, {"verdict": "approve", "state": "active"}, [], "approve"]
)
def test_what_is_no_verdict_is_refused_and_changes_nothing(serving, admin, sent):
    told = admin.post(f"/v1/lessons/{taught.PROPOSED}", sent)

    assert told.status == 400
    assert admin.get(f"/v1/lessons/{taught.PROPOSED}").json["state"] == "proposed"


def test_nobody_else_decides_and_no_page_of_another_site(serving, admin):
    path, approve = f"/v1/lessons/{taught.PROPOSED}", {"verdict": "approve"}

    assert serving.holding("read").post(path, approve).status == 403
    assert serving.holding("ingest").post(path, approve).status == 403
    assert serving.anybody().post(path, approve).status == 401
    assert admin.post(path, approve, Origin="https://evil.example").status == 403
    assert admin.get(path).json["state"] == "proposed"


def test_another_tenant_has_none_of_them_and_decides_nothing(serving, admin):
    theirs = serving.holding("admin", tenant="theirs")

    assert ids(theirs.get("/v1/lessons")) == []
    assert theirs.get(f"/v1/lessons/{taught.SEED}").status == 404
    assert theirs.post(f"/v1/lessons/{taught.SEED}", {"verdict": "disable"}).status == 404
    assert admin.get(f"/v1/lessons/{taught.SEED}").json["state"] == "proposed"


def test_a_library_with_this_server_as_its_store_reads_and_decides_the_same(serving, admin, tmp_path):
    store = RemoteStore(f"http://127.0.0.1:{serving.port}", str(admin.token), tmp_path / "spool")
    try:
        assert store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW)) == serving.store.lessons(
            DEFAULT_TENANT, LessonQuery(now=NOW)
        )
        decided = store.decide_lesson(DEFAULT_TENANT, taught.PROPOSED, "approve", NOW)
        assert decided is not None
        assert admin.get(f"/v1/lessons/{taught.PROPOSED}").json["state"] == decided.state == "active"
    finally:
        store.close()


def test_a_server_makes_lessons_of_what_is_sent_to_it_while_nobody_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(lessons, "FIRST_ROUND_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(lessons, "ROUND_INTERVAL_SECONDS", 0.0)
    with served(tmp_path, AccessRules(is_local=False), clock=lambda: NOW) as running:
        token = running.holding("ingest").token
        sender = RemoteStore(f"http://127.0.0.1:{running.port}", token, tmp_path / "spool")
        for number in range(4):
            sender.append(DEFAULT_TENANT, taught.clamped(f"run_{number}", NOW - number), "journal", number + 1)
        sender.close()
        deadline = time.monotonic() + 60
        while not (found := running.holding("read").get("/v1/lessons").json["lessons"]) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert [each["correction"] for each in found] == ["Use k=10."]
