"""What may be changed without asking: a call that is executed means what was asked (SAFETY S1a).

Another form of the same value is the same call: `"3"` for 3, `High` for `high`, `topK` for `top_k`. Another value is
another call. It is executed without asking only where a model reads the note about it, the tool only reads, and the
value is not what the call is about. All other changes are suggestions. Opposites are not even suggested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mulligan.core.calls import is_same_json
from mulligan.core.quantity_arguments import argument_name, measures_quantity
from mulligan.core.records import Change, Effects
from mulligan.recover.schema import CompiledSchema
from mulligan.recover.spelling import (
    normalize_name,
    strip_quotes,
)
from mulligan.recover.value_coercion import is_empty, is_number, parse_json_text
from mulligan.recover.word_meaning import (
    is_same_code,
    is_same_name,
    is_same_word,
    lower_words,
)

MAX_VALUE_DEPTH = 4
"""Lists and objects within each other in which two values are compared."""

_SIZE_WORDS = frozenset(
    "limit max maximum top k n num number of count size per page batch chunk buffer result results hit hits row rows "
    "item items entry entries match matches record records doc docs document documents candidate candidates sample "
    "samples line lines token tokens first take fetch return returned timeout second seconds secs ms millis "
    "concurrency parallelism".split()
)
"""Words of names that say only how much to return, or how long to wait for it. A smaller one gives less of the same."""
_SIZE_HEADS = frozenset(
    "limit max maximum top k n num count size per batch chunk buffer first take fetch timeout "
    "concurrency parallelism".split()
)
"""Words of which such a name has at least one."""
_POSITION_WORDS = frozenset("page offset skip start cursor after before marker position begin from".split())
"""Last words of names that say where the results begin."""
_CONTINUATION_WORDS = frozenset("cursor continuation scroll marker offset skip next".split())
"""Words of such names at any place: `next_token`, `scroll_id`."""
_SETTING_VERBS = frozenset(
    "set configure config update change adjust modify edit enable disable schedule reschedule limit cap".split()
)
"""First words of tools that set something."""
_SUBJECT_WORDS: dict[str, str] = {
    word: subject
    for subject, words in {
        "a unit": "unit units uom measure measurement interval resolution granularity timeframe precision",
        "a currency": "currency currencies ccy",
        "a time zone": "timezone tz zone",
        "a date": "date dates day month year week quarter time datetime timestamp when since until from to start end "
        "begin deadline due expiry expires expiration at before after season period",
        "a direction": "order direction ordering sort side sign reverse inverse negate invert mode operator comparison",
        "a permission": "role access permission visibility privacy audience sharing acl grant policy",
        "a setting": "retention retain quota spending budget schedule cron threshold setting",
    }.items()
    for word in words.split()
}
"""Words of names whose value is what the call is about."""


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call as its caller asked for it, and who reads what became of it."""

    tool: str
    effects: Effects
    arguments: Mapping[str, Any]
    has_reader: bool = True
    """Whether a model reads the note about a change. A program does not: it takes the result for what it asked for."""
    clamp: frozenset[str] = frozenset()
    """Arguments for which the tool's author prefers the bound to an error."""
    schema: CompiledSchema | None = None


