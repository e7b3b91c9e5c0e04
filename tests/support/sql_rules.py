"""What every statement of the PostgreSQL store keeps to, so that Citus runs the same SQL, and on one worker.

`checked` watches all statements that this process sends, and raises in the end if one of them breaks a rule.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from mulligan.store.postgres import postgres_tables
from mulligan.store.postgres.postgres_connection import PostgresConnection
from mulligan.store.tables import ORDERED, TABLE_NAMES

_TABLE = rf"(?:{'|'.join(TABLE_NAMES)}|steps_\d+|steps_default)"
_REFERENCE = re.compile(rf"\b(?:FROM|JOIN|UPDATE) {_TABLE}\b")
_ROW = r"\(\$1, (?:[^()]|unnest\(\$\d+\))*\)"
_INSERT = re.compile(rf"INSERT INTO {_TABLE} \(tenant, [^)]*\) VALUES {_ROW}(?:, {_ROW})*(?: ON CONFLICT|$)")
_OF_TENANT = re.compile(r"\btenant = (?:\$(\d+)|\w+\.tenant\b)")
_SET_LOCAL = re.compile(r"SET LOCAL [^;]*(?:; SET LOCAL [^;]*)*")


def find_violation(sql: str, values: Sequence[Any] = ()) -> str | None:
    """Return the rule that a statement breaks, if any."""
    words = re.sub(r"'(?:[^']|'')*'", "''", " ".join(sql.split()))
    if "SET LOCAL" in words and not _SET_LOCAL.fullmatch(words):
        return "a SET LOCAL is sent together with something else, which Citus would send to the workers, too"
    if re.match("INSERT", words) and re.search(rf"INTO {_TABLE}\b", words):
        if re.search(r"\bSELECT\b.*\bON CONFLICT\b", words):
            return "of an INSERT ... SELECT ... ON CONFLICT Citus tells how many rows it was sent, not how many are new"
        if re.search(rf"INTO (?:{'|'.join(ORDERED)})\b.*\bunnest\b", words):
            return "rows with a row number are inserted from an array: Citus gives all of them the same row number"
        return None if _INSERT.match(words) else "a row is not inserted by VALUES with the tenant as the one value $1"
    if not re.match("SELECT|UPDATE|DELETE|WITH", words):
        return None
    conditions = [match[1] for match in _OF_TENANT.finditer(words)]
    if len(conditions) < len(_REFERENCE.findall(words)):
        return "a table is read or written without a condition on its tenant"
    tenants = {values[int(number) - 1] for number in conditions if number}
    if len(tenants) > 1:
        return f"there are several tenants in one statement: {', '.join(sorted(map(str, tenants)))}"
    return None


@contextlib.contextmanager
def checked() -> Iterator[list[str]]:
    """Check all statements. Yield the list of those that were sent so far.

    What is sent for all tenants is exempt, such as dropping the partition of a day.
    """
    statements: list[str] = []
    violations: dict[str, str] = {}
    for_all: set[int] = set()

    def note(connection: psycopg.Connection[Any], sql: Any, rows: Sequence[Any]) -> None:
        text = str(sql)
        statements.append(text)
        if f"LOCAL {postgres_tables.SETTING}" in text:
            is_for_all = f"'{postgres_tables.ALL_TENANTS}'" in text
            for_all.add(id(connection)) if is_for_all else for_all.discard(id(connection))
        if id(connection) not in for_all:
            for values in rows:
                if violation := find_violation(text, values or ()):
                    violations[text] = violation

    with pytest.MonkeyPatch.context() as patch:
        for cursor_type in (psycopg.Cursor, psycopg.RawCursor, psycopg.RawServerCursor):
            for name in ("execute", "executemany"):
                if name in vars(cursor_type):
                    _watch(patch, cursor_type, name, note)
        send_commands = PostgresConnection.send_commands

        def noted(self: PostgresConnection, *commands: str) -> None:
            for command in commands:
                note(self.raw_connection, command, [()])
            send_commands(self, *commands)

        patch.setattr(PostgresConnection, "send_commands", noted)
        yield statements
    assert not violations, "\n".join(f"{violation}: {sql}" for sql, violation in violations.items())


def _watch(patch: pytest.MonkeyPatch, cursor_type: type, name: str, note: Any) -> None:
    real = vars(cursor_type)[name]

    def noted(self: Any, sql: Any, values: Any = None, **options: Any) -> Any:
        note(self.connection, sql, values if name == "executemany" else [values])
        return real(self, sql, values, **options)

    patch.setattr(cursor_type, name, noted)
