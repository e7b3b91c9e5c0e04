"""Framed append before a call returns: a record survives the process that made it, however that ends.

A journal is one process's file beside the store: a lock tells a living owner, and whoever opens the store next adopts
what a dead one left. A frame is a mark, the sort of its payload, its length, a checksum, and the payload. A torn or
damaged frame costs itself alone: reading goes on at the next mark.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mulligan.records import new_id

if sys.platform != "win32":
    import fcntl

MARK = b"\xf5m1"
"""Begins every frame. The digit is the version of the format."""
HEAD = struct.Struct("<3sBII")
SUFFIX = ".journal"
UNNAMED = ".begun"
"""The suffix of a journal that nobody holds yet."""
STALE = 3600.0
"""Seconds after which a journal without a name was left by a process that died while it was made."""
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
    """This process's own journal. `write` is called by one thread at a time.

    Where the system can promise the room beforehand, the file is written through memory: a copy of a few hundred
    bytes, which the kernel keeps whatever becomes of us. A system call would let go of the interpreter's lock, and with
    several threads each call would then wait for its turn. Where there is no such promise, a full disk would end the
    process, so there it is a system call all the same. So is it where the journal is to survive the machine
    (`is_lasting`): then whoever writes calls `sync` before it goes on.
    """

    def __init__(self, folder: Path, is_lasting: bool = False, full: int = sys.maxsize) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}-{new_id('j')}{SUFFIX}"
        self.name = self.path.stem
        self.offset = 0
        self.is_lasting = is_lasting
        self._appending = 0
        """How many frames are being appended: one, or more where a signal handler writes in the middle of it."""
        self._written = self._synced = 0
        """Where the frames end that are whole, and those that the death of the machine does not take any more."""
        self._syncing = threading.RLock()
        # Locked before it has its name: nobody can take it for an orphan in the moment between the two.
        unnamed = self.path.with_suffix(UNNAMED)
        self._file = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR | CLOSE_ON_EXEC, 0o600)
        self.memory: mmap.mmap | None = None
        self._room = 0
        """Where in memory there is no room any more."""
        self._full = full
        self.free = 0
        """Up to here, whoever holds the writers' lock may write by himself: there is room, and it is not full."""
        try:
            _lock(self._file)
            if not is_lasting and _can_promise(self._file, ROOM):
                self.memory = mmap.mmap(self._file, ROOM)
                self._room, self.free = ROOM, min(ROOM, full)
            unnamed.rename(self.path)
            if is_lasting:
                _settle_folder(folder)
        except BaseException:
            unnamed.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            self.abandon()
            raise

    def write(self, frame: bytes) -> int:
        """Appends a frame made by `framed` and answers where it ends."""
        # The place is taken first, with no call between: a signal handler may write in the middle of this.
        size = len(frame)
        start = self.offset
        self.offset = end = start + size
        try:
            memory = self.memory
            if memory is not None and end <= self._room:
                memory[start:end] = frame
            else:
                self._write_on(frame, start, end)
        except BaseException:
            if self.offset == end:
                self.offset = start
            raise
        return end

    def _write_on(self, frame: bytes, start: int, end: int) -> None:
        """The same where there is no room in memory, or no memory."""
        if self.memory is None:
            self._append(frame, start)
        else:
            self._grow(end)
            self.memory[start:end] = frame

    def _grow(self, end: int) -> None:
        room = end + ROOM
        os.posix_fallocate(self._file, 0, room)
        other = mmap.mmap(self._file, room)
        if self.memory is not None and room > self._room:  # unless a signal handler has made more room by now
            other, self.memory, self._room = self.memory, other, room
            self.free = min(room, self._full)
        other.close()

    def _append(self, frame: bytes, start: int) -> None:
        self._appending += 1
        try:
            # Half a frame is no frame: the next one is written over it.
            if os.pwrite(self._file, frame, start) != len(frame):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            self._appending -= 1
        if not self._appending:
            self._written = self.offset

    def sync(self, upto: int) -> None:
        """Answers when the frames up to this place survive the machine. Those who wait together are served together."""
        with self._syncing:
            if self._synced >= upto or self._file < 0:  # one that is closed was moved into another, or is kept
                return
            end = self._written  # asked before: what is written meanwhile may not be on the disk
            _settle(self._file)
            self._synced = end

    def since(self, start: int) -> bytes:
        """The frames from an offset on, as they were written."""
        if self.memory is None:
            return os.pread(self._file, self.offset - start, start)
        return self.memory[start : self.offset]

    def frames(self, start: int = 0) -> Iterator[Frame]:
        """What is in it from an offset on. By the handle: somebody may have removed the file."""
        with os.fdopen(os.dup(self._file), "rb") as file:
            yield from _frames(file, start)

    def close(self, remove: bool) -> None:
        """Lets go of the file; removes it when everything in it is in the store."""
        with self._syncing:  # the number of a file that is closed may be another's the next moment
            try:
                if remove:
                    self.path.unlink(missing_ok=True)
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Lets go of the handle alone: in a forked child, the file is the parent's."""
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        # A lock outlives the object it was taken for, and an orphan that is locked waits for nobody.
        if hasattr(self, "memory"):
            self.abandon()


