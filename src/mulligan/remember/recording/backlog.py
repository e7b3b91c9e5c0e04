"""Journals that were laid aside, the store being away or slow: bounded, thinned if there are too many, brought in."""

from __future__ import annotations

from collections.abc import Callable

from mulligan.events import AnyEvent
from mulligan.remember.recording.framing import SUCCESS, records_of
from mulligan.remember.recording.journal import Journal, framed
from mulligan.remember.recording.refusal import append_sound
from mulligan.remember.store import Store
from mulligan.success import Success

BATCH = 4000
"""Records that go into the store in one transaction."""
PORTION = 10
"""Batches that are brought in at a time: between them it is seen whether there is room for what comes meanwhile."""
JOURNAL_FULL = 256 * 1024 * 1024
"""Bytes that may wait in journals while the store is away. Beyond it the oldest successes are dropped and counted,
beyond twice as much, the oldest of everything."""
PARTS = 4
"""Journals in which so much waits: one that is a part of it is laid aside, and the oldest of these is thinned first."""


class Backlog:
    """The journals that wait, the oldest first; nothing of them is in memory."""

    def __init__(self, complain: Callable[[str, str], None]) -> None:
        self.journals: list[Journal] = []
        self._thinned: set[str] = set()
        self._kept: dict[str, int] = {}
        """Where the records end, in each of them, that are in the store."""
        self._complain = complain

    def lay_aside(self, journal: Journal, kept_upto: int) -> None:
        self.journals.append(journal)
        self._kept[journal.name] = kept_upto

    def thin(self, lose: Callable[[int], None]) -> None:
        """Drops the oldest successes of journals that were laid aside, and then the oldest of everything."""
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
        """A portion of the oldest."""
        oldest = self.journals[0]
        self._kept[oldest.name] = bring_in(store, tenant, oldest, oldest.offset, lose)
        if self._kept[oldest.name] >= oldest.offset:
            del self.journals[0], self._kept[oldest.name]
            self._thinned.discard(oldest.name)
            self.remove(oldest)

    def remove(self, journal: Journal) -> None:
        try:
            journal.close(remove=True)
        except OSError as error:  # kept, and known by its offset: nothing in it is doubled
            self._complain("journal", f"{journal.path} cannot be removed ({error})")


def bring_in(store: Store, tenant: str, journal: Journal, end: int, lose: Callable[[int], None]) -> int:
    """A portion of what is in a journal up to an offset and not in the store yet; up to where it is there now."""
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
    """A journal with what is in this one from an offset on, without the successes; and how many these were."""
    new = Journal(journal.path.parent, journal.is_lasting)
    lost = 0
    try:
        for frame in journal.frames(start):
            if frame.sort == SUCCESS:
                lost += 1
            else:
                new.write(framed(frame.sort, frame.payload))
        if new.is_lasting:
            new.sync(new.offset)  # before the other is removed
    except BaseException:
        new.close(remove=True)
        raise
    return new, lost
