"""Shortening of a text: structure stays, repeated lines are folded, both ends stay, and a mark states the cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

MIN_SHORTENED_CHARS = 160
"""A shorter result is not worth its space."""
MAX_PARSED_CHARS = 400_000
"""Characters of JSON that are parsed. Of longer texts only the ends are retained."""
_MARK = "[mulligan: shortened to fit the context window;"
_MIN_FOLDED_LINES = 3
"""Similar consecutive lines that are folded."""


def is_shortened(text: str) -> bool:
    return _MARK in text


def shorten_text(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, or slightly more if the limit is below `MIN_SHORTENED_CHARS`."""
    if len(text) <= limit:
        return text
    limit = max(limit, MIN_SHORTENED_CHARS)
    if text.lstrip()[:1] in ("{", "[") and len(text) <= MAX_PARSED_CHARS:
        outline = _outline_json(text, limit)
        if outline is not None:
            return outline
    folded_text, lines = _fold_lines(text)
    if len(folded_text) + 100 <= limit:
        return f"{folded_text}\n{_MARK} {lines} repeated lines removed]"
    return _keep_ends(folded_text, limit, len(text))


def _outline_json(text: str, limit: int) -> str | None:
    """Return the outline of a JSON text: keys as space permits, the first members of each list, and their number."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    mark = f"\n{_MARK} outline of {len(text):,} characters of JSON]"
    available_chars = limit - len(mark)
    if available_chars < 40:
        return None
    longest = max(_iter_lengths(value), default=1)
    best = ""
    for chars in (4000, 1000, 300, 80, 24):
        low, high = 0, longest
        fitting_outline = ""
        while low <= high:  # binary search for the most members that fit
            middle = (low + high) // 2
            candidate = _render_outline(value, middle, chars)
            if len(candidate) <= available_chars:
                fitting_outline, low = candidate, middle + 1
            else:
                high = middle - 1
        if len(fitting_outline) > len(best):
            best = fitting_outline
        if len(best) >= available_chars * 0.9:
            break
    return best + mark if len(best) >= min(available_chars * 0.3, 60) else None


def _render_outline(value: Any, members: int, chars: int) -> str:
    return json.dumps(_outline(value, members, chars), ensure_ascii=False, separators=(",", ":"))


def _iter_lengths(value: Any) -> Iterator[int]:
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield len(node)
            pending.extend(node.values())
        elif isinstance(node, list):
            yield len(node)
            pending.extend(node)


def _outline(value: Any, members: int, chars: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= chars else f"{value[: chars * 2 // 3]}... ({len(value)} characters)"
    if isinstance(value, dict):
        outline = {key: _outline(child, members, chars) for key, child in list(value.items())[: members + 8]}
        if len(outline) < len(value):
            outline["..."] = f"{len(value) - len(outline)} more keys"
        return outline
    if isinstance(value, list):
        kept_items = [_outline(child, members, chars) for child in value[:members]]
        if len(kept_items) < len(value):
            kept_items.append(f"... {len(value) - len(kept_items)} more{_shape(value[members])}")
        return kept_items
    return value


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return f" with {', '.join(list(value)[:12])}"
    return "" if isinstance(value, str | None) else f" of {type(value).__name__}"


_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+", re.IGNORECASE)


def _fold_lines(text: str) -> tuple[str, int]:
    """Fold lines that differ only in numbers into the first and the last of them. Return the number removed."""
    lines = text.split("\n")
    if len(lines) < _MIN_FOLDED_LINES * 2:
        return text, 0
    folded_lines: list[str] = []
    removed_count = 0
    start = 0
    shapes = [_VARYING.sub("0", line[:400]) for line in lines]
    while start < len(lines):
        end = start + 1
        while end < len(lines) and shapes[end] == shapes[start]:
            end += 1
        if end - start > _MIN_FOLDED_LINES and lines[start].strip():
            folded_lines += [lines[start], f"[... {end - start - 2} similar lines ...]", lines[end - 1]]
            removed_count += end - start - 2
        else:
            folded_lines += lines[start:end]
        start = end
    folded_text = "\n".join(folded_lines)
    return (folded_text, removed_count) if len(folded_text) < 0.9 * len(text) else (text, 0)


def _keep_ends(text: str, limit: int, total: int) -> str:
    """Return both ends, cut at line breaks if possible, so that a table retains its header."""
    mark = f"\n{_MARK} {{}} of {total:,} characters removed]\n"
    available_chars = max(limit - len(mark) - 8, 20)
    head = available_chars * 3 // 5
    tail = available_chars - head
    first, last = text[:head], text[len(text) - tail :]
    # Prefer whole lines if that costs little: half a table row is misleading.
    line_break = first.rfind("\n", head - max(head // 20, 1))
    if line_break > 0:
        first = first[:line_break]
    line_break = last.find("\n", 0, max(tail // 20, 1))
    if line_break >= 0:
        last = last[line_break + 1 :]
    return first + mark.format(f"{total - len(first) - len(last):,}") + last
