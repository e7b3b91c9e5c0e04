"""Failure, Kind and Remedy, and the errors that carry them."""

from __future__ import annotations

import copy
import enum
import json
import pickle

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mulligan.core.failure import (
    DEFAULT_HINTS,
    Failure,
    Kind,
    MissingExtraError,
    MulliganError,
    Remedy,
    SettingsError,
    StoreError,
    TookEffect,
    strip_own_blocks,
    to_code,
)
from mulligan.core.records import decode, encode
from mulligan.redaction import find_unsafe_text, quote_untrusted

RATE_LIMIT = Kind("model", "rate_limit", Remedy.RETRY, TookEffect.NO, "Wait a little.")


def test_a_kind_is_its_name_and_answers_two_questions():
    assert RATE_LIMIT == "model/rate_limit"
    assert f"{RATE_LIMIT}" == "model/rate_limit"
    assert (RATE_LIMIT.type, RATE_LIMIT.code) == ("model", "rate_limit")
    assert (RATE_LIMIT.remedy, RATE_LIMIT.took_effect) == (Remedy.RETRY, TookEffect.NO)
    assert {RATE_LIMIT: 1}["model/rate_limit"] == 1


class Numbered(enum.Enum):
    CARD_DECLINED = 7


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("timeout", "timeout"),
        (enum.StrEnum("Code", {"TIMEOUT": "timeout"}).TIMEOUT, "timeout"),
        (enum.Enum("Code", {"TIMEOUT": "timeout"})["TIMEOUT"], "timeout"),
        (Numbered.CARD_DECLINED, "CARD_DECLINED"),
        (None, ""),
        (7, ""),
    ],
)
def test_a_code_is_a_text_or_a_member_of_an_enum(code, text):
    assert to_code(code) == text
    assert type(to_code(code)) is str


def test_every_remedy_has_a_default_hint():
    assert DEFAULT_HINTS.keys() == set(Remedy)
    assert all(DEFAULT_HINTS.values())


def test_a_kind_nobody_described_is_told_to_the_model_and_may_have_happened():
    kind = Kind("tool", "odd")
    assert (kind.remedy, kind.took_effect) == (Remedy.REPLAN, TookEffect.UNKNOWN)


@pytest.mark.parametrize(
    ("name", "type", "code"), [("tool/x", "tool", "x"), ("odd", "odd", "unknown"), ("", "", "unknown")]
)
def test_a_kind_may_be_known_by_its_name_alone(name, type, code):
    kind = Kind.from_name(name)
    assert (kind.type, kind.code) == (type, code)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda kind: pickle.loads(pickle.dumps(kind))])
def test_a_copied_kind_still_answers_both_questions(copied):
    kind = copied(RATE_LIMIT)
    assert (kind, kind.remedy, kind.took_effect, kind.hint) == (
        RATE_LIMIT,
        Remedy.RETRY,
        TookEffect.NO,
        "Wait a little.",
    )


def test_a_failure_answers_as_its_kind_does_unless_its_maker_knows_better():
    plain = Failure.of(RATE_LIMIT, "too many")
    assert (plain.remedy, plain.took_effect, plain.hint) == (Remedy.RETRY, TookEffect.NO, "Wait a little.")
    better = Failure.of(RATE_LIMIT, "too many", took_effect=TookEffect.UNKNOWN, hint="")
    assert (better.took_effect, better.hint) == (TookEffect.UNKNOWN, "")


def test_a_failure_that_comes_back_from_a_store_still_knows_its_remedy():
    kept = decode(encode(Failure.of(Kind("tool", "my_own", Remedy.REPAIR, TookEffect.NO), "m")), Failure)
    assert kept.kind.remedy is kept.remedy is Remedy.REPAIR
    assert kept.took_effect is TookEffect.NO


@pytest.mark.parametrize(("type", "counts"), [("none", False), ("tool", True), ("model", True)])
def test_what_is_no_failure_has_type_none(type, counts):
    assert Failure.of(Kind(type, "x")).is_failure is counts


