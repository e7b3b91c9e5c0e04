"""Rendering of rows as terminal tables, plain text and CSV, and the formats of times and counts in them.

Untrusted text is sanitized: terminals execute escape sequences, and spreadsheets execute formulas.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.core.records import to_builtins
from mulligan.redaction import sanitize

MAX_LINE_CHARS = 100
"""Maximum length of untrusted text in one line."""
DIM = "2"
SHOWN_ID_CHARS = 12
"""Characters of an id in a list: short enough to type, long enough to be unique."""
MIN_TEXT_WIDTH = 10
"""Minimum width of a text column that is still readable."""

_UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
ACCEPTED_FORMATS = "an age such as 24h or 7d (units m, h, d, w) or a date such as 2026-01-31"

Fact = Mapping[str, Any]


def to_line(text: object, limit: int = MAX_LINE_CHARS) -> str:
    """Return untrusted text as one sanitized line."""
    return " ".join(sanitize(str(text), limit).split())


def escape_hidden(text: str) -> str:
    """Return a stored value with control and invisible characters as escapes, such as `\\u001b`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape_character(c) for c in text)


def _escape_character(character: str) -> str:
    return json.dumps(character)[1:-1]


def trusted_line(text: object) -> str:
    """Return the user's own text, such as settings, unredacted. Control characters are made visible."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def to_facts(record: Any, *names: str) -> dict[str, Any]:
    """Return a record as JSON. The named fields are present even if they have their defaults."""
    return {name: getattr(record, name) for name in names} | dict(to_builtins(record))


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun, in the plural unless it is one."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("x"):
        return f"{number:,} {noun}es"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("ry") else f"{number:,} {noun}s"


def format_duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 or not seconds else f"{seconds * 1e6:.0f} us"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def format_dollars(nanos: int) -> str:
    """Format billionths of a US dollar, with two digits at least."""
    dollars = nanos / 1e9
    if dollars >= 1 or not nanos:
        return f"${dollars:,.2f}"
    return f"${dollars:.{min(9, max(2, 1 - math.floor(math.log10(dollars))))}f}"


def format_age(then: int, now: int) -> str:
    """Format an age in one unit; `-` if the time is 0, because some logs have no timestamps."""
    if not then:
        return "-"
    seconds = max(0, (now - then) // 1000)
    for unit, length in (("day", 86400), ("h", 3600), ("min", 60)):
        number = seconds // length
        if number:
            return f"{number} {unit}{'s' if unit == 'day' and number > 1 else ''} ago"
    return f"{seconds} s ago"


def format_timestamp(millis: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(millis / 1000))


def parse_time(text: str | None, now: int) -> int | None:
    """Parse an age such as `7d`, or a date, as UTC milliseconds. `all` and `None` give `None`.

    Raise `ValueError` for any other text.
    """
    if text is None or text == "all":
        return None
    match = re.fullmatch(r"([0-9]{1,5})([mhdw])", text, re.ASCII)
    if match is not None:
        return now - int(match[1]) * _UNIT_SECONDS[match[2]] * 1000
    import datetime  # lazy: needed for dates only

    parsed = datetime.datetime.fromisoformat(text)
    try:
        return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp() * 1000)
    except OverflowError:
        raise ValueError(f"date {text} is out of range") from None


def format_share(part: int, total: int) -> str:
    """Format a ratio as a percentage. Only exact ratios are shown as 0 % or 100 %."""
    if not total:
        return "-"
    percent = 100 * part / total
    if 0 < percent < 0.1:
        return "<0.1 %"
    if 99.9 < percent < 100:
        return ">99.9 %"
    return f"{percent:.1f} %" if percent not in (0, 100) else f"{percent:.0f} %"


def style_heading(text: str, width: int | None, code: str = "1") -> str:
    """Style a title for a terminal: bold, or with the given ANSI code."""
    return text if width is None else f"\x1b[{code}m{text}\x1b[0m"


class TableColumn(NamedTuple):
    """Column of a table: title, format and priority."""

    title: str
    show: Callable[[Fact], str]
    is_right_aligned: bool = False
    """Right-align the column, for numbers."""
    priority: int = 0
    """Columns with the lowest priority are omitted first on a narrow terminal; 9 is never omitted."""
    needs_full_width: bool = False
    """Never truncate the column, because a part of the value is useless, as for an id."""


def render_table(columns: Sequence[TableColumn], facts: Iterable[Fact], width: int | None = None) -> Iterator[str]:
    """Render rows as aligned lines with titles, truncated to the width if there is one."""
    rows = [[column.title for column in columns], *([column.show(fact) for column in columns] for fact in facts)]
    shown_indexes = list(range(len(columns)))
    widths = [max(display_width(row[index]) for row in rows) for index in shown_indexes]
    if width is not None:
        shown_indexes = _fit_columns(columns, widths, width)
    right = [index for index in shown_indexes if columns[index].is_right_aligned]
    for number, row in enumerate(rows):
        text = _align_row(row, widths, right, shown_indexes)
        yield text if number else style_heading(text, width, DIM)


def _align_row(row: Sequence[str], widths: Sequence[int], right: Sequence[int], indexes: Iterable[int]) -> str:
    cells = (pad_text(row[index], widths[index], index in right) for index in indexes)
    return f"  {'  '.join(cells)}".rstrip()


def _fit_columns(columns: Sequence[TableColumn], widths: list[int], width: int) -> list[int]:
    """Return the indexes of the columns that fit, and set their widths.

    Narrow the widest texts first. If that does not suffice, omit the column with the lowest priority and start again:
    the other columns get its space.
    """
    natural_widths = list(widths)
    remaining = list(range(len(columns)))
    while True:
        for index in remaining:
            widths[index] = natural_widths[index]
        if _narrow_texts(columns, widths, remaining, width):
            return remaining
        optional = [index for index in remaining if columns[index].priority < 9]
        if not optional:
            return remaining
        remaining.remove(min(optional, key=lambda index: (columns[index].priority, -index)))


def _narrow_texts(columns: Sequence[TableColumn], widths: list[int], indexes: Sequence[int], width: int) -> bool:
    """Narrow the widest texts until the columns fit. Return whether they do."""
    while (overflow := 2 * len(indexes) + sum(widths[index] for index in indexes) - width) > 0:
        texts = [index for index in indexes if widths[index] > _min_width(columns[index], widths[index])]
        if not texts:
            return False
        widest = max(texts, key=lambda index: widths[index])
        others = sorted((widths[index] for index in texts if index != widest), reverse=True)
        down_to = max(
            _min_width(columns[widest], 0),
            widths[widest] - overflow,
            min(others[0], widths[widest] - 1) if others else 0,
        )
        widths[widest] = min(down_to, widths[widest] - 1)
    return True


def _min_width(column: TableColumn, width: int) -> int:
    if column.is_right_aligned or column.needs_full_width:
        return width
    return max(MIN_TEXT_WIDTH if column.priority < 7 else 2 * MIN_TEXT_WIDTH, display_width(column.title))


def render_columns(rows: Iterable[Sequence[str]], right: Sequence[int] = (), width: int | None = None) -> Iterator[str]:
    """Render rows of texts as aligned lines. The column indexes in `right` are right-aligned."""
    table_rows = [list(row) for row in rows]
    if not table_rows:
        return
    widths = [max(display_width(row[index]) for row in table_rows) for index in range(len(table_rows[0]))]
    for row in table_rows:
        text = _align_row(row, widths, right, range(len(widths)))
        yield text if width is None else truncate(text, width)


def render_pairs(rows: Iterable[tuple[str, str]], width: int | None = None) -> Iterator[str]:
    """Render name and text rows. Long texts wrap below themselves."""
    entries = list(rows)
    name_width = max((display_width(name) for name, _ in entries), default=0)
    for name, text in entries:
        text_width = None if width is None else max(20, width - name_width - 4)
        for index, part in enumerate(wrap_text(text, text_width, "")):
            yield f"  {pad_text('' if index else name, name_width)}  {part}".rstrip()


def display_width(text: str) -> int:
    """Return the display width of a text in terminal cells."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def pad_text(text: str, width: int, right: bool = False) -> str:
    text = truncate(text, width)
    padding = " " * (width - display_width(text))
    return padding + text if right else text + padding


