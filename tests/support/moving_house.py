"""Stores with something in every table, copies of them, and a look at all of it."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.events import AnyEvent, ContextCompacted, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import Compaction, MessagePart, RecordedMessage, Run, Step
from mulligan.store.copy import NOTE_KEY, CopyResult, StoreCopy
from mulligan.store.sqlite import SqliteStore
from mulligan.store.urls import open_endpoint

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY), "too slow", fingerprint="f-slow")
ODD = Failure.of(Kind("tool", "not_found", Remedy.REPLAN), "no such thing: \N{SNOWMAN}", fingerprint="f-odd")


def write(store: Any, id: str, tenant: str = DEFAULT_TENANT, at: int = 1, principal: str = "") -> None:
    run = Run(id=id, agent="helper", started_at=at, ended_at=at + 2, end_reason="finished", session="s1")
    steps = [
        Step(
            run=id, seq=1, call=1, name="search", started_at=at, outcome="failure", failure=TIMEOUT, arguments={"n": 50}
        ),
        Step(run=id, seq=2, call=1, attempt=2, name="search", started_at=at + 1, arguments={"n": 10}),
        Step(run=id, seq=3, call=3, name="read", started_at=at + 2, outcome="failure", failure=ODD),
    ]
    said = RecordedMessage(role="user", parts=(MessagePart(text=f"from {id}: \N{SNOWMAN}"),), number=1)
    batch: list[AnyEvent] = [RunStarted(run), StepEnded(steps[0], (said,)), *map(StepEnded, steps[1:]), RunEnded(run)]
    batch.append(ContextCompacted(Compaction(session="s1", at=at, reason="agent")))
    store.append(tenant, batch, f"journal-{tenant}", store.offset(tenant, f"journal-{tenant}") + 1, principal)


@contextlib.contextmanager
def both(source: Path | str, to: Path | str) -> Iterator[tuple[Any, Any]]:
    with contextlib.ExitStack() as opened:
        found = []
        for path, is_source in ((source, True), (to, False)):
            side = open_endpoint(str(path), is_source)
            opened.callback(side.close)
            found.append(side)
        yield found[0], found[1]


def copy(source: Path | str, to: Path | str, *tenant: str) -> CopyResult:
    with both(source, to) as pair:
        return StoreCopy(*pair, *tenant).copy()


def rows(path: Path, is_numbered: bool = True) -> dict[str, list[Any]]:
    """Everything in a file but what a copy notes for itself."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {}
        for name in names:
            number = "rowid, " if is_numbered and name in ("runs", "links") else ""
            found[name] = sorted(connection.execute(f"SELECT {number}* FROM {name}"), key=repr)
        found["meta"] = [row for row in found["meta"] if row[1] != NOTE_KEY]
    return found


def fill(path: Path, tenants: tuple[str, ...], number: int = 3) -> None:
    """Rows in every table there is, also in those that nobody has thought of yet, by the types of their columns."""
    SqliteStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for name in names:
            columns = connection.execute('SELECT name, type, "notnull" FROM pragma_table_info(?)', (name,)).fetchall()
            for tenant in tenants:
                for place in range(number):
                    made = [tenant if of == "tenant" else None if not must and place == 0 else value(type, place)
                            for of, type, must in columns]  # fmt: skip
                    connection.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", made)


def value(type: str, place: int) -> Any:
    odd = ["", "it's \N{SNOWMAN} \x1f\n", "\U0001f600" * 40]
    if type == "TEXT":
        return f"{place:05d}{odd[place % 3]}"
    return b"\x00\xff\x01" * place if type in ("BLOB", "BYTEA") else (place - 1) * 2**40 if type == "BIGINT" else place


KILLED = """
    import os, signal, sys
    from mulligan.store import copy
    from mulligan.store.urls import open_endpoint
    copy.BATCH_ROWS = 5
    at = int(sys.argv[3])
    def told(done, of):
        if done >= at:
            os.kill(os.getpid(), signal.SIGKILL)
    source, to = open_endpoint(sys.argv[1], True), open_endpoint(sys.argv[2], False)
    copy.StoreCopy(source, to, progress=told).copy()
"""


def killed_at(source: Path | str, to: Path | str, row: int) -> None:
    script = [sys.executable, "-c", textwrap.dedent(KILLED), str(source), str(to), str(row)]
    done = subprocess.run(script, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
