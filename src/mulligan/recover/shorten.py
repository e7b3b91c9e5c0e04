"""Shortening of a text: structure stays, repeated lines are folded, both ends stay, and a mark states the cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

LEAST = 160
"""A shorter result is not worth its space."""
PARSED = 400_000
"""Characters of JSON that are parsed. Of longer texts only the ends are retained."""
_MARK = "[mulligan: shortened to make the conversation fit;"
_ALIKE = 3
"""Similar consecutive lines that are folded."""


def is_shortened(text: str) -> bool:
    return _MARK in text


def shortened(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, or slightly more if the limit is below `MIN_SHORTENED_CHARS`."""
    if len(text) <= limit:
        return text
    limit = max(limit, LEAST)
    if text.lstrip()[:1] in ("{", "[") and len(text) <= PARSED:
        outline = _of_json(text, limit)
        if outline is not None:
            return outline
    folded, lines = _folded(text)
    if len(folded) + 100 <= limit:
        return f"{folded}\n{_MARK} {lines} repeated lines folded]"
    return _ends(folded, limit, len(text))


def _of_json(text: str, limit: int) -> str | None:
    """Return the outline of a JSON text: keys as space permits, the first members of each list, and their number."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    mark = f"\n{_MARK} an outline of {len(text):,} characters of JSON]"
    room = limit - len(mark)
    if room < 40:
        return None
    longest = max(_lengths(value), default=1)
    best = ""
    for chars in (4000, 1000, 300, 80, 24):
        low, high = 0, longest
        found = ""
        while low <= high:  # binary search for the most members that fit
            middle = (low + high) // 2
            told = _told(value, middle, chars)
            if len(told) <= room:
                found, low = told, middle + 1
            else:
                high = middle - 1
        if len(found) > len(best):
            best = found
        if len(best) >= room * 0.9:
            break
    return best + mark if len(best) >= min(room * 0.3, 60) else None


def _told(value: Any, members: int, chars: int) -> str:
    return json.dumps(_outline(value, members, chars), ensure_ascii=False, separators=(",", ":"))


def _lengths(value: Any) -> Iterator[int]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield len(each)
            waiting.extend(each.values())
        elif isinstance(each, list):
            yield len(each)
            waiting.extend(each)


def _outline(value: Any, members: int, chars: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= chars else f"{value[: chars * 2 // 3]}... ({len(value)} characters)"
    if isinstance(value, dict):
        kept = {key: _outline(inside, members, chars) for key, inside in list(value.items())[: members + 8]}
        if len(kept) < len(value):
            kept["..."] = f"{len(value) - len(kept)} more keys"
        return kept
    if isinstance(value, list):
        kept_items = [_outline(inside, members, chars) for inside in value[:members]]
        if len(kept_items) < len(value):
            kept_items.append(f"... {len(value) - len(kept_items)} more{_shape(value[members])}")
        return kept_items
    return value


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return f" with {', '.join(list(value)[:12])}"
    return "" if isinstance(value, str | None) else f" of {type(value).__name__}"


_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+", re.IGNORECASE)


def _folded(text: str) -> tuple[str, int]:
    """Fold lines that differ only in numbers into the first and the last of them. Return the number removed."""
    lines = text.split("\n")
    if len(lines) < _ALIKE * 2:
        return text, 0
    kept: list[str] = []
    gone = 0
    start = 0
    shapes = [_VARYING.sub("0", line[:400]) for line in lines]
    while start < len(lines):
        end = start + 1
        while end < len(lines) and shapes[end] == shapes[start]:
            end += 1
        if end - start > _ALIKE and lines[start].strip():
            kept += [lines[start], f"[... {end - start - 2} lines alike ...]", lines[end - 1]]
            gone += end - start - 2
        else:
            kept += lines[start:end]
        start = end
    folded = "\n".join(kept)
    return (folded, gone) if len(folded) < 0.9 * len(text) else (text, 0)


def _ends(text: str, limit: int, total: int) -> str:
    """Return both ends, cut at line breaks if possible, so that a table retains its header."""
    mark = f"\n{_MARK} {total:,} characters, of which {{}} are left out here]\n"
    room = max(limit - len(mark) - 8, 20)
    head = room * 3 // 5
    tail = room - head
    first, last = text[:head], text[len(text) - tail :]
    # Prefer whole lines if that costs little: half a table row is misleading.
    cut = first.rfind("\n", head - max(head // 20, 1))
    if cut > 0:
        first = first[:cut]
    cut = last.find("\n", 0, max(tail // 20, 1))
    if cut >= 0:
        last = last[cut + 1 :]
    return first + mark.format(f"{total - len(first) - len(last):,}") + last
