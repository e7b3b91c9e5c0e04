from __future__ import annotations

import json

import pytest
from session_logs import otlp, read, span, write

from mulligan.core import calls
from mulligan.core.episodes import list_episodes
from mulligan.core.run_links import derive_status

TOOL = {"gen_ai__operation__name": "execute_tool", "gen_ai__tool__name": "search"}


def agent(trace: str, end: float = 9, error: str = "") -> dict[str, object]:
    return span(
        trace, "root", None, "invoke_agent librarian", 0, end, error,
        gen_ai__operation__name="invoke_agent", gen_ai__agent__name="librarian", gen_ai__conversation__id="c-1",
    )  # fmt: skip


def test_a_trace_is_a_run_and_its_spans_are_steps(tmp_path):
    chat = span("t1", "a", "root", "chat gpt-x", 0, 1, gen_ai__operation__name="chat", gen_ai__request__model="gpt-x")
    tool = span("t1", "b", "root", "execute_tool search", 1, 3, gen_ai__tool__call__arguments='{"q": "x"}', **TOOL)
    (history,) = read(write(tmp_path / "t.jsonl", otlp(chat, tool), otlp(agent("t1"))))
    assert (history.run.agent, history.run.session) == ("librarian", "c-1")
    assert [(step.type, step.name, step.duration_seconds) for step in history.steps] == [
        ("model", "gpt-x", 1.0),
        ("tool", "search", 2.0),
    ]
    assert history.steps[1].arguments == {"q": "x"}
    assert derive_status(history.run, history.steps, history.links) == "success"


def test_a_model_span_has_its_model_its_tokens_and_the_cost_that_its_sender_computed(tmp_path):
    chat = span(
        "t1", "a", "root", "chat gpt-x", 0, 1, gen_ai__operation__name="chat", gen_ai__request__model="gpt-x",
        mulligan__step__name="ask", gen_ai__usage__input_tokens=100, gen_ai__usage__output_tokens=9,
        gen_ai__usage__cache_read__input_tokens=60, gen_ai__usage__reasoning__output_tokens=4,
        mulligan__cost_usd=0.25,
    )  # fmt: skip
    (history,) = read(write(tmp_path / "t.jsonl", otlp(chat), otlp(agent("t1"))))
    (step,) = history.steps
    assert (step.name, step.model) == ("ask", "gpt-x")
    assert step.tokens == {"input": 100, "output": 9, "cached_input": 60, "reasoning": 4}
    assert step.token_count == 109
    assert step.cost_nanos == 250_000_000


def test_attempts_are_joined_by_the_id_of_their_call_and_not_by_following_a_failure(tmp_path):
    known = {**TOOL, "gen_ai__tool__call__id": "c1"}
    spans = [
        span("t1", "a", "root", "execute_tool search", 1, 2, "search timed out after 30s", **known),
        span("t1", "b", "root", "execute_tool search", 3, 4, **known),
        span("t1", "c", "root", "tools/call fetch", 5, 6, "503 Service Unavailable", mcp__method__name="tools/call"),
        span("t1", "d", "root", "tools/call fetch", 7, 8, mcp__method__name="tools/call"),
        span("t1", "e", "root", "execute_tool search", 8, 9, **TOOL, gen_ai__tool__call__id="c2"),
    ]
    (history,) = read(write(tmp_path / "t.jsonl", otlp(agent("t1"), *spans)))
    joined = calls.group_attempts(history.steps)
    assert [(call.name, len(call.steps), call.has_succeeded) for call in joined] == [
        ("search", 2, True),
        ("fetch", 1, False),
        ("fetch", 1, True),
        ("search", 1, True),
    ]
    failure = joined[0].failure
    assert failure is not None
    assert failure.kind == "tool/timeout"
    assert joined[0].backoff_seconds == 1.0
    (episode, later_episode) = list_episodes(history)
    assert (episode.by_mulligan, episode.by_program) == (False, True)
    assert (later_episode.by_mulligan, later_episode.by_program) == (False, False)
    assert [(link.failed_call, link.recovering_call) for link in history.links] == [(1, 1)]
    assert derive_status(history.run, history.steps, history.links) == "partial"  # of fetch, the arguments are unknown


def test_empty_call_ids_join_nothing(tmp_path):
    spans = [
        span("t1", f"a{number}", "root", "execute_tool search", number, number + 1, error, **TOOL, tool__id="")
        for number, error in enumerate(("503 Service Unavailable", ""))
    ]
    (history,) = read(write(tmp_path / "t.jsonl", otlp(agent("t1"), *spans)))
    assert [step.call for step in history.steps] == [1, 2]


