"""Detection of secrets and personal data in free text: a fast check, then the specific finders."""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.redaction import personal_data, secret_contexts, secret_formats
from mulligan.redaction.lazy_regex import LazyRegex

SensitiveSpan = tuple[str, int, int]
"""Kind, start and end of a sensitive span in a text."""


def may_contain(text: str) -> bool:
    """Return whether anything could be found. Fast, with many false positives."""
    raw = text.encode("ascii", "replace")
    if (
        raw.translate(secret_formats.RUN_TABLE).find(secret_formats.LONG_RUN) >= 0
        or "@" in text
        or "PRIVATE KEY" in text
    ):
        return True
    spelt = raw.translate(personal_data.LETTER_MARKS).decode()
    has_codes = False
    if "0" in spelt:  # searching one character is thirty times as fast as two
        if "00" in spelt and personal_data.may_contain(raw, spelt):
            return True
        has_codes = "0000" in spelt
    return secret_contexts.may_contain(text, raw.lower().decode(), has_codes)


def detect_sensitive(text: str) -> list[SensitiveSpan]:
    """Return kind, start and end of all findings. They may overlap.

    Each finder runs only if the text contains what its findings begin with.
    """
    if text.isascii():
        raw, lower_text = text.encode(), text.lower()
    else:  # one byte per character, so that indexes are equal in both
        raw = text.encode("ascii", "replace")
        lower_text = raw.lower().decode()
    findings: list[SensitiveSpan] = []
    runs = raw.translate(secret_formats.RUN_TABLE)
    if (first := runs.find(secret_formats.LONG_RUN)) >= 0:
        secret_formats.find_by_format(text, runs, first, findings)
    if "PRIVATE KEY" in text:
        findings.extend(_find_private_keys(text))
    # The leading space lets a number start the text. Substring search is faster in str than in bytes.
    marked = " " + raw.translate(personal_data.NUMBER_MARKS).decode()
    secret_contexts.find_by_context(text, lower_text, "0000" in marked, findings)
    if "@" in text:
        personal_data.find_addresses(text, findings)
    if "00" in marked:  # every personal number contains two consecutive digits
        if " 0000000" in marked or "00 00" in marked:
            personal_data.find_numbers(text, marked, findings)
        if "A00" in marked or "A 00" in marked:
            personal_data.find_lettered(text, raw, findings)
    return findings


_HEADER = LazyRegex(r"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_LINE = LazyRegex(r"[A-Za-z0-9+/=]{16,}+\s{0,4}")


def _find_private_keys(text: str) -> Iterator[SensitiveSpan]:
    """Yield private keys between their two lines.

    Of a truncated key, yield everything on the key's side of the line.
    """
    begin_line = None
    for header in _HEADER.finditer(text):
        if header[1] == "BEGIN":
            begin_line = begin_line or header
        elif begin_line is not None:
            if header.start() - begin_line.end() > 40:
                yield "private_key", begin_line.start(), header.end()
            begin_line = None
        else:
            start = header.start()
            for line in reversed(text[max(0, start - 8192) : start].splitlines(keepends=True)):
                if not _LINE.fullmatch(line):
                    break
                start -= len(line)
            yield "private_key", start, header.end()
    if begin_line is not None and len(text) - begin_line.end() > 40:
        yield "private_key", begin_line.start(), len(text)
