"""Compression of a conversation to a token limit.

Compression proceeds in steps until the estimate fits. First it shortens the long tool results of the older half to one
common length, then its other long texts, then it removes exchanges from the middle towards the beginning. If that is
not enough, it does the same to the newer half. The system prompt, the last user turn and the newest exchange never
change.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, get_args

from mulligan.core.conversation import (
    Message,
    Role,
    TextSlot,
    find_unpaired,
    group_exchanges,
    parse_messages,
    user_message,
)
from mulligan.recover.plan import QueryMove
from mulligan.recover.tokens import TokenScale, estimate_tokens

DEFAULT_COMPRESS_ABOVE_CHARS = 2000
"""A shorter tool result is left unchanged as long as a longer one can be shortened."""
GAP_NOTE_TOKENS = 40.0
"""Tokens of the note that replaces removed exchanges."""
SUMMARY_RATIO = 0.12
"""Share of the limit that summaries of removed exchanges may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionResult:
    """A compressed conversation and how it was compressed."""

    messages: Sequence[Any]
    steps: int
    """Messages that were shortened or removed."""
    chars_before: int
    chars_after: int
    tokens_before: int
    tokens_after: int
    """As estimated, or as counted by the provider."""
    shortened_by: str
    """What shortened it: summariser, structure or model."""
    shortened_texts: tuple[tuple[int, str], ...]
    """Texts of tool results that were shortened or removed, with the index of their message."""
    fits: bool


@dataclass(slots=True, eq=False)
class _Text:
    """A text that may be shortened."""

    message: int
    slot: TextSlot
    tokens: float
    current: str
    is_summary: bool = False

    @property
    def is_changed(self) -> bool:
        return self.current is not self.slot.text


