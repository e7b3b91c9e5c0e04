"""Lessons as files: what is written is read back, whatever it says, and what is no lesson is refused with its line."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from mulligan.core.failure import LessonFileError
from mulligan.core.records import Change, Lesson, Prerequisite
from mulligan.learn.lessons import consolidation as lessons
from mulligan.learn.lessons import lesson_files as lesson_files

LESSON = Lesson(
    id="les_0123456789ab",
    tool="search",
    kind="tool/invalid_arguments",
    fingerprint="f1",
    fix="fix_0123456789ab",
    mistake="Asking for more than ten.",
    correction="Use k=10.",
    error="k is 10 at most",
    failed="search(q=..., k=50)",
    works="search(q=..., k=10)",
    changes=(Change(path="k", how="clamp", after=10),),
    first=(Prerequisite(tool="login", arguments={"keep": True}, open=("user",)),),
    source="learned",
)
TEXT = """---
id: les_0123456789ab
tool: search
kind: tool/invalid_arguments
fingerprint: f1
fix: fix_0123456789ab
source: learned
changes: [{"path": "k", "how": "clamp", "after": 10}]
first: [{"tool": "login", "arguments": {"keep": true}, "open": ["user"]}]
words: %s
---

# Mistake

Asking for more than ten.

# Correction

Use k=10.

# Error

    k is 10 at most

# Failed

    search(q=..., k=50)

# Works

    search(q=..., k=10)
