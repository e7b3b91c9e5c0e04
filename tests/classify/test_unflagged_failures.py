"""What looks like a tool's own failure, and what is content although it is about one."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.classify.unflagged_failures import find_unflagged_failure
from mulligan.core.failure import ToolCategory

OWN: list[tuple[ToolCategory, str, dict[str, Any]]] = [
    ("shell", "bash: kubectl: command not found", {}),
    ("shell", "cp: cannot stat 'a.txt': No such file or directory", {"command": "cp a.txt b.txt"}),
    ("shell", "cat: /etc/shadow: Permission denied", {"command": "cat /etc/shadow"}),
    ("shell", "/bin/sh: 1: rg: not found", {"command": "rg error app.log | head"}),
    ("shell", "psql: error: connection to server at 'db' failed: Connection refused", {"command": "psql -l"}),
    ("shell", "added 3 packages\nnpm ERR! code E404\nnpm ERR! 404 Not Found", {"command": "npm ci"}),
    ("shell", "fatal: not a git repository (or any of the parent directories): .git", {"command": "git status"}),
    ("shell", "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'x'", {"command": "python a.py"}),
    ("file", "Error: ENOENT: no such file or directory, open '/srv/a.json'", {"path": "/srv/a.json"}),
    ("file", "File not found: notes.md", {"path": "notes.md"}),
    ("file", "Access denied - path outside allowed directories: /etc/passwd", {"path": "/etc/passwd"}),
    ("fetch", "<html><head><title>Just a moment...</title></head><body></body></html>", {}),
    ("fetch", "<html><title>Log in | Shop</title><form><input type='password' name='p'></form></html>", {}),
    ("fetch", "Failed to fetch https://shop.example/a: status code 403", {}),
    ("browser", "page.goto: net::ERR_NAME_NOT_RESOLVED at https://shop.example", {}),
    ("browser", "# Access Denied\n\nYou don't have permission to access this page.\nReference #18.2f1", {}),
    ("search", "Search failed: API quota exceeded for this month", {}),
    ("sql", 'ERROR:  relation "orders" does not exist\nLINE 1: select * from orders', {}),
    ("sql", "(sqlite3.OperationalError) no such column: total", {}),
    ("code", "Traceback (most recent call last):\n  File 'a', line 1\nNameError: name 'df' is not defined", {}),
]  # fmt: skip
CONTENT: list[tuple[ToolCategory, str, dict[str, Any]]] = [
    ("file", "Error: connection refused\n", {"path": "/var/log/app.log"}),
    ("file", "Error: ENOENT: no such file or directory, open '/srv/config.json'", {"path": "/var/log/app.log"}),
    ("file", "# Error handling\n\nIf the file does not exist, create it.\n", {"path": "docs/errors.md"}),
    ("file", "2026-01-04 ERROR open /srv/a: permission denied", {}),
    ("file", "ERROR [2026-01-04] permission denied\nINFO retry\nINFO ok\nINFO ok\nINFO ok", {}),
    ("shell", "ERROR connection refused\nERROR connection refused", {"command": "tail -n 2 app.log"}),
    ("shell", "npm ERR! code E404", {"command": "cat npm-debug.log"}),
    ("shell", "src/a.py:4:    raise ValueError('Error: no such order')", {"command": "grep -rn Error src"}),
    ("shell", "commit 4f2a\n    Fix error: permission denied", {"command": "git log -1"}),
    ("shell", "12 passed in 0.31s", {"command": "pytest"}),
    ("shell", '{"error": "invalid api key"}', {"command": "cat fixture.json"}),
    ("shell", "total 8\n-rw-r--r-- 1 a a 12 error.log\ndrwxr-xr-x failed_jobs", {"command": "ls -l"}),
    ("fetch", "<html><head><title>How to fix 403 errors</title></head><body>Access denied</body></html>", {}),
    ("fetch", "<h1>404 pages: design inspiration</h1><p>Thirty lovely screens.</p>", {}),
    ("fetch", "<html><title>Access denied: a history</title><article><p>In 2011 ...</p></article></html>", {}),
    ("search", "HTTP 429 means that a client has sent too many requests.", {}),
    ("fetch", "<html><title>Fix login problems</title><p>Enter your password</p></html>", {}),
    (
        "fetch",
        "# Connection refused: five causes\n\nNothing listens.\n\n1. ...\n2. ...",
        {},
    ),
    ("search", "1. Error: connection refused - Questions\n2. How to fix it\n3. Docs\n4. Forum\n5. Blog", {}),
    ("sql", 'id | level | message\n1 | error | relation "orders" does not exist', {}),
    ("code", "[1, 2, 3]\nno errors", {}),
    ("model", "Error: that is what the log says, and it means that the disk is full.", {}),
]


@pytest.mark.parametrize(("category", "text", "arguments"), OWN)
def test_failure_of_the_tool_itself_is_found(category: ToolCategory, text: str, arguments: dict[str, Any]) -> None:
    excerpt = find_unflagged_failure(text, category, arguments)
    assert excerpt
    assert excerpt in text


@pytest.mark.parametrize(("category", "text", "arguments"), CONTENT)
def test_content_about_failures_is_content(category: ToolCategory, text: str, arguments: dict[str, Any]) -> None:
    assert find_unflagged_failure(text, category, arguments) == ""
