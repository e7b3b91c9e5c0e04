"""Journal: append-only write-ahead file of one process, written before a call returns.

Journals are stored beside the store. A file lock marks a living owner; the next process that opens the store recovers
orphaned journals. A frame has a mark, payload type, length, checksum and payload. After a torn or damaged frame,
reading continues at the next mark. A frame holds an event as JSON, or a successful call in a compact encoding without
texts, because it is written before the call returns.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec

from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.fast_path import SuccessRecord, journal_values
from mulligan.core.log import get_logger
from mulligan.core.records import Run, Step, StepType, decode, encode, new_id

log = get_logger(__name__)

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
EVENT_FRAME, SUCCESS_FRAME = 1, 4
"""Frame types: an event as JSON, and a call that succeeded at the first attempt, in the compact encoding."""
READ_CHUNK_BYTES = 1024 * 1024
"""Bytes per read."""
PREALLOCATED_BYTES = 1024 * 1024
"""Bytes preallocated at a time."""
MAX_CACHED_PREFIXES = 1000
"""Call prefixes and run descriptions cached while frames are decoded."""
OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags of every open file. Windows would otherwise translate line ends inside frames."""


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

    def __init__(self, folder: Path, is_synced_to_disk: bool = False) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}-{new_id('j')}{JOURNAL_SUFFIX}"
        self.name = self.path.stem
        self.offset = 0
        self.first_position = 0
        """Position where this journal starts among all journals of the process."""
        self.has_successes = True
        self.is_synced_to_disk = is_synced_to_disk
        self._appends_in_progress = 0
        """Appends in progress; more than one if a signal handler writes during a write."""
        self._written_end = self._synced_end = 0
        """End offset of the complete frames, and of those synced to disk."""
        self._sync_lock = threading.RLock()
        # Lock before renaming: otherwise another process could take the file for an orphaned journal.
        unnamed = self.path.with_suffix(UNNAMED_SUFFIX)
        self._file = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR | OPEN_FLAGS, 0o600)
        self.memory: mmap.mmap | None = None
        self._mapped_end = 0
        """End offset of the mapped memory."""
        try:
            _lock(self._file)
            if not is_synced_to_disk and _preallocate(self._file, PREALLOCATED_BYTES):
                self.memory = mmap.mmap(self._file, PREALLOCATED_BYTES)
                self._mapped_end = PREALLOCATED_BYTES
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
        mapping.close()

    def _append(self, frame: bytes, start: int) -> None:
        self._appends_in_progress += 1
        try:
            # A partial frame is invalid: the next frame overwrites it.
            if write_at(self._file, frame, start) != len(frame):
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

    @property
    def end_position(self) -> int:
        return self.first_position + self.offset

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


def sync_to_disk(file: int) -> None:
    """Flush a file to disk. On macOS only F_FULLFSYNC reaches the disk."""
    if sys.platform == "darwin":
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)


def _sync_folder_to_disk(folder: Path) -> None:
    """Flush the entries of a folder to disk, on systems that need it."""
    if hasattr(os, "O_DIRECTORY"):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | OPEN_FLAGS)
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
        # Maximum payload size. A larger length means a damaged frame.
        if mark == FRAME_MARK and length <= 64 * 1024 * 1024:
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


# Records as frames

_pack = msgspec.msgpack.Encoder().encode
_pack_header = FRAME_HEADER.pack
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Seconds = Annotated[float, msgspec.Meta(gt=-(2**43), lt=2**43)]
"""Range that every store supports; it excludes NaN."""
_decode_success = msgspec.msgpack.Decoder(  # the fields that `success_frame` packs
    tuple[msgspec.Raw, str, _Number, _Number | None, _Seconds, _Seconds, msgspec.Raw, list[Any]]
).decode
_decode_prefix = msgspec.msgpack.Decoder(tuple[StepType, str, list[str]]).decode
_THREE_ITEM_MARK = _pack((0, 0, 0))[0]
_decode_prefix_with_server = msgspec.msgpack.Decoder(tuple[StepType, str, list[str], str | None]).decode
_decode_standalone_run = msgspec.msgpack.Decoder(tuple[str | None, str | None, str | None, str | None] | None).decode


def event_frame(event: AnyEvent) -> bytes:
    return encode_frame(EVENT_FRAME, encode(event))


