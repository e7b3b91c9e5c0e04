"""Detection of system internals in error texts: stack frames, private addresses, connection strings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mulligan.redaction.lazy_regex import LazyRegex
from mulligan.redaction.secret_names import word_set

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
_ADDRESS_REMAINDER = LazyRegex(r"[^\s\"'`<>]{1,600}+(?:(?<=\[redacted) \w{1,40}\][^\s\"'`<>]{0,600}+){0,4}")
_FIELDS = LazyRegex(
    rf"{_FIELD}\s?=\s?[^\s;\"']{{1,200}}+(?:(?:\s?;\s?|\s){_FIELD}\s?=\s?[^\s;\"']{{1,200}}+){{1,12}}+;?"
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
_LOCALHOST = LazyRegex(r"localhost:\d{1,5}")
_POINTER = LazyRegex(r"0x(?<!\w..)[0-9a-fA-F]{8,16}(?!\w)")
_PATH = LazyRegex(r"[^\s:]{1,253}+")
_LABEL = LazyRegex(r"[\w.-]{1,253}+")


def find_internals(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield kind, start and end of each internal detail in a text."""
    lower_text = text.lower()
    if "Traceback" in text or "File " in text:
        yield from (("frame", *hit.span()) for hit in _PYTHON.finditer(text))
    if "at " in text:
        yield from (("frame", *hit.span()) for hit in _AT.finditer(text))
    if "goroutine" in text or "+0x" in text:
        for hit in _GO.finditer(text):
            yield "frame", _word_start(text, hit.start(), _PATH) if hit[0][0] == ":" else hit.start(), hit.end()
    position = text.find("://")
    while position >= 0:
        yield from _find_connection(text, position)
        position = text.find("://", position + 3)
    if len(lower_text) == len(text) and any(name in lower_text for name in _TRIGGER_WORDS):
        yield from (("connection", *hit.span()) for hit in _FIELDS.finditer(lower_text))
    yield from (("address", *hit.span()) for hit in _PRIVATE_IPV4.finditer(text))
    if "::" in text or "fd" in lower_text or "fc" in lower_text or "fe" in lower_text:
        yield from (("address", *hit.span()) for hit in _PRIVATE_IPV6.finditer(text))
    for hit in _HOST.finditer(text):
        if (start := _word_start(text, hit.start(), _LABEL)) < hit.start():
            yield "address", start, hit.end()
    if "localhost:" in lower_text and len(lower_text) == len(text):
        yield from (("address", *hit.span()) for hit in _LOCALHOST.finditer(lower_text))
    if "0x" in text:
        yield from (("address", *hit.span()) for hit in _POINTER.finditer(text))


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


def omit_internals(text: str) -> str:
    """Return the text with a placeholder for each internal detail."""
    spans = sorted(find_internals(text), key=lambda span: (span[1], -span[2]))
    if not spans:
        return text
    pieces: list[str] = []
    last = 0
    for kind, start, end in spans:
        if end <= last:
            continue
        between = text[last:start] if start > last else ""
        if not (kind == "frame" and pieces and pieces[-1] == REPLACEMENTS["frame"] and between.strip() == ""):
            pieces += [between, REPLACEMENTS[kind]]
        last = end
    return "".join([*pieces, text[last:]])
