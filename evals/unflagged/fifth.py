"""Rows of the fifth corpus: failures without a flag, and innocent results, labelled without knowledge of the rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from unflagged.rows import Row

FOLDER = Path(__file__).parents[1] / "errors"


def read_rows() -> Iterator[Row]:
    """Yield the rows with their tools. They have no arguments."""
    tool, is_unflagged = "", False
    for line in (FOLDER / "fifth.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("=="):
            fields = dict(field.strip().partition("=")[::2] for field in line.split(";")[1:])
            tool, is_unflagged = fields.get("tool", ""), fields.get("area") == "unflagged"
        elif is_unflagged and line and not line.startswith("#"):
            yield Row(tool, {}, line.replace("\\n", "\n"), True)
    for line in (FOLDER / "innocent.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield Row(row["tool"], {}, row["text"], False)
