"""Conversations that are too long, made to fit in one pass: how many are cured, and how much of what would fit is kept.

python evals/compress.py [conversations]     # of each form; 200 messages, 30 of them results of tools

The second table has conversations with 6 to 40 tool results and limits of 20 to 60 %, cut by structure and by a
summarizer that counts what it is asked for.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import sys
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "src")]

import conversations  # noqa: E402 - found where the tests have it

from mulligan.core import conversation  # noqa: E402
from mulligan.recover.compress import CompressionResult, fit_to_window  # noqa: E402
from mulligan.recover.tokens import Sizes, calibrate_scale, token_limit  # noqa: E402

RATIOS = (1.02, 1.2, 1.5, 2, 3)
"""How many times too long."""
_PIECES = re.compile(r"\d{1,3}|[A-Za-z]{1,7}|[^\w\s]|_|\n+|[^\x00-\x7f]")


def letters(messages: Any) -> int:
    return len(json.dumps(conversations.flat(messages))) // 4


def content(messages: Any) -> int:
    return sum(len(slot.text) for message in messages for slot in conversation.parse_message(message).slots) // 4 + len(
        messages
    )


def pieces(messages: Any) -> int:
    return len(_PIECES.findall(json.dumps(conversations.flat(messages))))


def tokenizers() -> dict[str, Callable[[Any], int]]:
    """Real ones, where they are installed with their vocabularies: LiteLLM brings OpenAI's and an old one of Claude."""
    try:
        import importlib.util

        import tiktoken
        from tokenizers import Tokenizer

        found = importlib.util.find_spec("litellm")
        folder = pathlib.Path(str(found and found.origin)).parent / "litellm_core_utils" / "tokenizers"
        os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(folder))
        cl100k = tiktoken.get_encoding("cl100k_base")
        claude = Tokenizer.from_file(str(folder / "anthropic_tokenizer.json"))
    except Exception as error:  # noqa: BLE001 - absent, or no network for the vocabulary
        print(f"no real tokenizer here ({type(error).__name__}): install litellm for them", file=sys.stderr)
        return {}

    def counter(count: Callable[[str], int]) -> Callable[[Any], int]:
        def counted(messages: Any) -> int:
            told = [slot.text for message in messages for slot in conversation.parse_message(message).slots]
            return sum(map(count, told)) + 8 * len(messages)

        return counted

    return {
        "cl100k": counter(lambda text: len(cl100k.encode_ordinary(text))),
        "claude": counter(lambda text: len(claude.encode(text).ids)),
        "cl100k, JSON": lambda messages: len(cl100k.encode_ordinary(json.dumps(conversations.flat(messages)))),
    }


MODELS = {"cl100k": "gpt-4", "claude": "claude-2.1"}
"""The model's name, if a provider counts the text with its real tokenizer."""


def compressed(
    messages: Any, sizes: Sizes, summarise: Callable[[str], str] | None = None, *, model: str | None = None
) -> CompressionResult:
    scale = calibrate_scale(sizes, messages, model)
    limit = token_limit(sizes, scale.count_value(messages), scale.margin)
    moves = fit_to_window(messages, limit, scale=scale, summarise=summarise)
    answer: Any = None
    while True:
        try:
            move = moves.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        answer = move.query(*move.arguments)


RESULTS = (6, 10, 20, 40)
"""Tool results of a conversation."""
LIMITS = (0.2, 0.3, 0.4, 0.5, 0.6)
"""Share of the conversation that fits."""
MIN_KEPT = 0.92
"""Share of the available size that each row must use."""


