"""Which model caused a failed tool call, and what the model spent until it was recovered or unrecovered."""

import json

import pytest

import mulligan
from mulligan.core.episodes import find_causes, list_episodes
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.records import AdvisedFix, History, Link, Run, Step

STALE = Failure.of(Kind("tool", "invalid_arguments", Remedy.REPLAN), "stale", fingerprint="f")


def model(seq, name="small-1", **fields):
    return Step(run="r", seq=seq, call=seq, type="model", name="chat", arguments={"model": name},
                tokens={"input": 90, "output": 10}, cost_nanos=7, started_at=seq * 1000, **fields)  # fmt: skip


def tool(seq, failure=None, name="edit", **fields):
    outcome = "failure" if failure else "success"
    return Step(run="r", seq=seq, call=seq, name=name, outcome=outcome, failure=failure,
                started_at=seq * 1000, duration_seconds=0.5, **fields)  # fmt: skip


def history(*steps, links=(), **fields):
    links = tuple(Link(run="r", failed_call=a, recovering_call=b, method="agent") for a, b in links)
    return History(run=Run(id="r", end_reason="finished", **fields), steps=steps, links=links)


def test_failure_is_caused_by_the_model_whose_answer_came_before():
    steps = model(1), tool(2, STALE), model(3, "big-1"), tool(4, STALE)
    causes = find_causes(history(*steps, metadata={"model": "other", "prompt_version": "p7"}))
    assert [(call, cause.model, cause.turn) for call, cause in causes.items()] == [(2, "small-1", 1), (4, "big-1", 3)]
    assert causes[2].prompt_version == "p7"


def test_model_named_by_the_step_or_the_run_is_the_cause_if_no_answer_is_recorded():
    named = tool(1, STALE, metadata={"model": "claude-x"})
    assert find_causes(history(named, metadata={"model": "later"}))[1].model == "claude-x"
    assert find_causes(history(tool(1, STALE), metadata={"model": "from-log"}))[1].model == "from-log"
    assert find_causes(history(tool(1, STALE))) == {}


def test_call_inside_a_tool_is_the_tools_own():
    steps = model(1), tool(2, name="deploy"), tool(3, STALE, parent=2)
    assert find_causes(history(*steps, metadata={"model": "small-1"})) == {}


def test_call_inside_a_stage_or_an_agent_as_a_tool_has_the_model_of_its_scope():
    stage = Step(run="r", seq=2, call=2, type="plan", name="stage")
    assert find_causes(history(model(1), stage, tool(3, STALE, parent=2)))[3].model == "small-1"
    expert = tool(2, name="ask_expert")
    inner = model(3, "expert", parent=2), tool(4, STALE, parent=2)
    assert find_causes(history(model(1), expert, *inner))[4].model == "expert"


def test_two_agents_at_once_are_told_apart_by_the_calls_that_their_answers_request():
    steps = model(1, "a", result={"calls": "edit"}), model(2, "b", result={"calls": "search"}), tool(3, STALE)
    quoted = [Step(**{**{f: getattr(s, f) for f in s.__struct_fields__}, "result": {"tool_calls": [n]}})
              for s, n in zip(steps[:2], ("edit", "search"), strict=True)]  # fmt: skip
    assert find_causes(history(*quoted, steps[2]))[3].model == "a"


def test_recovery_costs_the_turns_between_failure_and_success():
    steps = model(1), tool(2, STALE), model(3), tool(4, STALE), model(5), tool(6), model(7)
    [episode] = list_episodes(history(*steps, links=[(2, 6), (4, 6)], advice=(AdvisedFix(2, "fix_1"),)))
    assert (episode.calls, episode.recovering_call, episode.model_attempts) == ((2, 4), 6, 2)
    assert (episode.turns, episode.tokens, episode.cost_nanos) == ((3, 5), 200, 14)
    assert episode.seconds == pytest.approx(4.0)
    assert (episode.fixes, episode.held_out_fixes) == (("fix_1",), ())


def test_failure_that_is_unrecovered_costs_its_repetitions_and_the_turn_that_gave_up():
    steps = model(1), tool(2, STALE), model(3), tool(4, STALE), model(5), tool(6, name="other"), model(7)
    [episode] = list_episodes(history(*steps))
    assert (episode.calls, episode.recovering_call, episode.model_attempts) == ((2, 4), None, 1)
    assert episode.turns == (3, 5)


def test_recovery_by_mulligan_costs_no_turn():
    later = Step(run="r", seq=3, call=2, attempt=2, name="edit", started_at=3000, duration_seconds=1.0)
    [episode] = list_episodes(history(model(1), tool(2, STALE), later, model(4)))
    assert (episode.by_mulligan, episode.turns, episode.later_attempts) == (True, (), 1)
    assert episode.seconds == pytest.approx(1.5)


def chat_of(memory, name, arguments):
    """A model that calls `edit` with each of these arguments, and ends."""
    replies = iter([*arguments, None])

    @memory.model
    def chat(messages, model=name, tools=None):
        value = next(replies)
        call = {"id": "c1", "type": "function", "function": {"name": "edit", "arguments": json.dumps(value)}}
        message = {"role": "assistant", "content": "done" if value is None else None}
        message |= {} if value is None else {"tool_calls": [call]}
        usage = {"prompt_tokens": 800, "completion_tokens": 23, "total_tokens": 823}
        return {"model": name, "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}

    return chat


def test_command_counts_tool_failures_by_the_model_that_caused_them(types):
    memory = mulligan.Mulligan()

    def edit(path: str, old: str) -> str:
        if old == "stale":
            raise ValueError(f"old_string not found in {path}")
        return "ok"

    for name, bad in (("small-1", 8), ("big-1", 1)):
        for number in range(10):
            old = "stale" if number < bad else "x"
            memory.loop(chat_of(memory, name, [{"path": f"a{number}.rs", "old": old}]), [edit], "edit it", limit=3)
    memory.flush()
    parts = json.loads(types("stats", "--by", "model", "--json")[1])["parts"]
    assert {part["model"]: part["tool_failures"] for part in parts} == {"small-1": 8, "big-1": 1}
    answer = types("stats", "--by", "model", "--compare", "small-1", "big-1")[1]
    assert "big-1 is better: tool calls it requested that failed (80.0 % to 10.0 %)." in answer


def test_command_shows_what_self_corrections_cost(types):
    memory = mulligan.Mulligan()

    def edit(path: str = "", old: str = "") -> str:
        if not path:
            raise mulligan.AgentError("Missing required parameter: path", code="invalid_params")
        return "ok"

    for number in range(3):
        calls = [{"old": str(number)}] * (1 + number // 2) + [{"old": str(number), "path": "a"}]
        result = memory.loop(chat_of(memory, "small-1", calls), [edit], "edit it", limit=6)
    memory.flush()
    answer = json.loads(types("stats", "--json")[1])
    facts, total = answer["model_recovery"], answer["total"]
    assert (total["recovery_tokens"], total["model_recovery_tokens"]) == (0, 4 * 823)
    assert (facts["failures"], facts["recovered_by_model"], facts["unrecovered"]) == (3, 3, 0)
    assert facts["by_attempt"] == {"1": 2, "2": 1, "3": 0, "later": 0}
    assert (facts["turns"], facts["tokens"]) == (4, 4 * 823)
    assert "66.7 % at its first attempt" in types("stats")[1]
    text = types("show", result.run)[1]
    assert "> requested by small-1 in step 1" in text
    assert "> recovered by the second later call: 2 model turns, 1,646 tokens" in text
