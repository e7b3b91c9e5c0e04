"""Lessons as Markdown files with front matter, meant to be committed, reviewed and edited by hand.

The front matter has a fixed set of keys, one value per line, each key at most once. The parser rejects anything else
and names the file and line, so that no part of a file is ignored silently.
"""

from __future__ import annotations

import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec

from mulligan.failure import LessonFileError
from mulligan.records import Ahead, Change, Lesson, LessonSource, encode, lesson_id
from mulligan.remember.lessons import making

LARGEST = 64 * 1024
"""Maximum size of one file."""
MOST = 10_000
"""Maximum number of files in a folder."""
HEAD = 40
"""Maximum number of front matter lines, delimiters included."""
FORMS = 8
"""Maximum number of changes, and of prerequisites, in one lesson."""
KEYS = (
    "id", "tool", "kind", "fingerprint", "fix", "source", "origin", "changes", "first", "words", "evidence",
)  # fmt: skip
"""Keys allowed in the front matter. `tool` is required. `evidence` is for readers; the parser ignores its value."""
SECTIONS = {"Mistake": "mistake", "Correction": "correction", "Error": "error", "Failed": "failed", "Works": "works"}
"""Lesson field by section heading. The first two sections are required; the others are indented as code."""
CODE = ("Error", "Failed", "Works")
INDENT = "    "
ID = re.compile(r"les_[0-9a-f]{12}")


class Read(NamedTuple):
    """A lesson parsed from a file."""

    name: str
    lesson: Lesson
    base: str = ""
    """Digest of the stored texts that this file was exported from; empty if the file has none."""


def words_of(lesson: Lesson) -> str:
    """Return a digest of the texts of a lesson. Different texts have different digests."""
    texts = [making.presentable(getattr(lesson, name)) for name in making.TEXTS]
    return blake2b(encode(texts), digest_size=6).hexdigest()


# Render


def name_of(lesson: Lesson) -> str:
    """Build the file name of a lesson from its tool, kind and id. It does not depend on the texts."""
    parts = (_slug(lesson.tool) or "any-tool", _slug(lesson.kind.rpartition("/")[2]) or "lesson", lesson.id)
    return f"{'--'.join(parts)}.md"


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40].rstrip("-")


def written(lesson: Lesson) -> str:
    """Render a lesson as the text of a file. The output is deterministic."""
    about = {
        "id": lesson.id,
        "tool": making.on_one_line(lesson.tool),
        "kind": making.on_one_line(lesson.kind),
        "fingerprint": making.on_one_line(lesson.fingerprint),
        "fix": making.on_one_line(lesson.fix),
        "source": lesson.source,
        "origin": making.on_one_line(lesson.origin),
        "words": words_of(lesson),
        "evidence": evidence(lesson),
    }
    lines = ["---"]
    for key in KEYS:
        if key in ("changes", "first"):
            form = getattr(lesson, key)
            lines += [f"{key}: {_plain_json(form)}"] if form else []
        elif about[key] or key == "tool":
            lines.append(f"{key}: {_quoted(about[key])}".rstrip())
    lines.append("---")
    for heading, field in SECTIONS.items():
        text = making.presentable(getattr(lesson, field))
        if text:
            shown = [_indented(line) if heading in CODE else _escaped(line) for line in text.split("\n")]
            lines += ["", f"# {heading}", "", *shown]
    return "\n".join([*lines, ""])


def evidence(lesson: Lesson) -> str:
    """Describe the evidence for a lesson in this store, for reviewers."""
    if not lesson.tried:
        return ""
    who = f" by {len(lesson.agents)} agents" if len(lesson.agents) > 1 else ""
    return f"{lesson.state}, worked {lesson.worked} of {lesson.tried} times; met {lesson.seen} times{who}"


def _quoted(value: str) -> str:
    return json.dumps(value) if value.startswith('"') else value


def _plain_json(form: object) -> str:
    # ASCII escapes keep the value on one line, without invisible characters.
    return json.dumps(msgspec.json.decode(encode(form)), ensure_ascii=True, separators=(", ", ": "))


def _indented(line: str) -> str:
    return f"{INDENT}{line}" if line else ""


def _escaped(line: str) -> str:
    return f"\\{line}" if line.startswith(("#", "\\")) else line


# Parse


