"""What a rule is: words that must be there, a pattern that must match, and the kind they speak for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from mulligan.failure import Kind, Ran

HEAD, TAIL = 8_192, 2_048


class Rule(NamedTuple):
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
    """True where the words are so particular that they outweigh a status or a class."""

    def matches(self, lower: str, text: str) -> bool:
        if self.words and not any(word in lower for word in self.words):
            return False
        if self.pattern and not compiled(self.pattern).search(text):
            return False
        return not (self.unless and compiled(self.unless).search(text))


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


def matching(rules: Iterable[Rule], text: str, tool: str = "") -> Iterator[Rule]:
    """The rules that speak for this text, in their order."""
    lower, tool = text.lower(), tool.lower()
    for rule in rules:
        if rule.tools and not any(name in tool for name in rule.tools):
            continue
        if rule.matches(lower, text):
            yield rule


def bounded(text: str) -> str:
    """Both ends of a long text. What was said stands at the beginning, how it ended at the end."""
    if len(text) <= HEAD + TAIL:
        return text
    return f"{text[:HEAD]}\n...\n{text[-TAIL:]}"
