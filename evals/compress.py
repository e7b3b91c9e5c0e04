"""Conversations that are too long, made to fit in one pass: how many are cured, and how much of what would fit is kept.

python evals/compress.py [conversations]     # of each form; 200 messages, 30 of them results of tools
"""

from __future__ import annotations

import json
import pathlib
import random
import re
import sys
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "src")]

import conversations  # noqa: E402 - found where the tests have it

from mulligan import conversation  # noqa: E402
from mulligan.recover.compress import Compressed, Sizes, calibrated, fitting, room  # noqa: E402

RATIOS = (1.02, 1.2, 1.5, 2, 3)
"""How many times too long."""
_PIECES = re.compile(r"\d{1,3}|[A-Za-z]{1,7}|[^\w\s]|_|\n+|[^\x00-\x7f]")


def letters(messages: Any) -> int:
    return len(json.dumps(conversations.flat(messages))) // 4


def pieces(messages: Any) -> int:
    return len(_PIECES.findall(json.dumps(conversations.flat(messages))))


def tokenizer() -> Callable[[Any], int] | None:
    """A real one, where it is installed with its vocabulary."""
    try:
        import tiktoken

        encoding = tiktoken.get_encoding("cl100k_base")
    except Exception:  # noqa: BLE001 - absent, or no network for the vocabulary
        return None

    def cl100k(messages: Any) -> int:
        told = [slot.text for message in messages for slot in conversation.slots(message)]
        return sum(len(encoding.encode_ordinary(text)) for text in told) + 8 * len(messages)

    return cl100k


def compressed(messages: Any, sizes: Sizes) -> Compressed:
    scale = calibrated(sizes, messages)
    moves = fitting(messages, room(sizes, scale.whole(messages)), scale=scale)
    try:
        next(moves)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("nobody is asked anything")


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    missed = 0
    print(f"{'counted by':12} {'form':18} {'cured':>9} {'kept, mean':>11} {'least':>7} {'paired':>7}")
    for counter in filter(None, (letters, pieces, tokenizer())):
        for form, make in conversations.FORMS.items():
            shares, paired = [], 0
            for seed in range(count):
                messages = make(conversations.story(seed + 100))
                requested = counter(messages)
                window = int(requested / random.Random(seed).choice(RATIOS))
                made = compressed(messages, Sizes(window=window, requested=requested)).messages
                shares.append(counter(made) / window)
                paired += conversation.unpaired(made) == conversation.unpaired(messages)
            cured = sum(share <= 1 for share in shares)
            missed += cured < 0.9 * count or paired < count
            mean, least = sum(shares) / count, min(shares)
            told = f"{cured} of {count}"
            print(f"{counter.__name__:12} {form:18} {told:>9} {mean:>11.1%} {least:>7.1%} {paired:>7}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
