"""Errors that were raised for real, returned in the ways in which authors of tools return them.

Each way is a case of its own, so half of the ways are never seen while rules are written.
"""

# ruff: noqa: E501 - tables with one case per line
from __future__ import annotations

import json
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from response_corpus.rows import Row


def close_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def provoke() -> list[tuple[str, Exception, str]]:
    """Return real exceptions: the task that failed, the exception, and the codes of the right kinds."""
    folder = Path(tempfile.mkdtemp())
    (folder / "notes.txt").write_text("x")
    (folder / "closed.txt").write_text("x")
    database = sqlite3.connect(":memory:")
    database.execute("create table orders (number integer primary key, total real not null)")
    database.execute("insert into orders values (1, 2.5)")

    def run_sql(statement: str) -> Callable[[], Any]:
        return lambda: database.execute(statement)

    tasks: list[tuple[str, Callable[[], Any], str]] = [
        ("reading the file", lambda: (folder / "nothing.txt").read_text(), "file_not_found"),
        ("listing the folder", lambda: list((folder / "nowhere").iterdir()), "file_not_found"),
        ("reading the file", lambda: folder.read_text(), "invalid_arguments|execution_failed"),
        ("creating the folder", lambda: (folder / "notes.txt").mkdir(), "conflict"),
        ("removing the folder", lambda: folder.rmdir(), "conflict"),
        ("fetching the page", lambda: urllib.request.urlopen(f"http://127.0.0.1:{close_port()}/"), "connection_error"),
        ("fetching the page", lambda: urllib.request.urlopen("http://shop.invalid/"), "connection_error"),
        ("fetching the page", lambda: urllib.request.urlopen("htp://shop.example"), "invalid_arguments"),
        ("connecting to the cache", lambda: socket.create_connection(("127.0.0.1", close_port())), "connection_error"),
        ("querying orders", run_sql("select * from customers"), "invalid_query|not_found"),
        ("querying orders", run_sql("select price from orders"), "invalid_query|not_found|invalid_arguments"),
        ("querying orders", run_sql("selec * from orders"), "invalid_query|invalid_arguments"),
        ("storing the order", run_sql("insert into orders values (1, 3)"), "conflict|constraint_violation"),
        ("storing the order", run_sql("insert into orders values (2, null)"), "invalid_arguments|constraint_violation"),
        ("parsing the reply", lambda: json.loads("<html>"), "invalid_response"),
        ("reading the quantity", lambda: int("many"), "invalid_arguments"),
        (
            "starting the program",
            lambda: subprocess.run(["frobnicate"], check=True),
            "command_not_found|file_not_found",
        ),
        (
            "running the script",
            lambda: subprocess.run([sys.executable, "-I", "-c", "raise SystemExit(3)"], check=True),
            "execution_failed",
        ),
        (
            "running the script",
            lambda: subprocess.run([sys.executable, "-c", "import time; time.sleep(9)"], timeout=0.05),
            "timeout",
        ),
    ]
    try:
        import duckdb

        def run_duckdb(statement: str) -> Any:
            return duckdb.sql(statement).fetchall()

        statements = ("select * from customers", "select 1 +", "select cast('many' as integer)")
        tasks += [
            ("analyzing orders", partial(run_duckdb, statement), "invalid_query|not_found") for statement in statements
        ]
    except ImportError:
        pass
    errors = []
    for task, call, kinds in tasks:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - any error of a library is a row
            # Folders and ports differ between two runs of the script.
            text = str(error).replace(str(folder), "/srv/shop").replace(sys.executable, "python")
            errors.append((task, type(type(error).__name__, (Exception,), {})(text), kinds))
    return errors


def get_name(error: Exception) -> str:
    return type(error).__name__


