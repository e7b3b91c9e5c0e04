"""How a value is written on a page: figures with their unit, times, and what strangers wrote, cleaned and escaped.

What is ours comes out as `Markup`; whatever else reaches a template is taken for foreign (`foreign`), so that nothing a
stranger wrote can miss the filter that guards the terminal too (SAFETY S4).
"""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import quote

from jinja2 import Undefined
from markupsafe import Markup, escape

from mulligan.records import encode
from mulligan.redaction import clean
from mulligan.report import tables

LONGEST = 900
"""Characters of a foreign text, unless a template asks for more."""
VALUE = 4000
"""Characters of arguments or a result as JSON."""
NONE = Markup('<span class="quiet">\u2013</span>')
_PLAIN = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_@.:-]*")


def foreign(value: Any) -> Any:
    """What Jinja does with every value that it writes: texts that are not ours are made fit to be shown."""
    if value is None:
        return ""
    if isinstance(value, Markup | bool | int | Undefined):
        return value
    said = value if isinstance(value, str) else str(value)
    shown = clean(said, LONGEST)
    # Our own words between values come here too, and their spaces are meant.
    return f"{' ' * said[:1].isspace()}{shown}{' ' * said[-1:].isspace()}" if shown else shown


def is_plain(value: str) -> bool:
    """Whether a name is shown as it is. Only such ones are offered: what is chosen is what is asked."""
    return clean(value, LONGEST) == value


def text(value: Any, limit: int = LONGEST) -> Markup:
    """A foreign text, up to a number of characters."""
    return escape(clean(str(value), limit))


def line(value: Any, limit: int = 160) -> Markup:
    """The same in one line."""
    return escape(tables.line(value, limit))


def data(value: Any, limit: int = VALUE) -> Markup:
    """Arguments or a result, as JSON."""
    return escape(clean(encode(value).decode(), limit))


def brief(value: Any, limit: int = 120) -> Markup:
    """One value in a table: a text as it is, anything else as JSON."""
    return line(value if isinstance(value, str) else encode(value).decode(), limit)


def number(value: float) -> Markup:
    return Markup(f"{value:,}")


def count(value: int, noun: str) -> Markup:
    told = tables.count(value, noun)
    return Markup(told.replace("fixs", "fixes").replace("retrys", "retries"))


def percent(part: int, whole: int) -> Markup:
    return escape(tables.share(part, whole).replace(" %", "\u00a0%"))


def sure(confidence: float) -> Markup:
    """How sure, in whole per cent; never all of it unless it is."""
    return Markup(f"{min(99, round(100 * confidence)) if confidence < 1 else 100}\u00a0%")


def seconds(value: float | None) -> Markup:
    return NONE if value is None else Markup(tables.duration(value).replace(" ", "\u00a0"))


def ago(then: int, now: int) -> Markup:
    return Markup(tables.ago(then, now))


def day(millis: int) -> Markup:
    return Markup(time.strftime("%b %d", time.gmtime(millis / 1000)))


def date(millis: int) -> str:
    """As a URL and a field of a form have it."""
    return time.strftime("%Y-%m-%d", time.gmtime(millis / 1000))


def hour(millis: int) -> Markup:
    return Markup(time.strftime("%H:%M", time.gmtime(millis / 1000)))


def moment(millis: int) -> Markup:
    """Readable, with what a machine reads beside it; all times are UTC."""
    if not 0 < millis < 253_402_300_800_000:
        return NONE
    at = time.gmtime(millis / 1000)
    whole = time.strftime("%Y-%m-%d %H:%M:%S UTC", at)
    told = time.strftime("%b %d %H:%M:%S", at)
    return Markup(f'<time datetime="{whole[:10]}T{whole[11:19]}Z" title="{whole}">{told}</time>')


def size(number: float) -> Markup:
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1024 or unit == "GB":
            return Markup(f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:,.1f} {unit}")
        number /= 1024
    raise AssertionError


def place(section: str, name: str) -> str:
    """Where the page of one thing is. A name that would mean something in a path goes behind a question mark."""
    if _PLAIN.fullmatch(name):
        return f"/{section}/{name}"
    return f"/{section}?name={quote(name, safe='', errors='replace')}"
