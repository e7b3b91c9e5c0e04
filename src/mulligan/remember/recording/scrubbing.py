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

from mulligan.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.remember import forgetting
from mulligan.remember.recording.framing import EVENT, events_of
from mulligan.remember.recording.journal import HEAD, MARK, SUFFIX, Frame, NewerJournal, frames
from mulligan.remember.store import Forget

log = logging.getLogger("mulligan")

_NOTHING = b'{"event":"context.compacted","compaction":{}}'
"""Event without content that replaces a forgotten one."""


def scrub(folder: Path, what: Forget, runs: Collection[str]) -> int:
    """Overwrite the records of these runs, the tool or the text in all journals of a folder. Return their number."""
    count = 0
    for path in sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else ():
        try:
            count += _scrub(path, what, runs)
        except (OSError, NewerJournal) as error:
            log.warning("%s could not be looked through for what is to be forgotten: %s", path, error)
    return count


def _scrub(path: Path, what: Forget, runs: Collection[str]) -> int:
    changed = [(frame, other) for frame in frames(path) if (other := _instead(frame, what, runs)) is not None]
    if changed:
        with path.open("r+b") as file:
            for frame, (sort, payload) in changed:
                file.seek(frame.offset - len(frame.payload) - HEAD.size)
                file.write(HEAD.pack(MARK, sort, len(payload), crc32(payload, sort)) + payload)
    return len(changed)


def _instead(frame: Frame, what: Forget, runs: Collection[str]) -> tuple[int, bytes] | None:
    """Return the type and payload that replace a frame, or `None` if it is unaffected."""
    if what.text is not None:
        payload = frame.payload
        for needle in forgetting.needles(what.text):
            payload = payload.replace(needle, b"x" * len(needle))
        if payload != frame.payload:
            return frame.sort, payload
        return None
    if any(_is_about(event, what, runs) for _, event in events_of([frame])):
        return EVENT, _NOTHING.ljust(len(frame.payload))[: len(frame.payload)]
    return None


def _is_about(event: AnyEvent, what: Forget, runs: Collection[str]) -> bool:
    if isinstance(event, StepEnded):
        return event.step.run in runs or (what.tool is not None and event.step.name == what.tool)
    if isinstance(event, RunStarted | RunEnded):
        return event.run.id in runs or (what.session is not None and event.run.session == what.session)
    return False
