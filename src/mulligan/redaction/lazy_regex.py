"""Regular expressions that are compiled on first use: most processes import them without redacting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Match = re.Match[str]
_compiler: Callable[[str, int], re.Pattern[str]] = re.compile


def compile_regex(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a pattern from our source or from settings.

    Never pass one built from recorded text: it may be cached in a file.
    """
    return _compiler(pattern, flags)


def set_compiler(compiler: Callable[[str, int], re.Pattern[str]]) -> None:
    """Replace the compile function, for short-lived processes that load compiled patterns from a cache."""
    global _compiler
    _compiler = compiler


class LazyRegex:
    """A regular expression that is compiled on first use.

    Patterns must cost at most a constant per character: each begins with its rarest element, so that most text is
    skipped quickly, and every repetition is bounded or possessive.
    """

    match: Callable[..., Match | None]
    search: Callable[..., Match | None]
    fullmatch: Callable[..., Match | None]
    finditer: Callable[..., Iterator[Match]]
    sub: Callable[..., str]
    split: Callable[..., list[str]]
    findall: Callable[..., list[str]]

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.pattern = pattern
        self.flags = flags

    def __getattr__(self, name: str) -> object:
        compiled_regex = compile_regex(self.pattern, self.flags)
        for method in ("match", "search", "fullmatch", "finditer", "sub", "split", "findall"):
            setattr(self, method, getattr(compiled_regex, method))  # direct attributes from now on
        return getattr(compiled_regex, name)
