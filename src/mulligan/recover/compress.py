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

from mulligan import conversation
from mulligan.conversation import Slot, by_digits, by_letters, by_words, escaped, heaviness
from mulligan.recover.plan import Ask
from mulligan.recover.shorten import LEAST, is_shortened, shortened
from mulligan.recover.windows import counts_digits

THRESHOLD = 2000
"""A shorter tool result is left unchanged as long as a longer one can be shortened."""
MARGIN = 0.955
"""Share of the window that is filled: token counts are estimates, and a second overflow costs more than a few
sentences."""
SLOPE = 0.2
"""How fast that share falls the more our estimate differs from the provider's count."""
SIGNS = 0.94
"""Tokens per piece of our estimate in JSON, where punctuation and escapes often share a token."""
BLIND = 0.5
"""Share of the conversation to keep if the window is unknown."""
NOTE = 40.0
"""Tokens of the note that replaces removed exchanges."""
SUMMARY = 0.12
"""Share of the limit that summaries of removed exchanges may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a model's context window, in tokens."""

    window: int | None = None
    requested: int | None = None
    answer: int = 0
    """Tokens of both that are reserved for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """A compressed conversation and how it was compressed."""

    messages: Sequence[Any]
    steps: int
    """Messages that were shortened or removed."""
    chars_before: int
    chars_after: int
    tokens_before: int
    tokens_after: int
    """As estimated, or as counted by the provider."""
    by: str
    """What shortened it: summariser, structure or model."""
    cut: tuple[tuple[int, str], ...]
    """Texts of tool results that were shortened or removed, with the index of their message."""
    fits: bool


@dataclass(frozen=True, slots=True)
class Scale:
    """How a provider counts: by words or letters, with or without JSON escapes, and tokens per unit of our estimate."""

    count: Callable[[str], float] = by_words
    is_sent: bool = False
    rate: float = 1.0

    def __call__(self, text: str) -> float:
        return self.rate * self.count(escaped(text) if self.is_sent else text)

    def at_first(self, slot: Slot) -> float:
        """Return the tokens of a text in its slot. Structured data in a slot has no escapes."""
        return self.rate * self.count(slot.text) if slot.wrap else self(slot.text)

    def whole(self, value: Any) -> float:
        """Return the tokens of a message or any other nested value."""
        return self.rate * heaviness(value, self.count, is_sent=self.is_sent)

    @property
    def margin(self) -> float:
        """Return the share of the window to fill: less, the more the provider's count differs from ours."""
        return MARGIN * (1 - SLOPE * min(max(abs(self.rate - 1) - 0.05, 0), 0.5))


def calibrated(sizes: Sizes, request: Any, model: object = None) -> Scale:
    """Return the scale that best explains the provider's count of a request, given the model's name."""
    tokenizing = by_digits if counts_digits(model) else by_words
    if sizes.requested is None:
        words = heaviness(request, tokenizing)
        rate = 1.0
        if sizes.window is not None and sizes.window > sizes.answer and words > 0:
            # The request exceeded the window, probably by little: conversations grow one message at a time.
            rate = max(rate, 1.12 * (sizes.window - sizes.answer) / words)
        return Scale(tokenizing, rate=rate if rate <= 4 else 1.0)
    counted = sizes.requested - sizes.answer
    # Choose the nearest scale. On a tie prefer the plain text as a tokenizer counts it.
    nearest, off = Scale(tokenizing), 4.0
    for doubt, (count, is_sent, usual) in enumerate(
        ((tokenizing, False, 1.0), (tokenizing, True, SIGNS), (by_letters, True, 1.0), (by_letters, False, 1.0))
    ):
        rate = counted / max(heaviness(request, count, is_sent=is_sent), 1.0)
        distance = abs(rate / usual - 1) + 0.002 * doubt
        if rate >= 0.2 and distance < off:  # otherwise it counted another unit, such as bytes
            nearest, off = Scale(count, is_sent, rate), distance
    return nearest


def room(sizes: Sizes, tokens: float, margin: float = MARGIN) -> float:
    """Return the token limit of a request, given that one with `tokens` tokens was too long."""
    if sizes.window is None or sizes.window <= sizes.answer:
        return tokens * BLIND
    fitting = margin * (sizes.window - sizes.answer)
    return fitting if fitting < tokens else tokens * BLIND


