"""Conversations of the real packages: each form is read once and right, and converts there and back.

`tests/core/test_conversation.py` has the same properties over stand-ins.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from conversations import Turn, plain_texts, read_turns, story
from package_forms import FORMS, Form

from mulligan.core import conversation
from mulligan.recover.compress import fit_to_window
from mulligan.recover.tokens import TokenScale, estimate_tokens

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no network

pytestmark = [pytest.mark.providers, pytest.mark.filterwarnings("ignore")]


ALL_FORMS = [
    pytest.param(package, form, id=form.__name__) for package, package_forms in FORMS.items() for form in package_forms
]


def joined(turns: list[Turn]) -> list[Turn]:
    """Two exchanges of calls in a row are one."""
    made: list[Turn] = []
    for sort, told in turns:
        if sort == "calls" and made and made[-1][0] == "calls":
            made[-1] = (sort, [*made[-1][1], *told])
        else:
            made.append((sort, list(told) if sort == "calls" else told))
    return made


@pytest.mark.parametrize(("package", "form"), ALL_FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_a_conversation_of_the_real_package_converts_there_and_back(package: str, form: Form, seed: int) -> None:
    pytest.importorskip(package)
    turns = story(seed, messages=30, results=8)
    messages = form(turns)
    read = read_turns(messages)
    if not form.__name__.startswith("google"):
        assert joined(read) == joined(turns)
    else:  # JSON results are data there, with other spaces
        assert [sort for sort, _ in joined(read)] == [sort for sort, _ in joined(turns)]
        assert [told for sort, told in read if sort != "calls"] == [told for sort, told in turns if sort != "calls"]


@pytest.mark.parametrize(("package", "form"), ALL_FORMS)
def test_every_form_of_the_real_package_has_the_size_of_its_text(package: str, form: Form) -> None:
    pytest.importorskip(package)
    turns = story(4, messages=40, results=10)
    messages = form(turns)
    expected = sum(map(estimate_tokens, plain_texts(turns)))
    assert abs(estimate_tokens(messages) - expected) < 0.03 * expected + 12 * len(messages)


@pytest.mark.parametrize(("package", "form"), ALL_FORMS)
def test_a_conversation_of_the_real_package_is_compressed_in_its_own_form(package: str, form: Form) -> None:
    pytest.importorskip(package)
    messages = form(story(5, messages=40, results=12))
    scale = TokenScale()
    made: list[str] = []

    def summarise(text: str) -> str:
        made.append(f"Summary {len(made)} of {len(text)} characters.")
        return made[-1]

    moves = fit_to_window(messages, 0.3 * scale.count_value(messages), summarise=summarise)
    answer: Any = None
    try:
        while True:
            move = moves.send(answer)
            answer = move.query(*move.arguments)
    except StopIteration as stop:
        done = stop.value
    assert done.fits
    assert scale.count_value(done.messages) <= 0.31 * scale.count_value(messages)
    parsed = conversation.parse_messages(done.messages)
    assert conversation.find_unpaired(parsed) == ([], [])
    sent = "\n".join(slot.text for message in parsed for slot in message.slots)
    assert made
    assert all(summary in sent for summary in made)
    types = {type(message) for message in messages}
    assert {type(message) for message in done.messages} <= types
