"""Reads a file line by line in constant memory, despite partial lines, NULs, very long lines or a truncated gzip.

Opens only regular files: a pipe could block forever, and a device might never end.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeVar

import msgspec

from mulligan.core.failure import MulliganError

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longer lines are skipped and counted, to bound memory."""
MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""Maximum size of a file that is one JSON document, which must be read as a whole."""
MAX_REPORTED_LINES = 100
"""Lines of a file that are reported as unreadable. Further ones are counted."""
_BUFFER = 1024 * 1024
_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""At the beginning of UTF-8 files that some programs of Windows write. It is no part of the content."""
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")

T = TypeVar("T")


class UnreadableFileError(MulliganError):
    """A file that cannot be read. The message has the reason."""


class UnreadableLine(NamedTuple):
    """A line of a file, or a row of a table or a document, that could not be read."""

    unit: Literal["line", "row"]
    number: int
    reason: str


class LogLines:
    """The lines of one file, plain or gzipped, with the byte offset after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        """Uncompressed bytes up to the end of the last line returned."""
        self.number = 0
        """Number of the last line returned, from 1."""
        self.skipped_lines = 0
        """Lines that were skipped because they are too long."""
        self.unreadable: list[UnreadableLine] = []
        """The first lines and rows that could not be read."""
        self._start_offset = 0
        self.read_error = ""
        """Why reading ended before the end of the file."""
        try:
            # Non-blocking: opening a pipe would otherwise block before its type can be checked.
            flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
            self._raw = open(path, "rb", _BUFFER, opener=lambda name, mode: os.open(name, mode | flags))  # noqa: SIM115
            file_status = os.fstat(self._raw.fileno())
            if not stat.S_ISREG(file_status.st_mode):
                self._raw.close()
                raise UnreadableFileError("it is not a regular file")
            magic = self._raw.read(2)
            self._raw.seek(0)
        except OSError as error:
            raise UnreadableFileError(error.strerror or type(error).__name__) from None
        self.size = file_status.st_size
        self.modified_at = int(file_status.st_mtime * 1000)
        is_gzip = magic == _MAGIC
        self.file: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=self._raw, mode="rb") if is_gzip else self._raw
        """The content, for readers of other than lines."""

    def __enter__(self) -> LogLines:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._raw.close()

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that were read, for a progress bar."""
        return min(self._raw.tell(), self.size) if not self._raw.closed else self.size

    @contextlib.contextmanager
    def _record_error(self) -> Iterator[None]:
        """Record why the file cannot be read, and end reading."""
        try:
            yield
        except EOFError:
            self.read_error = "the gzip file is truncated"
        except (OSError, zlib.error) as error:
            self.read_error = getattr(error, "strerror", None) or f"it is damaged ({error})"

    def head(self, limit: int = 32 * 1024) -> bytes:
        """Return the beginning of the file, as far as it can be read, to detect its format."""
        beginning = b""
        with self._record_error():
            while len(beginning) < limit and (block := self.file.read1(limit - len(beginning))):  # type: ignore[union-attr]
                beginning += block
        if beginning.startswith(_UTF_16_MARKS):
            self.read_error = "it is written in UTF-16. Save it as UTF-8"
        with self._record_error():
            self.file.seek(0)
        return beginning.removeprefix(_BYTE_ORDER_MARK)

    def read_all(self) -> bytes | None:
        """Return the whole content as far as it can be read, or None if it is too large."""
        blocks: list[bytes] = []
        size = 0
        with self._record_error():
            self.file.seek(0)
            while size <= MAX_DOCUMENT_BYTES and (block := self.file.read1(_BUFFER)):  # type: ignore[union-attr]
                blocks.append(block)
                size += len(block)
        if size > MAX_DOCUMENT_BYTES:
            self.read_error = f"a document of more than {MAX_DOCUMENT_BYTES // 1024 // 1024} MB"
            return None
        self.offset = size
        return b"".join(blocks).removeprefix(_BYTE_ORDER_MARK)

    def report_unreadable(self, reason: str, unit: Literal["line", "row"] = "line", number: int | None = None) -> None:
        """Report a line or row, by default the last line returned, as unreadable."""
        if len(self.unreadable) < MAX_REPORTED_LINES:
            self.unreadable.append(UnreadableLine(unit, self.number if number is None else number, reason))

    def skip(self, offset: int) -> None:
        """Start after this many bytes, counted like `offset`."""
        self._start_offset = offset

    def __iter__(self) -> Iterator[bytes]:
        """Yield every line that is neither empty nor too long, including an unterminated last line."""
        with self._record_error():
            readline = self.file.readline
            self.number = self._count_lines(self._start_offset)
            offset = self.offset = self.file.seek(self._start_offset)
            self.skipped_lines = 0
            is_inside = False
            while line := readline(MAX_LINE_BYTES):
                offset += len(line)
                self.number += not is_inside
                has_ended = line.endswith(b"\n")
                if is_inside or (not has_ended and len(line) >= MAX_LINE_BYTES):
                    if not is_inside:
                        self.skipped_lines += 1
                        self.report_unreadable(f"longer than {MAX_LINE_BYTES // 1024 // 1024} MB")
                    is_inside = not has_ended
                    continue
                self.offset = offset
                if self.number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                if len(line) > 2:  # shorter than an empty object
                    yield line

    def _count_lines(self, limit: int) -> int:
        """Return the number of lines before an offset."""
        remaining, count = limit, 0
        self.file.seek(0)
        while remaining and (block := self.file.read(min(remaining, _BUFFER))):
            remaining -= len(block)
            count += block.count(b"\n")
        return count


_STRING_OR_NON_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\b(?:NaN|Infinity)\b', re.DOTALL)
_SURROGATE_ESCAPES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def decode_line(line: bytes, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Decode a line, or return None. Lone surrogates and invalid UTF-8 are replaced, NaN and Infinity by null."""
    try:
        return decode_leniently(line, decoder.decode)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        if b"NaN" not in line and b"Infinity" not in line:
            return None
    data = _STRING_OR_NON_NUMBER.sub(lambda match: match[0] if match[0][:1] == b'"' else b"null", line)
    return decode_line(data, decoder) if data != line else None


def decode_leniently(data: bytes, decode: Callable[[bytes], T]) -> T:
    """Decode JSON, replacing lone surrogates: programs that count in UTF-16 cut emoji in two."""
    try:
        return decode(data)
    except msgspec.ValidationError:
        raise  # valid JSON of another type
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return decode(replace_invalid_unicode(data))


def replace_invalid_unicode(data: bytes) -> bytes:
    """Replace lone surrogates and invalid UTF-8 in JSON."""
    text = data.decode("utf-8", "replace").encode()
    return _SURROGATE_ESCAPES.sub(lambda match: b"\\ufffd" if len(match[0]) == 6 else match[0], text)


def is_object(line: bytes) -> bool:
    """Return whether a line looks like a complete object, without decoding it."""
    return line[:1] == b"{" and (line[-2:] == b"}\n" or line.rstrip()[-1:] == b"}")


def decode_raw(value: Any) -> Any:
    """Decode a value that was left as raw JSON."""
    if not isinstance(value, msgspec.Raw):
        return value
    data = bytes(value)
    return decode_line(data, _any) if data else None


_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def parse_json(value: Any) -> Any:
    """Parse a text that is a JSON object or list. Return any other value unchanged."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        parsed = decode_line(value.encode("utf-8", "replace"), _any)
        return parsed if parsed is not None else value
    return value
