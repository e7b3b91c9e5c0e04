"""What is found, and what is left alone, in texts as agents meet them."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.redaction import Redactor
from mulligan.redaction.redactor import find_in_texts, find_sensitive

_FILE = pathlib.Path(__file__).with_name("corpus.py")
_SPEC = importlib.util.spec_from_file_location("corpus", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
corpus = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(corpus)


@pytest.mark.parametrize(("text", "secret"), corpus.SECRETS, ids=[text[:40] for text, _ in corpus.SECRETS])
def test_nothing_worth_reading_is_left_of_a_secret(text, secret):
    redacted = Redactor().text(text)

    pieces = [secret[place : place + 8] for place in range(max(1, len(secret) - 7))]
    assert sum(piece in redacted for piece in pieces) <= len(secret) / 10


@pytest.mark.parametrize("text", corpus.BENIGN, ids=[text[:40] for text in corpus.BENIGN])
def test_what_only_looks_like_a_secret_is_left_as_it_is(text):
    assert Redactor().text(text) == text


TEXTS = st.sampled_from([text for text, _ in corpus.SECRETS] + corpus.BENIGN + [" ", "\n", "é", "{", '"', "="])


@given(st.lists(TEXTS | st.text(), max_size=8))
def test_texts_searched_together_have_the_findings_of_each(texts):
    assert find_in_texts(texts) == {text: found for text in texts if (found := find_sensitive(text))}
