"""Extraction of one sentence from error text: nested JSON, printed Python dictionaries, HTML pages, tracebacks.

A linear scanner for `key: value` pairs replaces parsers. It reads JSON, escaped JSON, Python literals and truncated
text in one pass, and without recursion that hostile text could exhaust.
"""

from __future__ import annotations

import re
from functools import cache

import msgspec

from mulligan.redaction import lazy_regex

MAX_MESSAGE_CHARS = 300
"""A longer message is cut at the end of a sentence or a word."""

_MAX_UNWRAP_DEPTH = 4
"""How many levels of JSON inside JSON strings are unwrapped."""

_MESSAGES = ("message", "errormessage", "error_message", "msg", "error", "detail", "error_description", "description")
_MORE_MESSAGES = ("faultstring", "reason", "title", "text", "stderr", "output", "errors")
_CODES = ("code", "type", "__type", "error_code", "errorcode", "status", "error", "reason", "sqlstate", "errno", "name")
_STATUSES = ("status", "statuscode", "status_code", "http_status", "code", "httpstatuscode", "error_code", "error")


class UnwrappedText(msgspec.Struct, frozen=True):
    """The message of a text without its envelope, with status, codes and classes."""

    sentence: str
    codes: tuple[str, ...] = ()
    status: int | None = None
    rpc: int | None = None
    names: tuple[str, ...] = ()
    """Exception classes named by a traceback or a prefix, with their modules."""
    is_envelope: bool = False
    """Whether the text is an object whose `error` is an object, the format of model providers."""
    is_page: bool = False


