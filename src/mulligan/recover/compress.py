"""Compression of a conversation to a token limit.

Compression proceeds in steps until the estimate fits. First it shortens the long tool results of the older half to one
common length, then its other long texts, then it removes exchanges from the middle towards the beginning. If that is
not enough, it does the same to the newer half. The system prompt, the last user turn and the newest exchange never
change.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.core import conversation
from mulligan.core.conversation import (
    TextSlot,
    count_digit_tokens,
    count_letter_tokens,
    count_word_tokens,
    escape_json,
    estimate_tokens,
)
from mulligan.recover.context_windows import counts_digits
from mulligan.recover.plan import QueryMove
from mulligan.recover.shorten import MIN_SHORTENED_CHARS, is_shortened, shorten_text

DEFAULT_COMPRESS_ABOVE_CHARS = 2000
"""A shorter tool result is left unchanged as long as a longer one can be shortened."""
CONTEXT_FILL_RATIO = 0.955
"""Share of the window that is filled: token counts are estimates, and a second overflow costs more than a few
sentences."""
FILL_RATIO_SLOPE = 0.2
"""How fast that share falls the more our estimate differs from the provider's count."""
JSON_TOKEN_RATIO = 0.94
"""Tokens per piece of our estimate in JSON, where punctuation and escapes often share a token."""
UNKNOWN_WINDOW_RATIO = 0.5
"""Share of the conversation to keep if the window is unknown."""
GAP_NOTE_TOKENS = 40.0
"""Tokens of the note that replaces removed exchanges."""
SUMMARY_RATIO = 0.12
"""Share of the limit that summaries of removed exchanges may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a model's context window, in tokens."""

    window: int | None = None
    requested: int | None = None
    answer: int = 0
    """Tokens of both that are reserved for the answer."""


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


@dataclass(frozen=True, slots=True)
class TokenScale:
    """How a provider counts: by words or letters, with or without JSON escapes, and tokens per unit of our estimate."""

    count: Callable[[str], float] = count_word_tokens
    should_escape: bool = False
    rate: float = 1.0

    def __call__(self, text: str) -> float:
        return self.rate * self.count(escape_json(text) if self.should_escape else text)

    def count_slot(self, slot: TextSlot) -> float:
        """Return the tokens of a text in its slot. Structured data in a slot has no escapes."""
        return self.rate * self.count(slot.text) if slot.wrap else self(slot.text)

    def count_value(self, value: Any) -> float:
        """Return the tokens of a message or any other nested value."""
        return self.rate * estimate_tokens(value, self.count, is_serialized=self.should_escape)

    @property
    def margin(self) -> float:
        """Return the share of the window to fill: less, the more the provider's count differs from ours."""
        return CONTEXT_FILL_RATIO * (1 - FILL_RATIO_SLOPE * min(max(abs(self.rate - 1) - 0.05, 0), 0.5))


def calibrate_scale(sizes: Sizes, request: Any, model: object = None) -> TokenScale:
    """Return the scale that best explains the provider's count of a request, given the model's name."""
    count_tokens = count_digit_tokens if counts_digits(model) else count_word_tokens
    if sizes.requested is None:
        words = estimate_tokens(request, count_tokens)
        rate = 1.0
        if sizes.window is not None and sizes.window > sizes.answer and words > 0:
            # The request exceeded the window, probably by little: conversations grow one message at a time.
            rate = max(rate, 1.12 * (sizes.window - sizes.answer) / words)
        return TokenScale(count_tokens, rate=rate if rate <= 4 else 1.0)
    counted_tokens = sizes.requested - sizes.answer
    # Choose the nearest scale. On a tie prefer the plain text as a tokenizer counts it.
    nearest, off = TokenScale(count_tokens), 4.0
    for doubt, (count, should_escape, usual) in enumerate(
        (
            (count_tokens, False, 1.0),
            (count_tokens, True, JSON_TOKEN_RATIO),
            (count_letter_tokens, True, 1.0),
            (count_letter_tokens, False, 1.0),
        )
    ):
        rate = counted_tokens / max(estimate_tokens(request, count, is_serialized=should_escape), 1.0)
        distance = abs(rate / usual - 1) + 0.002 * doubt
        if rate >= 0.2 and distance < off:  # otherwise it counted another unit, such as bytes
            nearest, off = TokenScale(count, should_escape, rate), distance
    return nearest


def token_limit(sizes: Sizes, tokens: float, margin: float = CONTEXT_FILL_RATIO) -> float:
    """Return the token limit of a request, given that one with `tokens` tokens was too long."""
    if sizes.window is None or sizes.window <= sizes.answer:
        return tokens * UNKNOWN_WINDOW_RATIO
    fitting = margin * (sizes.window - sizes.answer)
    return fitting if fitting < tokens else tokens * UNKNOWN_WINDOW_RATIO


