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

from mulligan.core.failure import LessonFileError
from mulligan.core.records import Change, Lesson, LessonSource, Prerequisite, encode, lesson_id
from mulligan.learn.lessons import consolidation

MAX_FILE_BYTES = 64 * 1024
"""Maximum size of one file."""
MAX_FILES = 10_000
"""Maximum number of files in a folder."""
MAX_FRONT_MATTER_LINES = 40
"""Maximum number of front matter lines, delimiters included."""
MAX_ACTION_ENTRIES = 8
"""Maximum number of changes, and of prerequisites, in one lesson."""
FRONT_MATTER_KEYS = (
    "id", "tool", "kind", "fingerprint", "fix", "source", "origin", "changes", "first", "words", "evidence",
)  # fmt: skip
"""Keys allowed in the front matter. `tool` is required. `evidence` is for readers; the parser ignores its value."""
FIELD_BY_HEADING = {
    "Mistake": "mistake",
    "Correction": "correction",
    "Error": "error",
    "Failed": "failed",
    "Works": "works",
}
"""Lesson field by section heading. The first two sections are required; the others are indented as code."""
CODE_HEADINGS = ("Error", "Failed", "Works")
INDENT = "    "
LESSON_ID = re.compile(r"les_[0-9a-f]{12}")


class LessonFile(NamedTuple):
    """A lesson parsed from a file."""

    name: str
    lesson: Lesson
    base_digest: str = ""
    """Digest of the stored texts that this file was exported from; empty if the file has none."""


def digest_texts(lesson: Lesson) -> str:
    """Return a digest of the texts of a lesson. Different texts have different digests."""
    texts = [consolidation.sanitize_lesson_text(getattr(lesson, name)) for name in consolidation.TEXT_FIELDS]
    return blake2b(encode(texts), digest_size=6).hexdigest()


# Render


def build_file_name(lesson: Lesson) -> str:
    """Build the file name of a lesson from its tool, kind and id. It does not depend on the texts."""
    parts = (_to_slug(lesson.tool) or "any-tool", _to_slug(lesson.kind.rpartition("/")[2]) or "lesson", lesson.id)
    return f"{'--'.join(parts)}.md"


def _to_slug(text: str) -> str:
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_text).strip("-")[:40].rstrip("-")


def render_lesson_file(lesson: Lesson) -> str:
    """Render a lesson as the text of a file. The output is deterministic."""
    front_matter = {
        "id": lesson.id,
        "tool": consolidation.sanitize_line(lesson.tool),
        "kind": consolidation.sanitize_line(lesson.kind),
        "fingerprint": consolidation.sanitize_line(lesson.fingerprint),
        "fix": consolidation.sanitize_line(lesson.fix),
        "source": lesson.source,
        "origin": consolidation.sanitize_line(lesson.origin),
        "words": digest_texts(lesson),
        "evidence": describe_evidence(lesson),
    }
    lines = ["---"]
    for key in FRONT_MATTER_KEYS:
        if key in ("changes", "first"):
            entries = getattr(lesson, key)
            lines += [f"{key}: {_to_ascii_json(entries)}"] if entries else []
        elif front_matter[key] or key == "tool":
            lines.append(f"{key}: {_quote_value(front_matter[key])}".rstrip())
    lines.append("---")
    for heading, field in FIELD_BY_HEADING.items():
        text = consolidation.sanitize_lesson_text(getattr(lesson, field))
        if text:
            section_lines = [
                _indent_line(line) if heading in CODE_HEADINGS else _escape_line(line) for line in text.split("\n")
            ]
            lines += ["", f"# {heading}", "", *section_lines]
    return "\n".join([*lines, ""])


def describe_evidence(lesson: Lesson) -> str:
    """Describe the evidence for a lesson in this store, for reviewers."""
    if not lesson.tried:
        return ""
    agents_suffix = f" by {len(lesson.agents)} agents" if len(lesson.agents) > 1 else ""
    return f"{lesson.state}, worked {lesson.worked} of {lesson.tried} times; met {lesson.seen} times{agents_suffix}"


