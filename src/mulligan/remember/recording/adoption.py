"""Recovery of orphaned journals: import the records of dead processes into the store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mulligan.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.failure import StoreError
from mulligan.records import Run
from mulligan.remember.recording.backlog import BATCH
from mulligan.remember.recording.framing import records_of
from mulligan.remember.recording.journal import SUFFIX, NewerJournal, Orphan, orphans
from mulligan.remember.recording.losses import add_dropped
from mulligan.remember.recording.refusal import append_sound
from mulligan.remember.store import Store
from mulligan.success import Success

log = logging.getLogger("mulligan")


def adopt(store: Store, tenant: str, folder: Path) -> int:
    """Import the records of orphaned journals into the store. Return the number of newly stored records.

    A journal that cannot be read or stored stays in the folder for a later attempt.
    """
    adopted = 0
    refused: Exception | None = None
    if not folder.is_dir():
        return 0
    for orphan in orphans(folder):
        try:
            adopted += _adopted(store, tenant, orphan)
            orphan.remove()
        except NewerJournal as error:
            log.warning("%s; it was left for it", error)
        except OSError as error:
            log.warning("%s cannot be adopted (%s); it was left", orphan.path, error.strerror or error)
        except StoreError:
            raise  # the store is unavailable: the other journals would fail too
        except Exception as error:  # noqa: BLE001 - one bad journal must not block the others
            refused = refused or error
    if refused is not None:
        raise refused
    return adopted


def release(store: Store, tenant: str, folder: Path) -> None:
    """Delete the stored offsets of journals that no longer exist. Journal names are random and never reused."""
    known = store.journals(tenant)  # before the files: a journal file exists before its offset is stored
    gone = [name for name in known if _is_ours(name) and not (folder / f"{name}{SUFFIX}").exists()]
    if gone:
        store.release(tenant, gone)


def _is_ours(name: str) -> bool:
    """Return whether a name belongs to a process journal or to a batch without one. Imports use other names."""
    return name.startswith("journal_") or (name.partition("-j_")[0].isdigit() and "-j_" in name)


def _adopted(store: Store, tenant: str, orphan: Orphan) -> int:
    known = store.offset(tenant, orphan.name)
    count = 0
    offset = known
    open_runs: dict[str, Run] = {}
    last_seen: dict[str, int] = {}
    batch: list[AnyEvent | Success] = []
    # Read from the start: an abandoned run may have started before the first record that is not stored yet.
    for end, record in records_of(orphan.frames()):
        if isinstance(record, RunStarted):
            open_runs[record.run.id] = record.run
        elif open_runs:
            if isinstance(record, RunEnded):
                open_runs.pop(record.run.id, None)
            elif (seen := _seen(record)) is not None and seen[0] in open_runs:
                last_seen[seen[0]] = seen[1]
        if end <= known:
            continue
        # Records of one frame stay in one batch: the offset covers both.
        if len(batch) >= BATCH and end != offset:
            _keep(store, tenant, batch, orphan, offset)
            batch = []
        offset = end
        batch.append(record)
        count += 1
    if batch:
        _keep(store, tenant, batch, orphan, offset)
    # Another process may have ended the run: a run can continue in a child process.
    ended = store.ended(tenant, list(open_runs)) if open_runs else set()
    ends = [_abandoned(run, last_seen) for run in open_runs.values() if run.id not in ended]
    if ends:
        store.append(tenant, ends, orphan.name, offset + 1)  # +1: a repeated offset would be skipped
    return count


def _keep(store: Store, tenant: str, batch: Sequence[AnyEvent | Success], orphan: Orphan, offset: int) -> None:
    if lost := append_sound(store, tenant, batch, orphan.name, offset):
        log.warning("%d records of %s can never be kept, and were passed over", lost, orphan.path)
        add_dropped(store, tenant, lost)


def _seen(record: AnyEvent | Success) -> tuple[str, int] | None:
    """Return the run id and the end time of a call, or `None` for other records."""
    if isinstance(record, Success):
        return record.run, int(record.started * 1000) + int(record.seconds * 1000)
    if isinstance(record, StepEnded):
        return record.step.run, record.step.started + int(record.step.seconds * 1000)
    return None


def _abandoned(run: Run, last_seen: dict[str, int]) -> RunEnded:
    """Build the end event of a run whose process died: it ended with its last recorded call."""
    return RunEnded(msgspec.structs.replace(run, ended=last_seen.get(run.id, run.started), end="abandoned"))
