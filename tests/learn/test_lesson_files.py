"""Lessons as files: what is written is read back, whatever it says, and what is no lesson is refused with its line."""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from mulligan.core.failure import LessonFileError
from mulligan.core.records import Change, Lesson, Prerequisite
from mulligan.learn import lesson_files, lessons

LESSON = Lesson(
    id="les_0123456789ab",
    tool="search",
    kind="tool/invalid_arguments",
    fingerprint="f1",
    fix_id="fix_0123456789ab",
    mistake="Asking for more than ten.",
    correction="Use k=10.",
    error="k is 10 at most",
    failing_example="search(q=..., k=50)",
    working_example="search(q=..., k=10)",
    changes=(Change(path="k", operation="clamp", after=10),),
    prerequisites=(Prerequisite(tool="login", arguments={"keep": True}, variable_arguments=("user",)),),
    source="learned",
)
TEXT = """+++
id = "les_0123456789ab"
tool = "search"
kind = "tool/invalid_arguments"
fingerprint = "f1"
fix_id = "fix_0123456789ab"
source = "learned"
base_digest = "%s"

[[changes]]
path = "k"
operation = "clamp"
after = 10

[[prerequisites]]
tool = "login"
arguments = { "keep" = true }
variable_arguments = ["user"]
+++

# Mistake

Asking for more than ten.

# Correction

Use k=10.

# Error

    k is 10 at most

# Failing example

    search(q=..., k=50)

# Working example

    search(q=..., k=10)
""" % lesson_files.digest_texts(LESSON)  # noqa: UP031 - braces in it


def again(lesson: Lesson) -> Lesson:
    return lesson_files.parse_lesson_file(lesson_files.render_lesson_file(lesson).encode(), "a.md").lesson


def normal(lesson: Lesson) -> Lesson:
    """What of a lesson is in its file: its words and its form."""
    texts = {name: lessons.sanitize_lesson_text(getattr(lesson, name)) for name in lessons.TEXT_FIELDS}
    names = ("tool", "kind", "fingerprint", "fix_id", "origin")
    lines = {name: lessons.sanitize_line(getattr(lesson, name)) for name in names}
    return Lesson(
        id=lesson.id,
        **texts,
        **lines,
        changes=lesson.changes,
        prerequisites=lesson.prerequisites,
        source=lesson.source,
        edited=True,
    )


def test_a_lesson_is_a_file_that_people_can_read():
    assert lesson_files.render_lesson_file(LESSON) == TEXT


def test_a_file_is_the_lesson_it_was_made_of():
    found = lesson_files.parse_lesson_file(TEXT.encode(), "a.md")
    assert found.lesson == normal(LESSON)
    assert found.base_digest == lesson_files.digest_texts(LESSON)


def test_its_name_does_not_change_with_its_words():
    other = msgspec.structs.replace(LESSON, mistake="Else.", correction="Else.", successes=7)
    assert lesson_files.build_file_name(LESSON) == lesson_files.build_file_name(other) == (
        "search--invalid-arguments--les_0123456789ab.md"
    )  # fmt: skip


@pytest.mark.parametrize("tool", ["../../etc/passwd", "a/b", "C:\\x", "-rf", "", "ünï", "a" * 500, "..", "\n"])
def test_a_name_never_leaves_its_folder(tool, tmp_path):
    name = lesson_files.build_file_name(msgspec.structs.replace(LESSON, tool=tool))
    assert (tmp_path / name).parent == tmp_path
    assert name.isascii()
    assert not name.startswith((".", "-"))
    assert len(name) < 120


def test_figures_are_told_and_not_read_back():
    proven = msgspec.structs.replace(
        LESSON, trials=9, successes=8, occurrences=12, agents={"a": 1, "b": 2}, state="active"
    )
    text = lesson_files.render_lesson_file(proven)
    assert 'evidence = "active, succeeded in 8 of 9 runs; 12 occurrences by 2 agents"\n' in text
    assert again(proven) == normal(LESSON)


