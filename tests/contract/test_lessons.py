"""What every Store must do with lessons: made of fixes, kept as words, told with the figures of the moment."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from stores import Writer

from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    SCHEMA_KIND,
    FixQuery,
    ForgetRequest,
    LessonQuery,
    Revocation,
    Store,
    update_schema,
)
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, StoreError, TookEffect
from mulligan.core.records import Lesson, Run, Step, lesson_id, pattern_id

NOW = 100 * DAY
INVALID = Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO)
TOO_MANY = Failure.of(INVALID, "k is 10 at most, got 50", fingerprint="f-k")
UNREADY = Failure.of(Kind("tool", "precondition", Remedy.REPAIR, TookEffect.NO), "not logged in", fingerprint="f-login")


def run(id: str, started: int, **fields: Any) -> Run:
    return Run(id=id, started_at=started, **fields)


def step(seq: int, *, failure: Failure | None = None, **fields: Any) -> Step:
    given: dict[str, Any] = {"name": "search", "outcome": "failure" if failure else "success", **fields}
    return Step(seq=seq, call=seq, failure=failure, **given)


def clamped(id: str, at: int, after: int = 10, **fields: Any) -> list[AnyEvent]:
    """A run in which k=50 was rejected, and the same call with another k worked."""
    shared = {"run": id, "key": "tools:search"}
    return [
        RunStarted(run(id, at, **fields)),
        StepEnded(step(1, arguments={"q": f"cats of {id}", "k": 50}, failure=TOO_MANY, started_at=at, **shared)),
        StepEnded(step(2, arguments={"q": f"cats of {id}", "k": after}, started_at=at + 1, **shared)),
        RunEnded(run(id, at, ended_at=at + 5, end_reason="finished", **fields)),
    ]


def logged_in(id: str, at: int) -> list[AnyEvent]:
    """A run in which a call worked once somebody had logged in."""
    return [
        RunStarted(run(id, at)),
        StepEnded(step(1, run=id, name="send", arguments={"to": "ann"}, failure=UNREADY, started_at=at)),
        StepEnded(step(2, run=id, name="login", arguments={"user": f"user-{id}", "keep": True}, started_at=at + 1)),
        StepEnded(step(3, run=id, name="send", arguments={"to": "ann"}, started_at=at + 2)),
        RunEnded(run(id, at, ended_at=at + 5, end_reason="finished")),
    ]


def given_up(id: str, at: int) -> list[AnyEvent]:
    return [
        RunStarted(run(id, at)),
        StepEnded(step(1, run=id, arguments={"q": "dogs", "k": 70}, failure=TOO_MANY, started_at=at)),
        RunEnded(run(id, at, ended_at=at + 5, end_reason="finished")),
    ]


def prove(write: Writer, runs: int = 8) -> None:
    """Enough runs on enough days for SAFETY S3."""
    for number in range(runs):
        write(*clamped(f"run_{number}", NOW - (10 - number) * DAY, agent=f"agent-{number % 2}"))


def learned(store: Store, **asked: Any) -> list[Lesson]:
    store.consolidate(DEFAULT_TENANT, NOW)
    return store.lessons(DEFAULT_TENANT, LessonQuery(**{"now": NOW, **asked}))


def test_many_repairs_of_one_pattern_become_one_lesson_with_its_evidence(store, write):
    prove(write)

    (lesson,) = learned(store)

    (fix,) = store.fixes(DEFAULT_TENANT, FixQuery(tool="search", now=NOW))
    assert lesson.id == lesson_id("search", fix.id)
    assert (lesson.tool, lesson.fingerprint, lesson.fix_id) == ("search", "f-k", fix.id)
    assert (lesson.pattern, lesson.kind) == (pattern_id("search", "f-k"), "tool/invalid_arguments")
    assert (lesson.trials, lesson.successes, lesson.occurrences) == (8, 8, 8)
    assert lesson.confidence == pytest.approx(0.83, abs=0.01)
    assert lesson.agents == {"agent-0": 4, "agent-1": 4}
    assert (lesson.state, lesson.source, lesson.stale) == ("active", "learned", False)
    assert "k" in lesson.mistake
    assert "k=10" in lesson.correction
    assert (lesson.failing_example, lesson.working_example) == ("search(q=..., k=50)", "search(q=..., k=10)")


def test_a_recipe_becomes_a_lesson_that_names_what_comes_first_and_no_value_of_a_run(store, write):
    for number in range(5):
        write(*logged_in(f"run_{number}", NOW - number * DAY))

    (lesson,) = learned(store)

    assert "login" in lesson.mistake
    assert lesson.correction == "First call login(keep=True, user=...), then send with the same arguments."
    assert lesson.working_example == "login(keep=True, user=...), then send(to=...)"
    assert [ahead.tool for ahead in lesson.prerequisites] == ["login"]
    assert "user-run" not in str(lesson)


def test_what_worked_twice_is_no_lesson(store, write):
    prove(write, runs=2)
    assert learned(store) == []


def test_one_way_out_among_many_is_no_lesson(store, write):
    prove(write)
    (lesson,) = learned(store)
    for number in range(20):
        write(*given_up(f"run_other{number}", NOW - DAY))
    (lesson,) = store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW))
    assert (lesson.state, lesson.reason) == (
        "proposed",
        "its fix succeeded in 8 of 28 runs with this pattern; most recovered otherwise",
    )


def test_what_most_have_to_do_otherwise_never_becomes_a_lesson(store, write):
    for number in range(20):
        write(*given_up(f"run_other{number}", NOW - DAY))
    prove(write)
    assert learned(store) == []


def test_another_value_is_no_lesson(store, write):
    for number in range(4):
        write(*clamped(f"run_{number}", NOW - number * DAY, after=f"text of run {number}"))
    assert learned(store) == []


def test_a_lesson_that_is_not_proven_is_a_proposal_and_says_why(store, write):
    prove(write, runs=3)
    (lesson,) = learned(store)
    assert lesson.state == "proposed"
    assert "needs 5 successful runs" in lesson.reason


def test_consolidation_tells_what_is_new_once(store, write):
    prove(write, runs=3)

    assert [each.state for each in store.consolidate(DEFAULT_TENANT, NOW).lessons] == ["proposed"]
    assert store.consolidate(DEFAULT_TENANT, NOW).lessons == ()

    for number in range(3, 9):
        write(*clamped(f"run_{number}", NOW - (10 - number) * DAY))
    assert [each.state for each in store.consolidate(DEFAULT_TENANT, NOW).lessons] == ["active"]
    assert store.consolidate(DEFAULT_TENANT, NOW).lessons == ()


def test_figures_are_those_of_the_moment(store, write):
    prove(write)
    learned(store)
    write(*given_up("run_late", NOW - 1000))
    (lesson,) = store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW))
    assert (lesson.occurrences, lesson.trials) == (9, 8)


def test_what_was_not_used_for_long_has_expired(store, write):
    prove(write)
    learned(store)
    (lesson,) = store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW + 60 * DAY))
    assert lesson.state == "expired"


def test_what_followed_says_whether_it_helped(store, write):
    prove(write)
    learned(store)
    write(*clamped("run_x", NOW + DAY))
    write(*clamped("run_y", NOW + 2 * DAY))
    write(*given_up("run_z", NOW + 3 * DAY))

    (lesson,) = store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW + 4 * DAY))

    assert lesson.active_since == NOW
    assert (lesson.helped_runs, lesson.unhelped_runs) == (2, 1)
    assert (lesson.stats_before.occurrences, lesson.stats_before.recovered, lesson.stats_before.days) == (8, 8, 10)
    assert (lesson.stats_after.occurrences, lesson.stats_after.recovered, lesson.stats_after.days) == (3, 2, 4)


# Asked for


def test_lessons_are_found_by_what_they_are(store, write):
    prove(write)
    for number in range(5):
        write(*logged_in(f"run_l{number}", NOW - number * DAY))
    both = learned(store)

    def found(**asked: Any) -> list[str]:
        return [each.tool for each in store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW, **asked))]

    assert [each.tool for each in both] == ["search", "send"]  # what is in force comes first
    assert found(tool="send") == ["send"]
    assert found(tool="send", fingerprint="f-k") == []
    assert found(tool="search", fingerprint="f-k") == ["search"]
    assert found(state="active") == ["search"]
    assert found(state="disabled") == []
    assert found(kind="tool/precondition") == ["send"]
    assert sorted(found(kind="tool/")) == ["search", "send"]
    assert found(text="LOGIN") == ["send"]
    assert found(text="k is 10 at most, got 99") == ["search"]
    assert found(text="nothing of the kind") == []
    assert found(source="seed") == []
    assert found(limit=1) == ["search"]
    assert found(limit=0) == []


def test_a_lesson_is_found_by_the_beginning_of_its_id(store, write):
    prove(write)
    (lesson,) = learned(store)
    assert store.lesson(DEFAULT_TENANT, lesson.id[:9], NOW) == lesson
    assert store.lesson(DEFAULT_TENANT, "les_nothing", NOW) is None
    assert store.lesson(DEFAULT_TENANT, "", NOW) is None
    written(store, id="les_" + "0" * 12)
    written(store, id="les_" + "0" * 11 + "1")
    assert store.lesson(DEFAULT_TENANT, "les_0000", NOW) is None
    assert store.lesson(DEFAULT_TENANT, "les_" + "0" * 12, NOW).id == "les_" + "0" * 12


def test_tenants_have_lessons_of_their_own(store, write):
    prove(write)
    (lesson,) = learned(store)
    store.consolidate("others", NOW)
    assert store.lessons("others", LessonQuery(now=NOW)) == []
    assert store.lesson("others", lesson.id, NOW) is None
    assert store.decide_lesson("others", lesson.id, "disable", NOW) is None


# What people say


def written(store: Store, **fields: Any) -> Lesson:
    given = {"id": lesson_id("search", "by hand"), "tool": "search", "mistake": "Too much.", "correction": "Ask less."}
    lesson = Lesson(**{**given, **fields})
    store.save_lesson(DEFAULT_TENANT, lesson)
    found = store.lesson(DEFAULT_TENANT, lesson.id, NOW)
    assert found is not None
    return found


def test_a_lesson_that_a_person_wrote_is_a_proposal_without_evidence(store):
    lesson = written(
        store, state="active", trials=500, successes=500, helped_runs=7, active_since=1, occurrences=9, agents={"a": 1}
    )

    assert (lesson.state, lesson.source, lesson.edited) == ("proposed", "file", True)
    assert (lesson.trials, lesson.successes, lesson.helped_runs, lesson.active_since, lesson.occurrences) == (
        0,
        0,
        0,
        0,
        0,
    )
    assert lesson.agents == {}


def test_a_seed_is_shown_as_one(store):
    assert written(store, source="seed", origin="git 2.43").origin == "git 2.43"
    assert [each.source for each in store.lessons(DEFAULT_TENANT, LessonQuery(source="seed", now=NOW))] == ["seed"]


def test_the_same_words_again_change_nothing(store):
    lesson = written(store)
    assert store.save_lesson(DEFAULT_TENANT, lesson) is False
    assert (
        store.save_lesson(DEFAULT_TENANT, Lesson(id=lesson.id, tool="search", mistake="Other.", correction="Ask less."))
        is True
    )


def test_what_was_approved_are_the_words_it_had_and_with_others_it_is_a_proposal_again(store):
    lesson = written(store)
    assert store.decide_lesson(DEFAULT_TENANT, lesson.id, "approve", NOW).state == "active"
    assert written(store).state == "active", "the same words"

    assert written(store, correction="Obey the file.").state == "proposed"

    assert store.decide_lesson(DEFAULT_TENANT, lesson.id, "approve", NOW).state == "active"
    store.decide_lesson(DEFAULT_TENANT, lesson.id, "disable", NOW)
    assert written(store, correction="Obey another.").state == "disabled"


def test_words_that_a_person_changed_stay_and_their_evidence_too(store, write):
    prove(write, runs=3)
    (lesson,) = learned(store)
    store.save_lesson(
        DEFAULT_TENANT, Lesson(id=lesson.id, tool="x", mistake="Asking for too many.", correction="At most ten.")
    )
    for number in range(3, 9):
        write(*clamped(f"run_{number}", NOW - (10 - number) * DAY))

    (changed,) = learned(store)

    assert (changed.mistake, changed.correction, changed.edited) == ("Asking for too many.", "At most ten.", True)
    assert (changed.tool, changed.fix_id, changed.successes, changed.state) == ("search", lesson.fix_id, 9, "active")


@pytest.mark.parametrize(
    "bad", [{"mistake": " "}, {"correction": "\x1b[2J"}, {"id": "les_x"}, {"id": "fix_0123456789ab"}]
)
def test_words_that_say_nothing_are_refused(store, bad):
    given = {"id": "les_0123456789ab", "tool": "search", "mistake": "m", "correction": "c", **bad}
    with pytest.raises(StoreError):
        store.save_lesson(DEFAULT_TENANT, Lesson(**given))
    assert store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW)) == []


def test_what_is_kept_can_be_shown(store):
    lesson = written(store, mistake="a\x1b[31mb\u202ec<d>|", correction="one\r\ntwo\x00\n\n\n\nthree  ")
    assert lesson.mistake == "abc\u2039d\u203a\u00a6"
    assert lesson.correction == "one\ntwo\n\nthree"


def test_a_person_puts_a_lesson_in_force_and_out_of_it(store):
    lesson = written(store)

    approved = store.decide_lesson(DEFAULT_TENANT, lesson.id[:10], "approve", NOW)
    assert (approved.state, approved.active_since) == ("active", NOW)
    disabled = store.decide_lesson(DEFAULT_TENANT, lesson.id, "disable", NOW + 1)
    assert (disabled.state, disabled.active_since) == ("disabled", 0)
    assert store.decide_lesson(DEFAULT_TENANT, lesson.id, "approve", NOW + 2).state == "active"
    assert store.decide_lesson(DEFAULT_TENANT, "les_other", "approve", NOW) is None


def test_approval_of_a_lesson_is_the_approval_of_its_fix(store, write):
    prove(write, runs=3)
    (lesson,) = learned(store)
    assert store.decide_lesson(DEFAULT_TENANT, lesson.id, "approve", NOW).state == "active"
    (fix,) = store.fixes(DEFAULT_TENANT, FixQuery(tool="search", now=NOW))
    assert (fix.id, fix.state) == (lesson.fix_id, "approved")


def test_lesson_of_which_nothing_may_be_told_to_a_model_is_none(store, write):
    """The value was corrected in the same call only: that may be a coincidence."""
    for number in range(8):
        events = clamped(f"run_{number}", NOW - (10 - number) * DAY)
        same = [
            StepEnded(msgspec.structs.replace(event.step, arguments={**event.step.arguments, "q": "cats"}))
            if isinstance(event, StepEnded)
            else event
            for event in events
        ]
        write(*same)
    (fix,) = store.fixes(DEFAULT_TENANT, FixQuery(tool="search", now=NOW))
    assert (fix.successes, fix.showable) == (8, False)
    assert learned(store) == []


def test_a_revoked_lesson_takes_its_fix_with_it_and_a_revoked_fix_its_lesson(store, write):
    prove(write)
    (lesson,) = learned(store)
    assert store.decide_lesson(DEFAULT_TENANT, lesson.id, "revoke", NOW).state == "disabled"
    (fix,) = store.fixes(DEFAULT_TENANT, FixQuery(tool="search", now=NOW))
    assert fix.state == "revoked"

    store.decide_lesson(DEFAULT_TENANT, lesson.id, "approve", NOW + 5)
    store.decide(DEFAULT_TENANT, fix.id, approved=False, at=NOW + 10)
    assert store.lesson(DEFAULT_TENANT, lesson.id, NOW + 11).state == "disabled"


def test_what_rests_on_somebody_who_was_revoked_is_gone_at_once(store, write):
    prove(write)
    learned(store)
    store.revoke(DEFAULT_TENANT, Revocation(tool="search"))
    assert store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW)) == []
    assert learned(store) == []


def test_a_lesson_is_stale_once_its_tool_has_another_schema(store, write):
    prove(write)
    (lesson,) = learned(store)
    first = update_schema(None, "digest-1", NOW)
    store.put(DEFAULT_TENANT, SCHEMA_KIND, "search", first)
    assert store.lesson(DEFAULT_TENANT, lesson.id, NOW + 2).state == "active"

    store.put(DEFAULT_TENANT, SCHEMA_KIND, "search", update_schema(first, "digest-2", NOW + DAY))

    (stale,) = store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW + 2 * DAY))
    assert (stale.state, stale.stale) == ("proposed", True)
    assert "schema" in stale.reason
    again = store.decide_lesson(DEFAULT_TENANT, lesson.id, "approve", NOW + 2 * DAY)
    assert (again.state, again.stale) == ("active", False)


# Forgotten


def test_a_forgotten_tool_takes_the_lessons_that_name_it(store, write):
    for number in range(3):
        write(*logged_in(f"run_{number}", NOW - number * DAY))
    learned(store)
    written(store, tool="login")
    written(store, id="les_" + "1" * 12, tool="other")

    store.forget(DEFAULT_TENANT, ForgetRequest(tool="login"))

    assert [each.tool for each in learned(store)] == ["other"]


def test_a_forgotten_text_is_gone_from_lessons(store):
    written(store, mistake="What the canary-word says.")
    store.forget(DEFAULT_TENANT, ForgetRequest(text="canary-word"))
    assert store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW)) == []


def test_lessons_of_forgotten_runs_are_made_anew_of_what_is_left(store, write):
    prove(write, runs=4)
    learned(store)
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_2"))
    (lesson,) = learned(store)
    assert (lesson.trials, lesson.occurrences) == (3, 3)
    store.forget(DEFAULT_TENANT, ForgetRequest(run="run_1"))
    assert learned(store) == []


def seed(correction: str = "Do it so.", **fields: Any) -> Lesson:
    """As it comes with a version of mulligan."""
    about = {"id": lesson_id("seed", "a"), "tool": "Bash", "mistake": "Doing it.", "source": "seed", "origin": "a"}
    return Lesson(**(about | fields), correction=correction)


def test_a_newer_seed_takes_the_place_of_an_older_one_and_what_was_said_of_it_stays(store):
    assert store.save_lesson(DEFAULT_TENANT, seed())
    assert not store.save_lesson(DEFAULT_TENANT, seed())
    assert store.decide_lesson(DEFAULT_TENANT, seed().id, "disable", NOW).state == "disabled"
    assert store.save_lesson(DEFAULT_TENANT, seed("Do it better.", kind="tool/timeout"))
    (kept,) = store.lessons(DEFAULT_TENANT, LessonQuery(source="seed", now=NOW))
    assert (kept.correction, kept.kind, kept.state, kept.edited) == ("Do it better.", "tool/timeout", "disabled", False)


def test_a_newer_seed_does_not_overwrite_what_a_person_wrote(store):
    store.save_lesson(DEFAULT_TENANT, seed())
    assert store.save_lesson(DEFAULT_TENANT, seed("Do it our way.", edited=True))
    assert not store.save_lesson(DEFAULT_TENANT, seed("Do it better."))
    assert store.lesson(DEFAULT_TENANT, seed().id, NOW).correction == "Do it our way."


def test_seeds_are_proposals_without_evidence_until_a_person_approves_them(store):
    store.save_lesson(DEFAULT_TENANT, seed(trials=9, successes=9, state="active"))
    kept = store.lesson(DEFAULT_TENANT, seed().id, NOW)
    assert (kept.state, kept.trials, kept.successes, kept.confidence) == ("proposed", 0, 0, 0)
    assert store.fixes(DEFAULT_TENANT, FixQuery(now=NOW)) == []


def test_lessons_of_one_source_can_be_removed_and_no_others(store):
    other = Lesson(id=lesson_id("file", "b"), tool="Bash", mistake="Doing it.", correction="Not.", source="file")
    for each in (seed(), other):
        store.save_lesson(DEFAULT_TENANT, each)
    assert store.remove_lessons(DEFAULT_TENANT, "seed") == 1
    assert [each.id for each in store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW))] == [other.id]
    assert store.remove_lessons(DEFAULT_TENANT, "seed") == 0
