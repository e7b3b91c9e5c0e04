"""The decisions that a recovery rests on: whose move, and could it have happened."""

from __future__ import annotations

import asyncio
import string
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan import AgentError, InfraError
from mulligan.classify.classifier import MAX_CACHED_FAILURES, MAX_CACHED_TEXT_CHARS, Classifier, classify
from mulligan.classify.evidence import HEAD_CHARS, TAIL_CHARS
from mulligan.classify.rules import Rule
from mulligan.core.failure import Failure, Kind, Remedy, SettingsError, TookEffect, build_tool_response
from mulligan.core.kinds import KINDS
from mulligan.redaction import Redactor


def rpc(code: int, message: str = "no") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message}}


# Could it have happened?


@pytest.mark.parametrize("code", [-32601, -32602])
def test_a_json_rpc_refusal_proves_that_nothing_ran(code: int) -> None:
    assert classify(rpc(code)).took_effect is TookEffect.NO


@pytest.mark.parametrize("code", [-32603, -32000, -32001, -32700])
def test_any_other_json_rpc_error_proves_nothing(code: int) -> None:
    assert classify(rpc(code)).took_effect is TookEffect.UNKNOWN


def test_a_refused_connection_proves_that_nothing_was_sent() -> None:
    assert classify(ConnectionRefusedError(111, "Connection refused")).took_effect is TookEffect.NO


def test_the_words_of_a_refused_connection_prove_nothing_by_themselves() -> None:
    assert classify(text="Connection refused", tool="pay").took_effect is TookEffect.UNKNOWN
    assert classify(RuntimeError("Connection refused"), tool="pay").took_effect is TookEffect.UNKNOWN


@pytest.mark.parametrize(
    "error", [TimeoutError(), ConnectionResetError(104, "Connection reset by peer"), BrokenPipeError()]
)
def test_after_a_timeout_or_a_lost_connection_it_may_have_happened(error: Exception) -> None:
    assert classify(error, source="tool").took_effect is TookEffect.UNKNOWN


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 502, 503, 504])
def test_a_status_inside_a_function_leaves_open_what_happened_before(status: int) -> None:
    assert classify(status=status, tool="pay").took_effect is TookEffect.UNKNOWN


def test_a_status_its_developer_declared_proves_that_nothing_ran() -> None:
    failure = classify(status=422, tool="pay", rejection_statuses={422})
    assert failure.took_effect is TookEffect.NO
    assert "rejection status 422" in failure.evidence


def test_an_unknown_tool_did_not_run_unless_a_function_of_ours_says_so_itself() -> None:
    assert classify(text="Unknown tool: pya", tool="pya").took_effect is TookEffect.NO
    assert classify(RuntimeError("Unknown tool: pya"), tool="dispatch").took_effect is TookEffect.UNKNOWN


# Errors that look like another kind

NODE_CRASH = (
    "/app/index.js:3\n  foo.bar();\n      ^\n\nTypeError: Cannot read properties of undefined (reading 'bar')\n"
    "    at Object.<anonymous> (/app/index.js:3:7)\n\nNode.js v18.17.1"
)
LONG_COMMAND = f"pytest tests\n{'echo not found; ' * 90}"
KILLED = f"The last command <command>{LONG_COMMAND}</command> timed out and has been killed.\n1 failed, 3 passed"
UNREADABLE = SyntaxError("invalid syntax", ("<unknown>", 1, 3, "x ="))
STREAM_ERROR = '{"internalServerException":{"message":"The system encountered an unexpected error during processing."}}'


