"""Cache of compiled regular expressions that hook processes share, like `__pycache__` for modules.

Compiling the twenty expressions that one failure needs takes longer than classifying, redacting and storing it. The
cache contains the code of the regex engine and depends on the exact interpreter version. If the file is invalid, the
expressions are compiled as usual.
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

from mulligan.hooks import fast_filter

MAX_CACHE_BYTES = 4_194_304
"""Limit of the cache file. Our expressions need a fraction of it; a larger file is not written."""
CompiledCode = tuple[int, int, dict[str, int], bytes]
"""Flags, group count, group names, and the code for the regex engine."""


class RegexCache:
    """Callable that compiles expressions with the cache file. `save` adds the ones that were missing."""

    def __init__(self) -> None:
        self.path = os.path.join(fast_filter.hooks_folder(), f"expressions.{sys.implementation.cache_tag}")
        self.codes: dict[str, CompiledCode] = {}
        self._has_new_codes = False
        try:
            with open(self.path, "rb", buffering=0) as file:
                data = file.read(MAX_CACHE_BYTES)
            check, version, codes = msgspec.msgpack.decode(data, type=tuple[int, str, bytes])
            if check == crc32(codes) and version == sys.version:
                self.codes = msgspec.msgpack.decode(codes, type=dict[str, CompiledCode])
        except (OSError, msgspec.MsgspecError, UnicodeError):
            return  # no cache yet, or an invalid one

    def __call__(self, pattern: str, flags: int = 0) -> re.Pattern[str]:
        name = f"{int(flags)} {pattern}"
        try:
            if name not in self.codes:
                self.codes[name] = compile_code(pattern, flags)
                self._has_new_codes = True
            return _build_pattern(pattern, self.codes[name])
        except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, OverflowError):
            self.codes.pop(name, None)  # an interpreter with other internals
            return re.compile(pattern, flags)

    def save(self) -> None:
        """Write the cache for the next process if it has new entries. The file is replaced atomically."""
        if not self._has_new_codes:
            return
        codes = msgspec.msgpack.encode(self.codes)
        data = msgspec.msgpack.encode((crc32(codes), sys.version, codes))
        if len(data) > MAX_CACHE_BYTES:
            return
        temporary_path = f"{self.path}.{os.getpid()}"
        fast_filter.append_to_file(temporary_path, data)
        os.replace(temporary_path, self.path)


def compile_code(pattern: str, flags: int) -> CompiledCode:
    """Compile a pattern to the code that `re.compile` passes to the engine."""
    compiler: Any = re._compiler  # type: ignore[attr-defined]
    parsed = re._parser.parse(pattern, flags)  # type: ignore[attr-defined]
    code = array("I", compiler._code(parsed, flags))
    return int(flags | parsed.state.flags), parsed.state.groups - 1, dict(parsed.state.groupdict), code.tobytes()


def _build_pattern(pattern: str, compiled_code: CompiledCode) -> re.Pattern[str]:
    flags, groups, names, data = compiled_code
    engine: Callable[..., re.Pattern[str]] = re._compiler._sre.compile  # type: ignore[attr-defined]
    code = array("I", data)
    by_number: list[str | None] = [None] * (groups + 1)
    for name, number in names.items():
        by_number[number] = name
    return engine(pattern, flags, code.tolist(), groups, names, tuple(by_number))
