"""What a rule is: words that must be there, a pattern that must match, and the kind they speak for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

import msgspec

from mulligan.failure import Kind, Ran
from mulligan.redaction import expressions

HEAD, TAIL = 8_192, 2_048


class Rule(msgspec.Struct, frozen=True):
    """Speaks for `kind` when one of `words` stands in the text and `pattern`, if there is one, matches.

    The words are there for speed: most rules are dismissed by a substring search, and most patterns never compiled.
    """

    name: str
    kind: Kind
    words: tuple[str, ...] = ()
    pattern: str = ""
    unless: str = ""
    ran: Ran | None = None
    tools: tuple[str, ...] = ()
    """Only for tools whose name contains one of these."""
    is_strong: bool = False
    """True where the words are so particular that they may name what a class would leave to its first guess."""
    is_vague: bool = False
    """True where the words are everyone's: they do not outweigh a class that speaks of the arguments."""

    def place(self, lower: str, text: str) -> int:
        """Where in the text it speaks up, or -1."""
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
    """The rules that speak for this text, in their order, each with the place where it does."""
    lower, tool = text.lower(), tool.lower()
    for rule in rules:
        if rule.tools and not any(name in tool for name in rule.tools):
            continue
        place = rule.place(lower, text)
        if place >= 0:
            yield rule, place


def ends(text: str, head: int, tail: int) -> str:
    """The beginning and the end of a text, as much of each as is asked for."""
    return text if len(text) <= head + tail else f"{text[:head]}\n{text[-tail:]}"


def bounded(text: str) -> str:
    """Both ends of a long text. What was said stands at the beginning, how it ended at the end."""
    if len(text) <= HEAD + TAIL:
        return text
    return f"{text[:HEAD]}\n...\n{text[-TAIL:]}"
