"""What is found, and what is left alone, in texts as agents meet them."""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mulligan
from mulligan.redaction import Redactor
from mulligan.redaction.redactor import find_in_texts, find_sensitive
from mulligan.testing import sandbox

_FILE = pathlib.Path(__file__).with_name("corpus.py")
_SPEC = importlib.util.spec_from_file_location("corpus", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
corpus = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(corpus)


def test_nothing_worth_reading_is_left_of_a_secret():
    assert [text for text, secret in corpus.SECRETS if not is_removed(secret, Redactor().text(text))] == []


def is_removed(secret, text):
    pieces = [secret[place : place + 8] for place in range(max(1, len(secret) - 7))]
    return sum(piece in text for piece in pieces) <= len(secret) / 10


@pytest.mark.safety
@pytest.mark.parametrize("level", ["local", "shared"])
def test_no_form_of_a_secret_is_left_in_the_record_of_a_call(level):
    @mulligan.tool(effects="none")
    def read(text):
        return {"page": text}

    @mulligan.tool(effects="none")
    def send(text):
        raise ValueError(text)

    with sandbox(level=level) as played:
        for text, _ in corpus.FORMS:
            with mulligan.run("agent", context=f"Task: {text}"):
                read(text)
                with contextlib.suppress(ValueError):
                    send(text)
        runs = played.runs
    # As text, not as JSON: there a quotation mark of a secret has another form.
    recorded_forms = zip(corpus.FORMS, runs, strict=True)
    assert [text for (text, secret), run in recorded_forms if not is_removed(secret, str(run))] == []


def test_what_only_looks_like_a_secret_is_left_as_it_is():
    assert {text: redacted for text in corpus.BENIGN if (redacted := Redactor().text(text)) != text} == {}


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("password for user admin2: denied", "password for user admin2: denied"),
        ("password for user bob2 is Kite42!x", "password for user bob2 is [redacted password]"),
        ("password for the user 'bob2': Kite42!x", "password for the user 'bob2': [redacted password]"),
        ("token for tenant acme42 is Zk39sLq02mXv81Tb", "token for tenant acme42 is [redacted token]"),
        ("password for user: Kite42!x", "password for user: [redacted password]"),
        ("password changed from Kite42!x to Maple7?y", "password changed from Kite42!x to Maple7?y"),
        (
            "changed the password from Kite42!x to Maple7?y.",
            "changed the password from [redacted password] to [redacted password].",
        ),
    ],
)
def test_an_owner_is_no_secret_and_what_follows_the_owner_is(text, redacted):
    assert Redactor().text(text) == redacted


TEXTS = st.sampled_from([text for text, _ in corpus.SECRETS] + corpus.BENIGN + [" ", "\n", "é", "{", '"', "="])


@given(st.lists(TEXTS | st.text(), max_size=8))
def test_texts_searched_together_have_the_findings_of_each(texts):
    assert find_in_texts(texts) == {text: found for text in texts if (found := find_sensitive(text))}