@pytest.mark.parametrize(
    ("facts", "kind", "remedy"),
    [
        (
            {"text": "invalid session id", "exception": "selenium.common.exceptions.InvalidSessionIdException"},
            "orchestration/precondition",
            Remedy.REPLAN,
        ),
        ({"text": NODE_CRASH, "tool": "Bash"}, "tool/execution_failed", Remedy.REPLAN),
        ({"text": "The file is locked by another process", "tool": "write"}, "tool/conflict", Remedy.REPLAN),
        ({"text": "EISDIR: illegal operation on a directory, read"}, "tool/execution_failed", Remedy.REPLAN),
        ({"text": "SQLSTATE 42501", "tool": "run_sql"}, "tool/permission_denied", Remedy.REPLAN),
        ({"error": rpc(-32600, "Missing scope: repo")}, "tool/permission_denied", Remedy.REPLAN),
        ({"text": "MCP error -32600: missing scope: repo"}, "tool/permission_denied", Remedy.REPLAN),
        ({"text": "Resource not accessible by integration"}, "tool/permission_denied", Remedy.REPLAN),
        (
            {"error": SyntaxError("invalid syntax", ("plugin.py", 14, 3, "x =")), "tool": "summarize"},
            "orchestration/uncaught_exception",
            Remedy.STOP,
        ),
        (
            {"error": SyntaxError("invalid syntax", ("<string>", 1, 3, "x =")), "tool": "python"},
            "model/invalid_output",
            Remedy.REPLAN,
        ),
        (
            {"error": UNREADABLE, "tool": "summarize", "arguments": {"id": "a-1", "days": 2}},
            "orchestration/uncaught_exception",
            Remedy.STOP,
        ),
        (
            {"error": UNREADABLE, "tool": "python", "arguments": {"code": "x ="}},
            "model/invalid_output",
            Remedy.REPLAN,
        ),
        ({"text": STREAM_ERROR, "status": 400, "source": "model"}, "model/unavailable", Remedy.RETRY),
        ({"text": "ServiceFailure", "tool": "put_item"}, "tool/api_error", Remedy.RETRY),
        (
            {"text": "An error occurred (ServiceFailure) when calling the PutItem operation: x", "tool": "put_item"},
            "tool/api_error",
            Remedy.RETRY,
        ),
        ({"status": 405, "tool": "crm"}, "tool/api_error", Remedy.REPLAN),
        ({"text": "Method Not Allowed", "tool": "crm"}, "tool/api_error", Remedy.REPLAN),
        (
            {"text": "Maximum retry attempts (3) exceeded", "tool": "search"},
            "orchestration/max_retries_exceeded",
            Remedy.REPLAN,
        ),
        ({"text": "no match", "tool": "edit"}, "tool/edit_mismatch", Remedy.REPLAN),
        ({"text": "no match", "tool": "search"}, "retrieval/no_results", Remedy.REPLAN),
        ({"text": "MCP server not running", "tool": "search"}, "tool/unavailable", Remedy.RETRY),
        ({"text": "context length"}, "model/context_length_exceeded", Remedy.COMPRESS),
        ({"text": "max_tokens"}, "model/output_limit", Remedy.REPLAN),
        (
            {"text": "Executable doesn't exist at /x/chrome\nPlease run: npx playwright install", "tool": "open_page"},
            "orchestration/precondition",
            Remedy.REPLAN,
        ),
        ({"error": rpc(-32601), "tool": "list", "is_listed": True}, "tool/api_error", Remedy.REPLAN),
        ({"error": rpc(-32601), "tool": "list"}, "tool/unknown_tool", Remedy.REPAIR),
        ({"text": KILLED, "tool": "bash"}, "tool/timeout", Remedy.RETRY),
    ],
)
def test_an_error_that_looks_like_another_kind_is_told_apart(facts: dict[str, Any], kind: str, remedy: Remedy) -> None:
    failure = classify(**facts)
    assert (failure.kind, failure.remedy) == (kind, remedy)


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"text": "It did not report a position within the allotted 20 s; the move may be completed"}, "tool/timeout"),
        ({"text": "All 12 workers are occupied; your job was not admitted"}, "tool/unavailable"),
        ({"text": "leader election in progress, no node accepts writes yet"}, "tool/unavailable"),
        ({"text": "The pricing backend is not answering"}, "tool/unavailable"),
        ({"text": "Throughput exceeds the current capacity of your table or index"}, "tool/rate_limit"),
        ({"text": "Unterminated string starting at: line 1 column 5120 (char 5119)"}, "tool/invalid_response"),
        ({"text": "Could not find a function called serch among the registered functions."}, "tool/unknown_tool"),
        ({"text": "Row version 14 is out of date, the record is now at 17"}, "tool/conflict"),
        ({"text": "No patient is registered under number 55-1034."}, "tool/not_found"),
        ({"text": "Operation blocked by organization policy x/y"}, "tool/permission_denied"),
        ({"text": "Publishing is reserved for editors."}, "tool/permission_denied"),
        ({"text": "Code: 241. DB::Exception: Memory limit (for query) exceeded"}, "tool/output_too_large"),
        ({"text": "Uncaught exception in REPL cell 4: MethodError"}, "tool/execution_failed"),
        ({"text": "Da ist etwas schiefgelaufen. Bitte wenden Sie sich an uns."}, "tool/api_error"),
        ({"text": "gone", "status": 410, "source": "model"}, "model/not_found"),
        (
            {"text": "We cannot help: caught by the safety layer", "status": 400, "source": "model"},
            "model/content_policy",
        ),
        (
            {"text": "The prompt plus max_new_tokens (8192+1024) must not exceed 8192", "source": "model"},
            "model/context_length_exceeded",
        ),
    ],
)
def test_a_sentence_in_the_words_of_a_service_has_its_kind(facts: dict[str, Any], kind: str) -> None:
    assert classify(is_error=True, **facts).kind == kind


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    "text", ["Order 8841 has already shipped", "Ticket is closed", "Quote superseded by revision 3", "The lead was won"]
)
def test_a_rejection_because_of_a_state_is_not_repaired(text: str, status: int) -> None:
    failure = classify(text=text, status=status, tool="cancel_order")
    assert failure.remedy is Remedy.REPLAN
    assert failure.kind.is_about_state or failure.kind.accepted_arguments


