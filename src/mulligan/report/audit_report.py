"""Text rendering of the audit log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from mulligan.core.records import to_builtins
from mulligan.report.tables import render_columns, to_line
from mulligan.store.base import AuditEntry

CSV_COLUMNS = ("at", "by", "via", "token", "action", "target", "detail", "id")


def to_facts(entry: AuditEntry) -> dict[str, Any]:
    return dict.fromkeys(CSV_COLUMNS, "") | dict(to_builtins(entry))


def format_timestamp(millis: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(millis / 1000))


def render_list(entries: Sequence[AuditEntry], width: int | None) -> Iterator[str]:
    rows = [("time (UTC)", "user", "via", "action", "subject", "detail")]
    rows += [
        (
            format_timestamp(entry.at),
            to_line(entry.by, 30),
            entry.via,
            entry.action,
            to_line(entry.target, 40),
            to_line(entry.detail, 80),
        )
        for entry in entries
    ]
    return render_columns(rows, width=width)