class _Reader:
    """Line-based parser of one lesson file. Every error names the file and line."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._lines = text.split("\n")
        self.front: dict[str, tuple[int, str]] = {}
        self.sections: dict[str, tuple[int, list[str]]] = {}

    def refuse(self, line: int, why: str) -> NoReturn:
        raise LessonFileError(f"{self._name}:{line}: {why}")

    def read(self) -> None:
        for number, line in enumerate(self._lines, start=1):
            for character in line:
                if character != "\t" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn"):
                    self.refuse(number, f"there is a character that cannot be seen, U+{ord(character):04X}.")
        body = self._head()
        self._sections(body)

    def _head(self) -> int:
        if self._lines[0].rstrip() != "---":
            self.refuse(1, "a lesson begins with a line of three dashes, and front matter between two of them.")
        end = next((at for at, line in enumerate(self._lines[1:HEAD], start=2) if line.rstrip() == "---"), 0)
        if not end:
            self.refuse(min(len(self._lines), HEAD), f"no three dashes close the front matter within {HEAD} lines.")
        for number, line in enumerate(self._lines[1 : end - 1], start=2):
            key, colon, value = line.partition(":")
            if not colon or key not in KEYS:
                self.refuse(number, f"expected one of {', '.join(KEYS)}, a colon and a value, got {_short(line)}.")
            if key in self.front:
                self.refuse(number, f"{key} is there twice, first in line {self.front[key][0]}.")
            self.front[key] = number, self._value(number, value.strip())
        return end

    def _value(self, number: int, text: str) -> str:
        if not text.startswith('"'):
            return text
        value = self.json(number, text)
        if not isinstance(value, str):
            self.refuse(number, "what begins with a quotation mark is one text in JSON.")
        if any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co", "Cn") for each in value):
            self.refuse(number, "there is a character that cannot be seen.")
        return value

    def json(self, number: int, text: str) -> Any:
        def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            if len(dict(pairs)) != len(pairs):
                self.refuse(number, "a key is there twice.")
            return dict(pairs)

        def no_number(text: str) -> NoReturn:
            self.refuse(number, f"{text} is no number that JSON has.")

        try:
            return json.loads(text, object_pairs_hook=once, parse_constant=no_number)
        except (ValueError, RecursionError) as error:
            self.refuse(number, f"this is not JSON: {_short(str(error))}.")

    def _sections(self, after: int) -> None:
        into: list[str] | None = None
        heading = ""
        for number, line in enumerate(self._lines[after:], start=after + 1):
            line = line.rstrip()
            if line.startswith("#"):
                heading = line.lstrip("#").strip()
                if heading not in SECTIONS:
                    known = ", ".join(f"# {each}" for each in SECTIONS)
                    self.refuse(number, f"{_short(line)} is none of {known}. A text begins such a line with \\#.")
                if heading in self.sections:
                    self.refuse(number, f"{heading} is there twice, first in line {self.sections[heading][0]}.")
                into = []
                self.sections[heading] = number, into
            elif not line:
                if into is not None:
                    into.append("")
            elif into is None:
                self.refuse(number, "there is text before the first heading, # Mistake.")
            elif heading in CODE:
                if not line.startswith(INDENT):
                    self.refuse(number, f"what stands under {heading} is indented by four spaces.")
                into.append(line[len(INDENT) :])
            else:
                into.append(line[1:] if line.startswith("\\") else line)

    def value(self, key: str) -> str:
        return self.front[key][1] if key in self.front else ""

    def line_of(self, key: str) -> int:
        return self.front[key][0] if key in self.front else 1

    def text(self, heading: str) -> str:
        number, lines = self.sections.get(heading, (len(self._lines), []))
        text = "\n".join(lines).strip("\n")
        if len(text) > making.WORDS:
            self.refuse(number, f"{heading} has more than {making.WORDS} characters.")
        shown = making.presentable(text)
        if not shown and heading in ("Mistake", "Correction"):
            self.refuse(number, f"# {heading} is missing, or says nothing.")
        return shown

    def form(self, key: str, type: type[Change] | type[Ahead]) -> tuple[Any, ...]:
        if not self.value(key):
            return ()
        number = self.line_of(key)
        value = self.json(number, self.value(key))
        if isinstance(value, list) and len(value) > FORMS:
            self.refuse(number, f"{key} has more than {FORMS} parts.")
        try:
            found: tuple[Any, ...] = msgspec.convert(value, tuple.__class_getitem__((type, ...)), strict=True)
        except msgspec.ValidationError as error:
            self.refuse(number, f"{key} is not of its form: {_short(str(error))}.")
        for part, given in zip(found, value, strict=True):
            names = {field.encode_name for field in msgspec.structs.fields(part)}
            if odd := sorted(given.keys() - names):
                self.refuse(number, f"{key} has no {_short(odd[0])}; it has {', '.join(sorted(names))}.")
        return found


def read(data: bytes, name: str) -> Read:
    """Parse one lesson file. Raise `LessonFileError` with the file name and line if it is invalid."""
    if len(data) > LARGEST:
        raise LessonFileError(f"{name}:1: a lesson has at most {LARGEST // 1024} KB, this is {len(data):,} bytes.")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise LessonFileError(f"{name}:{line}: this is not UTF-8: byte 0x{data[error.start]:02x}.") from None
    reader = _Reader(name, text.replace("\r\n", "\n"))
    reader.read()
    if "tool" not in reader.front:
        reader.refuse(1, "the front matter does not say which tool the lesson is about: tool: NAME")
    tool, origin = making.on_one_line(reader.value("tool")), making.on_one_line(reader.value("origin"))
    id = reader.value("id") or lesson_id(tool, name)
    if not ID.fullmatch(id):
        reader.refuse(reader.line_of("id"), f"{_short(id)} is no id of a lesson: les_ and 12 digits of 0-9 and a-f.")
    sources: Mapping[str, LessonSource] = {"learned": "learned", "file": "file", "seed": "seed", "": "file"}
    if reader.value("source") not in sources:
        reader.refuse(reader.line_of("source"), f"{_short(reader.value('source'))} is none of learned, file and seed.")
    lesson = Lesson(
        id=id,
        tool=tool,
        kind=making.on_one_line(reader.value("kind")),
        fingerprint=making.on_one_line(reader.value("fingerprint")),
        fix=making.on_one_line(reader.value("fix")),
        source=sources[reader.value("source")],
        origin=origin,
        changes=reader.form("changes", Change),
        first=reader.form("first", Ahead),
        mistake=reader.text("Mistake"),
        correction=reader.text("Correction"),
        error=reader.text("Error"),
        failed=reader.text("Failed"),
        works=reader.text("Works"),
        edited=True,
    )
    return Read(name, lesson, reader.value("words"))


def _short(text: str) -> str:
    return repr(text[:60] + "..." if len(text) > 60 else text)


# Folders


class Folder(NamedTuple):
    """Lesson files of a folder, and the error messages of invalid ones."""

    found: list[Read]
    refused: list[str]


def load(folder: Path) -> Folder:
    """Parse all lesson files of a folder, ordered by name. A README and hidden files are skipped."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise LessonFileError(f"{folder} cannot be read ({error.strerror}).") from None
    names = [each for each in names if each.lower().endswith(".md") and not each.startswith(".")]
    names = [each for each in names if each.lower() != "readme.md"]
    if len(names) > MOST:
        raise LessonFileError(f"{folder} holds {len(names):,} files; {MOST:,} lessons are read at most.")
    found: list[Read] = []
    refused: list[str] = []
    first: dict[str, str] = {}
    for name in names:
        try:
            each = read(_bytes(folder, name), name)
        except LessonFileError as error:
            refused.append(str(error))
            continue
        if each.lesson.id in first:
            refused.append(f"{name}:1: {each.lesson.id} is in {first[each.lesson.id]} too.")
            continue
        first[each.lesson.id] = name
        found.append(each)
    return Folder(found, refused)