@pytest.mark.parametrize("text", ["limit must be at most 100", "Missing field: name", "Bad Request", ""])
def test_a_rejection_with_words_about_arguments_is_repaired(text: str) -> None:
    assert classify(text=text, status=400, tool="cancel_order").kind == "tool/invalid_arguments"


def test_a_rejection_that_names_an_argument_is_about_it() -> None:
    assert classify(text="Colour is purple", status=422, tool="paint").kind == "orchestration/invalid_state"
    failure = classify(text="Colour is purple", status=422, tool="paint", arguments={"colour": "purple"})
    assert failure.kind == "tool/invalid_arguments"


# When does it clear?


def test_a_quota_that_clears_within_an_hour_is_a_rate_limit() -> None:
    text = "You have exhausted your capacity on this model. Your quota will reset after 53s."
    failure = classify(text=text, source="model", status=429)
    assert (failure.kind, failure.retry_after, failure.clears_after) == ("model/rate_limit", 53.0, 53.0)


def test_a_quota_that_clears_later_says_when() -> None:
    failure = classify(text="Daily quota exhausted. It resets in 8h44m.", tool="search", status=429)
    assert (failure.kind, failure.remedy, failure.retry_after) == ("tool/quota_exceeded", Remedy.STOP, None)
    assert failure.clears_after == 31440.0
    assert build_tool_response(failure, Redactor())["hint"].endswith("It clears in 8 h 44 min.")


@pytest.mark.parametrize(
    "facts",
    [
        {"text": "Your account has run out of searches."},
        {"text": "This request exceeds your plan's set usage limit.", "status": 432},
        {"text": "Payment Required", "status": 402},
        {"text": "Monthly quota exceeded", "status": 429},
        {"text": "Payment Required. Try again in 5 s.", "status": 402},
    ],
)
def test_a_plan_that_is_used_up_waits_for_a_person(facts: dict[str, Any]) -> None:
    failure = classify(tool="search", **facts)
    assert (failure.kind, failure.remedy, failure.retry_after) == ("tool/quota_exceeded", Remedy.STOP, None)


# Whose move is it?


def test_an_agent_error_says_itself_what_to_do() -> None:
    failure = classify(
        AgentError("top_k must be 10 or less, got 50.", code="too_many", hint="Ask for 10."), tool="search"
    )
    assert (failure.kind, failure.remedy, failure.took_effect) == (
        "tool/invalid_arguments",
        Remedy.REPAIR,
        TookEffect.NO,
    )
    assert (failure.message, failure.hint, failure.code) == (
        "top_k must be 10 or less, got 50.",
        "Ask for 10.",
        "too_many",
    )


