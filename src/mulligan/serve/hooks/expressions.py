"""Regular expressions, compiled, kept from one process to the next: what `__pycache__` is for the rest of our source.

To compile the twenty that one failure needs takes longer than to classify, redact and keep it. What is kept is the code
that the engine of the interpreter runs, which it checks as it takes it; it goes by the interpreter's exact version,
and whatever is wrong with the file, the expressions are compiled as everywhere else.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec

from mulligan.serve.hooks import first

MOST = 4_194_304
"""Bytes of the file. Our expressions come to a fraction of it; beyond that it is begun anew."""
Code = tuple[int, int, dict[str, int], bytes]
"""Flags, groups, their names, and what the engine runs."""


class Kept:
    """Makes expressions from the file, and what is not in it in the usual way; `keep` then adds that."""

    def __init__(self) -> None:
        self.path = os.path.join(first.folder(), f"expressions.{sys.implementation.cache_tag}")
        self._codes: dict[str, Code] = {}
        self._is_new = False
        try:
            with open(self.path, "rb", buffering=0) as file:
                data = file.read(MOST)
            check, version, codes = msgspec.msgpack.decode(data, type=tuple[int, str, bytes])
            if check == crc32(codes) and version == sys.version:
                self._codes = msgspec.msgpack.decode(codes, type=dict[str, Code])
        except (OSError, msgspec.MsgspecError, UnicodeError):
            return  # none yet, or no longer what it was

    def __call__(self, pattern: str, flags: int = 0) -> re.Pattern[str]:
        name = f"{int(flags)} {pattern}"
        try:
            if name not in self._codes:
                self._codes[name] = _code(pattern, flags)
                self._is_new = True
            return _made(pattern, self._codes[name])
        except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, OverflowError):
            self._codes.pop(name, None)  # an interpreter that does this in another way
            return re.compile(pattern, flags)

    def keep(self) -> None:
        """For the next process, if there is anything new. Several may do so at once: each file is whole."""
        if not self._is_new:
            return
        codes = msgspec.msgpack.encode(self._codes)
        data = msgspec.msgpack.encode((crc32(codes), sys.version, codes))
        if len(data) > MOST:
            return
        part = f"{self.path}.{os.getpid()}"
        first.append(part, data)
        os.replace(part, self.path)


def _code(pattern: str, flags: int) -> Code:
    """What `re.compile` hands to the engine."""
    compiler: Any = re._compiler  # type: ignore[attr-defined]
    parsed = re._parser.parse(pattern, flags)  # type: ignore[attr-defined]
    code = array("I", compiler._code(parsed, flags))
    return int(flags | parsed.state.flags), parsed.state.groups - 1, dict(parsed.state.groupdict), code.tobytes()


def _made(pattern: str, kept: Code) -> re.Pattern[str]:
    flags, groups, names, data = kept
    engine: Callable[..., re.Pattern[str]] = re._compiler._sre.compile  # type: ignore[attr-defined]
    code = array("I", data)
    by_number: list[str | None] = [None] * (groups + 1)
    for name, number in names.items():
        by_number[number] = name
    return engine(pattern, flags, code.tolist(), groups, names, tuple(by_number))
