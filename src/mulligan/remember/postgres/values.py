"""Conversion of values for PostgreSQL: escaped characters, integers, and columns of rows as arrays."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

from psycopg import Connection
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import NumericBinaryLoader, NumericLoader
from psycopg.types.string import StrBinaryDumper, StrDumper, TextBinaryLoader, TextLoader

# PostgreSQL stores neither NUL characters nor lone surrogates in texts. Each is replaced by a character at the end of
# Unicode's private use area, and restored when it is read.
_NUL, _LOW, _HIGH = 0x10F000, 0xD800, 0xDFFF
_SHIFT = 0x10F800 - _LOW
_OUT = {0: _NUL, **{code: code + _SHIFT for code in range(_LOW, _HIGH + 1)}}
_BACK = {there: here for here, there in _OUT.items()}
_STRANGE = re.compile("[\x00\ud800-\udfff]")
_STANDING_IN = re.compile(f"[{chr(_NUL)}{chr(_LOW + _SHIFT)}-{chr(_HIGH + _SHIFT)}]")


def kept(text: str) -> str:
    """Replace the characters that PostgreSQL cannot store."""
    return text.translate(_OUT) if _STRANGE.search(text) else text


def read(text: str) -> str:
    """Restore the replaced characters."""
    return text.translate(_BACK) if _STANDING_IN.search(text) else text


class _Dumper(StrDumper):
    def dump(self, obj: str) -> Any:
        return super().dump(kept(obj))


class _BinaryDumper(StrBinaryDumper):
    def dump(self, obj: str) -> Any:
        return super().dump(kept(obj))


class _Loader(TextLoader):
    def load(self, data: Any) -> Any:
        text = str(data, "utf-8")  # all sessions use UTF-8
        return text if text.isascii() else read(text)


class _BinaryLoader(TextBinaryLoader):
    load = _Loader.load


class _WholeLoader(NumericLoader):
    """Loads numeric values as int: PostgreSQL returns sums of integers as numeric."""

    def load(self, data: Any) -> Any:
        return int(super().load(data))


class _WholeBinaryLoader(NumericBinaryLoader):
    def load(self, data: Any) -> Any:
        return int(super().load(data))


# Many rows are passed as one binary array per column, in a single statement. psycopg's own list adaptation inspects
# each member; here the column type is known.

_TEXT, _WHOLE, _BLOB = 25, 20, 17
_HEAD = struct.Struct("!iiIii")
_SIZE = struct.Struct("!i")
_NOTHING = _SIZE.pack(-1)


class Column:
    """The values of one column for many rows."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values


class Texts(Column):
    __slots__ = ()


class Wholes(Column):
    __slots__ = ()


class Blobs(Column):
    __slots__ = ()


COLUMNS: dict[int, tuple[type[Column], str]] = {
    _TEXT: (Texts, "text"),
    _WHOLE: (Wholes, "bigint"),
    _BLOB: (Blobs, "bytea"),
}
"""Column types by PostgreSQL's type id."""


def _array(of: int, values: Sequence[bytes | None]) -> bytes:
    size = _SIZE.pack
    parts: list[bytes] = [_HEAD.pack(1, None in values, of, len(values), 1)]
    for value in values:
        parts += (_NOTHING,) if value is None else (size(len(value)), value)
    return b"".join(parts)


def _texts(values: Sequence[str | None]) -> bytes:
    if _STRANGE.search("".join([value for value in values if value])):
        values = [value and kept(value) for value in values]
    return _array(_TEXT, [None if value is None else value.encode() for value in values])


def _wholes(values: Sequence[int | None]) -> bytes:
    if None in values:
        return _array(_WHOLE, [None if value is None else value.to_bytes(8, "big", signed=True) for value in values])
    count = len(values)
    members = chain.from_iterable(zip(repeat(8, count), values, strict=True))
    return _HEAD.pack(1, 0, _WHOLE, count, 1) + struct.pack("!" + "iq" * count, *members)


def _blobs(values: Sequence[bytes | None]) -> bytes:
    return _array(_BLOB, values)


def _dumper(number: int, packed: Callable[[Any], bytes]) -> type[Dumper]:
    class Packed(Dumper):
        format = Format.BINARY
        oid = number

        def dump(self, obj: Column) -> bytes:
            return packed(obj.values)

    return Packed


_DUMPERS = {Texts: _dumper(1009, _texts), Wholes: _dumper(1016, _wholes), Blobs: _dumper(1001, _blobs)}


def adapted(made: Connection[Any]) -> None:
    """Register the adapters for texts, integer sums and columns on a connection."""
    for kind, dumper in _DUMPERS.items():
        made.adapters.register_dumper(kind, dumper)
    made.adapters.register_dumper(str, _Dumper)
    made.adapters.register_dumper(str, _BinaryDumper)
    made.adapters.register_loader("text", _Loader)
    made.adapters.register_loader("text", _BinaryLoader)
    made.adapters.register_loader("numeric", _WholeLoader)
    made.adapters.register_loader("numeric", _WholeBinaryLoader)
