"""Reader for recorded calls, one row per call, with the rows of a run in sequence.

Columns: `run_id, seq, tool, parameters, outcome, error, result_excerpt`, and optionally `dataset`, `model`, `user_said`
and `ts`. The row states whether the call failed; the failure is classified here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from mulligan.capture.transcripts.gathering import Gathering, Reading, milliseconds
from mulligan.capture.transcripts.lines import Lines, decoded
from mulligan.records import History

NAME = "calls"


class _Row(msgspec.Struct, gc=False):
    run_id: str
    seq: int
    tool: str
    outcome: str
    parameters: Any = None
    error: Any = None
    result_excerpt: Any = None
    dataset: str = ""
    model: str | None = None
    user_said: str | None = None
    ts: Any = None


_decoder = msgspec.json.Decoder(_Row)


def recognises(head: bytes) -> bool:
    first = head.partition(b"\n")[0]
    return all(name in first for name in (b'"run_id"', b'"seq"', b'"tool"', b'"outcome"', b'"parameters"'))


def read(lines: Lines, reading: Reading) -> Iterator[History]:
    run: Gathering | None = None
    known: tuple[str, str] | None = None
    before = 0
    for line in lines:
        reading.lines += 1
        row = decoded(line, _decoder)
        if row is None or row.outcome not in ("success", "failure") or not 0 <= row.seq < 2**31:
            reading.unknown += 1
            continue
        if (row.dataset, row.run_id) != known:
            if run is not None and (history := run.history()):
                # Report the offset before this row: it belongs to the next run and must be read again after an
                # interruption.
                here, lines.offset = lines.offset, before
                yield history
                lines.offset = here
            known = (row.dataset, row.run_id)
            run = Gathering(reading, NAME, row.run_id, row.dataset, agent=row.dataset)
        assert run is not None
        _add(row, run, lines.changed)
        before = lines.offset
    if run is not None and (history := run.history()):
        yield history


def _add(row: _Row, run: Gathering, otherwise: int) -> None:
    run.model = row.model or run.model
    run.says(row.user_said or "")
    moment = milliseconds(row.ts) or otherwise
    server, name = None, row.tool
    if name.startswith("mcp__") and "__" in name[5:]:
        server, _, name = name[5:].partition("__")
    run.numbered(row.seq + 1)
    run.called(str(row.seq), name, row.parameters, moment, server=server)
    failed = row.outcome == "failure"
    run.answered(str(row.seq), row.error if failed else row.result_excerpt, failed, moment, seconds=0.0)
