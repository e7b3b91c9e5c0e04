"""Compression of a conversation to a token limit.

Compression proceeds in steps until the estimate fits. With a summarizer, it first summarizes long tool results, the
largest first, in the older half and then in the newer one. A summary that was made is never discarded: if its exchange
is removed later, the note in its place contains the summary.

Without one, it shortens the long tool results of the older half to one common length, then its other long texts, then
it removes exchanges from the middle towards the beginning. If that is not enough, it does the same to the newer half.
The system prompt, the last user turn and the newest exchange never change.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import Any, get_args

from mulligan.core.conversation import (
    Message,
    Role,
    TextSlot,
    find_unpaired,
    group_exchanges,
    join_bedrock_messages,
    parse_messages,
    user_message,
)
from mulligan.core.records import CompressionAction
from mulligan.recover.plan import QueryMove
from mulligan.recover.tokens import TokenScale, estimate_tokens

DEFAULT_COMPRESS_ABOVE_CHARS = 2000
"""A shorter tool result is left unchanged as long as a longer one can be shortened."""
GAP_NOTE_TOKENS = 40.0
"""Tokens of the note that replaces removed exchanges."""
SUMMARIZED_INPUT_RATIO = 0.5
"""Share of the limit that the text of one summary request may use, if the model itself summarizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionResult:
    messages: Sequence[Any]
    steps: int
    """Messages that were shortened or removed."""
    actions: tuple[CompressionAction, ...]
    """What was done to which messages, in the order of the messages."""
    chars_before: int
    chars_after: int
    tokens_before: int
    tokens_after: int
    """As estimated, or as counted by the provider."""
    shortened_by: str
    """What shortened it: summarizer (the user's function), model or structure."""
    shortened_texts: tuple[tuple[int, str], ...]
    """Texts of tool results that were shortened or removed, with the index of their message."""
    fits: bool


@dataclass(slots=True, eq=False)
class _Text:
    message: int
    slot: TextSlot
    tokens: float
    current: str
    summary: str = ""
    """The summary that replaces the text, or the text itself if it is a summary of an earlier compression."""

    @property
    def original(self) -> str:
        """The text from which a shorter one is cut."""
        return self.summary or self.slot.text

    def shorten(self, length: int) -> str:
        """Return at most so many characters of the text. A summary keeps its mark in addition."""
        if not self.summary.startswith(_SUMMARY_MARK):
            return shorten_text(self.original, length)
        content = self.summary.removeprefix(_SUMMARY_MARK)
        shortened = shorten_text(content, length)
        return self.summary if shortened is content else f"{_SUMMARY_MARK} {shortened.lstrip()}"

    @property
    def is_changed(self) -> bool:
        return self.current is not self.slot.text