WAYS: dict[str, Callable[[str, Exception], Any]] = {
    "true with message": lambda task, error: {"error": True, "message": str(error)},
    "true with code and hint": lambda task, error: {
        "error": True, "code": get_name(error).upper(), "message": str(error), "hint": "Check the input.",
        "recoverable": True,
    },
    "true with type": lambda task, error: {"error": True, "type": get_name(error), "detail": str(error)},
    "true with errorMessage": lambda task, error: {"error": True, "errorMessage": str(error)},
    "true with result": lambda task, error: {"error": True, "result": None, "message": f"{task}: {error}"},
    "success with error": lambda task, error: {"success": False, "error": str(error)},
    "success with message": lambda task, error: {"success": False, "message": str(error)},
    "success with data": lambda task, error: {"success": False, "data": None, "error": {"message": str(error)}},
    "success with msg": lambda task, error: {"success": False, "msg": str(error), "data": None},
    "success with reason": lambda task, error: {"success": False, "reason": str(error), "retryable": False},
    "success with exception": lambda task, error: {"success": False, "exception": get_name(error), "details": str(error)},
    "success alone": lambda task, error: {"success": False},
    "ok alone": lambda task, error: {"ok": False},
    "ok with error": lambda task, error: {"ok": False, "error": get_name(error)},
    "ok with description": lambda task, error: {"ok": False, "error_code": 400, "description": f"Bad Request: {error}"},
    "status error with message": lambda task, error: {"status": "error", "message": str(error)},
    "status error with data": lambda task, error: {"status": "error", "data": None, "message": f"{task}: {error}"},
    "status failed with reason": lambda task, error: {"status": "failed", "reason": str(error)},
    "status failure": lambda task, error: {"status": "failure", "error": str(error)},
    "status fail with data": lambda task, error: {"status": "fail", "data": {"input": str(error)}},
    "result and error": lambda task, error: {"result": None, "error": str(error)},
    "output and error": lambda task, error: {"output": "", "error": f"{get_name(error)}: {error}"},
    "error with traceback": lambda task, error: {"error": str(error), "traceback": "Traceback (most recent call last):"},
    "error_message": lambda task, error: {"error_code": get_name(error), "error_message": str(error)},
    "errorMessage and errorType": lambda task, error: {
        "errorMessage": str(error), "errorType": get_name(error), "stackTrace": []
    },
    "statusCode with body": lambda task, error: {"statusCode": 500, "body": json.dumps({"message": str(error)})},
    "statusCode alone": lambda task, error: {"statusCode": 500},
    "status with message": lambda task, error: {"status": 500, "message": str(error)},
    "status and error": lambda task, error: {"status": 500, "error": "Internal Server Error", "path": "/orders"},
    "code and msg": lambda task, error: {"code": 500, "msg": str(error), "data": None},
    "errors of texts": lambda task, error: {"errors": [str(error)], "success": False},
    "errors with message": lambda task, error: {"errors": [{"message": str(error), "code": get_name(error)}]},
    "is_error content": lambda task, error: {"is_error": True, "content": str(error)},
    "text error": lambda task, error: f"Error: {error}",
    "text error doing": lambda task, error: f"Error {task}: {error}",
    "text failed doing": lambda task, error: f"Failed {task}: {error}",
    "text failed to": lambda task, error: f"Failed to complete {task}: {error}",
    "text failed to connect": lambda task, error: f"Failed to connect while {task}. {error}",
    "text could not": lambda task, error: f"Could not finish {task}: {error}",
    "text unable to": lambda task, error: f"Unable to finish {task}: {error}",
    "text cannot": lambda task, error: f"Cannot finish {task}: {error}",
    "text class": lambda task, error: f"{get_name(error)}: {error}",
    "text exception while": lambda task, error: f"Exception while {task}: {error}",
    "text an exception": lambda task, error: f"An exception occurred while {task}: {error}",
    "text an error": lambda task, error: f"An error occurred while {task}: {error}",
    "text an unexpected error": lambda task, error: f"An unexpected error happened: {error}",
    "text noun error": lambda task, error: f"{task.split()[-1].title()} error: {error}",
    "text database error": lambda task, error: f"Database error: {error}",
    "text network error": lambda task, error: f"Network error while {task}: {error}",
    "text tool error": lambda task, error: f"Tool error ({get_name(error)}): {error}",
    "text noun failed": lambda task, error: f"{task.split()[-1].title()} request failed: {error}",
    "text operation failed": lambda task, error: f"Operation failed: {error}",
    "text sorry": lambda task, error: f"Sorry, an error occurred: {error}",
    "text bracket": lambda task, error: f"[ERROR] {task}: {error}",
    "text upper": lambda task, error: f"ERROR: {task} - {error}",
    "text mark": lambda task, error: f"\u274c Error {task}: {error}",
    "text tag": lambda task, error: f"<error>{error}</error>",
    "text something went wrong": lambda task, error: f"Something went wrong while {task}: {error}",
    "text error code": lambda task, error: f"Error code 17: {error}",
    "text fatal": lambda task, error: f"fatal: {error}",
    "text oops": lambda task, error: f"Oops! {task} did not work: {error}",
    "text invalid": lambda task, error: f"Invalid request: {error}",
    "text request failed": lambda task, error: "Request failed with status code 502",
    "text fetch failed": lambda task, error: f"Error searching for {task.split()[-1]}: fetch failed",
    "text http": lambda task, error: "HTTP 503: Service Unavailable",
    "text http error": lambda task, error: "HTTP Error 404: Not Found",
    "text timeout": lambda task, error: f"Timeout while {task}",
    "text timed out": lambda task, error: f"{task.capitalize()} timed out after 30 seconds",
    "text denied": lambda task, error: "Permission denied: /srv/shop/orders",
    "text access denied": lambda task, error: f"Access denied for {task}",
    "text not found": lambda task, error: f"File not found: /srv/shop/{task.split()[-1]}.txt",
}  # fmt: skip
FIXED_KINDS = {
    "ok with description": "",
    "success alone": "",
    "ok alone": "",
    "ok with error": "",
    "statusCode alone": "api_error|execution_failed",
    "status and error": "api_error|execution_failed",
    "text request failed": "unavailable|api_error",
    "text fetch failed": "connection_error|execution_failed|api_error",
    "text http": "unavailable",
    "text http error": "not_found",
    "text timeout": "timeout",
    "text timed out": "timeout",
    "text denied": "permission_denied",
    "text access denied": "permission_denied",
    "text not found": "file_not_found|not_found",
}
STATUS_WAYS = ("statusCode with body", "status with message", "code and msg")
"""Ways that report status 500 for every error: the status decides together with the text."""


