"""Journals that were laid aside while the store was away: bounded, thinned when there are too many, then brought in."""

from __future__ import annotations

from collections.abc import Callable

from mulligan.events import AnyEvent, Kept
from mulligan.remember.recording.framing import SUCCESS, records_of
from mulligan.remember.recording.journal import Journal, framed, frames
from mulligan.remember.store import Store
from mulligan.success import Success

BATCH = 4000
"""Records that go into the store in one transaction."""
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
        self._complain = complain

    def thin(self, lose: Callable[[int], None]) -> None:
        """Drops the oldest successes of journals that were laid aside, and then the oldest of everything."""
        while self.journals and self._size > JOURNAL_FULL:
            old = next((each for each in self.journals if each.name not in self._thinned), None)
            if old is not None:
                self._complain("full", f"{old.path} is full; its successes are dropped: the store is away")
                new, lost = thinned(old)
                self.journals[self.journals.index(old)] = new
                self._thinned.add(new.name)
            elif self._size > 2 * JOURNAL_FULL:
                old = self.journals.pop(0)
                self._complain("full", f"{old.path} is dropped: the store is away")
                lost = sum(1 for _ in frames(old.path))
            else:
                return
            lose(lost)
            self.remove(old)

    @property
    def _size(self) -> int:
        return sum(each.offset for each in self.journals)

    def bring_in(self, store: Store, tenant: str) -> None:
        while self.journals:
            bring_in(store, tenant, self.journals[0], self.journals[0].offset)
            self.remove(self.journals.pop(0))
        self._thinned.clear()

    def remove(self, journal: Journal) -> None:
        try:
            journal.close(remove=True)
        except OSError as error:  # kept, and known by its offset: nothing in it is doubled
            self._complain("journal", f"{journal.path} cannot be removed ({error})")


def bring_in(store: Store, tenant: str, journal: Journal, end: int) -> None:
    """What is in a journal up to an offset, into the store, as far as it is not there yet."""
    batch: list[AnyEvent | Success] = []
    upto = 0
    for offset, record in records_of(frames(journal.path, store.offset(tenant, journal.name))):
        if offset > end:
            break
        if len(batch) >= BATCH and offset != upto:
            store.append(tenant, Kept(batch), journal.name, upto)
            batch = []
        batch.append(record)
        upto = offset
    if batch:
        store.append(tenant, Kept(batch), journal.name, upto)


def thinned(journal: Journal) -> tuple[Journal, int]:
    """A journal without the successes of this one, beside it; and how many these were."""
    new = Journal(journal.path.parent, journal.is_lasting)
    lost = 0
    try:
        for frame in frames(journal.path):
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