@dataclass(slots=True, eq=False)
class _Text:
    """A text that may be shortened."""

    message: int
    slot: Slot
    heavy: float
    now: str
    is_summary: bool = False

    def become(self, text: str, weigh: Scale) -> float:
        """Replace the text and return the change in tokens."""
        before, self.now = self.heavy, text
        self.heavy = weigh.at_first(self.slot) if text is self.slot.text else weigh(text)
        return self.heavy - before


@dataclass(slots=True)
class _Work:
    """State of one compression."""

    messages: Sequence[Any]
    limit: float
    weigh: Scale
    total: float = 0.0
    texts: list[_Text] = field(default_factory=list)
    own: dict[int, list[_Text]] = field(default_factory=dict)
    """The same texts by the index of their message."""
    parts: list[range] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """Tokens of each message without its texts."""
    untouchable: set[int] = field(default_factory=set)
    gone: dict[int, range] = field(default_factory=dict)
    """Removed exchanges by the index of their first message."""
    by: str = "structure"

    def __post_init__(self) -> None:
        for number, message in enumerate(self.messages):
            own = [
                _Text(number, slot, self.weigh.at_first(slot), slot.text)
                for slot in conversation.slots(message)
                if not slot.wrap or slot.is_observation
            ]
            whole = self.weigh.whole(message)
            self.weights.append(max(whole - sum(text.heavy for text in own), 0.0))
            self.total += self.weights[-1] + sum(text.heavy for text in own)
            self.texts.extend(own)
            self.own[number] = own
        self.parts = conversation.exchanges(self.messages)
        self.untouchable = _untouchable(self.messages, self.parts)

    def fits(self) -> bool:
        return self.total <= self.limit

    def shortenable(self, numbers: range, *, observations: bool, over: int) -> list[_Text]:
        """Return the texts of these messages that may be shortened, longest first."""
        found = [
            text
            for text in self.texts
            if text.message in numbers
            and text.message not in self.untouchable
            and not any(text.message in part for part in self.gone.values())
            and text.slot.is_observation == observations
            and len(text.slot.text) > over
            and not is_shortened(text.slot.text)
        ]
        return sorted(found, key=lambda text: -len(text.slot.text))

    def level(self, texts: list[_Text], least: int) -> None:
        """Shorten these texts to one common length: the greatest that fits, but at least `min_chars`.

        A common length shortens the longest texts first: a text changes only if no longer text is left.
        """
        texts = [text for text in texts if not text.is_summary]
        if not texts:
            return
        low, high = least, max(len(text.slot.text) for text in texts)
        at = _guess(texts, self.limit - self.total + sum(text.heavy for text in texts), least, self.weigh)
        for _ in range(9):
            self._cut(texts, at)
            if self.total > self.limit:
                high = at
            elif self.total >= 0.985 * self.limit:
                return
            else:
                low = at
            if high - low <= max(low // 100, 8):
                break
            at = (low + high) // 2
        self._cut(texts, low)

    def _cut(self, texts: list[_Text], length: int) -> None:
        for text in texts:
            wanted = shortened(text.slot.text, length) if len(text.slot.text) > length else text.slot.text
            if len(wanted) < len(text.slot.text) or length >= len(text.slot.text):
                self.total += text.become(wanted if len(wanted) <= len(text.slot.text) else text.slot.text, self.weigh)

    def leave_out(self, part: range) -> None:
        if part.start in self.gone:
            return
        self.total += NOTE * (1 - self._beside(part)) - self._weight(part)
        self.gone[part.start] = part

    def take_back(self, part: range) -> None:
        del self.gone[part.start]
        self.total += self._weight(part) - NOTE * (1 - self._beside(part))

    def _beside(self, part: range) -> int:
        """Return how many adjacent exchanges are removed too. Adjacent ones share one note."""
        return sum(hole.stop == part.start or hole.start == part.stop for hole in self.gone.values())

    def _weight(self, part: range) -> float:
        return sum(self.weights[number] + sum(text.heavy for text in self.own.get(number, ())) for number in part)

    def droppable(self, numbers: range) -> list[range]:
        return [
            part
            for part in self.parts
            if part.start in numbers
            and part.stop - 1 in numbers
            and part.start not in self.gone
            and self.untouchable.isdisjoint(part)
        ]

    def holes(self) -> list[range]:
        """Return the removed ranges, adjacent ones merged."""
        found: list[range] = []
        for part in sorted(self.gone.values(), key=lambda part: part.start):
            if found and found[-1].stop == part.start:
                found[-1] = range(found[-1].start, part.stop)
            else:
                found.append(part)
        return found

    def result(self, summaries: dict[int, str]) -> list[Any]:
        made: list[Any] = []
        texts: dict[int, list[_Text]] = {}
        for text in self.texts:
            if text.now is not text.slot.text:
                texts.setdefault(text.message, []).append(text)
        holes = {hole.start: hole for hole in self.holes()}
        out = {number for hole in holes.values() for number in hole}
        for number, message in enumerate(self.messages):
            if number in holes:
                made.append(conversation.spoken(self.messages, _gap(len(holes[number]), summaries.get(number, ""))))
            if number not in out:
                made.append(_changed(message, texts.get(number, ())))
        return made


def _guess(texts: list[_Text], available: float, least: int, weigh: Scale) -> int:
    """Estimate the common length at which these texts use the available tokens, assuming a constant token density."""
    lengths = sorted(((len(text.slot.text), weigh(text.slot.text)) for text in texts), reverse=True)
    rest = sum(heavy for _, heavy in lengths)
    for number, (length, _) in enumerate(lengths):
        following = lengths[number + 1][0] if number + 1 < len(lengths) else least
        cut = lengths[: number + 1]
        whole = rest - sum(heavy for _, heavy in cut)
        density = sum(heavy / max(size, 1) for size, heavy in cut)
        level = (available - whole) / density if density else 0
        if level >= following:
            return max(int(min(level, length)), least)
    return least


def _changed(message: Any, texts: Iterable[_Text]) -> Any:
    for text in texts:
        value: Any = {text.slot.wrap: text.now} if text.slot.wrap else text.now
        message = conversation.replaced(message, text.slot.path, value)
    return message


def _gap(count: int, summary: str) -> str:
    told = f"[mulligan: {count} earlier messages were left out here to make the conversation fit"
    return f"{told}. In short: {summary}]" if summary else f"{told}.]"


def _untouchable(messages: Sequence[Any], parts: list[range]) -> set[int]:
    roles = [conversation.role(message) for message in messages]
    kept = {number for number, role in enumerate(roles) if role == "system"}
    last_said = max((number for number, role in enumerate(roles) if role == "user"), default=None)
    if last_said is not None:
        kept |= set(next(part for part in parts if last_said in part))
    for part in reversed(parts):
        kept |= set(part)
        if any(roles[number] == "assistant" for number in part):
            break
    return kept


_PLAIN = Scale()


def fitting(
    messages: Sequence[Any],
    limit: float,
    *,
    threshold: int = THRESHOLD,
    scale: Scale = _PLAIN,
    summarise: Callable[[str], Any] | None = None,
    rewrite: Callable[[Sequence[Any]], Any] | None = None,
    retell: Callable[[str, int], Any] | None = None,
) -> Generator[Ask, Any, Compressed]:
    """Compress a conversation to `limit` tokens by this scale, or as close to it as possible.

    `summarise` shortens a text, `rewrite` a whole conversation, and `summarize_gap` summarizes removed messages. Each
    is called through a query move. One that fails is not called again.
    """
    before = messages
    by, steps = "structure", 0
    if rewrite is not None:
        rewritten = yield Ask(rewrite, (list(messages),))
        if _is_better(rewritten, messages):
            messages, by, steps = rewritten, "summariser", max(len(messages) - len(rewritten), 1)
    work = yield from _climbed(messages, limit, threshold, scale, summarise)
    summaries: dict[int, str] = {}
    if retell is not None and work.gone:
        work = yield from _climbed(messages, limit * (1 - SUMMARY), threshold, scale, None)
        summaries = yield from _retold(work, retell, limit)
    if by != "structure" and work.by == "structure":
        work.by = by
    made = work.result(summaries)
    return Compressed(
        messages=tuple(made) if isinstance(before, tuple) else made,
        steps=steps
        + len({text.message for text in work.texts if text.now is not text.slot.text} | _numbers(work.gone)),
        chars_before=_chars(before),
        chars_after=_chars(made),
        tokens_before=round(scale.whole(before)),
        tokens_after=round(work.total),
        by=work.by,
        cut=_cut_texts(work),
        fits=work.total <= limit,
    )


def _climbed(
    messages: Sequence[Any], limit: float, threshold: int, scale: Scale, summarise: Callable[[str], Any] | None
) -> Generator[Ask, Any, _Work]:
    """Run the compression steps as far as needed: on the older half first, then on the whole conversation."""
    work = _Work(messages, limit, scale)
    # The exchange in the middle of the conversation belongs to the newer half.
    middle = next((part.start for part in work.parts if len(messages) // 2 in part), 0)
    older, newer = range(middle), range(middle, len(messages))
    for numbers, parts in (
        (older, list(reversed(work.droppable(older)))),
        (range(len(messages)), work.droppable(newer)),
    ):
        long = work.shortenable(numbers, observations=True, over=threshold)
        if summarise is not None:
            for text in long:
                if work.fits():
                    break
                said = yield Ask(summarise, (text.slot.text,))
                if not isinstance(said, str):
                    summarise = None
                    break
                if 0 < len(said) < len(text.slot.text):
                    work.by, text.is_summary = "summariser", True
                    work.total += text.become(f"[mulligan: summarised to make the conversation fit] {said}", scale)
        if not work.fits():  # also if the summarizer failed, or its summaries are still too long
            _climb(work, numbers, parts, threshold, long)
        if work.fits():
            break
    return work


def _climb(work: _Work, numbers: range, parts: list[range], threshold: int, long: list[_Text]) -> None:
    """Apply the steps to one half, from the smallest loss to the largest."""
    work.level(long, least=max(threshold // 5, LEAST))
    if work.fits():
        return
    said = work.shortenable(numbers, observations=False, over=threshold)
    work.level(said, least=max(threshold // 5, LEAST))
    for part in parts:
        if work.fits():
            break
        work.leave_out(part)
        if work.fits():
            _refill(work, part, [*long, *said])


def _refill(work: _Work, last: range, cut: list[_Text]) -> None:
    """Use the tokens freed by the last removal: restore that exchange shortened, or lengthen other texts."""
    own = [text for text in work.texts if text.message in last and not is_shortened(text.slot.text)]
    work.take_back(last)
    work.level(own, least=LEAST)
    if not work.fits():
        for text in own:
            work.total += text.become(text.slot.text, work.weigh)
        work.leave_out(last)
    left = [text for text in cut if not any(text.message in part for part in work.gone.values())]
    work.level([text for text in left if text.now is not text.slot.text], least=LEAST)


def _retold(work: _Work, retell: Callable[[str, int], Any], limit: float) -> Generator[Ask, Any, dict[int, str]]:
    told: dict[int, str] = {}
    spare = int(limit - work.total)
    for hole in work.holes():
        size = 3 * spare // len(work.holes())
        if size < LEAST:
            break
        lines = [
            f"{conversation.role(work.messages[number])}: {shortened(slot.text, 1500)}"
            for number in hole
            for slot in conversation.slots(work.messages[number])
        ]
        said = yield Ask(retell, (shortened("\n".join(lines), int(limit * 2)), size))
        if not isinstance(said, str) or not said.strip():
            break
        told[hole.start] = shortened(said.strip(), size)
        work.total += work.weigh(told[hole.start])
        work.by = "model"
    return told


def _is_better(rewritten: Any, messages: Sequence[Any]) -> bool:
    """Return whether a user's rewrite is a shorter conversation in which no call lost its result."""
    if not isinstance(rewritten, list | tuple) or not rewritten:
        return False
    if sum(map(heaviness, rewritten)) >= sum(map(heaviness, messages)):
        return False
    before, after = conversation.unpaired(messages), conversation.unpaired(rewritten)
    return set(after[0]) <= set(before[0]) and set(after[1]) <= set(before[1])


def _numbers(gone: dict[int, range]) -> set[int]:
    return {number for part in gone.values() for number in part}


def _cut_texts(work: _Work) -> tuple[tuple[int, str], ...]:
    out = _numbers(work.gone)
    return tuple(
        (text.message, text.slot.text)
        for text in work.texts
        if text.slot.is_observation and (text.message in out or text.now is not text.slot.text)
    )


def _chars(messages: Sequence[Any]) -> int:
    return sum(len(slot.text) for message in messages for slot in conversation.slots(message))
