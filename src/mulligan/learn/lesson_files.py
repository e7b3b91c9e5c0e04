"""Lessons as Markdown files with TOML front matter, meant to be committed, reviewed and edited by hand.

Every key and heading is checked. The parser rejects anything else and names the file and line, so that no part of a
file is ignored silently.
"""

from __future__ import annotations

import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from mulligan.core.failure import LessonFileError
from mulligan.core.records import Change, Lesson, LessonSource, Prerequisite, digest, encode, lesson_id
from mulligan.learn import lessons

MAX_FILE_BYTES = 64 * 1024
"""Maximum size of one file."""
MAX_FILES = 10_000
"""Maximum number of files in a folder."""
MAX_LINE_DOTS = 500
"""Maximum number of dots in a line of front matter. tomllib takes quadratic time for the dots of a key."""
CODE_HEADINGS = ("Error", "Failing example", "Working example")
FIELD_BY_HEADING = dict(zip(("Mistake", "Correction", *CODE_HEADINGS), lessons.TEXT_FIELDS, strict=True))
"""Lesson field by section heading. The first two sections are required; the others are indented as code."""
INDENT = "    "
DELIMITER = "+++"
"""Line before and after the front matter."""


class _ChangeTable(Change, frozen=True, forbid_unknown_fields=True):
    """A change in the front matter. Records accept unknown fields of later versions; files do not."""


class _PrerequisiteTable(Prerequisite, frozen=True, forbid_unknown_fields=True):
    """A prerequisite in the front matter."""


