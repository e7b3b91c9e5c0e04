"""What is in a journal, as events; and what the dead left in theirs, brought into the store."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mulligan.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.failure import StoreError
from mulligan.records import Run, decode, encode
from mulligan.remember.recording.journal import (
    HEAD,
    MARK,
    SUFFIX,
    Frame,
    Journal,
    NewerJournal,
    Orphan,
    framed,
    frames,
    orphans,
)
from mulligan.remember.store import Store
from mulligan.success import Form, Success, telling

log = logging.getLogger("mulligan")

EVENT, SUCCESS = 1, 4
"""The sorts of frames: an event as JSON, and a call that worked at once, in short."""
BATCH = 1000

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
_head = HEAD.pack
_checksum = zlib.crc32


def event_frame(event: AnyEvent) -> bytes:
    return framed(EVENT, encode(event))


def success_frame(success: Success, told: Sequence[Any] | None = None) -> bytes:
    """A success without its texts: the prefix says what all calls of its form share, the rest is its own.

    `told` is what `telling` makes of its values, where that was done.
    """
    form, alone = success.form, success.alone
    if told is None:
        told = telling(form, success.named, success.given)
    facts = (
        form.prefixes[len(success.given)],  # type: ignore[index] # it is known by now
        success.run,
        success.seq,
        success.parent,
        success.started,
        success.seconds,
        None if alone is None else alone.told,
        told,
    )
    try:
        payload = _pack(facts)
    except (OverflowError, TypeError):  # a number too large for the format is told by its type
        payload = _pack((*facts[:-1], [_small(value) for value in told or ()]))
    return _head(MARK, SUCCESS, len(payload), _checksum(payload, SUCCESS)) + payload


def _small(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)  # a name may be of a class of its own
    is_large = type(value) is int and not -(2**63) <= value < 2**64
    return "int" if is_large else value


def events_of(found: Iterable[Frame]) -> Iterator[tuple[int, AnyEvent]]:
    """Each event of a journal, and the offset at which its frame ends. A frame nobody can read is passed over."""
    for frame in found:
        try:
            events = [decode(frame.payload, AnyEvent)] if frame.sort == EVENT else _success(frame.payload)  # type: ignore[arg-type]
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            log.warning("a damaged record of a journal was passed over: %s", error)
            continue
        for event in events:
            yield frame.offset, event


def _success(payload: bytes) -> list[AnyEvent]:
    (type, name, names, *of), run, seq, parent, started, seconds, about, told = _unpack(payload)
    places = len(names)
    arguments = {name: _read(value) for name, value in zip(names, told[:places], strict=True)}
    arguments.update((name, _read(value)) for name, value in zip(told[places::2], told[places + 1 :: 2], strict=True))
    form = Form(type, name, server=of[0] if of else None)
    success = Success(form, run, seq, parent, started, (), {}, None, seconds=seconds)
    events: list[AnyEvent] = [StepEnded(success.step(name, arguments, None))]
    if about is not None:
        agent, environment, session, above = about
        alone = Run(id=run, agent=agent, environment=environment, session=session, parent=above)
        events.append(RunEnded(success.whole_run(alone)))
    return events


def _read(told: Any) -> Any:
    """A value as far as it was told: see `success.telling`."""
    if type(told) is list:
        return {"$str": told[0]}
    return {"$type": told} if type(told) is str else told


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


def adopt(store: Store, tenant: str, folder: Path) -> int:
    """Brings what dead processes left in their journals into the store; how many events were not there yet.

    A journal that cannot be read, or that the store does not take, is left where it is, for whoever comes next.
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
            raise  # it is away, for the others too
        except Exception as error:  # noqa: BLE001 - of this one: the others need not wait for it
            refused = refused or error
    if refused is not None:
        raise refused
    return adopted


def release(store: Store, tenant: str, folder: Path) -> None:
    """Lets the store forget journals that are gone: their names are made of chance, and come never again."""
    known = store.journals(tenant)  # asked before the files are: one has its file before it has anything in the store
    gone = [name for name in known if _is_ours(name) and not (folder / f"{name}{SUFFIX}").exists()]
    if gone:
        store.release(tenant, gone)


def _is_ours(name: str) -> bool:
    """Whether it is the name of a process's journal, or of a batch that was in none; an import has names of its own."""
    return name.startswith("journal_") or (name.partition("-j_")[0].isdigit() and "-j_" in name)


def _adopted(store: Store, tenant: str, orphan: Orphan) -> int:
    known = store.offset(tenant, orphan.name)
    count = 0
    offset = known
    open_runs: dict[str, Run] = {}
    last_seen: dict[str, int] = {}
    batch: list[AnyEvent] = []
    # From the beginning: a run may have begun before what is new here, and been cut off after it.
    for end, event in events_of(orphan.frames()):
        match event:
            case RunStarted(run):
                open_runs[run.id] = run
            case RunEnded(run):
                open_runs.pop(run.id, None)
            case StepEnded(step):
                last_seen[step.run] = step.started + int(step.seconds * 1000)
        if end <= known:
            continue
        # Two events of one frame stay in one batch: the offset says that both are kept.
        if len(batch) >= BATCH and end != offset:
            store.append(tenant, batch, orphan.name, offset)
            batch = []
        offset = end
        batch.append(event)
        count += 1
    if batch:
        store.append(tenant, batch, orphan.name, offset)
    # Another process may have ended one: a run may go on in a child.
    ended = store.ended(tenant, list(open_runs)) if open_runs else set()
    ends = [_abandoned(run, last_seen) for run in open_runs.values() if run.id not in ended]
    if ends:
        store.append(tenant, ends, orphan.name, offset + 1)  # one byte on: it is news, even where all else was kept
    return count


def _abandoned(run: Run, last_seen: dict[str, int]) -> RunEnded:
    """Begun here and ended nowhere: it ended with its process, when that was last heard of."""
    return RunEnded(msgspec.structs.replace(run, ended=last_seen.get(run.id, run.started), end="abandoned"))
