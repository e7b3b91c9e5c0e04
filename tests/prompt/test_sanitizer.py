"""However a model reads of a failure, it reads no secret: of the error, of its cause, of the arguments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import mulligan
from mulligan import AgentError
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import Change, Precedent
from mulligan.prompt import CallReport, Prompt
from mulligan.redaction import Redactor
from mulligan.testing import assert_sanitized, sandbox

KEY = "ghp_" + "R7wQ2zL9xKfT4mVbN8cJ5hYsD1gPaE3uXi6o"
PASSWORD = "opensesame-9177"
OWN = "EMP-204117"
BADGE = "violet-otter-41"
CANARIES = (KEY, PASSWORD, OWN, BADGE)
SETTINGS: dict[str, Any] = {"redact_names": ["badge"], "redact_patterns": [r"EMP-\d{6}"]}

Raise = Callable[[str], None]


def in_the_error(password: str) -> None:
    raise ValueError(f"cannot log in with {KEY}, as {OWN} with badge={BADGE}: {password} is wrong")


def in_its_cause(password: str) -> None:
    try:
        in_the_error(password)
    except ValueError as error:
        raise RuntimeError(f"login failed: {error}") from error


def in_an_agent_error(password: str) -> None:
    raise AgentError(
        f"{KEY} was refused, {OWN}, badge: {BADGE}, {password}",
        code=KEY[:40],
        hint=f"Use {KEY} of {OWN}, not {password}; badge={BADGE}.",
    )


def in_disguise(password: str) -> None:
    split = "\u200b".join((KEY[:9], KEY[9:20], KEY[20:]))
    raise ValueError(f"refused: {split}, EMP-\u200d204117, badge=\u2060{BADGE}, {password}")


def at_the_cut(password: str) -> None:
    raise ValueError("x " * 290 + f"{KEY} {OWN} badge={BADGE} {password} " + "y " * 20_000)


WAYS = [in_the_error, in_its_cause, in_an_agent_error, in_disguise, at_the_cut]


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.items() for text in texts(each)]
    if isinstance(value, list | tuple):
        return [text for each in value for text in texts(each)]
    return [value] if isinstance(value, str) else [str(value)]


def assert_tells_nothing(*told: Any) -> None:
    for text in texts(list(told)):
        assert not [each for each in CANARIES if each in text], text
        for key in (KEY[start : start + 12] for start in range(len(KEY) - 12)):
            assert key not in text, text


def tool(way: Raise) -> Callable[..., Any]:
    def sign_in(user: str, password: str) -> str:
        way(password)
        return user

    return mulligan.tool(sign_in)


def answered(*asked: Any) -> Any:
    """What a model is answered with in a loop of one turn."""
    (outcome,) = [turn.call(*asked) for turn in mulligan.turns(limit=1)]
    return outcome.answer


ARGUMENTS = {"user": "ann", "password": PASSWORD}


@pytest.mark.parametrize("way", WAYS)
def test_the_answer_and_the_report_of_a_turn_tell_no_secret(way: Raise) -> None:
    with sandbox(**SETTINGS):
        turns = mulligan.turns(limit=2)
        for turn in turns:
            outcome = turn.call([tool(way)], "sign_in", ARGUMENTS)
            assert "said by sign_in" in outcome.answer["message"]
            assert_tells_nothing([outcome.answer, outcome.notes, outcome.to_message()])
        assert_tells_nothing(turns.report())


@pytest.mark.parametrize("way", WAYS)
def test_nor_does_that_of_an_async_turn(way: Raise) -> None:
    async def sign_in(user: str, password: str) -> None:
        way(password)

    async def played() -> list[Any]:
        return [(await turn.acall([sign_in], "sign_in", ARGUMENTS)).to_message() for turn in mulligan.turns(limit=1)]

    with sandbox(**SETTINGS):
        assert_tells_nothing(asyncio.run(played()))


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_hands_the_model_no_secret_but_those_it_said_itself(way: Raise) -> None:
    asked: list[Any] = []

    def model(messages: list[Any]) -> Any:
        asked.extend(each for each in messages if each.get("role") == "tool")
        if len(asked) > 2:
            return "I give up."
        call = {"name": "sign_in", "arguments": json.dumps(ARGUMENTS)}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": call}]}

    with sandbox(**SETTINGS):
        ended = mulligan.loop(model, [tool(way)], "Sign in as ann.", limit=4)
    assert asked
    assert "sign_in" in ended.end_reason
    assert_tells_nothing(asked, ended.end_reason, ended.report)


def test_a_note_of_a_repair_tells_no_secret() -> None:
    @mulligan.tool(
        effects="none",
        schema={
            "type": "object",
            "properties": {"badge": {"type": "integer"}, "pin": {"type": "integer"}, "k": {"type": "integer"}},
        },
    )
    def enter(badge: int, pin: int, k: int) -> int:
        return k

    with sandbox(**SETTINGS), mulligan.run("test"):
        assert enter(badge="204117", pin="918273", k="7") == 7  # type: ignore[arg-type]
        (note,) = mulligan.drain_notes()
    assert "k as the number 7" in note
    assert "badge" in note
    assert "204117" not in note
    assert "918273" not in note


@pytest.mark.parametrize("way", WAYS)
def test_what_is_noted_on_an_exception_tells_no_secret(way: Raise) -> None:
    with sandbox(**SETTINGS), pytest.raises(Exception) as caught:  # noqa: PT011 - each way has its own
        tool(way)(**ARGUMENTS)
    assert caught.value.__notes__
    assert_tells_nothing(caught.value.__notes__)


@pytest.mark.parametrize("way", WAYS)
def test_a_reminder_tells_no_secret(way: Raise) -> None:
    with sandbox(**SETTINGS), mulligan.session() as session:
        with mulligan.run("test", session=session):
            with pytest.raises(Exception):  # noqa: B017, PT011 - each way has its own
                tool(way)(**ARGUMENTS)
            session.mark_turn()
            session.mark_compacted()
        assert "sign_in" in session.reminder()
        assert_tells_nothing(session.reminder(), session.summarizer_note())


def test_a_session_that_was_kept_by_others_is_looked_through_again() -> None:
    with sandbox(**SETTINGS), mulligan.session() as session:
        with mulligan.run("test", session=session):
            with pytest.raises(ValueError, match="wrong"):
                tool(in_the_error)(**ARGUMENTS)
            session.mark_turn()
        kept = session.to_json().replace(b"cannot log in", f"cannot log in with {KEY} of {OWN}".encode())
        session.restore(kept)
        session.mark_compacted()
        assert "cannot log in" in session.reminder()
        assert_tells_nothing(session.reminder())


def test_a_model_that_is_asked_once_more_is_told_no_secret() -> None:
    asked: list[Any] = []

    class BadRequestError(Exception):
        status_code = 400

    @mulligan.model
    def think(messages: list[Any], api_key: str) -> str:
        asked.append(messages)
        if len(asked) == 1:
            raise BadRequestError(f"messages[0] is unsupported for {api_key} of {OWN}, badge={BADGE}: {KEY}")
        return "done"

    with sandbox(**SETTINGS):
        assert think([{"role": "user", "content": "hello"}], api_key=PASSWORD) == "done"
    assert "The provider rejected the last request" in str(asked[1])
    assert_tells_nothing(asked)


@pytest.mark.parametrize("way", [in_an_agent_error])
def test_an_agent_error_that_is_told_by_hand_tells_no_secret_of_a_known_form(way: Raise) -> None:
    with pytest.raises(AgentError) as caught:
        way("")
    told = caught.value.to_tool_response()
    assert KEY not in str(told)
    assert "[redacted github]" in told["message"]


def test_personal_data_stays_for_the_model_may_need_it() -> None:
    def mail(to: str, iban: str) -> None:
        raise ValueError(f"nobody@example.net and {to} are unknown, account {iban}, call +44 20 7946 0958")

    with sandbox():
        told = answered([mail], "mail", {"to": "ann@example.net", "iban": "GB82 WEST 1234 5698 7654 32"})
    for known in ("nobody@example.net", "ann@example.net", "GB82 WEST 1234 5698 7654 32", "+44 20 7946 0958"):
        assert known in told["message"]


def test_but_not_where_the_settings_name_it() -> None:
    def mail(to: str, iban: str) -> None:
        raise ValueError(f"{to} is unknown, account {iban}")

    with sandbox(redact_names=["iban"], redact_patterns=[r"[\w.]+@example\.net"]):
        told = answered([mail], "mail", {"to": "ann@example.net", "iban": "GB82 WEST 1234 5698 7654 32"})
    assert "ann@" not in str(told)
    assert "GB82" not in str(told)


def test_what_the_settings_allow_is_shown() -> None:
    def fetch() -> None:
        raise ValueError(f"{KEY} is the key of the examples")

    with sandbox(redact_ignore=[KEY]):
        assert KEY in answered([fetch], "fetch", {})["message"]


def test_what_a_tool_itself_answered_is_passed_on_whole() -> None:
    def read() -> dict[str, Any]:
        return {"isError": True, "content": [{"type": "text", "text": f"no access with {KEY}"}]}

    with sandbox():
        (outcome,) = [turn.call([read], "read", {}) for turn in mulligan.turns(limit=1)]
    told = json.loads(outcome.to_message())
    assert told["content"][0]["text"] == f"no access with {KEY}"
    assert_tells_nothing([told["mulligan"], outcome.answer])


WORDS = Prompt(Redactor(names=["badge"], patterns=[r"EMP-\d{6}"], personal=False))
SECRET = st.sampled_from([KEY, OWN, f"badge={BADGE}", f"password: {PASSWORD}", f"Bearer {KEY}"])
AROUND = st.text(max_size=30) | st.sampled_from(["", "\n", "x" * 900, "<b>", "\x1b[31m", "failed: "])


@settings(max_examples=150)
@given(AROUND, SECRET, AROUND)
def test_no_sentence_tells_a_secret_wherever_it_stands(before: str, secret: str, after: str) -> None:
    said = f"{before} {secret} {after}"
    failure = Failure.of(Kind("tool", "x"), said, hint=said, code=said)
    changed = Change(path="q", operation="substitute", before=said, after=[said, {"badge": BADGE, "k": said}])
    precedent = Precedent(method="agent", changes=(changed,), intermediate_tools=(said,))
    remembered = {
        "kind": said,
        "tool": said,
        "turn": 1,
        "occurrences": 1,
        "subject": said,
        "message": said,
        "recovery": said,
    }
    told = [
        WORDS.answer(failure, tool=said, names=[said], precedents=[precedent], shareable={said}),
        WORDS.note(said, [changed]),
        WORDS.report([CallReport(said, failure)]),
        WORDS.cause(said, failure),
        WORDS.identical_failure(said, failure, 2),
        WORDS.target_down(said, 1.0),
        WORDS.spiral([said], said, 3),
        WORDS.verified_note(said),
        WORDS.exception_note(failure, attempts=1, seconds=1, backoffs=[], stop_reason="x", run="run_1"),
        WORDS.retry_instruction(failure),
        WORDS.reminder([remembered]),
        WORDS.summarizer_note([(said, said)]),
    ]
    assert_tells_nothing(told)
    for text in texts(told):
        assert_sanitized(text)