def test_an_agent_error_that_cannot_be_recovered_is_told_and_not_repaired() -> None:
    failure = classify(AgentError("The account is closed.", recoverable=False))
    assert failure.remedy is Remedy.REPLAN
    assert not failure.recoverable


def test_an_agent_error_may_name_its_kind() -> None:
    assert classify(AgentError("No such user.", code="not_found")).kind == "tool/not_found"


def test_an_infrastructure_error_waits_for_a_person_and_promises_nothing() -> None:
    failure = classify(InfraError("The database is gone."))
    assert (failure.remedy, failure.took_effect, failure.recoverable) == (Remedy.STOP, TookEffect.UNKNOWN, False)


def test_cancellation_is_no_failure() -> None:
    assert not classify(asyncio.CancelledError()).is_failure
    assert not classify(KeyboardInterrupt()).is_failure


def test_a_failure_is_its_own_explanation() -> None:
    failure = Failure.of(KINDS["tool/timeout"], "slow")
    assert classify(failure) is failure


def test_a_step_of_another_type_is_judged_by_its_evidence() -> None:
    assert classify(TimeoutError("slow"), source="plan").kind == "tool/timeout"


# What is known about it?


def test_the_cause_counts_where_the_error_itself_says_nothing() -> None:
    try:
        try:
            raise TimeoutError("no answer in 5 s")
        except TimeoutError as cause:
            raise RuntimeError("The tool did not work.") from cause
    except RuntimeError as error:
        failure = classify(error)
    assert failure.kind == "tool/timeout"
    assert failure.message == "The tool did not work."


class RetryError(Exception):
    """As tenacity's: it says where in memory the last attempt is, and has it as its cause."""

    def __init__(self, last_attempt: object) -> None:
        self.last_attempt = last_attempt
        super().__init__(last_attempt)


def caused(outer: Exception, inner: BaseException) -> Exception:
    outer.__cause__ = inner
    return outer


WRAPPED = {
    "the last of many retries": lambda inner: caused(RetryError(object()), inner),
    "a group of one": lambda inner: ExceptionGroup("unhandled errors in a TaskGroup", [inner]),
    "groups in groups": lambda inner: ExceptionGroup("a", [ExceptionGroup("b", [inner])]),
    "an error without a word": lambda inner: caused(RuntimeError(), inner),
    "an error that repeats it": lambda inner: caused(Exception(str(inner)), inner),
}


@pytest.mark.parametrize(
    "inner",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        ValueError("top_k must be 10 or less, got 50"),
        KeyError("city"),
        TimeoutError(),
        Exception("Order 7 does not exist."),
        AgentError("The shop is closed on Sundays.", code="precondition", hint="Ask for another day."),
        InfraError("The database is gone."),
    ],
    ids=repr,
)
@pytest.mark.parametrize("how", WRAPPED)
def test_an_error_is_the_same_inside_one_that_says_nothing(how: str, inner: Exception) -> None:
    itself, wrapped = classify(inner, tool="shop"), classify(WRAPPED[how](inner), tool="shop")
    for name in ("kind", "message", "fingerprint", "recoverable", "evidence"):
        assert getattr(wrapped, name) == getattr(itself, name)
    if isinstance(inner, AgentError):
        assert wrapped.hint == itself.hint
    assert wrapped.took_effect is TookEffect.UNKNOWN  # what else was done where it was caught, it does not know


def test_a_refused_connection_proves_nothing_about_the_attempts_before_it() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    assert classify(refused).took_effect is TookEffect.NO
    assert classify(caused(RetryError(object()), refused)).took_effect is TookEffect.UNKNOWN

    class Rejected(Exception):
        status_code = 422

    assert classify(Rejected("no"), rejection_statuses={422}).took_effect is TookEffect.NO
    assert (
        classify(caused(RetryError(object()), Rejected("no")), rejection_statuses={422}).took_effect
        is TookEffect.UNKNOWN
    )