class _Compressor:
    def __init__(self, messages: Sequence[Message], limit: float, scale: TokenScale, summarizer: str) -> None:
        self.messages = messages
        self.limit = limit
        self.scale = scale
        self.summarizer = summarizer
        self.texts: list[list[_Text]] = []
        self.overhead_tokens: list[float] = []
        """Tokens of each message without its texts."""
        self.original_tokens: list[float] = []
        """Tokens of each message before compression."""
        self.removed: set[int] = set()
        """Indexes of the removed messages."""
        self.shortened_by = "structure"
        for number, message in enumerate(messages):
            texts = [
                _Text(number, slot, scale.count_slot(slot), slot.text, slot.text if _is_summary(slot.text) else "")
                for slot in message.slots
                if not slot.wrap or slot.is_observation
            ]
            text_tokens = sum(text.tokens for text in texts)
            self.texts.append(texts)
            self.overhead_tokens.append(max(scale.count_value(message.source) - text_tokens, 0.0))
            self.original_tokens.append(self.overhead_tokens[-1] + text_tokens)
        self.total = sum(self.original_tokens)
        self.exchanges = group_exchanges(messages)
        self.protected = _find_protected(messages, self.exchanges)
        # The exchange in the middle of the conversation belongs to the newer half.
        middle = next((part.start for part in self.exchanges if len(messages) // 2 in part), 0)
        self.halves = range(middle), range(middle, len(messages))

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
            and not text.summary
            and not is_shortened(text.slot.text)
        ]

    def summarize_text(self, text: _Text, summary: str) -> None:
        text.summary = f"{_SUMMARY_MARK} {summary}"
        self.replace_text(text, text.summary)
        self.shortened_by = self.summarizer

    def level_texts(self, texts: list[_Text], min_chars: int) -> None:
        """Shorten these texts to one common length: the greatest that fits, but at least `min_chars`.

        A common length shortens the longest texts first: a text changes only if no longer text is left.
        """
        if not texts:
            return
        low, high = min_chars, max(len(text.original) for text in texts)
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
            original = text.original
            shortened = text.shorten(length)
            if shortened is original or len(shortened) < len(original):
                self.replace_text(text, shortened)

    def _estimate_length(self, texts: list[_Text], available: float, min_chars: int) -> int:
        """Estimate the common length at which these texts use the available tokens, at a constant token density."""
        lengths = sorted(((len(text.original), self.scale(text.original)) for text in texts), reverse=True)
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
        """Return the tokens that removing an exchange frees. Its summaries stay; adjacent exchanges share a note."""
        weight = sum(
            self.overhead_tokens[number] + sum(text.tokens for text in self.texts[number] if not text.summary)
            for number in part
        )
        return weight - GAP_NOTE_TOKENS * (1 - (part.start - 1 in self.removed) - (part.stop in self.removed))

    def find_droppable(self, numbers: range) -> list[range]:
        return [
            part
            for part in self.exchanges
            if part.start in numbers and part.stop - 1 in numbers and self.protected.isdisjoint(part)
        ]

    def texts_of(self, part: range) -> list[_Text]:
        return list(chain.from_iterable(self.texts[part.start : part.stop]))

    def minimum_tokens(self) -> float:
        """Return the tokens that stay if every exchange that may be removed is removed, and summaries are cut."""
        droppable = set(chain.from_iterable(self.find_droppable(range(len(self.messages)))))
        gap_count = sum(number - 1 not in droppable for number in droppable)
        fixed = sum(tokens for number, tokens in enumerate(self.original_tokens) if number not in droppable)
        summaries = (text for number in droppable for text in self.texts[number] if text.summary)
        return fixed + GAP_NOTE_TOKENS * gap_count + sum(map(self.count_shortest, summaries))

    def count_shortest(self, text: _Text) -> float:
        """Return the tokens of a summary at its minimum length, or about those of a text once it is summarized."""
        return self.scale(text.shorten(MIN_SUMMARY_CHARS))

    def find_gaps(self) -> list[range]:
        """Return the removed ranges, adjacent ones merged."""
        starts = [number for number in sorted(self.removed) if number - 1 not in self.removed]
        stops = [number + 1 for number in sorted(self.removed) if number + 1 not in self.removed]
        return list(map(range, starts, stops))

    def build_messages(self, gap_summaries: dict[int, str]) -> list[Any]:
        new_messages: list[Any] = []
        sources = [message.source for message in self.messages]
        gaps = {gap.start: gap for gap in self.find_gaps()}
        for number, message in enumerate(self.messages):
            if number in gaps:
                gap = gaps[number]
                note = f"[mulligan: {len(gap)}"
                kept_summaries = [_strip_mark(text.current) for text in self.texts_of(gap) if text.summary]
                summary = "\n".join(filter(None, (gap_summaries.get(number), *kept_summaries)))
                note += f"{_GAP_SUMMARY}{summary}]" if summary else f"{_GAP_TEXT}.]"
                new_messages.append(user_message(sources, note))
            if number not in self.removed:
                new_messages.append(message.render((text.slot, text.current) for text in self.texts[number]))
        has_alternated = all(earlier.label != later.label for earlier, later in pairwise(self.messages))
        return join_bedrock_messages(new_messages) if gaps and has_alternated else new_messages


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
        rewritten = yield QueryMove(rewrite, (list(messages),), "compress")
        if isinstance(rewritten, list | tuple) and rewritten:
            candidate = parse_messages(rewritten)
            if _is_valid_rewrite(candidate, original):
                parsed, by, steps = candidate, "summarizer", max(len(messages) - len(rewritten), 1)
    tokens_before = scale.count_value(messages)
    summarizer = "summarizer" if summarize_gap is None else "model"
    compressor = _Compressor(parsed, limit, scale, summarizer)
    summaries: dict[str, str] = {}
    if summarise is not None:
        # The model itself can read no more than what fits into its window.
        max_tokens = math.inf if summarize_gap is None else limit * SUMMARIZED_INPUT_RATIO
        summaries = yield from _request_summaries(compressor, threshold, summarise, max_tokens)
        if summaries and not compressor.fits():
            # Share of the limit that is filled if summaries do not suffice: a second overflow would waste them
            compressor.limit *= 0.98
    _shorten(compressor, threshold)
    gap_summaries: dict[int, str] = {}
    if summarize_gap is not None and compressor.removed:
        # Remove a little more, so that the note in place of the removed messages can say what they were about.
        # Summaries of removed exchanges may use the remaining 12 % of the limit
        smaller = _Compressor(parsed, limit * 0.88, scale, summarizer)
        for text in chain.from_iterable(smaller.texts):
            if summary := summaries.get(text.slot.text):
                smaller.summarize_text(text, summary)
        _shorten(smaller, threshold)
        gap_summaries = yield from _summarize_gaps(smaller, summarize_gap, limit)
        compressor = smaller if gap_summaries else compressor
    new_messages = compressor.build_messages(gap_summaries)
    texts = list(chain.from_iterable(compressor.texts))
    actions = _list_actions(compressor, gap_summaries)
    if steps:
        before, after = (sum(scale.count_value(message.source) for message in part) for part in (original, parsed))
        rewritten_all = CompressionAction(
            action="rewritten",
            message=0,
            messages=len(original),
            tokens_before=round(before),
            tokens_after=round(after),
        )
        actions = (rewritten_all, *actions)
    return CompressionResult(
        messages=tuple(new_messages) if isinstance(messages, tuple) else new_messages,
        steps=steps + len({text.message for text in texts if text.is_changed} | compressor.removed),
        actions=actions,
        chars_before=_count_chars(original),
        chars_after=_count_chars(parse_messages(new_messages)),
        tokens_before=round(tokens_before),
        tokens_after=round(compressor.total),
        shortened_by=by if compressor.shortened_by == "structure" else compressor.shortened_by,
        shortened_texts=tuple(
            (text.message, text.slot.text)
            for text in texts
            if text.slot.is_observation and (text.message in compressor.removed or text.is_changed)
        ),
        fits=compressor.total <= limit,
    )


def _request_summaries(
    compressor: _Compressor, threshold: int, summarise: Callable[[str], Any], max_tokens: float
) -> Generator[QueryMove, Any, dict[str, str]]:
    """Summarize long tool results until the conversation fits: the older half first, and the largest first in each.

    Return the summaries by text. Equal texts share one. The summarizer gets at most `max_tokens` of a text. No summary
    is requested for which there is no space, however many messages are removed.
    """
    summaries: dict[str, str] = {}
    minimum_tokens = compressor.minimum_tokens()
    for numbers in compressor.halves:
        texts = compressor.find_shortenable(numbers, observations=True, min_chars=threshold)
        for text in sorted(texts, key=lambda text: -len(text.slot.text)):
            original = text.slot.text
            if compressor.fits() or minimum_tokens + compressor.count_shortest(text) > compressor.limit:
                return summaries
            summary = summaries.get(original)
            if summary is None:
                summary = yield QueryMove(
                    summarise, (_limit_tokens(original, max_tokens, compressor.scale),), "compress"
                )
                if not isinstance(summary, str):
                    return summaries
            if summary.strip() and len(summary) < len(original):
                summaries[original] = summary
                compressor.summarize_text(text, summary)
                minimum_tokens += compressor.count_shortest(text)
    return summaries


def _limit_tokens(text: str, max_tokens: float, scale: TokenScale) -> str:
    """Return a text shortened to about so many tokens, at a constant token density."""
    tokens = scale(text)
    return text if tokens <= max_tokens else shorten_text(text, int(len(text) * max_tokens / tokens))


def _shorten(compressor: _Compressor, threshold: int) -> None:
    """Cut long texts and remove exchanges as far as needed: those of the older half first, then all others.

    With summaries, the long texts of both halves are cut before any exchange is removed. Summaries are cut last, if
    they are too long together.
    """
    older, newer = compressor.halves
    everything = range(len(compressor.messages))
    older_parts, newer_parts = list(reversed(compressor.find_droppable(older))), compressor.find_droppable(newer)
    steps = [(older, older_parts), (everything, newer_parts)]
    if compressor.shortened_by != "structure":
        steps = [(older, []), (everything, [*older_parts, *newer_parts])]
    for numbers, parts in steps:
        shortened = _cut_texts(compressor, numbers, threshold)
        _remove_exchanges(compressor, parts, shortened)
    if not compressor.fits():
        summaries = [
            text
            for text in chain.from_iterable(compressor.texts)
            if text.summary and text.message not in compressor.protected
        ]
        compressor.level_texts(summaries, MIN_SUMMARY_CHARS)


def _cut_texts(compressor: _Compressor, numbers: range, threshold: int) -> list[_Text]:
    """Cut the long texts of these messages if needed: first tool results, then others. Return the texts."""
    min_chars = max(threshold // 5, MIN_SHORTENED_CHARS)
    texts: list[_Text] = []
    for is_observation in (True, False):
        if compressor.fits():
            break
        long = compressor.find_shortenable(numbers, observations=is_observation, min_chars=threshold)
        compressor.level_texts(long, min_chars)
        texts += long
    return texts


def _remove_exchanges(compressor: _Compressor, parts: list[range], shortened: list[_Text]) -> None:
    """Remove exchanges until the conversation fits, and use the tokens that the last removal has freed."""
    for part in parts:
        if compressor.fits():
            break
        compressor.remove_exchange(part)
        if compressor.fits():
            _restore_freed(compressor, part, shortened)


def _restore_freed(compressor: _Compressor, last: range, shortened_texts: list[_Text]) -> None:
    """Use the tokens freed by the last removal: restore that exchange shortened, or lengthen other texts."""
    exchange_texts = [
        text for text in compressor.texts_of(last) if not text.summary and not is_shortened(text.slot.text)
    ]
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
    """Request a summary of each range of removed messages. What has a summary already is left out."""
    gap_summaries: dict[int, str] = {}
    gaps = compressor.find_gaps()
    available = (limit - compressor.total) / max(len(gaps), 1)
    max_chars = int(3 * available)
    for gap in gaps if max_chars >= MIN_SHORTENED_CHARS else ():
        lines = [
            f"{compressor.messages[text.message].role}: {shorten_text(text.slot.text, 1500)}"
            for text in compressor.texts_of(gap)
            if not text.summary
        ]
        if not lines:
            continue
        request = _limit_tokens("\n".join(lines), limit * SUMMARIZED_INPUT_RATIO, compressor.scale)
        summary = yield QueryMove(summarize_gap, (request, max_chars), "compress")
        if not isinstance(summary, str) or not summary.strip():
            break
        summary = _limit_tokens(shorten_text(summary.strip(), max_chars), available, compressor.scale)
        if compressor.total + compressor.scale(summary) <= limit:
            gap_summaries[gap.start] = summary
            compressor.total += compressor.scale(summary)
            compressor.shortened_by = "model"
    return gap_summaries


def _list_actions(compressor: _Compressor, gap_summaries: dict[int, str]) -> tuple[CompressionAction, ...]:
    """List what was done to which messages: each text by itself, then what was removed."""
    actions: list[CompressionAction] = []
    names = {
        block.id: block.name
        for message in compressor.messages
        for block in message.calls
        if isinstance(block.id, str) and isinstance(block.name, str)
    }
    for text in chain.from_iterable(compressor.texts):
        is_summarized = bool(text.summary) and text.summary is not text.slot.text
        if text.is_changed and (is_summarized or text.message not in compressor.removed):
            ids = compressor.messages[text.message].ids("result")
            actions.append(
                CompressionAction(
                    action="summarized" if is_summarized else "cut",
                    message=text.message,
                    tool=names.get(ids[0], "") if len(ids) == 1 else "",
                    tokens_before=round(compressor.scale.count_slot(text.slot)),
                    tokens_after=round(text.tokens),
                )
            )
    for gap in compressor.find_gaps():
        summary_tokens = sum(text.tokens for text in compressor.texts_of(gap) if text.summary)
        other_tokens = sum(
            compressor.original_tokens[number]
            - sum(compressor.scale.count_slot(text.slot) for text in compressor.texts[number] if text.summary)
            for number in gap
        )
        note_tokens = GAP_NOTE_TOKENS + compressor.scale(gap_summaries.get(gap.start, ""))
        actions.append(
            CompressionAction(
                action="dropped",
                message=gap.start,
                messages=len(gap),
                tokens_before=round(other_tokens + summary_tokens),
                tokens_after=round(note_tokens + summary_tokens),
            )
        )
    return tuple(sorted(actions, key=lambda action: action.message))


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
MIN_SUMMARY_CHARS = 300
"""Length to which a summary may be cut: less would not be worth its price."""
MAX_PARSED_CHARS = 400_000
"""Characters of JSON that are parsed, and of lines that are folded. Of longer texts only the ends are retained."""
_MARK = "[mulligan: shortened to fit the context window;"
_MIN_FOLDED_LINES = 3
"""Similar consecutive lines that are folded."""


_SUMMARY_MARK = "[mulligan: summarized to fit the context window]"
_GAP_TEXT = " earlier messages were removed to fit the context window"
_GAP_SUMMARY = f"{_GAP_TEXT}. Summary: "


def is_shortened(text: str) -> bool:
    return _MARK in text


def _is_summary(text: str) -> bool:
    """Return whether a text is a summary of an earlier compression, or a note that contains one."""
    return text.startswith(_SUMMARY_MARK) or (text.startswith("[mulligan: ") and _GAP_SUMMARY in text[:200])


def _strip_mark(text: str) -> str:
    """Return a summary without the words of mulligan around it."""
    if text.startswith(_SUMMARY_MARK):
        return text.removeprefix(_SUMMARY_MARK).strip()
    return text.partition(_GAP_SUMMARY)[2].removesuffix("]") or text


def shorten_text(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, or slightly more if the limit is below `MIN_SHORTENED_CHARS`."""
    if len(text) <= limit:
        return text
    limit = max(limit, MIN_SHORTENED_CHARS)
    if text.lstrip()[:1] in ("{", "[") and len(text) <= MAX_PARSED_CHARS:
        outline = _outline_json(text, limit)
        if outline is not None:
            return outline
    folded_text, lines = _fold_lines(text) if len(text) <= MAX_PARSED_CHARS else (text, 0)
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
