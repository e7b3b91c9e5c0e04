"""Rules that choose the kind of a failure by its text, class, status or code, written as tables."""

from __future__ import annotations

import functools
import os.path
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from mulligan.core.failure import Kind, TookEffect
from mulligan.core.kinds import KINDS
from mulligan.redaction.lazy_property import lazy_property
from mulligan.redaction.regex import PatternIndex, compile_regex, search_likely

_FLAGS = re.IGNORECASE | re.MULTILINE


class Rule(msgspec.Struct, frozen=True):
    """A rule that matches if one of `words`, if any, occurs in the text and `pattern`, if set, matches."""

    name: str
    kind: Kind
    words: tuple[str, ...] = ()
    pattern: str = ""
    unless: str = ""
    certain: str = ""
    """Pattern of words that mean this kind alone. Other words may be about something else."""
    took_effect: TookEffect | None = None
    tools: tuple[str, ...] = ()
    """The rule applies only to tools whose name contains one of these."""
    is_strong: bool = False
    """Whether the words are specific enough to override the first kind that a class allows."""
    is_vague: bool = False
    """Whether the words are general: then they do not override a class that indicates wrong arguments."""
    is_permanent: bool = False
    """Whether another attempt fails the same way, although most failures of this kind can be retried."""
    example: str = ""
    """A real text that the rule matches, and a similar one that it does not match."""
    counter_example: str = ""

    def is_certain(self, text: str) -> bool:
        """Return whether a text that the rule matches has words that mean this kind alone."""
        return bool(self.certain) and compile_rule_pattern(self.certain).search(text) is not None


class RuleTable(tuple[Rule, ...]):
    """Rules in order, with an index that selects the few rules whose words are in a text."""

    @lazy_property
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
    "permanent": {"is_permanent": True},
    "executed": {"took_effect": TookEffect.YES},
    "not executed": {"took_effect": TookEffect.NO},
}
_RULE_FIELDS = ("words", "unless", "certain", "tools", "example", "counter-example")


def read_rules(file: str, section: str) -> RuleTable:
    """Read the rules of a section `== section` in a file beside this one, in order.

    A rule is a paragraph. Its first line is `kind: name [flag]`. Each indented line is a phrase, a regular expression
    that means the kind. These fields follow:
    `words: one|another`: evidence that the text needs besides a phrase; `tools: edit|patch`: tools that it needs;
    `certain: pattern`: words that mean this kind alone; `unless: pattern`: evidence against it, where `{section}`
    inserts the phrases of a section;
    `example:` and `counter-example:`: a real text that the rule matches, and a similar one that it does not match.
    """
    return RuleTable(_parse_rule(paragraph, file) for paragraph in read_sections(file)[section].split("\n\n"))


def read_pattern(file: str, section: str) -> str:
    """Read a section of phrases as one pattern. `{section}` in a phrase inserts the phrases of another section."""
    pattern = "|".join(line.strip() for line in read_sections(file)[section].splitlines())
    return re.sub(r"\{([a-z][a-z ]+)\}", lambda match: f"(?:{read_pattern(file, match[1])})", pattern)


@functools.cache
def read_sections(file: str) -> dict[str, str]:
    """Read the sections `== title` of a file beside this one, in order."""
    path = os.path.join(os.path.dirname(__file__), f"{file}.txt")  # pathlib takes 5 ms to import
    with open(path, encoding="utf-8") as rows:
        text = rows.read()
    sections = (part.partition("\n") for part in f"\n{text}".split("\n== ")[1:])
    return {title: body.strip("\n") for title, _, body in sections}


def _parse_rule(paragraph: str, file: str) -> Rule:
    head, *phrases = paragraph.split("\n    ")
    kind, _, title = head.partition(": ")
    name, _, flag = title.rstrip("]").partition(" [")
    fields: dict[str, str] = {}
    while phrases and (field := phrases[-1].partition(": "))[0] in _RULE_FIELDS:
        if field[0] in fields:
            raise ValueError(f"{file}.txt, rule {head!r}: the field {field[0]!r} stands twice. Keep one.")
        fields[field[0]] = field[2]
        del phrases[-1]
    return Rule(
        name,
        KINDS[kind],
        _split_names(fields.get("words")),
        "|".join(phrases),
        re.sub(r"\{([a-z][a-z ]+)\}", lambda match: read_pattern(file, match[1]), fields.get("unless", "")),
        certain=fields.get("certain", ""),
        tools=_split_names(fields.get("tools")),
        example=_unescape(fields.get("example", "")),
        counter_example=_unescape(fields.get("counter-example", "")),
        **_RULE_FLAGS.get(flag, {}),
    )


def _split_names(names: str | None) -> tuple[str, ...]:
    return tuple(names.split("|")) if names else ()


def _unescape(text: str) -> str:
    """Return an example with its line breaks."""
    return text.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")


def read_kinds(file: str, section: str) -> dict[str, tuple[Kind, ...]]:
    """Read a section of `kinds: names` and return the kinds of each name. Its first line is the type of most kinds.

    Further lines of an entry are indented.
    """
    kinds_by_name: dict[str, tuple[Kind, ...]] = {}
    heading, *entries = read_sections(file)[section].replace("\n    ", "\t").split("\n")
    type_ = heading.split()[0]
    for entry in entries:
        kinds, _, names = entry.partition(":")
        allowed = tuple(KINDS[kind if "/" in kind else f"{type_}/{kind}"] for kind in kinds.split())
        kinds_by_name |= dict.fromkeys(names.split(), allowed)
    return kinds_by_name


def read_patterns(file: str, section: str) -> tuple[str, ...]:
    """Read the patterns of a section, one in each line."""
    return tuple(read_sections(file)[section].split("\n"))
