"""The search for secrets and personal data: many texts in, findings out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from mulligan.redaction import personal_data, secret_contexts, secret_formats
from mulligan.redaction.regex import LazyRegex
from mulligan.redaction.secret_hints import BARRIER

SensitiveSpan = tuple[str, int, int]
"""Kind, start and end of a sensitive span in a text."""

MAX_JOINED_CHARS = 8_000
"""Characters of texts that are searched together."""
_SEPARATOR = f"\n{BARRIER} \n"


def find_in_texts(texts: Iterable[str]) -> dict[str, list[SensitiveSpan]]:
    """Return the findings of each text that has any. They may overlap.

    Most texts have none, and starting a search costs as much as a hundred characters. So texts are searched together,
    with a barrier between them that no finding crosses. Only those with a finding are then searched alone.
    """
    findings: dict[str, list[SensitiveSpan]] = {}
    _search_group(list(dict.fromkeys(texts)), findings)
    return findings


def _search_group(group: list[str], findings: dict[str, list[SensitiveSpan]]) -> None:
    if len(group) > 1 and sum(map(len, group)) > MAX_JOINED_CHARS:
        middle = len(group) // 2
        _search_group(group[:middle], findings)
        _search_group(group[middle:], findings)
        return
    spans = find_sensitive(_SEPARATOR.join(group))
    if len(group) == 1 and spans:
        findings[group[0]] = spans
    elif spans:
        ends = list(accumulate(len(text) + len(_SEPARATOR) for text in group))
        hits = {bisect_right(ends, position) for _, start, end in spans for position in (start, end - 1)}
        for index in sorted(hits):
            if own_spans := find_sensitive(group[index]):
                findings[group[index]] = own_spans


def find_sensitive(text: str) -> list[SensitiveSpan]:
    """Return kind, start and end of all findings in one text. They may overlap.

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


_MIN_KEY_CHARS = 40
_HEADER = LazyRegex(rf"-----(BEGIN|END) [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----|\n{BARRIER} |\Z")
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
            if header.start() - begin_line.end() > _MIN_KEY_CHARS:
                yield "private_key", begin_line.start(), header.end() if header[1] else header.start()
            begin_line = None
        elif header[1]:
            start = header.start()
            for line in reversed(text[max(0, start - 8192) : start].splitlines(keepends=True)):
                if not _LINE.fullmatch(line):
                    break
                start -= len(line)
            yield "private_key", start, header.end()
