"""Reader for recorded calls, one row per call, with the rows of a run in sequence.

Columns: `run_id, seq, tool, parameters, outcome, error, result_excerpt`, and optionally `dataset`, `model`, `user_said`
and `ts`. The row states whether the call failed; the failure is classified here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from mulligan.core.records import History
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, to_milliseconds

NAME = "calls"


class _CallRow(msgspec.Struct, gc=False):
    run_id: str
    seq: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    tool: str
    outcome: Literal["success", "failure"]
    parameters: Any = None
    error: Any = None
    result_excerpt: Any = None
    dataset: str = ""
    model: str | None = None
    user_said: str | None = None
    ts: Any = None


_decoder = msgspec.json.Decoder(_CallRow)


def recognizes(head: bytes) -> bool:
    first = head.partition(b"\n")[0]
    return all(name in first for name in (b'"run_id"', b'"seq"', b'"tool"', b'"outcome"', b'"parameters"'))


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    run: RunBuilder | None = None
    current_key: tuple[str, str] | None = None
    previous_offset = 0
    for row in state.decode_lines(lines, _decoder):
        if (row.dataset, row.run_id) != current_key:
            for history in run.build_histories() if run is not None else ():
                # Report the offset before this row: it belongs to the next run and must be read again after an
                # interruption.
                current_offset, lines.offset = lines.offset, previous_offset
                yield history
                lines.offset = current_offset
            current_key = (row.dataset, row.run_id)
            run = RunBuilder(state, NAME, row.run_id, row.dataset)
            run.agent = row.dataset or NAME
        assert run is not None
        _add_row(row, run, lines.modified_at)
        previous_offset = lines.offset
    if run is not None:
        yield from run.build_histories()


def _add_row(row: _CallRow, run: RunBuilder, default_timestamp: int) -> None:
    run.model = row.model or run.model
    run.set_context(row.user_said or "")
    timestamp = to_milliseconds(row.ts) or default_timestamp
    run.set_next_number(row.seq + 1)
    run.start_call(str(row.seq), row.tool, row.parameters, timestamp)
    has_failed = row.outcome == "failure"
    run.end_call(str(row.seq), row.error if has_failed else row.result_excerpt, has_failed, timestamp)
