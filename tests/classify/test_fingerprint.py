"""The same failure again: what is masked may change, what is kept may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.classify.fingerprint import MAX_TEMPLATE_CHARS, build_template, compute_fingerprint

KIND = "tool/not_found"


def same(one: str, other: str, first: dict[str, object] | None = None, second: dict[str, object] | None = None) -> bool:
    return compute_fingerprint(KIND, "t", one, first) == compute_fingerprint(KIND, "t", other, second or first)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Order 17 not found", "Order 4711 not found"),
        ("Order #W123 not found", "Order #W99887 not found"),
        ("User 'Ann' not found", "User 'Bob Miller' not found"),
        ("no file /home/ann/a.txt", "no file /var/tmp/deep/er/b.csv"),
        ("cannot read notes.txt", "cannot read report.pdf"),
        ("at 2026-01-02T03:04:05Z it broke", "at 2025-12-31 23:59:59 it broke"),
        ("request 3f2a8c1e-0b1d-4c5e-9f00-aabbccddeeff failed", "request 00000000-1111-2222-3333-444455556666 failed"),
        ("commit 3f2a8c1 is gone", "commit deadbe7f00 is gone"),
        ("host 10.0.0.1:80 is down", "host 192.168.17.4:8080 is down"),
        ("see https://a.example/x?y=1", "see http://b.example/"),
        ("mail to ann@example.org bounced", "mail to bob.m@example.com bounced"),
        ("values 'a', 'b' are odd", "values 'a', 'b', 'c', 'd' are odd"),
        ("took 3.2s", "took 17s"),
        ("run_8f2c failed", "run_0a1b failed"),
        ("busy (request id req_4f40c7)", "busy (request id req_efaaeb)"),
        ("busy, trace_id=fadeca", "busy, trace_id=decadefa"),
        ("no user with id: ann_miller", "no user with id: bob_smith"),
    ],
)
def test_what_changes_from_run_to_run_is_masked(one: str, other: str) -> None:
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("error[E0308]: mismatched", "error[E0382]: mismatched"),
        ("ORA-00942: no", "ORA-00001: no"),
        ("error TS2322: no", "error TS2304: no"),
        ("HTTP 404", "HTTP 500"),
        ("status code 401", "status code 403"),
        ("404 Not Found", "410 Gone"),
        ("[Errno 2] no", "[Errno 13] no"),
        ("exit code 1", "exit code 127"),
        ("top_k must be <= 10, got 50", "top_k must be <= 20, got 50"),
        ("at most 5 items", "at most 50 items"),
        ("maximum context length is 8192 tokens", "maximum context length is 64000 tokens"),
        ("must be between 1 and 10", "must be between 1 and 100"),
        ("unexpected keyword argument 'folder'", "unexpected keyword argument 'path'"),
        ("'city' is a required property", "'date' is a required property"),
        ("not found", "not allowed"),
        ("the id is missing", "the id was unexpected"),
        ("id required", "id invalid"),
    ],
)
def test_codes_limits_and_the_names_of_arguments_are_kept(one: str, other: str) -> None:
    assert not same(one, other)


def test_a_limit_is_kept_and_what_was_asked_for_is_masked() -> None:
    assert same("top_k must be <= 10, got 50", "top_k must be <= 10, got 999")
    assert build_template("top_k must be <= 10, got 50") == "top_k must be <= 10, got <n>"


def test_the_calls_own_values_are_masked_wherever_they_stand() -> None:
    assert same(
        "No flights from Paris today", "No flights from New York today", {"city": "Paris"}, {"city": "New York"}
    )


def test_the_calls_own_names_are_kept_even_in_quotes() -> None:
    one = compute_fingerprint(KIND, "t", 'bad "city"', {"city": "x1", "date": "y1"})
    other = compute_fingerprint(KIND, "t", 'bad "date"', {"city": "x1", "date": "y1"})
    assert one != other


def test_an_argument_that_is_a_common_word_does_not_eat_the_sentence() -> None:
    assert same("file not found", "file not found", {"name": "file"}, {"name": "other"})


def test_kind_and_tool_are_part_of_it() -> None:
    assert compute_fingerprint(KIND, "a", "x") != compute_fingerprint(KIND, "b", "x")
    assert compute_fingerprint(KIND, "a", "x") != compute_fingerprint("tool/timeout", "a", "x")


def test_it_names_its_version() -> None:
    assert compute_fingerprint(KIND, "a", "x").startswith("3:")


WORDS = st.lists(
    st.sampled_from("the order was refused by our server because it broke".split()), min_size=1, max_size=8
)


@given(WORDS, st.integers(0, 10**9), st.integers(0, 10**9), st.uuids(), st.uuids())
def test_it_is_stable_under_change_of_masked_parts(words: list[str], n: int, m: int, u: object, v: object) -> None:
    said = " ".join(words)
    assert same(f"{said} number {n} id {u}", f"{said} number {m} id {v}")


@given(WORDS, WORDS)
def test_it_changes_with_the_words(words: list[str], others: list[str]) -> None:
    one, other = " ".join(words), " ".join(others)
    assert same(one, other) == (one == other)


@given(st.text(max_size=3_000), st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=5))
def test_any_text_has_one_of_bounded_size(text: str, arguments: dict[str, str]) -> None:
    assert len(build_template(text, arguments)) <= MAX_TEMPLATE_CHARS
    assert compute_fingerprint(KIND, None, text, arguments) == compute_fingerprint(KIND, None, text, arguments)


def test_where_a_compiler_points_belongs_to_the_file():
    assert same("lib/tree.go:42:24: undefined: x", "lib/other/state.go:1110:2: undefined: x")
    assert build_template("main.c:7: error: 3 arguments") == build_template("deep/er/list.c:11:59: error: 3 arguments")


def test_a_person_may_refuse_a_call_in_any_words():
    assert compute_fingerprint("none/user_rejected", "edit", "no, stop") == compute_fingerprint(
        "none/user_rejected", "edit", "not now"
    )
    assert compute_fingerprint("none/user_rejected", "edit", "no") != compute_fingerprint(
        "none/cancelled", "edit", "no"
    )


@given(
    st.text("abez14@:/\\#_ .,;()=-'\"`[]~<>\n\u0130\u017f", max_size=60)
    | st.lists(
        st.sampled_from("the error id abcdef deadbeef E1234 sqlstate 42000 , ; ) ( : = a_b x-1 file.py c: / '".split()),
        max_size=12,
    ).map(" ".join),
    st.sampled_from(["https://x.org/a", "a@b.org", "2026-01-02", "#7", "SQLSTATE HY000", "id abcdef ", "Error E42: x"]),
)
def test_leaving_out_what_a_text_cannot_hold_changes_nothing(text, part):
    import re

    from mulligan.classify import fingerprint as module

    for given_text in (text, f"{text} {part}", f"{part}{text}"):
        whole = re.compile(module.TOKEN_PATTERNS, re.IGNORECASE | re.VERBOSE)
        some = re.compile(module.token_pattern_for(given_text), re.IGNORECASE | re.VERBOSE)
        assert [(m.lastgroup, m.span()) for m in whole.finditer(given_text)] == [
            (m.lastgroup, m.span()) for m in some.finditer(given_text) if m.lastgroup != "plain"
        ]