CHUNK = 1024 * 1024
"""Bytes that are read at a time."""
ROOM = 1024 * 1024
"""Bytes that are promised at a time."""


def _settle(file: int) -> None:
    """Has the disk keep what was written. Where the system has two words for it, the one that is true."""
    if sys.platform == "darwin":
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)


def _settle_folder(folder: Path) -> None:
    """The same for the names in a folder, where these need it."""
    if hasattr(os, "O_DIRECTORY"):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | CLOSE_ON_EXEC)
        try:
            _settle(file)
        finally:
            os.close(file)


def _can_promise(file: int, room: int) -> bool:
    """Reserves room on the disk; whether this system can. A disk that is full is told as an error."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(file, 0, room)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV):
            return False
        raise
    return True


CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)


def framed(sort: int, payload: bytes) -> bytes:
    return HEAD.pack(MARK, sort, len(payload), zlib.crc32(payload, sort)) + payload


def frames(path: Path, start: int = 0) -> Iterator[Frame]:
    """The sound frames of a journal from an offset on.

    Read, not mapped: its owner may cut it off meanwhile, and to look into memory that is gone ends a process.
    """
    with path.open("rb") as file:
        beginning = file.read(len(MARK))
        is_ours = False
        for frame in _frames(file, start):
            is_ours = True
            yield frame
        # One with a frame of ours in it is ours, and only looks newer where it is damaged.
        if not is_ours and beginning[:2] == MARK[:2] and beginning[2:] > MARK[2:]:
            raise NewerJournal(f"{path} was written by a newer mulligan")


def _frames(file: BinaryIO, place: int) -> Iterator[Frame]:
    file.seek(place)
    data, at = b"", 0
    """What was read last, and how far it has been looked at; the latter is `place` in the file."""
    while True:
        if len(data) - at < HEAD.size:
            more = file.read(CHUNK)
            if not more:
                return
            data, at = data[at:] + more, 0
            continue
        mark, sort, length, checksum = HEAD.unpack_from(data, at)
        end = at + HEAD.size + length
        if mark == MARK and length <= LARGEST:
            if end > len(data) and (more := file.read(max(CHUNK, end - len(data)))):
                data, at = data[at:] + more, 0
                continue
            payload = data[at + HEAD.size : end]
            if len(payload) == length and zlib.crc32(payload, sort) == checksum:
                place += end - at
                at = end
                yield Frame(place, sort, payload)
                continue
        # Damaged, or the end: on to the next mark, or to where one may begin that is not read yet.
        found = data.find(MARK, at + 1)
        skipped = (found if found >= 0 else max(at + 1, len(data) - len(MARK) + 1)) - at
        place += skipped
        at += skipped


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
    _sweep(folder)
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            file = os.open(path, os.O_RDWR | CLOSE_ON_EXEC)
        except OSError:
            continue  # adopted by somebody else, just now; or not ours to adopt
        orphan = Orphan(path, file)
        try:
            if try_lock(file) and path.exists():
                yield orphan
        finally:
            orphan.close()


def _sweep(folder: Path) -> None:
    """Removes what was left by processes that died before their journal had a name, and so held nothing."""
    for path in folder.glob(f"*{UNNAMED}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE:
                path.unlink()


if sys.platform == "win32":
    # Best effort: there is no lock that goes with its process, and a file that is open cannot be removed anyway.

    def _lock(file: int) -> None:
        return

    def try_lock(file: int) -> bool:
        return True
else:

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def try_lock(file: int) -> bool:
        """Whether nobody else has it; then it is ours until it is closed, or this process dies."""
        try:
            _lock(file)
        except OSError:
            return False
        return True
