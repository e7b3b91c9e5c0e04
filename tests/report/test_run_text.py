"""What a person reads about runs: the first line answers, the rest is aligned, and nothing foreign is obeyed."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Change, History, Link, LinkEvidence, Recovery, RecoveryStop, Run, Step
from mulligan.redaction.text_sanitizer import find_unsafe_text
from mulligan.report import call_text, run_text, tables
from mulligan.report.resources import RUN_SPEC

NOW = 1_700_000_100_000
TIMEOUT = Kind("tool", "timeout", Remedy.RETRY, TookEffect.UNKNOWN)
REJECTED = Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO)


def step(seq, outcome="success", *, call=None, attempt=1, name="weather", kind=TIMEOUT, **fields):
    failure = Failure.of(kind, "it took too long") if outcome == "failure" else None
    return Step(
        run="run_abcdefgh", seq=seq, call=call or seq, attempt=attempt, name=name, outcome=outcome,
        started_at=1_700_000_000_000 + seq * 1000, duration_seconds=0.5, failure=failure, **fields,
    )  # fmt: skip


def history(*steps, links=(), **about):
    run = Run(
        id="run_abcdefgh",
        agent="tester",
        started_at=1_700_000_000_000,
        ended_at=1_700_000_010_000,
        end_reason="finished",
    )
    run = msgspec.structs.replace(run, **about)
    return History(run=run, steps=steps, links=tuple(links))


def text(lines):
    return "\n".join(lines)


def test_the_first_line_of_a_run_says_what_came_of_it():
    waited = Recovery(remedy=Remedy.RETRY, backoff_seconds=1.5)
    shown = list(run_text.render_run(history(step(1, "failure"), step(2, call=1, attempt=2, recovery=waited)), NOW))
    assert shown[0] == ("run_abcdefgh recovered: 1 call in 2 attempts, 1 of 1 failed calls recovered, 1.5 s backoff.")


def test_call_that_was_cut_off_is_shown_as_such_everywhere():
    run = history(step(1), step(2, "cancelled", name="fetch"), cut_off=(2,))
    shown = list(run_text.render_run(run, NOW))
    assert shown[0] == "run_abcdefgh partial: 2 calls in 2 attempts, 1 call cut off."
    assert "2  - fetch (tool), cut off: cancelled while the run went on, and not made again" in text(shown)
    assert [call["outcome"] for call in run_text.to_summary(run)["calls"]] == ["first attempt", "cut off"]
    assert run_text.to_facts(run)["worst"] == "fetch cut off"
    failed = history(step(1, "failure"), step(2, "cancelled", name="fetch"), step(3, name="x"), cut_off=(2,))
    assert run_text.to_facts(failed)["worst"] == "tool/timeout in weather"


def test_a_call_that_worked_at_once_takes_one_line():
    shown = text(run_text.render_run(history(step(1), step(2, name="search")), NOW))
    assert "1  + weather (tool), 500 ms: ()\n" in shown
    assert shown.endswith("2  + search (tool), 500 ms: ()")


def test_a_failure_of_the_run_itself_does_not_say_whether_it_was_executed():
    shown = text(run_text.render_run(history(step(1, "failure", type="run")), NOW))
    assert "tool/timeout" in shown
    assert "executed" not in shown


def test_the_failure_to_look_at_first_is_the_one_that_may_have_had_an_effect():
    steps = [step(1, "failure", name="find", kind=REJECTED), step(2, "failure", name="pay", effects="once")]
    assert run_text.to_facts(history(*steps))["worst"] == "tool/timeout in pay"
    recovered = step(3, call=2, attempt=2, name="pay")
    assert run_text.to_facts(history(*steps, recovered))["worst"] == "tool/invalid_arguments in find"


def test_a_failed_attempt_says_when_it_was_its_kind_and_whether_it_ran():
    shown = text(run_text.render_run(history(step(1, "failure")), NOW))
    assert "weather (tool), unrecovered" in shown
    assert "x attempt 1 at 1.0 s, took 500 ms: tool/timeout, may have executed" in shown
    assert "error      it took too long" in shown


def test_a_repair_says_what_was_changed_from_where_and_how_sure_it_was():
    change = Change(path="top_k", operation="clamp", before=50, after=10, source="schema")
    repair = Recovery(remedy=Remedy.REPAIR, changes=(change,), source="schema", confidence=0.9)
    steps = (step(1, "failure", kind=REJECTED), step(2, call=1, attempt=2, recovery=repair))
    assert "repair: top_k 50 -> 10 (source: schema, 90% confidence)" in text(run_text.render_run(history(*steps), NOW))


def test_an_argument_that_got_another_name_is_not_shown_as_if_it_had_another_value():
    change = Change(path="night", operation="rename", before="night", after="nights", source="schema")
    repair = Recovery(remedy=Remedy.REPAIR, changes=(change,), source="schema", confidence=0.9)
    steps = (step(1, "failure", kind=REJECTED), step(2, call=1, attempt=2, recovery=repair))
    assert "repair: night renamed to nights (source" in text(run_text.render_run(history(*steps), NOW))


def test_an_argument_that_was_missing_is_shown_as_given_and_not_as_nothing_before():
    link = Link(
        run="run_abcdefgh",
        failed_call=1,
        recovering_call=2,
        method="agent",
        changes=(Change(path="days", operation="substitute", after=7),),
    )
    assert (
        "changed: days=7\n" in text(run_text.render_run(history(step(1, "failure"), step(2), links=[link]), NOW)) + "\n"
    )


def test_what_neither_worked_nor_failed_is_not_shown_as_if_it_had_worked():
    shown = text(run_text.render_run(history(step(1, "cancelled")), NOW))
    assert "- attempt 1 at 1.0 s, took 500 ms: cancelled" in shown
    assert "+" not in shown


def test_a_check_that_was_asked_is_not_shown_as_a_wait():
    asked = Recovery(remedy=Remedy.RETRY, source="verify")
    shown = text(run_text.render_run(history(step(1, "failure"), step(2, call=1, attempt=2, recovery=asked)), NOW))
    assert "> verified whether the call had executed" in shown


def test_a_run_without_an_agent_that_failed_itself_is_told_without_an_empty_name():
    own = msgspec.structs.replace(step(1, "failure"), type="run", name="")
    assert text(RUN_SPEC.render_list([history(own)], NOW, None)).rstrip().endswith("tool/timeout")


@pytest.mark.parametrize(
    ("evidence", "recovery"),
    [("model_turn", "recovered by the model in call 2"), ("handler", "recovered by call 2")],
)
def test_failed_call_names_the_later_call_that_recovered_it_and_what_changed(
    evidence: LinkEvidence, recovery: str
) -> None:
    change = Change(path="days", operation="substitute", before=30, after=7)
    link = Link(
        run="run_abcdefgh",
        failed_call=1,
        recovering_call=2,
        method="agent",
        changes=(change,),
        evidence=(evidence,),
    )
    shown = text(run_text.render_run(history(step(1, "failure"), step(2), links=[link]), NOW))
    assert f"weather (tool), {recovery}\n" in shown
    assert "changed: days 30 -> 7" in shown


def test_suggestion_that_no_model_sees_is_marked() -> None:
    change = Change(path="account", operation="substitute", before="B-2", after="A-1", source="run")
    stop = RecoveryStop(
        reason="the model must choose another action",
        suggestions=(Recovery(remedy=Remedy.REPAIR, changes=(change,), source="run", confidence=0.25),),
    )
    shown = text(run_text.render_run(history(step(1, "failure", stop=stop)), NOW))
    assert 'suggestion, hidden from models: account "B-2" -> "A-1" (source: run, 25% confidence)' in shown


def test_a_call_that_was_given_up_says_why_and_what_may_work():
    change = Change(path="days", operation="clamp", before=30, after=7, source="error")
    left = Recovery(remedy=Remedy.REPAIR, changes=(change,), source="error", confidence=0.6)
    why = 'the call may have executed and the tool has effects="once"'
    shown = text(run_text.render_run(history(step(1, "failure", stop=RecoveryStop(reason=why))), NOW))
    assert f"weather (tool), unrecovered: {why}\n" in shown
    shown = text(
        run_text.render_run(history(step(1, "failure", stop=RecoveryStop(reason=why, suggestions=(left,)))), NOW)
    )
    assert f"unrecovered: {why} (suggestions below)\n" in shown
    assert "suggestion: days 30 -> 7 (source: error, 60% confidence)" in shown


def test_an_attempt_that_was_waited_for_and_not_made_is_shown_as_none():
    waited = Recovery(remedy=Remedy.RETRY, backoff_seconds=1.5)
    last = step(2, "cancelled", call=1, attempt=2, recovery=waited, stop=RecoveryStop(reason="the deadline has passed"))
    shown = list(run_text.render_run(history(step(1, "failure"), last), NOW))
    assert "1 call in 1 attempt," in shown[0]
    assert "weather (tool), unrecovered: the deadline has passed" in text(shown)
    assert any(each.endswith("- not executed") for each in shown)


def test_a_recipe_names_what_came_between():
    link = Link(
        run="run_abcdefgh", failed_call=1, recovering_call=3, method="prerequisite", intermediate_tools=("login",)
    )
    shown = text(run_text.render_run(history(step(1, "failure"), step(2, name="login"), step(3), links=[link]), NOW))
    assert "calls in between: login" in shown


def test_a_run_that_is_still_going_says_so():
    assert "running" in next(iter(run_text.render_run(history(step(1), ended_at=None, end_reason=None), NOW)))


def test_the_list_of_runs_names_the_failure_to_look_at_first():
    open_failure = step(1, "failure", name="pay")
    overcome = (step(2, "failure", call=2), step(3, call=2, attempt=2))
    shown = text(RUN_SPEC.render_list([history(open_failure, *overcome)], NOW, None))
    assert shown.startswith("1 run: 1 partial. 1 of 2 failed calls recovered.")
    assert "tool/timeout in pay" in shown


def test_columns_are_aligned_and_numbers_stand_right():
    assert list(tables.render_columns([("a", "1", "x"), ("bbb", "22", "y")], right=(1,))) == [
        "  a     1  x",
        "  bbb  22  y",
    ]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (7200, "2 h ago"), (172800, "2 days ago")],
)
def test_how_long_ago_is_told_in_one_unit(seconds, told):
    assert run_text.format_age(NOW - seconds * 1000, NOW) == told


@given(st.text(), st.text(), st.text(), st.text())
def test_no_text_of_strangers_reaches_the_terminal_as_a_command(name, agent, message, value):
    hostile = Step(
        run="run_abcdefgh", seq=1, call=1, name=name + "\x1b[2J", outcome="failure", started_at=NOW,
        failure=Failure.of(REJECTED, message + "\x1b]0;x\x07\u202e"),
        recovery=Recovery(
            remedy=Remedy.REPAIR, changes=(Change(path=value, operation="enum", before=value, after="\x9b1m"),)
        ),
    )  # fmt: skip
    kept = history(hostile, agent=agent + "\r\n\x00", context=value)
    for line in (*run_text.render_run(kept, NOW), *RUN_SPEC.render_list([kept], NOW, None)):
        assert not any(
            character < " " or "\x7f" <= character <= "\x9f" or character in "\u202e\u2066" for character in line
        )


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (("same_arguments",), "same arguments"),
        (("same_values",), "same values in another form"),
        (("missing_arguments",), "the error names the missing argument"),
        (("handler",), "made in the error handler"),
        (("model_turn", "stated_limit"), "the model's next turn, the error states the limit"),
        (("next_call",), "the tool's next call in the log"),
        (("tool_result",), "the value came from a tool result"),
        (("same_text",), "corrected text"),
        (("explicit",), "marked by the program"),
        ((), "not recorded"),
    ],
)
def test_a_link_says_why_both_calls_belong_together(evidence, words):
    link = Link(run="run_abcdefgh", failed_call=1, recovering_call=2, method="agent", evidence=evidence)
    shown = text(run_text.render_run(history(step(1, "failure"), step(2), links=[link]), NOW))
    assert f"> linked because: {words}\n" in shown + "\n"
    assert "provisional" not in shown


def test_a_link_of_a_run_that_goes_on_says_that_it_is_provisional():
    link = Link(
        run="run_abcdefgh", failed_call=1, recovering_call=2, method="agent", evidence=("handler",), provisional=True
    )
    running = history(step(1, "failure"), step(2), links=[link], ended_at=None, end_reason=None)
    shown = text(run_text.render_run(running, NOW))
    assert "> linked because: made in the error handler, provisional until the run ends" in shown


def test_an_attempt_at_the_same_call_needs_no_reason():
    link = Link(run="run_abcdefgh", failed_call=1, recovering_call=1, method="retry", evidence=("attempt",))
    shown = text(run_text.render_run(history(step(1, "failure"), step(2, call=1, attempt=2), links=[link]), NOW))
    assert "linked because" not in shown


def test_every_evidence_has_words():
    assert set(call_text.EVIDENCE_TEXTS) == set(get_args(LinkEvidence))


# The stack trace


def traced(trace, exception="httpx.ReadTimeout"):
    return Failure.of(TIMEOUT, "it took too long", exception=exception, trace=trace)


def failed_twice(first, second):
    steps = (
        msgspec.structs.replace(step(1, "failure"), failure=first),
        msgspec.structs.replace(step(2, "failure", call=1, attempt=2), failure=second),
    )
    return [line.strip() for line in run_text.render_run(history(*steps), NOW)]


def test_each_exception_of_a_chain_is_one_line_with_the_nearest_frames_of_the_user():
    trace = (
        "  app/tools.py:42 in search\n  app/agent.py:10 in main\n  app/a.py:1 in b\n  app/a.py:2 in c\n"
        "  library httpx/_client.py:914 in send\n  ... 31 more frames\n"
        "caused by httpcore.ReadTimeout: timed out\n  library httpcore/_sync.py:7 in read"
    )
    shown = failed_twice(traced(trace), traced(trace))
    first = (
        "raised     httpx.ReadTimeout at app/tools.py:42 in search, from app/agent.py:10 in main, from app/a.py:1 in b"
    )
    cause = "caused by httpcore.ReadTimeout: timed out at library httpcore/_sync.py:7 in read"
    assert shown.count(first) == shown.count(cause) == 1  # the second attempt failed in the same place
    assert shown.index(cause) == shown.index(first) + 1


def test_an_attempt_that_failed_elsewhere_shows_its_own_trace():
    shown = failed_twice(traced("  app/a.py:1 in b"), traced("  app/a.py:2 in b"))
    assert "raised     httpx.ReadTimeout at app/a.py:1 in b" in shown
    assert "raised     httpx.ReadTimeout at app/a.py:2 in b" in shown


def test_a_trace_of_another_program_is_only_mentioned():
    trace = "Error: no\n    at pay (/srv/pay.js:1:2)\n    at main (/srv/main.js:3:4)"
    assert "raised     exception, stack trace of 3 lines (--full)" in failed_twice(traced(trace, ""), traced(""))


@given(st.text(max_size=200), st.lists(st.text(max_size=200), max_size=6))
def test_any_stack_trace_is_safe_on_a_terminal(exception, lines):
    failure = traced("\n".join(lines), exception)
    assert find_unsafe_text("\n".join(failed_twice(failure, failure))) == []
