"""Removal of forgotten records from the journals of running processes.

A journal still contains stored records until it is rotated. Its owner only appends, so a frame can be overwritten in
place with the same number of bytes and a matching checksum. Records that are still in the memory of a process reach the
store later and count as new.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from zlib import crc32

from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.record.journal import (
    FRAME_HEADER,
    FRAME_MARK,
    JOURNAL_SUFFIX,
    JournalFrame,
    NewerJournalError,
    read_frames,
)
from mulligan.record.journal_framing import EVENT_FRAME, decode_events
from mulligan.store import text_erasure
from mulligan.store.base import ForgetRequest

log = logging.getLogger("mulligan")

EMPTY_EVENT = b'{"event":"context.compacted","compaction":{}}'
"""Event without content that replaces a forgotten one."""


def scrub_journals(folder: Path, request: ForgetRequest, runs: Collection[str]) -> int:
    """Overwrite the records of these runs, the tool or the text in all journals of a folder. Return their number."""
    count = 0
    for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}")) if folder.is_dir() else ():
        try:
            count += _scrub_journal(path, request, runs)
        except (OSError, NewerJournalError) as error:
            log.warning("Cannot search %s for records to delete: %s", path, error)
    return count


def _scrub_journal(path: Path, request: ForgetRequest, runs: Collection[str]) -> int:
    replacements = [
        (frame, replacement)
        for frame in read_frames(path)
        if (replacement := _replacement_for(frame, request, runs)) is not None
    ]
    if replacements:
        with path.open("r+b") as file:
            for frame, (frame_type, payload) in replacements:
                file.seek(frame.offset - len(frame.payload) - FRAME_HEADER.size)
                file.write(
                    FRAME_HEADER.pack(FRAME_MARK, frame_type, len(payload), crc32(payload, frame_type)) + payload
                )
    return len(replacements)


def _replacement_for(frame: JournalFrame, request: ForgetRequest, runs: Collection[str]) -> tuple[int, bytes] | None:
    """Return the type and payload that replace a frame, or `None` if it is unaffected."""
    if request.text is not None:
        payload = frame.payload
        for needle in text_erasure.build_needles(request.text):
            payload = payload.replace(needle, b"x" * len(needle))
        if payload != frame.payload:
            return frame.type, payload
        return None
    if any(_matches_request(event, request, runs) for _, event in decode_events([frame])):
        return EVENT_FRAME, EMPTY_EVENT.ljust(len(frame.payload))[: len(frame.payload)]
    return None


def _matches_request(event: AnyEvent, request: ForgetRequest, runs: Collection[str]) -> bool:
    if isinstance(event, StepEnded):
        return event.step.run in runs or (request.tool is not None and event.step.name == request.tool)
    if isinstance(event, RunStarted | RunEnded):
        return event.run.id in runs or (request.session is not None and event.run.session == request.session)
    return False
