"""Conversations that are too long, made to fit in one pass: how many are cured, and how much of what would fit is kept.

python evals/compress.py [conversations]     # of each form; 200 messages, 30 of them results of tools
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


def compressed(messages: Any, sizes: Sizes) -> CompressionResult:
    scale = calibrate_scale(sizes, messages)
    moves = fit_to_window(messages, token_limit(sizes, scale.count_value(messages), scale.margin), scale=scale)
    try:
        next(moves)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("nobody is asked anything")


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
                made = compressed(messages, Sizes(window=window, requested=requested)).messages
                shares.append(counter(made) / window)
                paired += conversation.find_unpaired(conversation.parse_messages(made)) == conversation.find_unpaired(
                    conversation.parse_messages(messages)
                )
            cured = sum(share <= 1 for share in shares)
            mean, least = sum(shares) / count, min(shares)
            all_cured, all_made, worst = all_cured + cured, all_made + count, min(worst, mean)
            missed += cured < 0.9 * count or paired < count or mean < 0.9
            told = f"{cured} of {count}"
            print(f"{by:12} {form:18} {told:>9} {mean:>11.1%} {least:>7.1%} {paired:>7}", flush=True)
    print(f"cured in one compression: {all_cured} of {all_made}; kept of what would fit, the worst form: {worst:.1%}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
