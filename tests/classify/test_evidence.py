"""What is read from the objects of the world, real ones where the standard library has them."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
import urllib.error
from email.message import Message
from types import SimpleNamespace
from typing import Any

import pytest

from mulligan.classify.classifier import classify
from mulligan.core.failure import TookEffect


def test_a_subprocess_that_failed_is_read_by_its_output() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", "open('no-such-file.txt')"], capture_output=True, text=True, check=False
    )
    failure = classify(done, tool="run")
    assert failure.kind == "tool/file_not_found"
    assert "no-such-file.txt" in failure.message


def test_a_called_process_error_and_bytes_are_read_alike() -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        subprocess.run(
            [sys.executable, "-I", "-c", "import sys; sys.exit('it broke')"], capture_output=True, check=True
        )
    failure = classify(raised.value, tool="run")
    assert failure.kind == "tool/execution_failed"
    assert failure.message == "it broke"


def test_a_subprocess_that_took_too_long_timed_out() -> None:
    assert classify(subprocess.TimeoutExpired(["sleep", "9"], 1.0)).kind == "tool/timeout"


def test_a_program_that_ran_and_failed_has_run() -> None:
    assert classify({"returncode": 3, "stderr": "no idea"}).took_effect is TookEffect.YES


def test_a_large_dictionary_without_a_message_is_read_in_part() -> None:
    class Column:
        read_count = 0

        def __repr__(self) -> str:
            Column.read_count += 1
            return "column"

    failure = classify({"isError": True, "rows": [Column() for _ in range(100_000)]})
    assert failure.message.startswith("{'isError': True, 'rows': [")
    assert Column.read_count == 0


def test_the_standard_librarys_own_http_error() -> None:
    headers = Message()
    headers["Retry-After"] = "12"
    error = urllib.error.HTTPError("http://localhost/", 429, "Too Many Requests", headers, io.BytesIO(b"slow"))
    failure = classify(error)
    assert (failure.kind, failure.status, failure.retry_after) == ("tool/rate_limit", 429, 12.0)
    assert error.read() == b"slow", "the body is left for whoever reads it next"


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELEC 1", "retrieval/invalid_query"),
        ("SELECT * FROM nowhere", "retrieval/invalid_query"),
        ("SELECT nothing FROM t", "retrieval/invalid_query"),
        ("INSERT INTO t VALUES (1)", "tool/conflict"),
    ],
)
def test_sqlite_says_what_it_means(statement: str, kind: str) -> None:
    store = sqlite3.connect(":memory:")
    store.executescript("CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1)")
    with pytest.raises(sqlite3.Error) as raised:
        store.execute(statement)
    store.close()
    assert classify(raised.value).kind == kind


def test_a_json_error_of_the_standard_library() -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads("<html>")
    assert classify(raised.value).kind == "tool/invalid_response"


@pytest.mark.parametrize("name", ["status_code", "status"])
def test_an_http_response_is_enough(name: str) -> None:
    response = SimpleNamespace(
        **{name: 503}, headers={"retry-after-ms": "1500"}, text='{"message": "Come back later."}'
    )
    failure = classify(response)
    assert (failure.kind, failure.retry_after, failure.message) == ("tool/unavailable", 1.5, "Come back later.")


def test_a_body_that_was_not_read_yet_stays_unread() -> None:
    class Unread:
        status_code = 500
        headers: dict[str, str] = {}  # noqa: RUF012
        _content = False

        def __init__(self) -> None:
            self._content = False

        @property
        def text(self) -> str:
            raise AssertionError("this would block")

    assert classify(Unread()).kind == "tool/api_error"


def test_grpc_reports_by_methods() -> None:
    class RpcError(Exception):
        def code(self) -> Any:
            return SimpleNamespace(name="DEADLINE_EXCEEDED")

        def details(self) -> str:
            return "late"

    assert classify(RpcError("late")).kind == "tool/timeout"


def test_aws_reports_by_a_dictionary() -> None:
    error = type("ClientError", (Exception,), {"__module__": "botocore.exceptions"})("An error occurred")
    error.response = {"Error": {"Code": "NoSuchBucket", "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
    failure = classify(error)
    assert (failure.kind, failure.code) == ("tool/not_found", "NoSuchBucket")


def test_postgres_reports_by_a_state() -> None:
    error = type("Error", (Exception,), {"__module__": "psycopg"})("duplicate")
    error.sqlstate = "23505"
    assert classify(error).kind == "tool/conflict"
