"""A model with record="full": what it saw can be read later, each message is stored once, and it can be forgotten."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

SECRET = "ghp_abcdefghijklmnopqrstuvwxyzABCDEF1234"
PROGRAM = f"""
import os, mulligan

attempts = []

@mulligan.model(record="full", policy=mulligan.Policy(initial_backoff=0.001, max_backoff=0.002))
def ask(messages, model="gpt-5"):
    attempts.append(len(messages))
    if len(attempts) == 2:
        raise ConnectionResetError("connection reset by peer")
    if len(messages) < 4:
        function = {{"name": "find_order", "arguments": '{{"id": 4711, "password": "correct-horse"}}'}}
        call = {{"id": "c1", "type": "function", "function": function}}
        return {{"role": "assistant", "content": None, "tool_calls": [call]}}
    return {{"role": "assistant", "content": "It arrives on Friday."}}

@mulligan.tool(effects="none")
def find_order(id):
    raise KeyError("no order 4711 for correct-horse")

with mulligan.run("support", session="session-of-ada"):
    messages = [{{"role": "system", "content": "You help."}}, {{"role": "user", "content": "Where is it? {SECRET}"}}]
    messages.append(ask(messages))
    try:
        find_order(4711)
    except KeyError:
        messages.append({{"role": "tool", "tool_call_id": "c1", "content": "no order 4711 for correct-horse"}})
    ask(messages)
with mulligan.run("support", session="session-of-ada"):
    messages.append({{"role": "assistant", "content": "It arrives on Friday."}})
    messages.append({{"role": "user", "content": "Thanks, Ada Lovelace."}})
    ask(messages)
os._exit(9)  # the journal has what the store has not
"""


@pytest.fixture
def talked(user: Any) -> Any:
    assert user.runs_program(PROGRAM).returncode == 9
    assert user.types("runs").returncode == 0  # the next process stores what the journal has
    return user


def stored(user: Any, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database(user))) as connection:
        return connection.execute(sql).fetchall()


def database(user: Any) -> Path:
    (path,) = (user.home / "mulligan").glob("*.db")
    return path


def all_bytes(user: Any) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((user.home / "mulligan").rglob("*")) if path.is_file())


def test_a_run_shows_what_the_model_saw_with_failures_at_their_place(talked: Any) -> None:
    first = talked.sees("runs")[-1]["id"]

    said = talked.types("show", first, "--conversation").stdout
    entries = talked.sees("show", first, "--conversation")["entries"]

    assert [entry.get("message", {}).get("role", entry["type"]) for entry in entries] == [
        "system", "user", "assistant", "failure", "tool", "failure", "recovery", "assistant",
    ]  # fmt: skip
    assert entries[2]["message"]["parts"] == [
        {"type": "call", "name": "find_order", "arguments": {"id": 4711, "password": "[redacted password]"}}
    ]
    assert "result of find_order: no order 4711 for [redacted password]" in said
    assert "model/unavailable in ask, recovered later" in said
    assert said.rstrip().endswith("assistant  It arrives on Friday.")
    assert len(talked.sees("show", first)["messages"]) == 5


def test_each_message_of_a_session_is_stored_once_and_no_secret_is(talked: Any) -> None:
    assert stored(talked, "SELECT count(*) FROM messages") == [(6,)]
    assert stored(talked, "SELECT count(*) FROM run_messages") == [(5 + 6,)]
    for secret in (SECRET, "correct-horse"):
        assert secret.encode() not in all_bytes(talked)
        bodies = [row[0] for row in stored(talked, "SELECT body FROM messages")]
        assert not any(secret.encode() in bytes(body) for body in bodies if isinstance(body, bytes))


def test_a_forgotten_text_and_a_forgotten_session_are_gone_from_the_file(talked: Any) -> None:
    assert b"Ada Lovelace" in all_bytes(talked)

    assert "1 message" in talked.types("forget", "--text", "Ada Lovelace", "--yes").stdout
    assert b"Ada Lovelace" not in all_bytes(talked)
    assert talked.types("forget", "--session", "session-of-ada", "--yes").returncode == 0

    assert stored(talked, "SELECT count(*) FROM messages") == [(0,)]
    assert stored(talked, "SELECT count(*) FROM run_messages") == [(0,)]
    assert b"You help." not in all_bytes(talked)


def test_messages_move_with_a_copy_a_backup_and_a_local_export(talked: Any) -> None:
    first = talked.sees("runs")[-1]["id"]
    messages = talked.sees("show", first)["messages"]

    assert talked.types("copy", str(database(talked)), "copied.db").returncode == 0
    assert talked.types("backup", "saved.db").returncode == 0
    assert talked.types("export", "-o", "mine.jsonl", "--level", "local").returncode == 0
    assert talked.types("import", "mine.jsonl", "--store", "imported.db").returncode == 0
    for name in ("copied.db", "saved.db", "imported.db"):
        assert talked.sees("show", first, "--store", name)["messages"] == messages, name

    assert talked.types("export", "-o", "ours.jsonl").returncode == 0
    assert "arrives on Friday" not in (talked.folder / "ours.jsonl").read_text()