def truncate(text: str, width: int) -> str:
    """Truncate a text to a display width. Three dots mark the cut."""
    if display_width(text) <= width:
        return text
    visible, used_width = "", 0
    for character in text:
        used_width += display_width(character)
        if used_width > max(width - 3, 0):
            break
        visible += character
    return visible + "..."[: max(0, min(3, width))]


def wrap_text(text: str, width: int | None, indent: str = "  ", further: str | None = None) -> Iterator[str]:
    """Wrap a text to the terminal width; one line if there is no terminal."""
    if width is None or display_width(indent + text) <= width:
        yield indent + text
        return
    further_indent = indent if further is None else further
    columns = max(width, display_width(further_indent) + MIN_TEXT_WIDTH)
    line, is_empty = indent, True
    for chunk in re.findall(r" *[^ ]+", text):
        if not is_empty and display_width(line + chunk) > columns:
            yield line
            line, chunk = further_indent, chunk.lstrip()
        while display_width(line + chunk) > columns:  # a word longer than a line
            fitting = _fitting_chars(chunk, columns - display_width(line))
            yield line + chunk[:fitting]
            line, chunk = further_indent, chunk[fitting:]
        line, is_empty = line + chunk, False
    if not is_empty:
        yield line


def _fitting_chars(text: str, width: int) -> int:
    """Return how many characters of a text fit into this display width, at least one."""
    used_width = 0
    for index, character in enumerate(text):
        used_width += display_width(character)
        if used_width > width:
            return max(1, index)
    return len(text)


def render_csv(facts: Iterable[Fact], names: Sequence[str]) -> Iterator[str]:
    """Yield CSV lines with a header. A dotted name such as `latency_seconds.p50` selects a nested value."""
    yield _csv_line(names)
    for fact in facts:
        yield _csv_line([_nested_value(fact, name) for name in names])


def _nested_value(fact: Fact, name: str) -> Any:
    value: Any = fact
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _csv_line(values: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([_escape_formula(value) for value in values])
    return text.getvalue()


def _escape_formula(value: Any) -> Any:
    """Prefix a text that a spreadsheet would execute as a formula. Numbers are safe."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = " ".join("".join(character if character.isprintable() else " " for character in str(value)).split())
    return f"'{text}" if text.startswith(_FORMULA_PREFIXES) else text


_FORMULA_PREFIXES = ("=", "+", "-", "@", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of formulas, including full-width forms that some programs accept."""
