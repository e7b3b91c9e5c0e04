"""Reduction of recorded values: values to their shape, the conversation of any provider to a summary.

A summary has the role and size of each message, and the last user message.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mulligan.core import fork_safety
from mulligan.core.failure import Failure
from mulligan.core.records import Change, Link, Recovery, RecoveryStop, Step, SuspectedFailure, digest
from mulligan.core.value_snapshots import IMMUTABLE_TYPES, restore_value, snapshot_value
from mulligan.prompt import last_turn_notice
from mulligan.redaction.plain_data import find_fields, read_buffer

if TYPE_CHECKING:
    from mulligan.core.conversation import Message
    from mulligan.core.token_usage import TokenUsage

MAX_QUOTED_TEXTS = 200
"""Texts of a call that are removed from the message of its failure."""
MAX_LISTED_MESSAGES = 200
"""The latest messages that are listed one by one. Earlier ones are only counted."""
MAX_CACHED_SUMMARIES = 5000
"""Summaries of messages that are kept for the next model calls, in all runs at once."""
MAX_USER_CHARS = 300
"""Characters of the last user message."""
MAX_ANSWER_CHARS = 2000
"""Characters of a model's answer."""
States = dict[str, list[Any]]
"""What plain objects hold, by the name of their argument: see `to_plain_data`."""


def snapshot_arguments(arguments: Mapping[str, Any], states: States | None = None) -> dict[str, Any]:
    """Return snapshots of the arguments, and add what plain objects in them hold to `states`."""
    snapshots = {}
    for name, value in arguments.items():
        if type(value) in IMMUTABLE_TYPES:
            snapshots[name] = value
            continue
        value_states: list[Any] | None = None if states is None else []
        snapshots[name] = snapshot_value(value, value_states)
        if states is not None and value_states:
            states[name] = value_states
    return snapshots


def copy_arguments(arguments: Mapping[str, Any], states: States | None = None) -> dict[str, Any]:
    """Copy arguments: the function may modify them. Add what plain objects in them hold to `states`."""
    return {name: restore_value(value) for name, value in snapshot_arguments(arguments, states).items()}


def copy_data(value: Any) -> Any:
    """Return a deep copy of an argument for one attempt. Clients and other resources in it are shared, not copied."""
    import copy  # lazy: few tools ask for copies

    if type(value) in IMMUTABLE_TYPES:
        return value
    shared_values: dict[int, Any] = {}
    pending, searched_ids = [value], set[int]()
    # Values of an argument that are searched for clients and other resources before it is copied for an attempt.
    while pending and len(searched_ids) < 10_000:
        member = pending.pop()
        if type(member) in IMMUTABLE_TYPES or id(member) in searched_ids:
            continue
        searched_ids.add(id(member))
        if isinstance(member, dict):
            pending += member.values()
        elif isinstance(member, list | tuple | set | frozenset | deque):
            pending += member
        elif (fields := find_fields(member)) is not None:
            pending += fields.values()
        elif read_buffer(member) is None:
            shared_values[id(member)] = member
    try:
        return copy.deepcopy(value, shared_values)
    except Exception:  # noqa: BLE001 - code of a class that cannot be copied; a change to it is detected afterwards
        return value


def shape(value: Any, shareable: Collection[str] = ()) -> Any:
    """Return a value without its text: type and length, except of numbers and shareable texts."""
    kind = type(value)
    if kind is str:
        return value if value in shareable else {"$str": len(value)}
    if kind in IMMUTABLE_TYPES:
        return value
    if isinstance(value, list | tuple | dict | set | frozenset | bytes | bytearray):
        return {"$type": kind.__name__, "length": len(value)}
    return {"$type": kind.__name__}


def shapes(values: Mapping[str, Any], shareable: Collection[str] = ()) -> dict[str, Any]:
    return {name: shape(value, shareable) for name, value in values.items()}


