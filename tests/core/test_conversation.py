"""Conversations in every provider's form are read alike: who speaks, what tools answered, what belongs together."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
from conversations import FORMS, flat, story

from mulligan.core import conversation

TURNS = story(1, messages=20, results=4)
EXPECTED = ["calls" if sort == "calls" else sort for sort, _ in TURNS]


@pytest.mark.parametrize("form", FORMS)
def test_what_tools_answered_is_found(form):
    messages = FORMS[form](TURNS)
    found = [slot.text for message in messages for slot in conversation.find_text_slots(message) if slot.is_observation]
    results = [result for sort, told in TURNS if sort == "calls" for *_, result in told]
    assert len(found) == len(results)
    for text, result in zip(found, results, strict=True):
        assert text[:20].strip("{") in result or form in ("google", "bedrock")


@pytest.mark.parametrize("form", [form for form in FORMS if form != "pairs"])
def test_calls_and_their_results_are_paired_and_stay_together(form):
    messages = FORMS[form](TURNS)
    assert conversation.find_unpaired(messages) == ([], [])
    for part in conversation.group_exchanges(messages):
        assert conversation.find_unpaired(messages[part.start : part.stop]) == ([], [])
    assert sum(map(len, conversation.group_exchanges(messages))) == len(messages)


@pytest.mark.parametrize("form", FORMS)
def test_a_result_is_not_the_users_word(form):
    messages = FORMS[form](TURNS)
    said = [message for message in messages if conversation.role_of(message) == "user"]
    assert len(said) == sum(sort == "user" for sort, _ in TURNS)


def test_a_user_who_speaks_beside_a_result_has_spoken():
    message = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "a", "content": "42"}, {"type": "text", "text": "And now?"}],
    }
    assert conversation.role_of(message) == "user"
    assert conversation.result_ids(message) == ["a"]


def test_results_that_come_late_hold_everything_between_together():
    messages = [
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"role": "assistant", "content": "One moment."},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"role": "user", "content": "And?"},
    ]
    assert conversation.group_exchanges(messages) == [range(5), range(5, 6)]


@pytest.mark.parametrize("form", FORMS)
def test_another_text_in_the_same_place_changes_nothing_else(form):
    messages = FORMS[form](TURNS)
    before = copy.deepcopy(flat(messages))
    for message in messages:
        for slot in conversation.find_text_slots(message):
            value = {slot.wrap: "short"} if slot.wrap else "short"
            other = conversation.replace_at(message, slot.path, value)
            assert "short" in [each.text for each in conversation.find_text_slots(other)]
            assert conversation.call_ids(other) == conversation.call_ids(message)
            assert conversation.result_ids(other) == conversation.result_ids(message)
    assert flat(messages) == before


@dataclass(frozen=True)
class Frozen:
    role: str
    content: str


def test_objects_that_cannot_be_changed_are_copied():
    message = Frozen("user", "a long story")
    assert conversation.replace_at(message, ("content",), "short") == Frozen("user", "short")
    assert message.content == "a long story"


@pytest.mark.parametrize("form", FORMS)
def test_the_user_can_be_made_to_say_something_in_every_form(form):
    messages = FORMS[form](TURNS)
    made = conversation.user_message(messages, "Hello.")
    assert conversation.role_of(made) == "user"
    assert [slot.text for slot in conversation.find_text_slots(made)] == ["Hello."]
    assert type(made) is type(messages[0])


def test_the_conversation_is_found_among_the_arguments():
    assert conversation.conversation_argument({"model": "m", "contents": []}) == "contents"
    assert conversation.conversation_argument({"model": "m", "turns": [{"role": "user", "content": "x"}]}) == "turns"
    assert conversation.conversation_argument({"model": "m"}) is None


def test_a_picture_does_not_weigh_what_its_data_do():
    picture = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}],
    }
    assert conversation.estimate_tokens(picture) < 2000
    assert conversation.estimate_tokens({"role": "user", "content": "data:image/png;base64," + "A" * 10**6}) < 2000


def test_strangers_do_no_harm():
    class Odd:
        def __getattr__(self, name):
            raise RuntimeError(name)

    for odd in (
        Odd(),
        None,
        7,
        b"x",
        {"role": 3, "content": {"a": 1}},
        [],
        ("a", "b", "c"),
        {"content": [None, 3, [[]]]},
    ):
        assert all(isinstance(slot.text, str) for slot in conversation.find_text_slots(odd))
        conversation.role_of(odd)
        conversation.call_ids(odd)
        conversation.result_ids(odd)
        conversation.estimate_tokens(odd)
