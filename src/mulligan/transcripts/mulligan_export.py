"""Reader for mulligan's own export: a header line with the format version, then one run per line."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mulligan.core.links import attach_links, link_recoveries
from mulligan.core.records import History, decode
from mulligan.transcripts.log_lines import LogLines, UnreadableFileError, decode_line
from mulligan.transcripts.run_builder import ReaderState

NAME = "mulligan"
VERSION = 1
"""Increase it when older versions of mulligan cannot read the format."""


class Header(msgspec.Struct, omit_defaults=True):
    """The first line of an export."""

    mulligan: str
    """Always `export`."""
    version: int
    level: str = ""
    """The redaction level: local or shared."""
    exported: int = 0
    """UTC milliseconds."""
    since: int | None = None


_header = msgspec.json.Decoder(Header)


def recognizes(head: bytes) -> bool:
    first = head.partition(b"\n")[0]
    return first.startswith(b'{"mulligan":') and b'"version":' in first


def read(lines: LogLines, state: ReaderState) -> Iterator[History]:
    first = lines.head(64 * 1024).partition(b"\n")[0]
    header = decode_line(first, _header)
    if header is None or header.mulligan != "export":
        raise UnreadableFileError("its first line is not a valid header. Export it again: mulligan export -o FILE")
    if header.version > VERSION:
        raise UnreadableFileError(
            f"it was exported by a newer mulligan (format {header.version}; this version supports {VERSION}). "
            "Upgrade: pip install -U mulligan"
        )
    for line in lines:
        state.line_count += 1
        if line.startswith(b'{"mulligan":'):
            continue  # the header, or that of another export appended to this one
        try:
            history = decode(line, History)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
            state.unrecognized_lines += 1
            continue
        if any(step.run != history.run.id for step in history.steps):
            state.unrecognized_lines += 1  # edited by hand
            continue
        if not all(link.evidence for link in history.links):
            # Older versions linked similar calls, which are often different items.
            links = link_recoveries(history.steps, history.run)
            history = msgspec.structs.replace(history, links=tuple(links))
        yield attach_links(history)
