"""What a person reads about runs: the first line answers, the rest is aligned, and nothing foreign is obeyed."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Change, History, Link, LinkEvidence, Recovery, RecoveryStop, Run, Step
from mulligan.report import link_evidence, run_text

NOW = 1_700_000_100_000
TIMEOUT = Kind("tool", "timeout", Remedy.RETRY, TookEffect.UNKNOWN)
REJECTED = Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO)


def step(seq, outcome="success", *, call=None, attempt=1, name="weather", kind=TIMEOUT, **fields):
    failure = Failure.of(kind, "it took too long") if outcome == "failure" else None
    return Step(
        run="run_abcdefgh", seq=seq, call=call or seq, attempt=attempt, name=name, outcome=outcome,
        started=1_700_000_000_000 + seq * 1000, seconds=0.5, failure=failure, **fields,
    )  # fmt: skip


def history(*steps, links=(), **about):
    run = Run(id="run_abcdefgh", agent="tester", started=1_700_000_000_000, ended=1_700_000_010_000, end="finished")
    run = msgspec.structs.replace(run, **about)
    return History(run=run, steps=steps, links=tuple(links))


def text(lines):
    return "\n".join(lines)


def test_the_first_line_of_a_run_says_what_came_of_it():
    waited = Recovery(remedy=Remedy.RETRY, seconds=1.5)
    shown = list(run_text.render_run(history(step(1, "failure"), step(2, call=1, attempt=2, after=waited)), NOW))
    assert shown[0] == (
        "run_abcdefgh recovered: 1 call in 2 attempts, 1 of 1 failed calls overcome, 1.5 s spent waiting."
    )


def test_a_call_that_worked_at_once_takes_one_line():
    shown = text(run_text.render_run(history(step(1), step(2, name="search")), NOW))
    assert "weather (tool), first try, 500 ms" in shown
    assert "search (tool), first try, 500 ms" in shown


def test_a_failed_attempt_says_its_kind_whether_it_ran_and_whose_move_it_was():
    again = (step(1, "failure"), step(2, call=1, attempt=2))
    assert "tool/timeout, may have run, remedy: wait" in text(run_text.render_run(history(*again), NOW))
    shown = text(run_text.render_run(history(step(1, "failure")), NOW))
    assert "weather (tool), given up" in shown
    assert "remedy" not in shown  # nothing was done
    assert "x 500 ms  tool/timeout, may have run" in shown
    assert "it took too long" in shown


def test_a_repair_says_what_was_changed_from_where_and_how_sure_it_was():
    change = Change(path="top_k", how="clamp", before=50, after=10, from_="schema")
    repair = Recovery(remedy=Remedy.REPAIR, changes=(change,), source="schema", confidence=0.9)
    steps = (step(1, "failure", kind=REJECTED), step(2, call=1, attempt=2, after=repair))
    assert "changed top_k 50 -> 10 (from the schema, 90% sure)" in text(run_text.render_run(history(*steps), NOW))


def test_an_argument_that_got_another_name_is_not_shown_as_if_it_had_another_value():
    change = Change(path="night", how="rename", before="night", after="nights", from_="schema")
    repair = Recovery(remedy=Remedy.REPAIR, changes=(change,), source="schema", confidence=0.9)
    steps = (step(1, "failure", kind=REJECTED), step(2, call=1, attempt=2, after=repair))
    assert "changed the name night -> nights (from" in text(run_text.render_run(history(*steps), NOW))


def test_an_argument_that_was_missing_is_shown_as_given_and_not_as_nothing_before():
    link = Link(
        run="run_abcdefgh", failed=1, overcame=2, how="agent", changes=(Change(path="days", how="substitute", after=7),)
    )
    assert (
        "what changed: days=7\n"
        in text(run_text.render_run(history(step(1, "failure"), step(2), links=[link]), NOW)) + "\n"
    )


def test_what_neither_worked_nor_failed_is_not_drawn_as_if_it_had_worked():
    shown = text(run_text.render_run(history(step(1, "cancelled")), NOW))
    assert "...--..." in shown
    assert "=" not in shown


def test_a_check_that_was_asked_is_not_shown_as_a_wait():
    asked = Recovery(remedy=Remedy.RETRY, source="verify")
    shown = text(run_text.render_run(history(step(1, "failure"), step(2, call=1, attempt=2, after=asked)), NOW))
    assert "> asked a check whether it had worked" in shown


def test_a_run_without_an_agent_that_failed_itself_is_told_without_an_empty_name():
    own = msgspec.structs.replace(step(1, "failure"), type="run", name="")
    assert text(run_text.render_runs([history(own)], NOW)).rstrip().endswith("tool/timeout")


def test_a_failed_call_names_the_later_call_that_overcame_it_and_what_changed():
    change = Change(path="days", how="substitute", before=30, after=7)
    link = Link(run="run_abcdefgh", failed=1, overcame=2, how="agent", changes=(change,))
    shown = text(run_text.render_run(history(step(1, "failure"), step(2), links=[link]), NOW))
    assert "weather (tool), overcome by the model in call 2" in shown
    assert "what changed: days 30 -> 7" in shown


def test_a_call_that_was_given_up_says_why_and_what_may_work():
    change = Change(path="days", how="clamp", before=30, after=7, from_="error")
    left = Recovery(remedy=Remedy.REPAIR, changes=(change,), source="error", confidence=0.6)
    why = "it may have taken effect and is not known to be repeatable"
    shown = text(run_text.render_run(history(step(1, "failure", ending=RecoveryStop(why=why))), NOW))
    assert f"weather (tool), given up because {why}\n" in shown
    shown = text(run_text.render_run(history(step(1, "failure", ending=RecoveryStop(why=why, offered=(left,)))), NOW))
    assert f"given up because {why}, with suggestions\n" in shown
    assert "may work: days 30 -> 7 (from the error, 60% sure)" in shown


def test_an_attempt_that_was_waited_for_and_not_made_is_shown_as_none():
    waited = Recovery(remedy=Remedy.RETRY, seconds=1.5)
    last = step(2, "cancelled", call=1, attempt=2, after=waited, ending=RecoveryStop(why="its time is over"))
    shown = list(run_text.render_run(history(step(1, "failure"), last), NOW))
    assert "1 call in 1 attempt," in shown[0]
    assert "weather (tool), given up because its time is over" in text(shown)
    assert any(each.endswith("- not made") for each in shown)


def test_a_recipe_names_what_came_between():
    link = Link(run="run_abcdefgh", failed=1, overcame=3, how="recipe", between=("login",))
    shown = text(run_text.render_run(history(step(1, "failure"), step(2, name="login"), step(3), links=[link]), NOW))
    assert "what came between: login" in shown


def test_a_run_that_is_still_going_says_so():
    assert "running" in next(iter(run_text.render_run(history(step(1), ended=None, end=None), NOW)))


def test_the_list_of_runs_names_the_failure_to_look_at_first():
    open_failure = step(1, "failure", name="pay")
    overcome = (step(2, "failure", call=2), step(3, call=2, attempt=2))
    shown = text(run_text.render_runs([history(open_failure, *overcome)], NOW))
    assert shown.startswith("1 run: 1 partial. 1 of 2 failed calls overcome.")
    assert "tool/timeout in pay" in shown


def test_columns_are_aligned_and_numbers_stand_right():
    assert list(run_text.render_columns([("a", "1", "x"), ("bbb", "22", "y")], right=(1,))) == [
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
        run="run_abcdefgh", seq=1, call=1, name=name + "\x1b[2J", outcome="failure", started=NOW,
        failure=Failure.of(REJECTED, message + "\x1b]0;x\x07\u202e"),
        after=Recovery(remedy=Remedy.REPAIR, changes=(Change(path=value, how="enum", before=value, after="\x9b1m"),)),
    )  # fmt: skip
    kept = history(hostile, agent=agent + "\r\n\x00", context=value)
    for line in (*run_text.render_run(kept, NOW), *run_text.render_runs([kept], NOW)):
        assert not any(
            character < " " or "\x7f" <= character <= "\x9f" or character in "\u202e\u2066" for character in line
        )


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (("same_arguments",), "same arguments"),
        (("same_values",), "same values in another form"),
        (("missing_arguments",), "the error says what was missing"),
        (("handler",), "made while the error was handled"),
        (("model_turn", "stated_limit"), "the model's next turn, the error states the limit"),
        (("next_call",), "the tool's next call in the log"),
        (("tool_result",), "the value came from a tool result"),
        (("same_text",), "corrected text"),
        (("explicit",), "marked by the program"),
        ((), "not recorded"),
    ],
)
def test_a_link_says_why_both_calls_belong_together(evidence, words):
    link = Link(run="run_abcdefgh", failed=1, overcame=2, how="agent", evidence=evidence)
    shown = text(run_text.render_run(history(step(1, "failure"), step(2), links=[link]), NOW))
    assert f"> linked because: {words}\n" in shown + "\n"
    assert "provisional" not in shown


def test_a_link_of_a_run_that_goes_on_says_that_it_is_provisional():
    link = Link(run="run_abcdefgh", failed=1, overcame=2, how="agent", evidence=("handler",), provisional=True)
    running = history(step(1, "failure"), step(2), links=[link], ended=None, end=None)
    shown = text(run_text.render_run(running, NOW))
    assert "> linked because: made while the error was handled, provisional while the run goes on" in shown


def test_an_attempt_at_the_same_call_needs_no_reason():
    link = Link(run="run_abcdefgh", failed=1, overcame=1, how="retry", evidence=("attempt",))
    shown = text(run_text.render_run(history(step(1, "failure"), step(2, call=1, attempt=2), links=[link]), NOW))
    assert "linked because" not in shown


def test_every_evidence_has_words():
    assert set(link_evidence.EVIDENCE_TEXTS) == set(get_args(LinkEvidence))
