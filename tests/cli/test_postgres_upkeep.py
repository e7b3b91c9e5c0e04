"""mulligan copy, migrate and doctor, typed, where the store is a database of PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from urllib.parse import quote, urlsplit, urlunsplit

import postgres
import pytest
from ingest import serving

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.records import Run, Step
from mulligan.store.sqlite import SqliteStore
from mulligan.store.tables import MIGRATIONS
from mulligan.store.urls import open_store, redact_password

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")


def write(store, *ids):
    now = int(time.time() * 1000)
    for id in ids:
        step = Step(run=id, seq=1, call=1, name="search", started_at=now)
        events = [StepEnded(step), RunEnded(Run(id=id, agent="helper", started_at=now))]
        store.append(DEFAULT_TENANT, events, "j", store.offset(DEFAULT_TENANT, "j") + 1)
    store.close()


def found(url):
    with contextlib.closing(open_store(url)) as store:
        return {history.run.id for history in store.export(DEFAULT_TENANT)}


def ask(url, sql):
    with psycopg.connect(url, autocommit=True) as made:
        return made.execute(sql).fetchone() if sql.startswith("SELECT") else made.execute(sql)


def test_a_file_is_copied_to_postgresql_and_back_and_no_password_is_shown(types, postgres_url, tmp_path):
    write(SqliteStore(tmp_path / "a.db"), "run_1", "run_2")
    code, out, err = types("copy", str(tmp_path / "a.db"), postgres_url)
    assert (code, err) == (0, "")
    assert f"in {redact_password(postgres_url)}. Both stores are identical" in out
    assert types("copy", str(tmp_path / "a.db"), postgres_url, "--check")[0] == 0
    assert found(postgres_url) == {"run_1", "run_2"}
    code, out, _ = types("copy", postgres_url, str(tmp_path / "b.db"), "--json")
    assert (code, json.loads(out)["same"]) == (0, True)
    assert found(str(tmp_path / "b.db")) == {"run_1", "run_2"}
    code, _, err = types("copy", postgres_url, postgres_url)
    assert code == 2
    assert "FROM and TO are the same store" in err


def test_a_database_is_made_brought_up_to_date_and_refused_where_it_is_newer(types, postgres_url):
    code, out, _ = types("migrate", "--store", postgres_url, "--dry-run")
    assert code == 1
    assert out.startswith(f"Would create {redact_password(postgres_url)} with schema {len(MIGRATIONS)}: ")
    assert ask(postgres_url, "SELECT to_regclass('runs')") == (None,)
    assert types("migrate", "--store", postgres_url)[1].startswith("Created ")
    assert types("migrate", "--store", postgres_url, "--dry-run")[0] == 0
    ask(postgres_url, "UPDATE schema_version SET version = 999")
    code, _, err = types("migrate", "--store", postgres_url)
    assert code == 2
    assert "written by a newer mulligan (schema 999" in err


def test_the_doctor_says_how_a_database_is(types, postgres_url):
    write(open_store(postgres_url), "run_1", "run_2")
    ask(postgres_url, "ANALYZE")
    _, out, _ = types("doctor", "--store", postgres_url, "--json")
    told = json.loads(out)
    assert told["detail"] == ""
    assert (told["healthy"], told["runs"], told["steps"]) == (True, 2, 2)
    assert told["store"] == redact_password(postgres_url)
    assert told["engine"].startswith("PostgreSQL ")
    assert told["schema"] == told["newest"] == len(MIGRATIONS)
    assert {each["name"]: each["rows"] for each in told["tables"]}["steps"] == 2
    assert told["bytes"] > sum(each["bytes"] for each in told["tables"]) > 0
    assert told["parts_ahead"] == 7
    assert told["steps_without_part"] == 0
    assert told["extensions"]["pg_trgm"] == "installed"
    assert told["timeouts"]["statement_timeout"] == "1min"
    assert told["pool"] == 10
    assert told["last_backup"] == "unknown"
    assert told["replicas"] == []
    _, out, _ = types("doctor", "--store", f"{postgres_url}?pool=3")
    for line in ("database ", "partitions ", "extensions ", "timeouts ", "backup ", "tenants "):
        assert f"\n  {line}" in out
    assert "read pool of 3 per process" in out
    assert redact_password(postgres_url) in out


def test_the_doctor_says_what_is_ill(types, postgres_url):
    write(open_store(postgres_url), "run_1")
    durable = ask(postgres_url, "SELECT current_setting('fsync')") == ("on",)
    code, out, _ = types("doctor", "--store", postgres_url)
    assert (code, "runs without fsync or full_page_writes" in out) == ((0, False) if durable else (1, True))
    today = int(time.time() // 86400)
    ask(postgres_url, f"DROP TABLE steps_{today}")
    assert "have no partition of their own" in types("doctor", "--store", postgres_url)[1]
    gone = postgres_url.replace(postgres_url.rpartition("/")[2], "no_such_database")
    code, out, _ = types("doctor", "--store", gone)
    assert code == 1
    assert "does not exist" in out
    ask(postgres_url, "UPDATE schema_version SET state = 'copying'")
    code, out, _ = types("doctor", "--store", postgres_url)
    assert code == 1
    assert "incomplete copy" in out


def test_what_to_type_next_names_the_database_without_its_password(postgres_url):
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}application_name=unseen"
    done = subprocess.run([sys.executable, "-m", "mulligan", "runs", "--store", url], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith(f"No runs in {redact_password(postgres_url)}.\n")
    assert "unseen" not in done.stdout + done.stderr
    write(open_store(postgres_url), "run_1")
    done = subprocess.run([sys.executable, "-m", "mulligan", "runs", "--store", url], capture_output=True, text=True)
    assert f"mulligan show run_1 --store {redact_password(postgres_url)}\n" in done.stderr


def test_the_doctor_names_the_tenants_whose_runs_it_counts(types, postgres_url, tmp_path):
    for url in (postgres_url, str(tmp_path / "a.db")):
        store = open_store(url)
        for tenant, count in {"acme": 3, "beta": 1}.items():
            for number in range(count):
                run = Run(id=f"run_{tenant}_{number}", agent="a", started_at=1)
                store.append(tenant, [RunStarted(run)], f"j-{tenant}", number + 1)
        store.close()
        facts = json.loads(types("doctor", "--store", url, "--json")[1])
        assert facts["runs"] == 0
        assert facts["tenants"] == [{"name": "acme", "runs": 3}, {"name": "beta", "runs": 1}]
        _, out, _ = types("doctor", "--store", url)
        stored = next(line for line in out.splitlines() if line.startswith("  stored "))
        assert "0 runs and 0 steps of tenant local, " in stored
        assert stored.endswith("; 4 runs of 2 other tenants: acme, beta")


# Row-level security


@pytest.fixture
def superuser_url(postgres_server, postgres_url) -> str:
    """The first role of the installation, in the database of the test."""
    url = postgres.named(postgres_server, postgres_url.rpartition("/")[2])
    if ask(url, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") != (True,):
        pytest.skip("the server that was named has no superuser for tests")
    return url


def find_isolation_problems(types, url: str) -> tuple[dict, list[str]]:
    code, out, _ = types("doctor", "--store", url, "--json")
    facts = json.loads(out)
    problems = [problem for problem in facts["problems"] if "row-level security" in problem.lower()]
    assert code == 1 or not problems
    return facts, problems


def test_the_doctor_says_how_to_replace_the_first_role_of_an_installation(types, superuser_url):
    write(open_store(superuser_url), "run_1")
    facts, (problem,) = find_isolation_problems(types, superuser_url)
    assert facts["row_security"] == "bypassed by this role"
    assert problem.startswith("The role mulligan bypasses row-level security, because it is a superuser: ")
    name, secret = f"{facts['role']}_app", "of the new role"
    assert problem.endswith("Then use the new role in the store URL, with its password.")
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        try:
            for statement in facts["ordinary_role_sql"]:
                assert f"  {statement};" in problem
                connection.execute(statement.replace("CHANGE-ME", secret))
            netloc = f"{name}:{quote(secret)}@{urlsplit(superuser_url).netloc.rpartition('@')[2]}"
            url = urlunsplit(urlsplit(superuser_url)._replace(netloc=netloc))
            facts, problems = find_isolation_problems(types, url)
            assert (facts["role"], facts["row_security"], problems) == (name, "in force", [])
            write(open_store(url), "run_2")
            assert found(url) == {"run_1", "run_2"}
        finally:
            connection.execute(f"REASSIGN OWNED BY {name} TO mulligan; DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.parametrize(
    ("attribute", "reason"), [("SUPERUSER", "is a superuser"), ("BYPASSRLS", "attribute BYPASSRLS")]
)
def test_the_doctor_and_the_server_warn_of_a_role_that_bypasses_row_level_security(
    types, superuser_url, attribute, reason, tmp_path
):
    role = f"mulligan_test_{attribute.lower()}"
    netloc = f"{role}:secret@{urlsplit(superuser_url).netloc.rpartition('@')[2]}"
    url = urlunsplit(urlsplit(superuser_url)._replace(netloc=netloc))
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret' {attribute}")
        try:
            connection.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
            write(open_store(url), "run_1")
            facts, (problem,) = find_isolation_problems(types, url)
            assert f"The role {role} bypasses row-level security" in problem
            assert reason in problem
            with serving(url) as server:
                assert server.errors().count(f"Warning: The role {role} bypasses row-level security") == 1
                assert f'ALTER ROLE "{role}" NOSUPERUSER NOBYPASSRLS;' in server.errors()
            for statement in facts["ordinary_role_sql"]:
                connection.execute(statement)
            facts, problems = find_isolation_problems(types, url)
            assert (facts["row_security"], problems) == ("in force", [])
            with serving(url) as server:
                assert "Warning" not in server.errors()
            assert found(url) == {"run_1"}
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_the_doctor_names_tables_without_row_level_security_and_migrate_turns_it_on(types, postgres_url):
    open_store(postgres_url).close()
    ask(postgres_url, "ALTER TABLE runs NO FORCE ROW LEVEL SECURITY")
    ask(postgres_url, "ALTER TABLE votes DISABLE ROW LEVEL SECURITY")
    facts, problems = find_isolation_problems(types, postgres_url)
    assert facts["row_security"] == "off in some tables"
    assert problems == ["Row-level security for tenants is off in: runs, votes. Turn it on: mulligan migrate"]
    assert types("migrate", "--store", postgres_url)[0] == 0
    facts, problems = find_isolation_problems(types, postgres_url)
    assert (facts["row_security"], problems) == ("in force", [])
