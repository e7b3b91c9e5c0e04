"""Rows of the corpus: their form, their split into halves, and the file that stores them.

A row is one response as a caller gets it: a value of JSON or a text. `case` names the program and the situation that
produced it. All rows of a case are in the same half, so that the unopened half has situations that no rule has seen.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parent / "rows.jsonl.gz"
MAX_TEXT_CHARS = 700
MAX_ROW_CHARS = 2_000

STATUS_KINDS = {
    400: "invalid_arguments",
    401: "auth_error",
    403: "permission_denied",
    404: "not_found",
    405: "api_error|invalid_arguments",
    406: "api_error|invalid_arguments",
    409: "conflict",
    410: "not_found",
    413: "invalid_arguments",
    415: "invalid_arguments",
    422: "invalid_arguments",
    429: "rate_limit",
    500: "api_error|execution_failed",
    501: "api_error",
    502: "unavailable|api_error",
    503: "unavailable",
    504: "timeout|unavailable",
}
"""The codes of the kinds that are right for an HTTP status, written down before anything was measured."""


class Row(NamedTuple):
    """One response. `kinds` are the codes that are right for an error, separated by `|`; empty if none was labeled."""

    source: str
    case: str
    is_error: bool
    response: Any
    kinds: str = ""

    @property
    def is_opened(self) -> bool:
        """Return whether the rules may be written with this row in view."""
        return hashlib.sha256(f"{self.source}/{self.case}".encode()).digest()[0] % 2 == 0


def write_rows(rows: Iterable[Row]) -> int:
    """Store the rows, each response once, and return their number. The same rows give the same bytes."""
    lines: dict[str, str] = {}
    for row in rows:
        response = row.response[:MAX_TEXT_CHARS] if isinstance(row.response, str) else row.response
        key = json.dumps(response, sort_keys=True, default=str)
        if len(key) <= MAX_ROW_CHARS and key not in lines:
            lines[key] = json.dumps([*row[:3], response, row.kinds], ensure_ascii=False, default=str)
    data = "".join(f"{line}\n" for line in sorted(lines.values()))
    with FILE.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(data.encode())
    return len(lines)


def read_rows() -> Iterator[Row]:
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield Row(*json.loads(line))
