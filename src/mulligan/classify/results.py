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

from mulligan.classify.evidence import get_attribute, to_bounded_text, to_integer
from mulligan.classify.rules import compile_rule_pattern
from mulligan.redaction.regex import compile_regex

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
    if not text.isprintable():
        text = compile_regex(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]").sub("", text)
    return text


def unwrap_text(text: str) -> UnwrappedText:
    """Extract the sentence that describes the error, and the codes around it."""
    text = strip_control_chars(text)
    status: int | None = None
    rpc: int | None = None
    is_envelope = compile_regex(_ENVELOPE).search(text[:400]) is not None
    match = compile_regex(_CODE_PREFIX).search(text)
    codes = [match.group(1)] if match else []
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
_CODE_PREFIX = r"^(?:error: )?(?:an )?error (?:occurred|from \w{1,20})? ?\((\w{3,80})\)(?: when calling|:)"


def scan_pairs(text: str) -> list[tuple[str, str]]:
    """Return all `key: value` pairs of an object in order, at any depth and with any quoting.

    Keys are in lower case.
    """
    if '\\"' in text and not compile_regex(r"""["']\w{1,40}["']\s{0,5}:""").search(text):
        text = text.replace('\\"', '"').replace("\\n", "\n")
    return [
        (key.lower(), bare if quoted is None else _unquote(quoted))
        for key, quoted, bare in (match.groups() for match in islice(compile_regex(_PAIR).finditer(text), 200))
    ]


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
            if key in group and len(value) > 3 and not _to_number(value)
        ]
        if candidates:
            return min(candidates, key=lambda candidate: candidate[:2])[-1]
    return ""


def _read_page(text: str) -> tuple[str, str]:
    """Return the text of an error page: XML's own message, else its title or first heading."""
    tags = ("message", "faultstring", "errormessage", "h1", "title", "h2", "p")
    pattern = r"<(?:\w{1,20}:)?%s(?:\s[^<>]{0,200})?>([^<]{1,300})<"
    matches = (compile_regex(pattern % tag).search(text) for tag in tags)
    page_text = next((match[1].strip() for match in matches if match and match[1].strip()), "")
    code = compile_regex(r"<(?:\w{1,20}:)?(?:error)?code>([^<]{1,80})<").search(text)
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
        shorter = compile_regex(_PREFIX).sub("", line, count=1)
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
    ends = f"{text[:400]}\n{text[-400:]}" if len(text) > 800 else text
    match = compile_rule_pattern(_EXIT_CODE_PATTERN).search(ends)
    exit_code = next((int(group) for group in match.groups() if group), None) if match else None
    lower = ends.lower()
    if exit_code is not None and any(mark in lower for mark in _FRAME_MARKS):
        text = compile_rule_pattern(_FRAME_LINE_PATTERN).sub("", text)
        text = compile_rule_pattern(r"\A\s{0,20}(?:Output:[ \n])").sub("", text).strip()
    return text, exit_code


_SHELL_TOOL_PATTERN = (
    r"(?:\b|_)(?:bash|shell|sh|zsh|terminal|console|powershell|cmd|exec|execute_command|run_command|execute_bash|"
    r"run_shell_command|exec_command|shell_command|run_terminal_cmd|run_in_terminal|command)(?:\b|_|$)"
)
_REJECTED_CALL_PATTERN = (
    r"<tool_use_error>|input ?validation ?error|function arguments|required param|\A\s{0,20}[{\[]|"
    r"(?:unavailable|unknown|no such) tool\b"
)


def is_shell_output(tool: str, text: str) -> bool:
    """Return whether the tool is a shell, so that the text is program output even without an exit code."""
    return bool(tool and compile_rule_pattern(_SHELL_TOOL_PATTERN).search(tool)) and not compile_rule_pattern(
        _REJECTED_CALL_PATTERN
    ).search(text[:400])


# Results that are errors

ERROR_OPENING_PATTERN = (
    r"\A\s{0,20}(?:<tool_use_error>|traceback \(most recent call last\)|(?:fatal |unexpected |internal |runtime )?"
    r"(?:error|exception|failure)\s?(?:\[[^\]]{1,20}\]|\(\w{1,40}\))?:\s|[\w.]{0,80}(?:error|exception):\s|"
    r"error (?:during|executing|calling|while|running|invoking|occurred|code \d|processing|in tool|fetching|reading)\b|"
    r"an? (?:\w{1,20} )?error (?:occurred|has occurred)|exit(?:ed with)? (?:code|status):? [1-9]|"
    r"unknown (?:tool|action|function)\b|(?:tool|command|request|execution) (?:call )?(?:failed|"
    r"errored)\b|mcp error -32\d{3})"
)


def is_error_result(result: object, is_error: bool | None = None) -> bool:
    """Return whether a result is an error. `is_error` and the result's own flag take precedence over its text."""
    try:
        return bool(is_error) or _is_error_result(result)
    except Exception:  # noqa: BLE001 - foreign object; an unreadable result is not an error
        return False


def _is_error_result(result: object) -> bool:
    if result is None or isinstance(result, (bool, int, float)):
        return False
    if isinstance(result, (str, bytes, bytearray)):
        return _is_error_text(to_bounded_text(result))
    if isinstance(result, Mapping):
        return _is_error_mapping(result)
    flag = get_attribute(result, "isError")
    if (flag if isinstance(flag, bool) else get_attribute(result, "is_error")) is True:
        return True
    code = to_integer(get_attribute(result, "returncode"))
    if code is not None:
        return code != 0
    status = to_integer(get_attribute(result, "status_code"))
    if status is not None and get_attribute(result, "headers") is not None:
        return status >= 400
    return _is_error_content(get_attribute(result, "content"))


def _is_error_mapping(result: Mapping[Any, Any]) -> bool:
    if result.get("isError") is True or result.get("is_error") is True:
        return True
    error = result.get("error")
    if (
        _is_error_content(result.get("content"))
        or to_integer(result.get("returncode", result.get("exit_code")))
        or (error and not isinstance(error, bool))
    ):
        return True
    if result.get("errors") and result.get("data", result) is None:
        return True  # GraphQL: errors beside data are warnings, errors instead of data are not
    is_bad = result.get("ok") is False or result.get("success") is False or result.get("status") in ("error", "failed")
    return is_bad and any(name in result for name in ("error", "message", "reason", "detail", "errors", "code"))


def _is_error_content(blocks: Any) -> bool:
    if not isinstance(blocks, (list, tuple)) or not blocks:
        return False
    text = blocks[0].get("text") if isinstance(blocks[0], Mapping) else get_attribute(blocks[0], "text")
    return isinstance(text, str) and _is_error_text(to_bounded_text(text))


def _is_error_text(text: str) -> bool:
    if compile_rule_pattern(ERROR_OPENING_PATTERN).match(text):
        return True
    if not text.lstrip().startswith("{"):
        return False
    import json  # lazy: needed for text that looks like an object only

    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and _is_error_mapping(answer)
