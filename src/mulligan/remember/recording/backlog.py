"""Backlog of full journals that wait while the store is unavailable or slow, bounded in size."""

from __future__ import annotations

from collections.abc import Callable

from mulligan.events import AnyEvent
from mulligan.remember.recording.framing import SUCCESS, records_of
from mulligan.remember.recording.journal import Journal, framed
from mulligan.remember.recording.refusal import append_sound
from mulligan.remember.store import Store
from mulligan.success import Success

BATCH = 4000
"""Records per store transaction."""
PORTION = 10
"""Batches imported before the worker checks the queue limits again."""
JOURNAL_FULL = 256 * 1024 * 1024
"""Maximum size of all waiting journals. Above it the oldest successes are dropped and counted; above twice this size,
the oldest journals."""
PARTS = 4
"""Journals that share the limit. A journal larger than one share moves to the backlog; the oldest is reduced first."""


class Backlog:
    """Full journals waiting for the store, oldest first. Their records are on disk only."""

    def __init__(self, complain: Callable[[str, str], None]) -> None:
        self.journals: list[Journal] = []
        self._thinned: set[str] = set()
        self._kept: dict[str, int] = {}
        """Offset up to which each journal is stored, by journal name."""
        self._complain = complain

    def lay_aside(self, journal: Journal, kept_upto: int) -> None:
        self.journals.append(journal)
        self._kept[journal.name] = kept_upto

    def thin(self, lose: Callable[[int], None]) -> None:
        """Drop the successes of the oldest journals, then whole journals, until the size limit holds."""
        while self.journals and self._size > JOURNAL_FULL:
            old = next((each for each in self.journals if each.name not in self._thinned), None)
            if old is not None:
                self._complain("full", f"{old.path} is full; its successes are dropped: the store is away, or slower")
                new, lost = thinned(old, self._kept[old.name])
                self._kept[new.name] = 0
                self.journals[self.journals.index(old)] = new
                self._thinned.add(new.name)
            elif self._size > 2 * JOURNAL_FULL:
                old = self.journals.pop(0)
                self._complain("full", f"{old.path} is dropped: the store is away, or slower")
                lost = sum(1 for _ in old.frames(self._kept[old.name]))
            else:
                return
            lose(lost)
            del self._kept[old.name]
            self.remove(old)

    @property
    def _size(self) -> int:
        return sum(each.offset for each in self.journals)

    def bring_in(self, store: Store, tenant: str, lose: Callable[[int], None]) -> None:
        """Import some batches of the oldest journal. Remove it when it is fully stored."""
        oldest = self.journals[0]
        self._kept[oldest.name] = bring_in(store, tenant, oldest, oldest.offset, lose)
        if self._kept[oldest.name] >= oldest.offset:
            del self.journals[0], self._kept[oldest.name]
            self._thinned.discard(oldest.name)
            self.remove(oldest)

    def remove(self, journal: Journal) -> None:
        try:
            journal.close(remove=True)
        except OSError as error:  # harmless: the stored offset prevents duplicates
            self._complain("journal", f"{journal.path} cannot be removed ({error})")


def bring_in(store: Store, tenant: str, journal: Journal, end: int, lose: Callable[[int], None]) -> int:
    """Import some batches of a journal, up to the offset `end`. Return the offset up to which it is stored."""
    batch: list[AnyEvent | Success] = []
    upto = count = 0
    for offset, record in records_of(journal.frames(store.offset(tenant, journal.name))):
        if offset > end:
            break
        if len(batch) >= BATCH and offset != upto:
            lose(append_sound(store, tenant, batch, journal.name, upto))
            batch = []
            count += 1
            if count >= PORTION:
                return upto
        batch.append(record)
        upto = offset
    if batch:
        lose(append_sound(store, tenant, batch, journal.name, upto))
    return end


def thinned(journal: Journal, start: int) -> tuple[Journal, int]:
    """Copy a journal from an offset on, without successes. Return the copy and the number of dropped successes."""
    new = Journal(journal.path.parent, journal.is_lasting)
    lost = 0
    try:
        for frame in journal.frames(start):
            if frame.sort == SUCCESS:
                lost += 1
            else:
                new.write(framed(frame.sort, frame.payload))
        if new.is_lasting:
            new.sync(new.offset)  # before the caller removes the original
    except BaseException:
        new.close(remove=True)
        raise
    return new, lost
