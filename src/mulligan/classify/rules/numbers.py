"""Numbers and names of error codes in a text: errno, exit codes, SQLSTATE, gRPC, Windows, databases, mail, LDAP.

They mean the same in every language, so they decide before words. The rows of the kinds say what each of them means;
this module knows only how programs write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from mulligan.classify.rules import read_sections
from mulligan.core.failure import Kind
from mulligan.core.kinds import find_kinds_of_number
from mulligan.redaction.regex import PatternIndex, compile_regex

MAX_SEARCHED_CHARS = 1_200
"""Characters in which a number is searched, half of them at each end of the text."""


class StatedNumber(msgspec.Struct, frozen=True):
    """A number that a text states, with the kinds that it allows, likeliest first."""

    family: str
    value: str
    kinds: tuple[Kind, ...]

    @property
    def label(self) -> str:
        """The number as evidence, such as `errno 13` or `ENOENT`."""
        return f"{self.family} {self.value}".strip()


def find_number(text: str, codes: tuple[str, ...] = ()) -> StatedNumber | None:
    """Return the first number of the text or the codes that means a kind, or None."""
    excerpt = text
    if len(text) > MAX_SEARCHED_CHARS:
        excerpt = f"{text[: MAX_SEARCHED_CHARS // 2]}\n{text[-MAX_SEARCHED_CHARS // 2 :]}"
    for family, value in (*_iter_codes(codes), *_iter_numbers(excerpt, excerpt.lower())):
        # Rust writes the number of either system. Words of the other one choose among its kinds.
        families = ("errno", "windows") if family == "os error" else (family,)
        kinds = tuple(dict.fromkeys(kind for name in families for kind in find_kinds_of_number(name, value)))
        if kinds:
            return StatedNumber(family, value, kinds)
    return None


def is_sqlstate(code: str) -> bool:
    """Return whether a code has the form of an SQLSTATE whose class is known."""
    return compile_regex(_SQLSTATE, 0).fullmatch(code) is not None


def _iter_codes(codes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield what the codes of an exception or a response may mean."""
    for code in codes:
        if is_sqlstate(code):
            yield "sqlstate", code
        yield from _interpret_name(code.upper())


# Without a letter an SQLSTATE looks like any number, so its class must be one of those that databases report.
_SQLSTATE = (
    r"(?:0[28]|2[1-8]|3[4DF]|4[024]|5[3-8])(?=[0-9A-Z]{3}(?![0-9A-Z]))[0-9PSHC][0-9A-Z]{2}|"
    r"0A000|2BP01|XX00\d|P000\d|HY[0-9TC]\d\d|IM00\d"
)
_CERTAIN_SQLSTATE = (
    r"(?<![0-9A-Za-z])(?:08[PS]\d\d|22P\d\d|25P0\d|28P01|2BP01|3[DF]000|40P01|42[PS]\d\d|53[1-4]00|55P0\d|57P0\d|"
    r"58P0\d|HYT0\d|XX00\d|0A000)(?![0-9A-Za-z])"
)
"""Codes that nothing else looks like."""
_DATABASES = r"sql|maria|database|\bdb\b|postgres|table|column|relation|\bkey\b|deadlock|odbc|\w: {2}\d{5}: "
_PATTERNS = tuple(
    (family, pattern) for family, patterns in read_sections("numbers").items() for pattern in patterns.splitlines()
)
"""How programs write a number, by family."""
_INDEX = PatternIndex(pattern for _, pattern in _PATTERNS)


def _iter_numbers(text: str, lower: str) -> Iterator[tuple[str, str]]:
    """Yield the numbers of a text with their families, those of a particular program first."""
    # Without a digit only the names of gRPC remain, and the index needs half of the time of this function.
    has_number = compile_regex(r"\d").search(text) is not None or "code" in lower or "rpc" in lower or len(text) < 40
    for index, _ in _INDEX.find_starts(text, lower) if has_number else ():
        family, pattern = _PATTERNS[index]
        for match in compile_regex(pattern, re.IGNORECASE | re.MULTILINE).finditer(text):
            yield from _interpret(family, match[1])
    yield from _iter_sqlstates(text, lower)
    if "0x" in lower or compile_regex(r"\d{10}").search(text):
        yield from _iter_hexadecimal(lower)
    for name in compile_regex(_NAME, 0).findall(text):
        yield from _interpret_name(name)