def return_errors() -> Iterator[Row]:
    errors = provoke()
    for name, way in WAYS.items():
        chosen = random.Random(name).sample(errors, 6)
        for task, error, kinds in chosen:
            value = way(task, error)
            kinds = FIXED_KINDS.get(name, f"{kinds}|api_error|execution_failed" if name in STATUS_WAYS else kinds)
            yield Row("tool", name, True, value, kinds)
            if isinstance(value, dict) and task < "m":
                yield Row("tool", name, True, json.dumps(value, indent=2 if len(task) % 2 else None), kinds)


COMMANDS: tuple[tuple[str, str], ...] = (
    ("ls /nowhere", "file_not_found"), ("cat nothing.txt", "file_not_found"), ("frobnicate --all", "command_not_found"),
    ("python3 -c 'import shop_prices'", ""), ("python3 -c 'print(1'", ""), ("git show no-such-branch", ""),
    ("grep --frob x", ""), ("sort --wrong", ""), ("tar xf nothing.tar", ""), ("false", ""), ("exit 7", ""),
    ("mkdir /proc/x", ""), ("cp nothing.txt /tmp/y", ""), ("chmod 999 nothing", ""), ("python3 nothing.py", ""),
    ("node -e 'x.y.z'", ""), ("git checkout nowhere", ""), ("find /nowhere", ""), ("curl -sS http://127.0.0.1:9/", ""),
)  # fmt: skip
GOOD_COMMANDS = (
    "echo done", "echo 'Error: is a word'", "printf 'ERROR disk full\\nINFO retried\\n'", "seq 3", "true", "date -u -d @0",
    "echo warning: old option >&2; echo 4 files", "git --version", "python3 --version", "printf '0 errors, 2 warnings\\n'",
    "echo error >&2", "printf 'PASS test_error_page\\nPASS test_timeout\\n'", "printf 'failed: 0\\npassed: 12\\n'",
    "printf 'exit code: 0\\n'", "echo 404", "printf 'a.py\\nerrors.py\\nfailures.md\\n'", "printf 'fatal 0\\nerror 0\\n'",
    "printf 'Failed to connect 3 times yesterday, 0 times today\\n'", "basename /srv/errors/404.html",
)  # fmt: skip


def run_commands() -> Iterator[Row]:
    for command, kinds in COMMANDS:
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, cwd="/tmp", stdin=subprocess.DEVNULL, timeout=20
        )
        output = done.stdout + done.stderr
        for form, value in (
            ("dict", {"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}),
            ("exit_code", {"exit_code": done.returncode, "output": output}),
            ("exitCode", {"exitCode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}),
            ("text", f"Exit code {done.returncode}\n{output}"),
            ("sentence", f"Command failed with exit code {done.returncode}: {output}"),
        ):
            yield Row("command", form, True, value, kinds)
    for command in GOOD_COMMANDS:
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd="/tmp", timeout=20)
        output = done.stdout + done.stderr
        for form, value in (
            ("good dict", {"returncode": 0, "stdout": done.stdout, "stderr": done.stderr}),
            ("good exit_code", {"exit_code": 0, "output": output}),
            ("good exitCode", {"exitCode": 0, "stdout": done.stdout, "stderr": done.stderr, "success": True}),
            ("good text", output),
            ("good framed", f"Exit code: 0\nOutput:\n{output}"),
        ):
            yield Row("command", form, False, value)
