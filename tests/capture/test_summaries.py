"""`compress="model"`: the wrapped model summarizes what is too long, within a budget, and each request is recorded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import mulligan
from mulligan.core.events import ContextCompacted
from mulligan.report import run_text
from mulligan.testing import Sandbox


class TooLongError(Exception):
    status_code = 400
    code = "context_length_exceeded"


TooLongError.__module__ = "openai"


def reading(count: int, size: int = 9000) -> list[dict[str, Any]]:
    """A conversation with so many large results of a tool, all different, and a small newest one."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read them."}]
    for number in range(count + 1):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        text = f"page {number} " * ((size if number < count else 300) // 8)
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": text})
    return [*messages, {"role": "user", "content": "Sum it up."}]


def answer(text: str, read: int = 900, written: int = 40) -> dict[str, Any]:
    usage = {"prompt_tokens": read, "completion_tokens": written}
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}], "usage": usage}


class Model:
    """A model with a window of so many characters. It counts the summaries that it makes."""

    def __init__(self, window: int, fails: bool = False) -> None:
        self.window, self.fails = window, fails
        self.summaries = 0
        self.sent: list[Any] = []

    def reply(self, messages: Any) -> Any:
        size = len(json.dumps(messages))
        if messages[0]["content"].startswith("Summarize "):
            if self.fails:
                raise ConnectionError("no")
            self.summaries += 1
            return answer(f"Summary {self.summaries}.")
        if size > self.window:
            said = (
                f"maximum context length is {self.window // 4} tokens. However, your messages resulted in {size // 4}"
            )
            raise TooLongError(f"This model's {said} tokens.")
        self.sent = messages
        return answer("Done.")


def wrap(model: Model, **options: Any) -> Any:
    @mulligan.model(compress="model", **options)
    def chat(messages: Any, model_name: str = "m", **rest: Any) -> Any:
        return model.reply(messages)

    return chat


def test_the_model_summarizes_large_observations_before_anything_is_removed(played: Sandbox) -> None:
    model = Model(window=30_000)
    assert wrap(model)(reading(6)) == answer("Done.")
    sent = json.dumps(model.sent)
    assert model.summaries == 3
    assert all(f"Summary {number}." in sent for number in (1, 2, 3))
    assert len(model.sent) == len(reading(6))
    assert "removed to fit" not in sent
    assert played.steps[-1].recovery.source == "model"


def test_each_summary_is_a_step_of_its_own_with_its_tokens(played: Sandbox) -> None:
    wrap(Model(window=30_000))(reading(6))
    summaries = [step for step in played.steps if step.name == "chat summary"]
    assert [(step.type, step.outcome, step.tokens) for step in summaries] == [
        ("model", "success", {"input": 900, "output": 40})
    ] * 3
    assert {step.parent for step in summaries} == {1}
    assert {step.recovery.remedy.value for step in summaries} == {"compress"}
    assert [step.outcome for step in sorted(played.steps, key=lambda step: step.seq)] == ["failure", *["success"] * 4]
    (history,) = played.runs
    assert history.links[0].method == "repair"
    assert "recovered" in next(run_text.render_run(history, 0))


def test_show_and_the_event_name_each_action_with_its_tokens(played: Sandbox) -> None:
    wrap(Model(window=30_000))(reading(6))
    (event,) = [event for event in played.events if isinstance(event, ContextCompacted)]
    compaction = event.compaction
    assert [(action.action, action.message, action.tool) for action in compaction.actions] == [
        ("summarized", 2, "read"),
        ("summarized", 4, "read"),
        ("summarized", 6, "read"),
    ]
    assert all(action.tokens_before > 1000 > 40 > action.tokens_after > 0 for action in compaction.actions)
    shown = "\n".join(run_text.render_run(played.runs[0], 0))
    assert f"{compaction.tokens_before:,} -> {compaction.tokens_after:,} tokens, by model" in shown
    assert "summarized message 2 (read): " in shown


@pytest.mark.parametrize(
    ("options", "made"),
    [({"max_summary_calls": 2}, 2), ({"max_summary_calls": 0}, 0), ({"max_summary_tokens": 100}, 0)],
)
def test_beyond_the_budget_texts_are_cut(played: Sandbox, options: dict[str, int], made: int) -> None:
    model = Model(window=30_000)
    assert wrap(model, **options)(reading(6)) == answer("Done.")
    assert model.summaries == made
    actions = [action["action"] for action in played.steps[-1].metadata["compressed"]["actions"]]
    assert actions.count("summarized") == made
    assert "cut" in actions


def test_tokens_that_the_model_reports_are_taken_from_the_budget(played: Sandbox) -> None:
    model = Model(window=30_000)
    # Each summary costs 940 tokens, and one of 9,000 characters is begun only while some 3,000 are left.
    wrap(model, max_summary_tokens=4500)(reading(6))
    assert model.summaries == 2


def test_a_summary_that_fails_is_not_attempted_again_and_the_text_is_cut(played: Sandbox) -> None:
    model = Model(window=30_000, fails=True)
    assert wrap(model)(reading(6)) == answer("Done.")
    failed = [step for step in played.steps if step.name == "chat summary"]
    assert [(step.outcome, step.attempt) for step in failed] == [("failure", 1), ("success", 2)]
    assert failed[1].recovery.source == "structure"
    assert played.steps[-1].metadata["compressed"]["by"] == "structure"
    assert "recovered" in next(run_text.render_run(played.runs[0], 0))


