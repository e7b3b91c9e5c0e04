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
from typing import IO, Any, TypeVar

import msgspec

from mulligan.core.failure import MulliganError

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longer lines are skipped and counted, to bound memory."""
MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""Maximum size of a file that is one JSON document, which must be read as a whole."""
_MAGIC = b"\x1f\x8b"

T = TypeVar("T")


class UnreadableFileError(MulliganError):
    """A file that cannot be read. The message has the reason."""


class LogLines:
    """The lines of one file, plain or gzipped, with the byte offset after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        """Uncompressed bytes up to the end of the last line returned."""
        self.skipped_lines = 0
        """Lines that were skipped because they are too long."""
        self._start_offset = 0
        self.read_error = ""
        """Why reading ended before the end of the file."""
        try:
            # Non-blocking: opening a pipe would otherwise block before its type can be checked.
            flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
            self._raw = open(path, "rb", 1024 * 1024, opener=lambda name, mode: os.open(name, mode | flags))  # noqa: SIM115
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
        self._file: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=self._raw, mode="rb") if is_gzip else self._raw

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
        """Return the beginning of the file, to detect its format."""
        beginning = b""
        with self._record_error():
            beginning = self._file.read(limit)
            self._file.seek(0)
        return beginning if not self.read_error else b""

    def read_all(self) -> bytes | None:
        """Return the whole content, or None if it is too large."""
        with self._record_error():
            self._file.seek(0)
            data = self._file.read(MAX_DOCUMENT_BYTES + 1)
            if len(data) <= MAX_DOCUMENT_BYTES:
                self.offset = len(data)
                return data
            self.read_error = f"a document of more than {MAX_DOCUMENT_BYTES // 1024 // 1024} MB"
        return None

    def skip(self, offset: int) -> None:
        """Start after this many bytes, counted like `offset`."""
        self._start_offset = offset

    def __iter__(self) -> Iterator[bytes]:
        """Yield every line that is neither empty nor too long, including an unterminated last line."""
        with self._record_error():
            readline = self._file.readline
            offset = self.offset = self._file.seek(self._start_offset)
            self.skipped_lines = 0
            is_inside = False
            while line := readline(MAX_LINE_BYTES):
                offset += len(line)
                has_ended = line.endswith(b"\n")
                if is_inside or (not has_ended and len(line) >= MAX_LINE_BYTES):
                    self.skipped_lines += not is_inside
                    is_inside = not has_ended
                    continue
                self.offset = offset
                if len(line) > 2:  # shorter than an empty object
                    yield line


_SURROGATE_ESCAPES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def decode_line(line: bytes, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Decode a line, or return None. Lone surrogates and invalid UTF-8 are replaced."""
    try:
        return decode_leniently(line, decoder.decode)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


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
