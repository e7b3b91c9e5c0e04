"""mulligan tenant: made, shown, changed and removed where the store is; servers follow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan.contract.store import DAY, RunQuery, now
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.records import Run, Step
from mulligan.store.sqlite import SqliteStore


@pytest.fixture
def there(tmp_path):
    return str(tmp_path / "s.db")


@pytest.fixture
def types_there(types, there):
    return lambda *words: types(*words, "--store", there)


def kept(there: str, tenant: str, id: str, age: int = 0) -> None:
    store = SqliteStore(Path(there), clock=lambda: now() - age)
    run = Run(id=id, agent="a", started_at=1, ended_at=2, end_reason="finished")
    step = Step(run=id, seq=1, call=1, name="s", started_at=1)
    store.append(tenant, [StepEnded(step), RunEnded(run)], f"journal-{id}", 1)
    store.close()


def test_a_tenant_is_made_listed_shown_and_changed(types_there):
    code, out, _ = types_there(
        "tenant", "create", "acme", "--records", "2m", "--unredacted-arguments", "query, path", "--note", "them"
    )
    assert (code, "mulligan token create" in out) == (0, True)
    assert types_there("token", "create", "--role", "ingest", "--tenant", "acme")[0] == 0

    _, out, _ = types_there("tenant", "list", "--json")
    acme, local = json.loads(out)
    assert (acme["name"], acme["quotas"], acme["tokens"]) == ("acme", {"records": 2_000_000}, 1)
    assert local["name"] == "local"

    assert (
        types_there(
            "tenant", "set", "acme", "--keep-failures", "180", "--keep-successes", "forever", "--records", "unlimited"
        )[0]
        == 0
    )
    _, out, _ = types_there("tenant", "show", "acme", "--json")
    acme = json.loads(out)
    assert (acme["retention_days"], acme["quotas"]) == (
        {"keep_failures": 180, "keep_successes": None, "keep_hourly": 35},
        {},
    )
    assert (acme["unredacted_arguments"], acme["note"]) == (["path", "query"], "them")
    types_there("tenant", "set", "acme", "--keep-failures", "default")
    _, out, _ = types_there("tenant", "show", "acme")
    assert "90 days" in out
    assert "forever" in out
    assert "acme" in types_there("tenant", "list")[1]


def test_local_can_be_changed_and_stays(types_there):
    kept_ = types_there("tenant", "create", "local")
    assert kept_[0] == 2
    types_there("token", "create", "--role", "read")
    assert types_there("tenant", "set", "local", "--keep-failures", "7")[0] == 0
    assert json.loads(types_there("tenant", "show", "local", "--json")[1])["retention_days"]["keep_failures"] == 7
    code, _, err = types_there("tenant", "remove", "local", "--yes")
    assert (code, "cannot be removed" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tenant", "create", "a b"), "letters, digits"),
        (("tenant", "create", ""), "letters, digits"),
        (("tenant", "create", "x\x1b[31m"), "letters, digits"),
        (("tenant", "create", "acme"), "already exists. Change it: mulligan tenant set acme"),
        (("tenant", "create", "b", "--records", "many"), "500k"),
        (("tenant", "create", "b", "--keep-failures", "-1"), "number of days"),
        (("tenant", "create", "b", "--alert-webhook", "ftp://x"), "Use an http or https URL."),
        (("tenant", "create", "b", "--alert-command", "'unclosed"), "Invalid alert command"),
        (("tenant", "set", "none", "--records", "1"), "tenant list"),
        (("tenant", "set", "acme"), "Nothing to change"),
        (("tenant", "show", "none"), "tenant list"),
        (("tenant", "remove", "none", "--yes"), "tenant list"),
        (("tenant", "remove", "acme"), "--yes"),
        (("token", "create", "--role", "read", "--tenant", "none"), "mulligan tenant create none"),
        (("prune", "--tenant", "none"), "tenant list"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_type(types_there, words, told):
    types_there("tenant", "create", "acme")
    code, _, err = types_there(*words)
    assert (code, told in err) == (2, True), err
    assert "\x1b" not in err


@pytest.mark.parametrize("words", [("list",), ("create", "x"), ("show", "x"), ("remove", "x", "--yes")])
def test_tenants_are_not_managed_through_a_server(types, words):
    code, _, err = types("tenant", *words, "--store", "https://mulligan.example.com")
    assert (code, "cannot be managed through the server" in err) == (2, True)


def test_to_remove_a_tenant_takes_everything_of_it_and_nothing_of_others(types_there, there, monkeypatch):
    monkeypatch.setattr("mulligan.cli.tenant.REFRESH_INTERVAL_SECONDS", 0)
    for name in ("acme", "other"):
        types_there("tenant", "create", name)
        types_there("token", "create", "--role", "admin", "--tenant", name)
        kept(there, name, f"run_of_{name}")

    _, out, _ = types_there("tenant", "remove", "acme", "--yes", "--json")
    assert json.loads(out).items() >= {"tenant": "acme", "runs": 1, "tokens": 1}.items()

    store = SqliteStore(Path(there))
    assert store.runs("acme", RunQuery()) == []
    assert store.health("acme").steps == 0
    assert [each.run.id for each in store.runs("other", RunQuery())] == ["run_of_other"]
    store.close()
    states = {each["tenant"]: each["state"] for each in json.loads(types_there("token", "list", "--json")[1])}
    assert states == {"acme": "revoked", "other": "active"}
    assert {each["name"] for each in json.loads(types_there("tenant", "list", "--json")[1])} >= {"other", "local"}


def test_each_tenant_keeps_its_records_as_long_as_was_set(types_there, there):
    types_there("tenant", "create", "short", "--keep-successes", "1")
    types_there("tenant", "create", "long", "--keep-successes", "forever")
    for name in ("short", "long", "local"):
        kept(there, name, f"run_old_{name}", age=50 * DAY)
        kept(there, name, f"run_{name}", age=3 * DAY)

    def ids(tenant: str) -> list[str]:
        store = SqliteStore(Path(there))
        found = sorted(each.run.id for each in store.runs(tenant, RunQuery()))
        store.close()
        return found

    assert types_there("prune", "--tenant", "short")[0] == 0
    assert (ids("short"), len(ids("long")), len(ids("local"))) == ([], 2, 2)
    _, out, _ = types_there("prune", "--all-tenants", "--json")
    assert json.loads(out)["runs"] == 1
    assert (ids("long"), ids("local")) == (["run_long", "run_old_long"], ["run_local"])


# As a server lives by it


@pytest.fixture
def serving(tmp_path, there):
    pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")
    from servers import Client

    begun = []

    def started(*words: str) -> Callable[..., Client]:
        process = subprocess.Popen(
            [sys.executable, "-m", "mulligan", "serve", "--port", "0", "--store", there, *words],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        begun.append(process)
        port = int(re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())[1])
        return lambda token=None: Client(port, token=token)

    yield started
    for process in begun:
        process.terminate()
        process.communicate(timeout=20)


def sent(id: str) -> dict[str, object]:
    failure = {"type": "model", "code": "quota_exceeded", "message": "no money left"}
    step = {"name": "pay", "arguments": {"query": "listed words", "note": "unlisted words"}, "failure": failure}
    return {"id": id, "agent": "a", "end_reason": "finished", "steps": [step]}


def arguments(there: str, tenant: str, id: str) -> str:
    store = SqliteStore(Path(there))
    (step,) = store.run(tenant, id).steps
    store.close()
    return str(step.arguments)


def test_of_a_tenant_only_listed_arguments_are_kept_and_the_list_can_change(types_there, there, serving):
    types_there("tenant", "create", "acme", "--unredacted-arguments", "query")
    types_there("tenant", "create", "other")
    ingest = {name: types_there("token", "create", "--role", "ingest", "--tenant", name)[1].strip()
              for name in ("acme", "other")}  # fmt: skip
    client = serving()
    for token, id in ((ingest["acme"], "one"), (ingest["other"], "one"), (None, "one")):
        assert client(token).post("/v1/runs", sent(id)).status == 200

    assert "listed words" in arguments(there, "acme", "one")
    assert "unlisted words" not in arguments(there, "acme", "one")
    assert "listed words" not in arguments(there, "other", "one")
    assert "unlisted words" in arguments(there, "local", "one")  # the store's own user, at home

    types_there("tenant", "set", "acme", "--unredacted-arguments", "note")
    time.sleep(1.2)  # a server follows within a second
    assert client(ingest["acme"]).post("/v1/runs", sent("two")).status == 200
    assert "unlisted words" in arguments(there, "acme", "two")
    assert "'listed words'" not in arguments(there, "acme", "two")


def test_each_tenant_is_alerted_of_its_own_and_the_server_of_local(types_there, tmp_path, serving):
    def telling(name: str) -> str:
        script = f"import sys; open({str(tmp_path / name)!r}, 'a').write(sys.stdin.read())"
        return f'{sys.executable} -c "{script}"'

    types_there("tenant", "create", "acme", "--alert-command", telling("acme"))
    types_there("tenant", "create", "quiet")
    tokens = [
        types_there("token", "create", "--role", "ingest", "--tenant", name)[1].strip() for name in ("acme", "quiet")
    ]
    client = serving("--alert-command", telling("server"))
    for token, id in ((tokens[0], "of_acme"), (tokens[1], "of_quiet"), (None, "of_local")):
        assert client(token).post("/v1/runs", sent(id)).status == 200
    until = time.monotonic() + 60
    while not all(
        (tmp_path / name).exists() and (tmp_path / name).read_text().endswith("\n") for name in ("acme", "server")
    ):
        assert time.monotonic() < until
        time.sleep(0.02)

    assert {json.loads(line)["run"] for line in (tmp_path / "acme").read_text().splitlines()} == {"of_acme"}
    assert {json.loads(line)["run"] for line in (tmp_path / "server").read_text().splitlines()} == {"of_local"}
