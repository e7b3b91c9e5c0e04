"""Parsing of Retry-After values from headers and error text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from mulligan.redaction import lazy_regex

MAX_RETRY_AFTER_SECONDS = 7 * 24 * 3600.0
"""A longer delay than a week is ignored as a mistake."""

_SPAN = (
    r"(\d{1,9}(?:\.\d{1,9})?)\s?(milliseconds?|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|"
    r"days?|d)?(?![a-z])"
)
_RETRY_PATTERN = (
    r"(?:try(?:ing)? (?:your request )?again|retry(?:ing)?|retry your request|wait|resets?|available|back off|expires?)"
    r"(?: \w{1,12}){0,2}? (?:in|after|for|at least)(?: at least| about| another)? " + _SPAN
)
_WAIT_PATTERN = r"\bwait (?:at least |about |another )?" + _SPAN
_FIELD = (
    r"""["']?\bretry[-_ ]?(?:after|delay|in)(?:[-_ ]?(ms|milliseconds?|seconds?|secs?|s))?["']?"""
    r"""\s{0,3}[:=]\s{0,3}["']?""" + _SPAN
)


@cache
def _re(pattern: str) -> re.Pattern[str]:
    return lazy_regex.compile_regex(pattern, re.IGNORECASE)


def parse_retry_after(headers: Mapping[str, str], text: str = "", now: float | None = None) -> float | None:
    """Return the seconds to wait from the headers (names in lower case), else from the text, else None.

    A date is compared with the response's own `Date` header, so that a wrong local clock has no effect. Without that
    header `now` or the clock is used.
    """
    for seconds in (_from_headers(headers, now), _from_text(text)):
        if seconds is not None and 0 <= seconds <= MAX_RETRY_AFTER_SECONDS:
            return round(seconds, 3)
    return None


def _from_headers(headers: Mapping[str, str], now: float | None) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001), ("x-retry-after-ms", 0.001)):
        if name in headers and (number := _float(headers[name])) is not None:
            return number * unit
    for name in ("retry-after", "x-retry-after"):
        if name in headers:
            header_value = headers[name].strip()
            number = _float(header_value)
            if number is None:
                number = _parse_span(header_value)
            return number if number is not None else _seconds_until(header_value, headers, now)
    resets = []
    for name, value in headers.items():
        if name.startswith(("x-ratelimit-reset", "ratelimit-reset", "anthropic-ratelimit")) and name.endswith(
            ("reset", "reset-requests", "reset-tokens")
        ):
            remaining = headers.get(name.replace("reset", "remaining"))
            if remaining is not None and _float(remaining) not in (0.0, None):
                continue  # this rate limit is not the exhausted one
            seconds = _parse_reset(value.strip(), headers, now)
            if seconds is not None:
                resets.append(seconds)
    return max(resets) if resets else None


def _parse_reset(reset_value: str, headers: Mapping[str, str], now: float | None) -> float | None:
    number = _float(reset_value)
    if number is None:
        span = _parse_span(reset_value)
        return span if span is not None else _seconds_until(reset_value, headers, now)
    if number > 1e12:
        number /= 1000
    if number > 1e9:  # a timestamp, not a duration
        return max(0.0, number - _now(headers, now))
    return number


def _from_text(text: str) -> float | None:
    lower = text.lower()
    if "retry" not in lower and "again" not in lower and "wait" not in lower and "reset" not in lower:
        return None
    match = _re(_FIELD).search(text)
    if match:
        unit = "ms" if (match.group(1) or "").startswith(("ms", "milli")) else match.group(3)
        return _to_seconds(match.group(2), unit)
    for pattern in (_RETRY_PATTERN, _WAIT_PATTERN):
        match = _re(pattern).search(text)
        if match:
            span_seconds = _parse_span(text[match.start(1) : match.start(1) + 40])
            return span_seconds if span_seconds is not None else _to_seconds(match.group(1), match.group(2))
    return None


def _parse_span(text: str) -> float | None:
    """Parse a duration such as `6m0s`, `1h2m3.5s`, `7.66s` or `20 seconds` at the start of the text."""
    total, at, has_match = 0.0, 0, False
    while match := _re(
        r"\s?(\d{1,9}(?:\.\d{1,9})?)\s?(milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|"
        r"d)(?![a-z])"
    ).match(text, at):
        total += _to_seconds(match.group(1), match.group(2))
        at, has_match = match.end(), True
    return total if has_match else None


def _to_seconds(number: str, unit: str | None) -> float:
    unit = (unit or "s").lower()
    if unit.startswith(("ms", "milli")):
        return float(number) / 1000
    return float(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit[0]]


def _float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number and number >= 0 else None


def _seconds_until(date: str, headers: Mapping[str, str], now: float | None) -> float | None:
    timestamp = _parse_timestamp(date)
    return None if timestamp is None else max(0.0, timestamp - _now(headers, now))


def _now(headers: Mapping[str, str], now: float | None) -> float:
    if now is not None:
        return now
    server_time = _parse_timestamp(headers.get("date", ""))
    if server_time is not None:
        return server_time
    import time  # lazy: needed for a date without a Date header only

    return time.time()


def _parse_timestamp(date: str) -> float | None:
    if not date:
        return None
    from datetime import UTC, datetime  # lazy: email and datetime cost 8 ms, and dates in headers are rare
    from email.utils import parsedate_to_datetime

    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            parsed_time = parse(date)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return (parsed_time if parsed_time.tzinfo else parsed_time.replace(tzinfo=UTC)).timestamp()
    return None
