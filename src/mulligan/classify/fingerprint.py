"""Failure fingerprints: a hash of kind, tool and message template.

The template masks variable parts and retains error codes and limits. It retains the names of the call's arguments and
masks their values, so that the same failure for Paris and for Rome has one fingerprint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

from mulligan.core.records import digest
from mulligan.redaction.regex import compile_regex, search_likely

VERSION = "3"
"""Increase it whenever a text may get another fingerprint. Stores compare fingerprints of one version only."""

MAX_TEMPLATE_CHARS = 1_000
"""Characters of the template that count. The distinguishing part of a message is at its beginning."""

# One pass, alternatives in order. Every repetition is bounded or stops at a character the next one cannot start with.
TOKEN_PATTERNS = r"""
  (?P<url>\b[a-z][a-z0-9+.-]{1,20}+://[^\s'"<>)\]}]{1,500})
| (?P<email>\b[\w.+-]{1,64}+@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4})
| (?P<uuid>\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b)
| (?P<time>\b\d{4}[-/]\d\d[-/]\d\d(?:[T\ ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?
    | \b\d\d?:\d\d(?::\d\d(?:\.\d{1,9})?)?\b(?:\ ?[ap]m)?)
| (?P<ip>\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b)
| (?P<code>(?-i:\b[A-Z]{1,8}-?\d{3,6}[A-Z]?)(?=[\]:]) | (?<=error\ )(?-i:[A-Z]{1,8}-?\d{3,6})\b
    | \bsqlstate[\s\[(:=]{0,3}[0-9A-Z]{5}\b | \[errno\ -?\d{1,5}\] | \[winerror\ \d{1,5}\])
| (?P<quoted>(?<!\w)"[^"\n]{0,300}" | (?<!\w)'[^'\n]{0,300}'(?!\w) | `[^`\n]{0,300}`
    | [\u201c\u2018][^\u201d\u2019\n]{0,300}[\u201d\u2019])
| (?P<path>(?:(?<![\w<])(?:~|\.{1,2}|[a-z]:)?(?:[/\\][\w.@+\-$%]{1,120}){2,40}[/\\]?
    | (?<![\w<./\\])(?:~|\.{1,2}|[a-z]:)[/\\][\w.@+\-$%]{1,120}
    | \b[\w\-]{1,80}+(?:[/\\][\w.\-]{1,80}){1,20}\.\w{1,8}\b
    | (?<![\w<.])/[\w.@+\-$%]{1,120}
    | \b[\w\-]{1,80}+\.(?:py|go|rs|tsx?|jsx?|mjs|java|kt|c|cc|cpp|h|hpp|rb|php|cs|swift|json|ya?ml|toml|txt|md|csv|html?
        |css|sh|sql|log|lock|xml|pdf|docx?|xlsx?|png|jpe?g)\b)
    (?::\d{1,7}){0,3}(?!\d))   # where a compiler points: line and column belong to the file
| (?P<hex>\b0x[0-9a-f]{1,32}\b | \b(?=[a-f]{0,64}+\d)(?=\d{0,64}+[a-f])[0-9a-f]{7,64}\b)
| (?P<id>\#\w{1,64} | \b(?:[a-z]{1,32}+[_-]){1,6}[a-z]{0,20}+\d[\w\-]{0,64}\b | \b[a-z]{1,20}+\d[\w\-]{2,64}\b
    | \b\d{1,32}+[a-z_][\w\-]{4,64}\b
    | (?:(?<=[\W_]id[\ :=]) | (?<=[\W_]id[:=]\ ))(?:(?=\w{1,32}[_-])[\w\-]{6,64} | [a-f]{6,64})\b)  # called an id
| (?P<number>[-+]?\b\d(?:[\d,_.]{0,40}\d)?(?:[kmg]i?b?|ms|s|%)?(?![a-z\d]) | \d{1,40})
"""

_NO_TOKEN_START = r"(?!(?<=\w)[^\W\d] | [\s(),:;=])"
"""Where no token starts: within a word and at a separator. Excluded first, because there are many alternatives."""
_PLAIN_WORDS = r"(?P<plain>(?:(?!sqlstate | [a-f]{6})[a-z]++[\s(),;]++)+)"
"""Words of letters only, in which no token starts. They are skipped together."""

_NAME_BEFORE_PATTERN = (
    r"(?:argument|arguments|parameter|parameters|param|field|key|property|option|column|attribute|"
    r"keyword argument)s?\W{0,3}$"
)
_NAME_AFTER_PATTERN = (
    r"^\W{0,3}(?:is (?:a )?(?:required|missing|not a valid (?:argument|parameter))|was unexpected|field required)"
)
_CODE_BEFORE = (
    r"(?:status|code|http(?:/\d(?:\.\d)?)?|errno|error|exit|exited|signal|sqlstate|rc|returned)"
    r"\W{0,3}(?:code|status|was|is|of|with|value)?\W{0,3}$"
)
_CODE_AFTER = (
    r"^ (?:client error|server error|not found|too many|bad request|unauthorized|forbidden|internal server|service un"
    r"|bad gateway|gateway time|conflict|unprocessable|payload|method not|request time|gone)"
)
_LIMIT_BEFORE = (
    r"(?:max|maximum|min|minimum|limit|limited|at most|at least|up to|no more than|not exceed|exceeds?|exceeded|"
    r"less than|greater than|larger than|longer than|shorter than|smaller than|more than|fewer than|or equal to|"
    r"between|allowed|cap|capacity|multiple of|window|range|(?:<|>|\u2264|\u2265)=?)\W{0,4}(?:(?:is|of|to|the|value|"
    r"length|size|be|context|allowed|number|tokens?|characters?|items?|was|a|an)\W{1,3}){0,4}$"
)
_AND_BEFORE = r"between\W{0,2}-?[\d.,]{1,20}\W{0,2}(?:and|to)\W{0,2}$"
_LIMIT_AFTER = (
    r"^\W{0,2}(?:\w{1,20} ){0,2}(?:is the )?(?:max(?:imum)?\b|min(?:imum)?\b|limit\b|or (?:less|fewer|more|greater)\b)"
)

# Common words of error messages. Masking them as argument values would mask the message itself.
_COMMON_WORDS = frozenset(
    "error errors failed failure invalid missing required not found none null true false file path name type value key "
    "user order item id query command string number list object index table column city date time date text "
    "code status "
    "message data result results argument arguments parameter parameters must be the and for with is in of "
    "to at no a an "
    "unknown unexpected access denied permission timeout connection request response server client tool function "
    "directory folder exists already does".split()
)

_TOKENS_WITH_DIGITS = frozenset(("uuid", "time", "ip", "hex", "number"))
"""Token types that contain at least one digit."""


def token_pattern_for(text: str) -> str:
    """Return the token pattern without alternatives that cannot match this text: each costs time at every word."""
    absent = {name for name, mark in (("url", "://"), ("email", "@")) if mark not in text}
    if not compile_regex(r"\d").search(text):
        absent |= _TOKENS_WITH_DIGITS
        absent |= {name for name, mark in (("id", r"#|[\W_]id[ :=]"), ("code", "sqlstate"))
                   if not compile_regex(mark).search(text)}  # fmt: skip
    return _build_token_pattern(frozenset(absent))


@cache
def _build_token_pattern(absent: frozenset[str]) -> str:
    parts = re.split(r"^(?:\| |  )(?=\(\?P<)", TOKEN_PATTERNS.strip("\n"), flags=re.MULTILINE)
    patterns_by_token = {part[4 : part.index(">")]: part for part in parts if part.startswith("(?P<")}
    alternatives = "\n| ".join(part for name, part in patterns_by_token.items() if name not in absent)
    return f"{_NO_TOKEN_START}(?:{_PLAIN_WORDS} | {alternatives}\n)"


def compute_fingerprint(kind: str, tool: str | None, text: str, arguments: Mapping[str, Any] | None = None) -> str:
    """Return the fingerprint of a failure, such as `3:9f2c41d07ab3`. Equal failures have equal fingerprints."""
    # Kinds that are not failures ignore the text: a user may reject a call in any words.
    masked = "" if kind.startswith("none/") else build_template(text, arguments)
    hashed_text = f"{kind}\n{tool or ''}\n{masked}"
    return f"{VERSION}:{digest(hashed_text.encode('utf-8', 'replace'), 6).hex()}"


def build_template(text: str, arguments: Mapping[str, Any] | None = None) -> str:
    """Return the message template: the text with its variable parts masked."""
    text = text[: 4 * MAX_TEMPLATE_CHARS]
    names = {str(name).lower() for name in arguments} if arguments else set()
    for value in _collect_values(arguments) if arguments else ():
        # Skip absent values: compiling a pattern for each would cost more than the rest of this function.
        if not _is_absent(value, text):
            text = re.sub(rf"(?<![\w<]){re.escape(value)}(?![\w>])", "<value>", text, flags=re.IGNORECASE)

    def mask(match: re.Match[str]) -> str:
        token_type, token = match.lastgroup or "", match.group()
        if token_type == "plain":
            return token
        before, after = text[max(0, match.start() - 60) : match.start()], text[match.end() : match.end() + 40]
        if token_type == "quoted":
            quoted_text = token[1:-1]
            is_name = quoted_text.lower() in names or _is_name(quoted_text, before, after)
            return quoted_text if is_name else "<text>"
        if token_type == "number":
            return token if _is_significant_number(token, before, after) else "<n>"
        return token if token_type == "code" else f"<{token_type}>"

    masked = compile_regex(token_pattern_for(text), re.IGNORECASE | re.VERBOSE).sub(mask, text)
    if masked.count("<") > 1:
        masked = compile_regex(r"(?:<(?:value|text|path|id|n|hex)>[\s,;:./\-]{0,3}){2,200}").sub(_merge_masks, masked)
    return " ".join(masked.lower().split())[:MAX_TEMPLATE_CHARS]


def may_quote_arguments(text: str, arguments: Mapping[str, Any] | None) -> bool:
    """Return whether a text may contain a value of the arguments. Otherwise they do not change its template."""
    return bool(arguments) and not all(_is_absent(value, text) for value in _collect_values(arguments or {}))


def _is_absent(value: str, text: str) -> bool:
    return text.isascii() and value.isascii() and value.lower() not in text.lower()


def _merge_masks(match: re.Match[str]) -> str:
    """Merge a list of masks into one: the number of values is as variable as the values."""
    last = match.group().rstrip(" ,;:./-\n\t")
    tail = " " if match.group() != last else ""
    return last[last.rindex("<") :] + tail


def _is_name(quoted_text: str, before: str, after: str) -> bool:
    if not quoted_text.isidentifier():
        return False
    return _has_match(_NAME_BEFORE_PATTERN, before) or _has_match(_NAME_AFTER_PATTERN, after)


def _is_significant_number(token: str, before: str, after: str) -> bool:
    is_code = len(token) == 3 and _has_match(_CODE_AFTER, after)
    # Characters of the longest match of the pattern above.
    return (
        is_code
        or _has_match(_CODE_BEFORE, before[-20:])
        or any(_has_match(pattern, before) for pattern in (_LIMIT_BEFORE, _AND_BEFORE))
        or _has_match(_LIMIT_AFTER, after)
    )


def _has_match(pattern: str, text: str) -> bool:
    # Beyond ASCII, texts that match without regard to case may differ in lower case.
    match = search_likely(pattern, text, text.lower()) if text.isascii() else compile_regex(pattern).search(text)
    return match is not None


def _collect_values(arguments: Mapping[str, Any]) -> list[str]:
    """Return the string values of the call, longest first, so that no part of a value is masked before the whole."""
    candidates = {
        value for value in _strings(arguments, 3) if 3 <= len(value) <= 300 and value.lower() not in _COMMON_WORDS
    }
    return sorted(candidates - set(arguments), key=lambda value: (-len(value), value))[:50]


def _strings(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value.strip()
    elif depth and not isinstance(value, (int, float)) and isinstance(value, (list, tuple, Mapping)):
        for inner in islice(value.values() if isinstance(value, Mapping) else value, 50):
            yield from _strings(inner, depth - 1)
