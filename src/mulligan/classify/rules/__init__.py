"""Rules that choose the kind of a failure by its text, class, status or code, written as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from mulligan.classify.kinds import KINDS
from mulligan.core.failure import Kind, TookEffect
from mulligan.redaction.regex import compile_regex, search_likely

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
        if self.words and not any(map(lower.__contains__, self.words)):
            return -1
        match = search_likely(self.pattern, text, lower, _FLAGS)
        if match is None or (self.unless and compile_rule_pattern(self.unless).search(text)):
            return -1
        return match.start()


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


_RULE_FLAGS: dict[str, dict[str, Any]] = {
    "strong": {"is_strong": True},
    "vague": {"is_vague": True},
    "executed": {"took_effect": TookEffect.YES},
    "not executed": {"took_effect": TookEffect.NO},
}


def read_rules(table: str) -> tuple[Rule, ...]:
    """Read a table of rules.

    A rule is a line `kind: name [flag]` with its pattern indented below it. Further fields may follow, in this order:
    `words: one|another`, `unless: pattern`, `tools: edit|patch`. Lines are joined without a separator.
    """
    rules = []
    for entry in _split_entries(table):
        head, _, body = entry.partition("\t")
        body, _, tools = body.partition("\ttools: ")
        body, _, unless = body.partition("\tunless: ")
        pattern, _, words = body.partition("\twords: ")
        kind, _, name = head.partition(": ")
        name, _, flag = name.rstrip("]").partition(" [")
        rules.append(
            Rule(
                name,
                KINDS[kind],
                tuple(words.split("|")) if words else (),
                pattern.replace("\t", ""),
                unless.replace("\t", ""),
                tools=tuple(tools.split("|")) if tools else (),
                **_RULE_FLAGS.get(flag, {}),
            )
        )
    return tuple(rules)


def read_kinds(table: str) -> dict[str, tuple[Kind, ...]]:
    """Read a table of `kinds: names` and return the kinds of each name. Its first line is the type of most kinds."""
    kinds_by_name: dict[str, tuple[Kind, ...]] = {}
    heading, *entries = _split_entries(table)
    type_ = heading.split()[0]
    for entry in entries:
        kinds, _, names = entry.partition(":")
        allowed = tuple(KINDS[kind if "/" in kind else f"{type_}/{kind}"] for kind in kinds.split())
        kinds_by_name |= dict.fromkeys(names.split(), allowed)
    return kinds_by_name


def read_patterns(table: str) -> tuple[str, ...]:
    """Read a table of patterns. The indented lines of a pattern are joined without a separator."""
    return tuple(entry.replace("\t", "") for entry in _split_entries(table))


def _split_entries(table: str) -> list[str]:
    """Return the entries of a table. Further lines of an entry are indented; tabs separate them in the result."""
    return table.strip().replace("\n    ", "\t").split("\n")
