"""Conversations in every provider's form are read alike: who speaks, what tools answered, what belongs together."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass

import pytest
from conversations import FORMS, OTHER_FORMS, flat, plain_texts, read_turns, story
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core import conversation
from mulligan.core.conversation import get_field
from mulligan.recover.tokens import estimate_tokens

TURNS = story(1, messages=20, results=4)
EXPECTED = ["calls" if sort == "calls" else sort for sort, _ in TURNS]


@pytest.mark.parametrize("form", FORMS)
def test_what_tools_answered_is_found(form):
    messages = FORMS[form](TURNS)
    found = [
        slot.text for message in messages for slot in conversation.parse_message(message).slots if slot.is_observation
    ]
    results = [result for sort, told in TURNS if sort == "calls" for *_, result in told]
    assert len(found) == len(results)
    for text, result in zip(found, results, strict=True):
        assert text[:20].strip("{") in result or form in ("google", "bedrock")


@pytest.mark.parametrize("form", [form for form in FORMS if form != "pairs"])
def test_calls_and_their_results_are_paired_and_stay_together(form):
    messages = FORMS[form](TURNS)
    assert conversation.find_unpaired(conversation.parse_messages(messages)) == ([], [])
    for part in conversation.group_exchanges(conversation.parse_messages(messages)):
        assert conversation.find_unpaired(conversation.parse_messages(messages[part.start : part.stop])) == ([], [])
    assert sum(map(len, conversation.group_exchanges(conversation.parse_messages(messages)))) == len(messages)


@pytest.mark.parametrize("form", FORMS)
def test_a_result_is_not_the_users_word(form):
    messages = FORMS[form](TURNS)
    said = [message for message in messages if conversation.parse_message(message).role == "user"]
    assert len(said) == sum(sort == "user" for sort, _ in TURNS)


def test_a_user_who_speaks_beside_a_result_has_spoken():
    message = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "a", "content": "42"}, {"type": "text", "text": "And now?"}],
    }
    assert conversation.parse_message(message).role == "user"
    assert conversation.parse_message(message).ids("result") == ["a"]


def test_results_that_come_late_hold_everything_between_together():
    messages = [
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"role": "assistant", "content": "One moment."},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"role": "user", "content": "And?"},
    ]
    assert conversation.group_exchanges(conversation.parse_messages(messages)) == [range(5), range(5, 6)]


@pytest.mark.parametrize("form", FORMS)
def test_another_text_in_the_same_place_changes_nothing_else(form):
    messages = FORMS[form](TURNS)
    before = copy.deepcopy(flat(messages))
    for message in messages:
        for slot in conversation.parse_message(message).slots:
            value = {slot.wrap: "short"} if slot.wrap else "short"
            other = conversation.replace_at(message, slot.path, value)
            assert "short" in [each.text for each in conversation.parse_message(other).slots]
            assert conversation.parse_message(other).ids("call") == conversation.parse_message(message).ids("call")
            assert conversation.parse_message(other).ids("result") == conversation.parse_message(message).ids("result")
    assert flat(messages) == before


@dataclass(frozen=True)
class Frozen:
    role: str
    content: str


def test_objects_that_cannot_be_changed_are_copied():
    message = Frozen("user", "a long story")
    assert conversation.replace_at(message, ("content",), "short") == Frozen("user", "short")
    assert message.content == "a long story"


@pytest.mark.parametrize("form", [*FORMS, *OTHER_FORMS])
def test_the_user_can_be_made_to_say_something_in_every_form(form):
    messages = (FORMS | OTHER_FORMS)[form](TURNS)
    made = conversation.user_message(messages, "Hello.")
    assert conversation.parse_message(made).role == "user"
    assert [slot.text for slot in conversation.parse_message(made).slots] == ["Hello."]
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
    assert estimate_tokens(picture) < 2000
    assert estimate_tokens({"role": "user", "content": "data:image/png;base64," + "A" * 10**6}) < 2000


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
        assert all(isinstance(slot.text, str) for slot in conversation.parse_message(odd).slots)
        estimate_tokens(odd)


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=30)
RESULTS = WORDS.filter(lambda text: text[0] != "{") | st.integers().map(lambda count: json.dumps({"count": count}))
CALL = st.tuples(WORDS, WORDS, st.dictionaries(WORDS, st.integers() | WORDS, max_size=3), RESULTS)
CALLS = st.lists(CALL, min_size=1, max_size=3, unique_by=lambda call: call[0])
TURN = st.one_of(
    st.tuples(st.just("user"), WORDS), st.tuples(st.just("said"), WORDS), st.tuples(st.just("calls"), CALLS)
)


@pytest.mark.parametrize("form", FORMS)
@given(turns=st.lists(TURN, min_size=1, max_size=5), other=WORDS)
def test_parse_and_render_give_the_same_message(form, turns, other):
    for source in FORMS[form](turns):
        before = copy.deepcopy(flat(source))
        message = conversation.parse_message(source)
        changed = conversation.parse_message(message.render((slot, f"{other}!") for slot in message.slots))
        assert [slot.text for slot in changed.slots] == [f"{other}!" for _ in message.slots]
        assert [(block.type, block.id, block.name) for block in changed.blocks] == [
            (block.type, block.id, block.name) for block in message.blocks
        ]
        texts = [slot.text for slot in message.slots]
        restored = changed.render(zip(changed.slots, texts, strict=True))
        if any(slot.wrap for slot in message.slots):  # data was replaced by its text
            assert [slot.text for slot in conversation.parse_message(restored).slots] == texts
        else:
            assert flat(restored) == before
        assert message.render([]) is source
        assert flat(source) == before


@pytest.mark.parametrize("form", [form for form in FORMS if form != "pairs"])
@given(turns=st.lists(TURN, min_size=1, max_size=5))
def test_every_form_parses_to_the_same_calls_results_and_texts(form, turns):
    messages = conversation.parse_messages(FORMS[form](turns))
    blocks = [block for message in messages for block in message.blocks]
    calls = [call for kind, value in turns if kind == "calls" for call in value]
    parsed_calls = [block for block in blocks if block.type == "call"]
    arguments = [json.loads(call.value) if isinstance(call.value, str) else flat(call.value) for call in parsed_calls]
    assert [(call.id, call.name) for call in parsed_calls] == [(id, name) for id, name, *_ in calls]
    assert arguments == [given for _, _, given, _ in calls]
    results = [block for block in blocks if block.type == "result"]
    assert [block.id for block in results] == [id for id, *_ in calls]
    assert [slot.text for block in results for slot in block.slots] == [result for *_, result in calls]
    texts = [text for message in messages if message.role != "system" for text in message.texts if text]
    assert texts == [value for kind, value in turns if kind != "calls"]
    roles = [message.role for message in messages if message.role in ("user", "assistant") and message.texts != [""]]
    assert roles.count("user") == sum(kind == "user" for kind, _ in turns)


ALL_FORMS = {**FORMS, **OTHER_FORMS}
COPIES = {"langchain_blocks": "langchain", "langchain_dicts": "langchain", "pair_lists": "pairs",
          "dumps": "openai_chat", "google_dumps": "google"}  # fmt: skip


def joined(turns):
    """Turns as a conversation has them: two exchanges of calls in a row are one, wherever no text is between them."""
    made = []
    for sort, told in turns:
        if sort == "calls" and made and made[-1][0] == "calls":
            made[-1] = (sort, [*made[-1][1], *told])
        else:
            made.append((sort, list(told) if sort == "calls" else told))
    return made


def with_own_ids(turns):
    """Ids are unique in a conversation."""
    return [
        (sort, [(f"{turn} {number}", *call[1:]) for number, call in enumerate(told)] if sort == "calls" else told)
        for turn, (sort, told) in enumerate(turns)
    ]


@pytest.mark.parametrize("form", [form for form in ALL_FORMS if not form.startswith("pair")])
@given(turns=st.lists(TURN, min_size=1, max_size=6).map(with_own_ids))
def test_a_conversation_converts_into_each_form_and_back(form, turns):
    assert joined(read_turns(ALL_FORMS[form](turns))) == joined(turns)


@pytest.mark.parametrize("form", ["pairs", "pair_lists"])
@given(turns=st.lists(TURN, min_size=1, max_size=6))
def test_pairs_convert_and_their_results_are_observations(form, turns):
    messages = conversation.parse_messages(ALL_FORMS[form](turns)[1:])
    read = [(message.role, slot.text) for message in messages for slot in message.slots]
    expected = []
    for sort, told in turns:
        if sort == "calls":
            expected += [("assistant", f"I look at {len(told)} pages."), *(("tool", result) for *_, result in told)]
        else:
            expected.append(("user" if sort == "user" else "assistant", told))
    assert read == expected


@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_every_form_has_the_size_of_its_text(form, seed):
    """Nothing counts twice, and fields that are not set count for nothing."""
    turns = story(seed, messages=40, results=10)
    messages = ALL_FORMS[form](turns)
    expected = sum(map(estimate_tokens, plain_texts(turns)))
    assert abs(estimate_tokens(messages) - expected) < 0.03 * expected + 5 * len(messages)
    if form in COPIES:
        original = estimate_tokens(FORMS[COPIES[form]](turns), is_serialized=True)
        assert abs(estimate_tokens(messages, is_serialized=True) - original) < 0.03 * original + 25 * len(messages)


def test_the_note_of_a_compression_has_no_id_of_another_message():
    class Message:
        type, id, content = "human", "m1", "Hello."

        def model_copy(self, update):
            made = Message()
            made.__dict__.update(self.__dict__, **update)
            return made

    made = conversation.user_message([Message()], "Removed.")
    assert (made.content, made.id) == ("Removed.", None)


@pytest.mark.parametrize(
    ("value", "is_found"),
    [
        ([("human", "Hello.")], True),
        ([["human", "Hello."]], True),
        ([["Oslo", "Bergen"]], False),
        ([{"type": "human", "content": "Hello."}], True),
        ([{"type": "city", "content": "Oslo"}], False),
    ],
)
def test_messages_without_a_role_are_found_among_the_arguments(value, is_found):
    assert conversation.conversation_argument({"model": "m", "turns": value}) == ("turns" if is_found else None)


def test_what_a_model_thought_is_not_its_answer():
    thought = {"text": "Let me see.", "thought": True}
    answer = {"candidates": [{"finishReason": "STOP", "content": {"parts": [thought, {"text": "Rain."}]}}]}
    assert conversation.answer_text(answer) == "Rain."


ANSWERS = {
    "chat": {
        "choices": [
            {
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "Looking.",
                    "tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": '{"id": 7}'}}],
                },
            }
        ]
    },
    "responses": {
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"id": 7}'},
        ],
    },
    "anthropic": {
        "role": "assistant",
        "stop_reason": "tool_use",
        "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "c1", "name": "find", "input": {"id": 7}},
        ],
    },
    "google": {
        "candidates": [
            {
                "finishReason": "STOP",
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "Looking."},
                        {"functionCall": {"id": "c1", "name": "find", "args": {"id": 7}}},
                    ],
                },
            }
        ]
    },
}


@pytest.mark.parametrize("form", ANSWERS)
def test_every_answer_parses_to_the_same_text_and_call_with_its_path(form):
    answer = conversation.parse_answer(ANSWERS[form])
    text, call = [block for block in answer.blocks if block.type != "reasoning"]
    assert (text.type, text.value) == ("text", "Looking.")
    arguments = json.loads(call.value) if isinstance(call.value, str) else call.value
    assert (call.type, call.id, call.name, arguments) == ("call", "c1", "find", {"id": 7})
    assert answer.finish_reason in ("tool_calls", "completed", "tool_use", "stop")
    for block in (text, call):
        value = ANSWERS[form]
        for part in block.path:
            value = value[part]
        assert value == block.value


@pytest.mark.parametrize(
    ("message", "is_error"),
    [
        ({"role": "tool", "tool_call_id": "a", "content": "no", "is_error": True}, True),
        ({"role": "tool", "tool_call_id": "a", "content": "no", "status": "error"}, True),
        ({"role": "tool", "tool_call_id": "a", "content": "no"}, None),
        ({"content": [{"type": "tool_result", "tool_use_id": "a", "content": "", "is_error": False}]}, False),
        ({"content": [{"toolResult": {"toolUseId": "a", "content": [], "status": "error"}}]}, True),
    ],
)
def test_a_result_states_whether_it_is_an_error(message, is_error):
    (block,) = conversation.parse_message(message).blocks
    assert (block.type, block.id, block.is_error) == ("result", "a", is_error)


def test_a_member_of_a_pydantic_model_is_a_field_an_extra_or_a_property():
    pydantic = pytest.importorskip("pydantic")

    class Answer(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        text: str | None = None

        @property
        def shout(self) -> str:
            return (self.text or "").upper()

    answer = Answer(text="hello", usage={"input": 1})
    assert [get_field(answer, name) for name in ("text", "shout", "usage", "missing")] == [
        "hello",
        "HELLO",
        {"input": 1},
        None,
    ]

    class Strict(pydantic.BaseModel):
        text: str = ""

    assert get_field(Strict(text="hello"), "text") == "hello"
    assert get_field(Strict(), "usage") is None
