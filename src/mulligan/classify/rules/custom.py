"""User-defined kinds and rules from code or `mulligan.toml`, validated when they are read.

[kinds."tool/card_declined"]
remedy = "replan"
took_effect = "no"
hint = "Ask the customer for another card."

[[rules]]
kind = "tool/card_declined"
words = ["card was declined", "do_not_honor"]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from mulligan.classify.kinds import TYPES
from mulligan.classify.rules.matching import Rule, compile_rule_pattern
from mulligan.core.failure import Kind, Remedy, SettingsError, TookEffect
from mulligan.redaction.regex import iter_repetitions

MAX_MATCHED_LINES, MAX_MATCHED_LINE_CHARS = 20, 200
"""Limits for matching a user-defined pattern: lines of a text, and characters of each line. Together with
`check_pattern` they bound the work to at most two open repetitions over 200 characters."""

_KIND_FIELDS = ("remedy", "took_effect", "hint")
_RULE_FIELDS = ("name", "kind", "words", "pattern", "tools", "took_effect")


def parse_kinds_and_rules(
    settings: Mapping[str, Any], built_in_kinds: Mapping[str, Kind]
) -> tuple[list[Kind], list[Rule]]:
    """Parse the kinds and rules of a settings file. A rule may name a built-in kind or one defined beside it."""
    for name in settings:
        if name not in ("kinds", "rules"):
            _raise_settings_error(
                f"Unknown table {name!r} in classification. Use kinds or rules.", name, ("kinds", "rules")
            )
    table = settings.get("kinds", {})
    if not isinstance(table, Mapping):
        raise SettingsError(f'Invalid kinds {_quote_value(table)}. Use tables, for example [kinds."tool/declined"].')
    kinds = [parse_kind(str(name), fields, built_in_kinds) for name, fields in table.items()]
    names = {**built_in_kinds, **{str(custom_kind): custom_kind for custom_kind in kinds}}
    rule_entries = settings.get("rules", ())
    if not isinstance(rule_entries, (list, tuple)):
        raise SettingsError(f"Invalid rules {_quote_value(rule_entries)}. Use a list, written as [[rules]].")
    return kinds, [parse_rule(fields, names, number) for number, fields in enumerate(rule_entries, 1)]


def parse_kind(name: str, fields: object, built_in_kinds: Mapping[str, Kind]) -> Kind:
    """Parse one kind. Missing fields come from the built-in kind of the same name, if there is one."""
    type_, slash, code = name.partition("/")
    if not slash or not re.fullmatch(r"[a-z][a-z0-9_]{0,60}", code):
        raise SettingsError(f"Invalid kind name {name!r}. Use type/code in lowercase, for example tool/card_declined.")
    if type_ not in TYPES:
        _raise_settings_error(f"Invalid type {type_!r} of a kind. Use one of {', '.join(TYPES)}.", type_, TYPES)
    if not isinstance(fields, Mapping):
        raise SettingsError(
            f"Invalid kinds.{name} {_quote_value(fields)}. Use a table with remedy, took_effect and hint."
        )
    for field in fields:
        if field not in _KIND_FIELDS:
            _raise_settings_error(
                f"Unknown field {field!r} in kinds.{name}. Use remedy, took_effect or hint.", str(field), _KIND_FIELDS
            )
    base_kind = built_in_kinds.get(name, Kind(type_, code))
    hint = fields.get("hint", base_kind.hint)
    if not isinstance(hint, str):
        raise SettingsError(f"Invalid kinds.{name}.hint {_quote_value(hint)}. Use a string.")
    remedy = _parse_enum_member(Remedy, fields.get("remedy", base_kind.remedy.value), f"kinds.{name}.remedy")
    return Kind(
        type_,
        code,
        remedy,
        _parse_enum_member(
            TookEffect, fields.get("took_effect", base_kind.took_effect.value), f"kinds.{name}.took_effect"
        ),
        hint,
    )


def parse_rule(fields: object, kinds_by_name: Mapping[str, Kind], number: int) -> Rule:
    """Parse one rule. `number` is its position in the list, for error messages."""
    where = f"Rule {number}"
    if not isinstance(fields, Mapping):
        raise SettingsError(
            f"{where}: invalid value {_quote_value(fields)}. Use a table with kind, and words or pattern."
        )
    for field in fields:
        if field not in _RULE_FIELDS:
            _raise_settings_error(f"{where}: unknown field {field!r}.", str(field), _RULE_FIELDS)
    name = fields.get("kind")
    if not isinstance(name, str) or name not in kinds_by_name:
        _raise_settings_error(f"{where}: unknown kind {name!r}.", str(name), tuple(kinds_by_name))
    words, tools = _strings(fields, "words", where), _strings(fields, "tools", where)
    pattern = fields.get("pattern", "")
    if not isinstance(pattern, str):
        raise SettingsError(f"{where}: invalid pattern {_quote_value(pattern)}. Use a regular expression.")
    if not words and not pattern:
        raise SettingsError(f"{where} matches nothing. Add words or a pattern.")
    check_pattern(pattern, where)
    took_effect = (
        None
        if fields.get("took_effect") is None
        else _parse_enum_member(TookEffect, fields["took_effect"], f"{where}: took_effect")
    )
    rule_name = fields.get("name") or (words[0] if words else pattern)
    lower = tuple(word.lower() for word in words)
    return Rule(
        str(rule_name)[:80],
        kinds_by_name[name],
        lower,
        pattern,
        took_effect=took_effect,
        tools=tuple(tool.lower() for tool in tools),
    )


def check_pattern(pattern: str, where: str = "rule") -> None:
    """Reject a pattern with exponential or high polynomial cost.

    A repeated group and more than two open repetitions are not allowed.
    """
    if len(pattern) > 500:
        raise SettingsError(
            f"{where}: the pattern has {len(pattern)} characters, the maximum is 500. Use words, or two rules."
        )
    try:
        compile_rule_pattern(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise SettingsError(f"{where}: {pattern!r} is not a regular expression: {error}.") from None
    repetitions = [(token, abs(maximum)) for token, _, maximum in iter_repetitions(pattern)]
    if any(token == ")" and maximum > 1 for token, maximum in repetitions):
        raise SettingsError(
            f"{where}: {pattern!r} repeats a group, which can take exponential time. "
            "Repeat a set of characters instead, for example [a-z ]{0,80}, or write two rules."
        )
    if sum(maximum > 16 for _, maximum in repetitions) > 2:
        raise SettingsError(
            f"{where}: {pattern!r} has more than two open repetitions, which can take too long. "
            "Put the fixed parts into words, or write two rules."
        )


def match_position(rule: Rule, text: str, tool: str) -> int:
    """Return where a user-defined rule matches, or -1. Only the first lines are searched, each up to a fixed width."""
    if rule.tools and not any(name in tool.lower() for name in rule.tools):
        return -1
    lower = text.lower()
    position = -1
    if rule.words:
        position = next((at for word in rule.words if (at := lower.find(word)) >= 0), -1)
        if position < 0:
            return -1
    if not rule.pattern:
        return position
    at = 0
    for line in text.split("\n")[:MAX_MATCHED_LINES]:
        match = compile_rule_pattern(rule.pattern).search(line[:MAX_MATCHED_LINE_CHARS])
        if match:
            return at + match.start()
        at += len(line) + 1
    return -1


def _strings(fields: Mapping[str, Any], name: str, where: str) -> list[str]:
    value = fields.get(name, [])
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item for item in value):
        raise SettingsError(f"{where}: invalid {name} {_quote_value(value)}. Use a list of strings.")
    return list(value)


def _parse_enum_member(enum: type[Any], value: object, where: str) -> Any:
    names = tuple(member.value for member in enum)
    if value not in names:
        _raise_settings_error(f"{where}: invalid value {value!r}. Use one of {', '.join(names)}.", str(value), names)
    return enum(value)


def _raise_settings_error(sentence: str, got: str, allowed_names: tuple[str, ...]) -> NoReturn:
    from difflib import get_close_matches  # lazy: needed for invalid settings only

    near = get_close_matches(got, allowed_names, 1, 0.6)
    raise SettingsError(f"{sentence} Did you mean {near[0]!r}?" if near else sentence)


def _quote_value(value: object) -> str:
    return f"{str(value)[:60]!r}"
