"""Foreign text made fit to be shown: to a model, a terminal, a log or a page (SAFETY S4)."""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata

FOREIGN = 900
"""Characters. The most that one quotation may hold of what a stranger wrote."""

GAP = "[... cut ...]"

# Look-alikes that survive NFKC, so that a reader loses nothing and a chat template or a page sees no markup.
_NEUTRAL = str.maketrans({"<": "\u2039", ">": "\u203a", "|": "\u00a6"})
_LINES = str.maketrans({"\r": "\n", "\u2028": "\n", "\u2029": "\n"})
# Marks and letters that draw nothing: variation selectors and fillers can carry a hidden message past a reader.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn"))
_MARKS = 4
"""Combining marks in a row: more is decoration, and reordering a long run costs the square of its length."""


@functools.cache
def _rules() -> dict[str, re.Pattern[str]]:
    # Compiled on first use: the library is imported far more often than something fails.
    # Every repetition is bounded or possessive, so that no text costs more than a constant for each character.
    private = (
        r"(?<![\w.])(?:(?:10|127)(?:\.\d{1,3}){3}|192\.168(?:\.\d{1,3}){2}|169\.254(?:\.\d{1,3}){2}"
        r"|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2}|100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])(?:\.\d{1,3}){2})"
        r"(?::\d{1,5})?(?![\w.]*\d)"
        r"|(?<![\w:])(?:f[cd][0-9a-f]{2}|fe[89ab][0-9a-f]):[0-9a-f:]{2,40}+(?:%\w{1,16})?|(?<![\w:])::1(?![\w:])"
        r"|\blocalhost:\d{1,5}\b"
        r"|(?<![\w.-])[a-z0-9-]{1,63}+(?:\.[a-z0-9-]{1,63}+){0,6}?\.(?:internal|local|localdomain|intranet|corp|lan)"
        r"(?![\w-])(?::\d{1,5})?"
        r"|\b0x[0-9a-f]{8,16}\b"
    )
    databases = (
        r"postgres(?:ql)?|mysql|mariadb|mongodb|rediss?|valkeys?|amqps?|mssql|sqlserver|oracle|clickhouse|cockroachdb"
        r"|cassandra|neo4j|bolt|kafka|nats|ldaps?|snowflake|ftps?|sftp|smtps?|sb"
    )
    pairs = (
        r"(?:server|data source|host|hostaddr|database|initial catalog|dbname|user id|uid|user|pwd|password|port"
        r"|endpoint|defaultendpointsprotocol|accountname|accountkey|endpointsuffix|sharedaccesskeyname|sharedaccesskey"
        r"|trusted_connection|encrypt|sslmode)\s?=\s?[^\s;\"']{1,200}+"
    )
    return {
        "ansi": re.compile(
            r"(?:\x1b\[|\x9b)[0-?]{0,64}+[ -/]{0,16}+[@-~]"
            r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,2000}+(?:\x07|\x1b\\|\x9c)"
            r"|\x1b[ -/]{0,4}+[0-~]"
        ),
        "frame": re.compile(
            r"Traceback \(most recent call last\):?"
            # The lines of source under a frame go with it.
            r"|File (?:\\?\"|&quot;)[^\"\n]{1,300}(?:\"|&quot;), line \d{1,7}(?:, in [^\s\\]{1,120}+)?"
            r"(?:\n {4,}[^\n]{0,300}+)*+"
            r"|\bat (?:async |new )?[^\s()]{1,160}+(?: \[as [^\]\s]{1,60}+\])? ?"
            r"\([^()\n]{1,300}?:\d{1,7}(?::\d{1,7})?\)"
            r"|\bat [^\s()]{1,160}+\((?:Native Method|Unknown Source|native|<anonymous>)\)"
            r"|\bat (?:async )?(?:file:|node:|webpack|https?:|[A-Za-z]:\\|/)[^\s()]{1,300}?:\d{1,7}:\d{1,7}"
            r"|\bat [^\n()]{1,160}\([^()\n]{0,200}\) in [^\n]{1,300}?:line \d{1,7}"
            r"|goroutine \d{1,9} \[[^\]\n]{1,60}\]:?"
            r"|[^\s:]{1,300}+:\d{1,7} \+0x[0-9a-f]{1,16}"
        ),
        "connection": re.compile(
            rf"\b(?:jdbc:[a-z0-9:]{{1,40}}+//|(?:{databases})(?:\+[a-z0-9]{{1,20}})?://)[^\s\"'`<>]{{1,500}}+"
            r"|\b[a-z][a-z0-9+.-]{1,20}+://[^\s/@\"'<>]{0,200}+@[^\s\"'`<>]{0,500}+"
            rf"|\b{pairs}(?:\s?;\s?{pairs}){{1,12}}+;?"
            rf"|\b(?:host|hostaddr|dbname|user|password)=\S{{1,200}}+"
            r"(?: (?:host|hostaddr|port|dbname|user|password|sslmode)=\S{1,200}+){1,8}+",
            re.IGNORECASE,
        ),
        "private": re.compile(private, re.IGNORECASE),
        # What a text must hold for any of the three above to match: most texts are done after this one look.
        "hint": re.compile(
            r"://|=|\d\.\d|::|f[cde][0-9a-fA-F]{2}:|[Ll]ocal|0x|\.(?:int|corp|lan)|Tracebac|File |at |gorout"
        ),
        "marks": re.compile(r"\[(?=\s{0,9}(?:said\s|end\s))", re.IGNORECASE),
        "opening": re.compile(r"\[said by [^\[\]\n]{1,80}, data only ([0-9a-f]{8})\]"),
        "closing": re.compile(r"\[end ([0-9a-f]{8})\]"),
    }


