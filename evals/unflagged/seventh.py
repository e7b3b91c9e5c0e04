"""The seventh corpus: results without a flag by an author who had not read the rules. One half is only counted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from unflagged.rows import Row


class SeventhRow(Row):
    """A row whose half is decided by the tool and the result."""

    @property
    def is_opened(self) -> bool:
        key = self.tool + json.dumps(self.result, sort_keys=True)
        return hashlib.sha256(key.encode()).digest()[0] % 2 == 0


def read_rows() -> Iterator[Row]:
    """Yield the rows."""
    for line in Path(__file__).with_suffix(".jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield SeventhRow(row["tool"], row["arguments"] or {}, row["result"], row["label"] == "failure")
