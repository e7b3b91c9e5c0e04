"""Journal: append-only write-ahead file of one process, written before a call returns.

Journals are stored beside the store. A file lock marks a living owner; the next process that opens the store recovers
orphaned journals. A frame has a mark, payload type, length, checksum and payload. After a torn or damaged frame,
reading continues at the next mark.
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
"""First bytes of every frame. The digit is the format version."""
HEAD = struct.Struct("<3sBII")
SUFFIX = ".journal"
UNNAMED = ".begun"
"""Suffix of a journal that is not locked yet."""
STALE = 3600.0
"""Age after which an unnamed journal is a leftover of a process that died while creating it."""
LARGEST = 64 * 1024 * 1024
"""Maximum payload size. A larger length means a damaged frame."""


class Frame(NamedTuple):
    """One frame of a journal, with its end offset."""

    offset: int
    sort: int
    payload: bytes


class NewerJournal(Exception):
    """A journal written by a newer version of mulligan."""


class Journal:
    """Journal of this process. Only one thread may call `write` at a time.

    If the file system can preallocate space, the file is written through a memory mapping: copying a few hundred bytes,
    which the kernel keeps even if the process dies. A system call would release the GIL, and threads would then queue
    for it. Without preallocation, a full disk would kill the process on a mapped write, so it uses system calls. It
    also uses them if records must survive a machine crash (`is_synced_to_disk`); the writer must then call `sync`.
    """

    def __init__(self, folder: Path, is_lasting: bool = False, full: int = sys.maxsize) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}-{new_id('j')}{SUFFIX}"
        self.name = self.path.stem
        self.offset = 0
        self.is_lasting = is_lasting
        self._appending = 0
        """Appends in progress; more than one if a signal handler writes during a write."""
        self._written = self._synced = 0
        """End offset of the complete frames, and of those synced to disk."""
        self._syncing = threading.RLock()
        # Lock before renaming: otherwise another process could take the file for an orphaned journal.
        unnamed = self.path.with_suffix(UNNAMED)
        self._file = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR | CLOSE_ON_EXEC, 0o600)
        self.memory: mmap.mmap | None = None
        self._room = 0
        """End offset of the mapped memory."""
        self._full = full
        self.free = 0
        """Offset up to which the holder of the queue lock may write into the mapping directly."""
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
        """Append a frame built by `encode_frame`. Return its end offset."""
        # Reserve the range first, without a function call in between: a signal handler may write during this.
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
        """Write without a mapping, or after growing it."""
        if self.memory is None:
            self._append(frame, start)
        else:
            self._grow(end)
            self.memory[start:end] = frame

    def _grow(self, end: int) -> None:
        room = end + ROOM
        os.posix_fallocate(self._file, 0, room)
        other = mmap.mmap(self._file, room)
        if self.memory is not None and room > self._room:  # a signal handler may have grown it
            other, self.memory, self._room = self.memory, other, room
            self.free = min(room, self._full)
        other.close()

    def _append(self, frame: bytes, start: int) -> None:
        self._appending += 1
        try:
            # A partial frame is invalid: the next frame overwrites it.
            if os.pwrite(self._file, frame, start) != len(frame):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            self._appending -= 1
        if not self._appending:
            self._written = self.offset

    def sync(self, upto: int) -> None:
        """Block until the frames up to this offset are on disk. One fsync serves all waiting threads."""
        with self._syncing:
            if self._synced >= upto or self._file < 0:  # closed: its records were moved or stored
                return
            end = self._written  # read before fsync: later writes may not be covered
            _settle(self._file)
            self._synced = end

    def since(self, start: int) -> bytes:
        """Return the raw bytes from an offset to the end."""
        if self.memory is None:
            return os.pread(self._file, self.offset - start, start)
        return self.memory[start : self.offset]

    def frames(self, start: int = 0) -> Iterator[Frame]:
        """Yield the frames from an offset on. Reads through the open handle, because the file may have been removed."""
        with os.fdopen(os.dup(self._file), "rb") as file:
            yield from _frames(file, start)

    def close(self, remove: bool) -> None:
        """Close the journal. With `remove`, delete its file: all of its records are stored."""
        with self._syncing:  # a closed file descriptor may be reused at once: no fsync may run meanwhile
            try:
                if remove:
                    self.path.unlink(missing_ok=True)
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Close the handle but keep the file. In a forked child, the file belongs to the parent."""
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        # An open handle keeps the lock, and a locked journal is never recovered.
        if hasattr(self, "memory"):
            self.abandon()


CHUNK = 1024 * 1024
"""Bytes per read."""
ROOM = 1024 * 1024
"""Bytes preallocated at a time."""


def _settle(file: int) -> None:
    """Flush a file to disk. On macOS only F_FULLFSYNC reaches the disk."""
    if sys.platform == "darwin":
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)


def _settle_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, on systems that need it."""
    if hasattr(os, "O_DIRECTORY"):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | CLOSE_ON_EXEC)
        try:
            _settle(file)
        finally:
            os.close(file)


def _can_promise(file: int, room: int) -> bool:
    """Reserve disk space. Return whether the file system supports it. Raise if the disk is full."""
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
    """Yield the valid frames of a journal file from an offset on.

    Reads instead of mapping the file: the owner may truncate it, and access to truncated mapped memory kills a process.
    """
    with path.open("rb") as file:
        beginning = file.read(len(MARK))
        is_ours = False
        for frame in _frames(file, start):
            is_ours = True
            yield frame
        # A journal with a valid frame has our version: a newer mark at its start is damage.
        if not is_ours and beginning[:2] == MARK[:2] and beginning[2:] > MARK[2:]:
            raise NewerJournal(f"{path} was written by a newer mulligan")


def _frames(file: BinaryIO, place: int) -> Iterator[Frame]:
    file.seek(place)
    data, at = b"", 0
    """Buffer of read bytes and the index in it that corresponds to the file offset."""
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
        # Damaged frame or end of the file: skip to the next mark, or to the bytes where a partial mark may start.
        found = data.find(MARK, at + 1)
        skipped = (found if found >= 0 else max(at + 1, len(data) - len(MARK) + 1)) - at
        place += skipped
        at += skipped


class Orphan:
    """Journal of a dead process, locked against concurrent recovery."""

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
    """Yield the orphaned journals of a folder. Each is locked while the caller handles it."""
    _sweep(folder)
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            file = os.open(path, os.O_RDWR | CLOSE_ON_EXEC)
        except OSError:
            continue  # recovered by another process meanwhile, or no permission
        orphan = Orphan(path, file)
        try:
            if try_lock(file) and path.exists():
                yield orphan
        finally:
            orphan.close()


def _sweep(folder: Path) -> None:
    """Delete expired unnamed journals. They are empty: their process died before it locked them."""
    for path in folder.glob(f"*{UNNAMED}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE:
                path.unlink()


if sys.platform == "win32":
    # Best effort: there is no lock that ends with its process, and an open file cannot be removed.

    def _lock(file: int) -> None:
        return

    def try_lock(file: int) -> bool:
        return True
else:

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def try_lock(file: int) -> bool:
        """Lock a file without blocking. Return whether that succeeded. The lock lasts until close or process exit."""
        try:
            _lock(file)
        except OSError:
            return False
        return True
