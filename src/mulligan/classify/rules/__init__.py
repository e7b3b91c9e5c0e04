"""Rules that choose the kind of a failure by its text, class, status or code, written as tables."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from mulligan.classify.kinds import KINDS
from mulligan.core.failure import Kind, TookEffect
from mulligan.redaction.regex import PatternIndex, compile_regex, search_likely

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


class RuleTable(tuple[Rule, ...]):
    """Rules in order, with an index that selects the few rules whose words are in a text."""

    @functools.cached_property
    def patterns(self) -> PatternIndex:
        return PatternIndex(rule.pattern for rule in self)


def compile_rule_pattern(pattern: str) -> re.Pattern[str]:
    return compile_regex(pattern, _FLAGS)


def search_rule_pattern(pattern: str, text: str, lower: str) -> re.Match[str] | None:
    """Search a pattern if one of the words that it requires is in the text. `lower` is the text in lower case."""
    return search_likely(pattern, text, lower, _FLAGS)


def match_rules(
    rules: RuleTable, text: str, tool: str = "", can_decide: Callable[[Rule], bool] | None = None
) -> Iterator[tuple[Rule, int]]:
    """Yield the rules that match this text, in order, each with its position. Skip those that cannot decide."""
    lower, tool = text.lower(), tool.lower()

    def is_applicable(number: int) -> bool:
        rule = rules[number]
        return (
            (not rule.tools or any(name in tool for name in rule.tools))
            and (not rule.words or any(map(lower.__contains__, rule.words)))
            and (can_decide is None or can_decide(rule))
        )

    for number, position in rules.patterns.find_starts(text, lower, is_applicable):
        rule = rules[number]
        if not rule.unless or not compile_rule_pattern(rule.unless).search(text):
            yield rule, position


_RULE_FLAGS: dict[str, dict[str, Any]] = {
    "strong": {"is_strong": True},
    "vague": {"is_vague": True},
    "executed": {"took_effect": TookEffect.YES},
    "not executed": {"took_effect": TookEffect.NO},
}


def read_rules(table: str) -> RuleTable:
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
    return RuleTable(rules)


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