scalars = st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=200) | st.text("# \\-:\n\t\"'ab`{}", max_size=60)
keys = texts.filter(lambda text: text != "null")
lines = st.text(max_size=60) | st.text('": #\\-ab', max_size=20)
values = st.recursive(
    st.none() | scalars | lines,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("null") | lines, inner, max_size=2),
    max_leaves=6,
)
operations = st.sampled_from(["cast", "rename", "drop", "clamp", "substitute"])
forms = st.builds(Change, path=lines, operation=operations, before=values, after=values)
aheads = st.builds(
    Prerequisite,
    tool=lines,
    arguments=st.dictionaries(lines, values, max_size=3),
    variable_arguments=st.lists(lines).map(tuple),
)


@settings(deadline=None, max_examples=300)
@given(
    words=st.fixed_dictionaries(dict.fromkeys(lessons.TEXT_FIELDS, texts)),
    about=st.fixed_dictionaries(dict.fromkeys(("tool", "kind", "fingerprint", "fix_id", "origin"), lines)),
    changes=st.lists(forms, max_size=4).map(tuple),
    first=st.lists(aheads, max_size=3).map(tuple),
)
def test_whatever_a_lesson_says_is_read_back(words, about, changes, first):
    lesson = Lesson(id="les_0123456789ab", **words, **about, changes=changes, prerequisites=first, source="seed")
    wanted = normal(lesson)
    if not wanted.mistake or not wanted.correction:
        with pytest.raises(LessonFileError, match=r"a\.md:\d+: "):
            again(lesson)
        return
    assert again(lesson) == wanted
    assert lesson_files.render_lesson_file(again(lesson)) == lesson_files.render_lesson_file(lesson)
    assert lesson_files.digest_texts(again(lesson)) == lesson_files.digest_texts(lesson)


@settings(deadline=None)
@given(st.recursive(scalars | texts, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=8))
def test_a_value_is_written_as_toml(value):
    assert repr(tomllib.loads(f"x = {lesson_files.render_toml(value)}")["x"]) == repr(value)


NULLS: list[tuple[Any, str]] = [
    (None, "{ null = true }"),
    ([1, None], "[1, { null = true }]"),
    ({"null": True}, '{ "null" = [true] }'),
    ({"null": None}, '{ "null" = [{ null = true }] }'),
    ({"null": None, "a": True}, '{ "null" = { null = true }, "a" = true }'),
]


@pytest.mark.parametrize(("value", "written"), NULLS)
def test_null_is_told_from_a_table_that_looks_like_it(value, written):
    change = Change(path="k", operation="default", after=value)
    lesson = msgspec.structs.replace(LESSON, changes=(change,))
    assert lesson_files.render_toml(value) == written
    assert (f"after = {written}\n" in lesson_files.render_lesson_file(lesson)) is (value is not None)
    assert again(lesson).changes == (change,)


def test_what_is_edited_by_hand_is_read_as_it_stands():
    text = TEXT.replace("Use k=10.", "\n\nAsk for ten,\nthen page.   \n\n\n").replace("\n", "\r\n")
    lesson = lesson_files.parse_lesson_file(text.encode(), "a.md").lesson
    assert lesson.correction == "Ask for ten,\nthen page."
    assert lesson.mistake == LESSON.mistake


def test_a_file_written_by_hand_needs_a_tool_and_two_texts():
    text = "+++\ntool = 'git'\n+++\n# Mistake\nPushing first.\n# Correction\nPull first.\n"
    lesson = lesson_files.parse_lesson_file(text.encode(), "mine.md").lesson
    assert lesson.source == "file"
    assert re.fullmatch("les_[0-9a-f]{12}", lesson.id)
    assert lesson_files.parse_lesson_file(text.encode(), "mine.md").lesson.id == lesson.id
    assert lesson_files.parse_lesson_file(text.encode(), "other.md").lesson.id != lesson.id


