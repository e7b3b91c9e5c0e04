"""Facts from texts and results: the sentence that describes an error, a program's output without its frame, and
whether a result is an error.

Texts are nested JSON, printed Python dictionaries, HTML pages, tracebacks. A linear scanner for `key: value` pairs
replaces parsers. It reads JSON, escaped JSON, Python literals and truncated text in one pass, and without recursion
that hostile text could exhaust.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

from mulligan.classify.evidence import RPC_STATUS_KEYS, get_attribute, to_bounded_text, to_integer
from mulligan.classify.result_keys import (
    DESCRIPTION_KEYS,
    DONE_KEYS,
    EMPTY_KEYS,
    ENVELOPE_KEYS,
    MAX_DESCRIPTION_KEYS,
    MESSAGE_KEYS,
    STATUS_KEYS,
)
from mulligan.classify.rules import compile_rule_pattern, search_rule_pattern
from mulligan.classify.rules.python import kind_for_code
from mulligan.classify.statements import score_statement, states_failure
from mulligan.redaction.regex import compile_regex, search_likely

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


def strip_control_chars(text: str) -> str:
    """Remove ANSI sequences, carriage returns and control characters. Newlines and tabs stay."""
    if "\x1b" in text or "\x9b" in text:
        text = compile_regex(
            r"\x1b\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|(?:\x1b\[|\x9b)[0-?]{0,32}[ -/]{0,8}[@-~]|\x1b[@-Z\\-_]?"
        ).sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.replace("\n", "").replace("\t", "").isprintable():
        text = compile_regex(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]").sub("", text)
    return text


def unwrap_text(text: str) -> UnwrappedText:
    """Extract the sentence that describes the error, and the codes around it."""
    text = strip_control_chars(text)
    status: int | None = None
    rpc: int | None = None
    is_envelope = compile_regex(_ENVELOPE).match(text[:400]) is not None
    match = compile_regex(_CODE_PREFIX).match(text)
    codes = [match.group(1)] if match else []
    if "_" in text[-60:] and (code_suffix := compile_regex(_CODE_SUFFIX).search(text[-100:])):
        codes.append(code_suffix.group(1))
    if "StatusCode." in text and (rpc_code := compile_regex(_RPC_CODE).search(text)):
        codes.append(rpc_code.group(1))
    is_page = compile_regex(r"<(?:!doctype html|html|head|title|\?xml)\b").search(text[:600]) is not None
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
    names = tuple(_find_class_names(text))
    return UnwrappedText(extract_sentence(inner), tuple(dict.fromkeys(codes)), status, rpc, names, is_envelope, is_page)


_ENVELOPE = r"""^[^{\[]{0,200}[{\[]\s*(?:["']type["']\s*:\s*["']error["']\s*,\s*)?["']error["']\s*:\s*\{"""
_CODE_PREFIX = r"^(?:error: )?(?:an )?error (?:occurred|from \w{1,20})? ?\(([\w.]{3,80})\)(?: when calling|:)"
_CODE_SUFFIX = r"\b(?:error|failed)\b[^\n:]{0,60}: ([a-z]{2,24}(?:_[a-z]{2,24}){1,5})\.?\s*\Z"
_RPC_CODE = r"\bStatusCode\.([A-Z_]{5,20})\b"


def scan_pairs(text: str) -> list[tuple[str, str]]:
    """Return all `key: value` pairs of an object in order, at any depth and with any quoting.

    Keys are in lower case.
    """
    if '\\"' in text and not compile_regex(r"""["']\w{1,40}["']\s{0,5}:""").search(text):
        text = text.replace('\\"', '"').replace("\\n", "\n")
    pairs: list[tuple[str, str]] = []
    position = 0
    while len(pairs) < _MAX_PAIRS and (match := compile_regex(_PAIR).search(text, position)):
        key, quoted, bare = match.groups()
        position = match.end()
        if quoted is not None and quoted[0] == '"' and text[position : position + 1].isalnum():
            # The value has quotes that are not escaped. Of nested JSON, the pairs are matched next.
            if quoted[-2] in "{[":
                position -= 1
            elif end := compile_regex(_VALUE_END).search(text, position, position + _MAX_QUOTING_CHARS):
                quoted = text[match.start(2) : end.start() + 1]
        pairs.append((key.lower(), bare if quoted is None else _unquote(quoted)))
    return pairs


# Unrolled string pattern: each character matches in exactly one way, so there is no backtracking. An atomic group would
# be shorter, but is slow in the first Python versions that support it.
_PAIR = (
    r"""["'](\w{1,40})["']\s{0,5}:\s{0,5}"""
    r"""(?:("[^"\\]*+(?:\\.[^"\\]*+)*"?|'[^'\\]*+(?:\\.[^'\\]*+)*'?)|(-?\d[\d.]{0,20}|null|none|true|false))"""
)


_MAX_PAIRS = 200
_VALUE_END = r'"[ \t]{0,5}(?:[,}\]]|\Z)'
_MAX_QUOTING_CHARS = 2_000
"""Characters in which the end of a value with unescaped quotes is searched."""


def _unquote(token: str) -> str:
    body = token[1:-1] if len(token) > 1 and token[-1] == token[0] else token[1:]
    if "\\" not in body:
        return body
    return compile_regex(r"\\(u[0-9a-f]{4}|.)", re.IGNORECASE | re.DOTALL).sub(_unescape, body)


def _unescape(match: re.Match[str]) -> str:
    escape_code = match.group(1)
    if len(escape_code) == 5:
        return chr(int(escape_code[1:], 16))
    return {"n": "\n", "t": "\t", "r": "\n"}.get(escape_code, escape_code)


def _to_number(value: str) -> int | None:
    return int(value) if value.lstrip("-").isdigit() and len(value) < 8 and value.isascii() else None


_NO_CODES = frozenset("error none null true false failed failure text string object".split())


def _is_code(value: str) -> bool:
    is_word = compile_regex(r"[\w.:#-]{3,80}").fullmatch(value) and not value.isdigit()
    return bool(is_word) and value.lower() not in _NO_CODES


def _choose_message(key_values: list[tuple[str, str]]) -> str:
    """Return the most informative value: of the first key group with a match, the first value that contains a space."""
    for group in (_MESSAGES, _MORE_MESSAGES):
        candidates = [
            (" " not in value.strip(), group.index(key), value)
            for key, value in key_values
            if key in group and len(value) > 3 and not _to_number(value) and value[-1] not in "{["
        ]
        if candidates:
            return min(candidates, key=lambda candidate: candidate[:2])[-1]
    return ""


def _read_page(text: str) -> tuple[str, str]:
    """Return the text of an error page: XML's own message, else its title or first heading."""
    tags = ("message", "faultstring", "errormessage", "h1", "title", "h2", "p")
    pattern = rf"<(?:\w{{1,20}}+:)?({'|'.join(tags)})(?:\s[^<>]{{0,200}}+)?>([^<]{{1,300}}+)(?=<)"
    first_texts: dict[str, str] = {}
    for match in compile_regex(pattern).finditer(text):
        first_texts.setdefault(match[1].lower(), match[2].strip())
    page_text = next((first_texts[tag] for tag in tags if first_texts.get(tag)), "")
    code = search_likely(r"<(?:\w{1,20}:)?(?:error)?code>([^<]{1,80})<", text, text.lower())
    return page_text, code[1].strip() if code else ""


_CLASS = (
    r"^\s{0,8}(?:[a-z][\w]*\.)*([A-Z]\w*(?:Error|Exception|Timeout|Expired|Exceeded|Warning|Interrupt|Exit|"
    r"Fault|Refused|Denied|Group))\b(?=[:\s(]|$)"
)


def _find_class_names(text: str) -> list[str]:
    """Return exception classes at line starts, as in tracebacks and prefixes. The last one raised comes first."""
    if not any(mark in text for mark in ("Error", "Exception", "Timeout", "Expired", "Exceeded")):
        return []
    class_names = [match.group().strip() for match in compile_regex(_CLASS, re.MULTILINE).finditer(text)]
    class_names.extend(
        match.group() for match in compile_regex(r"litellm\.[A-Z]\w{2,60}(?:Error|Exception|Timeout)", 0).finditer(text)
    )
    return list(dict.fromkeys(reversed(class_names[:20])))


_NOISE = (
    r"^(?:exit code:? -?\d+|process exited with.{0,40}|command failed with exit code \d+.{0,20}|\$ .*|\+ .*|"
    r"[-=_*~#.\s]{0,400}|traceback \(most recent call last\):|during handling of the above.*|"
    r"the above exception was.*|stderr:|stdout:|output:|file \".*|\s+at .*|\s*\^+\s*|\.\.\.|\w{0,20} ?error:?|"
    r"failed:?|\{|\[|usage:.*|\[\w[\w:-]{0,20}\] \$ .*|\[\w[\w:-]{0,20}\] error task failed|ok\s.*|"
    r"\?\s.*\[no test files\]|=== (?:run|pause|cont|name).*|--- (?:pass|skip).*|pass|fail|collected \d+ items?|"
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
        class_lines = [line for line in lines if compile_regex(_CLASS, 0).match(line)]
        lines = (class_lines[-1:] or lines[-1:]) + lines
    chosen_line = next((line for line in lines if not is_noise(line)), lines[0] if lines else "")
    return tidy_line(chosen_line)


def is_noise(line: str) -> bool:
    """Return whether a line carries no message by itself: an exit code, a prompt, a line of dashes."""
    return compile_regex(_NOISE).match(line.strip()) is not None


def tidy_line(line: str) -> str:
    """Remove prefixes from a line, normalize its spaces, and cut it at the end of a sentence or a word."""
    line = " ".join(line.split())
    for _ in range(_MAX_UNWRAP_DEPTH):
        prefix = compile_regex(_PREFIX).match(line)
        if prefix is None or len(line) - prefix.end() < 4:
            break
        line = line[prefix.end() :]
    if len(line) <= MAX_MESSAGE_CHARS:
        return line
    truncated = line[:MAX_MESSAGE_CHARS]
    end = max(truncated.rfind(". "), truncated.rfind("; "))
    if end > MAX_MESSAGE_CHARS // 3:
        return truncated[: end + 1]
    return truncated[: max(truncated.rfind(" "), MAX_MESSAGE_CHARS // 2)] + " ..."


_PYDANTIC_TITLE = r"[0-9]{1,4} validation errors? for [\w.\[\]]{1,80}$"
_PYDANTIC_REASON = r"^(\S[^\n]{0,80})\n {2}(\S[^\n]{0,400}?)(?: \[type=[^\n]{0,400})?$"
_MAX_REASONS = 3


def append_reasons(message: str, text: str) -> str:
    """Append the arguments and reasons that pydantic lists below its title, without the rejected values."""
    if compile_regex(_PYDANTIC_TITLE).search(message) is None:
        return message
    start = text.find(message) + len(message)
    matches = list(re.finditer(_PYDANTIC_REASON, text[start : start + 4_000], re.MULTILINE))
    reasons = [f"{match[1].strip()}: {match[2]}" for match in matches[:_MAX_REASONS]]
    more = [f"{len(matches) - _MAX_REASONS} more"] if len(matches) > _MAX_REASONS else []
    return tidy_line(f"{message}: {'; '.join([*reasons, *more])}") if reasons and start >= len(message) else message


# Frames of program output


_EXIT_CODE_PATTERN = (
    r"^\[?(?:error: )?(?:the )?(?:command |process |script |program )?(?:(?:failed|completed|finished|exited|ended|"
    r"terminated) with )?(?:non-zero )?exit[ _](?:code|status)(?: is| was)?\s?[:=]?\s?(-?\d{1,5})\b|"
    r"^\[?(?:the )?(?:command|process|script|program) (?:exited|finished|failed|ended|completed|terminated) with "
    r"(?:(?:exit )?(?:code|status)|return code)?:? ?(\d{1,5})\b|"
    r"^\[?return ?code:? (\d{1,5})\b"
)
_FRAME_LINE_PATTERN = (
    r"^(?:Command: [^\n]{0,2000}|Directory: [^\n]{0,400}|Wall time: [\d.]{1,12} \w{1,8}|Signal: \(?\w{1,12}\)?|"
    r"Background PIDs: [^\n]{0,80}|Process Group PGID: [^\n]{0,40}|Error: \(none\)|Total output lines: \d{1,9}|"
    r"Chunk ID: \w{1,20}|Original token count: \d{1,9}|Exit Code: -?\d{1,5}|"
    r"\[(?:The command completed with|Command finished with|Current working directory|Python interpreter)"
    r"[^\n]{0,400}\])\n?"
)
_FRAME_MARKS = ("wall time:", "exit code:", "[command finished", "[the command completed", "[python interpreter")


def strip_frame(text: str) -> tuple[str, int | None]:
    """Return the output of a program without its frame, and the exit code from the frame."""
    if text[:1] == "{" and ('"exit' in text or '"returncode"' in text):
        return _read_json_frame(text)
    ends = f"{text[:400]}\n{text[-400:]}" if len(text) > 800 else text
    lower = ends.lower()
    match = search_rule_pattern(_EXIT_CODE_PATTERN, ends, lower)
    exit_code = next((int(group) for group in match.groups() if group), None) if match else None
    if exit_code is not None and any(mark in lower for mark in _FRAME_MARKS):
        text = compile_rule_pattern(_FRAME_LINE_PATTERN).sub("", text)
        text = compile_rule_pattern(r"\A\s{0,20}(?:Output:[ \n])").sub("", text).strip()
    return text, exit_code


def shorten_quoted_command(text: str) -> str:
    """Remove a command that a frame quotes before it tells the outcome: `<command>...</command> timed out`."""
    start, end = text.find("<command>", 0, 200), text.find("</command>")
    return f"{text[: start + 9]}{text[end:]}" if 0 <= start < end else text


def _read_json_frame(text: str) -> tuple[str, int | None]:
    """Return the output and the exit code from an object with both, such as `{"output": ..., "exit_code": 1}`."""
    try:
        frame = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text, None
    fields = frame | frame["metadata"] if isinstance(frame.get("metadata"), dict) else frame
    exit_code = to_integer(fields.get("exit_code", fields.get("exitCode", fields.get("returncode"))))
    output = "\n".join(frame[name] for name in _PROCESS_OUTPUT_KEYS if isinstance(frame.get(name), str))
    return (output, exit_code) if output.strip() and exit_code is not None else (text, None)


_REJECTED_CALL_PATTERN = (
    r"<tool_use_error>|input ?validation ?error|function arguments|required param|\A\s{0,20}[{\[]|"
    r"(?:unavailable|unknown|no such) tool\b|validating tool|in tool call|while calling tool|not found in registry|"
    r"is not executed\b|so cannot be killed|stdin is closed|only available (?:actions|tools)"
)


def is_shell_output(text: str) -> bool:
    """Return whether a text of a shell is program output, even without an exit code, and no rejection of the call."""
    return compile_rule_pattern(_REJECTED_CALL_PATTERN).search(text[:400]) is None


# Results that are errors

ERROR_OPENING_PATTERN = (
    r"\A\s{0,20}(?:<tool_use_error>|traceback \(most recent call last\)|(?:fatal |unexpected |internal |runtime )?"
    r"(?:error|exception|failure)\s?(?:\[[^\]]{1,20}\]|\(\w{1,40}\))?:(?!\n\s{1,8}[\w-]{1,40}:)\s|"
    r"[\w.]{0,80}(?:error|exception):(?!\n\s{1,8}[\w-]{1,40}:)\s|error code \d{1,6}\b(?! (?:means|is))|"
    r"error (?:during|executing|calling|while|running|invoking|occurred|processing|in tool|fetching|reading)\b|"
    r"[1-9] validation errors? for \w|an? (?:\w{1,20} )?(?:error|exception) (?:occurred|has occurred|happened)|"
    r"exit(?:ed with)? (?:code|status):? [1-9]|"
    r"unknown (?:tool|action|function)\b|(?:tool|command|request|execution) (?:call )?(?:failed|"
    r"errored)\b|mcp error -32\d{3})"
)
"""How an error text of any length starts."""
_REASON_PHRASES = (
    "Bad Request|Unauthorized|Forbidden|Not Found|Method Not Allowed|Not Acceptable|Request Timeout|Conflict|Gone|"
    "Payload Too Large|Content Too Large|Request Entity Too Large|Unsupported Media Type|Unprocessable Entity|"
    "Unprocessable Content|Too Many Requests|Internal Server Error|Not Implemented|Bad Gateway|Service Unavailable|"
    "Gateway Timeout|Gateway Time-out"
)
_OPERATIONS = (
    "access|acquire|apply|authenticate|bind|call|click|communicate|complete|connect|convert|copy|create|decode|delete|"
    "determine|download|edit|establish|execute|extract|fetch|find|finish|generate|get|handle|import|initialize|install|"
    "launch|list|load|locate|move|navigate|obtain|open|parse|perform|process|query|reach|read|remove|render|resolve|"
    "retrieve|run|save|scrape|search|send|start|stop|store|submit|update|upload|validate|verify|write"
)
SHORT_ERROR_OPENING_PATTERN = (
    r"\A(?:[\u274c\u2717\u2716\u26a0\U0001f6ab]\ufe0f? ?)?(?:error (?!handling|reporting|logging|tracking|monitoring|"
    r"checking)\w{3,20}ing\b[^\n]{0,300}:\s|\[error\] \S|"
    rf"(?:failed|unable) to (?:(?:{_OPERATIONS})\b|\w{{2,20}} [^\n?]{{1,300}}:\s)(?![^\n]{{0,300}}\?)|"
    r"(?:sorry|oops)[,!.] [^\n]{0,60}\b(?:error|failed|wrong|did not work)\b|failed \w{3,20}ing [^\n?]{1,200}:\s|"
    r"(?:could not|couldn't|cannot|can't) \w{2,20} [^\n?]{1,300}:\s|something went wrong\b|fatal: \S|"
    r"(?!last|first|previous|common|known|no |except |raises? |catch )(?:[a-z_.-]{1,20} ){1,3}"
    r"(?:error|exception|failed)(?: \([^\n)]{1,40}\)| while [^\n:]{1,40})?:\s(?!\d)|"
    r"(?!last|first|previous|common|known|no )(?:[a-z_.-]{1,20} ){0,2}(?:api|http|server|service|upstream) "
    rf"(?:(?:request|call) )?(?:error|failed)(?: code)?: \(?[45]\d\d\)?(?:[:,]? (?:{_REASON_PHRASES}))?\.?\Z|"
    r"(?:exception|timeout) while \w|(?:invalid|bad) request: |"
    rf"http(?: error)?:? [45]\d\d\b(?! (?:means?|is|indicates|stands)\b)[^\n]{{0,80}}\Z|"
    rf"[45]\d\d[: ] ?(?:{_REASON_PHRASES})\.?\Z|"
    # The bare phrase of a status is an error only as servers write it.
    rf"(?-i:{_REASON_PHRASES})\Z|(?:permission|access) denied: |(?:file|resource|page|path) not found: |"
    r"connection (?:refused|reset|error|closed|failed|aborted)\b|"
    r"(?:operation|query|connection|request|command|call|search|tool) timed out\b)"
)
"""How an error text starts that is as short as a message. A document may start in the same way."""
MAX_SHORT_ERROR_CHARS = 700
_MARKED_OPENING_PATTERN = r"\A\s{0,20}(?:<tool_use_error>|exit(?:ed with)? (?:code|status):? [1-9])"
"""How a text starts that is marked as an error."""
_LOG_PATTERN = r"^\W{0,2}(?:debug|info|notice)\b[\]:\s]"
"""A line of a log. A log is a result, even if its first line reports an error."""
_ERROR_PAGE_PATTERN = (
    rf"<title>\s{{0,9}}(?:[45]\d\d:? [a-z -]{{3,40}}|error(?:: [45]\d\d[^<]{{0,40}})?|"
    rf"(?:{_REASON_PHRASES}|server error)(?: \([45]\d\d\))?)\s{{0,9}}</title>|"
    r"<error>\s{0,9}<code>|<[\w:]{0,20}fault>"
)
_STATUS_LINE_PATTERN = (
    rf"[45]\d\d:? (?:{_REASON_PHRASES}|[a-z' -]{{0,30}}\b(?:required|failed|too (?:long|large|early)|not [a-z]{{3,14}}|"
    r"error|locked|dependency|storage|reasons|teapot|exceeded|detected|unsupported media type))\Z"
)
_ERROR_SENTENCE_PATTERN = (
    rf"\A(?:[45]\d\d[: ] ?)?(?:{_REASON_PHRASES})\b|\b(?:not (?:found|allowed|permitted|authorized|supported|exist|"
    r"authenticated|logged in|provided|valid|available|acceptable|match)|cannot|can't|could not|unable to|failed to|"
    r"failed\b|invalid|missing|required|must (?:be|not|have)|may not|denied|forbidden|unauthorized|expired|incorrect|"
    r"malformed|unsupported|unavailable|too (?:many|large|long)|rate limit|throttled|timed out|timeout|no such|"
    r"already exists|exceed(?:s|ed)|(?:do|does|did) not|no \w{1,20} (?:has|have|with|match\w{0,2})|parse error|wrong|"
    r"at most|log in|maintenance|an? (?:\w{1,20} )?error|(?:server|internal|unexpected) error)\b"
)
_SUCCESS_SENTENCE_PATTERN = (
    r"\b(?:success\w{0,8}|ok|sent|saved|created|updated|deleted|removed|cleared|done|completed|fixed|resolved|"
    r"found \d)\b"
)

_NEUTRAL_KEYS = frozenset("name time path method fields text body link kind params param type object headers".split())
"""Keys of `ENVELOPE_KEYS` that data has too, such as the path of a checked file."""
_SURE_MESSAGE_KEYS = (
    "error", "message", "reason", "detail", "errors", "code", "Message", "msg", "errmsg", "error_message",
    "errorMessage", "statusText",
)  # fmt: skip
"""Keys of an error's text. The others in `MESSAGE_KEYS` may also describe data."""
_NO_ERRORS = frozenset(
    {"none", "null", "no", "no error", "no errors", "false", "ok", "success", "n/a", "nil", "-", "0"}
)
"""Texts under `error` that deny one."""
_SCHEMA_TYPES = frozenset("string object array integer number boolean null".split())
_MAX_KEYS = 64
"""Keys of a dictionary that are read. An error is small, and a large result is not searched for one."""
_PROCESS_OUTPUT_KEYS = ("stdout", "stderr", "output", "stdErr")


def is_error_result(result: object, *, needs_mark: bool = False) -> bool:
    """Return whether a result is an error. Its own flag takes precedence over its text.

    `needs_mark`: words are data, whatever they say. Only a flag, a code, a status or a key for errors makes an error.
    """
    try:
        return _is_error_result(result, needs_mark)
    except Exception:  # noqa: BLE001 - foreign object; an unreadable result is not an error
        return False


def is_flagged_result(result: object) -> bool:
    """Return whether a result is an error by the flag of MCP or the exit code of a program."""
    if isinstance(result, (str, bytes, bytearray)):
        return strip_frame(to_bounded_text(result))[1] is not None
    fields = result if isinstance(result, Mapping) else {name: get_attribute(result, name) for name in _FLAGS}
    return fields.get("isError") is True or fields.get("is_error") is True or bool(to_integer(_exit_code(fields)))


def read_error_flag(result: object) -> bool | None:
    """Return what a result states by a flag, an exit code or the status of a response object; None if it does not."""
    if isinstance(result, Mapping):
        if result.get("isError") is True or result.get("is_error") is True:
            return True
        exit_code = to_integer(_exit_code(result))
        states_code = exit_code is not None and (
            len(result) == 1 or any(map(result.__contains__, _PROCESS_OUTPUT_KEYS))
        )
        return exit_code != 0 if states_code else None
    if get_attribute(result, "isError") is True or get_attribute(result, "is_error") is True:
        return True
    exit_code = to_integer(get_attribute(result, "returncode"))
    if exit_code is not None:
        return exit_code != 0
    status = to_integer(get_attribute(result, "status_code"))
    return status >= 400 if status is not None and get_attribute(result, "headers") is not None else None


def find_exit_code(output: str) -> int | None:
    """Return the exit code that frames the output of a program. A code elsewhere in the output is content."""
    head = output[:MAX_SHORT_ERROR_CHARS]
    if output[:1] == "{":
        return _read_json_frame(output)[1] if '"exit' in output or '"returncode"' in output else None
    if compile_rule_pattern(_EXIT_CODE_PATTERN).match(head) or head.lower().startswith(("wall time:", "chunk id:")):
        return strip_frame(head)[1]
    match = compile_rule_pattern(r"^\[(?:the )?command (?:finished|completed) with exit code (\d{1,5})\]\s*\Z").search(
        output[-MAX_SHORT_ERROR_CHARS:]
    )
    return int(match[1]) if match else None


def read_text(result: object) -> str | None:
    """Return the text of a result: its own, that of its content blocks or a program's output; None if it has none."""
    if isinstance(result, (str, bytes, bytearray)):
        return to_bounded_text(result)
    if isinstance(result, Mapping):
        blocks = result.get("content")
        if not isinstance(blocks, (list, tuple)):
            outputs = [result[name] for name in _PROCESS_OUTPUT_KEYS if isinstance(result.get(name), str)]
            return to_bounded_text("\n".join(outputs)) if outputs else None
    else:
        blocks = result if isinstance(result, (list, tuple)) else get_attribute(result, "content")
    if not isinstance(blocks, (list, tuple)):
        return None
    # Content blocks of a result that are read.
    texts = [block.get("text") if isinstance(block, Mapping) else get_attribute(block, "text") for block in blocks[:20]]
    return to_bounded_text("\n".join(text for text in texts if isinstance(text, str))) if any(texts) else None


def read_object(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text) if text[:1] == "{" else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_failed_items(result: object) -> Mapping[Any, Any] | None:
    """Return the first object of a short list, or of one in JSON, whose objects all state a failure, or None."""
    try:
        is_text = isinstance(result, str) and result[:1] == "[" and len(result) <= MAX_SHORT_ERROR_CHARS
        items = msgspec.json.decode(str(result)) if is_text else result
    except (ValueError, RecursionError):
        return None
    if not isinstance(items, list) or not 0 < len(items) <= MAX_DESCRIPTION_KEYS:
        return None
    is_failed = all(isinstance(item, dict) and _is_failed_item(item) for item in items)
    return items[0] if is_failed else None


def _is_failed_item(item: Mapping[Any, Any]) -> bool:
    has_code = not _ERROR_KEYS.isdisjoint(item) and _has_message(item)
    return describes_failure(item, needs_state=True) or (has_code and not _is_record(item))


def describes_failure(result: Mapping[Any, Any], needs_state: bool = False) -> bool:
    """Return whether a dictionary without data describes a failure under names that state no error.

    Such as `{"status": 200, "data": null, "message": "could not be found"}`, `{"result": "KO", "reason": "blocked"}`,
    or GraphQL's errors beside empty data. With `needs_state`, words alone describe none.
    """
    if not 0 < len(result) <= MAX_DESCRIPTION_KEYS or _is_record(result):
        return False
    errors = result.get("errors") if "data" in result else None
    if isinstance(errors, list) and errors and isinstance(errors[0], Mapping) and "message" in errors[0]:
        return not _is_data(result["data"])
    if len(result) <= 2 and _holds_report(result):
        return True
    described = {name for name in result if name in DESCRIPTION_KEYS or name in _ERROR_KEYS}
    if any(isinstance(value, str) and value.lower() in _FOREIGN_STATES for value in result.values()):
        return not any(map(_has_members, result.values())) and any(map(_is_reason, result.values()))
    others = [value for name, value in result.items() if name not in described and name not in _STATE_KEYS]
    if any(map(_has_members, others)) or sum(map(_is_data, others)) > 1:
        return False
    states = [value[:30] for name in _STATE_KEYS if isinstance(value := result.get(name), str)]
    is_denied = any(value is False and name in DONE_KEYS for name, value in result.items())
    if is_denied or any(map(compile_rule_pattern(_FAILED_STATE_PATTERN).match, states)):
        is_empty = any(name in result and result[name] is None for name in _DATA_KEYS)
        return is_empty or any(map(result.get, described)) or any(map(_is_reason, result.values()))
    if needs_state or any(map(_is_data, others)):
        return False
    texts = [value for name in described if isinstance(value := result[name], str)]
    if any(map(states_failure, texts)):
        return True
    is_empty = any(not value and value is not False and value != 0 for value in result.values())
    return (is_empty or len(described) == len(result)) and any(
        score_statement(text) >= MIN_EMPTY_SCORE for text in texts
    )


def _holds_report(result: Mapping[Any, Any]) -> bool:
    """Return whether the only content of a result is a list of reports that say that they are errors."""
    items = next((value for value in result.values() if isinstance(value, (list, tuple)) and value), None)
    if items is None or len(items) > MAX_DESCRIPTION_KEYS:
        return False
    return all(
        isinstance(item, Mapping)
        and any(str(value).lower() in _SURE_STATES for name, value in item.items() if str(name).lower() in _LEVEL_KEYS)
        and any(map(_is_reason, item.values()))
        for item in items
    )


_LEVEL_KEYS = frozenset({"type", "severity", "level", "output_type", "status", "state"})
_FOREIGN_STATES = frozenset({"ko", "nok", "err"})
"""States that mean a failure under any name, in any language."""
_SURE_STATES = _FOREIGN_STATES | {"error", "e", "fatal", "failed", "failure"}


def _is_reason(value: Any) -> bool:
    """Return whether a value may say what failed: a sentence, or names of what is missing."""
    return (isinstance(value, list) and bool(value)) or (isinstance(value, str) and " " in value)


def _has_members(value: Any) -> bool:
    """Return whether a value holds objects: an object with something in it, or a list of them."""
    return _is_data(value) and isinstance(value[0] if isinstance(value, list) else value, Mapping)


def _is_data(value: Any) -> bool:
    """Return whether a value holds data: an object or a list with something in it, a number, a name."""
    if isinstance(value, Mapping):
        return any(member is not None for member in islice(value.values(), _MAX_KEYS))
    return bool(value) and not isinstance(value, bool)


MIN_EMPTY_SCORE = 2
"""Score of a sentence that describes a failure if the result is empty apart from it."""
_STATE_KEYS = (*STATUS_KEYS, "state", "result", "outcome", "ok", "success")
_FAILED_STATE_PATTERN = (
    r"(?:err\w{0,5}|fail\w{0,6}|n?ko|nok|(?:not|invalid)[_ -]\w{1,24}|un(?:available|authorized|successful|reachable)|"
    r"declined|rejected|denied|refused|invalid|time[_ ]?d?[_ ]?out|aborted|blocked|degraded|exception|expired)\Z"
)
"""A state that says that the call failed."""


_DATA_KEYS = (*EMPTY_KEYS, "rows", "items", "payload", "records")
"""Keys of a result's data."""


def find_error_message(result: Mapping[Any, Any]) -> str:
    """Return the message of a dictionary that is an error, from its error object too."""
    for name in _SURE_MESSAGE_KEYS:
        value = result.get(name)
        if isinstance(value, Mapping):
            value = value.get("message")
        if isinstance(value, str) and value:
            return value[:MAX_SHORT_ERROR_CHARS]
    return ""


def _exit_code(fields: Mapping[Any, Any]) -> Any:
    return fields.get("returncode", fields.get("exit_code", fields.get("exitCode")))


_FLAGS = ("isError", "is_error", "returncode")


def _is_error_result(result: object, needs_mark: bool) -> bool:
    if result is None or isinstance(result, (bool, int, float)):
        return False
    if isinstance(result, (str, bytes, bytearray)):
        return is_error_text(to_bounded_text(result), needs_mark)
    if isinstance(result, Mapping):
        return _is_error_mapping(result, needs_mark)
    flag = get_attribute(result, "isError")
    if (flag if isinstance(flag, bool) else get_attribute(result, "is_error")) is True:
        return True
    code = to_integer(get_attribute(result, "returncode"))
    if code is not None:
        return code != 0
    status = to_integer(get_attribute(result, "status_code"))
    if status is not None and get_attribute(result, "headers") is not None:
        return status >= 400
    return _is_error_content(get_attribute(result, "content"), needs_mark)


def _is_error_mapping(result: Mapping[Any, Any], needs_mark: bool) -> bool:
    """Return whether a dictionary reports that the call failed. The status of a thing that was asked about does not."""
    if result.get("isError") is True or result.get("is_error") is True:
        return True
    if _is_error_content(result.get("content"), needs_mark):
        return True
    exit_code = to_integer(_exit_code(result))
    if exit_code is not None:
        return exit_code != 0 and (len(result) == 1 or any(name in result for name in _PROCESS_OUTPUT_KEYS))
    flag = result.get("ok", result.get("success"))
    if flag is not None and flag is not False:
        return False  # a success by its own account, or a number of successes
    is_envelope = ENVELOPE_KEYS.issuperset(result) and not any(map(result.get, EMPTY_KEYS))
    if flag is False:
        return (is_envelope and _NEUTRAL_KEYS.isdisjoint(result)) or (_has_message(result) and not _is_record(result))
    if _is_error_value(result.get("error", result.get("Error", result.get("fault"))), result, is_envelope):
        return True
    status = result.get("status")
    status = status[:20].lower() if isinstance(status, str) else ""
    if status in ("failed", "failure"):
        return is_envelope and _has_message(result)  # else the status of a thing that was asked about
    if status in ("error", "fail"):
        return (_has_message(result) or (status == "fail" and "data" in result)) and not _is_record(result)
    if result.get("errors") and result.get("data", result) is None:
        return True  # GraphQL: errors beside data are warnings, errors instead of data are not
    return is_envelope and _is_error_envelope(result, needs_mark)


def _has_message(result: Mapping[Any, Any]) -> bool:
    return any(map(result.get, _SURE_MESSAGE_KEYS))


def _is_error_value(error: Any, result: Mapping[Any, Any], is_envelope: bool) -> bool:
    """Return whether the value under `error` is an error. A number or a flag may be a measurement."""
    if not error or isinstance(error, float):
        return False
    if error is True:
        return (is_envelope and _NEUTRAL_KEYS.isdisjoint(result)) or sum(map(result.__contains__, MESSAGE_KEYS)) > 1
    if isinstance(error, int):
        return is_envelope and 400 <= error <= 599
    if isinstance(error, Mapping):
        if "message" not in error and error.get("type") in _SCHEMA_TYPES:
            return False  # the schema of a field
        # In a schema of several fields the values are objects.
        items = islice(error.items(), _MAX_KEYS)
        return any(name in ENVELOPE_KEYS and name != "type" and _is_filled(value) for name, value in items)
    if isinstance(error, str):
        return error[:20].strip(" .").lower() not in _NO_ERRORS and not _is_record(result)
    return is_envelope


def _is_filled(value: Any) -> bool:
    return bool(value) and isinstance(value, (str, int, list))


def _is_record(result: Mapping[Any, Any]) -> bool:
    """Return whether this is a stored thing, such as a job, whose status and error are data."""
    names = [name for name in islice(result, _MAX_KEYS) if isinstance(name, str) and name not in ENVELOPE_KEYS]
    has_time = any(name.endswith(("_at", "At", "_date", "Date")) for name in names)
    has_id = "id" in names or any(name.endswith(("_id", "Id", "Arn")) for name in names)
    status = result.get("status", result.get("state"))
    if not isinstance(status, str) or "jsonrpc" in result:
        return has_time and has_id
    # A tool that reports an error may repeat an id among its arguments.
    return has_time or "id" in names or (has_id and status.lower() != "error")


def _is_error_envelope(result: Mapping[Any, Any], needs_mark: bool) -> bool:
    """Return whether a dictionary without data is an error, by its status, its codes or its message."""
    has_message = not MESSAGE_KEYS.isdisjoint(result)
    is_neutral = not _NEUTRAL_KEYS.isdisjoint(result)
    for name in STATUS_KEYS:
        number = to_integer(result[name]) if name in result else None
        if number is not None and 400 <= number <= 599:
            # A line of an access log has a status too, but no message.
            if name == "code":  # a number of anything, unless a message says otherwise
                return not needs_mark and _has_error_message(result)
            return has_message or not is_neutral or "body" in result or "text" in result
    if not _ERROR_KEYS.isdisjoint(result):
        return has_message and any(_is_filled(result.get(name)) for name in _ERROR_KEYS)
    code, message, detail = result.get("code"), result.get("message"), result.get("detail")
    if isinstance(code, int) and 1 <= code <= 16 and message and RPC_STATUS_KEYS.issuperset(result):
        return not needs_mark or isinstance(result.get("details"), list)
    if isinstance(code, str) and len(code) <= 80 and has_message and kind_for_code(code) is not None:
        return True
    if isinstance(detail, Mapping) and not needs_mark:
        return "code" in detail and "message" in detail
    if isinstance(detail, list) and not needs_mark:
        return bool(detail) and isinstance(detail[0], Mapping) and "msg" in detail[0]
    errors = result.get("errors")
    if errors and isinstance(errors, (list, dict)) and not is_neutral:
        first_error = errors[0] if isinstance(errors, list) else errors
        if isinstance(errors, dict) and isinstance(next(iter(errors.values())), (int, float)):
            return False  # counts
        return not isinstance(first_error, Mapping) or "line" not in first_error  # else findings of a linter
    if "error" in (result.get("type"), result.get("object")) and _SENTENCE_KEYS.issuperset(result):
        return True
    if needs_mark:
        return False
    title = result.get("title")
    if isinstance(title, str) and _TITLE_KEYS.issuperset(result):
        return compile_rule_pattern(_STATUS_LINE_PATTERN).match(title) is not None
    return _SENTENCE_KEYS.issuperset(result) and any(
        _is_error_sentence(result[name]) for name in _SENTENCE_FIELDS if name in result
    )


def _has_error_message(result: Mapping[Any, Any]) -> bool:
    """Return whether a dictionary has a field for the text of an error, or one that may also describe data and reads
    like an error."""
    return any(result.get(name) for name in _SURE_MESSAGE_KEYS if name != "code") or any(
        _is_error_sentence(result.get(name)) for name in ("name", "title", "description", "details")
    )


_ERROR_KEYS = frozenset({"errorMessage", "error_message", "errorMessages", "errcode", "error_code", "errorCode"})
_TITLE_KEYS = frozenset({"title", "description", "code", "status", "type", "detail", "instance"})
_SENTENCE_FIELDS = ("message", "Message", "detail", "msg")
_SENTENCE_KEYS = frozenset(
    {*_SENTENCE_FIELDS, "code", "type", "object", "documentation_url", "link", "request_id", "requestId", "data"}
)


def _is_error_sentence(text: object) -> bool:
    if not isinstance(text, str):
        return False
    head = text[:300]
    return (
        search_likely(_ERROR_SENTENCE_PATTERN, head, head.lower(), re.IGNORECASE | re.MULTILINE) is not None
        and compile_rule_pattern(_SUCCESS_SENTENCE_PATTERN).search(head) is None
    )


def _is_error_content(blocks: Any, needs_mark: bool) -> bool:
    if not isinstance(blocks, (list, tuple)) or not blocks:
        return False
    text = blocks[0].get("text") if isinstance(blocks[0], Mapping) else get_attribute(blocks[0], "text")
    return isinstance(text, str) and is_error_text(to_bounded_text(text), needs_mark)


def is_error_text(text: str, needs_mark: bool = False) -> bool:
    """Return whether a text begins as an error, is an error page, or an object that is an error."""
    if needs_mark and text[:1] != "{":
        return compile_rule_pattern(_MARKED_OPENING_PATTERN).match(text) is not None
    if compile_rule_pattern(ERROR_OPENING_PATTERN).match(text):
        return compile_rule_pattern(_LOG_PATTERN).search(text) is None
    opening = text[:1]
    if opening == "{":
        import json  # lazy: needed for text that looks like an object only

        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(answer, dict) and _is_error_mapping(answer, needs_mark)
    if opening == "<":
        return compile_rule_pattern(_ERROR_PAGE_PATTERN).search(text[:MAX_SHORT_ERROR_CHARS]) is not None
    is_error = len(text) <= MAX_SHORT_ERROR_CHARS and compile_rule_pattern(SHORT_ERROR_OPENING_PATTERN).match(text)
    return bool(is_error) and compile_rule_pattern(_LOG_PATTERN).search(text) is None
