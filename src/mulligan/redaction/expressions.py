"""Regular expressions that are compiled on first use: most processes import them without redacting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Match = re.Match[str]
_compile: Callable[[str, int], re.Pattern[str]] = re.compile


def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a pattern from our source or from settings.

    Never pass one built from recorded text: it may be cached in a file.
    """
    return _compile(pattern, flags)


def take_from(maker: Callable[[str, int], re.Pattern[str]]) -> None:
    """Replace the compile function, for short-lived processes that load compiled patterns from a cache."""
    global _compile
    _compile = maker


class Expression:
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
        made = compiled(self.pattern, self.flags)
        for method in ("match", "search", "fullmatch", "finditer", "sub", "split", "findall"):
            setattr(self, method, getattr(made, method))  # direct attributes from now on
        return getattr(made, name)
