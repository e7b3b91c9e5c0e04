"""Backlog of full journals that wait while the store is unavailable or slow, bounded in size."""

from __future__ import annotations

from collections.abc import Callable

from mulligan.core.events import AnyEvent
from mulligan.core.fast_path import SuccessRecord
from mulligan.record.journal import Journal, encode_frame
from mulligan.record.journal_framing import SUCCESS_FRAME, decode_records
from mulligan.record.unstorable import append_storable
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
    batch: list[AnyEvent | SuccessRecord] = []
    stored_offset = batch_count = 0
    for offset, record in decode_records(journal.frames(store.offset(tenant, journal.name))):
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
