"""A record as a frame of a journal, and back.

A call that worked is told in short, without its texts: it is written before the caller goes on.
"""

from __future__ import annotations

import functools
import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from mulligan.events import AnyEvent, Kept, RunEnded
from mulligan.records import Run, decode, encode
from mulligan.remember.recording.journal import HEAD, MARK, Frame, framed
from mulligan.success import Form, Success, telling

log = logging.getLogger("mulligan")

EVENT, SUCCESS = 1, 4
"""The sorts of frames: an event as JSON, and a call that worked at once, in short."""
FORMS = 1000
"""Forms, and sorts of runs, that are remembered while frames are read."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
_facts = msgspec.msgpack.Decoder(
    tuple[msgspec.Raw, str, int, int | None, float, float, msgspec.Raw, list[Any]]  # as `success_frame` packs them
).decode
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


def records_of(found: Iterable[Frame]) -> Iterator[tuple[int, AnyEvent | Success]]:
    """Each record of a journal, and the offset at which its frame ends. A frame nobody can read is passed over.

    A call that was alone in its run is followed by the end of that run.
    """
    for offset, sort, payload in found:
        try:
            if sort == EVENT:
                yield offset, decode(payload, AnyEvent)  # type: ignore[arg-type]
                continue
            success, about = _success(payload)
            run = None if about is None else success.whole_run(about)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            log.warning("a damaged record of a journal was passed over: %s", error)
            continue
        yield offset, success
        if run is not None:
            yield offset, RunEnded(run)


def events_of(found: Iterable[Frame]) -> Iterator[tuple[int, AnyEvent]]:
    """The same, all of it as events."""
    for offset, record in records_of(found):
        yield offset, Kept([record])[0]


def _success(payload: bytes) -> tuple[Success, Run | None]:
    """A call that worked, and what its run has in common with others, where it was alone in one."""
    prefix, run, seq, parent, started, seconds, about, told = _facts(payload)
    form, names = _form(bytes(prefix))
    places = len(names)
    arguments = {name: _read(value) for name, value in zip(names, told[:places], strict=True)}
    if len(told) > places:
        own = zip(told[places::2], told[places + 1 :: 2], strict=True)
        arguments.update((name, _read(value)) for name, value in own)
    return Success(form, run, seq, parent, started, (), arguments, None, True, seconds), _about(bytes(about))


@functools.lru_cache(FORMS)
def _form(prefix: bytes) -> tuple[Form, Sequence[str]]:
    """What calls of a form have in common, and the names of the values that were given by place."""
    type, name, names, *server = _unpack(prefix)
    form = Form(type, name, server=server[0] if server else None)
    form.kept_name = name
    return form, names


@functools.lru_cache(FORMS)
def _about(told: bytes) -> Run | None:
    said = _unpack(told)
    if said is None:
        return None
    agent, environment, session, above = said
    return Run(id="", agent=agent, environment=environment, session=session, parent=above)


def _read(told: Any) -> Any:
    """A value as far as it was told: see `success.telling`."""
    if type(told) is list:
        return {"$str": told[0]}
    return {"$type": told} if type(told) is str else told