@cache
def _re(pattern: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
    return lazy_regex.compile_regex(pattern, flags)


def strip_control_chars(text: str) -> str:
    """Remove ANSI sequences, carriage returns and control characters. Newlines and tabs stay."""
    if "\x1b" in text or "\x9b" in text:
        text = _re(
            r"\x1b\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|(?:\x1b\[|\x9b)[0-?]{0,32}[ -/]{0,8}[@-~]|\x1b[@-Z\\-_]?"
        ).sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isprintable():
        text = _re(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]").sub("", text)
    return text


def unwrap_text(text: str) -> UnwrappedText:
    """Extract the sentence that describes the error, and the codes around it."""
    text = strip_control_chars(text)
    codes: list[str] = []
    status: int | None = None
    rpc: int | None = None
    names = list(_find_class_names(text))
    is_envelope = bool(
        _re(r"""^[^{\[]{0,200}[{\[]\s*(?:["']type["']\s*:\s*["']error["']\s*,\s*)?["']error["']\s*:\s*\{""").search(
            text[:400]
        )
    )
    match = _re(r"^(?:error: )?(?:an )?error (?:occurred|from \w{1,20})? ?\((\w{3,80})\)(?: when calling|:)").search(
        text
    )
    if match:
        codes.append(match.group(1))
    is_page = bool(_re(r"<(?:!doctype html|html|head|title|\?xml)\b").search(text[:600]))
    inner = text
    for _ in range(_MAX_UNWRAP_DEPTH):
        key_values = scan_pairs(inner) if "{" in inner or "\\" in inner else []
        if not key_values:
            break
        for key, value in key_values:
            number = _to_number(value)
            if number is not None and key in _STATUSES:
                if status is None and 400 <= number <= 599:
                    status = number
                if rpc is None and -33_000 <= number <= -32_000 and key == "code":
                    rpc = number
            elif key in _CODES and _is_code(value):
                codes.append(value)
        deeper = _choose_message(key_values)
        if not deeper or deeper == inner:
            break
        inner = deeper
    if is_page:
        page, code = _read_page(text)
        inner = page or inner
        if code:
            codes.append(code)
    return UnwrappedText(
        extract_sentence(inner), tuple(dict.fromkeys(codes)), status, rpc, tuple(names), is_envelope, is_page
    )


def scan_pairs(text: str) -> list[tuple[str, str]]:
    """Return all `key: value` pairs of an object in order, at any depth and with any quoting.

    Keys are in lower case.
    """
    if '\\"' in text and not _re(r"""["']\w{1,40}["']\s{0,5}:""").search(text):
        text = text.replace('\\"', '"').replace("\\n", "\n")
    key_values = []
    for match in _re(_PAIR).finditer(text):
        key, quoted, bare = match.group(1), match.group(2), match.group(3)
        value = _unquote(quoted) if quoted is not None else bare
        key_values.append((key.lower(), value))
        if len(key_values) >= 200:
            break
    return key_values


# Unrolled string pattern: each character matches in exactly one way, so there is no backtracking. An atomic group would
# be shorter, but is slow in the first Python versions that support it.
_PAIR = (
    r"""["'](\w{1,40})["']\s{0,5}:\s{0,5}"""
    r"""(?:("[^"\\]*+(?:\\.[^"\\]*+)*"?|'[^'\\]*+(?:\\.[^'\\]*+)*'?)|(-?\d[\d.]{0,20}|null|none|true|false))"""
)


def _unquote(token: str) -> str:
    body = token[1:-1] if len(token) > 1 and token[-1] == token[0] else token[1:]
    if "\\" not in body:
        return body
    return _re(r"\\(u[0-9a-f]{4}|.)", re.IGNORECASE | re.DOTALL).sub(_unescape, body)


def _unescape(match: re.Match[str]) -> str:
    escape_code = match.group(1)
    if len(escape_code) == 5:
        return chr(int(escape_code[1:], 16))
    return {"n": "\n", "t": "\t", "r": "\n"}.get(escape_code, escape_code)


def _to_number(value: str) -> int | None:
    return int(value) if value.lstrip("-").isdigit() and len(value) < 8 and value.isascii() else None


def _is_code(value: str) -> bool:
    return bool(_re(r"[\w.:#-]{3,80}").fullmatch(value)) and not value.isdigit() and value.lower() not in _NO_CODES


_NO_CODES = frozenset({"error", "none", "null", "true", "false", "failed", "failure", "text", "string", "object"})


def _choose_message(key_values: list[tuple[str, str]]) -> str:
    """Return the most informative value: of the first key group with a match, the first value that contains a space."""
    for group in (_MESSAGES, _MORE_MESSAGES):
        candidates = [
            (group.index(key), value)
            for key, value in key_values
            if key in group and len(value) > 3 and not _to_number(value)
        ]
        for _, value in sorted(candidates, key=lambda candidate: (" " not in candidate[1].strip(), candidate[0])):
            return value
    return ""


def _read_page(text: str) -> tuple[str, str]:
    """Return the text of an error page: XML's own message, else its title or first heading."""
    page_text = code = ""
    for tag in ("message", "faultstring", "errormessage", "h1", "title", "h2", "p"):
        match = _re(rf"<(?:\w{{1,20}}:)?{tag}(?:\s[^<>]{{0,200}})?>([^<]{{1,300}})<").search(text)
        if match and match.group(1).strip():
            page_text = match.group(1).strip()
            break
    match = _re(r"<(?:\w{1,20}:)?(?:error)?code>([^<]{1,80})<").search(text)
    if match:
        code = match.group(1).strip()
    return page_text, code


_CLASS = (
    r"^\s{0,8}(?:[a-z][\w]*\.)*([A-Z]\w*(?:Error|Exception|Timeout|Expired|Exceeded|Warning|Interrupt|Exit|"
    r"Fault|Refused|Denied|Group))\b(?=[:\s(]|$)"
)


def _find_class_names(text: str) -> list[str]:
    """Return exception classes at line starts, as in tracebacks and prefixes. The last one raised comes first."""
    if not any(mark in text for mark in ("Error", "Exception", "Timeout", "Expired", "Exceeded")):
        return []
    class_names = [match.group().strip() for match in _re(_CLASS, re.MULTILINE).finditer(text)]
    class_names.extend(
        match.group() for match in _re(r"litellm\.[A-Z]\w{2,60}(?:Error|Exception|Timeout)", 0).finditer(text)
    )
    return list(dict.fromkeys(reversed(class_names[:20])))


_NOISE = (
    r"^(?:exit code:? -?\d+|process exited with.{0,40}|command failed with exit code \d+.{0,20}|\$ .*|\+ .*|"
    r"[-=_*~#.\s]{0,400}|"
    r"traceback \(most recent call last\):|during handling of the above.*|the above exception was.*|stderr:|"
    r"stdout:|output:|"
    r"file \".*|\s+at .*|\s*\^+\s*|\.\.\.|\w{0,20} ?error:?|failed:?|\{|\[|usage:.*|\[\w[\w:-]{0,20}\] \$ .*|"
    r"\[\w[\w:-]{0,20}\] error task failed|"
    r"ok\s.*|\?\s.*\[no test files\]|=== (?:run|pause|cont|name).*|--- (?:pass|skip).*|pass|fail|collected \d+ items?|"
    r"platform .*|rootdir: .*|plugins: .*|compiling .*|finished .*|running \d+ tests?|> .*|test .* \.\.\. ok)$"
)
_PREFIX = (
    r"^(?:<tool_use_error>|</?error>|error during execution:\s|error executing tool \w{1,64}:\s|"
    r"error calling tool:\s|tool error:\s|"
    r"(?:fatal )?error:\s|(?:litellm\.)?\w{1,40}(?:error|exception):\s|\w{1,30}exception(?: \w{1,30})? -\s|"
    r"error code:? \d{3}(?: -|:)\s|execution failed:\s|uncaught\s|unhandled exception:?\s|npm err! (?:code \w+)?|"
    r"an error occurred \(\w{1,60}\) when calling the \w{1,60} operation(?: \([^)]{1,40}\))?:\s|"
    r"an error occurred:\s|caused by:\s|exception in thread \"[^\"]{1,60}\"\s|e\s{3,7}(?=\S))\s{0,10}"
)


def extract_sentence(text: str) -> str:
    """Return the line that describes the error, bounded in length."""
    text = strip_control_chars(text).replace("</tool_use_error>", "").replace("<tool_use_error>", "")
    lines = [line for line in text.splitlines() if line.strip()]
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        class_lines = [line for line in lines if _re(_CLASS, 0).match(line)]
        lines = (class_lines[-1:] or lines[-1:]) + lines
    chosen_line = next((line for line in lines if not is_noise(line)), lines[0] if lines else "")
    return tidy_line(chosen_line)


def is_noise(line: str) -> bool:
    """Return whether a line carries no message by itself: an exit code, a prompt, a line of dashes."""
    return _re(_NOISE).match(line.strip()) is not None


def tidy_line(line: str) -> str:
    """Remove prefixes from a line, normalize its spaces, and cut it at the end of a sentence or a word."""
    line = " ".join(line.split())
    for _ in range(_MAX_UNWRAP_DEPTH):
        shorter = _re(_PREFIX).sub("", line, count=1)
        if shorter == line or len(shorter) < 4:
            break
        line = shorter
    if len(line) <= MAX_MESSAGE_CHARS:
        return line
    truncated = line[:MAX_MESSAGE_CHARS]
    end = max(truncated.rfind(". "), truncated.rfind("; "))
    if end > MAX_MESSAGE_CHARS // 3:
        return truncated[: end + 1]
    return truncated[: max(truncated.rfind(" "), MAX_MESSAGE_CHARS // 2)] + " ..."
