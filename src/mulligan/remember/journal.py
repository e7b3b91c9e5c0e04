"""Framed append before a call returns: a record survives the process that made it, however that ends.

A journal is one process's file beside the store: a lock tells a living owner, and whoever opens the store next adopts
what a dead one left. A frame is a mark, the sort of its payload, its length, a checksum, and the payload. A torn or
damaged frame costs itself alone: reading goes on at the next mark.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mulligan.records import new_id

if sys.platform != "win32":
    import fcntl

MARK = b"\xf5m1"
"""Begins every frame. The digit is the version of the format."""
MARK_OF_ANY = b"\xf5m"
HEAD = struct.Struct("<3sBII")
SUFFIX = ".journal"
LARGEST = 64 * 1024 * 1024
"""Bytes. A length beyond it is a damaged frame, not a large one."""


class Frame(NamedTuple):
    """One record of a journal, and where it ends."""

    offset: int
    sort: int
    payload: bytes


class NewerJournal(Exception):
    """A journal of a newer mulligan, which is left for it."""


class Journal:
    """This process's own journal. `write` is called by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}-{new_id('j')}{SUFFIX}"
        self.name = self.path.stem
        self.offset = 0
        self._file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | CLOSE_ON_EXEC, 0o600)
        _lock(self._file)

    def write(self, frame: bytes) -> int:
        """Appends a frame made by `framed` and answers where it ends."""
        written = os.write(self._file, frame)
        if written != len(frame):
            self._take_back()
            raise OSError(28, "no room left for the journal")
        self.offset += written
        return self.offset

    def _take_back(self) -> None:
        """Half a frame is cut off again, so that the next one is not lost with it."""
        os.ftruncate(self._file, self.offset)

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self, remove: bool) -> None:
        """Lets go of the file; removes it when everything in it is in the store."""
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self._file)

    def abandon(self) -> None:
        """In a forked child: the file is the parent's, and only the copy of its handle is ours to close."""
        os.close(self._file)


CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)


def framed(sort: int, payload: bytes) -> bytes:
    return HEAD.pack(MARK, sort, len(payload), zlib.crc32(payload)) + payload


def frames(path: Path, start: int = 0) -> Iterator[Frame]:
    """The sound frames of a journal from an offset on."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    place = 0
    while 0 <= place <= len(data) - HEAD.size:
        mark, sort, length, checksum = HEAD.unpack_from(data, place)
        if mark[:2] == MARK_OF_ANY and mark[2] > MARK[2] and place == 0 == start:
            raise NewerJournal(f"{path} was written by a newer mulligan")
        end = place + HEAD.size + length
        payload = data[place + HEAD.size : end]
        if mark == MARK and length <= LARGEST and len(payload) == length and zlib.crc32(payload) == checksum:
            yield Frame(start + end, sort, payload)
            place = end
        else:
            place = data.find(MARK, place + 1)


class Orphan:
    """A journal whose owner is gone, held so that nobody else adopts it too."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self.name = path.stem
        self._file = file

    def frames(self, start: int = 0) -> Iterator[Frame]:
        return frames(self.path, start)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._file)


def orphans(folder: Path) -> Iterator[Orphan]:
    """The journals in a folder whose owners are gone, each locked while it is looked at."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            file = os.open(path, os.O_RDWR | CLOSE_ON_EXEC)
        except FileNotFoundError:
            continue  # adopted by somebody else, just now
        orphan = Orphan(path, file)
        try:
            if _try_lock(file) and path.exists():
                yield orphan
        finally:
            orphan.close()


if sys.platform == "win32":
    # Best effort: there is no lock that goes with its process, and a file that is open cannot be removed anyway.

    def _lock(file: int) -> None:
        return

    def _try_lock(file: int) -> bool:
        return True
else:

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _try_lock(file: int) -> bool:
        try:
            _lock(file)
        except OSError:
            return False
        return True
