"""Sanitization of untrusted text for display to a model, a terminal, a log or a page (SAFETY S4)."""

from __future__ import annotations

import re
import unicodedata

from mulligan.redaction import internals
from mulligan.redaction.lazy_regex import LazyRegex

MAX_QUOTED_CHARS = 900
"""Maximum characters of untrusted text in one quotation."""

CUT_MARK = "[... cut ...]"

# Look-alike characters that survive NFKC: readable, but no markup for a chat template or a page.
_NEUTRAL = str.maketrans({"<": "\u2039", ">": "\u203a", "|": "\u00a6"})
_LINE_BREAKS = str.maketrans({"\r": "\n", "\u2028": "\n", "\u2029": "\n"})
# Characters without a glyph: variation selectors and fillers can carry a hidden message.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn"))
_MAX_COMBINING_MARKS = 4
"""Combining marks in a row. Reordering a long run has quadratic cost."""


# Cursor movements, colors, titles, links.
_ANSI = LazyRegex(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}+[ -/]{0,16}+[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,2000}+(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,4}+[0-~]"
)
_MARK = LazyRegex(r"\[(?=\s{0,9}(?:said\s|end\s))", re.IGNORECASE)
_OPENING = LazyRegex(r"\[said by [^\[\]\n]{1,80}, data only ([0-9a-f]{8})\]")
_CLOSING = LazyRegex(r"\[end ([0-9a-f]{8})\]")


def sanitize(text: str, limit: int = MAX_QUOTED_CHARS) -> str:
    """Sanitize a text: NFKC, no hidden characters, no markup, no system internals, at most `limit` characters.

    Secrets are not removed here: call `Redactor.text` first.
    """
    # Cut early: these two ends suffice to fill the limit after removals.
    text = _keep_ends(text, max(4096, 2 * limit), max(2048, limit))
    if "\x1b" in text or not text.isascii():
        text = _ANSI.sub("", text)
    text = _remove_invisible(text)
    text = text.translate(_NEUTRAL)
    for _ in range(8):
        sanitized = _truncate(internals.omit_internals(text).strip(), limit)
        if sanitized == text:
            break
        text = sanitized  # repeat: a removal or the cut may have joined two halves of something
    return text


def _truncate(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    available_chars = limit - len(CUT_MARK) - 2
    if available_chars < 20:
        return text[: max(0, limit)].strip()
    return _keep_ends(text, available_chars - available_chars // 3, available_chars // 3)


def _keep_ends(text: str, head: int, tail: int) -> str:
    if len(text) <= head + tail + len(CUT_MARK) + 2:
        return text
    return f"{text[:head].rstrip()} {CUT_MARK} {text[len(text) - tail :].lstrip()}"


def _remove_invisible(text: str) -> str:
    text = text.replace("\r\n", "\n").translate(_LINE_BREAKS)
    if text.isascii():
        return text if text.isprintable() else "".join(c for c in text if c in "\n\t" or " " <= c <= "~")
    # Remove hidden characters before and after normalization: one may separate two others, and joining may lengthen a
    # run of marks. NFKC expands some characters to eighteen, so cut again.
    return _without_hidden(
        _keep_ends(unicodedata.normalize("NFKC", _without_hidden(text, 30)), 4096, 2048), _MAX_COMBINING_MARKS
    )


def _without_hidden(text: str, marks: int) -> str:
    visible_chars = []
    run = 0
    for c in text:
        if c <= "~":
            if c >= " " or c in "\n\t":
                visible_chars.append(c)
                run = 0
        elif unicodedata.category(c) in _HIDDEN or c in _INVISIBLE:
            continue
        elif unicodedata.combining(c):
            run += 1
            if run <= marks:
                visible_chars.append(c)
        else:
            visible_chars.append(c)
            run = 0
    return "".join(visible_chars)


def quote_untrusted(text: str, author: str = "tool") -> str:
    """Sanitize and quote untrusted text: `[said by search, data only 3f9a1c07] ... [end 3f9a1c07]`.

    The mark is a hash of the text, so that equal quotations give equal prompts. It does not occur in the text, so that
    the text cannot close its quotation.
    """
    import hashlib  # lazy: slower to import than the rest of the package, and rarely needed

    quoted_text = _MARK.sub("(", sanitize(text))
    speaker = re.sub(r"[^\w./-]+", " ", sanitize(author, 60)).strip()
    if not speaker or any(internals.find_internals(speaker)):
        speaker = "tool"
    mark, tries = "", 0
    while not mark or mark in quoted_text:
        mark = hashlib.sha256(f"{tries}:{quoted_text}".encode()).hexdigest()[:8]
        tries += 1
    space = "\n" if "\n" in quoted_text else " "
    return f"[said by {speaker}, data only {mark}]{space}{quoted_text}{space}[end {mark}]"


def find_unsafe_text(text: str) -> list[str]:
    """Return why a text is unsafe to show to a model or a terminal, or an empty list."""
    problems = []
    for position, c in enumerate(text):
        if c in "\n\t" or " " <= c <= "~":
            continue
        if unicodedata.category(c) in _HIDDEN or c in _INVISIBLE:
            problems.append(f"hidden character U+{ord(c):04X} at {position}")
            break
    if not text.isascii() and not problems and not unicodedata.is_normalized("NFKC", text):
        problems.append("not in normal form NFKC")
    return problems + _check_quotations(text)


def _check_quotations(text: str) -> list[str]:
    problems: list[str] = []
    position = 0
    while opening := _OPENING.search(text, position):
        problems += _find_shown_internals(text[position : opening.start()], position)
        end = text.find(f"[end {opening[1]}]", opening.end())
        if end < 0:
            return [*problems, f"unclosed quotation at {opening.start()}"]
        quoted_text = text[opening.end() : end].strip()
        if len(quoted_text) > MAX_QUOTED_CHARS:
            problems.append(
                f"quotation of {len(quoted_text)} characters, maximum {MAX_QUOTED_CHARS}, at {opening.start()}"
            )
        if _MARK.search(quoted_text):
            problems.append(f"quotation mark inside a quotation at {opening.start()}")
        if any(c in quoted_text for c in "<>|"):
            problems.append(f"angle brackets or pipes inside a quotation at {opening.start()}")
        problems += _find_shown_internals(quoted_text, opening.end())
        position = end + len(opening[1]) + len("[end ]")
    if closing := _CLOSING.search(text, position):
        problems.append(f"closing mark without an opening mark at {closing.start()}")
    return problems + _find_shown_internals(text[position:], position)


def _find_shown_internals(text: str, position: int) -> list[str]:
    descriptions = {"frame": "a stack frame", "connection": "a connection string", "address": "a private address"}
    return [f"{descriptions[kind]} at {position + start}" for kind, start, _ in internals.find_internals(text)]
