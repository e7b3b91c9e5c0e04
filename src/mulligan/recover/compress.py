"""Makes a conversation fit: old observations first, the largest first, then the middle; the newest exchange never.

One pass climbs a ladder until the estimate fits. First the older half: its long observations are shortened to one
common length, then its other long texts, then its exchanges are left out from the middle towards the beginning. Only if
all of that is not enough, the same is done to the newer half. System prompt, last user turn and newest exchange stay.
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
"""Characters. A shorter observation is left alone as long as a longer one can be shortened."""
MARGIN = 0.955
"""The share of the room that is used: an estimate is one, and to fail again costs more than a few sentences."""
SLOPE = 0.2
"""How fast that share falls where our estimate is further from the provider's count than is usual."""
SIGNS = 0.94
"""Tokens of the usual tokenizers to each of our pieces in JSON, where signs and escapes often go together."""
BLIND = 0.5
"""The share that is kept where nobody says how much fits."""
NOTE = 40.0
"""Tokens of the sentence that stands for exchanges left out."""
SUMMARY = 0.12
"""The share of the room that a summary of what is left out may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is known of a model's window, in tokens."""

    window: int | None = None
    requested: int | None = None
    answer: int = 0
    """The part of both that is kept for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """A conversation that should fit, and what that took."""

    messages: Sequence[Any]
    steps: int
    """Messages that were shortened or left out."""
    chars_before: int
    chars_after: int
    tokens_before: int
    tokens_after: int
    """As estimated, or as the provider counted before."""
    by: str
    """Who shortened: summariser, structure, model."""
    cut: tuple[tuple[int, str], ...]
    """The texts of tools that are not whole any more, with the number of their message."""
    fits: bool


@dataclass(frozen=True, slots=True)
class Scale:
    """How a provider counts: as tokenizers do or by letters, what a model reads or what was sent; how many to ours."""

    count: Callable[[str], float] = by_words
    is_sent: bool = False
    rate: float = 1.0

    def __call__(self, text: str) -> float:
        return self.rate * self.count(escaped(text) if self.is_sent else text)

    def at_first(self, slot: Slot) -> float:
        """The same for a text where it stands: what is no text there but data has no escapes."""
        return self.rate * self.count(slot.text) if slot.wrap else self(slot.text)

    def whole(self, value: Any) -> float:
        """The same for a message, or anything made of texts."""
        return self.rate * heaviness(value, self.count, is_sent=self.is_sent)

    @property
    def margin(self) -> float:
        """The share of the room that is used: the less, the worse what a provider counts agrees with what we do."""
        return MARGIN * (1 - SLOPE * min(max(abs(self.rate - 1) - 0.05, 0), 0.5))


def calibrated(sizes: Sizes, request: Any, model: object = None) -> Scale:
    """The scale by which this provider counts, told by what it counted in a request and by the model's name."""
    tokenizing = by_digits if counts_digits(model) else by_words
    if sizes.requested is None:
        words = heaviness(request, tokenizing)
        rate = 1.0
        if sizes.window is not None and sizes.window > sizes.answer and words > 0:
            # It did not fit, so it was more than the window: a little more, as conversations grow a message at a time.
            rate = max(rate, 1.12 * (sizes.window - sizes.answer) / words)
        return Scale(tokenizing, rate=rate if rate <= 4 else 1.0)
    counted = sizes.requested - sizes.answer
    # Whichever comes nearest; in doubt what a model reads, as a tokenizer counts it.
    nearest, off = Scale(tokenizing), 4.0
    for doubt, (count, is_sent, usual) in enumerate(
        ((tokenizing, False, 1.0), (tokenizing, True, SIGNS), (by_letters, True, 1.0), (by_letters, False, 1.0))
    ):
        rate = counted / max(heaviness(request, count, is_sent=is_sent), 1.0)
        distance = abs(rate / usual - 1) + 0.002 * doubt
        if rate >= 0.2 and distance < off:  # else it counted something else, such as bytes
            nearest, off = Scale(count, is_sent, rate), distance
    return nearest


def room(sizes: Sizes, tokens: float, margin: float = MARGIN) -> float:
    """How many tokens a request may have, where one of so many was too long."""
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
        """Takes another text; by how many tokens the whole is longer for it."""
        before, self.now = self.heavy, text
        self.heavy = weigh.at_first(self.slot) if text is self.slot.text else weigh(text)
        return self.heavy - before


@dataclass(slots=True)
class _Work:
    """A conversation while it is made to fit."""

    messages: Sequence[Any]
    limit: float
    weigh: Scale
    total: float = 0.0
    texts: list[_Text] = field(default_factory=list)
    own: dict[int, list[_Text]] = field(default_factory=dict)
    """The same texts by their message."""
    parts: list[range] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """What each message weighs without its texts."""
    untouchable: set[int] = field(default_factory=set)
    gone: dict[int, range] = field(default_factory=dict)
    """Exchanges that are left out, by their first message."""
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
        """Texts of these messages that may be shortened, the largest first."""
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
        """Shortens these texts to one common length, the greatest for which everything fits; at most to `least`.

        To one length is the largest first: no text is touched while a longer one is longer than it.
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
        """Neighbours that are left out too: together they need one sentence."""
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
        """What is left out, neighbours joined."""
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
    """The length for which these texts would weigh what is available, if each weighed by its length alone."""
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
    """The conversation with no more than `limit` tokens by this scale; the nearest to it, where nothing is enough.

    `summarise` makes a text shorter, `rewrite` a whole conversation, and
    `retell` says what was in messages that are left out; each is asked through the player, and one that cannot answer
    is not asked again.
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
    """The conversation as far down the ladder as it takes: the older half first, then all of it."""
    work = _Work(messages, limit, scale)
    # An exchange is of one half: the one in the middle of the conversation is of the newer.
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
        if not work.fits():  # also where the summariser could not answer, or its summaries are still too long
            _climb(work, numbers, parts, threshold, long)
        if work.fits():
            break
    return work


def _climb(work: _Work, numbers: range, parts: list[range], threshold: int, long: list[_Text]) -> None:
    """The rungs for one half, from the least loss to the greatest."""
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
    """Gives back what leaving out one exchange too many has freed: to that exchange, or to what was shortened."""
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
    """Whether what a user's own function made of a conversation is one, shorter, and no call lost its result."""
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
