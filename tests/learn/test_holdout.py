"""Fixes that models follow are not told in a few runs, so that people see what they are worth."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace
from typing import Any

import pytest

import mulligan
from mulligan.capture.call_memory import MAX_ADVISED_PRECEDENTS, CallMemory
from mulligan.contract.store import DEFAULT_TENANT
from mulligan.core.failure import Failure, Kind
from mulligan.core.holdout import MIN_FOLLOWED_RUNS, REMINDER, REPAIR, can_hold_out_lesson, is_fix_held_out
from mulligan.core.records import RUN_SPECIFIC, Change, Lesson, Precedent
from mulligan.recover.policy import Tool
from mulligan.settings import load_settings
from mulligan.store.sqlite import SqliteStore
from mulligan.testing import ScriptedModel

RUNS = 60


@pytest.fixture
def play():
    """Return a function that plays runs in which a model says "fast" for "slow", and follows what it reads."""

    def play_runs(holdout: float, count: int = RUNS, **options: Any) -> list[tuple[str, list[str]]]:
        memory = mulligan.Mulligan(holdout=holdout)

        @memory.tool(effects="none")
        def start(job: str, queue: str) -> Any:
            if queue != "slow":
                raise ValueError(f"Unknown queue {queue}.")
            return queue

        runs = []
        for number in range(count):
            arguments = {"job": f"job {number}", "queue": "fast"}
            with memory.run("planner", **options) as run:
                [failed, _] = [
                    turn.call([start], "start", {**arguments, "queue": queue})
                    for turn, queue in zip(memory.turns(limit=2), ("fast", "slow"), strict=True)
                ]
            memory.flush()
            if not failed.notes and len(runs) > MIN_FOLLOWED_RUNS + 2:
                assert "slow" not in failed.to_message(), "nothing else says what the held-out fix says"
            runs.append((run.id, failed.notes))
        return runs

    return play_runs


def test_fix_that_is_followed_is_not_told_in_a_share_of_runs(play, types):
    runs = play(holdout=0.5)
    untold = [id for id, notes in runs[MIN_FOLLOWED_RUNS + 2 :] if not notes]
    assert 0.2 * RUNS < len(untold) < 0.8 * RUNS
    [fix] = json.loads(types("fixes", "--json")[1])
    assert (fix["successes"], fix["showable"], fix["passed_over"]) == (RUNS, True, 0)
    assert fix["followed"] == sum(bool(notes) for _, notes in runs)

    untold_run = json.loads(types("show", untold[-1], "--json")[1])["run"]
    assert untold_run["advice"] == [{"call": 1, "fix": fix["id"], "held_out": True}]
    told_run = next(id for id, notes in reversed(runs) if notes)
    assert f"> not told: held out, queue=slow ({fix['id']})" in types("show", untold[-1])[1]
    assert f"> told: queue=slow ({fix['id']})" in types("show", told_run)[1]
    counts = f"followed in {fix['followed']} runs, passed over in 0; succeeded without it in {RUNS - fix['followed']}"
    assert f"advice   {counts}" in types("fixes", "show", fix["id"])[1]


def test_without_a_share_no_run_is_held_out(play, types):
    runs = play(holdout=0, count=20)
    assert sum(bool(notes) for _, notes in runs) > 10  # a lookup may take too long
    assert [id for id, _ in runs if '"held_out": true' in types("show", id, "--json")[1]] == []


@pytest.mark.parametrize(
    "precedent",
    [
        Precedent(method="agent", fix="fix_1", followed=MIN_FOLLOWED_RUNS - 1),
        Precedent(method="agent", fix="fix_1", followed=99, forms=(("unit", "upper"),)),
        Precedent(method="agent", followed=99),
    ],
    ids=["rarely followed", "form", "no learned fix"],
)
def test_what_models_rarely_followed_and_forms_are_always_told(precedent):
    assert not any(is_fix_held_out(precedent, f"run_{number}", 0.5) for number in range(200))


def test_share_of_runs_is_the_one_that_was_set():
    precedent = Precedent(method="agent", fix="fix_1", followed=99)
    held_out = [is_fix_held_out(precedent, f"run_{number}", 0.05) for number in range(4000)]
    assert 120 < sum(held_out) < 280
    assert held_out == [is_fix_held_out(precedent, f"run_{number}", 0.05) for number in range(4000)]


def test_only_what_would_be_told_is_held_out():
    """Else cases without a fix would be others than those with it."""
    precedents = [Precedent(method="agent", fix=f"fix_{number}", followed=99) for number in range(9)]
    for number in range(20):
        told, held_out = ask_precedents(0.5, f"run_{number}", precedents)
        assert sorted((*told, *held_out)) == ["fix_0", "fix_1", "fix_2"]


def ask_precedents(share: float, trace: str, precedents: list[Precedent]) -> tuple[list[str], tuple[str, ...]]:
    """Return the fixes that a failed call of a run is told, and those that are held out from it."""

    class Memory(CallMemory):
        def find_precedents(self, failure: Failure) -> list[Precedent]:
            return precedents

    options = SimpleNamespace(holdout=True)
    run = SimpleNamespace(trace_id=trace, allows_holdout=True, options=options)
    capture = SimpleNamespace(holdout=share, lookup_facts=None, is_recording_off=False)
    call = SimpleNamespace(capture=capture, run=run, wrapped=SimpleNamespace(options=options))
    memory = Memory(SimpleNamespace(tool=Tool(name="search"), call=call), SimpleNamespace(arguments={}))  # type: ignore
    failure = Failure.of(Kind.from_name("tool/invalid_arguments"), "k must be 10 or less")
    told = memory.lookup_precedents(failure, "", ())
    return [precedent.fix for precedent in told[:MAX_ADVISED_PRECEDENTS]], memory.held_out_fixes


def play_repairs(share: float, count: int = 40, tool: dict[str, Any] | None = None, **options: Any) -> list[Any]:
    """Play runs whose only call has a number as text, which the schema repairs. Return their histories."""
    memory = mulligan.Mulligan(holdout_repairs=share)

    @memory.tool(effects="none", schema={"properties": {"k": {"type": "integer"}}}, **(tool or {}))
    def search(k: Any) -> str:
        if not isinstance(k, int):
            raise TypeError("k is not an integer")
        return "found"

    ids = []
    for _ in range(count):
        with memory.run("planner", **options) as run, contextlib.suppress(Exception):
            search(k="7")
        ids.append(run.id)
    memory.flush()
    store = SqliteStore(load_settings().folder / "mulligan.db")
    return [store.run(DEFAULT_TENANT, id) for id in ids]


def held_out(history: Any) -> list[str]:
    return [record.fix for record in history.run.advice if record.held_out]


def test_repairs_of_a_tool_are_held_out_in_a_share_of_runs_if_the_user_says_so(types):
    runs = play_repairs(0.5)
    untouched = [history for history in runs if held_out(history) == [REPAIR]]
    assert 0.2 * len(runs) < len(untouched) < 0.8 * len(runs)
    assert {history.steps[-1].outcome for history in untouched} == {"failure"}
    assert {history.steps[-1].outcome for history in runs if history not in untouched} == {"success"}
    text = types("show", untouched[0].run.id)[1]
    assert "> not repaired: held out, to measure the effect of repairs" in text
    facts = json.loads(types("impact", "--json")[1])
    [row] = [row for row in facts["summary"] if (row["help"], row["name"]) == ("repair", "failures recovered")]
    assert (row["with_help"], row["without_help"], row["held_out_cases"]) == ("100 %", "0 %", len(untouched))
    assert not any(map(held_out, play_repairs(0.0, 10)))


def test_a_tool_and_a_run_can_be_excluded():
    assert not any(map(held_out, play_repairs(0.5, 20, tool={"holdout": False})))
    assert not any(map(held_out, play_repairs(0.5, 20, holdout=False)))


def test_all_processes_of_a_run_hold_out_the_same():
    memory = mulligan.Mulligan(holdout_repairs=0.5)
    for _ in range(20):
        with memory.run("planner") as run:
            with memory.run("part") as inner:
                assert inner.trace_id == run.trace_id
            elsewhere = mulligan.Mulligan()
            with elsewhere.run("worker", traceparent=run.headers) as worker:
                assert worker.trace_id == run.trace_id


def test_reminders_are_held_out_by_session_and_recorded(types):
    memory = mulligan.Mulligan(holdout_reminders=0.5)

    @memory.tool(effects="none")
    def search(k: int) -> str:
        raise ValueError("k must be 10 or less")

    reminders = {}
    for number in range(24):
        with memory.session(f"chat-{number}") as session, memory.run("planner", session=session) as run:
            with contextlib.suppress(ValueError):
                search(k=50)
            session.mark_turn()
            session.mark_compacted()
            reminders[run.id] = session.reminder()
    memory.flush()
    store = SqliteStore(load_settings().folder / "mulligan.db")
    assert 4 < sum(not text for text in reminders.values()) < 20
    for id, text in reminders.items():
        [record] = [record for record in store.run(DEFAULT_TENANT, id).run.advice if record.fix == REMINDER]
        assert record.held_out is (text == "")
    rows = json.loads(types("impact", "--json")[1])["summary"]
    assert {row["name"] for row in rows} == {"runs that ended well", "repeated failures per compaction"}
    assert {row["held_out_cases"] for row in rows} == {sum(not text for text in reminders.values())}


@pytest.mark.parametrize("options", [{}, {"holdout": False}, {"record": "off"}, None], ids=str)
def test_reminders_are_held_out_only_from_runs_that_measure_it(options):
    memory = mulligan.Mulligan(holdout_reminders=0.5)

    @memory.tool(effects="none")
    def search(k: int) -> str:
        raise ValueError("k must be 10 or less")

    reminders = []
    for number in range(12):
        with memory.session(f"chat-{number}") as session:
            with memory.run("planner", session=session), contextlib.suppress(ValueError):
                search(k=50)
            session.mark_turn()
            session.mark_compacted()
            with contextlib.nullcontext() if options is None else memory.run("planner", session=session, **options):
                reminders.append(session.reminder())
    assert all(reminders) is (options != {})


def test_fixes_are_not_held_out_from_runs_that_are_not_recorded(play):
    play(holdout=0.5, count=20)
    runs = play(holdout=0.5, count=20, record="off")
    assert sum(bool(notes) for _, notes in runs) > 15  # a lookup may take too long


def add_search(memory: mulligan.Mulligan, **options: Any) -> Any:
    @memory.tool(effects="none", mode="suggest", **options)
    def search(query: str, top_k: int = 5) -> str:
        if top_k > 10:
            raise mulligan.AgentError("top_k must be 10 or less, got 50.", code="invalid_arguments")
        return "found"

    return search


def search_twice(memory: mulligan.Mulligan, search: Any, number: int) -> None:
    for turn, top_k in zip(memory.turns(limit=2), (50, 10), strict=True):
        turn.call([search], "search", {"query": f"question {number}", "top_k": top_k})


@pytest.fixture
def lesson(types) -> str:
    """The id of an active lesson whose fix models have followed often enough."""
    memory = mulligan.Mulligan(holdout=0)
    search = add_search(memory)
    for number in range(20):
        with memory.run("teacher"):
            search_twice(memory, search, number)
        memory.flush()
    types("consolidate")
    [learned] = json.loads(types("lessons", "--source", "learned", "--json")[1])
    assert learned.get("followed", 0) >= MIN_FOLLOWED_RUNS
    types("lessons", "approve", learned["id"])
    return str(learned["id"])


def play_lessons(lesson: str, share: float, count: int = 24, **options: Any) -> dict[str, tuple[str, Any]]:
    """Play runs whose prompt has the lessons. A model that reads this one avoids the failure. Return what they read."""
    memory = mulligan.Mulligan(holdout=share)
    search = add_search(memory, **options.pop("tool", {}))
    prompts = {}
    for number in range(count):
        with memory.run("reader", **options) as run:
            prompt = memory.render_lessons([search])
            assert ("top_k=10" in memory.render_lessons([search])) is ("top_k=10" in prompt)
            if "top_k=10" in prompt:
                search(f"question {number}", top_k=10)
            else:
                search_twice(memory, search, number)
        prompts[run.id] = prompt
    memory.flush()
    store = SqliteStore(load_settings().folder / "mulligan.db")
    return {id: (prompt, store.run(DEFAULT_TENANT, id)) for id, prompt in prompts.items()}


def shown_lessons(history: Any, lesson: str) -> list[bool]:
    return [not record.held_out for record in history.run.advice if record.fix == lesson]


def test_lesson_that_is_followed_is_not_shown_in_a_share_of_runs(lesson, types):
    runs = play_lessons(lesson, 0.5, 60)
    without = [id for id, (prompt, _) in runs.items() if "top_k=10" not in prompt]
    assert 15 < len(without) < 45
    for id, (_, history) in runs.items():
        assert shown_lessons(history, lesson) == [id not in without]
    assert f"{lesson} not shown: held out, to measure its effect" in types("show", without[0])[1]
    [shown, *_] = [id for id in runs if id not in without]
    assert f"{lesson} shown" in types("show", shown)[1]

    facts = json.loads(types("impact", "--json", "--agent", "reader")[1])
    [row] = [row for row in facts["contributions"] if row["help"] == "lesson"]
    assert (row["subject"], row["with_help"], row["without_help"], row["verdict"]) == (lesson, "100 %", "0 %", "better")
    # Cases count from the first run that goes without the lesson.
    assert row["held_out_cases"] == len(without)
    assert row["cases"] <= len(runs) - len(without)
    assert "Lessons help: 100 % of runs did not have the failure with them, 0 % without them" in facts["conclusion"]
    text = types("impact", "--agent", "reader")[1]
    assert lesson in text
    assert "mulligan lessons disable ID" in text
    for words in (text, types("impact", "--agent", "reader", "--markdown")[1]):
        assert "60 runs." in words  # runs that went well are cases too


def test_lessons_at_the_start_of_a_conversation_are_held_out_too(lesson):
    memory = mulligan.Mulligan(holdout=0.5)
    search = add_search(memory)
    shown = {}
    for _ in range(24):
        with memory.run("reader") as run:
            messages = memory.loop(ScriptedModel("Done."), [search], "Find it.", inject_lessons=300).messages
        shown[run.id] = "top_k=10" in str(messages[0])
    memory.flush()
    store = SqliteStore(load_settings().folder / "mulligan.db")
    assert set(shown.values()) == {True, False}
    for id, is_shown in shown.items():
        history = store.run(DEFAULT_TENANT, id)
        assert history is not None
        assert shown_lessons(history, lesson) == [is_shown]


@pytest.mark.parametrize(
    ("share", "options"),
    [
        (0.0, {}),
        (0.5, {"holdout": False}),
        (0.5, {"tool": {"holdout": False}}),
        (0.5, {"tool": {"destructive": True}}),
    ],
    ids=["setting", "run", "tool", "destructive tool"],
)
def test_lessons_are_not_held_out_where_that_is_excluded(lesson, share, options):
    for prompt, history in play_lessons(lesson, share, 16, **options).values():
        assert "top_k=10" in prompt
        assert shown_lessons(history, lesson) == []


def test_words_of_a_person_are_never_held_out(lesson, types):
    types("lessons", "edit", lesson, "--correction", "Ask for ten: top_k=10 protects the index.")
    types("lessons", "approve", lesson)
    for prompt, history in play_lessons(lesson, 0.5, 16).values():
        assert "protects the index" in prompt
        assert shown_lessons(history, lesson) == []


@pytest.mark.parametrize(
    ("changed", "is_possible"),
    [
        ({}, True),
        ({"followed": MIN_FOLLOWED_RUNS - 1}, False),
        ({"source": "seed"}, False),
        ({"source": "file"}, False),
        ({"edited": True}, False),
        ({"changes": (Change(path="unit", operation="substitute", after="(form) a|upper"),)}, False),
        ({"changes": (Change(path="unit", operation="substitute", after=RUN_SPECIFIC),)}, True),
    ],
    ids=["followed", "rarely followed", "seed", "file", "edited", "form", "value"],
)
def test_which_lessons_may_be_held_out(changed, is_possible):
    fields = {"id": "les_1", "tool": "search", "mistake": "It fails.", "correction": "Ask for ten."}
    learned = {"source": "learned", "followed": MIN_FOLLOWED_RUNS}
    assert can_hold_out_lesson(Lesson(**fields | learned | changed)) is is_possible