def _quote_value(value: str) -> str:
    return json.dumps(value) if value.startswith('"') else value


def _to_ascii_json(entries: object) -> str:
    # ASCII escapes keep the value on one line, without invisible characters.
    return json.dumps(msgspec.json.decode(encode(entries)), ensure_ascii=True, separators=(", ", ": "))


def _indent_line(line: str) -> str:
    return f"{INDENT}{line}" if line else ""


def _escape_line(line: str) -> str:
    return f"\\{line}" if line.startswith(("#", "\\")) else line


# Parse


class _LessonFileParser:
    """Line-based parser of one lesson file. Every error names the file and line."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._lines = text.split("\n")
        self.front_matter: dict[str, tuple[int, str]] = {}
        self.sections: dict[str, tuple[int, list[str]]] = {}

    def raise_error(self, line: int, reason: str) -> NoReturn:
        raise LessonFileError(f"{self._name}:{line}: {reason}")

    def parse(self) -> None:
        for number, line in enumerate(self._lines, start=1):
            for character in line:
                if character != "\t" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn"):
                    self.raise_error(number, f"there is a character that cannot be seen, U+{ord(character):04X}.")
        body_start = self._parse_front_matter()
        self._parse_sections(body_start)

    def _parse_front_matter(self) -> int:
        if self._lines[0].rstrip() != "---":
            self.raise_error(1, "a lesson begins with a line of three dashes, and front matter between two of them.")
        end = next(
            (at for at, line in enumerate(self._lines[1:MAX_FRONT_MATTER_LINES], start=2) if line.rstrip() == "---"), 0
        )
        if not end:
            self.raise_error(
                min(len(self._lines), MAX_FRONT_MATTER_LINES),
                f"no three dashes close the front matter within {MAX_FRONT_MATTER_LINES} lines.",
            )
        for number, line in enumerate(self._lines[1 : end - 1], start=2):
            key, colon, value = line.partition(":")
            if not colon or key not in FRONT_MATTER_KEYS:
                self.raise_error(
                    number,
                    f"expected one of {', '.join(FRONT_MATTER_KEYS)}, a colon and a value, got {_shorten(line)}.",
                )
            if key in self.front_matter:
                self.raise_error(number, f"{key} is there twice, first in line {self.front_matter[key][0]}.")
            self.front_matter[key] = number, self._parse_value(number, value.strip())
        return end

    def _parse_value(self, number: int, text: str) -> str:
        if not text.startswith('"'):
            return text
        value = self.parse_json(number, text)
        if not isinstance(value, str):
            self.raise_error(number, "what begins with a quotation mark is one text in JSON.")
        if any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn") for character in value):
            self.raise_error(number, "there is a character that cannot be seen.")
        return value

    def parse_json(self, number: int, text: str) -> Any:
        def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            if len(dict(pairs)) != len(pairs):
                self.raise_error(number, "a key is there twice.")
            return dict(pairs)

        def reject_constant(text: str) -> NoReturn:
            self.raise_error(number, f"{text} is no number that JSON has.")

        try:
            return json.loads(text, object_pairs_hook=reject_duplicate_keys, parse_constant=reject_constant)
        except (ValueError, RecursionError) as error:
            self.raise_error(number, f"this is not JSON: {_shorten(str(error))}.")

    def _parse_sections(self, after: int) -> None:
        section_lines: list[str] | None = None
        heading = ""
        for number, line in enumerate(self._lines[after:], start=after + 1):
            line = line.rstrip()
            if line.startswith("#"):
                heading = line.lstrip("#").strip()
                if heading not in FIELD_BY_HEADING:
                    allowed_headings = ", ".join(f"# {allowed_heading}" for allowed_heading in FIELD_BY_HEADING)
                    self.raise_error(
                        number, f"{_shorten(line)} is none of {allowed_headings}. A text begins such a line with \\#."
                    )
                if heading in self.sections:
                    self.raise_error(number, f"{heading} is there twice, first in line {self.sections[heading][0]}.")
                section_lines = []
                self.sections[heading] = number, section_lines
            elif not line:
                if section_lines is not None:
                    section_lines.append("")
            elif section_lines is None:
                self.raise_error(number, "there is text before the first heading, # Mistake.")
            elif heading in CODE_HEADINGS:
                if not line.startswith(INDENT):
                    self.raise_error(number, f"what stands under {heading} is indented by four spaces.")
                section_lines.append(line[len(INDENT) :])
            else:
                section_lines.append(line[1:] if line.startswith("\\") else line)

    def front_matter_value(self, key: str) -> str:
        return self.front_matter[key][1] if key in self.front_matter else ""

    def line_number_of(self, key: str) -> int:
        return self.front_matter[key][0] if key in self.front_matter else 1

    def section_text(self, heading: str) -> str:
        number, lines = self.sections.get(heading, (len(self._lines), []))
        text = "\n".join(lines).strip("\n")
        if len(text) > consolidation.MAX_TEXT_CHARS:
            self.raise_error(number, f"{heading} has more than {consolidation.MAX_TEXT_CHARS} characters.")
        sanitized = consolidation.sanitize_lesson_text(text)
        if not sanitized and heading in ("Mistake", "Correction"):
            self.raise_error(number, f"# {heading} is missing, or says nothing.")
        return sanitized

    def parse_entries(self, key: str, type: type[Change] | type[Prerequisite]) -> tuple[Any, ...]:
        if not self.front_matter_value(key):
            return ()
        number = self.line_number_of(key)
        value = self.parse_json(number, self.front_matter_value(key))
        if isinstance(value, list) and len(value) > MAX_ACTION_ENTRIES:
            self.raise_error(number, f"{key} has more than {MAX_ACTION_ENTRIES} parts.")
        try:
            entries: tuple[Any, ...] = msgspec.convert(value, tuple.__class_getitem__((type, ...)), strict=True)
        except msgspec.ValidationError as error:
            self.raise_error(number, f"{key} is not of its form: {_shorten(str(error))}.")
        for entry, raw_entry in zip(entries, value, strict=True):
            names = {field.encode_name for field in msgspec.structs.fields(entry)}
            if unknown_keys := sorted(raw_entry.keys() - names):
                self.raise_error(
                    number, f"{key} has no {_shorten(unknown_keys[0])}; it has {', '.join(sorted(names))}."
                )
        return entries


def parse_lesson_file(data: bytes, name: str) -> LessonFile:
    """Parse one lesson file. Raise `LessonFileError` with the file name and line if it is invalid."""
    if len(data) > MAX_FILE_BYTES:
        raise LessonFileError(
            f"{name}:1: a lesson has at most {MAX_FILE_BYTES // 1024} KB, this is {len(data):,} bytes."
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise LessonFileError(f"{name}:{line}: this is not UTF-8: byte 0x{data[error.start]:02x}.") from None
    reader = _LessonFileParser(name, text.replace("\r\n", "\n"))
    reader.parse()
    if "tool" not in reader.front_matter:
        reader.raise_error(1, "the front matter does not say which tool the lesson is about: tool: NAME")
    tool, origin = (
        consolidation.sanitize_line(reader.front_matter_value("tool")),
        consolidation.sanitize_line(reader.front_matter_value("origin")),
    )
    id = reader.front_matter_value("id") or lesson_id(tool, name)
    if not LESSON_ID.fullmatch(id):
        reader.raise_error(
            reader.line_number_of("id"), f"{_shorten(id)} is no id of a lesson: les_ and 12 digits of 0-9 and a-f."
        )
    sources: Mapping[str, LessonSource] = {"learned": "learned", "file": "file", "seed": "seed", "": "file"}
    if reader.front_matter_value("source") not in sources:
        reader.raise_error(
            reader.line_number_of("source"),
            f"{_shorten(reader.front_matter_value('source'))} is none of learned, file and seed.",
        )
    lesson = Lesson(
        id=id,
        tool=tool,
        kind=consolidation.sanitize_line(reader.front_matter_value("kind")),
        fingerprint=consolidation.sanitize_line(reader.front_matter_value("fingerprint")),
        fix=consolidation.sanitize_line(reader.front_matter_value("fix")),
        source=sources[reader.front_matter_value("source")],
        origin=origin,
        changes=reader.parse_entries("changes", Change),
        first=reader.parse_entries("first", Prerequisite),
        mistake=reader.section_text("Mistake"),
        correction=reader.section_text("Correction"),
        error=reader.section_text("Error"),
        failed=reader.section_text("Failed"),
        works=reader.section_text("Works"),
        edited=True,
    )
    return LessonFile(name, lesson, reader.front_matter_value("words"))


def _shorten(text: str) -> str:
    return repr(text[:60] + "..." if len(text) > 60 else text)


# Folders


class LessonFolder(NamedTuple):
    """Lesson files of a folder, and the error messages of invalid ones."""

    lesson_files: list[LessonFile]
    errors: list[str]


def load_folder(folder: Path) -> LessonFolder:
    """Parse all lesson files of a folder, ordered by name. A README and hidden files are skipped."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise LessonFileError(f"{folder} cannot be read ({error.strerror}).") from None
    names = [file_name for file_name in names if file_name.lower().endswith(".md") and not file_name.startswith(".")]
    names = [file_name for file_name in names if file_name.lower() != "readme.md"]
    if len(names) > MAX_FILES:
        raise LessonFileError(f"{folder} holds {len(names):,} files; {MAX_FILES:,} lessons are read at most.")
    lesson_files: list[LessonFile] = []
    errors: list[str] = []
    file_name_by_id: dict[str, str] = {}
    for name in names:
        try:
            lesson_file = parse_lesson_file(_read_bytes(folder, name), name)
        except LessonFileError as error:
            errors.append(str(error))
            continue
        if lesson_file.lesson.id in file_name_by_id:
            errors.append(f"{name}:1: {lesson_file.lesson.id} is in {file_name_by_id[lesson_file.lesson.id]} too.")
            continue
        file_name_by_id[lesson_file.lesson.id] = name
        lesson_files.append(lesson_file)
    return LessonFolder(lesson_files, errors)