class ValueRecorder:
    """Copies the values of one function's calls for recording, reduced if less than everything is recorded."""

    __slots__ = ("_default_model", "_shareable_texts", "has_messages", "is_model", "is_reduced", "is_shape")

    def __init__(
        self,
        *,
        is_shape: bool,
        is_model: bool,
        shareable_texts: Callable[[], Collection[str]],
        model: object = None,
        has_messages: bool = False,
    ) -> None:
        self.is_shape = is_shape
        self.is_model = is_model
        self.has_messages = has_messages
        """Whether the messages of a model's conversations are recorded, and not only their sizes."""
        self.is_reduced = is_shape or is_model
        self._shareable_texts = shareable_texts
        self._default_model = model if isinstance(model, str) else None
        """The model of calls that name none."""

    def without_messages(self) -> ValueRecorder:
        """Return a recorder that records conversations by their sizes."""
        return ValueRecorder(
            is_shape=self.is_shape,
            is_model=self.is_model,
            shareable_texts=self._shareable_texts,
            model=self._default_model,
        )

    def arguments(
        self, arguments: Mapping[str, Any], is_replaced: bool = False, states: States | None = None
    ) -> tuple[dict[str, Any], str | None]:
        """Return the arguments as recorded, and the user's last text if they contain a conversation.

        `is_replaced` means that another function is called with them. What plain objects hold is added to `states`.
        """
        if not self.is_reduced:
            return copy_arguments(arguments, states), None
        if not self.is_model:
            return shapes(arguments, self._shareable_texts()), None
        if self._default_model is not None and not is_replaced and "model" not in arguments:
            arguments = {**arguments, "model": self._default_model}
        # Summarized here and not by the recorder: a copy of the conversation would cost as much as its sizes.
        summary, user_text = summarize_arguments(arguments, has_texts=not self.is_shape, has_messages=self.has_messages)
        if not self.is_shape:
            return copy_arguments(summary, states), user_text
        shareable = self._shareable_texts()
        reduced = {
            name: value if value is not arguments.get(name) else shape(value, shareable)
            for name, value in summary.items()
        }
        if isinstance(model := arguments.get("model"), str):
            reduced["model"] = model[:200]  # tokens and costs are grouped by it
        return reduced, None

    def values(self, arguments: Mapping[str, Any], states: States | None = None) -> dict[str, Any] | None:
        """Return a copy of arguments whose recorded form does not suffice to judge links; otherwise None."""
        return copy_arguments(arguments, states) if self.is_shape and not self.is_model else None

    def result(self, result: Any) -> Any:
        if self.is_shape:
            return None
        if not self.is_model:
            return result
        if not self.has_messages:
            return shorten_answer(result)
        shortened = shorten_answer(result, MAX_USER_CHARS)
        # The answer is recorded as a message: what it calls is not recorded a second time.
        return _name_calls(result) if shortened is result and not isinstance(result, str) else shortened

    def usage(self, result: Any) -> TokenUsage | None:
        return _token_usage().read_usage(result) if self.is_model else None

    def failure(self, failure: Failure | None, arguments: Mapping[str, Any]) -> Failure | None:
        """Return a failure as recorded: in shape, without its detail and without the call's own texts."""
        if failure is None or not self.is_shape:
            return failure
        message, hint = failure.message, failure.hint
        for name, text in _texts(arguments):
            message = message.replace(text, f"[{name}]")
            hint = hint.replace(text, f"[{name}]")
        return msgspec.structs.replace(failure, message=message, hint=hint, detail="")

    def suspected(self, suspected: SuspectedFailure | None) -> SuspectedFailure | None:
        """Return a suspected failure as recorded: in shape, without the part of the result."""
        if suspected is None or not self.is_shape:
            return suspected
        return msgspec.structs.replace(suspected, sentence="")

    def recovery(self, recovery: Recovery | None) -> Recovery | None:
        if recovery is None or not self.is_shape or not recovery.changes:
            return recovery
        return msgspec.structs.replace(recovery, changes=tuple(map(self._change, recovery.changes)))

    def links(self, links: Iterable[Link]) -> tuple[Link, ...]:
        if not self.is_shape:
            return tuple(links)
        return tuple(msgspec.structs.replace(link, changes=tuple(map(self._change, link.changes))) for link in links)

    def stop(self, stop: RecoveryStop | None) -> RecoveryStop | None:
        if stop is None or not self.is_shape:
            return stop
        suggestions = tuple(
            reduced for suggestion in stop.suggestions if (reduced := self.recovery(suggestion)) is not None
        )
        return msgspec.structs.replace(stop, suggestions=suggestions)

    def _change(self, change: Change) -> Change:
        if change.operation == "rename":
            return change  # from one name to another
        shareable = self._shareable_texts()
        return msgspec.structs.replace(
            change, before=shape(change.before, shareable), after=shape(change.after, shareable)
        )


