"""What `mulligan show` prints about a call: arguments, result, error, tokens and cost, bounded and harmless."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import AvoidedTurn, History, Recovery, RecoveryStop, Run, Step
from mulligan.redaction.plain_data import truncate_text
from mulligan.report import call_text, run_text
from mulligan.report.tables import display_width

NOW = 1_700_000_100_000
START = 1_700_000_000_000
FAILURE = Failure.of(Kind("tool", "timeout", Remedy.RETRY, TookEffect.UNKNOWN), "no answer", hint="Try later.")


def success(seq=1, **fields):
    fields = {"name": "search", "started_at": START + seq, "duration_seconds": 0.5} | fields
    return Step(run="run_a", seq=seq, call=fields.pop("call", seq), **fields)


def failed(seq=1, **fields):
    return success(seq, outcome="failure", failure=FAILURE, **fields)


def show(*steps, width=None, is_full=False):
    run = Run(id="run_a", started_at=START, ended_at=START + 1000, end_reason="finished")
    return list(run_text.render_run(History(run=run, steps=steps), NOW, width, is_full))


def test_short_success_shows_arguments_and_result_on_one_line():
    assert '  1  + search (tool), 500 ms: query="refunds", top_k=5 -> ["a", "b"]' in show(
        success(arguments={"query": "refunds", "top_k": 5}, result=["a", "b"])
    )


def test_long_success_shows_arguments_and_result_on_their_own_lines_within_the_terminal():
    lines = show(success(arguments={"query": "x " * 500, "top_k": 5}, result=["abc"] * 500), width=80)
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) < 12
    text = "\n".join(lines)
    assert "arguments  query=" in text
    assert "top_k=5" in text  # a long value does not hide the others
    assert "(1,002 characters)" in text
    assert "(500 items)" in text


def test_full_output_contains_everything_that_is_stored():
    query = "x " * 500 + "end"
    (text,) = [line for line in show(success(arguments={"query": query}), width=80, is_full=True) if "query=" in line]
    assert query in text
    detailed = msgspec.structs.replace(FAILURE, message="m " * 300 + "end", detail="the detail", trace="  a.py:1 in b")
    lines = [line.strip() for line in show(msgspec.structs.replace(failed(), failure=detailed), is_full=True)]
    assert any(line.startswith("error") and line.endswith("m end") for line in lines)
    assert {"detail     the detail", "hint       Try later.", "a.py:1 in b"} <= set(lines)


def test_full_output_prints_a_text_of_several_lines_as_lines():
    lines = [line.strip() for line in show(success(result="first\nsecond\x1b[2J"), is_full=True)]
    assert lines[-2:] == ["first", "second\\u001b[2J"]


def test_arguments_are_repeated_only_if_an_attempt_has_others():
    retry = Recovery(remedy=Remedy.RETRY, backoff_seconds=0.1)
    same = show(failed(arguments={"k": 5}), success(2, call=1, attempt=2, arguments={"k": 5}, recovery=retry))
    assert sum("arguments" in line for line in same) == 1
    other = show(failed(arguments={"k": 5}), success(2, call=1, attempt=2, arguments={"k": 1}, recovery=retry))
    assert [line.strip() for line in other if "arguments" in line] == ["arguments  k=5", "arguments  k=1"]


def test_tokens_and_cost_are_shown_for_the_attempt_and_summed_for_the_run():
    text = "\n".join(
        show(
            success(
                1,
                type="model",
                tokens={"input": 1000, "cached_input": 900, "output": 20, "reasoning": 15},
                metadata={"cost": 0.5, "by": "billing"},
                cost_nanos=500_000_000,
            ),
            success(2, type="model", tokens={"input": 234, "output": 1}, cost_nanos=1200),
        )
    )
    assert "\n  tokens   1,234 input (900 cached), 21 output (15 reasoning)\n  cost     $0.50\n" in text
    assert "tokens     1,000 input (900 cached), 20 output (15 reasoning)" in text
    assert "cost       $0.50" in text
    assert "cost       $0.0000012" in text
    assert 'metadata   by="billing"' in text


def test_an_unknown_cost_is_shown_as_unknown_and_not_as_zero():
    unpriced = success(1, type="model", tokens={"input": 1000, "output": 20})
    assert "  cost     unknown: the model has no price" in show(unpriced)
    priced = success(2, type="model", tokens={"input": 234, "output": 1}, cost_nanos=0)
    assert "  cost     $0.00, unknown for 1 of 2 attempts" in show(unpriced, priced)


def test_cost_of_recovery_counts_backoff_further_attempts_and_tokens():
    retry = Recovery(remedy=Remedy.RETRY, backoff_seconds=1.5)
    usage = {"tokens": {"input": 9}, "cost_nanos": 3_000_000}
    steps = failed(tokens={"input": 7}), success(2, call=1, attempt=2, recovery=retry, **usage)
    assert "  cost of recovery  backoff 1.5 s, further attempts 500 ms, 9 of 16 tokens, $0.0030" in show(*steps)


def test_cost_avoided_stands_beside_the_cost_of_recovery():
    avoided = AvoidedTurn(model="m", input_tokens=1500, cost_nanos=4_000_000)
    retry = Recovery(remedy=Remedy.RETRY, backoff_seconds=1.5)
    lines = show(failed(), success(2, call=1, attempt=2, recovery=retry, avoided=avoided))
    position = next(index for index, line in enumerate(lines) if line.startswith("  cost of recovery"))
    assert lines[position + 1] == "  cost avoided      1 model turn, 1,500 input tokens, at least $0.0040"


def test_recorded_conversation_is_described_by_its_size_and_last_message():
    messages = {"count": 3, "each": [{"role": "user", "chars": 5}], "last_user": "Say hello"}
    text = "\n".join(show(success(type="model", arguments={"messages": messages, "model": "small"})))
    assert 'messages=(3 messages, last user message: "Say hello"), model="small"' in text


def test_successful_calls_of_a_long_run_are_counted_unless_everything_is_requested():
    steps = [success(seq, arguments={"page": seq}) for seq in range(1, 101)]
    steps[49] = failed(50)
    lines = show(*steps)
    assert sum("49 successful calls of search (list: --full)" in line for line in lines) == 1
    assert any(line.startswith("   50  x search (tool), unrecovered") for line in lines)
    assert sum("search (tool)" in line for line in show(*steps, is_full=True)) == 100


def test_exact_characters_of_a_value_stay_readable():
    lines = show(success(arguments={"command": "git log | head -3 > out"}))
    assert 'command="git log | head -3 > out"' in "\n".join(lines)


def test_size_of_a_text_that_was_cut_when_recorded_is_the_original_one():
    text = truncate_text("x" * 1_000_000)
    assert call_text.format_value(text, 100).endswith(f'..." (1,000,000 characters, {len(text):,} stored)')


@given(st.recursive(st.text() | st.integers() | st.none() | st.booleans(), lambda inner: st.lists(inner), max_leaves=8))
def test_any_value_is_one_printable_line_within_the_limit(value):
    text = call_text.format_value(value, 60)
    assert text.isprintable()
    assert len(text) <= 60


@given(st.dictionaries(st.text(), st.text(max_size=300), max_size=8), st.integers(40, 200))
def test_any_arguments_are_printable_and_fit_the_terminal(arguments, width):
    for is_full in (False, True):
        lines = show(success(arguments=arguments, result=arguments), width=width, is_full=is_full)
        assert all(line.isprintable() for line in lines)
        assert is_full or all(display_width(line) <= width for line in lines)


@pytest.mark.parametrize("character", ["\x1b", "\x9b", "\u202e", "\u2028", "\ud800", "\x00", "\u200b"])
def test_hidden_characters_are_shown_as_escapes(character):
    assert call_text.format_value(f"a{character}b", 60) == f'"a\\u{ord(character):04x}b"'


def reflection(result, seq=2, **fields):
    subject = {"tool": "search", "call": 1, "kind": "tool/timeout"}
    return success(seq, type="reflection", name="reflection", arguments=subject, parent=1, result=result, **fields)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (
            {"confidence": 0.9, "arguments": {"k": 10}, "reason": "a\x1b[2J page"},
            "k=10 (stated confidence 0.9, a page)",
        ),
        (
            {"confidence": 0.5, "prerequisites": [{"tool": "log_in", "arguments": {}}, {"tool": "open"}]},
            "call log_in, then open first (stated confidence 0.5)",
        ),
        ({"confidence": 0.1, "arguments": None, "reason": ""}, "abstained (stated confidence 0.1)"),
        ({"error": "no answer within 20 s"}, "no usable answer: no answer within 20 s"),
        ({"$type": "object"}, "not recorded"),
        (None, "not recorded"),
    ],
)
def test_reflection_is_one_line_with_the_answer_and_no_call_of_the_run(result, text):
    tokens = {"input": 400, "output": 50}
    lines = show(failed(), reflection(result, tokens=tokens), success(3))
    assert f"     + reflection on call 1, 500 ms, 400 input, 50 output: {text}" in lines
    assert "2 calls in 2 attempts" in lines[0]
    assert any(line.startswith("  2  + search") for line in lines)
    assert "  tokens            400 input, 50 output" in lines


def test_stop_reason_is_shown_whole():
    reason = f"{'the tool has effects and nothing proves that the call did not execute ' * 4}(raise AgentError first)"
    assert any(line.endswith("(raise AgentError first)") for line in show(failed(stop=RecoveryStop(reason=reason))))


def test_suggested_prerequisite_is_shown():
    suggestion = Recovery(remedy=Remedy.REPAIR, source="reflection", confidence=0.6, prerequisites=("log_in",))
    lines = show(failed(stop=RecoveryStop(reason="no repair found", suggestions=(suggestion,))))
    assert "     > suggestion: call log_in first (source: reflection, 60% confidence)" in lines


def test_answer_of_a_model_is_shown_as_its_text_and_the_calls_that_it_requests():
    call = {"name": "search", "args": {"query": "fish", "top_k": 50}, "id": "1", "type": "tool_call"}
    message = {"type": "ai", "content": "Let me look.", "additional_kwargs": {}, "tool_calls": [call]}
    text = "\n".join(show(success(1, type="model", result=message, tokens={"input": 9})))
    assert '  result     "Let me look."; calls search(query="fish", top_k=50)' in text
    assert "additional_kwargs" not in text


def test_a_cut_text_has_both_of_its_quotation_marks():
    assert call_text.format_value("timed out " * 40, 40) == '"timed out timed ou..." (402 characters)'
