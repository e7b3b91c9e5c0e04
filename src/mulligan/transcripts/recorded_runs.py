"""Readers for complete runs in sequence: mulligan's own export, and recorded calls from any source.

An export is a header line with the format version, then one run per line. Recorded calls have one row per call, with
the rows of a run in sequence. Columns: `run_id, seq, tool, parameters, outcome, error, result_excerpt`, and optionally
`dataset`, `model`, `user_said` and `ts`. The row states whether the call failed; the failure is classified here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from mulligan.core.failure import UPGRADE
from mulligan.core.records import History, decode
from mulligan.core.run_links import attach_links, link_recoveries
from mulligan.transcripts.log_lines import LogLines, UnreadableFileError, decode_line
from mulligan.transcripts.run_builder import ReaderState, RunBuilder, to_milliseconds

EXPORT_NAME = "mulligan"
CALLS_NAME = "calls"
EXPORT_VERSION = 1
"""Increase it when older versions of mulligan cannot read the format."""


class ExportHeader(msgspec.Struct, omit_defaults=True):
    """The first line of an export."""

    mulligan: str
    """Always `export`."""
    version: int
    level: str = ""
    """The redaction level: local or shared."""
    exported: int = 0
    """UTC milliseconds."""
    since: int | None = None


_header_decoder = msgspec.json.Decoder(ExportHeader)


def recognizes_export(head: bytes) -> bool:
    first = head.partition(b"\n")[0]
    return first.startswith(b'{"mulligan":') and b'"version":' in first


def read_export(lines: LogLines, state: ReaderState) -> Iterator[History]:
    header = decode_line(lines.head(64 * 1024).partition(b"\n")[0], _header_decoder)
    if header is None or header.mulligan != "export":
        raise UnreadableFileError("its first line is not a valid header. Export it again: mulligan export -o FILE")
    if header.version > EXPORT_VERSION:
        raise UnreadableFileError(
            f"it was exported by a newer mulligan (format {header.version}; this version supports {EXPORT_VERSION}). "
            f"{UPGRADE}"
        )
    for line in lines:
        state.line_count += 1
        if line.startswith(b'{"mulligan":'):
            continue  # the header, or that of another export appended to this one
        try:
            history = decode(line, History)
            if any(step.run != history.run.id for step in history.steps):
                raise ValueError("steps of another run")  # edited by hand
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
            state.skip_line(lines, "not a run of an export")
            continue
        if not all(link.evidence for link in history.links):
            # Older versions linked similar calls, which are often different items.
            links = link_recoveries(history.steps, history.run)
            history = msgspec.structs.replace(history, links=tuple(links))
        yield attach_links(history)


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


_row_decoder = msgspec.json.Decoder(_CallRow)


def recognizes_calls(head: bytes) -> bool:
    first = head.partition(b"\n")[0]
    return all(name in first for name in (b'"run_id"', b'"seq"', b'"tool"', b'"outcome"', b'"parameters"'))


def read_calls(lines: LogLines, state: ReaderState) -> Iterator[History]:
    run: RunBuilder | None = None
    key: tuple[str, str] | None = None
    previous_offset = 0
    for row in state.decode_lines(lines, _row_decoder):
        if (row.dataset, row.run_id) != key or run is None:
            for history in run.build_histories() if run is not None else ():
                # Report the offset before this row: it belongs to the next run and must be read again after an
                # interruption.
                current_offset, lines.offset = lines.offset, previous_offset
                yield history
                lines.offset = current_offset
            key = (row.dataset, row.run_id)
            run = RunBuilder(state, CALLS_NAME, row.run_id, row.dataset)
            run.agent = row.dataset or CALLS_NAME
        run.model = row.model or run.model
        run.set_context(row.user_said or "")
        timestamp = to_milliseconds(row.ts) or lines.modified_at
        has_failed = row.outcome == "failure"
        run.calls = row.seq  # the log numbers its calls from 0
        run.start_call(str(row.seq), row.tool, row.parameters, timestamp)
        run.end_call(str(row.seq), row.error if has_failed else row.result_excerpt, has_failed, timestamp)
        previous_offset = lines.offset
    if run is not None:
        yield from run.build_histories()
