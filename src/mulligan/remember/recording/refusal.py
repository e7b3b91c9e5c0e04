"""Which records a store can never keep, told from a store that keeps nothing at all.

One such record must not hold up all that follow it, wherever they come from: memory, or a journal.
"""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.events import AnyEvent, Kept
from mulligan.failure import MulliganError
from mulligan.records import new_id
from mulligan.remember.store import Store
from mulligan.success import Success


def refused(store: Store, tenant: str, batch: Sequence[Sequence[AnyEvent]]) -> set[int] | None:
    """The places of those that a store takes in no company, and alone neither; None where it takes nothing at all.

    Each is offered under a journal of its own: the batch it belongs to comes again, and what it holds is known by its
    ids. Raises where the store goes away in the middle, which says nothing of a record.
    """
    alone = [place for place, events in enumerate(batch) if not _is_kept(store, tenant, events)]
    if len(alone) == len(batch):
        return None
    # Once more, now that it has taken something: it may have come back in the middle of the first round.
    return {place for place in alone if not _is_kept(store, tenant, batch[place])}


def append_sound(store: Store, tenant: str, records: Sequence[AnyEvent | Success], journal: str, upto: int) -> int:
    """Keeps what a journal has up to an offset, without what can never be kept; how many records that is."""
    try:
        store.append(tenant, Kept(records), journal, upto)
    except MulliganError:
        raise
    except Exception:
        bad = refused(store, tenant, [Kept([each]) for each in records])
        if not bad:
            raise  # it is the store that is broken, or was
        sound = [each for place, each in enumerate(records) if place not in bad]
        store.append(tenant, Kept(sound), journal, upto)
        return len(bad)
    return 0


def _is_kept(store: Store, tenant: str, events: Sequence[AnyEvent]) -> bool:
    try:
        store.append(tenant, events, new_id("journal"), 1)
    except MulliganError:
        raise
    except Exception:  # noqa: BLE001 - whatever it is, it is this record's
        return False
    return True