def to_shape(step: Step) -> Step:
    """Return a step that was recorded in full, such as one of a log, as `record="shape"` records it."""
    recorder = ValueRecorder(is_shape=True, is_model=step.type == "model", shareable_texts=tuple)
    is_named = isinstance(step.arguments, Mapping)
    arguments = step.arguments if is_named else {"arguments": step.arguments}
    failure = recorder.failure(step.failure, arguments)
    return msgspec.structs.replace(
        step,
        arguments=recorder.arguments(arguments)[0] if is_named else shape(step.arguments),
        result=None,
        failure=failure and msgspec.structs.replace(failure, trace=""),
        recovery=recorder.recovery(step.recovery),
        stop=recorder.stop(step.stop),
        links=recorder.links(step.links),
        suspected=recorder.suspected(step.suspected),
        messages=(),
        answer=None,
    )


def links_to_shape(links: Iterable[Link]) -> tuple[Link, ...]:
    """Return links without the texts that were changed."""
    return ValueRecorder(is_shape=True, is_model=False, shareable_texts=tuple).links(links)


def _texts(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the texts of a call with the name of their argument, the longest first: one may be part of another."""
    texts: list[tuple[str, str]] = []
    pending: list[tuple[str, Any, int]] = [(str(name), value, 0) for name, value in arguments.items()]
    while pending and len(texts) < MAX_QUOTED_TEXTS:
        name, value, depth = pending.pop()
        if isinstance(value, str):
            # Shorter texts of a call are not removed from the message of its failure: they would match everywhere.
            if len(value) >= 4:
                texts.append((name, str(value)))
        elif depth < 6 and isinstance(value, dict | list | tuple):
            members = list(value.values() if isinstance(value, dict) else value)[:MAX_QUOTED_TEXTS]
            pending.extend((name, member, depth + 1) for member in members)
    return sorted(texts, key=lambda entry: -len(entry[1]))


@functools.cache
def _conversations() -> Any:
    """Import the parser of conversations at the first model call."""
    with fork_safety.import_lock:
        from mulligan.core import conversation
    return conversation


@functools.cache
def _token_usage() -> Any:
    """Import the reader of token usage at the first model call."""
    with fork_safety.import_lock:
        from mulligan.core import token_usage
    return token_usage


def summarize_arguments(
    arguments: Mapping[str, Any], *, has_texts: bool = True, has_messages: bool = False
) -> tuple[dict[str, Any], str | None]:
    """Summarize the conversation in the arguments of a model call. Return them with the last user text.

    Without `has_texts`, the summary contains nothing derived from texts, not even hashes. With `has_messages`, the
    messages themselves are recorded, and the summary does not list them.
    """
    parser = _conversations()
    summary = dict(arguments)
    user_text = None
    name = parser.conversation_argument(arguments)
    if name is not None:
        conversation = arguments[name]
        sources = conversation if isinstance(conversation, list | tuple) else [conversation]
        newest_first = map(_summarize_message, reversed(sources[-MAX_LISTED_MESSAGES:]))
        messages = newest_first if has_messages else list(newest_first)
        user_text = next((message.user_text for message in messages if message.user_text), None)
        summary[name] = {"count": len(sources)}
        if isinstance(messages, list):
            summary[name]["each"] = [message.describe(has_texts) for message in reversed(messages)]
        else:
            summary[name]["recorded"] = True
        if has_texts and user_text:
            summary[name]["last_user"] = user_text
    for instruction in parser.INSTRUCTION_ARGUMENTS:
        value = summary.get(instruction)
        if isinstance(value, str | list | tuple | dict):
            message = _summarize_message({"content": value} if isinstance(value, list | tuple) else value)
            summary[instruction] = message._replace(role="system").describe(has_texts)
    return summary, user_text


def find_user_texts(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the user wrote in the conversation of a model call, message by message, truncated."""
    name = _conversations().conversation_argument(arguments)
    conversation = arguments[name] if name is not None else ()
    sources = conversation if isinstance(conversation, list | tuple) else [conversation]
    texts = map(_find_user_text, sources)
    return tuple(text for text in texts if text and not text.endswith(last_turn_notice()))


def _find_user_text(source: Any) -> str:
    """Return what the user wrote in a message, truncated, or an empty string. The usual forms need no summary."""
    if type(source) is dict:
        role, content = source.get("role"), source.get("content")
    else:
        role, content = getattr(source, "role", None) or getattr(source, "type", None), getattr(source, "content", None)
    if role in ("user", "human") and type(content) is str:
        return _truncate_user_text(content[: MAX_USER_CHARS * 4])
    if type(role) is str and role in _OTHER_ROLES:
        return ""
    return _summarize_message(source).user_text


_OTHER_ROLES = frozenset({"assistant", "ai", "tool", "system", "developer", "model", "function"})


@functools.lru_cache(maxsize=2000)
def _truncate_user_text(text: str) -> str:
    """Truncate what a user wrote. Cached: each model call sends the whole conversation again."""
    return truncate_at_word(text, MAX_USER_CHARS)


class _MessageSummary(NamedTuple):
    role: str
    chars: int
    hash: str
    user_text: str
    """What the user wrote, truncated. Empty in other messages."""

    def describe(self, has_texts: bool) -> dict[str, Any]:
        summary: dict[str, Any] = {"role": self.role, "chars": self.chars}
        return {**summary, "hash": self.hash} if has_texts else summary


_summaries: dict[tuple[type, bytes], _MessageSummary] = {}
"""Summaries by the type and the content of a message: each model call sends the whole conversation again."""


def _summarize_message(source: Any) -> _MessageSummary:
    try:
        key = type(source), digest(msgspec.msgpack.encode(source, enc_hook=_read_attributes), 16)
    except Exception:  # noqa: BLE001 - a message may be any object; one that cannot be encoded is parsed each time
        return _parse_summary(source)
    summary = _summaries.get(key)
    if summary is None:
        if len(_summaries) >= MAX_CACHED_SUMMARIES:
            _summaries.clear()
        summary = _summaries[key] = _parse_summary(source)
    return summary


def _read_attributes(value: Any) -> Any:
    """Return everything that a message can show of an object. Raise TypeError if that is not in its attributes."""
    value_type = type(value)
    if any(hasattr(value_type, name) for name in ("__getattr__", "__getitem__", "__slots__")) and not hasattr(
        value_type, "__pydantic_fields__"
    ):
        raise TypeError(value_type)
    return value_type.__qualname__, vars(value), getattr(value, "__pydantic_extra__", None)


def _parse_summary(source: Any) -> _MessageSummary:
    message: Message = _conversations().parse_message(source)
    texts = [
        text
        for block in message.blocks
        for text in ([slot.text for slot in block.slots] or [_conversations().to_text(block.value)])
        if block.value is not None
    ]
    is_user = message.label.lower() in ("user", "human")
    return _MessageSummary(
        role=message.label[:40],
        chars=sum(map(len, texts)),
        hash=digest("\n".join(texts).encode("utf-8", "replace"), 4).hex(),
        user_text=truncate_at_word(" ".join(message.texts), MAX_USER_CHARS) if is_user else "",
    )


def truncate_at_word(text: str, limit: int) -> str:
    """Truncate a text at a word boundary: redaction would not recognize half a secret."""
    text = " ".join(text[: limit * 4].split())
    if len(text) <= limit:
        return text
    return f"{text[: max(text.rfind(' ', 0, limit), 0)]} ...".strip()


def shorten_answer(result: Any, limit: int = MAX_ANSWER_CHARS) -> Any:
    """Return a model's answer as recorded: its truncated text, or the answer itself if no text is found."""
    if isinstance(result, str):
        return _shorten(result, limit)
    if isinstance(result, list | tuple):
        return result
    text = _conversations().answer_text(result)
    return {"text": _shorten(text, limit)} if text else result


def _name_calls(answer: Any) -> Any:
    """Return the names of the tools that an answer calls, or the answer itself if it calls none."""
    parser = _conversations()
    blocks = (parser.parse_answer(answer) or parser.parse_message(answer)).blocks
    names = [block.name for block in blocks if block.type == "call" and isinstance(block.name, str)]
    return {"calls": names} if names else answer


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else truncate_at_word(text, limit)
