"""Import of journals into the store: full journals of this process, and orphaned ones of dead processes.

One unstorable record must not block the records after it. Dropped records are counted in the store, for all processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from mulligan.contract.store import Store
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import MulliganError, StoreError
from mulligan.core.log import get_logger
from mulligan.core.records import Run, new_id
from mulligan.journal import (
    JOURNAL_SUFFIX,
    SUCCESS_FRAME,
    Journal,
    NewerJournalError,
    OrphanedJournal,
    decode_events,
    encode_frame,
    find_orphaned,
)

log = get_logger(__name__)

BATCH_RECORDS = 4000
"""Records per store transaction."""
MAX_IMPORTED_BATCHES = 10
"""Batches imported before the worker checks the queue limits again."""
MAX_JOURNAL_BYTES = 256 * 1024 * 1024
"""Maximum size of all waiting journals. Above it the oldest successes are dropped and counted; above twice this size,
the oldest journals."""
KEY_VALUE_KIND, DROPPED_KEY = "recorder", "dropped"


AddCosts = Callable[[Sequence[AnyEvent]], Sequence[AnyEvent]]


def add_shipped_costs(events: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
    """Return the events with the costs of their steps, by the shipped prices."""
    from mulligan.core.prices import PriceTable  # lazy: most records have no cost

    return PriceTable().add_costs(events)


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


def append_storable(
    store: Store, tenant: str, events: Sequence[AnyEvent], journal: str, end_offset: int, add_costs: AddCosts
) -> int:
    """Append records with their costs, up to a journal offset, without unstorable ones. Return the number of those."""
    records = add_costs(events)
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


# Journals of this process


def import_batches(
    store: Store,
    tenant: str,
    journals: Sequence[Journal],
    end: int,
    count_dropped: Callable[[int], None],
    add_costs: AddCosts,
) -> int:
    """Import some batches of journals, up to the position `end`. Return the position up to which they are stored.

    A batch may span several journals. The offset is stored for the last one: of the others, ids prevent duplicates.
    """

    def read_unstored() -> Iterator[tuple[int, AnyEvent]]:
        for journal in journals:
            for offset, event in decode_events(journal.frames(store.offset(tenant, journal.name))):
                yield journal.first_position + offset, event

    batches = _batch_events(itertools.takewhile(lambda event: event[0] <= end, read_unstored()))
    for number, (batch, position) in enumerate(batches, start=1):
        last = next(journal for journal in reversed(journals) if journal.first_position < position)
        count_dropped(append_storable(store, tenant, batch, last.name, position - last.first_position, add_costs))
        if number >= MAX_IMPORTED_BATCHES:
            return position
    return end


def _batch_events(events: Iterable[tuple[int, AnyEvent]]) -> Iterator[tuple[list[AnyEvent], int]]:
    """Yield events in batches, with their end offset. Offsets cover whole frames, so no batch splits a frame."""
    batch: list[AnyEvent] = []
    end = 0
    for offset, event in events:
        if len(batch) >= BATCH_RECORDS and offset != end:
            yield batch, end
            batch = []
        batch.append(event)
        end = offset
    if batch:
        yield batch, end


def copy_without_successes(journal: Journal, start: int) -> tuple[Journal, int]:
    """Copy a journal from an offset on, without successes. Return the copy and the number of dropped successes."""
    new = Journal(journal.path.parent, journal.is_synced_to_disk)
    new.first_position, new.has_successes = journal.first_position, False
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


def recover_journals(store: Store, tenant: str, folder: Path, add_costs: AddCosts = add_shipped_costs) -> int:
    """Import the records of orphaned journals into the store. Return the number of newly stored records.

    `add_costs` adds the costs of steps, by the shipped prices by default. A journal that cannot be read or stored stays
    in the folder for a later attempt.
    """
    recovered_count = 0
    first_error: Exception | None = None
    orphans = find_orphaned(folder) if folder.is_dir() else ()
    for _, process_orphans in itertools.groupby(orphans, lambda orphan: orphan.name.partition("-")[0]):
        open_runs = OpenRuns()
        unfinished: list[OrphanedJournal] = []
        for orphan in process_orphans:
            try:
                recovered_count += _recover_journal(store, tenant, orphan, open_runs, add_costs)
                if open_runs.runs:  # a later journal may contain their end
                    unfinished.append(orphan)
                else:
                    orphan.remove()
            except NewerJournalError as error:
                log.warning("%s; left in place for that version", error)
            except OSError as error:
                log.warning("Cannot recover journal %s (%s); left in place", orphan.path, error.strerror or error)
            except StoreError:
                raise  # the store is unavailable: the other journals would fail too
            except Exception as error:  # noqa: BLE001 - one bad journal must not block the others
                first_error = first_error or error
        if unfinished:
            # Another process may have ended the run: a run can continue in a child process.
            ended = store.ended_runs(tenant, list(open_runs.runs))
            if ends := [open_runs.abandon(run) for id, run in open_runs.runs.items() if id not in ended]:
                store.append(tenant, ends, new_id("journal"), 1)
            for orphan in unfinished:
                orphan.remove()
    if first_error is not None:
        raise first_error
    return recovered_count


class OpenRuns:
    """The runs of orphaned journals that have not ended, and when their last call ended."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self._last_seen: dict[str, int] = {}

    def track(self, event: AnyEvent) -> None:
        if isinstance(event, RunStarted):
            self.runs[event.run.id] = event.run
        elif isinstance(event, RunEnded):
            self.runs.pop(event.run.id, None)
        elif isinstance(event, StepEnded) and event.step.run in self.runs:
            end = event.step.started_at + int(event.step.duration_seconds * 1000)
            self._last_seen[event.step.run] = max(end, self._last_seen.get(event.step.run, end))

    def abandon(self, run: Run) -> RunEnded:
        """Build the end event of a run whose process died: it ended with its last recorded call."""
        ended_at = self._last_seen.get(run.id, run.started_at)
        return RunEnded(msgspec.structs.replace(run, ended_at=ended_at, end_reason="abandoned"))


def _recover_journal(
    store: Store, tenant: str, orphan: OrphanedJournal, open_runs: OpenRuns, add_costs: AddCosts
) -> int:
    stored_offset = store.offset(tenant, orphan.name)

    def read_unstored() -> Iterator[tuple[int, AnyEvent]]:
        # Read from the start: an abandoned run may have started before the first record that is not stored yet.
        for offset, event in decode_events(orphan.frames()):
            open_runs.track(event)
            if offset > stored_offset:
                yield offset, event

    count = 0
    for batch, offset in _batch_events(read_unstored()):
        count += len(batch)
        if dropped_count := append_storable(store, tenant, batch, orphan.name, offset, add_costs):
            log.warning("Skipped %d unstorable records of %s", dropped_count, orphan.path)
            add_dropped(store, tenant, dropped_count)
    return count


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
