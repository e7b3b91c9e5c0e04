"""Lost answers: calls that may have executed, with an unknown outcome, until something settles it.

Pure. A model that asks for the same call again must not execute it twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from mulligan.core.argument_comparison import is_word_of
from mulligan.core.calls import parse_json
from mulligan.core.failure import Failure
from mulligan.core.privileged_arguments import MAX_NAME_CHARS, PRIVILEGED_WORDS, split_words
from mulligan.core.quantity_arguments import measures_quantity
from mulligan.recover.schema import MAX_CALL_VALUES, iter_scalars, measure_extent

MAX_LOST_ANSWERS = 200
"""Lost answers of one session that are remembered, the latest."""
MAX_SESSIONS = 1000
"""Sessions with lost answers that are remembered, the latest."""
MAX_CONVERSATIONS = 5
"""Conversations of one loop before its first tool call whose user messages are remembered, the latest."""
MAX_IDENTIFIER_CHARS = 200
MIN_IDENTIFYING_NUMBER = 1000
"""A smaller number under a name that is no id says nothing: amounts, pages and counts are equal by chance."""
MAX_SEARCHED_CHARS = 100_000
"""Characters of a result that are searched for an identifier."""
_MONEY_WORDS = frozenset(PRIVILEGED_WORDS["money"].split())
_ID_WORDS = frozenset("id ids uid uuid guid identifier key ref reference no nr number".split())
_NO_OBJECT_WORDS = _MONEY_WORDS | frozenset("year month week day date time hour minute zip port".split())
"""Words in names of arguments whose numbers many objects share."""
_DATE = re.compile(r"\d{4}-\d\d(?:-\d\d(?:[T ]\d\d:\d\d.*)?)?|\d\d?[./]\d\d?[./]\d{2,4}|\d\d?:\d\d(?::\d\d)?")
_AMOUNT = re.compile(r"[-+]?\d*[.,]?\d+\s?\D{0,3}")
"""A number in a text, perhaps with a unit or a currency."""


class UserMessages(msgspec.Struct, frozen=True):
    """What the user had written in a conversation: how many messages, and the last one."""

    count: int
    last: str

    def are_followed_by(self, texts: Sequence[str], *, starts_loop: bool) -> bool:
        """Return whether a conversation with these texts of the user has a newer message.

        A program may make other model calls in between. So the conversation must contain what the user had written
        before, unless the program starts a loop with it.
        """
        if starts_loop:
            return texts[-1] != self.last or len(texts) > self.count
        return len(texts) > self.count and self.last in texts[:-1]


class CallIdentity(msgspec.Struct, frozen=True):
    """What makes two calls the same: the tool and its arguments."""

    key: str
    name: str
    """The name by which a model called it; empty for a call of the program."""
    owner: int
    """The identity of the object whose method is called, or 0."""
    arguments: dict[str, bytes]
    """Arguments by name as JSON, with defaults."""

    def is_same_as(self, other: CallIdentity) -> bool:
        """Return whether both are the same call. A model names only the tool, whose object may be another one."""
        if self.key != other.key or self.arguments != other.arguments:
            return False
        return self.name == other.name if self.name and other.name else self.owner == other.owner


class LostAnswer(msgspec.Struct, frozen=True, eq=False):
    """A call that may have executed and whose answer was lost."""

    run: str
    number: int
    """The number of the call in its run."""
    parent: int | None
    """The number of the enclosing attempt."""
    tool: str
    call: CallIdentity
    identifiers: frozenset[tuple[str, str]]
    """Values that say which object the call was about, each with the name that it must have; mostly empty."""
    failure: Failure | None
    """None if the call was cut off."""
    user_messages: tuple[UserMessages, ...]
    """What the user had written, in each conversation of the loop."""
    settled_calls: set[int]
    """The settled calls of its run, to which it is added."""

    def is_named(self, tool: str | None, arguments: Mapping[str, bytes]) -> bool:
        """Return whether it is a call of this tool, or of any for None, with at least these arguments."""
        is_tool = tool is None or tool in (self.tool, self.call.name)
        return is_tool and all(self.call.arguments.get(name) == value for name, value in arguments.items())

    def is_looked_up(self, arguments: Any, result: Any) -> bool:
        """Return whether a call that only reads was about the same object, by its arguments or its result."""
        text = "\n".join(_to_text(value)[:MAX_SEARCHED_CHARS] for value in (arguments, result)).casefold()
        if any(not name and is_word_of(value, text) for name, value in self.identifiers):
            return True
        parsed_result = parse_json(result) if isinstance(result, str) else result
        return not self.identifiers.isdisjoint(
            (str(path[-1]).casefold(), str(leaf))
            for source in (arguments, parsed_result)
            for path, leaf in iter_scalars(source)
            if path
        )

    def is_followed_by(self, texts: Sequence[str], *, starts_loop: bool) -> bool:
        """Return whether the user has written something since, by the user's texts of a conversation."""
        follows = [messages.are_followed_by(texts, starts_loop=starts_loop) for messages in self.user_messages]
        return any(follows) and (all(follows) or not starts_loop)


