"""Recorded conversations: every message once, with failures and their recovery at their place.

A call sends the whole conversation again. Only what no earlier call has sent is listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from mulligan.core import calls
from mulligan.core.records import (
    History,
    MessagePart,
    Record,
    RecordedMessage,
    Step,
    encode,
    message_numbers,
)
from mulligan.report import call_text
from mulligan.report.tables import format_count, to_line, wrap_text

MAX_PART_CHARS = 2000
"""Characters of one part in the text of a conversation, without `--full`."""


class ConversationEntry(Record, frozen=True):
    """A message of a conversation, a failed attempt, or the recovery before an attempt."""

    type: Literal["message", "failure", "recovery"]
    run: str
    seq: int
    """The attempt that received or answered the message, that failed, or that follows the recovery."""
    name: str = ""
    """The model or tool of the attempt."""
    message: RecordedMessage | None = None
    kind: str = ""
    text: str = ""
    """What failed, or what recovery did. Untrusted text: sanitize it when shown."""
    recovered: bool | None = None
    """Of a failure: whether its call recovered later."""


def build_conversation(histories: Iterable[History]) -> list[ConversationEntry]:
    """Return the conversation of runs, in the order of these runs."""
    entries: list[ConversationEntry] = []
    listed_counts: Counter[bytes] = Counter()
    for history in histories:
        entries += _iterate_entries(history, listed_counts)
    return entries


def count_messages(entries: Iterable[ConversationEntry]) -> int:
    return sum(entry.type == "message" for entry in entries)


def _iterate_entries(history: History, listed_counts: Counter[bytes]) -> Iterator[ConversationEntry]:
    """Yield what a run adds. `listed_counts` counts the messages of earlier entries by content."""
    messages = {message.number: message for message in history.messages}
    contents = {number: encode((message.role, message.parts)) for number, message in messages.items()}
    links = history.links_by_call
    recovered = {call.id for call in calls.group_attempts(history.steps) if call.is_recovered(links.get(call.id))}
    for step in history.steps:
        if step.recovery is not None and not step.is_summary:
            facts = [call_text.describe_recovery(step.recovery), *call_text.describe_compression(step)[:1]]
            yield _entry(step, "recovery", text=", ".join(facts).replace(" -> ", " to "))  # pages sanitize arrows
        sent_counts: Counter[bytes] = Counter()
        answers = () if step.answer is None else (step.answer,)
        for number in (*message_numbers(step), *answers):
            if number not in messages:
                continue
            # Counted: a conversation may contain equal messages.
            sent_counts[contents[number]] += 1
            if sent_counts[contents[number]] > listed_counts[contents[number]]:
                listed_counts[contents[number]] += 1
                yield _entry(step, "message", message=messages[number])
        if step.failure is not None and step.has_failed:
            text = step.failure.message
            if step.stop is not None and step.stop.reason:
                text = f"{text} (recovery stopped: {step.stop.reason})"
            yield _entry(step, "failure", kind=str(step.failure.kind), text=text, recovered=step.call in recovered)


def _entry(step: Step, type: Literal["message", "failure", "recovery"], **fields: object) -> ConversationEntry:
    return ConversationEntry(type=type, run=step.run, seq=step.seq, name=step.name, **fields)  # type: ignore[arg-type]


def describe_part(part: MessagePart) -> str:
    """Return a part of a message as text: what was written, a call with its arguments, or a tool's result."""
    if part.type == "call":
        arguments = "" if part.arguments is None else encode(part.arguments).decode()
        return f"call {part.name or 'tool'} {arguments or part.text}".rstrip()
    if part.type == "result":
        return f"{'error' if part.is_error else 'result'} of {part.name or 'a tool'}: {part.text}"
    return f"reasoning: {part.text}" if part.type == "reasoning" else part.text


def render_conversation(history: History, width: int | None = None, is_full: bool = False) -> Iterator[str]:
    """Render the recorded conversation of one run. With `is_full`, long messages are not cut."""
    entries = build_conversation([history])
    if not history.messages:
        yield f'{history.run.id} has no recorded messages. Record them: @mulligan.model(record="full")'
        return
    failures = sum(entry.type == "failure" for entry in entries)
    counts = f"{format_count(count_messages(entries), 'message')}, {format_count(failures, 'failed attempt')}"
    yield from wrap_text(f"{history.run.id} conversation: {counts}.", width, "")
    yield ""
    for entry in entries:
        yield from _render_entry(entry, width, None if is_full else MAX_PART_CHARS)


ROLE_CHARS = 11
"""Width of the first column."""


def _render_entry(entry: ConversationEntry, width: int | None, limit: int | None) -> Iterator[str]:
    indent = " " * ROLE_CHARS
    if entry.message is None:
        mark = "x" if entry.type == "failure" else ">"
        text = to_line(entry.text, 300)
        if entry.type == "failure":
            outcome = "recovered later" if entry.recovered else "unrecovered"
            text = f"{entry.kind} in {to_line(entry.name or '-', 40)}, {outcome}: {text}"
        yield from wrap_text(f"{mark:<{ROLE_CHARS}}{text}", width, "", indent)
        return
    label = to_line(entry.message.role, ROLE_CHARS - 1)
    for part in entry.message.parts:
        text = describe_part(part)
        for line in text[:limit].splitlines():
            yield from wrap_text(f"{label:<{ROLE_CHARS}}{to_line(line, len(line) + 1)}", width, "", indent)
            label = ""
        if limit is not None and len(text) > limit:
            yield f"{indent}... {format_count(len(text) - limit, 'character')} more (--full)"
