"""Regular expressions that are compiled when first used: the library is imported far more often than it redacts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Match = re.Match[str]
_compile: Callable[[str, int], re.Pattern[str]] = re.compile


def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """An expression of our source or of settings. Never one made of a text that was met: they may be kept in a file."""
    return _compile(pattern, flags)


def take_from(maker: Callable[[str, int], re.Pattern[str]]) -> None:
    """Lets expressions come from somewhere else: who lives for a tenth of a second has no time to compile."""
    global _compile
    _compile = maker


class Expression:
    """A compiled expression, but not yet.

    We write them so that no text costs more than a constant for each character: each begins with the rarest thing it
    needs, so that the rest of a text is skipped quickly, and every repetition is bounded or possessive.
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
            setattr(self, method, getattr(made, method))  # found directly from now on
        return getattr(made, name)
