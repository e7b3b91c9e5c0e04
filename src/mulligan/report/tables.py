"""Rendering of rows as terminal tables, plain text and CSV.

Untrusted text is sanitized: terminals execute escape sequences, and spreadsheets execute formulas.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.redaction import clean

LINE = 100
"""Maximum length of untrusted text in one line."""
DIM = "2"
NARROWEST = 10
"""Minimum width of a text column that is still readable."""

Fact = Mapping[str, Any]


def line(text: object, limit: int = LINE) -> str:
    """Return untrusted text as one sanitized line."""
    return " ".join(clean(str(text), limit).split())


def own(text: object) -> str:
    """Return the user's own text, such as settings, unredacted. Control characters are made visible."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 or not seconds else f"{seconds * 1e6:.0f} us"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def ago(then: int, now: int) -> str:
    """Format an age in one unit; `-` if the time is 0, because some logs have no timestamps."""
    if not then:
        return "-"
    seconds = max(0, (now - then) // 1000)
    for unit, length in (("day", 86400), ("h", 3600), ("min", 60)):
        number = seconds // length
        if number:
            return f"{number} {unit}{'s' if unit == 'day' and number > 1 else ''} ago"
    return f"{seconds} s ago"


def share(part: int, whole: int) -> str:
    """Format a ratio as a percentage. Only exact ratios are shown as 0 % or 100 %."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "<0.1 %"
    if 99.9 < percent < 100:
        return ">99.9 %"
    return f"{percent:.1f} %" if percent not in (0, 100) else f"{percent:.0f} %"


def heading(text: str, width: int | None, code: str = "1") -> str:
    """Style a title for a terminal: bold, or with the given ANSI code."""
    return text if width is None else f"\x1b[{code}m{text}\x1b[0m"


class Column(NamedTuple):
    """Column of a table: title, format and priority."""

    title: str
    show: Callable[[Fact], str]
    right: bool = False
    """Right-align the column, for numbers."""
    keep: int = 0
    """Columns with the lowest priority are omitted first on a narrow terminal; 9 is never omitted."""
    is_whole: bool = False
    """Never truncate the column, because a part of the value is useless, as for an id."""


def table(columns: Sequence[Column], facts: Iterable[Fact], width: int | None = None) -> Iterator[str]:
    """Render rows as aligned lines with titles, truncated to the width if there is one."""
    rows = [[column.title for column in columns], *([column.show(fact) for column in columns] for fact in facts)]
    left = list(range(len(columns)))
    widths = [max(wide(row[place]) for row in rows) for place in left]
    if width is not None:
        left = _fitting(columns, widths, width)
    for number, row in enumerate(rows):
        cells = [padded(row[place], widths[place], columns[place].right) for place in left]
        text = ("  " + "  ".join(cells)).rstrip()
        yield text if number else heading(text, width, DIM)


def _fitting(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """Return the indexes of the columns that fit. Narrow the widest texts first, then omit by priority."""
    left = list(range(len(columns)))

    def excess() -> int:
        return 2 * len(left) + sum(widths[place] for place in left) - width

    while (over := excess()) > 0:
        texts = [place for place in left if widths[place] > _least(columns[place], widths[place])]
        if texts:
            widest = max(texts, key=lambda place: widths[place])
            others = sorted((widths[place] for place in texts if place != widest), reverse=True)
            down_to = max(
                _least(columns[widest], 0), widths[widest] - over, min(others[0], widths[widest] - 1) if others else 0
            )
            widths[widest] = min(down_to, widths[widest] - 1)
            continue
        optional = [place for place in left if columns[place].keep < 9]
        if not optional:
            return left
        left.remove(min(optional, key=lambda place: (columns[place].keep, -place)))
    return left


def _least(column: Column, width: int) -> int:
    """Return the minimum width of a column."""
    if column.right or column.is_whole:
        return width
    return max(NARROWEST if column.keep < 7 else 2 * NARROWEST, wide(column.title))


def columns(rows: Iterable[Sequence[str]], right: Sequence[int] = (), width: int | None = None) -> Iterator[str]:
    """Render rows of texts as aligned lines. The column indexes in `right` are right-aligned."""
    table_ = [list(row) for row in rows]
    if not table_:
        return
    widths = [max(wide(row[place]) for row in table_) for place in range(len(table_[0]))]
    for row in table_:
        cells = [
            padded(cell, cell_width, place in right)
            for place, (cell, cell_width) in enumerate(zip(row, widths, strict=True))
        ]
        text = ("  " + "  ".join(cells)).rstrip()
        yield text if width is None else cut(text, width)


def pairs(rows: Iterable[tuple[str, str]], width: int | None = None) -> Iterator[str]:
    """Render name and text rows. Long texts wrap below themselves."""
    told = list(rows)
    left = max((wide(name) for name, _ in told), default=0)
    for name, text in told:
        room = None if width is None else max(20, width - left - 4)
        for place, part in enumerate(wrapped(text, room, "")):
            yield f"  {padded('' if place else name, left)}  {part}".rstrip()


def wide(text: str) -> int:
    """Return the display width of a text in terminal cells."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def padded(text: str, width: int, right: bool = False) -> str:
    text = cut(text, width)
    room = " " * (width - wide(text))
    return room + text if right else text + room


def cut(text: str, width: int) -> str:
    """Truncate a text to a display width. Three dots mark the cut."""
    if wide(text) <= width:
        return text
    kept, used = "", 0
    for each in text:
        used += wide(each)
        if used > max(width - 3, 0):
            break
        kept += each
    return kept + "..."[: max(0, min(3, width))]


def wrapped(text: str, width: int | None, indent: str = "  ", further: str | None = None) -> Iterator[str]:
    """Wrap a text to the terminal width; one line if there is no terminal."""
    if width is None or wide(indent + text) <= width:
        yield indent + text
        return
    import textwrap  # lazy: needed on narrow terminals only

    rest = indent if further is None else further
    yield from textwrap.wrap(
        text,
        max(width, len(rest) + 10),
        initial_indent=indent,
        subsequent_indent=rest,
        break_on_hyphens=False,  # commands such as `rev-parse --show-toplevel` stay copyable
    )


def as_csv(facts: Iterable[Fact], names: Sequence[str]) -> Iterator[str]:
    """Yield CSV lines with a header. A dotted name such as `seconds.p50` selects a nested value."""
    yield _csv_line(names)
    for fact in facts:
        yield _csv_line([_within(fact, name) for name in names])


def _within(fact: Fact, name: str) -> Any:
    value: Any = fact
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _csv_line(values: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([_guarded(value) for value in values])
    return text.getvalue()


def _guarded(value: Any) -> Any:
    """Prefix a text that a spreadsheet would execute as a formula. Numbers are safe."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = " ".join("".join(each if each.isprintable() else " " for each in str(value)).split())
    return f"'{text}" if text.startswith(_FORMULA) else text


_FORMULA = ("=", "+", "-", "@", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of formulas, including full-width forms that some programs accept."""
