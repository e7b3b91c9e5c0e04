"""What must not be written down, found in free text: one look to see whether there is anything, then the finders."""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.redaction import contexts, formats, personal
from mulligan.redaction.expressions import Expression

# Tables for bytes.translate: an expression would take longer over the text than everything else together.
_RUNS = bytes(97 if chr(c).isalnum() or chr(c) in "_-" else 32 for c in range(128)) + b" " * 128
_DIGITS = bytes(48 if chr(c).isdigit() else 32 for c in range(128)) + b" " * 128
_LONG, _MANY = b"a" * 16, b"0" * 8


def might_hold(text: str) -> bool:
    """Whether anything at all could be found: cheap, and true far more often than something is."""
    raw = _ascii(text)
    return b"@" in raw or _has_runs(raw) or _has_numbers(raw) or contexts.is_told(raw.lower().decode())


def detect(text: str) -> Iterator[tuple[str, int, int]]:
    """Kind, start and end of everything found; what overlaps is for the caller to settle."""
    raw = _ascii(text)
    if b"PRIVATE KEY" in raw:
        yield from _pem(text)
    if _has_runs(raw):
        yield from formats.find(text, raw)
    yield from contexts.find(text, raw.lower().decode())
    yield from personal.find(text, _has_numbers(raw))


def _ascii(text: str) -> bytes:
    """The text as bytes, one a character, so that a place in one is a place in the other."""
    return text.encode("ascii", "replace")


def _has_runs(raw: bytes) -> bool:
    return _LONG in raw.translate(_RUNS)


def _has_numbers(raw: bytes) -> bool:
    return _MANY in raw.translate(_DIGITS, b" .:/()-")


_HEADER = Expression(r"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_LINE = Expression(r"[A-Za-z0-9+/=]{16,}+\s{0,4}")


def _pem(text: str) -> Iterator[tuple[str, int, int]]:
    """A key between its two lines; or, of one that was cut, everything on the side of the line that is left."""
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
