"""The kind of a sentence that no rule knows, from its words."""

from __future__ import annotations

import pytest

from mulligan.classify.classifier import classify
from mulligan.classify.word_weights import LEARNED_WORDS, guess_kind, iter_features
from mulligan.core import kinds


def test_features_are_words_without_endings_and_numbers_and_their_pairs() -> None:
    assert list(iter_features("Waited 90 s, gates closed")) == [
        "wait", "0", "s", "gat", "clos", "wait 0", "0 s", "s gat", "gat clos",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The loom stopped answering and we gave up waiting for it after 70 seconds", "tool/timeout"),
        ("Your plan's searches for this month are all used up", "tool/quota_exceeded"),
        ("Nobody may open this drawer without the permission of the curator", "tool/permission_denied"),
    ],
)
def test_a_sentence_in_new_words_gets_the_kind_of_similar_sentences(text: str, kind: str) -> None:
    guess = guess_kind(text)
    assert guess is not None
    assert str(guess.kind) == kind


def test_a_text_without_a_known_word_suggests_nothing() -> None:
    assert guess_kind("xyzzyq") is None
    assert str(classify(text="xyzzyq", source="tool").kind) == "tool/unknown"


def test_a_model_gets_kinds_of_models() -> None:
    text = "You sent 41 requests within a minute, your tier allows 40"
    of_model, of_tool = guess_kind(text, is_model=True), guess_kind(text)
    assert of_model is not None
    assert of_tool is not None
    assert (of_model.kind.type, of_tool.kind.type) == ("model", "tool")


def test_learned_words_are_a_guess_that_leads_to_no_attempt() -> None:
    failure = classify(text="The owner has not shared this document with you", source="tool")
    assert failure.evidence == (LEARNED_WORDS,)
    assert failure.confidence <= 0.6
    assert failure.is_guess


def test_words_that_mean_one_kind_alone_outweigh_learned_words() -> None:
    text = "Rate limit exceeded: nobody may open this drawer without the permission of the curator"
    guess = guess_kind(text)
    assert guess is not None
    assert guess.kind is kinds.TOOL_PERMISSION_DENIED
    assert classify(text=text, source="tool").kind.code == "rate_limit"