class _FrontMatter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The front matter of a lesson file."""

    tool: str
    id: Annotated[str, msgspec.Meta(pattern=r"^les_[0-9a-f]{12}\Z")] = ""
    kind: str = ""
    fingerprint: str = ""
    fix_id: str = ""
    source: LessonSource = "file"
    origin: str = ""
    base_digest: str = ""
    evidence: str = ""
    """For readers. The parser ignores it."""
    changes: Annotated[tuple[_ChangeTable, ...], msgspec.Meta(max_length=8)] = ()
    prerequisites: Annotated[tuple[_PrerequisiteTable, ...], msgspec.Meta(max_length=8)] = ()


class LessonFile(NamedTuple):
    name: str
    lesson: Lesson
    base_digest: str = ""
    """Digest of the stored texts that this file was exported from; empty if the file has none."""


def digest_texts(lesson: Lesson) -> str:
    """Return a digest of the texts of a lesson. Different texts have different digests."""
    texts = [lessons.sanitize_lesson_text(getattr(lesson, name)) for name in lessons.TEXT_FIELDS]
    return digest(encode(texts), 6).hex()


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
    keys = ("id", "tool", "kind", "fingerprint", "fix_id", "source", "origin")
    front_matter = {key: lessons.sanitize_line(getattr(lesson, key)) for key in keys}
    front_matter |= {"base_digest": digest_texts(lesson), "evidence": describe_evidence(lesson)}
    lines = [DELIMITER]
    lines += [f"{key} = {render_toml(value)}" for key, value in front_matter.items() if value or key == "tool"]
    for key in ("changes", "prerequisites"):
        for entry in msgspec.json.decode(encode(getattr(lesson, key))):
            lines += ["", f"[[{key}]]", *(f"{field} = {render_toml(value)}" for field, value in entry.items())]
    lines.append(DELIMITER)
    for heading, field in FIELD_BY_HEADING.items():
        if text := lessons.sanitize_lesson_text(getattr(lesson, field)):
            pattern, prefix = (r"^(?=.)", INDENT) if heading in CODE_HEADINGS else (r"^(?=[#\\])", r"\\")
            lines += ["", f"# {heading}", "", re.sub(pattern, prefix, text, flags=re.MULTILINE)]
    return "\n".join([*lines, ""])


def describe_evidence(lesson: Lesson) -> str:
    """Describe the evidence for a lesson in this store, for reviewers."""
    if not lesson.trials:
        return ""
    agents = f" by {len(lesson.agents)} agents" if len(lesson.agents) > 1 else ""
    successes = f"succeeded in {lesson.successes} of {lesson.trials} runs"
    return f"{lesson.state}, {successes}; {lesson.occurrences} occurrences{agents}"


def render_toml(value: Any) -> str:
    """Render a JSON value as a TOML value on one line.

    TOML has no null: it becomes `{ null = true }`, and a table whose only key is `null` becomes `{ null = [VALUE] }`.
    """
    if value is None:
        return "{ null = true }"
    if isinstance(value, list):
        return f"[{', '.join(map(render_toml, value))}]"
    if isinstance(value, dict):
        entries = {"null": [value["null"]]} if value.keys() == {"null"} else value
        return f"{{ {', '.join(f'{render_toml(key)} = {render_toml(entry)}' for key, entry in entries.items())} }}"
    # JSON and TOML share numbers, booleans and escapes. JSON leaves DEL and invisible characters as they are.
    text = json.dumps(value, ensure_ascii=False)
    return "".join(f"\\U{ord(char):08X}" if _is_invisible(char) else char for char in text)


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn")


# Parse


class _InvalidLineError(Exception):
    """An invalid line of a lesson file: its number and the reason."""


def parse_lesson_file(data: bytes, name: str) -> LessonFile:
    """Parse one lesson file. Raise `LessonFileError` with the file name and line if it is invalid."""
    try:
        lines = _decode_lines(data)
        end = next((number for number, line in enumerate(lines[1:], start=1) if line.rstrip() == DELIMITER), 0)
        if lines[0].rstrip() != DELIMITER or not end:
            raise _InvalidLineError(1, f"No front matter. Put a line {DELIMITER} before and after it.")
        front_matter = _parse_front_matter(lines[1:end])
        texts = _parse_sections(lines, end + 1)
    except _InvalidLineError as error:
        raise LessonFileError(f"{name}:{error.args[0]}: {error.args[1]}") from None
    keys = ("tool", "kind", "fingerprint", "fix_id", "origin")
    values: dict[str, Any] = {key: lessons.sanitize_line(getattr(front_matter, key)) for key in keys}
    lesson = Lesson(
        id=front_matter.id or lesson_id(values["tool"], name),
        source=front_matter.source,
        changes=tuple(Change(**msgspec.structs.asdict(table)) for table in front_matter.changes),
        prerequisites=tuple(Prerequisite(**msgspec.structs.asdict(table)) for table in front_matter.prerequisites),
        edited=True,
        **values | texts,
    )
    return LessonFile(name, lesson, front_matter.base_digest)


def _decode_lines(data: bytes) -> list[str]:
    if len(data) > MAX_FILE_BYTES:
        raise _InvalidLineError(1, f"The file is too large. A lesson has at most {MAX_FILE_BYTES // 1024} KB.")
    try:
        lines = data.decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise _InvalidLineError(number, f"The file is not UTF-8 (byte 0x{data[error.start]:02x}).") from None
    for number, line in enumerate(lines, start=1):
        for character in () if line.isprintable() else line:
            if character != "\t" and _is_invisible(character):
                raise _InvalidLineError(number, f"Invisible character U+{ord(character):04X}. Remove it.")
    return lines


def _parse_front_matter(lines: list[str]) -> _FrontMatter:
    import tomllib  # 10 ms, and few commands need it

    for number, line in enumerate(lines, start=2):
        if line.count(".") > MAX_LINE_DOTS:
            raise _InvalidLineError(number, f"The line has more than {MAX_LINE_DOTS} dots. Shorten it.")
    try:
        # The empty line stands for the delimiter: TOML errors then name the line of the file.
        table = tomllib.loads("\n".join(["", *lines]))
        if msgspec.json.decode(msgspec.json.encode(table)) != table:
            raise ValueError("Values are strings, booleans, finite numbers, lists and tables")
        if any(isinstance(value, str) and any(map(_is_invisible, value)) for value in table.values()):
            raise ValueError("A value contains an invisible character")
        return msgspec.convert(_restore_nulls(table), _FrontMatter)
    except (ValueError, RecursionError) as error:
        message = "".join(character for character in str(error) if not _is_invisible(character))
        raise _InvalidLineError(_find_line(lines, message), f"Invalid front matter: {message[:300]}.") from None


def _find_line(lines: list[str], message: str) -> int:
    """Return the line that TOML names, or else the first line of the key that msgspec names."""
    if toml_line := re.search(r"at line (\d+), column \d+\)$", message):
        return int(toml_line[1])
    key = re.search(r".*(?<!missing required field )`(?:\$\.)?(\w+)", message)
    return next((number for number, line in enumerate(lines, 2) if key and re.match(rf"\W*{key[1]}\b", line)), 1)


def _restore_nulls(value: Any) -> Any:
    """Invert how `render_toml` represents null."""
    match value:
        case {"null": True, **others} if not others:
            return None
        case {"null": [entry], **others} if not others:
            return {"null": _restore_nulls(entry)}
        case dict():
            return {key: _restore_nulls(entry) for key, entry in value.items()}
        case list():
            return list(map(_restore_nulls, value))
    return value


def _parse_sections(lines: list[str], start: int) -> dict[str, str]:
    """Return the texts of a lesson by field."""
    sections: dict[str, tuple[int, list[str]]] = {}
    heading = ""
    for number, line in enumerate(map(str.rstrip, lines[start:]), start=start + 1):
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
            if heading not in FIELD_BY_HEADING or heading in sections:
                reason = f"{'Repeated' if heading in sections else 'Unknown'} heading {heading[:60]!r}."
                advice = f"Use each of {', '.join(FIELD_BY_HEADING)} once; in a text, start such a line with \\#."
                raise _InvalidLineError(number, f"{reason} {advice}")
            sections[heading] = number, []
        elif line and not heading:
            raise _InvalidLineError(number, "Text before the first heading. Start with # Mistake.")
        elif line and heading in CODE_HEADINGS and not line.startswith(INDENT):
            raise _InvalidLineError(number, f"The text under {heading} must be indented by four spaces.")
        elif heading:
            sections[heading][1].append(line.removeprefix(INDENT if heading in CODE_HEADINGS else "\\"))
    texts = {}
    for heading, field in FIELD_BY_HEADING.items():
        number, section_lines = sections.get(heading, (len(lines), []))
        text = "\n".join(section_lines).strip("\n")
        if len(text) > lessons.MAX_TEXT_CHARS:
            raise _InvalidLineError(number, f"{heading} exceeds {lessons.MAX_TEXT_CHARS} characters. Shorten it.")
        texts[field] = lessons.sanitize_lesson_text(text)
        if not texts[field] and heading not in CODE_HEADINGS:
            raise _InvalidLineError(number, f"# {heading} is missing or empty.")
    return texts


# Folders


class LessonFolder(NamedTuple):
    """Lesson files of a folder, and the error messages of invalid ones."""

    lesson_files: list[LessonFile]
    errors: list[str]


def load_folder(folder: Path) -> LessonFolder:
    """Parse all lesson files of a folder, ordered by name."""
    names = list_file_names(folder)
    if len(names) > MAX_FILES:
        raise LessonFileError(f"{folder} contains {len(names):,} files. The maximum is {MAX_FILES:,} lessons.")
    files_by_id: dict[str, LessonFile] = {}
    errors: list[str] = []
    for name in names:
        try:
            file = parse_lesson_file(read_file(folder, name), name)
            first = files_by_id.setdefault(file.lesson.id, file)
            if first is not file:
                raise LessonFileError(f"{name}:1: Duplicate id {file.lesson.id}, also in {first.name}.")
        except LessonFileError as error:
            errors.append(str(error))
    return LessonFolder(list(files_by_id.values()), errors)


def list_file_names(folder: Path) -> list[str]:
    """Return the names of the lesson files of a folder, in order. A README and hidden files are skipped."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise LessonFileError(f"Cannot read the folder {folder} ({error.strerror}).") from None
    return [name for name in names if re.fullmatch(r"(?!\.|readme\.md$).*\.md", name, re.IGNORECASE | re.DOTALL)]


def read_file(folder: Path, name: str) -> bytes:
    """Read a regular file. Reject symbolic links, and never block on a pipe."""
    path = folder / name
    # Windows has neither flag, and its symbolic links need a privilege: there the check before the open is enough.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        if path.is_symlink():
            raise LessonFileError(f"{name}:1: Symbolic links are not followed.")
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LessonFileError(f"{name}:1: Not a regular file.")
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise LessonFileError(f"{name}:1: {error.strerror}.") from None


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
        raise LessonFileError(f"Cannot create the folder {folder} ({error.strerror}).") from None
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
            raise LessonFileError(f"Cannot write {path} ({error.strerror}).") from None
        changed_count += 1
    return changed_count, unchanged_count
