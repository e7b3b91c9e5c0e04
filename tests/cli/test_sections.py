"""A marked section in a file that people write: put there, kept up to date, and nothing else touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.cli.prompt import BEGIN, END, replace_section
from mulligan.core.failure import SettingsError

ANY = st.text(st.characters(codec="utf-8") | st.sampled_from("\r\n<!->`# "), max_size=200)


def put(text, body="what helped"):
    return replace_section(text, body, "AGENTS.md")


def test_an_empty_file_holds_the_section_alone():
    assert put("") == f"{BEGIN}\nwhat helped\n{END}\n"


def test_a_section_is_added_after_what_people_wrote_with_a_line_between():
    assert put("# Ours\nRun make.") == f"# Ours\nRun make.\n\n{BEGIN}\nwhat helped\n{END}\n"
    assert put("# Ours\n") == f"# Ours\n\n{BEGIN}\nwhat helped\n{END}\n"
    assert put("# Ours\n\n") == f"# Ours\n\n{BEGIN}\nwhat helped\n{END}\n"


def test_a_section_is_replaced_where_it_stands():
    before = f"# Ours\n\n{BEGIN}\nold\nolder\n{END}\n\n## More of ours"

    assert put(before) == f"# Ours\n\n{BEGIN}\nwhat helped\n{END}\n\n## More of ours"


def test_marks_with_other_words_in_them_are_ours_too():
    assert put("<!-- mulligan:begin -->\nold\n  <!--mulligan:end-->") == f"{BEGIN}\nwhat helped\n{END}"


def test_a_section_has_the_line_endings_of_its_file():
    assert put("# Ours\r\n") == f"# Ours\r\n\r\n{BEGIN}\r\nwhat helped\r\n{END}\r\n"
    assert put(f"a\n{BEGIN}\r\nold\r\n{END}\r\nb\n") == f"a\n{BEGIN}\r\nwhat helped\r\n{END}\r\nb\n"


@given(ANY, ANY, st.sampled_from(["\n", "\r\n"]))
def test_whatever_stands_around_it_stays_byte_for_byte_and_twice_is_once(before, after, ending):
    first = put(f"{before}{ending}{BEGIN}{ending}old{ending}{END}{ending}{after}", "one\ntwo")

    assert first == f"{before}{ending}{BEGIN}{ending}one{ending}two{ending}{END}{ending}{after}"
    assert put(first, "one\ntwo") == first


@given(ANY)
def test_adding_it_keeps_the_beginning_and_twice_is_once(text):
    first = put(text)

    assert first.startswith(text)
    assert put(first) == first


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{BEGIN}\nold\n", "(mulligan:begin in line 1)"),
        (f"a\nb\n{END}\n", "(mulligan:end in line 3)"),
        (f"{END}\n{BEGIN}\n", "(mulligan:end in line 1, mulligan:begin in line 2)"),
        (f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n", "mulligan:begin in line 3, mulligan:end in line 4"),
        (f"{BEGIN}\n{END}\n{END}\n", "mulligan:end in line 2, mulligan:end in line 3"),
        (f"words {BEGIN}\n{END}\n", "line 1"),
        (f"{BEGIN} words\n{END}\n", "line 1"),
        (f"{BEGIN}\n<!-- mulligan:end\n", "line 2"),
        (f"{BEGIN}{END}\n", "line 1"),
    ],
)
def test_damaged_or_doubled_marks_are_refused_with_their_line(text, why):
    with pytest.raises(SettingsError) as told:
        put(text)

    assert str(told.value).startswith("AGENTS.md: ")
    assert why in str(told.value)
    assert "nothing was changed" in str(told.value)


def test_a_section_cannot_hold_its_own_marks():
    with pytest.raises(ValueError, match="its own marks"):
        put("", f"words\n{END}\nmore")