def encode_arguments(arguments: Mapping[str, Any]) -> dict[str, bytes]:
    """Return arguments as JSON by name, equal for equal values: in any order of keys, 120 like 120.0."""
    return {str(name): _encode(value) for name, value in arguments.items()}


def _encode(value: Any) -> bytes:
    """Return a value as JSON. One that is very large, or no JSON, is equal only to itself."""
    try:
        if measure_extent(value)[1] <= MAX_CALL_VALUES:
            return _encoder.encode(
                _normalize(msgspec.to_builtins(value, builtin_types=(Decimal,), enc_hook=_describe_object))
            )
    except Exception:  # noqa: BLE001 - a foreign object, or a cycle
        pass
    return repr(type(value)).encode() + str(id(value)).encode()


_encoder = msgspec.json.Encoder(order="sorted", enc_hook=str)


def _describe_object(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else repr(value)


def _normalize(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _normalize(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_normalize(member) for member in value]
    if isinstance(value, float | Decimal):
        return int(value) if value == int(value) else float(value)
    return value


def find_identifiers(arguments: Mapping[str, Any], enum_members: Collection[str] = ()) -> frozenset[tuple[str, str]]:
    """Return the values of a call that say which object it is about, each with the name that it must have, if any."""
    return frozenset(_iter_identifiers(arguments, enum_members))


def _iter_identifiers(arguments: Mapping[str, Any], enum_members: Collection[str]) -> Iterator[tuple[str, str]]:
    for path, value in iter_scalars(arguments, 50):
        name = next((str(part) for part in reversed(path) if isinstance(part, str)), "")[:MAX_NAME_CHARS]
        words = {word.casefold() for word in split_words(name)}
        has_id_name = not words.isdisjoint(_ID_WORDS)
        is_object = has_id_name or (words.isdisjoint(_NO_OBJECT_WORDS) and not measures_quantity(name, value))
        if isinstance(value, str):
            if value not in enum_members and _is_identifier(value.strip(), is_object=is_object):
                yield "", value.strip().casefold()
        elif isinstance(value, int) and not isinstance(value, bool) and is_object:
            if abs(value) >= MIN_IDENTIFYING_NUMBER:
                yield "", str(value)
            elif has_id_name:  # a small number identifies nothing by itself, but an order with this id does
                yield name.casefold(), str(value)


def _is_identifier(text: str, *, is_object: bool) -> bool:
    """Return whether a text names one object: an id, a code, an address or a path, and no word, date or amount."""
    if not 3 <= len(text) <= MAX_IDENTIFIER_CHARS or " " in text or _DATE.fullmatch(text):
        return False
    if text.isdigit():
        return is_object and int(text) >= MIN_IDENTIFYING_NUMBER
    has_digit = any(character.isdigit() for character in text)
    return "@" in text or "/" in text or (has_digit and not _AMOUNT.fullmatch(text))


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode("utf-8", "replace")
