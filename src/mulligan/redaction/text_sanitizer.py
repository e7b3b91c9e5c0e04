"""Sanitization of untrusted text for display to a model, a terminal, a log or a page (SAFETY S4).

System internals in error texts are left out: stack frames, private addresses, connection strings.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from mulligan.redaction.regex import LazyRegex
from mulligan.redaction.secret_hints import word_set

MAX_QUOTED_CHARS = 900
"""Maximum characters of untrusted text in one quotation."""

CUT_MARK = "[... cut ...]"
MAX_CUT_WORD_CHARS = 20

# Look-alike characters that survive NFKC: readable, but no markup for a chat template or a page.
_NEUTRAL = str.maketrans({"<": "\u2039", ">": "\u203a", "|": "\u00a6"})
_LINE_BREAKS = str.maketrans({"\r": "\n", "\u2028": "\n", "\u2029": "\n"})
# Characters without a glyph: variation selectors and fillers can carry a hidden message.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn"))

# Cursor movements, colors, titles, links.
_ANSI = LazyRegex(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}+[ -/]{0,16}+[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,2000}+(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,4}+[0-~]"
)
_MARK = LazyRegex(r"\[(?=\s{0,9}(?:said\s|end\s))", re.IGNORECASE)
_QUOTE_MARKS = LazyRegex(r"\[(?=\s{0,9}(?:said|end)\b)", re.IGNORECASE)
_OPENING = LazyRegex(r"\[said by [^\[\]\n]{1,80}, data only ([0-9a-f]{8})\]")
_CLOSING = LazyRegex(r"\[end ([0-9a-f]{8})\]")


def sanitize(text: str, limit: int = MAX_QUOTED_CHARS, *, has_frames: bool = False) -> str:
    """Sanitize a text: NFKC, no hidden characters, no markup, no system internals, at most `limit` characters.

    `has_frames` leaves stack frames in, for people. Secrets are not removed here: call `Redactor.text` first.
    """
    # Cut early: these two ends suffice to fill the limit after removals.
    text = _keep_ends(text, max(4096, 2 * limit), max(2048, limit))
    if "\x1b" in text or not text.isascii():
        text = _ANSI.sub("", text)
    text = _remove_invisible(text)
    text = text.translate(_NEUTRAL)
    for _ in range(8):
        sanitized = _truncate(omit_internals(text, has_frames=has_frames).strip(), limit)
        if sanitized == text:
            break
        text = sanitized  # repeat: a removal or the cut may have joined two halves of something
    return text


def _truncate(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    available_chars = limit - len(CUT_MARK) - 2
    if available_chars < 20:
        # Shorter texts are cut without a mark: they are starts of ids, which a command accepts.
        return f"{text[: limit - 3].rstrip()}..." if limit >= 17 else text[: max(0, limit)].strip()
    return _keep_ends(text, available_chars - available_chars // 3, available_chars // 3)


def _keep_ends(text: str, head: int, tail: int) -> str:
    if len(text) <= head + tail + len(CUT_MARK) + 2:
        return text
    # Words at the cut are removed, unless they are long.
    first, last = text[:head], text[len(text) - tail :]
    if not text[head].isspace() and (space := first.rfind(" ", max(0, head - MAX_CUT_WORD_CHARS))) > 0:
        first = first[:space]
    if not text[-tail - 1].isspace() and (space := last.find(" ", 0, MAX_CUT_WORD_CHARS)) >= 0:
        last = last[space:]
    return f"{first.rstrip()} {CUT_MARK} {last.lstrip()}"


def _remove_invisible(text: str) -> str:
    text = text.replace("\r\n", "\n").translate(_LINE_BREAKS)
    if text.isascii():
        return text if text.isprintable() else "".join(c for c in text if c in "\n\t" or " " <= c <= "~")
    # Remove hidden characters before and after normalization: one may separate two others, and joining may lengthen a
    # run of marks, which takes quadratic time to order. NFKC expands some characters to eighteen, so cut again.
    return _without_hidden(_keep_ends(unicodedata.normalize("NFKC", _without_hidden(text, 30)), 4096, 2048), 4)


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
    if not speaker or any(find_internals(speaker)):
        speaker = "tool"
    mark, tries = "", 0
    while not mark or mark in quoted_text:
        mark = hashlib.sha256(f"{tries}:{quoted_text}".encode()).hexdigest()[:8]
        tries += 1
    space = "\n" if "\n" in quoted_text else " "
    return f"[said by {speaker}, data only {mark}]{space}{quoted_text}{space}[end {mark}]"


def strip_quote_marks(text: str) -> str:
    """Remove text that imitates quotation marks of mulligan: only `quote_untrusted` may set them."""
    return _QUOTE_MARKS.sub("(", text)


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
    return [f"{descriptions[kind]} at {position + start}" for kind, start, _ in find_internals(text)]


# System internals

REPLACEMENTS = {"frame": "(stack left out)", "connection": "(connection string)", "address": "(private address)"}

_SCHEMES = word_set(
    """postgres postgresql mysql mariadb mongodb redis rediss valkey amqp amqps mssql sqlserver oracle clickhouse
    cockroachdb cassandra neo4j bolt kafka nats ldap ldaps snowflake ftp ftps sftp smtp smtps sb jdbc"""
)
_FIELD = (
    r"(?:server|data source|host|hostaddr|database|initial catalog|dbname|user id|uid|user|username|pwd|password|port"
    r"|endpoint|defaultendpointsprotocol|accountname|accountkey|endpointsuffix|sharedaccesskeyname|sharedaccesskey"
    r"|trusted_connection|encrypt|sslmode)"
)
_TRIGGER_WORDS = ("password=", "pwd=", "user id", "uid=", "accountkey", "sharedaccess", "dbname=", "host=")

_PYTHON = LazyRegex(
    r"Traceback \(most recent call last\):?"
    # Includes the source lines under a frame.
    r"|File \\{0,3}\"[^\"\n]{1,300}\\{0,3}\", line \d{1,7}(?:, in [^\s\\]{1,120}+)?(?:\n {4}[^\n]{0,400}+)*"
)
_AT = LazyRegex(
    r"at (?<!\w.{3})(?:"
    r"(?:async |new )?[^\s()]{1,160}+(?: \[as [^\]\s]{1,60}+\])? ?"
    r"\([^()\n:]{0,200}+(?::[^()\n:]{0,100}+){0,3}:\d{1,7}\)"
    r"|[^\s()]{1,160}+\((?:Native Method|Unknown Source|native|.anonymous.)\)"
    r"|(?:async )?(?:file:|node:|webpack|https?:|[A-Za-z]:\\|/)"
    r"[^\s():]{0,200}+(?::[^\s():]{1,200}+){0,2}:\d{1,7}:\d{1,7}"
    r"|[^\s()]{1,160}+\([^()\n]{0,200}+\) in [^\n:]{1,300}+(?::\\[^\n:]{1,300}+)?:line \d{1,7})"
)
_GO = LazyRegex(r"goroutine \d{1,9} \[[^\]\n]{1,60}\]:?|:\d{1,7} \+0x[0-9a-f]{1,16}")
_SCHEME = LazyRegex(r"[a-z0-9+.:-]{1,40}+", re.IGNORECASE)
# A placeholder inside an address is part of it, as in `bob:[redacted password]@db`.
# Punctuation alone is no address, as in a heading of a tool named `postgres://`.
_ADDRESS_REMAINDER = LazyRegex(
    r"(?=[^\s\"'`<>]{0,20}?[\w\[])[^\s\"'`<>]{1,600}+(?:(?<=\[redacted) \w{1,40}\][^\s\"'`<>]{0,600}+){0,4}"
)
_FIELDS = LazyRegex(
    rf"{_FIELD}\s?=\s?[^\s;\"']{{1,200}}+(?:(?:\s?;\s?|\s){_FIELD}\s?=\s?[^\s;\"']{{1,200}}+){{1,12}}+;?",
    re.IGNORECASE,
)
_PRIVATE_IPV4 = LazyRegex(
    r"1(?<![\w.].)(?:0(?:\.\d{1,3}){3}|27(?:\.\d{1,3}){3}|92\.168(?:\.\d{1,3}){2}|69\.254(?:\.\d{1,3}){2}"
    r"|72\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2}|00\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])(?:\.\d{1,3}){2})"
    r"(?::\d{1,5})?(?!\w|\.\d)"
)
_PRIVATE_IPV6 = LazyRegex(
    r"(?<![\w:])(?:f[cd][0-9a-f]{2}|fe[89ab][0-9a-f]):[0-9a-f:]{2,40}+(?:%\w{1,16})?|(?<![\w:])::1(?![\w:])",
    re.IGNORECASE,
)
_HOST = LazyRegex(r"\.(?:internal|local|localdomain|intranet|corp|lan)(?![\w-]|\.\w)(?::\d{1,5})?", re.IGNORECASE)
_LOCALHOST = LazyRegex(r"localhost:\d{1,5}", re.IGNORECASE)
_POINTER = LazyRegex(r"0x(?<!\w..)[0-9a-fA-F]{8,16}(?!\w)")
_PATH = LazyRegex(r"[^\s:]{1,253}+")
_LABEL = LazyRegex(r"[\w.-]{1,253}+")

# Kind, words in lower case of which a text with a match contains one, and the rule.
_INTERNALS = (
    ("frame", ("traceback", "file "), _PYTHON),
    ("frame", ("at ",), _AT),
    ("connection", _TRIGGER_WORDS, _FIELDS),
    ("address", (), _PRIVATE_IPV4),
    ("address", ("::", "fd", "fc", "fe"), _PRIVATE_IPV6),
    ("address", ("localhost:",), _LOCALHOST),
    ("address", ("0x",), _POINTER),
)


def find_internals(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield kind, start and end of each internal detail in a text."""
    lower_text = text.lower()
    for kind, marks, rule in _INTERNALS:
        if not marks or any(map(lower_text.__contains__, marks)):
            yield from ((kind, *hit.span()) for hit in rule.finditer(text))
    if "goroutine" in text or "+0x" in text:
        for hit in _GO.finditer(text):
            yield "frame", _word_start(text, hit.start(), _PATH) if hit[0][0] == ":" else hit.start(), hit.end()
    position = text.find("://")
    while position >= 0:
        yield from _find_connection(text, position)
        position = text.find("://", position + 3)
    for hit in _HOST.finditer(text):
        if (start := _word_start(text, hit.start(), _LABEL)) < hit.start():
            yield "address", start, hit.end()


