"""A conversation in short, whatever its form, and what an answer says of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.capture import value_recording
from mulligan.capture.value_recording import MAX_ANSWER_CHARS, shorten_answer, summarize_arguments
from mulligan.core import conversation
from mulligan.core.conversation import CONVERSATION_ARGUMENTS
from mulligan.core.token_usage import read_usage

SAID = "What is the weather in Oslo?"
OPENAI = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "weather", "arguments": "{}"}}]},
    {"role": "user", "content": SAID},
]
ANTHROPIC = [
    {"role": "user", "content": [{"type": "text", "text": SAID}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain"}]},
]
GOOGLE = [{"role": "user", "parts": [{"text": SAID}]}, {"role": "model", "parts": [{"text": "Rain."}]}]
OBJECTS = [SimpleNamespace(type="system", content="Be short."), SimpleNamespace(type="human", content=SAID)]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"messages": OPENAI}, "messages"),
        ({"messages": ANTHROPIC, "system": "Be short."}, "messages"),
        ({"contents": GOOGLE}, "contents"),
        ({"contents": SAID}, "contents"),
        ({"prompt": SAID}, "prompt"),
        ({"messages": ["Hello", SAID]}, "messages"),
        ({"messages": OBJECTS}, "messages"),
        ({"model": "m", "talk": OPENAI}, "talk"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": SAID}]}]}, "input"),
    ],
    ids=["openai", "anthropic", "google", "google text", "prompt", "texts", "objects", "any name", "responses"],
)
def test_each_form_of_conversation_is_told_in_sizes_and_what_the_user_said_last(
    arguments: dict[str, Any], name: str
) -> None:
    kept, said = summarize_arguments(arguments)
    assert said == SAID
    told = kept[name]
    assert told["last_user"] == SAID
    given = arguments[name]
    assert told["count"] == len(told["each"]) == (len(given) if isinstance(given, list) else 1)
    for each in told["each"]:
        assert set(each) == {"role", "chars", "hash"}
    assert "Be short." not in str(kept)


def test_the_sizes_are_those_of_the_texts_and_equal_messages_have_equal_hashes() -> None:
    kept, _ = summarize_arguments({"messages": [*OPENAI, OPENAI[1]]})
    each = kept["messages"]["each"]
    assert [one["role"] for one in each] == ["system", "user", "assistant", "user", "user"]
    assert [one["chars"] for one in each] == [9, 5, 2, len(SAID), 5]
    assert each[1]["hash"] == each[4]["hash"] != each[3]["hash"]


def test_in_shape_there_are_neither_texts_nor_hashes() -> None:
    kept, _ = summarize_arguments({"messages": OPENAI, "system": "Be short."}, has_texts=False)
    assert set(kept["messages"]) == {"count", "each"}
    assert set(kept["messages"]["each"][0]) == set(kept["system"]) == {"role", "chars"}


def test_a_message_that_was_sent_before_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Any] = []
    parse = conversation.parse_message
    monkeypatch.setattr(conversation, "parse_message", lambda source: parsed.append(source) or parse(source))
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": f"number {n}"}]} for n in range(20)]
    for length in range(1, 21):
        summarize_arguments({"messages": messages[:length]})
    assert len(parsed) == 20
    messages[3]["content"][0]["text"] = "A message that was changed in place."
    kept, _ = summarize_arguments({"messages": messages})
    assert len(parsed) == 21
    assert kept["messages"]["each"][3]["chars"] == 36


class ComputedMessage:
    """A message whose text is in none of its attributes."""

    role = "user"
    texts = iter(["one", "three"])

    def __getattr__(self, name: str) -> Any:
        return next(self.texts) if name == "content" else None


def test_a_message_that_computes_its_text_is_read_each_time() -> None:
    summaries = [summarize_arguments({"messages": [ComputedMessage()]}, has_messages=True) for _ in range(2)]
    assert [said for _, said in summaries] == ["one", "three"]


def test_a_long_conversation_is_told_by_its_end() -> None:
    kept, said = summarize_arguments({"messages": [{"role": "user", "content": f"message {n}"} for n in range(1000)]})
    assert kept["messages"]["count"] == 1000
    assert len(kept["messages"]["each"]) == value_recording.MAX_LISTED_MESSAGES
    assert said == "message 999"


def test_a_long_sentence_is_cut_between_words() -> None:
    _, said = summarize_arguments({"prompt": "word " * 500 + "sk-" + "a" * 40})
    assert said is not None
    assert len(said) <= value_recording.MAX_USER_CHARS + 4
    assert said.endswith("word ...")
    assert summarize_arguments({"prompt": "x" * 10_000})[1] == "..."


def test_arguments_without_a_conversation_stay_as_they_are() -> None:
    assert summarize_arguments({"model": "m", "temperature": 0.5, "stop": ["a"]}) == (
        {"model": "m", "temperature": 0.5, "stop": ["a"]},
        None,
    )


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inside: (
        st.lists(inside) | st.dictionaries(st.sampled_from(["role", "content", "parts", "text", "x"]), inside)
    ),
)


@given(st.dictionaries(st.sampled_from([*CONVERSATION_ARGUMENTS, "system", "model"]), anything), anything)
def test_anything_at_all_can_be_told(arguments: dict[str, Any], result: Any) -> None:
    kept, said = summarize_arguments(arguments)
    assert kept.keys() == arguments.keys()
    assert said is None or isinstance(said, str)
    assert shorten_answer(result) == result or len(str(shorten_answer(result))) <= MAX_ANSWER_CHARS + 100
    usage = read_usage(result)
    assert usage is None or all(isinstance(each, int) for each in usage.tokens.values())


@pytest.mark.parametrize(
    "result",
    [
        SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="Rain."))]),
        {"choices": [{"message": {"role": "assistant", "content": "Rain."}}]},
        SimpleNamespace(content=[SimpleNamespace(type="text", text="Rain.")]),
        SimpleNamespace(text="Rain."),
        SimpleNamespace(output_text="Rain."),
        {"candidates": [{"content": {"parts": [{"text": "Rain."}]}}]},
    ],
)
def test_the_text_of_an_answer_is_found_in_every_form(result: Any) -> None:
    assert shorten_answer(result) == {"text": "Rain."}


def test_a_long_answer_is_cut_and_one_without_a_text_is_kept_as_it_is() -> None:
    assert len(shorten_answer("word " * 5000)) < 2100
    called = {"choices": [{"message": {"content": None, "tool_calls": []}}]}
    assert shorten_answer(called) is called
    pair = ("Rain.", "call_1")
    assert shorten_answer(pair) is pair