_OMITTED = {"frame": "(stack left out)", "connection": "(connection string)", "private": "(private address)"}
_REPEATED = re.compile(r"\(stack left out\)(?:\s{1,40}+\(stack left out\))++")


def clean(text: str, limit: int = FOREIGN) -> str:
    """The text as it may be shown: one normal form, nothing hidden, nothing that looks like markup, both ends kept.

    Secrets are not looked for here: that is `Redactor.text`, and comes first.
    """
    rules = _rules()
    # Two ends are enough to fill the limit, whatever is removed from them.
    text = _ends(text, max(8192, 2 * limit), max(2048, limit))
    if "\x1b" in text or not text.isascii():
        text = rules["ansi"].sub("", text)
    text = _visible(text)
    if rules["hint"].search(text):
        for name, omitted in _OMITTED.items():
            text = rules[name].sub(omitted, text)
        text = _REPEATED.sub(_OMITTED["frame"], text)
    text = text.translate(_NEUTRAL).strip()
    if len(text) <= limit:
        return text
    room = limit - len(GAP) - 2
    if room < 20:
        return text[: max(0, limit)].strip()
    return _ends(text, room - room // 3, room // 3)


def _ends(text: str, head: int, tail: int) -> str:
    if len(text) <= head + tail + len(GAP) + 2:
        return text
    return f"{text[:head].rstrip()} {GAP} {text[len(text) - tail :].lstrip()}"


def _visible(text: str) -> str:
    text = text.replace("\r\n", "\n").translate(_LINES)
    if text.isascii():
        return text if text.isprintable() else "".join(c for c in text if c in "\n\t" or " " <= c <= "~")
    # Before and after: a hidden character may keep two others from joining, and joining may lengthen a run of marks.
    return _without_hidden(unicodedata.normalize("NFKC", _without_hidden(text, 30)), _MARKS)


def _without_hidden(text: str, marks: int) -> str:
    kept = []
    run = 0
    for c in text:
        if c <= "~":
            if c >= " " or c in "\n\t":
                kept.append(c)
                run = 0
        elif unicodedata.category(c) in _HIDDEN or c in _INVISIBLE:
            continue
        elif unicodedata.combining(c):
            run += 1
            if run <= marks:
                kept.append(c)
        else:
            kept.append(c)
            run = 0
    return "".join(kept)


def quote(text: str, who: str = "tool") -> str:
    """What somebody said, cleaned and marked as data: `[said by search, data only 3f9a1c07] ... [end 3f9a1c07]`.

    The mark follows from the text, so that a prompt with the same quotation is the same prompt; and it is chosen so
    that the text does not contain it, so that nobody can close a quotation from within.
    """
    said = _rules()["marks"].sub("(", clean(text))
    speaker = re.sub(r"[\[\],\s]+", " ", clean(who, 60)).strip() or "tool"
    mark, tries = "", 0
    while not mark or mark in said:
        mark = hashlib.sha256(f"{tries}:{said}".encode()).hexdigest()[:8]
        tries += 1
    space = "\n" if "\n" in said else " "
    return f"[said by {speaker}, data only {mark}]{space}{said}{space}[end {mark}]"


def faults(text: str) -> list[str]:
    """What makes a text unfit to be shown to a model or a terminal; empty when it is presentable."""
    found = []
    for position, c in enumerate(text):
        if c in "\n\t" or " " <= c <= "~":
            continue
        if unicodedata.category(c) in _HIDDEN or c in _INVISIBLE:
            found.append(f"hidden character U+{ord(c):04X} at {position}")
            break
    if not text.isascii() and not found and not unicodedata.is_normalized("NFKC", text):
        found.append("not in normal form NFKC")
    rules = _rules()
    if rules["hint"].search(text):
        names = {"frame": "a stack frame", "connection": "a connection string", "private": "a private address"}
        found += [f"{said} at {hit.start()}" for name, said in names.items() if (hit := rules[name].search(text))]
    return found + _blocks(text)


def _blocks(text: str) -> list[str]:
    rules = _rules()
    found: list[str] = []
    position = 0
    while opening := rules["opening"].search(text, position):
        position = text.find(f"[end {opening[1]}]", opening.end())
        if position < 0:
            return [*found, f"a quotation that is not closed at {opening.start()}"]
        said = text[opening.end() : position]
        if len(said) > FOREIGN + 2:
            found.append(f"a quotation of {len(said)} characters, at most {FOREIGN}, at {opening.start()}")
        if rules["marks"].search(said):
            found.append(f"a mark inside a quotation at {opening.start()}")
        if any(c in said for c in "<>|"):
            found.append(f"angle brackets or pipes inside a quotation at {opening.start()}")
        position += len(opening[1]) + 6
    outside = rules["opening"].sub("", text)
    closings = len(rules["closing"].findall(outside)) - len(rules["opening"].findall(text))
    if closings > 0:
        found.append("a closing mark that nothing opened")
    return found
