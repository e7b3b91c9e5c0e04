"""Words that a pattern requires, and patterns that users may define."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from mulligan.classify.rules import Rule, providers
from mulligan.classify.rules import words as word_rules
from mulligan.redaction.regex import PatternIndex, compile_user_pattern, iter_repetitions, required_words

BUILT_IN_PATTERNS = [
    rule.pattern
    for module in (providers, word_rules)
    for rules in vars(module).values()
    if isinstance(rules, tuple)
    for rule in rules
    if isinstance(rule, Rule) and rule.pattern
]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("command not found", {"command not found"}),
        (r"\bENOENT\b|no such (?:file|directory)", {"enoent", "no such "}),
        (r"(?:very )?(?:large|long) file(?:name)?s?", {" file"}),
        (r"colou?rs", {"colo"}),
        (r"a+bc{2,3}d*", {"bc"}),
        (r"(?:timeout|deadline) exceeded(?! by design)", {" exceeded"}),
        (r"(?<=not )allowed|\.py:\d+", {"allowed", ".py:"}),
        (r"[a-z]+(?:x|y)*", set()),
        (r"error|\d+", set()),
        (r"(a|b)", {"a", "b"}),
        (r"\{\d{3}\}", {"{"}),
        (r"\u25cf failed|x\x41", {"\u25cf failed", "xa"}),
    ],
)
def test_required_words_are_the_longest_literals_that_no_match_lacks(pattern, words):
    assert set(required_words(pattern)) == words


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.sampled_from(BUILT_IN_PATTERNS).flatmap(lambda pattern: st.tuples(st.just(pattern), st.from_regex(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE | re.ASCII)))))  # fmt: skip
def test_every_match_of_a_built_in_pattern_contains_a_required_word(match):
    pattern, text = match
    words = required_words(pattern)
    assert not words or any(word in text.lower() for word in words)


INDEX = PatternIndex(BUILT_IN_PATTERNS)


def search_all(text: str) -> list[tuple[int, int]]:
    """Return the numbers of the built-in patterns that match, and where, without an index."""
    matches = [re.search(pattern, text, re.IGNORECASE | re.MULTILINE) for pattern in BUILT_IN_PATTERNS]
    return [(number, match.start()) for number, match in enumerate(matches) if match]


@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    st.sampled_from(BUILT_IN_PATTERNS).flatmap(
        lambda pattern: st.from_regex(re.compile(pattern, re.IGNORECASE | re.MULTILINE | re.ASCII))
    ),
    st.sampled_from(["", "Error: ", "\nFAILED tests/a.py::test_b - x", "\u00fc\u2026 ", "\u0130\n"]),
)
def test_an_index_finds_what_a_search_of_each_pattern_finds(match, start):
    text = start + match
    assert list(INDEX.find_starts(text, text.lower())) == search_all(text)


@pytest.mark.parametrize(
    ("pattern", "text", "start"),
    [
        ("no such file|(?:a|the) folder", "THE FOLDER has no such file", 0),
        (r"^[A-Z]{3}\d: \S+|x", "line\nABC1: y", 5),
        (r"[|)]ab|c", "xx|AB", 2),
        (r"\(a\|b\)|\[x]", "a (A|B)", 2),
        (r"\u2716 \d", "\u2716 3", 0),
        ("ab", "xAB", 1),
        ("", "any", 0),
        (r"one .{0,20} two three", "one two three", None),
        (r"FAIL\t\d", "fail 1", None),
    ],
)
def test_an_index_ignores_case_and_returns_the_first_match_of_all_alternatives(pattern, text, start):
    expected = [] if start is None else [(0, start)]
    assert list(PatternIndex([pattern]).find_starts(text, text.lower())) == expected


def test_built_in_patterns_can_be_split_and_searched_in_lower_case():
    assert not [pattern for pattern in BUILT_IN_PATTERNS if re.search(r"\(\?(?:P|[aiLmsux-]+[:)])|\\[1-9]", pattern)]


def test_built_in_patterns_require_words():
    """Without words a pattern would be compiled and searched for every text."""
    assert all(required_words(pattern) for pattern in BUILT_IN_PATTERNS)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "((a+)b)*",
        "(?:a|b+)*",
        "([(]a+)+",
        "(x{300})+",
        "(?i)(a*)*",
        "(?P<n>a+){2,}",
        r"(?:\)+x)+",
        "((a+)+)++",
    ],
)
def test_nested_repetitions_are_refused(pattern):
    with pytest.raises(ValueError, match="nested repetition"):
        compile_user_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(a{1,20})+", "(a++)+", "(?>a+)+", "a+b+", "(a|b)*", "(x+){1,3}", "[a+)]+", r"\(a+\)+", "(a+)?+", "(a{1,3}b)++"],
)
def test_repetitions_that_cannot_explode_are_accepted(pattern):
    assert compile_user_pattern(pattern).pattern == pattern


def test_repetitions_are_read_with_their_limits():
    assert list(iter_repetitions("ab{2,}(c|d)?+")) == [
        ("a", 1, 1), ("b", 2, 1_000_000), ("(", 1, 1), ("c", 1, 1), ("|", 1, 1), ("d", 1, 1), (")", 0, -1),
    ]  # fmt: skip
