"""Import of journals into the store: full journals of this process, and orphaned ones of dead processes.

One unstorable record must not block the records after it. Dropped records are counted in the store, for all processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import MulliganError, StoreError
from mulligan.core.log import log
from mulligan.core.records import Run, new_id
from mulligan.record.journal import (
    JOURNAL_SUFFIX,
    SUCCESS_FRAME,
    Journal,
    NewerJournalError,
    OrphanedJournal,
    decode_events,
    encode_frame,
    find_orphaned,
)
from mulligan.store.base import Store

BATCH_RECORDS = 4000
"""Records per store transaction."""
MAX_IMPORTED_BATCHES = 10
"""Batches imported before the worker checks the queue limits again."""
MAX_JOURNAL_BYTES = 256 * 1024 * 1024
"""Maximum size of all waiting journals. Above it the oldest successes are dropped and counted; above twice this size,
the oldest journals."""
JOURNALS_PER_LIMIT = 4
"""Journals that share the limit. A journal larger than one share moves to the backlog; the oldest is reduced first."""
KEY_VALUE_KIND, DROPPED_KEY = "recorder", "dropped"
WARNING_INTERVAL_SECONDS = 60.0


# Unstorable and dropped records


def find_unstorable(store: Store, tenant: str, batch: Sequence[Sequence[AnyEvent]]) -> set[int] | None:
    """Return the indexes of records that the store rejects one by one, or `None` if it rejects all of them.

    Each record is written under a new journal name. Its batch is written again later; ids prevent duplicates. Raise if
    the store becomes unavailable meanwhile, because that says nothing about a record.
    """
    rejected_indexes = [index for index, events in enumerate(batch) if not _is_storable(store, tenant, events)]
    if len(rejected_indexes) == len(batch):
        return None
    # Try the rejected records again: the store may have become available during the first round.
    return {index for index in rejected_indexes if not _is_storable(store, tenant, batch[index])}


def append_storable(store: Store, tenant: str, records: Sequence[AnyEvent], journal: str, end_offset: int) -> int:
    """Append records up to a journal offset, without unstorable ones. Return the number of unstorable records."""
    try:
        store.append(tenant, records, journal, end_offset)
    except MulliganError:
        raise
    except Exception:
        unstorable = find_unstorable(store, tenant, [[record] for record in records])
        if not unstorable:
            raise  # the store failed, not a record
        storable = [record for index, record in enumerate(records) if index not in unstorable]
        store.append(tenant, storable, journal, end_offset)
        return len(unstorable)
    return 0


def _is_storable(store: Store, tenant: str, events: Sequence[AnyEvent]) -> bool:
    try:
        store.append(tenant, events, new_id("journal"), 1)
    except MulliganError:
        raise
    except Exception:  # noqa: BLE001 - any other error is caused by this record
        return False
    return True


class DropCounter:
    """Dropped records of one process, and how many of them the store already counts."""

    def __init__(self) -> None:
        self.dropped = 0
        self._stored_count = 0
        self._last_warned_at: dict[str, float] = {}

    def warn_rate_limited(self, topic: str, message: str, queued_count: int) -> None:
        now = time.monotonic()
        if now - self._last_warned_at.get(topic, -WARNING_INTERVAL_SECONDS) >= WARNING_INTERVAL_SECONDS:
            self._last_warned_at[topic] = now
            log.warning("%s (queued=%d dropped=%d)", message, queued_count, self.dropped)

    def store_count(self, store: Store, tenant: str) -> None:
        """Add new drops to the count in the store, which `mulligan doctor` reports."""
        count = self.dropped
        if count > self._stored_count:
            add_dropped(store, tenant, count - self._stored_count)
            self._stored_count = count


def count_dropped(store: Store, tenant: str) -> int:
    """Return the number of dropped records of all processes that have reported theirs."""
    stored_count = store.get(tenant, KEY_VALUE_KIND, DROPPED_KEY)
    return int(stored_count) if stored_count is not None and stored_count.isdigit() else 0


def add_dropped(store: Store, tenant: str, count: int) -> None:
    store.put(tenant, KEY_VALUE_KIND, DROPPED_KEY, str(count_dropped(store, tenant) + count).encode())


class HookErrors(NamedTuple):
    """Number of hook errors and the last one. Hooks fail silently, so that they never disturb the coding agent."""

    error_count: int = 0
    last_error: str = ""
    at: int = 0


def read_hook_errors(folder: Path) -> HookErrors:
    """Read the error log files that hooks write to their folder."""
    lines = [line for name in ("faults.old", "faults") for line in _read_lines(folder / name)]
    if not lines:
        return HookErrors()
    timestamp, _, error = lines[-1].partition(" ")
    return HookErrors(len(lines), error, int(timestamp) if timestamp.isdigit() else 0)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("ascii", "replace").splitlines()
    except OSError:
        return []


# Full journals of this process


class Backlog:
    """Full journals waiting for the store, oldest first. Their records are on disk only."""

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self.journals: list[Journal] = []
        self._without_successes: set[str] = set()
        self._stored_offsets: dict[str, int] = {}
        """Offset up to which each journal is stored, by journal name."""
        self._warn = warn

    def add_journal(self, journal: Journal, stored_offset: int) -> None:
        self.journals.append(journal)
        self._stored_offsets[journal.name] = stored_offset

    def drop_oldest(self, count_dropped: Callable[[int], None]) -> None:
        """Drop the successes of the oldest journals, then whole journals, until the size limit holds."""
        while self.journals and self._size > MAX_JOURNAL_BYTES:
            old = next((journal for journal in self.journals if journal.name not in self._without_successes), None)
            if old is not None:
                self._warn(
                    "full", f"Journal {old.path} is full, dropping its successes: the store is unavailable or too slow"
                )
                new, dropped_count = copy_without_successes(old, self._stored_offsets[old.name])
                self._stored_offsets[new.name] = 0
                self.journals[self.journals.index(old)] = new
                self._without_successes.add(new.name)
            elif self._size > 2 * MAX_JOURNAL_BYTES:
                old = self.journals.pop(0)
                self._warn("full", f"Dropping journal {old.path}: the store is unavailable or too slow")
                dropped_count = sum(1 for _ in old.frames(self._stored_offsets[old.name]))
            else:
                return
            count_dropped(dropped_count)
            del self._stored_offsets[old.name]
            self.remove(old)

    @property
    def _size(self) -> int:
        return sum(journal.offset for journal in self.journals)

    def import_batch(self, store: Store, tenant: str, count_dropped: Callable[[int], None]) -> None:
        """Import some batches of the oldest journal. Remove it when it is fully stored."""
        oldest = self.journals[0]
        self._stored_offsets[oldest.name] = import_batch(store, tenant, oldest, oldest.offset, count_dropped)
        if self._stored_offsets[oldest.name] >= oldest.offset:
            del self.journals[0], self._stored_offsets[oldest.name]
            self._without_successes.discard(oldest.name)
            self.remove(oldest)

    def remove(self, journal: Journal) -> None:
        try:
            journal.close(remove=True)
        except OSError as error:  # harmless: the stored offset prevents duplicates
            self._warn("journal", f"Cannot remove journal {journal.path} ({error})")


def import_batch(store: Store, tenant: str, journal: Journal, end: int, count_dropped: Callable[[int], None]) -> int:
    """Import some batches of a journal, up to the offset `end`. Return the offset up to which it is stored."""
    batch: list[AnyEvent] = []
    stored_offset = batch_count = 0
    for offset, record in decode_events(journal.frames(store.offset(tenant, journal.name))):
        if offset > end:
            break
        if len(batch) >= BATCH_RECORDS and offset != stored_offset:
            count_dropped(append_storable(store, tenant, batch, journal.name, stored_offset))
            batch = []
            batch_count += 1
            if batch_count >= MAX_IMPORTED_BATCHES:
                return stored_offset
        batch.append(record)
        stored_offset = offset
    if batch:
        count_dropped(append_storable(store, tenant, batch, journal.name, stored_offset))
    return end


def copy_without_successes(journal: Journal, start: int) -> tuple[Journal, int]:
    """Copy a journal from an offset on, without successes. Return the copy and the number of dropped successes."""
    new = Journal(journal.path.parent, journal.is_synced_to_disk)
    dropped_count = 0
    try:
        for frame in journal.frames(start):
            if frame.type == SUCCESS_FRAME:
                dropped_count += 1
            else:
                new.write(encode_frame(frame.type, frame.payload))
        if new.is_synced_to_disk:
            new.sync(new.offset)  # before the caller removes the original
    except BaseException:
        new.close(remove=True)
        raise
    return new, dropped_count


# Orphaned journals


def recover_journals(store: Store, tenant: str, folder: Path) -> int:
    """Import the records of orphaned journals into the store. Return the number of newly stored records.

    A journal that cannot be read or stored stays in the folder for a later attempt.
    """
    recovered_count = 0
    first_error: Exception | None = None
    if not folder.is_dir():
        return 0
    for orphan in find_orphaned(folder):
        try:
            recovered_count += _recover_journal(store, tenant, orphan)
            orphan.remove()
        except NewerJournalError as error:
            log.warning("%s; left in place for that version", error)
        except OSError as error:
            log.warning("Cannot recover journal %s (%s); left in place", orphan.path, error.strerror or error)
        except StoreError:
            raise  # the store is unavailable: the other journals would fail too
        except Exception as error:  # noqa: BLE001 - one bad journal must not block the others
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return recovered_count


def forget_removed_journals(store: Store, tenant: str, folder: Path) -> None:
    """Delete the stored offsets of journals that no longer exist. Journal names are random and never reused."""
    stored_names = store.journals(tenant)  # before the files: a journal file exists before its offset is stored
    removed_names = [
        name for name in stored_names if _is_process_journal(name) and not (folder / f"{name}{JOURNAL_SUFFIX}").exists()
    ]
    if removed_names:
        store.release(tenant, removed_names)


def _is_process_journal(name: str) -> bool:
    """Return whether a name belongs to a process journal or to a batch without one. Imports use other names."""
    return name.startswith("journal_") or (name.partition("-j_")[0].isdigit() and "-j_" in name)


def _recover_journal(store: Store, tenant: str, orphan: OrphanedJournal) -> int:
    stored_offset = store.offset(tenant, orphan.name)
    count = 0
    offset = stored_offset
    open_runs: dict[str, Run] = {}
    last_seen: dict[str, int] = {}
    batch: list[AnyEvent] = []
    # Read from the start: an abandoned run may have started before the first record that is not stored yet.
    for end, record in decode_events(orphan.frames()):
        if isinstance(record, RunStarted):
            open_runs[record.run.id] = record.run
        elif open_runs:
            if isinstance(record, RunEnded):
                open_runs.pop(record.run.id, None)
            elif isinstance(record, StepEnded) and record.step.run in open_runs:
                last_seen[record.step.run] = record.step.started_at + int(record.step.duration_seconds * 1000)
        if end <= stored_offset:
            continue
        # Records of one frame stay in one batch: the offset covers both.
        if len(batch) >= BATCH_RECORDS and end != offset:
            _store_batch(store, tenant, batch, orphan, offset)
            batch = []
        offset = end
        batch.append(record)
        count += 1
    if batch:
        _store_batch(store, tenant, batch, orphan, offset)
    # Another process may have ended the run: a run can continue in a child process.
    ended = store.ended_runs(tenant, list(open_runs)) if open_runs else set()
    ends = [_to_abandoned_end(run, last_seen) for run in open_runs.values() if run.id not in ended]
    if ends:
        store.append(tenant, ends, orphan.name, offset + 1)  # +1: a repeated offset would be skipped
    return count


def _store_batch(store: Store, tenant: str, batch: Sequence[AnyEvent], orphan: OrphanedJournal, offset: int) -> None:
    if dropped_count := append_storable(store, tenant, batch, orphan.name, offset):
        log.warning("Skipped %d unstorable records of %s", dropped_count, orphan.path)
        add_dropped(store, tenant, dropped_count)


def _to_abandoned_end(run: Run, last_seen: dict[str, int]) -> RunEnded:
    """Build the end event of a run whose process died: it ended with its last recorded call."""
    return RunEnded(
        msgspec.structs.replace(run, ended_at=last_seen.get(run.id, run.started_at), end_reason="abandoned")
    )