def test_attempts_that_mulligan_made_name_its_strategy(tmp_path):
    spans = [
        span(
            "t1", f"a{number}", "root", "tools/call search", number, number + 1, error, mcp__method__name="tools/call",
            mulligan__operation__id="run_1/1", mulligan__attempt=number, mulligan__repair__strategy=strategy,
            gen_ai__tool__call__arguments=json.dumps({"top_k": top_k}),
        )
        for number, error, strategy, top_k in (
            (1, "503 Service Unavailable", "", 50), (2, "top_k must be 10 or less, got 50", "retry", 50),
            (3, "", "schema", 10),
        )
    ]  # fmt: skip
    (history,) = read(write(tmp_path / "t.jsonl", otlp(agent("t1"), *spans)))
    recoveries = [(step.recovery.remedy.value, step.recovery.source) for step in history.steps if step.recovery]
    assert recoveries == [("retry", ""), ("repair", "schema")]
    (episode,) = list_episodes(history)
    assert (episode.by_mulligan, episode.by_program) == (True, False)


@pytest.mark.parametrize(
    ("errors", "status"), [(("boom", ""), "partial"), (("boom",), "failure"), (("", "boom"), "partial")]
)
def test_calls_without_a_parent_fail_the_run_only_if_they_are_all_of_it(errors, status, tmp_path):
    spans = [span("t1", str(n), None, "search", n, n + 1, error, **TOOL, gen_ai__tool__call__arguments=f'{{"q": {n}}}')
             for n, error in enumerate(errors)]  # fmt: skip
    (history,) = read(write(tmp_path / "t.jsonl", otlp(*spans)))
    assert derive_status(history.run, history.steps, history.links) == status


def test_an_agent_whose_own_span_failed_is_a_failed_run(tmp_path):
    tool = span("t1", "b", "root", "execute_tool search", 1, 3, **TOOL)
    (history,) = read(write(tmp_path / "t.jsonl", otlp(agent("t1", error="gave up"), tool)))
    assert derive_status(history.run, history.steps, history.links) == "failure"


def test_traces_that_are_mixed_come_apart_and_a_document_over_many_lines_is_read(tmp_path):
    spans = [span(f"t{n % 3}", str(n), "root", "execute_tool search", n, n + 1, **TOOL) for n in range(9)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(otlp(*spans), indent=1))
    histories = read(path)
    assert [len(history.steps) for history in histories] == [3, 3, 3]
    assert {history.run.session for history in histories} == {None}  # no attribute names one


@pytest.mark.parametrize(("city", "status"), [("Bergen", "recovered"), ("Oslo", "partial")])
def test_a_call_that_was_given_up_is_recovered_by_another_only_with_the_same_arguments(tmp_path, city, status):
    """Three attempts at one call fail, the agent goes on, and later asks once more: another call."""
    asked = {**TOOL, "gen_ai__tool__call__arguments": '{"city": "Bergen"}'}
    again = {**TOOL, "gen_ai__tool__call__arguments": json.dumps({"city": city})}
    busy = "503 Service Unavailable (request id req_"
    spans = [
        *(
            span("t1", f"a{n}", "root", "execute_tool search", n, n + 1, f"{busy}{id})", **asked, tool__id="c1")
            for n, id in enumerate(("fadeca", "4f40c7", "decade"), 1)
        ),
        span("t1", "b", "root", "execute_tool fetch", 5, 6, gen_ai__operation__name="execute_tool", tool__id="c2"),
        span("t1", "c", "root", "execute_tool search", 7, 8, **again, tool__id="c3"),
    ]
    (history,) = read(write(tmp_path / "t.jsonl", otlp(agent("t1"), *spans)))
    assert [len(call.steps) for call in calls.group_attempts(history.steps)] == [3, 1, 1]
    retry = (1, 5, "retry", ("same_arguments",))
    links = [(link.failed_call, link.recovering_call, link.method, link.evidence) for link in history.links]
    assert links == ([retry] if status == "recovered" else [])
    assert derive_status(history.run, history.steps, history.links) == status
    assert len({step.failure.fingerprint for step in history.steps if step.failure}) == 1


def test_class_and_stack_trace_of_an_exception_event_are_read(tmp_path):
    failed = span("t1", "b", "root", "execute_tool search", 1, 3, "no answer", **TOOL)
    attributes = {"exception.type": "httpx.ReadTimeout", "exception.stacktrace": "Traceback ...\n" + "x " * 20_000}
    values = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
    failed["events"] = [{"name": "exception", "attributes": values}]
    (history,) = read(write(tmp_path / "t.jsonl", otlp(agent("t1"), failed)))
    failure = history.steps[0].failure
    assert failure is not None
    assert failure.exception == "httpx.ReadTimeout"
    assert failure.trace.startswith("Traceback ...\n")
    assert len(failure.trace) <= 10_240