def test_what_another_layer_has_retried_in_vain_is_not_waited_for_again() -> None:
    reset = ConnectionResetError(104, "Connection reset by peer")
    assert classify(reset).remedy is Remedy.RETRY
    told = classify(caused(RetryError(object()), reset))
    assert told.remedy is Remedy.REPLAN
    assert told.hint.startswith("All allowed attempts failed.")


def test_retries_that_ended_without_an_error_are_what_they_are() -> None:
    assert classify(RetryError(object())).kind == "orchestration/max_retries_exceeded"


def test_a_wrapper_with_words_of_its_own_is_heard() -> None:
    refused = caused(TimeoutError("no room was free in 5 s"), AgentError("The room is taken."))
    assert classify(refused).kind == "tool/timeout"
    group = ExceptionGroup("the calendar cannot be loaded", [RuntimeError()])
    assert "the calendar cannot be loaded" in classify(group).message
    assert "loading 3 rooms" in classify(ExceptionGroup("loading 3 rooms", [ValueError("no floor -4")])).detail


def test_wrappers_that_lead_back_to_themselves_end() -> None:
    one, other = RuntimeError(), RuntimeError()
    one.__cause__, other.__cause__ = other, one
    assert classify(one).kind == "tool/execution_failed"


def test_notes_are_kept_in_the_detail() -> None:
    error = ValueError("bad")
    error.add_note("while paying invoice 12")
    assert "invoice 12" in classify(error).detail


def test_a_group_is_judged_by_the_member_that_failed_and_not_by_the_cancelled_one() -> None:
    group = BaseExceptionGroup("two calls", [asyncio.CancelledError(), ConnectionResetError(104, "Connection reset")])
    assert classify(group).kind.type in ("tool", "none")
    group = ExceptionGroup("two calls", [ConnectionResetError(104, "Connection reset by peer")])
    assert classify(group).kind == "tool/connection_error"


def test_a_result_that_looks_like_an_error_is_read_as_one() -> None:
    result = {"content": [{"type": "text", "text": "Error: Permission denied: /etc/shadow"}]}
    assert classify(result, tool="read").kind == "tool/permission_denied"
    as_object = SimpleNamespace(isError=True, content=[SimpleNamespace(type="text", text="Unknown tool: x")])
    assert classify(as_object).kind == "tool/unknown_tool"


def test_the_status_beats_the_words() -> None:
    failure = classify(text="bad gateway", status=429, source="model")
    assert failure.kind == "model/rate_limit"
    assert failure.evidence == ("status 429",)


def test_evidence_that_agreed_is_listed_and_raises_the_confidence() -> None:
    alone = classify(text="Slow down, too many requests", tool="geocode")
    agreed = classify(text="Slow down, too many requests", status=429, tool="geocode")
    assert agreed.confidence > alone.confidence
    assert "status 429" in agreed.evidence


def test_what_nobody_knows_is_unknown_with_little_confidence() -> None:
    failure = classify(text="hm")
    assert failure.kind.code == "unknown"
    assert failure.confidence <= 0.3


# Kinds and rules of one's own


DECLINED = Kind("tool", "card_declined", Remedy.REPLAN, TookEffect.NO, "Ask for another card.")


def test_a_rule_of_ones_own_is_asked_first() -> None:
    own = Classifier([DECLINED], [Rule("declined", DECLINED, ("card was declined",))])
    failure = own.classify(text="Permission denied: the card was declined", tool="pay")
    assert (failure.kind, failure.hint) == ("tool/card_declined", "Ask for another card.")
    assert classify(text="Permission denied: the card was declined", tool="pay").kind == "tool/permission_denied"


def test_kinds_and_rules_are_read_from_settings() -> None:
    own = Classifier.from_settings(
        {
            "kinds": {"tool/card_declined": {"remedy": "replan", "took_effect": "no", "hint": "Ask for another card."}},
            "rules": [{"kind": "tool/card_declined", "pattern": r"declined \(\d+\)", "tools": ["pay"]}],
        }
    )
    assert own.classify(text="declined (51)", tool="pay_invoice").kind == "tool/card_declined"
    assert own.classify(text="declined (51)", tool="invite").kind != "tool/card_declined"


