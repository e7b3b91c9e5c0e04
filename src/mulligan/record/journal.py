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

from mulligan.core.records import new_id

if sys.platform != "win32":
    import fcntl

FRAME_MARK = b"\xf5m1"
"""First bytes of every frame. The digit is the format version."""
FRAME_HEADER = struct.Struct("<3sBII")
JOURNAL_SUFFIX = ".journal"
UNNAMED_SUFFIX = ".begun"
"""Suffix of a journal that is not locked yet."""
UNNAMED_EXPIRY_SECONDS = 3600.0
"""Age after which an unnamed journal is a leftover of a process that died while creating it."""
MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Maximum payload size. A larger length means a damaged frame."""


class JournalFrame(NamedTuple):
    """One frame of a journal, with its end offset."""

    offset: int
    type: int
    payload: bytes


class NewerJournalError(Exception):
    """A journal written by a newer version of mulligan."""


class Journal:
    """Journal of this process. Only one thread may call `write` at a time.

    If the file system can preallocate space, the file is written through a memory mapping: copying a few hundred bytes,
    which the kernel keeps even if the process dies. A system call would release the GIL, and threads would then queue
    for it. Without preallocation, a full disk would kill the process on a mapped write, so it uses system calls. It
    also uses them if records must survive a machine crash (`is_synced_to_disk`); the writer must then call `sync`.
    """

    def __init__(self, folder: Path, is_synced_to_disk: bool = False, max_bytes: int = sys.maxsize) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}-{new_id('j')}{JOURNAL_SUFFIX}"
        self.name = self.path.stem
        self.offset = 0
        self.is_synced_to_disk = is_synced_to_disk
        self._appends_in_progress = 0
        """Appends in progress; more than one if a signal handler writes during a write."""
        self._written_end = self._synced_end = 0
        """End offset of the complete frames, and of those synced to disk."""
        self._sync_lock = threading.RLock()
        # Lock before renaming: otherwise another process could take the file for an orphaned journal.
        unnamed = self.path.with_suffix(UNNAMED_SUFFIX)
        self._file = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR | CLOSE_ON_EXEC, 0o600)
        self.memory: mmap.mmap | None = None
        self._mapped_end = 0
        """End offset of the mapped memory."""
        self._max_bytes = max_bytes
        self.direct_write_end = 0
        """Offset up to which the holder of the queue lock may write into the mapping directly."""
        try:
            _lock(self._file)
            if not is_synced_to_disk and _preallocate(self._file, PREALLOCATED_BYTES):
                self.memory = mmap.mmap(self._file, PREALLOCATED_BYTES)
                self._mapped_end, self.direct_write_end = PREALLOCATED_BYTES, min(PREALLOCATED_BYTES, max_bytes)
            unnamed.rename(self.path)
            if is_synced_to_disk:
                _sync_folder_to_disk(folder)
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
            if memory is not None and end <= self._mapped_end:
                memory[start:end] = frame
            else:
                self._write_slowly(frame, start, end)
        except BaseException:
            if self.offset == end:
                self.offset = start
            raise
        return end

    def _write_slowly(self, frame: bytes, start: int, end: int) -> None:
        """Write without a mapping, or after growing it."""
        if self.memory is None:
            self._append(frame, start)
        else:
            self._grow(end)
            self.memory[start:end] = frame

    def _grow(self, end: int) -> None:
        capacity = end + PREALLOCATED_BYTES
        os.posix_fallocate(self._file, 0, capacity)
        mapping = mmap.mmap(self._file, capacity)
        if self.memory is not None and capacity > self._mapped_end:  # a signal handler may have grown it
            mapping, self.memory, self._mapped_end = self.memory, mapping, capacity
            self.direct_write_end = min(capacity, self._max_bytes)
        mapping.close()

    def _append(self, frame: bytes, start: int) -> None:
        self._appends_in_progress += 1
        try:
            # A partial frame is invalid: the next frame overwrites it.
            if os.pwrite(self._file, frame, start) != len(frame):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            self._appends_in_progress -= 1
        if not self._appends_in_progress:
            self._written_end = self.offset

    def sync(self, end_offset: int) -> None:
        """Block until the frames up to this offset are on disk. One fsync serves all waiting threads."""
        with self._sync_lock:
            if self._synced_end >= end_offset or self._file < 0:  # closed: its records were moved or stored
                return
            end = self._written_end  # read before fsync: later writes may not be covered
            sync_to_disk(self._file)
            self._synced_end = end

    def read_from(self, start: int) -> bytes:
        """Return the raw bytes from an offset to the end."""
        if self.memory is None:
            return os.pread(self._file, self.offset - start, start)
        return self.memory[start : self.offset]

    def frames(self, start: int = 0) -> Iterator[JournalFrame]:
        """Yield the frames from an offset on. Reads through the open handle, because the file may have been removed."""
        with os.fdopen(os.dup(self._file), "rb") as file:
            yield from _iterate_frames(file, start)

    def close(self, remove: bool) -> None:
        """Close the journal. With `remove`, delete its file: all of its records are stored."""
        with self._sync_lock:  # a closed file descriptor may be reused at once: no fsync may run meanwhile
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


READ_CHUNK_BYTES = 1024 * 1024
"""Bytes per read."""
PREALLOCATED_BYTES = 1024 * 1024
"""Bytes preallocated at a time."""


def sync_to_disk(file: int) -> None:
    """Flush a file to disk. On macOS only F_FULLFSYNC reaches the disk."""
    if sys.platform == "darwin":
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)


def _sync_folder_to_disk(folder: Path) -> None:
    """Flush the entries of a folder to disk, on systems that need it."""
    if hasattr(os, "O_DIRECTORY"):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | CLOSE_ON_EXEC)
        try:
            sync_to_disk(file)
        finally:
            os.close(file)


def _preallocate(file: int, size: int) -> bool:
    """Reserve disk space. Return whether the file system supports it. Raise if the disk is full."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV):
            return False
        raise
    return True


CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)


def encode_frame(frame_type: int, payload: bytes) -> bytes:
    return FRAME_HEADER.pack(FRAME_MARK, frame_type, len(payload), zlib.crc32(payload, frame_type)) + payload


def read_frames(path: Path, start: int = 0) -> Iterator[JournalFrame]:
    """Yield the valid frames of a journal file from an offset on.

    Reads instead of mapping the file: the owner may truncate it, and access to truncated mapped memory kills a process.
    """
    with path.open("rb") as file:
        beginning = file.read(len(FRAME_MARK))
        has_valid_frame = False
        for frame in _iterate_frames(file, start):
            has_valid_frame = True
            yield frame
        # A journal with a valid frame has our version: a newer mark at its start is damage.
        if not has_valid_frame and beginning[:2] == FRAME_MARK[:2] and beginning[2:] > FRAME_MARK[2:]:
            raise NewerJournalError(f"Journal {path} was written by a newer mulligan")


def _iterate_frames(file: BinaryIO, offset: int) -> Iterator[JournalFrame]:
    file.seek(offset)
    data, index = b"", 0
    """Buffer of read bytes and the index in it that corresponds to the file offset."""
    while True:
        if len(data) - index < FRAME_HEADER.size:
            more = file.read(READ_CHUNK_BYTES)
            if not more:
                return
            data, index = data[index:] + more, 0
            continue
        mark, frame_type, length, checksum = FRAME_HEADER.unpack_from(data, index)
        end = index + FRAME_HEADER.size + length
        if mark == FRAME_MARK and length <= MAX_FRAME_BYTES:
            if end > len(data) and (more := file.read(max(READ_CHUNK_BYTES, end - len(data)))):
                data, index = data[index:] + more, 0
                continue
            payload = data[index + FRAME_HEADER.size : end]
            if len(payload) == length and zlib.crc32(payload, frame_type) == checksum:
                offset += end - index
                index = end
                yield JournalFrame(offset, frame_type, payload)
                continue
        # Damaged frame or end of the file: skip to the next mark, or to the bytes where a partial mark may start.
        next_mark = data.find(FRAME_MARK, index + 1)
        skipped = (next_mark if next_mark >= 0 else max(index + 1, len(data) - len(FRAME_MARK) + 1)) - index
        offset += skipped
        index += skipped


class OrphanedJournal:
    """Journal of a dead process, locked against concurrent recovery."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self.name = path.stem
        self._file = file

    def frames(self, start: int = 0) -> Iterator[JournalFrame]:
        return read_frames(self.path, start)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._file)


def find_orphaned(folder: Path) -> Iterator[OrphanedJournal]:
    """Yield the orphaned journals of a folder. Each is locked while the caller handles it."""
    _remove_unnamed(folder)
    for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}")):
        try:
            file = os.open(path, os.O_RDWR | CLOSE_ON_EXEC)
        except OSError:
            continue  # recovered by another process meanwhile, or no permission
        orphan = OrphanedJournal(path, file)
        try:
            if try_lock(file) and path.exists():
                yield orphan
        finally:
            orphan.close()


def _remove_unnamed(folder: Path) -> None:
    """Delete expired unnamed journals. They are empty: their process died before it locked them."""
    for path in folder.glob(f"*{UNNAMED_SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > UNNAMED_EXPIRY_SECONDS:
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