@dataclass(slots=True, eq=False)
class _Text:
    """A text that may be shortened."""

    message: int
    slot: TextSlot
    tokens: float
    current: str
    is_summary: bool = False

    def replace_text(self, text: str, weigh: TokenScale) -> float:
        """Replace the text and return the change in tokens."""
        before, self.current = self.tokens, text
        self.tokens = weigh.count_slot(self.slot) if text is self.slot.text else weigh(text)
        return self.tokens - before


@dataclass(slots=True)
class _Compressor:
    """State of one compression."""

    messages: Sequence[Any]
    limit: float
    scale: TokenScale
    total: float = 0.0
    texts: list[_Text] = field(default_factory=list)
    texts_by_message: dict[int, list[_Text]] = field(default_factory=dict)
    """The same texts by the index of their message."""
    exchanges: list[range] = field(default_factory=list)
    overhead_tokens: list[float] = field(default_factory=list)
    """Tokens of each message without its texts."""
    protected: set[int] = field(default_factory=set)
    removed_exchanges: dict[int, range] = field(default_factory=dict)
    """Removed exchanges by the index of their first message."""
    shortened_by: str = "structure"

    def __post_init__(self) -> None:
        for number, message in enumerate(self.messages):
            message_texts = [
                _Text(number, slot, self.scale.count_slot(slot), slot.text)
                for slot in conversation.find_text_slots(message)
                if not slot.wrap or slot.is_observation
            ]
            message_tokens = self.scale.count_value(message)
            self.overhead_tokens.append(max(message_tokens - sum(text.tokens for text in message_texts), 0.0))
            self.total += self.overhead_tokens[-1] + sum(text.tokens for text in message_texts)
            self.texts.extend(message_texts)
            self.texts_by_message[number] = message_texts
        self.exchanges = conversation.group_exchanges(self.messages)
        self.protected = _find_protected(self.messages, self.exchanges)

    def fits(self) -> bool:
        return self.total <= self.limit

    def find_shortenable(self, numbers: range, *, observations: bool, min_chars: int) -> list[_Text]:
        """Return the texts of these messages that may be shortened, longest first."""
        candidates = [
            text
            for text in self.texts
            if text.message in numbers
            and text.message not in self.protected
            and not any(text.message in part for part in self.removed_exchanges.values())
            and text.slot.is_observation == observations
            and len(text.slot.text) > min_chars
            and not is_shortened(text.slot.text)
        ]
        return sorted(candidates, key=lambda text: -len(text.slot.text))

    def level_texts(self, texts: list[_Text], min_chars: int) -> None:
        """Shorten these texts to one common length: the greatest that fits, but at least `min_chars`.

        A common length shortens the longest texts first: a text changes only if no longer text is left.
        """
        texts = [text for text in texts if not text.is_summary]
        if not texts:
            return
        low, high = min_chars, max(len(text.slot.text) for text in texts)
        at = _estimate_length(
            texts, self.limit - self.total + sum(text.tokens for text in texts), min_chars, self.scale
        )
        for _ in range(9):
            self._shorten_texts(texts, at)
            if self.total > self.limit:
                high = at
            elif self.total >= 0.985 * self.limit:
                return
            else:
                low = at
            if high - low <= max(low // 100, 8):
                break
            at = (low + high) // 2
        self._shorten_texts(texts, low)

    def _shorten_texts(self, texts: list[_Text], length: int) -> None:
        for text in texts:
            shortened_text = shorten_text(text.slot.text, length) if len(text.slot.text) > length else text.slot.text
            if len(shortened_text) < len(text.slot.text) or length >= len(text.slot.text):
                self.total += text.replace_text(
                    shortened_text if len(shortened_text) <= len(text.slot.text) else text.slot.text, self.scale
                )

    def remove_exchange(self, part: range) -> None:
        if part.start in self.removed_exchanges:
            return
        self.total += GAP_NOTE_TOKENS * (1 - self._count_adjacent_removed(part)) - self._weight(part)
        self.removed_exchanges[part.start] = part

    def restore_exchange(self, part: range) -> None:
        del self.removed_exchanges[part.start]
        self.total += self._weight(part) - GAP_NOTE_TOKENS * (1 - self._count_adjacent_removed(part))

    def _count_adjacent_removed(self, part: range) -> int:
        """Return how many adjacent exchanges are removed too. Adjacent ones share one note."""
        return sum(hole.stop == part.start or hole.start == part.stop for hole in self.removed_exchanges.values())

    def _weight(self, part: range) -> float:
        return sum(
            self.overhead_tokens[number] + sum(text.tokens for text in self.texts_by_message.get(number, ()))
            for number in part
        )

    def find_droppable(self, numbers: range) -> list[range]:
        return [
            part
            for part in self.exchanges
            if part.start in numbers
            and part.stop - 1 in numbers
            and part.start not in self.removed_exchanges
            and self.protected.isdisjoint(part)
        ]

    def find_gaps(self) -> list[range]:
        """Return the removed ranges, adjacent ones merged."""
        gaps: list[range] = []
        for part in sorted(self.removed_exchanges.values(), key=lambda part: part.start):
            if gaps and gaps[-1].stop == part.start:
                gaps[-1] = range(gaps[-1].start, part.stop)
            else:
                gaps.append(part)
        return gaps

    def build_messages(self, summaries: dict[int, str]) -> list[Any]:
        new_messages: list[Any] = []
        texts: dict[int, list[_Text]] = {}
        for text in self.texts:
            if text.current is not text.slot.text:
                texts.setdefault(text.message, []).append(text)
        holes = {hole.start: hole for hole in self.find_gaps()}
        removed_numbers = {number for hole in holes.values() for number in hole}
        for number, message in enumerate(self.messages):
            if number in holes:
                new_messages.append(
                    conversation.user_message(self.messages, _gap_note(len(holes[number]), summaries.get(number, "")))
                )
            if number not in removed_numbers:
                new_messages.append(_apply_texts(message, texts.get(number, ())))
        return new_messages


def _estimate_length(texts: list[_Text], available: float, min_chars: int, weigh: TokenScale) -> int:
    """Estimate the common length at which these texts use the available tokens, assuming a constant token density."""
    lengths = sorted(((len(text.slot.text), weigh(text.slot.text)) for text in texts), reverse=True)
    total_tokens = sum(heavy for _, heavy in lengths)
    for number, (length, _) in enumerate(lengths):
        following = lengths[number + 1][0] if number + 1 < len(lengths) else min_chars
        shortened_lengths = lengths[: number + 1]
        untouched_tokens = total_tokens - sum(heavy for _, heavy in shortened_lengths)
        density = sum(heavy / max(size, 1) for size, heavy in shortened_lengths)
        level = (available - untouched_tokens) / density if density else 0
        if level >= following:
            return max(int(min(level, length)), min_chars)
    return min_chars


def _apply_texts(message: Any, texts: Iterable[_Text]) -> Any:
    for text in texts:
        value: Any = {text.slot.wrap: text.current} if text.slot.wrap else text.current
        message = conversation.replace_at(message, text.slot.path, value)
    return message


def _gap_note(count: int, summary: str) -> str:
    sentence = f"[mulligan: {count} earlier messages were removed to fit the context window"
    return f"{sentence}. Summary: {summary}]" if summary else f"{sentence}.]"


def _find_protected(messages: Sequence[Any], parts: list[range]) -> set[int]:
    roles = [conversation.role_of(message) for message in messages]
    protected_numbers = {number for number, role in enumerate(roles) if role == "system"}
    last_user_number = max((number for number, role in enumerate(roles) if role == "user"), default=None)
    if last_user_number is not None:
        protected_numbers |= set(next(part for part in parts if last_user_number in part))
    for part in reversed(parts):
        protected_numbers |= set(part)
        if any(roles[number] == "assistant" for number in part):
            break
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
    original_messages = messages
    by, steps = "structure", 0
    if rewrite is not None:
        rewritten = yield QueryMove(rewrite, (list(messages),))
        if _is_valid_rewrite(rewritten, messages):
            messages, by, steps = rewritten, "summariser", max(len(messages) - len(rewritten), 1)
    compressor = yield from _run_ladder(messages, limit, threshold, scale, summarise)
    summaries: dict[int, str] = {}
    if summarize_gap is not None and compressor.removed_exchanges:
        compressor = yield from _run_ladder(messages, limit * (1 - SUMMARY_RATIO), threshold, scale, None)
        summaries = yield from _summarize_gaps(compressor, summarize_gap, limit)
    if by != "structure" and compressor.shortened_by == "structure":
        compressor.shortened_by = by
    new_messages = compressor.build_messages(summaries)
    return CompressionResult(
        messages=tuple(new_messages) if isinstance(original_messages, tuple) else new_messages,
        steps=steps
        + len(
            {text.message for text in compressor.texts if text.current is not text.slot.text}
            | _removed_numbers(compressor.removed_exchanges)
        ),
        chars_before=_count_chars(original_messages),
        chars_after=_count_chars(new_messages),
        tokens_before=round(scale.count_value(original_messages)),
        tokens_after=round(compressor.total),
        shortened_by=compressor.shortened_by,
        shortened_texts=_find_shortened_texts(compressor),
        fits=compressor.total <= limit,
    )


def _run_ladder(
    messages: Sequence[Any], limit: float, threshold: int, scale: TokenScale, summarise: Callable[[str], Any] | None
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
        if summarise is not None:
            for text in long:
                if compressor.fits():
                    break
                summary = yield QueryMove(summarise, (text.slot.text,))
                if not isinstance(summary, str):
                    summarise = None
                    break
                if 0 < len(summary) < len(text.slot.text):
                    compressor.shortened_by, text.is_summary = "summariser", True
                    compressor.total += text.replace_text(
                        f"[mulligan: summarized to fit the context window] {summary}", scale
                    )
        if not compressor.fits():  # also if the summarizer failed, or its summaries are still too long
            _apply_rungs(compressor, numbers, parts, threshold, long)
        if compressor.fits():
            break
    return compressor


def _apply_rungs(
    compressor: _Compressor, numbers: range, parts: list[range], threshold: int, long: list[_Text]
) -> None:
    """Apply the steps to one half, from the smallest loss to the largest."""
    compressor.level_texts(long, min_chars=max(threshold // 5, MIN_SHORTENED_CHARS))
    if compressor.fits():
        return
    other_texts = compressor.find_shortenable(numbers, observations=False, min_chars=threshold)
    compressor.level_texts(other_texts, min_chars=max(threshold // 5, MIN_SHORTENED_CHARS))
    for part in parts:
        if compressor.fits():
            break
        compressor.remove_exchange(part)
        if compressor.fits():
            _restore_freed(compressor, part, [*long, *other_texts])


def _restore_freed(compressor: _Compressor, last: range, shortened_texts: list[_Text]) -> None:
    """Use the tokens freed by the last removal: restore that exchange shortened, or lengthen other texts."""
    exchange_texts = [text for text in compressor.texts if text.message in last and not is_shortened(text.slot.text)]
    compressor.restore_exchange(last)
    compressor.level_texts(exchange_texts, min_chars=MIN_SHORTENED_CHARS)
    if not compressor.fits():
        for text in exchange_texts:
            compressor.total += text.replace_text(text.slot.text, compressor.scale)
        compressor.remove_exchange(last)
    remaining_texts = [
        text
        for text in shortened_texts
        if not any(text.message in part for part in compressor.removed_exchanges.values())
    ]
    compressor.level_texts(
        [text for text in remaining_texts if text.current is not text.slot.text], min_chars=MIN_SHORTENED_CHARS
    )


def _summarize_gaps(
    compressor: _Compressor, summarize_gap: Callable[[str, int], Any], limit: float
) -> Generator[QueryMove, Any, dict[int, str]]:
    summaries: dict[int, str] = {}
    spare = int(limit - compressor.total)
    for hole in compressor.find_gaps():
        size = 3 * spare // len(compressor.find_gaps())
        if size < MIN_SHORTENED_CHARS:
            break
        lines = [
            f"{conversation.role_of(compressor.messages[number])}: {shorten_text(slot.text, 1500)}"
            for number in hole
            for slot in conversation.find_text_slots(compressor.messages[number])
        ]
        summary = yield QueryMove(summarize_gap, (shorten_text("\n".join(lines), int(limit * 2)), size))
        if not isinstance(summary, str) or not summary.strip():
            break
        summaries[hole.start] = shorten_text(summary.strip(), size)
        compressor.total += compressor.scale(summaries[hole.start])
        compressor.shortened_by = "model"
    return summaries


def _is_valid_rewrite(rewritten: Any, messages: Sequence[Any]) -> bool:
    """Return whether a user's rewrite is a shorter conversation in which no call lost its result."""
    if not isinstance(rewritten, list | tuple) or not rewritten:
        return False
    if sum(map(estimate_tokens, rewritten)) >= sum(map(estimate_tokens, messages)):
        return False
    before, after = conversation.find_unpaired(messages), conversation.find_unpaired(rewritten)
    return set(after[0]) <= set(before[0]) and set(after[1]) <= set(before[1])


def _removed_numbers(removed_exchanges: dict[int, range]) -> set[int]:
    return {number for part in removed_exchanges.values() for number in part}


def _find_shortened_texts(compressor: _Compressor) -> tuple[tuple[int, str], ...]:
    out = _removed_numbers(compressor.removed_exchanges)
    return tuple(
        (text.message, text.slot.text)
        for text in compressor.texts
        if text.slot.is_observation and (text.message in out or text.current is not text.slot.text)
    )


def _count_chars(messages: Sequence[Any]) -> int:
    return sum(len(slot.text) for message in messages for slot in conversation.find_text_slots(message))
