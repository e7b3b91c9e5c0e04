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

from mulligan.contract.run_facts import RunFact
from mulligan.core.failure import Failure
from mulligan.core.records import encode
from mulligan.redaction import sanitize
from mulligan.redaction.text_sanitizer import CUT_MARK
from mulligan.report import tables

MAX_TEXT_CHARS = 900
"""Default limit of untrusted text in a template."""
MAX_TRACE_CHARS = 6000
"""Limit of a stack trace. Those of other programs may be longer than mulligan's own."""
NONE = Markup('<span class="quiet">\u2013</span>')
_PATH_SAFE_NAME = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_@.:-]*")


def untrusted(value: Any) -> Any:
    """Sanitize a value that Jinja is about to write (its `finalize` hook). `Markup`, integers and booleans pass."""
    if value is None:
        return ""
    if isinstance(value, Markup | bool | int | Undefined):
        return value
    raw_text = value if isinstance(value, str) else str(value)
    sanitized = sanitize(raw_text, MAX_TEXT_CHARS)
    # Literal text between expressions arrives here too, and its outer spaces are significant.
    return f"{' ' * raw_text[:1].isspace()}{sanitized}{' ' * raw_text[-1:].isspace()}" if sanitized else sanitized


def text(value: Any, limit: int = MAX_TEXT_CHARS) -> Markup:
    """Return untrusted text, sanitized, escaped and truncated."""
    return escape(sanitize(str(value), limit))


def stack_trace(failure: Failure) -> Markup:
    """Return the class and the stack trace of a failure's exception."""
    return escape(sanitize(f"{failure.exception}\n{failure.trace}", MAX_TRACE_CHARS, has_frames=True))


def line(value: Any, limit: int = 160) -> Markup:
    """Return untrusted text on one line, with an ellipsis where it was cut."""
    return escape(tables.to_line(value, limit).replace(f" {CUT_MARK} ", "…"))


def plain_line(value: Any, limit: int) -> str:
    """Return untrusted text on one line, sanitized but not escaped."""
    return line(value, limit).unescape()


def data(value: Any, limit: int = 4000) -> Markup:  # limit of arguments or a result as JSON
    """Return arguments or a result as JSON."""
    return escape(sanitize(encode(value).decode(), limit))


def brief(value: Any) -> Markup:
    """Return one value for a table cell: text unchanged, anything else as JSON."""
    return line(value if isinstance(value, str) else encode(value).decode(), 120)


def number(value: float) -> Markup:
    return Markup(f"{value:,}")


def count(value: int, noun: str) -> Markup:
    return Markup(tables.format_count(value, noun))


def percent(part: int, total: int) -> Markup:
    return escape(tables.format_share(part, total).replace(" %", "\u00a0%"))


def format_confidence(confidence: float) -> Markup:
    """Format a confidence as a full percentage. Only exactly 1 becomes 100 %."""
    return Markup(f"{min(99, round(100 * confidence)) if confidence < 1 else 100}\u00a0%")


def seconds(value: float | None) -> Markup:
    return NONE if value is None else Markup(tables.format_duration(value).replace(" ", "\u00a0"))


def dollars(nanos: int) -> Markup:
    return Markup(tables.format_dollars(nanos))


def format_fact(fact: RunFact, value: float | None) -> Markup:
    if value is None:
        return NONE
    match fact.unit:
        case "usd":
            return dollars(round(value * fact.scale))
        case "seconds":
            return seconds(value)
        case "":
            return number(value)


def ago(then: int, now: int) -> Markup:
    return Markup(tables.format_age(then, now))


def day(millis: int) -> Markup:
    return Markup(time.strftime("%b %d", time.gmtime(millis / 1000)))


def date(millis: int) -> str:
    """Return the ISO date for URLs and form fields."""
    return time.strftime("%Y-%m-%d", time.gmtime(millis / 1000))


def hour(millis: int) -> Markup:
    return Markup(time.strftime("%H:%M", time.gmtime(millis / 1000)))


def format_timestamp(millis: int) -> Markup:
    """Render a timestamp as a `<time>` element in UTC."""
    if not 0 < millis < 253_402_300_800_000:
        return NONE
    at = time.gmtime(millis / 1000)
    day, clock = time.strftime("%Y-%m-%d", at), time.strftime("%H:%M:%S", at)
    # In a narrow column it breaks between day and time only.
    return Markup(f'<time datetime="{day}T{clock}Z" title="{day} {clock} UTC"><span>{day}</span> {clock}</time>')


def size(number: float) -> Markup:
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1024 or unit == "GB":
            return Markup(f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:,.1f} {unit}")
        number /= 1024
    raise AssertionError


def detail_path(section: str, name: str) -> str:
    """Return the path of a detail page. A name that is not safe in a path becomes a query parameter."""
    if _PATH_SAFE_NAME.fullmatch(name):
        return f"/{section}/{name}"
    return f"/{section}?name={quote(name, safe='', errors='replace')}"
