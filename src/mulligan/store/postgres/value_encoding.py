"""Conversion of values for PostgreSQL: escaped characters, integers, and columns of rows as arrays."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, ClassVar

from psycopg import Connection
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import NumericBinaryLoader, NumericLoader
from psycopg.types.string import StrBinaryDumper, StrDumper, TextBinaryLoader, TextLoader

# PostgreSQL stores neither NUL characters nor lone surrogates in texts. Each is replaced by a character at the end of
# Unicode's private use area, and restored when it is read.
_NUL, _LOW, _HIGH = 0x10F000, 0xD800, 0xDFFF
_SHIFT = 0x10F800 - _LOW
_ESCAPES = {0: _NUL, **{code: code + _SHIFT for code in range(_LOW, _HIGH + 1)}}
_UNESCAPES = {there: here for here, there in _ESCAPES.items()}
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ESCAPED = re.compile(f"[{chr(_NUL)}{chr(_LOW + _SHIFT)}-{chr(_HIGH + _SHIFT)}]")


def escape_text(text: str) -> str:
    """Replace the characters that PostgreSQL cannot store."""
    return text.translate(_ESCAPES) if _UNSTORABLE.search(text) else text


class _TextDumper(StrDumper):
    def dump(self, obj: str) -> Any:
        return super().dump(escape_text(obj))


class _BinaryTextDumper(StrBinaryDumper):
    def dump(self, obj: str) -> Any:
        return super().dump(escape_text(obj))


class _EscapedTextLoader(TextLoader):
    def load(self, data: Any) -> Any:
        text = str(data, "utf-8")  # all sessions use UTF-8
        return text.translate(_UNESCAPES) if not text.isascii() and _ESCAPED.search(text) else text


class _EscapedBinaryTextLoader(TextBinaryLoader):
    load = _EscapedTextLoader.load


class _IntegerLoader(NumericLoader):
    """Loads numeric values as int: PostgreSQL returns sums of integers as numeric."""

    def load(self, data: Any) -> Any:
        return int(super().load(data))


class _BinaryIntegerLoader(NumericBinaryLoader):
    def load(self, data: Any) -> Any:
        return int(super().load(data))


# The keys of a lookup are passed as one binary array per column. psycopg's own list adaptation inspects each member;
# here the column type is known.

_HEAD = struct.Struct("!iiIii")
_SIZE = struct.Struct("!i")
_NULL = _SIZE.pack(-1)


class Column:
    """The values of one column for many rows."""

    sql_type: ClassVar[str]
    type_id: ClassVar[int]
    array_type_id: ClassVar[int]

    __slots__ = ("values",)

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def pack(self) -> bytes:
        return self._join(list(map(_member, self.values)))

    def _join(self, members: Sequence[bytes]) -> bytes:
        return _HEAD.pack(1, _NULL in members, self.type_id, len(members), 1) + b"".join(members)


class BlobColumn(Column):
    __slots__ = ()
    sql_type, type_id, array_type_id = "bytea", 17, 1001


class TextColumn(Column):
    __slots__ = ()
    sql_type, type_id, array_type_id = "text", 25, 1009

    def pack(self) -> bytes:
        distinct = set(self.values)  # tenants and names repeat, so most rows cost only a dictionary lookup
        is_escaped = _UNSTORABLE.search("".join(filter(None, distinct))) is not None
        members = {
            value: _member(None if value is None else (escape_text(value) if is_escaped else value).encode())
            for value in distinct
        }
        return self._join([members[value] for value in self.values])


class IntegerColumn(Column):
    __slots__ = ()
    sql_type, type_id, array_type_id = "bigint", 20, 1016

    def pack(self) -> bytes:
        if None in self.values:
            encoded = (None if value is None else value.to_bytes(8, "big", signed=True) for value in self.values)
            return self._join(list(map(_member, encoded)))
        count = len(self.values)
        members = chain.from_iterable(zip(repeat(8, count), self.values, strict=True))
        return _HEAD.pack(1, 0, self.type_id, count, 1) + struct.pack("!" + "iq" * count, *members)


# The values of inserted rows have the types of their columns, NULL included: the server plans a statement once,
# whatever its values are.


class ColumnValue(bytes):
    """The binary form of one value."""

    __slots__ = ()
    type_id: ClassVar[int]
    NULL: ClassVar[ColumnValue]

    @classmethod
    def pack_all(cls, values: Sequence[Any]) -> list[ColumnValue]:
        return [cls.NULL if value is None else cls(value) for value in values]


class BlobValue(ColumnValue):
    __slots__ = ()
    type_id = 17


class TextValue(ColumnValue):
    __slots__ = ()
    type_id = 25

    @classmethod
    def pack_all(cls, values: Sequence[Any]) -> list[ColumnValue]:
        # Names repeat, so most rows cost only a dictionary lookup.
        packed = {value: cls.NULL if value is None else cls(escape_text(value).encode()) for value in set(values)}
        return [packed[value] for value in values]


class IntegerValue(ColumnValue):
    __slots__ = ()
    type_id = 20

    @classmethod
    def pack_all(cls, values: Sequence[Any]) -> list[ColumnValue]:
        return [cls.NULL if value is None else cls(value.to_bytes(8, "big", signed=True)) for value in values]


VALUE_TYPES = (BlobValue, TextValue, IntegerValue)
for _value_type in VALUE_TYPES:
    _value_type.NULL = _value_type()


def _value_dumper(value_type: type[ColumnValue]) -> type[Dumper]:
    null = value_type.NULL

    class ValueDumper(Dumper):
        format = Format.BINARY
        oid = value_type.type_id

        def dump(self, obj: ColumnValue) -> ColumnValue | None:
            return None if obj is null else obj

    return ValueDumper


def _member(value: bytes | None) -> bytes:
    return _NULL if value is None else _SIZE.pack(len(value)) + value


COLUMN_TYPES: dict[int, type[Column]] = {column.type_id: column for column in (TextColumn, IntegerColumn, BlobColumn)}
"""Column types by PostgreSQL's type id."""


def _dumper(column: type[Column]) -> type[Dumper]:
    class ColumnDumper(Dumper):
        format = Format.BINARY
        oid = column.array_type_id

        def dump(self, obj: Column) -> bytes:
            return obj.pack()

    return ColumnDumper


_DUMPERS: dict[type, type[Dumper]] = {
    **{column: _dumper(column) for column in COLUMN_TYPES.values()},
    **{value_type: _value_dumper(value_type) for value_type in VALUE_TYPES},
}


def register_adapters(connection: Connection[Any]) -> None:
    """Register the adapters for texts, integer sums and columns on a connection."""
    for column, dumper in _DUMPERS.items():
        connection.adapters.register_dumper(column, dumper)
    connection.adapters.register_dumper(str, _TextDumper)
    connection.adapters.register_dumper(str, _BinaryTextDumper)
    connection.adapters.register_loader("text", _EscapedTextLoader)
    connection.adapters.register_loader("text", _EscapedBinaryTextLoader)
    connection.adapters.register_loader("numeric", _IntegerLoader)
    connection.adapters.register_loader("numeric", _BinaryIntegerLoader)
