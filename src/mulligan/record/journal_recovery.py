"""Recovery of orphaned journals: import the records of dead processes into the store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import StoreError
from mulligan.core.fast_path import SuccessRecord
from mulligan.core.records import Run
from mulligan.record.backlog import BATCH_RECORDS
from mulligan.record.dropped_records import add_dropped
from mulligan.record.journal import JOURNAL_SUFFIX, NewerJournalError, OrphanedJournal, find_orphaned
from mulligan.record.journal_framing import decode_records
from mulligan.record.unstorable import append_storable
from mulligan.store.base import Store

log = logging.getLogger("mulligan")


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
    batch: list[AnyEvent | SuccessRecord] = []
    # Read from the start: an abandoned run may have started before the first record that is not stored yet.
    for end, record in decode_records(orphan.frames()):
        if isinstance(record, RunStarted):
            open_runs[record.run.id] = record.run
        elif open_runs:
            if isinstance(record, RunEnded):
                open_runs.pop(record.run.id, None)
            elif (run_and_end := _run_and_end_of(record)) is not None and run_and_end[0] in open_runs:
                last_seen[run_and_end[0]] = run_and_end[1]
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


def _store_batch(
    store: Store, tenant: str, batch: Sequence[AnyEvent | SuccessRecord], orphan: OrphanedJournal, offset: int
) -> None:
    if dropped_count := append_storable(store, tenant, batch, orphan.name, offset):
        log.warning("Skipped %d unstorable records of %s", dropped_count, orphan.path)
        add_dropped(store, tenant, dropped_count)


def _run_and_end_of(record: AnyEvent | SuccessRecord) -> tuple[str, int] | None:
    """Return the run id and the end time of a call, or `None` for other records."""
    if isinstance(record, SuccessRecord):
        return record.run, int(record.started_at * 1000) + int(record.duration_seconds * 1000)
    if isinstance(record, StepEnded):
        return record.step.run, record.step.started_at + int(record.step.duration_seconds * 1000)
    return None


def _to_abandoned_end(run: Run, last_seen: dict[str, int]) -> RunEnded:
    """Build the end event of a run whose process died: it ended with its last recorded call."""
    return RunEnded(
        msgspec.structs.replace(run, ended_at=last_seen.get(run.id, run.started_at), end_reason="abandoned")
    )