def _bytes(folder: Path, name: str) -> bytes:
    """Read a regular file. Reject symbolic links, and never block on a pipe."""
    try:
        with open(os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LessonFileError(f"{name}:1: this is no file.")
            return file.read(LARGEST + 1)
    except OSError as error:
        is_link = (folder / name).is_symlink()
        raise LessonFileError(
            f"{name}:1: {'this is a link, and links are not followed' if is_link else error.strerror}."
        ) from None


Standing = Literal["new", "same", "edited", "older", "conflict"]
"""Result of comparing a file with the stored lesson. `older`: the file is unedited, but the stored texts changed."""


def compared(file: Read, kept: Lesson | None) -> Standing:
    """Compare a file with the stored lesson, using the digest of the texts that the file was exported from."""
    if kept is None:
        return "new"
    own, theirs = words_of(file.lesson), words_of(kept)
    if own == theirs:
        return "same"
    if file.base == theirs:
        return "edited"
    return "older" if file.base == own else "conflict"


def put(folder: Path, given: Iterable[Lesson]) -> tuple[int, int]:
    """Write one file per lesson. Return the number of written and of unchanged files.

    A lesson that the folder already contains under another file name keeps that name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LessonFileError(f"{folder} cannot be made ({error.strerror}).") from None
    known = {each.lesson.id: each.name for each in load(folder).found}
    changed = same = 0
    for lesson in given:
        path = folder / known.get(lesson.id, name_of(lesson))
        data = written(lesson).encode()
        try:
            if not path.is_symlink() and path.is_file() and path.read_bytes() == data:
                same += 1
                continue
            fresh = path.with_name(f".{path.name}.new")
            fresh.unlink(missing_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                file.write(data)
            fresh.replace(path)
        except OSError as error:
            raise LessonFileError(f"{path} cannot be written ({error.strerror}).") from None
        changed += 1
    return changed, same