""" % lesson_files.digest_texts(LESSON)  # noqa: UP031 - braces in it


def again(lesson: Lesson) -> Lesson:
    return lesson_files.parse_lesson_file(lesson_files.render_lesson_file(lesson).encode(), "a.md").lesson


def normal(lesson: Lesson) -> Lesson:
    """What of a lesson is in its file: its words and its form."""
    texts = {name: lessons.sanitize_lesson_text(getattr(lesson, name)) for name in lessons.TEXT_FIELDS}
    names = ("tool", "kind", "fingerprint", "fix", "origin")
    lines = {name: lessons.sanitize_line(getattr(lesson, name)) for name in names}
    return Lesson(
        id=lesson.id, **texts, **lines, changes=lesson.changes, first=lesson.first, source=lesson.source, edited=True
    )


def test_a_lesson_is_a_file_that_people_can_read():
    assert lesson_files.render_lesson_file(LESSON) == TEXT


def test_a_file_is_the_lesson_it_was_made_of():
    found = lesson_files.parse_lesson_file(TEXT.encode(), "a.md")
    assert found.lesson == normal(LESSON)
    assert found.base_digest == lesson_files.digest_texts(LESSON)


def test_its_name_does_not_change_with_its_words():
    other = msgspec.structs.replace(LESSON, mistake="Else.", correction="Else.", worked=7)
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
    proven = msgspec.structs.replace(LESSON, tried=9, worked=8, seen=12, agents={"a": 1, "b": 2}, state="active")
    text = lesson_files.render_lesson_file(proven)
    assert "evidence: active, worked 8 of 9 times; met 12 times by 2 agents\n" in text
    assert again(proven) == normal(LESSON)


values = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=200) | st.text("# \\-:\n\t\"'ab`{}", max_size=60)
lines = st.text(max_size=60) | st.text('": #\\-ab', max_size=20)
forms = st.builds(
    Change,
    path=lines,
    how=st.sampled_from(["cast", "rename", "drop", "clamp", "substitute"]),
    after=values | lines,
)
aheads = st.builds(
    Prerequisite,
    tool=lines,
    arguments=st.dictionaries(lines, values | lines, max_size=3),
    open=st.lists(lines).map(tuple),
)


@settings(deadline=None, max_examples=300)
@given(
    words=st.fixed_dictionaries(dict.fromkeys(lessons.TEXT_FIELDS, texts)),
    about=st.fixed_dictionaries(dict.fromkeys(("tool", "kind", "fingerprint", "fix", "origin"), lines)),
    changes=st.lists(forms, max_size=4).map(tuple),
    first=st.lists(aheads, max_size=3).map(tuple),
)
def test_whatever_a_lesson_says_is_read_back(words, about, changes, first):
    lesson = Lesson(id="les_0123456789ab", **words, **about, changes=changes, first=first, source="seed")
    wanted = normal(lesson)
    if not wanted.mistake or not wanted.correction:
        with pytest.raises(LessonFileError, match=r"a\.md:\d+: "):
            again(lesson)
        return
    assert again(lesson) == wanted
    assert lesson_files.render_lesson_file(again(lesson)) == lesson_files.render_lesson_file(lesson)
    assert lesson_files.digest_texts(again(lesson)) == lesson_files.digest_texts(lesson)


def test_what_is_edited_by_hand_is_read_as_it_stands():
    text = TEXT.replace("Use k=10.", "\n\nAsk for ten,\nthen page.   \n\n\n").replace("\n", "\r\n")
    lesson = lesson_files.parse_lesson_file(text.encode(), "a.md").lesson
    assert lesson.correction == "Ask for ten,\nthen page."
    assert lesson.mistake == LESSON.mistake


def test_a_file_written_by_hand_needs_a_tool_and_two_texts():
    text = "---\ntool: git\n---\n# Mistake\nPushing first.\n# Correction\nPull first.\n"
    lesson = lesson_files.parse_lesson_file(text.encode(), "mine.md").lesson
    assert lesson.source == "file"
    assert lesson_files.LESSON_ID.fullmatch(lesson.id)
    assert lesson_files.parse_lesson_file(text.encode(), "mine.md").lesson.id == lesson.id
    assert lesson_files.parse_lesson_file(text.encode(), "other.md").lesson.id != lesson.id


def instead(old: str, new: str) -> bytes:
    assert old in TEXT
    return TEXT.replace(old, new, 1).encode("utf-8", "surrogatepass")


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 1, "three dashes"),
    "no front matter": (b"# Mistake\n", 1, "three dashes"),
    "front matter that never ends": (b"---\ntool: a\n", 3, "no three dashes"),
    "endless front matter": (b"---\n" + b"tool: a\n" * 60, 40, "within 40 lines"),
    "an unknown key": (instead("kind:", "kinds:"), 4, "expected one of"),
    "a line that is no pair": (instead("kind: tool/invalid_arguments", "just words"), 4, "just words"),
    "a key twice": (instead("kind: tool/invalid_arguments", "tool: other"), 4, "tool is there twice, first in line 3"),
    "another id": (instead("les_0123456789ab", "../../etc/passwd"), 2, "no id of a lesson"),
    "no tool": (instead("tool: search\n", ""), 1, "which tool"),
    "another source": (instead("source: learned", "source: proven"), 7, "none of learned"),
    "broken JSON": (instead('"clamp"', '"clamp'), 8, "not JSON"),
    "a form of another type": (instead('"clamp"', '"explode"'), 8, "not of its form"),
    "a form that is a list of lists": (instead('[{"path": "k", "how": "clamp", "after": 10}]', "[[1]]"), 8, "form"),
    "a form with more": (instead('"after": 10', '"after": 10, "exec": 1'), 8, "exec"),
    "a key of a form twice": (instead('"after": 10', '"after": 10, "after": 99'), 8, "twice"),
    "a number that is none": (instead('"after": 10', '"after": NaN'), 8, "NaN"),
    "deep JSON": (instead("[{", "[" * 20_000), 8, "not JSON"),
    "too many forms": (instead('[{"path": "k", "how": "clamp", "after": 10}]', str([{}] * 9)), 8, "more than 8"),
    "an unknown heading": (instead("# Error", "# Errors"), 21, "none of # Mistake"),
    "a heading twice": (instead("# Error", "# Mistake"), 21, "twice, first in line 13"),
    "text before the headings": (instead("---\n\n# Mistake", "---\nhello\n# Mistake"), 12, "before the first"),
    "no correction": (instead("Use k=10.", ""), 17, "Correction is missing"),
    "code that is not indented": (instead("    k is", "k is"), 23, "four spaces"),
    "an escape": (instead("Asking", "\x1b[2JAsking"), 15, "U+001B"),
    "a bell in a value": (instead("search\n", "sea\x07rch\n"), 3, "U+0007"),
    "a hidden character": (instead("Asking", "As\u202eking"), 15, "U+202E"),
    "a hidden character in JSON": (instead("tool: search", 'tool: "a\\u202e"'), 3, "cannot be seen"),
    "a lone carriage return": (instead("Asking", "As\rking"), 15, "U+000D"),
    "bad UTF-8": (TEXT.encode().replace(b"Asking", b"\xffAsking"), 15, "not UTF-8: byte 0xff"),
    "a surrogate": (instead("Asking", "\ud800"), 15, "not UTF-8"),
    "a mark of the order of bytes": (b"\xef\xbb\xbf" + TEXT.encode(), 1, "U+FEFF"),
    "something huge": (b"---\n" + b"a" * 100_000, 1, "at most 64 KB"),
    "a text that is too long": (instead("Asking", "word " * 300), 13, "more than 900"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "line", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_lesson_is_refused_with_its_line(data, line, why):
    with pytest.raises(LessonFileError) as refused:
        lesson_files.parse_lesson_file(data, "bad.md")
    assert str(refused.value).startswith(f"bad.md:{line}: ")
    assert why in str(refused.value)


@settings(deadline=None, max_examples=300)
@given(data=st.binary(max_size=300) | st.text('-\n#: abtol\\"[]{}', max_size=200).map(str.encode))
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
    assert "a.md too" in refused[0]


def test_links_pipes_and_folders_are_no_lessons(tmp_path):
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
    with pytest.raises(LessonFileError, match="cannot be read"):
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