def summaries(count: int) -> int:
    """Compress conversations of many sizes, by structure and with a summarizer. Return the rows that are missed."""
    missed = 0
    count_tokens = tokenizers().get("cl100k", pieces)
    model = None if count_tokens is pieces else MODELS["cl100k"]
    print(
        f"\n{'form':18} {'limit':>6} {'cured':>9} {'kept, mean':>11} {'paired':>7}   "
        f"{'summarized: cured':>17} {'paired':>7} {'bought':>7} {'discarded':>9} {'needlessly dropped':>18}"
    )
    for form, make in conversations.FORMS.items():
        for limit in LIMITS:
            cured = summarized = bought = discarded = needless = paired = summarized_paired = total = 0
            shares: list[float] = []
            for results in RESULTS:
                for seed in range(max(count // 5, 1)):
                    chance = random.Random(seed)
                    messages = make(
                        conversations.story(seed + 500, messages=3 * results + chance.randrange(40), results=results)
                    )
                    requested = count_tokens(messages)
                    sizes = Sizes(window=int(requested * limit), requested=requested)
                    total += 1
                    made = compressed(messages, sizes, model=model)
                    share = count_tokens(made.messages) / (sizes.window or 1)
                    cured += share <= 1
                    shares += [share] * (share <= 1)
                    paired += is_paired(messages, made.messages)
                    asked: list[str] = []

                    def summarise(text: str, asked: list[str] = asked) -> str:
                        asked.append(f"Summary {len(asked)} of {len(text)} characters: {text[:200]}")
                        return asked[-1]

                    told = compressed(messages, sizes, summarise, model=model)
                    sent = [
                        slot.text for message in told.messages for slot in conversation.parse_message(message).slots
                    ]
                    is_cured = count_tokens(told.messages) <= (sizes.window or 0)
                    summarized += is_cured
                    summarized_paired += is_paired(messages, told.messages)
                    bought += len(asked)
                    discarded += sum(not any(summary[:40] in text for text in sent) for summary in asked)
                    large = compressed(messages, Sizes(window=1000, requested=10**6), summarise=lambda text: "x")
                    needless += "dropped" in {action.action for action in told.actions} and len(asked) < sum(
                        action.action == "summarized" for action in large.actions
                    )
            mean = sum(shares) / max(len(shares), 1)
            missed += discarded > 0 or needless > 0 or min(paired, summarized_paired) < total or mean < MIN_KEPT
            print(
                f"{form:18} {limit:>6.0%} {f'{cured} of {total}':>9} {mean:>11.1%} {paired:>7}   "
                f"{f'{summarized} of {total}':>17} {summarized_paired:>7} {bought:>7} {discarded:>9} {needless:>18}",
                flush=True,
            )
    return missed


def is_paired(messages: Any, made: Any) -> bool:
    """Return whether every call has its result where it had it before."""
    before, after = (conversation.find_unpaired(conversation.parse_messages(each)) for each in (messages, made))
    return before == after


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    missed = all_cured = all_made = 0
    worst = 1.0
    print(f"{'counted by':12} {'form':18} {'cured':>9} {'kept, mean':>11} {'least':>7} {'paired':>7}")
    for by, counter in {"JSON / 4": letters, "text / 4": content, "pieces": pieces, **tokenizers()}.items():
        for form, make in conversations.FORMS.items():
            shares, paired = [], 0
            for seed in range(count):
                messages = make(conversations.story(seed + 100))
                requested = counter(messages)
                window = int(requested / random.Random(seed).choice(RATIOS))
                sizes = Sizes(window=window, requested=requested)
                made = compressed(messages, sizes, model=MODELS.get(by)).messages
                shares.append(counter(made) / window)
                paired += is_paired(messages, made)
            cured = sum(share <= 1 for share in shares)
            mean, least = sum(shares) / count, min(shares)
            all_cured, all_made, worst = all_cured + cured, all_made + count, min(worst, mean)
            missed += cured < 0.9 * count or paired < count or mean < MIN_KEPT
            told = f"{cured} of {count}"
            print(f"{by:12} {form:18} {told:>9} {mean:>11.1%} {least:>7.1%} {paired:>7}", flush=True)
    print(f"cured in one compression: {all_cured} of {all_made}; kept of what would fit, the worst form: {worst:.1%}")
    missed += summaries(count)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
