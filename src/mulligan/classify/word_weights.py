"""The kind that the words of an error suggest, by weights learned from labelled errors.

It decides where no rule does.
`evals/errors/train.py` writes `rules/word_weights.tsv`: the kinds, then each feature with a letter and a weight for
each kind that it speaks for or against.
"""

from __future__ import annotations

import functools
import itertools
import math
import os.path
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mulligan.core.failure import Kind
from mulligan.core.kinds import KINDS

MAX_TEXT_CHARS = 400
MAX_WORDS = 60
FIRST_KIND_LETTER, ZERO_WEIGHT_LETTER = 35, 180
"""Codes of the first kind and of the weight 0 in the file."""
WEIGHT_STEP = 0.04
MIN_SHARE = 0.2
"""With a smaller share, the kind stays as it is: there, fewer than 80 % of the guesses were right."""
MIN_FEATURES = 9
"""A shorter text says too little: five words and their pairs."""
LEARNED_WORDS = "text: learned words"
"""Evidence of such a kind."""
OTHER_TYPE_PENALTY = 1.5
"""Subtracted from kinds of models for a tool, and from other kinds for a model."""
SHARPNESS = 3.0
"""Factor of the scores from which shares are computed."""
_WORD_PATTERN = re.compile(r"[a-z]+(?:'[a-z]+)?|0|[^\x00-\x7f]{1,3}|[?!:]")
_ENDING_PATTERN = re.compile(r"(?<=[a-z]{3})(?:ing|edly|ed|es|s|ly)\b")


class WordGuess(NamedTuple):
    """A kind, and its share of the scores of all kinds."""

    kind: Kind
    share: float


def iter_features(text: str) -> Iterator[str]:
    """Yield the words of a text, without numbers and endings, and each pair of neighbours."""
    normal = re.sub(r"\d+", "0", text[:MAX_TEXT_CHARS].lower().replace("\u2019", "'"))
    words = _WORD_PATTERN.findall(_ENDING_PATTERN.sub("", normal))[:MAX_WORDS]
    yield from words
    yield from (f"{word} {next_word}" for word, next_word in itertools.pairwise(words))


def weigh_feature(count: int, feature_count: int) -> float:
    """Return the weight of a feature in a text with as many features."""
    return (1.0 + math.log(count)) / math.sqrt(feature_count)


def guess_kind(text: str, is_model: bool = False) -> WordGuess | None:
    """Return the kind that most words of a text suggest, or None if it is short or has no known word."""
    learned_kinds, weights = _load_weights()
    features = list(iter_features(text))
    counts = Counter(feature for feature in features if feature in weights)
    if not counts or len(features) < MIN_FEATURES:
        return None
    scores = [0.0] * len(learned_kinds)
    for number, weight in _read_weights(weights[""]):
        scores[number] = weight
    for feature, count in counts.items():
        factor = weigh_feature(count, len(counts))
        for number, weight in _read_weights(weights[feature]):
            scores[number] += factor * weight
    for number, kind in enumerate(learned_kinds):
        if (kind.type == "model") != is_model:
            scores[number] -= OTHER_TYPE_PENALTY
    best = max(scores)
    total = sum(math.exp(SHARPNESS * (score - best)) for score in scores if score > best - 5.0)
    return WordGuess(learned_kinds[scores.index(best)], 1.0 / total)


@functools.lru_cache(maxsize=2000)
def _read_weights(codes: str) -> tuple[tuple[int, float], ...]:
    """Return the number of each kind with its weight."""
    return tuple(
        (ord(codes[index]) - FIRST_KIND_LETTER, WEIGHT_STEP * (ord(codes[index + 1]) - ZERO_WEIGHT_LETTER))
        for index in range(0, len(codes), 2)
    )


@functools.cache
def _load_weights() -> tuple[Sequence[Kind], Mapping[str, str]]:
    path = os.path.join(os.path.dirname(__file__), "rules", "word_weights.tsv")
    with open(path, encoding="utf-8") as file:
        names, *lines = file.read().split("\n")
    return [KINDS[name] for name in names.split()], dict(line.split("\t") for line in lines if line)
