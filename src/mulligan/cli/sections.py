"""Marked section in a file that people edit: find it, replace it, change nothing else.

    <!-- mulligan:begin ... -->
    lessons
    <!-- mulligan:end -->

Pure functions on text. Damaged marks raise an error that names the line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mulligan.core.failure import SettingsError

BEGIN = "<!-- mulligan:begin, written by `mulligan prompt`: text between these two lines is replaced -->"
END = "<!-- mulligan:end -->"

_MARK = re.compile(r"<!--\s{0,9}mulligan:(begin|end)\b")
_MARK_LINE = re.compile(r"[ \t]{0,9}<!--\s{0,9}mulligan:(?:begin|end)\b(?:(?!-->|<!--).){0,300}-->\s{0,9}")


class _Section(NamedTuple):
    first: int
    """Line number of the begin mark."""
    last: int
    """Line number of the end mark."""


def replace_section(text: str, body: str, name: str) -> str:
    """Return the text with a new body in its marked section. Append the section if there is none.

    All other text stays unchanged, and the section uses the file's line endings. `name` is the file's name for errors.
    """
    if _MARK.search(body):
        raise ValueError("A section must not contain its own marks.")
    lines = text.split("\n")
    existing_section = _find_section(lines, name)
    is_crlf = lines[existing_section.first].endswith("\r") if existing_section else "\r\n" in text
    ending = "\r\n" if is_crlf else "\n"
    section = [BEGIN, *body.strip("\n").split("\n"), END]
    if existing_section is None:
        before = text if not text or text.endswith("\n") else f"{text}{ending}"
        gap = ending if before.strip() and not before.endswith(ending * 2) else ""
        return f"{before}{gap}{ending.join(section)}{ending}"
    tail = "\r" if lines[existing_section.last].endswith("\r") else ""
    return "\n".join(
        [*lines[: existing_section.first], ending.join(section) + tail, *lines[existing_section.last + 1 :]]
    )


def _find_section(lines: list[str], name: str) -> _Section | None:
    """Return the section's position, or None if the text has no marks."""
    begins: list[int] = []
    ends: list[int] = []
    for number, line in enumerate(lines):
        mark = _MARK.search(line)
        if mark is None:
            continue
        if not _MARK_LINE.fullmatch(line):
            raise _damaged_marks_error(
                name, f"the mulligan:{mark[1]} mark in line {number + 1} shares its line with other text"
            )
        (begins if mark[1] == "begin" else ends).append(number)
    if not begins and not ends:
        return None
    if len(begins) > 1 or len(ends) > 1:
        mark_name, mark_lines = ("begin", begins) if len(begins) > 1 else ("end", ends)
        where = " and ".join(str(number + 1) for number in mark_lines[:3])
        raise _damaged_marks_error(name, f"{len(mark_lines)} mulligan:{mark_name} marks, in lines {where}")
    if not begins or not ends:
        present, missing = ("begin", "end") if begins else ("end", "begin")
        raise _damaged_marks_error(
            name, f"mulligan:{present} in line {(begins or ends)[0] + 1} has no mulligan:{missing}"
        )
    if begins[0] > ends[0]:
        raise _damaged_marks_error(
            name, f"mulligan:end in line {ends[0] + 1} precedes mulligan:begin in line {begins[0] + 1}"
        )
    return _Section(begins[0], ends[0])


def _damaged_marks_error(name: str, problem: str) -> SettingsError:
    return SettingsError(
        f"{name}: {problem}. Fix the marks, or remove them all to get a new section; nothing was changed."
    )
