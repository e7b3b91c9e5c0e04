"""Numbers in error texts and headers: how long to wait, and by how much a conversation exceeds the context window.

Errors similar to an overflow need other remedies: throttling by tokens (retry), an answer limit set too high or an
image that is too large (repair). Only `parse_overflow` tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from mulligan.classify.rules import read_patterns
from mulligan.redaction.regex import compile_regex, index_patterns, search_likely

MAX_RETRY_AFTER_SECONDS = 35 * 24 * 3600.0
"""A longer delay is ignored as a mistake. The quota of a month clears earlier."""

_NUMBER = r"(?:\d{1,9}(?:\.\d{1,9})?|an?|one)"
_UNIT = r"(?:milliseconds?|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w)"
_SPAN = rf"({_NUMBER})\s?({_UNIT})?(?![a-z])"
_RETRY_PATTERN = (
    r"(?:try(?:ing)? (?:your request )?again|retry(?:ing)?|retry your request|wait|resets?|available|back off|expires?|"
    r"cool(?:ing)? ?down|clears?|renews?|refreshes|slow down|back|unlocks?|replenish\w{0,3}|next (?:request|call))"
    r"(?: \w{1,12}){0,2}? (?:in|after|for|at least|within)(?: at least| about| another| approximately)? " + _SPAN
)
_WAIT_PATTERN = r"\bwait (?:at least |about |another |for )?" + _SPAN
_FIELD = (
    r"""["']?\b(?:retry[-_ ]?(?:after|delay|in)|(?:quota|rate_?limit)?_?reset[-_ ]?(?:delay|in|after)|wait[-_]?time|"""
    r"""time[-_]?remaining|estimated_time)(?:[-_ ]?(ms|milliseconds?|seconds?|secs?|s))?["']?"""
    r"""\s{0,3}[:=]\s{0,3}["']?""" + _SPAN
)
_DATE = (
    r"(\d{4}-\d\d-\d\d[T ][\d:.]{5,18}(?:Z| ?[+-]\d\d:?\d\d| ?UTC)?|[a-z]{3}, \d\d [a-z]{3} \d{4} [\d:]{8} gmt|"
    r"(?<=[:= |\"'])1\d{9}(?:\d{3})?(?!\d))"
)
_RESET_FIELD = (
    r"""["']?\b(?:retry[-_]?after|(?:\w{1,20}[-_]?)?resets?(?:[-_]?(?:at|time(?:[-_]?stamp)?|date))?)["']?"""
    rf"""\s{{0,3}}[:=]\s{{0,3}}["']?{_DATE}"""
)
_RESET_TIME = (
    rf"(?:try again|retry|resets?|available|until|renews?|clears?|back|limit reached(?=\|))\b[^\n.]{{0,40}}?{_DATE}"
)
_CLOCK = (
    r"(?:try again|retry|resets?|available|until|renews?|clears?|back)\b(?: \w{1,12}){0,3}? (?:at |by )?"
    r"(midnight|noon|\d{1,2}(?::\d\d)?\s?[ap]\.?m\b\.?|\d{1,2}:\d\d(?::\d\d)?)"
    r"(?: \(?(utc|gmt|z|[pmce][sd]?t|pacific|eastern|central|mountain|[a-z]{4,10}/[a-z_]{3,20})\b)?"
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"({'|'.join(_MONTHS)})[a-z]{{0,6}}\.?"
_DAY = (
    r"(?:try again|retry|resets?|available|until|renews?|clears?|back)\b[^\n.]{0,20}?\b"
    rf"(?:{_MONTH} (\d{{1,2}})|(\d{{1,2}})\.?(?:st|nd|rd|th)? {_MONTH})(?:st|nd|rd|th)?\b(?:,? (\d{{4}})\b)?"
)
"""A date in words, with or without a year."""
_ZONES = {"p": "America/Los_Angeles", "m": "America/Denver", "c": "America/Chicago", "e": "America/New_York"}
"""Zones by the first letter of their English names and abbreviations: PST, Pacific."""
_NEXT_MONTH = (
    r"(?:resets?|renews?|clears?|refreshes)\b[^\n.]{0,30}\b"
    r"(?:the 1st|(?:first|beginning) of (?:the |next )?month|next month)"
)


def parse_retry_after(headers: Mapping[str, str], text: str = "", now: float | None = None) -> float | None:
    """Return the seconds to wait from the headers (names in lower case), else from the text, else None.

    A date is compared with the response's own `Date` header, so that a wrong local clock has no effect. Without that
    header `now` or the clock is used.
    """
    for seconds in (_from_headers(headers, now), _from_text(text, headers, now)):
        if seconds is not None and 0 <= seconds <= MAX_RETRY_AFTER_SECONDS:
            return round(seconds, 3)
    return None


def _from_headers(headers: Mapping[str, str], now: float | None) -> float | None:
    for name in ("retry-after-ms", "x-ms-retry-after-ms", "x-retry-after-ms"):
        if name in headers and (number := _float(headers[name])) is not None:
            return number / 1000
    for name in ("retry-after", "x-retry-after", "x-ratelimit-retry-after"):
        if name in headers:
            value = headers[name].strip()
            number = _float(value)
            return number if number is not None else _parse_time(value, headers, now)
    resets = []
    for name, value in headers.items():
        if "reset" in name and ("ratelimit" in name or "rate-limit" in name):
            remaining = headers.get(name.replace("reset-after", "remaining").replace("reset", "remaining"))
            if remaining is not None and _float(remaining) not in (0.0, None):
                continue  # this rate limit is not the exhausted one
            resets.append(_parse_reset(value.strip(), headers, now))
        elif name in ("ratelimit", "x-ratelimit"):  # the structured header: "default";r=0;t=50 or reset=50, remaining=0
            match = compile_regex(r"(?:\bt|\breset)=(\d{1,9})").search(value)
            is_left = compile_regex(r"(?:\br|\bremaining)=0*[1-9]").search(value)
            resets.append(float(match[1]) if match and not is_left else None)
    return max((seconds for seconds in resets if seconds is not None), default=None)


def _parse_reset(value: str, headers: Mapping[str, str], now: float | None) -> float | None:
    number = _float(value)
    if number is None:
        return _parse_time(value, headers, now)
    if number > 1e12:
        number /= 1000
    return max(0.0, number - _now(headers, now)) if number > 1e9 else number  # a timestamp, or a duration


def _parse_time(value: str, headers: Mapping[str, str], now: float | None) -> float | None:
    """Return the seconds of a duration, or until a date."""
    span = _parse_span(value)
    timestamp = _parse_timestamp(value) if span is None else None
    return span if timestamp is None else max(0.0, timestamp - _now(headers, now))


def _from_text(text: str, headers: Mapping[str, str], now: float | None) -> float | None:
    lower = text.lower()
    for pattern in (_RESET_FIELD, _RESET_TIME):
        if match := search_likely(pattern, text, lower):
            return _parse_reset(match.group(1), headers, now) or None  # a time that has passed tells nothing
    if (seconds := parse_delay(text)) is not None:
        return seconds
    if match := search_likely(_DAY, text, lower):
        month, day = match.group(1) or match.group(4), match.group(2) or match.group(3)
        return _seconds_until_day(month.lower(), int(day), match.group(5), _now(headers, now))
    if match := search_likely(_CLOCK, text, lower):
        return _seconds_until_clock(match.group(1).lower(), match.group(2) or "", _now(headers, now))
    if search_likely(_NEXT_MONTH, text, lower):
        return _seconds_until_next_month(_now(headers, now))
    return None


def parse_delay(text: str) -> float | None:
    """Return the seconds to wait that the text states as a duration, not as a point in time."""
    lower = text.lower()
    if match := search_likely(_FIELD, text, lower):
        unit = (match.group(1) or "").lower()
        span_seconds = None if unit else _parse_span(text[match.start(2) : match.start(2) + 40])
        return _to_seconds(match.group(2), unit or match.group(3)) if span_seconds is None else span_seconds
    for pattern in (_RETRY_PATTERN, _WAIT_PATTERN):
        if match := search_likely(pattern, text, lower):
            span_seconds = _parse_span(text[match.start(1) : match.start(1) + 60])
            if span_seconds is not None or match.group(1)[0].isdigit():
                return span_seconds if span_seconds is not None else _to_seconds(match.group(1), match.group(2))
    return None


def _parse_span(text: str) -> float | None:
    """Parse a duration such as `6m0s`, `1h2m3.5s`, `7.66s`, `20 seconds` or `1 hour and 2 minutes` at the start."""
    total, at, has_match = 0.0, 0, False
    while match := compile_regex(rf"(?:,? and |, )?\s?({_NUMBER})\s?({_UNIT})(?![a-z])").match(text, at):
        total += _to_seconds(match.group(1), match.group(2))
        at, has_match = match.end(), True
    return total if has_match else None


def _to_seconds(number: str, unit: str | None) -> float:
    unit, amount = (unit or "s").lower(), float(number) if number[0].isdigit() else 1.0
    if unit.startswith(("ms", "milli")):
        return amount / 1000
    return amount * {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[unit[0]]


def _float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number and number >= 0 else None


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
            parsed_time = parse(date.removesuffix("UTC").strip())
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return (parsed_time if parsed_time.tzinfo else parsed_time.replace(tzinfo=UTC)).timestamp()
    return None


def _seconds_until_clock(clock: str, zone: str, now: float) -> float | None:
    """Return the seconds until a clock shows this time next. Without a zone it is UTC, as most services mean."""
    from datetime import UTC, datetime, timedelta, tzinfo  # lazy, as above
    from zoneinfo import ZoneInfo

    zone_info: tzinfo = UTC
    if zone.lower() not in ("", "utc", "gmt", "z"):
        try:
            zone_info = ZoneInfo(zone if "/" in zone else _ZONES[zone[0].lower()])
        except (KeyError, ValueError, OSError):  # a zone that this machine does not know
            return None
    match = compile_regex(r"(\d{1,2})(?::(\d\d))?(?::\d\d)?\s?([ap])?").match(clock)
    hour, minute = (int(match[1]), int(match[2] or 0)) if match else (0 if clock == "midnight" else 12, 0)
    if match and match[3]:
        hour = hour % 12 + 12 * (match[3] == "p")
    if hour > 24 or minute > 59:
        return None
    try:
        current = datetime.fromtimestamp(now, zone_info)
        reset_time = current.replace(hour=hour % 24, minute=minute, second=0, microsecond=0)
        if reset_time <= current:
            reset_time += timedelta(days=1)
        return reset_time.timestamp() - now
    except (OverflowError, ValueError, OSError):  # the server's clock is at the end of all years
        return None


def _seconds_until_day(month: str, day: int, year: str | None, now: float) -> float | None:
    """Return the seconds until the end of a day, whatever clock and zone are meant. Without a year, of the next one."""
    from datetime import UTC, datetime, timedelta  # lazy, as above

    try:
        current = datetime.fromtimestamp(now, UTC)
        date = datetime(int(year) if year else current.year, _MONTHS.index(month) + 1, day, tzinfo=UTC)
        if year is None and date + timedelta(days=1) <= current:
            date = date.replace(year=date.year + 1)
    except (OverflowError, ValueError, OSError):
        return None
    seconds = (date + timedelta(days=1)).timestamp() - now
    return seconds if seconds > 0 else None


def _seconds_until_next_month(now: float) -> float | None:
    from datetime import UTC, datetime, timedelta  # lazy, as above

    try:
        current = datetime.fromtimestamp(now, UTC)
        month = current.replace(day=28, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=4)
    except (OverflowError, ValueError, OSError):
        return None
    return month.replace(day=1).timestamp() - now


class Overflow(msgspec.Struct, frozen=True):
    """Sizes of an overflow, in tokens unless the provider counts otherwise. None if not reported."""

    window: int | None
    requested: int | None
    answer: int = 0
    """Tokens of both sizes that are reserved for the answer, if reported."""


_PHRASES = read_patterns("overflow", "phrases")
"""Phrases that name the context window, the input or the size of the request."""

_EXCLUSIONS = read_patterns("overflow", "exclusions")
"""Phrases about throttling, the length of the answer or an image: no overflow, unless an override matches too."""
_EXCLUSION_OVERRIDES = (
    r"input length and `?max_tokens`? exceed|exceed context limit|maximum context length|context window|"
    r"request too large for|total number of tokens"
    r"|prompt is too long|tokens \+ `?max_new_tokens`?|context_length_exceeded|contextwindowexceeded"
)

_NUMBER_PATTERN = r"\(?`?(\d[\d,_]{0,14}\d|\d)"
_WINDOWS = tuple(pattern.replace("NUMBER", _NUMBER_PATTERN) for pattern in read_patterns("overflow", "windows"))
_REQUESTS = tuple(pattern.replace("NUMBER", _NUMBER_PATTERN) for pattern in read_patterns("overflow", "requests"))


_MAX_SENTENCE_CHARS = 300
_SHORT_OVERFLOW = read_patterns("overflow", "short texts")
_OTHER_LIMIT = (
    r"\bper[ -](?:min|day|month|hour|sec|week)|quota|budget|\brate\b|output|completion|response|answer|max_|credits?\b|"
    r"\b(?:access|auth|api|bearer|csrf|invalid|unexpected) (?:token|key)|image|file|timed? ?out|took too long|"
    r"too many requests|roles?\b|wait\b|monthly|daily|\blimit of (?:requests|calls)"
)


def _is_short_overflow(text: str) -> bool:
    """Return whether one short sentence names the input, a model's limit, and that the one exceeds the other."""
    return (
        len(text) <= _MAX_SENTENCE_CHARS
        and all(compile_regex(pattern).search(text) for pattern in _SHORT_OVERFLOW)
        and not compile_regex(_OTHER_LIMIT).search(text)
    )


def parse_overflow(text: str) -> Overflow | None:
    """Return the sizes of an overflow, or None if the text does not report one."""
    if not index_patterns(*_PHRASES).has_match(text, text.lower()) and not _is_short_overflow(text):
        return None
    if any(compile_regex(pattern).search(text) for pattern in _EXCLUSIONS) and not compile_regex(
        _EXCLUSION_OVERRIDES
    ).search(text):
        return None
    window = _find_size(_WINDOWS, text)
    requested = _find_size(_REQUESTS, text)
    answer = 0
    split_match = compile_regex(r"exceed context limit: (\d+) \+ (\d+) > (\d+)").search(text)
    if split_match:
        answer = int(split_match.group(2))
        requested, window = int(split_match.group(1)) + answer, int(split_match.group(3))
    answer_match = compile_regex(
        r"(\d{1,9}) (?:in|for) the (?:completion|output)|(\d{1,9}) (?:completion|output) tokens"
    ).search(text)
    if answer_match and requested is not None:
        answer = int(answer_match.group(1) or answer_match.group(2))
        answer = answer if answer < requested else 0
    if window is not None and requested is not None and requested < window:
        requested = None  # only a part, such as the length of the answer
    return Overflow(window, requested, answer if requested is not None else 0)


def _find_size(patterns: tuple[str, ...], text: str) -> int | None:
    for pattern in patterns:
        for match in compile_regex(pattern).finditer(text):
            number = next((int(re.sub(r"\D", "", group)) for group in match.groups() if group), 0)
            if number >= 100:  # a smaller number is an index or a count, not a window
                return number
    return None
