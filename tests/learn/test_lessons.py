"""What a lesson says, of what it is made, and who may put words into it."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mulligan.contract.store import DAY, DEFAULT_TENANT, LessonQuery
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import (
    LAST_PATH_SEGMENT,
    RUN_SPECIFIC,
    Change,
    Fix,
    Lesson,
    Pattern,
    Prerequisite,
    Run,
    Step,
)
from mulligan.learn import lessons
from mulligan.prompt import Prompt
from mulligan.store.sqlite import SqliteStore

WORDS = Prompt()
PATTERN = Pattern(
    id="pat_1", tool="search", fingerprint="f", kind="tool/invalid_arguments", template="k is <n> at most"
)
NOW = 100 * DAY


def fix(*changes: Change, **fields) -> Fix:
    first = fields.get("prerequisites", ())
    about = {"type": "prerequisite" if first else "change", "trials": 9, "successes": 9, "showable": True, **fields}
    return Fix(id="fix_1", tool="search", fingerprint="f", changes=changes, **about)


def worded(*changes: Change, arguments=None, **fields) -> Lesson:
    return lessons.build_lesson(fix(*changes, **fields), PATTERN, arguments, WORDS)


@pytest.mark.parametrize(
    ("change", "correction"),
    [
        (Change(path="k", operation="clamp", after=10), "Use k=10."),
        (Change(path="k", operation="clamp", after=10, bound="at most"), "Pass k of at most 10."),
        (Change(path="k", operation="substitute", after=3, bound="at least"), "Pass k of at least 3."),
        (Change(path="k", operation="substitute", after=True), "Use k=True."),
        (Change(path="topk", operation="rename", after="top_k"), "Rename topk to top_k."),
        (Change(path="k", operation="cast", after="integer"), "Pass k as an integer."),
        (Change(path="tags", operation="wrap"), "Pass tags as a list."),
        (Change(path="filters", operation="parse"), "Pass filters as a JSON value, not as a string."),
        (
            Change(path="file", operation="trim", after=LAST_PATH_SEGMENT),
            "Pass only the last part of the path as file.",
        ),
        (Change(path="unit", operation="enum", after="celsius"), "Use another allowed value for unit."),
    ],
)
def test_a_correction_says_what_to_do(change, correction):
    assert worded(change).correction == correction


@pytest.mark.parametrize(("bound", "mistake"), [("at most", "k above 10"), ("at least", "k below 10")])
def test_mistake_of_a_bound_names_the_bound(bound, mistake):
    lesson = worded(Change(path="k", operation="substitute", after=10, bound=bound))
    assert lesson.mistake == f"Calling search with {mistake} fails with tool/invalid_arguments."


def test_what_comes_first_is_told_with_what_is_constant_in_it():
    ahead = Prerequisite(tool="login", arguments={"keep": True}, variable_arguments=("user", "password"))
    lesson = worded(prerequisites=(ahead,), arguments={"q": "cats"})
    assert lesson.mistake == "Calling search before login fails with tool/invalid_arguments."
    assert lesson.correction == "First call login(keep=True, user=..., password), then search with the same arguments."
    assert lesson.working_example == "login(keep=True, user=..., password), then search(q=...)"


def test_value_that_a_prerequisite_supplies_is_told_as_its_value():
    change = Change(path="upload_id", operation="substitute", after=RUN_SPECIFIC, source="run")
    lesson = worded(change, prerequisites=(Prerequisite(tool="begin_upload", arguments={}),))
    assert lesson.correction == "First call begin_upload(), then search with its upload_id."


def test_an_example_is_the_same_call_before_and_after():
    changes = (Change(path="topk", operation="rename", after="k"), Change(path="n", operation="clamp", after=5))
    lesson = worded(*changes, arguments={"topk": 7, "n": 50, "q": "cats"})
    assert lesson.failing_example == "search(topk=7, n=50, q=...)"
    assert lesson.working_example == "search(k=7, n=5, q=...)"


@pytest.mark.parametrize(
    ("given", "is_worth"),
    [
        (fix(Change(path="k", operation="clamp", after=10)), True),
        (fix(Change(path="k", operation="substitute", after=RUN_SPECIFIC)), False),
        (fix(Change(path="k", operation="drop")), False),
        (fix(Change(path="k", operation="clamp", after=10), type="retry"), False),
        (fix(Change(path="k", operation="clamp", after=10), successes=2, trials=2), False),
        (fix(Change(path="k", operation="clamp", after=10), successes=4, trials=9), False),
        (fix(Change(path="k", operation="clamp", after=10), state="revoked"), False),
        (fix(Change(path="k", operation="clamp", after=10), showable=False), False),
        (fix(Change(path="k", operation="clamp", after=10), showable=False, state="approved"), False),
    ],
    ids=["a value", "another value", "left out", "again", "twice", "seldom", "taken back", "untold", "untold for all"],
)
def test_only_what_says_something_and_works_is_worth_a_lesson(given, is_worth):
    assert lessons.qualifies_as_lesson(given, pattern_runs=9) is is_worth


texts = st.text(st.characters(codec="utf-8"), max_size=20).map(lambda text: f"canary {text}")
values = texts | st.lists(texts, max_size=2) | st.dictionaries(texts, texts, max_size=2)


@settings(deadline=None, max_examples=150)
@given(
    arguments=st.dictionaries(st.sampled_from(["q", "k", "to"]), values, max_size=3),
    after=values,
    how=st.sampled_from(["substitute", "enum", "clamp", "default", "trim", "parse", "drop"]),
    ahead=st.dictionaries(st.sampled_from(["user", "text"]), values, max_size=2),
    message=st.text(max_size=200),
)
def test_no_text_of_a_run_is_in_the_words_of_a_lesson(arguments, after, how, ahead, message):
    about = Pattern(id="pat_1", tool="search", fingerprint="f", kind="tool/x", template=message.replace("canary", ""))
    first = (Prerequisite(tool="login", arguments=ahead),) if ahead else ()
    made = fix(Change(path="k", operation=how, before=after, after=after), prerequisites=first)
    lesson = lessons.build_lesson(made, about, arguments, WORDS)
    for text in (
        lesson.mistake,
        lesson.correction,
        lesson.failing_example,
        lesson.working_example,
        lesson.error,
        *lesson.changes,
    ):
        assert "canary" not in str(text)


@settings(deadline=None, max_examples=150)
@given(text=st.text(max_size=1500))
def test_what_is_presentable_stays_so(text):
    shown = lessons.sanitize_lesson_text(text)
    assert lessons.sanitize_lesson_text(shown) == shown
    assert len(shown) <= lessons.MAX_TEXT_CHARS + 40
    hidden = ("Cc", "Cf", "Cs", "Co", "Cn")
    assert all(unicodedata.category(character) not in hidden or character == "\n" for character in shown)


# A model's words

LESSON = worded(Change(path="k", operation="clamp", after=10), arguments={"k": 50})


@pytest.mark.parametrize(
    "answer",
    [
        "Mistake: Too many results are asked for.\nCorrection: Keep k=10.",
        "mistake: Too many.\n\ncorrection: Use k=10, and never k=50.",
    ],
)
def test_a_model_may_choose_the_words(answer):
    changed = lessons.reword_lesson(LESSON, lambda request: answer, WORDS)
    assert changed is not None
    assert "k=10" in changed.correction
    assert (changed.changes, changed.failing_example, changed.id) == (LESSON.changes, LESSON.failing_example, LESSON.id)


@pytest.mark.parametrize(
    "correction",
    ["Use k=11.", "Use k=10 and n.", "Use k=10, see http://x.example.", "Use k=10 or `all`.", 'Use k=10 with "force".',
     "Use k=10 and --yes.", "Use k=10 and maxResults.", "Use k=10 as os.environ says.", "Ask for less.", "",
     "Use k=10 " + "and so on " * 500],
)  # fmt: skip
def test_a_model_is_never_the_source_of_a_value(correction):
    answer = f"Mistake: Too many.\nCorrection: {correction}"
    if correction == "Use k=10 and n.":  # a plain word is a word
        assert lessons.reword_lesson(LESSON, lambda request: answer, WORDS) is not None
    else:
        assert lessons.reword_lesson(LESSON, lambda request: answer, WORDS) is None


@pytest.mark.parametrize("answer", [None, 7, "", "Correction: Use k=10.", "x" * 100_000])
def test_an_answer_that_is_none_changes_nothing(answer):
    assert lessons.reword_lesson(LESSON, lambda request: answer, WORDS) is None


# Only what has changed


def batch(pattern: int, number: int) -> list[AnyEvent]:
    id, at = f"run_{pattern}_{number}", NOW - 20 * DAY + number * DAY // 10
    kind = Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO)
    failure = Failure.of(kind, "k is too large", fingerprint=f"f{pattern}")
    shared = {"run": id, "name": "search", "started_at": at}
    return [
        RunStarted(Run(id=id, started_at=at)),
        StepEnded(Step(seq=1, call=1, arguments={"k": 50, "q": id}, outcome="failure", failure=failure, **shared)),
        StepEnded(Step(seq=2, call=2, arguments={"k": 10, "q": id}, **shared)),
        RunEnded(Run(id=id, started_at=at, ended_at=at, end_reason="finished")),
    ]


def test_only_patterns_of_which_the_record_has_changed_much_are_looked_at(tmp_path: Path):
    store = SqliteStore(tmp_path / "a.db")
    for pattern in range(20):
        for number in range(40):
            store.append(DEFAULT_TENANT, batch(pattern, number), f"journal_{pattern}_{number}", 1)
    assert store.consolidate(DEFAULT_TENANT, NOW).patterns == 20
    assert store.consolidate(DEFAULT_TENANT, NOW).patterns == 0

    for pattern in range(20):
        store.append(DEFAULT_TENANT, batch(pattern, 41), f"journal_{pattern}_41", 1)
    store.append(DEFAULT_TENANT, batch(99, 1), "journal_99", 1)

    assert store.consolidate(DEFAULT_TENANT, NOW).patterns == 1  # the new one: one more of forty is no news
    told = store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW, limit=100))
    assert [(each.successes, each.occurrences) for each in told] == [(41, 41)] * 20  # and counted all the same
    store.close()


def test_a_bounded_round_leaves_the_rest_for_the_next(tmp_path: Path):
    store = SqliteStore(tmp_path / "a.db")
    for pattern in range(7):
        for number in range(3):
            store.append(DEFAULT_TENANT, batch(pattern, number), f"journal_{pattern}_{number}", 1)
    told: list[tuple[int, int]] = []
    done = store.consolidate(DEFAULT_TENANT, NOW, lambda *each: told.append(each), max_patterns=5)
    assert (done.patterns, done.remaining, len(done.lessons)) == (5, 2, 5)
    assert told == [(5, 5)]
    assert store.consolidate(DEFAULT_TENANT, NOW).patterns == 2
    assert len(store.lessons(DEFAULT_TENANT, LessonQuery(now=NOW))) == 7
    store.close()