def test_a_summary_that_overflows_itself_does_not_recurse(played: Sandbox) -> None:
    asked: list[int] = []

    @mulligan.model(compress="model")
    def client(messages: Any) -> Any:
        asked.append(len(messages))
        raise TooLongError("This model's maximum context length is 900 tokens. Your messages resulted in 20000 tokens.")

    @mulligan.model(compress="model")
    def chat(messages: Any) -> Any:
        return client(messages)

    with pytest.raises(TooLongError):
        chat(reading(6))
    # The call, one summary, and the compressed call: the wrapped client inside only records.
    assert len(asked) <= 3


def test_a_text_that_was_summarized_once_is_not_paid_for_again(played: Sandbox) -> None:
    model = Model(window=30_000)
    chat = wrap(model)
    chat(reading(6))
    longer = [*reading(6), {"role": "assistant", "content": "Six pages."}, {"role": "user", "content": "And now?"}]
    chat(longer)
    assert model.summaries == 3
    assert "Summary 1." in json.dumps(model.sent)

    asked: list[str] = []

    def shorten(text: str) -> str:
        asked.append(text)
        return "In short: pages."

    @mulligan.model(compress=shorten)
    def other(messages: Any) -> Any:
        return model.reply(messages)

    other(reading(6))
    other(longer)
    assert len(asked) == len(set(asked)) == 3


def test_an_async_model_and_a_method_summarize_too(played: Sandbox) -> None:
    model = Model(window=30_000)

    @mulligan.model(compress="model", timeout=30)
    async def chat(messages: Any) -> Any:
        await asyncio.sleep(0)
        return model.reply(messages)

    assert asyncio.run(chat(reading(6))) == answer("Done.")
    assert model.summaries == 3

    class Client:
        @mulligan.model(compress="model")
        def chat(self, messages: Any, tools: Any = None) -> Any:
            assert tools is None or not messages[0]["content"].startswith("Summarize ")
            return model.reply(messages)

    assert Client().chat(reading(6), tools=[{"name": "read"}]) == answer("Done.")
    assert model.summaries == 6


def test_nothing_of_a_summary_is_recorded_where_only_the_shape_is(played: Sandbox) -> None:
    wrap(Model(window=30_000), record="shape")(reading(6))
    assert "Summary 1" not in repr(played.steps)
    assert "page 1" not in repr(played.steps)
    wrap(Model(window=30_000), record="off")(reading(6))
    assert len([step for step in played.steps if step.name == "chat summary"]) == 3


def test_a_recorded_conversation_does_not_contain_the_requests_for_summaries(played: Sandbox) -> None:
    wrap(Model(window=30_000), record="full")(reading(6))
    (history,) = played.runs
    summaries = [step for step in history.steps if step.name == "chat summary"]
    assert [(step.messages, step.answer) for step in summaries] == [((), None)] * 3
    assert all("recorded" not in step.arguments["messages"] for step in summaries)
    assert not any(part.text.startswith("Summarize ") for message in history.messages for part in message.parts)
    assert any("Summary 1." in part.text for message in history.messages for part in message.parts)


def test_what_is_removed_is_summarized_too_and_known_summaries_stay(played: Sandbox) -> None:
    talk = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "so it is " * 60} for n in range(60)]
    model = Model(window=20_000)
    assert wrap(model)([*talk, *reading(4)]) == answer("Done.")
    sent = json.dumps(model.sent)
    assert "messages were removed to fit the context window. Summary: " in sent
    assert all(f"Summary {number + 1}." in sent for number in range(model.summaries))


def test_the_users_function_is_not_called_after_the_deadline(played: Sandbox) -> None:
    made: list[str] = []

    def shorten(text: str) -> str:
        made.append(text)
        played.advance(3)
        return "Short."

    @mulligan.model(compress=shorten, timeout=5)
    def chat(messages: Any) -> Any:
        return Model(window=30_000).reply(messages)

    with pytest.raises(TooLongError):
        chat(reading(6))
    assert len(made) == 2
    assert played.steps[-1].stop.reason == "the deadline has passed"


def test_an_async_function_that_hangs_is_cancelled_at_the_deadline(played: Sandbox) -> None:
    async def shorten(text: str) -> str:
        await asyncio.sleep(60)
        return "Short."

    @mulligan.model(compress=shorten, timeout=0.05)
    async def chat(messages: Any) -> Any:
        return Model(window=30_000).reply(messages)

    assert asyncio.run(asyncio.wait_for(chat(reading(6)), 30)) == answer("Done.")
    assert played.steps[-1].recovery.source == "structure"


def test_a_function_that_fails_is_named_in_the_log(played: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    def shorten(text: str) -> str:
        raise ValueError("no summary")

    @mulligan.model(compress=shorten)
    def chat(messages: Any) -> Any:
        return Model(window=30_000).reply(messages)

    assert chat(reading(6)) == answer("Done.")
    assert "compress failed; the call continues without it" in caplog.text


def test_the_record_of_an_inner_model_says_that_the_outer_call_recovers(played: Sandbox) -> None:
    model = Model(window=30_000)
    inner = wrap(model)

    @mulligan.model(compress="model", name="outer")
    def outer(messages: Any) -> Any:
        return inner(messages)

    assert outer(reading(6)) == answer("Done.")
    reasons = [step.stop.reason for step in played.steps if step.stop is not None]
    assert reasons == ["the enclosing call recovers it"]


def test_no_summary_is_bought_for_a_conversation_that_cannot_fit(played: Sandbox) -> None:
    model = Model(window=30_000)
    messages = [{"role": "system", "content": "rule " * 9000}, *reading(6)]
    with pytest.raises(TooLongError) as raised:
        wrap(model)(messages)
    assert model.summaries == 0
    assert "alone exceed the context window" in "".join(raised.value.__notes__)
