"""Classification rules: words that must occur, a pattern that must match, and the resulting kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

import msgspec

from mulligan.failure import Kind, Ran
from mulligan.redaction import expressions

HEAD, TAIL = 8_192, 2_048


class Rule(msgspec.Struct, frozen=True):
    """A rule that matches if one of `words` occurs in the text and `pattern`, if set, matches.

    The words are a fast path: a substring search excludes most rules, so most patterns are never compiled.
    """

    name: str
    kind: Kind
    words: tuple[str, ...] = ()
    pattern: str = ""
    unless: str = ""
    ran: Ran | None = None
    tools: tuple[str, ...] = ()
    """The rule applies only to tools whose name contains one of these."""
    is_strong: bool = False
    """Whether the words are specific enough to override the first kind that a class allows."""
    is_vague: bool = False
    """Whether the words are general: then they do not override a class that indicates wrong arguments."""

    def place(self, lower: str, text: str) -> int:
        """Return the index where the rule matches, or -1."""
        place = -1
        for word in self.words:
            place = lower.find(word)
            if place >= 0:
                break
        if self.words and place < 0:
            return -1
        if self.pattern:
            match = compiled(self.pattern).search(text)
            if match is None:
                return -1
            place = match.start()
        return -1 if self.unless and compiled(self.unless).search(text) else max(place, 0)


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    return expressions.compiled(pattern, re.IGNORECASE | re.MULTILINE)


def matching(rules: Iterable[Rule], text: str, tool: str = "") -> Iterator[tuple[Rule, int]]:
    """Yield the rules that match this text, in order, each with its position."""
    lower, tool = text.lower(), tool.lower()
    for rule in rules:
        if rule.tools and not any(name in tool for name in rule.tools):
            continue
        place = rule.place(lower, text)
        if place >= 0:
            yield rule, place


def ends(text: str, head: int, tail: int) -> str:
    """Return the first `head` and the last `tail` characters of a text."""
    return text if len(text) <= head + tail else f"{text[:head]}\n{text[-tail:]}"


def bounded(text: str) -> str:
    """Return both ends of a long text: the message is at the beginning, the ending at the end."""
    if len(text) <= HEAD + TAIL:
        return text
    return f"{text[:HEAD]}\n...\n{text[-TAIL:]}"
