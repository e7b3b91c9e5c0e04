"""Detection of secrets and personal data in free text: a fast check, then the specific finders."""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.redaction import contexts, formats, personal
from mulligan.redaction.expressions import Expression

Found = tuple[str, int, int]
"""Kind, start and end of a sensitive span in a text."""


def might_hold(text: str) -> bool:
    """Return whether anything could be found. Fast, with many false positives."""
    raw = text.encode("ascii", "replace")
    if raw.translate(formats.RUNS).find(formats.LONG) >= 0 or "@" in text or "PRIVATE KEY" in text:
        return True
    spelt = raw.translate(personal.SPELT).decode()
    has_codes = False
    if "0" in spelt:  # searching one character is thirty times as fast as two
        if "00" in spelt and personal.might_hold(raw, spelt):
            return True
        has_codes = "0000" in spelt
    return contexts.might_hold(text, raw.lower().decode(), has_codes)


def detect(text: str) -> list[Found]:
    """Return kind, start and end of all findings. They may overlap.

    Each finder runs only if the text contains what its findings begin with.
    """
    if text.isascii():
        raw, small = text.encode(), text.lower()
    else:  # one byte per character, so that indexes are equal in both
        raw = text.encode("ascii", "replace")
        small = raw.lower().decode()
    found: list[Found] = []
    runs = raw.translate(formats.RUNS)
    if (first := runs.find(formats.LONG)) >= 0:
        formats.find(text, runs, first, found)
    if "PRIVATE KEY" in text:
        found.extend(_pem(text))
    # The leading space lets a number start the text. Substring search is faster in str than in bytes.
    marked = " " + raw.translate(personal.MARKED).decode()
    contexts.find(text, small, "0000" in marked, found)
    if "@" in text:
        personal.find_addresses(text, found)
    if "00" in marked:  # every personal number contains two consecutive digits
        if " 0000000" in marked or "00 00" in marked:
            personal.find_numbers(text, marked, found)
        if "A00" in marked or "A 00" in marked:
            personal.find_lettered(text, raw, found)
    return found


_HEADER = Expression(r"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_LINE = Expression(r"[A-Za-z0-9+/=]{16,}+\s{0,4}")


def _pem(text: str) -> Iterator[Found]:
    """Yield private keys between their two lines.

    Of a truncated key, yield everything on the key's side of the line.
    """
    opened = None
    for header in _HEADER.finditer(text):
        if header[1] == "BEGIN":
            opened = opened or header
        elif opened is not None:
            if header.start() - opened.end() > 40:
                yield "private_key", opened.start(), header.end()
            opened = None
        else:
            start = header.start()
            for line in reversed(text[max(0, start - 8192) : start].splitlines(keepends=True)):
                if not _LINE.fullmatch(line):
                    break
                start -= len(line)
            yield "private_key", start, header.end()
    if opened is not None and len(text) - opened.end() > 40:
        yield "private_key", opened.start(), len(text)
