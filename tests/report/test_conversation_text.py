"""A recorded conversation as text and as entries: each message once, failures and recoveries at their place."""

from __future__ import annotations

from typing import Any

from mulligan.core.failure import Failure, Remedy
from mulligan.core.kinds import KINDS
from mulligan.core.records import History, MessagePart, RecordedMessage, Recovery, RecoveryStop, Run, Step
from mulligan.report.conversation_text import build_conversation, render_conversation

TIMEOUT = Failure.of(KINDS["model/timeout"], "too \x1b[31mslow")


def message(number: int, text: str, role: str = "user", **part: Any) -> RecordedMessage:
    return RecordedMessage(role=role, parts=(MessagePart(text=text, **part),), number=number)


def model_call(seq: int, *messages: tuple[int, int], run: str = "run_a", **fields: Any) -> Step:
    return Step(**{"run": run, "seq": seq, "call": seq, "type": "model", "name": "ask", "messages": messages, **fields})


def spoken(*histories: History) -> list[str]:
    return [
        entry.message.parts[0].text if entry.message else f"{entry.type} {entry.text}"
        for entry in build_conversation(histories)
    ]


RETRIED = History(
    run=Run(id="run_a"),
    messages=(message(1, "Hello"), message(2, "Hi", "assistant"), message(3, "ok")),
    steps=(
        model_call(1, (1, 1), outcome="failure", failure=TIMEOUT),
        model_call(2, (1, 1), call=1, recovery=Recovery(remedy=Remedy.RETRY, backoff_seconds=2.0), answer=2),
        model_call(3, (1, 3), answer=3),
        model_call(4, (1, 3), (3, 3), answer=2),
    ),
)


def test_only_what_no_earlier_call_sent_is_listed_and_equal_messages_are_counted():
    assert spoken(RETRIED) == [
        "Hello",
        "failure too \x1b[31mslow",
        "recovery retry, backoff 2.0 s",
        "Hi",
        "ok",
        "ok",  # the answer of the third call, which the fourth sends as the second one
        "Hi",
    ]


def test_runs_of_a_session_continue_one_conversation():
    again = History(
        run=Run(id="run_b"),
        messages=(message(1, "Hello"), message(2, "Hi", "assistant"), message(3, "New question")),
        steps=(model_call(1, (1, 3), run="run_b"),),
    )
    first = History(run=RETRIED.run, messages=RETRIED.messages, steps=RETRIED.steps[:2])
    assert spoken(first, again)[-2:] == ["Hi", "New question"]


def test_failures_of_tools_say_whether_they_recovered_and_why_recovery_stopped():
    failed = Step(
        run="run_a",
        seq=2,
        call=2,
        name="read",
        outcome="failure",
        failure=TIMEOUT,
        stop=RecoveryStop(reason="3 attempts"),
    )
    history = History(run=RETRIED.run, messages=RETRIED.messages, steps=(model_call(1, (1, 1)), failed))
    entry = build_conversation([history])[-1]
    assert (entry.name, entry.kind, entry.recovered) == ("read", "model/timeout", False)
    assert entry.text.endswith("(recovery stopped: 3 attempts)")


def test_messages_that_were_deleted_are_left_out():
    history = History(run=RETRIED.run, messages=RETRIED.messages[:1], steps=RETRIED.steps)
    assert [each for each in spoken(history) if "failure" not in each and "recovery" not in each] == ["Hello"]


def test_the_text_shows_calls_results_and_lines_and_no_escape_sequence():
    parts = (
        MessagePart(text="one\ntwo"),
        MessagePart(type="call", name="read", arguments={"path": "a"}),
        MessagePart(type="result", name="read", text="\x1b[2Jgone", is_error=True),
        MessagePart(type="reasoning", text="hm"),
    )
    spoken_message = RecordedMessage(role="assistant", parts=parts, number=1)
    history = History(run=Run(id="run_a"), messages=(spoken_message,), steps=(model_call(1, (1, 1)), RETRIED.steps[0]))
    lines = list(render_conversation(history))
    assert lines == [
        "run_a conversation: 1 message, 1 failed attempt.",
        "",
        "assistant  one",
        "           two",
        '           call read {"path":"a"}',
        "           error of read: gone",
        "           reasoning: hm",
        "x          model/timeout in ask, unrecovered: too slow",
    ]


def test_a_run_without_messages_says_how_to_record_them():
    (line,) = render_conversation(History(run=Run(id="run_a")))
    assert '@mulligan.model(record="full")' in line