def _read_bytes(folder: Path, name: str) -> bytes:
    """Read a regular file. Reject symbolic links, and never block on a pipe."""
    try:
        with open(os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LessonFileError(f"{name}:1: this is no file.")
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        is_link = (folder / name).is_symlink()
        raise LessonFileError(
            f"{name}:1: {'this is a link, and links are not followed' if is_link else error.strerror}."
        ) from None


FileComparison = Literal["new", "same", "edited", "older", "conflict"]
"""Result of comparing a file with the stored lesson. `older`: the file is unedited, but the stored texts changed."""


def compare_with_store(file: LessonFile, stored_lesson: Lesson | None) -> FileComparison:
    """Compare a file with the stored lesson, using the digest of the texts that the file was exported from."""
    if stored_lesson is None:
        return "new"
    file_digest, stored_digest = digest_texts(file.lesson), digest_texts(stored_lesson)
    if file_digest == stored_digest:
        return "same"
    if file.base_digest == stored_digest:
        return "edited"
    return "older" if file.base_digest == file_digest else "conflict"


def write_folder(folder: Path, lessons: Iterable[Lesson]) -> tuple[int, int]:
    """Write one file per lesson. Return the number of written and of unchanged files.

    A lesson that the folder already contains under another file name keeps that name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LessonFileError(f"{folder} cannot be made ({error.strerror}).") from None
    file_name_by_id = {lesson_file.lesson.id: lesson_file.name for lesson_file in load_folder(folder).lesson_files}
    changed_count = unchanged_count = 0
    for lesson in lessons:
        path = folder / file_name_by_id.get(lesson.id, build_file_name(lesson))
        data = render_lesson_file(lesson).encode()
        try:
            if not path.is_symlink() and path.is_file() and path.read_bytes() == data:
                unchanged_count += 1
                continue
            temporary_path = path.with_name(f".{path.name}.new")
            temporary_path.unlink(missing_ok=True)
            with open(os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                file.write(data)
            temporary_path.replace(path)
        except OSError as error:
            raise LessonFileError(f"{path} cannot be written ({error.strerror}).") from None
        changed_count += 1
    return changed_count, unchanged_count