def test_a_failure_is_a_tool_response_without_its_trace():
    failure = Failure.of(RATE_LIMIT, "too many calls", code="E429", trace="app.py:7", detail="a long body")
    assert failure.to_tool_response() == {
        "error": "model/rate_limit",
        "code": "E429",
        "message": quote_untrusted("too many calls"),
        "hint": "Wait a little.",
        "recoverable": True,
    }
    assert failure.to_tool_response("search")["message"] == quote_untrusted("too many calls", author="search")


def test_a_tool_response_says_that_the_call_may_have_executed():
    failure = Failure.of(RATE_LIMIT, "no answer", took_effect=TookEffect.UNKNOWN)
    assert failure.to_tool_response()["outcome"].startswith("unknown")
    assert "outcome" not in Failure.of(RATE_LIMIT, "no answer").to_tool_response()


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=300), st.text(max_size=100))
def test_a_tool_response_is_sanitized_for_any_failure(message, code, hint, tool):
    response = Failure.of(RATE_LIMIT, message, code=code, hint=hint).to_tool_response(tool)
    for text in (response["error"], response["code"], response["message"], response["hint"]):
        assert find_unsafe_text(text) == []


def test_errors_of_ours_are_never_mistaken_for_the_users():
    for ours in (SettingsError, StoreError, MissingExtraError):
        assert issubclass(ours, MulliganError)


ANSWER = {**Failure.of(RATE_LIMIT, 'no "{quota}" left').to_tool_response("search"), "suggestions": ["Wait."]}
BLOCK = json.dumps({"mulligan": ANSWER}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        (f"rate limit exceeded\n{BLOCK}", "rate limit exceeded"),
        (f"rate limit exceeded\n{BLOCK}\nThe input schema is: {{}}", "rate limit exceeded\n\nThe input schema is: {}"),
        (f"rate limit exceeded\n{BLOCK[:90]}", "rate limit exceeded"),
        (json.dumps([{"text": "no"}, {"text": BLOCK}]), '[{"text": "no"}, {"text": ""}]'),
        (json.dumps({"_meta": {"mulligan/failure": ANSWER}}, separators=(",", ":")), '{"_meta":{}}'),
        ("mulligan is a word", "mulligan is a word"),
    ],
    ids=["after the error", "between texts", "cut off", "in JSON", "in metadata", "no block"],
)
def test_block_that_the_proxy_added_is_removed_from_an_error_text(text, stripped):
    assert strip_own_blocks(text) == stripped


@pytest.mark.parametrize("part", ['{"mulligan":{', '{"mulligan":{"', '{\\"mulligan\\":\\', '"mulligan/note":{"a":'])
def test_removing_blocks_takes_linear_time(part):
    strip_own_blocks(part * 100_000)


@pytest.mark.parametrize(
    ("code", "fields", "is_lost"),
    [
        ("timeout", {}, True),
        ("timeout", {"status": 504}, True),
        ("timeout", {"status": 408}, True),
        ("connection_error", {"evidence": ("class ConnectionResetError",)}, True),
        ("unavailable", {"status": 502}, True),
        ("api_error", {"status": 500}, True),
        ("execution_failed", {"status": 507}, True),
        ("execution_failed", {"message": "Command 'pay' died with <Signals.SIGKILL: 9>.", "took_effect": "yes"}, True),
        ("execution_failed", {"message": "returned non-zero exit status 137.", "took_effect": "yes"}, True),
        ("precondition", {"message": "A process in the pool was terminated abruptly."}, True),
        ("timeout", {"took_effect": "no"}, False),
        ("connection_error", {"evidence": ("class ConnectionRefusedError",)}, False),
        ("connection_error", {"evidence": ("text: unknown host",)}, False),
        ("api_error", {"status": 405}, False),
        ("rate_limit", {"status": 429}, False),
        ("conflict", {"status": 409}, False),
        ("invalid_arguments", {}, False),
        ("permission_denied", {}, False),
        ("file_not_found", {}, False),
        ("execution_failed", {}, False),
        ("execution_failed", {"message": "The process that killed the job failed."}, False),
        ("invalid_response", {}, False),
        ("unknown", {}, False),
    ],
)
def test_answer_is_lost_if_none_arrived_and_the_call_may_have_executed(code, fields, is_lost):
    took_effect = TookEffect(fields.get("took_effect", "unknown"))
    failure = Failure.of(Kind("tool", code), **{**fields, "took_effect": took_effect})
    assert failure.has_lost_answer is is_lost
