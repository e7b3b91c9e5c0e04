"""Counters as few bytes, and the sum of many without building each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from mulligan.figures.counters import Cell, Outline, merge_counts
from mulligan.figures.histogram import Histogram, lanes_of


def _read(type: type, value: Any) -> Any:
    return Histogram.read(value)


_packed = msgspec.msgpack.Encoder(enc_hook=bytes)
_whole = msgspec.msgpack.Decoder(Cell, dec_hook=_read)


def pack(cell: Cell) -> bytes:
    """Counters as few bytes: those at zero are left out, and a version to come may add others."""
    return _packed.encode(cell)


def unpack(data: bytes) -> Cell:
    return _whole.decode(data)


_NUMBERS = tuple(field.name for field in msgspec.structs.fields(Outline) if field.type is int)
_Bare = msgspec.defstruct(
    "_Bare", [*((name, int, 0) for name in _NUMBERS), ("runs", dict[str, int], {}), ("seconds", bytes, b"")]
)
_bare = msgspec.msgpack.Decoder(_Bare)


def outline(packed: Iterable[bytes]) -> Outline:
    """The outline of the sum of packed cells: counter by counter, in a fraction of the time of adding up cells."""
    *numbers, runs, seconds = zip(*map(msgspec.structs.astuple, map(_bare.decode, packed)), strict=True)
    total = Outline()
    for name, counts in zip(_NUMBERS, numbers, strict=True):
        if any(counts):
            setattr(total, name, sum(counts))
    for of_some in filter(None, runs):
        merge_counts(total.runs, of_some, 1)
    total.seconds.lanes = sum(map(lanes_of, filter(None, seconds)))
    return total
