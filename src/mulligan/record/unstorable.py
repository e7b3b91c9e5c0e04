"""Detection of unstorable records, as opposed to a store that is broken.

One unstorable record must not block the records after it, whether they come from the queue or a journal.
"""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.core.events import AnyEvent, StoredEvents
from mulligan.core.failure import MulliganError
from mulligan.core.fast_path import SuccessRecord
from mulligan.core.records import new_id
from mulligan.store.base import Store


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


def append_storable(
    store: Store, tenant: str, records: Sequence[AnyEvent | SuccessRecord], journal: str, end_offset: int
) -> int:
    """Append records up to a journal offset, without unstorable ones. Return the number of unstorable records."""
    try:
        store.append(tenant, StoredEvents(records), journal, end_offset)
    except MulliganError:
        raise
    except Exception:
        unstorable = find_unstorable(store, tenant, [StoredEvents([record]) for record in records])
        if not unstorable:
            raise  # the store failed, not a record
        storable = [record for index, record in enumerate(records) if index not in unstorable]
        store.append(tenant, StoredEvents(storable), journal, end_offset)
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
