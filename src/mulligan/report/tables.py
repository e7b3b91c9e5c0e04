"""Rows of facts as a table on a terminal, as plain text in a pipe, and as CSV.

Everything foreign passes `clean` on its way here: a terminal obeys what it is shown, and a spreadsheet what it is fed.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.redaction import clean

LINE = 100
"""Characters of a foreign text that are shown in one line."""
DIM = "2"
NARROWEST = 10
"""Columns of a text that must be left for it to say anything."""

Fact = Mapping[str, Any]


def line(text: object, limit: int = LINE) -> str:
    """One line, fit for a terminal."""
    return " ".join(clean(str(text), limit).split())


def own(text: object) -> str:
    """A line of the user's own, as settings are: addresses stay, and what a terminal would obey is seen to be there."""
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
    """How long ago, in one unit. Some logs do not say when."""
    if not then:
        return "-"
    seconds = max(0, (now - then) // 1000)
    for unit, length in (("day", 86400), ("h", 3600), ("min", 60)):
        number = seconds // length
        if number:
            return f"{number} {unit}{'s' if unit == 'day' and number > 1 else ''} ago"
    return f"{seconds} s ago"


def share(part: int, whole: int) -> str:
    """A part in per cent; never 100 % unless it is all, nor 0 % unless it is nothing."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "<0.1 %"
    if 99.9 < percent < 100:
        return ">99.9 %"
    return f"{percent:.1f} %" if percent not in (0, 100) else f"{percent:.0f} %"


def heading(text: str, width: int | None, code: str = "1") -> str:
    """A title that stands out on a terminal: bold, or as the code says."""
    return text if width is None else f"\x1b[{code}m{text}\x1b[0m"


class Column(NamedTuple):
    """How one fact is shown."""

    title: str
    show: Callable[[Fact], str]
    right: bool = False
    """Whether it holds numbers."""
    keep: int = 0
    """What is left out first when the terminal is too narrow: the lowest. 9 is never left out."""
    is_whole: bool = False
    """Whether it is of no use when it is cut, as an id is."""


def table(columns: Sequence[Column], facts: Iterable[Fact], width: int | None = None) -> Iterator[str]:
    """Aligned lines under their titles, cut to a terminal of this width, or as long as they are."""
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
    """The columns that stay; narrows the widest texts first, and then leaves out what matters least."""
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
    """To how many columns it may be cut."""
    if column.right or column.is_whole:
        return width
    return max(NARROWEST if column.keep < 7 else 2 * NARROWEST, wide(column.title))


def columns(rows: Iterable[Sequence[str]], right: Sequence[int] = (), width: int | None = None) -> Iterator[str]:
    """Rows of texts, aligned; the columns in `right` hold numbers."""
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
    """Names and what there is to say of each; what does not fit goes on below it."""
    told = list(rows)
    left = max((wide(name) for name, _ in told), default=0)
    for name, text in told:
        room = None if width is None else max(20, width - left - 4)
        for place, part in enumerate(wrapped(text, room, "")):
            yield f"  {padded('' if place else name, left)}  {part}".rstrip()


def wide(text: str) -> int:
    """How many columns of a terminal a text takes."""
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
    """At most this many columns of it; what is missing is told by three dots."""
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
    """A sentence in lines of a terminal's width; in one line where there is no terminal."""
    if width is None or wide(indent + text) <= width:
        yield indent + text
        return
    import textwrap  # only a narrow terminal needs it

    rest = indent if further is None else further
    yield from textwrap.wrap(
        text,
        max(width, len(rest) + 10),
        initial_indent=indent,
        subsequent_indent=rest,
        break_on_hyphens=False,  # what may be copied, such as `rev-parse --show-toplevel`, stays whole
    )


def as_csv(facts: Iterable[Fact], names: Sequence[str]) -> Iterator[str]:
    """A line of CSV for each, under the names. What is inside a fact has a name of its own: `seconds.p50`."""
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
    """A text that a spreadsheet would take for a formula is marked as a text; numbers are ours."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = " ".join("".join(each if each.isprintable() else " " for each in str(value)).split())
    return f"'{text}" if text.startswith(_FORMULA) else text


_FORMULA = ("=", "+", "-", "@", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a formula begins; some programs take the wide forms for the same."""