class _Compressor:
    """State of one compression."""

    def __init__(self, messages: Sequence[Message], limit: float, scale: TokenScale) -> None:
        self.messages = messages
        self.limit = limit
        self.scale = scale
        self.total = 0.0
        self.texts: list[list[_Text]] = []
        """The texts of each message."""
        self.overhead_tokens: list[float] = []
        """Tokens of each message without its texts."""
        self.removed: set[int] = set()
        """Indexes of the removed messages."""
        self.shortened_by = "structure"
        for number, message in enumerate(messages):
            texts = [
                _Text(number, slot, scale.count_slot(slot), slot.text)
                for slot in message.slots
                if not slot.wrap or slot.is_observation
            ]
            text_tokens = sum(text.tokens for text in texts)
            self.texts.append(texts)
            self.overhead_tokens.append(max(scale.count_value(message.source) - text_tokens, 0.0))
            self.total += self.overhead_tokens[-1] + text_tokens
        self.exchanges = group_exchanges(messages)
        self.protected = _find_protected(messages, self.exchanges)

    def fits(self) -> bool:
        return self.total <= self.limit

    def replace_text(self, text: _Text, new_text: str) -> None:
        self.total -= text.tokens
        text.current = new_text
        text.tokens = self.scale(new_text) if text.is_changed else self.scale.count_slot(text.slot)
        self.total += text.tokens

    def find_shortenable(self, numbers: range, *, observations: bool, min_chars: int) -> list[_Text]:
        """Return the texts of these messages that may be shortened."""
        fixed_numbers = self.protected | self.removed
        return [
            text
            for text in chain.from_iterable(self.texts[numbers.start : numbers.stop])
            if text.message not in fixed_numbers
            and text.slot.is_observation == observations
            and len(text.slot.text) > min_chars
            and not is_shortened(text.slot.text)
        ]

    def level_texts(self, texts: list[_Text], min_chars: int) -> None:
        """Shorten these texts to one common length: the greatest that fits, but at least `min_chars`.

        A common length shortens the longest texts first: a text changes only if no longer text is left.
        """
        texts = [text for text in texts if not text.is_summary]
        if not texts:
            return
        low, high = min_chars, max(len(text.slot.text) for text in texts)
        available = self.limit - self.total + sum(text.tokens for text in texts)
        length = self._estimate_length(texts, available, min_chars)
        for _ in range(9):
            self._shorten_texts(texts, length)
            if self.total > self.limit:
                high = length
            elif self.total >= 0.985 * self.limit:
                return
            else:
                low = length
            if high - low <= max(low // 100, 8):
                break
            length = (low + high) // 2
        self._shorten_texts(texts, low)

    def _shorten_texts(self, texts: list[_Text], length: int) -> None:
        for text in texts:
            original = text.slot.text
            shortened = shorten_text(original, length)
            if shortened is original or len(shortened) < len(original):
                self.replace_text(text, shortened)

    def _estimate_length(self, texts: list[_Text], available: float, min_chars: int) -> int:
        """Estimate the common length at which these texts use the available tokens, at a constant token density."""
        lengths = sorted(((len(text.slot.text), self.scale(text.slot.text)) for text in texts), reverse=True)
        untouched_tokens = sum(tokens for _, tokens in lengths)
        density = 0.0
        for number, (length, tokens) in enumerate(lengths):
            following = lengths[number + 1][0] if number + 1 < len(lengths) else min_chars
            untouched_tokens -= tokens
            density += tokens / max(length, 1)
            level = (available - untouched_tokens) / density if density else 0
            if level >= following:
                return max(int(min(level, length)), min_chars)
        return min_chars

    def remove_exchange(self, part: range) -> None:
        if part.start not in self.removed:
            self.total -= self._freed_tokens(part)
            self.removed.update(part)

    def restore_exchange(self, part: range) -> None:
        self.removed.difference_update(part)
        self.total += self._freed_tokens(part)

    def _freed_tokens(self, part: range) -> float:
        """Return the tokens that removing an exchange frees. Adjacent removed exchanges share one note."""
        weight = sum(self.overhead_tokens[number] + sum(text.tokens for text in self.texts[number]) for number in part)
        return weight - GAP_NOTE_TOKENS * (1 - (part.start - 1 in self.removed) - (part.stop in self.removed))

    def find_droppable(self, numbers: range) -> list[range]:
        return [
            part
            for part in self.exchanges
            if part.start in numbers and part.stop - 1 in numbers and self.protected.isdisjoint(part)
        ]

    def find_gaps(self) -> list[range]:
        """Return the removed ranges, adjacent ones merged."""
        starts = [number for number in sorted(self.removed) if number - 1 not in self.removed]
        stops = [number + 1 for number in sorted(self.removed) if number + 1 not in self.removed]
        return list(map(range, starts, stops))

    def build_messages(self, summaries: dict[int, str]) -> list[Any]:
        new_messages: list[Any] = []
        sources = [message.source for message in self.messages]
        gaps = {gap.start: gap for gap in self.find_gaps()}
        for number, message in enumerate(self.messages):
            if number in gaps:
                note = f"[mulligan: {len(gaps[number])} earlier messages were removed to fit the context window"
                summary = summaries.get(number, "")
                note += f". Summary: {summary}]" if summary else ".]"
                new_messages.append(user_message(sources, note))
            if number not in self.removed:
                new_messages.append(message.render((text.slot, text.current) for text in self.texts[number]))
        return new_messages


def _find_protected(messages: Sequence[Message], parts: list[range]) -> set[int]:
    """Return the messages that never change: system prompts, the last user turn, and all from the newest answer on."""
    numbers = {role: [at for at, message in enumerate(messages) if message.role == role] for role in get_args(Role)}
    protected_numbers = set(numbers["system"])
    newest_answer = numbers["assistant"][-1] if numbers["assistant"] else 0
    for part in parts:
        if part.stop > newest_answer or (numbers["user"] and numbers["user"][-1] in part):
            protected_numbers |= set(part)
    return protected_numbers


_DEFAULT_SCALE = TokenScale()


def fit_to_window(
    messages: Sequence[Any],
    limit: float,
    *,
    threshold: int = DEFAULT_COMPRESS_ABOVE_CHARS,
    scale: TokenScale = _DEFAULT_SCALE,
    summarise: Callable[[str], Any] | None = None,
    rewrite: Callable[[Sequence[Any]], Any] | None = None,
    summarize_gap: Callable[[str, int], Any] | None = None,
) -> Generator[QueryMove, Any, CompressionResult]:
    """Compress a conversation to `limit` tokens by this scale, or as close to it as possible.

    `summarise` shortens a text, `rewrite` a whole conversation, and `summarize_gap` summarizes removed messages. Each
    is called through a query move. One that fails is not called again.
    """
    original = parsed = parse_messages(messages)
    by, steps = "structure", 0
    if rewrite is not None:
        rewritten = yield QueryMove(rewrite, (list(messages),))
        if isinstance(rewritten, list | tuple) and rewritten:
            candidate = parse_messages(rewritten)
            if _is_valid_rewrite(candidate, original):
                parsed, by, steps = candidate, "summariser", max(len(messages) - len(rewritten), 1)
    compressor = yield from _run_ladder(parsed, limit, threshold, scale, summarise)
    summaries: dict[int, str] = {}
    if summarize_gap is not None and compressor.removed:
        compressor = yield from _run_ladder(parsed, limit * (1 - SUMMARY_RATIO), threshold, scale, None)
        summaries = yield from _summarize_gaps(compressor, summarize_gap, limit)
    new_messages = compressor.build_messages(summaries)
    texts = list(chain.from_iterable(compressor.texts))
    return CompressionResult(
        messages=tuple(new_messages) if isinstance(messages, tuple) else new_messages,
        steps=steps + len({text.message for text in texts if text.is_changed} | compressor.removed),
        chars_before=_count_chars(original),
        chars_after=_count_chars(parse_messages(new_messages)),
        tokens_before=round(scale.count_value(messages)),
        tokens_after=round(compressor.total),
        shortened_by=by if compressor.shortened_by == "structure" else compressor.shortened_by,
        shortened_texts=tuple(
            (text.message, text.slot.text)
            for text in texts
            if text.slot.is_observation and (text.message in compressor.removed or text.is_changed)
        ),
        fits=compressor.total <= limit,
    )


def _run_ladder(
    messages: Sequence[Message], limit: float, threshold: int, scale: TokenScale, summarise: Callable[[str], Any] | None
) -> Generator[QueryMove, Any, _Compressor]:
    """Run the compression steps as far as needed: on the older half first, then on the whole conversation."""
    compressor = _Compressor(messages, limit, scale)
    # The exchange in the middle of the conversation belongs to the newer half.
    middle = next((part.start for part in compressor.exchanges if len(messages) // 2 in part), 0)
    older, newer = range(middle), range(middle, len(messages))
    for numbers, parts in (
        (older, list(reversed(compressor.find_droppable(older)))),
        (range(len(messages)), compressor.find_droppable(newer)),
    ):
        long = compressor.find_shortenable(numbers, observations=True, min_chars=threshold)
        for text in sorted(long, key=lambda text: -len(text.slot.text)):
            if summarise is None or compressor.fits():
                break
            summary = yield QueryMove(summarise, (text.slot.text,))
            if not isinstance(summary, str):
                summarise = None
            elif 0 < len(summary) < len(text.slot.text):
                compressor.shortened_by, text.is_summary = "summariser", True
                compressor.replace_text(text, f"[mulligan: summarized to fit the context window] {summary}")
        if not compressor.fits():  # also if the summarizer failed, or its summaries are still too long
            _apply_rungs(compressor, numbers, parts, threshold, long)
        if compressor.fits():
            break
    return compressor


def _apply_rungs(
    compressor: _Compressor, numbers: range, parts: list[range], threshold: int, long: list[_Text]
) -> None:
    """Apply the steps to one half, from the smallest loss to the largest."""
    min_chars = max(threshold // 5, MIN_SHORTENED_CHARS)
    compressor.level_texts(long, min_chars)
    if compressor.fits():
        return
    other_texts = compressor.find_shortenable(numbers, observations=False, min_chars=threshold)
    compressor.level_texts(other_texts, min_chars)
    for part in parts:
        if compressor.fits():
            break
        compressor.remove_exchange(part)
        if compressor.fits():
            _restore_freed(compressor, part, [*long, *other_texts])


def _restore_freed(compressor: _Compressor, last: range, shortened_texts: list[_Text]) -> None:
    """Use the tokens freed by the last removal: restore that exchange shortened, or lengthen other texts."""
    exchange_texts = [text for number in last for text in compressor.texts[number] if not is_shortened(text.slot.text)]
    compressor.restore_exchange(last)
    compressor.level_texts(exchange_texts, MIN_SHORTENED_CHARS)
    if not compressor.fits():
        for text in exchange_texts:
            compressor.replace_text(text, text.slot.text)
        compressor.remove_exchange(last)
    remaining_texts = [text for text in shortened_texts if text.is_changed and text.message not in compressor.removed]
    compressor.level_texts(remaining_texts, MIN_SHORTENED_CHARS)


def _summarize_gaps(
    compressor: _Compressor, summarize_gap: Callable[[str, int], Any], limit: float
) -> Generator[QueryMove, Any, dict[int, str]]:
    summaries: dict[int, str] = {}
    gaps = compressor.find_gaps()
    size = 3 * int(limit - compressor.total) // max(len(gaps), 1)
    for gap in gaps if size >= MIN_SHORTENED_CHARS else ():
        lines = [
            f"{compressor.messages[number].role}: {shorten_text(slot.text, 1500)}"
            for number in gap
            for slot in compressor.messages[number].slots
        ]
        summary = yield QueryMove(summarize_gap, (shorten_text("\n".join(lines), int(limit * 2)), size))
        if not isinstance(summary, str) or not summary.strip():
            break
        summaries[gap.start] = shorten_text(summary.strip(), size)
        compressor.total += compressor.scale(summaries[gap.start])
        compressor.shortened_by = "model"
    return summaries


def _is_valid_rewrite(rewritten: Sequence[Message], messages: Sequence[Message]) -> bool:
    """Return whether a user's rewrite is a shorter conversation in which no call lost its result."""
    after, before = (sum(estimate_tokens(message.source) for message in part) for part in (rewritten, messages))
    unpaired_ids = zip(find_unpaired(rewritten), find_unpaired(messages), strict=True)
    return after < before and all(set(after_ids) <= set(before_ids) for after_ids, before_ids in unpaired_ids)


def _count_chars(messages: Iterable[Message]) -> int:
    return sum(len(slot.text) for message in messages for slot in message.slots)


# Shortening of one text: structure stays, repeated lines are folded, both ends stay, and a mark states the cut.

MIN_SHORTENED_CHARS = 160
"""A shorter result is not worth its space."""
MAX_PARSED_CHARS = 400_000
"""Characters of JSON that are parsed. Of longer texts only the ends are retained."""
_MARK = "[mulligan: shortened to fit the context window;"
_MIN_FOLDED_LINES = 3
"""Similar consecutive lines that are folded."""


def is_shortened(text: str) -> bool:
    return _MARK in text


def shorten_text(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, or slightly more if the limit is below `MIN_SHORTENED_CHARS`."""
    if len(text) <= limit:
        return text
    limit = max(limit, MIN_SHORTENED_CHARS)
    if text.lstrip()[:1] in ("{", "[") and len(text) <= MAX_PARSED_CHARS:
        outline = _outline_json(text, limit)
        if outline is not None:
            return outline
    folded_text, lines = _fold_lines(text)
    if len(folded_text) + 100 <= limit:
        return f"{folded_text}\n{_MARK} {lines} repeated lines removed]"
    return _keep_ends(folded_text, limit, len(text))


def _outline_json(text: str, limit: int) -> str | None:
    """Return the outline of a JSON text: keys as space permits, the first members of each list, and their number."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    mark = f"\n{_MARK} outline of {len(text):,} characters of JSON]"
    available_chars = limit - len(mark)
    if available_chars < 40:
        return None
    most_members = range(text.count(",") + 2)

    best = ""
    for chars in (4000, 1000, 300, 80, 24):

        def render(members: int, chars: int = chars) -> str:
            return json.dumps(_outline(value, members, chars), ensure_ascii=False, separators=(",", ":"))

        fitting_count = bisect_right(most_members, available_chars, key=lambda members: len(render(members)))
        if fitting_count:
            best = max(best, render(fitting_count - 1), key=len)
        if len(best) >= available_chars * 0.9:
            break
    return best + mark if len(best) >= min(available_chars * 0.3, 60) else None


def _outline(value: Any, members: int, chars: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= chars else f"{value[: chars * 2 // 3]}... ({len(value)} characters)"
    if isinstance(value, dict):
        outline = {key: _outline(child, members, chars) for key, child in list(value.items())[: members + 8]}
        if len(outline) < len(value):
            outline["..."] = f"{len(value) - len(outline)} more keys"
        return outline
    if isinstance(value, list):
        kept_items = [_outline(child, members, chars) for child in value[:members]]
        if len(kept_items) < len(value):
            kept_items.append(f"... {len(value) - len(kept_items)} more{_shape(value[members])}")
        return kept_items
    return value


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return f" with {', '.join(list(value)[:12])}"
    return "" if isinstance(value, str | None) else f" of {type(value).__name__}"


_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+", re.IGNORECASE)


def _fold_lines(text: str) -> tuple[str, int]:
    """Fold lines that differ only in numbers into the first and the last of them. Return the number removed."""
    lines = text.split("\n")
    if len(lines) < _MIN_FOLDED_LINES * 2:
        return text, 0
    folded_lines: list[str] = []
    removed_count = 0
    for _, group in groupby(lines, key=lambda line: _VARYING.sub("0", line[:400])):
        similar = list(group)
        if len(similar) > _MIN_FOLDED_LINES and similar[0].strip():
            removed_count += len(similar) - 2
            similar[1:-1] = [f"[... {len(similar) - 2} similar lines ...]"]
        folded_lines += similar
    folded_text = "\n".join(folded_lines)
    return (folded_text, removed_count) if len(folded_text) < 0.9 * len(text) else (text, 0)


def _keep_ends(text: str, limit: int, total: int) -> str:
    """Return both ends, cut at line breaks if possible, so that a table retains its header."""
    mark = f"\n{_MARK} {{}} of {total:,} characters removed]\n"
    available_chars = max(limit - len(mark) - 8, 20)
    head = available_chars * 3 // 5
    tail = available_chars - head
    first, last = text[:head], text[len(text) - tail :]
    # Prefer whole lines if that costs little: half a table row is misleading.
    line_break = first.rfind("\n", head - max(head // 20, 1))
    if line_break > 0:
        first = first[:line_break]
    line_break = last.find("\n", 0, max(tail // 20, 1))
    if line_break >= 0:
        last = last[line_break + 1 :]
    return first + mark.format(f"{total - len(first) - len(last):,}") + last