def instead(old: str, new: str) -> bytes:
    assert old in TEXT
    return TEXT.replace(old, new, 1).encode("utf-8", "surrogatepass")


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 1, "before and after it"),
    "no front matter": (b"# Mistake\n", 1, "No front matter"),
    "front matter that never ends": (b"+++\ntool = 'a'\n", 1, "No front matter"),
    "an unknown key": (instead("kind =", "kinds ="), 4, "unknown field `kinds`"),
    "a line that is no pair": (instead('kind = "tool/invalid_arguments"', "just words"), 4, "Expected '='"),
    "a key twice": (instead('kind = "tool/invalid_arguments"', 'tool = "other"'), 4, "Cannot overwrite"),
    "a key of another type": (instead('"f1"', "1"), 5, "Expected `str`, got `int` - at `$.fingerprint`"),
    "another id": (instead("les_0123456789ab", "../../etc/passwd"), 2, "`$.id`"),
    "an id and a line end": (instead("les_0123456789ab", "les_0123456789ab\\n"), 1, "invisible character"),
    "no tool": (instead('tool = "search"\n', ""), 1, "missing required field `tool`"),
    "another source": (instead('"learned"', '"proven"'), 7, "Invalid enum value 'proven'"),
    "a broken string": (instead('"clamp"', '"clamp'), 12, "Illegal character '\\n'"),
    "a form of another type": (instead('"clamp"', '"explode"'), 10, "`$.changes[0].operation`"),
    "a form that is no table": (instead("[[changes]]", "changes = [[1]]\n[[more]]"), 10, "`$.changes[0]`"),
    "a form with more": (instead("after = 10", "after = 10\nexec = 1"), 10, "unknown field `exec`"),
    "a call with more": (instead('"login"', '"login"\nexec = 1'), 15, "unknown field `exec`"),
    "a key of a form twice": (instead("after = 10", "after = 10\nafter = 99"), 14, "Cannot overwrite"),
    "an argument twice": (instead('"keep" = true', "a = 1, a = 2"), 17, "Duplicate inline table key"),
    "a number that is none": (instead("after = 10", "after = nan"), 1, "finite numbers"),
    "an endless number": (instead("after = 10", "after = [1e999]"), 1, "finite numbers"),
    "a date": (instead("after = 10", "after = { x = 2024-01-01 }"), 1, "Values are strings"),
    "a very large number": (instead("after = 10", "after = " + "1" * 50_000), 1, "4300 digits"),
    "deep lists": (instead("after = 10", "after = " + "[" * 20_000), 1, "recursion"),
    "a hidden key": (instead("kind", '"a\\u202e"'), 4, "unknown field `a`"),
    "deep tables": (instead("after = 10", "after = " + "{a = " * 10_000), 1, "recursion"),
    "deep keys": (instead("after = 10", "after." + "a." * 30_000 + "a = 1"), 13, "more than 500 dots"),
    "too many forms": (instead("[[changes]]\n", "[[changes]]\n" * 9), 10, "length <= 8"),
    "an unknown heading": (instead("# Error", "# Errors"), 29, "Unknown heading 'Errors'"),
    "a heading twice": (instead("# Error", "# Mistake"), 29, "Repeated heading 'Mistake'"),
    "text before the headings": (instead("+++\n\n# Mistake", "+++\nhello\n# Mistake"), 20, "before the first"),
    "no correction": (instead("Use k=10.", ""), 25, "Correction is missing"),
    "code that is not indented": (instead("    k is", "k is"), 31, "four spaces"),
    "an escape": (instead("Asking", "\x1b[2JAsking"), 23, "U+001B"),
    "a bell in a value": (instead("search", "sea\x07rch"), 3, "U+0007"),
    "a hidden character": (instead("Asking", "As\u202eking"), 23, "U+202E"),
    "an escaped hidden character": (instead("search", "a\\u202e"), 1, "invisible character"),
    "a lone carriage return": (instead("Asking", "As\rking"), 23, "U+000D"),
    "bad UTF-8": (TEXT.encode().replace(b"Asking", b"\xffAsking"), 23, "not UTF-8 (byte 0xff)"),
    "a surrogate": (instead("Asking", "\ud800"), 23, "not UTF-8"),
    "a mark of the order of bytes": (b"\xef\xbb\xbf" + TEXT.encode(), 1, "U+FEFF"),
    "something huge": (b"+++\n" + b"a" * 10_000_000, 1, "at most 64 KB"),
    "a text that is too long": (instead("Asking", "word " * 300), 21, "exceeds 900"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "line", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_lesson_is_refused_with_its_line(data, line, why):
    with pytest.raises(LessonFileError) as refused:
        lesson_files.parse_lesson_file(data, "bad.md")
    assert str(refused.value).startswith(f"bad.md:{line}: ")
    assert why in str(refused.value)


@settings(deadline=None, max_examples=300)
@given(
    data=st.binary(max_size=300)
    | st.text('+\n#= abtol.\\"[]{}1', max_size=200).map("+++\n{}\n+++\n".format).map(str.encode)
)
def test_no_file_does_more_than_be_read_or_refused(data):
    with contextlib.suppress(LessonFileError):
        lesson_files.parse_lesson_file(data, "a.md")


# Folders


def folder_of(tmp_path: Path, **files: Any) -> Path:
    for name, data in files.items():
        (tmp_path / f"{name}.md").write_bytes(data if isinstance(data, bytes) else data.encode())
    return tmp_path


def test_a_folder_is_read_whole_and_what_is_wrong_is_told(tmp_path):
    folder = folder_of(tmp_path, a=TEXT, b=TEXT, c="nonsense", README="# About", d=b"\xff")
    (tmp_path / ".hidden.md").write_text("nonsense")
    (tmp_path / "notes.txt").write_text("nonsense")

    found, refused = lesson_files.load_folder(folder)

    assert [each.name for each in found] == ["a.md"]
    assert [each.partition(" ")[0] for each in refused] == ["b.md:1:", "c.md:1:", "d.md:1:"]
    assert "also in a.md" in refused[0]


@pytest.mark.parametrize("has_flag", [True, False], ids=["posix", "windows"])
def test_links_pipes_and_folders_are_no_lessons(tmp_path, monkeypatch, has_flag):
    if not has_flag:
        monkeypatch.delattr(os, "O_NOFOLLOW")
    secret = tmp_path / "secret"
    secret.write_text(TEXT)
    folder = tmp_path / "lessons"
    folder.mkdir()
    (folder / "link.md").symlink_to(secret)
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")

    found, refused = lesson_files.load_folder(folder)

    assert found == []
    assert len(refused) == 3
    assert "links are not followed" in refused[1]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(LessonFileError, match="Cannot read the folder"):
        lesson_files.load_folder(tmp_path / "nowhere")


def test_lessons_are_put_into_a_folder_once(tmp_path):
    folder = tmp_path / "deep" / "lessons"
    assert lesson_files.write_folder(folder, [LESSON]) == (1, 0)
    assert lesson_files.write_folder(folder, [LESSON]) == (0, 1)
    (name,) = os.listdir(folder)
    assert name == lesson_files.build_file_name(LESSON)
    assert [each.lesson for each in lesson_files.load_folder(folder).lesson_files] == [normal(LESSON)]


def test_a_lesson_is_written_where_it_is_whatever_its_file_is_called(tmp_path):
    (tmp_path / "mine.md").write_text(TEXT)
    other = msgspec.structs.replace(LESSON, mistake="Else.")
    assert lesson_files.write_folder(tmp_path, [other]) == (1, 0)
    assert os.listdir(tmp_path) == ["mine.md"]
    assert "Else." in (tmp_path / "mine.md").read_text()


def test_a_link_is_replaced_and_what_it_points_at_is_left_alone(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "lessons"
    folder.mkdir()
    (folder / lesson_files.build_file_name(LESSON)).symlink_to(victim)
    assert lesson_files.write_folder(folder, [LESSON]) == (1, 0)
    assert victim.read_text() == "mine"
    assert not (folder / lesson_files.build_file_name(LESSON)).is_symlink()
