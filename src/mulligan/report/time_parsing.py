"""Parsing of times in command line options: an age such as `7d`, or a date."""

from __future__ import annotations

import datetime
import re

_UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
ACCEPTED_FORMATS = "an age such as 24h or 7d (units m, h, d, w) or a date such as 2026-01-31"


def parse_time(text: str | None, now: int) -> int | None:
    """Parse an age such as `7d`, or a date, as UTC milliseconds. `all` and `None` give `None`.

    Raise `ValueError` for any other text.
    """
    if text is None or text == "all":
        return None
    match = re.fullmatch(r"([0-9]{1,5})([mhdw])", text, re.ASCII)
    if match is not None:
        return now - int(match[1]) * _UNIT_SECONDS[match[2]] * 1000
    parsed = datetime.datetime.fromisoformat(text)
    try:
        return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp() * 1000)
    except OverflowError:
        raise ValueError(f"date {text} is out of range") from None
