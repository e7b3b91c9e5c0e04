"""Formatting of values for templates: numbers with units, times, and sanitized untrusted text.

Our own output is `Markup`. Jinja passes every other value to `untrusted`, so untrusted text never skips the sanitizer
that also protects the terminal (SAFETY S4).
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
"""Default limit of untrusted text in a template."""
VALUE = 4000
"""Limit of arguments or a result as JSON."""
NONE = Markup('<span class="quiet">\u2013</span>')
_PLAIN = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_@.:-]*")


def foreign(value: Any) -> Any:
    """Sanitize a value that Jinja is about to write (its `finalize` hook). `Markup`, integers and booleans pass."""
    if value is None:
        return ""
    if isinstance(value, Markup | bool | int | Undefined):
        return value
    said = value if isinstance(value, str) else str(value)
    shown = clean(said, LONGEST)
    # Literal text between expressions arrives here too, and its outer spaces are significant.
    return f"{' ' * said[:1].isspace()}{shown}{' ' * said[-1:].isspace()}" if shown else shown


def is_plain(value: str) -> bool:
    """Return whether sanitizing leaves a name unchanged.

    Filters offer only such names, so that a choice matches exactly.
    """
    return clean(value, LONGEST) == value


def text(value: Any, limit: int = LONGEST) -> Markup:
    """Return untrusted text, sanitized, escaped and truncated."""
    return escape(clean(str(value), limit))


def line(value: Any, limit: int = 160) -> Markup:
    """Return untrusted text on one line."""
    return escape(tables.line(value, limit))


def data(value: Any, limit: int = VALUE) -> Markup:
    """Return arguments or a result as JSON."""
    return escape(clean(encode(value).decode(), limit))


def brief(value: Any, limit: int = 120) -> Markup:
    """Return one value for a table cell: text unchanged, anything else as JSON."""
    return line(value if isinstance(value, str) else encode(value).decode(), limit)


def number(value: float) -> Markup:
    return Markup(f"{value:,}")


def count(value: int, noun: str) -> Markup:
    told = tables.count(value, noun)
    return Markup(told.replace("fixs", "fixes").replace("retrys", "retries"))


def percent(part: int, whole: int) -> Markup:
    return escape(tables.share(part, whole).replace(" %", "\u00a0%"))


def sure(confidence: float) -> Markup:
    """Format a confidence as a full percentage. Only exactly 1 becomes 100 %."""
    return Markup(f"{min(99, round(100 * confidence)) if confidence < 1 else 100}\u00a0%")


def seconds(value: float | None) -> Markup:
    return NONE if value is None else Markup(tables.duration(value).replace(" ", "\u00a0"))


def ago(then: int, now: int) -> Markup:
    return Markup(tables.ago(then, now))


def day(millis: int) -> Markup:
    return Markup(time.strftime("%b %d", time.gmtime(millis / 1000)))


def date(millis: int) -> str:
    """Return the ISO date for URLs and form fields."""
    return time.strftime("%Y-%m-%d", time.gmtime(millis / 1000))


def hour(millis: int) -> Markup:
    return Markup(time.strftime("%H:%M", time.gmtime(millis / 1000)))


def moment(millis: int) -> Markup:
    """Render a timestamp as a `<time>` element in UTC."""
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
    """Return the path of a detail page. A name that is not safe in a path becomes a query parameter."""
    if _PLAIN.fullmatch(name):
        return f"/{section}/{name}"
    return f"/{section}?name={quote(name, safe='', errors='replace')}"
