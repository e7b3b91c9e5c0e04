"""A classifier that has heard the same before says what one would that has heard nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mulligan.classify.cache import MAX_CACHED_FAILURES, MAX_CACHED_TEXT_CHARS
from mulligan.classify.classifier import Classifier

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

    assert len(classifier._cache._entries) <= MAX_CACHED_FAILURES
