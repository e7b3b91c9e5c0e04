"""Written forms of dates, times and durations, and conversions between them.

A form of a date is a template such as `MM/DD/YYYY`. Templates are our own and not those of `strptime`, whose names of
months depend on the locale of the process. Times without a zone are read as UTC.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from mulligan.redaction.regex import LazyRegex

_DATES = (
    "YYYY-MM-DD", "YYYYMMDD", "YYYY/MM/DD", "YYYY.MM.DD", "MM/DD/YYYY", "DD/MM/YYYY", "MM-DD-YYYY", "DD-MM-YYYY",
    "DD.MM.YYYY", "MONTH D, YYYY", "MON D, YYYY", "D MONTH YYYY", "D MON YYYY", "D-MON-YYYY", "MM/DD/YY", "DD/MM/YY",
)  # fmt: skip
_MONTHS = ("YYYY-MM", "YYYYMM", "MM/YYYY", "MM/YY", "MONTH YYYY", "MON YYYY")
_TIMES = ("hh:mm", "hh:mm:ss", "hhmm", "h:mm AM", "h AM")
_INSTANTS = (
    "YYYY-MM-DDThh:mm:ssZ", "YYYY-MM-DDThh:mm:ss", "YYYY-MM-DDThh:mmZ", "YYYY-MM-DDThh:mm", "YYYY-MM-DD hh:mm:ss",
    "YYYY-MM-DD hh:mm", "YYYY-MM-DDThh:mm:ss.000Z", "YYYY-MM-DDThh:mm:ss+00:00", "YYYYMMDDThhmmssZ", "MM/DD/YYYY hh:mm",
    "DD/MM/YYYY hh:mm", "DD.MM.YYYY hh:mm", "MM/DD/YYYY h:mm AM", "MON D, YYYY h:mm AM", "MONTH D, YYYY h:mm AM",
)  # fmt: skip
_EPOCHS = {"epoch": 1, "epoch-ms": 1000}
_MIN_EPOCH_SECONDS, _MAX_EPOCH_SECONDS = 10**8, 10**10
"""Numbers that are taken for seconds since 1970: from 1973 to 2286."""
_MONTH_NAMES = "January February March April May June July August September October November December".split()
_MONTH_NUMBERS = {word.lower(): number for number, name in enumerate(_MONTH_NAMES, 1) for word in (name, name[:3])}
_TOKEN = LazyRegex("YYYY|YY|MONTH|MON|MM|DD|D|hh|h|mm|ss|AM")
_SIGNS = LazyRegex(r"[^\w\s,]")
_PATTERNS = {
    "YYYY": r"(?P<year>\d{4})", "YY": r"(?P<year>\d{2})", "MONTH": f"(?P<month>{'|'.join(_MONTH_NAMES)})",
    "MON": f"(?P<month>{'|'.join(name[:3] for name in _MONTH_NAMES)})", "MM": r"(?P<month>\d\d?)",
    "DD": r"(?P<day>\d\d?)", "D": r"(?P<day>\d\d?)(?:st|nd|rd|th)?", "hh": r"(?P<hour>\d\d?)",
    "h": r"(?P<hour>\d\d?)", "mm": r"(?P<minute>\d\d)", "ss": r"(?P<second>\d\d)", "AM": "?(?P<half>[ap]m)",
}  # fmt: skip
_MILLISECONDS = {"unit-ms": 1, "unit-s": 1000, "unit-min": 60_000, "unit-h": 3_600_000, "unit-d": 86_400_000}
_LETTERS = {"D": 86400, "H": 3600, "M": 60, "S": 1}
_ISO_DURATION = LazyRegex(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_WORDED_DURATION = LazyRegex(
    r"(?:(\d+) ?d(?:ays?)?)?[ ,]*(?:(\d+) ?h(?:(?:ou)?rs?)?)?[ ,]*(?:(\d+) ?m(?:in(?:ute)?s?)?)?[ ,]*"
    r"(?:(\d+) ?s(?:ec(?:ond)?s?)?)?",
    re.IGNORECASE,
)
_HOURS_MINUTES = LazyRegex(r"()(\d+) ?h ?(\d\d?)()", re.IGNORECASE)
_CLOCK = LazyRegex(r"()(\d{1,3}):([0-5]\d)(?::([0-5]\d))?")
_DURATION_PHRASES = {
    "unit-ms": "a number of milliseconds", "unit-s": "a number of seconds", "unit-min": "a number of minutes",
    "unit-h": "a number of hours", "unit-d": "a number of days", "iso": "an ISO 8601 duration (PT1H30M)",
    "iso-D": "an ISO 8601 duration in days (P2D)", "iso-H": "an ISO 8601 duration in hours (PT2H)",
    "iso-M": "an ISO 8601 duration in minutes (PT90M)", "iso-S": "an ISO 8601 duration in seconds (PT90S)",
    "short": "a duration like 1h30m", "short-D": "a duration like 2d", "short-H": "a duration like 2h",
    "short-M": "a duration like 90m", "short-S": "a duration like 90s", "clock": "HH:MM", "clock-s": "HH:MM:SS",
}  # fmt: skip
_DURATION_STYLES: dict[str, tuple[LazyRegex, ...]] = {
    "iso": (_ISO_DURATION,),
    "clock": (_CLOCK,),
    "worded": (_WORDED_DURATION, _HOURS_MINUTES),
}
"""Forms of durations that are read. Each is written in several ways, those in words as `short`."""


class WrittenTime(NamedTuple):
    """A time with the fields that were written: a date has no hour, a time of day no year."""

    instant: datetime.datetime
    fields: frozenset[str]


def find_time_conversions(old: Any, new: Any) -> Iterator[str]:
    """Yield the pairs of forms, `before>after`, that two values may have. `03/05/2026` has two forms."""
    after_forms = _list_time_forms(new)
    if after_forms:
        yield from (f"{before}>{after}" for before in _list_time_forms(old) for after in after_forms)


def convert_time(value: Any, parameter: str) -> str | int | None:
    """Write a time in another form: `before>after`. Return None if the value does not have the first form."""
    before, _, after = parameter.partition(">")
    written_time = _read_time(value, before)
    if written_time is None or (after not in _EPOCHS and after not in _all_forms()):
        return None
    instant, fields = written_time
    missing = _fields_of(after) - fields
    if missing - ({"hour", "minute", "second"} if "day" in fields else {"second"}):
        return None  # a month has no first day, and a time of day no date
    if after in _EPOCHS:
        return int(instant.timestamp()) * _EPOCHS[after]
    if "hour" in _fields_of(after) and instant.minute and "mm" not in after:
        return None
    texts = {
        "YYYY": f"{instant.year:04}", "YY": f"{instant.year % 100:02}", "MONTH": _MONTH_NAMES[instant.month - 1],
        "MON": _MONTH_NAMES[instant.month - 1][:3], "MM": f"{instant.month:02}", "DD": f"{instant.day:02}",
        "D": str(instant.day), "hh": f"{instant.hour:02}", "h": str(instant.hour % 12 or 12),
        "mm": f"{instant.minute:02}", "ss": f"{instant.second:02}", "AM": "AM" if instant.hour < 12 else "PM",
    }  # fmt: skip
    return _TOKEN.sub(lambda match: texts[match[0]], after)


def keeps_time(parameter: str) -> bool:
    """Return whether the second form of `before>after` has all fields of the first."""
    before, _, after = parameter.partition(">")
    return _fields_of(before) <= _fields_of(after)


def describe_time_form(form: str) -> str:
    """Return the words for a form of a date or time, to follow "as"."""
    return {"epoch": "seconds since 1970", "epoch-ms": "milliseconds since 1970", "": "another time format"}.get(
        form, form
    )


def find_duration_conversions(old: Any, new: Any) -> Iterator[str]:
    """Yield the pairs of forms, `before>after`, that two values may have. A number may be in any unit."""
    styles = _list_duration_styles(new)
    if styles:
        prefixes = tuple("short" if style == "worded" else style for style in styles)
        after_forms = [form for form in _DURATION_PHRASES if form.startswith(prefixes)]
        yield from (f"{before}>{after}" for before in _list_duration_styles(old) for after in after_forms)


def convert_duration(value: Any, parameter: str) -> str | int | float | None:
    """Write a duration in another form: `before>after`. Return None if the value does not have the first form."""
    before, _, after = parameter.partition(">")
    milliseconds = _read_duration(value, before)
    if milliseconds is None or (before in _MILLISECONDS and after in _MILLISECONDS):
        return None
    if after in _MILLISECONDS:
        count, remainder = divmod(milliseconds, _MILLISECONDS[after])
        return milliseconds / _MILLISECONDS[after] if remainder else count
    seconds, remainder = divmod(milliseconds, 1000)
    if remainder or seconds == 0 or after not in _DURATION_PHRASES:
        return None
    style, _, letter = after.partition("-")
    if style == "clock":
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}"
        return f"{clock}:{seconds % 60:02}" if letter else None if seconds % 60 else clock
    counts = dict(_split_seconds(seconds, letter))
    if style == "short":
        return "".join(f"{count}{unit.lower()}" for unit, count in counts.items()) or None
    times = "".join(f"{count}{unit}" for unit, count in counts.items() if unit != "D")
    days = f"{counts['D']}D" if "D" in counts else ""
    return f"P{days}{'T' * bool(times)}{times}" if counts else None


def describe_duration_form(form: str) -> str:
    """Return the words for a form of a duration, to follow "as"."""
    return _DURATION_PHRASES.get(form, "another format of durations")


@functools.cache
def _all_forms() -> dict[str, re.Pattern[str]]:
    patterns = {}
    for form in (*_DATES, *_MONTHS, *_TIMES, *_INSTANTS):
        parts = re.split(f"({_TOKEN.pattern})", form)
        pattern = "".join(_PATTERNS.get(part) or re.escape(part).replace(",", ",?") for part in parts)
        if "YYYYMM" in form or "hhmm" in form:
            pattern = pattern.replace(r"\d\d?", r"\d\d")  # digits without separators have fixed positions
        patterns[form] = re.compile(pattern, re.IGNORECASE | re.ASCII)
    return patterns


@functools.cache
def _forms_by_signs() -> dict[str, list[str]]:
    forms: dict[str, list[str]] = {}
    for form in _all_forms():
        forms.setdefault("".join(_SIGNS.findall(form)), []).append(form)
    return forms


@functools.cache
def _fields_of(form: str) -> frozenset[str]:
    pattern = _all_forms().get(form)
    if pattern is None:
        return frozenset({"year", "month", "day", "hour", "minute", "second"})
    implied = {"minute"} if "hour" in pattern.groupindex else set()
    return frozenset(pattern.groupindex.keys() - {"half"} | implied)


def _list_time_forms(value: Any) -> list[str]:
    forms = list(_EPOCHS) if _read_integer(value) is not None else []
    if isinstance(value, str) and (value[:1].isdigit() or value[:3].lower() in _MONTH_NUMBERS):
        forms += _forms_by_signs().get("".join(_SIGNS.findall(value)), ())
    return [form for form in forms if _read_time(value, form) is not None]


def _list_duration_styles(value: Any) -> list[str]:
    if not isinstance(value, str) or value.isdecimal():
        return list(_MILLISECONDS)
    if not value[:1].isdigit() and value[:1] != "P":
        return []
    return [style for style in _DURATION_STYLES if _read_duration(value, style) is not None]


def _read_integer(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) < 16 else None
    return value if isinstance(value, int) else None


def _read_time(value: Any, form: str) -> WrittenTime | None:
    if form in _EPOCHS:
        number = _read_integer(value)
        if number is None or not _MIN_EPOCH_SECONDS <= number // _EPOCHS[form] < _MAX_EPOCH_SECONDS:
            return None
        instant = datetime.datetime.fromtimestamp(number // _EPOCHS[form], datetime.UTC)
        return WrittenTime(instant, _fields_of(form))
    pattern = _all_forms().get(form)
    match = pattern.fullmatch(value) if pattern is not None and isinstance(value, str) else None
    if match is None:
        return None
    texts = match.groupdict()
    month = _MONTH_NUMBERS.get((texts.get("month") or "jan").lower()) or int(texts["month"])
    hour, year = int(texts.get("hour") or 0), int(texts.get("year") or 2000)
    if texts.get("half"):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if texts["half"].lower() == "pm" else 0)
    year = year if year > 99 else year + 2000
    minute, second = int(texts.get("minute") or 0), int(texts.get("second") or 0)
    try:
        instant = datetime.datetime(year, month, int(texts.get("day") or 1), hour, minute, second, tzinfo=datetime.UTC)
    except ValueError:
        return None
    return WrittenTime(instant, _fields_of(form))


def _read_duration(value: Any, form: str) -> int | None:
    if form in _MILLISECONDS:
        number = float(value) if isinstance(value, float) else _read_integer(value)
        milliseconds = number * _MILLISECONDS[form] if number is not None else -1
        return int(milliseconds) if milliseconds > 0 and milliseconds == int(milliseconds) else None
    if not isinstance(value, str):
        return None
    for pattern in _DURATION_STYLES.get(form, ()):
        match = pattern.fullmatch(value)
        if match is not None and any(match.groups()):
            counts = zip(match.groups(), _LETTERS.values(), strict=True)
            return 1000 * sum(int(count or 0) * seconds for count, seconds in counts)
    return None


def _split_seconds(seconds: int, letter: str) -> Iterator[tuple[str, int]]:
    """Yield the units of a duration and their counts: all in the unit of the letter, or the largest ones first."""
    for unit, size in _LETTERS.items():
        if unit == letter and seconds % size == 0:
            yield unit, seconds // size
        elif not letter and seconds >= size:
            yield unit, seconds // size
            seconds %= size