_NAME = r"(?<![\w.$])(?<!\w-)(?<!echo )(?<!echo [\"'])(?=[A-Z0-9_]{4})[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*(?![\w$-])"
"""A name in capitals. A command that prints one, `|| echo "NOT_FOUND"`, reports nothing."""


def _interpret(family: str, value: str) -> Iterator[tuple[str, str]]:
    if family == "grpc" and not value.isdigit():
        value = str(_GRPC_NAMES.get(value.replace("_", "").lower(), ""))
    elif family in ("oracle", "os error"):
        value = str(int(value))
    elif family == "db2":
        value = str(-abs(int(value)))
    elif family == "errno":
        family = "windows" if int(value) > 1000 else family
    yield family, value


_GRPC_NAMES = {
    name: code
    for code, name in enumerate(
        (
            "ok cancelled unknown invalidargument deadlineexceeded notfound alreadyexists permissiondenied "
            "resourceexhausted failedprecondition aborted outofrange unimplemented internal unavailable dataloss "
            "unauthenticated"
        ).split()
    )
} | {"canceled": 1}
"""Names of gRPC codes without separators: Go, Java and Python spell them differently."""


def _iter_sqlstates(text: str, lower: str) -> Iterator[tuple[str, str]]:
    if "sqlstate" in lower or "pgcode" in lower or "sql state" in lower or "sql_state" in lower:
        codes = compile_regex(_STATED_SQLSTATE).findall(text)
    elif compile_regex(_LIKE_SQLSTATE, 0).search(text) is None:
        return
    else:
        codes = []
    codes += compile_regex(_CERTAIN_SQLSTATE, 0).findall(text)
    if compile_regex(_DATABASES).search(lower):
        codes += compile_regex(_FIVE_DIGITS).findall(text)
    elif len(text) < 12:
        codes.append(text.strip("\"'()[]: .\n"))
    for code in codes:
        if is_sqlstate(code.upper()):
            yield "sqlstate", code.upper()


_LIKE_SQLSTATE = r"(?<![0-9A-Za-z])[0-9H][0-9A-Z]{4}(?![0-9A-Za-z])"
_STATED_SQLSTATE = r"(?:sql[ _]?state|pgcode)\W{0,4}(?:is |of |code )?\W{0,3}([0-9a-z]{5})(?![0-9a-z])"
_FIVE_DIGITS = r"(?:[\[(]|\b[^\W\d]{4,10}\W{1,4})(\d{5})(?=[\]):,\s]|$)"
"""A code between brackets, or after a word such as `ERROR`: an SQLSTATE if the text is about a database."""


def _iter_hexadecimal(lower: str) -> Iterator[tuple[str, str]]:
    """Yield HRESULT and NTSTATUS codes, also written as negative or large decimals."""
    values = [int(match[1], 16) for match in compile_regex(r"\b0x([8c][0-9a-f]{7})\b").finditer(lower)]
    values += [int(match[0]) & 0xFFFFFFFF for match in compile_regex(r"(?<![\d.])-[12]\d{9}\b").finditer(lower)]
    values += [int(match[1]) for match in compile_regex(r"(?:code|status)\D{1,4}(3221\d{6})\b").finditer(lower)]
    for value in values:
        if value >> 16 == 0x8007:
            yield "windows", str(value & 0xFFFF)
        yield "hresult", f"{value:08X}"


def _interpret_name(name: str) -> Iterator[tuple[str, str]]:
    """Yield what a name in capitals may be: a code by itself, or with the prefix of its system."""
    if "_" in name and (code := _GRPC_NAMES.get(name.replace("_", "").lower())):
        yield "grpc", str(code)
    yield "", name
    prefix, _, suffix = name.partition("_")
    if prefix == "SQLITE":
        yield "sqlite", suffix.partition("_")[0]
    elif prefix in ("ERROR", "STATUS"):
        yield "windows", suffix
    elif name.startswith("NT_STATUS_"):
        yield "windows", name.removeprefix("NT_STATUS_")
    elif name.startswith("WSAE"):
        yield "", name.removeprefix("WSA")
