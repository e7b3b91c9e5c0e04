"""Classification rules: words that must occur, a pattern that must match, and the resulting kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from mulligan.core.failure import Kind, TookEffect
from mulligan.redaction.regex import compile_regex, search_likely

HEAD_CHARS, TAIL_CHARS = 8_192, 2_048
_FLAGS = re.IGNORECASE | re.MULTILINE


class Rule(msgspec.Struct, frozen=True):
    """A rule that matches if one of `words`, if any, occurs in the text and `pattern`, if set, matches."""

    name: str
    kind: Kind
    words: tuple[str, ...] = ()
    pattern: str = ""
    unless: str = ""
    took_effect: TookEffect | None = None
    tools: tuple[str, ...] = ()
    """The rule applies only to tools whose name contains one of these."""
    is_strong: bool = False
    """Whether the words are specific enough to override the first kind that a class allows."""
    is_vague: bool = False
    """Whether the words are general: then they do not override a class that indicates wrong arguments."""

    def find_position(self, lower: str, text: str) -> int:
        """Return the index where the rule matches, or -1. A substring search excludes most rules quickly."""
        position = next((at for word in self.words if (at := lower.find(word)) >= 0), -1)
        if self.words and position < 0:
            return -1
        if self.pattern:
            match = search_likely(self.pattern, text, lower, _FLAGS)
            if match is None:
                return -1
            position = match.start()
        return -1 if self.unless and compile_rule_pattern(self.unless).search(text) else max(position, 0)


def compile_rule_pattern(pattern: str) -> re.Pattern[str]:
    return compile_regex(pattern, _FLAGS)


def match_rules(rules: Iterable[Rule], text: str, tool: str = "") -> Iterator[tuple[Rule, int]]:
    """Yield the rules that match this text, in order, each with its position."""
    lower, tool = text.lower(), tool.lower()
    for rule in rules:
        if rule.tools and not any(name in tool for name in rule.tools):
            continue
        position = rule.find_position(lower, text)
        if position >= 0:
            yield rule, position


def join_ends(text: str, head: int, tail: int) -> str:
    """Return the first `head` and the last `tail` characters of a text."""
    return text if len(text) <= head + tail else f"{text[:head]}\n{text[-tail:]}"


def bound_text(text: str) -> str:
    """Return both ends of a long text: the message is at the beginning, the ending at the end."""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return text
    return f"{text[:HEAD_CHARS]}\n...\n{text[-TAIL_CHARS:]}"
