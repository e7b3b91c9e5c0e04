"""Order of the versions of an agent by their numbers."""

from __future__ import annotations

import re

MAX_COMPARED_CHARS = 80
_VERSION = re.compile(
    r"(|.*[^A-Za-z0-9.])v?(\d{1,9}(?:\.\d{1,9}){1,5}|\d{1,6})(?:[-.]?((?:a|b|c|rc|dev|alpha|beta|pre)[\w.-]*))?(?:\+.*)?",
    re.IGNORECASE | re.ASCII,
)


def compute_version_key(version: str) -> tuple[str, tuple[int, ...], bool, str] | None:
    """Return the sort key of a version with numbers, such as `1.4.2`, `v2.0-rc1` or `agent@1.4`; None for others."""
    match = _VERSION.fullmatch(version[:MAX_COMPARED_CHARS])
    if match is None:
        return None
    numbers = [int(number) for number in match[2].split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return match[1], tuple(numbers), match[3] is None, (match[3] or "").casefold()
