"""The rules by which Citus can distribute the store, kept on plain PostgreSQL, too.

`tests/contract` checks each statement that it sends by `sql_rules.checked`. Here are the schema and the rules.
"""

from __future__ import annotations

from collections.abc import Iterator

import postgres
import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed: make test installs it")

import sql_rules

from mulligan.contract.store import DEFAULT_TENANT, FixQuery, RunQuery
from mulligan.core.events import RunStarted, StepEnded
from mulligan.core.records import Run, Step
from mulligan.store.postgres.postgres_store import PostgresStore
from mulligan.store.tables import TABLE_NAMES


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    postgres.had()
    made = PostgresStore(postgres.emptied())
    yield made
    made.close()


def asked(store: PostgresStore, sql: str) -> list[tuple[object, ...]]:
    with store.read_connection(DEFAULT_TENANT) as connection:
        return connection.raw_connection.execute(sql).fetchall()


def test_every_unique_key_begins_with_the_tenant(store):
    keys = asked(
        store,
        "SELECT c.relname::text, a.attname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
        "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0] "
        "WHERE i.indisunique AND c.relnamespace = current_schema()::regnamespace",
    )
    assert {table for table, _ in keys} >= {*TABLE_NAMES} - {"revocations"}
    assert {column for _, column in keys} == {"tenant"}


def test_no_policy_has_a_subquery(store):
    policies = asked(store, "SELECT tablename, qual, with_check FROM pg_policies")
    assert {table for table, _, _ in policies} >= {*TABLE_NAMES}
    assert not [policy for policy in policies if "SELECT" in f"{policy[1]} {policy[2]}".upper()]


def test_no_function_of_the_store_queries_tables(store):
    """There are none at all, but those of extensions."""
    functions = asked(
        store,
        "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace AND NOT EXISTS "
        "(SELECT 1 FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')",
    )
    assert functions == []


def test_plans_are_not_forced_to_be_generic(store):
    assert asked(store, "SHOW plan_cache_mode") == [("auto",)]


BROKEN = {
    "SELECT id FROM runs": "without a condition on its tenant",
    "SELECT id FROM runs WHERE id = $1": "without a condition on its tenant",
    "SELECT 1 FROM runs r JOIN links l ON l.run = r.id WHERE r.tenant = $1": "without a condition on its tenant",
    "DELETE FROM steps_20774 WHERE run = $1": "without a condition on its tenant",
    "UPDATE runs SET agent = $1": "without a condition on its tenant",
    "SELECT 1 FROM runs r WHERE r.tenant = $1 AND EXISTS (SELECT 1 FROM meta WHERE tenant = $2)": "several tenants",
    "INSERT INTO meta (tenant, key, value) SELECT * FROM unnest($1) ON CONFLICT DO NOTHING": "INSERT ... SELECT",
    "INSERT INTO meta (tenant, key, value) SELECT * FROM unnest($1)": "not inserted by VALUES",
    "INSERT INTO meta (tenant, key, value) VALUES ($1, $2, $3), ($4, $5, $6)": "not inserted by VALUES",
    "INSERT INTO meta (tenant, key, value) VALUES ($1, unnest($2), (SELECT 1))": "not inserted by VALUES",
    "INSERT INTO links (tenant, run) VALUES ($1, unnest($2))": "the same row number",
    "BEGIN; SET LOCAL mulligan.tenant = '=a'": "together with something else",
}


@pytest.mark.parametrize("sql", BROKEN)
def test_a_statement_that_breaks_a_rule_is_found(sql):
    assert BROKEN[sql] in (sql_rules.find_violation(sql, ("a", "b")) or "")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 FROM runs r JOIN links l ON l.tenant = r.tenant AND l.run = r.id WHERE r.tenant = $1",
        "INSERT INTO meta (tenant, key, value) VALUES ($1, $2, $3), ($1, $4, $5) ON CONFLICT DO NOTHING",
        "INSERT INTO meta (tenant, key, value) VALUES ($1, unnest($2), unnest($3)) ON CONFLICT DO NOTHING",
        "SET LOCAL mulligan.tenant = '=a; b'; SET LOCAL enable_seqscan = off",
    ],
)
def test_a_statement_that_keeps_to_them_is_not(sql):
    assert sql_rules.find_violation(sql, ("a", "b", "c")) is None


def test_runs_of_one_batch_have_different_row_numbers(store):
    """By which retention pages through them. Citus numbers the rows of an array alike."""
    store.append(DEFAULT_TENANT, [RunStarted(Run(id=f"run_{number}", started_at=1)) for number in range(20)], "j", 1)
    assert asked(store, "SELECT count(DISTINCT rowid) FROM runs WHERE tenant = 'local'") == [(20,)]


def test_statements_of_batches_and_questions_are_seen(store):
    """Or the contract suite would check nothing."""
    with sql_rules.checked() as statements:
        run = Run(id="run_a", started_at=1)
        store.append(DEFAULT_TENANT, [RunStarted(run), StepEnded(Step(run="run_a", seq=1, call=1, name="s"))], "j", 1)
        store.runs(DEFAULT_TENANT, RunQuery())
        store.fixes(DEFAULT_TENANT, FixQuery(now=1))
    for start in ("BEGIN", "SET LOCAL mulligan.tenant", "INSERT INTO steps", "SELECT r.id, r.body", "COMMIT"):
        assert any(sql.startswith(start) for sql in statements), start