def success_frame(success: SuccessRecord, journal_form: Sequence[Any] | None = None) -> bytes:
    """Encode a success without its texts: a prefix shared by all calls of its template, then the fields of this call.

    `journal_form` is the result of `journal_values` if the caller has already computed it.
    """
    template, standalone_run = success.template, success.standalone_run
    if journal_form is None:
        journal_form = journal_values(template, success.keywords, success.positional)
    facts = (
        template.journal_prefixes[len(success.positional)],  # type: ignore[index] # None raises: the caller prepares the template
        success.run,
        success.seq,
        success.parent,
        success.started_at,
        success.duration_seconds,
        None if standalone_run is None else standalone_run.encoded,
        journal_form,
    )
    try:
        payload = _pack(facts)
    except (OverflowError, TypeError):  # a number too large for the format is replaced by its type name
        payload = _pack((*facts[:-1], [_fit_to_format(value) for value in journal_form or ()]))
    # Inlined `encode_frame`: this runs in every call.
    return _pack_header(FRAME_MARK, SUCCESS_FRAME, len(payload), zlib.crc32(payload, SUCCESS_FRAME)) + payload


def _fit_to_format(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)  # a str subclass: only the plain text can be packed
    is_large = type(value) is int and not -(2**63) <= value < 2**64
    return "int" if is_large else value


def decode_events(frames: Iterable[JournalFrame]) -> Iterator[tuple[int, AnyEvent]]:
    """Yield each record as an event, with the end offset of its frame. Undecodable frames are logged and skipped.

    A standalone call is followed by the end event of its run.
    """
    for offset, frame_type, payload in frames:
        try:
            events = _decode_event(payload) if frame_type == EVENT_FRAME else _decode_success_events(payload)
        except Exception as error:  # noqa: BLE001 - a damaged record must not block those after it
            log.warning("Skipped a damaged journal record: %s", error)
            continue
        for event in events:
            yield offset, event


def _decode_event(payload: bytes) -> tuple[AnyEvent]:
    event: AnyEvent = decode(payload, AnyEvent)  # type: ignore[arg-type]
    if isinstance(event, RunStarted | RunEnded):
        for timestamp in (event.run.started_at, event.run.ended_at or 0):
            if abs(timestamp) >= 2**53:  # journal recovery would use it as the end of the run
                raise ValueError("an invalid timestamp")
    return (event,)


def _decode_success_events(payload: bytes) -> Sequence[AnyEvent]:
    """Decode a successful call as its step, and the end of its run if it was a standalone call."""
    prefix, run, seq, parent, started, seconds, run_bytes, values = _decode_success(payload)
    type, name, names, server = _load_prefix(bytes(prefix))
    count = len(names)
    arguments = {name: _restore_journal_value(value) for name, value in zip(names, values[:count], strict=True)}
    extra_values = zip(values[count::2], values[count + 1 :: 2], strict=True)
    arguments.update((name, _restore_journal_value(value)) for name, value in extra_values)
    step = Step(
        run=run, seq=seq, call=seq, parent=parent, type=type, name=name, server=server, arguments=arguments,
        started_at=int(started * 1000), duration_seconds=seconds,
    )  # fmt: skip
    shared_run = _load_standalone_run(bytes(run_bytes))
    if shared_run is None:
        return (StepEnded(step),)
    end = step.started_at + int(seconds * 1000)
    ended = msgspec.structs.replace(shared_run, id=run, started_at=step.started_at, ended_at=end, end_reason="finished")
    return StepEnded(step), RunEnded(ended)


@functools.lru_cache(MAX_CACHED_PREFIXES)
def _load_prefix(prefix: bytes) -> tuple[StepType, str, Sequence[str], str | None]:
    """Return the type and name of a call, the names of its positional values, and its server."""
    if prefix[0] == _THREE_ITEM_MARK:
        return (*_decode_prefix(prefix), None)
    return _decode_prefix_with_server(prefix)


@functools.lru_cache(MAX_CACHED_PREFIXES)
def _load_standalone_run(encoded_run: bytes) -> Run | None:
    run_fields = _decode_standalone_run(encoded_run)
    if run_fields is None:
        return None
    agent, environment, session, parent = run_fields
    return Run(id="", agent=agent or "", environment=environment, session=session, parent=parent)


def _restore_journal_value(value: Any) -> Any:
    """Restore a value as far as `journal_values` encoded it: texts have only their length."""
    if type(value) is list:
        (length,) = value
        return {"$str": length}
    return {"$type": value} if type(value) is str else value


# Journals of dead processes


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
            file = os.open(path, os.O_RDWR | OPEN_FLAGS)
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


def seek_and_write(file: int, data: bytes, offset: int) -> int:
    """Write at an offset, where the system has no call for it."""
    os.lseek(file, offset, os.SEEK_SET)
    return os.write(file, data)


write_at: Callable[[int, bytes, int], int] = getattr(os, "pwrite", seek_and_write)

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