def find_value(arguments: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path such as `filter.days` or `legs.0.day`, or None."""
    value: Any = arguments
    for part in path.split("."):
        if isinstance(value, list | tuple) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def find_objection(change: Change, call: RequestedCall) -> str:
    """Return why a change must not be executed without asking, or an empty string."""
    if keeps_value(change, call):
        return ""
    name, is_bound = argument_name(change.path), change.operation == "clamp"
    if is_bound and not call.clamp.isdisjoint((name, change.path)):
        return ""  # the author of the tool was asked
    if is_bound and not measures_quantity(change.path, change.before, change.after):
        return f"{name} may identify an object, and the bound would be another one"
    if change.operation == "rename" and change.source != "memory":
        return f"{name} and {argument_name(str(change.after))} may be two arguments"
    advice = f'; @mulligan.tool(clamp=["{name}"]) allows it' if is_bound else ""
    if call.effects != "none":
        return f"{call.tool} may have effects, and with another {name} it would do something else{advice}"
    if not call.has_reader:
        return f"a program made the call, and would not notice another {name}{advice}"
    if change.operation == "enum" and isinstance(change.before, str) and is_same_code(change.before, str(change.after)):
        return ""
    if reason := _describe_subject(change, call):
        return reason + advice
    if is_bound and not _is_smaller_size(name, change.before, change.after):
        return f"with another {name}, the result would answer another question{advice}"
    if change.operation in ("drop", "default"):
        return f"the call does not ask for the default of {name}"
    return ""


def keeps_value(change: Change, call: RequestedCall) -> bool:
    """Return whether a change is another form of the same value."""
    before, after, name = change.before, change.after, argument_name(change.path)
    match change.operation:
        case "rename":
            return is_same_name(name, str(after), find_value(call.arguments, change.path))
        case "drop":
            return is_empty(before) and _acts_like_null(change.path, call)
        case "enum":
            return is_same_word(before, after) or _is_same_value(before, after, name)
        case "substitute" if change.source == "run":
            return normalize_name(str(before)) == normalize_name(str(after))
        case "cast" | "parse" | "wrap" | "trim" | "substitute":
            return _is_same_value(before, after, name)
        case "clamp" | "default":
            return False


def _acts_like_null(path: str, call: RequestedCall) -> bool:
    """Return whether an omitted argument is the same as null: its default is nothing or a size.

    Models send null for an argument that they leave out. An unknown one may be meant for a declared argument whose name
    shares a word: `expires_at=None` is not the default of `expires_days`.
    """
    schema = call.schema
    if schema is None:
        return True
    if (node := schema.find_node(path)) is not None:
        return _is_null_default(argument_name(path), node, call)
    words = frozenset(lower_words(argument_name(path)))
    return all(
        _is_null_default(name, schema.find_node(name) or {}, call)
        for name in schema.properties
        if name not in call.arguments and not words.isdisjoint(lower_words(name))
    )


def _is_null_default(name: str, node: Mapping[str, Any], call: RequestedCall) -> bool:
    default = node.get("default")
    is_nothing = default is None or default is False or default == "none" or is_empty(default)
    # A read without a size returns as much as usual. Of other tools it may be a limit: `max_size` of a cluster.
    return is_nothing or (is_number(default) and call.effects == "none" and _is_size_name(name))


def _is_same_value(before: Any, after: Any, name: str, depth: int = 0) -> bool:
    """Return whether two values differ only in type, quotes, spaces, or a list or object around one of them."""
    if is_same_json(before, after):
        return True
    if depth > MAX_VALUE_DEPTH:
        return False
    if isinstance(after, list) and not isinstance(before, list | tuple | Mapping):
        parsed = parse_json_text(before) if isinstance(before, str) else None
        candidates = (parsed, [before]) if parsed is not None else ([before],)
        return any(_is_same_value(candidate, after, name, depth + 1) for candidate in candidates)
    if isinstance(before, list | tuple):
        if isinstance(after, list):
            pairs = zip(before, after, strict=False)
            return len(before) == len(after) and all(_is_same_value(*pair, name, depth + 1) for pair in pairs)
        return len(before) == 1 and _is_same_value(before[0], after, name, depth + 1)
    if isinstance(before, Mapping):
        if isinstance(after, Mapping):
            return before.keys() == after.keys() and all(
                _is_same_value(before[key], after[key], name, depth + 1) for key in before
            )
        if isinstance(after, list):
            return _is_same_value([before], after, name, depth + 1)
        ((key, inner),) = before.items() if len(before) == 1 else (("", None),)
        is_bare = normalize_name(str(key)) in ("value", normalize_name(name))
        return is_bare and _is_same_value(inner, after, name, depth + 1)
    if isinstance(after, Mapping):
        return isinstance(before, str) and _is_same_value(parse_json_text(before), after, name, depth + 1)
    return before is not None and after is not None and _plain_text(before) == _plain_text(after)


def _plain_text(value: Any) -> str:
    """Return a scalar as text: equal for 3, 3.0, "3" and " '3' ", and for True and "true"."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    text = strip_quotes(str(value))
    if text.casefold() in ("true", "false"):
        return text.casefold()
    integer, point, fraction = text.partition(".")
    is_decimal = point and integer.lstrip("-").isdigit() and fraction.isdigit()
    return text.rstrip("0").rstrip(".") if is_decimal else text


def _describe_subject(change: Change, call: RequestedCall) -> str:
    """Return why the value is what the call is about, or an empty string."""
    name = argument_name(change.path)
    words = lower_words(name)
    position = next((other for other, value in call.arguments.items() if is_position(other, value)), None)
    if is_position(name, change.before):
        return f"{name} is the place where the results begin"
    if position is not None and _is_size_name(name):
        return f"the call reads page by page ({position}), and with another {name} it would miss results"
    if isinstance(change.before, bool) or isinstance(change.after, bool):
        return f"{name} is a decision"
    tool_words = lower_words(call.tool.rpartition(".")[2])
    if tool_words and tool_words[0] in _SETTING_VERBS:
        return f"{name} is a setting"
    subject = next((_SUBJECT_WORDS[word] for word in (*words, *tool_words) if word in _SUBJECT_WORDS), "")
    if subject and (subject == "a setting" or any(word in _SUBJECT_WORDS for word in words)):
        return f"{name} is {subject}, which the call is about"
    return ""


def is_position(name: str, value: Any) -> bool:
    """Return whether an argument says where the results begin, so that its call reads page by page."""
    words = lower_words(str(name))
    if value is None or not words or words[0] == "per":
        return False
    return words[-1] in _POSITION_WORDS or not _CONTINUATION_WORDS.isdisjoint(words) or words[-2:] == ["page", "token"]


def _is_size_name(name: str) -> bool:
    words = lower_words(name)
    has_head = not _SIZE_HEADS.isdisjoint(words) or words[:2] == ["number", "of"]
    return has_head and _SIZE_WORDS.issuperset(words)


def _is_smaller_size(name: str, before: Any, after: Any) -> bool:
    try:
        return _is_size_name(name) and bool(float(after) < float(before))
    except (TypeError, ValueError, OverflowError):
        return False
