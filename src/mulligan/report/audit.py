"""Text rendering of the audit log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from mulligan.records import builtins
from mulligan.remember.store import Act
from mulligan.report.tables import columns, line

CSV = ("at", "by", "via", "token", "do", "about", "told", "id")


def facts(act: Act) -> dict[str, Any]:
    return dict.fromkeys(CSV, "") | dict(builtins(act))


def written(millis: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(millis / 1000))


def listed(acts: Sequence[Act], width: int | None) -> Iterator[str]:
    rows = [("when", "who", "through", "did", "about", "")]
    rows += [
        (written(each.at), line(each.by, 30), each.via, each.do, line(each.about, 40), line(each.told, 80))
        for each in acts
    ]
    return columns(rows, width=width)