def test_a_built_in_kind_can_be_given_another_remedy() -> None:
    own = Classifier.from_settings({"kinds": {"tool/timeout": {"remedy": "replan"}}})
    failure = own.classify(TimeoutError("slow"))
    assert failure.remedy is Remedy.REPLAN
    assert failure.hint == KINDS["tool/timeout"].hint


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kinds": {"tool/x": {"remdy": "replan"}}}, "Did you mean 'remedy'?"),
        ({"kinds": {"tool/x": {"remedy": "rety"}}}, "Did you mean 'retry'?"),
        ({"kinds": {"tol/x": {}}}, "Did you mean 'tool'?"),
        ({"kinds": {"timeout": {}}}, "type/code"),
        ({"rules": [{"kind": "tool/timeot", "words": ["slow"]}]}, "Did you mean 'tool/timeout'?"),
        ({"rules": [{"kind": "tool/timeout"}]}, "Add words or a pattern"),
        ({"rules": [{"kind": "tool/timeout", "pattern": "("}]}, "not a regular expression"),
        ({"rules": [{"kind": "tool/timeout", "pattern": "(a+)+$"}]}, "repeats a group"),
        ({"rules": [{"kind": "tool/timeout", "pattern": "(a|a)*$"}]}, "repeats a group"),
        ({"rules": [{"kind": "tool/timeout", "pattern": "a.*b.*c.*d"}]}, "more than two open repetitions"),
        ({"rule": []}, "Did you mean 'rules'?"),
        ({"rules": {}}, "a list"),
    ],
)
def test_a_mistake_in_the_settings_is_named_with_what_was_meant(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said.replace("?", r"\?").replace("/", "/")):
        Classifier.from_settings(wrong)


def test_a_pattern_given_in_code_is_checked_as_well() -> None:
    with pytest.raises(SettingsError, match="repeats a group"):
        Classifier(rules=[Rule("endless", DECLINED, (), "(a*)*b")])


# Any input at all

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=200)
    | st.binary(max_size=200)
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(anything)
def test_any_value_gets_an_answer(value: object) -> None:
    failure = classify(value)
    assert str(failure.kind) in KINDS
    assert 0 <= failure.confidence <= 1
    assert failure.fingerprint.startswith("3:")
    assert len(failure.message) <= 310
    assert "\n" not in failure.message


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=2_000), st.none() | st.text(max_size=20), st.none() | st.integers())
def test_any_text_tool_and_status_get_an_answer(text: str, tool: str | None, status: int | None) -> None:
    failure = classify(text=text, tool=tool, status=status, exception=text[:40])
    assert str(failure.kind) in KINDS


WIDE = [
    "a" * 10_000_000,
    "\n" * 10_000_000,
    "{" * 10_000_000,
    '"a": "' * 1_500_000,
    "\\" * 10_000_000,
    "Error: " * 1_400_000,
    "=" * 10_000_000,
    "\x1b[31m" * 2_000_000,
    "token exceeds the maximum context " * 300_000,
    "<html><title>" * 800_000,
]


@pytest.mark.parametrize("text", WIDE, ids=lambda text: repr(text[:12]))
def test_of_ten_megabytes_only_the_ends_are_kept_and_read(text: str) -> None:
    for given_text in (text, text.encode()):
        failure = classify(given_text)
        assert len(failure.detail) <= HEAD_CHARS + TAIL_CHARS + 10
        assert len(failure.message) <= 310


def test_an_error_nested_in_itself_and_a_hostile_object_get_an_answer() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

        @property
        def response(self) -> object:
            raise MemoryError("no")

    error = Hostile()
    error.__cause__ = error
    assert classify(error).kind == "tool/execution_failed"
    loop: dict[str, Any] = {}
    loop["error"] = loop
    assert str(classify(loop).kind) in KINDS
    deep: Any = "x"
    for _ in range(5_000):
        deep = {"error": deep}
    assert str(classify(deep).kind) in KINDS


