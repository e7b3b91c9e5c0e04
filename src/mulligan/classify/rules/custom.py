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
from collections.abc import Collection, Mapping
from typing import Any

from mulligan.classify.rules import Rule, compile_rule_pattern
from mulligan.core.failure import DEFAULT_HINTS, Kind, Remedy, SettingsError, TookEffect
from mulligan.core.kinds import KINDS, TYPES, is_misspelled_type
from mulligan.redaction.regex import iter_repetitions

MAX_MATCHED_LINES, MAX_MATCHED_LINE_CHARS = 20, 200
"""Limits for matching a user-defined pattern: lines of a text, and characters of each line. Together with
`check_pattern` they bound the work to at most two open repetitions over 200 characters."""


def parse_kinds_and_rules(settings: Mapping[str, Any]) -> tuple[list[Kind], list[Rule]]:
    """Parse the kinds and rules of a settings file. A rule may name a built-in kind or one defined beside it."""
    _check_fields(settings, ("kinds", "rules"), "Classification", "table")
    table, entries = settings.get("kinds", {}), settings.get("rules", ())
    if not isinstance(table, Mapping):
        raise SettingsError(f'Invalid kinds {_quote_value(table)}. Use tables, for example [kinds."tool/declined"].')
    kinds = [_parse_kind(str(name), fields) for name, fields in table.items()]
    if not isinstance(entries, (list, tuple)):
        raise SettingsError(f"Invalid rules {_quote_value(entries)}. Use a list, written as [[rules]].")
    kinds_by_name = KINDS | {str(custom_kind): custom_kind for custom_kind in kinds}
    return kinds, [_parse_rule(fields, kinds_by_name, f"Rule {number}") for number, fields in enumerate(entries, 1)]


def _parse_kind(name: str, fields: Any) -> Kind:
    """Parse one kind. Missing fields come from the built-in kind of the same name, if there is one."""
    type_, slash, code = name.partition("/")
    if not slash or not re.fullmatch(r"[a-z][a-z0-9_]{0,60}", code):
        raise SettingsError(f"Invalid kind name {name!r}. Use type/code in lowercase, for example tool/card_declined.")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,30}", type_) or is_misspelled_type(type_):
        _check_choice(type_, TYPES, f"Kind {name}: invalid type")
    where = f"kinds.{name}"
    _check_fields(fields, ("remedy", "took_effect", "hint"), where)
    base_kind = KINDS.get(name, Kind(type_, code))
    hint = fields.get("hint", base_kind.hint)
    if not isinstance(hint, str):
        raise SettingsError(f"Invalid {where}.hint {_quote_value(hint)}. Use a string.")
    remedy = fields.get("remedy", base_kind.remedy.value)
    took_effect = fields.get("took_effect", base_kind.took_effect.value)
    _check_choice(remedy, [member.value for member in Remedy], f"{where}: invalid remedy")
    _check_choice(took_effect, [member.value for member in TookEffect], f"{where}: invalid took_effect")
    return Kind(type_, code, Remedy(remedy), TookEffect(took_effect), hint or DEFAULT_HINTS[Remedy(remedy)])


def _parse_rule(fields: Any, kinds_by_name: Mapping[str, Kind], where: str) -> Rule:
    _check_fields(fields, ("name", "kind", "words", "pattern", "tools", "took_effect"), where)
    _check_choice(fields.get("kind"), kinds_by_name, f"{where}: unknown kind")
    words, tools = _lower_strings(fields, "words", where), _lower_strings(fields, "tools", where)
    pattern, took_effect = fields.get("pattern", ""), fields.get("took_effect")
    if not isinstance(pattern, str):
        raise SettingsError(f"{where}: invalid pattern {_quote_value(pattern)}. Use a regular expression.")
    if not words and not pattern:
        raise SettingsError(f"{where} matches nothing. Add words or a pattern.")
    check_pattern(pattern, where)
    if took_effect is not None:
        _check_choice(took_effect, [member.value for member in TookEffect], f"{where}: invalid took_effect")
        took_effect = TookEffect(took_effect)
    name = str(fields.get("name") or (words[0] if words else pattern))[:80]
    return Rule(name, kinds_by_name[fields["kind"]], words, pattern, took_effect=took_effect, tools=tools)


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
    position = next((at for word in rule.words if (at := lower.find(word)) >= 0), -1)
    if not rule.pattern or (rule.words and position < 0):
        return position
    at = 0
    for line in text.split("\n")[:MAX_MATCHED_LINES]:
        match = compile_rule_pattern(rule.pattern).search(line[:MAX_MATCHED_LINE_CHARS])
        if match:
            return at + match.start()
        at += len(line) + 1
    return -1


def _lower_strings(fields: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    value = fields.get(name, [])
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item for item in value):
        raise SettingsError(f"{where}: invalid {name} {_quote_value(value)}. Use a list of strings.")
    return tuple(item.lower() for item in value)


def _check_fields(fields: Any, allowed: Collection[str], where: str, noun: str = "field") -> None:
    """Raise `SettingsError` unless `fields` is a table that has only allowed names."""
    if not isinstance(fields, Mapping):
        raise SettingsError(f"{where}: invalid value {_quote_value(fields)}. Use a table with {', '.join(allowed)}.")
    for name in fields:
        _check_choice(name, allowed, f"{where}: unknown {noun}")


def _check_choice(value: object, allowed: Collection[str], problem: str) -> None:
    """Raise `SettingsError`, which names the nearest allowed value, unless the value is allowed."""
    if isinstance(value, str) and value in allowed:
        return
    from difflib import get_close_matches  # lazy: needed for invalid settings only

    near = get_close_matches(str(value), allowed, 1, 0.6)
    choices = f" Use one of {', '.join(allowed)}." if len(allowed) < 10 else ""
    raise SettingsError(f"{problem} {value!r}.{choices}" + (f" Did you mean {near[0]!r}?" if near else ""))


def _quote_value(value: object) -> str:
    return f"{str(value)[:60]!r}"
