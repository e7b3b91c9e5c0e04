"""Detection of unstorable records, as opposed to a store that is broken.

One unstorable record must not block the records after it, whether they come from the queue or a journal.
"""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.events import AnyEvent, Kept
from mulligan.failure import MulliganError
from mulligan.records import new_id
from mulligan.remember.store import Store
from mulligan.success import Success


def refused(store: Store, tenant: str, batch: Sequence[Sequence[AnyEvent]]) -> set[int] | None:
    """Return the indexes of records that the store rejects one by one, or `None` if it rejects all of them.

    Each record is written under a new journal name. Its batch is written again later; ids prevent duplicates. Raise if
    the store becomes unavailable meanwhile, because that says nothing about a record.
    """
    alone = [place for place, events in enumerate(batch) if not _is_kept(store, tenant, events)]
    if len(alone) == len(batch):
        return None
    # Try the rejected records again: the store may have become available during the first round.
    return {place for place in alone if not _is_kept(store, tenant, batch[place])}


def append_sound(store: Store, tenant: str, records: Sequence[AnyEvent | Success], journal: str, upto: int) -> int:
    """Append records up to a journal offset, without unstorable ones. Return the number of unstorable records."""
    try:
        store.append(tenant, Kept(records), journal, upto)
    except MulliganError:
        raise
    except Exception:
        bad = refused(store, tenant, [Kept([each]) for each in records])
        if not bad:
            raise  # the store failed, not a record
        sound = [each for place, each in enumerate(records) if place not in bad]
        store.append(tenant, Kept(sound), journal, upto)
        return len(bad)
    return 0


def _is_kept(store: Store, tenant: str, events: Sequence[AnyEvent]) -> bool:
    try:
        store.append(tenant, events, new_id("journal"), 1)
    except MulliganError:
        raise
    except Exception:  # noqa: BLE001 - any other error is caused by this record
        return False
    return True