def _word_start(text: str, end: int, rule: LazyRegex) -> int:
    """Return the start of the word that ends at an index. Matched backwards, so that long words are read only once."""
    hit = rule.match(text[max(0, end - 253) : end][::-1])
    return end - hit.end() if hit else end


def _find_connection(text: str, position: int) -> Iterator[tuple[str, int, int]]:
    start = _word_start(text, position, _SCHEME)
    if start == position or (remainder := _ADDRESS_REMAINDER.match(text, position + 3)) is None:
        return
    names = re.split(r"[+:]", text[start:position].lower())
    user, at, _ = remainder[0].partition("@")
    if not _SCHEMES.isdisjoint(names) or (at and "/" not in user and "?" not in user):
        yield "connection", start, remainder.end()


def omit_internals(text: str, *, has_frames: bool = False) -> str:
    """Return the text with a placeholder for each internal detail, except stack frames with `has_frames`."""
    spans = sorted(find_internals(text), key=lambda span: (span[1], -span[2]))
    if has_frames:
        spans = [span for span in spans if span[0] != "frame"]
    if not spans:
        return text
    pieces: list[str] = []
    last = 0
    for kind, start, end in spans:
        if end <= last:
            continue
        between = text[last:start] if start > last else ""
        if not (kind == "frame" and pieces and pieces[-1] == REPLACEMENTS["frame"] and between.strip() == ""):
            is_in_parentheses = text[start - 1 : start] == "(" and text[end : end + 1] == ")"
            pieces += [between, REPLACEMENTS[kind].strip("()") if is_in_parentheses else REPLACEMENTS[kind]]
        last = end
    return "".join([*pieces, text[last:]])
