"""Models with record="full": which messages are recorded, how often, and how much of each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import mulligan
from mulligan.capture import message_recording
from mulligan.capture.message_recording import parse_answer, parse_conversation, to_ranges
from mulligan.core.records import History, MessagePart, RecordedMessage, message_numbers
from mulligan.testing import Sandbox

SYSTEM = {"role": "system", "content": "You help."}
HELLO = {"role": "user", "content": "Hello"}


def texts(history: History) -> list[str]:
    return [part.text for message in history.messages for part in message.parts]


# What is recorded


def test_every_attempt_has_the_messages_it_received_and_each_is_recorded_once(played: Sandbox) -> None:
    @mulligan.model(record="full")
    def ask(messages: list[Any]) -> str:
        return f"answer {len(messages)}"

    with mulligan.run("agent"):
        conversation: list[Any] = [SYSTEM, HELLO]
        for _ in range(3):
            conversation += [{"role": "assistant", "content": ask(conversation)}, {"role": "user", "content": "And?"}]

    (history,) = played.runs
    assert [(step.messages, step.answer) for step in history.steps] == [
        (((1, 2),), 3),
        (((1, 4),), 5),
        (((1, 5), (4, 4)), 6),  # the same question again
    ]
    assert texts(history) == ["You help.", "Hello", "answer 2", "And?", "answer 4", "answer 6"]
    assert history.steps[2].arguments["messages"] == {"count": 6, "recorded": True, "last_user": "And?"}
    assert "each" in str(ask_by_default(played).steps[0].arguments)


def ask_by_default(played: Sandbox, **options: Any) -> History:
    @mulligan.model(**options)
    def ask(messages: list[Any]) -> str:
        return "the answer"

    with mulligan.run("short"):
        ask([HELLO])
    return played.runs[-1]


def test_without_the_option_and_with_stricter_ones_no_message_is_recorded(played: Sandbox) -> None:
    for options in ({}, {"record": "shape"}):
        history = ask_by_default(played, **options)
        assert (history.messages, history.steps[0].messages, history.steps[0].answer) == ((), (), None)

    @mulligan.model(record="full")
    def ask(messages: list[Any]) -> str:
        return "the answer"

    with mulligan.run("strict", record="shape"):
        ask([HELLO])
    with mulligan.run("off", record="off"):
        ask([HELLO])

    assert [history.messages for history in played.runs] == [()] * 3


def test_a_retried_and_a_cancelled_call_and_one_without_a_run_are_recorded_too(played: Sandbox) -> None:
    @mulligan.model(record="full")
    async def ask(messages: list[Any], then: str = "answer") -> str:
        if then == "fail" and not played.steps:
            raise ConnectionResetError("reset")
        if then == "hang":
            await asyncio.sleep(60)
        return "done"

    async def cancelled() -> None:
        task = asyncio.create_task(ask([HELLO], then="hang"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask([HELLO], then="fail"))
    asyncio.run(cancelled())
    asyncio.run(ask([HELLO]))

    assert [[(step.outcome, step.messages, step.answer) for step in history.steps] for history in played.runs] == [
        [("failure", ((1, 1),), None), ("success", ((1, 1),), 2)],
        [("cancelled", ((1, 1),), None)],
        [("success", ((1, 1),), 2)],
    ]
    assert [texts(history) for history in played.runs] == [["Hello", "done"], ["Hello"], ["Hello", "done"]]


def test_calls_at_the_same_time_share_messages_and_none_is_missing(played: Sandbox) -> None:
    @mulligan.model(record="full")
    async def ask(messages: list[Any]) -> str:
        await asyncio.sleep(0)
        return messages[-1]["content"]

    async def work() -> None:
        with mulligan.run("agent"):
            await asyncio.gather(*(ask([SYSTEM, {"role": "user", "content": f"part {n}"}]) for n in range(8)))

    asyncio.run(work())

    (history,) = played.runs
    stored = {message.number for message in history.messages}
    assert all({*message_numbers(step), step.answer} <= stored for step in history.steps)
    assert sorted(texts(history)) == sorted(["You help.", *(2 * [f"part {n}" for n in range(8)])])


def test_a_compressed_conversation_is_recorded_as_the_model_received_it(played: Sandbox) -> None:
    @mulligan.model(record="full", compress=lambda text: "short", compress_above_chars=200)
    def ask(messages: list[Any]) -> str:
        if len(str(messages)) > 5000:
            raise ValueError("This model's maximum context length is 1000 tokens. You sent 3000 tokens.")
        return "done"

    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c", "content": "long " * 2000}
    with mulligan.run("agent"):
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        ask([HELLO, asked, result, {"role": "assistant", "content": "read"}, {"role": "user", "content": "Next?"}])

    (history,) = played.runs
    failed, answered = history.steps
    seen = {message.number: message for message in history.messages}
    assert any("long long" in part.text for n in message_numbers(failed) for part in seen[n].parts)
    assert not any("long long" in part.text for n in message_numbers(answered) for part in seen[n].parts)


def test_a_wrapped_client_records_conversations_too(played: Sandbox) -> None:
    class Completions:
        def create(self, **request: Any) -> Any:
            message = SimpleNamespace(role="assistant", content="Hi", tool_calls=None)
            return SimpleNamespace(choices=[SimpleNamespace(message=message, finish_reason="stop")], usage=None)

    client = SimpleNamespace(chat=SimpleNamespace(completions=Completions()))
    wrapped = mulligan.wrap_client(client, record="full")

    with mulligan.run("agent"):
        wrapped.chat.completions.create(model="gpt-5", messages=[SYSTEM, HELLO])

    assert texts(played.runs[0]) == ["You help.", "Hello", "Hi"]
    assert played.steps[0].arguments["model"] == "gpt-5"


def test_recording_never_harms_the_call(played: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(message_recording, "parse_conversation", broken)
    monkeypatch.setattr(message_recording, "parse_answer", broken)

    history = ask_by_default(played, record="full")

    assert [step.outcome for step in history.steps] == ["success"]
    assert history.messages == ()


# Secrets


def test_a_secret_of_one_message_is_removed_from_later_messages_and_steps(played: Sandbox) -> None:
    @mulligan.model(record="full")
    def ask(messages: list[Any]) -> Any:
        call = {"name": "log_in", "arguments": '{"password": "xq-vermilion"}'}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": call}]}

    @mulligan.tool(effects="none")
    def log_in(note: str) -> str:
        return f"welcome, {note}"

    with mulligan.run("agent"):
        reply = ask([HELLO])
        log_in("xq-vermilion")
        ask([HELLO, reply, {"role": "tool", "tool_call_id": "1", "content": "welcome, xq-vermilion"}])

    stored = str(played.runs[0])
    assert "xq-vermilion" not in stored
    assert stored.count("[redacted password]") >= 4


# Forms


PARIS = {"city": "Paris"}
CALL = MessagePart(type="call", name="weather", arguments=PARIS)
RESULT = MessagePart(type="result", name="weather", text="rain")
FORMS: dict[str, list[Any]] = {
    "openai": [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "c", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ],
    "responses": [
        {"role": "user", "content": [{"type": "input_text", "text": "Rain?"}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
    ],
    "anthropic": [
        {"role": "user", "content": [{"type": "text", "text": "Rain?"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "weather", "input": PARIS}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "rain"}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_messages_of_every_provider_are_recorded_alike(form: str) -> None:
    assert parse_conversation({"messages": FORMS[form], "system": "Be brief."}) == [
        RecordedMessage(role="system", parts=(MessagePart(text="Be brief."),)),
        RecordedMessage(role="user", parts=(MessagePart(text="Rain?"),)),
        RecordedMessage(role="assistant", parts=(CALL,)),
        RecordedMessage(role="tool", parts=(RESULT,)),
    ]


def test_an_answer_is_the_message_that_the_next_call_sends() -> None:
    message = SimpleNamespace(role="assistant", content="Let me look.", tool_calls=FORMS["openai"][1]["tool_calls"])
    answer = SimpleNamespace(choices=[SimpleNamespace(message=message, finish_reason="tool_calls")])

    assert [parse_answer(answer)] == parse_conversation({"messages": [message]})
    assert parse_answer("plain") == RecordedMessage(role="assistant", parts=(MessagePart(text="plain"),))
    assert parse_answer(None) is None
    assert parse_answer({"$stream": 3}) is None


def piece(index: int, name: str | None, arguments: str) -> dict[str, Any]:
    return {"index": index, "id": "c" if name else None, "function": {"name": name, "arguments": arguments}}


def chunk(content: str | None = None, *calls: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": content, "tool_calls": list(calls) or None}}]}


STREAMS: dict[str, list[Any]] = {
    "openai": [
        chunk("Let "), chunk("me look."), chunk(None, piece(0, "weather", "")),
        chunk(None, piece(0, None, '{"city": ')), chunk(None, piece(0, None, '"Paris"}')), {"choices": []},
    ],
    "responses": [
        {"type": "response.created", "response": {"output": []}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Let me look."},
        {"type": "response.output_text.done", "output_index": 0, "text": "Let me look."},
        {"type": "response.completed", "response": {"status": "completed", "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
            {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city": "Paris"}'},
        ]}},
    ],
    "anthropic": [
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me look."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "weather"}},
        {"type": "content_block_delta", "index": 1, "delta": {"partial_json": '{"city": "Pa'}},
        {"type": "content_block_delta", "index": 1, "delta": {"partial_json": 'ris"}'}},
        {"type": "message_stop"},
    ],
    "gemini": [
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "Let me "}]}}]},
        {"candidates": [{"content": {"role": "model", "parts": [
            {"text": "look."}, {"functionCall": {"name": "weather", "args": PARIS}}]}}]},
    ],
    "bedrock": [
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Let me look."}}},
        {"contentBlockStart": {"contentBlockIndex": 1, "start": {"toolUse": {"name": "weather"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '{"city": "Paris"}'}}}},
    ],
    "langchain": [
        SimpleNamespace(type="AIMessageChunk", content="Let me look.", tool_call_chunks=[]),
        SimpleNamespace(type="AIMessageChunk", content="", tool_call_chunks=[
            {"index": 0, "name": "weather", "args": None}]),
        SimpleNamespace(type="AIMessageChunk", content=[], tool_call_chunks=[
            {"index": 0, "name": None, "args": '{"city": "Paris"}'}]),
    ],
    "cohere": [
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Let me look."}}}},
        {"type": "tool-call-start", "index": 0,
         "delta": {"message": {"tool_calls": {"function": {"name": "weather", "arguments": ""}}}}},
        {"type": "tool-call-delta", "index": 0,
         "delta": {"message": {"tool_calls": {"function": {"arguments": '{"city": "Paris"}'}}}}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", STREAMS)
def test_a_streamed_answer_is_recorded_when_the_stream_ends(played: Sandbox, form: str) -> None:
    @mulligan.model(record="full")
    def ask(messages: list[Any]) -> Iterator[Any]:
        yield from STREAMS[form]

    with mulligan.run("agent"):
        assert list(ask([HELLO])) == STREAMS[form]
    (history,) = played.runs
    assert history.steps[0].answer == 2
    assert history.messages[1].role == "assistant"
    assert history.messages[1].parts == (MessagePart(text="Let me look."), CALL)


def test_a_stream_that_is_closed_early_is_recorded_as_far_as_it_was_read(played: Sandbox) -> None:
    @mulligan.model(record="full")
    def ask(messages: list[Any]) -> Iterator[str]:
        yield from ("It ", "arrives ", "on Friday.")

    with mulligan.run("agent"):
        stream = ask([HELLO])
        assert next(stream) + next(stream) == "It arrives "
        stream.close()
    assert texts(played.runs[0]) == ["Hello", "It arrives "]


def test_images_are_recorded_by_type_and_size() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
    (message,) = parse_conversation({"messages": [{"role": "user", "content": [image]}]})
    (part,) = message.parts
    assert part.type == "other"
    assert part.text.startswith("[image_url, 50")
    assert "AAAA" not in str(part)


def test_texts_that_cannot_be_encoded_are_recorded_escaped() -> None:
    (message,) = parse_conversation({"messages": [{"role": "user", "content": "half \ud800"}]})
    assert message.parts[0].text == "half \\ud800"


# Limits


def test_a_long_message_is_recorded_with_both_ends() -> None:
    content = ["first " + "x y " * 20_000 + " last", "second", "third"]
    (message,) = parse_conversation({"messages": [{"role": "user", "content": content}]})
    assert sum(len(part.text) for part in message.parts) <= message_recording.MAX_MESSAGE_CHARS + 100
    assert message.parts[0].text.startswith("first ")
    assert message.parts[0].text.endswith(" last")
    assert "characters cut" in message.parts[0].text


def test_the_messages_of_a_run_are_limited_and_of_one_step_too(
    played: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_recording, "MAX_RUN_MESSAGES", 6)
    monkeypatch.setattr(message_recording, "MAX_PENDING_BYTES", 400)

    @mulligan.model(record="full")
    def ask(messages: list[Any]) -> str:
        return "ok"

    conversation = [{"role": "user", "content": f"message {n} {'.' * 50}"} for n in range(9)]
    with mulligan.run("agent"):
        for _ in range(3):
            ask(conversation)

    (history,) = played.runs
    assert len(history.messages) == 6
    counts = [len(message_numbers(step)) for step in history.steps]
    assert counts == sorted(counts)  # what does not fit into one step comes with the next
    assert history.messages[0].parts[0].text.startswith("message ")
    assert history.steps[-1].arguments["messages"]["count"] == 9


def test_numbers_are_written_as_ranges() -> None:
    assert to_ranges([]) == ()
    assert to_ranges([1, 2, 3, 7, 9, 10, 2]) == ((1, 3), (7, 7), (9, 10), (2, 2))