def test_ten_thousand_open_brackets_are_no_trouble() -> None:
    for mark in string.punctuation:
        assert str(classify(mark * 10_000).kind) in KINDS


TEXTS = st.sampled_from(
    [
        "Read timed out after 3 s",
        "no such city: Paris",
        "no such city: paris, nor Rome",
        "caf\u00e9 Paris is closed",
        "Rate limit reached. Try again in 20 seconds.",
        "missing 1 required argument: 'city'",
        "HTTP 503",
        "1 failed, 2 passed",
        "",
        "x" * (MAX_CACHED_TEXT_CHARS + 1),
    ]
)
VALUES = st.sampled_from(["Paris", "Rome", "caf\u00e9", "x", 7, None, ["Paris"], {"of": "Rome"}])
ARGUMENTS = st.none() | st.dictionaries(st.sampled_from(["city", "City", "name", "command"]), VALUES, max_size=3)
HEARD = st.fixed_dictionaries(
    {"text": TEXTS, "arguments": ARGUMENTS, "tool": st.sampled_from([None, "search", "Bash"])},
    optional={
        "status": st.sampled_from([None, 429, 503, True]),
        "exception": st.sampled_from([None, "openai.RateLimitError", "TimeoutError"]),
        "source": st.sampled_from(["tool", "model", "plan"]),
        "is_error": st.sampled_from([None, True, False, 1]),
        "rejection_statuses": st.sampled_from([(), (503,)]),
    },
)


@given(st.lists(HEARD, max_size=12))
def test_what_was_heard_before_changes_no_answer(heard):
    classifier = Classifier()

    for each in heard:
        assert classifier.classify(**each) == Classifier().classify(**each)


def test_the_same_again_is_not_thought_about_again():
    classifier = Classifier()
    one, other = (
        classifier.classify(text="Read timed out", tool="search", arguments={"city": city})
        for city in ("Paris", "Rome")
    )

    assert other is one


def test_what_may_be_of_another_moment_is_thought_about_again():
    said = {"text": "Rate limit reached. Try again in 20 seconds.", "tool": "search"}
    classifier = Classifier()

    assert classifier.classify(**said) is not classifier.classify(**said)


def test_it_does_not_remember_without_end():
    classifier = Classifier()
    for number in range(2 * MAX_CACHED_FAILURES + 10):
        classifier.classify(text=f"no row {number}", tool="search")

    assert len(classifier._cache) <= MAX_CACHED_FAILURES


# What must not be retried or repaired


@pytest.mark.parametrize(
    ("text", "context", "kind"),
    [
        (
            "Exit code 1\ndd: error writing '/data/x': No space left on device",
            {"tool": "Bash"},
            "tool/execution_failed",
        ),
        ("A refund is not allowed after 30 days", {"tool": "pay"}, "orchestration/constraint_violation"),
        ("The result has 48 MB; at most 1 MB is returned", {"tool": "query"}, "tool/output_too_large"),
        ("Agent failed: Credit balance is too low", {"tool": "Task"}, "model/quota_exceeded"),
        ("NSFW content detected. Try running it again.", {"source": "model"}, "model/content_policy"),
        ("version does not exist", {"source": "model", "status": 422, "exception": "ModelError"}, "model/bad_request"),
    ],
)
def test_what_a_repeated_call_cannot_solve_is_not_repeated(text: str, context: dict[str, Any], kind: str) -> None:
    assert classify(text=text, **context).kind == kind


@pytest.mark.parametrize(
    ("text", "kind", "remedy"),
    [
        ("This range is not available.", "tool/unknown", Remedy.REPLAN),
        ("No module named 'foo'", "tool/execution_failed", Remedy.REPLAN),
        ("list index out of range", "tool/execution_failed", Remedy.REPLAN),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "tool/connection_error", Remedy.REPLAN),
        ("TLS handshake failed", "tool/connection_error", Remedy.RETRY),
    ],
)
def test_text_that_no_other_argument_and_no_retry_can_recover(text: str, kind: str, remedy: Remedy) -> None:
    failure = classify(text=text)
    assert (failure.kind, failure.remedy) == (kind, remedy)
